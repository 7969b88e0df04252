//! Addresses that code computes from its own, by `s_getpc_b64`.
//!
//! Two ways are understood. D is a pair of scalar registers and T a third:
//!
//! * LLVM's, for data, calls and branches that do not reach: `s_getpc D; s_add_u32 D.lo, D.lo, low; s_addc_u32 D.hi,
//!   D.hi, high`;
//! * Tensile's long branches (the kernels of rocBLAS). All begin with `s_getpc D; s_add_i32 T, offset, 4`. Forwards:
//!   `s_add_u32 D.lo, D.lo, T; s_addc_u32 D.hi, D.hi, 0; s_setpc D`. Backwards: `s_abs_i32 T, T; s_sub_u32 D.lo, D.lo,
//!   T; s_subb_u32 D.hi, D.hi, 0; s_setpc D`. Either way: `s_cmp_ge_i32 T, 0; s_cbranch_scc1` over the backward form to
//!   the forward one.
//!
//! Instructions that concern themselves with none of it may stand between the parts.

use crate::opcode::{
    Opcode, S_ABS_I32, S_ADD_I32, S_ADD_U32, S_ADDC_U32, S_CBRANCH_SCC1, S_CMP_GE_I32, S_GETPC_B64, S_SETPC_B64,
    S_SUB_U32, S_SUBB_U32,
};
use crate::registers::OperandValue;
use crate::table::Field;
use crate::{Instruction, ScalarSet};

/// Where a reference's offset is in the code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// In `s_add_u32` and `s_addc_u32`, 32 bits each.
    Split { low: u32, high: u32 },
    /// In `s_add_i32`, as its first source; the second is this addend.
    Sum { at: u32, addend: i32 },
}

/// An address that code computes from its own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reference {
    /// The `s_getpc_b64`.
    pub get: u32,
    /// Where the offset stands.
    pub form: Form,
    /// The bytes from the end of `s_getpc_b64` to the target.
    pub offset: i64,
    /// The `s_setpc_b64` that jump there directly.
    pub jumps: [Option<u32>; 2],
    /// The registers that hold parts of it.
    pub registers: ScalarSet,
    /// The last of its instructions.
    pub last: u32,
    /// Where its own branch lands.
    entry: Option<u32>,
}

/// The maximal distance of the last part from `s_getpc_b64`.
const REACH: usize = 32;

/// What an operand names.
fn operand(instruction: &Instruction, field: Field) -> Option<OperandValue> {
    instruction.definition.operand(field).map(|slot| instruction.operand(slot))
}

fn constant(instruction: &Instruction, field: Field) -> Option<i32> {
    match operand(instruction, field)? {
        OperandValue::Literal(value) => Some(value as i32),
        OperandValue::Integer(value) => Some(value as i32),
        _ => None,
    }
}

fn scalar(instruction: &Instruction, field: Field) -> Option<u8> {
    match operand(instruction, field)? {
        OperandValue::Scalar(register) => Some(register),
        _ => None,
    }
}

/// `s_add_i32` of two constants, the second of them inline: two literals would share one word.
struct Sum {
    temporary: u8,
    sum: i32,
    addend: i32,
}

fn sum(instruction: &Instruction) -> Option<Sum> {
    if !instruction.is(S_ADD_I32) {
        return None;
    }
    if matches!(operand(instruction, Field::Source1)?, OperandValue::Literal(_)) {
        return None;
    }
    let (base, addend) = (constant(instruction, Field::Source0)?, constant(instruction, Field::Source1)?);
    Some(Sum { temporary: scalar(instruction, Field::Destination)?, sum: base.wrapping_add(addend), addend })
}

/// The reference that begins with the `s_getpc_b64` at `get`, if it has one of the known forms.
pub(crate) fn find(instructions: &[Instruction], get: usize, wave64: bool) -> Option<Reference> {
    let pair = scalar(instructions.get(get)?, Field::Destination)?;
    let mut walk = Walk { instructions, get, wave64, pair, registers: ScalarSet::range(pair, 2), carry: false };
    // In Tensile's form, the first part does not touch the pair.
    let first = walk.next(get + 1)?;
    let first = (get + 1..first).find(|&index| sum(&instructions[index]).is_some()).unwrap_or(first);
    if let Some(low) = walk.sums(first, S_ADD_U32, pair) {
        let high = walk.after_carry(first)?;
        let high_constant = walk.sums(high, S_ADDC_U32, pair + 1)?;
        let offset = (high_constant as i64) << 32 | low as u32 as i64;
        let jump = walk.next(high + 1).filter(|&jump| walk.jumps(jump));
        let form = Form::Split { low: first as u32, high: high as u32 };
        return Some(walk.reference(form, offset, [jump, None], jump.unwrap_or(high)));
    }
    let Sum { temporary, sum, addend } = sum(&instructions[first])?;
    if walk.registers.meets(ScalarSet::range(temporary, 1)) {
        return None;
    }
    walk.registers |= ScalarSet::range(temporary, 1);
    let form = Form::Sum { at: first as u32, addend };
    let second = walk.next(first + 1)?;
    if let Some(jump) = walk.forwards(second, temporary) {
        return Some(walk.reference(form, sum as u32 as i64, [Some(jump), None], jump));
    }
    if let Some(jump) = walk.backwards(second, temporary) {
        return Some(walk.reference(form, -(sum.unsigned_abs() as i64), [Some(jump), None], jump));
    }
    let compare = &instructions[second];
    let compares = compare.is(S_CMP_GE_I32)
        && scalar(compare, Field::Source0) == Some(temporary)
        && constant(compare, Field::Source1) == Some(0);
    if !compares {
        return None;
    }
    let branch = walk.after_carry(second).filter(|&branch| instructions[branch].is(S_CBRANCH_SCC1))?;
    let back = walk.backwards(walk.next(branch + 1)?, temporary)?;
    let forth = walk.forwards(walk.next(back + 1)?, temporary)?;
    let mut reference = walk.reference(form, sum as i64, [Some(back), Some(forth)], forth);
    // The branch must land between the two parts.
    let words: i64 = instructions[branch + 1..=back].iter().map(|it| it.size() as i64).sum();
    if instructions[branch].branch_distance() != Some(words) {
        return None;
    }
    reference.entry = Some(back as u32 + 1);
    Some(reference)
}

