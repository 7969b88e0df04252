//! Where the operands of resolved instructions are, and how they are read.

use crate::registers::{ROOMS, ZERO_ROOM};
use crate::semantics::{RowOperand, RowSource};
use crate::wave::{EXEC, LANES, Lanes, NULL, Wave};

/// Rows from this number on are extra rows, not registers.
pub(super) const IN_ROOM: u16 = 256;
pub(super) const ZERO: u16 = IN_ROOM + ZERO_ROOM as u16;

/// The row of a source: its register's, the one of zeros, or its extra row.
pub(super) fn row_of(source: &RowSource, place: usize) -> u16 {
    match source.from {
        RowOperand::Vector(register) if source.is_register() => register as u16,
        RowOperand::Constant(0) if source.flip == 0 => ZERO,
        _ => IN_ROOM + place as u16,
    }
}

/// Two sources and their rows.
#[derive(Clone, Copy)]
pub(crate) struct TwoRows {
    pub(super) sources: [RowSource; 2],
    pub(super) rows: [u16; 2],
}

impl TwoRows {
    pub(super) fn new(sources: [RowSource; 2]) -> TwoRows {
        TwoRows { sources, rows: [row_of(&sources[0], 0), row_of(&sources[1], 1)] }
    }
}

/// A scalar source.
#[derive(Clone, Copy)]
pub(crate) enum ScalarOperand {
    Register(u8),
    Pair(u8),
    Constant(u64),
}

impl Wave {
    #[inline(always)]
    pub(super) fn on(&self, half: usize) -> u32 {
        self.scalars[EXEC + half]
    }

    #[inline(always)]
    pub(super) fn operand(&self, operand: ScalarOperand) -> u64 {
        match operand {
            ScalarOperand::Register(register) => self.scalars[(register & 127) as usize] as u64,
            ScalarOperand::Pair(register) => self.scalar64(register),
            ScalarOperand::Constant(value) => value,
        }
    }

    /// The position of a row: a register of a half, or an extra row after all registers.
    #[inline(always)]
    pub(super) fn row_at(&self, row: u16, half: usize) -> usize {
        if row >= IN_ROOM {
            self.vectors.len() - ROOMS + (row - IN_ROOM) as usize
        } else {
            half * self.registers + row as usize
        }
    }

    /// A source as a whole register.
    #[inline(always)]
    pub(super) fn lanes_of(&self, source: &RowSource, half: usize) -> Lanes {
        let mut lanes = match source.from {
            RowOperand::Vector(register) => self.vectors[self.row_at(register as u16, half)],
            RowOperand::Scalar(register) => [self.scalar(register); LANES],
            RowOperand::Constant(value) => [value; LANES],
        };
        if source.keep != u32::MAX || source.flip != 0 {
            for lane in &mut lanes {
                *lane = (*lane & source.keep) ^ source.flip;
            }
        }
        lanes
    }

    /// Fills the extra rows of sources that are not registers.
    #[inline(always)]
    pub(super) fn fill(&mut self, sources: &[RowSource], rows: &[u16], half: usize) {
        let rooms = self.vectors.len() - ROOMS;
        for (place, source) in sources.iter().enumerate() {
            if rows[place] == IN_ROOM + place as u16 {
                self.vectors[rooms + place] = self.lanes_of(source, half);
            }
        }
    }

    /// The mask of a half in a register or a pair.
    #[inline(always)]
    pub(super) fn mask(&self, register: u8, half: usize) -> u32 {
        if register as usize == NULL { 0 } else { self.scalars[(register as usize + half) & 127] }
    }
}
