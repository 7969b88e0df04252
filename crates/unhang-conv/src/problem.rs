//! The problem, its parts, and what makes one invalid.

use thiserror::Error;

use crate::named;

/// The type of the elements of all of a problem's tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DataType {
    /// IEEE 754 single precision.
    F32,
    /// IEEE 754 half precision.
    F16,
    /// bfloat16: the upper half of a single.
    Bf16,
    /// IEEE 754 double precision.
    F64,
}

/// The order of a problem's tensors in memory, for activations and filters alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Layout {
    /// Channels before pixels; filters as out, in, height, width. Torch's default.
    Nchw,
    /// Pixels before channels; filters as out, height, width, in. Torch's `channels_last`.
    Nhwc,
}

/// Which of the three computations of a convolution layer a problem is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Direction {
    /// The output from input and filter.
    Forward,
    /// The gradient of the input from the gradient of the output and the filter.
    BackwardData,
    /// The gradient of the filter from the input and the gradient of the output.
    BackwardWeights,
}

impl DataType {
    /// Bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            DataType::F16 | DataType::Bf16 => 2,
            DataType::F32 => 4,
            DataType::F64 => 8,
        }
    }
}

impl Layout {
    /// The strides, in elements, of a tensor without gaps.
    pub const fn strides(self, [_, c, h, w]: TensorShape) -> [usize; 4] {
        match self {
            Layout::Nchw => [c * h * w, h * w, w, 1],
            Layout::Nhwc => [c * h * w, 1, w * c, c],
        }
    }
}

named!(DataType, "data type", [F32 = "f32", F16 = "f16", Bf16 = "bf16", F64 = "f64"]);
named!(Layout, "layout", [Nchw = "nchw", Nhwc = "nhwc"]);
named!(
    Direction,
    "direction",
    [Forward = "forward", BackwardData = "backward-data", BackwardWeights = "backward-weights"]
);

/// The raw numbers of a convolution, as a caller has them. [`Problem::new`] turns them into a problem, or says why it
/// cannot.
///
/// Sizes along axes are height, then width; for 3-d convolutions depth comes first. A 1-d convolution is a 2-d one
/// whose height is 1. For a transposed convolution `in_channels` and `in_size` are those of its input, as in torch's
/// `ConvTranspose2d`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Specification<const AXES: usize = 2> {
    /// Images in the batch.
    pub batch: i64,
    /// Channels of the input.
    pub in_channels: i64,
    /// The size of the input.
    pub in_size: [i64; AXES],
    /// Channels of the output.
    pub out_channels: i64,
    /// The size of the filter.
    pub kernel: [i64; AXES],
    /// Pixels from one application of the filter to the next.
    pub stride: [i64; AXES],
    /// Zeros on each side of the input.
    pub padding: [i64; AXES],
    /// Pixels from one tap of the filter to the next.
    pub dilation: [i64; AXES],
    /// Independent groups of channels.
    pub groups: i64,
    /// Whether this is a transposed convolution.
    pub transposed: bool,
    /// Planes, rows and columns added at the end of a transposed convolution's output.
    pub output_padding: [i64; AXES],
    /// The type of all elements.
    pub data_type: DataType,
    /// The order of all tensors in memory. For 3-d ones NCHW means NCDHW and NHWC means NDHWC (torch's
    /// `channels_last_3d`).
    pub layout: Layout,
    /// Which of the three computations this is.
    pub direction: Direction,
}

impl<const AXES: usize> Default for Specification<AXES> {
    /// One pixel, one channel, one tap, forward in f32 and NCHW: the defaults for struct update syntax.
    fn default() -> Self {
        Specification {
            batch: 1,
            in_channels: 1,
            in_size: [1; AXES],
            out_channels: 1,
            kernel: [1; AXES],
            stride: [1; AXES],
            padding: [0; AXES],
            dilation: [1; AXES],
            groups: 1,
            transposed: false,
            output_padding: [0; AXES],
            data_type: DataType::F32,
            layout: Layout::Nchw,
            direction: Direction::Forward,
        }
    }
}

