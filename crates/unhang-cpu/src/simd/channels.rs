//! 1×1 convolutions in NHWC as products of matrices, pixels × channels by channels × filters, forward and
//! backward-data.
//!
//! A pixel's channels lie next to each other on both sides: filters lie in vectors, pixels are broadcast, and sums are
//! written where they belong. Without a stride all pixels of all images are one long line. A unit is some tiles of
//! pixels: a block of filters stays near while all of them go through it. The pixels stay in the second-level cache from
//! one block to the next. They are read where they lie, and each tile asks for the next one's. Only pixels a multiple of
//! 4 KiB apart are copied closer together: a tile's would share one set of the first-level cache.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;
use std::sync::Arc;

use super::cache;
use super::geometry::Gather;
use super::pointwise::{FilterPart, pack_filters};
use super::tiling::choose_tile;
use super::work::Work;
use super::workspace::{Shared, Workspace};
use crate::parallel::for_each_unit;
use unhang_simd::even_parts;
use unhang_simd::{COMMON_PITCH, Kernels, MAX_SCALARS, MAX_VECTORS, Run, Tile};

/// Numbers of a way of the first-level cache: pixels that lie a multiple of them apart share its sets.
const SAME_SETS: usize = 1024;
/// Source channels that are summed at a time, where pixels are read in place.
const SOURCE_BLOCK: usize = 1024;
/// Source channels that are copied and summed at a time.
const COPIED_BLOCK: usize = 256;
/// Numbers of the source of one unit of work: a part of the second-level cache.
const UNIT_NUMBERS: usize = 64 * 1024;
/// Pixels of one unit of work at least: each unit reads all filters.
const UNIT_PIXELS: usize = 192;
/// Numbers of a result that do not stay in the second-level cache.
const FETCH_NUMBERS: usize = 256 * 1024;

/// Lines of pixels: all that have one, in the order of their places.
struct Lines {
    lines: usize,
    pixels: usize,
    /// From one pixel of the source to the next, and of the result.
    pitch: [usize; 2],
    /// Lines of an image, and from one image and one line to the next, on both sides.
    of_image: usize,
    by_image: [usize; 2],
    by_line: [usize; 2],
}

impl Lines {
    fn new(gather: &Gather) -> Lines {
        let [rows, columns] = &gather.axes;
        let (source, result) = (gather.source, gather.result);
        if gather.axes.iter().all(|axis| axis.in_step * axis.out_step == 1) {
            let pixels = gather.batch * rows.steps * columns.steps;
            return Lines {
                lines: 1,
                pixels,
                pitch: [source[3], result[3]],
                of_image: 1,
                by_image: [0, 0],
                by_line: [0, 0],
            };
        }
        Lines {
            lines: gather.batch * rows.steps,
            pixels: columns.steps,
            pitch: [columns.in_step * source[3], columns.out_step * result[3]],
            of_image: rows.steps,
            by_image: [source[0], result[0]],
            by_line: [rows.in_step * source[2], rows.out_step * result[2]],
        }
    }

    /// Where a pixel is in the source and in the result.
    fn place(&self, line: usize, pixel: usize) -> [usize; 2] {
        let (image, row) = (line / self.of_image, line % self.of_image);
        [0, 1].map(|side| image * self.by_image[side] + row * self.by_line[side] + pixel * self.pitch[side])
    }
}

