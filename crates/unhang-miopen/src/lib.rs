//! `libunhang_miopen.so`: MIOpen's convolution calls, planned and computed by ours, for any framework and without Python.
//!
//! The library is preloaded (`unhang run`), loaded with RTLD_GLOBAL before a framework (`unhang.enable()`), or by the loader itself in
//! front of MIOpen (`unhang-miopen-audit`). It exports those
//! functions of MIOpen's C interface that compute convolutions ([`interpose`]) and `dlsym` ([`lookup`]), for frameworks that
//! look functions up. Handles and descriptors stay MIOpen's: what a call means is read back through MIOpen's own getters
//! ([`describe`]), and every other call goes to MIOpen untouched.
//!
//! What a call leads to is decided by `unhang-plan`, on the same evidence, canaries and settings as everywhere ([`process`]);
//! `jit`, `cpu` and `tiled` are computed here ([`compute`]), `miopen` is the real library. There is no policy in this crate.
//!
//! It runs in other people's processes: no panic leaves it, nothing waits without a deadline but where the caller waits for
//! the device anyway, errors are MIOpen's status codes with MIOpen's meanings. It must not know torch or any other framework.

mod bias;
mod canary;
mod compute;
mod describe;
mod device;
mod fusion;
mod host;
mod interpose;
mod lookup;
mod process;
mod real;
mod route;
mod summary;
mod talk;
mod tune;
mod verify;
mod watch;
