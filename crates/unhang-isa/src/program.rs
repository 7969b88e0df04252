//! A decoded function and its control-flow graph.

use thiserror::Error;

use crate::pc_relative::{self, Reference};
use crate::table::Flow;
use crate::{Chip, DecodeError, Instruction, decode};

/// Why a function could not be decoded.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ProgramError {
    /// A word that is not an instruction.
    #[error("at offset {offset:#x} of the function: {source}")]
    Decode {
        /// Bytes from the start of the function.
        offset: usize,
        /// What is wrong there.
        source: DecodeError,
    },
    /// The function is longer than any branch or descriptor could need.
    #[error("the function has {0} bytes; more than {max} are not looked at", max = Program::MAX_BYTES)]
    TooLong(usize),
}

/// Instructions that are entered at the first and left at the last.
#[derive(Clone, Debug, Default)]
pub struct Block {
    /// The first instruction.
    pub first: u32,
    /// One past the last instruction.
    pub end: u32,
    /// The blocks that can follow it.
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
    /// Jumps through a register with an unknown target, including returns.
    pub unresolved_jumps: u32,
    /// Branches that leave the function or land inside an instruction.
    pub stray_branches: u32,
    /// Calls.
    pub calls: u32,
    /// The addresses that it computes from its own, in the order of the code.
    pub(crate) references: Vec<Reference>,
    /// Each `s_getpc_b64` whose use is not understood.
    pub(crate) unknown_addresses: Vec<u32>,
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
            references: Vec::new(),
            unknown_addresses: Vec::new(),
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

    /// The target of a relative branch, as an instruction index.
    pub(crate) fn branch_target(&self, index: usize) -> Option<u32> {
        let instruction = &self.instructions[index];
        let target = self.offsets[index] as i64 + instruction.size() as i64 + instruction.branch_distance()?;
        self.index_at(usize::try_from(target).ok()?)
    }

    /// A reference's target, in bytes from the start of the function.
    pub(crate) fn referred(&self, reference: &Reference) -> i64 {
        (self.offsets[reference.get as usize] as i64 + 4).wrapping_add(reference.offset)
    }

    /// Resolves the uses of `s_getpc_b64`, given the targets of relative branches, and adds the targets of long
    /// branches.
    fn find_references(&mut self, gets: &[u32], targets: &mut Vec<(u32, u32)>) {
        let mut landings: Vec<u32> = targets.iter().map(|&(_, target)| target).collect();
        landings.sort_unstable();
        for &get in gets {
            match pc_relative::find(&self.instructions, get as usize, self.wave64) {
                Some(reference) if !is_entered(&reference, &landings) => self.references.push(reference),
                _ => self.unknown_addresses.push(get),
            }
        }
        let mut long = Vec::new();
        for reference in &self.references {
            let target = usize::try_from(self.referred(reference)).ok().and_then(|target| self.index_at(target));
            long.extend(reference.jumps.into_iter().flatten().filter_map(|jump| Some((jump, target?))));
        }
        // A long branch into the parts of another one invalidates that one.
        let mut landings: Vec<u32> = long.iter().map(|&(_, target)| target).collect();
        landings.sort_unstable();
        let (entered, whole): (Vec<_>, Vec<_>) =
            self.references.iter().partition(|reference| is_entered(reference, &landings));
        self.references = whole;
        for reference in entered {
            long.retain(|(jump, _)| !reference.jumps.contains(&Some(*jump)));
            self.unknown_addresses.push(reference.get);
        }
        targets.append(&mut long);
        targets.sort_unstable();
    }

    fn find_blocks(&mut self) {
        if self.instructions.is_empty() {
            return;
        }
        let count = self.instructions.len();
        let mut starts = vec![false; count + 1];
        starts[0] = true;
        let (mut targets, mut gets) = (Vec::new(), Vec::new());
        for index in 0..count {
            let instruction = &self.instructions[index];
            match instruction.definition.flow {
                Flow::Next if pc_relative::begins(instruction) => gets.push(index as u32),
                Flow::Next => {}
                Flow::Call => self.calls += 1,
                Flow::Branch | Flow::Jump => {
                    match self.branch_target(index) {
                        Some(target) => targets.push((index as u32, target)),
                        None => self.stray_branches += 1,
                    }
                    starts[index + 1] = true;
                }
                Flow::JumpRegister => {
                    self.unresolved_jumps += 1;
                    starts[index + 1] = true;
                }
                Flow::End => starts[index + 1] = true,
            }
        }
        if !gets.is_empty() {
            let relative = targets.len();
            self.find_references(&gets, &mut targets);
            self.unresolved_jumps -= (targets.len() - relative) as u32;
        }
        for &(_, target) in &targets {
            starts[target as usize] = true;
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

/// Whether one of these instructions, to which branches go, is between the parts of a reference.
fn is_entered(reference: &Reference, landings: &[u32]) -> bool {
    let first = landings.partition_point(|&landing| landing <= reference.get);
    landings[first..].iter().take_while(|&&it| it <= reference.last).any(|&it| reference.is_entered_at(it))
}
