//! Every kernel family on the emulated card: compiled by hiprtc for gfx1010, executed instruction by instruction with the
//! hazards of that chip checked, and compared with the reference. The kernels come from the engine's own candidates, so
//! that a new family is among them as soon as the engine proposes it.
//!
//! One compilation takes about half a second, so the candidates are chosen to cover every constant of every kernel in few
//! of them. `UNHANG_TEST_ALL=1` takes every candidate.

#[path = "host/planes.rs"]
mod planes;

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, OnceLock};

use unhang_conv::{DataType, Direction, Layout, Problem, Specification};
use unhang_emulator::{Perturbation, Unit};
use unhang_engine::{Elements, ElementsMut, Engine, Operands};
use unhang_gpu::GpuSettings;
use unhang_gpu::candidates::{Candidate, candidates, general_candidates};
use unhang_gpu::choice::Choice;
use unhang_gpu::compiler::{Clang, CompileError, Compiler, Hiprtc, NoCompiler};
use unhang_gpu::driver::{Emulated, EmulatedEngine};
use unhang_gpu::model::DeviceModel;
use unhang_gpu::object;
use unhang_gpu::plan::Form;
use unhang_gpu::shipped;
use unhang_gpu::sources::Kernel;
use unhang_isa::{Chip, WORK_AROUND_FEATURES};
use unhang_suite::check;

/// Objects by kernel and options.
type Compiled = HashMap<(Kernel, Vec<String>), Vec<u8>>;

/// A compiler with a memory: the same kernel for several cards of one test is compiled once.
struct Memory {
    compiler: Box<dyn Compiler>,
    compiled: Mutex<Compiled>,
    /// What is compiled for gfx1030 gets the work-arounds that the compiler has for gfx1010.
    work_around: bool,
}

impl Memory {
    fn new(compiler: impl Compiler + 'static, work_around: bool) -> Arc<Memory> {
        Arc::new(Memory { compiler: Box::new(compiler), compiled: Mutex::default(), work_around })
    }

    /// hiprtc with one memory for all tests; `None` where it is not installed.
    fn find(work_around: bool) -> Option<Arc<Memory>> {
        static COMPILERS: [OnceLock<Result<Arc<Memory>, String>>; 2] = [OnceLock::new(), OnceLock::new()];
        let found = COMPILERS[work_around as usize].get_or_init(|| {
            let hiprtc = Hiprtc::find().map_err(|error| error.to_string())?;
            Ok(Memory::new(hiprtc, work_around))
        });
        found.as_ref().inspect_err(|error| println!("skipped: {error}")).ok().cloned()
    }
}

impl Compiler for Memory {
    fn version(&self) -> String {
        self.compiler.version()
    }

    fn options(&self, kernel: &Kernel, architecture: &str) -> Vec<String> {
        let mut options = self.compiler.options(kernel, architecture);
        if self.work_around {
            for name in WORK_AROUND_FEATURES {
                options.extend(["-Xclang", "-target-feature", "-Xclang", &format!("+{name}")].map(String::from));
            }
        }
        options
    }

    fn compile(&self, kernel: &Kernel, options: &[String]) -> Result<Vec<u8>, CompileError> {
        let key = (kernel.clone(), options.to_vec());
        if let Some(object) = self.compiled.lock().unwrap().get(&key) {
            return Ok(object.clone());
        }
        let object = self.compiler.compile(kernel, options)?;
        self.compiled.lock().unwrap().insert(key, object.clone());
        Ok(object)
    }
}

const NO_CACHE: GpuSettings =
    GpuSettings { workspace_limit: Some(1 << 26), cache_folder: None, cache_limit: 0, shipped_folder: None };

/// A card with gfx1010 silicon for which code is compiled natively, under a runtime that reports `reported`.
fn native(compiler: Arc<Memory>, reported: Chip) -> EmulatedEngine {
    EmulatedEngine::new(Emulated::new(Chip::Gfx1010, reported, Chip::Gfx1010, compiler), NO_CACHE)
}

