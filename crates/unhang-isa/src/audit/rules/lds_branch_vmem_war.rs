//! `lds-branch-vmem-war-hazard`: an access to LDS, a branch, and an access to vector memory, or the other way round.
//!
//! LLVM looks for it only in functions that have both kinds; an instruction that meets the other kind is in such a
//! function. Since LLVM 22 (llvm-project pull requests 137148 and 137170, 2025) flat accesses count as vector memory,
//! and buffer loads to LDS as local. Neither is ever reported in code for RDNA1 itself, because older compilers did not
//! know them ([`Transfer::compiled_for`]).

use crate::audit::handler::{Detection, Handler, Repair};
use crate::audit::rule::Severity;
use crate::audit::transfer::bits::{LOCAL_ARMED, LOCAL_PENDING, MEMORY_ARMED, MEMORY_PENDING};
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

const ARMED: u8 = LOCAL_ARMED | MEMORY_ARMED;
const ALL: u8 = LOCAL_PENDING | MEMORY_PENDING | ARMED;

fn build(instruction: &Instruction, effects: &Effects, transfer: &mut Transfer) {
    match effects.class {
        Class::VectorMemory if instruction.loads_to_local() => local(transfer),
        Class::VectorMemory | Class::Segment | Class::Flat => {
            transfer.check.bits |= LOCAL_ARMED;
            transfer.keeps_bits &= !(LOCAL_PENDING | ARMED);
            transfer.add.bits |= MEMORY_PENDING;
        }
        Class::Local => local(transfer),
        Class::Scalar if instruction.first_word() == S_WAITCNT_VSCNT_NULL_0 => transfer.keeps_bits &= !ALL,
        _ => {}
    }
}

fn local(transfer: &mut Transfer) {
    transfer.check.bits |= MEMORY_ARMED;
    transfer.keeps_bits &= !(MEMORY_PENDING | ARMED);
    transfer.add.bits |= LOCAL_PENDING;
}

/// Treats a flat access as both older and newer compilers allow. As before LLVM 22, it breaks nothing and leaves
/// nothing pending. As since then, it ends what is pending.
pub(in crate::audit) fn excuse_flat(transfer: &mut Transfer) {
    transfer.check.bits &= !LOCAL_ARMED;
    transfer.add.bits &= !MEMORY_PENDING;
}

/// Makes a load to local memory break nothing and leave nothing that could be broken. It ends what is pending of either
/// kind: older compilers treated it as an access to memory, newer ones as a local one.
pub(in crate::audit) fn excuse_load_to_local(transfer: &mut Transfer) {
    transfer.check.bits &= !ARMED;
    transfer.add.bits &= !ALL;
    transfer.keeps_bits &= !ALL;
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

    #[test]
    fn flat_accesses_are_memory_and_loads_to_local_memory_are_local() {
        // ds_read_b32 v8, v3; s_cbranch_execz; flat_load_dword v4, v[6:7]; buffer_load_dword off, s[8:11], 0 lds
        let (local, branch) = ([0xd8d8_0000, 0x0800_0003], [0xbf88_0000]);
        let (flat, to_local) = ([0xdc30_0000, 0x047d_0006], [0xe031_0000, 0x8002_0000]);
        let code = |first: [u32; 2], second: [u32; 2]| [&first[..], &branch, &second].concat();
        for (first, second) in [(local, flat), (flat, local), (to_local, flat), (flat, to_local)] {
            check(&code(first, second), &[Rule::LocalBranchMemory]);
        }
        check(&code(local, to_local), &[]);
        check(&code(flat, flat), &[]);
        // The flat access is before the branch, so the memory access after it is no longer a finding.
        let memory = [0xdc30_8000, 0x0604_0001];
        check(&[&local[..], &flat, &branch, &memory].concat(), &[]);
    }

    #[test]
    fn flat_accesses_of_native_code_break_nothing_and_end_what_is_pending() {
        let bytes: Vec<u8> = [0xdc30_0000u32, 0x047d_0006].iter().flat_map(|word| word.to_le_bytes()).collect();
        let flat = crate::decode(&bytes, crate::Chip::Gfx1010).unwrap();
        let transfer = crate::audit::Transfer::compiled_for(crate::Chip::Gfx1012, &flat, false);
        let behind = transfer.apply(super::PendingSet { bits: super::ALL, ..Default::default() });
        // An earlier access to memory is still pending.
        assert_eq!(behind.bits & super::ALL, super::MEMORY_PENDING);
        assert_eq!((transfer.check.bits, transfer.add.bits & super::ALL), (0, 0));
    }

    #[test]
    fn loads_to_local_memory_of_native_code_break_nothing_and_end_all() {
        // buffer_load_dword off, s[8:11], 0 lds
        let bytes: Vec<u8> = [0xe031_0000u32, 0x8002_0000].iter().flat_map(|word| word.to_le_bytes()).collect();
        let load = crate::decode(&bytes, crate::Chip::Gfx1010).unwrap();
        let of = |chip| crate::audit::Transfer::compiled_for(chip, &load, false);
        let behind = |chip| of(chip).apply(super::PendingSet { bits: super::ALL, ..Default::default() });
        assert_eq!((of(crate::Chip::Gfx1013).check.bits, behind(crate::Chip::Gfx1013).bits & super::ALL), (0, 0));
        assert_eq!(of(crate::Chip::Gfx1030).check.bits, super::MEMORY_ARMED);
        assert_eq!(behind(crate::Chip::Gfx1030).bits & super::ALL, super::LOCAL_PENDING);
    }
}
