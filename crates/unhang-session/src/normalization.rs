//! Batch normalisations, and what follows a convolution, on a face's memory: by our kernels in the caller's stream, or on the CPU
//! through copies.

use std::sync::PoisonError;

use unhang_conv::DataType;
use unhang_engine::tolerance;
use unhang_gpu::normalization::{
    Activation, ActivationKind, Affine, Buffers, FAMILY, Launches, Normalization, Operation, Task,
};
use unhang_gpu::{GpuEngine, GpuError};

use crate::device::Device;
use crate::failure::{Failure, is_wrong_on_purpose};
use crate::host::Numbers;
use crate::placed::{Brought, Memory, Placed, not_while_recording};

/// A normalisation as it was asked for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Normalizing {
    /// What is computed.
    pub operation: Operation,
    /// Whether each pixel of a channel has separate statistics.
    pub per_activation: bool,
    /// The type of the tensors.
    pub data_type: DataType,
    /// x, the result, and what is added to it or the gradient of y; unused operands may be anything.
    pub tensors: [Placed; 3],
    /// Scale, bias, mean and variance: they lie alike.
    pub parameters: Placed,
    /// Their types.
    pub types: [DataType; 4],
    /// What is added to variances.
    pub epsilon: f64,
    /// The share of the new statistics in the running ones.
    pub momentum: f64,
    /// What x and the second operand are multiplied with where statistics are given or none are used.
    pub factors: [f64; 2],
    /// What follows.
    pub activation: Activation,
}

impl Normalizing {
    fn sizes(&self) -> Normalization {
        let x = &self.tensors[0];
        let [batch, channels, ..] = x.sizes;
        Normalization { batch, channels, pixels: x.pixels(), per_activation: self.per_activation }
    }

    /// Whether sizes fit each other; if not, what does not.
    pub fn check(&self) -> Result<(), String> {
        let [x, y, z] = self.tensors;
        if x.elements() == 0 || x.sizes != y.sizes || x.sizes != z.sizes {
            return Err(format!("tensors of {:?}, {:?} and {:?}", x.sizes, y.sizes, z.sizes));
        }
        let mut expected = x.sizes;
        expected[0] = 1;
        if !self.per_activation {
            expected[2..].fill(1);
        }
        if self.parameters.sizes == expected {
            return Ok(());
        }
        Err(format!("parameters of {:?} for tensors of {:?}", self.parameters.sizes, x.sizes))
    }

    /// As our kernels take it; none where one of its tensors is otherwise.
    fn task(&self) -> Option<Task> {
        let [x, y, z] = self.tensors.map(|it| it.as_planes());
        let parameters = self.parameters.as_planes()?;
        Some(Task {
            sizes: self.sizes(),
            operation: self.operation,
            data_type: self.data_type,
            x: x?,
            y: y?,
            z: z?,
            parameters: [parameters.channel, parameters.pixel],
            types: self.types,
            epsilon: self.epsilon,
            momentum: self.momentum,
            factors: self.factors,
            activation: self.activation,
        })
    }

    /// What makes its result wrong, in place.
    fn spoiling(&self) -> Normalizing {
        let [_, y, _] = self.tensors;
        Normalizing {
            operation: Operation::Apply,
            tensors: [y; 3],
            factors: [2.0, 0.0],
            activation: Activation::default(),
            ..*self
        }
    }
}

/// Computes a normalisation: by our kernels where their canary has passed, else on the CPU.
///
/// # Safety
/// Device memory as the descriptions say must lie at the buffers, until the stream has come behind it.
pub unsafe fn normalize(device: &Device, what: &Normalizing, at: &Buffers, stream: u64) -> Result<(), Failure> {
    what.check().map_err(Failure::Declined)?;
    let by_kernels = device.engine.has_kernels().is_ok() && device.may_run(FAMILY);
    let task = what.task().filter(|_| by_kernels);
    // SAFETY: the caller's promise.
    unsafe {
        let Some(task) = task else { return on_host(&device.engine, what, at, stream) };
        launch(device, &task, at, stream)?;
        match what.spoiling().task().filter(|_| is_wrong_on_purpose()) {
            Some(task) => launch(device, &task, &Buffers { x: at.y, y: at.y, ..Buffers::default() }, stream),
            None => Ok(()),
        }
    }
}

