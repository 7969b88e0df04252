//! A function with what the fast path needs of it.

use super::op::Op;
use super::resolve::resolve;
use super::stretch::{self, Stretch};
use crate::function::Function;

/// A function, resolved.
pub(crate) struct FastFunction {
    pub plain: Function,
    /// What each instruction does, with its operands resolved.
    pub ops: Vec<Op>,
    /// What is executed together, and which of these starts at each instruction.
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
