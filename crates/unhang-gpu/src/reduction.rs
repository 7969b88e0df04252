//! Reductions of a tensor along some of its axes.

mod definition;

pub use definition::ReductionKind;

use unhang_conv::DataType;

use crate::launches::{Launches, Stage, THREADS, Way};
use crate::plan_parts::{checked_ints, divisors};
use crate::shapes::{ReductionShape, Shape};
use crate::sources::{Kernel, SourceFile, type_number};

/// The name of this module's kernel family.
pub const FAMILY: &str = "reduction";
/// The most axes of a tensor, as in MIOpen.
pub const AXES: usize = 6;
/// Bytes of an index, as in MIOpen.
pub const INDEX_BYTES: usize = 4;

/// Elements that make a thread worth its while.
const ELEMENTS_A_THREAD: usize = 8;
/// Neighbouring units that are read together: a line of memory.
const NEIGHBOURS: usize = 32;
/// Fewer elements than this are not worth another workgroup.
const LEAST_ELEMENTS: usize = 2048;
/// The most parts of a unit.
const MOST_CHUNKS: usize = 1024;
/// Workgroups that a compute unit should have.
const WORKGROUPS_A_COMPUTE_UNIT: usize = 8;
/// From this number of units for each of those workgroups on, there are many.
const MANY_UNITS: usize = 4;

/// An axis of a tensor: its size, and elements from one to the next in x and in the result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Axis {
    pub size: usize,
    pub x: usize,
    pub y: usize,
}

/// An axis that is not there.
const NO_AXIS: Axis = Axis { size: 1, x: 0, y: 0 };

/// A reduction as it is in memory.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Task {
    /// What is made of the elements.
    pub kind: ReductionKind,
    /// Whether NaN is the result of a comparison.
    pub propagates: bool,
    /// The type of x.
    pub data_type: DataType,
    /// That of the result.
    pub result_type: DataType,
    /// Whether sums are asked for in double precision, which our kernels have for doubles alone.
    pub in_double: bool,
    /// The axes of the result, last ones first to be neighbours in memory; missing ones come first.
    pub kept: [Axis; AXES],
    /// Those that are reduced, in the order in which their elements are counted.
    pub reduced: [Axis; AXES],
    /// What the result and what was in its place are multiplied with.
    pub factors: [f64; 2],
}

/// Device memory of a reduction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Buffers {
    pub x: u64,
    pub y: u64,
    /// Indices of the elements that results are, each where its result is in y; 0 where none are wanted.
    pub indices: u64,
}

impl Buffers {
    /// All addresses, as [`GpuEngine::launch_all`](crate::GpuEngine::launch_all) takes them before the workspace.
    pub fn addresses(&self) -> [u64; 3] {
        [self.x, self.y, self.indices]
    }
}

impl From<[u64; 3]> for Buffers {
    fn from([x, y, indices]: [u64; 3]) -> Buffers {
        Buffers { x, y, indices }
    }
}

/// Axes as few as possible, behind those that are not there: neighbours are one where they lie so.
fn merged(axes: impl Iterator<Item = Axis>) -> [Axis; AXES] {
    let mut all = [NO_AXIS; AXES];
    let mut first = AXES;
    for axis in axes.filter(|axis| axis.size != 1) {
        match all.last_mut() {
            Some(last) if first < AXES && (last.x, last.y) == (axis.size * axis.x, axis.size * axis.y) => {
                *last = Axis { size: last.size * axis.size, ..axis };
            }
            _ => {
                first = first.saturating_sub(1);
                all.rotate_left(1);
                all[AXES - 1] = axis;
            }
        }
    }
    all
}

/// Where an element of some axes is in x and y, counted with the last axis first.
fn place(axes: &[Axis; AXES], mut at: usize) -> [usize; 2] {
    let mut place = [0; 2];
    for axis in axes.iter().rev() {
        place[0] += at % axis.size * axis.x;
        place[1] += at % axis.size * axis.y;
        at /= axis.size;
    }
    place
}

fn elements(axes: &[Axis; AXES]) -> usize {
    axes.iter().map(|axis| axis.size).product()
}

