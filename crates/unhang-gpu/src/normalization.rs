//! Batch normalisation in all directions, and what follows a convolution: bias, normalisation, activation.

mod definition;

pub use definition::{Activation, ActivationKind, Affine, Gradients, Normalization};

use unhang_conv::DataType;

use crate::launches::{Launches, Stage, Way};
use crate::plan::MAX_GRID_YZ;
use crate::plan_parts::checked_ints;
use crate::shapes::{Divisor, NormalizationShape};
use crate::sources::{Kernel, SourceFile, type_number};

/// The name of this module's kernel family.
pub const FAMILY: &str = "normalization";

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
}

impl Buffers {
    /// All addresses, as [`GpuEngine::launch_all`](crate::GpuEngine::launch_all) takes them before the workspace.
    pub fn addresses(&self) -> [u64; 12] {
        let &Buffers { x, y, z, addend, scale, bias, mean, variance, .. } = self;
        let (running, gradients) =
            ([self.running_mean, self.running_variance], [self.scale_gradient, self.bias_gradient]);
        [x, y, z, addend, scale, bias, mean, variance, running[0], running[1], gradients[0], gradients[1]]
    }
}

impl From<[u64; 12]> for Buffers {
    fn from(addresses: [u64; 12]) -> Buffers {
        let [x, y, z, addend, scale, bias, mean, variance, rest @ ..] = addresses;
        let [running_mean, running_variance, scale_gradient, bias_gradient] = rest;
        let given = Buffers { x, y, z, addend, scale, bias, mean, variance, ..Buffers::default() };
        Buffers { running_mean, running_variance, scale_gradient, bias_gradient, ..given }
    }
}

/// A pointer that a kernel is given: its number in [`Buffers::addresses`], or a part of the workspace behind these.
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

/// How units and their elements are divided among workgroups and threads.
struct Division {
    /// The units of a workgroup, as a power of two.
    lane_bits: u32,
    /// The parts of a unit's elements.
    chunks: usize,
    per_chunk: usize,
    /// Whether threads may read four neighbours at once.
    in_quads: bool,
}

impl Task {
    /// The launches. With `in_chunks`, units are divided among as many workgroups as `compute_units` need, which takes a
    /// workspace; without it none is used. `None` if elements cannot be counted in 31 bits.
    pub fn launches(&self, in_chunks: bool, compute_units: usize) -> Option<Launches> {
        self.launches_by(in_chunks, self.way(compute_units))
    }

    /// How it is divided, unless another way was measured to be faster.
    pub fn way(&self, compute_units: usize) -> Way {
        let (units, count) = (self.sizes.units(), self.sizes.count());
        // Neighbours in memory are units, unless they are elements of one unit: then all threads share it.
        let along_elements = if count == self.sizes.batch { self.x.image } else { self.x.pixel };
        let is_by_pixel = self.sizes.per_activation && self.sizes.pixels > 1;
        let along_units = if is_by_pixel { self.x.pixel } else { self.x.channel };
        let lane_bits = if along_units == 1 && units > 1 && along_elements != 1 { LANE_BITS } else { 0 };
        let groups = units.div_ceil(1 << lane_bits);
        let work = (count << lane_bits).div_ceil(LEAST_ELEMENTS);
        let chunks = match self.operation {
            Operation::Apply => work,
            _ => (WORKGROUPS_A_UNIT * compute_units.max(1)).div_ceil(groups).min(work).min(MOST_CHUNKS),
        };
        Way { lane_bits, chunks, in_quads: lane_bits == 0 && self.has_quads(), along: false }
    }

