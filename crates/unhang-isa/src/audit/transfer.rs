//! What is pending at a point of a program, and how one instruction changes it.
//!
//! A state is a set. An instruction is a transfer function, in the terms of data-flow analysis, in a form that is
//! computed once per instruction: what it must not meet, what it lets through, what it adds. The rules build it
//! (`rules/`); the fixpoint, the audit, repair and the execution of a program only apply it.

use super::rule::Rule;
use crate::ScalarSet;

/// What can be pending apart from registers, one bit each.
pub(super) mod bits {
    /// An instruction outside the vector unit has read EXEC: `vcmpx-exec-war`.
    pub(in crate::audit) const EXEC_READ: u8 = 1;
    /// A comparison has written EXEC, and no vector instruction has followed: `vcmpx-permlane`.
    pub(in crate::audit) const EXEC_COMPARED: u8 = 1 << 1;
    /// A local access without a memory access or a wait after it. This and the next three: `lds-branch-vmem-war`.
    pub(in crate::audit) const LOCAL_PENDING: u8 = 1 << 2;
    /// A memory access without a local access or a wait after it.
    pub(in crate::audit) const MEMORY_PENDING: u8 = 1 << 3;
    /// A local access, then a branch, and nothing of either kind since.
    pub(in crate::audit) const LOCAL_ARMED: u8 = LOCAL_PENDING << 2;
    /// A memory access, then a branch, and nothing of either kind since.
    pub(in crate::audit) const MEMORY_ARMED: u8 = MEMORY_PENDING << 2;

    /// The effect of a branch on what is pending.
    #[inline]
    pub(super) fn behind_a_branch(bits: u8) -> u8 {
        (bits & (LOCAL_PENDING | MEMORY_PENDING)) << 2
    }
}

/// What is pending on some path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct PendingSet {
    /// Scalar registers that a vector memory instruction may not have read yet: `vmem-to-scalar-write`.
    pub memory_reads: ScalarSet,
    /// Scalar registers that a scalar load may not have read yet: `smem-to-vector-write`.
    pub scalar_memory_reads: ScalarSet,
    /// [`bits`]
    pub bits: u8,
}

impl PendingSet {
    pub(super) const NOTHING: PendingSet =
        PendingSet { memory_reads: ScalarSet::EMPTY, scalar_memory_reads: ScalarSet::EMPTY, bits: 0 };

    #[inline]
    pub(super) fn union(self, other: PendingSet) -> PendingSet {
        PendingSet {
            memory_reads: self.memory_reads | other.memory_reads,
            scalar_memory_reads: self.scalar_memory_reads | other.scalar_memory_reads,
            bits: self.bits | other.bits,
        }
    }

    #[inline]
    pub(super) fn intersection(self, other: PendingSet) -> PendingSet {
        PendingSet {
            memory_reads: self.memory_reads & other.memory_reads,
            scalar_memory_reads: self.scalar_memory_reads & other.scalar_memory_reads,
            bits: self.bits & other.bits,
        }
    }

    #[inline]
    pub(super) fn is_empty(self) -> bool {
        self == PendingSet::NOTHING
    }
}

/// An instruction's effect on what is pending.
///
/// It is computed once for each instruction of a program. A step of [`PathWatch`](super::PathWatch) then takes a few
/// operations, and a [`StretchSummary`](super::StretchSummary) turns many instructions into one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// What it must not meet.
    pub(super) check: PendingSet,
    /// What it adds.
    pub(super) add: PendingSet,
    /// Which bits it lets through, and whether it lets the sets through.
    pub(super) keeps_bits: u8,
    pub(super) keeps_memory_reads: bool,
    pub(super) keeps_scalar_memory_reads: bool,
    /// Whether it is a branch.
    pub(super) branches: bool,
    /// The rule that it breaks whatever precedes it.
    pub(super) alone: Option<Rule>,
}

impl Transfer {
    /// No effect.
    pub(super) const IDENTITY: Transfer = Transfer {
        check: PendingSet::NOTHING,
        add: PendingSet::NOTHING,
        keeps_bits: u8::MAX,
        keeps_memory_reads: true,
        keeps_scalar_memory_reads: true,
        branches: false,
        alone: None,
    };

    /// `v_nop`: vector arithmetic frees the registers that memory instructions may not have read yet.
    pub(super) const NOP: Transfer = Transfer { keeps_memory_reads: false, ..Transfer::IDENTITY };

    /// Any other vector arithmetic that writes no scalar register. Repeating it has no further effect.
    pub(super) const PLAIN_VECTOR: Transfer = Transfer { keeps_bits: !bits::EXEC_COMPARED, ..Transfer::NOP };

    /// The state after it.
    #[inline]
    pub(super) fn apply(&self, state: PendingSet) -> PendingSet {
        let mut after = self.add;
        if self.keeps_memory_reads {
            after.memory_reads |= state.memory_reads;
        }
        if self.keeps_scalar_memory_reads {
            after.scalar_memory_reads |= state.scalar_memory_reads;
        }
        let kept = state.bits & self.keeps_bits;
        after.bits |= kept;
        if self.branches {
            after.bits |= bits::behind_a_branch(kept);
        }
        after
    }

    /// The effect of this followed by another. A branch ends a block, so only the last can be one.
    #[inline]
    pub(super) fn then(&self, next: &Transfer) -> Transfer {
        Transfer {
            check: PendingSet::NOTHING,
            add: next.apply(self.add),
            keeps_bits: self.keeps_bits & next.keeps_bits,
            keeps_memory_reads: self.keeps_memory_reads && next.keeps_memory_reads,
            keeps_scalar_memory_reads: self.keeps_scalar_memory_reads && next.keeps_scalar_memory_reads,
            branches: next.branches,
            alone: None,
        }
    }
}
