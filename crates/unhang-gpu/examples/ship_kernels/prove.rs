//! The proof of a package's kernels: every function of every object computes problems of the suite on the emulated chip that
//! it was compiled for, with hazard checks. Each runs from the very bytes that are packed, without a compiler, and is
//! compared with the reference in f64. What was proven is kept in a ledger, so that the next build proves only what
//! changed.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use unhang_conv::{DataType, Problem};
use unhang_gpu::GpuSettings;
use unhang_gpu::cache::Key;
use unhang_gpu::choice::Choice;
use unhang_gpu::compiler::{CompileError, NoCompiler};
use unhang_gpu::driver::{Emulated, EmulatedEngine};
use unhang_gpu::plan::{Form, LaunchPlan, Stage};
use unhang_gpu::shapes::Shape;
use unhang_gpu::shipped::{self, Shipped};
use unhang_isa::Chip;
use unhang_suite::{any_problem, check};

use super::Outcome;

/// Random problems of each type, beside one of each kind that the package tells apart.
const RANDOM: usize = 300;
/// Problems that each function has to compute; the emulated RDNA2 is there to show that its objects are whole.
const PROBLEMS: [(Chip, u32); 2] = [(Chip::Gfx1010, 2), (Chip::Gfx1030, 1)];
/// A problem of fewer operations hardly fills a wave.
const LEAST_OPERATIONS: f64 = 20_000.0;

/// A way to compute a problem with packed objects.
struct Trial {
    target: Chip,
    problem: Problem,
    choice: Choice,
    /// The SHA-256 of each object that it runs.
    objects: HashSet<String>,
    /// The objects' functions.
    functions: HashSet<(String, &'static str)>,
    /// How long it takes to emulate, in products and small instructions.
    cost: f64,
}

impl Trial {
    /// What it is kept under: everything that it rests on, the program that emulates included.
    fn name(&self, program: &str) -> String {
        let mut objects: Vec<&str> = self.objects.iter().map(String::as_str).collect();
        objects.sort_unstable();
        let what =
            [self.target.name().to_owned(), self.problem.to_string(), self.choice.to_string(), program.to_owned()];
        Key::of(what.iter().map(String::as_str).chain(objects)).to_string()
    }
}

fn problems() -> Vec<Problem> {
    let mut problems = shipped::kinds();
    for data_type in DataType::ALL {
        let seed = [data_type.name().len() as u8 ^ 0x5a; 32];
        let mut runner = TestRunner::new_with_rng(Config::default(), TestRng::from_seed(RngAlgorithm::ChaCha, &seed));
        let random = (0..RANDOM).filter_map(|_| any_problem(data_type).new_tree(&mut runner).ok());
        problems.extend(random.map(|tree| tree.current()));
    }
    problems
}

fn cost(stage: &Stage) -> f64 {
    let blocks: f64 = stage.grid.iter().map(|&n| f64::from(n)).product();
    let constant = |name: &str| stage.kernel.constant(name).unwrap_or(1) as f64;
    let each = match stage.shape {
        Shape::Gemm(shape) => {
            constant("BM") * constant("BN") * (constant("BK") * f64::from(shape.steps_per_split) + 16.0)
        }
        Shape::Weights(shape) => {
            constant("BM") * constant("BN") * (constant("BK") * f64::from(shape.steps_per_split) + 16.0)
        }
        Shape::Fused(shape) => 256.0 * 64.0 * 2.0 * f64::from(shape.reduced + 8),
        _ => f64::from(stage.block) * 400.0,
    };
    blocks * each
}

/// The cheapest trials by which every function has its problems.
fn trials(shipped: &Shipped) -> Vec<Trial> {
    let problems = problems();
    let mut chosen = Vec::new();
    for (target, wanted) in PROBLEMS {
        let mut all: Vec<Trial> = problems.iter().flat_map(|problem| trials_of(shipped, target, problem)).collect();
        let is_small = |trial: &Trial| trial.problem.flops() < LEAST_OPERATIONS;
        all.sort_by(|a, b| is_small(a).cmp(&is_small(b)).then(a.cost.total_cmp(&b.cost)));
        let mut counts: HashMap<(String, &str), u32> = HashMap::new();
        for trial in all {
            let lacks = |function: &(String, &'static str)| counts.get(function).is_none_or(|&count| count < wanted);
            if trial.functions.iter().any(lacks) {
                for function in &trial.functions {
                    *counts.entry(function.clone()).or_default() += 1;
                }
                chosen.push(trial);
            }
        }
    }
    chosen
}

fn trials_of(shipped: &Shipped, target: Chip, problem: &Problem) -> Vec<Trial> {
    let mut found = Vec::new();
    for choice in shipped::general_choices(problem) {
        let Ok(plan) = LaunchPlan::general(problem, &choice) else { continue };
        let mut trial = Trial {
            target,
            problem: problem.clone(),
            choice,
            objects: HashSet::new(),
            functions: HashSet::new(),
            cost: plan.stages.iter().map(cost).sum(),
        };
        let mut whole = true;
        for stage in &plan.stages {
            match shipped.entry(&stage.kernel, target.name()) {
                Some(entry) => {
                    trial.objects.insert(entry.sha256.clone());
                    trial.functions.insert((entry.sha256.clone(), stage.kernel.entry));
                }
                None => whole = false,
            }
        }
        if whole {
            found.push(trial);
        }
    }
    found
}

/// This program, so that another emulator proves anew.
fn program() -> Result<String, Box<dyn std::error::Error>> {
    let bytes = fs::read(std::env::current_exe()?)?;
    Ok(shipped::hash_of(&bytes))
}

fn ledger(cache: &Path, share: usize) -> PathBuf {
    cache.join(format!("proven-{share}.txt"))
}

fn proven(cache: &Path) -> HashSet<String> {
    let files = fs::read_dir(cache).into_iter().flatten().flatten().map(|file| file.path());
    let ledgers = files
        .filter(|file| file.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with("proven-")));
    let texts = ledgers.filter_map(|file| fs::read_to_string(file).ok());
    texts.flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>()).collect()
}

