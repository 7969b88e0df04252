//! 1×1 convolutions in NCHW as products of matrices, forward and backward-data.
//!
//! A plane's pixels lie next to each other on both sides, so pixels are what is in vectors and filters are what is
//! broadcast: the result needs no transposition and is written where it belongs. The first filters that meet a panel of
//! pixels read it in place and pack it meanwhile. So its channels lie together, aligned, for all others. Where planes
//! do not fill their vectors the pixels of all images are one line, and a panel may have those of several.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use super::cache;
use super::gather::FETCH_NUMBERS;
use super::geometry::Gather;
use super::source::prefetch_early;
use super::tiling::choose_tile;
use super::work::Work;
use super::workspace::{Shared, Workspace};
use crate::parallel::for_each_unit;
use unhang_simd::even_parts;
use unhang_simd::{Kernels, MAX_VECTORS, PackingTile, Run, Tile};

/// Source channels that are summed at a time at most: a panel of them stays close to the first-level cache.
const MOST_CHANNELS: usize = 384;
/// Pixels of one unit of work at least: as long are the pieces in which planes are read and written.
const UNIT_PIXELS: usize = 256;
/// With several threads, which have to get some units each.
const SHARED_UNIT_PIXELS: usize = 128;
/// Packed numbers of a unit with more pixels. With few channels pieces may be long, and results that do not stay in a cache
/// are written twice as fast so.
const UNIT_NUMBERS: usize = 32 * 1024;
/// Pixels of all images up to which filters are read where they lie: packing would cost as much as multiplying, and so would a
/// look whether they are still those that were packed.
const FEW_PIXELS: usize = 64;
/// Results from which on it pays to pack the pixels of several images beside each other.
const JOINED_RESULTS: usize = 64;
/// Parts of the filters from which on what is read next is asked for all the while, and not only from panel to panel.
const MANY_PARTS: usize = 8;
/// Numbers of a source that no cache holds, and parts of the filters from which on that is so for it.
const FAR_NUMBERS: usize = 5 * 1024 * 1024;
/// See [`FAR_NUMBERS`].
const SOME_PARTS: usize = 3;
/// The sums of one tile at most: those that registers hold.
const TILE_NUMBERS: usize = 32 * 16;

