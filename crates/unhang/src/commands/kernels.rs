//! `unhang kernels`: compiles our kernels for a chip here and now, without the chip.

mod predict;
mod shipped;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, Subcommand};
use serde::Serialize;
use unhang_conv::{DataType, Problem};
use unhang_gpu::cache::Cache;
use unhang_gpu::candidates::{Candidate, candidates, half_candidates};
use unhang_gpu::catalogue::{self, CompiledKernel, Selection};
use unhang_gpu::compiler::{Compiler, Hiprtc};
use unhang_gpu::model::DeviceModel;
use unhang_isa::Chip;
use unhang_probe::PythonStart;

use super::python::{HAS_TORCH_AND_UNHANG, find_python, interpreter};
use super::text::{counted, entry, print_text, wrapped};
use super::whole_file::read_layers;
use crate::output::{self, FOUND_ERRORS, Progress};

/// The limit on a card of 6 GB: a sixteenth of its memory.
const WORKSPACE_LIMIT: u64 = 384 << 20;

/// List unhang's GPU kernels for a chip, or compile them ahead of time. Needs hiprtc, but no GPU.
#[derive(Args)]
#[command(after_help = "\
Examples:
  unhang kernels list --chip gfx1010
  unhang kernels list --chip gfx1010 --reported-as gfx1030 --json
  unhang kernels list --shipped
  unhang kernels list --predict
  unhang kernels warm --chip gfx1010 --layers my-model.tsv
  unhang kernels warm --seen --python ~/venv/bin/python

Exit codes:
  0  all kernels are safe
  1  a kernel spills or has hazards, or (--shipped) differs from the list
  2  wrong usage, or something could not be compiled
  3  (--seen) there is no GPU that torch can use")]
pub(crate) struct Kernels {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Compile every kernel for the layers and print registers, spills, LDS, waves, multiply-adds and hazards. With
    /// --shipped: list the general kernels that came with the package, and check their hashes.
    List(List),
    /// Compile every kernel for the layers into the cache, so that the first run finds them there.
    Warm(Warm),
}

#[derive(Args)]
#[command(after_help = "Examples:\n  unhang kernels list --chip gfx1012\n  unhang kernels list --shipped")]
struct List {
    #[command(flatten)]
    selected: Selected,
    /// List what came with the package instead: each object with its chips, registers and SHA-256. Compiles nothing.
    #[arg(long, conflicts_with_all = ["layers", "arch", "reported_as"])]
    shipped: bool,
    /// The folder of the package's kernels, if it is not next to the program.
    #[arg(long, value_name = "DIR", requires = "shipped")]
    folder: Option<PathBuf>,
    /// Predict instead how long the kernels would take on an RX 5600 XT and an RX 5700 XT: the longest layer of each family and
    /// direction, or every layer of --layers. Some of their workgroups run on the emulator. Takes minutes.
    #[arg(long, conflicts_with_all = ["shipped", "arch", "reported_as"])]
    predict: bool,
    /// How many kernels to predict for each layer, best first by the model that chooses kernels.
    #[arg(long, value_name = "COUNT", default_value_t = 1, requires_all = ["layers", "predict"])]
    candidates: usize,
    /// Predict in half precision, with kernels that multiply in pairs: less exact, and never used unless you ask.
    #[arg(long, requires = "predict")]
    packed_half: bool,
}

#[derive(Args)]
#[command(after_help = "Example:\n  unhang kernels warm --chip gfx1010 --layers my-model.tsv")]
struct Warm {
    #[command(flatten)]
    selected: Selected,
    /// Compile instead what earlier runs on this machine asked for, with torch's compiler and for its GPU.
    #[arg(long, conflicts_with_all = ["layers", "arch", "reported_as"])]
    seen: bool,
    /// The Python whose torch --seen uses; otherwise that of the active environment.
    #[arg(long, value_name = "PATH", requires = "seen")]
    python: Option<PathBuf>,
}

#[derive(Args)]
struct Selected {
    /// The real chip.
    #[arg(long = "chip", visible_alias = "arch", default_value = "gfx1010", value_name = "CHIP")]
    arch: Chip,
    /// The chip that the runtime reports, if HSA_OVERRIDE_GFX_VERSION is set.
    #[arg(long, value_name = "CHIP")]
    reported_as: Option<Chip>,
    /// A layer table: name n c h w k r s stride_h stride_w pad_h pad_w dil_h dil_w groups.
    #[arg(long, value_name = "FILE")]
    layers: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    compiler: String,
    kernels: Vec<KernelReport>,
    layers: Vec<LayerReport>,
}

