//! Supervised children, for Python.

use std::time::Duration;

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use unhang_probe::{Child, Ended};

/// Runs a command to its end within a deadline in seconds; how it ended, its code or signal, and what it printed.
#[pyfunction]
pub fn supervise(py: Python<'_>, command: Vec<String>, deadline: f64) -> PyResult<(&'static str, i32, String)> {
    let deadline = Duration::try_from_secs_f64(deadline)
        .map_err(|error| PyValueError::new_err(format!("a deadline of {deadline} seconds: {error}")))?;
    let child = Child { command, environment: Vec::new(), deadline };
    let outcome =
        py.detach(|| unhang_probe::supervise(&child)).map_err(|error| PyRuntimeError::new_err(error.to_string()))?;
    let (ended, code) = match outcome.ended {
        Ended::Exited(code) => ("exited", code),
        Ended::Signalled(signal) => ("signalled", signal),
        Ended::TimedOut => ("timed-out", 0),
        Ended::Unkillable => ("unkillable", 0),
    };
    Ok((ended, code, outcome.output))
}
