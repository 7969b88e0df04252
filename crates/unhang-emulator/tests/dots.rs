//! Dot products that gfx1010 lacks. Their replacements compute the same to the bit, with every kind of source and every
//! modifier that the documents define, and change no other register.

#[path = "../../unhang-isa/tests/random/mod.rs"]
mod random;

use random::Random;
use unhang_emulator::{Dispatch, Machine, Mode};
use unhang_isa::repair::{Options, Treatment, repair_object};
use unhang_isa::{Chip, decode};

const DOTS: &[u8] = include_bytes!("../../unhang-isa/tests/fixtures/dots.co");
const NOP: [u8; 4] = 0xbf80_0000u32.to_le_bytes();
const LANES: usize = 32;
/// v8 to v15 of each lane.
const REGISTERS: usize = 8;
const CASES: usize = 60;

impl Random {
    fn below(&mut self, limit: u32) -> u32 {
        self.next() % limit
    }
    fn bits(&mut self, count: u32) -> u32 {
        self.next() & ((1 << count) - 1)
    }
    /// A register's contents: any bits, or bits that make sums overflow.
    fn whole(&mut self) -> u32 {
        const EXTREMES: [u32; 8] =
            [0, u32::MAX, 0x8000_0000, 0x7fff_ffff, 0x8000_8000, 0x7fff_7fff, 0x8080_8080, 0x7f7f_7f7f];
        if self.below(3) == 0 { EXTREMES[self.below(8) as usize] } else { self.next() << 16 ^ self.next() }
    }
    /// Two halves of moderate size; any bits in one register of eight.
    fn halves(&mut self) -> u32 {
        let mut half = || self.bits(1) << 15 | (8 + self.below(16)) << 10 | self.bits(10);
        let both = half() | half() << 16;
        if self.below(8) == 0 { self.whole() } else { both }
    }
}

/// The object with an instruction in place of three nops.
fn with_instruction(words: &[u32]) -> Vec<u8> {
    let mut object = DOTS.to_vec();
    let sled = NOP.repeat(3);
    let at = object.windows(12).position(|window| window == sled).unwrap();
    for (place, word) in words.iter().enumerate() {
        object[at + place * 4..][..4].copy_from_slice(&word.to_le_bytes());
    }
    object
}

/// The registers after a run.
fn run(object: &[u8], mode: Mode, vectors: &[u32], scalars: &[u32; 4]) -> Result<Vec<u32>, String> {
    let mut machine = Machine::load(object, mode).unwrap();
    let bytes = |words: &[u32]| -> Vec<u8> { words.iter().flat_map(|word| word.to_le_bytes()).collect() };
    let input = machine.memory.allocate_bytes(&bytes(vectors));
    let output = machine.memory.allocate(LANES * REGISTERS * 4);
    let scalars = machine.memory.allocate_bytes(&bytes(scalars));
    let arguments: Vec<u8> = [input, output, scalars].iter().flat_map(|pointer| pointer.to_le_bytes()).collect();
    let dispatch = Dispatch::new("dots", [1, 1, 1], [LANES as u32, 1, 1], &arguments);
    machine.run(&dispatch).map_err(|fault| fault.to_string())?;
    let mut found = vec![0; LANES * REGISTERS * 4];
    machine.memory.read(output, &mut found).unwrap();
    Ok(found.chunks_exact(4).map(|it| u32::from_le_bytes([it[0], it[1], it[2], it[3]])).collect())
}

/// Runs an instruction on random registers: on a gfx1030, and repaired on a gfx1010.
fn compare(random: &mut Random, words: &[u32], is_float: bool) {
    let object = with_instruction(words);
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let text = decode(&bytes, Chip::Gfx1030).unwrap().text(false).to_string();
    let repair = repair_object(&object, Options { chip: Chip::Gfx1010, keep_size: false }).unwrap();
    let function = &repair.functions[0];
    assert_eq!((function.treatment, function.after.total()), (Treatment::Moved, 0), "{text}: {:?}", function.reason);
    let repaired = repair.bytes.unwrap();
    let value = |random: &mut Random| if is_float { random.halves() } else { random.whole() };
    let vectors: Vec<u32> = (0..LANES * REGISTERS).map(|_| value(random)).collect();
    let mut scalars = [0; 4].map(|_| value(random));
    scalars[3] = if random.below(2) == 0 { u32::MAX } else { random.whole() | 1 };
    let before =
        run(&object, Mode::Hazards(Chip::Gfx1030), &vectors, &scalars).unwrap_or_else(|it| panic!("{text}: {it}"));
    let after =
        run(&repaired, Mode::Hazards(Chip::Gfx1010), &vectors, &scalars).unwrap_or_else(|it| panic!("{text}: {it}"));
    for (place, (old, new)) in before.iter().zip(&after).enumerate() {
        let both_nan = is_float && f32::from_bits(*old).is_nan() && f32::from_bits(*new).is_nan();
        let (lane, register) = (place / REGISTERS, place % REGISTERS + 8);
        assert!(old == new || both_nan, "{text}: v{register} of lane {lane} is {new:#x}, not {old:#x}");
    }
    assert!(run(&object, Mode::Hazards(Chip::Gfx1010), &vectors, &scalars).is_err(), "{text}: gfx1010 has it");
}

