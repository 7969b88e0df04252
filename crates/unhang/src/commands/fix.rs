//! `unhang doctor --fix`: carries out our own steps, and asks before each.

use std::path::Path;
use std::process::Command;

use anyhow::Context;
use unhang_machine::{Examination, steps};

use super::consent::Consent;
use crate::output::tell;

/// Our commands that change nothing that they cannot restore.
const OURS: [&str; 2] = ["env clean", "miopen-cache repair"];

/// Carries out our own steps, and says what remains.
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

/// The arguments for this program, if a command is one of ours: `sudo /opt/venv/bin/unhang env clean --system`, or
/// `sudo '/opt/my venv/bin/unhang' env clean --system`.
fn arguments(command: &str) -> Option<&str> {
    let (program, arguments) = OURS.iter().find_map(|ours| Some(command.split_at(command.find(ours)?)))?;
    program.trim_end_matches([' ', '\'']).ends_with("unhang").then_some(arguments)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_steps_are_recognised_wherever_the_program_is() {
        for (command, expected) in [
            ("unhang env clean --user", Some("env clean --user")),
            ("sudo /opt/venv/bin/unhang env clean --system", Some("env clean --system")),
            ("sudo '/opt/my venv/bin/unhang' env clean --system", Some("env clean --system")),
            ("unhang miopen-cache repair --narrowed", Some("miopen-cache repair --narrowed")),
            ("unhang run -- python train.py", None),
            ("other env clean", None),
        ] {
            assert_eq!(arguments(command), expected, "{command}");
        }
    }
}
