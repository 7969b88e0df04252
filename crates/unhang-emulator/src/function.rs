//! A function: everything that relative branches reach from an entry, decoded from memory.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use unhang_isa::audit::Transfer;
use unhang_isa::{Chip, Effects, Instruction, decode};

use crate::semantics::{Hole, Semantics};
use crate::waits::Touch;
use crate::{FaultKind, Memory, Unit};

/// The chips for which code is read. Silicon reads words in its own way, whatever was meant. What it cannot read is
/// read for the chip for which it was compiled. So it is a named fault when it is reached, and not before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Reading {
    pub silicon: Chip,
    pub compiled_for: Chip,
    pub wave64: bool,
    /// Whether kernels start in the float mode that flushes single-precision denormals. Instructions are then resolved
    /// for it.
    pub flushes: bool,
}

/// Bytes of the longest instruction.
const LONGEST: usize = 20;
/// The most instructions to decode from one entry. The largest real kernels have a tenth of this.
const MOST: usize = 4 << 20;
/// No instruction: the target of a branch that leads nowhere.
pub(crate) const NOWHERE: u32 = u32::MAX;

/// Everything that relative branches reach from one entry.
pub(crate) struct Function {
    pub entry: u64,
    /// The number of its first instruction among those of all functions ever decoded, so that each has its own number.
    pub places: u64,
    pub reading: Reading,
    pub instructions: Vec<Instruction>,
    /// The address of each instruction.
    pub addresses: Vec<u64>,
    /// What each instruction does, determined once.
    pub semantics: Vec<Semantics>,
    /// What each instruction does to scalar registers.
    pub effects: Vec<Effects>,
    /// The vector registers that each instruction touches, and its effect on loads in flight.
    pub touches: Vec<Touch>,
    /// The effect of each instruction on pending hazards.
    pub transfers: Vec<Transfer>,
    /// The unit that executes each instruction.
    pub units: Vec<Unit>,
    /// The target instruction of each relative branch.
    pub targets: Vec<u32>,
    /// The bytes that it was decoded from.
    bytes: Vec<(u64, Vec<u8>)>,
}

/// What is at an address.
struct Found {
    instruction: Instruction,
    semantics: Semantics,
    bytes: Vec<u8>,
}

impl Function {
    /// Decodes everything that relative branches reach from an entry.
    pub(crate) fn decode(memory: &Memory, entry: u64, reading: Reading) -> Function {
        let mut found: BTreeMap<u64, Found> = BTreeMap::new();
        let mut work = vec![entry];
        while let Some(start) = work.pop() {
            let mut at = start;
            while found.len() < MOST && !found.contains_key(&at) {
                let here = look(memory, at, reading);
                let after = at.wrapping_add(here.bytes.len() as u64);
                let goes_on = !here.instruction.ends_block_for_good() && !matches!(here.semantics, Semantics::Hole(_));
                if let Some(distance) = here.instruction.branch_distance() {
                    work.push(after.wrapping_add(distance as u64));
                }
                found.insert(at, here);
                if !goes_on {
                    break;
                }
                at = after;
            }
        }
        Function::of(entry, reading, found)
    }

    fn of(entry: u64, reading: Reading, found: BTreeMap<u64, Found>) -> Function {
        static PLACES: AtomicU64 = AtomicU64::new(0);
        let addresses: Vec<u64> = found.keys().copied().collect();
        let mut function = Function {
            entry,
            places: PLACES.fetch_add(found.len() as u64, Ordering::Relaxed),
            reading,
            instructions: Vec::with_capacity(found.len()),
            semantics: Vec::with_capacity(found.len()),
            effects: Vec::with_capacity(found.len()),
            touches: Vec::with_capacity(found.len()),
            transfers: Vec::with_capacity(found.len()),
            units: Vec::with_capacity(found.len()),
            targets: vec![NOWHERE; found.len()],
            addresses,
            bytes: Vec::new(),
        };
        for (index, (address, here)) in found.into_iter().enumerate() {
            let after = address.wrapping_add(here.bytes.len() as u64);
            let next = function.addresses.get(index + 1).copied();
            let mut semantics = here.semantics;
            // Code that jumps into the middle of an instruction is not followed there.
            if next != Some(after) && !here.instruction.ends_block_for_good() {
                semantics = Semantics::Hole(Hole::Overlaps);
            }
            if let Some(distance) = here.instruction.branch_distance() {
                function.targets[index] = function.index_at(after.wrapping_add(distance as u64)).unwrap_or(NOWHERE);
            }
            function.units.push(Unit::of(&here.instruction));
            function.instructions.push(here.instruction);
            if !here.instruction.definition.exists_on(reading.silicon) {
                semantics = Semantics::Hole(Hole::Illegal);
            }
            if let hole @ Semantics::Hole(_) = here.semantics {
                semantics = hole;
            }
            function.effects.push(here.instruction.effects(reading.wave64));
            function.touches.push(Touch::of(&here.instruction, &semantics));
            let transfer = Transfer::compiled_for(reading.compiled_for, &here.instruction, reading.wave64);
            function.transfers.push(transfer);
            function.semantics.push(semantics);
            match function.bytes.last_mut() {
                Some((start, bytes)) if *start + bytes.len() as u64 == address => bytes.extend(here.bytes),
                _ => function.bytes.push((address, here.bytes)),
            }
        }
        function
    }

