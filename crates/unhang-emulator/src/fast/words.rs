//! Words that the lanes of a wave load or store, moved by the host's vectors.
//!
//! Half a wave at a time: lanes with one address take one word, lanes in a row take a stretch of memory, others gather and
//! scatter. Other threads may write what is read: a word is then what it was or what it becomes, as it is on the card, since
//! the hardware moves each in one piece.

use crate::wave::{LANES, Lanes};

/// The words of one access.
#[derive(Clone, Copy)]
pub(crate) struct Words {
    pub store: bool,
    pub count: u8,
    /// The register of each word, and its offset.
    pub registers: [u8; 4],
    pub offsets: [u32; 4],
}

impl Words {
    /// Bytes from a lane's address to the end of its last word.
    pub fn reach(&self) -> u32 {
        self.offsets[..self.count as usize].iter().max().map_or(0, |&offset| offset + 4)
    }
}

/// The lowest and the highest address of the lanes that are on, and all their bits together.
#[derive(Clone, Copy)]
pub(crate) struct Span {
    pub lowest: u32,
    pub highest: u32,
    pub bits: u32,
}

/// The span of addresses in the lanes that are on; there must be one. `WIDE` says that the host has AVX-512.
#[inline(always)]
pub(crate) fn span<const WIDE: bool>(addresses: &Lanes, on: u32) -> Span {
    #[cfg(target_arch = "x86_64")]
    if WIDE {
        // SAFETY: the host has the instructions.
        return unsafe { span_avx512(addresses, on) };
    }
    let (mut lowest, mut highest, mut bits) = (u32::MAX, 0, 0);
    for lane in (0..LANES).filter(|lane| on >> lane & 1 == 1) {
        lowest = lowest.min(addresses[lane]);
        highest = highest.max(addresses[lane]);
        bits |= addresses[lane];
    }
    Span { lowest, highest, bits }
}

/// Whether no lane that is on has an address above a limit; a comparison is cheaper than the highest address.
#[inline(always)]
pub(crate) fn all_within<const WIDE: bool>(addresses: &Lanes, on: u32, limit: u32) -> bool {
    #[cfg(target_arch = "x86_64")]
    if WIDE {
        // SAFETY: the host has the instructions.
        return unsafe { above_avx512(addresses, limit) } & on == 0;
    }
    (0..LANES).fold(0, |above, lane| above | ((addresses[lane] > limit) as u32) << lane) & on == 0
}

#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
fn above_avx512(addresses: &Lanes, limit: u32) -> u32 {
    use std::arch::x86_64::*;
    let limit = _mm512_set1_epi32(limit as i32);
    // SAFETY: both halves of a row.
    let [low, high] = unsafe {
        let from = addresses.as_ptr();
        [_mm512_loadu_si512(from.cast()), _mm512_loadu_si512(from.add(16).cast())]
    };
    _mm512_cmpgt_epu32_mask(low, limit) as u32 | (_mm512_cmpgt_epu32_mask(high, limit) as u32) << 16
}

/// The same; compilers make a branch for each lane of the loop.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
fn span_avx512(addresses: &Lanes, on: u32) -> Span {
    use std::arch::x86_64::*;
    let masks = [on as u16, (on >> 16) as u16];
    // SAFETY: both halves of a row.
    let halves = unsafe {
        let from = addresses.as_ptr();
        [_mm512_loadu_si512(from.cast()), _mm512_loadu_si512(from.add(16).cast())]
    };
    let (low, high) = (_mm512_maskz_mov_epi32(masks[0], halves[0]), _mm512_maskz_mov_epi32(masks[1], halves[1]));
    let all = _mm512_set1_epi32(-1);
    let low_or_all = _mm512_mask_mov_epi32(all, masks[0], halves[0]);
    let high_or_all = _mm512_mask_mov_epi32(all, masks[1], halves[1]);
    Span {
        lowest: _mm512_reduce_min_epu32(_mm512_min_epu32(low_or_all, high_or_all)),
        highest: _mm512_reduce_max_epu32(_mm512_max_epu32(low, high)),
        bits: _mm512_reduce_or_epi32(_mm512_or_si512(low, high)) as u32,
    }
}

/// Moves words between the registers and memory at `base` and each lane's offset.
///
/// # Safety
///
/// For each lane that is on, each word at `base + offsets[lane] + words.offsets[…]` must lie in memory that lives on, and may be
/// written if it is stored to; offsets are less than 2³¹. Every register of `words` must be one of `rows`. The host must have
/// AVX-512 where `WIDE` says so.
#[inline(always)]
pub(crate) unsafe fn transfer<const WIDE: bool>(
    base: *mut u8,
    offsets: &Lanes,
    words: &Words,
    rows: *mut Lanes,
    on: u32,
) {
    #[cfg(target_arch = "x86_64")]
    if WIDE {
        if !words.store {
            // SAFETY: the host has the instructions; the rest is what was asked for here.
            unsafe { load_avx512(base, offsets, words, rows, on) };
            return;
        }
        // SAFETY: as above.
        if unsafe { store_avx512(base, offsets, words, rows, on) } {
            return;
        }
    }
    // SAFETY: as asked for here.
    unsafe { transfer_one_by_one(base, offsets, words, rows, on) };
}

