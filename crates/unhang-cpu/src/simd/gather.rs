//! The blocked direct convolution, forward and backward-data.
//!
//! The result is cut into strips of rows (or of whole small images). For each block of source channels a strip's part of
//! the source is packed once, with its zeros, as `[channel][row][phase][column]`, so that the micro-kernel reads its
//! pixels from neighbouring places whatever layout, padding and stride; filters are packed once as
//! `[block of results][block of sources][phase][tap][source channel][result channels]`. A tile is up to 28 vectors of
//! sums: neighbouring pixels × vectors of result channels.

use super::geometry::{Gather, even_parts};
use super::kernels::{Kernels, MAX_SCALARS, MAX_VECTORS, Run, Tile};
use super::source::{PackedSource, Window};
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

/// A block of result channels: the first, how many, and in how many vectors.
#[derive(Debug, Clone, Copy)]
struct ResultBlock {
    first: usize,
    channels: usize,
    vectors: usize,
    /// Where its packed filters begin.
    packed: usize,
}

/// Everything that is the same for all strips.
struct Driver<'a> {
    gather: &'a Gather,
    kernels: &'static Kernels,
    blocks: Vec<ResultBlock>,
    source_block: usize,
    /// Steps of a run: a block's channels, or one where there are so few that (channel, tap) pairs are the runs.
    channels_in_runs: bool,
    source: PackedSource<'a>,
    /// Rows and images of a strip.
    strip_rows: usize,
    strip_images: usize,
    taps: usize,
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

    let packed_length = driver.packed_length();
    let mut packed = Workspace::take(packed_length * gather.groups);
    driver.pack_filters(weight, &mut packed, threads);
    let padded = gather.result_channels.next_multiple_of(kernels.lanes) + MAX_VECTORS * kernels.lanes;
    let mut biases = Workspace::take(padded * gather.groups);
    biases.fill(0.0);
    if let Some(bias) = bias {
        for (group, of_group) in bias.chunks(gather.result_channels).enumerate() {
            biases[group * padded..][..of_group.len()].copy_from_slice(of_group);
        }
    }

    let row_strips = rows.steps.div_ceil(driver.strip_rows);
    let image_strips = gather.batch.div_ceil(driver.strip_images);
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
            filters: &packed[group * packed_length..][..packed_length],
            bias: &biases[group * padded..][..padded],
            result,
        });
    });
}

/// One unit of work.
struct Strip<'a> {
    group: usize,
    first_image: usize,
    images: usize,
    first_row: usize,
    rows: usize,
    source: &'a [f32],
    filters: &'a [f32],
    bias: &'a [f32],
    result: Shared,
}

/// How many vectors a tile should have, and what a step of all tiles then costs: the least estimated cycles for so
/// many channels in vectors and scalars beside each other.
///
/// A step costs a cycle for two multiply-adds or two loads, and four at least, because sums that depend on each other
/// are four cycles apart; what does not fill its last vector is computed in vain.
pub fn choose_vectors(kernels: &Kernels, channels: usize, scalars: usize) -> (usize, f64) {
    let needed = channels.div_ceil(kernels.lanes);
    let cycles = |scalars: usize, vectors: usize| {
        let multiplications = scalars * vectors;
        multiplications.max(scalars + vectors).max(8) as f64 / 2.0 + 0.75
    };
    let row = |vectors: usize| -> f64 {
        even_parts(scalars, kernels.most_scalars[vectors]).map(|(_, length)| cycles(length, vectors)).sum()
    };
    let cost = |vectors: usize| {
        let rest = needed % vectors;
        (needed / vectors) as f64 * row(vectors) + if rest > 0 { row(rest) } else { 0.0 }
    };
    let candidates = 1..=MAX_VECTORS.min(needed);
    let best = candidates.min_by(|&a, &b| cost(a).total_cmp(&cost(b))).unwrap_or(1);
    (best, cost(best))
}

