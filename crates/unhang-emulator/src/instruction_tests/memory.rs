//! Memory instructions: every width in every kind of memory.

use unhang_isa::{Definition, Format, Instruction, definitions};

use super::{DESTINATION, Extra, LANE, OFF_LANE, SOURCES, UNTOUCHED, encode, forms, wave};
use crate::memory::Window;
use crate::semantics::Semantics;
use crate::surroundings::{LocalBounds, Surroundings};
use crate::wave::{EXEC, LANES, Wave};
use crate::{FaultKind, Memory};

/// The contents of memory before a load, byte by byte.
const CONTENTS: [u8; 16] =
    [0x81, 0x92, 0xa3, 0xb4, 0xc5, 0xd6, 0xe7, 0xf8, 0x09, 0x1a, 0x2b, 0x3c, 0x4d, 0x5e, 0x6f, 0x70];
const WORDS: [u32; 4] = [0xb4a3_9281, 0xf8e7_d6c5, 0x3c2b_1a09, 0x706f_5e4d];

/// Loads of flat, global, scratch and buffer memory, and the resulting registers, which held 0xdeadbeef.
const LOADS: &[(&str, &[u32])] = &[
    ("ubyte", &[0x81]),
    ("sbyte", &[0xffff_ff81]),
    ("ushort", &[0x9281]),
    ("sshort", &[0xffff_9281]),
    ("dword", &[WORDS[0]]),
    ("dwordx2", &[WORDS[0], WORDS[1]]),
    ("dwordx3", &[WORDS[0], WORDS[1], WORDS[2]]),
    ("dwordx4", &WORDS),
    ("ubyte_d16", &[0xdead_0081]),
    ("ubyte_d16_hi", &[0x0081_beef]),
    ("sbyte_d16", &[0xdead_ff81]),
    ("sbyte_d16_hi", &[0xff81_beef]),
    ("short_d16", &[0xdead_9281]),
    ("short_d16_hi", &[0x9281_beef]),
];

/// The results of loads from LDS.
const LOCAL_LOADS: &[(&str, &[u32])] = &[
    ("ds_read_u8", &[0x81]),
    ("ds_read_i8", &[0xffff_ff81]),
    ("ds_read_u16", &[0x9281]),
    ("ds_read_i16", &[0xffff_9281]),
    ("ds_read_b32", &[WORDS[0]]),
    ("ds_read_b64", &[WORDS[0], WORDS[1]]),
    ("ds_read_b96", &[WORDS[0], WORDS[1], WORDS[2]]),
    ("ds_read_b128", &WORDS),
    ("ds_read_u8_d16", &[0xdead_0081]),
    ("ds_read_u8_d16_hi", &[0x0081_beef]),
    ("ds_read_i8_d16", &[0xdead_ff81]),
    ("ds_read_i8_d16_hi", &[0xff81_beef]),
    ("ds_read_u16_d16", &[0xdead_9281]),
    ("ds_read_u16_d16_hi", &[0x9281_beef]),
];

/// The contents of registers before a store.
const DATA: [u32; 4] = [0x4433_2211, 0x8877_6655, 0xccbb_aa99, 0x00ff_eedd];
const DATA_BYTES: [u8; 16] =
    [0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff, 0x00];

/// Stores, and which of these bytes arrive.
const STORES: &[(&str, std::ops::Range<usize>)] = &[
    ("byte", 0..1),
    ("byte_d16_hi", 2..3),
    ("short", 0..2),
    ("short_d16_hi", 2..4),
    ("dword", 0..4),
    ("dwordx2", 0..8),
    ("dwordx3", 0..12),
    ("dwordx4", 0..16),
];
const LOCAL_STORES: &[(&str, std::ops::Range<usize>)] = &[
    ("ds_write_b8", 0..1),
    ("ds_write_b8_d16_hi", 2..3),
    ("ds_write_b16", 0..2),
    ("ds_write_b16_d16_hi", 2..4),
    ("ds_write_b32", 0..4),
    ("ds_write_b64", 0..8),
    ("ds_write_b96", 0..12),
    ("ds_write_b128", 0..16),
];

