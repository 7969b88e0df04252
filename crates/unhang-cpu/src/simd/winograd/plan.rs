//! How Winograd's work is cut into blocks, and what memory that takes.

use std::ops::Range;

use unhang_conv::Problem;

use super::super::geometry::Gather;
use super::super::workspace::memory_for;
use super::parities::Parities;
use super::phases;
use unhang_simd::even_parts;
use unhang_simd::{ELEMENTS, PATCH};

/// Pixels of a line at most: those of a segment with what its tiles overlap.
pub(super) const LINE: usize = 64;
/// Lines that are brought together at a time: channels of a vector.
pub(super) const LINES: usize = 16;
/// The vectors of a tile of sums.
pub(super) const VECTORS: usize = 2;

/// Taps of a strided filter on an axis.
const STRIDED_TAPS: std::ops::RangeInclusive<usize> = 3..=8;
/// Numbers of transformed tiles and sums that a block aims at: half of a second-level cache.
const BLOCK_NUMBERS: usize = 256 * 1024;
/// Numbers of sums that are written before the next vectors of result channels are summed.
const SUMS_NUMBERS: usize = 128 * 1024;
/// Tiles of a block where there are many channels: so often the filters are used.
const LEAST_TILES: usize = 42;
/// Tiles of a block at most.
const MOST_TILES: usize = 84;
/// Tiles of a block at most where all tiles are transformed at once.
const MOST_TILES_AT_ONCE: usize = 140;
/// Transformed filters that stay in a second-level cache until they are used.
const FILTER_NUMBERS: usize = 512 * 1024;
/// Vectors of result channels that are summed before they are written, and passes over all tiles, where tiles are kept.
const RESULT_CUTS: [(usize, usize); 16] = [
    (8, 1),
    (8, 2),
    (8, 3),
    (8, 4),
    (8, 6),
    (4, 1),
    (4, 2),
    (4, 3),
    (4, 4),
    (2, 1),
    (2, 2),
    (2, 3),
    (1, 1),
    (1, 2),
    (1, 3),
    (1, 4),
];
/// Neighbouring tiles that are packed and written at a time.
const SEGMENT: usize = 14;
/// Source channels that are packed at a time; with a stride rows of both parities are.
const CHANNELS: usize = 64;

/// Terms of a sum at most with two places of taps, whose tiles are the largest: with as many, errors are 4e-6 and of single results
/// 1.5e-5, where the suite allows 1e-5 and 3e-5. They grow with the root of the number of terms.
const MOST_TERMS_OF_TWO_TAPS: usize = 2048;

/// Sizes, in tiles and vectors.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    /// Images; each chain of a dilated one's phases counts.
    pub batch: usize,
    /// How far taps lie apart in rows and columns.
    pub dilation: [usize; 2],
    /// Source channels.
    pub sources: usize,
    /// Result channels.
    pub results: usize,
    /// Numbers in a vector.
    pub lanes: usize,
    /// The taps of parities of rows and columns.
    pub parities: Parities,
    /// Steps of the source and of the result from one position of a parity to the next: one, or the stride.
    pub in_step: usize,
    /// See `in_step`.
    pub out_step: usize,
    /// Whether all parities of the source's few channels lie in the same vectors.
    pub together: bool,
    /// Vectors of source channels, those of each parity behind those of the one before.
    pub blocks: usize,
    /// Vectors of result channels, each with all parities of the result.
    pub vectors: usize,
    /// Rows and columns of results in a tile.
    pub tile: usize,
    /// Rows and columns of tiles in an image.
    pub tiles: [usize; 2],
    /// Whether pixels lie together, so that channels have to be brought together first.
    pub planes: bool,
    /// Taps of a filter.
    pub filter_taps: usize,
    /// Pixels of all results.
    pub pixels: usize,
    /// Numbers that the workspace may have.
    memory: usize,
}

/// What is transformed once and kept for the whole computation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kept {
    /// The filters: work is shared out by blocks of tiles.
    Filters,
    /// The tiles: work is shared out by vectors of result channels.
    Tiles,
}

