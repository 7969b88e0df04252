//! The subcommands, one file each.

mod doctor;
mod machine_arguments;
mod text;

use std::process::ExitCode;

use clap::Subcommand;

// One line here and one in each of the two lists below: that is all it takes to add a subcommand.

/// What the program can be asked to do.
#[derive(Subcommand)]
pub enum Command {
    Doctor(doctor::Doctor),
}

impl Command {
    /// Runs the subcommand that was asked for.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        match self {
            Command::Doctor(command) => command.run(),
        }
    }
}
