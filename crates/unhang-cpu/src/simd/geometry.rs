//! Forward and backward-data as one computation.
//!
//! Both are sums over taps, `result[q × out_step + phase] += w[tap] × source[q × in_step + offset(tap)]` on each axis.
//! Forward has one phase and `in_step` is the stride. Backward-data has as many phases as the stride (`out_step`), each
//! with the taps whose distance the stride divides, and `in_step` is one. Whatever computes the one form computes both.

use unhang_conv::{Direction, Layout, Problem, TensorShape};

/// One tap on one axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Tap {
    /// Its index in the filter.
    pub index: usize,
    /// Where it falls on the source, from `q × in_step`.
    pub offset: isize,
}

/// One axis.
#[derive(Debug, Clone)]
pub(crate) struct Axis {
    /// Positions of the source.
    pub source: usize,
    /// Positions of the result.
    pub result: usize,
    /// Source positions from one `q` to the next.
    pub in_step: usize,
    /// Result positions from one `q` to the next; as many phases.
    pub out_step: usize,
    /// The taps of each phase.
    pub phases: Vec<Vec<Tap>>,
    /// How many `q` there are.
    pub steps: usize,
    /// The smallest offset of any tap.
    pub low: isize,
    /// From the smallest offset to the largest, both included; one if there is no tap at all.
    pub span: usize,
}

impl Axis {
    fn new(problem: &Problem, axis: usize) -> Axis {
        let (stride, dilation) = (problem.stride()[axis] as isize, problem.dilation()[axis] as isize);
        let (padding, taps) = (problem.padding()[axis] as isize, problem.kernel()[axis]);
        let tap = |index: usize, offset: isize| Tap { index, offset };
        let (source, result, in_step, out_step, phases) = match problem.direction() {
            Direction::BackwardData => {
                let phase = |phase: isize| {
                    let distance = |index: usize| phase + padding - index as isize * dilation;
                    let mine = (0..taps).filter(|&index| distance(index).rem_euclid(stride) == 0);
                    mine.map(|index| tap(index, distance(index).div_euclid(stride))).collect()
                };
                let phases = (0..stride.min(problem.in_size()[axis] as isize)).map(phase).collect::<Vec<_>>();
                (problem.out_size()[axis], problem.in_size()[axis], 1, stride as usize, phases)
            }
            _ => {
                let all = (0..taps).map(|index| tap(index, index as isize * dilation - padding)).collect();
                (problem.in_size()[axis], problem.out_size()[axis], stride as usize, 1, vec![all])
            }
        };
        let offsets = || phases.iter().flatten().map(|tap: &Tap| tap.offset);
        let low = offsets().min().unwrap_or(0);
        let span = offsets().max().map_or(1, |high| (high - low + 1) as usize);
        Axis { source, result, in_step, out_step, steps: result.div_ceil(out_step), phases, low, span }
    }

    /// Whether any tap falls on source positions that are `residue` from the lowest, counted in `in_step`s.
    pub(crate) fn uses(&self, residue: usize) -> bool {
        self.phases.iter().flatten().any(|tap| (tap.offset - self.low) as usize % self.in_step == residue)
    }
}

impl Axis {
    /// Whether no tap ever falls on padding.
    pub(crate) fn is_whole(&self) -> bool {
        self.low >= 0 && (self.steps - 1) * self.in_step + self.low as usize + self.span <= self.source
    }

    /// The first position of the source that a tap of this step or a later one falls on.
    pub(crate) fn first_of_source(&self, step: usize) -> usize {
        ((step * self.in_step) as isize + self.low).max(0) as usize
    }

    /// Whether no tap of this many steps falls on padding.
    pub(crate) fn all_inside(&self, first: usize, count: usize) -> bool {
        let begin = (first * self.in_step) as isize + self.low;
        begin >= 0 && begin as usize + (count - 1) * self.in_step + self.span <= self.source
    }

    /// Those of the first `steps` steps of which no tap falls on padding.
    pub(crate) fn steps_inside(&self, steps: usize) -> std::ops::Range<usize> {
        let begin = ((-self.low).max(0) as usize).div_ceil(self.in_step).min(steps);
        let room = self.source as isize - self.low - self.span as isize;
        let end = if room < 0 { 0 } else { (room as usize / self.in_step + 1).min(steps) };
        begin..end.max(begin)
    }

