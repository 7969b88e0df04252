//! A decoded function and its control-flow graph.

use thiserror::Error;

use crate::registers::Source;
use crate::table::{Field, Format};
use crate::{Chip, DecodeError, Instruction, decode};

/// Why a function could not be decoded.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ProgramError {
    /// A word that is no instruction.
    #[error("at offset {offset:#x} of the function: {source}")]
    Decode {
        /// Bytes from the start of the function.
        offset: usize,
        /// What is wrong there.
        source: DecodeError,
    },
    /// The function is longer than any branch or descriptor could ask for.
    #[error("the function has {0} bytes; more than {max} are not looked at", max = Program::MAX_BYTES)]
    TooLong(usize),
}

/// A run of instructions that is entered at its start and left at its end.
#[derive(Clone, Debug, Default)]
pub struct Block {
    /// The first instruction.
    pub first: u32,
    /// One past the last instruction.
    pub end: u32,
    /// Where control can go from its end.
    pub successors: [Option<u32>; 2],
}

/// A decoded function.
#[derive(Clone, Debug)]
pub struct Program {
    /// The chip for which the code was compiled.
    pub chip: Chip,
    /// Whether its waves have 64 lanes.
    pub wave64: bool,
    /// The instructions in order.
    pub instructions: Vec<Instruction>,
    /// Bytes from the function's start to each instruction.
    pub offsets: Vec<u32>,
    /// The basic blocks in order; the first is the entry.
    pub blocks: Vec<Block>,
    /// Jumps through a register whose target is not known, returns among them.
    pub unresolved_jumps: u32,
    /// Branches that leave the function or land inside an instruction.
    pub stray_branches: u32,
    /// Calls.
    pub calls: u32,
}

impl Program {
    /// The most bytes of one function that are decoded. Branches reach ±128 KiB; the largest real kernels have 2 MiB.
    pub const MAX_BYTES: usize = 64 << 20;

    /// Decodes the bytes of one function.
    ///
    /// Compilers pad what follows the end of a function with `s_code_end`; the padding belongs to the program too and
    /// is never reached.
    pub fn decode(code: &[u8], chip: Chip, wave64: bool) -> Result<Program, ProgramError> {
        if code.len() > Program::MAX_BYTES {
            return Err(ProgramError::TooLong(code.len()));
        }
        let mut instructions = Vec::with_capacity(code.len() / 6);
        let mut offsets = Vec::with_capacity(code.len() / 6);
        let mut offset = 0;
        while offset < code.len() {
            let instruction =
                decode(&code[offset..], chip).map_err(|source| ProgramError::Decode { offset, source })?;
            offsets.push(offset as u32);
            offset += instruction.size();
            instructions.push(instruction);
        }
        let mut program = Program {
            chip,
            wave64,
            instructions,
            offsets,
            blocks: Vec::new(),
            unresolved_jumps: 0,
            stray_branches: 0,
            calls: 0,
        };
        program.find_blocks();
        Ok(program)
    }

    /// Its length in bytes.
    pub fn size(&self) -> usize {
        self.offsets.last().zip(self.instructions.last()).map_or(0, |(&at, last)| at as usize + last.size())
    }

    /// The instruction that starts at a byte offset.
    pub fn index_at(&self, offset: usize) -> Option<u32> {
        let offset = u32::try_from(offset).ok()?;
        self.offsets.binary_search(&offset).ok().map(|index| index as u32)
    }

    /// Where a branch goes, as an instruction index.
    fn target(&self, index: usize) -> Option<u32> {
        let instruction = &self.instructions[index];
        let from = self.offsets[index] as i64;
        let target = match instruction.branch_distance() {
            Some(distance) => from + instruction.size() as i64 + distance,
            None => self.long_jump_target(index)?,
        };
        self.index_at(usize::try_from(target).ok()?)
    }

    /// The target of `s_getpc` + constant + `s_setpc`: what compilers emit where a branch does not reach.
    fn long_jump_target(&self, index: usize) -> Option<i64> {
        let jump = &self.instructions[index];
        if !jump.is(Format::Sop1, 0x20) || index < 3 {
            return None;
        }
        let [get, low, high] = &self.instructions[index - 3..index] else { return None };
        let register = |instruction: &Instruction, field| match instruction
            .definition
            .operand(field)
            .map(|slot| instruction.operand(slot))
        {
            Some(Source::Scalar(register)) => Some(register),
            _ => None,
        };
        let pair = register(jump, Field::Source0)?;
        let matches = get.is(Format::Sop1, 0x1f)
            && register(get, Field::Destination) == Some(pair)
            && low.is(Format::Sop2, 0x00)
            && register(low, Field::Destination) == Some(pair)
            && register(low, Field::Source0) == Some(pair)
            && high.is(Format::Sop2, 0x04)
            && register(high, Field::Destination) == Some(pair + 1)
            && register(high, Field::Source0) == Some(pair + 1);
        if !matches {
            return None;
        }
        let constant = |instruction: &Instruction| match instruction
            .definition
            .operand(Field::Source1)
            .map(|slot| instruction.operand(slot))
        {
            Some(Source::Literal(value)) => Some(value as i32 as i64),
            Some(Source::Integer(value)) => Some(value as i64),
            _ => None,
        };
        let distance = (constant(high)? << 32) | (constant(low)? & 0xffff_ffff);
        Some((self.offsets[index - 3] as i64 + 4).wrapping_add(distance))
    }

    fn find_blocks(&mut self) {
        if self.instructions.is_empty() {
            return;
        }
        let count = self.instructions.len();
        let mut starts = vec![false; count + 1];
        starts[0] = true;
        let mut targets = Vec::new();
        for index in 0..count {
            let instruction = &self.instructions[index];
            let call = matches!(
                (instruction.format(), instruction.definition.opcode),
                (Format::Sop1, 0x21) | (Format::Sopk, 0x16)
            );
            self.calls += call as u32;
            if instruction.is_branch() {
                match self.target(index) {
                    Some(target) => {
                        starts[target as usize] = true;
                        targets.push((index as u32, target));
                    }
                    None if instruction.format() == Format::Sop1 => self.unresolved_jumps += 1,
                    None => self.stray_branches += 1,
                }
                starts[index + 1] = true;
            } else if instruction.ends_block_for_good() {
                starts[index + 1] = true;
            }
        }
        let mut block_of = vec![0u32; count];
        let mut first = 0;
        for end in 1..=count {
            if end == count || starts[end] {
                let block = self.blocks.len() as u32;
                block_of[first..end].fill(block);
                self.blocks.push(Block { first: first as u32, end: end as u32, successors: [None; 2] });
                first = end;
            }
        }
        let total = self.blocks.len() as u32;
        let mut next_target = targets.into_iter().peekable();
        for (number, block) in self.blocks.iter_mut().enumerate() {
            let last = block.end - 1;
            let instruction = &self.instructions[last as usize];
            if !instruction.ends_block_for_good() && number as u32 + 1 < total {
                block.successors[0] = Some(number as u32 + 1);
            }
            if let Some((_, target)) = next_target.next_if(|&(from, _)| from == last) {
                block.successors[1] = Some(block_of[target as usize]);
            }
        }
    }
}
