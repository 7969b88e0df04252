//! From an instruction to its resolved form.

use unhang_isa::{Field, Format, Instruction, Modifier, OperandValue, Slot};

use super::comparisons::{self, FastCompare};
use super::halves::HalvesOperation;
use super::memory::{BufferAccess, GlobalAccess, LocalAccess, ScalarLoad};
use super::op::{Carry, Op, OpKind};
use super::operands::{IN_ROOM, ScalarOperand, TwoRows, ZERO, row_of};
use super::pairs::{self, MultiplyAdd, PairsCompare, PairsOperation, PairsSource};
use crate::access::Access;
use crate::host::Host;
use crate::lanes::operation::LaneOperation;
use crate::scalar::ScalarOperation;
use crate::semantics::{CompareKind, RowOperand, RowOperation, RowSource, Semantics};
use crate::wave::{EXEC, Type, VCC, Wave, constant_bits};

/// Resolves an instruction, for the usual float mode or for the one that flushes single-precision denormals.
pub(crate) fn resolve(instruction: &Instruction, semantics: &Semantics, flushes: bool) -> Op {
    let kind = match Host::get() {
        Host::Plain => None,
        _ => kind_of(instruction, semantics, flushes),
    };
    let usual_only = match *semantics {
        Semantics::Row(RowOperation { fast, .. }) | Semantics::Lane(LaneOperation { fast, .. }) => {
            !fast.is_some_and(|fast| fast.any_mode)
        }
        Semantics::Compare { kind, .. } => matches!(kind, CompareKind::Float(_)),
        Semantics::Packed(_) | Semantics::Mixed(_) => true,
        _ => false,
    };
    Op { kind: kind.unwrap_or(OpKind::Plain), registers: highest(instruction), usual_only }
}

fn highest(instruction: &Instruction) -> u16 {
    let slots = instruction.definition.operands().iter();
    slots
        .filter_map(|&slot| match instruction.operand(slot) {
            OperandValue::Vector(register) => Some(register as u16 + slot.width.registers(false) as u16),
            _ => None,
        })
        .max()
        .unwrap_or(0)
}

fn kind_of(instruction: &Instruction, semantics: &Semantics, flushes: bool) -> Option<OpKind> {
    match *semantics {
        Semantics::Nothing => Some(OpKind::Nothing),
        Semantics::Row(row) => {
            let (run, sources) = (row.fast?.row(flushes)?, row.sources);
            let [a, b, c] = [0, 1, 2].map(|place| row_of(&sources[place], place));
            let rows = [a, b, c, row.destination as u16];
            let filled = rows.iter().any(|&row| row >= IN_ROOM && row != ZERO);
            Some(if filled { OpKind::FilledRows { run, rows, sources } } else { OpKind::Rows { run, rows } })
        }
        Semantics::Compare { outcomes, kind, to_exec } => {
            let destination = if to_exec { EXEC as u8 } else { mask_destination(instruction)? };
            compare_kind(instruction, kind, outcomes, destination, flushes)
        }
        Semantics::Select => {
            let mask = match instruction.definition.operand(Field::Source2).map(|slot| instruction.operand(slot)) {
                Some(OperandValue::Scalar(register)) => register,
                None => VCC as u8,
                _ => return None,
            };
            let operands = TwoRows::new(two_sources(instruction, Type::Float32)?);
            Some(OpKind::Select { operands, mask, destination: Wave::destination(instruction, Field::Destination)? })
        }
        Semantics::Carry { subtract, reversed, carry_in } => {
            let [a, b] = two_sources(instruction, Type::Bits32)?;
            let carry_in = match instruction.definition.operand(Field::Source2).map(|slot| instruction.operand(slot)) {
                _ if !carry_in => None,
                Some(OperandValue::Scalar(register)) => Some(register),
                None => Some(VCC as u8),
                _ => return None,
            };
            Some(OpKind::Carry(Carry {
                operands: TwoRows::new(if reversed { [b, a] } else { [a, b] }),
                subtract,
                carry_in,
                carry_out: mask_destination(instruction)?,
                destination: Wave::destination(instruction, Field::Destination)?,
            }))
        }
        Semantics::Scalar(operation) => resolve_scalar(instruction, operation),
        Semantics::ReadFirstLane if instruction.format() == Format::Vop1 && instruction.modifier == Modifier::None => {
            let source = match instruction.operand(instruction.definition.operand(Field::Source0)?) {
                OperandValue::Vector(register) => register,
                _ => return None,
            };
            Some(OpKind::FirstLane { source, destination: Wave::destination(instruction, Field::Destination)? })
        }
        Semantics::Packed(_) | Semantics::Mixed(_) => {
            HalvesOperation::of(instruction, semantics, flushes).map(OpKind::Halves)
        }
        Semantics::Lane(ref operation) => {
            let halves = HalvesOperation::of(instruction, semantics, flushes).map(OpKind::Halves);
            halves.or_else(|| PairsOperation::of(instruction, operation, flushes).map(OpKind::Pairs))
        }
        Semantics::MultiplyAddWide { signed } => Some(OpKind::MultiplyAdd(MultiplyAdd {
            signed,
            factors: two_sources(instruction, Type::Bits32)?,
            summand: PairsSource::of(instruction, Field::Source2, if signed { Type::Signed64 } else { Type::Bits64 })?,
            mask: mask_destination(instruction)?,
            destination: Wave::destination(instruction, Field::Destination)?,
        })),
        Semantics::Memory(Access::Nothing) => Some(OpKind::Nothing),
        Semantics::Memory(Access::ScalarLoad { count }) => ScalarLoad::of(instruction, count).map(OpKind::ScalarLoad),
        Semantics::Memory(access) => {
            let local = || LocalAccess::of(instruction, access).map(OpKind::Local);
            let buffer = || BufferAccess::of(instruction, access).map(OpKind::Buffer);
            GlobalAccess::of(instruction, access).map(OpKind::Global).or_else(local).or_else(buffer)
        }
        _ => None,
    }
}

