//! A function laid out anew, with the work-around instructions that a compiler for the chip would have inserted.
//!
//! Every instruction keeps its place in the order. What is inserted stands before the instruction that needs it, and
//! branches to that instruction land before the insertion. Then relative branches are aimed at where their targets
//! went, and addresses that the code computes from its own (`s_getpc`) are corrected when its new address is known.

use super::{NOP, Reason, WAIT_FOR_EXEC_READERS, WAIT_FOR_MEMORY_READERS, WAIT_FOR_SCALAR_LOADS, WAIT_FOR_STORES};
use crate::audit::{Rule, WorkAround, work_arounds};
use crate::registers::Source;
use crate::table::{Field, Format};
use crate::{Class, Instruction, Program, ScalarSet};

/// An address that code computes from its own: `s_getpc_b64`, `s_add_u32`, `s_addc_u32`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reference {
    /// The three instructions.
    get: u32,
    low: u32,
    high: u32,
    /// From the end of `s_getpc` to what is meant.
    distance: i64,
}

/// The same in code that was laid out: places in bytes from its start.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlacedReference {
    /// The end of `s_getpc`: the address that it gives.
    pub origin: u32,
    /// Where the constant of `s_add_u32` lies.
    pub low: u32,
    /// Where the constant of `s_addc_u32` lies.
    pub high: u32,
    /// What is meant, in bytes from the start of the function as it was.
    pub target: i64,
}

/// A function that was laid out.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    pub code: Vec<u8>,
    /// The references to what lies outside of the function; those within are done.
    pub references: Vec<PlacedReference>,
    /// How many instructions were inserted.
    pub inserted: u32,
}

fn scalar_operand(instruction: &Instruction, field: Field) -> Option<u8> {
    match instruction.definition.operand(field).map(|slot| instruction.operand(slot)) {
        Some(Source::Scalar(register)) => Some(register),
        _ => None,
    }
}

fn constant_operand(instruction: &Instruction) -> Option<i64> {
    match instruction.definition.operand(Field::Source1).map(|slot| instruction.operand(slot)) {
        Some(Source::Literal(value)) => Some(value as i32 as i64),
        Some(Source::Integer(value)) => Some(value as i64),
        _ => None,
    }
}

/// Every use of `s_getpc` in a program, or the first that is not understood.
pub(super) fn references(program: &Program) -> Result<Vec<Reference>, Reason> {
    let mut found = Vec::new();
    for (get, instruction) in program.instructions.iter().enumerate() {
        if !instruction.is(Format::Sop1, 0x1f) {
            continue;
        }
        let unknown = Reason::UnknownAddress { offset: program.offsets[get] };
        found.push(reference(program, get).ok_or(unknown)?);
    }
    Ok(found)
}

fn reference(program: &Program, get: usize) -> Option<Reference> {
    /// How far the additions may stand from `s_getpc`; compilers put them right behind it.
    const REACH: usize = 16;
    let pair = scalar_operand(&program.instructions[get], Field::Destination)?;
    let registers = ScalarSet::range(pair, 2);
    let block = program.blocks.partition_point(|block| block.first as usize <= get).checked_sub(1)?;
    let end = (program.blocks[block].end as usize).min(get + REACH);
    let adds = |instruction: &Instruction, opcode: u16, register: u8| {
        instruction.is(Format::Sop2, opcode)
            && scalar_operand(instruction, Field::Destination) == Some(register)
            && scalar_operand(instruction, Field::Source0) == Some(register)
    };
    let mut low = None;
    for index in get + 1..end {
        let instruction = &program.instructions[index];
        match low {
            None if adds(instruction, 0x00, pair) => low = Some((index, constant_operand(instruction)?)),
            Some((low, low_constant)) if adds(instruction, 0x04, pair + 1) => {
                let distance = constant_operand(instruction)? << 32 | low_constant & 0xffff_ffff;
                return Some(Reference { get: get as u32, low: low as u32, high: index as u32, distance });
            }
            _ => {
                let effects = instruction.effects(program.wave64);
                let touches = (effects.reads | effects.writes | effects.mask_writes).meets(registers);
                // Between the two additions the carry must not be lost; SOPP does not write it.
                let carry = low.is_some() && effects.class == Class::Scalar && instruction.format() != Format::Sopp;
                if touches || carry {
                    return None;
                }
            }
        }
    }
    None
}

