//! What happens to a convolution in this process, written once for every face: torch's dispatcher, MIOpen's boundary, the
//! program.
//!
//! * [`Session`] is what the process knows: machine, store, evidence, canaries, failures;
//! * [`Card`] says what a device's canaries are kept under, and the session runs those that have not run;
//! * [`proof`] is what is shown of kernels before they compute for the user, with every limit;
//! * [`sample`] says which elements of a first result are compared;
//! * [`Contest`] finds the fastest of several kernels; [`tune`] runs one in a search, [`PolledContest`] between
//!   a program's calls;
//! * [`Process`] takes a face's calls to [`Decision`]s, and [`Planned::execute`] computes them on the face's memory and stream. What
//!   a face provides is the trait [`Face`];
//! * [`compute`] computes every other [`Operation`]: a normalisation, a pooling, a reduction;
//! * [`Watchdog`] watches convolutions on a driver's streams, and [`deadlines`] says how long is too long;
//! * [`Farewell`] keeps a hang as evidence, reports it and ends the process.
//!
//! This crate must not know torch, Python or MIOpen's interface.

#![deny(unsafe_code)]

mod canaries;
mod card;
#[allow(unsafe_code, reason = "computes on addresses that the caller vouches for")]
mod compute;
mod contest;
mod deadlines;
#[allow(unsafe_code, reason = "allocates and frees memory of the device")]
mod device;
mod failure;
mod farewell;
mod first;
mod hip;
#[allow(unsafe_code, reason = "copies between the host's memory and the device's")]
mod host;
#[allow(unsafe_code, reason = "computes on addresses that the caller vouches for")]
mod normalization;
#[allow(unsafe_code, reason = "computes on addresses that the caller vouches for")]
mod operation;
#[allow(unsafe_code, reason = "copies between the host's memory and the device's")]
mod placed;
#[cfg(test)]
#[allow(unsafe_code, reason = "plays a driver on the host's memory")]
mod played;
mod polled;
#[allow(unsafe_code, reason = "computes on addresses that the caller vouches for")]
mod pooling;
mod process;
pub mod proof;
#[allow(unsafe_code, reason = "computes on addresses that the caller vouches for")]
mod reduction;
mod remembered;
mod route;
pub mod sample;
mod session;
mod subject;
mod talk;
mod tuning;
mod view;
#[allow(unsafe_code, reason = "computes on addresses that the caller vouches for")]
mod volume;
mod volume_route;
mod watchdog;

pub use card::Card;
pub use compute::{Call, NotComputed};
pub use contest::{Contest, Effort, Round, take_tunings};
pub use deadlines::deadlines;
pub use device::Device;
pub use failure::Failure;
pub use farewell::{Farewell, say};
pub use hip::open_hip;
pub use host::Numbers;
pub use normalization::Normalizing;
pub use operation::{Content, Operand, Operation, compute};
pub use placed::Placed;
pub use polled::{Measuring, Next, OnGpu, PolledContest};
pub use process::{Decision, Face, Process, try_families_of};
pub use route::{Route, Totals};
pub use session::Session;
pub use subject::Subject;
pub use talk::say_once;
pub use tuning::tune_operation;
pub use unhang_watchdog::WatchSettings;
pub use view::{Convolution, View};
pub use volume::Planned;
pub use volume_route::{Asked, VolumeConvolution, VolumeRoute};
pub use watchdog::{Runtime, Watchdog, WatchedCall};
