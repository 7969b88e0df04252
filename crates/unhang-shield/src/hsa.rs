//! The entry points: `OnLoad`, and our versions of the two functions through which code objects pass.

use std::ffi::{c_char, c_int, c_void};
use std::fs::File;
use std::mem::ManuallyDrop;
use std::os::fd::FromRawFd;
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::cache::MAX_OBJECT;
use crate::repair::repair;
use crate::table::{ERROR, Status, replace};
use crate::{log, watch};

/// Where `hsa_code_object_reader_create_from_file_fn` is in the core table.
const FROM_FILE: usize = 936;
/// Where `hsa_code_object_reader_create_from_memory_fn` is in the core table.
const FROM_MEMORY: usize = 944;

type FromFile = unsafe extern "C" fn(c_int, *mut u64) -> Status;
type FromMemory = unsafe extern "C" fn(*const c_void, usize, *mut u64) -> Status;

/// The replaced functions, by address; 0 before.
static ORIGINAL_FROM_FILE: AtomicUsize = AtomicUsize::new(0);
static ORIGINAL_FROM_MEMORY: AtomicUsize = AtomicUsize::new(0);

/// Called by the runtime when it starts. It always returns true: after a false, ROCm 5.2 keeps a closed library in its
/// list.
///
/// # Safety
///
/// `table` is the runtime's table, or null.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the runtime looks it up by this name")]
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
            // Objects from files are passed on as memory, so without that entry neither is replaced.
            replace(table, FROM_MEMORY, from_memory as *const () as usize, &ORIGINAL_FROM_MEMORY)
                && replace(table, FROM_FILE, from_file as *const () as usize, &ORIGINAL_FROM_FILE)
        };
        // SAFETY: as above.
        unsafe { watch::begin(table) };
        let what = if replaced {
            "code objects pass through here"
        } else {
            "the runtime's table is not known, or it is the second runtime of the process; nothing is done"
        };
        log::line(format_args!("{what} (version {})", env!("CARGO_PKG_VERSION")));
    }));
    true
}

/// Called by the runtime when it shuts down. Repaired objects stay: the runtime may still read them.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the runtime looks it up by this name")]
pub extern "C" fn OnUnload() {
    watch::end();
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

/// The contents of an open file, whose position and descriptor stay the caller's.
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