fn problem(specification: Specification) -> Problem {
    Problem::new(specification).unwrap()
}

/// Small problems for every family: few and many channels, 1×1 to 7×7, strides, dilations, groups, depthwise.
fn problems() -> Vec<Problem> {
    let base = Specification { batch: 2, padding: [1, 1], kernel: [3, 3], ..Specification::default() };
    let shapes = [
        Specification { in_channels: 20, out_channels: 40, in_size: [8, 8], ..base },
        Specification { in_channels: 17, out_channels: 18, in_size: [7, 9], ..base },
        Specification { in_channels: 24, out_channels: 36, in_size: [6, 6], kernel: [1, 1], padding: [0, 0], ..base },
        Specification {
            in_size: [8, 16],
            kernel: [1, 1],
            padding: [0, 0],
            stride: [2, 2],
            in_channels: 20,
            out_channels: 8,
            ..base
        },
        Specification { in_channels: 16, out_channels: 16, in_size: [6, 7], kernel: [5, 5], padding: [2, 2], ..base },
        Specification { in_channels: 3, out_channels: 20, in_size: [13, 11], kernel: [7, 7], stride: [2, 2], ..base },
        Specification { in_channels: 18, out_channels: 3, in_size: [9, 8], stride: [2, 1], dilation: [1, 2], ..base },
        Specification { in_channels: 16, out_channels: 32, in_size: [9, 8], stride: [2, 2], ..base },
        Specification { in_channels: 16, out_channels: 18, in_size: [5, 8], dilation: [2, 3], padding: [2, 3], ..base },
        Specification { in_channels: 12, out_channels: 8, groups: 2, in_size: [7, 7], ..base },
        Specification { in_channels: 10, out_channels: 20, groups: 10, in_size: [7, 9], stride: [2, 2], ..base },
        Specification { in_channels: 8, out_channels: 8, groups: 8, in_size: [8, 8], ..base },
        Specification { in_channels: 33, out_channels: 33, groups: 33, in_size: [8, 7], ..base },
        Specification { in_channels: 6, out_channels: 9, in_size: [5, 6], stride: [2, 2], transposed: true, ..base },
        // Writes pixels that no product reaches: there the bias is all.
        Specification {
            in_size: [4, 6],
            kernel: [1, 1],
            padding: [0, 0],
            stride: [2, 2],
            in_channels: 8,
            out_channels: 20,
            transposed: true,
            ..base
        },
    ];
    let mut problems = Vec::new();
    for specification in shapes {
        for data_type in DataType::ALL {
            for layout in Layout::ALL {
                for direction in Direction::ALL {
                    problems.push(problem(Specification { data_type, layout, direction, ..specification }));
                }
            }
        }
    }
    problems
}

/// A way to compute a problem, the kernels that it compiles, and what of theirs it covers.
struct Trial {
    problem: Problem,
    choice: Choice,
    form: Form,
    kernels: BTreeSet<Kernel>,
    covers: BTreeSet<String>,
}

/// Every candidate of every problem.
fn trials() -> Vec<Trial> {
    trials_of(candidates)
}

fn trials_of(candidates: fn(&Problem, &DeviceModel, u64) -> Vec<Candidate>) -> Vec<Trial> {
    let device = DeviceModel::rx_5600_xt();
    let mut trials = Vec::new();
    for problem in problems() {
        for candidate in candidates(&problem, &device, 1 << 26) {
            let family = candidate.choice.family();
            let (direction, layout) = (problem.direction(), problem.layout());
            let mut covers = BTreeSet::from([
                format!("{family} {direction:?} {layout:?}"),
                format!("{family} {:?}", problem.data_type()),
                format!("{family} {direction:?}, transposed {}", problem.transposed()),
            ]);
            let kernels: BTreeSet<Kernel> = candidate.plan.stages.into_iter().map(|stage| stage.kernel).collect();
            for kernel in &kernels {
                covers.insert(kernel.entry.to_owned());
                for (name, value) in kernel.constants.iter().filter(|(_, value)| (0..2).contains(value)) {
                    covers.insert(format!("{} {name}={value}", kernel.entry));
                }
                for name in ["TYPE", "BM", "BN", "NESTED"] {
                    covers.extend(kernel.constant(name).map(|value| format!("{} {name}={value}", kernel.entry)));
                }
            }
            let (choice, form) = (candidate.choice, candidate.form);
            trials.push(Trial { problem: problem.clone(), choice, form, kernels, covers });
        }
    }
    trials
}

