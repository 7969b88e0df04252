//! Which elements of a kernel's first result are compared with the definition.
//!
//! They are at the corners of the first and last image, in the first and last channels of the first and last group:
//! there tiles are ragged and mistakes live. Others are at a few places between. An element of a filter's gradient sums
//! over all pixels, so the more pixels there are the fewer of those are compared. Whole results would be the stronger
//! proof: they take as long as the CPU takes for the convolution, and canaries compare them on small ones.

use std::ops::Range;

use unhang_conv::{DataType, Direction, Layout, Problem, Specification};
use unhang_engine::{Comparison, ElementPosition, Elements};
use unhang_probe::child::advance;

use crate::host::Numbers;
use crate::view::View;

/// Channels at each end of a group.
const CHANNELS: usize = 4;
/// Positions between the corners.
const BETWEEN: usize = 4;
/// With more pixels than the first of these, one filter and channel are compared at each end. With more than the second
/// it is five of its taps, with more than the third one end only.
const MANY_PIXELS: [usize; 3] = [1 << 12, 1 << 14, 1 << 17];

/// A few channels at the beginning and at the end of a group.
fn ends(total: usize) -> Vec<Range<usize>> {
    let few = total.min(CHANNELS);
    let last = (total - few).max(few)..total;
    [0..few, last].into_iter().filter(|range| !range.is_empty()).collect()
}

/// Image, row and column of pixels: corners and a few between, the same each time.
fn positions(batch: usize, height: usize, width: usize) -> Vec<[usize; 3]> {
    let last = [batch - 1, height - 1, width - 1];
    let mut positions = vec![[0; 3], [0, 0, last[2]], [last[0], last[1], 0], last];
    let mut seed = 0x9e37_79b9_u64;
    for _ in 0..BETWEEN {
        positions.push([batch, height, width].map(|size| (advance(&mut seed) >> 33) as usize % size));
    }
    without_repeats(positions)
}

/// The gradients of filters that are compared.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Filters {
    /// Group, filter of the group and channel of the group at which each block begins.
    corners: Vec<[usize; 3]>,
    /// Filters and channels of a block.
    block: [usize; 2],
    /// Row and column of the taps.
    taps: Vec<[usize; 2]>,
}

/// The gradients of filters to compare, if each is a sum over that many pixels.
fn filters(groups: usize, [rows, channels]: [usize; 2], kernel: [usize; 2], pixels: usize) -> Filters {
    let few = if pixels > MANY_PIXELS[0] { 1 } else { 2 };
    let block = [few.min(rows), few.min(channels)];
    let last = [groups - 1, rows - block[0], channels - block[1]];
    let all = vec![[0; 3], [groups - 1, 0, 0], last];
    let corners = if pixels <= MANY_PIXELS[2] { without_repeats(all) } else { vec![last] };
    // For a large window: the corners, the middles of its edges, and its middle.
    let [down, across] = kernel.map(|size| [0, size / 2, size - 1]);
    let taps = if pixels > MANY_PIXELS[1] {
        [0, 1, 2].into_iter().flat_map(|at| [[down[at], across[at]], [down[at], across[2 - at]]]).collect()
    } else {
        down.into_iter().flat_map(|row| across.map(|column| [row, column])).collect()
    };
    Filters { corners, block, taps: without_repeats(taps) }
}

/// A tensor of a convolution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TensorName {
    /// The first operand.
    First,
    /// The second operand.
    Second,
    /// The bias.
    Bias,
    /// The result.
    Result,
}

/// A block of a tensor, and where in a part of the parcel it goes: a range for each axis.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// Of which tensor.
    pub tensor: TensorName,
    /// Which elements.
    pub from: Vec<Range<usize>>,
    /// Where they go.
    pub to: Vec<Range<usize>>,
}

/// Elements of the parcel that lie together as a dense tensor: zeros except for the pieces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SamplePart {
    /// The first of them.
    pub begin: usize,
    /// The tensor's shape.
    pub shape: Vec<usize>,
    /// What is in it.
    pub pieces: Vec<Piece>,
}

