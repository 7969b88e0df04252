//! Comparisons of whole vector registers, compiled for the host's widest vectors.

use half::f16;

use crate::float::{FLUSHED, single};
use crate::host::ByHost;
use crate::semantics::{EQUAL, GREATER, LESS, UNORDERED};
use crate::wave::LANES;

/// Compares two registers and returns the lanes with one of the outcomes. Call it as [`FastRow`](crate::host::FastRow).
pub(crate) type FastCompare<T = u32> = unsafe fn(&[T; LANES], &[T; LANES], u8) -> u32;

/// Which lanes have one of these outcomes. Values that are neither less nor equal nor greater are unordered.
#[inline(always)]
fn pick(outcomes: u8, less: u32, equal: u32, greater: u32) -> u32 {
    let mut lanes = 0;
    for (outcome, found) in [(LESS, less), (EQUAL, equal), (GREATER, greater), (UNORDERED, !(less | equal | greater))] {
        lanes |= if outcomes & outcome != 0 { found } else { 0 };
    }
    lanes
}

/// Which lanes of two registers have one of these outcomes.
#[inline(always)]
fn compare<T: Copy>(a: &[T; LANES], b: &[T; LANES], outcomes: u8, order: impl Fn(T, T) -> (bool, bool, bool)) -> u32 {
    let (mut less, mut equal, mut greater) = (0, 0, 0);
    for place in 0..LANES {
        let (is_less, is_equal, is_greater) = order(a[place], b[place]);
        less |= (is_less as u32) << place;
        equal |= (is_equal as u32) << place;
        greater |= (is_greater as u32) << place;
    }
    pick(outcomes, less, equal, greater)
}

macro_rules! comparisons {
    ($($name:ident($number:ty): $order:expr, |$left:ident, $right:ident| $masks:expr;)*) => {$(
        pub(crate) fn $name() -> Option<FastCompare<$number>> {
            #[cfg(target_arch = "x86_64")]
            {
                // Compilers do not turn loops over bits into masks.
                #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
                fn avx512(a: &[$number; LANES], b: &[$number; LANES], outcomes: u8) -> u32 {
                    use std::arch::x86_64::*;
                    const STEP: usize = 64 / size_of::<$number>();
                    let (mut less, mut equal, mut greater) = (0, 0, 0);
                    for first in (0..LANES).step_by(STEP) {
                        // SAFETY: this many lanes fill a vector, and 32 are a whole number of them.
                        let ($left, $right) = unsafe {
                            (_mm512_loadu_si512(a.as_ptr().add(first).cast()), _mm512_loadu_si512(b.as_ptr().add(first).cast()))
                        };
                        let masks = $masks;
                        less |= (masks.0 as u32) << first;
                        equal |= (masks.1 as u32) << first;
                        greater |= (masks.2 as u32) << first;
                    }
                    pick(outcomes, less, equal, greater)
                }
                #[target_feature(enable = "avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
                fn avx2(a: &[$number; LANES], b: &[$number; LANES], outcomes: u8) -> u32 {
                    compare(a, b, outcomes, $order)
                }
                ByHost { avx512: avx512 as FastCompare<$number>, avx2: avx2 as FastCompare<$number> }.chosen()
            }
            #[cfg(not(target_arch = "x86_64"))]
            None
        }
    )*};
}

