//! From bytes to one instruction.

use thiserror::Error;

use crate::opcode::{
    Opcode, S_SETREG_IMM32_B32, V_ASHRREV_I32, V_LSHLREV_B32, V_LSHRREV_B32, V_SUBREV_CO_CI_U32, V_SUBREV_NC_U32,
};
use crate::registers::OperandValue;
use crate::table::{Definition, Field, Flow, Format, OperandKind, Slot, look_up, shape};
use crate::{Chip, ScalarSet};

/// Words of the longest instruction: an image instruction with three words of extra addresses.
const MAX_WORDS: usize = 5;

/// Why bytes are not an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// The bytes end inside the instruction.
    #[error("the code ends inside an instruction")]
    Truncated,
    /// No chip of the family, or not this one, has such an instruction.
    #[error("the word {word:#010x} is not an instruction of {chip}")]
    Unknown {
        /// The first word of the instruction.
        word: u32,
        /// The chip that it was decoded for.
        chip: Chip,
    },
    /// The instruction exists, but a field holds a meaningless number.
    #[error("the instruction {mnemonic} with first word {word:#010x} has a field that means nothing")]
    BadField {
        /// The first word of the instruction.
        word: u32,
        /// The instruction that its opcode names.
        mnemonic: &'static str,
    },
}

/// What follows the first word of a short vector instruction, if anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Modifier {
    /// Nothing, or a 32-bit constant.
    None,
    /// Sub-dword addressing: bytes and halves of registers.
    Sdwa,
    /// Data-parallel permutation within rows of 16 lanes.
    Dpp16,
    /// Data-parallel permutation within 8 lanes.
    Dpp8,
}

/// One decoded instruction: its row in the table and its words.
#[derive(Clone, Copy, Debug)]
pub struct Instruction {
    /// The row of the instruction table.
    pub definition: &'static Definition,
    /// What follows a short vector instruction.
    pub modifier: Modifier,
    word_count: u8,
    words: [u32; MAX_WORDS],
}

/// Whether a source field uses the 32-bit constant after the instruction.
const LITERAL: u32 = 255;

/// Reads the instruction at the start of `bytes` as `chip` would.
///
/// ```
/// use unhang_isa::{Chip, decode};
/// let instruction = decode(&[0x01, 0x00, 0xa0, 0xbf], Chip::Gfx1030).unwrap();
/// assert_eq!(instruction.size(), 4);
/// assert_eq!(instruction.text(false).to_string(), "s_inst_prefetch 0x1");
/// ```
#[inline]
pub fn decode(bytes: &[u8], chip: Chip) -> Result<Instruction, DecodeError> {
    let word = |place: usize| match bytes.get(place * 4..place * 4 + 4) {
        Some(&[a, b, c, d]) => Some(u32::from_le_bytes([a, b, c, d])),
        _ => None,
    };
    let first = word(0).ok_or(DecodeError::Truncated)?;
    // It only matters if the instruction has a second word, and then it is checked below.
    let second = word(1).unwrap_or(0);
    let (format, opcode, mut count) = classify(first, second);
    let definition = look_up(chip, format, opcode).ok_or(DecodeError::Unknown { word: first, chip })?;
    let bad_field = || DecodeError::BadField { word: first, mnemonic: definition.mnemonic };
    let shape = definition.shape;
    let mut modifier = Modifier::None;
    let mut valid = true;
    match format {
        Format::Vop1 | Format::Vop2 | Format::Vopc => {
            if shape & shape::CONSTANT != 0 {
                count = 2;
            }
            let source = first & 0x1ff;
            // Most sources are vector registers, for which none of the following applies.
            if source < 256 && shape & shape::SOURCE_0 != 0 {
                match source {
                    LITERAL => count = 2,
                    249 => (count, modifier) = (2, Modifier::Sdwa),
                    250 => (count, modifier) = (2, Modifier::Dpp16),
                    233 | 234 => (count, modifier) = (2, Modifier::Dpp8),
                    _ => valid = means_something(source),
                }
                if modifier != Modifier::None {
                    valid = shape & (shape::CONSTANT | shape::WIDE) == 0;
                }
                if modifier == Modifier::Sdwa && second & (1 << 23) != 0 {
                    valid &= means_something(second & 0xff) && second & 0xff != LITERAL;
                }
            }
        }
        Format::Vop3 | Format::Vop3p => {
            let mut literal = false;
            for (bit, low) in [(shape::SOURCE_0, 0), (shape::SOURCE_1, 9), (shape::SOURCE_2, 18)] {
                let source = (second >> low) & 0x1ff;
                if shape & bit != 0 && source < 256 {
                    literal |= source == LITERAL;
                    valid &= means_something(source);
                }
            }
            count += literal as usize;
        }
        Format::Sop2 | Format::Sopc => {
            let (a, b) = (first & 0xff, (first >> 8) & 0xff);
            valid = means_something(a) && means_something(b);
            count += (a == LITERAL || b == LITERAL) as usize;
        }
        Format::Sop1 if shape & shape::SOURCE_0 != 0 => {
            valid = means_something(first & 0xff);
            count += (first & 0xff == LITERAL) as usize;
        }
        Format::Sopk if opcode == S_SETREG_IMM32_B32.number => count = 2,
        _ => {}
    }
    if !valid {
        return Err(bad_field());
    }
    let mut words = [first, 0, 0, 0, 0];
    for (place, slot) in words.iter_mut().enumerate().take(count).skip(1) {
        *slot = word(place).ok_or(DecodeError::Truncated)?;
    }
    Ok(Instruction { definition, modifier, word_count: count as u8, words })
}

