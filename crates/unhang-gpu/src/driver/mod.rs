//! Drivers, which run code objects: HIP and CUDA by `dlopen`, and the emulator of RDNA1.

mod cuda;
mod device;
#[cfg(feature = "emulated")]
pub(crate) mod emulated;
mod events;
mod hip;
pub(crate) mod hip_runtime;
mod vendor;

use std::ffi::c_void;
use std::sync::Arc;

use thiserror::Error;

#[cfg(feature = "emulated")]
pub use emulated::{Emulated, EmulatedEngine};
pub use events::DeviceEvents;
pub use hip::{HipChip, hip_pci_address};
pub use vendor::VendorDriver;

use crate::compiler::{CompileError, Compiler};
use crate::model::DeviceModel;

/// A call of the driver that failed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DriverError {
    /// The driver's library is missing.
    #[error("no driver: {0}")]
    Missing(#[from] crate::dynamic::LibraryMissing),
    /// The library lacks a function.
    #[error("the driver cannot be used: {0}")]
    Unusable(String),
    /// A call failed.
    #[error("{call} failed with {code} ({meaning})")]
    Call {
        /// The driver's function.
        call: &'static str,
        /// What it returned.
        code: i32,
        /// That in the driver's words.
        meaning: String,
    },
    /// The driver's compiler is not available.
    #[error(transparent)]
    Compiler(#[from] CompileError),
}

impl DriverError {
    /// Whether the device has no memory left: both vendors say so with the same number.
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, DriverError::Call { code: 2, .. })
    }
}

/// What a driver runs on.
#[derive(Debug, Clone, PartialEq)]
pub struct Description {
    /// The device's name, from the driver.
    pub name: String,
    /// The architecture that the runtime reports: `gfx1030` under a spoof, `sm_90`.
    pub reported_architecture: String,
    /// The true chip's architecture, which kernels are compiled for.
    pub true_architecture: String,
    /// The driver, with its version.
    pub driver: String,
    /// What the model knows of it.
    pub model: DeviceModel,
}

impl Description {
    /// Whether it is an emulated card, about a thousand times slower than a real one.
    pub fn is_emulated(&self) -> bool {
        self.name.contains("emulated")
    }
}

/// A loaded kernel. Modules are never unloaded: captured graphs may hold their functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Function(pub u64);

/// A point in a stream's work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamEvent(pub u64);

/// The fill of memory for measuring: 1.0 in f16, about 0.008 in f32 and bf16, 3e-19 in f64.
const FILLING: u32 = 0x3c00_3c00;

/// Runs code objects.
///
/// Streams are the driver's own handles as numbers, as torch hands them out; 0 is the default stream. A driver that has done
/// everything when a call returns needs no events and has nothing to wait for.
pub trait Driver: Send + Sync {
    /// What it runs on.
    fn description(&self) -> &Description;

    /// The compiler for it.
    fn compiler(&self) -> Arc<dyn Compiler>;

    /// Loads an object and finds a function in it.
    fn load(&self, object: &[u8], entry: &str) -> Result<Function, DriverError>;

    /// Starts a kernel on a stream and returns.
    ///
    /// # Safety
    /// The arguments must be what the kernel declares, and the memory behind them must stay valid until the kernel is
    /// done.
    unsafe fn launch(
        &self,
        function: Function,
        grid: [u32; 3],
        block: u32,
        arguments: &mut [*mut c_void],
        stream: u64,
    ) -> Result<(), DriverError>;

    /// Whether a stream records a graph, during which nothing may be compiled, loaded or waited for.
    fn is_capturing(&self, stream: u64) -> Result<bool, DriverError>;

    /// Creates an event.
    fn create_event(&self) -> Result<StreamEvent, DriverError> {
        Ok(StreamEvent(0))
    }

    /// Puts an event into a stream.
    fn record(&self, _event: StreamEvent, _stream: u64) -> Result<(), DriverError> {
        Ok(())
    }

    /// Milliseconds between two events; `None` until both have happened.
    fn elapsed(&self, _from: StreamEvent, _to: StreamEvent) -> Result<Option<f32>, DriverError> {
        Ok(Some(0.0))
    }

    /// Ends an event.
    fn destroy_event(&self, _event: StreamEvent) -> Result<(), DriverError> {
        Ok(())
    }

    /// Device memory for measuring, full of small finite numbers in any type. Torch's tensors come from torch.
    fn allocate(&self, bytes: usize) -> Result<u64, DriverError> {
        Err(DriverError::Unusable(format!("it gives out no memory, and {bytes} bytes were asked for")))
    }

    /// Gives back what [`Driver::allocate`] gave.
    ///
    /// # Safety
    /// Nothing may use the memory any more.
    unsafe fn free(&self, address: u64) -> Result<(), DriverError> {
        Err(DriverError::Unusable(format!("it gave out no memory, and {address:#x} is to be given back")))
    }

    /// Copies device memory to the host once the stream has reached this point, and waits: as [`Driver::synchronize`].
    ///
    /// # Safety
    /// As many bytes of device memory as `to` has must lie at `from`.
    unsafe fn read(&self, to: &mut [u8], from: u64, stream: u64) -> Result<(), DriverError> {
        Err(DriverError::Unusable(format!("it copies nothing: {} bytes at {from:#x} in stream {stream:#x}", to.len())))
    }

    /// Copies from memory of the host to the device.
    ///
    /// # Safety
    /// As many bytes of device memory as `from` has must lie at `to`.
    unsafe fn write(&self, to: u64, from: &[u8], stream: u64) -> Result<(), DriverError> {
        Err(DriverError::Unusable(format!("it copies nothing: {} bytes to {to:#x} in stream {stream:#x}", from.len())))
    }

    /// Waits for a stream. Never call this on an unproven kernel in a process that must not hang.
    fn synchronize(&self, _stream: u64) -> Result<(), DriverError> {
        Ok(())
    }
}
