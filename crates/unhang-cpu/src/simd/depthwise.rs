//! Depthwise convolutions: one channel in, one channel out. There is nothing to broadcast along channels, and memory is
//! the limit. So vectors lie along a row (NCHW), from a small packed window, or along the channels (NHWC), in place.
//! Small planes ([`depthwise_together`]) and large windows in NHWC ([`depthwise_pixels`]) have separate drivers.

use std::ops::Range;

use unhang_conv::{Direction, Layout, Problem};

use super::geometry::{Axis, Gather, Tap, segments};
use super::source::{Arrangement, SourceView, Window};
use super::work::Work;
use super::workspace::Workspace;
use super::{depthwise_pixels, depthwise_together};
use crate::plain::CHAIN;
use unhang_simd::even_parts;
use unhang_simd::{
    FEWEST_PIXELS, GradientLine, GradientRows, Kernels, MOST_TAPS, PixelRow, Pixels, Rows, TAP_COLUMNS, TAP_COUNTS,
    TapColumn,
};

/// Numbers of a packed window: a part of the first-level cache.
const WINDOW_NUMBERS: usize = 6 * 1024;
/// Pixels of a row up to which its edges are summed together with their neighbours.
const FEW_PIXELS: usize = 32;
/// Result rows that are one unit of work where channels lie together.
const UNIT_ROWS: usize = 8;

/// Computes a depthwise problem in any direction.
///
/// # Panics
/// When a slice is not as long as the problem says.
pub(super) fn compute(problem: &Problem, work: Work<'_>) {
    let lengths = problem.operand_shapes().map(|shape| shape.iter().product::<usize>());
    assert_eq!([work.first.len(), work.second.len(), work.result.len()], lengths, "the operands' lengths");
    let together = depthwise_together::is_better(problem, work.kernels);
    match (problem.direction(), problem.layout()) {
        (Direction::BackwardWeights, _) if together => depthwise_together::weights(problem, work),
        _ if together => depthwise_together::compute(&Gather::new(problem), work),
        (Direction::BackwardWeights, Layout::Nchw) => rows_weights(problem, work),
        (Direction::BackwardWeights, Layout::Nhwc) => pixels_weights(problem, work),
        (_, Layout::Nchw) => rows(&Gather::new(problem), work),
        (_, Layout::Nhwc) => {
            let gather = Gather::new(problem);
            match depthwise_pixels::is_better(&gather, work.kernels) {
                true => depthwise_pixels::compute(&gather, work),
                false => pixels(&gather, work),
            }
        }
    }
}

/// Steps of results whose packed window is small.
fn window_steps(packed: &SourceView<'_>, steps: usize) -> usize {
    let fitting = WINDOW_NUMBERS.saturating_sub(packed.rows(1) * packed.row_numbers()) / packed.step_pitch().max(1);
    (fitting + 1).min(steps)
}