/// Whether a source field below 256 names anything: a scalar register, a small number, a special value or the constant.
#[inline]
fn means_something(field: u32) -> bool {
    field < 209 || (235..=248).contains(&field) || (251..=255).contains(&field)
}

/// Encoding, opcode and number of words without constants, from the leading bits.
#[inline]
fn classify(first: u32, second: u32) -> (Format, u16, usize) {
    let bits = |low: u32, count: u32| ((first >> low) & ((1 << count) - 1)) as u16;
    if first >> 31 == 0 {
        return match first >> 25 {
            0x3f => (Format::Vop1, bits(9, 8), 1),
            0x3e => (Format::Vopc, bits(17, 8), 1),
            _ => (Format::Vop2, bits(25, 6), 1),
        };
    }
    if first >> 30 == 0b10 {
        return match first >> 23 {
            0x17d => (Format::Sop1, bits(8, 8), 1),
            0x17e => (Format::Sopc, bits(16, 7), 1),
            0x17f => (Format::Sopp, bits(16, 7), 1),
            _ if first >> 28 == 0b1011 => (Format::Sopk, bits(23, 5), 1),
            _ => (Format::Sop2, bits(23, 7), 1),
        };
    }
    // A number in no table marks encodings that gfx10 lacks.
    const NOTHING: u16 = u16::MAX;
    match first >> 26 {
        0b110010 => (Format::Vintrp, 0, 1),
        0b110011 => (Format::Vop3p, if bits(23, 3) == 0 { bits(16, 7) } else { NOTHING }, 2),
        0b110101 => (Format::Vop3, bits(16, 10), 2),
        0b110110 => (Format::Ds, bits(18, 8), 2),
        0b110111 => {
            let opcode = if bits(25, 1) == 0 { bits(18, 7) } else { NOTHING };
            match bits(14, 2) {
                0 => (Format::Flat, opcode, 2),
                1 => (Format::Scratch, opcode, 2),
                2 => (Format::Global, opcode, 2),
                _ => (Format::Flat, NOTHING, 2),
            }
        }
        0b111000 => (Format::Mubuf, bits(18, 8), 2),
        0b111010 => (Format::Mtbuf, bits(16, 3) | (((second >> 21) & 1) << 3) as u16, 2),
        0b111100 => (Format::Mimg, bits(18, 7) | bits(0, 1) << 7, 2 + bits(1, 2) as usize),
        0b111101 => (Format::Smem, bits(18, 8), 2),
        0b111110 => (Format::Exp, 0, 2),
        _ => (Format::Exp, NOTHING, 2),
    }
}

impl Instruction {
    /// Its length in bytes.
    #[inline]
    pub fn size(&self) -> usize {
        self.word_count as usize * 4
    }

    /// Its words.
    pub fn words(&self) -> &[u32] {
        &self.words[..self.word_count as usize]
    }

