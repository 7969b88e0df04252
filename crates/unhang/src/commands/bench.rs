//! `unhang bench`: compares engines, and measures our kernels on this machine's GPU.

mod compare;
mod device;
mod tune;

use std::process::ExitCode;

use clap::{ArgGroup, Args};

pub(super) use device::open_driver;

/// Time unhang's GPU kernels, or compare measured times.
#[derive(Args)]
#[command(group(ArgGroup::new("what").required(true).args(["compare", "tune"])))]
#[command(after_help = "\
Examples:
  unhang bench --compare                  # what `unhang probe` timed, by size
  unhang bench --compare --json | jq '.rows[0]'
  unhang bench --tune                     # time candidates, keep the fastest
  unhang bench --tune --layers my-model.tsv --data-type f16 --layout nhwc

--tune runs in a child process. A candidate that hangs is ended, named and left out. The fastest choices are kept as \
evidence (`unhang evidence tunings`), and the engine uses them from its next start on.

Exit codes:
  0  done
  1  the model's choices are slower than --at-least allows
  2  wrong usage, or not done (there is no GPU to tune for)
  3  there is nothing to compare")]
pub(crate) struct Bench {
    /// Compare what probes and runs found, here and elsewhere: engines, MIOpen's algorithms and ROCm versions, by size.
    #[arg(long, conflicts_with_all = ["layers", "data_type", "layout", "candidates", "packed_half", "at_least", "patience"])]
    compare: bool,
    /// Time the candidates for each layer on this GPU, and keep the fastest.
    #[arg(long, conflicts_with_all = ["rehearsal", "root", "env_file", "python"])]
    tune: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    comparing: compare::Compare,
    #[command(flatten)]
    tuning: tune::Tune,
}

impl Bench {
    /// Runs the command.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        if self.compare { self.comparing.run(self.json) } else { self.tuning.run(self.json) }
    }
}
