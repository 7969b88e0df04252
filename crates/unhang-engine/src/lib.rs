//! What all engines share: the [`Engine`] trait, its operands, verdicts and errors.
//!
//! An engine computes a [`Problem`] on operands in this process's memory. Engines inside torch (`aten`, `miopen`) or on
//! a GPU also have other entry points. All share the name, the refusal before any work ([`Engine::supports`]) and the
//! verdict afterwards. This crate knows no particular engine, no store and no planner.

#![forbid(unsafe_code)]

mod comparison;
mod error;
mod name;
mod operands;
mod reference;
mod tiled;
pub mod tolerance;
mod tuned;
mod verdict;
mod volume;

use unhang_conv::Problem;

pub use comparison::{Comparison, ElementPosition};
pub use error::{EngineError, Unsupported};
pub use half::{bf16, f16};
pub use name::EngineName;
pub use operands::{Elements, ElementsMut, Operands};
pub use reference::Reference;
pub use tiled::Tiled;
pub use tuned::{Tuned, TunedProblem};
pub use verdict::Verdict;
pub use volume::run_volume;

/// Something that computes convolutions on operands in this process's memory.
pub trait Engine: Send + Sync {
    /// Which engine this is.
    fn name(&self) -> EngineName;

    /// Whether the engine supports this problem; if not, why, in words for a person. Cheap: it starts no work.
    fn supports(&self, problem: &Problem) -> Result<(), Unsupported>;

    /// Computes the problem. Overwrites the result.
    fn run(&self, problem: &Problem, operands: Operands<'_>) -> Result<(), EngineError>;
}
