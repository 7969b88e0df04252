//! The rules, one file each: what it is called, what goes wrong, how sure that is, what an instruction does to what is
//! pending, and what a compiler for the chip does about it.
//!
//! To add one: a file here with its [`Handler`], a variant of [`Rule`], a line in [`HANDLERS`]; and two functions in
//! `tests/fixtures/hazards.s`, one that breaks it and one that nearly does.

mod buffer_range;
mod flat_segment_offset;
mod illegal_instruction;
mod inst_fwd_prefetch;
pub(super) mod lds_branch_vmem_war;
pub(crate) mod lds_misaligned;
mod negative_unaligned_scratch_offset;
mod nsa_clause;
mod nsa_to_vmem;
mod offset_3f;
mod smem_to_vector_write;
mod vcmpx_exec_war;
pub(super) mod vcmpx_permlane;
mod vmem_to_scalar_write;

use super::transfer::{PendingSet, Transfer};
use super::{Context, Rule, Severity};
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

/// All rules, in the order of [`Rule::ALL`].
static HANDLERS: [&Handler; Rule::ALL.len()] = [
    &inst_fwd_prefetch::HANDLER,
    &vcmpx_exec_war::HANDLER,
    &lds_branch_vmem_war::HANDLER,
    &vmem_to_scalar_write::HANDLER,
    &smem_to_vector_write::HANDLER,
    &offset_3f::HANDLER,
    &flat_segment_offset::HANDLER,
    &lds_misaligned::HANDLER,
    &vcmpx_permlane::HANDLER,
    &nsa_to_vmem::HANDLER,
    &nsa_clause::HANDLER,
    &negative_unaligned_scratch_offset::HANDLER,
    &buffer_range::HANDLER,
    &illegal_instruction::HANDLER,
];

/// A rule's handler.
pub(super) fn handler(rule: Rule) -> &'static Handler {
    HANDLERS[rule as usize]
}

/// What every rule makes of an instruction.
pub(super) fn build(instruction: &Instruction, effects: &Effects, transfer: &mut Transfer) {
    for (handler, rule) in HANDLERS.iter().zip(Rule::ALL) {
        match handler.detection {
            Detection::Pending { build, .. } => build(instruction, effects, transfer),
            // No instruction breaks two of these.
            Detection::Alone(breaks) if breaks(instruction) => transfer.alone = Some(rule),
            _ => {}
        }
    }
}

/// What an instruction met that it must not, by rule, with the scalar register at stake.
pub(super) fn broken(met: PendingSet) -> impl Iterator<Item = (Rule, Option<u8>)> {
    Rule::ALL.into_iter().filter_map(move |rule| match handler(rule).detection {
        Detection::Pending { broken, .. } => Some((rule, broken(met)?)),
        _ => None,
    })
}

#[cfg(test)]
mod testing {
    use super::Rule;
    use crate::audit::{Context, audit};
    use crate::{Chip, Program};

    /// `s_endpgm`
    const END: u32 = 0xbf81_0000;

    /// Panics unless the words, with an end behind them, break exactly these rules on gfx1010, in the order of the code.
    pub fn check(words: &[u32], expected: &[Rule]) {
        let bytes: Vec<u8> = words.iter().chain(&[END]).flat_map(|word| word.to_le_bytes()).collect();
        let program = Program::decode(&bytes, Chip::Gfx1030, false).unwrap();
        let context = Context { workgroup_processor_mode: true };
        let found: Vec<Rule> = audit(&program, Chip::Gfx1010, context).iter().map(|finding| finding.rule).collect();
        assert_eq!(found, expected, "{words:x?}");
        assert!(audit(&program, Chip::Gfx1030, context).is_empty(), "the chip that it was compiled for");
    }
}
