//! Waits are real: using a register before its load was waited for is a fault that names both instructions.

mod common;

use std::sync::atomic::AtomicBool;

use common::{Arguments, numbers};
use unhang_emulator::{Dispatch, FaultKind, Machine, Memory, Mode, Packet, Scratch};
use unhang_isa::Chip;
use unhang_isa::audit::Rule;
use unhang_isa::elf::CodeObject;

const KERNELS: &[u8] = include_bytes!("fixtures/kernels.gfx1010.co");

// Instructions, as LLVM's assembler encodes them for gfx1010; s[0:1] is the address of the arguments.
const S_LOAD_S8: &[u32] = &[0xf400_0200, 0xfa00_0000];
const S_LOAD_S9: &[u32] = &[0xf400_0240, 0xfa00_0004];
const MOVE_S10_S8: &[u32] = &[0xbe8a_0308];
const ZERO_V1: &[u32] = &[0x7e02_0280];
const ZERO_V2: &[u32] = &[0x7e04_0280];
const DS_READ_V2: &[u32] = &[0xd8d8_0000, 0x0200_0001];
const DS_READ_V3: &[u32] = &[0xd8d8_0004, 0x0300_0001];
const MOVE_V4_V2: &[u32] = &[0x7e08_0302];
const MOVE_V4_V3: &[u32] = &[0x7e08_0303];
const ADDRESS_V5: &[u32] = &[0x7e0a_0200, 0x7e0c_0201];
const FLAT_LOAD_V7: &[u32] = &[0xdc30_0000, 0x077d_0005];
const FLAT_STORE_V1: &[u32] = &[0xdc70_0000, 0x007d_0105];
const FLAT_OR_V1: &[u32] = &[0xdce8_0000, 0x007d_0105];
const MOVE_V4_V7: &[u32] = &[0x7e08_0307];
const LOAD_V7: &[u32] = &[0xdc30_8000, 0x0700_0001];
const LOAD_V8: &[u32] = &[0xdc30_8000, 0x0800_0001];
const LOAD_V9: &[u32] = &[0xdc30_8004, 0x0900_0001];
const MOVE_V4_V8: &[u32] = &[0x7e08_0308];
const MOVE_V4_V9: &[u32] = &[0x7e08_0309];
const STORE_V8: &[u32] = &[0xdc70_8000, 0x0000_0801];
const EXPCNT_0: &[u32] = &[0xbf8c_ff0f];
const EXPCNT_0_LONG: &[u32] = &[0xbcfd_0000];
const VSCNT_0: &[u32] = &[0xbbfd_0000];
const BARRIER: &[u32] = &[0xbf8a_0000];
// v1 is the address of a work-item's own word, v2 that of the other wave's; v0 is its number.
const OWN_V1_OTHERS_V2: &[u32] = &[0x3402_0082, 0x3a04_02ff, 0x80];
const STORE_OWN: &[u32] = &[0xdc70_8000, 0x0000_0001];
const STORE_OTHERS: &[u32] = &[0xdc70_8000, 0x0000_0002];
const LOAD_OWN: &[u32] = &[0xdc30_8000, 0x0300_0001];
const LOAD_OTHERS: &[u32] = &[0xdc30_8000, 0x0300_0002];
const DS_WRITE_OWN: &[u32] = &[0xd834_0000, 0x0000_0001];
const DS_READ_OTHERS: &[u32] = &[0xd8d8_0000, 0x0300_0002];
const VMCNT_0: &[u32] = &[0xbf8c_3f70];
const VMCNT_1: &[u32] = &[0xbf8c_3f71];
const LGKMCNT_0: &[u32] = &[0xbf8c_c07f];
const LGKMCNT_1: &[u32] = &[0xbf8c_c17f];
const END: &[u32] = &[0xbf81_0000];

/// Runs one wave of this code; returns the register and the load of a missing wait.
fn run(code: &[&[u32]], mode: Mode) -> Option<(String, String)> {
    match dispatch(code, Machine::new(mode), 32) {
        Ok(()) => None,
        Err(FaultKind::Wait { register, earlier, distance }) => {
            assert!(distance > 0);
            Some((register, earlier))
        }
        Err(kind) => panic!("{kind}"),
    }
}

