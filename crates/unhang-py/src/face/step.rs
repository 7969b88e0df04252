//! How a repeated convolution is computed, without the interpreter.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use pyo3::prelude::*;
use unhang_conv::Problem;
use unhang_gpu::DevicePointers;

use super::tensors::{Place, Tensor};
use super::torch::Torch;
use crate::compute::{Memory, compute, cpu_engine};
use crate::forking::is_forked;
use crate::gpu::PyKernel;
use crate::layers::Named;
use crate::problem::PyProblem;
use crate::tally::{Counter, Tally};
use crate::watchdog::{PyWatchdog, PyWatched};

/// Our GPU kernels read and write four elements at a time.
const ALIGNMENT: u64 = 16;

/// What computes.
enum Work {
    /// Our CPU engine, on dense tensors.
    Cpu(Problem),
    /// Kernels of ours that are loaded, whose first result was right and to which nothing better will come; and what
    /// watches them, where the watchdog is on.
    Gpu(Py<PyKernel>, Option<(Py<PyWatchdog>, Py<PyWatched>)>),
    /// Torch's own kernels, with the vendor's library left to these flags.
    Original([bool; 4]),
}

/// One direction of one convolution: what computes it, how its result lies, and where it is counted.
#[pyclass(frozen, module = "unhang._core")]
pub struct Step(Arc<Inner>);

struct Inner {
    work: Work,
    sizes: Vec<i64>,
    strides: Vec<i64>,
    counter: Counter,
}

#[pymethods]
impl Step {
    /// By our CPU engine on dense CPU tensors; the result has these sizes and strides.
    #[staticmethod]
    fn cpu(problem: &PyProblem, sizes: Vec<i64>, strides: Vec<i64>, tally: &Tally, bypass: bool) -> Step {
        let work = Work::Cpu(problem.problem.clone());
        Step(Arc::new(Inner { work, sizes, strides, counter: tally.first(bypass) }))
    }

    /// By our GPU kernels on dense tensors, watched if that is on; the result has these sizes and strides.
    #[staticmethod]
    #[pyo3(signature = (kernel, sizes, strides, tally, bypass, watched = None))]
    fn gpu(
        kernel: Py<PyKernel>,
        sizes: Vec<i64>,
        strides: Vec<i64>,
        tally: &Tally,
        bypass: bool,
        watched: Option<(Py<PyWatchdog>, Py<PyWatched>)>,
    ) -> Step {
        Step(Arc::new(Inner { work: Work::Gpu(kernel, watched), sizes, strides, counter: tally.first(bypass) }))
    }

    /// By torch's own kernels, with these flags: measure, be deterministic, use the vendor's library, allow TF32.
    #[staticmethod]
    fn original(flags: [bool; 4], tally: &Tally, bypass: bool) -> Step {
        let (sizes, strides) = (Vec::new(), Vec::new());
        Step(Arc::new(Inner { work: Work::Original(flags), sizes, strides, counter: tally.first(bypass) }))
    }
}

impl Step {
    /// The flags, where torch's own kernels compute.
    pub fn original_flags(&self) -> Option<[bool; 4]> {
        match self.0.work {
            Work::Original(flags) => Some(flags),
            _ => None,
        }
    }

    /// Counts that it computed.
    pub fn count(&self) {
        self.0.counter.count();
    }

    /// Whether that is past what torch does by itself.
    pub fn is_bypass(&self) -> bool {
        self.0.counter.is_bypass()
    }

    /// The same step, held twice.
    pub fn share(&self) -> Step {
        Step(Arc::clone(&self.0))
    }

    /// Computes from the operands of its direction; none where that is not possible, and Python has to see to it.
    pub fn compute<'a>(
        &self,
        torch: &'a Torch,
        operands: [&Tensor<'_>; 2],
        bias: Option<&Tensor<'_>>,
    ) -> Option<Tensor<'a>> {
        let place = operands[0].place()?;
        let result = torch.result(&self.0.sizes, &self.0.strides, place)?;
        let memory = Addresses {
            operands: [operands[0].address()?, operands[1].address()?],
            bias: match bias {
                Some(bias) => bias.address()?,
                None => 0,
            },
            result: result.address_to_write()?,
        };
        // A panic is a mistake of ours: Python's path reports it, and it must not reach torch.
        let computed = catch_unwind(AssertUnwindSafe(|| match &self.0.work {
            Work::Cpu(problem) => run_cpu(torch, problem, &memory),
            Work::Gpu(kernel, watched) => launch(torch, kernel.get(), watched.as_ref(), &memory, place),
            Work::Original(_) => None,
        }));
        computed.ok().flatten()?;
        Some(result)
    }
}

struct Addresses {
    operands: [u64; 2],
    bias: u64,
    result: u64,
}

fn run_cpu(torch: &Torch, problem: &Problem, memory: &Addresses) -> Option<()> {
    let [first, second, result] = problem.operand_shapes().map(|shape| shape.iter().product::<usize>());
    let of = |address: u64, length: usize| -> Memory { (address as usize, length) };
    let bias = (memory.bias != 0).then(|| of(memory.bias, problem.out_channels()));
    let engine = cpu_engine(if is_forked() { 1 } else { torch.threads() }, false);
    let operands = [of(memory.operands[0], first), of(memory.operands[1], second)];
    compute(&engine, problem, operands, bias, of(memory.result, result)).ok()
}

fn launch(
    torch: &Torch,
    kernel: &PyKernel,
    watched: Option<&(Py<PyWatchdog>, Py<PyWatched>)>,
    memory: &Addresses,
    place: Place,
) -> Option<()> {
    let [first, second] = memory.operands;
    // A view that begins in the middle of another tensor is copied by Python's path; a forked child has no GPU.
    if (first | second) % ALIGNMENT != 0 || is_forked() {
        return None;
    }
    // Kept until the launch.
    let workspace = match kernel.workspace() {
        0 => None,
        bytes => Some(torch.scratch(bytes, place)?),
    };
    let pointers = DevicePointers {
        first,
        second,
        bias: memory.bias,
        result: memory.result,
        workspace: match &workspace {
            Some(workspace) => workspace.address()?,
            None => 0,
        },
    };
    // The CPU tensors of a rehearsal have no stream.
    let stream = if place.device_index < 0 { 0 } else { torch.stream(place.device_index)? };
    let Some((watchdog, subject)) = watched else { return kernel.start(pointers, stream).ok() };
    let (watchdog, subject) = (watchdog.get(), subject.get());
    let call = if place.device_index < 0 {
        Some(watchdog.begin_host(subject))
    } else {
        watchdog.begin_unlocked(subject, place.device_index, stream)
    };
    let started = kernel.start(pointers, stream).ok();
    if let Some(call) = &call {
        watchdog.end_unlocked(call);
    }
    started
}

/// A forward that is known.
pub struct Forward {
    pub step: Step,
    /// What the layer counts it as.
    pub label: Arc<Named>,
}

/// Gradients that are known: one step for each that is asked for, or one call of torch's for both.
pub struct Backward {
    pub data: Option<Step>,
    pub weights: Option<Step>,
}
