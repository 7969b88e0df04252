//! What the shield did, if somebody wants to know.

use std::fmt;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;

/// Appends a line to the file that `UNHANG_SHIELD_LOG` names; `stderr` means standard error. A log that cannot be
/// written is no reason to trouble the process.
pub(crate) fn line(text: fmt::Arguments<'_>) {
    let Some(path) = std::env::var_os("UNHANG_SHIELD_LOG").filter(|path| !path.is_empty()) else { return };
    let line = format!("unhang-shield[{}]: {text}\n", std::process::id());
    if path == "stderr" {
        let _ = std::io::stderr().write_all(line.as_bytes());
    } else if let Ok(mut file) = OpenOptions::new().append(true).create(true).open(Path::new(&path)) {
        // One write of one line: lines of several threads and processes do not mix.
        let _ = file.write_all(line.as_bytes());
    }
}