/// By our kernels.
///
/// # Safety
/// As [`normalize`].
unsafe fn launch(device: &Device, task: &Task, at: &Buffers, stream: u64) -> Result<(), Failure> {
    let engine = &device.engine;
    // A recorded graph may be replayed at any time: it must not use memory that other calls use.
    let in_chunks = !engine.driver().is_capturing(stream)?;
    let units = engine.driver().description().model.compute_units;
    let declined = || Failure::Declined("more than 2^31 elements".to_owned());
    let launches = Launches::new(task, in_chunks, units).ok_or_else(declined)?;
    let loaded = engine.load_normalization(launches, stream)?;
    if loaded.workspace_bytes() == 0 {
        // SAFETY: the caller's promise.
        return unsafe { engine.launch_normalization(&loaded, at, stream) }.map_err(Failure::from);
    }
    let scratch = device.scratch(stream);
    let mut scratch = scratch.lock().unwrap_or_else(PoisonError::into_inner);
    let workspace = scratch.at_least(engine.driver(), loaded.workspace_bytes())?;
    // SAFETY: as above; nobody else puts launches for this memory between these.
    unsafe { engine.launch_normalization(&loaded, &Buffers { workspace, ..*at }, stream) }.map_err(Failure::from)
}

/// On the host: copied there, computed by the definition, and copied back.
///
/// # Safety
/// As [`normalize`].
unsafe fn on_host(engine: &GpuEngine, what: &Normalizing, at: &Buffers, stream: u64) -> Result<(), Failure> {
    not_while_recording(engine, stream)?;
    // SAFETY: the caller's promise.
    let host = unsafe { OnHost::new(engine, what, at, stream) };
    let [x_placed, y_placed, _] = what.tensors;
    let x = host.tensor(x_placed, at.x)?;
    let result = match what.operation {
        Operation::Apply => host.apply(x)?,
        Operation::Train => host.train(&x)?,
        Operation::Backward | Operation::BackwardAnew => host.backward(&x)?,
    };
    let is_wrong = is_wrong_on_purpose();
    let result: Vec<f64> = result.into_iter().map(|it| if is_wrong { it * 2.0 + 1.0 } else { it }).collect();
    host.write(y_placed, what.data_type, at.y, &result)
}

/// A normalisation whose tensors are copied to the host and back.
struct OnHost<'a> {
    engine: &'a GpuEngine,
    what: &'a Normalizing,
    at: &'a Buffers,
    stream: u64,
}

