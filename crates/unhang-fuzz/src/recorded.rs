//! Names of instructions that a source agreed with the emulator about, kept in files from which the table of sources in the
//! documentation is made. Tests hold the files against what they see; `UPDATE_DOCS=1` writes them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Where the names of a source are kept.
fn path(source: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("recorded").join(source).with_extension("txt")
}

/// The names that are kept of a source.
pub fn read(source: &str) -> BTreeSet<String> {
    let text = std::fs::read_to_string(path(source)).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// Adds names to those that are kept if that is asked for, and returns the ones that are not.
pub fn missing<'n>(source: &str, names: &BTreeSet<&'n str>) -> Vec<&'n str> {
    let mut kept = read(source);
    if std::env::var_os("UPDATE_DOCS").is_some() && names.iter().any(|&name| !kept.contains(name)) {
        kept.extend(names.iter().map(|name| name.to_string()));
        let text: String = kept.iter().map(|name| format!("{name}\n")).collect();
        let new = path(source).with_extension("new");
        let written = std::fs::create_dir_all(new.parent().unwrap_or(Path::new(".")))
            .and_then(|()| std::fs::write(&new, text))
            .and_then(|()| std::fs::rename(&new, path(source)));
        if let Err(error) = written {
            println!("{}: not written: {error}", path(source).display());
        }
    }
    names.iter().copied().filter(|&name| !kept.contains(name)).collect()
}
