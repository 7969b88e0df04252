//! Vector instructions.

use unhang_isa::{Field, Instruction, OperandValue, Slot};

use crate::FaultKind;
use crate::divide;
use crate::lane_operands::Fetched;
use crate::lanes::operation::LaneOperation;
use crate::semantics::{CompareKind, EQUAL, GREATER, LESS, RowOperand, RowOperation, RowSource, Semantics, UNORDERED};
use crate::wave::{LANES, Lanes, M0, Type, VCC, Wave};

fn outcome<T: PartialOrd>(a: T, b: T) -> u8 {
    match a.partial_cmp(&b) {
        Some(std::cmp::Ordering::Less) => LESS,
        Some(std::cmp::Ordering::Equal) => EQUAL,
        Some(std::cmp::Ordering::Greater) => GREATER,
        None => UNORDERED,
    }
}

impl Wave {
    /// Executes a vector instruction.
    pub(crate) fn run_vector(&mut self, instruction: &Instruction, semantics: Semantics) -> Result<(), FaultKind> {
        match semantics {
            Semantics::Nothing => {}
            Semantics::Row(operation) => self.run_row(&operation),
            Semantics::Lane(operation) => self.run_lane(instruction, operation),
            Semantics::Packed(run) => self.run_packed(instruction, run),
            Semantics::Dot(dot) => return self.run_dot(instruction, dot),
            Semantics::Mixed(result) => self.run_mixed(instruction, result),
            Semantics::Compare { outcomes, kind, to_exec } => self.run_compare(instruction, kind, outcomes, to_exec),
            Semantics::Class { to_exec, kind } => self.run_class(instruction, kind, to_exec),
            Semantics::Carry { subtract, reversed, carry_in } => {
                self.run_carry(instruction, subtract, reversed, carry_in);
            }
            Semantics::MultiplyAddWide { signed } => self.run_multiply_add_wide(instruction, signed),
            Semantics::Select => self.run_select(instruction),
            Semantics::ReadFirstLane => {
                let exec = self.exec();
                self.run_read_lane(instruction, if exec == 0 { 0 } else { exec.trailing_zeros() as usize });
            }
            Semantics::ReadLane => self.run_read_lane(instruction, self.named_lane(instruction)),
            Semantics::WriteLane => {
                let value = self.fetch(instruction, Field::Source0, Type::Bits32).values[0];
                self.put(instruction, &[value; LANES], Type::Bits32, 1 << self.named_lane(instruction));
            }
            Semantics::PermuteRows { cross } => self.run_permute_rows(instruction, cross),
            Semantics::MoveRelative { destination } => self.run_move_relative(instruction, destination),
            Semantics::CountBelow { high } => self.run_count_below(instruction, high),
            Semantics::DivideScale { wide } => self.run_divide_scale(instruction, wide),
            Semantics::DivideMultiplyAdd { wide } => self.run_divide_multiply_add(instruction, wide),
            Semantics::Swap => self.run_swap(instruction),
            Semantics::Unsupported | Semantics::Hole(_) | Semantics::Scalar(_) | Semantics::Memory(_) => {
                return Err(FaultKind::Unsupported);
            }
        }
        Ok(())
    }

    /// A function of one lane.
    fn run_lane(&mut self, instruction: &Instruction, operation: LaneOperation) {
        let (exec, mode) = (self.exec(), self.mode);
        let a = self.fetch(instruction, Field::Source0, operation.sources[0]);
        let (b, c) = self.later_sources(instruction, operation);
        let mut results = [0; LANES];
        for lane in 0..LANES {
            results[lane] = (operation.run)(a.values[lane], b[lane], c[lane], mode);
        }
        if operation.result.is_float() {
            for result in &mut results {
                *result = self.finish_float(instruction, operation.result, *result);
            }
        }
        self.put(instruction, &results, operation.result, exec & a.valid);
    }

    /// A comparison: the lanes with one of the outcomes.
    fn run_compare(&mut self, instruction: &Instruction, kind: CompareKind, outcomes: u8, to_exec: bool) {
        let exec = self.exec();
        let operand = match kind {
            CompareKind::Float(kind) => kind,
            CompareKind::Signed(16) | CompareKind::Unsigned(16) => Type::Bits16,
            CompareKind::Signed(64) => Type::Signed64,
            CompareKind::Unsigned(64) => Type::Bits64,
            _ => Type::Bits32,
        };
        let a = self.fetch(instruction, Field::Source0, operand).values;
        let b = self.fetch(instruction, Field::Source1, operand).values;
        let mut mask = 0;
        for lane in 0..LANES {
            let outcome = self.compared(kind, a[lane], b[lane]);
            mask |= ((outcomes & outcome != 0) as u32) << lane;
        }
        self.finish_mask(instruction, mask & exec, to_exec);
    }

