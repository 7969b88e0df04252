//! What every engine is: the [`Engine`] trait, its operands, verdicts and errors.
//!
//! An engine computes a [`Problem`] on operands in this process's memory. Engines that live in torch (`aten`, `miopen`)
//! or on a GPU also have their own entries; what they all share is the name, the refusal before any work
//! ([`Engine::supports`]) and the verdict afterwards. This crate knows no particular engine, no store and no planner.

#![forbid(unsafe_code)]

mod comparison;
mod operands;
mod reference;
mod tiled;
pub mod tolerance;
mod tuned;
mod verdict;
mod volume;

use std::fmt;
use std::str::FromStr;

use thiserror::Error;
use unhang_conv::{Problem, UnknownName};

pub use comparison::{Comparison, Place};
pub use half::{bf16, f16};
pub use operands::{Elements, ElementsMut, Operands};
pub use reference::Reference;
pub use tiled::{PaddedChannels, Tiled};
pub use tuned::Tuned;
pub use verdict::Verdict;
pub use volume::run_volume;

/// The engines, by the names that plans, evidence and reports use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum EngineName {
    /// Our own GPU kernels, compiled at run time for the chip that is really there.
    Jit,
    /// Torch with AMD's convolution library.
    Miopen,
    /// Torch's own kernels, MIOpen off.
    Aten,
    /// Another engine, in tiles with halo.
    Tiled,
    /// Ours on the CPU.
    Cpu,
}

impl EngineName {
    /// Every engine.
    pub const ALL: [EngineName; 5] =
        [EngineName::Jit, EngineName::Miopen, EngineName::Aten, EngineName::Tiled, EngineName::Cpu];

    /// The name in text.
    pub const fn name(self) -> &'static str {
        match self {
            EngineName::Jit => "jit",
            EngineName::Miopen => "miopen",
            EngineName::Aten => "aten",
            EngineName::Tiled => "tiled",
            EngineName::Cpu => "cpu",
        }
    }
}

impl fmt::Display for EngineName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for EngineName {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, UnknownName> {
        EngineName::ALL.into_iter().find(|engine| engine.name() == text).ok_or_else(|| UnknownName {
            what: "engine",
            found: text.chars().take(80).collect(),
            expected: "jit, miopen, aten, tiled, cpu",
        })
    }
}

/// Something that computes convolutions on operands in this process's memory.
pub trait Engine: Send + Sync {
    /// Which engine this is.
    fn name(&self) -> EngineName;

    /// Whether it takes this problem; if not, why, in words for a person. Cheap: no work is begun.
    fn supports(&self, problem: &Problem) -> Result<(), Unsupported>;

    /// Computes the problem. The result's old contents do not matter.
    fn run(&self, problem: &Problem, operands: Operands<'_>) -> Result<(), EngineError>;
}

/// A problem that an engine does not take.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{engine} does not take this convolution: {reason}")]
pub struct Unsupported {
    /// The engine.
    pub engine: EngineName,
    /// Why not, in words for a person.
    pub reason: String,
}

/// Why a computation did not come to its end.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The engine does not take the problem.
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
    /// An operand is not what the problem says.
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
        /// The workspace that it asked for.
        bytes: usize,
    },
    /// The engine failed for a reason that only it knows.
    #[error("{engine} failed: {message}")]
    Failed {
        /// The engine.
        engine: EngineName,
        /// What was tried and what was found.
        message: String,
    },
}