/// A comparison, whose mask goes to `destination`.
fn compare_kind(
    instruction: &Instruction,
    kind: CompareKind,
    outcomes: u8,
    destination: u8,
    flushes: bool,
) -> Option<OpKind> {
    let rows = |run: Option<FastCompare>, kind| {
        let operands = TwoRows::new(two_sources(instruction, kind)?);
        Some(OpKind::Compare { run: run?, outcomes, operands, destination })
    };
    let pairs = |run: Option<FastCompare<u64>>, kind| {
        let sources = pairs::compared(instruction, kind)?;
        Some(OpKind::ComparePairs(PairsCompare { run: run?, outcomes, sources, destination }))
    };
    match kind {
        CompareKind::Float(Type::Float32) if flushes => rows(comparisons::float_flushed(), Type::Float32),
        CompareKind::Float(Type::Float32) => rows(comparisons::float(), Type::Float32),
        CompareKind::Float(Type::Float16) => rows(comparisons::half_float(), Type::Float16),
        CompareKind::Signed(16) => rows(comparisons::signed_half(), Type::Bits16),
        CompareKind::Unsigned(16) => rows(comparisons::unsigned_half(), Type::Bits16),
        CompareKind::Signed(32) => rows(comparisons::signed(), Type::Bits32),
        CompareKind::Unsigned(32) => rows(comparisons::unsigned(), Type::Bits32),
        CompareKind::Float(Type::Float64) => pairs(comparisons::double(), Type::Float64),
        CompareKind::Signed(64) => pairs(comparisons::signed_pairs(), Type::Signed64),
        CompareKind::Unsigned(64) => pairs(comparisons::unsigned_pairs(), Type::Bits64),
        _ => None,
    }
}

