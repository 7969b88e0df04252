//! The machine, the store and the planner, for Python.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use pyo3::prelude::*;
use unhang_conv::{Problem, UnknownName};
use unhang_engine::{EngineName, Verdict};
use unhang_evidence::{Canary, Evidence, Quarantined, Realm, Record, RecordSource, Store, quarantined, time};
use unhang_gpu::driver::Hip;
use unhang_machine::{Machine, System, is_shielded};
use unhang_plan::{Availability, CanaryFact, Facts, MiopenFamilies, Plan, Settings, Situation, plan};
use unhang_report::{Layer, Report};

use crate::invalid;
use crate::problem::PyProblem;
use crate::settings::PySettings;

/// The machine that this process runs on, or that `UNHANG_ROOT` describes.
#[pyclass(frozen, name = "Machine", module = "unhang._core")]
pub struct PyMachine {
    pub(crate) machine: Machine,
    fingerprint: String,
}

#[pymethods]
impl PyMachine {
    /// Looks at the machine; `runtime` says which torch the evidence is about.
    #[staticmethod]
    fn inspect(py: Python<'_>, runtime: &str) -> PyMachine {
        let machine = py.detach(|| Machine::inspect(&System::host()));
        let fingerprint = machine.fingerprint(Some(runtime));
        PyMachine { machine, fingerprint }
    }

    /// Whether an RDNA1 card is here.
    #[getter]
    fn affected(&self) -> bool {
        self.machine.affected()
    }

    /// Whether the device that AMD's runtime knows by that number is an RDNA1 card. One whose chip cannot be told is
    /// taken for one where such a card is here.
    fn is_affected_at(&self, ordinal: i32) -> bool {
        if !self.machine.affected() {
            return false;
        }
        let Ok(address) = Hip::pci_address(ordinal) else { return true };
        self.machine.gpu_at(&address).map_or(true, |(gpu, _)| gpu.affected)
    }

    /// Where the device that AMD's runtime knows by that number is plugged in, if that can be told.
    #[staticmethod]
    fn address_of(ordinal: i32) -> Option<String> {
        Hip::pci_address(ordinal).ok()
    }

    /// Whether the runtime takes it for another chip.
    #[getter]
    fn spoofed(&self) -> bool {
        self.machine.spoofed()
    }

    /// What evidence is filed under.
    #[getter]
    fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// Whether its cards are emulated: what they do is filed as a rehearsal.
    #[getter]
    fn emulated(&self) -> bool {
        self.machine.emulated
    }

    /// Whether a folder describes it, and not the system itself.
    #[getter]
    fn described_by_folder(&self) -> bool {
        self.machine.described_by.is_some()
    }

    /// The GPUs, a line each.
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

impl PyMachine {
    /// What evidence is filed under, for other modules.
    pub fn fingerprint_text(&self) -> &str {
        &self.fingerprint
    }
}

/// Where evidence is kept.
#[pyclass(frozen, name = "Store", module = "unhang._core")]
pub struct PyStore {
    store: Arc<Store>,
}

#[pymethods]
impl PyStore {
    /// The user's store. Never fails: what is wrong is in `notices()`.
    #[staticmethod]
    fn open(py: Python<'_>) -> PyStore {
        PyStore { store: Arc::new(py.detach(Store::open_default)) }
    }

    /// No store: nothing is kept.
    #[staticmethod]
    fn none() -> PyStore {
        PyStore { store: Arc::new(Store::none()) }
    }

    /// What a person should be told about the store.
    fn notices(&self) -> Vec<String> {
        self.store.notices()
    }

    /// How every canary ended on a machine: verdict and detail by name. Asked once: a store may take its time.
    fn canaries(&self, py: Python<'_>, machine: &str) -> HashMap<String, (&'static str, String)> {
        let all = py.detach(|| self.store.canaries());
        let here = all.into_iter().filter(|canary| canary.machine == machine);
        here.map(|canary| (canary.name, (canary.verdict.name(), canary.detail))).collect()
    }

