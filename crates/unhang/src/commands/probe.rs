//! `unhang probe`: which convolutions are safe here, each tried in a supervised child.

pub(super) mod children;
mod kernels;
mod miopen;
mod show;
mod what;

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Args;
use unhang_cpu::CpuEngine;
use unhang_engine::EngineName;
use unhang_evidence::{Evidence, RecordSource, Store};
use unhang_probe::rehearsal::Table;
use unhang_probe::{Attempt, Deadlines, GRACE, Launch, Prober, culprits};

use super::knowledge::{Knowledge, KnowledgeArguments, open_store, rehearsal_key, say_notices};
use super::lasting_folder::LastingFolder;
use super::python::{find_python, interpreter};
use super::text::{deadline, duration};
use super::whole_file::read_table;
use crate::output::tell;
use children::{ChildTask, Python, VARIANTS};
use show::{Found, INTERRUPTED, Progress};

/// How many convolutions go through all engines before the next ones do. This keeps children busy, and with little time
/// the most used convolutions are known on all engines.
const CHUNK: usize = 32;

/// How long the stages of an attempt may take on hardware.
const HARDWARE_DEADLINES: Deadlines = Deadlines {
    start: Duration::from_secs(120),
    compile: Duration::from_secs(180),
    run: Duration::from_secs(10),
    grace: GRACE,
};
/// How long a GPU gets to recover after a child was killed.
const RESET: Duration = Duration::from_secs(15);

/// Find out which convolutions are safe here. Tries each on each engine, in a child process with deadlines.
///
/// If a convolution hangs or crashes, only the child is lost. `unhang.enable()` and `unhang plan` use the verdicts.
/// Run the same command again to continue where it stopped.
#[derive(Args)]
#[command(after_help = "\
Examples:
  unhang probe                                # what your programs asked for
  unhang probe --model torchvision.models:resnet18 --input 1x3x224x224
  unhang probe --layers my-layers.tsv --engines aten,miopen
  unhang probe --grid --engines miopen --budget 10m       # MIOpen without torch
  unhang probe --layers my-layers.tsv --engines jit       # our kernels alone
  unhang probe --grid --rehearse rx5600xt-rocm5.7         # a played card
  unhang probe --grid --json | jq '.records[] | select(.verdict == \"hangs\")'

Exit codes:
  0    everything was tried, and nothing hangs, crashes or is wrong
  1    something does
  2    wrong usage, or not done
  3    some could not be tried, or every attempt ended in an error
  4    the GPU was lost
  130  interrupted")]
pub(crate) struct Probe {
    #[command(flatten)]
    what: what::What,
    /// Play a card that behaves as a table says: rx5600xt-rocm5.2, rx5600xt-rocm5.7 or a file. Needs no GPU and no torch.
    #[arg(long, value_name = "NAME|FILE")]
    rehearse: Option<String>,
    /// Try only these engines (cpu, aten, jit, miopen); otherwise all that are available.
    #[arg(long, alias = "engine", value_name = "NAME,…", value_delimiter = ',')]
    engines: Vec<EngineName>,
    /// Try MIOpen only under these: as-is, a profile of `unhang env` (rocm5.2, rocm5.7, no-spoof) or one family of
    /// solvers alone (gemm, implicit-gemm, winograd, direct, fft, naive). Otherwise under all of them; in a rehearsal as-is.
    #[arg(long, alias = "profile", value_name = "NAME,…", value_delimiter = ',')]
    profiles: Vec<String>,
    /// Start no attempt after this time, such as 90s, 10m or 2h.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    budget: Option<Duration>,
    /// How many child processes run at once; always one on a GPU, where a hang takes down everything on the card.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    workers: Option<u16>,
    /// How long a child may take to start.
    #[arg(long, value_name = "TIME", value_parser = deadline)]
    deadline_start: Option<Duration>,
    /// How long compiling, and the library's search, may take.
    #[arg(long, value_name = "TIME", value_parser = deadline)]
    deadline_compile: Option<Duration>,
    /// How long a convolution may run.
    #[arg(long, value_name = "TIME", value_parser = deadline)]
    deadline_run: Option<Duration>,
    /// How long a GPU is given to recover after a child was killed [default: 15s on a GPU].
    #[arg(long, value_name = "TIME", value_parser = duration)]
    reset_wait: Option<Duration>,
    /// Also try what is already known.
    #[arg(long)]
    again: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    knowledge: KnowledgeArguments,
    /// Try the MIOpen in this file by its C interface, without torch. Where torch has no ROCm, `--engines miopen` does so with
    /// the MIOpen that the system has.
    #[arg(long, value_name = "FILE")]
    miopen: Option<PathBuf>,
    /// The child that plays a card; for this program's own use.
    #[arg(long, hide = true, value_name = "DIR")]
    rehearsal_child: Option<PathBuf>,
    /// The child that drives MIOpen; for this program's own use.
    #[arg(long, hide = true, value_name = "PART")]
    miopen_child: Option<ChildTask>,
    /// The child with our own kernels; for this program's own use.
    #[arg(long, hide = true, value_name = "PART")]
    jit_child: Option<ChildTask>,
}

