//! One child in the foreground: signals pass through in both directions, and a reported hang reliably ends it.
//!
//! The child stays in our process group, so that it owns the terminal as it would without us. Signals from the terminal
//! (Ctrl-C, Ctrl-Z, a new size) reach it directly. Signals that another process sends only to us are passed on.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2, SIGWINCH};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::origin::WithOrigin;
use unhang_guard::Handle;

use super::folder::{RunFolder, handle_of};
use crate::output::say;

/// How often to look for reports.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How long a process that reported its hang may take to end by itself, and then to die of SIGKILL.
const PATIENCE: Duration = Duration::from_secs(30);

/// How a child ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// By itself, with this code.
    Exited(u8),
    /// By this signal.
    Signalled(i32),
    /// Not at all: it was killed after it had reported a hang, and still exists.
    Unkillable,
}

enum ChildEvent {
    Signal { number: i32, from_kernel: bool },
    Ended(std::io::Result<Ended>),
}

/// The signals to pass on. Those that were ignored when we started (`nohup`) stay ignored, for the child too.
pub(crate) struct Signals {
    sender: Sender<ChildEvent>,
    events: Mutex<Receiver<ChildEvent>>,
}

impl Signals {
    /// Begins to catch them.
    pub(crate) fn catch() -> std::io::Result<Signals> {
        let ignored = ignored_signals(&std::fs::read_to_string("/proc/self/status").unwrap_or_default());
        let all = [SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP, SIGCONT, SIGWINCH];
        let wanted = all.into_iter().filter(|number| ignored & (1 << (number - 1)) == 0);
        let mut caught = SignalsInfo::<WithOrigin>::new(wanted)?;
        let (sender, events) = channel();
        let tell = sender.clone();
        std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
            for origin in caught.forever() {
                let event = ChildEvent::Signal { number: origin.signal, from_kernel: origin.process.is_none() };
                if tell.send(event).is_err() {
                    return;
                }
            }
        })?;
        Ok(Signals { sender, events: Mutex::new(events) })
    }

    fn next(&self, patience: Duration) -> Result<ChildEvent, RecvTimeoutError> {
        self.events.lock().unwrap_or_else(std::sync::PoisonError::into_inner).recv_timeout(patience)
    }

    /// Waits. A signal that ends programs also ends the wait.
    pub(crate) fn wait(&self, time: Duration) -> Option<i32> {
        let until = Instant::now() + time;
        loop {
            match self.next(until.saturating_duration_since(Instant::now())) {
                Ok(ChildEvent::Signal { number, .. }) if [SIGINT, SIGTERM, SIGHUP, SIGQUIT].contains(&number) => {
                    return Some(number);
                }
                Ok(_) => {}
                Err(_) => return None,
            }
        }
    }
}

/// The mask after `SigIgn:` in `/proc/self/status`, such as `SigIgn:\t0000000000001000`.
fn ignored_signals(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default()
}

/// Runs a command to its end.
pub(crate) fn run(mut command: Command, signals: &Signals, folder: Option<&RunFolder>) -> std::io::Result<Ended> {
    // Nobody else received what the terminal sent before the program existed.
    if let Some(signal) = signals.wait(Duration::ZERO) {
        return Ok(Ended::Signalled(signal));
    }
    // The thread comes first: a program that cannot be waited for must not be started.
    let child = wait_in_background(signals.sender.clone())?;
    let process = command.spawn()?;
    let handle = Handle::of_child(&process);
    let _ = child.send(Pid::from_child(&process));
    let mut reported = Reported::default();
    // Since when a process of the run is known not to die of SIGKILL. Waiting for it would take for ever.
    let mut giving_up: Option<Instant> = None;
    loop {
        match signals.next(LOOK_EVERY) {
            Ok(ChildEvent::Ended(ended)) => return if giving_up.is_some() { Ok(Ended::Unkillable) } else { ended },
            Ok(ChildEvent::Signal { number, from_kernel }) => pass_on(number, from_kernel, &handle),
            Err(_) => {}
        }
        if let Some(stuck) = folder.and_then(|folder| reported.look(folder, PATIENCE)) {
            if stuck == handle.pid() {
                return Ok(Ended::Unkillable);
            }
            handle.send(Signal::TERM);
            giving_up.get_or_insert_with(Instant::now);
        }
        if let Some(since) = giving_up {
            if since.elapsed() >= 2 * PATIENCE {
                return Ok(Ended::Unkillable);
            }
            if since.elapsed() >= PATIENCE {
                handle.send(Signal::KILL);
            }
        }
    }
}

