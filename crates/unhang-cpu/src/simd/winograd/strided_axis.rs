//! Winograd's algorithm along the rows with a stride of two: F(5, 2) and F(7, 2) for three taps in NCHW, forward.
//!
//! Two of the three taps meet every second row of pixels and are computed on points, as in [`super::axis`]. The one
//! between them meets the others, and its products are summed up as they are: 11 products for five results, where the
//! definition has 15, or 15 for seven, where it has 21. Along the columns all taps are multiplied.
//!
//! Every sum runs over taps and source channels in order, so that neither units nor threads change what comes out. What is
//! not finite is treated as in [`super`].

use std::ops::Range;
use std::sync::atomic::Ordering;

use unhang_conv::{Direction, Problem};

use super::super::gather::FETCH_NUMBERS;
use super::super::geometry::Gather;
use super::super::source::prefetch_for_writing;
use super::super::work::Work;
use super::super::workspace::{Shared, Workspace};
use super::axis_filters::FiltersOfAxis;
use super::line_products::LineProducts;
use super::lines::{Segment, UNIT_NUMBERS};
use super::strided_lines::{Shape, StridedLines, TAPS, is_possible, runs};
use super::{Spoiled, compute_again};
use crate::parallel::for_each_unit;
use unhang_simd::Isa;
use unhang_simd::{AxisResults, Kernels, Run};

/// Terms of a sum at most: errors grow with the root of their number, and are 5e-6 with 3072 where multiplying and adding round
/// twice. The suite allows 1e-5.
const MOST_TERMS: usize = 4096;

/// How many products the definition has for each one here. `None` if an ordinary problem cannot be computed so within
/// the bound on its workspace, and with small errors.
pub(crate) fn gain(problem: &Problem, isa: Isa) -> Option<f64> {
    if !(is_possible(problem) && problem.direction() == Direction::Forward) {
        return None;
    }
    let shape = Shape::new(&Gather::new(problem), Kernels::of(isa));
    let tiles = shape.unit_tiles(1).filter(|_| shape.sources * shape.wide_taps <= MOST_TERMS)?;
    Some(shape.gain(tiles))
}

impl Shape {
    /// How many products the definition has for each one here in units of this many tiles, padding of rows and of vectors
    /// counted.
    fn gain(&self, tiles: usize) -> f64 {
        let whole = |rows: usize| if rows == 0 { 0 } else { self.line(rows).next_multiple_of(self.lanes) };
        let of_unit = |tiles: Range<usize>| self.points * whole(tiles.len()) + whole(self.rows_of(&tiles));
        let units = (0..self.all_tiles).step_by(tiles);
        let products: usize = units.map(|first| of_unit(first..self.all_tiles.min(first + tiles))).sum();
        (TAPS * self.rows_of(&(0..self.all_tiles)) * self.columns) as f64 / products as f64
    }

    /// Workspace with this many threads and units of this many tiles.
    fn workspace(&self, threads: usize, tiles: usize) -> usize {
        let element = self.wide_taps * self.sources;
        let sums = self.points * self.sums_step(tiles) + self.sums_step(tiles * self.tile);
        let of_thread = self.source(tiles).iter().sum::<usize>() + self.most() * sums + self.room(tiles);
        let filters = (self.points + 1) * element * self.results + 1;
        filters + threads * of_thread.max(TAPS * element * self.most())
    }

    /// Tiles of a unit, so that the workspace is within its bound and few numbers of vectors are in vain.
    fn unit_tiles(&self, threads: usize) -> Option<usize> {
        let of_tile = (self.points + self.tile) * self.pitch * 2 * self.sources;
        let aim = (UNIT_NUMBERS / of_tile).clamp(1, self.all_tiles.div_ceil(threads));
        let fitting = (1..=aim).filter(|&tiles| self.workspace(threads, tiles) <= self.memory);
        fitting.max_by(|&a, &b| self.gain(a).total_cmp(&self.gain(b)))
    }
}

/// A computation under way.
struct StridedWork<'a> {
    lines: StridedLines<'a>,
    /// Tiles of a unit.
    tiles: usize,
    /// Whether results are fetched while they are computed.
    fetch: bool,
    bias: Option<&'a [f32]>,
    result: Shared,
    spoiled: Spoiled,
}

