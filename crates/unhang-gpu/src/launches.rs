//! The launches of an operation other than a convolution: kernels, one after the other, on the operation's memory.

use std::fmt;

use crate::driver::Function;
use crate::shapes::Shape;
use crate::sources::Kernel;
use crate::{GpuEngine, GpuError};

/// Threads of a workgroup.
pub(crate) const THREADS: u32 = 256;

/// How an operation is divided among workgroups and threads. Every way has the same kernels and gives the same results,
/// apart from rounding. An operation uses what it has of this.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Way {
    /// The units of a workgroup, as a power of two: the more of them, the fewer threads each has.
    pub lane_bits: u32,
    /// The parts of a unit's elements, a workgroup each.
    pub chunks: usize,
    /// Whether four neighbours are read at once, if they lie so.
    pub in_quads: bool,
    /// The order of threads. In a reduction neighbours share a unit; in a pooling they have neighbouring channels.
    pub along: bool,
}

impl Way {
    /// It and the ways next to it, the most promising first.
    pub fn near(self) -> [Way; 7] {
        let in_chunks = |chunks| Way { chunks, ..self };
        let with_lanes = |lane_bits| Way { lane_bits, ..self };
        [
            self,
            in_chunks(2 * self.chunks),
            in_chunks(self.chunks.div_ceil(2)),
            with_lanes((self.lane_bits + 2).min(THREADS.ilog2())),
            with_lanes(self.lane_bits.saturating_sub(2)),
            Way { along: !self.along, ..self },
            Way { in_quads: false, ..self },
        ]
    }
}

impl fmt::Display for Way {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Way { lane_bits, chunks, in_quads, along } = *self;
        write!(to, "lanes:{}:parts:{chunks}:fours:{}:along:{}", 1 << lane_bits, in_quads as u8, along as u8)
    }
}

/// One launch.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Stage {
    pub(crate) kernel: Kernel,
    pub(crate) grid: [u32; 3],
    pub(crate) shape: Shape,
    /// Which of the operation's addresses it is given, and how far behind each.
    pub(crate) operands: Vec<(usize, u64)>,
}

/// The launches that compute an operation.
#[derive(Debug, Clone, PartialEq)]
pub struct Launches {
    pub(crate) stages: Vec<Stage>,
    pub(crate) workspace_bytes: u64,
}

impl Launches {
    /// Bytes of workspace that the caller must give.
    pub fn workspace_bytes(&self) -> u64 {
        self.workspace_bytes
    }

    /// Which kernels there are, and which way each takes through its code.
    pub fn path(&self) -> Vec<(Kernel, Vec<i32>)> {
        self.stages.iter().map(|stage| (stage.kernel.clone(), stage.shape.path())).collect()
    }

    /// The kernels.
    pub fn kernels(&self) -> impl Iterator<Item = &Kernel> {
        self.stages.iter().map(|stage| &stage.kernel)
    }
}

/// Launches whose kernels are loaded.
#[derive(Debug, Clone)]
pub struct LoadedLaunches {
    launches: Launches,
    functions: Vec<Function>,
}

impl LoadedLaunches {
    /// Bytes of workspace that the caller must give.
    pub fn workspace_bytes(&self) -> u64 {
        self.launches.workspace_bytes
    }
}

impl GpuEngine {
    /// Compiles and loads the kernels of launches in a stream, from memory or the cache if possible. While that stream
    /// records a graph, only loaded ones are available.
    pub fn load_launches(&self, launches: Launches, stream: u64) -> Result<LoadedLaunches, GpuError> {
        if launches.kernels().any(|kernel| !self.is_loaded(kernel)) && self.driver().is_capturing(stream)? {
            return Err(GpuError::Capturing);
        }
        let functions = launches.kernels().map(|kernel| self.function(kernel)).collect::<Result<_, _>>()?;
        Ok(LoadedLaunches { launches, functions })
    }

    /// Starts them on a stream and returns.
    ///
    /// # Safety
    /// The addresses of the operation's memory, in its order, the workspace last: such memory as its task says, which
    /// stays valid until the work is done.
    pub unsafe fn launch_all(&self, loaded: &LoadedLaunches, addresses: &[u64], stream: u64) -> Result<(), GpuError> {
        for (stage, &function) in loaded.launches.stages.iter().zip(&loaded.functions) {
            let given = stage.operands.iter().map(|&(operand, behind)| addresses[operand] + behind).collect();
            // SAFETY: the caller's promise; arguments and shape are those that the kernel declares.
            unsafe { self.launch_with(function, stage.grid, THREADS, given, &stage.shape, stream)? };
        }
        Ok(())
    }
}
