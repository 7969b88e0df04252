//! A 3-d convolution as 2-d ones.
//!
//! The depths of the result become images, and the taps along the depth become channels. Image (n, o) of the folded
//! input has as channel (c, t) the plane `x[n, c, o·stride - padding + t·dilation]`, or zeros if there is no such
//! plane. A filter of `K, C, depth, height, width` has the same memory as one of `K, C·depth, height, width`. Groups
//! stay together because the taps of a channel do.
//!
//! | direction | images | channels of the source | per part |
//! |---|---|---|---|
//! | forward | output depths | input channel, tap | some images |
//! | backward-data | input depths with one remainder modulo the stride | output channel, tap | some images of one remainder |
//! | backward-weights | output depths | input channel, tap | some channels of both |
//!
//! The data gradient gathers planes of the output's gradient; it does not add planes of the input's gradient
//! afterwards. Each sum is therefore made inside one 2-d convolution, in that convolution's precision. Input depths
//! with the same remainder meet the same taps, so the stride causes no products with zero. Parts never add to each
//! other's results.
//!
//! If height and width have single taps only, the whole becomes one 2-d convolution. Its height is the depth, its
//! width is a whole plane, and nothing is gathered.

use crate::problem::{Direction, Layout, Problem, ProblemError, Specification, TensorShape};
use crate::volume::{Volume, VolumeShape};

/// The axis that numbers a 3-d tensor's planes.
const DEPTH: usize = 2;

/// A 3-d convolution as 2-d ones. Together they write every element of its result once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fold {
    /// The 2-d convolutions.
    pub parts: Vec<FoldPart>,
    /// Which operand of the 3-d convolution is the first operand, the second operand and the result of every part.
    pub order: [usize; 3],
    /// Planes of the result that no tap reaches. They are zero, plus the bias if a transposed convolution has one.
    pub zeros: Vec<Planes>,
}

/// A 2-d convolution that computes a part of a 3-d one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoldPart {
    /// What is computed.
    pub problem: Problem,
    /// The planes of the 3-d convolution that make up the first operand, the second operand and the result.
    pub planes: [Planes; 3],
}

/// Steps along one axis of a 3-d tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Steps {
    axis: usize,
    by: i64,
    count: usize,
}

/// A 2-d tensor that consists of planes of a 3-d one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Planes {
    /// For each axis of the 2-d tensor, the steps that make it up, slowest first.
    axes: [[Steps; 2]; 4],
    /// The position of the first element.
    start: [i64; 5],
    /// The number of planes. A step outside them reads zeros.
    depth: usize,
}

/// The part of a 3-d tensor that makes up [`Planes`]: ranges of images and channels, and steps along the depth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ranges {
    /// The first image (or filter), and their number.
    pub images: (usize, usize),
    /// The first channel, and their number.
    pub channels: (usize, usize),
    /// The first depth.
    pub depth: i64,
    /// Depths from one 2-d image to the next within a 3-d image, and the number of these 2-d images.
    pub along_images: (i64, usize),
    /// Depths from one 2-d channel to the next within a 3-d channel, and the number of these 2-d channels.
    pub along_channels: (i64, usize),
}

/// One of the nested loops that visit all elements of [`Planes`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Loop {
    /// The number of steps.
    pub count: usize,
    /// Elements of the 2-d tensor per step.
    pub folded: usize,
    /// Elements of the 3-d tensor per step.
    pub volume: i64,
    /// Planes per step.
    pub depth: i64,
}

/// The nested loops that visit all elements of [`Planes`], slowest first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loops {
    /// At most six loops, each of more than one step.
    pub loops: Vec<Loop>,
    /// The offset of the first element in the 3-d tensor.
    pub start: i64,
    /// The first element's plane.
    pub depth: i64,
    /// The number of planes. An element outside them is zero.
    pub planes: i64,
}

impl Steps {
    const NONE: Steps = Steps { axis: 0, by: 0, count: 1 };

    fn all(axis: usize, count: usize) -> Steps {
        Steps { axis, by: 1, count }
    }
}

impl Planes {
    fn new(shape: VolumeShape, images: [Steps; 2], channels: [Steps; 2]) -> Planes {
        let plane = [3, 4].map(|axis| [Steps::NONE, Steps::all(axis, shape[axis])]);
        Planes { axes: [images, channels, plane[0], plane[1]], start: [0; 5], depth: shape[DEPTH] }
    }

