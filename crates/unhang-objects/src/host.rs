//! Shared libraries and programs: ELF files of the host with fat binaries in a separate section.

use std::io::{Read, Seek, SeekFrom};

use unhang_guard::Budget;

use crate::ObjectsError;
use crate::bundle::{COMPRESSED_MAGIC, MAGIC, OnEntry, read_compressed, read_plain};

const MAX_NAMES: u64 = 16 << 20;

fn field<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at + N)?.try_into().ok()
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    field(bytes, at).map(u64::from_le_bytes)
}

/// The extents (offset, size) of the sections that hold fat binaries.
fn fat_sections<F: Read + Seek>(file: &mut F, length: u64) -> Result<Vec<(u64, u64)>, ObjectsError> {
    let damaged = |what: &str| ObjectsError::damaged("shared library", what);
    let mut header = [0; 64];
    file.seek(SeekFrom::Start(0))?;
    file.read_exact(&mut header).map_err(|_| damaged("it ends inside its header"))?;
    if header[4] != 2 || header[5] != 1 {
        return Err(ObjectsError::Unsupported {
            container: "shared library",
            what: "32 bits or big-endian order".into(),
        });
    }
    let start = u64_at(&header, 40).unwrap_or(0);
    let [entry_size, count, names] = [58, 60, 62].map(|at| u16::from_le_bytes(field(&header, at).unwrap_or_default()));
    if count == 0 {
        return Ok(Vec::new());
    }
    let table_size = entry_size as u64 * count as u64;
    if entry_size < 64 || start.checked_add(table_size).is_none_or(|end| end > length) {
        return Err(damaged("its section table is outside of it"));
    }
    let mut table = vec![0; table_size as usize];
    file.seek(SeekFrom::Start(start))?;
    file.read_exact(&mut table)?;
    let sections: Vec<&[u8]> = table.chunks_exact(entry_size as usize).collect();
    let extent = |section: &[u8]| -> Option<(u64, u64)> {
        let (offset, size) = (u64_at(section, 24)?, u64_at(section, 32)?);
        (offset.checked_add(size)? <= length).then_some((offset, size))
    };
    let (names_offset, names_size) = sections
        .get(names as usize)
        .and_then(|section| extent(section))
        .ok_or_else(|| damaged("its section names lie outside of it"))?;
    let mut strings = vec![0; names_size.min(MAX_NAMES) as usize];
    file.seek(SeekFrom::Start(names_offset))?;
    file.read_exact(&mut strings)?;
    let mut found = Vec::new();
    for section in sections {
        let at = u32::from_le_bytes(field(section, 0).unwrap_or_default()) as usize;
        if strings.get(at..).is_some_and(|name| name.starts_with(b".hip_fatbin\0")) {
            found.push(extent(section).ok_or_else(|| damaged("its .hip_fatbin section is outside of it"))?);
        }
    }
    Ok(found)
}

/// Reads every bundle of a shared library.
pub(crate) fn read<F: Read + Seek>(
    file: &mut F,
    budget: &Budget,
    on_entry: &mut OnEntry<'_>,
) -> Result<(), ObjectsError> {
    let length = file.seek(SeekFrom::End(0))?;
    for (offset, size) in fat_sections(file, length)? {
        read_bundles(file, offset, offset + size, budget, on_entry)?;
    }
    Ok(())
}

/// Reads the bundles between two offsets of a file; they follow each other with padding between them.
pub(crate) fn read_bundles<F: Read + Seek>(
    file: &mut F,
    start: u64,
    end: u64,
    budget: &Budget,
    on_entry: &mut OnEntry<'_>,
) -> Result<(), ObjectsError> {
    let mut position = start;
    while let Some((at, compressed)) = find_bundle(file, position, end)? {
        file.seek(SeekFrom::Start(at))?;
        let mut part = std::io::BufReader::with_capacity(1 << 16, Read::take(&mut *file, end - at));
        let size = if compressed {
            // If the header has no length, the search continues after the header.
            read_compressed(&mut part, budget, on_entry)?.unwrap_or(20)
        } else {
            read_plain(&mut part, Some(at), on_entry)?
        };
        position = at.saturating_add(size.max(4));
    }
    Ok(())
}

/// The next bundle at or after an offset, and whether it is compressed.
fn find_bundle<F: Read + Seek>(file: &mut F, start: u64, end: u64) -> Result<Option<(u64, bool)>, ObjectsError> {
    const CHUNK: usize = 1 << 16;
    // How far a magic number and the version after it may extend into the next chunk.
    const OVERLAP: usize = 24;
    let mut position = start;
    let mut buffer = vec![0; CHUNK + OVERLAP];
    while position < end {
        file.seek(SeekFrom::Start(position))?;
        let wanted = ((end - position).min(buffer.len() as u64)) as usize;
        file.read_exact(&mut buffer[..wanted])?;
        let window = &buffer[..wanted];
        for at in 0..wanted.min(CHUNK) {
            let rest = &window[at..];
            if rest[0] == b'_' && rest.starts_with(MAGIC) {
                return Ok(Some((position + at as u64, false)));
            }
            if rest[0] == b'C'
                && rest.starts_with(COMPRESSED_MAGIC)
                && matches!(rest.get(4..8), Some([1..=3, 0, 0 | 1, 0]))
            {
                return Ok(Some((position + at as u64, true)));
            }
        }
        position += CHUNK as u64;
    }
    Ok(None)
}
