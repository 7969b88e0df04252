//! `unhang bench`: engines measured against each other.

mod compare;

use std::process::ExitCode;

use clap::Args;

/// Measure engines, or compare what was measured. Nothing is done without being asked for.
#[derive(Args)]
#[command(after_help = "\
Exit codes: 0 done, 2 wrong usage or not done, 3 there is nothing to compare.

Examples:
  unhang bench --compare                  # after `unhang probe`: families, engines, others' ROCm versions, by size
  unhang bench --compare --json | jq '.rows[0]'")]
pub struct Bench {
    /// Tabulate what probes and runs found, here and elsewhere: MIOpen's families, engines and ROCm versions, by size.
    #[arg(long, required = true)]
    compare: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    comparing: compare::Compare,
}

impl Bench {
    /// Runs the command.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        self.comparing.run(self.json)
    }
}
