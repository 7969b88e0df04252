//! Problems that another computes, once their operands are arranged as it wants them.
//!
//! * 1×1 with a stride in NCHW: the pixels that the filters meet are brought together, and it is one without a stride.
//! * Large filters that meet each pixel once: each tap's pixels (NCHW) or each patch's rows (NHWC) are brought together, and it is
//!   one of 1×1 taps with a channel for each.
//! * Small groups in NHWC, which would fill a part of a vector with channels: planes are made of a few images at a time, and
//!   taken apart again.

use unhang_conv::{Direction, Layout, Problem, Specification};

use super::work::Work;
use super::workspace::{Shared, Workspace};
use crate::parallel::{for_each_chunk, for_each_unit};
use unhang_simd::Kernels;

/// Numbers of the planes that are made at a time: with their results they stay in the second-level cache.
const PLANES_NUMBERS: usize = 128 * 1024;

/// Numbers of both operands of a weight gradient at a time, whatever the number of threads: its sums are added.
const GRADIENT_NUMBERS: usize = 512 * 1024;

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

/// Computes a forward problem of filters that meet each pixel once by one of 1×1 taps, which `compute` computes.
///
/// # Panics
/// When a slice is not as long as the problem says.
pub(super) fn compute_patches(problem: &Problem, work: Work<'_>, compute: impl Fn(&Problem, Work<'_>)) {
    let Work { kernels, first, second, bias, result, threads } = work;
    let [_, channels, height, width] = problem.input_shape();
    let ([rows, columns], [out_rows, out_columns]) = (problem.kernel(), problem.out_size());
    assert_eq!(first.len(), problem.batch() * channels * height * width, "the input's length");
    let dense = Problem::new(Specification {
        in_channels: (channels * rows * columns) as i64,
        in_size: [out_rows as i64, out_columns as i64],
        kernel: [1, 1],
        stride: [1, 1],
        ..problem.specification()
    });
    let plane = out_rows * out_columns;
    let mut taps = Workspace::take(problem.batch() * channels * rows * columns * plane);
    let dense = dense.expect("as many numbers as the problem has");
    if problem.layout() == Layout::Nhwc {
        // The numbers of a patch's row are neighbours, as are those of a filter's.
        let (of_row, of_image) = (columns * channels, width * channels);
        for_each_chunk(threads, &mut taps, out_columns * rows * of_row, |line, to| {
            let from = &first[(line / out_rows * height + line % out_rows * rows) * of_image..][..rows * of_image];
            for (row, from) in from.chunks(of_image).enumerate() {
                let (from, to) = (&from[..out_columns * of_row], &mut to[row * of_row..]);
                // SAFETY: a row of each patch on both sides; the last ends where a line of patches does.
                unsafe {
                    let to = to[..(out_columns - 1) * rows * of_row + of_row].as_mut_ptr();
                    (kernels.rows)(from.as_ptr(), of_row, to, rows * of_row, of_row, out_columns);
                }
            }
        });
        return compute(&dense, Work { kernels, first: &taps, second, bias, result, threads });
    }
    let offsets: Vec<usize> = (0..columns).map(|column| column * plane).collect();
    for_each_chunk(threads, &mut taps, rows * columns * plane, |image_and_channel, to| {
        let from = &first[image_and_channel * height * width..][..height * width];
        for (row, tap) in (0..out_rows).flat_map(|row| (0..rows).map(move |tap| (row, tap))) {
            let from = &from[(row * rows + tap) * width..][..out_columns * columns];
            let to = &mut to[tap * columns * plane + row * out_columns..][..(columns - 1) * plane + out_columns];
            // SAFETY: a row of patches on one side, and a row of each tap's pixels on the other, as long as was just checked.
            unsafe {
                let offsets = offsets.as_ptr();
                (kernels.transpose)(from.as_ptr(), columns, out_columns, columns, to.as_mut_ptr(), offsets);
            }
        }
    });
    compute(&dense, Work { kernels, first: &taps, second, bias, result, threads });
}

