//! Every instruction of the table in generated encodings, against LLVM's disassembler and assembler.
//!
//! Words with random operands and modifiers are disassembled by LLVM, and what it prints is assembled again. Where that gives
//! the words back, they are a way in which compilers write the instruction. The decoder here must read them as LLVM
//! does: the same length and the same text. Bits that LLVM ignores or refuses are nobody's business.

mod random;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::process::{Command, Stdio};

use random::Random;
use unhang_isa::{Chip, Definition, Field, Format, Instruction, OperandKind, decode, definitions};

impl Random {
    fn below(&mut self, limit: u32) -> u32 {
        self.next() % limit
    }

    /// These bits in one of four encodings, none in the others: most code has no modifiers.
    fn rarely(&mut self, mask: u32) -> u32 {
        if self.below(4) == 0 { self.next() & mask } else { 0 }
    }

    /// A scalar register, often an even one, for pairs and more.
    fn scalar(&mut self) -> u32 {
        match self.below(8) {
            0 => [106, 124, 125, 126][self.below(4) as usize],
            1..=3 => self.below(104),
            _ => self.below(26) * 4,
        }
    }

    /// A source of a scalar instruction: a register, or a constant.
    fn scalar_source(&mut self) -> u32 {
        match self.below(6) {
            0 => 128 + self.below(81),
            1 => 240 + self.below(9),
            2 => 255,
            _ => self.scalar(),
        }
    }

    /// A source of a vector instruction.
    fn source(&mut self, definition: &Definition, field: Field) -> u32 {
        match definition.operand(field) {
            None => 0,
            Some(slot) if slot.kind == OperandKind::Scalar => self.scalar(),
            Some(_) if self.below(2) == 0 => 256 + self.below(256),
            Some(_) => self.scalar_source(),
        }
    }
}

