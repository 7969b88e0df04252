//! Depthwise convolutions of large windows or few channels in NHWC, forward and backward-data.
//!
//! The taps of one row of results meet some rows. Some channels of these rows are kept together in the first-level
//! cache, with zeros where taps fall on padding. Row after row of results the rows of the source that are no longer met
//! make room for the next. So each number of the source is read from memory once, and no pixel is a special case.
//! Pixels that lie a power of two apart do not push each other out of the cache.

use super::depthwise_together::filters_together;
use super::geometry::{Axis, Gather};
use super::work::Work;
use super::workspace::{Shared, Workspace};
use crate::parallel::for_each_unit;
use unhang_simd::even_parts;
use unhang_simd::{Kernels, Pixels};

/// Numbers of the rows that are kept together: most of a first-level cache.
const KEPT_NUMBERS: usize = 8 * 1024;
/// Numbers of the kept rows at most, and places of taps for all of them.
const MOST_KEPT: usize = 64 * 1024;
/// Vectors of channels at most: four cache lines that follow each other.
const MOST_VECTORS: usize = 4;
/// Numbers of the source that a strip of rows has: part of a second-level cache.
const STRIP_NUMBERS: usize = 256 * 1024;
/// Columns of a small plane at most, for each of a filter.
const SMALL_PLANE: usize = 3;
/// Steps of columns from which on another vector of channels is worth more than longer rows.
const FEW_COLUMNS: usize = 16;

/// Taps of a result from which on computing it takes longer than bringing its pixels.
const MANY_TAPS: usize = 20;

/// Whether rows are kept: all channels of a pixel are brought at once, or many taps meet a pixel and strips are too
/// long to bring most rows twice. Otherwise reading some channels of each pixel at a time takes longer than it spares.
pub(super) fn is_better(gather: &Gather, kernels: &Kernels) -> bool {
    let [rows, columns] = &gather.axes;
    let are_dense = [rows, columns].iter().all(|axis| axis.in_step == 1 && axis.out_step == 1);
    let has_many_taps = gather.weight_group >= MANY_TAPS && strip_steps(gather) >= rows.steps.min(2 * rows.span);
    // Taps that reach far would need more memory than the cache, or than the operands have.
    let kept = Kept::new(gather, kernels.lanes);
    let fits = kept.rows * kept.pitch.max(gather.weight_group) <= MOST_KEPT;
    are_dense && fits && (has_many_taps || gather.groups <= MOST_VECTORS * kernels.lanes)
}

/// Steps of rows that are a strip at most: all of a small plane, which has pixels at its edges above all.
fn strip_steps(gather: &Gather) -> usize {
    let [rows, columns] = &gather.axes;
    if columns.source <= SMALL_PLANE * columns.span {
        return rows.steps;
    }
    (STRIP_NUMBERS / (rows.in_step * columns.source * gather.groups)).max(1)
}

/// How the kept rows lie.
struct Kept {
    /// Channels: whole vectors.
    channels: usize,
    /// How many rows.
    rows: usize,
    /// Steps of columns at most.
    steps: usize,
    /// Numbers of a row.
    pitch: usize,
}

impl Kept {
    fn new(gather: &Gather, lanes: usize) -> Kept {
        let [rows, columns] = &gather.axes;
        let needed = gather.groups.div_ceil(lanes);
        // Steps of columns that fit with that many vectors of channels.
        let fitting = |vectors: usize| {
            let pixels = KEPT_NUMBERS / (rows.span * vectors * lanes);
            (pixels.saturating_sub(columns.span) / columns.in_step + 1).min(columns.steps)
        };
        let enough = columns.steps.min(FEW_COLUMNS.max(2 * columns.span));
        let most = (1..=MOST_VECTORS.min(needed)).rev().find(|&vectors| fitting(vectors) >= enough).unwrap_or(1);
        let vectors = needed.div_ceil(needed.div_ceil(most));
        let most_steps = fitting(vectors).max(enough);
        let steps = columns.steps.div_ceil(columns.steps.div_ceil(most_steps));
        let channels = vectors * lanes;
        Kept { channels, rows: rows.span, steps, pitch: ((steps - 1) * columns.in_step + columns.span) * channels }
    }
}

