//! Reductions.

use unhang_conv::DataType;
use unhang_gpu::reduction::{AXES, Axis, Buffers, FAMILY, INDEX_BYTES, ReductionKind, Task};
use unhang_gpu::{GpuEngine, Launches, Way};

use crate::failure::Failure;
use crate::host::Numbers;
use crate::operation::{Content, Operand, Operation, factors_in_trials};
use crate::placed::{Placed, not_while_recording};

/// Everything that distinguishes one first result from another.
#[derive(Debug, Hash)]
pub struct Key {
    kind: ReductionKind,
    propagates: bool,
    types: [DataType; 2],
    axes: [[Axis; AXES]; 2],
    /// Those of a trial.
    factors: [u64; 2],
}

/// The most elements of a unit whose places are kept in a table.
const MOST_IN_TABLE: usize = 1 << 20;

/// The longest axis, whether it is kept, and its number.
fn longest(task: &Task) -> (usize, bool, usize) {
    let of = |axes: &[Axis; AXES], is_kept| {
        let sizes = axes.iter().enumerate().map(|(number, axis)| (axis.size, is_kept, number));
        sizes.max().unwrap_or((1, is_kept, 0))
    };
    of(&task.kept, true).max(of(&task.reduced, false))
}

impl Operation for Task {
    const NAME: &'static str = "reduction";
    const FAMILY: &'static str = FAMILY;
    type Buffers = Buffers;
    type Key = Key;

    fn check(&self, _: &Buffers) -> Result<(), String> {
        if self.units() == 0 || self.count() == 0 || self.spans().is_none() {
            return Err(format!("a reduction of {:?} to {:?}", self.reduced, self.kept));
        }
        Ok(())
    }

    fn key(&self) -> Key {
        Key {
            kind: self.kind,
            propagates: self.propagates,
            types: [self.data_type, self.result_type],
            axes: [self.kept, self.reduced],
            factors: factors_in_trials(self.factors).map(f64::to_bits),
        }
    }

    fn way(&self, compute_units: usize) -> Option<Way> {
        Some(Task::way(self, compute_units))
    }

    fn launches(&self, in_chunks: bool, way: Way) -> Option<Launches> {
        self.launches_by(in_chunks, way)
    }

    fn addresses(at: &Buffers) -> Vec<u64> {
        at.addresses().to_vec()
    }

    fn buffers(addresses: &[u64]) -> Buffers {
        std::array::from_fn(|at| addresses[at]).into()
    }

    fn operands(&self) -> Vec<Operand> {
        let [x, y] = self.spans().unwrap_or_default().map(Placed::row);
        let indices = Content::Indices(INDEX_BYTES);
        vec![
            Operand { content: Content::Numbers(self.data_type), placed: x, is_written: false, in_fours: true },
            Operand { content: Content::Numbers(self.result_type), placed: y, is_written: true, in_fours: false },
            Operand { content: indices, placed: y, is_written: self.kind.is_extreme(), in_fours: false },
        ]
    }

    fn parts(&self) -> usize {
        self.units()
    }

    fn part(&self, unit: usize, at: &Buffers) -> (Task, Buffers) {
        let [x, y] = self.unit(unit);
        let moved = |address: u64, by: usize| if address == 0 { 0 } else { address + by as u64 };
        let at = Buffers {
            x: moved(at.x, x * self.data_type.size()),
            y: moved(at.y, y * self.result_type.size()),
            indices: moved(at.indices, y * INDEX_BYTES),
        };
        (self.with_axes(&[], &self.reduced), at)
    }

    fn slices(&self) -> (usize, usize) {
        let (size, ..) = longest(self);
        (size, self.units() * self.count() / size)
    }

    fn of_slices(&self, count: usize) -> Task {
        let (mut few, (size, is_kept, number)) = (*self, longest(self));
        // Whether elements are taken in fours depends on sizes and strides modulo four.
        let less = (size - count) / 4 * 4;
        let of = if is_kept { &mut few.kept } else { &mut few.reduced };
        let Axis { x, y, .. } = of[number];
        of[number].size -= less;
        // The axes around it lie closer together.
        let closer =
            |stride: &mut usize, step: usize| *stride -= stride.checked_div(size * step).unwrap_or(0) * less * step;
        for axis in few.kept.iter_mut().chain(&mut few.reduced) {
            closer(&mut axis.x, x);
            closer(&mut axis.y, y);
        }
        few
    }

    fn for_trial(&self) -> Task {
        Task { factors: factors_in_trials(self.factors), ..*self }
    }

