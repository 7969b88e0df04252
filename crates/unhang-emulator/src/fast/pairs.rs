//! Lanes of 64 bits: doubles, and integers in pairs of registers.

use unhang_isa::{Field, Format, Instruction, Modifier, OperandValue};

use super::comparisons::FastCompare;
use super::wide;
use crate::host::{self, FastPairs, Pairs, Vectors};
use crate::lanes::operation::LaneOperation;
use crate::semantics::RowSource;
use crate::wave::{LANES, Type, Wave, constant};

/// A function on lanes with its operands.
#[derive(Clone, Copy)]
pub(crate) struct PairsOperation {
    run: FastPairs,
    sources: [PairsSource; 3],
    destination: u8,
    /// Whether the destination is a pair of registers.
    wide: bool,
}

/// A comparison of 64 bits.
#[derive(Clone, Copy)]
pub(crate) struct PairsCompare {
    pub run: FastCompare<u64>,
    pub outcomes: u8,
    pub sources: [PairsSource; 2],
    /// As in [`OpKind::Compare`](super::op::OpKind).
    pub destination: u8,
}

/// A 32-bit by 32-bit product plus a 64-bit value.
#[derive(Clone, Copy)]
pub(crate) struct MultiplyAdd {
    pub signed: bool,
    pub factors: [RowSource; 2],
    pub summand: PairsSource,
    pub mask: u8,
    pub destination: u8,
}

/// A source of 32 or 64 bits, extended to 64 with zeros.
#[derive(Clone, Copy)]
pub(crate) struct PairsSource {
    from: PairsOperand,
    /// The position of its sign bit, and what to do with it.
    sign: u8,
    absolute: bool,
    negative: bool,
}

#[derive(Clone, Copy)]
enum PairsOperand {
    Row(u8),
    Pair(u8),
    Scalar(u8),
    ScalarPair(u8),
    /// The lower and the upper half: a 64-bit number would make every resolved instruction larger.
    Constant([u32; 2]),
}

/// The contents of sources that an instruction does not have.
static ZEROS: Pairs = [0; LANES];
const UNUSED: PairsSource =
    PairsSource { from: PairsOperand::Constant([0; 2]), sign: 0, absolute: false, negative: false };

impl PairsSource {
    /// Reads the source in a field; `None` if it needs the plain path, which handles all sources.
    pub(crate) fn of(instruction: &Instruction, field: Field, kind: Type) -> Option<PairsSource> {
        let Some(slot) = instruction.definition.operand(field) else { return Some(UNUSED) };
        let place = match field {
            Field::Source0 => 0,
            Field::Source1 => 1,
            _ => 2,
        };
        let wide = slot.width.registers(false) == 2;
        let from = match instruction.operand(slot) {
            OperandValue::Vector(register) if wide => PairsOperand::Pair(register),
            OperandValue::Vector(register) => PairsOperand::Row(register),
            OperandValue::Scalar(register) if wide => PairsOperand::ScalarPair(register),
            OperandValue::Scalar(register) => PairsOperand::Scalar(register),
            OperandValue::Special(_) => return None,
            source => {
                let value = constant(source, kind, wide);
                PairsOperand::Constant([value as u32, (value >> 32) as u32])
            }
        };
        let has_sign = instruction.format() == Format::Vop3 && kind.sign_bit() != 0;
        // With a scalar destination, the fields of absolute values belong to it.
        let has_absolute = has_sign && instruction.definition.operand(Field::ScalarDestination).is_none();
        Some(PairsSource {
            from,
            sign: kind.sign_bit().trailing_zeros() as u8 & 63,
            absolute: has_absolute && instruction.bits(8 + place, 1) == 1,
            negative: has_sign && instruction.high_bits(29 + place, 1) == 1,
        })
    }
}

/// Whether an instruction has none of the modifiers that only the plain path handles: clamp, scale, halves,
/// permutations.
fn is_simple(instruction: &Instruction) -> bool {
    let changes = instruction.bits(11, 5) != 0 || instruction.high_bits(27, 2) != 0;
    instruction.modifier == Modifier::None && !(instruction.format() == Format::Vop3 && changes)
}

impl PairsOperation {
    /// Resolves an instruction, if it is one of these.
    pub(crate) fn of(instruction: &Instruction, operation: &LaneOperation, flushes: bool) -> Option<PairsOperation> {
        let run = operation.fast?.pairs(flushes)?;
        let slot = instruction.definition.operand(Field::Destination).filter(|_| is_simple(instruction))?;
        let [a, b, c] = operation.sources;
        Some(PairsOperation {
            run,
            sources: [
                PairsSource::of(instruction, Field::Source0, a)?,
                PairsSource::of(instruction, Field::Source1, b)?,
                PairsSource::of(instruction, Field::Source2, c)?,
            ],
            destination: Wave::destination(instruction, Field::Destination)?,
            wide: slot.width.registers(false) == 2,
        })
    }
}

