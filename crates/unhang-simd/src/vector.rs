//! Vectors of f32: one trait, and its AVX-512, AVX2 and portable forms.
//!
//! Every method is inlined into a function that carries the target features (see [`crate::kernels`]). Outside of one
//! none may be called, because the processor may lack the instructions. That is the one safety condition they share,
//! together with: pointers are good for the lanes that a method reads or writes.

#![allow(clippy::missing_safety_doc, reason = "every `unsafe fn` here has the module's own condition above")]

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

/// A vector of f32.
pub(crate) trait Vector: Copy {
    /// Numbers in it.
    const LANES: usize;
    /// How many the registers hold.
    const REGISTERS: usize;

    unsafe fn zero() -> Self;
    unsafe fn splat(value: f32) -> Self;
    unsafe fn load(from: *const f32) -> Self;
    unsafe fn store(self, to: *mut f32);
    /// Loads the first `count` numbers and zeros behind them; reads nothing else.
    unsafe fn load_part(from: *const f32, count: usize) -> Self;
    /// Stores the first `count` numbers; writes nothing else.
    unsafe fn store_part(self, to: *mut f32, count: usize);
    /// `self × by + to`.
    unsafe fn multiply_add(self, by: Self, to: Self) -> Self;
    unsafe fn add(self, other: Self) -> Self;
    /// The sum of all lanes.
    unsafe fn total(self) -> f32;
    /// Asks for the cache line there, to be written; touches nothing.
    unsafe fn prefetch_for_writing(to: *mut f32);
    /// Asks for the cache line there, to be read before long; touches nothing.
    unsafe fn prefetch(from: *const f32);
    /// Asks for the cache line there, to be read next; touches nothing.
    unsafe fn prefetch_now(from: *const f32);
    /// The lanes from `begin` to before `end` from where they lie, counted from `from`, and zeros in the others. Reads
    /// nothing else, so that `from` itself may lie before what can be read.
    unsafe fn load_lanes(from: *const f32, begin: usize, end: usize) -> Self;
    /// The first of every two numbers of both vectors, one after the other.
    unsafe fn even(self, other: Self) -> Self;
    /// Like `load_lanes`, for numbers that are `APART` apart: one, two or four.
    #[inline(always)]
    unsafe fn load_apart<const APART: usize>(from: *const f32, begin: usize, end: usize) -> Self {
        // The numbers behind the last of them are not read.
        let (first, last) = (APART * begin, (APART * end).saturating_sub(APART - 1));
        let part = |vector: usize| {
            let before = vector * Self::LANES;
            // SAFETY: the same conditions, for one vector's lanes.
            unsafe {
                Self::load_lanes(from.wrapping_add(before), first.saturating_sub(before), last.saturating_sub(before))
            }
        };
        // SAFETY: the features are there.
        unsafe {
            match APART {
                1 => part(0),
                2 => part(0).even(part(1)),
                4 => part(0).even(part(1)).even(part(2).even(part(3))),
                _ => unreachable!("numbers one, two or four apart"),
            }
        }
    }
    /// Both vectors' numbers in turns: the first half of them, and the second.
    unsafe fn interleave(self, other: Self) -> [Self; 2];
    /// `to[offsets[j] + i] = from[i × row_step + j]` for `rows` ≤ LANES and `columns` ≤ LANES.
    unsafe fn transpose(
        from: *const f32,
        row_step: usize,
        rows: usize,
        columns: usize,
        to: *mut f32,
        offsets: *const usize,
    );
}

/// Eight numbers in an array: what the compiler makes of them without any target feature.
#[derive(Clone, Copy)]
pub(crate) struct Portable([f32; 8]);

impl Vector for Portable {
    const LANES: usize = 8;
    const REGISTERS: usize = 8;