const MINUS_2: u64 = -2i64 as u64;

/// Atomics: the global name and the local one with its type; old value, data, compared value; new value. All have 64
/// bits; the lower halves are the row for 32 bits.
const ATOMICS: &[(&str, &str, u64, u64, u64, u64)] = &[
    ("add", "add_u", u64::MAX, 3, 0, 2),
    ("sub", "sub_u", 2, 3, 0, u64::MAX),
    ("", "rsub_u", 2, 3, 0, 1),
    ("smin", "min_i", MINUS_2, 3, 0, MINUS_2),
    ("umin", "min_u", MINUS_2, 3, 0, 3),
    ("smax", "max_i", MINUS_2, 3, 0, 3),
    ("umax", "max_u", MINUS_2, 3, 0, MINUS_2),
    ("and", "and_b", 12, 10, 0, 8),
    ("or", "or_b", 12, 10, 0, 14),
    ("xor", "xor_b", 12, 10, 0, 6),
    ("inc", "inc_u", 7, 7, 0, 0),
    ("inc", "inc_u", 6, 7, 0, 7),
    ("dec", "dec_u", 0, 7, 0, 7),
    ("dec", "dec_u", 9, 7, 0, 7),
    ("dec", "dec_u", 5, 7, 0, 4),
    ("swap", "wrxchg_b", 5, 7, 0, 7),
    ("cmpswap", "cmpst_b", 5, 7, 5, 7),
    ("cmpswap", "cmpst_b", 5, 7, 6, 5),
];

/// Atomics on floats, with values as numbers.
const FLOAT_ATOMICS: &[(&str, &str, f32, f32, f32, f32)] = &[
    ("fmin", "min_f", 1.5, -2.0, 0.0, -2.0),
    ("fmax", "max_f", 1.5, -2.0, 0.0, 1.5),
    ("fcmpswap", "cmpst_f", 1.5, 7.0, 1.5, 7.0),
    ("fcmpswap", "cmpst_f", 1.5, 7.0, 2.0, 1.5),
    ("", "add_f", 1.5, 2.25, 0.0, 3.75),
];

const PLACES: [(&str, Format); 4] =
    [("flat", Format::Flat), ("global", Format::Global), ("scratch", Format::Scratch), ("buffer", Format::Mubuf)];

/// Instructions with a separate test function.
const OTHERS: &[&str] = &[
    "s_load_dword",
    "s_load_dwordx2",
    "s_load_dwordx4",
    "s_load_dwordx8",
    "s_load_dwordx16",
    "s_buffer_load_dword",
    "s_buffer_load_dwordx2",
    "s_buffer_load_dwordx4",
    "s_buffer_load_dwordx8",
    "s_buffer_load_dwordx16",
    "s_memtime",
    "s_memrealtime",
    "s_dcache_inv",
    "s_dcache_wb",
    "s_gl1_inv",
    "buffer_gl0_inv",
    "buffer_gl1_inv",
    "ds_nop",
    "ds_read2_b32",
    "ds_read2_b64",
    "ds_read2st64_b32",
    "ds_read2st64_b64",
    "ds_write2_b32",
    "ds_write2_b64",
    "ds_write2st64_b32",
    "ds_write2st64_b64",
    "ds_swizzle_b32",
    "ds_permute_b32",
    "ds_bpermute_b32",
    "global_atomic_csub",
    "buffer_atomic_csub",
];

/// The instruction with the row's name, if there is one.
pub(super) fn find(name: &str) -> Option<&'static Definition> {
    definitions().iter().find(|definition| definition.base_name() == name)
}

