//! The runtime's table of functions, and what takes the place of two of them.
//!
//! The layout is that of `hsa_api_trace.h`: tables only ever grow at their end, and each says in its version how long it
//! is. The tests hold the numbers here against the header.

use std::ffi::{c_char, c_int, c_void};
use std::fs::File;
use std::mem::ManuallyDrop;
use std::os::fd::FromRawFd;
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::{MAX_OBJECT, log, repair};

/// The start of every table.
#[repr(C)]
struct Version {
    major: u32,
    /// The length of the table in bytes.
    minor: u32,
    step: u32,
    reserved: u32,
}

/// The last `HSA_API_TABLE_MAJOR_VERSION` and `HSA_CORE_API_TABLE_MAJOR_VERSION` in which the entries are known to stand
/// where they do: both are 1 up to ROCm 5, and 3 and 2 in ROCm 6.
const LAST_VERSION: u32 = 3;
const LAST_CORE_VERSION: u32 = 2;
/// Where the pointer to the core table is in the first table.
const CORE: usize = 16;
/// Where `hsa_code_object_reader_create_from_file_fn` is in the core table.
const FROM_FILE: usize = 936;
/// Where `hsa_code_object_reader_create_from_memory_fn` is in the core table.
const FROM_MEMORY: usize = 944;

pub(crate) type Status = u32;
/// `HSA_STATUS_ERROR`
pub(crate) const ERROR: Status = 0x1000;
type FromFile = unsafe extern "C" fn(c_int, *mut u64) -> Status;
type FromMemory = unsafe extern "C" fn(*const c_void, usize, *mut u64) -> Status;

/// The functions that were replaced, by address; 0 before.
static ORIGINAL_FROM_FILE: AtomicUsize = AtomicUsize::new(0);
static ORIGINAL_FROM_MEMORY: AtomicUsize = AtomicUsize::new(0);

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

/// Puts our function in an entry and keeps what was there.
///
/// # Safety
///
/// `table` is null or points to the runtime's table; `ours` has the entry's type.
pub(crate) unsafe fn replace(table: *mut u8, offset: usize, ours: usize, original: &AtomicUsize) -> bool {
    // SAFETY: the caller vouches for the table.
    let Some(entry) = (unsafe { entry(table, offset) }) else { return false };
    // SAFETY: `entry` is within the table.
    let found = unsafe { entry.read() };
    // Called twice, the second time must not take our own function for the original.
    if found != ours {
        // A second runtime in the process has its own originals, and there is room for one runtime's: its objects pass
        // through as they come.
        let before = original.compare_exchange(0, found, Ordering::SeqCst, Ordering::SeqCst);
        if before.is_err_and(|kept| kept != found) {
            return false;
        }
        // SAFETY: `entry` is within the table, which the runtime lets tools write in `OnLoad`.
        unsafe { entry.write(ours) };
    }
    true
}

/// Called by the runtime when it starts. It always returns true: after a false, ROCm 5.2 keeps a closed library in its
/// list.
///
/// # Safety
///
/// `table` is the runtime's table, or null.
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
pub unsafe extern "C" fn OnLoad(
    table: *mut c_void,
    _runtime_version: u64,
    _failed_tool_count: u64,
    _failed_tool_names: *const *const c_char,
) -> bool {
    let _ = catch_unwind(AssertUnwindSafe(|| {
        let table = table.cast::<u8>();
        // SAFETY: the caller vouches for the table, and the functions have the entries' types.
        let replaced = unsafe {
            // Objects from files are handed on as memory, so without that entry neither is touched.
            replace(table, FROM_MEMORY, from_memory as *const () as usize, &ORIGINAL_FROM_MEMORY)
                && replace(table, FROM_FILE, from_file as *const () as usize, &ORIGINAL_FROM_FILE)
        };
        // SAFETY: as above.
        unsafe { crate::watch::begin(table) };
        let what = if replaced {
            "code objects pass through here"
        } else {
            "the runtime's table is not known, or it is the second runtime of the process; nothing is done"
        };
        log::line(format_args!("{what} (version {})", env!("CARGO_PKG_VERSION")));
    }));
    true
}

/// Called by the runtime when it shuts down. What was repaired stays: the runtime may still read it.
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
pub extern "C" fn OnUnload() {
    crate::watch::end();
}

fn original_from_memory() -> Option<FromMemory> {
    let address = ORIGINAL_FROM_MEMORY.load(Ordering::SeqCst);
    // SAFETY: the address was read from the entry for a function of this type.
    (address != 0).then(|| unsafe { std::mem::transmute::<usize, FromMemory>(address) })
}

fn original_from_file() -> Option<FromFile> {
    let address = ORIGINAL_FROM_FILE.load(Ordering::SeqCst);
    // SAFETY: the address was read from the entry for a function of this type.
    (address != 0).then(|| unsafe { std::mem::transmute::<usize, FromFile>(address) })
}

/// Repairs an object; a panic counts as "stays as it is".
fn repair_or_pass(object: impl FnOnce() -> Option<&'static [u8]>) -> Option<&'static [u8]> {
    catch_unwind(AssertUnwindSafe(object)).unwrap_or_else(|_| {
        let _ = catch_unwind(|| log::line(format_args!("a panic: the object goes through unchanged")));
        None
    })
}

/// In place of `hsa_code_object_reader_create_from_memory`.
///
/// # Safety
///
/// As of the function that it replaces: `object` points to `size` bytes.
unsafe extern "C" fn from_memory(object: *const c_void, size: usize, reader: *mut u64) -> Status {
    let Some(original) = original_from_memory() else { return ERROR };
    let repaired = repair_or_pass(|| {
        if object.is_null() || size == 0 || size > isize::MAX as usize {
            return None;
        }
        // SAFETY: the caller vouches for `size` bytes at `object`, and leaves them alone during the call.
        repair(unsafe { std::slice::from_raw_parts(object.cast::<u8>(), size) })
    });
    let (object, size) = repaired.map_or((object, size), |bytes| (bytes.as_ptr().cast(), bytes.len()));
    // SAFETY: the original gets what it would have got, or bytes that live until the process ends.
    unsafe { original(object, size, reader) }
}

/// In place of `hsa_code_object_reader_create_from_file`.
///
/// # Safety
///
/// As of the function that it replaces.
unsafe extern "C" fn from_file(file: c_int, reader: *mut u64) -> Status {
    let repaired = repair_or_pass(|| read_file(file).and_then(|bytes| repair(&bytes)));
    if let (Some(bytes), Some(original)) = (repaired, original_from_memory()) {
        // SAFETY: the bytes live until the process ends.
        return unsafe { original(bytes.as_ptr().cast(), bytes.len(), reader) };
    }
    let Some(original) = original_from_file() else { return ERROR };
    // SAFETY: the original gets what it would have got.
    unsafe { original(file, reader) }
}

/// The whole of an open file, whose position and descriptor stay the caller's.
fn read_file(descriptor: c_int) -> Option<Vec<u8>> {
    if descriptor < 0 {
        return None;
    }
    // SAFETY: the file is never closed here, and only read by position. A descriptor that is not open gives an error.
    let file = ManuallyDrop::new(unsafe { File::from_raw_fd(descriptor) });
    let metadata = file.metadata().ok().filter(|metadata| metadata.is_file())?;
    let length = usize::try_from(metadata.len()).ok().filter(|&length| length <= MAX_OBJECT)?;
    let mut bytes = vec![0; length];
    file.read_exact_at(&mut bytes, 0).ok()?;
    Some(bytes)
}
