//! Damaged and invented input: any answer will do, but never a panic.

use proptest::prelude::*;
use unhang_isa::audit::{Context, audit};
use unhang_isa::elf::CodeObject;
use unhang_isa::{Chip, Program, decode};

const OBJECT: &[u8] = include_bytes!("fixtures/hazards.co");

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
}
