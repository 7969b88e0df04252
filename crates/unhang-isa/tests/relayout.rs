//! Functions laid out anew: every way in which code depends on its place, and every reason to leave it there.

mod checking;

use unhang_isa::Chip;
use unhang_isa::audit::Rule;
use unhang_isa::elf::CodeObject;
use unhang_isa::repair::{FunctionRepair, Options, Reason, Treatment, plan_function, repair_object};

const MOVES: &[u8] = include_bytes!("fixtures/moves.co");
const TENSILE: &[u8] = include_bytes!("fixtures/tensile.co");
const KERNELS: &[u8] = include_bytes!("../../unhang-emulator/tests/fixtures/kernels.gfx1030.co");
const NATIVE: &[u8] = include_bytes!("../../unhang-emulator/tests/fixtures/kernels.gfx1010.co");
const NOT_LINKED: &[u8] = include_bytes!("fixtures/hazards.co");
const OPTIONS: Options = Options { chip: Chip::Gfx1010, keep_size: false };

#[test]
fn every_function_is_repaired_or_left_for_its_reason() {
    let repair = repair_object(MOVES, OPTIONS).unwrap();
    checking::check_repair(MOVES, &repair);
    let get = |name: &str| repair.functions.iter().find(|function| function.name == name).unwrap();
    for name in ["everything", "twist", "permutes", "stores_its_address"] {
        let FunctionRepair { treatment, after, reason, .. } = get(name);
        assert_eq!((treatment, after.total(), reason), (&Treatment::Moved, 0, &None), "{name}");
    }
    assert!(get("everything").before.total() >= 14 && get("everything").mode_changed);
    assert_eq!(get("permutes").before.get(Rule::ComparePermlane), 1);
    assert_eq!(get("prefetch_only").treatment, Treatment::InPlace);
    // What nothing replaces stays, and everything else is repaired all the same.
    let FunctionRepair { treatment, before, after, reason, .. } = get("partly_illegal");
    assert_eq!((treatment, after.total(), after.get(Rule::Illegal)), (&Treatment::Moved, 1, 1));
    assert_eq!((before.get(Rule::Illegal), reason), (2, &Some(Reason::IllegalInstructions(1))));
    assert!(before.get(Rule::CompareExec) > 0 && before.get(Rule::InstructionPrefetch) > 0);
    // Nothing is wrong with either. But what `calm` calls may leave something pending.
    for (name, treatment) in [("calm", Treatment::Moved), ("fine", Treatment::Untouched)] {
        let FunctionRepair { before, reason, .. } = get(name);
        assert_eq!((get(name).treatment, before.total(), reason), (treatment, 0, &None), "{name}");
    }
    for (name, reason) in [
        ("left_illegal", Reason::IllegalInstructions(1)),
        ("left_jump", Reason::UnresolvedJump { offset: 0x14 }),
        ("left_address", Reason::UnknownAddress { offset: 8 }),
        ("left_flat", Reason::FlatAccess(1)),
    ] {
        let FunctionRepair { treatment, before, after, reason: found, .. } = get(name);
        // The last one waits for what its callers left.
        let expected = if name == "left_flat" { Treatment::Moved } else { Treatment::Untouched };
        assert_eq!((*treatment, found.as_ref()), (expected, Some(&reason)), "{name}");
        assert_eq!(before, after, "{name}");
    }
}

#[test]
fn functions_without_a_size_end_where_the_next_one_begins() {
    let object = CodeObject::parse(TENSILE).unwrap();
    let names: Vec<_> = object.functions.iter().map(|function| function.name).collect();
    assert_eq!(
        names,
        [
            "jumps_forwards",
            "jumps_backwards",
            "jumps_either_way",
            "left_wanted",
            "left_entered",
            "dots",
            "flat_over_itself",
            "left_legacy",
            "last"
        ]
    );
    for function in &object.functions {
        assert!(function.code.ends_with(&0xbf81_0000u32.to_le_bytes()), "{} ends with s_endpgm", function.name);
        assert!(function.descriptor.is_some(), "{}", function.name);
    }
}

