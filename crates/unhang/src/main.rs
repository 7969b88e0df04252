//! The `unhang` program. It parses, calls a crate, prints; nothing else lives here.
//!
//! One file per subcommand in [`commands`]; how things are printed is in [`output`].

#![forbid(unsafe_code)]
// They panic where a stream is closed or its disk is full; `output` has what does not.
#![deny(clippy::print_stderr, clippy::print_stdout)]

mod commands;
mod output;

use std::process::ExitCode;

use clap::Parser;

/// Convolutions that always come back: PyTorch on AMD RDNA1 cards.
#[derive(Parser)]
#[command(name = "unhang", version, max_term_width = 100)]
struct Arguments {
    #[command(flatten)]
    talk: output::Talk,
    #[command(subcommand)]
    command: commands::Command,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    arguments.talk.settle();
    match arguments.command.run() {
        Ok(code) => code,
        Err(error) => output::print_error(&error),
    }
}
