//! Poolings on a face's memory: by our kernels in the caller's stream, or on the CPU through copies.

use unhang_conv::DataType;
use unhang_engine::tolerance;
use unhang_gpu::pooling::{Buffers, FAMILY, IndexType, Launch, LoadedLaunch, Pooling, PoolingKind, Task};
use unhang_gpu::{GpuEngine, GpuError};

use crate::device::Device;
use crate::failure::{Failure, is_wrong_on_purpose};
use crate::first::{self, First, few};
use crate::host::Numbers;
use crate::placed::{Brought, Memory, Placed, not_while_recording};
use crate::session::Session;

/// Checks the sizes of a pooling; the error says what is wrong.
fn check(task: &Task, at: &Buffers) -> Result<(), String> {
    let Pooling { kind, batch, channels, input, output, window, stride, .. } = task.sizes;
    let sizes = [input, output, window, stride].concat();
    if batch == 0 || channels == 0 || sizes.contains(&0) {
        return Err(format!("a pooling of {batch}×{channels} images of {input:?} by windows of {window:?}"));
    }
    let (index, indices) = (task.index, task.sizes.indices());
    if kind == PoolingKind::Largest && at.indices != 0 && !index.holds(indices) {
        return Err(format!("indices of {} bytes do not count {indices} elements", index.bytes()));
    }
    if kind == PoolingKind::Largest && task.backward && at.indices == 0 {
        return Err("no indices of the largest elements".to_owned());
    }
    Ok(())
}

/// Computes a pooling: by our kernels if their canary passed and their first result was right, otherwise on the CPU.
///
/// # Safety
/// Device memory as the task says must lie at the buffers, until the stream has come behind it.
pub unsafe fn pool(session: &Session, device: &Device, task: &Task, at: &Buffers, stream: u64) -> Result<(), Failure> {
    check(task, at).map_err(Failure::Declined)?;
    let loaded = prepare(session, device, task, at, stream)?;
    let mut wrong = *task;
    wrong.factors[0] = wrong.factors[0] * 2.0 + 1.0;
    let is_wrong = is_wrong_on_purpose();
    let engine = &device.engine;
    // SAFETY: the caller's promise.
    unsafe {
        match loaded {
            Some(_) if is_wrong => launch(engine, &load(engine, &wrong, stream)?, at, stream),
            Some(loaded) => launch(engine, &loaded, at, stream),
            None => on_host(engine, if is_wrong { &wrong } else { task }, at, stream),
        }
    }
}

/// Its kernel, loaded and with a first result that was right; `None` if the CPU must compute.
fn prepare(
    session: &Session,
    device: &Device,
    task: &Task,
    at: &Buffers,
    stream: u64,
) -> Result<Option<LoadedLaunch>, Failure> {
    if device.engine.has_kernels().is_err() || !device.may_run(FAMILY) {
        return Ok(None);
    }
    let key = Key {
        sizes: task.sizes,
        backward: task.backward,
        data_type: task.data_type,
        strides: [task.x, task.y],
        index: task.index,
        has_indices: at.indices != 0,
        adds: task.factors[1] != 0.0,
    };
    let found = load(&device.engine, task, stream).and_then(|loaded| {
        let asked = First { family: FAMILY, key: &key, stream };
        let trial = of_few_images(task);
        let planes: Vec<usize> = few(trial.sizes.batch * trial.sizes.channels);
        session.prove(device, &asked, || device.try_pooling(&trial, at.indices != 0, &planes, 1))?;
        Ok(loaded)
    });
    first::or_the_cpu("a pooling", found)
}

/// The most elements of a first result's trial, if there is more than one image.
const TRIAL_ELEMENTS: usize = 1 << 20;

/// The task on as few images as make a fair trial: all of them would need the memory again, and seconds.
fn of_few_images(task: &Task) -> Task {
    let of_image = task.sizes.inputs().max(task.sizes.outputs()) / task.sizes.batch;
    let batch = task.sizes.batch.min(TRIAL_ELEMENTS.div_ceil(of_image));
    Task { sizes: Pooling { batch, ..task.sizes }, ..*task }
}

/// Everything that distinguishes one first result from another.
#[derive(Debug, Hash)]
struct Key {
    sizes: Pooling,
    backward: bool,
    data_type: DataType,
    strides: [[usize; 5]; 2],
    index: IndexType,
    has_indices: bool,
    adds: bool,
}

fn load(engine: &GpuEngine, task: &Task, stream: u64) -> Result<LoadedLaunch, Failure> {
    let declined = || Failure::Declined("more than 2^31 elements".to_owned());
    engine.load_pooling(Launch::new(task).ok_or_else(declined)?, stream).map_err(Failure::from)
}

