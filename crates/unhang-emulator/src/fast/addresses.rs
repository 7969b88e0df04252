//! Where the lanes of a wave load or store, and the transfer itself.

#[cfg(target_arch = "x86_64")]
use super::parts;
#[cfg(target_arch = "x86_64")]
use super::words;
use super::words::{Span, Words};
use crate::access::WordPart;
use crate::host::Vectors;
use crate::memory_access::widen;
use crate::wave::{LANES, Lanes};

impl Words {
    /// A byte or half a word.
    pub(super) fn part(store: bool, part: WordPart, register: u8, offset: u32) -> Words {
        Words {
            part,
            reach: offset + part.size(),
            #[cfg(target_arch = "x86_64")]
            load: parts::load_of(part),
            ..Words::new(store, 1, [register; 4], [offset; 4])
        }
    }
}

/// The addresses of lanes, and checks on them.
pub(crate) struct Addresses {
    row: *const Lanes,
    on: u32,
}

impl Addresses {
    /// # Safety
    ///
    /// The row must live as long as this is used, and at least one lane must be active.
    #[inline(always)]
    pub(super) unsafe fn new(row: *const Lanes, on: u32) -> Addresses {
        Addresses { row, on }
    }

    #[inline(always)]
    fn lanes(&self) -> Lanes {
        // SAFETY: the row is alive, as required.
        unsafe { self.row.read() }
    }

    /// The span of addresses in the active lanes.
    #[inline(always)]
    pub(super) fn span<const WIDE: bool>(&self, vectors: Vectors<WIDE>) -> Span {
        #[cfg(target_arch = "x86_64")]
        if vectors.has_avx512() {
            // SAFETY: the host has the instructions, as `vectors` proves, and the row is alive.
            return unsafe { words::avx512::span(self.row, self.on) };
        }
        let (addresses, mut span) = (self.lanes(), Span { lowest: u32::MAX, highest: 0, bits: 0 });
        for lane in (0..LANES).filter(|lane| self.on >> lane & 1 == 1) {
            span.lowest = span.lowest.min(addresses[lane]);
            span.highest = span.highest.max(addresses[lane]);
            span.bits |= addresses[lane];
        }
        span
    }

    /// Whether no active lane has an address above a limit. This comparison is cheaper than finding the highest
    /// address.
    #[inline(always)]
    pub(super) fn are_within<const WIDE: bool>(&self, vectors: Vectors<WIDE>, limit: u32) -> bool {
        #[cfg(target_arch = "x86_64")]
        if vectors.has_avx512() {
            // SAFETY: as above.
            return unsafe { words::avx512::above(self.row, limit) } & self.on == 0;
        }
        let addresses = self.lanes();
        (0..LANES).fold(0, |above, lane| above | ((addresses[lane] > limit) as u32) << lane) & self.on == 0
    }

    /// Whether each active lane's address plus an offset is a multiple of a power of two.
    #[inline(always)]
    pub(super) fn are_aligned<const WIDE: bool>(&self, vectors: Vectors<WIDE>, size: u32, offset: u32) -> bool {
        #[cfg(target_arch = "x86_64")]
        if vectors.has_avx512() {
            // SAFETY: as above.
            return unsafe { words::avx512::beside(self.row, size - 1, offset) } & self.on == 0;
        }
        let addresses = self.lanes();
        (0..LANES).all(|lane| self.on >> lane & 1 == 0 || addresses[lane].wrapping_add(offset) & (size - 1) == 0)
    }

    /// The one value of all active lanes, if there is one.
    #[inline(always)]
    pub(super) fn only<const WIDE: bool>(&self, vectors: Vectors<WIDE>) -> Option<u32> {
        // SAFETY: the row is alive, as required.
        let first = unsafe { self.row.cast::<u32>().add(self.on.trailing_zeros() as usize & 31).read() };
        #[cfg(target_arch = "x86_64")]
        if vectors.has_avx512() {
            // SAFETY: as above.
            return (unsafe { words::avx512::unlike(self.row, first) } & self.on == 0).then_some(first);
        }
        let lanes = self.lanes();
        let different = (0..LANES).fold(0, |mask, lane| mask | ((lanes[lane] != first) as u32) << lane) & self.on;
        (different == 0).then_some(first)
    }

    /// Moves words between the registers and memory. Each lane's are at `base`, plus its address, minus `lowest`.
    ///
    /// # Safety
    ///
    /// For each active lane, each word, or its part, at `base + address - lowest + words.offsets[…]` must be in memory
    /// that stays alive. It must be writable if it is stored to. No address is 2³¹ above `lowest`. Every register of
    /// `words` must be one of `rows`.
    #[inline(always)]
    pub(super) unsafe fn transfer<const WIDE: bool>(
        &self,
        vectors: Vectors<WIDE>,
        base: *mut u8,
        lowest: u32,
        words: &Words,
        rows: *mut Lanes,
    ) {
        #[cfg(target_arch = "x86_64")]
        if vectors.has_avx512() {
            // SAFETY: the host has the instructions; the rest is required of the caller.
            unsafe {
                if !words.store {
                    (words.load)(base, self.row, lowest, words, rows, self.on);
                    return;
                }
                if words.part != WordPart::Word {
                    parts::store(base, self.row, lowest, words, rows, self.on);
                    return;
                }
                if words::avx512::store(base, self.row, lowest, words, rows, self.on) {
                    return;
                }
            }
        }
        let mut offsets = self.lanes();
        for lane in 0..LANES {
            offsets[lane] = offsets[lane].wrapping_sub(lowest);
        }
        // SAFETY: as required of the caller.
        unsafe { transfer_one_by_one(base, &offsets, words, rows, self.on) };
    }
}

/// One lane after the other: if stores overlap, the last one wins.
unsafe fn transfer_one_by_one(base: *mut u8, offsets: &Lanes, words: &Words, rows: *mut Lanes, on: u32) {
    let mut left = on;
    while left != 0 {
        let lane = left.trailing_zeros() as usize;
        left &= left - 1;
        for place in 0..words.count as usize {
            // SAFETY: the caller guarantees the words of active lanes and the registers.
            unsafe {
                let at = base.add(offsets[lane] as usize + words.offsets[place] as usize);
                let value = rows.add(words.registers[place] as usize).cast::<u32>().add(lane);
                match words.store {
                    true => put_part(at, words.part, value.read()),
                    false => value.write(widen(get_part(at, words.part), words.part, value.read())),
                }
            }
        }
    }
}

/// The part at an address, extended with zeros.
unsafe fn get_part(at: *const u8, part: WordPart) -> u32 {
    // SAFETY: the caller guarantees that many bytes.
    unsafe {
        match part.size() {
            1 => at.read() as u32,
            2 => u16::from_le(at.cast::<u16>().read_unaligned()) as u32,
            _ => u32::from_le(at.cast::<u32>().read_unaligned()),
        }
    }
}

unsafe fn put_part(at: *mut u8, part: WordPart, value: u32) {
    let value = if let WordPart::InHalf { high: true, .. } = part { value >> 16 } else { value };
    // SAFETY: the caller guarantees that many writable bytes.
    unsafe {
        match part.size() {
            1 => at.write(value as u8),
            2 => at.cast::<u16>().write_unaligned((value as u16).to_le()),
            _ => at.cast::<u32>().write_unaligned(value.to_le()),
        }
    }
}
