//! Names of instructions on which a source agreed with the emulator, kept in files. The documentation's table of
//! sources is made from these files. Tests compare the files with what they see; `UPDATE_DOCS=1` writes them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// The file for the names of a source.
fn path(source: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("recorded").join(source).with_extension("txt")
}

/// The recorded names of a source.
pub fn read(source: &str) -> BTreeSet<String> {
    let text = std::fs::read_to_string(path(source)).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// Returns the names that are not recorded. With `UPDATE_DOCS=1` it records them first.
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
