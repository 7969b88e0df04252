//! Debian's clang 21 and 22, which know more hazard rules than the compilers of Debian 12.
//!
//! The audit finds what they emit for RDNA1 safe, and what they emit without one of their work-arounds unsafe. Random
//! programs compute what they compute on the host.
//!
//! `tools/rocm-root DIR --release compilers` makes a folder with both; put its `compilers` into `PATH`. `make test-all`
//! does so. `UNHANG_TEST_CASES` is the number of random programs, and `UNHANG_FUZZ_SEED` the first seed.

use std::collections::{BTreeMap, BTreeSet};

use unhang_fuzz::compare::{Bench, ComparedOutcome, Language, Target};
use unhang_fuzz::generate::generate;
use unhang_isa::audit::{Context, Finding, Rule, audit};
use unhang_isa::elf::CodeObject;
use unhang_isa::{Chip, Program};

const RDNA1: [Chip; 4] = [Chip::Gfx1010, Chip::Gfx1011, Chip::Gfx1012, Chip::Gfx1013];
const FIXTURES: [(&str, Language); 3] = [
    (include_str!("fixtures/bugs.hip"), Language::Hip),
    (include_str!("fixtures/bugs.ll"), Language::Llvm),
    (include_str!("fixtures/opencl.cl"), Language::OpenCl),
];

/// The features whose absence the audit must notice. clang emits no `v_cmpx` for RDNA1, so nothing can be removed from
/// its code for `vcmpx-exec-war-hazard` and `vcmpx-permlane-hazard`. No image instruction is long enough for
/// `nsa-to-vmem-bug`.
const FEATURES: [(&str, Rule); 9] = [
    ("vmem-to-scalar-write-hazard", Rule::MemoryToScalarWrite),
    ("smem-to-vector-write-hazard", Rule::ScalarMemoryToVectorWrite),
    ("lds-branch-vmem-war-hazard", Rule::LocalBranchMemory),
    ("inst-fwd-prefetch-bug", Rule::InstructionPrefetch),
    ("offset-3f-bug", Rule::BranchOffset3f),
    ("flat-segment-offset-bug", Rule::FlatOffset),
    ("nsa-clause-bug", Rule::ImageClause),
    ("negative-unaligned-scratch-offset-bug", Rule::ScratchOffset),
    ("lds-misaligned-bug", Rule::LocalMisaligned),
];

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// The installed compilers; reports if one of the first two is missing. Newer ones are tried if they are in `PATH`.
fn compilers() -> Vec<u8> {
    let here = Bench::compilers(&[21, 22, 23, 24]);
    for version in [21, 22].into_iter().filter(|version| !here.contains(version)) {
        println!(
            "skipped: newer compilers: clang-{version} and lld-{version} are not in PATH (tools/rocm-root --release compilers)"
        );
    }
    here
}

/// Whether an error is a crash of the compiler itself, such as clang 21's in branch relaxation. Such a bug of LLVM's
/// says nothing about its code.
fn is_crash(error: &str) -> bool {
    error.contains("'Branch relaxation pass'")
}

/// Compiles a random program to a code object; `None` if the compiler itself crashes.
fn compiled(bench: &Bench, seed: u64, target: Target) -> Option<Vec<u8>> {
    match bench.compile(&generate(seed).source(), target) {
        Ok(object) => Some(object),
        Err(error) if is_crash(&format!("{error:#}")) => {
            println!("seed {seed} {target}: the compiler crashes");
            None
        }
        Err(error) => panic!("seed {seed} {target}: {error:#}"),
    }
}

/// Each function of an object with its code and its findings on the chip. Flat accesses count if the compiler knows
/// about them, as clang 22 does and clang 21 does not. For native code of older compilers they never count.
fn findings(object: &[u8], target: Target) -> BTreeMap<String, (Vec<u8>, Vec<Finding>)> {
    let object = CodeObject::parse(object).unwrap();
    let of_function = |function: &unhang_isa::elf::Function<'_>| {
        let mode = object.mode_of(function);
        let context = Context { workgroup_processor_mode: mode.workgroup_processor };
        let mut program = Program::decode(function.code, target.chip, mode.wave64).unwrap();
        let mut found = audit(&program, target.chip, context);
        assert!(!program.instructions.iter().any(|it| it.is_compare_to_exec()), "{}: v_cmpx", function.name);
        if target.clang >= 22 {
            // As if it were compiled for another chip.
            program.chip = Chip::Gfx1030;
            found.extend(
                audit(&program, target.chip, context).into_iter().filter(|it| it.rule == Rule::LocalBranchMemory),
            );
        }
        (function.name.to_owned(), (function.code.to_vec(), found))
    };
    object.functions.iter().map(of_function).collect()
}

