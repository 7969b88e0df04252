//! The watchdog, for Python: which convolution did not come back, and the end of the process that waits for it.
//!
//! What hangs is found by `unhang-watchdog`; here the driver's events are handed to it, and a hang is written down, told
//! and ended. None of that needs the interpreter's lock: a thread that hangs may hold it for ever.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use serde_json::json;
use unhang_conv::Problem;
use unhang_engine::{EngineName, Verdict};
use unhang_evidence::{Record, Source, Store};
use unhang_gpu::driver::{DeviceEvents, DriverError, Event};
use unhang_guard::{Identity, PrivateFolder};
use unhang_watchdog::{Call, Events, Hang, HostCall, Place, Settings, Watch};

use crate::knowledge::{PyMachine, PyStore};
use crate::problem::PyProblem;

/// The exit code of a process that hangs in a convolution.
const HANG_IN_CONVOLUTION: i32 = 86;
/// The exit code of a process that hangs in something else.
const HANG_OUTSIDE: i32 = 87;
/// The most that saying goodbye may take, whatever gets stuck.
const FAREWELL: Duration = Duration::from_secs(20);

/// What is watched: a convolution on an engine. Gradients that one call computes are two convolutions.
struct Subject {
    problems: Vec<Problem>,
    engine: EngineName,
    rehearsed: bool,
}

struct TorchEvents(DeviceEvents);

impl Events for TorchEvents {
    fn create(&self) -> Result<u64, String> {
        self.0.create().map(|event| event.0).map_err(words)
    }

    fn record(&self, event: u64, stream: u64) -> Result<(), String> {
        self.0.record(Event(event), stream).map_err(words)
    }

    fn has_happened(&self, event: u64) -> Result<bool, String> {
        self.0.has_happened(Event(event)).map_err(words)
    }

    fn is_capturing(&self, stream: u64) -> bool {
        // A driver that refuses to tell may do so because another stream records: hands off.
        self.0.is_capturing(stream).unwrap_or(true)
    }

    fn prepare_thread(&self) {
        self.0.relax_thread();
    }
}

fn words(error: DriverError) -> String {
    error.to_string()
}

/// What a hang needs to be told, gathered while all is well.
struct Farewell {
    store: Arc<Store>,
    machine: String,
    folder: Option<PathBuf>,
    signal: i32,
}

/// Watches convolutions of this process, and ends it when one does not come back.
#[pyclass(frozen, name = "Watchdog", module = "unhang._core")]
pub struct PyWatchdog {
    watch: Watch<Subject>,
    is_hip: bool,
    devices: Mutex<HashMap<i32, Arc<dyn Events>>>,
}

/// A convolution on an engine, as the watchdog knows it.
#[pyclass(frozen, name = "Watched", module = "unhang._core")]
pub struct PyWatched {
    subject: Arc<Subject>,
}

/// A call that is watched.
#[pyclass(frozen, name = "WatchedCall", module = "unhang._core")]
pub struct PyCall {
    call: Inner,
}

enum Inner {
    Accelerator(Call<Subject>),
    Host(HostCall),
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
        let settings = Settings {
            deadline: seconds("the deadline", deadlines.0)?,
            outside_deadline: seconds("the deadline outside of convolutions", deadlines.1)?,
            host_deadline: seconds("the deadline on the host", deadlines.2)?,
        };
        let farewell =
            Farewell { store: store.shared(), machine: machine.fingerprint_text().to_owned(), folder, signal };
        let watch = Watch::start(settings, move |hang| end_process(&hang, &farewell))
            .map_err(|error| PyOSError::new_err(format!("no thread for the watchdog: {error}")))?;
        Ok(PyWatchdog { watch, is_hip, devices: Mutex::default() })
    }

    /// A convolution on an engine that is going to be watched.
    #[staticmethod]
    fn watched(problems: Vec<PyRef<'_, PyProblem>>, engine: &str, rehearsed: bool) -> PyResult<PyWatched> {
        let engine = engine.parse().map_err(|error| PyValueError::new_err(format!("{error}")))?;
        let problems = problems.iter().map(|it| it.problem.clone()).collect();
        Ok(PyWatched { subject: Arc::new(Subject { problems, engine, rehearsed }) })
    }

    /// A call begins on a stream of a device; none where it cannot be watched, as while a graph is recorded.
    ///
    /// Without the interpreter's lock: a driver whose queue is full lets us wait, and what it waits for may need Python.
    fn begin(&self, py: Python<'_>, watched: &PyWatched, device: i32, stream: u64) -> Option<PyCall> {
        py.detach(|| self.begin_unlocked(watched, device, stream))
    }

    /// A call begins that is over when it returns.
    pub(crate) fn begin_host(&self, watched: &PyWatched) -> PyCall {
        PyCall { call: Inner::Host(self.watch.begin_host(&watched.subject)) }
    }

    /// A call has returned.
    fn end(&self, py: Python<'_>, call: &PyCall) {
        py.detach(|| self.end_unlocked(call));
    }

    /// Stops watching, for at most so many seconds; whether its threads have ended.
    fn stop(&self, py: Python<'_>, seconds: f64) -> PyResult<bool> {
        let patience =
            Duration::try_from_secs_f64(seconds).map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok(py.detach(|| self.watch.stop_within(patience)))
    }
}

impl PyWatchdog {
    /// A call begins, for a thread that does not hold the interpreter's lock.
    pub(crate) fn begin_unlocked(&self, watched: &PyWatched, device: i32, stream: u64) -> Option<PyCall> {
        let events = self.events(device)?;
        let lane = self.watch.lane(device, stream, || events);
        let call = self.watch.begin(&lane, &watched.subject)?;
        Some(PyCall { call: Inner::Accelerator(call) })
    }

