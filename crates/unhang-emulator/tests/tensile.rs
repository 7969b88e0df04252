//! Kernels with Tensile's long branches compute what they did before repair, and gfx1010 mode no longer stops them.

use unhang_emulator::{Dispatch, Machine, Mode};
use unhang_isa::Chip;
use unhang_isa::repair::{Options, repair_object};

const TENSILE: &[u8] = include_bytes!("../../unhang-isa/tests/fixtures/tensile.co");

/// What a kernel leaves in memory, or the fault that stopped it.
fn run(object: &[u8], kernel: &str, mode: Mode) -> Result<Vec<u8>, String> {
    let mut machine = Machine::load(object, mode).unwrap();
    let values: Vec<f32> = (0..32).map(|lane| f32::from_bits(lane * 3)).collect();
    let (input, output) = (machine.memory.allocate_floats(&values), machine.memory.allocate(128));
    let arguments: Vec<u8> = [input, output].iter().flat_map(|pointer| pointer.to_le_bytes()).collect();
    let dispatch = Dispatch::new(kernel, [1, 1, 1], [32, 1, 1], &arguments);
    machine.run(&dispatch).map_err(|fault| fault.to_string())?;
    let mut bytes = vec![0; 128];
    machine.memory.read(output, &mut bytes).unwrap();
    Ok(bytes)
}

#[test]
fn long_branches_lead_to_the_same_results_after_repair() {
    let repaired = repair_object(TENSILE, Options { chip: Chip::Gfx1010, keep_size: false }).unwrap().bytes.unwrap();
    for (kernel, added) in [("jumps_forwards", 1), ("jumps_backwards", 15), ("jumps_either_way", 21), ("last", 3)] {
        let expected: Vec<u8> = (0..32u32).flat_map(|lane| (lane * 3 + added).to_le_bytes()).collect();
        assert_eq!(run(TENSILE, kernel, Mode::Compute), Ok(expected.clone()), "{kernel}");
        assert!(run(TENSILE, kernel, Mode::Hazards(Chip::Gfx1010)).is_err(), "{kernel} is unsafe as it was");
        assert_eq!(run(&repaired, kernel, Mode::Hazards(Chip::Gfx1010)), Ok(expected), "{kernel}");
    }
}

#[test]
fn what_the_chip_lacks_is_computed_by_what_it_has() {
    let repaired = repair_object(TENSILE, Options { chip: Chip::Gfx1010, keep_size: false }).unwrap().bytes.unwrap();
    let sums: [fn(u32) -> u32; 2] = [
        // 2 * 3 + 0.5 * 8 + 1, and 5 - 12 + 21 - 32 + lane.
        |lane| (lane * 3 + 11).wrapping_add_signed(-18).wrapping_add(lane),
        // The fourth number of the input; the other half of the address keeps nothing.
        |lane| lane * 3 + 9,
    ];
    for (kernel, sum) in ["dots", "flat_over_itself"].into_iter().zip(sums) {
        let expected: Vec<u8> = (0..32).flat_map(|lane| sum(lane).to_le_bytes()).collect();
        assert_eq!(run(&repaired, kernel, Mode::Hazards(Chip::Gfx1010)), Ok(expected), "{kernel}");
    }
}