    /// Sums of numbers mostly of one sign lose little, and none of half precision overflows; products of numbers near 1
    /// neither vanish nor overflow. One number is NaN, unless it would be the only result.
    fn fill(&self, operand: usize, numbers: &mut Numbers) {
        let count = self.count() as f64;
        let (near, small) = (1.0 / count.sqrt(), (16384.0 / count).min(1.0));
        let is_sum = matches!(self.kind, ReductionKind::Sum | ReductionKind::Mean);
        for at in 0..numbers.len() {
            let size = small * (numbers.get(at).abs() + 0.1);
            let number = match self.kind {
                _ if operand != 0 => size,
                ReductionKind::Product => 1.0 + near * numbers.get(at),
                _ if at % if is_sum { 8 } else { 2 } == 1 => -size,
                _ => size,
            };
            numbers.set(at, number);
        }
        if operand == 0 && self.kind.is_extreme() && (self.units() > 1 || !self.propagates) {
            // In a unit that is compared.
            numbers.set(self.unit(self.units() * 2 / 3)[0] + self.element(self.count() / 2), f64::NAN);
        }
    }

    fn indices(&self, _: u64) -> Vec<u8> {
        vec![0xee; self.spans().map_or(0, |[_, y]| y) * INDEX_BYTES]
    }

    fn spoiled(&self, at: &Buffers) -> Vec<(Task, Buffers)> {
        let [alpha, beta] = self.factors;
        vec![(Task { factors: [alpha * 2.0 + 1.0, beta], ..*self }, *at)]
    }

    fn trials(is_emulated: bool) -> Vec<(Task, Buffers)> {
        let mut trials = Vec::new();
        let axis = |size, x, y| Axis { size, x, y };
        // All of a little and all of a lot, the last axis, the last but one, and all but one of three in turn.
        let shapes: [(&[Axis], &[Axis]); 5] = [
            (&[], &[axis(105, 1, 0)]),
            (&[], &[axis(5000, 1, 0)]),
            (&[axis(3, 90, 2), axis(5, 18, 6)], &[axis(17, 1, 0)]),
            (&[axis(2, 400, 40), axis(40, 1, 1)], &[axis(10, 40, 0)]),
            (&[axis(6, 70, 1)], &[axis(3, 420, 0), axis(4, 15, 0), axis(7, 2, 0)]),
        ];
        let types = [DataType::F32, DataType::F16, DataType::Bf16, DataType::F64];
        for data_type in types.into_iter().take(if is_emulated { 1 } else { 4 }) {
            for kind in ReductionKind::ALL {
                for (turn, (kept, reduced)) in shapes.into_iter().enumerate() {
                    let (result_type, factors) = (data_type, [[1.0, 0.0], [0.5, 0.25]][turn % 2]);
                    let [none, also_none] = [[axis(1, 0, 0); AXES]; 2];
                    let (in_double, propagates) = (false, turn % 3 == 0);
                    let one = Task {
                        kind,
                        propagates,
                        data_type,
                        result_type,
                        in_double,
                        kept: none,
                        reduced: also_none,
                        factors,
                    };
                    trials.push((one.with_axes(kept, reduced), Buffers { x: 16, y: 32, indices: 48 }));
                }
            }
        }
        trials
    }

