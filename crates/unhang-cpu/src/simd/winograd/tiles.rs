//! Tiles of images, transformed.

use std::ops::Range;

use super::super::geometry::{Gather, Strides};
use super::super::workspace::{Shared, Workspace};
use super::phases::{Chain, Phases, run};
use super::plan::{LINE, LINES, Segment, Shape};
use unhang_simd::even_parts;
use unhang_simd::{ELEMENTS, Kernels, PATCH, SourceTiles};

/// Images that are cut into tiles.
pub(super) struct Images<'a> {
    kernels: &'static Kernels,
    shape: &'a Shape,
    numbers: &'a [f32],
    strides: Strides,
    phases: &'a Phases,
    /// The positions that tiles take of a chain.
    view: fn(&Chain) -> &[Option<usize>],
    /// Rows and columns of a tile, of each parity.
    span: usize,
    /// From one row or column of a parity to the next.
    step: usize,
    /// From one packed row or column of a parity to the next.
    packed_step: usize,
    channels: usize,
    transform: unsafe fn(&SourceTiles),
}

/// An image that is cut into tiles, or the phases of one.
struct Image<'a> {
    /// Its first number.
    start: usize,
    /// The rows and columns that tiles take, in their order.
    positions: [&'a [Option<usize>]; 2],
}

/// Rows of a tile at most: of both parities.
const MOST_ROWS: usize = 2 * PATCH;

/// Where transformed tiles go: `[element][group of tiles][vector of channels][tile][channel]`.
#[derive(Clone, Copy)]
pub(super) struct Room {
    /// The first number.
    pub start: Shared,
    /// How many there are.
    pub length: usize,
    /// Tiles of a group.
    pub group: usize,
    /// Vectors of channels.
    pub vectors: usize,
    /// From one element to the next.
    pub element_step: usize,
}

