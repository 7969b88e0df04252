//! One child, run to its end within a deadline.
//!
//! The child leads a process group of its own, so that its own children end with it. What it prints goes to a file
//! that has no name, not to a pipe: nobody has to read it for the child to go on, a flood cannot block, and a grandchild
//! that keeps it open cannot keep us waiting. Waiting is on the process itself (a pidfd), with a time limit, always.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use thiserror::Error;

/// How long a child may take to die of SIGKILL before it counts as one that cannot be killed: the driver waits up to
/// nine seconds for a queue to be preempted, and then resets the GPU.
const GRACE: Duration = Duration::from_secs(15);
/// How much of a child's output is kept.
const OUTPUT_LIMIT: u64 = 256 * 1024;

/// What to run, and for how long at most.
#[derive(Debug, Clone)]
pub struct Child {
    /// The program and its arguments; never empty.
    pub command: Vec<String>,
    /// Variables to set besides the inherited ones.
    pub environment: Vec<(String, String)>,
    /// After that it is ended.
    pub deadline: Duration,
}

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

/// A child's end and what it printed.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// How it ended.
    pub ended: Ended,
    /// The last part of what it printed on standard output and standard error, in order.
    pub output: String,
    /// How long it took.
    pub elapsed: Duration,
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

/// Runs a child to its end. Returns within the deadline and a grace of 15 seconds, whatever the child does.
pub fn supervise(child: &Child) -> Result<Outcome, SuperviseError> {
    let (program, arguments) = child.command.split_first().ok_or(SuperviseError::NoCommand)?;
    let start_error = |error| SuperviseError::Start { program: program.clone(), error };
    let watch_error = |error: std::io::Error| SuperviseError::Watch { program: program.clone(), error };
    let mut output = tempfile::tempfile().map_err(start_error)?;
    let started = Instant::now();
    let mut process = Command::new(program)
        .args(arguments)
        .envs(child.environment.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null())
        .stdout(Stdio::from(output.try_clone().map_err(start_error)?))
        .stderr(Stdio::from(output.try_clone().map_err(start_error)?))
        .process_group(0)
        .spawn()
        .map_err(start_error)?;
    let id = Pid::from_child(&process);
    let handle = match pidfd_open(id, PidfdFlags::empty()) {
        Ok(handle) => handle,
        Err(error) => {
            let _ = process.kill();
            let _ = process.wait();
            return Err(watch_error(error.into()));
        }
    };
    let came = wait_until(handle.as_fd(), started + child.deadline).map_err(watch_error)?;
    // In any case: what the child started must not outlive it.
    let _ = kill_process_group(id, Signal::KILL);
    let ended = if came {
        from_status(process.wait().map_err(watch_error)?)
    } else if wait_until(handle.as_fd(), Instant::now() + GRACE).map_err(watch_error)? {
        let _ = process.wait();
        Ended::TimedOut
    } else {
        Ended::Unkillable
    };
    Ok(Outcome { ended, output: tail(&mut output), elapsed: started.elapsed() })
}

/// Waits until the process behind the handle has ended; false when the time was up first.
fn wait_until(handle: std::os::fd::BorrowedFd<'_>, until: Instant) -> std::io::Result<bool> {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let timeout = Timespec { tv_sec: left.as_secs().min(1 << 30) as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        match rustix::event::poll(&mut [PollFd::from_borrowed_fd(handle, PollFlags::IN)], Some(&timeout)) {
            Ok(0) if Instant::now() >= until => return Ok(false),
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            Ok(_) => return Ok(true),
            Err(error) => return Err(error.into()),
        }
    }
}

fn from_status(status: ExitStatus) -> Ended {
    match (status.code(), status.signal()) {
        (Some(code), _) => Ended::Exited(code),
        (None, Some(signal)) => Ended::Signalled(signal),
        (None, None) => Ended::Signalled(0),
    }
}

/// The end of what was written, as text; what is not text is replaced.
fn tail(output: &mut File) -> String {
    let length = output.metadata().map_or(0, |metadata| metadata.len());
    let mut bytes = Vec::new();
    if output.seek(SeekFrom::Start(length.saturating_sub(OUTPUT_LIMIT))).is_ok() {
        let _ = output.take(OUTPUT_LIMIT).read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
