//! The finding itself in the demo: one kernel compiled now for two chips, audited side by side. The emulator stops the
//! code for the wrong chip; repaired, it runs to the right result.

use std::fmt::Write as _;
use std::sync::Arc;

use anyhow::Context;
use comfy_table::{CellAlignment, Table, presets};
use unhang_conv::Problem;
use unhang_gpu::GpuSettings;
use unhang_gpu::candidates::{Candidate, candidates};
use unhang_gpu::compiler::{CompileError, Compiler, Hiprtc};
use unhang_gpu::driver::{Emulated, EmulatedEngine};
use unhang_gpu::model::DeviceModel;
use unhang_gpu::sources::Kernel;
use unhang_isa::audit::{Context as Circumstances, Hazards, Rule, audit};
use unhang_isa::elf::CodeObject;
use unhang_isa::repair::{Options, repair_object};
use unhang_isa::{Chip, Program};

use super::super::text::wrapped;
use super::gpu::largest_error;
use crate::commands::audit::code_around;
use crate::output::{Colour, Style};

/// Small enough for the emulator to compute in a second.
const PROBLEM: &str = "forward:f32:nchw:1x8x10x10:16x3x3:s1x1:p1x1:d1x1:g1";
const WORKSPACE_LIMIT: u64 = 16 << 20;

/// A compiler whose code is repaired for gfx1010.
struct Repairing(Arc<Hiprtc>);

impl Compiler for Repairing {
    fn version(&self) -> String {
        format!("{}, repaired for gfx1010", self.0.version())
    }

    fn options(&self, kernel: &Kernel, architecture: &str) -> Vec<String> {
        self.0.options(kernel, architecture)
    }

    fn compile(&self, kernel: &Kernel, options: &[String]) -> Result<Vec<u8>, CompileError> {
        let object = self.0.compile(kernel, options)?;
        let repair = repair_object(&object, Options { chip: Chip::Gfx1010, keep_size: false });
        let repair = repair.map_err(|error| CompileError::Unusable(error.to_string()))?;
        Ok(repair.bytes.unwrap_or(object))
    }
}

/// The function of a kernel's object, decoded, with its findings on gfx1010.
fn examine(object: &[u8], entry: &str) -> anyhow::Result<(Program, Vec<unhang_isa::audit::Finding>)> {
    let code = CodeObject::parse(object)?;
    let chip = code.chip().context("the compiler made code for another family")?;
    let function = code.functions.iter().find(|function| function.name == entry).context("the kernel is not there")?;
    let mode = code.mode_of(function);
    let program = Program::decode(function.code, chip, mode.wave64)?;
    let circumstances = Circumstances { workgroup_processor_mode: mode.workgroup_processor };
    let findings = audit(&program, Chip::Gfx1010, circumstances);
    Ok((program, findings))
}

/// Compiles one of our kernels for gfx1030 and for gfx1010, and follows it through audit, emulator and repair.
pub(super) fn show(style: Style) -> anyhow::Result<String> {
    let compiler = Arc::new(Hiprtc::find()?);
    let problem: Problem = PROBLEM.parse()?;
    // Shows the kernel with the most findings in its gfx1030 code.
    let mut shown: Option<(Candidate, Kernel, Vec<u8>)> = None;
    let mut most = 0;
    for candidate in candidates(&problem, &DeviceModel::rx_5600_xt(), WORKSPACE_LIMIT).into_iter().take(3) {
        let [stage] = candidate.plan.stages.as_slice() else { continue };
        let kernel = stage.kernel.clone();
        let object = compiler.compile(&kernel, &compiler.options(&kernel, "gfx1030"))?;
        let found = examine(&object, kernel.entry)?.1.len();
        if found > most || shown.is_none() {
            most = found;
            shown = Some((candidate, kernel, object));
        }
    }
    let (candidate, kernel, spoofed) = shown.context("no candidate of one kernel computes this problem")?;
    let native = compiler.compile(&kernel, &compiler.options(&kernel, "gfx1010"))?;
    let repaired = Repairing(compiler.clone()).compile(&kernel, &compiler.options(&kernel, "gfx1030"))?;
    let what = format!(
        "{kernel}, one of our kernels, compiled by {}. HSA_OVERRIDE_GFX_VERSION=10.3.0 makes a gfx1010 run the second.",
        compiler.version()
    );
    let mut text = format!("{}\n\n", wrapped(&what, 0, 0));
    text += &compare(&[("gfx1010", &native), ("gfx1030", &spoofed), ("gfx1030, repaired", &repaired)], kernel.entry)?;
    let (program, findings) = examine(&spoofed, kernel.entry)?;
    if let Some(finding) = findings.first() {
        writeln!(
            text,
            "\nThe first place, {} (unhang audit --sites):\n",
            style.paint(finding.rule.name(), Colour::Yellow)
        )?;
        for line in code_around(&program, finding.index as usize, 3, 0) {
            writeln!(text, "    {line}")?;
        }
        writeln!(text, "\n{}", wrapped(&finding.explanation(), 2, 2))?;
    }
    let settings = || GpuSettings {
        workspace_limit: Some(WORKSPACE_LIMIT),
        cache_folder: None,
        cache_limit: 0,
        shipped_folder: None,
    };
    let emulate = |compiler: Arc<dyn Compiler>| {
        let card = Emulated::new(Chip::Gfx1010, Chip::Gfx1030, Chip::Gfx1030, compiler);
        let engine = EmulatedEngine::new(card, settings());
        engine.use_choice(Some(candidate.choice));
        largest_error(&engine, &problem)
    };
    match emulate(compiler.clone()) {
        Ok(error) => {
            writeln!(text, "\nThe emulated gfx1010 was not stopped by the gfx1030 code: largest error {error:.1e}.")?
        }
        Err(error) => {
            writeln!(text, "\nThe emulated gfx1010 with the gfx1030 code:\n{}", wrapped(&format!("{error:#}"), 2, 2))?
        }
    }
    let error = emulate(Arc::new(Repairing(compiler)))?;
    let verdict = style.paint(&format!("runs to its end, largest error {error:.1e}"), Colour::Green);
    writeln!(text, "\nThe emulated gfx1010 with the repaired code {verdict} (unhang repair).")?;
    Ok(text)
}

/// The audits of several objects, as columns.
fn compare(objects: &[(&str, &[u8])], entry: &str) -> anyhow::Result<String> {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    let mut columns = Vec::new();
    for (name, object) in objects {
        let (program, findings) = examine(object, entry)?;
        columns.push((*name, program.instructions.len(), Hazards::count(&findings)));
    }
    let header = ["compiled for".to_owned()].into_iter().chain(columns.iter().map(|column| column.0.to_owned()));
    table.set_header(header.collect::<Vec<_>>());
    let mut row = |name: &str, value: &dyn Fn(&(&str, usize, Hazards)) -> u64| {
        let cells = columns.iter().map(|column| value(column).to_string());
        table.add_row([name.to_owned()].into_iter().chain(cells).collect::<Vec<_>>());
    };
    row("instructions", &|column| column.1 as u64);
    for rule in Rule::ALL {
        if columns.iter().any(|column| column.2.get(rule) > 0) {
            row(rule.name(), &|column| column.2.get(rule));
        }
    }
    for place in 1..=columns.len() {
        if let Some(column) = table.column_mut(place) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    Ok(format!("{table}\n"))
}
