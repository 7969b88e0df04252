//! The launches that plans consist of: constants, grids and parameter structures as the kernels declare them.

mod depthwise;
mod depthwise_large;
mod direct;
mod gemm;
mod narrow;
mod patches;
mod plain;
mod stride2;
mod weights;
mod winograd;

pub(crate) use depthwise::{depthwise, depthwise_quads};
pub(crate) use depthwise_large::{LARGE_TAPS, depthwise_large, unrolled_taps};
pub(crate) use direct::direct;
pub(crate) use gemm::{GemmPart, gemm, gemm_steps, has_empty_phases, is_spread, pack, phase_planes, reduce};
pub(crate) use narrow::narrow;
pub(crate) use patches::{as_product, patched, patches};
pub(crate) use plain::plain;
pub(crate) use stride2::{is_stride2_winograd, stride2_winograd};
pub(crate) use weights::{reduce_weights, turned, weights};
pub(crate) use winograd::{is_winograd, winograd, winograd_fused, winograd_places, winograd_products};

use unhang_conv::{DataType, Direction, Layout, Problem, Specification};

use crate::choice::Tile;
use crate::plan::{Form, LaunchPlan, MAX_GRID_YZ, MAX_PHASES, MAX_TENSOR_BYTES, Pointer, Stage};
use crate::shapes::{
    DepthwiseLargeShape, DepthwiseQuadsShape, DepthwiseShape, DirectShape, Divisor, FusedFilterShape, FusedShape,
    GemmShape, NarrowShape, PackShape, PatchShape, PlainShape, ReduceShape, ReduceWeightsShape, TurnShape,
    UnpatchShape, WeightsShape, WinogradFilterShape, WinogradShape, WinogradWeightsShape,
};
use crate::sources::{Kernel, SourceFile, type_number};

/// A problem as the kernels see it: never transposed, and which pointer is which of its operands.
pub(crate) struct Geometry {
    /// The ordinary convolution.
    pub problem: Problem,
    /// Its first operand.
    pub first: Pointer,
    /// Its second operand.
    pub second: Pointer,
    /// For this problem alone, or for all.
    pub form: Form,
}

impl Geometry {
    pub(crate) fn new(problem: &Problem, form: Form) -> Geometry {
        let lowered = problem.lower();
        let (first, second) = if lowered.operands_exchanged {
            (Pointer::Second, Pointer::First)
        } else {
            (Pointer::First, Pointer::Second)
        };
        // A transposed layer's result may have a bias for each channel, which taps must not become.
        let has_bias = problem.transposed() && lowered.problem.direction() == Direction::BackwardData;
        Geometry { problem: as_matrices(lowered.problem, has_bias), first, second, form }
    }

    pub(crate) fn largest_extent(&self) -> Option<usize> {
        let p = &self.problem;
        [p.in_size(), p.out_size(), p.kernel(), p.stride(), p.padding(), p.dilation()]
            .into_iter()
            .flatten()
            .chain([p.batch(), p.in_channels(), p.out_channels()])
            .max()
    }

    pub(crate) fn result_elements(&self) -> u64 {
        self.problem.operand_shapes()[2].iter().map(|&n| n as u64).product()
    }

    /// An error if general kernels are asked for.
    pub(crate) fn refuse_general(&self) -> Result<(), String> {
        match self.form {
            Form::Specialised => Ok(()),
            Form::General => Err("there is no general kernel for it".into()),
        }
    }

    /// True in forward, false in backward-data, an error in backward-weights.
    pub(crate) fn is_forward(&self, choice: &str) -> Result<bool, String> {
        match self.problem.direction() {
            Direction::Forward => Ok(true),
            Direction::BackwardData => Ok(false),
            Direction::BackwardWeights => Err(format!("{choice} is for forward and backward-data")),
        }
    }

    /// Where an element is in a group's filter, for forward and backward-data: row, channel summed over, tap.
    fn filter_strides(&self) -> [usize; 3] {
        let (taps, (reduced, rows)) = (self.taps(), self.reduced_and_rows());
        match (self.problem.direction() == Direction::Forward, self.channels_last()) {
            (true, false) => [taps * reduced, taps, 1],
            (true, true) => [taps * reduced, 1, reduced],
            (false, false) => [taps, taps * rows, 1],
            (false, true) => [1, taps * rows, rows],
        }
    }

    /// The constants that most kernels are compiled for.
    fn constants(&self) -> Vec<(&'static str, i64)> {
        vec![("TYPE", type_number(self.problem.data_type())), ("CHANNELS_LAST", i64::from(self.channels_last()))]
    }

