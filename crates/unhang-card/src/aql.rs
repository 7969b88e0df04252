//! The packet processor: executes packets of the architected queuing language, one after another.

use std::sync::atomic::{AtomicU16, Ordering, fence};

use serde_json::json;
use unhang_emulator as emulator;

use crate::executor::{DispatchEnd, Stop};
use crate::journal::Counter;
use crate::kfd::memory::{AccessFault, PageTable};
use crate::queue::{self, PacketStep, Queue};
use crate::queue_description::QueueDescription;
use crate::settings::Hazards;
use crate::signal::{Signal, ticks};

/// Bytes of a packet.
const PACKET: u64 = 64;

/// Packet types, in the low byte of the header.
const VENDOR: u8 = 0;
const INVALID: u8 = 1;
const DISPATCH: u8 = 2;
const BARRIER_AND: u8 = 3;
const BARRIER_OR: u8 = 5;
/// Vendor packets, by the byte behind the header: a barrier on a value, and an indirect buffer of PM4 commands.
const BARRIER_VALUE: u8 = 2;

/// LDS is allocated in units of this size (128 dwords on gfx10, as in LLVM), and a workgroup can access all of its last
/// unit: rocFFT reads there, past what it asked for.
const LDS_PIECE: u32 = 512;

/// What the packet processor reports to the queue's owner, in the queue's inactive signal.
mod error {
    pub(super) const SCRATCH_WAVE64: i64 = 1;
    pub(super) const DIMENSIONS: i64 = 2;
    pub(super) const GROUP_MEMORY: i64 = 4;
    pub(super) const CODE: i64 = 8;
    pub(super) const PACKET: i64 = 32;
    pub(super) const GROUP_SIZE: i64 = 64;
    pub(super) const SCRATCH_ONCE: i64 = 512;
    pub(super) const SCRATCH_WAVE32: i64 = 0x400;
    pub(super) const APERTURE: i64 = 0x2000_0000;
    pub(super) const ILLEGAL_INSTRUCTION: i64 = 0x4000_0000;
}

/// Processes a queue until it is destroyed.
pub(crate) fn serve(queue: &Queue) {
    let mut processor = Processor { waits_for_owner: false };
    queue::serve(queue, |queue| processor.step(queue));
}

/// The runtime's description of a queue.
fn description(queue: &Queue) -> QueueDescription {
    // SAFETY: the runtime gave the read index within its description when it made the queue. It keeps both until the
    // queue is destroyed, which waits for the thread that calls this.
    unsafe { QueueDescription::around(queue.place.read) }
}

struct Processor {
    /// An error that the owner can fix was reported: too little scratch.
    waits_for_owner: bool,
}

/// A packet as it was read from the ring.
struct Packet([u8; PACKET as usize]);

impl Packet {
    fn bytes<const N: usize>(&self, offset: usize) -> [u8; N] {
        std::array::from_fn(|byte| self.0[offset + byte])
    }
    fn u16(&self, offset: usize) -> u16 {
        u16::from_le_bytes(self.bytes(offset))
    }
    fn u32(&self, offset: usize) -> u32 {
        u32::from_le_bytes(self.bytes(offset))
    }
    fn u64(&self, offset: usize) -> u64 {
        u64::from_le_bytes(self.bytes(offset))
    }
}

impl Processor {
    fn step(&mut self, queue: &Queue) -> PacketStep {
        let doorbell = queue.doorbell();
        let read = queue.read();
        // Several threads may ring out of order; everything written counts once anybody has rung.
        if doorbell == u64::MAX || read > doorbell && read >= queue.written() {
            return PacketStep::Wait;
        }
        let slot = queue.place.ring.wrapping_add(((read * PACKET) & (queue.place.ring_size - 1)) as usize);
        // SAFETY: the ring is mapped and 64-byte aligned, and the slot is in it.
        let header = unsafe { AtomicU16::from_ptr(slot.cast()) };
        if header.load(Ordering::Acquire) as u8 == INVALID {
            return PacketStep::Wait;
        }
        // SAFETY: the program does not change a packet after it has written its header.
        let packet = Packet(unsafe { std::ptr::read_volatile(slot.cast()) });
        let table = queue.process.memory.table(queue.place.card);
        let start = ticks();
        match self.process(queue, &table, &packet, slot) {
            Ok(PacketStep::Done) => {}
            Ok(other) => return other,
            Err(fault) => {
                queue.process.journal.say_once(&format!(
                    "the packet processor of the emulated card cannot access {:#x}, which a packet names",
                    fault.address
                ));
                queue.process.memory_fault(queue.place.card, fault);
                return PacketStep::Dead;
            }
        }
        header.store(u16::from(INVALID), Ordering::Release);
        queue.advance(read + 1);
        let Ok(signal) = Signal::at(&table, packet.u64(56)) else { return PacketStep::Done };
        if let Some(signal) = signal {
            fence(Ordering::SeqCst);
            signal.complete(start, ticks(), &queue.process.events);
        }
        PacketStep::Done
    }

