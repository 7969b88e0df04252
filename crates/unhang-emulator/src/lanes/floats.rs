//! What float instructions compute: conversions, and arithmetic in single, double and half precision.

use super::operation::{LaneOperation, accumulate, hot, median, op, wide};
use crate::divide::divide_fixup;
use crate::float::{
    FloatMode, Round, approximate_double, approximate_half, approximate_single, approximate_source, double,
    double_bits, fused_double, fused_single, half_bits, half_value, rounded_double, rounded_half, rounded_single,
    scaled_double, single, single_bits, toward_zero_half,
};
use crate::two_over_pi;
use crate::wave::{LANES, Lanes, Type};

/// The hardware's minimum: a number is preferred to a NaN, and -0 is less than +0.
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

/// The median; if one is NaN, the smaller of the others.
fn median_float(a: f64, b: f64, c: f64) -> f64 {
    if a.is_nan() || b.is_nan() || c.is_nan() { minimum(minimum(a, b), c) } else { median(a, b, c) }
}

fn is_zero_product(a: u64, b: u64, mode: FloatMode) -> bool {
    single(a, mode) == 0.0 || single(b, mode) == 0.0
}

fn fused_legacy(a: u64, b: u64, c: u64, mode: FloatMode) -> u64 {
    let (a, b) = if is_zero_product(a, b, mode) { (0, 0) } else { (a, b) };
    fused_single(single(a, mode), single(b, mode), single(c, mode), mode)
}

fn to_unsigned(value: f64) -> u64 {
    // `as` saturates and turns NaN into 0, as the hardware does.
    value as u32 as u64
}

fn to_signed(value: f64) -> u64 {
    value as i32 as u32 as u64
}

/// The part above the next lower integer, kept below one; infinity and NaN have no such part.
fn fraction(value: f64, largest: f64) -> f64 {
    if value.is_infinite() {
        return f64::NAN;
    }
    let part = value - value.floor();
    if part > largest { largest } else { part }
}

/// Sine and cosine take turns, not radians, and at most 256 of them.
fn turn(value: f64) -> f64 {
    if value.abs() > 256.0 { 0.0 } else { value.fract() * std::f64::consts::TAU }
}

/// The sine of this many quarters of a turn, if that is an integer: exact, as LLVM folds it and as in the
/// documentation's examples.
fn quarters(value: f64, shift: i64) -> Option<f64> {
    let quarters = value * 4.0;
    let exact = value != 0.0 && value.abs() <= 256.0 && quarters == quarters.floor();
    exact.then(|| [0.0, 1.0, 0.0, -1.0][(quarters as i64 + shift).rem_euclid(4) as usize])
}

fn sine(value: f64) -> f64 {
    quarters(value, 0).unwrap_or_else(|| turn(value).sin())
}

fn cosine(value: f64) -> f64 {
    quarters(value, 1).unwrap_or_else(|| turn(value).cos())
}

#[inline(always)]
fn add(a: f32, b: f32, mode: FloatMode) -> u64 {
    rounded_single(a + b, [a as f64, b as f64], mode)
}

#[inline(always)]
fn multiply(a: f32, b: f32, mode: FloatMode) -> u64 {
    let exact = a as f64 * b as f64;
    rounded_single(a * b, [exact, 0f64.copysign(exact)], mode)
}

