//! Batch normalisation in all directions, and what follows a convolution: bias, normalisation, activation.

mod definition;

pub use definition::{Activation, ActivationKind, Affine, Gradients, Normalization};

use unhang_conv::DataType;

use crate::driver::Function;
use crate::plan::MAX_GRID_YZ;
use crate::plan_parts::checked_ints;
use crate::shapes::{Divisor, NormalizationShape, Shape};
use crate::sources::{Kernel, SourceFile, type_number};
use crate::{GpuEngine, GpuError};

/// The name of this module's kernel family.
pub const FAMILY: &str = "normalization";

/// Threads of a workgroup.
const THREADS: u32 = 256;
/// Units of a workgroup where they are neighbours in memory, as a power of two.
const LANE_BITS: u32 = 5;
/// Fewer elements than this are not worth another workgroup.
const LEAST_ELEMENTS: usize = 2048;
/// Chunks whose sums each workgroup adds up by itself.
const MOST_CHUNKS: usize = 64;
/// Workgroups that a compute unit should have.
const WORKGROUPS_A_UNIT: usize = 4;

/// How a tensor is in memory: elements from one image, channel and pixel to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Strides {
    /// From image to image.
    pub image: usize,
    /// From channel to channel.
    pub channel: usize,
    /// From pixel to pixel.
    pub pixel: usize,
}

/// What is computed of a normalisation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operation {
    /// By the batch's own mean and variance.
    Train,
    /// By given ones, or none: only bias and activation.
    Apply,
    /// The gradients, by saved statistics.
    Backward,
    /// The gradients, where nothing was saved.
    BackwardAnew,
}

/// A normalisation as it is in memory.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Task {
    /// Its sizes.
    pub sizes: Normalization,
    /// What is computed.
    pub operation: Operation,
    /// The type of the tensors.
    pub data_type: DataType,
    /// How x is in memory.
    pub x: Strides,
    /// How the result is: y, or the gradient of x.
    pub y: Strides,
    /// How a second operand is: what is added, or the gradient of y.
    pub z: Strides,
    /// From one parameter to the next, along channels and pixels.
    pub parameters: [usize; 2],
    /// The types of scale, bias, mean and variance. The addend of each unit has the bias's type.
    pub types: [DataType; 4],
    /// What is added to variances.
    pub epsilon: f64,
    /// The share of the new statistics in the running ones.
    pub momentum: f64,
    /// The factors of x and the second operand if statistics are given.
    pub factors: [f64; 2],
    /// What follows.
    pub activation: Activation,
}

/// Device memory of a normalisation; 0 if absent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs, reason = "the others are named as in the definition")]
pub struct Buffers {
    pub x: u64,
    /// The result.
    pub y: u64,
    /// The addend, or the gradient of y.
    pub z: u64,
    /// What is added to each unit.
    pub addend: u64,
    pub scale: u64,
    pub bias: u64,
    /// The given or saved mean.
    pub mean: u64,
    /// The given variance, or the saved inverse of its root.
    pub variance: u64,
    pub running_mean: u64,
    pub running_variance: u64,
    pub scale_gradient: u64,
    pub bias_gradient: u64,
    /// Of [`Launches::workspace_bytes`], aligned to 16.
    pub workspace: u64,
}

/// A pointer that a kernel is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Argument {
    X,
    Y,
    Z,
    Addend,
    Scale,
    Bias,
    Mean,
    Variance,
    RunningMean,
    RunningVariance,
    ScaleGradient,
    BiasGradient,
    Moments,
    Sums,
}

/// One launch.
#[derive(Debug, Clone, PartialEq)]
struct Stage {
    kernel: Kernel,
    arguments: &'static [Argument],
}

/// The launches that compute a normalisation.
#[derive(Debug, Clone, PartialEq)]
pub struct Launches {
    stages: Vec<Stage>,
    grid: [u32; 3],
    shape: Shape,
    /// Where the sums of chunks begin in the workspace, behind their moments.
    sums_at: u64,
    workspace_bytes: u64,
}

