//! Words that the lanes of a wave load or store, moved by the host's vectors.
//!
//! Sixteen lanes at a time. Lanes with one address take one word, and consecutive lanes take a range of memory. Others
//! gather and scatter, or move what is contiguous in each lane in one piece. Other threads may write what is read. A
//! word is then either old or new, as on the card, since the hardware moves each in one piece.

use crate::access::WordPart;
#[cfg(target_arch = "x86_64")]
use crate::wave::Lanes;

/// The words of one access, or a part of one.
#[derive(Clone, Copy)]
pub(crate) struct Words {
    pub store: bool,
    pub count: u8,
    /// What is moved of each word; always the whole word if there are several.
    pub part: WordPart,
    /// The register of each word, and its offset.
    pub registers: [u8; 4],
    pub offsets: [u32; 4],
    /// Bytes from a lane's address to the end of its access.
    pub reach: u32,
    /// The number of contiguous words: 1, 2 or 4.
    pub(super) run: u8,
    /// The function that loads them on a host with AVX-512.
    #[cfg(target_arch = "x86_64")]
    pub(super) load: Load,
}

/// Loads words as [`Addresses::transfer`](super::addresses::Addresses::transfer) does. Arguments: the start of memory,
/// the row of addresses and the lowest of them, the words, their rows, the active lanes.
#[cfg(target_arch = "x86_64")]
pub(super) type Load = unsafe fn(*mut u8, *const Lanes, u32, &Words, *mut Lanes, u32);

impl Words {
    pub(super) fn new(store: bool, count: u8, registers: [u8; 4], offsets: [u32; 4]) -> Words {
        let together = |from: usize| offsets[from + 1] == offsets[from] + 4;
        let run = match count {
            4 if together(0) && together(1) && together(2) => 4,
            4 if together(0) && together(2) => 2,
            2 if together(0) => 2,
            _ => 1,
        };
        Words {
            store,
            count,
            part: WordPart::Word,
            registers,
            offsets,
            reach: offsets[..count as usize].iter().max().map_or(0, |&offset| offset + 4),
            run,
            #[cfg(target_arch = "x86_64")]
            load: avx512::load_of(count, run),
        }
    }
}

/// The lowest and the highest address of the active lanes, and all their bits together.
#[derive(Clone, Copy)]
pub(crate) struct Span {
    pub lowest: u32,
    pub highest: u32,
    pub bits: u32,
}

/// Closures and iterators would not be compiled for these instructions, so there are none here.
#[cfg(target_arch = "x86_64")]
pub(super) mod avx512 {
    use std::arch::x86_64::*;

    use super::{Load, Span, Words};
    use crate::wave::Lanes;

    /// The pattern of the addresses of sixteen lanes, ignoring inactive lanes.
    #[derive(Clone, Copy, PartialEq, Eq)]
    pub(crate) enum Lie {
        Same,
        InOrder,
        Anyhow,
    }

    /// Sixteen lanes of a row.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
    pub(crate) unsafe fn sixteen(row: *const Lanes, part: usize) -> __m512i {
        // SAFETY: half of a row.
        unsafe { _mm512_loadu_si512(row.cast::<u32>().add((part & 1) * 16).cast()) }
    }

    /// The lanes with a value above a limit.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
    pub(crate) unsafe fn above(row: *const Lanes, limit: u32) -> u32 {
        let limit = _mm512_set1_epi32(limit as i32);
        // SAFETY: both halves of a row.
        let (low, high) = unsafe { (sixteen(row, 0), sixteen(row, 1)) };
        _mm512_cmpgt_epu32_mask(low, limit) as u32 | (_mm512_cmpgt_epu32_mask(high, limit) as u32) << 16
    }

    /// The lanes whose value plus an offset has one of these bits.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
    pub(crate) unsafe fn beside(row: *const Lanes, bits: u32, offset: u32) -> u32 {
        let (bits, offset) = (_mm512_set1_epi32(bits as i32), _mm512_set1_epi32(offset as i32));
        // SAFETY: both halves of a row.
        let (low, high) = unsafe { (sixteen(row, 0), sixteen(row, 1)) };
        let (low, high) = (_mm512_add_epi32(low, offset), _mm512_add_epi32(high, offset));
        _mm512_test_epi32_mask(low, bits) as u32 | (_mm512_test_epi32_mask(high, bits) as u32) << 16
    }

