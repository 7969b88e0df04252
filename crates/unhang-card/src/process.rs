//! The card as one process sees it.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use serde_json::json;
use unhang_guard::input::read_plain;

use crate::card::{self, Card};
use crate::executor::Executor;
use crate::journal::{Counter, Journal};
use crate::kfd::abi::{EVENT_HARDWARE_EXCEPTION, EVENT_MEMORY, EventPayload};
use crate::kfd::events::Events;
use crate::kfd::interrupts::Interrupts;
use crate::kfd::memory::{AccessFault, Memory};
use crate::kfd::queues::Queues;
use crate::settings::{CardSettings, Hazards, settings};
use crate::{Errno, files};

/// The state that the driver would keep for a process.
pub(crate) struct Process {
    id: u32,
    /// The machine's cards.
    pub cards: Vec<Card>,
    /// Memory and page tables.
    pub memory: Memory,
    /// Events.
    pub events: Events,
    /// Interrupts from kernels.
    pub interrupts: Interrupts,
    /// Queues.
    pub queues: Queues,
    /// What happened.
    pub journal: Journal,
    /// The emulator, for each card.
    pub executors: Vec<Executor>,
    /// What hazards do.
    pub hazards: Hazards,
    halted: Vec<AtomicBool>,
}

static CURRENT: AtomicPtr<Process> = AtomicPtr::new(std::ptr::null_mut());

/// This process's card; `None` if none was asked for.
///
/// A forked child gets a card of its own the first time that it asks. Its copy of the parent's is never touched again:
/// locks may be held there by threads that the child does not have.
pub(crate) fn current() -> Option<&'static Process> {
    let settings = settings()?;
    let id = std::process::id();
    loop {
        let known = CURRENT.load(Ordering::Acquire);
        // SAFETY: what was stored is never freed.
        if let Some(process) = unsafe { known.as_ref() }
            && process.id == id
        {
            return Some(process);
        }
        let fresh = Box::into_raw(Box::new(Process::new(id, settings).ok()?));
        if CURRENT.compare_exchange(known, fresh, Ordering::AcqRel, Ordering::Acquire).is_err() {
            // SAFETY: another thread was first; nobody else has seen this one.
            drop(unsafe { Box::from_raw(fresh) });
        }
    }
}

impl Process {
    pub(crate) fn new(id: u32, settings: &CardSettings) -> Result<Process, Errno> {
        let cards = card::read(&settings.root);
        let memory = Memory::new(cards.iter().map(|card| card.memory).collect())?;
        Ok(Process {
            id,
            memory,
            events: Events::default(),
            interrupts: Interrupts::default(),
            queues: Queues::default(),
            journal: Journal::open(settings),
            executors: cards.iter().map(|card| Executor::new(card, settings.hazards)).collect(),
            hazards: settings.hazards,
            halted: cards.iter().map(|_| AtomicBool::new(false)).collect(),
            cards,
        })
    }

    /// Opens `/dev/kfd` or a render node: another descriptor of the store.
    pub(crate) fn open(&self, settings: &CardSettings, kind: files::NodeKind) -> Result<i32, Errno> {
        let node = match kind {
            files::NodeKind::Kfd => settings.root.join("dev/kfd"),
            files::NodeKind::Render(minor) => settings.root.join(format!("dev/dri/renderD{minor}")),
        };
        if let files::NodeKind::Render(minor) = kind
            && !self.cards.iter().any(|card| card.render_minor == u32::from(minor))
        {
            return Err(libc::ENOENT);
        }
        check_access(&node)?;
        // SAFETY: a duplicate of a descriptor that we own.
        let descriptor = unsafe { libc::syscall(libc::SYS_fcntl, self.memory.store(), libc::F_DUPFD_CLOEXEC, 0) };
        let descriptor = i32::try_from(descriptor).ok().filter(|it| *it >= 0).ok_or(libc::EMFILE)?;
        files::insert(descriptor, kind);
        if kind == files::NodeKind::Kfd {
            self.journal.count(Counter::Processes, 1);
            self.journal.write("open", json!({ "program": std::env::current_exe().ok() }));
        }
        Ok(descriptor)
    }

    /// The index of a card by the driver's id.
    pub(crate) fn card(&self, gpu_id: u32) -> Result<usize, Errno> {
        self.cards.iter().position(|card| card.gpu_id == gpu_id).ok_or(libc::EINVAL)
    }

    /// Whether a card has stopped for this process, after a fault.
    pub(crate) fn is_halted(&self, card: usize) -> bool {
        self.halted[card].load(Ordering::Acquire)
    }

    /// Reports a memory fault as the driver does: the card stops for this process, and the memory event is raised.
    pub(crate) fn memory_fault(&self, card: usize, fault: AccessFault) {
        self.halted[card].store(true, Ordering::Release);
        self.journal.count(Counter::Faults, 1);
        // The driver reports the page; the hardware says no more.
        let payload = EventPayload::memory(self.cards[card].gpu_id, fault.address & !0xfff, fault.is_read_only);
        self.events.raise_kind(EVENT_MEMORY, payload);
    }

    /// Reports a hang as the driver does after it has reset the card.
    pub(crate) fn reset(&self, card: usize) {
        self.halted[card].store(true, Ordering::Release);
        let gpu_id = self.cards[card].gpu_id;
        self.events.raise_kind(EVENT_HARDWARE_EXCEPTION, EventPayload::hardware_hang(gpu_id));
        self.events.raise_kind(EVENT_MEMORY, EventPayload::memory_hang(gpu_id));
    }
}

/// The device's file in a machine folder says whether it may be opened (`access=denied`).
fn check_access(node: &Path) -> Result<(), Errno> {
    match read_plain(node, card::LARGEST_FILE) {
        Ok(text) if String::from_utf8_lossy(&text).contains("access=denied") => Err(libc::EACCES),
        Ok(_) => Ok(()),
        Err(_) => Err(libc::ENOENT),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_file_is_a_plain_file_or_is_not_there() {
        let folder = tempfile::tempdir().unwrap();
        let node = folder.path().join("kfd");
        assert_eq!(check_access(&node), Err(libc::ENOENT));
        std::fs::write(&node, "access=denied").unwrap();
        assert_eq!(check_access(&node), Err(libc::EACCES));
        std::fs::write(&node, "").unwrap();
        assert_eq!(check_access(&node), Ok(()));
        std::fs::remove_file(&node).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(&node).status().unwrap().success());
        assert_eq!(check_access(&node), Err(libc::ENOENT), "nobody waits for who writes to a pipe");
    }
}
