//! Kernels of depthwise convolutions of small planes, whose channels were brought together in whole vectors.

use super::{GradientPlanes, Pixels};
use crate::parts::even_parts;
use crate::vector::Vector;

/// Pixels that are computed together: as many sums as do not wait for each other.
const TOGETHER: usize = 8;

/// # Safety
/// The features of `V` are on. At every tap of every pixel `x` and `w` are good for `channels` numbers, which are whole vectors,
/// and so is `bias`. Each pixel of `to` is good for the channels that are stored.
#[inline(always)]
pub(super) unsafe fn correlate<V: Vector>(pixels: &Pixels<'_>) {
    for (pixel, count) in even_parts(pixels.pixels, TOGETHER) {
        for channel in (0..pixels.stored).step_by(V::LANES) {
            // SAFETY: some of the same pixels, and one of their vectors.
            unsafe {
                match count {
                    1 => of_taps::<V, 1>(pixels, pixel, channel),
                    2 => of_taps::<V, 2>(pixels, pixel, channel),
                    3 => of_taps::<V, 3>(pixels, pixel, channel),
                    4 => of_taps::<V, 4>(pixels, pixel, channel),
                    5 => of_taps::<V, 5>(pixels, pixel, channel),
                    6 => of_taps::<V, 6>(pixels, pixel, channel),
                    7 => of_taps::<V, 7>(pixels, pixel, channel),
                    _ => of_taps::<V, TOGETHER>(pixels, pixel, channel),
                }
            }
        }
    }
}

/// # Safety
/// As [`correlate`], for `PIXELS` pixels and one vector from there on.
#[inline(always)]
unsafe fn of_taps<V: Vector, const PIXELS: usize>(pixels: &Pixels<'_>, pixel: usize, channel: usize) {
    // SAFETY: the same conditions. What is neighbouring is so by the caller's word.
    unsafe {
        match pixels.dense {
            2 => of_neighbours::<V, PIXELS, 2>(pixels, pixel, channel),
            3 => of_neighbours::<V, PIXELS, 3>(pixels, pixel, channel),
            5 => of_neighbours::<V, PIXELS, 5>(pixels, pixel, channel),
            7 => of_neighbours::<V, PIXELS, 7>(pixels, pixel, channel),
            _ => of_neighbours::<V, PIXELS, 1>(pixels, pixel, channel),
        }
    }
}

/// The taps are `TAPS` neighbouring pixels at a time, as far apart as the pixels themselves: what one tap loads the next ones use
/// again. A single one is its own only neighbour.
///
/// # Safety
/// As [`of_taps`].
#[inline(always)]
unsafe fn of_neighbours<V: Vector, const PIXELS: usize, const TAPS: usize>(
    pixels: &Pixels<'_>,
    pixel: usize,
    channel: usize,
) {
    // SAFETY: the function's own conditions.
    unsafe {
        let mut sums = [V::load(pixels.bias.add(channel)); PIXELS];
        let first = pixels.x.add(pixel * pixels.x_step + channel);
        for taps in pixels.taps.as_chunks::<TAPS>().0 {
            let w: [V; TAPS] = std::array::from_fn(|t| V::load(pixels.w.add(taps[t].1 * pixels.channels + channel)));
            let x = first.offset(taps[0].0);
            for at in 0..PIXELS + TAPS - 1 {
                let x = V::load(x.add(at * pixels.x_step));
                for (t, w) in w.iter().enumerate() {
                    if at >= t && at - t < PIXELS {
                        sums[at - t] = w.multiply_add(x, sums[at - t]);
                    }
                }
            }
        }
        let stored = pixels.stored - channel;
        for (p, sum) in sums.iter().enumerate() {
            let to = pixels.to.add((pixel + p) * pixels.to_step + channel);
            if stored >= V::LANES { sum.store(to) } else { sum.store_part(to, stored) }
        }
    }
}

/// Taps whose sums are computed together: as many as do not wait for each other, and registers hold everywhere.
const TAPS_TOGETHER: usize = 9;

/// # Safety
/// The features of `V` are on. `dy` is good for `channels` numbers, which are whole vectors, at each pixel of each row.
/// So are `x` at each offset from there, and `sums` for each offset.
#[inline(always)]
pub(super) unsafe fn products<V: Vector>(planes: &GradientPlanes, offsets: &[usize], sums: *mut f32) {
    for (tap, count) in even_parts(offsets.len(), TAPS_TOGETHER) {
        let offsets = &offsets[tap..][..count];
        for channel in (0..planes.channels).step_by(V::LANES) {
            // SAFETY: some of the same taps, and one of their vectors.
            unsafe {
                let sums = sums.add(tap * planes.channels + channel);
                match count {
                    1 => products_of::<V, 1>(planes, offsets, channel, sums),
                    2 => products_of::<V, 2>(planes, offsets, channel, sums),
                    3 => products_of::<V, 3>(planes, offsets, channel, sums),
                    4 => products_of::<V, 4>(planes, offsets, channel, sums),
                    5 => products_of::<V, 5>(planes, offsets, channel, sums),
                    6 => products_of::<V, 6>(planes, offsets, channel, sums),
                    7 => products_of::<V, 7>(planes, offsets, channel, sums),
                    8 => products_of::<V, 8>(planes, offsets, channel, sums),
                    _ => products_of::<V, TAPS_TOGETHER>(planes, offsets, channel, sums),
                }
            }
        }
    }
}

/// # Safety
/// As [`products`], for `TAPS` taps and one vector.
#[inline(always)]
unsafe fn products_of<V: Vector, const TAPS: usize>(
    planes: &GradientPlanes,
    offsets: &[usize],
    channel: usize,
    sums: *mut f32,
) {
    // SAFETY: the function's own conditions.
    unsafe {
        let at: [usize; TAPS] = std::array::from_fn(|tap| offsets[tap]);
        let mut of_taps: [V; TAPS] = std::array::from_fn(|tap| V::load(sums.add(tap * planes.channels)));
        for row in 0..planes.rows {
            let mut dy = planes.dy.add(row * planes.dy_row + channel);
            let mut x = planes.x.add(row * planes.x_row + channel);
            for _ in 0..planes.count {
                let gradient = V::load(dy);
                for (sum, at) in of_taps.iter_mut().zip(at) {
                    *sum = gradient.multiply_add(V::load(x.add(at)), *sum);
                }
                dy = dy.wrapping_add(planes.channels);
                x = x.wrapping_add(planes.x_step);
            }
        }
        for (tap, sum) in of_taps.iter().enumerate() {
            sum.store(sums.add(tap * planes.channels));
        }
    }
}
