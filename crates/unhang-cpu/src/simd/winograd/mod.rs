//! Winograd's algorithm F(4×4, 3×3): dense three by three filters without stride, forward and backward-data. With a
//! stride of two it is F(5×5, 2×2), F(4×4, 3×3) or F(3×3, 4×4) over parities of rows and columns ([`parities`]).
//!
//! A tile of four by four results is computed from six by six pixels. That takes 36 products for each pair of channels,
//! where the definition has 144. Tiles, filters and sums are transformed with channels in vectors, whatever the layout.
//! Where pixels lie together they are transposed on the way in and out. Between the transforms stand 36 products of
//! matrices, tiles by source channels by result channels. Every sum runs over the source channels in order, so that
//! neither the blocks nor the threads change what comes out.
//!
//! What is not finite spoils its whole tile. A result that the definition makes not finite is never finite here (it
//! has a product with what makes it so). So an image without such a result is right, and any other is computed again
//! directly. A filter that is not finite is left to the direct path altogether.
//!
//! Of a dilated filter every phase of the image ([`phases`]) is computed as a separate image. Or all phases of an axis
//! are computed as one image, with zeros between them.

pub(crate) mod axis;
mod axis_filters;
pub(crate) mod axis_gradient;
mod filters;
pub(crate) mod gradient;
mod line_products;
mod lines;
mod parities;
mod phases;
mod plan;
pub(crate) mod strided_axis;
mod strided_lines;
#[cfg(test)]
pub(crate) mod strided_tests;
#[cfg(test)]
pub(crate) mod tests;
mod tiles;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use unhang_conv::{Direction, Problem};

use super::gather::FETCH_NUMBERS;
use super::geometry::Gather;
use super::source::prefetch_for_writing;
use super::work::Work;
use super::workspace::{Shared, Workspace};
use super::{cache, gather};
use crate::parallel::for_each_unit;
use phases::Phases;
use plan::{Cut, Kept, LINE, LINES, Segment, Shape, VECTORS, shape};
use tiles::{Images, Room};
use unhang_simd::even_parts;
use unhang_simd::{ELEMENTS, Kernels, Products, ResultTiles};

/// What is known of an ordinary problem that Winograd can compute within the bound on its workspace.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Outlook {
    /// Tiles of all images.
    pub tiles: usize,
    /// How many products the definition has for each one here.
    pub gain: f64,
}

/// The outlook of an ordinary problem, if it has one.
pub(crate) fn outlook(problem: &Problem, lanes: usize) -> Option<Outlook> {
    let shape = match problem.direction() {
        Direction::BackwardWeights => gradient::fitting(problem, lanes)?,
        _ => shape(problem, &Gather::new(problem), lanes).filter(|shape| shape.fits() && shape.is_exact_enough())?,
    };
    Some(Outlook { tiles: shape.all_tiles(), gain: shape.gain() })
}

/// What came out not finite, and has to be computed again by the definition.
struct Spoiled {
    /// Images with results that are not finite.
    images: Vec<AtomicBool>,
    /// Whether a filter is not finite.
    filters: AtomicBool,
}

impl Spoiled {
    fn new(batch: usize) -> Spoiled {
        Spoiled { images: (0..batch).map(|_| AtomicBool::new(false)).collect(), filters: AtomicBool::new(false) }
    }
}

/// Computes directly what is spoiled: all images where filters are, and else those that are themselves.
fn compute_again(gather: &Gather, work: Work<'_>, spoiled: &Spoiled) {
    if spoiled.filters.load(Ordering::Relaxed) {
        gather::compute(gather, work);
        return;
    }
    let Work { kernels, first, second, bias, result, threads } = work;
    let one = Gather { batch: 1, ..gather.clone() };
    let images = first.chunks(first.len() / gather.batch).zip(result.chunks_mut(result.len() / gather.batch));
    for ((first, result), spoiled) in images.zip(&spoiled.images) {
        if spoiled.load(Ordering::Relaxed) {
            gather::compute(&one, Work { kernels, first, second, bias, result, threads });
        }
    }
}

/// Where some results go.
struct Target<'a> {
    /// The image's first number of the first channel.
    place: usize,
    /// Rows of pixels, of all parities: their positions in the image, none if nobody wants them.
    rows: &'a [Option<usize>],
    /// Columns of pixels, likewise.
    columns: &'a [Option<usize>],
    channels: usize,
}

