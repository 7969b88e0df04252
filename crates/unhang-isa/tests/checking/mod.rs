//! Whether a repaired object does what the original did: instruction by instruction, without the rules that repaired it.

use std::collections::HashSet;

use unhang_isa::elf::{CodeObject, Function};
use unhang_isa::repair::{ObjectRepair, Treatment};
use unhang_isa::{Field, Format, Instruction, OperandValue, Program};

/// What may be inserted: it changes no register and no memory.
fn changes_nothing(instruction: &Instruction) -> bool {
    let word = instruction.first_word();
    let moves_to_itself = word & 0xfe01_ff00 == 0x7e00_0300 && (word >> 17) & 0xff == word & 0xff;
    moves_to_itself || matches!(word, 0xbf80_0000 | 0xbfa3_fffe | 0xbfa3_ffe3 | 0xbefd_0380 | 0xbbfd_0000)
}

/// A flat access with an offset became a sum, the access without it, and the opposite sum.
fn flat_group(old: &Instruction, new: &[Instruction]) -> Option<usize> {
    let sum = |at: usize, amount: i32| {
        new.get(at).is_some_and(|it| {
            it.definition.mnemonic == "v_mad_i64_i32"
                && it.first_word() & 0xff == old.second_word() & 0xff
                && it.words().get(2) == Some(&(amount as u32))
        })
    };
    let offset = old.flat_offset();
    let access = new.get(1)?;
    let same = access.first_word() == old.first_word() & !0xfff && access.second_word() == old.second_word();
    // Through two separate registers, or in the registers of the address.
    let elsewhere = new[0].definition.mnemonic == "v_mad_i64_i32"
        && new[0].high_bits(18, 9) == 256 + (old.second_word() & 0xff)
        && new[0].words().get(2) == Some(&(offset as u32))
        && access.first_word() == old.first_word() & !0xfff
        && access.second_word() == old.second_word() & !0xff | new[0].first_word() & 0xff;
    if elsewhere && !same {
        return Some(2);
    }
    if !sum(0, offset) || !same {
        return None;
    }
    Some(if sum(2, -offset) { 3 } else { 2 })
}

/// A dot product that the chip lacks became as many products as it has, with copies, sums and selections of bits around
/// them. The group ends with the last that writes its destination. Nothing else is written but registers that the
/// function never names, or whose next use in the same block is another value.
fn dot_group(before: &Program, at: usize, new: &[Instruction], named: &HashSet<u8>) -> Option<usize> {
    let old = &before.instructions[at];
    let (product, count) = match old.definition.base_name() {
        "v_dot2_f32_f16" | "v_dot2c_f32_f16" => ("v_fma_mix_f32", 2),
        "v_dot2_i32_i16" => ("v_mad_i32_i16", 2),
        "v_dot2_u32_u16" => ("v_mad_u32_u16", 2),
        "v_dot4_i32_i8" | "v_dot4c_i32_i8" => ("v_mul_i32_i24", 4),
        "v_dot4_u32_u8" => ("v_mul_u32_u24", 4),
        "v_dot8_i32_i4" => ("v_mul_i32_i24", 8),
        "v_dot8_u32_u4" => ("v_mul_u32_u24", 8),
        _ => return None,
    };
    const AROUND: [&str; 9] = [
        "v_mov_b32",
        "v_add_nc_u32",
        "v_add_nc_i32",
        "v_sub_nc_i32",
        "v_bfe_i32",
        "v_bfe_u32",
        "v_not_b32",
        "v_xnor_b32",
        "v_bfi_b32",
    ];
    let written = |it: &Instruction| match it.operand(it.definition.operand(Field::Destination)?) {
        OperandValue::Vector(register) => Some(register),
        _ => None,
    };
    let destination = written(old)?;
    let mut products = 0;
    for (place, instruction) in new.iter().enumerate() {
        let name = instruction.definition.base_name();
        products += (name == product) as usize;
        let register = written(instruction)?;
        let is_known = name == product || AROUND.contains(&name);
        if !is_known
            || products > count
            || register != destination && named.contains(&register) && !is_renewed(before, at, register)
        {
            return None;
        }
        if products == count && register == destination {
            return Some(place + 1);
        }
    }
    None
}

