//! Instructions that gfx1010 lacks, put together from those that it has.
//!
//! Tensile's kernels for gfx1030 are full of two dot products that add to their destination. rocBLAS's own kernels for
//! gfx1010 do without: two mixed-precision multiply-adds for halves, and products of bytes that are added one by one.
//! The sum of bytes is the same to the bit. The sum of halves is rounded twice, as on gfx1010, and may differ in the last
//! bit from what gfx1030 computes.

use crate::opcode::{V_DOT2C_F32_F16, V_DOT4C_I32_I8};
use crate::registers::OperandValue;
use crate::table::Field;
use crate::{Instruction, Modifier};

/// Whether the instruction can be put together, and how many spare vector registers that takes.
pub(super) fn spare_registers(instruction: &Instruction) -> Option<u32> {
    let destination = operand(instruction, Field::Destination)?;
    let (first, second) = (operand(instruction, Field::Source0)?, operand(instruction, Field::Source1)?);
    // The destination is written before the sources are read for the last time.
    if instruction.modifier != Modifier::None || first == destination || second == destination {
        return None;
    }
    if instruction.is(V_DOT2C_F32_F16) {
        Some(0)
    } else if instruction.is(V_DOT4C_I32_I8) {
        Some(1)
    } else {
        None
    }
}

/// The words that do what the instruction does, given that it can be put together.
pub(super) fn words(instruction: &Instruction, spare: u8) -> Option<Vec<u32>> {
    spare_registers(instruction)?;
    let destination = operand(instruction, Field::Destination)?;
    let (first, second) = (operand(instruction, Field::Source0)?, operand(instruction, Field::Source1)?);
    if instruction.is(V_DOT2C_F32_F16) {
        return Some([false, true].iter().flat_map(|&high| mix(destination, first, second, high)).collect());
    }
    let spare = spare as u32;
    // v_add_nc_u32 destination, spare, destination
    let add = 0x4a00_0000 | destination << 17 | destination << 9 | (256 + spare);
    Some((0..4).flat_map(|byte| multiply_bytes(spare, first, second, byte).into_iter().chain([add])).collect())
}

/// The number of a vector register.
fn operand(instruction: &Instruction, field: Field) -> Option<u32> {
    match instruction.operand(instruction.definition.operand(field)?) {
        OperandValue::Vector(register) => Some(register as u32),
        _ => None,
    }
}

/// `v_fma_mix_f32 d, a, b, d` of the lower or the upper halves of a and b.
fn mix(destination: u32, first: u32, second: u32, high: bool) -> [u32; 2] {
    let select = if high { 0x1800 } else { 0 };
    [0xcc20_0000 | select | destination, 0x1c02_0100 | first | second << 9 | destination << 18]
}

/// `v_mul_i32_i24_sdwa d, sext(a), sext(b)` of one byte each.
fn multiply_bytes(destination: u32, first: u32, second: u32, byte: u32) -> [u32; 2] {
    [0x1200_00f9 | destination << 17 | second << 9, 0x0808_0600 | byte << 24 | byte << 16 | first]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_those_of_the_assembler() {
        // llvm-mc -mcpu=gfx1010: v_fma_mix_f32 v3, v1, v2, v3 with op_sel_hi:[1,1,0], then with op_sel:[1,1,0] too.
        assert_eq!(mix(3, 1, 2, false), [0xcc20_0003, 0x1c0e_0501]);
        assert_eq!(mix(3, 1, 2, true), [0xcc20_1803, 0x1c0e_0501]);
        // v_mul_i32_i24_sdwa v9, sext(v1), sext(v2) src0_sel:BYTE_3 src1_sel:BYTE_3
        assert_eq!(multiply_bytes(9, 1, 2, 3), [0x1212_04f9, 0x0b0b_0601]);
        assert_eq!(multiply_bytes(9, 1, 2, 0), [0x1212_04f9, 0x0808_0601]);
        // v_dot4c_i32_i8 v3, v1, v2
        let bytes = 0x1a06_0501u32.to_le_bytes();
        let instruction = crate::decode(&bytes, crate::Chip::Gfx1030).unwrap();
        assert_eq!(words(&instruction, 9).unwrap()[2], 0x4a06_0709, "v_add_nc_u32_e32 v3, v9, v3");
    }
}
