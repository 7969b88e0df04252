//! What vector instructions compute, lane by lane: pure functions of up to three values, found by name.
//!
//! Add, subtract, multiply, fma, conversions and comparisons are exact to the bit (IEEE, round to nearest even).
//! Reciprocal, square root, exponential, logarithm, sine and cosine are correctly rounded or nearly so, where the
//! hardware promises about one unit in the last place.

use half::f16;

use crate::wave::{FloatMode, Type};

/// A lane's result from its sources.
pub(crate) type LaneFunction = fn(u64, u64, u64, FloatMode) -> u64;

/// A function with the types of its sources and of its result.
#[derive(Clone, Copy)]
pub(crate) struct LaneOperation {
    pub run: LaneFunction,
    pub sources: [Type; 3],
    pub result: Type,
    /// The old value of the destination is the third source.
    pub accumulates: bool,
}

fn single(bits: u64, mode: FloatMode) -> f32 {
    let value = f32::from_bits(bits as u32);
    if !mode.keep_single && value.is_subnormal() { 0f32.copysign(value) } else { value }
}

fn single_bits(value: f32, mode: FloatMode) -> u64 {
    let value = if !mode.keep_single && value.is_subnormal() { 0f32.copysign(value) } else { value };
    value.to_bits() as u64
}

fn half_value(bits: u64, mode: FloatMode) -> f64 {
    let value = f16::from_bits(bits as u16);
    let flushed = !mode.keep_half_double && value.classify() == std::num::FpCategory::Subnormal;
    if flushed { 0f64.copysign(value.to_f64()) } else { value.to_f64() }
}

/// To half precision with one rounding: to single precision with the lost bits gathered in the last one, then on.
pub(crate) fn half_bits(value: f64) -> u64 {
    let near = value as f32;
    if near as f64 == value || near.is_nan() || near.is_infinite() && value.is_infinite() {
        return f16::from_f32(near).to_bits() as u64;
    }
    let mut bits = near.to_bits();
    if (near as f64).abs() > value.abs() {
        bits -= 1;
    }
    f16::from_f32(f32::from_bits(bits | 1)).to_bits() as u64
}

/// a·b + c in double precision, with what does not fit gathered in the last bit; a and b are halves, so a·b is exact.
fn fused_half(a: f64, b: f64, c: f64) -> f64 {
    let product = a * b;
    let sum = product + c;
    if !sum.is_finite() {
        return sum;
    }
    let back = sum - product;
    let error = (product - (sum - back)) + (c - back);
    if error == 0.0 || sum.to_bits() & 1 == 1 {
        return sum;
    }
    let away = (error > 0.0) == (sum > 0.0);
    f64::from_bits(if away { sum.to_bits() + 1 } else { sum.to_bits() - 1 } | 1)
}

fn double(bits: u64) -> f64 {
    f64::from_bits(bits)
}

fn sign24(value: u64) -> i64 {
    (((value as u32) << 8) as i32 >> 8) as i64
}

fn exponent(value: f32) -> i32 {
    ((value.to_bits() >> 23) & 255) as i32
}

/// Multiplies by a power of two, in steps that do not overflow on the way.
pub(crate) fn scale(value: f32, power: i32) -> f32 {
    (value as f64 * 2f64.powi(power.clamp(-600, 600))) as f32
}

/// The minimum as the hardware has it: a NaN gives way to a number, and -0 is less than +0.
fn minimum(a: f64, b: f64) -> f64 {
    if a.is_nan() {
        b
    } else if b.is_nan() || a < b || a == b && a.is_sign_negative() {
        a
    } else {
        b
    }
}

fn maximum(a: f64, b: f64) -> f64 {
    -minimum(-a, -b)
}

fn median<T: PartialOrd + Copy>(a: T, b: T, c: T) -> T {
    let (low, high) = if a < b { (a, b) } else { (b, a) };
    if c < low {
        low
    } else if c > high {
        high
    } else {
        c
    }
}

fn divide_fixup(quotient: f32, denominator: f32, numerator: f32) -> f32 {
    let sign = if denominator.is_sign_negative() != numerator.is_sign_negative() { -1f32 } else { 1f32 };
    if numerator.is_nan() {
        numerator
    } else if denominator.is_nan() {
        denominator
    } else if denominator == 0.0 && numerator == 0.0 || denominator.is_infinite() && numerator.is_infinite() {
        f32::from_bits(0xffc0_0000)
    } else if denominator == 0.0 || numerator.is_infinite() {
        f32::INFINITY.copysign(sign)
    } else if denominator.is_infinite() || numerator == 0.0 || exponent(numerator) - exponent(denominator) < -150 {
        0f32.copysign(sign)
    } else {
        quotient.abs().copysign(sign)
    }
}

fn to_unsigned(value: f64) -> u64 {
    // `as` saturates and turns NaN into 0, as the hardware does.
    value as u32 as u64
}

fn to_signed(value: f64) -> u64 {
    value as i32 as u32 as u64
}

/// Sine and cosine take turns, not radians.
fn turn(value: f32) -> f64 {
    (value as f64).fract() * std::f64::consts::TAU
}