fn atomic_names(global: &str, local: &str, wide: bool) -> Vec<&'static Definition> {
    let mut names = Vec::new();
    if !global.is_empty() {
        names.extend(PLACES.map(|(place, _)| format!("{place}_atomic_{global}{}", if wide { "_x2" } else { "" })));
    }
    let (operation, kind) = local.split_at(local.len() - 1);
    let width = if wide { 64 } else { 32 };
    names.extend(["", "rtn_"].map(|returns| format!("ds_{operation}{returns}{kind}{width}")));
    names.iter().filter_map(|name| find(name)).collect()
}

pub(super) fn names() -> Vec<&'static str> {
    let mut names = Vec::new();
    for (place, _) in PLACES {
        let loads = LOADS.iter().map(|row| format!("{place}_load_{}", row.0));
        let stores = STORES.iter().map(|row| format!("{place}_store_{}", row.0));
        names.extend(loads.chain(stores).filter_map(|name| find(&name)));
    }
    for wide in [false, true] {
        names.extend(ATOMICS.iter().flat_map(|row| atomic_names(row.0, row.1, wide)));
        names.extend(FLOAT_ATOMICS.iter().flat_map(|row| atomic_names(row.0, row.1, wide)));
    }
    let mut names: Vec<&str> = names.into_iter().map(Definition::base_name).collect();
    names.extend(LOCAL_LOADS.iter().map(|row| row.0));
    names.extend(LOCAL_STORES.iter().map(|row| row.0));
    names.extend(OTHERS);
    names
}

/// Memory for a test: an allocation that also serves as private memory, and local memory.
pub(super) struct Bench {
    pub memory: Memory,
    pub at: u64,
    pub local: Vec<u8>,
    pub wave: Wave,
}

/// The offset of a test's bytes in every memory.
const OFFSET: u32 = 64;
pub(super) const SIZE: usize = 8192;
/// Word 3 of a descriptor: offsets are checked against NUM_RECORDS, single floats, components in order.
pub(super) const RAW: u32 = 3 << 28 | 1 << 24 | 22 << 12 | 0xfac;

impl Bench {
    pub(super) fn new() -> Bench {
        let mut memory = Memory::default();
        let at = memory.allocate(SIZE);
        let mut wave = wave();
        wave.scalars[EXEC] = 1 << LANE;
        wave.scratch = (at, 256);
        Bench { memory, at, local: vec![0; SIZE], wave }
    }

    /// The extra bits for an instruction's offset, in addition to its address.
    fn address(&mut self, format: Format) -> Extra {
        let offset = 16;
        let base = OFFSET - offset;
        let address = if matches!(format, Format::Flat | Format::Global) { self.at + base as u64 } else { base as u64 };
        self.wave.vectors[SOURCES[0] as usize][LANE] = address as u32;
        self.wave.vectors[SOURCES[0] as usize + 1][LANE] = (address >> 32) as u32;
        // The buffer's descriptor; the register is an offset in it.
        for (place, word) in [self.at as u32, (self.at >> 32) as u32, SIZE as u32, RAW].into_iter().enumerate() {
            self.wave.scalars[40 + place] = word;
        }
        Extra { words: [offset | if format == Format::Mubuf { 1 << 12 } else { 0 }, 0] }
    }

    fn place(&self, format: Format, byte: usize) -> usize {
        let offset = OFFSET as usize + byte;
        if format == Format::Scratch { (offset / 4 * LANES + LANE) * 4 + offset % 4 } else { offset }
    }

    fn write(&mut self, format: Format, bytes: &[u8]) {
        for (place, &byte) in bytes.iter().enumerate() {
            let at = self.place(format, place);
            match format {
                Format::Ds => self.local[at] = byte,
                _ => self.memory.write(self.at + at as u64, &[byte]).unwrap(),
            }
        }
    }

    fn read(&self, format: Format, count: usize) -> Vec<u8> {
        let byte = |place| {
            let at = self.place(format, place);
            let mut byte = [self.local[at]];
            if format != Format::Ds {
                self.memory.read(self.at + at as u64, &mut byte).unwrap();
            }
            byte[0]
        };
        (0..count).map(byte).collect()
    }

