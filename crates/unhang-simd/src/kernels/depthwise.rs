//! Kernels of depthwise convolutions, but for those of [`super::lines`] and [`super::together`].

use super::{GradientRows, Pixels, Rows, TapColumn};
use crate::parts::even_parts;
use crate::vector::Vector;

/// # Safety
/// The features of `V` are on. At every tap of every row `x` is good for `count` numbers rounded up to whole vectors,
/// `to` for `count` in every row.
#[inline(always)]
pub(super) unsafe fn correlate<V: Vector>(rows: &Rows, columns: &[TapColumn], bias: f32) {
    // Eight sums wait for none of themselves: eight rows, or two vectors of fewer. The taps of a column need registers too.
    let most = if V::REGISTERS >= 16 { 8 } else { 4 };
    for (row, together) in even_parts(rows.rows, most) {
        let mut i = 0;
        while i < rows.count {
            let two = V::REGISTERS >= 32 && together <= 4 && rows.count - i > V::LANES;
            // SAFETY: blocks of the same rows and columns.
            unsafe {
                match (together, two) {
                    (1, false) => correlate_block::<V, 1, 1>(rows, row, i, columns, bias),
                    (1, true) => correlate_block::<V, 1, 2>(rows, row, i, columns, bias),
                    (2, false) => correlate_block::<V, 2, 1>(rows, row, i, columns, bias),
                    (2, true) => correlate_block::<V, 2, 2>(rows, row, i, columns, bias),
                    (3, false) => correlate_block::<V, 3, 1>(rows, row, i, columns, bias),
                    (3, true) => correlate_block::<V, 3, 2>(rows, row, i, columns, bias),
                    (4, false) => correlate_block::<V, 4, 1>(rows, row, i, columns, bias),
                    (4, true) => correlate_block::<V, 4, 2>(rows, row, i, columns, bias),
                    (5, false) => correlate_block::<V, 5, 1>(rows, row, i, columns, bias),
                    (6, false) => correlate_block::<V, 6, 1>(rows, row, i, columns, bias),
                    (7, false) => correlate_block::<V, 7, 1>(rows, row, i, columns, bias),
                    (8, false) => correlate_block::<V, 8, 1>(rows, row, i, columns, bias),
                    _ => unreachable!("a part has one row at least, and no more than that"),
                }
            }
            i += if two { 2 * V::LANES } else { V::LANES };
        }
    }
}

/// # Safety
/// As [`correlate`], for `R` rows and `VECTORS` vectors from there on.
#[inline(always)]
unsafe fn correlate_block<V: Vector, const R: usize, const VECTORS: usize>(
    rows: &Rows,
    row: usize,
    column: usize,
    columns: &[TapColumn],
    bias: f32,
) {
    // SAFETY: the function's own conditions.
    unsafe {
        let mut sums = [[V::splat(bias); VECTORS]; R];
        let x = rows.x.add(row * rows.x_step + column);
        // Columns with as many taps follow each other: within such a loop the sums stay in registers.
        for columns in columns.chunk_by(|column, next| column.count == next.count) {
            match columns[0].count {
                7 => add_columns::<V, R, VECTORS, 7>(&mut sums, x, rows.x_step, columns),
                5 => add_columns::<V, R, VECTORS, 5>(&mut sums, x, rows.x_step, columns),
                4 => add_columns::<V, R, VECTORS, 4>(&mut sums, x, rows.x_step, columns),
                3 => add_columns::<V, R, VECTORS, 3>(&mut sums, x, rows.x_step, columns),
                2 => add_columns::<V, R, VECTORS, 2>(&mut sums, x, rows.x_step, columns),
                _ => add_columns::<V, R, VECTORS, 1>(&mut sums, x, rows.x_step, columns),
            }
        }
        for (r, of_row) in sums.iter().enumerate() {
            for (v, sum) in of_row.iter().enumerate() {
                let i = column + v * V::LANES;
                sum.store_part(rows.to.add((row + r) * rows.to_step + i), (rows.count - i).min(V::LANES));
            }
        }
    }
}

