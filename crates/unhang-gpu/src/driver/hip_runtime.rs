//! Shared by everything that calls `libamdhip64`: which copy to use, and how a failed call of ours leaves no trace.

use crate::dynamic::{self, Found, LibraryMissing, Wanted, function_table};

/// Libraries linked to the runtime: torch's, and the one through which other frameworks compute convolutions.
pub(crate) const USERS: [&str; 3] = ["libtorch_hip", "libc10_hip", "libMIOpen"];
/// A function of the runtime in every version.
const WITNESS: &str = "hipRuntimeGetVersion";

/// The runtime that torch uses, else the one that this process has loaded, else, if it may be loaded, the system's.
pub(crate) fn find(may_load: bool) -> Result<Found, LibraryMissing> {
    let names = if may_load { dynamic::rocm_names("libamdhip64") } else { Vec::new() };
    dynamic::open(&Wanted { stem: "libamdhip64", witness: WITNESS, users: &USERS, only_one: true, names })
}

function_table! {
    /// HIP's note of a thread's last error.
    Functions {
        peek: "hipPeekAtLastError" as fn();
        take: "hipGetLastError" as fn();
    }
}

/// HIP's note of this thread's last error. From HIP 7 it stays until it is read. Torch, which reads it after every
/// launch, would take an error of ours for its own.
#[derive(Debug)]
pub(super) struct LastError(Functions);

impl LastError {
    pub(super) fn of(library: &Found) -> Result<LastError, String> {
        Functions::load(library).map(LastError)
    }

    /// Makes calls, then clears the error that they left. An error from before is not ours to clear: then the note
    /// stays, whatever it says now.
    pub(super) fn keep<T>(&self, calls: impl FnOnce() -> T) -> T {
        // SAFETY: without arguments, in every version.
        let before = unsafe { (self.0.peek)() };
        let result = calls();
        // SAFETY: the same.
        if before == 0 && unsafe { (self.0.peek)() } != 0 {
            // SAFETY: the same.
            unsafe { (self.0.take)() };
        }
        result
    }
}