    fn process(
        &mut self,
        queue: &Queue,
        table: &PageTable,
        packet: &Packet,
        slot: *mut u8,
    ) -> Result<PacketStep, AccessFault> {
        // Check the completion signal before any work.
        Signal::at(table, packet.u64(56))?;
        let kind = packet.0[0];
        match (kind, packet.0[2]) {
            (DISPATCH, _) => self.dispatch(queue, table, packet, slot),
            (BARRIER_AND | BARRIER_OR, _) => {
                let mut signals = Vec::with_capacity(5);
                for place in 0..5 {
                    signals.extend(Signal::at(table, packet.u64(8 + 8 * place))?);
                }
                let mut done = signals.iter().map(|signal| signal.value() == 0);
                let passes =
                    signals.is_empty() || if kind == BARRIER_AND { done.all(|it| it) } else { done.any(|it| it) };
                Ok(if passes { PacketStep::Done } else { PacketStep::Wait })
            }
            (VENDOR, BARRIER_VALUE) => {
                let Some(signal) = Signal::at(table, packet.u64(8))? else { return Ok(PacketStep::Done) };
                let (value, mask) = (packet.u64(16) as i64, packet.u64(24) as i64);
                let current = signal.value() & mask;
                let passes = match packet.u32(32) {
                    0 => current == value,
                    1 => current != value,
                    2 => current < value,
                    _ => current >= value,
                };
                Ok(if passes { PacketStep::Done } else { PacketStep::Wait })
            }
            // An indirect buffer of PM4 commands: the runtime invalidates caches with it, and there are none.
            (VENDOR, 0 | 1) => Ok(PacketStep::Done),
            _ => Ok(self.report(queue, table, error::PACKET, "a packet of a type that the card does not have")),
        }
    }

    fn dispatch(
        &mut self,
        queue: &Queue,
        table: &PageTable,
        packet: &Packet,
        slot: *mut u8,
    ) -> Result<PacketStep, AccessFault> {
        let dispatch = match self.prepare(queue, table, packet, slot) {
            Ok(dispatch) => dispatch,
            Err(step) => return Ok(step),
        };
        let process = queue.process;
        // The owner maps private memory before it answers, which may have been after the caller took its table.
        let table = &process.memory.table(queue.place.card);
        let journal = &process.journal;
        journal.count(Counter::Dispatches, 1);
        let executor = &process.executors[queue.place.card];
        let run = || executor.run(table, &dispatch, &queue.control.stop);
        let step = match process.interrupts.while_running(&process.events, run) {
            DispatchEnd::Ended { kernel, instructions, beyond_local } => {
                journal.count(Counter::Instructions, instructions);
                journal.kernel(&kernel);
                if beyond_local > 0 {
                    journal.say_once(&format!(
                        "kernel {kernel} reaches beyond the LDS of its workgroup: it reads zeros there and what it writes is dropped, as on a card"
                    ));
                }
                journal.detail("dispatch", || {
                    let grid = dispatch.grid_size;
                    json!({ "card": queue.place.card, "queue": queue.id, "kernel": kernel, "grid": grid,
                        "workgroup": dispatch.workgroup_size, "instructions": instructions, "beyond_lds": beyond_local })
                });
                PacketStep::Done
            }
            DispatchEnd::Cancelled => PacketStep::Dead,
            DispatchEnd::Stopped { kernel, stop, message } => {
                journal.kernel(&kernel);
                self.stopped(queue, table, stop, &message)
            }
        };
        if step == PacketStep::Done && description(queue).uses_scratch_once() {
            // The owner takes the scratch back and clears the property; until then nothing else may use it.
            self.raise(queue, table, error::SCRATCH_ONCE);
            while self.inactive(queue, table) > 0 && !queue.is_stopped() {
                std::thread::yield_now();
            }
        }
        Ok(step)
    }

    /// What the program gets when its kernel stops.
    fn stopped(&mut self, queue: &Queue, table: &PageTable, stop: Stop, message: &str) -> PacketStep {
        let (process, card) = (queue.process, queue.place.card);
        let journal = &process.journal;
        match stop {
            Stop::Memory(fault) => {
                journal.say_once(message);
                process.memory_fault(card, fault);
            }
            Stop::Hazard => {
                journal.count(Counter::Hazards, 1);
                journal.write("hazard", json!({ "card": card, "message": message }));
                if process.hazards == Hazards::Hang {
                    journal.say_once(&format!("{message}; its queue hangs from here on, as asked"));
                } else {
                    journal.say_once(message);
                    process.reset(card);
                }
            }
            Stop::IllegalInstruction => {
                journal.count(Counter::Faults, 1);
                return self.report(queue, table, error::ILLEGAL_INSTRUCTION, message);
            }
            Stop::Aperture => {
                journal.count(Counter::Faults, 1);
                return self.report(queue, table, error::APERTURE, message);
            }
        }
        PacketStep::Dead
    }

