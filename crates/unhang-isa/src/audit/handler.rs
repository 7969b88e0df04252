//! The contents of a rule's file.

use super::rule::{Context, Severity};
use super::transfer::{PendingSet, Transfer};
use crate::{Chip, Effects, Instruction, Program};

/// A rule with everything that belongs to it.
pub(super) struct Handler {
    /// The name of the rule, after LLVM's name for the hardware bug.
    pub name: &'static str,
    /// How certain its findings are.
    pub severity: Severity,
    /// What goes wrong, and what a compiler for the chip would have done.
    pub explanation: &'static str,
    /// How to recognise an instruction that breaks it.
    pub detection: Detection,
    /// What repair does about it.
    pub repair: Repair,
}

/// How a rule finds violations.
pub(super) enum Detection {
    /// By what is pending when the program reaches an instruction.
    Pending {
        /// Adds the rule's part to an instruction's transfer function.
        build: fn(&Instruction, &Effects, &mut Transfer),
        /// Whether what an instruction met breaks this rule, and the scalar register involved.
        broken: fn(PendingSet) -> Option<Option<u8>>,
    },
    /// By the instruction alone.
    Alone(fn(&Instruction) -> bool),
    /// By examining the whole program separately; calls back with each instruction that breaks it.
    Program(fn(&Program, Chip, Context, &mut dyn FnMut(u32))),
}

/// What repair does about a rule in a new layout.
#[derive(Clone, Copy)]
pub(crate) enum Repair {
    /// Inserts a word before the instruction, which clears something pending.
    Before {
        /// The word.
        word: fn(&Instruction) -> u32,
        /// Removes what the word clears from what is pending.
        relieve: fn(&mut PendingSet),
    },
    /// Another form of the instruction, or a change to branches or to the kernel's mode; `repair` knows how.
    Elsewhere,
    /// Nothing: it is only reported.
    Nothing,
}