    #[inline(always)]
    unsafe fn zero() -> Self {
        Portable([0.0; 8])
    }

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        Portable([value; 8])
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the caller's pointer is good for eight numbers; an array of f32 has no other alignment than f32.
        Portable(unsafe { from.cast::<[f32; 8]>().read() })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: as in `load`.
        unsafe { to.cast::<[f32; 8]>().write(self.0) }
    }

    #[inline(always)]
    unsafe fn load_part(from: *const f32, count: usize) -> Self {
        // SAFETY: only `count` numbers are read.
        Portable(std::array::from_fn(|i| if i < count { unsafe { *from.add(i) } } else { 0.0 }))
    }

    #[inline(always)]
    unsafe fn store_part(self, to: *mut f32, count: usize) {
        for (i, &value) in self.0.iter().enumerate().take(count) {
            // SAFETY: only `count` numbers are written.
            unsafe { *to.add(i) = value };
        }
    }

    #[inline(always)]
    unsafe fn multiply_add(self, by: Self, to: Self) -> Self {
        // Not `mul_add`: without the instruction that is a call for each number.
        Portable(std::array::from_fn(|i| self.0[i] * by.0[i] + to.0[i]))
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        Portable(std::array::from_fn(|i| self.0[i] + other.0[i]))
    }

    #[inline(always)]
    unsafe fn total(self) -> f32 {
        let [a, b, c, d, e, f, g, h] = self.0;
        ((a + e) + (c + g)) + ((b + f) + (d + h))
    }

    #[inline(always)]
    unsafe fn prefetch_for_writing(_: *mut f32) {}

    #[inline(always)]
    unsafe fn prefetch(_: *const f32) {}

    #[inline(always)]
    unsafe fn prefetch_now(_: *const f32) {}

    #[inline(always)]
    unsafe fn load_lanes(from: *const f32, begin: usize, end: usize) -> Self {
        // SAFETY: only those lanes are read.
        let lane = |i: usize| unsafe { *from.wrapping_add(i) };
        Portable(std::array::from_fn(|i| if (begin..end).contains(&i) { lane(i) } else { 0.0 }))
    }

    #[inline(always)]
    unsafe fn even(self, other: Self) -> Self {
        Portable(std::array::from_fn(|i| if i < 4 { self.0[2 * i] } else { other.0[2 * i - 8] }))
    }

    #[inline(always)]
    unsafe fn interleave(self, other: Self) -> [Self; 2] {
        let turn = |i: usize| if i.is_multiple_of(2) { self.0[i / 2] } else { other.0[i / 2] };
        [Portable(std::array::from_fn(turn)), Portable(std::array::from_fn(|i| turn(8 + i)))]
    }

    #[inline(always)]
    unsafe fn transpose(
        from: *const f32,
        row_step: usize,
        rows: usize,
        columns: usize,
        to: *mut f32,
        offsets: *const usize,
    ) {
        for j in 0..columns {
            // SAFETY: the caller vouches for `columns` offsets and for the numbers that they and the rows name.
            unsafe {
                let to = to.add(*offsets.add(j));
                for i in 0..rows {
                    *to.add(i) = *from.add(i * row_step + j);
                }
            }
        }
    }
}

/// Sixteen numbers: AVX-512 F.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub(crate) struct Avx512(__m512);

#[cfg(target_arch = "x86_64")]
impl Avx512 {
    #[inline(always)]
    fn mask(count: usize) -> u16 {
        if count >= 16 { u16::MAX } else { (1u16 << count) - 1 }
    }
}

// SAFETY of every block below: the features are there (the trait's condition), and each intrinsic touches just the
// numbers that the method's contract names. Masked ones do not touch the others.
#[cfg(target_arch = "x86_64")]
#[allow(clippy::undocumented_unsafe_blocks, reason = "said above for all of them")]
impl Vector for Avx512 {
    const LANES: usize = 16;
    const REGISTERS: usize = 32;