/// The taps that results of one phase of columns have, from rows that are kept from a certain place on.
struct Taps {
    /// Where they fall, and their numbers in the filter.
    places: Vec<(isize, usize)>,
    /// How many at a time are neighbours; zero if they are not.
    dense: usize,
}

/// The taps of each place that the first kept row can have, phase of rows and phase of columns.
fn all_taps(gather: &Gather, kept: &Kept) -> Vec<Taps> {
    let [rows, columns] = &gather.axes;
    let mut all = Vec::new();
    for first in 0..kept.rows {
        for row_phase in &rows.phases {
            for (phase, column_taps) in columns.phases.iter().enumerate() {
                let mut column_taps = column_taps.clone();
                column_taps.sort_unstable_by_key(|tap| tap.offset);
                let mut places = Vec::with_capacity(row_phase.len() * column_taps.len());
                for row in row_phase {
                    let place = (first + (row.offset - rows.low) as usize) % kept.rows * kept.pitch;
                    places.extend(column_taps.iter().map(|column| {
                        let place = place + (column.offset - columns.low) as usize * kept.channels;
                        (place as isize, row.index * gather.weight[2] + column.index * gather.weight[3])
                    }));
                }
                let is_dense = columns.in_step == 1 && columns.are_neighbours(phase);
                all.push(Taps { places, dense: if is_dense { column_taps.len() } else { 0 } });
            }
        }
    }
    all
}

/// A part of the results: those of one thread at a time.
#[derive(Clone, Copy)]
struct Unit {
    image: usize,
    /// Number of the block of channels.
    block: usize,
    /// First step and how many, of rows and of columns.
    rows: (usize, usize),
    columns: (usize, usize),
}

/// Everything that units share.
struct Correlation<'a> {
    gather: &'a Gather,
    kernels: &'a Kernels,
    kept: Kept,
    taps: Vec<Taps>,
    source: &'a [f32],
    /// Block by block, and with its channels together.
    filters: &'a [f32],
    biases: &'a [f32],
    result: Shared,
}

/// Computes a depthwise problem in NHWC, forward or backward-data.
///
/// # Panics
/// When a slice is not as long as the gather says.
pub(super) fn compute(gather: &Gather, work: Work<'_>) {
    let Work { kernels, first: source, second: weight, bias, result, threads } = work;
    let [rows, columns] = &gather.axes;
    let (channels, taps) = (gather.groups, gather.weight_group);
    assert_eq!(source.len(), gather.batch * channels * rows.source * columns.source, "the source's length");
    assert_eq!(result.len(), gather.batch * channels * rows.result * columns.result, "the result's length");
    assert_eq!(weight.len(), channels * taps, "the filter's length");
    let kept = Kept::new(gather, kernels.lanes);
    let blocks = channels.div_ceil(kept.channels);
    let (mut filters, mut biases) =
        (Workspace::take(blocks * taps * kept.channels), Workspace::take(blocks * kept.channels));
    filters_together(kernels, weight, [kept.channels, taps], &mut filters);
    biases.fill(0.0);
    if let Some(bias) = bias {
        biases[..channels].copy_from_slice(bias);
    }
    let tiles = even_parts(columns.steps, kept.steps);
    // All channels of a strip of rows before the next: the strip stays in the second-level cache, and on few pages.
    let strip = strip_steps(gather);
    let mut all = Vec::new();
    for image in 0..gather.batch {
        for rows in even_parts(rows.steps, strip) {
            for columns in tiles.clone() {
                all.extend((0..blocks).map(|block| Unit { image, block, rows, columns }));
            }
        }
    }
    let taps = all_taps(gather, &kept);
    let result = Shared(result.as_mut_ptr());
    let correlation = Correlation { gather, kernels, kept, taps, source, filters: &filters, biases: &biases, result };
    for_each_unit(threads, all.len(), |number| correlation.unit(all[number]));
}

