//! MIOpen's C interface as in its header: the types, and the functions that we call or interpose, looked up by name.
//!
//! The library at MIOpen's boundary and the probe's [`child`] share this one description. It loads nothing: the owner
//! of a library provides the look-up. It must not know what a call is for, nor any framework.

#![deny(unsafe_code)]

pub mod child;
#[allow(unsafe_code, reason = "an address becomes a function")]
mod functions;

use std::ffi::{c_int, c_void};

pub use functions::*;

use unhang_conv::{DataType, Direction};

/// What a call returns.
pub type Status = c_int;
/// A handle, a descriptor, or an address on the device.
pub type Opaque = *mut c_void;

/// `miopenStatusSuccess`.
pub const SUCCESS: Status = 0;
/// `miopenStatusNotInitialized`.
pub const NOT_INITIALIZED: Status = 1;
/// `miopenStatusBadParm`.
pub const BAD_PARAMETER: Status = 3;
/// `miopenStatusAllocFailed`.
pub const ALLOCATION_FAILED: Status = 4;
/// `miopenStatusInternalError`.
pub const INTERNAL_ERROR: Status = 5;
/// `miopenStatusNotImplemented`.
pub const NOT_IMPLEMENTED: Status = 6;
/// `miopenStatusUnsupportedOp`.
pub const UNSUPPORTED_OPERATION: Status = 8;

/// A status in words.
pub const fn meaning(status: Status) -> &'static str {
    match status {
        SUCCESS => "success",
        NOT_INITIALIZED => "not initialized",
        2 => "invalid value",
        BAD_PARAMETER => "bad parameter",
        ALLOCATION_FAILED => "allocation failed",
        INTERNAL_ERROR => "internal error",
        NOT_IMPLEMENTED => "not implemented",
        7 => "unknown error",
        UNSUPPORTED_OPERATION => "unsupported operation",
        _ => "an error of MIOpen's",
    }
}

/// The `miopenDataType_t` of one of our types.
pub const fn code_of(data_type: DataType) -> c_int {
    match data_type {
        DataType::F16 => 0,
        DataType::F32 => 1,
        DataType::Bf16 => 5,
        DataType::F64 => 6,
    }
}

/// Our type for a `miopenDataType_t`.
pub fn data_type_of(code: c_int) -> Option<DataType> {
    [DataType::F16, DataType::F32, DataType::Bf16, DataType::F64].into_iter().find(|&it| code_of(it) == code)
}

/// The algorithm under which our results are filed. "Direct" has the same number in all directions.
pub const ALGORITHM_DIRECT: c_int = 1;
/// MIOpen's naive solvers, forward, backward-data and backward-weights. They need neither a search nor a workspace. So
/// an id that a framework has stored stays valid when the real library computes.
pub const NAIVE_SOLVERS: [u64; 3] = [85, 86, 87];

/// `miopenConvolution` of `miopenConvolutionMode_t`. Torch uses this mode for everything, including groups and
/// transposed convolutions.
pub const MODE_CONVOLUTION: c_int = 0;
/// `miopenTranspose`. The other modes say nothing that the group count does not.
pub const MODE_TRANSPOSE: c_int = 1;

/// `miopenConvAlgoPerf_t`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Performance {
    /// The algorithm's number in its direction.
    pub algorithm: c_int,
    /// The time that MIOpen measured.
    pub milliseconds: f32,
    /// Bytes of workspace.
    pub memory: usize,
}

/// `miopenConvSolution_t`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Solution {
    /// The time that MIOpen estimates or remembers.
    pub milliseconds: f32,
    /// Bytes of workspace.
    pub workspace: usize,
    /// The solver.
    pub id: u64,
    /// The algorithm's number in its direction.
    pub algorithm: c_int,
}

/// The index of a direction in arrays with an entry for each: forward, backward-data, backward-weights.
pub const fn index_of(direction: Direction) -> usize {
    match direction {
        Direction::Forward => 0,
        Direction::BackwardData => 1,
        Direction::BackwardWeights => 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_type_is_told_by_its_code() {
        for data_type in [DataType::F16, DataType::F32, DataType::Bf16, DataType::F64] {
            assert_eq!(data_type_of(code_of(data_type)), Some(data_type));
        }
        assert_eq!(data_type_of(3), None, "whole numbers are not supported");
    }
}
