//! One planned convolution: the engines that compute it, and the kernels loaded for it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use unhang_conv::DataType;
use unhang_engine::EngineName;
use unhang_gpu::strided::{self, LoadedMove, Move};
use unhang_gpu::{GpuError, Prepared};
use unhang_plan::TilePlan;

use crate::device::Device;
use crate::subject::Subject;
use crate::view::{Convolution, View};

/// A planned convolution. It never changes; a new one replaces it when the evidence changes.
pub struct Route {
    pub(crate) device: Arc<Device>,
    pub(crate) convolution: Convolution,
    pub(crate) engines: Vec<EngineName>,
    pub(crate) tile: Option<TilePlan>,
    /// The file of the first caller.
    pub(crate) caller: String,
    pub(crate) packing: Packing,
    workspace: OnceLock<u64>,
    /// The measured time of its fastest kernels.
    seconds: OnceLock<f64>,
    /// Kernels that need no further check.
    settled: RwLock<Option<Arc<Settled>>>,
    moves: OnceLock<Moves>,
    /// The watchdog's subject for each engine that was started.
    subjects: [OnceLock<Arc<Subject>>; EngineName::ALL.len()],
    counts: Counts,
}

/// How often each engine computed something. A route shares this with the route that replaces it.
#[derive(Default)]
pub(crate) struct Counts(RwLock<Arc<[AtomicU64; EngineName::ALL.len()]>>);

impl Counts {
    fn shared(&self) -> Arc<[AtomicU64; EngineName::ALL.len()]> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn count(&self, engine: EngineName) {
        self.shared()[engine as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Goes on with another's.
    pub(crate) fn take_over(&self, other: &Counts) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = other.shared();
    }

    /// Adds them up by caller.
    pub(crate) fn add_to(&self, caller: &str, totals: &mut Totals) {
        let counts = self.shared();
        let all = EngineName::ALL.map(|engine| (engine, counts[engine as usize].load(Ordering::Relaxed)));
        let counted = all.into_iter().filter(|(_, count)| *count > 0);
        if let Some((most, _)) = counted.clone().max_by_key(|(_, count)| *count) {
            *totals.layers.entry(most.name()).or_default() += 1;
        }
        for (engine, count) in counted {
            *totals.calls.entry((caller.to_owned(), engine.name())).or_default() += count;
        }
    }
}

/// What routes computed.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Totals {
    /// Convolutions, by the engine that computed most of their calls.
    pub layers: BTreeMap<&'static str, u64>,
    /// Calls, by who asked and which engine computed.
    pub calls: BTreeMap<(String, &'static str), u64>,
}

/// Where operands in other layouts than our kernels read are copied to, in the workspace.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Packing {
    /// For first, second and result: the offset in the workspace; `None` if they are read in place.
    pub(crate) places: [Option<u64>; 3],
    pub(crate) bytes: u64,
}

/// The launches that copy them.
pub(crate) struct Moves(pub(crate) [Option<LoadedMove>; 3]);

/// Loaded kernels whose first result was right.
pub(crate) struct Settled {
    pub(crate) prepared: Arc<Prepared>,
    /// Bytes of workspace in all.
    pub(crate) bytes: u64,
}

impl Packing {
    fn new(convolution: &Convolution) -> Packing {
        let mut packing = Packing::default();
        let (layout, size) = (convolution.problem.layout(), convolution.problem.data_type().size());
        for (view, place) in convolution.views.iter().zip(&mut packing.places) {
            if !view.is_dense(layout) {
                *place = Some(packing.bytes);
                packing.bytes += ((view.elements() * size) as u64).next_multiple_of(256);
            }
        }
        packing
    }
}

impl Route {
    pub(crate) fn new(
        device: Arc<Device>,
        convolution: Convolution,
        engines: Vec<EngineName>,
        tile: Option<TilePlan>,
        caller: String,
    ) -> Route {
        let packing = Packing::new(&convolution);
        Route {
            device,
            convolution,
            engines,
            tile,
            caller,
            packing,
            workspace: OnceLock::new(),
            seconds: OnceLock::new(),
            settled: RwLock::new(None),
            moves: OnceLock::new(),
            subjects: Default::default(),
            counts: Counts::default(),
        }
    }

