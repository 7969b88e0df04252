//! Buffers: the effect of each field of a descriptor on loads, stores and atomics, and each typed access.

use std::io::Write;
use std::process::{Command, Stdio};

use unhang_isa::{Format, Instruction, definitions};

use super::fast::run_fast;
use super::memory::{Bench, RAW, SIZE, find};
use super::{DESTINATION, Extra, LANE, SOURCES, UNTOUCHED, encode};
use crate::FaultKind;
use crate::buffer_format::{DataFormat, Number};
use crate::fast::resolve::resolve;
use crate::memory::Window;
use crate::semantics::Semantics;
use crate::surroundings::{LocalBounds, Surroundings};
use crate::wave::M0;

/// Bits of an instruction: it has an offset, has an index, sends data to LDS, returns the old value.
const OFFEN: u32 = 1 << 12;
const IDXEN: u32 = 1 << 13;
const TO_LOCAL: u32 = 1 << 16;
const RETURNS: u32 = 1 << 14;

/// Names of typed accesses.
pub(super) fn names() -> Vec<&'static str> {
    definitions().iter().map(|definition| definition.base_name()).filter(|name| name.contains("_format_")).collect()
}

/// A descriptor without its base: stride with the swizzling bit, records, and word 3.
#[derive(Clone, Copy, Debug)]
struct Words(u32, u32, u32);

/// Word 3 with another OOB_SELECT.
const fn select(number: u32) -> u32 {
    RAW & !(3 << 28) | number << 28
}

const SWIZZLED: u32 = 1 << 15;
/// Word 3 of Triton's descriptors for chips of a family that it does not know.
const TRITON: u32 = 0x27000;

fn bench(Words(stride, records, last): Words) -> Bench {
    let mut bench = Bench::new();
    let contents: Vec<u8> = (0..SIZE as u32 / 4).flat_map(|word| (word * 4 + 1).to_le_bytes()).collect();
    bench.memory.write(bench.at, &contents).unwrap();
    let base = [bench.at as u32, (bench.at >> 32) as u32 | stride << 16, records, last];
    bench.wave.scalars[40..44].copy_from_slice(&base);
    bench
}

/// Puts index and offset where an instruction reads them. Returns the instruction's bits.
fn place(bench: &mut Bench, index: Option<u32>, offset: Option<u32>) -> u32 {
    let registers = index.into_iter().chain(offset);
    for (word, value) in registers.enumerate() {
        bench.wave.vectors[SOURCES[0] as usize + word][LANE] = value;
    }
    index.map_or(0, |_| IDXEN) | offset.map_or(0, |_| OFFEN)
}

fn word_at(bench: &Bench, offset: u64) -> u32 {
    let mut bytes = [0; 4];
    bench.memory.read(bench.at + offset, &mut bytes).unwrap();
    u32::from_le_bytes(bytes)
}

/// Runs an instruction by the plain path and, on an equal bench, by the fast one if it has it; both must agree.
fn run(bench: &mut Bench, words: Words, instruction: &Instruction) {
    let op = resolve(instruction, &Semantics::of(instruction), false);
    let mut other = self::bench(words);
    other.wave = bench.wave.clone();
    for register in 40..42 {
        other.wave.scalars[register] = [other.at as u32, (other.at >> 32) as u32 | words.0 << 16][register - 40];
    }
    let mut around = Surroundings {
        global: Window::new(&other.memory),
        local: &mut other.local,
        races: None,
        bounds: LocalBounds::default(),
    };
    let ran = run_fast(&mut other.wave, &op, &mut around, false, false);
    bench.run(instruction).unwrap();
    if ran {
        for register in 0..bench.wave.registers {
            assert_eq!(other.wave.vectors[register], bench.wave.vectors[register], "v{register} of {instruction:?}");
        }
        let mut contents = [vec![0; SIZE], vec![0; SIZE]];
        bench.memory.read(bench.at, &mut contents[0]).unwrap();
        other.memory.read(other.at, &mut contents[1]).unwrap();
        assert!(contents[0] == contents[1], "memory after {instruction:?}");
    }
}

/// A descriptor, an index and an offset; then the position of the word there, `Ok` if it is in range.
type Range = (Words, Option<u32>, Option<u32>, Result<u64, u64>);

