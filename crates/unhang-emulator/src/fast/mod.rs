//! The fast path: instructions with their operands resolved once, executed on whole registers.
//!
//! [`Op::of`] turns an instruction into a few bytes that say where its operands lie and which function computes it. What it
//! does not know, what reaches past the kernel's registers, and unusual float modes go the plain way
//! ([`crate::semantics`]), which computes the same to the bit and which the tests hold this one against.

mod compute;
mod halves;
pub(crate) mod memory;
pub(crate) mod pairs;
#[cfg(target_arch = "x86_64")]
mod parts;
pub(crate) mod registers;
pub(crate) mod rows;
pub(crate) mod run;
pub(crate) mod stretch;
mod wide;
mod words;

use unhang_isa::{Field, Format, Instruction, Modifier, OperandValue, Slot};

use crate::access::Access;
use crate::lanes::LaneOperation;
use crate::scalar::ScalarOperation;
use crate::semantics::{CompareKind, RowOperand, RowOperation, RowSource, Semantics};
use crate::wave::{EXEC, Type, VCC, Wave, constant_bits};
use halves::HalvesOperation;
use memory::{BufferAccess, GlobalAccess, LocalAccess, ScalarLoad};
use pairs::{MultiplyAdd, PairsCompare, PairsOperation, PairsSource};
use registers::ZERO_ROOM;
use rows::{FastCompare, FastRow};

/// An instruction, resolved.
#[derive(Clone, Copy)]
pub(crate) struct Op {
    pub kind: Kind,
    /// One more than the highest vector register that it names.
    pub registers: u16,
    /// Whether it has to go the plain way in other float modes than the one for which it was resolved.
    pub usual_only: bool,
}

#[derive(Clone, Copy)]
pub(crate) enum Kind {
    /// The plain way.
    Plain,
    Nothing,
    /// The rows of the sources and of the destination.
    Rows {
        run: FastRow,
        rows: [u16; 4],
    },
    /// Rows of sources and destination, where rows are filled first.
    FilledRows {
        run: FastRow,
        rows: [u16; 4],
        sources: [RowSource; 3],
    },
    /// With sources that are taken out of halves first.
    Halves(HalvesOperation),
    Compare {
        run: FastCompare,
        outcomes: u8,
        operands: TwoRows,
        /// The register of the mask; EXEC for those that write it.
        destination: u8,
    },
    Select {
        operands: TwoRows,
        mask: u8,
        destination: u8,
    },
    Carry(Carry),
    Scalar {
        run: fn(&mut Wave, u64, u64) -> u64,
        sources: [ScalarOperand; 2],
        destination: u8,
        wide: bool,
    },
    SaveExec {
        run: fn(u64, u64) -> u64,
        source: ScalarOperand,
        destination: u8,
        wide: bool,
    },
    /// Lanes of 64 bits.
    Pairs(PairsOperation),
    ComparePairs(PairsCompare),
    MultiplyAdd(MultiplyAdd),
    ScalarCompare {
        holds: fn(u64, u64) -> bool,
        sources: [ScalarOperand; 2],
    },
    /// A 16-bit constant and a register.
    ScalarConstant {
        run: fn(&mut Wave, u32, i32) -> u32,
        constant: i32,
        destination: u8,
    },
    ConstantCompare {
        holds: fn(u32, i32) -> bool,
        source: ScalarOperand,
        constant: i32,
    },
    FirstLane {
        source: u8,
        destination: u8,
    },
    Branch {
        taken: fn(&Wave) -> bool,
    },
    Local(LocalAccess),
    Global(GlobalAccess),
    Buffer(BufferAccess),
    ScalarLoad(ScalarLoad),
}

/// Two sources, and the rows in which they lie.
#[derive(Clone, Copy)]
pub(crate) struct TwoRows {
    sources: [RowSource; 2],
    rows: [u16; 2],
}

impl TwoRows {
    fn new(sources: [RowSource; 2]) -> TwoRows {
        TwoRows { sources, rows: [row_of(&sources[0], 0), row_of(&sources[1], 1)] }
    }
}

/// A sum or a difference with carries in masks.
#[derive(Clone, Copy)]
pub(crate) struct Carry {
    operands: TwoRows,
    subtract: bool,
    carry_in: Option<u8>,
    carry_out: u8,
    destination: u8,
}

