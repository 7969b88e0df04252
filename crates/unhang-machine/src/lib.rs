//! What is here and what is wrong with it: inspection, findings, environment profiles, install and uninstall.
//!
//! Everything is read through one value, [`System`]: a root folder and a set of variables. So any machine can be a
//! folder, and tests, rehearsals and bug reports are all the same thing. [`Machine::inspect`] says what is here.
//!
//! This crate must not know what a convolution is, must not start a process, and must not load or call a GPU
//! runtime: it reads files. It writes only where it is asked to (installing a profile, mending a cache), and then
//! reversibly.

#![forbid(unsafe_code)]

pub mod chips;
mod gpu;
mod kernel;
mod machine;
mod system;
pub mod variables;

pub use gpu::Gpu;
pub use kernel::{Kernel, LogLine, Parameter};
pub use machine::Machine;
pub use system::{DeviceAccess, Environment, LARGE, Obstacle, ReadError, SMALL, System};
