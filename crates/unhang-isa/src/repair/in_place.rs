//! Machine code made safe without changing its size.
//!
//! What can be repaired where it stands is repaired, with the work-around instructions of LLVM:
//!
//! * `s_inst_prefetch` becomes `s_nop`;
//! * a wait goes into an `s_nop 0` or `s_clause` that stands before the dangerous instruction anyway;
//! * `s_mov sN, exec` + `v_cmpx` goes back to what compilers emitted before: `v_cmp` + `s_and_saveexec sN, vcc`, where
//!   neither VCC nor SCC is needed afterwards.
//!
//! A change stays only if the audit of the changed function shows that the finding is gone and no other has come. What
//! is left is reported, not guessed at.

use super::encode::NOP;
use crate::audit::{Context, Finding, Hazards, Rule, audit, work_around};
use crate::liveness::{Values, are_dead};
use crate::opcode::{S_AND_SAVEEXEC_B32, S_CLAUSE, S_GETPC_B64, S_MOV_B32, S_WAITCNT_DEPCTR};
use crate::registers::{OperandValue, number};
use crate::table::{Field, Flow, Format};
use crate::{Chip, Instruction, Modifier, Program, ProgramError, ScalarSet};

/// A range of changed code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Patch {
    /// Bytes from the start of the function.
    pub offset: u32,
    /// What stands there now.
    pub bytes: Vec<u8>,
    /// The rule that was broken there.
    pub rule: Rule,
}

/// A function after its repair.
#[derive(Clone, Debug)]
pub struct Repaired {
    /// The code, as long as it was.
    pub code: Vec<u8>,
    /// What was changed.
    pub patches: Vec<Patch>,
    /// The findings before.
    pub before: Hazards,
    /// The findings that are left.
    pub after: Hazards,
}

/// `s_waitcnt_depctr` with every field at "do not wait".
const WAIT_FOR_NOTHING: u32 = S_WAITCNT_DEPCTR.with_immediate(0xffff);

/// Repairs a function compiled for `target` so that it is safe on `chip`, as far as that goes without changing its size.
pub fn repair_in_place(
    code: &[u8],
    target: Chip,
    wave64: bool,
    chip: Chip,
    context: Context,
) -> Result<Repaired, ProgramError> {
    let mut work = Work { code: code.to_vec(), target, wave64, chip, context, patches: Vec::new() };
    let mut program = Program::decode(&work.code, target, wave64)?;
    let mut findings = audit(&program, chip, context);
    let before = Hazards::count(&findings);
    // Each finding is tried once; those that are left keep their index as others go.
    let mut place = 0;
    while let Some(&finding) = findings.get(place) {
        let candidates = work.candidates(&program, finding);
        let better = candidates.into_iter().find_map(|patch| work.try_patch(patch, &findings));
        match better {
            Some((new_program, new_findings)) => (program, findings) = (new_program, new_findings),
            None => place += 1,
        }
    }
    Ok(Repaired { code: work.code, patches: work.patches, before, after: Hazards::count(&findings) })
}

struct Work {
    code: Vec<u8>,
    target: Chip,
    wave64: bool,
    chip: Chip,
    context: Context,
    patches: Vec<Patch>,
}

impl Work {
    /// Applies a patch if it leaves fewer findings and no new one.
    fn try_patch(&mut self, patch: Patch, findings: &[Finding]) -> Option<(Program, Vec<Finding>)> {
        let at = patch.offset as usize..patch.offset as usize + patch.bytes.len();
        let old = self.code.get(at.clone())?.to_vec();
        self.code[at.clone()].copy_from_slice(&patch.bytes);
        if let Ok(program) = Program::decode(&self.code, self.target, self.wave64) {
            let left = audit(&program, self.chip, self.context);
            // Code may have moved by a word, so findings are compared by rule and number, not by offset.
            let (now, then) = (Hazards::count(&left), Hazards::count(findings));
            if left.len() < findings.len() && Rule::ALL.iter().all(|&rule| now.get(rule) <= then.get(rule)) {
                self.patches.push(patch);
                return Some((program, left));
            }
        }
        self.code[at].copy_from_slice(&old);
        None
    }

