//! Kernels that copy, transpose and add, and the fingerprint of what they would copy.

use super::PaddedRows;
use crate::vector::Vector;

/// # Safety
/// As [`Vector::transpose`], for any number of rows and columns.
#[inline(always)]
pub(super) unsafe fn transpose<V: Vector>(
    from: *const f32,
    row_step: usize,
    rows: usize,
    columns: usize,
    to: *mut f32,
    offsets: *const usize,
) {
    let mut i = 0;
    while i < rows {
        let mut j = 0;
        while j < columns {
            // SAFETY: blocks of the same rows and columns.
            unsafe {
                V::transpose(
                    from.add(i * row_step + j),
                    row_step,
                    (rows - i).min(V::LANES),
                    (columns - j).min(V::LANES),
                    to.add(i),
                    offsets.add(j),
                );
            }
            j += V::LANES;
        }
        i += V::LANES;
    }
}

/// # Safety
/// `from` is good for `(count - 1) × step + 1` numbers, `to` for `count`; the features of `V` are on.
#[inline(always)]
pub(super) unsafe fn row<V: Vector>(from: *const f32, step: usize, count: usize, to: *mut f32) {
    // SAFETY: the function's own conditions, and the loop stays below `count`.
    unsafe {
        match step {
            1 => row_apart::<V, 1>(from, count, to),
            2 => row_apart::<V, 2>(from, count, to),
            4 => row_apart::<V, 4>(from, count, to),
            _ => (0..count).for_each(|i| *to.add(i) = *from.add(i * step)),
        }
    }
}

/// # Safety
/// As [`row`].
#[inline(always)]
unsafe fn row_apart<V: Vector, const APART: usize>(from: *const f32, count: usize, to: *mut f32) {
    let mut i = 0;
    // SAFETY: whole vectors stay below `count`, and the part behind them is loaded and stored as such.
    unsafe {
        while i + V::LANES <= count {
            V::load_apart::<APART>(from.add(APART * i), 0, V::LANES).store(to.add(i));
            i += V::LANES;
        }
        if i < count {
            V::load_apart::<APART>(from.add(APART * i), 0, count - i).store_part(to.add(i), count - i);
        }
    }
}

/// # Safety
/// Both pointers are good for `count` numbers in each of the rows; the features of `V` are on.
#[inline(always)]
pub(super) unsafe fn rows<V: Vector>(
    from: *const f32,
    from_step: usize,
    to: *mut f32,
    to_step: usize,
    count: usize,
    rows: usize,
) {
    for r in 0..rows {
        // SAFETY: one of the rows.
        unsafe { row::<V>(from.add(r * from_step), 1, count, to.add(r * to_step)) };
    }
}

/// # Safety
/// As [`rows`]. Nothing has to be where it is asked for.
#[inline(always)]
pub(super) unsafe fn rows_ahead<V: Vector>(
    from: *const f32,
    from_step: usize,
    to: *mut f32,
    to_step: usize,
    count: usize,
    rows: usize,
    ahead: isize,
) {
    for r in 0..rows {
        // SAFETY: one of the rows.
        unsafe {
            let from = from.add(r * from_step);
            for i in (0..count).step_by(V::LANES.max(16)) {
                V::prefetch(from.wrapping_offset(ahead).wrapping_add(i));
            }
            row::<V>(from, 1, count, to.add(r * to_step));
        }
    }
}

/// # Safety
/// Both pointers are good for what the fields describe; the features of `V` are on.
#[inline(always)]
pub(super) unsafe fn padded_rows<V: Vector>(rows: &PaddedRows) {
    // SAFETY: the function's own conditions.
    unsafe {
        match rows.apart {
            1 => padded_rows_apart::<V, 1>(*rows),
            2 => padded_rows_apart::<V, 2>(*rows),
            4 => padded_rows_apart::<V, 4>(*rows),
            _ => long_rows::<V>(*rows),
        }
    }
}

/// Vectors of a row that is cut into columns of vectors.
const NARROW: usize = 4;

