//! The fast path: instructions with their operands resolved once, executed on whole registers.
//!
//! [`resolve`] turns an instruction into a few bytes that say where its operands lie and which function computes it. What it
//! does not know, what reaches past the kernel's registers, and unusual float modes take the plain path
//! ([`crate::plain`]), which computes the same to the bit and which the tests hold this one against.

mod addresses;
pub(crate) mod comparisons;
mod compute;
pub(crate) mod function;
mod halves;
pub(crate) mod memory;
pub(crate) mod op;
mod operands;
pub(crate) mod pairs;
#[cfg(target_arch = "x86_64")]
mod parts;
pub(crate) mod resolve;
pub(crate) mod run;
pub(crate) mod stretch;
mod wide;
mod words;
