//! Depthwise convolutions of a few filters a channel: with each channel repeated for each of them, they have one.

use unhang_conv::{Direction, Layout, Problem, Specification};

use super::work::Work;
use super::workspace::{Workspace, memory_for};
use crate::parallel::for_each_chunk;

/// Numbers of repeated channels at a time: with their results they stay in the second-level cache.
const REPEATED_NUMBERS: usize = 128 * 1024;

/// Numbers of both operands of a weight gradient at a time, whatever the number of threads: its sums are added.
const GRADIENT_NUMBERS: usize = 512 * 1024;

/// Computes a problem by the one with repeated channels, which `compute` computes, a few images at a time.
///
/// # Panics
/// When a slice is not as long as the problem says.
pub(super) fn compute(problem: &Problem, work: Work<'_>, compute: impl Fn(&Problem, Work<'_>)) {
    let Work { kernels, first, second, bias, result, threads } = work;
    let lengths = problem.operand_shapes().map(|shape| shape.iter().product::<usize>());
    assert_eq!([first.len(), second.len(), result.len()], lengths, "the operands' lengths");
    let channels = Channels::of(problem);
    let [input, output]: [usize; 2] =
        [problem.input_shape(), problem.output_shape()].map(|shape| shape[1..].iter().product());
    let repeated = input * channels.times;
    let most = (memory_for(lengths.iter().sum()) / (2 * repeated)).clamp(1, problem.batch());
    match problem.direction() {
        Direction::Forward => {
            let images = (threads * REPEATED_NUMBERS / (repeated + output)).clamp(1, most);
            let mut room = Workspace::take(images * repeated);
            for (x, result) in first.chunks(images * input).zip(result.chunks_mut(images * output)) {
                let room = &mut room[..x.len() * channels.times];
                channels.repeat(threads, x, room);
                let some = with_repeated(problem, x.len() / input);
                compute(&some, Work { kernels, first: room, second, bias, result, threads });
            }
        }
        Direction::BackwardData => {
            let images = (threads * REPEATED_NUMBERS / (repeated + output)).clamp(1, most);
            let mut room = Workspace::take(images * repeated);
            for (dy, dx) in first.chunks(images * output).zip(result.chunks_mut(images * input)) {
                let room = &mut room[..dx.len() * channels.times];
                let some = with_repeated(problem, dx.len() / input);
                compute(&some, Work { kernels, first: dy, second, bias: None, result: room, threads });
                channels.sum(threads, room, bias, dx);
            }
        }
        Direction::BackwardWeights => {
            let images = (GRADIENT_NUMBERS / (repeated + output)).clamp(1, most);
            let mut room = Workspace::take(images * repeated);
            let mut sums = Workspace::take(result.len());
            for (number, (x, dy)) in first.chunks(images * input).zip(second.chunks(images * output)).enumerate() {
                let room = &mut room[..x.len() * channels.times];
                channels.repeat(threads, x, room);
                let some = with_repeated(problem, x.len() / input);
                let to: &mut [f32] = if number == 0 { &mut *result } else { &mut sums };
                compute(&some, Work { kernels, first: room, second: dy, bias, result: to, threads });
                if number > 0 {
                    result.iter_mut().zip(sums.iter()).for_each(|(total, sum)| *total += sum);
                }
            }
        }
    }
}

/// The problem of one filter a channel for this many of the images.
fn with_repeated(problem: &Problem, images: usize) -> Problem {
    let filters = problem.out_channels() as i64;
    let one_each = Specification { in_channels: filters, groups: filters, ..problem.specification() };
    let one_each = Problem::new(one_each).and_then(|problem| problem.with_batch(images));
    one_each.expect("as many numbers as the problem has, a few times")
}

/// How the channels of the input lie.
struct Channels {
    layout: Layout,
    channels: usize,
    /// Pixels of a plane.
    plane: usize,
    /// Filters of a channel.
    times: usize,
}

impl Channels {
    fn of(problem: &Problem) -> Channels {
        let [_, channels, height, width] = problem.input_shape();
        let times = problem.out_channels() / channels;
        Channels { layout: problem.layout(), channels, plane: height * width, times }
    }

    /// Writes each channel `times` times, side by side.
    fn repeat(&self, threads: usize, from: &[f32], to: &mut [f32]) {
        let Channels { plane, times, .. } = *self;
        match self.layout {
            Layout::Nchw => for_each_chunk(threads, to, times * plane, |channel, to| {
                to.chunks_mut(plane).for_each(|to| to.copy_from_slice(&from[channel * plane..][..plane]));
            }),
            Layout::Nhwc => for_each_chunk(threads, to, times * plane * self.channels, |image, to| {
                let from = &from[image * plane * self.channels..][..plane * self.channels];
                match times {
                    2 => repeat::<2>(from, to),
                    3 => repeat::<3>(from, to),
                    4 => repeat::<4>(from, to),
                    _ => unreachable!("Algorithm::choose takes a few filters a channel"),
                }
            }),
        }
    }

    /// Adds up what the repetitions of each channel got, and the bias.
    fn sum(&self, threads: usize, from: &[f32], bias: Option<&[f32]>, to: &mut [f32]) {
        let Channels { channels, plane, times, .. } = *self;
        let bias = |channel: usize| bias.map_or(0.0, |bias| bias[channel]);
        match self.layout {
            Layout::Nchw => for_each_chunk(threads, to, plane, |channel, to| {
                to.fill(bias(channel % channels));
                for from in from[channel * times * plane..][..times * plane].chunks(plane) {
                    to.iter_mut().zip(from).for_each(|(to, number)| *to += number);
                }
            }),
            Layout::Nhwc => for_each_chunk(threads, to, plane * channels, |image, to| {
                let from = &from[image * plane * channels * times..];
                for (to, from) in to.chunks_mut(channels).zip(from.chunks(channels * times)) {
                    for (channel, (to, from)) in to.iter_mut().zip(from.chunks(times)).enumerate() {
                        *to = from.iter().fold(bias(channel), |sum, number| sum + number);
                    }
                }
            }),
        }
    }
}

fn repeat<const TIMES: usize>(from: &[f32], to: &mut [f32]) {
    let (to, _) = to.as_chunks_mut::<TIMES>();
    to.iter_mut().zip(from).for_each(|(to, &number)| *to = [number; TIMES]);
}
