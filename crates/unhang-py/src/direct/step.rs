//! How a repeated convolution is computed, without the interpreter.

use std::ffi::{CStr, CString};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use unhang_conv::{Layout, Problem};
use unhang_gpu::DevicePointers;

use super::entries::Flags;
use super::tensors::{Described, Tensor, TensorPlace, dense_length};
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
    /// Our loaded kernels, whose first result was right and for which no better ones will come; and what watches them,
    /// if the watchdog is on.
    Gpu(Py<PyKernel>, Option<(Py<PyWatchdog>, Py<PyWatched>)>),
    /// Torch's own kernels; these flags decide about the vendor's library.
    Original(Flags),
}

impl Work {
    /// What our engines compute; `None` if torch's own kernels do.
    fn problem(&self) -> Option<&Problem> {
        match self {
            Work::Cpu(problem) => Some(problem),
            Work::Gpu(kernel, _) => Some(kernel.get().problem()),
            Work::Original(_) => None,
        }
    }
}

/// One direction of one convolution: what computes it, the layout of its result, and where to count it.
#[pyclass(frozen, module = "unhang._core")]
pub struct Step(Arc<Inner>);

struct Inner {
    work: Work,
    sizes: Vec<i64>,
    strides: Vec<i64>,
    counter: Counter,
    /// The name that profilers show; `None` if torch computes something that our engines do not know.
    record: Option<CString>,
}

#[pymethods]
impl Step {
    /// Computes by our CPU engine on dense CPU tensors; the result has these sizes and strides.
    #[staticmethod]
    fn cpu(problem: &PyProblem, sizes: Vec<i64>, strides: Vec<i64>, tally: &Tally, bypass: bool) -> PyResult<Step> {
        Step::new(Work::Cpu(problem.problem.clone()), sizes, strides, tally.first(bypass))
    }

    /// Computes by our GPU kernels on dense tensors, watched if the watchdog is on; the result has these sizes and
    /// strides.
    #[staticmethod]
    #[pyo3(signature = (kernel, sizes, strides, tally, bypass, watched = None))]
    fn gpu(
        kernel: Py<PyKernel>,
        sizes: Vec<i64>,
        strides: Vec<i64>,
        tally: &Tally,
        bypass: bool,
        watched: Option<(Py<PyWatchdog>, Py<PyWatched>)>,
    ) -> PyResult<Step> {
        Step::new(Work::Gpu(kernel, watched), sizes, strides, tally.first(bypass))
    }

    /// Computes by torch's own kernels, with these flags: measure, be deterministic, use the vendor's library, allow
    /// TF32.
    #[staticmethod]
    fn original(flags: [bool; 4], tally: &Tally, bypass: bool) -> Step {
        Step::unchecked(Work::Original(flags.into()), Vec::new(), Vec::new(), tally.first(bypass))
    }
}

impl Step {
    fn new(work: Work, sizes: Vec<i64>, strides: Vec<i64>, counter: Counter) -> PyResult<Step> {
        if let Some(problem) = work.problem()
            && dense_length(&sizes, &strides, problem.operand_shapes()[2], problem.layout()).is_none()
        {
            let wrong = format!("a result of sizes {sizes:?} and strides {strides:?} is not that of {problem}");
            return Err(PyValueError::new_err(wrong));
        }
        Ok(Step::unchecked(work, sizes, strides, counter))
    }

    fn unchecked(work: Work, sizes: Vec<i64>, strides: Vec<i64>, counter: Counter) -> Step {
        let record = counter.engine().and_then(|engine| CString::new(format!("unhang::{engine}")).ok());
        Step(Arc::new(Inner { work, sizes, strides, counter, record }))
    }

    /// The flags, if torch's own kernels compute.
    pub fn original_flags(&self) -> Option<Flags> {
        match self.0.work {
            Work::Original(flags) => Some(flags),
            _ => None,
        }
    }

    /// The operands' required layout; `None` if torch's own kernels compute.
    pub fn layout(&self) -> Option<Layout> {
        self.0.work.problem().map(Problem::layout)
    }

    /// The name under which profilers show it.
    pub fn record(&self) -> Option<&CStr> {
        self.0.record.as_deref()
    }

