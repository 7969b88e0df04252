//! Plans: which kernels run in which order, over which grids, with which numbers. `planning.rs` makes them.
//!
//! Plans are pure values: they can be compiled without a GPU, executed by any [`crate::driver::Driver`], and compared in
//! tests. Pointers are named and filled in at launch.

use thiserror::Error;

use crate::shapes::Shape;
use crate::sources::Kernel;

/// A pointer argument of a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pointer {
    /// The problem's first operand.
    First,
    /// The problem's second operand.
    Second,
    /// The bias, or nothing.
    Bias,
    /// Where the result goes.
    Result,
    /// The workspace, at that byte offset.
    Workspace(u64),
    /// Nothing.
    Null,
}

/// One launch.
#[derive(Debug, Clone, PartialEq)]
pub struct Stage {
    /// What runs.
    pub kernel: Kernel,
    /// Workgroups in x, y, z.
    pub grid: [u32; 3],
    /// Threads in a workgroup.
    pub block: u32,
    /// The pointers, in the kernel's order.
    pub pointers: Vec<Pointer>,
    /// The structure that is passed by value behind the pointers.
    pub shape: Shape,
}

/// What kernels are compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub enum Form {
    /// One problem's channels and window, as constants.
    #[default]
    Specialised,
    /// Every problem of a kind: channels and window come with the launch. A package carries these.
    General,
}

/// Everything that computes one problem.
#[derive(Debug, Clone, PartialEq)]
pub struct LaunchPlan {
    /// The launches, in order, on one stream.
    pub stages: Vec<Stage>,
    /// Bytes that the caller must provide, aligned to 256.
    pub workspace_bytes: u64,
}

/// Why a choice does not compute a problem.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{choice} does not compute {problem}: {reason}")]
pub struct PlanError {
    /// The choice.
    pub choice: String,
    /// The problem's key.
    pub problem: String,
    /// Why not.
    pub reason: String,
}

/// The largest tensor, in bytes, for kernels with 32-bit offsets. Half of the range, so that sums of two offsets fit.
pub const MAX_TENSOR_BYTES: u64 = 1 << 31;
/// The largest single size that any kernel takes; sums and small products of two stay far inside an `int`.
pub const MAX_EXTENT: usize = 1 << 24;
pub(crate) const MAX_PHASES: usize = 16;
pub(crate) const MAX_GRID_YZ: u64 = 65535;
