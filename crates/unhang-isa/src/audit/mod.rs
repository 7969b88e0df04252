//! Finds what in a program is unsafe on a chip.
//!
//! The rules are those by which LLVM's hazard recogniser inserts work-arounds when it compiles for RDNA1
//! (`GCNHazardRecognizer.cpp`, `AMDGPUAsmBackend.cpp`, and the feature lists in `AMDGPU.td`). Code that was compiled
//! for another chip has none of the work-arounds: each place where LLVM would have inserted one is a finding.
//!
//! LLVM looks backwards from each instruction along all paths. Here the question is asked forwards, once: a state that
//! says what is pending flows through the control-flow graph, and paths that meet are united. An instruction that meets
//! a pending state is a finding. The findings are the same; the time is linear.
//!
//! Each rule is one file in `rules/`. It contributes a part of each instruction's transfer function (`transfer.rs`),
//! which says how the instruction changes what is pending. One fixpoint (`flow.rs`) serves the audit, repair and the
//! execution of a program.

mod finding;
mod flow;
mod handler;
mod instruction;
mod rule;
mod rules;
mod transfer;

pub use finding::{Finding, Hazards};
pub(crate) use flow::{Calls, work_around, work_arounds};
pub use flow::{PathWatch, StretchSummary};
pub use rule::{Context, Rule, Severity};
pub use rules::lds_misaligned::wide_local_access;
pub(crate) use rules::lds_misaligned::{has_wide_accesses as has_wide_local_accesses, may_begin_misaligned};
pub(crate) use rules::nsa_to_vmem::{address_words as image_address_words, places as places_behind_images};
pub use transfer::Transfer;

use crate::{Chip, Program};

/// Finds everything in `program` that is unsafe on `chip`.
///
/// Findings are in the order of the code. A program compiled for the chip itself has none.
pub fn audit(program: &Program, chip: Chip, context: Context) -> Vec<Finding> {
    flow::audit(program, chip, context, Calls::Apart)
}

/// Finds what in `program` is unsafe on `chip` only if a function that it calls, or one that calls it, left something
/// pending. LLVM does not look across calls, so code compiled for the chip itself may have such places. None is
/// certain.
pub fn audit_across_calls(program: &Program, chip: Chip, context: Context, is_called: bool) -> Vec<Finding> {
    if program.calls == 0 && !is_called {
        return Vec::new();
    }
    let apart = audit(program, chip, context);
    let known = |finding: &Finding| apart.iter().any(|it| (it.index, it.rule) == (finding.index, finding.rule));
    let mut findings = flow::audit(program, chip, context, Calls::Together { is_called });
    findings.retain(|finding| !known(finding));
    findings
}
