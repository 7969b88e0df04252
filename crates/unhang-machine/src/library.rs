//! What a shared library says about itself: the chips of its GPU code, and where it searches for its own libraries.
//!
//! A separate small reader, because it must be bounded in memory and time on any file, and quick on a
//! `libtorch_hip.so` of two gigabytes. It reads headers only. GPU code is in the section `.hip_fatbin` as a row of
//! bundles, one per source file, each starting on a page. A bundle's header names the chips of its entries.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::system::{SMALL, System};

const PAGE: u64 = 4096;
const BUNDLE: &[u8] = b"__CLANG_OFFLOAD_BUNDLE__";
const COMPRESSED: &[u8] = b"CCOB";
/// A bundle has one entry per chip and one for the host.
const MOST_ENTRIES: u64 = 256;
/// All source files of a library are compiled for the same chips; after this many bundles without a new one we stop.
const ENOUGH_BUNDLES: usize = 256;
/// Pages to look at in all, bundles or not.
const MOST_PAGES: usize = 16 * 1024;
/// The header of a bundle fits in this, compressed or not.
const HEADER: usize = 64 * 1024;
/// In a machine folder, a text file with this beginning stands for a library: bundles write them.
const STAND_IN: &str = "unhang: stand-in for a library";
/// Such a file stands for glibc, with glibc's own words, so that its version is read from both in one way.
const GLIBC_STAND_IN: &str = "GNU C Library (a stand-in)";

/// Whether a text stands for a library, as bundles write it.
pub(crate) fn is_description(text: &str) -> bool {
    [STAND_IN, GLIBC_STAND_IN].iter().any(|start| text.starts_with(start))
}

/// The text that stands for a glibc of this version.
pub(crate) fn glibc_stand_in(major: u32, minor: u32) -> String {
    format!("{GLIBC_STAND_IN} stable release version {major}.{minor}.\n")
}

/// What was read from a library.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Library {
    /// The chips that its GPU code is for; empty if it has none.
    pub architectures: Vec<String>,
    /// Whether the linker asks `LD_LIBRARY_PATH` before the library's own search path (DT_RUNPATH, not DT_RPATH).
    pub yields_to_ld_library_path: bool,
}

impl Library {
    fn stand_in(&self) -> String {
        format!(
            "{STAND_IN}\narchitectures={}\nrunpath={}\n",
            self.architectures.join(" "),
            if self.yields_to_ld_library_path { "yes" } else { "no" }
        )
    }

    fn from_stand_in(text: &str) -> Library {
        let value = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        Library {
            architectures: value("architectures=").split_whitespace().filter_map(architecture).collect(),
            yields_to_ld_library_path: value("runpath=") == "yes",
        }
    }
}

/// Examines a library; `None` if it is missing or not a library.
pub(crate) fn inspect(system: &System, path: &Path) -> Option<Library> {
    let file = system.open(path).ok()?;
    let mut start = [0; STAND_IN.len()];
    let library = if system.is_folder() && file.read_exact_at(&mut start, 0).is_ok() && start == STAND_IN.as_bytes() {
        Library::from_stand_in(&system.text(path, SMALL).ok()?)
    } else {
        read(&file)?
    };
    system.record(path, library.stand_in().into_bytes());
    Some(library)
}

/// A section of an ELF file.
struct Section {
    name: String,
    kind: u32,
    offset: u64,
    size: u64,
}

/// A source that can be read at an offset; a short read at the end is not an error.
trait ReadAt {
    fn read_some(&self, offset: u64, most: usize) -> Option<Vec<u8>>;
}

impl ReadAt for File {
    fn read_some(&self, offset: u64, most: usize) -> Option<Vec<u8>> {
        let mut content = vec![0; most];
        let mut filled = 0;
        while filled < most {
            match self.read_at(&mut content[filled..], offset.checked_add(filled as u64)?) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(_) => return None,
            }
        }
        content.truncate(filled);
        Some(content)
    }
}

impl ReadAt for &[u8] {
    fn read_some(&self, offset: u64, most: usize) -> Option<Vec<u8>> {
        let start = usize::try_from(offset).ok()?.min(self.len());
        let end = start.checked_add(most)?.min(self.len());
        Some(self[start..end].to_vec())
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at.checked_add(2)?)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at.checked_add(8)?)?.try_into().ok()?))
}