/// Words with which an instruction might be written.
fn words(definition: &Definition, random: &mut Random) -> Vec<u32> {
    let opcode = definition.opcode as u32;
    let r = random;
    // LLVM writes no more of a constant than the operand has.
    let literal = if definition.mnemonic.contains("f16") { r.next() & 0xffff } else { r.next() };
    let [a, b, c] = [Field::Source0, Field::Source1, Field::Source2].map(|field| r.source(definition, field));
    let short = |first: u32, uses_literal: bool| if uses_literal { vec![first, literal] } else { vec![first] };
    let has_constant = definition.operand(Field::Constant).is_some();
    match definition.format {
        Format::Sop2 => {
            let (a, b) = (r.scalar_source(), r.scalar_source());
            short(0x8000_0000 | opcode << 23 | r.scalar() << 16 | b << 8 | a, a == 255 || b == 255)
        }
        Format::Sop1 => {
            let a = if definition.operand(Field::Source0).is_some() { r.scalar_source() } else { 0 };
            let destination = if definition.operand(Field::Destination).is_some() { r.scalar() } else { 0 };
            short(0xbe80_0000 | destination << 16 | opcode << 8 | a, a == 255)
        }
        Format::Sopc => {
            let (a, b) = (r.scalar_source(), r.scalar_source());
            short(0xbf00_0000 | opcode << 16 | b << 8 | a, a == 255 || b == 255)
        }
        Format::Sopk => {
            let wide = definition.mnemonic.starts_with("s_setreg_imm32");
            short(0xb000_0000 | opcode << 23 | r.scalar() << 16 | r.next() & 0xffff, wide)
        }
        Format::Sopp => {
            vec![0xbf80_0000 | opcode << 16 | if r.below(2) == 0 { r.below(16) } else { r.next() & 0xffff }]
        }
        Format::Smem if definition.operand(Field::Source0).is_none() => {
            let destination = if definition.operand(Field::Destination).is_some() { r.below(52) * 2 } else { 0 };
            vec![0xf400_0000 | opcode << 18 | destination << 6, 0]
        }
        Format::Smem => {
            let first = 0xf400_0000 | opcode << 18 | r.rarely(0x1_4000) | r.scalar() << 6 | r.below(52);
            let offset = if r.below(3) == 0 { r.scalar() } else { 125 };
            vec![first, offset << 25 | r.rarely(0xf_ffff)]
        }
        Format::Vop1 if definition.operands().is_empty() => vec![0x7e00_0000 | opcode << 9],
        Format::Vop1 => short(0x7e00_0000 | r.below(256) << 17 | opcode << 9 | a, a == 255),
        Format::Vop2 => short(opcode << 25 | r.below(256) << 17 | r.below(256) << 9 | a, a == 255 || has_constant),
        Format::Vopc => short(0x7c00_0000 | opcode << 17 | r.below(256) << 9 | a, a == 255),
        Format::Vop3 => {
            let mask = definition.operand(Field::ScalarDestination).is_some();
            let scalar = definition.operand(Field::Destination).is_some_and(|slot| slot.kind == OperandKind::Scalar);
            let destination = if scalar { r.scalar() } else { r.below(256) };
            let modifiers = if mask { r.scalar() << 8 | r.rarely(0x8000) } else { r.rarely(0xff00) };
            let first = 0xd400_0000 | opcode << 16 | modifiers | destination;
            let mut all = vec![first, c << 18 | b << 9 | a | r.rarely(0xf800_0000)];
            all.extend([a, b, c].contains(&255).then_some(literal));
            all
        }
        Format::Vop3p => {
            let first = 0xcc00_0000 | opcode << 16 | r.rarely(0xff00) | 0x4000 | r.below(256);
            let mut all = vec![first, c << 18 | b << 9 | a | r.rarely(0xe000_0000) | 0x1800_0000];
            all.extend([a, b, c].contains(&255).then_some(literal));
            all
        }
        Format::Ds => vec![0xd800_0000 | opcode << 18 | r.rarely(0xffff), registers(definition, r)],
        Format::Flat | Format::Global | Format::Scratch => {
            let segment = match definition.format {
                Format::Flat => 0,
                Format::Scratch => 1,
                _ => 2,
            };
            let base = if r.below(2) == 0 { 0x7d } else { r.scalar() };
            let first = 0xdc00_0000 | opcode << 18 | segment << 14 | r.rarely(0xfff) | r.rarely(0x3_1000);
            vec![first, registers(definition, r) & 0xff00_ffff | base << 16]
        }
        Format::Mubuf if definition.operands().is_empty() => vec![0xe000_0000 | opcode << 18, 0],
        Format::Mubuf => {
            let first = 0xe000_0000 | opcode << 18 | r.rarely(0xfff) | r.rarely(0xf000);
            vec![first, r.scalar_source() << 24 | r.rarely(0x40_0000) | r.below(26) << 16 | r.next() & 0xffff]
        }
        Format::Mtbuf => {
            let first = 0xe800_0000 | (opcode & 7) << 16 | (1 + r.below(77)) << 19 | r.rarely(0xffff);
            let high = (opcode >> 3 & 1) << 21;
            vec![first, r.scalar() << 24 | high | r.below(26) << 16 | r.next() & 0xffff]
        }
        Format::Mimg => {
            let first = 0xf000_0000 | (opcode & 127) << 18 | opcode >> 7 | r.below(8) << 3 | (1 << r.below(4)) << 8;
            vec![
                first | r.rarely(0x2_b080),
                r.rarely(0xc000_0000) | r.below(13) << 22 | r.below(26) << 17 >> 1 | r.next() & 0xffff,
            ]
        }
        Format::Vintrp => vec![0xc800_0000 | opcode << 16 | r.next() & 0x3fc_ffff],
        Format::Exp => vec![0xf800_0000 | r.next() & 0x1fff, r.next()],
    }
}

/// The vector registers of an access: address, data, second data and destination, as far as it has them.
fn registers(definition: &Definition, random: &mut Random) -> u32 {
    let fields = [Field::Source0, Field::Source1, Field::Source2, Field::Destination];
    fields.iter().enumerate().fold(0, |word, (place, &field)| {
        // What an atomic does not return has no register.
        let there = definition.operand(field).is_some() && (field != Field::Destination || random.below(2) == 0);
        let needed = definition.operand(field).is_some() && !definition.mnemonic.contains("atomic");
        word | if there || needed { random.below(252) << (place * 8) } else { 0 }
    })
}

