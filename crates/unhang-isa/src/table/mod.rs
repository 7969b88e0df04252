//! The instruction set as a table: one row an instruction, read by the decoder, the printer, the audit and the
//! emulator alike.
//!
//! Opcodes, names and operand widths were read out of LLVM 19's disassembler for gfx1010, gfx1011, gfx1012, gfx1013
//! and gfx1030, opcode by opcode; the tests hold the table against it.
//!
//! A signature lists the operands in the order in which assembly prints them, three characters each:
//!
//! * where: `d` destination, `e` scalar destination of the long encoding, `a` `b` `c` sources 0 to 2 (in memory
//!   instructions: address, data, second data), `q` VCC without a field, `k` the 32-bit constant of
//!   `fmamk` and its kin, `o` marks two 8-bit offsets;
//! * what: `v` vector register, `s` scalar register, `r` either of them or a constant;
//! * how wide, in 32-bit registers: a digit, `g` for sixteen, `m` for a lane mask (one in wave32, two in wave64).
//!
//! Behind them stands what the instruction touches without naming it: `<` reads, `>` writes; `cc` SCC, `vc` VCC, `ex`
//! EXEC, `m0` M0. That every vector and memory instruction reads EXEC is not said. `!` says where the program goes on:
//! `br` at an offset or behind it, `jp` at an offset, `pc` at the address in a register, `ca` call, `en` nowhere.

mod memory;
mod scalar;
mod vector;
mod vector_long;

use crate::{Chip, Class};

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

/// Formats with the number of opcodes that their field can hold, and their rows.
const FORMATS: [(Format, usize, &[Row]); 20] = [
    (Format::Sop2, 128, scalar::SOP2),
    (Format::Sopk, 32, scalar::SOPK),
    (Format::Sop1, 256, scalar::SOP1),
    (Format::Sopc, 128, scalar::SOPC),
    (Format::Sopp, 128, scalar::SOPP),
    (Format::Smem, 256, scalar::SMEM),
    (Format::Vop1, 256, vector::VOP1),
    (Format::Vop2, 64, vector::VOP2),
    (Format::Vopc, 256, vector::VOPC),
    (Format::Vop3, 1024, vector_long::VOP3),
    (Format::Vop3p, 128, vector_long::VOP3P),
    (Format::Ds, 256, memory::DS),
    (Format::Flat, 128, memory::FLAT),
    (Format::Scratch, 128, memory::SCRATCH),
    (Format::Global, 128, memory::GLOBAL),
    (Format::Mubuf, 256, memory::MUBUF),
    (Format::Mtbuf, 16, memory::MTBUF),
    (Format::Mimg, 256, memory::MIMG),
    (Format::Vintrp, 1, &[row(0, ALL, "v_interp", "")]),
    (Format::Exp, 1, &[row(0, ALL, "exp", "")]),
];

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
pub enum Kind {
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
    pub kind: Kind,
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
    sets: u8,
    /// Bits: has source 0, 1, 2; has a constant behind it; has an operand wider than one register.
    pub(crate) shape: u8,
    operand_count: u8,
    operands: [Slot; 6],
}