/// A source: a vector register, a scalar one, a small number, a common fraction, or the constant.
fn source(random: &mut Random) -> u32 {
    match random.below(6) {
        0 => 20 + random.below(3),
        1 => [128, 129, 131, 192, 193, 208][random.below(6) as usize],
        2 => 240 + random.below(9),
        3 => 255,
        _ => 256 + 8 + random.below(8),
    }
}

/// Whether an instruction may have these sources: at most two scalar ones, including the constant.
fn is_allowed(sources: &[u32]) -> bool {
    let mut shared: Vec<u32> = sources.iter().copied().filter(|&it| it < 128 || it == 255).collect();
    shared.sort_unstable();
    shared.dedup();
    shared.len() <= 2
}

fn long(opcode: u32, is_float: bool, selects: bool, seed: u64) {
    let mut random = Random(seed);
    let mut cases = 0;
    while cases < CASES {
        let sources: [u32; 3] = std::array::from_fn(|_| source(&mut random));
        if !is_allowed(&sources) {
            continue;
        }
        let modified = random.below(2) == 0;
        let select_low = if selects && modified { random.bits(2) } else { 0 };
        let select_high = if selects && modified { random.bits(2) } else { 3 };
        let (negate_low, negate_high) = if is_float && modified { (random.bits(3), random.bits(2)) } else { (0, 0) };
        let clamp = (modified && random.below(2) == 0) as u32;
        let destination = 8 + random.below(8);
        let mut words = vec![
            0xcc00_0000 | opcode << 16 | clamp << 15 | 1 << 14 | select_low << 11 | negate_high << 8 | destination,
            sources[0] | sources[1] << 9 | sources[2] << 18 | select_high << 27 | negate_low << 29,
        ];
        if sources.contains(&255) {
            words.push(if is_float { random.halves() } else { random.whole() });
        }
        compare(&mut random, &words, is_float);
        cases += 1;
    }
}

fn short(opcode: u32, is_float: bool, seed: u64) {
    let mut random = Random(seed);
    for _ in 0..CASES {
        let source = source(&mut random);
        let (destination, second) = (8 + random.below(8), 8 + random.below(8));
        let mut words = vec![opcode << 25 | destination << 17 | second << 9 | source];
        if source == 255 {
            words.push(if is_float { random.halves() } else { random.whole() });
        }
        compare(&mut random, &words, is_float);
    }
}

/// Permutations of the first factor: within rows, with lanes turned off by masks and at the edges, and within eight.
fn permuted(opcode: u32, is_float: bool, seed: u64) {
    const CONTROLS: [u32; 8] = [0x1b, 0x101, 0x113, 0x124, 0x140, 0x141, 0x155, 0x167];
    let mut random = Random(seed);
    for case in 0..CASES {
        let (destination, first, second) = (8 + random.below(8), 8 + random.below(8), 8 + random.below(8));
        let word = opcode << 25 | destination << 17 | second << 9;
        let words = if case % 4 == 0 {
            [word | (233 + random.below(2)), random.bits(24) << 8 | first]
        } else {
            let masks = if random.below(2) == 0 { 0xff } else { random.bits(8) };
            let control = CONTROLS[random.below(8) as usize] << 8 | random.bits(2) << 18;
            [word | 250, masks << 24 | control | first]
        };
        compare(&mut random, &words, is_float);
    }
}

#[test]
fn halves_with_every_source_and_modifier() {
    long(0x13, true, true, 1);
    short(0x02, true, 2);
}

#[test]
fn whole_halves_with_every_source_and_modifier() {
    long(0x14, false, true, 3);
    long(0x15, false, true, 4);
}

#[test]
fn bytes_with_every_source_and_modifier() {
    long(0x16, false, false, 5);
    long(0x17, false, false, 6);
    short(0x0d, false, 7);
}

#[test]
fn halves_of_bytes_with_every_source_and_modifier() {
    long(0x18, false, false, 8);
    long(0x19, false, false, 9);
}

#[test]
fn permuted_factors() {
    permuted(0x02, true, 10);
    permuted(0x0d, false, 11);
}