fn sections(source: &impl ReadAt) -> Option<Vec<Section>> {
    let header = source.read_some(0, 64)?;
    // 64 bits, little endian: the only kind that ROCm comes in.
    if header.get(..6)? != b"\x7fELF\x02\x01" {
        return None;
    }
    let (table, size, count, names) =
        (u64_at(&header, 0x28)?, u16_at(&header, 0x3a)?, u16_at(&header, 0x3c)?, u16_at(&header, 0x3e)?);
    if size != 64 {
        return None;
    }
    let table = source.read_some(table, usize::from(count) * 64)?;
    let entry = |index: usize| {
        let at = index * 64;
        Some((u32_at(&table, at)?, u32_at(&table, at + 4)?, u64_at(&table, at + 0x18)?, u64_at(&table, at + 0x20)?))
    };
    let (_, _, offset, size) = entry(usize::from(names))?;
    let texts = source.read_some(offset, usize::try_from(size).ok()?.min(1 << 20))?;
    let name = |at: u32| {
        let rest = texts.get(at as usize..)?;
        let end = rest.iter().position(|byte| *byte == 0)?;
        Some(String::from_utf8_lossy(&rest[..end.min(64)]).into_owned())
    };
    let all = (0..usize::from(count)).filter_map(|index| {
        let (text, kind, offset, size) = entry(index)?;
        Some(Section { name: name(text)?, kind, offset, size })
    });
    Some(all.collect())
}

fn read(source: &impl ReadAt) -> Option<Library> {
    const DYNAMIC: u32 = 6;
    const RUNPATH: u64 = 29;
    let sections = sections(source)?;
    let mut library = Library::default();
    if let Some(section) = sections.iter().find(|section| section.kind == DYNAMIC) {
        let entries = source.read_some(section.offset, usize::try_from(section.size).ok()?.min(SMALL))?;
        library.yields_to_ld_library_path = entries.chunks_exact(16).any(|entry| u64_at(entry, 0) == Some(RUNPATH));
    }
    for section in sections.iter().filter(|section| section.name == ".hip_fatbin") {
        bundles(source, section.offset, section.size, &mut library.architectures);
    }
    library.architectures.sort();
    Some(library)
}

/// Walks the row of bundles and adds the chips that they name.
fn bundles(source: &impl ReadAt, start: u64, size: u64, found: &mut Vec<String>) {
    let Some(end) = start.checked_add(size) else { return };
    let mut at = start;
    let mut unchanged = 0;
    for _ in 0..MOST_PAGES {
        if at >= end || unchanged >= ENOUGH_BUNDLES {
            return;
        }
        let Some(head) = source.read_some(at, PAGE as usize) else { return };
        let before = found.len();
        let length = if head.starts_with(BUNDLE) {
            unchanged += 1;
            entries(&head, found).or_else(|| entries(&source.read_some(at, HEADER)?, found))
        } else if head.starts_with(COMPRESSED) {
            unchanged += 1;
            compressed(source, at, found)
        } else {
            None
        };
        if found.len() > before {
            unchanged = 0;
        }
        let next = at.saturating_add(length.unwrap_or(1).max(1)).saturating_sub(start).div_ceil(PAGE) * PAGE;
        at = start.saturating_add(next);
    }
}

/// Reads the table at the start of a bundle; gives the bundle's length.
///
/// ```text
/// __CLANG_OFFLOAD_BUNDLE__  count:u64  { offset:u64 size:u64 length:u64 id:[length] }*
/// ```
fn entries(head: &[u8], found: &mut Vec<String>) -> Option<u64> {
    let count = u64_at(head, 24)?;
    if count > MOST_ENTRIES {
        return None;
    }
    let (mut at, mut length) = (32, 0);
    for _ in 0..count {
        let (offset, size, text) = (u64_at(head, at)?, u64_at(head, at + 8)?, u64_at(head, at + 16)?);
        let text = usize::try_from(text).ok().filter(|text| *text <= 512)?;
        let id = head.get(at + 24..at + 24 + text)?;
        if let Some(name) = architecture(&String::from_utf8_lossy(id))
            && !found.contains(&name)
        {
            found.push(name);
        }
        length = length.max(offset.checked_add(size)?);
        at += 24 + text;
    }
    Some(length)
}