    /// Treats height and width as one axis, and the depth as the other.
    fn flat(shape: VolumeShape) -> Planes {
        let all = |axis: usize| Steps::all(axis, shape[axis]);
        let alone = |axis: usize| [Steps::NONE, all(axis)];
        Planes { axes: [alone(0), alone(1), alone(DEPTH), [all(3), all(4)]], start: [0; 5], depth: shape[DEPTH] }
    }

    fn from(mut self, axis: usize, start: i64) -> Planes {
        self.start[axis] = start;
        self
    }

    /// The shape of the 2-d tensor.
    pub fn shape(&self) -> TensorShape {
        self.axes.map(|[slow, fast]| slow.count * fast.count)
    }

    /// The ranges that make it up, or `None` if height and width are one axis and nothing is folded.
    pub fn ranges(&self) -> Option<Ranges> {
        let [[images, along_images], [channels, along_channels], ..] = self.axes;
        (self.axes[2][1].axis != DEPTH).then_some(Ranges {
            images: (self.start[0] as usize, images.count),
            channels: (self.start[1] as usize, channels.count),
            depth: self.start[DEPTH],
            along_images: (along_images.by, along_images.count),
            along_channels: (along_channels.by, along_channels.count),
        })
    }

    /// The smallest and the largest depth that its elements refer to.
    fn reach(&self) -> (i64, i64) {
        let steps = self.axes.iter().flatten().filter(|steps| steps.axis == DEPTH);
        let ends = steps.map(|steps| steps.by * (steps.count as i64 - 1));
        ends.fold((self.start[DEPTH], self.start[DEPTH]), |(low, high), end| (low + end.min(0), high + end.max(0)))
    }

    /// The offset of the first element in a 3-d tensor with these strides, and the 2-d tensor's strides in that
    /// memory. `None` if four strides cannot describe it.
    fn view(&self, strides: [usize; 5]) -> Option<(usize, [usize; 4])> {
        let (low, high) = self.reach();
        if low < 0 || high >= self.depth as i64 {
            return None;
        }
        let mut result = [0; 4];
        for (steps, result) in self.axes.iter().zip(&mut result) {
            let [slow, fast] = steps.map(|it| (it.count, it.by * strides[it.axis] as i64));
            let stride = match (slow, fast) {
                ((1, _), (_, stride)) | ((_, stride), (1, _)) => stride,
                ((_, slow), (count, fast)) if slow == fast * count as i64 => fast,
                _ => return None,
            };
            *result = usize::try_from(stride).ok()?;
        }
        let start = self.start.iter().zip(strides).map(|(&start, stride)| start as usize * stride).sum();
        Some((start, result))
    }

    /// The offset of the first element, if the 3-d tensor's memory holds the 2-d tensor in that layout and without
    /// gaps.
    pub fn dense(&self, strides: [usize; 5], layout: Layout) -> Option<usize> {
        let (start, found) = self.view(strides)?;
        let shape = self.shape();
        let mut axes = shape.iter().zip(found.iter().zip(layout.strides(shape)));
        axes.all(|(&size, (&found, dense))| size == 1 || found == dense).then_some(start)
    }

    /// The loops over a 2-d and a 3-d tensor with these strides. They visit neighbours of the 2-d tensor in sequence,
    /// or with `by_volume` neighbours of the 3-d one.
    pub fn loops(&self, folded: [usize; 4], strides: [usize; 5], by_volume: bool) -> Loops {
        let mut all = Vec::new();
        for ([slow, fast], folded) in self.axes.into_iter().zip(folded) {
            for (steps, folded) in [(slow, folded * fast.count), (fast, folded)] {
                let volume = steps.by * strides[steps.axis] as i64;
                let depth = if steps.axis == DEPTH { steps.by } else { 0 };
                all.push(Loop { count: steps.count, folded, volume, depth });
            }
        }
        all.retain(|it| it.count > 1);
        all.sort_by_key(|it| std::cmp::Reverse(if by_volume { it.volume.abs() } else { it.folded as i64 }));
        let mut loops: Vec<Loop> = Vec::new();
        for inner in all {
            let times = inner.count as i64;
            match loops.last_mut() {
                Some(outer)
                    if outer.folded == inner.folded * inner.count
                        && outer.volume == inner.volume * times
                        && outer.depth == inner.depth * times =>
                {
                    *outer = Loop { count: outer.count * inner.count, ..inner };
                }
                _ => loops.push(inner),
            }
        }
        let start = self.start.iter().zip(strides).map(|(&start, stride)| start * stride as i64).sum();
        Loops { loops, start, depth: self.start[DEPTH], planes: self.depth as i64 }
    }
}

