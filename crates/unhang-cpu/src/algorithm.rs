//! Which algorithm computes a problem: a small table, read from the top.

use std::sync::OnceLock;

use unhang_conv::{DataType, Direction, Layout, Problem};

use crate::plain::CHAIN;
use crate::simd::winograd;
use crate::simd::workspace::memory_for;
use unhang_simd::Isa;

/// How a convolution is computed: an algorithm, with the kernels of an instruction set.
#[derive(Clone, Copy)]
pub(crate) struct Method {
    pub algorithm: Algorithm,
    pub isa: Isa,
}

/// The algorithms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Algorithm {
    /// Safe loops over rows, for whatever has no kernel.
    Plain,
    /// Vectors along rows or channels; memory is the limit.
    Depthwise,
    /// Blocked products of pixels by pixels: weight gradients.
    Weights,
    /// Sums over pixels with pixels in vectors on both sides: weight gradients of narrow groups, of images with one
    /// channel, of small patches and of one filter or two, in NCHW.
    PlaneWeights,
    /// F(3×3, 4×4): a quarter of the products, between transforms, for weight gradients.
    WinogradWeights,
    /// A product of matrices with pixels in vectors: 1×1 in NCHW, forward and backward-data. With a stride the pixels that are
    /// met are brought together first.
    Pointwise,
    /// A matrix by a few vectors, where they lie: filters with a tap for each pixel of an image, above all 1×1 on images of one
    /// pixel, forward and backward-data.
    SinglePixels,
    /// Sums of a few images, each by a number for every filter: the same, weight gradients.
    SinglePixelsWeights,
    /// Sums over channels with channels in vectors on both sides, where they lie: 1×1 with few filters in NHWC, forward, and
    /// backward-data of one channel.
    FewFilters,
    /// Sums over pixels with pixels in vectors on both sides, where they lie: 1×1 with few filters in NCHW, weight gradients.
    FewFiltersWeights,
    /// F(4×4, 3×3): a quarter of the products, between transforms.
    Winograd,
    /// F(4, 3), F(4, 5) and F(4, 7) along one axis: half of the products and less, between transforms, in NCHW.
    WinogradAxis,
    /// F(5, 2) and F(7, 2) along the rows, for three taps with a stride of two: two thirds to three quarters of the products,
    /// between transforms, in NCHW, forward.
    WinogradStridedAxis,
    /// F(3, 4), F(5, 4) and F(7, 4) along one axis, for weight gradients in NCHW.
    WinogradAxisWeights,
    /// A product of matrices with filters in vectors: 1×1 in NHWC, forward and backward-data.
    PointwiseChannels,
    /// Sums over taps and few channels with pixels in vectors: small groups, images and data gradients of images, and filters
    /// that meet each pixel once, in NCHW, forward and backward-data.
    Planes,
    /// What computes the problem in NCHW, once planes are made of its pixels: small groups in NHWC.
    ByPlanes,
    /// A product of matrices, once each tap's pixels or each patch's rows are brought together: large filters that meet each pixel
    /// once, in NCHW, and of images in NHWC, forward.
    Patches,
    /// The depthwise one, once channels are repeated: a few filters a channel, but not the weight gradient in NCHW.
    RepeatedChannels,
    /// Blocked sums over taps and channels: all other forward and backward-data.
    Direct,
}

/// The largest stride with kernels: the packed source is dealt out into this many phases.
const MAX_STRIDE: usize = 64;

/// From this many channels of the source and of a group's result on, 1×1 in NHWC is computed as a product of matrices.
/// Groups and strides do not matter then.
const MANY_CHANNELS: [usize; 2] = [256, 96];
/// Channels of the source from which on 1×1 in NHWC without groups or a stride is: with fewer a tile has few products.
const FEWEST_OF_LINE: usize = 24;

/// Channels of the source up to which the pixels of a strided 1×1 convolution are dealt out rather than brought together.
const MOST_DEALT_OUT: usize = 128;

/// Filters from which on packing the operands of a 1×1 convolution's weight gradient pays.
const FEWEST_PACKED: usize = 8;

