//! The few instructions that repair writes itself, as words.

use crate::Instruction;
use crate::opcode::{
    Opcode, S_NOP, V_ADD_NC_U32, V_FMA_MIX_F32, V_MOV_B32, V_MUL_I32_I24, V_MUL_U32_U24, V_NOT_B32, long as long_form,
};
use crate::registers::OperandValue;

/// `s_nop 0`
pub(super) const NOP: u32 = S_NOP.with_immediate(0);

/// The field value for the constant after the instruction.
const LITERAL: u32 = 255;

/// A source: its field, and the constant after the instruction if the field uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Operand {
    field: u32,
    literal: u32,
}

impl Operand {
    pub(super) fn vector(register: u32) -> Operand {
        Operand { field: 256 + register, literal: 0 }
    }

    /// A number from -16 to 64.
    pub(super) fn integer(value: i32) -> Operand {
        Operand { field: if value < 0 { 192 - value } else { 128 + value } as u32, literal: 0 }
    }

    /// A source of another instruction. If that works on packed halves, its floating-point constants have their value
    /// in the lower half, and zero in the upper one.
    pub(super) fn of(value: OperandValue, is_packed_half: bool) -> Option<Operand> {
        Some(match value {
            OperandValue::Vector(register) => Operand::vector(register as u32),
            OperandValue::Scalar(register) => Operand { field: register as u32, literal: 0 },
            OperandValue::Integer(value) => Operand::integer(value as i32),
            OperandValue::Float(code) if is_packed_half => {
                const HALVES: [u32; 9] = [0x3800, 0xb800, 0x3c00, 0xbc00, 0x4000, 0xc000, 0x4400, 0xc400, 0x3118];
                Operand { field: LITERAL, literal: *HALVES.get(code.checked_sub(240)? as usize)? }
            }
            OperandValue::Float(code) | OperandValue::Special(code) => Operand { field: code as u32, literal: 0 },
            OperandValue::Literal(literal) => Operand { field: LITERAL, literal },
        })
    }

    /// The number of a vector register.
    pub(super) fn as_vector(self) -> Option<u32> {
        self.field.checked_sub(256)
    }

    /// Whether it is neither a vector register nor a scalar one.
    pub(super) fn is_constant(self) -> bool {
        (128..256).contains(&self.field)
    }
}

/// Words with the constant that sources ask for. They ask for the same one: the encodings hold no second.
fn with_literal(mut words: Vec<u32>, sources: &[Operand]) -> Vec<u32> {
    words.extend(sources.iter().find(|source| source.field == LITERAL).map(|source| source.literal));
    words
}

/// A short instruction of two vector registers.
pub(super) fn short(opcode: Opcode, to: u32, first: u32, second: u32) -> u32 {
    (opcode.number as u32) << 25 | to << 17 | second << 9 | (256 + first)
}

/// A long instruction; `select` chooses the upper halves of sources.
pub(super) fn long(opcode: Opcode, to: u32, sources: [Operand; 3], select: u32, clamp: bool) -> Vec<u32> {
    // An instruction with two sources leaves the third's field empty.
    let third = if opcode == long_form::V_SUB_NC_I32
        || opcode == long_form::V_ADD_NC_I32
        || opcode == long_form::V_ADD_NC_U32
    {
        0
    } else {
        sources[2].field
    };
    let first_word = 0xd400_0000 | (opcode.number as u32) << 16 | (clamp as u32) << 15 | select << 11 | to;
    with_literal(vec![first_word, sources[0].field | sources[1].field << 9 | third << 18], &sources)
}

/// `v_mov_b32`
pub(super) fn copy(to: u32, from: Operand) -> Vec<u32> {
    with_literal(vec![0x7e00_0000 | to << 17 | (V_MOV_B32.number as u32) << 9 | from.field], &[from])
}

/// `v_mov_b32` of a vector register with the permutation of another instruction.
pub(super) fn copy_permuted(to: u32, from: u32, like: &Instruction) -> [u32; 2] {
    let field = like.first_word() & 0x1ff;
    [0x7e00_0000 | to << 17 | (V_MOV_B32.number as u32) << 9 | field, like.second_word() & !0xff | from]
}