/// Why these numbers do not describe a convolution.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ProblemError {
    /// A size that must be at least one is smaller.
    #[error("{name} is {value}: it must be at least 1")]
    NotPositive {
        /// Which number.
        name: &'static str,
        /// What it was.
        value: i64,
    },
    /// A padding is below zero.
    #[error("{name} is {value}: it must not be negative")]
    Negative {
        /// Which number it is.
        name: &'static str,
        /// Its value.
        value: i64,
    },
    /// The channels cannot be divided among the groups.
    #[error("{name} is {channels}, which {groups} groups do not divide")]
    GroupsDoNotDivide {
        /// Which channels.
        name: &'static str,
        /// The number of channels.
        channels: i64,
        /// The number of groups.
        groups: i64,
    },
    /// The filter, spread by its dilation, is larger than the padded input.
    #[error(
        "the filter spans {span} (kernel {kernel}, dilation {dilation}) and the padded input has only {padded} (input {input}, padding {padding}) in {axis}"
    )]
    FilterLargerThanInput {
        /// "depth", "height" or "width".
        axis: &'static str,
        /// Pixels that the filter spans.
        span: i64,
        /// Taps of the filter.
        kernel: i64,
        /// The dilation.
        dilation: i64,
        /// Pixels of the input with its padding.
        padded: i64,
        /// Pixels of the input.
        input: i64,
        /// Zeros on each side.
        padding: i64,
    },
    /// The output of a transposed convolution would be empty.
    #[error(
        "the transposed output would have {size} pixels in {axis} (input {input}, stride {stride}, padding {padding}, kernel {kernel})"
    )]
    TransposedOutputEmpty {
        /// "depth", "height" or "width".
        axis: &'static str,
        /// The resulting size.
        size: i64,
        /// Pixels of the input.
        input: i64,
        /// The stride.
        stride: i64,
        /// The padding.
        padding: i64,
        /// Taps of the filter.
        kernel: i64,
    },
    /// An output padding that the stride cannot produce.
    #[error("output padding is {output_padding} with stride {stride} in {axis}: it must be smaller than the stride")]
    OutputPaddingTooLarge {
        /// "depth", "height" or "width".
        axis: &'static str,
        /// The output padding.
        output_padding: i64,
        /// The stride.
        stride: i64,
    },
    /// The convolution has output padding but is not transposed.
    #[error("output padding {output_padding:?} is for transposed convolutions only")]
    OutputPaddingNotTransposed {
        /// The output padding.
        output_padding: Vec<i64>,
    },
    /// A size is too large to address.
    #[error("{what} overflows: {detail}")]
    TooLarge {
        /// Which tensor or number.
        what: &'static str,
        /// The numbers that were multiplied.
        detail: String,
    },
}

/// The most elements of one tensor: at eight bytes each, they still fit a signed 64-bit offset.
const MAX_ELEMENTS: i64 = i64::MAX / 16;
/// The largest single number: no sum or product of two overflows.
const MAX_NUMBER: i64 = i32::MAX as i64;

/// A tensor's four logical sizes: batch, channels, height, width; for a filter out, in, height, width.
pub type TensorShape = [usize; 4];

/// One convolution, complete and valid. Equal problems are the same problem.
///
/// Its text form ([`fmt::Display`], [`FromStr`]) is stable and is what stores and reports use as a key.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Problem {
    pub(crate) direction: Direction,
    pub(crate) data_type: DataType,
    pub(crate) layout: Layout,
    pub(crate) batch: usize,
    pub(crate) in_channels: usize,
    pub(crate) in_size: [usize; 2],
    pub(crate) out_channels: usize,
    pub(crate) out_size: [usize; 2],
    pub(crate) kernel: [usize; 2],
    pub(crate) stride: [usize; 2],
    pub(crate) padding: [usize; 2],
    pub(crate) dilation: [usize; 2],
    pub(crate) groups: usize,
    pub(crate) transposed: bool,
    pub(crate) output_padding: [usize; 2],
}

