//! Errors for Python.

use pyo3::PyErr;

/// A value that Python gave and that cannot be.
pub(crate) fn invalid(error: impl std::fmt::Display) -> PyErr {
    pyo3::exceptions::PyValueError::new_err(error.to_string())
}
