//! Damaged and invented input: any answer will do, but never a panic.

mod checking;

use proptest::prelude::*;
use unhang_isa::audit::{Context, audit};
use unhang_isa::elf::CodeObject;
use unhang_isa::repair::{Options, Treatment, repair_object};
use unhang_isa::{Chip, Program, decode};

const OBJECT: &[u8] = include_bytes!("fixtures/hazards.co");
const LINKED: &[u8] = include_bytes!("fixtures/moves.co");

/// Repairs whatever can be, both ways, and what came of it again.
fn repair(bytes: &[u8]) {
    for keep_size in [false, true] {
        let options = Options { chip: Chip::Gfx1010, keep_size };
        let Ok(repair) = repair_object(bytes, options) else { continue };
        if let Some(repaired) = &repair.bytes {
            // A small multiple: the code once more with insertions, padded, and the tables.
            assert!(repaired.len() <= 16 * bytes.len() + (64 << 10), "{} from {}", repaired.len(), bytes.len());
            if let Ok(again) = repair_object(repaired, options) {
                // The mode may change the second time: two kernels that a damaged descriptor has begin with one function are apart
                // once it has moved. A function that a damaged symbol covered with another one is seen once that one has moved.
                let seen = |name: &str| repair.functions.iter().any(|it| it.name == name);
                let changed =
                    again.functions.iter().filter(|it| it.treatment != Treatment::Untouched && seen(&it.name));
                let changed: Vec<_> = changed.map(|it| (&it.name, it.treatment, &it.before)).collect();
                assert!(changed.is_empty(), "repaired twice, keep_size {keep_size}: {changed:?}");
            }
        }
        for function in repair.functions {
            let _ = function.reason.map(|reason| reason.to_string());
        }
    }
}

/// Instructions that hazards are made of, by number: a few words each.
fn hazardous(choice: u32, argument: u32) -> Vec<u32> {
    let small = argument % 24;
    match choice % 21 {
        0 => vec![0xbe84_037e],                                     // s_mov_b32 s4, exec_lo
        1 => vec![0x7da8_0090],                                     // v_cmpx_gt_u32 16, v0
        2 => vec![0xdc30_8000, 0x0604_0001],                        // global_load_dword v6, v1, s[4:5]
        3 => vec![0xd9d8_0000, 0x0800_0003],                        // ds_read_b64 v[8:9], v3
        4 => vec![0xf404_0282, 0xfa00_0008],                        // s_load_dwordx2 s[10:11], s[4:5], 0x8
        5 => vec![0xd4c5_0004, 0x0002_0087],                        // v_cmp_ne_u32 s4, 7, v0
        6 => vec![0xbe84_0380],                                     // s_mov_b32 s4, 0
        7 => vec![0xbf82_0000 | small],                             // s_branch forwards
        8 => vec![0xbf85_0000 | (small.wrapping_neg() & 0xffff)],   // s_cbranch_scc1 backwards
        9 => vec![0xbf88_003f],                                     // s_cbranch_execz 0x3f
        10 => vec![0xbfa1_0000 | (argument % 4)],                   // s_clause
        11 => vec![0xbfa0_0001],                                    // s_inst_prefetch
        12 => vec![0xdc30_0000 | (small * 8), 0x0c7d_0000 | small], // flat_load_dword v12, v[small], offset
        13 => vec![0xdc74_0010, 0x007d_0a0a],                       // flat_store_dwordx2 of its own address
        14 => vec![0xd777_0001, 0x0010_0702],                       // v_permlane16_b32
        15 => vec![0xbe88_1f00, 0x8008_ff08, argument % 512, 0x8209_ff09, 0],
        16 => vec![0xbe88_1f00, 0x8008_ff08, small * 4, 0x8209_ff09, 0, 0xbe80_2008],
        17 => vec![0xbf8c_0000 | argument & 0xff7f], // s_waitcnt
        18 => vec![0xbf80_0000],                     // s_nop
        19 => vec![0xbe9e_2108],                     // s_swappc_b64 s[30:31], s[8:9]
        _ => vec![0x4a04_0481],                      // v_add_nc_u32 v2, 1, v2
    }
}

fn chips() -> impl Strategy<Value = Chip> {
    prop::sample::select(Chip::ALL.to_vec())
}

