//! The runtime's table of functions: an entry, found within what the table says of its own length, and replaced.
//!
//! The layout is that of `hsa_api_trace.h`: tables only ever grow at their end, and each says in its version how long it
//! is. The tests hold the numbers here against the header.

use std::sync::atomic::{AtomicUsize, Ordering};

/// The start of every table.
#[repr(C)]
struct Version {
    major: u32,
    /// The length of the table in bytes.
    minor: u32,
    step: u32,
    reserved: u32,
}

/// The last `HSA_API_TABLE_MAJOR_VERSION` and `HSA_CORE_API_TABLE_MAJOR_VERSION` in which the entries are known to be
/// in these places: both are 1 up to ROCm 5, and 3 and 2 in ROCm 6.
const LAST_VERSION: u32 = 3;
const LAST_CORE_VERSION: u32 = 2;
/// Where the pointer to the core table is in the first table.
const CORE: usize = 16;

/// The runtime's status code.
pub(crate) type Status = u32;
/// `HSA_STATUS_ERROR`
pub(crate) const ERROR: Status = 0x1000;

/// An entry of the core table, if the table is long enough to have it.
///
/// # Safety
///
/// `table` is null or points to the runtime's table.
pub(crate) unsafe fn entry(table: *mut u8, offset: usize) -> Option<*mut usize> {
    // SAFETY: a table begins with its version, and the caller vouches for the pointer.
    let length = |table: *mut u8, last: u32| unsafe {
        let version = &*table.cast::<Version>();
        (1..=last).contains(&version.major).then_some(version.minor as usize)
    };
    if table.is_null() || length(table, LAST_VERSION)? < CORE + size_of::<usize>() {
        return None;
    }
    // SAFETY: the table's own length covers the pointer.
    let core = unsafe { table.add(CORE).cast::<*mut u8>().read() };
    if core.is_null() || length(core, LAST_CORE_VERSION)? < offset + size_of::<usize>() {
        return None;
    }
    // SAFETY: the core table's own length covers the entry.
    let entry = unsafe { core.add(offset).cast::<usize>() };
    // SAFETY: as above; the runtime fills every entry that it declares.
    (unsafe { entry.read() } != 0).then_some(entry)
}

/// Replaces an entry by our function and stores the original.
///
/// # Safety
///
/// `table` is null or points to the runtime's table; `ours` has the entry's type.
pub(crate) unsafe fn replace(table: *mut u8, offset: usize, ours: usize, original: &AtomicUsize) -> bool {
    // SAFETY: the caller vouches for the table.
    let Some(entry) = (unsafe { entry(table, offset) }) else { return false };
    // SAFETY: `entry` is within the table.
    let found = unsafe { entry.read() };
    // On a second call, our own function must not be stored as the original.
    if found != ours {
        // A second runtime in the process has its own originals, and we store only one runtime's: its objects pass
        // unchanged.
        let before = original.compare_exchange(0, found, Ordering::SeqCst, Ordering::SeqCst);
        if before.is_err_and(|kept| kept != found) {
            return false;
        }
        // SAFETY: `entry` is within the table, which the runtime lets tools write in `OnLoad`.
        unsafe { entry.write(ours) };
    }
    true
}
