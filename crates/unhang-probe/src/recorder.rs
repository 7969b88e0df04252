//! How intents and verdicts reach the store: everything that workers report at one moment is written in one step.
//!
//! An attempt may begin once its name is safely on disk, which takes some milliseconds. Meanwhile other workers
//! arrive and wait; they share the next step. One worker pays for the disk at each attempt; many workers share the
//! cost.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use unhang_evidence::{Intent, IntentId, Record, Store};

/// A step that takes this long ended at its deadline, not because the store answered.
const STUCK: Duration = Duration::from_secs(4);

/// A worker's message: how its last attempt ended, and what it is about to try.
struct RecorderStep {
    ended: Option<(Option<IntentId>, Record)>,
    next: Option<Intent>,
    reply: mpsc::Sender<Option<IntentId>>,
}

/// A worker's way to the recorder.
#[derive(Clone)]
pub(crate) struct Recorder {
    steps: mpsc::Sender<RecorderStep>,
}

impl Recorder {
    /// Returns when both are on disk, or cannot be written. Also returns the intent's name, if it has one.
    pub(crate) fn advance(&self, ended: Option<(Option<IntentId>, Record)>, next: Option<Intent>) -> Option<IntentId> {
        let (reply, answer) = mpsc::channel();
        self.steps.send(RecorderStep { ended, next, reply }).ok()?;
        answer.recv().ok().flatten()
    }
}

/// A recorder, and the loop that serves it until every copy of it is gone.
pub(crate) fn recorder(store: &Store) -> (Recorder, impl FnOnce() -> Vec<Record> + Send) {
    let (steps, receiver) = mpsc::channel();
    (Recorder { steps }, move || serve(store, &receiver))
}

/// Serves until all workers are gone. Returns what could not be written.
fn serve(store: &Store, steps: &mpsc::Receiver<RecorderStep>) -> Vec<Record> {
    let mut backlog: Vec<(Option<IntentId>, Record)> = Vec::new();
    let mut stuck = 0;
    while let Ok(first) = steps.recv() {
        let (mut intents, mut askers, mut others) = (Vec::new(), Vec::new(), Vec::new());
        for step in std::iter::once(first).chain(steps.try_iter()) {
            backlog.extend(step.ended);
            match step.next {
                Some(intent) => {
                    intents.push(intent);
                    askers.push(step.reply);
                }
                None => others.push(step.reply),
            }
        }
        let began = Instant::now();
        // A store that did not answer twice is not asked again, so that workers do not wait for it at every attempt.
        let written = if stuck < 2 { store.advance(backlog.clone(), intents) } else { None };
        match written {
            Some(ids) => {
                backlog.clear();
                stuck = 0;
                for (asker, id) in askers.into_iter().zip(ids) {
                    let _ = asker.send(Some(id));
                }
            }
            None => {
                if began.elapsed() > STUCK {
                    stuck += 1;
                }
                for asker in askers {
                    let _ = asker.send(None);
                }
            }
        }
        for other in others {
            let _ = other.send(None);
        }
    }
    if !backlog.is_empty() && store.advance(backlog.clone(), Vec::new()).is_some() {
        backlog.clear();
    }
    backlog.into_iter().map(|(_, record)| record).collect()
}