    /// Possible repairs of a finding, the likeliest first.
    fn candidates(&self, program: &Program, finding: Finding) -> Vec<Patch> {
        let index = finding.index as usize;
        let rule = finding.rule;
        let word =
            |index: usize, word: u32| Patch { offset: program.offsets[index], bytes: word.to_le_bytes().into(), rule };
        if rule == Rule::InstructionPrefetch {
            return vec![word(index, NOP)];
        }
        let mut patches = Vec::new();
        if rule == Rule::CompareExec && !self.wave64 {
            patches.extend(compare_and_save(program, index));
        }
        // A permutation needs a vector instruction right before it, for which there is no slot.
        let wait = work_around(rule, &program.instructions[index]).filter(|_| rule != Rule::ComparePermlane);
        let Some(wait) = wait else { return patches };
        let Some(block) = program.blocks.iter().find(|block| (block.first..block.end).contains(&finding.index)) else {
            return patches;
        };
        for slot in (block.first as usize..index).rev() {
            let instruction = &program.instructions[slot];
            let first = instruction.first_word();
            if first == NOP || instruction.is(S_CLAUSE) {
                patches.push(word(slot, wait));
            } else if instruction.is(S_WAITCNT_DEPCTR) && wait >> 16 == WAIT_FOR_NOTHING >> 16 {
                // Two waits of one kind fit one instruction.
                patches.push(word(slot, first & wait));
            }
        }
        patches
    }
}

/// `s_mov_b32 sN, exec_lo` and the `v_cmpx` behind it as `v_cmp` and `s_and_saveexec_b32 sN, vcc_lo`.
///
/// What stands between them moves up by one word. It must not concern itself with sN, with what EXEC will be, or with
/// where it stands. Since all of it is one block, nothing jumps into it.
fn compare_and_save(program: &Program, index: usize) -> Option<Patch> {
    let compare = program.instructions.get(index)?;
    if compare.modifier != Modifier::None || !compare.is_compare_to_exec() {
        return None;
    }
    let block = program.blocks.iter().find(|block| (block.first as usize..block.end as usize).contains(&index))?;
    let copies_exec = |instruction: &Instruction| {
        let source = instruction.definition.operand(Field::Source0).map(|slot| instruction.operand(slot));
        instruction.is(S_MOV_B32) && source == Some(OperandValue::Scalar(number::EXEC))
    };
    let copy = (block.first as usize..index).rev().find(|&at| copies_exec(&program.instructions[at]))?;
    let saved_slot = program.instructions[copy].definition.operand(Field::Destination)?;
    let OperandValue::Scalar(saved) = program.instructions[copy].operand(saved_slot) else { return None };
    let vcc_low = ScalarSet::range(number::VCC, 1);
    let saved_set = ScalarSet::range(saved, 1);
    let compare_reads: ScalarSet = compare
        .definition
        .operands()
        .iter()
        .map(|&slot| compare.scalars(slot, false))
        .fold(ScalarSet::EMPTY, |all, set| all | set);
    if saved_set.is_empty() || saved_set.meets(compare_reads | vcc_low | ScalarSet::EXEC) {
        return None;
    }
    let between = &program.instructions[copy + 1..index];
    let unconcerned = between.iter().all(|instruction| {
        let effects = instruction.effects(false);
        let writes = effects.writes | effects.mask_writes;
        let counter = instruction.is(S_GETPC_B64) || instruction.definition.flow != Flow::Next;
        let saves = instruction.definition.writes_exec;
        !effects.reads.meets(saved_set) && !writes.meets(saved_set | ScalarSet::EXEC) && !counter && !saves
    });
    if !unconcerned || !are_dead(program, index + 1, Values { scalars: vcc_low, scc: true }) {
        return None;
    }
    let mut moved: Vec<u32> = between.iter().flat_map(|instruction| instruction.words()).copied().collect();
    let mut words = compare.words().to_vec();
    match compare.format() {
        Format::Vopc => words[0] &= !(0x10 << 17),
        Format::Vop3 => words[0] = words[0] & !(0x10 << 16) & !0xff | number::VCC as u32,
        _ => return None,
    }
    moved.append(&mut words);
    moved.push(0xbe80_0000 | (saved as u32) << 16 | (S_AND_SAVEEXEC_B32.number as u32) << 8 | number::VCC as u32);
    let bytes = moved.iter().flat_map(|word| word.to_le_bytes()).collect();
    Some(Patch { offset: program.offsets[copy], bytes, rule: Rule::CompareExec })
}
