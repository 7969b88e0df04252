//! The blocked weight gradient.
//!
//! For each tap it is a product of two matrices, channels × pixels by pixels × channels: one side's channels are
//! broadcast, the other's lie in vectors, and the micro-kernel walks along the pixels whose tap does not fall on
//! padding. Both sides are packed chunk by chunk of pixels, of the input only the rows that a tap meets. But in NCHW
//! the side that is broadcast is read in place, each channel from its own plane. With few input channels a row's taps
//! lie next to each other in the packed input, with zeros for padding, and count as channels.
//!
//! A sum runs in registers over a chunk, through memory over at most [`CHAIN`] pixels, and those chains are added in
//! pairs. Units are ranges of filters or, where those are few, segments of pixels, whose gradients are added in the end.
//! Chunks and segments depend on the problem alone and no sum is shared between threads, so threads change nothing.

use std::ops::Range;

use unhang_conv::{Layout, Problem, Specification};

use super::geometry::{Strides, segments, strides};
use super::pairwise::PairwiseSums;
use super::source::pack_pixel_row;
use super::tiling::{TileShape, choose_tile};
use super::work::Work;
use super::workspace::{Shared, Workspace};
use crate::parallel::for_each_unit;
use crate::plain::{CHAIN, input_of, valid_outputs};
use unhang_simd::even_parts;
use unhang_simd::{Kernels, MAX_VECTORS, Run, Tile};

/// Numbers of packed operands that a chunk aims at.
const CHUNK_NUMBERS: usize = 128 * 1024;
/// Pixels of a chunk at least, where there are this many: this many steps a tile's sums stay in registers.
const CHUNK_PIXELS: usize = 192;
/// Numbers of gradient that a unit of work holds: half of a second-level cache of a megabyte.
const UNIT_NUMBERS: usize = 128 * 1024;

/// Numbers of the side that is broadcast which all vectors pass by before the next: they stay in the second-level cache.
const BROADCAST_NUMBERS: usize = 64 * 1024;

/// Planes of this many numbers, and of multiples of them, fall into the same sets of a first-level cache: they are packed.
const COLLIDING_NUMBERS: usize = 1024;

/// Channels of pixels that are packed as they lie.
const DENSE_CHANNELS: usize = 64;

/// Numbers of the pixels whose parts are packed one after the other where channels lie together: a first-level cache.
const PACKED_TOGETHER: usize = 12 * 1024;
/// Such pixels at least.
const FEWEST_TOGETHER: usize = 8;

/// Which operand is in vectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    /// The output's gradient; the input's channels are broadcast.
    OutputVectors,
    /// The output's gradient; the taps of a row with the input's channels are broadcast.
    OutputVectorsRowTaps,
    /// The input; the channels of the output's gradient are broadcast.
    InputVectors,
}

/// A part of one side's channels: what one tile takes.
#[derive(Debug, Clone, Copy)]
struct Part {
    first: usize,
    length: usize,
    /// Vectors; zero on the side that is broadcast.
    vectors: usize,
}

/// One operand as it is packed for a chunk of pixels.
struct Side {
    parts: Vec<Part>,
    /// Channels of a packed pixel, where all of a pixel's are contiguous; otherwise each part is separate.
    dense: Option<usize>,
    lanes: usize,
}

impl Side {
    /// From one pixel to the next in a part.
    fn pitch(&self, part: &Part) -> usize {
        let width = if part.vectors == 0 { part.length } else { part.vectors * self.lanes };
        self.dense.unwrap_or(width)
    }

    /// Where a part of a chunk with this many pixels begins. Parts before the last are full: as wide as they are long.
    fn start(&self, part: &Part, pixels: usize) -> usize {
        if self.dense.is_some() { part.first } else { part.first * pixels }
    }
}

/// Images and output rows that are packed at a time: rows of one image, or several whole images.
#[derive(Debug, Clone, Copy)]
pub(super) struct Chunk {
    /// The first image, and how many.
    pub first_image: usize,
    /// See `first_image`.
    pub images: usize,
    /// The first row, and how many.
    pub first_row: usize,
    /// See `first_row`.
    pub rows: usize,
}

/// The input rows that a chunk packs: those that a tap meets.
struct InputRows {
    /// The packed row of every input row.
    slots: Vec<Option<usize>>,
    /// How many are packed.
    count: usize,
}

