//! What keeps others on the same machine out of our files, our processes and our terminal.
//!
//! [`folder`] holds files that are this user's alone, and everything that is kept between processes and believed
//! afterwards is in such a folder. [`process`] tells processes apart, so that a signal meets the one that was meant.
//! [`input`] reads files that somebody named, with an end to it. `sqlite` opens databases that others wrote. [`text`] is the one filter through which text from outside reaches people, and
//! [`time`] reads the times that people write.
//!
//! It knows nothing of GPUs, torch or stores, and it has no dependency but the system's own calls: the shield, which
//! runs in other people's processes, stands on it too.

#![forbid(unsafe_code)]

pub mod budget;
pub mod folder;
pub mod input;
pub mod process;
#[cfg(feature = "sqlite")]
pub mod sqlite;
pub mod text;
pub mod time;

pub use budget::{Budget, OverBudget};
pub use folder::{NotPrivate, PrivateFolder};
pub use process::{Handle, Identity};
pub use text::printable;
