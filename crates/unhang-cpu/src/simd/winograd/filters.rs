//! Transformed filters.

use super::super::geometry::Gather;
use super::super::workspace::Workspace;
use super::parities::Parities;
use super::plan::Shape;
use unhang_simd::{ELEMENTS, Filters, Kernels};

/// Transforms the filters of one vector of result channels; says whether all are finite. They are laid out as
/// `[parity of the result][element][parity of the source][source channel][result channel]`, and channels and taps that
/// there are not are zero.
///
/// # Panics
/// When a slice is not as long as the shape says.
pub(super) fn transform(
    shape: &Shape,
    gather: &Gather,
    kernels: &Kernels,
    weight: &[f32],
    vector: usize,
    to: &mut [f32],
) -> bool {
    let lanes = shape.lanes;
    assert_eq!(to.len(), shape.panels(), "room for the filters");
    let first_result = vector * lanes;
    let results = lanes.min(shape.results - first_result);
    let [by_result, by_source, by_row, by_column] = gather.weight;
    let Parities { taps, count: parities, .. } = shape.parities;
    let all = shape.blocks_of_parity() * lanes;
    let most = shape.packed_blocks() * lanes;
    let mut packed = Workspace::take(shape.filters_room());
    let mut finite = true;
    for first in (0..all).step_by(most) {
        let channels = most.min(all - first);
        let real = channels.min(shape.sources - first);
        let tap_step = channels * lanes;
        // Each parity is transformed by itself, or those of the source's few channels together.
        let of_parity = taps * taps * tap_step;
        let (apart, parity_step) = if shape.together { (1, shape.sources * lanes) } else { (parities, of_parity) };
        let packed = &mut packed[..apart * of_parity];
        // Where each existing tap is in the filter, and where it goes.
        let places = (0..parities).flat_map(|parity| {
            let to = move |place: usize| parity * parity_step + place * tap_step;
            let places = shape.parities.places(parity).enumerate();
            places
                .filter_map(move |(place, tap)| tap.map(|[row, column]| (row * by_row + column * by_column, to(place))))
        });
        let places: Vec<(usize, usize)> = places.collect();
        if results < lanes || real < channels || places.len() < parities * taps * taps {
            packed.fill(0.0);
        }
        let from = &weight[first_result * by_result + first * by_source..];
        pack(kernels, from, gather, &places, [results, real, shape.filter_taps], packed);
        for (parity, packed) in packed.chunks(of_parity).enumerate() {
            let to = &mut to[parity * shape.parity_step() + first * lanes..];
            let element_step = shape.filter_step();
            assert!((ELEMENTS - 1) * element_step + tap_step <= to.len());
            let filters =
                Filters { from: packed.as_ptr(), taps, tap_step, channels, to: to.as_mut_ptr(), element_step };
            // SAFETY: all taps have `channels` vectors, and the last of the elements was just checked.
            finite &= unsafe { (kernels.filters)(&filters) };
        }
    }
    finite
}

/// Packs the taps at `places`, from where they are in the filter of a channel to where they go. It packs result
/// channels in vectors, and source channels vector by vector. Filters of all taps have `of_filter` numbers.
///
/// # Panics
/// When a slice is not as long as that.
fn pack(
    kernels: &Kernels,
    from: &[f32],
    gather: &Gather,
    places: &[(usize, usize)],
    [results, sources, of_filter]: [usize; 3],
    packed: &mut [f32],
) {
    let ([by_result, by_source, ..], lanes) = (gather.weight, kernels.lanes);
    let last = places.iter().map(|&(at, _)| at).max().unwrap_or(0);
    assert!((results - 1) * by_result + (sources - 1) * by_source + last < from.len());
    assert!(places.iter().all(|&(_, place)| place + sources * lanes <= packed.len()));
    // SAFETY: rows are result channels, columns neighbouring source channels or taps, and the last number of them all was just
    // checked. Each goes to a separate vector in `packed`.
    unsafe {
        let to = packed.as_mut_ptr();
        if by_result == 1 {
            for &(at, place) in places {
                (kernels.rows)(from.as_ptr().add(at), by_source, to.add(place), lanes, results, sources);
            }
        } else if by_source == 1 {
            let offsets: Vec<usize> = (0..sources).map(|channel| channel * lanes).collect();
            for &(at, place) in places {
                let from = from.as_ptr().add(at);
                (kernels.transpose)(from, by_result, results, sources, to.add(place), offsets.as_ptr());
            }
        } else {
            // All taps of a channel lie together, and forward the next channel's behind them.
            let together = if by_source == of_filter { sources } else { 1 };
            let mut offsets = vec![0usize; of_filter * together];
            for &(at, place) in places {
                for channel in 0..together {
                    offsets[channel * of_filter + at] = place + channel * lanes;
                }
            }
            for channel in (0..sources).step_by(together) {
                let (from, to) = (from.as_ptr().add(channel * by_source), to.add(channel * lanes));
                (kernels.transpose)(from, by_result, results, of_filter * together, to, offsets.as_ptr());
            }
        }
    }
}