impl Problem {
    /// Checks the numbers and turns them into a problem.
    pub fn new(given: Specification) -> Result<Problem, ProblemError> {
        check_numbers(&given)?;
        let out_size = [Along::of(&given, 0).output()?, Along::of(&given, 1).output()?];
        let spec = &given;
        let [kh, kw] = spec.kernel;
        check_elements("the input tensor", &[spec.batch, spec.in_channels, spec.in_size[0], spec.in_size[1]])?;
        check_elements("the output tensor", &[spec.batch, spec.out_channels, out_size[0], out_size[1]])?;
        check_elements("the filter", &[spec.out_channels, spec.in_channels, kh, kw])?;

        // Every number was checked to be in 0..=i32::MAX.
        let pair = |[h, w]: [i64; 2]| [h as usize, w as usize];
        Ok(Problem {
            direction: given.direction,
            data_type: given.data_type,
            layout: given.layout,
            batch: given.batch as usize,
            in_channels: given.in_channels as usize,
            in_size: pair(given.in_size),
            out_channels: given.out_channels as usize,
            out_size: pair(out_size),
            kernel: pair(given.kernel),
            stride: pair(given.stride),
            padding: pair(given.padding),
            dilation: pair(given.dilation),
            groups: given.groups as usize,
            transposed: given.transposed,
            output_padding: pair(given.output_padding),
        })
    }

    /// The numbers that make up this problem.
    pub fn specification(&self) -> Specification {
        let pair = |[h, w]: [usize; 2]| [h as i64, w as i64];
        Specification {
            batch: self.batch as i64,
            in_channels: self.in_channels as i64,
            in_size: pair(self.in_size),
            out_channels: self.out_channels as i64,
            kernel: pair(self.kernel),
            stride: pair(self.stride),
            padding: pair(self.padding),
            dilation: pair(self.dilation),
            groups: self.groups as i64,
            transposed: self.transposed,
            output_padding: pair(self.output_padding),
            data_type: self.data_type,
            layout: self.layout,
            direction: self.direction,
        }
    }

    /// Which of the three computations this is.
    pub fn direction(&self) -> Direction {
        self.direction
    }

    /// The type of all elements.
    pub fn data_type(&self) -> DataType {
        self.data_type
    }

    /// The order of all tensors in memory.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Images in the batch.
    pub fn batch(&self) -> usize {
        self.batch
    }

    /// Channels of the input.
    pub fn in_channels(&self) -> usize {
        self.in_channels
    }

    /// Height and width of the input.
    pub fn in_size(&self) -> [usize; 2] {
        self.in_size
    }

    /// Channels of the output.
    pub fn out_channels(&self) -> usize {
        self.out_channels
    }

    /// Height and width of the output.
    pub fn out_size(&self) -> [usize; 2] {
        self.out_size
    }

    /// Height and width of the filter.
    pub fn kernel(&self) -> [usize; 2] {
        self.kernel
    }

    /// Pixels from one application of the filter to the next.
    pub fn stride(&self) -> [usize; 2] {
        self.stride
    }

    /// Zeros on each side of the input.
    pub fn padding(&self) -> [usize; 2] {
        self.padding
    }

    /// Pixels from one tap of the filter to the next.
    pub fn dilation(&self) -> [usize; 2] {
        self.dilation
    }

    /// Independent groups of channels.
    pub fn groups(&self) -> usize {
        self.groups
    }

    /// Whether this is a transposed convolution.
    pub fn transposed(&self) -> bool {
        self.transposed
    }

    /// Rows and columns added at the end of a transposed convolution's output.
    pub fn output_padding(&self) -> [usize; 2] {
        self.output_padding
    }

    /// Whether every input channel is a separate group.
    pub fn is_depthwise(&self) -> bool {
        self.groups > 1 && self.groups == self.in_channels
    }

    /// This convolution in another direction.
    pub fn with_direction(&self, direction: Direction) -> Problem {
        Problem { direction, ..self.clone() }
    }

    /// This convolution in another data type.
    pub fn with_data_type(&self, data_type: DataType) -> Problem {
        Problem { data_type, ..self.clone() }
    }

