//! Operands of vector instructions: from registers to lanes and back, with all their modifiers.

use unhang_isa::{Field, Format, Instruction, Modifier, OperandValue};

use crate::float::half_bits;
use crate::wave::{EXEC, LANES, Lanes, Type, VCC, Wave};

/// A source, one value per lane, and the lanes for which it exists (permutations can leave some out).
pub(crate) struct Fetched {
    pub values: [u64; LANES],
    pub valid: u32,
}

impl Wave {
    pub(crate) fn fetch(&self, instruction: &Instruction, field: Field, kind: Type) -> Fetched {
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
        if let Some(permuted) = instruction.permuted_source().filter(|&it| it == field || field == Field::Source0) {
            let Fetched { values, valid } = self.permute(instruction, &fetched.values);
            // The lanes that are left out are the same whichever source is permuted.
            fetched.valid = valid;
            if field == permuted {
                fetched.values = values;
            }
        }
        self.modify(instruction, field, kind, &mut fetched.values);
        fetched
    }

    /// Applies half selection, absolute value and sign, as the encoding says.
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

    /// Data-parallel permutation of a source.
    fn permute(&self, instruction: &Instruction, old: &[u64; LANES]) -> Fetched {
        let mut fetched = Fetched { values: [0; LANES], valid: u32::MAX };
        let exec = self.exec();
        if instruction.modifier == Modifier::Dpp8 {
            let inactive_too = instruction.bits(0, 9) == 234;
            for lane in 0..LANES {
                let from = lane & !7 | instruction.high_bits(8 + (lane as u32 & 7) * 3, 3) as usize;
                let readable = inactive_too || exec >> from & 1 == 1;
                fetched.values[lane] = if readable { old[from] } else { 0 };
            }
            return fetched;
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
        fetched
    }

    /// Writes results to the active lanes.
    pub(crate) fn put(&mut self, instruction: &Instruction, results: &[u64; LANES], kind: Type, on: u32) {
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
                // Half results leave the other half of the register unchanged.
                value = if high_half { old & 0xffff | value << 16 } else { old & 0xffff_0000 | value & 0xffff };
            }
            self.set_vector_lane(register as usize, lane, value);
            if wide {
                self.set_vector_lane(register as usize + 1, lane, (results[lane] >> 32) as u32);
            }
        }
    }

    /// Clamp and output scale of float results.
    pub(crate) fn finish_float(&self, instruction: &Instruction, kind: Type, value: u64) -> u64 {
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
    pub(crate) fn put_mask(&mut self, instruction: &Instruction, mask: u32) {
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

    /// The mask that a selection or carry reads.
    pub(crate) fn mask_in(&self, instruction: &Instruction) -> u32 {
        match instruction.definition.operand(Field::Source2) {
            Some(slot) => (self.uniform(instruction.operand(slot), Type::Bits64, true) >> (32 * self.half)) as u32,
            None => self.scalars[VCC + self.half],
        }
    }

    pub(crate) fn finish_mask(&mut self, instruction: &Instruction, mask: u32, to_exec: bool) {
        if to_exec {
            self.scalars[EXEC + self.half] = mask;
        } else {
            self.put_mask(instruction, mask);
        }
    }

    /// Writes a register in the active lanes.
    #[inline]
    pub(crate) fn put_row(&mut self, register: u8, results: &Lanes, exec: u32) {
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

/// Puts a result into a byte or half of the old value.
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
