//! Depthwise convolutions of small planes in NCHW, in all directions.
//!
//! Rows of few pixels do not fill vectors, and much of them is at the edges. So some channels of an image are brought together,
//! with zeros around their planes, as pixels whose channels lie in whole vectors. Results are taken apart again. All of
//! that stays in the first-level cache.

use unhang_conv::{Direction, Layout, Problem};

use super::geometry::{Axis, Gather, Tap};
use super::work::Work;
use super::workspace::{Shared, Workspace};
use crate::parallel::for_each_unit;
use crate::plain::CHAIN;
use unhang_simd::{GradientPlanes, Kernels, Pixels};

/// Columns of a plane up to which its rows do not fill vectors well. The second limit is for where rows would have to
/// be dealt out or lanes brought together for every tap: with a stride, and of weight gradients.
const MOST_COLUMNS: [usize; 2] = [14, 28];
/// Numbers of the source and the result of the channels that are brought together: most of a first-level cache.
const BLOCK_NUMBERS: usize = 8 * 1024;
/// Vectors of channels at most.
const MOST_VECTORS: usize = 4;

/// Whether channels are brought together: the planes are small, and channels fill the vectors.
pub(super) fn is_better(problem: &Problem, kernels: &Kernels) -> bool {
    let columns = problem.in_size()[1].max(problem.out_size()[1]);
    let gather = Gather::new(&forward_unless_data(problem));
    let simple = problem.direction() != Direction::BackwardWeights && problem.stride() == [1, 1];
    let is_small = columns <= MOST_COLUMNS[usize::from(!simple)];
    problem.layout() == Layout::Nchw
        && is_small
        && 2 * problem.in_channels() >= kernels.lanes
        && gather.axes.iter().all(|axis| axis.low <= 0)
}

/// The problem whose taps fall on the source: for a weight gradient that of the forward direction.
fn forward_unless_data(problem: &Problem) -> Problem {
    match problem.direction() {
        Direction::BackwardData => problem.clone(),
        _ => problem.with_direction(Direction::Forward),
    }
}

/// How the channels of a block lie.
struct Block {
    /// Channels: whole vectors.
    channels: usize,
    /// Rows and columns of the source with its padding.
    padded: [usize; 2],
    /// Where the source's pixels go.
    source: Vec<usize>,
    /// From one pixel of results to the next, for all of them.
    result: Vec<usize>,
}

impl Block {
    fn new(gather: &Gather, kernels: &Kernels, threads: usize) -> Block {
        // As far as taps reach, and the whole source in any case.
        let length = |axis: &Axis| {
            let reach = (axis.steps - 1) * axis.in_step + axis.span;
            reach.max(axis.source + axis.low.unsigned_abs())
        };
        let [rows, columns] = &gather.axes;
        let padded = [length(rows), length(columns)];
        let numbers = padded[0] * padded[1] + rows.result * columns.result;
        let needed = gather.groups.div_ceil(kernels.lanes);
        let units = threads.div_ceil(gather.batch);
        let vectors = (BLOCK_NUMBERS / (numbers * kernels.lanes)).clamp(1, MOST_VECTORS).min(needed.div_ceil(units));
        let channels = vectors * kernels.lanes;
        let [above, before] = [rows, columns].map(|axis| axis.low.unsigned_abs());
        let place = |pixel: usize| {
            let (row, column) = (pixel / columns.source + above, pixel % columns.source + before);
            (row * padded[1] + column) * channels
        };
        Block {
            channels,
            padded,
            source: (0..rows.source * columns.source).map(place).collect(),
            result: (0..channels).map(|channel| channel * rows.result * columns.result).collect(),
        }
    }

    /// Where a tap falls, from the place of a step.
    fn tap(&self, gather: &Gather, row: &Tap, column: &Tap) -> usize {
        let [rows, columns] = [(row, 0), (column, 1)].map(|(tap, axis)| (tap.offset - gather.axes[axis].low) as usize);
        (rows * self.padded[1] + columns) * self.channels
    }

    /// Numbers of the padded source.
    fn numbers(&self) -> usize {
        self.padded[0] * self.padded[1] * self.channels
    }

    /// Brings `count` of an image's channels together, from `first` on: each pixel's to its place.
    fn bring(&self, kernels: &Kernels, image: &[f32], [first, count]: [usize; 2], places: &[usize], to: &mut [f32]) {
        let (pixels, channels) = (places.len(), image.len() / places.len());
        assert!(count <= self.channels && first + count <= channels && image.len() == pixels * channels);
        assert!(places.iter().all(|place| place + self.channels <= to.len()));
        let to = to.as_mut_ptr();
        // SAFETY: this many channels of every pixel, and every place has room for them.
        unsafe {
            let from = image.as_ptr().add(first * pixels);
            (kernels.transpose)(from, pixels, count, pixels, to, places.as_ptr());
        }
    }