/// The first two sources of a short or long instruction without modifiers other than signs.
fn two_sources(instruction: &Instruction, kind: Type) -> Option<[RowSource; 2]> {
    let long = instruction.format() == Format::Vop3;
    if instruction.modifier != Modifier::None {
        return None;
    }
    // With a scalar destination, the fields of absolute values and half selection belong to it.
    let has_mask = instruction.definition.operand(Field::ScalarDestination).is_some();
    if long && !has_mask && instruction.bits(11, 5) != 0 || long && instruction.high_bits(27, 2) != 0 {
        return None;
    }
    let source = |place: u32, field| {
        let slot: Slot = instruction.definition.operand(field)?;
        let from = match instruction.operand(slot) {
            OperandValue::Vector(register) => RowOperand::Vector(register),
            OperandValue::Scalar(register) => RowOperand::Scalar(register),
            OperandValue::Special(_) => return None,
            constant => RowOperand::Constant(constant_bits(constant, kind)),
        };
        let sign = if long { kind.sign_bit() as u32 } else { 0 };
        let absolute = !has_mask && instruction.bits(8 + place, 1) == 1;
        let negative = instruction.high_bits(29 + place, 1) == 1;
        // The plain path handles the signs of integers.
        let odd = long && kind == Type::Bits32 && instruction.high_bits(29, 3) != 0;
        let bit = |is_set| if is_set { sign } else { 0 };
        (!odd).then_some(RowSource { from, keep: !bit(absolute), flip: bit(negative) })
    };
    Some([source(0, Field::Source0)?, source(1, Field::Source1)?])
}

fn mask_destination(instruction: &Instruction) -> Option<u8> {
    match instruction.format() {
        Format::Vop3 => Wave::destination(instruction, Field::ScalarDestination)
            .or_else(|| Wave::destination(instruction, Field::Destination)),
        _ => Some(VCC as u8),
    }
}

fn resolve_scalar(instruction: &Instruction, operation: ScalarOperation) -> Option<OpKind> {
    let operand = |field| match instruction.definition.operand(field) {
        None => Some(ScalarOperand::Constant(0)),
        Some(slot) => {
            let wide = slot.width.registers(false) == 2;
            Some(match instruction.operand(slot) {
                OperandValue::Scalar(125) => ScalarOperand::Constant(0),
                OperandValue::Scalar(register) if wide => ScalarOperand::Pair(register),
                OperandValue::Scalar(register) => ScalarOperand::Register(register),
                OperandValue::Special(_) | OperandValue::Vector(_) => return None,
                constant => ScalarOperand::Constant(Wave::scalar_constant(instruction, slot, constant)),
            })
        }
    };
    let sources = || Some([operand(Field::Source0)?, operand(Field::Source1)?]);
    match operation {
        ScalarOperation::Nothing => Some(OpKind::Nothing),
        ScalarOperation::Arithmetic(run) => {
            let slot = instruction.definition.operand(Field::Destination)?;
            let destination = Wave::destination(instruction, Field::Destination)?;
            Some(OpKind::Scalar { run, sources: sources()?, destination, wide: slot.width.registers(false) == 2 })
        }
        ScalarOperation::ConditionalMove => {
            let slot = instruction.definition.operand(Field::Destination)?;
            let destination = Wave::destination(instruction, Field::Destination)?;
            let wide = slot.width.registers(false) == 2;
            let old = if wide { ScalarOperand::Pair(destination) } else { ScalarOperand::Register(destination) };
            let run = |wave: &mut Wave, new, old| if wave.scc { new } else { old };
            Some(OpKind::Scalar { run, sources: [operand(Field::Source0)?, old], destination, wide })
        }
        ScalarOperation::SaveExec(run) => {
            let wide = instruction.definition.operand(Field::Source0)?.width.registers(false) == 2;
            let destination = Wave::destination(instruction, Field::Destination)?;
            Some(OpKind::SaveExec { run, source: operand(Field::Source0)?, destination, wide })
        }
        ScalarOperation::Compare(holds) => Some(OpKind::ScalarCompare { holds, sources: sources()? }),
        ScalarOperation::Constant(run) => Some(OpKind::ScalarConstant {
            run,
            constant: instruction.immediate() as i16 as i32,
            destination: Wave::destination(instruction, Field::Destination)?,
        }),
        ScalarOperation::ConstantCompare(holds) => {
            let constant = instruction.immediate() as i16 as i32;
            Some(OpKind::ConstantCompare { holds, source: operand(Field::Source0)?, constant })
        }
        ScalarOperation::Branch(taken) => Some(OpKind::Branch { taken }),
        _ => None,
    }
}