/// Few trials that cover what all of them cover, by compiling as little as possible.
fn covering(mut trials: Vec<Trial>) -> Vec<Trial> {
    let (mut chosen, mut covered, mut compiled) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
    loop {
        let worth = |trial: &Trial| {
            let gain = trial.covers.difference(&covered).count();
            // A kernel takes as long to compile as some hundred thousand multiply-adds to emulate.
            let cost = 1 + 4 * trial.kernels.difference(&compiled).count() + trial.problem.flops() as usize / 100_000;
            (gain > 0).then(|| gain * 1000 / cost)
        };
        let best = trials.iter().enumerate().filter_map(|(at, trial)| worth(trial).map(|worth| (worth, at)));
        let Some((_, at)) = best.max_by_key(|&(worth, at)| (worth, std::cmp::Reverse(at))) else { return chosen };
        let trial = trials.swap_remove(at);
        covered.extend(trial.covers.iter().cloned());
        compiled.extend(trial.kernels.iter().cloned());
        chosen.push(trial);
    }
}

fn everything() -> bool {
    std::env::var_os("UNHANG_TEST_ALL").is_some_and(|value| value == "1")
}

fn check_trial(engine: &EmulatedEngine, trial: &Trial, seed: u64) {
    engine.use_form(Some((trial.choice, trial.form)));
    if let Err(failure) = check(engine, &trial.problem, seed) {
        panic!("{} on {}: {failure}", trial.choice, trial.problem);
    }
}

#[test]
fn every_family_is_right_on_the_emulated_card() {
    let Some(compiler) = Memory::find(false) else { return };
    let engines = [native(compiler.clone(), Chip::Gfx1010), native(compiler.clone(), Chip::Gfx1030)];
    check_all(&engines, trials());
}

/// What users' compilers will be in some years, or are on newer systems. Each object is audited before it is loaded, in both
/// compilers' code on each chip of RDNA1. It is a covering set of candidates, even where every one is asked for.
#[test]
fn every_family_is_right_compiled_by_newer_compilers_for_each_chip() {
    let chips = [Chip::Gfx1010, Chip::Gfx1011, Chip::Gfx1012, Chip::Gfx1013];
    for name in ["clang-21", "clang-22"] {
        let folder = tempfile::tempdir().unwrap();
        let compiler = match Clang::named(name, folder.path()) {
            Ok(compiler) => Memory::new(compiler, false),
            Err(_) => {
                println!("skipped: newer compilers: {name} is not in PATH (tools/rocm-root --release compilers)");
                continue;
            }
        };
        let engines =
            chips.map(|chip| EmulatedEngine::new(Emulated::new(chip, chip, chip, compiler.clone()), NO_CACHE));
        check_all(&engines, covering(trials()));
        let compiled = compiler.compiled.lock().unwrap();
        println!("{}: {} objects", compiler.version(), compiled.len());
        for ((kernel, options), code) in compiled.iter() {
            let chip = chips.iter().find(|chip| options.contains(&format!("--offload-arch={}", chip.name()))).unwrap();
            if let Err(why) = object::refuse_unsafe(code, *chip) {
                panic!("{name} {chip:?} {kernel}: {why}");
            }
        }
    }
}

