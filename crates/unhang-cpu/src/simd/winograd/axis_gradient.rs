//! The weight gradient by Winograd's algorithm along one axis: F(3, 4), F(5, 4) and F(7, 4) for filters without stride in
//! NCHW, with tiles of four rows of the result's gradient as filters. The other axis may have any taps.
//!
//! The points are those of [`super::axis`], and so is the transformed source ([`super::lines`]). Of the result's gradient
//! channels are brought together before it is transformed. Between the transforms stands a product of matrices for each point
//! and tap of the other axis: source channels × pixels by pixels × result channels. Result channels lie in vectors.
//!
//! Tiles are summed up block by block. Blocks depend on the problem alone and no sum is shared between threads, so threads
//! change nothing. What is not finite is left to the other path as a whole.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use unhang_conv::{Direction, Problem, Specification};

use super::super::geometry::{Gather, Strides, strides};
use super::super::pairwise::PairwiseSums;
use super::super::source::pack_pixel_row;
use super::super::tiling::choose_tile;
use super::super::weights;
use super::super::work::Work;
use super::super::workspace::{Shared, Workspace};
use super::lines::{Lines, Shape, UNIT_NUMBERS, axis_of};
use crate::parallel::{for_each_phase, for_each_unit};
use crate::plain::CHAIN;
use unhang_simd::Isa;
use unhang_simd::even_parts;
use unhang_simd::{AXIS_TILE, AxisGradient, AxisTaps, Kernels, MAX_SCALARS, MAX_VECTORS, Run, Tile};

/// Pixels of a block at least: this many steps a tile's sums stay in registers.
const LEAST_PIXELS: usize = 48;
/// Pixels of a block at most, but for a single row of tiles: this many terms are summed one after the other, and a block's sums
/// are added as a whole. Errors grow with the root of the longest chain.
const MOST_PIXELS: usize = 256;
/// Columns of a row of tiles at most, for the same reason.
const MOST_COLUMNS: usize = 512;
/// Source channels that are transformed by one unit of work.
const UNIT_CHANNELS: usize = 16;

/// The forward computation of a weight gradient, whose source this one has, and the axis that is transformed.
fn forward(problem: &Problem) -> Option<(Gather, usize)> {
    let axis = axis_of(problem)?;
    let forward = Problem::new(Specification { direction: Direction::Forward, ..problem.specification() }).ok()?;
    Some((Gather::new(&forward), axis))
}

/// How many products the definition has for each one here. `None` if an ordinary weight gradient cannot be computed so
/// within the bound on its workspace, and with small errors.
pub(crate) fn gain(problem: &Problem, isa: Isa) -> Option<f64> {
    let (gather, axis) = forward(problem)?;
    let plan = Plan::new(&gather, axis, Kernels::of(isa));
    let long_enough = plan.tiles * plan.shape.columns >= LEAST_PIXELS || plan.tiles == plan.shape.all_tiles;
    let fits = plan.workspace(plan.tiles) <= plan.shape.memory && plan.shape.columns <= MOST_COLUMNS;
    let tall = &gather.axes[axis];
    let products = (plan.shape.points * plan.shape.tiles) as f64;
    (long_enough && fits).then(|| (tall.phases[0].len() * tall.result) as f64 / products)
}

/// Sizes, and how the work is cut.
#[derive(Debug, Clone, Copy)]
struct Plan {
    shape: Shape,
    /// Vectors of result channels of a part.
    vectors: usize,
    /// Parts of result channels.
    parts: usize,
    /// Tiles of a block.
    tiles: usize,
}

impl Plan {
    fn new(gather: &Gather, axis: usize, kernels: &Kernels) -> Plan {
        let shape = Shape::new(gather, axis, kernels);
        let vectors = choose_tile(kernels, shape.results, shape.sources, 1).vectors;
        let parts = shape.results.div_ceil(vectors * shape.lanes);
        let aim = UNIT_NUMBERS / (shape.points * shape.sources * shape.pitch);
        let aim = aim.min(MOST_PIXELS / shape.columns).clamp(1, shape.all_tiles);
        let mut plan = Plan { shape, vectors, parts, tiles: aim };
        while plan.tiles > 1 && plan.workspace(plan.tiles) > shape.memory {
            plan.tiles = plan.tiles.div_ceil(2);
        }
        plan
    }

    /// Result channels of a part, in whole vectors.
    fn width(&self) -> usize {
        self.vectors * self.shape.lanes
    }

    /// Numbers of a part's sums for one point.
    fn part_sums(&self) -> usize {
        self.shape.wide_taps * self.shape.sources * self.width()
    }

