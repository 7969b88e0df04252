//! Repaired code computes what it computed before, and stops less often.

use unhang_emulator::{Dispatch, Machine, Mode};
use unhang_isa::Chip;
use unhang_isa::audit::{Context, Rule};
use unhang_isa::elf::CodeObject;
use unhang_isa::repair::{Repaired, repair_in_place};

const SPOOFED: &[u8] = include_bytes!("fixtures/kernels.gfx1030.co");
const HAZARDS: &[u8] = include_bytes!("../../unhang-isa/tests/fixtures/hazards.co");

/// Repairs every function in a copy of the object.
fn repair(object: &[u8]) -> (Vec<u8>, Vec<(String, Repaired)>) {
    let mut copy = object.to_vec();
    let mut repairs = Vec::new();
    for function in CodeObject::parse(object).unwrap().functions {
        let repaired = repair_in_place(function.code, Chip::Gfx1030, false, Chip::Gfx1010, Context::default()).unwrap();
        assert_eq!(repaired.code.len(), function.code.len());
        copy[function.file_offset..function.file_offset + function.code.len()].copy_from_slice(&repaired.code);
        repairs.push((function.name.to_owned(), repaired));
    }
    (copy, repairs)
}

/// The bytes that a run of `block_sum` and `gemm` leaves in memory.
fn results(object: &[u8], mode: Mode) -> Vec<u8> {
    let mut machine = Machine::load(object, mode).unwrap();
    let values: Vec<f32> = (0..1000).map(|i| (i * 37 % 101) as f32 * 0.37 - 11.0).collect();
    let x = machine.memory.allocate_floats(&values);
    let y = machine.memory.allocate(4 * 400);
    let mut run = |kernel: &str, workgroups, arguments: &[u8]| {
        let dispatch = Dispatch::new(kernel, workgroups, [256, 1, 1], arguments);
        machine.run(&dispatch).unwrap_or_else(|fault| panic!("{fault}"));
    };
    let pointers = |pointers: &[u64], numbers: &[i32]| -> Vec<u8> {
        let mut bytes: Vec<u8> = pointers.iter().flat_map(|pointer| pointer.to_le_bytes()).collect();
        bytes.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
        bytes
    };
    run("block_sum", [4, 1, 1], &pointers(&[x, y], &[1000]));
    run("gemm", [2, 2, 1], &pointers(&[x, x + 4, y + 64], &[18, 17, 40]));
    let mut out = vec![0; 1600];
    machine.memory.read(y, &mut out).unwrap();
    out
}

#[test]
fn repaired_kernels_compute_the_same_with_fewer_findings() {
    let (repaired, repairs) = repair(SPOOFED);
    assert_eq!(results(SPOOFED, Mode::Compute), results(&repaired, Mode::Compute));
    let sum = |which: fn(&Repaired) -> u64| repairs.iter().map(|(_, repaired)| which(repaired)).sum::<u64>();
    let (before, after) = (sum(|it| it.before.total()), sum(|it| it.after.total()));
    println!("{before} findings before, {after} after");
    assert!(after < before, "{before} before, {after} after");
}

#[test]
fn repair_is_deterministic_and_done_at_once() {
    let (once, _) = repair(SPOOFED);
    let (again, repairs) = repair(&once);
    assert_eq!(once, again);
    assert!(repairs.iter().all(|(_, repaired)| repaired.patches.is_empty()));
    assert_eq!(repair(SPOOFED).0, once);
}

#[test]
fn prefetches_are_always_mended_and_safe_code_is_left_alone() {
    let (_, repairs) = repair(HAZARDS);
    for (name, repaired) in repairs {
        assert_eq!(repaired.after.get(Rule::InstructionPrefetch), 0, "{name}");
        if name.ends_with("__safe") {
            assert!(repaired.patches.is_empty(), "{name}");
        }
        if name == "compare__vcmpx_exec_war" {
            // s_mov_b32 s4, exec_lo; v_cmpx_gt_u32 16, v0: VCC and SCC are free, so the old pair is restored.
            assert_eq!(repaired.after.total(), 0);
            let code = &repaired.code;
            let texts: Vec<String> =
                [0, 4].map(|at| unhang_isa::decode(&code[at..], Chip::Gfx1030).unwrap().text(false).to_string()).into();
            assert_eq!(texts, ["v_cmp_gt_u32_e32 vcc_lo, 16, v0", "s_and_saveexec_b32 s4, vcc_lo"]);
        }
    }
}
