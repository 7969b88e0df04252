//! What vector instructions compute, lane by lane: pure functions of up to three values, found by name.
//!
//! Add, subtract, multiply, fma, conversions and comparisons are exact to the bit in every rounding mode. Reciprocal,
//! square root, exponential, logarithm, sine and cosine are correctly rounded or nearly so, where the hardware promises
//! about one unit in the last place; [`crate::Perturbation`] moves them by that much.

use half::f16;

use crate::bytes;
use crate::divide::divide_fixup;
use crate::fast::rows::{FLUSHED, Fast, USUAL, for_hosts};
use crate::float::{
    FloatMode, Round, approximate_double, approximate_half, approximate_single, approximate_source, double,
    double_bits, fused_double, fused_single, half_bits, half_value, rounded_double, rounded_half, rounded_single,
    scaled_double, single, single_bits,
};
use crate::saturate;
use crate::two_over_pi;
use crate::wave::{LANES, Lanes, Type};

/// A lane's result from its sources.
pub(crate) type LaneFunction = fn(u64, u64, u64, FloatMode) -> u64;
/// A whole register's results from its sources: the 32-bit functions without modifiers.
pub(crate) type RowFunction = fn(&Lanes, &Lanes, &Lanes, FloatMode) -> Lanes;

/// A function with the types of its sources and of its result.
#[derive(Clone, Copy)]
pub(crate) struct LaneOperation {
    pub run: LaneFunction,
    pub rows: RowFunction,
    /// `run` compiled for the host's vectors, for functions that are worth it.
    pub fast: Option<Fast>,
    pub sources: [Type; 3],
    pub result: Type,
    /// The old value of the destination is the third source.
    pub accumulates: bool,
}

