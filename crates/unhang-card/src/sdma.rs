//! The copy engine: packets of SDMA 5, as the HSA runtime writes them.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use serde_json::json;

use crate::journal::Counter;
use crate::kfd::memory::{AccessFault, PageTable};
use crate::queue::{self, PacketStep, Queue};
use crate::signal::ticks;

/// Operations, in the low byte of a packet's first word.
mod operation {
    pub(super) const NOTHING: u32 = 0;
    pub(super) const COPY: u32 = 1;
    pub(super) const WRITE: u32 = 2;
    pub(super) const FENCE: u32 = 5;
    pub(super) const TRAP: u32 = 6;
    pub(super) const POLL: u32 = 8;
    pub(super) const ATOMIC: u32 = 10;
    pub(super) const FILL: u32 = 11;
    pub(super) const TIMESTAMP: u32 = 13;
    pub(super) const CACHES: u32 = 17;
}
const COPY_LINEAR: u32 = 0;
const COPY_RECTANGLE: u32 = 4;
const ADD_64: u32 = 47;

/// The longest packet with a fixed length, in words.
const LONGEST: usize = 13;

/// Processes a queue until it is destroyed.
pub(crate) fn serve(queue: &Queue) {
    queue::serve(queue, step);
}

/// A packet's words, as far as the longest goes.
struct Packet([u32; LONGEST]);

impl Packet {
    fn field(&self, word: usize, shift: u32, bits: u32) -> u64 {
        u64::from(self.0[word] >> shift) & ((1 << bits) - 1)
    }
    fn wide(&self, word: usize) -> u64 {
        u64::from(self.0[word]) | u64::from(self.0[word + 1]) << 32
    }
}

fn step(queue: &Queue) -> PacketStep {
    let (read, end) = (queue.read(), queue.doorbell().max(queue.written()));
    if read >= end {
        return PacketStep::Wait;
    }
    let packet = Packet(std::array::from_fn(|word| read_word(queue, read + 4 * word as u64)));
    let table = queue.process.memory.table(queue.place.card);
    match execute(queue, &table, read, &packet) {
        Ok(Some(words)) => {
            queue.advance(read + 4 * words);
            PacketStep::Done
        }
        Ok(None) => PacketStep::Wait,
        Err(Stop::Fault(fault)) => {
            queue.process.journal.say_once(&format!(
                "a copy by SDMA on the emulated card cannot access {:#x}{}",
                fault.address,
                if fault.is_read_only { " for writing" } else { "" }
            ));
            queue.process.memory_fault(queue.place.card, fault);
            PacketStep::Dead
        }
        Err(Stop::Unknown) => {
            queue.process.journal.say_once(&format!(
                "an SDMA packet is not known to the emulated card: operation {}, {}; its queue stops here",
                packet.field(0, 0, 8),
                packet.field(0, 8, 8)
            ));
            queue.process.reset(queue.place.card);
            PacketStep::Dead
        }
    }
}

fn read_word(queue: &Queue, at: u64) -> u32 {
    let address = queue.place.ring.wrapping_add((at & (queue.place.ring_size - 1)) as usize);
    // SAFETY: in the ring, which is mapped, at a multiple of four.
    unsafe { AtomicU32::from_ptr(address.cast()) }.load(Ordering::Relaxed)
}

enum Stop {
    Fault(AccessFault),
    Unknown,
}

impl From<AccessFault> for Stop {
    fn from(fault: AccessFault) -> Stop {
        Stop::Fault(fault)
    }
}

/// Executes a packet and returns its length in words; `None` while it must wait.
fn execute(queue: &Queue, table: &PageTable, read: u64, packet: &Packet) -> Result<Option<u64>, Stop> {
    let (name, variant) = (packet.field(0, 0, 8) as u32, packet.field(0, 8, 8) as u32);
    let words = match (name, variant) {
        // Padding: as many words as its header says.
        (operation::NOTHING, _) => 1 + packet.field(0, 16, 14),
        (operation::COPY, COPY_LINEAR) => {
            // Counts have 22 bits on RDNA1 and 30 from RDNA2 on; the upper ones are zero where they are not used.
            let size = packet.field(1, 0, 30) + 1;
            copy(queue, table, packet.wide(3), packet.wide(5), size)?;
            7
        }
        (operation::COPY, COPY_RECTANGLE) => {
            copy_rectangle(queue, table, packet)?;
            13
        }
        (operation::WRITE, _) => {
            let count = packet.field(3, 0, 20) + 1;
            let target = aligned(table, packet.wide(1), 4 * count, 4)?;
            for word in 0..count {
                let value = read_word(queue, read + 4 * (4 + word));
                // SAFETY: the table has all the words.
                unsafe { AtomicU32::from_ptr(target.cast::<u32>().add(word as usize)) }.store(value, Ordering::Relaxed);
            }
            4 + count
        }
        (operation::FILL, _) => {
            fill(queue, table, packet)?;
            5
        }
        (operation::FENCE, _) => {
            let target = aligned(table, packet.wide(1), 4, 4)?;
            // SAFETY: four aligned bytes.
            unsafe { AtomicU32::from_ptr(target.cast()) }.store(packet.0[3], Ordering::Release);
            4
        }
        (operation::TRAP, _) => {
            let event = packet.field(1, 0, 28) as u32;
            // A fence has written the event's id into its slot; it is raised here, once.
            queue.process.interrupts.clear(event);
            let _ = queue.process.events.raise(event);
            2
        }
        (operation::POLL, _) => {
            if !poll(table, packet)? {
                return Ok(None);
            }
            6
        }
        (operation::ATOMIC, _) if packet.field(0, 25, 7) as u32 == ADD_64 => {
            let target = aligned(table, packet.wide(1), 8, 8)?;
            // SAFETY: eight aligned bytes.
            unsafe { AtomicU64::from_ptr(target.cast()) }.fetch_add(packet.wide(3), Ordering::AcqRel);
            8
        }
        (operation::TIMESTAMP, _) => {
            let target = aligned(table, packet.wide(1), 8, 8)?;
            // SAFETY: eight aligned bytes.
            unsafe { AtomicU64::from_ptr(target.cast()) }.store(ticks(), Ordering::Relaxed);
            3
        }
        (operation::CACHES, _) => 5,
        _ => return Err(Stop::Unknown),
    };
    Ok(Some(words))
}

