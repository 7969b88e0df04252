//! Instructions one by one: each is encoded, decoded and executed on a wave. Its results are compared with what the
//! documentation of the instruction set says, worked out here. A last test makes sure that no instruction is
//! implemented without a test.

mod assembled;
mod buffers;
mod declined;
mod division;
#[allow(unsafe_code, reason = "functions that are compiled for the host's vectors are called here one by one")]
mod fast;
mod fast_memory;
mod memory;
#[path = "../../../unhang-isa/tests/random/mod.rs"]
mod random;
mod scalar;
mod sources;
mod vector;
mod vector_table;

use std::collections::BTreeSet;

use unhang_isa::{Chip, Definition, Field, Format, Instruction, OperandKind, Width, decode, definitions};

use crate::Perturbation;
use crate::float::FloatMode;
use crate::registers::Registers;
use crate::semantics::Semantics;
use crate::wave::{EXEC, Standing, Wave};

/// The numbers of registers that the tests use.
pub(super) const SOURCES: [u32; 3] = [10, 12, 14];
pub(super) const DESTINATION: u32 = 20;
pub(super) const MASK_IN: u32 = 30;
pub(super) const MASK_OUT: u32 = 32;

/// A generated page with its prose in lines of at most 100 columns, as `tools/check-words` requires.
pub(super) fn in_lines(page: &str) -> String {
    let mut out = String::new();
    for line in page.lines() {
        if line.starts_with(['|', '#']) {
            out += line;
        } else {
            let indent = if line.starts_with("* ") { "  " } else { "" };
            let mut width = 0;
            for word in line.split(' ') {
                let length = word.chars().count();
                if width > 0 && width + 1 + length > 100 {
                    out += "\n";
                    out += indent;
                    width = indent.len();
                } else if width > 0 {
                    out += " ";
                    width += 1;
                }
                out += word;
                width += length;
            }
        }
        out += "\n";
    }
    out
}

/// Fields of an encoding apart from its operands.
#[derive(Clone, Copy, Default)]
pub(super) struct Extra {
    /// ORed into the first and second word. The second word of a short instruction is its constant.
    pub words: [u32; 2],
}

/// The words of an instruction with the tests' registers for operands.
pub(super) fn encode(definition: &'static Definition, extra: Extra) -> Instruction {
    let opcode = definition.opcode as u32;
    let source = |place: usize, field| match definition.operand(field) {
        None => 0,
        Some(slot) if slot.width == Width::LaneMask => MASK_IN,
        Some(slot) if slot.kind == OperandKind::Scalar => SOURCES[place],
        // All lanes use the same lane number.
        Some(_) if place == 1 && definition.base_name().ends_with("lane_b32") => SOURCES[place],
        Some(_) => 256 + SOURCES[place],
    };
    let [a, b, c] = [Field::Source0, Field::Source1, Field::Source2]
        .into_iter()
        .enumerate()
        .map(|(place, field)| source(place, field))
        .collect::<Vec<_>>()[..]
    else {
        unreachable!()
    };
    let scalar = |place: usize| SOURCES[place];
    let [data, second] = [SOURCES[1], SOURCES[2]];
    let (first, word) = match definition.format {
        Format::Sop2 => (0x8000_0000 | opcode << 23 | DESTINATION << 16 | scalar(1) << 8 | scalar(0), 0),
        Format::Sop1 => (0xbe80_0000 | DESTINATION << 16 | opcode << 8 | scalar(0), 0),
        Format::Sopc => (0xbf00_0000 | opcode << 16 | scalar(1) << 8 | scalar(0), 0),
        Format::Sopk => {
            let register = if definition.operand(Field::Destination).is_some() { DESTINATION } else { scalar(0) };
            (0xb000_0000 | opcode << 23 | register << 16, 0)
        }
        Format::Sopp => (0xbf80_0000 | opcode << 16, 0),
        Format::Smem => (0xf400_0000 | opcode << 18 | DESTINATION << 6 | (scalar(0) / 2), 125 << 25),
        Format::Vop1 => (0x7e00_0000 | DESTINATION << 17 | opcode << 9 | a, 0),
        Format::Vop2 => (opcode << 25 | DESTINATION << 17 | (b & 255) << 9 | a, 0),
        Format::Vopc => (0x7c00_0000 | opcode << 17 | (b & 255) << 9 | a, 0),
        Format::Vop3 => {
            let mask = if definition.operand(Field::ScalarDestination).is_some() { MASK_OUT << 8 } else { 0 };
            let scalar = definition.operand(Field::Destination).is_some_and(|slot| slot.width == Width::LaneMask);
            let destination = if scalar { MASK_OUT } else { DESTINATION };
            (0xd400_0000 | opcode << 16 | mask | destination, c << 18 | b << 9 | a)
        }
        Format::Vop3p => (0xcc00_0000 | opcode << 16 | DESTINATION, c << 18 | b << 9 | a),
        Format::Ds => (0xd800_0000 | opcode << 18, DESTINATION << 24 | second << 16 | data << 8 | SOURCES[0]),
        Format::Flat | Format::Global | Format::Scratch => {
            let segment = match definition.format {
                Format::Flat => 0,
                Format::Scratch => 1,
                _ => 2,
            };
            let first = 0xdc00_0000 | opcode << 18 | segment << 14;
            (first, DESTINATION << 24 | 0x7d << 16 | data << 8 | SOURCES[0])
        }
        Format::Mubuf => (0xe000_0000 | opcode << 18, 128 << 24 | (40 / 4) << 16 | data << 8 | SOURCES[0]),
        Format::Mtbuf => {
            let second = 128 << 24 | (opcode >> 3) << 21 | (40 / 4) << 16 | data << 8 | SOURCES[0];
            (0xe800_0000 | (opcode & 7) << 16, second)
        }
        _ => (0xf800_0000, 0),
    };
    let is_long = first >> 30 == 3;
    let second_word = if is_long { word | extra.words[1] } else { extra.words[1] };
    let words = [first | extra.words[0], second_word, 0];
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let chip = Chip::ALL.into_iter().find(|&chip| definition.exists_on(chip)).expect("some chip has it");
    let instruction = decode(&bytes, chip).unwrap_or_else(|error| panic!("{}: {error}", definition.mnemonic));
    assert_eq!(instruction.definition.mnemonic, definition.mnemonic);
    instruction
}

