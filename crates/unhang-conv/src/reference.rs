//! The plain reference: a convolution by its definition, one multiplication after the other, summed in f64.
//!
//! It is slow, and short enough to check by reading. It judges every engine; the tests of the Python package compare it
//! with torch.

use crate::problem::{Direction, Layout, Problem, TensorShape};
use crate::volume::Volume;

/// Computes a problem in its direction. Operands and result are those of [`Problem::operand_shapes`], in the problem's
/// layout.
///
/// The bias, one element per output channel, is added in the forward direction only.
///
/// # Panics
/// If a slice's length does not match the problem.
pub fn compute<T: Copy + Into<f64>>(problem: &Problem, first: &[T], second: &[T], bias: Option<&[T]>) -> Vec<f64> {
    let lowered = problem.lower();
    let (first, second) = if lowered.operands_exchanged { (second, first) } else { (first, second) };
    let mut result = compute_ordinary(&lowered.problem, &in_double(first), &in_double(second));
    if let (Some(bias), Direction::Forward) = (bias, problem.direction()) {
        add_bias(problem, &mut result, bias);
    }
    result
}

/// The gradient of the bias: the gradient of the output summed over everything but the channels.
pub fn bias_gradient<T: Copy + Into<f64>>(problem: &Problem, grad_output: &[T]) -> Vec<f64> {
    let shape = problem.output_shape();
    let at = Indexer::new(shape, problem.layout());
    let mut sums = vec![0.0; shape[1]];
    for n in 0..shape[0] {
        for (c, sum) in sums.iter_mut().enumerate() {
            for h in 0..shape[2] {
                for w in 0..shape[3] {
                    *sum += grad_output[at.index([n, c, h, w])].into();
                }
            }
        }
    }
    sums
}

fn add_bias<T: Copy + Into<f64>>(problem: &Problem, result: &mut [f64], bias: &[T]) {
    let shape = problem.output_shape();
    assert_eq!(bias.len(), shape[1], "one number of bias for each output channel");
    let at = Indexer::new(shape, problem.layout());
    for n in 0..shape[0] {
        for (c, &value) in bias.iter().enumerate() {
            for h in 0..shape[2] {
                for w in 0..shape[3] {
                    result[at.index([n, c, h, w])] += value.into();
                }
            }
        }
    }
}

fn in_double<T: Copy + Into<f64>>(numbers: &[T]) -> Vec<f64> {
    numbers.iter().map(|&number| number.into()).collect()
}

/// All three directions visit the same terms: each output pixel with each tap of the filter that falls on the input.
/// They differ in the tensor that receives the sums.
fn compute_ordinary(problem: &Problem, first: &[f64], second: &[f64]) -> Vec<f64> {
    let [first_shape, second_shape, result_shape] = problem.operand_shapes();
    assert_eq!(first.len(), first_shape.iter().product::<usize>(), "the first operand's length");
    assert_eq!(second.len(), second_shape.iter().product::<usize>(), "the second operand's length");
    let layout = problem.layout();
    let input = Indexer::new(problem.input_shape(), layout);
    let weight = Indexer::new(problem.weight_shape(), layout);
    let output = Indexer::new(problem.output_shape(), layout);
    let mut result = vec![0.0f64; result_shape.iter().product()];

    let channels_per_group = problem.in_channels() / problem.groups();
    let filters_per_group = problem.out_channels() / problem.groups();
    for n in 0..problem.batch() {
        for k in 0..problem.out_channels() {
            let first_channel = k / filters_per_group * channels_per_group;
            for oh in 0..problem.out_size()[0] {
                for ow in 0..problem.out_size()[1] {
                    for r in 0..problem.kernel()[0] {
                        let Some(ih) = input_position(problem, 0, oh, r) else { continue };
                        for s in 0..problem.kernel()[1] {
                            let Some(iw) = input_position(problem, 1, ow, s) else { continue };
                            let [x, w] = [input.index([n, first_channel, ih, iw]), weight.index([k, 0, r, s])];
                            let y = output.index([n, k, oh, ow]);
                            for c in 0..channels_per_group {
                                let (x, w) = (x + c * input.strides[1], w + c * weight.strides[1]);
                                match problem.direction() {
                                    Direction::Forward => result[y] += first[x] * second[w],
                                    Direction::BackwardData => result[x] += first[y] * second[w],
                                    Direction::BackwardWeights => result[w] += first[x] * second[y],
                                }
                            }
                        }
                    }
                }
            }
        }
    }
    result
}

