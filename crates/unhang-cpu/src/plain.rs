//! The plain path: any convolution in any type of numbers, in safe loops over rows.
//!
//! It serves double precision for ever, and whatever no fast kernel takes. Sums are kept in f32, or in f64 for f64.
//! The result is cut into chunks that lie together in memory, each computed by one thread from start to end.

use std::ops::{Add, AddAssign, Mul, Range};

use half::{bf16, f16};
use unhang_conv::reference::Indexer;
use unhang_conv::{Direction, Layout, Problem};

use crate::parallel::for_each_chunk;

/// A number that operands are made of.
pub(crate) trait Number: Copy + Send + Sync {
    /// What products are summed in.
    type Sum: Copy + Default + Add<Output = Self::Sum> + Mul<Output = Self::Sum> + AddAssign;
    /// To the type of the sums.
    fn widen(self) -> Self::Sum;
    /// Back, rounded to nearest.
    fn narrow(sum: Self::Sum) -> Self;
}

macro_rules! number {
    ($type:ty, $sum:ty, $widen:expr, $narrow:expr) => {
        impl Number for $type {
            type Sum = $sum;

            fn widen(self) -> $sum {
                $widen(self)
            }

            fn narrow(sum: $sum) -> $type {
                $narrow(sum)
            }
        }
    };
}

number!(f32, f32, |value| value, |sum| sum);
number!(f64, f64, |value| value, |sum| sum);
number!(f16, f32, f16::to_f32, f16::from_f32);
number!(bf16, f32, bf16::to_f32, bf16::from_f32);

/// The most terms of a weight gradient that are summed one after the other.
pub(crate) const CHAIN: usize = 4096;

/// Computes an ordinary (lowered) problem. The bias goes along the result's channels: a transposed forward has one too.
pub(crate) fn compute<T: Number>(
    problem: &Problem,
    first: &[T],
    second: &[T],
    bias: Option<&[T]>,
    result: &mut [T],
    threads: usize,
) {
    let [_, channels, height, width] = problem.operand_shapes()[2];
    match problem.direction() {
        Direction::BackwardWeights => {
            // One filter is contiguous in both layouts.
            let chunk = problem.weight_shape()[1..].iter().product();
            for_each_chunk(threads, result, chunk, |k, filter| weight_gradient(problem, first, second, k, filter));
        }
        direction => {
            let row_of = |image: usize, row: usize, channel: usize| {
                let mut sums = vec![<T::Sum>::default(); width];
                match direction {
                    Direction::Forward => output_row(problem, first, second, [image, channel, row], &mut sums),
                    _ => input_gradient_row(problem, first, second, [image, channel, row], &mut sums),
                }
                if let Some(bias) = bias {
                    let bias = bias[channel].widen();
                    sums.iter_mut().for_each(|sum| *sum += bias);
                }
                sums
            };
            match problem.layout() {
                Layout::Nchw => for_each_chunk(threads, result, width, |number, chunk| {
                    let sums = row_of(number / (channels * height), number % height, number / height % channels);
                    chunk.iter_mut().zip(sums).for_each(|(to, sum)| *to = T::narrow(sum));
                }),
                Layout::Nhwc => for_each_chunk(threads, result, width * channels, |number, chunk| {
                    for channel in 0..channels {
                        let sums = row_of(number / height, number % height, channel);
                        chunk[channel..].iter_mut().step_by(channels).zip(sums).for_each(|(to, sum)| {
                            *to = T::narrow(sum);
                        });
                    }
                }),
            }
        }
    }
}

/// The outputs of one axis whose tap falls on the input, not on its padding.
pub(crate) fn valid_outputs(problem: &Problem, axis: usize, tap: usize) -> Range<usize> {
    let (stride, padding) = (problem.stride()[axis], problem.padding()[axis]);
    let reach = tap * problem.dilation()[axis];
    let start = padding.saturating_sub(reach).div_ceil(stride);
    let end = (problem.in_size()[axis] + padding).saturating_sub(reach).div_ceil(stride);
    start..end.min(problem.out_size()[axis]).max(start)
}

/// The input position of an output's tap that is known to fall on the input.
pub(crate) fn input_of(problem: &Problem, axis: usize, out: usize, tap: usize) -> usize {
    out * problem.stride()[axis] + tap * problem.dilation()[axis] - problem.padding()[axis]
}

/// The output row that a tap's row connects with an input row, if there is one.
fn output_row_of(problem: &Problem, input_row: usize, tap: usize) -> Option<usize> {
    let distance = (input_row + problem.padding()[0]).checked_sub(tap * problem.dilation()[0])?;
    let out = distance / problem.stride()[0];
    (distance % problem.stride()[0] == 0 && out < problem.out_size()[0]).then_some(out)
}