#[rustfmt::skip]
const RANGES: &[Range] = &[
    // Index and offset.
    (Words(16, 4, select(0)), Some(3), Some(12), Ok(60)),
    (Words(16, 4, select(0)), Some(3), Some(16), Err(64)),
    (Words(16, 4, select(0)), Some(4), Some(0), Err(64)),
    (Words(16, 4, select(0)), Some(4), None, Err(64)),
    (Words(16, 4, select(0)), None, Some(12), Ok(12)),
    (Words(16, 4, select(0)), None, Some(16), Err(16)),
    (Words(16, 0, select(0)), None, Some(0), Err(0)),
    (Words(0, 0x7fff_fffe, TRITON), None, Some(0), Err(0)),
    (Words(0, 0x7fff_fffe, TRITON), None, None, Err(0)),
    (Words(0, 0x7fff_fffe, TRITON), Some(0), Some(8), Err(8)),
    (Words(0, 0x7fff_fffe, TRITON | 3 << 28), None, Some(0), Ok(0)),
    // The index alone.
    (Words(16, 4, select(1)), Some(3), Some(400), Ok(448)),
    (Words(16, 4, select(1)), Some(4), Some(0), Err(64)),
    (Words(0, 1, select(1)), None, Some(4000), Ok(4000)),
    (Words(0, 0, select(1)), None, Some(0), Err(0)),
    // Anything but an empty buffer.
    (Words(16, 1, select(2)), Some(100), Some(64), Ok(1664)),
    (Words(0, 1, select(2)), None, Some(5000), Ok(5000)),
    (Words(16, 0, select(2)), Some(0), Some(0), Err(0)),
    // Bytes.
    (Words(0, 64, select(3)), None, Some(60), Ok(60)),
    (Words(0, 64, select(3)), None, Some(62), Err(62)),
    (Words(0, 64, select(3)), None, Some(64), Err(64)),
    (Words(0, 64, select(3)), None, Some(0x8000_0000), Err(0)),
    (Words(0, 64, select(3)), None, Some(0xffff_fffc), Err(0)),
    (Words(16, 64, select(3)), Some(100), Some(4), Ok(1604)),
    (Words(0, 0, 0), None, Some(0), Err(0)),
    // Swizzled: eight elements interleaved in words; then 32, with each lane's number added to the index.
    (Words(16 | SWIZZLED, 64, select(0)), Some(9), Some(4), Ok(164)),
    (Words(16 | SWIZZLED, 9, select(0)), Some(9), Some(4), Err(164)),
    (Words(16 | SWIZZLED, 168, select(3)), Some(9), Some(4), Ok(164)),
    (Words(16 | SWIZZLED, 164, select(3)), Some(9), Some(4), Err(164)),
    (Words(SWIZZLED, u32::MAX, select(2) | 2 << 21 | 1 << 23), None, Some(8), Ok(276)),
    (Words(SWIZZLED, u32::MAX, select(2) | 2 << 21 | 1 << 23), Some(1), Some(8), Ok(280)),
    // The lane's number in a buffer that is not swizzled.
    (Words(8, 6, select(0) | 1 << 23), None, Some(4), Ok(44)),
    (Words(8, 5, select(0) | 1 << 23), None, Some(4), Err(44)),
];

#[test]
fn an_access_is_in_range_as_the_descriptor_says() {
    for &(words, index, offset, expected) in RANGES {
        let (at, inside) = match expected {
            Ok(at) => (at, true),
            Err(at) => (at, false),
        };
        let case = format!("{words:x?} {index:?} {offset:?}");
        let mut bench = self::bench(words);
        let (bits, old) = (place(&mut bench, index, offset), word_at(&bench, at));
        run(&mut bench, words, &encode(find("buffer_load_dword").unwrap(), Extra { words: [bits, 0] }));
        assert_eq!(bench.result(Format::Mubuf, 1), [if inside { old } else { 0 }], "a load, {case}");

        let mut bench = self::bench(words);
        let bits = place(&mut bench, index, offset);
        bench.wave.vectors[SOURCES[1] as usize][LANE] = 77;
        run(&mut bench, words, &encode(find("buffer_store_dword").unwrap(), Extra { words: [bits, 0] }));
        assert_eq!(word_at(&bench, at), if inside { 77 } else { old }, "a store, {case}");

        let mut bench = self::bench(words);
        let bits = place(&mut bench, index, offset) | RETURNS;
        bench.wave.vectors[SOURCES[1] as usize][LANE] = 5;
        run(&mut bench, words, &encode(find("buffer_atomic_add").unwrap(), Extra { words: [bits, 0] }));
        assert_eq!(bench.result(Format::Mubuf, 1), [if inside { old } else { 0 }], "an atomic returns, {case}");
        assert_eq!(word_at(&bench, at), if inside { old + 5 } else { old }, "an atomic, {case}");
    }
}

