//! What is pending at a point of a program, and what one instruction does to it.
//!
//! A state is a set. What an instruction does is a transfer function in the terms of data-flow analysis, in a form that
//! can be computed once for each instruction: what it must not meet, what it lets through, what it adds. The rules build it
//! (`rules/`); the fixpoint, the audit, repair and whoever executes a program only apply it.

use super::Rule;
use super::rules;
use crate::{Chip, Class, Instruction, ScalarSet};

/// What is pending on some path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct PendingSet {
    /// Scalar registers that a vector memory instruction may still have to read: `vmem-to-scalar-write`.
    pub memory_reads: ScalarSet,
    /// Scalar registers that a scalar load may still have to read: `smem-to-vector-write`.
    pub scalar_memory_reads: ScalarSet,
    /// Bits that the other rules own; each names its own.
    pub bits: u8,
}

impl PendingSet {
    pub const NOTHING: PendingSet =
        PendingSet { memory_reads: ScalarSet::EMPTY, scalar_memory_reads: ScalarSet::EMPTY, bits: 0 };

    #[inline]
    pub fn union(self, other: PendingSet) -> PendingSet {
        PendingSet {
            memory_reads: self.memory_reads | other.memory_reads,
            scalar_memory_reads: self.scalar_memory_reads | other.scalar_memory_reads,
            bits: self.bits | other.bits,
        }
    }

    #[inline]
    pub fn intersection(self, other: PendingSet) -> PendingSet {
        PendingSet {
            memory_reads: self.memory_reads & other.memory_reads,
            scalar_memory_reads: self.scalar_memory_reads & other.scalar_memory_reads,
            bits: self.bits & other.bits,
        }
    }

    #[inline]
    pub fn is_empty(self) -> bool {
        self == PendingSet::NOTHING
    }
}

/// What an instruction does to what is pending.
///
/// Computed once for each instruction of a program; then a step of [`PathWatch`](super::PathWatch) is a few operations,
/// and a [`StretchSummary`](super::StretchSummary) makes one step of many instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// What it must not meet.
    pub(super) check: PendingSet,
    /// What it adds.
    pub(super) add: PendingSet,
    /// What it lets through of the bits; and whether it lets the sets through.
    pub(super) keeps_bits: u8,
    pub(super) keeps_memory_reads: bool,
    pub(super) keeps_scalar_memory_reads: bool,
    /// Whether it is a branch.
    pub(super) branches: bool,
    /// The rule that it breaks whatever stands before it.
    pub(super) alone: Option<Rule>,
}

impl Transfer {
    /// It does nothing.
    pub(super) const IDENTITY: Transfer = Transfer {
        check: PendingSet::NOTHING,
        add: PendingSet::NOTHING,
        keeps_bits: u8::MAX,
        keeps_memory_reads: true,
        keeps_scalar_memory_reads: true,
        branches: false,
        alone: None,
    };

    /// `v_nop`: vector arithmetic frees what memory instructions have still to read.
    const NOP: Transfer = Transfer { keeps_memory_reads: false, ..Transfer::IDENTITY };

    /// Any other vector arithmetic that writes no scalar register. Doing it twice is doing it once.
    pub(super) const PLAIN_VECTOR: Transfer =
        Transfer { keeps_bits: !rules::vcmpx_permlane::EXEC_COMPARED, ..Transfer::NOP };

    /// Vector arithmetic that writes no scalar register and permutes no lanes: most of all instructions, so it has a short
    /// way. The tests hold it against what the rules make of it.
    #[inline]
    pub(super) fn is_plain_vector(instruction: &Instruction) -> bool {
        instruction.class() == Class::Vector
            && !instruction.definition.writes_scalar
            && !rules::vcmpx_permlane::permutes(instruction)
    }

    /// What an instruction does.
    #[inline]
    pub fn new(instruction: &Instruction, wave64: bool) -> Transfer {
        if Transfer::is_plain_vector(instruction) {
            return if rules::vcmpx_permlane::separates(instruction) { Transfer::PLAIN_VECTOR } else { Transfer::NOP };
        }
        let mut transfer = Transfer::IDENTITY;
        let effects = instruction.effects(wave64);
        transfer.branches = instruction.is_branch();
        rules::build(instruction, &effects, &mut transfer);
        transfer
    }

    /// What an instruction does in code that was compiled for a chip.
    ///
    /// Compilers before LLVM 21 did not count flat accesses as vector memory, and cards run what those for RDNA1 wrote. So flat
    /// accesses count in code for other chips alone.
    #[inline]
    pub fn compiled_for(chip: Chip, instruction: &Instruction, wave64: bool) -> Transfer {
        let mut transfer = Transfer::new(instruction, wave64);
        if chip.is_rdna1() && instruction.class() == Class::Flat {
            rules::lds_branch_vmem_war::forget_flat(&mut transfer);
        }
        transfer
    }

    /// The state behind it.
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
            after.bits |= rules::lds_branch_vmem_war::armed(kept);
        }
        after
    }

    /// This, and then another. A branch ends a block, so only the last can be one.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode;

    #[test]
    fn the_short_way_of_vector_arithmetic_is_what_the_rules_say() {
        // v_nop, v_add_nc_u32, v_mul_lo_u32, v_cndmask_b32 in both lengths, v_fma_mix_f32.
        let words: [[u32; 2]; 6] = [
            [0x7e00_0000, 0],
            [0x4a04_0481, 0],
            [0xd569_0001, 0x0002_0702],
            [0x0204_0702, 0],
            [0xd501_0002, 0x001a_0702],
            [0xcc20_0003, 0x1c0e_0501],
        ];
        for words in words {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            let instruction = decode(&bytes, Chip::Gfx1010).unwrap();
            assert!(Transfer::is_plain_vector(&instruction), "{words:x?}");
            let mut long = Transfer::IDENTITY;
            rules::build(&instruction, &instruction.effects(false), &mut long);
            assert_eq!(Transfer::new(&instruction, false), long, "{words:x?}");
        }
    }
}