/// How the work is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cut {
    /// What is transformed once.
    pub kept: Kept,
    /// Tiles of a block.
    pub tiles: usize,
    /// Blocks of tiles that are kept at once; the filters are transformed again for the next of them.
    pub blocks: usize,
    /// Vectors of result channels that are summed before they are written.
    pub vectors: usize,
}

/// Tiles beside each other.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Segment {
    /// The image.
    pub image: usize,
    /// The row of tiles.
    pub row: usize,
    /// The first tile in it.
    pub column: usize,
    /// How many.
    pub tiles: usize,
    /// The first tile's place in the block.
    pub at: usize,
}

/// Steps of this many numbers that do not fall into the same sets of a cache: an odd number of cache lines.
pub(super) fn odd_lines(numbers: usize) -> usize {
    numbers.div_ceil(16) / 2 * 32 + 16
}

/// The shape of a forward or backward-data problem without groups. It has three by three taps without stride, or a
/// square filter with a stride of two and without dilation; otherwise `None`.
pub(super) fn shape(problem: &Problem, gather: &Gather, lanes: usize) -> Option<Shape> {
    let [rows, columns] = problem.kernel();
    let strided = problem.stride() == [2, 2] && problem.dilation() == [1, 1] && STRIDED_TAPS.contains(&rows);
    let dense = problem.stride() == [1, 1] && rows == 3;
    let possible = (strided || dense) && rows == columns && problem.groups() == 1;
    possible.then(|| Parities::new(gather)).flatten().map(|parities| Shape::new(gather, parities, lanes))
}

impl Shape {
    /// From a gather that has parities.
    pub(crate) fn new(gather: &Gather, parities: Parities, lanes: usize) -> Shape {
        let [rows, columns] = &gather.axes;
        let (sources, results) = (gather.source_channels, gather.result_channels);
        let pixels = sources * rows.source * columns.source + results * rows.result * columns.result;
        let dilation = gather.axes.each_ref().map(phases::dilation);
        let (tile, in_step, out_step) = (parities.tile(), rows.in_step, rows.out_step);
        let extents = gather.axes.each_ref().map(|axis| phases::extent(axis, tile));
        let together = in_step > 1 && in_step * in_step * sources <= LINES;
        Shape {
            batch: gather.batch * extents[0].chains * extents[1].chains,
            dilation,
            sources,
            results,
            lanes,
            parities,
            in_step,
            out_step,
            together,
            blocks: if together { LINES.div_ceil(lanes) } else { in_step * in_step * sources.div_ceil(lanes) },
            vectors: results.div_ceil(lanes),
            tile,
            tiles: extents.map(|extent| extent.tiles),
            planes: gather.result[1] != 1,
            filter_taps: gather.weight_group / (sources * results),
            pixels: gather.batch * rows.result * columns.result,
            memory: memory_for(gather.batch * pixels + gather.weight_group),
        }
    }

    /// How many products the definition has for each one here, those of tiles that are not full counted.
    pub(crate) fn gain(&self) -> f64 {
        let products = |element: usize| {
            let of_results = (0..self.result_parities()).filter(|&parity| self.result_has(parity, element)).count();
            self.channels_of(&self.blocks_of(element)) * of_results
        };
        let all = (0..ELEMENTS).map(products).sum::<usize>() * self.all_tiles();
        (self.filter_taps * self.sources * self.pixels / self.result_parities()) as f64 / all as f64
    }

    /// Tiles of all images.
    pub(crate) fn all_tiles(&self) -> usize {
        self.batch * self.tiles[0] * self.tiles[1]
    }

    /// Parities of the source that have separate vectors.
    pub(crate) fn source_parities(&self) -> usize {
        if self.together { 1 } else { self.in_step * self.in_step }
    }

    /// Vectors of source channels of one parity, or of all that lie together.
    pub(crate) fn blocks_of_parity(&self) -> usize {
        self.blocks / self.source_parities()
    }

    /// From the first source channel of one parity to the first of the next.
    pub(crate) fn parity_channels(&self) -> usize {
        if self.together { self.sources } else { self.blocks_of_parity() * self.lanes }
    }

    /// Parities of the result.
    pub(crate) fn result_parities(&self) -> usize {
        self.out_step * self.out_step
    }

