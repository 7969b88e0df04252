//! An emulated AMD card under the unmodified ROCm user stack.
//!
//! `libunhang_card.so` is loaded by `LD_PRELOAD`. It answers what libhsakmt and the HSA runtime ask of the kernel:
//! `/dev/kfd`, `/dev/dri/*`, the topology in sysfs and a few calls of libdrm_amdgpu. Queues are executed by
//! `unhang-emulator`, in this process, on this process's memory. Which card it is comes from a machine folder, the kind
//! that `unhang doctor --root` reads. `unhang card run` sets the variables and loads the library; without them it does nothing.
//!
//! * `interpose` and `drm` are the functions that programs call, `paths` and `files` say which calls are ours.
//! * `kfd` is the driver's interface: memory, events, queues. `queue` is one as its thread sees it, `aql` and `sdma` execute what is in it;
//!   `queue_description` is what the runtime says of one.
//! * `render` is the render node, of which management tools ask the driver's name.
//! * `executor` hands a dispatch to the emulator and turns what stopped it into what a program gets from a real card.
//!
//! It must not know convolutions, torch, HIP or any particular program, nor keep state on disk beyond the journal of the
//! run. Whatever is not the card's goes to the system untouched.

#![deny(unsafe_code)]
#![cfg_attr(
    test,
    allow(
        dead_code,
        reason = "the functions that programs call must not be in a test program, and they call the rest"
    )
)]

#[cfg(not(test))]
#[allow(unsafe_code, reason = "libdrm's functions, which programs call")]
mod drm;
#[cfg(not(test))]
#[allow(unsafe_code, reason = "the C library's functions, which programs call")]
mod interpose;

#[allow(unsafe_code, reason = "reads packets in the program's memory")]
mod aql;
mod card;
mod executor;
#[allow(unsafe_code, reason = "asks the C library to call before and after a fork")]
mod files;
#[allow(unsafe_code, reason = "calls the system")]
mod journal;
#[allow(unsafe_code, reason = "maps memory, and works on the arguments of requests")]
mod kfd;
mod paths;
#[allow(unsafe_code, reason = "calls the system, and keeps what a forked child must not free")]
mod process;
#[allow(unsafe_code, reason = "a queue's pointers are in the program's memory")]
mod queue;
#[allow(unsafe_code, reason = "the runtime's description of a queue is in the program's memory")]
mod queue_description;
#[allow(unsafe_code, reason = "works on the arguments of requests")]
mod render;
#[allow(unsafe_code, reason = "copies in the program's memory")]
mod sdma;
mod settings;
#[allow(unsafe_code, reason = "signals are in the program's memory")]
mod signal;
#[allow(unsafe_code, reason = "changes a thread's signal mask")]
mod threads;

/// A failing call's result: an error number of the kernel.
pub(crate) type Errno = libc::c_int;
