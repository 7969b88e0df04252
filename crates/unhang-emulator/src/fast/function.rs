//! A function with everything that the fast path needs.

use super::op::Op;
use super::resolve::resolve;
use super::stretch::{self, Stretch};
use crate::function::Function;

/// A function, resolved.
pub(crate) struct FastFunction {
    pub plain: Function,
    /// Each instruction with its operands resolved.
    pub ops: Vec<Op>,
    /// The stretches of instructions that execute together, and which one starts at each instruction.
    pub stretches: Vec<Stretch>,
    pub starts: Vec<u32>,
}

impl FastFunction {
    /// Resolves a function.
    pub(crate) fn of(plain: Function) -> FastFunction {
        let instructions = plain.instructions.iter().zip(&plain.semantics);
        let flushes = plain.reading.flushes;
        let ops: Vec<Op> =
            instructions.map(|(instruction, semantics)| resolve(instruction, semantics, flushes)).collect();
        let (stretches, starts) = stretch::cut(&plain, &ops);
        FastFunction { plain, ops, stretches, starts }
    }
}