/// Words of wide accesses are in range one by one; atomics of two words, as a whole.
#[test]
fn words_are_checked_one_by_one() {
    for words in [Words(0, 72, select(3)), Words(72, 1, select(0))] {
        let mut bench = self::bench(words);
        let bits = place(&mut bench, None, Some(64));
        run(&mut bench, words, &encode(find("buffer_load_dwordx4").unwrap(), Extra { words: [bits, 0] }));
        assert_eq!(bench.result(Format::Mubuf, 4), [65, 69, 0, 0], "{words:?}");
        let mut bench = self::bench(words);
        let bits = place(&mut bench, None, Some(64));
        (0..4).for_each(|word| bench.wave.vectors[SOURCES[1] as usize + word][LANE] = 100 + word as u32);
        run(&mut bench, words, &encode(find("buffer_store_dwordx4").unwrap(), Extra { words: [bits, 0] }));
        assert_eq!([64, 68, 72, 76].map(|at| word_at(&bench, at)), [100, 101, 73, 77], "{words:?}");
    }
    let words = Words(0, 68, select(3));
    let mut bench = self::bench(words);
    let bits = place(&mut bench, None, Some(64)) | RETURNS;
    (0..2).for_each(|word| bench.wave.vectors[SOURCES[1] as usize + word][LANE] = 5);
    run(&mut bench, words, &encode(find("buffer_atomic_add_x2").unwrap(), Extra { words: [bits, 0] }));
    assert_eq!((bench.result(Format::Mubuf, 2), word_at(&bench, 64)), (vec![0, 0], 65));
}

/// The scalar offset is checked in raw buffers, added after every other check, and not swizzled.
#[test]
fn the_scalar_offset_is_checked_in_raw_buffers_alone() {
    for (words, offset, result) in [
        (Words(0, 1064, select(3)), 60, 1061),
        (Words(0, 1063, select(3)), 60, 0),
        (Words(0, 64, select(3)), 60, 0),
        (Words(16, 64, select(0)), 12, 1013),
        (Words(16 | SWIZZLED, 64, select(0)), 4, 1033),
    ] {
        let mut bench = self::bench(words);
        let bits = place(&mut bench, None, Some(offset));
        bench.wave.scalars[50] = 1000;
        let instruction = encode(find("buffer_load_dword").unwrap(), Extra { words: [bits, 0] });
        let words_of = [instruction.first_word(), instruction.second_word() & 0xff_ffff | 50 << 24];
        let bytes: Vec<u8> = words_of.iter().flat_map(|word| word.to_le_bytes()).collect();
        run(&mut bench, words, &unhang_isa::decode(&bytes, unhang_isa::Chip::Gfx1010).unwrap());
        assert_eq!(bench.result(Format::Mubuf, 1), [result], "{words:?}");
    }
}

/// A part of a word that another lane's word splits in a swizzled buffer.
#[test]
fn bytes_of_swizzled_buffers_lie_apart() {
    let words = Words(16 | SWIZZLED, 64, select(0));
    let mut bench = self::bench(words);
    let bits = place(&mut bench, Some(1), Some(3));
    bench.memory.write(bench.at + 7, &[0xaa]).unwrap();
    bench.memory.write(bench.at + 36, &[0xbb]).unwrap();
    bench.run(&encode(find("buffer_load_ushort").unwrap(), Extra { words: [bits, 0] })).unwrap();
    assert_eq!(bench.result(Format::Mubuf, 1), [0xbbaa]);
}

/// Scalar loads use the stride and the number of records, but not OOB_SELECT.
#[test]
fn scalar_loads_end_with_the_last_record() {
    for (words, size) in [(Words(16, 2, select(0)), 32u32), (Words(0, 32, TRITON), 32), (Words(0, 32, RAW), 32)] {
        for (offset, expected) in [(size - 4, [size - 3, 0]), (size - 8, [size - 7, size - 3]), (size, [0, 0])] {
            let mut bench = self::bench(words);
            let first = SOURCES[0] as usize;
            let descriptor: [u32; 4] = std::array::from_fn(|word| bench.wave.scalars[40 + word]);
            bench.wave.scalars[first..first + 4].copy_from_slice(&descriptor);
            run(&mut bench, words, &encode(find("s_buffer_load_dwordx2").unwrap(), Extra { words: [0, offset] }));
            let found = [0, 1].map(|word| bench.wave.scalar((DESTINATION + word) as u8));
            assert_eq!(found, expected, "{words:?} {offset}");
        }
    }
}

