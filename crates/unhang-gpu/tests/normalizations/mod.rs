//! Random normalisations and what is right of them, for whatever memory kernels work on.

use unhang_conv::DataType;
use unhang_engine::tolerance::Tolerance;
use unhang_gpu::normalization::{Activation, ActivationKind, Affine, Buffers, Normalization, Operation, Strides, Task};
use unhang_gpu::{GpuEngine, Way};

use crate::numbers::{Memory, Random, bytes_of, number_of, rounded};

/// A task, and which of its buffers are there.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Case {
    pub task: Task,
    pub in_chunks: bool,
    pub in_place: bool,
    pub saves: bool,
    pub has_addend: bool,
    pub has_statistics: bool,
    /// Which of x, y and z begins at an odd element, so that no four of them are aligned; none if it is 3.
    pub shifted: usize,
    pub seed: u64,
}

/// A tensor of this layout: pixels, channels or images first, with and without gaps.
fn strides(sizes: &Normalization, random: &mut Random) -> Strides {
    let gap = random.below(3) / 2;
    match random.below(2) {
        0 => {
            let channel = sizes.pixels + gap;
            Strides { image: channel * sizes.channels + gap, channel, pixel: 1 }
        }
        _ => {
            let pixel = sizes.channels + gap;
            Strides { image: pixel * sizes.pixels + gap, channel: 1, pixel }
        }
    }
}

/// A tensor whose pixels lie in fours, with and without gaps of four.
fn strides_in_quads(sizes: &Normalization, random: &mut Random) -> Strides {
    let gap = random.below(2) * 4;
    let channel = sizes.pixels + gap;
    Strides { image: channel * sizes.channels + gap, channel, pixel: 1 }
}

pub(crate) const OPERATIONS: [Operation; 4] =
    [Operation::Train, Operation::Apply, Operation::Backward, Operation::BackwardAnew];

impl Case {
    pub(crate) fn random(seed: u64, data_type: DataType, operation: Operation, most_pixels: usize) -> Case {
        let mut random = Random(seed);
        let is_large = random.below(8) == 0;
        let mut sizes = Normalization {
            batch: 1 + random.below(6),
            channels: 1 + if is_large { random.below(3) } else { random.below(40) },
            pixels: 1 + if is_large { most_pixels + random.below(most_pixels) } else { random.below(40) },
            per_activation: random.below(3) == 0,
        };
        let in_quads = random.below(3) == 0;
        if in_quads {
            sizes.pixels = sizes.pixels.next_multiple_of(4);
        }
        let strides = if in_quads { strides_in_quads } else { strides };
        let x = strides(&sizes, &mut random);
        let in_place = random.below(4) == 0;
        let y = if in_place { x } else { strides(&sizes, &mut random) };
        let z = strides(&sizes, &mut random);
        let step = 1 + random.below(2);
        let parameters = match (sizes.per_activation, random.below(2)) {
            (false, _) => [step, 0],
            (true, 0) => [sizes.pixels, 1],
            (true, _) => [1, sizes.channels],
        };
        let mut parameter_type = || [data_type, DataType::F32][random.below(2)];
        let types = [parameter_type(), parameter_type(), parameter_type(), parameter_type()];
        let kind = ActivationKind::ALL[[0, random.below(11)][random.below(2)]];
        let activation = Activation { kind, alpha: 0.7, beta: 1.3, gamma: 1.6 };
        let factors = [1.0 + random.number(), random.number()];
        let task = Task {
            sizes,
            operation,
            data_type,
            x,
            y,
            z,
            parameters,
            types,
            epsilon: 1e-3,
            momentum: 0.2,
            factors,
            activation,
        };
        let flag = |random: &mut Random| random.below(2) == 0;
        Case {
            task,
            in_chunks: flag(&mut random),
            in_place,
            saves: flag(&mut random),
            has_addend: flag(&mut random),
            has_statistics: flag(&mut random),
            shifted: [3, 3, 0, 1, 2][random.below(5)],
            seed,
        }
    }

