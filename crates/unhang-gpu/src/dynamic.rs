//! Finding vendors' libraries: what this process has loaded already, before anything else.
//!
//! Torch's wheels bring their own copies of the HIP and CUDA libraries. A second copy beside them would be a second
//! runtime with devices, contexts and streams of its own, so the loaded one is taken, by the path under which the
//! process maps it.

use std::collections::BTreeSet;
use std::mem::ManuallyDrop;
use std::path::PathBuf;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use thiserror::Error;

/// A library, and where it came from. It is never unloaded: the vendors' libraries leave destructors behind for threads
/// that end later, and these would run in memory that is gone.
#[derive(Debug)]
pub(crate) struct Found {
    pub library: ManuallyDrop<Library>,
    pub path: String,
}

/// A library that could not be had.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("none of these libraries could be loaded: {}", tried.join("; "))]
pub struct LibraryMissing {
    /// Each name that was tried, with what the loader said.
    pub tried: Vec<String>,
}

/// Files mapped into this process whose name begins with one of `prefixes`, as `/proc/self/maps` lists them:
/// `7f00-7f01 r-xp 00000000 08:01 42   /opt/torch/lib/libamdhip64.so`.
pub(crate) fn mapped(maps: &str, prefixes: &[&str]) -> BTreeSet<PathBuf> {
    maps.lines()
        .filter_map(|line| line.find('/').map(|at| PathBuf::from(line[at..].trim_end_matches(" (deleted)"))))
        .filter(|path| {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            prefixes.iter().any(|prefix| name.starts_with(prefix))
        })
        .collect()
}

/// Loads what is already loaded, else the first of `names` that the loader finds.
pub(crate) fn open(prefixes: &[&str], names: &[String]) -> Result<Found, LibraryMissing> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let mut tried = Vec::new();
    let loaded = mapped(&maps, prefixes).into_iter().map(|path| path.display().to_string());
    for (name, only_if_loaded) in loaded.map(|path| (path, true)).chain(names.iter().map(|name| (name.clone(), false)))
    {
        let flags = RTLD_NOW | RTLD_LOCAL | if only_if_loaded { libc::RTLD_NOLOAD } else { 0 };
        // SAFETY: the libraries' initialisers are the vendors' own, and with RTLD_NOLOAD they have run already.
        match unsafe { Library::open(Some(&name), flags) } {
            Ok(library) => {
                // The file itself, whoever loaded it: what is compiled is filed under its name.
                let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
                let path = mapped(&maps, prefixes).into_iter().next().map_or(name, |path| path.display().to_string());
                return Ok(Found { library: ManuallyDrop::new(library), path });
            }
            Err(error) => tried.push(format!("{name} ({error})")),
        }
    }
    Err(LibraryMissing { tried })
}

/// Loads the functions of a table of pointers from a library; a missing one is an error that names it.
macro_rules! function_table {
    ($(#[$meta:meta])* $name:ident { $($function:ident: $symbol:literal as fn($($argument:ty),*);)* }) => {
        $(#[$meta])*
        #[derive(Debug)]
        struct $name { $($function: unsafe extern "C" fn($($argument),*) -> i32,)* }

        impl $name {
            fn load(found: &$crate::dynamic::Found) -> Result<$name, String> {
                Ok($name {
                    $($function: {
                        // SAFETY: the type is that of the symbol in the vendor's documented C interface.
                        *unsafe {
                            found.library.get::<unsafe extern "C" fn($($argument),*) -> i32>($symbol.as_bytes())
                        }
                        .map_err(|error| format!("{} has no {}: {error}", found.path, $symbol))?
                    },)*
                })
            }
        }
    };
}
pub(crate) use function_table;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapped_libraries_are_found_by_name() {
        let maps = "7f0-7f1 r-xp 0 08:01 42 /opt/a b/lib/libamdhip64.so.5\n7f1-7f2 rw-p 0 0:0 0\n\
                    7f2-7f3 r--p 0 08:01 43 /usr/lib/libc.so.6\n";
        let found = mapped(maps, &["libamdhip64.so"]);
        assert_eq!(found.into_iter().collect::<Vec<_>>(), [PathBuf::from("/opt/a b/lib/libamdhip64.so.5")]);
    }

    #[test]
    fn a_library_is_the_same_file_however_it_was_found() {
        // Not loaded before, and then loaded already.
        let paths = [(); 2].map(|()| open(&["libutil.so"], &["libutil.so.1".into()]).unwrap().path);
        assert_eq!(paths[0], paths[1]);
        assert!(paths[0].starts_with('/'), "{paths:?}");
    }
}
