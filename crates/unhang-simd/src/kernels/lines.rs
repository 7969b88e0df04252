//! The kernel of depthwise weight gradients with channels together, for taps that are as far apart as pixels.
//!
//! The sums of the taps of some rows and columns stay in registers along a row of results, one vector of channels at a time.
//! What one tap loads of the source the next ones use again, and the next line is asked for meanwhile: of one vector of channels
//! its pixels lie too far apart for the processor to foresee them.

use super::GradientLine;
use crate::parts::even_parts;
use crate::vector::Vector;

/// The numbers of neighbouring columns of taps that are summed together, the largest first.
const COLUMNS_TOGETHER: [usize; 4] = [7, 5, 3, 1];
/// Rows of taps that are summed together at most.
const MOST_ROWS: usize = 3;
/// Pixels whose gradients are in registers at the same time.
const PIXELS: usize = 4;

/// # Safety
/// The features of `V` are on. `dy` is good for `channels` numbers at every pixel, `x` at every place where a tap of a valid pixel
/// falls, `sums` for each tap.
#[inline(always)]
pub(super) unsafe fn products<V: Vector>(line: &GradientLine<'_>) {
    let mut first = 0;
    while let Some(&columns) = COLUMNS_TOGETHER.iter().find(|&&columns| first + columns <= line.valid.len()) {
        // One vector of the source and the gradients of some pixels need registers too.
        let most = (V::REGISTERS.saturating_sub(PIXELS + 2) / columns).clamp(1, MOST_ROWS);
        for (row, rows) in even_parts(line.rows.len(), most) {
            let part = TapBlock { row, column: first };
            // SAFETY: some of the same taps.
            unsafe {
                match (rows, columns) {
                    (1, 1) => of_channels::<V, 1, 1>(line, part),
                    (2, 1) => of_channels::<V, 2, 1>(line, part),
                    (3, 1) => of_channels::<V, 3, 1>(line, part),
                    (1, 3) => of_channels::<V, 1, 3>(line, part),
                    (2, 3) => of_channels::<V, 2, 3>(line, part),
                    (3, 3) => of_channels::<V, 3, 3>(line, part),
                    (1, 5) => of_channels::<V, 1, 5>(line, part),
                    (2, 5) => of_channels::<V, 2, 5>(line, part),
                    (3, 5) => of_channels::<V, 3, 5>(line, part),
                    (1, 7) => of_channels::<V, 1, 7>(line, part),
                    (2, 7) => of_channels::<V, 2, 7>(line, part),
                    (3, 7) => of_channels::<V, 3, 7>(line, part),
                    _ => unreachable!("a part has one row at least, and no more than that"),
                }
            }
        }
        first += columns;
    }
}

/// The first row and the first column of taps that are summed together.
#[derive(Clone, Copy)]
struct TapBlock {
    row: usize,
    column: usize,
}

/// # Safety
/// As [`products`], for `ROWS` rows and `TAPS` columns of taps.
#[inline(always)]
unsafe fn of_channels<V: Vector, const ROWS: usize, const TAPS: usize>(line: &GradientLine<'_>, part: TapBlock) {
    for channel in (0..line.channels).step_by(V::LANES) {
        // SAFETY: one vector of the channels that are there.
        unsafe {
            match line.channels - channel >= V::LANES {
                true => of_vector::<V, ROWS, TAPS, true>(line, part, channel),
                false => of_vector::<V, ROWS, TAPS, false>(line, part, channel),
            }
        }
    }
}

/// `WHOLE`: there is a whole vector of channels.
///
/// # Safety
/// As [`of_channels`], for one vector.
#[inline(always)]
unsafe fn of_vector<V: Vector, const ROWS: usize, const TAPS: usize, const WHOLE: bool>(
    line: &GradientLine<'_>,
    part: TapBlock,
    channel: usize,
) {
    let left = line.channels - channel;
    // SAFETY: as many channels as there are, of a pixel that is met or of the sums of a tap.
    let load = |from: *const f32| unsafe { if WHOLE { V::load(from) } else { V::load_part(from, left) } };
    let gradient = |pixel: usize| load(line.dy.wrapping_add(pixel * line.channels + channel));
    let rows: [*const f32; ROWS] = std::array::from_fn(|r| {
        line.x.wrapping_offset(line.rows[part.row + r]).wrapping_add(part.column * line.x_step + channel)
    });
    let source = |row: usize, pixel: usize| load(rows[row].wrapping_add(pixel * line.x_step));
    let tap_of = |row: usize, tap: usize| {
        line.sums.wrapping_add(((part.row + row) * line.valid.len() + part.column + tap) * line.channels + channel)
    };
    // The last row of taps asks for what the next line is the first to meet.
    let asks = part.column == 0 && part.row + ROWS == line.rows.len();
    let ask = |pixel: usize| {
        let x = rows[ROWS - 1].wrapping_add((pixel + TAPS - 1) * line.x_step + line.x_ahead);
        // SAFETY: asking touches nothing.
        unsafe {
            V::prefetch(line.dy.wrapping_add((line.pixels + pixel) * line.channels + channel));
            V::prefetch(x);
        }
    };
    let valid = &line.valid[part.column..][..TAPS];
    let begin = valid.iter().map(|valid| valid.start).max().unwrap_or(0);
    let end = valid.iter().map(|valid| valid.end).min().unwrap_or(0);
    let [begin, end] = if begin < end { [begin, end] } else { [line.pixels; 2] };
    // SAFETY: the features are there; all places are as above.
    unsafe {
        let mut sums: [[V; TAPS]; ROWS] =
            std::array::from_fn(|row| std::array::from_fn(|tap| load(tap_of(row, tap).cast_const())));
        let mut pixel = 0;
        while pixel < line.pixels {
            let inside = pixel >= begin && pixel < end;
            if inside && end - pixel >= PIXELS {
                if asks {
                    (pixel..pixel + PIXELS).for_each(ask);
                }
                let gradients: [V; PIXELS] = std::array::from_fn(|p| gradient(pixel + p));
                for at in 0..PIXELS + TAPS - 1 {
                    for (row, sums) in sums.iter_mut().enumerate() {
                        let x = source(row, pixel + at);
                        for (tap, sum) in sums.iter_mut().enumerate() {
                            if at >= tap && at - tap < PIXELS {
                                *sum = gradients[at - tap].multiply_add(x, *sum);
                            }
                        }
                    }
                }
                pixel += PIXELS;
                continue;
            }
            let gradient = gradient(pixel);
            for (tap, valid) in valid.iter().enumerate() {
                if inside || valid.contains(&pixel) {
                    for (row, sums) in sums.iter_mut().enumerate() {
                        sums[tap] = gradient.multiply_add(source(row, pixel + tap), sums[tap]);
                    }
                }
            }
            pixel += 1;
        }
        for (row, sums) in sums.iter().enumerate() {
            for (tap, sum) in sums.iter().enumerate() {
                if WHOLE { sum.store(tap_of(row, tap)) } else { sum.store_part(tap_of(row, tap), left) }
            }
        }
    }
}
