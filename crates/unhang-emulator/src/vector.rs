//! Vector instructions: from operands to lanes and back, with all their modifiers.

use unhang_isa::{Field, Format, Instruction, Modifier, OperandValue, Slot};

use crate::FaultKind;
use crate::divide;
use crate::float::half_bits;
use crate::lanes::LaneOperation;
use crate::semantics::{CompareKind, EQUAL, GREATER, LESS, RowOperand, RowOperation, RowSource, Semantics, UNORDERED};
use crate::wave::{EXEC, LANES, Lanes, M0, Type, VCC, Wave};

fn outcome<T: PartialOrd>(a: T, b: T) -> u8 {
    match a.partial_cmp(&b) {
        Some(std::cmp::Ordering::Less) => LESS,
        Some(std::cmp::Ordering::Equal) => EQUAL,
        Some(std::cmp::Ordering::Greater) => GREATER,
        None => UNORDERED,
    }
}

/// A source, one value a lane, and the lanes for which it exists (permutations can leave some out).
pub(crate) struct Fetched {
    pub values: [u64; LANES],
    pub valid: u32,
}

impl Wave {
    pub fn fetch(&self, instruction: &Instruction, field: Field, kind: Type) -> Fetched {
        let mut fetched = Fetched { values: [0; LANES], valid: u32::MAX };
        let Some(slot) = instruction.definition.operand(field) else { return fetched };
        let wide = slot.width.registers(false) == 2;
        match instruction.operand(slot) {
            OperandValue::Vector(register) => {
                let low = self.vector(register);
                if wide {
                    let high = self.vector(register.wrapping_add(1));
                    for lane in 0..LANES {
                        fetched.values[lane] = low[lane] as u64 | (high[lane] as u64) << 32;
                    }
                } else {
                    for lane in 0..LANES {
                        fetched.values[lane] = low[lane] as u64;
                    }
                }
            }
            source => fetched.values = [self.uniform(source, kind, wide); LANES],
        }
        if field == Field::Source0 && matches!(instruction.modifier, Modifier::Dpp16 | Modifier::Dpp8) {
            self.permute(instruction, &mut fetched);
        }
        self.modify(instruction, field, kind, &mut fetched.values);
        fetched
    }

    /// Half selection, absolute value and sign, as the encoding has them.
    fn modify(&self, instruction: &Instruction, field: Field, kind: Type, values: &mut [u64; LANES]) {
        let place = match field {
            Field::Source0 => 0,
            Field::Source1 => 1,
            Field::Source2 => 2,
            _ => return,
        };
        let (mut neg, mut abs) = (false, false);
        match (instruction.format(), instruction.modifier) {
            (Format::Vop3, _) => {
                neg = instruction.high_bits(29 + place, 1) == 1;
                let long = instruction.definition.operand(Field::ScalarDestination).is_none();
                abs = long && instruction.bits(8 + place, 1) == 1;
                if long && kind.is_half() && instruction.bits(11 + place, 1) == 1 {
                    values.iter_mut().for_each(|value| *value >>= 16);
                }
            }
            (_, Modifier::Dpp16) => {
                neg = instruction.high_bits(20 + place * 2, 1) == 1;
                abs = instruction.high_bits(21 + place * 2, 1) == 1;
            }
            (_, Modifier::Sdwa) => {
                let base = if place == 0 { 16 } else { 24 };
                let select = instruction.high_bits(base, 3);
                let signed = instruction.high_bits(base + 3, 1) == 1;
                (neg, abs) = (instruction.high_bits(base + 4, 1) == 1, instruction.high_bits(base + 5, 1) == 1);
                for value in values.iter_mut() {
                    *value = select_part(*value as u32, select, signed) as u64;
                }
            }
            _ => {}
        }
        let sign = kind.sign_bit();
        if !neg && !abs || sign == 0 {
            return;
        }
        for value in values.iter_mut() {
            if abs {
                *value &= !sign;
            }
            if neg {
                *value ^= sign;
            }
        }
    }