fn aligned(table: &PageTable, address: u64, size: u64, alignment: u64) -> Result<*mut u8, AccessFault> {
    if !address.is_multiple_of(alignment) {
        return Err(AccessFault { address, is_read_only: false });
    }
    table.host(address, size, true)
}

fn poll(table: &PageTable, packet: &Packet) -> Result<bool, Stop> {
    let (is_memory, comparison) = (packet.field(0, 31, 1) == 1, packet.field(0, 28, 3));
    if !is_memory {
        // A flush of the host's data path, or a register: nothing to wait for.
        return Ok(true);
    }
    let address = packet.wide(1);
    if !address.is_multiple_of(4) {
        return Err(AccessFault { address, is_read_only: false }.into());
    }
    let source = table.host(address, 4, false)?;
    // SAFETY: four aligned bytes.
    let value = unsafe { AtomicU32::from_ptr(source.cast()) }.load(Ordering::Acquire) & packet.0[4];
    let reference = packet.0[3];
    Ok(match comparison {
        0 => true,
        1 => value < reference,
        2 => value <= reference,
        3 => value == reference,
        4 => value != reference,
        5 => value >= reference,
        _ => value > reference,
    })
}

/// Copies bytes, mapping by mapping: neighbouring allocations are one range to the card.
fn copy(queue: &Queue, table: &PageTable, source: u64, target: u64, size: u64) -> Result<(), AccessFault> {
    move_bytes(table, source, target, size)?;
    note(queue, "copy", source, target, size);
    Ok(())
}

fn move_bytes(table: &PageTable, mut source: u64, mut target: u64, size: u64) -> Result<(), AccessFault> {
    let mut left = size;
    while left > 0 {
        let part = left.min(table.reach(source).max(1)).min(table.reach(target).max(1));
        let (from, to) = (table.host(source, part, false)?, table.host(target, part, true)?);
        // SAFETY: the table has both ranges, and holds them while it lives; they may overlap.
        unsafe { std::ptr::copy(from, to, part as usize) };
        (source, target, left) = (source + part, target + part, left - part);
    }
    Ok(())
}

fn copy_rectangle(queue: &Queue, table: &PageTable, packet: &Packet) -> Result<(), AccessFault> {
    let element = 1u64 << packet.field(0, 29, 3);
    // Address, offsets in x, y and z, pitch and slice, in elements.
    let side = |word: usize| {
        let pitch = packet.field(word + 3, 13, 19) + 1;
        let slice = packet.field(word + 4, 0, 28) + 1;
        let offset = packet.field(word + 2, 0, 14)
            + packet.field(word + 2, 16, 14) * pitch
            + packet.field(word + 3, 0, 11) * slice;
        (packet.wide(word) + offset * element, pitch * element, slice * element)
    };
    let (source, target) = (side(1), side(6));
    let (width, height) = ((packet.field(11, 0, 14) + 1) * element, packet.field(11, 16, 14) + 1);
    let depth = packet.field(12, 0, 11) + 1;
    for z in 0..depth {
        for y in 0..height {
            let row = |side: (u64, u64, u64)| side.0 + y * side.1 + z * side.2;
            move_bytes(table, row(source), row(target), width)?;
        }
    }
    note(queue, "copy", source.0, target.0, width * height * depth);
    Ok(())
}

fn fill(queue: &Queue, table: &PageTable, packet: &Packet) -> Result<(), AccessFault> {
    let (mut target, value) = (packet.wide(1), packet.0[3].to_le_bytes());
    let element = match packet.field(0, 30, 2) {
        0 => 1,
        1 => 2,
        _ => 4,
    };
    // The count is that of the last element's first byte.
    let size = (packet.field(4, 0, 30) / element + 1) * element;
    note(queue, "fill", 0, target, size);
    let mut left = size;
    while left > 0 {
        let part = left.min(table.reach(target).max(1));
        let to = table.host(target, part, true)?;
        let done = size - left;
        for byte in 0..part {
            // SAFETY: in the range that the table has.
            unsafe { to.add(byte as usize).write(value[((done + byte) % element) as usize]) };
        }
        (target, left) = (target + part, left - part);
    }
    Ok(())
}

fn note(queue: &Queue, event: &str, source: u64, target: u64, size: u64) {
    let journal = &queue.process.journal;
    journal.count(Counter::Transfers, 1);
    journal.count(Counter::Bytes, size);
    journal.detail(event, || {
        json!({ "card": queue.place.card, "queue": queue.id, "engine": "sdma",
            "from": format!("{source:#x}"), "to": format!("{target:#x}"), "bytes": size })
    });
}