impl SamplePart {
    /// The places of its elements in the parcel.
    pub fn elements(&self) -> Range<usize> {
        self.begin..self.begin + self.shape.iter().product::<usize>()
    }
}

/// The inputs of the compared elements, cut out of the tensors: a parcel of parts that one copy brings to the host
/// (each copy waits for the device), and small convolutions on them.
#[derive(Debug, Clone)]
pub struct Sample {
    data_type: DataType,
    parts: Vec<SamplePart>,
    small: Vec<Small>,
}

/// A convolution on parts of the parcel, with some elements of its result known.
#[derive(Debug, Clone)]
struct Small {
    problem: Problem,
    /// The parts that are its operands.
    operands: [usize; 2],
    bias: Option<usize>,
    places: Vec<ElementPosition>,
    /// The place in the parcel of the result's element for each position.
    found: Vec<usize>,
}

impl Sample {
    /// The sample of a convolution's result.
    pub fn new(problem: &Problem, has_bias: bool) -> Sample {
        let lowered = problem.lower();
        let mut sample = Sample { data_type: problem.data_type(), parts: Vec::new(), small: Vec::new() };
        match lowered.problem.direction() {
            Direction::BackwardWeights => sample.add_filters(&lowered.problem),
            _ => sample.add_pixels(&lowered.problem, has_bias),
        }
        if lowered.operands_exchanged {
            for piece in sample.parts.iter_mut().flat_map(|part| &mut part.pieces) {
                piece.tensor = match piece.tensor {
                    TensorName::First => TensorName::Second,
                    TensorName::Second => TensorName::First,
                    other => other,
                };
            }
        }
        sample
    }

    /// The parts of the parcel, one after another.
    pub fn parts(&self) -> &[SamplePart] {
        &self.parts
    }

    /// How many elements the parcel has.
    pub fn len(&self) -> usize {
        self.parts.last().map_or(0, |part| part.elements().end)
    }

    /// Whether there is nothing to compare.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The parcel of tensors in the host's memory in the problem's layout: first, second, result. No bias.
    pub(crate) fn parcel(&self, problem: &Problem, tensors: [&Numbers; 3]) -> Numbers {
        let strides = problem.operand_shapes().map(|shape| View::dense_strides(shape, problem.layout()));
        let mut parcel = Numbers::zeros(self.data_type, self.len());
        for part in &self.parts {
            let Ok(shape) = part.shape[..].try_into() else { continue };
            for piece in &part.pieces {
                let which = match piece.tensor {
                    TensorName::First => 0,
                    TensorName::Second => 1,
                    TensorName::Result => 2,
                    TensorName::Bias => continue,
                };
                let from = places(&piece.from, strides[which]);
                let to = places(&piece.to, View::dense_strides(shape, Layout::Nchw));
                for (from, to) in from.into_iter().zip(to) {
                    parcel.set(part.begin + to, tensors[which].get(from));
                }
            }
        }
        parcel
    }

    /// Whether the parcel's numbers are right, and their error. `None` if they prove nothing.
    ///
    /// # Panics
    /// If the parcel is not of this sample's type and length.
    pub fn finding(&self, parcel: Elements<'_>) -> (Option<bool>, String) {
        assert_eq!((parcel.len(), parcel.data_type()), (self.len(), self.data_type), "a parcel of this sample");
        let mut comparison = Comparison::new(self.data_type);
        let part = |at: usize| some_of(parcel, self.parts[at].elements());
        for small in &self.small {
            let found: Vec<f64> = small.found.iter().map(|&at| parcel.get(at)).collect();
            let operands = small.operands.map(part);
            comparison.add(&small.problem, operands, small.bias.map(part), &small.places, &found);
        }
        comparison.finding()
    }

