//! The watchdog, for Python: finds which convolution hangs, and ends the process that waits for it.
//!
//! `unhang-watchdog` finds the hang; `unhang-session` reports it and ends the process. None of that needs the
//! interpreter's lock, because a hanging thread may hold it for ever.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use unhang_session::{Farewell, Runtime, Subject, Watchdog, WatchedCall, say};

use crate::forking::is_forked;
use crate::knowledge::{PyMachine, PyStore};
use crate::problem::PyProblem;

/// Watches the convolutions of this process, and ends it if one hangs.
#[pyclass(frozen, name = "Watchdog", module = "unhang._core")]
pub struct PyWatchdog {
    watchdog: Arc<Watchdog>,
}

/// A convolution on an engine, as the watchdog knows it.
#[pyclass(frozen, name = "Watched", module = "unhang._core")]
pub(crate) struct PyWatched {
    subject: Arc<Subject>,
}

/// A watched call. If it is dropped before it has ended, it is forgotten: a signal's handler may raise before Python
/// has it.
#[pyclass(frozen, name = "WatchedCall", module = "unhang._core")]
pub(crate) struct PyCall {
    watchdog: Arc<Watchdog>,
    call: WatchedCall,
    is_over: AtomicBool,
}

impl PyCall {
    /// The call has returned, on a thread that may hold the interpreter's lock or not.
    pub(crate) fn end(&self) {
        if !self.is_over.swap(true, Relaxed) {
            self.watchdog.end(&self.call);
        }
    }
}

impl Drop for PyCall {
    fn drop(&mut self) {
        // A thread of the parent may have held the watchdog's locks when it forked.
        if !self.is_over.swap(true, Relaxed) && !is_forked() {
            self.watchdog.forget(&self.call);
        }
    }
}

/// The deadlines in seconds for a convolution, other work and a call on the host, from their variables; and what is
/// wrong with those variables.
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
    /// Starts watching. Deadlines are in seconds: of a convolution, of other work, of a call on the host. `folder` is
    /// where `unhang run` looks for the report. At `signal`, faulthandler prints the stacks.
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
            say("the Python stack of each thread:");
            let _ = signal_hook::low_level::raise(signal);
        };
        let machine = machine.fingerprint.clone();
        let farewell = Farewell { store: store.shared(), machine, folder, last: Box::new(last) };
        let runtime = if is_hip { Runtime::Hip } else { Runtime::Cuda };
        let watchdog = Watchdog::start(settings, runtime, farewell)
            .map_err(|error| PyOSError::new_err(format!("no thread for the watchdog: {error}")))?;
        Ok(PyWatchdog { watchdog: Arc::new(watchdog) })
    }

    /// A convolution on an engine, to be watched.
    #[staticmethod]
    fn watched(problems: Vec<PyRef<'_, PyProblem>>, engine: &str, rehearsed: bool) -> PyResult<PyWatched> {
        let engine = engine.parse().map_err(|error| PyValueError::new_err(format!("{error}")))?;
        let problems = problems.iter().map(|it| it.problem.clone()).collect();
        Ok(PyWatched {
            subject: Arc::new(Subject { problems, engine, candidate: String::new(), rehearsed, family: None }),
        })
    }

    /// A call begins on a stream of a device; `None` if it cannot be watched, for example while a graph is recorded.
    ///
    /// Releases the interpreter's lock: a driver with a full queue makes us wait, and what it waits for may need
    /// Python.
    fn begin(&self, py: Python<'_>, watched: &PyWatched, device: i32, stream: u64) -> Option<PyCall> {
        py.detach(|| self.begin_unlocked(watched, device, stream))
    }

    /// A call begins that is over when it returns.
    pub(crate) fn begin_host(&self, watched: &PyWatched) -> PyCall {
        self.call(self.watchdog.begin_host(&watched.subject))
    }

    /// A call has returned.
    fn end(&self, py: Python<'_>, call: &PyCall) {
        py.detach(|| call.end());
    }

    /// Stops watching, within at most that many seconds. Returns whether its threads have ended.
    fn stop(&self, py: Python<'_>, seconds: f64) -> PyResult<bool> {
        let patience =
            Duration::try_from_secs_f64(seconds).map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok(py.detach(|| self.watchdog.stop_within(patience)))
    }
}

impl PyWatchdog {
    fn call(&self, call: WatchedCall) -> PyCall {
        PyCall { watchdog: self.watchdog.clone(), call, is_over: AtomicBool::new(false) }
    }

    /// A call begins on a thread that does not hold the interpreter's lock.
    pub(crate) fn begin_unlocked(&self, watched: &PyWatched, device: i32, stream: u64) -> Option<PyCall> {
        self.watchdog.begin(&watched.subject, device, stream).map(|call| self.call(call))
    }

    /// `run` launches one candidate of our kernels for a convolution, inside a watched call or in a rehearsal.
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
}

/// Prints what the program wrote and Python still buffers. A hanging thread with the interpreter's lock prevents that.
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
