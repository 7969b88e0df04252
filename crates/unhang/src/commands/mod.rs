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
mod whole_file;

use std::process::ExitCode;

use clap::Subcommand;

// One line here and one in each of the two lists below: that is all it takes to add a subcommand.

/// What the program can be asked to do.
#[derive(Subcommand)]
pub enum Command {
    Audit(audit::Audit),
    Bench(bench::Bench),
    Card(card::CardCommand),
    Completions(completions::Completions),
    Demo(demo::Demo),
    Doctor(doctor::Doctor),
    Emulate(emulate::Emulate),
    Env(env::Env),
    Evidence(evidence::EvidenceCommand),
    Explain(explain::Explain),
    Kernels(kernels::Kernels),
    MiopenCache(miopen_cache::MiopenCache),
    Plan(plan::PlanCommand),
    Probe(probe::Probe),
    Repair(repair::Repair),
    Report(report::ReportCommand),
    Run(run::Run),
}

impl Command {
    /// Runs the subcommand that was asked for.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        match self {
            Command::Audit(command) => command.run(),
            Command::Bench(command) => command.run(),
            Command::Card(command) => command.run(),
            Command::Completions(command) => command.run(),
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
