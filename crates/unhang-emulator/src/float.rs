//! Floating-point numbers according to the mode register: rounding, denormals, and approximate results.
//!
//! Results are exact to the bit. A result is rounded once to nearest even. If the mode rounds differently, it moves to
//! the neighbour, according to the sign of the exact error.

use half::f16;

use crate::settings::Perturbation;

/// The rounding mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Round {
    NearestEven,
    Up,
    Down,
    TowardZero,
}

/// Rounding and denormals of one width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Precision {
    pub round: Round,
    /// Denormal sources count as zero.
    pub flush_in: bool,
    /// Denormal results become zero.
    pub flush_out: bool,
}

/// How a wave treats floats: the low bits of its mode register, and the outcome of approximate instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FloatMode {
    pub single: Precision,
    /// The mode of half and double precision.
    pub other: Precision,
    /// Clamping turns NaN into zero.
    pub clamp_nan: bool,
    pub perturbation: Perturbation,
}

impl FloatMode {
    /// Reads the mode register: bits 0 to 3 rounding, 4 to 7 denormals (each single, then half and double), 8 clamping.
    pub(crate) fn from_bits(bits: u32, perturbation: Perturbation) -> FloatMode {
        let precision = |round: u32, denormals: u32| Precision {
            round: [Round::NearestEven, Round::Up, Round::Down, Round::TowardZero][(bits >> round & 3) as usize],
            flush_in: bits >> denormals & 1 == 0,
            flush_out: bits >> denormals & 2 == 0,
        };
        let (single, other) = (precision(0, 4), precision(2, 6));
        FloatMode { single, other, clamp_nan: bits >> 8 & 1 == 1, perturbation }
    }
}

/// The sign of an exact sum: a growing list of parts that do not overlap keeps every bit.
fn sign_of_sum(terms: &[f64]) -> f64 {
    let mut parts: Vec<f64> = Vec::with_capacity(terms.len());
    for &term in terms {
        let mut carried = term;
        for part in &mut parts {
            let sum = carried + *part;
            let back = sum - carried;
            let error = (carried - (sum - back)) + (*part - back);
            (*part, carried) = (error, sum);
        }
        parts.push(carried);
    }
    parts.iter().rev().copied().find(|&part| part != 0.0).unwrap_or(0.0)
}

/// Which neighbour of a rounded number is correct: -1 towards minus infinity, +1 the other way, 0 itself. `error` has
/// the sign of the exact value minus the rounded one.
fn step(round: Round, rounded_negative: bool, error: f64) -> i32 {
    match round {
        Round::Up if error > 0.0 => 1,
        Round::Down if error < 0.0 => -1,
        // Nearer to zero: a positive number that is too large, or a negative one that is too small.
        Round::TowardZero if !rounded_negative && error < 0.0 => -1,
        Round::TowardZero if rounded_negative && error > 0.0 => 1,
        _ => 0,
    }
}

/// The sign of (exact sum of terms) - rounded; an infinite `rounded` is beyond every finite sum.
fn error_of(terms: &[f64], rounded: f64) -> f64 {
    if rounded.is_infinite() {
        return -rounded;
    }
    let mut all = terms.to_vec();
    all.push(-rounded);
    sign_of_sum(&all)
}

/// A sum that is exactly zero is negative when rounding down, unless all terms were +0.
fn signed_zero(round: Round, terms: &[f64], nearest_negative: bool) -> bool {
    let all_zero = terms.iter().all(|&term| term == 0.0);
    if round == Round::Down && !all_zero {
        return true;
    }
    if round == Round::Down { terms.iter().any(|term| term.is_sign_negative()) } else { nearest_negative }
}

#[inline(always)]
pub(crate) fn flush_single(value: f32, flush: bool) -> f32 {
    if flush && value.is_subnormal() { 0f32.copysign(value) } else { value }
}

#[inline(always)]
pub(crate) fn single(bits: u64, mode: FloatMode) -> f32 {
    flush_single(f32::from_bits(bits as u32), mode.single.flush_in)
}

/// A result that is exact, or already rounded to nearest even as the mode says.
#[inline(always)]
pub(crate) fn single_bits(value: f32, mode: FloatMode) -> u64 {
    flush_single(value, mode.single.flush_out).to_bits() as u64
}

