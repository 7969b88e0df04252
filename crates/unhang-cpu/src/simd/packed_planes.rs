//! The source with pixels in vectors: planes dealt out by the remainders of rows and columns, zeros for padding among them.
//!
//! For every tap the pixels that meet the results of a row lie next to each other, and so do the rows.

use super::geometry::{Axis, Gather, Tap};
use super::source::prefetch_plane;
use unhang_simd::{Kernels, PaddedRows};

/// One axis of the packed source.
struct PackedAxis<'a> {
    axis: &'a Axis,
    /// The place of each remainder that a tap needs.
    places: Vec<Option<usize>>,
    /// Remainders that have a place.
    used: usize,
    /// Positions of a remainder beyond the steps.
    beyond: usize,
}

impl<'a> PackedAxis<'a> {
    fn new(axis: &'a Axis) -> PackedAxis<'a> {
        let mut used = 0;
        let place = |remainder: usize| {
            axis.uses(remainder).then(|| {
                used += 1;
                used - 1
            })
        };
        let places = (0..axis.in_step).map(place).collect();
        PackedAxis { axis, places, used, beyond: (axis.span - 1) / axis.in_step }
    }

    /// The remainders with their places.
    fn remainders(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        self.places.iter().enumerate().filter_map(|(remainder, place)| place.map(|place| (remainder, place)))
    }

    /// Of `count` packed positions of a remainder from a step on: those that lie in the source, and where the first does.
    fn inside(&self, remainder: usize, first_step: usize, count: usize) -> (usize, usize, usize) {
        self.axis.inside(remainder, first_step, count)
    }

    /// A tap's remainder's place, and its steps from the first.
    fn tap(&self, offset: isize) -> (usize, usize) {
        let from_low = (offset - self.axis.low) as usize;
        let place = self.places[from_low % self.axis.in_step].expect("a remainder that a tap uses has a place");
        (place, from_low / self.axis.in_step)
    }
}

/// How strips of a source are packed.
pub(super) struct PackedPlanes<'a> {
    gather: &'a Gather,
    kernels: &'static Kernels,
    axes: [PackedAxis<'a>; 2],
    /// Numbers from one row of a remainder to the next.
    pub pitch: usize,
}

/// What a strip of this many rows takes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Room {
    /// From one remainder of rows and columns to the next.
    remainder: usize,
    /// From one channel to the next.
    pub plane: usize,
}

/// A strip of a group's source.
#[derive(Debug, Clone, Copy)]
pub(super) struct Window {
    /// The image.
    pub image: usize,
    /// The group.
    pub group: usize,
    /// The first row of results, in steps.
    pub first_row: usize,
    /// How many steps.
    pub rows: usize,
}

impl<'a> PackedPlanes<'a> {
    /// For the source of a gather whose pixels lie together.
    pub(super) fn new(gather: &'a Gather, kernels: &'static Kernels) -> PackedPlanes<'a> {
        assert_eq!(gather.source[3], 1, "pixels lie together");
        let [rows, columns] = &gather.axes;
        let axes = [PackedAxis::new(rows), PackedAxis::new(columns)];
        let pitch = columns.steps + axes[1].beyond;
        PackedPlanes { gather, kernels, axes, pitch }
    }

    /// Packed numbers of all channels for each step of rows.
    pub(super) fn numbers_of_row(&self) -> usize {
        self.gather.source_channels * self.axes[0].used * self.axes[1].used * self.pitch
    }

    /// Packed rows of each remainder, for this many steps.
    pub(super) fn packed_rows(&self, steps: usize) -> usize {
        steps + self.axes[0].beyond
    }

    /// What a strip of this many steps takes.
    pub(super) fn room(&self, steps: usize) -> Room {
        let remainder = self.packed_rows(steps) * self.pitch;
        Room { remainder, plane: self.axes[0].used.max(1) * self.axes[1].used.max(1) * remainder }
    }

    /// Where a tap meets the first result, from a channel's first number on.
    pub(super) fn offset(&self, room: &Room, [row, column]: [Tap; 2]) -> usize {
        let (row, column) = (self.axes[0].tap(row.offset), self.axes[1].tap(column.offset));
        (row.0 * self.axes[1].used + column.0) * room.remainder + row.1 * self.pitch + column.1
    }

    /// Packs a strip as `[channel][remainder of rows][remainder of columns][row][column]`.
    ///
    /// # Panics
    /// When the strip does not lie in the source, or `to` is too short for it.
    pub(super) fn pack(&self, source: &[f32], strip: &Window, room: &Room, to: &mut [f32]) {
        let gather = self.gather;
        let [rows, columns] = &self.axes;
        let [by_image, by_channel, by_row, _] = gather.source;
        let packed_rows = self.packed_rows(strip.rows);
        for channel in 0..gather.source_channels {
            let from = strip.image * by_image + (strip.group * gather.source_channels + channel) * by_channel;
            if rows.axis.in_step * columns.axis.in_step > 1 {
                let first_row = rows.axis.first_of_source(strip.first_row);
                let next = source.as_ptr().wrapping_add(from + by_channel + first_row * by_row);
                prefetch_plane(next, rows.axis.in_step * packed_rows * by_row);
            }
            for (row_remainder, row_place) in rows.remainders() {
                let (top, bottom, row) = rows.inside(row_remainder, strip.first_row, packed_rows);
                for (column_remainder, column_place) in columns.remainders() {
                    let (left, right, column) = columns.inside(column_remainder, 0, self.pitch);
                    let at = channel * room.plane + (row_place * columns.used + column_place) * room.remainder;
                    let to = &mut to[at..][..packed_rows * self.pitch];
                    if top == bottom || left == right {
                        to.fill(0.0);
                        continue;
                    }
                    to[..top * self.pitch].fill(0.0);
                    to[bottom * self.pitch..].fill(0.0);
                    let (apart, from_step) = (columns.axis.in_step, rows.axis.in_step * by_row);
                    let last = (bottom - top - 1) * from_step + (right - left - 1) * apart;
                    let from = &source[from + row * by_row + column..][..last + 1];
                    let rows = PaddedRows {
                        from: from.as_ptr(),
                        from_step,
                        apart,
                        to: to[top * self.pitch..bottom * self.pitch].as_mut_ptr(),
                        to_step: self.pitch,
                        rows: bottom - top,
                        before: left,
                        numbers: right - left,
                        behind: self.pitch - right,
                    };
                    // SAFETY: both slices have the lengths that the kernel reads and writes.
                    unsafe { (self.kernels.padded_rows)(&rows) };
                }
            }
        }
    }
}