/// What an owner of an RX 5500 XT printed of MIOpen compiled for gfx1012 (xuhuisheng/rocm-build issue 47, 2024-02-17). The report
/// does not show the operands; numbers that count up give its 36 numbers.
#[test]
fn the_numbers_of_a_real_rx_5500_xt_come_out_on_the_emulated_one() {
    let Some(compiler) = Memory::find(false) else { return };
    let chip = Chip::Gfx1012;
    let engine = EmulatedEngine::new(Emulated::new(chip, chip, chip, compiler), NO_CACHE);
    let (in_size, kernel, padding) = ([5, 5], [2, 2], [1, 1]);
    let problem = problem(Specification { in_size, kernel, padding, ..Specification::default() });
    let counted = |count: u8| (0..count).map(f32::from).collect::<Vec<f32>>();
    let (image, filter, mut result) = (counted(25), counted(4), vec![f32::NAN; 36]);
    let (first, second) = (Elements::F32(&image), Elements::F32(&filter));
    engine.run(&problem, Operands { first, second, bias: None, result: ElementsMut::F32(&mut result) }).unwrap();
    #[rustfmt::skip]
    let printed: [u8; 36] = [
        0, 3, 8, 13, 18, 8,
        15, 29, 35, 41, 47, 18,
        35, 59, 65, 71, 77, 28,
        55, 89, 95, 101, 107, 38,
        75, 119, 125, 131, 137, 48,
        20, 21, 22, 23, 24, 0,
    ];
    assert_eq!(result, printed.map(f32::from));
}

struct CardMemory(Emulated);

impl planes::Memory for CardMemory {
    fn put(&self, bytes: &[u8]) -> u64 {
        self.0.allocate(bytes)
    }

    fn get(&self, address: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.0.read(address, &mut bytes).unwrap();
        bytes
    }
}

#[test]
fn planes_of_3d_tensors_are_gathered_and_put_back_on_the_emulated_card() {
    let Some(compiler) = Memory::find(false) else { return };
    for reported in [Chip::Gfx1010, Chip::Gfx1030] {
        let engine = native(compiler.clone(), reported);
        planes::check(&engine.gpu, &CardMemory(engine.card.clone()));
    }
}

/// What a package carries, made for a covering set of problems, read back from its folder, and run without a compiler: on
/// each of the chips that it serves, natively and under a spoofed runtime.
#[test]
fn shipped_kernels_are_right_on_every_chip_without_a_compiler() {
    let Some(compiler) = Memory::find(false) else { return };
    let all = trials_of(general_candidates);
    let trials = if everything() { all } else { covering(all) };
    let mut kernels: Vec<Kernel> = trials.iter().flat_map(|trial| trial.kernels.iter().cloned()).collect();
    let folder = tempfile::tempdir().unwrap();
    kernels.sort();
    kernels.dedup_by(|a, b| a.source == b.source && a.constants == b.constants);
    let (shipped, left_out) = shipped::build(&kernels, &shipped::TARGETS, &*compiler, folder.path()).unwrap();
    left_out.iter().for_each(|refused| println!("{refused}"));
    assert!(left_out.len() * 20 <= kernels.len(), "{left_out:?}");
    let carried = |trial: &Trial| {
        let chips = ["gfx1010", "gfx1012", "gfx1030"];
        trial.kernels.iter().all(|kernel| chips.iter().all(|chip| shipped.entry(kernel, chip).is_some()))
    };
    let trials: Vec<Trial> = trials.into_iter().filter(carried).collect();
    let none = Arc::new(NoCompiler(CompileError::Unusable("there is none in this test".into())));
    let settings = GpuSettings { shipped_folder: Some(folder.path().to_owned()), ..NO_CACHE };
    let card =
        |chip, reported| EmulatedEngine::new(Emulated::new(chip, reported, chip, none.clone()), settings.clone());
    let engines = [
        card(Chip::Gfx1010, Chip::Gfx1010),
        card(Chip::Gfx1010, Chip::Gfx1030),
        card(Chip::Gfx1012, Chip::Gfx1012),
        card(Chip::Gfx1030, Chip::Gfx1030),
    ];
    check_all(&engines, trials);
}