impl InputRows {
    fn new(problem: &Problem, chunk: &Chunk) -> InputRows {
        let mut slots = vec![None; problem.in_size()[0]];
        for tap in 0..problem.kernel()[0] {
            chunk.rows_of(problem, tap).for_each(|row| slots[input_of(problem, 0, row, tap)] = Some(0));
        }
        let mut count = 0;
        for slot in slots.iter_mut().flatten() {
            (*slot, count) = (count, count + 1);
        }
        InputRows { slots, count }
    }
}

impl Chunk {
    /// Its output rows whose tap falls on the input.
    fn rows_of(&self, problem: &Problem, tap: usize) -> Range<usize> {
        let valid = valid_outputs(problem, 0, tap);
        let begin = valid.start.max(self.first_row);
        begin..valid.end.min(self.first_row + self.rows).max(begin)
    }
}

struct WeightWork<'a> {
    problem: &'a Problem,
    kernels: &'static Kernels,
    shape: Shape,
    vectors: usize,
    /// Input channels and filters of a group.
    channels: usize,
    filters: usize,
    input: Strides,
    output: Strides,
    /// Columns of the packed input, and those of them before its first: none but with the taps of a row as channels.
    columns: usize,
    left: usize,
    chunks: Vec<Chunk>,
    /// Whether the side that is broadcast is read in place.
    in_place: bool,
}

/// Computes a weight gradient of an ordinary problem.
///
/// # Panics
/// When a slice is not as long as the problem says.
pub(super) fn compute(problem: &Problem, work: Work<'_>) {
    let Work { kernels, first: x, second: dy, result, threads, .. } = work;
    let lengths = problem.operand_shapes().map(|shape| shape.iter().product::<usize>());
    assert_eq!([x.len(), dy.len(), result.len()], lengths, "the operands' lengths");
    let with_long_rows = with_long_rows(problem);
    let problem = with_long_rows.as_ref().unwrap_or(problem);
    let driver = WeightWork::new(problem, kernels);
    let result = Shared(result.as_mut_ptr());
    let groups = problem.groups();
    // Units are ranges of filters; only the last may end within a vector.
    let grain = if driver.shape == Shape::InputVectors { 1 } else { driver.vectors * kernels.lanes };
    let by_size = unit_filters(problem, driver.shape).min(driver.filters).next_multiple_of(grain);
    let ranges = driver.filters.div_ceil(by_size);
    let unit = |number: usize, range: usize, ranges: usize| {
        let first = number % ranges * range;
        Unit::new(&driver, number / ranges, first, range.min(driver.filters - first))
    };
    // Where the gradient is small the pixels are shared out too, into segments that depend on the problem alone.
    let chunks = driver.chunks.len();
    let segments = segments(lengths[0] + lengths[1], lengths[2]).div_ceil(groups * ranges).min(chunks);
    if segments == 1 {
        let by_threads = (driver.filters * groups).div_ceil(threads);
        let range = by_size.min(by_threads.next_multiple_of(grain));
        let ranges = driver.filters.div_ceil(range);
        for_each_unit(threads, groups * ranges, |number| {
            let unit = unit(number, range, ranges);
            unit.write(&unit.sums(&driver.chunks, x, dy), result);
        });
        return;
    }
    let parts: Vec<(usize, usize)> = even_parts(chunks, chunks.div_ceil(segments)).collect();
    let room = unit(0, by_size, ranges).length();
    let mut partial = Workspace::take(groups * ranges * parts.len() * room);
    let partial_sums = Shared(partial.as_mut_ptr());
    for_each_unit(threads, groups * ranges * parts.len(), |number| {
        let (first, count) = parts[number % parts.len()];
        let sums = unit(number / parts.len(), by_size, ranges).sums(&driver.chunks[first..first + count], x, dy);
        // SAFETY: this unit's own place, which has room for the sums of the longest.
        unsafe { (kernels.row)(sums.as_ptr(), 1, sums.len(), partial_sums.get().add(number * room)) };
    });
    for_each_unit(threads, groups * ranges, |number| {
        let unit = unit(number, by_size, ranges);
        let first = number * parts.len() * room;
        // SAFETY: all segments' sums of this unit, one after the other, which no other unit touches.
        unsafe {
            let sums = partial_sums.get().add(first);
            (1..parts.len()).for_each(|segment| (kernels.add)(sums.add(segment * room), sums, unit.length()));
            unit.write(std::slice::from_raw_parts(sums, unit.length()), result);
        }
    });
}

