//! Our GPU kernels on memory addressed by Python: with torch's driver, streams and allocations.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use unhang_conv::Problem;
use unhang_engine::{Engine, EngineError, EngineName, Operands, Unsupported};
use unhang_gpu::choice::Choice;
use unhang_gpu::compiler;
use unhang_gpu::driver::{Driver, Emulated, VendorDriver};
use unhang_gpu::{DevicePointers, FromHost, GpuEngine, GpuError, GpuSettings, Prepared, Request, Timing};
use unhang_isa::Chip;
use unhang_session::open_hip;
use unhang_session::proof::{self, Family};
use unhang_session::take_tunings;

use crate::compute::{Wrong, compute};
use crate::knowledge::{PyMachine, PyStore};
use crate::problem::PyProblem;

pyo3::create_exception!(unhang._core, GpuFailure, PyRuntimeError, "The GPU engine or its driver failed.");
pyo3::create_exception!(
    unhang._core,
    GpuDeclined,
    PyRuntimeError,
    "The GPU engine declined this call. Nothing was started, and another engine may compute it."
);

fn raise(error: &GpuError) -> PyErr {
    if error.is_refusal() { GpuDeclined::new_err(error.to_string()) } else { GpuFailure::new_err(error.to_string()) }
}

pub(crate) fn failed(error: impl std::fmt::Display) -> PyErr {
    GpuFailure::new_err(error.to_string())
}

fn seconds(seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds).map_err(|error| PyValueError::new_err(error.to_string()))
}

/// One device, with the kernels that are compiled for it and loaded. It belongs to the process that opened it.
#[pyclass(frozen, name = "Gpu", module = "unhang._core")]
pub struct PyGpu {
    engine: GpuEngine,
    compiler: String,
    process: u32,
    /// Whether a rehearsal plays it. It then has separate memory, and tensors are copied in and out.
    is_played: bool,
    /// The kernel families that canaries try; determined before any is excluded.
    families: OnceLock<Vec<Family>>,
}

impl PyGpu {
    fn new(driver: Box<dyn Driver>, cache_folder: Option<PathBuf>, shipped_folder: Option<PathBuf>) -> PyGpu {
        let mut settings = GpuSettings { shipped_folder, ..GpuSettings::default() };
        if cache_folder.is_some() {
            settings.cache_folder = cache_folder;
        }
        let compiler = driver.compiler().version();
        let (engine, process) = (GpuEngine::new(driver, settings), std::process::id());
        PyGpu { engine, compiler, process, is_played: false, families: OnceLock::new() }
    }

    /// Handles of a driver are meaningless in a forked child.
    pub(crate) fn own(&self) -> PyResult<&GpuEngine> {
        if std::process::id() == self.process {
            return Ok(&self.engine);
        }
        Err(GpuDeclined::new_err("the GPU was opened by the process that this one was forked from"))
    }

    /// The engine, for operations that do not touch the driver.
    pub(crate) fn engine(&self) -> &GpuEngine {
        &self.engine
    }

    /// The kernel families that canaries try.
    pub(crate) fn tried_families(&self) -> &[Family] {
        self.families.get_or_init(|| proof::families(&self.engine))
    }
}

#[pymethods]
impl PyGpu {
    /// A device of NVIDIA's driver, by its number there.
    #[staticmethod]
    #[pyo3(signature = (ordinal, cache_folder=None))]
    fn open_cuda(py: Python<'_>, ordinal: i32, cache_folder: Option<PathBuf>) -> PyResult<PyGpu> {
        py.detach(|| VendorDriver::cuda(ordinal))
            .map(|driver| PyGpu::new(Box::new(driver), cache_folder, None))
            .map_err(failed)
    }

    /// A device of AMD's runtime, by its number there. The kernel's own topology says which chip it really is;
    /// `reported` is the runtime's name for it.
    #[staticmethod]
    #[pyo3(signature = (ordinal, machine, reported=None, cache_folder=None, shipped_folder=None))]
    fn open_hip(
        py: Python<'_>,
        ordinal: i32,
        machine: &PyMachine,
        reported: Option<&str>,
        cache_folder: Option<PathBuf>,
        shipped_folder: Option<PathBuf>,
    ) -> PyResult<PyGpu> {
        let driver = py.detach(|| open_hip(ordinal, &machine.machine, reported)).map_err(failed)?;
        let gpu = PyGpu::new(Box::new(driver), cache_folder, shipped_folder);
        gpu.engine.has_kernels().map_err(failed)?;
        Ok(gpu)
    }

