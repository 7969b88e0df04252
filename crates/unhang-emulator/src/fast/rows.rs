//! Functions of whole vector registers, compiled for the host's widest vectors.
//!
//! Each is made from the same body as the plain one, for the two modes that nearly all code runs in; mode and host's instructions
//! are chosen when code is decoded. On other hosts, and in other modes, the plain path computes.

use std::cell::Cell;
use std::sync::OnceLock;

use half::f16;

use super::pairs::{FastPairs, Pairs};
use crate::Perturbation;
use crate::float::{FloatMode, Precision, Round, single};
use crate::semantics::{EQUAL, GREATER, LESS, UNORDERED};
use crate::wave::{LANES, Lanes};

/// Writes a register in the lanes that are on, from up to three others; any of them may be the same one.
///
/// It may be called only on a host that has the instructions for which it was compiled.
pub(crate) type FastRow = unsafe fn(&Cell<Lanes>, &Cell<Lanes>, &Cell<Lanes>, &Cell<Lanes>, u32);
/// Compares two registers: the lanes for which one of the outcomes holds. To be called as [`FastRow`] is.
pub(crate) type FastCompare<T = u32> = unsafe fn(&[T; LANES], &[T; LANES], u8) -> u32;

/// A function of one lane, compiled for the host's vectors.
#[derive(Clone, Copy)]
pub(crate) struct Fast {
    /// For the usual mode, and for the one that flushes denormals of singles.
    pub functions: [FastFunction; 2],
    /// Whether it computes the same in every float mode.
    pub any_mode: bool,
}

#[derive(Clone, Copy)]
pub(crate) enum FastFunction {
    Row(ByHost<FastRow>),
    Pairs(ByHost<FastPairs>),
}

impl Fast {
    /// The function for this host and one of the two modes, if it is one of whole registers.
    pub fn row(self, flushes: bool) -> Option<FastRow> {
        match self.functions[flushes as usize] {
            FastFunction::Row(function) => function.chosen(),
            FastFunction::Pairs(_) => None,
        }
    }

    /// The function for this host and one of the two modes, if it is one of lanes of 64 bits.
    pub fn pairs(self, flushes: bool) -> Option<FastPairs> {
        match self.functions[flushes as usize] {
            FastFunction::Pairs(function) => function.chosen(),
            FastFunction::Row(_) => None,
        }
    }
}

/// A function for each set of host instructions.
#[derive(Clone, Copy)]
pub(crate) struct ByHost<F> {
    pub avx512: F,
    pub avx2: F,
}

/// What the host has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Host {
    Avx512,
    Avx2,
    Plain,
}

impl Host {
    /// What this host has, found once.
    pub fn get() -> Host {
        static HOST: OnceLock<Host> = OnceLock::new();
        *HOST.get_or_init(|| {
            #[cfg(target_arch = "x86_64")]
            {
                use std::arch::is_x86_feature_detected as has;
                if has!("avx2") && has!("fma") && has!("bmi1") && has!("bmi2") && has!("lzcnt") && has!("popcnt") {
                    let wide = has!("avx512f") && has!("avx512bw") && has!("avx512dq") && has!("avx512vl");
                    return if wide { Host::Avx512 } else { Host::Avx2 };
                }
            }
            Host::Plain
        })
    }
}

/// Which vectors of the host may be used. Of AVX-512 it is the proof that the host has it, which functions ask for that would
/// otherwise have to trust their callers.
#[derive(Clone, Copy)]
pub(crate) struct Vectors<const AVX512: bool>(());

impl<const AVX512: bool> Vectors<AVX512> {
    #[inline(always)]
    pub const fn has_avx512(self) -> bool {
        AVX512
    }
}

impl Vectors<false> {
    /// What every host can run.
    pub const PORTABLE: Vectors<false> = Vectors(());
}

#[cfg(target_arch = "x86_64")]
impl Vectors<true> {
    /// The proof. Functions that are compiled for AVX-512 may ask for it, others have to vouch for the host.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
    pub fn avx512() -> Vectors<true> {
        Vectors(())
    }
}

impl<F: Copy> ByHost<F> {
    /// The function for this host; `None` where the plain path has to do.
    pub fn chosen(self) -> Option<F> {
        match Host::get() {
            Host::Avx512 => Some(self.avx512),
            Host::Avx2 => Some(self.avx2),
            Host::Plain => None,
        }
    }
}

const USUAL_PRECISION: Precision = Precision { round: Round::NearestEven, flush_in: false, flush_out: false };
/// To nearest even, denormals kept: how compilers set the mode up.
pub(crate) const USUAL: FloatMode =
    FloatMode { single: USUAL_PRECISION, other: USUAL_PRECISION, clamp_nan: true, perturbation: Perturbation::None };

/// The usual mode with denormals of singles flushed, as OpenCL has it where precision is not asked for.
pub(crate) const FLUSHED: FloatMode =
    FloatMode { single: Precision { flush_in: true, flush_out: true, ..USUAL_PRECISION }, ..USUAL };

