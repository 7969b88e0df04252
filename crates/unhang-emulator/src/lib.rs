//! An RDNA1 that executes code objects on the CPU.
//!
//! [`Machine`] loads a code object, holds global memory, and runs kernels: workgroups in parallel, the waves of a
//! workgroup in turns between barriers, 32 lanes at a time. Every access to memory is checked. In gfx1010 mode it follows
//! the hazard rules of `unhang-isa` along the path that is executed and stops where the hardware might hang or compute
//! nonsense.
//!
//! It executes what compilers emit for compute kernels; an instruction that it does not know is a fault by name, never
//! a guess. It does not model time, caches or the order in which real hardware lets waves run, and knows nothing of
//! convolutions or drivers.

#![forbid(unsafe_code)]
// Several arrays are walked together, lane by lane; the lane's number is the subject.
#![allow(clippy::needless_range_loop)]

mod counts;
mod fault;
mod lanes;
mod load;
mod machine;
mod memory;
mod memory_access;
mod scalar;
mod semantics;
mod vector;
mod wave;

pub use counts::{Counts, Unit};
pub use fault::{Fault, FaultKind};
pub use machine::{Dispatch, Machine, Mode, Object, Perturbation};
pub use memory::Memory;
