//! Winograd's algorithm along one axis: F(4, 3), F(4, 5) and F(4, 7) for filters without stride in NCHW, forward and
//! backward-data. The other axis may have any taps.
//!
//! Four rows of results are computed from as many rows of pixels as there are points, each column by itself. Between the
//! transforms stands a product of matrices for each point, in which pixels lie in vectors: the rows of a unit of work are
//! one long line ([`super::lines`]), and a tap of the other axis is an offset in that line. Where the taps lie along the columns,
//! planes are transposed on the way in and out.
//!
//! Every sum runs over taps and source channels in order, so that neither units nor threads change what comes out. What is
//! not finite is treated as in [`super`].

use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use unhang_conv::Problem;

use super::super::Work;
use super::super::cache;
use super::super::geometry::{Axis, Gather};
use super::super::kernels::{AXIS_TILE, AxisFilters, AxisResults, Kernels, Run, Tile};
use super::super::planes::tiles;
use super::super::workspace::{Shared, Workspace};
use super::lines::{Lines, Segment, Shape, axis_of};
use super::{Spoiled, compute_again};
use crate::isa::Isa;
use crate::parallel::for_each_unit;

/// Terms of a sum at most with seven taps along the axis, whose errors are the largest and grow with the root of their number:
/// with 512 they are 5e-6 (`tools/bench-cpu/winograd.py`), where the suite allows 1e-5.
const MOST_TERMS_OF_SEVEN_TAPS: usize = 1024;

/// How many products the definition has for each one here, if an ordinary problem can be computed so, and within the
/// operands' memory and with small errors.
pub fn gain(problem: &Problem, isa: Isa) -> Option<f64> {
    let axis = axis_of(problem)?;
    let gather = Gather::new(problem);
    let shape = Shape::new(&gather, axis, Kernels::of(isa));
    shape.unit_tiles(1)?;
    if shape.pairs == 4 && shape.sources * shape.wide_taps > MOST_TERMS_OF_SEVEN_TAPS {
        return None;
    }
    let [tall, wide] = [&gather.axes[axis], &gather.axes[1 - axis]];
    let products = shape.points * shape.tiles * shape.pitch;
    Some((tall.phases[0].len() * tall.result * wide.result) as f64 / products as f64)
}

/// A computation under way.
struct AxisWork<'a> {
    shape: Shape,
    gather: &'a Gather,
    kernels: &'static Kernels,
    source: Lines<'a>,
    bias: Option<&'a [f32]>,
    result: Shared,
    /// Tiles of a unit.
    tiles: usize,
    /// Where the columns of a tile of results go when it is transposed.
    turned: Vec<usize>,
    spoiled: Spoiled,
}

/// Computes it. `bias` goes along the result's channels.
///
/// # Panics
/// When a slice is not as long as the gather says, or the gather has a stride, groups, or another number of taps.
pub fn compute(problem: &Problem, work: Work<'_>) {
    let Work { kernels, first: source, second: weight, bias, result, threads } = work;
    let lengths = problem.operand_shapes().map(|shape| shape.iter().product::<usize>());
    assert_eq!([source.len(), weight.len(), result.len()], lengths, "the operands' lengths");
    let axis = axis_of(problem).expect("three, five or seven taps of an axis, without stride and groups");
    let gather = &Gather::new(problem);
    let shape = Shape::new(gather, axis, kernels);
    let tiles = shape.unit_tiles(threads).unwrap_or(1);
    let turned = (0..gather.axes[1 - axis].result).map(|row| row * gather.result[2]).collect();
    let lines = Lines::new(&shape, gather, kernels, source, tiles);
    let spoiled = Spoiled::new(gather.batch);
    let to = Shared(result.as_mut_ptr());
    let driver = AxisWork { shape, gather, kernels, source: lines, bias, result: to, tiles, turned, spoiled };
    let filters = driver.filters(weight, threads);
    if !driver.spoiled.filters.load(Ordering::Relaxed) {
        let units = driver.shape.all_tiles.div_ceil(tiles);
        for_each_unit(threads, units, |unit| {
            driver.unit(unit * tiles..driver.shape.all_tiles.min((unit + 1) * tiles), &filters);
        });
    }
    drop(filters);
    let AxisWork { spoiled, .. } = driver;
    compute_again(gather, Work { kernels, first: source, second: weight, bias, result, threads }, &spoiled);
}

/// Where a tap falls from the first.
fn places(axis: &Axis) -> impl Iterator<Item = (usize, usize)> + '_ {
    axis.phases[0].iter().map(|tap| ((tap.offset - axis.low) as usize, tap.index))
}

