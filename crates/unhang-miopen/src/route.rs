//! One convolution as it is asked for, planned: who computes it, and what our kernels have loaded for it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use unhang_engine::EngineName;
use unhang_gpu::strided::{self, LoadedMove, Move};
use unhang_gpu::{GpuError, Prepared};
use unhang_plan::TilePlan;

use crate::describe::{Convolution, View};
use crate::device::Device;
use crate::real::Real;

/// A planned convolution. What it is made of never changes; another one takes its place when evidence does.
pub(crate) struct Route {
    pub(crate) real: &'static Real,
    pub(crate) device: Arc<Device>,
    pub(crate) convolution: Convolution,
    pub(crate) engines: Vec<EngineName>,
    pub(crate) tile: Option<TilePlan>,
    /// The file of whoever asked first.
    pub(crate) caller: String,
    pub(crate) packing: Packing,
    /// Kernels about which nothing is open any more.
    settled: RwLock<Option<Arc<Settled>>>,
    moves: OnceLock<Moves>,
    counts: [AtomicU64; EngineName::ALL.len()],
}

/// Where operands that lie otherwise than our kernels read them are copied to, in the workspace.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Packing {
    /// For first, second and result: how far into the workspace; none where they are read as they lie.
    pub(crate) places: [Option<u64>; 3],
    pub(crate) bytes: u64,
}

/// The launches that copy them.
pub(crate) struct Moves(pub(crate) [Option<LoadedMove>; 3]);

/// Kernels that are loaded, and whose first result was right.
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
        real: &'static Real,
        device: Arc<Device>,
        convolution: Convolution,
        engines: Vec<EngineName>,
        tile: Option<TilePlan>,
        caller: String,
    ) -> Route {
        let packing = Packing::new(&convolution);
        Route {
            real,
            device,
            convolution,
            engines,
            tile,
            caller,
            packing,
            settled: RwLock::new(None),
            moves: OnceLock::new(),
            counts: Default::default(),
        }
    }

    /// The bytes of workspace with which it is computed fastest; 256 more, so that any address can be rounded up.
    pub(crate) fn workspace_bytes(&self) -> u64 {
        if self.engines.first() != Some(&EngineName::Jit) {
            return 0;
        }
        let best = self.device.engine.candidates(&self.convolution.problem).into_iter().next();
        let bytes = best.map_or(0, |candidate| candidate.plan.workspace_bytes) + self.packing.bytes;
        if bytes == 0 { 0 } else { bytes + 256 }
    }

    /// What the model of the card says that it takes, in milliseconds; 0 where there is no model of the engine.
    pub(crate) fn milliseconds(&self) -> f32 {
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

    /// The launches that bring operands into order and the result out of it.
    pub(crate) fn moves(&self) -> Result<&Moves, GpuError> {
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
            moves[index] = Some(engine.load_move(copy)?);
        }
        Ok(self.moves.get_or_init(|| Moves(moves)))
    }

    pub(crate) fn count(&self, engine: EngineName) {
        self.counts[engine as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// How often each engine computed it.
    pub(crate) fn counted(&self) -> Vec<(EngineName, u64)> {
        let all = EngineName::ALL.map(|engine| (engine, self.counts[engine as usize].load(Ordering::Relaxed)));
        all.into_iter().filter(|(_, count)| *count > 0).collect()
    }
}
