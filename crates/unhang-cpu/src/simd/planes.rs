//! Convolutions with few channels or short sums in NCHW, forward and backward-data: pixels lie in vectors, and the filters' numbers
//! are broadcast.
//!
//! A strip of the source is packed with its zeros, and with a stride dealt out by the remainders of rows and columns.
//! So for every tap the pixels of all results lie next to each other, row after row. Rows that fill vectors are summed
//! where they belong. Of shorter ones a strip of results is one long line, the few numbers between its rows included.
//! It is cut into vectors without regard to rows. The sums of some filters go to a small buffer, and from there row by
//! row to the result. Backward-data with a stride has such a line for each phase of the results. Their columns are
//! brought together on the way to the result.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use super::cache;
use super::geometry::{Gather, Tap};
use super::packed_planes::{PackedPlanes, Window};
use super::tiling::choose_tile;
use super::work::Work;
use super::workspace::{Shared, Workspace};
use crate::parallel::for_each_unit;
use unhang_simd::even_parts;
use unhang_simd::{Kernels, MAX_VECTORS, Run, Tile};

/// Numbers of the packed source and of sums that a strip aims at: they stay in a second-level cache.
const STRIP_NUMBERS: usize = 48 * 1024;
/// The most numbers of a strip where it would else pack few rows more than it packs again.
const MOST_STRIP_NUMBERS: usize = 256 * 1024;
/// Numbers that a strip aims at with phases, whose strips are read once for each of them: a strip packs again what the one before it packed last.
const STRIP_NUMBERS_OF_PHASES: usize = 96 * 1024;

/// Everything that is the same for all strips.
struct PlaneWork<'a> {
    gather: &'a Gather,
    kernels: &'static Kernels,
    /// The packed source; the sums have its pitch.
    planes: PackedPlanes<'a>,
    /// Vectors of a tile.
    vectors: usize,
    /// Filters of a tile: the first, and how many.
    parts: Vec<(usize, usize)>,
    /// Rows of a strip, in steps.
    strip_rows: usize,
    /// All filters as `[group][part][phase][tap][source channel][filter]`, and the bias of each filter of a tile in vectors.
    filters: &'a [f32],
    biases: &'a [f32],
    /// Whether sums are computed where they belong.
    in_place: bool,
}

/// The taps of a phase of rows and one of columns, in the order of their filters.
fn taps_of([rows, columns]: [&[Tap]; 2]) -> impl Iterator<Item = [Tap; 2]> + '_ {
    rows.iter().flat_map(move |&row| columns.iter().map(move |&column| [row, column]))
}

/// The phases of a gather, those of columns within those of rows.
fn phases(gather: &Gather) -> impl Iterator<Item = [&[Tap]; 2]> + '_ {
    let [rows, columns] = &gather.axes;
    rows.phases.iter().flat_map(|row| columns.phases.iter().map(move |column| [row.as_slice(), column.as_slice()]))
}