/// Computes it. `bias` goes along the result's channels.
///
/// # Panics
/// When a slice is not as long as the gather says, or the gather has several taps, padding, or channels that lie apart.
pub(super) fn compute(gather: &Gather, work: Work<'_>) {
    let Work { kernels, first: source, second: weight, bias, result, threads } = work;
    let [rows, columns] = &gather.axes;
    assert!([gather.source[1], gather.result[1]] == [1, 1], "channels lie together");
    assert!(gather.axes.iter().all(|a| a.span == 1 && a.low == 0 && (a.steps - 1) * a.in_step < a.source));
    assert!(gather.axes.iter().all(|a| (a.steps - 1) * a.out_step < a.result));
    let (sources, results) = (gather.source_channels, gather.result_channels);
    let of_pixel = [gather.groups * sources, gather.groups * results];
    assert_eq!(source.len(), gather.batch * rows.source * columns.source * of_pixel[0], "the source's length");
    assert_eq!(result.len(), gather.batch * rows.result * columns.result * of_pixel[1], "the result's length");
    assert_eq!(weight.len(), gather.groups * sources * results, "the filter's length");
    if result.is_empty() {
        return;
    }
    if gather.axes.iter().any(|axis| axis.out_step > 1) {
        fill_between(gather, bias, result, threads);
    }

    let lanes = kernels.lanes;
    let lines = Lines::new(gather);
    let copies = lines.pitch[0].is_multiple_of(SAME_SETS);
    // Short lines are cut into tiles of other shapes.
    let most = match copies || lines.lines > 1 {
        true => choose_tile(kernels, results, lines.pixels, 1).vectors,
        false => most_vectors(kernels),
    };
    let blocks = filter_blocks(kernels, results, most);
    let vectors = blocks.iter().map(|block| block.width / lanes).max().unwrap_or(1);
    let of_group: usize = blocks.iter().map(|block| block.width * sources).sum();
    let pack = |filters: &mut [f32]| pack_filters(gather, kernels, &blocks, weight, filters);
    let filters = if cache::is_worth_keeping(of_group * gather.groups, lines.lines * lines.pixels) {
        let mut hasher = DefaultHasher::new();
        ("channels", gather.groups, sources, results, gather.weight, vectors * lanes, lanes).hash(&mut hasher);
        cache::packed(kernels, weight, hasher.finish(), of_group * gather.groups, pack)
    } else {
        let mut filters = Workspace::take(of_group * gather.groups);
        pack(&mut filters);
        Arc::new(filters)
    };
    let padded = results.next_multiple_of(lanes);
    let mut biases = Workspace::take(padded * gather.groups);
    biases.fill(0.0);
    if let Some(bias) = bias {
        for (to, bias) in biases.chunks_mut(padded).zip(bias.chunks(results)) {
            to[..results].copy_from_slice(bias);
        }
    }
    let (filters, biases): (&[f32], &[f32]) = (&filters, &biases);

    let parts: Vec<(usize, usize)> = even_parts(lines.pixels, kernels.most_scalars(vectors, 1)).collect();
    let tiles = lines.lines * parts.len();
    let ranges = |of: usize, most: usize| -> Vec<Range<usize>> {
        even_parts(of, most).map(|(first, count)| first..first + count).collect()
    };
    let of_unit = (UNIT_NUMBERS / sources).max(UNIT_PIXELS).div_ceil(parts[0].1);
    let units = ranges(tiles, of_unit.min(tiles.div_ceil(threads)));
    // Few tiles: the blocks of filters are shared out too.
    let shares = if threads > 1 { (2 * threads).div_ceil(units.len() * gather.groups) } else { 1 };
    let shares = ranges(blocks.len(), blocks.len().div_ceil(shares));
    let driver = ChannelWork {
        gather,
        kernels,
        copies,
        lines,
        parts,
        blocks,
        filters,
        of_group,
        biases,
        fetch: gather.batch * gather.result[0] > FETCH_NUMBERS,
        result: Shared(result.as_mut_ptr()),
    };
    for_each_unit(threads, gather.groups * units.len() * shares.len(), |unit| {
        let (rest, share) = (unit / shares.len(), unit % shares.len());
        let tiles = units[rest / gather.groups].clone();
        driver.unit(source, rest % gather.groups, tiles, shares[share].clone());
    });
}

/// Channels of the source that are summed at a time.
struct SourcePart {
    group: usize,
    /// The first of them in the group.
    first: usize,
    count: usize,
}

/// What tiles use one after the other.
struct Room {
    runs: Vec<Run>,
    /// Sums that do not fill their vectors.
    part_sums: [f32; MAX_SCALARS * MAX_VECTORS * 16],
}

/// Everything that is the same for all units.
struct ChannelWork<'a> {
    gather: &'a Gather,
    kernels: &'static Kernels,
    lines: Lines,
    /// Whether pixels are copied closer together.
    copies: bool,
    /// Tiles of a line.
    parts: Vec<(usize, usize)>,
    blocks: Vec<FilterPart>,
    filters: &'a [f32],
    of_group: usize,
    biases: &'a [f32],
    fetch: bool,
    result: Shared,
}