/// Waves of a workgroup share tiles through LDS: every kernel once, on the smallest problem that uses it.
#[test]
fn shipped_kernels_have_no_race_between_the_waves_of_a_workgroup() {
    let Some(compiler) = Memory::find(false) else { return };
    let engine = native(compiler, Chip::Gfx1010);
    engine.card.mind_races(true);
    let mut trials = trials_of(general_candidates);
    trials.sort_by_key(|trial| trial.problem.flops() as u64);
    let mut seen = BTreeSet::new();
    for trial in trials {
        let before = seen.len();
        seen.extend(trial.kernels.iter().map(|kernel| kernel.entry.to_owned()));
        if seen.len() > before {
            check_trial(&engine, &trial, 11);
        }
    }
    assert!(seen.len() > 8, "{seen:?}");
}

/// A byte that changed on its way is noticed before anything is loaded.
#[test]
fn a_shipped_object_whose_hash_differs_is_not_loaded() {
    let Some(compiler) = Memory::find(false) else { return };
    let folder = tempfile::tempdir().unwrap();
    let trial = trials_of(general_candidates).into_iter().find(|trial| trial.choice == Choice::Plain).unwrap();
    let kernels: Vec<Kernel> = trial.kernels.iter().cloned().collect();
    let (shipped, _) = shipped::build(&kernels, &shipped::TARGETS, &*compiler, folder.path()).unwrap();
    let entry = shipped.entry(&kernels[0], "gfx1010").unwrap();
    assert!(shipped.read(entry).is_ok());
    let path = folder.path().join("kernels.bin");
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[entry.offset as usize + entry.packed_bytes as usize / 2] ^= 4;
    std::fs::write(&path, bytes).unwrap();
    let changed = shipped.read(entry).unwrap_err().to_string();
    assert!(changed.contains("is not loaded"), "{changed}");
    assert!(matches!(shipped.object(&kernels[0], "gfx1010", "gfx1030"), Some(Err(_))));
    let none = Arc::new(NoCompiler(CompileError::Unusable("there is none in this test".into())));
    let settings = GpuSettings { shipped_folder: Some(folder.path().to_owned()), ..NO_CACHE };
    let engine = EmulatedEngine::new(Emulated::new(Chip::Gfx1010, Chip::Gfx1010, Chip::Gfx1010, none), settings);
    assert!(engine.gpu.prepare_form(&trial.problem, trial.choice, trial.form).is_err());
}

fn check_all(engines: &[EmulatedEngine], trials: Vec<Trial>) {
    let all = trials;
    let families: BTreeSet<&str> = all.iter().map(|trial| trial.choice.family()).collect();
    println!("{} candidates of {families:?}", all.len());
    let trials = if everything() { all } else { covering(all) };
    let kernels: BTreeSet<&Kernel> = trials.iter().flat_map(|trial| &trial.kernels).collect();
    println!("{} of them are run, with {} kernels", trials.len(), kernels.len());
    // Each engine takes its turns beside the others. Under a spoofed runtime the same code is retagged: what is loaded must
    // compute the same.
    let take_turns = |at: usize| {
        for (turn, trial) in trials.iter().enumerate().skip(at).step_by(engines.len()) {
            check_trial(&engines[at], trial, 2 * turn as u64);
            if trial.problem.direction() == Direction::Forward {
                // An odd seed brings a bias.
                check_trial(&engines[at], trial, 2 * turn as u64 + 1);
            }
        }
    };
    std::thread::scope(|scope| {
        for at in 0..engines.len() {
            let take_turns = &take_turns;
            scope.spawn(move || take_turns(at));
        }
    });
    for engine in engines {
        let counts = engine.card.counts();
        println!("{counts}");
    }
}