    pub(super) fn run(&mut self, instruction: &Instruction) -> Result<(), FaultKind> {
        self.run_within(instruction, LocalBounds::default()).0
    }

    /// Runs an instruction, and returns how many words it requested beyond LDS.
    fn run_within(&mut self, instruction: &Instruction, bounds: LocalBounds) -> (Result<(), FaultKind>, u64) {
        let Semantics::Memory(access) = Semantics::of(instruction) else {
            panic!("{} is not known", instruction.definition.mnemonic)
        };
        let mut around =
            Surroundings { global: Window::new(&self.memory), local: &mut self.local, races: None, bounds };
        let ended = self.wave.run_memory(instruction, access, &mut around);
        (ended, around.bounds.beyond)
    }

    pub(super) fn result(&self, format: Format, count: usize) -> Vec<u32> {
        // Buffer instructions use one register for both directions.
        let first = if matches!(format, Format::Mubuf | Format::Mtbuf) { SOURCES[1] } else { DESTINATION } as usize;
        (0..count).map(|word| self.wave.vector_lane(first + word, LANE)).collect()
    }
}

fn check_load(name: &str, format: Format, expected: &[u32]) {
    let Some(definition) = find(name) else { return };
    let mut bench = Bench::new();
    let extra = bench.address(format);
    bench.write(format, &CONTENTS);
    bench.run(&encode(definition, extra)).unwrap();
    assert_eq!(bench.result(format, expected.len()), expected, "{name}");
    let behind = bench.result(format, 5)[expected.len()];
    assert_eq!(behind, UNTOUCHED, "{name} wrote too much");
    assert_eq!(bench.wave.vector_lane(DESTINATION as usize, OFF_LANE), UNTOUCHED, "{name} in a lane that is off");
}

#[test]
fn loads() {
    for (place, format) in PLACES {
        for (name, expected) in LOADS {
            check_load(&format!("{place}_load_{name}"), format, expected);
        }
    }
    for (name, expected) in LOCAL_LOADS {
        check_load(name, Format::Ds, expected);
    }
}

fn check_store(name: &str, format: Format, bytes: std::ops::Range<usize>) {
    let Some(definition) = find(name) else { return };
    let mut bench = Bench::new();
    let extra = bench.address(format);
    for (word, data) in DATA.into_iter().enumerate() {
        bench.wave.vectors[SOURCES[1] as usize + word][LANE] = data;
    }
    bench.write(format, &CONTENTS);
    bench.run(&encode(definition, extra)).unwrap();
    let mut expected = CONTENTS;
    expected[..bytes.len()].copy_from_slice(&DATA_BYTES[bytes]);
    assert_eq!(bench.read(format, 16), expected, "{name}");
}

#[test]
fn stores() {
    for (place, format) in PLACES {
        for (name, bytes) in STORES {
            check_store(&format!("{place}_store_{name}"), format, bytes.clone());
        }
    }
    for (name, bytes) in LOCAL_STORES {
        check_store(name, Format::Ds, bytes.clone());
    }
}

