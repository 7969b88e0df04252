//! The weight gradient by F(3×3, 4×4), with a stride of two by F(2×2, 5×5) to F(4×4, 3×3): the same six points, with tiles of
//! the result's gradient as filters.
//!
//! For each of the 36 elements it is a product of two matrices, source channels × tiles by tiles × result channels.
//! Sums over a block of tiles are added to those of the blocks before, in order. Threads share out the result channels,
//! so that they change nothing. What is not finite is left to the other path as a whole.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use unhang_conv::{Direction, Problem, Specification};

use super::super::geometry::{Gather, Strides, strides};
use super::super::weights;
use super::super::work::Work;
use super::super::workspace::{Shared, Workspace};
use super::phases::Phases;
use super::plan::{Segment, Shape, VECTORS, shape};
use super::tiles::{Images, Room};
use crate::parallel::for_each_unit;
use unhang_simd::even_parts;
use unhang_simd::{ELEMENTS, GradientProducts, Kernels, MOST_PLACES, WeightTiles};

/// The forward computation of a problem, whose tiles these are.
fn forward(problem: &Problem) -> Option<Problem> {
    Problem::new(Specification { direction: Direction::Forward, ..problem.specification() }).ok()
}

/// The shape of an ordinary weight gradient, if it is one that Winograd can compute within the bound on its
/// workspace.
pub(crate) fn fitting(problem: &Problem, lanes: usize) -> Option<Shape> {
    let forward = forward(problem)?;
    shape(&forward, &Gather::new(&forward), lanes).filter(|shape| shape.gradient_plan().is_some())
}

/// A computation under way.
struct GradientWork<'a> {
    shape: &'a Shape,
    /// Tiles of a block.
    tiles: usize,
    kernels: &'static Kernels,
    x: Images<'a>,
    dy: Images<'a>,
    /// Distances in the gradient.
    weight: Strides,
}

/// Some sums.
struct Part {
    /// Vectors of source channels.
    sources: Range<usize>,
    /// Vectors of result channels, of those of a unit.
    vectors: Range<usize>,
    /// From one element to the next.
    step: usize,
    /// From one source channel to the next.
    row_step: usize,
}

/// Computes it.
///
/// # Panics
/// When a slice is not as long as the problem says, or the problem is not one that Winograd can compute.
pub(crate) fn compute(problem: &Problem, work: Work<'_>) {
    let Work { kernels, first: x, second: dy, result, threads, .. } = work;
    let lengths = problem.operand_shapes().map(|shape| shape.iter().product::<usize>());
    assert_eq!([x.len(), dy.len(), result.len()], lengths, "the operands' lengths");
    let forward = forward(problem).expect("its forward computation");
    let gather = Gather::new(&forward);
    let shape = &shape(&forward, &gather, kernels.lanes).expect("a dense filter without stride or with one of two");
    let (tiles, chunk) = shape.gradient_plan().unwrap_or_else(|| shape.smallest_gradient_plan());
    // Every thread has its own vectors. Where all tiles are one block the source is transformed once for all of them;
    // else each transforms it for itself: waiting for each other costs more.
    let chunk = chunk.min(shape.vectors.div_ceil(threads));
    let phases = Phases::new(&gather, shape.tile);
    let x_images = Images::source(shape, &phases, &gather, kernels, x);
    let dy_images = Images::gradient(shape, &phases, &gather, kernels, dy);
    let weight = strides(problem.weight_shape(), problem.layout());
    let driver = GradientWork { shape, tiles, kernels, x: x_images, dy: dy_images, weight };

    let spoiled = AtomicBool::new(false);
    let blocks = shape.all_tiles().div_ceil(tiles);
    let to = Shared(result.as_mut_ptr());
    let of_source = ELEMENTS * shape.source_step(tiles);
    let mut common_tiles = Workspace::take(if blocks == 1 { of_source } else { 0 });
    if blocks == 1 {
        let room = driver.source_room(&mut common_tiles);
        let segments: Vec<Segment> = shape.segments(driver.block(0)).collect();
        // SAFETY: the room is the slice that we borrow, and every unit has its own tiles.
        for_each_unit(threads, segments.len(), |unit| unsafe {
            driver.x.transform(&segments[unit], 0..shape.blocks_of_parity(), room);
        });
    }
    let common_tiles: &[f32] = &common_tiles;
    // What is summed up before it is transformed: sums of a single block of tiles need not be kept, so that few at a time
    // stay in the cache.
    let [of_sources, of_results] = shape.weight_part(blocks, chunk);
    for_each_unit(threads, shape.vectors.div_ceil(chunk), |unit| {
        let vectors = unit * chunk..shape.vectors.min((unit + 1) * chunk);
        let mut x_tiles = Workspace::take(if blocks == 1 { 0 } else { of_source });
        let mut dy_tiles = Workspace::take(ELEMENTS * shape.gradient_step(tiles, chunk));
        let mut sums = Workspace::take(ELEMENTS * shape.weight_step(of_sources, of_results));
        let mut taps = Workspace::take(shape.weights_room(of_sources));
        if blocks == 1 {
            driver.transform_gradient(0, vectors.clone(), &mut dy_tiles, chunk);
        }
        for first in (0..vectors.len()).step_by(of_results) {
            for first_source in (0..shape.blocks).step_by(of_sources) {
                let part = Part {
                    sources: first_source..shape.blocks.min(first_source + of_sources),
                    vectors: first..vectors.len().min(first + of_results),
                    step: shape.weight_step(of_sources, of_results),
                    row_step: of_results * shape.lanes,
                };
                for block in 0..blocks {
                    if blocks > 1 {
                        driver.transform_source(block, &mut x_tiles);
                        driver.transform_gradient(block, vectors.clone(), &mut dy_tiles, chunk);
                    }
                    let x_tiles = if blocks == 1 { common_tiles } else { &x_tiles };
                    driver.multiply(block, &part, x_tiles, &dy_tiles, &mut sums, chunk);
                }
                // SAFETY: a vector's filters are written by no other unit.
                if !unsafe { driver.write(&part, vectors.start, &sums, &mut taps, to) } {
                    spoiled.store(true, Ordering::Relaxed);
                }
            }
        }
    });
    if spoiled.into_inner() {
        weights::compute(problem, Work { kernels, first: x, second: dy, bias: None, result, threads });
    }
}