/// The distance from the first to past the last element in x and y; `None` if it cannot be counted.
fn spans(axes: &[Axis]) -> Option<[usize; 2]> {
    let far = |step: fn(&Axis) -> usize| {
        axes.iter().try_fold(1usize, |far, axis| far.checked_add((axis.size - 1).checked_mul(step(axis))?))
    };
    Some([far(|axis| axis.x)?, far(|axis| axis.y)?])
}

/// How units and their elements are divided among workgroups and threads.
struct Division {
    lane_bits: u32,
    rows_first: bool,
    in_quads: bool,
    chunks: usize,
    per_chunk: usize,
}

impl Task {
    /// Puts axes in the order that kernels like best: the first of `axes` are kept, the others reduced. Where elements
    /// have indices, or there may be some, these keep their order.
    pub fn with_axes(self, kept: &[Axis], reduced: &[Axis]) -> Task {
        let by_stride = |axes: &[Axis]| {
            let mut sorted = axes.to_vec();
            sorted.sort_by_key(|axis| std::cmp::Reverse(axis.x));
            sorted.into_iter()
        };
        let reduced = if self.kind.is_extreme() { merged(reduced.iter().copied()) } else { merged(by_stride(reduced)) };
        Task { kept: merged(by_stride(kept)), reduced, ..self }
    }

    /// How many results there are.
    pub fn units(&self) -> usize {
        elements(&self.kept)
    }

    /// How many elements each is made of.
    pub fn count(&self) -> usize {
        elements(&self.reduced)
    }

    /// Where a unit is in x and y.
    pub fn unit(&self, unit: usize) -> [usize; 2] {
        place(&self.kept, unit)
    }

    /// Where an element of a unit is in x, behind the unit's first.
    pub fn element(&self, element: usize) -> usize {
        place(&self.reduced, element)[0]
    }

    /// The elements from the first to past the last of x and y; `None` if they cannot be counted.
    pub fn spans(&self) -> Option<[usize; 2]> {
        let all: Vec<Axis> = self.kept.into_iter().chain(self.reduced).collect();
        Some([spans(&all)?[0], spans(&self.kept)?[1]])
    }

    /// The launches. With `in_chunks`, units are divided among as many workgroups as `compute_units` need, which takes a
    /// workspace; without it none is used. `None` if elements cannot be counted in 31 bits, or sums must be exact.
    pub fn launches(&self, in_chunks: bool, compute_units: usize) -> Option<Launches> {
        self.launches_by(in_chunks, self.way(compute_units))
    }

