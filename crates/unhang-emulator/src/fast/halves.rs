//! Packed halves, conversions between halves and singles, and sources that are parts of registers, on whole registers.
//! Kernels in half precision and bfloat16 spend their time in these. Neither mode for which code is resolved flushes
//! halves.
//!
//! Halves need AVX-512; other hosts take the plain path.

use unhang_isa::{Field, Format, Instruction, Modifier, OperandValue};

use crate::host::{FastRow, Host};
use crate::lanes;
use crate::lanes::operation::LaneOperation;
use crate::semantics::{MixedResult, RowOperand, RowSource, Semantics};
use crate::wave::{LANES, Lanes, Type, Wave, constant_bits};

/// An instruction whose sources are first extracted from halves.
#[derive(Clone, Copy)]
pub(crate) struct HalvesOperation {
    pub run: FastRow,
    pub sources: [HalvesSource; 3],
    pub destination: u8,
}

/// A source, the part that is extracted, and the bits of it that are kept and inverted.
#[derive(Clone, Copy)]
pub(crate) struct HalvesSource {
    pub from: RowOperand,
    part: HalvesPart,
    keep: u32,
    flip: u32,
}

#[derive(Clone, Copy)]
enum HalvesPart {
    Whole,
    /// The lower or the upper half as a single.
    Single {
        upper: bool,
    },
    /// Some bits of the source, or all: shifted to the left, and then to the right with sign.
    Bits {
        left: u8,
        right: u8,
        signed: bool,
    },
    /// A pair. Each of its halves is the lower or the upper one of the source.
    Pair {
        lower_from_upper: bool,
        upper_from_upper: bool,
    },
}

const UNUSED: HalvesSource =
    HalvesSource { from: RowOperand::Constant(0), part: HalvesPart::Whole, keep: u32::MAX, flip: 0 };
const FIELDS: [Field; 3] = [Field::Source0, Field::Source1, Field::Source2];

impl HalvesOperation {
    /// Resolves an instruction, if it is one of these.
    pub(crate) fn of(instruction: &Instruction, semantics: &Semantics, flushes: bool) -> Option<HalvesOperation> {
        if let Semantics::Lane(operation) = semantics
            && instruction.modifier == Modifier::Sdwa
            && let Some(selected) = HalvesOperation::selected(instruction, operation, flushes)
        {
            return Some(selected);
        }
        if Host::get() != Host::Avx512 {
            return None;
        }
        match semantics {
            Semantics::Packed(packed) => HalvesOperation::packed(instruction, packed.accumulates),
            // When denormals are flushed, this instruction does not flush those of its sources.
            Semantics::Mixed(MixedResult::Single) if !flushes => HalvesOperation::mixed(instruction),
            Semantics::Lane(_) => match instruction.definition.base_name() {
                "v_cvt_f32_f16" => HalvesOperation::conversion(instruction),
                "v_cvt_f16_f32" => HalvesOperation::rounding(instruction),
                "v_pack_b32_f16" => HalvesOperation::pack(instruction),
                _ => None,
            },
            _ => None,
        }
    }

    /// A 32-bit function whose sources are parts of registers and whose result is a whole one.
    fn selected(instruction: &Instruction, operation: &LaneOperation, flushes: bool) -> Option<HalvesOperation> {
        let is_plain = |kind: Type| matches!(kind, Type::Bits32 | Type::Float32);
        // The whole destination, without clamp or scale.
        if instruction.high_bits(8, 3) != 6
            || instruction.high_bits(13, 3) != 0
            || operation.accumulates
            || !is_plain(operation.result)
        {
            return None;
        }
        let mut sources = [UNUSED; 3];
        for place in 0..2 {
            let kind = operation.sources[place];
            let Some(from) = operand(instruction, FIELDS[place], kind)? else { continue };
            if !is_plain(kind) {
                return None;
            }
            let base = 16 + place as u32 * 8;
            let bit = |at: u32| instruction.high_bits(base + at, 1);
            let (left, right) = match instruction.high_bits(base, 3) {
                byte @ 0..=3 => (24 - byte as u8 * 8, 24),
                half @ (4 | 5) => (16 - (half as u8 - 4) * 16, 16),
                _ => (0, 0),
            };
            let sign = kind.sign_bit() as u32;
            let part = HalvesPart::Bits { left, right, signed: bit(3) == 1 };
            sources[place] = HalvesSource { from, part, keep: !(bit(5) * sign), flip: bit(4) * sign };
        }
        let run = operation.fast?.row(flushes)?;
        Some(HalvesOperation { run, sources, destination: Wave::destination(instruction, Field::Destination)? })
    }

