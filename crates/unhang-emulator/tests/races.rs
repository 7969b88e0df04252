//! Races between waves of a workgroup: none with all barriers, and found when one is removed.

mod common;

use common::{Arguments, numbers};
use unhang_emulator::{Dispatch, Fault, FaultKind, Machine, Mode, Race};
use unhang_isa::Chip;

const KERNELS: &[u8] = include_bytes!("fixtures/kernels.gfx1010.co");
const S_BARRIER: [u8; 4] = 0xbf8a_0000u32.to_le_bytes();
const S_NOP: [u8; 4] = 0xbf80_0000u32.to_le_bytes();

/// Adds up 1024 numbers in workgroups of 256 through LDS.
fn sum(object: &[u8], races: bool) -> Result<f32, Fault> {
    let mut machine = Machine::load(object, Mode::Hazards(Chip::Gfx1010)).unwrap();
    machine.races = races;
    let input = machine.memory.allocate_floats(&numbers(1024, 3));
    let output = machine.memory.allocate(4 * 4);
    let arguments = Arguments::default().pointer(input).pointer(output).int(1024);
    let dispatch = Dispatch::new("block_sum", [4, 1, 1], [256, 1, 1], &arguments.0);
    machine.run(&dispatch)?;
    Ok(machine.memory.read_floats(output, 4).unwrap().iter().sum())
}

#[test]
fn a_reduction_with_barriers_has_no_race() {
    assert_eq!(sum(KERNELS, true).unwrap(), sum(KERNELS, false).unwrap());
}

#[test]
fn a_barrier_that_is_taken_out_is_missed() {
    let places = || KERNELS.windows(4).enumerate().filter(|(at, word)| at % 4 == 0 && *word == S_BARRIER);
    let mut found = 0;
    for (at, _) in places() {
        let mut object = KERNELS.to_vec();
        object[at..at + 4].copy_from_slice(&S_NOP);
        match sum(&object, true) {
            // A barrier of another kernel.
            Ok(_) => {}
            Err(Fault { kind: FaultKind::Race(race), kernel, .. }) => {
                let Race { place, wave, other_wave, .. } = *race;
                assert!(place.starts_with("LDS at 0x") && wave != other_wave && kernel == "block_sum", "{place}");
                found += 1;
            }
            Err(fault) => panic!("{fault}"),
        }
        assert!(sum(&object, false).is_ok(), "nobody looks unless asked");
    }
    assert!(places().count() > 1 && found > 0, "{found} of {} barriers were missed", places().count());
}
