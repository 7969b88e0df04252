//! Two bugs around image instructions whose addresses lie in scattered registers ("non-sequential addresses"): such an
//! instruction has one to three words of register numbers behind it. Compute code has hardly any, so these have a pass
//! of their own that only functions with images pay for.

use super::Rule;
use crate::opcode::S_CLAUSE;
use crate::table::Format;
use crate::{Instruction, Program};

/// The words of register numbers behind an image instruction; 0 for any other.
pub(super) fn address_words(instruction: &Instruction) -> u32 {
    if instruction.format() == Format::Mimg { instruction.bits(1, 2) } else { 0 }
}

/// Calls `find` with every place that breaks one of the two rules.
pub(super) fn check(program: &Program, mut find: impl FnMut(u32, Rule)) {
    // Which blocks can be entered right behind a long image instruction.
    let is_long = |index: u32| address_words(&program.instructions[index as usize]) >= 2;
    let mut entered_behind_image = vec![false; program.blocks.len()];
    for block in program.blocks.iter().filter(|block| block.first < block.end && is_long(block.end - 1)) {
        for successor in block.successors.into_iter().flatten() {
            entered_behind_image[successor as usize] = true;
        }
    }
    for (block, &behind_image) in program.blocks.iter().zip(&entered_behind_image) {
        let mut behind_image = behind_image;
        let mut clause = 0;
        for index in block.first..block.end {
            let instruction = &program.instructions[index as usize];
            if behind_image && is_buffer(instruction) && instruction.bits(0, 12) & 6 != 0 {
                find(index, Rule::ImageToMemory);
            }
            behind_image = is_long(index);
            if clause > 0 && address_words(instruction) > 0 {
                find(index, Rule::ImageClause);
            }
            // s_clause n: the n + 1 instructions behind it.
            clause =
                if instruction.is(S_CLAUSE) { (instruction.immediate() & 0x3f) + 1 } else { clause.saturating_sub(1) };
        }
    }
}

fn is_buffer(instruction: &Instruction) -> bool {
    matches!(instruction.format(), Format::Mubuf | Format::Mtbuf)
}
