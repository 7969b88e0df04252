//! The messages between the prober and its children: one JSON value per line, over a socket that is the child's
//! standard input, in both directions. Standard output and error stay free for whatever libraries print.
//!
//! ```text
//! child    {"say":"ready","about":"torch 2.2.2+rocm5.7 on cuda"}
//! prober   {"id":1,"problem":"forward:f32:…","engine":"miopen","variant":"gemm"}
//! child    {"say":"stage","id":1,"stage":"compile"}
//! child    {"say":"heartbeat"}
//! child    {"say":"stage","id":1,"stage":"run"}
//! child    {"say":"answer","id":1,"ended":"computed","seconds":0.0021,"first_seconds":1.3,"relative_error":1e-7,"not_numbers":0}
//! ```
//!
//! A request with `"canary": true` asks the child to show that the device computes at all. When the socket closes,
//! the child ends. The prober believes nothing else from a child. A line that is not one of these, is too long, or
//! answers something not asked is garbage, and the prober ends the child.

use std::fmt;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;

use serde::{Deserialize, Serialize};

/// The longest line that is accepted from a child.
const LONGEST_LINE: usize = 64 * 1024;
/// The most data that a child may send during one attempt.
const MOST_BYTES: usize = 1024 * 1024;

/// The stage of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stage {
    /// The child starts: Python, torch, the GPU's runtime.
    Start,
    /// Makes the operands and the correct result on the CPU. The engine is not involved.
    Prepare,
    /// Kernels are compiled and loaded.
    Compile,
    /// The library searches for the fastest kernel, and runs candidates.
    Find,
    /// The convolution runs.
    Run,
    /// Compares the results on the CPU. The engine is not involved.
    Check,
}

impl Stage {
    /// The name in text.
    pub const fn name(self) -> &'static str {
        match self {
            Stage::Start => "start",
            Stage::Prepare => "prepare",
            Stage::Compile => "compile",
            Stage::Find => "find",
            Stage::Run => "run",
            Stage::Check => "check",
        }
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A request to a child.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// The number that the answer repeats.
    pub id: u64,
    /// The convolution's key.
    pub problem: String,
    /// The engine.
    pub engine: String,
    /// The profile or solver family, or empty. The child's environment is already set for it.
    pub variant: String,
    /// Asks only to show that the device computes at all.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub canary: bool,
}

/// How an attempt ended, as the child reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CameBack {
    /// It has a result; the prober decides whether that is right.
    Computed,
    /// The engine declined.
    Unsupported,
    /// It failed with an error.
    Error,
}

/// A message from a child.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "kebab-case")]
pub enum Message {
    /// It has started and waits for requests.
    Ready {
        /// A description of the child.
        #[serde(default)]
        about: String,
    },
    /// It is alive. Extends no deadline.
    Heartbeat,
    /// The attempt has reached a stage.
    Stage {
        /// The request's number.
        id: u64,
        /// The stage that begins.
        stage: Stage,
    },
    /// The attempt ended.
    Answer(Answer),
}

/// How an attempt ended, with its figures.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// The request's number.
    pub id: u64,
    /// How it ended.
    pub ended: CameBack,
    /// Seconds when warm.
    #[serde(default)]
    pub seconds: Option<f64>,
    /// Seconds of the first call, including compilation and search.
    #[serde(default)]
    pub first_seconds: Option<f64>,
    /// Largest error of one finite value, relative to the largest value of the CPU engine's result.
    #[serde(default)]
    pub relative_error: Option<f64>,
    /// The number of values that are not finite where the CPU engine's are.
    #[serde(default)]
    pub not_numbers: u64,
    /// Further details.
    #[serde(default)]
    pub detail: String,
}

/// What arrived on a socket, without waiting for it.
#[derive(Debug, PartialEq)]
pub(crate) enum Incoming {
    /// A line with a message.
    Message(Message),
    /// Part of a line; more may follow at once.
    Part,
    /// Nothing more for now.
    Nothing,
    /// The other side has closed the socket.
    Closed,
    /// Something that is not a message.
    Garbage(String),
}

/// The prober's end of the socket.
pub(crate) struct Wire {
    socket: UnixStream,
    buffer: Vec<u8>,
    read: usize,
}