pub(crate) fn sign24(value: u64) -> i64 {
    (((value as u32) << 8) as i32 >> 8) as i64
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

/// The median; where one is no number, the least of the others.
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

/// What is above the next lower whole number, kept below one; infinity and NaN have no such part.
fn fraction(value: f64, largest: f64) -> f64 {
    if value.is_infinite() {
        return f64::NAN;
    }
    let part = value - value.floor();
    if part > largest { largest } else { part }
}

/// Sine and cosine take turns, not radians, and not more than 256 of them.
fn turn(value: f64) -> f64 {
    if value.abs() > 256.0 { 0.0 } else { value.fract() * std::f64::consts::TAU }
}

/// The sine of this many quarters of a turn, if that is a whole number: exact, as LLVM folds it and as the documentation's
/// examples have it.
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

/// Both forms of a function, from one body.
macro_rules! functions {
    (|$a:pat_param, $b:pat_param, $c:pat_param, $m:pat_param| $body:expr) => {{
        #[inline(always)]
        fn lane($a: u64, $b: u64, $c: u64, $m: FloatMode) -> u64 {
            $body
        }
        fn rows(a: &Lanes, b: &Lanes, c: &Lanes, mode: FloatMode) -> Lanes {
            std::array::from_fn(|place| lane(a[place] as u64, b[place] as u64, c[place] as u64, mode) as u32)
        }
        (lane as LaneFunction, rows as RowFunction)
    }};
}

/// a·b + c of a whole register. A product of two singles is exact in double precision, so a sum that is rounded there and
/// then to single precision is wrong only if the first rounding ends in the middle between two singles, or if the result
/// is denormal: then every lane is computed anew.
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

pub(crate) use functions;

/// What an instruction computes, by its name without `_e32` or `_e64`; `None` for what is not a function of one lane.
#[rustfmt::skip]
pub(crate) fn operation(name: &str) -> Option<LaneOperation> {
    use Type::{Bits16 as I, Bits32 as B, Bits64 as W, Float16 as H, Float32 as F, Float64 as D, Signed64 as S};
    macro_rules! op {
        ($sources:expr, $result:expr, $($function:tt)*) => {{
            let (run, rows) = functions!($($function)*);
            Some(LaneOperation { run, rows, fast: None, sources: $sources, result: $result, accumulates: false })
        }};
    }
    // Functions of which kernels are full, of whole registers or of lanes of 64 bits. What does not name the mode computes the same
    // in all of them.
    macro_rules! compiled {
        ($form:ident, $flushed:expr, $sources:expr, $result:expr, |$a:pat_param, $b:pat_param, $c:pat_param, $m:pat_param| $body:expr) => {{
            #[inline(always)]
            fn hot_lane($a: u64, $b: u64, $c: u64, $m: FloatMode) -> u64 {
                $body
            }
            let operation = op!($sources, $result, |a, b, c, m| hot_lane(a, b, c, m));
            let functions = [for_hosts!($form, USUAL, hot_lane), for_hosts!($form, $flushed, hot_lane)];
            let fast = match functions {
                [Some(usual), Some(flushed)] => Some(Fast { functions: [usual, flushed], any_mode: $flushed == USUAL }),
                _ => None,
            };
            operation.map(|it| LaneOperation { fast, ..it })
        }};
    }
    macro_rules! hot {
        ($sources:expr, $result:expr, |$a:pat_param, $b:pat_param, $c:pat_param, _| $body:expr) => {
            compiled!(Row, USUAL, $sources, $result, |$a, $b, $c, _| $body)
        };
        ($sources:expr, $result:expr, |$a:pat_param, $b:pat_param, $c:pat_param, $m:pat_param| $body:expr) => {
            compiled!(Row, FLUSHED, $sources, $result, |$a, $b, $c, $m| $body)
        };
    }
    macro_rules! wide {
        ($sources:expr, $result:expr, |$a:pat_param, $b:pat_param, $c:pat_param, _| $body:expr) => {
            compiled!(Pairs, USUAL, $sources, $result, |$a, $b, $c, _| $body)
        };
        ($sources:expr, $result:expr, |$a:pat_param, $b:pat_param, $c:pat_param, $m:pat_param| $body:expr) => {
            compiled!(Pairs, FLUSHED, $sources, $result, |$a, $b, $c, $m| $body)
        };
    }
    let accumulate = |operation: Option<LaneOperation>| operation.map(|it| LaneOperation { accumulates: true, ..it });
    let fused = || hot!([F; 3], F, |a, b, c, m| fused_single(single(a, m), single(b, m), single(c, m), m));
    let with_rows = |operation: Option<LaneOperation>, rows| operation.map(|it| LaneOperation { rows, ..it });
    match name {
        // The documentation lets it change a float's sign.
        "v_mov_b32" => hot!([F, B, B], B, |a, _, _, _| a),
        "v_not_b32" => hot!([B; 3], B, |a, _, _, _| !a),
        "v_bfrev_b32" => hot!([B; 3], B, |a, _, _, _| (a as u32).reverse_bits() as u64),
        "v_ffbh_u32" => hot!([B; 3], B, |a, _, _, _| if a == 0 { u32::MAX as u64 } else { (a as u32).leading_zeros() as u64 }),
        "v_ffbl_b32" => hot!([B; 3], B, |a, _, _, _| if a == 0 { u32::MAX as u64 } else { (a as u32).trailing_zeros() as u64 }),
        "v_ffbh_i32" => op!([B; 3], B, |a, _, _, _| {
            let a = a as u32;
            if a == 0 || a == u32::MAX { u32::MAX as u64 } else { (a ^ (a as i32 >> 31) as u32).leading_zeros() as u64 }
        }),
        // Conversions.
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
        // Single precision.
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
        "v_fma_f32" | "v_fmamk_f32" | "v_fmaak_f32" => with_rows(fused(), fused_rows),
        "v_fmac_f32" => accumulate(with_rows(fused(), fused_rows)),
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
        // Double precision.
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
        // Half precision.
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
        // Whole numbers.
        "v_add_nc_u32" => hot!([B; 3], B, |a, b, _, _| (a as u32).wrapping_add(b as u32) as u64),
        "v_sub_nc_u32" => hot!([B; 3], B, |a, b, _, _| (a as u32).wrapping_sub(b as u32) as u64),
        "v_subrev_nc_u32" => hot!([B; 3], B, |a, b, _, _| (b as u32).wrapping_sub(a as u32) as u64),
        "v_add_nc_i32" => hot!([B; 3], B, |a, b, _, _| (a as u32).wrapping_add(b as u32) as u64),
        "v_sub_nc_i32" => hot!([B; 3], B, |a, b, _, _| (a as u32).wrapping_sub(b as u32) as u64),
        "v_add3_u32" => hot!([B; 3], B, |a, b, c, _| (a as u32).wrapping_add(b as u32).wrapping_add(c as u32) as u64),
        "v_mul_lo_u32" | "v_mul_lo_i32" => hot!([B; 3], B, |a, b, _, _| (a as u32).wrapping_mul(b as u32) as u64),
        "v_mul_hi_u32" => hot!([B; 3], B, |a, b, _, _| (a as u32 as u64 * b as u32 as u64) >> 32),
        "v_mul_hi_i32" => hot!([B; 3], B, |a, b, _, _| ((a as i32 as i64 * b as i32 as i64) >> 32) as u32 as u64),
        "v_mul_u32_u24" => hot!([B; 3], B, |a, b, _, _| ((a & 0xff_ffff) * (b & 0xff_ffff)) as u32 as u64),
        "v_mul_i32_i24" => hot!([B; 3], B, |a, b, _, _| (sign24(a) * sign24(b)) as u32 as u64),
        "v_mul_hi_u32_u24" => op!([B; 3], B, |a, b, _, _| ((a & 0xff_ffff) * (b & 0xff_ffff)) >> 32),
        "v_mul_hi_i32_i24" => op!([B; 3], B, |a, b, _, _| ((sign24(a) * sign24(b)) >> 32) as u32 as u64),
        "v_mad_u32_u16" => op!([I, I, B], B, |a, b, c, _| (a as u16 as u32 * b as u16 as u32).wrapping_add(c as u32) as u64),
        "v_mad_i32_i16" => op!([I, I, B], B, |a, b, c, _| (a as i16 as i32 * b as i16 as i32).wrapping_add(c as i32) as u32 as u64),
        "v_cvt_pk_u16_u32" => hot!([B; 3], B, |a, b, _, _| a.min(0xffff) | b.min(0xffff) << 16),
        "v_cvt_pk_i16_i32" => op!([B; 3], B, |a, b, _, _| {
            let narrow = |value: u64| (value as i32).clamp(i16::MIN as i32, i16::MAX as i32) as u16 as u64;
            narrow(a) | narrow(b) << 16
        }),
        "v_mad_u32_u24" => hot!([B; 3], B, |a, b, c, _| (((a & 0xff_ffff) * (b & 0xff_ffff)) as u32).wrapping_add(c as u32) as u64),
        "v_mad_i32_i24" => hot!([B; 3], B, |a, b, c, _| ((sign24(a) * sign24(b)) as u32).wrapping_add(c as u32) as u64),
        "v_min_u32" => hot!([B; 3], B, |a, b, _, _| a.min(b)),
        "v_max_u32" => hot!([B; 3], B, |a, b, _, _| a.max(b)),
        "v_min_i32" => hot!([B; 3], B, |a, b, _, _| (a as i32).min(b as i32) as u32 as u64),
        "v_max_i32" => hot!([B; 3], B, |a, b, _, _| (a as i32).max(b as i32) as u32 as u64),
        "v_min3_u32" => hot!([B; 3], B, |a, b, c, _| a.min(b).min(c)),
        "v_max3_u32" => hot!([B; 3], B, |a, b, c, _| a.max(b).max(c)),
        "v_min3_i32" => hot!([B; 3], B, |a, b, c, _| (a as i32).min(b as i32).min(c as i32) as u32 as u64),
        "v_max3_i32" => hot!([B; 3], B, |a, b, c, _| (a as i32).max(b as i32).max(c as i32) as u32 as u64),
        "v_med3_i32" => hot!([B; 3], B, |a, b, c, _| median(a as i32, b as i32, c as i32) as u32 as u64),
        "v_med3_u32" => hot!([B; 3], B, |a, b, c, _| median(a as u32, b as u32, c as u32) as u64),
        "v_and_b32" => hot!([B; 3], B, |a, b, _, _| a & b),
        "v_or_b32" => hot!([B; 3], B, |a, b, _, _| a | b),
        "v_xor_b32" => hot!([B; 3], B, |a, b, _, _| a ^ b),
        "v_xnor_b32" => hot!([B; 3], B, |a, b, _, _| !(a ^ b)),
        "v_or3_b32" => hot!([B; 3], B, |a, b, c, _| a | b | c),
        "v_xor3_b32" => hot!([B; 3], B, |a, b, c, _| a ^ b ^ c),
        "v_and_or_b32" => hot!([B; 3], B, |a, b, c, _| a & b | c),
        "v_xad_u32" => hot!([B; 3], B, |a, b, c, _| ((a ^ b) as u32).wrapping_add(c as u32) as u64),
        "v_lshlrev_b32" => hot!([B; 3], B, |a, b, _, _| ((b as u32) << (a & 31)) as u64),
        "v_lshrrev_b32" => hot!([B; 3], B, |a, b, _, _| ((b as u32) >> (a & 31)) as u64),
        "v_ashrrev_i32" => hot!([B; 3], B, |a, b, _, _| ((b as i32) >> (a & 31)) as u32 as u64),
        "v_lshlrev_b64" => wide!([B, W, B], W, |a, b, _, _| b << (a & 63)),
        "v_lshrrev_b64" => wide!([B, W, B], W, |a, b, _, _| b >> (a & 63)),
        "v_ashrrev_i64" => wide!([B, S, B], W, |a, b, _, _| (b as i64 >> (a & 63)) as u64),
        "v_lshl_add_u32" => hot!([B; 3], B, |a, b, c, _| ((a as u32) << (b & 31)).wrapping_add(c as u32) as u64),
        "v_add_lshl_u32" => hot!([B; 3], B, |a, b, c, _| ((a as u32).wrapping_add(b as u32) << (c & 31)) as u64),
        "v_lshl_or_b32" => hot!([B; 3], B, |a, b, c, _| ((a as u32) << (b & 31)) as u64 | c),
        "v_bfe_u32" => hot!([B; 3], B, |a, b, c, _| (a as u32 >> (b & 31)) as u64 & ((1u64 << (c & 31)) - 1)),
        "v_bfe_i32" => hot!([B; 3], B, |a, b, c, _| {
            let width = (c & 31) as u32;
            if width == 0 { return 0 }
            ((((a as i32 >> (b & 31)) as u32) << (32 - width)) as i32 >> (32 - width)) as u32 as u64
        }),
        "v_bfi_b32" => hot!([B; 3], B, |a, b, c, _| a & b | !a & c),
        "v_bfm_b32" => hot!([B; 3], B, |a, b, _, _| (((1u64 << (a & 31)) - 1) as u32).wrapping_shl(b as u32 & 31) as u64),
        "v_bcnt_u32_b32" => hot!([B; 3], B, |a, b, _, _| (b as u32).wrapping_add((a as u32).count_ones()) as u64),
        "v_alignbit_b32" => hot!([B; 3], B, |a, b, c, _| ((a << 32 | b & 0xffff_ffff) >> (c & 31)) as u32 as u64),
        "v_alignbyte_b32" => hot!([B; 3], B, |a, b, c, _| ((a << 32 | b & 0xffff_ffff) >> ((c & 3) * 8)) as u32 as u64),
        "v_perm_b32" => hot!([B; 3], B, |a, b, c, _| permute_bytes(a as u32, b as u32, c as u32) as u64),
        // Sixteen bits; the result goes to half a register, as halves do.
        "v_add_nc_u16" | "v_add_nc_i16" => op!([I, I, B], I, |a, b, _, _| (a as u16).wrapping_add(b as u16) as u64),
        "v_sub_nc_u16" | "v_sub_nc_i16" => op!([I, I, B], I, |a, b, _, _| (a as u16).wrapping_sub(b as u16) as u64),
        "v_mul_lo_u16" => op!([I, I, B], I, |a, b, _, _| (a as u16).wrapping_mul(b as u16) as u64),
        "v_mad_u16" | "v_mad_i16" => op!([I; 3], I, |a, b, c, _| (a as u16).wrapping_mul(b as u16).wrapping_add(c as u16) as u64),
        "v_lshlrev_b16" => op!([I, I, B], I, |a, b, _, _| ((b as u16) << (a & 15)) as u64),
        "v_lshrrev_b16" => op!([I, I, B], I, |a, b, _, _| ((b as u16) >> (a & 15)) as u64),
        "v_ashrrev_i16" => op!([I, I, B], I, |a, b, _, _| ((b as i16) >> (a & 15)) as u16 as u64),
        "v_max_u16" => op!([I, I, B], I, |a, b, _, _| (a as u16).max(b as u16) as u64),
        "v_min_u16" => op!([I, I, B], I, |a, b, _, _| (a as u16).min(b as u16) as u64),
        "v_max_i16" => op!([I, I, B], I, |a, b, _, _| (a as i16).max(b as i16) as u16 as u64),
        "v_min_i16" => op!([I, I, B], I, |a, b, _, _| (a as i16).min(b as i16) as u16 as u64),
        "v_min3_u16" => op!([I; 3], I, |a, b, c, _| (a as u16).min(b as u16).min(c as u16) as u64),
        "v_max3_u16" => op!([I; 3], I, |a, b, c, _| (a as u16).max(b as u16).max(c as u16) as u64),
        "v_med3_u16" => op!([I; 3], I, |a, b, c, _| median(a as u16, b as u16, c as u16) as u64),
        "v_min3_i16" => op!([I; 3], I, |a, b, c, _| (a as i16).min(b as i16).min(c as i16) as u16 as u64),
        "v_max3_i16" => op!([I; 3], I, |a, b, c, _| (a as i16).max(b as i16).max(c as i16) as u16 as u64),
        "v_med3_i16" => op!([I; 3], I, |a, b, c, _| median(a as i16, b as i16, c as i16) as u16 as u64),
        _ => bytes::operation(name),
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

/// Two roundings, and never denormals.
fn unfused(a: u64, b: u64, c: u64, mode: FloatMode) -> u64 {
    let mut flush = mode;
    (flush.single.flush_in, flush.single.flush_out) = (true, true);
    let product = f32::from_bits(multiply(single(a, flush), single(b, flush), flush) as u32);
    add(product, single(c, flush), flush)
}

/// A function of each half of a register.
#[derive(Clone, Copy)]
pub(crate) struct PackedOperation {
    pub run: LaneFunction,
    /// What each half is.
    pub half: Type,
    /// The old value of the destination is the third source.
    pub accumulates: bool,
}

/// Packed instructions as the function of one half, by name; whole numbers saturate with `clamp`.
pub(crate) fn packed_half(name: &str, clamp: bool) -> Option<PackedOperation> {
    let single_name = match name {
        "v_pk_fma_f16" => "v_fma_f16",
        "v_pk_fmac_f16" => "v_fmac_f16",
        "v_pk_add_f16" => "v_add_f16",
        "v_pk_mul_f16" => "v_mul_f16",
        "v_pk_min_f16" => "v_min_f16",
        "v_pk_max_f16" => "v_max_f16",
        "v_pk_add_u16" => "v_add_nc_u16",
        "v_pk_add_i16" => "v_add_nc_i16",
        "v_pk_sub_u16" => "v_sub_nc_u16",
        "v_pk_sub_i16" => "v_sub_nc_i16",
        "v_pk_mul_lo_u16" => "v_mul_lo_u16",
        "v_pk_mad_u16" => "v_mad_u16",
        "v_pk_mad_i16" => "v_mad_i16",
        "v_pk_lshlrev_b16" => "v_lshlrev_b16",
        "v_pk_lshrrev_b16" => "v_lshrrev_b16",
        "v_pk_ashrrev_i16" => "v_ashrrev_i16",
        "v_pk_max_u16" => "v_max_u16",
        "v_pk_min_u16" => "v_min_u16",
        "v_pk_max_i16" => "v_max_i16",
        "v_pk_min_i16" => "v_min_i16",
        _ => return None,
    };
    let operation = match single_name.ends_with("_f16") {
        false if clamp => saturate::operation(single_name)?,
        _ => operation(single_name)?,
    };
    Some(PackedOperation { run: operation.run, half: operation.sources[0], accumulates: operation.accumulates })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(bits: u32) -> FloatMode {
        FloatMode::from_bits(bits, crate::Perturbation::None)
    }

    const KEEP: u32 = 0xf0;

    fn run(name: &str, a: u64, b: u64, c: u64) -> u64 {
        (operation(name).unwrap_or_else(|| panic!("{name} is not known")).run)(a, b, c, mode(KEEP))
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