struct Walk<'a> {
    instructions: &'a [Instruction],
    get: usize,
    wave64: bool,
    pair: u8,
    registers: ScalarSet,
    /// Whether SCC is still needed.
    carry: bool,
}

impl Walk<'_> {
    fn reference(&self, form: Form, offset: i64, jumps: [Option<usize>; 2], last: usize) -> Reference {
        let jumps = jumps.map(|jump| jump.map(|jump| jump as u32));
        Reference {
            get: self.get as u32,
            form,
            offset,
            jumps,
            registers: self.registers,
            last: last as u32,
            entry: None,
        }
    }

    /// The first instruction from `from` on that uses the registers or the carry.
    fn next(&self, from: usize) -> Option<usize> {
        let end = self.instructions.len().min(self.get + REACH);
        (from..end).find(|&index| {
            let instruction = &self.instructions[index];
            let definition = instruction.definition;
            let effects = instruction.effects(self.wave64);
            (effects.reads | effects.writes | effects.mask_writes).meets(self.registers)
                || self.carry && (definition.writes_scc || definition.reads_scc)
                || instruction.is_branch()
                || instruction.is_call()
                || instruction.ends_block_for_good()
        })
    }

    /// The next part after one that sets SCC.
    fn after_carry(&self, index: usize) -> Option<usize> {
        Walk { carry: true, ..*self }.next(index + 1)
    }

    /// The constant of an instruction that adds one to a register.
    fn sums(&self, index: usize, opcode: Opcode, register: u8) -> Option<i32> {
        let instruction = self.instructions.get(index)?;
        let same = scalar(instruction, Field::Destination) == Some(register)
            && scalar(instruction, Field::Source0) == Some(register);
        constant(instruction, Field::Source1).filter(|_| same && instruction.is(opcode))
    }

    fn jumps(&self, index: usize) -> bool {
        let instruction = &self.instructions[index];
        instruction.is(S_SETPC_B64) && scalar(instruction, Field::Source0) == Some(self.pair)
    }

    /// D ± T, then the jump: where the jump stands.
    fn arithmetic(&self, first: usize, low: Opcode, high: Opcode, temporary: u8) -> Option<usize> {
        let instruction = self.instructions.get(first)?;
        let starts = instruction.is(low)
            && scalar(instruction, Field::Destination) == Some(self.pair)
            && scalar(instruction, Field::Source0) == Some(self.pair)
            && scalar(instruction, Field::Source1) == Some(temporary);
        if !starts {
            return None;
        }
        let second = self.after_carry(first)?;
        if self.sums(second, high, self.pair + 1) != Some(0) {
            return None;
        }
        self.next(second + 1).filter(|&jump| self.jumps(jump))
    }

    fn forwards(&self, first: usize, temporary: u8) -> Option<usize> {
        self.arithmetic(first, S_ADD_U32, S_ADDC_U32, temporary)
    }

    fn backwards(&self, first: usize, temporary: u8) -> Option<usize> {
        let instruction = self.instructions.get(first)?;
        let makes_positive = instruction.is(S_ABS_I32)
            && scalar(instruction, Field::Destination) == Some(temporary)
            && scalar(instruction, Field::Source0) == Some(temporary);
        if !makes_positive {
            return None;
        }
        self.arithmetic(self.next(first + 1)?, S_SUB_U32, S_SUBB_U32, temporary)
    }
}

impl Reference {
    /// Whether a jump to this instruction lands between the parts.
    pub(crate) fn is_entered_at(&self, index: u32) -> bool {
        (self.get + 1..=self.last).contains(&index) && self.entry != Some(index)
    }
}

/// Whether the instruction is the start of a reference.
pub(crate) fn begins(instruction: &Instruction) -> bool {
    instruction.is(S_GETPC_B64)
}