/// NCHW, forward and backward-data: plane by plane.
fn rows(gather: &Gather, work: Work<'_>) {
    let Work { kernels, first: source, second: weight, bias, result, threads } = work;
    let [rows, columns] = &gather.axes;
    let packed = SourceView::arranged(gather, 1, Arrangement::Planes);
    let steps = window_steps(&packed, rows.steps);
    let of_filter = gather.weight_group;
    let places = places_of_taps(gather, &packed);
    // Whole vectors are read at the end of the last row.
    let slack = 4 * kernels.lanes;
    let room = || PlaneRoom {
        window: Workspace::take(packed.rows(steps) * packed.row_numbers() + slack),
        phase_rows: Workspace::take(if columns.out_step == 1 {
            0
        } else {
            columns.phases.len() * steps * columns.steps
        }),
        taps: places.iter().map(|places| places.iter().map(empty_column).collect()).collect(),
    };
    for_each_plane(threads, result, rows.result * columns.result, room, |room, plane, result| {
        let PlaneRoom { window, phase_rows, taps } = room;
        let (image, channel) = (plane / gather.groups, plane % gather.groups);
        let filter = &weight[channel * of_filter..][..of_filter];
        let bias = bias.map_or(0.0, |bias| bias[channel]);
        for (column, (_, taps)) in taps.iter_mut().flatten().zip(places.iter().flatten()) {
            column.weights.iter_mut().zip(taps).for_each(|(weight, &tap)| *weight = filter[tap]);
        }
        let mut first_row = 0;
        while first_row < rows.steps {
            let count = steps.min(rows.steps - first_row);
            let place = Window { image, first_channel: channel, channels: 1, first_row, rows: count, plane: 0 };
            packed.pack(kernels, source, &place, window);
            for row_phase in 0..rows.phases.len() {
                // Rows of this phase: the last step may lie beyond the result.
                let row = |step: usize| (first_row + step) * rows.out_step + row_phase;
                let count = (0..count).take_while(|&step| row(step) < rows.result).count();
                if count == 0 {
                    continue;
                }
                let taps = &taps[row_phase * columns.phases.len()..][..columns.phases.len()];
                let to = &mut result[row(0) * columns.result..(row(count - 1) + 1) * columns.result];
                let of_rows = |to: *mut f32, to_step: usize, columns: usize| Rows {
                    x: window.as_ptr(),
                    x_step: packed.step_pitch(),
                    to,
                    to_step,
                    count: columns,
                    rows: count,
                };
                // Both calls are sound: each tap's numbers lie in the window, rounded up to whole vectors with its
                // slack; what is read there beyond a row is not stored. The results are slices of this many rows.
                if columns.out_step == 1 {
                    let to_step = rows.out_step * columns.result;
                    let of_rows = of_rows(to.as_mut_ptr(), to_step, columns.result);
                    // SAFETY: see above.
                    unsafe { (kernels.correlate)(&of_rows, &taps[0], bias) };
                    continue;
                }
                let of_phase = count * columns.steps;
                for (taps, sums) in taps.iter().zip(phase_rows.chunks_mut(of_phase)) {
                    let of_rows = of_rows(sums.as_mut_ptr(), columns.steps, columns.steps);
                    // SAFETY: see above.
                    unsafe { (kernels.correlate)(&of_rows, taps, bias) };
                }
                let sums = &phase_rows[..columns.phases.len() * of_phase];
                deal_out(kernels, columns, sums, to, rows.out_step * columns.result);
            }
            first_row += count;
        }
    });
}

/// The taps of each phase of rows and of columns: where runs of them fall in the window, and where they are in the filter.
fn places_of_taps(gather: &Gather, packed: &SourceView<'_>) -> Vec<Vec<(usize, Vec<usize>)>> {
    let [rows, columns] = &gather.axes;
    let mut places = Vec::new();
    for row_phase in &rows.phases {
        let below_each_other = runs_of_rows(row_phase, rows.in_step);
        for column_phase in &columns.phases {
            let of_phase = below_each_other.iter().flat_map(|run| column_phase.iter().map(move |tap| (run, tap)));
            let place = |(run, column): (&Vec<Tap>, &Tap)| {
                let offset = packed.tap((run[0].offset - rows.low) as usize, (column.offset - columns.low) as usize);
                let column = column.index * gather.weight[3];
                let taps: Vec<usize> = run.iter().map(|row| row.index * gather.weight[2] + column).collect();
                (offset, taps)
            };
            places.push(of_phase.map(place).collect::<Vec<_>>());
        }
    }
    places
}

/// Deals the rows of each phase of columns out to rows of results, which begin `row` numbers apart.
fn deal_out(kernels: &Kernels, columns: &Axis, phase_rows: &[f32], to: &mut [f32], row: usize) {
    let of_phase = phase_rows.len() / columns.phases.len();
    let lines = to.chunks_mut(row).map(|to| &mut to[..columns.result]);
    for (to, begin) in lines.zip((0..).step_by(columns.steps)) {
        let sums = |phase: usize| &phase_rows[phase * of_phase + begin..][..columns.steps];
        if columns.phases.len() == 2 && columns.out_step == 2 {
            // SAFETY: a row of results, and as many steps as it has of each phase.
            unsafe { (kernels.interleave)(sums(0).as_ptr(), sums(1).as_ptr(), to.len(), to.as_mut_ptr()) };
            continue;
        }
        for phase in 0..columns.phases.len() {
            let to = to[phase..].iter_mut().step_by(columns.out_step);
            to.zip(sums(phase)).for_each(|(to, &sum)| *to = sum);
        }
    }
}

