//! Tells processes apart, and reaches the right one.
//!
//! A process id alone identifies nobody: ids are reused, and mean something else in another namespace or after a
//! reboot. An [`Identity`] says which process is meant. A [`Handle`] holds on to it by a pidfd, or on kernels before
//! 5.3 by checking the start time before each signal.

use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};

/// How often to poll a process where nothing reports its end.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Identifies a process, also across reboots and containers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The machine's boot.
    pub boot: String,
    /// The process-id namespace.
    pub namespace: String,
    /// The process id in that namespace.
    pub pid: u32,
    /// Its start, in clock ticks since boot.
    pub started: String,
}

impl Identity {
    /// This process.
    pub fn of_this_process() -> Identity {
        let pid = std::process::id();
        Identity { boot: boot(), namespace: namespace(), pid, started: started(pid).unwrap_or_default() }
    }

    /// Whether the process is of this boot and namespace, so that its id has the same meaning here.
    pub fn is_of_here(&self) -> bool {
        self.boot == boot() && self.namespace == namespace()
    }

    /// Whether it is alive; always false for another boot or namespace.
    pub fn is_alive(&self) -> bool {
        self.is_of_here() && started(self.pid).is_some_and(|since| since == self.started)
    }
}

/// One word of a file, or `-`.
fn word(text: Option<String>) -> String {
    let text = text.unwrap_or_default();
    let word: String = text.trim().chars().filter(|c| !c.is_whitespace()).take(64).collect();
    if word.is_empty() { "-".to_owned() } else { word }
}

/// The identifier of this boot, or `-`.
pub fn boot() -> String {
    word(fs::read_to_string("/proc/sys/kernel/random/boot_id").ok())
}

/// The identifier of this process's id namespace, or `-`.
pub fn namespace() -> String {
    word(fs::read_link("/proc/self/ns/pid").ok().map(|link| link.display().to_string()))
}

/// The machine's uptime in seconds, including sleep: a clock that nobody sets.
pub fn uptime() -> Option<i64> {
    fs::read_to_string("/proc/uptime").ok()?.split('.').next()?.parse().ok()
}

/// The process's start, in clock ticks since boot; `None` if there is no such process or it is a zombie.
pub fn started(pid: u32) -> Option<String> {
    let stat = stat(pid)?;
    if matches!(state_in(&stat)?, 'Z' | 'X') {
        return None;
    }
    field_in(&stat, 22).map(str::to_owned)
}

/// The process's state letter from the kernel, such as `D` for a sleep that no signal ends.
pub fn state(pid: u32) -> Option<char> {
    state_in(&stat(pid)?)
}

/// How long the longest-waiting thread of a process was ready to run but had no processor; zero if the kernel does
/// not count that.
pub fn waited_for_a_processor(pid: u32) -> Duration {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let waited = threads.filter_map(|thread| {
        let text = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split_whitespace().nth(1)?.parse().ok()
    });
    Duration::from_nanos(waited.max().unwrap_or(0))
}

/// The parent process, or the one that adopted it.
pub fn parent(pid: u32) -> Option<u32> {
    field_in(&stat(pid)?, 4)?.parse().ok()
}

/// Whether one process descends from another.
pub fn descends_from(pid: u32, ancestor: u32) -> bool {
    let mut current = pid;
    // A process tree is no deeper than the number of ids. Ids that change while we look must not lead in circles.
    for _ in 0..4096 {
        match parent(current) {
            Some(0) | None => return false,
            Some(above) if above == ancestor => return true,
            Some(above) => current = above,
        }
    }
    false
}

/// Whether a process was started with that value of the variable. `None` if its environment cannot be read.
pub fn was_started_with(pid: u32, name: &str, value: &[u8]) -> Option<bool> {
    let wanted = [name.as_bytes(), b"=", value].concat();
    let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
    Some(environment.split(|byte| *byte == 0).any(|variable| variable == wanted))
}