/// Turns a result that was rounded to nearest even from the exact sum of `terms` into the mode's rounding.
#[inline(always)]
pub(crate) fn rounded_single(value: f32, terms: [f64; 2], mode: FloatMode) -> u64 {
    if mode.single.round == Round::NearestEven {
        return single_bits(value, mode);
    }
    directed_single(value, terms, mode)
}

#[cold]
fn directed_single(value: f32, terms: [f64; 2], mode: FloatMode) -> u64 {
    let round = mode.single.round;
    if terms.iter().any(|term| !term.is_finite()) || value.is_nan() {
        return single_bits(value, mode);
    }
    let error = error_of(&terms, value as f64);
    let moved = match step(round, value.is_sign_negative(), error) {
        1 => value.next_up(),
        -1 => value.next_down(),
        _ if value == 0.0 && error == 0.0 => {
            if signed_zero(round, &terms, value.is_sign_negative()) {
                -0.0
            } else {
                0.0
            }
        }
        _ => value,
    };
    single_bits(moved, mode)
}

/// a·b + c with one rounding.
#[inline(always)]
pub(crate) fn fused_single(a: f32, b: f32, c: f32, mode: FloatMode) -> u64 {
    if mode.single.round == Round::NearestEven {
        return single_bits(a.mul_add(b, c), mode);
    }
    directed_single(a.mul_add(b, c), [a as f64 * b as f64, c as f64], mode)
}

#[inline(always)]
pub(crate) fn half_value(bits: u64, mode: FloatMode) -> f64 {
    let value = f16::from_bits(bits as u16);
    let flushed = mode.other.flush_in && value.classify() == std::num::FpCategory::Subnormal;
    if flushed { 0f64.copysign(value.to_f64()) } else { value.to_f64() }
}

/// Converts to half precision with one rounding to nearest even: first to single precision with the lost bits collected
/// in the last one, then further.
pub(crate) fn nearest_half(value: f64) -> f16 {
    let near = value as f32;
    if near as f64 == value || near.is_nan() || near.is_infinite() && value.is_infinite() {
        return f16::from_f32(near);
    }
    let mut bits = near.to_bits();
    if (near as f64).abs() > value.abs() {
        bits -= 1;
    }
    f16::from_f32(f32::from_bits(bits | 1))
}

fn flush_half(value: f16, mode: FloatMode) -> u64 {
    let flushed = mode.other.flush_out && value.classify() == std::num::FpCategory::Subnormal;
    (if flushed { value.to_bits() & 0x8000 } else { value.to_bits() }) as u64
}

/// The bits of the next half towards zero from a single; never infinite if the single is not.
pub(crate) fn toward_zero_half(value: f32) -> u32 {
    let near = f16::from_f32(value);
    let bits = near.to_bits();
    let too_far = near.to_f32().abs() > value.abs();
    (if too_far { bits - 1 } else { bits }) as u32
}

/// The sum of both terms in half precision, rounded once in the mode's direction.
pub(crate) fn rounded_half(terms: [f64; 2], mode: FloatMode) -> u64 {
    let nearest = nearest_half(gathered_sum(terms));
    let round = mode.other.round;
    if round == Round::NearestEven || nearest.is_nan() || terms.iter().any(|term| !term.is_finite()) {
        return flush_half(nearest, mode);
    }
    let error = error_of(&terms, nearest.to_f64());
    let bits = nearest.to_bits();
    let moved = match step(round, nearest.is_sign_negative(), error) {
        0 if nearest == f16::ZERO && error == 0.0 => {
            if signed_zero(round, &terms, nearest.is_sign_negative()) {
                0x8000
            } else {
                0
            }
        }
        0 => bits,
        up => match (bits, up) {
            (0x8000, 1) | (0, 1) => 1,
            (0, -1) | (0x8000, -1) => 0x8001,
            // Away from zero is one more, for either sign.
            _ => bits.wrapping_add_signed(if (up == 1) != nearest.is_sign_negative() { 1 } else { -1 }),
        },
    };
    flush_half(f16::from_bits(moved), mode)
}

/// A value that is exact, or accurate to double precision, in half precision.
pub(crate) fn half_bits(value: f64, mode: FloatMode) -> u64 {
    rounded_half([value, 0f64.copysign(value)], mode)
}

