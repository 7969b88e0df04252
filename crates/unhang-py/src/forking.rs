//! What lets locks of ours be taken without the interpreter's: a fork waits until none of them is held.
//!
//! A forked child has one thread, the one that forked. A lock that another thread held at that moment would never be let
//! go of in the child. Python's own fork holds the interpreter's lock, which is why locks that are only taken under it
//! need nothing; calls that torch hands to us come without it.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{PoisonError, RwLock, RwLockWriteGuard};

use pyo3::prelude::*;

static FORK: RwLock<()> = RwLock::new(());
static FORKED: AtomicBool = AtomicBool::new(false);

thread_local! {
    static HELD: RefCell<Option<RwLockWriteGuard<'static, ()>>> = const { RefCell::new(None) };
}

/// Runs what takes locks, briefly, while no thread forks. What runs takes no other lock of this kind, and neither waits
/// for the interpreter nor computes.
pub fn undisturbed<Found>(section: impl FnOnce() -> Found) -> Found {
    let _no_fork = FORK.read().unwrap_or_else(PoisonError::into_inner);
    section()
}

/// Whether this process was forked from one that had loaded this module.
pub fn is_forked() -> bool {
    FORKED.load(Relaxed)
}

/// For `os.register_at_fork(before=…)`: waits until no lock is held, and keeps everybody from taking one.
#[pyfunction]
pub fn before_fork() {
    let guard = FORK.write().unwrap_or_else(PoisonError::into_inner);
    HELD.with_borrow_mut(|held| *held = Some(guard));
}

/// For `os.register_at_fork`, after it: goes on, in the parent and in the child.
#[pyfunction]
pub fn after_fork(in_child: bool) {
    if in_child {
        FORKED.store(true, Relaxed);
    }
    HELD.with_borrow_mut(|held| *held = None);
}
