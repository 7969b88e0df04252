//! Kernels with Triton's descriptors for gfx1010: they write nothing, the audit says why, and once repaired they
//! compute.

mod common;

use common::{Arguments, numbers, run};
use unhang_emulator::{Machine, Mode};
use unhang_isa::audit::Rule;
use unhang_isa::repair::{ObjectRepair, Options, Reason, Treatment, repair_object};
use unhang_isa::{Chip, Program, audit, elf};

const BUFFERS: &[u8] = include_bytes!("fixtures/buffers.gfx1010.co");
const LANES: usize = 64;

/// The contents that a kernel leaves in the words that it should overwrite.
fn output(object: &[u8], kernel: &str, input: &[u32], before: &[u32]) -> Vec<u32> {
    let mut machine = Machine::load(object, Mode::Hazards(Chip::Gfx1010)).unwrap();
    let bytes = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    let from = machine.memory.allocate_bytes(&bytes(input));
    let to = machine.memory.allocate_bytes(&bytes(before));
    run(&mut machine, kernel, [1, 1, 1], LANES as u32, Arguments::default().pointer(from).pointer(to));
    let mut found = vec![0; before.len() * 4];
    machine.memory.read(to, &mut found).unwrap();
    found.as_chunks().0.iter().map(|&word| u32::from_le_bytes(word)).collect()
}

fn repaired() -> ObjectRepair {
    repair_object(BUFFERS, Options { chip: Chip::Gfx1010, keep_size: false }).unwrap()
}

#[test]
fn kernels_of_unreachable_buffers_write_nothing() {
    let input: Vec<u32> = numbers(LANES, 1).iter().map(|value| value.to_bits()).collect();
    let before = vec![0x1234_5678; LANES];
    for kernel in ["add_one", "add_constant", "accumulate"] {
        assert_eq!(output(BUFFERS, kernel, &input, &before), before, "{kernel}");
    }
}

#[test]
fn the_audit_finds_each_access() {
    let object = elf::CodeObject::parse(BUFFERS).unwrap();
    for function in &object.functions {
        let program = Program::decode(function.code, Chip::Gfx1010, false).unwrap();
        let context = audit::Context::default();
        let rules: Vec<Rule> = audit::audit(&program, Chip::Gfx1010, context).iter().map(|it| it.rule).collect();
        assert_eq!(rules, [Rule::BufferRange; 2], "{}", function.name);
        assert!(
            audit::audit(&program, Chip::Gfx1030, context).is_empty(),
            "{}: RDNA1 is what is audited",
            function.name
        );
    }
}

#[test]
fn repaired_kernels_compute() {
    let object = repaired().bytes.unwrap();
    assert_eq!(object.len(), BUFFERS.len(), "in place");
    let input = numbers(LANES, 2);
    let bits: Vec<u32> = input.iter().map(|value| value.to_bits()).collect();
    let expected: Vec<u32> = input.iter().map(|value| (value + 1.0).to_bits()).collect();
    assert_eq!(output(&object, "add_one", &bits, &[0; LANES]), expected);
    let expected: Vec<u32> = bits.iter().map(|word| word.wrapping_add(7)).collect();
    assert_eq!(output(&object, "accumulate", &bits, &[7; LANES]), expected);
    assert!(repair_object(&object, Options { chip: Chip::Gfx1010, keep_size: false }).unwrap().bytes.is_none());
}

/// A constant that is also used as a number is not changed: the kernel is named, with the reason.
#[test]
fn a_constant_with_two_uses_is_left() {
    let repaired = repaired();
    let left: Vec<_> = repaired.functions.iter().filter(|function| function.after.total() > 0).collect();
    assert_eq!(left.len(), 1);
    assert_eq!((left[0].name.as_str(), left[0].treatment), ("add_constant", Treatment::Untouched));
    assert_eq!(left[0].reason, Some(Reason::BufferDescriptor(2)));
    let before = vec![3; LANES];
    assert_eq!(output(&repaired.bytes.unwrap(), "add_constant", &[5; LANES], &before), before);
}