/// A sum in double precision, with the lost bits collected in the last bit.
pub(crate) fn gathered_sum([a, b]: [f64; 2]) -> f64 {
    let sum = a + b;
    if !sum.is_finite() {
        return sum;
    }
    let back = sum - a;
    let error = (a - (sum - back)) + (b - back);
    if error == 0.0 || sum.to_bits() & 1 == 1 {
        return sum;
    }
    let away = (error > 0.0) == (sum > 0.0);
    f64::from_bits(if away { sum.to_bits() + 1 } else { sum.to_bits() - 1 } | 1)
}

#[inline(always)]
fn flush_double(value: f64, flush: bool) -> f64 {
    if flush && value.is_subnormal() { 0f64.copysign(value) } else { value }
}

#[inline(always)]
pub(crate) fn double(bits: u64, mode: FloatMode) -> f64 {
    flush_double(f64::from_bits(bits), mode.other.flush_in)
}

#[inline(always)]
pub(crate) fn double_bits(value: f64, mode: FloatMode) -> u64 {
    flush_double(value, mode.other.flush_out).to_bits()
}

/// Turns a result that was rounded to nearest even from the exact sum of `terms` into the mode's rounding.
#[inline(always)]
pub(crate) fn rounded_double(value: f64, terms: &[f64], mode: FloatMode) -> u64 {
    if mode.other.round == Round::NearestEven { double_bits(value, mode) } else { directed_double(value, terms, mode) }
}

fn directed_double(value: f64, terms: &[f64], mode: FloatMode) -> u64 {
    let round = mode.other.round;
    if value.is_nan() || terms.iter().any(|term| !term.is_finite()) {
        return double_bits(value, mode);
    }
    let error = error_of(terms, value);
    let moved = match step(round, value.is_sign_negative(), error) {
        1 => value.next_up(),
        -1 => value.next_down(),
        _ if value == 0.0 && error == 0.0 => {
            if signed_zero(round, terms, value.is_sign_negative()) {
                -0.0
            } else {
                0.0
            }
        }
        _ => value,
    };
    double_bits(moved, mode)
}

/// a·b + c with one rounding.
#[inline(always)]
pub(crate) fn fused_double(a: f64, b: f64, c: f64, mode: FloatMode) -> u64 {
    let product = a * b;
    rounded_double(a.mul_add(b, c), &[product, a.mul_add(b, -product), c], mode)
}

/// (a·b + c) · 2^power with one rounding.
pub(crate) fn fused_scaled_double([a, b, c]: [f64; 3], power: i32, mode: FloatMode) -> u64 {
    let scaled = f64::from_bits(fused_double(a, b, c, mode)) * 2f64.powi(power);
    if power >= 0 || scaled.abs() >= f64::MIN_POSITIVE || !scaled.is_finite() {
        return double_bits(scaled, mode);
    }
    // A denormal result was rounded twice, so it is compared with the exact one at the larger scale.
    let product = a * b;
    let back = 2f64.powi(-power);
    let last_place = f64::from_bits(1) * back;
    let beyond = |candidate: f64, part: f64| {
        sign_of_sum(&[product, a.mul_add(b, -product), c, -candidate * back, -part * last_place])
    };
    let is_nearest = |&candidate: &f64| {
        let is_even = candidate.to_bits() & 1 == 0;
        let (up, down) = (beyond(candidate, 0.5), beyond(candidate, -0.5));
        up < 0.0 && down > 0.0 || is_even && up <= 0.0 && down >= 0.0
    };
    let candidates = [scaled, scaled.next_up(), scaled.next_down()];
    let nearest = candidates.into_iter().find(is_nearest).unwrap_or(scaled);
    let moved = match step(mode.other.round, nearest.is_sign_negative(), beyond(nearest, 0.0)) {
        1 => nearest.next_up(),
        -1 => nearest.next_down(),
        _ => nearest,
    };
    double_bits(moved, mode)
}

