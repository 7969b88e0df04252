//! The source of Winograd's algorithm along one axis: rows of tiles, transformed to long lines.
//!
//! As many rows of pixels as there are points make a row of tiles, each column by itself. The rows of a unit of work are one
//! long line for each point and channel, with zeros for padding between them. So a tap of the other axis is an offset
//! in that line. Where the taps lie along the columns, planes are transposed on the way in.

use std::ops::Range;

use unhang_conv::{Layout, Problem};

use super::super::geometry::Gather;
use super::super::tiling::choose_tile;
use super::super::workspace::{Workspace, memory_for};
use super::plan::odd_lines;
use unhang_simd::even_parts;
use unhang_simd::{AXIS_TILE, AxisSource, Kernels, pairs_for};

/// Numbers of the transformed source that a unit of work aims at: half of a second-level cache.
pub(super) const UNIT_NUMBERS: usize = 256 * 1024;
/// Numbers of a line at least: with fewer too much of the last vectors is in vain.
const LEAST_LINE: usize = 48;

/// The axis that is transformed, if an ordinary problem has one: rows, or columns where there is but one row of taps.
pub(super) fn axis_of(problem: &Problem) -> Option<usize> {
    let axis = usize::from(problem.kernel()[0] == 1);
    let possible = problem.layout() == Layout::Nchw && problem.stride() == [1, 1] && problem.groups() == 1;
    (possible && problem.dilation()[axis] == 1 && pairs_for(problem.kernel()[axis]).is_some()).then_some(axis)
}

/// Sizes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    /// The axis that is transformed, called tall; the other one is called wide.
    pub axis: usize,
    /// Pairs of points.
    pub pairs: usize,
    /// All points.
    pub points: usize,
    /// Source channels.
    pub sources: usize,
    /// Result channels.
    pub results: usize,
    /// Tiles of an image.
    pub tiles: usize,
    /// Tiles of all images.
    pub all_tiles: usize,
    /// Numbers of a line from one tile to the next.
    pub pitch: usize,
    /// Results of a tile in a line.
    pub columns: usize,
    /// From the first tap of the wide axis to the last, both included.
    span: usize,
    /// Taps of the wide axis.
    pub wide_taps: usize,
    /// Numbers in a vector.
    pub lanes: usize,
    /// Vectors of a tile of the micro-kernel.
    pub vectors: usize,
    /// Filters of a tile of the micro-kernel.
    scalars: usize,
    /// Numbers of a tile that is transposed, of the source or of the result.
    pub turned: usize,
    /// Numbers that the workspace may have.
    pub memory: usize,
}

impl Shape {
    /// Of a gather without stride and groups that has taps along this axis for which there are kernels.
    pub(super) fn new(gather: &Gather, axis: usize, kernels: &Kernels) -> Shape {
        let [tall, wide] = [&gather.axes[axis], &gather.axes[1 - axis]];
        let (sources, results) = (gather.source_channels, gather.result_channels);
        let taps = tall.phases[0].len();
        let pairs = pairs_for(taps).expect("taps that have kernels");
        let points = 2 * pairs + 2;
        let tiles = tall.result.div_ceil(AXIS_TILE);
        let pitch = wide.steps + wide.span - 1;
        let vectors = choose_tile(kernels, UNIT_NUMBERS / (points * sources), results, 1).vectors;
        let pixels = sources * tall.source * wide.source + results * tall.result * wide.result;
        let wide_taps = wide.phases[0].len();
        Shape {
            axis,
            pairs,
            points,
            sources,
            results,
            tiles,
            all_tiles: gather.batch * tiles,
            pitch,
            columns: wide.steps,
            span: wide.span,
            wide_taps,
            lanes: kernels.lanes,
            vectors,
            scalars: kernels.most_scalars(vectors, 1),
            turned: if axis == 1 { (wide.source * points).max(wide.result * AXIS_TILE) } else { 0 },
            memory: memory_for(gather.batch * pixels + taps * wide_taps * sources * results),
        }
    }

    /// Numbers of a line of this many tiles.
    pub(super) fn line(&self, tiles: usize) -> usize {
        (tiles - 1) * self.pitch + self.columns
    }

    /// From one channel of the transformed source to the next: vectors are whole, and taps lie beyond the line.
    pub(super) fn source_step(&self, tiles: usize) -> usize {
        odd_lines(self.line(tiles).next_multiple_of(self.lanes) + self.span - 1)
    }

    /// From one filter's sums to the next.
    pub(super) fn sums_step(&self, tiles: usize) -> usize {
        odd_lines(self.line(tiles).next_multiple_of(self.lanes))
    }

    /// Filters of a part, and the parts.
    pub(super) fn parts(&self) -> impl Iterator<Item = (usize, usize)> + Clone {
        even_parts(self.results, self.scalars)
    }

    /// Numbers of all transformed filters.
    pub(super) fn filters(&self) -> usize {
        self.points * self.wide_taps * self.sources * self.results
    }

    /// Numbers of a part's filters, of each tap of the tall axis, before they are transformed.
    fn packed_filters(&self) -> usize {
        (self.points + 1 - AXIS_TILE) * self.wide_taps * self.sources * self.scalars.min(self.results)
    }

    /// Workspace with this many threads and units of this many tiles.
    fn workspace(&self, threads: usize, tiles: usize) -> usize {
        let source = self.sources * self.source_step(tiles);
        let sums = self.scalars.min(self.results) * self.sums_step(tiles);
        let of_thread = self.points * (source + sums) + self.pitch + tiles * self.turned;
        self.filters() + 1 + (threads * of_thread).max(self.packed_filters())
    }