    /// Singles that become halves; the rest of the destination register is unchanged.
    fn rounding(instruction: &Instruction) -> Option<HalvesOperation> {
        let long = instruction.format() == Format::Vop3;
        let changes = long && (instruction.bits(11, 5) != 0 || instruction.high_bits(27, 2) != 0);
        if instruction.modifier != Modifier::None || changes {
            return None;
        }
        let from = operand(instruction, Field::Source0, Type::Float32)??;
        let (absolute, negative) = if long { (instruction.bits(8, 1), instruction.high_bits(29, 1)) } else { (0, 0) };
        let source = HalvesSource { from, keep: u32::MAX >> absolute, flip: negative << 31, ..UNUSED };
        let destination = Wave::destination(instruction, Field::Destination)?;
        Some(HalvesOperation { run: round()?, sources: [source, UNUSED, UNUSED], destination })
    }

    /// Two halves in one register.
    fn pack(instruction: &Instruction) -> Option<HalvesOperation> {
        if instruction.format() != Format::Vop3 || instruction.bits(15, 1) == 1 || instruction.high_bits(27, 2) != 0 {
            return None;
        }
        let half = |place: usize| {
            let bit = |bits: u32| bits >> place & 1;
            let from = operand(instruction, FIELDS[place], Type::Float16)??;
            let left = if bit(instruction.bits(11, 2)) == 1 { 0 } else { 16 };
            let part = HalvesPart::Bits { left, right: 16, signed: false };
            let (absolute, negative) = (bit(instruction.bits(8, 2)), bit(instruction.high_bits(29, 2)));
            Some(HalvesSource { from, part, keep: !(absolute << 15), flip: negative << 15 })
        };
        // The second shifted by sixteen bits, ORed with the first.
        let run = lanes::operation("v_lshl_or_b32")?.fast?.row(false)?;
        let shift = HalvesSource { from: RowOperand::Constant(16), ..UNUSED };
        let destination = Wave::destination(instruction, Field::Destination)?;
        Some(HalvesOperation { run, sources: [half(1)?, shift, half(0)?], destination })
    }

    fn packed(instruction: &Instruction, accumulates: bool) -> Option<HalvesOperation> {
        let run = packed(instruction.definition.base_name())?;
        let short = instruction.format() != Format::Vop3p;
        let destination = Wave::destination(instruction, Field::Destination)?;
        if instruction.modifier != Modifier::None || !short && instruction.bits(15, 1) == 1 {
            return None;
        }
        let mut sources = [UNUSED; 3];
        for (place, source) in sources.iter_mut().enumerate() {
            let Some(from) = operand(instruction, FIELDS[place], Type::Packed16)? else { continue };
            let bit = |bits: u32| bits >> place & 1 == 1;
            let (lower, upper, signs) = match short {
                true => (false, true, 0),
                false => {
                    let upper_select = instruction.high_bits(27, 2) | instruction.bits(14, 1) << 2;
                    let lower_sign = (bit(instruction.high_bits(29, 3)) as u32) << 15;
                    let upper_sign = (bit(instruction.bits(8, 3)) as u32) << 31;
                    (bit(instruction.bits(11, 3)), bit(upper_select), lower_sign | upper_sign)
                }
            };
            let part = HalvesPart::Pair { lower_from_upper: lower, upper_from_upper: upper };
            *source = HalvesSource { from, part, flip: signs, ..UNUSED };
        }
        if accumulates {
            sources[2].from = RowOperand::Vector(destination);
        }
        Some(HalvesOperation { run, sources, destination })
    }

    /// `v_fma_mix_f32`: sources are singles, or halves that are converted to singles.
    fn mixed(instruction: &Instruction) -> Option<HalvesOperation> {
        if instruction.modifier != Modifier::None || instruction.bits(15, 1) == 1 {
            return None;
        }
        let halves = instruction.high_bits(27, 2) | instruction.bits(14, 1) << 2;
        let mut sources = [UNUSED; 3];
        for (place, source) in sources.iter_mut().enumerate() {
            let bit = |bits: u32| bits >> place & 1;
            let is_half = bit(halves) == 1;
            let kind = if is_half { Type::Float16 } else { Type::Float32 };
            let from = operand(instruction, FIELDS[place], kind)??;
            let part = match is_half {
                true => HalvesPart::Single { upper: bit(instruction.bits(11, 3)) == 1 },
                false => HalvesPart::Whole,
            };
            let keep = u32::MAX >> bit(instruction.bits(8, 3));
            *source = HalvesSource { from, part, keep, flip: bit(instruction.high_bits(29, 3)) << 31 };
        }
        let run = lanes::operation("v_fma_f32")?.fast?.row(false)?;
        Some(HalvesOperation { run, sources, destination: Wave::destination(instruction, Field::Destination)? })
    }