fn check_atomic(definition: &'static Definition, wide: bool, [old, value, compare, new]: [u64; 4]) {
    let (format, name) = (definition.format, definition.base_name());
    let mut bench = Bench::new();
    let mut extra = bench.address(format);
    // Whether the old value is requested: a bit of the instruction, or a different instruction for local memory.
    let returns = match format {
        Format::Ds => name.contains("_rtn_"),
        Format::Mubuf => {
            extra.words[0] |= 1 << 14;
            true
        }
        _ => {
            extra.words[0] |= 1 << 16;
            true
        }
    };
    let width = if wide { 8 } else { 4 };
    let words = if wide { 2 } else { 1 };
    // Local memory: the comparison value is in the first register, the new one in the second.
    let compares = name.contains("cmp");
    let data = match (format, compares) {
        (Format::Ds, true) => [(SOURCES[1], compare), (SOURCES[2], value)],
        _ => [(SOURCES[1], value), (SOURCES[1] + words, compare)],
    };
    for (register, bits) in data {
        bench.wave.vectors[register as usize][LANE] = bits as u32;
        if wide {
            bench.wave.vectors[register as usize + 1][LANE] = (bits >> 32) as u32;
        }
    }
    bench.write(format, &old.to_le_bytes()[..width]);
    bench.run(&encode(definition, extra)).unwrap();
    assert_eq!(bench.read(format, width), new.to_le_bytes()[..width], "{name} of {old:#x} and {value:#x}");
    let found = bench.result(format, words as usize);
    if returns {
        assert_eq!(found[0], old as u32, "{name} returns");
        assert_eq!(found.last(), Some(&if wide { (old >> 32) as u32 } else { old as u32 }), "{name} returns");
    } else {
        assert_eq!(found[0], UNTOUCHED, "{name} returns nothing");
    }
}

#[test]
fn atomics() {
    for &(global, local, old, value, compare, new) in ATOMICS {
        for wide in [false, true] {
            for definition in atomic_names(global, local, wide) {
                check_atomic(definition, wide, [old, value, compare, new]);
            }
        }
    }
    for &(global, local, old, value, compare, new) in FLOAT_ATOMICS {
        for definition in atomic_names(global, local, false) {
            check_atomic(definition, false, [old, value, compare, new].map(|number| number.to_bits() as u64));
        }
        for definition in atomic_names(global, local, true) {
            check_atomic(definition, true, [old, value, compare, new].map(|number| (number as f64).to_bits()));
        }
    }
    for name in ["global_atomic_csub", "buffer_atomic_csub"] {
        for (old, new) in [(7, 4), (2, 0)] {
            check_atomic(find(name).unwrap(), false, [old, 3, 0, new]);
        }
    }
}

#[test]
fn scalar_loads() {
    for (size, count) in [("", 1), ("x2", 2), ("x4", 4), ("x8", 8), ("x16", 16)] {
        let mut bench = Bench::new();
        let words: Vec<u8> = (0..16u32).flat_map(|word| (word * 3 + 1).to_le_bytes()).collect();
        bench.memory.write(bench.at + 32, &words).unwrap();
        for name in [format!("s_load_dword{size}"), format!("s_buffer_load_dword{size}")] {
            bench.wave.set_scalar64(SOURCES[0] as u8, bench.at);
            bench.wave.scalars[SOURCES[1] as usize] = 32 + 4 * count;
            bench.wave.scalars[SOURCES[1] as usize + 1] = 0;
            bench.run(&encode(find(&name).unwrap(), Extra { words: [0, 32] })).unwrap();
            for word in 0..count {
                assert_eq!(bench.wave.scalar((DESTINATION + word) as u8), word * 3 + 1, "{name}");
            }
        }
        // Loads past the end of a buffer give zero.
        bench.wave.scalars[SOURCES[1] as usize] = 32;
        bench.run(&encode(find(&format!("s_buffer_load_dword{size}")).unwrap(), Extra { words: [0, 32] })).unwrap();
        assert_eq!(bench.wave.scalar(DESTINATION as u8), 0);
    }
    let mut bench = Bench::new();
    for name in ["s_memtime", "s_memrealtime"] {
        bench.wave.executed = 77;
        bench.run(&encode(find(name).unwrap(), Extra::default())).unwrap();
        assert_eq!(bench.wave.scalar64(DESTINATION as u8), 77);
    }
    for name in ["s_dcache_inv", "s_dcache_wb", "s_gl1_inv", "buffer_gl0_inv", "buffer_gl1_inv", "ds_nop"] {
        let before = bench.wave.scalars;
        bench.run(&encode(find(name).unwrap(), Extra::default())).unwrap();
        assert_eq!(bench.wave.scalars, before, "{name}");
    }
}

