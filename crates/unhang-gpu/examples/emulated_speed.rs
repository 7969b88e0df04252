//! How fast the emulator runs our own kernels, in processor time of one core: one of each family, forward,
//! checking the hazards of gfx1010; the plain path of the emulator and the fast one in turn. Needs hiprtc.
//!
//! `cargo run --release -p unhang-gpu --features emulated --example emulated_speed`; words behind it (`winograd fast f16`) choose
//! families, the fast path alone, for a profiler, and another type than single precision.

use std::collections::BTreeSet;
use std::sync::Arc;

use unhang_conv::{DataType, Problem, Specification};
use unhang_engine::{Engine, Operands};
use unhang_gpu::GpuSettings;
use unhang_gpu::candidates::candidates;
use unhang_gpu::compiler::Hiprtc;
use unhang_gpu::driver::{Emulated, EmulatedEngine};
use unhang_gpu::model::DeviceModel;
use unhang_isa::Chip;
use unhang_suite::Tensor;

/// Seconds that this process has run on processors so far; Linux counts them in hundredths.
fn processor_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = text.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    let ticks = |place: usize| fields.get(place).and_then(|field| field.parse::<f64>().ok()).unwrap_or(0.0);
    (ticks(11) + ticks(12)) / 100.0
}

/// Lane operations for a second of processor time; the second run counts, the first compiles.
fn measure(engine: &EmulatedEngine, problem: &Problem) -> Result<f64, String> {
    let lengths = problem.operand_shapes().map(|shape| shape.iter().product::<usize>());
    let [first, second, _] = lengths.map(|length| Tensor::random(problem.data_type(), length, 7));
    let mut result = Tensor::unwritten(problem.data_type(), lengths[2]);
    let mut run = || {
        let operands =
            Operands { first: first.elements(), second: second.elements(), bias: None, result: result.elements_mut() };
        engine.run(problem, operands).map_err(|error| error.to_string())
    };
    run()?;
    let (operations, seconds) = (engine.card.counts().lane_operations, processor_seconds());
    while processor_seconds() - seconds < 1.0 {
        run()?;
    }
    Ok((engine.card.counts().lane_operations - operations) as f64 / (processor_seconds() - seconds))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let compiler = Arc::new(Hiprtc::find()?);
    let settings =
        GpuSettings { workspace_limit: Some(1 << 28), cache_folder: None, cache_limit: 0, shipped_folder: None };
    let card = Emulated::new(Chip::Gfx1010, Chip::Gfx1010, Chip::Gfx1010, compiler);
    card.use_threads(1);
    let engine = EmulatedEngine::new(card, settings);
    let mut words: Vec<String> = std::env::args().skip(1).collect();
    let mut given = |name: &str| {
        let place = words.iter().position(|word| word == name);
        place.map(|place| words.remove(place)).is_some()
    };
    let paths: &[bool] = if given("fast") { &[true] } else { &[false, true] };
    let data_type = match (given("f16"), given("bf16")) {
        (true, _) => DataType::F16,
        (_, true) => DataType::Bf16,
        _ => DataType::F32,
    };
    let families = words;
    let base = Specification {
        batch: 2,
        in_size: [14, 14],
        kernel: [3, 3],
        padding: [1, 1],
        data_type,
        ..Specification::default()
    };
    let problem = Problem::new(Specification { in_channels: 64, out_channels: 64, ..base })?;
    let mut seen = BTreeSet::new();
    for candidate in candidates(&problem, &DeviceModel::rx_5600_xt(), 1 << 28) {
        let family = candidate.choice.family();
        if !families.is_empty() && !families.iter().any(|name| name == family) || !seen.insert(family) {
            continue;
        }
        engine.use_choice(Some(candidate.choice));
        let mut rates = Vec::new();
        for &fast in paths {
            engine.card.use_fast_path(fast);
            let rate = measure(&engine, &problem)? / 1e6;
            rates.push(format!("{rate:.0} {}", if fast { "fast" } else { "plain" }));
        }
        println!("{}: {} million lane operations a second", candidate.choice, rates.join(", "));
    }
    Ok(())
}