/// A computation under way.
struct WinogradWork<'a> {
    shape: Shape,
    plan: Cut,
    gather: &'a Gather,
    phases: Phases,
    kernels: &'static Kernels,
    source: &'a [f32],
    weight: &'a [f32],
    /// In whole vectors.
    bias: &'a [f32],
    result: Shared,
    /// Whether results are fetched while they are computed.
    fetch: bool,
    spoiled: Spoiled,
}

/// Computes it. `bias` goes along the result's channels.
///
/// # Panics
/// When a slice is not as long as the problem says, or the problem is not one that Winograd can compute.
pub(crate) fn compute(problem: &Problem, work: Work<'_>) {
    let Work { kernels, first: source, second: weight, bias, result, threads } = work;
    let lengths = problem.operand_shapes().map(|shape| shape.iter().product::<usize>());
    assert_eq!([source.len(), weight.len(), result.len()], lengths, "the operands' lengths");
    let gather = &Gather::new(problem);
    let shape = shape(problem, gather, kernels.lanes).expect("a dense filter without stride or with one of two");

    let mut vectors = Workspace::take(shape.vectors * shape.lanes);
    vectors.fill(0.0);
    if let Some(bias) = bias {
        vectors[..shape.results].copy_from_slice(bias);
    }
    let driver = WinogradWork {
        shape,
        plan: shape.plan(threads),
        gather,
        phases: Phases::new(gather, shape.tile),
        kernels,
        source,
        weight,
        bias: &vectors,
        fetch: result.len() > FETCH_NUMBERS,
        result: Shared(result.as_mut_ptr()),
        spoiled: Spoiled::new(gather.batch),
    };
    match driver.plan.kept {
        Kept::Filters => driver.by_tiles(threads),
        Kept::Tiles => driver.by_results(threads),
    }
    let spoiled = driver.spoiled;
    drop(vectors);
    compute_again(gather, Work { kernels, first: source, second: weight, bias, result, threads }, &spoiled);
}

