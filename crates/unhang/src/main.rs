//! The `unhang` program. It parses, calls a crate and prints; nothing else is here.
//!
//! There is one file per subcommand in [`commands`]; [`output`] does the printing.

#![forbid(unsafe_code)]
// They panic if a stream is closed or its disk is full; `output` has alternatives that do not.
#![deny(clippy::print_stderr, clippy::print_stdout)]

mod commands;
mod help;
mod output;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser};

/// Keeps PyTorch from hanging on AMD RX 5500/5600/5700 (RDNA1) cards.
#[derive(Parser)]
#[command(
    name = "unhang",
    version,
    max_term_width = 100,
    after_help = "\
Examples:
  unhang doctor                       # what is wrong, and what to do first
  unhang run -- python train.py       # your program, protected
  unhang explain \"pasted error text\"

Exit codes:
  0  all is well
  1  a problem was found
  2  wrong usage, or not done
  3  could not tell"
)]
struct Arguments {
    #[command(flatten)]
    talk: output::Talk,
    #[command(subcommand)]
    command: commands::Command,
}

/// Makes a write beyond the file size limit (`ulimit -f`) fail like one to a full disk; by default the signal ends the
/// process. This is a handler, not an ignored signal, so that programs that we start inherit neither.
fn survive_the_limit_on_files() {
    let signal = rustix::process::Signal::XFSZ.as_raw();
    let _ = signal_hook::flag::register(signal, std::sync::Arc::default());
}

fn main() -> ExitCode {
    survive_the_limit_on_files();
    let found = help::arrange(Arguments::command()).get_matches();
    let arguments = Arguments::from_arg_matches(&found).unwrap_or_else(|error| error.exit());
    arguments.talk.settle();
    match arguments.command.run(Arguments::command) {
        Ok(code) => code,
        Err(error) => output::print_error(&error),
    }
}