fn permute_bytes(a: u32, b: u32, selector: u32) -> u32 {
    let bytes = (a as u64) << 32 | b as u64;
    let mut out = 0;
    for place in 0..4 {
        let select = selector >> (place * 8) & 0xff;
        let byte = match select {
            0..=7 => (bytes >> (select * 8)) as u32 & 0xff,
            8..=11 => {
                if bytes >> ((select - 8) * 16 + 15) & 1 == 1 {
                    0xff
                } else {
                    0
                }
            }
            12 => 0,
            _ => 0xff,
        };
        out |= byte << (place * 8);
    }
    out
}

fn toward_zero_half(value: f32) -> u32 {
    let near = f16::from_f32(value);
    let bits = near.to_bits();
    let too_far = near.to_f32().abs() > value.abs();
    (if too_far { bits - 1 } else { bits }) as u32
}

/// What an instruction computes, by its name without `_e32` or `_e64`; `None` for what is not a function of one lane.
#[rustfmt::skip]
pub(crate) fn operation(name: &str) -> Option<LaneOperation> {
    use Type::{Bits32 as B, Bits64 as W, Float16 as H, Float32 as F, Float64 as D};
    let op = |sources: [Type; 3], result, run| Some(LaneOperation { run, sources, result, accumulates: false });
    let accumulate = |sources: [Type; 3], result, run| Some(LaneOperation { run, sources, result, accumulates: true });
    match name {
        "v_mov_b32" => op([B; 3], B, |a, _, _, _| a),
        "v_not_b32" => op([B; 3], B, |a, _, _, _| !a),
        "v_bfrev_b32" => op([B; 3], B, |a, _, _, _| (a as u32).reverse_bits() as u64),
        "v_ffbh_u32" => op([B; 3], B, |a, _, _, _| if a == 0 { u32::MAX as u64 } else { (a as u32).leading_zeros() as u64 }),
        "v_ffbl_b32" => op([B; 3], B, |a, _, _, _| if a == 0 { u32::MAX as u64 } else { (a as u32).trailing_zeros() as u64 }),
        "v_ffbh_i32" => op([B; 3], B, |a, _, _, _| {
            let a = a as u32;
            if a == 0 || a == u32::MAX { u32::MAX as u64 } else { (a ^ (a as i32 >> 31) as u32).leading_zeros() as u64 }
        }),
        // Conversions.
        "v_cvt_f32_i32" => op([B; 3], F, |a, _, _, _| (a as i32 as f32).to_bits() as u64),
        "v_cvt_f32_u32" => op([B; 3], F, |a, _, _, _| (a as u32 as f32).to_bits() as u64),
        "v_cvt_u32_f32" => op([F, B, B], B, |a, _, _, m| to_unsigned(single(a, m) as f64)),
        "v_cvt_i32_f32" => op([F, B, B], B, |a, _, _, m| to_signed(single(a, m) as f64)),
        "v_cvt_rpi_i32_f32" => op([F, B, B], B, |a, _, _, m| to_signed((single(a, m) as f64 + 0.5).floor())),
        "v_cvt_flr_i32_f32" => op([F, B, B], B, |a, _, _, m| to_signed((single(a, m) as f64).floor())),
        "v_cvt_f16_f32" => op([F, B, B], H, |a, _, _, m| f16::from_f32(single(a, m)).to_bits() as u64),
        "v_cvt_f32_f16" => op([H, B, B], F, |a, _, _, m| (half_value(a, m) as f32).to_bits() as u64),
        "v_cvt_f64_f32" => op([F, B, B], D, |a, _, _, m| (single(a, m) as f64).to_bits()),
        "v_cvt_f32_f64" => op([D, B, B], F, |a, _, _, m| single_bits(double(a) as f32, m)),
        "v_cvt_f64_i32" => op([B; 3], D, |a, _, _, _| (a as i32 as f64).to_bits()),
        "v_cvt_f64_u32" => op([B; 3], D, |a, _, _, _| (a as u32 as f64).to_bits()),
        "v_cvt_i32_f64" => op([D, B, B], B, |a, _, _, _| to_signed(double(a))),
        "v_cvt_u32_f64" => op([D, B, B], B, |a, _, _, _| to_unsigned(double(a))),
        "v_cvt_f16_u16" => op([B; 3], H, |a, _, _, _| half_bits(a as u16 as f64)),
        "v_cvt_f16_i16" => op([B; 3], H, |a, _, _, _| half_bits(a as i16 as f64)),
        "v_cvt_u16_f16" => op([H, B, B], H, |a, _, _, m| half_value(a, m) as u16 as u64),
        "v_cvt_i16_f16" => op([H, B, B], H, |a, _, _, m| half_value(a, m) as i16 as u16 as u64),
        "v_cvt_f32_ubyte0" => op([B; 3], F, |a, _, _, _| ((a & 255) as f32).to_bits() as u64),
        "v_cvt_f32_ubyte1" => op([B; 3], F, |a, _, _, _| ((a >> 8 & 255) as f32).to_bits() as u64),
        "v_cvt_f32_ubyte2" => op([B; 3], F, |a, _, _, _| ((a >> 16 & 255) as f32).to_bits() as u64),
        "v_cvt_f32_ubyte3" => op([B; 3], F, |a, _, _, _| ((a >> 24 & 255) as f32).to_bits() as u64),
        "v_cvt_pkrtz_f16_f32" => op([F, F, B], B, |a, b, _, m| (toward_zero_half(single(a, m)) | toward_zero_half(single(b, m)) << 16) as u64),
        // Single precision.
        "v_add_f32" => op([F; 3], F, |a, b, _, m| single_bits(single(a, m) + single(b, m), m)),
        "v_sub_f32" => op([F; 3], F, |a, b, _, m| single_bits(single(a, m) - single(b, m), m)),
        "v_subrev_f32" => op([F; 3], F, |a, b, _, m| single_bits(single(b, m) - single(a, m), m)),
        "v_mul_f32" => op([F; 3], F, |a, b, _, m| single_bits(single(a, m) * single(b, m), m)),
        "v_mul_legacy_f32" => op([F; 3], F, |a, b, _, m| {
            let (a, b) = (single(a, m), single(b, m));
            if a == 0.0 || b == 0.0 { 0 } else { single_bits(a * b, m) }
        }),
        "v_min_f32" => op([F; 3], F, |a, b, _, m| single_bits(minimum(single(a, m) as f64, single(b, m) as f64) as f32, m)),
        "v_max_f32" => op([F; 3], F, |a, b, _, m| single_bits(maximum(single(a, m) as f64, single(b, m) as f64) as f32, m)),
        "v_min3_f32" => op([F; 3], F, |a, b, c, m| single_bits(minimum(minimum(single(a, m) as f64, single(b, m) as f64), single(c, m) as f64) as f32, m)),
        "v_max3_f32" => op([F; 3], F, |a, b, c, m| single_bits(maximum(maximum(single(a, m) as f64, single(b, m) as f64), single(c, m) as f64) as f32, m)),
        "v_med3_f32" => op([F; 3], F, |a, b, c, m| {
            let (x, y, z) = (single(a, m), single(b, m), single(c, m));
            let value = if x.is_nan() || y.is_nan() || z.is_nan() {
                minimum(minimum(x as f64, y as f64), z as f64) as f32
            } else {
                median(x, y, z)
            };
            single_bits(value, m)
        }),
        "v_fma_f32" | "v_fmamk_f32" | "v_fmaak_f32" => op([F; 3], F, |a, b, c, m| single_bits(single(a, m).mul_add(single(b, m), single(c, m)), m)),
        "v_fmac_f32" => accumulate([F; 3], F, |a, b, c, m| single_bits(single(a, m).mul_add(single(b, m), single(c, m)), m)),
        // The unfused pair never keeps denormals.
        "v_mad_f32" | "v_madmk_f32" | "v_madak_f32" => op([F; 3], F, |a, b, c, _| unfused(a, b, c)),
        "v_mac_f32" => accumulate([F; 3], F, |a, b, c, _| unfused(a, b, c)),
        "v_fract_f32" => op([F; 3], F, |a, _, _, m| { let a = single(a, m); single_bits((a - a.floor()).min(1.0 - f32::EPSILON / 2.0), m) }),
        "v_trunc_f32" => op([F; 3], F, |a, _, _, m| single_bits(single(a, m).trunc(), m)),
        "v_ceil_f32" => op([F; 3], F, |a, _, _, m| single_bits(single(a, m).ceil(), m)),
        "v_floor_f32" => op([F; 3], F, |a, _, _, m| single_bits(single(a, m).floor(), m)),
        "v_rndne_f32" => op([F; 3], F, |a, _, _, m| single_bits(single(a, m).round_ties_even(), m)),
        "v_exp_f32" => op([F; 3], F, |a, _, _, m| single_bits((single(a, m) as f64).exp2() as f32, m)),
        "v_log_f32" => op([F; 3], F, |a, _, _, m| single_bits((single(a, m) as f64).log2() as f32, m)),
        "v_rcp_f32" | "v_rcp_iflag_f32" => op([F; 3], F, |a, _, _, m| single_bits(1.0 / single(a, m), m)),
        "v_rsq_f32" => op([F; 3], F, |a, _, _, m| single_bits((1.0 / (single(a, m) as f64).sqrt()) as f32, m)),
        "v_sqrt_f32" => op([F; 3], F, |a, _, _, m| single_bits(single(a, m).sqrt(), m)),
        "v_sin_f32" => op([F; 3], F, |a, _, _, m| single_bits(turn(single(a, m)).sin() as f32, m)),
        "v_cos_f32" => op([F; 3], F, |a, _, _, m| single_bits(turn(single(a, m)).cos() as f32, m)),
        "v_ldexp_f32" => op([F, B, B], F, |a, b, _, m| single_bits(scale(single(a, m), b as i32), m)),
        "v_frexp_exp_i32_f32" => op([F, B, B], B, |a, _, _, m| {
            let a = single(a, m);
            if a == 0.0 || !a.is_finite() { 0 } else { frexp(a as f64).1 as u32 as u64 }
        }),
        "v_frexp_mant_f32" => op([F, B, B], F, |a, _, _, m| {
            let a = single(a, m);
            if a == 0.0 || !a.is_finite() { return a.to_bits() as u64 }
            (frexp(a as f64).0 as f32).to_bits() as u64
        }),
        "v_div_fixup_f32" => op([F; 3], F, |a, b, c, m| single_bits(divide_fixup(single(a, m), single(b, m), single(c, m)), m)),
        // Double precision.
        "v_add_f64" => op([D; 3], D, |a, b, _, _| (double(a) + double(b)).to_bits()),
        "v_mul_f64" => op([D; 3], D, |a, b, _, _| (double(a) * double(b)).to_bits()),
        "v_fma_f64" => op([D; 3], D, |a, b, c, _| double(a).mul_add(double(b), double(c)).to_bits()),
        "v_min_f64" => op([D; 3], D, |a, b, _, _| minimum(double(a), double(b)).to_bits()),
        "v_max_f64" => op([D; 3], D, |a, b, _, _| maximum(double(a), double(b)).to_bits()),
        "v_rcp_f64" => op([D; 3], D, |a, _, _, _| (1.0 / double(a)).to_bits()),
        "v_rsq_f64" => op([D; 3], D, |a, _, _, _| (1.0 / double(a).sqrt()).to_bits()),
        "v_sqrt_f64" => op([D; 3], D, |a, _, _, _| double(a).sqrt().to_bits()),
        "v_floor_f64" => op([D; 3], D, |a, _, _, _| double(a).floor().to_bits()),
        "v_ceil_f64" => op([D; 3], D, |a, _, _, _| double(a).ceil().to_bits()),
        "v_trunc_f64" => op([D; 3], D, |a, _, _, _| double(a).trunc().to_bits()),
        "v_rndne_f64" => op([D; 3], D, |a, _, _, _| double(a).round_ties_even().to_bits()),
        "v_frexp_exp_i32_f64" => op([D, B, B], B, |a, _, _, _| {
            let a = double(a);
            if a == 0.0 || !a.is_finite() { 0 } else { (frexp(a).1) as u32 as u64 }
        }),
        "v_frexp_mant_f64" => op([D, B, B], D, |a, _, _, _| {
            let a = double(a);
            if a == 0.0 || !a.is_finite() { a.to_bits() } else { frexp(a).0.to_bits() }
        }),
        "v_ldexp_f64" => op([D, B, B], D, |a, b, _, _| (double(a) * 2f64.powi((b as i32).clamp(-2000, 2000))).to_bits()),
        // Half precision.
        "v_add_f16" => op([H; 3], H, |a, b, _, m| half_bits(half_value(a, m) + half_value(b, m))),
        "v_sub_f16" => op([H; 3], H, |a, b, _, m| half_bits(half_value(a, m) - half_value(b, m))),
        "v_subrev_f16" => op([H; 3], H, |a, b, _, m| half_bits(half_value(b, m) - half_value(a, m))),
        "v_mul_f16" => op([H; 3], H, |a, b, _, m| half_bits(half_value(a, m) * half_value(b, m))),
        "v_min_f16" => op([H; 3], H, |a, b, _, m| half_bits(minimum(half_value(a, m), half_value(b, m)))),
        "v_max_f16" => op([H; 3], H, |a, b, _, m| half_bits(maximum(half_value(a, m), half_value(b, m)))),
        "v_fma_f16" | "v_fmamk_f16" | "v_fmaak_f16" => op([H; 3], H, |a, b, c, m| half_bits(fused_half(half_value(a, m), half_value(b, m), half_value(c, m)))),
        "v_fmac_f16" => accumulate([H; 3], H, |a, b, c, m| half_bits(fused_half(half_value(a, m), half_value(b, m), half_value(c, m)))),
        "v_rcp_f16" => op([H; 3], H, |a, _, _, m| half_bits(1.0 / half_value(a, m))),
        "v_sqrt_f16" => op([H; 3], H, |a, _, _, m| half_bits(half_value(a, m).sqrt())),
        "v_rsq_f16" => op([H; 3], H, |a, _, _, m| half_bits(1.0 / half_value(a, m).sqrt())),
        "v_exp_f16" => op([H; 3], H, |a, _, _, m| half_bits(half_value(a, m).exp2())),
        "v_log_f16" => op([H; 3], H, |a, _, _, m| half_bits(half_value(a, m).log2())),
        "v_floor_f16" => op([H; 3], H, |a, _, _, m| half_bits(half_value(a, m).floor())),
        "v_ceil_f16" => op([H; 3], H, |a, _, _, m| half_bits(half_value(a, m).ceil())),
        "v_trunc_f16" => op([H; 3], H, |a, _, _, m| half_bits(half_value(a, m).trunc())),
        "v_rndne_f16" => op([H; 3], H, |a, _, _, m| half_bits(half_value(a, m).round_ties_even())),
        "v_pack_b32_f16" => op([H, H, B], B, |a, b, _, _| a & 0xffff | (b & 0xffff) << 16),
        // Whole numbers.
        "v_add_nc_u32" => op([B; 3], B, |a, b, _, _| (a as u32).wrapping_add(b as u32) as u64),
        "v_sub_nc_u32" => op([B; 3], B, |a, b, _, _| (a as u32).wrapping_sub(b as u32) as u64),
        "v_subrev_nc_u32" => op([B; 3], B, |a, b, _, _| (b as u32).wrapping_sub(a as u32) as u64),
        "v_add_nc_i32" => op([B; 3], B, |a, b, _, _| (a as u32).wrapping_add(b as u32) as u64),
        "v_sub_nc_i32" => op([B; 3], B, |a, b, _, _| (a as u32).wrapping_sub(b as u32) as u64),
        "v_add3_u32" => op([B; 3], B, |a, b, c, _| (a as u32).wrapping_add(b as u32).wrapping_add(c as u32) as u64),
        "v_mul_lo_u32" | "v_mul_lo_i32" => op([B; 3], B, |a, b, _, _| (a as u32).wrapping_mul(b as u32) as u64),
        "v_mul_hi_u32" => op([B; 3], B, |a, b, _, _| (a as u32 as u64 * b as u32 as u64) >> 32),
        "v_mul_hi_i32" => op([B; 3], B, |a, b, _, _| ((a as i32 as i64 * b as i32 as i64) >> 32) as u32 as u64),
        "v_mul_u32_u24" => op([B; 3], B, |a, b, _, _| ((a & 0xff_ffff) * (b & 0xff_ffff)) as u32 as u64),
        "v_mul_i32_i24" => op([B; 3], B, |a, b, _, _| (sign24(a) * sign24(b)) as u32 as u64),
        "v_mul_hi_u32_u24" => op([B; 3], B, |a, b, _, _| ((a & 0xff_ffff) * (b & 0xff_ffff)) >> 32),
        "v_mad_u32_u24" => op([B; 3], B, |a, b, c, _| (((a & 0xff_ffff) * (b & 0xff_ffff)) as u32).wrapping_add(c as u32) as u64),
        "v_mad_i32_i24" => op([B; 3], B, |a, b, c, _| ((sign24(a) * sign24(b)) as u32).wrapping_add(c as u32) as u64),
        "v_min_u32" => op([B; 3], B, |a, b, _, _| a.min(b)),
        "v_max_u32" => op([B; 3], B, |a, b, _, _| a.max(b)),
        "v_min_i32" => op([B; 3], B, |a, b, _, _| (a as i32).min(b as i32) as u32 as u64),
        "v_max_i32" => op([B; 3], B, |a, b, _, _| (a as i32).max(b as i32) as u32 as u64),
        "v_min3_u32" => op([B; 3], B, |a, b, c, _| a.min(b).min(c)),
        "v_max3_u32" => op([B; 3], B, |a, b, c, _| a.max(b).max(c)),
        "v_min3_i32" => op([B; 3], B, |a, b, c, _| (a as i32).min(b as i32).min(c as i32) as u32 as u64),
        "v_max3_i32" => op([B; 3], B, |a, b, c, _| (a as i32).max(b as i32).max(c as i32) as u32 as u64),
        "v_med3_i32" => op([B; 3], B, |a, b, c, _| median(a as i32, b as i32, c as i32) as u32 as u64),
        "v_med3_u32" => op([B; 3], B, |a, b, c, _| median(a as u32, b as u32, c as u32) as u64),
        "v_and_b32" => op([B; 3], B, |a, b, _, _| a & b),
        "v_or_b32" => op([B; 3], B, |a, b, _, _| a | b),
        "v_xor_b32" => op([B; 3], B, |a, b, _, _| a ^ b),
        "v_xnor_b32" => op([B; 3], B, |a, b, _, _| !(a ^ b)),
        "v_or3_b32" => op([B; 3], B, |a, b, c, _| a | b | c),
        "v_xor3_b32" => op([B; 3], B, |a, b, c, _| a ^ b ^ c),
        "v_and_or_b32" => op([B; 3], B, |a, b, c, _| a & b | c),
        "v_xad_u32" => op([B; 3], B, |a, b, c, _| ((a ^ b) as u32).wrapping_add(c as u32) as u64),
        "v_lshlrev_b32" => op([B; 3], B, |a, b, _, _| ((b as u32) << (a & 31)) as u64),
        "v_lshrrev_b32" => op([B; 3], B, |a, b, _, _| ((b as u32) >> (a & 31)) as u64),
        "v_ashrrev_i32" => op([B; 3], B, |a, b, _, _| ((b as i32) >> (a & 31)) as u32 as u64),
        "v_lshlrev_b64" => op([B, W, B], W, |a, b, _, _| b << (a & 63)),
        "v_lshrrev_b64" => op([B, W, B], W, |a, b, _, _| b >> (a & 63)),
        "v_ashrrev_i64" => op([B, W, B], W, |a, b, _, _| (b as i64 >> (a & 63)) as u64),
        "v_lshl_add_u32" => op([B; 3], B, |a, b, c, _| ((a as u32) << (b & 31)).wrapping_add(c as u32) as u64),
        "v_add_lshl_u32" => op([B; 3], B, |a, b, c, _| ((a as u32).wrapping_add(b as u32) << (c & 31)) as u64),
        "v_lshl_or_b32" => op([B; 3], B, |a, b, c, _| ((a as u32) << (b & 31)) as u64 | c),
        "v_bfe_u32" => op([B; 3], B, |a, b, c, _| (a as u32 >> (b & 31)) as u64 & ((1u64 << (c & 31)) - 1)),
        "v_bfe_i32" => op([B; 3], B, |a, b, c, _| {
            let width = (c & 31) as u32;
            if width == 0 { return 0 }
            ((((a as i32 >> (b & 31)) as u32) << (32 - width)) as i32 >> (32 - width)) as u32 as u64
        }),
        "v_bfi_b32" => op([B; 3], B, |a, b, c, _| a & b | !a & c),
        "v_bfm_b32" => op([B; 3], B, |a, b, _, _| (((1u64 << (a & 31)) - 1) as u32).wrapping_shl(b as u32 & 31) as u64),
        "v_bcnt_u32_b32" => op([B; 3], B, |a, b, _, _| (b as u32).wrapping_add((a as u32).count_ones()) as u64),
        "v_alignbit_b32" => op([B; 3], B, |a, b, c, _| ((a << 32 | b & 0xffff_ffff) >> (c & 31)) as u32 as u64),
        "v_alignbyte_b32" => op([B; 3], B, |a, b, c, _| ((a << 32 | b & 0xffff_ffff) >> ((c & 3) * 8)) as u32 as u64),
        "v_perm_b32" => op([B; 3], B, |a, b, c, _| permute_bytes(a as u32, b as u32, c as u32) as u64),
        // Sixteen bits; the result goes to half a register, as halves do.
        "v_add_nc_u16" | "v_add_nc_i16" => op([H, H, B], H, |a, b, _, _| (a as u16).wrapping_add(b as u16) as u64),
        "v_sub_nc_u16" | "v_sub_nc_i16" => op([H, H, B], H, |a, b, _, _| (a as u16).wrapping_sub(b as u16) as u64),
        "v_mul_lo_u16" => op([H, H, B], H, |a, b, _, _| (a as u16).wrapping_mul(b as u16) as u64),
        "v_mad_u16" | "v_mad_i16" => op([H; 3], H, |a, b, c, _| (a as u16).wrapping_mul(b as u16).wrapping_add(c as u16) as u64),
        "v_lshlrev_b16" => op([H, H, B], H, |a, b, _, _| ((b as u16) << (a & 15)) as u64),
        "v_lshrrev_b16" => op([H, H, B], H, |a, b, _, _| ((b as u16) >> (a & 15)) as u64),
        "v_ashrrev_i16" => op([H, H, B], H, |a, b, _, _| ((b as i16) >> (a & 15)) as u16 as u64),
        "v_max_u16" => op([H, H, B], H, |a, b, _, _| (a as u16).max(b as u16) as u64),
        "v_min_u16" => op([H, H, B], H, |a, b, _, _| (a as u16).min(b as u16) as u64),
        "v_max_i16" => op([H, H, B], H, |a, b, _, _| (a as i16).max(b as i16) as u16 as u64),
        "v_min_i16" => op([H, H, B], H, |a, b, _, _| (a as i16).min(b as i16) as u16 as u64),
        _ => None,
    }
}