    /// Whether several workgroups share its units.
    pub(crate) fn is_divided(&self) -> bool {
        self.task.launches(self.in_chunks, 36).is_some_and(|launches| launches.workspace_bytes() > 0)
    }

    /// Whether its pixels lie in fours, and all of them are aligned or, where asked, some are not.
    pub(crate) fn is_in_quads(&self, aligned: bool) -> bool {
        let lie = |it: Strides| it.pixel == 1 && it.channel.is_multiple_of(4) && it.image.is_multiple_of(4);
        let task = &self.task;
        let fits = task.data_type != DataType::F64 && !task.sizes.per_activation;
        let in_quads = fits && task.sizes.pixels.is_multiple_of(4) && [task.x, task.y, task.z].into_iter().all(lie);
        in_quads && (self.shifted == 3) == aligned
    }

    fn place(&self, strides: Strides, at: usize) -> usize {
        let sizes = &self.task.sizes;
        let (pixel, channel) = (at % sizes.pixels, at / sizes.pixels % sizes.channels);
        at / (sizes.pixels * sizes.channels) * strides.image + channel * strides.channel + pixel * strides.pixel
    }

    fn parameter_place(&self, unit: usize) -> usize {
        let ([channel, pixel], sizes) = (self.task.parameters, &self.task.sizes);
        if sizes.per_activation { unit / sizes.pixels * channel + unit % sizes.pixels * pixel } else { unit * channel }
    }

    /// Computes it with kernels on that memory; what is wrong, in words.
    pub(crate) fn check(&self, engine: &GpuEngine, memory: &mut impl Memory) -> Result<(), String> {
        self.check_by(self.task.way(36), engine, memory)
    }

