//! The room for `unsafe`: kernels made of vector instructions, and the drivers that call them.
//!
//! Everything outside gives this module slices whose lengths are checked at its door ([`compute`]); inside, drivers
//! compute offsets from the problem's geometry and hand raw pointers to kernels. The tests put operands between pages
//! that cannot be touched, so that one number too many ends the test.

mod cache;
mod channels;
mod depthwise;
mod edges;
mod filters;
mod gather;
mod geometry;
#[cfg(all(test, unix))]
mod guard;
mod kernels;
mod pointwise;
mod source;
mod tiling;
mod vector;
mod weights;
pub mod winograd;
mod workspace;

use unhang_conv::Problem;

use crate::algorithm::Algorithm;
use crate::isa::Isa;
use crate::plain;
use kernels::Kernels;

/// Computes an ordinary problem in single precision with the kernels of an instruction set that the machine has.
pub fn compute(
    problem: &Problem,
    (algorithm, isa): (Algorithm, Isa),
    first: &[f32],
    second: &[f32],
    bias: Option<&[f32]>,
    result: &mut [f32],
    threads: usize,
) {
    workspace::ask_for_large_pages(result);
    compute_with(problem, algorithm, Kernels::of(isa), first, second, bias, result, threads);
}

/// Computes it by an algorithm with a set of kernels, which the machine must have.
#[expect(clippy::too_many_arguments, reason = "the operands one by one, and how to compute them")]
fn compute_with(
    problem: &Problem,
    algorithm: Algorithm,
    kernels: &'static Kernels,
    first: &[f32],
    second: &[f32],
    bias: Option<&[f32]>,
    result: &mut [f32],
    threads: usize,
) {
    match algorithm {
        Algorithm::Plain => plain::compute(problem, first, second, bias, result, threads),
        Algorithm::Depthwise => depthwise::compute(problem, kernels, first, second, bias, result, threads),
        Algorithm::Weights => weights::compute(problem, kernels, first, second, result, threads),
        Algorithm::Pointwise => {
            pointwise::compute(&geometry::Gather::new(problem), kernels, first, second, bias, result, threads);
        }
        Algorithm::WinogradWeights => winograd::gradient::compute(problem, kernels, first, second, result, threads),
        Algorithm::Winograd => {
            winograd::compute(&geometry::Gather::new(problem), kernels, first, second, bias, result, threads);
        }
        Algorithm::PointwiseChannels => {
            channels::compute(&geometry::Gather::new(problem), kernels, first, second, bias, result, threads);
        }
        Algorithm::Direct => {
            gather::compute(&geometry::Gather::new(problem), kernels, first, second, bias, result, threads);
        }
    }
}