/// Bits of [`Definition::shape`].
pub(crate) mod shape {
    pub const SOURCE_0: u8 = 1;
    pub const SOURCE_1: u8 = 2;
    pub const SOURCE_2: u8 = 4;
    pub const CONSTANT: u8 = 8;
    pub const WIDE: u8 = 16;
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

/// A row as it is written in the tables.
#[derive(Clone, Copy)]
pub(crate) struct Row {
    opcode: u16,
    sets: u8,
    mnemonic: &'static str,
    signature: &'static str,
}

const fn row(opcode: u16, sets: u8, mnemonic: &'static str, signature: &'static str) -> Row {
    Row { opcode, sets, mnemonic, signature }
}

// Bits by `Chip::instruction_set`.
const ALL: u8 = 0b1111;
const RDNA1: u8 = 0b0111;
const RDNA2: u8 = 0b1000;
/// gfx1011, gfx1012 and gfx103x: the chips with dot products.
const DOT: u8 = 0b1010;
/// gfx1013 and gfx103x: the chips with ray tracing.
const RAY: u8 = 0b1100;

const ROW_COUNT: usize = {
    let mut count = 0;
    let mut i = 0;
    while i < FORMATS.len() {
        count += FORMATS[i].2.len();
        i += 1;
    }
    count
};

const INDEX_SIZE: usize = {
    let mut size = 0;
    let mut i = 0;
    while i < FORMATS.len() {
        size += FORMATS[i].1;
        i += 1;
    }
    size
};

const NO_SLOT: Slot = Slot { field: Field::Constant, kind: Kind::Either, width: Width::Registers(0) };
const NONE: u16 = u16::MAX;

const fn class(format: Format) -> Class {
    match format {
        Format::Sop1 | Format::Sop2 | Format::Sopc | Format::Sopk | Format::Sopp => Class::Scalar,
        Format::Smem => Class::ScalarMemory,
        Format::Vop1 | Format::Vop2 | Format::Vopc | Format::Vop3 | Format::Vop3p | Format::Vintrp => Class::Vector,
        Format::Ds => Class::Local,
        Format::Flat => Class::Flat,
        Format::Scratch | Format::Global => Class::Segment,
        Format::Mubuf | Format::Mtbuf | Format::Mimg => Class::VectorMemory,
        Format::Exp => Class::Export,
    }
}

const fn parse(format: Format, index: u16, row: Row) -> Definition {
    let text = row.signature.as_bytes();
    let mut operands = [NO_SLOT; 6];
    let mut count = 0;
    let mut two_offsets = false;
    let mut shape = 0;
    let mut flow = Flow::Next;
    let (mut reads_scc, mut writes_scc, mut reads_vcc) = (false, false, false);
    let (mut reads_exec, mut writes_exec, mut reads_m0) = (false, false, false);
    // Every comparison writes a mask, if only EXEC.
    let mut writes_scalar = matches!(format, Format::Vopc) || matches!(format, Format::Vop3) && row.opcode < 0x100;
    let mut i = 0;
    while i < text.len() {
        let field = match text[i] {
            b'd' => Field::Destination,
            b'e' => Field::ScalarDestination,
            b'a' => Field::Source0,
            b'b' => Field::Source1,
            b'c' => Field::Source2,
            b'q' => Field::Vcc,
            b'k' => Field::Constant,
            b'o' => {
                two_offsets = true;
                i += 4;
                continue;
            }
            b'<' | b'>' | b'!' => {
                match (text[i], text[i + 1], text[i + 2]) {
                    (b'<', b'c', b'c') => reads_scc = true,
                    (b'>', b'c', b'c') => writes_scc = true,
                    (b'<', b'v', b'c') => reads_vcc = true,
                    (b'<', b'e', b'x') => reads_exec = true,
                    (b'>', b'e', b'x') => writes_exec = true,
                    (b'<', b'm', b'0') => reads_m0 = true,
                    (b'!', b'b', b'r') => flow = Flow::Branch,
                    (b'!', b'j', b'p') => flow = Flow::Jump,
                    (b'!', b'p', b'c') => flow = Flow::JumpRegister,
                    (b'!', b'c', b'a') => flow = Flow::Call,
                    (b'!', b'e', b'n') => flow = Flow::End,
                    _ => panic!("unknown effect in a signature"),
                }
                i += 4;
                continue;
            }
            _ => panic!("unknown field in a signature"),
        };
        let kind = match text[i + 1] {
            b'v' => Kind::Vector,
            b's' => Kind::Scalar,
            b'r' => Kind::Either,
            _ => panic!("unknown kind in a signature"),
        };
        let width = match text[i + 2] {
            digit @ b'1'..=b'8' => Width::Registers(digit - b'0'),
            b'g' => Width::Registers(16),
            b'm' => Width::LaneMask,
            _ => panic!("unknown width in a signature"),
        };
        match field {
            Field::Source0 => shape |= shape::SOURCE_0,
            Field::Source1 => shape |= shape::SOURCE_1,
            Field::Source2 => shape |= shape::SOURCE_2,
            Field::Constant => shape |= shape::CONSTANT,
            Field::ScalarDestination => writes_scalar = true,
            Field::Vcc if i + 4 < text.len() => writes_scalar = true,
            Field::Destination if matches!(kind, Kind::Scalar) => writes_scalar = true,
            _ => {}
        }
        if !matches!(width, Width::Registers(1) | Width::LaneMask) {
            shape |= shape::WIDE;
        }
        operands[count] = Slot { field, kind, width };
        count += 1;
        i += 4;
    }
    Definition {
        mnemonic: row.mnemonic,
        format,
        opcode: row.opcode,
        two_offsets,
        class: class(format),
        writes_scalar,
        flow,
        reads_scc,
        writes_scc,
        reads_vcc,
        reads_exec,
        writes_exec,
        reads_m0,
        index,
        shape,
        sets: row.sets,
        operand_count: count as u8,
        operands,
    }
}

#[allow(long_running_const_eval)]
static DEFINITIONS: [Definition; ROW_COUNT] = {
    const EMPTY: Definition = parse(Format::Exp, 0, row(0, 0, "", ""));
    let mut table = [EMPTY; ROW_COUNT];
    let mut next = 0;
    let mut i = 0;
    while i < FORMATS.len() {
        let (format, capacity, rows) = FORMATS[i];
        let mut j = 0;
        while j < rows.len() {
            assert!((rows[j].opcode as usize) < capacity, "opcode does not fit its field");
            table[next] = parse(format, next as u16, rows[j]);
            next += 1;
            j += 1;
        }
        i += 1;
    }
    table
};

#[allow(long_running_const_eval)]
static INDEX: [[u16; INDEX_SIZE]; 4] = {
    let mut index = [[NONE; INDEX_SIZE]; 4];
    let mut base = 0;
    let mut next = 0;
    let mut i = 0;
    while i < FORMATS.len() {
        let (_, capacity, rows) = FORMATS[i];
        let mut j = 0;
        while j < rows.len() {
            let place = base + rows[j].opcode as usize;
            let mut set = 0;
            while set < 4 {
                if rows[j].sets & (1 << set) != 0 {
                    assert!(index[set][place] == NONE, "two instructions under one number");
                    index[set][place] = next;
                }
                set += 1;
            }
            next += 1;
            j += 1;
        }
        base += capacity;
        i += 1;
    }
    index
};

/// The number of an instruction in an encoding, by its name in any case and without the `_e32` or `_e64` of the table.
pub(crate) const fn opcode_of(format: Format, name: &str) -> u16 {
    let (_, _, rows) = FORMATS[format as usize];
    let mut i = 0;
    while i < rows.len() {
        if is_called(rows[i].mnemonic.as_bytes(), name.as_bytes()) {
            return rows[i].opcode;
        }
        i += 1;
    }
    panic!("the table has no instruction of this name in this encoding")
}

const fn is_called(mnemonic: &[u8], name: &[u8]) -> bool {
    let mut i = 0;
    while i < name.len() {
        if i >= mnemonic.len() || !mnemonic[i].eq_ignore_ascii_case(&name[i]) {
            return false;
        }
        i += 1;
    }
    // Nothing is left, or the length of the encoding.
    mnemonic.len() == i || mnemonic.len() == i + 4 && mnemonic[i] == b'_' && mnemonic[i + 1] == b'e'
}

static BASES: [usize; FORMATS.len()] = {
    let mut bases = [0; FORMATS.len()];
    let mut i = 1;
    while i < FORMATS.len() {
        bases[i] = bases[i - 1] + FORMATS[i - 1].1;
        i += 1;
    }
    bases
};

/// Every instruction of every chip.
pub fn definitions() -> &'static [Definition] {
    &DEFINITIONS
}

/// The instruction that a chip has under a number, if any.
#[inline]
pub fn look_up(chip: Chip, format: Format, opcode: u16) -> Option<&'static Definition> {
    if opcode as usize >= FORMATS[format as usize].1 {
        return None;
    }
    let place = INDEX[chip.instruction_set()][BASES[format as usize] + opcode as usize];
    DEFINITIONS.get(place as usize)
}
