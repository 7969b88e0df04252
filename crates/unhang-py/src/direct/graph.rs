//! A layer's settings in the graph of its gradients, and which part of the graph a thread evaluates.
//!
//! Backward runs on autograd's own threads, where no thread-local of the forward's would reach, on a weight that may lie
//! elsewhere by then or belong to several layers. Python puts a layer's settings into the node of the graph that its
//! forward made; here the node that a thread evaluates is asked for them, through a function of Python's.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use pyo3::prelude::*;

use crate::errors::asked;
use crate::settings::{PySettings, number_of};

/// Python's function that returns the settings in the node that this thread evaluates, or None.
static ASK: OnceLock<Py<PyAny>> = OnceLock::new();
/// Whether a layer put its settings into a graph, and whether gradients of gradients have such nodes. Programs without pay nothing.
static FIRST: AtomicBool = AtomicBool::new(false);
static SECOND: AtomicBool = AtomicBool::new(false);

/// From now on nodes of graphs hold settings, and that function finds them.
#[pyfunction]
pub(crate) fn carry_in_graphs(ask: Py<PyAny>) {
    let _ = ASK.set(ask);
}

/// A node holds settings: of a forward's graph, or of a gradient's.
#[pyfunction]
pub(crate) fn carried(second: bool) {
    if second { &SECOND } else { &FIRST }.store(true, Relaxed);
}

/// Whether graphs hold settings in this process.
pub(crate) fn is_carried() -> bool {
    ASK.get().is_some()
}

/// The number of the settings of the node that this thread evaluates, for a backward or for a forward that a gradient's gradient
/// consists of; 0 where there are none.
pub(crate) fn settings(is_backward: bool) -> u32 {
    let is_asked = FIRST.load(Relaxed) && (is_backward || SECOND.load(Relaxed));
    let Some(ask) = ASK.get().filter(|_| is_asked) else { return 0 };
    Python::attach(|py| {
        // What goes wrong there leaves the process's settings.
        let found = asked(py, ask);
        found.as_ref().and_then(|found| found.cast::<PySettings>().ok()).map_or(0, number_of)
    })
}
