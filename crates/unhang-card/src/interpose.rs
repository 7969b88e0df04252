//! The functions of the C library that this library replaces.
//!
//! Each asks whether the path or the descriptor is the card's; if not, the call goes to the system as it came. Calls with
//! a descriptor or a plain path go there directly. So nothing is looked up and nothing allocated in a program that is
//! only starting. Functions that return streams and the like are found behind us.
//!
//! `open`, `ioctl` and `fcntl` take a variable argument. Here they have a third one: on the architectures that ROCm runs
//! on it is passed where a named one would be. What is there when none was given is not used.

use std::ffi::{CStr, c_char, c_int, c_long, c_uint, c_ulong, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{AT_FDCWD, DIR, FILE, mode_t, size_t, ssize_t};

use crate::paths::{self, PathPlace};
use crate::settings::{self, CardSettings, settings};
use crate::{Errno, files, kfd, process, render};

/// Runs before the program's own code.
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = {
    extern "C" fn start() {
        settings::read();
    }
    start
};

fn fail(error: Errno) -> c_int {
    // SAFETY: the C library's own place for this thread's error.
    unsafe { *libc::__errno_location() = error };
    -1
}

/// What a path refers to; the system's file if no card was asked for.
fn place(path: *const c_char) -> (PathPlace, Option<&'static CardSettings>) {
    let Some(settings) = settings().filter(|_| !path.is_null()) else { return (PathPlace::Elsewhere, None) };
    // SAFETY: the caller gives a C string, as for the function that we stand before.
    (paths::place(&settings.root, unsafe { CStr::from_ptr(path) }), Some(settings))
}

/// The next library's function of this name.
macro_rules! behind {
    ($name:ident as fn($($argument:ty),*) -> $result:ty) => {{
        static FOUND: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
        let mut found = FOUND.load(Ordering::Acquire);
        if found.is_null() {
            // SAFETY: looks up a name in the libraries behind this one.
            found = unsafe { libc::dlsym(libc::RTLD_NEXT, $name.as_ptr()) };
            FOUND.store(found, Ordering::Release);
        }
        // SAFETY: the C library's function has this signature; none is there for names that it does not have.
        unsafe { std::mem::transmute::<*mut c_void, Option<unsafe extern "C" fn($($argument),*) -> $result>>(found) }
    }};
}

// SAFETY for the whole file: every function has the contract of the C library's function of its name. What is passed on
// is what was given, except that a path may be replaced by another C string that lives until the call returns.

unsafe fn open_at(folder: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    let kind = match place(path) {
        (PathPlace::Elsewhere, _) => {
            // SAFETY: see above.
            return unsafe { libc::syscall(libc::SYS_openat, folder, path, flags, mode as c_long) as c_int };
        }
        (PathPlace::Inside(inside), _) => {
            // SAFETY: see above.
            return unsafe {
                libc::syscall(libc::SYS_openat, AT_FDCWD, inside.as_ptr(), flags, mode as c_long) as c_int
            };
        }
        (PathPlace::Kfd, _) => files::NodeKind::Kfd,
        (PathPlace::Render(minor), _) => match u16::try_from(minor) {
            Ok(minor) => files::NodeKind::Render(minor),
            Err(_) => return fail(libc::ENOENT),
        },
    };
    let (Some(settings), Some(process)) = (settings(), process::current()) else { return fail(libc::ENODEV) };
    process.open(settings, kind).unwrap_or_else(fail)
}

macro_rules! opens {
    ($($name:ident($($folder:ident)?) $flag:expr;)*) => {$(
        /// As in the C library.
        ///
        /// # Safety
        ///
        /// As in the C library.
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $name($($folder: c_int,)? path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
            #[allow(unused_mut, unused_assignments, reason = "some forms have no folder")]
            let mut at = AT_FDCWD;
            $(at = $folder;)?
            // SAFETY: see above.
            unsafe { open_at(at, path, flags | $flag, mode) }
        }
    )*};
}

opens! {
    open() 0;
    open64() libc::O_LARGEFILE;
    __open_2() 0;
    __open64_2() libc::O_LARGEFILE;
    openat(folder) 0;
    openat64(folder) libc::O_LARGEFILE;
    __openat_2(folder) 0;
    __openat64_2(folder) libc::O_LARGEFILE;
}

/// Calls another library's function with the path that it should see: a device of the card is a file that exists.
fn seen<T>(path: *const c_char, call: impl FnOnce(*const c_char) -> T) -> T {
    match place(path).0 {
        PathPlace::Elsewhere => call(path),
        PathPlace::Inside(inside) => call(inside.as_ptr()),
        PathPlace::Kfd => call(c"/dev/null".as_ptr()),
        PathPlace::Render(minor) => {
            let is_there = process::current().is_some_and(|it| it.cards.iter().any(|card| card.render_minor == minor));
            call(if is_there { c"/dev/null".as_ptr() } else { path })
        }
    }
}

macro_rules! by_path {
    ($($name:ident($path:ident $(, $argument:ident: $kind:ty)*) -> $result:ty, $missing:expr;)*) => {$(
        /// As in the C library.
        ///
        /// # Safety
        ///
        /// As in the C library.
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $name($path: *const c_char $(, $argument: $kind)*) -> $result {
            let name = const {
                match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => panic!("a name without zeros"),
                }
            };
            let Some(function) = behind!(name as fn(*const c_char $(, $kind)*) -> $result) else {
                fail(libc::ENOSYS);
                return $missing;
            };
            // SAFETY: see above.
            seen($path, |path| unsafe { function(path $(, $argument)*) })
        }
    )*};
}

