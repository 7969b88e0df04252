//! A row of the table as it is written, and what its signature means. The parent module explains the characters.

use super::definition::{Class, Definition, Field, Flow, Format, OperandKind, Slot, Width, shape};

/// A row as it is written in the tables.
#[derive(Clone, Copy)]
pub(super) struct Row {
    pub(super) opcode: u16,
    pub(super) sets: u8,
    pub(super) mnemonic: &'static str,
    signature: &'static str,
}

pub(super) const fn row(opcode: u16, sets: u8, mnemonic: &'static str, signature: &'static str) -> Row {
    Row { opcode, sets, mnemonic, signature }
}

// Bits by `Chip::instruction_set`.
pub(super) const ALL: u8 = 0b1111;
pub(super) const RDNA1: u8 = 0b0111;
pub(super) const RDNA2: u8 = 0b1000;
/// gfx1011, gfx1012 and gfx103x: the chips with dot products.
pub(super) const DOT: u8 = 0b1010;
/// gfx1013 and gfx103x: the chips with ray tracing.
pub(super) const RAY: u8 = 0b1100;

const NO_SLOT: Slot = Slot { field: Field::Constant, kind: OperandKind::Either, width: Width::Registers(0) };

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

/// What a signature says beside the operands.
struct Signature {
    operands: [Slot; 6],
    count: usize,
    two_offsets: bool,
    shape: u8,
    writes_scalar: bool,
    flow: Flow,
    reads_scc: bool,
    writes_scc: bool,
    reads_vcc: bool,
    reads_exec: bool,
    writes_exec: bool,
    reads_m0: bool,
}

/// An operand, from its three characters.
const fn slot(text: [u8; 3]) -> Slot {
    let field = match text[0] {
        b'd' => Field::Destination,
        b'e' => Field::ScalarDestination,
        b'a' => Field::Source0,
        b'b' => Field::Source1,
        b'c' => Field::Source2,
        b'q' => Field::Vcc,
        b'k' => Field::Constant,
        _ => panic!("unknown field in a signature"),
    };
    let kind = match text[1] {
        b'v' => OperandKind::Vector,
        b's' => OperandKind::Scalar,
        b'r' => OperandKind::Either,
        _ => panic!("unknown kind in a signature"),
    };
    let width = match text[2] {
        digit @ b'1'..=b'8' => Width::Registers(digit - b'0'),
        b'g' => Width::Registers(16),
        b'm' => Width::LaneMask,
        _ => panic!("unknown width in a signature"),
    };
    Slot { field, kind, width }
}

impl Signature {
    /// Notes what the instruction touches without naming it, or where the program goes on.
    const fn note_effect(&mut self, text: [u8; 3]) {
        match text {
            [b'<', b'c', b'c'] => self.reads_scc = true,
            [b'>', b'c', b'c'] => self.writes_scc = true,
            [b'<', b'v', b'c'] => self.reads_vcc = true,
            [b'<', b'e', b'x'] => self.reads_exec = true,
            [b'>', b'e', b'x'] => self.writes_exec = true,
            [b'<', b'm', b'0'] => self.reads_m0 = true,
            [b'!', b'b', b'r'] => self.flow = Flow::Branch,
            [b'!', b'j', b'p'] => self.flow = Flow::Jump,
            [b'!', b'p', b'c'] => self.flow = Flow::JumpRegister,
            [b'!', b'c', b'a'] => self.flow = Flow::Call,
            [b'!', b'e', b'n'] => self.flow = Flow::End,
            _ => panic!("unknown effect in a signature"),
        }
    }

    /// Adds an operand; `is_last` if nothing stands behind it.
    const fn add(&mut self, slot: Slot, is_last: bool) {
        match slot.field {
            Field::Source0 => self.shape |= shape::SOURCE_0,
            Field::Source1 => self.shape |= shape::SOURCE_1,
            Field::Source2 => self.shape |= shape::SOURCE_2,
            Field::Constant => self.shape |= shape::CONSTANT,
            Field::ScalarDestination => self.writes_scalar = true,
            Field::Vcc if !is_last => self.writes_scalar = true,
            Field::Destination if matches!(slot.kind, OperandKind::Scalar) => self.writes_scalar = true,
            _ => {}
        }
        if !matches!(slot.width, Width::Registers(1) | Width::LaneMask) {
            self.shape |= shape::WIDE;
        }
        self.operands[self.count] = slot;
        self.count += 1;
    }

    const fn parse(text: &[u8]) -> Signature {
        let mut signature = Signature {
            operands: [NO_SLOT; 6],
            count: 0,
            two_offsets: false,
            shape: 0,
            writes_scalar: false,
            flow: Flow::Next,
            reads_scc: false,
            writes_scc: false,
            reads_vcc: false,
            reads_exec: false,
            writes_exec: false,
            reads_m0: false,
        };
        let mut i = 0;
        while i < text.len() {
            match text[i] {
                b'o' => signature.two_offsets = true,
                b'<' | b'>' | b'!' => signature.note_effect([text[i], text[i + 1], text[i + 2]]),
                _ => signature.add(slot([text[i], text[i + 1], text[i + 2]]), i + 4 >= text.len()),
            }
            i += 4;
        }
        signature
    }
}

/// A row as a definition.
pub(super) const fn parse(format: Format, index: u16, row: Row) -> Definition {
    let signature = Signature::parse(row.signature.as_bytes());
    // Every comparison writes a mask, if only EXEC.
    let compares = matches!(format, Format::Vopc) || matches!(format, Format::Vop3) && row.opcode < 0x100;
    Definition {
        mnemonic: row.mnemonic,
        format,
        opcode: row.opcode,
        two_offsets: signature.two_offsets,
        class: class(format),
        writes_scalar: compares || signature.writes_scalar,
        flow: signature.flow,
        reads_scc: signature.reads_scc,
        writes_scc: signature.writes_scc,
        reads_vcc: signature.reads_vcc,
        reads_exec: signature.reads_exec,
        writes_exec: signature.writes_exec,
        reads_m0: signature.reads_m0,
        index,
        shape: signature.shape,
        sets: row.sets,
        operand_count: signature.count as u8,
        operands: signature.operands,
    }
}
