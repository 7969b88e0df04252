//! The machine, the store and the inputs of plans, for Python.

use std::sync::Arc;
use std::time::Duration;

use pyo3::prelude::*;
use unhang_evidence::Store;
use unhang_gpu::driver::hip_pci_address;
use unhang_machine::{Machine, System};
use unhang_plan::{Facts, Plan, Situation};

use crate::errors::invalid;

/// The machine that this process runs on, or that `UNHANG_ROOT` describes.
#[pyclass(frozen, name = "Machine", module = "unhang._core")]
pub struct PyMachine {
    pub(crate) machine: Machine,
    pub(crate) fingerprint: String,
}

#[pymethods]
impl PyMachine {
    /// Inspects the machine; `runtime` says which torch the evidence is about.
    #[staticmethod]
    fn inspect(py: Python<'_>, runtime: &str) -> PyMachine {
        let machine = py.detach(|| Machine::inspect(&System::host()));
        let fingerprint = machine.fingerprint(Some(runtime));
        PyMachine { machine, fingerprint }
    }

    /// Whether this machine has an RDNA1 card.
    #[getter]
    fn affected(&self) -> bool {
        self.machine.affected()
    }

    /// Whether the device with that number in AMD's runtime is an RDNA1 card. If its chip is unknown, it counts as one
    /// if the machine has such a card.
    fn is_affected_at(&self, ordinal: i32) -> bool {
        if !self.machine.affected() {
            return false;
        }
        let Ok(address) = hip_pci_address(ordinal) else { return true };
        self.machine.gpu_at(&address).map_or(true, |(gpu, _)| gpu.affected)
    }

    /// Whether the runtime takes it for another chip.
    #[getter]
    fn spoofed(&self) -> bool {
        self.machine.spoofed()
    }

    /// The fingerprint under which evidence is filed.
    #[getter]
    fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// Whether its cards are emulated. Their behaviour is filed as a rehearsal.
    #[getter]
    fn emulated(&self) -> bool {
        self.machine.emulated
    }

    /// Whether a folder describes it, as opposed to the system itself.
    #[getter]
    fn described_by_folder(&self) -> bool {
        self.machine.described_by.is_some()
    }

    /// The GPUs, one line each.
    #[getter]
    fn gpus(&self) -> Vec<String> {
        let line = |gpu: &unhang_machine::Gpu| {
            let gfx = gpu.gfx.as_deref().unwrap_or("unknown chip");
            let reported = gpu.reported_gfx.as_deref().filter(|reported| Some(*reported) != gpu.gfx.as_deref());
            let reported = reported.map(|gfx| format!(", reported as {gfx}")).unwrap_or_default();
            format!("{} ({gfx}{reported})", gpu.name)
        };
        self.machine.gpus.iter().map(line).collect()
    }
}

/// Where evidence is kept.
#[pyclass(frozen, name = "Store", module = "unhang._core")]
pub struct PyStore {
    store: Arc<Store>,
}

#[pymethods]
impl PyStore {
    /// The user's store. Opening never fails; `notices()` says what is wrong.
    #[staticmethod]
    fn open(py: Python<'_>) -> PyStore {
        PyStore { store: Arc::new(py.detach(Store::open_default)) }
    }

    /// A store that keeps nothing.
    #[staticmethod]
    fn none() -> PyStore {
        PyStore { store: Arc::new(Store::none()) }
    }

    /// Messages about the store for a person.
    fn notices(&self) -> Vec<String> {
        self.store.notices()
    }

    /// The convolutions that programs asked for on a machine, each with its count.
    fn seen(&self, py: Python<'_>, machine: &str) -> Vec<(String, u64)> {
        let seen = py.detach(|| self.store.seen(machine));
        seen.into_iter().map(|it| (it.problem.to_string(), it.count)).collect()
    }

    /// Writes what is queued, for at most that many seconds. Returns whether all of it was written.
    fn flush(&self, py: Python<'_>, seconds: f64) -> PyResult<bool> {
        let patience = Duration::try_from_secs_f64(seconds).map_err(invalid)?;
        Ok(py.detach(|| self.store.flush(patience)))
    }
}

impl PyStore {
    /// The store, for other modules.
    pub fn shared(&self) -> Arc<Store> {
        Arc::clone(&self.store)
    }
}

/// What is available for tensors of one device, as a plan sees it.
#[pyclass(frozen, name = "Situation", module = "unhang._core")]
pub struct PySituation {
    pub(crate) situation: Situation,
    pub(crate) rehearsed: bool,
}

#[pymethods]
impl PySituation {
    /// `device` is "cpu" or "accelerator". About an accelerator, only whether it is an RDNA1 card is known.
    #[new]
    #[pyo3(signature = (device, *, affected = false))]
    fn new(device: &str, affected: bool) -> PyResult<PySituation> {
        let facts = match device {
            "cpu" => Facts { affected, ..Facts::on_cpu() },
            "accelerator" => Facts::on_accelerator(affected),
            other => return Err(invalid(format!("unknown device {other:?}: expected cpu or accelerator"))),
        };
        Ok(PySituation { situation: facts.situation(), rehearsed: false })
    }
}

/// Which engine computes a convolution, and why.
#[pyclass(frozen, name = "Plan", module = "unhang._core")]
pub struct PyPlan {
    pub(crate) plan: Plan,
}

#[pymethods]
impl PyPlan {
    /// The chosen engine first, then the fallbacks.
    #[getter]
    fn engines(&self) -> Vec<&'static str> {
        self.plan.engines.iter().map(|engine| engine.name()).collect()
    }

    /// The reason.
    #[getter]
    fn reason(&self) -> &str {
        &self.plan.reason
    }

    /// The evidence behind the reason.
    #[getter]
    fn evidence(&self) -> Vec<String> {
        self.plan.evidence.iter().map(ToString::to_string).collect()
    }

    /// Warnings that a person should see once.
    #[getter]
    fn warnings(&self) -> Vec<String> {
        self.plan.warnings.clone()
    }
}
