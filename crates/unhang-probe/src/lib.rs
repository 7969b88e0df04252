//! Supervised children: anything unproven runs in one, with deadlines, so a hang costs a child and nothing else.
//!
//! * [`supervise`] runs one child to its end, whatever it does.
//! * [`TalkingChild`] is a child that receives tasks and answers line by line.
//! * [`PythonStart`] starts Python without imports from the working folder, and [`answer`] marks our own child's
//!   output.
//! * [`canary`] defines what a child prints that tries an engine first, and what its end means.
//! * [`Prober`] tries many convolutions on many engines. Its children serve one attempt after another ([`protocol`]).
//!   It writes each attempt to the store before it begins, and replaces children that hang or die.
//! * [`child`] is the other end of the protocol, for children written in Rust; [`trial`] is what such a child does with
//!   an attempt.
//! * [`rehearsal`] is such a child that plays a card according to a table. The prober sees only the child.
//!
//! This crate must not know torch, a GPU runtime or a particular engine: it sees processes.

#![forbid(unsafe_code)]

pub mod answer;
pub mod canary;
pub mod child;
mod explain;
pub mod grid;
mod prober;
mod process;
pub mod protocol;
mod python;
mod recorder;
pub mod rehearsal;
mod session;
mod supervise;
mod talking;
pub mod trial;
mod verdict;

pub use prober::{End, ProbeEvent, Probed, Prober, culprits};
pub use process::{Ended, SuperviseError};
pub use protocol::Stage;
pub use python::PythonStart;
pub use session::{Deadlines, Launch};
pub use supervise::{Child, ChildOutcome, GRACE, supervise, supervise_when_ready};
pub use talking::TalkingChild;
pub use verdict::{Attempt, Tried};
