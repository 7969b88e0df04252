//! One child that says all it has to say by what it prints and how it ends, run to its end within a deadline.

use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::process::{Ended, Process, SuperviseError};

/// How long a child may take to die of SIGKILL before it counts as one that cannot be killed: the driver waits up to
/// nine seconds for a queue to be preempted, and then resets the GPU.
pub const GRACE: Duration = Duration::from_secs(15);

/// What to run, and for how long at most.
#[derive(Debug, Clone)]
pub struct Child {
    /// The program and its arguments; never empty.
    pub command: Vec<String>,
    /// Variables to set in addition to the inherited ones.
    pub environment: Vec<(String, String)>,
    /// After that it is ended.
    pub deadline: Duration,
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

/// Runs a child to its end. Returns within the deadline and a grace of 15 seconds, whatever the child does.
pub fn supervise(child: &Child) -> Result<Outcome, SuperviseError> {
    let started = Instant::now();
    let environment: Vec<_> =
        child.environment.iter().map(|(name, value)| (name.clone(), Some(value.clone()))).collect();
    let mut process = Process::start(&child.command, &environment, Stdio::null())?;
    process.wait_until(started + child.deadline);
    let ended = process.end(GRACE);
    Ok(Outcome { ended, output: process.output(), elapsed: started.elapsed() })
}