#[test]
fn pairs_in_local_memory() {
    for (name, stride, wide) in
        [("2_b32", 4, false), ("2_b64", 8, true), ("2st64_b32", 256, false), ("2st64_b64", 512, true)]
    {
        let mut bench = Bench::new();
        let base = 32usize;
        bench.wave.vectors[SOURCES[0] as usize][LANE] = base as u32;
        let count = 1 + wide as usize;
        for (register, value) in [(SOURCES[1], 11), (SOURCES[2], 33)] {
            for word in 0..count {
                bench.wave.vectors[register as usize + word][LANE] = value + word as u32;
            }
        }
        // Offsets 3 and 1.
        let extra = Extra { words: [3 | 1 << 8, 0] };
        bench.run(&encode(find(&format!("ds_write{name}")).unwrap(), extra)).unwrap();
        for (offset, value) in [(3, 11u32), (1, 33)] {
            for word in 0..count {
                let at = base + offset * stride + word * 4;
                assert_eq!(bench.local[at..at + 4], (value + word as u32).to_le_bytes(), "ds_write{name}");
            }
        }
        bench.run(&encode(find(&format!("ds_read{name}")).unwrap(), extra)).unwrap();
        let expected: Vec<u32> =
            [11, 33].iter().flat_map(|value| (0..count as u32).map(move |word| value + word)).collect();
        assert_eq!(bench.result(Format::Ds, count * 2), expected, "ds_read{name}");
    }
}

#[test]
fn lanes_exchange_values() {
    let mut bench = Bench::new();
    bench.wave.scalars[EXEC] = u32::MAX ^ 1 << OFF_LANE;
    for lane in 0..LANES {
        bench.wave.vectors[SOURCES[0] as usize][lane] = (lane as u32 * 7 % 32) * 4;
        bench.wave.vectors[SOURCES[1] as usize][lane] = 100 + lane as u32;
    }
    let result = |bench: &Bench, lane| bench.wave.vector_lane(DESTINATION as usize, lane);
    bench.run(&encode(find("ds_bpermute_b32").unwrap(), Extra::default())).unwrap();
    for lane in (0..LANES).filter(|&lane| lane != OFF_LANE) {
        let from = lane * 7 % 32;
        assert_eq!(result(&bench, lane), if from == OFF_LANE { 0 } else { 100 + from as u32 }, "lane {lane}");
    }
    assert_eq!(result(&bench, OFF_LANE), UNTOUCHED);
    bench.run(&encode(find("ds_permute_b32").unwrap(), Extra::default())).unwrap();
    for lane in (0..LANES).filter(|&lane| lane != OFF_LANE && lane * 7 % 32 != OFF_LANE) {
        assert_eq!(result(&bench, lane * 7 % 32), 100 + lane as u32, "lane {lane}");
    }
    // Swizzling: pairs exchanged by xor 1, and the lanes of a quad reversed. Then the examples of AMD's documents for the
    // other two modes: rotations by one with and without a mask, and the orders of Fourier transforms.
    let rotate = |right: u32, mask: u32| 0xc000 | right << 10 | 1 << 5 | mask;
    type SourceLane = fn(usize) -> usize;
    let cases: [(u32, SourceLane); 9] = [
        (1 << 10 | 31, |lane| lane ^ 1),
        (0x8000 | 0b00_01_10_11, |lane| lane ^ 3),
        (rotate(0, 0), |lane| (lane + 1) % 32),
        (rotate(1, 0), |lane| (lane + 31) % 32),
        (rotate(0, 1), |lane| if lane % 2 == 0 { lane } else { (lane + 2) % 32 }),
        (rotate(1, 1), |lane| if lane % 2 == 0 { (lane + 30) % 32 } else { lane }),
        (0xe000, |lane| {
            let first_quarter = [0, 16, 8, 24, 4, 20, 12, 28];
            first_quarter[lane % 8] + [0, 2, 1, 3][lane / 8]
        }),
        (0xe010, |lane| {
            let first_half = [0, 8, 4, 12, 2, 10, 6, 14, 1, 9, 5, 13, 3, 11, 7, 15];
            first_half[lane % 16] + lane / 16 * 16
        }),
        (0xe01f, |lane| lane),
    ];
    for (control, from) in cases {
        for lane in 0..LANES {
            bench.wave.vectors[SOURCES[0] as usize][lane] = 200 + lane as u32;
        }
        bench.run(&encode(find("ds_swizzle_b32").unwrap(), Extra { words: [control, 0] })).unwrap();
        for lane in (0..LANES).filter(|&lane| lane != OFF_LANE) {
            let expected = if from(lane) == OFF_LANE { 0 } else { 200 + from(lane) as u32 };
            assert_eq!(result(&bench, lane), expected, "{control:#x}, lane {lane}");
        }
    }
}