/// Computes it. `bias` goes along the result's channels.
///
/// # Panics
/// When a slice is not as long as the gather says, or the pixels of a row do not lie together.
pub(super) fn compute(gather: &Gather, work: Work<'_>) {
    let Work { kernels, first: source, second: weight, bias, result, threads } = work;
    let [rows, columns] = &gather.axes;
    assert_eq!(gather.result[3], 1, "pixels lie together");
    let sources = gather.groups * gather.source_channels;
    assert_eq!(source.len(), gather.batch * sources * rows.source * columns.source, "the source's length");
    let results = gather.groups * gather.result_channels;
    assert_eq!(result.len(), gather.batch * results * rows.result * columns.result, "the result's length");
    assert_eq!(weight.len(), gather.groups * gather.weight_group, "the filter's length");

    let planes = PackedPlanes::new(gather, kernels);
    let pitch = planes.pitch;
    // A step of rows needs this many packed numbers, and this many sums.
    let phases = rows.phases.len() * columns.phases.len();
    let of_row = planes.numbers_of_row() + pitch * phases * gather.result_channels.min(16);
    let aim = if phases > 1 { STRIP_NUMBERS_OF_PHASES } else { STRIP_NUMBERS };
    let beyond = planes.packed_rows(0);
    let within = |numbers: usize| (numbers / of_row).saturating_sub(beyond);
    let strip_rows = within(aim).max(within(MOST_STRIP_NUMBERS).min(4 * beyond)).clamp(1, rows.steps);
    let wanted = if threads > 1 { (2 * threads).div_ceil(gather.batch * gather.groups) } else { 1 };
    let strips = rows.steps.div_ceil(strip_rows).max(wanted.min(rows.steps));
    let strip_rows = rows.steps.div_ceil(strips);
    let strips: Vec<(usize, usize)> = even_parts(rows.steps, strip_rows).collect();
    // What is cut into tiles: a row, or a strip where nothing is between its rows; of the strips the shortest.
    let piece = if pitch == columns.steps { rows.steps / strips.len() * pitch } else { columns.steps };
    // Few filters on rows of one vector are as fast by way of the buffer, which stays in the first-level cache.
    let worth_it = piece >= 2 * kernels.lanes || gather.result_channels > 16;
    let in_place = phases == 1 && columns.out_step == 1 && piece >= kernels.lanes && worth_it;
    let line = if in_place { piece } else { (strip_rows - 1) * pitch + columns.steps };
    let vectors = choose_tile(kernels, line, gather.result_channels, 1).vectors;
    let vectors = if in_place { vectors.min(piece / kernels.lanes) } else { vectors };
    let parts: Vec<(usize, usize)> = even_parts(gather.result_channels, kernels.most_scalars(vectors, 1)).collect();

    let pack = |filters: &mut [f32]| pack_filters(gather, kernels, &parts, weight, filters);
    let filters = if cache::is_worth_keeping(weight.len(), gather.batch * rows.result * columns.result) {
        let mut hasher = DefaultHasher::new();
        ("planes", gather.groups, gather.weight, gather.weight_group, &parts).hash(&mut hasher);
        for axis in &gather.axes {
            axis.phases.hash(&mut hasher);
        }
        cache::packed(kernels, weight, hasher.finish(), weight.len(), pack)
    } else {
        let mut filters = Workspace::take(weight.len());
        pack(&mut filters);
        Arc::new(filters)
    };
    let width = vectors * kernels.lanes;
    let mut biases = Workspace::take(results * width);
    for (channel, to) in biases.chunks_mut(width).enumerate() {
        to.fill(bias.map_or(0.0, |bias| bias[channel]));
    }
    let driver =
        PlaneWork { gather, kernels, planes, vectors, parts, strip_rows, filters: &filters, biases: &biases, in_place };
    let result = Shared(result.as_mut_ptr());
    for_each_unit(threads, gather.batch * gather.groups * strips.len(), |unit| {
        let (image_and_group, (first_row, rows)) = (unit / strips.len(), strips[unit % strips.len()]);
        let (image, group) = (image_and_group / gather.groups, image_and_group % gather.groups);
        driver.strip(&Strip { image, group, first_row, rows, source, result });
    });
}

/// Packs all filters as `[group][part][phase][tap][source channel][filter]`. Taps that no result meets are left out.
fn pack_filters(gather: &Gather, kernels: &Kernels, parts: &[(usize, usize)], weight: &[f32], to: &mut [f32]) {
    let [by_result, by_source, by_row, by_column] = gather.weight;
    let sources = gather.source_channels;
    let taps: Vec<[Tap; 2]> = phases(gather).flat_map(taps_of).collect();
    // Whether a filter's numbers lie together as `[source channel][tap]`, in the order of the taps.
    let one_phase = phases(gather).count() == 1;
    let dense = one_phase && by_result == sources * taps.len() && by_source == taps.len() && by_column == 1;
    let mut rest = to;
    for group in 0..gather.groups {
        for &(first, count) in parts {
            let from = &weight[group * gather.weight_group + first * by_result..];
            let to;
            (to, rest) = rest.split_at_mut(taps.len() * sources * count);
            if dense {
                let place = |number: usize| (number % by_source * sources + number / by_source) * count;
                let places: Vec<usize> = (0..by_result).map(place).collect();
                assert!(count * by_result <= from.len());
                // SAFETY: `count` filters of `by_result` numbers, which were just checked, each number of them to `count`
                // separate places.
                unsafe {
                    (kernels.transpose)(from.as_ptr(), by_result, count, by_result, to.as_mut_ptr(), places.as_ptr())
                };
                continue;
            }
            let mut to = to.iter_mut();
            for [row, column] in &taps {
                let tap = row.index * by_row + column.index * by_column;
                for channel in 0..sources {
                    let from = &from[tap + channel * by_source..];
                    to.by_ref().zip(from.iter().step_by(by_result)).take(count).for_each(|(to, from)| *to = *from);
                }
            }
        }
    }
}

