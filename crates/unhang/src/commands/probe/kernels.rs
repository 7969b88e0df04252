//! Our own kernels without torch: the child that tries them, and its start.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use unhang_conv::Problem;
use unhang_engine::{Engine, EngineName, Operands};
use unhang_gpu::tuning::{self, Bench};
use unhang_gpu::{FromHost, GpuEngine, GpuError, GpuSettings};
use unhang_probe::trial::{Convolved, Convolves, Element, NotComputed};
use unhang_probe::{Child, Launch, answer, supervise, trial};

use super::super::bench::open_driver;
use super::super::text::print_text;
use super::children::{ChildTask, reason, socket};
use crate::output::printable;

/// The prefix of the answer's line: libraries print other lines.
const ANSWER: &str = "unhang-jit ";
/// How often a warm convolution is repeated for timing.
const REPEATS: u32 = 4;

/// The GPU of the runtime that is installed here.
pub(super) struct ProbedGpu {
    /// Its driver and the compiler, as in the fingerprint.
    pub software: String,
    /// The device under which measurements are filed.
    pub device: String,
}

impl ProbedGpu {
    /// Asks in a child with a deadline, because the runtime starts and asks the GPU.
    pub(super) fn describe(deadline: Duration) -> anyhow::Result<ProbedGpu> {
        let outcome = supervise(&Child { command: command(ChildTask::Describe)?, environment: Vec::new(), deadline })?;
        let line = outcome.answers().rev().find_map(|line| line.strip_prefix(ANSWER));
        let Some((software, device)) = line.and_then(|line| line.split_once(" | ")) else {
            return Err(anyhow!("hint: see `unhang doctor` for the GPU and its runtime")
                .context(reason(&outcome))
                .context("our kernels cannot be tried here"));
        };
        Ok(ProbedGpu { software: printable(software), device: printable(device) })
    }

    /// The child that tries.
    pub(super) fn launch() -> anyhow::Result<Launch> {
        Ok(Launch { command: command(ChildTask::Serve)?, environment: Vec::new() })
    }
}

fn command(task: ChildTask) -> anyhow::Result<Vec<String>> {
    let program = std::env::current_exe().context("cannot find this program to start it as a child")?;
    Ok(vec![program.display().to_string(), "probe".into(), "--jit-child".into(), task.name().into()])
}

/// Plays the child's part.
pub(super) fn child(task: ChildTask, judge: &dyn Engine) -> anyhow::Result<ExitCode> {
    let engine = GpuEngine::new(open_driver()?, GpuSettings::default());
    let description = engine.driver().description();
    let software = format!("{} with {}", description.driver, engine.driver().compiler().version());
    match task {
        ChildTask::Describe => {
            print_text(&answer::line(&format!("{ANSWER}{software} | {}\n", tuning::device(description))))?;
        }
        ChildTask::Serve => {
            // This ends when the prober goes away.
            let _ = trial::serve(socket()?, Kernels { engine, software }, judge);
        }
    }
    Ok(ExitCode::SUCCESS)
}

struct Kernels {
    engine: GpuEngine,
    software: String,
}

impl Convolves for Kernels {
    fn engine(&self) -> EngineName {
        EngineName::Jit
    }

    fn about(&mut self) -> String {
        self.software.clone()
    }

    fn copies(&mut self) -> Result<bool, String> {
        FromHost::new(&self.engine).copies().map_err(|error| error.to_string())
    }

    fn convolve<T: Element>(
        &mut self,
        problem: &Problem,
        [first, second]: [&[T]; 2],
        result: &mut [T],
        ready: impl FnOnce(),
    ) -> Result<Convolved, NotComputed> {
        let failed = |error: GpuError| match error {
            GpuError::Unsupported(_) => NotComputed::Unsupported(error.to_string()),
            _ => NotComputed::Failed(error.to_string()),
        };
        let began = Instant::now();
        let prepared = self.engine.prepare(problem).map_err(failed)?;
        ready();
        let operands = Operands {
            first: T::elements(first),
            second: T::elements(second),
            bias: None,
            result: T::elements_mut(result),
        };
        FromHost::new(&self.engine).run_prepared(&prepared, operands).map_err(failed)?;
        let first_seconds = began.elapsed().as_secs_f64();
        let bench = Bench::new(&self.engine, problem).map_err(failed)?;
        let seconds = bench.seconds(*prepared.choice(), REPEATS).map_err(failed)?;
        Ok(Convolved { first_seconds, seconds, detail: prepared.choice().to_string() })
    }
}
