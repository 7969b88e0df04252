//! Compares loads and stores of the fast path with those of the plain one.

use unhang_isa::{Chip, Format, Instruction, decode, definitions};

use super::fast::{assert_same, random_wave, run_fast, run_plain};
use super::random::Random;
use super::{DESTINATION, Extra, LANE, encode};
use crate::Memory;
use crate::access::{Access, WordPart};
use crate::fast::op::{Op, OpKind};
use crate::fast::resolve::resolve;
use crate::host::Host;
use crate::memory::Window;
use crate::semantics::Semantics;
use crate::surroundings::{LocalBounds, Surroundings};
use crate::wave::{EXEC, LANES, Wave};

/// The part of a word that an instruction moves.
fn part_of(instruction: &Instruction) -> WordPart {
    match Semantics::of(instruction) {
        Semantics::Memory(Access::Load { part, .. } | Access::Store { part, .. }) => part,
        _ => WordPart::Word,
    }
}

/// Loads and stores: addresses in order, equal in all lanes, in steps, at random, and past the end. Parts of words are
/// also unaligned.
#[test]
fn the_fast_path_of_memory_does_what_the_plain_one_does() {
    let mut random = Random(2);
    let mut compared = std::collections::BTreeSet::new();
    let formats = [Format::Ds, Format::Global, Format::Flat, Format::Mubuf];
    for definition in definitions().iter().filter(|definition| formats.contains(&definition.format)) {
        for turn in 0..72 {
            let words = match definition.format {
                Format::Ds => [random.word() & 0xffff & 0x0f0f, 0],
                // With and without offsets of lanes.
                Format::Mubuf => [16 | ((turn % 4 != 0) as u32) << 12, 0],
                Format::Flat => [0, 0],
                _ => [16, 0],
            };
            let instruction = encode(definition, Extra { words });
            let op = resolve(&instruction, &Semantics::of(&instruction), false);
            if matches!(op.kind, OpKind::Plain | OpKind::Nothing) {
                continue;
            }
            let (wave64, size) = (turn >= 36, part_of(&instruction).size() as u64);
            let mut start = random_wave(&mut random, wave64);
            let mut memories = [(); 3].map(|()| Memory::default());
            let contents: Vec<u8> = (0..16384).map(|_| random.word() as u8).collect();
            let at = memories.each_mut().map(|memory| memory.allocate_bytes(&contents))[0];
            let mut locals = [contents.clone(), contents.clone(), contents];
            let register = instruction.high_bits(0, 8) as usize;
            let global = matches!(definition.format, Format::Global | Format::Flat);
            if definition.format == Format::Mubuf {
                let buffer = [at as u32, (at >> 32) as u32, 16384, 0x3101_6fac & !(1 << 23)];
                start.scalars[40..44].copy_from_slice(&buffer);
            }
            for lane in 0..LANES << wave64 as usize {
                let offset = match turn % 9 {
                    0 => 64 + lane as u64 * 4,
                    1 => 128,
                    2 => (random.word() % 2000) as u64 * 4,
                    3 => lane as u64 * 16,
                    4 => (lane / 8) as u64 * 16,
                    // As far apart as they are large, and unaligned if that is allowed.
                    6 => 64 + lane as u64 * size + (size < 4) as u64,
                    7 => (random.word() % 8000) as u64 / if size < 4 { 1 } else { 4 } * if size < 4 { 1 } else { 4 },
                    8 => (70 - lane as u64) * size + (size < 4) as u64,
                    // The first lane is inactive, and would be before the beginning.
                    _ => (lane as u64 * 4).wrapping_sub(4),
                };
                let address = if global { at.wrapping_add(offset) } else { offset };
                let row = lane / LANES * start.registers + register;
                start.vectors[row][lane % LANES] = address as u32;
                if global {
                    start.vectors[row + 1][lane % LANES] = (address >> 32) as u32;
                }
            }
            if turn % 9 == 5 {
                start.scalars[EXEC] &= !1;
            }
            let mut waves = [start.clone(), start.clone(), start];
            // The plain path, then the fast one with the host's vectors, then with the portable bodies.
            for place in 0..3 {
                let mut around = Surroundings {
                    global: Window::new(&memories[place]),
                    local: &mut locals[place],
                    races: None,
                    bounds: LocalBounds::default(),
                };
                match place {
                    0 => run_plain(&mut waves[place], &instruction, &mut around),
                    _ => {
                        let ran = run_fast(&mut waves[place], &op, &mut around, place == 2, false);
                        assert!(ran, "{}", definition.mnemonic);
                    }
                }
            }
            assert_same(&waves[1], &waves[0], definition.mnemonic);
            assert_same(&waves[2], &waves[0], definition.mnemonic);
            let bytes = memories.each_ref().map(|memory| {
                let mut bytes = vec![0; 16384];
                memory.read(at, &mut bytes).unwrap();
                bytes
            });
            let same = (1..3).all(|place| bytes[place] == bytes[0] && locals[place] == locals[0]);
            assert!(same, "{}", definition.mnemonic);
            compared.insert(definition.mnemonic);
        }
    }
    if Host::get() != Host::Plain {
        for name in [
            "ds_read2st64_b64",
            "ds_write_b96",
            "global_load_dwordx4",
            "global_store_dwordx3",
            "flat_load_dwordx4",
            "flat_store_dword",
            "buffer_load_dwordx2",
            "buffer_store_dword",
            "ds_read_u8",
            "ds_read_i8_d16_hi",
            "ds_read_u16_d16",
            "ds_write_b16_d16_hi",
            "global_load_ushort",
            "global_load_sshort",
            "global_load_short_d16_hi",
            "global_load_sbyte_d16",
            "global_store_short",
            "flat_load_sbyte",
            "flat_store_byte_d16_hi",
            "buffer_load_ushort",
            "buffer_store_byte",
        ] {
            assert!(compared.contains(name), "{name}");
        }
    }
    scalar_loads_are_the_same(&mut random);
    // One lane past the end: the fast path does nothing, and the plain one reports the fault.
    let load = definitions().iter().find(|definition| definition.mnemonic == "ds_read_b32").unwrap();
    let instruction = encode(load, Extra::default());
    let op = resolve(&instruction, &Semantics::of(&instruction), false);
    let mut wave = random_wave(&mut random, false);
    wave.scalars[EXEC] = 1 << LANE;
    wave.vectors[instruction.high_bits(0, 8) as usize][LANE] = 61;
    let memory = Memory::default();
    let mut local = [0; 64];
    let mut around =
        Surroundings { global: Window::new(&memory), local: &mut local, races: None, bounds: LocalBounds::default() };
    for portable in [false, true] {
        assert!(!run_fast(&mut wave, &op, &mut around, portable, false));
    }
}

