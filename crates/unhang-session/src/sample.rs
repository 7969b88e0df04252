//! Which elements of a kernel's first result are compared with the definition.
//!
//! They are at the corners of the first and last image, in the first and last channels of the first and last group, where
//! tiles are ragged and mistakes live, and at a few places between. An element of a filter's gradient sums over all pixels,
//! so the more pixels there are the fewer of those are compared. Whole results would be the stronger proof: they take as long
//! as the CPU takes for the convolution, and canaries compare them on small ones.

use std::ops::Range;

use unhang_conv::{Direction, Problem};
use unhang_engine::Place;

/// Channels at each end of a group.
const CHANNELS: usize = 4;
/// Positions between the corners.
const BETWEEN: usize = 4;
/// With more pixels than the first of these one filter and channel are compared at each end, with more than the second five
/// of its taps, with more than the third at one end only.
const MANY_PIXELS: [usize; 3] = [1 << 12, 1 << 14, 1 << 17];

/// A few channels at the beginning and at the end of a group.
pub fn ends(total: usize) -> Vec<Range<usize>> {
    let few = total.min(CHANNELS);
    let last = (total - few).max(few)..total;
    [0..few, last].into_iter().filter(|range| !range.is_empty()).collect()
}

/// Image, row and column of pixels: corners and a few between, the same each time.
pub fn positions(batch: usize, height: usize, width: usize) -> Vec<[usize; 3]> {
    let last = [batch - 1, height - 1, width - 1];
    let mut positions = vec![[0; 3], [0, 0, last[2]], [last[0], last[1], 0], last];
    let mut seed = 0x9e37_79b9_u64;
    for _ in 0..BETWEEN {
        positions.push([batch, height, width].map(|size| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) as usize % size
        }));
    }
    without_repeats(positions)
}

/// The gradients of filters that are compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filters {
    /// Group, filter of the group and channel of the group at which each block begins.
    pub corners: Vec<[usize; 3]>,
    /// Filters and channels of a block.
    pub block: [usize; 2],
    /// Row and column of the taps.
    pub taps: Vec<[usize; 2]>,
}

/// Which gradients of filters are compared, where each is a sum over that many pixels.
pub fn filters(groups: usize, [rows, channels]: [usize; 2], kernel: [usize; 2], pixels: usize) -> Filters {
    let few = if pixels > MANY_PIXELS[0] { 1 } else { 2 };
    let block = [few.min(rows), few.min(channels)];
    let last = [groups - 1, rows - block[0], channels - block[1]];
    let all = vec![[0; 3], [groups - 1, 0, 0], last];
    let corners = if pixels <= MANY_PIXELS[2] { without_repeats(all) } else { vec![last] };
    // Of a large window the corners, the middles of its edges, and its own.
    let [down, across] = kernel.map(|size| [0, size / 2, size - 1]);
    let taps = if pixels > MANY_PIXELS[1] {
        [0, 1, 2].into_iter().flat_map(|at| [[down[at], across[at]], [down[at], across[2 - at]]]).collect()
    } else {
        down.into_iter().flat_map(|row| across.map(|column| [row, column])).collect()
    };
    Filters { corners, block, taps: without_repeats(taps) }
}

/// The places of all these elements in the result of an ordinary convolution.
pub fn places(problem: &Problem) -> Vec<Place> {
    let [n, c, h, w] = problem.operand_shapes()[2];
    let groups = problem.groups();
    let mut places = Vec::new();
    if problem.direction() == Direction::BackwardWeights {
        let rows = n / groups;
        let pixels = problem.batch() * problem.out_size().iter().product::<usize>();
        let found = filters(groups, [rows, c], [h, w], pixels);
        for [group, row, channel] in found.corners {
            for i in row..row + found.block[0] {
                for j in channel..channel + found.block[1] {
                    places.extend(found.taps.iter().map(|&[k, l]| [group * rows + i, j, k, l]));
                }
            }
        }
        return without_repeats(places);
    }
    let of_group = c / groups;
    let channels = without_repeats(vec![0, groups - 1]).into_iter().flat_map(|group| {
        ends(of_group).into_iter().flatten().map(move |channel| group * of_group + channel).collect::<Vec<_>>()
    });
    let channels: Vec<usize> = channels.collect();
    for [i, k, l] in positions(n, h, w) {
        places.extend(channels.iter().map(|&j| [i, j, k, l]));
    }
    places
}

fn without_repeats<T: PartialEq>(all: Vec<T>) -> Vec<T> {
    let mut kept: Vec<T> = Vec::with_capacity(all.len());
    for it in all {
        if !kept.contains(&it) {
            kept.push(it);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn corners_and_ends_are_among_them_and_nothing_lies_outside() {
        for key in [
            "2x16x9x8:24x3x3:s2x1:p1x1:d1x1:g2",
            "1x3x5x5:3x3x3:s1x1:p1x1:d1x1:g3",
            "1x1x1x1:1x1x1:s1x1:p0x0:d1x1:g1",
            "64x8x130x130:20x3x3:s1x1:p1x1:d1x1:g1",
        ] {
            for direction in Direction::ALL {
                let problem: Problem = format!("{direction}:f32:nchw:{key}").parse().unwrap();
                let shape = problem.operand_shapes()[2];
                let places = places(&problem);
                let is_inside = |place: &Place| place.iter().zip(shape).all(|(at, size)| *at < size);
                assert!(places.iter().all(is_inside), "{problem}: {places:?}");
                assert!(places.contains(&shape.map(|size| size - 1)), "{problem}");
                let is_long = problem.batch() == 64 && direction == Direction::BackwardWeights;
                assert_eq!(places.contains(&[0; 4]), !is_long, "{problem}");
                assert!(places.len() <= 192, "{problem}: {}", places.len());
                assert_eq!(without_repeats(places.clone()).len(), places.len());
            }
        }
    }

    #[test]
    fn of_many_pixels_fewer_taps_are_compared() {
        let count = |pixels| filters(2, [8, 8], [5, 5], pixels);
        assert_eq!((count(100).corners.len(), count(100).block, count(100).taps.len()), (3, [2, 2], 9));
        assert_eq!((count(5000).block, count(5000).taps.len()), ([1, 1], 9));
        assert_eq!((count(20_000).corners.len(), count(20_000).taps.len()), (3, 5));
        assert_eq!(count(200_000).corners, [[1, 7, 7]]);
    }
}