    #[inline(always)]
    unsafe fn zero() -> Self {
        Avx512(unsafe { _mm512_setzero_ps() })
    }

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        Avx512(unsafe { _mm512_set1_ps(value) })
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        Avx512(unsafe { _mm512_loadu_ps(from) })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        unsafe { _mm512_storeu_ps(to, self.0) }
    }

    #[inline(always)]
    unsafe fn load_part(from: *const f32, count: usize) -> Self {
        Avx512(unsafe { _mm512_maskz_loadu_ps(Avx512::mask(count), from) })
    }

    #[inline(always)]
    unsafe fn store_part(self, to: *mut f32, count: usize) {
        unsafe { _mm512_mask_storeu_ps(to, Avx512::mask(count), self.0) }
    }

    #[inline(always)]
    unsafe fn multiply_add(self, by: Self, to: Self) -> Self {
        Avx512(unsafe { _mm512_fmadd_ps(self.0, by.0, to.0) })
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        Avx512(unsafe { _mm512_add_ps(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn total(self) -> f32 {
        unsafe { _mm512_reduce_add_ps(self.0) }
    }

    #[inline(always)]
    unsafe fn prefetch_for_writing(to: *mut f32) {
        unsafe { _mm_prefetch::<_MM_HINT_ET0>(to.cast_const().cast()) }
    }

    #[inline(always)]
    unsafe fn prefetch(from: *const f32) {
        unsafe { _mm_prefetch::<_MM_HINT_T1>(from.cast()) }
    }

    #[inline(always)]
    unsafe fn prefetch_now(from: *const f32) {
        unsafe { _mm_prefetch::<_MM_HINT_T0>(from.cast()) }
    }

    #[inline(always)]
    unsafe fn load_lanes(from: *const f32, begin: usize, end: usize) -> Self {
        Avx512(unsafe { _mm512_maskz_loadu_ps(Avx512::mask(end) & !Avx512::mask(begin), from) })
    }

    #[inline(always)]
    unsafe fn even(self, other: Self) -> Self {
        unsafe {
            let index = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
            Avx512(_mm512_permutex2var_ps(self.0, index, other.0))
        }
    }

    #[inline(always)]
    unsafe fn interleave(self, other: Self) -> [Self; 2] {
        unsafe {
            let low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
            let high = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
            [low, high].map(|index| Avx512(_mm512_permutex2var_ps(self.0, index, other.0)))
        }
    }

    #[inline(always)]
    unsafe fn transpose(
        from: *const f32,
        row_step: usize,
        rows: usize,
        columns: usize,
        to: *mut f32,
        offsets: *const usize,
    ) {
        unsafe {
            let mask = Avx512::mask(columns);
            let mut r = [_mm512_setzero_ps(); 16];
            for (i, row) in r.iter_mut().enumerate() {
                if i < rows {
                    *row = _mm512_maskz_loadu_ps(mask, from.add(i * row_step));
                }
            }
            // Pairs, then fours within each quarter; then quarters are exchanged as a whole, twice.
            let mut t = [_mm512_setzero_ps(); 16];
            for i in 0..8 {
                t[2 * i] = _mm512_unpacklo_ps(r[2 * i], r[2 * i + 1]);
                t[2 * i + 1] = _mm512_unpackhi_ps(r[2 * i], r[2 * i + 1]);
            }
            for i in 0..4 {
                let [a, b, c, d] = [t[4 * i], t[4 * i + 1], t[4 * i + 2], t[4 * i + 3]];
                r[4 * i] = _mm512_shuffle_ps::<0x44>(a, c);
                r[4 * i + 1] = _mm512_shuffle_ps::<0xee>(a, c);
                r[4 * i + 2] = _mm512_shuffle_ps::<0x44>(b, d);
                r[4 * i + 3] = _mm512_shuffle_ps::<0xee>(b, d);
            }
            for i in 0..4 {
                let [a, b, c, d] = [r[i], r[4 + i], r[8 + i], r[12 + i]];
                let low = [_mm512_shuffle_f32x4::<0x88>(a, b), _mm512_shuffle_f32x4::<0x88>(c, d)];
                let high = [_mm512_shuffle_f32x4::<0xdd>(a, b), _mm512_shuffle_f32x4::<0xdd>(c, d)];
                t[i] = _mm512_shuffle_f32x4::<0x88>(low[0], low[1]);
                t[8 + i] = _mm512_shuffle_f32x4::<0xdd>(low[0], low[1]);
                t[4 + i] = _mm512_shuffle_f32x4::<0x88>(high[0], high[1]);
                t[12 + i] = _mm512_shuffle_f32x4::<0xdd>(high[0], high[1]);
            }
            let mask = Avx512::mask(rows);
            for (j, column) in t.iter().enumerate() {
                if j < columns {
                    _mm512_mask_storeu_ps(to.add(*offsets.add(j)), mask, *column);
                }
            }
        }
    }
}

/// Eight numbers: AVX2 and FMA.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub(crate) struct Avx2(__m256);

#[cfg(target_arch = "x86_64")]
impl Avx2 {
    #[inline(always)]
    unsafe fn mask(count: usize) -> __m256i {
        static LANES: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];
        let count = count.min(8);
        // SAFETY: eight numbers from 8 - count on lie inside the sixteen.
        unsafe { _mm256_loadu_si256(LANES.as_ptr().add(8 - count).cast()) }
    }
}

// SAFETY of every block below: as for AVX-512.
#[cfg(target_arch = "x86_64")]
#[allow(clippy::undocumented_unsafe_blocks, reason = "said above for all of them")]
impl Vector for Avx2 {
    const LANES: usize = 8;
    const REGISTERS: usize = 16;

    #[inline(always)]
    unsafe fn zero() -> Self {
        Avx2(unsafe { _mm256_setzero_ps() })
    }

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        Avx2(unsafe { _mm256_set1_ps(value) })
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        Avx2(unsafe { _mm256_loadu_ps(from) })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        unsafe { _mm256_storeu_ps(to, self.0) }
    }

    #[inline(always)]
    unsafe fn load_part(from: *const f32, count: usize) -> Self {
        if count >= 8 {
            return unsafe { Avx2::load(from) };
        }
        Avx2(unsafe { _mm256_maskload_ps(from, Avx2::mask(count)) })
    }

    #[inline(always)]
    unsafe fn store_part(self, to: *mut f32, count: usize) {
        // Some processors take dozens of cycles for a store with a mask.
        if count >= 8 {
            return unsafe { self.store(to) };
        }
        unsafe { _mm256_maskstore_ps(to, Avx2::mask(count), self.0) }
    }

    #[inline(always)]
    unsafe fn multiply_add(self, by: Self, to: Self) -> Self {
        Avx2(unsafe { _mm256_fmadd_ps(self.0, by.0, to.0) })
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        Avx2(unsafe { _mm256_add_ps(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn total(self) -> f32 {
        unsafe {
            let four = _mm_add_ps(_mm256_castps256_ps128(self.0), _mm256_extractf128_ps::<1>(self.0));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
        }
    }

    #[inline(always)]
    unsafe fn prefetch_for_writing(to: *mut f32) {
        unsafe { _mm_prefetch::<_MM_HINT_ET0>(to.cast_const().cast()) }
    }

    #[inline(always)]
    unsafe fn prefetch(from: *const f32) {
        unsafe { _mm_prefetch::<_MM_HINT_T1>(from.cast()) }
    }

    #[inline(always)]
    unsafe fn prefetch_now(from: *const f32) {
        unsafe { _mm_prefetch::<_MM_HINT_T0>(from.cast()) }
    }

    #[inline(always)]
    unsafe fn load_lanes(from: *const f32, begin: usize, end: usize) -> Self {
        Avx2(unsafe { _mm256_maskload_ps(from, _mm256_andnot_si256(Avx2::mask(begin), Avx2::mask(end))) })
    }

    #[inline(always)]
    unsafe fn even(self, other: Self) -> Self {
        unsafe {
            let mixed = _mm256_shuffle_ps::<0x88>(self.0, other.0);
            Avx2(_mm256_castpd_ps(_mm256_permute4x64_pd::<0xd8>(_mm256_castps_pd(mixed))))
        }
    }

    #[inline(always)]
    unsafe fn interleave(self, other: Self) -> [Self; 2] {
        unsafe {
            let (low, high) = (_mm256_unpacklo_ps(self.0, other.0), _mm256_unpackhi_ps(self.0, other.0));
            let halves = [_mm256_permute2f128_ps::<0x20>(low, high), _mm256_permute2f128_ps::<0x31>(low, high)];
            halves.map(Avx2)
        }
    }

    #[inline(always)]
    unsafe fn transpose(
        from: *const f32,
        row_step: usize,
        rows: usize,
        columns: usize,
        to: *mut f32,
        offsets: *const usize,
    ) {
        unsafe {
            let mut r = [_mm256_setzero_ps(); 8];
            for (i, row) in r.iter_mut().enumerate() {
                if i < rows {
                    *row = Avx2::load_part(from.add(i * row_step), columns).0;
                }
            }
            let mut t = [_mm256_setzero_ps(); 8];
            for i in 0..4 {
                t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
                t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
            }
            for i in 0..2 {
                let [a, b, c, d] = [t[4 * i], t[4 * i + 1], t[4 * i + 2], t[4 * i + 3]];
                r[4 * i] = _mm256_shuffle_ps::<0x44>(a, c);
                r[4 * i + 1] = _mm256_shuffle_ps::<0xee>(a, c);
                r[4 * i + 2] = _mm256_shuffle_ps::<0x44>(b, d);
                r[4 * i + 3] = _mm256_shuffle_ps::<0xee>(b, d);
            }
            for i in 0..4 {
                t[i] = _mm256_permute2f128_ps::<0x20>(r[i], r[4 + i]);
                t[4 + i] = _mm256_permute2f128_ps::<0x31>(r[i], r[4 + i]);
            }
            for (j, column) in t.iter().enumerate() {
                if j < columns {
                    Avx2(*column).store_part(to.add(*offsets.add(j)), rows);
                }
            }
        }
    }
}
