//! `smem-to-vector-write-hazard`, "s_load_dword followed by v_cmp page faults": a scalar load reads its address from a
//! scalar register, then a vector instruction overwrites the register.

use crate::audit::handler::{Detection, Handler, Repair};
use crate::audit::rule::Severity;
use crate::audit::transfer::{PendingSet, Transfer};
use crate::opcode::{
    S_MOV_B32, S_VERSION, S_WAITCNT, S_WAITCNT_EXPCNT, S_WAITCNT_LGKMCNT, S_WAITCNT_VMCNT, S_WAITCNT_VSCNT,
};
use crate::registers::number;
use crate::table::{Field, OperandKind};
use crate::{Class, Effects, Format, Instruction, ScalarSet};

pub(super) static HANDLER: Handler = Handler {
    name: "smem-to-vector-write",
    severity: Severity::High,
    explanation: "This vector instruction overwrites a scalar register that an earlier scalar load reads as its \
                  address; the load can go to a wrong address and fault. A compiler for this chip puts \
                  `s_mov_b32 null, 0` before it.",
    detection: Detection::Pending { build, broken },
    repair: Repair::Before {
        word: |_| S_MOV_B32_NULL_0,
        relieve: |state| state.scalar_memory_reads = ScalarSet::EMPTY,
    },
};

/// `s_mov_b32 null, 0`
const S_MOV_B32_NULL_0: u32 = 0xbe80_0080 | (number::NULL as u32) << 16 | (S_MOV_B32.number as u32) << 8;

fn build(instruction: &Instruction, effects: &Effects, transfer: &mut Transfer) {
    match effects.class {
        Class::Vector => transfer.check.scalar_memory_reads = destination(instruction, effects),
        Class::Scalar if waits(instruction) => transfer.keeps_scalar_memory_reads = false,
        Class::ScalarMemory => transfer.add.scalar_memory_reads = effects.reads,
        _ => {}
    }
}

/// The scalar registers that a vector instruction writes: its mask, or the destination when it reads one lane.
fn destination(instruction: &Instruction, effects: &Effects) -> ScalarSet {
    if effects.mask_writes.is_empty()
        && instruction.definition.operand(Field::Destination).is_some_and(|slot| slot.kind == OperandKind::Scalar)
    {
        return effects.writes;
    }
    effects.mask_writes
}

/// Whether a scalar instruction waits for scalar loads: every instruction that computes does, and those waits that are
/// for them.
fn waits(instruction: &Instruction) -> bool {
    // Only with lgkmcnt(0).
    if instruction.is(S_WAITCNT) {
        return instruction.immediate() & 0x3f00 == 0;
    }
    if instruction.is(S_WAITCNT_LGKMCNT) {
        return instruction.immediate() == 0 && instruction.bits(16, 7) == number::NULL as u32;
    }
    let others = [S_VERSION, S_WAITCNT_VSCNT, S_WAITCNT_VMCNT, S_WAITCNT_EXPCNT];
    instruction.format() != Format::Sopp && !instruction.is_any(&others)
}

fn broken(met: PendingSet) -> Option<Option<u8>> {
    met.scalar_memory_reads.first().map(Some)
}

#[cfg(test)]
mod tests {
    use super::S_MOV_B32_NULL_0;
    use crate::audit::Rule;
    use crate::audit::rules::testing::check;

    #[test]
    fn any_scalar_arithmetic_between_is_enough() {
        // s_load_dwordx2 s[10:11], s[4:5], 0x8; v_cmp_ne_u32 s4, 7, v0
        let (load, compare) = ([0xf404_0282, 0xfa00_0008], [0xd4c5_0004, 0x0002_0087]);
        let with = |between: &[u32]| [&load[..], between, &compare].concat();
        check(&with(&[]), &[Rule::ScalarMemoryToVectorWrite]);
        check(&with(&[S_MOV_B32_NULL_0]), &[]);
        // s_waitcnt vmcnt(0) waits for other loads; s_waitcnt lgkmcnt(0) waits for this one.
        check(&with(&[0xbf8c_3f70]), &[Rule::ScalarMemoryToVectorWrite]);
        check(&with(&[0xbf8c_c07f]), &[]);
    }
}
