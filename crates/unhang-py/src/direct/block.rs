//! What plans the convolutions of one thread while it is inside of `unhang.enabled`.
//!
//! Autograd computes gradients on its own threads, which no thread-local of ours reaches. Torch copies what Python has stored in its
//! thread's state to these threads; a function of Python's finds it there.

use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use pyo3::prelude::*;

use crate::errors::asked;
use crate::settings::{PySettings, number_of};

/// The numbers of settings by device type: CPU, CUDA. 0 leaves convolutions to torch.
#[pyclass(frozen, module = "unhang._core")]
pub struct Block([u32; 2]);

#[pymethods]
impl Block {
    /// For each device type what plans its convolutions; None leaves them to torch.
    #[new]
    #[pyo3(signature = (cpu, cuda))]
    fn new(cpu: Option<&Bound<'_, PySettings>>, cuda: Option<&Bound<'_, PySettings>>) -> Block {
        Block([cpu, cuda].map(|settings| settings.map_or(0, number_of)))
    }
}

thread_local! {
    static ENTERED: Cell<Option<[u32; 2]>> = const { Cell::new(None) };
}
/// The number of threads inside a block. At zero nobody asks Python.
static THREADS: AtomicUsize = AtomicUsize::new(0);
/// Python's function that returns the block that torch carried to this thread, or None.
static ASK: OnceLock<Py<PyAny>> = OnceLock::new();

/// From now on that function finds the block that torch carried to a thread.
#[pyfunction]
pub(crate) fn carry_blocks(ask: Py<PyAny>) {
    let _ = ASK.set(ask);
}

/// This thread is inside of that block, or of none.
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

/// The number of the settings that a block gives this thread for a device type by its place; none outside of blocks.
pub(crate) fn settings(device: usize) -> Option<u32> {
    if THREADS.load(Relaxed) == 0 {
        return None;
    }
    ENTERED.get().or_else(carried)?.get(device).copied()
}

fn carried() -> Option<[u32; 2]> {
    let ask = ASK.get()?;
    Python::attach(|py| {
        // What goes wrong there leaves the process's settings.
        let found = asked(py, ask)?;
        Some(found.cast::<Block>().ok()?.get().0)
    })
}
