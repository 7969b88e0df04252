//! The blocked direct convolution, forward and backward-data.
//!
//! The result is cut into strips of rows (or of whole small images). For each block of source channels a strip's part of
//! the source is packed once, with its zeros, as `[channel][row][phase][column]`. So the micro-kernel reads its pixels
//! from neighbouring places whatever layout, padding and stride. Filters are packed once as
//! `[block of results][block of sources][phase][tap][source channel][result channels]`. A tile is up to 28 vectors of
//! sums: neighbouring pixels × vectors of result channels.

use std::ptr;
use std::sync::Arc;

use super::cache;
use super::edges::{Edges, Surroundings, met_runs};
use super::gather_work::{GatherWork, ResultBlock, Steps};
use super::geometry::{Axis, Gather};
use super::source::{Arrangement, SourceView, Window, prefetch};
use super::tiling::choose_tile;
use super::work::Work;
use super::workspace::{Shared, Workspace};
use crate::parallel::for_each_unit;
use unhang_simd::even_parts;
use unhang_simd::{Kernels, MAX_SCALARS, MAX_VECTORS, Run, Tile, TileKernel};

/// Source channels of a block: few enough that a tile's pixels stay in the first-level cache from one tap to the next.
const SOURCE_BLOCK: usize = 64;
/// Source channels of a block where a pixel's channels are contiguous, in whole cache lines.
const SOURCE_BLOCK_TOGETHER: usize = 128;
/// Source channels of a block where there is one tap only, so that nothing is read twice.
const SOURCE_BLOCK_ONE_TAP: usize = 512;
/// Numbers of packed source that a strip aims at: a part of the second-level cache.
const STRIP_NUMBERS: usize = 96 * 1024;
/// Pixels of a strip at least, where images are small: this many times the packed filters are used.
const STRIP_PIXELS: usize = 800;

/// Strips of all images together at least, where threads have no say in it.
const DILATED_STRIPS: usize = 4;

/// Packed filters that stay in the second-level cache while every tile goes through all of them.
const FILTER_NUMBERS: usize = 64 * 1024;

/// Numbers of a result that do not stay in the second-level cache.
pub(super) const FETCH_NUMBERS: usize = 256 * 1024;

/// Computes it. `bias` goes along the result's channels.
///
/// # Panics
/// When a slice is not as long as the gather says.
pub(super) fn compute(gather: &Gather, work: Work<'_>) {
    let Work { kernels, first: source, second: weight, bias, result, threads } = work;
    let [rows, columns] = &gather.axes;
    let channels = gather.groups * gather.source_channels;
    assert_eq!(source.len(), gather.batch * channels * rows.source * columns.source, "the source's length");
    let results = gather.groups * gather.result_channels;
    assert_eq!(result.len(), gather.batch * results * rows.result * columns.result, "the result's length");
    assert_eq!(weight.len(), gather.groups * gather.weight_group, "the filter's length");
    let driver = GatherWork::new(gather, kernels, threads);

    let row_strips = rows.steps.div_ceil(driver.strip_rows);
    let image_strips = gather.batch.div_ceil(driver.strip_images);
    let packed_length = driver.packed_length();
    let pixels = gather.batch * rows.steps * columns.steps;
    let kept = cache::is_worth_keeping(packed_length * gather.groups, pixels);
    // Large filters that are used by few strips are packed block by block where they are used, and never leave the
    // cache of the processor.
    let packs_in_strips = !kept && packed_length > 4 * FILTER_NUMBERS && image_strips * row_strips <= 2.max(threads);
    let pack = |packed: &mut [f32]| driver.pack_filters(weight, packed, threads);
    let packed = match packed_length * gather.groups {
        _ if packs_in_strips => Arc::new(Workspace::take(0)),
        length if kept => cache::packed(kernels, weight, driver.signature(), length, pack),
        length => {
            let mut packed = Workspace::take(length);
            pack(&mut packed);
            Arc::new(packed)
        }
    };
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
        let strips = image_strips * row_strips;
        // Where a pixel's channels lie together, those of all groups come from the same pages and cache lines.
        let (group, strip) = match gather.source[1] {
            1 => (unit % gather.groups, unit / gather.groups),
            _ => (unit / strips, unit % strips),
        };
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

/// The tiles of a row: first pixel, pixels, kernel.
type Cut = Vec<(usize, usize, TileKernel)>;

/// A group of rows of a strip: image, first row and rows, in steps.
struct Place {
    image: usize,
    row: usize,
    rows: usize,
}

/// One block of source channels, packed, for a strip.
struct Pass<'a> {
    /// What is the same for all strips.
    driver: &'a GatherWork<'a>,
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
    /// The tiles of a row, by vectors, for one row and for several.
    cuts: &'a [[Cut; 2]; MAX_VECTORS + 1],
}