/// Pixels of all images from which on planes are read for few units.
const MANY_PIXELS: usize = 1024;

/// Filters of a unit of work at most, before they are rounded up to whole vectors.
///
/// With one tap a tile's sums pass by once for each chunk, which costs little from any cache: what counts is that the packed
/// filters of a chunk stay in the second-level cache, and that the input is read for few units. Few pixels of planes are read
/// from a cache anyway. A unit's sums take no more than half of what the operands do.
fn unit_filters(problem: &Problem, shape: Shape) -> usize {
    let of_filter = problem.in_channels() / problem.groups() * problem.kernel().iter().product::<usize>();
    let operands: usize = problem.operand_shapes().iter().map(|shape| shape.iter().product::<usize>()).sum();
    let pixels = problem.batch() * problem.out_size().iter().product::<usize>();
    let by_memory = (operands / 2 / of_filter).max(1);
    match problem.kernel() {
        [1, 1] if problem.layout() == Layout::Nchw && pixels < MANY_PIXELS => (UNIT_NUMBERS / of_filter).max(1),
        [1, 1] if shape == Shape::InputVectors => by_memory,
        [1, 1] => by_memory.min(CHUNK_NUMBERS / CHUNK_PIXELS),
        _ => (UNIT_NUMBERS / of_filter).max(1),
    }
}

/// Pixels of a row at most where rows are brought together.
const LONG_ROW: usize = 512;

/// A problem of one tap without stride and padding, of which rows may be brought together: as few as can be, as long as
/// [`LONG_ROW`] at most. Short rows are transposed in parts of vectors.
fn with_long_rows(problem: &Problem) -> Option<Problem> {
    let [height, width] = problem.in_size();
    let one_tap = problem.kernel() == [1, 1] && problem.stride() == [1, 1] && problem.padding() == [0, 0];
    let together = (2..=height).rev().find(|&rows| height.is_multiple_of(rows) && rows * width <= LONG_ROW)?;
    let in_size = [height / together, width * together].map(|size| size as i64);
    if one_tap { Problem::new(Specification { in_size, ..problem.specification() }).ok() } else { None }
}