/// One unit of work.
struct Strip<'a> {
    image: usize,
    group: usize,
    first_row: usize,
    rows: usize,
    source: &'a [f32],
    result: Shared,
}

/// Some filters of a strip.
struct StripFilters<'a> {
    /// The first channel of the result, counted over all groups, and how many.
    channel: usize,
    count: usize,
    /// From one packed channel to the next.
    plane: usize,
    filters: &'a [f32],
    biases: &'a [f32],
    packed: &'a [f32],
}

impl PlaneWork<'_> {
    fn strip(&self, strip: &Strip<'_>) {
        let (gather, kernels) = (self.gather, self.kernels);
        let columns = &gather.axes[1];
        let width = self.vectors * kernels.lanes;
        let room = self.planes.room(self.strip_rows);
        let plane = room.plane;
        // Whole tiles are read and summed, and the last may reach beyond the line.
        let line = (strip.rows - 1) * self.planes.pitch + columns.steps;
        let mut packed = Workspace::take(gather.source_channels * plane + width);
        let &Strip { image, group, first_row, rows, source, .. } = strip;
        self.planes.pack(source, &Window { image, group, first_row, rows }, &room, &mut packed);
        let most = self.parts.iter().map(|part| part.1).max().unwrap_or(0);
        let sums_step = line.next_multiple_of(width);
        let mut sums = Workspace::take(if self.in_place { 0 } else { phases(gather).count() * most * sums_step });

        // Of each phase the taps before it, and where its own fall.
        let mut before = 0;
        let offsets: Vec<(usize, Vec<usize>)> = phases(gather)
            .map(|phase| {
                let offsets: Vec<usize> = taps_of(phase).map(|tap| self.planes.offset(&room, tap)).collect();
                before += offsets.len();
                (before - offsets.len(), offsets)
            })
            .collect();
        let of_filter = before * gather.source_channels;
        for &(first, count) in &self.parts {
            let of_tap = gather.source_channels * count;
            let run = |(tap, &w): (usize, &usize)| Run { x: tap * of_tap, w };
            let runs: Vec<(usize, Vec<Run>)> = offsets
                .iter()
                .map(|(before, offsets)| (before * of_tap, offsets.iter().enumerate().map(run).collect()))
                .collect();
            // Parts before this one are as long as they have filters.
            let filters = &self.filters[(strip.group * gather.result_channels + first) * of_filter..];
            let filters = &filters[..count * of_filter];
            let channel = strip.group * gather.result_channels + first;
            let biases = &self.biases[channel * width..][..count * width];
            let part = StripFilters { channel, count, plane, filters, biases, packed: &packed };
            if self.in_place {
                self.sum_in_place(strip, &part, &runs[0].1);
                continue;
            }
            for (begin, vectors) in tiles(line, self.vectors, kernels.lanes) {
                for (phase, (filter, runs)) in runs.iter().enumerate() {
                    // SAFETY: the filters are those of all taps and channels of this part, and a phase's begin with its first
                    // tap's. A tile's vectors begin in the line and end a tile's width behind it at most: for every tap
                    // within the packed channels and the width behind them, and in the sums, whose lines are whole tiles.
                    unsafe {
                        let tile = Tile {
                            x: filters.as_ptr().wrapping_add(*filter),
                            sums: sums.as_mut_ptr().add(phase * most * sums_step + begin),
                            sums_step,
                            ..self.tile(&part, runs, begin)
                        };
                        kernels.tile(vectors, 1, count, 1)(&tile);
                    }
                }
            }
            for number in 0..count {
                self.write(strip, channel + number, &sums[number * sums_step..], most * sums_step);
            }
        }
    }

    /// Computes some filters of a strip row by row, where their results belong. The last tile of a row ends with it, and sums
    /// again what the one before it had.
    fn sum_in_place(&self, strip: &Strip<'_>, part: &StripFilters<'_>, runs: &[Run]) {
        let (gather, kernels, lanes) = (self.gather, self.kernels, self.kernels.lanes);
        let [by_image, by_channel, by_row, _] = gather.result;
        // Rows without a gap between them are one.
        let (rows, length) = match gather.axes[1].steps {
            steps if steps == self.planes.pitch => (1, strip.rows * steps),
            steps => (strip.rows, steps),
        };
        let first = strip.image * by_image + part.channel * by_channel + strip.first_row * by_row;
        for row in 0..rows {
            for (begin, vectors) in tiles(length, self.vectors, lanes) {
                let begin = begin.min(length - vectors * lanes);
                // SAFETY: the filters are those of all taps and channels of this part. A tile's vectors lie in a row, for every
                // tap in the packed channels. Its sums lie in this strip's own rows of the result, which no other unit
                // writes.
                unsafe {
                    let tile = Tile {
                        sums: strip.result.get().add(first + row * by_row + begin),
                        sums_step: by_channel,
                        fetch: true,
                        ..self.tile(part, runs, row * self.planes.pitch + begin)
                    };
                    kernels.tile(vectors, 1, part.count, 1)(&tile);
                }
            }
        }
    }

    /// A tile whose vectors begin at a number of the packed channels; where its sums go is left open.
    fn tile<'t>(&self, part: &StripFilters<'_>, runs: &'t [Run], begin: usize) -> Tile<'t> {
        Tile {
            x: part.filters.as_ptr(),
            w: part.packed[begin..].as_ptr(),
            runs,
            count: self.gather.source_channels,
            pitch: 1,
            row_step: 0,
            x_step: part.count,
            w_step: part.plane,
            init: part.biases.as_ptr(),
            init_step: self.vectors * self.kernels.lanes,
            sums: std::ptr::null_mut(),
            sums_step: 0,
            fetch: false,
        }
    }

    /// Writes the sums of one filter; those of a phase lie so far from the next's.
    fn write(&self, strip: &Strip<'_>, channel: usize, sums: &[f32], phase_step: usize) {
        let [by_image, by_channel, by_row, _] = self.gather.result;
        let [rows, columns] = &self.gather.axes;
        let phases = columns.phases.len();
        let mut room = Workspace::take(if phases == 4 { columns.result } else { 0 });
        for phase_row in 0..rows.phases.len() {
            let first = strip.first_row * rows.out_step + phase_row;
            // The last step may have no row of this phase.
            let count = strip.rows.min(rows.result.saturating_sub(first).div_ceil(rows.out_step));
            let sums = &sums[phase_row * phases * phase_step..];
            let to = strip.image * by_image + channel * by_channel + first * by_row;
            if phases == 1 && columns.out_step == 1 && count > 0 {
                assert!((count - 1) * self.planes.pitch + columns.result <= sums.len());
                // SAFETY: this strip's own rows of the result, which no other unit writes; the sums have as many.
                unsafe {
                    let to = strip.result.get().add(to);
                    (self.kernels.rows)(
                        sums.as_ptr(),
                        self.planes.pitch,
                        to,
                        by_row * rows.out_step,
                        columns.result,
                        count,
                    );
                }
                continue;
            }
            for row in 0..count {
                // SAFETY: one of this strip's own rows of the result, which no other unit writes.
                let to = unsafe {
                    let to = strip.result.get().add(to + row * rows.out_step * by_row);
                    std::slice::from_raw_parts_mut(to, columns.result)
                };
                let line = |phase: usize| &sums[phase * phase_step + row * self.planes.pitch..][..columns.steps];
                self.bring_together(line, to, &mut room);
            }
        }
    }

    /// Brings the columns of a row's phases together.
    fn bring_together<'l>(&self, line: impl Fn(usize) -> &'l [f32], to: &mut [f32], room: &mut [f32]) {
        let columns = &self.gather.axes[1];
        let interleave = |even: &[f32], odd: &[f32], to: &mut [f32]| {
            assert!(even.len() >= to.len().div_ceil(2) && odd.len() >= to.len() / 2);
            // SAFETY: the lengths were just checked.
            unsafe { (self.kernels.interleave)(even.as_ptr(), odd.as_ptr(), to.len(), to.as_mut_ptr()) };
        };
        match (columns.phases.len(), columns.out_step) {
            (2, 2) => interleave(line(0), line(1), to),
            (4, 4) => {
                let (even, odd) = room[..to.len()].split_at_mut(to.len().div_ceil(2));
                interleave(line(0), line(2), even);
                interleave(line(1), line(3), odd);
                interleave(even, odd, to);
            }
            (phases, step) => {
                for phase in 0..phases {
                    to[phase..].iter_mut().step_by(step).zip(line(phase)).for_each(|(to, from)| *to = *from);
                }
            }
        }
    }
}

/// Cuts a line into tiles of at most this many vectors: the first number and vectors of each.
pub(super) fn tiles(line: usize, vectors: usize, lanes: usize) -> impl Iterator<Item = (usize, usize)> {
    debug_assert!(vectors <= MAX_VECTORS);
    even_parts(line.div_ceil(lanes), vectors).map(move |(first, count)| (first * lanes, count))
}
