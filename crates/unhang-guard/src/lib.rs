//! Keeps others on the same machine out of our files, our processes and our terminal.
//!
//! [`folder`] holds files that belong to this user alone; everything that is kept between processes and believed
//! later is in such a folder. [`process`] tells processes apart, so that a signal reaches the right one. [`input`]
//! reads files that somebody named, with limits. `sqlite` opens databases that others wrote. [`text`] is the one
//! filter for outside text that people see, and [`time`] reads times as people write them.
//!
//! It knows nothing about GPUs, torch or stores. It depends only on the system's own calls, because the shield uses it
//! too, inside other people's processes.

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