    /// Keeps how a canary ended; with `wait`, whether it is written, and without in the background.
    fn set_canary(
        &self,
        py: Python<'_>,
        machine: &str,
        name: &str,
        verdict: &str,
        detail: &str,
        wait: bool,
    ) -> PyResult<bool> {
        let canary = Canary {
            machine: machine.to_owned(),
            name: name.to_owned(),
            verdict: verdict.parse().map_err(invalid)?,
            detail: detail.to_owned(),
            unix_seconds: time::now(),
        };
        if wait {
            return Ok(py.detach(|| self.store.set_canary(canary)));
        }
        self.store.keep_canary(canary);
        Ok(true)
    }

    /// The convolutions that programs asked for on a machine, with how often.
    fn seen(&self, py: Python<'_>, machine: &str) -> Vec<(String, u64)> {
        let seen = py.detach(|| self.store.seen(machine));
        seen.into_iter().map(|it| (it.problem.to_string(), it.count)).collect()
    }

    /// Writes what is queued, for at most that many seconds; whether all of it was written.
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

/// What is here for tensors of one device, as a plan sees it.
#[pyclass(frozen, name = "Situation", module = "unhang._core")]
pub struct PySituation {
    facts: Facts,
    situation: Situation,
    rehearsed: bool,
}

/// One canary as Python names it: engine, part of it, and verdict and detail where it has run.
type NamedCanary = (String, String, Option<(String, String)>);

#[pymethods]
impl PySituation {
    /// `device` is "cpu" or "accelerator"; `affected` whether that is an RDNA1 card or plays one; `absent` has the engines
    /// that are not here and why, `canaries` those that are evidence for an engine; `families` has MIOpen's solver families that
    /// are left on, if some are not.
    #[new]
    #[pyo3(signature = (device, *, affected = false, spoofed = false, absent = HashMap::new(), canaries = Vec::new(),
                        families = None, rehearsed = false))]
    fn new(
        device: &str,
        affected: bool,
        spoofed: bool,
        absent: HashMap<String, String>,
        canaries: Vec<NamedCanary>,
        families: Option<Vec<String>>,
        rehearsed: bool,
    ) -> PyResult<PySituation> {
        let mut facts = match device {
            "cpu" => Facts { affected, ..Facts::on_cpu() },
            "accelerator" => Facts::on_accelerator(affected),
            other => return Err(invalid(format!("unknown device {other:?}: expected cpu or accelerator"))),
        };
        facts.spoofed = spoofed;
        facts.shielded = is_shielded(std::env::var("HSA_TOOLS_LIB").ok().as_deref());
        for (engine, why) in absent {
            facts.absent.push((engine.parse().map_err(invalid)?, why));
        }
        for (engine, part, ended) in canaries {
            let ended = ended.map(|(verdict, detail)| verdict.parse().map(|verdict| (verdict, detail))).transpose();
            let ended = ended.map_err(invalid)?;
            facts.canaries.push(CanaryFact { engine: engine.parse().map_err(invalid)?, part, ended });
        }
        facts.miopen_families = families.and_then(|left| {
            MiopenFamilies::left_on(|variable| {
                let named = MiopenFamilies::VARIABLES.iter().find(|(_, it)| *it == variable);
                named.is_none_or(|(family, _)| left.iter().all(|name| name != family))
            })
        });
        Ok(PySituation { situation: facts.situation(), facts, rehearsed })
    }

    /// Whether an RDNA1 card would compute, or is played.
    #[getter]
    fn affected(&self) -> bool {
        self.situation.is_endangered()
    }

    /// What may be done with an engine: "available", "absent" or "unproven", and why.
    fn standing(&self, engine: &str) -> PyResult<(&'static str, String)> {
        let engine: EngineName = engine.parse().map_err(invalid)?;
        Ok(match self.situation.availability(engine) {
            Availability::Available => ("available", String::new()),
            Availability::Absent(why) => ("absent", why.clone()),
            Availability::Unproven(why) => ("unproven", why.clone()),
        })
    }

    /// The parts of an engine whose canaries passed.
    fn passed(&self, engine: &str) -> PyResult<Vec<String>> {
        let engine: EngineName = engine.parse().map_err(invalid)?;
        Ok(self.facts.passed(engine).map(str::to_owned).collect())
    }

    /// The engine that torch uses by itself: computing there is no bypass.
    #[getter]
    fn native(&self) -> &'static str {
        self.situation.torch_engine().name()
    }
}