impl GradientWork<'_> {
    fn block(&self, block: usize) -> Range<usize> {
        block * self.tiles..self.shape.all_tiles().min((block + 1) * self.tiles)
    }

    /// The room for tiles with this many vectors of channels. The micro-kernel goes along the tiles: all of them are one group.
    fn room(&self, to: &mut [f32], vectors: usize, element_step: usize) -> Room {
        Room { start: Shared(to.as_mut_ptr()), length: to.len(), group: self.tiles, vectors, element_step }
    }

    /// The room for tiles of the source.
    fn source_room(&self, to: &mut [f32]) -> Room {
        self.room(to, self.shape.blocks, self.shape.source_step(self.tiles))
    }

    /// Transforms the source's tiles of a block.
    fn transform_source(&self, block: usize, x_tiles: &mut [f32]) {
        let room = self.source_room(x_tiles);
        for segment in self.shape.segments(self.block(block)) {
            // SAFETY: the room is the slice that we borrow.
            unsafe { self.x.transform(&segment, 0..self.shape.blocks_of_parity(), room) };
        }
    }

    /// Transforms the gradient's tiles of a block, those vectors of channels.
    fn transform_gradient(&self, block: usize, vectors: Range<usize>, dy_tiles: &mut [f32], chunk: usize) {
        let room = self.room(dy_tiles, chunk, self.shape.gradient_step(self.tiles, chunk));
        for segment in self.shape.segments(self.block(block)) {
            // SAFETY: the room is the slice that we borrow.
            unsafe { self.dy.transform(&segment, vectors.clone(), room) };
        }
    }

    /// Sums up the products of a block for one part, after those of the blocks before.
    fn multiply(&self, block: usize, part: &Part, x_tiles: &[f32], dy_tiles: &[f32], sums: &mut [f32], chunk: usize) {
        let lanes = self.shape.lanes;
        let tiles = self.block(block).len();
        let (x_step, dy_step) = (self.shape.source_step(self.tiles), self.shape.gradient_step(self.tiles, chunk));
        assert!(ELEMENTS * x_step <= x_tiles.len() && ELEMENTS * dy_step <= dy_tiles.len());
        assert!(ELEMENTS * part.step <= sums.len() && part.vectors.end <= chunk);
        for element in 0..ELEMENTS {
            let used = self.shape.blocks_of(element);
            for of_sources in part.sources.clone() {
                let first_row = (of_sources - part.sources.start) * lanes;
                if !used.contains(&of_sources) {
                    sums[element * part.step + first_row * part.row_step..][..lanes * part.row_step].fill(0.0);
                    continue;
                }
                for first in part.vectors.clone().step_by(VECTORS) {
                    let now = VECTORS.min(part.vectors.end - first);
                    for (channel, count) in even_parts(lanes, self.kernels.most_scalars(now, 1)) {
                        let x = element * x_step + of_sources * self.tiles * lanes + channel;
                        let w = element * dy_step + first * self.tiles * lanes;
                        let column = (first - part.vectors.start) * lanes;
                        let to = element * part.step + (first_row + channel) * part.row_step + column;
                        // SAFETY: the lengths were checked: every element has `x_step` and `dy_step` numbers of tiles,
                        // and `step` of sums.
                        unsafe {
                            self.kernels.gradient_products(now, count)(&GradientProducts {
                                x: x_tiles.as_ptr().add(x),
                                w: dy_tiles.as_ptr().add(w),
                                w_step: self.tiles * lanes,
                                tiles,
                                add: block > 0,
                                sums: sums.as_mut_ptr().add(to),
                                sums_step: part.row_step,
                            });
                        }
                    }
                }
            }
        }
    }

    /// Transforms the sums of a part and writes the gradient; says whether all of it is finite.
    ///
    /// # Safety
    /// `to` is the gradient, and nobody else writes these vectors' filters meanwhile.
    unsafe fn write(&self, part: &Part, first: usize, sums: &[f32], taps: &mut [f32], to: Shared) -> bool {
        let Shape { lanes, sources, results, parities, filter_taps, .. } = *self.shape;
        let [by_result, by_channel, by_row, by_column] = self.weight;
        // A part has all parities of its channels, or there is but one.
        let whole = part.sources.len() == self.shape.blocks;
        let first_channel = if whole { 0 } else { part.sources.start * lanes };
        let channels = if whole { sources } else { (part.sources.len() * lanes).min(sources - first_channel) };
        // Either all taps of a channel lie together or all channels of a tap.
        let (runs, length, between) =
            if by_channel == 1 { (filter_taps, channels, by_column) } else { (1, channels * filter_taps, 0) };
        let by_tap = if by_channel == 1 { channels } else { 1 };
        assert!(runs * length * lanes <= taps.len() && ELEMENTS * part.step <= sums.len());
        let mut finite = true;
        for vector in part.vectors.clone() {
            let column = (vector - part.vectors.start) * lanes;
            for parity in 0..parities.count {
                let mut places = [None; MOST_PLACES * MOST_PLACES];
                for (place, tap) in places.iter_mut().zip(parities.places(parity)) {
                    let number = |[row, column]: [usize; 2]| (row * by_row + column * by_column) / by_column;
                    *place = tap.map(|tap| number(tap) * by_tap * lanes);
                }
                // SAFETY: the sums have this many channels of each parity in each element, and there is room for all taps of
                // each channel.
                finite &= unsafe {
                    (self.kernels.weight_tiles)(&WeightTiles {
                        from: sums.as_ptr().add(parity * self.shape.parity_channels() * part.row_step + column),
                        channel_step: part.row_step,
                        element_step: part.step,
                        channels,
                        taps: parities.taps,
                        to: taps.as_mut_ptr(),
                        to_step: if by_channel == 1 { lanes } else { filter_taps * lanes },
                        places,
                    })
                };
            }
            let first_result = (first + vector) * lanes;
            let wanted = lanes.min(results - first_result);
            let offsets: [usize; 16] = std::array::from_fn(|result| result * by_result);
            for run in 0..runs {
                let place = first_result * by_result + first_channel * by_channel + run * between;
                // SAFETY: the function's own condition: these filters' numbers, of which the last ends with the gradient.
                unsafe {
                    let (from, to) = (taps.as_ptr().add(run * length * lanes), to.get().add(place));
                    (self.kernels.transpose)(from, lanes, length, wanted, to, offsets.as_ptr());
                }
            }
        }
        finite
    }
}
