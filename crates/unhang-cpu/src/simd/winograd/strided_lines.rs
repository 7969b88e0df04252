//! The source of Winograd's algorithm along the rows with a stride of two: long lines, as in [`super::lines`].
//!
//! Of three rows that a result meets the first and the third lie a stride apart. Such rows are transformed, as many as there
//! are points for each row of tiles, and the rows between them are not: they are plain, one for each row of results. Columns
//! are dealt out by their remainders, so that each remainder has a separate line and a tap of the columns is an offset.

use std::ops::Range;

use unhang_conv::{Direction, Layout, Problem};

use super::super::geometry::Gather;
use super::super::source::{prefetch_early, prefetch_plane};
use super::super::tiling::choose_tile;
use super::super::workspace::memory_for;
use super::lines::{Segment, UNIT_NUMBERS};
use super::plan::odd_lines;
use unhang_simd::even_parts;
use unhang_simd::{AxisSource, Kernels, PaddedRows, Run, axis_tile};

/// Pairs of points that there are kernels for.
const PAIRS: [usize; 2] = [2, 3];
/// Taps of a filter along the rows.
pub(super) const TAPS: usize = 3;

/// Whether an ordinary problem can be computed so, or its forward computation.
pub(super) fn is_possible(problem: &Problem) -> bool {
    let [rows, columns] = problem.stride();
    let plain = problem.layout() == Layout::Nchw && problem.groups() == 1 && problem.dilation()[0] == 1;
    let forward = problem.direction() != Direction::BackwardData;
    plain && forward && problem.kernel()[0] == TAPS && rows == 2 && columns <= 2
}

/// Sizes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    /// Pairs of points.
    pub pairs: usize,
    /// All points.
    pub points: usize,
    /// Rows of results of a tile.
    pub tile: usize,
    /// Source channels.
    pub sources: usize,
    /// Result channels.
    pub results: usize,
    /// Rows of results of an image.
    pub rows: usize,
    /// Results of a row.
    pub columns: usize,
    /// Rows of tiles of an image.
    pub tiles: usize,
    /// Rows of tiles of all images.
    pub all_tiles: usize,
    /// Numbers of a line from one row to the next.
    pub pitch: usize,
    /// Lines of a channel: remainders of columns.
    remainders: usize,
    /// Taps of a row.
    pub wide_taps: usize,
    /// Numbers in a vector.
    pub lanes: usize,
    /// Vectors of a tile of the micro-kernel.
    pub vectors: usize,
    /// Filters of a tile of the micro-kernel.
    scalars: usize,
    /// Numbers that the workspace may have.
    pub memory: usize,
}

impl Shape {
    /// Of the gather of a problem that can be computed so.
    pub(super) fn new(gather: &Gather, kernels: &Kernels) -> Shape {
        let [tall, wide] = &gather.axes;
        let (sources, results, rows) = (gather.source_channels, gather.result_channels, tall.result);
        let tiles = |pairs: usize| rows.div_ceil(axis_tile(pairs, 2));
        let pairs = PAIRS.into_iter().min_by_key(|&pairs| (2 * pairs + 2) * tiles(pairs)).expect("there are kernels");
        let pitch = wide.steps + (wide.span - 1) / wide.in_step;
        let vectors = choose_tile(kernels, UNIT_NUMBERS / (4 * pairs * sources), results, 1).vectors;
        let pixels = sources * tall.source * wide.source + results * rows * wide.result;
        let wide_taps = wide.phases[0].len();
        Shape {
            pairs,
            points: 2 * pairs + 2,
            tile: axis_tile(pairs, 2),
            sources,
            results,
            rows,
            columns: wide.steps,
            tiles: tiles(pairs),
            all_tiles: gather.batch * tiles(pairs),
            pitch,
            remainders: wide.in_step.min(wide.span),
            wide_taps,
            lanes: kernels.lanes,
            vectors,
            scalars: kernels.most_scalars(vectors, 1),
            memory: memory_for(gather.batch * pixels + TAPS * wide_taps * sources * results),
        }
    }

    /// Rows of results before a tile of all images.
    fn rows_before(&self, tile: usize) -> usize {
        tile / self.tiles * self.rows + tile % self.tiles * self.tile
    }