/// A layer for the report: name, key of its convolution, calls, and calls by engine.
type NamedLayer = (String, String, u64, Vec<(String, u64)>);

/// Makes plans from what is known, and learns.
#[pyclass(frozen, name = "Planner", module = "unhang._core")]
pub struct PyPlanner {
    store: Arc<Store>,
    machine: String,
    /// The world of what this process sees: on an emulated card a rehearsal.
    realm: Realm,
    evidence: RwLock<Evidence>,
    /// What rehearsals found; read only by a rehearsal.
    rehearsed: OnceLock<RwLock<Evidence>>,
    /// What `unhang run` saw hang before it started this process again.
    quarantine: Vec<Quarantined>,
}

#[pymethods]
impl PyPlanner {
    #[new]
    fn new(py: Python<'_>, machine: &PyMachine, store: &PyStore) -> PyPlanner {
        let store = Arc::clone(&store.store);
        let fingerprint = machine.fingerprint.clone();
        let realm = Realm::of_machine(machine.machine.emulated);
        let evidence = py.detach(|| Evidence::load_realm(&store, &fingerprint, realm));
        let planner = PyPlanner {
            store,
            machine: fingerprint,
            realm,
            evidence: RwLock::new(evidence),
            rehearsed: OnceLock::new(),
            quarantine: quarantined(&std::env::var("UNHANG_QUARANTINE").unwrap_or_default()),
        };
        planner.quarantine_in(&planner.evidence, realm);
        planner
    }

    /// Whether a candidate of an engine was seen not to work for a convolution: it hung, crashed or was wrong.
    fn refuses(&self, problem: &PyProblem, engine: &str, candidate: &str, rehearsed: bool) -> PyResult<bool> {
        let engine: EngineName = engine.parse().map_err(invalid)?;
        let evidence = self.evidence(rehearsed).read().unwrap_or_else(PoisonError::into_inner);
        Ok(evidence.about(&problem.problem, engine, candidate).is_some_and(|known| known.is_refutation()))
    }

    /// Plans a convolution by the settings in a situation. `failed` has the engines that failed on it in this process, and
    /// how.
    #[pyo3(signature = (problem, settings, situation, failed = HashMap::new()))]
    fn plan(
        &self,
        problem: &PyProblem,
        settings: &PySettings,
        situation: &PySituation,
        failed: HashMap<String, String>,
    ) -> PyResult<PyPlan> {
        let mut here = situation.situation.clone();
        for (engine, detail) in failed {
            let absent = Availability::Absent(format!("failed in this process: {detail}"));
            here = here.with(engine.parse().map_err(invalid)?, absent);
        }
        let evidence = self.evidence(situation.rehearsed).read().unwrap_or_else(PoisonError::into_inner);
        Ok(PyPlan { plan: plan(&problem.problem, &settings.settings.plan, &here, &evidence) })
    }

    /// Learns how a convolution ended on an engine in this run, and keeps it; true when plans may change by it. What an
    /// emulated card did is kept as a rehearsal.
    #[pyo3(signature = (problem, engine, verdict, seconds, detail))]
    fn learn(
        &self,
        problem: &PyProblem,
        engine: &str,
        verdict: &str,
        seconds: Option<f64>,
        detail: &str,
    ) -> PyResult<bool> {
        let engine: EngineName = engine.parse().map_err(invalid)?;
        let verdict: Verdict = verdict.parse().map_err(invalid)?;
        let source = self.realm.source(RecordSource::Run);
        let mut record = Record::new(problem.problem.clone(), engine, &self.machine, verdict, source);
        record.seconds = seconds;
        record.detail = detail.to_owned();
        self.store.record(record.clone());
        Ok(self.evidence.write().unwrap_or_else(PoisonError::into_inner).learn(record))
    }

