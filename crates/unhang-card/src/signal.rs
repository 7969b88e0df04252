//! Signals, as the HSA runtime lays them out in memory.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::kfd::events::Events;
use crate::kfd::memory::{AccessFault, PageTable};

/// Bytes of a signal.
const SIZE: u64 = 64;

/// The card's clock runs at 100 MHz.
pub(crate) const NANOSECONDS_A_TICK: u64 = 10;

/// A signal that a card can see.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Signal {
    host: *mut u8,
}

impl Signal {
    /// The signal at an address of the card; nothing at zero.
    pub(crate) fn at(table: &PageTable, address: u64) -> Result<Option<Signal>, AccessFault> {
        if address == 0 {
            return Ok(None);
        }
        if !address.is_multiple_of(8) {
            return Err(AccessFault { address, is_read_only: false });
        }
        Ok(Some(Signal { host: table.host(address, SIZE, true)? }))
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: `at` has made sure of 64 bytes at a multiple of 8, in memory that lives as long as its maker's page
        // table. The runtime accesses it by atomics too.
        unsafe { AtomicU64::from_ptr(self.host.add(offset).cast()) }
    }

    /// Its value.
    pub(crate) fn value(&self) -> i64 {
        self.word(8).load(Ordering::Acquire) as i64
    }

    /// Stores a value and wakes who waits.
    pub(crate) fn store(&self, value: i64, events: &Events) {
        self.word(8).store(value as u64, Ordering::Release);
        self.wake(events);
    }

    /// Subtracts one, with the times of the packet, and wakes who waits.
    pub(crate) fn complete(&self, start: u64, end: u64, events: &Events) {
        self.word(32).store(start, Ordering::Relaxed);
        self.word(40).store(end, Ordering::Relaxed);
        // The mailbox is read before the value is stored: after that the signal may be freed.
        let (mailbox, event) = self.event();
        // SAFETY: as in `word`; the value is signed.
        unsafe { AtomicI64::from_ptr(self.host.add(8).cast()) }.fetch_sub(1, Ordering::AcqRel);
        notify(mailbox, event, events);
    }

    fn wake(&self, events: &Events) {
        let (mailbox, event) = self.event();
        notify(mailbox, event, events);
    }

    fn event(&self) -> (u64, u32) {
        (self.word(16).load(Ordering::Relaxed), self.word(24).load(Ordering::Relaxed) as u32)
    }
}

/// Raises a signal's event, as the card's interrupt does. The mailbox only says whether there is one: the driver would
/// use it to find the event, which is known here.
fn notify(mailbox: u64, event: u32, events: &Events) {
    if mailbox != 0 {
        // A destroyed event has no waiters.
        let _ = events.raise(event);
    }
}

/// Nanoseconds since the machine was started, the clock of the driver's counters.
pub(crate) fn nanoseconds() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure is ours.
    if unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &mut time) } != 0 {
        return SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |it| it.as_nanos() as u64);
    }
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The card's clock.
pub(crate) fn ticks() -> u64 {
    nanoseconds() / NANOSECONDS_A_TICK
}
