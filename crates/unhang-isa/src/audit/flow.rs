//! The one fixpoint over a program's blocks, and its three users: the audit, repair, and the execution of a program.

use super::finding::Finding;
use super::handler::{Detection, Repair};
use super::rule::{Context, Rule};
use super::rules::{self, broken};
use super::transfer::{PendingSet, Transfer};
use crate::registers::number;
use crate::{Chip, Instruction, Program, ScalarSet};

/// Everything that can be pending: what code elsewhere may have left.
const ANYTHING: PendingSet = PendingSet {
    memory_reads: ScalarSet(!(1 << number::NULL)),
    scalar_memory_reads: ScalarSet(!(1 << number::NULL)),
    bits: u8::MAX,
};

/// What other functions may leave pending for a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Calls {
    /// Nothing: each function by itself, as LLVM examines them.
    Apart,
    /// Anything after each of its calls; and at its start, if it is called itself.
    Together {
        /// Whether it is a called function, not a kernel.
        is_called: bool,
    },
}

impl Calls {
    /// What is pending at a function's start.
    fn entry(self) -> PendingSet {
        if self == (Calls::Together { is_called: true }) { ANYTHING } else { PendingSet::NOTHING }
    }
}

/// The state at the start of each block, given the effect of each block on a state.
///
/// What is pending at the start of a block only ever grows, so the search ends. The worklist is a stack with the first
/// block on top: loops are left late, and most blocks are visited twice.
fn solve(program: &Program, calls: Calls, mut through: impl FnMut(usize, PendingSet) -> PendingSet) -> Vec<PendingSet> {
    let blocks = &program.blocks;
    let mut entries = vec![PendingSet::default(); blocks.len()];
    if let Some(first) = entries.first_mut() {
        *first = calls.entry();
    }
    let mut queued = vec![true; blocks.len()];
    let mut work: Vec<u32> = (0..blocks.len() as u32).rev().collect();
    while let Some(number) = work.pop() {
        let number = number as usize;
        queued[number] = false;
        let state = through(number, entries[number]);
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
    entries
}

/// The instructions of a block with their effects. Of consecutive vector arithmetic only the first is returned, because
/// the rest have no further effect.
fn transfers(program: &Program, number: usize, calls: Calls) -> impl Iterator<Item = (u32, Transfer)> + '_ {
    let block = &program.blocks[number];
    let instructions = &program.instructions[block.first as usize..block.end as usize];
    let mut in_a_row = false;
    (block.first..).zip(instructions).filter_map(move |(index, instruction)| {
        if in_a_row && Transfer::is_plain_vector(instruction) {
            return None;
        }
        let mut transfer = Transfer::compiled_for(program.chip, instruction, program.wave64);
        if calls != Calls::Apart && instruction.is_call() {
            transfer.add = ANYTHING;
        }
        in_a_row = transfer == Transfer::PLAIN_VECTOR;
        Some((index, transfer))
    })
}

/// Finds everything in a program that is unsafe on a chip.
///
/// One pass over the code finds what is wrong within a block and summarises each block. The summaries are solved over
/// the graph. If something is pending at a block's entry, its first instructions are examined once more.
pub(super) fn audit(program: &Program, chip: Chip, context: Context, calls: Calls) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut find = |index: u32, rule: Rule, register: Option<u8>| {
        let offset = program.offsets[index as usize];
        findings.push(Finding { rule, severity: rule.severity(), offset, index, register });
    };
    for rule in Rule::ALL {
        if let Detection::Program(check) = rules::handler(rule).detection
            && (chip.is_rdna1() || rule == Rule::Illegal)
        {
            check(program, chip, context, &mut |index| find(index, rule, None));
        }
    }
    if chip.is_rdna1() {
        let blocks = 0..program.blocks.len();
        let sums: Vec<Transfer> = blocks.map(|number| sum_up(program, number, calls, &mut find)).collect();
        let entries = solve(program, calls, |number, state| sums[number].apply(state));
        for (number, entry) in entries.into_iter().enumerate().filter(|(_, entry)| !entry.is_empty()) {
            check_entry(program, number, entry, calls, &mut find);
        }
    }
    findings.sort_by_key(|finding| (finding.index, finding.rule));
    findings
}

/// Summarises a block. Reports what is wrong within it, whatever is pending at its start.
fn sum_up(program: &Program, number: usize, calls: Calls, find: &mut impl FnMut(u32, Rule, Option<u8>)) -> Transfer {
    let mut sum = Transfer::IDENTITY;
    for (index, transfer) in transfers(program, number, calls) {
        if let Some(rule) = transfer.alone {
            find(index, rule, None);
        }
        let met = sum.add.intersection(transfer.check);
        if !met.is_empty() {
            broken(met).for_each(|(rule, register)| find(index, rule, register));
        }
        sum = sum.then(&transfer);
    }
    sum
}