    /// Takes `count` channels of all pixels apart again, to those of an image from `first` on.
    ///
    /// # Safety
    /// `image` is good for all pixels of the result; no other thread writes these channels.
    unsafe fn take_apart(&self, kernels: &Kernels, from: &[f32], image: *mut f32, [first, count]: [usize; 2]) {
        let pixels = from.len() / self.channels;
        // SAFETY: this many channels of every pixel on both sides.
        unsafe {
            let (to, places) = (image.add(first * pixels), self.result.as_ptr());
            (kernels.transpose)(from.as_ptr(), self.channels, pixels, count, to, places);
        }
    }
}

/// Brings the taps of that many channels at a time together, tap by tap.
pub(super) fn filters_together(kernels: &Kernels, weight: &[f32], [channels, taps]: [usize; 2], to: &mut [f32]) {
    let places: Vec<usize> = (0..taps).map(|tap| tap * channels).collect();
    for (from, to) in weight.chunks(channels * taps).zip(to.chunks_exact_mut(channels * taps)) {
        // SAFETY: a row of taps for each channel, and room for as many channels at each tap.
        unsafe { (kernels.transpose)(from.as_ptr(), taps, from.len() / taps, taps, to.as_mut_ptr(), places.as_ptr()) };
    }
}

/// Pixels of a row of results that are computed at once.
struct Line {
    /// Where the taps of the first count from.
    from: usize,
    /// The first of them in the result.
    to: usize,
    pixels: usize,
    /// Which list of taps they have.
    taps: usize,
    dense: usize,
}

/// The lists of taps, one for each phase of rows and of columns, and the lines of all of them.
fn lines(gather: &Gather, block: &Block) -> (Vec<Vec<(isize, usize)>>, Vec<Line>) {
    let [rows, columns] = &gather.axes;
    let (mut lists, mut lines) = (Vec::new(), Vec::new());
    for (row_phase, row_taps) in rows.phases.iter().enumerate() {
        for (column_phase, column_taps) in columns.phases.iter().enumerate() {
            let mut column_taps = column_taps.clone();
            column_taps.sort_unstable_by_key(|tap| tap.offset);
            let number = |row: &Tap, column: &Tap| row.index * gather.weight[2] + column.index * gather.weight[3];
            let of_row = |row: &'_ Tap| -> Vec<(isize, usize)> {
                column_taps.iter().map(|tap| (block.tap(gather, row, tap) as isize, number(row, tap))).collect()
            };
            lists.push(row_taps.iter().flat_map(of_row).collect());
            let is_dense = columns.in_step == 1 && columns.are_neighbours(column_phase);
            let pixels = (columns.result - column_phase).div_ceil(columns.out_step);
            for row in (row_phase..rows.result).step_by(rows.out_step) {
                lines.push(Line {
                    from: row / rows.out_step * rows.in_step * block.padded[1] * block.channels,
                    to: row * columns.result + column_phase,
                    pixels,
                    taps: lists.len() - 1,
                    dense: if is_dense { column_taps.len() } else { 0 },
                });
            }
        }
    }
    (lists, lines)
}

