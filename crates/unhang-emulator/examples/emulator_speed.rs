//! How fast the emulator is: a tiled matrix product of 512×512×512, on all cores.

use std::time::Instant;

use unhang_emulator::{Dispatch, Machine, Mode};
use unhang_isa::Chip;

fn main() {
    let object = include_bytes!("../tests/fixtures/kernels.gfx1010.co");
    let size = 512usize;
    for mode in [Mode::Compute, Mode::Hazards(Chip::Gfx1010)] {
        let mut machine = Machine::load(object, mode).expect("a code object");
        let matrix: Vec<f32> = (0..size * size).map(|i| (i % 17) as f32).collect();
        let (a, b) = (machine.memory.allocate_floats(&matrix), machine.memory.allocate_floats(&matrix));
        let c = machine.memory.allocate(size * size * 4);
        let mut arguments: Vec<u8> = [a, b, c].iter().flat_map(|address| address.to_le_bytes()).collect();
        arguments.extend([size as i32; 3].iter().flat_map(|size| size.to_le_bytes()));
        let dispatch = Dispatch {
            kernel: "gemm",
            workgroups: [size as u32 / 16, size as u32 / 16, 1],
            workgroup_size: [256, 1, 1],
            arguments: &arguments,
            dynamic_local: 0,
        };
        let start = Instant::now();
        let counts = machine.run(&dispatch).expect("it runs");
        let seconds = start.elapsed().as_secs_f64();
        println!(
            "{mode:?}: {:.0} million lane operations a second ({seconds:.2} s, {counts})",
            counts.lane_operations as f64 / seconds / 1e6
        );
    }
}
