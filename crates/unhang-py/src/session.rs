//! What a process knows about convolutions and how it learns it, for Python: `unhang-session`, with torch's part as
//! callbacks.

use std::cell::RefCell;
use std::collections::HashMap;
use std::time::Duration;

use pyo3::prelude::*;
use unhang_conv::{Problem, UnknownName};
use unhang_engine::{EngineName, Verdict};
use unhang_machine::is_shielded;
use unhang_plan::{Facts, MiopenFamilies, Plan, Settings, Situation, Strategy, plan};
use unhang_probe::canary;
use unhang_report::{Layer, Report};
use unhang_session::{Card, Session, proof};

use crate::errors::invalid;
use crate::gpu::{PyGpu, PyKernel};
use crate::knowledge::{PyMachine, PyPlan, PySituation, PyStore};
use crate::layers::Label;
use crate::problem::PyProblem;
use crate::settings::PySettings;
use crate::supervise::PyOutcome;
use crate::tally::Tally;

/// The width of a report in text: what the program prints if the terminal's width is unknown.
const REPORT_WIDTH: usize = 100;

/// A layer for the report: name, key of its convolution, calls, and calls by engine.
type NamedLayer = (String, String, u64, Vec<(String, u64)>);

/// Our GPU kernels on a device, or why there are none.
#[derive(FromPyObject)]
enum Kernels<'py> {
    Here(PyRef<'py, PyGpu>),
    Absent(String),
}

