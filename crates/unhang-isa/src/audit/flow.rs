//! The state that flows through the graph, and the instructions that meet it.

use super::{Context, Finding, Rule, Severity, images};
use crate::opcode::*;
use crate::registers::{Source, number};
use crate::table::{Field, Format, Kind};
use crate::{Chip, Class, Effects, Instruction, Program, ScalarSet};

/// What is pending at a point of the program, on some path to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct State {
    /// Scalar registers that a vector memory instruction may still have to read.
    pub memory_reads: ScalarSet,
    /// Scalar registers that a scalar load may still have to read.
    pub scalar_memory_reads: ScalarSet,
    /// The bits below.
    pub bits: u8,
}

/// An instruction outside the vector unit has read EXEC.
pub(super) const EXEC_READ: u8 = 1;
/// A comparison has written EXEC, and no vector instruction has followed.
pub(super) const EXEC_COMPARED: u8 = 2;
/// A local access with neither a memory access nor a wait behind it.
pub(super) const LOCAL_PENDING: u8 = 4;
/// A memory access with neither a local access nor a wait behind it.
pub(super) const MEMORY_PENDING: u8 = 8;
/// A local access, then a branch, and nothing of either kind since.
pub(super) const LOCAL_ARMED: u8 = 16;
/// A memory access, then a branch, and nothing of either kind since.
pub(super) const MEMORY_ARMED: u8 = 32;

impl State {
    pub fn union(self, other: State) -> State {
        State {
            memory_reads: self.memory_reads | other.memory_reads,
            scalar_memory_reads: self.scalar_memory_reads | other.scalar_memory_reads,
            bits: self.bits | other.bits,
        }
    }
}

/// `s_waitcnt_depctr`, and where its fields lie.
fn waits_for_vector_sources(instruction: &Instruction) -> bool {
    instruction.is(S_WAITCNT_DEPCTR) && instruction.immediate() & 0b11100 == 0
}

/// `s_waitcnt_vscnt null, 0`
fn waits_for_stores(instruction: &Instruction) -> bool {
    instruction.is(S_WAITCNT_VSCNT) && instruction.immediate() == 0 && instruction.bits(16, 7) == number::NULL as u32
}

fn waits_for_scalar_destinations(instruction: &Instruction) -> bool {
    instruction.is(S_WAITCNT_DEPCTR) && instruction.immediate() & 1 == 0
}

/// Whether a scalar instruction ends the danger from scalar loads that have still to read their address.
fn frees_scalar_memory(instruction: &Instruction) -> bool {
    // s_waitcnt: only with lgkmcnt(0).
    if instruction.is(S_WAITCNT) {
        return instruction.immediate() & 0x3f00 == 0;
    }
    if instruction.is(S_WAITCNT_LGKMCNT) {
        return instruction.immediate() == 0 && instruction.bits(16, 7) == number::NULL as u32;
    }
    let does_nothing = [S_VERSION, S_WAITCNT_VSCNT, S_WAITCNT_VMCNT, S_WAITCNT_EXPCNT];
    instruction.format() != Format::Sopp && !opcodes_any(instruction, &does_nothing)
}

pub(super) struct Auditor<'a> {
    program: &'a Program,
    chip: Chip,
    hazards: bool,
    local_and_memory: bool,
    alignments: bool,
    images: bool,
    findings: Vec<Finding>,
}

/// A register that no instruction reads: `null`. It marks what was there before a block.
const MARK: ScalarSet = ScalarSet(1 << crate::registers::number::NULL);

/// What a whole block does to a state: what it lets through, and what it adds.
#[derive(Clone, Copy)]
struct Summary {
    keeps_memory_reads: bool,
    keeps_scalar_memory_reads: bool,
    kept_bits: u8,
    /// Whether the block ends in a branch, which arms what is pending.
    branches: bool,
    added: State,
}

impl Summary {
    fn apply(&self, entry: State) -> State {
        let mut state = self.added;
        if self.keeps_memory_reads {
            state.memory_reads |= entry.memory_reads;
        }
        if self.keeps_scalar_memory_reads {
            state.scalar_memory_reads |= entry.scalar_memory_reads;
        }
        let mut bits = entry.bits & self.kept_bits;
        if self.branches {
            bits |= (bits & (LOCAL_PENDING | MEMORY_PENDING)) << 2;
        }
        state.bits |= bits;
        state
    }
}