by_path! {
    fopen(path, mode: *const c_char) -> *mut FILE, std::ptr::null_mut();
    fopen64(path, mode: *const c_char) -> *mut FILE, std::ptr::null_mut();
    opendir(path) -> *mut DIR, std::ptr::null_mut();
    realpath(path, buffer: *mut c_char) -> *mut c_char, std::ptr::null_mut();
    readlink(path, buffer: *mut c_char, size: size_t) -> ssize_t, -1;
    access(path, mode: c_int) -> c_int, -1;
    euidaccess(path, mode: c_int) -> c_int, -1;
    eaccess(path, mode: c_int) -> c_int, -1;
    stat(path, buffer: *mut c_void) -> c_int, -1;
    stat64(path, buffer: *mut c_void) -> c_int, -1;
    lstat(path, buffer: *mut c_void) -> c_int, -1;
    lstat64(path, buffer: *mut c_void) -> c_int, -1;
}

macro_rules! by_folder_and_path {
    ($($name:ident($path:ident $(, $argument:ident: $kind:ty)*) -> $result:ty;)*) => {$(
        /// As in the C library.
        ///
        /// # Safety
        ///
        /// As in the C library.
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $name(folder: c_int, $path: *const c_char $(, $argument: $kind)*) -> $result {
            let name = const {
                match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => panic!("a name without zeros"),
                }
            };
            let Some(function) = behind!(name as fn(c_int, *const c_char $(, $kind)*) -> $result) else {
                return fail(libc::ENOSYS) as $result;
            };
            // SAFETY: see above. The first argument is a folder, or with older programs a version.
            seen($path, |path| unsafe { function(folder, path $(, $argument)*) })
        }
    )*};
}

by_folder_and_path! {
    faccessat(path, mode: c_int, flags: c_int) -> c_int;
    fstatat(path, buffer: *mut c_void, flags: c_int) -> c_int;
    fstatat64(path, buffer: *mut c_void, flags: c_int) -> c_int;
    statx(path, flags: c_int, mask: libc::c_uint, buffer: *mut c_void) -> c_int;
    readlinkat(path, buffer: *mut c_char, size: size_t) -> ssize_t;
    __xstat(path, buffer: *mut c_void) -> c_int;
    __xstat64(path, buffer: *mut c_void) -> c_int;
    __lxstat(path, buffer: *mut c_void) -> c_int;
    __lxstat64(path, buffer: *mut c_void) -> c_int;
}