    /// Data-parallel permutation of source 0.
    fn permute(&self, instruction: &Instruction, fetched: &mut Fetched) {
        let old = fetched.values;
        let exec = self.exec();
        if instruction.modifier == Modifier::Dpp8 {
            let inactive_too = instruction.bits(0, 9) == 234;
            for lane in 0..LANES {
                let from = lane & !7 | instruction.high_bits(8 + (lane as u32 & 7) * 3, 3) as usize;
                let readable = inactive_too || exec >> from & 1 == 1;
                fetched.values[lane] = if readable { old[from] } else { 0 };
            }
            return;
        }
        let control = instruction.high_bits(8, 9);
        let inactive_too = instruction.high_bits(18, 1) == 1;
        let zero_outside = instruction.high_bits(19, 1) == 1;
        let (banks, rows) = (instruction.high_bits(24, 4), instruction.high_bits(28, 4));
        for lane in 0..LANES {
            let (row, place) = (lane & !15, lane & 15);
            let count = (control & 15) as usize;
            let from = match control {
                0..=0xff => Some(lane & !3 | (control >> ((lane & 3) * 2) & 3) as usize),
                0x101..=0x10f => (place + count < 16).then_some(lane + count),
                0x111..=0x11f => place.checked_sub(count).map(|place| row + place),
                0x121..=0x12f => Some(row + (place + 16 - count) % 16),
                0x140 => Some(row + 15 - place),
                0x141 => Some(lane & !7 | (7 - (lane & 7))),
                0x150..=0x15f => Some(row + count),
                0x160..=0x16f => Some(row + (place ^ count)),
                _ => None,
            };
            let readable = from.filter(|&from| inactive_too || exec >> from & 1 == 1);
            fetched.values[lane] = readable.map_or(0, |from| old[from]);
            let masked = rows >> (lane / 16 + 2 * self.half) & 1 == 0 || banks >> (place / 4) & 1 == 0;
            if masked || readable.is_none() && !zero_outside {
                fetched.valid &= !(1 << lane);
            }
        }
    }

    /// Writes results to the lanes that are on.
    pub fn put(&mut self, instruction: &Instruction, results: &[u64; LANES], kind: Type, on: u32) {
        let Some(slot) = instruction.definition.operand(Field::Destination) else { return };
        let OperandValue::Vector(register) = instruction.operand(slot) else { return };
        let wide = slot.width.registers(false) == 2;
        let high_half = instruction.format() == Format::Vop3 && kind.is_half() && instruction.bits(14, 1) == 1;
        for lane in 0..LANES {
            if on >> lane & 1 == 0 {
                continue;
            }
            let old = self.vector_lane(register as usize, lane);
            let mut value = results[lane] as u32;
            if instruction.modifier == Modifier::Sdwa {
                value = place_part(old, value, instruction.high_bits(8, 3), instruction.high_bits(11, 2));
            } else if kind.is_half() {
                // Half results leave the other half of the register as it is.
                value = if high_half { old & 0xffff | value << 16 } else { old & 0xffff_0000 | value & 0xffff };
            }
            self.set_vector_lane(register as usize, lane, value);
            if wide {
                self.set_vector_lane(register as usize + 1, lane, (results[lane] >> 32) as u32);
            }
        }
    }

    /// Clamp and output scale of float results.
    fn finish_float(&self, instruction: &Instruction, kind: Type, value: u64) -> u64 {
        let (clamp, scale) = match (instruction.format(), instruction.modifier) {
            (Format::Vop3, _) if instruction.definition.operand(Field::ScalarDestination).is_none() => {
                (instruction.bits(15, 1) == 1, instruction.high_bits(27, 2))
            }
            (Format::Vop1 | Format::Vop2, Modifier::Sdwa) => {
                (instruction.high_bits(13, 1) == 1, instruction.high_bits(14, 2))
            }
            _ => return value,
        };
        if !clamp && scale == 0 {
            return value;
        }
        let factor = [1.0, 2.0, 4.0, 0.5][scale as usize];
        let limit = |number: f64| match clamp {
            true if number.is_nan() && self.mode.clamp_nan => 0.0,
            true => number.clamp(0.0, 1.0),
            false => number,
        };
        match kind {
            Type::Float32 => {
                let number = f32::from_bits(value as u32) * factor as f32;
                (limit(number as f64) as f32).to_bits() as u64
            }
            Type::Float16 => half_bits(limit(half::f16::from_bits(value as u16).to_f64() * factor), self.mode),
            Type::Float64 => limit(f64::from_bits(value) * factor).to_bits(),
            _ => value,
        }
    }

