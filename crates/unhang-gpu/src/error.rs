//! What can go wrong.

use thiserror::Error;
use unhang_engine::Unsupported;

use crate::compiler::CompileError;
use crate::driver::DriverError;
use crate::object::ObjectError;
use crate::plan::PlanError;

/// Why the GPU engine did not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum GpuError {
    /// It does not support the problem.
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
    /// A choice does not fit the problem.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A kernel did not compile.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// A compiled object is refused.
    #[error(transparent)]
    Object(#[from] ObjectError),
    /// The driver failed.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// A pointer is not aligned as the kernels need it.
    #[error(
        "the {operand} pointer {address:#x} is not a multiple of {alignment} bytes, which {choice} needs; copy the tensor, or use `plain`"
    )]
    Misaligned {
        /// Which.
        operand: &'static str,
        /// Where it points.
        address: u64,
        /// What it should be a multiple of.
        alignment: u64,
        /// The choice.
        choice: String,
    },
    /// No kernel family that computes the problem may run here.
    #[error("no kernel family that computes {problem} has passed its canary here: {families} would")]
    NoneAllowed {
        /// The problem's key.
        problem: String,
        /// The families that compute it.
        families: String,
    },
    /// The stream records a graph and the problem was not prepared before.
    #[error("the stream is recording a graph, in which nothing can be compiled or loaded: run the problem once before")]
    Capturing,
    /// The limit of loaded kernels is reached, and modules are never unloaded.
    #[error("{most} GPU kernels are loaded in this process and no more are: {choice} for {problem} is not compiled")]
    NoRoom {
        /// The most that may be loaded.
        most: usize,
        /// The choice whose kernels were asked for.
        choice: String,
        /// The problem's key.
        problem: String,
    },
}

impl GpuError {
    /// Whether nothing was begun: another engine may compute the problem, and this one is not blamed.
    pub fn is_refusal(&self) -> bool {
        match self {
            GpuError::Unsupported(_)
            | GpuError::Plan(_)
            | GpuError::NoneAllowed { .. }
            | GpuError::Capturing
            | GpuError::NoRoom { .. } => true,
            GpuError::Compile(_) | GpuError::Object(_) | GpuError::Driver(_) | GpuError::Misaligned { .. } => false,
        }
    }
}