impl<'a> Driver<'a> {
    fn new(gather: &'a Gather, kernels: &'static Kernels, threads: usize) -> Driver<'a> {
        let [rows, columns] = &gather.axes;
        let taps: usize =
            rows.phases.iter().map(Vec::len).sum::<usize>() * columns.phases.iter().map(Vec::len).sum::<usize>();
        let most = if taps == 1 { SOURCE_BLOCK_ONE_TAP } else { SOURCE_BLOCK };
        let source_blocks = gather.source_channels.div_ceil(most);
        let source_block = gather.source_channels.div_ceil(source_blocks);

        let (vectors, _) = choose_vectors(kernels, gather.result_channels, columns.steps);
        let mut blocks = Vec::new();
        let (mut first, mut packed) = (0, 0);
        while first < gather.result_channels {
            let left = gather.result_channels - first;
            let vectors = vectors.min(left.div_ceil(kernels.lanes));
            let channels = left.min(vectors * kernels.lanes);
            blocks.push(ResultBlock { first, channels, vectors, packed });
            packed += vectors * kernels.lanes * gather.source_channels * taps;
            first += channels;
        }

        let source = PackedSource::new(gather);
        let row_pitch = source.row_pitch;
        let row_numbers = source_block * row_pitch * rows.in_step;
        let halo = source_block * row_pitch * rows.span;
        let fitting = STRIP_NUMBERS.saturating_sub(halo) / row_numbers.max(1);
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
            let by_size = STRIP_NUMBERS / (source_block * row_pitch * (rows.in_step * rows.steps + rows.span));
            by_pixels.max(by_size).clamp(1, most.max(1))
        };
        Driver {
            gather,
            kernels,
            blocks,
            source_block,
            channels_in_runs: source_block >= 4,
            source,
            strip_rows,
            strip_images,
            taps,
        }
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

    /// Packs all filters, block by block of results.
    fn pack_filters(&self, weight: &[f32], packed: &mut [f32], threads: usize) {
        let gather = self.gather;
        let of_group = self.packed_length();
        let taps: Vec<[usize; 2]> =
            self.phases().flat_map(|phase| self.taps_of_phase(phase)).map(|(tap, _)| tap).collect();
        let [by_result, by_source, by_row, by_column] = gather.weight;
        let to = Shared(packed.as_mut_ptr());
        for_each_unit(threads, gather.groups * self.blocks.len(), |unit| {
            let (group, block) = (unit / self.blocks.len(), self.blocks[unit % self.blocks.len()]);
            let width = block.vectors * self.kernels.lanes;
            let length = width * gather.source_channels * self.taps;
            // SAFETY: this block's part of the packed filters, which no other unit touches.
            let to = unsafe { std::slice::from_raw_parts_mut(to.get().add(group * of_group + block.packed), length) };
            if block.channels < width {
                to.fill(0.0);
            }
            let from = &weight[group * gather.weight_group + block.first * by_result..];
            let taps_of_filter =
                gather.axes.iter().map(|axis| axis.phases.iter().map(Vec::len).sum::<usize>()).product::<usize>();
            debug_assert_eq!(taps_of_filter, taps.len());
            // Where the vector of a tap (by its place in memory) and a channel goes.
            let mut block_start = 0;
            let mut first = 0;
            while first < gather.source_channels {
                let channels = self.source_block.min(gather.source_channels - first);
                let place = |tap: usize, channel: usize| {
                    let position =
                        if self.channels_in_runs { tap * channels + channel } else { channel * taps.len() + tap };
                    block_start + position * width
                };
                let memory = |[row, column]: [usize; 2]| row * by_row + column * by_column;
                // SAFETY (both calls): rows are the block's channels, which lie in the filter `by_result` apart;
                // columns are taps or channels that lie there next to each other; every place is inside of `to`.
                let transpose = |from: &[f32], offsets: &[usize], to: &mut [f32]| unsafe {
                    debug_assert!((block.channels - 1) * by_result + offsets.len() <= from.len());
                    (self.kernels.transpose)(
                        from.as_ptr(),
                        by_result,
                        block.channels,
                        offsets.len(),
                        to.as_mut_ptr(),
                        offsets.as_ptr(),
                    );
                };
                if by_result == 1 {
                    for (tap, &at) in taps.iter().enumerate() {
                        for channel in 0..channels {
                            let from = &from[(first + channel) * by_source + memory(at)..][..block.channels];
                            to[place(tap, channel)..][..block.channels].copy_from_slice(from);
                        }
                    }
                } else if by_column == 1 && taps.len() == by_source.min(by_result) {
                    // NCHW: taps lie together, and forward the channels behind them too. Sort taps by their place.
                    let mut order: Vec<usize> = (0..taps.len()).collect();
                    order.sort_by_key(|&tap| memory(taps[tap]));
                    let mut offsets = Vec::with_capacity(channels * taps.len());
                    if by_source == taps.len() {
                        offsets.extend(
                            (0..channels)
                                .flat_map(|c| order.iter().map(move |&tap| (tap, c)))
                                .map(|(tap, c)| place(tap, c)),
                        );
                        transpose(&from[first * by_source..], &offsets, to);
                    } else {
                        for channel in 0..channels {
                            offsets.clear();
                            offsets.extend(order.iter().map(|&tap| place(tap, channel)));
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
                block_start += channels * taps.len() * width;
                first += channels;
            }
        });
    }

    fn strip(&self, strip: &Strip<'_>) {
        let gather = self.gather;
        let (kernels, lanes) = (self.kernels, self.kernels.lanes);
        let [rows, columns] = &gather.axes;
        // An odd number of cache lines between planes, so that they do not all fall into the same sets.
        let plane = (self.source.rows(strip.rows) * self.source.row_pitch).next_multiple_of(16);
        let plane = if plane / 16 % 2 == 0 { plane + 16 } else { plane };
        let image_pitch = self.source_block * plane;
        let mut packed = Workspace::take(strip.images * image_pitch);

        // Sums of all tiles between blocks of sources; with a single block one tile's room serves all.
        let several = self.source_block < gather.source_channels;
        let (phase_rows, phase_columns) = (rows.phases.len(), columns.phases.len());
        let sums_width = |block: &ResultBlock| columns.steps * phase_columns * block.vectors * lanes;
        let row_sums: usize = self.blocks.iter().map(sums_width).sum();
        let one_tile = MAX_SCALARS.max(lanes) * MAX_VECTORS * phase_columns * lanes;
        let mut sums =
            Workspace::take(if several { strip.images * strip.rows * phase_rows * row_sums } else { one_tile });

        let phases: Vec<[usize; 2]> = self.phases().collect();
        let mut runs: Vec<Vec<Run>> = vec![Vec::new(); phases.len()];
        let by_channel: Vec<usize> = (0..MAX_VECTORS * lanes).map(|channel| channel * gather.result[1]).collect();

        let (mut first, mut filters_before) = (0, 0);
        while first < gather.source_channels {
            let channels = self.source_block.min(gather.source_channels - first);
            for image in 0..strip.images {
                let to = &mut packed[image * image_pitch..][..image_pitch];
                let window = Window {
                    image: strip.first_image + image,
                    first_channel: strip.group * gather.source_channels + first,
                    channels,
                    first_row: strip.first_row,
                    rows: strip.rows,
                    plane,
                };
                self.source.pack(kernels, strip.source, &window, to);
            }
            let (is_first, is_last) = (first == 0, first + channels == gather.source_channels);
            let mut sums_start = 0;
            for block in &self.blocks {
                let width = block.vectors * lanes;
                let count = if self.channels_in_runs { channels } else { 1 };
                self.fill_runs(&phases, channels, plane, width, &mut runs);
                let most = kernels.most_scalars[block.vectors];
                for image in 0..strip.images {
                    for (row, phase_row) in (0..strip.rows).flat_map(|row| (0..phase_rows).map(move |p| (row, p))) {
                        let result_row = (strip.first_row + row) * rows.out_step + phase_row;
                        let line = (image * strip.rows + row) * phase_rows + phase_row;
                        if result_row >= rows.result {
                            continue;
                        }
                        for (column, pixels) in even_parts(columns.steps, most) {
                            let at = if several {
                                sums_start + line * sums_width(block) + column * phase_columns * width
                            } else {
                                0
                            };
                            let sums = sums[at..][..pixels * phase_columns * width].as_mut_ptr();
                            let x = image * image_pitch + row * self.source.step_pitch() + column;
                            for phase_column in 0..phase_columns {
                                let runs = &runs[phase_row * phase_columns + phase_column];
                                // SAFETY: sums of this tile were sliced above; a phase's scalars begin within its
                                // first pixel. Bias has room for all vectors of the last block. The scalars of the
                                // last pixel end within the packed row (see `PackedSource`), the vectors within the
                                // packed filters, which hold `channels × taps` of this block.
                                unsafe {
                                    let sums = sums.add(phase_column * width);
                                    let (init, init_step) = if is_first {
                                        (strip.bias.as_ptr().add(block.first), 0)
                                    } else {
                                        (sums.cast_const(), phase_columns * width)
                                    };
                                    let filters = block.packed + filters_before * width;
                                    let tile = Tile {
                                        x: packed.as_ptr().add(x),
                                        w: strip.filters.as_ptr().add(filters),
                                        runs,
                                        count,
                                        pitch: 1,
                                        x_step: plane,
                                        w_step: width,
                                        init,
                                        init_step,
                                        sums,
                                        sums_step: phase_columns * width,
                                    };
                                    kernels.tile(pixels, block.vectors)(&tile);
                                }
                            }
                            if is_last {
                                let first_column = column * columns.out_step;
                                self.finish(strip, block, image, result_row, first_column, pixels, sums, &by_channel);
                            }
                        }
                    }
                }
                if several {
                    sums_start += strip.images * strip.rows * phase_rows * sums_width(block);
                }
            }
            filters_before += channels * self.taps;
            first += channels;
        }
    }

    /// The runs of each phase for a block of so many channels.
    fn fill_runs(&self, phases: &[[usize; 2]], channels: usize, plane: usize, width: usize, runs: &mut [Vec<Run>]) {
        let taps = self.taps;
        let mut before = 0;
        for (phase, runs) in phases.iter().zip(runs) {
            runs.clear();
            for (_, [row, column]) in self.taps_of_phase(*phase) {
                let x = self.source.tap(row, column);
                if self.channels_in_runs {
                    runs.push(Run { x, w: before * channels * width });
                } else {
                    runs.extend((0..channels).map(|c| Run { x: x + c * plane, w: (c * taps + before) * width }));
                }
                before += 1;
            }
        }
    }

    /// Writes a tile's sums to the result: `pixels` of every phase of columns, which lie next to each other.
    #[allow(clippy::too_many_arguments)]
    fn finish(
        &self,
        strip: &Strip<'_>,
        block: &ResultBlock,
        image: usize,
        row: usize,
        column: usize,
        pixels: usize,
        sums: *const f32,
        by_channel: &[usize],
    ) {
        let gather = self.gather;
        let columns = &gather.axes[1];
        let (phases, step) = (columns.phases.len(), columns.out_step);
        let width = block.vectors * self.kernels.lanes;
        let [by_image, channel_step, by_row, by_column] = gather.result;
        let channel = strip.group * gather.result_channels + block.first;
        let to = (strip.first_image + image) * by_image + channel * channel_step + row * by_row + column * by_column;
        // SAFETY: pixels beyond the result's last column are left out below, so that all places are this strip's own
        // rows of the result, which no other unit writes; the sums hold `pixels × phases` lines of `width`.
        unsafe {
            let to = strip.result.get().add(to);
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
