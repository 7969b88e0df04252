//! Functions of whole vector registers, compiled for the host's widest vectors.
//!
//! Each is made from the same body as the plain one, for the mode that nearly all code runs in; the host's instructions are
//! chosen when code is decoded. On other hosts, and in other modes, the plain path computes.

use std::cell::Cell;
use std::sync::OnceLock;

use crate::Perturbation;
use crate::float::{FloatMode, Precision, Round};
use crate::semantics::{EQUAL, GREATER, LESS, UNORDERED};
use crate::wave::{LANES, Lanes};

/// Writes a register in the lanes that are on, from up to three others; any of them may be the same one.
///
/// It may be called only on a host that has the instructions for which it was compiled.
pub(crate) type FastRow = unsafe fn(&Cell<Lanes>, &Cell<Lanes>, &Cell<Lanes>, &Cell<Lanes>, u32);
/// Compares two registers: the lanes for which one of the outcomes holds. To be called as [`FastRow`] is.
pub(crate) type FastCompare = unsafe fn(&Lanes, &Lanes, u8) -> u32;

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

impl FloatMode {
    /// Whether functions for the usual mode compute what this mode says. Clamping is none of theirs.
    pub fn is_usual(self) -> bool {
        FloatMode { clamp_nan: USUAL.clamp_nan, ..self } == USUAL
    }
}

/// The body of every such function; inlined into each, so that it is compiled with its instructions.
#[inline(always)]
pub(crate) fn apply<const WIDE: bool>(
    destination: &Cell<Lanes>,
    sources: [&Cell<Lanes>; 3],
    on: u32,
    lane: impl Fn(u64, u64, u64, FloatMode) -> u64,
) {
    let [a, b, c] = sources.map(Cell::get);
    let mut results = [0; LANES];
    for place in 0..LANES {
        results[place] = lane(a[place] as u64, b[place] as u64, c[place] as u64, USUAL) as u32;
    }
    if on != u32::MAX {
        let mut old = destination.get();
        put::<WIDE>(&mut old, &results, on);
        results = old;
    }
    destination.set(results);
}

/// Writes results where lanes are on. `WIDE` says that the host has AVX-512.
#[inline(always)]
pub(crate) fn put<const WIDE: bool>(destination: &mut Lanes, results: &Lanes, on: u32) {
    if on == u32::MAX {
        *destination = *results;
        return;
    }
    #[cfg(target_arch = "x86_64")]
    if WIDE {
        // SAFETY: the host has the instructions.
        unsafe { super::wide::avx512::put_row(destination, results, on) };
        return;
    }
    for place in 0..LANES {
        let mask = ((on >> place & 1) as i32).wrapping_neg() as u32;
        destination[place] = destination[place] & !mask | results[place] & mask;
    }
}

/// Compiles a function of one lane for each set of host instructions.
macro_rules! for_hosts {
    ($lane:expr) => {{
        #[cfg(target_arch = "x86_64")]
        {
            use std::cell::Cell;
            use $crate::fast::rows::{ByHost, FastRow, apply};
            use $crate::wave::Lanes;
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
            fn avx512(d: &Cell<Lanes>, a: &Cell<Lanes>, b: &Cell<Lanes>, c: &Cell<Lanes>, on: u32) {
                apply::<true>(d, [a, b, c], on, $lane)
            }
            #[target_feature(enable = "avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
            fn avx2(d: &Cell<Lanes>, a: &Cell<Lanes>, b: &Cell<Lanes>, c: &Cell<Lanes>, on: u32) {
                apply::<false>(d, [a, b, c], on, $lane)
            }
            Some(ByHost { avx512: avx512 as FastRow, avx2: avx2 as FastRow })
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
fn compare(a: &Lanes, b: &Lanes, outcomes: u8, order: impl Fn(u32, u32) -> (bool, bool, bool)) -> u32 {
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
    ($($name:ident: $order:expr, |$left:ident, $right:ident| $masks:expr;)*) => {$(
        pub(crate) fn $name() -> Option<FastCompare> {
            #[cfg(target_arch = "x86_64")]
            {
                // Compilers make no masks of loops over bits.
                #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
                fn avx512(a: &Lanes, b: &Lanes, outcomes: u8) -> u32 {
                    use std::arch::x86_64::*;
                    let (mut less, mut equal, mut greater) = (0, 0, 0);
                    for part in 0..2 {
                        // SAFETY: half of a row.
                        let ($left, $right) = unsafe {
                            (_mm512_loadu_si512(a.as_ptr().add(part * 16).cast()), _mm512_loadu_si512(b.as_ptr().add(part * 16).cast()))
                        };
                        let masks: (u16, u16, u16) = $masks;
                        less |= (masks.0 as u32) << (part * 16);
                        equal |= (masks.1 as u32) << (part * 16);
                        greater |= (masks.2 as u32) << (part * 16);
                    }
                    pick(outcomes, less, equal, greater)
                }
                #[target_feature(enable = "avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
                fn avx2(a: &Lanes, b: &Lanes, outcomes: u8) -> u32 {
                    compare(a, b, outcomes, $order)
                }
                ByHost { avx512: avx512 as FastCompare, avx2: avx2 as FastCompare }.chosen()
            }
            #[cfg(not(target_arch = "x86_64"))]
            None
        }
    )*};
}

comparisons! {
    unsigned: |a: u32, b: u32| (a < b, a == b, a > b), |left, right| (
        _mm512_cmplt_epu32_mask(left, right),
        _mm512_cmpeq_epi32_mask(left, right),
        _mm512_cmpgt_epu32_mask(left, right),
    );
    signed: |a: u32, b: u32| ((a as i32) < b as i32, a == b, a as i32 > b as i32), |left, right| (
        _mm512_cmplt_epi32_mask(left, right),
        _mm512_cmpeq_epi32_mask(left, right),
        _mm512_cmpgt_epi32_mask(left, right),
    );
    float: |a: u32, b: u32| {
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
}
