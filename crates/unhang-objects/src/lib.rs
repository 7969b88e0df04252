//! Containers of GPU code: everything from which code objects are taken out.
//!
//! [`walk`] goes through a file or folder and hands over each code object of the gfx10 family that it finds: plain
//! code objects, fat binaries in shared libraries, bundles (compressed or not), MIOpen's kernel databases, wheels and
//! other zip archives, folders. One code object is in memory at a time, whatever the size of the container.
//! [`rewrite`](fn@rewrite) writes a copy of a container with its code objects changed, where the container allows it.
//! [`metadata`] reads what a code object says about its kernels; [`survey`] audits all of its functions at once, on all
//! cores.
//!
//! This crate knows containers and threads; what machine code means is `unhang-isa`'s alone.

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
