//! The blocked direct convolution, forward and backward-data.
//!
//! The result is cut into strips of rows (or of whole small images). For each block of source channels a strip's part of
//! the source is packed once, with its zeros, as `[channel][row][phase][column]`, so that the micro-kernel reads its
//! pixels from neighbouring places whatever layout, padding and stride; filters are packed once as
//! `[block of results][block of sources][phase][tap][source channel][result channels]`. A tile is up to 28 vectors of
//! sums: neighbouring pixels × vectors of result channels.

use super::geometry::{Gather, even_parts};
use super::kernels::{Kernels, MAX_SCALARS, MAX_VECTORS, Run, TILE_ROWS, Tile};
use super::source::{Arrangement, Source, Window};
use super::workspace::{Shared, Workspace};
use crate::parallel::for_each_unit;

/// Source channels of a block: few enough that a tile's pixels stay in the first-level cache from one tap to the next.
const SOURCE_BLOCK: usize = 64;
/// The same where there is one tap only, and nothing to come back for.
const SOURCE_BLOCK_ONE_TAP: usize = 512;
/// Numbers of packed source that a strip aims at: a part of the second-level cache.
const STRIP_NUMBERS: usize = 48 * 1024;
/// Pixels of a strip at least, where images are small: so many times the packed filters are used.
const STRIP_PIXELS: usize = 400;

/// Packed filters that stay in the second-level cache while every tile goes through all of them.
const FILTER_NUMBERS: usize = 64 * 1024;

/// A block of result channels: the first, how many, and in how many vectors.
#[derive(Debug, Clone, Copy)]
struct ResultBlock {
    first: usize,
    channels: usize,
    vectors: usize,
    /// Rows of scalars of its tiles.
    rows: usize,
    /// Where its packed filters begin.
    packed: usize,
}

/// What the steps of a run are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Steps {
    /// A block's channels, for one tap.
    Channels,
    /// The taps of a row with all channels, which lie next to each other.
    RowTaps,
    /// A run is one channel of one tap: there are too few channels to step along.
    One,
}

/// Everything that is the same for all strips.
struct Driver<'a> {
    gather: &'a Gather,
    kernels: &'static Kernels,
    blocks: Vec<ResultBlock>,
    source_block: usize,
    steps: Steps,
    source: Source<'a>,
    /// Whether each tile takes all blocks of results before the next tile: then a pixel's channels are written
    /// together, and the packed filters stay in the cache.
    tiles_outside: bool,
    /// Rows and images of a strip.
    strip_rows: usize,
    strip_images: usize,
    taps: usize,
    /// Rows and columns of the taps in packed order: by phase of rows, phase of columns, row, column.
    tap_order: Vec<[usize; 2]>,
}

/// Computes it. `bias` goes along the result's channels.
///
/// # Panics
/// When a slice is not as long as the gather says.
pub fn compute(
    gather: &Gather,
    kernels: &'static Kernels,
    source: &[f32],
    weight: &[f32],
    bias: Option<&[f32]>,
    result: &mut [f32],
    threads: usize,
) {
    let [rows, columns] = &gather.axes;
    let channels = gather.groups * gather.source_channels;
    assert_eq!(source.len(), gather.batch * channels * rows.source * columns.source, "the source's length");
    let results = gather.groups * gather.result_channels;
    assert_eq!(result.len(), gather.batch * results * rows.result * columns.result, "the result's length");
    assert_eq!(weight.len(), gather.groups * gather.weight_group, "the filter's length");
    let driver = Driver::new(gather, kernels, threads);

    let row_strips = rows.steps.div_ceil(driver.strip_rows);
    let image_strips = gather.batch.div_ceil(driver.strip_images);
    let packed_length = driver.packed_length();
    // Large filters that are used by few strips are packed block by block where they are used, and never leave the
    // cache.
    let packs_in_strips = packed_length > 4 * FILTER_NUMBERS && image_strips * row_strips <= 2.max(threads);
    let mut packed = Workspace::take(if packs_in_strips { 0 } else { packed_length * gather.groups });
    if !packs_in_strips {
        driver.pack_filters(weight, &mut packed, threads);
    }
    let padded = gather.result_channels.next_multiple_of(kernels.lanes) + MAX_VECTORS * kernels.lanes;
    let mut biases = Workspace::take(padded * gather.groups);
    biases.fill(0.0);
    if let Some(bias) = bias {
        for (group, of_group) in bias.chunks(gather.result_channels).enumerate() {
            biases[group * padded..][..of_group.len()].copy_from_slice(of_group);
        }
    }

    let result = Shared(result.as_mut_ptr());
    let (packed, biases): (&[f32], &[f32]) = (&packed, &biases);
    for_each_unit(threads, gather.groups * image_strips * row_strips, |unit| {
        let (group, strip) = (unit / (image_strips * row_strips), unit % (image_strips * row_strips));
        let first_image = strip / row_strips * driver.strip_images;
        let first_row = strip % row_strips * driver.strip_rows;
        driver.strip(&Strip {
            group,
            first_image,
            images: driver.strip_images.min(gather.batch - first_image),
            first_row,
            rows: driver.strip_rows.min(rows.steps - first_row),
            source,
            filters: (!packs_in_strips).then(|| &packed[group * packed_length..][..packed_length]),
            weight,
            bias: &biases[group * padded..][..padded],
            result,
        });
    });
}