/// Computes a problem in NHWC by planes, a few images at a time.
///
/// # Panics
/// When a slice is not as long as the problem says.
pub(super) fn compute_by_planes(problem: &Problem, work: Work<'_>, compute: impl Fn(&Problem, Work<'_>)) {
    let lengths = problem.operand_shapes().map(|shape| shape.iter().product::<usize>());
    assert_eq!([work.first.len(), work.second.len(), work.result.len()], lengths, "the operands' lengths");
    match problem.direction() {
        Direction::BackwardWeights => gradient_by_planes(problem, work, compute),
        _ => images_by_planes(problem, work, compute),
    }
}

/// Forward and backward-data.
fn images_by_planes(problem: &Problem, work: Work<'_>, compute: impl Fn(&Problem, Work<'_>)) {
    let Work { kernels, first, second: weight, bias, result, threads } = work;
    let batch = problem.batch();
    let [channels, _, results] = problem.operand_shapes().map(|shape| shape[1]);
    let [first_image, result_image] = [first.len() / batch, result.len() / batch];
    let mut filters = Workspace::take(weight.len());
    let [_, of_group, rows, columns] = problem.weight_shape();
    transpose(kernels, threads, weight, [rows * columns, of_group], &mut filters);
    let images = (threads * PLANES_NUMBERS / (first_image + result_image)).clamp(1, batch);
    let mut planes = Workspace::take(images * first_image);
    let mut sums = Workspace::take(images * result_image);
    for (first, result) in first.chunks(images * first_image).zip(result.chunks_mut(images * result_image)) {
        let some = in_planes(problem, first.len() / first_image);
        let (planes, sums) = (&mut planes[..first.len()], &mut sums[..result.len()]);
        transpose(kernels, threads, first, [first_image / channels, channels], planes);
        compute(&some, Work { kernels, first: planes, second: &filters, bias, result: sums, threads });
        transpose(kernels, threads, sums, [results, result_image / results], result);
    }
}

/// Weight gradients.
fn gradient_by_planes(problem: &Problem, work: Work<'_>, compute: impl Fn(&Problem, Work<'_>)) {
    let Work { kernels, first: x, second: dy, bias, result, threads } = work;
    let [channels, filters, _] = problem.operand_shapes().map(|shape| shape[1]);
    let [x_image, dy_image] = [x.len(), dy.len()].map(|all| all / problem.batch());
    let images = (GRADIENT_NUMBERS / (x_image + dy_image)).clamp(1, problem.batch());
    let [mut x_planes, mut dy_planes] = [x_image, dy_image].map(|image| Workspace::take(images * image));
    let [mut sums, mut total] = [0, 1].map(|_| Workspace::take(result.len()));
    for (number, (x, dy)) in x.chunks(images * x_image).zip(dy.chunks(images * dy_image)).enumerate() {
        let some = in_planes(problem, x.len() / x_image);
        let (x_planes, dy_planes) = (&mut x_planes[..x.len()], &mut dy_planes[..dy.len()]);
        transpose(kernels, threads, x, [x_image / channels, channels], x_planes);
        transpose(kernels, threads, dy, [dy_image / filters, filters], dy_planes);
        let to: &mut [f32] = if number == 0 { &mut total } else { &mut sums };
        compute(&some, Work { kernels, first: x_planes, second: dy_planes, bias, result: to, threads });
        if number > 0 {
            // SAFETY: as many numbers on both sides.
            unsafe { (kernels.add)(sums.as_ptr(), total.as_mut_ptr(), total.len()) };
        }
    }
    let [_, of_group, rows, columns] = problem.weight_shape();
    transpose(kernels, threads, &total, [of_group, rows * columns], result);
}

/// The problem in NCHW for this many of the images.
fn in_planes(problem: &Problem, images: usize) -> Problem {
    problem.with_layout(Layout::Nchw).with_batch(images).expect("a part of the batch")
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
