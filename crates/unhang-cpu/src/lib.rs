//! The CPU engine: every convolution in all three directions, in Rust.
//!
//! It is what a card without a safe path falls back to, what the probe compares against, and the default where there
//! is no GPU. It computes every [`Problem`]; results do not depend on the number of threads, to the last bit. This
//! crate must not know torch, plans, stores or machines: it is given slices and writes one.
//!
//! ```
//! use unhang_conv::{Problem, Specification};
//! use unhang_cpu::CpuEngine;
//! use unhang_engine::{Elements, ElementsMut, Engine, Operands};
//!
//! let problem = Problem::new(Specification { in_size: [3, 3], kernel: [3, 3], ..Specification::default() })?;
//! let mut result = [0.0f32; 1];
//! CpuEngine::new().run(
//!     &problem,
//!     Operands {
//!         first: Elements::F32(&[1.0; 9]),
//!         second: Elements::F32(&[2.0; 9]),
//!         bias: Some(Elements::F32(&[0.5])),
//!         result: ElementsMut::F32(&mut result),
//!     },
//! )?;
//! assert_eq!(result, [18.5]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod parallel;
mod plain;

use unhang_conv::Problem;
use unhang_engine::{Elements, ElementsMut, Engine, EngineError, EngineName, Operands, Unsupported};

/// How a computation is to be carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Threads to compute with, the caller's own included. One computes on the caller's thread alone and starts no
    /// pool: what a forked child needs.
    pub threads: usize,
}

impl Default for Settings {
    /// As many threads as `OMP_NUM_THREADS` says, otherwise as many as the system lets this process use at once.
    fn default() -> Settings {
        Settings { threads: parallel::default_threads() }
    }
}

/// The engine. Cheap to make; thread pools are made at first use and shared by all engines of the process.
#[derive(Debug, Clone, Copy, Default)]
pub struct CpuEngine {
    settings: Settings,
}

impl CpuEngine {
    /// An engine with default settings.
    pub fn new() -> CpuEngine {
        CpuEngine::default()
    }

    /// An engine that computes with that many threads (at least one), the caller's own included.
    pub fn with_threads(threads: usize) -> CpuEngine {
        CpuEngine { settings: Settings { threads: threads.max(1) } }
    }

    /// Computes the problem with settings for this call alone.
    pub fn run_with(&self, problem: &Problem, operands: Operands<'_>, settings: &Settings) -> Result<(), EngineError> {
        operands.validate(problem)?;
        let lowered = problem.lower();
        let Operands { mut first, mut second, bias, result } = operands;
        if lowered.operands_exchanged {
            std::mem::swap(&mut first, &mut second);
        }
        let problem = &lowered.problem;
        let threads = settings.threads.max(1);
        // Operands were validated: all are of the problem's type.
        macro_rules! typed {
            ($variant:ident) => {{
                let (Elements::$variant(first), Elements::$variant(second), ElementsMut::$variant(result)) =
                    (first, second, result)
                else {
                    unreachable!("operands were validated")
                };
                let bias = bias.map(|bias| match bias {
                    Elements::$variant(bias) => bias,
                    _ => unreachable!("operands were validated"),
                });
                plain::compute(problem, first, second, bias, result, threads);
            }};
        }
        match first {
            Elements::F32(_) => typed!(F32),
            Elements::F16(_) => typed!(F16),
            Elements::Bf16(_) => typed!(Bf16),
            Elements::F64(_) => typed!(F64),
        }
        Ok(())
    }
}

impl Engine for CpuEngine {
    fn name(&self) -> EngineName {
        EngineName::Cpu
    }

    fn supports(&self, _problem: &Problem) -> Result<(), Unsupported> {
        Ok(())
    }

    fn run(&self, problem: &Problem, operands: Operands<'_>) -> Result<(), EngineError> {
        self.run_with(problem, operands, &self.settings)
    }
}
