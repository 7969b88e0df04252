//! How the micro-kernel reads the source: packed with its zeros, or in place.

use super::geometry::{Axis, Gather};
use unhang_simd::{Kernels, PaddedRows};

/// What is next to what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Arrangement {
    /// Packed as `[channel][row][phase][column]`: with a stride the columns are dealt out by their remainder. So the
    /// pixels that one tap meets lie next to each other whatever the stride.
    Planes,
    /// Packed as `[row][column][channel]`.
    Pixels,
    /// Not packed: channels lie together in memory. Either no tap meets padding, or whoever reads leaves out the taps
    /// that do ([`SourceView::has_edges`]).
    InPlace,
}

/// Channels that pixels may lie apart to be read in place where there is padding: with more of them the rows of a
/// tile fall into few sets of the first-level cache.
const IN_PLACE_CHANNELS: usize = 64;
/// Columns of results from which on the tiles at the edges, which take longer in place, are few.
const IN_PLACE_COLUMNS: usize = 150;
/// Numbers of a source row from which on packing it is slower than the tiles at its edges.
const IN_PLACE_NUMBERS: usize = 1500;

/// How a source is read.
pub(super) struct SourceView<'a> {
    gather: &'a Gather,
    /// What is next to what.
    pub arrangement: Arrangement,
    /// Channels that are packed at a time.
    block: usize,
    /// Planes: numbers of one phase of columns. Pixels: columns of a row.
    phase_pitch: usize,
    /// Numbers from one row to the next.
    row_pitch: usize,
    /// Planes: the place of each phase of columns that a tap needs.
    slots: Vec<Option<usize>>,
    /// Planes: what is packed of each phase of columns that has a place.
    parts: Vec<PhasePart>,
    /// Which phases of rows a tap needs.
    used_rows: Vec<bool>,
}

/// What is packed of one phase of columns.
#[derive(Debug, Clone, Copy)]
struct PhasePart {
    /// Where the phase begins in a packed row.
    at: usize,
    /// The packed columns that lie inside of the source.
    begin: usize,
    end: usize,
    /// The source's column of the first of them.
    column: usize,
}

/// Rows to pack that follow each other.
#[derive(Debug, Clone, Copy)]
struct PackedRows {
    /// The first, in the packed plane.
    row: usize,
    count: usize,
    /// The first's row of the source, if they are not zeros.
    source_row: Option<usize>,
}

/// Which rows of which channels to pack.
#[derive(Debug, Clone, Copy)]
pub(super) struct Window {
    /// The image.
    pub image: usize,
    /// The first channel, counted over all groups.
    pub first_channel: usize,
    /// How many channels.
    pub channels: usize,
    /// The first row of results, in steps.
    pub first_row: usize,
    /// How many steps.
    pub rows: usize,
    /// Planes: from one packed channel to the next.
    pub plane: usize,
}