/// Whether the function can stand anywhere else: nothing in it may depend on where it stands in a way that is not
/// understood.
fn movable(program: &Program, is_kernel: bool, references: &[Reference]) -> Result<(), Reason> {
    if program.stray_branches > 0 {
        return Err(Reason::StrayBranch);
    }
    if program.unresolved_jumps == 0 && program.calls == 0 {
        return Ok(());
    }
    for (index, instruction) in program.instructions.iter().enumerate() {
        let offset = program.offsets[index];
        match (instruction.format(), instruction.definition.opcode) {
            // s_call_b64, which compilers do not emit.
            (Format::Sopk, 0x16) => return Err(Reason::UnresolvedJump { offset }),
            (Format::Sop1, 0x20) if program.unresolved_jumps > 0 => {
                let resolved = references.iter().any(|reference| reference.high as usize + 1 == index);
                // A function that is called returns to the address in s[30:31], wherever that is.
                let returns = !is_kernel && instruction.bits(0, 8) == 30;
                if !resolved && !returns {
                    return Err(Reason::UnresolvedJump { offset });
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// Words that take the place of an instruction.
struct Replacement {
    index: u32,
    words: Vec<u32>,
}

/// A flat access whose offset is added to the address beforehand, as one 64-bit sum that touches nothing else, and taken
/// off again afterwards unless the access overwrote the address itself.
fn flat_without_offset(instruction: &Instruction) -> Option<Vec<u32>> {
    let offset = instruction.flat_offset();
    let width = |field| instruction.definition.operand(field).map_or(0, |slot| slot.width.registers(false) as u32);
    let address = instruction.high_bits(0, 8);
    let meets =
        |first: u32, count: u32| (first..first + count).filter(|&it| it == address || it == address + 1).count();
    let returns = !instruction.is_atomic() || instruction.bits(16, 1) == 1;
    let overwritten = if returns { meets(instruction.high_bits(24, 8), width(Field::Destination)) } else { 0 };
    if meets(instruction.high_bits(8, 8), width(Field::Source1)) > 0 || overwritten == 1 || address > 254 {
        return None;
    }
    // v_mad_i64_i32 v[address:address+1], null, amount, 1, v[address:address+1]
    let add = |amount: i32| [0xd577_7d00 | address, 0xff | 129 << 9 | (256 + address) << 18, amount as u32];
    let mut words = add(offset).to_vec();
    words.push(instruction.first_word() & !0xfff);
    words.push(instruction.second_word());
    if overwritten == 0 {
        words.extend(add(-offset));
    }
    Some(words)
}

fn work_around_word(program: &Program, work_around: WorkAround) -> u32 {
    match work_around.rule {
        Rule::CompareExec => WAIT_FOR_EXEC_READERS,
        Rule::MemoryToScalarWrite => WAIT_FOR_MEMORY_READERS,
        Rule::ScalarMemoryToVectorWrite => WAIT_FOR_SCALAR_LOADS,
        Rule::LocalBranchMemory => WAIT_FOR_STORES,
        _ => {
            // v_mov_b32 of the register that the permutation reads, to itself.
            let register = program.instructions[work_around.index as usize].high_bits(0, 8);
            0x7e00_0300 | register << 17 | register
        }
    }
}

/// Lays a function out anew.
pub(super) fn relayout(program: &Program, is_kernel: bool) -> Result<Layout, Reason> {
    let references = references(program)?;
    movable(program, is_kernel, &references)?;
    let mut replacements: Vec<Replacement> = Vec::new();
    for (index, instruction) in program.instructions.iter().enumerate() {
        if instruction.is(Format::Sopp, 0x20) {
            replacements.push(Replacement { index: index as u32, words: vec![NOP] });
        } else if instruction.format() == Format::Flat
            && instruction.flat_offset() != 0
            && let Some(words) = flat_without_offset(instruction)
        {
            replacements.push(Replacement { index: index as u32, words });
        }
    }
    let mut insertions: Vec<(u32, u32)> = work_arounds(program)
        .into_iter()
        .map(|work_around| (work_around.index, work_around_word(program, work_around)))
        .collect();
    keep_clauses(program, &mut insertions, &mut replacements);
    for reference in &references {
        for (index, constant) in [(reference.low, reference.distance), (reference.high, reference.distance >> 32)] {
            // With the constant in a word of its own, whatever it was before.
            let word = program.instructions[index as usize].first_word() & !0xff00 | 0xff00;
            replacements.push(Replacement { index, words: vec![word, constant as u32] });
        }
    }
    replacements.sort_by_key(|replacement| replacement.index);
    Draft { program, insertions, replacements, inserted: 0 }.settle(&references)
}

/// Nothing may stand inside a clause that is not of its kind. What belongs before its first instruction goes before the
/// clause itself; where more is inserted, the clause is given up: it is only a hint.
fn keep_clauses(program: &Program, insertions: &mut [(u32, u32)], replacements: &mut Vec<Replacement>) {
    if insertions.is_empty() && replacements.is_empty() {
        return;
    }
    let mut next_insertion = 0;
    for (index, instruction) in program.instructions.iter().enumerate() {
        let index = index as u32;
        while insertions.get(next_insertion).is_some_and(|insertion| insertion.0 <= index) {
            next_insertion += 1;
        }
        if !instruction.is(Format::Sopp, 0x21) {
            continue;
        }
        let first = index + 1;
        let end = first + (instruction.immediate() as u32 & 0x3f) + 1;
        let count = insertions[next_insertion..].iter().take_while(|insertion| insertion.0 < end).count();
        let within = &mut insertions[next_insertion..next_insertion + count];
        let replaced = replacements.iter().any(|it| (first..end).contains(&it.index) && it.words.len() > 1);
        let entered = program.blocks.binary_search_by_key(&first, |block| block.first).is_ok();
        if within.iter().all(|insertion| insertion.0 == first) && !replaced && !entered {
            within.iter_mut().for_each(|insertion| insertion.0 = index);
        } else if !within.is_empty() || replaced {
            replacements.push(Replacement { index, words: vec![NOP] });
        }
    }
}

struct Draft<'a> {
    program: &'a Program,
    /// Single words by the instruction before which they belong, in order.
    insertions: Vec<(u32, u32)>,
    replacements: Vec<Replacement>,
    inserted: u32,
}

/// Where a branch goes, as an instruction's place.
fn branch_target(program: &Program, index: usize) -> Option<usize> {
    let instruction = &program.instructions[index];
    let target = program.offsets[index] as i64 + instruction.size() as i64 + instruction.branch_distance()?;
    program.index_at(usize::try_from(target).ok()?).map(|target| target as usize)
}

impl Draft<'_> {
    /// Finds a layout in which no branch has the distance 0x3f, and writes it out.
    fn settle(mut self, references: &[Reference]) -> Result<Layout, Reason> {
        let program = self.program;
        let branches: Vec<(usize, usize)> = (0..program.instructions.len())
            .filter(|&index| program.instructions[index].branch_distance().is_some())
            .map(|index| Some((index, branch_target(program, index)?)))
            .collect::<Option<_>>()
            .ok_or(Reason::StrayBranch)?;
        self.inserted = self.insertions.len() as u32;
        // Each round makes a branch longer for good, and only forward ones can have the distance: the rounds are few.
        for _ in 0..64 {
            let (starts, bodies) = self.places();
            let distance = |&(index, target): &(usize, usize)| {
                (starts[target] as i64 - (bodies[index] as i64 + program.instructions[index].size() as i64)) / 4
            };
            let mut added = Vec::new();
            for branch in &branches {
                let distance = distance(branch);
                if i16::try_from(distance).is_err() {
                    return Err(Reason::BranchOutOfReach { offset: program.offsets[branch.0] });
                }
                if distance == 0x3f && program.instructions[branch.0].format() == Format::Sopp {
                    added.push((branch.0 as u32 + 1, NOP));
                }
            }
            if added.is_empty() {
                return self.write(&starts, &bodies, &branches, references);
            }
            self.inserted += added.len() as u32;
            // In front of what is already inserted there, so right behind the branch.
            added.append(&mut self.insertions);
            added.sort_by_key(|insertion| insertion.0);
            self.insertions = added;
        }
        Err(Reason::NotMended)
    }

    /// Where each instruction begins with what is inserted before it, and where it begins itself; one more for the end.
    fn places(&self) -> (Vec<u32>, Vec<u32>) {
        let count = self.program.instructions.len();
        let (mut starts, mut bodies) = (Vec::with_capacity(count + 1), Vec::with_capacity(count + 1));
        let (mut insertions, mut replacements) =
            (self.insertions.iter().peekable(), self.replacements.iter().peekable());
        let mut position = 0;
        for index in 0..=count {
            starts.push(position);
            while insertions.next_if(|insertion| insertion.0 as usize == index).is_some() {
                position += 4;
            }
            bodies.push(position);
            let Some(instruction) = self.program.instructions.get(index) else { break };
            position += match replacements.next_if(|replacement| replacement.index as usize == index) {
                Some(replacement) => replacement.words.len() as u32 * 4,
                None => instruction.size() as u32,
            };
        }
        (starts, bodies)
    }

    fn write(
        &self,
        starts: &[u32],
        bodies: &[u32],
        branches: &[(usize, usize)],
        references: &[Reference],
    ) -> Result<Layout, Reason> {
        let program = self.program;
        let mut code = Vec::with_capacity(bodies.last().copied().unwrap_or(0) as usize);
        let (mut insertions, mut replacements) =
            (self.insertions.iter().peekable(), self.replacements.iter().peekable());
        let mut branches = branches.iter().peekable();
        for index in 0..=program.instructions.len() {
            while let Some(insertion) = insertions.next_if(|insertion| insertion.0 as usize == index) {
                code.extend(insertion.1.to_le_bytes());
            }
            let Some(instruction) = program.instructions.get(index) else { break };
            if let Some(replacement) = replacements.next_if(|replacement| replacement.index as usize == index) {
                code.extend(replacement.words.iter().flat_map(|word| word.to_le_bytes()));
            } else if let Some(&(_, target)) = branches.next_if(|branch| branch.0 == index) {
                let distance = (starts[target] as i64 - (code.len() as i64 + instruction.size() as i64)) / 4;
                let word = instruction.first_word() & !0xffff | distance as u32 & 0xffff;
                code.extend(word.to_le_bytes());
            } else {
                code.extend(instruction.words().iter().flat_map(|word| word.to_le_bytes()));
            }
        }
        let mut outside = Vec::new();
        for reference in references {
            let target = (program.offsets[reference.get as usize] as i64 + 4).wrapping_add(reference.distance);
            let placed = PlacedReference {
                origin: bodies[reference.get as usize] + 4,
                low: bodies[reference.low as usize] + 4,
                high: bodies[reference.high as usize] + 4,
                target,
            };
            match usize::try_from(target).ok().filter(|&target| target < program.size()) {
                Some(within) => {
                    let index = program
                        .index_at(within)
                        .ok_or(Reason::UnknownAddress { offset: program.offsets[reference.get as usize] })?;
                    placed.aim(&mut code, starts[index as usize] as i64 - placed.origin as i64);
                }
                None => outside.push(placed),
            }
        }
        Ok(Layout { code, references: outside, inserted: self.inserted })
    }
}

impl PlacedReference {
    /// Writes the distance from the origin to what is meant.
    pub fn aim(&self, code: &mut [u8], distance: i64) {
        for (at, value) in [(self.low, distance), (self.high, distance >> 32)] {
            if let Some(bytes) = code.get_mut(at as usize..at as usize + 4) {
                bytes.copy_from_slice(&(value as u32).to_le_bytes());
            }
        }
    }
}

/// The references of a function that stays where it is, if their constants are in words of their own.
pub(super) fn references_in_place(program: &Program) -> Vec<PlacedReference> {
    let Ok(references) = references(program) else { return Vec::new() };
    let has_literal = |index: u32| program.instructions[index as usize].size() == 8;
    references
        .into_iter()
        .filter(|reference| has_literal(reference.low) && has_literal(reference.high))
        .map(|reference| {
            let at = |index: u32| program.offsets[index as usize] + 4;
            PlacedReference {
                origin: at(reference.get),
                low: at(reference.low),
                high: at(reference.high),
                target: (at(reference.get) as i64).wrapping_add(reference.distance),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Chip;

    /// `s_mov_b32 s4, exec_lo`, a branch over the rest, a comparison that wants a wait, and padding.
    fn program(padding: usize) -> Program {
        let distance = padding as u32 + 1;
        let mut words = vec![0xbe84_037e, 0xbf85_0000 | distance, 0x7da8_0090];
        words.extend(std::iter::repeat_n(NOP, padding));
        words.push(0xbf81_0000);
        let bytes: Vec<u8> = words.iter().flat_map(|word: &u32| word.to_le_bytes()).collect();
        Program::decode(&bytes, Chip::Gfx1030, false).unwrap()
    }

    #[test]
    fn a_branch_that_no_longer_reaches_is_a_reason_to_stay() {
        let layout = relayout(&program(32765), true).unwrap();
        assert_eq!(layout.inserted, 1);
        assert_eq!(relayout(&program(32766), true).unwrap_err(), Reason::BranchOutOfReach { offset: 4 });
    }

    #[test]
    fn a_branch_never_gets_the_distance_3f() {
        // 61 makes it 0x3e before and 0x3f with the wait.
        for (padding, inserted) in [(60, 1), (61, 2), (62, 1)] {
            let layout = relayout(&program(padding), true).unwrap();
            assert_eq!(layout.inserted, inserted, "{padding}");
            let mended = Program::decode(&layout.code, Chip::Gfx1030, false).unwrap();
            assert_ne!(mended.instructions[1].immediate(), 0x3f);
            assert_eq!(mended.blocks[0].successors[1], Some(mended.blocks.len() as u32 - 1));
        }
    }
}