    /// Rows of results of some tiles.
    pub(super) fn rows_of(&self, tiles: &Range<usize>) -> usize {
        self.rows_before(tiles.end) - self.rows_before(tiles.start)
    }

    /// Numbers of a line of this many rows.
    pub(super) fn line(&self, rows: usize) -> usize {
        (rows - 1) * self.pitch + self.columns
    }

    /// From one remainder's line of this many rows to the next's: whole cache lines, so that most taps' vectors are.
    fn remainder_step(&self, rows: usize) -> usize {
        (rows * self.pitch).next_multiple_of(16)
    }

    /// From one channel's lines of this many rows to the next's: vectors are whole, and taps lie beyond the line.
    pub(super) fn source_step(&self, rows: usize) -> usize {
        let last = self.line(rows).next_multiple_of(self.lanes) + self.pitch - self.columns;
        odd_lines((self.remainders - 1) * self.remainder_step(rows) + last)
    }

    /// Numbers of the lines of all channels, of the points and plain ones, for this many tiles.
    pub(super) fn source(&self, tiles: usize) -> [usize; 2] {
        [self.points * self.sources * self.source_step(tiles), self.sources * self.source_step(tiles * self.tile)]
    }

    /// From one filter's sums of this many rows to the next's.
    pub(super) fn sums_step(&self, rows: usize) -> usize {
        odd_lines(self.line(rows).next_multiple_of(self.lanes))
    }

    /// Numbers of one remainder of the rows that are dealt out before they are transformed, for this many tiles.
    pub(super) fn room(&self, tiles: usize) -> usize {
        (tiles * self.tile + 1) * self.pitch
    }

    /// Filters of a part, and the parts.
    pub(super) fn parts(&self) -> impl Iterator<Item = (usize, usize)> + Clone {
        even_parts(self.results, self.scalars)
    }

    /// Filters of a part at most.
    pub(super) fn most(&self) -> usize {
        self.parts().map(|part| part.1).max().unwrap_or(0)
    }

    /// Where each tap of a row falls in lines of this many rows.
    pub(super) fn offsets(&self, gather: &Gather, rows: usize) -> Vec<usize> {
        let wide = &gather.axes[1];
        let place = |offset: isize| (offset - wide.low) as usize;
        let offset = |place: usize| place % wide.in_step * self.remainder_step(rows) + place / wide.in_step;
        wide.phases[0].iter().map(|tap| offset(place(tap.offset))).collect()
    }
}

/// Runs of taps whose filters are that far apart.
pub(super) fn runs(offsets: &[usize], filter_step: usize) -> Vec<Run> {
    offsets.iter().enumerate().map(|(tap, &w)| Run { x: tap * filter_step, w }).collect()
}

/// The source of a computation under way.
pub(super) struct StridedLines<'a> {
    pub shape: Shape,
    pub gather: &'a Gather,
    pub kernels: &'static Kernels,
    pub source: &'a [f32],
    /// Tiles of a unit.
    pub tiles: usize,
}