/// Whether a register is written behind an instruction before anything reads it or the lanes change.
fn is_renewed(program: &Program, at: usize, register: u8) -> bool {
    for instruction in &program.instructions[at + 1..] {
        let names = |is_destination: bool| {
            instruction.definition.operands().iter().any(|&slot| {
                let count = slot.width.registers(program.wave64);
                let is_named = matches!(instruction.operand(slot),
                    OperandValue::Vector(first) if (first..=first.saturating_add(count - 1)).contains(&register));
                is_named && (slot.field == Field::Destination) == is_destination
            })
        };
        let text = instruction.text(program.wave64).to_string();
        let adds =
            ["fmac", "v_mac", "v_dot4c", "v_dot2c"].iter().any(|name| text.starts_with(name) || text.contains(name));
        if names(false) || adds && names(true) {
            return false;
        }
        if names(true) {
            return true;
        }
        let (name, operands) = text.split_once(' ').unwrap_or((&text, ""));
        let changes_lanes = operands.starts_with("exec") || name.contains("saveexec") || name.contains("cmpx");
        if name.contains("branch") || name.contains("pc_b64") || changes_lanes {
            return false;
        }
    }
    false
}

/// The vector registers that a function names; buffers may take one more than the table says.
fn vectors(program: &Program) -> HashSet<u8> {
    let of = |instruction: &Instruction| -> Vec<u8> {
        let more = (instruction.format() == Format::Mubuf) as u8;
        let slots = instruction.definition.operands().iter();
        let ranges = slots.filter_map(|&slot| match instruction.operand(slot) {
            OperandValue::Vector(first) => Some((first, slot.width.registers(program.wave64) + more)),
            _ => None,
        });
        ranges.flat_map(|(first, count)| (first..=u8::MAX).take(count as usize)).collect()
    };
    program.instructions.iter().flat_map(of).collect()
}

/// How many instructions of `new` stand for an instruction, if its first ones can.
fn stands_for(before: &Program, at: usize, new: &[Instruction], named: &HashSet<u8>) -> Option<usize> {
    let instruction = &before.instructions[at];
    let candidate = new.first()?;
    let branch = instruction.branch_distance().is_some();
    let adds = instruction.format() == Format::Sop2 && matches!(instruction.definition.opcode, 0 | 4);
    let sums = instruction.definition.mnemonic == "s_add_i32";
    let same = candidate.words() == instruction.words()
        || sums && candidate.first_word() == instruction.first_word() | 0xff && candidate.size() == 8
        || branch && candidate.first_word() >> 16 == instruction.first_word() >> 16
        || adds && candidate.first_word() & !0xff00 == instruction.first_word() & !0xff00 && candidate.size() == 8
        // Prefetches and clauses that had to be given up.
        || instruction.format() == Format::Sopp
            && matches!(instruction.definition.opcode, 0x20 | 0x21)
            && candidate.first_word() == 0xbf80_0000;
    if same {
        Some(1)
    } else if instruction.format() == Format::Flat {
        flat_group(instruction, new)
    } else {
        dot_group(before, at, new, named)
    }
}

/// For each old instruction where it begins now, insertions included, and where it stands itself; or the first for
/// which there is no place. An instruction that changes nothing may be an insertion or an old one: both are tried.
fn align(before: &Program, after: &Program) -> Result<(Vec<usize>, Vec<usize>), usize> {
    let count = before.instructions.len();
    let named = vectors(before);
    let mut furthest = 0;
    let mut tried = HashSet::new();
    // Each entry: old instructions placed so far, and the next new one, with where the pending one began.
    let mut path: Vec<(usize, usize)> = Vec::new();
    let mut work = vec![(0, 0, 0, 0)];
    while let Some((placed, at, start, depth)) = work.pop() {
        if !tried.insert((placed, at, start)) {
            continue;
        }
        path.truncate(depth);
        furthest = furthest.max(placed);
        let rest = &after.instructions[at..];
        if placed == count {
            if rest.iter().all(changes_nothing) {
                return Ok(path.into_iter().unzip());
            }
            continue;
        }
        if rest.first().is_some_and(changes_nothing) {
            work.push((placed, at + 1, start, depth));
        }
        if let Some(size) = stands_for(before, placed, rest, &named) {
            // Tried next, with this place on the path.
            path.push((start, at));
            work.push((placed + 1, at + size, at + size, depth + 1));
        }
    }
    Err(furthest.min(count - 1))
}