#[test]
fn long_branches_of_tensile_are_branches() {
    let object = CodeObject::parse(TENSILE).unwrap();
    for (name, jumps) in [("jumps_forwards", 1), ("jumps_backwards", 1), ("jumps_either_way", 4), ("left_entered", 0)] {
        let function = object.functions.iter().find(|function| function.name == name).unwrap();
        let program = unhang_isa::Program::decode(function.code, Chip::Gfx1030, false).unwrap();
        let mnemonic = |index: u32| program.instructions[index as usize].definition.mnemonic;
        let resolved = program
            .blocks
            .iter()
            .filter(|block| mnemonic(block.end - 1) == "s_setpc_b64" && block.successors[1].is_some());
        assert_eq!(resolved.count(), jumps, "{name}");
        assert_eq!(program.unresolved_jumps == 0, jumps > 0, "{name}");
    }
}

#[test]
fn kernels_of_tensile_are_repaired_or_left_for_their_reason() {
    let repair = repair_object(TENSILE, OPTIONS).unwrap();
    checking::check_repair(TENSILE, &repair);
    for function in &repair.functions {
        let FunctionRepair { name, treatment, before, after, reason, .. } = function;
        assert!(before.total() > 0, "{name}");
        if name.starts_with("left_") {
            assert_eq!((treatment, before), (&Treatment::Untouched, after), "{name}");
            let expected = match name.as_str() {
                "left_legacy" => matches!(reason, Some(Reason::IllegalInstructions(1))),
                _ => matches!(reason, Some(Reason::UnknownAddress { .. })),
            };
            assert!(expected, "{name}: {reason:?}");
        } else {
            let expected = if name == "last" { Treatment::InPlace } else { Treatment::Moved };
            assert_eq!((*treatment, after.total(), reason), (expected, 0, &None), "{name}");
        }
    }
    // Those that stay have a size now: what followed them is gone from there.
    let repaired = repair.bytes.unwrap();
    let (before, after) = (CodeObject::parse(TENSILE).unwrap(), CodeObject::parse(&repaired).unwrap());
    for function in before.functions.iter().filter(|function| function.name.starts_with("left_")) {
        assert!(after.functions.iter().any(|it| (it.address, it.code) == (function.address, function.code)));
    }
}

#[test]
fn repair_is_deterministic_and_a_second_one_changes_nothing() {
    for object in [MOVES, KERNELS, TENSILE] {
        let first = repair_object(object, OPTIONS).unwrap();
        let repaired = first.bytes.clone().unwrap();
        assert_eq!(repair_object(object, OPTIONS).unwrap().bytes.unwrap(), repaired);
        let second = repair_object(&repaired, OPTIONS).unwrap();
        assert!(second.bytes.is_none());
        let left = |repair: &unhang_isa::repair::ObjectRepair| -> u64 {
            repair.functions.iter().map(|function| function.after.total()).sum()
        };
        assert_eq!(left(&first), left(&second));
    }
}

#[test]
fn what_a_compiler_for_the_chip_made_is_left_alone() {
    let repair = repair_object(NATIVE, OPTIONS).unwrap();
    assert!(repair.bytes.is_none());
    let repair = repair_object(KERNELS, Options { chip: Chip::Gfx1030, keep_size: false }).unwrap();
    assert!(repair.bytes.is_none());
}

/// As inline assembly stands in native code: without the waits that a compiler adds.
#[test]
fn native_code_without_its_waits_is_repaired() {
    let mut hasty = NATIVE.to_vec();
    for word in hasty.chunks_exact_mut(4).filter(|word| **word == 0xbfa3_ffe3u32.to_le_bytes()) {
        word.copy_from_slice(&0xbf80_0000u32.to_le_bytes());
    }
    let repair = repair_object(&hasty, OPTIONS).unwrap();
    checking::check_repair(&hasty, &repair);
    assert!(repair.functions.iter().map(|function| function.before.total()).sum::<u64>() > 5);
    assert!(repair.functions.iter().all(|function| function.after.total() == 0));
}

