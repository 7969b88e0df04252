//! The fast path: instructions with their operands resolved once, executed on whole registers.
//!
//! [`resolve`] turns an instruction into a few bytes that say where its operands are and which function computes it.
//! Unknown instructions, accesses past the kernel's registers, and unusual float modes take the plain path
//! ([`crate::plain`]). It computes the same to the bit, and the tests compare the two.

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