/// A group of rows of a strip: image, first row and rows, in steps.
struct Place {
    image: usize,
    row: usize,
    rows: usize,
}

/// One block of source channels, packed, for a strip.
struct Pass<'a> {
    driver: &'a Driver<'a>,
    strip: &'a Strip<'a>,
    packed: &'a [f32],
    block_numbers: usize,
    plane: usize,
    first_channel: usize,
    is_first: bool,
    is_last: bool,
    /// Steps of a run and runs of each phase, by vectors.
    runs: [(usize, Vec<Vec<Run>>); MAX_VECTORS + 1],
    sums: &'a mut [f32],
    several: bool,
    /// Pixels whose sums are kept for each channel of results.
    block_sums: usize,
    by_channel: &'a [usize],
}

impl Pass<'_> {
    /// Computes all tiles of a group of rows for one block of results.
    fn rows(&mut self, block: &ResultBlock, filters: *const f32, place: &Place) {
        let (driver, strip) = (self.driver, self.strip);
        let (gather, kernels, source) = (driver.gather, driver.kernels, &driver.source);
        let [rows, columns] = &gather.axes;
        let (phase_rows, phase_columns) = (rows.phases.len(), columns.phases.len());
        let width = block.vectors * kernels.lanes;
        let Place { image, row, rows: tile_rows } = *place;
        let x = if source.arrangement == Arrangement::InPlace {
            let start = source.in_place(strip.first_image + image, self.first_channel, strip.first_row + row);
            strip.source[start..].as_ptr()
        } else {
            self.packed[image * self.block_numbers + row * source.step_pitch()..].as_ptr()
        };
        let pitch = source.pixel_pitch();
        let (count, runs) = &self.runs[block.vectors];
        let by_column = gather.result[3];
        // All blocks share the cut of the widest: there is a tile with fewer vectors for every one with more.
        let cut = even_parts(columns.steps, kernels.most_scalars(driver.blocks[0].vectors, tile_rows));
        let mut kernel = (0, None);
        for phase_row in 0..phase_rows {
            let result_row = |row: usize| (strip.first_row + row) * rows.out_step + phase_row;
            if result_row(row) >= rows.result {
                continue;
            }
            let to = driver.result_at(strip, block, [image, result_row(row), 0]);
            let line = (image * strip.rows + row) * phase_rows + phase_row * tile_rows;
            for (column, pixels) in cut.clone() {
                // A cut has parts of two lengths at most.
                if kernel.0 != pixels {
                    kernel = (pixels, Some(kernels.tile(block.vectors, tile_rows, pixels, pitch)));
                }
                let Some(tile) = kernel.1 else { continue };
                // Rows of a tile that follow each other in the result are one long row.
                let whole_row = tile_rows == 1 || (pixels == columns.result && rows.out_step == 1);
                let in_result = whole_row && driver.sums_in_result(block, column, pixels);
                let (sums, by_phase, by_scalar) = if in_result {
                    (to.wrapping_add(column * columns.out_step * by_column), by_column, columns.out_step * by_column)
                } else {
                    let before = (line * columns.steps + tile_rows * column) * phase_columns * width;
                    // Blocks before this one are full: as wide as they have channels.
                    let at = if self.several { block.first * self.block_sums + before } else { 0 };
                    let room = &mut self.sums[at..][..tile_rows * pixels * phase_columns * width];
                    (room.as_mut_ptr(), width, phase_columns * width)
                };
                for phase_column in 0..phase_columns {
                    // SAFETY: the sums of this tile were sliced above, or lie in this strip's own rows of the result; a
                    // phase's begin within its first pixel. The bias has room for all vectors of the last block. The
                    // scalars of the last pixel end within the packed rows or, in place, within the source (see
                    // `Source`); the vectors within the packed filters, which hold `channels × taps` of this block.
                    unsafe {
                        let sums = sums.add(phase_column * by_phase);
                        let (init, init_step) = if self.is_first {
                            (strip.bias.as_ptr().add(block.first), 0)
                        } else {
                            (sums.cast_const(), by_scalar)
                        };
                        tile(&Tile {
                            x: x.add(column * pitch),
                            w: filters,
                            runs: &runs[phase_row * phase_columns + phase_column],
                            count: *count,
                            pitch,
                            row_step: source.step_pitch(),
                            x_step: self.plane,
                            w_step: width,
                            init,
                            init_step,
                            sums,
                            sums_step: by_scalar,
                        });
                    }
                }
                if !self.is_last || in_result {
                    continue;
                }
                for tile_row in (0..tile_rows).filter(|&tile_row| result_row(row + tile_row) < rows.result) {
                    let to = to.wrapping_add(tile_row * rows.out_step * gather.result[2]);
                    // SAFETY: the sums of one of the tile's rows, and its place in the result.
                    let sums = unsafe { sums.add(tile_row * pixels * phase_columns * width) };
                    driver.finish(block, column * columns.out_step, pixels, sums, to, self.by_channel);
                }
            }
        }
    }
}

