//! The dynamic loader's questions and our answers: the name that it asked about, or that of a proxy.

use std::collections::HashMap;
use std::ffi::{CStr, CString, OsStr, c_char, c_uint, c_void};
use std::fs::File;
use std::os::fd::{FromRawFd, IntoRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use crate::{proxy, versions};

/// The loader asks about the name as given, before any search.
const AS_GIVEN: c_uint = 1;
/// The library with our functions, next to this one unless `UNHANG_MIOPEN` names another.
const LIBRARY: &str = "libunhang_miopen.so";

/// The proxies that this process has received.
#[derive(Default)]
struct Led {
    /// The proxy of each library, by the path at which the loader found the library.
    proxies: HashMap<Vec<u8>, Proxy>,
    /// The names by which proxies need their libraries. These are opened unchanged.
    real: Vec<Vec<u8>>,
}

/// A proxy: a file in memory, named by an open descriptor.
#[derive(Clone, Copy, Debug)]
struct Proxy {
    name: &'static CStr,
    number: i32,
    /// The file's device and inode number.
    identity: (u64, u64),
}

impl Proxy {
    /// The name, as long as it leads to the proxy. Programs close descriptors that they do not know (`close_range`),
    /// and the next file that they open gets the number. That file is theirs, and the loader never gets it.
    fn current_name(self) -> Option<&'static CStr> {
        (identity_of(self.number) == Some(self.identity)).then_some(self.name)
    }
}

/// The device and inode number of an open file.
fn identity_of(number: i32) -> Option<(u64, u64)> {
    // SAFETY: plain data, filled in by the call below.
    let mut found: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: `fstat` accepts any number, and there is room for the answer.
    (unsafe { libc::fstat(number, &raw mut found) } == 0).then_some((found.st_dev, found.st_ino))
}

static LED: Mutex<Option<Led>> = Mutex::new(None);

/// The loader's first question. If we answer 0, it continues without us.
#[unsafe(no_mangle)]
pub extern "C" fn la_version(version: c_uint) -> c_uint {
    let is = |name: &str, wanted: &str| std::env::var(name).is_ok_and(|value| value == wanted);
    let is_off =
        is("UNHANG_MIOPEN", "0") || std::env::var("UNHANG_DISABLE").is_ok_and(|it| !it.is_empty() && it != "0");
    // What we use is the same in every version, so we accept the loader's.
    if is_off { 0 } else { version }
}

/// Which file the loader should open in place of `name`.
///
/// # Safety
/// Only the loader may call this, with a C string and a cookie, which is not used.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn la_objsearch(name: *const c_char, _cookie: *mut usize, flag: c_uint) -> *mut c_char {
    if name.is_null() {
        return name.cast_mut();
    }
    // SAFETY: the loader's C string is alive during this call.
    let asked = unsafe { CStr::from_ptr(name) };
    let led = catch_unwind(AssertUnwindSafe(|| lead(asked, flag)));
    led.ok().flatten().map_or(name, CStr::as_ptr).cast_mut()
}

fn is_miopen(file: &[u8]) -> bool {
    file.starts_with(b"libMIOpen") && file.windows(3).any(|it| it == b".so")
}

/// The proxy to open, if the loader is about to open a MIOpen.
fn lead(name: &CStr, flag: c_uint) -> Option<&'static CStr> {
    let path = name.to_bytes();
    let folder = path.iter().rposition(|&byte| byte == b'/');
    if !is_miopen(&path[folder.map_or(0, |at| at + 1)..]) || (flag == AS_GIVEN && folder.is_none()) {
        // The loader searches for a name without a folder, and asks again about each place.
        return None;
    }
    let mut led = LED.lock().unwrap_or_else(PoisonError::into_inner);
    let led = led.get_or_insert_default();
    if led.real.iter().any(|it| it == path) {
        return None;
    }
    if let Some(name) = led.proxies.get(path).and_then(|proxy| proxy.current_name()) {
        return Some(name);
    }
    let (real, proxy) = make(path, folder?)?;
    if !led.real.contains(&real) {
        led.real.push(real);
    }
    led.proxies.insert(path.to_owned(), proxy);
    Some(proxy.name)
}

/// The real library's name in its proxy, and the proxy.
fn make(path: &[u8], folder: usize) -> Option<(Vec<u8>, Proxy)> {
    let file = File::open(OsStr::from_bytes(path)).ok()?;
    let versions = versions::of(&file)?;
    let ours = ours()?;
    // The loader also knows libraries by their names, and the proxy has the name that it searched for.
    let real = [&path[..folder], b"/.", &path[folder..]].concat();
    let needed = [ours.as_os_str().as_bytes(), &real];
    // The loader would expand it as one of its own variables.
    if needed.iter().any(|it| it.contains(&b'$')) {
        return None;
    }
    let proxy = proxy::build(&path[folder + 1..], &needed, &versions);
    // SAFETY: a C string; the returned number is ours alone, or negative.
    let number = unsafe { libc::memfd_create(c"unhang-miopen-proxy".as_ptr(), libc::MFD_CLOEXEC) };
    if number < 0 {
        return None;
    }
    // SAFETY: just created, and nobody else uses it.
    let memory = unsafe { File::from_raw_fd(number) };
    memory.write_all_at(&proxy, 0).ok()?;
    let name = CString::new(format!("/proc/self/fd/{number}")).ok()?;
    std::fs::metadata(OsStr::from_bytes(name.to_bytes())).ok()?;
    // Stays open for the life of the process, under the name that the loader may remember.
    let identity = identity_of(number)?;
    let _ = memory.into_raw_fd();
    Some((real, Proxy { name: Box::leak(name.into_boxed_c_str()), number, identity }))
}

/// The library with our functions.
fn ours() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os("UNHANG_MIOPEN").map(PathBuf::from).filter(|it| it.is_file()) {
        return Some(named);
    }
    // SAFETY: plain data, filled in by the call below.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: `dladdr` accepts any address.
    if unsafe { libc::dladdr(ours as *const () as *const c_void, &raw mut info) } == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the loader's own C string, which exists as long as this library is mapped.
    let own = unsafe { CStr::from_ptr(info.dli_fname) };
    Some(Path::new(OsStr::from_bytes(own.to_bytes())).parent()?.join(LIBRARY)).filter(|it| it.is_file())
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn a_number_that_was_closed_and_taken_by_another_file_is_not_given_to_the_loader() {
        // SAFETY: a C string; the number is ours alone.
        let number = unsafe { libc::memfd_create(c"test".as_ptr(), libc::MFD_CLOEXEC) };
        assert!(number >= 0);
        let proxy = Proxy { name: c"/proc/self/fd/N", number, identity: identity_of(number).unwrap() };
        assert_eq!(proxy.current_name(), Some(proxy.name));
        let other = tempfile::tempfile().unwrap();
        // SAFETY: both are open, and nobody else uses the first. This is what a program does that closes and opens
        // files.
        assert_eq!(unsafe { libc::dup2(other.as_raw_fd(), number) }, number);
        assert_eq!(proxy.current_name(), None);
        // SAFETY: ours alone.
        unsafe { libc::close(number) };
        assert_eq!(proxy.current_name(), None);
    }
}