/// Of each part of a scalar address the two lowest bits count as zero. AMD's documents leave open what happens below the
/// start of a buffer.
#[test]
fn scalar_loads_are_of_aligned_words_behind_the_start() {
    let words = Words(0, 32, RAW);
    let load = |constant: u32, register: u32| {
        let mut bench = self::bench(words);
        let first = SOURCES[0] as usize;
        let descriptor: [u32; 4] = std::array::from_fn(|word| bench.wave.scalars[40 + word]);
        bench.wave.scalars[first..first + 4].copy_from_slice(&descriptor);
        bench.wave.scalars[50] = register;
        let encoded = encode(find("s_buffer_load_dword").unwrap(), Extra { words: [0, constant] });
        let words_of = [encoded.first_word(), encoded.second_word() & 0x1ff_ffff | 50 << 25];
        let bytes: Vec<u8> = words_of.iter().flat_map(|word| word.to_le_bytes()).collect();
        let instruction = unhang_isa::decode(&bytes, unhang_isa::Chip::Gfx1010).unwrap();
        if constant >> 20 == 1 {
            return bench.run(&instruction).map(|()| bench.wave.scalar(DESTINATION as u8));
        }
        run(&mut bench, words, &instruction);
        Ok(bench.wave.scalar(DESTINATION as u8))
    };
    // The buffer's end, also by offsets within its final word; then what is past the end.
    assert_eq!([(28, 0), (31, 0), (0, 31), (14, 18)].map(|(a, b)| load(a, b)), [Ok(29), Ok(29), Ok(29), Ok(29)]);
    assert_eq!([load(32, 0), load(4, 31)], [Ok(0), Ok(0)]);
    // A negative constant, with a register that makes up for it and without.
    assert_eq!([load(0x1f_fffc, 16), load(0x1f_fffc, 0)], [Ok(13), Err(FaultKind::Unsupported)]);
}

/// The value of a lane goes to M0 plus the constant offset plus four bytes for each lane before it.
#[test]
fn loads_to_local_memory() {
    for (name, expected) in [
        ("dword", 0xf4a3_9281),
        ("ubyte", 0x81),
        ("sbyte", 0xffff_ff81u32),
        ("ushort", 0x9281),
        ("sshort", 0xffff_9281),
    ] {
        let words = Words(0, 64, RAW);
        let mut bench = self::bench(words);
        bench.memory.write(bench.at + 48, &0xf4a3_9281u32.to_le_bytes()).unwrap();
        let bits = place(&mut bench, None, Some(32)) | TO_LOCAL | 16;
        bench.wave.scalars[M0] = 0xffff_0020;
        bench.run(&encode(find(&format!("buffer_load_{name}")).unwrap(), Extra { words: [bits, 0] })).unwrap();
        let at = 32 + 16 + LANE * 4;
        assert_eq!(bench.local[at..at + 4], expected.to_le_bytes(), "{name}");
        assert_eq!(bench.result(Format::Mubuf, 1), [UNTOUCHED], "{name} writes no register");
    }
    // The first component of an element: X of 8_UNORM, and Y of 8_8_UINT because the descriptor selects it.
    for (format, select, expected) in [(1, 4, f(0.2)), (18, 5, 0x44)] {
        let words = Words(0, 64, RAW & !7 & !(0x7f << 12) | select | format << 12);
        let mut bench = self::bench(words);
        bench.memory.write(bench.at + 48, &0x4433u32.to_le_bytes()).unwrap();
        let bits = place(&mut bench, None, Some(32)) | TO_LOCAL | 16;
        bench.wave.scalars[M0] = 0x20;
        bench.run(&encode(find("buffer_load_format_x").unwrap(), Extra { words: [bits, 0] })).unwrap();
        let at = 32 + 16 + LANE * 4;
        assert_eq!(bench.local[at..at + 4], expected.to_le_bytes(), "format {format}");
        assert_eq!(bench.result(Format::Mubuf, 1), [UNTOUCHED], "a typed load writes no register");
    }
    // Two words, two components, and loads into half a register have no such form.
    for name in ["buffer_load_dwordx2", "buffer_load_format_xy", "buffer_load_format_d16_x", "buffer_load_short_d16"] {
        let instruction = encode(find(name).unwrap(), Extra { words: [TO_LOCAL, 0] });
        assert!(matches!(Semantics::of(&instruction), Semantics::Unsupported), "{name}");
    }
}

