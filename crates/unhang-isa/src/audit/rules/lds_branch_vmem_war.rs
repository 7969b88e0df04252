//! `lds-branch-vmem-war-hazard`: an access to LDS, a branch, an access to vector memory, or the other way round.
//!
//! LLVM looks for it only in functions that have both kinds; an instruction that meets the other kind is in one.

use super::{Detection, Handler, Repair};
use crate::audit::Severity;
use crate::audit::transfer::{PendingSet, Transfer};
use crate::opcode::S_WAITCNT_VSCNT;
use crate::registers::number;
use crate::{Class, Effects, Instruction};

pub(super) static HANDLER: Handler = Handler {
    name: "lds-branch-vmem-war",
    severity: Severity::High,
    explanation: "An access to the local data share and one to vector memory stand on two sides of a branch; this chip \
                  can let the second overtake the first. A compiler for it puts `s_waitcnt_vscnt null, 0` before it.",
    detection: Detection::Pending { build, broken },
    repair: Repair::Before { word: |_| S_WAITCNT_VSCNT_NULL_0, relieve: |state| state.bits &= !ALL },
};

/// `s_waitcnt_vscnt null, 0`
const S_WAITCNT_VSCNT_NULL_0: u32 = 0xb000_0000 | (S_WAITCNT_VSCNT.number as u32) << 23 | (number::NULL as u32) << 16;

/// A local access with neither a memory access nor a wait behind it.
const LOCAL_PENDING: u8 = 4;
/// A memory access with neither a local access nor a wait behind it.
const MEMORY_PENDING: u8 = 8;
/// A local access, then a branch, and nothing of either kind since.
const LOCAL_ARMED: u8 = 16;
/// A memory access, then a branch, and nothing of either kind since.
const MEMORY_ARMED: u8 = 32;
const ARMED: u8 = LOCAL_ARMED | MEMORY_ARMED;
const ALL: u8 = LOCAL_PENDING | MEMORY_PENDING | ARMED;

/// What a branch makes of what is pending.
#[inline]
pub(in crate::audit) fn armed(bits: u8) -> u8 {
    (bits & (LOCAL_PENDING | MEMORY_PENDING)) << 2
}

fn build(instruction: &Instruction, effects: &Effects, transfer: &mut Transfer) {
    match effects.class {
        Class::VectorMemory | Class::Segment => {
            transfer.check.bits |= LOCAL_ARMED;
            transfer.keeps_bits &= !(LOCAL_PENDING | ARMED);
            transfer.add.bits |= MEMORY_PENDING;
        }
        Class::Local => {
            transfer.check.bits |= MEMORY_ARMED;
            transfer.keeps_bits &= !(MEMORY_PENDING | ARMED);
            transfer.add.bits |= LOCAL_PENDING;
        }
        Class::Scalar if instruction.first_word() == S_WAITCNT_VSCNT_NULL_0 => transfer.keeps_bits &= !ALL,
        _ => {}
    }
}

fn broken(met: PendingSet) -> Option<Option<u8>> {
    (met.bits & ARMED != 0).then_some(None)
}

#[cfg(test)]
mod tests {
    use super::S_WAITCNT_VSCNT_NULL_0;
    use crate::audit::Rule;
    use crate::audit::rules::testing::check;

    #[test]
    fn both_ways_round_and_only_over_a_branch() {
        // ds_read_b32 v8, v3; global_load_dword v6, v1, s[4:5]; s_cbranch_execz to the next instruction
        let (local, memory, branch) = ([0xd8d8_0000, 0x0800_0003], [0xdc30_8000, 0x0604_0001], 0xbf88_0000);
        for (first, second) in [(local, memory), (memory, local)] {
            let with = |between: &[u32]| [&first[..], between, &second[..]].concat();
            check(&with(&[branch]), &[Rule::LocalBranchMemory]);
            check(&with(&[]), &[]);
            check(&with(&[branch, S_WAITCNT_VSCNT_NULL_0]), &[]);
        }
        check(&[&local[..], &[branch], &local[..]].concat(), &[]);
    }
}
