//! `nsa-clause-bug`: an image instruction with scattered address registers inside a clause.

use super::nsa_to_vmem::address_words;
use crate::audit::handler::{Detection, Handler, Repair};
use crate::audit::rule::{Context, Severity};
use crate::opcode::S_CLAUSE;
use crate::{Chip, Program};

pub(super) static HANDLER: Handler = Handler {
    name: "nsa-clause",
    severity: Severity::High,
    explanation: "An image instruction with scattered address registers stands inside a clause, which this chip gets \
                  wrong; compilers for it leave it out of clauses.",
    detection: Detection::Program(check),
    repair: Repair::Elsewhere,
};

fn check(program: &Program, _: Chip, _: Context, find: &mut dyn FnMut(u32)) {
    if !program.instructions.iter().any(|instruction| address_words(instruction) > 0) {
        return;
    }
    for block in &program.blocks {
        let mut clause = 0;
        for index in block.first..block.end {
            let instruction = &program.instructions[index as usize];
            if clause > 0 && address_words(instruction) > 0 {
                find(index);
            }
            // s_clause n: the next n + 1 instructions.
            clause =
                if instruction.is(S_CLAUSE) { (instruction.immediate() & 0x3f) + 1 } else { clause.saturating_sub(1) };
        }
    }
}