const fn f(value: f32) -> u32 {
    value.to_bits()
}
const ONE: u32 = f(1.0);

/// Formats by number, an element, and its components.
#[rustfmt::skip]
const ELEMENTS: &[(u8, u128, [u32; 4])] = &[
    (1, 0x33, [f(0.2), 0, 0, ONE]),
    (1, 0xff, [ONE, 0, 0, ONE]),
    (2, 0x81, [f(-1.0), 0, 0, ONE]),
    (2, 0x80, [f(-1.0), 0, 0, ONE]),
    (3, 200, [f(200.0), 0, 0, ONE]),
    (4, 0xfe, [f(-2.0), 0, 0, ONE]),
    (5, 0xfe, [0xfe, 0, 0, 1]),
    (6, 0xfe, [0xffff_fffe, 0, 0, 1]),
    (7, 0xffff, [ONE, 0, 0, ONE]),
    (13, 0xc000, [f(-2.0), 0, 0, ONE]),
    (14, 0xff00, [0, ONE, 0, ONE]),
    (20, 0x8000_0001, [0x8000_0001, 0, 0, 1]),
    (22, 0x7fc0_1234, [0x7fc0_1234, 0, 0, ONE]),
    (29, 0x3c00_b800, [f(-0.5), ONE, 0, ONE]),
    (36, 0x3c0 | 0x400 << 11 | 0x1c0 << 22, [ONE, f(2.0), f(0.5), ONE]),
    (43, 0x1e0 | 0x400 << 10 | 0x380 << 21, [ONE, f(2.0), f(0.5), ONE]),
    (44, 0x3 | 1023 << 22, [ONE, 0, 0, ONE]),
    (48, 2 | 5 << 2 | 7 << 12 | 1023 << 22, [2, 5, 7, 1023]),
    (55, 0x3ff | 0x200 << 10 | 1 << 20 | 2 << 30, [u32::MAX, 0xffff_fe00, 1, 0xffff_fffe]),
    (61, 0x80ff_017f, [127, 1, u32::MAX, 0xffff_ff80]),
    (64, (f(3.0) as u128) << 32 | ONE as u128, [ONE, f(3.0), 0, ONE]),
    (69, 0x0004_0003_0002_8001, [0x8001, 2, 3, 4]),
    (71, 0x4400_4200_4000_3c00, [ONE, f(2.0), f(3.0), f(4.0)]),
    (74, (f(9.0) as u128) << 64 | ONE as u128, [ONE, 0, f(9.0), ONE]),
    (76, (u32::MAX as u128) << 96 | 1, [1, 0, 0, u32::MAX]),
];

#[test]
fn elements_are_converted_by_their_format() {
    for &(number, element, expected) in ELEMENTS {
        let format = DataFormat::new(number).unwrap();
        let mut bench = self::bench(Words(0, SIZE as u32, RAW & !(0x7f << 12) | (number as u32) << 12));
        let bytes = element.to_le_bytes();
        bench.memory.write(bench.at + 64, &bytes[..format.bytes() as usize]).unwrap();
        // The descriptor's format, then the instruction's.
        for (name, format) in [("buffer_load_format_xyzw", 0), ("tbuffer_load_format_xyzw", (number as u32) << 19)] {
            let definition = find(name).unwrap();
            bench.run(&encode(definition, Extra { words: [64 | format, 0] })).unwrap();
            assert_eq!(bench.result(definition.format, 4), expected, "{name} of format {number}");
            assert_eq!(bench.wave.vector_lane(SOURCES[1] as usize + 4, LANE), UNTOUCHED);
        }
    }
    let mut counted = 0;
    for number in 1..=77 {
        let format = DataFormat::new(number).unwrap();
        for pattern in [0u128, 0x0102_0304_1516_1718_2122_2324_0a0b_0c0d, 0x3131_1313_2323_0404_1515_0606_1717_0808] {
            let element = pattern & (u128::MAX >> (128 - format.bytes() * 8));
            let components = format.decode(element);
            counted += (format.encode(components).map(|again| format.decode(again)) == Some(components)) as u32;
        }
    }
    assert_eq!(counted, 77 * 3, "what was loaded can be stored");
    assert!([0, 78, 127].iter().all(|&number| DataFormat::new(number).is_none()));
}