/// Runs `llvm-mc` of a version; what it prints, up to each mark.
fn llvm(version: u8, chip: Chip, arguments: &[&str], input: Vec<String>) -> Option<Vec<Vec<String>>> {
    let mut child = Command::new(format!("llvm-mc-{version}"))
        .args(["-triple=amdgcn-amd-amdhsa", &format!("-mcpu={}", chip.name()), "-mattr=+wavefrontsize32"])
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let mut stdin = child.stdin.take()?;
    let writer = std::thread::spawn(move || stdin.write_all(input.concat().as_bytes()));
    let output = child.wait_with_output().ok()?;
    writer.join().ok()?.ok()?;
    let mut parts = vec![Vec::new()];
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let line = line.split_whitespace().collect::<Vec<_>>().join(" ");
        if line.starts_with("s_sethalt 0x5a5a") {
            parts.push(Vec::new());
        } else if !line.is_empty() && !line.starts_with('.') {
            parts.last_mut()?.push(line);
        }
    }
    Some(parts)
}

/// `s_sethalt 0x5a5a`, which stands between encodings.
const MARK: u32 = 0xbf8d_5a5a;

fn bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn hexadecimal(words: &[u32]) -> String {
    format!("[{}]\n", bytes(words).iter().map(|byte| format!("{byte:#04x}")).collect::<Vec<_>>().join(","))
}

/// The encodings that LLVM writes, with its text.
fn canonical(version: u8, chip: Chip, all: &[Vec<u32>]) -> Option<Vec<(Vec<u32>, String)>> {
    let input = all.iter().flat_map(|words| [hexadecimal(words), hexadecimal(&[MARK])]).collect();
    let texts = llvm(version, chip, &["-disassemble"], input)?;
    let mut read: Vec<(&Vec<u32>, &String)> = Vec::new();
    for (words, lines) in all.iter().zip(&texts) {
        // What LLVM reads and calls invalid, it would not write.
        if let [line] = &lines[..]
            && !line.contains("/*Invalid")
        {
            read.push((words, line));
        }
    }
    let input = read.iter().map(|(_, text)| format!("{text}\ns_sethalt 0x5a5a\n")).collect();
    let written = llvm(version, chip, &["-show-encoding"], input)?;
    let same = read.into_iter().zip(&written).filter(|((words, _), lines)| {
        let encoding = hexadecimal(words);
        lines.iter().any(|line| line.ends_with(encoding.trim_end()))
    });
    Some(same.map(|((words, text), _)| (words.clone(), text.clone())).collect())
}

/// Instructions of which LLVM's assembler wrote none of the generated encodings, so that nothing was compared, and why.
const NOT_COMPARED: &[(&str, &str)] = &[
    ("ds_gws_", "global wave sync needs the bit for the global data share"),
    ("ds_ordered_count", "as ds_gws_"),
    ("image_", "some need a mask of channels, a dimension or registers that random ones seldom are; graphics"),
    ("s_dcache_discard", "its operands are not in the table; no compiler emits it"),
    ("s_endpgm_", "LLVM writes them with no constant"),
    ("s_wakeup", "as s_endpgm_"),
];

/// Where the operands here are not printed as LLVM prints them, and why; name and length are compared all the same.
const DIFFERENT: &[(&str, &str)] = &[
    ("s_atc_probe", "the kind of probe is not printed; no compiler emits it"),
    ("s_atc_probe_buffer", "as s_atc_probe"),
    ("s_endpgm", "LLVM prints an operand, which compilers leave zero, as a decimal number"),
    ("s_getreg_b32", "LLVM has names for registers of later chips under some numbers"),
    ("s_setreg_b32", "as s_getreg_b32"),
    ("s_setreg_imm32_b32", "as s_getreg_b32"),
    ("s_sendmsg", "LLVM prints a message that no chip has as a number"),
    ("s_sendmsghalt", "as s_sendmsg"),
    ("s_waitcnt_depctr", "LLVM prints values with bits that have no field as a number"),
    ("v_ldexp_f16", "the sign of the exponent, which hardware ignores, is called sext by LLVM"),
    ("v_ldexp_f32", "as v_ldexp_f16"),
    ("v_ldexp_f64", "as v_ldexp_f16"),
    ("v_trig_preop_f64", "as v_ldexp_f16"),
    ("v_cvt_pk_u8_f32", "as v_ldexp_f16, of the byte's number"),
];

