//! Counts which engines computed, without locks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use pyo3::prelude::*;
use unhang_engine::EngineName;

/// Counts of computations per engine, and of bypasses. A plan's engines are named by their position in it. New plans
/// for the same convolution share the counts, whatever their order.
#[pyclass(frozen, module = "unhang._core")]
pub struct Tally {
    /// By position in the plan: the engine, as its index among all engines.
    engines: Vec<usize>,
    counts: Arc<Counts>,
}

/// The counts by engine; the last is for engines without a name.
#[derive(Default)]
pub(crate) struct Counts {
    by_engine: [AtomicU64; EngineName::ALL.len() + 1],
    bypasses: AtomicU64,
}

/// One engine's position in a tally, for calls without the interpreter.
pub(crate) struct Counter {
    counts: Arc<Counts>,
    slot: usize,
    bypass: bool,
}

impl Counter {
    /// Counts one computation.
    pub(crate) fn count(&self) {
        self.counts.count(self.slot, self.bypass);
    }

    /// The engine; `None` if it has no name.
    pub(crate) fn engine(&self) -> Option<&'static str> {
        EngineName::ALL.get(self.slot).map(|engine| engine.name())
    }

    /// Whether it bypasses what torch does by itself.
    pub(crate) fn is_bypass(&self) -> bool {
        self.bypass
    }
}

impl Counts {
    fn count(&self, slot: usize, bypass: bool) {
        self.by_engine[slot].fetch_add(1, Relaxed);
        self.bypasses.fetch_add(u64::from(bypass), Relaxed);
    }
}

impl Tally {
    /// The counter of the plan's first engine.
    pub(crate) fn first(&self, bypass: bool) -> Counter {
        Counter { counts: Arc::clone(&self.counts), slot: self.slot(0), bypass }
    }

    /// For a new plan's engines.
    pub(crate) fn of(engines: impl Iterator<Item = EngineName>) -> Tally {
        Tally { engines: engines.map(|engine| engine as usize).collect(), counts: Arc::default() }
    }

    fn slot(&self, place: usize) -> usize {
        self.engines.get(place).copied().unwrap_or(EngineName::ALL.len())
    }
}

#[pymethods]
impl Tally {
    /// For engines by name; "tiled(aten)" counts as tiled. `earlier` is the tally of another plan for the same
    /// convolution.
    #[new]
    #[pyo3(signature = (names = Vec::new(), earlier = None))]
    fn new(names: Vec<String>, earlier: Option<&Tally>) -> Tally {
        let place = |name: &String| {
            let plain = name.split('(').next().unwrap_or_default();
            EngineName::ALL.iter().position(|engine| engine.name() == plain).unwrap_or(EngineName::ALL.len())
        };
        let counts = earlier.map_or_else(Arc::default, |tally| Arc::clone(&tally.counts));
        Tally { engines: names.iter().map(place).collect(), counts }
    }

    /// Counts one computation by the engine at that position.
    fn count(&self, place: usize, bypass: bool) {
        self.counts.count(self.slot(place), bypass);
    }

    /// The counts by position, without trailing zeros.
    #[getter]
    fn by_place(&self) -> Vec<u64> {
        let mut counts: Vec<u64> =
            (0..self.engines.len()).map(|place| self.counts.by_engine[self.slot(place)].load(Relaxed)).collect();
        while counts.last() == Some(&0) {
            counts.pop();
        }
        counts
    }

    /// All computations.
    #[getter]
    fn total(&self) -> u64 {
        self.counts.by_engine.iter().map(|count| count.load(Relaxed)).sum()
    }

    /// Those that bypassed what torch does by itself.
    #[getter]
    fn bypasses(&self) -> u64 {
        self.counts.bypasses.load(Relaxed)
    }
}