    unsafe fn on_host(&self, engine: &GpuEngine, at: &Buffers, stream: u64) -> Result<(), Failure> {
        not_while_recording(engine, stream)?;
        let (driver, [x_span, y_span]) = (engine.driver(), self.spans().unwrap_or_default());
        let has_indices = self.kind.is_extreme() && at.indices != 0;
        let mut indices = vec![0; if has_indices { y_span * INDEX_BYTES } else { 0 }];
        // SAFETY: the caller's promise.
        let (x, mut y) = unsafe {
            if has_indices {
                driver.read(&mut indices, at.indices, stream)?;
            }
            let x = Numbers::read(driver, self.data_type, x_span, at.x, stream)?;
            (x, Numbers::read(driver, self.result_type, y_span, at.y, stream)?)
        };
        // A table of all of them could need more memory than the tensor.
        let table: Vec<usize> = (0..self.count().min(MOST_IN_TABLE)).map(|element| self.element(element)).collect();
        let place = |element| table.get(element).copied().unwrap_or_else(|| self.element(element));
        let [alpha, beta] = self.factors;
        for unit in 0..self.units() {
            let [from, to] = self.unit(unit);
            let (value, index) =
                self.kind.of(self.propagates, (0..self.count()).map(|element| x.get(from + place(element))));
            y.set(to, alpha * value + if beta == 0.0 { 0.0 } else { beta * y.get(to) });
            if has_indices {
                let raw = &(index as u64).to_le_bytes()[..INDEX_BYTES];
                indices[to * INDEX_BYTES..][..INDEX_BYTES].copy_from_slice(raw);
            }
        }
        // SAFETY: the caller's promise.
        unsafe {
            if has_indices {
                driver.write(at.indices, &indices, stream)?;
            }
            y.write(driver, at.y, stream).map_err(Failure::from)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::device::Device;
    use crate::operation::{compute, of_few_slices};
    use crate::played;
    use crate::session::Session;

    fn whole(kind: ReductionKind, size: usize) -> Task {
        let (first, _) = Task::trials(true)[0];
        Task { kind, factors: [1.0, 0.0], ..first }.with_axes(&[], &[Axis { size, x: 1, y: 0 }])
    }

    #[test]
    fn a_trial_has_the_same_kernels_and_fewer_elements() {
        let few_of = |it: &Task| of_few_slices(it, Task::way(it, 40));
        let (first, _) = Task::trials(false)[0];
        assert_eq!(few_of(&first), first, "all of a few");
        let large = whole(ReductionKind::Norm2, 1 << 26);
        let few = few_of(&large);
        assert_eq!(few.count(), 1 << 20);
        assert_eq!(Task::launches(&few, true, 40).unwrap().kernels().count(), 2, "divided, as all of it is");
        let kept = [Axis { size: 1 << 16, x: 1 << 10, y: 1 }];
        let many = large.with_axes(&kept, &[Axis { size: 1 << 10, x: 1, y: 0 }]);
        assert_eq!((few_of(&many).units(), few_of(&many).count()), (1 << 10, 1 << 10));
        // The axes around one that is cut lie closer together, or the trial needs the memory of the whole.
        let row = [Axis { size: 100_000, x: 1, y: 0 }];
        let wide = large.with_axes(&[Axis { size: 512, x: 100_000, y: 1 }], &row);
        assert_eq!(few_of(&wide).spans(), Some([1 << 20, 512]));
        // What is computed in fours is tried in fours, and what is not is not.
        for (units, count) in [(1, 4_000_001), (1, 4_000_000), (3, 4_000_000), (3, 4_000_004)] {
            let kept = [Axis { size: units, x: count, y: 1 }];
            let task = large.with_axes(&kept, &[Axis { size: count, x: 1, y: 0 }]);
            let few = few_of(&task);
            assert!(few.count() < count / 2, "{units} of {count}");
            assert_eq!(Task::launches(&few, true, 40).unwrap().path(), Task::launches(&task, true, 40).unwrap().path());
        }
        let hidden = Task { factors: [0.0, 1e9], ..large };
        assert_eq!(few_of(&hidden).factors, [0.5, 0.25], "factors that hide errors");
    }

    #[test]
    fn what_has_no_elements_is_declined() {
        let (first, at) = Task::trials(false)[0];
        assert!(Task::trials(false).iter().all(|(trial, at)| trial.check(at).is_ok()));
        let mut empty = first;
        empty.reduced[5].size = 0;
        assert!(empty.check(&at).unwrap_err().starts_with("a reduction of"));
    }

    /// The largest of 60 numbers and where it is, as it was found and as it should be.
    fn largest(session: &Session, device: &Device, task: Task) -> [(f64, u64); 2] {
        let input: Vec<f32> = (0..60).map(|at| (at * 37 % 59) as f32 - 20.0).collect();
        let at = Buffers { x: played::place(&input), y: played::place(&[0.0]), indices: played::place(&[0.0]) };
        // SAFETY: memory of these sizes, which stays.
        assert!(unsafe { compute(session, device, &task, &at, 0) }.is_ok());
        let (value, index) = task.kind.of(task.propagates, input.iter().map(|&it| f64::from(it)));
        let found = u64::from((played::numbers(at.indices, 1)[0] as f32).to_bits());
        [(played::numbers(at.y, 1)[0], found), (value, index as u64)]
    }

    /// What the kernel for the largest of 60 should do.
    fn play_largest(arguments: &[*mut std::ffi::c_void]) {
        // SAFETY: the first arguments are addresses of x, the result and the index.
        let [from, to, index] = [0, 1, 2].map(|at| unsafe { *arguments[at].cast::<u64>() });
        let (value, place) = ReductionKind::Largest.of(false, played::numbers(from, 60).into_iter());
        // SAFETY: room for one of each.
        unsafe { (*(to as *mut f32), *(index as *mut u32)) = (value as f32, place as u32) };
    }

    #[test]
    fn a_wrong_kernel_is_caught_and_a_right_one_computes() {
        let task = Task { propagates: false, ..whole(ReductionKind::Largest, 60) };
        let (device, launches, session) = played::device(Some(|_| {}));
        for _ in 0..2 {
            let [found, right] = largest(&session, &device, task);
            assert_eq!(found, right, "the CPU's");
            assert_eq!(launches.load(Ordering::Relaxed), 1, "tried once, and never again");
        }
        assert_eq!(session.canaries_held(), 1, "kept as evidence");
        let (device, launches, session) = played::device(Some(play_largest));
        for call in 0..3 {
            let [found, right] = largest(&session, &device, task);
            assert_eq!((found, launches.load(Ordering::Relaxed)), (right, 2 + call));
        }
        let exact = Task { kind: ReductionKind::Sum, in_double: true, ..task };
        let [found, right] = largest(&session, &device, exact);
        assert_eq!((found, launches.load(Ordering::Relaxed)), (right, 4), "in double precision by the CPU");
    }
}
