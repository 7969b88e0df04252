//! The watchdog, for Python: which convolution hangs, and the end of the process that waits for it.
//!
//! What hangs is found by `unhang-watchdog`, and told and ended by `unhang-session`. None of that needs the interpreter's lock: a
//! thread that hangs may hold it for ever.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use unhang_session::{Farewell, Runtime, Subject, Watchdog, WatchedCall, say};

use crate::knowledge::{PyMachine, PyStore};
use crate::problem::PyProblem;

/// Watches convolutions of this process, and ends it when one hangs.
#[pyclass(frozen, name = "Watchdog", module = "unhang._core")]
pub struct PyWatchdog {
    watchdog: Watchdog,
}

/// A convolution on an engine, as the watchdog knows it.
#[pyclass(frozen, name = "Watched", module = "unhang._core")]
pub(crate) struct PyWatched {
    subject: Arc<Subject>,
}

/// A call that is watched.
#[pyclass(frozen, name = "WatchedCall", module = "unhang._core")]
pub(crate) struct PyCall {
    call: WatchedCall,
}

/// Seconds after which a convolution, other work and a call on the host hang, by the variables that name them, and what is wrong
/// with those.
#[pyfunction]
pub(crate) fn hang_deadlines() -> ((f64, f64, f64), Vec<String>) {
    let mut wrong = Vec::new();
    let found = unhang_session::deadlines(|name| std::env::var(name).ok(), |message| wrong.push(message));
    let [first, second, third] =
        [found.deadline, found.outside_deadline, found.host_deadline].map(|it| it.as_secs_f64());
    ((first, second, third), wrong)
}

#[pymethods]
impl PyWatchdog {
    /// Starts watching. Deadlines are in seconds: of a convolution, of other work, of a call on the host; `folder` is where `unhang run` looks for what happened; `signal` is one
    /// for which faulthandler prints the stacks.
    #[new]
    fn new(
        store: &PyStore,
        machine: &PyMachine,
        deadlines: (f64, f64, f64),
        folder: Option<PathBuf>,
        signal: i32,
        is_hip: bool,
    ) -> PyResult<PyWatchdog> {
        let seconds = |name: &str, value: f64| match Duration::try_from_secs_f64(value) {
            Ok(duration) if !duration.is_zero() => Ok(duration),
            _ => Err(PyValueError::new_err(format!("{name} is {value} seconds: it must be more than 0"))),
        };
        let settings = unhang_watchdog::WatchSettings {
            deadline: seconds("the deadline", deadlines.0)?,
            outside_deadline: seconds("the deadline outside of convolutions", deadlines.1)?,
            host_deadline: seconds("the deadline on the host", deadlines.2)?,
        };
        let last = move || {
            flush_python();
            say("where each thread of Python stands:");
            let _ = signal_hook::low_level::raise(signal);
        };
        let machine = machine.fingerprint.clone();
        let farewell = Farewell { store: store.shared(), machine, folder, last: Box::new(last) };
        let runtime = if is_hip { Runtime::Hip } else { Runtime::Cuda };
        let watchdog = Watchdog::start(settings, runtime, farewell)
            .map_err(|error| PyOSError::new_err(format!("no thread for the watchdog: {error}")))?;
        Ok(PyWatchdog { watchdog })
    }

    /// A convolution on an engine that is going to be watched.
    #[staticmethod]
    fn watched(problems: Vec<PyRef<'_, PyProblem>>, engine: &str, rehearsed: bool) -> PyResult<PyWatched> {
        let engine = engine.parse().map_err(|error| PyValueError::new_err(format!("{error}")))?;
        let problems = problems.iter().map(|it| it.problem.clone()).collect();
        Ok(PyWatched {
            subject: Arc::new(Subject { problems, engine, candidate: String::new(), rehearsed, family: None }),
        })
    }

    /// A call begins on a stream of a device; `None` if it cannot be watched, as while a graph is recorded.
    ///
    /// Without the interpreter's lock: a driver whose queue is full lets us wait, and what it waits for may need Python.
    fn begin(&self, py: Python<'_>, watched: &PyWatched, device: i32, stream: u64) -> Option<PyCall> {
        py.detach(|| self.begin_unlocked(watched, device, stream))
    }

    /// A call begins that is over when it returns.
    pub(crate) fn begin_host(&self, watched: &PyWatched) -> PyCall {
        PyCall { call: self.watchdog.begin_host(&watched.subject) }
    }

    /// A call has returned.
    fn end(&self, py: Python<'_>, call: &PyCall) {
        py.detach(|| self.end_unlocked(call));
    }

    /// Stops watching, for at most that many seconds; whether its threads have ended.
    fn stop(&self, py: Python<'_>, seconds: f64) -> PyResult<bool> {
        let patience =
            Duration::try_from_secs_f64(seconds).map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok(py.detach(|| self.watchdog.stop_within(patience)))
    }
}

impl PyWatchdog {
    /// A call begins, for a thread that does not hold the interpreter's lock.
    pub(crate) fn begin_unlocked(&self, watched: &PyWatched, device: i32, stream: u64) -> Option<PyCall> {
        self.watchdog.begin(&watched.subject, device, stream).map(|call| PyCall { call })
    }

    /// One candidate of our kernels for a convolution is launched by `run`: inside of a call that is watched, or in a rehearsal.
    pub(crate) fn watch_candidate<T>(&self, subject: Subject, device: i32, stream: u64, run: impl FnOnce() -> T) -> T {
        let subject = Arc::new(subject);
        let call = if device < 0 {
            Some(self.watchdog.begin_host(&subject))
        } else {
            self.watchdog.begin_inside(&subject, device, stream)
        };
        let ran = run();
        if let Some(call) = call {
            self.watchdog.end(&call);
        }
        ran
    }

    /// A call has returned, likewise.
    pub(crate) fn end_unlocked(&self, call: &PyCall) {
        self.watchdog.end(&call.call);
    }
}

/// What the program printed and Python still holds back. A thread that hangs with the interpreter's lock keeps it.
fn flush_python() {
    let (done, when_done) = std::sync::mpsc::channel();
    let spawned = std::thread::Builder::new().name("unhang-flush".to_owned()).spawn(move || {
        Python::attach(|py| {
            for name in ["stdout", "stderr"] {
                let _ = py.import("sys").and_then(|sys| sys.getattr(name)?.call_method0("flush"));
            }
        });
        let _ = done.send(());
    });
    if spawned.is_ok() {
        let _ = when_done.recv_timeout(Duration::from_secs(2));
    }
}
