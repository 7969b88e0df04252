//! Makes our locks safe to take without the interpreter's lock: a fork waits until none of them is held.
//!
//! A forked child has one thread, the one that forked. A lock that another thread held at that moment would never be
//! released in the child. Python's own fork holds the interpreter's lock, so locks that are only taken under it need
//! nothing. Calls from torch arrive without it.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Once, PoisonError, RwLock, RwLockWriteGuard};

static FORK: RwLock<()> = RwLock::new(());
static FORKED: AtomicBool = AtomicBool::new(false);

thread_local! {
    static HELD: RefCell<Option<RwLockWriteGuard<'static, ()>>> = const { RefCell::new(None) };
}

/// Runs a short section that takes locks, while no thread forks. The section takes no other lock of this kind. It
/// neither waits for the interpreter nor computes.
pub(crate) fn undisturbed<Found>(section: impl FnOnce() -> Found) -> Found {
    let _no_fork = FORK.read().unwrap_or_else(PoisonError::into_inner);
    section()
}

/// Whether this process was forked from one that had loaded this module.
pub(crate) fn is_forked() -> bool {
    FORKED.load(Relaxed)
}

/// From now on, every fork of this process, by Python or others, waits until no lock is held, and keeps everybody from
/// taking one meanwhile. The C library does this after all of Python's own handlers have run, because one of those may
/// wait for a thread that computes.
pub(crate) fn follow_forks() {
    static FOLLOWED: Once = Once::new();
    // SAFETY: the handlers take and release a lock of ours, and do nothing else.
    FOLLOWED.call_once(|| unsafe {
        libc::pthread_atfork(Some(before), Some(after_in_parent), Some(after_in_child));
    });
}

unsafe extern "C" fn before() {
    let guard = FORK.write().unwrap_or_else(PoisonError::into_inner);
    HELD.with_borrow_mut(|held| *held = Some(guard));
}

unsafe extern "C" fn after_in_parent() {
    HELD.with_borrow_mut(|held| *held = None);
}

unsafe extern "C" fn after_in_child() {
    FORKED.store(true, Relaxed);
    HELD.with_borrow_mut(|held| *held = None);
}
