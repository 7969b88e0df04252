//! A workgroup with less local memory than it uses: a fault, or the behaviour of a card.

mod common;

use common::{Arguments, numbers};
use unhang_emulator::{Dispatch, Fault, FaultKind, Machine, Mode};
use unhang_isa::Chip;
use unhang_isa::elf::CodeObject;

const KERNELS: &[u8] = include_bytes!("fixtures/kernels.gfx1010.co");
const KERNELS_64: &[u8] = include_bytes!("fixtures/kernels.wave64.gfx1010.co");
const KERNEL: &str = "block_sum";
/// The room for the 256 numbers that a workgroup adds up in LDS.
const ROOM: usize = 192;

/// The object, with less LDS for its sum.
fn with_less_local(object: &[u8]) -> Vec<u8> {
    let parsed = CodeObject::parse(object).unwrap();
    let function = parsed.functions.iter().find(|function| function.name == KERNEL).unwrap();
    let descriptor = function.descriptor.unwrap();
    assert_eq!(descriptor.group_segment_size, 1024);
    let mut changed = object.to_vec();
    changed[descriptor.file_offset..][..4].copy_from_slice(&(ROOM as u32 * 4).to_le_bytes());
    changed
}

/// The sums of four workgroups, and the number of words beyond their LDS.
fn sums(object: &[u8], fast: bool, local_bounds: bool) -> Result<(Vec<f32>, u64), Fault> {
    let mut machine = Machine::load(object, Mode::Hazards(Chip::Gfx1010)).unwrap();
    (machine.fast, machine.local_bounds) = (fast, local_bounds);
    let input = machine.memory.allocate_floats(&numbers(1024, 3));
    let output = machine.memory.allocate(4 * 4);
    let arguments = Arguments::default().pointer(input).pointer(output).int(1024);
    let dispatch = Dispatch::new(KERNEL, [4, 1, 1], [256, 1, 1], &arguments.0);
    let counts = machine.run(&dispatch)?;
    Ok((machine.memory.read_floats(output, 4).unwrap(), counts.beyond_local))
}

/// What the kernel computes if everything from `room` on reads as zero.
fn expected(room: usize) -> Vec<f32> {
    numbers(1024, 3)
        .chunks(256)
        .map(|numbers| {
            let mut shared: Vec<f32> =
                numbers.iter().enumerate().map(|(at, &x)| if at < room { x } else { 0.0 }).collect();
            for step in [128, 64, 32, 16, 8, 4, 2, 1] {
                for at in 0..step {
                    shared[at] += shared[at + step];
                }
            }
            shared[0]
        })
        .collect()
}

#[test]
fn what_lies_beyond_local_memory_is_a_fault_or_zero() {
    for object in [KERNELS, KERNELS_64] {
        let less = with_less_local(object);
        for fast in [true, false] {
            assert_eq!(sums(object, fast, false).unwrap(), (expected(256), 0));
            // Each workgroup writes 64 numbers there, and reads each once.
            assert_eq!(sums(&less, fast, false).unwrap(), (expected(ROOM), 4 * 128));
            let fault = sums(&less, fast, true).unwrap_err();
            assert!(matches!(fault.kind, FaultKind::Local { limit, .. } if limit == ROOM as u32 * 4), "{fault}");
        }
    }
}
