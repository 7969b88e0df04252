//! What the shield did, if somebody wants to know.

use std::collections::HashSet;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use unhang_isa::Chip;

use crate::left::Left;
use crate::switches::what_avoids;

/// Appends a line to the file that `UNHANG_SHIELD_LOG` names; `stderr` means standard error. A log that cannot be
/// written does not disturb the process.
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

/// Tells `unhang run` about a repaired object, and how many of its functions were repaired now (none if it came from
/// the cache): one line in the run's folder, for the run's closing line.
pub(crate) fn count(functions: usize) {
    tell_run("repaired", &format!("{functions}\n"));
}

/// Appends to this process's file of that kind in the folder of `unhang run`, if this is such a run.
fn tell_run(kind: &str, lines: &str) {
    let Some(folder) = std::env::var_os("UNHANG_RUN_FOLDER").filter(|folder| !folder.is_empty()) else { return };
    let path = Path::new(&folder).join(format!("{kind}-{}", std::process::id()));
    if let Ok(mut file) = open(&path) {
        let _ = file.write_all(lines.as_bytes());
    }
}

/// Without following a link that others may have put there, and without waiting for a pipe's reader.
fn open(path: &Path) -> std::io::Result<File> {
    let flags = (unhang_guard::folder::NOFOLLOW_NONBLOCK) as i32;
    OpenOptions::new().append(true).create(true).mode(0o600).custom_flags(flags).open(path)
}

/// Printed names, so that each is printed once in a process.
static TOLD: Mutex<Option<HashSet<String>>> = Mutex::new(None);

/// How many functions of a process are reported to `unhang run`; the rest is in the log, since wheels may hold
/// thousands.
const MOST_TOLD: usize = 200;

/// Reports the functions that stay unsafe: each with its reason in the log and to `unhang run`. The first of an object
/// is also reported on standard error, for people who asked for no log.
pub(crate) fn name_what_is_left(left: &[Left], chip: Chip) {
    let mut told = TOLD.lock().unwrap_or_else(PoisonError::into_inner);
    let told = told.get_or_insert_default();
    let room = MOST_TOLD.saturating_sub(told.len());
    let new: Vec<_> = left.iter().filter(|it| told.insert(it.function.clone())).collect();
    for Left { function, reason } in &new {
        line(format_args!("  {function} stays unsafe: {reason}; {}", what_avoids(function)));
    }
    let Some(Left { function, reason }) = new.first() else { return };
    let shown = |name: &str, length: usize| name.chars().take(length).collect::<String>();
    let words = |it: &&Left| format!("{}\t{}\t{}\n", shown(&it.function, 200), it.reason, what_avoids(&it.function));
    tell_run("unsafe", &new.iter().take(room).map(words).collect::<String>());
    let name = shown(function, 80);
    let others = match new.len() - 1 {
        0 => String::new(),
        count => format!(", and {count} others (UNHANG_SHIELD_LOG=FILE lists them)"),
    };
    let text = format!(
        "unhang: a kernel that was loaded stays unsafe on this {chip}: {name}: {reason}{others}. It matters only if it is \
         launched; {} (docs/internals/repair.md).\n",
        what_avoids(function)
    );
    let _ = std::io::stderr().write_all(text.as_bytes());
}
