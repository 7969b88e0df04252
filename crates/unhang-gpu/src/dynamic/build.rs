//! Identifies the build of a loaded library: by the linker's id, else by a checksum.

use std::ffi::{CStr, c_int, c_void};
use std::path::{Path, PathBuf};
use std::{fs, slice};

/// The type of the note in which linkers write a build's id, and the name of its owner.
const BUILD_ID: u32 = 3;
const OWNER: &[u8] = b"GNU\0";

/// The build of a loaded library: the id in its own notes, as they are in memory, else a checksum of its file.
pub(crate) fn build_of(path: &str) -> Option<String> {
    let mut search = Search { file: fs::canonicalize(path).ok()?, id: None };
    // SAFETY: the function calls back before it returns, with the value that it was given.
    unsafe { libc::dl_iterate_phdr(Some(look_at), (&raw mut search).cast()) };
    search.id.or_else(|| fs::read(&search.file).ok().map(|bytes| format!("{:016x}", crate::cache::checksum(&bytes))))
}

struct Search {
    file: PathBuf,
    id: Option<String>,
}

unsafe extern "C" fn look_at(library: *mut libc::dl_phdr_info, _size: usize, search: *mut c_void) -> c_int {
    // SAFETY: what the loader gives is valid during the call; the other is the value of `build_of`.
    let (library, search) = unsafe { (&*library, &mut *search.cast::<Search>()) };
    if library.dlpi_name.is_null() || library.dlpi_phdr.is_null() {
        return 0;
    }
    // SAFETY: the loader's text.
    let name = unsafe { CStr::from_ptr(library.dlpi_name) };
    let Ok(name) = name.to_str() else { return 0 };
    if name.is_empty() || fs::canonicalize(Path::new(name)).ok().as_deref() != Some(&search.file) {
        return 0;
    }
    // SAFETY: as many program headers as the loader counts.
    let headers = unsafe { slice::from_raw_parts(library.dlpi_phdr, library.dlpi_phnum.into()) };
    let is_loaded = |note: &libc::Elf64_Phdr| {
        let ends_in = |it: &libc::Elf64_Phdr| {
            it.p_vaddr <= note.p_vaddr
                && note.p_vaddr.checked_add(note.p_memsz).is_some_and(|end| end <= it.p_vaddr + it.p_memsz)
        };
        headers.iter().any(|it| it.p_type == libc::PT_LOAD && ends_in(it))
    };
    for note in headers.iter().filter(|it| it.p_type == libc::PT_NOTE && is_loaded(it)) {
        let address = (library.dlpi_addr + note.p_vaddr) as *const u8;
        // SAFETY: a part of a segment that the loader has mapped, readable as all of its notes are. This library is not
        // unloaded while the loader holds its lock for us.
        let bytes = unsafe { slice::from_raw_parts(address, note.p_memsz as usize) };
        if let Some(id) = build_id(bytes) {
            search.id = Some(id.iter().map(|byte| format!("{byte:02x}")).collect());
            return 1;
        }
    }
    0
}

/// The build's id among notes: each has the length of its name, the length of its value, a type, then both, padded to
/// four bytes.
fn build_id(mut notes: &[u8]) -> Option<&[u8]> {
    loop {
        let (header, rest) = notes.split_at_checked(12)?;
        let word = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let (name_length, length) = (word(0) as usize, word(4) as usize);
        let (name, rest) = rest.split_at_checked(name_length.checked_next_multiple_of(4)?)?;
        if word(8) == BUILD_ID && name == OWNER {
            return rest.get(..length).filter(|id| !id.is_empty());
        }
        notes = rest.get(length.checked_next_multiple_of(4)?..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_is_found_among_other_notes_and_damage_is_no_id() {
        let note = |name: &[u8], kind: u32, text: &[u8]| {
            let mut bytes = Vec::new();
            for word in [name.len() as u32, text.len() as u32, kind] {
                bytes.extend(word.to_le_bytes());
            }
            bytes.extend(name);
            bytes.extend(text);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
            bytes
        };
        let notes = [note(b"GNU\0", 5, b"features"), note(b"AMD\0", 3, b"no"), note(b"GNU\0", 3, b"12345")].concat();
        assert_eq!(build_id(&notes), Some(&b"12345"[..]));
        for length in 0..notes.len() - 3 {
            assert_eq!(build_id(&notes[..length]), None, "{length}");
        }
        assert_eq!(build_id(&[0xff; 64]), None);
    }

    #[test]
    fn a_loaded_library_has_a_build_and_one_that_is_not_there_has_none() {
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        let libc =
            maps.lines().find_map(|line| line.find('/').map(|at| &line[at..]).filter(|it| it.contains("libc.so")));
        let build = build_of(libc.unwrap()).unwrap();
        assert!(build.len() >= 16 && build.chars().all(|it| it.is_ascii_hexdigit()), "{build}");
        assert_eq!(build_of("/no/such/library.so"), None);
    }
}