    /// The launches, divided in a way.
    pub fn launches_by(&self, in_chunks: bool, way: Way) -> Option<Launches> {
        let (units, count) = (self.units(), self.count());
        let countable = self.spans()?.into_iter().all(|span| span < i32::MAX as usize);
        // Threads look for elements a little beyond the last one.
        let few = units.checked_mul(count).is_some_and(|all| all < i32::MAX as usize - (1 << 16));
        // An element that is only found is as exact as it was.
        let is_found = self.kind.is_extreme() && self.factors == [1.0, 0.0];
        let fits = countable && few && (!self.in_double || self.data_type == DataType::F64 || is_found);
        fits.then_some(())?;
        let division = self.division(in_chunks, way);
        let shape = self.shape(&division)?;
        let entries = match self.kind.is_extreme() {
            true => ["reduction_extreme", "reduction_extreme_of_parts"],
            false => ["reduction_sum", "reduction_sum_of_parts"],
        };
        let stage = |entry: &'static str, lane_bits: i32, chunks: usize, shape: Shape| Stage {
            kernel: Kernel::of_type(SourceFile::Reduction, entry, self.data_type),
            grid: [units.div_ceil(1 << lane_bits) as u32, chunks as u32, 1],
            shape,
            operands: (0..4).map(|operand| (operand, 0)).collect(),
        };
        let mut stages = vec![stage(entries[0], shape.lane_bits, division.chunks, shape.into())];
        let mut workspace_bytes = 0;
        if division.chunks > 1 {
            let lane_bits = power_of_two(units.min(NEIGHBOURS)) as i32;
            let of_parts = ReductionShape { lane_bits, rows_first: 0, ..shape };
            stages.push(stage(entries[1], lane_bits, 1, of_parts.into()));
            let wide = if self.data_type == DataType::F64 { 8 } else { 4 };
            let of_index = if self.kind.is_extreme() { INDEX_BYTES } else { 0 };
            workspace_bytes = (division.chunks * units * (wide + of_index)) as u64;
        }
        Some(Launches { stages, workspace_bytes })
    }

    /// How it is divided, unless another way was measured to be faster.
    pub fn way(&self, compute_units: usize) -> Way {
        let (units, count) = (self.units(), self.count());
        let step = |axes: &[Axis]| axes.iter().filter(|axis| axis.size > 1).map(|axis| axis.x).min();
        let rows_first = step(&self.reduced).is_some_and(|reduced| step(&self.kept).is_none_or(|kept| reduced <= kept));
        let most_groups = WORKGROUPS_A_COMPUTE_UNIT * compute_units.max(1);
        // Threads that a unit's elements keep busy, unless its neighbours are read with it. Merging what threads have
        // takes time too: where there are many units, few threads serve each.
        let busy = power_of_two(count.div_ceil(ELEMENTS_A_THREAD));
        let beside = power_of_two(units.min(NEIGHBOURS));
        let room = match rows_first {
            true if units < MANY_UNITS * most_groups => 8,
            true => power_of_two(NEIGHBOURS),
            false => 8 - beside,
        };
        let lane_bits = 8 - busy.min(room);
        let groups = units.div_ceil(1 << lane_bits);
        let work = (count << lane_bits).div_ceil(LEAST_ELEMENTS);
        let chunks = (most_groups / groups.max(1)).min(work).clamp(1, MOST_CHUNKS);
        Way { lane_bits, chunks, in_quads: self.has_quads(), along: rows_first }
    }

    fn division(&self, in_chunks: bool, way: Way) -> Division {
        let (count, in_quads) = (self.count(), way.in_quads && self.has_quads());
        let per_chunk = count.div_ceil(if in_chunks { way.chunks } else { 1 });
        let per_chunk = per_chunk.next_multiple_of(if in_quads { 4 } else { 1 });
        let chunks = count.div_ceil(per_chunk);
        Division { lane_bits: way.lane_bits, rows_first: way.along, in_quads, chunks, per_chunk }
    }

    /// Whether four neighbouring elements of a unit are neighbours in memory, at multiples of four elements.
    fn has_quads(&self) -> bool {
        let [others @ .., last] = self.reduced;
        let apart = others.iter().chain(&self.kept).filter(|axis| axis.size > 1);
        let in_fours = (last.x, last.size % 4) == (1, 0) && apart.clone().all(|axis| axis.x.is_multiple_of(4));
        self.data_type != DataType::F64 && in_fours
    }

    fn shape(&self, division: &Division) -> Option<ReductionShape> {
        let int = |number: usize| i32::try_from(number).ok();
        let behind = |axes: [Axis; AXES]| {
            let [_, rest @ ..] = axes;
            divisors(rest.map(|axis| axis.size))
        };
        Some(ReductionShape {
            units: int(self.units())?,
            count: int(self.count())?,
            lane_bits: division.lane_bits as i32,
            rows_first: i32::from(division.rows_first),
            chunks: int(division.chunks)?,
            per_chunk: int(division.per_chunk)?,
            in_quads: i32::from(division.in_quads),
            axes: self.reduced.iter().filter(|axis| axis.size > 1).count() as i32,
            operation: self.kind as i32,
            propagates: i32::from(self.propagates),
            y_type: type_number(self.result_type) as i32,
            by_kept: behind(self.kept),
            x_kept: checked_ints(self.kept.map(|axis| axis.x))?,
            y_kept: checked_ints(self.kept.map(|axis| axis.y))?,
            by_reduced: behind(self.reduced),
            x_reduced: checked_ints(self.reduced.map(|axis| axis.x))?,
            inverse_count: (1.0 / self.count() as f64).into(),
            alpha: self.factors[0].into(),
            beta: self.factors[1].into(),
        })
    }
}

