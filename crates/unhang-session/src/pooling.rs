//! Poolings on a face's memory: by our kernels in the caller's stream, or on the CPU through copies.

use unhang_conv::DataType;
use unhang_engine::tolerance;
use unhang_gpu::pooling::{Buffers, FAMILY, IndexType, Kind, Launch, Pooling, Task};
use unhang_gpu::{GpuEngine, GpuError};

use crate::device::Device;
use crate::failure::{Failure, is_wrong_on_purpose};
use crate::host::Numbers;
use crate::placed::{Brought, Memory, Placed, not_while_recording};

/// Whether sizes are those of a pooling; if not, what is wrong.
fn check(task: &Task, at: &Buffers) -> Result<(), String> {
    let Pooling { kind, batch, channels, input, output, window, stride, .. } = task.sizes;
    let sizes = [input, output, window, stride].concat();
    if batch == 0 || channels == 0 || sizes.contains(&0) {
        return Err(format!("a pooling of {batch}×{channels} images of {input:?} by windows of {window:?}"));
    }
    let (index, indices) = (task.index, task.sizes.indices());
    if kind == Kind::Largest && at.indices != 0 && !index.holds(indices) {
        return Err(format!("indices of {} bytes do not count {indices} elements", index.bytes()));
    }
    if kind == Kind::Largest && task.backward && at.indices == 0 {
        return Err("no indices of the largest elements".to_owned());
    }
    Ok(())
}

/// Computes a pooling: by our kernels where their canary has passed, else on the CPU.
///
/// # Safety
/// Device memory as the task says must lie at the buffers, until the stream has come behind it.
pub unsafe fn pool(device: &Device, task: &Task, at: &Buffers, stream: u64) -> Result<(), Failure> {
    check(task, at).map_err(Failure::Declined)?;
    let mut task = *task;
    if is_wrong_on_purpose() {
        task.factors[0] = task.factors[0] * 2.0 + 1.0;
    }
    let by_kernels = device.engine.has_kernels().is_ok() && device.may_run(FAMILY);
    // SAFETY: the caller's promise.
    unsafe {
        if by_kernels { launch(&device.engine, &task, at, stream) } else { on_host(&device.engine, &task, at, stream) }
    }
}

/// By our kernels.
///
/// # Safety
/// As [`pool`].
unsafe fn launch(engine: &GpuEngine, task: &Task, at: &Buffers, stream: u64) -> Result<(), Failure> {
    let declined = || Failure::Declined("more than 2^31 elements".to_owned());
    let loaded = engine.load_pooling(Launch::new(task).ok_or_else(declined)?, stream)?;
    // SAFETY: the caller's promise.
    unsafe { engine.launch_pooling(&loaded, at, stream) }.map_err(Failure::from)
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

/// On the host: copied there, computed by the definition, and copied back.
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
        if task.sizes.kind == Kind::Largest && !raw.is_empty() {
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

/// Small poolings of every kind: type, layout, direction, windows in the image and over its edges. On an emulated card those of single
/// precision alone: it takes a thousand times as long.
fn trials(is_emulated: bool) -> Vec<Task> {
    let mut trials = Vec::new();
    let types = [DataType::F32, DataType::F16, DataType::Bf16, DataType::F64];
    let windows =
        [([1, 9, 8], [1, 2, 2], [1, 2, 2]), ([1, 9, 11], [1, 3, 3], [1, 2, 2]), ([4, 5, 7], [2, 3, 5], [1, 2, 1])];
    for data_type in types.into_iter().take(if is_emulated { 1 } else { 4 }) {
        for kind in [Kind::Largest, Kind::Mean, Kind::InclusiveMean] {
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
    /// Compiles and loads the kernels for poolings: before somebody waits for what they compute.
    pub(crate) fn prepare_poolings(&self) -> Result<(), GpuError> {
        for trial in trials(self.engine.driver().description().is_emulated()) {
            Launch::new(&trial).map(|launch| self.engine.load_pooling(launch, 0)).transpose()?;
        }
        Ok(())
    }

    /// Tries the kernels for poolings: how far off they are of what the CPU computes, as a share of what is allowed. Waits for the device.
    pub(crate) fn try_poolings(&self) -> Result<f64, String> {
        let trials = trials(self.engine.driver().description().is_emulated());
        trials.iter().enumerate().try_fold(0.0f64, |worst, (seed, trial)| {
            Ok(worst.max(self.try_pooling(trial, seed as u64).map_err(Failure::reason)?))
        })
    }

    fn try_pooling(&self, trial: &Task, seed: u64) -> Result<f64, Failure> {
        let driver = self.engine.driver();
        let mut memory = Memory::new(self);
        let [x, y] = placed(trial);
        let (from, to) = if trial.backward { (y, x) } else { (x, y) };
        let index_bytes = trial.sizes.outputs() * trial.index.bytes();
        let (_, indices) = trial.sizes.forward(&vec![1.0; trial.sizes.inputs()]);
        let raw: Vec<u8> =
            indices.iter().flat_map(|index| index.to_le_bytes()[..trial.index.bytes()].to_vec()).collect();
        let mut buffers = || {
            let mut put = |count: usize, seed: u64| -> Result<u64, Failure> {
                let place = memory.allocate(count * trial.data_type.size())?;
                // SAFETY: as many elements were allocated.
                unsafe { Numbers::random(trial.data_type, count, seed).write(driver, place, 0)? };
                Ok(place)
            };
            let (from, to) = (put(from.span(), seed)?, put(to.span(), seed + 1)?);
            let indices = memory.allocate(index_bytes)?;
            // SAFETY: as many bytes were allocated.
            unsafe { driver.write(indices, &raw, 0)? };
            Ok::<Buffers, Failure>(Buffers { from, to, indices })
        };
        let (ours, right) = (buffers()?, buffers()?);
        // SAFETY: memory of these sizes, alive until the results were read.
        let [found, expected] = unsafe {
            launch(&self.engine, trial, &ours, 0)?;
            on_host(&self.engine, trial, &right, 0)?;
            [
                Brought::new(&self.engine, trial.data_type, to, ours.to, 0)?.all(),
                Brought::new(&self.engine, trial.data_type, to, right.to, 0)?.all(),
            ]
        };
        let (mut one, mut other) = (raw.clone(), raw);
        // SAFETY: as above.
        unsafe {
            driver.read(&mut one, ours.indices, 0)?;
            driver.read(&mut other, right.indices, 0)?;
        }
        if one != other {
            return Ok(f64::INFINITY);
        }
        let largest = expected.iter().fold(f64::MIN_POSITIVE, |most, it| most.max(it.abs()));
        let share = |(found, right): (f64, f64)| {
            let share = (found - right).abs() / (tolerance::canary(trial.data_type) * largest);
            if share.is_finite() { share } else { f64::INFINITY }
        };
        Ok(found.into_iter().zip(expected).map(share).fold(0.0, f64::max))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
