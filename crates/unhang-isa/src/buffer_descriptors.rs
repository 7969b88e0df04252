//! Buffer descriptors that code puts together from constants, and which of them put every access out of range.
//!
//! With OOB_SELECT 0 (bits 29:28 of word 3) an access is out of range unless its offset is below the stride. A descriptor with
//! neither has no byte in range. The analysis knows which bits of a scalar register are zero on every path, and the
//! literal that it was copied from. This knowledge flows through the control-flow graph from constants, copies, AND and
//! OR. Registers that no descriptor is made of are not followed.

use std::collections::BTreeSet;

use crate::liveness::{Values, are_dead};
use crate::opcode::{S_AND_B32, S_CMOV_B32, S_CMOVK_I32, S_MOV_B32, S_MOV_B64, S_MOVK_I32, S_OR_B32};
use crate::registers::OperandValue;
use crate::table::{Field, Format};
use crate::{Instruction, Program, ScalarSet};

/// A buffer access that is out of range whatever its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OutOfRange {
    /// The access.
    pub index: u32,
    /// The `s_mov_b32` whose literal is the descriptor's word 3, if the literal has no other use.
    pub literal: Option<u32>,
}

/// OOB_SELECT in word 3 of a descriptor.
const RANGE_CHECK: u32 = 3 << 28;
/// The stride in word 1.
const STRIDE: u32 = 0x3fff << 16;
/// What compilers for the chip put there: offsets against NUM_RECORDS (OOB_SELECT 3), and the resource level of gfx10.
pub(crate) const CHECK_OFFSETS: u32 = RANGE_CHECK | 1 << 24;

/// What is known of a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Known {
    register: u8,
    /// Bits that are zero.
    zeros: u32,
    /// The instruction that its literal comes from.
    literal: Option<u32>,
}

/// What is known of all registers, in their order; of those that are missing, nothing.
type State = Vec<Known>;

/// Accesses that are out of range whatever their address, in the order of the code.
pub(crate) fn out_of_range(program: &Program) -> Vec<OutOfRange> {
    let followed = followed(program);
    if followed.is_empty() {
        return Vec::new();
    }
    let mut walk = Walk { program, followed, escaped: BTreeSet::new(), found: Vec::new(), questions: MOST_QUESTIONS };
    let entries = walk.solve();
    for (number, entry) in entries.into_iter().enumerate() {
        if let Some(state) = entry {
            walk.block(number, state, true);
        }
    }
    let Walk { mut found, escaped, .. } = walk;
    found.sort_by_key(|it| it.index);
    for it in &mut found {
        it.literal = it.literal.filter(|literal| !escaped.contains(literal));
    }
    found
}

/// The descriptor of a buffer access.
fn descriptor(instruction: &Instruction) -> Option<u8> {
    let buffer = matches!(instruction.format(), Format::Mubuf | Format::Mtbuf);
    (buffer && !instruction.definition.operands().is_empty()).then(|| (instruction.high_bits(16, 5) * 4) as u8)
}

/// The registers whose values can reach words 1 and 3 of descriptors.
fn followed(program: &Program) -> ScalarSet {
    let mut followed = ScalarSet::EMPTY;
    for first in program.instructions.iter().filter_map(descriptor) {
        followed |= ScalarSet::range(first + 1, 1) | ScalarSet::range(first + 3, 1);
    }
    let copies: Vec<(ScalarSet, ScalarSet)> = program
        .instructions
        .iter()
        .filter(|it| !followed.is_empty() && it.is_any(&[S_MOV_B32, S_MOV_B64, S_AND_B32, S_OR_B32]))
        .map(|it| it.effects(program.wave64))
        .map(|effects| (effects.writes, effects.reads))
        .collect();
    // Copies of copies.
    loop {
        let before = followed;
        for &(_, reads) in copies.iter().filter(|(writes, _)| writes.meets(before)) {
            followed |= reads;
        }
        if followed == before {
            return followed;
        }
    }
}

struct Walk<'a> {
    program: &'a Program,
    followed: ScalarSet,
    /// Literals that may be used for something other than a descriptor.
    escaped: BTreeSet<u32>,
    found: Vec<OutOfRange>,
    /// How many more questions whether a register is read again are allowed.
    questions: u32,
}

/// Each question walks the whole program, so hostile code must not ask many.
const MOST_QUESTIONS: u32 = 64;

