//! Interrupts that kernels send: a kernel writes an event's number into its slot of the signal page and sends a message.
//!
//! That is how `printf` and other services of the host are asked for in the middle of a kernel. Which event was meant the
//! driver finds in the page, and so does this: while kernels run, a thread looks through the slots.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use super::abi::EVENT_LIMIT;
use super::events::Events;
use super::memory::Stretch;
use crate::threads::without_signals;

/// A slot's value while its event is not signalled.
const NOT_SIGNALLED: u64 = u64::MAX;
/// How often slots are checked while kernels run.
const LOOK_EVERY: Duration = Duration::from_micros(300);

/// The signal page of a process.
#[derive(Default)]
pub(crate) struct Interrupts {
    page: OnceLock<Arc<Stretch>>,
    running: Mutex<usize>,
    /// Whether the scanning thread was started. A forked child is a separate process with its own value.
    has_started: AtomicBool,
    changed: Condvar,
}

impl Interrupts {
    /// Sets the page that the runtime has allocated. Later ones are ignored, as by the driver.
    pub(crate) fn set_page(&self, page: Arc<Stretch>) {
        if page.size() >= u64::from(EVENT_LIMIT) * 8 && self.page.set(page).is_ok() {
            for slot in 0..EVENT_LIMIT {
                if let Some(slot) = self.slot(slot) {
                    slot.store(NOT_SIGNALLED, Ordering::Relaxed);
                }
            }
        }
    }

    fn slot(&self, id: u32) -> Option<&AtomicU64> {
        let page = self.page.get().filter(|_| id < EVENT_LIMIT)?;
        // SAFETY: the page has a slot of eight bytes for every event, is aligned, and lives as long as this.
        Some(unsafe { AtomicU64::from_ptr(page.host().cast::<u64>().add(id as usize)) })
    }

    /// Clears an event's slot: it was raised.
    pub(crate) fn clear(&self, id: u32) {
        if let Some(slot) = self.slot(id) {
            slot.store(NOT_SIGNALLED, Ordering::Release);
        }
    }

    /// Watches the page while a kernel runs, and raises the events that it sends.
    pub(crate) fn while_running<T>(&'static self, events: &'static Events, run: impl FnOnce() -> T) -> T {
        if self.page.get().is_none() {
            return run();
        }
        // No lock: a fork while another thread holds it would leave the child's copy held for ever.
        if !self.has_started.swap(true, Ordering::SeqCst) {
            let watch = move || self.watch(events);
            // Without the thread only messages from kernels are lost.
            let _ = without_signals(|| std::thread::Builder::new().name("card interrupts".into()).spawn(watch));
        }
        self.add(1);
        let result = run();
        self.add(-1);
        result
    }

    fn add(&self, change: isize) {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        *running = running.saturating_add_signed(change);
        self.changed.notify_one();
    }

    fn watch(&self, events: &Events) {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            running = match *running {
                0 => self.changed.wait(running).unwrap_or_else(PoisonError::into_inner),
                _ => self.changed.wait_timeout(running, LOOK_EVERY).unwrap_or_else(PoisonError::into_inner).0,
            };
            for id in 1..EVENT_LIMIT {
                if let Some(slot) = self.slot(id)
                    && slot.load(Ordering::Relaxed) != NOT_SIGNALLED
                {
                    slot.store(NOT_SIGNALLED, Ordering::Release);
                    let _ = events.raise(id);
                }
            }
        }
    }
}
