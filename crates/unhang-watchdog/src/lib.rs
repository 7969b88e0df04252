//! Which call hangs on an accelerator, and what its process leaves behind ([`HangReport`]).
//!
//! Launches are asynchronous: a call that returned has only been queued. So a marker (an event of the driver) goes into
//! the stream before and after each watched call, and markers of ours ("fences") where nothing else was put. Markers of
//! a stream happen in order, so there is one rule: **the oldest marker that has not happened, and has been the oldest
//! for longer than the deadline, tells what hangs.** If it stands after a call, that call; if it is a fence put while a
//! call had not returned to the host, that call (a library that tries candidates and waits for them); otherwise
//! something else.
//!
//! A deep queue is no hang (the oldest marker keeps changing), nor is a compilation or a slow data loader (the stream is
//! idle and fences happen). Time in which the whole process stood still does not count.
//!
//! Two threads: the *poller* asks the driver, and may get stuck in it; the *judge* asks nobody, looks at what the poller
//! left behind, and always answers. Neither needs an interpreter's lock.
//!
//! This crate must not know a driver, torch, a convolution or a store: events come through [`Events`], what is watched
//! is the caller's type, what to do about a hang is the caller's function, and a report has what hung as text. The shield
//! stands on it: no dependency but `unhang-guard`, unless reports are to be read.

#![forbid(unsafe_code)]

mod judge;
mod lane;
pub mod report;
mod shared;
mod watch;

pub use lane::{Events, Lane};
pub use report::HangReport;
pub use shared::{Hang, Place, WatchSettings};
pub use watch::{Call, HostCall, Watch};
