//! Strided filters as dense ones: with a stride of two, rows and columns of either parity make separate channels, with
//! half of the taps. Forward these are channels of the source, whose products are summed up together; backward-data they
//! are channels of the result.
//!
//! Of three taps one parity has two and the other one. A filter without its first or last tap is zero at the point 0 or at
//! infinity, so that those products are left out.

use super::super::geometry::{Axis, Gather};
use super::phases;
use unhang_simd::{MOST_PLACES, PATCH};

/// Parities of row and column. If it is the second parity that has fewer taps, those that have products of an element
/// are neighbours in this order.
const ORDER: [[usize; 2]; 4] = [[0, 1], [0, 0], [1, 0], [1, 1]];

/// Which taps each parity has. Without a stride there is but one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Parities {
    /// Places of taps on an axis.
    pub taps: usize,
    /// Parities of both axes together.
    pub count: usize,
    /// For each axis and parity the index of the tap at each place.
    indices: [[[Option<usize>; MOST_PLACES]; 2]; 2],
}

impl Parities {
    /// Of a gather without stride and three taps an axis, or with a stride of two on both axes. None if there are more
    /// places than kernels have, or if an image of one row or column has no result of the second parity.
    pub(crate) fn new(gather: &Gather) -> Option<Parities> {
        let steps = gather.axes.each_ref().map(|axis| axis.in_step * axis.out_step);
        // How far neighbouring places of an axis lie apart.
        let apart = |axis: &Axis| if steps == [1, 1] { phases::dilation(axis) } else { axis.in_step };
        let places = gather.axes.iter().map(|axis| axis.span.div_ceil(apart(axis))).fold(2, usize::max);
        let lacks_a_parity = gather.axes.iter().any(|axis| axis.phases.len() < axis.out_step);
        if !(steps == [1, 1] || steps == [2, 2]) || places > MOST_PLACES || lacks_a_parity {
            return None;
        }
        let of_parity = |axis: &Axis, parity: usize| {
            let mut indices = [None; MOST_PLACES];
            let phase = if axis.out_step == 1 { 0 } else { parity };
            for tap in axis.phases.get(phase).into_iter().flatten() {
                let place = (tap.offset - axis.low) as usize;
                if axis.in_step == 1 || place % axis.in_step == parity {
                    indices[place / apart(axis)] = Some(tap.index);
                }
            }
            indices
        };
        Some(Parities {
            taps: places,
            count: steps[0] * steps[1],
            indices: gather.axes.each_ref().map(|axis| [0, 1].map(|parity| of_parity(axis, parity))),
        })
    }

    /// Results of a tile on an axis.
    pub(crate) fn tile(&self) -> usize {
        PATCH + 1 - self.taps
    }

    /// The parities of row and column by number.
    pub(crate) fn of(&self, number: usize) -> [usize; 2] {
        if self.count == 1 { [0, 0] } else { ORDER[number] }
    }

    /// Row and column of the tap in the filter at each place of a parity, row by row.
    pub(crate) fn places(&self, number: usize) -> impl Iterator<Item = Option<[usize; 2]>> {
        let [row, column] = self.of(number);
        let (rows, columns, taps) = (self.indices[0][row], self.indices[1][column], self.taps);
        (0..taps * taps).map(move |place| Some([rows[place / taps]?, columns[place % taps]?]))
    }

    /// Whether a parity has products of an element.
    pub(crate) fn has(&self, number: usize, element: usize) -> bool {
        let has = |axis: usize, parity: usize, point: usize| {
            let indices = &self.indices[axis][parity];
            (point > 0 || indices[0].is_some()) && (point < PATCH - 1 || indices[self.taps - 1].is_some())
        };
        let [row, column] = self.of(number);
        has(0, row, element / PATCH) && has(1, column, element % PATCH)
    }
}