    fn conversion(instruction: &Instruction) -> Option<HalvesOperation> {
        let from = operand(instruction, Field::Source0, Type::Float16)??;
        let (upper, keep, flip) = match (instruction.format(), instruction.modifier) {
            (Format::Vop1, Modifier::None) => (false, u32::MAX, 0),
            // The whole destination, without clamp or scale, and half of a source that is not extended.
            (Format::Vop1, Modifier::Sdwa)
                if instruction.high_bits(8, 3) == 6
                    && instruction.high_bits(13, 3) == 0
                    && matches!(instruction.high_bits(16, 4), 4 | 5) =>
            {
                let (negative, absolute) = (instruction.high_bits(20, 1), instruction.high_bits(21, 1));
                (instruction.high_bits(16, 1) == 1, u32::MAX >> absolute, negative << 31)
            }
            _ => return None,
        };
        let source = HalvesSource { from, part: HalvesPart::Single { upper }, keep, flip };
        let run = lanes::operation("v_mov_b32")?.fast?.row(false)?;
        let destination = Wave::destination(instruction, Field::Destination)?;
        Some(HalvesOperation { run, sources: [source, UNUSED, UNUSED], destination })
    }
}

/// The source in a field. The inner value is `None` if the instruction has no such source, the outer if it is a special
/// one.
fn operand(instruction: &Instruction, field: Field, kind: Type) -> Option<Option<RowOperand>> {
    let Some(slot) = instruction.definition.operand(field) else { return Some(None) };
    Some(Some(match instruction.operand(slot) {
        OperandValue::Vector(register) => RowOperand::Vector(register),
        OperandValue::Scalar(register) => RowOperand::Scalar(register),
        OperandValue::Special(_) => return None,
        constant => RowOperand::Constant(constant_bits(constant, kind)),
    }))
}

impl HalvesSource {
    /// The source as it is in its register, before extraction.
    pub(crate) fn whole(&self) -> RowSource {
        RowSource { from: self.from, keep: u32::MAX, flip: 0 }
    }

    /// Extracts its part from whole lanes.
    #[inline(always)]
    pub(crate) fn take(&self, lanes: &mut Lanes) {
        match self.part {
            HalvesPart::Whole => {}
            HalvesPart::Bits { left, right, signed: false } => {
                for lane in lanes.iter_mut() {
                    *lane = (*lane << left) >> right;
                }
            }
            HalvesPart::Bits { left, right, signed: true } => {
                for lane in lanes.iter_mut() {
                    *lane = ((*lane << left) as i32 >> right) as u32;
                }
            }
            HalvesPart::Pair { lower_from_upper, upper_from_upper } => {
                let (right, left) = (if lower_from_upper { 16 } else { 0 }, if upper_from_upper { 0 } else { 16 });
                for lane in lanes.iter_mut() {
                    *lane = *lane >> right & 0xffff | *lane << left & 0xffff_0000;
                }
            }
            #[cfg(target_arch = "x86_64")]
            // SAFETY: such sources exist only if the host has AVX-512.
            HalvesPart::Single { upper } => unsafe { avx512::singles(lanes, if upper { 16 } else { 0 }) },
            #[cfg(not(target_arch = "x86_64"))]
            HalvesPart::Single { .. } => {}
        }
        for lane in lanes.iter_mut() {
            *lane = *lane & self.keep ^ self.flip;
        }
    }
}

/// The function on packed halves, by name.
#[cfg(target_arch = "x86_64")]
fn packed(name: &str) -> Option<FastRow> {
    Some(match name {
        "v_pk_fma_f16" | "v_pk_fmac_f16" => avx512::multiply_add,
        "v_pk_add_f16" => avx512::add,
        "v_pk_mul_f16" => avx512::multiply,
        _ => return None,
    })
}

#[cfg(not(target_arch = "x86_64"))]
fn packed(_: &str) -> Option<FastRow> {
    None
}

/// The function that rounds singles to halves.
#[cfg(target_arch = "x86_64")]
fn round() -> Option<FastRow> {
    Some(avx512::round)
}

#[cfg(not(target_arch = "x86_64"))]
fn round() -> Option<FastRow> {
    None
}

#[cfg(target_arch = "x86_64")]
mod avx512 {
    use std::arch::x86_64::*;
    use std::cell::Cell;

    use super::{LANES, Lanes};

