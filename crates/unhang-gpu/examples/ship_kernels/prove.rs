//! The proof of a package's kernels: every function of every object computes something on the emulated chip that it was
//! compiled for, with hazard checks. Each runs from the very bytes that are packed, without a compiler, and is compared
//! with the reference in f64. What was proven is kept in a ledger, so that the next build proves only what
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
use unhang_gpu::compiler::{CompileError, NoCompiler};
use unhang_gpu::driver::{Emulated, EmulatedEngine};
use unhang_gpu::shipped::{self, Shipped};
use unhang_isa::Chip;
use unhang_suite::any_problem;

use super::Outcome;
use super::work::Work;

/// Random problems of each type, beside one of each kind that the package tells apart.
const RANDOM: usize = 300;
/// Problems that each function has to compute; the emulated RDNA2 is there to show that its objects are whole.
const PROBLEMS: [(Chip, u32); 2] = [(Chip::Gfx1010, 2), (Chip::Gfx1030, 1)];

/// A function of an object: the object's SHA-256, the function's name, and the way through its code.
type Function = (String, &'static str, Vec<i32>);

/// Work for packed objects.
struct Trial {
    target: Chip,
    work: Work,
    /// The SHA-256 of each object that it runs.
    objects: HashSet<String>,
    functions: HashSet<Function>,
    /// How long it takes to emulate, in products and small instructions.
    cost: f64,
}

impl Trial {
    /// What it is kept under: everything that it rests on, the program that emulates included.
    fn name(&self, program: &str) -> String {
        let mut objects: Vec<&str> = self.objects.iter().map(String::as_str).collect();
        objects.sort_unstable();
        let what = [self.target.name().to_owned(), self.work.to_string(), program.to_owned()];
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

/// The cheapest trials by which every function has its problems.
fn trials(shipped: &Shipped) -> Vec<Trial> {
    let convolutions = problems();
    let convolutions = convolutions.iter().flat_map(Work::of_convolution);
    let work: Vec<Work> = convolutions.chain(Work::of_operations()).collect();
    let mut chosen = Vec::new();
    for (target, wanted) in PROBLEMS {
        let mut all: Vec<Trial> = work.iter().filter_map(|work| trial_of(shipped, target, work)).collect();
        all.sort_by(|a, b| a.work.is_small().cmp(&b.work.is_small()).then(a.cost.total_cmp(&b.cost)));
        let mut counts: HashMap<Function, u32> = HashMap::new();
        for trial in all {
            let lacks = |function: &Function| counts.get(function).is_none_or(|&count| count < wanted);
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

/// Work by packed objects; `None` if one that it needs is not among them.
fn trial_of(shipped: &Shipped, target: Chip, work: &Work) -> Option<Trial> {
    let (ways, cost) = work.ways()?;
    let (mut objects, mut functions) = (HashSet::new(), HashSet::new());
    for (kernel, way) in ways {
        let object = shipped.entry(&kernel, target.name())?.sha256.clone();
        objects.insert(object.clone());
        functions.insert((object, kernel.entry, way));
    }
    Some(Trial { target, work: work.clone(), objects, functions, cost })
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
        match trial.work.check(engine, turn as u64) {
            Ok(()) => writeln!(file, "{name}")?,
            Err(failure) => wrong.push(format!("{} by {}: {failure}", trial.work, trial.target)),
        }
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n").into()) }
}

/// Counts what was proven into the list.
pub(crate) fn seal(folder: &Path, cache: &Path) -> Outcome {
    let (shipped, program, known) = (Shipped::open(folder)?, program()?, proven(cache));
    let trials = trials(&shipped);
    let mut counts: HashMap<String, u32> = HashMap::new();
    let mut functions: HashSet<&Function> = HashSet::new();
    for trial in trials.iter().filter(|trial| known.contains(&trial.name(&program))) {
        trial.objects.iter().for_each(|object| *counts.entry(object.clone()).or_default() += 1);
        functions.extend(&trial.functions);
    }
    let all: HashSet<&Function> = trials.iter().flat_map(|trial| &trial.functions).collect();
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
        all.iter().map(|(object, name, _)| (object, name)).collect::<HashSet<_>>().len(),
        sealed.entries().len(),
        targets.join(" and "),
        trials.len()
    );
    Ok(())
}