/// A finite number other than zero as a mantissa from one half to one, and a power of two.
fn frexp(value: f64) -> (f64, i32) {
    // Denormals are brought into the range of normal numbers first.
    let (value, shift) = if value.is_subnormal() { (value * 2f64.powi(64), 64) } else { (value, 0) };
    let exponent = (value.to_bits() >> 52 & 0x7ff) as i32 - 1022;
    let mantissa = f64::from_bits(value.to_bits() & !(0x7ff << 52) | 1022 << 52);
    (mantissa, exponent - shift)
}

fn unfused(a: u64, b: u64, c: u64) -> u64 {
    let flush = FloatMode { keep_single: false, keep_half_double: true };
    let product = f32::from_bits(single_bits(single(a, flush) * single(b, flush), flush) as u32);
    single_bits(product + single(c, flush), flush)
}

/// Packed instructions as the function of one half, by name.
pub(crate) fn packed_half(name: &str) -> Option<LaneFunction> {
    let single_name = match name {
        "v_pk_fma_f16" => "v_fma_f16",
        "v_pk_add_f16" => "v_add_f16",
        "v_pk_mul_f16" => "v_mul_f16",
        "v_pk_min_f16" => "v_min_f16",
        "v_pk_max_f16" => "v_max_f16",
        "v_pk_add_u16" | "v_pk_add_i16" => "v_add_nc_u16",
        "v_pk_sub_u16" | "v_pk_sub_i16" => "v_sub_nc_u16",
        "v_pk_mul_lo_u16" => "v_mul_lo_u16",
        "v_pk_mad_u16" | "v_pk_mad_i16" => "v_mad_u16",
        "v_pk_lshlrev_b16" => "v_lshlrev_b16",
        "v_pk_lshrrev_b16" => "v_lshrrev_b16",
        "v_pk_ashrrev_i16" => "v_ashrrev_i16",
        "v_pk_max_u16" => "v_max_u16",
        "v_pk_min_u16" => "v_min_u16",
        "v_pk_max_i16" => "v_max_i16",
        "v_pk_min_i16" => "v_min_i16",
        _ => return None,
    };
    operation(single_name).map(|operation| operation.run)
}