/// What all tiles of a group of rows have in common.
struct RowGroup {
    /// The first pixel that they meet.
    x: *const f32,
    /// Whether the source has edges and no tap of the first row meets one: most tiles are far from them.
    row_inside: bool,
    /// Whether no tap of any of its rows meets one.
    rows_inside: bool,
    /// In place, the pixels that the next tile is the first to meet come into the cache meanwhile.
    fetches_pixels: bool,
    /// Packed, each run of channels is one tap: those that meet nothing but zeros are left out.
    skips_zeros: bool,
}

impl Pass<'_> {
    fn row_group(&self, block: &ResultBlock, &Place { image, row, rows: tile_rows }: &Place) -> RowGroup {
        let (driver, strip) = (self.driver, self.strip);
        let (gather, source) = (driver.gather, &driver.source);
        let rows = &gather.axes[0];
        let is_packed = source.arrangement != Arrangement::InPlace;
        let x = if is_packed {
            self.packed[image * self.block_numbers + row * source.step_pitch()..].as_ptr()
        } else {
            let start = source.in_place(strip.first_image + image, self.first_channel, strip.first_row + row);
            strip.source.as_ptr().wrapping_offset(start)
        };
        let row_inside = source.has_edges() && rows.all_inside(strip.first_row + row, 1);
        RowGroup {
            x,
            row_inside,
            rows_inside: rows.all_inside(strip.first_row + row, tile_rows),
            fetches_pixels: row_inside || (!is_packed && !source.has_edges() && block.first == 0),
            skips_zeros: is_packed && driver.steps == Steps::Channels && gather.axes.iter().any(Axis::is_dilated),
        }
    }

    /// Computes all tiles of a group of rows for one block of results.
    fn rows(&mut self, block: &ResultBlock, filters: *const f32, place: &Place) {
        let (driver, strip) = (self.driver, self.strip);
        let (gather, kernels, source) = (driver.gather, driver.kernels, &driver.source);
        let [rows, columns] = &gather.axes;
        let (phase_rows, phase_columns) = (rows.phases.len(), columns.phases.len());
        let width = block.vectors * kernels.lanes;
        let Place { image, row, rows: tile_rows } = *place;
        let RowGroup { x, row_inside, rows_inside, fetches_pixels, skips_zeros } = self.row_group(block, place);
        let inside = |column, pixels| !source.has_edges() || row_inside && columns.all_inside(column, pixels);
        let mut met = Vec::new();
        let mut edges = Edges::default();
        let surroundings = driver.surroundings(block);
        let pitch = source.pixel_pitch();
        let (count, runs) = &self.runs[block.vectors];
        let common = Tile { w: filters, count: *count, x_step: self.plane, ..driver.tile(block) };
        let by_column = gather.result[3];
        for phase_row in 0..phase_rows {
            let result_row = |row: usize| (strip.first_row + row) * rows.out_step + phase_row;
            if result_row(row) >= rows.result {
                continue;
            }
            let to = driver.result_at(strip, block, [image, result_row(row), 0]);
            let line = (image * strip.rows + row) * phase_rows + phase_row * tile_rows;
            for &(column, pixels, tile) in &self.cuts[block.vectors][usize::from(tile_rows > 1)] {
                if fetches_pixels {
                    let from = x.wrapping_add((column + pixels) * pitch + (rows.span - 1) * source.row_pitch());
                    prefetch(from, pixels * pitch);
                }
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
                    // Both calls are sound: the sums of this tile were sliced above, or lie in this strip's own rows of
                    // the result; a phase's begin within its first pixel. The bias has room for all vectors of the last
                    // block. The scalars of the last pixel end within the packed rows or, in place, within the source
                    // (see `SourceView`). Taps that meet padding are left out. The vectors end within the packed
                    // filters, which hold `channels × taps` of this block.
                    let sums = sums.wrapping_add(phase_column * by_phase);
                    let bias = || (strip.bias[block.first..].as_ptr(), 0);
                    let (init, init_step) = if self.is_first { bias() } else { (sums.cast_const(), by_scalar) };
                    let (place, phase) = ([strip.first_row + row, column], [phase_row, phase_column]);
                    let mut runs: &[Run] = &runs[phase_row * phase_columns + phase_column];
                    if skips_zeros && !(rows_inside && columns.all_inside(column, pixels)) {
                        runs = met_runs(gather, place, [tile_rows, pixels], phase, runs, &mut met);
                    }
                    let x = x.wrapping_add(column * pitch);
                    let all = Tile { x, runs, init, init_step, sums, sums_step: by_scalar, ..common };
                    if inside(column, pixels) || edges.find(gather, place, pixels, phase) {
                        // SAFETY: see above.
                        unsafe { tile(&all) };
                    } else {
                        edges.compute(&surroundings, &all, phase);
                    }
                }
                if !self.is_last || in_result {
                    continue;
                }
                for tile_row in (0..tile_rows).filter(|&tile_row| result_row(row + tile_row) < rows.result) {
                    let to = to.wrapping_add(tile_row * rows.out_step * gather.result[2]);
                    let sums = sums.wrapping_add(tile_row * pixels * phase_columns * width);
                    driver.finish(block, column * columns.out_step, pixels, sums, to, self.by_channel);
                }
            }
        }
    }

    /// Computes all blocks of results for `channels` of the source from `first` on; that many vectors of filters were for those
    /// before. Filters that are not packed yet are packed block by block.
    fn blocks(&mut self, [first, channels, filters_before]: [usize; 3], room: &mut [f32]) {
        let Pass { driver, strip, .. } = *self;
        let lanes = driver.kernels.lanes;
        let tile_rows = driver.blocks[0].rows;
        let groups = || (0..strip.images).flat_map(|image| row_groups(strip.rows, tile_rows).map(move |g| (image, g)));
        let packed = |block: &ResultBlock, filters: &[f32]| {
            filters[block.packed + filters_before * block.vectors * lanes..].as_ptr()
        };
        if let (true, Some(filters)) = (driver.tiles_outside, strip.filters) {
            for (image, (row, rows)) in groups() {
                for block in &driver.blocks {
                    self.rows(block, packed(block, filters), &Place { image, row, rows });
                }
            }
            return;
        }
        for block in &driver.blocks {
            let filters = match strip.filters {
                Some(filters) => packed(block, filters),
                None => {
                    let room = &mut room[..channels * driver.taps * block.vectors * lanes];
                    driver.pack_block(strip.weight, strip.group, block, first, channels, room);
                    room.as_ptr()
                }
            };
            for (image, (row, rows)) in groups() {
                self.rows(block, filters, &Place { image, row, rows });
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

/// Cuts `rows` into groups of `together`, and what is left into single rows: first row and rows of each.
fn row_groups(rows: usize, together: usize) -> impl Iterator<Item = (usize, usize)> {
    let whole = rows / together;
    (0..whole).map(move |group| (group * together, together)).chain((whole * together..rows).map(|row| (row, 1)))
}

impl<'a> GatherWork<'a> {
    /// What tiles at the edges of a block of results have in common.
    fn surroundings(&self, block: &ResultBlock) -> Surroundings<'_> {
        Surroundings {
            gather: self.gather,
            kernels: self.kernels,
            source: &self.source,
            channels: self.source_block,
            row_taps_together: self.steps == Steps::RowTaps,
            vectors: block.vectors,
        }
    }

    /// What all tiles of a block of results have in common.
    fn tile(&self, block: &ResultBlock) -> Tile<'static> {
        Tile {
            x: ptr::null(),
            w: ptr::null(),
            runs: &[],
            count: 0,
            pitch: self.source.pixel_pitch(),
            row_step: self.source.step_pitch(),
            x_step: 0,
            w_step: block.vectors * self.kernels.lanes,
            init: ptr::null(),
            init_step: 0,
            sums: ptr::null_mut(),
            sums_step: 0,
            fetch: self.fetch,
        }
    }

    fn new(gather: &'a Gather, kernels: &'static Kernels, threads: usize) -> GatherWork<'a> {
        let [rows, columns] = &gather.axes;
        let taps: usize =
            rows.phases.iter().map(Vec::len).sum::<usize>() * columns.phases.iter().map(Vec::len).sum::<usize>();
        let most = match gather.source[1] {
            _ if taps == 1 => SOURCE_BLOCK_ONE_TAP,
            1 => SOURCE_BLOCK_TOGETHER,
            _ => SOURCE_BLOCK,
        };
        let source_blocks = gather.source_channels.div_ceil(most);
        let source_block = gather.source_channels.div_ceil(source_blocks);

        let source = SourceView::new(gather, source_block);
        let dense_rows = columns.phases.len() == 1 && columns.is_dense(0);
        let steps = match source.arrangement {
            Arrangement::Planes if source_block < 4 => Steps::One,
            _ if source.pixels_touch() && dense_rows && source_block < 16 => Steps::RowTaps,
            _ => Steps::Channels,
        };
        let row_numbers = source.row_numbers();
        let fitting = STRIP_NUMBERS.saturating_sub(row_numbers * rows.span) / (row_numbers * rows.in_step).max(1);
        // Each strip packs a span more than it has rows, of which a strip of dilated taps would have few.
        let strip_rows = fitting.max(STRIP_PIXELS / 4 / columns.steps).max(rows.span).clamp(1, rows.steps);
        // Strips of the same height, and for several threads at least two each. Which taps of a dilated filter are left
        // out depends on the strips, and so does a result with a filter that is not finite: there threads have no say.
        let wanted = match threads {
            _ if gather.axes.iter().any(Axis::is_dilated) => DILATED_STRIPS.div_ceil(gather.batch * gather.groups),
            1 => 1,
            _ => (2 * threads).div_ceil(gather.batch * gather.groups),
        };
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
        let tile_rows = if source.has_edges() { 1 } else { strip_rows };
        let shape = choose_tile(kernels, gather.result_channels, columns.steps, tile_rows);
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
        let mut driver = GatherWork {
            gather,
            kernels,
            blocks,
            source_block,
            steps,
            source,
            tiles_outside,
            fetch: gather.batch * gather.result[0] > FETCH_NUMBERS,
            strip_rows,
            strip_images,
            taps,
            tap_order: Vec::new(),
        };
        driver.tap_order =
            driver.phases().flat_map(|phase| driver.taps_of_phase(phase)).map(|(tap, _)| tap).collect::<Vec<_>>();
        driver
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
        let cuts = self.cuts();
        let (mut first, mut filters_before) = (0, 0);
        while first < gather.source_channels {
            let channels = self.source_block.min(gather.source_channels - first);
            let first_channel = strip.group * gather.source_channels + first;
            for number in 0..strip.images {
                let (image, first_row, rows) = (strip.first_image + number, strip.first_row, strip.rows);
                let window = Window { image, first_channel, channels, first_row, rows, plane };
                let to = &mut packed[number * block_numbers..][..block_numbers];
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
                cuts: &cuts,
            };
            for block in &self.blocks {
                if pass.runs[block.vectors].1.is_empty() {
                    pass.runs[block.vectors] = self.runs(&phases, channels, plane, block.vectors * lanes);
                }
            }
            pass.blocks([first, channels, filters_before], &mut block_filters);
            filters_before += channels * self.taps;
            first += channels;
        }
    }

    /// The parts of a row that are one tile each, with its kernel: for each number of vectors, of one row and of several.
    fn cuts(&self) -> [[Cut; 2]; MAX_VECTORS + 1] {
        // All blocks share the cut of the widest: there is a tile with fewer vectors for every one with more.
        let mut cuts = [(); MAX_VECTORS + 1].map(|()| [Vec::new(), Vec::new()]);
        for block in &self.blocks {
            for (several, rows) in [1, self.blocks[0].rows].into_iter().enumerate() {
                let most = self.kernels.most_scalars(self.blocks[0].vectors, rows);
                let tile = |pixels| self.kernels.tile(block.vectors, rows, pixels, self.source.pixel_pitch());
                let parts = even_parts(self.gather.axes[1].steps, most);
                cuts[block.vectors][several] = parts.map(|(first, pixels)| (first, pixels, tile(pixels))).collect();
            }
        }
        cuts
    }

    /// The steps of a run, and the runs of each phase, for a block of this many channels and filters of this many numbers.
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
}