/// A sum whose last two elements are read as one of eight bytes. It has this much local memory before what a launch
/// adds.
fn wide_sum(own: u32) -> Vec<u8> {
    let mut object = NATIVE.to_vec();
    let words = |object: &[u8], words: [u32; 2]| {
        let bytes: Vec<u8> = words.into_iter().flat_map(u32::to_le_bytes).collect();
        object.windows(8).position(|found| found == bytes).unwrap()
    };
    // ds_read2_b32 v[2:3], v1 offset1:1 becomes ds_read_b64 v[2:3], v1.
    let read = words(&object, [0xd8dc_0100, 0x0200_0001]);
    object[read..read + 4].copy_from_slice(&0xd9d8_0000u32.to_le_bytes());
    let code = CodeObject::parse(NATIVE).unwrap();
    let sum = code.functions.iter().find(|function| function.name == "block_sum").unwrap().descriptor.unwrap();
    object[sum.file_offset..sum.file_offset + 4].copy_from_slice(&own.to_le_bytes());
    // COMPUTE_PGM_RSRC1's bit for workgroup-processor mode.
    object[sum.file_offset + 51] |= 1 << 5;
    object
}

#[test]
fn native_kernels_whose_added_local_memory_begins_unaligned_keep_to_one_compute_unit() {
    assert!(repair_object(&wide_sum(1024), OPTIONS).unwrap().bytes.is_none());
    let object = wide_sum(1025);
    let repair = repair_object(&object, OPTIONS).unwrap();
    checking::check_repair(&object, &repair);
    let changed: Vec<_> = repair.functions.iter().filter(|function| function.mode_changed).map(|it| &it.name).collect();
    assert_eq!(changed, ["block_sum"]);
    let repaired = repair.bytes.unwrap();
    let after = CodeObject::parse(&repaired).unwrap();
    let sum = after.functions.iter().find(|function| function.name == "block_sum").unwrap().descriptor.unwrap();
    assert!(!sum.workgroup_processor_mode());
}

#[test]
fn real_kernels_are_repaired_completely() {
    let repair = repair_object(KERNELS, OPTIONS).unwrap();
    checking::check_repair(KERNELS, &repair);
    assert!(repair.functions.iter().map(|function| function.before.total()).sum::<u64>() > 20);
    assert!(repair.functions.iter().all(|function| function.after.total() == 0));
}

#[test]
fn data_stays_and_addresses_of_code_follow_it() {
    let repair = repair_object(MOVES, OPTIONS).unwrap();
    let repaired = repair.bytes.unwrap();
    let (before, after) = (CodeObject::parse(MOVES).unwrap(), CodeObject::parse(&repaired).unwrap());
    let (old, new): (Vec<_>, Vec<_>) = (before.segments().collect(), after.segments().collect());
    assert_eq!(new.len(), old.len() + 1);
    let last = new.last().unwrap();
    // Loaders take the last segment's end for the end of everything.
    assert!(new.iter().all(|segment| segment.address + segment.memory_size <= last.address + last.memory_size));
    assert!(last.address % 4096 == (last.contents.as_ptr() as u64 - repaired.as_ptr() as u64) % 4096);
    assert!(last.contents.ends_with(&0xbf9f_0000u32.to_le_bytes()), "behind the code stands s_code_end");
    let address = |object: &CodeObject<'_>, name: &str| {
        object.functions.iter().find(|function| function.name == name).unwrap().address
    };
    // The loader fills `pointers` from two relocations; both functions moved, and their pointers with them.
    let addends = |bytes: &[u8], value: u64| {
        bytes.windows(24).filter(|it| it[8..12] == 13u32.to_le_bytes() && it[16..24] == value.to_le_bytes()).count()
    };
    for name in ["twist", "calm"] {
        assert_eq!(addends(MOVES, address(&before, name)), 1);
        assert_eq!(addends(&repaired, address(&after, name)), 1);
        assert_ne!(address(&before, name), address(&after, name));
    }
    assert_eq!(address(&before, "fine"), address(&after, "fine"));
}

