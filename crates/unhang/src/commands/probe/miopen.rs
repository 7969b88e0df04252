//! MIOpen without torch: what is installed, determined in a child, and the children that drive it.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, anyhow};
use unhang_engine::Engine;
use unhang_miopen_api::child::Miopen;
use unhang_probe::{Child, Ended, Launch, answer, supervise, trial};

use super::children::{ChildTask, environment, reason, socket};
use crate::output::printable;

/// The prefix of the answer's line: libraries print other lines.
const ANSWER: &str = "unhang-miopen ";

/// The installed MIOpen, with its device.
pub(super) struct Library {
    file: Option<PathBuf>,
    /// Its version and the runtime's, as in the fingerprint.
    pub software: String,
    /// The device, as the runtime names it.
    pub device: String,
}

impl Library {
    /// Asks in a child with a deadline, because the library and the runtime start and ask the GPU.
    pub(super) fn describe(file: Option<&Path>, deadline: Duration) -> anyhow::Result<Library> {
        let command = command(ChildTask::Describe, file)?;
        let outcome = supervise(&Child { command, environment: Vec::new(), deadline })?;
        let line = outcome.answers().rev().find_map(|line| line.strip_prefix(ANSWER));
        let hint = "hint: name the library with --miopen FILE; see `unhang doctor` for the GPU";
        let Some((software, device)) = line.and_then(|line| line.split_once(" | ")) else {
            let what = match outcome.ended {
                Ended::TimedOut | Ended::Unkillable => {
                    format!("it did not answer within {} s (--deadline-start)", deadline.as_secs())
                }
                _ => reason(&outcome),
            };
            return Err(anyhow!(hint).context(what).context("MIOpen cannot be tried here"));
        };
        if device.is_empty() {
            let what = format!("{} is installed, but its runtime sees no device", printable(software));
            return Err(anyhow!(hint).context(what).context("MIOpen cannot be tried here"));
        }
        Ok(Library { file: file.map(Path::to_owned), software: printable(software), device: printable(device) })
    }

    /// The child for a variant.
    pub(super) fn launch(&self, variant: &str) -> anyhow::Result<Launch> {
        Ok(Launch { command: command(ChildTask::Serve, self.file.as_deref())?, environment: environment(variant) })
    }
}

fn command(task: ChildTask, file: Option<&Path>) -> anyhow::Result<Vec<String>> {
    let program = std::env::current_exe().context("cannot find this program to start it as a child")?;
    let mut command = vec![program.display().to_string(), "probe".into(), "--miopen-child".into(), task.name().into()];
    if let Some(file) = file {
        command.extend(["--miopen".into(), file.display().to_string()]);
    }
    Ok(command)
}

/// Plays the child's part.
pub(super) fn child(task: ChildTask, file: Option<&Path>, judge: &dyn Engine) -> anyhow::Result<ExitCode> {
    let file = file.map(|file| file.to_str().context("the library's path is not UTF-8")).transpose()?;
    let miopen = Miopen::load(file)?;
    match task {
        ChildTask::Describe => {
            let description = miopen.describe()?;
            let device = description.devices.first().map_or("", String::as_str);
            crate::commands::text::print_text(&answer::line(&format!(
                "{ANSWER}{} | {device}\n",
                description.software()
            )))?;
        }
        ChildTask::Serve => {
            // This ends when the prober goes away.
            let _ = trial::serve(socket()?, miopen, judge);
        }
    }
    Ok(ExitCode::SUCCESS)
}