/// One unit of work.
struct Strip<'a> {
    group: usize,
    first_image: usize,
    images: usize,
    first_row: usize,
    rows: usize,
    source: &'a [f32],
    /// The group's packed filters, if they are packed beforehand.
    filters: Option<&'a [f32]>,
    weight: &'a [f32],
    bias: &'a [f32],
    result: Shared,
}

/// The shape of tiles: vectors, rows of scalars, and what a step of all tiles of a row then costs.
#[derive(Debug, Clone, Copy)]
pub struct TileShape {
    /// Vectors of a tile.
    pub vectors: usize,
    /// Rows of scalars of a tile.
    pub rows: usize,
    /// Estimated cycles of a step for one row.
    pub cycles: f64,
}

/// Chooses the shape with the least estimated cycles for so many channels in vectors and scalars beside each other, in
/// up to `rows` rows.
///
/// A step costs a cycle for two multiply-adds or two loads, and four at least, because sums that depend on each other
/// are four cycles apart; half a cycle more for each vector, which comes from the second-level cache; and a tenth for
/// each scalar's broadcast. What does not fill its last vector is computed in vain. The weights were fitted to tiles of
/// all shapes on 3×3 layers: two vectors are best nearly everywhere, one is a tenth slower, and on narrow images two
/// rows are better than one.
pub fn choose_tile(kernels: &Kernels, channels: usize, scalars: usize, rows: usize) -> TileShape {
    let needed = channels.div_ceil(kernels.lanes);
    let step = |scalars: usize, vectors: usize| {
        let (scalars, vectors) = (scalars as f64, vectors as f64);
        (scalars * vectors).max(scalars + vectors).max(8.0) / 2.0 + vectors / 2.0 + scalars / 10.0
    };
    let row = |vectors: usize, rows: usize| -> f64 {
        match kernels.most_scalars(vectors, rows) {
            0 => f64::INFINITY,
            most => {
                let parts = even_parts(scalars, most);
                parts.map(|(_, length)| step(rows * length, vectors)).sum::<f64>() / rows as f64
            }
        }
    };
    let mut best = TileShape { vectors: 1, rows: 1, cycles: f64::INFINITY };
    for vectors in 1..=MAX_VECTORS.min(needed) {
        for rows in TILE_ROWS.into_iter().filter(|&r| r <= rows) {
            let rest = needed % vectors;
            let of_rest = if rest > 0 { row(rest, rows) } else { 0.0 };
            let cycles = (needed / vectors) as f64 * row(vectors, rows) + of_rest;
            // What is no better by a hundredth is not worth more rows, whose results are written in shorter pieces.
            if cycles < 0.99 * best.cycles {
                best = TileShape { vectors, rows, cycles };
            }
        }
    }
    best
}