/// The last byte of LDS, of a region and of a buffer is inside, and the next is not. The plain path handles the latter.
#[test]
fn parts_of_words_are_checked_to_the_byte() {
    const SIZE: u64 = 201;
    if Host::get() == Host::Plain {
        return;
    }
    let mut random = Random(5);
    let formats = [Format::Ds, Format::Global, Format::Flat, Format::Mubuf];
    let mut compared = 0;
    for definition in definitions().iter().filter(|definition| formats.contains(&definition.format)) {
        // Buffers take the offsets of lanes.
        let words = [if definition.format == Format::Mubuf { 1 << 12 } else { 0 }, 0];
        let instruction = encode(definition, Extra { words });
        let size = part_of(&instruction).size() as u64;
        if size == 4 {
            continue;
        }
        compared += 1;
        let op = resolve(&instruction, &Semantics::of(&instruction), false);
        let register = instruction.high_bits(0, 8) as usize;
        for (beyond, lane, portable) in (0..8).map(|turn| ((turn & 1) as u64, [3, 31][turn >> 1 & 1], turn >> 2 == 1)) {
            let mut memory = Memory::default();
            let contents: Vec<u8> = (0..SIZE).map(|_| random.word() as u8).collect();
            let at = memory.allocate_bytes(&contents);
            let mut local = contents.clone();
            let mut start = random_wave(&mut random, false);
            start.scalars[EXEC] |= 1 << lane;
            let base = if matches!(definition.format, Format::Global | Format::Flat) { at } else { 0 };
            for other in 0..LANES {
                let offset = if other == lane { SIZE - size + beyond } else { other as u64 };
                start.vectors[register][other] = (base + offset) as u32;
                if base != 0 {
                    start.vectors[register + 1][other] = ((base + offset) >> 32) as u32;
                }
            }
            if definition.format == Format::Mubuf {
                let buffer = [at as u32, (at >> 32) as u32, SIZE as u32, 0x3101_6fac & !(1 << 23)];
                start.scalars[40..44].copy_from_slice(&buffer);
            }
            let (mut fast, mut plain) = (start.clone(), start.clone());
            let run =
                |wave: &mut Wave,
                 local: &mut [u8],
                 way: fn(&mut Wave, &Op, &Instruction, &mut Surroundings<'_>, bool) -> bool| {
                    let mut around = Surroundings {
                        global: Window::new(&memory),
                        local,
                        races: None,
                        bounds: LocalBounds::default(),
                    };
                    way(wave, &op, &instruction, &mut around, portable)
                };
            let ran =
                run(&mut fast, &mut local, |wave, op, _, around, portable| run_fast(wave, op, around, portable, false));
            assert_eq!(ran, beyond == 0, "{}", definition.mnemonic);
            if ran {
                run(&mut plain, &mut local, |wave, _, instruction, around, _| {
                    run_plain(wave, instruction, around);
                    true
                });
                assert_same(&fast, &plain, definition.mnemonic);
            } else {
                assert_same(&fast, &start, definition.mnemonic);
                assert_eq!(local, contents, "{}", definition.mnemonic);
            }
        }
    }
    assert!(compared > 40, "only {compared} instructions move parts of words");
}