/// Computes a 3-d convolution in its direction, by its definition and not by folding it. Operands and result are those
/// of [`Volume::operand_shapes`]. The bias is added in the forward direction only.
///
/// # Panics
/// If a slice's length does not match the convolution.
pub fn compute_volume<T: Copy + Into<f64>>(volume: &Volume, first: &[T], second: &[T], bias: Option<&[T]>) -> Vec<f64> {
    let (lowered, exchanged) = volume.lower();
    let (first, second) = if exchanged { (second, first) } else { (first, second) };
    let shapes = lowered.operand_shapes();
    for (given, shape) in [(first, shapes[0]), (second, shapes[1])] {
        assert_eq!(given.len(), shape.iter().product::<usize>(), "an operand's length");
    }
    let at = |shape: [usize; 5], position: [usize; 5]| -> usize {
        position.iter().zip(Volume::dense_strides(shape, volume.layout())).map(|(p, s)| p * s).sum()
    };
    let (input, weight, output) = (lowered.input_shape(), lowered.weight_shape(), lowered.output_shape());
    let (plane, depth) = (&lowered.plane, lowered.depth);
    let filters_per_group = output[1] / plane.groups;
    let met = |o: usize, t: usize| {
        let position = (o * depth.stride + t * depth.dilation).checked_sub(depth.padding)?;
        (position < depth.input).then_some(position)
    };
    let mut result = vec![0.0; shapes[2].iter().product()];
    for_each(output, |[n, k, o, oh, ow]| {
        for_each([1, weight[1], weight[2], weight[3], weight[4]], |[_, c, t, r, s]| {
            let (Some(d), Some(h), Some(w)) =
                (met(o, t), input_position(plane, 0, oh, r), input_position(plane, 1, ow, s))
            else {
                return;
            };
            let x = at(input, [n, k / filters_per_group * weight[1] + c, d, h, w]);
            let (f, y) = (at(weight, [k, c, t, r, s]), at(output, [n, k, o, oh, ow]));
            match lowered.direction() {
                Direction::Forward => result[y] += first[x].into() * second[f].into(),
                Direction::BackwardData => result[x] += first[y].into() * second[f].into(),
                Direction::BackwardWeights => result[f] += first[x].into() * second[y].into(),
            }
        });
    });
    if let (Some(bias), Direction::Forward) = (bias, volume.direction()) {
        let shape = volume.output_shape();
        for_each(shape, |position| result[at(shape, position)] += bias[position[1]].into());
    }
    result
}

fn for_each(shape: [usize; 5], mut visit: impl FnMut([usize; 5])) {
    for index in 0..shape.iter().product() {
        let (mut rest, mut position) = (index, [0; 5]);
        for axis in (0..5).rev() {
            (position[axis], rest) = (rest % shape[axis], rest / shape[axis]);
        }
        visit(position);
    }
}

/// The input row (axis 0) or column (axis 1) under a tap of the filter, unless that is in the padding.
fn input_position(problem: &Problem, axis: usize, out: usize, tap: usize) -> Option<usize> {
    let padded = out * problem.stride()[axis] + tap * problem.dilation()[axis];
    let position = padded.checked_sub(problem.padding()[axis])?;
    (position < problem.in_size()[axis]).then_some(position)
}

/// Computes an element's offset in memory.
#[derive(Debug, Clone, Copy)]
pub struct Indexer {
    strides: [usize; 4],
}

impl Indexer {
    /// For a dense tensor of that logical shape in that layout.
    pub fn new(shape: TensorShape, layout: Layout) -> Indexer {
        Indexer { strides: layout.strides(shape) }
    }

    /// The offset of the element at that logical position.
    pub fn index(self, position: [usize; 4]) -> usize {
        let ([n, c, h, w], [of_n, of_c, of_h, of_w]) = (position, self.strides);
        n * of_n + c * of_c + h * of_h + w * of_w
    }
}
