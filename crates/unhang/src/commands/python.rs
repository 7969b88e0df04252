//! Which Python to use if none is named.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::anyhow;
use unhang_machine::{Options, System, packages_of};

use super::run::environment::find_on_path;
use super::run::shield::packages;
use super::wheel::own_wheel;

/// Exits with 0 if torch and unhang can be found, otherwise with 3; imports neither.
pub(super) const HAS_TORCH_AND_UNHANG: &str =
    "import importlib.util as u; raise SystemExit(0 if u.find_spec('torch') and u.find_spec('unhang') else 3)";

/// The Python next to this program, or else that of the active environment, or else the one in PATH.
pub(super) fn find_python() -> PathBuf {
    // A bare name was found in PATH. As a path itself, it would refer to the working folder.
    let program = std::env::args_os().next().and_then(|name| find_on_path(Path::new(&name)));
    let beside = program.and_then(|program| Some(program.parent()?.join("python")));
    let active = std::env::var_os("VIRTUAL_ENV").map(|folder| PathBuf::from(folder).join("bin/python"));
    beside.into_iter().chain(active).find(|path| path.is_file()).unwrap_or_else(|| PathBuf::from("python3"))
}

/// The environment in which this program is installed with its package. It matters if the program is called by an
/// absolute path, and under `sudo`, which leaves no environment active.
pub(super) fn home_of_program() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?;
    let folder = program.parent()?;
    let prefix = folder.parent()?;
    packages(folder).iter().any(|package| package.is_dir()).then(|| prefix.to_owned())
}

/// What to examine on a machine: what `--python` names, or else, if no environment is active, the program's own.
/// Includes the path by which `sudo` finds the program.
pub(super) fn options(system: &System, pythons: Vec<PathBuf>) -> Options {
    let is_active = ["VIRTUAL_ENV", "CONDA_PREFIX"].iter().any(|name| system.variable(name).is_some());
    let mut options = Options { pythons, ..Options::default() };
    if system.is_folder() {
        return options;
    }
    if !is_active {
        options.pythons.extend(home_of_program());
    }
    options.program = std::env::current_exe().ok();
    options.wheel = own_wheel();
    options
}

/// `--python` takes an interpreter, by its path or its bare name, or the folder of an environment.
pub(super) fn interpreter(given: &Path) -> PathBuf {
    if given.is_dir() { given.join("bin/python") } else { find_on_path(given).unwrap_or_else(|| given.to_owned()) }
}

/// What `--python` names; a bare name is looked up in PATH. A path that is not a Python is rejected, so that nothing
/// requested is silently left out.
pub(super) fn named(system: &System, pythons: &[PathBuf]) -> anyhow::Result<Vec<PathBuf>> {
    // Nobody knows the PATH of a described machine.
    let looked_up = |given: &PathBuf| match given.is_dir() || system.is_folder() {
        true => given.clone(),
        false => interpreter(given),
    };
    let pythons: Vec<PathBuf> = pythons.iter().map(looked_up).collect();
    for path in &pythons {
        let whose = if system.is_folder() { " on the described machine" } else { "" };
        // Wrappers have their packages elsewhere, so this can only check that they are executable.
        let is_program =
            || std::fs::metadata(path).is_ok_and(|it| it.is_file() && it.permissions().mode() & 0o111 != 0);
        let is_missing = match system.is_folder() {
            true => packages_of(system, path).is_empty(),
            // A device in /dev seems to have packages too, seen from its folder: the system's.
            false => !is_program() && (!path.is_dir() || packages_of(system, path).is_empty()),
        };
        if is_missing {
            let hint =
                "hint: name an interpreter, or the folder of an environment that has lib/python3.*/site-packages";
            return Err(anyhow!(hint).context(format!("there is no Python at {}{whose}", path.display())));
        }
    }
    if system.is_folder() {
        return Ok(pythons);
    }
    // Links are followed from the machine's root, where a relative path names something else.
    Ok(pythons.into_iter().map(|path| std::path::absolute(&path).unwrap_or(path)).collect())
}
