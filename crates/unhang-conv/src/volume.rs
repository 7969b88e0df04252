//! 3-d convolutions: a 2-d problem for height and width, and the same parameters for the depth.
//!
//! No engine computes these. [`Volume::fold`] turns one into 2-d problems, which every engine computes.

use std::fmt;
use std::str::FromStr;

use crate::key::{KeyError, numbers, parts};
use crate::names::UnknownName;
use crate::problem::{
    Along, DataType, Direction, Layout, Problem, ProblemError, Specification, check_elements, check_numbers,
};

/// A 3-d tensor's five logical sizes: batch, channels, depth, height, width; for a filter out, in, depth, height, width.
pub type VolumeShape = [usize; 5];

/// The raw numbers of a 3-d convolution. [`Volume::new`] turns them into one, or says why it cannot.
pub type VolumeSpecification = Specification<3>;

/// The parameters along the depth.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Depth {
    pub(crate) input: usize,
    pub(crate) output: usize,
    pub(crate) kernel: usize,
    pub(crate) stride: usize,
    pub(crate) padding: usize,
    pub(crate) dilation: usize,
    pub(crate) output_padding: usize,
}

/// One 3-d convolution, complete and valid.
///
/// ```
/// let volume: unhang_conv::Volume = "forward:f32:ncdhw:1x16x8x64x64:32x3x3x3:s1x1x1:p1x1x1:d1x1x1:g1".parse()?;
/// assert_eq!(volume.output_shape(), [1, 32, 8, 64, 64]);
/// let [part] = &volume.fold(usize::MAX)?.parts[..] else { panic!() };
/// assert_eq!(part.problem.to_string(), "forward:f32:nchw:8x48x64x64:32x3x3:s1x1:p1x1:d1x1:g1");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Volume {
    /// Height and width, and everything that does not belong to an axis.
    pub(crate) plane: Problem,
    pub(crate) depth: Depth,
}

impl Volume {
    /// Checks the numbers and turns them into a 3-d convolution.
    pub fn new(given: VolumeSpecification) -> Result<Volume, ProblemError> {
        check_numbers(&given)?;
        let pair = |[_, h, w]: [i64; 3]| [h, w];
        let plane = Problem::new(Specification {
            batch: given.batch,
            in_channels: given.in_channels,
            in_size: pair(given.in_size),
            out_channels: given.out_channels,
            kernel: pair(given.kernel),
            stride: pair(given.stride),
            padding: pair(given.padding),
            dilation: pair(given.dilation),
            groups: given.groups,
            transposed: given.transposed,
            output_padding: pair(given.output_padding),
            data_type: given.data_type,
            layout: given.layout,
            direction: given.direction,
        })?;
        let along = Along::of(&given, 0);
        let output = along.output()?;
        // Every number was checked to be in 0..=i32::MAX.
        let depth = Depth {
            input: along.input as usize,
            output: output as usize,
            kernel: along.kernel as usize,
            stride: along.stride as usize,
            padding: along.padding as usize,
            dilation: along.dilation as usize,
            output_padding: along.output_padding as usize,
        };
        let volume = Volume { plane, depth };
        let filter = [given.out_channels, given.in_channels, given.kernel[0], given.kernel[1], given.kernel[2]];
        check_elements("the input tensor", &volume.input_shape().map(|size| size as i64))?;
        check_elements("the output tensor", &volume.output_shape().map(|size| size as i64))?;
        check_elements("the filter", &filter)?;
        Ok(volume)
    }

    /// Which of the three computations this is.
    pub fn direction(&self) -> Direction {
        self.plane.direction
    }

    /// The type of all elements.
    pub fn data_type(&self) -> DataType {
        self.plane.data_type
    }

    /// The order of all tensors in memory: NCHW means NCDHW, NHWC means NDHWC.
    pub fn layout(&self) -> Layout {
        self.plane.layout
    }

    /// Channels of the output.
    pub fn out_channels(&self) -> usize {
        self.plane.out_channels
    }

    /// Whether this is a transposed convolution.
    pub fn transposed(&self) -> bool {
        self.plane.transposed
    }

    /// This convolution in another direction.
    pub fn with_direction(&self, direction: Direction) -> Volume {
        Volume { plane: self.plane.with_direction(direction), ..self.clone() }
    }

    /// The shape of the input.
    pub fn input_shape(&self) -> VolumeShape {
        let [n, c, h, w] = self.plane.input_shape();
        [n, c, self.depth.input, h, w]
    }