    /// Of `count` positions that lie a step apart, from a step on and `remainder` behind its first tap: those that lie in the
    /// source, and where the first does.
    pub(crate) fn inside(&self, remainder: usize, first_step: usize, count: usize) -> (usize, usize, usize) {
        let step = self.in_step;
        let origin = (first_step * step + remainder) as isize + self.low;
        let begin = ((-origin).max(0) as usize).div_ceil(step).min(count);
        let end = ((self.source as isize - origin).max(0) as usize).div_ceil(step).min(count).max(begin);
        (begin, end, (origin + (begin * step) as isize).max(0) as usize)
    }

    /// Whether taps of one phase lie apart.
    pub(crate) fn is_dilated(&self) -> bool {
        !(0..self.phases.len()).all(|phase| self.are_neighbours(phase))
    }

    /// Whether a phase's taps fall on neighbouring positions, in whatever order.
    pub(crate) fn are_neighbours(&self, phase: usize) -> bool {
        let apart = |pair: &[Tap]| pair[1].offset.abs_diff(pair[0].offset) == 1;
        self.phases[phase].windows(2).all(apart)
    }

    /// Whether a phase's taps fall on neighbouring positions, in order.
    pub(crate) fn is_dense(&self, phase: usize) -> bool {
        self.phases[phase].windows(2).all(|pair| pair[1].offset == pair[0].offset + 1)
    }
}

/// Distances in memory: image, channel, row, column.
pub(super) type Strides = [usize; 4];

/// The distances of a dense tensor.
pub(super) fn strides(shape: TensorShape, layout: Layout) -> Strides {
    let [_, c, h, w] = shape;
    match layout {
        Layout::Nchw => [c * h * w, h * w, w, 1],
        Layout::Nhwc => [h * w * c, 1, w * c, c],
    }
}

/// A forward or backward-data computation, ready to be driven.
#[derive(Debug, Clone)]
pub(crate) struct Gather {
    /// Images.
    pub batch: usize,
    /// Independent groups.
    pub groups: usize,
    /// Source channels of one group.
    pub source_channels: usize,
    /// Result channels of one group.
    pub result_channels: usize,
    /// Height and width.
    pub axes: [Axis; 2],
    /// Distances in the source.
    pub source: Strides,
    /// Distances in the result.
    pub result: Strides,
    /// Distances in the filter: result channel, source channel, tap's row, tap's column.
    pub weight: Strides,
    /// From one group's filters to the next's.
    pub weight_group: usize,
}

impl Gather {
    /// From an ordinary problem, forward or backward-data.
    pub(crate) fn new(problem: &Problem) -> Gather {
        let layout = problem.layout();
        let [source, _, result] = problem.operand_shapes();
        let groups = problem.groups();
        let mut weight = strides(problem.weight_shape(), layout);
        let weight_group = weight[0] * (problem.out_channels() / groups);
        if problem.direction() == Direction::BackwardData {
            weight.swap(0, 1);
        }
        Gather {
            batch: problem.batch(),
            groups,
            source_channels: source[1] / groups,
            result_channels: result[1] / groups,
            axes: [Axis::new(problem, 0), Axis::new(problem, 1)],
            source: strides(source, layout),
            result: strides(result, layout),
            weight,
            weight_group,
        }
    }
}

/// The most segments that the pixels of a weight gradient are cut into, so that threads share them.
const MOST_SEGMENTS: usize = 16;

/// The segments that the pixels of a weight gradient are cut into: each has a separate gradient, and those are added
/// in their order. It depends on the numbers of operands and gradient alone, never on threads, and all gradients together
/// are a sixteenth of the operands at most.
pub(super) fn segments(operands: usize, gradient: usize) -> usize {
    (operands / (16 * gradient.max(1))).clamp(1, MOST_SEGMENTS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use unhang_conv::Specification;

    #[test]
    fn phases_share_out_the_taps() {
        let problem = Problem::new(Specification {
            in_size: [9, 9],
            kernel: [3, 3],
            stride: [2, 2],
            padding: [1, 1],
            direction: Direction::BackwardData,
            ..Specification::default()
        })
        .unwrap();
        let axis = &Gather::new(&problem).axes[0];
        // Even rows meet the middle tap alone, odd ones the other two: 1 = 2·1 + 0 - 1 and 1 = 2·0 + 2 - 1.
        assert_eq!(axis.phases[0], [Tap { index: 1, offset: 0 }]);
        assert_eq!(axis.phases[1], [Tap { index: 0, offset: 1 }, Tap { index: 2, offset: 0 }]);
        assert_eq!((axis.steps, axis.low, axis.span), (5, 0, 2));
    }
}
