//! Measures the emulator's speed, in processor time: a tiled matrix product of 512×512×512 in waves of 32 and of 64
//! lanes, on one thread and then on all. The plain path comes first, for comparison with the fast one.
//!
//! `cargo run --release -p unhang-emulator --example speed`; further words (`fast hazards 1 wave32`) select lines, for
//! a profiler.

use std::time::Instant;

use unhang_emulator::{Counts, Dispatch, Machine, Mode};
use unhang_isa::Chip;

const SIZE: usize = 512;

/// Seconds that this process has run on processors so far; Linux counts in hundredths.
fn processor_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name may contain anything, so fields are counted from its end. User and system time are the 12th and 13th.
    let fields: Vec<&str> = text.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    let ticks = |place: usize| fields.get(place).and_then(|field| field.parse::<f64>().ok()).unwrap_or(0.0);
    (ticks(11) + ticks(12)) / 100.0
}

const WAVES: [(&str, &[u8]); 2] = [
    ("wave32", include_bytes!("../tests/fixtures/kernels.gfx1010.co")),
    ("wave64", include_bytes!("../tests/fixtures/kernels.wave64.gfx1010.co")),
];

fn multiply(object: &[u8], mode: Mode, threads: usize, fast: bool) -> Counts {
    let mut machine = Machine::load(object, mode).expect("a code object");
    (machine.threads, machine.fast) = (threads, fast);
    let matrix: Vec<f32> = (0..SIZE * SIZE).map(|i| (i % 17) as f32 * 0.37).collect();
    let (a, b) = (machine.memory.allocate_floats(&matrix), machine.memory.allocate_floats(&matrix));
    let c = machine.memory.allocate(SIZE * SIZE * 4);
    let mut arguments: Vec<u8> = [a, b, c].iter().flat_map(|address| address.to_le_bytes()).collect();
    arguments.extend([SIZE as i32; 3].iter().flat_map(|size| size.to_le_bytes()));
    let dispatch = Dispatch::new("gemm", [SIZE as u32 / 16, SIZE as u32 / 16, 1], [256, 1, 1], &arguments);
    machine.run(&dispatch).expect("it runs")
}

fn main() {
    let cores = std::thread::available_parallelism().map_or(1, |count| count.get());
    let words: Vec<String> = std::env::args().skip(1).collect();
    let lines = WAVES.iter().flat_map(|wave| [(1, false), (1, true), (cores, true)].map(|line| (wave, line)));
    for (&(wave, object), (threads, fast)) in lines {
        for mode in [Mode::Compute, Mode::Hazards(Chip::Gfx1010)] {
            let path = if fast { "fast" } else { "plain" };
            let checked = if mode == Mode::Compute { "compute" } else { "hazards" };
            if !words.iter().all(|word| [path, checked, wave, &threads.to_string()].contains(&word.as_str())) {
                continue;
            }
            let (wall, processor) = (Instant::now(), processor_seconds());
            let counts = multiply(object, mode, threads, fast);
            let (wall, processor) = (wall.elapsed().as_secs_f64(), processor_seconds() - processor);
            println!(
                "{wave}, {path} path, {threads} thread(s), {checked}: {:.0} million lane operations for a second of processor time, {:.0} by the clock",
                counts.lane_operations as f64 / processor / 1e6,
                counts.lane_operations as f64 / wall / 1e6,
            );
            if !fast && mode == Mode::Compute {
                println!("{counts}");
            }
        }
    }
}