/// Adds the products of columns of `TAPS` taps: what is loaded of a row of the source goes to all rows of results that
/// meet it. A sum's terms come in the order of its taps, however many rows are computed together.
///
/// # Safety
/// The features of `V` are on, and `x` is good for `VECTORS` vectors in `R + TAPS - 1` rows at every column's offset.
#[inline(always)]
unsafe fn add_columns<V: Vector, const R: usize, const VECTORS: usize, const TAPS: usize>(
    sums: &mut [[V; VECTORS]; R],
    x: *const f32,
    x_step: usize,
    columns: &[TapColumn],
) {
    // SAFETY: the function's own conditions.
    unsafe {
        let mut now = *sums;
        for column in columns {
            let x = x.add(column.offset);
            let weights: [V; TAPS] = std::array::from_fn(|tap| V::splat(column.weights[tap]));
            for row in 0..R + TAPS - 1 {
                // An iterator over the vectors is not unrolled with seven taps, which then take 1.6 times as long.
                #[allow(clippy::needless_range_loop, reason = "by number it is unrolled")]
                for v in 0..VECTORS {
                    let x = V::load(x.add(row * x_step + v * V::LANES));
                    for (tap, weight) in weights.iter().enumerate() {
                        if row >= tap && row - tap < R {
                            now[row - tap][v] = weight.multiply_add(x, now[row - tap][v]);
                        }
                    }
                }
            }
        }
        *sums = now;
    }
}

/// # Safety
/// The features of `V` are on. At every tap of every pixel `x` and `w` are good for `channels` numbers, and so are
/// `bias` and each pixel of `to`.
#[inline(always)]
pub(super) unsafe fn correlate_channels<V: Vector>(pixels: &Pixels<'_>) {
    const TOGETHER: usize = 6;
    // A pixel by itself, with many taps, has this many vectors of channels, so that no sum waits for the one before.
    const ALONE: usize = 4;
    let has_many_taps = pixels.taps.len() > 9;
    let mut pixel = 0;
    // SAFETY: blocks of the same pixels and channels.
    unsafe {
        while pixel < pixels.pixels {
            // The last few may begin among the ones before: their sums are the same again.
            if matches!(pixels.dense, 3 | 5 | 7) && pixels.pixels >= TOGETHER && pixels.pixels - pixel < 4 {
                pixel = pixels.pixels - TOGETHER;
            }
            let left = pixels.pixels - pixel;
            let together = match pixels.dense {
                3 | 5 | 7 if left >= TOGETHER => TOGETHER,
                _ if left >= 4 => 4,
                _ => 1,
            };
            let mut c = 0;
            while c < pixels.channels {
                let vectors = (pixels.channels - c) / V::LANES;
                let several = together == 1 && has_many_taps && vectors >= ALONE;
                match (together, pixels.dense) {
                    (TOGETHER, 3) if vectors > 0 => correlate_dense::<V, TOGETHER, 3>(pixels, pixel, c),
                    (TOGETHER, 5) if vectors > 0 => correlate_dense::<V, TOGETHER, 5>(pixels, pixel, c),
                    (TOGETHER, 7) if vectors > 0 => correlate_dense::<V, TOGETHER, 7>(pixels, pixel, c),
                    (TOGETHER, _) => correlate_pixels::<V, TOGETHER, 1>(pixels, pixel, c),
                    (4, _) => correlate_pixels::<V, 4, 1>(pixels, pixel, c),
                    _ if several => correlate_pixels::<V, 1, ALONE>(pixels, pixel, c),
                    _ => correlate_pixels::<V, 1, 1>(pixels, pixel, c),
                }
                c += if several { ALONE * V::LANES } else { V::LANES };
            }
            pixel += together;
        }
    }
}