/// Forward and backward-data.
///
/// # Panics
/// When a slice is not as long as the gather says.
pub(super) fn compute(gather: &Gather, work: Work<'_>) {
    let Work { kernels, first: source, second: weight, bias, result, threads } = work;
    let [rows, columns] = &gather.axes;
    let [of_source, of_result] = [rows.source * columns.source, rows.result * columns.result];
    let (channels, taps) = (gather.groups, gather.weight_group);
    assert_eq!(source.len(), gather.batch * channels * of_source, "the source's length");
    assert_eq!(result.len(), gather.batch * channels * of_result, "the result's length");
    assert_eq!(weight.len(), channels * taps, "the filter's length");
    let block = Block::new(gather, kernels, threads);
    let blocks = channels.div_ceil(block.channels);
    let (lists, lines) = lines(gather, &block);
    // Filters and biases of each block, channels together.
    let mut filters = Workspace::take(blocks * taps * block.channels);
    filters_together(kernels, weight, [block.channels, taps], &mut filters);
    let mut biases = Workspace::take(blocks * block.channels);
    biases.fill(0.0);
    if let Some(bias) = bias {
        biases[..channels].copy_from_slice(bias);
    }
    let (filters, biases): (&[f32], &[f32]) = (&filters, &biases);
    let result = Shared(result.as_mut_ptr());
    for_each_unit(threads, gather.batch, |image| {
        let mut from = Workspace::take(block.numbers());
        let mut to = Workspace::take(of_result * block.channels);
        from.fill(0.0);
        let source = &source[image * channels * of_source..][..channels * of_source];
        for number in 0..blocks {
            let first = number * block.channels;
            let count = block.channels.min(channels - first);
            block.bring(kernels, source, [first, count], &block.source, &mut from);
            for line in &lines {
                // SAFETY: the taps fall on the padded source, from every pixel of the line; all places have the whole vectors of
                // a block.
                unsafe {
                    (kernels.correlate_together)(&Pixels {
                        x: from.as_ptr().add(line.from),
                        x_step: columns.in_step * block.channels,
                        taps: &lists[line.taps],
                        dense: line.dense,
                        w: filters[first * taps..].as_ptr(),
                        bias: biases[first..].as_ptr(),
                        channels: block.channels,
                        to: to.as_mut_ptr().add(line.to * block.channels),
                        to_step: columns.out_step * block.channels,
                        stored: block.channels,
                        pixels: line.pixels,
                    });
                }
            }
            // SAFETY: this image's own results, and this block's channels of them.
            unsafe {
                let image = result.get().add(image * channels * of_result);
                block.take_apart(kernels, &to, image, [first, count]);
            }
        }
    });
}

/// The weight gradient.
///
/// # Panics
/// When a slice is not as long as the problem says.
pub(super) fn weights(problem: &Problem, work: Work<'_>) {
    let Work { kernels, first: x, second: dy, result, threads, .. } = work;
    let gather = &Gather::new(&forward_unless_data(problem));
    let [rows, columns] = &gather.axes;
    let [of_source, of_result] = [rows.source * columns.source, rows.result * columns.result];
    let (channels, taps) = (gather.groups, gather.weight_group);
    let lengths = problem.operand_shapes().map(|shape| shape.iter().product::<usize>());
    assert_eq!([x.len(), dy.len(), result.len()], lengths, "the operands' lengths");
    // Units are blocks of channels.
    let block = Block::new(&Gather { batch: 1, ..gather.clone() }, kernels, threads);
    let offsets: Vec<usize> = rows.phases[0]
        .iter()
        .flat_map(|row| columns.phases[0].iter().map(|column| block.tap(gather, row, column)))
        .collect();
    let places: Vec<usize> = (0..of_result).map(|pixel| pixel * block.channels).collect();
    crate::parallel::for_each_chunk(threads, result, block.channels * taps, |number, result| {
        let first = number * block.channels;
        let count = block.channels.min(channels - first);
        let mut from = Workspace::take(block.numbers());
        let mut gradient = Workspace::take(of_result * block.channels);
        let mut sums = Workspace::take(taps * block.channels);
        // Channels that are missing from the last block meet zeros.
        [&mut from, &mut gradient, &mut sums].into_iter().for_each(|room| room.fill(0.0));
        // What comes together from chains is summed in double precision.
        let mut totals = vec![0.0f64; taps * block.channels];
        let mut terms = 0;
        let mut flush = |sums: &mut [f32]| {
            totals.iter_mut().zip(sums).for_each(|(total, sum)| *total += f64::from(std::mem::take(sum)));
        };
        for image in 0..gather.batch {
            if terms + of_result > CHAIN {
                flush(&mut sums);
                terms = 0;
            }
            terms += of_result;
            let x = &x[image * channels * of_source..][..channels * of_source];
            let dy = &dy[image * channels * of_result..][..channels * of_result];
            block.bring(kernels, x, [first, count], &block.source, &mut from);
            block.bring(kernels, dy, [first, count], &places, &mut gradient);
            // SAFETY: every tap falls on the padded source from every pixel; all places have the whole vectors of a block.
            unsafe {
                (kernels.products_together)(
                    &GradientPlanes {
                        dy: gradient.as_ptr(),
                        dy_row: columns.result * block.channels,
                        x: from.as_ptr(),
                        x_row: rows.in_step * block.padded[1] * block.channels,
                        x_step: columns.in_step * block.channels,
                        channels: block.channels,
                        count: columns.result,
                        rows: rows.result,
                    },
                    &offsets,
                    sums.as_mut_ptr(),
                );
            }
        }
        flush(&mut sums);
        for (channel, filter) in result.chunks_mut(taps).enumerate() {
            let of_channel = totals.iter().skip(channel).step_by(block.channels);
            filter.iter_mut().zip(of_channel).for_each(|(to, &total)| *to = total as f32);
        }
    });
}
