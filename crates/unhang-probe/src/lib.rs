//! Supervised children: what is unproven is tried in one, with a deadline, and a hang costs a child and nothing else.
//!
//! [`supervise`] runs one child to its end, whatever it does. This crate must not know torch, a GPU runtime or a
//! particular engine: it sees processes.

#![forbid(unsafe_code)]

mod supervise;

pub use supervise::{Child, Ended, Outcome, SuperviseError, supervise};