/// Computes it. `bias` goes along the result's channels.
///
/// # Panics
/// When a slice is not as long as the gather says, or the gather is not one of 1×1 taps without padding and stride.
pub(super) fn compute(gather: &Gather, work: Work<'_>) {
    let Work { kernels, first: source, second: weight, bias, result, threads } = work;
    let [rows, columns] = &gather.axes;
    assert!(gather.axes.iter().all(|a| a.source == a.result && a.in_step * a.out_step * a.span == 1 && a.low == 0));
    let (sources, results) = (gather.source_channels, gather.result_channels);
    let pixels = rows.source * columns.source;
    let planes = gather.batch * gather.groups;
    assert_eq!(source.len(), planes * sources * pixels, "the source's length");
    assert_eq!(result.len(), planes * results * pixels, "the result's length");
    assert_eq!(weight.len(), gather.groups * sources * results, "the filter's length");

    let lanes = kernels.lanes;
    // Groups of one image lie between the channels of the same group of two.
    let joined = gather.groups == 1 && !pixels.is_multiple_of(lanes) && (results >= JOINED_RESULTS || pixels < lanes);
    let columns = if joined { gather.batch * pixels } else { pixels };
    let filters_lie = gather.batch * pixels <= FEW_PIXELS && gather.weight[..2] == [sources, 1];
    let most = columns.div_ceil(lanes).min(MAX_VECTORS);
    // As wide as one tile with all filters can be: then nothing is packed.
    let wide = (2..=most).rev().find(|&vectors| kernels.most_scalars(vectors, 1) >= results);
    let vectors = match wide {
        _ if filters_lie => most,
        Some(wide) => wide,
        None => choose_tile(kernels, columns, results, 1).vectors,
    };
    let parts: Vec<(usize, usize)> = even_parts(results, kernels.most_scalars(vectors, 1)).collect();
    let packed = (!filters_lie).then(|| filters_in_parts(gather, kernels, weight, &parts, gather.batch * pixels));
    let (begin, begin_step) = begin_of_rows(bias, vectors * lanes);
    let pointwise = Pointwise {
        gather,
        kernels,
        source,
        filters: packed.as_ref().map_or(Filters::InPlace(weight), |packed| Filters::Packed(packed)),
        begin: (&begin, begin_step),
        result: Shared(result.as_mut_ptr()),
        vectors,
        pixels,
        // As even as can be.
        source_block: sources.div_ceil(sources.div_ceil(MOST_CHANNELS)),
    };
    let products = planes * pixels / columns;
    let of_unit = pointwise.unit_columns(columns, products, threads);
    let chunks = columns.div_ceil(of_unit);
    // Few pixels: the filters are shared out too.
    let wanted = if threads > 1 { (2 * threads).div_ceil(products * chunks) } else { 1 };
    let shares: Vec<(usize, usize)> = even_parts(parts.len(), parts.len().div_ceil(wanted)).collect();
    let units = products * chunks * shares.len();
    let unit = |number: usize| {
        let (chunk, (first, count)) = (number / shares.len(), shares[number % shares.len()]);
        let begin = chunk % chunks * of_unit;
        Unit { product: chunk / chunks, begin, end: columns.min(begin + of_unit), parts: &parts[first..first + count] }
    };
    let fetch = match source.len() {
        numbers if numbers > FAR_NUMBERS => parts.len() >= SOME_PARTS,
        numbers => numbers > FETCH_NUMBERS && parts.len() >= MANY_PARTS,
    };
    for_each_unit(threads, units, |number| {
        // The one that this thread takes next if all take as long.
        let next = Some(number + threads).filter(|&next| fetch && next < units).map(unit);
        pointwise.unit(&unit(number), next.as_ref(), fetch);
    });
}

/// Everything that is the same for all units.
struct Pointwise<'a> {
    gather: &'a Gather,
    kernels: &'static Kernels,
    source: &'a [f32],
    filters: Filters<'a>,
    /// What sums begin with: vectors for each row, that far apart.
    begin: (&'a [f32], usize),
    result: Shared,
    /// Vectors of a panel.
    vectors: usize,
    /// Pixels of a plane.
    pixels: usize,
    /// Source channels that are summed at a time.
    source_block: usize,
}

/// Where the filters are.
#[derive(Clone, Copy)]
enum Filters<'a> {
    /// As [`filters_in_parts`] packs them.
    Packed(&'a [f32]),
    /// Where they lie, with the source channels of each together.
    InPlace(&'a [f32]),
}

/// Some columns of a product, and the filters that they are multiplied by. A product has the pixels of one group of one image, or
/// of all images.
struct Unit<'a> {
    product: usize,
    begin: usize,
    end: usize,
    parts: &'a [(usize, usize)],
}

/// Some columns of a unit.
struct Panel {
    at: usize,
    end: usize,
    vectors: usize,
    /// Whether they fill their vectors and belong to one image.
    is_direct: bool,
    /// Where the first is in the unit's first source channel, and in its first result.
    places: [usize; 2],
    /// From its numbers to those of the next.
    ahead: usize,
}

/// Some filters, the first and how many, and some source channels, likewise.
struct FilterBlock {
    product: usize,
    filters: (usize, usize),
    /// Whether no others have met the panels' channels before, and whether none will.
    is_first: bool,
    is_only: bool,
    first: usize,
    channels: usize,
}

