//! One child process: started, watched, ended.
//!
//! The child leads its own process group, so that its children end with it. It prints into an unnamed file, not a
//! pipe: nobody has to read for the child to continue, a flood cannot block, and a grandchild that keeps the file
//! open cannot make us wait. We always wait for the process itself ([`Handle`]), with a time limit.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::process::{Pid, Signal, kill_process_group};
use thiserror::Error;
use unhang_guard::Handle;

/// How much of a child's output is kept.
const OUTPUT_LIMIT: u64 = 256 * 1024;

/// How a child ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// By itself, with this code.
    Exited(i32),
    /// By this signal, which we did not send.
    Signalled(i32),
    /// We killed it at its deadline.
    TimedOut,
    /// It has not ended: it was killed at its deadline and is still in the kernel. It is left behind.
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
}

/// A running child, or one that has ended and not been reaped. Dropping it kills it.
pub(crate) struct Process {
    child: std::process::Child,
    id: Pid,
    handle: Handle,
    output: File,
    ended: Option<Ended>,
}

impl Process {
    /// Starts a program. `environment` adds to the inherited variables; a variable without a value is unset.
    pub(crate) fn start(
        command: &[String],
        environment: &[(String, Option<String>)],
        stdin: Stdio,
    ) -> Result<Process, SuperviseError> {
        let (program, arguments) = command.split_first().ok_or(SuperviseError::NoCommand)?;
        let start_error = |error| SuperviseError::Start { program: program.clone(), error };
        let output = unnamed_file().map_err(start_error)?;
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
        let child = command.spawn().map_err(start_error)?;
        let (id, handle) = (Pid::from_child(&child), Handle::of_child(&child));
        Ok(Process { child, id, handle, output, ended: None })
    }

    /// The handle to the process.
    pub(crate) fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Waits until the process ends by itself. Returns false if the time is up first.
    pub(crate) fn wait_until(&self, until: Instant) -> bool {
        self.handle.wait_until(until)
    }

    /// Ends the process and its whole group. Returns how it ended: by itself before this, by us, or not at all within
    /// the grace period.
    pub(crate) fn end(&mut self, grace: Duration) -> Ended {
        if let Some(ended) = self.ended {
            return ended;
        }
        let by_itself = self.wait_until(Instant::now());
        // In any case: what the child started must not outlive it.
        let _ = kill_process_group(self.id, Signal::KILL);
        let ended = if by_itself {
            self.child.wait().map_or(Ended::Signalled(0), from_status)
        } else if self.wait_until(Instant::now() + grace) {
            let _ = self.child.wait();
            Ended::TimedOut
        } else {
            Ended::Unkillable
        };
        self.ended = Some(ended);
        ended
    }

    /// The process's state letter from the kernel, such as `D` for a sleep that no signal ends.
    pub(crate) fn state(&self) -> Option<char> {
        unhang_guard::process::state(self.handle.pid())
    }

    /// How long it was ready to run but had no processor.
    pub(crate) fn waited_for_a_processor(&self) -> Duration {
        unhang_guard::process::waited_for_a_processor(self.handle.pid())
    }

    /// The number of bytes that it has printed so far.
    pub(crate) fn printed(&self) -> u64 {
        self.output.metadata().map_or(0, |metadata| metadata.len())
    }

    /// What it printed from an offset on, as far as that was kept. This does not move the file position, which the
    /// child's descriptors share with ours.
    pub(crate) fn printed_from(&self, place: u64) -> Vec<u8> {
        let length = self.printed().saturating_sub(place).min(OUTPUT_LIMIT);
        let mut bytes = vec![0; length as usize];
        let read = self.output.read_at(&mut bytes, place).unwrap_or(0);
        bytes.truncate(read);
        bytes
    }

    /// The last part of what it printed on standard output and standard error, in order; bytes that are not text are
    /// replaced.
    pub(crate) fn output(&self) -> String {
        let bytes = self.printed_from(self.printed().saturating_sub(OUTPUT_LIMIT));
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end(Duration::from_secs(1));
    }
}

/// An unnamed file: in the temporary folder, or in memory if that is full, missing or read-only.
fn unnamed_file() -> std::io::Result<File> {
    tempfile::tempfile().or_else(|_| {
        let file = rustix::fs::memfd_create("unhang-output", rustix::fs::MemfdFlags::CLOEXEC)?;
        Ok(File::from(file))
    })
}

/// Converts a duration for the system call.
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