/// Every typed access: words by 32-bit floats, halves by 16-bit ones.
#[test]
fn typed_accesses() {
    for name in names() {
        let definition = find(name).unwrap();
        let (halves, high) = (name.contains("d16"), name.contains("d16_hi"));
        let number: u32 = if halves { 71 } else { 77 };
        let words = Words(0, SIZE as u32, RAW & !(0x7f << 12) | number << 12);
        let letters = name.rsplit('_').next().unwrap().len();
        let values = [1.0f32, 2.0, 3.0, 4.0];
        let half_bits = [0x3c00u32, 0x4000, 0x4200, 0x4400];
        let component = if halves { 2 } else { 4 };
        let element: Vec<u8> = match halves {
            true => half_bits.iter().flat_map(|bits| (*bits as u16).to_le_bytes()).collect(),
            false => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
        };
        let registers: Vec<u32> = match (halves, high) {
            (false, _) => values[..letters].iter().map(|value| value.to_bits()).collect(),
            (_, true) => vec![UNTOUCHED & 0xffff | half_bits[0] << 16],
            _ => half_bits[..letters]
                .chunks(2)
                .map(|pair| pair[0] | pair.get(1).map_or(UNTOUCHED & 0xffff_0000, |bits| bits << 16))
                .collect(),
        };
        let format = if definition.format == Format::Mtbuf { number << 19 } else { 0 };
        let mut bench = self::bench(words);
        let extra = Extra { words: [place(&mut bench, None, Some(48)) | 16 | format, 0] };
        let instruction = encode(definition, extra);
        if name.contains("load") {
            bench.memory.write(bench.at + 64, &element).unwrap();
            bench.run(&instruction).unwrap();
            assert_eq!(bench.result(definition.format, registers.len()), registers, "{name}");
            assert_eq!(bench.result(definition.format, 5)[registers.len()], UNTOUCHED, "{name} writes no more");
            // Out of range: the whole element is zeros.
            bench.wave.scalars[42] = 64 + element.len() as u32 - 1;
            bench.run(&instruction).unwrap();
            let zeros = bench.result(definition.format, registers.len());
            let kept = if high { UNTOUCHED & 0xffff } else { 0 };
            assert!(zeros[..zeros.len() - 1].iter().all(|&word| word == 0) && zeros[0] & 0xffff == kept, "{name}");
        } else {
            for (word, &value) in registers.iter().enumerate() {
                bench.wave.vectors[SOURCES[1] as usize + word][LANE] = value;
            }
            bench.run(&instruction).unwrap();
            let mut found = vec![0; element.len()];
            bench.memory.read(bench.at + 64, &mut found).unwrap();
            let given = letters * component;
            assert_eq!(found[..given], element[..given], "{name}");
            assert!(found[given..].iter().all(|&byte| byte == 0), "{name}: components that are not given are zero");
            bench.wave.scalars[42] = 64 + element.len() as u32 - 1;
            bench.memory.write(bench.at + 64, &[9; 4]).unwrap();
            bench.run(&instruction).unwrap();
            assert_eq!(word_at(&bench, 64), 0x0909_0909, "{name} out of range");
        }
    }
}

/// A descriptor of zeros stands for no buffer, whatever the access. Its invalid format does not matter.
#[test]
fn an_unbound_buffer_gives_zeros_and_takes_nothing() {
    let words = Words(0, 0, 0);
    for name in names() {
        let definition = find(name).unwrap();
        let mut bench = self::bench(words);
        bench.wave.scalars[40..44].fill(0);
        let format = if definition.format == Format::Mtbuf { 77 << 19 } else { 0 };
        bench.wave.vectors[SOURCES[1] as usize][LANE] = 5;
        // An access to address 64 would be a fault.
        bench.run(&encode(definition, Extra { words: [64 | format, 0] })).unwrap();
        let kept = name.contains("store") || name.contains("d16_hi");
        assert_eq!(bench.result(definition.format, 1), [if kept { 5 } else { 0 }], "{name}");
    }
}