comparisons! {
    unsigned(u32): |a: u32, b: u32| (a < b, a == b, a > b), |left, right| (
        _mm512_cmplt_epu32_mask(left, right),
        _mm512_cmpeq_epi32_mask(left, right),
        _mm512_cmpgt_epu32_mask(left, right),
    );
    signed(u32): |a: u32, b: u32| ((a as i32) < b as i32, a == b, a as i32 > b as i32), |left, right| (
        _mm512_cmplt_epi32_mask(left, right),
        _mm512_cmpeq_epi32_mask(left, right),
        _mm512_cmpgt_epi32_mask(left, right),
    );
    float(u32): |a: u32, b: u32| {
        let (a, b) = (f32::from_bits(a), f32::from_bits(b));
        (a < b, a == b, a > b)
    }, |left, right| {
        let (left, right) = (_mm512_castsi512_ps(left), _mm512_castsi512_ps(right));
        (
            _mm512_cmp_ps_mask::<_CMP_LT_OQ>(left, right),
            _mm512_cmp_ps_mask::<_CMP_EQ_OQ>(left, right),
            _mm512_cmp_ps_mask::<_CMP_GT_OQ>(left, right),
        )
    };
    float_flushed(u32): |a: u32, b: u32| {
        let (a, b) = (single(a as u64, FLUSHED), single(b as u64, FLUSHED));
        (a < b, a == b, a > b)
    }, |left, right| {
        let (exponent, sign) = (_mm512_set1_epi32(0x7f80_0000), _mm512_set1_epi32(i32::MIN));
        let left = _mm512_mask_and_epi32(left, _mm512_testn_epi32_mask(left, exponent), left, sign);
        let right = _mm512_mask_and_epi32(right, _mm512_testn_epi32_mask(right, exponent), right, sign);
        let (left, right) = (_mm512_castsi512_ps(left), _mm512_castsi512_ps(right));
        (
            _mm512_cmp_ps_mask::<_CMP_LT_OQ>(left, right),
            _mm512_cmp_ps_mask::<_CMP_EQ_OQ>(left, right),
            _mm512_cmp_ps_mask::<_CMP_GT_OQ>(left, right),
        )
    };
    half_float(u32): |a: u32, b: u32| {
        let (a, b) = (f16::from_bits(a as u16).to_f32(), f16::from_bits(b as u16).to_f32());
        (a < b, a == b, a > b)
    }, |left, right| {
        let left = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(left));
        let right = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(right));
        (
            _mm512_cmp_ps_mask::<_CMP_LT_OQ>(left, right),
            _mm512_cmp_ps_mask::<_CMP_EQ_OQ>(left, right),
            _mm512_cmp_ps_mask::<_CMP_GT_OQ>(left, right),
        )
    };
    unsigned_half(u32): |a: u32, b: u32| ((a as u16) < b as u16, a as u16 == b as u16, a as u16 > b as u16), |left, right| {
        let (left, right) = (_mm512_slli_epi32::<16>(left), _mm512_slli_epi32::<16>(right));
        (
            _mm512_cmplt_epu32_mask(left, right),
            _mm512_cmpeq_epi32_mask(left, right),
            _mm512_cmpgt_epu32_mask(left, right),
        )
    };
    signed_half(u32): |a: u32, b: u32| ((a as i16) < b as i16, a as i16 == b as i16, a as i16 > b as i16), |left, right| {
        let (left, right) = (_mm512_slli_epi32::<16>(left), _mm512_slli_epi32::<16>(right));
        (
            _mm512_cmplt_epi32_mask(left, right),
            _mm512_cmpeq_epi32_mask(left, right),
            _mm512_cmpgt_epi32_mask(left, right),
        )
    };
    unsigned_pairs(u64): |a: u64, b: u64| (a < b, a == b, a > b), |left, right| (
        _mm512_cmplt_epu64_mask(left, right),
        _mm512_cmpeq_epi64_mask(left, right),
        _mm512_cmpgt_epu64_mask(left, right),
    );
    signed_pairs(u64): |a: u64, b: u64| ((a as i64) < b as i64, a == b, a as i64 > b as i64), |left, right| (
        _mm512_cmplt_epi64_mask(left, right),
        _mm512_cmpeq_epi64_mask(left, right),
        _mm512_cmpgt_epi64_mask(left, right),
    );
    double(u64): |a: u64, b: u64| {
        let (a, b) = (f64::from_bits(a), f64::from_bits(b));
        (a < b, a == b, a > b)
    }, |left, right| {
        let (left, right) = (_mm512_castsi512_pd(left), _mm512_castsi512_pd(right));
        (
            _mm512_cmp_pd_mask::<_CMP_LT_OQ>(left, right),
            _mm512_cmp_pd_mask::<_CMP_EQ_OQ>(left, right),
            _mm512_cmp_pd_mask::<_CMP_GT_OQ>(left, right),
        )
    };
}
