//! `vmem-to-scalar-write-hazard`: a memory instruction reads a scalar register, EXEC or M0, then a scalar instruction
//! overwrites it, with no vector instruction or full wait between.
//!
//! LLVM treats a load from a buffer to local memory as a memory instruction and a vector one (review D124472, 2022). So
//! code that it compiled for RDNA1 itself has no wait after one ([`Transfer::compiled_for`]). In other code it is only
//! a memory instruction, as issue 204488 of LLVM asks for.

use crate::audit::handler::{Detection, Handler, Repair};
use crate::audit::rule::Severity;
use crate::audit::transfer::{PendingSet, Transfer};
use crate::opcode::{S_WAITCNT, S_WAITCNT_DEPCTR};
use crate::{Class, Effects, Instruction, ScalarSet};

pub(super) static HANDLER: Handler = Handler {
    name: "vmem-to-scalar-write",
    severity: Severity::High,
    explanation: "This scalar instruction overwrites a register that an earlier memory instruction reads; this chip \
                  does not wait until it was read. A compiler for it puts `s_waitcnt_depctr 0xffe3` before it.",
    detection: Detection::Pending { build, broken },
    repair: Repair::Before {
        word: |_| S_WAITCNT_DEPCTR.with_immediate(0xffe3),
        relieve: |state| state.memory_reads = ScalarSet::EMPTY,
    },
};

fn build(instruction: &Instruction, effects: &Effects, transfer: &mut Transfer) {
    match effects.class {
        // Vector arithmetic waits for everything before it.
        Class::Vector => transfer.keeps_memory_reads = false,
        Class::Scalar | Class::ScalarMemory => {
            transfer.check.memory_reads = effects.writes;
            if waits(instruction) {
                transfer.keeps_memory_reads = false;
            }
        }
        Class::VectorMemory | Class::Segment | Class::Flat | Class::Local => {
            transfer.add.memory_reads = effects.reads;
        }
        Class::Export => {}
    }
}

/// A load to local memory in native code also counts as vector arithmetic: it waits for what is before it, and others
/// wait for it.
pub(in crate::audit) fn excuse_load_to_local(transfer: &mut Transfer) {
    transfer.keeps_memory_reads = false;
}

/// Whether it waits for everything, or for the sources of vector memory instructions: the field `vm_vsrc` of
/// `s_waitcnt_depctr`.
fn waits(instruction: &Instruction) -> bool {
    instruction.is(S_WAITCNT) && instruction.immediate() == 0
        || instruction.is(S_WAITCNT_DEPCTR) && instruction.immediate() & 0b11100 == 0
}

fn broken(met: PendingSet) -> Option<Option<u8>> {
    met.memory_reads.first().map(Some)
}

#[cfg(test)]
mod tests {
    use crate::audit::Rule;
    use crate::audit::rules::testing::check;

    #[test]
    fn a_register_is_free_when_it_was_waited_for() {
        // global_load_dword v6, v1, s[4:5]; s_mov_b32 s4, 0
        let (load, write) = ([0xdc30_8000, 0x0604_0001], 0xbe84_0380);
        let with = |between: &[u32]| [&load[..], between, &[write]].concat();
        check(&with(&[]), &[Rule::MemoryToScalarWrite]);
        // s_waitcnt_depctr 0xffe3, s_waitcnt 0, v_nop; and s_nop, which is not enough.
        for enough in [0xbfa3_ffe3, 0xbf8c_0000, 0x7e00_0000] {
            check(&with(&[enough]), &[]);
        }
        check(&with(&[0xbf80_0000]), &[Rule::MemoryToScalarWrite]);
        // s_mov_b32 s6, 0: another register.
        check(&[load[0], load[1], 0xbe86_0380], &[]);
    }

    #[test]
    fn a_load_to_local_memory_waits_in_native_code_alone() {
        // global_load_dword v6, v1, s[4:5]; buffer_load_dword off, s[8:11], 0 lds; s_mov_b32 s4, 0; s_mov_b32 s8, 0
        let (load, to_local) = ([0xdc30_8000, 0x0604_0001], [0xe031_0000, 0x8002_0000]);
        check(&[&load[..], &to_local, &[0xbe84_0380]].concat(), &[Rule::MemoryToScalarWrite]);
        check(&[&load[..], &to_local, &[0xbe88_0380]].concat(), &[Rule::MemoryToScalarWrite]);
        let bytes: Vec<u8> = to_local.iter().flat_map(|word: &u32| word.to_le_bytes()).collect();
        let to_local = crate::decode(&bytes, crate::Chip::Gfx1010).unwrap();
        let keeps = |chip| crate::audit::Transfer::compiled_for(chip, &to_local, false).keeps_memory_reads;
        assert_eq!([crate::Chip::Gfx1010, crate::Chip::Gfx1013, crate::Chip::Gfx1030].map(keeps), [false, false, true]);
    }
}
