//! Compares the decoder with LLVM's disassembler, instruction by instruction, on the ROCm libraries of a real wheel.
//!
//! The wheel is `bitsandbytes-0.50.2-*.whl` in the folder that `UNHANG_FIXTURES` names.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use unhang_isa::audit::{Hazards, Rule};
use unhang_isa::elf::CodeObject;
use unhang_isa::{Chip, Field, Format, Program, decode};
use unhang_objects::survey::{Options, survey};
use unhang_objects::{WalkEvent, walk};

/// The wheel, or a message about what is missing.
fn wheel() -> Result<PathBuf, String> {
    let folder = std::env::var_os("UNHANG_FIXTURES").ok_or("UNHANG_FIXTURES is not set")?;
    let entries = fs::read_dir(&folder).map_err(|error| format!("{}: {error}", Path::new(&folder).display()))?;
    entries
        .flatten()
        .map(|entry| entry.path())
        .find(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            name.starts_with("bitsandbytes-0.50.2-") && name.ends_with(".whl")
        })
        .ok_or_else(|| "the wheel bitsandbytes-0.50.2-*.whl".to_owned())
}

/// LLVM 19's disassembler; the text of other versions differs in places.
fn disassembler() -> Result<&'static str, String> {
    ["llvm-objdump-19", "llvm-objdump"]
        .into_iter()
        .find(|name| {
            let output = Command::new(name).arg("--version").output();
            output.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("LLVM version 19"))
        })
        .ok_or_else(|| "llvm-objdump of LLVM 19".to_owned())
}

/// One line of the disassembler: address, number of words, text with single spaces.
fn parse_line(line: &str) -> Option<(u64, usize, String)> {
    let (text, rest) = line.split_once("// ")?;
    let (address, words) = rest.split_once(':')?;
    let address = u64::from_str_radix(address.trim(), 16).ok()?;
    let words = words.split_whitespace().take_while(|word| !word.starts_with('<')).count();
    Some((address, words, text.split_whitespace().collect::<Vec<_>>().join(" ")))
}

/// Compilers newer than LLVM 19 fill the unused source fields of a long vector instruction with the constant 0 (128),
/// which LLVM 19's disassembler rejects. This clears those fields, and nothing else, in the copy for the disassembler.
fn clear_unused_sources(object: &CodeObject<'_>, copy: &mut [u8]) -> usize {
    let Some(chip) = object.chip() else { return 0 };
    let mut cleared = 0;
    for function in &object.functions {
        let mut offset = 0;
        while let Ok(instruction) = decode(&function.code[offset..], chip) {
            if matches!(instruction.format(), Format::Vop3 | Format::Vop3p) {
                let mut word = instruction.second_word();
                for (field, low) in [(Field::Source1, 9), (Field::Source2, 18)] {
                    if instruction.definition.operand(field).is_none() && (word >> low) & 0x1ff == 128 {
                        word &= !(0x1ff << low);
                        cleared += 1;
                    }
                }
                let at = function.file_offset + offset + 4;
                copy[at..at + 4].copy_from_slice(&word.to_le_bytes());
            }
            offset += instruction.size();
        }
    }
    cleared
}

