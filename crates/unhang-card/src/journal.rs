//! What happened on the card: counters that outlive the process, a journal of lines, and messages for the user.
//!
//! `unhang card run` makes the run's folder with a file of counters and an empty journal, waits for the program, and
//! reads both. Counters are shared memory, so nothing is lost when a program aborts, as ROCr does on a fault.

use std::collections::HashSet;
use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use serde_json::{Value, json};
use unhang_guard::PrivateFolder;

use crate::settings::CardSettings;

/// What is counted, in the order of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Counter {
    /// Processes that opened the card.
    Processes,
    /// Kernels that were started.
    Dispatches,
    /// Instructions that waves executed.
    Instructions,
    /// Dispatches that a hazard stopped.
    Hazards,
    /// Dispatches and copies that faulted for another reason.
    Faults,
    /// Copies and fills by SDMA.
    Transfers,
    /// Bytes that they moved.
    Bytes,
}

const COUNTERS: usize = 8;

/// The journal and counters of a process.
#[derive(Debug)]
pub(crate) struct Journal {
    counters: &'static [AtomicU64; COUNTERS],
    file: Option<File>,
    detailed: bool,
    kernels: Mutex<HashSet<String>>,
    said: Mutex<HashSet<String>>,
}

impl Journal {
    /// Opens the journal of the run; without one, lines are dropped.
    pub(crate) fn open(settings: &CardSettings) -> Journal {
        // The variables may have outlived the run. A folder that others can write is not the run's, and links and pipes
        // are not its files.
        let run = settings.run.as_deref().and_then(|run| PrivateFolder::open_existing(run).ok());
        let open = |name: &str| run.as_ref()?.open_existing_file(name).ok();
        let counters = open("counters").and_then(|file| map_counters(&file));
        Journal {
            counters: counters.unwrap_or_else(|| Box::leak(Box::new([const { AtomicU64::new(0) }; COUNTERS]))),
            file: open("journal"),
            detailed: settings.detailed,
            kernels: Mutex::default(),
            said: Mutex::default(),
        }
    }

    /// Adds to a counter.
    pub(crate) fn count(&self, counter: Counter, amount: u64) {
        self.counters[counter as usize].fetch_add(amount, Ordering::Relaxed);
    }

    /// Writes a line.
    pub(crate) fn write(&self, event: &str, mut fields: Value) {
        fields["event"] = event.into();
        fields["process"] = std::process::id().into();
        if let Some(mut file) = self.file.as_ref() {
            // One write of one line: other processes append to the same file.
            let _ = file.write_all(format!("{fields}\n").as_bytes());
        }
    }

    /// Writes a line for the detailed journal only.
    pub(crate) fn detail(&self, event: &str, fields: impl FnOnce() -> Value) {
        if self.detailed {
            self.write(event, fields());
        }
    }

    /// Notes that a kernel ran, the first time in this process.
    pub(crate) fn kernel(&self, name: &str) {
        let mut kernels = self.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        if !kernels.contains(name) {
            kernels.insert(name.to_owned());
            self.write("kernel", json!({ "kernel": name }));
        }
    }

    /// Prints a message for the user, once.
    pub(crate) fn say_once(&self, message: &str) {
        if self.said.lock().unwrap_or_else(PoisonError::into_inner).insert(message.to_owned()) {
            say(message);
            self.write("message", json!({ "message": message }));
        }
    }
}

/// Prints on standard error with one write: the program's own buffers are not ours.
pub(crate) fn say(message: &str) {
    let line = format!("unhang card: {message}\n");
    // SAFETY: the buffer is alive and as long as is said.
    unsafe { libc::syscall(libc::SYS_write, 2, line.as_ptr(), line.len()) };
}

fn map_counters(file: &File) -> Option<&'static [AtomicU64; COUNTERS]> {
    let size = size_of::<[AtomicU64; COUNTERS]>();
    if file.metadata().ok()?.len() < size as u64 {
        return None;
    }
    // SAFETY: a new shared mapping of a file that is long enough. It is never unmapped, so a reference may live for
    // ever, and page alignment is enough for the atomics. Other processes only add to the same atomics.
    unsafe {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let map = libc::mmap(std::ptr::null_mut(), size, protection, libc::MAP_SHARED, file.as_raw_fd(), 0);
        (map != libc::MAP_FAILED).then(|| &*map.cast())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::Path;

    use super::*;
    use crate::settings::Hazards;

    fn journal(run: &Path) -> Journal {
        Journal::open(&CardSettings {
            root: "/".into(),
            hazards: Hazards::Fault,
            run: Some(run.to_owned()),
            detailed: true,
            races: false,
        })
    }

    fn use_it(journal: &Journal) {
        journal.count(Counter::Processes, 1);
        journal.write("open", json!({}));
    }

    #[test]
    fn the_journal_is_the_runs_own_and_no_link_is_followed() {
        let place = tempfile::tempdir().unwrap();
        let run = place.path().join("run");
        std::fs::create_dir(&run).unwrap();
        std::fs::write(run.join("counters"), [0; 64]).unwrap();
        std::fs::write(run.join("journal"), "").unwrap();
        for name in ["counters", "journal"] {
            std::fs::set_permissions(run.join(name), std::fs::Permissions::from_mode(0o600)).unwrap();
        }
        use_it(&journal(&run));
        assert_eq!(std::fs::read(run.join("counters")).unwrap()[0], 1);
        assert!(std::fs::read_to_string(run.join("journal")).unwrap().contains("\"event\":\"open\""));

        // Somebody recreated the run's folder with links to files of the user's.
        let victim = place.path().join("victim");
        std::fs::write(&victim, [b'v'; 64]).unwrap();
        std::fs::set_permissions(&victim, std::fs::Permissions::from_mode(0o600)).unwrap();
        let theirs = place.path().join("theirs");
        std::fs::create_dir(&theirs).unwrap();
        symlink(&victim, theirs.join("counters")).unwrap();
        symlink(&victim, theirs.join("journal")).unwrap();
        use_it(&journal(&theirs));
        assert_eq!(std::fs::read(&victim).unwrap(), [b'v'; 64]);
        // It also has a pipe that nobody reads.
        std::fs::remove_file(theirs.join("journal")).unwrap();
        let status = std::process::Command::new("mkfifo").arg(theirs.join("journal")).status().unwrap();
        assert!(status.success());
        use_it(&journal(&theirs));
    }
}
