//! What all children written in Rust share: how requests arrive, how answers leave, and how results are compared.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::process::{DumpableBehavior, Signal, set_dumpable_behavior, set_parent_process_death_signal};

use crate::protocol::{Answer, CameBack, Message, Request, Stage};

/// How often a child reports that it is alive.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// A child's output channel. Lines from several threads do not mix.
#[derive(Debug, Clone)]
pub struct Speaker(Arc<Mutex<UnixStream>>);

impl Speaker {
    /// Sends one message.
    pub fn say(&self, message: &Message) -> std::io::Result<()> {
        let mut line = serde_json::to_vec(message)?;
        line.push(b'\n');
        self.say_bytes(&line)
    }

    /// Reports that an attempt has reached a stage.
    pub fn stage(&self, id: u64, stage: Stage) -> std::io::Result<()> {
        self.say(&Message::Stage { id, stage })
    }

    /// Sends any value.
    pub(crate) fn say_bytes(&self, bytes: &[u8]) -> std::io::Result<()> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).write_all(bytes)
    }
}

/// The variable that tells a child which process started it.
pub(crate) const STARTED_BY: &str = "UNHANG_CHILD_OF";

/// In a child: ends this process with the one that started it, however that ends, and at once if it has ended already.
/// What hangs on a GPU must not be left behind. A deliberate crash needs no core dump.
pub fn end_with_parent() {
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    let parent = std::env::var(STARTED_BY).ok().and_then(|text| text.parse::<u32>().ok());
    // A process that has ended may not have been reaped yet.
    if let Some(parent) = parent
        && matches!(unhang_guard::process::state(parent), None | Some('Z' | 'X'))
    {
        eprintln!("unhang: process {parent}, which started this one, has ended");
        std::process::exit(1);
    }
}

/// Serves requests on the socket until it is closed. `start` does the slow part before the first request and
/// describes this child; heartbeats begin before it.
pub fn serve(
    socket: UnixStream,
    start: impl FnOnce() -> String,
    mut answer: impl FnMut(&Request, &Speaker) -> std::io::Result<Answer>,
) -> std::io::Result<()> {
    end_with_parent();
    let requests = BufReader::new(socket.try_clone()?);
    let speaker = Speaker(Arc::new(Mutex::new(socket)));
    let heart = speaker.clone();
    // Ends with the process, or when nobody listens any more.
    std::thread::spawn(move || {
        loop {
            std::thread::sleep(HEARTBEAT);
            if heart.say(&Message::Heartbeat).is_err() {
                return;
            }
        }
    });
    speaker.say(&Message::Ready { about: start() })?;
    for line in requests.lines() {
        let request: Request = serde_json::from_str(&line?)?;
        let answer = answer(&request, &speaker)?;
        speaker.say(&Message::Answer(answer))?;
    }
    Ok(())
}

impl Answer {
    /// An answer that contains only how the attempt ended.
    pub fn new(id: u64, ended: CameBack, detail: impl Into<String>) -> Answer {
        Answer {
            id,
            ended,
            seconds: None,
            first_seconds: None,
            relative_error: None,
            not_numbers: 0,
            detail: detail.into(),
        }
    }
}

/// Reproducible values between -1 and 1.
pub fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    (0..count).map(|_| (advance(&mut state) >> 40) as f32 / (1u32 << 23) as f32 - 1.0).collect()
}

/// The next state of a linear congruential generator; the upper bits are the good ones.
pub fn advance(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state
}

/// The largest error of the finite values, relative to the largest expected value, and the number of values that are
/// not finite.
pub fn compare(pairs: impl Iterator<Item = (f64, f64)> + Clone) -> (Option<f64>, u64) {
    let scale = pairs.clone().fold(f64::MIN_POSITIVE, |largest, (_, expected)| largest.max(expected.abs()));
    let (mut worst, mut not_numbers) = (0.0f64, 0);
    for (found, expected) in pairs {
        match (found - expected).abs() / scale {
            error if error.is_finite() => worst = worst.max(error),
            _ => not_numbers += 1,
        }
    }
    (Some(worst), not_numbers)
}