impl Loops {
    /// Visits every element with its offset in the 2-d tensor and in the 3-d one; the latter is `None` where the
    /// element is zero. If the innermost loop stays within its planes, the visitor gets its number of steps and its
    /// stride in each tensor. The visitor then runs that loop itself.
    pub fn visit(&self, mut visit: impl FnMut(usize, Option<usize>, (usize, usize, i64))) {
        let (outer, run) = match self.loops.split_last() {
            Some((last, outer)) if last.depth == 0 => (outer, (last.count, last.folded, last.volume)),
            _ => (&self.loops[..], (1, 0, 0)),
        };
        let mut at = vec![0; outer.len()];
        let (mut folded, mut volume, mut depth) = (0, self.start, self.depth);
        loop {
            let is_there = (0..self.planes).contains(&depth);
            visit(folded, is_there.then_some(volume as usize), run);
            let mut axis = outer.len();
            loop {
                let Some(next) = axis.checked_sub(1) else { return };
                axis = next;
                let it = outer[axis];
                if at[axis] + 1 < it.count {
                    at[axis] += 1;
                    (folded, volume, depth) = (folded + it.folded, volume + it.volume, depth + it.depth);
                    break;
                }
                folded -= it.folded * at[axis];
                volume -= it.volume * at[axis] as i64;
                depth -= it.depth * at[axis] as i64;
                at[axis] = 0;
            }
        }
    }
}

/// Divides a range into equal shares of at most `most` each.
fn shares(total: usize, most: usize) -> impl Iterator<Item = (usize, usize)> {
    let count = total.div_ceil(most.clamp(1, total));
    let each = total.div_ceil(count);
    (0..total).step_by(each).map(move |start| (start, each.min(total - start)))
}

/// The images and depths of each part if a part may have `most` planes: whole images, or some depths of one image.
fn images_and_depths(images: usize, depths: usize, most: usize) -> Vec<[(usize, usize); 2]> {
    if most >= depths {
        return shares(images, most / depths).map(|images| [images, (0, depths)]).collect();
    }
    (0..images).flat_map(|image| shares(depths, most).map(move |depths| [(image, 1), depths])).collect()
}

fn elements(shape: &[usize]) -> usize {
    shape.iter().product()
}

/// The forward of a transposed convolution, which accepts a bias, instead of the data gradient that computes the
/// same.
fn raised(lowered: &Problem) -> Result<Problem, ProblemError> {
    let spec = lowered.specification();
    let plain = Specification {
        direction: Direction::Forward,
        in_channels: spec.out_channels,
        in_size: lowered.out_size.map(|size| size as i64),
        out_channels: spec.in_channels,
        transposed: true,
        ..spec
    };
    // Without output padding there may be no pixel at all.
    let least = |axis: usize| {
        let span = spec.dilation[axis] * (spec.kernel[axis] - 1) + 1;
        (plain.in_size[axis] - 1) * spec.stride[axis] - 2 * spec.padding[axis] + span
    };
    let output_padding = [0, 1].map(|axis| spec.in_size[axis] - least(axis));
    Problem::new(Specification { output_padding, ..plain })
}

impl Volume {
    /// The most elements that the tensors of one part should have together. That is a few times the operands, and few
    /// enough for every kernel to address.
    pub fn fold_limit(&self) -> usize {
        const LEAST: usize = 1 << 20;
        let operands: usize = self.operand_shapes().iter().map(|shape| elements(shape)).sum();
        operands.saturating_mul(3).max(LEAST).min((1 << 31) / self.data_type().size())
    }

