//! Our CPU engine, and the reference that judges it, on memory addressed by Python.

use std::ops::Range;

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PySlice, PyTuple};
use unhang_conv::{DataType, Direction, Problem};
use unhang_cpu::{CpuEngine, CpuSettings, available_threads};
use unhang_engine::{Elements, ElementsMut, Engine, Operands, Reference, bf16, f16};
use unhang_session::sample::{Sample, SamplePart};

use crate::problem::PyProblem;

/// A tensor's memory: the address of its first element, and the number of elements, without gaps.
pub(crate) type Memory = (usize, usize);

/// Computes a problem on the CPU; by definition, if the result judges another engine. Releases the interpreter's lock
/// meanwhile.
///
/// The caller guarantees that each address has that many elements of the problem's type, alive until this returns.
/// Nobody else may write them, or read the result, meanwhile. Lengths are checked against the problem.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "Python names them")]
#[pyo3(signature = (problem, first, second, bias, result, threads, by_definition = false))]
pub(crate) fn run_cpu(
    py: Python<'_>,
    problem: &PyProblem,
    first: Memory,
    second: Memory,
    bias: Option<Memory>,
    result: Memory,
    threads: usize,
    by_definition: bool,
) -> PyResult<()> {
    let engine = cpu_engine(threads, by_definition);
    let run = || compute(&engine, &problem.problem, [first, second], bias, result);
    py.detach(run).map_err(PyErr::from)
}

/// Our CPU engine with that many of torch's threads.
pub(crate) fn cpu_engine(threads: usize, by_definition: bool) -> CpuEngine {
    // Torch's own threads, if it is loaded. They stay awake for a while after torch has used them, and two sets of
    // threads would compete for the cores.
    unhang_cpu::use_openmp_of("libtorch_cpu.so");
    // Torch counts the machine's processors; a container's quota may allow fewer.
    let threads = threads.min(available_threads());
    CpuEngine::with_settings(CpuSettings { threads, by_definition, ..CpuSettings::default() })
}

/// Why a computation failed.
pub(crate) enum Wrong {
    /// The memory does not match the problem.
    Memory(String),
    /// The engine failed.
    Engine(String),
}

impl From<Wrong> for PyErr {
    fn from(wrong: Wrong) -> PyErr {
        match wrong {
            Wrong::Memory(text) => PyValueError::new_err(text),
            Wrong::Engine(text) => PyRuntimeError::new_err(text),
        }
    }
}

/// Computes a problem by the plain reference: slow, and right. The caller guarantees what `run_cpu` requires.
#[pyfunction]
#[pyo3(signature = (problem, first, second, bias, result))]
pub(crate) fn run_reference(
    py: Python<'_>,
    problem: &PyProblem,
    first: Memory,
    second: Memory,
    bias: Option<Memory>,
    result: Memory,
) -> PyResult<()> {
    let run = || compute(&Reference, &problem.problem, [first, second], bias, result);
    py.detach(run).map_err(PyErr::from)
}

/// The elements of a type at an address.
///
/// # Safety
/// The address must have that many elements of the type, aligned and alive, and nobody may write them meanwhile.
unsafe fn elements<'a>(data_type: DataType, (address, length): Memory) -> Elements<'a> {
    macro_rules! typed {
        ($type:ty, $variant:ident) => {
            // SAFETY: guaranteed by the caller.
            Elements::$variant(unsafe { std::slice::from_raw_parts(address as *const $type, length) })
        };
    }
    match data_type {
        DataType::F32 => typed!(f32, F32),
        DataType::F16 => typed!(f16, F16),
        DataType::Bf16 => typed!(bf16, Bf16),
        DataType::F64 => typed!(f64, F64),
    }
}

/// The parts of a convolution's tensors that are needed to compare a few elements of its result: see
/// [`unhang_session::sample`].
#[pyclass(frozen, name = "Sample", module = "unhang._core")]
pub struct PySample {
    sample: Sample,
    problem: Problem,
}

/// Which elements of a tensor, or where they go: a slice per axis.
type Slices<'py> = Bound<'py, PyTuple>;

