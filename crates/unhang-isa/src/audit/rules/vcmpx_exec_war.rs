//! `vcmpx-exec-war-hazard`: something outside the vector unit reads EXEC, then a vector comparison overwrites it.

use crate::audit::handler::{Detection, Handler, Repair};
use crate::audit::rule::Severity;
use crate::audit::transfer::bits::EXEC_READ;
use crate::audit::transfer::{PendingSet, Transfer};
use crate::opcode::S_WAITCNT_DEPCTR;
use crate::{Class, Effects, Instruction, ScalarSet};

pub(super) static HANDLER: Handler = Handler {
    name: "vcmpx-exec-war",
    severity: Severity::High,
    explanation: "This comparison writes EXEC while an earlier instruction outside the vector unit may still have to \
                  read it, so that instruction can see the wrong lanes. A compiler for this chip puts \
                  `s_waitcnt_depctr 0xfffe` before it.",
    detection: Detection::Pending { build, broken },
    repair: Repair::Before {
        word: |_| S_WAITCNT_DEPCTR.with_immediate(0xfffe),
        relieve: |state| state.bits &= !EXEC_READ,
    },
};

fn build(instruction: &Instruction, effects: &Effects, transfer: &mut Transfer) {
    if effects.class == Class::Vector {
        if effects.mask_writes.meets(ScalarSet::EXEC) {
            transfer.check.bits |= EXEC_READ;
        }
        // Any mask that a vector instruction writes waits for scalar destinations.
        if !effects.mask_writes.is_empty() {
            transfer.keeps_bits &= !EXEC_READ;
        }
    } else if instruction.is(S_WAITCNT_DEPCTR) && instruction.immediate() & 1 == 0 {
        // The field `sa_sdst`.
        transfer.keeps_bits &= !EXEC_READ;
    } else if effects.reads.meets(ScalarSet::EXEC) {
        transfer.add.bits |= EXEC_READ;
    }
}

fn broken(met: PendingSet) -> Option<Option<u8>> {
    (met.bits & EXEC_READ != 0).then_some(None)
}

#[cfg(test)]
mod tests {
    use crate::audit::Rule;
    use crate::audit::rules::testing::check;

    #[test]
    fn a_copy_of_exec_before_a_comparison_wants_a_wait() {
        // s_mov_b32 s4, exec_lo; v_cmpx_gt_u32 16, v0
        check(&[0xbe84_037e, 0x7da8_0090], &[Rule::CompareExec]);
        check(&[0xbe84_037e, 0xbfa3_fffe, 0x7da8_0090], &[]);
        check(&[0x7da8_0090], &[]);
    }
}
