//! What is mapped into this process: the C library's own `dlsym`, files by address, and the caller.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::PathBuf;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

pub(crate) type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;

/// The C library's `dlsym`; ours jumps there.
pub(crate) static REAL: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// The version of `dlsym` before and since it moved into the C library.
const VERSIONS: [&CStr; 3] = [c"GLIBC_2.34", c"GLIBC_2.2.5", c"GLIBC_2.17"];

/// Where `dlsym` is, now and before it moved.
const HOMES: [&CStr; 2] = [c"libc.so.6", c"libdl.so.2"];

/// `dlsym` in a library, or behind this one.
fn versioned_in(library: *mut c_void) -> *mut c_void {
    // SAFETY: looks a name up, by a handle of the loader's and C strings.
    let look = |version: &&CStr| unsafe { libc::dlvsym(library, c"dlsym".as_ptr(), version.as_ptr()) };
    VERSIONS.iter().map(look).find(|found| !found.is_null()).unwrap_or(std::ptr::null_mut())
}

/// The C library's `dlsym`.
pub(crate) fn real() -> Option<Dlsym> {
    let mut found = REAL.load(Ordering::Acquire);
    if found.is_null() {
        found = versioned_in(libc::RTLD_NEXT);
        // Loaded as a dependency of another library, this one comes after the C library.
        for name in HOMES {
            if found.is_null() {
                // SAFETY: a C string; nothing is loaded that is not there already.
                let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
                found = if library.is_null() { found } else { versioned_in(library) };
            }
        }
        REAL.store(found, Ordering::Release);
    }
    // SAFETY: the C library's own function, or null, which becomes `None`.
    unsafe { std::mem::transmute::<*mut c_void, Option<Dlsym>>(found) }
}

/// A library's own function, not ours.
pub(crate) fn real_dlsym(library: *mut c_void, name: &CStr) -> *mut c_void {
    match real() {
        // SAFETY: a handle of the loader's and a C string.
        Some(dlsym) => unsafe { dlsym(library, name.as_ptr()) },
        None => std::ptr::null_mut(),
    }
}

/// The base address of the library in which a function was looked up last: callers that look functions up are not
/// linked to it.
static LOOKED_UP: AtomicUsize = AtomicUsize::new(0);

pub(crate) fn looked_up() -> usize {
    LOOKED_UP.load(Ordering::Acquire)
}

/// Notes in which library functions are looked up.
pub(crate) fn note_look_up(handle: *mut c_void) {
    // Behind a proxy the look-up finds our function; this one is MIOpen's alone.
    if let Some((_, base)) = object_at(real_dlsym(handle, c"miopenGetTensorDescriptor") as usize) {
        LOOKED_UP.store(base, Ordering::Release);
    }
}

unsafe extern "C" {
    fn _Unwind_Backtrace(visit: unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int, data: *mut c_void) -> c_int;
    fn _Unwind_GetIP(context: *mut c_void) -> usize;
}

struct Search {
    ours: usize,
    found: Option<(CString, usize)>,
}

/// The file mapped at an address, and its base.
pub(crate) fn object_at(address: usize) -> Option<(CString, usize)> {
    // SAFETY: plain data, filled in by the call below.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: any address may be asked about.
    if unsafe { libc::dladdr(address as *const c_void, &raw mut info) } == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the loader's own C string, which lives as long as the object is mapped.
    Some((unsafe { CStr::from_ptr(info.dli_fname) }.to_owned(), info.dli_fbase as usize))
}

unsafe extern "C" fn visit(context: *mut c_void, data: *mut c_void) -> c_int {
    // SAFETY: the place that was given below, and the unwinder's own context.
    let (search, at) = unsafe { (&mut *data.cast::<Search>(), _Unwind_GetIP(context)) };
    match object_at(at) {
        Some((_, base)) if base == search.ours => 0,
        Some(found) => {
            search.found = Some(found);
            1
        }
        None => 0,
    }
}

/// The file that called into this library, and its base.
pub(crate) fn caller() -> Option<(CString, usize)> {
    let (_, ours) = object_at(visit as *const () as usize)?;
    let mut search = Search { ours, found: None };
    // SAFETY: the function above, with the place that it expects.
    unsafe { _Unwind_Backtrace(visit, (&raw mut search).cast()) };
    search.found
}

/// This library's own file.
pub(crate) fn own_path() -> Option<String> {
    let path = object_at(visit as *const () as usize)?.0.to_string_lossy().into_owned();
    // A canary's child may know it only by a descriptor's number.
    let named = path.starts_with("/proc/").then(|| std::fs::read_link(&path).ok()).flatten();
    Some(named.map_or(path, |it| it.to_string_lossy().into_owned()))
}

/// The general kernels that came with the package, if this library is inside it.
pub(crate) fn shipped_kernels() -> Option<PathBuf> {
    let folder = PathBuf::from(own_path()?).parent()?.join("kernels");
    folder.is_dir().then_some(folder)
}

/// The base of the library that a caller's reference to a function would reach without us.
pub(crate) fn definition_for(caller: &CStr, name: &CStr) -> Option<usize> {
    // SAFETY: the file is mapped already.
    let library = unsafe { libc::dlopen(caller.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    // The program itself has no handle under its name: its libraries come after us.
    let library = if library.is_null() { libc::RTLD_NEXT } else { library };
    let found = real_dlsym(library, name);
    if found.is_null() { None } else { object_at(found as usize).map(|(_, base)| base) }
}

unsafe extern "C" fn collect(info: *mut libc::dl_phdr_info, _size: usize, data: *mut c_void) -> c_int {
    // SAFETY: the loader's entry and the place that was given below.
    let (info, names) = unsafe { (&*info, &mut *data.cast::<Vec<String>>()) };
    if !info.dlpi_name.is_null() {
        // SAFETY: a C string of the loader's, alive during this call.
        names.push(unsafe { CStr::from_ptr(info.dlpi_name) }.to_string_lossy().into_owned());
    }
    0
}

/// The mapped files whose names begin with one of these.
pub(crate) fn mapped(stems: &[&str]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    // SAFETY: the function above, with the place that it expects.
    unsafe { libc::dl_iterate_phdr(Some(collect), (&raw mut names).cast()) };
    names.retain(|name| {
        let file = name.rsplit('/').next().unwrap_or_default();
        stems.iter().any(|stem| file.starts_with(stem))
    });
    names
}