impl Launches {
    /// The launches of a task. With `in_chunks`, units are divided among as many workgroups as `compute_units` need,
    /// which takes a workspace; without it none is used. `None` if elements cannot be counted in 31 bits.
    pub fn new(task: &Task, in_chunks: bool, compute_units: usize) -> Option<Launches> {
        let sizes = &task.sizes;
        let (units, count) = (sizes.units(), sizes.count());
        for strides in [task.x, task.y, task.z] {
            let reaches =
                [(sizes.batch, strides.image), (sizes.channels, strides.channel), (sizes.pixels, strides.pixel)];
            let far = reaches
                .iter()
                .try_fold(0usize, |far, &(size, stride)| far.checked_add(size.checked_sub(1)?.checked_mul(stride)?))?;
            (far < i32::MAX as usize).then_some(())?;
        }
        (sizes.elements() < i32::MAX as usize).then_some(())?;
        // Neighbours in memory are units, unless they are elements of one unit: then all threads share it.
        let along_elements = if count == sizes.batch { task.x.image } else { task.x.pixel };
        let along_units = if sizes.per_activation && sizes.pixels > 1 { task.x.pixel } else { task.x.channel };
        let lane_bits = if along_units == 1 && units > 1 && along_elements != 1 { LANE_BITS } else { 0 };
        let groups = units.div_ceil(1 << lane_bits);
        let work = (count << lane_bits).div_ceil(LEAST_ELEMENTS);
        let chunks = match task.operation {
            Operation::Apply => work.min(MAX_GRID_YZ as usize),
            _ if in_chunks => (WORKGROUPS_A_UNIT * compute_units.max(1)).div_ceil(groups).min(work).min(MOST_CHUNKS),
            _ => 1,
        };
        let per_chunk = count.div_ceil(chunks.max(1));
        let chunks = count.div_ceil(per_chunk);
        let stages = task.stages(chunks > 1);
        let part = (2 * chunks * units * if task.data_type == DataType::F64 { 8 } else { 4 }) as u64;
        let (moments, sums) = match task.operation {
            _ if chunks == 1 => (0, 0),
            Operation::Train => (part, 0),
            Operation::Apply => (0, 0),
            Operation::Backward => (0, part),
            Operation::BackwardAnew => (part, part),
        };
        Some(Launches {
            stages,
            grid: [u32::try_from(groups).ok()?, chunks as u32, 1],
            shape: task.shape(lane_bits, chunks, per_chunk)?.into(),
            sums_at: moments,
            workspace_bytes: moments + sums,
        })
    }

    /// Bytes of workspace that the caller must give.
    pub fn workspace_bytes(&self) -> u64 {
        self.workspace_bytes
    }

    /// The kernels.
    pub fn kernels(&self) -> impl Iterator<Item = &Kernel> {
        self.stages.iter().map(|stage| &stage.kernel)
    }
}

impl Task {
    fn stages(&self, in_chunks: bool) -> Vec<Stage> {
        use Argument::{
            Addend, Bias, BiasGradient, Mean, Moments, RunningMean, RunningVariance, Scale, ScaleGradient, Sums,
            Variance, X, Y, Z,
        };
        let stage = |entry: &'static str, arguments: &'static [Argument]| Stage {
            kernel: Kernel::of_type(SourceFile::Normalization, entry, self.data_type),
            arguments,
        };
        let moments = || stage("normalization_moments", &[X, Moments]);
        let sums = || stage("normalization_sums", &[X, Z, Scale, Bias, Mean, Variance, Moments, Sums]);
        let train = || {
            stage("normalization_train", &[X, Y, Scale, Bias, Mean, Variance, RunningMean, RunningVariance, Moments])
        };
        let backward = || {
            stage(
                "normalization_backward",
                &[X, Y, Z, Scale, Bias, Mean, Variance, ScaleGradient, BiasGradient, Moments, Sums],
            )
        };
        match (self.operation, in_chunks) {
            (Operation::Apply, _) => {
                vec![stage("normalization_apply", &[X, Y, Z, Addend, Scale, Bias, Mean, Variance])]
            }
            (Operation::Train, false) => vec![train()],
            (Operation::Train, true) => vec![moments(), train()],
            (Operation::Backward | Operation::BackwardAnew, false) => vec![backward()],
            (Operation::Backward, true) => vec![sums(), backward()],
            (Operation::BackwardAnew, true) => vec![moments(), sums(), backward()],
        }
    }

    fn shape(&self, lane_bits: u32, chunks: usize, per_chunk: usize) -> Option<NormalizationShape> {
        let int = |number: usize| i32::try_from(number).ok();
        let sizes = &self.sizes;
        let (unit_pixels, pixels) = if sizes.per_activation { (sizes.pixels, 1) } else { (1, sizes.pixels) };
        let places = |it: Strides| checked_ints([it.image, it.channel, it.pixel]);
        let [scale_type, bias_type, mean_type, variance_type] = self.types.map(|it| type_number(it) as i32);
        Some(NormalizationShape {
            units: int(sizes.units())?,
            count: int(sizes.count())?,
            lane_bits: lane_bits as i32,
            chunks: int(chunks)?,
            per_chunk: int(per_chunk)?,
            by_unit_pixels: Divisor::new(unit_pixels),
            by_pixels: Divisor::new(pixels),
            x: places(self.x)?,
            y: places(self.y)?,
            z: places(self.z)?,
            parameter: checked_ints(self.parameters)?,
            scale_type,
            bias_type,
            mean_type,
            variance_type,
            activation: self.activation.kind as i32,
            alpha: self.activation.alpha.into(),
            beta: self.activation.beta.into(),
            gamma: self.activation.gamma.into(),
            epsilon: self.epsilon.into(),
            momentum: self.momentum.into(),
            inverse_count: (1.0 / sizes.count() as f64).into(),
            unbiased: sizes.unbiased().into(),
            x_factor: self.factors[0].into(),
            z_factor: self.factors[1].into(),
        })
    }
}