impl WinogradWork<'_> {
    /// Transforms all filters, then computes block after block of tiles.
    fn by_tiles(&self, threads: usize) {
        let Shape { vectors, .. } = self.shape;
        let filters = self.all_filters(threads);
        if self.spoiled.filters.load(Ordering::Relaxed) {
            return;
        }
        let all = self.shape.all_tiles();
        for_each_unit(threads, all.div_ceil(self.plan.tiles), |unit| {
            let tiles = self.block(unit);
            let mut transformed = Workspace::take(ELEMENTS * self.shape.source_step(self.plan.tiles));
            self.transform_tiles(tiles.clone(), &mut transformed);
            for first in (0..vectors).step_by(self.plan.vectors) {
                let now = first..vectors.min(first + self.plan.vectors);
                self.multiply(tiles.clone(), &transformed, now, &filters[first * self.shape.panels()..]);
            }
        });
    }

    /// Transforms as many tiles as are kept at once, then a few vectors of filters at a time, each for all of them.
    fn by_results(&self, threads: usize) {
        let Shape { vectors, .. } = self.shape;
        let of_block = ELEMENTS * self.shape.source_step(self.plan.tiles);
        let all = self.shape.all_tiles().div_ceil(self.plan.tiles);
        let mut transformed = Workspace::take(self.plan.blocks * of_block);
        for first_block in (0..all).step_by(self.plan.blocks) {
            let blocks = self.plan.blocks.min(all - first_block);
            let to = Shared(transformed.as_mut_ptr());
            for_each_unit(threads, blocks, |unit| {
                // SAFETY: this block's part, which no other unit touches.
                let to = unsafe { std::slice::from_raw_parts_mut(to.get().add(unit * of_block), of_block) };
                self.transform_tiles(self.block(first_block + unit), to);
            });
            let transformed: &[f32] = &transformed;
            for_each_unit(threads, vectors.div_ceil(self.plan.vectors), |unit| {
                let first = unit * self.plan.vectors;
                let now = first..vectors.min(first + self.plan.vectors);
                let mut filters = Workspace::take(now.len() * self.shape.panels());
                for (vector, to) in now.clone().zip(filters.chunks_mut(self.shape.panels())) {
                    self.transform_filters(vector, to);
                }
                for (block, transformed) in transformed.chunks(of_block).enumerate().take(blocks) {
                    self.multiply(self.block(first_block + block), transformed, now.clone(), &filters);
                }
            });
        }
    }

    /// The tiles of a block.
    fn block(&self, unit: usize) -> Range<usize> {
        let first = unit * self.plan.tiles;
        first..self.shape.all_tiles().min(first + self.plan.tiles)
    }

    fn transform_filters(&self, vector: usize, to: &mut [f32]) {
        if !filters::transform(&self.shape, self.gather, self.kernels, self.weight, vector, to) {
            self.spoiled.filters.store(true, Ordering::Relaxed);
        }
    }

    /// All filters, kept from call to call where that pays. The number behind them says whether all are finite.
    fn all_filters(&self, threads: usize) -> Arc<Workspace> {
        let Shape { sources, results, vectors, parities, .. } = self.shape;
        let (panel, length) = (self.shape.panels(), self.shape.panels() * vectors + 1);
        let pack = |to: &mut [f32]| {
            let (panels, flag) = to.split_at_mut(length - 1);
            let panels = Shared(panels.as_mut_ptr());
            for_each_unit(threads, vectors, |vector| {
                // SAFETY: this vector's part, which no other unit touches.
                let to = unsafe { std::slice::from_raw_parts_mut(panels.get().add(vector * panel), panel) };
                self.transform_filters(vector, to);
            });
            flag[0] = f32::from(u8::from(self.spoiled.filters.load(Ordering::Relaxed)));
        };
        let pixels = self.gather.batch * self.gather.axes[0].result * self.gather.axes[1].result;
        if cache::is_worth_keeping(length, pixels) {
            let mut hasher = DefaultHasher::new();
            // Two sets of kernels may have vectors of the same length and round differently.
            std::ptr::from_ref(self.kernels).hash(&mut hasher);
            let taps: Vec<_> = (0..parities.count).flat_map(|parity| parities.places(parity)).collect();
            ("winograd", sources, results, self.gather.weight, self.shape.out_step, taps).hash(&mut hasher);
            let filters = cache::packed(self.kernels, self.weight, hasher.finish(), length, pack);
            if filters[length - 1] != 0.0 {
                self.spoiled.filters.store(true, Ordering::Relaxed);
            }
            filters
        } else {
            let mut filters = Workspace::take(length);
            pack(&mut filters);
            Arc::new(filters)
        }
    }

    /// Transforms the tiles of a block.
    fn transform_tiles(&self, tiles: Range<usize>, to: &mut [f32]) {
        let images = Images::source(&self.shape, &self.phases, self.gather, self.kernels, self.source);
        let room = Room {
            start: Shared(to.as_mut_ptr()),
            length: to.len(),
            group: self.shape.group(self.plan.tiles),
            vectors: self.shape.blocks,
            element_step: self.shape.source_step(self.plan.tiles),
        };
        for segment in self.shape.segments(tiles) {
            // SAFETY: the room is the slice that we borrow.
            unsafe { images.transform(&segment, 0..self.shape.blocks_of_parity(), room) };
        }
    }

    /// Multiplies a block of transformed tiles by some vectors of filters, and writes the results.
    fn multiply(&self, tiles: Range<usize>, transformed: &[f32], vectors: Range<usize>, filters: &[f32]) {
        let Shape { lanes, blocks, .. } = self.shape;
        let (panel, in_block) = (self.shape.panel(), self.plan.tiles);
        let (source_step, sums_step) = (self.shape.source_step(in_block), self.shape.sums_step(in_block));
        let (filter_step, group) = (self.shape.filter_step(), self.shape.group(in_block));
        let of_result = self.shape.result_parities();
        let panels = vectors.len() * of_result;
        assert!(panels * panel <= filters.len() && ELEMENTS * source_step <= transformed.len());
        let mut sums = Workspace::take(vectors.len() * self.shape.sums_of_vector(in_block));
        let mut now = Vec::with_capacity(panels);
        let segments: Vec<Segment> = self.shape.segments(tiles.clone()).collect();
        let places = if self.fetch { segments.len() * vectors.len() } else { 0 };
        for element in 0..ELEMENTS {
            for place in element * places / ELEMENTS..(element + 1) * places / ELEMENTS {
                self.fetch(&segments[place / vectors.len()], vectors.start + place % vectors.len());
            }
            let of_element = self.shape.blocks_of(element);
            let channels = self.shape.channels_of(&of_element);
            now.clear();
            for number in 0..panels {
                if self.shape.result_has(number % of_result, element) {
                    now.push(number);
                } else {
                    sums[(number * ELEMENTS + element) * sums_step..][..sums_step].fill(0.0);
                }
            }
            let w = |number: usize, element: usize| {
                number * panel + element * filter_step + of_element.start * lanes * lanes
            };
            for (pair, numbers) in now.chunks(VECTORS).enumerate() {
                let apart = numbers.last().map_or(0, |last| last - numbers[0]);
                // The next vectors of this element, or the first of the next.
                let next = now.get((pair + 1) * VECTORS).map_or_else(|| w(0, element + 1), |&next| w(next, element));
                let groups = (0..tiles.len()).step_by(group);
                let parts = groups.flat_map(|begin| {
                    let most = self.kernels.most_scalars(numbers.len(), 1);
                    let parts = even_parts(group.min(tiles.len() - begin), most);
                    parts.map(move |(tile, count)| (begin, tile, count))
                });
                for (begin, tile, count) in parts {
                    let x = element * source_step + ((begin * blocks + of_element.start * group) + tile) * lanes;
                    // SAFETY: the lengths were checked or made above: every element has `source_step` numbers of tiles
                    // and `sums_step` of sums in each vector, and every vector a panel of filters.
                    unsafe {
                        self.kernels.element_products(numbers.len(), count)(&Products {
                            x: transformed.as_ptr().add(x),
                            x_step: group * lanes,
                            channels,
                            w: filters.as_ptr().add(w(numbers[0], element)),
                            w_step: apart * panel,
                            next: filters.as_ptr().wrapping_add(next),
                            sums: sums
                                .as_mut_ptr()
                                .add((numbers[0] * ELEMENTS + element) * sums_step + (begin + tile) * lanes),
                            sums_step: apart * ELEMENTS * sums_step,
                        });
                    }
                }
            }
        }

        let mut room = Workspace::take(self.shape.results_room());
        for segment in &segments {
            let of_vectors = sums.chunks(self.shape.sums_of_vector(in_block));
            for (vector, sums) in vectors.clone().zip(of_vectors) {
                if !self.write(segment, vector, sums, &mut room) {
                    self.spoiled.images[self.phases.of(segment.image).0].store(true, Ordering::Relaxed);
                }
            }
        }
    }

    /// Where the results of a segment and one vector go; none if there are none: a phase may have a row or a column less than
    /// the first, and its last tiles none.
    fn target(&self, segment: &Segment, vector: usize) -> Option<Target<'_>> {
        let Shape { lanes, results, tile, out_step, .. } = self.shape;
        let [by_image, by_channel, ..] = self.gather.result;
        let (image, chains) = self.phases.of(segment.image);
        let part = |axis: usize, tiles: std::ops::Range<usize>| {
            let positions: &[Option<usize>] = &chains[axis].result;
            let end = positions.len().min(tiles.end * tile * out_step);
            positions.get(tiles.start * tile * out_step..end).filter(|part| !part.is_empty())
        };
        let rows = part(0, segment.row..segment.row + 1)?;
        let columns = part(1, segment.column..segment.column + segment.tiles)?;
        let place = image * by_image + vector * lanes * by_channel;
        Some(Target { place, rows, columns, channels: lanes.min(results - vector * lanes) })
    }

    /// Asks for the place of the results of a segment and one vector while they are computed.
    fn fetch(&self, segment: &Segment, vector: usize) {
        let Some(Target { place, rows, columns, channels }) = self.target(segment, vector) else { return };
        let [_, by_channel, by_row, by_column] = self.gather.result;
        let columns = || columns.iter().flatten();
        let (Some(&first), Some(&last)) = (columns().min(), columns().max()) else { return };
        for row in rows.iter().flatten() {
            let row = place + row * by_row;
            // What is contiguous is prefetched in lines.
            if self.shape.planes {
                for channel in 0..channels {
                    let to = self.result.get().wrapping_add(row + channel * by_channel + first);
                    prefetch_for_writing(to, last - first + 1);
                }
            } else {
                for column in columns() {
                    prefetch_for_writing(self.result.get().wrapping_add(row + column * by_column), channels);
                }
            }
        }
    }

    /// Transforms the sums of a segment and one vector of results, and writes them; says whether all are finite.
    fn write(&self, segment: &Segment, vector: usize, sums: &[f32], room: &mut [f32]) -> bool {
        let Shape { lanes, tile, out_step, parities, .. } = self.shape;
        let Some(Target { place, rows, columns, channels }) = self.target(segment, vector) else {
            return true;
        };
        let [_, _, by_row, by_column] = self.gather.result;
        let element_step = self.shape.sums_step(self.plan.tiles);
        let through_room = self.shape.goes_through_room();
        let [row_step, column_step] =
            if through_room { [segment.tiles * tile * out_step * lanes, lanes] } else { [by_row, by_column] };
        let first = |positions: &[Option<usize>]| positions[0].unwrap_or(0);
        let mut finite = true;
        for (number, sums) in sums.chunks(ELEMENTS * element_step).enumerate() {
            let [row, column] = if out_step == 1 { [0, 0] } else { parities.of(number) };
            // SAFETY: the sums have that many elements, each with all tiles of the block. Results go to the room, which
            // is large enough for a segment, or to the segment's own pixels and channels, which no other unit writes.
            unsafe {
                let direct = place + first(rows) * by_row + first(columns) * by_column;
                let to = if through_room { room.as_mut_ptr() } else { self.result.get().add(direct) };
                finite &= (self.kernels.result_tiles)(&ResultTiles {
                    from: sums.as_ptr().add(segment.at * lanes),
                    tile,
                    element_step,
                    bias: self.bias.as_ptr().add(vector * lanes),
                    to: to.wrapping_add(row * row_step + column * column_step),
                    row_step: row_step * out_step,
                    column_step: column_step * out_step,
                    rows: (rows.len() + out_step - 1 - row) / out_step,
                    columns: (columns.len() + out_step - 1 - column) / out_step,
                    channels: if through_room { lanes } else { channels },
                });
            }
        }
        for (row, position) in rows.iter().enumerate().filter(|_| through_room) {
            let Some(position) = *position else { continue };
            // SAFETY: from the room results are brought to just those pixels.
            unsafe {
                let to = self.result.get().add(place + position * by_row);
                self.write_line(room.as_ptr().add(row * row_step), columns, channels, to);
            }
        }
        finite
    }

    /// Writes a line of pixels, each with its channels together, to those columns of a row of the result.
    ///
    /// # Safety
    /// Both pointers are good for these pixels and this many channels, no more than a segment and a vector have.
    unsafe fn write_line(&self, from: *const f32, columns: &[Option<usize>], channels: usize, to: *mut f32) {
        let [_, by_channel, _, by_column] = self.gather.result;
        let (lanes, transpose) = (self.shape.lanes, self.kernels.transpose);
        let pixels = columns.iter().enumerate().filter_map(|(pixel, column)| Some((pixel, (*column)?)));
        let offsets = |step: usize| -> [usize; LINES] { std::array::from_fn(|channel| channel * step) };
        // SAFETY: the function's own conditions; there are lines for all channels, as long as a segment.
        unsafe {
            if !self.shape.planes {
                for (pixel, column) in pixels {
                    (self.kernels.row)(from.add(pixel * lanes), 1, channels, to.add(column * by_column));
                }
                return;
            }
            if self.shape.dilation[1] == 1 {
                let to = to.add(columns[0].unwrap_or(0));
                transpose(from, lanes, columns.len(), channels, to, offsets(by_channel).as_ptr());
                return;
            }
            let mut lines = [0.0f32; LINES * LINE];
            transpose(from, lanes, columns.len(), channels, lines.as_mut_ptr(), offsets(LINE).as_ptr());
            for (channel, line) in lines.chunks(LINE).enumerate().take(channels) {
                let to = to.add(channel * by_channel);
                pixels.clone().for_each(|(pixel, column)| *to.add(column) = line[pixel]);
            }
        }
    }
}