    /// The first word.
    #[inline]
    pub fn first_word(&self) -> u32 {
        self.words[0]
    }

    /// The second word, or 0.
    #[inline]
    pub fn second_word(&self) -> u32 {
        self.words[1]
    }

    /// The 32-bit constant at its end; meaningless unless an operand uses it.
    #[inline]
    pub fn literal(&self) -> u32 {
        self.words[self.word_count as usize - 1]
    }

    /// The encoding.
    #[inline]
    pub fn format(&self) -> Format {
        self.definition.format
    }

    /// Whether it is this instruction of this encoding.
    #[inline]
    pub fn is(&self, opcode: Opcode) -> bool {
        self.definition.opcode == opcode.number && self.definition.format == opcode.format
    }

    /// Whether it is one of these.
    pub(crate) fn is_any(&self, opcodes: &[Opcode]) -> bool {
        opcodes.iter().any(|&opcode| self.is(opcode))
    }

    /// The source whose lanes data-parallel permutation (DPP) exchanges, if the instruction has it. The sequencer turns
    /// the operands of reversed integer subtractions and shifts around before it permutes, so that the second is meant:
    /// found on real chips and confirmed by AMD (Mesa commit 140ca3bb50a, llvm-project pull request 216835; both 2026).
    /// AMD's documents name the first for all.
    #[inline]
    pub fn permuted_source(&self) -> Option<Field> {
        let reversed = [V_SUBREV_NC_U32, V_SUBREV_CO_CI_U32, V_LSHRREV_B32, V_ASHRREV_I32, V_LSHLREV_B32];
        match self.modifier {
            Modifier::None | Modifier::Sdwa => None,
            Modifier::Dpp16 | Modifier::Dpp8 if self.is_any(&reversed) => Some(Field::Source1),
            Modifier::Dpp16 | Modifier::Dpp8 => Some(Field::Source0),
        }
    }

    /// The 16-bit constant of SOPK and SOPP.
    #[inline]
    pub fn immediate(&self) -> u16 {
        self.words[0] as u16
    }

    /// `count` bits of the first word from `low` on.
    #[inline]
    pub fn bits(&self, low: u32, count: u32) -> u32 {
        (self.words[0] >> low) & ((1 << count) - 1)
    }

    /// `count` bits of the second word from `low` on.
    #[inline]
    pub fn high_bits(&self, low: u32, count: u32) -> u32 {
        (self.words[1] >> low) & ((1 << count) - 1)
    }

    /// The number in an operand's field, in the numbering of nine-bit sources: 256 and up are vector registers.
    #[inline]
    fn field(&self, field: Field) -> u16 {
        let value = match (self.format(), field) {
            (Format::Sop2 | Format::Sop1 | Format::Sopk, Field::Destination) => self.bits(16, 7),
            (Format::Sopk, _) => self.bits(16, 7),
            (Format::Sop2 | Format::Sop1 | Format::Sopc, Field::Source0) => self.bits(0, 8),
            (Format::Sop2 | Format::Sopc, Field::Source1) => self.bits(8, 8),
            (Format::Smem, Field::Destination | Field::Source1) => self.bits(6, 7),
            (Format::Smem, Field::Source0) => self.bits(0, 6) << 1,
            (Format::Vop1 | Format::Vop2, Field::Destination) => self.bits(17, 8),
            (Format::Vop1 | Format::Vop2 | Format::Vopc, Field::Source0) => match self.modifier {
                Modifier::None => self.bits(0, 9),
                Modifier::Sdwa => self.high_bits(0, 8) + if self.high_bits(23, 1) == 0 { 256 } else { 0 },
                Modifier::Dpp16 | Modifier::Dpp8 => self.high_bits(0, 8) + 256,
            },
            (Format::Vop2 | Format::Vopc, Field::Source1) => {
                let scalar = self.modifier == Modifier::Sdwa && self.high_bits(31, 1) == 1;
                self.bits(9, 8) + if scalar { 0 } else { 256 }
            }
            (Format::Vop3 | Format::Vop3p, Field::Destination) => self.bits(0, 8),
            (Format::Vop3, Field::ScalarDestination) => self.bits(8, 7),
            (Format::Vop3 | Format::Vop3p, Field::Source0) => self.high_bits(0, 9),
            (Format::Vop3 | Format::Vop3p, Field::Source1) => self.high_bits(9, 9),
            (Format::Vop3 | Format::Vop3p, Field::Source2) => self.high_bits(18, 9),
            (_, Field::Vcc) => crate::registers::number::VCC as u32,
            (_, Field::Constant) => LITERAL,
            (_, Field::Source0) => self.high_bits(0, 8),
            (_, Field::Source1) => self.high_bits(8, 8),
            (_, Field::Source2) => self.high_bits(16, 8),
            (_, Field::Destination) => self.high_bits(24, 8),
            (_, Field::ScalarDestination) => 0,
        };
        value as u16
    }