impl Correlation<'_> {
    fn unit(&self, unit: Unit) {
        let Correlation { gather, kept, .. } = self;
        let [rows, _] = &gather.axes;
        let mut room = Workspace::take(kept.rows * kept.pitch);
        // Padding at both ends of the rows, and channels that the last block lacks, stay zero.
        room.fill(0.0);
        let first = unit.rows.0 * rows.in_step;
        let mut brought = first;
        for step in unit.rows.0..unit.rows.0 + unit.rows.1 {
            let begin = step * rows.in_step;
            for row in brought.max(begin)..begin + rows.span {
                self.bring(unit, row, &mut room);
            }
            brought = begin + rows.span;
            for phase in 0..rows.phases.len() {
                let row = step * rows.out_step + phase;
                if row < rows.result {
                    self.row_of_results(unit, row, phase, begin % kept.rows, &room);
                }
            }
        }
    }

    /// Brings a row of the source to its place among the kept ones, `row` rows behind the one that the lowest tap meets first.
    fn bring(&self, unit: Unit, row: usize, room: &mut [f32]) {
        let Correlation { gather, kept, .. } = self;
        let [rows, columns] = &gather.axes;
        let to = &mut room[row % kept.rows * kept.pitch..][..kept.pitch];
        let source_row = row as isize + rows.low;
        if !(0..rows.source as isize).contains(&source_row) {
            to.fill(0.0);
            return;
        }
        let (begin, end, from) = inside(columns, unit.columns.0, unit.columns.1);
        let first = unit.block * kept.channels;
        let count = kept.channels.min(gather.groups - first);
        let [by_image, _, by_row, by_column] = gather.source;
        if begin == end {
            return;
        }
        let at = unit.image * by_image + source_row as usize * by_row + from * by_column + first;
        let from = &self.source[at..][..(end - begin - 1) * by_column + count];
        // The row that is brought next; the first one of the next channels behind the last.
        let is_last = source_row as usize + 1 >= rows.source;
        let ahead = if is_last { (kept.channels as isize) - (source_row * by_row as isize) } else { by_row as isize };
        // SAFETY: this many channels of each of these pixels on both sides.
        unsafe {
            let to = to[begin * kept.channels..end * kept.channels].as_mut_ptr();
            (self.kernels.rows_ahead)(from.as_ptr(), by_column, to, kept.channels, count, end - begin, ahead);
        }
    }

    /// Computes one row of results of a phase, from rows that are kept from place `first` on.
    fn row_of_results(&self, unit: Unit, row: usize, row_phase: usize, first: usize, room: &[f32]) {
        let Correlation { gather, kept, .. } = self;
        let [rows, columns] = &gather.axes;
        let [by_image, _, by_row, by_column] = gather.result;
        let first_channel = unit.block * kept.channels;
        let phases = columns.phases.len();
        let lists = &self.taps[(first * rows.phases.len() + row_phase) * phases..][..phases];
        for (phase, taps) in lists.iter().enumerate() {
            let column = unit.columns.0 * columns.out_step + phase;
            // The last step may lie beyond the result.
            let pixels = columns.result.saturating_sub(column).div_ceil(columns.out_step).min(unit.columns.1);
            if pixels == 0 {
                continue;
            }
            let at = unit.image * by_image + row * by_row + column * by_column + first_channel;
            // SAFETY: the taps fall on the kept rows, from every pixel of the tile. All places there have the whole
            // vectors of a block, and the filters too. The pixels' channels are of this unit's results alone.
            unsafe {
                (self.kernels.correlate_together)(&Pixels {
                    x: room.as_ptr(),
                    x_step: columns.in_step * kept.channels,
                    taps: &taps.places,
                    dense: taps.dense,
                    w: self.filters[first_channel * gather.weight_group..].as_ptr(),
                    bias: self.biases[first_channel..].as_ptr(),
                    channels: kept.channels,
                    to: self.result.get().add(at),
                    to_step: columns.out_step * by_column,
                    stored: kept.channels.min(gather.groups - first_channel),
                    pixels,
                });
            }
        }
    }
}

/// Of the places that a tile's steps meet: those that lie in the source, and where the first does.
fn inside(columns: &Axis, first: usize, count: usize) -> (usize, usize, usize) {
    let origin = (first * columns.in_step) as isize + columns.low;
    let places = (count - 1) * columns.in_step + columns.span;
    let begin = (-origin).clamp(0, places as isize) as usize;
    let end = (columns.source as isize - origin).clamp(begin as isize, places as isize) as usize;
    (begin, end, (origin + begin as isize).max(0) as usize)
}