    /// Adds a part; its number.
    fn part(&mut self, shape: &[usize], pieces: Vec<Piece>) -> usize {
        self.parts.push(SamplePart { begin: self.len(), shape: shape.to_vec(), pieces });
        self.parts.len() - 1
    }

    fn add_small(&mut self, specification: Specification, small: impl FnOnce(Problem) -> Small) {
        // A part of a convolution is a valid convolution; if it were not, nothing would be compared and nothing proven.
        self.small.extend(Problem::new(specification).ok().map(small));
    }

    /// Forward: each output and the window that it sees. Backward-data: each input and the outputs that saw it.
    fn add_pixels(&mut self, problem: &Problem, has_bias: bool) {
        let is_forward = problem.direction() == Direction::Forward;
        let [[_, all_channels, in_height, in_width], _, [batch, all_rows, height, width]] = problem.operand_shapes();
        let (kernel, groups) = (problem.kernel(), problem.groups());
        let (rows, channels) = (all_rows / groups, all_channels / groups);
        let window = window(problem);
        let positions = positions(batch, height, width);
        let count = positions.len();
        let looks: Vec<Look> =
            positions.iter().map(|&[_, row, column]| Look::at(problem, window, [row, column])).collect();
        let ends = ends(rows);
        let few: Vec<usize> = ends.iter().cloned().flatten().collect();
        let specification = small_of_pixels(problem, [count, channels, few.len()], window);
        for group in without_repeats(vec![0, groups - 1]) {
            let own = group * channels..(group + 1) * channels;
            let whole = group * rows..(group + 1) * rows;
            let windows = positions.iter().zip(&looks).enumerate().filter_map(|(number, ([image, ..], look))| {
                let (from_rows, to_rows) = overlap(look.begin[0], window[0], in_height)?;
                let (from_columns, to_columns) = overlap(look.begin[1], window[1], in_width)?;
                Some(Piece {
                    tensor: TensorName::First,
                    from: vec![*image..image + 1, own.clone(), from_rows, from_columns],
                    to: vec![number..number + 1, 0..channels, to_rows, to_columns],
                })
            });
            let first = self.part(&[count, channels, window[0], window[1]], windows.collect());
            let taps = [0..kernel[0], 0..kernel[1]];
            let of_end = |end: &Range<usize>| group * rows + end.start..group * rows + end.end;
            let filters = beside(&ends).map(|(end, to)| {
                let (from, to) = if is_forward {
                    ([of_end(&end), 0..channels], [to, 0..channels])
                } else {
                    ([own.clone(), end], [0..channels, to])
                };
                let with_taps = |it: [Range<usize>; 2]| it.into_iter().chain(taps.clone()).collect();
                Piece { tensor: TensorName::Second, from: with_taps(from), to: with_taps(to) }
            });
            let filters = filters.collect();
            let [out, of] = if is_forward { [few.len(), channels] } else { [channels, few.len()] };
            let second = self.part(&[out, of, kernel[0], kernel[1]], filters);
            let biases = beside(&ends).map(|(end, to)| Piece {
                tensor: TensorName::Bias,
                from: vec![of_end(&end)],
                to: vec![to],
            });
            let biases = biases.collect();
            let bias = has_bias.then(|| self.part(&[few.len()], biases));
            // All channels of a pixel, a few of which are compared: one piece for each pixel.
            let pixels = positions.iter().enumerate().map(|(number, &[image, row, column])| Piece {
                tensor: TensorName::Result,
                from: vec![image..image + 1, whole.clone(), row..row + 1, column..column + 1],
                to: vec![number..number + 1, 0..rows, 0..1, 0..1],
            });
            let result = self.part(&[count, rows, 1, 1], pixels.collect());
            let begin = self.parts[result].begin;
            let (mut places, mut found) = (Vec::new(), Vec::new());
            for (number, look) in looks.iter().enumerate() {
                let [row, column] = look.inside;
                for (at, channel) in few.iter().enumerate() {
                    places.push([number, at, row, column]);
                    found.push(begin + number * rows + channel);
                }
            }
            let operands = [first, second];
            self.add_small(specification.clone(), |problem| Small { problem, operands, bias, places, found });
        }
    }

