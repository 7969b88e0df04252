//! The steps of a division that are separate instructions: scaling before and after, and special values.

use crate::float::{FloatMode, double, fused_scaled_double, gathered_sum, rounded_single, single};

/// What the division steps need from a type: its biased exponent, scaling, and the documentation's limits.
pub(crate) trait Divisible: Copy + PartialEq + std::ops::Neg<Output = Self> {
    const ZERO: Self;
    const ONE: Self;
    const INFINITY: Self;
    const NAN: Self;
    /// At this distance of the exponents, the quotient of numerator and denominator may overflow.
    const FAR: i32;
    /// The power of two for scaling in that case.
    const SCALE: i32;
    /// Numerators with so small an exponent lose bits.
    const SMALL: i32;
    /// Quotients with a smaller exponent are zero.
    const VANISHES: i32;
    /// The exponent of one, with bias.
    const BIAS: i32;
    fn is_nan(self) -> bool;
    fn is_infinite(self) -> bool;
    fn is_sign_negative(self) -> bool;
    fn copysign(self, sign: Self) -> Self;
    fn exponent(self) -> i32;
    fn scaled(self, power: i32) -> Self;
    /// Whether 1/self, or self/other, is denormal.
    fn has_denormal_quotient(self, denominator: Self) -> bool;
}

macro_rules! divisible {
    ($type:ident: $($items:tt)*) => {
        impl Divisible for $type {
            const ZERO: $type = 0.0;
            const ONE: $type = 1.0;
            const INFINITY: $type = $type::INFINITY;
            const NAN: $type = $type::NAN;

            fn is_nan(self) -> bool {
                self.is_nan()
            }

            fn is_infinite(self) -> bool {
                self.is_infinite()
            }

            fn is_sign_negative(self) -> bool {
                self.is_sign_negative()
            }

            fn copysign(self, sign: $type) -> $type {
                self.copysign(sign)
            }

            $($items)*
        }
    };
}

divisible! { f32:
    const FAR: i32 = 96;
    const SCALE: i32 = 64;
    const SMALL: i32 = 23;
    const VANISHES: i32 = -150;
    const BIAS: i32 = 127;

    fn exponent(self) -> i32 {
        (self.to_bits() >> 23 & 255) as i32
    }

    fn scaled(self, power: i32) -> f32 {
        (self as f64 * 2f64.powi(power)) as f32
    }

    fn has_denormal_quotient(self, denominator: f32) -> bool {
        let quotient = self as f64 / denominator as f64;
        quotient != 0.0 && quotient.abs() < f32::MIN_POSITIVE as f64
    }
}

divisible! { f64:
    const FAR: i32 = 768;
    const SCALE: i32 = 128;
    const SMALL: i32 = 53;
    const VANISHES: i32 = -1075;
    const BIAS: i32 = 1023;

    fn exponent(self) -> i32 {
        (self.to_bits() >> 52 & 2047) as i32
    }

    fn scaled(self, power: i32) -> f64 {
        self * 2f64.powi(power)
    }

    fn has_denormal_quotient(self, denominator: f64) -> bool {
        let quotient = self / denominator;
        quotient.is_subnormal() || quotient == 0.0 && self != 0.0 && denominator.is_finite()
    }
}

/// The last step of a division: special values, and the sign.
pub(crate) fn divide_fixup<T: Divisible>(quotient: T, denominator: T, numerator: T) -> T {
    let negative = denominator.is_sign_negative() != numerator.is_sign_negative();
    let sign = if negative { -T::ONE } else { T::ONE };
    if numerator.is_nan() {
        numerator
    } else if denominator.is_nan() {
        denominator
    } else if denominator == T::ZERO && numerator == T::ZERO || denominator.is_infinite() && numerator.is_infinite() {
        -T::NAN
    } else if denominator == T::ZERO || numerator.is_infinite() {
        T::INFINITY.copysign(sign)
    } else if denominator.is_infinite()
        || numerator == T::ZERO
        || numerator.exponent() - denominator.exponent() < T::VANISHES
    {
        T::ZERO.copysign(sign)
    } else if quotient.is_nan() {
        // The steps before subtracted infinities: the quotient of two numbers overflowed.
        T::INFINITY.copysign(sign)
    } else {
        quotient.copysign(sign)
    }
}

/// The first step of a division: scales the source so that later steps neither overflow nor lose bits. Also returns
/// whether to scale the result back.
pub(crate) fn divide_scale<T: Divisible>(value: T, denominator: T, numerator: T) -> (T, bool) {
    let reciprocal_tiny = T::ONE.has_denormal_quotient(denominator);
    let quotient_tiny = numerator.has_denormal_quotient(denominator);
    let (is_denominator, is_numerator) = (value == denominator, value == numerator);
    let up_if = |condition: bool| if condition { value.scaled(T::SCALE) } else { value };
    if numerator == T::ZERO || denominator == T::ZERO {
        (T::NAN, false)
    } else if numerator.exponent() - denominator.exponent() >= T::FAR {
        (up_if(is_denominator), true)
    } else if denominator.exponent() == 0 {
        (up_if(true), false)
    } else if reciprocal_tiny && quotient_tiny {
        // The documentation scales the denominator up here, where it is so large that it would overflow. Scaled down,
        // the quotient is right, as the hardware's quotients are.
        (if is_denominator { value.scaled(-T::SCALE) } else { value }, true)
    } else if reciprocal_tiny {
        (value.scaled(-T::SCALE), false)
    } else if quotient_tiny {
        (up_if(is_numerator), true)
    } else if numerator.exponent() <= T::SMALL {
        (up_if(true), false)
    } else {
        (value, false)
    }
}

/// The power of two by which the last step of a division scales back, if the first step requests it.
fn power_back<T: Divisible>(sum: T, scaled: bool) -> i32 {
    match scaled {
        false => 0,
        true if sum.exponent() > T::BIAS => T::SCALE,
        true => -T::SCALE,
    }
}

/// The last multiply-add of a division, scaled back, with a single rounding.
pub(crate) fn divide_multiply_add_single(sources: [u64; 3], scaled: bool, mode: FloatMode) -> u64 {
    let [a, b, c] = sources.map(|bits| single(bits, mode));
    let factor = 2f64.powi(power_back(c, scaled));
    // Exact in double precision, because both factors are singles.
    let terms = [a as f64 * b as f64 * factor, c as f64 * factor];
    rounded_single(gathered_sum(terms) as f32, terms, mode)
}

/// Multiplies, adds and scales for a division in double precision.
pub(crate) fn divide_multiply_add_double(sources: [u64; 3], scaled: bool, mode: FloatMode) -> u64 {
    let [a, b, c] = sources.map(|bits| double(bits, mode));
    fused_scaled_double([a, b, c], power_back(c, scaled), mode)
}