#[test]
fn every_instruction_of_a_real_wheel_reads_as_llvm_reads_it() {
    let (wheel, objdump) = match (wheel(), disassembler()) {
        (Ok(wheel), Ok(objdump)) => (wheel, objdump),
        (Err(missing), _) | (_, Err(missing)) => {
            println!("skipped: comparison of the decoder with LLVM on a real wheel: missing {missing}");
            return;
        }
    };
    let mut instructions: BTreeMap<String, usize> = BTreeMap::new();
    let mut cleared: BTreeMap<String, usize> = BTreeMap::new();
    let mut differences = Vec::new();
    walk(&wheel, &mut |event| {
        let WalkEvent::Object { bytes, .. } = event else { return };
        let object = CodeObject::parse(bytes).expect("a code object");
        let Some(chip) = object.chip() else { return };
        // The other chips of the wheel have the same instruction sets and nearly the same code.
        if !matches!(chip, Chip::Gfx1010 | Chip::Gfx1012 | Chip::Gfx1030) {
            return;
        }
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        let mut copy = bytes.to_vec();
        *cleared.entry(chip.to_string()).or_default() += clear_unused_sources(&object, &mut copy);
        fs::write(file.path(), copy).expect("written");
        let output = Command::new(objdump).arg("-d").arg(file.path()).output().expect("the disassembler runs");
        let mut theirs = BTreeMap::new();
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            if let Some((address, words, text)) = parse_line(line) {
                theirs.insert(address, (words, text));
            }
        }
        for function in &object.functions {
            // Code that does not decode as a whole is a difference too.
            if let Err(error) = Program::decode(function.code, chip, false) {
                differences.push(format!("{chip} {}: {error}", function.name));
            }
            let mut offset = 0;
            while offset < function.code.len() {
                let address = function.address + offset as u64;
                let (words, text) = theirs.get(&address).cloned().unwrap_or((1, "nothing".to_owned()));
                match decode(&function.code[offset..], chip) {
                    Ok(ours) => {
                        let printed = ours.text(false).to_string();
                        if ours.size() != words * 4 || printed != text {
                            differences.push(format!("{chip} {address:#x}: LLVM `{text}`, here `{printed}`"));
                        }
                    }
                    Err(error) => differences.push(format!("{chip} {address:#x}: LLVM `{text}`, here {error}")),
                }
                *instructions.entry(chip.to_string()).or_default() += 1;
                offset += words * 4;
            }
        }
    })
    .expect("the wheel can be read");
    println!("compared {instructions:?}; unused fields cleared {cleared:?}");
    // One example per kind of instruction says more than forty of one kind.
    let mut shown = BTreeMap::new();
    for difference in &differences {
        let mnemonic = difference.split('`').nth(1).and_then(|text| text.split(' ').next()).unwrap_or_default();
        shown.entry(mnemonic.to_owned()).or_insert(difference);
    }
    assert!(differences.is_empty(), "{} differences, the first: {shown:#?}", differences.len());
    for chip in ["gfx1010", "gfx1030"] {
        assert!(instructions.get(chip).copied().unwrap_or(0) > 100_000, "too little {chip} code: {instructions:?}");
    }
}

/// Checks for false alarms, and the figures of `docs/internals/hazards.md`.
#[test]
fn native_objects_of_a_real_wheel_are_clean_and_gfx1030_ones_are_not() {
    let wheel = match wheel() {
        Ok(wheel) => wheel,
        Err(missing) => {
            println!("skipped: audit of a real wheel: missing {missing}");
            return;
        }
    };
    let mut native = 0;
    let mut spoofed = Hazards::default();
    let mut functions = 0;
    let mut current = String::new();
    walk(&wheel, &mut |event| match event {
        WalkEvent::File { path } => current = path.to_owned(),
        WalkEvent::Object { bytes, .. } => {
            let target = CodeObject::parse(bytes).expect("a code object").chip().expect("a gfx10 chip");
            let chip = if target.is_rdna1() { target } else { Chip::Gfx1010 };
            let survey = survey(bytes, Options { chip, keep_findings: false }).expect("a code object");
            for function in &survey.functions {
                assert_eq!(function.error, None, "{}", function.name);
                if target.is_rdna1() {
                    native += 1;
                    assert_eq!(function.hazards, Hazards::default(), "{target} {}", function.name);
                } else if target == Chip::Gfx1030 && current.ends_with("rocm715.so") {
                    functions += 1;
                    spoofed.add(&function.hazards);
                }
            }
        }
        _ => {}
    })
    .expect("the wheel can be read");
    assert!(native >= 1000, "{native} native functions");
    assert_eq!(functions, 175);
    let counts = Rule::ALL.map(|rule| (rule.name(), spoofed.get(rule)));
    let expected = [
        ("inst-fwd-prefetch", 0),
        ("vcmpx-exec-war", 1200),
        ("lds-branch-vmem-war", 1843),
        ("vmem-to-scalar-write", 1973),
        ("smem-to-vector-write", 37),
        ("offset-3f", 5),
        ("flat-segment-offset", 0),
        ("lds-misaligned", 0),
        ("vcmpx-permlane", 0),
        ("nsa-to-vmem", 0),
        ("nsa-clause", 0),
        ("nsa-max-size", 0),
        ("negative-unaligned-scratch-offset", 0),
        ("buffer-out-of-range", 0),
        ("illegal-instruction", 0),
    ];
    assert_eq!(counts, expected);
}
