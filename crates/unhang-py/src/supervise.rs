//! Supervised children, for Python.

use std::time::Duration;

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use unhang_engine::Verdict;
use unhang_probe::canary::Families;
use unhang_probe::{Child, ChildOutcome, Ended, PythonStart, SuperviseError, answer, canary};

use crate::errors::invalid;

/// How a child ended and what it printed.
#[pyclass(frozen, name = "Outcome", module = "unhang._core")]
pub struct PyOutcome {
    outcome: ChildOutcome,
    deadline: Duration,
    began: bool,
}

#[pymethods]
impl PyOutcome {
    /// How it ended: "exited", "signalled", "timed-out" or "unkillable".
    #[getter]
    fn ended(&self) -> &'static str {
        match self.outcome.ended {
            Ended::Exited(_) => "exited",
            Ended::Signalled(_) => "signalled",
            Ended::TimedOut => "timed-out",
            Ended::Unkillable => "unkillable",
        }
    }

    /// Its exit code or signal.
    #[getter]
    fn code(&self) -> i32 {
        match self.outcome.ended {
            Ended::Exited(code) | Ended::Signalled(code) => code,
            Ended::TimedOut | Ended::Unkillable => 0,
        }
    }

    /// What it printed.
    #[getter]
    fn output(&self) -> &str {
        &self.outcome.output
    }

    /// Whether it got to its trial. A canary's child that ended while importing torch is not evidence.
    #[getter]
    fn began(&self) -> bool {
        self.began
    }

    /// The meaning for a canary: verdict and detail.
    fn canary(&self) -> (&'static str, String) {
        let (verdict, detail) = self.judged();
        (verdict.name(), detail)
    }

    /// The meaning for each requested kernel family that the child got to, and whether one hung.
    fn families(&self, asked: Vec<String>) -> (Vec<(String, &'static str, String)>, bool) {
        let found = self.judged_families(&asked);
        (found.judged.into_iter().map(|it| (it.family, it.verdict.name(), it.detail)).collect(), found.hung)
    }
}

impl PyOutcome {
    pub(crate) fn judged(&self) -> (Verdict, String) {
        if self.began { canary::judge(&self.outcome, self.deadline) } else { canary::never_began(&self.outcome) }
    }

    pub(crate) fn judged_families(&self, asked: &[String]) -> Families {
        if self.began {
            return canary::judge_families(&self.outcome, asked, self.deadline);
        }
        Families { untried: Some(canary::never_began(&self.outcome).1), ..Families::default() }
    }

    pub(crate) fn has_begun(&self) -> bool {
        self.began
    }
}

/// A command, and variables to set, or to unset if they have no value.
type Start = (Vec<String>, Environment);

type Environment = Vec<(String, Option<String>)>;

/// How to start a Python child of ours that runs a module. `folders` is the text of a list of folders that come first.
#[pyfunction]
pub(crate) fn python_start(interpreter: &str, folders: &str, module: &str, arguments: Vec<String>) -> Start {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let start = PythonStart::module_with(interpreter, folders, module, &arguments);
    (start.command, start.environment)
}

/// Marks a line of a child so that its parent accepts it.
#[pyfunction]
pub(crate) fn child_answer(text: &str) -> String {
    answer::line(text)
}

/// Runs a command to its end within a deadline in seconds.
#[pyfunction]
#[pyo3(signature = (command, deadline, environment = Vec::new()))]
pub(crate) fn supervise(
    py: Python<'_>,
    command: Vec<String>,
    deadline: f64,
    environment: Environment,
) -> PyResult<PyOutcome> {
    run(py, (command, environment), deadline, |child| Ok((unhang_probe::supervise(child)?, true)))
}

/// Runs a canary's child within a deadline in seconds, which starts when it has imported torch.
#[pyfunction]
#[pyo3(signature = (command, deadline, environment = Vec::new()))]
pub(crate) fn supervise_canary(
    py: Python<'_>,
    command: Vec<String>,
    deadline: f64,
    environment: Environment,
) -> PyResult<PyOutcome> {
    run(py, (command, environment), deadline, canary::try_in)
}

fn run(
    py: Python<'_>,
    (command, environment): Start,
    deadline: f64,
    by: impl Fn(&Child) -> Result<(ChildOutcome, bool), SuperviseError> + Send + Sync,
) -> PyResult<PyOutcome> {
    let deadline = Duration::try_from_secs_f64(deadline)
        .map_err(|error| PyValueError::new_err(format!("a deadline of {deadline} seconds: {error}")))?;
    let child = Child { command, environment, deadline };
    let (outcome, began) = py.detach(|| by(&child)).map_err(|error| PyRuntimeError::new_err(error.to_string()))?;
    Ok(PyOutcome { outcome, deadline, began })
}

/// The line with a canary child's answer.
#[pyfunction]
pub(crate) fn canary_answer(verdict: &str, detail: &str) -> PyResult<String> {
    let verdict: Verdict = verdict.parse().map_err(invalid)?;
    Ok(canary::answer_line(verdict, detail))
}

/// Ends this process with the one that started it.
#[pyfunction]
pub(crate) fn end_with_parent() {
    unhang_probe::child::end_with_parent();
}

/// The line with which a child names its torch.
#[pyfunction]
pub(crate) fn canary_torch(build: &str) -> String {
    canary::torch_line(build)
}
