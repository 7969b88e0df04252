//! `unhang demo`: a guided first run on whatever is available.
//!
//! Each section does something real on a real artefact, and says what kind of evidence it gives. A new capability adds
//! a section: one entry in [`SECTIONS`] if it needs no torch, or one in the Python package's `_commands` if it does.

mod card;
mod gpu;
mod instructions;
mod probe;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, ValueEnum};
use unhang_conv::Problem;
use unhang_evidence::Evidence;
use unhang_gpu::compiler::Hiprtc;
use unhang_machine::{Environment, Options, System, examine, example};
use unhang_plan::{Facts, Settings, plan};
use unhang_probe::PythonStart;

use super::doctor;
use super::lasting_folder::LastingFolder;
use super::machine_arguments::MachineArguments;
use super::python::{HAS_TORCH_AND_UNHANG, find_python, interpreter};
use super::text::{print_text, wrapped};
use crate::output::{CANNOT_TELL, Colour, Style};

/// A guided first run: this machine, the machine of the reports, a network trained through unhang.
#[derive(Args)]
#[command(after_help = "\
Examples:
  unhang demo
  unhang demo --part machine        # without torch
  unhang demo --python ~/venv/bin/python

Exit codes:
  0  all sections were shown
  2  wrong usage, or a section failed
  3  there is no torch, so its part was left out")]
pub(crate) struct Demo {
    /// Show one part only.
    #[arg(long, value_enum)]
    part: Option<DemoPart>,
    /// The Python whose torch is used; otherwise that of the active environment.
    #[arg(long, value_name = "PATH")]
    python: Option<PathBuf>,
    /// Be the program of the section about the emulated card.
    #[arg(long, hide = true)]
    card_program: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum DemoPart {
    /// What needs no torch.
    Machine,
    /// What runs PyTorch.
    Torch,
}

/// The evidence behind a section.
enum Ground {
    /// Measured on this machine just now.
    Measured,
    /// A folder describes the machine.
    Rehearsed,
    /// Compiled just now for the chip, and run by an emulator of it.
    Emulated,
    /// Child processes play a card.
    Played,
    /// AMD's own software, unmodified, on an emulated card.
    Card,
}

struct Section {
    title: &'static str,
    ground: Ground,
    show: fn(Style) -> anyhow::Result<String>,
}

/// The sections that need no torch, in order.
const SECTIONS: &[Section] = &[
    Section { title: "This machine", ground: Ground::Measured, show: this_machine },
    Section {
        title: "The machine of the reports: an RX 5600 XT with ROCm 5.7, spoofed as an RX 6800",
        ground: Ground::Rehearsed,
        show: reported_machine,
    },
    Section {
        title: "What would be done there with the convolution that hangs",
        ground: Ground::Rehearsed,
        show: reported_plans,
    },
    Section { title: "Trying it there: children hang and are ended", ground: Ground::Played, show: probe::show },
];

/// The sections that run AMD's compiler or runtime.
const WITH_HIP: &[Section] = &[
    Section {
        title: "Why code for another chip hangs there, instruction by instruction",
        ground: Ground::Emulated,
        show: instructions::show,
    },
    Section { title: "Our own kernels for that card", ground: Ground::Emulated, show: gpu::show },
    Section {
        title: "AMD's own HIP runtime on that card: native, spoofed as an RX 6800, and with the shield",
        ground: Ground::Card,
        show: card::show,
    },
];

impl Demo {
    /// Runs the command.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        if self.card_program {
            card::program()?;
            return Ok(ExitCode::SUCCESS);
        }
        let style = Style::for_stream(&std::io::stdout());
        let without_hip = Hiprtc::find().err();
        let with_hip = if without_hip.is_none() { WITH_HIP } else { &[] };
        if self.part != Some(DemoPart::Torch) {
            for (number, section) in SECTIONS.iter().chain(with_hip).enumerate() {
                let ground = match section.ground {
                    Ground::Measured => "measured",
                    Ground::Rehearsed => "rehearsed: a folder describes the machine",
                    Ground::Played => "rehearsed: children play the card, and really hang",
                    Ground::Card => "AMD's own software, unmodified, on the emulated card",
                    Ground::Emulated => "compiled here for the chip, run on an emulator of that chip",
                };
                let heading = style.paint(&format!("{}. {}", number + 1, section.title), Colour::Bold);
                // The heading comes first: some sections take a moment, and some print while they run.
                print_text(&format!("\n{heading}\n   [{ground}]\n\n"))?;
                print_text(&(section.show)(style)?)?;
            }
            if let Some(error) = without_hip {
                let line = format!(
                    "Left out: AMD's software on the emulated card ({error}); on Debian 12 `sudo apt-get install \
                     libamdhip64-5 libhiprtc-builtins5 rocm-device-libs` adds it"
                );
                print_text(&format!("\n{}\n", wrapped(&line, 0, 0)))?;
            }
        }
        if self.part == Some(DemoPart::Machine) {
            return Ok(ExitCode::SUCCESS);
        }
        let python = self.python.as_deref().map_or_else(find_python, interpreter);
        run_torch_part(&python, SECTIONS.len() + with_hip.len() + 1)
    }
}

