//! Finds vector registers that are free at an instruction, in kernels that use all registers they can have.
//!
//! Only the block around the instruction is looked at, and only as far as EXEC stays the same: inactive lanes keep what
//! they hold, so that a later write under another mask would not cover what was changed here.

use super::spare::is_relative;
use crate::registers::OperandValue;
use crate::table::{Field, Flow, Format};
use crate::{Instruction, Modifier, Program, ScalarSet};

const REGISTERS: usize = 256;

/// What is known of a register on one side of the instruction.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Known {
    Nothing,
    Free,
    Taken,
}

/// `count` vector registers that may be written at an instruction: after it each is overwritten completely before it is
/// read. Before it each was last used by arithmetic, so that no load into it is in flight.
pub(super) fn registers(program: &Program, index: usize, count: u32) -> Option<Vec<u8>> {
    let block = program.blocks.iter().find(|block| (block.first as usize..block.end as usize).contains(&index))?;
    let own = accesses(program.instructions.get(index)?, program.wave64)?;
    let behind = behind(&program.instructions[index + 1..block.end as usize], program.wave64);
    let before = before(&program.instructions[block.first as usize..index], program.wave64);
    let is_free = |register: &u8| {
        let place = *register as usize;
        behind[place] == Known::Free && before[place] == Known::Free && own.iter().all(|it| !it.has(*register))
    };
    let found: Vec<u8> = (0..=u8::MAX).filter(is_free).take(count as usize).collect();
    (found.len() == count as usize).then_some(found)
}

fn behind(instructions: &[Instruction], wave64: bool) -> [Known; REGISTERS] {
    let mut known = [Known::Nothing; REGISTERS];
    for instruction in instructions {
        let Some(accesses) = accesses(instruction, wave64) else { break };
        // Sources are read before the destination is written.
        for overwrites in [false, true] {
            for access in accesses.iter().filter(|it| it.overwrites == overwrites) {
                for register in access.registers().filter(|&it| known[it] == Known::Nothing).collect::<Vec<_>>() {
                    known[register] = if overwrites { Known::Free } else { Known::Taken };
                }
            }
        }
        let effects = instruction.effects(wave64);
        let changes_exec = (effects.writes | effects.mask_writes).meets(ScalarSet::EXEC);
        if changes_exec || instruction.definition.writes_exec || instruction.definition.flow != Flow::Next {
            break;
        }
    }
    known
}

fn before(instructions: &[Instruction], wave64: bool) -> [Known; REGISTERS] {
    let mut known = [Known::Nothing; REGISTERS];
    for instruction in instructions.iter().rev() {
        let Some(accesses) = accesses(instruction, wave64) else { break };
        let found = if is_arithmetic(instruction) { Known::Free } else { Known::Taken };
        for register in accesses.iter().flat_map(Access::registers) {
            if known[register] == Known::Nothing {
                known[register] = found;
            }
        }
    }
    known
}

/// Vector registers that an instruction names in one place.
struct Access {
    first: u8,
    count: u8,
    /// Whether their old contents are gone.
    overwrites: bool,
}

impl Access {
    fn registers(&self) -> impl Iterator<Item = usize> + use<> {
        (self.first as usize..REGISTERS).take(self.count as usize)
    }

    fn has(&self, register: u8) -> bool {
        self.registers().any(|it| it == register as usize)
    }
}

/// What an instruction does to vector registers; `None` if the code does not show it.
fn accesses(instruction: &Instruction, wave64: bool) -> Option<Vec<Access>> {
    let is_memory = match instruction.format() {
        Format::Mimg | Format::Mtbuf | Format::Exp | Format::Vintrp => return None,
        Format::Flat | Format::Global | Format::Scratch | Format::Mubuf => true,
        _ if is_relative(instruction) => return None,
        _ => false,
    };
    let slots = instruction.definition.operands().iter();
    Some(
        slots
            .filter_map(|&slot| match instruction.operand(slot) {
                OperandValue::Vector(first) => {
                    let width = slot.width.registers(wave64);
                    let overwrites = slot.field == Field::Destination && overwrites(instruction);
                    // Addresses, and data with a status behind it, may take one more than the table says.
                    let count = if is_memory && !overwrites { width + 1 } else { width };
                    Some(Access { first, count, overwrites })
                }
                _ => None,
            })
            .collect(),
    )
}

fn is_arithmetic(instruction: &Instruction) -> bool {
    matches!(instruction.format(), Format::Vop1 | Format::Vop2 | Format::Vop3 | Format::Vop3p | Format::Vopc)
}

/// Whether an instruction overwrites its whole destination in every active lane: arithmetic on whole registers that
/// does not accumulate, and plain loads.
fn overwrites(instruction: &Instruction) -> bool {
    let name = instruction.definition.base_name();
    if !is_arithmetic(instruction) {
        return name.starts_with("ds_read_b") && !name.contains("u8") && !name.contains("i8") && !name.contains("16")
            || name.starts_with("ds_read2")
            || name.starts_with("global_load_dword");
    }
    let parts = ["16", "mac", "dot", "lane", "swap", "pk_", "u8"];
    instruction.modifier == Modifier::None && parts.iter().all(|part| !name.contains(part))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Chip;

    fn program(words: &[u32]) -> Program {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        Program::decode(&bytes, Chip::Gfx1030, false).unwrap()
    }

    /// `v_mov_b32 vTO, vFROM`
    fn copy(to: u32, from: u32) -> u32 {
        0x7e00_0300 | to << 17 | from
    }

    /// `v_dot4c_i32_i8 v0, v1, v2`
    const DOT: u32 = 0x1a00_0501;
    const END: u32 = 0xbf81_0000;

    #[test]
    fn a_register_is_free_between_its_last_use_and_its_next_value() {
        // v5 is read, then the dot product, then v5 gets another value.
        let found = registers(&program(&[copy(6, 5), DOT, copy(5, 3), END]), 1, 1);
        assert_eq!(found, Some(vec![5]));
        for words in [
            // It is read behind, it is never touched before, or a load into it may be under way.
            [copy(6, 5), DOT, copy(3, 5), END].as_slice(),
            &[copy(6, 4), DOT, copy(5, 3), END],
            &[0xdc30_8000, 0x057d_0004, DOT, copy(5, 3), END],
            // EXEC changes, or the block ends, before it gets another value.
            &[copy(6, 5), DOT, 0xbefe_0380, copy(5, 3), END],
            &[copy(6, 5), DOT, 0xbf85_0000, copy(5, 3), END],
            // Only half of it is overwritten: v_cvt_f16_f32.
            &[copy(6, 5), DOT, 0x7e0a_1503, END],
        ] {
            assert_eq!(registers(&program(words), words.iter().position(|&word| word == DOT).unwrap().min(1), 1), None);
        }
    }

    #[test]
    fn the_instructions_own_registers_are_never_free() {
        // v1 and v2 are its factors, v0 its sum, and each gets another value right behind it.
        let words = [copy(1, 9), copy(2, 9), copy(0, 9), DOT, copy(1, 9), copy(2, 9), copy(0, 9), END];
        assert_eq!(registers(&program(&words), 3, 1), None);
    }
}
