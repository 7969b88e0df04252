//! What happens to a convolution in this process, written once for every face: torch's dispatcher, MIOpen's boundary, the
//! program.
//!
//! * [`Watchdog`] watches convolutions on a driver's streams; `unhang-watchdog` finds what hangs;
//! * [`Farewell`] keeps a hang as evidence, reports it and ends the process;
//! * [`deadlines`] says how long is too long, by the variables that name it.
//!
//! This crate must not know torch, Python or MIOpen.

#![forbid(unsafe_code)]

mod deadlines;
mod farewell;
mod watchdog;

pub use deadlines::deadlines;
pub use farewell::{Farewell, say};
pub use unhang_watchdog::WatchSettings;
pub use watchdog::{Runtime, Subject, Watchdog, WatchedCall};
