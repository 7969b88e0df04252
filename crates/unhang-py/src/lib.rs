//! The extension module `unhang._core`: thin bindings that decide nothing.
//!
//! It converts Python's values to those of the crates below and back. Tensors arrive as an address and a length; only
//! [`direct`], which torch itself calls, knows torch. `unsafe` code is limited to [`compute`], where addresses become
//! slices; [`gpu`], where kernels receive them; [`forking`], which follows forks; and [`direct`], torch's interface.

#![deny(unsafe_code)]

#[allow(unsafe_code, reason = "an address and a length become a slice")]
mod compute;
mod direct;
mod errors;
#[allow(unsafe_code, reason = "asks the C library to call before and after a fork")]
mod forking;
#[allow(unsafe_code, reason = "hands addresses to kernels")]
mod gpu;
mod knowledge;
mod layers;
mod problem;
mod session;
mod settings;
mod supervise;
mod tally;
mod tuning;
mod volume;
mod watchdog;

use std::collections::HashMap;

use pyo3::prelude::*;

/// The Rust side of unhang.
#[pymodule(name = "_core")]
fn core_module(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<problem::PyProblem>()?;
    module.add_class::<volume::PyVolume>()?;
    module.add_class::<knowledge::PyMachine>()?;
    module.add_class::<knowledge::PyStore>()?;
    module.add_class::<session::PySession>()?;
    module.add_class::<knowledge::PyPlan>()?;
    module.add_class::<knowledge::PySituation>()?;
    module.add_class::<settings::PySettings>()?;
    module.add("STRATEGIES", pyo3::types::PyTuple::new(module.py(), settings::strategies())?)?;
    module.add_class::<gpu::PyGpu>()?;
    module.add_class::<gpu::PyKernel>()?;
    module.add_class::<tuning::PyContests>()?;
    module.add_class::<tuning::PyContest>()?;
    module.add("Panic", module.py().get_type::<pyo3::panic::PanicException>())?;
    module.add("GpuFailure", module.py().get_type::<gpu::GpuFailure>())?;
    module.add("GpuDeclined", module.py().get_type::<gpu::GpuDeclined>())?;
    module.add_class::<tally::Tally>()?;
    module.add_class::<layers::Label>()?;
    module.add_class::<layers::LayerCounts>()?;
    module.add_class::<layers::ForwardBy>()?;
    module.add_function(wrap_pyfunction!(layers::count_layer, module)?)?;
    module.add_function(wrap_pyfunction!(layers::set_most_sizes, module)?)?;
    forking::follow_forks();
    module.add_class::<direct::Step>()?;
    module.add_function(wrap_pyfunction!(direct::open_direct_path, module)?)?;
    module.add_function(wrap_pyfunction!(direct::move_direct_path, module)?)?;
    module.add_function(wrap_pyfunction!(direct::register_echo, module)?)?;
    module.add_function(wrap_pyfunction!(direct::register_direct_path, module)?)?;
    module.add_function(wrap_pyfunction!(direct::graph::carry_in_graphs, module)?)?;
    module.add_function(wrap_pyfunction!(direct::graph::carried, module)?)?;
    module.add_class::<direct::block::Block>()?;
    module.add_function(wrap_pyfunction!(direct::block::carry_blocks, module)?)?;
    module.add_function(wrap_pyfunction!(direct::block::set_block, module)?)?;
    module.add_function(wrap_pyfunction!(direct::activate, module)?)?;
    module.add_function(wrap_pyfunction!(direct::forward_settings, module)?)?;
    module.add_function(wrap_pyfunction!(direct::backward_settings, module)?)?;
    module.add_class::<direct::Ticket>()?;
    module.add_function(wrap_pyfunction!(direct::take_ticket, module)?)?;
    module.add_function(wrap_pyfunction!(direct::forget_calls, module)?)?;
    module.add_function(wrap_pyfunction!(direct::known_calls, module)?)?;
    module.add_class::<watchdog::PyWatchdog>()?;
    module.add_class::<watchdog::PyWatched>()?;
    module.add_class::<watchdog::PyCall>()?;
    module.add_function(wrap_pyfunction!(watchdog::hang_deadlines, module)?)?;
    module.add_function(wrap_pyfunction!(problem::tiles, module)?)?;
    module.add_class::<compute::PySample>()?;
    module.add_function(wrap_pyfunction!(compute::run_cpu, module)?)?;
    module.add_function(wrap_pyfunction!(compute::run_reference, module)?)?;
    module.add_class::<supervise::PyOutcome>()?;
    module.add_function(wrap_pyfunction!(supervise::supervise, module)?)?;
    module.add_function(wrap_pyfunction!(supervise::supervise_canary, module)?)?;
    module.add_function(wrap_pyfunction!(supervise::python_start, module)?)?;
    module.add_function(wrap_pyfunction!(supervise::child_answer, module)?)?;
    module.add_function(wrap_pyfunction!(problem::canary_tolerance, module)?)?;
    module.add_function(wrap_pyfunction!(problem::engine_tolerance, module)?)?;
    module.add_function(wrap_pyfunction!(supervise::canary_answer, module)?)?;
    module.add_function(wrap_pyfunction!(supervise::canary_torch, module)?)?;
    module.add_function(wrap_pyfunction!(supervise::end_with_parent, module)?)?;
    module.add("SOLVER_FAMILIES", HashMap::from(unhang_plan::MiopenFamilies::VARIABLES))?;
    module.add_function(wrap_pyfunction!(refuse_free_threaded, module)?)?;
    module.add_function(wrap_pyfunction!(printable, module)?)?;
    Ok(())
}

/// Raises `ImportError` under a Python without the global interpreter lock: the package relies on it.
#[pyfunction]
fn refuse_free_threaded(py: Python<'_>) -> PyResult<()> {
    // The build's letters. `sysconfig` gives more detail, but takes longer to import than this whole package.
    let letters: String = py.import("sys")?.getattr("abiflags")?.extract()?;
    if letters.contains('t') {
        return Err(pyo3::exceptions::PyImportError::new_err(
            "unhang does not support free-threaded builds of Python yet: use a build with the global interpreter lock",
        ));
    }
    Ok(())
}

/// The text without anything that could drive a terminal or disguise text.
#[pyfunction]
fn printable(text: &str) -> String {
    unhang_guard::printable(text)
}
