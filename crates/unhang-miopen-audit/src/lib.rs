//! `libunhang_miopen_audit.so`: the way to MIOpen's callers that preloading does not reach (RTLD_DEEPBIND, `dlmopen`).
//!
//! The dynamic loader loads it through `LD_AUDIT` and asks it before it opens a library ([`loader::la_objsearch`]). Where it is about to open
//! a libMIOpen it is given a *proxy* instead: a library without code ([`proxy`]) that bears the same name and the same versions
//! ([`versions`]) and needs two libraries, `libunhang_miopen.so` and then the real MIOpen. Whoever is bound to the proxy, by
//! reference or by `dlsym`, finds our functions first and all others in the real library.
//!
//! It runs in every program that is started with the variable, in a separate namespace, while the loader holds its locks: it
//! compares names, and no more unless one is MIOpen's. On any doubt the loader gets the name that it asked about. It knows
//! nothing of convolutions, of HIP, or of what our functions do.

#![deny(unsafe_code)]

#[allow(unsafe_code, reason = "the loader calls it")]
pub mod loader;
pub mod proxy;
pub mod versions;