/// One small trial of each family and direction, single precision.
fn one_of_each() -> Vec<Trial> {
    let mut seen = BTreeSet::new();
    let mut trials = trials();
    trials.retain(|trial| trial.problem.data_type() == DataType::F32);
    trials.sort_by(|a, b| a.problem.flops().total_cmp(&b.problem.flops()));
    trials.retain(|trial| seen.insert((trial.choice.family(), trial.problem.direction())));
    trials
}

/// The fallback for a spoofed runtime. Its code has `v_cmpx`, which code for gfx1010 has not. Where an instruction with
/// the scalar destination `null` follows a read of EXEC, LLVM 15 emits no wait. The audit counts that as unsafe, and
/// refuses the object, as the engine would. What the audit lets pass has to run to its end and be right.
#[test]
fn gfx1030_code_with_the_work_arounds_is_right_or_refused_on_gfx1010() {
    let Some(compiler) = Memory::find(true) else { return };
    let card = Emulated::new(Chip::Gfx1010, Chip::Gfx1030, Chip::Gfx1030, compiler.clone());
    let engine = EmulatedEngine::new(card, NO_CACHE);
    let (mut passed, mut refused) = (BTreeSet::new(), BTreeSet::new());
    for (turn, trial) in one_of_each().iter().enumerate() {
        let refusal = |kernel: &Kernel| {
            let code = compiler.compile(kernel, &compiler.options(kernel, "gfx1030")).unwrap();
            object::refuse_unsafe(&code, Chip::Gfx1010).err().map(|error| error.to_string())
        };
        match trial.kernels.iter().find_map(refusal) {
            None => {
                check_trial(&engine, trial, turn as u64);
                passed.insert(trial.choice.family());
            }
            // That wait of LLVM's is the only one that may be missing.
            Some(why) => {
                assert!(why.contains("1 places, the first is CompareExec"), "{why}");
                refused.insert(trial.choice.family());
            }
        }
    }
    println!("passed: {passed:?}, refused: {refused:?}");
    // Which families meet it changes with the source; most of them do not.
    assert!(passed.len() > refused.len(), "passed: {passed:?}, refused: {refused:?}");
}

/// Division of indices uses approximate reciprocals: wherever the card's lie within the accuracy that is documented, the
/// results must not depend on it.
#[test]
fn results_do_not_rest_on_the_last_bit_of_approximate_instructions() {
    let Some(compiler) = Memory::find(false) else { return };
    let engine = native(compiler, Chip::Gfx1010);
    let mut trials = one_of_each();
    trials.retain(|trial| trial.problem.direction() == Direction::Forward && trial.choice.family() != "winograd");
    for perturbation in [Perturbation::Up, Perturbation::Down] {
        engine.card.perturb(perturbation);
        let before = engine.card.counts()[Unit::Transcendental];
        trials.iter().enumerate().for_each(|(turn, trial)| check_trial(&engine, trial, turn as u64));
        assert!(engine.card.counts()[Unit::Transcendental] > before, "no such instruction was executed");
    }
}

#[test]
fn gfx1030_code_without_them_is_stopped_on_gfx1010_and_right_on_gfx1030() {
    let Some(compiler) = Memory::find(false) else { return };
    let on = |silicon| Emulated::new(silicon, Chip::Gfx1030, Chip::Gfx1030, compiler.clone());
    let engines = [Chip::Gfx1010, Chip::Gfx1030].map(|silicon| EmulatedEngine::new(on(silicon), NO_CACHE));
    let trial = one_of_each().into_iter().find(|trial| trial.choice.family() == "gemm").unwrap();
    engines[0].use_choice(Some(trial.choice));
    let stopped = check(&engines[0], &trial.problem, 1).unwrap_err().to_string();
    assert!(stopped.contains("would hang or may corrupt"), "{stopped}");
    check_trial(&engines[1], &trial, 1);
}