    /// The gradients of a few filters: a convolution with few channels, on all pixels. Each corner is a group of it.
    fn add_filters(&mut self, problem: &Problem) {
        let [input, gradient, [all_rows, channels, height, width]] = problem.operand_shapes();
        let groups = problem.groups();
        let rows = all_rows / groups;
        let pixels = gradient[0] * gradient[2] * gradient[3];
        let Filters { corners, block: [few_rows, few_channels], taps } =
            filters(groups, [rows, channels], [height, width], pixels);
        let piece =
            |tensor, from: [Range<usize>; 4], to: [Range<usize>; 4]| Piece { tensor, from: from.into(), to: to.into() };
        let (mut inputs, mut gradients, mut found) = (Vec::new(), Vec::new(), Vec::new());
        for (number, [group, row, channel]) in corners.iter().enumerate() {
            let (first_row, first_channel) = (group * rows + row, group * channels + channel);
            let (to_row, to_channel) = (number * few_rows, number * few_channels);
            let some = |first: usize, count: usize| first..first + count;
            let images = |[batch, _, height, width]: [usize; 4], channels| [0..batch, channels, 0..height, 0..width];
            inputs.push(piece(
                TensorName::First,
                images(input, some(first_channel, few_channels)),
                images(input, some(to_channel, few_channels)),
            ));
            gradients.push(piece(
                TensorName::Second,
                images(gradient, some(first_row, few_rows)),
                images(gradient, some(to_row, few_rows)),
            ));
            found.push(piece(
                TensorName::Result,
                [some(first_row, few_rows), some(*channel, few_channels), 0..height, 0..width],
                [some(to_row, few_rows), 0..few_channels, 0..height, 0..width],
            ));
        }
        let count = corners.len();
        let first = self.part(&[input[0], few_channels * count, input[2], input[3]], inputs);
        let second = self.part(&[gradient[0], few_rows * count, gradient[2], gradient[3]], gradients);
        let result = self.part(&[few_rows * count, few_channels, height, width], found);
        let begin = self.parts[result].begin;
        let (mut places, mut found) = (Vec::new(), Vec::new());
        for row in 0..few_rows * count {
            for channel in 0..few_channels {
                for &[down, across] in &taps {
                    places.push([row, channel, down, across]);
                    found.push(begin + ((row * few_channels + channel) * height + down) * width + across);
                }
            }
        }
        let specification = Specification {
            in_channels: (few_channels * count) as i64,
            out_channels: (few_rows * count) as i64,
            groups: count as i64,
            layout: Layout::Nchw,
            ..problem.specification()
        };
        let operands = [first, second];
        self.add_small(specification, |problem| Small { problem, operands, bias: None, places, found });
    }
}

/// The pixels of the first operand along each axis that one pixel of the result depends on: forward its window, in
/// backward-data the outputs whose windows held it.
fn window(problem: &Problem) -> [usize; 2] {
    let (reach, stride) = (reach(problem), problem.stride());
    match problem.direction() {
        Direction::Forward => reach.map(|it| it + 1),
        _ => [0, 1].map(|axis| reach[axis] / stride[axis] + 1),
    }
}

/// Pixels from a filter's first tap to its last.
fn reach(problem: &Problem) -> [usize; 2] {
    let (kernel, dilation) = (problem.kernel(), problem.dilation());
    [0, 1].map(|axis| dilation[axis] * (kernel[axis] - 1))
}

/// What a pixel of the result depends on.
struct Look {
    /// Where its window begins, possibly outside the image.
    begin: [i64; 2],
    /// Where the pixel is in the small convolution's result.
    inside: [usize; 2],
}