    /// How two values compare.
    fn compared(&self, kind: CompareKind, a: u64, b: u64) -> u8 {
        match kind {
            CompareKind::Float(Type::Float16) => {
                outcome(half::f16::from_bits(a as u16).to_f32(), half::f16::from_bits(b as u16).to_f32())
            }
            CompareKind::Float(Type::Float64) => outcome(f64::from_bits(a), f64::from_bits(b)),
            CompareKind::Float(_) => {
                outcome(self.flushed(f32::from_bits(a as u32)), self.flushed(f32::from_bits(b as u32)))
            }
            CompareKind::Signed(16) => outcome(a as i16, b as i16),
            CompareKind::Signed(32) => outcome(a as i32, b as i32),
            CompareKind::Signed(_) => outcome(a as i64, b as i64),
            CompareKind::Unsigned(16) => outcome(a as u16, b as u16),
            CompareKind::Unsigned(32) => outcome(a as u32, b as u32),
            CompareKind::Unsigned(_) => outcome(a, b),
        }
    }

    /// `v_cmp_class`.
    fn run_class(&mut self, instruction: &Instruction, kind: Type, to_exec: bool) {
        let exec = self.exec();
        let bits = Type::Bits32;
        let a = self.fetch(instruction, Field::Source0, kind).values;
        let b = self.fetch(instruction, Field::Source1, bits).values;
        let mut mask = 0;
        for lane in 0..LANES {
            let class = match kind {
                Type::Float16 => float_class(a[lane] & 0xffff, 10, 15),
                Type::Float64 => float_class(a[lane], 52, 63),
                _ => float_class(a[lane] & 0xffff_ffff, 23, 31),
            };
            mask |= (b[lane] as u32 >> class & 1) << lane;
        }
        self.finish_mask(instruction, mask & exec, to_exec);
    }

    /// Addition and subtraction with carry.
    fn run_carry(&mut self, instruction: &Instruction, subtract: bool, reversed: bool, carry_in: bool) {
        let exec = self.exec();
        let bits = Type::Bits32;
        let Fetched { values: a, valid } = self.fetch(instruction, Field::Source0, bits);
        let b = self.fetch(instruction, Field::Source1, bits).values;
        let carry = if carry_in { self.mask_in(instruction) } else { 0 };
        let (mut results, mut mask) = ([0; LANES], 0);
        for lane in 0..LANES {
            let (a, b) = if reversed { (b[lane], a[lane]) } else { (a[lane], b[lane]) };
            let (a, b, carry) = (a as u32 as u64, b as u32 as u64, (carry >> lane & 1) as u64);
            let wide = if subtract { a.wrapping_sub(b).wrapping_sub(carry) } else { a + b + carry };
            results[lane] = wide as u32 as u64;
            mask |= (wide >> 32 & 1) as u32 * (1 << lane);
        }
        self.put(instruction, &results, bits, exec & valid);
        self.put_mask(instruction, mask & exec & valid);
    }

    /// A 32-bit by 32-bit product plus a 64-bit value.
    fn run_multiply_add_wide(&mut self, instruction: &Instruction, signed: bool) {
        let exec = self.exec();
        let bits = Type::Bits32;
        let a = self.fetch(instruction, Field::Source0, bits).values;
        let b = self.fetch(instruction, Field::Source1, bits).values;
        let wide = if signed { Type::Signed64 } else { Type::Bits64 };
        let c = self.fetch(instruction, Field::Source2, wide).values;
        let (mut results, mut mask) = ([0; LANES], 0);
        for lane in 0..LANES {
            let product = if signed {
                (a[lane] as i32 as i64 * b[lane] as i32 as i64) as u64
            } else {
                a[lane] as u32 as u64 * b[lane] as u32 as u64
            };
            let (sum, carry) = product.overflowing_add(c[lane]);
            results[lane] = sum;
            mask |= (carry as u32) << lane;
        }
        self.put(instruction, &results, Type::Bits64, exec);
        self.put_mask(instruction, mask & exec);
    }

    /// One of two sources in each lane, selected by a mask.
    fn run_select(&mut self, instruction: &Instruction) {
        let exec = self.exec();
        let bits = Type::Bits32;
        let a = self.fetch(instruction, Field::Source0, Type::Float32);
        let b = self.fetch(instruction, Field::Source1, Type::Float32).values;
        let mask = self.mask_in(instruction);
        let mut results = a.values;
        for lane in 0..LANES {
            if mask >> lane & 1 == 1 {
                results[lane] = b[lane];
            }
        }
        self.put(instruction, &results, bits, exec & a.valid);
    }