    /// Counts one computation.
    pub fn count(&self) {
        self.0.counter.count();
    }

    /// Whether it bypasses what torch does by itself.
    pub fn is_bypass(&self) -> bool {
        self.0.counter.is_bypass()
    }

    /// A second reference to this step.
    pub fn share(&self) -> Step {
        Step(Arc::clone(&self.0))
    }

    /// Computes from the operands of its direction; `None` if Python must do it.
    pub fn compute<'a>(
        &self,
        torch: &'a Torch,
        operands: [Described<'_, '_>; 2],
        bias: Option<&Described<'_, '_>>,
    ) -> Option<Tensor<'a>> {
        let _record = torch.profiler.record(self.record());
        let place = operands[0].place;
        let operands = Measured::against(self.0.work.problem()?, torch, operands, bias)?;
        let result = torch.result(&self.0.sizes, &self.0.strides, place)?;
        let address = result.address_to_write()?;
        // A panic is our mistake. Python's path reports it, and it must not reach torch.
        let computed = catch_unwind(AssertUnwindSafe(|| match &self.0.work {
            Work::Cpu(problem) => run_cpu(torch, problem, &operands, address),
            Work::Gpu(kernel, watched) => launch(torch, kernel.get(), watched.as_ref(), &operands, address, place),
            Work::Original(_) => None,
        }));
        computed.ok().flatten()?;
        Some(result)
    }
}

/// The operands' memory, each with as many elements as its tensor has.
struct Measured {
    operands: [Memory; 2],
    bias: Option<Memory>,
}

impl Measured {
    /// Checks tensors against a problem, although they were recognised as the same call's: no engine reads past a
    /// tensor's end. `None` if one does not match the problem.
    fn against(
        problem: &Problem,
        torch: &Torch,
        [first, second]: [Described<'_, '_>; 2],
        bias: Option<&Described<'_, '_>>,
    ) -> Option<Measured> {
        let place = first.place;
        if place.data_type != torch.number_of(problem.data_type()) || second.place != place {
            return None;
        }
        let at = |tensor: &Described<'_, '_>| tensor.tensor.address().map(|address| address as usize);
        let operand = |tensor: &Described<'_, '_>, shape| {
            Some((at(tensor)?, dense_length(tensor.sizes, tensor.strides, shape, problem.layout())?))
        };
        let bias = match bias {
            Some(bias) => {
                let &[length] = bias.sizes else { return None };
                let length = usize::try_from(length).ok()?;
                let is_dense = length == 1 || bias.strides == [1];
                if bias.place != place || length != problem.out_channels() || !is_dense {
                    return None;
                }
                Some((at(bias)?, length))
            }
            None => None,
        };
        let shapes = problem.operand_shapes();
        Some(Measured { operands: [operand(&first, shapes[0])?, operand(&second, shapes[1])?], bias })
    }
}

fn run_cpu(torch: &Torch, problem: &Problem, operands: &Measured, result: u64) -> Option<()> {
    let engine = cpu_engine(if is_forked() { 1 } else { torch.threads() }, false);
    // Allocated for the sizes that were compared with the problem when the step was made.
    let result = (result as usize, problem.operand_shapes()[2].iter().product());
    compute(&engine, problem, operands.operands, operands.bias, result).ok()
}

fn launch(
    torch: &Torch,
    kernel: &PyKernel,
    watched: Option<&(Py<PyWatchdog>, Py<PyWatched>)>,
    operands: &Measured,
    result: u64,
    place: TensorPlace,
) -> Option<()> {
    let [first, second] = operands.operands.map(|(address, _)| address as u64);
    // Python's path copies a view that begins in the middle of another tensor. A forked child has no GPU.
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
        bias: operands.bias.map_or(0, |(address, _)| address as u64),
        result,
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
        call.end();
    }
    started
}

/// A known forward.
pub(super) struct Forward {
    pub step: Step,
    /// The label under which the layer counts it.
    pub label: Arc<Named>,
}

/// Known gradients: one step for each requested one, or one call of torch for both.
pub(super) struct Backward {
    pub data: Option<Step>,
    pub weights: Option<Step>,
}
