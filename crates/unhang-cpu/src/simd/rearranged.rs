//! Problems that another computes, once their operands are arranged as it wants them.
//!
//! * 1×1 with a stride in NCHW: the pixels that the filters meet are brought together, and it is one without a stride.
//! * Small groups in NHWC, which would fill a part of a vector with channels: planes are made of a few images at a time, and
//!   taken apart again.

use unhang_conv::{Direction, Layout, Problem, Specification};

use super::kernels::Kernels;
use super::work::Work;
use super::workspace::{Shared, Workspace};
use crate::parallel::{for_each_chunk, for_each_unit};

/// Numbers of the planes that are made at a time: with their results they stay in the second-level cache.
const PLANES_NUMBERS: usize = 128 * 1024;

/// Channels of the input above which pixels are brought together for a filter's gradient: with fewer it reads them where they are.
const MANY_CHANNELS: usize = 256;

/// The problem without a stride that computes one of 1×1 taps in NCHW from the pixels that they meet, where that pays.
pub(super) fn without_stride(problem: &Problem) -> Option<Problem> {
    let pays = problem.direction() != Direction::BackwardWeights || problem.in_channels() > MANY_CHANNELS;
    let is_strided = problem.kernel() == [1, 1] && problem.padding() == [0, 0] && problem.stride() != [1, 1] && pays;
    let in_size = problem.out_size().map(|size| size as i64);
    let dense = Specification { in_size, stride: [1, 1], dilation: [1, 1], ..problem.specification() };
    (is_strided && problem.layout() == Layout::Nchw).then(|| Problem::new(dense).ok()).flatten()
}

/// Computes a problem of 1×1 taps by the one [`without_stride`], which `compute` computes.
///
/// # Panics
/// When a slice is not as long as the problem says.
pub(super) fn compute_without_stride(
    problem: &Problem,
    dense: &Problem,
    work: Work<'_>,
    compute: impl Fn(&Problem, Work<'_>),
) {
    let Work { kernels, first, second, bias, result, threads } = work;
    let lengths = problem.operand_shapes().map(|shape| shape.iter().product::<usize>());
    assert_eq!([first.len(), second.len(), result.len()], lengths, "the operands' lengths");
    let mut met = Workspace::take(dense.input_shape().iter().product());
    if problem.direction() != Direction::BackwardData {
        let [_, _, height, width] = dense.input_shape();
        for_each_chunk(threads, &mut met, height * width, |plane, to| {
            bring_together(problem, kernels, first, plane, to)
        });
        return compute(dense, Work { kernels, first: &met, second, bias, result, threads });
    }
    compute(dense, Work { kernels, first, second, bias, result: &mut met, threads });
    let [_, channels, height, width] = problem.input_shape();
    let ([rows, columns], [_, _, _, met_width]) = (problem.stride(), dense.input_shape());
    let of_plane = met.len() / (problem.batch() * channels);
    for_each_chunk(threads, result, height * width, |plane, to| {
        // What no tap meets is the bias alone.
        to.fill(bias.map_or(0.0, |bias| bias[plane % channels]));
        let met = &met[plane * of_plane..][..of_plane];
        for (to, met) in to.chunks_mut(width).step_by(rows).zip(met.chunks(met_width)) {
            to.iter_mut().step_by(columns).zip(met).for_each(|(to, &sum)| *to = sum);
        }
    });
}

/// Brings the pixels of a plane of the input together that the filters meet.
fn bring_together(problem: &Problem, kernels: &Kernels, input: &[f32], plane: usize, to: &mut [f32]) {
    let [_, _, height, width] = problem.input_shape();
    let ([rows, columns], [_, met_width]) = (problem.stride(), problem.out_size());
    let from = &input[plane * height * width..][..height * width];
    for (from, to) in from.chunks(width).step_by(rows).zip(to.chunks_mut(met_width)) {
        assert!((to.len() - 1) * columns < from.len());
        // SAFETY: as many numbers of a row as were just checked.
        unsafe { (kernels.row)(from.as_ptr(), columns, to.len(), to.as_mut_ptr()) };
    }
}

/// Computes a forward or backward-data problem in NHWC by planes, a few images at a time.
///
/// # Panics
/// When a slice is not as long as the problem says.
pub(super) fn compute_by_planes(problem: &Problem, work: Work<'_>, compute: impl Fn(&Problem, Work<'_>)) {
    let Work { kernels, first, second: weight, bias, result, threads } = work;
    let shapes = problem.operand_shapes();
    let [of_first, of_weight, of_result] = shapes.map(|shape| shape.iter().product::<usize>());
    assert_eq!([first.len(), weight.len(), result.len()], [of_first, of_weight, of_result], "the operands' lengths");
    let batch = problem.batch();
    let [first_image, result_image] = [of_first / batch, of_result / batch];
    let mut filters = Workspace::take(of_weight);
    let [_, of_group, rows, columns] = problem.weight_shape();
    transpose(kernels, threads, weight, [rows * columns, of_group], &mut filters);
    let images = (PLANES_NUMBERS / (first_image + result_image)).clamp(1, batch);
    let mut planes = Workspace::take(images * first_image);
    let mut sums = Workspace::take(images * result_image);
    for (first, result) in first.chunks(images * first_image).zip(result.chunks_mut(images * result_image)) {
        let count = first.len() / first_image;
        let some = problem.with_layout(Layout::Nchw).with_batch(count).expect("a part of the batch");
        let (planes, sums) = (&mut planes[..first.len()], &mut sums[..result.len()]);
        let [channels, results] = [shapes[0][1], shapes[2][1]];
        transpose(kernels, threads, first, [first_image / channels, channels], planes);
        compute(&some, Work { kernels, first: planes, second: &filters, bias, result: sums, threads });
        transpose(kernels, threads, sums, [results, result_image / results], result);
    }
}

/// Transposes every matrix of that many rows and columns.
fn transpose(kernels: &Kernels, threads: usize, from: &[f32], [rows, columns]: [usize; 2], to: &mut [f32]) {
    assert!(from.len() == to.len() && from.len().is_multiple_of(rows * columns));
    let offsets: Vec<usize> = (0..columns).map(|column| column * rows).collect();
    let to = Shared(to.as_mut_ptr());
    for_each_unit(threads, from.len() / (rows * columns), |matrix| {
        let begin = matrix * rows * columns;
        // SAFETY: a matrix of this many rows and columns on both sides, which no other unit writes.
        unsafe {
            let to = to.get().add(begin);
            (kernels.transpose)(from[begin..].as_ptr(), columns, rows, columns, to, offsets.as_ptr());
        }
    });
}
