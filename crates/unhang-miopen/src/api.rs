//! The types of MIOpen's C interface, as its header lays them out.

use std::ffi::c_void;

/// What a call returns.
pub(crate) type Status = i32;
/// A handle, a descriptor, or an address on the device.
pub(crate) type Opaque = *mut c_void;

pub(crate) const SUCCESS: Status = 0;
pub(crate) const NOT_INITIALIZED: Status = 1;
pub(crate) const BAD_PARAMETER: Status = 3;
pub(crate) const ALLOCATION_FAILED: Status = 4;
pub(crate) const INTERNAL_ERROR: Status = 5;
pub(crate) const NOT_IMPLEMENTED: Status = 6;
pub(crate) const UNSUPPORTED_OPERATION: Status = 8;

/// The algorithm that our results are filed under: "direct" has the same number in all directions.
pub(crate) const ALGORITHM_DIRECT: i32 = 1;
/// MIOpen's naive solvers, forward, backward-data and backward-weights. They need neither a search nor a workspace, so that
/// an id of these that a framework has stored stays valid where the real library computes.
pub(crate) const NAIVE_SOLVERS: [u64; 3] = [85, 86, 87];

/// `miopenTranspose` of `miopenConvolutionMode_t`; the other modes differ in nothing that the group count does not say.
pub(crate) const MODE_TRANSPOSE: i32 = 1;

/// `miopenConvAlgoPerf_t`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Performance {
    pub(crate) algorithm: i32,
    pub(crate) milliseconds: f32,
    pub(crate) memory: usize,
}

/// `miopenConvSolution_t`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Solution {
    pub(crate) milliseconds: f32,
    pub(crate) workspace: usize,
    pub(crate) id: u64,
    pub(crate) algorithm: i32,
}