/// Runs every N-th trial that is not in the ledger.
pub(crate) fn prove([share, of]: [usize; 2], folder: &Path, cache: &Path) -> Outcome {
    let (shipped, program, known) = (Shipped::open(folder)?, program()?, proven(cache));
    let none = Arc::new(NoCompiler(CompileError::Unusable("the package's own bytes are to be run".into())));
    let settings = GpuSettings {
        workspace_limit: None,
        cache_folder: None,
        cache_limit: 0,
        shipped_folder: Some(folder.to_owned()),
    };
    let card = |chip, reported| {
        let card = Emulated::new(chip, reported, chip, none.clone());
        card.use_threads(1);
        EmulatedEngine::new(card, settings.clone())
    };
    // As it is, and retagged for the runtime of a spoof.
    let engines = [card(Chip::Gfx1010, Chip::Gfx1010), card(Chip::Gfx1010, Chip::Gfx1030)];
    let newer = card(Chip::Gfx1030, Chip::Gfx1030);
    let mut file = OpenOptions::new().create(true).append(true).open(ledger(cache, share))?;
    let trials = trials(&shipped);
    let mut wrong = Vec::new();
    for (turn, trial) in trials.iter().enumerate().skip(share).step_by(of.max(1)) {
        let name = trial.name(&program);
        if known.contains(&name) {
            continue;
        }
        let engine = if trial.target == Chip::Gfx1010 { &engines[turn / of.max(1) % 2] } else { &newer };
        engine.use_form(Some((trial.choice, Form::General)));
        match check(engine, &trial.problem, turn as u64) {
            Ok(_) => writeln!(file, "{name}")?,
            Err(failure) => wrong.push(format!("{} on {} by {}: {failure}", trial.choice, trial.problem, trial.target)),
        }
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n").into()) }
}

/// Counts what was proven into the list.
pub(crate) fn seal(folder: &Path, cache: &Path) -> Outcome {
    let (shipped, program, known) = (Shipped::open(folder)?, program()?, proven(cache));
    let trials = trials(&shipped);
    let mut counts: HashMap<String, u32> = HashMap::new();
    let mut functions: HashSet<&(String, &str)> = HashSet::new();
    for trial in trials.iter().filter(|trial| known.contains(&trial.name(&program))) {
        trial.objects.iter().for_each(|object| *counts.entry(object.clone()).or_default() += 1);
        functions.extend(&trial.functions);
    }
    let all: HashSet<&(String, &str)> = trials.iter().flat_map(|trial| &trial.functions).collect();
    let sealed = shipped::note_proofs(folder, &counts)?;
    let unproven: Vec<&str> =
        sealed.entries().iter().filter(|entry| entry.emulated == 0).map(|entry| entry.name.as_str()).collect();
    if !unproven.is_empty() || functions.len() != all.len() {
        return Err(format!(
            "{} of {} functions are proven; not proven at all: {unproven:?}",
            functions.len(),
            all.len()
        )
        .into());
    }
    let targets: BTreeSet<&str> = trials.iter().map(|trial| trial.target.name()).collect();
    let targets: Vec<&str> = targets.into_iter().collect();
    println!(
        "{} functions of {} objects were right on the emulated {} in {} runs",
        all.len(),
        sealed.entries().len(),
        targets.join(" and "),
        trials.len()
    );
    Ok(())
}