/// Cuts `rows` into groups of `together`, and what is left into single rows: first row and rows of each.
fn row_groups(rows: usize, together: usize) -> impl Iterator<Item = (usize, usize)> {
    let whole = rows / together;
    (0..whole).map(move |group| (group * together, together)).chain((whole * together..rows).map(|row| (row, 1)))
}

impl<'a> Driver<'a> {
    fn new(gather: &'a Gather, kernels: &'static Kernels, threads: usize) -> Driver<'a> {
        let [rows, columns] = &gather.axes;
        let taps: usize =
            rows.phases.iter().map(Vec::len).sum::<usize>() * columns.phases.iter().map(Vec::len).sum::<usize>();
        let most = if taps == 1 { SOURCE_BLOCK_ONE_TAP } else { SOURCE_BLOCK };
        let source_blocks = gather.source_channels.div_ceil(most);
        let source_block = gather.source_channels.div_ceil(source_blocks);

        let source = Source::new(gather, source_block);
        let dense_rows = columns.phases.len() == 1 && columns.is_dense(0);
        let steps = match source.arrangement {
            Arrangement::Planes if source_block < 4 => Steps::One,
            _ if source.pixels_touch() && dense_rows && source_block < 16 => Steps::RowTaps,
            _ => Steps::Channels,
        };
        let row_numbers = source.row_numbers();
        let fitting = STRIP_NUMBERS.saturating_sub(row_numbers * rows.span) / (row_numbers * rows.in_step).max(1);
        let strip_rows = fitting.max(STRIP_PIXELS / 4 / columns.steps).clamp(1, rows.steps);
        // Strips of the same height, and for several threads at least two each.
        let wanted = if threads > 1 { (2 * threads).div_ceil(gather.batch * gather.groups) } else { 1 };
        let strips = rows.steps.div_ceil(strip_rows).max(wanted.min(rows.steps));
        let strip_rows = rows.steps.div_ceil(strips);
        let strip_images = if strips > 1 {
            1
        } else {
            let most = gather.batch.div_ceil(if threads > 1 { 2 * threads } else { 1 });
            let by_pixels = STRIP_PIXELS.div_ceil(rows.steps * columns.steps);
            let by_size = STRIP_NUMBERS / (row_numbers * source.rows(rows.steps)).max(1);
            by_pixels.max(by_size).clamp(1, most.max(1))
        };
        let shape = choose_tile(kernels, gather.result_channels, columns.steps, strip_rows);
        let mut blocks = Vec::new();
        let (mut first, mut packed) = (0, 0);
        while first < gather.result_channels {
            let left = gather.result_channels - first;
            let vectors = shape.vectors.min(left.div_ceil(kernels.lanes));
            let channels = left.min(vectors * kernels.lanes);
            blocks.push(ResultBlock { first, channels, vectors, rows: shape.rows, packed });
            packed += vectors * kernels.lanes * gather.source_channels * taps;
            first += channels;
        }
        let tiles_outside = gather.result[1] == 1 && source_blocks == 1 && packed <= FILTER_NUMBERS;
        let mut driver = Driver {
            gather,
            kernels,
            blocks,
            source_block,
            steps,
            source,
            tiles_outside,
            strip_rows,
            strip_images,
            taps,
            tap_order: Vec::new(),
        };
        driver.tap_order =
            driver.phases().flat_map(|phase| driver.taps_of_phase(phase)).map(|(tap, _)| tap).collect::<Vec<_>>();
        driver
    }

    /// Numbers of one group's packed filters.
    fn packed_length(&self) -> usize {
        let vectors: usize = self.blocks.iter().map(|block| block.vectors).sum();
        vectors * self.kernels.lanes * self.gather.source_channels * self.taps
    }

    /// The taps in packed order: by phase of rows, phase of columns, row, column. Row and column as indices of the
    /// filter and as offsets from the lowest.
    fn taps_of_phase(&self, phase: [usize; 2]) -> impl Iterator<Item = ([usize; 2], [usize; 2])> + '_ {
        let [rows, columns] = &self.gather.axes;
        rows.phases[phase[0]].iter().flat_map(move |row| {
            columns.phases[phase[1]].iter().map(move |column| {
                let from_low = [(row.offset - rows.low) as usize, (column.offset - columns.low) as usize];
                ([row.index, column.index], from_low)
            })
        })
    }

    fn phases(&self) -> impl Iterator<Item = [usize; 2]> + '_ {
        let [rows, columns] = &self.gather.axes;
        (0..rows.phases.len()).flat_map(move |row| (0..columns.phases.len()).map(move |column| [row, column]))
    }

    /// Packs all filters: blocks of results, in each of them blocks of sources.
    fn pack_filters(&self, weight: &[f32], packed: &mut [f32], threads: usize) {
        let gather = self.gather;
        let of_group = self.packed_length();
        let to = Shared(packed.as_mut_ptr());
        for_each_unit(threads, gather.groups * self.blocks.len(), |unit| {
            let (group, block) = (unit / self.blocks.len(), &self.blocks[unit % self.blocks.len()]);
            let width = block.vectors * self.kernels.lanes;
            let length = width * gather.source_channels * self.taps;
            // SAFETY: this block's part of the packed filters, which no other unit touches.
            let mut to =
                unsafe { std::slice::from_raw_parts_mut(to.get().add(group * of_group + block.packed), length) };
            for first in (0..gather.source_channels).step_by(self.source_block) {
                let channels = self.source_block.min(gather.source_channels - first);
                let (now, later) = to.split_at_mut(channels * self.taps * width);
                self.pack_block(weight, group, block, first, channels, now);
                to = later;
            }
        });
    }

    /// Packs the filters of one block of results for `channels` source channels from `first` on.
    fn pack_block(
        &self,
        weight: &[f32],
        group: usize,
        block: &ResultBlock,
        first: usize,
        channels: usize,
        to: &mut [f32],
    ) {
        let gather = self.gather;
        let taps = &self.tap_order;
        let [by_result, by_source, by_row, by_column] = gather.weight;
        let width = block.vectors * self.kernels.lanes;
        assert_eq!(to.len(), channels * taps.len() * width, "room for the block");
        if block.channels < width {
            to.fill(0.0);
        }
        let from = &weight[group * gather.weight_group + block.first * by_result..];
        // Where the vector of a tap and a channel goes, and where a tap lies in memory.
        let place = |tap: usize, channel: usize| {
            width * if self.steps == Steps::One { channel * taps.len() + tap } else { tap * channels + channel }
        };
        let memory = |[row, column]: [usize; 2]| row * by_row + column * by_column;
        let transpose = |from: &[f32], offsets: &[usize], to: &mut [f32]| {
            assert!((block.channels - 1) * by_result + offsets.len() <= from.len());
            // SAFETY: rows are the block's channels, which lie `by_result` apart; columns are taps or channels that lie
            // next to each other, the last of which was just checked; every place leaves room for the block's
            // channels in `to`, whose length was checked above.
            unsafe {
                let offsets = (offsets.len(), offsets.as_ptr());
                let transpose = self.kernels.transpose;
                transpose(from.as_ptr(), by_result, block.channels, offsets.0, to.as_mut_ptr(), offsets.1);
            }
        };
        if by_result == 1 {
            for (tap, &at) in taps.iter().enumerate() {
                for channel in 0..channels {
                    let from = &from[(first + channel) * by_source + memory(at)..][..block.channels];
                    to[place(tap, channel)..][..block.channels].copy_from_slice(from);
                }
            }
        } else if by_column == 1 && taps.len() == by_source.min(by_result) {
            // NCHW: taps lie together, and forward the channels behind them too.
            let mut order: Vec<usize> = (0..taps.len()).collect();
            order.sort_by_key(|&tap| memory(taps[tap]));
            let places = |channel: usize| order.iter().map(move |&tap| place(tap, channel));
            if by_source == taps.len() {
                let offsets: Vec<usize> = (0..channels).flat_map(places).collect();
                transpose(&from[first * by_source..], &offsets, to);
            } else {
                for channel in 0..channels {
                    let offsets: Vec<usize> = places(channel).collect();
                    transpose(&from[(first + channel) * by_source..], &offsets, to);
                }
            }
        } else if by_source == 1 {
            for (tap, &at) in taps.iter().enumerate() {
                let offsets: Vec<usize> = (0..channels).map(|channel| place(tap, channel)).collect();
                transpose(&from[first + memory(at)..], &offsets, to);
            }
        } else {
            for (tap, &at) in taps.iter().enumerate() {
                for channel in 0..channels {
                    for result in 0..block.channels {
                        to[place(tap, channel) + result] =
                            from[result * by_result + (first + channel) * by_source + memory(at)];
                    }
                }
            }
        }
    }

    fn strip(&self, strip: &Strip<'_>) {
        let gather = self.gather;
        let (kernels, lanes) = (self.kernels, self.kernels.lanes);
        let [rows, columns] = &gather.axes;
        let (plane, block_numbers) = self.source.plane_and_block(strip.rows);
        let mut packed = Workspace::take(strip.images * block_numbers);

        // Sums of all tiles between blocks of sources; with a single block one tile's room serves all.
        let several = self.source_block < gather.source_channels;
        let line_pixels = columns.steps * columns.phases.len();
        let lines = strip.images * strip.rows * rows.phases.len();
        let widths: usize = self.blocks.iter().map(|block| block.vectors * lanes).sum();
        let one_tile = MAX_SCALARS * MAX_VECTORS * columns.phases.len() * lanes;
        let mut sums = Workspace::take(if several { lines * line_pixels * widths } else { one_tile });

        let room = if strip.filters.is_some() { 0 } else { self.source_block * self.taps * MAX_VECTORS * lanes };
        let mut block_filters = Workspace::take(room);
        let phases: Vec<[usize; 2]> = self.phases().collect();
        let by_channel: Vec<usize> = (0..MAX_VECTORS * lanes).map(|channel| channel * gather.result[1]).collect();
        let tile_rows = self.blocks[0].rows;
        let (mut first, mut filters_before) = (0, 0);
        while first < gather.source_channels {
            let channels = self.source_block.min(gather.source_channels - first);
            let first_channel = strip.group * gather.source_channels + first;
            for image in 0..strip.images {
                let window = Window {
                    image: strip.first_image + image,
                    first_channel,
                    channels,
                    first_row: strip.first_row,
                    rows: strip.rows,
                    plane,
                };
                let to = &mut packed[image * block_numbers..][..block_numbers];
                self.source.pack(kernels, strip.source, &window, to);
            }
            let mut pass = Pass {
                driver: self,
                strip,
                packed: &packed,
                block_numbers,
                plane,
                first_channel,
                is_first: first == 0,
                is_last: first + channels == gather.source_channels,
                runs: [(); MAX_VECTORS + 1].map(|()| (0, Vec::new())),
                sums: &mut sums,
                several,
                block_sums: lines * line_pixels,
                by_channel: &by_channel,
            };
            for block in &self.blocks {
                if pass.runs[block.vectors].1.is_empty() {
                    pass.runs[block.vectors] = self.runs(&phases, channels, plane, block.vectors * lanes);
                }
            }
            let groups =
                || (0..strip.images).flat_map(|image| row_groups(strip.rows, tile_rows).map(move |g| (image, g)));
            let filters = |block: &ResultBlock| match strip.filters {
                Some(filters) => filters[block.packed + filters_before * block.vectors * lanes..].as_ptr(),
                None => std::ptr::null(),
            };
            if self.tiles_outside {
                for (image, (row, rows)) in groups() {
                    for block in &self.blocks {
                        pass.rows(block, filters(block), &Place { image, row, rows });
                    }
                }
            } else {
                for block in &self.blocks {
                    let filters = if strip.filters.is_some() {
                        filters(block)
                    } else {
                        let room = &mut block_filters[..channels * self.taps * block.vectors * lanes];
                        self.pack_block(strip.weight, strip.group, block, first, channels, room);
                        room.as_ptr()
                    };
                    for (image, (row, rows)) in groups() {
                        pass.rows(block, filters, &Place { image, row, rows });
                    }
                }
            }
            filters_before += channels * self.taps;
            first += channels;
        }
    }

    /// The steps of a run, and the runs of each phase, for a block of so many channels and filters of so many numbers.
    fn runs(&self, phases: &[[usize; 2]], channels: usize, plane: usize, width: usize) -> (usize, Vec<Vec<Run>>) {
        let taps = self.taps;
        let mut before = 0;
        let row_taps = self.gather.axes[1].phases[0].len();
        let mut of_phase = |phase: [usize; 2]| {
            let mut runs = Vec::new();
            for (_, [row, column]) in self.taps_of_phase(phase) {
                let x = self.source.tap(row, column);
                match self.steps {
                    Steps::Channels => runs.push(Run { x, w: before * channels * width }),
                    Steps::One => {
                        runs.extend((0..channels).map(|c| Run { x: x + c * plane, w: (c * taps + before) * width }));
                    }
                    Steps::RowTaps if before % row_taps == 0 => runs.push(Run { x, w: before * channels * width }),
                    Steps::RowTaps => {}
                }
                before += 1;
            }
            runs
        };
        let runs = phases.iter().map(|&phase| of_phase(phase)).collect();
        let count = match self.steps {
            Steps::Channels => channels,
            Steps::One => 1,
            Steps::RowTaps => row_taps * channels,
        };
        (count, runs)
    }

    /// Whether a tile's sums may lie in the result itself: its channels lie together and fill the vectors, and none of
    /// the pixels is beyond the last column.
    fn sums_in_result(&self, block: &ResultBlock, column: usize, pixels: usize) -> bool {
        let columns = &self.gather.axes[1];
        let fills = block.channels == block.vectors * self.kernels.lanes;
        let inside = (column + pixels) * columns.out_step <= columns.result;
        self.gather.result[1] == 1 && fills && inside && columns.phases.len() == columns.out_step
    }

    /// The first number of a block's channels at an image of the strip, a row and a column of the result.
    fn result_at(&self, strip: &Strip<'_>, block: &ResultBlock, [image, row, column]: [usize; 3]) -> *mut f32 {
        let channel = strip.group * self.gather.result_channels + block.first;
        let place = [strip.first_image + image, channel, row, column];
        let offset: usize = place.iter().zip(self.gather.result).map(|(p, s)| p * s).sum();
        strip.result.get().wrapping_add(offset)
    }

    /// Writes a row's sums to the result from `column` on: `pixels` of every phase of columns, which lie next to each
    /// other. `to` is the row's first pixel.
    fn finish(
        &self,
        block: &ResultBlock,
        column: usize,
        pixels: usize,
        sums: *const f32,
        to: *mut f32,
        by_channel: &[usize],
    ) {
        let columns = &self.gather.axes[1];
        let (phases, step) = (columns.phases.len(), columns.out_step);
        let width = block.vectors * self.kernels.lanes;
        let [_, channel_step, _, by_column] = self.gather.result;
        // SAFETY: pixels beyond the result's last column are left out below, so that all places are this strip's own
        // rows of the result, which no other unit writes; the sums hold `pixels × phases` lines of `width`.
        unsafe {
            let to = to.add(column * by_column);
            if by_column == 1 && phases == step {
                let count = (pixels * phases).min(columns.result - column);
                (self.kernels.transpose)(sums, width, count, block.channels, to, by_channel.as_ptr());
                return;
            }
            for pixel in 0..pixels {
                for phase in 0..phases {
                    let offset = pixel * step + phase;
                    if column + offset >= columns.result {
                        continue;
                    }
                    let from = sums.add((pixel * phases + phase) * width);
                    if channel_step == 1 {
                        (self.kernels.row)(from, 1, block.channels, to.add(offset * by_column));
                    } else {
                        for channel in 0..block.channels {
                            *to.add(offset * by_column + channel * channel_step) = *from.add(channel);
                        }
                    }
                }
            }
        }
    }
}
