//! Batch normalisations, and the steps that follow a convolution.

use unhang_conv::DataType;
use unhang_gpu::normalization::{Activation, ActivationKind, Affine, Buffers, FAMILY, Normalization, Operation, Task};
use unhang_gpu::{GpuEngine, Launches, Way};

use crate::failure::Failure;
use crate::host::Numbers;
use crate::operation::{self, Content, Operand};
use crate::placed::{Brought, Placed, not_while_recording};

/// A normalisation as the caller asked for it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Normalizing {
    /// What is computed.
    pub operation: Operation,
    /// Whether each pixel of a channel has separate statistics.
    pub per_activation: bool,
    /// The type of the tensors.
    pub data_type: DataType,
    /// x, the result, and the tensor added to it or the gradient of y; unused operands may be anything.
    pub tensors: [Placed; 3],
    /// Scale, bias, mean and variance, which share one layout.
    pub parameters: Placed,
    /// Their types.
    pub types: [DataType; 4],
    /// What is added to variances.
    pub epsilon: f64,
    /// The share of the new statistics in the running ones.
    pub momentum: f64,
    /// The factors for x and the second operand if statistics are given or unused.
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

    /// Checks that the sizes match; the error names the one that does not.
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

    /// The task as our kernels take it; `None` if they do not support one of its tensors.
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

    /// Makes its result wrong, in place.
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

/// What distinguishes first results: sizes, strides and types. Numbers such as the momentum may differ from call to call.
#[derive(Debug, Hash)]
pub struct Key {
    operation: Operation,
    per_activation: bool,
    data_type: DataType,
    tensors: [Placed; 3],
    parameters: Placed,
    types: [DataType; 4],
    activation: ActivationKind,
}

impl operation::Operation for Normalizing {
    const NAME: &'static str = "batch normalisation";
    const FAMILY: &'static str = FAMILY;
    const SCALE: f64 = 1.0;
    type Buffers = Buffers;
    type Key = Key;

    fn check(&self, _: &Buffers) -> Result<(), String> {
        Normalizing::check(self)
    }

    fn key(&self) -> Key {
        Key {
            operation: self.operation,
            per_activation: self.per_activation,
            data_type: self.data_type,
            tensors: self.tensors,
            parameters: self.parameters,
            types: self.types,
            activation: self.activation.kind,
        }
    }

    fn way(&self, compute_units: usize) -> Option<Way> {
        self.task().map(|task| task.way(compute_units))
    }

    fn launches(&self, in_chunks: bool, way: Way) -> Option<Launches> {
        self.task()?.launches_by(in_chunks, way)
    }

    fn addresses(at: &Buffers) -> Vec<u64> {
        at.addresses().to_vec()
    }

    fn buffers(addresses: &[u64]) -> Buffers {
        std::array::from_fn(|at| addresses[at]).into()
    }

    fn operands(&self) -> Vec<Operand> {
        let ([x, y, z], p, [scale, bias, mean, variance]) = (self.tensors, self.parameters, self.types);
        let operand = |data_type, placed, is_written, in_fours| Operand {
            content: Content::Numbers(data_type),
            placed,
            is_written,
            in_fours,
        };
        let tensors =
            [(x, false), (y, true), (z, false)].map(|(it, written)| operand(self.data_type, it, written, true));
        let given = [bias, scale, bias].map(|it| operand(it, p, false, false));
        let kept = [mean, variance, mean, variance, scale, bias].map(|it| operand(it, p, true, false));
        [&tensors[..], &given, &kept].concat()
    }

    fn parts(&self) -> usize {
        self.tensors[0].sizes[1]
    }

    fn part(&self, channel: usize, at: &Buffers) -> (Normalizing, Buffers) {
        let mut one = *self;
        one.tensors.iter_mut().for_each(|it| it.sizes[1] = 1);
        one.parameters.sizes[1] = 1;
        let mut places = at.addresses();
        for (place, operand) in places.iter_mut().zip(self.operands()) {
            if *place != 0 {
                *place += (channel * operand.placed.strides[1] * operand.content.size()) as u64;
            }
        }
        (one, places.into())
    }

