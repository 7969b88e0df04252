//! Queues: one thread for each, so that they make progress beside each other.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::abi::{CreateQueue, QUEUE_AQL, QUEUE_SDMA, QUEUE_SDMA_XGMI, UpdateQueue};
use super::memory::{DOORBELLS, is_mapped};
use crate::process::Process;
use crate::{Errno, aql, sdma};

/// How many queues a process may have; each has a doorbell of eight bytes.
const MOST: u32 = (DOORBELLS / 8) as u32;

/// What a queue's thread and the driver's calls share.
#[derive(Debug)]
pub struct Control {
    /// The queue is to end.
    pub stop: AtomicBool,
    /// The queue may be processed; an update to no share of the card takes that away.
    pub active: AtomicBool,
}

/// Where a queue is in the process, as the runtime said when it made it.
#[derive(Clone, Copy, Debug)]
pub struct Place {
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
unsafe impl Send for Place {}

/// The parts of a queue that its thread works with.
pub struct Queue {
    /// The process.
    pub process: &'static Process,
    /// Where it is.
    pub place: Place,
    /// What the driver wants of it.
    pub control: Arc<Control>,
    /// The driver's number.
    pub id: u32,
}

impl Queue {
    fn word(&self, address: *mut u64) -> &AtomicU64 {
        // SAFETY: the addresses of `place` were aligned and mapped when the queue was made, and the runtime keeps them
        // until the queue is destroyed, which waits for the thread that calls this.
        unsafe { AtomicU64::from_ptr(address) }
    }

    /// How far the card has read.
    pub fn read(&self) -> u64 {
        self.word(self.place.read).load(Ordering::Relaxed)
    }

    /// Says how far the card has read.
    pub fn advance(&self, to: u64) {
        self.word(self.place.read).store(to, Ordering::Release);
    }

    /// How far the program has written.
    pub fn written(&self) -> u64 {
        self.word(self.place.write).load(Ordering::Acquire)
    }

    /// The doorbell's last value.
    pub fn doorbell(&self) -> u64 {
        self.word(self.place.doorbell).load(Ordering::Acquire)
    }

    /// Whether the queue is to end.
    pub fn is_stopped(&self) -> bool {
        self.control.stop.load(Ordering::Relaxed)
    }

    /// Whether packets may be processed.
    pub fn may_run(&self) -> bool {
        self.control.active.load(Ordering::Relaxed) && !self.process.is_halted(self.place.card)
    }
}

/// What became of the packet at the front.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// It is done, or part of it.
    Done,
    /// Nothing to do, or not yet.
    Wait,
    /// The queue will not go on.
    Dead,
}

/// Processes a queue until it is destroyed.
pub fn serve(queue: &Queue, mut step: impl FnMut(&Queue) -> Step) {
    let mut idle = Idle::default();
    let mut is_dead = false;
    while !queue.is_stopped() {
        let result = if is_dead || !queue.may_run() { Step::Wait } else { step(queue) };
        match result {
            Step::Done => idle = Idle::default(),
            Step::Wait => idle.pause(),
            Step::Dead => is_dead = true,
        }
    }
}

/// Waits longer the longer nothing happens: a doorbell is memory, and nothing tells when it is written.
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

struct Running {
    control: Arc<Control>,
    thread: JoinHandle<()>,
    card: usize,
    kind: u32,
}

/// The queues of a process.
#[derive(Default)]
pub struct Queues {
    running: Mutex<HashMap<u32, Running>>,
}

impl Queues {
    fn lock(&self) -> MutexGuard<'_, HashMap<u32, Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a queue.
    pub fn create(&self, process: &'static Process, arguments: &mut CreateQueue) -> Result<(), Errno> {
        let card = process.card(arguments.gpu_id)?;
        let ring_size = u64::from(arguments.ring_size);
        let pointers = [arguments.read_pointer, arguments.write_pointer];
        let is_sdma = matches!(arguments.kind, QUEUE_SDMA | QUEUE_SDMA_XGMI);
        if arguments.percentage > 100
            || arguments.priority > 15
            || !ring_size.is_power_of_two()
            || ring_size < 1024
            || !(is_sdma || arguments.kind == QUEUE_AQL)
            || pointers.iter().any(|pointer| *pointer == 0 || !pointer.is_multiple_of(8))
            || !arguments.ring.is_multiple_of(64)
        {
            return Err(libc::EINVAL);
        }
        if !is_mapped(arguments.ring & !0xfff, ring_size)
            || pointers.iter().any(|pointer| !is_mapped(pointer & !0xfff, 8))
        {
            return Err(libc::EFAULT);
        }
        let mut running = self.lock();
        let same = running.values().filter(|it| it.card == card && it.kind != QUEUE_AQL).count();
        if is_sdma && same >= process.cards[card].sdma_queues as usize {
            return Err(libc::ENOMEM);
        }
        let id = (0..MOST).find(|id| !running.contains_key(id)).ok_or(libc::ENOMEM)?;
        let (offset, doorbells) = process.memory.doorbells(card);
        // Slots of different cards differ too; ids are the process's.
        let doorbell = doorbells.host().cast::<u64>().wrapping_add(id as usize);
        let control =
            Arc::new(Control { stop: AtomicBool::new(false), active: AtomicBool::new(arguments.percentage > 0) });
        let place = Place {
            card,
            ring: arguments.ring as *mut u8,
            ring_size,
            read: arguments.read_pointer as *mut u64,
            write: arguments.write_pointer as *mut u64,
            doorbell,
        };
        let queue = Queue { process, place, control: control.clone(), id };
        // No packet yet: for AQL the last packet's number, for SDMA the end of what was written.
        queue.word(doorbell).store(if is_sdma { 0 } else { u64::MAX }, Ordering::Release);
        let thread = without_signals(|| {
            std::thread::Builder::new().name(format!("card queue {id}")).spawn(move || match is_sdma {
                true => sdma::serve(&queue),
                false => aql::serve(&queue),
            })
        })
        .map_err(|_| libc::ENOMEM)?;
        running.insert(id, Running { control, thread, card, kind: arguments.kind });
        arguments.queue_id = id;
        arguments.doorbell_offset = offset + u64::from(id) * 8;
        Ok(())
    }

    /// Ends a queue and waits until its thread has let go of the program's memory.
    pub fn destroy(&self, id: u32) -> Result<(), Errno> {
        let queue = self.lock().remove(&id).ok_or(libc::EINVAL)?;
        queue.control.stop.store(true, Ordering::Release);
        // The thread looks at `stop` between packets and the emulator while a kernel runs.
        let _ = queue.thread.join();
        Ok(())
    }

    /// Changes a queue's share: none of the card stops it.
    pub fn update(&self, arguments: &UpdateQueue) -> Result<(), Errno> {
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
    pub fn has(&self, id: u32) -> bool {
        self.lock().contains_key(&id)
    }
}

/// Starts a thread that takes no signals: they are the program's.
pub fn without_signals<T>(start: impl FnOnce() -> T) -> T {
    // SAFETY: the sets are ours, and the mask that was there is put back.
    unsafe {
        let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        let result = start();
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        result
    }
}