impl Algorithm {
    /// The algorithm for an ordinary problem (see [`Problem::lower`]).
    pub fn choose(problem: &Problem, isa: Isa) -> Algorithm {
        let weights = problem.direction() == Direction::BackwardWeights;
        // Padding far beyond the image would be packed, pixel by pixel; beyond this the workspace is out of proportion.
        let mostly_padding = (0..2).any(|axis| 2 * problem.padding()[axis] > 3 * problem.in_size()[axis] + 64);
        let strides = problem.stride().into_iter().max().unwrap_or(1);
        let one_tap = problem.kernel() == [1, 1] && problem.padding() == [0, 0];
        let [source, _, result] = problem.operand_shapes().map(|shape| shape[1]);
        let one_group = one_tap && problem.groups() == 1;
        let many_channels = source >= MANY_CHANNELS[0] && result / problem.groups() >= MANY_CHANNELS[1];
        let one_line = one_group && problem.stride() == [1, 1] && source >= FEWEST_OF_LINE && result > isa.lanes();
        let dense_tap = one_tap && problem.stride() == [1, 1] && problem.layout() == Layout::Nchw;
        // Sums of strided taps over few channels are as fast with the pixels dealt out.
        let short =
            problem.direction() == Direction::Forward && source <= MOST_DEALT_OUT && has_short_sums(problem, isa);
        let tap_of_planes = one_tap && problem.layout() == Layout::Nchw && (problem.stride() == [1, 1] || !short);
        match () {
            () if problem.data_type() == DataType::F64 => Algorithm::Plain,
            () if strides > MAX_STRIDE || mostly_padding => Algorithm::Plain,
            // One row must not be longer than a chain of terms may be.
            () if weights && problem.out_size()[1] > CHAIN => Algorithm::Plain,
            () if problem.is_depthwise() && problem.out_channels() == problem.in_channels() => Algorithm::Depthwise,
            () if problem.is_depthwise() && repeating_pays(problem) => Algorithm::RepeatedChannels,
            () if is_one_result(problem) && !weights => Algorithm::SinglePixels,
            () if is_one_result(problem) && sums_few_images(problem, isa) => Algorithm::SinglePixelsWeights,
            () if one_group && weights && dense_tap && problem.out_channels() < FEWEST_PACKED => {
                Algorithm::FewFiltersWeights
            }
            () if one_group && !weights && sums_along_channels(problem, isa) => Algorithm::FewFilters,
            () if problem.layout() == Layout::Nhwc && planes_pay(problem, isa) => Algorithm::ByPlanes,
            () if weights && winograd_wins(problem, isa) => Algorithm::WinogradWeights,
            () if weights && winograd_axis_wins(problem, isa) => Algorithm::WinogradAxisWeights,
            () if weights && problem.layout() == Layout::Nchw && has_narrow_sides(problem, isa) => {
                Algorithm::PlaneWeights
            }
            () if weights => Algorithm::Weights,
            () if winograd_wins(problem, isa) => Algorithm::Winograd,
            () if winograd_axis_wins(problem, isa) => Algorithm::WinogradAxis,
            () if winograd_strided_axis_wins(problem, isa) => Algorithm::WinogradStridedAxis,
            () if one_tap && problem.layout() == Layout::Nhwc && (one_line || many_channels) => {
                Algorithm::PointwiseChannels
            }
            () if tap_of_planes => Algorithm::Pointwise,
            () if is_of_large_patches(problem) => Algorithm::Patches,
            () if problem.layout() == Layout::Nchw && has_few_channels(problem, isa) => Algorithm::Planes,
            () if problem.layout() == Layout::Nchw && has_short_sums(problem, isa) => Algorithm::Planes,
            () => Algorithm::Direct,
        }
    }

    /// This algorithm, or the one in its place whose every result is the sum of its own products.
    pub fn by_definition(self) -> Algorithm {
        match self {
            Algorithm::Winograd | Algorithm::WinogradAxis | Algorithm::WinogradStridedAxis => Algorithm::Direct,
            Algorithm::WinogradWeights | Algorithm::WinogradAxisWeights => Algorithm::Weights,
            other => other,
        }
    }

