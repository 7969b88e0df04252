//! The settings for the convolutions of one thread while it is inside `unhang.enabled`.
//!
//! Autograd computes gradients on its own threads, which no thread-local of ours reaches. Torch copies what Python has
//! stored in its thread's state to these threads; a Python function finds it there.

use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::settings::{PySettings, number_of};

/// The numbers of the settings by device type: CPU, CUDA. 0 leaves convolutions to torch.
#[pyclass(frozen, module = "unhang._core")]
pub struct Block([u32; 2]);

#[pymethods]
impl Block {
    /// The settings for the convolutions of each device type; None leaves them to torch.
    #[new]
    #[pyo3(signature = (cpu, cuda))]
    fn new(cpu: Option<&Bound<'_, PySettings>>, cuda: Option<&Bound<'_, PySettings>>) -> Block {
        Block([cpu, cuda].map(|settings| settings.map_or(0, number_of)))
    }
}

thread_local! {
    static ENTERED: Cell<Option<[u32; 2]>> = const { Cell::new(None) };
}
/// The number of threads inside a block. While it is zero, Python is not asked.
static THREADS: AtomicUsize = AtomicUsize::new(0);
/// Torch's functions that say whether it carried something to this thread and what, and the block's key; no functions in
/// Python, as for graphs.
static CARRIED: OnceLock<(Py<PyAny>, Py<PyAny>, Py<PyString>)> = OnceLock::new();

/// Sets where the block is that torch carried to a thread.
#[pyfunction]
pub(crate) fn carry_blocks(is_stored: Py<PyAny>, stored: Py<PyAny>, key: Py<PyString>) {
    let _ = CARRIED.set((is_stored, stored, key));
}

/// Puts this thread inside that block, or outside all blocks.
#[pyfunction]
#[pyo3(signature = (block))]
pub(crate) fn set_block(block: Option<&Block>) {
    let now = block.map(|block| block.0);
    let before = ENTERED.replace(now);
    match (before.is_some(), now.is_some()) {
        (false, true) => _ = THREADS.fetch_add(1, Relaxed),
        (true, false) => _ = THREADS.fetch_sub(1, Relaxed),
        _ => {}
    }
}

/// The number of the settings that a block gives this thread for a device type, by its index; `None` outside blocks.
pub(crate) fn settings(device: usize) -> Option<u32> {
    if THREADS.load(Relaxed) == 0 {
        return None;
    }
    ENTERED.get().or_else(carried)?.get(device).copied()
}

fn carried() -> Option<[u32; 2]> {
    let (is_stored, stored, key) = CARRIED.get()?;
    Python::attach(|py| {
        // After an error, the process's settings apply.
        let is_there = is_stored.bind(py).call1((key,)).ok()?.is_truthy().ok()?;
        let found = is_there.then(|| stored.bind(py).call1((key,)).ok()).flatten()?;
        Some(found.get_item(1).ok()?.cast::<Block>().ok()?.get().0)
    })
}
