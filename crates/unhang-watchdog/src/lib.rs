//! Which call hangs on an accelerator, and what its process leaves behind ([`HangReport`]).
//!
//! Launches are asynchronous: a call that returned has only been queued. So a marker (an event of the driver) goes
//! into the stream before and after each watched call. A marker of ours (a "fence") goes where there is no other.
//! Markers of a stream complete in order, so there is one rule: **the oldest marker that has not completed, and has
//! been the oldest for longer than the deadline, says what hangs.** If it is after a call, that call hangs. If it is a
//! fence added before a call returned to the host, that call hangs (a library that tries candidates and waits for
//! them). Otherwise something else hangs.
//!
//! A deep queue is not a hang, because the oldest marker keeps changing. Nor is a compilation or a slow data loader,
//! because the stream is idle and fences complete. Time in which the whole process stood still does not count.
//!
//! There are two threads. The *poller* calls the driver, and may get stuck in it. The *judge* calls nobody, looks at
//! what the poller left behind, and always answers. Neither needs an interpreter's lock.
//!
//! This crate must not know a driver, torch, a convolution or a store. Events come through [`Events`], the caller's
//! type says what is watched, the caller's function handles a hang, and a report names what hung as text. The shield
//! uses this crate, so it depends on nothing but `unhang-guard`, unless reports are read.

#![forbid(unsafe_code)]

mod judge;
mod lane;
pub mod report;
mod shared;
mod watch;

pub use lane::{Events, Lane};
pub use report::HangReport;
pub use shared::{Hang, HangPlace, WatchSettings};
pub use watch::{Call, HostCall, Watch};