    /// The name in text.
    pub const fn name(self) -> &'static str {
        match self {
            Algorithm::Plain => "plain",
            Algorithm::Depthwise => "depthwise",
            Algorithm::Weights => "weights",
            Algorithm::PlaneWeights => "plane-weights",
            Algorithm::Pointwise => "pointwise",
            Algorithm::SinglePixels => "single-pixels",
            Algorithm::SinglePixelsWeights => "single-pixels-weights",
            Algorithm::FewFilters => "few-filters",
            Algorithm::FewFiltersWeights => "few-filters-weights",
            Algorithm::Winograd => "winograd",
            Algorithm::WinogradAxis => "winograd-axis",
            Algorithm::WinogradStridedAxis => "winograd-strided-axis",
            Algorithm::WinogradAxisWeights => "winograd-axis-weights",
            Algorithm::PointwiseChannels => "pointwise-channels",
            Algorithm::WinogradWeights => "winograd-weights",
            Algorithm::Planes => "planes",
            Algorithm::ByPlanes => "by-planes",
            Algorithm::Patches => "patches",
            Algorithm::RepeatedChannels => "repeated-channels",
            Algorithm::Direct => "direct",
        }
    }
}

/// Filters of a channel up to which it is repeated for each of them.
const MOST_FILTERS_OF_CHANNEL: usize = 4;

/// Whether a depthwise convolution has a few filters a channel, and a repeated image takes at most half of the memory
/// allowed for the workspace: the rest is for what computes it. The weight gradients of planes are faster where they
/// are.
fn repeating_pays(problem: &Problem) -> bool {
    let filters = problem.out_channels() / problem.in_channels();
    let is_fast_in_place = problem.direction() == Direction::BackwardWeights && problem.layout() == Layout::Nchw;
    let image: usize = problem.input_shape()[1..].iter().product();
    let operands: usize = problem.operand_shapes().iter().map(|shape| shape.iter().product::<usize>()).sum();
    let fits = 2 * filters * image <= memory_for(operands);
    filters <= MOST_FILTERS_OF_CHANNEL && !is_fast_in_place && fits
}

/// Whether a filter has one tap for each pixel of an image, and so one result: an image is a vector, and filters are a matrix.
fn is_one_result(problem: &Problem) -> bool {
    problem.groups() == 1
        && problem.padding() == [0, 0]
        && problem.kernel() == problem.in_size()
        && (0..2).all(|axis| problem.kernel()[axis] == 1 || problem.dilation()[axis] == 1)
}

/// Whether the channels of each pixel and of a filter lie together and fill a vector, and the filters at most a quarter
/// of one.
fn sums_along_channels(problem: &Problem, isa: Isa) -> bool {
    let most = if problem.direction() == Direction::Forward { FEW_RESULTS } else { 1 };
    let [source, _, result] = problem.operand_shapes().map(|shape| shape[1]);
    problem.layout() == Layout::Nhwc && problem.stride() == [1, 1] && source >= isa.lanes() && result <= most
}

/// Images whose gradients are summed one after the other at most: a short chain.
const FEW_IMAGES: usize = 64;

/// Whether the weight gradient of such a problem sums few images, each of which fills a vector.
fn sums_few_images(problem: &Problem, isa: Isa) -> bool {
    let numbers = problem.in_channels() * problem.kernel().into_iter().product::<usize>();
    problem.batch() <= FEW_IMAGES && numbers >= isa.lanes()
}

/// Rows from a filter's first tap to its last at most where strips of the source are packed with pixels in vectors: each strip
/// packs as many again.
const MOST_REACH: usize = 32;

/// Whether a filter reaches over few rows.
fn has_short_reach(problem: &Problem) -> bool {
    (problem.kernel()[0] - 1) * problem.dilation()[0] <= MOST_REACH
}

/// Channels of a group, on either side, with which pixels lie in vectors; with fewer channels of the source where sums are short.
const FEW_CHANNELS: std::ops::RangeInclusive<usize> = 4..=16;
/// Channels of a result with which pixels lie in vectors whatever the source has: filters would fill a fifth of a vector.
const FEW_RESULTS: usize = 4;

/// Whether a forward or backward-data problem has so few channels that results are best computed with pixels in vectors:
/// few filters do not fill them, and over few channels transposing the results costs as much as summing them. Of results with
/// gaps between their pixels (strided backward-data) only the fewest are: bringing the phases together costs as much.
fn has_few_channels(problem: &Problem, isa: Isa) -> bool {
    let dense = problem.direction() == Direction::Forward || problem.stride() == [1, 1];
    let [source, _, result] = problem.operand_shapes().map(|shape| shape[1] / problem.groups());
    let most = if dense && source <= *FEW_CHANNELS.end() { *FEW_CHANNELS.end() } else { FEW_RESULTS };
    // Rows fill less than half of a vector, filters a whole one.
    let fill_more = problem.operand_shapes()[2][3] < isa.lanes() / 2 && result >= isa.lanes();
    !fill_more
        && problem.kernel() != [1, 1]
        && has_short_reach(problem)
        && source >= *FEW_CHANNELS.start()
        && result <= most
}