/// Reads as much of a compressed bundle as its table takes; gives the bundle's length, where the header tells it.
///
/// ```text
/// CCOB  version:u16  method:u16  [2: length:u32] [3: length:u64]  uncompressed:u32|u64  hash:u64  data
/// ```
fn compressed(source: &impl ReadAt, at: u64, found: &mut Vec<String>) -> Option<u64> {
    let content = source.read_some(at, 256 * 1024)?;
    let (version, method) = (u16_at(&content, 4)?, u16_at(&content, 6)?);
    let (length, data) = match version {
        1 => (None, 20),
        2 => (Some(u64::from(u32_at(&content, 8)?)), 24),
        3 => (Some(u64_at(&content, 8)?), 32),
        _ => return None,
    };
    let packed = content.get(data..)?;
    let mut head = Vec::new();
    // The data continues past what was read, so an error at its end is expected; the output before it counts.
    match method {
        0 => drop(flate2::read::ZlibDecoder::new(packed).take(HEADER as u64).read_to_end(&mut head)),
        1 => drop(ruzstd::decoding::StreamingDecoder::new(packed).ok()?.take(HEADER as u64).read_to_end(&mut head)),
        _ => {}
    }
    if head.starts_with(BUNDLE) {
        entries(&head, found);
    }
    length
}

/// The chip in `hipv4-amdgcn-amd-amdhsa--gfx906:sramecc+:xnack-`.
fn architecture(id: &str) -> Option<String> {
    let name = &id[id.rfind("gfx")?..];
    let end = name[3..].find(|c: char| !c.is_ascii_alphanumeric() && c != '-').map_or(name.len(), |end| end + 3);
    let name = name[..end].trim_end_matches('-');
    (name.len() > 3 && name.len() <= 24).then(|| name.to_owned())
}