    /// The launches, divided in a way.
    pub fn launches_by(&self, in_chunks: bool, way: Way) -> Option<Launches> {
        let sizes = &self.sizes;
        let (units, count) = (sizes.units(), sizes.count());
        for strides in [self.x, self.y, self.z] {
            let reaches =
                [(sizes.batch, strides.image), (sizes.channels, strides.channel), (sizes.pixels, strides.pixel)];
            let far = reaches
                .iter()
                .try_fold(0usize, |far, &(size, stride)| far.checked_add(size.checked_sub(1)?.checked_mul(stride)?))?;
            (far < i32::MAX as usize).then_some(())?;
        }
        // Threads look for elements a little beyond the last one.
        (sizes.elements() < i32::MAX as usize - (1 << 16)).then_some(())?;
        let lane_bits = way.lane_bits;
        let groups = units.div_ceil(1 << lane_bits);
        let is_divided = in_chunks || self.operation == Operation::Apply;
        let chunks = if is_divided { way.chunks.clamp(1, MAX_GRID_YZ as usize) } else { 1 };
        let in_quads = way.in_quads && self.has_quads();
        let per_chunk = count.div_ceil(chunks).next_multiple_of(if in_quads { 4 } else { 1 });
        let chunks = count.div_ceil(per_chunk);
        let part = (2 * chunks * units * if self.data_type == DataType::F64 { 8 } else { 4 }) as u64;
        let (moments, sums) = match self.operation {
            _ if chunks == 1 => (0, 0),
            Operation::Train => (part, 0),
            Operation::Apply => (0, 0),
            Operation::Backward => (0, part),
            Operation::BackwardAnew => (part, part),
        };
        let grid = [u32::try_from(groups).ok()?, chunks as u32, 1];
        let shape = self.shape(&Division { lane_bits, chunks, per_chunk, in_quads })?.into();
        let operand = |argument: &Argument| match *argument {
            Argument::Sums => (Argument::Moments as usize, moments),
            other => (other as usize, 0),
        };
        let stage = |(kernel, arguments): (Kernel, &[Argument])| {
            let operands = arguments.iter().map(operand).collect();
            Stage { kernel, grid, shape, operands }
        };
        let stages = self.stages(chunks > 1).into_iter().map(stage).collect();
        Some(Launches { stages, workspace_bytes: moments + sums })
    }

    fn stages(&self, in_chunks: bool) -> Vec<(Kernel, &'static [Argument])> {
        use Argument::{
            Addend, Bias, BiasGradient, Mean, Moments, RunningMean, RunningVariance, Scale, ScaleGradient, Sums,
            Variance, X, Y, Z,
        };
        let stage = |entry: &'static str, arguments: &'static [Argument]| {
            (Kernel::of_type(SourceFile::Normalization, entry, self.data_type), arguments)
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

    /// Whether four neighbouring pixels of a channel are neighbours in memory, at multiples of four elements, in each
    /// tensor.
    fn has_quads(&self) -> bool {
        let is_in_quads = |it: Strides| it.pixel == 1 && it.image.is_multiple_of(4) && it.channel.is_multiple_of(4);
        self.data_type != DataType::F64
            && !self.sizes.per_activation
            && self.sizes.pixels.is_multiple_of(4)
            && [self.x, self.y, self.z].into_iter().all(is_in_quads)
    }

    fn shape(&self, division: &Division) -> Option<NormalizationShape> {
        let int = |number: usize| i32::try_from(number).ok();
        let sizes = &self.sizes;
        let (unit_pixels, pixels) = if sizes.per_activation { (sizes.pixels, 1) } else { (1, sizes.pixels) };
        let places = |it: Strides| checked_ints([it.image, it.channel, it.pixel]);
        let [scale_type, bias_type, mean_type, variance_type] = self.types.map(|it| type_number(it) as i32);
        Some(NormalizationShape {
            units: int(sizes.units())?,
            count: int(sizes.count())?,
            lane_bits: division.lane_bits as i32,
            chunks: int(division.chunks)?,
            per_chunk: int(division.per_chunk)?,
            in_quads: i32::from(division.in_quads),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shapes::Shape;

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
        let divided = task(sizes, x).launches(true, 36).unwrap();
        assert_eq!((divided.stages.len(), divided.stages[0].grid), (2, [3, 48, 1]));
        assert_eq!(divided.workspace_bytes(), 2 * 48 * 3 * 4);
        assert_eq!(task(sizes, x).launches(false, 36).unwrap().stages[0].grid, [3, 1, 1]);
        let small = Normalization { batch: 2, channels: 512, pixels: 49, per_activation: false };
        let x = Strides { image: 512 * 49, channel: 49, pixel: 1 };
        let whole = task(small, x).launches(true, 36).unwrap();
        assert_eq!((whole.stages.len(), whole.stages[0].grid, whole.workspace_bytes()), (1, [512, 1, 1], 0));
    }

    #[test]
    fn neighbours_in_memory_are_neighbouring_threads() {
        let sizes = Normalization { batch: 2, channels: 64, pixels: 100, per_activation: false };
        let bits = |sizes, x| {
            let Shape::Normalization(shape) = task(sizes, x).launches(true, 36).unwrap().stages[0].shape else {
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
        assert_eq!(task(sizes, Strides::default()).launches(true, 36), None);
    }
}
