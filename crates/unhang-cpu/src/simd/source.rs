//! Packed rows of the source, with its zeros, for the kernels that read neighbouring pixels.
//!
//! A packed plane is `[row][phase][column]`: with a stride the columns are dealt out by their remainder, so that the
//! pixels that one tap meets lie next to each other whatever the stride.

use super::geometry::{Axis, Gather};
use super::kernels::Kernels;

/// How a plane of the source lies packed.
pub struct PackedSource<'a> {
    gather: &'a Gather,
    /// Numbers of one phase of columns.
    phase_pitch: usize,
    /// Numbers of one packed row.
    pub row_pitch: usize,
    /// The place of each phase of columns that a tap needs.
    slots: Vec<Option<usize>>,
    /// Which phases of rows a tap needs.
    used_rows: Vec<bool>,
}

/// Which rows of which channels to pack.
#[derive(Debug, Clone, Copy)]
pub struct Window {
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
    /// From one packed channel to the next.
    pub plane: usize,
}

impl<'a> PackedSource<'a> {
    /// The packing for a gather.
    pub fn new(gather: &'a Gather) -> PackedSource<'a> {
        let [rows, columns] = &gather.axes;
        let mut count = 0;
        let slot = |residue: usize| {
            columns.uses(residue).then(|| {
                count += 1;
                count - 1
            })
        };
        let slots = (0..columns.in_step).map(slot).collect();
        let phase_pitch = columns.steps + (columns.span - 1) / columns.in_step;
        PackedSource {
            gather,
            phase_pitch,
            // A result that no tap reaches needs no source at all, only its bias.
            row_pitch: count.max(1) * phase_pitch,
            slots,
            used_rows: (0..rows.in_step).map(|residue| rows.uses(residue)).collect(),
        }
    }

    /// Packed rows that so many steps of results need.
    pub fn rows(&self, steps: usize) -> usize {
        let rows = &self.gather.axes[0];
        (steps - 1) * rows.in_step + rows.span
    }

    /// Numbers from one step of results to the next.
    pub fn step_pitch(&self) -> usize {
        self.gather.axes[0].in_step * self.row_pitch
    }

    /// Where a tap falls, from the first packed number of a step; row and column counted from the lowest offset.
    ///
    /// # Panics
    /// When no tap has that column.
    pub fn tap(&self, row: usize, column: usize) -> usize {
        let in_step = self.gather.axes[1].in_step;
        let slot = self.slots[column % in_step].expect("a phase that a tap uses is packed");
        row * self.row_pitch + slot * self.phase_pitch + column / in_step
    }

    /// Packs a window. Everything that a tap of these rows can meet is written.
    ///
    /// # Panics
    /// When the window does not lie in the source, or `to` is too short for it.
    pub fn pack(&self, kernels: &Kernels, source: &[f32], window: &Window, to: &mut [f32]) {
        let gather = self.gather;
        let [rows, columns] = &gather.axes;
        let [by_image, by_channel, by_row, by_column] = gather.source;
        let channels = window.channels;
        let planes: Vec<usize> = (0..channels).map(|channel| channel * window.plane).collect();
        for row in (0..self.rows(window.rows)).filter(|row| self.used_rows[row % rows.in_step]) {
            let source_row = (window.first_row * rows.in_step + row) as isize + rows.low;
            let inside = (0..rows.source as isize).contains(&source_row);
            for (residue, slot) in self.slots.iter().enumerate() {
                let Some(slot) = slot else { continue };
                let start = row * self.row_pitch + slot * self.phase_pitch;
                let (begin, end, column) = self.inside(columns, residue);
                if !inside || begin == end {
                    planes.iter().for_each(|plane| to[plane + start..][..self.phase_pitch].fill(0.0));
                    continue;
                }
                let from = window.image * by_image
                    + window.first_channel * by_channel
                    + source_row as usize * by_row
                    + column * by_column;
                let (count, apart) = (end - begin, columns.in_step * by_column);
                // The last number that is read.
                assert!(from + (count - 1) * apart + (channels - 1) * by_channel < source.len());
                for plane in &planes {
                    let row = &mut to[plane + start..][..self.phase_pitch];
                    row[..begin].fill(0.0);
                    row[end..].fill(0.0);
                }
                // SAFETY: `count` pixels with `channels` channels each lie in the source, as was just checked; the
                // rows lie in `to`, the last of which was sliced just above.
                unsafe {
                    let from = source.as_ptr().add(from);
                    let to = to.as_mut_ptr().add(start + begin);
                    if by_channel == 1 && channels > 1 {
                        (kernels.transpose)(from, apart, count, channels, to, planes.as_ptr());
                    } else {
                        for (channel, plane) in planes.iter().enumerate() {
                            (kernels.row)(from.add(channel * by_channel), apart, count, to.add(*plane));
                        }
                    }
                }
            }
        }
    }

    /// The packed columns of a phase that lie inside of the source, and the source's column of the first:
    /// those `i` with 0 ≤ i × in_step + residue + low < source.
    fn inside(&self, columns: &Axis, residue: usize) -> (usize, usize, usize) {
        let origin = residue as isize + columns.low;
        let begin = ((-origin).max(0) as usize).div_ceil(columns.in_step);
        let end = ((columns.source as isize - origin).max(0) as usize).div_ceil(columns.in_step).min(self.phase_pitch);
        let begin = begin.min(end);
        (begin, end, (begin as isize * columns.in_step as isize + origin).max(0) as usize)
    }
}
