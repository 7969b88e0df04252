//! What is known of (convolution, engine, machine), from where, and since when.
//!
//! * [`Record`]: one thing that was seen; [`Evidence`]: all of them for one machine, in memory, judged.
//! * [`Store`]: where records outlive the process. It never stops and never slows the program that uses it: whatever is
//!   wrong with the file, work goes on without it and one notice says so.
//! * [`rules`]: what reports claim about RDNA1 cards, with where it was claimed and what contradicts it. A rule makes a
//!   combination suspect and never proves anything.
//! * [`exchange`]: the file by which people give their findings to others; what comes in is suspicion, never proof.
//!
//! This crate must not know any engine's workings, the machine (a fingerprint is a text to it), torch or the planner.

#![forbid(unsafe_code)]

mod database;
mod evidence;
pub mod exchange;
mod home;
mod process;
mod quarantine;
mod queue;
mod record;
mod rows;
pub mod rules;
mod store;
pub mod time;

pub use evidence::{Evidence, Finding, Realm, Standing};
pub use home::home;
pub use quarantine::{Quarantined, quarantined};
pub use record::{Canary, Filter, Intent, IntentId, Record, RecordSource, Seen, Tuning};
pub use store::Store;