fn without_format(text: &str) -> Vec<&str> {
    text.split(' ').filter(|word| !word.starts_with("format:")).collect()
}

/// Whether an instruction reads as LLVM reads it.
fn reads_alike(ours: &Instruction, size: usize, version: u8, text: &str) -> bool {
    let (printed, name) = (ours.text(false).to_string(), text.split(' ').next());
    if ours.size() != size {
        return false;
    }
    match ours.format() {
        // Graphics: printed as words.
        Format::Exp | Format::Vintrp => true,
        Format::Mimg => printed.split(' ').next() == name,
        // The format is a number here; there it is a name, or nothing where it is the usual one.
        Format::Mtbuf => without_format(&printed) == without_format(text),
        // LLVM 15 prints some operands otherwise.
        _ if version == 15 || DIFFERENT.iter().any(|(known, _)| *known == ours.definition.base_name()) => {
            printed.split(' ').next() == name
        }
        _ => printed == text,
    }
}

#[test]
fn generated_encodings_of_every_instruction_read_as_llvm_reads_them() {
    let (mut compared, mut differences) = (BTreeMap::<&str, usize>::new(), BTreeMap::new());
    for (version, chip) in [(19, Chip::Gfx1010), (19, Chip::Gfx1012), (19, Chip::Gfx1030), (15, Chip::Gfx1010)] {
        let mut random = Random(chip as u64 + 1);
        let mut all = Vec::new();
        for definition in definitions().iter().filter(|definition| definition.exists_on(chip)) {
            // LLVM does not accept most generated images as instructions.
            let count = if definition.format == Format::Mimg { 200 } else { 24 };
            all.extend((0..count).map(|_| words(definition, &mut random)));
        }
        let Some(found) = canonical(version, chip, &all) else {
            println!("skipped: comparison of encodings with LLVM: no llvm-mc-{version}");
            return;
        };
        assert!(found.len() > 5000, "{version} {chip}: {}", found.len());
        for (words, text) in found {
            let ours: Result<Instruction, _> = decode(&bytes(&words), chip);
            let name = text.split(' ').next().unwrap_or_default().to_owned();
            match ours {
                Ok(ours) => {
                    *compared.entry(ours.definition.base_name()).or_default() += 1;
                    if !reads_alike(&ours, words.len() * 4, version, &text) {
                        let printed = ours.text(false);
                        differences
                            .entry(name)
                            .or_insert(format!("LLVM {version} `{text}`, here `{printed}` ({words:x?})"));
                    }
                }
                Err(error) => {
                    differences.entry(name).or_insert(format!("LLVM {version} `{text}`, here {error} ({words:x?})"));
                }
            }
        }
    }
    let names: BTreeSet<&str> = definitions().iter().map(|definition| definition.base_name()).collect();
    let known = |name: &str| NOT_COMPARED.iter().any(|(known, _)| name.starts_with(known));
    let missing: BTreeSet<&str> = names.iter().copied().filter(|name| !compared.contains_key(name)).collect();
    println!("{} encodings of {} instructions compared", compared.values().sum::<usize>(), compared.len());
    assert!(differences.is_empty(), "{} kinds of differences: {differences:#?}", differences.len());
    println!("not compared: {missing:?}");
    assert!(missing.iter().all(|name| known(name)), "not compared: {missing:?}");
    assert!(missing.len() < 30, "not compared: {missing:?}");
    // The emulator's table of sources is made from it.
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/compared-with-llvm.txt");
    let names: String = compared.keys().map(|name| format!("{name}\n")).collect();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(path, &names).unwrap();
    }
    let written = std::fs::read_to_string(path).unwrap_or_default();
    let compared = |name: &&str| compared.contains_key(*name);
    // Another release of LLVM may take more encodings; fewer would make the table say what is not so.
    let lost: Vec<&str> = written.lines().filter(|name| !compared(name)).collect();
    let again = "UPDATE_DOCS=1 cargo test -p unhang-isa --test encodings";
    assert!(!written.is_empty() && lost.is_empty(), "{path} lists what was not compared: {lost:?}: {again}");
}