    /// What is known here, and what these layers were computed by, as "text" or as an "html" page.
    ///
    /// A layer is its name, its convolution, how often it was asked for and how often each engine computed it.
    fn render(
        &self,
        machine: &str,
        layers: Vec<NamedLayer>,
        plans: Vec<(PyRef<'_, PyProblem>, PyRef<'_, PyPlan>)>,
        rehearsal: bool,
        form: &str,
    ) -> PyResult<String> {
        let mut shown = Vec::new();
        for (name, key, calls, engines) in layers {
            let engines: Result<Vec<(EngineName, u64)>, _> =
                engines.into_iter().map(|(engine, count)| Ok((engine.parse::<EngineName>()?, count))).collect();
            let problem = key.parse().map_err(invalid)?;
            shown.push(Layer { name, problem, calls, engines: engines.map_err(|e: UnknownName| invalid(e))? });
        }
        let plans: HashMap<&Problem, &Plan> =
            plans.iter().map(|(problem, plan)| (&problem.problem, &plan.plan)).collect();
        let evidence = self.evidence(rehearsal).read().unwrap_or_else(PoisonError::into_inner);
        let mut report = Report::new(machine, &evidence, shown, |problem| match plans.get(problem) {
            Some(plan) => (*plan).clone(),
            // Known from an earlier run and not asked for in this one.
            None => plan(problem, &Settings::default(), &Situation::cpu_tensors(), &evidence),
        });
        report.rehearsal |= rehearsal;
        match form {
            "text" => Ok(report.to_text()),
            "html" => Ok(report.to_html()),
            other => Err(invalid(format!("unknown form {other:?}: expected text or html"))),
        }
    }

    /// Counts a convolution that the user's program asked for.
    fn saw(&self, problem: &PyProblem) {
        self.store.count_seen(&self.machine, &problem.problem, 1);
    }
}

impl PyPlanner {
    fn evidence(&self, rehearsed: bool) -> &RwLock<Evidence> {
        if !rehearsed || self.realm == Realm::Rehearsal {
            return &self.evidence;
        }
        self.rehearsed.get_or_init(|| {
            let evidence = RwLock::new(Evidence::load_rehearsal(&self.store, &self.machine));
            self.quarantine_in(&evidence, Realm::Rehearsal);
            evidence
        })
    }

    /// What hung before this process was started again is out, even where no store could keep it.
    fn quarantine_in(&self, evidence: &RwLock<Evidence>, realm: Realm) {
        let mut evidence = evidence.write().unwrap_or_else(PoisonError::into_inner);
        evidence.quarantine(&self.quarantine, &self.machine, realm.source(RecordSource::Run));
    }
}

/// Which engine computes a convolution, and why.
#[pyclass(frozen, name = "Plan", module = "unhang._core")]
pub struct PyPlan {
    plan: Plan,
}

#[pymethods]
impl PyPlan {
    /// The choice first, then those to fall through to.
    #[getter]
    fn engines(&self) -> Vec<&'static str> {
        self.plan.engines.iter().map(|engine| engine.name()).collect()
    }

    /// Why.
    #[getter]
    fn reason(&self) -> &str {
        &self.plan.reason
    }

    /// What the reason rests on.
    #[getter]
    fn evidence(&self) -> Vec<String> {
        self.plan.evidence.iter().map(ToString::to_string).collect()
    }

    /// What a person should be told once.
    #[getter]
    fn warnings(&self) -> Vec<String> {
        self.plan.warnings.clone()
    }

    /// How to tile: the engine for each tile and the most output rows and columns of one.
    #[getter]
    fn tile(&self) -> Option<(&'static str, usize)> {
        self.plan.tile.map(|tile| (tile.inner.name(), tile.output_limit))
    }
}