/// Channels of a group up to which planes are made of pixels in NHWC.
const SMALL_GROUP: usize = 12;
/// Columns from which on they are with a stride, with fewer channels than pixels in vectors want, and for weight gradients.
const MANY_COLUMNS: usize = 28;

/// Whether a problem of small groups in NHWC is faster in NCHW, though planes have to be made of its pixels.
fn planes_pay(problem: &Problem, isa: Isa) -> bool {
    let of_group = problem.in_channels().max(problem.out_channels()) / problem.groups();
    let is_small = problem.groups() > 1 && of_group <= SMALL_GROUP && problem.kernel() != [1, 1];
    let is_large = problem.in_size()[1] >= MANY_COLUMNS;
    let pays = match problem.direction() {
        Direction::BackwardWeights => is_large && has_narrow_sides(problem, isa),
        _ => is_large || (problem.stride() == [1, 1] && has_few_channels(problem, isa)),
    };
    is_small && has_short_reach(problem) && pays
}

/// Channels of the source below which pixels lie in vectors where sums are short: with more the source takes long to deal out.
const MOST_OF_IMAGE: usize = 16;
/// The terms of such a sum.
const SHORT_SUM: usize = 256;
/// The terms of such a sum where one tap meets a pixel of the source, and rows of results follow each other without a
/// gap.
const SHORT_SUM_OF_PATCHES: usize = 512;

/// Whether the results of a forward problem lie in rows that fill vectors, and its sums are short. Transposing such
/// sums, which filters in vectors ask for, would cost as much as computing them.
fn has_short_sums(problem: &Problem, isa: Isa) -> bool {
    let source = problem.in_channels() / problem.groups();
    let [height, width] = problem.out_size();
    let terms = source * problem.kernel().into_iter().product::<usize>();
    problem.direction() == Direction::Forward
        && has_short_reach(problem)
        && match is_of_patches(problem) {
            true => terms <= SHORT_SUM_OF_PATCHES && height * width >= 4 * isa.lanes(),
            false => source < MOST_OF_IMAGE && terms <= SHORT_SUM && width >= isa.lanes(),
        }
}

/// Numbers of a filter, and filters, with which the weight gradient of few channels is summed with pixels in vectors: its sums
/// are brought together for every chunk of pixels.
const SMALL_FILTER: usize = 64;
/// See [`SMALL_FILTER`].
const FEW_FILTERS: usize = 128;
/// Numbers of a filter of narrow groups.
const NARROW_FILTER: usize = 512;

/// Whether channels in vectors would leave half of them empty on either side of a weight gradient. It is also true if
/// one side would have to be transposed for few numbers of a filter: those of one channel, of patches of an image, and
/// of one filter or two.
fn has_narrow_sides(problem: &Problem, isa: Isa) -> bool {
    let [channels, filters] = [problem.in_channels(), problem.out_channels()].map(|side| side / problem.groups());
    let numbers = channels * problem.kernel().into_iter().product::<usize>();
    let narrow = channels.max(filters) <= isa.lanes() / 2 && numbers <= NARROW_FILTER;
    let few = channels == 1 || filters <= 2 || (channels < MOST_OF_IMAGE && is_of_patches(problem));
    has_short_reach(problem) && (narrow || (few && numbers <= SMALL_FILTER && filters <= FEW_FILTERS))
}

/// Whether one tap at most meets each pixel of the source.
fn is_of_patches(problem: &Problem) -> bool {
    (0..2).all(|axis| (problem.kernel()[axis] - 1) * problem.dilation()[axis] < problem.stride()[axis])
}

/// Columns of a filter from which on its taps' pixels are brought together.
const LARGE_PATCH: usize = 8;

/// Whether a forward problem is one of large filters that meet each pixel once and leave out none between them. In NHWC
/// it is one of images, whose few channels fill a part of a vector.
fn is_of_large_patches(problem: &Problem) -> bool {
    problem.kernel()[1] >= LARGE_PATCH
        && (problem.layout() == Layout::Nchw || problem.in_channels() < MOST_OF_IMAGE)
        && (problem.direction(), problem.groups()) == (Direction::Forward, 1)
        && [problem.padding(), problem.dilation()] == [[0, 0], [1, 1]]
        && problem.kernel() == problem.stride()
}