/// Computes it. `bias` goes along the result's channels.
///
/// # Panics
/// When a slice is not as long as the problem says, or the problem is not one that can be computed so.
pub(crate) fn compute(problem: &Problem, work: Work<'_>) {
    let Work { kernels, first: source, second: weight, bias, result, threads } = work;
    let lengths = problem.operand_shapes().map(|shape| shape.iter().product::<usize>());
    assert_eq!([source.len(), weight.len(), result.len()], lengths, "the operands' lengths");
    assert!(is_possible(problem), "three rows of taps with a stride of two, without groups, in NCHW");
    let gather = &Gather::new(problem);
    let shape = Shape::new(gather, kernels);
    let tiles = shape.unit_tiles(threads).unwrap_or(1);
    let driver = StridedWork {
        lines: StridedLines { shape, gather, kernels, source, tiles },
        tiles,
        fetch: result.len() > FETCH_NUMBERS,
        bias,
        result: Shared(result.as_mut_ptr()),
        spoiled: Spoiled::new(gather.batch),
    };
    let parts = shape.parts().collect();
    let (filters, finite) = FiltersOfAxis { gather, kernels, weight, axis: 0, pairs: shape.pairs, parts }.all(threads);
    driver.spoiled.filters.store(!finite, Ordering::Relaxed);
    if finite {
        for_each_unit(threads, shape.all_tiles.div_ceil(tiles), |unit| {
            driver.unit(unit * tiles..shape.all_tiles.min((unit + 1) * tiles), &filters);
        });
    }
    drop(filters);
    let StridedWork { spoiled, .. } = driver;
    compute_again(gather, Work { kernels, first: source, second: weight, bias, result, threads }, &spoiled);
}