/// The first step of a division: the source scaled so that the steps to come neither overflow nor lose bits, and
/// whether the result must be scaled back.
pub(crate) fn divide_scale(value: f32, denominator: f32, numerator: f32) -> (f32, bool) {
    let reciprocal_tiny = (1.0 / denominator as f64).abs() < f32::MIN_POSITIVE as f64;
    let quotient = numerator as f64 / denominator as f64;
    let quotient_tiny = quotient != 0.0 && quotient.abs() < f32::MIN_POSITIVE as f64;
    let same = |other: f32| value.to_bits() == other.to_bits();
    if numerator == 0.0 || denominator == 0.0 {
        (f32::NAN, false)
    } else if exponent(numerator) - exponent(denominator) >= 96 {
        (if same(denominator) { scale(value, 64) } else { value }, true)
    } else if denominator.is_subnormal() {
        (scale(value, 64), false)
    } else if reciprocal_tiny && quotient_tiny {
        (if same(denominator) { scale(value, 64) } else { value }, true)
    } else if reciprocal_tiny {
        (scale(value, -64), false)
    } else if quotient_tiny {
        (if same(numerator) { scale(value, 64) } else { value }, true)
    } else if exponent(numerator) <= 23 {
        (scale(value, 64), false)
    } else {
        (value, false)
    }
}