/// This user's processes, as far as they are visible.
pub fn all_of_ours() -> Vec<u32> {
    use std::os::unix::fs::MetadataExt;
    let us = rustix::process::geteuid().as_raw();
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let is_ours = |entry: &fs::DirEntry| entry.metadata().is_ok_and(|metadata| metadata.uid() == us);
    let entries = entries.flatten().filter(is_ours);
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

fn stat(pid: u32) -> Option<String> {
    fs::read(format!("/proc/{pid}/stat")).ok().map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// A field of `/proc/<pid>/stat`, counted from 1 as in the manual. The name in field 2 may contain spaces and
/// parentheses, so this counts from its end: `4242 (a (b) c) S 1 4242 …`.
fn field_in(stat: &str, number: usize) -> Option<&str> {
    stat[stat.rfind(')')? + 1..].split_whitespace().nth(number.checked_sub(3)?)
}

fn state_in(stat: &str) -> Option<char> {
    field_in(stat, 3)?.chars().next()
}

/// Holds on to a process: every operation reaches that process or none.
#[derive(Debug)]
pub struct Handle {
    pid: Pid,
    started: String,
    /// Without a pidfd, the start time is compared.
    descriptor: Option<OwnedFd>,
}

impl Handle {
    /// Holds on to the process that has this id now, if there is one. Rejects ids up to 1.
    pub fn of(pid: u32) -> Option<Handle> {
        let raw = i32::try_from(pid).ok().filter(|pid| *pid > 1)?;
        let id = Pid::from_raw(raw)?;
        let before = started(pid)?;
        let descriptor = match pidfd_open(id, PidfdFlags::empty()) {
            Ok(descriptor) => Some(descriptor),
            Err(Errno::SRCH) => return None,
            // Kernels before 5.3, and container filters that do not know the call.
            Err(_) => None,
        };
        // The id may have been reused between the two checks.
        (started(pid)? == before).then_some(Handle { pid: id, started: before, descriptor })
    }

    /// Holds on to a child that has not been waited for: its id stays its own, even after it has ended.
    pub fn of_child(child: &std::process::Child) -> Handle {
        let descriptor = pidfd_open(Pid::from_child(child), PidfdFlags::empty()).ok();
        Handle { pid: Pid::from_child(child), started: started(child.id()).unwrap_or_default(), descriptor }
    }

    /// Its id.
    pub fn pid(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    /// The descriptor that becomes readable when it ends, if the kernel has that.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.descriptor.as_ref().map(AsFd::as_fd)
    }

    /// Whether the pidfd, or the start time, confirms that this is the process with that start time.
    pub fn started_at(&self, started: &str) -> bool {
        self.started == started
    }

    /// Whether it has ended; a zombie has.
    pub fn has_ended(&self) -> bool {
        match &self.descriptor {
            Some(descriptor) => poll(descriptor, Duration::ZERO),
            None => started(self.pid()).is_none_or(|since| since != self.started),
        }
    }

    /// Waits until it has ended. Returns false if the time is up first.
    pub fn wait_until(&self, until: Instant) -> bool {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let has_ended = match &self.descriptor {
                Some(descriptor) => poll(descriptor, left),
                None => self.has_ended(),
            };
            if has_ended || left.is_zero() {
                return has_ended;
            }
            if self.descriptor.is_none() {
                std::thread::sleep(left.min(LOOK_EVERY));
            }
        }
    }

    /// Sends a signal, unless the process has ended.
    pub fn send(&self, signal: Signal) {
        let sent = self.descriptor.as_ref().map(|descriptor| pidfd_send_signal(descriptor, signal));
        if !matches!(sent, Some(Ok(()) | Err(Errno::SRCH))) && !self.has_ended() {
            let _ = kill_process(self.pid, signal);
        }
    }
}

/// Whether the process behind a pidfd ends within that time.
fn poll(descriptor: &OwnedFd, time: Duration) -> bool {
    let limit = Timespec { tv_sec: time.as_secs().min(1 << 30) as i64, tv_nsec: i64::from(time.subsec_nanos()) };
    let mut watched = [PollFd::from_borrowed_fd(descriptor.as_fd(), PollFlags::IN)];
    matches!(rustix::event::poll(&mut watched, Some(&limit)), Ok(count) if count > 0)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_name_with_parentheses_does_not_confuse() {
        let stat = "42 (a ) (b) c) S 7 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 9876 20";
        assert_eq!(field_in(stat, 22), Some("9876"));
        assert_eq!(field_in(stat, 4), Some("7"));
        assert_eq!(state_in("42 (a ) S (b) c) D 1 42 42 0"), Some('D'));
        assert_eq!(state_in("42"), None);
    }

    #[test]
    fn this_process_lives_and_others_do_not() {
        let this = Identity::of_this_process();
        assert!(this.is_alive() && this.is_of_here());
        assert!(!Identity { started: "1".to_owned(), ..this.clone() }.is_alive(), "the id came round again");
        assert!(!Identity { boot: "another".to_owned(), ..this.clone() }.is_alive(), "the machine was restarted");
        assert!(!Identity { namespace: "pid:[1]".to_owned(), ..this }.is_alive(), "a container next door");
    }

    #[test]
    fn a_child_is_held_with_and_without_a_descriptor() {
        for with_descriptor in [true, false] {
            let mut child = Command::new("sleep").arg("100").spawn().unwrap();
            let mut handle = Handle::of(child.id()).unwrap();
            if !with_descriptor {
                handle.descriptor = None;
            }
            assert!(descends_from(child.id(), std::process::id()));
            assert!(!handle.has_ended() && !handle.wait_until(Instant::now() + Duration::from_millis(30)));
            handle.send(Signal::KILL);
            assert!(handle.wait_until(Instant::now() + Duration::from_secs(60)), "a zombie has ended");
            child.wait().unwrap();
            assert!(handle.has_ended());
            handle.send(Signal::KILL);
        }
    }

    #[test]
    fn the_first_process_is_never_meant() {
        assert!(Handle::of(0).is_none() && Handle::of(1).is_none() && Handle::of(u32::MAX).is_none());
    }

    #[test]
    fn a_start_environment_is_seen() {
        let mut child = Command::new("sleep").arg("100").env("UNHANG_TEST_MARK", "yes").spawn().unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        // Between fork and exec the environment is still ours.
        while was_started_with(child.id(), "UNHANG_TEST_MARK", b"yes") != Some(true) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(was_started_with(child.id(), "UNHANG_TEST_MARK", b"yes"), Some(true));
        assert_eq!(was_started_with(child.id(), "UNHANG_TEST_MARK", b"no"), Some(false));
        assert!(all_of_ours().contains(&child.id()));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
