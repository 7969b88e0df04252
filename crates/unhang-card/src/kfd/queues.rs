//! The queues of a process: one thread each, so that they make progress in parallel.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use super::abi::UpdateQueue;
use crate::Errno;

/// The state shared by a queue's thread and the driver's calls.
#[derive(Debug)]
pub(crate) struct Control {
    /// The queue is to end.
    pub stop: AtomicBool,
    /// Whether the queue may be processed; an update to 0 % of the card stops it.
    pub active: AtomicBool,
}

/// A queue that there is.
pub(crate) struct Running {
    /// The state shared by its thread and the driver's calls.
    pub control: Arc<Control>,
    /// Its thread.
    pub thread: JoinHandle<()>,
    /// The card.
    pub card: usize,
    /// The runtime's type for it.
    pub kind: u32,
}

/// The queues of a process.
#[derive(Default)]
pub(crate) struct Queues {
    running: Mutex<HashMap<u32, Running>>,
}

impl Queues {
    /// The queues, by the driver's number.
    pub(crate) fn lock(&self) -> MutexGuard<'_, HashMap<u32, Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends a queue and waits until its thread no longer uses the program's memory.
    pub(crate) fn destroy(&self, id: u32) -> Result<(), Errno> {
        let queue = self.lock().remove(&id).ok_or(libc::EINVAL)?;
        queue.control.stop.store(true, Ordering::Release);
        // The thread checks `stop` between packets, and the emulator while a kernel runs.
        let _ = queue.thread.join();
        Ok(())
    }

    /// Changes a queue's share of the card; 0 stops it.
    pub(crate) fn update(&self, arguments: &UpdateQueue) -> Result<(), Errno> {
        if arguments.percentage > 100 || arguments.priority > 15 {
            return Err(libc::EINVAL);
        }
        let running = self.lock();
        let queue = running.get(&arguments.queue_id).ok_or(libc::EINVAL)?;
        let is_active = arguments.percentage > 0 && arguments.ring != 0 && arguments.ring_size != 0;
        queue.control.active.store(is_active, Ordering::Release);
        Ok(())
    }

    /// Whether there is such a queue.
    pub(crate) fn has(&self, id: u32) -> bool {
        self.lock().contains_key(&id)
    }
}
