//! Packed halves, and the multiply-add that mixes halves and singles.

use unhang_isa::{Field, Format, Instruction};

use crate::FaultKind;
use crate::bytes::DotProduct;
use crate::float::{fused_single, half_bits};
use crate::lanes::operation::PackedOperation;
use crate::semantics::MixedResult;
use crate::wave::{LANES, Type, Wave};

impl Wave {
    pub(crate) fn run_packed(&mut self, instruction: &Instruction, packed: PackedOperation) {
        let run = packed.run;
        let is_float = packed.half == Type::Float16;
        // Integer constants are those of 32 bits.
        let kind = if is_float { Type::Packed16 } else { Type::Bits32 };
        let clamp = instruction.bits(15, 1) == 1 && is_float;
        let mut sources =
            [Field::Source0, Field::Source1, Field::Source2].map(|field| self.fetch(instruction, field, kind).values);
        if packed.accumulates {
            let register = Wave::destination(instruction, Field::Destination).unwrap_or(0);
            sources[2] = self.vector(register).map(u64::from);
        }
        let short = instruction.format() != Format::Vop3p;
        let high_select = if short { 7 } else { instruction.high_bits(27, 2) | instruction.bits(14, 1) << 2 };
        let half = |lane: usize, place: usize, high: bool| {
            if short {
                return sources[place][lane] >> if high { 16 } else { 0 } & 0xffff;
            }
            let select = if high { high_select } else { instruction.bits(11, 3) };
            let value = sources[place][lane] >> if select >> place & 1 == 1 { 16 } else { 0 } & 0xffff;
            let negate = if high { instruction.bits(8, 3) } else { instruction.high_bits(29, 3) };
            value ^ if is_float && negate >> place & 1 == 1 { 0x8000 } else { 0 }
        };
        let mut results = [0; LANES];
        for (lane, result) in results.iter_mut().enumerate() {
            let [low, high] = [false, true]
                .map(|high| run(half(lane, 0, high), half(lane, 1, high), half(lane, 2, high), self.mode) & 0xffff)
                .map(|bits| if clamp && !short { self.clamped_half(bits) } else { bits });
            *result = low | high << 16;
        }
        self.put(instruction, &results, Type::Packed16, self.exec());
    }

    fn clamped_half(&self, bits: u64) -> u64 {
        let value = half::f16::from_bits(bits as u16).to_f64();
        let limited = if value.is_nan() && self.mode.clamp_nan { 0.0 } else { value.clamp(0.0, 1.0) };
        half_bits(limited, self.mode)
    }

    pub(crate) fn run_dot(&mut self, instruction: &Instruction, dot: DotProduct) -> Result<(), FaultKind> {
        let select_low = instruction.bits(11, 3);
        let select_high = instruction.high_bits(27, 2) | instruction.bits(14, 1) << 2;
        let [negate_low, negate_high] = [instruction.high_bits(29, 3), instruction.bits(8, 3)];
        let is_float = dot.result == Type::Float32;
        // The meaning of half selection for smaller parts, and of an absolute sum, is not documented.
        if !dot.halves && (select_low != 0 || select_high != 7) || is_float && negate_high >> 2 & 1 == 1 {
            return Err(FaultKind::Unsupported);
        }
        let kind = if is_float { Type::Packed16 } else { Type::Bits32 };
        let part = |value: u64, place: usize| {
            let half = |select: u32, negate: u32| {
                let bits = value >> if select >> place & 1 == 1 { 16 } else { 0 } & 0xffff;
                bits ^ if is_float && negate >> place & 1 == 1 { 0x8000 } else { 0 }
            };
            if dot.halves { half(select_low, negate_low) | half(select_high, negate_high) << 16 } else { value }
        };
        let a = self.fetch(instruction, Field::Source0, kind).values;
        let b = self.fetch(instruction, Field::Source1, kind).values;
        let c = self.fetch(instruction, Field::Source2, dot.result).values;
        let sign = if negate_low >> 2 & 1 == 1 { dot.result.sign_bit() } else { 0 };
        let clamp = instruction.bits(15, 1) == 1 && is_float;
        let results = std::array::from_fn(|lane| {
            let sum = (dot.run)(part(a[lane], 0), part(b[lane], 1), c[lane] ^ sign, self.mode);
            if clamp { self.limited(f32::from_bits(sum as u32)).to_bits() as u64 } else { sum }
        });
        self.put(instruction, &results, dot.result, self.exec());
        Ok(())
    }

    /// A result with `clamp`: from zero to one.
    fn limited(&self, value: f32) -> f32 {
        if value.is_nan() && self.mode.clamp_nan { 0.0 } else { value.clamp(0.0, 1.0) }
    }

    pub(crate) fn run_mixed(&mut self, instruction: &Instruction, kind: MixedResult) {
        let high_select = instruction.high_bits(27, 2) | instruction.bits(14, 1) << 2;
        let fields = [Field::Source0, Field::Source1, Field::Source2];
        let sources: [[u64; LANES]; 3] = std::array::from_fn(|place| {
            let is_half = high_select >> place & 1 == 1;
            self.fetch(instruction, fields[place], if is_half { Type::Float16 } else { Type::Float32 }).values
        });
        let number = |lane: usize, place: usize| {
            let value = sources[place][lane] as u32;
            let number = if high_select >> place & 1 == 1 {
                let shift = if instruction.bits(11, 3) >> place & 1 == 1 { 16 } else { 0 };
                half::f16::from_bits((value >> shift) as u16).to_f32()
            } else {
                f32::from_bits(value)
            };
            let number = if instruction.bits(8, 3) >> place & 1 == 1 { number.abs() } else { number };
            if instruction.high_bits(29, 3) >> place & 1 == 1 { -number } else { number }
        };
        let clamp = instruction.bits(15, 1) == 1;
        let register = Wave::destination(instruction, Field::Destination).unwrap_or(0);
        let mut results = [0; LANES];
        for (lane, result) in results.iter_mut().enumerate() {
            let [x, y, z] = [0, 1, 2].map(|place| number(lane, place));
            let sum = f32::from_bits(fused_single(x, y, z, self.mode) as u32);
            let sum = if clamp { self.limited(sum) } else { sum };
            let old = self.vector_lane(register as usize, lane);
            // A half result is a converted single: two roundings.
            let half = || half_bits(sum as f64, self.mode) as u32;
            *result = match kind {
                MixedResult::Single => sum.to_bits(),
                MixedResult::Low => old & 0xffff_0000 | half(),
                MixedResult::High => old & 0xffff | half() << 16,
            } as u64;
        }
        self.put(instruction, &results, Type::Bits32, self.exec());
    }
}
