//! A layer's settings in the graph of its gradients, and which part of the graph a thread evaluates.
//!
//! Backward runs on autograd's own threads, which no thread-local of the forward reaches. Its weight may have moved by
//! then, or belong to several layers. So Python puts a layer's settings into the node of the graph that its forward
//! created. Here the settings are read from the node that a thread evaluates.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

use crate::settings::{PySettings, number_of};

/// Torch's function that returns the node that this thread evaluates, or None; and the key of the settings in a node.
///
/// No function in Python: a signal's handler would run in it, and what that raises has nobody here to be raised to.
static NODES: OnceLock<(Py<PyAny>, Py<PyString>)> = OnceLock::new();
/// Whether a layer has put its settings into a graph, and whether gradients of gradients have such nodes. Programs
/// without them pay nothing.
static FIRST: AtomicBool = AtomicBool::new(false);
static SECOND: AtomicBool = AtomicBool::new(false);

/// Sets where the settings in a graph's nodes are.
#[pyfunction]
pub(crate) fn carry_in_graphs(current_node: Py<PyAny>, key: Py<PyString>) {
    let _ = NODES.set((current_node, key));
}

/// Notes that a node holds settings: of a forward's graph, or of a gradient's if `second`.
#[pyfunction]
pub(crate) fn carried(second: bool) {
    if second { &SECOND } else { &FIRST }.store(true, Relaxed);
}

/// Whether graphs hold settings in this process.
pub(crate) fn is_carried() -> bool {
    NODES.get().is_some()
}

/// The number of the settings of the node that this thread evaluates, for a backward, or for a forward inside a
/// gradient's gradient. 0 if there are none.
pub(crate) fn settings(is_backward: bool) -> u32 {
    let is_asked = FIRST.load(Relaxed) && (is_backward || SECOND.load(Relaxed));
    let Some((current_node, key)) = NODES.get().filter(|_| is_asked) else { return 0 };
    Python::attach(|py| {
        let find = || -> PyResult<Option<u32>> {
            let metadata = current_node.bind(py).call0()?.getattr("metadata")?;
            let found = metadata.cast::<PyDict>()?.get_item(key)?;
            Ok(found.and_then(|found| found.cast::<PySettings>().ok().map(number_of)))
        };
        // Outside a graph and in nodes without settings, the process's apply.
        find().ok().flatten().unwrap_or(0)
    })
}
