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

use std::ops::Range;
use std::sync::atomic::Ordering;

use unhang_conv::Problem;

use super::super::geometry::Gather;
use super::super::work::Work;
use super::super::workspace::{Shared, Workspace};
use super::axis_filters::FiltersOfAxis;
use super::line_products::LineProducts;
use super::lines::{Lines, Segment, Shape, axis_of};
use super::{Spoiled, compute_again};
use crate::parallel::for_each_unit;
use unhang_simd::Isa;
use unhang_simd::{AXIS_TILE, AxisResults, Kernels, Run};

/// Terms of a sum at most with seven taps along the axis, whose errors are the largest and grow with the root of their number:
/// with 512 they are 5e-6 (`tools/bench-cpu/winograd.py`), where the suite allows 1e-5.
const MOST_TERMS_OF_SEVEN_TAPS: usize = 1024;

/// How many products the definition has for each one here. `None` if an ordinary problem cannot be computed so within
/// the bound on its workspace, and with small errors.
pub(crate) fn gain(problem: &Problem, isa: Isa) -> Option<f64> {
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
pub(crate) fn compute(problem: &Problem, work: Work<'_>) {
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
    let parts = shape.parts().collect();
    let (filters, finite) = FiltersOfAxis { gather, kernels, weight, axis, pairs: shape.pairs, parts }.all(threads);
    driver.spoiled.filters.store(!finite, Ordering::Relaxed);
    if finite {
        let units = driver.shape.all_tiles.div_ceil(tiles);
        for_each_unit(threads, units, |unit| {
            driver.unit(unit * tiles..driver.shape.all_tiles.min((unit + 1) * tiles), &filters);
        });
    }
    drop(filters);
    let AxisWork { spoiled, .. } = driver;
    compute_again(gather, Work { kernels, first: source, second: weight, bias, result, threads }, &spoiled);
}

impl AxisWork<'_> {
    /// Computes some tiles.
    fn unit(&self, tiles_of_unit: Range<usize>, filters: &[f32]) {
        let Shape { sources, points, vectors, wide_taps, axis, .. } = self.shape;
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
                let products = LineProducts {
                    kernels: self.kernels,
                    vectors,
                    filters: &filters[point * of_point..][..of_point],
                    count,
                    sources,
                    runs: &runs,
                    source: transformed[point * sources * source_step..][..sources * source_step].as_ptr(),
                    source_step,
                    line,
                    sums: sums[point * most * sums_step..][..most * sums_step].as_mut_ptr(),
                    sums_step,
                };
                // SAFETY: a channel's step is as long as a line of whole vectors and the taps beyond it; that of sums has no
                // taps.
                unsafe { products.sum() };
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
                    stride: 1,
                    from: sums.as_ptr().add((segment.at + tile) * pitch),
                    element_step,
                    plain: std::ptr::null(),
                    plain_step: 0,
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
