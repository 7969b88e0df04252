//! Which Python is meant where none was named.

use std::path::{Path, PathBuf};

/// Ends with 0 where torch and unhang can be found, with 3 where not; imports neither.
pub const HAS_TORCH_AND_UNHANG: &str =
    "import importlib.util as u; raise SystemExit(0 if u.find_spec('torch') and u.find_spec('unhang') else 3)";

/// The Python beside this program, else that of the active environment, else the one on the path.
pub fn find_python() -> PathBuf {
    let beside =
        std::env::args_os().next().map(PathBuf::from).and_then(|program| Some(program.parent()?.join("python")));
    let active = std::env::var_os("VIRTUAL_ENV").map(|folder| PathBuf::from(folder).join("bin/python"));
    beside.into_iter().chain(active).find(|path| path.is_file()).unwrap_or_else(|| PathBuf::from("python3"))
}

/// `--python` takes an interpreter or the folder of an environment.
pub fn interpreter(given: &Path) -> PathBuf {
    if given.is_dir() { given.join("bin/python") } else { given.to_owned() }
}