/// What the planes of a unit are computed in, one after the other.
struct PlaneRoom {
    window: Workspace,
    /// The rows of each phase of columns, where there are several.
    phase_rows: Workspace,
    /// The taps of each phase of rows and of columns: where they fall in the window, and the plane's weights.
    taps: Vec<Vec<TapColumn>>,
}

/// Taps that fall there, without their weights.
fn empty_column((offset, taps): &(usize, Vec<usize>)) -> TapColumn {
    TapColumn { offset: *offset, count: taps.len(), weights: [0.0; MOST_TAPS] }
}

/// The taps of a phase of rows in runs: each tap of a run falls on the source row that the one before falls on from the
/// next row of results.
fn runs_of_rows(taps: &[Tap], in_step: usize) -> Vec<Vec<Tap>> {
    let mut taps = taps.to_vec();
    let residue = |tap: &Tap| tap.offset.rem_euclid(in_step as isize);
    taps.sort_unstable_by_key(|tap| (residue(tap), tap.offset));
    let mut runs = Vec::new();
    for run in taps.chunk_by(|tap, next| next.offset - tap.offset == in_step as isize) {
        let mut left = run;
        while let Some(&count) = TAP_COUNTS.iter().find(|&&count| count <= left.len()) {
            let (now, later) = left.split_at(count);
            runs.push(now.to_vec());
            left = later;
        }
    }
    runs
}

/// Calls `work` with every plane of a tensor, several at a time as one unit, which shares one `room`.
fn for_each_plane<Room>(
    threads: usize,
    tensor: &mut [f32],
    plane: usize,
    room: impl Fn() -> Room + Sync,
    work: impl Fn(&mut Room, usize, &mut [f32]) + Sync,
) {
    let planes = tensor.len() / plane;
    let together = (16 * 1024 / plane).clamp(1, planes.div_ceil(2 * threads));
    crate::parallel::for_each_chunk(threads, tensor, plane * together, |number, chunk| {
        let mut room = room();
        for (index, plane) in chunk.chunks_mut(plane).enumerate() {
            work(&mut room, number * together + index, plane);
        }
    });
}

/// The taps of an axis that fall on the source from a step: their place, and the tap.
fn valid_taps(axis: &Axis, phase: usize, step: usize) -> impl Iterator<Item = (isize, usize)> + '_ {
    let origin = (step * axis.in_step) as isize;
    let inside = move |offset: isize| (0..axis.source as isize).contains(&(origin + offset));
    axis.phases[phase].iter().filter(move |tap| inside(tap.offset)).map(|tap| (tap.offset, tap.index))
}

/// A row's taps in the order of the pixels that they fall on, if whole rows of results are computed at once.
fn neighbouring_taps(gather: &Gather, kernels: &Kernels) -> Option<Vec<(isize, usize)>> {
    let columns = &gather.axes[1];
    let mut taps: Vec<_> = columns.phases[0].iter().map(|tap| (tap.offset, tap.index)).collect();
    taps.sort_unstable();
    let has_kernel = taps.len() == TAP_COLUMNS && (FEWEST_PIXELS..=FEW_PIXELS).contains(&columns.result);
    let is_dense = [columns.in_step, columns.out_step] == [1, 1] && columns.are_neighbours(0);
    (has_kernel && is_dense && gather.groups >= kernels.lanes).then_some(taps)
}

/// A whole row of results, those at the edges among them. Its taps are given by where they fall and by their numbers: the rows of
/// them that fall on the source, counted from where `from` is, and all columns.
fn whole_row(
    gather: &Gather,
    kernels: &Kernels,
    [row_taps, column_taps]: [&[(isize, usize)]; 2],
    from: *const f32,
    [packed, biases]: [&[f32]; 2],
    to: &mut [f32],
) {
    let columns = &gather.axes[1];
    let [_, _, by_row, by_column] = gather.source;
    let tap = |row: &(isize, usize), column: &(isize, usize)| {
        let offset = row.0 * by_row as isize + columns.low * by_column as isize;
        (offset, row.1 * (gather.weight[2] / gather.weight[3]) + column.1)
    };
    let taps: Vec<_> = row_taps.iter().flat_map(|row| column_taps.iter().map(move |column| tap(row, column))).collect();
    let pixels = Pixels {
        x: from,
        x_step: by_column,
        taps: &taps,
        dense: column_taps.len(),
        w: packed.as_ptr(),
        bias: biases.as_ptr(),
        channels: gather.groups,
        to: to.as_mut_ptr(),
        to_step: gather.groups,
        stored: gather.groups,
        pixels: columns.result,
    };
    assert_eq!(to.len(), columns.result * gather.groups, "a row of results");
    let inside = (-columns.low).max(0) as usize..(columns.source as isize - columns.low).max(0) as usize;
    // SAFETY: rows of taps fall on the source, and their places that are inside too, each with all its channels.
    // Filters and biases are packed for all taps and channels. The row of results was just checked.
    unsafe { (kernels.correlate_row)(&PixelRow { pixels, inside }) };
}

