//! `vcmpx-permlane-hazard`: a lane permutation right after a comparison that writes EXEC.

use crate::audit::handler::{Detection, Handler, Repair};
use crate::audit::rule::Severity;
use crate::audit::transfer::bits::EXEC_COMPARED;
use crate::audit::transfer::{PendingSet, Transfer};
use crate::opcode::{V_MOV_B32, V_NOP, long};
use crate::{Class, Effects, Instruction, ScalarSet};

pub(super) static HANDLER: Handler = Handler {
    name: "vcmpx-permlane",
    severity: Severity::High,
    explanation: "A lane permutation follows a comparison that writes EXEC with no other vector instruction between; it \
                  can permute with the old lanes. A compiler for this chip puts a `v_mov_b32` between.",
    detection: Detection::Pending { build, broken },
    repair: Repair::Before {
        word: move_to_itself,
        // The move is a vector instruction like any other.
        relieve: |state| {
            state.bits &= !EXEC_COMPARED;
            state.memory_reads = ScalarSet::EMPTY;
        },
    },
};

fn build(instruction: &Instruction, effects: &Effects, transfer: &mut Transfer) {
    if effects.class != Class::Vector {
        return;
    }
    if permutes(instruction) {
        transfer.check.bits |= EXEC_COMPARED;
    }
    if separates(instruction) {
        transfer.keeps_bits &= !EXEC_COMPARED;
    }
    if instruction.is_compare_to_exec() {
        transfer.add.bits |= EXEC_COMPARED;
    }
}

/// Any vector instruction except `v_nop` between the two is enough.
#[inline]
pub(in crate::audit) fn separates(instruction: &Instruction) -> bool {
    !instruction.is(V_NOP) && !instruction.is(long::V_NOP)
}

/// Whether it permutes lanes.
#[inline]
pub(in crate::audit) fn permutes(instruction: &Instruction) -> bool {
    instruction.is(long::V_PERMLANE16_B32) || instruction.is(long::V_PERMLANEX16_B32)
}

/// `v_mov_b32` of the register that the permutation reads, to itself.
fn move_to_itself(instruction: &Instruction) -> u32 {
    let register = instruction.high_bits(0, 8);
    0x7e00_0100 | (V_MOV_B32.number as u32) << 9 | register << 17 | register
}

fn broken(met: PendingSet) -> Option<Option<u8>> {
    (met.bits & EXEC_COMPARED != 0).then_some(None)
}

#[cfg(test)]
mod tests {
    use crate::audit::Rule;
    use crate::audit::rules::testing::check;

    #[test]
    fn a_vector_instruction_between_is_enough_but_v_nop_is_not() {
        // v_cmpx_gt_u32 16, v0; v_permlane16_b32 v1, v2, s3, s4
        let with = |between: &[u32]| [&[0x7da8_0090][..], between, &[0xd777_0001, 0x0010_0702]].concat();
        check(&with(&[]), &[Rule::ComparePermlane]);
        check(&with(&[0x7e00_0000]), &[Rule::ComparePermlane]);
        check(&with(&[0x7e02_0301]), &[]);
    }
}