impl Walk<'_> {
    /// What is known at the start of each block; nothing for unreachable ones.
    fn solve(&mut self) -> Vec<Option<State>> {
        let program = self.program;
        let mut entries: Vec<Option<State>> = vec![None; program.blocks.len()];
        if let Some(first) = entries.first_mut() {
            *first = Some(State::new());
        }
        let mut work = vec![0];
        while let Some(number) = work.pop() {
            let Some(entry) = entries.get(number).cloned().flatten() else { continue };
            let state = self.block(number, entry, false);
            for successor in program.blocks[number].successors.into_iter().flatten() {
                let successor = successor as usize;
                let united = match &entries[successor] {
                    None => state.clone(),
                    Some(known) => self.unite(successor, known, &state),
                };
                if entries[successor].as_ref() != Some(&united) {
                    entries[successor] = Some(united);
                    work.push(successor);
                }
            }
        }
        entries
    }

    /// What is known where two paths meet. A literal from only one of them is dropped, unless nobody reads the register
    /// again.
    fn unite(&mut self, block: usize, one: &State, other: &State) -> State {
        let find = |state: &State, register| state.iter().find(|it| it.register == register).copied();
        for (known, others) in one.iter().map(|it| (it, other)).chain(other.iter().map(|it| (it, one))) {
            let literal = known.literal.filter(|literal| !self.escaped.contains(literal));
            if literal.is_some() && find(others, known.register).and_then(|it| it.literal) != literal {
                let values = Values { scalars: ScalarSet::range(known.register, 1), scc: false };
                let first = self.program.blocks[block].first as usize;
                self.questions = self.questions.saturating_sub(1);
                if self.questions == 0 || !are_dead(self.program, first, values) {
                    self.escaped.extend(literal);
                }
            }
        }
        let both = one.iter().filter_map(|known| {
            let second = find(other, known.register)?;
            let literal = known.literal.filter(|_| known.literal == second.literal);
            Some(Known { zeros: known.zeros & second.zeros, literal, ..*known })
        });
        both.filter(|known| known.zeros != 0).collect()
    }

    /// What is known at the end of a block; `reports` notes what is out of range in it.
    fn block(&mut self, number: usize, mut state: State, reports: bool) -> State {
        let block = &self.program.blocks[number];
        for index in block.first..block.end {
            let instruction = &self.program.instructions[index as usize];
            if reports {
                self.report(&state, index, instruction);
            }
            self.step(&mut state, index, instruction);
        }
        state
    }

    fn report(&mut self, state: &State, index: u32, instruction: &Instruction) {
        let Some(first) = descriptor(instruction) else { return };
        let known = |word| state.iter().find(|it| it.register == first + word);
        let is_zero = |known: Option<&Known>, bits| known.is_some_and(|it| it.zeros & bits == bits);
        let last = known(3);
        if is_zero(known(1), STRIDE) && is_zero(last, RANGE_CHECK) {
            self.found.push(OutOfRange { index, literal: last.and_then(|it| it.literal) });
        }
    }

    fn step(&mut self, state: &mut State, index: u32, instruction: &Instruction) {
        let effects = instruction.effects(self.program.wave64);
        let writes = effects.writes | effects.mask_writes;
        // Relative moves and calls reach any register, and a return passes them on.
        let anything = instruction.definition.mnemonic.starts_with("s_movrel") || instruction.is_call();
        let leaves = instruction.ends_block_for_good() && instruction.definition.mnemonic.starts_with("s_setpc");
        let in_descriptor = descriptor(instruction).or_else(|| scalar_descriptor(instruction)).map(|first| first + 3);
        let copies = instruction.is_any(&[S_MOV_B32, S_MOV_B64]);
        let keeps_some = instruction.is_any(&[S_CMOV_B32, S_CMOVK_I32]);
        for known in state.iter().filter(|it| it.literal.is_some()) {
            let register = ScalarSet::range(known.register, 1);
            let reads = effects.reads.meets(register) && !copies && in_descriptor != Some(known.register);
            // As an offset for all lanes it is a number, not a descriptor.
            let counts =
                in_descriptor.is_some() && descriptor(instruction).is_some() && offset(instruction) == known.register;
            if reads || counts || anything || leaves || keeps_some && writes.meets(register) {
                self.escaped.extend(known.literal);
            }
        }
        let new: State = result(state, index, instruction)
            .into_iter()
            .filter(|it| self.followed.meets(ScalarSet::range(it.register, 1)) && it.zeros != 0)
            .collect();
        if anything {
            state.clear();
        }
        state.retain(|it| !writes.meets(ScalarSet::range(it.register, 1)));
        state.extend(new);
        state.sort_by_key(|it| it.register);
    }
}