/// By our kernels.
///
/// # Safety
/// As [`pool`].
unsafe fn launch(engine: &GpuEngine, loaded: &LoadedLaunch, at: &Buffers, stream: u64) -> Result<(), Failure> {
    // SAFETY: the caller's promise.
    unsafe { engine.launch_pooling(loaded, at, stream) }.map_err(Failure::from)
}

/// The task on one channel of one image, and its offsets.
fn plane(task: &Task, plane: usize, at: &Buffers) -> (Task, Buffers) {
    let (image, channel) = (plane / task.sizes.channels, plane % task.sizes.channels);
    let one = Task { sizes: Pooling { batch: 1, channels: 1, ..task.sizes }, ..*task };
    let skipped = |strides: [usize; 5]| (image * strides[0] + channel * strides[1]) * task.data_type.size();
    let (from, to) = if task.backward { (task.y, task.x) } else { (task.x, task.y) };
    let indices = plane * one.sizes.outputs() * task.index.bytes();
    let moved = |address: u64, by: usize| if address == 0 { 0 } else { address + by as u64 };
    let at = Buffers {
        from: moved(at.from, skipped(from)),
        to: moved(at.to, skipped(to)),
        indices: moved(at.indices, indices),
    };
    (one, at)
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

/// Computes it on the host: copies the tensors there, computes by the definition, and copies the results back.
///
/// # Safety
/// As [`pool`].
unsafe fn on_host(engine: &GpuEngine, task: &Task, at: &Buffers, stream: u64) -> Result<(), Failure> {
    not_while_recording(engine, stream)?;
    let (driver, bytes) = (engine.driver(), task.index.bytes());
    let [x, y] = placed(task);
    let (from, to) = if task.backward { (y, x) } else { (x, y) };
    let mut raw = vec![0; if at.indices == 0 { 0 } else { task.sizes.outputs() * bytes }];
    // SAFETY: the caller's promise.
    let (given, before) = unsafe {
        if task.backward && !raw.is_empty() {
            driver.read(&mut raw, at.indices, stream)?;
        }
        let given = Brought::new(engine, task.data_type, from, at.from, stream)?.all();
        (given, Brought::new(engine, task.data_type, to, at.to, stream)?)
    };
    let mut result = if task.backward {
        let index = |raw: &[u8]| raw.iter().rev().fold(0, |index, &byte| index << 8 | u64::from(byte));
        let indices: Vec<u64> = raw.chunks(bytes).map(index).collect();
        task.sizes.backward(&given, &indices)
    } else {
        let (result, indices) = task.sizes.forward(&given);
        for (raw, index) in raw.chunks_mut(bytes).zip(&indices) {
            raw.copy_from_slice(&index.to_le_bytes()[..bytes]);
        }
        if task.sizes.kind == PoolingKind::Largest && !raw.is_empty() {
            // SAFETY: the caller's promise.
            unsafe { driver.write(at.indices, &raw, stream)? };
        }
        result
    };
    let [alpha, beta] = task.factors;
    for (result, before) in result.iter_mut().zip(before.all()) {
        *result = alpha * *result + if beta == 0.0 { 0.0 } else { beta * before };
    }
    // SAFETY: the caller's promise.
    unsafe { before.write(engine, &result, at.to, stream) }
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

impl Device {
    /// Compiles and loads the kernels for poolings before somebody waits for their results.
    pub(crate) fn prepare_poolings(&self) -> Result<(), GpuError> {
        for trial in trials(self.engine.driver().description().is_emulated()) {
            Launch::new(&trial).map(|launch| self.engine.load_pooling(launch, 0)).transpose()?;
        }
        Ok(())
    }

    /// Tries the kernels for poolings, and returns their largest difference from the CPU's results as a share of the
    /// tolerance. Waits for the device.
    pub(crate) fn try_poolings(&self) -> Result<f64, String> {
        let trials = trials(self.engine.driver().description().is_emulated());
        trials.iter().enumerate().try_fold(0.0f64, |worst, (seed, trial)| {
            let planes: Vec<usize> = (0..trial.sizes.batch * trial.sizes.channels).collect();
            Ok(worst.max(self.try_pooling(trial, true, &planes, seed as u64).map_err(Failure::reason)?))
        })
    }

    /// Computes a pooling on generated numbers and compares some channels of some images with the CPU's results: the
    /// largest difference as a share of the tolerance.
    fn try_pooling(&self, trial: &Task, has_indices: bool, planes: &[usize], seed: u64) -> Result<f64, Failure> {
        let mut memory = Memory::new(self);
        let [x, y] = placed(trial);
        let (from, to) = if trial.backward { (y, x) } else { (x, y) };
        let size = trial.data_type.size();
        let index_bytes = trial.sizes.outputs() * trial.index.bytes();
        let at = Buffers {
            from: memory.allocate(from.span() * size)?,
            to: memory.allocate(to.span() * size)?,
            indices: if has_indices { memory.allocate(index_bytes)? } else { 0 },
        };
        // The indices that a forward pass would have found, the same in each channel.
        let one = Pooling { batch: 1, channels: 1, ..trial.sizes };
        let numbers = Numbers::random(trial.data_type, one.inputs(), seed);
        let (_, indices) = one.forward(&(0..numbers.len()).map(|at| numbers.get(at)).collect::<Vec<_>>());
        let indices = indices.iter().flat_map(|index| index.to_le_bytes()[..trial.index.bytes()].to_vec());
        let raw = indices.collect::<Vec<u8>>().repeat(trial.sizes.batch * trial.sizes.channels);
        let driver = self.engine.driver();
        let fill = || {
            // SAFETY: as many elements and bytes were allocated.
            unsafe {
                Numbers::random(trial.data_type, from.span(), seed).write(driver, at.from, 0)?;
                Numbers::random(trial.data_type, to.span(), seed + 1).write(driver, at.to, 0)?;
                if has_indices { driver.write(at.indices, &raw, 0) } else { Ok(()) }
            }
        };
        let bring = || planes.iter().map(|&plane| self.pooled(trial, plane, &at)).collect::<Result<Vec<_>, _>>();
        fill()?;
        for &number in planes {
            let (one, at) = plane(trial, number, &at);
            // SAFETY: memory of these sizes, alive until the results were read.
            unsafe { on_host(&self.engine, &one, &at, 0)? };
        }
        let right = bring()?;
        fill()?;
        // SAFETY: as above.
        unsafe { launch(&self.engine, &load(&self.engine, trial, 0)?, &at, 0)? };
        let found = bring()?;
        let all = right.iter().flat_map(|(numbers, _)| numbers).filter(|it| it.is_finite());
        let allowed = tolerance::canary(trial.data_type) * all.fold(f64::MIN_POSITIVE, |most, it| most.max(it.abs()));
        let mut worst = 0.0f64;
        for ((found, found_at), (right, right_at)) in found.iter().zip(&right) {
            if found_at != right_at {
                return Ok(f64::INFINITY);
            }
            worst = found.iter().zip(right).fold(worst, |worst, (a, b)| worst.max(first::share(*a, *b, allowed)));
        }
        Ok(worst)
    }

    /// The result and the indices of one channel of one image.
    fn pooled(&self, trial: &Task, number: usize, at: &Buffers) -> Result<(Vec<f64>, Vec<u8>), Failure> {
        let (one, at) = plane(trial, number, at);
        let [x, y] = placed(&one);
        let mut raw = vec![0; if at.indices == 0 { 0 } else { one.sizes.outputs() * one.index.bytes() }];
        // SAFETY: memory of a trial's sizes.
        unsafe {
            if !raw.is_empty() {
                self.engine.driver().read(&mut raw, at.indices, 0)?;
            }
            let brought = Brought::new(&self.engine, one.data_type, if one.backward { x } else { y }, at.to, 0)?;
            Ok((brought.all(), raw))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::played;

    #[test]
    fn what_is_no_pooling_is_declined() {
        let at = Buffers { from: 1, to: 1, indices: 1 };
        let trials = trials(false);
        assert!(trials.iter().all(|trial| check(trial, &at).is_ok() && Launch::new(trial).is_some()));
        let first = trials[0];
        let without_stride = Task { sizes: Pooling { stride: [1, 0, 1], ..first.sizes }, ..first };
        assert!(check(&without_stride, &at).unwrap_err().contains("by windows of [1, 2, 2]"));
        let large = Pooling { input: [1, 20, 20], index_in_window: false, ..first.sizes };
        assert!(
            check(&Task { sizes: large, ..first }, &at).unwrap_err().contains("indices of 1 bytes do not count 400")
        );
        assert!(check(&Task { backward: true, ..first }, &Buffers { indices: 0, ..at }).is_err());
    }

    #[test]
    fn a_trial_has_few_of_many_images() {
        let first = trials(false)[0];
        assert_eq!(of_few_images(&first), first, "all of a few");
        let sizes = Pooling { batch: 64, channels: 64, input: [1, 112, 112], output: [1, 56, 56], ..first.sizes };
        assert_eq!(of_few_images(&Task { sizes, ..first }).sizes.batch, 2);
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
        unsafe { pool(session, device, &task, &at, stream)? };
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