    /// The shape of the output.
    pub fn output_shape(&self) -> VolumeShape {
        let [n, k, h, w] = self.plane.output_shape();
        [n, k, self.depth.output, h, w]
    }

    /// The shape of the filter, as in torch: for a transposed convolution the input's channels come first.
    pub fn weight_shape(&self) -> VolumeShape {
        let [first, second, h, w] = self.plane.weight_shape();
        [first, second, self.depth.kernel, h, w]
    }

    /// The shapes of the two tensors that this direction reads and of the one that it writes, as in
    /// [`Problem::operand_shapes`].
    pub fn operand_shapes(&self) -> [VolumeShape; 3] {
        let (input, weight, output) = (self.input_shape(), self.weight_shape(), self.output_shape());
        match self.direction() {
            Direction::Forward => [input, weight, output],
            Direction::BackwardData => [output, weight, input],
            Direction::BackwardWeights => [input, output, weight],
        }
    }

    /// The strides, in elements, of a tensor without gaps.
    pub fn dense_strides([_, c, d, h, w]: VolumeShape, layout: Layout) -> [usize; 5] {
        match layout {
            Layout::Nchw => [c * d * h * w, d * h * w, h * w, w, 1],
            Layout::Nhwc => [d * h * w * c, 1, h * w * c, w * c, c],
        }
    }

    /// The ordinary 3-d convolution that computes this one, and whether its operands are exchanged: see
    /// [`Problem::lower`].
    pub fn lower(&self) -> (Volume, bool) {
        let lowered = self.plane.lower();
        let depth = match self.transposed() {
            true => Depth { input: self.depth.output, output: self.depth.input, output_padding: 0, ..self.depth },
            false => self.depth,
        };
        (Volume { plane: lowered.problem, depth }, lowered.operands_exchanged)
    }
}

/// The names of the layouts in texts.
const LAYOUTS: [(Layout, &str); 2] = [(Layout::Nchw, "ncdhw"), (Layout::Nhwc, "ndhwc")];

impl fmt::Display for Volume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Volume { plane, depth } = self;
        let three = |first: usize, [second, third]: [usize; 2]| format!("{first}x{second}x{third}");
        let layout = LAYOUTS[usize::from(plane.layout == Layout::Nhwc)].1;
        write!(f, "{}:{}:{layout}:{}x{}x", plane.direction, plane.data_type, plane.batch, plane.in_channels)?;
        write!(f, "{}:{}x", three(depth.input, plane.in_size), plane.out_channels)?;
        write!(f, "{}:s{}", three(depth.kernel, plane.kernel), three(depth.stride, plane.stride))?;
        write!(f, ":p{}:d{}", three(depth.padding, plane.padding), three(depth.dilation, plane.dilation))?;
        write!(f, ":g{}", plane.groups)?;
        if plane.transposed {
            write!(f, ":t:o{}", three(depth.output_padding, plane.output_padding))?;
        }
        Ok(())
    }
}

impl FromStr for Volume {
    type Err = KeyError;

    fn from_str(key: &str) -> Result<Volume, KeyError> {
        let (parts, transposed) = parts(key)?;
        let layout = LAYOUTS.into_iter().find(|(_, name)| *name == parts[2]).ok_or_else(|| UnknownName {
            what: "layout",
            found: parts[2].chars().take(80).collect(),
            expected: "ncdhw, ndhwc",
        })?;
        let [batch, in_channels, in_depth, in_height, in_width] =
            numbers(parts[3], "", "the input, such as 1x16x8x64x64")?;
        let [out_channels, depth, height, width] = numbers(parts[4], "", "the filter, such as 32x3x3x3")?;
        let [groups] = numbers(parts[8], "g", "groups, such as g1")?;
        Ok(Volume::new(VolumeSpecification {
            direction: parts[0].parse()?,
            data_type: parts[1].parse()?,
            layout: layout.0,
            batch,
            in_channels,
            in_size: [in_depth, in_height, in_width],
            out_channels,
            kernel: [depth, height, width],
            stride: numbers(parts[5], "s", "a stride, such as s1x1x1")?,
            padding: numbers(parts[6], "p", "a padding, such as p1x1x1")?,
            dilation: numbers(parts[7], "d", "a dilation, such as d1x1x1")?,
            groups,
            transposed,
            output_padding: match transposed {
                true => numbers(parts[10], "o", "an output padding, such as o0x0x0")?,
                false => [0; 3],
            },
        })?)
    }
}