/// The processes that reported a hang. They end themselves. One that does not is killed; no other process ever is.
#[derive(Default)]
struct Reported {
    /// By the report's name; `None` if the process has ended, or is one that we may not touch.
    seen: BTreeMap<String, Option<Hung>>,
}

struct Hung {
    handle: Handle,
    since: Instant,
    stage: Stage,
}

#[derive(PartialEq)]
enum Stage {
    Ending,
    Killed,
    Stuck,
}

impl Reported {
    /// Looks for new reports, and at the processes that reported before. Returns the process that has just turned out
    /// not to die of SIGKILL.
    fn look(&mut self, folder: &RunFolder, patience: Duration) -> Option<u32> {
        for (name, report) in folder.reports() {
            // Gets a handle at once: later the id may belong to somebody else.
            self.seen.entry(name).or_insert_with(|| {
                let handle = handle_of(&report, folder.path())?;
                Some(Hung { handle, since: Instant::now(), stage: Stage::Ending })
            });
        }
        let mut stuck = None;
        for hung in self.seen.values_mut() {
            let Some(process) = hung else { continue };
            let pid = process.handle.pid();
            if process.handle.has_ended() {
                *hung = None;
            } else if process.since.elapsed() >= patience && process.stage == Stage::Ending {
                say(&format!("process {pid} reported its hang and does not end: killing it"));
                process.handle.send(Signal::KILL);
                (process.since, process.stage) = (Instant::now(), Stage::Killed);
            } else if process.since.elapsed() >= patience && process.stage == Stage::Killed {
                say(&format!(
                    "process {pid} cannot be killed: it waits in the kernel, and the GPU needs a reset or a reboot"
                ));
                process.stage = Stage::Stuck;
                stuck = Some(pid);
            }
        }
        stuck
    }
}

/// Waits for every child: as the first process of a container, we inherit those that others left behind.
///
/// Returns the channel on which to say which of them is the program.
fn wait_in_background(tell: Sender<ChildEvent>) -> std::io::Result<Sender<Pid>> {
    let (give, take) = std::sync::mpsc::channel();
    std::thread::Builder::new().name("waiting".to_owned()).spawn(move || {
        let Ok(child) = take.recv() else { return };
        loop {
            match rustix::process::wait(WaitOptions::empty()) {
                Ok(Some((pid, status))) if pid == child => {
                    let _ = tell.send(ChildEvent::Ended(Ok(from_status(status))));
                    return;
                }
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => {
                    let _ = tell.send(ChildEvent::Ended(Err(errno.into())));
                    return;
                }
            }
        }
    })?;
    Ok(give)
}

fn from_status(status: WaitStatus) -> Ended {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => Ended::Exited(u8::try_from(code).unwrap_or(u8::MAX)),
        (None, signal) => Ended::Signalled(signal.unwrap_or_default()),
    }
}

fn pass_on(number: i32, from_kernel: bool, child: &Handle) {
    // The terminal sends its signals to the whole group, except that it reports its end only to the session leader.
    let is_for_us_alone = number == SIGHUP && is_session_leader();
    if (!from_kernel || is_for_us_alone)
        && let Some(signal) = Signal::from_named_raw(number)
    {
        child.send(signal);
    }
    if number == SIGTSTP {
        // The shell waits for us to stop too; SIGCONT reaches both.
        let _ = signal_hook::low_level::emulate_default_handler(SIGTSTP);
    }
}

fn is_session_leader() -> bool {
    rustix::process::getsid(None).is_ok_and(|session| session == rustix::process::getpid())
}

