//! How intents and verdicts reach the store: all that workers have to say at one moment goes there in one step.
//!
//! An attempt may begin when its name is on the disk for good, and that takes a disk some milliseconds. While it does,
//! other workers come and wait; they share the next step. So one worker pays the disk's price for each attempt, and many
//! pay it together.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use unhang_evidence::{Intent, IntentId, Record, Store};

/// A step that takes this long was ended by its deadline, not by the store.
const STUCK: Duration = Duration::from_secs(4);

/// What a worker has to say: how its last attempt ended, and what it is about to try.
struct Step {
    ended: Option<(Option<IntentId>, Record)>,
    next: Option<Intent>,
    reply: mpsc::Sender<Option<IntentId>>,
}

/// A worker's way to the recorder.
#[derive(Clone)]
pub(crate) struct Recorder {
    steps: mpsc::Sender<Step>,
}

impl Recorder {
    /// Returns when both are on the disk, or cannot be brought there. The name of the intent, if it has one.
    pub(crate) fn advance(&self, ended: Option<(Option<IntentId>, Record)>, next: Option<Intent>) -> Option<IntentId> {
        let (reply, answer) = mpsc::channel();
        self.steps.send(Step { ended, next, reply }).ok()?;
        answer.recv().ok().flatten()
    }
}

/// A recorder, and what serves it until every copy of it is gone.
pub(crate) fn recorder(store: &Store) -> (Recorder, impl FnOnce() -> Vec<Record> + Send) {
    let (steps, receiver) = mpsc::channel();
    (Recorder { steps }, move || serve(store, &receiver))
}

/// Serves until all workers are gone; returns what could not be written.
fn serve(store: &Store, steps: &mpsc::Receiver<Step>) -> Vec<Record> {
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
        // A store that did not answer twice is not asked again: nobody waits for it at every attempt.
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
