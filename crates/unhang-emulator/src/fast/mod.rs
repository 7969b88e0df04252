//! The fast path: instructions with their operands resolved once, executed on whole registers.
//!
//! [`Op::of`] turns an instruction into a few bytes that say where its operands lie and which function computes it. What it
//! does not know, what reaches past the kernel's registers, and unusual float modes go the plain way
//! ([`crate::semantics`]), which computes the same to the bit and which the tests hold this one against.

mod compute;
mod halves;
pub(crate) mod memory;
pub(crate) mod registers;
pub(crate) mod rows;
pub(crate) mod run;
pub(crate) mod stretch;
mod wide;
mod words;

use unhang_isa::{Class, Field, Format, Instruction, Modifier, OperandValue, Slot};

use crate::scalar::ScalarOperation;
use crate::semantics::{CompareKind, RowOperand, RowSource, Semantics};
use crate::wave::{EXEC, Type, VCC, Wave, constant_bits};
use halves::HalvesOperation;
use memory::{GlobalAccess, LocalAccess};
use registers::ZERO_ROOM;
use rows::{FastCompare, FastRow};

/// An instruction, resolved.
#[derive(Clone, Copy)]
pub(crate) struct Op {
    pub kind: Kind,
    /// One more than the highest vector register that it names.
    pub registers: u16,
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
    /// The same with sources for which rows are filled first.
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
    /// A pair of registers, shifted.
    ShiftWide {
        shift: Shift,
        source: u8,
        amount: RowSource,
        destination: u8,
    },
    /// An unsigned product and a pair of registers, or nothing, added to it.
    MultiplyAddWide {
        sources: [RowSource; 2],
        summand: Option<u8>,
        mask: u8,
        destination: u8,
    },
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

/// A shift of 64 bits.
#[derive(Clone, Copy)]
pub(crate) enum Shift {
    Left,
    Right,
    RightWithSign,
}

/// Rows from this number on are rooms.
const IN_ROOM: u16 = 256;
const ZERO: u16 = IN_ROOM + ZERO_ROOM as u16;

/// The row in which a source lies: its register's, the one of zeros, or its room.
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
    /// Resolves an instruction.
    pub fn of(instruction: &Instruction, semantics: &Semantics) -> Op {
        let kind = match rows::Host::get() {
            rows::Host::Plain => None,
            _ => resolve(instruction, semantics),
        };
        // What works on lanes goes the plain way in unusual modes, whether it names a vector register or not.
        let registers = highest(instruction).max((instruction.class() == Class::Vector) as u16);
        Op { kind: kind.unwrap_or(Kind::Plain), registers }
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

fn resolve(instruction: &Instruction, semantics: &Semantics) -> Option<Kind> {
    match *semantics {
        Semantics::Nothing => Some(Kind::Nothing),
        Semantics::Row(row) => {
            let (run, sources) = (row.fast?.chosen()?, row.sources);
            let [a, b, c] = [0, 1, 2].map(|place| row_of(&sources[place], place));
            let rows = [a, b, c, row.destination as u16];
            let filled = rows.iter().any(|&row| row >= IN_ROOM && row != ZERO);
            Some(if filled { Kind::FilledRows { run, rows, sources } } else { Kind::Rows { run, rows } })
        }
        Semantics::Compare { outcomes, kind, to_exec } => {
            let (run, kind) = match kind {
                CompareKind::Float(Type::Float32) => (rows::float()?, Type::Float32),
                CompareKind::Signed(32) => (rows::signed()?, Type::Bits32),
                CompareKind::Unsigned(32) => (rows::unsigned()?, Type::Bits32),
                _ => return None,
            };
            let operands = TwoRows::new(two_sources(instruction, kind)?);
            let destination = if to_exec { EXEC as u8 } else { mask_destination(instruction)? };
            Some(Kind::Compare { run, outcomes, operands, destination })
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
        Semantics::Packed(_) | Semantics::Mixed(_) => HalvesOperation::of(instruction, semantics).map(Kind::Halves),
        Semantics::Lane(_) => {
            let halves = HalvesOperation::of(instruction, semantics).map(Kind::Halves);
            halves.or_else(|| resolve_shift(instruction))
        }
        Semantics::MultiplyAddWide { signed: false } => {
            let slot = instruction.definition.operand(Field::Source2)?;
            let summand = match instruction.operand(slot) {
                OperandValue::Vector(register) => Some(register),
                OperandValue::Integer(0) => None,
                _ => return None,
            };
            let mask = mask_destination(instruction)?;
            let destination = Wave::destination(instruction, Field::Destination)?;
            Some(Kind::MultiplyAddWide { sources: two_sources(instruction, Type::Bits32)?, summand, mask, destination })
        }
        Semantics::Memory(access) => {
            let local = || LocalAccess::of(instruction, access).map(Kind::Local);
            GlobalAccess::of(instruction, access).map(Kind::Global).or_else(local)
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
        let floats = long && kind == Type::Float32;
        let absolute = if floats && !has_mask { instruction.bits(8 + place, 1) } else { 0 };
        let negative = if floats { instruction.high_bits(29 + place, 1) } else { 0 };
        // Signs of whole numbers are the plain path's business.
        let odd = long && kind == Type::Bits32 && instruction.high_bits(29, 3) != 0;
        (!odd).then_some(RowSource { from, keep: u32::MAX >> absolute, flip: negative << 31 })
    };
    Some([source(0, Field::Source0)?, source(1, Field::Source1)?])
}

fn resolve_shift(instruction: &Instruction) -> Option<Kind> {
    let shift = match instruction.definition.base_name() {
        "v_lshlrev_b64" => Shift::Left,
        "v_lshrrev_b64" => Shift::Right,
        "v_ashrrev_i64" => Shift::RightWithSign,
        _ => return None,
    };
    // The other two words of the encoding: no sign, no clamp, no scale.
    if instruction.bits(8, 8) != 0 || instruction.high_bits(27, 5) != 0 {
        return None;
    }
    let operand = |field| instruction.definition.operand(field).map(|slot| instruction.operand(slot));
    let Some(OperandValue::Vector(source)) = operand(Field::Source1) else { return None };
    let from = match operand(Field::Source0)? {
        OperandValue::Vector(register) => RowOperand::Vector(register),
        OperandValue::Scalar(register) => RowOperand::Scalar(register),
        OperandValue::Special(_) => return None,
        constant => RowOperand::Constant(constant_bits(constant, Type::Bits32)),
    };
    let amount = RowSource { from, keep: u32::MAX, flip: 0 };
    Some(Kind::ShiftWide { shift, source, amount, destination: Wave::destination(instruction, Field::Destination)? })
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
    /// How many registers the fast path may touch: none in an unusual mode.
    pub fn set_reach(&mut self) {
        self.reach = if self.mode.is_usual() { self.registers as u16 } else { 0 };
    }
}
