//! The direct path from torch's dispatcher: repeated convolutions without Python, through torch's own C interface.
//!
//! It decides nothing. Python plans a new convolution, computes it, and says how to compute the same call from then on
//! ([`Ticket`]). Anything unusual goes to Python again. If torch has no such interface, everything does.

#[allow(unsafe_code, reason = "reads torch's own values")]
mod accelerator;
pub(crate) mod block;
#[allow(unsafe_code, reason = "an address becomes a function of torch's")]
mod c_interface;
#[allow(unsafe_code, reason = "calls torch's functions")]
mod entries;
pub(crate) mod graph;
#[allow(unsafe_code, reason = "torch calls it")]
mod kernels;
#[allow(unsafe_code, reason = "calls torch's functions")]
mod profiler;
#[allow(unsafe_code, reason = "calls torch's functions")]
mod self_test;
mod step;
mod table;
#[allow(unsafe_code, reason = "reads torch's own values")]
mod tensors;
#[allow(unsafe_code, reason = "calls torch's functions")]
mod torch;

use std::ffi::CString;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

use self::kernels::{DIRECT_PATH, DirectPath};
pub(crate) use self::step::Step;
use self::step::{Backward, Forward};
use self::table::{Device, Known};
use self::torch::Torch;
use crate::layers::Label;
use crate::settings::{PySettings, number_of, numbered};

fn device(name: &str) -> PyResult<Device> {
    Device::named(name).ok_or_else(|| PyValueError::new_err(format!("{name} is not a device type that unhang knows")))
}

/// Finds torch's functions and tests them. `original` is a key set that leads to torch's own kernels; `python` are
/// those of Python's kernels for the CPU and for CUDA. Raises `RuntimeError` with the reason if calls must go through
/// Python.
#[pyfunction]
pub(crate) fn open_direct_path(py: Python<'_>, original: u64, python: [u64; 2]) -> PyResult<()> {
    if DIRECT_PATH.get().is_none() {
        let torch = Torch::find().map_err(PyRuntimeError::new_err)?;
        // On another thread, because the modes and tracers of the caller's thread must not see this.
        let tested = py.detach(|| {
            std::thread::scope(|scope| {
                scope.spawn(|| torch.self_test(original)).join().unwrap_or(Err("a panic".into()))
            })
        });
        tested.map_err(PyRuntimeError::new_err)?;
        let [cpu, cuda] = python;
        let direct = DirectPath { torch, original: original.into(), python: [cpu.into(), cuda.into()] };
        let _ = DIRECT_PATH.set(direct);
    }
    Ok(())
}

fn direct() -> PyResult<&'static DirectPath> {
    DIRECT_PATH.get().ok_or_else(|| PyRuntimeError::new_err("torch's functions were not looked for"))
}

/// Replaces the key sets for torch's own and for Python's kernels, after somebody registered kernels under the old
/// ones.
#[pyfunction]
pub(crate) fn move_direct_path(original: u64, python: [u64; 2]) -> PyResult<()> {
    let direct = direct()?;
    direct.original.store(original, Relaxed);
    for (place, keys) in direct.python.iter().zip(python) {
        place.store(keys, Relaxed);
    }
    Ok(())
}

/// Registers the kernel of an op that returns what it was called with, to test how arguments arrive.
#[pyfunction]
pub(crate) fn register_echo(name: &str) -> PyResult<()> {
    let name = CString::new(name)?;
    direct()?.torch.register(c"unhang", c"CPU", &[(&name, self_test::echo)]).map_err(PyRuntimeError::new_err)
}

/// Registers our kernels for a device type under its dispatch key, for the life of the process.
#[pyfunction]
pub(crate) fn register_direct_path(name: &str, key: &str) -> PyResult<()> {
    let device = device(name)?;
    let key = CString::new(key)?;
    direct()?.torch.register(c"aten", &key, &kernels::kernels(device)).map_err(PyRuntimeError::new_err)
}

/// Sets the settings for the convolutions of a device type from the next call on; None leaves them to torch.
#[pyfunction]
#[pyo3(signature = (name, settings))]
pub(crate) fn activate(name: &str, settings: Option<&Bound<'_, PySettings>>) -> PyResult<()> {
    table::activate(device(name)?, settings.map_or(0, number_of));
    Ok(())
}

/// The settings for a forward with the weight at that address: the layer's, the process's, or none.
#[pyfunction]
pub(crate) fn forward_settings(py: Python<'_>, name: &str, weight: u64) -> PyResult<Option<Py<PySettings>>> {
    Ok(numbered(py, table::forward_settings(device(name)?, weight)))
}

/// The settings for a backward with the weight at that address.
#[pyfunction]
pub(crate) fn backward_settings(py: Python<'_>, name: &str, weight: u64) -> PyResult<Option<Py<PySettings>>> {
    Ok(numbered(py, table::backward_settings(device(name)?, weight)))
}

/// The right to say how the call that torch passed to Python's kernel is computed from now on.
#[pyclass(frozen, module = "unhang._core")]
pub struct Ticket(table::Ticket);

#[pymethods]
impl Ticket {
    /// Computes the forward by that step from now on, and counts it under that label.
    fn remember_forward(&self, step: &Step, label: &Label) {
        let label = Arc::clone(&label.0);
        table::remember(&self.0, Known::Forward(Arc::new(Forward { step: step.share(), label })));
    }

    /// Computes the requested gradients of input and weight by those steps from now on.
    #[pyo3(signature = (data, weights))]
    fn remember_backward(&self, data: Option<&Step>, weights: Option<&Step>) {
        let known = Backward { data: data.map(Step::share), weights: weights.map(Step::share) };
        table::remember(&self.0, Known::Backward(Arc::new(known)));
    }
}

/// The ticket of the call that torch just passed to this thread. None if the call did not arrive through torch's C
/// interface, or must not be remembered. Each ticket is given once: Python's kernel asks before anything else.
#[pyfunction]
pub(crate) fn take_ticket() -> Option<Ticket> {
    table::take_ticket().map(Ticket)
}

/// Forgets every known call, because evidence or circumstances have changed.
#[pyfunction]
pub(crate) fn forget_calls() {
    table::clear();
}

/// The number of known calls.
#[pyfunction]
pub(crate) fn known_calls() -> usize {
    table::len()
}