impl Pointwise<'_> {
    /// Columns of one unit of work: whole panels.
    fn unit_columns(&self, columns: usize, products: usize, threads: usize) -> usize {
        let width = self.vectors * self.kernels.lanes;
        let panels = columns.div_ceil(width);
        let most = (UNIT_NUMBERS / (self.source_block * width)).max(UNIT_PIXELS / width);
        if threads > 1 {
            // At least two units each, where there are as many of the least.
            let wanted = (2 * threads).div_ceil(products);
            let most = most.min(panels.div_ceil(wanted).max(SHARED_UNIT_PIXELS / width));
            return panels.div_ceil(panels.div_ceil(most)) * width;
        }
        // Units are even, and half as long again at most: the last is not left with short pieces, and planes of few pixels are
        // read as a whole, one after the other.
        panels.div_ceil(panels.div_ceil(most + most / 2)) * width
    }

    /// The panels of a unit.
    fn panels(&self, unit: &Unit<'_>) -> Vec<Panel> {
        let (lanes, width) = (self.kernels.lanes, self.vectors * self.kernels.lanes);
        let panel = |at: usize| {
            let end = unit.end.min(at + width);
            let vectors = (end - at).div_ceil(lanes);
            // The last panel may begin among the columns of the one before: their sums are the same again, if they are complete.
            let full = end.saturating_sub(vectors * lanes);
            let at = if self.source_block == self.gather.source_channels && full >= unit.begin { full } else { at };
            let is_direct = end - at == vectors * lanes && at / self.pixels == (end - 1) / self.pixels;
            let ahead = if end < unit.end || unit.parts.len() == 1 { width } else { 0 };
            Panel { at, end, vectors, is_direct, places: self.places(unit.product, at), ahead }
        };
        (unit.begin..unit.end).step_by(width).map(panel).collect()
    }

    /// Computes a unit; what is read next is asked for meanwhile.
    fn unit(&self, unit: &Unit<'_>, next: Option<&Unit<'_>>, fetch: bool) {
        let width = self.vectors * self.kernels.lanes;
        let panels = self.panels(unit);
        let tiles = unit.parts.len() * panels.len();
        let sources = self.gather.source_channels;
        let mut packed = Workspace::take(self.source_block * width * panels.len());
        let mut buffer = [0.0f32; TILE_NUMBERS];
        for first in (0..sources).step_by(self.source_block) {
            let channels = self.source_block.min(sources - first);
            let later = match first + channels {
                behind if behind < sources => Some((unit, behind)).filter(|_| fetch),
                _ => next.map(|next| (next, 0)),
            };
            for (number, part) in unit.parts.iter().enumerate() {
                for (of_part, (panel, packed)) in panels.iter().zip(packed.chunks_mut(channels * width)).enumerate() {
                    if let Some((later, first)) = later {
                        self.ask_for(later, first, number * panels.len() + of_part, tiles);
                    }
                    let (is_first, is_only) = (number == 0, unit.parts.len() == 1);
                    let tile =
                        FilterBlock { product: unit.product, filters: *part, is_first, is_only, first, channels };
                    self.tile(&tile, panel, packed, &mut buffer);
                }
            }
        }
    }

    /// Asks for a unit's source channels from `first` on: the share of one tile of those that are computed meanwhile.
    fn ask_for(&self, unit: &Unit<'_>, first: usize, tile: usize, tiles: usize) {
        let channels = self.source_block.min(self.gather.source_channels - first);
        for channel in tile * channels / tiles..(tile + 1) * channels / tiles {
            for (column, count) in pieces(self.pixels, unit.begin, unit.end) {
                let [place, _] = self.places(unit.product, column);
                prefetch_early(self.source[place + (first + channel) * self.pixels..].as_ptr(), count);
            }
        }
    }

    /// Where a column is in the first channel of its source and of its result.
    fn places(&self, product: usize, column: usize) -> [usize; 2] {
        let (image, pixel) = (product + column / self.pixels, column % self.pixels);
        [self.gather.source_channels, self.gather.result_channels]
            .map(|channels| image * channels * self.pixels + pixel)
    }

    /// The scalars of some filters for some channels: from the first on, and how far the next filter's is, and the next channel's.
    fn scalars(&self, part: &FilterBlock) -> (&[f32], [usize; 2]) {
        let (sources, results) = (self.gather.source_channels, self.gather.result_channels);
        let (row, rows) = part.filters;
        let place = (part.product % self.gather.groups * results + row) * sources;
        match self.filters {
            Filters::Packed(filters) => (&filters[place + part.first * rows..][..part.channels * rows], [1, rows]),
            Filters::InPlace(filters) => {
                (&filters[place + part.first..][..(rows - 1) * sources + part.channels], [sources, 1])
            }
        }
    }

    /// A panel's sums of some filters over some channels. They go to the result if the panel is direct, and by way of a buffer if
    /// not.
    fn tile(&self, part: &FilterBlock, panel: &Panel, packed: &mut [f32], buffer: &mut [f32; TILE_NUMBERS]) {
        let (kernels, pixels) = (self.kernels, self.pixels);
        let (width, of_panel) = (self.vectors * kernels.lanes, panel.vectors * kernels.lanes);
        let (row, rows) = part.filters;
        let (filters, [pitch, x_step]) = self.scalars(part);
        let reads_in_place = part.is_first && panel.is_direct && (pitch == 1 || part.is_only);
        if part.is_first && !reads_in_place {
            self.pack(part, panel, packed);
        }
        // SAFETY: a place in this unit's own part of the result.
        let result_at = |[_, place]: [usize; 2]| unsafe { self.result.get().add(place + row * pixels) };
        let (sums, sums_step) =
            if panel.is_direct { (result_at(panel.places), pixels) } else { (buffer.as_mut_ptr(), of_panel) };
        let copied = || {
            let all = (!panel.is_direct).then(|| pieces(pixels, panel.at, panel.end));
            all.into_iter()
                .flatten()
                .map(|(column, count)| (column - panel.at, result_at(self.places(part.product, column)), count))
        };
        // SAFETY: a panel has `channels` rows of whole vectors, packed or in place in one image; the filters as many of `rows`.
        // Sums go to this panel's own pixels of the result, which no other unit writes. Or they go to the buffer, which
        // has room for the largest tile.
        unsafe {
            let (init, init_step) = if part.first == 0 {
                let (begin, step) = self.begin;
                let group = part.product % self.gather.groups;
                (begin[(group * self.gather.result_channels + row) * step..].as_ptr(), step)
            } else {
                for (at, result, count) in copied() {
                    (kernels.rows)(result, pixels, sums.add(at), sums_step, count, rows);
                }
                (sums.cast_const(), sums_step)
            };
            let tile = Tile {
                x: filters.as_ptr(),
                w: packed.as_ptr(),
                runs: &[Run { x: 0, w: 0 }],
                count: part.channels,
                pitch,
                row_step: panel.ahead,
                x_step,
                w_step: width,
                init,
                init_step,
                sums,
                sums_step,
                fetch: false,
            };
            if reads_in_place {
                let from = &self.source[panel.places[0] + part.first * pixels..];
                let tile = Tile { w: from[..(part.channels - 1) * pixels + of_panel].as_ptr(), w_step: pixels, ..tile };
                if part.is_only && pitch == 1 && panel.ahead > 0 {
                    kernels.streaming_tile(panel.vectors, rows)(&tile);
                } else if part.is_only {
                    kernels.tile(panel.vectors, 1, rows, pitch)(&tile);
                } else {
                    let to = packed[..part.channels * width].as_mut_ptr();
                    kernels.packing_tile(panel.vectors, rows)(&PackingTile { tile, to, to_step: width });
                }
            } else {
                kernels.tile(panel.vectors, 1, rows, pitch)(&tile);
            }
            for (at, result, count) in copied() {
                (kernels.rows)(sums.add(at), sums_step, result, pixels, count, rows);
            }
        }
    }

    /// Packs some channels of a panel, with zeros behind its last column.
    fn pack(&self, part: &FilterBlock, panel: &Panel, packed: &mut [f32]) {
        let width = self.vectors * self.kernels.lanes;
        assert!(packed.len() >= part.channels * width && panel.end - panel.at <= width);
        if panel.end - panel.at < width {
            packed.fill(0.0);
        }
        for (column, count) in pieces(self.pixels, panel.at, panel.end) {
            let [place, _] = self.places(part.product, column);
            let from = &self.source[place + part.first * self.pixels..][..(part.channels - 1) * self.pixels + count];
            // SAFETY: this many pixels of each channel of an image, to rows of the panel.
            unsafe {
                let to = packed.as_mut_ptr().add(column - panel.at);
                (self.kernels.rows)(from.as_ptr(), self.pixels, to, width, count, part.channels);
            }
        }
    }
}