/// The field of a buffer access for an offset that all lanes share.
fn offset(instruction: &Instruction) -> u8 {
    instruction.high_bits(24, 8) as u8
}

/// The descriptor of a scalar load from a buffer, which does not read OOB_SELECT.
fn scalar_descriptor(instruction: &Instruction) -> Option<u8> {
    let loads = instruction.format() == Format::Smem && instruction.definition.mnemonic.starts_with("s_buffer_load");
    loads.then(|| instruction.bits(0, 6) as u8 * 2)
}

/// The known effects of an instruction: none, one register or two.
fn result(state: &State, index: u32, instruction: &Instruction) -> Vec<Known> {
    let operand = |field| instruction.definition.operand(field).map(|slot| instruction.operand(slot));
    let Some(OperandValue::Scalar(register)) = operand(Field::Destination) else { return Vec::new() };
    let known = |value: Option<OperandValue>, word: u8| -> Option<(u32, Option<u32>)> {
        match value? {
            OperandValue::Scalar(from) => {
                state.iter().find(|it| it.register == from + word).map(|it| (it.zeros, it.literal))
            }
            OperandValue::Literal(value) if word == 0 => Some((!value, Some(index))),
            OperandValue::Literal(_) => Some((u32::MAX, None)),
            OperandValue::Integer(value) if word == 0 => Some((!(value as i32 as u32), None)),
            OperandValue::Integer(value) => Some((!((value as i32 >> 31) as u32), None)),
            _ => None,
        }
    };
    let one = |zeros: Option<u32>| zeros.map(|zeros| Known { register, zeros, literal: None }).into_iter().collect();
    let zeros = |field| known(operand(field), 0).map_or(0, |(zeros, _)| zeros);
    if instruction.is_any(&[S_MOV_B32, S_MOV_B64]) {
        let words = if instruction.is(S_MOV_B32) { 1 } else { 2 };
        let wide = words == 2;
        return (0..words)
            .filter_map(|word| known(operand(Field::Source0), word).map(|found| (word, found)))
            .map(|(word, (zeros, literal))| {
                // A literal of 64 bits stands for two registers: it is not a descriptor word that can be changed.
                let literal = literal.filter(|&at| !wide || at != index);
                Known { register: register + word, zeros, literal }
            })
            .collect();
    }
    if instruction.is(S_MOVK_I32) {
        return one(Some(!(instruction.bits(0, 16) as i16 as i32 as u32)));
    }
    if instruction.is(S_AND_B32) {
        return one(Some(zeros(Field::Source0) | zeros(Field::Source1)));
    }
    if instruction.is(S_OR_B32) {
        return one(Some(zeros(Field::Source0) & zeros(Field::Source1)));
    }
    Vec::new()
}

