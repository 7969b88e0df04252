//! Our GPU kernels in the demo: compiled now for a chip that is not present, and run by its emulator.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Instant;

use unhang_conv::{Direction, Problem};
use unhang_engine::{Elements, ElementsMut, Engine, Operands, Reference};
use unhang_gpu::GpuSettings;
use unhang_gpu::candidates::candidates;
use unhang_gpu::catalogue::{self, Selection};
use unhang_gpu::choice::Choice;
use unhang_gpu::compiler::{Compiler, Hiprtc};
use unhang_gpu::driver::{Emulated, EmulatedEngine};
use unhang_gpu::model::DeviceModel;
use unhang_isa::Chip;

use super::super::text::{counted, wrapped};
use crate::output::{Colour, Style};

/// Small enough for the emulator to compute in seconds.
const PROBLEM: &str = "forward:f32:nchw:1x16x12x12:32x3x3:s1x1:p1x1:d1x1:g1";
const WORKSPACE_LIMIT: u64 = 64 << 20;

/// Compiles the kernels of one convolution for a gfx1010 reported as gfx1030, shows their figures, and runs them.
pub(super) fn show(style: Style) -> anyhow::Result<String> {
    let compiler = Hiprtc::find()?;
    let problem: Problem = PROBLEM.parse()?;
    let what = format!("{problem}, compiled by {} for gfx1010, tagged as gfx1030:", compiler.version());
    let mut text = format!("{}\n\n", wrapped(&what, 0, 0));
    let selections: Vec<Selection> = Direction::ALL
        .into_iter()
        .filter_map(|direction| {
            let problem = problem.with_direction(direction);
            // For so small a problem, the model prefers the generic kernels; the demo shows the others.
            let found = candidates(&problem, &DeviceModel::rx_5600_xt(), WORKSPACE_LIMIT);
            let candidate = found.into_iter().find(|candidate| candidate.choice != Choice::Plain)?;
            Some(Selection { layer: direction.to_string(), problem, candidate })
        })
        .collect();
    let started = Instant::now();
    let entries = catalogue::compile(&selections, &compiler, Chip::Gfx1010, Chip::Gfx1030, None, &|_, _| {})?;
    for entry in &entries {
        let it = &entry.figures;
        let name = style.paint(&format!("{:34}", entry.kernel.to_string()), Colour::Cyan);
        writeln!(
            text,
            "  {name} {:3} VGPRs, {:3} SGPRs, {} spills, {:5} bytes of LDS, {:2} waves a SIMD, {} hazards",
            it.vgprs,
            it.sgprs,
            it.vgpr_spills + it.sgpr_spills,
            it.lds_bytes,
            it.waves_per_simd,
            it.hazards.len()
        )?;
    }
    writeln!(text, "  {} in {:.1} s\n", counted(entries.len(), "kernel"), started.elapsed().as_secs_f64())?;
    let card = Emulated::new(Chip::Gfx1010, Chip::Gfx1030, Chip::Gfx1010, Arc::new(compiler));
    let settings = GpuSettings {
        workspace_limit: Some(WORKSPACE_LIMIT),
        cache_folder: None,
        cache_limit: 0,
        shipped_folder: None,
    };
    let engine = EmulatedEngine::new(card, settings);
    for selection in &selections {
        engine.use_choice(Some(selection.candidate.choice));
        let before = engine.card.counts();
        let started = Instant::now();
        let error = largest_error(&engine, &selection.problem)?;
        let executed = engine.card.counts().instructions() - before.instructions();
        let seconds = started.elapsed().as_secs_f64();
        let ran = format!(
            "by {}: {executed} instructions of waves emulated in {seconds:.1} s, largest error {error:.1e}",
            selection.candidate.choice
        );
        writeln!(text, "  {:17} {}", selection.layer, wrapped(&ran, 20, 20).trim_start())?;
    }
    let end = "The emulator checks every access to memory and stops at the chip's hazards; it does not model time. What \
               the kernels do inside torch on a GPU is in docs/internals/gpu.md, and how fast in \
               docs/internals/benchmarks/gpu.md.";
    text += &format!("\n{}\n", wrapped(end, 0, 0));
    Ok(text)
}

/// The largest error of an engine against the plain reference, relative to the largest value.
pub(super) fn largest_error(engine: &dyn Engine, problem: &Problem) -> anyhow::Result<f32> {
    let [first, second, result] = problem.operand_shapes().map(|shape| shape.iter().product::<usize>());
    // Numbers without a pattern that could hide an indexing mistake.
    let numbers = |count: usize, step: usize| -> Vec<f32> {
        (0..count).map(|index| (index * step % 1009) as f32 / 504.5 - 1.0).collect()
    };
    let (first, second) = (numbers(first, 613), numbers(second, 257));
    let mut computed = [vec![0f32; result], vec![0f32; result]];
    for (engine, output) in [engine, &Reference as &dyn Engine].into_iter().zip(&mut computed) {
        engine.run(
            problem,
            Operands {
                first: Elements::F32(&first),
                second: Elements::F32(&second),
                bias: None,
                result: ElementsMut::F32(output),
            },
        )?;
    }
    let largest = computed[1].iter().fold(0f32, |most, value| most.max(value.abs()));
    let error = computed[0].iter().zip(&computed[1]).fold(0f32, |most, (a, b)| most.max((a - b).abs()));
    Ok(error / largest)
}