/// As in the C library.
///
/// # Safety
///
/// As in the C library.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn close(descriptor: c_int) -> c_int {
    files::remove(descriptor);
    // SAFETY: see above.
    unsafe { libc::syscall(libc::SYS_close, descriptor) as c_int }
}

/// As in the C library.
///
/// # Safety
///
/// As in the C library.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    /// `CLOSE_RANGE_CLOEXEC`: the descriptors stay open until `exec`.
    const LATER: c_int = 4;
    if flags & LATER == 0 {
        files::remove_range(first, last);
    }
    // SAFETY: see above.
    unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) as c_int }
}

/// As in the C library.
///
/// # Safety
///
/// As in the C library.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn closefrom(first: c_int) {
    let first = first.max(0) as c_uint;
    // SAFETY: see above.
    if unsafe { close_range(first, c_uint::MAX, 0) } != 0 {
        // A kernel before 5.9.
        for descriptor in first..1 << 16 {
            // SAFETY: see above.
            unsafe { close(descriptor as c_int) };
        }
    }
}

fn duplicated(from: c_int, to: c_long) -> c_int {
    if to >= 0 {
        files::duplicate(from, to as c_int);
    }
    to as c_int
}

/// As in the C library.
///
/// # Safety
///
/// As in the C library.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn dup(descriptor: c_int) -> c_int {
    // SAFETY: see above.
    duplicated(descriptor, unsafe { libc::syscall(libc::SYS_dup, descriptor) })
}

/// As in the C library.
///
/// # Safety
///
/// As in the C library.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn dup3(from: c_int, to: c_int, flags: c_int) -> c_int {
    // SAFETY: see above.
    duplicated(from, unsafe { libc::syscall(libc::SYS_dup3, from, to, flags) })
}

/// As in the C library.
///
/// # Safety
///
/// As in the C library.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn dup2(from: c_int, to: c_int) -> c_int {
    if from == to {
        // SAFETY: see above.
        let flags = unsafe { libc::syscall(libc::SYS_fcntl, from, libc::F_GETFD, 0) };
        return if flags < 0 { -1 } else { to };
    }
    // SAFETY: see above.
    unsafe { dup3(from, to, 0) }
}

unsafe fn control(descriptor: c_int, command: c_int, argument: c_ulong) -> c_int {
    // SAFETY: see above.
    let result = unsafe { libc::syscall(libc::SYS_fcntl, descriptor, command, argument) };
    match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => duplicated(descriptor, result),
        _ => result as c_int,
    }
}

/// As in the C library.
///
/// # Safety
///
/// As in the C library.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fcntl(descriptor: c_int, command: c_int, argument: c_ulong) -> c_int {
    // SAFETY: see above.
    unsafe { control(descriptor, command, argument) }
}

/// As in the C library.
///
/// # Safety
///
/// As in the C library.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fcntl64(descriptor: c_int, command: c_int, argument: c_ulong) -> c_int {
    // SAFETY: see above.
    unsafe { control(descriptor, command, argument) }
}

/// As in the C library.
///
/// # Safety
///
/// As in the C library.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ioctl(descriptor: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    let Some(ours) = files::get(descriptor) else {
        // SAFETY: see above.
        return unsafe { libc::syscall(libc::SYS_ioctl, descriptor, request, argument) as c_int };
    };
    if ours.process != std::process::id() {
        // The driver's answer to a child that uses its parent's descriptor.
        return fail(libc::EBADF);
    }
    let Some(process) = process::current() else { return fail(libc::ENODEV) };
    let result = match ours.kind {
        files::NodeKind::Kfd => kfd::ioctl(process, request, argument.cast()),
        files::NodeKind::Render(_) => render::ioctl(process, request, argument.cast()),
    };
    match result {
        Ok(()) => 0,
        Err(error) => fail(error),
    }
}