    /// The lanes with a different value.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
    pub(crate) unsafe fn unlike(row: *const Lanes, value: u32) -> u32 {
        let value = _mm512_set1_epi32(value as i32);
        // SAFETY: both halves of a row.
        let (low, high) = unsafe { (sixteen(row, 0), sixteen(row, 1)) };
        _mm512_cmpneq_epi32_mask(low, value) as u32 | (_mm512_cmpneq_epi32_mask(high, value) as u32) << 16
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
    pub(crate) unsafe fn span(row: *const Lanes, on: u32) -> Span {
        let (first, second) = (on as u16, (on >> 16) as u16);
        // SAFETY: both halves of a row.
        let (low, high) = unsafe { (sixteen(row, 0), sixteen(row, 1)) };
        let all = _mm512_set1_epi32(-1);
        let (low_or_all, high_or_all) =
            (_mm512_mask_mov_epi32(all, first, low), _mm512_mask_mov_epi32(all, second, high));
        let (low, high) = (_mm512_maskz_mov_epi32(first, low), _mm512_maskz_mov_epi32(second, high));
        Span {
            lowest: _mm512_reduce_min_epu32(_mm512_min_epu32(low_or_all, high_or_all)),
            highest: _mm512_reduce_max_epu32(_mm512_max_epu32(low, high)),
            bits: _mm512_reduce_or_epi32(_mm512_or_si512(low, high)) as u32,
        }
    }

    /// The first of sixteen addresses, and their pattern: `STRIDE` bytes apart if in order. If its lane is inactive,
    /// the address may be negative.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
    pub(crate) fn lie<const STRIDE: usize>(places: __m512i, on: u16) -> (isize, Lie) {
        let numbers = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        let in_order = _mm512_mullo_epi32(numbers, _mm512_set1_epi32(STRIDE as i32));
        let first = _mm512_castsi512_si128(places);
        let relative = _mm512_sub_epi32(places, _mm512_broadcastd_epi32(first));
        let start = _mm_cvtsi128_si32(first) as isize;
        if _mm512_mask_test_epi32_mask(on, relative, relative) == 0 {
            (start, Lie::Same)
        } else if _mm512_mask_cmpneq_epi32_mask(on, relative, in_order) == 0 {
            (start, Lie::InOrder)
        } else {
            (start, Lie::Anyhow)
        }
    }

    /// Transposes in each quarter of the registers: four words of each of four alternating lanes become words of four
    /// lanes each.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
    fn transpose(lanes: [__m512i; 4]) -> [__m512i; 4] {
        let (a, b) = (_mm512_unpacklo_epi32(lanes[0], lanes[1]), _mm512_unpackhi_epi32(lanes[0], lanes[1]));
        let (c, d) = (_mm512_unpacklo_epi32(lanes[2], lanes[3]), _mm512_unpackhi_epi32(lanes[2], lanes[3]));
        [
            _mm512_unpacklo_epi64(a, c),
            _mm512_unpackhi_epi64(a, c),
            _mm512_unpacklo_epi64(b, d),
            _mm512_unpackhi_epi64(b, d),
        ]
    }

    /// Four words of each of sixteen lanes.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
    unsafe fn load_fours(at: *const u8, places: __m512i) -> [__m512i; 4] {
        let mut offsets = [0u32; 16];
        let mut lanes = [_mm512_setzero_si512(); 4];
        // SAFETY: the caller guarantees sixteen bytes at each address.
        unsafe {
            _mm512_storeu_si512(offsets.as_mut_ptr().cast(), places);
            for first in 0..4 {
                let one = _mm_loadu_si128(at.add(offsets[first] as usize).cast());
                let two = _mm_loadu_si128(at.add(offsets[first + 4] as usize).cast());
                let three = _mm_loadu_si128(at.add(offsets[first + 8] as usize).cast());
                let four = _mm_loadu_si128(at.add(offsets[first + 12] as usize).cast());
                let low = _mm512_inserti32x4::<1>(_mm512_castsi128_si512(one), two);
                lanes[first] = _mm512_inserti32x4::<3>(_mm512_inserti32x4::<2>(low, three), four);
            }
        }
        transpose(lanes)
    }

    /// Two words of each of sixteen lanes.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
    unsafe fn load_twos(at: *const u8, places: __m512i) -> [__m512i; 2] {
        let (lower, upper) = (_mm512_castsi512_si256(places), _mm512_extracti64x4_epi64::<1>(places));
        // SAFETY: the caller guarantees eight bytes at each address.
        let (low, high) =
            unsafe { (_mm512_i32gather_epi64::<1>(lower, at.cast()), _mm512_i32gather_epi64::<1>(upper, at.cast())) };
        let even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
        let odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
        [_mm512_permutex2var_epi32(low, even, high), _mm512_permutex2var_epi32(low, odd, high)]
    }

    /// Sixteen lanes of the register of a word.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
    pub(crate) unsafe fn row(rows: *mut Lanes, words: &Words, word: usize, part: usize) -> *mut i32 {
        // SAFETY: the caller guarantees the register; a row has 32 lanes.
        unsafe { rows.add(words.registers[word & 3] as usize).cast::<i32>().add(part * 16) }
    }

    /// Writes the active lanes of sixteen. It avoids a masked store, because the host does not forward that to the next
    /// load.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
    pub(crate) unsafe fn put(row: *mut i32, on: u16, values: __m512i) {
        // SAFETY: the caller guarantees the row.
        unsafe {
            let old = _mm512_loadu_si512(row.cast());
            _mm512_storeu_si512(row.cast(), _mm512_mask_mov_epi32(old, on, values));
        }
    }

    /// The function that loads that many words with that many contiguous ones.
    pub(crate) fn load_of(count: u8, run: u8) -> Load {
        match (count, run) {
            (1, _) => load::<1, 1>,
            (2, 2) => load::<2, 2>,
            (2, _) => load::<2, 1>,
            (3, _) => load::<3, 1>,
            (_, 4) => load::<4, 4>,
            (_, 2) => load::<4, 2>,
            _ => load::<4, 1>,
        }
    }

    /// Loads sixteen lanes at a time.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
    unsafe fn load<const COUNT: usize, const RUN: usize>(
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
        for part in 0..2 {
            let (places, on) = (_mm512_sub_epi32(halves[part], lowest), (on >> (part * 16)) as u16);
            // SAFETY: the caller guarantees the words of active lanes, and nothing is touched for the others.
            unsafe {
                match on {
                    u16::MAX => load_all::<COUNT, RUN>(base, places, words, rows, part),
                    0 => {}
                    _ => load_some::<COUNT>(base, places, words, rows, part, on),
                }
            }
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
    unsafe fn load_all<const COUNT: usize, const RUN: usize>(
        base: *mut u8,
        places: __m512i,
        words: &Words,
        rows: *mut Lanes,
        part: usize,
    ) {
        let (start, lie) = lie::<4>(places, u16::MAX);
        // SAFETY: as for `load`.
        unsafe {
            match lie {
                Lie::Same => {
                    for word in 0..COUNT {
                        let at = base.add(words.offsets[word] as usize).offset(start).cast::<i32>();
                        let found = _mm512_set1_epi32(at.read_unaligned());
                        _mm512_storeu_si512(row(rows, words, word, part).cast(), found);
                    }
                }
                Lie::InOrder => {
                    for word in 0..COUNT {
                        let at = base.add(words.offsets[word] as usize).offset(start);
                        _mm512_storeu_si512(row(rows, words, word, part).cast(), _mm512_loadu_si512(at.cast()));
                    }
                }
                Lie::Anyhow if RUN == 4 => {
                    let found = load_fours(base.add(words.offsets[0] as usize), places);
                    for word in 0..COUNT {
                        _mm512_storeu_si512(row(rows, words, word, part).cast(), found[word]);
                    }
                }
                Lie::Anyhow if RUN == 2 => {
                    for pair in 0..COUNT / 2 {
                        let found = load_twos(base.add(words.offsets[pair * 2] as usize), places);
                        _mm512_storeu_si512(row(rows, words, pair * 2, part).cast(), found[0]);
                        _mm512_storeu_si512(row(rows, words, pair * 2 + 1, part).cast(), found[1]);
                    }
                }
                Lie::Anyhow => {
                    for word in 0..COUNT {
                        let at = base.add(words.offsets[word] as usize);
                        let found = _mm512_i32gather_epi32::<1>(places, at.cast());
                        _mm512_storeu_si512(row(rows, words, word, part).cast(), found);
                    }
                }
            }
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
    unsafe fn load_some<const COUNT: usize>(
        base: *mut u8,
        places: __m512i,
        words: &Words,
        rows: *mut Lanes,
        part: usize,
        on: u16,
    ) {
        let (start, lie) = lie::<4>(places, on);
        for word in 0..COUNT {
            // SAFETY: as for `load`.
            unsafe {
                let at = base.add(words.offsets[word] as usize);
                let found = match lie {
                    Lie::Same => _mm512_set1_epi32(at.offset(start).cast::<i32>().read_unaligned()),
                    Lie::InOrder => _mm512_maskz_loadu_epi32(on, at.wrapping_offset(start).cast()),
                    Lie::Anyhow => _mm512_mask_i32gather_epi32::<1>(places, on, places, at.cast()),
                };
                put(row(rows, words, word, part), on, found);
            }
        }
    }

    /// Stores sixteen lanes at a time, so that the last one wins if lanes overlap. Returns `false` and moves nothing
    /// for words that are not contiguous.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
    pub(crate) unsafe fn store(
        base: *mut u8,
        addresses: *const Lanes,
        lowest: u32,
        words: &Words,
        rows: *mut Lanes,
        on: u32,
    ) -> bool {
        if words.count != words.run {
            return false;
        }
        let lowest = _mm512_set1_epi32(lowest as i32);
        for part in 0..2 {
            let on = (on >> (part * 16)) as u16;
            // SAFETY: as for loads; only writable memory is written.
            unsafe {
                let places = _mm512_sub_epi32(sixteen(addresses, part), lowest);
                let at = base.add(words.offsets[0] as usize);
                let first = _mm512_loadu_si512(row(rows, words, 0, part).cast());
                match words.run {
                    4 => {
                        let second = _mm512_loadu_si512(row(rows, words, 1, part).cast());
                        let third = _mm512_loadu_si512(row(rows, words, 2, part).cast());
                        let fourth = _mm512_loadu_si512(row(rows, words, 3, part).cast());
                        store_fours(at, places, transpose([first, second, third, fourth]), on);
                    }
                    2 => {
                        let second = _mm512_loadu_si512(row(rows, words, 1, part).cast());
                        store_twos(at, places, first, second, on);
                    }
                    _ => match lie::<4>(places, on) {
                        (start, Lie::InOrder) => {
                            _mm512_mask_storeu_epi32(at.wrapping_offset(start).cast(), on, first);
                        }
                        _ => _mm512_mask_i32scatter_epi32::<1>(at.cast(), on, places, first),
                    },
                }
            }
        }
        true
    }

    /// Stores four words of each lane, lane after lane.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
    unsafe fn store_fours(at: *mut u8, places: __m512i, lanes: [__m512i; 4], on: u16) {
        let (mut offsets, mut values) = ([0u32; 16], [[0u32; 16]; 4]);
        // SAFETY: the caller guarantees sixteen bytes at the address of each active lane.
        unsafe {
            _mm512_storeu_si512(offsets.as_mut_ptr().cast(), places);
            for first in 0..4 {
                _mm512_storeu_si512(values[first].as_mut_ptr().cast(), lanes[first]);
            }
            let mut left = on as u32;
            while left != 0 {
                let lane = left.trailing_zeros() as usize & 15;
                left &= left - 1;
                let value = _mm_loadu_si128(values[lane & 3].as_ptr().add(lane / 4 * 4).cast());
                _mm_storeu_si128(at.add(offsets[lane] as usize).cast(), value);
            }
        }
    }

    /// Stores two words of each lane. The host's scatter writes one lane after the other.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
    unsafe fn store_twos(at: *mut u8, places: __m512i, first: __m512i, second: __m512i, on: u16) {
        let numbers = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
        let low = _mm512_permutex2var_epi32(first, numbers, second);
        let high = _mm512_permutex2var_epi32(first, _mm512_add_epi32(numbers, _mm512_set1_epi32(8)), second);
        let (lower, upper) = (_mm512_castsi512_si256(places), _mm512_extracti64x4_epi64::<1>(places));
        // SAFETY: the caller guarantees eight bytes at the address of each active lane.
        unsafe {
            _mm512_mask_i32scatter_epi64::<1>(at.cast(), on as u8, lower, low);
            _mm512_mask_i32scatter_epi64::<1>(at.cast(), (on >> 8) as u8, upper, high);
        }
    }
}