    /// This convolution in another layout.
    pub fn with_layout(&self, layout: Layout) -> Problem {
        Problem { layout, ..self.clone() }
    }

    /// This convolution with another batch.
    pub fn with_batch(&self, batch: usize) -> Result<Problem, ProblemError> {
        Problem::new(Specification { batch: batch as i64, ..self.specification() })
    }

    /// The shape of the input.
    pub fn input_shape(&self) -> TensorShape {
        [self.batch, self.in_channels, self.in_size[0], self.in_size[1]]
    }

    /// The shape of the output.
    pub fn output_shape(&self) -> TensorShape {
        [self.batch, self.out_channels, self.out_size[0], self.out_size[1]]
    }

    /// The shape of the filter, as in torch: for a transposed convolution the input's channels come first.
    pub fn weight_shape(&self) -> TensorShape {
        let [kh, kw] = self.kernel;
        if self.transposed {
            [self.in_channels, self.out_channels / self.groups, kh, kw]
        } else {
            [self.out_channels, self.in_channels / self.groups, kh, kw]
        }
    }

    /// The shapes of the two tensors that this direction reads and of the one that it writes.
    ///
    /// | direction | first | second | result |
    /// |---|---|---|---|
    /// | forward | input | weight | output |
    /// | backward-data | gradient of the output | weight | gradient of the input |
    /// | backward-weights | input | gradient of the output | gradient of the weight |
    pub fn operand_shapes(&self) -> [TensorShape; 3] {
        let (input, weight, output) = (self.input_shape(), self.weight_shape(), self.output_shape());
        match self.direction {
            Direction::Forward => [input, weight, output],
            Direction::BackwardData => [output, weight, input],
            Direction::BackwardWeights => [input, output, weight],
        }
    }

    /// Floating-point operations of the direct computation. A multiplication and an addition count as two; padding
    /// counts as data. The type is a float because large problems exceed 2⁶⁴.
    pub fn flops(&self) -> f64 {
        // Positions at which the whole filter is applied: the output's pixels, or the input's for a transposed
        // convolution.
        let [h, w] = if self.transposed { self.in_size } else { self.out_size };
        let per_pixel = self.weight_shape().iter().map(|&n| n as f64).product::<f64>();
        2.0 * self.batch as f64 * h as f64 * w as f64 * per_pixel
    }

    /// The ordinary (not transposed) convolution that computes this problem, so that engines need to know only those.
    ///
    /// A transposed convolution is the backward-data computation of an ordinary one that runs from its output to its
    /// input. Its backward-data is that one's forward, and its backward-weights exchanges the operands. The filter is
    /// the same tensor in memory in every case.
    pub fn lower(&self) -> LoweredProblem {
        if !self.transposed {
            return LoweredProblem { problem: self.clone(), operands_exchanged: false };
        }
        let direction = match self.direction {
            Direction::Forward => Direction::BackwardData,
            Direction::BackwardData => Direction::Forward,
            Direction::BackwardWeights => Direction::BackwardWeights,
        };
        let problem = Problem {
            direction,
            in_channels: self.out_channels,
            in_size: self.out_size,
            out_channels: self.in_channels,
            out_size: self.in_size,
            transposed: false,
            output_padding: [0, 0],
            ..self.clone()
        };
        LoweredProblem { problem, operands_exchanged: self.direction == Direction::BackwardWeights }
    }
}

/// An ordinary convolution that computes another problem; see [`Problem::lower`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoweredProblem {
    /// The ordinary convolution; never transposed.
    pub problem: Problem,
    /// Whether its first and second operand are the other problem's second and first.
    pub operands_exchanged: bool,
}