impl FloatMode {
    /// Whether functions for the usual mode, or for the one that flushes, compute what this mode says. Clamping is none of
    /// theirs.
    pub fn is_usual(self, flushes: bool) -> bool {
        FloatMode { clamp_nan: USUAL.clamp_nan, ..self } == if flushes { FLUSHED } else { USUAL }
    }
}

/// The body of every such function; inlined into each, so that it is compiled with its instructions.
#[inline(always)]
pub(crate) fn apply<const WIDE: bool>(
    vectors: Vectors<WIDE>,
    destination: &Cell<Lanes>,
    sources: [&Cell<Lanes>; 3],
    (on, mode): (u32, FloatMode),
    lane: impl Fn(u64, u64, u64, FloatMode) -> u64,
) {
    let [a, b, c] = sources.map(Cell::get);
    let mut results = [0; LANES];
    for place in 0..LANES {
        results[place] = lane(a[place] as u64, b[place] as u64, c[place] as u64, mode) as u32;
    }
    if on != u32::MAX {
        let mut old = destination.get();
        put(vectors, &mut old, &results, on);
        results = old;
    }
    destination.set(results);
}

/// Applies a function to lanes of 64 bits.
#[inline(always)]
pub(crate) fn apply_pairs(
    values: &mut Pairs,
    b: &Pairs,
    c: &Pairs,
    mode: FloatMode,
    lane: impl Fn(u64, u64, u64, FloatMode) -> u64,
) {
    for place in 0..LANES {
        values[place] = lane(values[place], b[place], c[place], mode);
    }
}

/// Writes results where lanes are on.
#[inline(always)]
pub(crate) fn put<const WIDE: bool>(vectors: Vectors<WIDE>, destination: &mut Lanes, results: &Lanes, on: u32) {
    if on == u32::MAX {
        *destination = *results;
        return;
    }
    #[cfg(target_arch = "x86_64")]
    if vectors.has_avx512() {
        // SAFETY: the host has the instructions: that is what `vectors` proves.
        unsafe { super::wide::avx512::put_row(destination, results, on) };
        return;
    }
    for place in 0..LANES {
        let mask = ((on >> place & 1) as i32).wrapping_neg() as u32;
        destination[place] = destination[place] & !mask | results[place] & mask;
    }
}

/// Compiles a function of one lane for each set of host instructions: for whole registers, or for lanes of 64 bits.
macro_rules! for_hosts {
    (Row, $mode:expr, $lane:expr) => {{
        #[cfg(target_arch = "x86_64")]
        {
            use std::cell::Cell;
            use $crate::fast::rows::{ByHost, FastFunction, FastRow, Vectors, apply};
            use $crate::wave::Lanes;
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
            fn avx512(d: &Cell<Lanes>, a: &Cell<Lanes>, b: &Cell<Lanes>, c: &Cell<Lanes>, on: u32) {
                apply(Vectors::avx512(), d, [a, b, c], (on, $mode), $lane)
            }
            #[target_feature(enable = "avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
            fn avx2(d: &Cell<Lanes>, a: &Cell<Lanes>, b: &Cell<Lanes>, c: &Cell<Lanes>, on: u32) {
                apply(Vectors::PORTABLE, d, [a, b, c], (on, $mode), $lane)
            }
            Some(FastFunction::Row(ByHost { avx512: avx512 as FastRow, avx2: avx2 as FastRow }))
        }
        #[cfg(not(target_arch = "x86_64"))]
        None
    }};
    (Pairs, $mode:expr, $lane:expr) => {{
        #[cfg(target_arch = "x86_64")]
        {
            use $crate::fast::pairs::{FastPairs, Pairs};
            use $crate::fast::rows::{ByHost, FastFunction, apply_pairs};
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
            fn avx512(values: &mut Pairs, b: &Pairs, c: &Pairs) {
                apply_pairs(values, b, c, $mode, $lane)
            }
            #[target_feature(enable = "avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
            fn avx2(values: &mut Pairs, b: &Pairs, c: &Pairs) {
                apply_pairs(values, b, c, $mode, $lane)
            }
            Some(FastFunction::Pairs(ByHost { avx512: avx512 as FastPairs, avx2: avx2 as FastPairs }))
        }
        #[cfg(not(target_arch = "x86_64"))]
        None
    }};
}
pub(crate) use for_hosts;

/// Which lanes have one of these outcomes; what is neither less nor equal nor greater is not ordered.
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
                // Compilers make no masks of loops over bits.
                #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
                fn avx512(a: &[$number; LANES], b: &[$number; LANES], outcomes: u8) -> u32 {
                    use std::arch::x86_64::*;
                    const STEP: usize = 64 / size_of::<$number>();
                    let (mut less, mut equal, mut greater) = (0, 0, 0);
                    for first in (0..LANES).step_by(STEP) {
                        // SAFETY: this many lanes fill a vector, and 32 a whole number of them.
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