/// The least power of two that is not below a number, up to the threads of a workgroup: its exponent.
fn power_of_two(number: usize) -> u32 {
    number.clamp(1, THREADS as usize).next_power_of_two().ilog2()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(kind: ReductionKind) -> Task {
        let (data_type, result_type) = (DataType::F32, DataType::F32);
        let [kept, reduced] = [[NO_AXIS; AXES]; 2];
        Task { kind, propagates: false, data_type, result_type, in_double: false, kept, reduced, factors: [1.0, 0.0] }
    }

    fn axis(size: usize, x: usize, y: usize) -> Axis {
        Axis { size, x, y }
    }

    #[test]
    fn axes_that_lie_one_behind_the_other_are_one() {
        // 2×3×4×5 in NCHW; channels are kept.
        let channels = [axis(3, 20, 1)];
        let of = |kind| task(kind).with_axes(&channels, &[axis(2, 60, 0), axis(4, 5, 0), axis(5, 1, 0)]);
        let sum = of(ReductionKind::Sum);
        assert_eq!(sum.reduced[4..], [axis(2, 60, 0), axis(20, 1, 0)]);
        assert_eq!((sum.kept[5], sum.units(), sum.count(), sum.spans()), (channels[0], 3, 40, Some([120, 3])));
        assert_eq!((sum.unit(2), sum.element(25)), ([40, 2], 65));
        // The order of axes is free where no element has an index.
        let turned = [axis(5, 1, 0), axis(4, 5, 0), axis(2, 60, 0)];
        assert_eq!(task(ReductionKind::Sum).with_axes(&channels, &turned).reduced, sum.reduced);
        assert_eq!(task(ReductionKind::Least).with_axes(&channels, &turned).reduced[3..], turned);
    }

    fn shapes(launches: &Launches) -> Vec<ReductionShape> {
        let shape = |stage: &Stage| match stage.shape {
            Shape::Reduction(shape) => shape,
            other => panic!("{other:?}"),
        };
        launches.stages.iter().map(shape).collect()
    }

    #[test]
    fn few_large_results_are_divided_and_neighbours_are_read_together() {
        let whole = task(ReductionKind::Largest).with_axes(&[], &[axis(1 << 20, 1, 0)]);
        let launches = whole.launches(true, 36).unwrap();
        assert_eq!((launches.stages[0].grid, launches.stages[1].grid), ([1, 288, 1], [1, 1, 1]));
        assert_eq!(launches.workspace_bytes(), 288 * 8);
        assert_eq!((shapes(&launches)[0].in_quads, shapes(&launches)[0].lane_bits), (1, 0));
        assert_eq!(whole.launches(false, 36).unwrap().stages.len(), 1);
        let rows = task(ReductionKind::Sum).with_axes(&[axis(4096, 10, 1)], &[axis(10, 1, 0)]);
        let launches = rows.launches(true, 36).unwrap();
        assert_eq!((shapes(&launches)[0].lane_bits, shapes(&launches)[0].rows_first), (7, 1));
        assert_eq!((launches.stages[0].grid, launches.workspace_bytes()), ([32, 1, 1], 0));
        // With many rows a few threads read each.
        let long = |rows| task(ReductionKind::Sum).with_axes(&[axis(rows, 768, 1)], &[axis(768, 1, 0)]);
        assert_eq!(
            [64, 1000, 2000].map(|rows| shapes(&long(rows).launches(true, 36).unwrap())[0].lane_bits),
            [1, 1, 3]
        );
        let columns = task(ReductionKind::Sum).with_axes(&[axis(64, 1, 1)], &[axis(1000, 64, 0)]);
        let launches = columns.launches(true, 36).unwrap();
        assert_eq!((shapes(&launches)[0].lane_bits, shapes(&launches)[0].rows_first), (5, 0));
        assert_eq!(launches.stages[0].grid, [2, 16, 1]);
    }

    #[test]
    fn what_cannot_be_counted_or_must_be_exact_is_declined() {
        let far = task(ReductionKind::Sum).with_axes(&[axis(2, 1 << 31, 1)], &[axis(4, 1, 0)]);
        assert_eq!(far.launches(true, 36), None);
        let large = task(ReductionKind::Sum).with_axes(&[axis(1 << 16, 0, 1)], &[axis(1 << 16, 1, 0)]);
        assert_eq!(large.launches(true, 36), None);
        let near = task(ReductionKind::Sum).with_axes(&[], &[axis(4, 1, 0)]);
        assert!(near.launches(true, 36).is_some());
        assert_eq!(Task { in_double: true, ..near }.launches(true, 36), None);
        let largest = Task { kind: ReductionKind::Largest, in_double: true, ..near };
        assert!(largest.launches(true, 36).is_some());
        assert_eq!(Task { factors: [0.5, 0.0], ..largest }.launches(true, 36), None);
    }
}
