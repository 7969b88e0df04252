//! The programs of `docs/internals/llvm-reports.md` on the emulated card. Their native code stops at a hazard across a
//! call. Repaired, it runs to its end, although nothing else in it needs repair.

use unhang_emulator::{Dispatch, FaultKind, Machine, Mode};
use unhang_fuzz::compare::{Bench, Language, Target};
use unhang_isa::Chip;
use unhang_isa::repair::{Options, repair_object};

const PAGE: &str = include_str!("../../../docs/internals/llvm-reports.md");
const VALUE: u32 = 0x1234_5678;

/// Runs a kernel with the arguments that both programs with local memory take, and returns what it wrote.
fn run(object: &[u8], kernel: &str) -> Result<u32, FaultKind> {
    let mut machine = Machine::load(object, Mode::Hazards(Chip::Gfx1010)).unwrap();
    let out = machine.memory.allocate(64);
    let mut arguments = out.to_le_bytes().to_vec();
    // The value, and where the local memory begins.
    arguments.extend([VALUE, 0].iter().flat_map(|word| word.to_le_bytes()));
    let dispatch = Dispatch {
        kernel,
        workgroups: [1, 1, 1],
        workgroup_size: [64, 1, 1],
        arguments: &arguments,
        dynamic_local: 1024,
    };
    machine.run(&dispatch).map_err(|fault| fault.kind)?;
    let mut word = [0; 4];
    machine.memory.read(out, &mut word)?;
    Ok(u32::from_le_bytes(word))
}

#[test]
fn native_code_with_hazards_across_calls_is_repaired() {
    if Bench::compilers(&[19]).is_empty() {
        println!("skipped: no clang-19 and lld-19 to compile the reports for LLVM with");
        return;
    }
    let bench = Bench::new().unwrap();
    let options = Options { chip: Chip::Gfx1010, keep_size: false };
    let mut stopped = Vec::new();
    for kernel in ["lds_then_call", "return_then_lds", "store_then_return"] {
        let has_kernel = |block: &&str| block.contains(&format!("kernel void {kernel}"));
        let source = PAGE.split("```c\n").filter_map(|rest| rest.split("```").next()).find(has_kernel).unwrap();
        for wave64 in [false, true] {
            let target = Target { clang: 19, chip: Chip::Gfx1010, level: 2, wave64 };
            let object = bench.compile_with(source, target, Language::OpenCl, &[]).unwrap();
            match run(&object, kernel) {
                Ok(_) => {}
                Err(FaultKind::Hazard { across_calls: true, .. }) => stopped.push(format!("{kernel} {target}")),
                Err(fault) => panic!("{kernel} {target}: {fault}"),
            }
            let repair = repair_object(&object, options).unwrap();
            assert!(repair.functions.iter().all(|function| function.before.total() == 0), "{kernel}: nothing else");
            let repaired = repair.bytes.unwrap();
            let written = run(&repaired, kernel).unwrap_or_else(|fault| panic!("{kernel} {target}, repaired: {fault}"));
            // The third writes to two variables of the object.
            assert_eq!(written, if kernel == "store_then_return" { 0 } else { VALUE }, "{kernel} {target}");
            assert!(repair_object(&repaired, options).unwrap().bytes.is_none(), "{kernel}: repaired once");
        }
    }
    println!("stopped as they were compiled: {stopped:?}");
    // To the emulated card, as to LLVM, a call is not a branch, so the first program passes there either way.
    assert!(stopped.len() >= 2, "{stopped:?}");
}
