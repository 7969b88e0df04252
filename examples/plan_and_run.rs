//! Plan a convolution and run it, without Python.
//!
//!     cargo run --release -p unhang --example plan_and_run
//!
//! The same four steps that the Python package takes for every convolution of torch: say what the problem is, ask what is
//! known, plan, compute.

use unhang_conv::{Problem, Specification};
use unhang_cpu::CpuEngine;
use unhang_engine::{Elements, ElementsMut, Engine, EngineName, Operands, Tiled};
use unhang_evidence::Evidence;
use unhang_plan::{Settings, Situation, plan};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // 1. The problem: 16 to 32 channels, 3×3, on one image of 64×64. A problem that exists is valid.
    let problem = Problem::new(Specification {
        in_channels: 16,
        in_size: [64, 64],
        out_channels: 32,
        kernel: [3, 3],
        padding: [1, 1],
        ..Specification::default()
    })?;

    // 2. What is here and what is known: tensors in this process's memory, and no evidence yet.
    let situation = Situation::cpu_tensors();
    let evidence = Evidence::empty("example");

    // 3. The plan, with its reason.
    let settings = Settings { strategy: "cpu_fallback".parse()?, ..Settings::default() };
    let plan = plan(&problem, &settings, &situation, &evidence);
    println!("{problem}\n  -> {}: {}", plan.choice(), plan.reason);
    assert_eq!(plan.choice(), EngineName::Cpu);

    // 4. The computation: all ones, so that an inner pixel is 16 × 3 × 3.
    let [input, weight, output] = problem.operand_shapes().map(|shape| shape.iter().product::<usize>());
    let (input, weight) = (vec![1.0f32; input], vec![1.0f32; weight]);
    let mut results = [vec![0.0f32; output], vec![0.0f32; output]];
    // Ours, and the same in tiles of 16 × 16 pixels with halo: any engine can be cut so, exactly. By definition, since sums of
    // Winograd's algorithm would differ in their last digits.
    let engine =
        CpuEngine::with_settings(unhang_cpu::CpuSettings { by_definition: true, ..unhang_cpu::CpuSettings::default() });
    let engines: [&dyn Engine; 2] = [&engine, &Tiled::new(engine, 16)];
    for (engine, result) in engines.into_iter().zip(&mut results) {
        engine.run(
            &problem,
            Operands {
                first: Elements::F32(&input),
                second: Elements::F32(&weight),
                bias: None,
                result: ElementsMut::F32(result),
            },
        )?;
    }
    println!("corner {}, edge {}, inside {}", results[0][0], results[0][1], results[0][65]);
    assert_eq!(results[0], results[1], "tiles are exact");
    assert_eq!((results[0][0], results[0][1], results[0][65]), (64.0, 96.0, 144.0));
    Ok(())
}