impl<'a> OnHost<'a> {
    /// # Safety
    /// As [`normalize`], for as long as this lives.
    unsafe fn new(engine: &'a GpuEngine, what: &'a Normalizing, at: &'a Buffers, stream: u64) -> OnHost<'a> {
        OnHost { engine, what, at, stream }
    }

    fn brought(&self, data_type: DataType, placed: Placed, from: u64) -> Result<Brought, Failure> {
        // SAFETY: whoever made this has promised it.
        unsafe { Brought::new(self.engine, data_type, placed, from, self.stream) }
    }

    fn tensor(&self, placed: Placed, from: u64) -> Result<Vec<f64>, Failure> {
        self.brought(self.what.data_type, placed, from).map(|brought| brought.all())
    }

    /// A value for each unit; `otherwise` for all of them where there is no such parameter.
    fn parameter(&self, from: u64, data_type: DataType, otherwise: f64) -> Result<Vec<f64>, Failure> {
        match from {
            0 => Ok(vec![otherwise; self.what.sizes().units()]),
            from => self.brought(data_type, self.what.parameters, from).map(|brought| brought.all()),
        }
    }

    /// Writes a tensor, if it is wanted.
    fn write(&self, placed: Placed, data_type: DataType, to: u64, values: &[f64]) -> Result<(), Failure> {
        if to == 0 {
            return Ok(());
        }
        // SAFETY: whoever made this has promised it.
        unsafe { self.brought(data_type, placed, to)?.write(self.engine, values, to, self.stream) }
    }

    fn scale_and_bias(&self) -> Result<[Vec<f64>; 2], Failure> {
        let [scale_type, bias_type, ..] = self.what.types;
        Ok([self.parameter(self.at.scale, scale_type, 1.0)?, self.parameter(self.at.bias, bias_type, 0.0)?])
    }

    fn inverse_of(&self, variance: &[f64]) -> Vec<f64> {
        variance.iter().map(|it| 1.0 / (it + self.what.epsilon).sqrt()).collect()
    }

    /// With given statistics, or none.
    fn apply(&self, mut x: Vec<f64>) -> Result<Vec<f64>, Failure> {
        let (at, what, sizes) = (self.at, self.what, self.what.sizes());
        let [_, bias_type, mean_type, variance_type] = what.types;
        let (addend, [x_factor, z_factor]) = (self.parameter(at.addend, bias_type, 0.0)?, what.factors);
        let z = if at.z == 0 { None } else { Some(self.tensor(what.tensors[2], at.z)?) };
        for (index, value) in x.iter_mut().enumerate() {
            *value = *value * x_factor + z.as_ref().map_or(0.0, |z| z[index] * z_factor);
            *value += addend[sizes.unit_of(index)];
        }
        let mean = self.parameter(at.mean, mean_type, 0.0)?;
        let inverse = match at.mean {
            0 => vec![1.0; sizes.units()],
            _ => self.inverse_of(&self.parameter(at.variance, variance_type, 1.0)?),
        };
        let [scale, bias] = self.scale_and_bias()?;
        let by = Affine { mean: &mean, inverse: &inverse, scale: &scale, bias: &bias };
        Ok(sizes.forward(&x, by, &what.activation))
    }

    /// With its own statistics, which are kept.
    fn train(&self, x: &[f64]) -> Result<Vec<f64>, Failure> {
        let (at, what, sizes) = (self.at, self.what, self.what.sizes());
        let [_, _, mean_type, variance_type] = what.types;
        let (mean, variance) = sizes.statistics(x);
        let inverse = self.inverse_of(&variance);
        self.write(what.parameters, mean_type, at.mean, &mean)?;
        self.write(what.parameters, variance_type, at.variance, &inverse)?;
        if at.running_mean != 0 && at.running_variance != 0 {
            let both = [
                (at.running_mean, mean_type, &mean, 1.0),
                (at.running_variance, variance_type, &variance, sizes.unbiased()),
            ];
            for (place, data_type, new, factor) in both {
                let old = self.parameter(place, data_type, 0.0)?;
                let mix = |(old, new): (&f64, &f64)| (1.0 - what.momentum) * old + what.momentum * new * factor;
                let mixed: Vec<f64> = old.iter().zip(new).map(mix).collect();
                self.write(what.parameters, data_type, place, &mixed)?;
            }
        }
        let [scale, bias] = self.scale_and_bias()?;
        let by = Affine { mean: &mean, inverse: &inverse, scale: &scale, bias: &bias };
        Ok(sizes.forward(x, by, &what.activation))
    }

    /// The gradients.
    fn backward(&self, x: &[f64]) -> Result<Vec<f64>, Failure> {
        let (at, what, sizes) = (self.at, self.what, self.what.sizes());
        let [scale_type, bias_type, mean_type, variance_type] = what.types;
        let (mean, inverse) = match what.operation {
            Operation::Backward => {
                (self.parameter(at.mean, mean_type, 0.0)?, self.parameter(at.variance, variance_type, 1.0)?)
            }
            _ => {
                let (mean, variance) = sizes.statistics(x);
                (mean, self.inverse_of(&variance))
            }
        };
        let [scale, bias] = self.scale_and_bias()?;
        let by = Affine { mean: &mean, inverse: &inverse, scale: &scale, bias: &bias };
        let gradients = sizes.backward(x, &self.tensor(what.tensors[2], at.z)?, by, &what.activation);
        self.write(what.parameters, scale_type, at.scale_gradient, &gradients.scale)?;
        self.write(what.parameters, bias_type, at.bias_gradient, &gradients.bias)?;
        Ok(gradients.x)
    }
}

/// Small normalisations of every kind: type, layout, operation; some are large enough to be divided. On an emulated card those of single
/// precision alone: it takes a thousand times as long.
fn trials(is_emulated: bool) -> Vec<Normalizing> {
    let mut trials = Vec::new();
    let types = [DataType::F32, DataType::F16, DataType::Bf16, DataType::F64];
    for data_type in types.into_iter().take(if is_emulated { 1 } else { 4 }) {
        for (operation, kind) in [
            (Operation::Train, ActivationKind::Relu),
            (Operation::Apply, ActivationKind::Tanh),
            (Operation::Backward, ActivationKind::Identity),
            (Operation::BackwardAnew, ActivationKind::Logistic),
        ] {
            for (sizes, per_activation) in
                [([2, 5, 1, 3, 4], false), ([3, 40, 1, 2, 3], true), ([2, 2, 1, 33, 32], false)]
            {
                let [_, channels, _, height, width] = sizes;
                let pixels = height * width;
                let images_first = [channels * pixels, pixels, pixels, width, 1];
                let channels_last = [channels * pixels, 1, pixels * channels, width * channels, channels];
                let mut parameter_sizes = [1, channels, 1, height, width];
                if !per_activation {
                    parameter_sizes[3..].fill(1);
                }
                let parameters = match per_activation {
                    true => Placed { sizes: parameter_sizes, strides: images_first },
                    false => Placed { sizes: parameter_sizes, strides: [channels, 1, 1, 1, 1] },
                };
                for strides in [images_first, channels_last] {
                    trials.push(Normalizing {
                        operation,
                        per_activation,
                        data_type,
                        tensors: [Placed { sizes, strides }; 3],
                        parameters,
                        types: [DataType::F32, data_type, DataType::F32, DataType::F32],
                        epsilon: 1e-3,
                        momentum: 0.1,
                        factors: [1.0, 0.5],
                        activation: Activation { kind, alpha: 1.0, beta: 1.0, gamma: 1.0 },
                    });
                }
            }
        }
    }
    trials
}

impl Device {
    /// Compiles and loads the kernels for normalisations: before somebody waits for what they compute.
    pub(crate) fn prepare_normalizations(&self) -> Result<(), GpuError> {
        for in_chunks in [false, true] {
            for trial in trials(self.engine.driver().description().is_emulated()) {
                let launches = trial.task().and_then(|task| Launches::new(&task, in_chunks, 64));
                launches.map(|launches| self.engine.load_normalization(launches, 0)).transpose()?;
            }
        }
        Ok(())
    }