/// The words of all lanes alternate in private memory. An unaligned access must not see another lane's.
#[test]
fn private_accesses_may_cross_words() {
    for shift in 0..4u32 {
        for name in ["scratch_load_dwordx2", "scratch_load_ushort"] {
            let mut bench = Bench::new();
            bench.write(Format::Scratch, &CONTENTS);
            let mut extra = bench.address(Format::Scratch);
            extra.words[0] += shift;
            bench.run(&encode(find(name).unwrap(), extra)).unwrap();
            let bytes = &CONTENTS[shift as usize..];
            let low = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
            let found = bench.result(Format::Scratch, 1)[0];
            assert_eq!(found, if name.ends_with("short") { low & 0xffff } else { low }, "{name} at {shift}");
        }
        let mut bench = Bench::new();
        let mut extra = bench.address(Format::Scratch);
        extra.words[0] += shift;
        for (place, &word) in DATA.iter().enumerate() {
            bench.wave.vectors[SOURCES[1] as usize + place][LANE] = word;
        }
        bench.run(&encode(find("scratch_store_dwordx2").unwrap(), extra)).unwrap();
        let mut expected = vec![0; shift as usize];
        expected.extend(&DATA_BYTES[..8]);
        assert_eq!(bench.read(Format::Scratch, 8 + shift as usize), expected, "at {shift}");
    }
}

#[test]
fn bad_addresses_are_faults_and_buffers_have_ends() {
    let mut bench = Bench::new();
    let extra = bench.address(Format::Global);
    bench.wave.vectors[SOURCES[0] as usize][LANE] = (bench.at + SIZE as u64 - 18) as u32;
    let load = encode(forms("global_load_dword").next().unwrap(), extra);
    assert_eq!(bench.run(&load), Err(FaultKind::Memory { address: bench.at + SIZE as u64 - 2, size: 4 }));
    let extra = bench.address(Format::Ds);
    bench.wave.vectors[SOURCES[0] as usize][LANE] = SIZE as u32 - 16;
    let load = encode(forms("ds_read_b64").next().unwrap(), extra);
    assert_eq!(bench.run(&load), Err(FaultKind::Local { address: SIZE as u32, size: 8, limit: SIZE as u32 }));
    let extra = bench.address(Format::Scratch);
    bench.wave.vectors[SOURCES[0] as usize][LANE] = 240;
    let load = encode(forms("scratch_load_dword").next().unwrap(), extra);
    assert_eq!(bench.run(&load), Err(FaultKind::Private { offset: 256, limit: 256 }));
    // Loads past the end of a buffer give zero.
    let extra = bench.address(Format::Mubuf);
    bench.write(Format::Mubuf, &CONTENTS);
    bench.wave.scalars[42] = OFFSET + 6;
    bench.run(&encode(forms("buffer_load_dwordx2").next().unwrap(), extra)).unwrap();
    assert_eq!(bench.result(Format::Mubuf, 2), [WORDS[0], 0]);
}