impl<'a> WeightWork<'a> {
    fn new(problem: &'a Problem, kernels: &'static Kernels) -> WeightWork<'a> {
        let groups = problem.groups();
        let (channels, filters) = (problem.in_channels() / groups, problem.out_channels() / groups);
        let [tap_rows, tap_columns] = problem.kernel();
        let taps = (tap_rows * tap_columns) as f64;
        // What is in vectors is packed: the output's gradient once, the input again for every range of filters.
        let ranges = filters.div_ceil(unit_filters(problem, Shape::InputVectors).min(filters));
        let strides_of_pixel = problem.stride().iter().product::<usize>().min(tap_rows * tap_columns);
        let packed =
            if problem.layout() == Layout::Nchw { [filters, channels * strides_of_pixel * ranges] } else { [0; 2] };
        let mut candidates = vec![
            (Shape::OutputVectors, choose_tile(kernels, filters, channels, 1), taps, packed[0]),
            (Shape::InputVectors, choose_tile(kernels, channels, filters, 1), taps, packed[1]),
        ];
        if channels < 8 && problem.dilation()[1] == 1 {
            let together = choose_tile(kernels, filters, channels * tap_columns, 1);
            candidates.push((Shape::OutputVectorsRowTaps, together, tap_rows as f64, packed[0]));
        }
        // For each pixel of the result; a packed number takes about a cycle.
        let cost = |(_, tile, times, packed): &(Shape, TileShape, f64, usize)| tile.cycles * times + *packed as f64;
        let best = candidates.iter().min_by(|a, b| cost(a).total_cmp(&cost(b))).expect("there are two at least");
        let (shape, TileShape { vectors, .. }, ..) = *best;
        let [stride, dilation, out] = [problem.stride(), problem.dilation(), problem.out_size()];
        let padded = (out[1] - 1) * stride[1] + (tap_columns - 1) * dilation[1] + 1;
        let (columns, left) = match shape {
            Shape::OutputVectorsRowTaps => (padded, problem.padding()[1]),
            _ => (padded.saturating_sub(problem.padding()[1]).clamp(1, problem.in_size()[1]), 0),
        };
        let [input, output] = [problem.input_shape(), problem.output_shape()].map(|it| strides(it, problem.layout()));
        let plane = if shape == Shape::InputVectors { output[1] } else { input[1] };
        let in_place = problem.layout() == Layout::Nchw
            && shape != Shape::OutputVectorsRowTaps
            && !plane.is_multiple_of(COLLIDING_NUMBERS);
        // Rows of taps that are apart meet separate rows.
        let rows = stride[0].max(if dilation[0] > 1 { tap_rows } else { 1 });
        WeightWork {
            problem,
            kernels,
            shape,
            vectors,
            channels,
            filters,
            input,
            output,
            columns,
            left,
            chunks: chunks(problem, columns * rows * channels + out[1] * filters),
            in_place,
        }
    }

    /// Whether the input and the output's gradient are read in place.
    fn in_place(&self) -> [bool; 2] {
        let output = self.shape == Shape::InputVectors;
        [self.in_place && !output, self.in_place && output]
    }

    /// The pixels of a row that are packed before the next, in those parts: first and how many. Where channels lie together the parts
    /// of each pixel are neighbours in memory, which is to be read once and in its order.
    fn pixels_together(&self, pixels: usize, parts: &[Part]) -> impl Iterator<Item = (usize, usize)> + use<> {
        let channels: usize = parts.iter().map(|part| part.length).sum();
        let most = match (self.problem.layout(), parts) {
            (Layout::Nchw, _) | (_, [_]) => pixels.max(1),
            _ => (PACKED_TOGETHER / channels).max(FEWEST_TOGETHER),
        };
        even_parts(pixels, most).filter(|&(_, count)| count > 0)
    }

    fn vector_parts(&self, channels: usize) -> Vec<Part> {
        let (lanes, width) = (self.kernels.lanes, self.vectors * self.kernels.lanes);
        let part = |first: usize| {
            let length = width.min(channels - first);
            Part { first, length, vectors: length.div_ceil(lanes) }
        };
        (0..channels).step_by(width).map(part).collect()
    }

    fn scalar_parts(&self, channels: usize) -> Vec<Part> {
        let parts = even_parts(channels, self.kernels.most_scalars(self.vectors, 1));
        parts.map(|(first, length)| Part { first, length, vectors: 0 }).collect()
    }
}

/// Cuts the pixels into chunks; one row of a chunk packs to this many numbers.
fn chunks(problem: &Problem, row_numbers: usize) -> Vec<Chunk> {
    let [height, width] = problem.out_size();
    // Small problems in parts too: the workspace is to stay below the operands.
    let operands = problem.input_shape().iter().product::<usize>() + problem.output_shape().iter().product::<usize>();
    let numbers = CHUNK_NUMBERS.min(operands / 3);
    let rows = (numbers / row_numbers).max(CHUNK_PIXELS / width).min(CHAIN / width).clamp(1, height);
    let pixels = height * width;
    let images = (numbers / (row_numbers * height)).max(CHUNK_PIXELS / pixels).min(CHAIN / pixels);
    let images = if rows < height { 1 } else { images.clamp(1, problem.batch()) };
    let by_image = even_parts(problem.batch(), images);
    by_image
        .flat_map(|(first_image, images)| {
            even_parts(height, rows).map(move |(first_row, rows)| Chunk { first_image, images, first_row, rows })
        })
        .collect()
}

/// A chunk with its operands: packed or, in place, from the first of its channels, images and rows (of the output's) on.
struct PackedChunk<'a> {
    chunk: &'a Chunk,
    rows: &'a InputRows,
    input: &'a [f32],
    output: &'a [f32],
    /// Whether its sums begin with zero.
    begins: bool,
}

/// A range of one group's filters.
struct Unit<'a> {
    driver: &'a WeightWork<'a>,
    group: usize,
    first: usize,
    filters: usize,
    input: Side,
    output: Side,
    /// Rows and columns of taps; with the taps of a row as channels only the rows count.
    taps: Vec<[usize; 2]>,
}