/// A part of a parcel: its first element, its shape, and its pieces. A piece is the tensor's number (first, second,
/// bias, result), which of its elements, and where they go.
type NamedPart<'py> = (usize, Vec<usize>, Vec<(usize, Slices<'py>, Slices<'py>)>);

#[pymethods]
impl PySample {
    #[new]
    fn new(problem: &PyProblem, has_bias: bool) -> PySample {
        PySample { sample: Sample::new(&problem.problem, has_bias), problem: problem.problem.clone() }
    }

    /// The number of elements in the parcel.
    fn __len__(&self) -> usize {
        self.sample.len()
    }

    /// The parts of the parcel, one after the other. Elements that no piece covers are zero.
    fn parts<'py>(&self, py: Python<'py>) -> PyResult<Vec<NamedPart<'py>>> {
        let slices = |ranges: &[Range<usize>]| {
            PyTuple::new(py, ranges.iter().map(|range| PySlice::new(py, range.start as isize, range.end as isize, 1)))
        };
        let named = |part: &SamplePart| {
            let pieces = part.pieces.iter().map(|it| Ok((it.tensor as usize, slices(&it.from)?, slices(&it.to)?)));
            Ok((part.begin, part.shape.clone(), pieces.collect::<PyResult<_>>()?))
        };
        self.sample.parts().iter().map(named).collect()
    }

    /// Whether a parcel's values are right (None: they prove nothing), and how far apart they are, in words. The caller
    /// guarantees what `run_cpu` requires. Releases the interpreter's lock meanwhile.
    fn finding(&self, py: Python<'_>, parcel: Memory) -> PyResult<(Option<bool>, String)> {
        check(&self.problem, vec![("sampled", parcel, self.sample.len())])?;
        // SAFETY: the caller guarantees address, length and lifetime; both were checked.
        let parcel = unsafe { elements(self.problem.data_type(), parcel) };
        Ok(py.detach(|| self.sample.finding(parcel)))
    }
}

/// Says what is wrong with memory, given its name, its address and length, and the expected length.
fn check(problem: &Problem, expected: Vec<(&str, Memory, usize)>) -> Result<(), Wrong> {
    for (name, (address, length), wanted) in expected {
        if length != wanted || address == 0 || address % problem.data_type().size() != 0 {
            return Err(Wrong::Memory(format!(
                "the {name} operand has {length} elements at {address:#x}: {problem} needs {wanted}"
            )));
        }
    }
    Ok(())
}

/// Computes a problem without the interpreter, on memory for which the caller guarantees what `run_cpu` requires; or
/// says what is wrong.
pub(crate) fn compute(
    engine: &dyn Engine,
    problem: &Problem,
    [first, second]: [Memory; 2],
    bias: Option<Memory>,
    result: Memory,
) -> Result<(), Wrong> {
    let [first_length, second_length, result_length] =
        problem.operand_shapes().map(|shape| shape.iter().product::<usize>());
    let mut expected =
        vec![("first", first, first_length), ("second", second, second_length), ("result", result, result_length)];
    if let Some(bias) = bias {
        if problem.direction() != Direction::Forward {
            return Err(Wrong::Memory("a bias is added in the forward direction only".to_owned()));
        }
        expected.push(("bias", bias, problem.out_channels()));
    }
    check(problem, expected)?;
    // SAFETY: the caller guarantees address, length, lifetime and exclusiveness (see above). The address is not null
    // and is aligned. The length is the problem's, which fits in memory by construction.
    let read = |memory: Memory| unsafe { elements(problem.data_type(), memory) };
    macro_rules! written {
        ($type:ty, $variant:ident) => {
            // SAFETY: as above; nobody else writes the result.
            ElementsMut::$variant(unsafe { std::slice::from_raw_parts_mut(result.0 as *mut $type, result.1) })
        };
    }
    let result = match problem.data_type() {
        DataType::F32 => written!(f32, F32),
        DataType::F16 => written!(f16, F16),
        DataType::Bf16 => written!(bf16, Bf16),
        DataType::F64 => written!(f64, F64),
    };
    let operands = Operands { first: read(first), second: read(second), bias: bias.map(read), result };
    engine.run(problem, operands).map_err(|error| Wrong::Engine(error.to_string()))
}
