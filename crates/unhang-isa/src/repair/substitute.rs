//! Instructions that gfx1010 lacks, put together from those that it has: the dot products of gfx1030.
//!
//! Integers come out the same to the bit, with and without `clamp`.
//!
//! Halves (`v_dot2_f32_f16`, `v_dot2c_f32_f16`) become two `v_fma_mix_f32`, as rocBLAS's own kernels for gfx1010 have them:
//! the lower product is added first, then the upper one, and each sum is rounded. AMD's ISA documents give the formula
//! without saying how often gfx1030 rounds, so the last bit may differ from a gfx1030. LLVM says one thing more
//! (`performFMACombine` in `SIISelLowering.cpp`): gfx1030 flushes denormal singles here whatever the mode says, and
//! `v_fma_mix_f32` follows the mode.
//!
//! A source may be anything that the encoding allows. What the replacement cannot read is copied to a spare vector register
//! first. With DPP the first source is permuted by `v_mov_b32`, and lanes that DPP turns off keep their destination.

use super::encode::{self, Operand};
use crate::opcode::{
    V_DOT2_F32_F16, V_DOT2_I32_I16, V_DOT2_U32_U16, V_DOT2C_F32_F16, V_DOT4_I32_I8, V_DOT4_U32_U8, V_DOT4C_I32_I8,
    V_DOT8_I32_I4, V_DOT8_U32_U4, V_XNOR_B32, long,
};
use crate::registers::OperandValue;
use crate::table::{Field, Format};
use crate::{Instruction, Modifier};

/// How many spare vector registers the replacement of an instruction needs; `None` if there is no replacement.
pub(super) fn spare_registers(instruction: &Instruction) -> Option<u32> {
    Replacement::of(instruction, &[]).map(|it| it.spare_used)
}

/// The words that replace the instruction, if these registers suffice.
pub(super) fn words(instruction: &Instruction, spare: &[u8]) -> Option<Vec<u32>> {
    let replacement = Replacement::of(instruction, spare)?;
    (replacement.spare_used as usize <= spare.len()).then_some(replacement.words)
}

/// What the parts of a dot product are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Parts {
    Halves,
    Whole { bits: u32, signed: bool },
}

const DOTS: [(crate::opcode::Opcode, Parts); 9] = [
    (V_DOT2_F32_F16, Parts::Halves),
    (V_DOT2C_F32_F16, Parts::Halves),
    (V_DOT2_I32_I16, Parts::Whole { bits: 16, signed: true }),
    (V_DOT2_U32_U16, Parts::Whole { bits: 16, signed: false }),
    (V_DOT4_I32_I8, Parts::Whole { bits: 8, signed: true }),
    (V_DOT4C_I32_I8, Parts::Whole { bits: 8, signed: true }),
    (V_DOT4_U32_U8, Parts::Whole { bits: 8, signed: false }),
    (V_DOT8_I32_I4, Parts::Whole { bits: 4, signed: true }),
    (V_DOT8_U32_U4, Parts::Whole { bits: 4, signed: false }),
];

/// The factors and the third term of a dot product, and where the sum goes.
#[derive(Clone, Copy)]
struct Terms {
    to: u32,
    first: Operand,
    second: Operand,
    third: Operand,
    modifiers: Modifiers,
}

/// The modifiers of the packed encoding; one bit for each source.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Modifiers {
    /// For the lower and the upper product, whether a source's upper half is meant.
    select: [u32; 2],
    /// For the lower and the upper product, whether a source is negated.
    negate: [u32; 2],
    clamp: bool,
}

impl Modifiers {
    const NONE: Modifiers = Modifiers { select: [0, 7], negate: [0, 0], clamp: false };

    fn of(instruction: &Instruction) -> Modifiers {
        if instruction.format() != Format::Vop3p {
            return Modifiers::NONE;
        }
        Modifiers {
            select: [instruction.bits(11, 3), instruction.high_bits(27, 2) | instruction.bits(14, 1) << 2],
            negate: [instruction.high_bits(29, 3), instruction.bits(8, 3)],
            clamp: instruction.bits(15, 1) == 1,
        }
    }
}