    fn slices(&self) -> (usize, usize) {
        let [images, ..] = self.tensors[0].sizes;
        (images, self.tensors[0].elements() / images)
    }

    fn of_slices(&self, count: usize) -> Normalizing {
        let mut few = *self;
        few.tensors.iter_mut().for_each(|it| it.sizes[0] = count);
        few
    }

    fn fill(&self, operand: usize, numbers: &mut Numbers) {
        let least = [-0.3, 9.0, -0.5, 0.0, 0.2, -0.4, -0.4, 0.2, 0.0, 0.1, 0.0, 0.0];
        (0..numbers.len()).for_each(|at| numbers.set(at, numbers.get(at).abs() + least[operand]));
    }

    fn leaps(&self) -> bool {
        use ActivationKind::{Identity, Logistic, SoftRelu, Tanh};
        let is_backward = matches!(self.operation, Operation::Backward | Operation::BackwardAnew);
        is_backward && !matches!(self.activation.kind, Identity | Logistic | Tanh | SoftRelu)
    }

    fn spoiled(&self, at: &Buffers) -> Vec<(Normalizing, Buffers)> {
        let result = Buffers { x: at.y, y: at.y, ..Buffers::default() };
        let mut all = vec![(*self, *at), (self.spoiling(), result)];
        all.truncate(if at.y == 0 { 1 } else { 2 });
        all
    }

    fn trials(is_emulated: bool) -> Vec<(Normalizing, Buffers)> {
        let with_operands = |trial: Normalizing| {
            // Every operand is present and has its own memory, aligned.
            let mut all: [u64; 12] = std::array::from_fn(|at| (at as u64 + 1) * 16);
            if trial.operation == Operation::BackwardAnew {
                all[6..8].fill(0);
            }
            (trial, all.into())
        };
        trials(is_emulated).into_iter().map(with_operands).collect()
    }

    unsafe fn on_host(&self, engine: &GpuEngine, at: &Buffers, stream: u64) -> Result<(), Failure> {
        not_while_recording(engine, stream)?;
        // SAFETY: the caller's promise.
        let host = unsafe { OnHost::new(engine, self, at, stream) };
        let [x_placed, y_placed, _] = self.tensors;
        let x = host.tensor(x_placed, at.x)?;
        let result = match self.operation {
            Operation::Apply => host.apply(x)?,
            Operation::Train => host.train(&x)?,
            Operation::Backward | Operation::BackwardAnew => host.backward(&x)?,
        };
        host.write(y_placed, self.data_type, at.y, &result)
    }
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
    /// As [`operation::Operation::on_host`], for as long as this lives.
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

    /// A value for each unit; `otherwise` for all of them if the parameter is missing.
    fn parameter(&self, from: u64, data_type: DataType, otherwise: f64) -> Result<Vec<f64>, Failure> {
        match from {
            0 => Ok(vec![otherwise; self.what.sizes().units()]),
            from => self.brought(data_type, self.what.parameters, from).map(|brought| brought.all()),
        }
    }

    /// Writes a tensor if the caller wants it.
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

/// Small normalisations of every kind: type, layout, operation; some are large enough to be divided. An emulated card,
/// a thousand times slower, gets only those in single precision.
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
                [([2, 5, 1, 3, 5], false), ([3, 40, 1, 2, 3], true), ([2, 2, 1, 33, 32], false)]
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::device::Device;
    use crate::operation::{Operation as _, compute, of_few_slices};
    use crate::played;
    use crate::session::Session;

    #[test]
    fn parameters_must_fit_the_tensors() {
        let trials = trials(false);
        assert!(trials.iter().all(|trial| trial.check().is_ok() && trial.task().is_some()));
        let wrong = Normalizing { per_activation: !trials[0].per_activation, ..trials[0] };
        assert!(wrong.check().unwrap_err().contains("parameters of [1, 5, 1, 1, 1]"));
    }

