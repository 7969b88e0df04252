//! Poolings.

use unhang_conv::DataType;
use unhang_gpu::pooling::{Buffers, FAMILY, IndexType, Pooling, PoolingKind, Task};
use unhang_gpu::{GpuEngine, Launches, Way};

use crate::failure::Failure;
use crate::host::Numbers;
use crate::operation::{Content, Operand, Operation, factors_in_trials, index_of};
use crate::placed::{Brought, Placed, not_while_recording};

/// Everything that distinguishes one first result from another.
#[derive(Debug, Hash)]
pub struct Key {
    sizes: Pooling,
    backward: bool,
    data_type: DataType,
    strides: [[usize; 5]; 2],
    index: IndexType,
    /// Those of a trial.
    factors: [u64; 2],
}

/// x and y as they lie, or their gradients.
fn placed(task: &Task) -> [Placed; 2] {
    let Pooling { batch, channels, input, output, .. } = task.sizes;
    let one = |[depth, height, width]: [usize; 3], strides| {
        let sizes = [batch, channels, depth, height, width];
        Placed { sizes, strides }
    };
    [one(input, task.x), one(output, task.y)]
}

impl Operation for Task {
    const NAME: &'static str = "pooling";
    const FAMILY: &'static str = FAMILY;
    type Buffers = Buffers;
    type Key = Key;

    fn check(&self, at: &Buffers) -> Result<(), String> {
        let Pooling { kind, batch, channels, input, output, window, stride, .. } = self.sizes;
        let sizes = [input, output, window, stride].concat();
        if batch == 0 || channels == 0 || sizes.contains(&0) {
            return Err(format!("a pooling of {batch}×{channels} images of {input:?} by windows of {window:?}"));
        }
        let (index, indices) = (self.index, self.sizes.indices());
        if kind == PoolingKind::Largest && at.indices != 0 && !index.holds(indices) {
            return Err(format!("indices of {} bytes do not count {indices} elements", index.bytes()));
        }
        if kind == PoolingKind::Largest && self.backward && at.indices == 0 {
            return Err("no indices of the largest elements".to_owned());
        }
        Ok(())
    }

    fn key(&self) -> Key {
        Key {
            sizes: self.sizes,
            backward: self.backward,
            data_type: self.data_type,
            strides: [self.x, self.y],
            index: self.index,
            factors: factors_in_trials(self.factors).map(f64::to_bits),
        }
    }

    fn way(&self, _: usize) -> Option<Way> {
        Some(Task::way(self))
    }

    fn launches(&self, _: bool, way: Way) -> Option<Launches> {
        self.launches_by(way)
    }

    fn addresses(at: &Buffers) -> Vec<u64> {
        at.addresses().to_vec()
    }

    fn buffers(addresses: &[u64]) -> Buffers {
        std::array::from_fn(|at| addresses[at]).into()
    }

    fn operands(&self) -> Vec<Operand> {
        let [x, y] = placed(self);
        let (from, to) = if self.backward { (y, x) } else { (x, y) };
        let numbers = Content::Numbers(self.data_type);
        let indices = Content::Indices(self.index.bytes());
        vec![
            Operand { content: numbers, placed: from, is_written: false, in_fours: false },
            Operand { content: numbers, placed: to, is_written: true, in_fours: self.backward },
            Operand {
                content: indices,
                placed: Placed::row(self.sizes.outputs()),
                is_written: !self.backward,
                in_fours: false,
            },
        ]
    }

    fn parts(&self) -> usize {
        self.sizes.batch * self.sizes.channels
    }

    fn part(&self, plane: usize, at: &Buffers) -> (Task, Buffers) {
        let (image, channel) = (plane / self.sizes.channels, plane % self.sizes.channels);
        let one = Task { sizes: Pooling { batch: 1, channels: 1, ..self.sizes }, ..*self };
        let skipped = |strides: [usize; 5]| (image * strides[0] + channel * strides[1]) * self.data_type.size();
        let (from, to) = if self.backward { (self.y, self.x) } else { (self.x, self.y) };
        let indices = plane * one.sizes.outputs() * self.index.bytes();
        let moved = |address: u64, by: usize| if address == 0 { 0 } else { address + by as u64 };
        let at = Buffers {
            from: moved(at.from, skipped(from)),
            to: moved(at.to, skipped(to)),
            indices: moved(at.indices, indices),
        };
        (one, at)
    }

    fn slices(&self) -> (usize, usize) {
        let batch = self.sizes.batch;
        (batch, self.sizes.inputs().max(self.sizes.outputs()) / batch)
    }

    fn of_slices(&self, count: usize) -> Task {
        Task { sizes: Pooling { batch: count, ..self.sizes }, ..*self }
    }

    fn for_trial(&self) -> Task {
        Task { factors: factors_in_trials(self.factors), ..*self }
    }

