//! Examines a machine: inspection, findings, environment profiles, install and uninstall.
//!
//! Everything is read through one value, [`System`]: a root folder and a set of variables. So any machine can be a
//! folder, and tests, rehearsals and bug reports are all the same thing. [`Machine::inspect`] says what is here.
//!
//! This crate must not know what a convolution is, must not start a process, and must not load or call a GPU
//! runtime: it reads files. It writes only where it is asked to (installing a profile, repairing a cache), and then
//! reversibly.

#![forbid(unsafe_code)]

mod assignments;
mod bundle;
mod card_management;
pub mod cards;
pub mod chips;
pub mod example;
mod finding;
mod findings;
mod frameworks;
mod gpu;
pub mod install;
mod journald;
mod kernel;
mod leftovers;
mod library;
mod machine;
pub mod miopen;
pub mod profile;
pub mod routes;
mod shell;
mod software;
mod steps;
pub mod symptoms;
mod system;
pub mod unrepaired;
pub mod variables;

pub use assignments::Assignment;
pub use bundle::Bundle;
pub use chips::gfx_of_override;
pub use finding::{Confidence, FilePlace, Finding, Severity, counted};
pub use findings::{Examination, IDS, Options, Setting, Verdict, examine};
pub use frameworks::Framework;
pub use gpu::Gpu;
pub use kernel::{LogKind, LogLine, OsKernel, Parameter};
pub use leftovers::Leftover;
pub use machine::{Machine, is_shielded};
pub use shell::quoted;
pub use software::{LoadedLibrary, Rocm, Software, Torch, packages_of};
pub use steps::{AdviceStep, Way, steps};
pub use system::{DeviceAccess, Environment, LARGE, Obstacle, ReadError, SMALL, System};