impl<'a> Auditor<'a> {
    pub(super) fn new(program: &'a Program, chip: Chip, context: Context) -> Auditor<'a> {
        let (mut local, mut memory, mut wide_local, mut images) = (false, false, false, false);
        for instruction in &program.instructions {
            local |= instruction.class() == Class::Local;
            wide_local |= wide_local_access(instruction) != 0;
            images |= images::address_words(instruction) != 0;
            memory |= matches!(instruction.class(), Class::VectorMemory | Class::Segment);
        }
        let local_and_memory = local && memory;
        let alignments = wide_local && context.workgroup_processor_mode;
        Auditor { program, chip, hazards: chip.is_rdna1(), local_and_memory, alignments, images, findings: Vec::new() }
    }

    /// One pass over the code finds what is wrong within a block and sums each block up; the sums are solved over the
    /// graph; and where something is pending at a block's entry, its first instructions are looked at once more.
    pub(super) fn run(mut self) -> Vec<Finding> {
        if self.program.chip.instruction_set() != self.chip.instruction_set() {
            for (index, instruction) in self.program.instructions.iter().enumerate() {
                if !instruction.definition.exists_on(self.chip) {
                    self.find(index as u32, Rule::Illegal, Severity::Certain, None);
                }
            }
        }
        if self.hazards {
            let summaries: Vec<Summary> = (0..self.program.blocks.len()).map(|block| self.summarise(block)).collect();
            for (block, entry) in self.solve(&summaries).into_iter().enumerate() {
                if entry != State::default() {
                    self.check_entry(block, entry);
                }
            }
            if self.alignments {
                self.check_alignments();
            }
            if self.images {
                images::check(self.program, |index, rule| self.find(index, rule, Severity::High, None));
            }
        }
        self.findings.sort_by_key(|finding| (finding.index, finding.rule));
        self.findings
    }

    /// Runs a block from an empty state.
    fn summarise(&mut self, number: usize) -> Summary {
        let program = self.program;
        let block = &program.blocks[number];
        // A full state shows what is kept: what of it is left at the end was let through, or added.
        let mut probe = State { memory_reads: MARK, scalar_memory_reads: MARK, bits: u8::MAX };
        let mut state = State::default();
        let mut branches = false;
        for index in block.first..block.end {
            let instruction = &program.instructions[index as usize];
            if is_plain_vector(instruction) {
                state = plain_vector_step(state, instruction);
                probe = plain_vector_step(probe, instruction);
                continue;
            }
            let effects = instruction.effects(program.wave64);
            self.check_alone(index, instruction);
            self.check(index, instruction, &effects, state, State::default());
            state = step(state, instruction, &effects);
            branches = instruction.is_branch();
            // The branch at the end is applied by the summary itself; the probe must not arm itself.
            probe = if branches { probe } else { step(probe, instruction, &effects) };
        }
        Summary {
            keeps_memory_reads: probe.memory_reads.meets(MARK),
            keeps_scalar_memory_reads: probe.scalar_memory_reads.meets(MARK),
            kept_bits: probe.bits,
            branches,
            added: state,
        }
    }

    /// The state at the start of each block.
    fn solve(&self, summaries: &[Summary]) -> Vec<State> {
        let blocks = &self.program.blocks;
        let mut entries = vec![State::default(); blocks.len()];
        let mut queued = vec![true; blocks.len()];
        // Last in, first out, with the first block on top: loops are left late and most blocks are seen twice.
        let mut work: Vec<u32> = (0..blocks.len() as u32).rev().collect();
        while let Some(number) = work.pop() {
            queued[number as usize] = false;
            let state = summaries[number as usize].apply(entries[number as usize]);
            for successor in blocks[number as usize].successors.into_iter().flatten() {
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

    /// Looks at a block again with what is pending at its entry, as long as that makes a difference.
    fn check_entry(&mut self, number: usize, entry: State) {
        let program = self.program;
        let block = &program.blocks[number];
        let (mut state, mut alone) = (entry, State::default());
        for index in block.first..block.end {
            if state == alone {
                break;
            }
            let instruction = &program.instructions[index as usize];
            if is_plain_vector(instruction) {
                state = plain_vector_step(state, instruction);
                alone = plain_vector_step(alone, instruction);
                continue;
            }
            let effects = instruction.effects(program.wave64);
            self.check(index, instruction, &effects, state, alone);
            state = step(state, instruction, &effects);
            alone = step(alone, instruction, &effects);
        }
    }

    fn check_alignments(&mut self) {
        let program = self.program;
        for block in &program.blocks {
            let mut alignments = Alignments::default();
            for index in block.first..block.end {
                if alignments.misaligned(&program.instructions[index as usize]) {
                    self.find(index, Rule::LocalMisaligned, Severity::Certain, None);
                }
            }
        }
    }

    /// Notes what an instruction meets in `state`, unless it meets the same in `known`, where it was noted before.
    fn check(&mut self, index: u32, instruction: &Instruction, effects: &Effects, state: State, known: State) {
        let bit = |bit: u8| state.bits & bit != 0 && known.bits & bit == 0;
        let register = |pending: fn(State) -> ScalarSet, written: ScalarSet| {
            if pending(known).meets(written) { None } else { (pending(state) & written).first() }
        };
        match effects.class {
            Class::Vector => {
                let written = vector_scalar_destination(instruction, effects);
                if let Some(register) = register(|state| state.scalar_memory_reads, written) {
                    self.find(index, Rule::ScalarMemoryToVectorWrite, Severity::High, Some(register));
                }
                if bit(EXEC_READ) && effects.mask_writes.meets(ScalarSet::EXEC) {
                    self.find(index, Rule::CompareExec, Severity::High, None);
                }
                if bit(EXEC_COMPARED) && permutes(instruction) {
                    self.find(index, Rule::ComparePermlane, Severity::High, None);
                }
            }
            Class::Scalar | Class::ScalarMemory => {
                if let Some(register) = register(|state| state.memory_reads, effects.writes) {
                    self.find(index, Rule::MemoryToScalarWrite, Severity::High, Some(register));
                }
            }
            Class::VectorMemory | Class::Segment if self.local_and_memory && bit(LOCAL_ARMED) => {
                self.find(index, Rule::LocalBranchMemory, Severity::High, None);
            }
            Class::Local if self.local_and_memory && bit(MEMORY_ARMED) => {
                self.find(index, Rule::LocalBranchMemory, Severity::High, None);
            }
            _ => {}
        }
    }

    /// Notes what is wrong with an instruction whatever stands before it.
    fn check_alone(&mut self, index: u32, instruction: &Instruction) {
        match instruction.format() {
            Format::Sopp if instruction.is(S_INST_PREFETCH) => {
                self.find(index, Rule::InstructionPrefetch, Severity::Certain, None);
            }
            Format::Sopp if instruction.is_branch() && instruction.immediate() == 0x3f => {
                self.find(index, Rule::BranchOffset3f, Severity::High, None);
            }
            Format::Flat if instruction.flat_offset() != 0 => {
                self.find(index, Rule::FlatOffset, Severity::Possible, None);
            }
            Format::Scratch if instruction.flat_offset() < 0 && instruction.flat_offset() % 4 != 0 => {
                self.find(index, Rule::ScratchOffset, Severity::High, None);
            }
            _ => {}
        }
    }

    fn find(&mut self, index: u32, rule: Rule, severity: Severity, register: Option<u8>) {
        let offset = self.program.offsets[index as usize];
        self.findings.push(Finding { rule, severity, offset, index, register });
    }
}

/// The same rules along one path: what a program that is being executed meets, instruction by instruction.
///
/// Misaligned local accesses and illegal instructions are not for it to see; who executes knows them better.
#[derive(Clone, Debug, Default)]
pub struct PathWatch {
    state: State,
}

impl PathWatch {
    /// Takes the next instruction of the path, and says which rule it breaks and through which scalar register.
    ///
    /// LLVM guards local and global memory around branches only in functions that have both; a path that meets both is
    /// in such a function.
    pub fn next(&mut self, instruction: &Instruction, wave64: bool) -> Option<(Rule, Option<u8>)> {
        self.next_with(instruction, &instruction.effects(wave64))
    }

    /// Whether no scalar register is still to be read: then scalar arithmetic that does not read EXEC, hints and waits for
    /// counters but that of stores break no rule and change nothing.
    #[inline]
    pub fn holds_no_registers(&self) -> bool {
        self.state.memory_reads.is_empty() && self.state.scalar_memory_reads.is_empty()
    }

    /// [`PathWatch::next`] for vector arithmetic that writes no scalar register and is no lane permutation and no `v_nop`.
    #[inline]
    pub fn plain_vector(&mut self) {
        self.state.memory_reads = ScalarSet::EMPTY;
        self.state.bits &= !EXEC_COMPARED;
    }

    /// [`PathWatch::next`] for an access to the local data share, unless it breaks a rule: then `false`, and nothing is noted.
    #[inline]
    pub fn local(&mut self, effects: &Effects) -> bool {
        if self.state.bits & MEMORY_ARMED != 0 {
            return false;
        }
        self.state.memory_reads |= effects.reads;
        self.state.bits = self.state.bits & !(MEMORY_PENDING | LOCAL_ARMED) | LOCAL_PENDING | EXEC_READ;
        true
    }

    /// [`PathWatch::next`] for an instruction whose effects are known already.
    #[inline]
    pub fn next_with(&mut self, instruction: &Instruction, effects: &Effects) -> Option<(Rule, Option<u8>)> {
        if is_plain_vector(instruction) {
            self.state = plain_vector_step(self.state, instruction);
            return None;
        }
        let broken = broken(self.state, instruction, effects);
        self.state = step(self.state, instruction, effects);
        broken
    }
}

/// The rule that an instruction breaks when it meets a state, and the scalar register at stake.
pub(super) fn broken(state: State, instruction: &Instruction, effects: &Effects) -> Option<(Rule, Option<u8>)> {
    let has = |bit: u8| state.bits & bit != 0;
    match effects.class {
        Class::Vector => {
            let written = vector_scalar_destination(instruction, effects);
            if let Some(register) = (state.scalar_memory_reads & written).first() {
                return Some((Rule::ScalarMemoryToVectorWrite, Some(register)));
            }
            if has(EXEC_READ) && effects.mask_writes.meets(ScalarSet::EXEC) {
                return Some((Rule::CompareExec, None));
            }
            (has(EXEC_COMPARED) && permutes(instruction)).then_some((Rule::ComparePermlane, None))
        }
        Class::Scalar | Class::ScalarMemory => {
            if let Some(register) = (state.memory_reads & effects.writes).first() {
                return Some((Rule::MemoryToScalarWrite, Some(register)));
            }
            if instruction.is(S_INST_PREFETCH) {
                return Some((Rule::InstructionPrefetch, None));
            }
            let short =
                instruction.format() == Format::Sopp && instruction.is_branch() && instruction.immediate() == 0x3f;
            short.then_some((Rule::BranchOffset3f, None))
        }
        Class::VectorMemory | Class::Segment if has(LOCAL_ARMED) => Some((Rule::LocalBranchMemory, None)),
        Class::Local if has(MEMORY_ARMED) => Some((Rule::LocalBranchMemory, None)),
        _ => None,
    }
}

/// Vector arithmetic that writes no scalar register: most of all instructions.
#[inline]
pub(super) fn is_plain_vector(instruction: &Instruction) -> bool {
    instruction.class() == Class::Vector && !instruction.definition.writes_scalar && !permutes(instruction)
}

#[inline]
fn permutes(instruction: &Instruction) -> bool {
    instruction.is(long::V_PERMLANE16_B32) || instruction.is(long::V_PERMLANEX16_B32)
}

#[inline]
pub(super) fn plain_vector_step(mut state: State, instruction: &Instruction) -> State {
    state.memory_reads = ScalarSet::EMPTY;
    if !instruction.is(V_NOP) && !instruction.is(long::V_NOP) {
        state.bits &= !EXEC_COMPARED;
    }
    state
}

/// The state behind an instruction.
#[inline]
pub(super) fn step(mut state: State, instruction: &Instruction, effects: &Effects) -> State {
    match effects.class {
        Class::Vector => {
            state = plain_vector_step(state, instruction);
            if !effects.mask_writes.is_empty() {
                state.bits &= !EXEC_READ;
            }
            if effects.mask_writes.meets(ScalarSet::EXEC) && instruction.is_compare_to_exec() {
                state.bits |= EXEC_COMPARED;
            }
            return state;
        }
        Class::Scalar => {
            if instruction.is(S_WAITCNT) && instruction.immediate() == 0 || waits_for_vector_sources(instruction) {
                state.memory_reads = ScalarSet::EMPTY;
            }
            if frees_scalar_memory(instruction) {
                state.scalar_memory_reads = ScalarSet::EMPTY;
            }
            if waits_for_stores(instruction) {
                state.bits &= !(LOCAL_PENDING | MEMORY_PENDING | LOCAL_ARMED | MEMORY_ARMED);
            }
            if instruction.is_branch() {
                state.bits |= (state.bits & (LOCAL_PENDING | MEMORY_PENDING)) << 2;
            }
        }
        Class::ScalarMemory => state.scalar_memory_reads |= effects.reads,
        Class::VectorMemory | Class::Segment => {
            state.memory_reads |= effects.reads;
            state.bits &= !(LOCAL_PENDING | LOCAL_ARMED | MEMORY_ARMED);
            state.bits |= MEMORY_PENDING;
        }
        Class::Flat => state.memory_reads |= effects.reads,
        Class::Local => {
            state.memory_reads |= effects.reads;
            state.bits &= !(MEMORY_PENDING | LOCAL_ARMED | MEMORY_ARMED);
            state.bits |= LOCAL_PENDING;
        }
        Class::Export => {}
    }
    if waits_for_scalar_destinations(instruction) {
        state.bits &= !EXEC_READ;
    } else if effects.reads.meets(ScalarSet::EXEC) {
        state.bits |= EXEC_READ;
    }
    state
}

/// The scalar registers that a vector instruction writes: its mask, or the destination of a read of one lane.
fn vector_scalar_destination(instruction: &Instruction, effects: &Effects) -> ScalarSet {
    if effects.mask_writes.is_empty()
        && instruction.definition.operand(Field::Destination).is_some_and(|slot| slot.kind == Kind::Scalar)
    {
        return effects.writes;
    }
    effects.mask_writes
}

/// The bytes of a wide access to the local data share: `ds_read_b64`, `ds_write_b64` and their 128-bit kin; else 0.
#[inline]
pub(super) fn wide_local_access(instruction: &Instruction) -> u32 {
    if instruction.format() != Format::Ds {
        0
    } else if instruction.is(DS_READ_B64) || instruction.is(DS_WRITE_B64) {
        8
    } else if instruction.is(DS_READ_B128) || instruction.is(DS_WRITE_B128) {
        16
    } else {
        0
    }
}

/// What is known of local addresses within one block: the remainder of a vector register modulo 16, where a constant
/// was moved into it or an earlier wide access showed it.
///
/// Two wide accesses through one address register, with offsets that differ by less than their width, cannot both be
/// aligned: that is as much as code alone can prove.
#[derive(Default)]
struct Alignments {
    known: Vec<(u8, u32, u32)>,
}

impl Alignments {
    /// Notes what the instruction does, and says whether it is a misaligned wide local access for certain.
    fn misaligned(&mut self, instruction: &Instruction) -> bool {
        let mut misaligned = false;
        let width = wide_local_access(instruction);
        if width != 0 {
            let register = instruction.high_bits(0, 8) as u8;
            let offset = instruction.bits(0, 16);
            match self.known.iter_mut().find(|entry| entry.0 == register) {
                Some((_, remainder, modulus)) => {
                    let shared = width.min(*modulus);
                    misaligned = !(*remainder + offset).is_multiple_of(shared);
                    if !misaligned && width > *modulus {
                        (*remainder, *modulus) = ((width - offset % width) % width, width);
                    }
                }
                None => self.known.push((register, (width - offset % width) % width, width)),
            }
        }
        self.forget_destination(instruction);
        if instruction.is(V_MOV_B32)
            && let (Some(Source::Vector(register)), Some(value)) = (destination(instruction), constant(instruction))
        {
            self.known.push((register, value % 16, 16));
        }
        misaligned
    }

    fn forget_destination(&mut self, instruction: &Instruction) {
        if self.known.is_empty() {
            return;
        }
        if let Some(slot) = instruction.definition.operand(Field::Destination) {
            if let Source::Vector(first) = instruction.operand(slot) {
                let count = slot.width.registers(false) as u16;
                self.known.retain(|entry| !(first as u16..first as u16 + count).contains(&(entry.0 as u16)));
            }
        } else if matches!(instruction.format(), Format::Mubuf | Format::Mtbuf | Format::Mimg) {
            self.known.clear();
        }
        // v_swap writes its source, and relative moves write anything.
        let anything = [
            V_SWAP_B32,
            V_SWAPREL_B32,
            V_MOVRELD_B32,
            V_MOVRELSD_B32,
            V_MOVRELSD_2_B32,
            long::V_MOVRELD_B32,
            long::V_MOVRELSD_B32,
            long::V_MOVRELSD_2_B32,
        ];
        if opcodes_any(instruction, &anything) {
            self.known.clear();
        }
    }
}

fn destination(instruction: &Instruction) -> Option<Source> {
    instruction.definition.operand(Field::Destination).map(|slot| instruction.operand(slot))
}

fn constant(instruction: &Instruction) -> Option<u32> {
    match instruction.definition.operand(Field::Source0).map(|slot| instruction.operand(slot))? {
        Source::Integer(value) => Some(value as i32 as u32),
        Source::Literal(value) => Some(value),
        _ => None,
    }
}