fn this_machine(style: Style) -> anyhow::Result<String> {
    let system = MachineArguments::default().system()?;
    Ok(doctor::report(&examine(&system, &Options::default()), style, false))
}

/// Uses the example machine in a folder that is removed afterwards.
fn with_example<T>(use_it: impl FnOnce(&System) -> T) -> anyhow::Result<T> {
    let folder = LastingFolder::for_work()?;
    example::write(folder.path()).context("cannot write the example machine")?;
    Ok(use_it(&System::folder(folder.path(), Environment::parse(""))))
}

fn reported_machine(style: Style) -> anyhow::Result<String> {
    with_example(|system| doctor::report(&examine(system, &Options::default()), style, true))
}

fn reported_plans(style: Style) -> anyhow::Result<String> {
    let problem: Problem = "forward:f32:nchw:1x16x64x64:32x3x3:s1x1:p1x1:d1x1:g1".parse()?;
    let situation = Facts { spoofed: true, ..Facts::on_accelerator(true) }.situation();
    let what = format!("A convolution of 16 to 32 channels, 3×3, on 64×64 pixels ({problem}):");
    let mut text = format!("{}\n\n", wrapped(&what, 0, 0));
    for strategy in ["auto", "implicit_gemm", "selective", "cpu_fallback", "tiled"] {
        let settings = Settings { strategy: strategy.parse()?, ..Settings::default() };
        let plan = plan(&problem, &settings, &situation, &Evidence::empty("example"));
        let choice = style.paint(&format!("{:13} {:7}", strategy, plan.choice().name()), Colour::Cyan);
        text += &format!("  {choice} {}\n", wrapped(&plan.reason, 24, 24).trim_start());
        for warning in plan.warnings {
            text += &format!("{}\n", wrapped(&format!("warning: {warning}"), 26, 26));
        }
    }
    let more =
        "`unhang plan` shows the evidence for a plan; docs/how-it-decides.md explains it. Nobody here has such a card.";
    text += &format!("\n{}\n", wrapped(more, 0, 0));
    Ok(text)
}

fn run_torch_part(python: &Path, first_number: usize) -> anyhow::Result<ExitCode> {
    let name = python.display().to_string();
    let found = PythonStart::statements(&name, HAS_TORCH_AND_UNHANG)
        .to_command()
        .status()
        .with_context(|| format!("cannot start {}", python.display()))
        .context("hint: name a Python with --python")?;
    if !found.success() {
        print_text(&format!(
            "\nThe rest trains a network through unhang: {} has no torch, or unhang is not installed in it.\n\
             Install unhang next to your torch, or name another Python with --python.\n",
            python.display()
        ))?;
        return Ok(ExitCode::from(CANNOT_TELL));
    }
    let folder = LastingFolder::for_work()?;
    example::write(folder.path()).context("cannot write the example machine")?;
    let example = folder.path().display().to_string();
    let arguments = ["demo", "--first", &first_number.to_string(), "--example", &example];
    let status = PythonStart::module(&name, "unhang._commands", &arguments)
        .to_command()
        .status()
        .with_context(|| format!("cannot start {}", python.display()))?;
    anyhow::ensure!(status.success(), "the part that trains a network ended with {status}");
    Ok(ExitCode::SUCCESS)
}