/// Runs one workgroup of this code.
fn dispatch(code: &[&[u32]], machine: Machine, items: u16) -> Result<(), FaultKind> {
    let mut memory = Memory::default();
    let mut bytes = vec![0; 64];
    // The code follows the descriptor; 16 vector registers, the address of the arguments, 32 lanes.
    bytes[16..24].copy_from_slice(&64u64.to_le_bytes());
    bytes[48..52].copy_from_slice(&(1u32 | 0xf0 << 12).to_le_bytes());
    bytes[52..56].copy_from_slice(&(2u32 << 1).to_le_bytes());
    bytes[56..58].copy_from_slice(&(1u16 << 10 | 1 << 3).to_le_bytes());
    bytes.extend(code.iter().chain(&[END]).copied().flatten().flat_map(|word| word.to_le_bytes()));
    let packet = Packet {
        packet_address: 0,
        queue_address: 0,
        kernel_object: memory.allocate_bytes(&bytes),
        kernarg_address: memory.allocate(256),
        workgroup_size: [items, 1, 1],
        grid_size: [items as u32, 1, 1],
        private_segment_size: 0,
        group_segment_size: 256,
        scratch: Scratch::default(),
        local_aperture: Packet::LOCAL_APERTURE,
        private_aperture: Packet::PRIVATE_APERTURE,
    };
    machine.dispatch(&memory, &packet, &AtomicBool::new(false)).map(|_| ()).map_err(|fault| fault.kind)
}

fn missing(code: &[&[u32]]) -> Option<(String, String)> {
    assert_eq!(run(code, Mode::Compute), None, "without hazards nothing is checked");
    run(code, Mode::Hazards(Chip::Gfx1010))
}

fn found(register: &str, load: &str) -> Option<(String, String)> {
    Some((register.into(), load.into()))
}

#[test]
fn loads_of_vector_memory_arrive_in_order() {
    let load = "global_load_dword v9, v1, s[0:1] offset:4";
    assert_eq!(missing(&[ZERO_V1, LOAD_V8, LOAD_V9, VMCNT_1, MOVE_V4_V8]), None);
    assert_eq!(missing(&[ZERO_V1, LOAD_V8, LOAD_V9, VMCNT_1, MOVE_V4_V9]), found("v9", load));
    assert_eq!(missing(&[ZERO_V1, LOAD_V8, LOAD_V9, VMCNT_0, MOVE_V4_V9]), None);
    assert_eq!(missing(&[ZERO_V1, LOAD_V9, LGKMCNT_0, MOVE_V4_V9]), found("v9", load), "the other counter");
    // The later of two loads into one register stays; stored data must have arrived.
    assert_eq!(missing(&[ZERO_V1, LOAD_V8, LOAD_V8, VMCNT_0, STORE_V8]), None);
    assert_eq!(missing(&[ZERO_V1, LOAD_V8, STORE_V8]), found("v8", "global_load_dword v8, v1, s[0:1]"));
}