/// Dies of a signal, without a core dump. Returns only from signals that do not end a process, and in the first process
/// of a container, which no signal ends.
pub(crate) fn die_of(signal: i32) {
    if std::process::id() == 1 {
        return;
    }
    let none = rustix::process::Rlimit { current: Some(0), maximum: None };
    let before = rustix::process::getrlimit(rustix::process::Resource::Core);
    let none = rustix::process::Rlimit { maximum: before.maximum, ..none };
    let _ = rustix::process::setrlimit(rustix::process::Resource::Core, none);
    let _ = signal_hook::low_level::emulate_default_handler(signal);
    // Signals that the library does not know, including the real-time ones.
    let _ = signal_hook::low_level::raise(signal);
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Stdio};

    use serde_json::json;
    use unhang_guard::Identity;

    use super::*;
    use crate::commands::run::folder::VARIABLE;

    /// A program that runs for a while, in a run, with a report as its watchdog would write it.
    fn reporting(folder: &RunFolder, changes: impl Fn(&mut serde_json::Value)) -> Child {
        let child = Command::new("sleep").arg("100").env(VARIABLE, folder.path()).stdin(Stdio::null()).spawn().unwrap();
        let this = Identity::of_this_process();
        let mut report = json!({
            "process": child.id(), "boot": this.boot, "namespace": this.namespace,
            "started": unhang_guard::process::started(child.id()), "problems": [], "engine": null,
        });
        changes(&mut report);
        std::fs::write(folder.path().join(format!("hang-{}.json", child.id())), report.to_string()).unwrap();
        child
    }

    fn folder() -> (tempfile::TempDir, RunFolder) {
        let place = tempfile::tempdir().unwrap();
        let folder = RunFolder::create_in(&place.path().join("runs")).unwrap();
        (place, folder)
    }

    fn is_running(child: &mut Child) -> bool {
        child.try_wait().unwrap().is_none()
    }

    #[test]
    fn one_that_does_not_end_is_killed_and_its_neighbour_is_not() {
        let (_place, folder) = folder();
        let mut neighbour = Command::new("sleep").arg("100").spawn().unwrap();
        let mut hung = reporting(&folder, |_| {});
        let mut reported = Reported::default();
        assert_eq!(reported.look(&folder, Duration::from_secs(3600)), None);
        assert!(is_running(&mut hung), "it has time to end by itself");
        assert_eq!(reported.look(&folder, Duration::ZERO), None);
        assert!(!hung.wait().unwrap().success());
        assert_eq!(reported.look(&folder, Duration::ZERO), None, "it has ended");
        assert!(is_running(&mut neighbour));
        neighbour.kill().unwrap();
        neighbour.wait().unwrap();
    }

    #[test]
    fn a_worker_that_reported_and_ended_is_forgotten() {
        let (_place, folder) = folder();
        let mut worker = reporting(&folder, |_| {});
        let mut reported = Reported::default();
        reported.look(&folder, Duration::from_secs(3600));
        worker.kill().unwrap();
        worker.wait().unwrap();
        for _ in 0..3 {
            assert_eq!(reported.look(&folder, Duration::ZERO), None);
        }
        assert!(reported.seen.values().all(Option::is_none));
    }

    #[test]
    fn a_process_that_is_not_surely_the_one_is_never_touched() {
        let (_place, folder) = folder();
        type Change<'c> = &'c dyn Fn(&mut serde_json::Value);
        let changes: [(&str, Change<'_>); 6] = [
            ("the id came round again", &|report| report["started"] = json!("1")),
            ("it says nothing of itself", &|report| report["started"] = json!("")),
            ("another namespace", &|report| report["namespace"] = json!("pid:[1]")),
            ("another boot", &|report| report["boot"] = json!("x")),
            ("the first process", &|report| report["process"] = json!(1)),
            ("ourselves", &|report| {
                let this = Identity::of_this_process();
                (report["process"], report["started"]) = (json!(this.pid), json!(this.started));
            }),
        ];
        for (why, change) in changes {
            let mut program = reporting(&folder, change);
            let mut reported = Reported::default();
            for _ in 0..3 {
                assert_eq!(reported.look(&folder, Duration::ZERO), None, "{why}");
            }
            assert!(is_running(&mut program), "{why}");
            folder.take_reports();
            program.kill().unwrap();
            program.wait().unwrap();
        }
    }

    #[test]
    fn a_process_of_somebody_elses_run_is_never_touched() {
        let (_place, folder) = folder();
        // Started by another process, and without our folder: its parent is a shell that has ended.
        let line = "sleep 100 >/dev/null 2>&1 & echo $!";
        let output = Command::new("sh").args(["-c", line]).output().unwrap();
        let pid: u32 = String::from_utf8(output.stdout).unwrap().trim().parse().unwrap();
        let mut carrier = reporting(&folder, |report| {
            report["process"] = json!(pid);
            report["started"] = json!(unhang_guard::process::started(pid));
        });
        let mut reported = Reported::default();
        for _ in 0..3 {
            assert_eq!(reported.look(&folder, Duration::ZERO), None);
        }
        let stranger = Handle::of(pid).expect("it still runs");
        stranger.send(Signal::KILL);
        carrier.kill().unwrap();
        carrier.wait().unwrap();
    }

    #[test]
    fn ignored_signals_are_read() {
        assert_eq!(ignored_signals("Name:\tx\nSigBlk:\t0000000000000001\nSigIgn:\t0000000000001001\n"), 0x1001);
        assert_eq!(ignored_signals(""), 0);
    }
}
