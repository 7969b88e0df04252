//! The versions that a library defines. A program linked to one of them requires that the library of that name has it.

use std::fs::File;
use std::os::unix::fs::FileExt;

/// The type of a section with version definitions.
const DEFINITIONS: u32 = 0x6fff_fffd;
/// The definition that is the library's own name.
const BASE: u16 = 1;
/// No library has more sections than this.
const MOST_SECTIONS: u16 = 4096;
const MOST_BYTES: u64 = 1 << 20;

fn bytes_at(file: &File, offset: u64, count: u64) -> Option<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(count).ok().filter(|_| count <= MOST_BYTES)?];
    file.read_exact_at(&mut bytes, offset).ok()?;
    Some(bytes)
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    number(bytes, at).map(u16::from_le_bytes)
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    number(bytes, at).map(u32::from_le_bytes)
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    number(bytes, at).map(u64::from_le_bytes)
}

/// The versions of a shared library for this processor, without its base; `None` if it is not such a library.
pub fn of(file: &File) -> Option<Vec<Vec<u8>>> {
    let header = bytes_at(file, 0, 64)?;
    if !header.starts_with(b"\x7fELF\x02\x01") || half(&header, 18)? != crate::proxy::PROCESSOR {
        return None;
    }
    Some(definitions(file, &header).unwrap_or_default())
}

fn definitions(file: &File, header: &[u8]) -> Option<Vec<Vec<u8>>> {
    let (table, size, count) = (long(header, 40)?, half(header, 58)?, half(header, 60)?);
    if size != 64 || count > MOST_SECTIONS {
        return None;
    }
    let sections = bytes_at(file, table, u64::from(count) * 64)?;
    let mut sections = sections.chunks_exact(64);
    let all = sections.clone();
    let definitions = sections.find(|section| word(section, 4) == Some(DEFINITIONS))?;
    let names = all.clone().nth(word(definitions, 40)? as usize)?;
    let read = |section: &[u8]| bytes_at(file, long(section, 24)?, long(section, 32)?);
    let (definitions, names) = (read(definitions)?, read(names)?);
    let (mut found, mut at) = (Vec::new(), 0);
    loop {
        let name = word(&definitions, at + word(&definitions, at + 12)? as usize)? as usize;
        if half(&definitions, at + 2)? & BASE == 0 {
            found.push(names.get(name..)?.split(|&byte| byte == 0).next()?.to_owned());
        }
        match word(&definitions, at + 16)? {
            0 => return Some(found),
            next => at += next as usize,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_library_has_no_versions() {
        let text = tempfile::tempfile().unwrap();
        text.write_all_at(&[b'x'; 100], 0).unwrap();
        assert_eq!(of(&text), None);
        assert_eq!(of(&File::open("/dev/null").unwrap()), None);
    }

    #[test]
    fn the_versions_of_the_c_library_are_found() {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let path = maps.split_whitespace().find(|it| it.ends_with("libc.so.6")).expect("this test has a C library");
        let found = of(&File::open(path).unwrap()).unwrap();
        assert!(found.iter().any(|it| it == b"GLIBC_2.28"), "{}", found.len());
        assert!(!found.iter().any(|it| it == b"libc.so.6"), "the base is no version");
    }
}