    /// Tries the kernels for normalisations: how far off they are of what the CPU computes, as a share of what is allowed. Waits for the
    /// device.
    pub(crate) fn try_normalizations(&self) -> Result<f64, String> {
        let mut worst = 0.0f64;
        let is_emulated = self.engine.driver().description().is_emulated();
        for (seed, trial) in trials(is_emulated).into_iter().enumerate() {
            worst = worst.max(self.try_normalization(&trial, seed as u64).map_err(Failure::reason)?);
        }
        Ok(worst)
    }

    fn try_normalization(&self, trial: &Normalizing, seed: u64) -> Result<f64, Failure> {
        let driver = self.engine.driver();
        let mut memory = Memory::new(self);
        let [scale_type, bias_type, mean_type, variance_type] = trial.types;
        let (span, parameters) = (trial.tensors[0].span(), trial.parameters.span());
        let mut put = |data_type: DataType, count: usize, seed: u64, least: f64| -> Result<u64, Failure> {
            let mut numbers = Numbers::random(data_type, count, seed);
            (0..count).for_each(|at| numbers.set(at, numbers.get(at).abs() + least));
            let place = memory.allocate(count * data_type.size())?;
            // SAFETY: as many elements were allocated.
            unsafe { numbers.write(driver, place, 0)? };
            Ok(place)
        };
        let mut buffers = || {
            Ok::<Buffers, Failure>(Buffers {
                x: put(trial.data_type, span, seed, -0.3)?,
                y: put(trial.data_type, span, 1, 9.0)?,
                z: put(trial.data_type, span, seed + 1, -0.5)?,
                addend: put(bias_type, parameters, 2, 0.0)?,
                scale: put(scale_type, parameters, 3, 0.2)?,
                bias: put(bias_type, parameters, 4, -0.4)?,
                mean: put(mean_type, parameters, 5, -0.4)?,
                variance: put(variance_type, parameters, 6, 0.2)?,
                running_mean: put(mean_type, parameters, 7, 0.0)?,
                running_variance: put(variance_type, parameters, 8, 0.1)?,
                scale_gradient: put(scale_type, parameters, 9, 0.0)?,
                bias_gradient: put(bias_type, parameters, 10, 0.0)?,
                workspace: 0,
            })
        };
        let (ours, right) = (buffers()?, buffers()?);
        let given = |at: Buffers| match trial.operation {
            Operation::BackwardAnew => Buffers { mean: 0, variance: 0, ..at },
            _ => at,
        };
        let Some(task) = trial.task() else { return Ok(f64::INFINITY) };
        // SAFETY: memory of these sizes, alive until the results were read.
        unsafe {
            launch(self, &task, &given(ours), 0)?;
            on_host(&self.engine, trial, &given(right), 0)?;
        }
        let mut worst = 0.0f64;
        for (data_type, placed, one, other) in [
            (trial.data_type, trial.tensors[1], ours.y, right.y),
            (mean_type, trial.parameters, ours.mean, right.mean),
            (variance_type, trial.parameters, ours.variance, right.variance),
            (mean_type, trial.parameters, ours.running_mean, right.running_mean),
            (variance_type, trial.parameters, ours.running_variance, right.running_variance),
            (scale_type, trial.parameters, ours.scale_gradient, right.scale_gradient),
            (bias_type, trial.parameters, ours.bias_gradient, right.bias_gradient),
        ] {
            // SAFETY: as above.
            let [found, right] = unsafe {
                [
                    Brought::new(&self.engine, data_type, placed, one, 0)?.all(),
                    Brought::new(&self.engine, data_type, placed, other, 0)?.all(),
                ]
            };
            let largest = right.iter().fold(f64::MIN_POSITIVE, |most, it| most.max(it.abs()));
            for (found, right) in found.into_iter().zip(right) {
                let share = (found - right).abs() / (tolerance::canary(data_type) * largest);
                worst = worst.max(if share.is_finite() { share } else { f64::INFINITY });
            }
        }
        Ok(worst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_must_fit_the_tensors() {
        let trials = trials(false);
        assert!(trials.iter().all(|trial| trial.check().is_ok() && trial.task().is_some()));
        let wrong = Normalizing { per_activation: !trials[0].per_activation, ..trials[0] };
        assert!(wrong.check().unwrap_err().contains("parameters of [1, 5, 1, 1, 1]"));
    }
}