/// An engine of a plan: the name that reports show, the engine that computes, and the tiles' limit if it computes
/// tiles. Then whether it bypasses what torch does by itself, whether torch's kernels are timed against it, its label.
type PlannedEngine = (String, &'static str, Option<usize>, bool, bool, Label);

/// How a child that Python ran ended.
type RanByPython<'py> = PyRef<'py, PyOutcome>;

/// Python's function for messages, and the first error that it raised, such as an interrupt.
struct Messages<'a, 'py> {
    function: &'a Bound<'py, PyAny>,
    raised: RefCell<Option<PyErr>>,
}

impl<'a, 'py> Messages<'a, 'py> {
    fn new(function: &'a Bound<'py, PyAny>) -> Messages<'a, 'py> {
        Messages { function, raised: RefCell::default() }
    }

    fn say(&self, message: &str) {
        if let Err(error) = self.function.call1((message,)) {
            self.raised.borrow_mut().get_or_insert(error);
        }
    }

    fn raised(&self) -> PyResult<()> {
        self.raised.take().map_or(Ok(()), Err)
    }
}

/// What this process knows about convolutions on its machine, and what it learns.
#[pyclass(frozen, name = "Session", module = "unhang._core")]
pub struct PySession {
    pub(crate) session: Session,
}

#[pymethods]
impl PySession {
    #[new]
    fn new(py: Python<'_>, machine: &PyMachine, store: &PyStore) -> PySession {
        let (machine, fingerprint) = (machine.machine.clone(), machine.fingerprint.clone());
        PySession { session: py.detach(|| Session::new(machine, fingerprint, store.shared())) }
    }

    /// How a canary ended on this machine: verdict and detail.
    fn canary(&self, name: &str) -> Option<(&'static str, String)> {
        self.session.canary(name).map(|(verdict, detail)| (verdict.name(), detail))
    }

    /// Keeps how a canary ended, in the background unless the next process relies on it (`wait`).
    fn keep_canary(&self, py: Python<'_>, name: &str, verdict: &str, detail: &str, wait: bool) -> PyResult<()> {
        let verdict: Verdict = verdict.parse().map_err(invalid)?;
        py.detach(|| self.session.keep_canary(name, verdict, detail, wait));
        Ok(())
    }

    /// The name under which the verdict on an engine, or on one of our kernel families, is kept for a device. Device -1
    /// is the card that a rehearsal plays.
    #[pyo3(signature = (device, engine, gpu = None))]
    fn canary_name(&self, device: i32, engine: &str, gpu: Option<&PyGpu>) -> String {
        let card = self.card(device);
        gpu.map_or_else(|| card.name(engine), |gpu| card.name_of_family(gpu.engine(), engine))
    }

    /// The verdict on one of torch's engines on a device. If it is unknown, `run` runs the canary's child with the
    /// given arguments for at most the given seconds. `deadline` replaces the engine's own. `say` receives progress.
    #[pyo3(signature = (device, engine, run, say, deadline = None))]
    fn ensure_canary(
        &self,
        device: i32,
        engine: &str,
        run: &Bound<'_, PyAny>,
        say: &Bound<'_, PyAny>,
        deadline: Option<f64>,
    ) -> PyResult<(&'static str, String)> {
        let engine: EngineName = engine.parse().map_err(invalid)?;
        let deadline = deadline_of(engine, deadline)?;
        let messages = Messages::new(say);
        let child = || {
            messages.raised()?;
            let ran = run.call1((arguments(engine, device, &[]), deadline.as_secs_f64()))?;
            let outcome: RanByPython<'_> = ran.extract()?;
            let (verdict, detail) = outcome.judged();
            PyResult::Ok((verdict, detail, outcome.has_begun()))
        };
        let found = self.session.ensure_canary(&self.card(device), engine, deadline, child, &|it| messages.say(it));
        messages.raised()?;
        let (verdict, detail) = found?;
        Ok((verdict.name(), detail))
    }

    /// Tries the kernel families that are not yet known on a device, like `ensure_canary`.
    #[pyo3(signature = (device, gpu, run, say, deadline = None))]
    fn ensure_families(
        &self,
        device: i32,
        gpu: &PyGpu,
        run: &Bound<'_, PyAny>,
        say: &Bound<'_, PyAny>,
        deadline: Option<f64>,
    ) -> PyResult<()> {
        let deadline = deadline_of(EngineName::Jit, deadline)?;
        let messages = Messages::new(say);
        let try_in_child = |families: &[String]| {
            messages.raised()?;
            let ran = run.call1((arguments(EngineName::Jit, device, families), deadline.as_secs_f64()))?;
            let outcome: RanByPython<'_> = ran.extract()?;
            PyResult::Ok(outcome.judged_families(families))
        };
        let families = gpu.families();
        let card = self.card(device);
        let say = |message: &str| messages.say(message);
        let ended = self.session.ensure_families(&card, gpu.engine(), &[&families], deadline, try_in_child, &say);
        messages.raised()?;
        ended
    }

    /// In a canary's child: tries these families on a device (all if none are named) one after the other, each within a
    /// limit. Prints how each did. Returns verdict and detail of the whole. Waits for the device.
    fn try_families(
        &self,
        py: Python<'_>,
        device: i32,
        gpu: &PyGpu,
        wanted: Vec<String>,
    ) -> PyResult<(&'static str, String)> {
        let (card, engine) = (self.card(device), gpu.own()?);
        let mut families = gpu.tried_families().to_vec();
        families.retain(|family| wanted.is_empty() || wanted.contains(&family.name));
        let name_of = |family: &str| card.name_of_family(engine, family);
        let (verdict, detail) = py.detach(|| proof::try_families(engine, &families, &name_of, &|_| Ok(0.0)));
        Ok((verdict.name(), detail))
    }

    /// What is available for tensors on a device. `kernels` are ours, or why there are none. `affected` says whether it
    /// is an RDNA1 card or plays one, and `is_hip` whether torch is built for ROCm. Allows those of our kernels whose
    /// canaries passed.
    #[pyo3(signature = (device, kernels, *, affected, is_hip))]
    fn situation(&self, device: i32, kernels: Kernels<'_>, affected: bool, is_hip: bool) -> PySituation {
        let card = self.card(device);
        let has_miopen = is_hip || card.is_rehearsed();
        let mut facts = Facts {
            spoofed: self.session.machine().spoofed(),
            shielded: is_shielded(std::env::var("HSA_TOOLS_LIB").ok().as_deref()),
            ..Facts::on_accelerator(affected)
        };
        if has_miopen {
            let is_zero = |name: &str| std::env::var(name).is_ok_and(|value| value == "0");
            facts.miopen_families = MiopenFamilies::left_on(is_zero);
        } else {
            facts.absent.push((EngineName::Miopen, "this torch is not built for ROCm".to_owned()));
        }
        if affected {
            facts.canaries = self.session.engine_facts(&card);
        }
        // On AMD's other chips, few people have seen our kernels run.
        let needs_canaries = affected || (is_hip && !card.is_rehearsed());
        match kernels {
            Kernels::Absent(why) => facts.absent.push((EngineName::Jit, why)),
            Kernels::Here(gpu) if needs_canaries => {
                facts.canaries.extend(self.session.family_facts(&card, gpu.engine(), &gpu.families()));
                gpu.engine().allow(Some(facts.passed(EngineName::Jit).map(str::to_owned).collect()));
            }
            Kernels::Here(_) => {}
        }
        PySituation { situation: facts.situation(), rehearsed: card.is_rehearsed() }
    }

    /// Plans a convolution on a device with these settings in a situation, without engines that failed on it there.
    fn plan(&self, problem: &PyProblem, device: &str, settings: &PySettings, situation: &PySituation) -> PyPlan {
        let (settings, here) = (&settings.settings.plan, &situation.situation);
        PyPlan { plan: self.session.plan(&problem.problem, device, settings, here, situation.rehearsed) }
    }

    /// Plans a convolution like `plan`, and counts that the user's program asked for it. Returns the plan with
    /// everything that is kept for its calls: the engines in their order, and their counts.
    fn route(
        &self,
        problem: &PyProblem,
        device: &str,
        settings: &PySettings,
        situation: &PySituation,
    ) -> (PyPlan, Vec<PlannedEngine>, Tally) {
        let plan = self.plan(problem, device, settings, situation).plan;
        if !situation.rehearsed && !plan.engines.is_empty() {
            self.session.saw(&problem.problem);
        }
        let (key, native) = (problem.problem.to_string(), situation.situation.torch_engine());
        let is_auto = settings.settings.plan.strategy == Strategy::Auto;
        let may_lose = is_auto && plan.engines.starts_with(&[EngineName::Jit, EngineName::Aten]);
        let planned = |&engine: &EngineName| {
            let tile = plan.tile.filter(|_| engine == EngineName::Tiled);
            let computes = tile.map_or(engine, |tile| tile.inner);
            let shown = tile.map_or_else(|| engine.name().to_owned(), |tile| format!("tiled({})", tile.inner));
            let label = Label::of(&key, &shown);
            let races = may_lose && engine == EngineName::Jit;
            (shown, computes.name(), tile.map(|tile| tile.output_limit), computes != native, races, label)
        };
        let engines: Vec<PlannedEngine> = plan.engines.iter().map(planned).collect();
        let tally = Tally::of(plan.engines.iter().copied());
        (PyPlan { plan }, engines, tally)
    }

    /// Learns how a convolution ended on an engine in this run, and keeps it. Returns true if plans may change. What an
    /// emulated card did is kept as a rehearsal.
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
        Ok(self.session.learn(&problem.problem, engine, verdict, seconds, detail))
    }

    /// Learns the times of our kernels and of torch's, which were timed in turns. Returns whether torch's are used from
    /// now on.
    fn learn_race(&self, problem: &PyProblem, ours: f64, torchs: f64) -> bool {
        self.session.learn_race(&problem.problem, ours, torchs)
    }

    /// Notes that an engine failed on a convolution on a device. This process does not try it for that convolution
    /// again.
    fn note_failure(&self, problem: &PyProblem, device: &str, engine: &str, detail: &str) -> PyResult<()> {
        let engine: EngineName = engine.parse().map_err(invalid)?;
        self.session.note_failure(&problem.problem, device, engine, detail);
        Ok(())
    }

    /// Everything that failed: convolution, engine and detail.
    fn failures(&self) -> Vec<(String, &'static str, String)> {
        let failures = self.session.failures().into_iter();
        failures.map(|(problem, engine, detail)| (problem.to_string(), engine.name(), detail)).collect()
    }

    /// Forgets what failed. Returns the number of convolutions concerned.
    fn forget_failures(&self) -> usize {
        self.session.forget_failures()
    }

    /// The verdict on the kernels' first result on this card, if there was one.
    fn first_result(&self, kernel: &PyKernel, device: i32) -> Option<&'static str> {
        self.session.first_result(&self.card(device), kernel.prepared()).map(|(verdict, _)| verdict.name())
    }

    /// Keeps how the first result of kernels compared.
    fn keep_first_result(&self, kernel: &PyKernel, device: i32, right: bool, detail: &str) {
        self.session.keep_first_result(&self.card(device), kernel.prepared(), right, detail);
    }

    /// What is known here, and what computed these layers, as "text" or as an "html" page.
    ///
    /// A layer is its name, its convolution, how often it was asked for, and how often each engine computed it.
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
        let evidence = self.session.evidence(rehearsal);
        let mut report = Report::new(machine, &evidence, shown, |problem| match plans.get(problem) {
            Some(plan) => (*plan).clone(),
            // Known from an earlier run, and not asked for in this one.
            None => plan(problem, &Settings::default(), &Situation::cpu_tensors(), &evidence),
        });
        report.rehearsal |= rehearsal;
        match form {
            "text" => Ok(report.to_text(REPORT_WIDTH)),
            "html" => Ok(report.to_html()),
            other => Err(invalid(format!("unknown form {other:?}: expected text or html"))),
        }
    }
}

impl PySession {
    fn card(&self, device: i32) -> Card {
        Card::new(self.session.machine(), device)
    }
}

fn deadline_of(engine: EngineName, given: Option<f64>) -> PyResult<Duration> {
    given.map_or_else(|| Ok(canary::deadline(engine)), |seconds| Duration::try_from_secs_f64(seconds).map_err(invalid))
}

/// The arguments of the canary's child.
fn arguments(engine: EngineName, device: i32, families: &[String]) -> Vec<String> {
    let mut all = vec![engine.name().to_owned()];
    all.extend(if device < 0 {
        vec!["--rehearsed".to_owned()]
    } else {
        vec!["--device".to_owned(), device.to_string()]
    });
    if !families.is_empty() {
        all.push("--families".to_owned());
        all.extend_from_slice(families);
    }
    all
}
