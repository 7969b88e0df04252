//! Where a compiler for the chip would have put its work-arounds.

use super::Rule;
use super::flow::{
    EXEC_COMPARED, EXEC_READ, LOCAL_ARMED, LOCAL_PENDING, MEMORY_ARMED, MEMORY_PENDING, State, broken, is_plain_vector,
    plain_vector_step, step,
};
use crate::{Program, ScalarSet};

/// An instruction before which a work-around belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WorkAround {
    /// The instruction's place in the program.
    pub index: u32,
    /// The rule that it would break.
    pub rule: Rule,
}

/// What is pending behind the work-around of a rule; `None` for rules that nothing in front of an instruction mends.
fn relieved(mut state: State, rule: Rule) -> Option<State> {
    match rule {
        Rule::CompareExec => state.bits &= !EXEC_READ,
        Rule::MemoryToScalarWrite => state.memory_reads = ScalarSet::EMPTY,
        Rule::ScalarMemoryToVectorWrite => state.scalar_memory_reads = ScalarSet::EMPTY,
        Rule::LocalBranchMemory => state.bits &= !(LOCAL_PENDING | MEMORY_PENDING | LOCAL_ARMED | MEMORY_ARMED),
        Rule::ComparePermlane => {
            state.bits &= !EXEC_COMPARED;
            state.memory_reads = ScalarSet::EMPTY;
        }
        _ => return None,
    }
    Some(state)
}

/// Walks a block from a state, relieving it wherever an instruction would break a rule.
fn walk(program: &Program, number: usize, mut state: State, mut note: impl FnMut(WorkAround)) -> State {
    let block = &program.blocks[number];
    for index in block.first..block.end {
        let instruction = &program.instructions[index as usize];
        if is_plain_vector(instruction) {
            state = plain_vector_step(state, instruction);
            continue;
        }
        let effects = instruction.effects(program.wave64);
        while let Some((rule, _)) = broken(state, instruction, &effects) {
            let Some(after) = relieved(state, rule) else { break };
            note(WorkAround { index, rule });
            state = after;
        }
        state = step(state, instruction, &effects);
    }
    state
}

/// Every place where a work-around is needed, in the order of the code, given that all of them are there.
///
/// What is pending at the start of a block only ever grows while the answer is sought, so the search ends; and in the
/// end each block was walked with all that can be pending at its start, so no place is missing. One too many is
/// possible where a work-around further up made it unnecessary after it had been counted on.
pub(crate) fn work_arounds(program: &Program) -> Vec<WorkAround> {
    let blocks = &program.blocks;
    let mut entries = vec![State::default(); blocks.len()];
    let mut queued = vec![true; blocks.len()];
    // What the last walk of each block found; most blocks are walked once and find nothing.
    let mut found: Vec<Vec<WorkAround>> = vec![Vec::new(); blocks.len()];
    let mut work: Vec<u32> = (0..blocks.len() as u32).rev().collect();
    while let Some(number) = work.pop() {
        let number = number as usize;
        queued[number] = false;
        let found = &mut found[number];
        found.clear();
        let state = walk(program, number, entries[number], |work_around| found.push(work_around));
        for successor in blocks[number].successors.into_iter().flatten() {
            let entry = &mut entries[successor as usize];
            let united = entry.union(state);
            if united != *entry {
                *entry = united;
                if !std::mem::replace(&mut queued[successor as usize], true) {
                    work.push(successor);
                }
            }
        }
    }
    found.concat()
}
