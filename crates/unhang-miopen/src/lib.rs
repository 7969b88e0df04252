//! `libunhang_miopen.so`: MIOpen's convolution calls, planned and computed by ours, for any framework and without Python.
//!
//! The library is preloaded (`unhang run`), loaded with RTLD_GLOBAL before a framework (`unhang.enable()`), or by the loader itself in
//! front of MIOpen (`unhang-miopen-audit`). It exports those
//! functions of MIOpen's C interface that compute convolutions ([`interpose`]) and `dlsym` ([`lookup`]), for frameworks that
//! look functions up. Handles and descriptors stay MIOpen's: what a call means is read back through MIOpen's own getters
//! ([`describe`]), and every other call goes to MIOpen untouched.
//!
//! What a call leads to and how it is computed is `unhang-session`'s, for which this library is a [`face`]. There is no policy
//! in this crate.
//!
//! It runs in other people's processes: no panic leaves it, nothing waits without a deadline but where the caller waits for
//! the device anyway, errors are MIOpen's status codes with MIOpen's meanings. It must not know torch or any other framework.

#[macro_use]
mod calls;

mod bias;
mod canary;
mod describe;
mod face;
mod fusion;
mod interpose;
mod loader;
mod lookup;
mod normalization;
mod pooling;
mod real;
mod solutions;
mod summary;
mod volume;
mod watch;
