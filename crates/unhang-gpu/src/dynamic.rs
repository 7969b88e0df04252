//! Finding vendors' libraries: what this process has loaded already, before anything else.
//!
//! Torch's wheels bring their own copies of the HIP and CUDA libraries. A second copy would be a second
//! runtime with its own devices, contexts and streams. So where several are loaded the one that torch's own library is
//! linked to is taken, and where one is loaded no other ever is.

mod build;

use std::collections::BTreeSet;
use std::ffi::{CStr, c_void};
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use thiserror::Error;

pub(crate) use build::build_of;

/// A library, and where it came from. It is never unloaded: the vendors' libraries leave destructors for threads that
/// end later, which would run in unmapped memory.
#[derive(Debug)]
pub(crate) struct Found {
    pub library: ManuallyDrop<Library>,
    pub path: String,
}

/// A library that could not be loaded.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("none of these libraries could be loaded: {}", tried.join("; "))]
pub struct LibraryMissing {
    /// Each name that was tried, with what the loader said.
    pub tried: Vec<String>,
}

/// The library to look for.
#[derive(Debug, Clone)]
pub(crate) struct Wanted<'a> {
    /// Its name up to the version: `libamdhip64`.
    pub stem: &'a str,
    /// A function that it defines, by which we find the file behind a name or another library's link.
    pub witness: &'a str,
    /// Libraries linked to it. If one of them is loaded, its copy is used.
    pub users: &'a [&'a str],
    /// Whether a second copy next to the one that `users` use would be a second runtime: then none is ever loaded.
    pub only_one: bool,
    /// The names to try if none is loaded, in this order.
    pub names: Vec<String>,
}

/// The names of a library of ROCm: the system's choice, then the newest first. One order for all of them, so that the
/// runtime and its compiler are of one version.
pub(crate) fn rocm_names(stem: &str) -> Vec<String> {
    ["", ".7", ".6", ".5"].map(|version| format!("{stem}.so{version}")).to_vec()
}

/// Whether a path names a library: `libamdhip64.so.5`, or `libamdhip64-1a2b3c4d.so` as wheels name their copies. The
/// part after the dash must be a hash, so `libnvrtc-builtins.so` is not `libnvrtc.so`.
fn is_named(path: &Path, stem: &str) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    let Some(rest) = name.and_then(|name| name.strip_prefix(stem)) else { return false };
    let hash_length = match rest.strip_prefix('-') {
        Some(hash) => 1 + hash.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(hash.len()),
        None => 0,
    };
    hash_length != 1 && rest[hash_length..].starts_with(".so")
}

/// The files of that library that are mapped into this process, as `/proc/self/maps` lists them: `7f00-7f01 r-xp
/// 00000000 08:01 42   /opt/torch/lib/libamdhip64.so`.
fn mapped(maps: &str, stem: &str) -> BTreeSet<PathBuf> {
    maps.lines()
        .filter_map(|line| line.find('/').map(|at| PathBuf::from(line[at..].trim_end_matches(" (deleted)"))))
        .filter(|path| is_named(path, stem))
        .collect()
}

/// Files of that library which this process has loaded.
pub(crate) fn loaded(stem: &str) -> BTreeSet<PathBuf> {
    mapped(&std::fs::read_to_string("/proc/self/maps").unwrap_or_default(), stem)
}

fn open_file(name: &str, only_if_loaded: bool) -> Result<Library, libloading::Error> {
    let flags = RTLD_NOW | RTLD_LOCAL | if only_if_loaded { libc::RTLD_NOLOAD } else { 0 };
    // SAFETY: the libraries' initialisers are the vendors' own, and with RTLD_NOLOAD they have run already.
    unsafe { Library::open(Some(name), flags) }
}

/// The file that defines a function for a library, possibly through its links.
fn home_of(library: &Library, function: &str) -> Option<String> {
    // SAFETY: the address is only looked at.
    let address = unsafe { library.get::<*const c_void>(function.as_bytes()) }.ok()?.as_raw_ptr();
    // SAFETY: all-zero is a valid Dl_info.
    let mut information: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: any address may be asked about, and the place for the answer is valid.
    if unsafe { libc::dladdr(address, &mut information) } == 0 || information.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the loader's own text for a library that is never unloaded.
    Some(unsafe { CStr::from_ptr(information.dli_fname) }.to_string_lossy().into_owned())
}

/// The file in which a loaded library finds a function, by its own links.
pub(crate) fn home_through(user: &Path, function: &str) -> Option<String> {
    home_of(&open_file(user.to_str()?, true).ok()?, function)
}