/// Rows from this number on are rooms.
const IN_ROOM: u16 = 256;
const ZERO: u16 = IN_ROOM + ZERO_ROOM as u16;

/// The row in which a source is: its register's, the one of zeros, or its room.
fn row_of(source: &RowSource, place: usize) -> u16 {
    match source.from {
        RowOperand::Vector(register) if source.is_register() => register as u16,
        RowOperand::Constant(0) if source.flip == 0 => ZERO,
        _ => IN_ROOM + place as u16,
    }
}

/// A scalar source.
#[derive(Clone, Copy)]
pub(crate) enum ScalarOperand {
    Register(u8),
    Pair(u8),
    Constant(u64),
}

impl Op {
    /// Resolves an instruction, for the usual float mode or for the one that flushes denormals of singles.
    pub fn of(instruction: &Instruction, semantics: &Semantics, flushes: bool) -> Op {
        let kind = match rows::Host::get() {
            rows::Host::Plain => None,
            _ => resolve(instruction, semantics, flushes),
        };
        let usual_only = match *semantics {
            Semantics::Row(RowOperation { fast, .. }) | Semantics::Lane(LaneOperation { fast, .. }) => {
                !fast.is_some_and(|fast| fast.any_mode)
            }
            Semantics::Compare { kind, .. } => matches!(kind, CompareKind::Float(_)),
            Semantics::Packed(_) | Semantics::Mixed(_) => true,
            _ => false,
        };
        Op { kind: kind.unwrap_or(Kind::Plain), registers: highest(instruction), usual_only }
    }
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

fn resolve(instruction: &Instruction, semantics: &Semantics, flushes: bool) -> Option<Kind> {
    match *semantics {
        Semantics::Nothing => Some(Kind::Nothing),
        Semantics::Row(row) => {
            let (run, sources) = (row.fast?.row(flushes)?, row.sources);
            let [a, b, c] = [0, 1, 2].map(|place| row_of(&sources[place], place));
            let rows = [a, b, c, row.destination as u16];
            let filled = rows.iter().any(|&row| row >= IN_ROOM && row != ZERO);
            Some(if filled { Kind::FilledRows { run, rows, sources } } else { Kind::Rows { run, rows } })
        }
        Semantics::Compare { outcomes, kind, to_exec } => {
            let destination = if to_exec { EXEC as u8 } else { mask_destination(instruction)? };
            let rows = |run: Option<FastCompare>, kind| {
                let operands = TwoRows::new(two_sources(instruction, kind)?);
                Some(Kind::Compare { run: run?, outcomes, operands, destination })
            };
            let pairs = |run: Option<FastCompare<u64>>, kind| {
                let sources = pairs::compared(instruction, kind)?;
                Some(Kind::ComparePairs(PairsCompare { run: run?, outcomes, sources, destination }))
            };
            match kind {
                CompareKind::Float(Type::Float32) if flushes => rows(rows::float_flushed(), Type::Float32),
                CompareKind::Float(Type::Float32) => rows(rows::float(), Type::Float32),
                CompareKind::Float(Type::Float16) => rows(rows::half_float(), Type::Float16),
                CompareKind::Signed(16) => rows(rows::signed_half(), Type::Bits16),
                CompareKind::Unsigned(16) => rows(rows::unsigned_half(), Type::Bits16),
                CompareKind::Signed(32) => rows(rows::signed(), Type::Bits32),
                CompareKind::Unsigned(32) => rows(rows::unsigned(), Type::Bits32),
                CompareKind::Float(Type::Float64) => pairs(rows::double(), Type::Float64),
                CompareKind::Signed(64) => pairs(rows::signed_pairs(), Type::Signed64),
                CompareKind::Unsigned(64) => pairs(rows::unsigned_pairs(), Type::Bits64),
                _ => None,
            }
        }
        Semantics::Select => {
            let mask = match instruction.definition.operand(Field::Source2).map(|slot| instruction.operand(slot)) {
                Some(OperandValue::Scalar(register)) => register,
                None => VCC as u8,
                _ => return None,
            };
            let operands = TwoRows::new(two_sources(instruction, Type::Float32)?);
            Some(Kind::Select { operands, mask, destination: Wave::destination(instruction, Field::Destination)? })
        }
        Semantics::Carry { subtract, reversed, carry_in } => {
            let [a, b] = two_sources(instruction, Type::Bits32)?;
            let carry_in = match instruction.definition.operand(Field::Source2).map(|slot| instruction.operand(slot)) {
                _ if !carry_in => None,
                Some(OperandValue::Scalar(register)) => Some(register),
                None => Some(VCC as u8),
                _ => return None,
            };
            Some(Kind::Carry(Carry {
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
            Some(Kind::FirstLane { source, destination: Wave::destination(instruction, Field::Destination)? })
        }
        Semantics::Packed(_) | Semantics::Mixed(_) => {
            HalvesOperation::of(instruction, semantics, flushes).map(Kind::Halves)
        }
        Semantics::Lane(ref operation) => {
            let halves = HalvesOperation::of(instruction, semantics, flushes).map(Kind::Halves);
            halves.or_else(|| PairsOperation::of(instruction, operation, flushes).map(Kind::Pairs))
        }
        Semantics::MultiplyAddWide { signed } => Some(Kind::MultiplyAdd(MultiplyAdd {
            signed,
            factors: two_sources(instruction, Type::Bits32)?,
            summand: PairsSource::of(instruction, Field::Source2, if signed { Type::Signed64 } else { Type::Bits64 })?,
            mask: mask_destination(instruction)?,
            destination: Wave::destination(instruction, Field::Destination)?,
        })),
        Semantics::Memory(Access::Nothing) => Some(Kind::Nothing),
        Semantics::Memory(Access::ScalarLoad { count }) => ScalarLoad::of(instruction, count).map(Kind::ScalarLoad),
        Semantics::Memory(access) => {
            let local = || LocalAccess::of(instruction, access).map(Kind::Local);
            let buffer = || BufferAccess::of(instruction, access).map(Kind::Buffer);
            GlobalAccess::of(instruction, access).map(Kind::Global).or_else(local).or_else(buffer)
        }
        _ => None,
    }
}

/// The first two sources of a short or long instruction without modifiers but signs.
fn two_sources(instruction: &Instruction, kind: Type) -> Option<[RowSource; 2]> {
    let long = instruction.format() == Format::Vop3;
    if instruction.modifier != Modifier::None {
        return None;
    }
    // With a scalar destination the fields of absolute values and half selection are its own.
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
        // Signs of whole numbers are the plain path's business.
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

fn resolve_scalar(instruction: &Instruction, operation: ScalarOperation) -> Option<Kind> {
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
        ScalarOperation::Nothing => Some(Kind::Nothing),
        ScalarOperation::Arithmetic(run) => {
            let slot = instruction.definition.operand(Field::Destination)?;
            let destination = Wave::destination(instruction, Field::Destination)?;
            Some(Kind::Scalar { run, sources: sources()?, destination, wide: slot.width.registers(false) == 2 })
        }
        ScalarOperation::ConditionalMove => {
            let slot = instruction.definition.operand(Field::Destination)?;
            let destination = Wave::destination(instruction, Field::Destination)?;
            let wide = slot.width.registers(false) == 2;
            let old = if wide { ScalarOperand::Pair(destination) } else { ScalarOperand::Register(destination) };
            let run = |wave: &mut Wave, new, old| if wave.scc { new } else { old };
            Some(Kind::Scalar { run, sources: [operand(Field::Source0)?, old], destination, wide })
        }
        ScalarOperation::SaveExec(run) => {
            let wide = instruction.definition.operand(Field::Source0)?.width.registers(false) == 2;
            let destination = Wave::destination(instruction, Field::Destination)?;
            Some(Kind::SaveExec { run, source: operand(Field::Source0)?, destination, wide })
        }
        ScalarOperation::Compare(holds) => Some(Kind::ScalarCompare { holds, sources: sources()? }),
        ScalarOperation::Constant(run) => Some(Kind::ScalarConstant {
            run,
            constant: instruction.immediate() as i16 as i32,
            destination: Wave::destination(instruction, Field::Destination)?,
        }),
        ScalarOperation::ConstantCompare(holds) => {
            let constant = instruction.immediate() as i16 as i32;
            Some(Kind::ConstantCompare { holds, source: operand(Field::Source0)?, constant })
        }
        ScalarOperation::Branch(taken) => Some(Kind::Branch { taken }),
        _ => None,
    }
}

impl Wave {
    /// To be called when the float mode has changed.
    pub fn note_mode(&mut self) {
        self.usual_mode = self.mode.is_usual(self.flushes);
    }
}
