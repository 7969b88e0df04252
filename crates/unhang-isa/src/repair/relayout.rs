//! A new layout for a function, with the work-around instructions that a compiler for the chip would have inserted.
//!
//! The order of the instructions stays. An insertion goes before the instruction that needs it, and branches to that
//! instruction land before the insertion. Relative branches then get the new offsets of their targets. Addresses that
//! the code computes from its own (`s_getpc`) are corrected once its new address is known.

use super::encode::NOP;
use super::reason::Reason;
use super::spare::SpareRegisters;
use super::{dead, substitute};
use crate::audit::{Calls, image_address_words, places_behind_images, work_arounds};
use crate::liveness::{Values, are_dead};
use crate::opcode::{S_CALL_B64, S_CLAUSE, S_INST_PREFETCH, S_SETPC_B64, S_TRAP};
use crate::pc_relative::{Form, Reference};
use crate::table::{Field, Format};
use crate::{Chip, Instruction, Program};

/// An address that code computes from its own, in its new layout. Positions are in bytes from the start.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlacedReference {
    /// The end of `s_getpc`, which is the address that it returns.
    pub origin: u32,
    /// The position of the offset's words.
    constants: Constants,
    /// The target, in bytes from the start of the original function.
    pub target: i64,
}

#[derive(Clone, Copy, Debug)]
enum Constants {
    /// The lower and the upper half.
    Split { low: u32, high: u32 },
    /// One word, to which the code adds the addend.
    Sum { at: u32, addend: i32 },
}

/// A function in its new layout.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    pub code: Vec<u8>,
    /// The references to targets outside the function; those inside are resolved.
    pub references: Vec<PlacedReference>,
    /// The number of inserted instructions.
    pub inserted: u32,
}

/// Whether the function can be moved: it must not depend on its address in a way that is not understood.
fn movable(program: &Program, is_kernel: bool) -> Result<(), Reason> {
    if program.stray_branches > 0 {
        return Err(Reason::StrayBranch);
    }
    if runs_on(program) {
        return Err(Reason::RunsOn);
    }
    let unknown = |index: u32| Reason::UnknownAddress { offset: program.offsets[index as usize] };
    if let Some(&get) = program.unknown_addresses.first() {
        return Err(unknown(get));
    }
    for reference in &program.references {
        if matches!(reference.form, Form::Sum { .. }) && !is_spent(program, reference) {
            return Err(unknown(reference.get));
        }
    }
    if program.unresolved_jumps == 0 && program.calls == 0 {
        return Ok(());
    }
    let resolved: Vec<u32> = program.references.iter().flat_map(|it| it.jumps).flatten().collect();
    for (index, instruction) in program.instructions.iter().enumerate() {
        let offset = program.offsets[index];
        // s_call_b64, which compilers do not emit.
        if instruction.is(S_CALL_B64) {
            return Err(Reason::UnresolvedJump { offset });
        }
        if instruction.is(S_SETPC_B64) && program.unresolved_jumps > 0 {
            // A called function returns to the address in s[30:31], wherever that is.
            let returns = !is_kernel && instruction.bits(0, 8) == 30;
            if !resolved.contains(&(index as u32)) && !returns {
                return Err(Reason::UnresolvedJump { offset });
            }
        }
    }
    Ok(())
}

/// Whether execution reaches the end of the code and continues after it. A call is assumed not to return.
fn runs_on(program: &Program) -> bool {
    let Some((last, instruction)) = program.blocks.len().checked_sub(1).zip(program.instructions.last()) else {
        return false;
    };
    // Compilers end with trap 2 where nothing should follow (`llvm.trap`): its handler stops the wave.
    let stops = instruction.is(S_TRAP) && instruction.immediate() == 2;
    if stops || instruction.ends_block_for_good() || instruction.is_call() {
        return false;
    }
    let mut reached = vec![false; program.blocks.len()];
    let mut open = vec![0];
    while let Some(number) = open.pop() {
        if !std::mem::replace(&mut reached[number], true) {
            open.extend(program.blocks[number].successors.into_iter().flatten().map(|next| next as usize));
        }
    }
    reached[last]
}

