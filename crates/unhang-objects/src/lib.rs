//! Containers of GPU code: everything that code objects are extracted from.
//!
//! [`walk`] goes through a file or folder and passes on each code object of the gfx10 family that it finds. It reads
//! plain code objects, fat binaries in shared libraries, bundles (compressed or not), MIOpen's kernel databases, wheels
//! and other zip archives, and folders. One code object is in memory at a time, whatever the size of the container.
//! [`rewrite`](fn@rewrite) writes a copy of a container with its code objects changed, if the container allows it.
//! [`metadata`] reads what a code object says about its kernels; [`survey`] audits all of its functions at once, on all
//! cores.
//!
//! This crate knows containers and threads. Only `unhang-isa` knows what machine code means.

#![forbid(unsafe_code)]

mod bundle;
mod database;
mod error;
mod host;
pub mod metadata;
pub mod repair;
mod rewrite;
pub mod survey;
mod walk;
mod zip;

pub use error::ObjectsError;
pub use rewrite::{Found, Size, rewrite};
pub use walk::{WalkEvent, walk};