    /// One lane of a register, to a scalar register.
    fn run_read_lane(&mut self, instruction: &Instruction, lane: usize) {
        let value = self.fetch(instruction, Field::Source0, Type::Bits32).values[lane];
        if let Some(register) = Wave::destination(instruction, Field::Destination) {
            self.set_scalar(register, value as u32);
        }
    }

    /// The lane that an instruction names in its second source.
    fn named_lane(&self, instruction: &Instruction) -> usize {
        self.fetch(instruction, Field::Source1, Type::Bits32).values[0] as usize % LANES
    }

    /// A permutation of lanes within rows of sixteen, or across two of them.
    fn run_permute_rows(&mut self, instruction: &Instruction, cross: bool) {
        let exec = self.exec();
        let bits = Type::Bits32;
        let a = self.fetch(instruction, Field::Source0, bits).values;
        let selects = self.fetch(instruction, Field::Source1, bits).values[0] & 0xffff_ffff
            | self.fetch(instruction, Field::Source2, bits).values[0] << 32;
        let (inactive_too, zero_outside) = (instruction.bits(11, 1) == 1, instruction.bits(12, 1) == 1);
        let (mut results, mut on) = ([0; LANES], exec);
        for lane in 0..LANES {
            let row = if cross { (lane & !15) ^ 16 } else { lane & !15 };
            let from = row + (selects >> ((lane & 15) * 4) & 15) as usize;
            if inactive_too || exec >> from & 1 == 1 {
                results[lane] = a[from];
            } else if !zero_outside {
                on &= !(1 << lane);
            }
        }
        self.put(instruction, &results, bits, on);
    }

    /// Accesses another register through M0, as the source or as the destination.
    fn run_move_relative(&mut self, instruction: &Instruction, destination: bool) {
        let exec = self.exec();
        let bits = Type::Bits32;
        let index = self.scalars[M0] as usize;
        let register = Wave::destination(instruction, Field::Destination).unwrap_or(0) as usize;
        let mut values = self.fetch(instruction, Field::Source0, bits).values;
        let source = instruction.definition.operand(Field::Source0).map(|slot| instruction.operand(slot));
        if let (false, Some(OperandValue::Vector(first))) = (destination, source) {
            values = std::array::from_fn(|lane| self.vector_lane(first as usize + index, lane) as u64);
        }
        let target = register.saturating_add(if destination { index } else { 0 });
        for lane in (0..LANES).filter(|lane| exec >> lane & 1 == 1) {
            self.set_vector_lane(target, lane, values[lane] as u32);
        }
    }

    /// The number of set bits of a mask below each lane, added to a source.
    fn run_count_below(&mut self, instruction: &Instruction, high: bool) {
        let exec = self.exec();
        let bits = Type::Bits32;
        let a = self.fetch(instruction, Field::Source0, bits).values;
        let b = self.fetch(instruction, Field::Source1, bits).values;
        let mut results = b;
        // The lower mask has a bit for each of the first 32 lanes, the upper one for the others.
        if !high || self.half == 1 {
            for lane in 0..LANES {
                let all = !high && self.half == 1;
                let below = a[lane] as u32 & if all { u32::MAX } else { (1u32 << lane) - 1 };
                results[lane] = (b[lane] as u32).wrapping_add(below.count_ones()) as u64;
            }
        }
        self.put(instruction, &results, bits, exec);
    }

    /// `v_div_scale`.
    fn run_divide_scale(&mut self, instruction: &Instruction, wide: bool) {
        let exec = self.exec();
        let sources = self.divide_sources(instruction, wide);
        let (mut results, mut mask) = ([0; LANES], 0);
        for lane in 0..LANES {
            let [a, b, c] = sources.map(|values| values[lane]);
            let (value, scaled) = if wide {
                let (value, scaled) = divide::divide_scale(f64::from_bits(a), f64::from_bits(b), f64::from_bits(c));
                (value.to_bits(), scaled)
            } else {
                let [a, b, c] = [a, b, c].map(|bits| f32::from_bits(bits as u32));
                let (value, scaled) = divide::divide_scale(a, b, c);
                (value.to_bits() as u64, scaled)
            };
            results[lane] = value;
            mask |= (scaled as u32) << lane;
        }
        self.put(instruction, &results, Type::Bits32, exec);
        self.put_mask(instruction, mask & exec);
    }