    /// The bytes of workspace with which it is computed fastest; 256 more, so that any address can be rounded up.
    pub fn workspace_bytes(&self) -> u64 {
        if self.engines.first() != Some(&EngineName::Jit) {
            return 0;
        }
        // An answer never changes: a caller may have allocated by it.
        *self.workspace.get_or_init(|| {
            let best = self.device.engine.candidates(&self.convolution.problem).into_iter().next();
            let bytes = best.map_or(0, |candidate| candidate.plan.workspace_bytes) + self.packing.bytes;
            if bytes == 0 { 0 } else { bytes + 256 }
        })
    }

    /// The bytes of that workspace that kernels may use.
    pub(crate) fn room_for_kernels(&self) -> u64 {
        self.workspace_bytes().saturating_sub(256 + self.packing.bytes)
    }

    /// The type of the numbers.
    pub fn data_type(&self) -> DataType {
        self.convolution.problem.data_type()
    }

    /// The caller's three tensors in the order in which engines take them: first, second, result.
    pub fn in_order<T: Copy>(&self, tensors: [T; 3]) -> [T; 3] {
        self.convolution.order.map(|which| tensors[which])
    }

    /// Takes other kernels, which were measured to be the fastest, and their time, from the next call on.
    pub(crate) fn take_tuned(&self, seconds: f64) {
        let _ = self.seconds.set(seconds);
        *self.settled.write().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Its time in milliseconds, measured or else predicted by the card's model; 0 if the engine has no model.
    pub fn milliseconds(&self) -> f32 {
        if let Some(seconds) = self.seconds.get() {
            return (seconds * 1e3) as f32;
        }
        if self.engines.first() != Some(&EngineName::Jit) {
            return 0.0;
        }
        let best = self.device.engine.candidates(&self.convolution.problem).into_iter().next();
        best.map_or(0.0, |candidate| candidate.seconds * 1e3) as f32
    }

    pub(crate) fn settled(&self) -> Option<Arc<Settled>> {
        self.settled.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn settle(&self, settled: Settled) {
        *self.settled.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(settled));
    }

    /// The launches that pack operands and unpack the result, for a stream.
    pub(crate) fn moves(&self, stream: u64) -> Result<&Moves, GpuError> {
        if let Some(moves) = self.moves.get() {
            return Ok(moves);
        }
        let (problem, engine) = (&self.convolution.problem, &self.device.engine);
        if !self.device.may_run(strided::FAMILY) {
            let reason =
                "its tensors have to be rearranged, and the canary of the kernels for that did not pass".to_owned();
            return Err(unhang_engine::Unsupported { engine: EngineName::Jit, reason }.into());
        }
        let mut moves: [Option<LoadedMove>; 3] = [None, None, None];
        for (index, view) in self.convolution.views.iter().enumerate() {
            if self.packing.places[index].is_none() {
                continue;
            }
            let dense = View::dense_strides(view.shape, problem.layout());
            let (from, to) = if index == 2 { (dense, view.strides) } else { (view.strides, dense) };
            let copy = Move::copy(problem.data_type(), view.shape, from, to).ok_or_else(|| {
                let reason = "a tensor with gaps of more than 2^31 elements".to_owned();
                unhang_engine::Unsupported { engine: EngineName::Jit, reason }
            })?;
            moves[index] = Some(engine.load_move(copy, stream)?);
        }
        Ok(self.moves.get_or_init(|| Moves(moves)))
    }

    /// The watchdog's subject for an engine that computes it.
    pub(crate) fn subject(&self, engine: EngineName) -> Arc<Subject> {
        let is_rehearsal = self.device.engine.driver().description().is_emulated();
        let subject = || Arc::new(Subject::new(&self.convolution.problem, engine, is_rehearsal));
        self.subjects[engine as usize].get_or_init(subject).clone()
    }

    pub(crate) fn count(&self, engine: EngineName) {
        self.counts.count(engine);
    }

    /// Adds how often each engine computed it.
    pub(crate) fn add_to(&self, totals: &mut Totals) {
        self.counts.add_to(&self.caller, totals);
    }

    /// Whether another plan for the same call is equivalent.
    pub(crate) fn does_the_same_as(&self, other: &Route) -> bool {
        self.engines == other.engines && self.tile == other.tile && Arc::ptr_eq(&self.device, &other.device)
    }

    /// This plan in place of an older one for the same call, whose counts it continues.
    pub(crate) fn instead_of(&self, old: &Route) -> Route {
        let route = Route::new(
            self.device.clone(),
            self.convolution.clone(),
            self.engines.clone(),
            self.tile,
            old.caller.clone(),
        );
        route.counts.take_over(&old.counts);
        route
    }
}