fn assert_safe(object: &[u8], target: Target, what: &str) -> usize {
    let functions = findings(object, target);
    for (name, (_, found)) in &functions {
        assert!(found.is_empty(), "{what} {target}: {name}: {found:?}");
    }
    functions.len()
}

#[test]
fn what_newer_compilers_emit_for_rdna1_has_no_findings() {
    let (bench, mut functions, mut objects) = (Bench::new().unwrap(), 0, 0);
    let first = setting("UNHANG_FUZZ_SEED", 1);
    for clang in compilers() {
        for target in Target::of(&[clang], &RDNA1) {
            for (number, (source, language)) in FIXTURES.into_iter().enumerate() {
                let object = bench.compile_with(source, target, language, &[]).unwrap();
                functions += assert_safe(&object, target, &format!("fixture {number}"));
                objects += 1;
            }
        }
        for seed in first..first + setting("UNHANG_TEST_CASES", 8) {
            let targets = Target::of(&[clang], &RDNA1);
            let target = targets[seed as usize * 7 % targets.len()];
            let Some(object) = compiled(&bench, seed, target) else { continue };
            functions += assert_safe(&object, target, &format!("seed {seed}"));
            objects += 1;
        }
    }
    println!("{objects} objects with {functions} functions by newer compilers, no finding");
}

/// Compiles a fixture with features of the chip turned on or off. RDNA1's compilers put a thread's private data into
/// buffers unless the feature for scratch instructions is on.
fn fixture(bench: &Bench, (source, language): (&str, Language), target: Target, features: &[String]) -> Vec<u8> {
    let scratch = (language == Language::Llvm).then(|| "+enable-flat-scratch".to_owned());
    let features: Vec<String> = scratch.into_iter().chain(features.iter().cloned()).collect();
    bench.compile_with(source, target, language, &features).unwrap()
}

/// Turns each feature off. Functions that change must have a finding of its rule; functions that do not change must
/// have none. All four chips have the same features, so each feature is tried on one of them, in both widths of waves.
#[test]
fn each_work_around_of_newer_compilers_is_missed() {
    let (bench, mut places) = (Bench::new().unwrap(), 0);
    for clang in compilers() {
        for (number, (feature, rule)) in FEATURES.into_iter().enumerate() {
            let mut seen = BTreeSet::new();
            for wave64 in [false, true] {
                let target = Target { clang, chip: RDNA1[number % 4], level: 3, wave64 };
                for source in FIXTURES {
                    let with = findings(&fixture(&bench, source, target, &[]), target);
                    let without = findings(&fixture(&bench, source, target, &[format!("-{feature}")]), target);
                    for (name, (code, found)) in &without {
                        let found = found.iter().filter(|it| it.rule == rule).count();
                        let changed = *code != with[name].0;
                        // Without the first feature, loops are aligned too. Of the second, only known addresses are
                        // found. Compilers disagree on which side loads to local memory are.
                        let in_part = matches!(rule, Rule::InstructionPrefetch | Rule::LocalMisaligned)
                            || rule == Rule::LocalBranchMemory && name == "load_to_local";
                        let counts = found > 0 || !in_part;
                        assert!(
                            !counts || (found > 0) == changed,
                            "{target} without {feature}: {name}, {found} findings"
                        );
                        seen.extend((found > 0).then_some(name.clone()));
                        places += found;
                    }
                }
            }
            // Which loops get a prefetch depends on their length.
            let kernel = if rule == Rule::InstructionPrefetch { String::new() } else { feature.replace('-', "_") };
            let found = seen.iter().any(|name| name.starts_with(&kernel));
            assert!(found, "clang {clang} without {feature}: only {seen:?}");
        }
    }
    println!("{places} places of {} features, found where newer compilers leave the work-around out", FEATURES.len());
}

