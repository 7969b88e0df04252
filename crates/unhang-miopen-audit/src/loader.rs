//! What the dynamic loader asks, and the answers: the name that it asked about, or that of a proxy.

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

/// The loader asks about the name as it was given, before any search.
const AS_GIVEN: c_uint = 1;
/// The library with our functions, beside this one unless `UNHANG_MIOPEN` names another.
const LIBRARY: &str = "libunhang_miopen.so";

/// What this process was led to.
#[derive(Default)]
struct Led {
    /// The proxy of each library, by the path at which the loader found that.
    proxies: HashMap<Vec<u8>, Proxy>,
    /// The names by which proxies need their libraries: these are opened as they are.
    real: Vec<Vec<u8>>,
}

/// A proxy: a file in memory, by the name of an open descriptor.
#[derive(Clone, Copy, Debug)]
struct Proxy {
    name: &'static CStr,
    number: i32,
    /// The file's device and number in it.
    identity: (u64, u64),
}

impl Proxy {
    /// The name, while it leads to the proxy. Programs close descriptors that they do not know (`close_range`), and the next file that
    /// they open has the number: what they then have is theirs, and is never given to the loader.
    fn current_name(self) -> Option<&'static CStr> {
        (identity_of(self.number) == Some(self.identity)).then_some(self.name)
    }
}

/// The device and the file's number in it, of an open file.
fn identity_of(number: i32) -> Option<(u64, u64)> {
    // SAFETY: plain data, filled in by the call below.
    let mut found: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: any number may be asked about, and there is a place for the answer.
    (unsafe { libc::fstat(number, &raw mut found) } == 0).then_some((found.st_dev, found.st_ino))
}

static LED: Mutex<Option<Led>> = Mutex::new(None);

/// The loader's first question: with 0 it goes on without us.
#[unsafe(no_mangle)]
pub extern "C" fn la_version(version: c_uint) -> c_uint {
    let is = |name: &str, wanted: &str| std::env::var(name).is_ok_and(|value| value == wanted);
    let is_off =
        is("UNHANG_MIOPEN", "0") || std::env::var("UNHANG_DISABLE").is_ok_and(|it| !it.is_empty() && it != "0");
    // What we use has been the same in every version, so ours is the loader's.
    if is_off { 0 } else { version }
}

/// Which file the loader is to open in the place of `name`.
///
/// # Safety
/// Called by the loader: a C string, and a cookie that is not used.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn la_objsearch(name: *const c_char, _cookie: *mut usize, flag: c_uint) -> *mut c_char {
    if name.is_null() {
        return name.cast_mut();
    }
    // SAFETY: the loader's C string, alive during this call.
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
        // A name without a folder is searched for: each place is asked about.
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

/// The name of the real library in its proxy, and the proxy's.
fn make(path: &[u8], folder: usize) -> Option<(Vec<u8>, Proxy)> {
    let file = File::open(OsStr::from_bytes(path)).ok()?;
    let versions = versions::of(&file)?;
    let ours = ours()?;
    // The loader knows libraries by their names too, and the proxy has the name that it searched for.
    let real = [&path[..folder], b"/.", &path[folder..]].concat();
    let needed = [ours.as_os_str().as_bytes(), &real];
    // The loader would take it for one of its own variables.
    if needed.iter().any(|it| it.contains(&b'$')) {
        return None;
    }
    let proxy = proxy::build(&path[folder + 1..], &needed, &versions);
    // SAFETY: a C string; the number that is returned is ours alone, or negative.
    let number = unsafe { libc::memfd_create(c"unhang-miopen-proxy".as_ptr(), libc::MFD_CLOEXEC) };
    if number < 0 {
        return None;
    }
    // SAFETY: just made, and nobody else's.
    let memory = unsafe { File::from_raw_fd(number) };
    memory.write_all_at(&proxy, 0).ok()?;
    let name = CString::new(format!("/proc/self/fd/{number}")).ok()?;
    std::fs::metadata(OsStr::from_bytes(name.to_bytes())).ok()?;
    // Open for as long as the process lives, under the name that the loader may remember.
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
    // SAFETY: any address may be asked about.
    if unsafe { libc::dladdr(ours as *const () as *const c_void, &raw mut info) } == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the loader's own C string, which lives as long as this library is mapped.
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
        // SAFETY: both are open, and the first is nobody else's. As a program does that closes and opens files.
        assert_eq!(unsafe { libc::dup2(other.as_raw_fd(), number) }, number);
        assert_eq!(proxy.current_name(), None);
        // SAFETY: ours alone.
        unsafe { libc::close(number) };
        assert_eq!(proxy.current_name(), None);
    }
}
