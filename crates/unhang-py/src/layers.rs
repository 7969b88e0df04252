//! Counts what was computed for which layer, and knows which layer a thread is in, without the interpreter.

use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::forking::undisturbed;
use crate::settings::{PySettings, numbered};

/// A layer with ever new sizes must not fill the memory. Sizes beyond this number are counted by engine alone.
static MOST_SIZES: AtomicUsize = AtomicUsize::new(1000);

/// A convolution and the engine that computed it: identifies a layer's forwards.
#[pyclass(frozen, module = "unhang._core")]
pub struct Label(pub(crate) Arc<Named>);

/// A convolution and an engine. Comparisons check the hash first, because every forward looks it up.
pub(crate) struct Named {
    hash: u64,
    problem: String,
    engine: String,
}

impl Named {
    fn new(problem: &str, engine: &str) -> Named {
        let mut hasher = DefaultHasher::new();
        (problem, engine).hash(&mut hasher);
        Named { hash: hasher.finish(), problem: problem.to_owned(), engine: engine.to_owned() }
    }
}

impl Hash for Named {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

impl PartialEq for Named {
    fn eq(&self, other: &Named) -> bool {
        std::ptr::eq(self, other)
            || (self.hash == other.hash && self.problem == other.problem && self.engine == other.engine)
    }
}

impl Eq for Named {}

impl Label {
    /// For a problem's key and an engine.
    pub(crate) fn of(problem: &str, engine: &str) -> Label {
        Label(Arc::new(Named::new(problem, engine)))
    }
}

#[pymethods]
impl Label {
    /// For a problem's key and an engine. The key is empty if torch computed something that our engines do not know.
    #[new]
    fn new(problem: &str, engine: &str) -> Label {
        Label::of(problem, engine)
    }
}

/// The forwards of one layer.
#[derive(Default)]
pub(crate) struct Forwards {
    counts: Mutex<Counted>,
}

#[derive(Default, Clone)]
struct Counted {
    forwards: HashMap<Arc<Named>, u64>,
    bypasses: u64,
    /// The number of the settings of the last forward.
    settings: u32,
}

impl Forwards {
    /// Counts one forward.
    pub(crate) fn count(&self, label: &Arc<Named>, bypass: bool, settings: u32) {
        undisturbed(|| {
            let mut counted = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
            counted.bypasses += u64::from(bypass);
            counted.settings = settings;
            if let Some(count) = counted.forwards.get_mut(label) {
                *count += 1;
                return;
            }
            let known = if counted.forwards.len() < MOST_SIZES.load(Relaxed) {
                Arc::clone(label)
            } else {
                Arc::new(Named::new("", &label.engine))
            };
            *counted.forwards.entry(known).or_default() += 1;
        });
    }

    fn read(&self) -> Counted {
        undisturbed(|| self.counts.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }
}

/// The forwards of one layer, for Python.
#[pyclass(frozen, module = "unhang._core")]
pub struct LayerCounts(Arc<Forwards>);

#[pymethods]
impl LayerCounts {
    #[new]
    fn new() -> LayerCounts {
        LayerCounts(Arc::default())
    }

    /// This thread begins a forward of the layer. Python's `with` leaves no gap in which an outside exception, such as
    /// Ctrl-C's, would find the layer entered and nobody to leave it. Nothing of ours is on the stack meanwhile.
    fn __enter__(&self) {
        enter(&self.0, 0);
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, _error: &Bound<'_, PyTuple>) {
        leave();
    }

    /// A forward of the layer with its own settings.
    fn by(&self, settings: &Bound<'_, PySettings>) -> ForwardBy {
        ForwardBy { forwards: Arc::clone(&self.0), settings: crate::settings::number_of(settings) }
    }

    /// Forwards by problem and engine.
    #[getter]
    fn by_label(&self) -> HashMap<(String, String), u64> {
        let forwards = self.0.read().forwards;
        forwards.into_iter().map(|(it, count)| ((it.problem.clone(), it.engine.clone()), count)).collect()
    }

    /// Forwards that bypassed what torch does by itself.
    #[getter]
    fn bypasses(&self) -> u64 {
        self.0.read().bypasses
    }

    /// The settings of the last forward.
    #[getter]
    fn settings(&self, py: Python<'_>) -> Option<Py<PySettings>> {
        numbered(py, self.0.read().settings)
    }
}

/// A layer whose forward a thread is in.
struct Inside {
    forwards: Arc<Forwards>,
    /// The number of its own settings; 0 if it has none.
    settings: u32,
}

thread_local! {
    static INSIDE: RefCell<Vec<Inside>> = const { RefCell::new(Vec::new()) };
}

/// The number of the own settings of the layer that this thread is in; 0 if there are none.
pub(crate) fn current_settings() -> u32 {
    INSIDE.with_borrow(|inside| inside.last().map_or(0, |it| it.settings))
}

/// Counts a forward of the layer that this thread is in, if it is in one.
pub(crate) fn count_current(label: &Arc<Named>, bypass: bool, settings: u32) {
    let forwards = INSIDE.with_borrow(|inside| inside.last().map(|it| Arc::clone(&it.forwards)));
    if let Some(forwards) = forwards {
        forwards.count(label, bypass, settings);
    }
}

/// This thread begins a layer's forward. A layer entered again keeps its own settings.
fn enter(forwards: &Arc<Forwards>, own: u32) {
    INSIDE.with_borrow_mut(|inside| {
        let before = inside.last().filter(|before| Arc::ptr_eq(&before.forwards, forwards)).map(|it| it.settings);
        let settings = if own == 0 { before.unwrap_or(0) } else { own };
        inside.push(Inside { forwards: Arc::clone(forwards), settings });
    });
}

/// This thread ends the forward that it began last.
fn leave() {
    INSIDE.with_borrow_mut(|inside| inside.truncate(inside.len().saturating_sub(1)));
}

/// A layer's forward with its own settings, for Python's `with`.
#[pyclass(frozen, module = "unhang._core")]
pub struct ForwardBy {
    forwards: Arc<Forwards>,
    settings: u32,
}

#[pymethods]
impl ForwardBy {
    fn __enter__(&self) {
        enter(&self.forwards, self.settings);
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, _error: &Bound<'_, PyTuple>) {
        leave();
    }
}

/// Counts a forward of the layer that this thread is in, if it is in one.
#[pyfunction]
pub(crate) fn count_layer(label: &Label, bypass: bool, settings: &Bound<'_, PySettings>) {
    count_current(&label.0, bypass, crate::settings::number_of(settings));
}

/// Sets how many sizes of a layer are counted separately, and returns the old number. For tests.
#[pyfunction]
pub(crate) fn set_most_sizes(most: usize) -> usize {
    MOST_SIZES.swap(most, Relaxed)
}
