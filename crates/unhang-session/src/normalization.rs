//! Batch normalisations, and the steps that follow a convolution, on a face's memory: by our kernels in the caller's
//! stream, or on the CPU through copies.

use std::sync::PoisonError;

use unhang_conv::DataType;
use unhang_engine::tolerance;
use unhang_gpu::normalization::{
    Activation, ActivationKind, Affine, Buffers, FAMILY, Launches, LoadedLaunches, Normalization, Operation, Task,
};
use unhang_gpu::{GpuEngine, GpuError};

use crate::device::Device;
use crate::failure::{Failure, is_wrong_on_purpose};
use crate::first::{self, First, few};
use crate::host::Numbers;
use crate::placed::{Brought, Memory, Placed, not_while_recording};
use crate::session::Session;

/// The most elements and images of a first result's trial.
const TRIAL_ELEMENTS: usize = 1 << 20;
const TRIAL_IMAGES: usize = 4;

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

    /// The same task on as few images as make a fair trial: all of them would need the memory again, and seconds. The
    /// kernels are the same ones.
    fn of_few_images(&self, compute_units: usize) -> Normalizing {
        let kernels = |it: &Normalizing| {
            [true, false].map(|in_chunks| {
                let launches = Launches::new(&it.task()?, in_chunks, compute_units)?;
                Some(launches.kernels().cloned().collect::<Vec<_>>())
            })
        };
        let [images, ..] = self.tensors[0].sizes;
        let enough = TRIAL_ELEMENTS.div_ceil(self.tensors[0].elements() / images).max(TRIAL_IMAGES);
        let few = |count: usize| {
            let mut few = *self;
            few.tensors.iter_mut().for_each(|it| it.sizes[0] = count);
            few
        };
        let fewer = std::iter::successors(Some(enough), |count| Some(2 * count)).take_while(|&count| count < images);
        fewer.map(few).find(|few| kernels(few) == kernels(self)).unwrap_or(*self)
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

    /// Everything that distinguishes one first result from another: sizes, strides, types, and which operands are
    /// present. Numbers such as the momentum may differ from call to call and are left out.
    fn key(&self, at: &Buffers) -> Key {
        let places = places(at);
        // Missing operands, and a result stored over another operand.
        let marks = places.map(|place| u8::from(place != 0) + 2 * u8::from(place != 0 && place == at.y));
        Key {
            operation: self.operation,
            per_activation: self.per_activation,
            data_type: self.data_type,
            tensors: self.tensors,
            parameters: self.parameters,
            types: self.types,
            activation: self.activation.kind,
            marks,
        }
    }

    /// The task on one channel, and that channel's offsets.
    fn channel(&self, channel: usize, at: &Buffers) -> (Normalizing, Buffers) {
        let mut one = *self;
        one.tensors.iter_mut().for_each(|it| it.sizes[1] = 1);
        one.parameters.sizes[1] = 1;
        let kinds = self.operands();
        let mut places = places(at);
        for (place, (data_type, placed)) in places.iter_mut().zip(kinds) {
            if *place != 0 {
                *place += (channel * placed.strides[1] * data_type.size()) as u64;
            }
        }
        (one, from_places(places))
    }

    /// The types and layouts of all operands, in the order of [`places`].
    fn operands(&self) -> [(DataType, Placed); 12] {
        let ([x, y, z], p, [scale, bias, mean, variance]) = (self.tensors, self.parameters, self.types);
        let tensors = [x, y, z].map(|it| (self.data_type, it));
        let parameters = [bias, scale, bias, mean, variance, mean, variance, scale, bias].map(|it| (it, p));
        std::array::from_fn(|at| if at < 3 { tensors[at] } else { parameters[at - 3] })
    }

    /// Whether its result is discontinuous: a small change of an operand may change it by a lot.
    fn leaps(&self) -> bool {
        use ActivationKind::{Identity, Logistic, SoftRelu, Tanh};
        let is_backward = matches!(self.operation, Operation::Backward | Operation::BackwardAnew);
        is_backward && !matches!(self.activation.kind, Identity | Logistic | Tanh | SoftRelu)
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

/// See [`Normalizing::key`].
#[derive(Debug, Hash)]
struct Key {
    operation: Operation,
    per_activation: bool,
    data_type: DataType,
    tensors: [Placed; 3],
    parameters: Placed,
    types: [DataType; 4],
    activation: ActivationKind,
    marks: [u8; 12],
}

/// The addresses of all operands except the workspace. The second, and those from the seventh on, are written.
fn places(at: &Buffers) -> [u64; 12] {
    let [running, gradients] = [[at.running_mean, at.running_variance], [at.scale_gradient, at.bias_gradient]];
    let Buffers { x, y, z, addend, scale, bias, mean, variance, .. } = *at;
    [x, y, z, addend, scale, bias, mean, variance, running[0], running[1], gradients[0], gradients[1]]
}

fn from_places(places: [u64; 12]) -> Buffers {
    let [x, y, z, addend, scale, bias, mean, variance, running_mean, running_variance, gradients @ ..] = places;
    let [scale_gradient, bias_gradient] = gradients;
    let given = Buffers { x, y, z, addend, scale, bias, mean, variance, ..Buffers::default() };
    Buffers { running_mean, running_variance, scale_gradient, bias_gradient, ..given }
}

/// Computes a normalisation: by our kernels if their canary passed and their first result was right, otherwise on the
/// CPU.
///
/// # Safety
/// Device memory as the descriptions say must lie at the buffers, until the stream has come behind it.
pub unsafe fn normalize(
    session: &Session,
    device: &Device,
    what: &Normalizing,
    at: &Buffers,
    stream: u64,
) -> Result<(), Failure> {
    what.check().map_err(Failure::Declined)?;
    let loaded = prepare(session, device, what, at, stream)?;
    let (spoiling, result) = (what.spoiling(), Buffers { x: at.y, y: at.y, ..Buffers::default() });
    let is_wrong = is_wrong_on_purpose() && at.y != 0;
    // SAFETY: the caller's promise.
    unsafe {
        let Some(loaded) = loaded else {
            on_host(&device.engine, what, at, stream)?;
            return if is_wrong { on_host(&device.engine, &spoiling, &result, stream) } else { Ok(()) };
        };
        launch(device, &loaded, at, stream)?;
        match spoiling.task().filter(|_| is_wrong) {
            Some(task) => launch(device, &load(device, &task, stream)?, &result, stream),
            None => Ok(()),
        }
    }
}

/// Its kernels, loaded and with a first result that was right; `None` if the CPU must compute.
fn prepare(
    session: &Session,
    device: &Device,
    what: &Normalizing,
    at: &Buffers,
    stream: u64,
) -> Result<Option<LoadedLaunches>, Failure> {
    let by_kernels = device.engine.has_kernels().is_ok() && device.may_run(FAMILY);
    let Some(task) = what.task().filter(|_| by_kernels) else { return Ok(None) };
    let found = load(device, &task, stream).and_then(|loaded| {
        let asked = First { family: FAMILY, key: &what.key(at), stream };
        let channels = few(what.tensors[0].sizes[1]);
        let units = device.engine.driver().description().model.compute_units;
        session.prove(device, &asked, || device.try_normalization(&what.of_few_images(units), at, &channels, 1))?;
        Ok(loaded)
    });
    first::or_the_cpu("a batch normalisation", found)
}

/// The launches of a task, with their kernels.
fn load(device: &Device, task: &Task, stream: u64) -> Result<LoadedLaunches, Failure> {
    // A recorded graph may be replayed at any time, so it must not share memory with other calls.
    let in_chunks = !device.engine.driver().is_capturing(stream)?;
    load_in(device, task, in_chunks, stream)
}

fn load_in(device: &Device, task: &Task, in_chunks: bool, stream: u64) -> Result<LoadedLaunches, Failure> {
    let units = device.engine.driver().description().model.compute_units;
    let declined = || Failure::Declined("more than 2^31 elements".to_owned());
    let launches = Launches::new(task, in_chunks, units).ok_or_else(declined)?;
    device.engine.load_normalization(launches, stream).map_err(Failure::from)
}

/// By our kernels.
///
/// # Safety
/// As [`normalize`].
unsafe fn launch(device: &Device, loaded: &LoadedLaunches, at: &Buffers, stream: u64) -> Result<(), Failure> {
    let engine = &device.engine;
    if loaded.workspace_bytes() == 0 {
        // SAFETY: the caller's promise.
        return unsafe { engine.launch_normalization(loaded, at, stream) }.map_err(Failure::from);
    }
    let scratch = device.scratch(stream);
    let mut scratch = scratch.lock().unwrap_or_else(PoisonError::into_inner);
    let workspace = scratch.at_least(engine.driver(), loaded.workspace_bytes())?;
    // SAFETY: as above; nobody else puts launches for this memory between these.
    unsafe { engine.launch_normalization(loaded, &Buffers { workspace, ..*at }, stream) }.map_err(Failure::from)
}

/// Computes it on the host: copies the tensors there, computes by the definition, and copies the results back.
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
    /// Compiles and loads the kernels for normalisations before somebody waits for their results.
    pub(crate) fn prepare_normalizations(&self) -> Result<(), GpuError> {
        for in_chunks in [false, true] {
            for trial in trials(self.engine.driver().description().is_emulated()) {
                let launches = trial.task().and_then(|task| Launches::new(&task, in_chunks, 64));
                launches.map(|launches| self.engine.load_normalization(launches, 0)).transpose()?;
            }
        }
        Ok(())
    }

    /// Tries the kernels for normalisations, and returns their largest difference from the CPU's results as a share of
    /// the tolerance. Waits for the device.
    pub(crate) fn try_normalizations(&self) -> Result<f64, String> {
        let mut worst = 0.0f64;
        let is_emulated = self.engine.driver().description().is_emulated();
        for (seed, trial) in trials(is_emulated).into_iter().enumerate() {
            // Every operand is present and has its own memory.
            let mut all: [u64; 12] = std::array::from_fn(|at| at as u64 + 1);
            if trial.operation == Operation::BackwardAnew {
                all[6..8].fill(0);
            }
            let channels: Vec<usize> = (0..trial.tensors[0].sizes[1]).collect();
            let share = self.try_normalization(&trial, &from_places(all), &channels, seed as u64);
            worst = worst.max(share.map_err(Failure::reason)?);
        }
        Ok(worst)
    }

    /// Computes a normalisation on generated numbers with the operands that `like` has, and compares some channels with
    /// the CPU's results: the largest difference as a share of the tolerance. If a recorded graph takes another path,
    /// tries that too.
    fn try_normalization(
        &self,
        trial: &Normalizing,
        like: &Buffers,
        channels: &[usize],
        seed: u64,
    ) -> Result<f64, Failure> {
        let Some(task) = trial.task() else { return Ok(f64::INFINITY) };
        let ways = [load_in(self, &task, true, 0)?, load_in(self, &task, false, 0)?];
        let is_same = ways[0].workspace_bytes() == ways[1].workspace_bytes();
        let mut memory = Memory::new(self);
        let at = self.place(trial, like, &mut memory)?;
        let bring = |at: &Buffers| {
            let of_channel = |&channel: &usize| self.outputs(trial, channel, at);
            channels.iter().map(of_channel).collect::<Result<Vec<_>, _>>()
        };
        // SAFETY: memory of these sizes, alive until the results were read.
        unsafe {
            self.fill(trial, &at, seed)?;
            for &channel in channels {
                let (one, at) = trial.channel(channel, &at);
                on_host(&self.engine, &one, &at, 0)?;
            }
        }
        let right = bring(&at)?;
        let mut worst = 0.0f64;
        for loaded in ways.iter().take(if is_same { 1 } else { 2 }) {
            // SAFETY: as above.
            unsafe {
                self.fill(trial, &at, seed)?;
                launch(self, loaded, &at, 0)?;
            }
            worst = worst.max(share(trial, &bring(&at)?, &right));
        }
        Ok(worst)
    }

    /// Memory for the operands that `like` has; operands that share memory there share it here.
    fn place(&self, trial: &Normalizing, like: &Buffers, memory: &mut Memory<'_>) -> Result<Buffers, Failure> {
        let (wanted, kinds) = (places(like), trial.operands());
        let mut found = [0; 12];
        for at in 0..12 {
            let twin = (0..at).find(|&other| wanted[other] == wanted[at] && kinds[other] == kinds[at]);
            found[at] = match twin {
                _ if wanted[at] == 0 => 0,
                Some(twin) => found[twin],
                None => memory.allocate(kinds[at].1.span() * kinds[at].0.size())?,
            };
        }
        Ok(from_places(found))
    }

    /// Writes generated numbers.
    ///
    /// # Safety
    /// Memory of a trial's sizes.
    unsafe fn fill(&self, trial: &Normalizing, at: &Buffers, seed: u64) -> Result<(), Failure> {
        let least = [-0.3, 9.0, -0.5, 0.0, 0.2, -0.4, -0.4, 0.2, 0.0, 0.1, 0.0, 0.0];
        let places = places(at);
        for (number, (data_type, placed)) in trial.operands().into_iter().enumerate() {
            if places[number] == 0 || places[..number].contains(&places[number]) {
                continue;
            }
            let seed = if matches!(number, 0 | 2) { seed + number as u64 } else { number as u64 };
            let mut numbers = Numbers::random(data_type, placed.span(), seed);
            (0..numbers.len()).for_each(|at| numbers.set(at, numbers.get(at).abs() + least[number]));
            // SAFETY: the caller's promise.
            unsafe { numbers.write(self.engine.driver(), places[number], 0)? };
        }
        Ok(())
    }

    /// The results of one channel: output, statistics and gradients.
    fn outputs(&self, trial: &Normalizing, channel: usize, at: &Buffers) -> Result<Outputs, Failure> {
        let (one, at) = trial.channel(channel, at);
        let (places, kinds) = (places(&at), one.operands());
        let read = |number: usize| {
            let (data_type, placed) = kinds[number];
            // SAFETY: memory of the trial's sizes.
            let brought = unsafe { Brought::new(&self.engine, data_type, placed, places[number], 0) };
            brought.map(|it| it.all())
        };
        let written = [1, 6, 7, 8, 9, 10, 11].into_iter().filter(|&number| places[number] != 0);
        written.map(|number| Ok((kinds[number].0, read(number)?))).collect()
    }
}

/// The types and numbers of the results.
type Outputs = Vec<(DataType, Vec<f64>)>;

/// The largest error as a share of the tolerance.
fn share(trial: &Normalizing, found: &[Outputs], right: &[Outputs]) -> f64 {
    let mut worst = 0.0f64;
    for output in 0..right.first().map_or(0, Vec::len) {
        let all = || right.iter().flat_map(|channel| &channel[output].1);
        let data_type = right[0][output].0;
        // The expected size of the numbers: if all of them are nearly zero, that is by chance.
        let largest = all().filter(|it| it.is_finite()).fold(1.0f64, |most, it| most.max(it.abs()));
        let allowed = tolerance::canary(data_type) * largest;
        let pairs = found.iter().flat_map(|channel| &channel[output].1).zip(all());
        let shares: Vec<f64> = pairs.map(|(&found, &right)| first::share(found, right, allowed)).collect();
        let off = shares.iter().filter(|share| **share > 1.0).count();
        // Next to a discontinuity, rounding decides a few elements.
        if output == 0 && trial.leaps() && off * 1000 <= shares.len() {
            continue;
        }
        worst = shares.into_iter().fold(worst, f64::max);
    }
    worst
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::played;

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
        assert_eq!(first.of_few_images(40), first, "all of a few");
        let tensor = Placed { sizes: [64, 256, 1, 56, 56], strides: [802_816, 3136, 3136, 56, 1] };
        let parameters = Placed { sizes: [1, 256, 1, 1, 1], strides: [256, 1, 1, 1, 1] };
        for operation in [Operation::Train, Operation::Backward] {
            let large = Normalizing { operation, per_activation: false, tensors: [tensor; 3], parameters, ..first };
            let few = large.of_few_images(40);
            assert!(few.tensors[0].sizes[0] <= 8, "{:?}", few.tensors);
            let kernels = |it: &Normalizing| {
                let launches = Launches::new(&it.task().unwrap(), true, 40).unwrap();
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
        assert!(unsafe { normalize(session, device, &what, &at, 0) }.is_ok());
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
