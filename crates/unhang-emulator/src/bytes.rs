//! Bytes and halves inside a register: differences, averages, conversions to a byte or a normalised half, dot products.

use crate::float::{FloatMode, Round, half_value, rounded_single, single};
use crate::lanes::operation::{LaneFunction, LaneOperation, op};
use crate::saturate::{absolute_differences, masked_differences};
use crate::wave::Type;

/// Four sums of differences, added to the halves of `c`: between the bytes of `b` and those of `a` starting at byte 0,
/// 1, 2 and 3.
fn four_sums(a: u64, b: u64, c: u64, differences: impl Fn(u64, u64) -> u64) -> u64 {
    (0..4).fold(0, |sums, part| {
        let sum = differences(a >> (part * 8) & 0xffff_ffff, b & 0xffff_ffff) + (c >> (part * 16) & 0xffff);
        sums | (sum & 0xffff) << (part * 16)
    })
}

fn round_whole(value: f64, round: Round) -> f64 {
    match round {
        Round::NearestEven => value.round_ties_even(),
        Round::Up => value.ceil(),
        Round::Down => value.floor(),
        Round::TowardZero => value.trunc(),
    }
}

/// Maps -1 to 1 to a signed half; the next function maps 0 to 1 to an unsigned one. NaN becomes zero.
fn signed_normal(value: f64) -> u64 {
    (value.clamp(-1.0, 1.0) * 32767.0).round_ties_even() as i16 as u16 as u64
}

fn unsigned_normal(value: f64) -> u64 {
    (value.clamp(0.0, 1.0) * 65535.0).round_ties_even() as u16 as u64
}

/// The sum of the products of corresponding parts with this many bits.
fn dot_signed(a: u64, b: u64, bits: u32) -> i64 {
    let part = |value: u64, place: u32| ((value as u32) << (32 - bits * (place + 1))) as i32 as i64 >> (32 - bits);
    (0..32 / bits).map(|place| part(a, place) * part(b, place)).sum()
}

fn dot_unsigned(a: u64, b: u64, bits: u32) -> u64 {
    let part = |value: u64, place: u32| value >> (bits * place) & ((1 << bits) - 1);
    (0..32 / bits).map(|place| part(a, place) * part(b, place)).sum()
}

/// Adds the lower product first, then the upper one, each rounded separately; products of halves are exact.
fn dot_halves(a: u64, b: u64, c: u64, mode: FloatMode) -> u64 {
    let product = |shift: u32| half_value(a >> shift & 0xffff, mode) * half_value(b >> shift & 0xffff, mode);
    [0, 16].into_iter().fold(c, |sum, shift| {
        let terms = [single(sum, mode) as f64, product(shift)];
        // Both terms have values of singles, so rounding their sum to double precision first does no harm.
        rounded_single((terms[0] + terms[1]) as f32, terms, mode)
    })
}