/// Launches whose kernels are loaded.
#[derive(Debug, Clone)]
pub struct LoadedLaunches {
    launches: Launches,
    functions: Vec<Function>,
}

impl LoadedLaunches {
    /// Bytes of workspace that the caller must give.
    pub fn workspace_bytes(&self) -> u64 {
        self.launches.workspace_bytes
    }
}

impl GpuEngine {
    /// Compiles and loads the kernels of launches in a stream, from memory or the cache if possible. While that stream
    /// records a graph, only loaded ones are available.
    pub fn load_normalization(&self, launches: Launches, stream: u64) -> Result<LoadedLaunches, GpuError> {
        if launches.kernels().any(|kernel| !self.is_loaded(kernel)) && self.driver().is_capturing(stream)? {
            return Err(GpuError::Capturing);
        }
        let functions = launches.kernels().map(|kernel| self.function(kernel)).collect::<Result<_, _>>()?;
        Ok(LoadedLaunches { launches, functions })
    }

    /// Starts them on a stream and returns.
    ///
    /// # Safety
    /// Device memory as the task says must lie at the buffers, and stay valid until the work is done.
    pub unsafe fn launch_normalization(
        &self,
        loaded: &LoadedLaunches,
        at: &Buffers,
        stream: u64,
    ) -> Result<(), GpuError> {
        let LoadedLaunches { launches, functions } = loaded;
        for (stage, &function) in launches.stages.iter().zip(functions) {
            let address = |argument: &Argument| match argument {
                Argument::X => at.x,
                Argument::Y => at.y,
                Argument::Z => at.z,
                Argument::Addend => at.addend,
                Argument::Scale => at.scale,
                Argument::Bias => at.bias,
                Argument::Mean => at.mean,
                Argument::Variance => at.variance,
                Argument::RunningMean => at.running_mean,
                Argument::RunningVariance => at.running_variance,
                Argument::ScaleGradient => at.scale_gradient,
                Argument::BiasGradient => at.bias_gradient,
                Argument::Moments => at.workspace,
                Argument::Sums => at.workspace + launches.sums_at,
            };
            let addresses = stage.arguments.iter().map(address).collect();
            // SAFETY: the caller's promise; arguments and shape are those that the kernel declares.
            unsafe { self.launch_with(function, launches.grid, THREADS, addresses, &launches.shape, stream)? };
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(sizes: Normalization, x: Strides) -> Task {
        Task {
            sizes,
            operation: Operation::Train,
            data_type: DataType::F32,
            x,
            y: x,
            z: x,
            parameters: [1, 0],
            types: [DataType::F32; 4],
            epsilon: 1e-5,
            momentum: 0.1,
            factors: [1.0, 0.0],
            activation: Activation { kind: ActivationKind::Relu, ..Activation::default() },
        }
    }

    #[test]
    fn few_large_units_are_divided_and_many_small_ones_are_not() {
        let sizes = Normalization { batch: 32, channels: 3, pixels: 224 * 224, per_activation: false };
        let x = Strides { image: 3 * 224 * 224, channel: 224 * 224, pixel: 1 };
        let divided = Launches::new(&task(sizes, x), true, 36).unwrap();
        assert_eq!((divided.stages.len(), divided.grid), (2, [3, 48, 1]));
        assert_eq!(divided.workspace_bytes(), 2 * 48 * 3 * 4);
        assert_eq!(Launches::new(&task(sizes, x), false, 36).unwrap().grid, [3, 1, 1]);
        let small = Normalization { batch: 2, channels: 512, pixels: 49, per_activation: false };
        let x = Strides { image: 512 * 49, channel: 49, pixel: 1 };
        let whole = Launches::new(&task(small, x), true, 36).unwrap();
        assert_eq!((whole.stages.len(), whole.grid, whole.workspace_bytes()), (1, [512, 1, 1], 0));
    }

    #[test]
    fn neighbours_in_memory_are_neighbouring_threads() {
        let sizes = Normalization { batch: 2, channels: 64, pixels: 100, per_activation: false };
        let bits = |sizes, x| {
            let Shape::Normalization(shape) = Launches::new(&task(sizes, x), true, 36).unwrap().shape else {
                panic!("another shape")
            };
            shape.lane_bits
        };
        assert_eq!(bits(sizes, Strides { image: 6400, channel: 100, pixel: 1 }), 0);
        assert_eq!(bits(sizes, Strides { image: 6400, channel: 1, pixel: 64 }), 5);
        let each = Normalization { per_activation: true, ..sizes };
        assert_eq!(bits(each, Strides { image: 6400, channel: 100, pixel: 1 }), 5);
        let vectors = Normalization { pixels: 1, ..sizes };
        assert_eq!(bits(vectors, Strides { image: 64, channel: 1, pixel: 1 }), 5);
    }

    #[test]
    fn what_cannot_be_counted_is_declined() {
        let sizes = Normalization { batch: 1 << 16, channels: 1 << 10, pixels: 1 << 10, per_activation: false };
        assert_eq!(Launches::new(&task(sizes, Strides::default()), true, 36), None);
    }
}
