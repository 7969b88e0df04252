//! Bytes and half-words that the lanes of a wave load or store, moved by the host's vectors.
//!
//! As in [`super::words`], sixteen lanes at a time. Consecutive lanes move at once. Others move one by one, since a
//! gather would read whole words, and so beyond the last part.

use std::arch::x86_64::*;

use super::words::avx512::{Lie, lie, put, row, sixteen};
use super::words::{Load, Words};
use crate::access::WordPart;
use crate::wave::Lanes;

/// The function that loads a part of this kind.
pub(super) fn load_of(part: WordPart) -> Load {
    if part.size() == 1 { load::<1> } else { load::<2> }
}

/// Loads a part of `SIZE` bytes for each lane.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
unsafe fn load<const SIZE: usize>(
    base: *mut u8,
    addresses: *const Lanes,
    lowest: u32,
    words: &Words,
    rows: *mut Lanes,
    on: u32,
) {
    let lowest = _mm512_set1_epi32(lowest as i32);
    // This must come before any load: the row of the addresses may be overwritten.
    // SAFETY: a row, as the caller guarantees.
    let halves = unsafe { [sixteen(addresses, 0), sixteen(addresses, 1)] };
    for half in 0..2 {
        let (places, on) = (_mm512_sub_epi32(halves[half], lowest), (on >> (half * 16)) as u16);
        if on == 0 {
            continue;
        }
        // SAFETY: the caller guarantees the parts of active lanes, and nothing is touched for the others.
        unsafe {
            let found = gather::<SIZE>(base.add(words.offsets[0] as usize), places, on);
            let to = row(rows, words, 0, half);
            put(to, on, widen(found, _mm512_loadu_si512(to.cast()), words.part));
        }
    }
}

/// The parts of sixteen lanes, extended with zeros.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
unsafe fn gather<const SIZE: usize>(at: *const u8, places: __m512i, on: u16) -> __m512i {
    // SAFETY: the caller guarantees the parts of active lanes.
    unsafe {
        match (lie::<SIZE>(places, on), SIZE) {
            ((start, Lie::Same), _) => _mm512_set1_epi32(one::<SIZE>(at.offset(start))),
            ((start, Lie::InOrder), 1) => {
                _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(on, at.wrapping_offset(start).cast()))
            }
            ((start, Lie::InOrder), _) => {
                _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(on, at.wrapping_offset(start).cast()))
            }
            ((_, Lie::Anyhow), _) => {
                let (mut offsets, mut values) = ([0u32; 16], [0i32; 16]);
                _mm512_storeu_si512(offsets.as_mut_ptr().cast(), places);
                if on == u16::MAX {
                    for lane in 0..16 {
                        values[lane] = one::<SIZE>(at.add(offsets[lane] as usize));
                    }
                } else {
                    let mut left = on as u32;
                    while left != 0 {
                        let lane = left.trailing_zeros() as usize & 15;
                        left &= left - 1;
                        values[lane] = one::<SIZE>(at.add(offsets[lane] as usize));
                    }
                }
                _mm512_loadu_si512(values.as_ptr().cast())
            }
        }
    }
}

/// The part at an address.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
unsafe fn one<const SIZE: usize>(at: *const u8) -> i32 {
    // SAFETY: the caller guarantees that many bytes.
    unsafe { if SIZE == 1 { at.read() as i32 } else { at.cast::<u16>().read_unaligned() as i32 } }
}

/// The new contents of a register whose lanes load these parts.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
fn widen(found: __m512i, old: __m512i, part: WordPart) -> __m512i {
    let signed_byte = _mm512_srai_epi32::<24>(_mm512_slli_epi32::<24>(found));
    match part {
        WordPart::Byte { signed: true } => signed_byte,
        WordPart::Half { signed: true } => _mm512_srai_epi32::<16>(_mm512_slli_epi32::<16>(found)),
        WordPart::Word | WordPart::Byte { signed: false } | WordPart::Half { signed: false } => found,
        WordPart::InHalf { byte, signed, high } => {
            let found = if byte && signed { signed_byte } else { found };
            let lower = _mm512_set1_epi32(0xffff);
            if high {
                _mm512_or_si512(_mm512_and_si512(old, lower), _mm512_slli_epi32::<16>(found))
            } else {
                _mm512_or_si512(_mm512_andnot_si512(lower, old), _mm512_and_si512(found, lower))
            }
        }
    }
}

/// Stores a part of a word of each lane. If lanes overlap, the last one wins.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
pub(super) unsafe fn store(
    base: *mut u8,
    addresses: *const Lanes,
    lowest: u32,
    words: &Words,
    rows: *mut Lanes,
    on: u32,
) {
    // SAFETY: as required of the caller.
    unsafe {
        match words.part.size() {
            1 => store_sized::<1>(base, addresses, lowest, words, rows, on),
            _ => store_sized::<2>(base, addresses, lowest, words, rows, on),
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
unsafe fn store_sized<const SIZE: usize>(
    base: *mut u8,
    addresses: *const Lanes,
    lowest: u32,
    words: &Words,
    rows: *mut Lanes,
    on: u32,
) {
    let lowest = _mm512_set1_epi32(lowest as i32);
    for half in 0..2 {
        let on = (on >> (half * 16)) as u16;
        // SAFETY: as for loads; only writable memory is written.
        unsafe {
            let places = _mm512_sub_epi32(sixteen(addresses, half), lowest);
            let at = base.add(words.offsets[0] as usize);
            let mut values = _mm512_loadu_si512(row(rows, words, 0, half).cast());
            if let WordPart::InHalf { high: true, .. } = words.part {
                values = _mm512_srli_epi32::<16>(values);
            }
            match (lie::<SIZE>(places, on), SIZE) {
                ((start, Lie::InOrder), 1) => {
                    _mm_mask_storeu_epi8(at.wrapping_offset(start).cast(), on, _mm512_cvtepi32_epi8(values));
                }
                ((start, Lie::InOrder), _) => {
                    _mm256_mask_storeu_epi16(at.wrapping_offset(start).cast(), on, _mm512_cvtepi32_epi16(values));
                }
                _ => {
                    let (mut offsets, mut lanes) = ([0u32; 16], [0u32; 16]);
                    _mm512_storeu_si512(offsets.as_mut_ptr().cast(), places);
                    _mm512_storeu_si512(lanes.as_mut_ptr().cast(), values);
                    let mut left = on as u32;
                    while left != 0 {
                        let lane = left.trailing_zeros() as usize & 15;
                        left &= left - 1;
                        let to = at.add(offsets[lane] as usize);
                        match SIZE {
                            1 => to.write(lanes[lane] as u8),
                            _ => to.cast::<u16>().write_unaligned(lanes[lane] as u16),
                        }
                    }
                }
            }
        }
    }
}
