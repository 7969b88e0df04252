//! Dilated filters as dense ones: rows and columns that are a dilation apart make a separate image, a phase, and no
//! phase's results depend on another's pixels.
//!
//! Small phases fill few of their tiles. So all phases of an axis may lie behind each other, in a chain, with as many zeros
//! between them as keep their results apart: then a chain is an image.

use super::super::geometry::{Axis, Gather};

/// Positions of an axis that lie a dilation apart.
#[derive(Debug, Clone, Copy)]
struct Positions {
    first: usize,
    count: usize,
}

/// A phase on one axis.
#[derive(Debug, Clone, Copy)]
struct Phase {
    source: Positions,
    result: Positions,
    /// Where the first tap of the first result falls, in positions of the phase's source.
    low: isize,
}

/// Taps of a dilated filter on an axis.
const TAPS: usize = 3;

/// How far three taps lie apart; strided ones are neighbours.
pub(super) fn dilation(axis: &Axis) -> usize {
    if axis.in_step * axis.out_step == 1 { (axis.span / 2).max(1) } else { 1 }
}

fn phases(axis: &Axis) -> impl Iterator<Item = Phase> + Clone + '_ {
    let dilation = dilation(axis);
    let positions =
        move |first: usize, all: usize| Positions { first, count: all.saturating_sub(first).div_ceil(dilation) };
    (0..dilation.min(axis.result)).map(move |phase| {
        // Result `phase + q × dilation` meets the source at `origin + (q + tap) × dilation`.
        let origin = phase as isize + axis.low;
        let first = origin.rem_euclid(dilation as isize) as usize;
        let (source, result) = (positions(first, axis.source), positions(phase, axis.result));
        Phase { source, result, low: origin.div_euclid(dilation as isize) }
    })
}

impl Phase {
    /// Places that its results read.
    fn read(&self) -> usize {
        self.result.count + TAPS - 1
    }

    /// Zeros before the first pixel of the source that a result reads.
    fn zeros(&self) -> usize {
        (-self.low).max(0) as usize
    }

    /// The place behind the last pixel of the source that a result reads.
    fn end(&self) -> usize {
        ((self.source.count as isize - self.low).max(0) as usize).min(self.read())
    }

    /// How far behind it the next phase may begin, so that neither reads the other's pixels.
    fn distance(&self, next: &Phase) -> usize {
        self.result.count.max(self.end()).max(self.read().saturating_sub(next.zeros()))
    }
}

/// The phases of an axis with the place of each in a chain.
fn places(axis: &Axis) -> impl Iterator<Item = (usize, Phase)> + '_ {
    let mut before: Option<(usize, Phase)> = None;
    phases(axis).map(move |phase| {
        let place = before.map_or(0, |(place, last)| place + last.distance(&phase));
        before = Some((place, phase));
        (place, phase)
    })
}

/// What an axis is cut into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Extent {
    /// Chains: as many as there are phases, or one of them all.
    pub chains: usize,
    /// Tiles of a chain.
    pub tiles: usize,
}

/// What an axis is cut into in tiles of this many results: whatever has the fewer tiles.
pub(super) fn extent(axis: &Axis, tile: usize) -> Extent {
    if dilation(axis) == 1 {
        return Extent { chains: 1, tiles: axis.steps.div_ceil(tile) };
    }
    // The first phase is the longest.
    let of_first = phases(axis).next().map_or(0, |phase| phase.result.count.div_ceil(tile));
    let apart = Extent { chains: phases(axis).count(), tiles: of_first };
    let length = places(axis).last().map_or(0, |(place, phase)| place + phase.result.count);
    let together = Extent { chains: 1, tiles: length.div_ceil(tile) };
    if together.tiles < apart.chains * apart.tiles { together } else { apart }
}

/// Positions of an axis in the order in which tiles take them; none where there are zeros, or results that nobody wants.
#[derive(Debug, Clone)]
pub(super) struct Chain {
    /// Of the source, from the first that the first tile reads.
    pub source: Vec<Option<usize>>,
    /// Of the result.
    pub result: Vec<Option<usize>>,
}

impl Chain {
    /// Without a dilation.
    fn dense(axis: &Axis) -> Chain {
        let place = |position: isize| (position >= 0).then_some(position as usize);
        Chain {
            source: (axis.low..axis.source as isize).map(place).collect(),
            result: (0..axis.result).map(Some).collect(),
        }
    }