/// NHWC, forward and backward-data: pixel by pixel, in place.
fn pixels(gather: &Gather, work: Work<'_>) {
    let Work { kernels, first: source, second: weight, bias, result, threads } = work;
    let [rows, columns] = &gather.axes;
    let channels = gather.groups;
    let tap_columns = gather.weight[2] / gather.weight[3];
    // Filters with channels together, tap by tap.
    let mut packed = Workspace::take(weight.len());
    depthwise_together::filters_together(kernels, weight, [channels, gather.weight_group], &mut packed);
    let mut biases = Workspace::take(channels);
    match bias {
        Some(bias) => biases.copy_from_slice(bias),
        None => biases.fill(0.0),
    }
    let (packed, biases): (&[f32], &[f32]) = (&packed, &biases);
    let [by_image, _, by_row, by_column] = gather.source;
    let row_length = columns.result * channels;
    let tap_columns_of = |taps: &mut Vec<(isize, usize)>, row_taps: &[(isize, usize)], phase: usize, step: usize| {
        taps.clear();
        for &(row_offset, row_tap) in row_taps {
            let first = taps.len();
            taps.extend(valid_taps(columns, phase, step).map(|(offset, tap)| {
                (row_offset * by_row as isize + offset * by_column as isize, row_tap * tap_columns + tap)
            }));
            taps[first..].sort_unstable();
        }
    };
    let in_order = neighbouring_taps(gather, kernels);
    crate::parallel::for_each_chunk(threads, result, row_length * UNIT_ROWS, |unit, chunk| {
        let mut taps = Vec::new();
        for (index, to) in chunk.chunks_mut(row_length).enumerate() {
            let row = (unit * UNIT_ROWS + index) % rows.result;
            let image = (unit * UNIT_ROWS + index) / rows.result;
            let (step, phase) = (row / rows.out_step, row % rows.out_step);
            let row_taps: Vec<_> = valid_taps(rows, phase, step).collect();
            let from_row = image * by_image + step * rows.in_step * by_row;
            if let Some(in_order) = &in_order {
                let from = source.as_ptr().wrapping_add(from_row);
                whole_row(gather, kernels, [&row_taps, in_order], from, [packed, biases], to);
                continue;
            }
            for column_phase in 0..columns.phases.len() {
                let steps = (columns.result - column_phase).div_ceil(columns.out_step);
                // Steps with all taps inside share one list and are computed together.
                let inside = columns.steps_inside(steps);
                let row_length_of_taps = columns.phases[column_phase].len();
                let is_dense = columns.in_step == 1 && columns.are_neighbours(column_phase);
                let mut step = 0;
                while step < steps {
                    let count = if step == inside.start { inside.len().max(1) } else { 1 };
                    tap_columns_of(&mut taps, &row_taps, column_phase, step);
                    let from = source.as_ptr().wrapping_add(from_row + step * columns.in_step * by_column);
                    let pixel = step * columns.out_step + column_phase;
                    let to_step = columns.out_step * channels;
                    let to = &mut to[pixel * channels..][..(count - 1) * to_step + channels];
                    // SAFETY: the taps in the list fall on pixels of the source, each with all its channels. Filters
                    // are packed for all taps, and the rest are slices of `channels`.
                    unsafe {
                        (kernels.correlate_channels)(&Pixels {
                            x: from,
                            x_step: columns.in_step * by_column,
                            taps: &taps,
                            dense: if count > 1 && is_dense { row_length_of_taps } else { 0 },
                            w: packed.as_ptr(),
                            bias: biases.as_ptr(),
                            channels,
                            to: to.as_mut_ptr(),
                            to_step,
                            stored: channels,
                            pixels: count,
                        });
                    }
                    step += count;
                }
            }
        }
    });
}