/// `v_not_b32`
pub(super) fn not(to: u32, from: u32) -> u32 {
    0x7e00_0000 | to << 17 | (V_NOT_B32.number as u32) << 9 | (256 + from)
}

/// `v_add_nc_u32` of anything and a vector register.
pub(super) fn add(to: u32, first: Operand, second: Operand) -> Vec<u32> {
    match second.as_vector() {
        Some(register) => {
            let word = (V_ADD_NC_U32.number as u32) << 25 | to << 17 | register << 9 | first.field;
            with_literal(vec![word], &[first])
        }
        None => long(long_form::V_ADD_NC_U32, to, [first, second, Operand::integer(0)], 0, false),
    }
}

/// What a mixed multiply-add does to its sources and its result.
#[derive(Clone, Copy)]
pub(super) struct Mix {
    /// Which of the factors are upper halves.
    pub select: u32,
    /// Which sources are negated.
    pub negate: u32,
    pub clamp: bool,
}

/// `v_fma_mix_f32` of two halves and a single.
pub(super) fn mix(to: u32, first: Operand, second: Operand, third: Operand, how: Mix) -> Vec<u32> {
    const FACTORS_ARE_HALVES: u32 = 3 << 27;
    let first_word =
        0xcc00_0000 | (V_FMA_MIX_F32.number as u32) << 16 | (how.clamp as u32) << 15 | how.select << 11 | to;
    let sources = first.field | second.field << 9 | third.field << 18;
    with_literal(vec![first_word, sources | FACTORS_ARE_HALVES | how.negate << 29], &[first, second, third])
}

/// `v_mul_i32_i24` or `v_mul_u32_u24` of one byte each of two vector registers, by sub-dword addressing.
pub(super) fn multiply_bytes(to: u32, first: u32, second: u32, byte: u32, signed: bool) -> [u32; 2] {
    const SUB_DWORD: u32 = 0xf9;
    const WHOLE_RESULT: u32 = 6 << 8;
    const SIGNED: u32 = 1 << 19 | 1 << 27;
    let opcode = if signed { V_MUL_I32_I24 } else { V_MUL_U32_U24 };
    let sources = byte << 24 | byte << 16 | first | if signed { SIGNED } else { 0 };
    [(opcode.number as u32) << 25 | to << 17 | second << 9 | SUB_DWORD, sources | WHOLE_RESULT]
}

/// `v_mul_i32_i24` or `v_mul_u32_u24` of two vector registers.
pub(super) fn multiply(to: u32, first: u32, second: u32, signed: bool) -> u32 {
    short(if signed { V_MUL_I32_I24 } else { V_MUL_U32_U24 }, to, first, second)
}

/// `v_bfe_i32` or `v_bfe_u32`: some bits of a vector register.
pub(super) fn extract(to: u32, from: u32, low: u32, count: u32, signed: bool) -> [u32; 2] {
    let opcode = if signed { long_form::V_BFE_I32 } else { long_form::V_BFE_U32 };
    let first_word = 0xd400_0000 | (opcode.number as u32) << 16 | to;
    [first_word, (256 + from) | (128 + low) << 9 | (128 + count) << 18]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_those_of_the_assembler() {
        let [one, two, three] = [1, 2, 3].map(Operand::vector);
        let plain = Mix { select: 0, negate: 0, clamp: false };
        // llvm-mc -mcpu=gfx1010: v_fma_mix_f32 v3, v1, v2, v3 with op_sel_hi:[1,1,0], then with op_sel:[1,1,0] too.
        assert_eq!(mix(3, one, two, three, plain), [0xcc20_0003, 0x1c0e_0501]);
        assert_eq!(mix(3, one, two, three, Mix { select: 3, ..plain }), [0xcc20_1803, 0x1c0e_0501]);
        // v_mul_i32_i24_sdwa v9, sext(v1), sext(v2) src0_sel:BYTE_3 src1_sel:BYTE_3
        assert_eq!(multiply_bytes(9, 1, 2, 3, true), [0x1212_04f9, 0x0b0b_0601]);
        assert_eq!(multiply_bytes(9, 1, 2, 0, true), [0x1212_04f9, 0x0808_0601]);
        // v_add_nc_u32_e32 v3, v9, v3
        assert_eq!(add(3, Operand::vector(9), three), [0x4a06_0709]);
    }
}