#[test]
fn kernels_that_share_their_code_move_together() {
    // The descriptors are in the first segment, in steps of 64 bytes; each says how far away it starts.
    let starts = |bytes: &[u8], address: u64| {
        let segment = CodeObject::parse(bytes).unwrap().segments().next().unwrap();
        let descriptors = segment.contents.chunks_exact(64).zip((segment.address..).step_by(64));
        let entries =
            descriptors.map(|(chunk, at)| at.wrapping_add(u64::from_le_bytes(chunk[16..24].try_into().unwrap())));
        entries.filter(|&entry| entry == address).count()
    };
    let repair = repair_object(MOVES, OPTIONS).unwrap();
    let repaired = repair.bytes.unwrap();
    let address = |bytes: &[u8]| {
        let object = CodeObject::parse(bytes).unwrap();
        object.functions.iter().find(|function| function.name.starts_with("permutes")).unwrap().address
    };
    assert_eq!(starts(MOVES, address(MOVES)), 2);
    assert_eq!(starts(&repaired, address(&repaired)), 2);
    assert_eq!(starts(&repaired, address(MOVES)), 0);
}

#[test]
fn without_a_spare_program_header_the_table_moves() {
    let mut object = MOVES.to_vec();
    let count = u16::from_le_bytes([object[56], object[57]]) as usize;
    let stack = (0..count).map(|place| 64 + place * 56).find(|&at| object[at..at + 4] == 0x6474_e551u32.to_le_bytes());
    let stack = stack.unwrap();
    object[stack..stack + 4].fill(0);
    let repair = repair_object(&object, OPTIONS).unwrap();
    checking::check_repair(&object, &repair);
    let repaired = repair.bytes.unwrap();
    assert_eq!(u16::from_le_bytes([repaired[56], repaired[57]]) as usize, count + 1);
    let segments = CodeObject::parse(&repaired).unwrap().segments().count();
    assert_eq!(segments, CodeObject::parse(MOVES).unwrap().segments().count() + 1);
    assert!(repair_object(&repaired, OPTIONS).unwrap().bytes.is_none());
}

#[test]
fn an_object_that_was_not_linked_says_so() {
    let repair = repair_object(NOT_LINKED, OPTIONS).unwrap();
    let function = repair.functions.iter().find(|function| function.name == "compare__vcmpx_exec_war").unwrap();
    assert!(matches!(function.reason, Some(Reason::NoSegment(_))), "{:?}", function.reason);
    assert_eq!(function.before, function.after);
    // What needs no room is repaired all the same.
    let prefetch = repair.functions.iter().find(|function| function.name == "prefetch__inst_fwd_prefetch").unwrap();
    assert_eq!(prefetch.treatment, Treatment::InPlace);
}

#[test]
fn images_get_a_word_before_what_follows_and_leave_their_clauses() {
    let object = CodeObject::parse(NOT_LINKED).unwrap();
    for (name, rule, reason) in [
        ("image_then_buffer__nsa_to_vmem", Rule::ImageToMemory, Some(Reason::ImageAddresses(1))),
        ("image_then_block__nsa_to_vmem", Rule::ImageToMemory, Some(Reason::ImageAddresses(1))),
        ("image_in_clause__nsa_clause", Rule::ImageClause, None),
    ] {
        let function = object.functions.iter().find(|function| function.name == name).unwrap();
        let FunctionRepair { treatment, before, after, reason: found, .. } =
            plan_function(&object, function, OPTIONS).report;
        assert_eq!((treatment, found), (Treatment::Moved, reason), "{name}");
        assert_eq!((before.get(rule), after.get(rule)), (1, 0), "{name}");
    }
}