/// The last multiply-add of a division, scaled back if the first step says so.
pub(crate) fn divide_multiply_add(a: f32, b: f32, c: f32, scaled: bool) -> f32 {
    let value = a.mul_add(b, c);
    match scaled {
        false => value,
        true => scale(value, if exponent(c) > 127 { 64 } else { -64 }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODE: FloatMode = FloatMode { keep_single: true, keep_half_double: true };
    const FLUSH: FloatMode = FloatMode { keep_single: false, keep_half_double: false };

    fn run(name: &str, a: u64, b: u64, c: u64) -> u64 {
        (operation(name).unwrap_or_else(|| panic!("{name} is not known")).run)(a, b, c, MODE)
    }

    fn f(value: f32) -> u64 {
        value.to_bits() as u64
    }

    fn h(value: f64) -> u64 {
        half_bits(value)
    }

    /// Instruction, sources, result: written from the instruction set's documentation.
    #[test]
    fn instructions_do_what_the_documentation_says() {
        let ones = u32::MAX as u64;
        let table = [
            ("v_mov_b32", 7, 0, 0, 7),
            ("v_bfrev_b32", 1, 0, 0, 0x8000_0000),
            ("v_ffbh_u32", 0, 0, 0, ones),
            ("v_ffbh_u32", 0x0000_ffff, 0, 0, 16),
            ("v_ffbl_b32", 8, 0, 0, 3),
            ("v_ffbh_i32", 0xffff_0000, 0, 0, 16),
            ("v_cvt_f32_i32", ones, 0, 0, f(-1.0)),
            ("v_cvt_f32_u32", ones, 0, 0, f(4294967296.0)),
            ("v_cvt_u32_f32", f(-3.0), 0, 0, 0),
            ("v_cvt_u32_f32", f(1e20), 0, 0, ones),
            ("v_cvt_u32_f32", f(f32::NAN), 0, 0, 0),
            ("v_cvt_i32_f32", f(-3.9), 0, 0, -3i32 as u32 as u64),
            ("v_cvt_flr_i32_f32", f(-3.1), 0, 0, -4i32 as u32 as u64),
            ("v_cvt_f32_ubyte2", 0x00ab_0000, 0, 0, f(171.0)),
            ("v_cvt_f16_f32", f(1.0), 0, 0, 0x3c00),
            ("v_cvt_f16_f32", f(65520.0), 0, 0, 0x7c00),
            ("v_cvt_f32_f16", 0x0001, 0, 0, f(5.960_464_5e-8)),
            ("v_cvt_pkrtz_f16_f32", f(65535.0), f(-1.0), 0, 0xbc00_7bff),
            ("v_sub_f32", f(5.0), f(3.0), 0, f(2.0)),
            ("v_subrev_f32", f(5.0), f(3.0), 0, f(-2.0)),
            ("v_mul_legacy_f32", f(0.0), f(f32::INFINITY), 0, 0),
            ("v_min_f32", f(f32::NAN), f(3.0), 0, f(3.0)),
            ("v_min_f32", f(0.0), f(-0.0), 0, f(-0.0)),
            ("v_max_f32", f(-0.0), f(0.0), 0, f(0.0)),
            ("v_med3_f32", f(9.0), f(1.0), f(4.0), f(4.0)),
            ("v_fma_f32", f(1.0 + f32::EPSILON), f(1.0 - f32::EPSILON), f(-1.0), f(-f32::EPSILON * f32::EPSILON)),
            ("v_mad_f32", f(1.0 + f32::EPSILON), f(1.0 - f32::EPSILON), f(-1.0), 0),
            ("v_fract_f32", f(-0.25), 0, 0, f(0.75)),
            ("v_rndne_f32", f(2.5), 0, 0, f(2.0)),
            ("v_exp_f32", f(10.0), 0, 0, f(1024.0)),
            ("v_log_f32", f(0.125), 0, 0, f(-3.0)),
            ("v_rcp_f32", f(0.0), 0, 0, f(f32::INFINITY)),
            ("v_sin_f32", f(0.25), 0, 0, f(1.0)),
            ("v_cos_f32", f(0.5), 0, 0, f(-1.0)),
            ("v_ldexp_f32", f(1.5), -3i32 as u32 as u64, 0, f(0.1875)),
            ("v_ldexp_f32", f(1.0), 5000, 0, f(f32::INFINITY)),
            ("v_frexp_exp_i32_f32", f(8.0), 0, 0, 4),
            ("v_frexp_mant_f32", f(-12.0), 0, 0, f(-0.75)),
            ("v_div_fixup_f32", f(1.0), f(0.0), f(-2.0), f(f32::NEG_INFINITY)),
            ("v_div_fixup_f32", f(1.0), f(0.0), f(0.0), 0xffc0_0000),
            ("v_add_f16", 0x3c00, 0x1000, 0, 0x3c00),
            ("v_fma_f16", h(3.0), h(0.333_251_953_125), h(-1.0), h(3.0 * 0.333_251_953_125 - 1.0)),
            ("v_sub_nc_u32", 3, 5, 0, -2i32 as u32 as u64),
            ("v_subrev_nc_u32", 3, 5, 0, 2),
            ("v_mul_hi_u32", ones, ones, 0, 0xffff_fffe),
            ("v_mul_hi_i32", ones, ones, 0, 0),
            ("v_mul_u32_u24", 0xff00_0003, 0x0100_0002, 0, 6),
            ("v_mul_i32_i24", 0x00ff_ffff, 5, 0, -5i32 as u32 as u64),
            ("v_mad_u32_u24", 3, 4, ones, 11),
            ("v_min_i32", ones, 1, 0, ones),
            ("v_min_u32", ones, 1, 0, 1),
            ("v_med3_i32", ones, 5, 2, 2),
            ("v_lshlrev_b32", 33, 1, 0, 2),
            ("v_ashrrev_i32", 4, 0x8000_0000, 0, 0xf800_0000),
            ("v_lshlrev_b64", 36, 1, 0, 1 << 36),
            ("v_ashrrev_i64", 60, 1 << 63, 0, u64::MAX << 3),
            ("v_lshl_add_u32", 3, 4, 5, 53),
            ("v_add_lshl_u32", 3, 4, 5, 224),
            ("v_lshl_or_b32", 3, 4, 1, 49),
            ("v_and_or_b32", 12, 10, 1, 9),
            ("v_xad_u32", 12, 10, 1, 7),
            ("v_bfe_u32", 0xabcd_1234, 8, 8, 0x12),
            ("v_bfe_i32", 0x0000_8000, 8, 8, 0xffff_ff80),
            ("v_bfi_b32", 0xff00, 0x1234, 0x5678, 0x1278),
            ("v_bfm_b32", 4, 8, 0, 0xf00),
            ("v_bcnt_u32_b32", 0xff, 3, 0, 11),
            ("v_alignbit_b32", 1, 0x8000_0000, 4, 0x1800_0000),
            ("v_alignbyte_b32", 0x0000_00aa, 0x1122_3344, 1, 0xaa11_2233),
            ("v_perm_b32", 0x4433_2211, 0x8877_6655, 0x0c07_0400, 0x0044_1155),
            ("v_mul_lo_u16", 0x1_0003, 5, 0, 15),
            ("v_ashrrev_i16", 4, 0x8000, 0, 0xf800),
        ];
        for (name, a, b, c, expected) in table {
            let found = run(name, a, b, c);
            let mask = match operation(name).unwrap().result {
                Type::Float64 | Type::Bits64 => u64::MAX,
                Type::Float16 => 0xffff,
                _ => 0xffff_ffff,
            };
            assert_eq!(found & mask, expected & mask, "{name} {a:#x} {b:#x} {c:#x}: {found:#x} and not {expected:#x}");
        }
    }

    #[test]
    fn denormals_are_flushed_where_the_mode_says_so() {
        let tiny = f(1e-40);
        let add = operation("v_add_f32").unwrap().run;
        assert_eq!(add(tiny, 0, 0, MODE), tiny);
        assert_eq!(add(tiny, 0, 0, FLUSH), 0);
        let half = operation("v_add_f16").unwrap().run;
        assert_eq!(half(1, 0, 0, MODE), 1);
        assert_eq!(half(1, 0, 0, FLUSH), 0);
    }

    /// Every pair of a spread of halves, against exact arithmetic in 128-bit whole numbers.
    #[test]
    fn half_precision_fma_rounds_once() {
        let exact = |bits: u16| -> i128 {
            // In units of 2^-24 every half is a whole number.
            (f16::from_bits(bits).to_f64() * 16_777_216.0) as i128
        };
        let halves: Vec<u16> = (0..0x7c00u16).step_by(997).flat_map(|bits| [bits, bits | 0x8000]).collect();
        for &a in &halves {
            for &b in &halves {
                for &c in halves.iter().step_by(7) {
                    let sum = exact(a) * exact(b) + (exact(c) << 24);
                    let found = f16::from_bits(run("v_fma_f16", a as u64, b as u64, c as u64) as u16);
                    if found.is_infinite() {
                        assert!(sum.unsigned_abs() >= 65520u128 << 48);
                        continue;
                    }
                    // No neighbour is nearer.
                    let distance = |bits: u16| ((exact(bits) << 24) - sum).unsigned_abs();
                    for neighbour in [found.to_bits().wrapping_add(1), found.to_bits().wrapping_sub(1)] {
                        if f16::from_bits(neighbour).is_finite() {
                            assert!(distance(found.to_bits()) <= distance(neighbour), "{a:#x} {b:#x} {c:#x}");
                        }
                    }
                }
            }
        }
    }
}