    /// Checks a dispatch as the command processor does.
    fn prepare(
        &mut self,
        queue: &Queue,
        table: &PageTable,
        packet: &Packet,
        slot: *mut u8,
    ) -> Result<emulator::Packet, PacketStep> {
        let workgroup_size = [packet.u16(4), packet.u16(6), packet.u16(8)];
        let grid_size = [packet.u32(12), packet.u32(16), packet.u32(20)];
        let lanes: u64 = workgroup_size.iter().map(|size| u64::from(*size)).product();
        let (private, group, kernel_object) = (packet.u32(24), packet.u32(28), packet.u64(32));
        if lanes == 0 || grid_size.contains(&0) {
            return Err(self.report(queue, table, error::DIMENSIONS, "a dispatch with a size of zero"));
        }
        if lanes > 1024 {
            return Err(self.report(
                queue,
                table,
                error::GROUP_SIZE,
                "a dispatch with more than 1024 lanes a workgroup",
            ));
        }
        if group > 64 << 10 {
            return Err(self.report(queue, table, error::GROUP_MEMORY, "a dispatch with more than 64 KiB of LDS"));
        }
        let Ok(descriptor) = table.host(kernel_object, 64, false) else {
            return Err(self.report(queue, table, error::CODE, "a dispatch without code"));
        };
        if !kernel_object.is_multiple_of(64) {
            return Err(self.report(queue, table, error::CODE, "a dispatch of code that is not aligned"));
        }
        // SAFETY: 64 aligned bytes of the descriptor are there; the properties are at 56.
        let properties = unsafe { AtomicU16::from_ptr(descriptor.wrapping_add(56).cast()) }.load(Ordering::Relaxed);
        let is_wave32 = properties >> 10 & 1 == 1;
        let lanes_of_wave = if is_wave32 { 32 } else { 64 };
        // The owner writes the ring and then answers: in the other order an answer could be missed or asked for twice.
        if self.waits_for_owner && self.inactive(queue, table) != 0 {
            return Err(PacketStep::Wait);
        }
        let description = description(queue);
        let scratch = description.scratch();
        if u64::from(private) * lanes_of_wave > scratch.bytes_per_wave {
            return Err(self.ask_for_scratch(queue, table, is_wave32));
        }
        self.waits_for_owner = false;
        let [local_aperture, private_aperture] = description.apertures();
        Ok(emulator::Packet {
            packet_address: slot as u64,
            queue_address: description.address(),
            kernel_object,
            kernarg_address: packet.u64(40),
            workgroup_size,
            grid_size,
            private_segment_size: private,
            group_segment_size: group.next_multiple_of(LDS_PIECE),
            scratch,
            local_aperture,
            private_aperture,
        })
    }

    /// Reports once that a dispatch needs more scratch, and waits for the owner's answer.
    fn ask_for_scratch(&mut self, queue: &Queue, table: &PageTable, is_wave32: bool) -> PacketStep {
        let code = if is_wave32 { error::SCRATCH_WAVE32 } else { error::SCRATCH_WAVE64 };
        // The first request, or an answer with too little.
        self.waits_for_owner = true;
        self.raise(queue, table, code);
        PacketStep::Wait
    }

    /// Reports an error that ends the queue.
    fn report(&mut self, queue: &Queue, table: &PageTable, code: i64, message: &str) -> PacketStep {
        queue.process.journal.say_once(message);
        self.raise(queue, table, code);
        PacketStep::Dead
    }

    fn raise(&self, queue: &Queue, table: &PageTable, code: i64) {
        if let Ok(Some(signal)) = Signal::at(table, description(queue).inactive_signal()) {
            signal.store(code, &queue.process.events);
        }
    }

