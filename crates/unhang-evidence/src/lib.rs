//! What is known about a convolution on an engine on a machine, its source, and since when.
//!
//! * [`Record`]: one observation; [`Evidence`]: all of them for one machine, in memory, judged.
//! * [`Store`]: keeps records beyond the process. It never stops or slows the program that uses it: if something is
//!   wrong with the file, work goes on without it, and one notice says so.
//! * [`rules`]: what reports claim about RDNA1 cards, with the source and what contradicts it. A rule makes a
//!   combination suspect and never proves anything.
//! * [`exchange`]: the file in which people share their findings; imported findings are suspicion, never proof.
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
