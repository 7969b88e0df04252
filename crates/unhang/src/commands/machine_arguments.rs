//! The two arguments that point a command at a machine described by a folder.

use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use clap::Args;
use unhang_guard::input::read_named;
use unhang_machine::{Environment, LARGE, System};

use super::text::counted;
use crate::output::tell;

/// Which machine to look at.
#[derive(Args, Default)]
pub(super) struct MachineArguments {
    /// Look at the machine that this folder describes (DIR/sys, DIR/etc, DIR/opt, …) instead of this one;
    /// `UNHANG_ROOT=DIR` does the same.
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
    /// Take the variables from NAME=VALUE lines in this file instead of the process's environment.
    #[arg(long, value_name = "FILE")]
    env_file: Option<PathBuf>,
}

impl MachineArguments {
    /// The folder or file that describes the machine, if it is not simply this one.
    pub(super) fn description(&self) -> Option<PathBuf> {
        self.described_root().or_else(|| self.env_file.clone())
    }

    /// The folder that describes the machine.
    pub(super) fn described_root(&self) -> Option<PathBuf> {
        let named = self.root.clone().or_else(|| std::env::var_os("UNHANG_ROOT").map(PathBuf::from));
        named.filter(|root| !root.as_os_str().is_empty())
    }

    /// The machine.
    pub(super) fn system(&self) -> anyhow::Result<System> {
        let given = self.env_file.as_deref().map(read_environment).transpose()?;
        let Some(root) = self.described_root() else {
            return Ok(match given {
                Some(environment) => System::new("/".as_ref(), environment),
                None => System::new("/".as_ref(), Environment::of_this_process()),
            });
        };
        if !root.is_dir() {
            let is_there = root.exists();
            let what = if is_there { "is a file, not a folder" } else { "does not exist" };
            return Err(anyhow!("hint: name a folder such as the one that `tar xf machine.tar.gz` makes")
                .context(format!("no machine can be read from {}, which {what}", root.display())));
        }
        Ok(match given {
            Some(environment) => System::new(&root, environment),
            None => System::folder(&root, Environment::of_this_process()),
        })
    }
}

fn read_environment(path: &Path) -> anyhow::Result<Environment> {
    let content =
        read_named(path, LARGE as u64).with_context(|| format!("cannot read the variables from {}", path.display()))?;
    if content.contains(&0) {
        bail!("{} is not a file of variables: expected lines such as NAME=VALUE, as `env` prints them", path.display());
    }
    let content = String::from_utf8_lossy(&content);
    let environment = Environment::parse(&content);
    let is_variable = |line: &str| Environment::parse(line).iter().next().is_some();
    let is_meant = |line: &str| !line.trim().is_empty() && !line.trim_start().starts_with('#');
    let others = content.lines().enumerate().filter(|(_, line)| is_meant(line) && !is_variable(line));
    let others: Vec<usize> = others.map(|(index, _)| index + 1).collect();
    let Some(first) = others.first() else { return Ok(environment) };
    if environment.iter().next().is_none() {
        return Err(anyhow!("line {first} is not NAME=VALUE")
            .context(format!("cannot read the variables from {}", path.display())));
    }
    // `env` prints such lines for values that hold a newline, so they are no error.
    let lines = counted(others.len(), "line");
    tell(&format!("note: left out {lines} of {} without NAME=VALUE, first line {first}", path.display()));
    Ok(environment)
}
