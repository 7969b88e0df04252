//! Why an engine does not compute a problem.

use thiserror::Error;

use crate::name::EngineName;

/// An engine does not support a problem.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{engine} does not take this convolution: {reason}")]
pub struct Unsupported {
    /// The engine.
    pub engine: EngineName,
    /// Why not, in words for a person.
    pub reason: String,
}

/// Why a computation did not finish.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The engine does not support the problem.
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
    /// An operand does not match the problem.
    #[error("the {operand} operand has {found}: the problem {problem} needs {expected}")]
    Operand {
        /// "first", "second", "bias" or "result".
        operand: &'static str,
        /// What it has.
        found: String,
        /// What it should have.
        expected: String,
        /// The problem's key.
        problem: String,
    },
    /// There is not enough memory for the workspace.
    #[error("{engine} needs {bytes} bytes of workspace, which are not available")]
    OutOfMemory {
        /// The engine.
        engine: EngineName,
        /// The workspace that it requested.
        bytes: usize,
    },
    /// The engine failed for an internal reason.
    #[error("{engine} failed: {message}")]
    Failed {
        /// The engine.
        engine: EngineName,
        /// What it tried and what it found.
        message: String,
    },
}
