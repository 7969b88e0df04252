//! The queue from callers to the store's thread. It is bounded where work may be dropped, and the call path never
//! waits for it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rusqlite::Connection;

/// One operation on the file. It may run again after a failure.
pub(crate) type Work = Box<dyn FnMut(&Connection) -> rusqlite::Result<()> + Send>;

/// The most records that may wait; further ones are dropped and counted.
const CAPACITY: usize = 4096;

/// Messages for a person, each once.
#[derive(Default)]
pub(crate) struct Notices {
    messages: Mutex<Vec<String>>,
    pub(crate) dropped: AtomicU64,
}

impl Notices {
    /// Adds a message unless it is already there. Keeps only a few: a failing disk must not fill the memory.
    pub(crate) fn say(&self, message: String) {
        let mut messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        if messages.len() < 8 && !messages.contains(&message) {
            messages.push(message);
        }
    }

    pub(crate) fn all(&self) -> Vec<String> {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Work that waits for the store's thread.
#[derive(Default)]
pub(crate) struct Queue {
    state: Mutex<Backlog>,
    work_came: Condvar,
    work_done: Condvar,
}

#[derive(Default)]
struct Backlog {
    waiting: VecDeque<Work>,
    /// The thread has taken work out and has not finished it.
    busy: bool,
    closed: bool,
}

impl Queue {
    fn state(&self) -> MutexGuard<'_, Backlog> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds work that may be lost. Returns whether there was room.
    pub(crate) fn offer(&self, work: Work) -> bool {
        let mut state = self.state();
        if state.closed || state.waiting.len() >= CAPACITY {
            return false;
        }
        state.waiting.push_back(work);
        self.work_came.notify_one();
        true
    }

    /// Adds work that must not be lost. There is little of it: each item waits for an answer, or follows one that
    /// did.
    pub(crate) fn insist(&self, work: Work) -> bool {
        let mut state = self.state();
        if state.closed {
            return false;
        }
        state.waiting.push_back(work);
        self.work_came.notify_one();
        true
    }

    /// The next work, or `None` when the queue is closed and empty. For the store's thread.
    pub(crate) fn next(&self) -> Option<Work> {
        let mut state = self.state();
        state.busy = false;
        loop {
            if let Some(work) = state.waiting.pop_front() {
                state.busy = true;
                return Some(work);
            }
            self.work_done.notify_all();
            if state.closed {
                return None;
            }
            state = self.work_came.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits until all work added so far is done. Returns whether that was in time.
    pub(crate) fn wait_until_empty(&self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        let mut state = self.state();
        while state.busy || !state.waiting.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            state = self.work_done.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// Accepts no more work; waiting work is still done.
    pub(crate) fn close(&self) {
        self.state().closed = true;
        self.work_came.notify_all();
    }

    /// Drops the waiting work and returns its amount.
    pub(crate) fn clear(&self) -> usize {
        let mut state = self.state();
        let count = state.waiting.len();
        state.waiting.clear();
        count
    }
}

impl Notices {
    /// Counts what was not kept.
    pub(crate) fn count_dropped(&self, count: u64) {
        self.dropped.fetch_add(count, Ordering::Relaxed);
    }
}