impl Wire {
    pub(crate) fn new(socket: UnixStream) -> std::io::Result<Wire> {
        socket.set_nonblocking(true)?;
        Ok(Wire { socket, buffer: Vec::new(), read: 0 })
    }

    pub(crate) fn socket(&self) -> &UnixStream {
        &self.socket
    }

    /// Sends a request. A child that accepts requests has room for one, so this never waits.
    pub(crate) fn send(&mut self, request: &Request) -> std::io::Result<()> {
        self.read = 0;
        let mut line = serde_json::to_vec(request)?;
        line.push(b'\n');
        match self.socket.write(&line)? {
            written if written == line.len() => Ok(()),
            _ => Err(ErrorKind::WouldBlock.into()),
        }
    }

    /// The next message. Reads at most once, so that a flood cannot keep the caller from its clock.
    pub(crate) fn receive(&mut self) -> Incoming {
        if let Some(message) = self.take_line() {
            return message;
        }
        let mut chunk = [0u8; 16 * 1024];
        match self.socket.read(&mut chunk) {
            Ok(0) => Incoming::Closed,
            Ok(count) => {
                self.read += count;
                self.buffer.extend_from_slice(&chunk[..count]);
                if self.read > MOST_BYTES {
                    return Incoming::Garbage(format!("more than {MOST_BYTES} bytes without an answer"));
                }
                self.take_line().unwrap_or(Incoming::Part)
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Incoming::Nothing,
            Err(_) => Incoming::Closed,
        }
    }

    fn take_line(&mut self) -> Option<Incoming> {
        let Some(end) = self.buffer.iter().position(|&byte| byte == b'\n') else {
            if self.buffer.len() > LONGEST_LINE {
                return Some(Incoming::Garbage(format!("a line of more than {LONGEST_LINE} bytes")));
            }
            return None;
        };
        let line: Vec<u8> = self.buffer.drain(..=end).collect();
        Some(match serde_json::from_slice(&line) {
            Ok(message) => Incoming::Message(message),
            Err(_) => {
                let text: String = String::from_utf8_lossy(&line).trim_end().chars().take(120).collect();
                Incoming::Garbage(format!("{text:?}"))
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wire(bytes: &[u8]) -> (Wire, UnixStream) {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(bytes).unwrap();
        (Wire::new(ours).unwrap(), theirs)
    }

    #[test]
    fn lines_become_messages() {
        let (mut wire, theirs) =
            wire(b"{\"say\":\"ready\"}\n{\"say\":\"stage\",\"id\":1,\"stage\":\"find\"}\n{\"say\"");
        assert_eq!(wire.receive(), Incoming::Message(Message::Ready { about: String::new() }));
        assert_eq!(wire.receive(), Incoming::Message(Message::Stage { id: 1, stage: Stage::Find }));
        // The beginning of the third arrived with the others.
        assert_eq!(wire.receive(), Incoming::Nothing);
        drop(theirs);
        assert_eq!(wire.receive(), Incoming::Closed);
    }

    #[test]
    fn what_is_no_message_is_garbage() {
        for bytes in [
            &b"hello\n"[..],
            b"\n",
            b"[]\n",
            b"{\"say\":\"sing\"}\n",
            b"\xff\xfe\n",
            b"{\"say\":\"answer\",\"id\":1}\n",
            b"{\"say\":\"answer\",\"id\":1,\"ended\":\"hangs\"}\n",
            b"{\"say\":\"answer\",\"id\":1,\"ended\":\"computed\",\"seconds\":NaN}\n",
        ] {
            assert!(matches!(wire(bytes).0.receive(), Incoming::Garbage(_)), "{}", String::from_utf8_lossy(bytes));
        }
    }

    #[test]
    fn neither_a_long_line_nor_a_long_speech_is_taken() {
        for (said, found) in [("x", "a line of more"), ("{\"say\":\"heartbeat\"}\n", "without an answer")] {
            let (mut wire, mut theirs) = wire(b"");
            let speech = said.repeat(1000);
            let speaker = std::thread::spawn(move || while theirs.write_all(speech.as_bytes()).is_ok() {});
            let garbage = loop {
                if let Incoming::Garbage(text) = wire.receive() {
                    break text;
                }
            };
            assert!(garbage.contains(found), "{garbage}");
            drop(wire);
            speaker.join().unwrap();
        }
    }
}