/// What an instruction computes, by name.
#[rustfmt::skip]
pub(crate) fn operation(name: &str) -> Option<LaneOperation> {
    use Type::{Bits32 as B, Bits64 as W, Float16 as H, Float32 as F};
    match name {
        "v_sad_u32" => op!([B; 3], B, |a, b, c, _| (a.abs_diff(b) + c) as u32 as u64),
        "v_sad_u16" => op!([B; 3], B, |a, b, c, _| (absolute_differences(a, b, 16) + c) as u32 as u64),
        "v_sad_u8" => op!([B; 3], B, |a, b, c, _| (absolute_differences(a, b, 8) + c) as u32 as u64),
        "v_sad_hi_u8" => op!([B; 3], B, |a, b, c, _| ((absolute_differences(a, b, 8) << 16) + c) as u32 as u64),
        "v_msad_u8" => op!([B; 3], B, |a, b, c, _| (masked_differences(a, b) + c) as u32 as u64),
        "v_qsad_pk_u16_u8" => op!([W, B, W], W, |a, b, c, _| four_sums(a, b, c, |a, b| absolute_differences(a, b, 8))),
        "v_mqsad_pk_u16_u8" => op!([W, B, W], W, |a, b, c, _| four_sums(a, b, c, masked_differences)),
        "v_lerp_u8" => op!([B; 3], B, |a, b, c, _| {
            (0..4).map(|part| part * 8).fold(0, |sum, shift| sum | ((a >> shift & 255) + (b >> shift & 255) + (c >> shift & 1)) >> 1 << shift)
        }),
        "v_cvt_pk_u8_f32" => op!([F, B, B], B, |a, b, c, m| {
            let (byte, shift) = (round_whole(single(a, m) as f64, m.single.round) as u8 as u64, (b & 3) * 8);
            c & !(0xff << shift) | byte << shift
        }),
        "v_cvt_pknorm_i16_f32" => op!([F, F, B], B, |a, b, _, m| signed_normal(single(a, m) as f64) | signed_normal(single(b, m) as f64) << 16),
        "v_cvt_pknorm_u16_f32" => op!([F, F, B], B, |a, b, _, m| unsigned_normal(single(a, m) as f64) | unsigned_normal(single(b, m) as f64) << 16),
        "v_cvt_pknorm_i16_f16" => op!([H, H, B], B, |a, b, _, m| signed_normal(half_value(a, m)) | signed_normal(half_value(b, m)) << 16),
        "v_cvt_pknorm_u16_f16" => op!([H, H, B], B, |a, b, _, m| unsigned_normal(half_value(a, m)) | unsigned_normal(half_value(b, m)) << 16),
        "v_cvt_norm_i16_f16" => op!([H, B, B], Type::Bits16, |a, _, _, m| signed_normal(half_value(a, m))),
        "v_cvt_norm_u16_f16" => op!([H, B, B], Type::Bits16, |a, _, _, m| unsigned_normal(half_value(a, m))),
        "v_cvt_off_f32_i4" => op!([B; 3], F, |a, _, _, _| (((((a << 4) as i8) >> 4) as f32) / 16.0).to_bits() as u64),
        "v_dot2c_f32_f16" => op!([Type::Packed16, Type::Packed16, B], F, |a, b, c, m| dot_halves(a, b, c, m)).map(|it| LaneOperation { accumulates: true, ..it }),
        "v_dot4c_i32_i8" => op!([B; 3], B, |a, b, c, _| (c as i64).wrapping_add(dot_signed(a, b, 8)) as u32 as u64).map(|it| LaneOperation { accumulates: true, ..it }),
        _ => None,
    }
}

/// A dot product of the packed encoding.
#[derive(Clone, Copy)]
pub(crate) struct DotProduct {
    pub run: LaneFunction,
    /// The type of the sum.
    pub result: Type,
    /// Whether the factors are halves, which the encoding can select.
    pub halves: bool,
}

/// A dot product by name; integers saturate with `clamp`.
#[rustfmt::skip]
pub(crate) fn dot_product(name: &str, clamp: bool) -> Option<DotProduct> {
    macro_rules! whole {
        ($dot:ident, $bits:expr, $third:ty, $wide:ty) => {
            if clamp {
                |a, b, c, _| ($dot(a, b, $bits) as $wide + c as $third as $wide).clamp(<$third>::MIN as $wide, <$third>::MAX as $wide) as u32 as u64
            } else {
                |a, b, c, _| ($dot(a, b, $bits) as $wide + c as $third as $wide) as u32 as u64
            }
        };
    }
    let (run, result): (LaneFunction, Type) = match name {
        "v_dot2_f32_f16" => (dot_halves, Type::Float32),
        "v_dot2_i32_i16" => (whole!(dot_signed, 16, i32, i64), Type::Bits32),
        "v_dot2_u32_u16" => (whole!(dot_unsigned, 16, u32, u64), Type::Bits32),
        "v_dot4_i32_i8" => (whole!(dot_signed, 8, i32, i64), Type::Bits32),
        "v_dot4_u32_u8" => (whole!(dot_unsigned, 8, u32, u64), Type::Bits32),
        "v_dot8_i32_i4" => (whole!(dot_signed, 4, i32, i64), Type::Bits32),
        "v_dot8_u32_u4" => (whole!(dot_unsigned, 4, u32, u64), Type::Bits32),
        _ => return None,
    };
    Some(DotProduct { run, result, halves: name.starts_with("v_dot2") })
}
