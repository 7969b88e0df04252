//! Whether a value is still needed.

use crate::registers::{OperandValue, special};
use crate::table::Flow;
use crate::{Instruction, Program, ScalarSet};

/// Values that may be needed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Values {
    /// Scalar registers, VCC among them.
    pub scalars: ScalarSet,
    /// Whether SCC is among them.
    pub scc: bool,
}

impl Values {
    fn is_empty(self) -> bool {
        self == Values::default()
    }

    fn union(self, other: Values) -> Values {
        Values { scalars: self.scalars | other.scalars, scc: self.scc || other.scc }
    }
}

/// Whether no path from an instruction on reads any of the values before they are overwritten.
pub(crate) fn are_dead(program: &Program, index: usize, values: Values) -> bool {
    let start = program.blocks.partition_point(|block| block.first as usize <= index).checked_sub(1);
    let Some(start) = start.filter(|&start| index < program.blocks[start].end as usize) else { return false };
    // The values asked for at the start of each block.
    let mut asked = vec![Values::default(); program.blocks.len()];
    let mut work = vec![(start, index, values)];
    while let Some((number, from, mut open)) = work.pop() {
        let block = &program.blocks[number];
        for instruction in &program.instructions[from..block.end as usize] {
            if reads(instruction, open, program.wave64) {
                return false;
            }
            open = without_written(instruction, open, program.wave64);
            // A call, return or jump elsewhere may pass it on; an end does not.
            let leaves = match instruction.definition.flow {
                Flow::JumpRegister => block.successors[1].is_none(),
                Flow::Call => true,
                _ => false,
            };
            if leaves && !open.is_empty() {
                return false;
            }
            if open.is_empty() {
                break;
            }
        }
        for successor in block.successors.into_iter().flatten() {
            let before = &mut asked[successor as usize];
            let after = before.union(open);
            if after != *before {
                *before = after;
                work.push((successor as usize, program.blocks[successor as usize].first as usize, after));
            }
        }
    }
    true
}

fn reads(instruction: &Instruction, values: Values, wave64: bool) -> bool {
    let names = |code: u8| {
        instruction.definition.operands().iter().any(|&slot| instruction.operand(slot) == OperandValue::Special(code))
    };
    let scalars = instruction.effects(wave64).reads.meets(values.scalars)
        || values.scalars.meets(ScalarSet::VCC) && names(special::VCCZ);
    scalars || values.scc && (instruction.definition.reads_scc || names(special::SCC))
}

/// The values still to follow after an instruction.
fn without_written(instruction: &Instruction, values: Values, wave64: bool) -> Values {
    let mut left = values;
    left.scc &= !instruction.definition.writes_scc;
    // A conditional write does not end a value.
    if !instruction.definition.reads_scc || instruction.definition.writes_scc {
        let effects = instruction.effects(wave64);
        left.scalars.0 &= !(effects.writes | effects.mask_writes).0;
    }
    left
}
