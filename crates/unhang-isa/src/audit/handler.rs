//! What the file of a rule holds.

use super::rule::{Context, Severity};
use super::transfer::{PendingSet, Transfer};
use crate::{Chip, Effects, Instruction, Program};

/// A rule with everything that belongs to it.
pub(super) struct Handler {
    /// The name of the rule, after LLVM's name for the hardware bug.
    pub name: &'static str,
    /// How sure a finding of it is.
    pub severity: Severity,
    /// What goes wrong, and what a compiler for the chip would have done.
    pub explanation: &'static str,
    /// How an instruction is recognised that breaks it.
    pub detection: Detection,
    /// What repair does about it.
    pub repair: Repair,
}

/// How a rule finds what breaks it.
pub(super) enum Detection {
    /// By what is pending when an instruction is reached.
    Pending {
        /// Adds to an instruction's transfer function what the rule makes of it.
        build: fn(&Instruction, &Effects, &mut Transfer),
        /// Whether what an instruction met is this rule's, and the scalar register at stake.
        broken: fn(PendingSet) -> Option<Option<u8>>,
    },
    /// By the instruction alone.
    Alone(fn(&Instruction) -> bool),
    /// By a separate look at the whole program; calls back with each instruction that breaks it.
    Program(fn(&Program, Chip, Context, &mut dyn FnMut(u32))),
}

/// What repair does about a rule where it lays code out anew.
#[derive(Clone, Copy)]
pub(crate) enum Repair {
    /// A word before the instruction, and what is no longer pending behind it.
    Before {
        /// The word.
        word: fn(&Instruction) -> u32,
        /// Takes away what it relieves.
        relieve: fn(&mut PendingSet),
    },
    /// Another form of the instruction, a change of branches or of the kernel's mode: `repair` knows how.
    Elsewhere,
    /// Nothing: it is found only.
    Nothing,
}