/// NCHW, backward-weights: channel by channel.
fn rows_weights(problem: &Problem, work: Work<'_>) {
    let Work { kernels, first: x, second: dy, result, threads, .. } = work;
    // The forward gather knows where taps fall on the input.
    let gather = Gather::new(&problem.with_direction(Direction::Forward));
    let [rows, columns] = &gather.axes;
    let packed = SourceView::arranged(&gather, 1, Arrangement::Planes);
    let steps = window_steps(&packed, rows.steps).min((CHAIN * kernels.lanes / columns.steps).max(1));
    let (channels, lanes) = (problem.in_channels(), kernels.lanes);
    let taps = gather.weight_group;
    let offset = |tap: usize| {
        let (row, column) =
            (rows.phases[0][tap / columns.phases[0].len()], columns.phases[0][tap % columns.phases[0].len()]);
        packed.tap((row.offset - rows.low) as usize, (column.offset - columns.low) as usize)
    };
    let offsets: Vec<usize> = (0..taps).map(offset).collect();
    crate::parallel::for_each_chunk(threads, result, taps, |channel, filter| {
        let mut window = Workspace::take(packed.rows(steps) * packed.row_numbers());
        let mut sums = Workspace::take(taps * lanes);
        // Each chain is a window's; what comes together from all of them is summed in double precision.
        let mut totals = vec![0.0f64; taps];
        for image in 0..problem.batch() {
            let of_plane = &dy[(image * channels + channel) * rows.result * columns.result..];
            let mut first_row = 0;
            while first_row < rows.steps {
                let count = steps.min(rows.steps - first_row);
                let place = Window { image, first_channel: channel, channels: 1, first_row, rows: count, plane: 0 };
                packed.pack(kernels, x, &place, &mut window);
                let rows = GradientRows {
                    dy: of_plane[first_row * columns.result..][..count * columns.result].as_ptr(),
                    dy_step: columns.result,
                    x: window.as_ptr(),
                    x_step: packed.step_pitch(),
                    count: columns.result,
                    rows: count,
                };
                // SAFETY: every tap has a packed number for each column of these rows; a vector for each tap.
                unsafe { (kernels.products)(&rows, &offsets, sums.as_mut_ptr()) };
                for (total, sums) in totals.iter_mut().zip(sums.chunks(lanes)) {
                    *total += sums.iter().map(|&sum| f64::from(sum)).sum::<f64>();
                }
                first_row += count;
            }
        }
        filter.iter_mut().zip(totals).for_each(|(to, total)| *to = total as f32);
    });
}

/// NHWC, backward-weights: segments of rows, whose sums are added in their order.
fn pixels_weights(problem: &Problem, work: Work<'_>) {
    let Work { kernels, first: x, second: dy, result, threads, .. } = work;
    let gather = Gather::new(&problem.with_direction(Direction::Forward));
    let [rows, columns] = &gather.axes;
    let (channels, taps) = (problem.in_channels(), gather.weight_group);
    let all_rows = problem.batch() * rows.result;
    let segments = segments((x.len() + dy.len()) / 2, result.len()).min(all_rows).max(1);
    let parts: Vec<(usize, usize)> = even_parts(all_rows, all_rows.div_ceil(segments)).collect();
    let valid = columns.phases[0].iter().map(|tap| crate::plain::valid_outputs(problem, 1, tap.index)).collect();
    // What one tap loads the next ones use again only where taps are as far apart as pixels.
    let is_dense = columns.in_step == problem.dilation()[1];
    let lines = GradientLines { gather: &gather, kernels, x, dy, valid };
    // Tap by tap, channels together, for every segment; in double precision, because a chain for each is short.
    let mut totals = vec![0.0f64; parts.len() * result.len()];
    crate::parallel::for_each_chunk(threads, &mut totals, taps * channels, |segment, totals| {
        let mut sums = Workspace::take(taps * channels);
        sums.fill(0.0);
        let mut terms = 0;
        let mut flush = |sums: &mut [f32]| {
            totals.iter_mut().zip(sums.iter_mut()).for_each(|(total, sum)| *total += f64::from(std::mem::take(sum)));
        };
        let (first, count) = parts[segment];
        for line in first..first + count {
            if terms + columns.result > CHAIN {
                flush(&mut sums);
                terms = 0;
            }
            terms += columns.result;
            if is_dense { lines.add_together(line, &mut sums) } else { lines.add_by_taps(line, &mut sums) }
        }
        flush(&mut sums);
    });
    for (channel, filter) in result.chunks_mut(taps).enumerate() {
        for (tap, to) in filter.iter_mut().enumerate() {
            let of_segments = totals.iter().skip(tap * channels + channel).step_by(taps * channels);
            *to = of_segments.sum::<f64>() as f32;
        }
    }
}