struct Replacement<'a> {
    words: Vec<u32>,
    spare: &'a [u8],
    spare_used: u32,
}

impl Replacement<'_> {
    fn of<'a>(instruction: &Instruction, spare: &'a [u8]) -> Option<Replacement<'a>> {
        let (_, parts) = *DOTS.iter().find(|(opcode, _)| instruction.is(*opcode))?;
        let is_half = parts == Parts::Halves;
        let operand = |field| Some(instruction.operand(instruction.definition.operand(field)?));
        let OperandValue::Vector(to) = operand(Field::Destination)? else { return None };
        let factor = |field| Operand::of(operand(field)?, is_half);
        // The short forms add to their destination.
        let third = match operand(Field::Source2) {
            Some(value) => Operand::of(value, false)?,
            None => Operand::vector(to as u32),
        };
        let modifiers = Modifiers::of(instruction);
        let terms =
            Terms { to: to as u32, first: factor(Field::Source0)?, second: factor(Field::Source1)?, third, modifiers };
        // An absolute third term, and what negation and selection mean for integers other than halves, is not documented.
        let is_documented = match parts {
            Parts::Halves => modifiers.negate[1] & 4 == 0,
            Parts::Whole { bits: 16, .. } => modifiers.negate == [0, 0],
            Parts::Whole { .. } => Modifiers { clamp: false, ..modifiers } == Modifiers::NONE,
        };
        let mut replacement = Replacement { words: Vec::new(), spare, spare_used: 0 };
        match instruction.modifier {
            _ if !is_documented => return None,
            Modifier::None => replacement.dot(parts, terms)?,
            Modifier::Dpp16 | Modifier::Dpp8 => replacement.permuted(instruction, parts, terms)?,
            Modifier::Sdwa => return None,
        }
        Some(replacement)
    }

    fn spare(&mut self) -> u32 {
        let register = self.spare.get(self.spare_used as usize).copied().unwrap_or(0);
        self.spare_used += 1;
        // If none are left the words are not used; the count says so.
        register as u32
    }

    fn emit<const N: usize>(&mut self, words: [u32; N]) {
        self.words.extend(words);
    }

    /// The vector register that holds an operand, after a copy if need be.
    fn in_vector(&mut self, operand: Operand) -> u32 {
        operand.as_vector().unwrap_or_else(|| {
            let spare = self.spare();
            self.words.extend(encode::copy(spare, operand));
            spare
        })
    }

    fn dot(&mut self, parts: Parts, terms: Terms) -> Option<()> {
        match parts {
            Parts::Halves => self.dot_of_halves(terms),
            Parts::Whole { bits: 16, signed } => self.dot_of_whole_halves(terms, signed),
            Parts::Whole { bits, signed } => self.dot_of_small_parts(terms, bits, signed),
        }
        Some(())
    }

    /// Where partial sums are stored: in the destination, unless a factor must still be read there.
    fn sum_register(&mut self, to: u32, factors: [Operand; 2]) -> u32 {
        if factors.iter().any(|factor| factor.as_vector() == Some(to)) { self.spare() } else { to }
    }

    /// Two multiply-adds of halves, each rounded to a single.
    fn dot_of_halves(&mut self, Terms { to, first, second, third, modifiers }: Terms) {
        // This instruction reads a constant's halves separately; `v_fma_mix_f32` does not.
        let [first, second] = [first, second]
            .map(|factor| if factor.is_constant() { Operand::vector(self.in_vector(factor)) } else { factor });
        let sum = self.sum_register(to, [first, second]);
        let Modifiers { select, negate, clamp } = modifiers;
        let low = encode::Mix { select: select[0] & 3, negate: negate[0] & 7, clamp: false };
        self.words.extend(encode::mix(sum, first, second, third, low));
        let high = encode::Mix { select: select[1] & 3, negate: negate[1] & 3, clamp };
        self.words.extend(encode::mix(to, first, second, Operand::vector(sum), high));
    }

    /// Two multiply-adds of whole halves.
    fn dot_of_whole_halves(&mut self, Terms { to, first, second, third, modifiers }: Terms, signed: bool) {
        let [first, second] = [first, second]
            .map(|factor| if factor.is_constant() { Operand::vector(self.in_vector(factor)) } else { factor });
        let opcode = if signed { long::V_MAD_I32_I16 } else { long::V_MAD_U32_U16 };
        let [low, high] = modifiers.select.map(|select| select & 3);
        if !modifiers.clamp {
            let sum = self.sum_register(to, [first, second]);
            self.words.extend(encode::long(opcode, sum, [first, second, third], low, false));
            self.words.extend(encode::long(opcode, to, [first, second, Operand::vector(sum)], high, false));
            return;
        }
        let sum = self.spare();
        if signed {
            // The sum of both products may be one too large for 32 bits, so it is kept less one. From there to the third term is
            // one subtraction that saturates: -(sum - 1) - 1 is the bits of sum - 1 inverted.
            let minus_one = Operand::integer(-1);
            self.words.extend(encode::long(opcode, sum, [first, second, minus_one], low, false));
            self.words.extend(encode::long(opcode, sum, [first, second, Operand::vector(sum)], high, false));
            self.emit([encode::not(sum, sum)]);
            let last = [third, Operand::vector(sum), Operand::integer(0)];
            self.words.extend(encode::long(long::V_SUB_NC_I32, to, last, 0, true));
        } else {
            // Products of 16 bits fit, and nothing is subtracted, so saturating twice is saturating once.
            let zero = Operand::integer(0);
            let product = sum;
            let total = self.sum_register(to, [first, second]);
            for (select, term, goes) in [(low, third, total), (high, Operand::vector(total), to)] {
                self.words.extend(encode::long(opcode, product, [first, second, zero], select, false));
                let sum = [term, Operand::vector(product), zero];
                self.words.extend(encode::long(long::V_ADD_NC_U32, goes, sum, 0, true));
            }
        }
    }

    /// Products of bytes or of halves of bytes, added one by one.
    fn dot_of_small_parts(&mut self, Terms { to, first, second, third, modifiers }: Terms, bits: u32, signed: bool) {
        let [first, second] = [first, second].map(|factor| self.in_vector(factor));
        let product = self.spare();
        let other = if bits == 4 { self.spare() } else { product };
        let parts = 32 / bits;
        let saturates_last = modifiers.clamp && signed;
        let sum = match saturates_last {
            true => self.spare(),
            false => self.sum_register(to, [first, second].map(Operand::vector)),
        };
        for part in 0..parts {
            let goes = if saturates_last && part == 0 { sum } else { product };
            if bits == 8 {
                self.emit(encode::multiply_bytes(goes, first, second, part, signed));
            } else {
                self.emit(encode::extract(product, first, part * bits, bits, signed));
                self.emit(encode::extract(other, second, part * bits, bits, signed));
                self.emit([encode::multiply(goes, product, other, signed)]);
            }
            let product = Operand::vector(product);
            let so_far = if part == 0 { third } else { Operand::vector(sum) };
            let goes = if part + 1 == parts { to } else { sum };
            match (saturates_last, modifiers.clamp) {
                // Terms that fit in 32 bits in any order are added first, and the third term last.
                (true, _) if part > 0 => self.words.extend(encode::add(sum, Operand::vector(sum), product)),
                (true, _) => {}
                (false, true) => {
                    let sum = [so_far, product, Operand::integer(0)];
                    self.words.extend(encode::long(long::V_ADD_NC_U32, goes, sum, 0, true));
                }
                (false, false) => self.words.extend(encode::add(goes, so_far, product)),
            }
        }
        if saturates_last {
            let sum = [third, Operand::vector(sum), Operand::integer(0)];
            self.words.extend(encode::long(long::V_ADD_NC_I32, to, sum, 0, true));
        }
    }

    /// A dot product whose first factor is permuted. Lanes that the permutation turns off show in two copies that began
    /// differently, with zeros and with ones: there the copies still differ, and there the destination is kept.
    fn permuted(&mut self, instruction: &Instruction, parts: Parts, terms: Terms) -> Option<()> {
        let source = terms.first.as_vector()?;
        // What the signs of DPP16 mean for packed halves is not documented.
        if instruction.modifier == Modifier::Dpp16 && instruction.high_bits(20, 4) != 0 {
            return None;
        }
        let [first, on, result] = [self.spare(), self.spare(), self.spare()];
        for (copy, start) in [(first, 0), (on, -1)] {
            self.words.extend(encode::copy(copy, Operand::integer(start)));
            self.emit(encode::copy_permuted(copy, source, instruction));
        }
        self.emit([encode::short(V_XNOR_B32, on, first, on)]);
        self.dot(parts, Terms { to: result, first: Operand::vector(first), ..terms })?;
        let [mask, new, old] = [on, result, terms.to].map(Operand::vector);
        self.words.extend(encode::long(long::V_BFI_B32, terms.to, [mask, new, old], 0, false));
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Chip;

    fn instruction(words: &[u32]) -> Instruction {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        crate::decode(&bytes, Chip::Gfx1030).unwrap()
    }

    fn texts(words: &[u32], spare: &[u8]) -> Option<Vec<String>> {
        let words = super::words(&instruction(words), spare)?;
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let mut at = 0;
        let mut texts = Vec::new();
        while at < bytes.len() {
            let one = crate::decode(&bytes[at..], Chip::Gfx1010).unwrap();
            texts.push(one.text(false).to_string());
            at += one.size();
        }
        Some(texts)
    }

    #[test]
    fn halves_need_no_register_unless_the_destination_is_a_factor() {
        // v_dot2_f32_f16 v3, v1, v2, v4
        let apart = [0xcc13_4003, 0x1c12_0501];
        assert_eq!(spare_registers(&instruction(&apart)), Some(0));
        let expected = [
            "v_fma_mix_f32 v3, v1, v2, v4 op_sel_hi:[1,1,0]",
            "v_fma_mix_f32 v3, v1, v2, v3 op_sel:[1,1,0] op_sel_hi:[1,1,0]",
        ];
        assert_eq!(texts(&apart, &[]).unwrap(), expected);
        // v_dot2_f32_f16 v1, v1, v2, v4
        let over = [0xcc13_4001, 0x1c12_0501];
        assert_eq!(spare_registers(&instruction(&over)), Some(1));
        assert!(texts(&over, &[]).is_none());
        let texts = texts(&over, &[9]).unwrap();
        assert!(
            texts[0].starts_with("v_fma_mix_f32 v9, v1, v2, v4")
                && texts[1].starts_with("v_fma_mix_f32 v1, v1, v2, v9")
        );
    }

    #[test]
    fn bytes_with_a_constant_are_multiplied_from_a_register() {
        // v_dot4c_i32_i8 v3, 0x1010101, v2
        let words = [0x1a06_04ff, 0x0101_0101];
        assert_eq!(spare_registers(&instruction(&words)), Some(2));
        assert!(texts(&words, &[9]).is_none());
        let texts = texts(&words, &[9, 10]).unwrap();
        assert_eq!(texts[0], "v_mov_b32_e32 v9, 0x1010101");
        assert_eq!(
            texts[1],
            "v_mul_i32_i24_sdwa v10, sext(v9), sext(v2) dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:BYTE_0 src1_sel:BYTE_0"
        );
        assert_eq!(texts[2], "v_add_nc_u32_e32 v3, v3, v10");
        assert_eq!(texts.len(), 9);
    }

    #[test]
    fn what_the_documents_do_not_define_is_left() {
        // v_dot4_i32_i8 with op_sel, v_dot2_f32_f16 with neg_hi of the third source.
        assert_eq!(spare_registers(&instruction(&[0xcc16_4814, 0x1c3a_190a])), None);
        assert_eq!(spare_registers(&instruction(&[0xcc13_4414, 0x1c3a_190a])), None);
        // v_add_nc_u32: the chip has it.
        assert_eq!(spare_registers(&instruction(&[0x4a06_0709])), None);
    }
}
