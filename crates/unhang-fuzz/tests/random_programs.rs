//! Random programs: a short run of fixed seeds, or as long as requested.
//!
//! `UNHANG_TEST_CASES` is the number of programs, each for two of twenty-four targets. `UNHANG_FUZZ_MINUTES` sets a
//! duration instead, each program for all targets. `UNHANG_FUZZ_SEED` is the first seed. `UNHANG_FUZZ_TARGET` names one
//! target, as a failure does. `UNHANG_FUZZ_TRIALS` is the number of smaller programs to try for a failure.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use unhang_fuzz::compare::{Bench, ComparedOutcome, Target};
use unhang_fuzz::generate::generate;
use unhang_fuzz::minimise::minimise;
use unhang_fuzz::program::Program;
use unhang_fuzz::recorded;
use unhang_isa::Chip;

fn setting<T: std::str::FromStr>(name: &str) -> Option<T> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

#[test]
fn a_seed_always_gives_the_same_program() {
    assert_eq!(generate(7), generate(7));
    assert_ne!(generate(7).source(), generate(8).source());
}

/// LLVM loses a word of `a | ~(b << 63)` and of similar shifts; the prelude says how. No program may depend on that.
#[test]
fn compilers_see_no_inversion_of_64_bits() {
    let prelude = include_str!("../src/prelude.hpp");
    let mut hidden = 0;
    for seed in (0..2000).chain([80008]) {
        let source = generate(seed).source();
        let program = source.split_once(prelude).expect("every program starts with the prelude").1;
        for visible in ["(u64)~", "(i64)~", "0xfffffffffffffffful"] {
            assert!(!program.contains(visible), "seed {seed} has {visible}");
        }
        hidden += program.matches("inverse(").count();
    }
    assert!(hidden > 1000, "inversions are still made, hidden: {hidden}");
}

#[derive(Default)]
struct Totals {
    programs: u64,
    runs: u64,
    instructions: u64,
    hazards: u64,
    names: BTreeSet<&'static str>,
    failures: Vec<String>,
}

/// Writes the program, and the smaller one that is left without what the failure does not need.
fn keep(bench: &Bench, seed: u64, target: Target, outcome: &ComparedOutcome) -> String {
    let program = generate(seed);
    let trials = setting("UNHANG_FUZZ_TRIALS").unwrap_or(150);
    let fails = |smaller: &Program| {
        let found = bench.compare(smaller, &[target]).ok().and_then(|mut all| all.pop());
        found.is_some_and(|(_, found)| found.failure() == outcome.failure())
    };
    let least = minimise(&program, trials, fails);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../build/fuzz/{seed}-{target}"));
    let written = std::fs::create_dir_all(&folder)
        .and_then(|()| std::fs::write(folder.join("program.cpp"), program.source()))
        .and_then(|()| std::fs::write(folder.join("least.cpp"), least.source()));
    format!(
        "seed {seed} {target}: {outcome}\n  {} of {} statements are left, in build/fuzz/{seed}-{target} ({written:?})\n  \
         again: UNHANG_FUZZ_SEED={seed} UNHANG_TEST_CASES=1 UNHANG_FUZZ_TARGET={target} cargo test -p unhang-fuzz",
        least.size(),
        program.size(),
    )
}

#[test]
fn random_programs_give_the_same_on_the_host_and_on_the_emulator() {
    let compilers = Bench::compilers(&[19, 15, 21, 22]);
    if !compilers.contains(&19) {
        println!("skipped: no clang-19 and lld-19 to compile random programs with");
        return;
    }
    let (bench, start, mut totals) = (Bench::new().unwrap(), Instant::now(), Totals::default());
    let minutes: Option<f64> = setting("UNHANG_FUZZ_MINUTES");
    let limit = Duration::from_secs_f64(minutes.unwrap_or(60.0) * 60.0);
    let cases = setting("UNHANG_TEST_CASES").unwrap_or(if minutes.is_some() { u64::MAX / 2 } else { 24 });
    let one: Option<String> = setting("UNHANG_FUZZ_TARGET");
    let mut targets = Target::all();
    // The others exist so that they can be named; `newer_compilers.rs` says how to install them.
    targets.extend(one.iter().flat_map(|_| Target::of(&[21, 22], &[Chip::Gfx1010])));
    targets.retain(|target| compilers.contains(&target.clang));
    targets.retain(|target| one.as_ref().is_none_or(|one| target.to_string() == *one));
    assert!(!targets.is_empty(), "{one:?} is no target, or its compiler is not here");
    let first = setting("UNHANG_FUZZ_SEED").unwrap_or(1);
    for seed in (first..first + cases).take_while(|_| start.elapsed() < limit) {
        // Each program is for another two of the targets, so that every target gets its turn.
        let place = seed as usize * 2;
        let some = [place, place + 1].map(|place| targets[place % targets.len()]);
        let chosen = if minutes.is_some() || targets.len() < 2 { &targets[..] } else { &some[..] };
        totals.programs += 1;
        for (target, outcome) in bench.compare(&generate(seed), chosen).unwrap() {
            totals.runs += 1;
            println!("seed {seed} {target}: {outcome}");
            match &outcome {
                ComparedOutcome::Same { instructions, names, hazard } => {
                    totals.names.extend(names);
                    totals.instructions += instructions;
                    totals.hazards += hazard.is_some() as u64;
                }
                failure => {
                    let kept = keep(&bench, seed, target, failure);
                    println!("{kept}");
                    totals.failures.push(kept);
                }
            }
        }
    }
    println!(
        "{} programs, {} runs, {:.1} million instructions of waves, {} names of instructions; {} stopped at a hazard across a call",
        totals.programs,
        totals.runs,
        totals.instructions as f64 / 1e6,
        totals.names.len(),
        totals.hazards
    );
    assert!(totals.failures.is_empty(), "{}", totals.failures.join("\n"));
    let missing = recorded::missing("random-programs", &totals.names);
    let again = "UPDATE_DOCS=1 cargo test -p unhang-fuzz --test random_programs";
    // Programs outside the usual run may well contain other instructions; that is not a failure.
    let usual = ["UNHANG_FUZZ_MINUTES", "UNHANG_TEST_CASES", "UNHANG_FUZZ_SEED", "UNHANG_FUZZ_TARGET"]
        .iter()
        .all(|name| std::env::var_os(name).is_none());
    if !missing.is_empty() {
        println!("not recorded: {missing:?}: {again}");
    }
    assert!(!usual || missing.is_empty(), "not recorded: {missing:?}: {again}");
}
