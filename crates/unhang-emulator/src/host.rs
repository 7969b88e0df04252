//! Functions of one lane, compiled for the host's widest vectors.
//!
//! Each is compiled from the body of the plain one, for the two modes that nearly all code runs in. The mode and the
//! host's instructions are chosen when code is decoded. On other hosts, and in other modes, the plain path computes.

use std::cell::Cell;
use std::sync::OnceLock;

use crate::float::FloatMode;
use crate::registers::{LANES, Lanes};

/// Writes a register in the active lanes, from up to three others; any of them may be the same one.
///
/// Call it only on a host that has the instructions for which it was compiled.
pub(crate) type FastRow = unsafe fn(&Cell<Lanes>, &Cell<Lanes>, &Cell<Lanes>, &Cell<Lanes>, u32);
/// One 64-bit value per lane.
pub(crate) type Pairs = [u64; LANES];
/// Computes lanes from up to three others; results replace the first. Call it as [`FastRow`].
pub(crate) type FastPairs = unsafe fn(&mut Pairs, &Pairs, &Pairs);

/// A function of one lane, compiled for the host's vectors.
#[derive(Clone, Copy)]
pub(crate) struct Fast {
    /// For the usual mode, and for the one that flushes single-precision denormals.
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
    /// The function for this host and one of the two modes, if it works on whole registers.
    pub(crate) fn row(self, flushes: bool) -> Option<FastRow> {
        match self.functions[flushes as usize] {
            FastFunction::Row(function) => function.chosen(),
            FastFunction::Pairs(_) => None,
        }
    }

    /// The function for this host and one of the two modes, if it works on 64-bit lanes.
    pub(crate) fn pairs(self, flushes: bool) -> Option<FastPairs> {
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

/// The instructions that the host has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Host {
    Avx512,
    Avx2,
    Plain,
}

impl Host {
    /// The instructions that this host has, determined once.
    pub(crate) fn get() -> Host {
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

/// Which vectors of the host may be used. For AVX-512 it proves that the host has it. Functions that require this proof
/// need not trust their callers.
#[derive(Clone, Copy)]
pub(crate) struct Vectors<const AVX512: bool>(());

impl<const AVX512: bool> Vectors<AVX512> {
    #[inline(always)]
    pub(crate) const fn has_avx512(self) -> bool {
        AVX512
    }
}

impl Vectors<false> {
    /// Vectors that every host can run.
    pub(crate) const PORTABLE: Vectors<false> = Vectors(());
}

#[cfg(target_arch = "x86_64")]
impl Vectors<true> {
    /// The proof. Functions compiled for AVX-512 may call this; others must guarantee the host's instructions.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
    pub(crate) fn avx512() -> Vectors<true> {
        Vectors(())
    }
}

impl<F: Copy> ByHost<F> {
    /// The function for this host; `None` if the plain path must be used.
    pub(crate) fn chosen(self) -> Option<F> {
        match Host::get() {
            Host::Avx512 => Some(self.avx512),
            Host::Avx2 => Some(self.avx2),
            Host::Plain => None,
        }
    }
}

/// The body of every such function, inlined into each, so that it is compiled with its instructions.
#[inline(always)]
pub(crate) fn apply<const WIDE: bool>(
    vectors: Vectors<WIDE>,
    destination: &Cell<Lanes>,
    sources: [&Cell<Lanes>; 3],
    on: u32,
    mode: FloatMode,
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

/// Writes results in the active lanes.
#[inline(always)]
pub(crate) fn put<const WIDE: bool>(vectors: Vectors<WIDE>, destination: &mut Lanes, results: &Lanes, on: u32) {
    if on == u32::MAX {
        *destination = *results;
        return;
    }
    #[cfg(target_arch = "x86_64")]
    if vectors.has_avx512() {
        // SAFETY: the host has the instructions, as `vectors` proves.
        unsafe { avx512::put_row(destination, results, on) };
        return;
    }
    for place in 0..LANES {
        let mask = ((on >> place & 1) as i32).wrapping_neg() as u32;
        destination[place] = destination[place] & !mask | results[place] & mask;
    }
}

/// Compiles a function of one lane for each set of host instructions, for whole registers or for 64-bit lanes.
macro_rules! for_hosts {
    (Row, $mode:expr, $lane:expr) => {{
        #[cfg(target_arch = "x86_64")]
        {
            use std::cell::Cell;
            use $crate::host::{ByHost, FastFunction, FastRow, Vectors, apply};
            use $crate::registers::Lanes;
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
            fn avx512(d: &Cell<Lanes>, a: &Cell<Lanes>, b: &Cell<Lanes>, c: &Cell<Lanes>, on: u32) {
                apply(Vectors::avx512(), d, [a, b, c], on, $mode, $lane)
            }
            #[target_feature(enable = "avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
            fn avx2(d: &Cell<Lanes>, a: &Cell<Lanes>, b: &Cell<Lanes>, c: &Cell<Lanes>, on: u32) {
                apply(Vectors::PORTABLE, d, [a, b, c], on, $mode, $lane)
            }
            Some(FastFunction::Row(ByHost { avx512: avx512 as FastRow, avx2: avx2 as FastRow }))
        }
        #[cfg(not(target_arch = "x86_64"))]
        None
    }};
    (Pairs, $mode:expr, $lane:expr) => {{
        #[cfg(target_arch = "x86_64")]
        {
            use $crate::host::{ByHost, FastFunction, apply_pairs};
            use $crate::host::{FastPairs, Pairs};
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

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512 {
    use std::arch::x86_64::*;
    use std::cell::Cell;

    use crate::registers::Lanes;

    /// Sixteen lanes of a register.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
    pub(crate) fn sixteen(lanes: &Cell<Lanes>, part: usize) -> __m512i {
        // SAFETY: half of a row.
        unsafe { _mm512_loadu_si512(lanes.as_ptr().cast::<u32>().add((part & 1) * 16).cast()) }
    }

    /// Writes the active lanes of sixteen.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
    pub(crate) fn put(destination: &Cell<Lanes>, part: usize, values: __m512i, on: u32) {
        let old = sixteen(destination, part);
        let values = _mm512_mask_mov_epi32(old, (on >> ((part & 1) * 16)) as u16, values);
        // SAFETY: half of a row. It stores without a mask, because the host forwards only whole stores to the next
        // load.
        unsafe { _mm512_storeu_si512(destination.as_ptr().cast::<u32>().add((part & 1) * 16).cast(), values) }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
    pub(super) fn put_row(destination: &mut Lanes, results: &Lanes, on: u32) {
        for part in 0..2 {
            // SAFETY: half of a row.
            let values = unsafe { _mm512_loadu_si512(results.as_ptr().add(part * 16).cast()) };
            put(Cell::from_mut(destination), part, values, on);
        }
    }
}