impl Look {
    fn at(problem: &Problem, window: [usize; 2], pixel: [usize; 2]) -> Look {
        let [at, stride, padding, window] =
            [pixel, problem.stride(), problem.padding(), window].map(|it| it.map(|it| it as i64));
        if problem.direction() == Direction::Forward {
            return Look { begin: [0, 1].map(|axis| at[axis] * stride[axis] - padding[axis]), inside: [0, 0] };
        }
        let begin = [0, 1].map(|axis| (at[axis] + padding[axis]) / stride[axis] - window[axis] + 1);
        let inside = [0, 1].map(|axis| (at[axis] + padding[axis] - begin[axis] * stride[axis]) as usize);
        Look { begin, inside }
    }
}

/// The convolution of windows of that size that a few pixels depend on: one window for each pixel, with a group's
/// channels, and the compared channels of the result.
fn small_of_pixels(problem: &Problem, [batch, channels, rows]: [usize; 3], window: [usize; 2]) -> Specification {
    let is_forward = problem.direction() == Direction::Forward;
    let (reach, stride) = (reach(problem), problem.stride());
    // With a stride, the pixels that it skips are included: their gradient is zero.
    let leaps = |axis: usize| (window[axis] - 1) * stride[axis] + (reach[axis] + 1).max(stride[axis]);
    let in_size = if is_forward { window } else { [0, 1].map(leaps) };
    let (in_channels, out_channels) = if is_forward { (channels, rows) } else { (rows, channels) };
    Specification {
        batch: batch as i64,
        in_channels: in_channels as i64,
        in_size: in_size.map(|it| it as i64),
        out_channels: out_channels as i64,
        stride: if is_forward { [1, 1] } else { stride.map(|it| it as i64) },
        padding: [0, 0],
        groups: 1,
        layout: Layout::Nchw,
        ..problem.specification()
    }
}

fn some_of(elements: Elements<'_>, range: Range<usize>) -> Elements<'_> {
    match elements {
        Elements::F32(all) => Elements::F32(&all[range]),
        Elements::F16(all) => Elements::F16(&all[range]),
        Elements::Bf16(all) => Elements::Bf16(&all[range]),
        Elements::F64(all) => Elements::F64(&all[range]),
    }
}

/// The part of a window that is inside an axis, and where it is in the window.
fn overlap(begin: i64, length: usize, size: usize) -> Option<(Range<usize>, Range<usize>)> {
    let (from, to) = (begin.max(0), (begin + length as i64).min(size as i64));
    let at = |it: i64, zero: i64| (it - zero) as usize;
    (from < to).then(|| (at(from, 0)..at(to, 0), at(from, begin)..at(to, begin)))
}

/// Where the elements of a block are.
fn places(ranges: &[Range<usize>], strides: [usize; 4]) -> Vec<usize> {
    ranges.iter().zip(strides).fold(vec![0], |all, (range, stride)| {
        all.iter().flat_map(|at| range.clone().map(move |it| at + it * stride)).collect()
    })
}

/// Ranges, each with where it is when they follow each other.
fn beside(ranges: &[Range<usize>]) -> impl Iterator<Item = (Range<usize>, Range<usize>)> {
    ranges.iter().scan(0, |end, range| {
        let begin = *end;
        *end += range.len();
        Some((range.clone(), begin..*end))
    })
}

fn without_repeats<T: PartialEq>(all: Vec<T>) -> Vec<T> {
    let mut kept: Vec<T> = Vec::with_capacity(all.len());
    for it in all {
        if !kept.contains(&it) {
            kept.push(it);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_pixels_fewer_taps_are_compared() {
        let count = |pixels| filters(2, [8, 8], [5, 5], pixels);
        assert_eq!((count(100).corners.len(), count(100).block, count(100).taps.len()), (3, [2, 2], 9));
        assert_eq!((count(5000).block, count(5000).taps.len()), ([1, 1], 9));
        assert_eq!((count(20_000).corners.len(), count(20_000).taps.len()), (3, 5));
        assert_eq!(count(200_000).corners, [[1, 7, 7]]);
    }
}
