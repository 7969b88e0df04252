//! A child that receives one task after another and reports its work line by line.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::process::{Process, SuperviseError};
use crate::session::Launch;
use crate::supervise::{ChildOutcome, GRACE, start_answering};

/// How often to check a silent child.
const LOOK: Duration = Duration::from_millis(20);
/// The longest line that is accepted from a child.
const LONGEST_LINE: usize = 64 * 1024;

/// A working child. Dropping it kills it; when this process ends, the child finds its standard input closed.
pub struct TalkingChild {
    process: Process,
    tasks: UnixStream,
    nonce: String,
    started: Instant,
    /// How far its output has been read.
    read: u64,
    /// What has been read and is not yet a whole line.
    rest: Vec<u8>,
    /// Whole lines that have been read and not yet handled.
    lines: VecDeque<String>,
}

impl TalkingChild {
    /// Starts a child.
    pub fn start(launch: &Launch) -> Result<TalkingChild, SuperviseError> {
        let program = || launch.command.first().cloned().unwrap_or_default();
        let cannot = |error| SuperviseError::Start { program: program(), error };
        let (tasks, theirs) = UnixStream::pair().map_err(cannot)?;
        // A child that reads nothing must not make us wait.
        tasks.set_nonblocking(true).map_err(cannot)?;
        let started = Instant::now();
        let stdin = Stdio::from(OwnedFd::from(theirs));
        let (process, nonce) = start_answering(&launch.command, &launch.environment, stdin)?;
        Ok(TalkingChild { process, tasks, nonce, started, read: 0, rest: Vec::new(), lines: VecDeque::new() })
    }

    /// Gives the child a task: a line on its standard input.
    pub fn give(&mut self, task: &str) -> io::Result<()> {
        self.tasks.write_all(format!("{task}\n").as_bytes())
    }

    /// The child's next message ([`crate::answer::line`]); `None` when it has ended, or was silent for too long.
    pub fn next(&mut self, patience: Duration) -> Option<String> {
        let until = Instant::now() + patience;
        loop {
            // Ask this first: everything that it said before its end is then there.
            let has_ended = self.process.wait_until(Instant::now());
            while let Some(line) = self.line() {
                if let Some(said) = line.strip_prefix(&self.nonce).and_then(|rest| rest.strip_prefix(' ')) {
                    return Some(said.to_owned());
                }
                // A child that prints without end says nothing either.
                if Instant::now() >= until {
                    return None;
                }
            }
            let now = Instant::now();
            if has_ended || now >= until {
                return None;
            }
            self.process.wait_until((now + LOOK).min(until));
        }
    }

    /// Ends the child, within a grace period of 15 seconds.
    pub fn finish(mut self) -> ChildOutcome {
        let ended = self.process.end(GRACE);
        ChildOutcome {
            ended,
            output: self.process.output(),
            elapsed: self.started.elapsed(),
            nonce: self.nonce.clone(),
        }
    }

    /// The next whole line of its output.
    fn line(&mut self) -> Option<String> {
        if self.lines.is_empty() {
            let more = self.process.printed_from(self.read);
            self.read += more.len() as u64;
            self.rest.extend(more);
            if let Some(end) = self.rest.iter().rposition(|&byte| byte == b'\n') {
                let whole: Vec<u8> = self.rest.drain(..=end).collect();
                self.lines.extend(String::from_utf8_lossy(&whole).lines().map(str::to_owned));
            }
            if self.rest.len() > LONGEST_LINE {
                self.rest.clear();
            }
        }
        self.lines.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::Ended;

    fn child(script: &str) -> TalkingChild {
        let command = ["sh", "-c", script].map(str::to_owned).to_vec();
        TalkingChild::start(&Launch { command, environment: Vec::new() }).unwrap()
    }

    const PATIENCE: Duration = Duration::from_secs(20);

    #[test]
    fn one_that_prints_without_end_is_left_when_patience_is() {
        let mut child = child("yes");
        assert_eq!(child.next(Duration::from_millis(300)), None);
        child.finish();
    }

    #[test]
    fn tasks_go_in_and_answers_come_out_and_nothing_else_counts() {
        let mut child = child(
            r#"echo noise; while read task; do echo "$UNHANG_CHILD_NONCE did $task"; echo "guessed did it"; done; exit 3"#,
        );
        child.give("one").unwrap();
        assert_eq!(child.next(PATIENCE).as_deref(), Some("did one"));
        child.give("two").unwrap();
        assert_eq!(child.next(PATIENCE).as_deref(), Some("did two"));
        child.tasks.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(child.next(PATIENCE), None, "it ended");
        let outcome = child.finish();
        assert_eq!(outcome.ended, Ended::Exited(3));
        assert_eq!(outcome.other_words().collect::<Vec<_>>(), ["noise", "guessed did it", "guessed did it"]);
    }

    #[test]
    fn silence_has_an_end_and_so_has_the_child() {
        let mut child = child(r#"echo "$UNHANG_CHILD_NONCE here"; exec sleep 600"#);
        assert_eq!(child.next(PATIENCE).as_deref(), Some("here"));
        assert_eq!(child.next(Duration::from_millis(200)), None);
        assert_eq!(child.finish().ended, Ended::TimedOut);
    }
}