/// # Safety
/// As [`padded_rows`], for numbers that are that far apart.
#[inline(always)]
unsafe fn padded_rows_apart<V: Vector, const APART: usize>(rows: PaddedRows) {
    let length = rows.before + rows.numbers + rows.behind;
    if length > NARROW * V::LANES {
        // SAFETY: the function's own conditions.
        unsafe { long_rows::<V>(PaddedRows { apart: APART, ..rows }) };
        return;
    }
    // Column by column, zeros and numbers at once: which lanes are read is the same in all rows.
    let mut i = 0;
    while i < length {
        let begin = rows.before.saturating_sub(i).min(V::LANES);
        let end = (rows.before + rows.numbers).saturating_sub(i).min(V::LANES).max(begin);
        let part = (length - i).min(V::LANES);
        // Where the vector's first lane would lie: with zeros before the numbers that is before the row.
        let from = rows.from.wrapping_add(i * APART).wrapping_sub(rows.before * APART);
        let is_whole = begin == 0 && end == V::LANES;
        for row in 0..rows.rows {
            // SAFETY: only the lanes of the row's numbers are read, and no more is written than is left.
            unsafe {
                let (from, to) = (from.wrapping_add(row * rows.from_step), rows.to.add(row * rows.to_step + i));
                if is_whole {
                    V::load_apart::<APART>(from, 0, V::LANES).store(to);
                } else {
                    V::load_apart::<APART>(from, begin, end).store_part(to, part);
                }
            }
        }
        i += V::LANES;
    }
}

/// # Safety
/// As [`padded_rows`].
#[inline(always)]
unsafe fn long_rows<V: Vector>(rows: PaddedRows) {
    for r in 0..rows.rows {
        // SAFETY: one of the rows, from its first zero to its last.
        unsafe {
            let to = rows.to.add(r * rows.to_step);
            zeros::<V>(to, rows.before);
            row::<V>(rows.from.add(r * rows.from_step), rows.apart, rows.numbers, to.add(rows.before));
            zeros::<V>(to.add(rows.before + rows.numbers), rows.behind);
        }
    }
}

/// # Safety
/// `to` is good for `count` numbers, `even` for half of them, rounded up, and `odd` for half, rounded down; the features of
/// `V` are on.
#[inline(always)]
pub(super) unsafe fn interleave<V: Vector>(even: *const f32, odd: *const f32, count: usize, to: *mut f32) {
    let mut i = 0;
    // SAFETY: parts are loaded and stored as such.
    unsafe {
        while i < count {
            let left = count - i;
            let even = V::load_part(even.add(i / 2), left.div_ceil(2).min(V::LANES));
            let odd = V::load_part(odd.add(i / 2), (left / 2).min(V::LANES));
            let [low, high] = even.interleave(odd);
            low.store_part(to.add(i), left.min(V::LANES));
            if left > V::LANES {
                high.store_part(to.add(i + V::LANES), (left - V::LANES).min(V::LANES));
            }
            i += 2 * V::LANES;
        }
    }
}

/// # Safety
/// The pointer is good for `count` numbers; the features of `V` are on.
#[inline(always)]
unsafe fn zeros<V: Vector>(to: *mut f32, count: usize) {
    let mut i = 0;
    while i < count {
        // SAFETY: no more than what is left.
        unsafe { V::zero().store_part(to.add(i), (count - i).min(V::LANES)) };
        i += V::LANES;
    }
}

/// # Safety
/// Both pointers are good for `count` numbers; the features of `V` are on.
#[inline(always)]
pub(super) unsafe fn add<V: Vector>(from: *const f32, to: *mut f32, count: usize) {
    let mut i = 0;
    // SAFETY: the loops stay below `count`.
    unsafe {
        while i + V::LANES <= count {
            V::load(to.add(i)).add(V::load(from.add(i))).store(to.add(i));
            i += V::LANES;
        }
        while i < count {
            *to.add(i) += *from.add(i);
            i += 1;
        }
    }
}

/// Sixty-four bits that stand for all numbers and their order. Each of the lanes is a shift register over every 32nd
/// pair of numbers: no change of a single number goes unnoticed.
///
/// # Safety
/// The pointer is good for `count` numbers; the features of the caller are on.
#[inline(always)]
pub(super) unsafe fn fingerprint(from: *const f32, count: usize) -> u64 {
    const LANES: usize = 32;
    // SAFETY: the function's own condition.
    let numbers = unsafe { std::slice::from_raw_parts(from, count) };
    let mut lanes = [0x9e37_79b9_7f4a_7c15u64; LANES];
    let (blocks, rest) = numbers.as_chunks::<{ 2 * LANES }>();
    for block in blocks {
        for (lane, [low, high]) in lanes.iter_mut().zip(block.as_chunks::<2>().0) {
            let mut state = *lane ^ (u64::from(low.to_bits()) | u64::from(high.to_bits()) << 32);
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            *lane = state;
        }
    }
    let mix = |hash: u64, next: u64| {
        let mixed = (hash ^ next).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed ^ mixed >> 29
    };
    let hash = rest.iter().fold(count as u64, |hash, number| mix(hash, u64::from(number.to_bits())));
    lanes.into_iter().fold(hash, mix)
}