impl StridedWork<'_> {
    /// Computes some tiles.
    fn unit(&self, tiles: Range<usize>, filters: &[f32]) {
        let lines = &self.lines;
        let Shape { sources, points, tile, .. } = lines.shape;
        let shape = &lines.shape;
        let [of_points, of_plain] = shape.source(self.tiles);
        let mut transformed = Workspace::take(of_points);
        let mut plain = Workspace::take(of_plain);
        {
            let mut room = Workspace::take(shape.room(self.tiles));
            let (step, plain_step) = (shape.source_step(self.tiles), shape.source_step(self.tiles * tile));
            for (segment, row) in lines.segments(tiles.clone()) {
                for channel in 0..sources {
                    // SAFETY: this channel's lines; those of the other points follow as many channels apart.
                    unsafe {
                        let to = transformed.as_mut_ptr().add(channel * step);
                        let plain = plain.as_mut_ptr().add(channel * plain_step);
                        lines.transform(&segment, row, channel, to, plain, &mut room);
                    }
                }
            }
        }
        let sums_steps = [self.tiles, self.tiles * tile].map(|rows| shape.sums_step(rows));
        let mut sums = Workspace::take(shape.most() * (points * sums_steps[0] + sums_steps[1]));
        let offsets = [self.tiles, self.tiles * tile].map(|rows| shape.offsets(lines.gather, rows));
        let of_filter = (points + 1) * shape.wide_taps * sources;
        let next = tiles.end..shape.all_tiles.min(tiles.end + self.tiles);
        for (first, count) in shape.parts() {
            let filters = &filters[first * of_filter..][..count * of_filter];
            // What the next unit reads comes into the cache meanwhile.
            let share = |filter: usize| filter * sources / shape.results;
            lines.fetch(next.clone(), share(first)..share(first + count));
            if self.fetch {
                self.fetch_results(&tiles, first..first + count);
            }
            let runs = offsets.each_ref().map(|offsets| runs(offsets, sources * count));
            self.multiply(&tiles, filters, count, &runs, [&transformed, &plain], &mut sums);
            for number in 0..count {
                for (segment, row) in lines.segments(tiles.clone()) {
                    self.write(&segment, row, first + number, number, &sums);
                }
            }
        }
    }

    /// Sums up the products of all points and plain rows with some filters, to `[element][filter][number of a line]`.
    fn multiply(
        &self,
        tiles: &Range<usize>,
        filters: &[f32],
        count: usize,
        runs: &[Vec<Run>; 2],
        [transformed, plain]: [&[f32]; 2],
        sums: &mut [f32],
    ) {
        let shape = &self.lines.shape;
        let (sources, most) = (shape.sources, shape.most());
        let of_element = shape.wide_taps * sources * count;
        let sums_step = shape.sums_step(self.tiles);
        for element in 0..=shape.points {
            let is_plain = element == shape.points;
            // Rows of a whole unit, and of this one.
            let (unit, rows) = match is_plain {
                true => (self.tiles * shape.tile, shape.rows_of(tiles)),
                false => (self.tiles, tiles.len()),
            };
            let source_step = shape.source_step(unit);
            let source = if is_plain { plain } else { &transformed[element * sources * source_step..] };
            let products = LineProducts {
                kernels: self.lines.kernels,
                vectors: shape.vectors,
                filters: &filters[element * of_element..][..of_element],
                count,
                sources,
                runs: &runs[usize::from(is_plain)],
                source: source[..sources * source_step].as_ptr(),
                source_step,
                line: shape.line(rows),
                sums: sums[element * most * sums_step..][..most * shape.sums_step(unit)].as_mut_ptr(),
                sums_step: shape.sums_step(unit),
            };
            // SAFETY: a channel's step is as long as its lines of whole vectors and the taps beyond them; that of sums has no
            // taps.
            unsafe { products.sum() };
        }
    }

    /// Asks for the place of the results of some channels while they are computed.
    fn fetch_results(&self, tiles: &Range<usize>, channels: Range<usize>) {
        let [by_image, by_channel, by_row, _] = self.lines.gather.result;
        for (segment, _) in self.lines.segments(tiles.clone()) {
            let first = segment.image * by_image + segment.first * self.lines.shape.tile * by_row;
            for channel in channels.clone() {
                let to = self.result.get().wrapping_add(first + channel * by_channel);
                prefetch_for_writing(to, self.lines.rows_of(&segment) * by_row);
            }
        }
    }

    /// Transforms a segment's sums of one filter, which is a channel and has a number in its part, and writes the results.
    fn write(&self, segment: &Segment, row: usize, channel: usize, number: usize, sums: &[f32]) {
        let Shape { points, pairs, pitch, tile, columns, .. } = self.lines.shape;
        let shape = &self.lines.shape;
        let most = shape.most();
        let [by_image, by_channel, by_row, _] = self.lines.gather.result;
        let [sums_step, plain_step] = [self.tiles, self.tiles * tile].map(|rows| shape.sums_step(rows));
        let rows = self.lines.rows_of(segment);
        let (sums, plain) = sums.split_at(points * most * sums_step);
        let plain = &plain[number * plain_step..][..plain_step];
        assert!((points - 1) * most * sums_step + (number + 1) * sums_step <= sums.len());
        assert!((row + rows - 1) * pitch + columns <= plain_step);
        assert!((segment.at + segment.tiles - 1) * pitch + columns <= sums_step);
        let place = segment.image * by_image + channel * by_channel + segment.first * tile * by_row;
        for index in 0..segment.tiles {
            // SAFETY: the last sums were just checked. Results go to this segment's own rows of the result, which no other unit
            // writes.
            let finite = unsafe {
                (self.lines.kernels.axis_results)(&AxisResults {
                    pairs,
                    stride: 2,
                    from: sums.as_ptr().add(number * sums_step + (segment.at + index) * pitch),
                    element_step: most * sums_step,
                    plain: plain.as_ptr().add((row + index * tile) * pitch),
                    plain_step: pitch,
                    bias: self.bias.map_or(0.0, |bias| bias[channel]),
                    to: self.result.get().add(place + index * tile * by_row),
                    row_step: by_row,
                    rows: tile.min(rows - index * tile),
                    count: columns,
                })
            };
            if !finite {
                self.spoiled.images[segment.image].store(true, Ordering::Relaxed);
            }
        }
    }
}
