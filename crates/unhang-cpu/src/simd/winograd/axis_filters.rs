//! The filters of Winograd's algorithm along one axis.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::super::cache;
use super::super::geometry::{Axis, Gather};
use super::super::workspace::{Shared, Workspace};
use crate::parallel::for_each_unit;
use unhang_simd::{AxisFilters, Kernels};

/// Filters to be transformed.
pub(super) struct FiltersOfAxis<'a> {
    /// What they are used for.
    pub gather: &'a Gather,
    /// By which kernels.
    pub kernels: &'static Kernels,
    /// The filters.
    pub weight: &'a [f32],
    /// The axis that is transformed.
    pub axis: usize,
    /// Pairs of points.
    pub pairs: usize,
    /// Filters of each part: the first, and how many.
    pub parts: Vec<(usize, usize)>,
}

/// Where a tap falls from the first.
fn places(axis: &Axis) -> impl Iterator<Item = (usize, usize)> + '_ {
    axis.phases[0].iter().map(|tap| ((tap.offset - axis.low) as usize, tap.index))
}

impl FiltersOfAxis<'_> {
    /// The axis that is transformed, and the other one.
    fn axes(&self) -> [&Axis; 2] {
        [&self.gather.axes[self.axis], &self.gather.axes[1 - self.axis]]
    }

    /// Elements of a transformed filter: points, and with a stride the tap between the others.
    fn elements(&self) -> usize {
        2 * self.pairs + 1 + self.axes()[0].in_step
    }

    /// Numbers of an element of one filter.
    fn of_element(&self) -> usize {
        self.axes()[1].phases[0].len() * self.gather.source_channels
    }

    /// Numbers of some transformed filters.
    pub(super) fn numbers(&self, count: usize) -> usize {
        self.elements() * self.of_element() * count
    }

    /// All filters as `[part][element][tap of the wide axis][source channel][filter]`, kept from call to call where that
    /// pays, and whether all are finite. A number behind them says so.
    pub(super) fn all(&self, threads: usize) -> (Arc<Workspace>, bool) {
        let length = self.numbers(self.gather.result_channels) + 1;
        let pack = |to: &mut [f32]| {
            let (filters, flag) = to.split_at_mut(length - 1);
            let of_filter = self.numbers(1);
            let start = Shared(filters.as_mut_ptr());
            let spoiled = AtomicBool::new(false);
            for_each_unit(threads, self.parts.len(), |part| {
                let (first, count) = self.parts[part];
                // SAFETY: this part's filters, which no other unit touches.
                let to =
                    unsafe { std::slice::from_raw_parts_mut(start.get().add(first * of_filter), count * of_filter) };
                if !self.part(first, count, to) {
                    spoiled.store(true, Ordering::Relaxed);
                }
            });
            flag[0] = f32::from(u8::from(spoiled.into_inner()));
        };
        let pixels = self.gather.batch * self.gather.axes[0].result * self.gather.axes[1].result;
        let filters = if cache::is_worth_keeping(length, pixels) {
            cache::packed(self.kernels, self.weight, self.signature(), length, pack)
        } else {
            let mut filters = Workspace::take(length);
            pack(&mut filters);
            Arc::new(filters)
        };
        let finite = filters[length - 1] == 0.0;
        (filters, finite)
    }

    /// What stands for the way in which they are packed.
    fn signature(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        // Two sets of kernels may have vectors of the same length and round differently.
        std::ptr::from_ref(self.kernels).hash(&mut hasher);
        let order = self.gather.axes.each_ref().map(|axis| (axis.in_step, places(axis).collect::<Vec<_>>()));
        let sizes = (self.axis, self.pairs, self.gather.source_channels, &self.parts, self.gather.weight);
        ("winograd-axis", sizes, order).hash(&mut hasher);
        hasher.finish()
    }

    /// Transforms some filters; says whether all are finite.
    ///
    /// # Panics
    /// When there is not just as much room as they need.
    pub(super) fn part(&self, first: usize, count: usize, to: &mut [f32]) -> bool {
        let [by_result, by_source, by_row, by_column] = self.gather.weight;
        let [tall, wide] = self.axes();
        let (by_tall, by_wide) = if self.axis == 0 { (by_row, by_column) } else { (by_column, by_row) };
        let sources = self.gather.source_channels;
        let of_tap = self.of_element() * count;
        let taps = tall.phases[0].len() * wide.phases[0].len();
        // Where each of a filter's numbers for one source channel goes.
        let mut offsets = vec![0usize; taps];
        for (place, index) in places(tall) {
            for (number, tap) in wide.phases[0].iter().enumerate() {
                offsets[index * by_tall + tap.index * by_wide] = place * of_tap + number * sources * count;
            }
        }
        let mut packed = Workspace::take(tall.phases[0].len() * of_tap);
        let from = &self.weight[first * by_result..];
        assert!((count - 1) * by_result + (sources - 1) * by_source + taps <= from.len());
        for channel in 0..sources {
            // SAFETY: rows are filters, columns the taps of one channel, and the last number of them all was just
            // checked. Each goes to a separate place in `packed`.
            unsafe {
                let (from, to) = (from.as_ptr().add(channel * by_source), packed.as_mut_ptr().add(channel * count));
                (self.kernels.transpose)(from, by_result, count, taps, to, offsets.as_ptr());
            }
        }
        assert_eq!(to.len(), self.numbers(count), "room for the filters");
        let filters = AxisFilters {
            pairs: self.pairs,
            stride: tall.in_step,
            from: packed.as_ptr(),
            tap_step: of_tap,
            count: of_tap,
            to: to.as_mut_ptr(),
            element_step: of_tap,
        };
        // SAFETY: as many numbers for each tap and each element, as was just checked.
        unsafe { (self.kernels.axis_filters)(&filters) }
    }
}
