//! The subcommands, one file each.

mod audit;
mod bench;
mod card;
mod completions;
mod consent;
mod demo;
mod doctor;
mod emulate;
mod env;
mod evidence;
mod explain;
mod fix;
mod kernels;
mod knowledge;
mod lasting_folder;
mod machine_arguments;
mod miopen_cache;
mod plan;
mod probe;
mod python;
mod repair;
mod report;
mod run;
mod self_test;
mod shapes;
mod text;
mod wheel;
mod whole_file;

use std::process::ExitCode;

use clap::Subcommand;

// To add a subcommand, add one line here and one in each of the two lists below.

/// What the program can be asked to do, in the order of its help: what owners need first.
#[derive(Subcommand)]
pub(crate) enum Command {
    Doctor(doctor::Doctor),
    Run(run::Run),
    Explain(explain::Explain),
    Plan(plan::PlanCommand),
    Probe(probe::Probe),
    Report(report::ReportCommand),
    Env(env::Env),
    Evidence(evidence::EvidenceCommand),
    MiopenCache(miopen_cache::MiopenCache),
    Kernels(kernels::Kernels),
    Bench(bench::Bench),
    Audit(audit::Audit),
    Repair(repair::Repair),
    Emulate(emulate::Emulate),
    Card(card::CardCommand),
    Demo(demo::Demo),
    Completions(completions::Completions),
}

impl Command {
    /// Runs the requested subcommand. `definition` is the whole program's.
    pub(crate) fn run(self, definition: fn() -> clap::Command) -> anyhow::Result<ExitCode> {
        match self {
            Command::Audit(command) => command.run(),
            Command::Bench(command) => command.run(),
            Command::Card(command) => command.run(),
            Command::Completions(command) => command.run(definition()),
            Command::Demo(command) => command.run(),
            Command::Doctor(command) => command.run(),
            Command::Emulate(command) => command.run(),
            Command::Env(command) => command.run(),
            Command::Evidence(command) => command.run(),
            Command::Explain(command) => command.run(),
            Command::Kernels(command) => command.run(),
            Command::MiopenCache(command) => command.run(),
            Command::Plan(command) => command.run(),
            Command::Probe(command) => command.run(),
            Command::Repair(command) => command.run(),
            Command::Report(command) => command.run(),
            Command::Run(command) => command.run(),
        }
    }
}
