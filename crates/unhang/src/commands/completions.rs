//! `unhang completions`: what shells complete, and the manual pages, from the definition that also parses.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, CommandFactory};
use clap_complete::Shell;

use super::text::print_text;

/// Print completions for a shell, or write the manual pages.
#[derive(Args)]
#[command(after_help = "\
Examples:
  unhang completions bash > ~/.local/share/bash-completion/completions/unhang
  unhang completions fish > ~/.config/fish/completions/unhang.fish
  unhang completions --man ~/.local/share/man/man1")]
pub struct Completions {
    /// The shell.
    #[arg(required_unless_present = "man", conflicts_with = "man")]
    shell: Option<Shell>,
    /// Write a manual page for the program and for each subcommand into this folder.
    #[arg(long, value_name = "FOLDER")]
    man: Option<PathBuf>,
}

impl Completions {
    /// Runs the command.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let mut command = crate::Arguments::command();
        if let Some(shell) = self.shell {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut command, "unhang", &mut script);
            print_text(&String::from_utf8_lossy(&script))?;
        }
        if let Some(folder) = self.man {
            std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
            clap_mangen::generate_to(command, &folder)
                .with_context(|| format!("cannot write manual pages to {}", folder.display()))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}
