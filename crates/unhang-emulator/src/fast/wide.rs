//! Masks of lanes. AVX-512 has registers for them, which compilers rarely use by themselves. Each function also has a
//! portable body for other hosts.

use std::cell::Cell;

use crate::host::{Vectors, put};
use crate::wave::{LANES, Lanes};

/// The lanes in which the first is less than the second.
#[inline(always)]
pub(crate) fn less<const WIDE: bool>(vectors: Vectors<WIDE>, a: &[u64; LANES], b: &[u64; LANES]) -> u32 {
    #[cfg(target_arch = "x86_64")]
    if vectors.has_avx512() {
        // SAFETY: the host has the instructions, as `vectors` proves.
        return unsafe { avx512::less(a, b) };
    }
    let mut mask = 0;
    for lane in 0..LANES {
        mask |= ((a[lane] < b[lane]) as u32) << lane;
    }
    mask
}

/// The second source where the mask has a bit, the first elsewhere, in the active lanes.
#[inline(always)]
pub(crate) fn select<const WIDE: bool>(
    vectors: Vectors<WIDE>,
    destination: &Cell<Lanes>,
    sources: [&Cell<Lanes>; 2],
    mask: u32,
    on: u32,
) {
    #[cfg(target_arch = "x86_64")]
    if vectors.has_avx512() {
        // SAFETY: the host has the instructions, as `vectors` proves.
        unsafe { avx512::select(destination, sources[0], sources[1], mask, on) };
        return;
    }
    let (mut a, b, mut results) = (sources[0].get(), sources[1].get(), destination.get());
    for lane in 0..LANES {
        let chosen = ((mask >> lane & 1) as i32).wrapping_neg() as u32;
        a[lane] = a[lane] & !chosen | b[lane] & chosen;
    }
    put(Vectors::PORTABLE, &mut results, &a, on);
    destination.set(results);
}

/// The sum of two sources and of a mask of carries, in the active lanes. Returns which sums overflowed.
#[inline(always)]
pub(crate) fn add<const WIDE: bool>(
    vectors: Vectors<WIDE>,
    destination: &Cell<Lanes>,
    sources: [&Cell<Lanes>; 2],
    carries: u32,
    on: u32,
) -> u32 {
    #[cfg(target_arch = "x86_64")]
    if vectors.has_avx512() {
        // SAFETY: the host has the instructions, as `vectors` proves.
        return unsafe { avx512::add(destination, sources[0], sources[1], carries, on) };
    }
    let (a, b, mut results) = (sources[0].get(), sources[1].get(), destination.get());
    let (mut sums, mut over) = ([0; LANES], 0);
    for lane in 0..LANES {
        let sum = a[lane] as u64 + b[lane] as u64 + (carries >> lane & 1) as u64;
        sums[lane] = sum as u32;
        over |= ((sum >> 32) as u32) << lane;
    }
    put(Vectors::PORTABLE, &mut results, &sums, on);
    destination.set(results);
    over
}

/// The difference of two sources minus a mask of borrows. Returns which lanes borrowed.
#[inline(always)]
pub(crate) fn subtract<const WIDE: bool>(
    vectors: Vectors<WIDE>,
    destination: &Cell<Lanes>,
    sources: [&Cell<Lanes>; 2],
    borrows: u32,
    on: u32,
) -> u32 {
    #[cfg(target_arch = "x86_64")]
    if vectors.has_avx512() {
        // SAFETY: the host has the instructions, as `vectors` proves.
        return unsafe { avx512::subtract(destination, sources[0], sources[1], borrows, on) };
    }
    let (a, b, mut results) = (sources[0].get(), sources[1].get(), destination.get());
    let (mut differences, mut borrowed) = ([0; LANES], 0);
    for lane in 0..LANES {
        let difference = (a[lane] as u64).wrapping_sub(b[lane] as u64).wrapping_sub((borrows >> lane & 1) as u64);
        differences[lane] = difference as u32;
        borrowed |= ((difference >> 63) as u32) << lane;
    }
    put(Vectors::PORTABLE, &mut results, &differences, on);
    destination.set(results);
    borrowed
}

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512 {
    use std::arch::x86_64::*;
    use std::cell::Cell;

    use crate::host::avx512::{put, sixteen};
    use crate::wave::{LANES, Lanes};

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
    pub(crate) fn less(a: &[u64; LANES], b: &[u64; LANES]) -> u32 {
        let mut mask = 0;
        for eight in 0..4 {
            // SAFETY: a quarter of the lanes.
            let (a, b) = unsafe {
                (
                    _mm512_loadu_si512(a.as_ptr().add(eight * 8).cast()),
                    _mm512_loadu_si512(b.as_ptr().add(eight * 8).cast()),
                )
            };
            mask |= (_mm512_cmplt_epu64_mask(a, b) as u32) << (eight * 8);
        }
        mask
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
    pub(crate) fn select(destination: &Cell<Lanes>, a: &Cell<Lanes>, b: &Cell<Lanes>, mask: u32, on: u32) {
        for part in 0..2 {
            let (a, b) = (sixteen(a, part), sixteen(b, part));
            let chosen = _mm512_mask_blend_epi32((mask >> (part * 16)) as u16, a, b);
            put(destination, part, chosen, on);
        }
    }

    /// A sum that is less than one of its terms has overflowed; with a carry, one that equals it has too.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
    pub(crate) fn add(destination: &Cell<Lanes>, a: &Cell<Lanes>, b: &Cell<Lanes>, carries: u32, on: u32) -> u32 {
        let mut over = 0;
        for part in 0..2 {
            let (a, b) = (sixteen(a, part), sixteen(b, part));
            let carries = (carries >> (part * 16)) as u16;
            let sum = _mm512_add_epi32(a, b);
            let sum = _mm512_mask_add_epi32(sum, carries, sum, _mm512_set1_epi32(1));
            let runs_over = _mm512_cmplt_epu32_mask(sum, a) | _mm512_cmpeq_epi32_mask(sum, a) & carries;
            over |= (runs_over as u32) << (part * 16);
            put(destination, part, sum, on);
        }
        over
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
    pub(crate) fn subtract(destination: &Cell<Lanes>, a: &Cell<Lanes>, b: &Cell<Lanes>, borrows: u32, on: u32) -> u32 {
        let mut borrowed = 0;
        for part in 0..2 {
            let (a, b) = (sixteen(a, part), sixteen(b, part));
            let borrows = (borrows >> (part * 16)) as u16;
            let difference = _mm512_sub_epi32(a, b);
            let difference = _mm512_mask_sub_epi32(difference, borrows, difference, _mm512_set1_epi32(1));
            let has_borrowed = _mm512_cmplt_epu32_mask(a, b) | _mm512_cmpeq_epi32_mask(a, b) & borrows;
            borrowed |= (has_borrowed as u32) << (part * 16);
            put(destination, part, difference, on);
        }
        borrowed
    }
}