    /// A call has returned, likewise.
    pub(crate) fn end_unlocked(&self, call: &PyCall) {
        match &call.call {
            Inner::Accelerator(call) => self.watch.end(call),
            Inner::Host(call) => self.watch.end_host(*call),
        }
    }

    fn events(&self, device: i32) -> Option<Arc<dyn Events>> {
        let mut devices = self.devices.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(events) = devices.get(&device) {
            return Some(events.clone());
        }
        let opened = if self.is_hip { DeviceEvents::hip(device) } else { DeviceEvents::cuda(device) };
        match opened {
            Ok(events) => {
                let events: Arc<dyn Events> = Arc::new(TorchEvents(events));
                devices.insert(device, events.clone());
                Some(events)
            }
            Err(error) => {
                say(&format!("the watchdog cannot use device {device} ({error}): convolutions there are not watched"));
                // Asked once: the answer would be the same for every convolution.
                devices.insert(device, Arc::new(Nothing));
                devices.get(&device).cloned()
            }
        }
    }
}

/// In the place of a driver that could not be had: a stream that is never ready to be watched.
struct Nothing;

impl Events for Nothing {
    fn create(&self) -> Result<u64, String> {
        Err("no driver".to_owned())
    }

    fn record(&self, _: u64, _: u64) -> Result<(), String> {
        Err("no driver".to_owned())
    }

    fn has_happened(&self, _: u64) -> Result<bool, String> {
        Err("no driver".to_owned())
    }

    fn is_capturing(&self, _: u64) -> bool {
        true
    }
}

/// Standard error without any lock of the interpreter's or of ours; a closed one is no reason not to go on.
fn say(message: &str) {
    let _ = std::io::stderr().write_all(format!("unhang: {message}\n").as_bytes());
}

/// Writes down what hangs, tells it with the stacks, and ends the process. Every step may fail, none may hang.
fn end_process(hang: &Hang<Subject>, farewell: &Farewell) {
    let code = if hang.subject.is_some() { HANG_IN_CONVOLUTION } else { HANG_OUTSIDE };
    let _ = std::thread::Builder::new().name("unhang-farewell".to_owned()).spawn(move || {
        std::thread::sleep(FAREWELL);
        signal_hook::low_level::exit(code);
    });
    if let Some(subject) = &hang.subject {
        record(hang, subject, farewell);
    }
    write_report(hang, farewell, code);
    say(&told(hang, code));
    flush_python();
    say("where each thread of Python stands:");
    let _ = signal_hook::low_level::raise(farewell.signal);
    signal_hook::low_level::exit(code);
}

fn place(hang: &Hang<Subject>) -> &'static str {
    match hang.place {
        Place::Running => "on the accelerator",
        Place::Searching => "on the accelerator, in something that the call itself waits for",
        Place::Host => "on the host, with an idle accelerator (compiling or searching)",
        Place::Call => "in the call",
        Place::Outside => "on the accelerator",
    }
}

fn record(hang: &Hang<Subject>, subject: &Subject, farewell: &Farewell) {
    let source = if subject.rehearsed { Source::Rehearsal } else { Source::Run };
    for problem in &subject.problems {
        let mut record = Record::new(problem.clone(), subject.engine, &farewell.machine, Verdict::Hangs, source);
        record.detail = format!("did not come back within {:.1} s, {}", hang.waited.as_secs_f64(), place(hang));
        if subject.problems.len() > 1 {
            record.detail += "; both gradients were computed in one call";
        }
        farewell.store.record(record);
    }
    farewell.store.flush(Duration::from_secs(5));
}

/// For `unhang run`: whole or not at all.
fn write_report(hang: &Hang<Subject>, farewell: &Farewell, code: i32) {
    let Some(folder) = &farewell.folder else { return };
    let subject = hang.subject.as_deref();
    let this = Identity::of_this_process();
    let report = json!({
        "process": this.pid,
        "boot": this.boot,
        "namespace": this.namespace,
        "started": this.started,
        "code": code,
        "problems": subject.map(|it| it.problems.iter().map(ToString::to_string).collect::<Vec<_>>()).unwrap_or_default(),
        "engine": subject.map(|it| it.engine.name()),
        "rehearsal": subject.is_some_and(|it| it.rehearsed),
        "place": place(hang),
        "seconds": hang.waited.as_secs_f64(),
    });
    if let Ok(folder) = PrivateFolder::open_existing(folder) {
        let _ = folder.write(&format!("hang-{}.json", this.pid), report.to_string().as_bytes());
    }
}

fn told(hang: &Hang<Subject>, code: i32) -> String {
    let seconds = hang.waited.as_secs_f64();
    let device = hang.device.map(|device| format!(" (device {device})")).unwrap_or_default();
    let mut text = String::new();
    match &hang.subject {
        Some(subject) => {
            let rehearsal = if subject.rehearsed { "rehearsal: " } else { "" };
            let problems: Vec<String> = subject.problems.iter().map(ToString::to_string).collect();
            let _ = write!(
                text,
                "{rehearsal}HANG in a convolution: {} on {} has not come back for {seconds:.1} s, {}{device}. It is kept as \
                 evidence, and this engine is not used for it again",
                problems.join(" and "),
                subject.engine,
                place(hang)
            );
        }
        None => {
            let _ = write!(
                text,
                "HANG outside convolution: nothing has moved {}{device} for {seconds:.1} s, and no convolution was \
                 outstanding. Nothing is quarantined",
                place(hang)
            );
            if hang.is_uncertain {
                text += "; more was queued than could be watched, so it may have been a convolution all the same";
            }
        }
    }
    let _ = write!(text, ". Ending process {} with code {code}", std::process::id());
    text
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
