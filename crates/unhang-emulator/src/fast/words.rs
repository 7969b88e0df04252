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

/// The span of addresses in the lanes that are on; there must be one.
#[inline(always)]
pub(crate) fn span(addresses: &Lanes, on: u32) -> Span {
    #[cfg(target_arch = "x86_64")]
    if super::rows::Host::get() == super::rows::Host::Avx512 {
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
    let [low, high] = [0, 1].map(|half| _mm512_maskz_mov_epi32(masks[half], halves[half]));
    let all = _mm512_set1_epi32(-1);
    let [low_or_all, high_or_all] = [0, 1].map(|half| _mm512_mask_mov_epi32(all, masks[half], halves[half]));
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
/// written if it is stored to; offsets are less than 2³¹. Every register of `words` must be one of `rows`.
#[inline(always)]
pub(crate) unsafe fn transfer(base: *mut u8, offsets: &Lanes, words: &Words, rows: *mut Lanes, on: u32) {
    #[cfg(target_arch = "x86_64")]
    if super::rows::Host::get() == super::rows::Host::Avx512 {
        // SAFETY: the host has the instructions; the rest is what was asked for here.
        let done = unsafe { transfer_avx512(base, offsets, words, rows, on) };
        if done {
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

/// The same sixteen lanes at a time; `false`, and nothing moved, where the order in which lanes store matters.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
unsafe fn transfer_avx512(base: *mut u8, offsets: &Lanes, words: &Words, rows: *mut Lanes, on: u32) -> bool {
    use std::arch::x86_64::*;
    let count = words.count as usize;
    let numbers = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    // SAFETY: both halves of a row.
    let halves = unsafe {
        let from = offsets.as_ptr();
        [_mm512_loadu_si512(from.cast()), _mm512_loadu_si512(from.add(16).cast())]
    };
    let first = |half: usize| _mm_cvtsi128_si32(_mm512_castsi512_si128(halves[half]));
    if words.store && count > 1 {
        // Lanes that lie one behind the other do not meet.
        let stride = _mm512_mullo_epi32(numbers, _mm512_set1_epi32(count as i32 * 4));
        let adjacent = (1..count).all(|place| words.offsets[place] == words.offsets[0] + place as u32 * 4);
        let apart = |half: usize| {
            let expected = _mm512_add_epi32(_mm512_set1_epi32(first(half)), stride);
            _mm512_cmpeq_epi32_mask(halves[half], expected) == u16::MAX
        };
        if !adjacent || !apart(0) || !apart(1) {
            return false;
        }
    }
    for half in 0..2 {
        let mask = (on >> (half * 16)) as u16;
        let (places, start) = (halves[half], first(half));
        let all = _mm512_set1_epi32(start);
        let whole = mask == u16::MAX;
        let same = whole && _mm512_cmpeq_epi32_mask(places, all) == u16::MAX;
        let in_order = _mm512_add_epi32(all, _mm512_slli_epi32::<2>(numbers));
        let in_order = whole && _mm512_cmpeq_epi32_mask(places, in_order) == u16::MAX;
        for place in 0..count {
            // SAFETY: the caller vouches for the words of lanes that are on, for the others nothing is touched; a stretch is
            // made of such words, and a row has 32.
            unsafe {
                let at = base.add(words.offsets[place] as usize);
                let row = rows.add(words.registers[place] as usize).cast::<u32>().add(half * 16);
                let old = _mm512_loadu_si512(row.cast());
                match words.store {
                    true if in_order => _mm512_storeu_si512(at.add(start as usize).cast(), old),
                    true => _mm512_mask_i32scatter_epi32::<1>(at.cast(), mask, places, old),
                    false => {
                        let found = if same {
                            _mm512_set1_epi32(at.add(start as usize).cast::<i32>().read_unaligned())
                        } else if in_order {
                            _mm512_loadu_si512(at.add(start as usize).cast())
                        } else {
                            _mm512_mask_i32gather_epi32::<1>(old, mask, places, at.cast())
                        };
                        _mm512_storeu_si512(row.cast(), found);
                    }
                }
            }
        }
    }
    true
}