#[derive(Serialize)]
struct KernelReport {
    name: String,
    problem: String,
    arch: String,
    reported_as: String,
    vgprs: u32,
    sgprs: u32,
    vgpr_spills: u32,
    sgpr_spills: u32,
    lds_bytes: u32,
    waves_per_simd: u32,
    fma_share: f64,
    hazards: usize,
}

/// How a layer would be computed, and the model's expectation for an RX 5600 XT. Not measured.
#[derive(Serialize)]
struct LayerReport {
    name: String,
    problem: String,
    choice: String,
    estimated_milliseconds: f64,
    estimated_share_of_peak: f64,
    workspace_bytes: u64,
}

impl Kernels {
    /// Runs the command.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        match self.action {
            Action::List(list) if list.shipped => shipped::list(list.folder, list.selected.json),
            Action::List(list) if list.predict => list.predict(),
            Action::List(list) => list.selected.list(),
            Action::Warm(warm) if warm.seen => warm.run_seen(),
            Action::Warm(warm) => warm.selected.warm(),
        }
    }
}

impl List {
    fn predict(&self) -> anyhow::Result<ExitCode> {
        let (layers, device) = (read_layers(self.selected.layers.as_deref())?, DeviceModel::rx_5600_xt());
        let ways = |problem: &Problem| match self.packed_half {
            true => with_pairs(&problem.with_data_type(DataType::F16), &device),
            false => candidates(problem, &device, WORKSPACE_LIMIT),
        };
        let mut selections = catalogue::select_some(&layers, self.candidates.max(1), ways);
        for selection in selections.iter_mut().filter(|_| self.packed_half) {
            selection.problem = selection.problem.with_data_type(DataType::F16);
        }
        if self.selected.layers.is_none() {
            selections = catalogue::longest_of_each_family(selections);
        }
        predict::list(&selections, &find_compiler()?, self.selected.json)
    }
}

/// All ways to compute a problem in half precision, including those with products in pairs. If the model prefers
/// another way, such as Winograd's, pairs bring nothing.
fn with_pairs(problem: &Problem, device: &DeviceModel) -> Vec<Candidate> {
    let mut ways = half_candidates(problem, device, WORKSPACE_LIMIT);
    ways.extend(candidates(problem, device, WORKSPACE_LIMIT));
    ways.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    ways
}

impl Warm {
    /// Torch has its own compiler, and its output is filed under that compiler's version. So this runs in torch's
    /// process.
    fn run_seen(self) -> anyhow::Result<ExitCode> {
        let python = self.python.as_deref().map_or_else(find_python, interpreter);
        let name = python.display().to_string();
        let run = |start: PythonStart| {
            start
                .to_command()
                .status()
                .with_context(|| format!("cannot start {}", python.display()))
                .context("hint: name a Python with --python")
        };
        if !run(PythonStart::statements(&name, HAS_TORCH_AND_UNHANG))?.success() {
            let found = format!("{} has no torch, or unhang is not installed in it", python.display());
            return Err(anyhow::anyhow!("hint: name another with --python").context(found));
        }
        let arguments: &[&str] = if self.selected.json { &["warm", "--json"] } else { &["warm"] };
        let status = run(PythonStart::module(&name, "unhang._commands", arguments))?;
        Ok(status.code().and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::from(2), ExitCode::from))
    }
}

impl Selected {
    fn select(&self) -> anyhow::Result<Vec<Selection>> {
        Ok(catalogue::select(&read_layers(self.layers.as_deref())?, &DeviceModel::rx_5600_xt(), WORKSPACE_LIMIT))
    }

    fn compile(&self, cache: Option<&Cache>) -> anyhow::Result<(String, Vec<Selection>, Vec<CompiledKernel>)> {
        let selections = self.select()?;
        let compiler = find_compiler()?;
        let reported = self.reported_as.unwrap_or(self.arch);
        let progress = Progress::new(&format!("compiling for {}:", self.arch));
        let told = |done: usize, all: usize| progress.at(done, all);
        let entries = catalogue::compile(&selections, &compiler, self.arch, reported, cache, &told)?;
        Ok((compiler.version(), selections, entries))
    }