/// # Safety
/// As [`correlate_channels`], for `PIXELS` pixels and one whole vector from there on. The taps are `TAPS` neighbouring
/// pixels at a time, as far apart as the pixels themselves: what one tap loads the next ones use again.
#[inline(always)]
unsafe fn correlate_dense<V: Vector, const PIXELS: usize, const TAPS: usize>(
    pixels: &Pixels<'_>,
    pixel: usize,
    channel: usize,
) {
    // SAFETY: the function's own conditions; wrapping arithmetic as in `correlate_part`.
    unsafe {
        let mut sums = [V::load(pixels.bias.add(channel)); PIXELS];
        let first = pixels.x.wrapping_add(pixel * pixels.x_step + channel);
        for taps in pixels.taps.as_chunks::<TAPS>().0 {
            let w: [V; TAPS] = std::array::from_fn(|t| V::load(pixels.w.add(taps[t].1 * pixels.channels + channel)));
            let x = first.wrapping_offset(taps[0].0);
            for at in 0..PIXELS + TAPS - 1 {
                let x = V::load(x.wrapping_add(at * pixels.x_step));
                for (t, w) in w.iter().enumerate() {
                    if at >= t && at - t < PIXELS {
                        sums[at - t] = w.multiply_add(x, sums[at - t]);
                    }
                }
            }
        }
        for (p, sum) in sums.iter().enumerate() {
            sum.store(pixels.to.add((pixel + p) * pixels.to_step + channel));
        }
    }
}

/// # Safety
/// As [`correlate_channels`], for `PIXELS` pixels and up to `VECTORS` vectors from there on.
#[inline(always)]
unsafe fn correlate_pixels<V: Vector, const PIXELS: usize, const VECTORS: usize>(
    pixels: &Pixels<'_>,
    pixel: usize,
    channel: usize,
) {
    let left = pixels.channels - channel;
    if left >= VECTORS * V::LANES {
        // SAFETY: the function's own conditions; the vectors are whole.
        unsafe { correlate_part::<V, PIXELS, VECTORS, true>(pixels, pixel, channel, V::LANES) }
    } else {
        // SAFETY: the same; only the last vector may be a part.
        unsafe { correlate_part::<V, PIXELS, VECTORS, false>(pixels, pixel, channel, left - (VECTORS - 1) * V::LANES) }
    }
}

/// # Safety
/// As [`correlate_channels`]; the last vector has `last` channels, all of its lanes if it is whole.
#[inline(always)]
unsafe fn correlate_part<V: Vector, const PIXELS: usize, const VECTORS: usize, const WHOLE: bool>(
    pixels: &Pixels<'_>,
    pixel: usize,
    channel: usize,
    last: usize,
) {
    // SAFETY: the function's own conditions. The pixel that offsets count from may lie outside of the source: only with
    // an offset added is it a pointer into it, so wrapping arithmetic.
    unsafe {
        let load = |from: *const f32, v: usize| {
            let from = from.add(v * V::LANES);
            if WHOLE || v + 1 < VECTORS { V::load(from) } else { V::load_part(from, last) }
        };
        let bias: [V; VECTORS] = std::array::from_fn(|v| load(pixels.bias.add(channel), v));
        let mut sums = [bias; PIXELS];
        let x = pixels.x.wrapping_add(pixel * pixels.x_step + channel);
        for &(offset, tap) in pixels.taps {
            let w = pixels.w.add(tap * pixels.channels + channel);
            let w: [V; VECTORS] = std::array::from_fn(|v| load(w, v));
            for (p, of_pixel) in sums.iter_mut().enumerate() {
                let x = x.wrapping_offset(offset).wrapping_add(p * pixels.x_step);
                for (v, sum) in of_pixel.iter_mut().enumerate() {
                    *sum = w[v].multiply_add(load(x, v), *sum);
                }
            }
        }
        for (p, of_pixel) in sums.iter().enumerate() {
            let to = pixels.to.add((pixel + p) * pixels.to_step + channel);
            for (v, sum) in of_pixel.iter().enumerate() {
                let to = to.add(v * V::LANES);
                if WHOLE || v + 1 < VECTORS { sum.store(to) } else { sum.store_part(to, last) }
            }
        }
    }
}

