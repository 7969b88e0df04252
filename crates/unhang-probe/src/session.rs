//! A child that serves many attempts, and the result of each, whatever the child does.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use crate::process::{Ended, Process, SuperviseError, timespec};
use crate::protocol::{Answer, Incoming, Message, Request, Stage, Wire};

/// How often a wait checks whether to give up.
const GLANCE: Duration = Duration::from_millis(100);
/// How often to poll for the end of a process where the kernel does not report it.
const SHORT_GLANCE: Duration = Duration::from_millis(20);
/// How long a child may take to end after it has closed its socket.
const CLOSED_PATIENCE: Duration = Duration::from_secs(2);
/// How long a child that is no longer needed may take to end.
const FAREWELL: Duration = Duration::from_secs(1);

/// How to start a kind of child. Attempts with equal launches share a child.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Launch {
    /// The program and its arguments; never empty.
    pub command: Vec<String>,
    /// Variables to set in addition to the inherited ones; a variable without a value is unset.
    pub environment: Vec<(String, Option<String>)>,
}

/// How long each stage of an attempt may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadlines {
    /// The child's start, until it is ready; and the CPU's part: operands, the correct result, the comparison.
    pub start: Duration,
    /// Compiling and searching together.
    pub compile: Duration,
    /// The convolution.
    pub run: Duration,
    /// How long a child may take to die of SIGKILL before it counts as unkillable.
    pub grace: Duration,
}

impl Deadlines {
    fn of(&self, stage: Stage) -> Duration {
        match stage {
            Stage::Start | Stage::Prepare | Stage::Check => self.start,
            Stage::Compile | Stage::Find => self.compile,
            Stage::Run => self.run,
        }
    }
}

/// Why an attempt, or a start, did not finish.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The prober should stop; this says nothing about the attempt.
    Stopped,
    /// The child could not even be started.
    CannotStart(SuperviseError),
    /// No answer within the stage's deadline; the child was killed.
    Hung { stage: Stage, within: Duration, silent: Option<Duration> },
    /// The child ended by itself.
    Died { stage: Stage, ended: Ended },
    /// It closed its socket and kept running; it was killed.
    Closed { stage: Stage },
    /// It sent something that is not an answer; it was killed.
    Garbage { stage: Stage, said: String },
}

/// A failure, what the child printed, and whether it could be killed.
#[derive(Debug)]
pub(crate) struct Fallen {
    pub(crate) failure: Failure,
    pub(crate) output: String,
    /// It was killed and is still there; the process's state letter, if known.
    pub(crate) unkillable: Option<Option<char>>,
}

/// A child that is ready.
pub(crate) struct Session {
    process: Process,
    wire: Wire,
    heartbeat: Option<Instant>,
    grace: Duration,
}

enum Heard {
    Message(Message),
    TimeUp,
    Exited,
    Closed,
    Garbage(String),
    Stopped,
}

impl Session {
    /// Starts a child and waits until it is ready.
    pub(crate) fn start(launch: &Launch, deadlines: &Deadlines, stop: &AtomicBool) -> Result<Session, Fallen> {
        let nothing_printed = |failure| Fallen { failure, output: String::new(), unkillable: None };
        let cannot = |error| {
            let program = launch.command.first().cloned().unwrap_or_default();
            nothing_printed(Failure::CannotStart(SuperviseError::Start { program, error }))
        };
        let (ours, theirs) = UnixStream::pair().map_err(cannot)?;
        let wire = Wire::new(ours).map_err(cannot)?;
        let process = Process::start(&launch.command, &launch.environment, Stdio::from(OwnedFd::from(theirs)))
            .map_err(|error| nothing_printed(Failure::CannotStart(error)))?;
        let mut session = Session { process, wire, heartbeat: None, grace: deadlines.grace };
        let until = Instant::now() + deadlines.start;
        loop {
            match session.listen(until, stop) {
                Heard::Message(Message::Ready { .. }) => return Ok(session),
                Heard::Message(Message::Heartbeat) => {}
                Heard::Message(other) => {
                    let said = format!("{other:?} before it was ready");
                    return Err(session.fall(Failure::Garbage { stage: Stage::Start, said }));
                }
                other => return Err(session.fail(other, Stage::Start, deadlines)),
            }
        }
    }