/// Panics unless `new` is `old` with insertions that change nothing, with the same branches.
fn check_function(object: &CodeObject<'_>, old: &Function<'_>, new: &Function<'_>) {
    let chip = object.chip().unwrap();
    let wave64 = object.mode_of(old).wave64;
    let before = Program::decode(old.code, chip, wave64).unwrap();
    let after = Program::decode(new.code, chip, wave64).unwrap();
    let (starts, bodies) = align(&before, &after)
        .unwrap_or_else(|at| panic!("{}: what became of {}?", old.name, before.instructions[at].text(wave64)));
    check_long_branches(&before, &after, &starts, &bodies);
    for (index, instruction) in before.instructions.iter().enumerate() {
        if let Some(distance) = instruction.branch_distance() {
            let target = before.offsets[index] as i64 + instruction.size() as i64 + distance;
            let Some(target) = usize::try_from(target).ok().and_then(|target| before.index_at(target)) else {
                // A branch that goes astray must have stayed where it was.
                assert!(old.address == new.address && old.code.len() == new.code.len(), "{}", old.name);
                continue;
            };
            let target = target as usize;
            let moved = &after.instructions[bodies[index]];
            let goes = after.offsets[bodies[index]] as i64 + 4 + moved.branch_distance().unwrap();
            let goes = after.index_at(goes as usize).unwrap() as usize;
            // Anywhere between the end of the instruction before the target and the target. Where the target and what
            // stands around it do nothing, which of them is which cannot be told.
            let between = goes.min(bodies[target])..goes.max(bodies[target]);
            let is_same = (starts[target]..=bodies[target]).contains(&goes)
                || after.instructions[between].iter().all(|it| it.first_word() == 0xbf80_0000);
            assert!(is_same, "{}: branch at {index}", old.name);
        }
    }
}

/// Tensile's long branches add a constant and 4 to what the last `s_getpc_b64` gave.
fn check_long_branches(before: &Program, after: &Program, starts: &[usize], bodies: &[usize]) {
    let meant = |program: &Program, get: usize, add: usize| {
        let base = program.offsets[get] as i64 + 4;
        base + program.instructions[add].literal() as i32 as i64 + 4
    };
    let mut get = 0;
    for (index, instruction) in before.instructions.iter().enumerate() {
        if instruction.definition.mnemonic == "s_getpc_b64" {
            get = index;
        }
        if instruction.first_word() & 0xff80_ffff == 0x8100_84ff && index - get < 4 {
            let (old, new) = (meant(before, get, index), meant(after, bodies[get], bodies[index]));
            let target = before.index_at(old as usize).unwrap() as usize;
            let lands = after.index_at(new as usize).unwrap() as usize;
            assert!((starts[target]..=bodies[target]).contains(&lands), "the long branch at {index}");
        }
    }
}

/// Panics unless the repaired object is the original with its functions moved and nothing else changed.
pub(crate) fn check_repair(original: &[u8], repair: &ObjectRepair) {
    let before = CodeObject::parse(original).unwrap();
    let bytes = repair.bytes.as_deref().unwrap_or(original);
    let after = CodeObject::parse(bytes).unwrap();
    assert_eq!(before.functions.len(), after.functions.len());
    assert_eq!((before.flags, before.metadata), (after.flags, after.metadata));
    for (function, report) in before.functions.iter().zip(&repair.functions) {
        assert_eq!(function.name, report.name);
        let found: Vec<_> = after.functions.iter().filter(|it| it.name == function.name).collect();
        let Some(new) = found.iter().find(|it| report.treatment != Treatment::Moved || it.address != function.address)
        else {
            panic!("{} is lost", function.name)
        };
        if report.treatment != Treatment::Untouched {
            check_function(&before, function, new);
        }
        if report.treatment == Treatment::Moved {
            let aligned = new.address.is_multiple_of(256);
            let descriptor = new.descriptor.map(|it| it.entry_address());
            assert!(aligned && descriptor.is_none_or(|entry| entry == new.address), "{}", function.name);
        }
    }
}