    fn inactive(&self, queue: &Queue, table: &PageTable) -> i64 {
        match Signal::at(table, description(queue).inactive_signal()) {
            Ok(Some(signal)) => signal.value(),
            // There is nobody to ask: the ring holds everything.
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    use super::*;
    use crate::kfd::abi::{MEMORY_USER, MEMORY_WRITABLE};
    use crate::kfd::memory::{PAGE, Request};
    use crate::kfd::queues::Control;
    use crate::process::Process;
    use crate::queue::QueuePlace;
    use crate::settings::CardSettings;

    /// Where the card sees the program's two pages: one with everything that the runtime makes, one of private memory.
    const SEEN: u64 = 0x1_0000_0000;
    /// Places in the first page.
    const RING: usize = 0x400;
    const SIGNAL: usize = 0x800;
    const KERNEL: usize = 0xc00;
    const CODE: usize = 0xd00;

    #[repr(C, align(4096))]
    struct Pages([u8; 2 * PAGE as usize]);

    impl Pages {
        fn put<const N: usize>(&mut self, at: usize, bytes: [u8; N]) {
            self.0[at..at + N].copy_from_slice(&bytes);
        }

        /// A queue's description, a packet, a signal whose value is 0, and a kernel that stores 42 in private memory.
        fn filled() -> &'static mut Pages {
            let pages = Box::leak(Box::new(Pages([0; 2 * PAGE as usize])));
            // One wave has a place of 1 KiB, in the second page.
            pages.put(140, (1u32 | 1 << 12).to_le_bytes());
            pages.put(160, (SEEN + PAGE).to_le_bytes());
            pages.put(192, (SEEN + SIGNAL as u64).to_le_bytes());
            pages.put(RING, u16::from(DISPATCH).to_le_bytes());
            for (axis, size) in [32u32, 1, 1].into_iter().enumerate() {
                pages.put(RING + 4 + 2 * axis, (size as u16).to_le_bytes());
                pages.put(RING + 12 + 4 * axis, size.to_le_bytes());
            }
            pages.put(RING + 24, 16u32.to_le_bytes());
            pages.put(RING + 32, (SEEN + KERNEL as u64).to_le_bytes());
            // In waves of 32, with the buffer of private memory in s[0:3] and the wave's place in s4.
            pages.put(KERNEL + 16, ((CODE - KERNEL) as u64).to_le_bytes());
            pages.put(KERNEL + 52, (1u32 | 4 << 1).to_le_bytes());
            pages.put(KERNEL + 56, (1u16 | 1 << 10).to_le_bytes());
            // v_mov_b32 v0, 42; buffer_store_dword v0, off, s[0:3], s4; s_endpgm
            for (number, word) in [0x7e00_02aau32, 0xe070_0000, 0x0400_0000, 0xbf81_0000].into_iter().enumerate() {
                pages.put(CODE + 4 * number, word.to_le_bytes());
            }
            pages
        }
    }

    fn process() -> &'static Process {
        let machine = Path::new(env!("CARGO_MANIFEST_DIR")).join("../unhang-machine/fixtures/rx5700xt-native");
        let root = machine.canonicalize().unwrap();
        let settings = CardSettings { root, hazards: Hazards::Fault, run: None, detailed: false, races: false };
        Box::leak(Box::new(Process::new(std::process::id(), &settings).unwrap()))
    }

    /// Maps one of the pages for the card.
    fn map(process: &Process, pages: &Pages, page: u64) {
        let user = pages.0.as_ptr() as u64 + page * PAGE;
        let flags = MEMORY_USER | MEMORY_WRITABLE;
        let request = Request { address: SEEN + page * PAGE, size: PAGE, flags, card: 0, user };
        let (handle, _) = process.memory.allocate(request).unwrap();
        process.memory.map(handle, 0).unwrap();
    }

    #[test]
    fn a_dispatch_sees_private_memory_that_was_mapped_before_its_owner_answered() {
        let (process, pages) = (process(), Pages::filled());
        map(process, pages, 0);
        // The packet processor has its page table, and then the owner maps private memory and answers.
        let table = process.memory.table(0);
        map(process, pages, 1);
        let base = pages.0.as_mut_ptr();
        let word = |at: usize| base.wrapping_add(at).cast::<u64>();
        let slot = base.wrapping_add(RING);
        let place = QueuePlace {
            card: 0,
            ring: slot,
            ring_size: PACKET,
            read: word(128),
            write: word(56),
            doorbell: word(0x300),
        };
        let control = Arc::new(Control { stop: AtomicBool::new(false), active: AtomicBool::new(true) });
        let queue = Queue { process, place, control, id: 1 };
        // SAFETY: a packet of the ring, which nobody writes to.
        let packet = Packet(unsafe { slot.cast::<[u8; PACKET as usize]>().read() });
        let mut processor = Processor { waits_for_owner: true };
        assert_eq!(processor.process(&queue, &table, &packet, slot), Ok(PacketStep::Done));
        assert!(!process.is_halted(0), "no memory fault");
        // SAFETY: the second page; the kernel has ended.
        let stored = unsafe { std::slice::from_raw_parts(word(PAGE as usize).cast::<u32>(), 32) };
        assert_eq!(stored, [42; 32]);
    }
}