    /// Vectors of source channels that have products of an element, which are neighbours.
    pub(crate) fn blocks_of(&self, element: usize) -> Range<usize> {
        let of_parity = self.blocks_of_parity();
        let has = |parity: &usize| self.source_parities() == 1 || self.parities.has(*parity, element);
        let parities = 0..self.source_parities();
        let first = parities.clone().find(has).unwrap_or(0);
        let end = parities.rev().find(has).map_or(first, |last| last + 1);
        first * of_parity..end * of_parity
    }

    /// Whether a parity of the result has products of an element.
    pub(crate) fn result_has(&self, parity: usize, element: usize) -> bool {
        self.out_step == 1 || self.parities.has(parity, element)
    }

    /// Source channels of some vectors: the last one need not be full.
    pub(crate) fn channels_of(&self, blocks: &Range<usize>) -> usize {
        let of_last = if self.together { self.in_step * self.in_step * self.sources } else { self.sources };
        blocks.len() * self.lanes - (self.blocks_of_parity() * self.lanes - of_last)
    }

    /// Numbers of one transformed vector of filters, of one parity of the result.
    pub(crate) fn panel(&self) -> usize {
        ELEMENTS * self.filter_step()
    }

    /// Numbers of one transformed vector of filters, of all parities of the result.
    pub(crate) fn panels(&self) -> usize {
        self.result_parities() * self.panel()
    }

    /// From the transformed filters of one parity, of the source or of the result, to the next's.
    pub(crate) fn parity_step(&self) -> usize {
        if self.out_step == 1 { self.parity_channels() * self.lanes } else { self.panel() }
    }

    /// From one element of a transformed vector of filters to the next.
    pub(crate) fn filter_step(&self) -> usize {
        odd_lines(self.blocks * self.lanes * self.lanes)
    }

    /// Tiles of a group, in blocks of this many: those that the micro-kernel takes at a time lie together.
    pub(crate) fn group(&self, tiles: usize) -> usize {
        // As many as the registers hold with two vectors.
        let most = if self.lanes == 16 { 14 } else { 6 };
        tiles.div_ceil(tiles.div_ceil(most))
    }

    /// From one element of transformed tiles to the next, in blocks of this many tiles.
    pub(crate) fn source_step(&self, tiles: usize) -> usize {
        odd_lines(self.blocks * tiles.next_multiple_of(self.group(tiles)) * self.lanes)
    }

    /// From one element of sums to the next, in blocks of this many tiles.
    pub(crate) fn sums_step(&self, tiles: usize) -> usize {
        odd_lines(tiles * self.lanes)
    }

    /// Sums of a vector of result channels in blocks of this many tiles, of all parities of the result.
    pub(crate) fn sums_of_vector(&self, tiles: usize) -> usize {
        self.result_parities() * ELEMENTS * self.sums_step(tiles)
    }

    /// From one packed row or column of a parity to the next.
    pub(crate) fn packed_step(&self) -> usize {
        if self.together { 1 } else { self.in_step }
    }

    /// Vectors of source channels that are packed at a time.
    pub(crate) fn packed_blocks(&self) -> usize {
        self.blocks_of_parity().min(CHANNELS / self.packed_step() / self.lanes)
    }

    /// Neighbouring tiles at most.
    pub(crate) fn segment(&self) -> usize {
        self.tiles[1].min(SEGMENT).min((LINE / self.packed_step() + self.tile - PATCH) / self.tile)
    }

    /// Numbers of packed pixels.
    pub(crate) fn packed(&self) -> usize {
        let pixels = self.tile * self.segment() + PATCH - self.tile;
        PATCH * pixels * self.source_parities() * self.packed_blocks() * self.lanes
    }

    /// Whether results are brought to their places from a separate room: to planes, or with a dilation.
    pub(crate) fn goes_through_room(&self) -> bool {
        self.planes || self.dilation != [1, 1]
    }

    /// Numbers of results that are still to be brought to their places.
    pub(crate) fn results_room(&self) -> usize {
        if self.goes_through_room() {
            self.tile * self.tile * self.segment() * self.result_parities() * self.lanes
        } else {
            0
        }
    }