    fn warm(&self) -> anyhow::Result<ExitCode> {
        let folder = Cache::default_folder().context("hint: set HOME or XDG_CACHE_HOME: there is no cache folder")?;
        let cache = Cache::open(&folder, 512 << 20).with_context(|| format!("cannot use {}", folder.display()))?;
        let (compiler, _, entries) = self.compile(Some(&cache))?;
        if self.json {
            output::print_json(&serde_json::json!({
                "compiler": compiler, "kernels": entries.len(), "folder": folder.display().to_string()
            }))?;
        } else {
            let (kernels, folder) = (counted(entries.len(), "kernel"), folder.display());
            print_text(&format!("{kernels} for {} in {folder} ({compiler})\n", self.arch))?;
        }
        Ok(ExitCode::SUCCESS)
    }

    fn list(&self) -> anyhow::Result<ExitCode> {
        let (compiler, selections, entries) = self.compile(None)?;
        let reported = self.reported_as.unwrap_or(self.arch);
        let kernels: Vec<KernelReport> = entries.iter().map(|entry| report(entry, self.arch, reported)).collect();
        let bad = kernels.iter().any(|k| k.vgpr_spills + k.sgpr_spills > 0 || k.hazards > 0);
        let layers = selections.iter().map(layer_report).collect();
        let report = Report { compiler, kernels, layers };
        if self.json {
            output::print_json(&report)?;
        } else {
            print(&report)?;
        }
        Ok(if bad { ExitCode::from(FOUND_ERRORS) } else { ExitCode::SUCCESS })
    }
}

fn find_compiler() -> anyhow::Result<Hiprtc> {
    Hiprtc::find()
        .context("hint: on Debian 12 install libamdhip64-5 and libhiprtc-builtins5; in a ROCm torch it is there")
}

fn report(entry: &CompiledKernel, arch: Chip, reported: Chip) -> KernelReport {
    let figures = &entry.figures;
    KernelReport {
        name: entry.kernel.to_string(),
        problem: entry.problem.to_string(),
        arch: arch.to_string(),
        reported_as: reported.to_string(),
        vgprs: figures.vgprs,
        sgprs: figures.sgprs,
        vgpr_spills: figures.vgpr_spills,
        sgpr_spills: figures.sgpr_spills,
        lds_bytes: figures.lds_bytes,
        waves_per_simd: figures.waves_per_simd,
        fma_share: (figures.fma_share * 1e4).round() / 1e4,
        hazards: figures.hazards.len(),
    }
}

fn layer_report(selection: &Selection) -> LayerReport {
    let seconds = selection.candidate.seconds;
    let share = selection.problem.flops() / seconds / DeviceModel::rx_5600_xt().flops;
    LayerReport {
        name: selection.layer.clone(),
        problem: selection.problem.to_string(),
        choice: selection.candidate.choice.to_string(),
        estimated_milliseconds: (seconds * 1e6).round() / 1e3,
        estimated_share_of_peak: (share * 1e3).round() / 1e3,
        workspace_bytes: selection.candidate.plan.workspace_bytes,
    }
}

fn print(report: &Report) -> anyhow::Result<()> {
    let line = |kernel: &KernelReport| {
        let facts = [
            format!("{} VGPRs", kernel.vgprs),
            format!("{} SGPRs", kernel.sgprs),
            counted(kernel.vgpr_spills + kernel.sgpr_spills, "spill"),
            format!("{} bytes of LDS", kernel.lds_bytes),
            format!("{} waves a SIMD", kernel.waves_per_simd),
            format!("{:.0} % FMA", kernel.fma_share * 100.0),
            counted(kernel.hazards, "hazard"),
        ];
        entry(&kernel.name, &facts.each_ref().map(String::as_str), &kernel.problem)
    };
    let lines: String = report.kernels.iter().map(line).collect();
    let spilled = report.kernels.iter().filter(|k| k.vgpr_spills + k.sgpr_spills > 0).count();
    let hazards: usize = report.kernels.iter().map(|k| k.hazards).sum();
    let sum = format!(
        "{}, {spilled} with spills, {}; {}",
        counted(report.kernels.len(), "kernel"),
        counted(hazards, "hazard"),
        report.compiler
    );
    print_text(&format!("{lines}\n{}\n", wrapped(&sum, 0, 2)))
}