impl AxisWork<'_> {
    /// All filters as `[part][point][tap of the wide axis][source channel][filter]`, kept from call to call where that
    /// pays. The number behind them says whether all are finite.
    fn filters(&self, weight: &[f32], threads: usize) -> Arc<Workspace> {
        let length = self.shape.filters() + 1;
        let parts: Vec<(usize, usize)> = self.shape.parts().collect();
        let pack = |to: &mut [f32]| {
            let (filters, flag) = to.split_at_mut(length - 1);
            let of_filter = (length - 1) / self.shape.results;
            let start = Shared(filters.as_mut_ptr());
            for_each_unit(threads, parts.len(), |part| {
                let (first, count) = parts[part];
                // SAFETY: this part's filters, which no other unit touches.
                let to =
                    unsafe { std::slice::from_raw_parts_mut(start.get().add(first * of_filter), count * of_filter) };
                self.transform_filters(weight, first, count, to);
            });
            flag[0] = f32::from(u8::from(self.spoiled.filters.load(Ordering::Relaxed)));
        };
        let pixels = self.gather.batch * self.gather.axes[0].result * self.gather.axes[1].result;
        if !cache::is_worth_keeping(length, pixels) {
            let mut filters = Workspace::take(length);
            pack(&mut filters);
            return Arc::new(filters);
        }
        let mut hasher = DefaultHasher::new();
        // Two sets of kernels may have vectors of the same length and round differently.
        std::ptr::from_ref(self.kernels).hash(&mut hasher);
        let order = self.gather.axes.each_ref().map(|axis| places(axis).collect::<Vec<_>>());
        ("winograd-axis", self.shape.axis, self.shape.sources, &parts, self.gather.weight, order).hash(&mut hasher);
        let filters = cache::packed(self.kernels, weight, hasher.finish(), length, pack);
        if filters[length - 1] != 0.0 {
            self.spoiled.filters.store(true, Ordering::Relaxed);
        }
        filters
    }

    /// Transforms some filters.
    fn transform_filters(&self, weight: &[f32], first: usize, count: usize, to: &mut [f32]) {
        let Shape { sources, points, pairs, axis, wide_taps, .. } = self.shape;
        let [by_result, by_source, by_row, by_column] = self.gather.weight;
        let [tall, wide] = [&self.gather.axes[axis], &self.gather.axes[1 - axis]];
        let (by_tall, by_wide) = if axis == 0 { (by_row, by_column) } else { (by_column, by_row) };
        let of_tap = wide_taps * sources * count;
        let taps = tall.phases[0].len() * wide_taps;
        // Where each of a filter's numbers for one source channel goes.
        let mut offsets = vec![0usize; taps];
        for (place, index) in places(tall) {
            for (number, tap) in wide.phases[0].iter().enumerate() {
                offsets[index * by_tall + tap.index * by_wide] = place * of_tap + number * sources * count;
            }
        }
        let mut packed = Workspace::take(tall.phases[0].len() * of_tap);
        let from = &weight[first * by_result..];
        assert!((count - 1) * by_result + (sources - 1) * by_source + taps <= from.len());
        for channel in 0..sources {
            // SAFETY: rows are filters, columns the taps of one channel, and the last number of them all was just checked;
            // each goes to a place of its own in `packed`.
            unsafe {
                let (from, to) = (from.as_ptr().add(channel * by_source), packed.as_mut_ptr().add(channel * count));
                (self.kernels.transpose)(from, by_result, count, taps, to, offsets.as_ptr());
            }
        }
        assert_eq!(to.len(), points * of_tap, "room for the filters");
        let (from, to) = (packed.as_ptr(), to.as_mut_ptr());
        let filters = AxisFilters { pairs, from, tap_step: of_tap, count: of_tap, to, element_step: of_tap };
        // SAFETY: as many numbers for each tap and each point, as was just checked.
        if !unsafe { (self.kernels.axis_filters)(&filters) } {
            self.spoiled.filters.store(true, Ordering::Relaxed);
        }
    }

    /// Computes some tiles.
    fn unit(&self, tiles_of_unit: Range<usize>, filters: &[f32]) {
        let Shape { sources, points, vectors, lanes, wide_taps, axis, .. } = self.shape;
        let line = self.shape.line(tiles_of_unit.len());
        let (source_step, sums_step) = (self.shape.source_step(self.tiles), self.shape.sums_step(self.tiles));
        let most = self.shape.parts().map(|part| part.1).max().unwrap_or(0);
        let mut transformed = Workspace::take(points * sources * source_step);
        let mut sums = Workspace::take(points * most * sums_step);
        let mut turned = Workspace::take(self.tiles * self.shape.turned);
        for segment in self.source.segments(tiles_of_unit.clone()) {
            for (channel, to) in transformed[..sources * source_step].chunks_mut(source_step).enumerate() {
                // SAFETY: the other points of this channel follow as many channels apart.
                unsafe { self.source.transform(&segment, channel, to.as_mut_ptr(), &mut turned) };
            }
        }
        let of_filter = points * wide_taps * sources;
        let wide = &self.gather.axes[1 - axis];
        let mut runs = Vec::new();
        for (first, count) in self.shape.parts() {
            let of_point = wide_taps * sources * count;
            runs.clear();
            let taps = wide.phases[0].iter().enumerate();
            runs.extend(taps.map(|(tap, at)| Run { x: tap * sources * count, w: (at.offset - wide.low) as usize }));
            let filters = &filters[first * of_filter..][..points * of_point];
            for point in 0..points {
                for (begin, vectors) in tiles(line, vectors, lanes) {
                    // SAFETY: a point has `of_point` numbers of filters and `sources` channels, in which a tile's vectors
                    // end with the line, rounded up to whole vectors, and begin no further behind it than taps lie apart:
                    // that is a channel's step. So do those of the sums, without taps. The zeros that sums begin with are
                    // as long as a tile.
                    unsafe {
                        self.kernels.tile(vectors, 1, count, 1)(&Tile {
                            x: filters.as_ptr().add(point * of_point),
                            w: transformed.as_ptr().add(point * sources * source_step + begin),
                            runs: &runs,
                            count: sources,
                            pitch: 1,
                            row_step: 0,
                            x_step: count,
                            w_step: source_step,
                            init: ZEROS.as_ptr(),
                            init_step: 0,
                            sums: sums.as_mut_ptr().add(point * most * sums_step + begin),
                            sums_step,
                            fetch: false,
                        });
                    }
                }
            }
            for number in 0..count {
                for segment in self.source.segments(tiles_of_unit.clone()) {
                    let from = &sums[number * sums_step..];
                    self.write(&segment, first + number, from, most * sums_step, &mut turned);
                }
            }
        }
    }

    /// Transforms a segment's sums of one filter, from its first on, and writes the results.
    fn write(&self, segment: &Segment, channel: usize, sums: &[f32], element_step: usize, turned: &mut [f32]) {
        let Shape { points, pairs, pitch, axis, .. } = self.shape;
        let [tall, wide] = [&self.gather.axes[axis], &self.gather.axes[1 - axis]];
        let [by_image, by_channel, by_row, _] = self.gather.result;
        let plane = segment.image * by_image + channel * by_channel;
        let first_row = segment.first * AXIS_TILE;
        let rows = (segment.tiles * AXIS_TILE).min(tall.result - first_row);
        let row_step = if axis == 0 { by_row } else { wide.result };
        assert!((points - 1) * element_step + (segment.at + segment.tiles - 1) * pitch + wide.result <= sums.len());
        assert!(axis == 0 || rows * wide.result <= turned.len());
        // SAFETY: the last sum was just checked. Results go to this segment's own rows or columns of the result, which no
        // other unit writes, or first to the room for as many.
        unsafe {
            let place = self.result.get().add(plane + first_row * if axis == 0 { by_row } else { 1 });
            let to = if axis == 0 { place } else { turned.as_mut_ptr() };
            for tile in 0..segment.tiles {
                let finite = (self.kernels.axis_results)(&AxisResults {
                    pairs,
                    from: sums.as_ptr().add((segment.at + tile) * pitch),
                    element_step,
                    bias: self.bias.map_or(0.0, |bias| bias[channel]),
                    to: to.add(tile * AXIS_TILE * row_step),
                    row_step,
                    rows: AXIS_TILE.min(rows - tile * AXIS_TILE),
                    count: wide.result,
                });
                if !finite {
                    self.spoiled.images[segment.image].store(true, Ordering::Relaxed);
                }
            }
            if axis == 1 {
                let offsets = self.turned.as_ptr();
                (self.kernels.transpose)(turned.as_ptr(), wide.result, rows, wide.result, place, offsets);
            }
        }
    }
}

/// What sums begin with: as many as a tile has vectors.
static ZEROS: [f32; 64] = [0.0; 64];
