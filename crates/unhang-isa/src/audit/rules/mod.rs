//! The rules, one file each: the name, what goes wrong and how certain that is. Each also says how an instruction
//! changes what is pending, and what a compiler for the chip does about it.
//!
//! To add one: a file here with its [`Handler`], a variant of [`Rule`], and a line in [`HANDLERS`]. Also two functions
//! in `tests/fixtures/hazards.s`, one that breaks the rule and one that nearly does.

mod buffer_range;
mod flat_segment_offset;
mod illegal_instruction;
mod inst_fwd_prefetch;
pub(super) mod lds_branch_vmem_war;
pub(crate) mod lds_misaligned;
mod negative_unaligned_scratch_offset;
mod nsa_clause;
mod nsa_max_size;
pub(crate) mod nsa_to_vmem;
mod offset_3f;
mod smem_to_vector_write;
mod vcmpx_exec_war;
pub(super) mod vcmpx_permlane;
pub(super) mod vmem_to_scalar_write;

use std::fmt;

use super::handler::{Detection, Handler};
use super::rule::{Rule, Severity};
use super::transfer::PendingSet;

/// All rules, in the order of [`Rule::ALL`].
pub(super) static HANDLERS: [&Handler; Rule::ALL.len()] = [
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
    &nsa_max_size::HANDLER,
    &negative_unaligned_scratch_offset::HANDLER,
    &buffer_range::HANDLER,
    &illegal_instruction::HANDLER,
];

/// A rule's handler.
pub(super) fn handler(rule: Rule) -> &'static Handler {
    HANDLERS[rule as usize]
}

/// What a rule's file says about it.
impl Rule {
    /// The name of the rule, after LLVM's name for the hardware bug if it is one.
    pub fn name(self) -> &'static str {
        handler(self).name
    }

    /// How certain its findings are.
    pub fn severity(self) -> Severity {
        handler(self).severity
    }

    /// What goes wrong, and what a compiler for the chip would have done.
    pub fn explanation(self) -> &'static str {
        handler(self).explanation
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The rules that an instruction breaks by what it met, with the scalar register involved.
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

    /// Panics unless the words, followed by an end, break exactly these rules on gfx1010, in the order of the code.
    pub(super) fn check(words: &[u32], expected: &[Rule]) {
        let bytes: Vec<u8> = words.iter().chain(&[END]).flat_map(|word| word.to_le_bytes()).collect();
        let program = Program::decode(&bytes, Chip::Gfx1030, false).unwrap();
        let context = Context { workgroup_processor_mode: true };
        let found: Vec<Rule> = audit(&program, Chip::Gfx1010, context).iter().map(|finding| finding.rule).collect();
        assert_eq!(found, expected, "{words:x?}");
        assert!(audit(&program, Chip::Gfx1030, context).is_empty(), "the chip that it was compiled for");
    }
}