#[test]
fn keeping_the_size_keeps_it() {
    let repair = repair_object(MOVES, Options { keep_size: true, ..OPTIONS }).unwrap();
    assert_eq!(repair.bytes.as_ref().unwrap().len(), MOVES.len());
    assert!(repair.functions.iter().all(|function| function.treatment != Treatment::Moved));
    let left = repair.functions.iter().find(|function| function.name == "everything").unwrap();
    assert!(left.after.total() < left.before.total() && left.reason.is_some());
}

#[test]
fn what_a_call_may_leave_pending_is_counted_apart_and_waited_for() {
    use unhang_isa::Program;
    use unhang_isa::audit::{Context, audit, audit_across_calls};
    // Called: ds_read_b32 v8, v3; s_mov_b32 s4, 0; s_setpc_b64 s[30:31]. By itself nothing is wrong with it.
    let words = [0xd8d8_0000u32, 0x0800_0003, 0x7e00_0000, 0xbe84_0380, 0xbe80_201e];
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let program = Program::decode(&bytes, Chip::Gfx1010, false).unwrap();
    assert!(audit(&program, Chip::Gfx1010, Context::default()).is_empty());
    let across = |is_called| -> Vec<Rule> {
        audit_across_calls(&program, Chip::Gfx1010, Context::default(), is_called).iter().map(|it| it.rule).collect()
    };
    assert_eq!(across(true), [Rule::LocalBranchMemory]);
    assert!(across(false).is_empty());
    // s_waitcnt_vscnt null, 0 at its start, as compilers put it there up to LLVM 16, is enough.
    let bytes: Vec<u8> = [0xbbfd_0000u32].iter().chain(&words).flat_map(|word| word.to_le_bytes()).collect();
    let program = Program::decode(&bytes, Chip::Gfx1010, false).unwrap();
    assert!(audit_across_calls(&program, Chip::Gfx1010, Context::default(), true).is_empty());
}

const CALLS: &[u8] = include_bytes!("fixtures/calls.co");

/// Where the call of a kernel that begins with its prefetch goes: the address in `s_getpc`, `s_add`, `s_addc`.
fn callee_of(bytes: &[u8], name: &str) -> u64 {
    let object = CodeObject::parse(bytes).unwrap();
    let caller = object.functions.iter().find(|function| function.name == name).unwrap();
    let word = |at: usize| u32::from_le_bytes(caller.code[at..at + 4].try_into().unwrap());
    // s_inst_prefetch or s_nop, s_getpc_b64; then two additions with a literal each.
    let (low, high) = (word(12), word(20));
    caller.address + 8 + ((u64::from(high) << 32) | u64::from(low))
}

#[test]
fn a_caller_that_is_repaired_where_it_stands_calls_the_function_that_moved() {
    let repair = repair_object(CALLS, OPTIONS).unwrap();
    let treatment = |name: &str| repair.functions.iter().find(|it| it.name == name).unwrap().treatment;
    assert_eq!((treatment("caller"), treatment("moves")), (Treatment::InPlace, Treatment::Moved));
    let repaired = repair.bytes.as_deref().unwrap();
    let address = |bytes: &[u8]| {
        CodeObject::parse(bytes).unwrap().functions.iter().find(|it| it.name == "moves").unwrap().address
    };
    assert_ne!(address(CALLS), address(repaired));
    assert_eq!(callee_of(CALLS, "caller"), address(CALLS));
    assert_eq!(callee_of(repaired, "caller"), address(repaired), "the old code is not reached any more");
}

#[test]
fn a_function_that_runs_on_into_the_next_one_stays() {
    let repair = repair_object(CALLS, OPTIONS).unwrap();
    let function = repair.functions.iter().find(|it| it.name == "left_running_on").unwrap();
    assert_eq!(function.reason, Some(Reason::RunsOn));
    assert_eq!(function.treatment, Treatment::Untouched);
}
