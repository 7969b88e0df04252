//! A queue from its thread's view, and the thread's loop.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::kfd::queues::Control;
use crate::process::Process;

/// The addresses of a queue, which the runtime gave when it created it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueuePlace {
    /// The card.
    pub card: usize,
    /// The ring of packets.
    pub ring: *mut u8,
    /// Its size in bytes, a power of two.
    pub ring_size: u64,
    /// How far the card has read.
    pub read: *mut u64,
    /// How far the program has written.
    pub write: *mut u64,
    /// The doorbell.
    pub doorbell: *mut u64,
}

// SAFETY: addresses in memory that the runtime keeps until it has destroyed the queue; they are accessed by atomics.
unsafe impl Send for QueuePlace {}

/// The parts of a queue that its thread uses.
pub(crate) struct Queue {
    /// The process.
    pub process: &'static Process,
    /// Where it is.
    pub place: QueuePlace,
    /// The driver's orders for it.
    pub control: Arc<Control>,
    /// The driver's number.
    pub id: u32,
}

impl Queue {
    pub(crate) fn word(&self, address: *mut u64) -> &AtomicU64 {
        // SAFETY: the addresses of `place` were aligned and mapped when the queue was made. The runtime keeps them
        // until the queue is destroyed, which waits for the thread that calls this.
        unsafe { AtomicU64::from_ptr(address) }
    }

    /// How far the card has read.
    pub(crate) fn read(&self) -> u64 {
        self.word(self.place.read).load(Ordering::Relaxed)
    }

    /// Publishes how far the card has read.
    pub(crate) fn advance(&self, to: u64) {
        self.word(self.place.read).store(to, Ordering::Release);
    }

    /// How far the program has written.
    pub(crate) fn written(&self) -> u64 {
        self.word(self.place.write).load(Ordering::Acquire)
    }

    /// The doorbell's last value.
    pub(crate) fn doorbell(&self) -> u64 {
        self.word(self.place.doorbell).load(Ordering::Acquire)
    }

    /// Whether the queue must end.
    pub(crate) fn is_stopped(&self) -> bool {
        self.control.stop.load(Ordering::Relaxed)
    }

    /// Whether packets may be processed.
    pub(crate) fn may_run(&self) -> bool {
        self.control.active.load(Ordering::Relaxed) && !self.process.is_halted(self.place.card)
    }
}

/// The result of processing the packet at the front.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PacketStep {
    /// It is done, or part of it.
    Done,
    /// Nothing to do, or not yet.
    Wait,
    /// The queue will not go on.
    Dead,
}

/// Processes a queue until it is destroyed.
pub(crate) fn serve(queue: &Queue, mut step: impl FnMut(&Queue) -> PacketStep) {
    let mut idle = Idle::default();
    let mut is_dead = false;
    while !queue.is_stopped() {
        let result = if is_dead || !queue.may_run() { PacketStep::Wait } else { step(queue) };
        match result {
            PacketStep::Done => idle = Idle::default(),
            PacketStep::Wait => idle.pause(),
            PacketStep::Dead => is_dead = true,
        }
    }
}

/// Waits longer the longer nothing happens: a doorbell is plain memory, so writes to it must be polled.
#[derive(Default)]
struct Idle {
    rounds: u32,
    since: Option<Instant>,
}

impl Idle {
    fn pause(&mut self) {
        self.rounds += 1;
        if self.rounds < 50 {
            std::hint::spin_loop();
            return;
        }
        let idle = self.since.get_or_insert_with(Instant::now).elapsed();
        let pause = match idle.as_millis() {
            0..10 => 30,
            10..500 => 200,
            _ => 1000,
        };
        std::thread::sleep(Duration::from_micros(pause));
    }
}