/// Whether nothing reads the registers of a long branch at its target: after a move they hold other values.
fn is_spent(program: &Program, reference: &Reference) -> bool {
    let landing = usize::try_from(program.referred(reference)).ok().and_then(|target| program.index_at(target));
    let values = Values { scalars: reference.registers, scc: false };
    landing.is_some_and(|landing| are_dead(program, landing as usize, values))
}

/// Words that replace an instruction.
struct Replacement {
    index: u32,
    words: Vec<u32>,
}

/// A flat access whose offset is added to the address beforehand, as one 64-bit sum that touches nothing else. The
/// offset is subtracted again afterwards, unless the access overwrote the address itself.
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
    let add = |amount: i32| add_to_address(address, address, amount);
    let mut words = add(offset).to_vec();
    words.push(instruction.first_word() & !0xfff);
    words.push(instruction.second_word());
    if overwritten == 0 {
        words.extend(add(-offset));
    }
    Some(words)
}

/// `v_mad_i64_i32 v[to:to+1], null, amount, 1, v[from:from+1]`
fn add_to_address(to: u32, from: u32, amount: i32) -> [u32; 3] {
    [0xd577_7d00 | to, 0xff | 129 << 9 | (256 + from) << 18, amount as u32]
}

/// A flat access that uses two unused registers for its address plus offset.
fn flat_through(instruction: &Instruction, spare: u8) -> Vec<u32> {
    let (address, spare) = (instruction.high_bits(0, 8), spare as u32);
    let mut words = add_to_address(spare, address, instruction.flat_offset()).to_vec();
    words.push(instruction.first_word() & !0xfff);
    words.push(instruction.second_word() & !0xff | spare);
    words
}

/// The values of SOP2's source fields for a literal: the next word holds the value.
const SOURCE_0_LITERAL: u32 = 0xff;
const SOURCE_1_LITERAL: u32 = 0xff00;

/// What is known about a function apart from its code.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setting {
    /// Whether it is a kernel, as opposed to a function that kernels call.
    pub is_kernel: bool,
    /// The chip on which it will run.
    pub chip: Chip,
    /// Vector registers that it does not use, if some of its instructions need any.
    pub spare: Option<SpareRegisters>,
}

/// How many unused vector registers the instructions of a function need: each number once, the largest first.
pub(super) fn spare_registers(program: &Program, chip: Chip) -> Vec<u32> {
    let needs = |instruction: &Instruction| {
        if !instruction.definition.exists_on(chip) {
            substitute::spare_registers(instruction).unwrap_or(0)
        } else if instruction.format() == Format::Flat && instruction.flat_offset() != 0 {
            if flat_without_offset(instruction).is_some() { 0 } else { 2 }
        } else {
            0
        }
    };
    let mut numbers: Vec<u32> = program.instructions.iter().map(needs).filter(|&number| number > 0).collect();
    numbers.sort_unstable_by(|one, other| other.cmp(one));
    numbers.dedup();
    numbers
}

/// The replacement of an instruction that is wrong wherever it is.
fn replacement(program: &Program, index: usize, setting: Setting) -> Option<Vec<u32>> {
    let instruction = &program.instructions[index];
    if instruction.is(S_INST_PREFETCH) {
        Some(vec![NOP])
    } else if !instruction.definition.exists_on(setting.chip) {
        let spare = setting.spare.map(SpareRegisters::list).unwrap_or_default();
        substitute::words(instruction, &spare).or_else(|| {
            let count = substitute::spare_registers(instruction)?;
            substitute::words(instruction, &dead::registers(program, index, count)?)
        })
    } else if instruction.format() == Format::Flat && instruction.flat_offset() != 0 {
        let spare = setting.spare.filter(|spare| spare.count >= 2);
        flat_without_offset(instruction).or_else(|| Some(flat_through(instruction, spare?.first)))
    } else {
        None
    }
}

