//! The launches of an operation other than a convolution: kernels, one after the other, on the operation's memory.

use crate::driver::Function;
use crate::shapes::Shape;
use crate::sources::Kernel;
use crate::{GpuEngine, GpuError};

/// Threads of a workgroup.
pub(crate) const THREADS: u32 = 256;

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