/// Lane after lane: where stores meet, the last one's words stay.
unsafe fn transfer_one_by_one(base: *mut u8, offsets: &Lanes, words: &Words, rows: *mut Lanes, on: u32) {
    let mut left = on;
    while left != 0 {
        let lane = left.trailing_zeros() as usize;
        left &= left - 1;
        for place in 0..words.count as usize {
            // SAFETY: the caller vouches for the words of lanes that are on and for the registers.
            unsafe {
                let at = base.add(offsets[lane] as usize + words.offsets[place] as usize).cast::<u32>();
                let value = rows.add(words.registers[place] as usize).cast::<u32>().add(lane);
                match words.store {
                    true => at.write_unaligned(value.read().to_le()),
                    false => value.write(u32::from_le(at.read_unaligned())),
                }
            }
        }
    }
}

/// How the addresses of sixteen lanes lie.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lie {
    Same,
    InOrder,
    Anyhow,
}

/// Sixteen addresses. Closures and iterators would not be compiled for these instructions, so that there are none here.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
fn sixteen(offsets: &Lanes, half: usize) -> std::arch::x86_64::__m512i {
    use std::arch::x86_64::*;
    // SAFETY: half of a row.
    unsafe { _mm512_loadu_si512(offsets.as_ptr().add((half & 1) * 16).cast()) }
}

/// The first of sixteen addresses, and how they lie if all of their lanes are on.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
fn lie(places: std::arch::x86_64::__m512i, on: u16) -> (usize, Lie) {
    use std::arch::x86_64::*;
    let in_order = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 44, 48, 52, 56, 60);
    let first = _mm512_castsi512_si128(places);
    let relative = _mm512_sub_epi32(places, _mm512_broadcastd_epi32(first));
    let start = _mm_cvtsi128_si32(first) as u32 as usize;
    if on != u16::MAX {
        (start, Lie::Anyhow)
    } else if _mm512_test_epi32_mask(relative, relative) == 0 {
        (start, Lie::Same)
    } else if _mm512_cmpneq_epi32_mask(relative, in_order) == 0 {
        (start, Lie::InOrder)
    } else {
        (start, Lie::Anyhow)
    }
}

/// Loads sixteen lanes at a time.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
unsafe fn load_avx512(base: *mut u8, offsets: &Lanes, words: &Words, rows: *mut Lanes, on: u32) {
    use std::arch::x86_64::*;
    let count = (words.count as usize).min(4);
    for half in 0..2 {
        let mask = (on >> (half * 16)) as u16;
        let places = sixteen(offsets, half);
        let (start, lie) = lie(places, mask);
        for place in 0..count {
            // SAFETY: the caller vouches for the words of lanes that are on, for the others nothing is touched; a stretch is
            // made of such words, and a row has 32.
            unsafe {
                let at = base.add(words.offsets[place] as usize);
                let row = rows.add(words.registers[place] as usize).cast::<u32>().add(half * 16);
                let found = match lie {
                    Lie::Same => _mm512_set1_epi32(at.add(start).cast::<i32>().read_unaligned()),
                    Lie::InOrder => _mm512_loadu_si512(at.add(start).cast()),
                    Lie::Anyhow => {
                        _mm512_mask_i32gather_epi32::<1>(_mm512_loadu_si512(row.cast()), mask, places, at.cast())
                    }
                };
                _mm512_storeu_si512(row.cast(), found);
            }
        }
    }
}

/// Stores sixteen lanes at a time; `false`, and nothing moved, where the order in which lanes store matters.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
unsafe fn store_avx512(base: *mut u8, offsets: &Lanes, words: &Words, rows: *mut Lanes, on: u32) -> bool {
    use std::arch::x86_64::*;
    let count = (words.count as usize).min(4);
    if count > 1 {
        // Lanes that lie one behind the other do not meet.
        let numbers = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        let stride = _mm512_mullo_epi32(numbers, _mm512_set1_epi32(count as i32 * 4));
        let mut apart = true;
        for place in 1..count {
            apart &= words.offsets[place] == words.offsets[0] + place as u32 * 4;
        }
        for half in 0..2 {
            let places = sixteen(offsets, half);
            let first = _mm512_broadcastd_epi32(_mm512_castsi512_si128(places));
            apart &= _mm512_cmpneq_epi32_mask(places, _mm512_add_epi32(first, stride)) == 0;
        }
        if !apart {
            return false;
        }
    }
    for half in 0..2 {
        let mask = (on >> (half * 16)) as u16;
        let places = sixteen(offsets, half);
        let (start, lie) = lie(places, mask);
        for place in 0..count {
            // SAFETY: as for loads; what is written is memory that may be.
            unsafe {
                let at = base.add(words.offsets[place] as usize);
                let row = rows.add(words.registers[place] as usize).cast::<u32>().add(half * 16);
                let values = _mm512_loadu_si512(row.cast());
                match lie {
                    Lie::InOrder => _mm512_storeu_si512(at.add(start).cast(), values),
                    _ => _mm512_mask_i32scatter_epi32::<1>(at.cast(), mask, places, values),
                }
            }
        }
    }
    true
}