impl StridedLines<'_> {
    /// The tiles of a unit, image by image, with the place of each one's first row in the unit.
    pub(super) fn segments(&self, tiles: Range<usize>) -> impl Iterator<Item = (Segment, usize)> {
        let shape = self.shape;
        let mut next = tiles.start;
        std::iter::from_fn(move || {
            (next < tiles.end).then(|| {
                let (image, first) = (next / shape.tiles, next % shape.tiles);
                let count = (shape.tiles - first).min(tiles.end - next);
                let segment = Segment { image, first, tiles: count, at: next - tiles.start };
                let row = shape.rows_of(&(tiles.start..next));
                next += count;
                (segment, row)
            })
        })
    }

    /// Rows of results of a segment.
    pub(super) fn rows_of(&self, segment: &Segment) -> usize {
        (segment.tiles * self.shape.tile).min(self.shape.rows - segment.first * self.shape.tile)
    }

    /// Deals out and transforms a segment's rows of one channel, and the plain rows from `row` on.
    ///
    /// # Safety
    /// `to` is good for a channel's lines, and so is every `sources × source_step` numbers behind it, once for each point.
    /// `plain` is good for a channel's plain lines.
    pub(super) unsafe fn transform(
        &self,
        segment: &Segment,
        row: usize,
        channel: usize,
        to: *mut f32,
        plain: *mut f32,
        room: &mut [f32],
    ) {
        let Shape { sources, points, pairs, pitch, tile, remainders, .. } = self.shape;
        let tall = &self.gather.axes[0];
        let [by_image, by_channel, by_row, _] = self.gather.source;
        let from = segment.image * by_image + channel * by_channel;
        let first_step = segment.first * tile;
        let next = self.source.as_ptr().wrapping_add(from + by_channel + tall.first_of_source(first_step) * by_row);
        prefetch_plane(next, 2 * segment.tiles * tile * by_row);

        let plane = &self.source[from..][..by_channel];
        let rows = segment.tiles * tile + 1;
        assert!(room.len() >= rows * pitch);
        let room = room.as_mut_ptr();
        let element_step = sources * self.shape.source_step(self.tiles);
        for remainder in 0..remainders {
            let plain_line = remainder * self.shape.remainder_step(self.tiles * tile) + row * pitch;
            let line = remainder * self.shape.remainder_step(self.tiles) + segment.at * pitch;
            // SAFETY: the room was just checked. The function's own conditions: both lines have place for all of the segment's
            // rows.
            unsafe {
                self.deal(plane, remainder, [0, first_step, rows], room);
                self.deal(plane, remainder, [1, first_step, self.rows_of(segment)], plain.add(plain_line));
                for number in 0..segment.tiles {
                    let row = |point: usize| room.add((number * tile + point) * pitch).cast_const();
                    let rows = std::array::from_fn(|point| row(point.min(points - 1)));
                    let to = to.add(line + number * pitch);
                    (self.kernels.axis_source)(&AxisSource { pairs, rows, count: pitch, to, element_step });
                }
            }
        }
    }

    /// Asks for what some tiles read of some channels.
    pub(super) fn fetch(&self, tiles: Range<usize>, channels: Range<usize>) {
        let tall = &self.gather.axes[0];
        let [by_image, by_channel, by_row, _] = self.gather.source;
        for (segment, _) in self.segments(tiles) {
            let row = tall.first_of_source(segment.first * self.shape.tile);
            let rows = (2 * segment.tiles * self.shape.tile + 1).min(tall.source.saturating_sub(row));
            for channel in channels.clone() {
                let from = segment.image * by_image + channel * by_channel + row * by_row;
                prefetch_early(self.source.as_ptr().wrapping_add(from), rows * by_row);
            }
        }
    }

    /// Deals out one remainder of the columns of some rows of a plane: their place from the first tap, the step of the first,
    /// and how many. Padding becomes zeros.
    ///
    /// # Safety
    /// `to` is good for `pitch` numbers of each of the rows.
    unsafe fn deal(&self, plane: &[f32], remainder: usize, [place, first, rows]: [usize; 3], to: *mut f32) {
        let [tall, wide] = &self.gather.axes;
        let (by_row, pitch) = (self.gather.source[2], self.shape.pitch);
        let (left, right, column) = wide.inside(remainder, 0, pitch);
        let (top, bottom, row) = tall.inside(place, first, rows);
        // SAFETY: the function's own condition.
        let all = unsafe { std::slice::from_raw_parts_mut(to, rows * pitch) };
        if top == bottom || left == right {
            all.fill(0.0);
            return;
        }
        all[..top * pitch].fill(0.0);
        all[bottom * pitch..].fill(0.0);
        let from_step = tall.in_step * by_row;
        let last = (bottom - top - 1) * from_step + (right - left - 1) * wide.in_step;
        let from = &plane[row * by_row + column..][..last + 1];
        let rows = PaddedRows {
            from: from.as_ptr(),
            from_step,
            apart: wide.in_step,
            to: all[top * pitch..bottom * pitch].as_mut_ptr(),
            to_step: pitch,
            rows: bottom - top,
            before: left,
            numbers: right - left,
            behind: pitch - right,
        };
        // SAFETY: both slices have the lengths that the kernel reads and writes.
        unsafe { (self.kernels.padded_rows)(&rows) };
    }
}