    /// The 2-d convolutions that compute this one. The tensors of a part have at most `limit` elements together. The
    /// smallest part is one plane of the result, or one group or channel of a filter's gradient. Fails if a part would
    /// be larger than any 2-d convolution can be.
    pub fn fold(&self, limit: usize) -> Result<Fold, ProblemError> {
        let (volume, exchanged) = self.lower();
        let order = if exchanged { [1, 0, 2] } else { [0, 1, 2] };
        let mut fold = Fold { parts: Vec::new(), order, zeros: Vec::new() };
        match (volume.flat(), volume.direction()) {
            (Some(part), _) => fold.parts.push(part),
            (None, Direction::Forward) => volume.fold_forward(limit, &mut fold)?,
            (None, Direction::BackwardData) => volume.fold_backward_data(limit, &mut fold)?,
            (None, Direction::BackwardWeights) => volume.fold_backward_weights(limit, &mut fold)?,
        }
        if self.transposed() && self.direction() == Direction::Forward {
            for part in &mut fold.parts {
                part.problem = raised(&part.problem)?;
            }
        }
        Ok(fold)
    }

    fn plane_of(&self, change: impl FnOnce(&mut Specification)) -> Result<Problem, ProblemError> {
        let mut specification = self.plane.specification();
        change(&mut specification);
        Problem::new(specification)
    }

    /// The one 2-d convolution whose height is the depth.
    fn flat(&self) -> Option<FoldPart> {
        let plane = &self.plane;
        if plane.kernel != [1, 1] || plane.stride != [1, 1] || plane.padding != [0, 0] {
            return None;
        }
        let depth = self.depth;
        let problem = self.plane_of(|it| {
            it.in_size = [depth.input as i64, elements(&plane.in_size) as i64];
            it.kernel = [depth.kernel as i64, 1];
            it.stride = [depth.stride as i64, 1];
            it.padding = [depth.padding as i64, 0];
            it.dilation = [depth.dilation as i64, 1];
        });
        Some(FoldPart { problem: problem.ok()?, planes: self.operand_shapes().map(Planes::flat) })
    }

    fn fold_forward(&self, limit: usize, fold: &mut Fold) -> Result<(), ProblemError> {
        let [input, filter, output] = self.operand_shapes();
        let depth = self.depth;
        let taps = |by: usize| Steps { axis: DEPTH, by: by as i64, count: depth.kernel };
        let per_plane = input[1] * depth.kernel * elements(&input[3..]) + output[1] * elements(&output[3..]);
        let most = limit.saturating_sub(elements(&filter)) / per_plane;
        for [(image, images), (first, depths)] in images_and_depths(input[0], depth.output, most) {
            let along = |by: usize| Steps { axis: DEPTH, by: by as i64, count: depths };
            let all = Steps::all(0, images);
            let source =
                Planes::new(input, [all, along(depth.stride)], [Steps::all(1, input[1]), taps(depth.dilation)])
                    .from(0, image as i64)
                    .from(DEPTH, (first * depth.stride) as i64 - depth.padding as i64);
            let second =
                Planes::new(filter, [Steps::all(0, filter[0]), Steps::NONE], [Steps::all(1, filter[1]), taps(1)]);
            let result = Planes::new(output, [all, along(1)], [Steps::all(1, output[1]), Steps::NONE])
                .from(0, image as i64)
                .from(DEPTH, first as i64);
            let problem = self.plane_of(|it| {
                it.batch = (images * depths) as i64;
                it.in_channels *= depth.kernel as i64;
            })?;
            fold.parts.push(FoldPart { problem, planes: [source, second, result] });
        }
        Ok(())
    }