/// The version of glibc in `libc.so.6`: `GNU C Library (Debian GLIBC 2.36-9) stable release version 2.36.`
pub(crate) fn glibc_version(content: &[u8]) -> Option<(u32, u32)> {
    let sign = b"stable release version ";
    // Two megabytes to look through: the first byte that is compared is one that seldom matches.
    let at = content.windows(sign.len()).position(|window| window[0] == sign[0] && window == sign)? + sign.len();
    let text = String::from_utf8_lossy(content.get(at..(at + 12).min(content.len()))?).into_owned();
    let mut parts = text.split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use proptest::prelude::*;

    use super::*;

    fn bundle(ids: &[&str], payload: usize) -> Vec<u8> {
        let mut head = BUNDLE.to_vec();
        head.extend((ids.len() as u64).to_le_bytes());
        let table: usize = 32 + ids.iter().map(|id| 24 + id.len()).sum::<usize>();
        for (index, id) in ids.iter().enumerate() {
            head.extend(((table + index * payload) as u64).to_le_bytes());
            head.extend((payload as u64).to_le_bytes());
            head.extend((id.len() as u64).to_le_bytes());
            head.extend(id.as_bytes());
        }
        head.resize(table + ids.len() * payload, 0xcc);
        head
    }

    fn elf(fatbin: &[u8], runpath: bool) -> Vec<u8> {
        let names = b"\0.hip_fatbin\0.dynamic\0.shstrtab\0";
        let fatbin_at = PAGE as usize;
        let mut file = vec![0; fatbin_at];
        file[..6].copy_from_slice(b"\x7fELF\x02\x01");
        file.extend(fatbin);
        let dynamic_at = file.len();
        file.extend(if runpath { 29u64 } else { 15 }.to_le_bytes());
        file.extend([0; 8 + 16]);
        let names_at = file.len();
        file.extend(names);
        let table_at = file.len();
        let mut section = |name: u32, kind: u32, offset: usize, size: usize| {
            let mut entry = [0u8; 64];
            entry[0..4].copy_from_slice(&name.to_le_bytes());
            entry[4..8].copy_from_slice(&kind.to_le_bytes());
            entry[0x18..0x20].copy_from_slice(&(offset as u64).to_le_bytes());
            entry[0x20..0x28].copy_from_slice(&(size as u64).to_le_bytes());
            file.extend(entry);
        };
        section(0, 0, 0, 0);
        section(1, 1, fatbin_at, fatbin.len());
        section(13, 6, dynamic_at, 32);
        section(22, 3, names_at, names.len());
        file[0x28..0x30].copy_from_slice(&(table_at as u64).to_le_bytes());
        file[0x3a..0x3c].copy_from_slice(&64u16.to_le_bytes());
        file[0x3c..0x3e].copy_from_slice(&4u16.to_le_bytes());
        file[0x3e..0x40].copy_from_slice(&3u16.to_le_bytes());
        file
    }

    fn row(bundles: &[Vec<u8>]) -> Vec<u8> {
        let mut row = Vec::new();
        for bundle in bundles {
            row.resize(row.len().div_ceil(PAGE as usize) * PAGE as usize, 0);
            row.extend(bundle);
        }
        row
    }

    #[test]
    fn chips_of_all_bundles_are_found() {
        let file = elf(
            &row(&[
                bundle(&["host-x86_64-unknown-linux--", "hipv4-amdgcn-amd-amdhsa--gfx1030"], 5000),
                bundle(&["host-x86_64-unknown-linux--", "hip-amdgcn-amd-amdhsa-gfx906:sramecc+:xnack-"], 100),
            ]),
            true,
        );
        let library = read(&file.as_slice()).unwrap();
        assert_eq!(library.architectures, ["gfx1030", "gfx906"]);
        assert!(library.yields_to_ld_library_path);
    }

    #[test]
    fn compressed_bundles_are_opened() {
        let plain = bundle(&["hipv4-amdgcn-amd-amdhsa--gfx1010"], 300_000);
        let mut packed = COMPRESSED.to_vec();
        let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(&plain).unwrap();
        let data = encoder.finish().unwrap();
        packed.extend(2u16.to_le_bytes());
        packed.extend(0u16.to_le_bytes());
        packed.extend((24 + data.len() as u32).to_le_bytes());
        packed.extend((plain.len() as u32).to_le_bytes());
        packed.extend(0u64.to_le_bytes());
        packed.extend(data);
        let file = elf(&row(&[packed, bundle(&["hipv4-amdgcn-amd-amdhsa--gfx1012"], 10)]), false);
        let library = read(&file.as_slice()).unwrap();
        assert_eq!(library.architectures, ["gfx1010", "gfx1012"]);
        assert!(!library.yields_to_ld_library_path);
    }

    #[test]
    fn names_of_chips() {
        assert_eq!(architecture("hipv4-amdgcn-amd-amdhsa--gfx90a:xnack-").as_deref(), Some("gfx90a"));
        assert_eq!(architecture("hip-amdgcn-amd-amdhsa--gfx10-1-generic").as_deref(), Some("gfx10-1-generic"));
        assert_eq!(architecture("host-x86_64-unknown-linux-gnu"), None);
        assert_eq!(architecture("gfx"), None);
    }

    #[test]
    fn glibc_tells_its_version() {
        let content = b"\0\0GNU C Library (Debian GLIBC 2.36-9+deb12u9) stable release version 2.36.\nCopyright";
        assert_eq!(glibc_version(content), Some((2, 36)));
        assert_eq!(glibc_version(b"stable release version "), None);
    }

    proptest! {
        #[test]
        fn broken_files_do_no_harm(at in 0usize..6000, bytes in proptest::collection::vec(any::<u8>(), 1..40), cut in 0usize..9000) {
            let mut file = elf(&row(&[bundle(&["hipv4-amdgcn-amd-amdhsa--gfx1030"], 500)]), true);
            for (index, byte) in bytes.iter().enumerate() {
                if let Some(place) = file.get_mut(at + index) {
                    *place = *byte;
                }
            }
            file.truncate(cut);
            let _ = read(&file.as_slice());
            let _ = read(&bytes.as_slice());
            let mut found = Vec::new();
            let _ = entries(&bytes, &mut found);
            let _ = compressed(&bytes.as_slice(), 0, &mut found);
            let _ = architecture(&String::from_utf8_lossy(&bytes));
            let _ = glibc_version(&bytes);
        }
    }
}