    /// Phases at their places.
    fn of(dilation: usize, phases: impl Iterator<Item = (usize, Phase)>) -> Chain {
        let mut chain = Chain { source: Vec::new(), result: Vec::new() };
        for (place, phase) in phases {
            let position = |positions: &Positions, number: usize| Some(positions.first + number * dilation);
            chain.source.resize(place + phase.zeros().min(phase.read()), None);
            let read =
                (phase.zeros() as isize + phase.low) as usize..(phase.end() as isize + phase.low).max(0) as usize;
            chain.source.extend(read.map(|number| position(&phase.source, number)));
            chain.result.resize(place, None);
            chain.result.extend((0..phase.result.count).map(|number| position(&phase.result, number)));
        }
        chain
    }
}

/// The first of `count` positions from a place on, if all of them are there and the same distance apart.
pub(super) fn run(positions: &[Option<usize>], place: usize, count: usize, distance: usize) -> Option<usize> {
    let positions = positions.get(place..place + count)?;
    let (first, last) = (positions.first().copied()??, positions.last().copied()??);
    let touch = positions.iter().all(Option::is_some) && last == first + (count - 1) * distance;
    touch.then_some(first)
}

/// The chains of both axes of a gather.
#[derive(Debug, Clone)]
pub(super) struct Phases {
    axes: [Vec<Chain>; 2],
}

impl Phases {
    /// Of a gather, in tiles of this many results.
    pub(super) fn new(gather: &Gather, tile: usize) -> Phases {
        let chains = |axis: &Axis| match (dilation(axis), extent(axis, tile).chains) {
            (1, _) => vec![Chain::dense(axis)],
            (dilation, 1) => vec![Chain::of(dilation, places(axis))],
            (dilation, _) => phases(axis).map(|phase| Chain::of(dilation, std::iter::once((0, phase)))).collect(),
        };
        Phases { axes: gather.axes.each_ref().map(chains) }
    }

    /// The image that a chain is of, and the chains of both axes: they are numbered through images, rows and columns.
    pub(super) fn of(&self, number: usize) -> (usize, [&Chain; 2]) {
        let [rows, columns] = &self.axes;
        let (row, column) = (number / columns.len(), number % columns.len());
        (row / rows.len(), [&rows[row % rows.len()], &columns[column]])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use unhang_conv::Problem;

    fn axis(size: usize, padding: usize, dilation: usize) -> Axis {
        let key =
            format!("forward:f32:nchw:1x1x{size}x{size}:1x3x3:s1x1:p{padding}x{padding}:d{dilation}x{dilation}:g1");
        Gather::new(&key.parse::<Problem>().expect("a key")).axes[0].clone()
    }

    /// Every result finds each tap's pixel, or a zero, as many places behind its own.
    #[test]
    fn chains_keep_phases_apart() {
        for (size, padding, dilation) in
            [(33, 6, 6), (33, 12, 12), (33, 2, 2), (9, 0, 3), (7, 12, 12), (20, 3, 5), (13, 11, 2), (40, 1, 4)]
        {
            let axis = axis(size, padding, dilation);
            let chain = Chain::of(dilation, places(&axis));
            let mut results: Vec<usize> = chain.result.iter().flatten().copied().collect();
            for (place, result) in
                chain.result.iter().enumerate().filter_map(|(place, result)| Some((place, (*result)?)))
            {
                for tap in 0..TAPS {
                    let wanted = (result + tap * dilation).checked_sub(padding).filter(|&position| position < size);
                    let found = chain.source.get(place + tap).copied().flatten();
                    assert_eq!(found, wanted, "{size} {padding} {dilation}: result {result}, tap {tap}");
                }
            }
            results.sort_unstable();
            assert!(results.into_iter().eq(0..axis.result), "every result has a place");
        }
    }

    #[test]
    fn few_tiles_are_chosen() {
        // Phases of five and six results: two tiles each, or ten with a zero between neighbours.
        assert_eq!(extent(&axis(33, 6, 6), 4), Extent { chains: 1, tiles: 10 });
        assert_eq!(extent(&axis(33, 12, 12), 4), Extent { chains: 1, tiles: 11 });
        // Phases of sixteen results fill their tiles.
        assert_eq!(extent(&axis(32, 2, 2), 4), Extent { chains: 2, tiles: 4 });
    }
}