/// The code with each such descriptor changed to check offsets against NUM_RECORDS, if word 3 is a literal without
/// another use. `None` if nothing can be changed.
pub(crate) fn with_checked_offsets(program: &Program, code: &[u8]) -> Option<Vec<u8>> {
    let literals: BTreeSet<u32> = out_of_range(program).iter().filter_map(|it| it.literal).collect();
    let mut changed = None;
    for index in literals {
        // The literal is the second word of `s_mov_b32`.
        let at = *program.offsets.get(index as usize)? as usize + 4;
        let bytes = changed.get_or_insert_with(|| code.to_vec());
        let word: &mut [u8; 4] = bytes.get_mut(at..at + 4)?.try_into().ok()?;
        *word = (u32::from_le_bytes(*word) | CHECK_OFFSETS).to_le_bytes();
    }
    changed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Chip;

    fn program(words: &[u32]) -> (Program, Vec<u8>) {
        let bytes: Vec<u8> = words.iter().chain(&[0xbf81_0000]).flat_map(|word| word.to_le_bytes()).collect();
        (Program::decode(&bytes, Chip::Gfx1010, false).unwrap(), bytes)
    }

    /// `s_mov_b32 s7, 0x27000`
    const LAST: [u32; 2] = [0xbe87_03ff, 0x0002_7000];
    /// `s_and_b32 s5, s1, 0xffff`
    const SECOND: [u32; 2] = [0x8705_ff01, 0xffff];
    /// `buffer_load_dword v2, v0, s[4:7], 0 offen`
    const LOAD: [u32; 2] = [0xe030_1000, 0x8001_0200];

    fn check(words: &[&[u32]], expected: &[(u32, Option<u32>)]) {
        let (program, _) = program(&words.concat());
        let found: Vec<_> = out_of_range(&program).iter().map(|it| (it.index, it.literal)).collect();
        assert_eq!(found, expected, "{words:x?}");
    }

    #[test]
    fn both_words_must_be_known() {
        check(&[&LAST, &SECOND, &LOAD], &[(2, Some(0))]);
        check(&[&LAST, &LOAD], &[]);
        check(&[&SECOND, &LOAD], &[]);
        // s_mov_b32 s7, 0x31027000, and s_or_b32 s5, s5, 0x100000: a stride of 16
        check(&[&[0xbe87_03ff, 0x3102_7000], &SECOND, &LOAD], &[]);
        check(&[&LAST, &SECOND, &[0x8805_ff05, 0x10_0000], &LOAD], &[]);
        // s_load_dword s7, s[0:1], 0x0 over it
        check(&[&LAST, &SECOND, &[0xf400_01c0, 0xfa00_0000], &LOAD], &[]);
    }

    #[test]
    fn copies_are_followed_and_other_uses_are_seen() {
        // s_mov_b32 s11, s7; s_and_b32 s9, s1, 0xffff; buffer_store_dword v2, v0, s[8:11], 0 offen
        let copy = [&LAST[..], &[0xbe8b_0307], &[0x8709_ff01, 0xffff], &[0xe070_1000, 0x8002_0200]];
        check(&copy, &[(3, Some(0))]);
        // s_mov_b64 s[6:7], s[2:3] of s_mov_b32 s3, 0x27000
        check(&[&[0xbe83_03ff, 0x0002_7000], &[0xbe86_0402], &SECOND, &LOAD], &[(3, Some(0))]);
        // s_add_u32 s12, s7, s7: the number is used as one.
        check(&[&LAST, &SECOND, &LOAD, &[0x800c_0707]], &[(2, None)]);
        // buffer_load_dword v2, v0, s[4:7], s7 offen: as an offset, too.
        check(&[&LAST, &SECOND, &[0xe030_1000, 0x0701_0200]], &[(2, None)]);
        // s_movk_i32 s7, 0x7000 has no literal.
        check(&[&[0xb007_7000], &SECOND, &LOAD], &[(2, None)]);
    }

    #[test]
    fn paths_that_meet_must_agree() {
        // s_cbranch_scc1 over s_mov_b32 s7, 0x31027000
        let one_way = [&LAST[..], &SECOND, &[0xbf85_0002], &[0xbe87_03ff, 0x3102_7000], &LOAD];
        check(&one_way, &[]);
        // Over s_mov_b32 s7, 0x26000: out of range either way, by two literals.
        let both_ways = [&LAST[..], &SECOND, &[0xbf85_0002], &[0xbe87_03ff, 0x0002_6000], &LOAD];
        check(&both_ways, &[(4, None)]);
        // A loop: s_cbranch_scc1 back to the load
        check(&[&LAST, &SECOND, &LOAD, &[0xbf85_fffd]], &[(2, Some(0))]);
        // Behind s_cbranch_scc1 over all of it nobody reads s7 again.
        check(&[&[0xbf85_0006], &LAST, &SECOND, &LOAD], &[(3, Some(1))]);
    }

    #[test]
    fn literals_are_changed_and_nothing_else() {
        let (program, code) = program(&[LAST, SECOND, LOAD].concat());
        let changed = with_checked_offsets(&program, &code).unwrap();
        let words =
            |bytes: &[u8]| -> Vec<u32> { bytes.as_chunks().0.iter().map(|&chunk| u32::from_le_bytes(chunk)).collect() };
        let mut expected = words(&code);
        expected[1] = 0x3102_7000;
        assert_eq!(words(&changed), expected);
        let again = Program::decode(&changed, Chip::Gfx1010, false).unwrap();
        assert!(out_of_range(&again).is_empty() && with_checked_offsets(&again, &changed).is_none());
    }
}