    /// The card of a described machine, emulated. Kernels are compiled, audited and tagged as for the real card, and
    /// run on the CPU, instruction by instruction. Addresses are those of the host's memory. For rehearsals.
    #[staticmethod]
    #[pyo3(signature = (machine, cache_folder=None, shipped_folder=None))]
    fn open_emulated(
        py: Python<'_>,
        machine: &PyMachine,
        cache_folder: Option<PathBuf>,
        shipped_folder: Option<PathBuf>,
    ) -> PyResult<PyGpu> {
        let gpu = machine.machine.gpus.iter().find(|gpu| gpu.affected);
        let chips = gpu.and_then(|gpu| {
            let truly: Chip = gpu.gfx.as_deref()?.parse().ok()?;
            let reported = gpu.reported_gfx.as_deref().and_then(|name| name.parse().ok());
            Some((truly, reported.unwrap_or(truly)))
        });
        let Some((truly, reported)) = chips else { return Err(failed("no card is described that can be emulated")) };
        let card = Emulated::new(truly, reported, truly, py.detach(compiler::for_amd));
        let gpu = PyGpu { is_played: true, ..PyGpu::new(Box::new(card), cache_folder, shipped_folder) };
        gpu.engine.has_kernels().map_err(failed)?;
        Ok(gpu)
    }

    /// The device's name, as the driver reports it.
    #[getter]
    fn name(&self) -> &str {
        &self.engine.driver().description().name
    }

    /// The architecture that kernels are compiled for, and the one that the runtime assumes.
    #[getter]
    fn architectures(&self) -> (&str, &str) {
        let description = self.engine.driver().description();
        (&description.true_architecture, &description.reported_architecture)
    }

    /// Identifies our kernels here: their sources, the compiler, the chip. Canaries are kept under it.
    #[getter]
    fn identity(&self) -> &str {
        self.engine.identity()
    }

    /// The compiler, with its version.
    #[getter]
    fn compiler(&self) -> &str {
        &self.compiler
    }

    /// The number of kernels that were compiled in this process, not found in the cache.
    #[getter]
    fn compiled(&self) -> u64 {
        self.engine.compiled()
    }

    /// The number of kernels that are being compiled in the background, or wait for it.
    #[getter]
    fn waiting(&self) -> usize {
        self.engine.waiting()
    }

    /// Whether the emulator plays the card, in a rehearsal or under AMD's own runtime. Its times are not a card's.
    #[getter]
    fn is_emulated(&self) -> bool {
        self.engine.driver().description().is_emulated()
    }

    /// The permitted ways to compute a problem, fastest first by the model: choice, family, seconds by the model, bytes
    /// of workspace.
    fn candidates(&self, problem: &PyProblem) -> Vec<(String, &'static str, f64, u64)> {
        self.engine
            .candidates(&problem.problem)
            .into_iter()
            .map(|it| (it.choice.to_string(), it.choice.family(), it.seconds, it.plan.workspace_bytes))
            .collect()
    }

    /// Lets only these kernel families run; None lets all of them.
    #[pyo3(signature = (families))]
    fn allow(&self, families: Option<BTreeSet<String>>) {
        self.engine.allow(families);
    }

    /// Uses this choice for a problem from now on.
    fn prefer(&self, problem: &PyProblem, choice: &str) -> PyResult<()> {
        self.engine.prefer(&problem.problem, parsed(choice)?);
        Ok(())
    }

    /// Prefers what was measured before as the fastest on this device with these kernels. Returns the number of
    /// problems.
    fn take_tunings(&self, py: Python<'_>, store: &PyStore) -> usize {
        let store = store.shared();
        py.detach(|| take_tunings(&self.engine, &store))
    }

    /// Whether a choice is preferred for a problem because it was measured here, earlier or now.
    fn is_tuned(&self, problem: &PyProblem) -> bool {
        self.engine.is_preferred(&problem.problem)
    }