/// The library that this process has loaded, preferably the one that `users` use; else the first name that the loader
/// finds.
pub(crate) fn open(wanted: &Wanted<'_>) -> Result<Found, LibraryMissing> {
    let users: Vec<PathBuf> = wanted.users.iter().flat_map(|user| loaded(user)).collect();
    let mut candidates: Vec<String> = users.iter().filter_map(|user| home_through(user, wanted.witness)).collect();
    // Several copies and no user: the one that the process itself would call.
    let own = home_of(&Library::this(), wanted.witness);
    candidates.extend(own.filter(|path| is_named(Path::new(path), wanted.stem)));
    candidates.extend(loaded(wanted.stem).iter().map(|path| path.display().to_string()));
    let mut tried = Vec::new();
    for name in &candidates {
        match open_file(name, true) {
            Ok(library) => return Ok(found(library, name, wanted)),
            Err(error) => tried.push(format!("{name}, which is loaded ({error})")),
        }
    }
    if wanted.only_one && !(candidates.is_empty() && users.is_empty()) {
        for user in users {
            tried.push(format!("{} is loaded and leads to no {}", user.display(), wanted.stem));
        }
        tried.push("a second copy is not loaded".into());
        return Err(LibraryMissing { tried });
    }
    for name in &wanted.names {
        match open_file(name, false) {
            Ok(library) => return Ok(found(library, name, wanted)),
            Err(error) => tried.push(format!("{name} ({error})")),
        }
    }
    Err(LibraryMissing { tried })
}

fn found(library: Library, name: &str, wanted: &Wanted<'_>) -> Found {
    // The file itself: compiled objects are stored under its name.
    let path = home_of(&library, wanted.witness).unwrap_or_else(|| name.to_owned());
    Found { library: ManuallyDrop::new(library), path }
}

/// The major version that a library's file name ends in: 5 of `libamdhip64.so.5.2.21153`.
fn major(path: &Path) -> Option<u32> {
    let name = std::fs::canonicalize(path).ok()?;
    let (_, version) = name.file_name()?.to_str()?.split_once(".so.")?;
    version.split('.').next()?.parse().ok()
}

/// Files of a library in the folder of another one, of the same major version.
pub(crate) fn beside(path: &Path, stem: &str) -> Vec<String> {
    let Some(folder) = path.parent() else { return Vec::new() };
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut files: Vec<PathBuf> = files.filter(|file| is_named(file, stem) && major(file) == major(path)).collect();
    files.sort();
    files.into_iter().map(|file| file.display().to_string()).collect()
}

impl Found {
    /// A function of the library.
    ///
    /// # Safety
    /// `F` must be the type of the function of that name.
    pub(crate) unsafe fn function<F: Copy>(&self, name: &str) -> Result<F, String> {
        // SAFETY: as the caller says.
        let function = unsafe { self.library.get::<F>(name.as_bytes()) };
        function.map(|function| *function).map_err(|error| format!("{} has no {name}: {error}", self.path))
    }
}

/// Whose library it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Vendor {
    Nvidia,
    Amd,
}

/// A function that both vendors have, with this vendor's name for it.
#[derive(Debug)]
pub(crate) struct Named<F> {
    pub call: F,
    pub name: &'static str,
}

/// Loads the functions of a table of pointers from a library; a missing one is an error that names it.
macro_rules! function_table {
    ($(#[$meta:meta])* $name:ident { $($function:ident: $symbol:literal as fn($($argument:ty),*);)* }) => {
        $(#[$meta])*
        #[derive(Debug)]
        struct $name { $($function: unsafe extern "C" fn($($argument),*) -> i32,)* }

        impl $name {
            fn load(found: &$crate::dynamic::Found) -> Result<$name, String> {
                // SAFETY: the types are those of the symbols in the vendor's documented C interface.
                Ok($name { $($function: unsafe { found.function($symbol) }?,)* })
            }
        }
    };
    // The functions of both vendors, under NVIDIA's name and AMD's. If one takes a device pointer and the other a
    // 64-bit number, both are passed alike.
    ($(#[$meta:meta])* $name:ident { $($function:ident: $nvidia:literal | $amd:literal as fn($($argument:ty),*);)* }) => {
        $(#[$meta])*
        #[derive(Debug)]
        struct $name { $($function: $crate::dynamic::Named<unsafe extern "C" fn($($argument),*) -> i32>,)* }

        impl $name {
            fn load(found: &$crate::dynamic::Found, vendor: $crate::dynamic::Vendor) -> Result<$name, String> {
                let named = |nvidia, amd| if vendor == $crate::dynamic::Vendor::Nvidia { nvidia } else { amd };
                Ok($name {
                    $($function: {
                        let name = named($nvidia, $amd);
                        // SAFETY: the type is that of the symbol in both vendors' documented C interfaces.
                        $crate::dynamic::Named { call: unsafe { found.function(name) }?, name }
                    },)*
                })
            }
        }
    };
}
pub(crate) use function_table;

#[cfg(test)]
mod tests;