/// Where attempts are made: a real torch, or a played card.
struct Ground<'a> {
    machine: String,
    source: RecordSource,
    /// The note in every verdict about its subject.
    note: String,
    store: &'a Store,
    deadlines: Deadlines,
    workers: usize,
    reset: Duration,
    canary: Option<Launch>,
    specifications: Vec<(EngineName, String)>,
    launch: Box<dyn Fn(&Attempt) -> Launch + Sync + 'a>,
    /// What cannot be tried here, and why.
    remarks: Vec<String>,
}

impl Probe {
    /// Runs the command.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        if let Some(ended) = self.as_child() {
            return ended;
        }
        if self.engines.contains(&EngineName::Tiled) {
            bail!(
                "tiled runs another engine on tiles and cannot be tried by itself: expected cpu, aten, jit or miopen"
            );
        }
        let began = Instant::now();
        if let (Some(described), None) = (self.knowledge.description(), &self.rehearse) {
            return Err(anyhow::anyhow!("hint: play a card with --rehearse, or leave out --root and --env-file")
                .context(format!("{} describes a machine: nothing can be tried on it", described.display())));
        }
        // A mistyped name is reported before anything starts.
        let layers = self.what.layers()?;
        let knowledge = Knowledge::gather(&self.knowledge, self.rehearse.is_some(), open_store)?;
        // Only a played card has state.
        let state = self.rehearse.as_ref().map(|_| LastingFolder::for_work()).transpose()?;
        let nowhere = Store::none();
        let python = self.knowledge.python().map_or_else(find_python, interpreter);
        let mut ground = match &self.rehearse {
            Some(name) => {
                self.rehearsal(name, &knowledge, state.as_ref().context("a rehearsal has a folder")?.path())?
            }
            None => self.hardware(&knowledge, &python, &nowhere)?,
        };
        self.apply(&mut ground);
        if knowledge.is_about_an_emulated_card() {
            ground.remarks.push(
                "results from an emulated card are kept as a rehearsal and never count for a real card".to_owned(),
            );
        }
        // What programs asked for is filed under the machine itself, played or not.
        let asked_on = if self.rehearse.is_none() { &ground.machine } else { &knowledge.fingerprint };
        let problems = self.what.problems(layers, &knowledge.store, asked_on, &python)?;
        let attempts = attempts(&problems, &ground.specifications);
        let suspects = culprits(ground.store, &ground.machine, ground.source);
        let evidence = Evidence::load_realm(ground.store, &ground.machine, knowledge.evidence.realm());
        let mut found = Found::new(&attempts, suspects.len(), self.rehearse.clone());
        let known = |attempt: &Attempt| {
            let finding = evidence.about(&attempt.problem, attempt.engine, &attempt.variant)?;
            (finding.record.source == ground.source).then_some(finding.record)
        };
        let mut to_try = Vec::new();
        for attempt in attempts {
            match known(&attempt) {
                Some(record) if !self.again => found.add_earlier(record),
                _ => to_try.push(attempt),
            }
        }
        for remark in &ground.remarks {
            tell(remark);
        }
        let stop = stop_on_signals()?;
        let progress = Progress::new(to_try.len(), self.rehearse.is_some(), !self.json);
        let prober = Prober {
            machine: &ground.machine,
            source: ground.source,
            note: &ground.note,
            store: ground.store,
            deadlines: ground.deadlines,
            workers: ground.workers,
            reset: ground.reset,
            canary: ground.canary.clone(),
            budget: self.budget.map(|budget| budget.saturating_sub(began.elapsed())),
            launch: &*ground.launch,
            observe: &|event| progress.show(&event),
            stop: &stop,
        };
        let probing = Instant::now();
        let probed = prober.run(to_try);
        let seconds = probing.elapsed().as_secs_f64();
        progress.finish();
        found.add(probed, seconds);
        let code = found.exit_code();
        say_notices(ground.store);
        found.print(self.json, &knowledge, &ground.machine, &ground.remarks)?;
        Ok(ExitCode::from(code))
    }

    /// Runs the child's part, if this is a child.
    fn as_child(&self) -> Option<anyhow::Result<ExitCode>> {
        if let Some(folder) = &self.rehearsal_child {
            return Some(children::play(folder, &CpuEngine::with_threads(1)));
        }
        let by_definition = unhang_cpu::CpuSettings { by_definition: true, ..unhang_cpu::CpuSettings::default() };
        let cpu = || CpuEngine::with_settings(by_definition);
        if let Some(part) = self.miopen_child {
            return Some(miopen::child(part, self.miopen.as_deref(), &cpu()));
        }
        self.jit_child.map(|part| kernels::child(part, &cpu()))
    }

    /// Requested values replace the defaults.
    fn apply(&self, ground: &mut Ground<'_>) {
        let deadlines = &mut ground.deadlines;
        deadlines.start = self.deadline_start.unwrap_or(deadlines.start);
        deadlines.compile = self.deadline_compile.unwrap_or(deadlines.compile);
        deadlines.run = self.deadline_run.unwrap_or(deadlines.run);
        ground.reset = self.reset_wait.unwrap_or(ground.reset);
    }

    fn rehearsal<'a>(
        &self,
        name: &str,
        knowledge: &'a Knowledge,
        state: &std::path::Path,
    ) -> anyhow::Result<Ground<'a>> {
        let text = match Table::named(name) {
            Some(text) => text.to_owned(),
            None => read_table(name.as_ref())
                .context(format!("hint: a file, or one of {}", unhang_probe::rehearsal::NAMES.join(", ")))?,
        };
        // Checks only that it can be read; the children use its contents.
        Table::parse(&text)?;
        let launch = children::rehearsal(&text, state)?;
        let variants = self.variants(&["as-is"])?;
        let engines =
            if self.engines.is_empty() { vec![EngineName::Miopen, EngineName::Cpu] } else { self.engines.clone() };
        Ok(Ground {
            machine: rehearsal_key(&knowledge.machine, &knowledge.fingerprint, &base_name(name), &text),
            source: RecordSource::Rehearsal,
            note: format!("rehearsal of {}", base_name(name)),
            store: &knowledge.store,
            deadlines: Deadlines {
                start: Duration::from_secs(30),
                compile: Duration::from_secs(1),
                run: Duration::from_secs(1),
                grace: Duration::from_secs(5),
            },
            workers: self.workers.map_or(8, usize::from),
            reset: Duration::ZERO,
            canary: Some(launch.clone()),
            specifications: specifications(&engines, &variants),
            launch: Box::new(move |_| launch.clone()),
            remarks: vec![format!(
                "REHEARSAL of {}: child processes play the card; no real card is involved",
                base_name(name)
            )],
        })
    }

    /// What is available: torch; or MIOpen or our kernels alone, if that was requested and torch cannot reach the GPU.
    fn hardware<'a>(
        &self,
        knowledge: &'a Knowledge,
        python: &std::path::Path,
        nowhere: &'a Store,
    ) -> anyhow::Result<Ground<'a>> {
        if self.miopen.is_some() {
            return self.miopen_alone(knowledge);
        }
        let described = Python::describe(python);
        let alone = |engine| self.engines == [engine];
        match described {
            Ok(python) if alone(EngineName::Jit) && !python.accelerator => self.kernels_alone(knowledge),
            Ok(python) if alone(EngineName::Miopen) && !(python.accelerator && python.rocm) => {
                self.miopen_alone(knowledge)
            }
            Ok(python) => self.real(knowledge, python, nowhere),
            Err(_) if alone(EngineName::Jit) => self.kernels_alone(knowledge),
            // Nobody asked for torch.
            Err(_) if alone(EngineName::Miopen) => self.miopen_alone(knowledge),
            Err(error) => self.miopen_alone(knowledge).or(Err(error)),
        }
    }

    /// Our own kernels on the installed runtime, without torch.
    fn kernels_alone<'a>(&self, knowledge: &'a Knowledge) -> anyhow::Result<Ground<'a>> {
        let gpu = kernels::ProbedGpu::describe(self.deadline_start.unwrap_or(HARDWARE_DEADLINES.start))?;
        let launch = kernels::ProbedGpu::launch()?;
        Ok(Ground {
            machine: knowledge.machine.fingerprint(Some(&gpu.software)),
            source: knowledge.evidence.realm().source(RecordSource::Probe),
            note: gpu.software.clone(),
            store: &knowledge.store,
            deadlines: HARDWARE_DEADLINES,
            workers: 1,
            reset: RESET,
            canary: Some(launch.clone()),
            specifications: specifications(&[EngineName::Jit], &[]),
            launch: Box::new(move |_| launch.clone()),
            remarks: vec![format!("{} on {}, without torch", gpu.software, gpu.device)],
        })
    }

    /// MIOpen by its C interface, without torch.
    fn miopen_alone<'a>(&self, knowledge: &'a Knowledge) -> anyhow::Result<Ground<'a>> {
        if !self.engines.is_empty() && !self.engines.contains(&EngineName::Miopen) {
            bail!("without a working torch only miopen can be tried here");
        }
        let library =
            miopen::Library::describe(self.miopen.as_deref(), self.deadline_start.unwrap_or(HARDWARE_DEADLINES.start))?;
        let canary = library.launch("")?;
        let variants = self.variants(&VARIANTS)?;
        let launch = |variant: &String| Ok((variant.clone(), library.launch(variant)?));
        let launches: HashMap<String, Launch> = variants.iter().map(launch).collect::<anyhow::Result<_>>()?;
        Ok(Ground {
            machine: knowledge.machine.fingerprint(Some(&library.software)),
            source: knowledge.evidence.realm().source(RecordSource::Probe),
            note: library.software.clone(),
            store: &knowledge.store,
            deadlines: HARDWARE_DEADLINES,
            workers: 1,
            reset: RESET,
            canary: Some(canary),
            specifications: specifications(&[EngineName::Miopen], &variants),
            launch: Box::new(move |attempt| launches[&attempt.variant].clone()),
            remarks: vec![format!("{} on {}, without torch", library.software, library.device)],
        })
    }

    fn real<'a>(&self, knowledge: &'a Knowledge, python: Python, nowhere: &'a Store) -> anyhow::Result<Ground<'a>> {
        let mut remarks = Vec::new();
        let mut engines = vec![EngineName::Cpu, EngineName::Aten];
        if python.accelerator {
            engines.push(EngineName::Jit);
        } else {
            remarks.push(format!(
                "torch {} sees no GPU: aten is torch's own kernels on the CPU; jit and miopen cannot be tried here",
                python.torch
            ));
        }
        if python.accelerator && python.rocm {
            engines.push(EngineName::Miopen);
        } else if python.accelerator {
            remarks.push(format!("torch {} is not built for ROCm: miopen cannot be tried", python.torch));
        }
        if !self.engines.is_empty() {
            // An engine that is missing here is not tried: a refusal for want of a GPU says nothing about a
            // convolution.
            engines.retain(|engine| self.engines.contains(engine));
        }
        if engines.is_empty() {
            return Err(
                anyhow::anyhow!("hint: without --engines all available ones are tried").context(remarks.join("; "))
            )
            .context("none of the engines that were asked for can be tried here");
        }
        let all: Vec<&str> = VARIANTS.to_vec();
        let variants = self.variants(&all)?;
        let affected = knowledge.machine.affected();
        if affected && !python.accelerator {
            remarks.push("what CPU tensors show says nothing about the card: verdicts are not kept".to_owned());
        }
        if python.accelerator && self.workers.is_some_and(|workers| workers > 1) {
            remarks.push("one worker: a hang on a GPU takes down everything on the card".to_owned());
        }
        let machine = knowledge.machine.fingerprint(Some(&python.torch));
        let canary = python.accelerator.then(|| python.launch(EngineName::Aten, ""));
        Ok(Ground {
            machine,
            source: knowledge.evidence.realm().source(RecordSource::Probe),
            note: format!("torch {}", python.torch),
            store: if affected && !python.accelerator { nowhere } else { &knowledge.store },
            deadlines: HARDWARE_DEADLINES,
            workers: if python.accelerator { 1 } else { self.workers.map_or(1, usize::from) },
            reset: if python.accelerator { RESET } else { Duration::ZERO },
            canary,
            specifications: specifications(&engines, &variants),
            launch: Box::new(move |attempt| python.launch(attempt.engine, &attempt.variant)),
            remarks,
        })
    }

    fn variants(&self, all: &[&str]) -> anyhow::Result<Vec<String>> {
        let named = self.profiles.iter().map(String::as_str);
        let chosen: Vec<&str> = if self.profiles.is_empty() { all.to_vec() } else { named.collect() };
        for name in &chosen {
            if !VARIANTS.contains(name) {
                bail!("there is no profile {name:?}: expected {}", VARIANTS.join(", "));
            }
        }
        Ok(chosen.into_iter().map(|name| if name == "as-is" { String::new() } else { name.to_owned() }).collect())
    }
}