#[test]
fn the_descriptor_selects_components() {
    // W, a one, a zero, X.
    let selects = 7 | 1 << 3 | 4 << 9;
    let words = Words(0, SIZE as u32, select(3) & !0xfff & !(0x7f << 12) | 75 << 12 | selects);
    let mut bench = self::bench(words);
    let load = encode(find("buffer_load_format_xyzw").unwrap(), Extra { words: [64, 0] });
    bench.run(&load).unwrap();
    assert_eq!(bench.result(Format::Mubuf, 4), [77, 1, 0, 65]);
    // Out of range a one stays a one.
    bench.wave.scalars[42] = 64;
    bench.run(&load).unwrap();
    assert_eq!(bench.result(Format::Mubuf, 4), [0, 1, 0, 0]);
    // The instruction's own format has the components in order.
    bench.wave.scalars[42] = SIZE as u32;
    bench.run(&encode(find("tbuffer_load_format_xyzw").unwrap(), Extra { words: [64 | 75 << 19, 0] })).unwrap();
    assert_eq!(bench.result(Format::Mtbuf, 4), [65, 69, 73, 77]);
    let store = encode(find("buffer_store_format_xyzw").unwrap(), Extra { words: [64, 0] });
    assert_eq!(bench.run(&store), Err(FaultKind::Unsupported));
}

/// Formats by number, a register's contents, and what is stored; `None` if the rules leave a choice.
#[rustfmt::skip]
const STORED: &[(u8, u32, Option<u32>)] = &[
    // 63.75 and 63.3 of 255 steps; 63.55 and 76.5, near the middle; below and above; NaN.
    (1, f(0.25), Some(64)), (1, f(0.2482353), Some(63)), (1, f(0.2492157), None), (1, f(0.3), None),
    (1, f(-3.0), Some(0)), (1, f(1.5), Some(255)), (1, f(f32::INFINITY), Some(255)), (1, 0x7fc0_0000, Some(0)),
    (2, f(-0.25), Some(0xe0)), (2, f(5.0), Some(127)), (2, f(-5.0), Some(0x81)), (2, f(f32::NEG_INFINITY), Some(0x81)), (2, f(0.5), None),
    (3, f(7.5), None), (3, f(7.0), Some(7)), (4, f(-8.0), Some(0xf8)),
    (5, 300, Some(255)), (5, 7, Some(7)), (6, 200, Some(127)), (6, -200i32 as u32, Some(0x80)), (6, -3i32 as u32, Some(0xfd)),
    (7, f(0.1), None), (7, f(0.75), Some(49151)), (7, f(2.0), Some(65535)), (8, f(-2.0), Some(0x8001)),
    (11, 70_000, Some(65535)), (12, -70_000i32 as u32, Some(0x8000)),
    // Halves towards zero: 0x3555.55 and 0x3555.ef; the largest, infinity, NaN; the smallest and less.
    (13, f(-2.0), Some(0xc000)), (13, f(1.0 / 3.0), Some(0x3555)), (13, f(-0.333_48), Some(0xb555)),
    (13, f(65519.0), Some(0x7bff)), (13, f(1e9), Some(0x7bff)), (13, f(-1e9), Some(0xfbff)),
    (13, f(f32::INFINITY), Some(0x7c00)), (13, f(f32::NEG_INFINITY), Some(0xfc00)), (13, 0x7fc0_0000, Some(0x7e00)),
    (13, f(1e-7), Some(1)), (13, f(-5e-8), Some(0x8000)), (13, 1, Some(0)),
    // Floats of 11 and 10 bits have six and five bits of fraction, and no sign.
    (36, f(1.999), Some(0x3ff)), (36, f(1e9), Some(0x7bf)), (36, f(-3.0), Some(0)), (36, f(f32::INFINITY), Some(0x7c0)),
    (43, f(1.999), Some(0x1ff)), (43, f(1e9), Some(0x3df)), (43, f(f32::NEG_INFINITY), Some(0)),
    (20, u32::MAX, Some(u32::MAX)), (21, 1 << 31, Some(1 << 31)), (22, f(0.1), Some(f(0.1))),
];

#[test]
fn stores_are_clamped_and_rounded_where_the_rules_leave_no_choice() {
    for &(number, value, expected) in STORED {
        let words = Words(0, SIZE as u32, RAW & !(0x7f << 12) | (number as u32) << 12);
        for (name, format) in [("buffer_store_format_x", 0), ("tbuffer_store_format_x", (number as u32) << 19)] {
            let mut bench = self::bench(words);
            bench.memory.write(bench.at + 64, &[0; 4]).unwrap();
            bench.wave.vectors[SOURCES[1] as usize][LANE] = value;
            let stored = bench.run(&encode(find(name).unwrap(), Extra { words: [64 | format, 0] }));
            let found = stored.map(|()| word_at(&bench, 64));
            assert_eq!(found, expected.ok_or(FaultKind::Unsupported), "{name} of {value:#x} in format {number}");
        }
    }
}