    /// Asks the child for an attempt. After a failure the child is gone.
    pub(crate) fn attempt(
        mut self,
        request: &Request,
        deadlines: &Deadlines,
        stop: &AtomicBool,
    ) -> Result<(Session, Answer), Fallen> {
        let mut stage = Stage::Prepare;
        let mut until = Instant::now() + deadlines.of(stage);
        if self.wire.send(request).is_err() {
            return Err(self.fail(Heard::Closed, stage, deadlines));
        }
        loop {
            match self.listen(until, stop) {
                Heard::Message(Message::Answer(answer)) if answer.id == request.id && plausible(&answer) => {
                    return Ok((self, answer));
                }
                Heard::Message(Message::Stage { id, stage: next }) if id == request.id && next as u8 > stage as u8 => {
                    // Compilation and search share one deadline.
                    if deadlines_differ(stage, next) {
                        until = Instant::now() + deadlines.of(next);
                    }
                    stage = next;
                }
                Heard::Message(Message::Heartbeat) => {}
                Heard::Message(other) => {
                    return Err(self.fall(Failure::Garbage { stage, said: format!("{other:?}") }));
                }
                other => return Err(self.fail(other, stage, deadlines)),
            }
        }
    }

    /// Lets the child end by closing its socket. Kills it if it does not.
    pub(crate) fn finish(self) {
        let Session { mut process, wire, grace, .. } = self;
        drop(wire);
        process.wait_until(Instant::now() + FAREWELL);
        process.end(grace);
    }

    /// The next event, until the time is up. Checks the clock after every piece that it reads.
    fn listen(&mut self, until: Instant, stop: &AtomicBool) -> Heard {
        let mut ended = false;
        loop {
            match self.wire.receive() {
                Incoming::Message(message) => {
                    if message == Message::Heartbeat {
                        self.heartbeat = Some(Instant::now());
                    }
                    return Heard::Message(message);
                }
                Incoming::Garbage(said) => return Heard::Garbage(said),
                Incoming::Closed => return if ended { Heard::Exited } else { Heard::Closed },
                // Everything that it sent before it ended has been read. A grandchild may hold the socket for ever.
                Incoming::Nothing if ended => return Heard::Exited,
                Incoming::Part | Incoming::Nothing => {}
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Heard::TimeUp;
            }
            if stop.load(Ordering::Relaxed) {
                return Heard::Stopped;
            }
            let process = self.process.handle();
            let mut watched = vec![PollFd::from_borrowed_fd(self.wire.socket().as_fd(), PollFlags::IN)];
            watched.extend(process.descriptor().map(|it| PollFd::from_borrowed_fd(it, PollFlags::IN)));
            // Where the kernel does not report a process's end, poll for it.
            let glance = if process.descriptor().is_some() { GLANCE } else { SHORT_GLANCE };
            // An error here (INTR, or no memory) does no harm: the clock above ends the loop.
            let _ = rustix::event::poll(&mut watched, Some(&timespec(left.min(glance))));
            ended = process.has_ended();
        }
    }

    fn fail(mut self, heard: Heard, stage: Stage, deadlines: &Deadlines) -> Fallen {
        let failure = match heard {
            Heard::TimeUp => {
                let silent = self.heartbeat.map(|heartbeat| heartbeat.elapsed());
                Failure::Hung { stage, within: deadlines.of(stage), silent }
            }
            Heard::Exited => Failure::Died { stage, ended: self.process.end(self.grace) },
            Heard::Closed => {
                // A dying process closes its socket a moment before it is dead.
                if self.process.wait_until(Instant::now() + CLOSED_PATIENCE) {
                    Failure::Died { stage, ended: self.process.end(self.grace) }
                } else {
                    Failure::Closed { stage }
                }
            }
            Heard::Garbage(said) => Failure::Garbage { stage, said },
            Heard::Stopped => Failure::Stopped,
            Heard::Message(message) => Failure::Garbage { stage, said: format!("{message:?}") },
        };
        self.fall(failure)
    }

    fn fall(mut self, failure: Failure) -> Fallen {
        let unkillable = (self.process.end(self.grace) == Ended::Unkillable).then(|| self.process.state());
        Fallen { failure, output: self.process.output(), unkillable }
    }
}

fn deadlines_differ(before: Stage, next: Stage) -> bool {
    !matches!((before, next), (Stage::Compile, Stage::Find))
}

/// Whether these are plausible times and errors.
fn plausible(answer: &Answer) -> bool {
    [answer.seconds, answer.first_seconds, answer.relative_error]
        .iter()
        .flatten()
        .all(|it| it.is_finite() && *it >= 0.0)
}