    /// What a source field names; `None` for numbers that mean nothing.
    #[inline]
    fn source(&self, field: Field) -> Option<OperandValue> {
        OperandValue::from_field(self.field(field), self.literal())
    }

    /// What an operand names.
    #[inline]
    pub fn operand(&self, slot: Slot) -> OperandValue {
        let number = self.field(slot.field);
        match slot.kind {
            OperandKind::Vector if number < 256 && self.modifier == Modifier::Sdwa && slot.field == Field::Source1 => {
                OperandValue::from_field(number, 0).unwrap_or(OperandValue::Scalar(number as u8 & 127))
            }
            OperandKind::Vector => OperandValue::Vector(number as u8),
            OperandKind::Scalar => OperandValue::Scalar(number as u8 & 127),
            // `decode` has checked that these are valid.
            OperandKind::Either => self.source(slot.field).unwrap_or(OperandValue::Integer(0)),
        }
    }

    /// The scalar registers that an operand names.
    #[inline]
    pub(crate) fn scalars(&self, slot: Slot, wave64: bool) -> ScalarSet {
        let number = self.field(slot.field);
        if number >= 128 || (slot.kind == OperandKind::Vector && self.modifier != Modifier::Sdwa) {
            return ScalarSet::EMPTY;
        }
        if slot.kind == OperandKind::Vector && slot.field == Field::Destination {
            return ScalarSet::EMPTY;
        }
        ScalarSet::range(number as u8, slot.width.registers(wave64))
    }

    /// The offset of a relative branch or call in bytes, counted from the end of the instruction.
    #[inline]
    pub fn branch_distance(&self) -> Option<i64> {
        let relative = match self.definition.flow {
            Flow::Branch | Flow::Jump => true,
            Flow::Call => self.format() == Format::Sopk,
            _ => false,
        };
        relative.then(|| self.immediate() as i16 as i64 * 4)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size(words: &[u32]) -> Result<usize, DecodeError> {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        decode(&bytes, Chip::Gfx1030).map(|instruction| instruction.size())
    }

    #[test]
    fn lengths_follow_constants_and_modifiers() {
        assert_eq!(size(&[0xbf81_0000]), Ok(4), "s_endpgm");
        assert_eq!(size(&[0x7e00_02ff, 7]), Ok(8), "v_mov_b32 with a constant");
        assert_eq!(size(&[0x7e00_02ff]), Err(DecodeError::Truncated));
        assert_eq!(size(&[0xd503_000a, 0x0002_3cff, 9]), Ok(12), "long form with a constant");
        assert_eq!(size(&[0xf000_0f0a | 3 << 1, 0, 0, 0, 0]), Ok(20), "image with three words of addresses");
        assert_eq!(size(&[]), Err(DecodeError::Truncated));
    }

    #[test]
    fn what_a_chip_does_not_have_is_an_error() {
        let bytes = 0xcc13_0000u32.to_le_bytes().into_iter().chain([0; 4]).collect::<Vec<_>>();
        assert!(decode(&bytes, Chip::Gfx1030).is_ok(), "v_dot2_f32_f16");
        assert!(matches!(decode(&bytes, Chip::Gfx1010), Err(DecodeError::Unknown { .. })));
        assert!(decode(&bytes, Chip::Gfx1012).is_ok());
    }

    #[test]
    fn reserved_sources_are_an_error() {
        // s_mov_b32 s0, field 210: between the small integers and the special values.
        assert!(matches!(size(&[0xbe80_03d2]), Err(DecodeError::BadField { .. })));
    }
}