/// `UNHANG_CPU_WINOGRAD=0` turns Winograd's algorithm off.
fn winograd_is_allowed() -> bool {
    static ALLOWED: OnceLock<bool> = OnceLock::new();
    *ALLOWED.get_or_init(|| std::env::var("UNHANG_CPU_WINOGRAD").map_or(true, |text| text != "0"))
}

/// The products that Winograd's algorithm along one axis has to spare.
const AXIS_GAIN: f64 = 1.4;
/// Pixels of results for which a filter is transformed, or a filter's gradient.
const AXIS_PIXELS: usize = 256;

/// Where Winograd's algorithm wins along one axis: with 16 channels and more on either side, and where enough products are
/// spared.
fn winograd_axis_wins(problem: &Problem, isa: Isa) -> bool {
    let channels = problem.in_channels().min(problem.out_channels());
    let weights = problem.direction() == Direction::BackwardWeights;
    let [batch, _, height, width] = problem.operand_shapes()[if weights { 1 } else { 2 }];
    let gain = if weights { winograd::axis_gradient::gain } else { winograd::axis::gain };
    winograd_is_allowed()
        && channels >= 16
        && batch * height * width >= AXIS_PIXELS
        && gain(problem, isa).is_some_and(|gain| gain >= AXIS_GAIN)
}

/// The products that Winograd's algorithm along the rows has to spare with a stride, where the direct path deals out rows too.
const STRIDED_AXIS_GAIN: f64 = 1.22;
/// Channels on either side from which on they outweigh the transforms.
const STRIDED_AXIS_CHANNELS: usize = 32;

/// Where Winograd's algorithm wins along the rows with a stride of two: with 32 channels and more on either side, and where
/// enough products are spared.
fn winograd_strided_axis_wins(problem: &Problem, isa: Isa) -> bool {
    let channels = problem.in_channels().min(problem.out_channels());
    winograd_is_allowed()
        && channels >= STRIDED_AXIS_CHANNELS
        && winograd::strided_axis::gain(problem, isa).is_some_and(|gain| gain >= STRIDED_AXIS_GAIN)
}

/// The products that Winograd's algorithm along both axes has to spare.
const GAIN: f64 = 2.0;
/// Products to spare for dilated filters: the direct path leaves out their taps that fall on padding.
const DILATED_GAIN: f64 = 2.5;
/// Products to spare for strided and dilated weight gradients, which transform their source for few vectors of filters at a time.
const APART_WEIGHTS_GAIN: f64 = 3.0;
/// Products to spare for strided backward-data with many channels in NCHW: a tile's transforms are used for results of four parities.
const STRIDED_GAIN: f64 = 1.5;
/// Those channels.
const STRIDED_CHANNELS: usize = 128;

/// Where Winograd's algorithm wins, if it is possible. It needs 16 channels and more on either side, so that the
/// products outweigh the transforms of tiles. With a stride in NCHW the source may have three: those of all parities
/// are transformed together, and planes are to be dealt out anyway. It needs 24 tiles and more, so that the products
/// outweigh the transform of the filter. And it must spare enough products.
fn winograd_wins(problem: &Problem, isa: Isa) -> bool {
    let channels = problem.in_channels().min(problem.out_channels());
    let strided_planes = problem.stride() != [1, 1] && problem.layout() == Layout::Nchw;
    let (enough, gain) = match problem.direction() {
        Direction::Forward if strided_planes => (problem.in_channels() >= 3 && problem.out_channels() >= 16, GAIN),
        Direction::BackwardData if strided_planes && channels >= STRIDED_CHANNELS => (true, STRIDED_GAIN),
        Direction::BackwardWeights if [problem.stride(), problem.dilation()] != [[1, 1]; 2] => {
            (channels >= 16, APART_WEIGHTS_GAIN)
        }
        _ if problem.dilation() != [1, 1] => (channels >= 16, DILATED_GAIN),
        _ => (channels >= 16, GAIN),
    };
    let wins = |outlook: winograd::Outlook| outlook.tiles >= 24 && outlook.gain >= gain;
    enough && winograd_is_allowed() && winograd::outlook(problem, isa.lanes()).is_some_and(wins)
}
