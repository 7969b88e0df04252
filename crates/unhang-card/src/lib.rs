//! An emulated AMD card under the unmodified ROCm user stack.
//!
//! `libunhang_card.so` is loaded by `LD_PRELOAD`. It answers what libhsakmt and the HSA runtime ask of the kernel:
//! `/dev/kfd`, `/dev/dri/*`, the topology in sysfs and a few calls of libdrm_amdgpu. Queues are executed by
//! `unhang-emulator`, in this process, on this process's memory. Which card it is comes from a machine folder, the kind
//! that `unhang doctor --root` reads. `unhang card run` sets the variables and loads the library; without them it does nothing.
//!
//! * `interpose` and `drm` are the functions that programs call, `paths` and `files` say which calls are ours.
//! * `kfd` is the driver's interface: memory, events, queues. `aql` and `sdma` execute what is in a queue;
//!   `queue_description` is what the runtime says of one.
//! * `render` is the render node, of which management tools ask the driver's name.
//! * `executor` hands a dispatch to the emulator and turns what stopped it into what a program gets from a real card.
//!
//! It must not know convolutions, torch, HIP or any particular program; it must not keep state on disk
//! beyond the journal of the run; and whatever is not the card's goes to the system untouched.

// Without the functions that programs call, which a test program must not have, nothing calls the rest.
#![cfg_attr(test, allow(dead_code))]

#[cfg(not(test))]
mod drm;
#[cfg(not(test))]
mod interpose;

mod aql;
mod card;
mod executor;
mod files;
mod journal;
mod kfd;
mod paths;
mod process;
mod queue_description;
mod render;
mod sdma;
mod settings;
mod signal;

/// What a call returns that fails: an error number of the kernel.
pub(crate) type Errno = libc::c_int;