    /// Numbers of all sums for one point.
    fn point_sums(&self) -> usize {
        self.parts * self.part_sums()
    }

    /// Numbers of a part of the result's transformed gradient for one point.
    fn part_gradient(&self) -> usize {
        self.tiles * self.shape.columns * self.width()
    }

    /// Taps of the axis that is transformed.
    fn taps(&self) -> usize {
        self.shape.points + 1 - AXIS_TILE
    }

    /// Workspace of one thread with blocks of this many tiles.
    fn workspace(&self, tiles: usize) -> usize {
        let Shape { points, sources, columns, all_tiles, turned, pitch, .. } = self.shape;
        let source = points * sources * self.shape.source_step(tiles) + tiles * turned + pitch;
        let gradient = tiles * columns * self.width() * (points * self.parts + AXIS_TILE);
        // Chains of sums are added in pairs: as many levels as their number has digits, and the one that is summed.
        let chains = (all_tiles * columns).div_ceil(CHAIN.saturating_sub(tiles * columns).max(1));
        let levels = if chains > 1 { 2 + chains.ilog2() as usize } else { 1 };
        let sums = levels * points * self.point_sums();
        sums + (source + gradient).max(self.taps() * self.part_sums())
    }
}

/// A block's transformed numbers.
#[derive(Clone, Copy)]
struct Block {
    x_lines: Shared,
    dy_pixels: Shared,
}

/// A computation under way.
struct GradientWork<'a> {
    plan: Plan,
    gather: &'a Gather,
    kernels: &'static Kernels,
    x: Lines<'a>,
    dy: &'a [f32],
    /// Distances in the gradient.
    weight: Strides,
}

/// Computes it.
///
/// # Panics
/// When a slice is not as long as the problem says, or the problem has a stride, groups, or another number of taps.
pub(crate) fn compute(problem: &Problem, work: Work<'_>) {
    let Work { kernels, first: x, second: dy, result, threads, .. } = work;
    let lengths = problem.operand_shapes().map(|shape| shape.iter().product::<usize>());
    assert_eq!([x.len(), dy.len(), result.len()], lengths, "the operands' lengths");
    let (gather, axis) = forward(problem).expect("three, five or seven taps of an axis, without stride and groups");
    let plan = Plan::new(&gather, axis, kernels);
    let lines = Lines::new(&plan.shape, &gather, kernels, x, plan.tiles);
    let weight = strides(problem.weight_shape(), problem.layout());
    let driver = GradientWork { plan, gather: &gather, kernels, x: lines, dy, weight };
    let sums = driver.sum_up(threads);
    let spoiled = AtomicBool::new(false);
    let to = Shared(result.as_mut_ptr());
    for_each_unit(threads, plan.parts, |part| {
        // SAFETY: a part's filters are written by no other unit.
        if !unsafe { driver.write(part, &sums, to) } {
            spoiled.store(true, Ordering::Relaxed);
        }
    });
    drop(sums);
    if spoiled.into_inner() {
        weights::compute(problem, Work { kernels, first: x, second: dy, bias: None, result, threads });
    }
}