/// # Safety
/// The features of `V` are on. In every row `dy` and, at every offset, `x` are good for `count` numbers; `sums` for a vector
/// for each offset.
#[inline(always)]
pub(super) unsafe fn products<V: Vector>(rows: &GradientRows, offsets: &[usize], sums: *mut f32) {
    let mut tap = 0;
    while tap < offsets.len() {
        let left = &offsets[tap..];
        // SAFETY: the same rows, for the taps from here on, each with its own vector of sums.
        unsafe {
            let sums = sums.add(tap * V::LANES);
            tap += match left {
                [_, _, _, _, _, _, _, _, ..] => products_of_taps::<V, 8>(rows, left, sums),
                [_, _, _, _, _, ..] => products_of_taps::<V, 5>(rows, left, sums),
                [_, _, _, ..] => products_of_taps::<V, 3>(rows, left, sums),
                _ => products_of_taps::<V, 1>(rows, left, sums),
            }
        }
    }
}

/// The first `TAPS` taps; says how many they are.
///
/// # Safety
/// As [`products`].
#[inline(always)]
unsafe fn products_of_taps<V: Vector, const TAPS: usize>(
    rows: &GradientRows,
    offsets: &[usize],
    sums: *mut f32,
) -> usize {
    let at: [usize; TAPS] = std::array::from_fn(|tap| offsets[tap]);
    // SAFETY: all accesses stay below `count`; parts are loaded as such on both sides, because what is behind them
    // might not be finite.
    unsafe {
        let mut of_taps = [V::zero(); TAPS];
        for row in 0..rows.rows {
            let (dy, x) = (rows.dy.add(row * rows.dy_step), rows.x.add(row * rows.x_step));
            let mut i = 0;
            while i + V::LANES <= rows.count {
                let dy = V::load(dy.add(i));
                for (sum, at) in of_taps.iter_mut().zip(at) {
                    *sum = dy.multiply_add(V::load(x.add(at + i)), *sum);
                }
                i += V::LANES;
            }
            if i < rows.count {
                let part = rows.count - i;
                let dy = V::load_part(dy.add(i), part);
                for (sum, at) in of_taps.iter_mut().zip(at) {
                    *sum = dy.multiply_add(V::load_part(x.add(at + i), part), *sum);
                }
            }
        }
        for (tap, sum) in of_taps.iter().enumerate() {
            sum.store(sums.add(tap * V::LANES));
        }
    }
    TAPS
}

/// # Safety
/// The features of `V` are on. `dy` and `x` are good for `count` pixels with `channels` numbers each, `sums` for
/// `channels`.
#[inline(always)]
pub(super) unsafe fn products_channels<V: Vector>(
    dy: *const f32,
    dy_step: usize,
    x: *const f32,
    x_step: usize,
    count: usize,
    channels: usize,
    sums: *mut f32,
) {
    const TOGETHER: usize = 4;
    let mut c = 0;
    // SAFETY: all accesses stay below `count` and `channels`.
    unsafe {
        while c + TOGETHER * V::LANES <= channels {
            let mut of_channels = [V::zero(); TOGETHER];
            for (v, sum) in of_channels.iter_mut().enumerate() {
                *sum = V::load(sums.add(c + v * V::LANES));
            }
            for i in 0..count {
                let (dy, x) = (dy.add(i * dy_step + c), x.add(i * x_step + c));
                for (v, sum) in of_channels.iter_mut().enumerate() {
                    *sum = V::load(dy.add(v * V::LANES)).multiply_add(V::load(x.add(v * V::LANES)), *sum);
                }
            }
            for (v, sum) in of_channels.iter().enumerate() {
                sum.store(sums.add(c + v * V::LANES));
            }
            c += TOGETHER * V::LANES;
        }
        while c < channels {
            let part = (channels - c).min(V::LANES);
            let mut sum = V::load_part(sums.add(c), part);
            for i in 0..count {
                let x = V::load_part(x.add(i * x_step + c), part);
                sum = V::load_part(dy.add(i * dy_step + c), part).multiply_add(x, sum);
            }
            sum.store_part(sums.add(c), part);
            c += V::LANES;
        }
    }
}
