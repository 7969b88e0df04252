//! Transformed filters.

use super::super::geometry::{Axis, Gather};
use super::super::kernels::{Filters, Kernels};
use super::super::workspace::Workspace;
use super::phases;
use super::plan::Shape;

/// Transforms the filters of one vector of result channels; says whether all are finite. They are laid out as
/// `[element][source channel][result channel]`, and channels that there are not are zero.
///
/// # Panics
/// When a slice is not as long as the shape says.
pub fn transform(
    shape: &Shape,
    gather: &Gather,
    kernels: &Kernels,
    weight: &[f32],
    vector: usize,
    to: &mut [f32],
) -> bool {
    let lanes = shape.lanes;
    assert_eq!(to.len(), shape.panel(), "room for the filters");
    let first_result = vector * lanes;
    let results = lanes.min(shape.results - first_result);
    let [by_result, by_source, by_row, by_column] = gather.weight;
    // The taps in the order of the source's pixels, which backward is not that of memory.
    let index = |axis: &Axis, tap: usize| {
        let taps = &axis.phases[0];
        taps.iter().find(|t| t.offset - axis.low == (tap * phases::dilation(axis)) as isize).map_or(0, |t| t.index)
    };
    let taps: Vec<usize> = (0..9)
        .map(|tap| index(&gather.axes[0], tap / 3) * by_row + index(&gather.axes[1], tap % 3) * by_column)
        .collect();
    let most = shape.packed_blocks() * lanes;
    let mut packed = Workspace::take(shape.filters_room());
    let mut finite = true;
    for first in (0..shape.blocks * lanes).step_by(most) {
        let channels = most.min(shape.blocks * lanes - first);
        let real = channels.min(shape.sources - first);
        let tap_step = channels * lanes;
        let packed = &mut packed[..9 * tap_step];
        if results < lanes || real < channels {
            packed.fill(0.0);
        }
        let from = &weight[first_result * by_result + first * by_source..];
        let last = taps.iter().max().map_or(0, |&tap| tap);
        assert!((results - 1) * by_result + (real - 1) * by_source + last < from.len());
        // SAFETY: rows are result channels, columns neighbouring source channels or taps, and the last number of them
        // all was just checked; each goes to a vector of its own in `packed`.
        unsafe {
            let to = packed.as_mut_ptr();
            if by_result == 1 {
                for (tap, &at) in taps.iter().enumerate() {
                    let from = from.as_ptr().add(at);
                    (kernels.rows)(from, by_source, to.add(tap * tap_step), lanes, results, real);
                }
            } else if by_source == 1 {
                let offsets: Vec<usize> = (0..real).map(|channel| channel * lanes).collect();
                for (tap, &at) in taps.iter().enumerate() {
                    let from = from.as_ptr().add(at);
                    (kernels.transpose)(from, by_result, results, real, to.add(tap * tap_step), offsets.as_ptr());
                }
            } else {
                // All taps of a channel lie together, and forward the next channel's behind them.
                let together = if by_source == 9 { real } else { 1 };
                let mut offsets = vec![0usize; 9 * together];
                for (number, offset) in offsets.iter_mut().enumerate() {
                    let tap = taps.iter().position(|&at| at == number % 9).unwrap_or(0);
                    *offset = tap * tap_step + number / 9 * lanes;
                }
                for channel in (0..real).step_by(together) {
                    let (from, to) = (from.as_ptr().add(channel * by_source), to.add(channel * lanes));
                    (kernels.transpose)(from, by_result, results, 9 * together, to, offsets.as_ptr());
                }
            }
        }
        let filters = Filters {
            from: packed.as_ptr(),
            tap_step,
            channels,
            to: to[first * lanes..].as_mut_ptr(),
            element_step: shape.filter_step(),
        };
        // SAFETY: nine taps of `channels` vectors each; the last of the elements ends with the panel, whose length was
        // checked.
        finite &= unsafe { (kernels.filters)(&filters) };
    }
    finite
}
