//! One child in the foreground: signals pass through in both directions, and a hang that was reported ends it for sure.
//!
//! The child stays in our process group, so that it owns the terminal as it would without us. What the terminal sends
//! (Ctrl-C, Ctrl-Z, a new size) reaches it directly; what another process sends to us alone is handed on.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2, SIGWINCH};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::origin::WithOrigin;

use super::folder::RunFolder;
use super::say;

/// How often reports are looked for.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How long a process that reported its hang may take to end by itself, and then to die of SIGKILL.
const PATIENCE: Duration = Duration::from_secs(30);

/// How a child ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// By itself, with this code.
    Exited(u8),
    /// By this signal.
    Signalled(i32),
    /// Not at all: it was killed after it had reported a hang, and is still there.
    Unkillable,
}

enum Event {
    Signal { number: i32, from_kernel: bool },
    Ended(std::io::Result<ExitStatus>),
}

/// Signals that are handed on. Those that were ignored when we were started (`nohup`) stay ignored, for the child too.
pub struct Signals {
    sender: Sender<Event>,
    events: Mutex<Receiver<Event>>,
}

impl Signals {
    /// Begins to catch them.
    pub fn catch() -> std::io::Result<Signals> {
        let ignored = ignored_signals(&std::fs::read_to_string("/proc/self/status").unwrap_or_default());
        let all = [SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP, SIGCONT, SIGWINCH];
        let wanted = all.into_iter().filter(|number| ignored & (1 << (number - 1)) == 0);
        let mut caught = SignalsInfo::<WithOrigin>::new(wanted)?;
        let (sender, events) = channel();
        let tell = sender.clone();
        std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
            for origin in caught.forever() {
                let event = Event::Signal { number: origin.signal, from_kernel: origin.process.is_none() };
                if tell.send(event).is_err() {
                    return;
                }
            }
        })?;
        Ok(Signals { sender, events: Mutex::new(events) })
    }

    fn next(&self, patience: Duration) -> Result<Event, RecvTimeoutError> {
        self.events.lock().unwrap_or_else(std::sync::PoisonError::into_inner).recv_timeout(patience)
    }

    /// Waits; a signal that ends programs ends the wait too.
    pub fn wait(&self, time: Duration) -> Option<i32> {
        let until = Instant::now() + time;
        loop {
            match self.next(until.saturating_duration_since(Instant::now())) {
                Ok(Event::Signal { number, .. }) if [SIGINT, SIGTERM, SIGHUP, SIGQUIT].contains(&number) => {
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
pub fn run(mut command: Command, signals: &Signals, folder: &RunFolder) -> std::io::Result<Ended> {
    let process = command.spawn()?;
    let id = Pid::from_child(&process);
    let handle = pidfd_open(id, PidfdFlags::empty())?;
    wait_in_background(process, signals.sender.clone())?;
    // When each process that reported a hang was first seen to have done so, and whether it was killed since.
    let mut hung: BTreeMap<i32, (Instant, bool)> = BTreeMap::new();
    loop {
        match signals.next(LOOK_EVERY) {
            Ok(Event::Ended(status)) => return status.map(from_status),
            Ok(Event::Signal { number, from_kernel }) => pass_on(number, from_kernel, &handle),
            Err(_) => {}
        }
        for report in folder.reports() {
            let (since, killed) = hung.entry(report.process).or_insert((Instant::now(), false));
            if since.elapsed() < PATIENCE {
                continue;
            }
            if *killed {
                // The one that was killed may have been a child of ours that others wait for.
                let _ = pidfd_send_signal(&handle, Signal::KILL);
                return Ok(if wait_for(signals, PATIENCE) { Ended::Signalled(9) } else { Ended::Unkillable });
            }
            say(&format!("process {} reported its hang and does not end: killing it", report.process));
            if let Some(id) = Pid::from_raw(report.process) {
                let _ = kill_process(id, Signal::KILL);
            }
            (*since, *killed) = (Instant::now(), true);
        }
    }
}

fn wait_for(signals: &Signals, time: Duration) -> bool {
    let until = Instant::now() + time;
    loop {
        match signals.next(until.saturating_duration_since(Instant::now())) {
            Ok(Event::Ended(_)) => return true,
            Ok(Event::Signal { .. }) => {}
            Err(_) => return false,
        }
    }
}

fn wait_in_background(mut process: Child, tell: Sender<Event>) -> std::io::Result<()> {
    std::thread::Builder::new().name("waiting".to_owned()).spawn(move || {
        // Only the wait: standard input is the child's as long as it lives.
        let _ = tell.send(Event::Ended(process.wait()));
    })?;
    Ok(())
}

fn from_status(status: ExitStatus) -> Ended {
    match (status.code(), status.signal()) {
        (Some(code), _) => Ended::Exited(u8::try_from(code).unwrap_or(u8::MAX)),
        (None, signal) => Ended::Signalled(signal.unwrap_or_default()),
    }
}

fn pass_on(number: i32, from_kernel: bool, child: &OwnedFd) {
    // What the terminal sends, it sends to the whole group.
    if !from_kernel && let Some(signal) = Signal::from_named_raw(number) {
        let _ = pidfd_send_signal(child.as_fd(), signal);
    }
    if number == SIGTSTP {
        // The shell waits for us to stop too; SIGCONT comes to both.
        let _ = signal_hook::low_level::emulate_default_handler(SIGTSTP);
    }
}

/// Dies of a signal, without a core of our own. Comes back only from signals that do not end a process.
pub fn die_of(signal: i32) {
    let none = rustix::process::Rlimit { current: Some(0), maximum: None };
    let before = rustix::process::getrlimit(rustix::process::Resource::Core);
    let none = rustix::process::Rlimit { maximum: before.maximum, ..none };
    let _ = rustix::process::setrlimit(rustix::process::Resource::Core, none);
    let _ = signal_hook::low_level::emulate_default_handler(signal);
    // Signals that the library does not know, the real-time ones among them.
    let _ = signal_hook::low_level::raise(signal);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_read() {
        assert_eq!(ignored_signals("Name:\tx\nSigBlk:\t0000000000000001\nSigIgn:\t0000000000001001\n"), 0x1001);
        assert_eq!(ignored_signals(""), 0);
    }
}