    /// `v_div_fmas`.
    fn run_divide_multiply_add(&mut self, instruction: &Instruction, wide: bool) {
        let (exec, mode) = (self.exec(), self.mode);
        let sources = self.divide_sources(instruction, wide);
        let mask = self.scalars[VCC + self.half];
        let mut results = [0; LANES];
        for lane in 0..LANES {
            let ([a, b, c], scaled) = (sources.map(|values| values[lane]), mask >> lane & 1 == 1);
            results[lane] = if wide {
                let result = divide::divide_multiply_add_double([a, b, c], scaled, mode);
                self.finish_float(instruction, Type::Float64, result)
            } else {
                let result = divide::divide_multiply_add_single([a, b, c], scaled, mode);
                self.finish_float(instruction, Type::Float32, result)
            };
        }
        self.put(instruction, &results, Type::Bits32, exec);
    }

    /// Two registers exchange their contents.
    fn run_swap(&mut self, instruction: &Instruction) {
        let exec = self.exec();
        let slots = [Field::Destination, Field::Source0].map(|field| Wave::destination(instruction, field));
        if let [Some(first), Some(second)] = slots {
            let values = [first, second].map(|register| self.vector(register));
            self.put_row(first, &values[1], exec);
            self.put_row(second, &values[0], exec);
        }
    }

    fn run_row(&mut self, operation: &RowOperation) {
        let exec = self.exec();
        let [a, b, c] = operation.sources.map(|source| self.row_source(source));
        let results = (operation.run)(&a, &b, &c, self.mode);
        self.put_row(operation.destination, &results, exec);
    }

    #[inline]
    fn row_source(&self, source: RowSource) -> Lanes {
        let mut lanes = match source.from {
            RowOperand::Vector(register) => self.vector(register),
            RowOperand::Scalar(register) => [self.scalar(register); LANES],
            RowOperand::Constant(value) => [value; LANES],
        };
        if source.keep != u32::MAX || source.flip != 0 {
            lanes.iter_mut().for_each(|lane| *lane = (*lane & source.keep) ^ source.flip);
        }
        lanes
    }

    fn divide_sources(&self, instruction: &Instruction, wide: bool) -> [[u64; LANES]; 3] {
        let kind = if wide { Type::Float64 } else { Type::Float32 };
        [Field::Source0, Field::Source1, Field::Source2].map(|field| self.fetch(instruction, field, kind).values)
    }

    fn flushed(&self, value: f32) -> f32 {
        crate::float::flush_single(value, self.mode.single.flush_in)
    }

    /// Sources 1 and 2 of a function of one lane: registers, the constant of `fmamk` and similar, or the destination.
    fn later_sources(&self, instruction: &Instruction, operation: LaneOperation) -> ([u64; LANES], [u64; LANES]) {
        let slots = instruction.definition.operands();
        let constant = slots.iter().position(|slot: &Slot| slot.field == Field::Constant);
        let b = self.fetch(instruction, Field::Source1, operation.sources[1]).values;
        match constant {
            // fmamk: a · constant + b.
            Some(2) => return ([instruction.literal() as u64; LANES], b),
            // fmaak: a · b + constant.
            Some(_) => return (b, [instruction.literal() as u64; LANES]),
            None => {}
        }
        let c = if operation.accumulates {
            let register = Wave::destination(instruction, Field::Destination).unwrap_or(0);
            let mut values = [0; LANES];
            let lanes: Lanes = self.vector(register);
            for lane in 0..LANES {
                values[lane] = lanes[lane] as u64;
            }
            values
        } else {
            self.fetch(instruction, Field::Source2, operation.sources[2]).values
        };
        (b, c)
    }
}

/// The bit of `v_cmp_class` for a value, by the widths of its fields.
fn float_class(bits: u64, mantissa: u32, sign: u32) -> u32 {
    let negative = bits >> sign & 1 == 1;
    let exponent = bits >> mantissa & ((1 << (sign - mantissa)) - 1);
    let fraction = bits & ((1 << mantissa) - 1);
    let largest = (1 << (sign - mantissa)) - 1;
    // Signalling and quiet NaN; then from minus infinity to plus infinity.
    let (minus, plus) = match (exponent, fraction) {
        (exponent, fraction) if exponent == largest && fraction != 0 => {
            let quiet = (fraction >> (mantissa - 1) & 1) as u32;
            (quiet, quiet)
        }
        (exponent, _) if exponent == largest => (2, 9),
        (0, 0) => (5, 6),
        (0, _) => (4, 7),
        _ => (3, 8),
    };
    if negative { minus } else { plus }
}
