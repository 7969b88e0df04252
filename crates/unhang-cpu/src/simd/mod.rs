//! The room for `unsafe`: the drivers that call the kernels of `unhang-simd`.
//!
//! Everything outside gives this module slices whose lengths are checked at its door ([`compute`]). Inside, drivers
//! compute offsets from the problem's geometry and hand raw pointers to kernels. The tests put operands between pages
//! that cannot be touched, so that one number too many ends the test.

mod cache;
mod channels;
mod depthwise;
mod depthwise_pixels;
mod depthwise_together;
mod edges;
mod filters;
mod finish;
mod gather;
mod gather_work;
mod geometry;
#[cfg(all(test, unix))]
mod guard;
mod in_place;
mod packed_planes;
mod pairwise;
mod plane_gradient;
mod planes;
mod pointwise;
mod rearranged;
mod repeated;
mod source;
mod tiling;
mod weights;
pub(crate) mod winograd;
mod work;
pub(crate) mod workspace;

use unhang_conv::{Layout, Problem};

use crate::algorithm::{Algorithm, Method};
use crate::plain;
use unhang_simd::Isa;
use unhang_simd::Kernels;
use work::Work;

/// Computes an ordinary problem in single precision with the kernels of an instruction set that the machine has.
pub(crate) fn compute(
    problem: &Problem,
    Method { algorithm, isa }: Method,
    first: &[f32],
    second: &[f32],
    bias: Option<&[f32]>,
    result: &mut [f32],
    threads: usize,
) {
    workspace::ask_for_large_pages(result);
    let kernels = Kernels::of(isa_for(problem, algorithm, isa));
    compute_with(problem, algorithm, Work { kernels, first, second, bias, result, threads });
}

/// The instruction set for an algorithm. Vectors are half as wide if a group's results would leave half of each empty,
/// and would not be written in place.
fn isa_for(problem: &Problem, algorithm: Algorithm, isa: Isa) -> Isa {
    let of_group = problem.operand_shapes()[2][1] / problem.groups();
    let fills_half = problem.layout() == Layout::Nhwc && of_group <= Isa::Avx2.lanes();
    match (algorithm, isa) {
        (Algorithm::Direct, Isa::Avx512) if fills_half && Isa::Avx2.is_available() => Isa::Avx2,
        _ => isa,
    }
}

/// Computes it by an algorithm.
fn compute_with(problem: &Problem, algorithm: Algorithm, work: Work<'_>) {
    let gather = || geometry::Gather::new(problem);
    if let (Algorithm::Pointwise | Algorithm::Weights, Some(dense)) = (algorithm, rearranged::without_stride(problem)) {
        let compute = |dense: &Problem, work: Work<'_>| compute_with(dense, algorithm, work);
        return rearranged::compute_without_stride(problem, &dense, work, compute);
    }
    match algorithm {
        Algorithm::Plain => plain::compute(problem, work.first, work.second, work.bias, work.result, work.threads),
        Algorithm::Depthwise => depthwise::compute(problem, work),
        Algorithm::Weights => weights::compute(problem, work),
        Algorithm::PlaneWeights => plane_gradient::compute(problem, work),
        Algorithm::SinglePixels => in_place::single_pixels(problem, work),
        Algorithm::SinglePixelsWeights => in_place::single_pixels_weights(problem, work),
        Algorithm::FewFilters => in_place::few_filters(problem, work),
        Algorithm::FewFiltersWeights => in_place::few_filters_weights(problem, work),
        Algorithm::Pointwise => pointwise::compute(&gather(), work),
        Algorithm::WinogradWeights => winograd::gradient::compute(problem, work),
        Algorithm::WinogradAxisWeights => winograd::axis_gradient::compute(problem, work),
        Algorithm::WinogradAxis => winograd::axis::compute(problem, work),
        Algorithm::WinogradStridedAxis => winograd::strided_axis::compute(problem, work),
        Algorithm::Winograd => winograd::compute(problem, work),
        Algorithm::PointwiseChannels => channels::compute(&gather(), work),
        Algorithm::ByPlanes => rearranged::compute_by_planes(problem, work, |planes, work| {
            compute_with(planes, Algorithm::choose(planes, work.kernels.isa).by_definition(), work);
        }),
        Algorithm::Patches => rearranged::compute_patches(problem, work, |dense, work| {
            compute_with(dense, Algorithm::choose(dense, work.kernels.isa), work);
        }),
        Algorithm::RepeatedChannels => repeated::compute(problem, work, |one_each, work| {
            compute_with(one_each, Algorithm::Depthwise, work);
        }),
        Algorithm::Planes => planes::compute(&gather(), work),
        Algorithm::Direct => gather::compute(&gather(), work),
    }
}
