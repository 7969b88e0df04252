//! Instructions that the chip does not have, or has with another meaning.

use crate::audit::handler::{Detection, Handler, Repair};
use crate::audit::rule::{Context, Severity};
use crate::{Chip, Program};

pub(super) static HANDLER: Handler = Handler {
    name: "illegal-instruction",
    severity: Severity::Certain,
    explanation: "This chip does not have the instruction, or does something else under its number.",
    detection: Detection::Program(check),
    // Repair builds two dot products from other instructions.
    repair: Repair::Elsewhere,
};

fn check(program: &Program, chip: Chip, _: Context, find: &mut dyn FnMut(u32)) {
    if program.chip.instruction_set() == chip.instruction_set() {
        return;
    }
    for (index, instruction) in program.instructions.iter().enumerate() {
        if !instruction.definition.exists_on(chip) {
            find(index as u32);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::audit::Rule;
    use crate::audit::rules::testing::check;

    #[test]
    fn dot_products_are_not_there() {
        // v_dot2_f32_f16 v0, v1, v2, v3
        check(&[0xcc13_4000, 0x1c0e_0501], &[Rule::Illegal]);
    }
}