    /// Numbers of filters that are brought together before they are transformed.
    pub(crate) fn filters_room(&self) -> usize {
        self.parities.count * self.parities.taps.pow(2) * self.packed_blocks() * self.lanes * self.lanes
    }

    /// Workspace with this many threads.
    fn workspace(&self, plan: &Cut, threads: usize) -> usize {
        let tiles = ELEMENTS * self.source_step(plan.tiles);
        let sums = plan.vectors * self.sums_of_vector(plan.tiles) + self.results_room();
        let bias = self.vectors * self.lanes;
        match plan.kept {
            // Filters are transformed before any tile is.
            Kept::Filters => {
                let of_thread = (tiles + sums + self.packed()).max(self.filters_room());
                bias + self.vectors * self.panels() + 16 + threads * of_thread
            }
            Kept::Tiles => {
                let of_thread = (plan.vectors * self.panels() + sums + self.filters_room()).max(self.packed());
                bias + plan.blocks * tiles + threads * of_thread
            }
        }
    }

    /// Vectors of result channels at most that are summed before they are written, where tiles are kept: so few that their
    /// filters stay in a second-level cache, and more where not even the fewest do.
    fn most_vectors(&self, least: usize, threads: usize) -> usize {
        let most = if least * self.panels() > FILTER_NUMBERS {
            8
        } else if 4 * self.panels() > FILTER_NUMBERS {
            least
        } else {
            4
        };
        most.min(self.vectors.div_ceil(threads)).max(least)
    }

    /// The best plan whose workspace is within its bound; the one with the least if all are larger.
    pub(crate) fn plan(&self, threads: usize) -> Cut {
        let all = self.all_tiles();
        // Blocks are even, and whole tiles of the micro-kernel as far as that goes.
        let even = |most: usize| even_parts(all, most).map(|(_, tiles)| tiles).max().unwrap_or(1);
        let aim = BLOCK_NUMBERS / (ELEMENTS * self.lanes * (self.blocks + self.result_parities() * self.vectors));
        let aim = aim.clamp(LEAST_TILES, MOST_TILES);
        // The micro-kernel takes two vectors, which may be two parities of one.
        let least = if self.out_step == 1 { 2 } else { 1 };
        let by_tiles = [aim, 28, 14].map(|most| {
            let tiles = even(most.min(all.div_ceil(threads)));
            let vectors = SUMS_NUMBERS / self.sums_of_vector(tiles) / 2 * 2;
            Cut { kept: Kept::Filters, tiles, blocks: 1, vectors: vectors.max(least).min(self.vectors) }
        });
        let mut by_results = RESULT_CUTS.map(|(vectors, passes)| {
            let at_once = all.div_ceil(passes);
            let blocks = at_once.div_ceil(MOST_TILES_AT_ONCE);
            let vectors = vectors.min(self.most_vectors(least, threads)).min(self.vectors);
            (passes, Cut { kept: Kept::Tiles, tiles: at_once.div_ceil(blocks), blocks, vectors })
        });
        // All tiles are read once for each few vectors, and all filters are transformed and read once for each pass.
        let (of_tiles, of_filters) = (all * self.blocks, self.vectors * self.panels() / ELEMENTS);
        by_results.sort_by_key(|(passes, cut)| {
            of_tiles * self.lanes * self.vectors.div_ceil(cut.vectors) + 2 * passes * of_filters
        });
        let by_results = by_results.map(|(_, cut)| cut);
        // Where every filter is used for few tiles only, it is best used as soon as it is transformed.
        let few = all.div_ceil(aim) < 2 * threads;
        let (first, then): (&[Cut], &[Cut]) = if few { (&by_results, &by_tiles) } else { (&by_tiles, &by_results) };
        let plans = || first.iter().chain(then);
        let fitting = plans().find(|plan| self.workspace(plan, threads) <= self.memory);
        let smallest = || plans().min_by_key(|plan| self.workspace(plan, threads));
        *fitting.or_else(smallest).expect("there are plans")
    }

    /// Whether the workspace of one thread is within its bound.
    pub(crate) fn fits(&self) -> bool {
        self.workspace(&self.plan(1), 1) <= self.memory
    }

