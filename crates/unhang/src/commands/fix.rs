//! What `unhang doctor --fix` does: the steps that are ours to carry out, each asked about first.

use std::path::Path;
use std::process::Command;

use anyhow::Context;
use unhang_machine::{Examination, steps};

use super::consent::Consent;
use crate::output::tell;

/// The commands of ours that change nothing that they cannot put back.
const OURS: [&str; 2] = ["env clean", "miopen-cache repair"];

/// Carries out what is ours to carry out, and says what remains.
pub(super) fn fix(examination: &Examination, root: Option<&Path>, consent: Consent) -> anyhow::Result<()> {
    let steps = steps(examination);
    let commands: Vec<&str> = steps.iter().filter_map(|step| step.command.as_deref()).collect();
    let commands: Vec<&str> = commands.into_iter().flat_map(|command| command.split(" && ")).collect();
    let ours: Vec<(&str, &str)> = commands.into_iter().filter_map(|said| Some((said, arguments(said)?))).collect();
    if ours.is_empty() {
        tell("there is nothing here that unhang could fix by itself; the steps above are yours");
        return Ok(());
    }
    let program = std::env::current_exe().context("cannot find this program to start it again")?;
    for (said, arguments) in ours {
        if !consent.ask(&format!("Run `{said}`?"))? {
            tell(&format!("left alone: {said}"));
            continue;
        }
        // A described machine is a folder, which its owner may change.
        let needs_sudo = root.is_none() && said.starts_with("sudo ") && !rustix::process::geteuid().is_root();
        let mut child = if needs_sudo { Command::new("sudo") } else { Command::new(&program) };
        if needs_sudo {
            child.arg(&program);
        }
        child.args(arguments.split_whitespace());
        if let Some(root) = root {
            child.arg("--root").arg(root).arg("--yes");
        }
        let status = child.status().with_context(|| format!("cannot start `{said}`"))?;
        if !status.success() {
            tell(&format!("`{said}` did not succeed ({status}); what it printed says why"));
        }
    }
    tell("`unhang doctor` shows what is left");
    Ok(())
}

/// What is passed to this program, where a command is one of ours: `sudo /opt/venv/bin/unhang env clean --system`.
fn arguments(command: &str) -> Option<&str> {
    let start = OURS.iter().find_map(|ours| command.find(&format!("unhang {ours}")))?;
    command[start..].strip_prefix("unhang ")
}
