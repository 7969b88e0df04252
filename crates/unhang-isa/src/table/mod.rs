//! The instruction set as a table: one row an instruction, read by the decoder, the printer, the audit and the
//! emulator alike.
//!
//! Opcodes, names and operand widths were read out of LLVM 19's disassembler for gfx1010, gfx1011, gfx1012, gfx1013
//! and gfx1030, opcode by opcode. The tests compare the table with it.
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

mod definition;
mod memory;
mod row;
mod scalar;
mod vector;
mod vector_long;

pub(crate) use definition::shape;
pub use definition::{Class, Definition, Field, Flow, Format, OperandKind, Slot, Width};
use row::{ALL, Row, parse, row};

use crate::Chip;

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

const NONE: u16 = u16::MAX;

#[allow(long_running_const_eval, reason = "the whole table is parsed when the crate is compiled")]
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

#[allow(long_running_const_eval, reason = "the whole table is parsed when the crate is compiled")]
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