impl<'a> Unit<'a> {
    fn new(driver: &'a WeightWork<'a>, group: usize, first: usize, filters: usize) -> Unit<'a> {
        let (channels, lanes) = (driver.channels, driver.kernels.lanes);
        let [tap_rows, tap_columns] = driver.problem.kernel();
        let together = driver.shape == Shape::OutputVectorsRowTaps;
        let (input_parts, output_parts) = match driver.shape {
            Shape::InputVectors => (driver.vector_parts(channels), driver.scalar_parts(filters)),
            Shape::OutputVectors => (driver.scalar_parts(channels), driver.vector_parts(filters)),
            Shape::OutputVectorsRowTaps => (driver.scalar_parts(channels * tap_columns), driver.vector_parts(filters)),
        };
        // A layout whose channels lie together is packed as it is, if there are few: pixels far apart are fetched late.
        let nhwc = driver.problem.layout() == Layout::Nhwc;
        let dense = |channels: usize| (nhwc && channels <= DENSE_CHANNELS).then_some(channels);
        let input = Side { parts: input_parts, dense: if together { Some(channels) } else { dense(channels) }, lanes };
        let output = Side { parts: output_parts, dense: dense(filters), lanes };
        let tap_columns = if together { 1 } else { tap_columns };
        let taps = (0..tap_rows).flat_map(|r| (0..tap_columns).map(move |s| [r, s])).collect();
        Unit { driver, group, first, filters, input, output, taps }
    }

    /// The side that is in vectors, and the one that is broadcast.
    fn sides(&self) -> (&Side, &Side) {
        if self.driver.shape == Shape::InputVectors { (&self.input, &self.output) } else { (&self.output, &self.input) }
    }

    /// How many sums there are: by tap, part in vectors, part in scalars, scalar, vector.
    fn length(&self) -> usize {
        let (vector_side, scalar_side) = self.sides();
        let scalars: usize = scalar_side.parts.iter().map(|part| part.length).sum();
        let vectors: usize = vector_side.parts.iter().map(|part| part.vectors).sum();
        self.taps.len() * vectors * self.driver.kernels.lanes * scalars
    }

    /// Sums over the pixels of some chunks.
    fn sums(&self, chunks: &[Chunk], x: &[f32], dy: &[f32]) -> Workspace {
        let driver = self.driver;
        let (problem, lanes) = (driver.problem, driver.kernels.lanes);
        let width = problem.out_size()[1];
        let mut sums = PairwiseSums::new(driver.kernels, self.length());
        // The last part's vectors may reach past the last channel: what they find there is read and never used.
        let slack = MAX_VECTORS * lanes;
        let rows: Vec<InputRows> = chunks.iter().map(|chunk| InputRows::new(problem, chunk)).collect();
        let input_room = chunks.iter().zip(&rows).map(|(chunk, rows)| chunk.images * rows.count).max().unwrap_or(0);
        let output_room = chunks.iter().map(|chunk| chunk.images * chunk.rows).max().unwrap_or(0);
        let padded = |side: &Side, channels: usize| side.dense.unwrap_or(channels.next_multiple_of(lanes));
        let of_input = input_room * driver.columns * padded(&self.input, driver.channels);
        let of_output = output_room * width * padded(&self.output, self.filters);
        let [input_in_place, output_in_place] = driver.in_place();
        let mut packed_input = Workspace::take(if input_in_place { 0 } else { of_input + slack });
        let mut packed_output = Workspace::take(if output_in_place { 0 } else { of_output + slack });
        let mut runs = Vec::new();
        for (chunk, rows) in chunks.iter().zip(&rows) {
            let begins = sums.begin_chunk(chunk.images * chunk.rows * width);
            let input: &[f32] = if input_in_place {
                let [by_image, by_channel, ..] = driver.input;
                &x[chunk.first_image * by_image + self.group * driver.channels * by_channel..]
            } else {
                self.pack_input(chunk, rows, x, &mut packed_input);
                &packed_input
            };
            let output: &[f32] = if output_in_place {
                let [by_image, by_channel, by_row, _] = driver.output;
                let channel = self.group * driver.filters + self.first;
                &dy[chunk.first_image * by_image + channel * by_channel + chunk.first_row * by_row..]
            } else {
                self.pack_output(chunk, dy, &mut packed_output);
                &packed_output
            };
            let packed = PackedChunk { chunk, rows, input, output, begins };
            let mut at = 0;
            for &tap in &self.taps {
                at = self.sum_tap(&packed, tap, &mut runs, &mut sums, at);
            }
        }
        sums.finish()
    }

    /// Adds a packed chunk's products of one tap to the sums from `at` on; says where the next tap's are.
    fn sum_tap(
        &self,
        packed: &PackedChunk<'_>,
        tap: [usize; 2],
        runs: &mut Vec<Run>,
        sums: &mut PairwiseSums,
        at: usize,
    ) -> usize {
        let driver = self.driver;
        let (problem, kernels, lanes) = (driver.problem, driver.kernels, driver.kernels.lanes);
        let (chunk, swapped) = (packed.chunk, driver.shape == Shape::InputVectors);
        let (stride, width) = (problem.stride()[1], problem.out_size()[1]);
        let columns = match driver.shape {
            Shape::OutputVectorsRowTaps => 0..width,
            _ => valid_outputs(problem, 1, tap[1]),
        };
        let zeros = [0.0f32; MAX_VECTORS * 16];
        let mut runs_with = None;
        let scalars: usize = self.sides().1.parts.iter().map(|part| part.length).sum();
        for (vector_part, scalar_part) in self.tiles(chunk.images * chunk.rows * width) {
            let parts = if swapped { (vector_part, scalar_part) } else { (scalar_part, vector_part) };
            let pitches = match driver.in_place() {
                [true, _] => [1, self.output.pitch(parts.1)],
                [_, true] => [self.input.pitch(parts.0), 1],
                _ => [self.input.pitch(parts.0), self.output.pitch(parts.1)],
            };
            // Most parts are as wide as the one before, and have its runs.
            if runs_with != Some(pitches) {
                self.runs_of(packed, tap, &columns, pitches, runs);
                runs_with = Some(pitches);
            }
            let line = vector_part.vectors * lanes;
            let length = scalar_part.length * line;
            // Parts in vectors before the last are full: as wide as they are long.
            let before = vector_part.first * scalars + scalar_part.first * line;
            let tile_sums = sums.chain(at + before, length).as_mut_ptr();
            let ([input_start, output_start], pitch) = self.starts(packed, [parts.0, parts.1], scalar_part);
            let (init, init_step) = if packed.begins { (zeros.as_ptr(), 0) } else { (tile_sums.cast_const(), line) };
            let steps = [stride * pitches[0], pitches[1]];
            let (x_step, w_step) = if swapped { (steps[1], steps[0]) } else { (steps[0], steps[1]) };
            let (input, output) = (packed.input[input_start..].as_ptr(), packed.output[output_start..].as_ptr());
            let (x, w) = if swapped { (output, input) } else { (input, output) };
            // SAFETY: parts, runs and steps stay within the chunk's packed pixels, behind which there is
            // slack for the vectors of the last. In place they stay within the operand: only pixels that a tap meets
            // are read, of the part's own channels. The sums are a slice of the tile's own length.
            unsafe {
                kernels.tile(vector_part.vectors, 1, scalar_part.length, pitch)(&Tile {
                    x,
                    w,
                    runs,
                    count: columns.len(),
                    pitch,
                    row_step: 0,
                    x_step,
                    w_step,
                    init,
                    init_step,
                    sums: tile_sums,
                    sums_step: line,
                    fetch: false,
                });
            }
        }
        at + self.length() / self.taps.len()
    }

    /// The parts in vectors and in scalars of all tiles, in the order in which they are summed over a chunk of that many pixels:
    /// all vectors for some scalars, which stay in a cache. The sums of small units stay there whichever way parts are taken.
    fn tiles(&self, pixels: usize) -> impl Iterator<Item = (&Part, &Part)> {
        let (vector_side, scalar_side) = self.sides();
        let most_scalars = scalar_side.parts.iter().map(|part| part.length).max().unwrap_or(1);
        let broadcast = if self.length() <= UNIT_NUMBERS { usize::MAX } else { BROADCAST_NUMBERS };
        let blocks = scalar_side.parts.chunks((broadcast / (pixels * most_scalars)).max(1));
        blocks.flat_map(|block| {
            let of_vectors = move |vector_part| block.iter().map(move |scalar_part| (vector_part, scalar_part));
            vector_side.parts.iter().flat_map(of_vectors)
        })
    }

    /// Where the parts of input and output begin in a chunk, and how far apart the channels that are broadcast are.
    fn starts(&self, packed: &PackedChunk<'_>, [input, output]: [&Part; 2], scalar_part: &Part) -> ([usize; 2], usize) {
        let (driver, chunk) = (self.driver, packed.chunk);
        let width = driver.problem.out_size()[1];
        let input = self.input.start(input, chunk.images * packed.rows.count * driver.columns);
        let output = self.output.start(output, chunk.images * chunk.rows * width);
        match driver.in_place() {
            [true, _] => ([scalar_part.first * driver.input[1], output], driver.input[1]),
            [_, true] => ([input, scalar_part.first * driver.output[1]], driver.output[1]),
            _ => ([input, output], 1),
        }
    }

    /// The rows of a packed chunk along which a tap's products are summed, for pixels that far apart in the packed input and
    /// output.
    fn runs_of(
        &self,
        packed: &PackedChunk<'_>,
        [tap_row, tap_column]: [usize; 2],
        columns: &Range<usize>,
        [input_pitch, output_pitch]: [usize; 2],
        runs: &mut Vec<Run>,
    ) {
        let driver = self.driver;
        let (problem, chunk) = (driver.problem, packed.chunk);
        runs.clear();
        if columns.is_empty() {
            return;
        }
        let column = match driver.shape {
            Shape::OutputVectorsRowTaps => 0,
            _ => input_of(problem, 1, columns.start, tap_column),
        };
        let [input_in_place, output_in_place] = driver.in_place();
        for image in 0..chunk.images {
            for row in chunk.rows_of(problem, tap_row) {
                let input_row = input_of(problem, 0, row, tap_row);
                let output_row = row - chunk.first_row;
                let input = if input_in_place {
                    image * driver.input[0] + input_row * driver.input[2] + column
                } else {
                    let slot = packed.rows.slots[input_row].expect("a row that a tap meets");
                    ((image * packed.rows.count + slot) * driver.columns + column) * input_pitch
                };
                let output = if output_in_place {
                    image * driver.output[0] + output_row * driver.output[2] + columns.start
                } else {
                    ((image * chunk.rows + output_row) * problem.out_size()[1] + columns.start) * output_pitch
                };
                let swapped = driver.shape == Shape::InputVectors;
                runs.push(if swapped { Run { x: output, w: input } } else { Run { x: input, w: output } });
            }
        }
    }

    /// Packs the input rows of a chunk.
    fn pack_input(&self, chunk: &Chunk, rows: &InputRows, x: &[f32], to: &mut [f32]) {
        let (driver, side) = (self.driver, &self.input);
        let pixels = chunk.images * rows.count * driver.columns;
        let begin = driver.left.min(driver.columns);
        let end = (driver.left + driver.problem.in_size()[1]).min(driver.columns).max(begin);
        // With the taps of a row as channels the packed pixels still have the input's own.
        let whole = [Part { first: 0, length: driver.channels, vectors: 0 }];
        let parts: &[Part] = if side.dense.is_some() { &whole } else { &side.parts };
        for image in 0..chunk.images {
            for (row, slot) in rows.slots.iter().enumerate().filter_map(|(row, slot)| slot.map(|slot| (row, slot))) {
                let first_pixel = (image * rows.count + slot) * driver.columns;
                let line = |part: &Part| {
                    let pitch = side.dense.unwrap_or_else(|| side.pitch(part));
                    (side.start(part, pixels) + first_pixel * pitch, pitch)
                };
                for part in parts {
                    let (at, pitch) = line(part);
                    to[at..][..begin * pitch].fill(0.0);
                    to[at + end * pitch..at + driver.columns * pitch].fill(0.0);
                }
                for (first, count) in driver.pixels_together(end - begin, parts) {
                    for part in parts {
                        let (at, pitch) = line(part);
                        let channel = self.group * driver.channels + part.first;
                        let position = [chunk.first_image + image, channel, row, begin - driver.left + first];
                        let from = position.iter().zip(driver.input).map(|(p, s)| p * s).sum::<usize>();
                        let by = [driver.input[1], driver.input[3]];
                        let to = &mut to[at + (begin + first) * pitch..];
                        pack_pixel_row(driver.kernels, &x[from..], by, part.length, count, pitch, to);
                    }
                }
            }
        }
    }

    /// Packs a chunk's rows of the output's gradient.
    fn pack_output(&self, chunk: &Chunk, dy: &[f32], to: &mut [f32]) {
        let (driver, side) = (self.driver, &self.output);
        let width = driver.problem.out_size()[1];
        let pixels = chunk.images * chunk.rows * width;
        let whole = [Part { first: 0, length: self.filters, vectors: 0 }];
        let parts: &[Part] = if side.dense.is_some() { &whole } else { &side.parts };
        for image in 0..chunk.images {
            for row in 0..chunk.rows {
                let first_pixel = (image * chunk.rows + row) * width;
                for (first, count) in driver.pixels_together(width, parts) {
                    for part in parts {
                        let pitch = side.dense.unwrap_or_else(|| side.pitch(part));
                        let channel = self.group * driver.filters + self.first + part.first;
                        let position = [chunk.first_image + image, channel, chunk.first_row + row, first];
                        let from = position.iter().zip(driver.output).map(|(p, s)| p * s).sum::<usize>();
                        let by = [driver.output[1], driver.output[3]];
                        let to = &mut to[side.start(part, pixels) + (first_pixel + first) * pitch..];
                        pack_pixel_row(driver.kernels, &dy[from..], by, part.length, count, pitch, to);
                    }
                }
            }
        }
    }

    /// Writes the sums.
    fn write(&self, sums: &[f32], result: Shared) {
        let (driver, taps) = (self.driver, &self.taps);
        let (vector_side, scalar_side) = self.sides();
        let kernels = driver.kernels;
        let weight = strides(driver.problem.weight_shape(), driver.problem.layout());
        let swapped = driver.shape == Shape::InputVectors;
        let together = driver.shape == Shape::OutputVectorsRowTaps;
        let group = (self.group * driver.filters + self.first) * weight[0];
        let (by_scalar, by_vector) = if swapped { (weight[0], weight[1]) } else { (weight[1], weight[0]) };
        let by_number: Vec<usize> = (0..MAX_VECTORS * kernels.lanes).map(|number| number * by_vector).collect();
        let of_tap = sums.len() / taps.len();
        // The taps of a filter lie next to each other, in the order of their sums.
        let taps_touch = !together && weight[3] == 1 && weight[1] == taps.len();
        let mut before = 0;
        for vector_part in &vector_side.parts {
            let width = vector_part.vectors * kernels.lanes;
            for scalar_part in &scalar_side.parts {
                let part_to = group + vector_part.first * by_vector + scalar_part.first * by_scalar;
                let (numbers, scalars) = (vector_part.length, scalar_part.length);
                // SAFETY, for all calls: the sums of one part in vectors and one in scalars, by tap `of_tap` apart, go to
                // this unit's own filters. No other unit writes these.
                for (tap, &[r, s]) in taps.iter().enumerate() {
                    let from = &sums[tap * of_tap + before..][..scalars * width];
                    let to = part_to + r * weight[2] + s * weight[3];
                    if together || (by_vector != 1 && by_scalar != 1 && !taps_touch) {
                        for (index, of_scalar) in from.chunks(width).enumerate() {
                            let scalar = scalar_part.first + index;
                            let (channel, s) = if together {
                                (scalar % driver.channels, scalar / driver.channels)
                            } else {
                                (scalar, s)
                            };
                            let to = group + channel * by_scalar + vector_part.first * by_vector;
                            let to = to + r * weight[2] + s * weight[3];
                            for (&sum, &offset) in of_scalar[..numbers].iter().zip(&by_number) {
                                // SAFETY: see above.
                                unsafe { *result.get().add(to + offset) = sum };
                            }
                        }
                    } else if by_vector == 1 {
                        // SAFETY: see above.
                        unsafe {
                            let to = result.get().add(to);
                            (kernels.rows)(from.as_ptr(), width, to, by_scalar, numbers, scalars);
                        }
                    } else if by_scalar == 1 {
                        // SAFETY: see above.
                        unsafe {
                            let to = result.get().add(to);
                            (kernels.transpose)(from.as_ptr(), width, scalars, numbers, to, by_number.as_ptr());
                        }
                    } else if tap == 0 {
                        // All taps at once, scalar by scalar.
                        for scalar in 0..scalars {
                            let from = &sums[before + scalar * width..][..(taps.len() - 1) * of_tap + numbers];
                            // SAFETY: see above.
                            unsafe {
                                let to = result.get().add(to + scalar * by_scalar);
                                (kernels.transpose)(from.as_ptr(), of_tap, taps.len(), numbers, to, by_number.as_ptr());
                            }
                        }
                    }
                }
                before += scalars * width;
            }
        }
    }
}