/// The two sources of a comparison.
pub(super) fn compared(instruction: &Instruction, kind: Type) -> Option<[PairsSource; 2]> {
    if !is_simple(instruction) {
        return None;
    }
    Some([PairsSource::of(instruction, Field::Source0, kind)?, PairsSource::of(instruction, Field::Source1, kind)?])
}

impl Wave {
    /// Computes lanes of 64 bits. Call it as [`Wave::compute`].
    #[inline(always)]
    pub(super) fn fast_pairs<const WIDE: bool>(
        &mut self,
        vectors: Vectors<WIDE>,
        operation: &PairsOperation,
        half: usize,
    ) {
        let mut values = self.pairs_of(&operation.sources[0], half);
        let (second, third);
        // The sign of a constant zero matters.
        let second = match &operation.sources[1] {
            PairsSource { from: PairsOperand::Constant([0, 0]), negative: false, .. } => &ZEROS,
            _ => {
                second = self.pairs_of(&operation.sources[1], half);
                &second
            }
        };
        let third = match &operation.sources[2] {
            PairsSource { from: PairsOperand::Constant([0, 0]), negative: false, .. } => &ZEROS,
            _ => {
                third = self.pairs_of(&operation.sources[2], half);
                &third
            }
        };
        // SAFETY: it was chosen for this host's instructions.
        unsafe { (operation.run)(&mut values, second, third) };
        self.put_part(vectors, operation.destination, &values, 0, half);
        if operation.wide {
            self.put_part(vectors, operation.destination, &values, 1, half);
        }
    }

    /// Compares lanes of 64 bits and returns the active ones with one of the outcomes.
    #[inline(always)]
    pub(super) fn fast_pairs_mask(&mut self, compare: &PairsCompare, half: usize) -> u32 {
        let [a, b] = [0, 1].map(|place| self.pairs_of(&compare.sources[place], half));
        // SAFETY: it was chosen for this host's instructions.
        unsafe { (compare.run)(&a, &b, compare.outcomes) & self.on(half) }
    }

    /// Multiplies and adds; returns the carries of the active lanes.
    #[inline(always)]
    pub(super) fn fast_multiply_add<const WIDE: bool>(
        &mut self,
        vectors: Vectors<WIDE>,
        operation: &MultiplyAdd,
        half: usize,
    ) -> u32 {
        let (a, b) = (self.lanes_of(&operation.factors[0], half), self.lanes_of(&operation.factors[1], half));
        let summands = self.pairs_of(&operation.summand, half);
        let mut sums = [0; LANES];
        if operation.signed {
            for lane in 0..LANES {
                sums[lane] = (a[lane] as i32 as i64 * b[lane] as i32 as i64) as u64;
            }
        } else {
            for lane in 0..LANES {
                sums[lane] = a[lane] as u64 * b[lane] as u64;
            }
        }
        for lane in 0..LANES {
            sums[lane] = sums[lane].wrapping_add(summands[lane]);
        }
        self.put_part(vectors, operation.destination, &sums, 0, half);
        self.put_part(vectors, operation.destination, &sums, 1, half);
        // A sum that is less than one of its terms has overflowed.
        wide::less(vectors, &sums, &summands) & self.on(half)
    }

    /// A source as lanes of 64 bits.
    #[inline(always)]
    fn pairs_of(&self, source: &PairsSource, half: usize) -> Pairs {
        let mut pairs = match source.from {
            PairsOperand::Pair(register) => {
                let place = self.row_at(register as u16, half);
                let (low, high) = (&self.vectors[place], &self.vectors[place + 1]);
                let mut pairs = [0; LANES];
                for lane in 0..LANES {
                    pairs[lane] = low[lane] as u64 | (high[lane] as u64) << 32;
                }
                pairs
            }
            PairsOperand::Row(register) => {
                let row = &self.vectors[self.row_at(register as u16, half)];
                let mut pairs = [0; LANES];
                for lane in 0..LANES {
                    pairs[lane] = row[lane] as u64;
                }
                pairs
            }
            PairsOperand::Scalar(register) => [self.scalar(register) as u64; LANES],
            PairsOperand::ScalarPair(register) => [self.scalar64(register); LANES],
            PairsOperand::Constant([low, high]) => [low as u64 | (high as u64) << 32; LANES],
        };
        if source.absolute || source.negative {
            let keep = !((source.absolute as u64) << source.sign);
            let flip = (source.negative as u64) << source.sign;
            for lane in 0..LANES {
                pairs[lane] = pairs[lane] & keep ^ flip;
            }
        }
        pairs
    }

    /// Writes the lower or the upper halves of values to the register with this number, or to the next one.
    #[inline(always)]
    fn put_part<const WIDE: bool>(
        &mut self,
        vectors: Vectors<WIDE>,
        register: u8,
        values: &Pairs,
        part: usize,
        half: usize,
    ) {
        let (place, on) = (self.row_at(register as u16, half) + part, self.on(half));
        let mut row = [0; LANES];
        for lane in 0..LANES {
            row[lane] = (values[lane] >> (part * 32)) as u32;
        }
        host::put(vectors, &mut self.vectors[place], &row, on);
    }
}