    /// Those that a forward pass would have found, the same in each channel; before a forward pass, none of them.
    fn indices(&self, seed: u64) -> Vec<u8> {
        if !self.backward {
            return vec![0xee; self.sizes.outputs() * self.index.bytes()];
        }
        let one = Pooling { batch: 1, channels: 1, ..self.sizes };
        let numbers = Numbers::random(self.data_type, one.inputs(), seed);
        let (_, indices) = one.forward(&(0..numbers.len()).map(|at| numbers.get(at)).collect::<Vec<_>>());
        let indices = indices.iter().flat_map(|index| index.to_le_bytes()[..self.index.bytes()].to_vec());
        indices.collect::<Vec<u8>>().repeat(self.parts())
    }

    fn spoiled(&self, at: &Buffers) -> Vec<(Task, Buffers)> {
        let [alpha, beta] = self.factors;
        vec![(Task { factors: [alpha * 2.0 + 1.0, beta], ..*self }, *at)]
    }

    fn trials(is_emulated: bool) -> Vec<(Task, Buffers)> {
        trials(is_emulated).into_iter().map(|trial| (trial, Buffers { from: 16, to: 32, indices: 48 })).collect()
    }

    unsafe fn on_host(&self, engine: &GpuEngine, at: &Buffers, stream: u64) -> Result<(), Failure> {
        not_while_recording(engine, stream)?;
        let (driver, bytes) = (engine.driver(), self.index.bytes());
        let [x, y] = placed(self);
        let (from, to) = if self.backward { (y, x) } else { (x, y) };
        let mut raw = vec![0; if at.indices == 0 { 0 } else { self.sizes.outputs() * bytes }];
        // SAFETY: the caller's promise.
        let (given, before) = unsafe {
            if self.backward && !raw.is_empty() {
                driver.read(&mut raw, at.indices, stream)?;
            }
            let given = Brought::new(engine, self.data_type, from, at.from, stream)?.all();
            (given, Brought::new(engine, self.data_type, to, at.to, stream)?)
        };
        let mut result = if self.backward {
            let indices: Vec<u64> = raw.chunks(bytes).map(index_of).collect();
            self.sizes.backward(&given, &indices)
        } else {
            let (result, indices) = self.sizes.forward(&given);
            for (raw, index) in raw.chunks_mut(bytes).zip(&indices) {
                raw.copy_from_slice(&index.to_le_bytes()[..bytes]);
            }
            if self.sizes.kind == PoolingKind::Largest && !raw.is_empty() {
                // SAFETY: the caller's promise.
                unsafe { driver.write(at.indices, &raw, stream)? };
            }
            result
        };
        let [alpha, beta] = self.factors;
        for (result, before) in result.iter_mut().zip(before.all()) {
            *result = alpha * *result + if beta == 0.0 { 0.0 } else { beta * before };
        }
        // SAFETY: the caller's promise.
        unsafe { before.write(engine, &result, at.to, stream) }
    }
}