impl ChannelWork<'_> {
    /// Computes some blocks of filters for some tiles.
    fn unit(&self, source: &[f32], group: usize, tiles: Range<usize>, blocks: Range<usize>) {
        let (kernels, sources) = (self.kernels, self.gather.source_channels);
        let pitch = self.lines.pitch[0];
        let most = self.parts.iter().map(|part| part.1).max().unwrap_or(0);
        let places: Vec<([usize; 2], usize)> = tiles
            .map(|tile| {
                let (first, pixels) = self.parts[tile % self.parts.len()];
                (self.lines.place(tile / self.parts.len(), first), pixels)
            })
            .collect();
        let most_channels = if self.copies { COPIED_BLOCK } else { SOURCE_BLOCK };
        let block_most = most_channels.min(sources).next_multiple_of(COMMON_PITCH);
        let mut packed = Workspace::take(if self.copies { places.len() * most * block_most } else { 0 });
        let mut room = Room { runs: Vec::new(), part_sums: [0.0; MAX_SCALARS * MAX_VECTORS * 16] };
        for (first, channels) in source_blocks(sources, most_channels) {
            let tile_numbers = most * channels.next_multiple_of(COMMON_PITCH);
            let part = |from: usize, pixels: usize| {
                &source[from + group * sources + first..][..(pixels - 1) * pitch + channels]
            };
            if self.copies {
                for (&([from, _], pixels), to) in places.iter().zip(packed.chunks_mut(tile_numbers)) {
                    copy_closer(kernels, part(from, pixels), pitch, pixels, channels, to);
                }
            }
            for block in &self.blocks[blocks.clone()] {
                for (tile, &([from, to], pixels)) in places.iter().enumerate() {
                    let pixels_at = if self.copies { &packed[tile * tile_numbers..] } else { part(from, pixels) };
                    let part = SourcePart { group, first, count: channels };
                    self.tile(&part, block, pixels_at, to, pixels, &mut room);
                }
            }
        }
    }

    /// Adds the products of some channels of a tile's pixels by a block of filters to the result at `to`.
    fn tile(
        &self,
        &SourcePart { group, first, count: channels }: &SourcePart,
        block: &FilterPart,
        x: &[f32],
        to: usize,
        pixels: usize,
        Room { runs, part_sums }: &mut Room,
    ) {
        let (gather, kernels) = (self.gather, self.kernels);
        let (sources, results) = (gather.source_channels, gather.result_channels);
        let ([pitch, to_pitch], vectors) = (self.lines.pitch, block.width / kernels.lanes);
        // Blocks before this one are full: as wide as they have channels.
        let at = group * self.of_group + block.first * sources + first * block.width;
        let filters = &self.filters[at..][..channels * block.width];
        let biases = &self.biases[group * self.biases.len() / gather.groups..][block.first..][..block.width];
        let is_whole = block.count == block.width;
        // Copied: whole runs, and what does not fill one.
        let rest = if self.copies { channels % COMMON_PITCH } else { 0 };
        let run = |at: usize| Run { x: at * pixels, w: at * block.width };
        runs.clear();
        if self.copies {
            runs.extend((0..channels / COMMON_PITCH).map(|group| run(group * COMMON_PITCH)));
        } else {
            runs.push(run(0));
        }
        let (kernel, count, pitch) = match self.copies {
            true => (kernels.tile(vectors, 1, pixels, COMMON_PITCH), COMMON_PITCH, COMMON_PITCH),
            // The next tile's pixels follow if nothing is between them.
            false if pitch == channels => (kernels.fetching_tile(vectors, pixels), channels, pitch),
            false => (kernels.tile(vectors, 1, pixels, pitch), channels, pitch),
        };
        // SAFETY: copied, a tile's pixels have [`COMMON_PITCH`] numbers each for every run. In place they have all of the
        // channels, which `x` was sliced for. The filters have as many vectors. Sums that fill the vectors go to this tile's own
        // channels of the result, which no other unit writes. Others go by way of a buffer that is large enough.
        unsafe {
            let to = self.result.get().add(to + group * results + block.first);
            let (sums, sums_step) = if is_whole { (to, to_pitch) } else { (part_sums.as_mut_ptr(), block.width) };
            if !is_whole && first > 0 {
                (kernels.rows)(to, to_pitch, sums, sums_step, block.count, pixels);
            }
            let (init, init_step) = if first > 0 { (sums.cast_const(), sums_step) } else { (biases.as_ptr(), 0) };
            let tile = Tile {
                x: x.as_ptr(),
                w: filters.as_ptr(),
                runs,
                count,
                pitch,
                row_step: pixels * pitch,
                x_step: 1,
                w_step: block.width,
                init,
                init_step,
                sums,
                sums_step,
                fetch: self.fetch && is_whole,
            };
            kernel(&tile);
            if rest > 0 {
                let runs = &[run(channels - rest)];
                kernel(&Tile { runs, count: rest, init: sums, init_step: sums_step, fetch: false, ..tile });
            }
            if !is_whole {
                (kernels.rows)(sums, sums_step, to, to_pitch, block.count, pixels);
            }
        }
    }
}

