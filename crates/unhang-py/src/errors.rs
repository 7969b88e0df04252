//! Errors for Python.

use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;

/// A value that Python gave and that cannot be.
pub(crate) fn invalid(error: impl std::fmt::Display) -> PyErr {
    pyo3::exceptions::PyValueError::new_err(error.to_string())
}

/// What a function of Python's returns; `None` if it fails. An interrupt that arrives in it, for which there is nobody here to
/// raise it to, arrives at what Python runs next.
pub(crate) fn asked<'py>(py: Python<'py>, ask: &Py<PyAny>) -> Option<Bound<'py, PyAny>> {
    let found = ask.bind(py).call0();
    if found.as_ref().is_err_and(|error| error.is_instance_of::<PyKeyboardInterrupt>(py)) {
        let _ = py.import("_thread").and_then(|thread| thread.call_method0("interrupt_main"));
    }
    found.ok()
}
