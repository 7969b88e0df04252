//! Runs a program on the host and on the emulator, and compares the results.

use std::collections::BTreeSet;
use std::fmt;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use unhang_emulator::{Dispatch, FaultKind, Machine, Mode, Perturbation};
use unhang_isa::Chip;
use unhang_isa::elf::CodeObject;
use unhang_isa::repair::{Options, repair_object};

use crate::program::{COUNTERS, GROUPS, INPUT_WORDS, OWN_WORDS, Program, THREADS, output_words};
use crate::random::Random;

/// A compiler for the device, with its options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// The version of clang.
    pub clang: u8,
    /// The chip.
    pub chip: Chip,
    /// The level of optimisation.
    pub level: u8,
    /// Whether waves have 64 lanes.
    pub wave64: bool,
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = if self.wave64 { "-wave64" } else { "" };
        write!(f, "clang{}-{}-O{}{width}", self.clang, self.chip.name(), self.level)
    }
}

impl Target {
    /// Every combination of the compilers that Debian 12 has.
    pub fn all() -> Vec<Target> {
        Target::of(&[19, 15], &[Chip::Gfx1010, Chip::Gfx1030])
    }

    /// Every combination of some compilers and chips, sorted by the width of waves: the host computes for one width at
    /// a time.
    pub fn of(clangs: &[u8], chips: &[Chip]) -> Vec<Target> {
        let mut all = Vec::new();
        for wave64 in [false, true] {
            for level in [3, 0, 1] {
                for &clang in clangs {
                    all.extend(chips.iter().map(|&chip| Target { clang, chip, level, wave64 }));
                }
            }
        }
        all
    }
}

/// The language of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    /// HIP without its headers.
    Hip,
    /// OpenCL C without its headers.
    OpenCl,
    /// LLVM's intermediate representation.
    Llvm,
}

impl Language {
    /// The compiler's options for this language and a chip.
    fn options(self, chip: Chip) -> Vec<String> {
        let (fixed, chip_option) = match self {
            Language::Hip => {
                let fixed =
                    "-x hip --cuda-device-only -nogpuinc --no-gpu-bundle-output -std=c++17 -ffp-contract=off -fwrapv";
                (fixed, "--offload-arch")
            }
            Language::OpenCl => ("-x cl -cl-std=CL2.0 --target=amdgcn-amd-amdhsa", "-mcpu"),
            Language::Llvm => ("-x ir --target=amdgcn-amd-amdhsa", "-mcpu"),
        };
        let mut options: Vec<String> = fixed.split(' ').map(String::from).collect();
        options.extend([format!("{chip_option}={}", chip.name()), "-nogpulib".into(), "-w".into()]);
        options
    }
}

/// The outcome of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ComparedOutcome {
    /// Both sides wrote the same. If the emulator first stopped at a hazard across a call, the repaired code then ran
    /// to its end with the same checks.
    Same {
        /// Instructions that the emulator executed, over all waves.
        instructions: u64,
        /// The names of the instructions in the code.
        names: BTreeSet<&'static str>,
        /// The hazard at which the emulator stopped first, in words.
        hazard: Option<String>,
    },
    /// A word differs.
    Differs {
        /// Which word: an output of a thread, its own memory, or a counter.
        place: String,
        /// The host's value.
        expected: u32,
        /// The emulator's value.
        found: u32,
    },
    /// The emulator stopped.
    Fault(String),
    /// A compiler rejected the program.
    NotCompiled(String),
}

impl ComparedOutcome {
    /// The kind of failure, if it is one. Minimising compares kinds of failures.
    pub fn failure(&self) -> Option<&str> {
        match self {
            ComparedOutcome::Same { .. } => None,
            ComparedOutcome::Differs { .. } => Some("differs"),
            // Without the place.
            ComparedOutcome::Fault(text) => text.split(" (kernel").next(),
            ComparedOutcome::NotCompiled(_) => Some("not compiled"),
        }
    }
}

impl fmt::Display for ComparedOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ComparedOutcome::Same { instructions, hazard: None, .. } => write!(f, "same ({instructions} instructions)"),
            ComparedOutcome::Same { hazard: Some(hazard), .. } => write!(f, "same, but {hazard}"),
            ComparedOutcome::Differs { place, expected, found } => {
                write!(f, "{place} is {found:#010x} and not {expected:#010x} as on the host")
            }
            ComparedOutcome::Fault(text) => write!(f, "fault: {text}"),
            ComparedOutcome::NotCompiled(text) => write!(f, "not compiled: {text}"),
        }
    }
}

/// Longer than any compiler or program that ends at all.
const DEADLINE: Duration = Duration::from_secs(300);