    /// The kernel families that canaries try, the plainest first.
    #[getter]
    pub(crate) fn families(&self) -> Vec<String> {
        self.tried_families().iter().map(|family| family.name.clone()).collect()
    }

    /// The kernels for a problem on a stream, within that many bytes of workspace. Without `wait`, the generic kernels
    /// may serve a new problem while its own are compiled in the background.
    fn prepare(
        slf: Py<PyGpu>,
        py: Python<'_>,
        problem: &PyProblem,
        stream: u64,
        workspace_limit: u64,
        wait: bool,
    ) -> PyResult<PyKernel> {
        let engine = slf.get().own()?;
        let request = Request { stream, workspace_limit: Some(workspace_limit), wait };
        let prepared = py.detach(|| engine.prepare_on(&problem.problem, request)).map_err(|error| raise(&error))?;
        Ok(PyKernel { prepared, gpu: slf })
    }

    /// The kernels of a given choice, compiled and loaded immediately. Not for a stream that records a graph.
    fn prepare_as(slf: Py<PyGpu>, py: Python<'_>, problem: &PyProblem, choice: &str) -> PyResult<PyKernel> {
        let engine = slf.get().own()?;
        let choice = parsed(choice)?;
        let prepared =
            py.detach(|| engine.prepare_as(&problem.problem, Some(choice))).map_err(|error| raise(&error))?;
        Ok(PyKernel { prepared, gpu: slf })
    }

    /// Compiles what would compute a problem into the cache, without loading it.
    fn warm(&self, py: Python<'_>, problem: &PyProblem) -> PyResult<()> {
        let engine = self.own()?;
        py.detach(|| engine.warm(&problem.problem)).map_err(|error| raise(&error))
    }

    /// Whether a stream records a graph.
    fn is_capturing(&self, stream: u64) -> PyResult<bool> {
        self.own()?.driver().is_capturing(stream).map_err(failed)
    }

    /// Waits until no compilation runs in the background. Returns false if that many seconds pass first.
    fn settle(&self, py: Python<'_>, patience: f64) -> PyResult<bool> {
        let (engine, patience) = (self.own()?, seconds(patience)?);
        Ok(py.detach(|| engine.settle(patience)))
    }

    /// Stops background compilation, and waits at most that many seconds for what is being compiled.
    fn close(&self, py: Python<'_>, patience: f64) -> PyResult<bool> {
        let (engine, patience) = (self.own()?, seconds(patience)?);
        Ok(py.detach(|| engine.close(patience)))
    }
}

fn parsed(choice: &str) -> PyResult<Choice> {
    choice.parse().map_err(|error| PyValueError::new_err(format!("{error}")))
}

/// An error on its way to Python.
struct Raised(PyErr);

impl From<GpuError> for Raised {
    fn from(error: GpuError) -> Raised {
        Raised(raise(&error))
    }
}

/// Loaded kernels, as an engine on the host's memory.
struct Played<'a>(&'a GpuEngine, &'a Prepared);

impl Engine for Played<'_> {
    fn name(&self) -> EngineName {
        EngineName::Jit
    }

    fn supports(&self, problem: &Problem) -> Result<(), Unsupported> {
        self.0.supports(problem)
    }

    fn run(&self, _: &Problem, operands: Operands<'_>) -> Result<(), EngineError> {
        let ran = FromHost::new(self.0).run_prepared(self.1, operands);
        ran.map_err(|error| EngineError::Failed { engine: EngineName::Jit, message: error.to_string() })
    }
}

impl PyKernel {
    /// Starts the kernels, without the interpreter. The caller guarantees what `launch` requires of the memory.
    pub(crate) fn start(&self, pointers: DevicePointers, stream: u64) -> PyResult<()> {
        let engine = self.gpu.get().own()?;
        let pointers = self.checked(pointers)?;
        if self.gpu.get().is_played {
            return self.launch_played(engine, pointers);
        }
        // SAFETY: the caller guarantees the memory behind the addresses.
        unsafe { engine.launch(&self.prepared, pointers, stream) }.map_err(|error| raise(&error))
    }

    /// What the kernels compute.
    pub(crate) fn problem(&self) -> &Problem {
        self.prepared.problem()
    }

    /// The required bytes of workspace.
    pub(crate) fn workspace(&self) -> u64 {
        self.prepared.workspace_bytes()
    }

