//! One convolution to compute, as every algorithm gets it.

use unhang_simd::Kernels;

/// What is computed from what, with which kernels, which the machine must have, and by how many threads.
pub(crate) struct Work<'a> {
    pub(super) kernels: &'static Kernels,
    /// The first operand of the problem's direction: the input, or the output's gradient.
    pub(super) first: &'a [f32],
    /// The second one: the filter, or the output's gradient.
    pub(super) second: &'a [f32],
    /// Goes along the result's channels.
    pub(super) bias: Option<&'a [f32]>,
    pub(super) result: &'a mut [f32],
    pub(super) threads: usize,
}
