//! What happened on the card: counters that outlive the process, a journal of lines, and what is said to the user.
//!
//! `unhang card run` makes the run's folder with a file of counters and an empty journal, waits for the program, and
//! reads both. Counters are shared memory, so nothing is lost when a program aborts, as ROCr does on a fault.

use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use serde_json::{Value, json};

use crate::settings::CardSettings;

/// What is counted, in the order of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Counter {
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

/// Where a process writes what happened.
#[derive(Debug)]
pub struct Journal {
    counters: &'static [AtomicU64; COUNTERS],
    file: Option<File>,
    detailed: bool,
    kernels: Mutex<HashSet<String>>,
    said: Mutex<HashSet<String>>,
}

impl Journal {
    /// Opens the journal of the run; one that goes nowhere where there is none.
    pub fn open(settings: &CardSettings) -> Journal {
        let open = |name: &str| {
            let path = settings.run.as_deref()?.join(name);
            OpenOptions::new().read(true).append(true).custom_flags(libc::O_CLOEXEC).open(path).ok()
        };
        let counters = settings.run.as_deref().and_then(|run| map_counters(&run.join("counters")));
        Journal {
            counters: counters.unwrap_or_else(|| Box::leak(Box::new([const { AtomicU64::new(0) }; COUNTERS]))),
            file: open("journal"),
            detailed: settings.detailed,
            kernels: Mutex::default(),
            said: Mutex::default(),
        }
    }

    /// Adds to a counter.
    pub fn count(&self, counter: Counter, amount: u64) {
        self.counters[counter as usize].fetch_add(amount, Ordering::Relaxed);
    }

    /// Writes a line.
    pub fn write(&self, event: &str, mut fields: Value) {
        fields["event"] = event.into();
        fields["process"] = std::process::id().into();
        if let Some(mut file) = self.file.as_ref() {
            // One write of one line: other processes append to the same file.
            let _ = file.write_all(format!("{fields}\n").as_bytes());
        }
    }

    /// Writes a line that only a detailed journal has.
    pub fn detail(&self, event: &str, fields: impl FnOnce() -> Value) {
        if self.detailed {
            self.write(event, fields());
        }
    }

    /// Notes that a kernel ran, the first time in this process.
    pub fn kernel(&self, name: &str) {
        let mut kernels = self.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        if !kernels.contains(name) {
            kernels.insert(name.to_owned());
            self.write("kernel", json!({ "kernel": name }));
        }
    }

    /// Says something to the user, once.
    pub fn say_once(&self, message: &str) {
        if self.said.lock().unwrap_or_else(PoisonError::into_inner).insert(message.to_owned()) {
            say(message);
            self.write("message", json!({ "message": message }));
        }
    }
}

/// Says something on standard error, by one write: the program's own buffers are not ours.
pub fn say(message: &str) {
    let line = format!("unhang card: {message}\n");
    // SAFETY: the buffer is alive and as long as is said.
    unsafe { libc::syscall(libc::SYS_write, 2, line.as_ptr(), line.len()) };
}

fn map_counters(path: &Path) -> Option<&'static [AtomicU64; COUNTERS]> {
    let file = OpenOptions::new().read(true).write(true).open(path).ok()?;
    let size = size_of::<[AtomicU64; COUNTERS]>();
    if file.metadata().ok()?.len() < size as u64 {
        return None;
    }
    // SAFETY: a new shared mapping of a file that is long enough; it is never unmapped, so a reference may live for
    // ever, and page alignment is enough for the atomics. Other processes only add to the same atomics.
    unsafe {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let map = libc::mmap(std::ptr::null_mut(), size, protection, libc::MAP_SHARED, file.as_raw_fd(), 0);
        (map != libc::MAP_FAILED).then(|| &*map.cast())
    }
}