    /// Returns the pointers if everything that the kernels need is present.
    fn checked(&self, pointers: DevicePointers) -> PyResult<DevicePointers> {
        let DevicePointers { first, second, result, workspace, .. } = pointers;
        if first == 0 || second == 0 || result == 0 || (workspace == 0 && self.prepared.workspace_bytes() > 0) {
            return Err(PyValueError::new_err("an operand, the result or the workspace has no address"));
        }
        Ok(pointers)
    }

    /// Launches them on the card that a rehearsal plays, on tensors in the host's memory.
    fn launch_played(&self, engine: &GpuEngine, host: DevicePointers) -> PyResult<()> {
        let problem = self.prepared.problem();
        let [first, second, result] = problem.operand_shapes().map(|shape| shape.iter().product::<usize>());
        let bias = (host.bias != 0).then_some((host.bias as usize, problem.out_channels()));
        let operands = [(host.first as usize, first), (host.second as usize, second)];
        let played = Played(engine, &self.prepared);
        compute(&played, problem, operands, bias, (host.result as usize, result)).map_err(|wrong| match wrong {
            Wrong::Engine(text) => GpuFailure::new_err(text),
            wrong => wrong.into(),
        })
    }

    /// Kernels that are loaded on a device.
    pub(crate) fn new(prepared: Arc<Prepared>, gpu: Py<PyGpu>) -> PyKernel {
        PyKernel { prepared, gpu }
    }

    /// The loaded kernels.
    pub(crate) fn prepared(&self) -> &Arc<Prepared> {
        &self.prepared
    }

    /// Queues a measurement on a stream and returns, without the interpreter: a warm-up run, and `repeats` timed ones.
    /// The caller guarantees what `launch` requires of the memory.
    pub(crate) fn time(&self, pointers: DevicePointers, stream: u64, repeats: u32) -> PyResult<Timing> {
        let gpu = self.gpu.get();
        let (engine, pointers) = (gpu.own()?, self.checked(pointers)?);
        let timing = if gpu.is_played {
            engine.time_calls(0, repeats, || self.launch_played(engine, pointers).map_err(Raised))
        } else {
            // SAFETY: the caller guarantees the memory behind the addresses; see above.
            unsafe { engine.time(&self.prepared, pointers, stream, repeats) }.map_err(Raised::from)
        };
        timing.map_err(|Raised(error)| error)
    }
}

/// A problem whose kernels are loaded on a device.
#[pyclass(frozen, name = "Kernel", module = "unhang._core")]
pub struct PyKernel {
    prepared: Arc<Prepared>,
    gpu: Py<PyGpu>,
}

#[pymethods]
impl PyKernel {
    /// How the problem is computed.
    #[getter]
    fn choice(&self) -> String {
        self.prepared.choice().to_string()
    }

    /// The kernel family.
    #[getter]
    fn family(&self) -> &'static str {
        self.prepared.choice().family()
    }

    /// Identifies the kernels, whatever sizes they receive at run time.
    #[getter]
    fn kernels(&self) -> &str {
        self.prepared.kernels()
    }

    /// The required bytes of workspace.
    #[getter]
    fn workspace_bytes(&self) -> u64 {
        self.prepared.workspace_bytes()
    }

    /// Whether these are the generic kernels, which serve while better ones are compiled.
    #[getter]
    fn provisional(&self) -> bool {
        self.prepared.is_provisional()
    }

    /// Starts the kernels on a stream and returns. Addresses are in device memory; 0 means no bias or no workspace.
    ///
    /// The caller guarantees that each address is that of a dense tensor of the problem's type, shape and layout on
    /// this device. Each stays allocated for work that was queued on the stream so far.
    #[allow(clippy::too_many_arguments, reason = "Python names its arguments")]
    fn launch(
        &self,
        py: Python<'_>,
        first: u64,
        second: u64,
        bias: u64,
        result: u64,
        workspace: u64,
        stream: u64,
    ) -> PyResult<()> {
        py.detach(|| self.start(DevicePointers { first, second, bias, result, workspace }, stream))
    }

    fn __repr__(&self) -> String {
        format!("Kernel({:?}, {:?})", self.prepared.problem().to_string(), self.choice())
    }
}