/// Decodes, prints and audits whatever can be.
fn exercise(bytes: &[u8]) {
    let Ok(object) = CodeObject::parse(bytes) else { return };
    for function in &object.functions {
        let chip = object.chip().unwrap_or(Chip::Gfx1030);
        if let Ok(program) = Program::decode(function.code, chip, function.descriptor.is_some_and(|it| it.wave64())) {
            for instruction in &program.instructions {
                let _ = instruction.text(program.wave64).to_string();
            }
            for target in [Chip::Gfx1010, Chip::Gfx1030] {
                for finding in audit(&program, target, Context { workgroup_processor_mode: true }) {
                    let _ = finding.explanation();
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(
        std::env::var("UNHANG_HOSTILE_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(2000)
    ))]

    #[test]
    fn any_word_is_an_instruction_or_an_error(words in prop::collection::vec(any::<u32>(), 0..6), chip in chips(), wave64: bool) {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        if let Ok(instruction) = decode(&bytes, chip) {
            prop_assert!(instruction.size() <= bytes.len());
            prop_assert!(!instruction.text(wave64).to_string().is_empty());
            prop_assert!(instruction.definition.exists_on(chip));
            let _ = instruction.effects(wave64);
            // What was read is all that it depends on.
            let again = decode(&bytes[..instruction.size()], chip).unwrap();
            prop_assert_eq!(again.words(), instruction.words());
        }
    }

    #[test]
    fn invented_programs_are_audited_or_refused(words in prop::collection::vec(any::<u32>(), 0..200), chip in chips()) {
        // Words of real encodings, so that more than the first instruction decodes.
        let bytes: Vec<u8> = words
            .iter()
            .map(|word| match word % 5 {
                0 => 0xbf80_0000 | (word >> 8) & 0x7f_ffff,
                1 => 0x7e00_0200 | (word >> 8) & 0xff,
                2 => 0xbe80_0300 | (word >> 8) & 0x7f,
                3 => 0x7d00_0000 | word >> 8 & 0xff_ffff,
                _ => 0x8000_0000 | word >> 8 & 0x3f7f_7f7f,
            })
            .flat_map(u32::to_le_bytes)
            .collect();
        if let Ok(program) = Program::decode(&bytes, chip, false) {
            audit(&program, Chip::Gfx1010, Context::default());
        }
    }

    #[test]
    fn damaged_objects_are_read_or_refused(
        changes in prop::collection::vec((0..OBJECT.len(), any::<u8>()), 1..8),
        length in prop::option::of(0..OBJECT.len()),
    ) {
        let mut bytes = OBJECT.to_vec();
        for (at, value) in changes {
            bytes[at] = value;
        }
        bytes.truncate(length.unwrap_or(OBJECT.len()));
        exercise(&bytes);
    }

    #[test]
    fn damaged_headers_are_read_or_refused(
        changes in prop::collection::vec((0..64usize, any::<u8>()), 1..6),
        section_changes in prop::collection::vec((0..640usize, any::<u8>()), 0..6),
    ) {
        let mut bytes = OBJECT.to_vec();
        for (at, value) in changes {
            bytes[at] = value;
        }
        let length = bytes.len();
        for (at, value) in section_changes {
            bytes[length - 1 - at % length] = value;
        }
        exercise(&bytes);
    }

    #[test]
    fn invented_kernels_mean_the_same_after_repair(
        choices in prop::collection::vec((any::<u32>(), any::<u32>()), 1..80),
    ) {
        let function = CodeObject::parse(LINKED).unwrap().functions.into_iter().find(|it| it.name == "everything").unwrap();
        let words: Vec<u32> = choices.into_iter().flat_map(|(choice, argument)| hazardous(choice, argument)).collect();
        let mut object = LINKED.to_vec();
        let place = &mut object[function.file_offset..function.file_offset + function.code.len()];
        for (place, word) in place.chunks_exact_mut(4).zip(words.into_iter().chain(std::iter::repeat(0xbf81_0000))) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        let options = Options { chip: Chip::Gfx1010, keep_size: false };
        let repair = repair_object(&object, options).unwrap();
        checking::check_repair(&object, &repair);
        if let Some(repaired) = &repair.bytes {
            prop_assert!(repair_object(repaired, options).unwrap().bytes.is_none());
        }
    }

    #[test]
    fn damaged_objects_are_repaired_or_refused(
        changes in prop::collection::vec((0..LINKED.len(), any::<u8>()), 1..8),
        header_changes in prop::collection::vec((0..64usize + 8 * 56, any::<u8>()), 0..3),
        length in prop::option::weighted(0.1, 0..LINKED.len()),
    ) {
        let mut bytes = LINKED.to_vec();
        for (at, value) in changes.into_iter().chain(header_changes) {
            bytes[at] = value;
        }
        bytes.truncate(length.unwrap_or(LINKED.len()));
        repair(&bytes);
    }
}

#[test]
fn a_damaged_object_with_a_function_of_two_kernels_is_repaired_once() {
    let mut bytes = LINKED.to_vec();
    bytes[8121] = 46;
    repair(&bytes);
}

#[test]
fn a_damaged_object_with_a_function_inside_another_is_repaired_once() {
    let mut bytes = LINKED.to_vec();
    bytes[6736] = 252;
    repair(&bytes);
}