/// Scalar loads of every width, with both offsets. One that ends after the region takes the plain path.
fn scalar_loads_are_the_same(random: &mut Random) {
    let mut memory = Memory::default();
    let contents: Vec<u8> = (0..256).map(|_| random.word() as u8).collect();
    let at = memory.allocate_bytes(&contents);
    for name in definitions().iter().map(|definition| definition.mnemonic) {
        if !name.starts_with("s_load_dword") && !name.starts_with("s_buffer_load_dword") {
            continue;
        }
        let definition = definitions().iter().find(|definition| definition.mnemonic == name).unwrap();
        for (offset, register, inside) in
            [(0, 0, true), (20, 8, true), (20, 6, false), (0x1f_fff8, 64, true), (252, 0, false)]
        {
            let mut instruction = encode(definition, Extra { words: [0, offset] });
            let mut start = random_wave(random, false);
            if register != 0 {
                let words = [instruction.first_word(), offset | 50 << 25];
                let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
                instruction = decode(&bytes, Chip::Gfx1010).unwrap();
                start.scalars[50] = register;
            }
            // The third word of the descriptor is the buffer's length.
            start.scalars[10..14].copy_from_slice(&[at as u32, (at >> 32) as u32, 256, 0x3101_6fac]);
            let op = resolve(&instruction, &Semantics::of(&instruction), false);
            let (mut fast, mut plain) = (start.clone(), start);
            let mut around = Surroundings {
                global: Window::new(&memory),
                local: &mut [],
                races: None,
                bounds: LocalBounds::default(),
            };
            let ran = run_fast(&mut fast, &op, &mut around, false, false);
            if Host::get() != Host::Plain {
                let is_last_word = register % 4 == 0 && name.ends_with("_dword");
                assert_eq!(ran, inside || is_last_word, "{name} {offset} {register}");
            }
            if ran {
                run_plain(&mut plain, &instruction, &mut around);
                assert_eq!(fast.scalars, plain.scalars, "{name} {offset}");
            }
        }
    }
}

