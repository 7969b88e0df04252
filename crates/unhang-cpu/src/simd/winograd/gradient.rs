//! The weight gradient by F(3×3, 4×4): the same six points, with tiles of the result's gradient as filters.
//!
//! For each of the 36 elements it is a product of two matrices, source channels × tiles by tiles × result channels.
//! Sums over a block of tiles are added to those of the blocks before, in order; threads share out the result channels,
//! so that they change nothing. What is not finite is left to the other path as a whole.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use unhang_conv::{Direction, Problem, Specification};

use super::super::geometry::{Gather, even_parts, strides};
use super::super::kernels::{ELEMENTS, GradientProducts, Kernels, WeightTiles};
use super::super::weights;
use super::super::work::Work;
use super::super::workspace::{Shared, Workspace};
use super::VECTORS;
use super::plan::{Segment, Shape};
use super::tiles::{Images, Room};
use crate::parallel::for_each_unit;

/// The forward computation of a problem, whose tiles these are.
fn forward(problem: &Problem) -> Option<Problem> {
    Problem::new(Specification { direction: Direction::Forward, ..problem.specification() }).ok()
}

/// Whether an ordinary weight gradient is a dense one of three by three taps whose workspace is no larger than its
/// operands.
pub fn is_possible(problem: &Problem, lanes: usize) -> bool {
    super::is_dense(problem)
        && forward(problem).is_some_and(|forward| Shape::new(&Gather::new(&forward), lanes).gradient_plan().is_some())
}

/// A computation under way.
struct GradientWork<'a> {
    shape: &'a Shape,
    /// Tiles of a block.
    tiles: usize,
    kernels: &'static Kernels,
    x: Images<'a>,
    dy: Images<'a>,
}

/// Computes it.
///
/// # Panics
/// When a slice is not as long as the problem says, or the problem is not one of three by three dense taps.
pub fn compute(problem: &Problem, work: Work<'_>) {
    let Work { kernels, first: x, second: dy, result, threads, .. } = work;
    assert!(super::is_dense(problem));
    let lengths = problem.operand_shapes().map(|shape| shape.iter().product::<usize>());
    assert_eq!([x.len(), dy.len(), result.len()], lengths, "the operands' lengths");
    let gather = Gather::new(&forward(problem).expect("its forward computation"));
    let shape = &Shape::new(&gather, kernels.lanes);
    let (tiles, chunk) = shape.gradient_plan().unwrap_or_else(|| shape.smallest_gradient_plan());
    // Every thread has vectors of its own. Where all tiles are one block the source is transformed once for all of them;
    // else each transforms it for itself: waiting for each other costs more.
    let chunk = chunk.min(shape.vectors.div_ceil(threads));
    let x_images = Images::source(shape, &gather, kernels, x);
    let dy_images = Images::gradient(shape, &gather, kernels, dy);
    let driver = GradientWork { shape, tiles, kernels, x: x_images, dy: dy_images };

    let lanes = shape.lanes;
    let spoiled = AtomicBool::new(false);
    let blocks = shape.all_tiles().div_ceil(tiles);
    let weight = strides(problem.weight_shape(), problem.layout());
    let to = Shared(result.as_mut_ptr());
    let of_source = ELEMENTS * shape.source_step(tiles);
    let mut common_tiles = Workspace::take(if blocks == 1 { of_source } else { 0 });
    if blocks == 1 {
        let room = driver.source_room(&mut common_tiles);
        let segments: Vec<Segment> = shape.segments(driver.block(0)).collect();
        // SAFETY: the room is the slice that we borrow, and every unit has tiles of its own.
        for_each_unit(threads, segments.len(), |unit| unsafe {
            driver.x.transform(&segments[unit], 0..shape.blocks, room);
        });
    }
    let common_tiles: &[f32] = &common_tiles;
    for_each_unit(threads, shape.vectors.div_ceil(chunk), |unit| {
        let vectors = unit * chunk..shape.vectors.min((unit + 1) * chunk);
        let mut x_tiles = Workspace::take(if blocks == 1 { 0 } else { of_source });
        let mut dy_tiles = Workspace::take(ELEMENTS * shape.gradient_step(tiles, chunk));
        let mut sums = Workspace::take(ELEMENTS * shape.weight_step(chunk));
        sums.fill(0.0);
        for block in 0..blocks {
            if blocks > 1 {
                driver.transform_source(block, &mut x_tiles);
            }
            driver.transform_gradient(block, vectors.clone(), &mut dy_tiles, chunk);
            let x_tiles = if blocks == 1 { common_tiles } else { &x_tiles };
            driver.multiply(block, vectors.len(), x_tiles, &dy_tiles, &mut sums, chunk);
        }
        let mut taps = Workspace::take(9 * shape.blocks * lanes * lanes);
        for (number, vector) in vectors.enumerate() {
            let tiles = WeightTiles {
                from: sums[number * lanes..].as_ptr(),
                channel_step: chunk * lanes,
                element_step: shape.weight_step(chunk),
                channels: shape.sources,
                to: taps.as_mut_ptr(),
                channels_together: weight[1] == 1,
            };
            // SAFETY: the sums have this many channels in each element, and there is room for nine taps of each channel.
            // A vector's filters are written by no other unit; the last of them ends with the result, whose length was
            // checked.
            unsafe {
                if !(kernels.weight_tiles)(&tiles) {
                    spoiled.store(true, Ordering::Relaxed);
                }
                let results = lanes.min(shape.results - vector * lanes);
                let to = to.get().add(vector * lanes * weight[0]);
                let offsets: [usize; 16] = std::array::from_fn(|result| result * weight[0]);
                (kernels.transpose)(taps.as_ptr(), lanes, 9 * shape.sources, results, to, offsets.as_ptr());
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
            unsafe { self.x.transform(&segment, 0..self.shape.blocks, room) };
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

    /// Adds the products of a block.
    fn multiply(
        &self,
        block: usize,
        vectors: usize,
        x_tiles: &[f32],
        dy_tiles: &[f32],
        sums: &mut [f32],
        chunk: usize,
    ) {
        let lanes = self.shape.lanes;
        let tiles = self.block(block).len();
        let (x_step, dy_step) = (self.shape.source_step(self.tiles), self.shape.gradient_step(self.tiles, chunk));
        let step = self.shape.weight_step(chunk);
        assert!(ELEMENTS * x_step <= x_tiles.len() && ELEMENTS * dy_step <= dy_tiles.len());
        assert!(ELEMENTS * step <= sums.len() && vectors <= chunk);
        for element in 0..ELEMENTS {
            for of_sources in 0..self.shape.blocks {
                for first in (0..vectors).step_by(VECTORS) {
                    let now = VECTORS.min(vectors - first);
                    for (channel, count) in even_parts(lanes, self.kernels.most_scalars(now, 1)) {
                        let row = of_sources * lanes + channel;
                        let x = element * x_step + of_sources * self.tiles * lanes + channel;
                        let w = element * dy_step + first * self.tiles * lanes;
                        // SAFETY: the lengths were checked: every element has `x_step` and `dy_step` numbers of tiles,
                        // and `step` of sums.
                        unsafe {
                            self.kernels.gradient_products(now, count)(&GradientProducts {
                                x: x_tiles.as_ptr().add(x),
                                w: dy_tiles.as_ptr().add(w),
                                w_step: self.tiles * lanes,
                                tiles,
                                sums: sums.as_mut_ptr().add(element * step + row * chunk * lanes + first * lanes),
                                sums_step: chunk * lanes,
                            });
                        }
                    }
                }
            }
        }
    }
}
