//! The GPU engine: every convolution on the GPU with our own kernels, compiled at run time for the chip that is really
//! there. On an RDNA1 card AMD's convolution library is then not needed at all.
//!
//! * [`choice`]: which kernels could compute a problem, and how long each would take by a model of the device;
//! * [`plan`]: a choice made concrete: kernels with their constants, grids, parameters, workspace. Pure;
//! * [`compiler`]: hiprtc and nvrtc by `dlopen`; they need no GPU;
//! * [`driver`]: HIP and CUDA by `dlopen` of what torch has already loaded: load, launch, events;
//! * [`object`]: code objects of AMD: registers and spills, and retagging for a spoofed runtime;
//! * [`cache`]: compiled objects on disk;
//! * [`shipped`]: the general kernels that come with the package, and how they are made;
//! * [`catalogue`]: our kernels for a chip, compiled and audited without it;
//! * `predict` (with the emulated card): what a plan would take on an RDNA1 card, from its kernels' own instructions;
//! * [`normalization`]: batch normalisation, and what follows a convolution;
//! * [`pooling`]: the largest elements or the means of windows, and their gradients;
//! * [`reduction`]: sums, products, norms, the least and the largest along axes of a tensor;
//! * [`strided`]: tensors that lie otherwise than the kernels read them, brought there and back;
//! * [`FromHost`]: the engine on operands in the host's memory, for children and tests;
//! * [`GpuEngine`]: all of it together: `supports`, `prepare`, `launch`.
//!
//! One kernel source (`kernels/*.cu`) serves HIP and CUDA. This crate knows no torch, no store of evidence and no
//! planner: it is handed device pointers, a stream and a workspace, and allocates nothing on the device itself ([`FromHost`] and
//! measurements do). Whether
//! a kernel may run in this process at all (the canary) is decided by its callers.

#![deny(unsafe_code)]

#[cfg(feature = "c-abi")]
#[allow(unsafe_code, reason = "called by C")]
mod c_abi;
pub mod cache;
pub mod candidates;
pub mod catalogue;
pub mod choice;
#[allow(unsafe_code, reason = "calls the compilers' libraries")]
pub mod compiler;
#[allow(unsafe_code, reason = "calls the drivers' libraries")]
pub mod driver;
#[allow(unsafe_code, reason = "an address becomes a function")]
mod dynamic;
mod engine;
mod error;
pub mod fit;
#[allow(unsafe_code, reason = "allocates on the device and copies")]
mod from_host;
#[allow(unsafe_code, reason = "launches on addresses that the caller vouches for")]
mod launches;
pub mod model;
pub mod normalization;
pub mod object;
mod objects;
pub mod plan;
mod plan_parts;
mod planning;
pub mod pooling;
#[cfg(feature = "emulated")]
pub mod predict;
pub mod reduction;
pub mod shapes;
pub mod shipped;
pub mod sources;
#[allow(unsafe_code, reason = "launches on addresses that the caller vouches for")]
pub mod strided;
#[allow(unsafe_code, reason = "allocates on the device to measure")]
pub mod tuning;
#[allow(unsafe_code, reason = "sets a thread's priority")]
mod workshop;

pub use engine::{DevicePointers, GpuEngine, GpuSettings, Prepared, Request, Timing};
pub use error::GpuError;
pub use from_host::FromHost;
pub use launches::{Launches, LoadedLaunches, Way};