impl<'a> Images<'a> {
    /// The source, in tiles of six by six of each parity that overlap.
    pub(super) fn source(
        shape: &'a Shape,
        phases: &'a Phases,
        gather: &Gather,
        kernels: &'static Kernels,
        numbers: &'a [f32],
    ) -> Images<'a> {
        Images {
            kernels,
            shape,
            numbers,
            strides: gather.source,
            phases,
            view: |chain| &chain.source,
            span: PATCH,
            step: shape.in_step,
            packed_step: shape.packed_step(),
            channels: gather.source_channels,
            transform: kernels.source_tiles,
        }
    }

    /// The gradient of the result, in tiles that do not.
    pub(super) fn gradient(
        shape: &'a Shape,
        phases: &'a Phases,
        gather: &Gather,
        kernels: &'static Kernels,
        numbers: &'a [f32],
    ) -> Images<'a> {
        Images {
            kernels,
            shape,
            numbers,
            strides: gather.result,
            phases,
            view: |chain| &chain.result,
            span: shape.tile,
            step: 1,
            packed_step: 1,
            channels: gather.result_channels,
            transform: kernels.gradient_tiles,
        }
    }

    /// The image of a segment.
    fn image(&self, segment: &Segment) -> Image<'a> {
        let (image, chains) = self.phases.of(segment.image);
        Image { start: image * self.strides[0], positions: chains.map(self.view) }
    }

    /// The place of a tile's first row or column.
    fn first(&self, tile: usize) -> usize {
        tile * self.shape.tile * self.step
    }

    /// Columns that a segment reads, of each parity.
    fn pixels(&self, segment: &Segment) -> usize {
        segment.tiles * self.shape.tile + self.span - self.shape.tile
    }

    /// Transforms a segment's tiles, those vectors of channels.
    ///
    /// # Safety
    /// The room is there, and nobody else reads or writes its part for these tiles and vectors meanwhile.
    ///
    /// # Panics
    /// When the room is too small.
    pub(super) unsafe fn transform(&self, segment: &Segment, vectors: Range<usize>, room: Room) {
        let mut packed = Workspace::take(self.shape.packed());
        let lanes = self.shape.lanes;
        let last = self.channels.min(vectors.end * lanes);
        if self.strides[1] != 1 || !last.is_multiple_of(lanes) || self.packed_step < self.step {
            self.transform_packed(segment, vectors, room, &mut packed);
            return;
        }
        // Tiles that meet no padding are read in place.
        let Image { positions, .. } = self.image(segment);
        let is_inside = |axis: usize, tile: usize| {
            let dilation = self.shape.dilation[axis];
            run(positions[axis], self.first(tile), self.span * self.step, dilation).is_some()
        };
        let whole = is_inside(0, segment.row);
        let inside = |column: usize| whole && is_inside(1, column);
        let goes_on = |column: usize, tiles: usize| {
            let count = (tiles * self.shape.tile + self.span - self.shape.tile) * self.step;
            run(positions[1], self.first(column), count, self.shape.dilation[1]).is_some()
        };
        let mut first = segment.column;
        let end = segment.column + segment.tiles;
        while first < end {
            let in_place = inside(first);
            let mut tiles = 1;
            // Tiles of two phases may touch.
            while first + tiles < end && inside(first + tiles) == in_place && (!in_place || goes_on(first, tiles + 1)) {
                tiles += 1;
            }
            let at = segment.at + first - segment.column;
            let part = Segment { column: first, tiles, at, ..*segment };
            if in_place {
                self.transform_in_place(&part, vectors.clone(), room);
            } else {
                self.transform_packed(&part, vectors.clone(), room, &mut packed);
            }
            first += tiles;
        }
    }

    /// Transforms tiles that lie in the image as they are.
    fn transform_in_place(&self, segment: &Segment, vectors: Range<usize>, room: Room) {
        let Image { start, positions } = self.image(segment);
        let lanes = self.shape.lanes;
        let [_, _, by_row, by_column] = self.strides;
        let [row, column] = [(0, segment.row), (1, segment.column)]
            .map(|(axis, tile)| positions[axis][self.first(tile)].expect("tiles that are inside"));
        let first = start + row * by_row + column * by_column + vectors.start * lanes;
        let (by_row, by_column) = (by_row * self.shape.dilation[0], by_column * self.shape.dilation[1]);
        let from = &self.numbers[first..];
        let (pixels, rows) = (self.pixels(segment) * self.step, self.span * self.step);
        let last = (rows - 1) * by_row + (pixels - 1) * by_column + vectors.len() * lanes;
        assert!(last <= from.len());
        let rows = std::array::from_fn(|i| from[i.min(rows - 1) * by_row..].as_ptr());
        self.call(segment, rows, by_column, 0..vectors.len(), room);
    }

    /// Packs the pixels of a segment with their zeros, a few channels at a time, and transforms them.
    fn transform_packed(&self, segment: &Segment, vectors: Range<usize>, room: Room, packed: &mut [f32]) {
        let lanes = self.shape.lanes;
        let (pixels, rows) = (self.pixels(segment) * self.packed_step, self.span * self.packed_step);
        for (first, count) in even_parts(vectors.len(), self.shape.packed_blocks()) {
            let first_channel = (vectors.start + first) * lanes;
            let (pitch, channels) = (count * lanes, (count * lanes).min(self.channels - first_channel));
            let row_pitch = pixels * pitch;
            let packed = &mut packed[..rows * row_pitch];
            for (row, to) in packed.chunks_mut(row_pitch).enumerate() {
                if self.packed_step < self.step {
                    self.pack_parities(segment, row, pitch, to);
                } else {
                    self.pack_row(segment, row, first_channel, channels, pitch, to);
                }
            }
            let rows = std::array::from_fn(|i| packed[i.min(rows - 1) * row_pitch..].as_ptr());
            self.call(segment, rows, pitch, first..first + count, room);
        }
    }

    /// Packs one row of a segment's pixels, `pitch` apart, with zeros where there are none.
    fn pack_row(
        &self,
        segment: &Segment,
        row: usize,
        first_channel: usize,
        channels: usize,
        pitch: usize,
        to: &mut [f32],
    ) {
        let Image { start, positions: [rows, columns] } = self.image(segment);
        let [_, by_channel, by_row, by_column] = self.strides;
        let pixels = to.len() / pitch;
        assert!(pixels <= LINE);
        let row = rows.get(self.first(segment.row) + row).copied().flatten();
        // The pixels that there are, with their columns.
        let (mut met, mut count) = ([(0usize, 0usize); LINE], 0);
        for (pixel, column) in columns.iter().skip(self.first(segment.column)).take(pixels).enumerate() {
            if let Some(column) = *column {
                met[count] = (pixel, column);
                count += 1;
            }
        }
        let met = &met[..count];
        let (Some(row), Some(&(begin, first)), Some(&(last_pixel, last))) = (row, met.first(), met.last()) else {
            to.fill(0.0);
            return;
        };
        let end = last_pixel + 1;
        if channels < pitch || count < end - begin {
            to.fill(0.0);
        } else {
            to[..begin * pitch].fill(0.0);
            to[end * pitch..].fill(0.0);
        }
        let from = &self.numbers[start + first_channel * by_channel + row * by_row..];
        assert!(met.iter().all(|&(_, column)| column * by_column + (channels - 1) * by_channel < from.len()));
        let transpose = self.kernels.transpose;
        let offsets: [usize; LINE] = std::array::from_fn(|pixel| pixel * pitch);
        // Pixels that touch in the image too.
        let touch = last == first + count - 1 && count == end - begin && self.shape.dilation[1] == 1;
        // SAFETY: the last number was just checked; each pixel goes to a separate place. Lines have room for this many
        // channels and pixels.
        unsafe {
            if by_channel == 1 && touch {
                let (from, to) = (from.as_ptr().add(first * by_column), to.as_mut_ptr().add(begin * pitch));
                (self.kernels.rows)(from, by_column, to, pitch, channels, count);
            } else if by_channel == 1 {
                for &(pixel, column) in met {
                    let (from, to) = (from.as_ptr().add(column * by_column), to.as_mut_ptr().add(pixel * pitch));
                    (self.kernels.row)(from, 1, channels, to);
                }
            } else if touch {
                let (from, to) = (from.as_ptr().add(first), to.as_mut_ptr().add(begin * pitch));
                transpose(from, by_channel, channels, count, to, offsets.as_ptr());
            } else {
                // Pixels of phases, which lie apart, are brought together first.
                let mut lines = [0.0f32; LINES * LINE];
                for first in (0..channels).step_by(LINES) {
                    let channels = LINES.min(channels - first);
                    for (channel, line) in lines.chunks_mut(LINE).enumerate().take(channels) {
                        let from = from.as_ptr().add((first + channel) * by_channel);
                        for &(pixel, column) in met {
                            line[pixel] = *from.add(column);
                        }
                    }
                    let to = to.as_mut_ptr().add(first);
                    transpose(lines.as_ptr(), LINE, channels, pixels, to, offsets.as_ptr());
                }
            }
        }
    }

    /// Packs one row of a segment's pixels, `pitch` apart, each with all parities of its few channels.
    fn pack_parities(&self, segment: &Segment, row: usize, pitch: usize, to: &mut [f32]) {
        let Image { start, positions: [rows, columns] } = self.image(segment);
        let [_, by_channel, by_row, by_column] = self.strides;
        let pixels = to.len() / pitch;
        assert!(pixels <= LINE && pitch >= LINES && self.step * self.step * self.channels <= LINES);
        let mut lines = [0.0f32; LINES * LINE];
        for (number, lines) in lines.chunks_mut(self.channels * LINE).enumerate().take(self.step * self.step) {
            let parity = self.shape.parities.of(number);
            let row = rows.get(self.first(segment.row) + row * self.step + parity[0]).copied().flatten();
            // Pixels before the image, and the first behind it: they follow each other.
            let places = || columns.iter().skip(self.first(segment.column) + parity[1]).step_by(self.step).take(pixels);
            let begin = places().take_while(|column| column.is_none()).count();
            let met = places().skip(begin).take_while(|column| column.is_some()).count();
            let (Some(row), Some(&Some(column))) = (row, places().nth(begin)) else {
                continue;
            };
            let end = begin + met;
            let from = &self.numbers[start + row * by_row + column * by_column..];
            let apart = self.step * by_column;
            assert!((self.channels - 1) * by_channel + (end - begin - 1) * apart < from.len());
            for (channel, line) in lines.chunks_mut(LINE).enumerate() {
                // SAFETY: the last number was just checked, and a line has room for all pixels.
                unsafe {
                    let (from, to) = (from.as_ptr().add(channel * by_channel), line.as_mut_ptr().add(begin));
                    (self.kernels.row)(from, apart, end - begin, to);
                }
            }
        }
        let offsets: [usize; LINE] = std::array::from_fn(|pixel| pixel * pitch);
        // SAFETY: there are that many lines, as long as the pixels, which have room for as many numbers each.
        unsafe { (self.kernels.transpose)(lines.as_ptr(), LINE, LINES, pixels, to.as_mut_ptr(), offsets.as_ptr()) };
    }

    /// Transforms some vectors of channels; `vectors` are their places in the room, from each parity's first on.
    fn call(
        &self,
        segment: &Segment,
        rows: [*const f32; MOST_ROWS],
        by_column: usize,
        vectors: Range<usize>,
        room: Room,
    ) {
        let Shape { lanes, tile: columns, parities, .. } = *self.shape;
        let (blocks, block_step, element_step) = (vectors.len(), room.group * lanes, room.element_step);
        let step = self.packed_step;
        let column_step = step * by_column;
        let tile_step = columns * column_step;
        for parity in 0..step * step {
            let [row, column] = if step == 1 { [0, 0] } else { parities.of(parity) };
            let first = parity * self.shape.blocks_of_parity() + vectors.start;
            let mut tile = 0;
            while tile < segment.tiles {
                let (group, in_group) = ((segment.at + tile) / room.group, (segment.at + tile) % room.group);
                let tiles = (segment.tiles - tile).min(room.group - in_group);
                let at = (group * room.vectors + first) * block_step + in_group * lanes;
                assert!((ELEMENTS - 1) * element_step + at + (blocks - 1) * block_step + tiles * lanes <= room.length);
                // SAFETY: both callers' rows are good for all pixels of the segment with this many channels. The last
                // number that is written was just checked, in a room that is ours by the condition of `transform`.
                unsafe {
                    let to = room.start.get().add(at);
                    let at = tile * tile_step + column * by_column;
                    let rows = std::array::from_fn(|i| rows[i * step + row].add(at));
                    let span = self.span;
                    let tiles =
                        SourceTiles { rows, span, column_step, tile_step, tiles, blocks, to, block_step, element_step };
                    (self.transform)(&tiles);
                }
                tile += tiles;
            }
        }
    }
}