/// a·b + c of a whole register. A product of two singles is exact in double precision. So a sum that is rounded there,
/// and then to single precision, is wrong only in two cases: the first rounding ends in the middle between two singles,
/// or the result is denormal. Every lane is then computed again.
fn fused_rows(a: &Lanes, b: &Lanes, c: &Lanes, mode: FloatMode) -> Lanes {
    const HALFWAY: u64 = 1 << 28;
    let mut results = [0; LANES];
    let mut doubtful = mode.single.round != Round::NearestEven;
    for place in 0..LANES {
        let [x, y, z] = [a, b, c].map(|lanes| single(lanes[place] as u64, mode) as f64);
        let sum = x * y + z;
        let bits = sum.to_bits();
        let tiny = sum.abs() < f32::MIN_POSITIVE as f64 && sum != 0.0;
        doubtful |= bits & (2 * HALFWAY - 1) == HALFWAY || tiny;
        results[place] = (sum as f32).to_bits();
    }
    if doubtful {
        for place in 0..LANES {
            let [x, y, z] = [a, b, c].map(|lanes| single(lanes[place] as u64, mode));
            results[place] = fused_single(x, y, z, mode) as u32;
        }
    }
    results
}

/// A finite nonzero number as a mantissa from one half to one, and a power of two.
fn frexp(value: f64) -> (f64, i32) {
    // Denormals are first scaled into the range of normal numbers.
    let (value, shift) = if value.is_subnormal() { (value * 2f64.powi(64), 64) } else { (value, 0) };
    let exponent = (value.to_bits() >> 52 & 0x7ff) as i32 - 1022;
    let mantissa = f64::from_bits(value.to_bits() & !(0x7ff << 52) | 1022 << 52);
    (mantissa, exponent - shift)
}

/// Two roundings, and never denormals.
fn unfused(a: u64, b: u64, c: u64, mode: FloatMode) -> u64 {
    let mut flush = mode;
    (flush.single.flush_in, flush.single.flush_out) = (true, true);
    let product = f32::from_bits(multiply(single(a, flush), single(b, flush), flush) as u32);
    add(product, single(c, flush), flush)
}

/// a·b + c, rounded once.
fn fused() -> Option<LaneOperation> {
    use Type::Float32 as F;
    let operation = hot!([F; 3], F, |a, b, c, m| fused_single(single(a, m), single(b, m), single(c, m), m));
    operation.map(|it| LaneOperation { rows: fused_rows, ..it })
}

/// Conversions.
#[rustfmt::skip]
pub(super) fn conversion(name: &str) -> Option<LaneOperation> {
    use Type::{Bits16 as I, Bits32 as B, Float16 as H, Float32 as F, Float64 as D};
    match name {
        "v_cvt_f32_i32" => hot!([B; 3], F, |a, _, _, m| rounded_single(a as i32 as f32, [a as i32 as f64, 0.0], m)),
        "v_cvt_f32_u32" => hot!([B; 3], F, |a, _, _, m| rounded_single(a as u32 as f32, [a as u32 as f64, 0.0], m)),
        "v_cvt_u32_f32" => hot!([F, B, B], B, |a, _, _, m| to_unsigned(single(a, m) as f64)),
        "v_cvt_i32_f32" => hot!([F, B, B], B, |a, _, _, m| to_signed(single(a, m) as f64)),
        "v_cvt_rpi_i32_f32" => op!([F, B, B], B, |a, _, _, m| to_signed((single(a, m) as f64 + 0.5).floor())),
        "v_cvt_flr_i32_f32" => op!([F, B, B], B, |a, _, _, m| to_signed((single(a, m) as f64).floor())),
        "v_cvt_f16_f32" => op!([F, B, B], H, |a, _, _, m| half_bits(single(a, m) as f64, m)),
        "v_cvt_f32_f16" => op!([H, B, B], F, |a, _, _, m| (half_value(a, m) as f32).to_bits() as u64),
        "v_cvt_f64_f32" => wide!([F, B, B], D, |a, _, _, m| (single(a, m) as f64).to_bits()),
        "v_cvt_f32_f64" => wide!([D, B, B], F, |a, _, _, m| { let a = double(a, m); rounded_single(a as f32, [a, 0f64.copysign(a)], m) }),
        "v_cvt_f64_i32" => wide!([B; 3], D, |a, _, _, _| (a as i32 as f64).to_bits()),
        "v_cvt_f64_u32" => wide!([B; 3], D, |a, _, _, _| (a as u32 as f64).to_bits()),
        "v_cvt_i32_f64" => wide!([D, B, B], B, |a, _, _, m| to_signed(double(a, m))),
        "v_cvt_u32_f64" => wide!([D, B, B], B, |a, _, _, m| to_unsigned(double(a, m))),
        "v_cvt_f16_u16" => op!([I, B, B], H, |a, _, _, m| half_bits(a as u16 as f64, m)),
        "v_cvt_f16_i16" => op!([I, B, B], H, |a, _, _, m| half_bits(a as i16 as f64, m)),
        "v_cvt_u16_f16" => op!([H, B, B], I, |a, _, _, m| half_value(a, m) as u16 as u64),
        "v_cvt_i16_f16" => op!([H, B, B], I, |a, _, _, m| half_value(a, m) as i16 as u16 as u64),
        "v_cvt_f32_ubyte0" => hot!([B; 3], F, |a, _, _, _| ((a & 255) as f32).to_bits() as u64),
        "v_cvt_f32_ubyte1" => hot!([B; 3], F, |a, _, _, _| ((a >> 8 & 255) as f32).to_bits() as u64),
        "v_cvt_f32_ubyte2" => hot!([B; 3], F, |a, _, _, _| ((a >> 16 & 255) as f32).to_bits() as u64),
        "v_cvt_f32_ubyte3" => hot!([B; 3], F, |a, _, _, _| ((a >> 24 & 255) as f32).to_bits() as u64),
        "v_cvt_pkrtz_f16_f32" => hot!([F, F, B], B, |a, b, _, m| (toward_zero_half(single(a, m)) | toward_zero_half(single(b, m)) << 16) as u64),
        _ => None,
    }
}