/// value · 2^power with one rounding.
pub(crate) fn scaled_double(value: f64, power: i32, mode: FloatMode) -> u64 {
    if value == 0.0 || !value.is_finite() {
        return double_bits(value, mode);
    }
    // The value is mantissa · 2^exponent; the last place of denormals is 2^-1074.
    let (fraction, biased) = (value.to_bits() & ((1 << 52) - 1), (value.to_bits() >> 52 & 0x7ff) as i32);
    let mantissa = if biased == 0 { fraction } else { fraction | 1 << 52 };
    let exponent = (biased.max(1) - 1075).saturating_add(power).min(2000);
    if exponent >= -1074 {
        let scaled = mantissa as f64 * 2f64.powi(exponent / 2) * 2f64.powi(exponent - exponent / 2);
        let terms = if scaled.is_infinite() { [f64::MAX.copysign(value); 2] } else { [scaled.copysign(value), 0.0] };
        return rounded_double(scaled.copysign(value), &terms, mode);
    }
    let shift = (-1074i32).saturating_sub(exponent).min(63) as u32;
    let (kept, lost, half) = (mantissa >> shift, mantissa & ((1 << shift) - 1), 1 << (shift - 1));
    let away = match mode.other.round {
        Round::NearestEven => lost > half || lost == half && kept & 1 == 1,
        Round::Up => lost > 0 && value > 0.0,
        Round::Down => lost > 0 && value < 0.0,
        Round::TowardZero => false,
    };
    double_bits(f64::from_bits(kept + away as u64).copysign(value), mode)
}

/// Moves a finite nonzero number by this many units in the last place, away from zero or towards it.
#[inline(always)]
fn perturbed(bits: u64, exponent_mask: u64, perturbation: Perturbation, [up, down]: [u64; 2]) -> u64 {
    let special = bits & exponent_mask == 0 || bits & exponent_mask == exponent_mask;
    match perturbation {
        _ if special => bits,
        Perturbation::None => bits,
        Perturbation::Up => bits + up,
        Perturbation::Down => bits - down,
    }
}

/// How far a rounded number may move each way and still be within one unit of the exact one: not at all in the
/// direction in which it was rounded. Exact powers of two do not move. The documentation's examples are such (the
/// reciprocal of -2 is -0.5, the root of 4 is 2). LLVM's integer division relies on reciprocals of powers of two.
fn leeway(rounded: f64, exact: f64) -> [u64; 2] {
    if rounded == exact && rounded.to_bits() & ((1 << 52) - 1) == 0 {
        return [0; 2];
    }
    // A single does not move down to a power of two either. If the reciprocal of 2 - 2^-23 were 0.5 and not one unit
    // more, the steps of LLVM's division would lead nowhere: each would end in the middle between two singles.
    let above_power = rounded.to_bits() & ((1 << 52) - 1) == 1 << 29;
    [(rounded.abs() <= exact.abs()) as u64, (rounded.abs() >= exact.abs() && !above_power) as u64]
}

/// An approximate result in single precision. These instructions never keep denormals.
#[inline(always)]
pub(crate) fn approximate_single(value: f64, mode: FloatMode) -> u64 {
    let bits = flush_single(value as f32, true).to_bits() as u64;
    perturbed(bits, 0x7f80_0000, mode.perturbation, leeway(value as f32 as f64, value))
}

/// The source of such an instruction.
#[inline(always)]
pub(crate) fn approximate_source(bits: u64) -> f64 {
    flush_single(f32::from_bits(bits as u32), true) as f64
}

/// An approximate result in half precision.
pub(crate) fn approximate_half(value: f64, mode: FloatMode) -> u64 {
    let nearest = nearest_half(value);
    perturbed(flush_half(nearest, mode), 0x7c00, mode.perturbation, leeway(nearest.to_f64(), value))
}

/// An approximate result in double precision. The card promises only half of the digits.
#[inline(always)]
pub(crate) fn approximate_double(value: f64, mode: FloatMode) -> u64 {
    perturbed(double_bits(value, mode), 0x7ff0_0000_0000_0000, mode.perturbation, [1 << 29; 2])
}

const USUAL_PRECISION: Precision = Precision { round: Round::NearestEven, flush_in: false, flush_out: false };
/// To nearest even, denormals kept: the mode that compilers set up.
pub(crate) const USUAL: FloatMode =
    FloatMode { single: USUAL_PRECISION, other: USUAL_PRECISION, clamp_nan: true, perturbation: Perturbation::None };

/// The usual mode with single-precision denormals flushed, as in OpenCL unless precision is requested.
pub(crate) const FLUSHED: FloatMode =
    FloatMode { single: Precision { flush_in: true, flush_out: true, ..USUAL_PRECISION }, ..USUAL };