/// Small poolings of every kind: type, layout, direction, windows inside the image and across its edges. An emulated
/// card, a thousand times slower, gets only those in single precision.
fn trials(is_emulated: bool) -> Vec<Task> {
    let mut trials = Vec::new();
    let types = [DataType::F32, DataType::F16, DataType::Bf16, DataType::F64];
    let windows =
        [([1, 9, 8], [1, 2, 2], [1, 2, 2]), ([1, 9, 11], [1, 3, 3], [1, 2, 2]), ([4, 5, 7], [2, 3, 5], [1, 2, 1])];
    for data_type in types.into_iter().take(if is_emulated { 1 } else { 4 }) {
        for kind in [PoolingKind::Largest, PoolingKind::Mean, PoolingKind::InclusiveMean] {
            for (turn, (input, window, stride)) in windows.into_iter().enumerate() {
                let padding = window.map(|size| size / 2);
                let output = [0, 1, 2].map(|axis| (input[axis] + 2 * padding[axis] - window[axis]) / stride[axis] + 1);
                let (batch, channels, index_in_window) = (2, 5, turn != 1);
                let sizes = Pooling { kind, batch, channels, input, output, window, stride, padding, index_in_window };
                for is_last in [false, true] {
                    let strides = |[depth, height, width]: [usize; 3]| {
                        let pixels = depth * height * width;
                        match is_last {
                            false => [channels * pixels, pixels, height * width, width, 1],
                            true => [channels * pixels, 1, height * width * channels, width * channels, channels],
                        }
                    };
                    let (x, y, index) = (strides(input), strides(output), IndexType::ALL[turn]);
                    trials.extend([false, true].map(|backward| {
                        let factors = if is_last { [0.5, 0.25] } else { [1.0, 0.0] };
                        Task { sizes, backward, data_type, x, y, index, factors }
                    }));
                }
            }
        }
    }
    trials
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::device::Device;
    use crate::operation::{compute, of_few_slices};
    use crate::played;
    use crate::session::Session;

    #[test]
    fn what_is_no_pooling_is_declined() {
        let at = Buffers { from: 16, to: 32, indices: 48 };
        let trials = trials(false);
        assert!(trials.iter().all(|trial| trial.check(&at).is_ok() && Task::launches(trial).is_some()));
        let first = trials[0];
        let without_stride = Task { sizes: Pooling { stride: [1, 0, 1], ..first.sizes }, ..first };
        assert!(without_stride.check(&at).unwrap_err().contains("by windows of [1, 2, 2]"));
        let large = Pooling { input: [1, 20, 20], index_in_window: false, ..first.sizes };
        let large = Task { sizes: large, ..first };
        assert!(large.check(&at).unwrap_err().contains("indices of 1 bytes do not count 400"));
        assert!(Task { backward: true, ..first }.check(&Buffers { indices: 0, ..at }).is_err());
    }

    #[test]
    fn a_trial_has_few_of_many_images() {
        let first = trials(false)[0];
        assert_eq!(of_few_slices(&first, Task::way(&first)), first, "all of a few");
        let sizes = Pooling { batch: 64, channels: 64, input: [1, 112, 112], output: [1, 56, 56], ..first.sizes };
        assert_eq!(of_few_slices(&Task { sizes, ..first }, Task::way(&first)).sizes.batch, 4);
    }

    const MEAN: Pooling = Pooling {
        kind: PoolingKind::Mean,
        batch: 2,
        channels: 3,
        input: [1, 6, 6],
        output: [1, 3, 3],
        window: [1, 2, 2],
        stride: [1, 2, 2],
        padding: [0, 0, 0],
        index_in_window: true,
    };

    fn mean(session: &Session, device: &Device, stream: u64) -> Result<(Vec<f64>, Vec<f64>), Failure> {
        let (x, y) = ([108, 36, 36, 6, 1], [27, 9, 9, 3, 1]);
        let (data_type, index) = (DataType::F32, IndexType::U8);
        let task = Task { sizes: MEAN, backward: false, data_type, x, y, index, factors: [1.0, 0.0] };
        let input: Vec<f32> = (0..MEAN.inputs()).map(|at| (at * 37 % 23) as f32).collect();
        let at = Buffers { from: played::place(&input), to: played::place(&vec![-1.0; MEAN.outputs()]), indices: 0 };
        // SAFETY: memory of these sizes, which stays.
        unsafe { compute(session, device, &task, &at, stream)? };
        let (right, _) = MEAN.forward(&input.iter().map(|&it| f64::from(it)).collect::<Vec<_>>());
        Ok((played::numbers(at.to, MEAN.outputs()), right))
    }

    /// What the kernel of that pooling should do.
    fn play_mean(arguments: &[*mut std::ffi::c_void]) {
        // SAFETY: the first arguments are addresses of x and y.
        let [from, to] = [0, 1].map(|at| unsafe { *arguments[at].cast::<u64>() });
        let (result, _) = MEAN.forward(&played::numbers(from, MEAN.inputs()));
        for (at, value) in result.into_iter().enumerate() {
            // SAFETY: as many elements as the result has.
            unsafe { *(to as *mut f32).add(at) = value as f32 };
        }
    }

    #[test]
    fn a_wrong_kernel_is_caught_before_its_first_result_is_handed_out() {
        let (device, launches, session) = played::device(Some(|_| {}));
        for _ in 0..2 {
            let (found, right) = mean(&session, &device, 0).ok().unwrap();
            assert_eq!(found, right, "the CPU's");
            assert_eq!(launches.load(Ordering::Relaxed), 1, "tried once, and never again");
        }
        assert_eq!(session.canaries_held(), 1, "kept as evidence");
    }

    #[test]
    fn a_right_kernel_computes_from_its_first_call_on() {
        let (device, launches, session) = played::device(Some(play_mean));
        assert!(
            mean(&session, &device, played::RECORDING).is_err(),
            "nothing can be compared while a graph is recorded"
        );
        for call in 0..3 {
            let (found, right) = mean(&session, &device, 0).ok().unwrap();
            assert_eq!(found, right);
            assert_eq!(launches.load(Ordering::Relaxed), 2 + call);
        }
        assert!(mean(&session, &device, played::RECORDING).is_ok());
    }

    #[test]
    fn what_does_not_compile_is_computed_on_the_cpu() {
        let (device, launches, session) = played::device(None);
        let (found, right) = mean(&session, &device, 0).ok().unwrap();
        assert_eq!((found, launches.load(Ordering::Relaxed)), (right, 0));
    }
}
