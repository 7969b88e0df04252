//! One child process: started, watched, ended.
//!
//! The child leads a process group of its own, so that its own children end with it. What it prints goes to a file
//! that has no name, not to a pipe: nobody has to read it for the child to go on, a flood cannot block, and a grandchild
//! that keeps it open cannot keep us waiting. Waiting is on the process itself (a pidfd), with a time limit, always.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use thiserror::Error;

/// How much of a child's output is kept.
const OUTPUT_LIMIT: u64 = 256 * 1024;

/// How a child ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// By itself, with this code.
    Exited(i32),
    /// By this signal, which was not ours.
    Signalled(i32),
    /// By us, at its deadline.
    TimedOut,
    /// Not at all: it was killed at its deadline and is still there, in the kernel. Left behind.
    Unkillable,
}

/// Why a child could not be started or watched.
#[derive(Debug, Error)]
pub enum SuperviseError {
    /// There is nothing to run.
    #[error("no command was given to supervise")]
    NoCommand,
    /// The program could not be started.
    #[error("cannot start {program:?}: {error}")]
    Start {
        /// The program.
        program: String,
        /// What the system said.
        error: std::io::Error,
    },
    /// The system does not let us watch it; it was ended.
    #[error("cannot watch the child {program:?}: {error}")]
    Watch {
        /// The program.
        program: String,
        /// What the system said.
        error: std::io::Error,
    },
}

/// A child that runs, or has ended and is not yet forgotten. Dropping it kills it.
pub(crate) struct Process {
    program: String,
    child: std::process::Child,
    id: Pid,
    handle: OwnedFd,
    output: File,
    ended: Option<Ended>,
}

impl Process {
    /// Starts a program. `environment` is set besides the inherited variables; without a value it is unset.
    pub(crate) fn start(
        command: &[String],
        environment: &[(String, Option<String>)],
        stdin: Stdio,
    ) -> Result<Process, SuperviseError> {
        let (program, arguments) = command.split_first().ok_or(SuperviseError::NoCommand)?;
        let start_error = |error| SuperviseError::Start { program: program.clone(), error };
        let output = tempfile::tempfile().map_err(start_error)?;
        let mut command = Command::new(program);
        command
            .args(arguments)
            .stdin(stdin)
            .stdout(Stdio::from(output.try_clone().map_err(start_error)?))
            .stderr(Stdio::from(output.try_clone().map_err(start_error)?))
            .process_group(0);
        for (name, value) in environment {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        let mut child = command.spawn().map_err(start_error)?;
        let id = Pid::from_child(&child);
        match pidfd_open(id, PidfdFlags::empty()) {
            Ok(handle) => Ok(Process { program: program.clone(), child, id, handle, output, ended: None }),
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(SuperviseError::Watch { program: program.clone(), error: error.into() })
            }
        }
    }

    /// What becomes readable when the process has ended.
    pub(crate) fn handle(&self) -> BorrowedFd<'_> {
        self.handle.as_fd()
    }

    /// Waits until the process has ended by itself; false when the time was up first.
    pub(crate) fn wait_until(&self, until: Instant) -> Result<bool, SuperviseError> {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let mut watched = [PollFd::from_borrowed_fd(self.handle.as_fd(), PollFlags::IN)];
            match rustix::event::poll(&mut watched, Some(&timespec(left))) {
                Ok(0) if Instant::now() >= until => return Ok(false),
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Ok(_) => return Ok(true),
                Err(error) => {
                    return Err(SuperviseError::Watch { program: self.program.clone(), error: error.into() });
                }
            }
        }
    }

    /// Ends the process and all of its group, and tells how it ended: by itself before this, by us, or not at all within
    /// the grace.
    pub(crate) fn end(&mut self, grace: Duration) -> Ended {
        if let Some(ended) = self.ended {
            return ended;
        }
        let by_itself = self.wait_until(Instant::now()).unwrap_or(false);
        // In any case: what the child started must not outlive it.
        let _ = kill_process_group(self.id, Signal::KILL);
        let ended = if by_itself {
            self.child.wait().map_or(Ended::Signalled(0), from_status)
        } else if self.wait_until(Instant::now() + grace).unwrap_or(false) {
            let _ = self.child.wait();
            Ended::TimedOut
        } else {
            Ended::Unkillable
        };
        self.ended = Some(ended);
        ended
    }

    /// The state letter of the process in the kernel's own words, such as `D` for a sleep that no signal ends.
    pub(crate) fn state(&self) -> Option<char> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.id.as_raw_nonzero())).ok()?;
        state_in(&stat)
    }

    /// The last part of what it printed on standard output and standard error, in order; what is not text is replaced.
    pub(crate) fn output(&mut self) -> String {
        let length = self.output.metadata().map_or(0, |metadata| metadata.len());
        let mut bytes = Vec::new();
        if self.output.seek(SeekFrom::Start(length.saturating_sub(OUTPUT_LIMIT))).is_ok() {
            let _ = (&self.output).take(OUTPUT_LIMIT).read_to_end(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end(Duration::from_secs(1));
    }
}

/// Field 3 of `/proc/<pid>/stat`. The name in field 2 may hold spaces and parentheses: `4242 (a (b) c) D 1 …`.
fn state_in(stat: &str) -> Option<char> {
    stat[stat.rfind(')')? + 1..].trim_start().chars().next()
}

/// A duration as the system wants it.
pub(crate) fn timespec(duration: Duration) -> Timespec {
    Timespec { tv_sec: duration.as_secs().min(1 << 30) as i64, tv_nsec: i64::from(duration.subsec_nanos()) }
}

fn from_status(status: ExitStatus) -> Ended {
    match (status.code(), status.signal()) {
        (Some(code), _) => Ended::Exited(code),
        (None, Some(signal)) => Ended::Signalled(signal),
        (None, None) => Ended::Signalled(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_is_read_past_any_name() {
        assert_eq!(state_in("42 (a ) S (b) c) D 1 42 42 0"), Some('D'));
        assert_eq!(state_in("42 (x) R 1"), Some('R'));
        assert_eq!(state_in("42"), None);
    }
}