/// Single precision.
#[rustfmt::skip]
pub(super) fn single_precision(name: &str) -> Option<LaneOperation> {
    use Type::{Bits32 as B, Float32 as F};
    match name {
        "v_add_f32" => hot!([F; 3], F, |a, b, _, m| add(single(a, m), single(b, m), m)),
        "v_sub_f32" => hot!([F; 3], F, |a, b, _, m| add(single(a, m), -single(b, m), m)),
        "v_subrev_f32" => hot!([F; 3], F, |a, b, _, m| add(single(b, m), -single(a, m), m)),
        "v_mul_f32" => hot!([F; 3], F, |a, b, _, m| multiply(single(a, m), single(b, m), m)),
        "v_mul_legacy_f32" => op!([F; 3], F, |a, b, _, m| {
            let (a, b) = (single(a, m), single(b, m));
            if a == 0.0 || b == 0.0 { 0 } else { single_bits(a * b, m) }
        }),
        "v_min_f32" => hot!([F; 3], F, |a, b, _, m| single_bits(minimum(single(a, m) as f64, single(b, m) as f64) as f32, m)),
        "v_max_f32" => hot!([F; 3], F, |a, b, _, m| single_bits(maximum(single(a, m) as f64, single(b, m) as f64) as f32, m)),
        "v_min3_f32" => hot!([F; 3], F, |a, b, c, m| single_bits(minimum(minimum(single(a, m) as f64, single(b, m) as f64), single(c, m) as f64) as f32, m)),
        "v_max3_f32" => hot!([F; 3], F, |a, b, c, m| single_bits(maximum(maximum(single(a, m) as f64, single(b, m) as f64), single(c, m) as f64) as f32, m)),
        "v_med3_f32" => hot!([F; 3], F, |a, b, c, m| single_bits(median_float(single(a, m) as f64, single(b, m) as f64, single(c, m) as f64) as f32, m)),
        "v_fma_f32" | "v_fmamk_f32" | "v_fmaak_f32" => fused(),
        "v_fmac_f32" => accumulate(fused()),
        // The unfused pair never keeps denormals.
        "v_mad_f32" | "v_madmk_f32" | "v_madak_f32" => op!([F; 3], F, |a, b, c, m| unfused(a, b, c, m)),
        "v_mac_f32" => accumulate(op!([F; 3], F, |a, b, c, m| unfused(a, b, c, m))),
        "v_fract_f32" => hot!([F; 3], F, |a, _, _, m| single_bits(fraction(single(a, m) as f64, 1.0 - f32::EPSILON as f64 / 2.0) as f32, m)),
        "v_trunc_f32" => hot!([F; 3], F, |a, _, _, m| single_bits(single(a, m).trunc(), m)),
        "v_ceil_f32" => hot!([F; 3], F, |a, _, _, m| single_bits(single(a, m).ceil(), m)),
        "v_floor_f32" => hot!([F; 3], F, |a, _, _, m| single_bits(single(a, m).floor(), m)),
        "v_rndne_f32" => hot!([F; 3], F, |a, _, _, m| single_bits(single(a, m).round_ties_even(), m)),
        "v_exp_f32" => hot!([F; 3], F, |a, _, _, m| approximate_single(approximate_source(a).exp2(), m)),
        "v_log_f32" => hot!([F; 3], F, |a, _, _, m| approximate_single(approximate_source(a).log2(), m)),
        "v_rcp_f32" | "v_rcp_iflag_f32" => hot!([F; 3], F, |a, _, _, m| approximate_single(1.0 / approximate_source(a), m)),
        "v_rsq_f32" => hot!([F; 3], F, |a, _, _, m| approximate_single(1.0 / approximate_source(a).sqrt(), m)),
        "v_sqrt_f32" => hot!([F; 3], F, |a, _, _, m| approximate_single(approximate_source(a).sqrt(), m)),
        "v_sin_f32" => hot!([F; 3], F, |a, _, _, m| approximate_single(sine(approximate_source(a)), m)),
        "v_cos_f32" => hot!([F; 3], F, |a, _, _, m| approximate_single(cosine(approximate_source(a)), m)),
        "v_ldexp_f32" => hot!([F, B, B], F, |a, b, _, m| {
            let exact = single(a, m) as f64 * 2f64.powi((b as i32).clamp(-600, 600));
            rounded_single(exact as f32, [exact, 0f64.copysign(exact)], m)
        }),
        "v_frexp_exp_i32_f32" => op!([F, B, B], B, |a, _, _, m| {
            let a = single(a, m);
            if a == 0.0 || !a.is_finite() { 0 } else { frexp(a as f64).1 as u32 as u64 }
        }),
        "v_frexp_mant_f32" => op!([F, B, B], F, |a, _, _, m| {
            let a = single(a, m);
            if a == 0.0 || !a.is_finite() { return a.to_bits() as u64 }
            (frexp(a as f64).0 as f32).to_bits() as u64
        }),
        "v_div_fixup_f32" => op!([F; 3], F, |a, b, c, m| single_bits(divide_fixup(single(a, m), single(b, m), single(c, m)), m)),
        // Zero times anything is zero.
        "v_mad_legacy_f32" => op!([F; 3], F, |a, b, c, m| if is_zero_product(a, b, m) { unfused(0, 0, c, m) } else { unfused(a, b, c, m) }),
        "v_mac_legacy_f32" => accumulate(op!([F; 3], F, |a, b, c, m| if is_zero_product(a, b, m) { unfused(0, 0, c, m) } else { unfused(a, b, c, m) })),
        "v_fma_legacy_f32" => op!([F; 3], F, |a, b, c, m| fused_legacy(a, b, c, m)),
        "v_fmac_legacy_f32" => accumulate(op!([F; 3], F, |a, b, c, m| fused_legacy(a, b, c, m))),
        _ => None,
    }
}

