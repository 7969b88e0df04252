//! An RDNA1 that executes code objects on the CPU.
//!
//! [`Machine`] loads a code object, holds global memory, and runs kernels: workgroups in parallel, the waves of a
//! workgroup in turns between barriers, 32 lanes at a time. Every access to memory is checked. In gfx1010 mode it follows
//! the hazard rules of `unhang-isa` along the path that is executed and stops where the hardware might hang or compute
//! nonsense.
//!
//! ```
//! use unhang_emulator::{Dispatch, Machine, Mode};
//! use unhang_isa::Chip;
//! let object = include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/kernels.gfx1010.co"));
//! let mut machine = Machine::load(object, Mode::Hazards(Chip::Gfx1010)).unwrap();
//! let (x, y) = (machine.memory.allocate_floats(&[1.0; 100]), machine.memory.allocate_floats(&[2.0; 100]));
//! // axpy(const float* x, float* y, float a, int n)
//! let mut arguments: Vec<u8> = [x, y].iter().flat_map(|address| address.to_le_bytes()).collect();
//! arguments.extend(0.5f32.to_le_bytes().into_iter().chain(100i32.to_le_bytes()));
//! let dispatch = Dispatch {
//!     kernel: "axpy",
//!     workgroups: [1, 1, 1],
//!     workgroup_size: [256, 1, 1],
//!     arguments: &arguments,
//!     dynamic_local: 0,
//! };
//! let counts = machine.run(&dispatch).unwrap();
//! assert_eq!(machine.memory.read_floats(y, 100).unwrap(), [2.5; 100]);
//! assert!(counts.instructions() > 0);
//! ```
//!
//! It executes what compilers emit for compute kernels; an instruction that it does not know is a fault by name, never
//! a guess. It counts cycles of issue but does not model time, caches or the order in which real hardware lets waves run, and knows nothing of
//! convolutions or drivers.

#![deny(unsafe_code)]
// Several arrays are walked together, lane by lane; the lane's number is the subject.
#![allow(clippy::needless_range_loop)]

mod access;
mod buffer;
mod buffer_format;
mod bytes;
mod code;
mod counts;
mod dispatch;
mod divide;
mod execute;
#[allow(unsafe_code)]
mod fast;
mod fault;
mod float;
mod image;
#[cfg(test)]
mod instruction_tests;
mod lanes;
mod load;
mod machine;
#[allow(unsafe_code)]
mod memory;
mod memory_access;
mod observe;
mod packed;
mod pending;
mod races;
mod saturate;
mod scalar;
mod semantics;
mod two_over_pi;
mod vector;
mod waits;
mod wave;
mod wave64;

pub use counts::{Counts, Unit};
pub use dispatch::{Packet, Scratch};
pub use fault::{Fault, FaultKind, Race};
pub use machine::{Dispatch, Machine, Mode, Object, Perturbation, kernel_name};
pub use memory::{HostRegion, Memory};
pub use observe::{Follow, Moment, Observer, Space, Touched, VectorOperands};
pub use unhang_objects::metadata::{ArgumentMetadata, KernelMetadata};
