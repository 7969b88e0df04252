//! An RDNA1 that executes code objects on the CPU.
//!
//! [`Machine`] loads a code object, holds global memory, and runs kernels: workgroups in parallel, the waves of a
//! workgroup in turns between barriers, 32 lanes at a time. Every access to memory is checked. In gfx1010 mode it
//! applies the hazard rules of `unhang-isa` along the executed path, and stops where the hardware might hang or compute
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
//! let dispatch = Dispatch::new("axpy", [1, 1, 1], [256, 1, 1], &arguments);
//! let counts = machine.run(&dispatch).unwrap();
//! assert_eq!(machine.memory.read_floats(y, 100).unwrap(), [2.5; 100]);
//! assert!(counts.instructions() > 0);
//! ```
//!
//! It executes what compilers emit for compute kernels. An unknown instruction is a named fault, never a guess. It
//! counts cycles of issue, but models neither time nor caches, nor the order in which real hardware runs waves. It
//! knows nothing about convolutions or drivers.
//!
//! It has floors, each of which knows those below. *State*: `registers`, `float`, `wave`, `memory`. *Semantics*:
//! `lanes`, `host`, `access`, `scalar`, `vector`, `surroundings`, `memory_access`, found by `semantics`. *Plain*:
//! `function`, `waits`, `pending`, `observe`, `plain`: one instruction after another. *Fast*: `fast`: resolved, in
//! stretches. The top floor runs them: `code`, `launch`, `execute`, `dispatch`, `machine`.

#![deny(unsafe_code)]
#![allow(clippy::needless_range_loop, reason = "several arrays are walked together, lane by lane")]

mod access;
mod buffer;
mod buffer_format;
mod bytes;
mod code;
mod counts;
mod dispatch;
mod divide;
mod execute;
#[allow(unsafe_code, reason = "functions compiled for the host's vectors")]
mod fast;
mod fault;
mod float;
mod function;
#[allow(unsafe_code, reason = "functions compiled for the host's vectors")]
mod host;
mod image;
#[cfg(test)]
mod instruction_tests;
mod lane_operands;
mod lanes;
mod launch;
mod load;
mod machine;
#[allow(unsafe_code, reason = "memory that kernels share with the process")]
mod memory;
mod memory_access;
mod observe;
mod packed;
mod pending;
mod plain;
mod races;
#[allow(unsafe_code, reason = "rows of registers as slices")]
mod registers;
mod saturate;
mod scalar;
mod semantics;
mod settings;
mod surroundings;
mod two_over_pi;
mod vector;
mod waits;
mod wave;
mod wave64;

pub use access::Space;
pub use counts::{Counts, Unit};
pub use fault::{Fault, FaultKind, Race};
pub use launch::{Packet, Scratch};
pub use machine::{Dispatch, Machine, Object, kernel_name};
pub use memory::{HostRegion, Memory};
pub use observe::{Follow, Moment, Observer, Touched, VectorOperands};
pub use settings::{Mode, Perturbation};
pub use unhang_objects::metadata::{ArgumentMetadata, KernelMetadata};
