//! The fast path: instructions with their operands resolved once, executed on whole registers.
//!
//! [`Op::of`] turns an instruction into a few bytes that say where its operands lie and which function computes it. What it
//! does not know, what reaches past the kernel's registers, waves of 64 lanes and unusual float modes go the plain way
//! ([`crate::semantics`]), which computes the same to the bit and which the tests hold this one against.

mod halves;
pub(crate) mod memory;
pub(crate) mod registers;
pub(crate) mod rows;
pub(crate) mod run;
pub(crate) mod stretch;
mod words;

use std::cell::Cell;

use unhang_isa::{Class, Field, Format, Instruction, Modifier, OperandValue, Slot};

use crate::scalar::ScalarOperation;
use crate::semantics::{CompareKind, RowOperand, RowSource, Semantics};
use crate::wave::{EXEC, LANES, Lanes, Type, VCC, Wave, constant_bits};
use halves::HalvesOperation;
use memory::{GlobalAccess, LocalAccess};
use registers::{ROOMS, ZERO_ROOM};
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
        sources: [RowSource; 2],
        /// The register of the mask; EXEC for those that write it.
        destination: u8,
    },
    Select {
        sources: [RowSource; 2],
        mask: u8,
        destination: u8,
    },
    Carry {
        sources: [RowSource; 2],
        subtract: bool,
        carry_in: Option<u8>,
        carry_out: u8,
        destination: u8,
    },
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
        shift: fn(u64, u32) -> u64,
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
        // What works on lanes goes the plain way in waves of 64 lanes, whether it names a vector register or not.
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
            let sources = two_sources(instruction, kind)?;
            let destination = if to_exec { EXEC as u8 } else { mask_destination(instruction)? };
            Some(Kind::Compare { run, outcomes, sources, destination })
        }
        Semantics::Select => {
            let mask = match instruction.definition.operand(Field::Source2).map(|slot| instruction.operand(slot)) {
                Some(OperandValue::Scalar(register)) => register,
                None => VCC as u8,
                _ => return None,
            };
            let sources = two_sources(instruction, Type::Float32)?;
            Some(Kind::Select { sources, mask, destination: Wave::destination(instruction, Field::Destination)? })
        }
        Semantics::Carry { subtract, reversed, carry_in } => {
            let [a, b] = two_sources(instruction, Type::Bits32)?;
            let carry_in = match instruction.definition.operand(Field::Source2).map(|slot| instruction.operand(slot)) {
                _ if !carry_in => None,
                Some(OperandValue::Scalar(register)) => Some(register),
                None => Some(VCC as u8),
                _ => return None,
            };
            Some(Kind::Carry {
                sources: if reversed { [b, a] } else { [a, b] },
                subtract,
                carry_in,
                carry_out: mask_destination(instruction)?,
                destination: Wave::destination(instruction, Field::Destination)?,
            })
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
    let shift: fn(u64, u32) -> u64 = match instruction.definition.base_name() {
        "v_lshlrev_b64" => |value, amount| value << (amount & 63),
        "v_lshrrev_b64" => |value, amount| value >> (amount & 63),
        "v_ashrrev_i64" => |value, amount| (value as i64 >> (amount & 63)) as u64,
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
    /// How many registers the fast path may touch: none of a wave of 64 lanes or in an unusual mode.
    pub fn set_reach(&mut self) {
        let usual = !self.wave64 && self.mode.is_usual();
        self.reach = if usual { self.registers as u16 } else { 0 };
    }

    #[inline(always)]
    fn operand(&self, operand: ScalarOperand) -> u64 {
        match operand {
            ScalarOperand::Register(register) => self.scalars[(register & 127) as usize] as u64,
            ScalarOperand::Pair(register) => self.scalar64(register),
            ScalarOperand::Constant(value) => value,
        }
    }

    #[inline(always)]
    pub fn fast_scalar(&mut self, run: fn(&mut Wave, u64, u64) -> u64, sources: [ScalarOperand; 2]) -> u64 {
        let (a, b) = (self.operand(sources[0]), self.operand(sources[1]));
        run(self, a, b)
    }

    #[inline(always)]
    pub fn fast_compare(&mut self, holds: fn(u64, u64) -> bool, sources: [ScalarOperand; 2]) {
        self.scc = holds(self.operand(sources[0]), self.operand(sources[1]));
    }

    #[inline(always)]
    pub fn fast_constant(&mut self, run: fn(&mut Wave, u32, i32) -> u32, constant: i32, destination: u8) {
        let value = run(self, self.scalar(destination), constant);
        self.set_scalar(destination, value);
    }

    #[inline(always)]
    pub fn fast_constant_compare(&mut self, holds: fn(u32, i32) -> bool, source: ScalarOperand, constant: i32) {
        self.scc = holds(self.operand(source) as u32, constant);
    }

    #[inline(always)]
    pub fn fast_first_lane(&mut self, source: u8, destination: u8) {
        let lane = self.scalars[EXEC].trailing_zeros() as usize % LANES;
        self.set_scalar(destination, self.vectors[source as usize][lane]);
    }

    /// A source as a whole register.
    #[inline(always)]
    fn lanes_of(&self, source: &RowSource) -> Lanes {
        let mut lanes = match source.from {
            RowOperand::Vector(register) => self.vectors[register as usize],
            RowOperand::Scalar(register) => [self.scalar(register); LANES],
            RowOperand::Constant(value) => [value; LANES],
        };
        if source.keep != u32::MAX || source.flip != 0 {
            lanes.iter_mut().for_each(|lane| *lane = (*lane & source.keep) ^ source.flip);
        }
        lanes
    }

    /// Computes a row from others. The registers must be the wave's: [`Op::registers`] is within [`Wave::reach`].
    #[inline(always)]
    pub fn fast_rows(&mut self, run: FastRow, rows: [u16; 4]) {
        let on = self.scalars[EXEC];
        let rooms = self.vectors.len() - ROOMS;
        let all = Cell::from_mut(&mut *self.vectors).as_slice_of_cells();
        debug_assert!(rows.iter().all(|&row| row >= IN_ROOM || (row as usize) < rooms));
        let row = |row: u16| {
            let place = if row >= IN_ROOM { rooms + (row - IN_ROOM) as usize } else { row as usize };
            // SAFETY: a register of the wave, or a room behind them.
            unsafe { all.get_unchecked(place) }
        };
        // One by one: `map` is not compiled into the loop that this is a part of.
        let (a, b, c, d) = (row(rows[0]), row(rows[1]), row(rows[2]), row(rows[3]));
        // SAFETY: it was chosen for the instructions that this host has.
        unsafe { run(d, a, b, c, on) };
    }

    /// The same with sources that are no registers.
    #[inline(always)]
    pub fn fast_filled_rows(&mut self, run: FastRow, rows: [u16; 4], sources: &[RowSource; 3]) {
        let rooms = self.vectors.len() - ROOMS;
        for (place, source) in sources.iter().enumerate() {
            if rows[place] == IN_ROOM + place as u16 {
                self.vectors[rooms + place] = self.lanes_of(source);
            }
        }
        self.fast_rows(run, rows);
    }

    /// The same with sources that are taken out of halves.
    #[inline(always)]
    pub fn fast_halves(&mut self, operation: &HalvesOperation) {
        let rooms = self.vectors.len() - ROOMS;
        for (place, source) in operation.sources.iter().enumerate() {
            let mut lanes = self.lanes_of(&source.whole());
            source.take(&mut lanes);
            self.vectors[rooms + place] = lanes;
        }
        self.fast_rows(operation.run, [IN_ROOM, IN_ROOM + 1, IN_ROOM + 2, operation.destination as u16]);
    }

    #[inline(always)]
    pub fn fast_save_exec(&mut self, run: fn(u64, u64) -> u64, source: ScalarOperand, destination: u8, wide: bool) {
        let (old, source) = (self.scalar64(EXEC as u8), self.operand(source));
        let new = run(old, source);
        if wide {
            self.set_scalar64(destination, old);
            self.set_scalar64(EXEC as u8, new);
            self.scc = new != 0;
        } else {
            self.set_scalar(destination, old as u32);
            self.scalars[EXEC] = new as u32;
            self.scc = new as u32 != 0;
        }
    }

    #[inline(always)]
    fn pair(&self, register: u8) -> [u64; LANES] {
        let (low, high) = (&self.vectors[register as usize], &self.vectors[register as usize + 1]);
        let mut pairs = [0; LANES];
        for lane in 0..LANES {
            pairs[lane] = low[lane] as u64 | (high[lane] as u64) << 32;
        }
        pairs
    }

    #[inline(always)]
    fn put_pair(&mut self, register: u8, values: &[u64; LANES]) {
        let on = self.scalars[EXEC];
        for part in 0..2 {
            let mut row = [0; LANES];
            for lane in 0..LANES {
                row[lane] = (values[lane] >> (part * 32)) as u32;
            }
            rows::put(&mut self.vectors[register as usize + part], &row, on);
        }
    }

    #[inline(always)]
    pub fn fast_shift(&mut self, shift: fn(u64, u32) -> u64, source: u8, amount: &RowSource, destination: u8) {
        let (mut values, amounts) = (self.pair(source), self.lanes_of(amount));
        for lane in 0..LANES {
            values[lane] = shift(values[lane], amounts[lane]);
        }
        self.put_pair(destination, &values);
    }

    #[inline(always)]
    pub fn fast_multiply_add(&mut self, sources: &[RowSource; 2], summand: Option<u8>, mask: u8, destination: u8) {
        let [a, b] = [self.lanes_of(&sources[0]), self.lanes_of(&sources[1])];
        let summands = summand.map_or([0; LANES], |register| self.pair(register));
        let (mut sums, mut carries) = ([0; LANES], 0);
        for lane in 0..LANES {
            sums[lane] = (a[lane] as u64 * b[lane] as u64).wrapping_add(summands[lane]);
        }
        for lane in 0..LANES {
            carries |= ((sums[lane] < summands[lane]) as u32) << lane;
        }
        self.put_pair(destination, &sums);
        self.set_scalar(mask, carries & self.scalars[EXEC]);
    }

    /// Compares two registers.
    #[inline(always)]
    pub fn fast_mask(&mut self, run: FastCompare, outcomes: u8, sources: &[RowSource; 2], destination: u8) {
        let [a, b] = [self.lanes_of(&sources[0]), self.lanes_of(&sources[1])];
        // SAFETY: it was chosen for the instructions that this host has.
        let mask = unsafe { run(&a, &b, outcomes) };
        self.set_scalar(destination, mask & self.scalars[EXEC]);
    }

    #[inline(always)]
    pub fn fast_select(&mut self, sources: &[RowSource; 2], mask: u8, destination: u8) {
        let [mut a, b] = [self.lanes_of(&sources[0]), self.lanes_of(&sources[1])];
        let (mask, on) = (self.scalar(mask), self.scalars[EXEC]);
        for place in 0..LANES {
            let chosen = ((mask >> place & 1) as i32).wrapping_neg() as u32;
            a[place] = a[place] & !chosen | b[place] & chosen;
        }
        rows::put(&mut self.vectors[destination as usize], &a, on);
    }

    #[inline(always)]
    pub fn fast_carry(&mut self, sources: &[RowSource; 2], subtract: bool, carries: (Option<u8>, u8), destination: u8) {
        let [a, b] = [self.lanes_of(&sources[0]), self.lanes_of(&sources[1])];
        let carry = carries.0.map_or(0, |register| self.scalar(register));
        let on = self.scalars[EXEC];
        let mut results = [0; LANES];
        for place in 0..LANES {
            let carry = carry >> place & 1;
            let (a, b) = (a[place], b[place]);
            results[place] =
                if subtract { a.wrapping_sub(b).wrapping_sub(carry) } else { a.wrapping_add(b).wrapping_add(carry) };
        }
        // A sum that is less than one of its parts has run over; with a carry, one that is equal to it has too.
        let (left, right) = if subtract { (&a, &b) } else { (&results, &a) };
        let (mut less, mut equal) = (0, 0);
        for place in 0..LANES {
            less |= ((left[place] < right[place]) as u32) << place;
            equal |= ((left[place] == right[place]) as u32) << place;
        }
        let mask = less | equal & carry;
        rows::put(&mut self.vectors[destination as usize], &results, on);
        self.set_scalar(carries.1, mask & on);
    }
}