/// A buffer load may overwrite the buffer's own descriptor. The old limit still applies.
#[test]
fn a_load_over_its_own_buffer_ends_where_the_buffer_did() {
    let mut memory = Memory::default();
    let contents: Vec<u32> = (0..8).map(|word| 0xffff_ff00 | word).collect();
    let bytes: Vec<u8> = contents.iter().flat_map(|word| word.to_le_bytes()).collect();
    let at = memory.allocate_bytes(&bytes);
    let name = "s_buffer_load_dwordx8";
    let definition = definitions().iter().find(|definition| definition.mnemonic == name).unwrap();
    let instruction = encode(definition, Extra { words: [0, 0] });
    let base = instruction.bits(0, 6) * 2;
    // The destination is the descriptor.
    let words = [instruction.first_word() & !(0x7f << 6) | base << 6, instruction.second_word()];
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let instruction = decode(&bytes, Chip::Gfx1010).unwrap();
    let mut wave = random_wave(&mut Random(4), false);
    let base = base as usize;
    wave.scalars[base..base + 4].copy_from_slice(&[at as u32, (at >> 32) as u32, 20, 0x3101_6fac]);
    let mut around =
        Surroundings { global: Window::new(&memory), local: &mut [], races: None, bounds: LocalBounds::default() };
    run_plain(&mut wave, &instruction, &mut around);
    let expected: Vec<u32> = contents.iter().enumerate().map(|(at, &word)| if at < 5 { word } else { 0 }).collect();
    assert_eq!(wave.scalars[base..base + 8], expected);
}

/// If alignment is checked, an unaligned address stops its own half of a wave of 64 lanes, if its lane is active.
#[test]
fn alignment_is_minded_in_each_half() {
    if Host::get() == Host::Plain {
        return;
    }
    let mut random = Random(3);
    let load = definitions().iter().find(|definition| definition.mnemonic == "ds_read_b64").unwrap();
    let instruction = encode(load, Extra::default());
    let op = resolve(&instruction, &Semantics::of(&instruction), false);
    let (memory, register) = (Memory::default(), instruction.high_bits(0, 8) as usize);
    let mut local: Vec<u8> = (0..=255).collect();
    for (odd_half, is_on, portable) in [(0, true), (1, true), (0, false), (1, false)]
        .into_iter()
        .flat_map(|(half, on)| [false, true].map(|portable| (half, on, portable)))
    {
        let mut start = random_wave(&mut random, true);
        for half in 0..2 {
            start.scalars[EXEC + half] = u32::MAX;
            start.vectors[half * start.registers + register] = std::array::from_fn(|lane| (lane as u32 * 4) & !7);
        }
        start.vectors[odd_half * start.registers + register][LANE] += 4;
        if !is_on {
            start.scalars[EXEC + odd_half] &= !(1 << LANE);
        }
        let mut around = Surroundings {
            global: Window::new(&memory),
            local: &mut local,
            races: None,
            bounds: LocalBounds::default(),
        };
        let mut wave = start.clone();
        assert!(run_fast(&mut wave, &op, &mut around, portable, false), "nothing is checked");
        let mut wave = start.clone();
        assert_eq!(run_fast(&mut wave, &op, &mut around, portable, true), !is_on, "half {odd_half}");
        if is_on {
            assert_eq!(wave.half, odd_half, "the half that is not done");
            let done = wave.vectors[DESTINATION as usize] != start.vectors[DESTINATION as usize];
            assert_eq!(done, odd_half == 1, "the lower half is done if only the upper one is not aligned");
        }
    }
}
