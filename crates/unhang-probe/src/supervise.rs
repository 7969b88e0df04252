//! A child that reports only by its output and its exit, run to its end within a deadline.

use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::answer;
use crate::child::STARTED_BY;
use crate::process::{Ended, Process, SuperviseError};

/// How long a child may take to die of SIGKILL before it counts as unkillable. The driver waits up to nine seconds
/// for a queue to be preempted, and then resets the GPU.
pub const GRACE: Duration = Duration::from_secs(15);

/// What to run, and for how long at most.
#[derive(Debug, Clone)]
pub struct Child {
    /// The program and its arguments; never empty.
    pub command: Vec<String>,
    /// Variables to set in addition to the inherited ones; a variable without a value is unset.
    pub environment: Vec<(String, Option<String>)>,
    /// The child is killed after this time.
    pub deadline: Duration,
}

/// How a child ended and what it printed.
#[derive(Debug, Clone)]
pub struct ChildOutcome {
    /// How it ended.
    pub ended: Ended,
    /// The last part of what it printed on standard output and standard error, in order.
    pub output: String,
    /// How long it took.
    pub elapsed: Duration,
    /// The mark at the start of its answers.
    pub(crate) nonce: String,
}

impl ChildOutcome {
    /// The child's messages to its parent ([`answer::line`]), line by line; other output does not count.
    pub fn answers(&self) -> impl DoubleEndedIterator<Item = &str> {
        answer::answers(&self.output, &self.nonce)
    }

    /// The lines that were not meant for the parent.
    pub fn other_words(&self) -> impl DoubleEndedIterator<Item = &str> {
        self.output.lines().filter(|line| !line.trim().is_empty() && !line.starts_with(&self.nonce))
    }

    /// The last of them: usually what went wrong.
    pub fn last_words(&self) -> &str {
        self.other_words().next_back().unwrap_or_default()
    }
}

/// How often to check the output of a child that is starting.
const LOOK: Duration = Duration::from_millis(50);

/// Runs a child to its end. Returns within the deadline plus a grace period of 15 seconds, whatever the child does.
pub fn supervise(child: &Child) -> Result<ChildOutcome, SuperviseError> {
    run(child, |process, started| {
        process.wait_until(started + child.deadline);
    })
}

/// On a busy machine a child gets at most this many times its deadline.
const BUSY: u32 = 4;

/// Runs a child whose time starts when its output says that it is ready, after at most `start`. Time spent waiting
/// for a processor does not count either. Also returns whether it was ever ready. Takes at most start, four deadlines
/// and a grace period of 15 seconds.
pub fn supervise_when_ready(
    child: &Child,
    start: Duration,
    is_ready: impl Fn(&str) -> bool,
) -> Result<(ChildOutcome, bool), SuperviseError> {
    let mut ready = false;
    let outcome = run(child, |process, started| {
        let mut seen = 0;
        while !ready && started.elapsed() < start && !process.wait_until(Instant::now() + LOOK) {
            let printed = process.printed();
            if printed != seen {
                seen = printed;
                ready = is_ready(&process.output());
            }
        }
        // A child that was not ready in time gets no more time.
        if ready {
            wait_with_a_processor(process, child.deadline);
        }
    })?;
    ready = ready || is_ready(&outcome.output);
    Ok((outcome, ready))
}

/// Waits until the child has ended, or has had that much time on a processor.
fn wait_with_a_processor(process: &Process, deadline: Duration) {
    let (ready, before) = (Instant::now(), process.waited_for_a_processor());
    let mut until = ready + deadline;
    while !process.wait_until(until) {
        let waited = process.waited_for_a_processor().saturating_sub(before);
        let later = ready + (deadline + waited).min(deadline * BUSY);
        if later < until + LOOK {
            return;
        }
        until = later;
    }
}

/// Runs a child to its end; `wait` returns when it has ended or its time is up.
fn run(child: &Child, wait: impl FnOnce(&mut Process, Instant)) -> Result<ChildOutcome, SuperviseError> {
    let started = Instant::now();
    let (mut process, nonce) = start_answering(&child.command, &child.environment, Stdio::null())?;
    wait(&mut process, started);
    let ended = process.end(GRACE);
    Ok(ChildOutcome { ended, output: process.output(), elapsed: started.elapsed(), nonce })
}

/// Starts a child that marks its answers with a number, and returns the number too.
pub(crate) fn start_answering(
    command: &[String],
    environment: &[(String, Option<String>)],
    stdin: Stdio,
) -> Result<(Process, String), SuperviseError> {
    let nonce = answer::new_nonce().map_err(|error| {
        let program = command.first().cloned().unwrap_or_default();
        SuperviseError::Start { program, error }
    })?;
    let mut environment = environment.to_vec();
    environment.push((answer::VARIABLE.to_owned(), Some(nonce.clone())));
    environment.push((STARTED_BY.to_owned(), Some(std::process::id().to_string())));
    Ok((Process::start(command, &environment, stdin)?, nonce))
}