    /// A kernel that needs only the type of the tensors.
    fn kernel(&self, source: SourceFile, entry: &'static str) -> Kernel {
        Kernel::of_type(source, entry, self.problem.data_type())
    }

    /// The arguments of a kernel for forward and backward-data.
    fn operands(&self) -> Vec<Pointer> {
        vec![self.first, self.second, Pointer::Bias, Pointer::Result]
    }

    fn taps(&self) -> usize {
        self.problem.kernel()[0] * self.problem.kernel()[1]
    }

    fn channels_last(&self) -> bool {
        self.problem.layout() == Layout::Nhwc
    }

    /// Channels summed over and channels of the result, in a group, for forward and backward-data.
    pub(crate) fn reduced_and_rows(&self) -> (usize, usize) {
        let p = &self.problem;
        let (input, output) = (p.in_channels() / p.groups(), p.out_channels() / p.groups());
        if p.direction() == Direction::Forward { (input, output) } else { (output, input) }
    }

    /// The sizes of the image that is read and of the one that is written, for forward and backward-data.
    pub(crate) fn source_and_result(&self) -> ([usize; 2], [usize; 2]) {
        let p = &self.problem;
        if p.direction() == Direction::Forward { (p.in_size(), p.out_size()) } else { (p.out_size(), p.in_size()) }
    }

    /// Whether this is just a matrix product: 1×1, stride 1, no padding.
    pub(crate) fn is_pointwise(&self) -> bool {
        let p = &self.problem;
        p.kernel() == [1, 1] && p.stride() == [1, 1] && p.padding() == [0, 0]
    }

    fn window_constants(&self) -> Vec<(&'static str, i64)> {
        let p = &self.problem;
        let names =
            [["FILTER_H", "FILTER_W"], ["STRIDE_H", "STRIDE_W"], ["PAD_H", "PAD_W"], ["DILATION_H", "DILATION_W"]];
        let values = [p.kernel(), p.stride(), p.padding(), p.dilation()];
        names
            .into_iter()
            .zip(values)
            .flat_map(|(names, values)| [(names[0], values[0] as i64), (names[1], values[1] as i64)])
            .collect()
    }
}

/// A window as large as its image makes one pixel of each image: a product of matrices, in which taps are channels. Images of one
/// pixel are in memory as NHWC has them, which kernels read in quads. Taps stay taps in a result that may have a bias.
fn as_matrices(problem: Problem, has_bias: bool) -> Problem {
    let p = &problem;
    let is_dense = (0..2).all(|axis| p.dilation()[axis] == 1 || p.kernel()[axis] == 1);
    let covers_image = !has_bias && p.groups() == 1 && is_dense && p.padding() == [0, 0] && p.kernel() == p.in_size();
    let is_pixels = p.in_size() == [1, 1] && p.kernel() == [1, 1] && p.padding() == [0, 0];
    if !covers_image && !is_pixels {
        return problem;
    }
    let product = Problem::new(Specification {
        direction: p.direction(),
        data_type: p.data_type(),
        layout: Layout::Nhwc,
        batch: p.batch() as i64,
        in_channels: (p.in_channels() * p.in_size()[0] * p.in_size()[1]) as i64,
        out_channels: p.out_channels() as i64,
        groups: p.groups() as i64,
        ..Specification::default()
    });
    product.unwrap_or(problem)
}

/// Hands out the workspace in aligned pieces.
#[derive(Default)]
pub(crate) struct Workspace {
    pub bytes: u64,
}

impl Workspace {
    pub(crate) fn take(&mut self, bytes: u64) -> Pointer {
        let at = self.bytes;
        self.bytes += bytes.next_multiple_of(256);
        Pointer::Workspace(at)
    }
}

/// A number as the kernels take it. Plans are made for sizes that fit.
fn int(value: usize) -> i32 {
    value as i32
}

fn ints<const N: usize>(values: [usize; N]) -> [i32; N] {
    values.map(int)
}

/// As [`int`], but `None` if one does not fit.
pub(crate) fn checked_ints<const N: usize>(values: [usize; N]) -> Option<[i32; N]> {
    values.iter().all(|&value| i32::try_from(value).is_ok()).then(|| ints(values))
}

pub(crate) fn divisors<const N: usize>(values: [usize; N]) -> [Divisor; N] {
    values.map(Divisor::new)
}

pub(crate) fn grid_x(count: u64, each: u64) -> [u32; 3] {
    [count.div_ceil(each).max(1) as u32, 1, 1]
}
