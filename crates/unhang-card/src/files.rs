//! Which file descriptors are the card's.
//!
//! A table without locks, indexed by descriptor: `close` and `dup` are called from signal handlers and between `fork` and
//! `exec`. An entry remembers the process that opened it, because the driver refuses a descriptor that a child inherited.

use std::sync::Once;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Higher descriptors are not tracked; the default limit of processes is far below.
const MOST: usize = 1 << 16;

static TABLE: [AtomicU64; MOST] = [const { AtomicU64::new(0) }; MOST];

/// What a descriptor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeKind {
    /// `/dev/kfd`.
    Kfd,
    /// A render node, by its minor number.
    Render(u16),
}

/// A descriptor of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Descriptor {
    /// What it is.
    pub kind: NodeKind,
    /// The process that opened it.
    pub process: u32,
}

/// The process whose memory this is. A child of `vfork` uses its parent's memory with separate descriptors: what it
/// closes stays open in the parent.
static OWNER: AtomicU32 = AtomicU32::new(0);

extern "C" fn remember_owner() {
    OWNER.store(std::process::id(), Ordering::Relaxed);
}

fn follow_forks() {
    static FOLLOWED: Once = Once::new();
    FOLLOWED.call_once(|| {
        remember_owner();
        // SAFETY: the handler stores a number and nothing else. `vfork` and `posix_spawn` do not call it.
        unsafe { libc::pthread_atfork(None, None, Some(remember_owner)) };
    });
}

fn is_owner() -> bool {
    OWNER.load(Ordering::Relaxed) == std::process::id()
}

fn slot(descriptor: i32) -> Option<&'static AtomicU64> {
    TABLE.get(usize::try_from(descriptor).ok()?)
}

/// Remembers a descriptor.
pub(crate) fn insert(descriptor: i32, kind: NodeKind) {
    let kind = match kind {
        NodeKind::Kfd => 1,
        NodeKind::Render(minor) => 2 | u64::from(minor) << 8,
    };
    follow_forks();
    if let Some(slot) = slot(descriptor) {
        slot.store(kind | u64::from(std::process::id()) << 32, Ordering::Release);
    }
}

/// Forgets a descriptor.
pub(crate) fn remove(descriptor: i32) {
    if let Some(slot) = slot(descriptor) {
        // Most descriptors are not ours: a read is cheaper than a write.
        if slot.load(Ordering::Relaxed) != 0 && is_owner() {
            slot.store(0, Ordering::Release);
        }
    }
}

/// Forgets the descriptors from the first number to the last.
pub(crate) fn remove_range(first: u32, last: u32) {
    for descriptor in first.min(MOST as u32)..=last.min(MOST as u32 - 1) {
        remove(descriptor as i32);
    }
}

/// Gives a duplicate the meaning of its original.
pub(crate) fn duplicate(from: i32, to: i32) {
    let entry = slot(from).map_or(0, |slot| slot.load(Ordering::Acquire));
    if let Some(slot) = slot(to)
        && slot.load(Ordering::Relaxed) != entry
        && is_owner()
    {
        slot.store(entry, Ordering::Release);
    }
}

/// What a descriptor refers to, if it is ours.
pub(crate) fn get(descriptor: i32) -> Option<Descriptor> {
    let entry = slot(descriptor)?.load(Ordering::Acquire);
    let kind = match entry & 0xff {
        1 => NodeKind::Kfd,
        2 => NodeKind::Render((entry >> 8) as u16),
        _ => return None,
    };
    Some(Descriptor { kind, process: (entry >> 32) as u32 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duplicate_means_what_its_original_means_until_it_is_closed() {
        insert(60_000, NodeKind::Render(129));
        duplicate(60_000, 60_001);
        remove(60_000);
        assert_eq!(get(60_000), None);
        assert_eq!(get(60_001), Some(Descriptor { kind: NodeKind::Render(129), process: std::process::id() }));
        duplicate(60_000, 60_001);
        assert_eq!(get(60_001), None);
        for descriptor in [60_010, 60_011, 60_012] {
            insert(descriptor, NodeKind::Kfd);
        }
        remove_range(60_011, u32::MAX);
        assert_eq!(
            (get(60_010).is_some(), get(60_011), get(60_012)),
            (true, None, None),
            "another file may have them now"
        );
        insert(-1, NodeKind::Kfd);
        insert(i32::MAX, NodeKind::Kfd);
        assert_eq!((get(-1), get(i32::MAX)), (None, None));
    }
}