/// The lane whose results are checked, and an inactive one.
pub(super) const LANE: usize = 5;
pub(super) const OFF_LANE: usize = 6;
/// The contents of registers that nothing should touch.
pub(super) const UNTOUCHED: u32 = 0xdead_beef;
/// Rounding to nearest even, denormals kept, NaN clamped to zero.
pub(super) const MODE: u32 = 0x1f0;

/// A wave with two active lanes, in which every register holds [`UNTOUCHED`].
pub(super) fn wave() -> Wave {
    let mut wave = Wave {
        scalars: [UNTOUCHED; 128],
        vectors: Registers::new(64, UNTOUCHED),
        registers: 64,
        half: 0,
        wave64: false,
        scc: false,
        entry: 0,
        number: 0,
        workgroup: [0; 3],
        function: 0,
        index: 0,
        standing: Standing::Running,
        executed: 0,
        spans_units: false,
        mode_bits: MODE,
        mode: FloatMode::from_bits(MODE, Perturbation::None),
        flat_scratch: [0; 2],
        scratch: (0, 0),
        apertures: [0x1_0000 << 32, 0x2_0000 << 32],
        flushes: false,
        usual_mode: false,
    };
    wave.scalars[EXEC] = 1 << LANE | 1 << 9;
    wave
}

/// Puts sources into vector registers of one lane and into scalar registers of the same numbers.
pub(super) fn put_sources(wave: &mut Wave, sources: &[u64]) {
    for (&register, &value) in SOURCES.iter().zip(sources) {
        for (part, bits) in [(0, value as u32), (1, (value >> 32) as u32)] {
            let register = register as usize + part;
            wave.vectors[register][LANE] = bits;
            wave.scalars[register] = bits;
        }
    }
}

/// The encodings of an instruction, by name.
pub(super) fn forms(name: &str) -> impl Iterator<Item = &'static Definition> + '_ {
    let found: Vec<_> = definitions().iter().filter(move |definition| definition.base_name() == name).collect();
    assert!(!found.is_empty(), "{name} is not an instruction");
    found.into_iter()
}

/// The form in which an instruction is known, if it is: for hardware registers the mode register, for messages the
/// interrupt.
fn known_form(definition: &Definition) -> Extra {
    let special = definition.mnemonic.contains("reg_") || definition.mnemonic == "s_sendmsg";
    Extra { words: [special as u32, 0] }
}

/// The names of all instructions that are implemented in some form.
fn implemented() -> BTreeSet<&'static str> {
    let all = definitions().iter();
    let known = all.filter(|definition| {
        !matches!(definition.format, Format::Mimg | Format::Vintrp | Format::Exp)
            && !matches!(Semantics::of(&encode(definition, known_form(definition))), Semantics::Unsupported)
    });
    known.map(|definition| definition.base_name()).collect()
}

/// The names of all instructions that have a row in one of the tables.
fn tested() -> BTreeSet<&'static str> {
    let tables = [vector::names(), scalar::names(), memory::names(), buffers::names(), assembled::names()];
    tables.into_iter().flatten().collect()
}

/// No instruction is implemented without a test; the tables of these tests list them.
#[test]
fn every_implemented_instruction_has_a_row_in_a_table() {
    let (tested, implemented) = (tested(), implemented());
    let untested: Vec<_> = implemented.difference(&tested).collect();
    println!("{} instructions are implemented", implemented.len());
    assert!(untested.is_empty(), "implemented and not tested: {untested:?}");
    let unimplemented: Vec<_> = tested.difference(&implemented).collect();
    assert!(unimplemented.is_empty(), "tested and not implemented: {unimplemented:?}");
}
