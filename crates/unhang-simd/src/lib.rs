//! The CPU engine's kernels: loops made of vector instructions, compiled for each instruction set.
//!
//! They know no convolution: addresses, counts and steps come from `unhang-cpu`. They take minutes to compile. In a
//! separate crate they are not compiled again when the engine changes.

#![deny(unsafe_code)]

mod isa;
#[allow(unsafe_code, reason = "vector instructions on the caller's memory")]
mod kernels;
mod parts;
#[allow(unsafe_code, reason = "vector instructions")]
mod vector;

pub use isa::Isa;
pub use kernels::*;
pub use parts::even_parts;
