//! Tests the emulator with random kernels.
//!
//! [`generate::generate`] turns a seed into a C++ program. It has integers, shifts, divisions, conversions, halves,
//! floats and doubles, private and local arrays, and unaligned accesses. It also has calls, loops, atomics, and lanes
//! that exchange values. The language defines the result of every such program to the bit.
//!
//! [`compare::Bench`] compiles it for the host and, with two compilers, for RDNA1 and RDNA2. It runs one on the CPU and
//! the other on the emulator, and compares every word that was written. [`minimise::minimise`] removes what a failure
//! does not need.
//!
//! Nothing here knows how the emulator works, and nothing here computes a result: the host's compiler and processor do.

#![forbid(unsafe_code)]

pub mod compare;
pub mod generate;
pub mod minimise;
pub mod program;
pub mod random;
pub mod recorded;