/// The rows of results of a weight gradient in NHWC.
struct GradientLines<'a> {
    /// The forward one, which knows where taps fall on the input.
    gather: &'a Gather,
    kernels: &'a Kernels,
    x: &'a [f32],
    dy: &'a [f32],
    /// The pixels of a row whose taps fall on the input, for each column of taps.
    valid: Vec<Range<usize>>,
}

impl GradientLines<'_> {
    /// Where the rows of taps that fall on the input begin there, for a row of results of all images, and their numbers.
    fn rows_met(&self, line: usize) -> impl Iterator<Item = (usize, usize)> {
        let rows = &self.gather.axes[0];
        let [by_image, _, by_row, _] = self.gather.source;
        let (image, row) = (line / rows.result, line % rows.result);
        let begin = move |offset: isize| ((row * rows.in_step) as isize + offset) as usize * by_row;
        valid_taps(rows, 0, row).map(move |(offset, tap)| (image * by_image + begin(offset), tap))
    }

    /// Adds a row's share to the sums, all taps at a time.
    fn add_together(&self, line: usize, sums: &mut [f32]) {
        let [rows, columns] = &self.gather.axes;
        let channels = self.gather.groups;
        let [_, _, by_row, by_column] = self.gather.source;
        let Some((_, first_tap)) = self.rows_met(line).next() else { return };
        let before = columns.low * by_column as isize;
        let places: Vec<isize> = self.rows_met(line).map(|(begin, _)| begin as isize + before).collect();
        let of_output = &self.dy[line * columns.result * channels..][..columns.result * channels];
        let sums = &mut sums[first_tap * self.valid.len() * channels..][..places.len() * self.valid.len() * channels];
        // SAFETY: the valid pixels of each column of taps meet the input in these rows, whose length was checked. The
        // rows of taps follow each other, each with a sum for all channels of every tap.
        unsafe {
            (self.kernels.products_line)(&GradientLine {
                dy: of_output.as_ptr(),
                pixels: columns.result,
                channels,
                x: self.x.as_ptr(),
                rows: &places,
                x_step: columns.in_step * by_column,
                valid: &self.valid,
                x_ahead: rows.in_step * by_row,
                sums: sums.as_mut_ptr(),
            });
        }
    }

    /// Adds a row's share to the sums, tap by tap.
    fn add_by_taps(&self, line: usize, sums: &mut [f32]) {
        let (columns, channels) = (&self.gather.axes[1], self.gather.groups);
        let x_step = columns.in_step * self.gather.source[3];
        for (begin, row_tap) in self.rows_met(line) {
            let column_taps = columns.phases[0].iter().zip(&self.valid).enumerate();
            for (column_tap, (tap, valid)) in column_taps.filter(|(_, (_, valid))| !valid.is_empty()) {
                let column = (valid.start * columns.in_step) as isize + tap.offset;
                let from = &self.x[begin + column as usize * self.gather.source[3]..];
                let of_output = &self.dy[(line * columns.result + valid.start) * channels..][..valid.len() * channels];
                let sums = &mut sums[(row_tap * self.valid.len() + column_tap) * channels..][..channels];
                assert!((valid.len() - 1) * x_step + channels <= from.len());
                let (dy, x, sums) = (of_output.as_ptr(), from.as_ptr(), sums.as_mut_ptr());
                // SAFETY: the valid pixels' channels lie in both operands, as was just checked.
                unsafe { (self.kernels.products_channels)(dy, channels, x, x_step, valid.len(), channels, sums) };
            }
        }
    }
}