/// The engines with their variants; only MIOpen has any.
fn specifications(engines: &[EngineName], variants: &[String]) -> Vec<(EngineName, String)> {
    let mut all = Vec::new();
    for &engine in engines {
        if engine == EngineName::Miopen {
            all.extend(variants.iter().map(|variant| (engine, variant.clone())));
        } else {
            all.push((engine, String::new()));
        }
    }
    all
}

fn base_name(name: &str) -> String {
    let path = std::path::Path::new(name);
    if Table::named(name).is_some() {
        return name.to_owned();
    }
    path.file_stem().map_or_else(|| name.to_owned(), |stem| stem.to_string_lossy().into_owned())
}

/// A flag that the first SIGINT or SIGTERM sets; the second ends the program at once.
fn stop_on_signals() -> anyhow::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register_conditional_shutdown(signal, i32::from(INTERRUPTED), stop.clone())
            .and_then(|_| signal_hook::flag::register(signal, stop.clone()))
            .context("cannot watch for signals")?;
    }
    Ok(stop)
}

/// Every problem on every requested engine, some problems at a time.
fn attempts(problems: &[unhang_conv::Problem], specifications: &[(EngineName, String)]) -> Vec<Attempt> {
    let chunks = problems.chunks(CHUNK).flat_map(|chunk| specifications.iter().map(move |it| (chunk, it)));
    let attempts = chunks.flat_map(|(chunk, (engine, variant))| {
        let attempt = |problem: &unhang_conv::Problem| Attempt {
            problem: problem.clone(),
            engine: *engine,
            variant: variant.clone(),
        };
        chunk.iter().map(attempt)
    });
    attempts.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_with_their_units() {
        assert_eq!(duration("10m"), Ok(Duration::from_secs(600)));
        assert_eq!(duration("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(duration("2h"), Ok(Duration::from_secs(7200)));
        assert_eq!(duration("7"), Ok(Duration::from_secs(7)));
        for bad in ["", "m", "10 minutes", "-5s", "1e99s", "1..2s"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }
}