    #[test]
    fn a_trial_has_few_of_many_images_and_the_same_kernels() {
        let first = trials(false)[0];
        let few_of = |it: &Normalizing| of_few_slices(it, it.way(40).unwrap());
        assert_eq!(few_of(&first), first, "all of a few");
        let tensor = Placed { sizes: [64, 256, 1, 56, 56], strides: [802_816, 3136, 3136, 56, 1] };
        let parameters = Placed { sizes: [1, 256, 1, 1, 1], strides: [256, 1, 1, 1, 1] };
        for operation in [Operation::Train, Operation::Backward] {
            let large = Normalizing { operation, per_activation: false, tensors: [tensor; 3], parameters, ..first };
            let few = few_of(&large);
            assert!(few.tensors[0].sizes[0] <= 8, "{:?}", few.tensors);
            let kernels = |it: &Normalizing| {
                let launches = it.launches(true, it.way(40).unwrap()).unwrap();
                launches.kernels().cloned().collect::<Vec<_>>()
            };
            assert_eq!(kernels(&few), kernels(&large));
        }
    }

    fn train(session: &Session, device: &Device) -> ([Vec<f64>; 2], [Vec<f64>; 2]) {
        let sizes = [2, 3, 1, 4, 4];
        let what = Normalizing {
            operation: Operation::Train,
            per_activation: false,
            data_type: DataType::F32,
            tensors: [Placed { sizes, strides: [48, 16, 16, 4, 1] }; 3],
            parameters: Placed { sizes: [1, 3, 1, 1, 1], strides: [3, 1, 1, 1, 1] },
            types: [DataType::F32; 4],
            epsilon: 1e-3,
            momentum: 0.5,
            factors: [1.0, 0.0],
            activation: Activation::default(),
        };
        let input: Vec<f32> = (0..96).map(|at| (at * 37 % 23) as f32).collect();
        let at = Buffers {
            x: played::place(&input),
            y: played::place(&[-1.0; 96]),
            scale: played::place(&[1.0; 3]),
            bias: played::place(&[0.5; 3]),
            running_mean: played::place(&[0.0; 3]),
            running_variance: played::place(&[0.0; 3]),
            ..Buffers::default()
        };
        // SAFETY: memory of these sizes, which stays.
        assert!(unsafe { compute(session, device, &what, &at, 0) }.is_ok());
        let input: Vec<f64> = input.iter().map(|&it| f64::from(it)).collect();
        let (mean, variance) = what.sizes().statistics(&input);
        let inverse: Vec<f64> = variance.iter().map(|it| 1.0 / (it + 1e-3).sqrt()).collect();
        let by = Affine { mean: &mean, inverse: &inverse, scale: &[1.0; 3], bias: &[0.5; 3] };
        let right = [what.sizes().forward(&input, by, &what.activation), mean.iter().map(|it| it / 2.0).collect()];
        ([played::numbers(at.y, 96), played::numbers(at.running_mean, 3)], right)
    }

    #[test]
    fn a_wrong_kernel_is_caught_before_its_first_result_is_handed_out() {
        let near = |found: &[Vec<f64>; 2], right: &[Vec<f64>; 2]| {
            let pairs = found.iter().flatten().zip(right.iter().flatten());
            assert!(pairs.into_iter().all(|(found, right)| (found - right).abs() < 1e-5), "{found:?} {right:?}");
        };
        let (device, launches, session) = played::device(Some(|_| {}));
        for _ in 0..2 {
            let (found, right) = train(&session, &device);
            near(&found, &right);
            assert_eq!(launches.load(Ordering::Relaxed), 1, "tried once, and never again");
        }
        assert_eq!(session.canaries_held(), 1, "kept as evidence");
        let (device, launches, session) = played::device(None);
        let (found, right) = train(&session, &device);
        near(&found, &right);
        assert_eq!(launches.load(Ordering::Relaxed), 0, "what does not compile is computed on the CPU");
    }
}
