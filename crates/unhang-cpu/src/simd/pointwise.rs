//! 1×1 convolutions in NCHW as products of matrices, forward and backward-data, with more filters than stay in a cache.
//!
//! A plane's pixels lie next to each other on both sides, so pixels are what is in vectors and filters are what is
//! broadcast: the result needs no transposition and is written where it belongs. Panels of pixels are packed, a few at
//! a time, so that their channels lie together and the memory behind them is read in long pieces.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use super::cache;
use super::gather::FETCH_NUMBERS;
use super::geometry::{Gather, even_parts};
use super::kernels::{Kernels, MAX_SCALARS, MAX_VECTORS, Run, Tile};
use super::source::prefetch_early;
use super::tiling::choose_tile;
use super::work::Work;
use super::workspace::{Shared, Workspace};
use crate::parallel::for_each_unit;

/// Source channels that are summed at a time at most: a panel of them stays in the first-level cache.
const MOST_CHANNELS: usize = 288;
/// Pixels of one unit of work at least: as long are the pieces in which planes are read and written.
const UNIT_PIXELS: usize = 256;
/// Packed numbers of a unit with more pixels. With few channels pieces may be long, and results that do not stay in a cache
/// are written twice as fast so.
const UNIT_NUMBERS: usize = 32 * 1024;
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
    assert_eq!(source.len(), gather.batch * gather.groups * sources * pixels, "the source's length");
    assert_eq!(result.len(), gather.batch * gather.groups * results * pixels, "the result's length");
    assert_eq!(weight.len(), gather.groups * sources * results, "the filter's length");

    let lanes = kernels.lanes;
    let vectors = choose_tile(kernels, pixels, results, 1).vectors;
    let width = vectors * lanes;
    let parts: Vec<(usize, usize)> = even_parts(results, kernels.most_scalars(vectors, 1)).collect();
    let filters = filters_in_parts(gather, kernels, weight, &parts, gather.batch * pixels);
    let (begin, begin_step) = begin_of_rows(bias, width);
    let (filters, begin): (&[f32], &[f32]) = (&filters, &begin);

    // Channels that are summed at a time, as even as can be.
    let source_block = sources.div_ceil(sources.div_ceil(MOST_CHANNELS));
    let panels = pixels.div_ceil(width);
    let unit_panels = (UNIT_NUMBERS / (source_block * width)).max(UNIT_PIXELS / width);
    // For several threads at least two units each, where there are as many of the least.
    let wanted = if threads > 1 { (2 * threads).div_ceil(gather.batch * gather.groups) } else { 1 };
    let unit_panels = unit_panels.min(panels.div_ceil(wanted).max(UNIT_PIXELS / width));
    // Units are even, and for one thread half as long again at most: the last is not left with short pieces, and planes of few
    // pixels are read as a whole, one after the other.
    let longest = if threads > 1 { unit_panels } else { unit_panels + unit_panels / 2 };
    let unit_panels = panels.div_ceil(panels.div_ceil(longest));
    let chunks = panels.div_ceil(unit_panels);
    let result = Shared(result.as_mut_ptr());
    let units = gather.batch * gather.groups * chunks;
    // A unit's image and group, first pixel and pixels.
    let place_of = |unit: usize| {
        let first_pixel = unit % chunks * unit_panels * width;
        (unit / chunks, first_pixel, (unit_panels * width).min(pixels - first_pixel))
    };
    let fetch = source.len() > FETCH_NUMBERS;
    for_each_unit(threads, units, |unit| {
        let (image_and_group, first_pixel, unit_pixels) = place_of(unit);
        let group = image_and_group % gather.groups;
        let first_result = image_and_group * results * pixels;
        let unit_panels = unit_pixels.div_ceil(width);
        let all_sources = source;
        let source = &source[image_and_group * sources * pixels..][..sources * pixels];
        let whole_panels = unit_pixels / width;
        let rest = unit_pixels % width;
        let mut packed = Workspace::take(source_block * width * unit_panels);
        let mut part_sums = [0.0f32; MAX_SCALARS * MAX_VECTORS * 16];
        let mut first = 0;
        while first < sources {
            let channels = source_block.min(sources - first);
            let of_panel = channels * width;
            let packed = &mut packed[..of_panel * unit_panels];
            if rest > 0 {
                packed[whole_panels * of_panel..].fill(0.0);
            }
            // All panels of a channel at a time, so that memory is read in long pieces.
            for channel in 0..channels {
                let from = &source[(first + channel) * pixels + first_pixel..][..unit_pixels];
                // SAFETY: `unit_pixels` numbers are cut into whole panels and a rest, each to its own row of the packed
                // panels, which are `of_panel` apart and end `of_panel - channel × width` behind the first row.
                unsafe {
                    let to = packed.as_mut_ptr().add(channel * width);
                    (kernels.rows)(from.as_ptr(), width, to, of_panel, width, whole_panels);
                    if rest > 0 {
                        (kernels.row)(
                            from.as_ptr().add(whole_panels * width),
                            1,
                            rest,
                            to.add(whole_panels * of_panel),
                        );
                    }
                }
            }
            // What is packed next is asked for while this is multiplied: the unit's next channels, or the first of the unit that
            // this thread takes next if all take as long.
            let next = match first + channels {
                next if next < sources => Some((unit, next)),
                _ => Some((unit + threads, 0)).filter(|next| next.0 < units),
            };
            let tiles = parts.len() * unit_panels;
            let ask_for_next = |tile: usize| {
                if let Some((unit, first)) = next.filter(|_| fetch) {
                    let (image_and_group, first_pixel, unit_pixels) = place_of(unit);
                    let channels = source_block.min(sources - first);
                    for channel in tile * channels / tiles..(tile + 1) * channels / tiles {
                        let plane = image_and_group * sources + first + channel;
                        prefetch_early(all_sources[plane * pixels + first_pixel..].as_ptr(), unit_pixels);
                    }
                }
            };
            for (number, &(part, scalars)) in parts.iter().enumerate() {
                let filters = &filters[(group * results + part) * sources + first * scalars..][..channels * scalars];
                for panel in 0..unit_panels {
                    ask_for_next(number * unit_panels + panel);
                    let count = width.min(unit_pixels - panel * width);
                    let vectors = count.div_ceil(lanes);
                    let is_whole = count == vectors * lanes;
                    let to = first_result + part * pixels + first_pixel + panel * width;
                    // SAFETY: a panel has `channels` rows of whole vectors, the filters as many of `scalars`. Sums go to
                    // this panel's own pixels of the result, which no other unit writes, if they fill the vectors, and
                    // by way of a buffer that is large enough if not.
                    unsafe {
                        let to = result.get().add(to);
                        let (sums, sums_step) =
                            if is_whole { (to, pixels) } else { (part_sums.as_mut_ptr(), vectors * lanes) };
                        if !is_whole && first > 0 {
                            (kernels.rows)(to, pixels, sums, sums_step, count, scalars);
                        }
                        let (init, init_step) = if first > 0 {
                            (sums.cast_const(), sums_step)
                        } else {
                            (begin.as_ptr().add((group * results + part) * begin_step), begin_step)
                        };
                        kernels.tile(vectors, 1, scalars, 1)(&Tile {
                            x: filters.as_ptr(),
                            w: packed.as_ptr().add(panel * of_panel),
                            runs: &[Run { x: 0, w: 0 }],
                            count: channels,
                            pitch: 1,
                            row_step: 0,
                            x_step: scalars,
                            w_step: width,
                            init,
                            init_step,
                            sums,
                            sums_step,
                            fetch: false,
                        });
                        if !is_whole {
                            (kernels.rows)(sums, sums_step, to, pixels, count, scalars);
                        }
                    }
                }
            }
            first += channels;
        }
    });
}

/// The filters of all groups, packed part by part; kept where that pays.
pub(super) fn filters_in_parts(
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
pub(super) fn begin_of_rows(bias: Option<&[f32]>, width: usize) -> (Workspace, usize) {
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