pub(crate) fn check_numbers<const AXES: usize>(spec: &Specification<AXES>) -> Result<(), ProblemError> {
    let along = |names: [&'static str; 3], values: [i64; AXES]| names.into_iter().skip(3 - AXES).zip(values);
    let positive = [("batch", spec.batch), ("input channels", spec.in_channels)]
        .into_iter()
        .chain(along(["input depth", "input height", "input width"], spec.in_size))
        .chain([("output channels", spec.out_channels)])
        .chain(along(["kernel depth", "kernel height", "kernel width"], spec.kernel))
        .chain(along(["stride depth", "stride height", "stride width"], spec.stride))
        .chain(along(["dilation depth", "dilation height", "dilation width"], spec.dilation))
        .chain([("groups", spec.groups)]);
    if let Some((name, value)) = positive.clone().find(|(_, value)| *value < 1) {
        return Err(ProblemError::NotPositive { name, value });
    }
    let output_padding = ["output padding depth", "output padding height", "output padding width"];
    let not_negative = along(["padding depth", "padding height", "padding width"], spec.padding)
        .chain(along(output_padding, spec.output_padding));
    if let Some((name, value)) = not_negative.clone().find(|(_, value)| *value < 0) {
        return Err(ProblemError::Negative { name, value });
    }
    if let Some((what, value)) = positive.chain(not_negative).find(|(_, value)| *value > MAX_NUMBER) {
        return Err(ProblemError::TooLarge { what, detail: format!("{value} is more than {MAX_NUMBER}") });
    }
    for (name, channels) in [("input channels", spec.in_channels), ("output channels", spec.out_channels)] {
        if channels % spec.groups != 0 {
            return Err(ProblemError::GroupsDoNotDivide { name, channels, groups: spec.groups });
        }
    }
    if !spec.transposed && spec.output_padding != [0; AXES] {
        return Err(ProblemError::OutputPaddingNotTransposed { output_padding: spec.output_padding.to_vec() });
    }
    Ok(())
}

/// What determines a convolution's size along one axis.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Along {
    pub(crate) axis: &'static str,
    pub(crate) input: i64,
    pub(crate) kernel: i64,
    pub(crate) stride: i64,
    pub(crate) padding: i64,
    pub(crate) dilation: i64,
    pub(crate) output_padding: i64,
    pub(crate) transposed: bool,
}

impl Along {
    pub(crate) fn of<const AXES: usize>(spec: &Specification<AXES>, axis: usize) -> Along {
        Along {
            axis: ["depth", "height", "width"][3 - AXES + axis],
            input: spec.in_size[axis],
            kernel: spec.kernel[axis],
            stride: spec.stride[axis],
            padding: spec.padding[axis],
            dilation: spec.dilation[axis],
            output_padding: spec.output_padding[axis],
            transposed: spec.transposed,
        }
    }

    /// The output's size. All numbers are at most `i32::MAX`, so no product of two overflows.
    pub(crate) fn output(self) -> Result<i64, ProblemError> {
        let Along { axis, input, kernel, stride, padding, dilation, output_padding, transposed } = self;
        let span = dilation * (kernel - 1) + 1;
        let size = if transposed {
            if output_padding >= stride {
                return Err(ProblemError::OutputPaddingTooLarge { axis, output_padding, stride });
            }
            let size = (input - 1) * stride - 2 * padding + span + output_padding;
            if size < 1 {
                return Err(ProblemError::TransposedOutputEmpty { axis, size, input, stride, padding, kernel });
            }
            size
        } else {
            let padded = input + 2 * padding;
            if span > padded {
                return Err(ProblemError::FilterLargerThanInput {
                    axis,
                    span,
                    kernel,
                    dilation,
                    padded,
                    input,
                    padding,
                });
            }
            (padded - span) / stride + 1
        };
        if size > MAX_NUMBER {
            return Err(ProblemError::TooLarge { what: "the output's size", detail: format!("{size} in {axis}") });
        }
        Ok(size)
    }
}

pub(crate) fn check_elements(what: &'static str, sizes: &[i64]) -> Result<(), ProblemError> {
    let product = sizes.iter().try_fold(1i64, |product, &size| product.checked_mul(size));
    match product {
        Some(elements) if elements <= MAX_ELEMENTS => Ok(()),
        _ => {
            let factors: Vec<String> = sizes.iter().map(i64::to_string).collect();
            Err(ProblemError::TooLarge { what, detail: format!("{} elements", factors.join(" × ")) })
        }
    }
}