    /// Writes a lane mask to the scalar destination of a comparison or carry.
    fn put_mask(&mut self, instruction: &Instruction, mask: u32) {
        let register = match instruction.format() {
            Format::Vop3 => Wave::destination(instruction, Field::ScalarDestination)
                .or_else(|| Wave::destination(instruction, Field::Destination)),
            Format::Vopc if instruction.modifier == Modifier::Sdwa && instruction.high_bits(15, 1) == 1 => {
                Some(instruction.high_bits(8, 7) as u8)
            }
            _ => Some(VCC as u8),
        };
        if let Some(register) = register {
            self.set_scalar_of_half(register, mask);
        }
    }

    /// The mask that a selection or carry takes in.
    fn mask_in(&self, instruction: &Instruction) -> u32 {
        match instruction.definition.operand(Field::Source2) {
            Some(slot) => (self.uniform(instruction.operand(slot), Type::Bits64, true) >> (32 * self.half)) as u32,
            None => self.scalars[VCC + self.half],
        }
    }

    fn finish_mask(&mut self, instruction: &Instruction, mask: u32, to_exec: bool) {
        if to_exec {
            self.scalars[EXEC + self.half] = mask;
        } else {
            self.put_mask(instruction, mask);
        }
    }

    /// Executes a vector instruction.
    pub fn run_vector(&mut self, instruction: &Instruction, semantics: Semantics) -> Result<(), FaultKind> {
        let exec = self.exec();
        let mode = self.mode;
        let bits = Type::Bits32;
        match semantics {
            Semantics::Nothing => {}
            Semantics::Row(operation) => self.run_row(&operation, exec),
            Semantics::Lane(operation) => {
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
            Semantics::Packed(run) => self.run_packed(instruction, run),
            Semantics::Dot(dot) => return self.run_dot(instruction, dot),
            Semantics::Mixed(result) => self.run_mixed(instruction, result),
            Semantics::Compare { outcomes, kind, to_exec } => {
                let operand = match kind {
                    CompareKind::Float(kind) => kind,
                    CompareKind::Signed(16) | CompareKind::Unsigned(16) => Type::Bits16,
                    CompareKind::Signed(64) => Type::Signed64,
                    CompareKind::Unsigned(64) => Type::Bits64,
                    _ => bits,
                };
                let a = self.fetch(instruction, Field::Source0, operand).values;
                let b = self.fetch(instruction, Field::Source1, operand).values;
                let mut mask = 0;
                for lane in 0..LANES {
                    let (a, b) = (a[lane], b[lane]);
                    let outcome = match kind {
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
                    };
                    mask |= ((outcomes & outcome != 0) as u32) << lane;
                }
                self.finish_mask(instruction, mask & exec, to_exec);
            }
            Semantics::Class { to_exec, kind } => {
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
            Semantics::Carry { subtract, reversed, carry_in } => {
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
            Semantics::MultiplyAddWide { signed } => {
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
            Semantics::Select => {
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
            Semantics::ReadFirstLane => {
                let lane = if exec == 0 { 0 } else { exec.trailing_zeros() as usize };
                let value = self.fetch(instruction, Field::Source0, bits).values[lane];
                if let Some(register) = Wave::destination(instruction, Field::Destination) {
                    self.set_scalar(register, value as u32);
                }
            }
            Semantics::ReadLane => {
                let lane = self.fetch(instruction, Field::Source1, bits).values[0] as usize % LANES;
                let value = self.fetch(instruction, Field::Source0, bits).values[lane];
                if let Some(register) = Wave::destination(instruction, Field::Destination) {
                    self.set_scalar(register, value as u32);
                }
            }
            Semantics::WriteLane => {
                let lane = self.fetch(instruction, Field::Source1, bits).values[0] as usize % LANES;
                let value = self.fetch(instruction, Field::Source0, bits).values[0];
                self.put(instruction, &[value; LANES], bits, 1 << lane);
            }
            Semantics::PermuteRows { cross } => {
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
            Semantics::MoveRelative { destination } => {
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
            Semantics::CountBelow { high } => {
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
            Semantics::DivideScale { wide } => {
                let sources = self.divide_sources(instruction, wide);
                let (mut results, mut mask) = ([0; LANES], 0);
                for lane in 0..LANES {
                    let [a, b, c] = sources.map(|values| values[lane]);
                    let (value, scaled) = if wide {
                        let (value, scaled) =
                            divide::divide_scale(f64::from_bits(a), f64::from_bits(b), f64::from_bits(c));
                        (value.to_bits(), scaled)
                    } else {
                        let [a, b, c] = [a, b, c].map(|bits| f32::from_bits(bits as u32));
                        let (value, scaled) = divide::divide_scale(a, b, c);
                        (value.to_bits() as u64, scaled)
                    };
                    results[lane] = value;
                    mask |= (scaled as u32) << lane;
                }
                self.put(instruction, &results, bits, exec);
                self.put_mask(instruction, mask & exec);
            }
            Semantics::DivideMultiplyAdd { wide } => {
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
                self.put(instruction, &results, bits, exec);
            }
            Semantics::Swap => {
                let slots = [Field::Destination, Field::Source0].map(|field| Wave::destination(instruction, field));
                if let [Some(first), Some(second)] = slots {
                    let values = [first, second].map(|register| self.vector(register));
                    self.put_row(first, &values[1], exec);
                    self.put_row(second, &values[0], exec);
                }
            }
            Semantics::Unsupported | Semantics::Hole(_) | Semantics::Scalar(_) | Semantics::Memory(_) => {
                return Err(FaultKind::Unsupported);
            }
        }
        Ok(())
    }

    fn run_row(&mut self, operation: &RowOperation, exec: u32) {
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

    /// Writes a register in the lanes that are on.
    #[inline]
    fn put_row(&mut self, register: u8, results: &Lanes, exec: u32) {
        let Some(lanes) = self.vector_mut(register as usize) else { return };
        if exec == u32::MAX {
            *lanes = *results;
        } else {
            for lane in 0..LANES {
                let on = ((exec >> lane & 1) as i32).wrapping_neg() as u32;
                lanes[lane] = lanes[lane] & !on | results[lane] & on;
            }
        }
    }

    fn divide_sources(&self, instruction: &Instruction, wide: bool) -> [[u64; LANES]; 3] {
        let kind = if wide { Type::Float64 } else { Type::Float32 };
        [Field::Source0, Field::Source1, Field::Source2].map(|field| self.fetch(instruction, field, kind).values)
    }

    fn flushed(&self, value: f32) -> f32 {
        crate::float::flush_single(value, self.mode.single.flush_in)
    }

    /// Sources 1 and 2 of a function of one lane: registers, the constant of `fmamk` and its kin, or the destination.
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

/// A byte or half of a source, as sub-dword addressing selects it.
fn select_part(value: u32, select: u32, signed: bool) -> u32 {
    match select {
        0..=3 => {
            let byte = value >> (select * 8) & 0xff;
            if signed { byte as i8 as i32 as u32 } else { byte }
        }
        4 | 5 => {
            let half = value >> ((select - 4) * 16) & 0xffff;
            if signed { half as i16 as i32 as u32 } else { half }
        }
        _ => value,
    }
}

/// A result put into a byte or half of the old value.
fn place_part(old: u32, value: u32, select: u32, unused: u32) -> u32 {
    let (shift, width) = match select {
        0..=3 => (select * 8, 8),
        4 | 5 => ((select - 4) * 16, 16),
        _ => return value,
    };
    let mask = ((1u32 << width) - 1) << shift;
    let part = value << shift & mask;
    match unused {
        // Pad with zeros, extend the sign, or keep.
        0 => part,
        1 => {
            let negative = value >> (width - 1) & 1 == 1;
            let above = if shift + width == 32 { 0 } else { u32::MAX << (shift + width) };
            if negative { part | above } else { part }
        }
        _ => old & !mask | part,
    }
}

/// The bit of `v_cmp_class` to which a value belongs, by the widths of its fields.
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
