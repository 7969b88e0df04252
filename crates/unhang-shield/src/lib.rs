//! `libunhang_shield.so`: repairs GPU code as the HSA runtime loads it.
//!
//! The runtime loads the library through `HSA_TOOLS_LIB` and calls [`OnLoad`] with its table of functions. The two
//! through which all code objects pass (`hsa_code_object_reader_create_from_memory` and `_from_file`) are replaced. An
//! object for another chip than the RDNA1 card that is here is repaired ([`unhang_isa::repair`]) and handed on. So is
//! native code in which the audit finds something. Everything else is handed on unchanged.
//!
//! Under `unhang run` it also checks whether the program's queues move ([`queues`]): it is the only library that sees
//! every program's queues.
//!
//! This runs inside other people's processes. On any doubt, and on any panic, the object goes through unchanged.
//! Nothing is ever freed that the runtime may still read. It depends only on `unhang-isa`, the small `unhang-guard` and
//! the report of `unhang-watchdog`, and knows no torch, plan or store. Of other programs it knows names of kernels, and
//! the switches that avoid them.

#![deny(unsafe_code)]

mod cache;
mod chips;
#[allow(unsafe_code, reason = "the HSA runtime calls it")]
mod hsa;
mod left;
mod log;
mod queues;
mod repair;
mod switches;
#[allow(unsafe_code, reason = "reads and writes the HSA runtime's table")]
mod table;
#[allow(unsafe_code, reason = "calls the HSA runtime and reads its queues")]
mod watch;

pub use hsa::{OnLoad, OnUnload};