/// Gives a function a new layout.
pub(super) fn relayout(program: &Program, setting: Setting) -> Result<Layout, Reason> {
    movable(program, setting.is_kernel)?;
    let mut replacements: Vec<Replacement> = (0..program.instructions.len())
        .filter_map(|index| Some(Replacement { index: index as u32, words: replacement(program, index, setting)? }))
        .collect();
    // The new layout also waits for what callers and callees may have left pending.
    let calls = Calls::Together { is_called: !setting.is_kernel };
    let mut insertions: Vec<(u32, u32)> =
        work_arounds(program, calls).into_iter().map(|work_around| (work_around.index, work_around.word)).collect();
    places_behind_images(program, &mut |index| insertions.push((index, NOP)));
    insertions.sort_by_key(|&(index, _)| index);
    keep_clauses(program, &mut insertions, &mut replacements);
    for reference in &program.references {
        // Puts the constant into a separate word, whatever it was before; its value is filled in when everything is
        // placed.
        let mut widen = |index: u32, field: u32| {
            let word = program.instructions[index as usize].first_word() | field;
            replacements.push(Replacement { index, words: vec![word, 0] });
        };
        match reference.form {
            Form::Split { low, high } => {
                widen(low, SOURCE_1_LITERAL);
                widen(high, SOURCE_1_LITERAL);
            }
            Form::Sum { at, .. } => widen(at, SOURCE_0_LITERAL),
        }
    }
    replacements.sort_by_key(|replacement| replacement.index);
    Draft { program, insertions, replacements, inserted: 0 }.settle()
}

/// A clause may contain only instructions of its kind. An insertion before its first instruction moves before the
/// clause itself. If more is inserted, or an image instruction has scattered addresses, the clause is removed: it is
/// only a hint.
fn keep_clauses(program: &Program, insertions: &mut [(u32, u32)], replacements: &mut Vec<Replacement>) {
    let mut next_insertion = 0;
    for (index, instruction) in program.instructions.iter().enumerate() {
        let index = index as u32;
        while insertions.get(next_insertion).is_some_and(|insertion| insertion.0 <= index) {
            next_insertion += 1;
        }
        if !instruction.is(S_CLAUSE) {
            continue;
        }
        let first = index + 1;
        let end = first + (instruction.immediate() as u32 & 0x3f) + 1;
        let count = insertions[next_insertion..].iter().take_while(|insertion| insertion.0 < end).count();
        let within = &mut insertions[next_insertion..next_insertion + count];
        let replaced = replacements.iter().any(|it| (first..end).contains(&it.index) && it.words.len() > 1);
        let scattered = program.instructions.iter().take(end as usize).skip(first as usize);
        let scattered = scattered.map(image_address_words).any(|words| words > 0);
        let entered = program.blocks.binary_search_by_key(&first, |block| block.first).is_ok();
        if within.iter().all(|insertion| insertion.0 == first) && !replaced && !entered && !scattered {
            within.iter_mut().for_each(|insertion| insertion.0 = index);
        } else if !within.is_empty() || replaced || scattered {
            replacements.push(Replacement { index, words: vec![NOP] });
        }
    }
}

struct Draft<'a> {
    program: &'a Program,
    /// Single words, by the instruction that they precede, in order.
    insertions: Vec<(u32, u32)>,
    replacements: Vec<Replacement>,
    inserted: u32,
}

impl Draft<'_> {
    /// Finds a layout in which no branch has the offset 0x3f, and writes it.
    fn settle(mut self) -> Result<Layout, Reason> {
        let program = self.program;
        let branches: Vec<(usize, usize)> = (0..program.instructions.len())
            .filter(|&index| program.instructions[index].branch_distance().is_some())
            .map(|index| Some((index, program.branch_target(index)? as usize)))
            .collect::<Option<_>>()
            .ok_or(Reason::StrayBranch)?;
        self.inserted = self.insertions.len() as u32;
        // Each round makes a branch longer for good, and only forward ones can have that offset, so there are few
        // rounds.
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
                return self.write(&starts, &bodies, &branches);
            }
            self.inserted += added.len() as u32;
            // Before what is already inserted there, so right after the branch.
            added.append(&mut self.insertions);
            added.sort_by_key(|insertion| insertion.0);
            self.insertions = added;
        }
        Err(Reason::NotRepaired)
    }

    /// Where each instruction begins, with and without what is inserted before it; plus one entry for the end.
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

    fn write(&self, starts: &[u32], bodies: &[u32], branches: &[(usize, usize)]) -> Result<Layout, Reason> {
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
        for reference in &program.references {
            let unknown = || Reason::UnknownAddress { offset: program.offsets[reference.get as usize] };
            let placed = PlacedReference::new(program, reference, |index| bodies[index as usize]);
            match usize::try_from(placed.target).ok().filter(|&target| target < program.size()) {
                Some(within) => {
                    let index = program.index_at(within).ok_or_else(unknown)?;
                    placed.aim(&mut code, starts[index as usize] as i64 - placed.origin as i64);
                }
                // Long branches stay within a function.
                None if matches!(placed.constants, Constants::Sum { .. }) => return Err(unknown()),
                None => outside.push(placed),
            }
        }
        Ok(Layout { code, references: outside, inserted: self.inserted })
    }
}

