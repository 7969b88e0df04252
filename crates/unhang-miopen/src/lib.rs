//! `libunhang_miopen.so`: MIOpen's convolution calls, planned and computed by ours, for any framework and without Python.
//!
//! The library is preloaded (`unhang run`), loaded with RTLD_GLOBAL before a framework (`unhang.enable()`), or by the loader itself in
//! front of MIOpen (`unhang-miopen-audit`). It exports those
//! functions of MIOpen's C interface that compute convolutions, batch normalisations, poolings and reductions
//! ([`interpose`]). It also exports `dlsym` ([`lookup`]), for frameworks that look functions up. Handles and
//! descriptors stay MIOpen's: what a call means is read back through MIOpen's own getters ([`describe`]), and every
//! other call goes to MIOpen untouched.
//!
//! What a call leads to and how it is computed is `unhang-session`'s, for which this library is a [`face`]. There is no policy
//! in this crate.
//!
//! It runs in other people's processes: no panic leaves it, and errors are MIOpen's status codes with MIOpen's
//! meanings. Nothing waits without a deadline but where the caller waits for the device anyway. It must not know torch
//! or any other framework.

#![deny(unsafe_code)]

#[macro_use]
#[allow(unsafe_code, reason = "MIOpen's functions, as C calls them")]
mod calls;

#[allow(unsafe_code, reason = "works on the memory of whoever calls")]
mod bias;
#[allow(unsafe_code, reason = "asks the C library, and to be called at the end")]
mod canary;
#[allow(unsafe_code, reason = "asks MIOpen's getters")]
mod describe;
#[allow(unsafe_code, reason = "asks the runtime, and works on the memory of whoever calls")]
mod face;
#[allow(unsafe_code, reason = "called by C")]
mod fusion;
#[allow(unsafe_code, reason = "called by C")]
mod interpose;
#[allow(unsafe_code, reason = "asks the loader")]
mod loader;
#[allow(unsafe_code, reason = "called by C")]
mod lookup;
#[allow(unsafe_code, reason = "called by C")]
mod normalization;
#[allow(unsafe_code, reason = "called by C")]
mod pooling;
#[allow(unsafe_code, reason = "an address becomes a function")]
mod real;
#[allow(unsafe_code, reason = "called by C")]
mod reduction;
#[allow(unsafe_code, reason = "called by C")]
mod solutions;
#[allow(unsafe_code, reason = "called by the loader at the end")]
mod summary;
mod volume;
#[allow(unsafe_code, reason = "asks the C library to call at the end")]
mod watch;