    /// Computes it divided in a way.
    pub(crate) fn check_by(&self, way: Way, engine: &GpuEngine, memory: &mut impl Memory) -> Result<(), String> {
        let (task, sizes) = (&self.task, &self.task.sizes);
        let mut random = Random(self.seed ^ 0x5555);
        let (elements, units) = (sizes.elements(), sizes.units());
        let tensor = |random: &mut Random, offset: f64| -> Vec<f64> {
            (0..elements).map(|_| rounded(task.data_type, random.number() + offset)).collect()
        };
        let offset = random.number() * 3.0;
        let (x, z) = (tensor(&mut random, offset), tensor(&mut random, 0.0));
        let [scale_type, bias_type, mean_type, variance_type] = task.types;
        let parameter = |random: &mut Random, data_type: DataType, least: f64| -> Vec<f64> {
            (0..units).map(|_| rounded(data_type, random.number().abs() + least)).collect()
        };
        let (scale, bias) = (parameter(&mut random, scale_type, 0.3), parameter(&mut random, bias_type, -0.5));
        let (mean, variance) = (parameter(&mut random, mean_type, -0.5), parameter(&mut random, variance_type, 0.1));
        let addend = parameter(&mut random, bias_type, -0.5);

        // Into memory: gaps hold what must stay.
        let spread = |values: &[f64], data_type: DataType, place: &dyn Fn(usize) -> usize| {
            let last = (0..values.len()).map(place).max().unwrap_or(0);
            let mut bytes: Vec<u8> = bytes_of(data_type, 77.0).repeat(last + 2);
            for (at, value) in values.iter().enumerate() {
                let (from, size) = (place(at) * data_type.size(), data_type.size());
                bytes[from..from + size].copy_from_slice(&bytes_of(data_type, *value));
            }
            bytes
        };
        let in_tensor = |strides: Strides| move |at: usize| self.place(strides, at);
        let in_parameters = |unit: usize| self.parameter_place(unit);
        let x_bytes = spread(&x, task.data_type, &in_tensor(task.x));
        let y_bytes = spread(&vec![55.0; elements], task.data_type, &in_tensor(task.y));
        let backward = matches!(task.operation, Operation::Backward | Operation::BackwardAnew);
        let has_z = backward || self.has_addend;
        let mut buffers = Buffers::default();
        let mut put_tensor = |which: usize, bytes: &[u8]| {
            let shift = if self.shifted == which { task.data_type.size() } else { 0 };
            memory.put(&[&vec![0xff; shift], bytes].concat()) + shift as u64
        };
        buffers.x = put_tensor(0, &x_bytes);
        buffers.y = if self.in_place { buffers.x } else { put_tensor(1, &y_bytes) };
        buffers.z = if has_z { put_tensor(2, &spread(&z, task.data_type, &in_tensor(task.z))) } else { 0 };
        let mut put = |values: &[f64], data_type| memory.put(&spread(values, data_type, &in_parameters));
        let normalizes = task.operation != Operation::Apply || self.has_statistics;
        let given =
            task.operation == Operation::Backward || (task.operation == Operation::Apply && self.has_statistics);
        if normalizes {
            (buffers.scale, buffers.bias) = (put(&scale, scale_type), put(&bias, bias_type));
        }
        if given || (task.operation == Operation::Train && self.saves) {
            (buffers.mean, buffers.variance) = (put(&mean, mean_type), put(&variance, variance_type));
        }
        if task.operation == Operation::Train && self.has_statistics {
            (buffers.running_mean, buffers.running_variance) = (put(&mean, mean_type), put(&variance, variance_type));
        }
        if task.operation == Operation::Apply && self.has_addend {
            buffers.addend = put(&addend, bias_type);
        }
        if backward {
            (buffers.scale_gradient, buffers.bias_gradient) = (put(&mean, scale_type), put(&mean, bias_type));
        }
        let launches = task.launches_by(self.in_chunks, way).ok_or("no launches")?;
        let workspace_bytes = launches.workspace_bytes();
        let workspace = memory.put(&vec![0xff; workspace_bytes as usize + 64]);
        let addresses = [&buffers.addresses()[..], &[workspace]].concat();
        let loaded = engine.load_launches(launches, 0).map_err(|error| error.to_string())?;
        // SAFETY: memory as the task says, alive until the results were read.
        unsafe { engine.launch_all(&loaded, &addresses, 0) }.map_err(|error| error.to_string())?;
        let guard = memory.get(workspace + workspace_bytes, 64);
        if guard.iter().any(|&byte| byte != 0xff) {
            return Err("something was written behind the workspace".into());
        }

        // What is right.
        let (own_mean, own_variance) = sizes.statistics(&x);
        let inverse_of =
            |variance: &[f64]| -> Vec<f64> { variance.iter().map(|it| 1.0 / (it + task.epsilon).sqrt()).collect() };
        let own_inverse = inverse_of(&own_variance);
        let (ones, zeros) = (vec![1.0; units], vec![0.0; units]);
        let fits = |what: &str, found: f64, right: f64, allowed: f64| {
            let is_right = (found - right).abs() <= allowed;
            if is_right { Ok(()) } else { Err(format!("{what}: {found} instead of {right}, allowed {allowed:.1e}")) }
        };
        let largest = |values: &[f64]| values.iter().fold(0.0f64, |most, it| most.max(it.abs()));
        let single = if task.data_type == DataType::F64 { 1e-14 } else { 1e-6 };
        let check_result = |right: &[f64], explained: f64| {
            let allowed = Tolerance::of(task.data_type).max * largest(right) + explained;
            let kept = if self.in_place { &x_bytes } else { &y_bytes };
            let found = memory.get(buffers.y, kept.len());
            let mut written = vec![false; kept.len() / task.data_type.size()];
            for (at, right) in right.iter().enumerate() {
                let place = self.place(task.y, at);
                written[place] = true;
                let from = place * task.data_type.size();
                let found = number_of(task.data_type, &found[from..from + task.data_type.size()]);
                fits(&format!("element {at}"), found, *right, allowed)?;
            }
            let size = task.data_type.size();
            for place in (0..written.len()).filter(|&place| !written[place]) {
                if found[place * size..][..size] != kept[place * size..][..size] {
                    return Err(format!("a gap at {place} was written"));
                }
            }
            Ok(())
        };
        let check_parameter = |what: &str, at: u64, data_type: DataType, right: &dyn Fn(usize) -> (f64, f64)| {
            for unit in 0..units {
                let bytes = memory.get(at + (self.parameter_place(unit) * data_type.size()) as u64, data_type.size());
                let (right, explained) = right(unit);
                let allowed = Tolerance::of(data_type).max * right.abs() + explained + 1e-7;
                fits(&format!("{what} of unit {unit}"), number_of(data_type, &bytes), right, allowed)?;
            }
            Ok::<(), String>(())
        };
        let furthest = largest(&x) * largest(&own_inverse) * largest(&scale) * single;
        match task.operation {
            Operation::Train => {
                let by = Affine { mean: &own_mean, inverse: &own_inverse, scale: &scale, bias: &bias };
                check_result(&sizes.forward(&x, by, &task.activation), furthest)?;
                let off = largest(&x) * single;
                if buffers.mean != 0 {
                    check_parameter("saved mean", buffers.mean, mean_type, &|unit| (own_mean[unit], off))?;
                    check_parameter("saved inverse", buffers.variance, variance_type, &|unit| {
                        (own_inverse[unit], 10.0 * off)
                    })?;
                }
                if buffers.running_mean != 0 {
                    let momentum = task.momentum;
                    let running = |old: f64, new: f64| (1.0 - momentum) * old + momentum * new;
                    let mean = |unit: usize| (running(mean[unit], own_mean[unit]), off);
                    let spread = |unit: usize| (running(variance[unit], own_variance[unit] * sizes.unbiased()), off);
                    check_parameter("running mean", buffers.running_mean, mean_type, &mean)?;
                    check_parameter("running variance", buffers.running_variance, variance_type, &spread)?;
                }
            }
            Operation::Apply => {
                let [x_factor, z_factor] = task.factors;
                let sum = |at: usize| {
                    let unit = sizes.unit_of(at);
                    let z = if has_z { z[at] * z_factor } else { 0.0 };
                    x[at] * x_factor + z + if self.has_addend { addend[unit] } else { 0.0 }
                };
                let sums: Vec<f64> = (0..elements).map(sum).collect();
                let inverse = inverse_of(&variance);
                let by = match self.has_statistics {
                    true => Affine { mean: &mean, inverse: &inverse, scale: &scale, bias: &bias },
                    false => Affine { mean: &zeros, inverse: &ones, scale: &ones, bias: &zeros },
                };
                check_result(
                    &sizes.forward(&sums, by, &task.activation),
                    largest(&sums) * largest(by.inverse) * single,
                )?;
            }
            Operation::Backward | Operation::BackwardAnew => {
                let anew = task.operation == Operation::BackwardAnew;
                let (mean, inverse) = if anew { (&own_mean, &own_inverse) } else { (&mean, &variance) };
                let by = Affine { mean, inverse, scale: &scale, bias: &bias };
                let right = sizes.backward(&x, &z, by, &task.activation);
                // A corner of the activation that rounding moves an element over changes its slope.
                let normalized = sizes.forward(&x, Affine { scale: &ones, bias: &zeros, ..by }, &Activation::default());
                let before = sizes.forward(&x, by, &Activation::default());
                let corners = [0.0, task.activation.alpha, task.activation.beta];
                let near = |v: &f64| corners.iter().any(|corner| (v - corner).abs() < 1e-4);
                if task.activation.kind != ActivationKind::Identity && before.iter().any(near) {
                    return Ok(());
                }
                let reach = 1.0 + largest(&normalized).powi(2);
                let slack = single * reach * largest(inverse) * largest(&scale) * (1.0 + largest(&x)) * 4.0;
                check_result(&right.x, slack)?;
                let sum = single * 4.0 * sizes.count() as f64 * reach * (1.0 + largest(&x) * largest(inverse));
                check_parameter("gradient of the scale", buffers.scale_gradient, scale_type, &|unit| {
                    (right.scale[unit], sum)
                })?;
                check_parameter("gradient of the bias", buffers.bias_gradient, bias_type, &|unit| {
                    (right.bias[unit], sum)
                })?;
            }
        }
        Ok(())
    }
}
