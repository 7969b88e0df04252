//! A resolved instruction.

use super::comparisons::FastCompare;
use super::halves::HalvesOperation;
use super::memory::{BufferAccess, GlobalAccess, LocalAccess, ScalarLoad};
use super::operands::{ScalarOperand, TwoRows};
use super::pairs::{MultiplyAdd, PairsCompare, PairsOperation};
use crate::host::FastRow;
use crate::semantics::RowSource;
use crate::wave::Wave;

/// An instruction, resolved.
#[derive(Clone, Copy)]
pub(crate) struct Op {
    pub kind: OpKind,
    /// One more than the highest vector register that it names.
    pub registers: u16,
    /// Whether it needs the plain path in float modes other than the one for which it was resolved.
    pub usual_only: bool,
}

#[derive(Clone, Copy)]
pub(crate) enum OpKind {
    /// Takes the plain path.
    Plain,
    Nothing,
    /// The rows of the sources and of the destination.
    Rows {
        run: FastRow,
        rows: [u16; 4],
    },
    /// Rows of sources and destination, after some rows are filled.
    FilledRows {
        run: FastRow,
        rows: [u16; 4],
        sources: [RowSource; 3],
    },
    /// With sources that are first extracted from halves.
    Halves(HalvesOperation),
    Compare {
        run: FastCompare,
        outcomes: u8,
        operands: TwoRows,
        /// The register of the mask; EXEC for instructions that write it.
        destination: u8,
    },
    Select {
        operands: TwoRows,
        mask: u8,
        destination: u8,
    },
    Carry(Carry),
    Scalar {
        run: fn(&mut Wave, u64, u64) -> u64,
        sources: [ScalarOperand; 2],
        destination: u8,
        wide: bool,
    },
    SaveExec {
        run: fn(u64, u64) -> u64,
        source: ScalarOperand,
        destination: u8,
        wide: bool,
    },
    /// Lanes of 64 bits.
    Pairs(PairsOperation),
    ComparePairs(PairsCompare),
    MultiplyAdd(MultiplyAdd),
    ScalarCompare {
        holds: fn(u64, u64) -> bool,
        sources: [ScalarOperand; 2],
    },
    /// A 16-bit constant and a register.
    ScalarConstant {
        run: fn(&mut Wave, u32, i32) -> u32,
        constant: i32,
        destination: u8,
    },
    ConstantCompare {
        holds: fn(u32, i32) -> bool,
        source: ScalarOperand,
        constant: i32,
    },
    FirstLane {
        source: u8,
        destination: u8,
    },
    Branch {
        taken: fn(&Wave) -> bool,
    },
    Local(LocalAccess),
    Global(GlobalAccess),
    Buffer(BufferAccess),
    ScalarLoad(ScalarLoad),
}

/// A sum or a difference with carries in masks.
#[derive(Clone, Copy)]
pub(crate) struct Carry {
    pub(super) operands: TwoRows,
    pub(super) subtract: bool,
    pub(super) carry_in: Option<u8>,
    pub(super) carry_out: u8,
    pub(super) destination: u8,
}