/// Runs a command to its end, with files for its input and output. The error is what the command printed.
fn run(command: &mut Command, input: Option<&Path>, output: Option<&Path>, errors: &Path) -> Result<()> {
    command.stdin(input.map_or_else(|| Ok(Stdio::null()), |path| File::open(path).map(Stdio::from))?);
    command.stdout(output.map_or_else(|| Ok(Stdio::null()), |path| File::create(path).map(Stdio::from))?);
    command.stderr(File::create(errors)?);
    let name = command.get_program().to_string_lossy().into_owned();
    let mut child = command.spawn().with_context(|| format!("{name} could not be started"))?;
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if start.elapsed() > DEADLINE {
            child.kill()?;
            child.wait()?;
            bail!("{name} did not end within {} s", DEADLINE.as_secs());
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    if !status.success() {
        let said = fs::read_to_string(errors).unwrap_or_default();
        bail!("{name} ended with {status}: {}", said.lines().take(8).collect::<Vec<_>>().join("\n"));
    }
    Ok(())
}

/// A folder in which programs are compiled and run.
pub struct Bench {
    folder: tempfile::TempDir,
}

/// The words of a program's three buffers.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Buffers {
    output: Vec<u32>,
    own: Vec<u32>,
    counters: Vec<u32>,
}

const ALL_THREADS: usize = THREADS * GROUPS;

fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.as_chunks().0.iter().map(|&chunk| u32::from_le_bytes(chunk)).collect()
}

fn bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// The initial values of the counters: all bits set where they are masked.
fn first_counters() -> Vec<u32> {
    (0..COUNTERS * 2).map(|place| if place == 1 { u32::MAX } else { 0 }).collect()
}

fn input(seed: u64) -> Vec<u32> {
    let mut random = Random::new(!seed);
    (0..ALL_THREADS * INPUT_WORDS).map(|_| random.word()).collect()
}

impl Bench {
    /// Creates a bench in a temporary folder.
    pub fn new() -> Result<Bench> {
        Ok(Bench { folder: tempfile::tempdir().context("no temporary folder")? })
    }

    /// Those of the given versions of clang that are installed with their linkers. The host needs 19.
    pub fn compilers(versions: &[u8]) -> Vec<u8> {
        let is_there = |version: &&u8| {
            let names = [format!("clang-{version}"), format!("ld.lld-{version}")];
            let answers =
                |name: &String| Command::new(name).arg("--version").output().is_ok_and(|it| it.status.success());
            names.iter().all(answers)
        };
        versions.iter().filter(is_there).copied().collect()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// What the host writes, with waves of 32 or 64 lanes.
    fn on_host(&self, program: &Program, wave64: bool) -> Result<Buffers> {
        fs::write(self.path("program.cpp"), program.source())?;
        let mut compile = Command::new("clang-19");
        compile.args(["-x", "c++", "-std=c++17", "-O1", "-march=x86-64-v3", "-ffp-contract=off", "-fwrapv", "-w"]);
        // Rounds every operation on halves to a half, as the device does.
        compile.args(["-Xclang", "-ffloat16-excess-precision=none"]);
        compile.args(wave64.then_some("-DWAVE64"));
        compile.arg("-o").arg(self.path("host")).arg(self.path("program.cpp")).arg("-lm");
        run(&mut compile, None, None, &self.path("errors"))?;
        fs::write(self.path("input"), bytes(&input(program.seed)))?;
        let (input, output) = (self.path("input"), self.path("output"));
        run(&mut Command::new(self.path("host")), Some(&input), Some(&output), &self.path("errors"))?;
        let all = words(&fs::read(output)?);
        let (outputs, owns) = (ALL_THREADS * output_words(), ALL_THREADS * OWN_WORDS);
        anyhow::ensure!(all.len() == outputs + owns + COUNTERS * 2, "the host wrote {} words", all.len());
        let (output, rest) = all.split_at(outputs);
        let (own, counters) = rest.split_at(owns);
        Ok(Buffers { output: output.to_vec(), own: own.to_vec(), counters: counters.to_vec() })
    }

    /// Compiles HIP source to a code object.
    pub fn compile(&self, source: &str, target: Target) -> Result<Vec<u8>> {
        self.compile_with(source, target, Language::Hip, &[])
    }

    /// Compiles a source to a code object, with features of the chip turned on (`+name`) or off (`-name`).
    pub fn compile_with(
        &self,
        source: &str,
        target: Target,
        language: Language,
        features: &[String],
    ) -> Result<Vec<u8>> {
        fs::write(self.path("program.source"), source)?;
        let mut compile = Command::new(format!("clang-{}", target.clang));
        compile.args(language.options(target.chip)).arg(format!("-O{}", target.level));
        if target.wave64 {
            compile.args(["-mwavefrontsize64", "-DWAVE64"]);
        }
        for feature in features {
            compile.args(["-Xclang", "-target-feature", "-Xclang", feature]);
        }
        compile.arg("-o").arg(self.path("device.co")).arg(self.path("program.source"));
        // The compiler leaves an empty folder behind for each chip.
        compile.env("TMPDIR", self.folder.path());
        run(&mut compile, None, None, &self.path("errors"))?;
        Ok(fs::read(self.path("device.co"))?)
    }

    /// Compiles a program for both sides, runs both and compares.
    pub fn compare(&self, program: &Program, targets: &[Target]) -> Result<Vec<(Target, ComparedOutcome)>> {
        let mut outcomes = Vec::new();
        for of_one_width in targets.chunk_by(|one, next| one.wave64 == next.wave64) {
            let expected = self.on_host(program, of_one_width[0].wave64);
            for &target in of_one_width {
                let object = self.compile(&program.source(), target);
                let outcome = match (&expected, object) {
                    (Ok(expected), Ok(object)) => emulate(program.seed, &object, target, expected)?,
                    (Err(error), _) => ComparedOutcome::NotCompiled(format!("{error:#}")),
                    (_, Err(error)) => ComparedOutcome::NotCompiled(format!("{error:#}")),
                };
                outcomes.push((target, outcome));
            }
        }
        Ok(outcomes)
    }
}

/// The names of the instructions in a code object's functions.
pub fn names(object: &[u8], target: Target) -> Result<BTreeSet<&'static str>> {
    let object = CodeObject::parse(object)?;
    let mut names = BTreeSet::new();
    for function in &object.functions {
        let program = unhang_isa::Program::decode(function.code, target.chip, target.wave64)?;
        names.extend(program.instructions.iter().map(|instruction| instruction.definition.base_name()));
    }
    Ok(names)
}

