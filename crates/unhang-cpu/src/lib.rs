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

#![deny(unsafe_code)]

mod algorithm;
#[allow(unsafe_code, reason = "calls another library's functions")]
mod openmp;
mod parallel;
mod plain;
#[allow(unsafe_code, reason = "vector instructions, and memory that threads share")]
mod simd;

pub use algorithm::Algorithm;
use algorithm::Method;
pub use openmp::use_openmp_of;
pub use parallel::available_threads;
pub use unhang_simd::Isa;

use unhang_conv::Problem;
use unhang_engine::{Elements, ElementsMut, Engine, EngineError, EngineName, Operands, Unsupported};

/// How a computation is to be carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuSettings {
    /// Threads to compute with, the caller's own included. One computes on the caller's thread alone and starts no
    /// pool: what a forked child needs.
    pub threads: usize,
    /// The instructions to compute with; none means the best that the machine has ([`Isa::detect`]).
    pub isa: Option<Isa>,
    /// Whether every result has to be the sum of its own products and of nothing else: no Winograd. A judge of other engines
    /// wants that, so that its own errors are the smallest.
    pub by_definition: bool,
}

impl Default for CpuSettings {
    /// As many threads as `OMP_NUM_THREADS` says, but no more than the system lets this process use at once.
    fn default() -> CpuSettings {
        CpuSettings { threads: parallel::default_threads(), isa: None, by_definition: false }
    }
}

/// The engine. Cheap to make; thread pools are made at first use and shared by all engines of the process.
#[derive(Debug, Clone, Copy, Default)]
pub struct CpuEngine {
    settings: CpuSettings,
}

impl CpuEngine {
    /// An engine with default settings.
    pub fn new() -> CpuEngine {
        CpuEngine::default()
    }

    /// An engine that computes with that many threads (at least one), the caller's own included.
    pub fn with_threads(threads: usize) -> CpuEngine {
        CpuEngine { settings: CpuSettings { threads: threads.max(1), ..CpuSettings::default() } }
    }

    /// An engine with those settings.
    pub fn with_settings(settings: CpuSettings) -> CpuEngine {
        CpuEngine { settings }
    }

    /// Computes the problem with settings for this call alone.
    pub fn run_with(
        &self,
        problem: &Problem,
        operands: Operands<'_>,
        settings: &CpuSettings,
    ) -> Result<(), EngineError> {
        operands.validate(problem)?;
        let lowered = problem.lower();
        let Operands { mut first, mut second, bias, result } = operands;
        if lowered.operands_exchanged {
            std::mem::swap(&mut first, &mut second);
        }
        let problem = &lowered.problem;
        let threads = settings.threads.max(1);
        let isa = settings.isa.unwrap_or_else(Isa::detect);
        if !isa.is_available() {
            return Err(EngineError::Failed {
                engine: EngineName::Cpu,
                message: format!("this machine does not have the {isa} instructions that were asked for"),
            });
        }
        let algorithm = Algorithm::choose(problem, isa);
        let algorithm = if settings.by_definition { algorithm.by_definition() } else { algorithm };
        let method = Method { algorithm, isa };
        // Operands were validated: all are of the problem's type.
        macro_rules! typed {
            ($variant:ident, $compute:expr) => {{
                let (Elements::$variant(first), Elements::$variant(second), ElementsMut::$variant(result)) =
                    (first, second, result)
                else {
                    unreachable!("operands were validated")
                };
                let bias = bias.map(|bias| match bias {
                    Elements::$variant(bias) => bias,
                    _ => unreachable!("operands were validated"),
                });
                $compute(first, second, bias, result);
            }};
        }
        match first {
            Elements::F32(_) => typed!(F32, |first, second, bias, result| {
                simd::compute(problem, method, first, second, bias, result, threads)
            }),
            Elements::F16(_) => typed!(F16, |first, second, bias, result| {
                by_conversion(problem, method, first, second, bias, result, threads)
            }),
            Elements::Bf16(_) => typed!(Bf16, |first, second, bias, result| {
                by_conversion(problem, method, first, second, bias, result, threads)
            }),
            Elements::F64(_) => typed!(F64, |first, second, bias, result| {
                plain::compute(problem, first, second, bias, result, threads)
            }),
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

/// Computes in single precision what is in half: converted whole at the edges.
fn by_conversion<T: plain::Number<Sum = f32>>(
    problem: &Problem,
    method: Method,
    first: &[T],
    second: &[T],
    bias: Option<&[T]>,
    result: &mut [T],
    threads: usize,
) {
    let wide = |narrow: &[T]| narrow.iter().map(|number| number.widen()).collect::<Vec<f32>>();
    let bias = bias.map(wide);
    let mut wide_result = vec![0.0; result.len()];
    simd::compute(problem, method, &wide(first), &wide(second), bias.as_deref(), &mut wide_result, threads);
    result.iter_mut().zip(wide_result).for_each(|(to, number)| *to = T::narrow(number));
}
