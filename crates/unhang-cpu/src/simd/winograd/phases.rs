//! Dilated filters as dense ones: rows and columns that lie a dilation apart make an image of their own, a phase, and no
//! phase's results depend on another's pixels.

use super::super::geometry::{Axis, Gather};

/// Positions of an axis that lie a dilation apart.
#[derive(Debug, Clone, Copy)]
pub struct Positions {
    /// The first.
    pub first: usize,
    /// How many.
    pub count: usize,
}

/// A phase on one axis.
#[derive(Debug, Clone, Copy)]
pub struct Phase {
    /// Of the source.
    pub source: Positions,
    /// Of the result.
    pub result: Positions,
    /// Where the first tap of the first result falls, in positions of the phase's source.
    pub low: isize,
}

/// How far three taps lie apart; strided ones are neighbours.
pub fn dilation(axis: &Axis) -> usize {
    if axis.in_step * axis.out_step == 1 { (axis.span / 2).max(1) } else { 1 }
}

/// How many phases an axis of this many results has.
pub fn count(dilation: usize, results: usize) -> usize {
    dilation.min(results)
}

/// The phases of both axes of a gather.
#[derive(Debug, Clone)]
pub struct Phases {
    axes: [Vec<Phase>; 2],
}

impl Phases {
    /// Of a gather.
    pub fn new(gather: &Gather) -> Phases {
        Phases { axes: gather.axes.each_ref().map(of_axis) }
    }

    /// The image that a phase is of, and the phase on both axes: phases are numbered through images, rows and columns.
    pub fn of(&self, number: usize) -> (usize, [Phase; 2]) {
        let [rows, columns] = &self.axes;
        let (row, column) = (number / columns.len(), number % columns.len());
        (row / rows.len(), [rows[row % rows.len()], columns[column]])
    }
}

fn of_axis(axis: &Axis) -> Vec<Phase> {
    let dilation = dilation(axis);
    let positions = |first: usize, all: usize| Positions { first, count: all.saturating_sub(first).div_ceil(dilation) };
    let phase = |phase: usize| {
        // Result `phase + q × dilation` meets the source at `origin + (q + tap) × dilation`.
        let origin = phase as isize + axis.low;
        let first = origin.rem_euclid(dilation as isize) as usize;
        let (source, result) = (positions(first, axis.source), positions(phase, axis.result));
        Phase { source, result, low: origin.div_euclid(dilation as isize) }
    };
    (0..count(dilation, axis.result)).map(phase).collect()
}