fn output_row<T: Number>(problem: &Problem, x: &[T], w: &[T], at: [usize; 3], sums: &mut [T::Sum]) {
    let [n, k, oh] = at;
    let layout = problem.layout();
    let (input, weight) = (Indexer::new(problem.input_shape(), layout), Indexer::new(problem.weight_shape(), layout));
    let channels = problem.in_channels() / problem.groups();
    let first_channel = k / (problem.out_channels() / problem.groups()) * channels;
    let step = (input.index([0, 0, 0, 1])) * problem.stride()[1];
    for c in 0..channels {
        for r in (0..problem.kernel()[0]).filter(|&r| valid_outputs(problem, 0, r).contains(&oh)) {
            let ih = input_of(problem, 0, oh, r);
            for s in 0..problem.kernel()[1] {
                let valid = valid_outputs(problem, 1, s);
                if valid.is_empty() {
                    continue;
                }
                let tap = w[weight.index([k, c, r, s])].widen();
                let iw = input_of(problem, 1, valid.start, s);
                let row = &x[input.index([n, first_channel + c, ih, iw])..];
                for (sum, value) in sums[valid].iter_mut().zip(row.iter().step_by(step)) {
                    *sum += value.widen() * tap;
                }
            }
        }
    }
}

fn input_gradient_row<T: Number>(problem: &Problem, dy: &[T], w: &[T], at: [usize; 3], sums: &mut [T::Sum]) {
    let [n, c, ih] = at;
    let layout = problem.layout();
    let (output, weight) = (Indexer::new(problem.output_shape(), layout), Indexer::new(problem.weight_shape(), layout));
    let channels = problem.in_channels() / problem.groups();
    let filters = problem.out_channels() / problem.groups();
    let step = output.index([0, 0, 0, 1]);
    for k in (c / channels * filters..).take(filters) {
        for r in 0..problem.kernel()[0] {
            let Some(oh) = output_row_of(problem, ih, r) else { continue };
            for s in 0..problem.kernel()[1] {
                let valid = valid_outputs(problem, 1, s);
                if valid.is_empty() {
                    continue;
                }
                let tap = w[weight.index([k, c % channels, r, s])].widen();
                let row = &dy[output.index([n, k, oh, valid.start])..];
                let to = sums[input_of(problem, 1, valid.start, s)..].iter_mut().step_by(problem.stride()[1]);
                for (sum, value) in to.zip(row.iter().step_by(step)).take(valid.len()) {
                    *sum += value.widen() * tap;
                }
            }
        }
    }
}

fn weight_gradient<T: Number>(problem: &Problem, x: &[T], dy: &[T], k: usize, filter: &mut [T]) {
    let layout = problem.layout();
    let (input, output) = (Indexer::new(problem.input_shape(), layout), Indexer::new(problem.output_shape(), layout));
    let weight = Indexer::new(problem.weight_shape(), layout);
    let channels = problem.in_channels() / problem.groups();
    let first_channel = k / (problem.out_channels() / problem.groups()) * channels;
    let (x_step, dy_step) = (input.index([0, 0, 0, 1]) * problem.stride()[1], output.index([0, 0, 0, 1]));
    let mut sum = PairwiseSum::default();
    for c in 0..channels {
        for r in 0..problem.kernel()[0] {
            for s in 0..problem.kernel()[1] {
                let (rows, columns) = (valid_outputs(problem, 0, r), valid_outputs(problem, 1, s));
                for n in 0..if columns.is_empty() { 0 } else { problem.batch() } {
                    for oh in rows.clone() {
                        let ih = input_of(problem, 0, oh, r);
                        let iw = input_of(problem, 1, columns.start, s);
                        let xs = x[input.index([n, first_channel + c, ih, iw])..].iter().step_by(x_step);
                        let dys = dy[output.index([n, k, oh, columns.start])..].iter().step_by(dy_step);
                        for (&x, &dy) in xs.zip(dys).take(columns.len()) {
                            sum.add(x.widen() * dy.widen());
                        }
                    }
                }
                filter[weight.index([0, c, r, s])] = T::narrow(sum.finish());
            }
        }
    }
}

/// A long sum: chains of at most [`CHAIN`] terms, added in pairs. So its error grows with the logarithm of the number
/// of chains and not with the number itself.
#[derive(Default)]
struct PairwiseSum<S> {
    chain: S,
    terms: usize,
    chains: usize,
    /// Sums of 2ⁿ chains each, the longest first: the binary digits of `chains`.
    levels: Vec<S>,
}

impl<S: Copy + Default + Add<Output = S> + AddAssign> PairwiseSum<S> {
    fn add(&mut self, term: S) {
        self.chain += term;
        self.terms += 1;
        if self.terms == CHAIN {
            let mut carry = std::mem::take(&mut self.chain);
            (0..self.chains.trailing_ones()).filter_map(|_| self.levels.pop()).for_each(|level| carry = level + carry);
            self.levels.push(carry);
            (self.terms, self.chains) = (0, self.chains + 1);
        }
    }

    /// The sum so far; begins a new one.
    fn finish(&mut self) -> S {
        let levels = std::mem::take(&mut self.levels);
        let sum = levels.into_iter().rev().fold(std::mem::take(&mut self.chain), |sum, level| level + sum);
        (self.terms, self.chains) = (0, 0);
        sum
    }
}
