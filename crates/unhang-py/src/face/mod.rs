//! The face to torch's dispatcher: the repeated convolution without Python, through torch's own C interface.
//!
//! It decides nothing. Python plans a convolution when it is new, computes it, and says how the same call is computed from
//! then on ([`remember_forward`]); everything that is unusual goes to Python again. Where torch has no such interface, all
//! of it does.

mod accelerator;
mod kernels;
mod step;
mod table;
mod tensors;
mod torch;

use std::ffi::CString;
use std::sync::Arc;

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

use self::kernels::{FACE, Face};
pub use self::step::Step;
use self::step::{Backward, Forward};
use self::table::{Device, Known};
use self::torch::Torch;
use crate::layers::Label;
use crate::settings::{PySettings, number_of, numbered};

fn device(name: &str) -> PyResult<Device> {
    Device::named(name).ok_or_else(|| PyValueError::new_err(format!("{name} is no device type of ours")))
}

/// Finds torch's functions. `original` is a key set under which torch's own kernels are reached, `python` are those of
/// Python's kernels for the CPU and for CUDA. Raises `RuntimeError`, saying why, where calls have to go through Python.
#[pyfunction]
pub fn open_face(original: u64, python: [u64; 2]) -> PyResult<()> {
    if FACE.get().is_none() {
        let torch = Torch::find().map_err(PyRuntimeError::new_err)?;
        let _ = FACE.set(Face { torch, original, python });
    }
    Ok(())
}

/// Registers our kernels for a device type under its dispatch key, for the life of the process.
#[pyfunction]
pub fn register_face(name: &str, key: &str) -> PyResult<()> {
    let device = device(name)?;
    let face = FACE.get().ok_or_else(|| PyRuntimeError::new_err("torch's functions were not looked for"))?;
    let key = CString::new(key)?;
    face.torch.register(&key, &kernels::kernels(device)).map_err(PyRuntimeError::new_err)
}

/// Has settings plan the convolutions of a device type from the next call on; None leaves them to torch.
#[pyfunction]
#[pyo3(signature = (name, settings))]
pub fn activate(name: &str, settings: Option<&Bound<'_, PySettings>>) -> PyResult<()> {
    table::activate(device(name)?, settings.map_or(0, number_of));
    Ok(())
}

/// What plans a forward with the weight at that address: the layer's settings, the process's, or nobody's.
#[pyfunction]
pub fn forward_settings(py: Python<'_>, name: &str, weight: u64) -> PyResult<Option<Py<PySettings>>> {
    Ok(numbered(py, table::forward_settings(device(name)?, weight)))
}

/// What plans a backward with the weight at that address.
#[pyfunction]
pub fn backward_settings(py: Python<'_>, name: &str, weight: u64) -> PyResult<Option<Py<PySettings>>> {
    Ok(numbered(py, table::backward_settings(device(name)?, weight)))
}

/// Whether the call that this thread computes came from torch's C interface, and may be remembered.
#[pyfunction]
pub fn is_remembering() -> bool {
    table::is_waiting()
}

/// The forward that this thread computes is computed by that step from now on, and counted under that label.
#[pyfunction]
pub fn remember_forward(step: &Step, label: &Label) {
    let label = Arc::clone(&label.0);
    table::remember(Known::Forward(Arc::new(Forward { step: step.share(), label })));
}

/// The same for gradients, of input and weight as far as they are asked for.
#[pyfunction]
#[pyo3(signature = (data, weights))]
pub fn remember_backward(data: Option<&Step>, weights: Option<&Step>) {
    let known = Backward { data: data.map(Step::share), weights: weights.map(Step::share) };
    table::remember(Known::Backward(Arc::new(known)));
}

/// Forgets every call that is known: evidence or circumstances have changed.
#[pyfunction]
pub fn forget_calls() {
    table::clear();
}

/// How many calls are known.
#[pyfunction]
pub fn known_calls() -> usize {
    table::len()
}