/// The pieces of some columns that belong to one image each: the first column, and how many.
pub(super) fn pieces(pixels: usize, begin: usize, end: usize) -> impl Iterator<Item = (usize, usize)> {
    let images = begin / pixels..end.div_ceil(pixels);
    images.map(move |image| {
        let first = begin.max(image * pixels);
        (first, end.min((image + 1) * pixels) - first)
    })
}

/// The filters of all groups, packed part by part; kept where that pays.
fn filters_in_parts(
    gather: &Gather,
    kernels: &Kernels,
    weight: &[f32],
    parts: &[(usize, usize)],
    pixels: usize,
) -> Arc<Workspace> {
    let filter_parts: Vec<FilterPart> =
        parts.iter().map(|&(first, count)| FilterPart { first, count, width: count }).collect();
    let pack = |filters: &mut [f32]| pack_filters(gather, kernels, &filter_parts, weight, filters);
    if cache::is_worth_keeping(weight.len(), pixels) {
        let mut hasher = DefaultHasher::new();
        let (sources, results) = (gather.source_channels, gather.result_channels);
        ("pointwise", gather.groups, sources, results, gather.weight, parts).hash(&mut hasher);
        return cache::packed(kernels, weight, hasher.finish(), weight.len(), pack);
    }
    let mut filters = Workspace::take(weight.len());
    pack(&mut filters);
    Arc::new(filters)
}

