//! What the shield did, if somebody wants to know.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Appends a line to the file that `UNHANG_SHIELD_LOG` names; `stderr` means standard error. A log that cannot be
/// written is no reason to trouble the process.
pub(crate) fn line(text: fmt::Arguments<'_>) {
    let Some(path) = std::env::var_os("UNHANG_SHIELD_LOG").filter(|path| !path.is_empty()) else { return };
    // Names of functions come from objects that anybody may have made.
    let text = unhang_guard::text::printable_line(&text.to_string());
    let line = format!("unhang-shield[{}]: {text}\n", std::process::id());
    if path == "stderr" {
        let _ = std::io::stderr().write_all(line.as_bytes());
    } else if let Ok(mut file) = open(Path::new(&path)) {
        // One write of one line: lines of several threads and processes do not mix.
        let _ = file.write_all(line.as_bytes());
    }
}

/// Without following a link that others put there, and without waiting for the reader of a pipe.
fn open(path: &Path) -> std::io::Result<File> {
    let flags = (unhang_guard::folder::NOFOLLOW_NONBLOCK) as i32;
    OpenOptions::new().append(true).create(true).mode(0o600).custom_flags(flags).open(path)
}