/// Whether a word is there only for a hazard: `s_waitcnt_depctr` or `s_mov_b32 null, 0`.
fn is_work_around(word: u32) -> bool {
    word >> 16 == 0xbfa3 || word == 0xbefd_0380
}

const S_NOP: u32 = 0xbf80_0000;

/// Removes one such instruction at a time from random programs. A few are not missed: LLVM looks at a loop's start
/// before it has put work-arounds into the rest of the loop. Those then protect the start too.
#[test]
fn each_wait_of_newer_compilers_is_missed() {
    let (bench, mut taken, mut needless) = (Bench::new().unwrap(), 0, 0);
    let first = setting("UNHANG_FUZZ_SEED", 1);
    for clang in compilers() {
        for seed in first..first + setting("UNHANG_TEST_CASES", 8) {
            let targets = Target::of(&[clang], &RDNA1);
            let target = targets[seed as usize * 5 % targets.len()];
            let Some(bytes) = compiled(&bench, seed, target) else { continue };
            let object = CodeObject::parse(&bytes).unwrap();
            for function in &object.functions {
                let program = Program::decode(function.code, target.chip, target.wave64).unwrap();
                let places = program.instructions.iter().zip(&program.offsets);
                for (_, &offset) in places.filter(|(it, _)| is_work_around(it.first_word())) {
                    let mut code = function.code.to_vec();
                    code[offset as usize..][..4].copy_from_slice(&S_NOP.to_le_bytes());
                    let program = Program::decode(&code, target.chip, target.wave64).unwrap();
                    taken += 1;
                    if audit(&program, target.chip, Context::default()).is_empty() {
                        println!("seed {seed} {target}: {} at {offset:#x} is not missed", function.name);
                        needless += 1;
                    }
                }
            }
        }
    }
    println!("{taken} waits of newer compilers taken out, {needless} not missed");
    assert!(needless * 200 <= taken, "{needless} of {taken}");
}

#[test]
fn random_programs_of_newer_compilers_compute_as_on_the_host() {
    let compilers = compilers();
    if compilers.is_empty() {
        return;
    }
    if !Bench::compilers(&[19]).contains(&19) {
        println!("skipped: no clang-19 and lld-19 to compile random programs with");
        return;
    }
    let (bench, mut runs, mut instructions, mut hazards, mut crashes) = (Bench::new().unwrap(), [0, 0], 0, 0, 0);
    let first = setting("UNHANG_FUZZ_SEED", 1);
    for seed in first..first + setting("UNHANG_TEST_CASES", 6) {
        // One target of each width: the host computes once for each.
        let targets = Target::of(&compilers, &[Chip::Gfx1010]);
        let half = targets.len() / 2;
        let chosen = [targets[seed as usize % half], targets[half + seed as usize % half]];
        for (target, outcome) in bench.compare(&generate(seed), &chosen).unwrap() {
            if matches!(&outcome, ComparedOutcome::NotCompiled(error) if is_crash(error)) {
                println!("seed {seed} {target}: the compiler crashes");
                crashes += 1;
                continue;
            }
            let ComparedOutcome::Same { instructions: executed, hazard, .. } = &outcome else {
                panic!(
                    "seed {seed} {target}: {outcome}\n  \
                     again: UNHANG_FUZZ_SEED={seed} UNHANG_TEST_CASES=1 UNHANG_FUZZ_TARGET={target} cargo test -p unhang-fuzz"
                );
            };
            runs[target.wave64 as usize] += 1;
            (instructions, hazards) = (instructions + executed, hazards + hazard.is_some() as u64);
        }
    }
    println!(
        "{} runs in waves of 32 and {} of 64 lanes by clang {compilers:?}, {:.1} million instructions, no difference; \
         {hazards} stopped at a hazard across a call; the compiler crashed on {crashes} more",
        runs[0],
        runs[1],
        instructions as f64 / 1e6
    );
    assert!(runs.iter().all(|&runs| runs > crashes), "too few programs were compiled");
}