impl GradientWork<'_> {
    /// The first result channel of a part, and how many it has.
    fn channels(&self, part: usize) -> (usize, usize) {
        let first = part * self.plan.width();
        (first, self.plan.width().min(self.plan.shape.results - first))
    }

    /// Transforms and multiplies block by block. Two phases a block: its transforms, and its products.
    fn sum_up(&self, threads: usize) -> Workspace {
        let plan = &self.plan;
        let Shape { all_tiles, columns, points, sources, .. } = plan.shape;
        let length = points * plan.point_sums();
        let mut x_lines = Workspace::take(points * sources * plan.shape.source_step(plan.tiles));
        let mut dy_pixels = Workspace::take(points * plan.parts * plan.part_gradient());
        let block = Block { x_lines: Shared(x_lines.as_mut_ptr()), dy_pixels: Shared(dy_pixels.as_mut_ptr()) };
        let mut sums = PairwiseSums::new(self.kernels, length);
        let first_chain = Shared(sums.chain(0, length).as_mut_ptr());
        // The sums, and where those of the block go: from zero on or after those before.
        let chains = Mutex::new((sums, first_chain, true));
        let locked = || chains.lock().unwrap_or_else(PoisonError::into_inner);
        let groups = sources.div_ceil(UNIT_CHANNELS);
        let phases: Vec<usize> =
            (0..all_tiles.div_ceil(plan.tiles)).flat_map(|_| [1 + plan.parts + groups, points]).collect();
        for_each_phase(threads, &phases, |phase, unit| {
            let first = phase / 2 * plan.tiles;
            let tiles = first..all_tiles.min(first + plan.tiles);
            if phase % 2 == 1 {
                let (_, to, begins) = *locked();
                // SAFETY: the block was transformed in the phase before, and a point's sums are this unit's own.
                unsafe { self.multiply(tiles.len(), unit, block, to, begins) };
            } else if unit == 0 {
                let (sums, to, begins) = &mut *locked();
                *begins = sums.begin_chunk(tiles.len() * columns);
                *to = Shared(sums.chain(0, length).as_mut_ptr());
            } else if unit <= plan.parts {
                // SAFETY: there is room for all parts, and this one's numbers are written by no other unit.
                unsafe { self.transform_gradient(tiles, unit - 1, block.dy_pixels) };
            } else {
                // SAFETY: the same of channels.
                unsafe { self.transform_source(tiles, unit - 1 - plan.parts, block.x_lines) };
            }
        });
        chains.into_inner().unwrap_or_else(PoisonError::into_inner).0.finish()
    }

    /// Transforms a group of the source's channels of a block, to `[point][channel]` lines.
    ///
    /// # Safety
    /// `to` has room for a block, and nobody else writes these channels meanwhile.
    unsafe fn transform_source(&self, tiles: Range<usize>, group: usize, to: Shared) {
        let Shape { sources, turned, .. } = self.plan.shape;
        let source_step = self.plan.shape.source_step(self.plan.tiles);
        let mut room = Workspace::take(self.plan.tiles * turned);
        for segment in self.x.segments(tiles) {
            for channel in group * UNIT_CHANNELS..sources.min((group + 1) * UNIT_CHANNELS) {
                // SAFETY: this channel's lines; those of the other points follow as many channels apart.
                unsafe { self.x.transform(&segment, channel, to.get().add(channel * source_step), &mut room) };
            }
        }
    }

    /// Transforms one part of the result's gradient of a block, to `[point][part][tile][column][channel]`.
    ///
    /// # Safety
    /// `to` has room for a block, and nobody else writes this part's meanwhile.
    unsafe fn transform_gradient(&self, tiles: Range<usize>, part: usize, to: Shared) {
        let Shape { axis, pairs, columns, .. } = self.plan.shape;
        let [tall, wide] = [&self.gather.axes[axis], &self.gather.axes[1 - axis]];
        let [by_image, by_channel, by_row, _] = self.gather.result;
        let (first_channel, channels) = self.channels(part);
        let width = self.plan.width();
        let mut room = Workspace::take(self.plan.tiles * AXIS_TILE * columns * width);
        if channels < width {
            room.fill(0.0);
        }
        let zeros = [0.0f32; MAX_VECTORS * 16];
        for segment in self.x.segments(tiles) {
            let first = segment.first * AXIS_TILE;
            let count = (segment.tiles * AXIS_TILE).min(tall.result - first);
            // The rows and columns of these tiles, channels together.
            let (first_row, rows, first_column, row_pixels) =
                if axis == 0 { (first, count, 0, wide.result) } else { (0, wide.result, first, count) };
            let (by_tall, by_wide) = if axis == 0 { (columns * width, width) } else { (width, count * width) };
            let place = segment.image * by_image + first_channel * by_channel + first_column;
            for (row, to) in room.chunks_mut(row_pixels * width).enumerate().take(rows) {
                let from = &self.dy[place + (first_row + row) * by_row..];
                pack_pixel_row(self.kernels, from, [by_channel, 1], channels, row_pixels, width, to);
            }
            for tile in 0..segment.tiles {
                for column in 0..columns {
                    let row = |row: usize| {
                        let row = tile * AXIS_TILE + row;
                        if row < count {
                            room[row * by_tall + column * by_wide..][..width].as_ptr()
                        } else {
                            zeros.as_ptr()
                        }
                    };
                    let at = part * self.plan.part_gradient() + ((segment.at + tile) * columns + column) * width;
                    // SAFETY: rows have a part's channels, and the room is there by the function's own condition.
                    unsafe {
                        (self.kernels.axis_gradient)(&AxisGradient {
                            pairs,
                            stride: 1,
                            rows: std::array::from_fn(row),
                            count: width,
                            to: to.get().add(at),
                            element_step: self.plan.parts * self.plan.part_gradient(),
                        });
                    }
                }
            }
        }
    }

    /// Sums up one point's products of a block of this many tiles, to `[part][tap of the wide axis][source channel][result
    /// channel]` among those of all points: from zero on, or after those before.
    ///
    /// # Safety
    /// The block holds that many transformed tiles, and there is room for the sums of all points, of which nobody else touches
    /// this one's.
    unsafe fn multiply(&self, tiles: usize, point: usize, block: Block, to: Shared, begins: bool) {
        let (plan, kernels) = (&self.plan, self.kernels);
        let Shape { axis, sources, columns, pitch, lanes, .. } = plan.shape;
        let wide = &self.gather.axes[1 - axis];
        let (source_step, width) = (plan.shape.source_step(plan.tiles), plan.width());
        assert!(tiles <= plan.tiles);
        let run = |offset: usize, tile: usize| Run { x: tile * pitch + offset, w: tile * columns * width };
        let taps = wide.phases[0].iter().map(|tap| (tap.offset - wide.low) as usize);
        let runs: Vec<Vec<Run>> = taps.map(|tap| (0..tiles).map(|tile| run(tap, tile)).collect()).collect();
        let zeros = [0.0f32; MAX_VECTORS * 16];
        let mut block_sums = [0.0f32; MAX_SCALARS * MAX_VECTORS * 16];
        for part in 0..plan.parts {
            let vectors = self.channels(part).1.div_ceil(lanes);
            let w = (point * plan.parts + part) * plan.part_gradient();
            for (channel, count) in even_parts(sources, kernels.most_scalars(plan.vectors, 1)) {
                for (tap, runs) in runs.iter().enumerate() {
                    let at = point * plan.point_sums() + part * plan.part_sums();
                    let at = at + (tap * sources + channel) * width;
                    // SAFETY: what is read and written is there by the function's own condition. A tap's pixels lie within a
                    // tile's `pitch` numbers of a line, and a block's sums have room for any tile.
                    unsafe {
                        let to = to.get().add(at);
                        let sums = if begins { to } else { block_sums.as_mut_ptr() };
                        kernels.tile(vectors, 1, count, source_step)(&Tile {
                            x: block.x_lines.get().add((point * sources + channel) * source_step),
                            w: block.dy_pixels.get().add(w),
                            runs,
                            count: columns,
                            pitch: source_step,
                            row_step: 0,
                            x_step: 1,
                            w_step: width,
                            init: zeros.as_ptr(),
                            init_step: 0,
                            sums,
                            sums_step: width,
                            fetch: false,
                        });
                        // What is beyond the last part's channels is summed and looked at with them.
                        for row in (0..count).filter(|_| vectors < plan.vectors) {
                            let beyond = sums.add(row * width + vectors * lanes);
                            std::slice::from_raw_parts_mut(beyond, width - vectors * lanes).fill(0.0);
                        }
                        if !begins {
                            (kernels.add)(block_sums.as_ptr(), to, count * width);
                        }
                    }
                }
            }
        }
    }

    /// Transforms the sums of a part and writes its filters' gradient; says whether all of it is finite.
    ///
    /// # Safety
    /// `to` is the gradient, and nobody else writes this part's filters meanwhile.
    unsafe fn write(&self, part: usize, sums: &[f32], to: Shared) -> bool {
        let plan = &self.plan;
        let Shape { points, pairs, sources, wide_taps, .. } = plan.shape;
        let [by_result, by_channel, ..] = self.weight;
        let (first, channels) = self.channels(part);
        let (of_part, width) = (plan.part_sums(), plan.width());
        let mut taps = Workspace::take(plan.taps() * of_part);
        assert_eq!(sums.len(), points * plan.point_sums(), "the sums of all points");
        let from = AxisTaps {
            pairs,
            stride: 1,
            from: sums[part * of_part..].as_ptr(),
            element_step: plan.point_sums(),
            count: of_part,
            to: taps.as_mut_ptr(),
            tap_step: of_part,
        };
        // SAFETY: a part's sums of each point were checked to be there, and there is room for as many of each tap.
        let finite = unsafe { (self.kernels.axis_taps)(&from) };
        // The taps of a filter lie next to each other, those of the wide axis within those of the tall one: either the wide
        // axis is that of columns, or it has one tap.
        let offsets: Vec<usize> = (0..channels).map(|channel| channel * by_result).collect();
        for channel in 0..sources {
            let place = first * by_result + channel * by_channel;
            // SAFETY: rows are taps, `sources × width` apart, and go to this part's own filters.
            unsafe {
                let from = taps.as_ptr().add(channel * width);
                let rows = plan.taps() * wide_taps;
                let to = to.get().add(place);
                (self.kernels.transpose)(from, sources * width, rows, channels, to, offsets.as_ptr());
            }
        }
        finite
    }
}
