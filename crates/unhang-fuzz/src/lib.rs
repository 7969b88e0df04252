//! Random kernels as a test of the emulator.
//!
//! [`generate::generate`] makes a C++ program of a seed: whole numbers, shifts, divisions, conversions, halves, floats and
//! doubles, private and local arrays, accesses that are not aligned, calls, loops, atomics, lanes that exchange values. It is
//! written so that the language defines its result to the bit. [`compare::Bench`] compiles it for the host and, by two
//! compilers, for RDNA1 and RDNA2, runs the one on the CPU and the other on the emulator, and compares every word that was
//! written. [`minimise::minimise`] takes away what a failure does not need.
//!
//! Nothing here knows how the emulator works, and no result is worked out here: the host's compiler and processor do that.

#![forbid(unsafe_code)]

pub mod compare;
pub mod generate;
pub mod minimise;
pub mod program;
pub mod random;
pub mod recorded;
