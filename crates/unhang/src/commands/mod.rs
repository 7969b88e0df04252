//! The subcommands, one file each.

mod audit;
mod doctor;
mod machine_arguments;
mod text;

use std::process::ExitCode;

use clap::Subcommand;

// One line here and one in each of the two lists below: that is all it takes to add a subcommand.

/// What the program can be asked to do.
#[derive(Subcommand)]
pub enum Command {
    Audit(audit::Audit),
    Doctor(doctor::Doctor),
}

impl Command {
    /// Runs the subcommand that was asked for.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        match self {
            Command::Audit(command) => command.run(),
            Command::Doctor(command) => command.run(),
        }
    }
}