/// Double precision.
#[rustfmt::skip]
pub(super) fn double_precision(name: &str) -> Option<LaneOperation> {
    use Type::{Bits32 as B, Float64 as D};
    match name {
        "v_div_fixup_f64" => op!([D; 3], D, |a, b, c, m| double_bits(divide_fixup(double(a, m), double(b, m), double(c, m)), m)),
        "v_fract_f64" => op!([D; 3], D, |a, _, _, m| double_bits(fraction(double(a, m), 1.0 - f64::EPSILON / 2.0), m)),
        "v_add_f64" => wide!([D; 3], D, |a, b, _, m| { let (a, b) = (double(a, m), double(b, m)); rounded_double(a + b, &[a, b], m) }),
        "v_mul_f64" => wide!([D; 3], D, |a, b, _, m| {
            let (a, b) = (double(a, m), double(b, m));
            rounded_double(a * b, &[a * b, a.mul_add(b, -(a * b))], m)
        }),
        "v_fma_f64" => wide!([D; 3], D, |a, b, c, m| fused_double(double(a, m), double(b, m), double(c, m), m)),
        "v_min_f64" => wide!([D; 3], D, |a, b, _, m| double_bits(minimum(double(a, m), double(b, m)), m)),
        "v_max_f64" => wide!([D; 3], D, |a, b, _, m| double_bits(maximum(double(a, m), double(b, m)), m)),
        "v_rcp_f64" => wide!([D; 3], D, |a, _, _, m| approximate_double(1.0 / double(a, m), m)),
        "v_rsq_f64" => wide!([D; 3], D, |a, _, _, m| approximate_double(1.0 / double(a, m).sqrt(), m)),
        "v_sqrt_f64" => wide!([D; 3], D, |a, _, _, m| approximate_double(double(a, m).sqrt(), m)),
        "v_floor_f64" => wide!([D; 3], D, |a, _, _, m| double(a, m).floor().to_bits()),
        "v_ceil_f64" => wide!([D; 3], D, |a, _, _, m| double(a, m).ceil().to_bits()),
        "v_trunc_f64" => wide!([D; 3], D, |a, _, _, m| double(a, m).trunc().to_bits()),
        "v_rndne_f64" => wide!([D; 3], D, |a, _, _, m| double(a, m).round_ties_even().to_bits()),
        "v_frexp_exp_i32_f64" => op!([D, B, B], B, |a, _, _, m| {
            let a = double(a, m);
            if a == 0.0 || !a.is_finite() { 0 } else { (frexp(a).1) as u32 as u64 }
        }),
        "v_frexp_mant_f64" => op!([D, B, B], D, |a, _, _, m| {
            let a = double(a, m);
            if a == 0.0 || !a.is_finite() { a.to_bits() } else { frexp(a).0.to_bits() }
        }),
        "v_ldexp_f64" => op!([D, B, B], D, |a, b, _, m| scaled_double(double(a, m), b as i32, m)),
        "v_trig_preop_f64" => op!([D, B, B], D, |a, b, _, m| two_over_pi::segment(double(a, m), b as u32, m)),
        _ => None,
    }
}

