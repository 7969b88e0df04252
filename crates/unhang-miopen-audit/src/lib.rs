//! `libunhang_miopen_audit.so`: reaches the callers of MIOpen that preloading does not (RTLD_DEEPBIND, `dlmopen`).
//!
//! The dynamic loader loads it through `LD_AUDIT` and asks it before it opens a library ([`loader::la_objsearch`]). If
//! the loader is about to open a libMIOpen, it gets a *proxy* instead. The proxy is a library without code ([`proxy`])
//! with the same name and the same versions ([`versions`]). It needs two libraries: `libunhang_miopen.so`, then the
//! real MIOpen. Whoever is bound to the proxy, by reference or by `dlsym`, finds our functions first and all others in
//! the real library.
//!
//! It runs in every program that is started with the variable, in a separate namespace, while the loader holds its
//! locks. It compares names, and does nothing more unless one is MIOpen's. When in doubt, it returns the name that the
//! loader asked about. It knows nothing about convolutions, HIP, or what our functions do.

#![deny(unsafe_code)]

#[allow(unsafe_code, reason = "the loader calls it")]
pub mod loader;
pub mod proxy;
pub mod versions;
