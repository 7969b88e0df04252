//! `nsa-to-vmem-bug`: a buffer access right after an image instruction whose addresses are in scattered registers
//! ("non-sequential addresses"). One to three words of register numbers follow such an instruction.

use crate::audit::handler::{Detection, Handler, Repair};
use crate::audit::rule::{Context, Severity};
use crate::{Chip, Format, Instruction, Program};

pub(super) static HANDLER: Handler = Handler {
    name: "nsa-to-vmem",
    severity: Severity::High,
    explanation: "A buffer access with this offset follows an image instruction with scattered address registers, which \
                  this chip gets wrong. A compiler for it puts an `s_nop` between.",
    detection: Detection::Program(check),
    repair: Repair::Elsewhere,
};

/// The number of words with register numbers after an image instruction; 0 for any other.
pub(crate) fn address_words(instruction: &Instruction) -> u32 {
    if instruction.format() == Format::Mimg { instruction.bits(1, 2) } else { 0 }
}

fn check(program: &Program, _: Chip, _: Context, find: &mut dyn FnMut(u32)) {
    places(program, find);
}

/// Finds each buffer access that needs a word before it.
pub(crate) fn places(program: &Program, find: &mut dyn FnMut(u32)) {
    let is_long = |index: u32| address_words(&program.instructions[index as usize]) >= 2;
    // Compute code has hardly any images, so this quick check usually decides.
    if !(0..program.instructions.len() as u32).any(is_long) {
        return;
    }
    // Which blocks can be entered right after a long image instruction.
    let mut entered_behind_image = vec![false; program.blocks.len()];
    for block in program.blocks.iter().filter(|block| block.first < block.end && is_long(block.end - 1)) {
        for successor in block.successors.into_iter().flatten() {
            entered_behind_image[successor as usize] = true;
        }
    }
    for (block, &behind_image) in program.blocks.iter().zip(&entered_behind_image) {
        let mut behind_image = behind_image;
        for index in block.first..block.end {
            let instruction = &program.instructions[index as usize];
            let buffer = matches!(instruction.format(), Format::Mubuf | Format::Mtbuf);
            if behind_image && buffer && instruction.bits(0, 12) & 6 != 0 {
                find(index);
            }
            behind_image = is_long(index);
        }
    }
}