    /// Sixteen lanes of a register.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
    fn part(lanes: &Lanes, half: usize) -> __m512i {
        // SAFETY: half of a row.
        unsafe { _mm512_loadu_si512(lanes.as_ptr().add(half * (LANES / 2)).cast()) }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
    fn put(lanes: &mut Lanes, half: usize, value: __m512i) {
        // SAFETY: half of a row.
        unsafe { _mm512_storeu_si512(lanes.as_mut_ptr().add(half * (LANES / 2)).cast(), value) }
    }

    /// The halves that begin at a bit, as singles.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
    fn half_as_single(lanes: __m512i, bit: u32) -> __m512 {
        let shifted = _mm512_srl_epi32(lanes, _mm_cvtsi32_si128(bit as i32));
        _mm512_cvtph_ps(_mm512_cvtepi32_epi16(shifted))
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
    pub(super) fn singles(lanes: &mut Lanes, bit: u32) {
        for half in 0..2 {
            let value = half_as_single(part(lanes, half), bit);
            put(lanes, half, _mm512_castps_si512(value));
        }
    }

    /// The sum of two singles, rounded to odd if it is not exact, and then to halves. The result is one rounding to
    /// nearest even of the exact sum, since a single has more than two bits more than a half. Terms are halves, or
    /// products of two, which are exact as singles.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
    fn half_of_sum(a: __m512, b: __m512) -> __m512i {
        let sum = _mm512_add_ps(a, b);
        let back = _mm512_sub_ps(sum, a);
        let error = _mm512_add_ps(_mm512_sub_ps(a, _mm512_sub_ps(sum, back)), _mm512_sub_ps(b, back));
        let bits = _mm512_castps_si512(sum);
        let one = _mm512_set1_epi32(1);
        // Infinity and NaN have no error: the comparison with zero is ordered.
        let inexact = _mm512_cmp_ps_mask::<_CMP_NEQ_OQ>(error, _mm512_setzero_ps());
        let even = inexact & _mm512_testn_epi32_mask(bits, one);
        let toward_zero = _mm512_movepi32_mask(_mm512_xor_si512(bits, _mm512_castps_si512(error)));
        let bits = _mm512_mask_add_epi32(bits, even & !toward_zero, bits, one);
        let bits = _mm512_mask_sub_epi32(bits, even & toward_zero, bits, one);
        let half = _mm512_cvtps_ph::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(_mm512_castsi512_ps(bits));
        _mm512_cvtepu16_epi32(half)
    }

    /// Rounds singles to halves, in the lower halves of a register.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
    pub(super) fn round(d: &Cell<Lanes>, a: &Cell<Lanes>, _: &Cell<Lanes>, _: &Cell<Lanes>, on: u32) {
        let (mut results, source) = (d.get(), a.get());
        for half in 0..2 {
            let value = _mm512_castsi512_ps(part(&source, half));
            let rounded = _mm512_cvtps_ph::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(value);
            let old = part(&results, half);
            let upper = _mm512_and_si512(old, _mm512_set1_epi32(0xffff_0000u32 as i32));
            let values = _mm512_or_si512(upper, _mm512_cvtepu16_epi32(rounded));
            put(&mut results, half, _mm512_mask_mov_epi32(old, (on >> (half * 16)) as u16, values));
        }
        d.set(results);
    }

    /// Adds two terms of each half of three registers.
    macro_rules! sums {
        ($($name:ident: |$a:ident, $b:ident, $c:ident| $terms:expr;)*) => {$(
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
            #[allow(unused_variables, reason = "not every sum has three sources")]
            pub(super) fn $name(d: &Cell<Lanes>, a: &Cell<Lanes>, b: &Cell<Lanes>, c: &Cell<Lanes>, on: u32) {
                let (mut results, sources) = (d.get(), [a.get(), b.get(), c.get()]);
                for half in 0..2 {
                    let mut pair = _mm512_setzero_si512();
                    for bit in [16, 0] {
                        let $a = half_as_single(part(&sources[0], half), bit);
                        let $b = half_as_single(part(&sources[1], half), bit);
                        let $c = half_as_single(part(&sources[2], half), bit);
                        let (first, second) = $terms;
                        pair = _mm512_or_si512(_mm512_slli_epi32::<16>(pair), half_of_sum(first, second));
                    }
                    let on = (on >> (half * 16)) as u16;
                    let old = part(&results, half);
                    put(&mut results, half, _mm512_mask_mov_epi32(old, on, pair));
                }
                d.set(results);
            }
        )*};
    }

    sums! {
        multiply_add: |a, b, c| (_mm512_mul_ps(a, b), c);
        add: |a, b, c| (a, b);
        // A product, plus the zero that changes nothing.
        multiply: |a, b, c| (_mm512_mul_ps(a, b), _mm512_set1_ps(-0.0));
    }
}