    fn fold_backward_data(&self, limit: usize, fold: &mut Fold) -> Result<(), ProblemError> {
        let [gradient, filter, result] = self.operand_shapes();
        let depth = self.depth;
        let (stride, dilation, padding) = (depth.stride as i64, depth.dilation as i64, depth.padding as i64);
        for remainder in 0..depth.stride.min(depth.input) {
            let depths = (depth.input - remainder).div_ceil(depth.stride);
            let meets = |tap: &i64| (remainder as i64 + padding - tap * dilation) % stride == 0;
            let taps: Vec<i64> = (0..depth.kernel as i64).filter(meets).collect();
            let (Some(&first_tap), Some(&last_tap)) = (taps.first(), taps.last()) else {
                let all = [Steps::all(0, result[0]), Steps { axis: DEPTH, by: stride, count: depths }];
                let none = Planes::new(result, all, [Steps::all(1, result[1]), Steps::NONE]);
                fold.zeros.push(none.from(DEPTH, remainder as i64));
                continue;
            };
            // From the last tap to the first, so that the gradient's planes keep their order.
            let step = if taps.len() > 1 { taps[1] - first_tap } else { 1 };
            let between = Steps { axis: DEPTH, by: step * dilation / stride, count: taps.len() };
            let backwards = Steps { axis: DEPTH, by: -step, count: taps.len() };
            let begin = (remainder as i64 + padding - last_tap * dilation) / stride;
            let per_plane = gradient[1] * taps.len() * elements(&gradient[3..]) + result[1] * elements(&result[3..]);
            let most = limit.saturating_sub(elements(&filter)) / per_plane;
            for [(image, images), (first, depths)] in images_and_depths(result[0], depths, most) {
                let along = |by: i64| Steps { axis: DEPTH, by, count: depths };
                let all = Steps::all(0, images);
                let source = Planes::new(gradient, [all, along(1)], [Steps::all(1, gradient[1]), between])
                    .from(0, image as i64)
                    .from(DEPTH, begin + first as i64);
                let second =
                    Planes::new(filter, [Steps::all(0, filter[0]), backwards], [Steps::all(1, filter[1]), Steps::NONE])
                        .from(DEPTH, last_tap);
                let written = Planes::new(result, [all, along(stride)], [Steps::all(1, result[1]), Steps::NONE])
                    .from(0, image as i64)
                    .from(DEPTH, (remainder + first * depth.stride) as i64);
                let problem = self.plane_of(|it| {
                    it.batch = (images * depths) as i64;
                    it.out_channels *= taps.len() as i64;
                })?;
                fold.parts.push(FoldPart { problem, planes: [source, second, written] });
            }
        }
        Ok(())
    }

    fn fold_backward_weights(&self, limit: usize, fold: &mut Fold) -> Result<(), ProblemError> {
        let [input, gradient, filter] = self.operand_shapes();
        let depth = self.depth;
        let groups = self.plane.groups;
        let taps = |by: usize| Steps { axis: DEPTH, by: by as i64, count: depth.kernel };
        let along = |by: usize| Steps { axis: DEPTH, by: by as i64, count: depth.output };
        let images = input[0] * depth.output;
        let per_channel = depth.kernel * images * elements(&input[3..]);
        let per_row = images * elements(&gradient[3..]);
        // Whole groups. With only one group, some output channels and some input channels.
        let mut all = Vec::new();
        if groups == 1 {
            for rows in shares(gradient[1], limit / 2 / per_row) {
                let left = limit.saturating_sub(rows.1 * per_row + elements(&filter));
                all.extend(shares(input[1], left / per_channel).map(|channels| (channels, rows, channels, 1)));
            }
        } else {
            let (channels, rows) = (input[1] / groups, gradient[1] / groups);
            let most = limit.saturating_sub(elements(&filter)) / (channels * per_channel + rows * per_row);
            let of_groups = |(first, count): (usize, usize)| {
                ((first * channels, count * channels), (first * rows, count * rows), (0, channels), count)
            };
            all.extend(shares(groups, most).map(of_groups));
        }
        for ((channel, channels), (row, rows), (column, columns), groups) in all {
            let every = Steps::all(0, input[0]);
            let source =
                Planes::new(input, [every, along(depth.stride)], [Steps::all(1, channels), taps(depth.dilation)])
                    .from(1, channel as i64)
                    .from(DEPTH, -(depth.padding as i64));
            let second =
                Planes::new(gradient, [every, along(1)], [Steps::all(1, rows), Steps::NONE]).from(1, row as i64);
            let result = Planes::new(filter, [Steps::all(0, rows), Steps::NONE], [Steps::all(1, columns), taps(1)])
                .from(0, row as i64)
                .from(1, column as i64);
            let problem = self.plane_of(|it| {
                it.batch = images as i64;
                it.in_channels = (channels * depth.kernel) as i64;
                it.out_channels = rows as i64;
                it.groups = groups as i64;
            })?;
            fold.parts.push(FoldPart { problem, planes: [source, second, result] });
        }
        Ok(())
    }
}