impl PlacedReference {
    /// A reference in code in which `place` gives the position of each instruction.
    fn new(program: &Program, reference: &Reference, place: impl Fn(u32) -> u32) -> PlacedReference {
        let literal = |index: u32| place(index) + 4;
        let constants = match reference.form {
            Form::Split { low, high } => Constants::Split { low: literal(low), high: literal(high) },
            Form::Sum { at, addend } => Constants::Sum { at: literal(at), addend },
        };
        PlacedReference { origin: place(reference.get) + 4, constants, target: program.referred(reference) }
    }

    /// Writes the offset from the origin to the target.
    pub(super) fn aim(&self, code: &mut [u8], offset: i64) {
        let mut put = |at: u32, value: u32| {
            if let Some(bytes) = code.get_mut(at as usize..at as usize + 4) {
                bytes.copy_from_slice(&value.to_le_bytes());
            }
        };
        match self.constants {
            Constants::Split { low, high } => {
                put(low, offset as u32);
                put(high, (offset >> 32) as u32);
            }
            Constants::Sum { at, addend } => put(at, (offset as u32).wrapping_sub(addend as u32)),
        }
    }
}

/// The references of a function that stays in place, if their constants are in separate words.
pub(super) fn references_in_place(program: &Program) -> Vec<PlacedReference> {
    let has_literal = |index: u32| program.instructions[index as usize].size() == 8;
    program
        .references
        .iter()
        .filter(
            |reference| matches!(reference.form, Form::Split { low, high } if has_literal(low) && has_literal(high)),
        )
        .map(|reference| PlacedReference::new(program, reference, |index| program.offsets[index as usize]))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `s_mov_b32 s4, exec_lo`, a branch over the rest, a comparison that needs a wait, and padding.
    fn program(padding: usize) -> Program {
        let distance = padding as u32 + 1;
        let mut words = vec![0xbe84_037e, 0xbf85_0000 | distance, 0x7da8_0090];
        words.extend(std::iter::repeat_n(NOP, padding));
        words.push(0xbf81_0000);
        let bytes: Vec<u8> = words.iter().flat_map(|word: &u32| word.to_le_bytes()).collect();
        Program::decode(&bytes, Chip::Gfx1030, false).unwrap()
    }

    const SETTING: Setting = Setting { is_kernel: true, chip: Chip::Gfx1010, spare: None };

    #[test]
    fn a_branch_that_no_longer_reaches_is_a_reason_to_stay() {
        let layout = relayout(&program(32765), SETTING).unwrap();
        assert_eq!(layout.inserted, 1);
        assert_eq!(relayout(&program(32766), SETTING).unwrap_err(), Reason::BranchOutOfReach { offset: 4 });
    }

    #[test]
    fn code_may_end_with_the_trap_that_stops_a_wave_and_with_no_other() {
        for (trap, expected) in [(0xbf92_0002, None), (0xbf92_0003, Some(Reason::RunsOn))] {
            let words: [u32; 3] = [0xbe84_037e, 0x7da8_0090, trap];
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            let program = Program::decode(&bytes, Chip::Gfx1030, false).unwrap();
            assert_eq!(relayout(&program, SETTING).err(), expected);
        }
    }

    #[test]
    fn a_branch_never_gets_the_distance_3f() {
        // With 61, the offset is 0x3e before and 0x3f with the wait.
        for (padding, inserted) in [(60, 1), (61, 2), (62, 1)] {
            let layout = relayout(&program(padding), SETTING).unwrap();
            assert_eq!(layout.inserted, inserted, "{padding}");
            let repaired = Program::decode(&layout.code, Chip::Gfx1030, false).unwrap();
            assert_ne!(repaired.instructions[1].immediate(), 0x3f);
            assert_eq!(repaired.blocks[0].successors[1], Some(repaired.blocks.len() as u32 - 1));
        }
    }
}
