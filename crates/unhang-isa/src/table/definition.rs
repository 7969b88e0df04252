//! What a row of the table says of an instruction.

use crate::Chip;

/// An encoding: how the fields lie in the words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// Two scalar sources.
    Sop2,
    /// Scalar with a 16-bit constant.
    Sopk,
    /// One scalar source.
    Sop1,
    /// Scalar comparison.
    Sopc,
    /// Program flow.
    Sopp,
    /// Scalar memory.
    Smem,
    /// One vector source.
    Vop1,
    /// Two vector sources.
    Vop2,
    /// Vector comparison.
    Vopc,
    /// Vector, long form.
    Vop3,
    /// Packed vector arithmetic.
    Vop3p,
    /// Local data share.
    Ds,
    /// Flat memory.
    Flat,
    /// Scratch memory.
    Scratch,
    /// Global memory.
    Global,
    /// Untyped buffer.
    Mubuf,
    /// Typed buffer.
    Mtbuf,
    /// Image.
    Mimg,
    /// Interpolation; graphics only.
    Vintrp,
    /// Export; graphics only.
    Exp,
}

/// The unit that executes an instruction, in the terms of LLVM's hazard recogniser.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// Scalar arithmetic and program flow.
    Scalar,
    /// Scalar memory.
    ScalarMemory,
    /// Vector arithmetic.
    Vector,
    /// Buffers and images.
    VectorMemory,
    /// Flat memory instructions, which may go to any of the segments.
    Flat,
    /// Global and scratch memory instructions.
    Segment,
    /// Local data share.
    Local,
    /// Exports; graphics only.
    Export,
}

/// Where an operand is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// The destination.
    Destination,
    /// The scalar destination of the long vector encoding.
    ScalarDestination,
    /// Source 0, or the address of a memory instruction.
    Source0,
    /// Source 1, or the data of a memory instruction.
    Source1,
    /// Source 2, or the second data of a memory instruction.
    Source2,
    /// VCC, which has no field.
    Vcc,
    /// The 32-bit constant after the instruction.
    Constant,
}

/// What an operand can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperandKind {
    /// A vector register.
    Vector,
    /// A scalar register.
    Scalar,
    /// Either, or a constant.
    Either,
}

/// How wide an operand is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    /// That many 32-bit registers.
    Registers(u8),
    /// One bit a lane: one register in wave32, two in wave64.
    LaneMask,
}

impl Width {
    /// The number of 32-bit registers, given the lanes of a wave.
    pub fn registers(self, wave64: bool) -> u8 {
        match self {
            Width::Registers(count) => count,
            Width::LaneMask => 1 + wave64 as u8,
        }
    }
}

/// One operand of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Where it is encoded.
    pub field: Field,
    /// What it can be.
    pub kind: OperandKind,
    /// How wide it is.
    pub width: Width,
}

/// Where a program goes on behind an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// At the next instruction.
    Next,
    /// At an offset or at the next instruction.
    Branch,
    /// At an offset.
    Jump,
    /// At the address in a register.
    JumpRegister,
    /// Elsewhere, and then at the next instruction.
    Call,
    /// Nowhere that the code shows.
    End,
}

/// One instruction of the instruction set.
#[derive(Debug)]
pub struct Definition {
    /// Its name in LLVM's assembly, with the `_e32` or `_e64` that LLVM prints.
    pub mnemonic: &'static str,
    /// Its encoding.
    pub format: Format,
    /// Its number within the encoding.
    pub opcode: u16,
    /// Whether a DS instruction has two offsets of 8 bits in place of one of 16.
    pub two_offsets: bool,
    /// The unit that executes it.
    pub class: Class,
    /// Whether it is a vector instruction that writes scalar registers: a mask, EXEC, or one lane's value.
    pub writes_scalar: bool,
    /// Where the program goes on behind it.
    pub flow: Flow,
    /// Whether it reads SCC, other than as a source that it names.
    pub reads_scc: bool,
    /// Whether it writes SCC.
    pub writes_scc: bool,
    /// Whether it reads VCC without a field for it, other than as an operand that assembly prints.
    pub reads_vcc: bool,
    /// Whether it is a scalar instruction that reads EXEC without a field for it.
    pub reads_exec: bool,
    /// Whether it is a scalar instruction that writes EXEC without a field for it.
    pub writes_exec: bool,
    /// Whether it reads M0 without a field for it, whatever its other fields say.
    pub reads_m0: bool,
    /// Place in the table, for callers that keep a table of their own beside this one.
    pub index: u16,
    pub(super) sets: u8,
    /// Bits: has source 0, 1, 2; has a constant behind it; has an operand wider than one register.
    pub(crate) shape: u8,
    pub(super) operand_count: u8,
    pub(super) operands: [Slot; 6],
}

/// Bits of [`Definition::shape`].
pub(crate) mod shape {
    pub(crate) const SOURCE_0: u8 = 1;
    pub(crate) const SOURCE_1: u8 = 2;
    pub(crate) const SOURCE_2: u8 = 4;
    pub(crate) const CONSTANT: u8 = 8;
    pub(crate) const WIDE: u8 = 16;
}

impl Definition {
    /// The operands, in the order in which assembly prints them.
    #[inline]
    pub fn operands(&self) -> &[Slot] {
        &self.operands[..self.operand_count as usize]
    }

    /// The operand in a field, if it has one there.
    pub fn operand(&self, field: Field) -> Option<Slot> {
        self.operands().iter().copied().find(|slot| slot.field == field)
    }

    /// Whether the chip has this instruction under this number.
    pub fn exists_on(&self, chip: Chip) -> bool {
        self.sets & (1 << chip.instruction_set()) != 0
    }

    /// The name without the `_e32` or `_e64`.
    pub fn base_name(&self) -> &'static str {
        self.mnemonic.strip_suffix("_e32").or_else(|| self.mnemonic.strip_suffix("_e64")).unwrap_or(self.mnemonic)
    }
}