    /// Whether errors stay far below what is allowed.
    pub(crate) fn is_exact_enough(&self) -> bool {
        self.parities.taps > 2 || self.channels_of(&(0..self.blocks)) <= MOST_TERMS_OF_TWO_TAPS
    }

    /// From one element of the gradient's tiles to the next, in blocks of this many tiles and vectors.
    pub(crate) fn gradient_step(&self, tiles: usize, vectors: usize) -> usize {
        odd_lines(vectors * tiles * self.lanes)
    }

    /// From one element of a weight gradient's sums to the next, for this many vectors of source and result channels.
    pub(crate) fn weight_step(&self, sources: usize, vectors: usize) -> usize {
        odd_lines(sources * self.lanes * vectors * self.lanes)
    }

    /// Vectors of source and of result channels whose sums are transformed at a time. A unit has `blocks` blocks of
    /// tiles and `vectors` vectors of result channels.
    pub(crate) fn weight_part(&self, blocks: usize, vectors: usize) -> [usize; 2] {
        if blocks == 1 && self.parities.count == 1 { [1, vectors.min(2)] } else { [self.blocks, vectors] }
    }

    /// Workspace of a weight gradient.
    fn gradient_workspace(&self, tiles: usize, vectors: usize) -> usize {
        let [of_sources, of_results] = self.weight_part(self.all_tiles().div_ceil(tiles), vectors);
        let sums = self.weight_step(of_sources, of_results);
        let steps = self.source_step(tiles) + self.gradient_step(tiles, vectors) + sums;
        ELEMENTS * steps + self.packed() + self.weights_room(of_sources)
    }

    /// Numbers of a weight gradient that are still to be brought to their filters, with this many vectors of source channels.
    pub(crate) fn weights_room(&self, sources: usize) -> usize {
        self.filter_taps * (sources * self.lanes).min(self.sources) * self.lanes
    }

    /// Tiles of a block and vectors of result channels at a time for a weight gradient, the best first. Threads have no
    /// say in it, because what a block sums up is rounded.
    fn gradient_plans(&self) -> impl Iterator<Item = (usize, usize)> {
        let all = self.all_tiles();
        let aim = BLOCK_NUMBERS / (ELEMENTS * self.lanes * (self.blocks + self.vectors));
        let aim = aim.clamp(LEAST_TILES, MOST_TILES);
        let even = move |most: usize| all.div_ceil(all.div_ceil(most));
        let vectors = self.vectors;
        let whole = [aim, 28].map(|most| (even(most), vectors));
        // All tiles at once are transformed once, and sums of few channels at a time are not added to later ones.
        // Otherwise the source is transformed again for the next vectors.
        let at_once = [vectors, 4, 2, 1].map(|some| (all, some)).into_iter().filter(move |_| all <= MOST_TILES_AT_ONCE);
        let cut = [(aim, 4), (aim, 2), (28, 2), (28, 1), (14, 1)].map(|(most, some)| (even(most), some));
        at_once.chain(whole).chain(cut).map(move |(tiles, some)| (tiles, some.min(vectors)))
    }

    /// The best plan of a weight gradient whose workspace is within its bound.
    pub(crate) fn gradient_plan(&self) -> Option<(usize, usize)> {
        self.gradient_plans().find(|&(tiles, vectors)| self.gradient_workspace(tiles, vectors) <= self.memory)
    }

    /// The plan of a weight gradient with the least workspace.
    pub(crate) fn smallest_gradient_plan(&self) -> (usize, usize) {
        let smallest = self.gradient_plans().min_by_key(|&(tiles, vectors)| self.gradient_workspace(tiles, vectors));
        smallest.expect("there are plans")
    }

    /// The segments of some tiles, which are numbered through images, rows and columns.
    pub(crate) fn segments(&self, tiles: Range<usize>) -> impl Iterator<Item = Segment> {
        let [rows, columns] = self.tiles;
        let most = self.segment();
        let mut next = tiles.start;
        std::iter::from_fn(move || {
            (next < tiles.end).then(|| {
                let column = next % columns;
                let count = most.min(columns - column).min(tiles.end - next);
                let row = next / columns;
                let segment =
                    Segment { image: row / rows, row: row % rows, column, tiles: count, at: next - tiles.start };
                next += count;
                segment
            })
        })
    }
}
