//! An instruction's transfer function, combined from all rules.

use super::handler::Detection;
use super::rule::Rule;
use super::rules::{HANDLERS, lds_branch_vmem_war, vcmpx_permlane, vmem_to_scalar_write};
use super::transfer::Transfer;
use crate::{Chip, Class, Effects, Instruction};

impl Transfer {
    /// Vector arithmetic that writes no scalar register and permutes no lanes. This is most of all instructions, so it
    /// has a shortcut. The tests compare it with what the rules say.
    #[inline]
    pub(super) fn is_plain_vector(instruction: &Instruction) -> bool {
        instruction.class() == Class::Vector
            && !instruction.definition.writes_scalar
            && !vcmpx_permlane::permutes(instruction)
    }

    /// The transfer function of an instruction.
    #[inline]
    pub fn new(instruction: &Instruction, wave64: bool) -> Transfer {
        if Transfer::is_plain_vector(instruction) {
            return if vcmpx_permlane::separates(instruction) { Transfer::PLAIN_VECTOR } else { Transfer::NOP };
        }
        let mut transfer = Transfer::IDENTITY;
        let effects = instruction.effects(wave64);
        transfer.branches = instruction.is_branch();
        build(instruction, &effects, &mut transfer);
        transfer
    }

    /// The transfer function of an instruction in code that was compiled for a chip.
    ///
    /// Compilers before LLVM 22 did not count flat accesses as vector memory, nor loads to local memory as local. Cards
    /// run what those compilers wrote for RDNA1. So both are reported only in code for other chips.
    #[inline]
    pub fn compiled_for(chip: Chip, instruction: &Instruction, wave64: bool) -> Transfer {
        let mut transfer = Transfer::new(instruction, wave64);
        if chip.is_rdna1() && instruction.class() == Class::Flat {
            lds_branch_vmem_war::excuse_flat(&mut transfer);
        } else if chip.is_rdna1() && instruction.loads_to_local() {
            lds_branch_vmem_war::excuse_load_to_local(&mut transfer);
            vmem_to_scalar_write::excuse_load_to_local(&mut transfer);
        }
        transfer
    }
}

/// Combines the parts of all rules for an instruction.
fn build(instruction: &Instruction, effects: &Effects, transfer: &mut Transfer) {
    for (handler, rule) in HANDLERS.iter().zip(Rule::ALL) {
        match handler.detection {
            Detection::Pending { build, .. } => build(instruction, effects, transfer),
            // No instruction breaks two of these.
            Detection::Alone(breaks) if breaks(instruction) => transfer.alone = Some(rule),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Chip, decode};

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
            build(&instruction, &instruction.effects(false), &mut long);
            assert_eq!(Transfer::new(&instruction, false), long, "{words:x?}");
        }
    }
}