/// Formats by number, an element, and the half register's contents; `None` if unknown.
#[rustfmt::skip]
const HALVES: &[(u8, u32, Option<u16>)] = &[
    // Normalised numbers to the nearest: 9/255 is rounded up, and 65519/65535 is 0x3bff.7f, which a single would round to the middle.
    (1, 0x33, Some(0x3266)), (1, 9, Some(0x2885)), (1, 255, Some(0x3c00)), (2, 0x81, Some(0xbc00)), (2, 0x80, Some(0xbc00)),
    (2, 42, Some(0x354b)), (7, 1, Some(0x0100)), (7, 65519, Some(0x3bff)), (8, 0x8001, Some(0xbc00)),
    // Integers saturate at the limits.
    (5, 0xfe, Some(0xfe)), (6, 0xfe, Some(0xfffe)), (20, 70_000, Some(0xffff)), (21, 70_000, Some(0x7fff)), (21, -70_000i32 as u32, Some(0x8000)),
    // Singles towards zero, halves unchanged.
    (22, f(1.0 / 3.0), Some(0x3555)), (22, f(0.333_48), Some(0x3555)), (22, f(1e9), Some(0x7bff)), (22, f(-1e9), Some(0xfbff)), (13, 0xc001, Some(0xc001)),
    // Scaled numbers that halves cannot represent.
    (9, 2048, Some(0x6800)), (9, 2049, None), (9, 65535, None), (10, 0xfffe, Some(0xc000)),
];

#[test]
fn components_are_rounded_into_half_a_register() {
    for &(number, element, expected) in HALVES {
        let mut bench = self::bench(Words(0, SIZE as u32, RAW & !(0x7f << 12) | (number as u32) << 12));
        bench.memory.write(bench.at + 64, &element.to_le_bytes()).unwrap();
        for (name, format) in [("buffer_load_format_d16_x", 0), ("tbuffer_load_format_d16_x", (number as u32) << 19)] {
            let definition = find(name).unwrap();
            let loaded = bench.run(&encode(definition, Extra { words: [64 | format, 0] }));
            let found = loaded.map(|()| bench.result(definition.format, 1)[0] as u16);
            assert_eq!(found, expected.ok_or(FaultKind::Unsupported), "{name} of {element:#x} in format {number}");
        }
    }
    // An invalid format is a fault.
    let mut bench = self::bench(Words(0, SIZE as u32, RAW & !(0x7f << 12)));
    let load = encode(find("buffer_load_format_x").unwrap(), Extra { words: [64, 0] });
    assert_eq!(bench.run(&load), Err(FaultKind::Unsupported));
}

/// LLVM's name of a format.
fn name_of(format: DataFormat) -> String {
    let widths: Vec<String> = format.widths.iter().rev().map(u32::to_string).collect();
    let number = match format.number {
        Number::Unorm => "UNORM",
        Number::Snorm => "SNORM",
        Number::Uscaled => "USCALED",
        Number::Sscaled => "SSCALED",
        Number::Uint => "UINT",
        Number::Sint => "SINT",
        Number::Float => "FLOAT",
    };
    format!("BUF_FMT_{}_{number}", widths.join("_"))
}

#[test]
fn numbers_of_formats_are_those_of_llvm() {
    let started = Command::new("llvm-mc-19")
        .args(["-triple=amdgcn-amd-amdhsa", "-mcpu=gfx1010", "-show-encoding"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let Ok(mut child) = started else {
        println!("skipped: names of formats of LLVM: no llvm-mc-19");
        return;
    };
    let formats: Vec<DataFormat> = (1..=77).map(|number| DataFormat::new(number).unwrap()).collect();
    let text: Vec<String> = formats
        .iter()
        .map(|&format| format!("tbuffer_load_format_x v0, off, s[0:3], 0 format:[{}]\n", name_of(format)))
        .collect();
    child.stdin.take().unwrap().write_all(text.concat().as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let output = String::from_utf8(output.stdout).unwrap();
    let bytes = |line: &str| -> Vec<u32> {
        let (_, list) = line.split_once("encoding: [").unwrap();
        list.trim_end_matches(']').split(',').map(|byte| u32::from_str_radix(&byte[2..], 16).unwrap()).collect()
    };
    let found: Vec<u32> = output
        .lines()
        .filter(|line| line.contains("encoding"))
        .map(|line| bytes(line.trim()))
        .map(|bytes| (bytes[2] >> 3 | bytes[3] << 5) & 0x7f)
        .collect();
    assert_eq!(found, (1..=77).collect::<Vec<u32>>());
}