    /// Tiles of a unit, so that the workspace is within its bound; none if a line would be too short.
    pub(super) fn unit_tiles(&self, threads: usize) -> Option<usize> {
        let aim = UNIT_NUMBERS / (self.points * self.sources * self.pitch);
        let mut tiles = aim.clamp(1, self.all_tiles.div_ceil(threads));
        while tiles > 1 && self.workspace(threads, tiles) > self.memory {
            tiles = tiles.div_ceil(2);
        }
        let long_enough = tiles * self.pitch >= LEAST_LINE || tiles == self.all_tiles;
        (long_enough && self.workspace(threads, tiles) <= self.memory).then_some(tiles)
    }
}

/// Neighbouring tiles of one image in a unit.
pub(super) struct Segment {
    /// The image.
    pub image: usize,
    /// The first tile.
    pub first: usize,
    /// How many.
    pub tiles: usize,
    /// The first tile's place in the unit.
    pub at: usize,
}

/// The source of a computation under way.
pub(super) struct Lines<'a> {
    shape: Shape,
    gather: &'a Gather,
    kernels: &'static Kernels,
    source: &'a [f32],
    /// Tiles of a unit.
    tiles: usize,
    /// Zeros in place of a row of the source that there is not.
    zeros: Workspace,
    /// Where the columns of a plane go when it is transposed.
    turned: Vec<usize>,
}

impl<'a> Lines<'a> {
    /// Of a source, in units of this many tiles.
    pub(super) fn new(
        shape: &Shape,
        gather: &'a Gather,
        kernels: &'static Kernels,
        source: &'a [f32],
        tiles: usize,
    ) -> Lines<'a> {
        let [tall, wide] = [&gather.axes[shape.axis], &gather.axes[1 - shape.axis]];
        let columns = tall.source.min((tiles - 1) * AXIS_TILE + shape.points);
        let turned = (0..columns).map(|column| column * wide.source).collect();
        let mut zeros = Workspace::take(wide.source);
        zeros.fill(0.0);
        Lines { shape: *shape, gather, kernels, source, tiles, zeros, turned }
    }

    /// The tiles of a unit, image by image.
    pub(super) fn segments(&self, tiles: Range<usize>) -> impl Iterator<Item = Segment> {
        let of_image = self.shape.tiles;
        let mut next = tiles.start;
        std::iter::from_fn(move || {
            (next < tiles.end).then(|| {
                let (image, first) = (next / of_image, next % of_image);
                let count = (of_image - first).min(tiles.end - next);
                let segment = Segment { image, first, tiles: count, at: next - tiles.start };
                next += count;
                segment
            })
        })
    }

    /// Transforms a segment's rows of one channel.
    ///
    /// # Safety
    /// `to` is good for a unit's line, and so is every `sources × source_step` numbers behind it, once for each point.
    pub(super) unsafe fn transform(&self, segment: &Segment, channel: usize, to: *mut f32, turned: &mut [f32]) {
        let Shape { sources, points, pairs, pitch, axis, .. } = self.shape;
        let [tall, wide] = [&self.gather.axes[axis], &self.gather.axes[1 - axis]];
        let [by_image, by_channel, by_row, _] = self.gather.source;
        let plane = &self.source[segment.image * by_image + channel * by_channel..][..by_channel];
        // The rows that these tiles read: those of the source, from the first on.
        let low = (segment.first * AXIS_TILE) as isize + tall.low;
        let end = low + ((segment.tiles - 1) * AXIS_TILE + points) as isize;
        let inside = low.clamp(0, tall.source as isize)..end.clamp(0, tall.source as isize);
        let rows: &[f32] = if axis == 0 {
            &plane[inside.start as usize * by_row..inside.end as usize * by_row]
        } else {
            let (from, count) = (&plane[inside.start as usize..], (inside.end - inside.start) as usize);
            let to = &mut turned[..count * wide.source];
            // SAFETY: this many columns of all rows of the plane, each to a separate row.
            unsafe {
                let offsets = self.turned[..count].as_ptr();
                (self.kernels.transpose)(from.as_ptr(), by_row, wide.source, count, to.as_mut_ptr(), offsets);
            }
            to
        };
        // The places of a line that hold numbers of the source.
        let (begin, first) = ((-wide.low).max(0) as usize, (wide.low.max(0) as usize).min(wide.source));
        let count = (wide.source - first).min(pitch.saturating_sub(begin));
        let element_step = sources * self.shape.source_step(self.tiles);
        for tile in 0..segment.tiles {
            let row = |point: usize| {
                let row = low + (tile * AXIS_TILE + point) as isize;
                let place = inside.contains(&row).then(|| (row - inside.start) as usize * wide.source);
                place.map_or(&*self.zeros, |place| &rows[place..][..wide.source])[first..][..count].as_ptr()
            };
            // SAFETY: the function's own condition: `pitch` numbers of the line are this tile's. Rows have `count` numbers.
            unsafe {
                let to = to.add((segment.at + tile) * pitch);
                for point in (0..points).filter(|_| count < pitch) {
                    let line = std::slice::from_raw_parts_mut(to.add(point * element_step), pitch);
                    line[..begin.min(pitch)].fill(0.0);
                    line[(begin + count).min(pitch)..].fill(0.0);
                }
                let rows = std::array::from_fn(|point| row(point.min(points - 1)));
                let to = to.add(begin.min(pitch));
                (self.kernels.axis_source)(&AxisSource { pairs, rows, count, to, element_step });
            }
        }
    }
}