/// Runs a code object with hazard checks. If it stops at a hazard across a call, which compilers do not look for, the
/// repaired code runs instead.
fn emulate(seed: u64, object: &[u8], target: Target, expected: &Buffers) -> Result<ComparedOutcome> {
    let same = |instructions, hazard| {
        Ok::<_, anyhow::Error>(ComparedOutcome::Same { instructions, names: names(object, target)?, hazard })
    };
    match launch(seed, object, Mode::Hazards(target.chip))? {
        Ok((buffers, instructions)) => Ok(judge(expected, &buffers).unwrap_or(same(instructions, None)?)),
        Err(fault) if matches!(fault.kind, FaultKind::Hazard { across_calls: true, .. }) => {
            let hazard = Some(fault.to_string());
            let repaired = repair_object(object, Options { chip: target.chip, keep_size: false })?.bytes;
            let repaired = repaired.context("repair changes nothing in code with a hazard across a call")?;
            Ok(match launch(seed, &repaired, Mode::Hazards(target.chip))? {
                Ok((buffers, instructions)) => judge(expected, &buffers).unwrap_or(same(instructions, hazard)?),
                Err(fault) => ComparedOutcome::Fault(fault.to_string()),
            })
        }
        Err(fault) => Ok(ComparedOutcome::Fault(fault.to_string())),
    }
}

fn launch(seed: u64, object: &[u8], mode: Mode) -> Result<Result<(Buffers, u64), unhang_emulator::Fault>> {
    let mut machine = Machine::load(object, mode)?;
    machine.perturbation = [Perturbation::None, Perturbation::Up, Perturbation::Down][(seed % 3) as usize];
    let input = machine.memory.allocate_bytes(&bytes(&input(seed)));
    let sizes = [ALL_THREADS * output_words(), ALL_THREADS * OWN_WORDS];
    let [output, own] = sizes.map(|words| machine.memory.allocate(words * 4));
    let counters = machine.memory.allocate_bytes(&bytes(&first_counters()));
    let arguments: Vec<u8> = [input, output, own, counters].iter().flat_map(|address| address.to_le_bytes()).collect();
    let dispatch = Dispatch::new("program", [GROUPS as u32, 1, 1], [THREADS as u32, 1, 1], &arguments);
    let counts = match machine.run(&dispatch) {
        Ok(counts) => counts,
        Err(fault) => return Ok(Err(fault)),
    };
    let read = |address, count: usize| {
        let mut found = vec![0; count * 4];
        machine.memory.read(address, &mut found)?;
        Ok::<_, FaultKind>(words(&found))
    };
    let [output, own] = [read(output, sizes[0])?, read(own, sizes[1])?];
    Ok(Ok((Buffers { output, own, counters: read(counters, COUNTERS * 2)? }, counts.instructions())))
}

/// The first word that differs.
fn judge(expected: &Buffers, found: &Buffers) -> Option<ComparedOutcome> {
    let parts = [
        ("output", &expected.output, &found.output, output_words()),
        ("own memory", &expected.own, &found.own, OWN_WORDS),
        ("counters", &expected.counters, &found.counters, COUNTERS * 2),
    ];
    for (name, expected, found, each) in parts {
        if let Some(place) = (0..expected.len()).find(|&place| expected[place] != found[place]) {
            let place_name = format!("word {} of the {name} of thread {}", place % each, place / each);
            return Some(ComparedOutcome::Differs {
                place: place_name,
                expected: expected[place],
                found: found[place],
            });
        }
    }
    None
}