    /// Whether it is code for waves of 64 lanes.
    pub(crate) fn wave64(&self) -> bool {
        self.reading.wave64
    }

    /// The instruction that starts at an address.
    pub(crate) fn index_at(&self, address: u64) -> Option<u32> {
        self.addresses.binary_search(&address).ok().map(|index| index as u32)
    }

    /// The target of a relative branch.
    #[inline]
    pub(crate) fn target(&self, index: usize) -> Result<u32, FaultKind> {
        let instruction = &self.instructions[index];
        let after = self.addresses[index] + instruction.size() as u64;
        let distance = instruction.branch_distance().unwrap_or(0) as u64;
        match self.targets[index] {
            NOWHERE => Err(FaultKind::Jump { address: after.wrapping_add(distance) }),
            target => Ok(target),
        }
    }

    /// Whether memory still holds the decoded bytes.
    pub(crate) fn is_current(&self, memory: &Memory) -> bool {
        let mut now = Vec::new();
        let same = |(address, bytes): &(u64, Vec<u8>)| {
            now.resize(bytes.len(), 0);
            memory.read_some(*address, &mut now) == bytes.len() && now == *bytes
        };
        let unmapped = self.semantics.iter().any(|semantics| matches!(semantics, Semantics::Hole(Hole::Unmapped)));
        !unmapped && self.bytes.iter().all(same)
    }
}

/// Reads what is at an address.
fn look(memory: &Memory, address: u64, reading: Reading) -> Found {
    let mut bytes = [0; LONGEST];
    let count = memory.read_some(address, &mut bytes);
    let bytes = &bytes[..count];
    let chips = [reading.silicon, reading.compiled_for, Chip::Gfx1030, Chip::Gfx1010];
    let decoded = chips.into_iter().find_map(|chip| decode(bytes, chip).ok());
    match decoded {
        Some(instruction) => {
            Found { instruction, semantics: Semantics::of(&instruction), bytes: bytes[..instruction.size()].to_vec() }
        }
        None => {
            let word = bytes.first_chunk().map(|&word| u32::from_le_bytes(word));
            Found {
                // A placeholder that is never executed.
                instruction: placeholder(),
                semantics: Semantics::Hole(word.map_or(Hole::Unmapped, Hole::Word)),
                bytes: bytes[..count.min(4)].to_vec(),
            }
        }
    }
}

/// `s_endpgm`.
fn placeholder() -> Instruction {
    match decode(&0xbf81_0000u32.to_le_bytes(), Chip::Gfx1010) {
        Ok(instruction) => instruction,
        Err(error) => unreachable!("s_endpgm is an instruction: {error}"),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) const READING: Reading =
        Reading { silicon: Chip::Gfx1010, compiled_for: Chip::Gfx1010, wave64: false, flushes: false };
    pub(crate) const NOP: u32 = 0xbf80_0000;
    pub(crate) const END: u32 = 0xbf81_0000;

    pub(crate) fn words(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn only_code_that_can_be_reached_is_decoded() {
        let mut memory = Memory::default();
        // s_branch over a word that means nothing, to the end.
        let at = memory.allocate_bytes(&words(&[NOP, 0xbf82_0001, 0xffff_ffff, END, 0xffff_ffff]));
        let function = Function::decode(&memory, at, READING);
        assert_eq!(function.addresses, [at, at + 4, at + 12]);
        assert_eq!(function.targets, [NOWHERE, 2, NOWHERE]);
        assert!(!function.semantics.iter().any(|semantics| matches!(semantics, Semantics::Hole(_))));
    }

    #[test]
    fn what_is_no_instruction_is_known_where_it_is_reached() {
        let mut memory = Memory::default();
        let at = memory.allocate_bytes(&words(&[NOP, 0xffff_ffff]));
        let function = Function::decode(&memory, at, READING);
        assert!(matches!(function.semantics[1], Semantics::Hole(Hole::Word(0xffff_ffff))));
        let at = memory.allocate_bytes(&words(&[NOP]));
        let function = Function::decode(&memory, at, READING);
        assert!(matches!(function.semantics[1], Semantics::Hole(Hole::Unmapped)));
    }
}