#[test]
fn loads_of_lds_arrive_in_order_and_are_not_overwritten() {
    let start = [ZERO_V1, DS_READ_V2, DS_READ_V3];
    let with = |rest: &[&'static [u32]]| [&start, rest].concat();
    assert_eq!(missing(&with(&[LGKMCNT_1, MOVE_V4_V2])), None);
    assert_eq!(missing(&with(&[LGKMCNT_1, MOVE_V4_V3])), found("v3", "ds_read_b32 v3, v1 offset:4"));
    assert_eq!(missing(&with(&[ZERO_V2])), found("v2", "ds_read_b32 v2, v1"));
    assert_eq!(missing(&with(&[LGKMCNT_0, ZERO_V2, MOVE_V4_V3])), None);
}

#[test]
fn scalar_loads_arrive_in_any_order() {
    let load = "s_load_dword s8, s[0:1], null";
    assert_eq!(missing(&[S_LOAD_S8, S_LOAD_S9, LGKMCNT_1, MOVE_S10_S8]), found("s8", load));
    assert_eq!(missing(&[S_LOAD_S8, S_LOAD_S9, LGKMCNT_0, MOVE_S10_S8]), None);
    // One of three is a scalar load, which may be the one that has arrived.
    let mixed = [ZERO_V1, DS_READ_V2, DS_READ_V3, S_LOAD_S8];
    let with = |rest: &[&'static [u32]]| [&mixed, rest].concat();
    assert_eq!(missing(&with(&[LGKMCNT_1, MOVE_V4_V2])), None);
    assert_eq!(missing(&with(&[LGKMCNT_1, MOVE_V4_V3])), found("v3", "ds_read_b32 v3, v1 offset:4"));
}

#[test]
fn flat_loads_count_in_both_counters_and_arrive_by_the_vectors() {
    let load = "flat_load_dword v7, v[5:6]";
    // As in ROCr's own copy kernels, on every card.
    assert_eq!(missing(&[ADDRESS_V5, FLAT_LOAD_V7, VMCNT_0, MOVE_V4_V7]), None);
    assert_eq!(missing(&[ADDRESS_V5, FLAT_LOAD_V7, LGKMCNT_0, MOVE_V4_V7]), found("v7", load));
    assert_eq!(missing(&[ADDRESS_V5, FLAT_LOAD_V7, VMCNT_0, LGKMCNT_0, MOVE_V4_V7]), None);
}

/// clang waits for the LDS part of a flat load and lets a load of global memory replace its result; random programs found it.
#[test]
fn a_flat_load_that_did_not_go_to_lds_is_overtaken_by_no_load_of_global_memory() {
    let flat = "flat_load_dword v7, v[5:6]";
    assert_eq!(missing(&[ADDRESS_V5, ZERO_V1, FLAT_LOAD_V7, LGKMCNT_0, LOAD_V7, VMCNT_0, MOVE_V4_V7]), None);
    assert_eq!(missing(&[ADDRESS_V5, ZERO_V1, FLAT_LOAD_V7, LOAD_V7]), found("v7", flat));
    let load = "global_load_dword v7, v1, s[0:1]";
    assert_eq!(missing(&[ADDRESS_V5, ZERO_V1, LOAD_V7, FLAT_LOAD_V7]), found("v7", load), "the other way around");
}

/// clang counts this way on gfx10; random programs found that flat stores were not counted.
#[test]
fn flat_accesses_count_in_order_with_those_of_lds() {
    let load = "ds_read_b32 v2, v1";
    for flat in [FLAT_LOAD_V7, FLAT_STORE_V1, FLAT_OR_V1] {
        assert_eq!(missing(&[ADDRESS_V5, ZERO_V1, DS_READ_V2, flat, LGKMCNT_1, MOVE_V4_V2]), None);
        assert_eq!(missing(&[ADDRESS_V5, ZERO_V1, flat, DS_READ_V2, LGKMCNT_1, MOVE_V4_V2]), found("v2", load));
        assert_eq!(missing(&[ADDRESS_V5, ZERO_V1, DS_READ_V2, flat, MOVE_V4_V2]), found("v2", load));
    }
}

/// Exports and global data share have a separate counter, which says nothing about loads.
#[test]
fn the_export_counter_waits_for_no_load() {
    for wait in [EXPCNT_0, EXPCNT_0_LONG] {
        let load = "global_load_dword v8, v1, s[0:1]";
        assert_eq!(missing(&[ZERO_V1, LOAD_V8, wait, MOVE_V4_V8]), found("v8", load));
        assert_eq!(missing(&[ZERO_V1, DS_READ_V2, wait, MOVE_V4_V2]), found("v2", "ds_read_b32 v2, v1"));
    }
}

/// What two waves do around a barrier: whether it is a race, and whether because of what was in flight there.
fn race_of_two_waves(before: &[&'static [u32]], behind: &[&'static [u32]]) -> Option<bool> {
    let code = [&[OWN_V1_OTHERS_V2], before, &[BARRIER], behind].concat();
    let machine = |races| {
        let mut machine = Machine::new(Mode::Hazards(Chip::Gfx1010));
        machine.races = races;
        machine
    };
    assert_eq!(dispatch(&code, machine(false), 64), Ok(()), "nobody looks unless asked");
    match dispatch(&code, machine(true), 64) {
        Ok(()) => None,
        Err(FaultKind::Race(race)) => Some(race.in_flight),
        Err(kind) => panic!("{kind}"),
    }
}

#[test]
fn a_store_that_is_in_flight_at_a_barrier_is_not_there_for_the_other_wave() {
    let race = |wait: &'static [u32]| race_of_two_waves(&[STORE_OWN, wait], &[LOAD_OTHERS, VMCNT_0]);
    assert_eq!(race(VSCNT_0), None);
    for other in [VMCNT_0, LGKMCNT_0, EXPCNT_0] {
        assert_eq!(race(other), Some(true), "stores have a separate counter");
    }
    let race = |wait: &'static [u32]| race_of_two_waves(&[DS_WRITE_OWN, wait], &[DS_READ_OTHERS, LGKMCNT_0]);
    assert_eq!((race(LGKMCNT_0), race(VSCNT_0)), (None, Some(true)));
}

#[test]
fn memory_that_is_overwritten_before_a_load_of_it_was_waited_for_is_found() {
    let race = |wait: &'static [u32]| race_of_two_waves(&[LOAD_OWN, wait], &[VMCNT_0, STORE_OTHERS]);
    assert_eq!(race(VMCNT_0), None);
    assert_eq!((race(VSCNT_0), race(LGKMCNT_0)), (Some(true), Some(true)));
}

/// Compilers examine each function by itself, so they do not see a hazard whose first half was left pending before a
/// call. It is reported separately.
#[test]
fn a_hazard_across_a_call_is_told_apart_from_one_within_a_function() {
    const BRANCH_TO_NEXT: &[u32] = &[0xbf82_0000];
    // s_getpc_b64 s[2:3], s_add_u32 s2, s2, 8, s_setpc_b64 s[2:3]: jumps to the next instruction.
    const JUMP_TO_NEXT: &[u32] = &[0xbe82_1f00, 0x8002_8802, 0xbe80_2002];
    let hazard = |jump: &'static [u32]| {
        let code = [ZERO_V1, DS_READ_V2, LGKMCNT_0, BRANCH_TO_NEXT, jump, LOAD_V8, VMCNT_0];
        match dispatch(&code, Machine::new(Mode::Hazards(Chip::Gfx1010)), 32) {
            Err(FaultKind::Hazard { rule: Rule::LocalBranchMemory, across_calls }) => across_calls,
            other => panic!("{other:?}"),
        }
    };
    assert!(!hazard(&[]));
    assert!(hazard(JUMP_TO_NEXT));
}

/// What is pending is remembered by number: a loop repeats it, and a fault in its last round is still found.
#[test]
fn a_wait_that_is_missing_only_behind_a_loop_is_missed_there() {
    // s_mov_b32 s8, 5; then, five times: a load, s_sub_u32 s8, s8, 1, s_cmp_lg_u32 s8, 0, s_cbranch_scc1 back.
    let start: [&[u32]; 3] = [ZERO_V1, &[0xbe88_0385], LOAD_V8];
    let (count, back): (&[u32], &[u32]) = (&[0x8088_8108, 0xbf07_8008], &[0xbf85_fffb]);
    let with = |rest: &[&'static [u32]]| [&start[..], &[count], rest].concat();
    assert_eq!(missing(&with(&[back, VMCNT_0, MOVE_V4_V8])), None, "loads of one register arrive in order");
    assert_eq!(missing(&with(&[back, MOVE_V4_V8])), found("v8", "global_load_dword v8, v1, s[0:1]"));
}

/// Removes each wait from a compiler's kernel, one at a time. Returns how many were missed, by a register and by
/// memory, and how many there are.
fn missed_waits(kernel: &str, workgroups: u32, races: bool) -> [usize; 3] {
    let object = CodeObject::parse(KERNELS).unwrap();
    let function = object.functions.iter().find(|function| function.name == kernel).unwrap();
    let (mut by_register, mut by_memory, mut removed) = (0, 0, 0);
    for place in (0..function.code.len()).step_by(4) {
        let word = function.code[place..place + 4].first_chunk().map_or(0, |&word| u32::from_le_bytes(word));
        // s_waitcnt and s_waitcnt_vscnt null, 0. These kernels have no constants that look like them.
        if word >> 16 != 0xbf8c && !(races && [word] == VSCNT_0) {
            continue;
        }
        let mut copy = KERNELS.to_vec();
        let at = function.file_offset + place;
        copy[at..at + 4].copy_from_slice(&0xbf80_0000u32.to_le_bytes());
        // Some waits for stores are work-arounds for hazards of gfx1010; here they count as waits.
        let chip = if races { Chip::Gfx1030 } else { Chip::Gfx1010 };
        let mut machine = Machine::load(&copy, Mode::Hazards(chip)).unwrap();
        machine.races = races;
        let [a, b, c] = [0, 1, 2].map(|seed| machine.memory.allocate_floats(&numbers(1024, seed)));
        let arguments = match kernel {
            "axpy" => Arguments::default().pointer(a).pointer(b).float(1.0).int(1000),
            "block_sum" => Arguments::default().pointer(a).pointer(b).int(1000),
            _ => Arguments::default().pointer(a).pointer(b).pointer(c).int(16).int(16).int(32),
        };
        let dispatch = Dispatch::new(kernel, [workgroups, 1, 1], [256, 1, 1], &arguments.0);
        removed += 1;
        match machine.run(&dispatch).map_err(|fault| fault.kind) {
            Err(FaultKind::Wait { .. }) => by_register += 1,
            Err(FaultKind::Race(race)) if race.in_flight => by_memory += 1,
            Err(kind) => panic!("{kind}"),
            Ok(_) => {}
        }
    }
    [by_register, by_memory, removed]
}

#[test]
fn every_wait_of_a_compiler_that_guards_a_register_is_missed() {
    let rates = [("axpy", 4), ("gemm", 1), ("block_sum", 4)].map(|(name, groups)| missed_waits(name, groups, false));
    // The others are in pairs around 2 and 9 barriers: they order memory between waves, and protect no register.
    assert_eq!(rates, [[3, 0, 3], [12 - 2 * 2, 0, 12], [29 - 2 * 9, 0, 29]]);
}

#[test]
fn every_wait_of_a_compiler_that_guards_memory_is_missed_where_races_are_looked_for() {
    let rates = [("gemm", 1), ("block_sum", 4)].map(|(name, groups)| missed_waits(name, groups, true));
    // Of each pair around a barrier, the first matters. Waits for stores are where none is in flight, and in the sum
    // the last six steps belong to one wave.
    assert_eq!(rates, [[8, 2, 12 + 4], [11, 9 - 6, 29]]);
}