/// The vectors of a block of filters with which a tile's products need the fewest loads.
fn most_vectors(kernels: &Kernels) -> usize {
    // A step loads its scalars and its vectors once each.
    let products = |vectors: usize| vectors * kernels.most_scalars(vectors, 1);
    let loads = |vectors: usize| vectors + kernels.most_scalars(vectors, 1);
    let more = |a: &usize, b: &usize| (products(*a) * loads(*b)).cmp(&(products(*b) * loads(*a)));
    (1..=MAX_VECTORS).max_by(more).unwrap_or(1)
}

/// The blocks of filters, of at most that many vectors each; all but the last fill theirs.
fn filter_blocks(kernels: &Kernels, results: usize, most: usize) -> Vec<FilterPart> {
    let lanes = kernels.lanes;
    let block = |(first, vectors): (usize, usize)| {
        let (first, width) = (first * lanes, vectors * lanes);
        FilterPart { first, count: width.min(results - first), width }
    };
    even_parts(results.div_ceil(lanes), most).map(block).collect()
}

/// The blocks of source channels: first and how many; all but the last are whole runs.
fn source_blocks(sources: usize, most: usize) -> impl Iterator<Item = (usize, usize)> {
    let block = sources.div_ceil(sources.div_ceil(most)).next_multiple_of(COMMON_PITCH);
    (0..sources).step_by(block).map(move |first| (first, block.min(sources - first)))
}

/// Copies pixels so that [`COMMON_PITCH`] channels of each lie together, and then the next.
fn copy_closer(kernels: &Kernels, from: &[f32], pitch: usize, pixels: usize, channels: usize, to: &mut [f32]) {
    let (whole, rest) = (channels / COMMON_PITCH, channels % COMMON_PITCH);
    assert!((pixels - 1) * pitch + channels <= from.len());
    assert!(channels.div_ceil(COMMON_PITCH) * pixels * COMMON_PITCH <= to.len());
    for pixel in 0..pixels {
        // SAFETY: this pixel's channels and its place in each group, both of which were just checked.
        unsafe {
            let (from, to) = (from.as_ptr().add(pixel * pitch), to.as_mut_ptr().add(pixel * COMMON_PITCH));
            (kernels.rows)(from, COMMON_PITCH, to, pixels * COMMON_PITCH, COMMON_PITCH, whole);
            let done = whole * COMMON_PITCH;
            (kernels.row)(from.add(done), 1, rest, to.add(done * pixels));
        }
    }
}

/// Fills a strided result, most of whose pixels no tap reaches, with the bias.
fn fill_between(gather: &Gather, bias: Option<&[f32]>, result: &mut [f32], threads: usize) {
    let line = gather.result[2];
    crate::parallel::for_each_chunk(threads, result, line, |_, line| match bias {
        None => line.fill(0.0),
        Some(bias) => line.chunks_mut(bias.len()).for_each(|pixel| pixel.copy_from_slice(bias)),
    });
}