/// As on the card: loads beyond the end give zero and stores are dropped, word by word.
#[test]
fn what_lies_beyond_local_memory_is_zero_where_that_is_asked_for() {
    let mut bench = Bench::new();
    let extra = bench.address(Format::Ds);
    let end = SIZE as u32;
    bench.local[SIZE - 4..].copy_from_slice(&WORDS[0].to_le_bytes());
    for (name, address, expected, beyond) in [
        ("ds_read_b64", end - 20, [WORDS[0], 0], 1),
        ("ds_read_b64", end - 16, [0, 0], 2),
        ("ds_read_b64", u32::MAX - 40, [0, 0], 2),
    ] {
        bench.wave.vectors[SOURCES[0] as usize][LANE] = address;
        let load = encode(forms(name).next().unwrap(), extra);
        assert_eq!(bench.run_within(&load, LocalBounds::new(false)), (Ok(()), beyond), "{name} at {address:#x}");
        assert_eq!(bench.result(Format::Ds, 2), expected, "{name} at {address:#x}");
    }
    bench.wave.vectors[SOURCES[0] as usize][LANE] = end - 20;
    for (word, data) in DATA.into_iter().enumerate() {
        bench.wave.vectors[SOURCES[1] as usize + word][LANE] = data;
    }
    let store = encode(forms("ds_write_b64").next().unwrap(), extra);
    assert_eq!(bench.run_within(&store, LocalBounds::new(false)), (Ok(()), 1));
    assert_eq!(bench.local[SIZE - 4..], DATA[0].to_le_bytes());
    let atomic = encode(forms("ds_add_u32").next().unwrap(), extra);
    bench.wave.vectors[SOURCES[0] as usize][LANE] = end;
    assert_eq!(bench.run_within(&atomic, LocalBounds::new(false)), (Ok(()), 1));
    assert!(bench.run_within(&atomic, LocalBounds::new(true)).0.is_err());
}

#[test]
fn wide_accesses_that_are_not_aligned_are_seen() {
    let mut bench = Bench::new();
    for (name, address, offset, misaligned) in [
        ("ds_read_b64", 8, 0, false),
        ("ds_read_b64", 4, 0, true),
        ("ds_read_b64", 4, 4, false),
        ("ds_write_b128", 8, 0, true),
        ("ds_write_b128", 16, 32, false),
        ("ds_read2_b64", 8, 1 | 3 << 8, false),
        ("ds_read2_b64", 12, 1, true),
        ("ds_read2st64_b64", 12, 1, true),
        ("ds_write_b96", 8, 0, true),
        ("ds_read2_b32", 4, 0, false),
        ("ds_read_b32", 4, 0, false),
        ("flat_load_dword", 4, 0, false),
        ("flat_load_dwordx2", 4, 0, true),
        ("flat_load_dwordx2", 24, 0, false),
        ("flat_store_dwordx3", 8, 0, true),
        ("flat_store_dwordx3", 16, 0, false),
        ("flat_store_dwordx4", 4, 0, true),
        // In global memory it does not matter.
        ("global_load_dwordx4", 4, 0, false),
    ] {
        bench.wave.vectors[SOURCES[0] as usize][LANE] = address;
        bench.wave.vectors[SOURCES[0] as usize + 1][LANE] = (bench.wave.apertures[0] >> 32) as u32;
        let instruction = encode(find(name).unwrap(), Extra { words: [offset, 0] });
        assert_eq!(bench.wave.is_misaligned(&instruction), misaligned, "{name} {address} {offset}");
    }
    bench.wave.vectors[SOURCES[0] as usize + 1][LANE] += 7;
    let elsewhere = encode(find("flat_store_dwordx4").unwrap(), Extra { words: [0, 0] });
    assert!(!bench.wave.is_misaligned(&elsewhere));
}