/// What sums of rows begin with, and how far apart that is: each row's bias in vectors, or the same zeros for all.
fn begin_of_rows(bias: Option<&[f32]>, width: usize) -> (Workspace, usize) {
    let mut begin = Workspace::take(bias.map_or(width, |bias| bias.len() * width));
    match bias {
        Some(bias) => begin.chunks_mut(width).zip(bias).for_each(|(vectors, &bias)| vectors.fill(bias)),
        None => begin.fill(0.0),
    }
    (begin, if bias.is_some() { width } else { 0 })
}

/// A part of the result's channels as it is packed.
#[derive(Debug, Clone, Copy)]
pub(super) struct FilterPart {
    /// The first channel.
    pub first: usize,
    /// How many.
    pub count: usize,
    /// Numbers that it takes for each source channel; those beyond `count` are zeros.
    pub width: usize,
}

/// Packs filters as `[part of results][source channel][result channel]`.
pub(super) fn pack_filters(
    gather: &Gather,
    kernels: &Kernels,
    parts: &[FilterPart],
    weight: &[f32],
    mut to: &mut [f32],
) {
    let [by_result, by_source, ..] = gather.weight;
    let sources = gather.source_channels;
    for group in 0..gather.groups {
        for part in parts {
            let from = &weight[group * gather.weight_group + part.first * by_result..];
            let now;
            (now, to) = std::mem::take(&mut to).split_at_mut(sources * part.width);
            if part.count < part.width {
                now.fill(0.0);
            }
            assert!((sources - 1) * by_source + (part.count - 1) * by_result < from.len());
            if by_result == 1 {
                // SAFETY: rows of `count`, of which the last was just checked, to rows of as many or more.
                unsafe { (kernels.rows)(from.as_ptr(), by_source, now.as_mut_ptr(), part.width, part.count, sources) };
            } else {
                let offsets: Vec<usize> = (0..sources).map(|channel| channel * part.width).collect();
                // SAFETY: `count` rows with `sources` neighbouring numbers each, of which the last was just checked.
                unsafe {
                    let offsets = offsets.as_ptr();
                    (kernels.transpose)(from.as_ptr(), by_result, part.count, sources, now.as_mut_ptr(), offsets);
                }
            }
        }
    }
}
