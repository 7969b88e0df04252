//! What the tests of kernels share.

#![allow(dead_code, reason = "not every test uses all of it")]

use unhang_emulator::{Dispatch, Machine};

/// The arguments of a kernel as they are in memory.
#[derive(Default)]
pub(crate) struct Arguments(pub Vec<u8>);

impl Arguments {
    pub(crate) fn pointer(mut self, address: u64) -> Arguments {
        self.0.resize(self.0.len().next_multiple_of(8), 0);
        self.0.extend(address.to_le_bytes());
        self
    }

    pub(crate) fn int(mut self, value: i32) -> Arguments {
        self.0.extend(value.to_le_bytes());
        self
    }

    pub(crate) fn float(mut self, value: f32) -> Arguments {
        self.0.extend(value.to_le_bytes());
        self
    }
}

/// Runs a kernel that must reach its end.
pub(crate) fn run(machine: &mut Machine, kernel: &str, workgroups: [u32; 3], lanes: u32, arguments: Arguments) {
    let dispatch = Dispatch::new(kernel, workgroups, [lanes, 1, 1], &arguments.0);
    let counts = machine.run(&dispatch).unwrap_or_else(|fault| panic!("{fault}"));
    assert!(counts.instructions() > 0 && counts.lane_operations > 0);
}

/// Numbers that are neither round nor regular, the same in each run.
pub(crate) fn numbers(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(1);
    (0..count)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        })
        .collect()
}