/// Half precision.
#[rustfmt::skip]
pub(super) fn half_precision(name: &str) -> Option<LaneOperation> {
    use Type::{Bits16 as I, Bits32 as B, Float16 as H};
    match name {
        "v_add_f16" => op!([H; 3], H, |a, b, _, m| rounded_half([half_value(a, m), half_value(b, m)], m)),
        "v_sub_f16" => op!([H; 3], H, |a, b, _, m| rounded_half([half_value(a, m), -half_value(b, m)], m)),
        "v_subrev_f16" => op!([H; 3], H, |a, b, _, m| rounded_half([half_value(b, m), -half_value(a, m)], m)),
        "v_mul_f16" => op!([H; 3], H, |a, b, _, m| half_bits(half_value(a, m) * half_value(b, m), m)),
        "v_min_f16" => op!([H; 3], H, |a, b, _, m| half_bits(minimum(half_value(a, m), half_value(b, m)), m)),
        "v_max_f16" => op!([H; 3], H, |a, b, _, m| half_bits(maximum(half_value(a, m), half_value(b, m)), m)),
        "v_fma_f16" | "v_fmamk_f16" | "v_fmaak_f16" => op!([H; 3], H, |a, b, c, m| rounded_half([half_value(a, m) * half_value(b, m), half_value(c, m)], m)),
        "v_fmac_f16" => accumulate(op!([H; 3], H, |a, b, c, m| rounded_half([half_value(a, m) * half_value(b, m), half_value(c, m)], m))),
        "v_rcp_f16" => op!([H; 3], H, |a, _, _, m| approximate_half(1.0 / half_value(a, m), m)),
        "v_sqrt_f16" => op!([H; 3], H, |a, _, _, m| approximate_half(half_value(a, m).sqrt(), m)),
        "v_rsq_f16" => op!([H; 3], H, |a, _, _, m| approximate_half(1.0 / half_value(a, m).sqrt(), m)),
        "v_exp_f16" => op!([H; 3], H, |a, _, _, m| approximate_half(half_value(a, m).exp2(), m)),
        "v_log_f16" => op!([H; 3], H, |a, _, _, m| approximate_half(half_value(a, m).log2(), m)),
        "v_floor_f16" => op!([H; 3], H, |a, _, _, m| half_bits(half_value(a, m).floor(), m)),
        "v_ceil_f16" => op!([H; 3], H, |a, _, _, m| half_bits(half_value(a, m).ceil(), m)),
        "v_trunc_f16" => op!([H; 3], H, |a, _, _, m| half_bits(half_value(a, m).trunc(), m)),
        "v_rndne_f16" => op!([H; 3], H, |a, _, _, m| half_bits(half_value(a, m).round_ties_even(), m)),
        "v_fract_f16" => op!([H; 3], H, |a, _, _, m| half_bits(fraction(half_value(a, m), 1.0 - 1.0 / 2048.0), m)),
        "v_sin_f16" => op!([H; 3], H, |a, _, _, m| approximate_half(sine(half_value(a, m)), m)),
        "v_cos_f16" => op!([H; 3], H, |a, _, _, m| approximate_half(cosine(half_value(a, m)), m)),
        "v_ldexp_f16" => op!([H, I, B], H, |a, b, _, m| half_bits(half_value(a, m) * 2f64.powi((b as i16 as i32).clamp(-600, 600)), m)),
        "v_frexp_exp_i16_f16" => op!([H, B, B], I, |a, _, _, m| {
            let a = half_value(a, m);
            if a == 0.0 || !a.is_finite() { 0 } else { frexp(a).1 as u16 as u64 }
        }),
        "v_frexp_mant_f16" => op!([H, B, B], H, |a, _, _, m| {
            let a = half_value(a, m);
            half_bits(if a == 0.0 || !a.is_finite() { a } else { frexp(a).0 }, m)
        }),
        "v_min3_f16" => op!([H; 3], H, |a, b, c, m| half_bits(minimum(minimum(half_value(a, m), half_value(b, m)), half_value(c, m)), m)),
        "v_max3_f16" => op!([H; 3], H, |a, b, c, m| half_bits(maximum(maximum(half_value(a, m), half_value(b, m)), half_value(c, m)), m)),
        "v_med3_f16" => op!([H; 3], H, |a, b, c, m| half_bits(median_float(half_value(a, m), half_value(b, m), half_value(c, m)), m)),
        "v_div_fixup_f16" => op!([H; 3], H, |a, b, c, m| half_bits(divide_fixup(half_value(a, m) as f32, half_value(b, m) as f32, half_value(c, m) as f32) as f64, m)),
        "v_pack_b32_f16" => op!([H, H, B], B, |a, b, _, _| a & 0xffff | (b & 0xffff) << 16),
        _ => None,
    }
}
