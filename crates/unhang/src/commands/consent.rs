//! Asks before changing something that the person may not have meant.

use std::io::{self, BufRead, IsTerminal, Write};

use anyhow::bail;
use clap::Args;
use unhang_machine::System;

use crate::output::printable;

/// Whether the person has agreed already.
#[derive(Args, Clone, Copy)]
pub(super) struct Consent {
    /// Do not ask.
    #[arg(long, short = 'y')]
    yes: bool,
}

impl Consent {
    /// Whether to continue. Without a terminal to ask on, that is an error which says so.
    pub(super) fn ask(self, question: &str) -> anyhow::Result<bool> {
        if self.yes {
            return Ok(true);
        }
        if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
            bail!(
                anyhow::anyhow!("hint: run it in a terminal, or add --yes")
                    .context(format!("nothing was changed: cannot prompt (not a terminal): {question}"))
            );
        }
        let mut stderr = io::stderr().lock();
        let _ = write!(stderr, "{} [y/N] ", printable(question));
        let _ = stderr.flush();
        let mut answer = String::new();
        io::stdin().lock().read_line(&mut answer)?;
        Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
    }

    /// Asks before changing a described machine, because such a folder is usually somebody's report. Without `--root`,
    /// a command means this machine.
    pub(super) fn ask_for_folder(self, system: &System, what: &str) -> anyhow::Result<bool> {
        if !system.is_folder() {
            return Ok(true);
        }
        self.ask(&format!("{what} in the folder {}, which describes a machine?", system.root().display()))
    }
}