/// Examines a block again with what is pending at its entry, as long as that makes a difference.
fn check_entry(
    program: &Program,
    number: usize,
    entry: PendingSet,
    calls: Calls,
    find: &mut impl FnMut(u32, Rule, Option<u8>),
) {
    let (mut state, mut within) = (entry, PendingSet::default());
    for (index, transfer) in transfers(program, number, calls) {
        if state == within {
            break;
        }
        let met = state.intersection(transfer.check);
        if !met.is_empty() {
            let told = within.intersection(transfer.check);
            let new = |rule: Rule| broken(told).all(|(known, _)| known != rule);
            broken(met).filter(|&(rule, _)| new(rule)).for_each(|(rule, register)| find(index, rule, register));
        }
        (state, within) = (transfer.apply(state), transfer.apply(within));
    }
}

/// An instruction that needs a work-around before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WorkAround {
    /// The instruction's index in the program.
    pub index: u32,
    /// The work-around.
    pub word: u32,
}

/// The word to put before an instruction that breaks a rule, for rules that such a word fixes.
pub(crate) fn work_around(rule: Rule, instruction: &Instruction) -> Option<u32> {
    match rules::handler(rule).repair {
        Repair::Before { word, .. } => Some(word(instruction)),
        Repair::Elsewhere | Repair::Nothing => None,
    }
}

/// Every place that needs a work-around, in the order of the code, assuming that all of them are inserted.
///
/// In the end each block was walked with everything that can be pending at its start, so no place is missing. There may
/// be one too many, if a work-around further up made it unnecessary after it had been counted.
pub(crate) fn work_arounds(program: &Program, calls: Calls) -> Vec<WorkAround> {
    // The results of the last walk of each block. Most blocks are walked once and have none.
    let mut found: Vec<Vec<WorkAround>> = vec![Vec::new(); program.blocks.len()];
    solve(program, calls, |number, mut state| {
        found[number].clear();
        for (index, transfer) in transfers(program, number, calls) {
            loop {
                let met = state.intersection(transfer.check);
                if met.is_empty() {
                    break;
                }
                let relief = broken(met).find_map(|(rule, _)| match rules::handler(rule).repair {
                    Repair::Before { word, relieve } => Some((word, relieve)),
                    _ => None,
                });
                let Some((word, relieve)) = relief else { break };
                relieve(&mut state);
                found[number].push(WorkAround { index, word: word(&program.instructions[index as usize]) });
            }
            state = transfer.apply(state);
        }
        state
    });
    found.concat()
}

/// Applies the rules along one path: to the instructions that an executing program reaches, one by one.
///
/// It does not see rules that examine a whole program, nor the offsets of flat accesses; the executor knows these
/// better.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PathWatch {
    state: PendingSet,
}

impl PathWatch {
    /// Takes the next instruction of the path. Returns the rule that it breaks, and the scalar register involved.
    pub fn next(&mut self, instruction: &Instruction, wave64: bool) -> Option<(Rule, Option<u8>)> {
        self.pass(&Transfer::new(instruction, wave64))
    }

    /// Takes an instruction whose effects were computed in advance: a few operations.
    #[inline]
    pub fn pass(&mut self, transfer: &Transfer) -> Option<(Rule, Option<u8>)> {
        let met = self.state.intersection(transfer.check);
        self.state = transfer.apply(self.state);
        if met.is_empty() && transfer.alone.is_none() {
            return None;
        }
        broken(met).next().or_else(|| Some((transfer.alone.filter(|&rule| rule != Rule::FlatOffset)?, None)))
    }

    /// Takes a whole stretch of the path at once. Returns `false` and takes nothing if something in it breaks a rule;
    /// going through it instruction by instruction then finds where.
    #[inline]
    pub fn pass_all(&mut self, stretch: &StretchSummary) -> bool {
        if stretch.breaks || !self.state.intersection(stretch.check).is_empty() {
            return false;
        }
        self.state = stretch.sum.apply(self.state);
        true
    }
}

/// The combined effect of instructions that execute one after another; only the last may be a branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StretchSummary {
    sum: Transfer,
    /// What must not be pending at its start.
    check: PendingSet,
    /// Whether it breaks a rule whatever is pending.
    breaks: bool,
}

impl StretchSummary {
    /// No instruction.
    pub const EMPTY: StretchSummary =
        StretchSummary { sum: Transfer::IDENTITY, check: PendingSet::NOTHING, breaks: false };

    /// Adds the next instruction.
    pub fn push(&mut self, transfer: &Transfer) {
        self.breaks |= transfer.alone.is_some() || !self.sum.add.intersection(transfer.check).is_empty();
        let let_through = |keeps: bool, set: ScalarSet| if keeps { set } else { ScalarSet::EMPTY };
        self.check = self.check.union(PendingSet {
            memory_reads: let_through(self.sum.keeps_memory_reads, transfer.check.memory_reads),
            scalar_memory_reads: let_through(self.sum.keeps_scalar_memory_reads, transfer.check.scalar_memory_reads),
            bits: transfer.check.bits & self.sum.keeps_bits,
        });
        self.sum = self.sum.then(transfer);
    }
}
