//! The kernel of depthwise rows of results with channels together, for taps that are neighbouring pixels.
//!
//! The sums of some pixels stay in registers while the rows of taps are read: each place of the source once for all taps that fall
//! on it. Places beyond the source's edges are left out, so that the pixels there are summed together with their neighbours.

use super::PixelRow;
use crate::vector::Vector;

/// The pixels that are summed together: whichever covers a row with fewer of them twice.
const TOGETHER: [usize; 2] = [7, 5];

/// The fewest pixels of a row, and the columns of taps, for which there is a kernel.
pub const FEWEST_PIXELS: usize = TOGETHER[1];
/// See [`FEWEST_PIXELS`].
pub const TAP_COLUMNS: usize = 3;

/// # Safety
/// The features of `V` are on. At every tap, `x` is good for `channels` numbers at the places that are inside, and `w`
/// everywhere. So are `bias` and each pixel of `to`. Channels fill a vector, rows of taps have [`TAP_COLUMNS`], and
/// pixels are [`FEWEST_PIXELS`] at least.
#[inline(always)]
pub(super) unsafe fn correlate<V: Vector>(row: &PixelRow<'_>) {
    let (pixels, channels) = (row.pixels.pixels, row.pixels.channels);
    let [more, fewer] = TOGETHER;
    let is_more = pixels >= more && pixels.next_multiple_of(more) <= pixels.next_multiple_of(fewer);
    let together = if is_more { more } else { fewer };
    for first in (0..pixels).step_by(together) {
        // The last ones may begin among those before: their sums are the same again.
        let first = first.min(pixels - together);
        let [begin, end] = [row.inside.start, row.inside.end].map(|place| place.saturating_sub(first));
        let is_inside = begin == 0 && end >= together - 1 + TAP_COLUMNS;
        for channel in (0..channels).step_by(V::LANES) {
            // So may the last vector.
            let channel = channel.min(channels - V::LANES);
            // SAFETY: pixels and a whole vector of the same row.
            unsafe {
                match (is_more, is_inside) {
                    (true, true) => block::<V, 7, false>(row, first, channel, [begin, end]),
                    (true, false) => block::<V, 7, true>(row, first, channel, [begin, end]),
                    (false, true) => block::<V, 5, false>(row, first, channel, [begin, end]),
                    (false, false) => block::<V, 5, true>(row, first, channel, [begin, end]),
                }
            }
        }
    }
}

/// # Safety
/// As [`correlate`], for `PIXELS` pixels and one whole vector from there on; `begin` and `end` are the places that are inside.
#[inline(always)]
unsafe fn block<V: Vector, const PIXELS: usize, const EDGE: bool>(
    row: &PixelRow<'_>,
    first: usize,
    channel: usize,
    [begin, end]: [usize; 2],
) {
    let pixels = &row.pixels;
    // SAFETY: the function's own conditions. The first places may lie outside of the source, so wrapping arithmetic.
    unsafe {
        let mut sums = [V::load(pixels.bias.add(channel)); PIXELS];
        let x = pixels.x.wrapping_add(first * pixels.x_step + channel);
        for taps in pixels.taps.as_chunks::<TAP_COLUMNS>().0 {
            let w: [V; TAP_COLUMNS] =
                std::array::from_fn(|t| V::load(pixels.w.add(taps[t].1 * pixels.channels + channel)));
            let x = x.wrapping_offset(taps[0].0);
            for at in 0..PIXELS - 1 + TAP_COLUMNS {
                if EDGE && (at < begin || at >= end) {
                    continue;
                }
                let x = V::load(x.wrapping_add(at * pixels.x_step));
                for (t, w) in w.iter().enumerate() {
                    if at >= t && at - t < PIXELS {
                        sums[at - t] = w.multiply_add(x, sums[at - t]);
                    }
                }
            }
        }
        for (p, sum) in sums.iter().enumerate() {
            sum.store(pixels.to.add((first + p) * pixels.to_step + channel));
        }
    }
}