impl FloatMode {
    /// Whether functions for the usual mode, or for the one that flushes, compute what this mode requires. They do not
    /// clamp.
    pub(crate) fn is_usual(self, flushes: bool) -> bool {
        FloatMode { clamp_nan: USUAL.clamp_nan, ..self } == if flushes { FLUSHED } else { USUAL }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(round: u32) -> FloatMode {
        FloatMode::from_bits(round | round << 2 | 0xf0, Perturbation::None)
    }

    #[test]
    fn the_mode_register_is_read_by_its_fields() {
        let read = FloatMode::from_bits(0b1_01_10_11_01, Perturbation::None);
        let single = Precision { round: Round::Up, flush_in: true, flush_out: false };
        let other = Precision { round: Round::TowardZero, flush_in: false, flush_out: true };
        assert_eq!(read, FloatMode { single, other, clamp_nan: true, perturbation: Perturbation::None });
    }

    #[test]
    fn each_rounding_goes_its_way() {
        let third = 1.0f64 / 3.0;
        // Nearest, up, down, toward zero, for 1/3 and -1/3 in half precision (0x3555 is below 1/3).
        for (round, positive, negative) in
            [(0, 0x3555, 0xb555), (1, 0x3556, 0xb555), (2, 0x3555, 0xb556), (3, 0x3555, 0xb555)]
        {
            assert_eq!(half_bits(third, mode(round)), positive, "{round}");
            assert_eq!(half_bits(-third, mode(round)), negative, "{round}");
        }
        let tiny = 2f32.powi(-60);
        let sum =
            |round, a: f32, b: f32| f32::from_bits(rounded_single(a + b, [a as f64, b as f64], mode(round)) as u32);
        assert_eq!([0, 1, 2, 3].map(|round| sum(round, 1.0, tiny)), [1.0, 1f32.next_up(), 1.0, 1.0]);
        assert_eq!([0, 1, 2, 3].map(|round| sum(round, 1.0, -tiny)), [1.0, 1.0, 1f32.next_down(), 1f32.next_down()]);
        let largest = f32::MAX;
        assert_eq!(
            [0, 1, 2, 3].map(|round| sum(round, largest, largest)),
            [f32::INFINITY, f32::INFINITY, largest, largest]
        );
        assert_eq!([0, 1, 2, 3].map(|round| sum(round, 1.0, -1.0).to_bits()), [0, 0, 0x8000_0000, 0]);
        let product = |round| f64::from_bits(fused_double(1.0 + f64::EPSILON, 1.0 + f64::EPSILON, 0.0, mode(round)));
        let near = (1.0 + f64::EPSILON) * (1.0 + f64::EPSILON);
        assert_eq!([0, 1, 2, 3].map(product), [near, near.next_up(), near, near]);
    }

    /// Directed roundings bracket the nearest one, and agree if it is exact.
    #[test]
    fn directed_roundings_bracket_the_exact_value() {
        let mut state = 1u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            f32::from_bits((state >> 9) | (120 + (state >> 3) % 16) << 23 | (state & 1) << 31)
        };
        for _ in 0..20_000 {
            let (a, b, c) = (next(), next(), next());
            let run = |round| f32::from_bits(fused_single(a, b, c, mode(round)) as u32);
            let [nearest, up, down, zero] = [0, 1, 2, 3].map(run);
            assert!(down <= nearest && nearest <= up, "{a} {b} {c}");
            assert!(up == down || up == down.next_up(), "{a} {b} {c}");
            assert_eq!(zero, if nearest > 0.0 { down } else { up }, "{a} {b} {c}");
        }
    }

    /// The steps of LLVM's division of singles, from a reciprocal that is off by as much as the card's promise allows.
    #[test]
    fn division_is_right_from_every_reciprocal_that_is_promised() {
        for perturbation in [Perturbation::None, Perturbation::Up, Perturbation::Down] {
            let mode = FloatMode { perturbation, ..mode(0) };
            // Mantissas of all ones and their neighbours, mantissas near one, and others.
            for bits in [0x3fff_ffff, 0x3fff_fffe, 0x3fff_fffd, 0x3f80_0000, 0x3f80_0001, 0x3fc0_0000, 0x3faa_aaab] {
                let d = f32::from_bits(bits);
                for n in (0..1000).map(|step| f32::from_bits(0x3f80_0000 + step * 8377)) {
                    let r = f32::from_bits(approximate_single(1.0 / d as f64, mode) as u32);
                    let r = (-d).mul_add(r, 1.0).mul_add(r, r);
                    let mut q = n * r;
                    for _ in 0..2 {
                        q = (-d).mul_add(q, n).mul_add(r, q);
                    }
                    assert_eq!(q, n / d, "{n} / {d} with {perturbation:?}");
                }
            }
        }
    }
}
