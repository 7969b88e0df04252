//! Errors for Python.

use pyo3::prelude::*;

/// An error for an invalid value from Python.
pub(crate) fn invalid(error: impl std::fmt::Display) -> PyErr {
    pyo3::exceptions::PyValueError::new_err(error.to_string())
}
