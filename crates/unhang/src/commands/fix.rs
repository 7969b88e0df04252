//! What `unhang doctor --fix` does: the remedies that are ours to carry out, each asked about first.

use std::path::Path;
use std::process::Command;

use anyhow::Context;
use unhang_machine::{Examination, Finding};

use super::consent::Consent;
use crate::output::tell;

/// The commands of ours that change nothing that they cannot put back.
const OURS: [&str; 2] = ["unhang env install", "unhang miopen-cache repair"];

/// Carries out what is ours to carry out, and says what remains.
pub fn fix(examination: &Examination, root: Option<&Path>, consent: Consent) -> anyhow::Result<()> {
    let mut commands: Vec<Vec<&str>> = Vec::new();
    for finding in &examination.findings {
        if let Some(command) = own_remedy(finding)
            && !commands.contains(&command)
        {
            commands.push(command);
        }
    }
    if commands.is_empty() {
        tell("there is nothing here that unhang could fix by itself; the steps above are yours");
        return Ok(());
    }
    let program = std::env::current_exe().context("cannot find this program to start it again")?;
    for command in commands {
        let said = command.join(" ");
        if !consent.ask(&format!("Run `{said}`?"))? {
            tell(&format!("left alone: {said}"));
            continue;
        }
        let mut child = Command::new(&program);
        child.args(&command[1..]);
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

/// The first command of ours in a finding's remedy.
fn own_remedy(finding: &Finding) -> Option<Vec<&str>> {
    let quoted = finding.fix.as_deref()?.split('`').skip(1).step_by(2);
    let ours = quoted.filter(|command| OURS.iter().any(|known| command.starts_with(known)));
    let mut words: Vec<&str> = ours.into_iter().next()?.split_whitespace().collect();
    if words[1] == "env" {
        // Where it can write: for everybody, or in the home folder.
        words.retain(|word| !matches!(*word, "--user" | "--system"));
        words.push(if rustix::process::geteuid().is_root() { "--system" } else { "--user" });
    }
    Some(words)
}