impl<'a> SourceView<'a> {
    /// The best arrangement for a gather whose channels are taken `block` at a time.
    pub(super) fn new(gather: &'a Gather, block: usize) -> SourceView<'a> {
        let [rows, columns] = &gather.axes;
        let whole = rows.is_whole() && columns.is_whole();
        let narrow = gather.source[3] <= IN_PLACE_CHANNELS && block == gather.source_channels;
        let wide = columns.steps >= IN_PLACE_COLUMNS && gather.source[2] >= IN_PLACE_NUMBERS;
        let arrangement = match gather.source[1] {
            1 if whole || (narrow && wide) => Arrangement::InPlace,
            1 => Arrangement::Pixels,
            _ => Arrangement::Planes,
        };
        SourceView::arranged(gather, block, arrangement)
    }

    /// A given arrangement.
    pub(super) fn arranged(gather: &'a Gather, block: usize, arrangement: Arrangement) -> SourceView<'a> {
        let [rows, columns] = &gather.axes;
        let mut count = 0;
        let slot = |residue: usize| {
            columns.uses(residue).then(|| {
                count += 1;
                count - 1
            })
        };
        let slots: Vec<Option<usize>> = (0..columns.in_step).map(slot).collect();
        let (phase_pitch, row_pitch) = match arrangement {
            Arrangement::Planes => {
                let pitch = columns.steps + (columns.span - 1) / columns.in_step;
                // A result that no tap reaches needs no source at all, only its bias.
                (pitch, count.max(1) * pitch)
            }
            Arrangement::Pixels => {
                let pitch = (columns.steps - 1) * columns.in_step + columns.span;
                (pitch, pitch * block)
            }
            Arrangement::InPlace => (columns.source, gather.source[2]),
        };
        let used_rows = (0..rows.in_step).map(|residue| rows.uses(residue)).collect();
        let part = |(residue, slot): (usize, &Option<usize>)| {
            slot.map(|slot| PhasePart::new(columns, residue, slot * phase_pitch, phase_pitch))
        };
        let parts = slots.iter().enumerate().filter_map(part).collect();
        SourceView { gather, arrangement, block, phase_pitch, row_pitch, slots, parts, used_rows }
    }

    /// Whether it is read in place and some taps meet padding.
    pub(super) fn has_edges(&self) -> bool {
        self.arrangement == Arrangement::InPlace && !self.gather.axes.iter().all(Axis::is_whole)
    }

    /// Source rows that this many steps of results need.
    pub(super) fn rows(&self, steps: usize) -> usize {
        let rows = &self.gather.axes[0];
        (steps - 1) * rows.in_step + rows.span
    }

    /// Numbers that a row takes for a whole block of channels.
    pub(super) fn row_numbers(&self) -> usize {
        match self.arrangement {
            Arrangement::Planes => self.row_pitch * self.block,
            Arrangement::Pixels => self.row_pitch,
            Arrangement::InPlace => self.phase_pitch * self.block,
        }
    }

    /// From one packed channel to the next, and the packed numbers of a block, for this many steps.
    pub(super) fn plane_and_block(&self, steps: usize) -> (usize, usize) {
        let numbers = self.rows(steps) * self.row_pitch;
        match self.arrangement {
            Arrangement::Planes => {
                // An odd number of cache lines between planes, so that they do not all fall into the same sets.
                let plane = numbers.next_multiple_of(16);
                let plane = if (plane / 16).is_multiple_of(2) { plane + 16 } else { plane };
                (plane, plane * self.block)
            }
            Arrangement::Pixels => (1, numbers),
            Arrangement::InPlace => (1, 0),
        }
    }

    /// Numbers from one row to the next.
    pub(super) fn row_pitch(&self) -> usize {
        self.row_pitch
    }

    /// Numbers from one step of result rows to the next.
    pub(super) fn step_pitch(&self) -> usize {
        self.gather.axes[0].in_step * self.row_pitch
    }

    /// Numbers from one step of result columns to the next.
    pub(super) fn pixel_pitch(&self) -> usize {
        let in_step = self.gather.axes[1].in_step;
        match self.arrangement {
            Arrangement::Planes => 1,
            Arrangement::Pixels => in_step * self.block,
            Arrangement::InPlace => in_step * self.gather.source[3],
        }
    }

    /// Whether a pixel's channels and the next pixel's follow each other without a gap, for blocks of all channels.
    pub(super) fn pixels_touch(&self) -> bool {
        match self.arrangement {
            Arrangement::Planes => false,
            Arrangement::Pixels => self.block == self.gather.source_channels,
            Arrangement::InPlace => self.gather.groups == 1 && self.block == self.gather.source_channels,
        }
    }

    /// Where a tap falls, from a step's first number; row and column counted from the lowest offset.
    ///
    /// # Panics
    /// When no tap has that column.
    pub(super) fn tap(&self, row: usize, column: usize) -> usize {
        match self.arrangement {
            Arrangement::Planes => {
                let in_step = self.gather.axes[1].in_step;
                let slot = self.slots[column % in_step].expect("a phase that a tap uses is packed");
                row * self.row_pitch + slot * self.phase_pitch + column / in_step
            }
            Arrangement::Pixels => row * self.row_pitch + column * self.block,
            Arrangement::InPlace => row * self.row_pitch + column * self.gather.source[3],
        }
    }

    /// In place: where the first number of a step is in the source. With padding it may be before the source.
    pub(super) fn in_place(&self, image: usize, channel: usize, step: usize) -> isize {
        let [by_image, by_channel, by_row, by_column] = self.gather.source.map(|stride| stride as isize);
        let [rows, columns] = &self.gather.axes;
        let row = (step * rows.in_step) as isize + rows.low;
        image as isize * by_image + channel as isize * by_channel + row * by_row + columns.low * by_column
    }

    /// Packs a window. Everything that a tap of these rows can meet is written.
    ///
    /// # Panics
    /// When the window does not lie in the source, or `to` is too short for it.
    pub(super) fn pack(&self, kernels: &Kernels, source: &[f32], window: &Window, to: &mut [f32]) {
        match self.arrangement {
            Arrangement::Planes => self.pack_planes(kernels, source, window, to),
            Arrangement::Pixels => self.pack_pixels(kernels, source, window, to),
            Arrangement::InPlace => {}
        }
    }

    /// The rows to pack: each with its source row, if it is not one of zeros.
    fn packed_rows(&self, window: &Window) -> impl Iterator<Item = (usize, Option<usize>)> + '_ {
        let rows = &self.gather.axes[0];
        let first = (window.first_row * rows.in_step) as isize + rows.low;
        let wanted = (0..self.rows(window.rows)).filter(|row| self.used_rows[row % rows.in_step]);
        wanted.map(move |row| {
            let source_row = first + row as isize;
            (row, (0..rows.source as isize).contains(&source_row).then_some(source_row as usize))
        })
    }

    fn pack_planes(&self, kernels: &Kernels, source: &[f32], window: &Window, to: &mut [f32]) {
        let columns = &self.gather.axes[1];
        let [by_image, by_channel, by_row, by_column] = self.gather.source;
        let apart = columns.in_step * by_column;
        let every_row = self.used_rows.iter().all(|&used| used);
        // Rows without padding that follow each other in memory are one long row.
        let whole = self.gather.axes.iter().all(Axis::is_whole);
        let touching = whole && self.gather.axes[0].in_step == 1 && apart == 1 && self.row_pitch == by_row;
        let first_row = self.gather.axes[0].first_of_source(window.first_row);
        // Channel by channel, so that memory is read in long pieces.
        for channel in 0..window.channels {
            let from = window.image * by_image + (window.first_channel + channel) * by_channel;
            let plane = &mut to[channel * window.plane..];
            if apart > 1 || self.gather.axes[0].in_step > 1 {
                let next = source.as_ptr().wrapping_add(from + by_channel + first_row * by_row);
                prefetch_plane(next, self.rows(window.rows) * by_row);
            }
            if touching {
                let first_row = window.first_row as isize + self.gather.axes[0].low;
                let count = self.rows(window.rows) * by_row;
                let from = &source[from + first_row as usize * by_row..][..count];
                // SAFETY: both slices have the lengths that the kernel reads and writes.
                unsafe { (kernels.row)(from.as_ptr(), 1, count, plane[..count].as_mut_ptr()) };
                continue;
            }
            if every_row {
                for rows in self.packed_parts(window) {
                    self.pack_rows(kernels, source, from, rows, plane);
                }
            } else {
                for (row, source_row) in self.packed_rows(window) {
                    self.pack_rows(kernels, source, from, PackedRows { row, count: 1, source_row }, plane);
                }
            }
        }
    }

    /// The rows to pack where all are, those above the source, those of it and those below; a part may have none.
    fn packed_parts(&self, window: &Window) -> [PackedRows; 3] {
        let rows = &self.gather.axes[0];
        let all = self.rows(window.rows);
        let first = (window.first_row * rows.in_step) as isize + rows.low;
        let begin = ((-first).max(0) as usize).min(all);
        let end = ((rows.source as isize - first).max(0) as usize).clamp(begin, all);
        let source_row = Some((first + begin as isize) as usize);
        [
            PackedRows { row: 0, count: begin, source_row: None },
            PackedRows { row: begin, count: end - begin, source_row },
            PackedRows { row: end, count: all - end, source_row: None },
        ]
    }

    /// Packs rows of a channel that begins at `from` into its plane.
    fn pack_rows(&self, kernels: &Kernels, source: &[f32], from: usize, rows: PackedRows, plane: &mut [f32]) {
        let PackedRows { row, count, source_row } = rows;
        let [_, _, by_row, by_column] = self.gather.source;
        let apart = self.gather.axes[1].in_step * by_column;
        if count == 0 {
            return;
        }
        for &PhasePart { at, begin, end, column } in &self.parts {
            let to = &mut plane[row * self.row_pitch + at..][..(count - 1) * self.row_pitch + self.phase_pitch];
            let Some(source_row) = source_row.filter(|_| begin < end) else {
                to.chunks_mut(self.row_pitch).for_each(|row| row[..self.phase_pitch].fill(0.0));
                continue;
            };
            let first = from + source_row * by_row + column * by_column;
            let from = &source[first..][..(count - 1) * by_row + (end - begin - 1) * apart + 1];
            let rows = PaddedRows {
                from: from.as_ptr(),
                from_step: by_row,
                apart,
                to: to.as_mut_ptr(),
                to_step: self.row_pitch,
                rows: count,
                before: begin,
                numbers: end - begin,
                behind: self.phase_pitch - end,
            };
            // SAFETY: both slices have the lengths that the kernel reads and writes.
            unsafe { (kernels.padded_rows)(&rows) };
        }
    }

    fn pack_pixels(&self, kernels: &Kernels, source: &[f32], window: &Window, to: &mut [f32]) {
        let columns = &self.gather.axes[1];
        let [by_image, by_channel, by_row, by_column] = self.gather.source;
        let (block, channels) = (self.block, window.channels);
        // Packed columns that lie inside of the source.
        let begin = ((-columns.low).max(0) as usize).min(self.phase_pitch);
        let end = ((columns.source as isize - columns.low).max(0) as usize).min(self.phase_pitch).max(begin);
        let first = window.image * by_image + window.first_channel * by_channel;
        for (row, source_row) in self.packed_rows(window) {
            let to = &mut to[row * self.row_pitch..][..self.row_pitch];
            let Some(source_row) = source_row.filter(|_| begin < end) else {
                to.fill(0.0);
                continue;
            };
            to[..begin * block].fill(0.0);
            to[end * block..].fill(0.0);
            let column = (begin as isize + columns.low) as usize;
            let from = &source[first + source_row * by_row + column * by_column..];
            let to = &mut to[begin * block..end * block];
            pack_pixel_row(kernels, from, [by_channel, by_column], channels, end - begin, block, to);
        }
    }
}

impl PhasePart {
    /// The packed columns of a phase that lie inside of the source are those `i` of `length` with
    /// 0 ≤ i × in_step + residue + low < source.
    fn new(columns: &Axis, residue: usize, at: usize, length: usize) -> PhasePart {
        let origin = residue as isize + columns.low;
        let begin = ((-origin).max(0) as usize).div_ceil(columns.in_step);
        let end = ((columns.source as isize - origin).max(0) as usize).div_ceil(columns.in_step).min(length);
        let begin = begin.min(end);
        let column = (begin as isize * columns.in_step as isize + origin).max(0) as usize;
        PhasePart { at, begin, end, column }
    }
}

/// Asks for the cache lines of this many numbers with a processor's hint; touches nothing, so that they need not exist.
#[inline(always)]
fn ask<const HINT: i32>(from: *const f32, numbers: usize) {
    #[cfg(target_arch = "x86_64")]
    for line in 0..numbers.div_ceil(16) {
        // SAFETY: a hint, whatever the address, which processors that do not know it take for none.
        unsafe { std::arch::x86_64::_mm_prefetch::<HINT>(from.wrapping_add(line * 16).cast()) };
    }
}

/// Asks for this many numbers that are read at once.
#[inline(always)]
pub(super) fn prefetch(from: *const f32, numbers: usize) {
    ask::<{ HINTS[0] }>(from, numbers);
}

/// Asks for this many numbers that are read later, into the second-level cache.
#[inline(always)]
pub(super) fn prefetch_early(from: *const f32, numbers: usize) {
    ask::<{ HINTS[1] }>(from, numbers);
}

/// Asks for the place of this many numbers that are written before long.
#[inline(always)]
pub(super) fn prefetch_for_writing(to: *mut f32, numbers: usize) {
    ask::<{ HINTS[2] }>(to, numbers);
}

/// The hints: into the first-level cache, into the second-level cache, to be written.
#[cfg(target_arch = "x86_64")]
const HINTS: [i32; 3] =
    [std::arch::x86_64::_MM_HINT_T0, std::arch::x86_64::_MM_HINT_T1, std::arch::x86_64::_MM_HINT_ET0];
#[cfg(not(target_arch = "x86_64"))]
const HINTS: [i32; 3] = [0; 3];

/// Numbers of a plane that is asked for as a whole: the processor sees by itself how larger ones go on.
const SMALL_PLANE: usize = 2048;

/// Asks for the plane that is dealt out next, if it is small: its rows are too short for the processor to see what comes.
pub(super) fn prefetch_plane(from: *const f32, numbers: usize) {
    if numbers <= SMALL_PLANE {
        prefetch(from, numbers);
    }
}

/// Packs a row of pixels with `channels` channels each, `pitch` apart. `by` are the distances in memory of channels and
/// of pixels, one of which is one.
///
/// # Panics
/// When a slice is too short.
pub(super) fn pack_pixel_row(
    kernels: &Kernels,
    from: &[f32],
    by: [usize; 2],
    channels: usize,
    pixels: usize,
    pitch: usize,
    to: &mut [f32],
) {
    let [by_channel, by_pixel] = by;
    assert!((pixels - 1) * by_pixel + (channels - 1) * by_channel < from.len());
    assert!((pixels - 1) * pitch + channels <= to.len());
    if by_channel == 1 && by_pixel == channels && pitch == channels {
        to[..pixels * pitch].copy_from_slice(&from[..pixels * pitch]);
    } else if by_channel == 1 {
        // SAFETY: the last pixel's channels were checked above to lie in both slices.
        unsafe { (kernels.rows)(from.as_ptr(), by_pixel, to.as_mut_ptr(), pitch, channels, pixels) };
    } else {
        assert_eq!(by_pixel, 1, "pixels lie next to each other where channels do not");
        // Blocks of pixels, so that the table of their places is small.
        let places: [usize; 64] = std::array::from_fn(|pixel| pixel * pitch);
        for first in (0..pixels).step_by(places.len()) {
            let count = places.len().min(pixels - first);
            // SAFETY: channels and pixels were checked against both slices above.
            unsafe {
                (kernels.transpose)(
                    from.as_ptr().add(first),
                    by_channel,
                    channels,
                    count,
                    to.as_mut_ptr().add(first * pitch),
                    places.as_ptr(),
                );
            }
        }
    }
}
