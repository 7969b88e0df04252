//! Offload bundles: several code objects, one per target, behind a table of contents; plain or compressed.
//!
//! Plain (`__CLANG_OFFLOAD_BUNDLE__`): a count, then for each entry offset, size, length of the name and the name. All
//! numbers are 64-bit little-endian. Compressed (`CCOB`): a header of 20, 24 or 32 bytes, depending on the version,
//! then the plain bundle compressed with zlib or zstd. Both are read front to back, so only one code object is in
//! memory.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, Read};

use unhang_guard::Budget;

use crate::ObjectsError;

/// The start of a plain bundle.
pub(crate) const MAGIC: &[u8] = b"__CLANG_OFFLOAD_BUNDLE__";
/// The start of a compressed bundle.
pub(crate) const COMPRESSED_MAGIC: &[u8] = b"CCOB";

/// The most bytes to read of one code object.
pub(crate) const MAX_OBJECT: u64 = 1 << 30;
/// The most bytes that a compressed bundle may unpack to.
const MAX_UNPACKED: u64 = 16 << 30;
const MAX_ENTRIES: u64 = 4096;
const MAX_NAME: u64 = 4096;

/// One entry of a bundle.
pub(crate) struct Entry<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its bytes, if it was requested.
    pub bytes: Option<&'a [u8]>,
    /// The offset of the bytes in the file, unless they were compressed.
    pub place: Option<u64>,
}

/// Receives each entry of a bundle.
pub(crate) type OnEntry<'a> = dyn FnMut(Entry<'_>) + 'a;

fn read_u16(input: &mut dyn Read) -> io::Result<u16> {
    let mut bytes = [0; 2];
    input.read_exact(&mut bytes)?;
    Ok(u16::from_le_bytes(bytes))
}

fn read_u32(input: &mut dyn Read) -> io::Result<u32> {
    let mut bytes = [0; 4];
    input.read_exact(&mut bytes)?;
    Ok(u32::from_le_bytes(bytes))
}

fn read_u64(input: &mut dyn Read) -> io::Result<u64> {
    let mut bytes = [0; 8];
    input.read_exact(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

fn ends_early(error: io::Error) -> ObjectsError {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => ObjectsError::damaged("bundle", "it ends inside its table of contents"),
        _ => ObjectsError::Io(error),
    }
}

/// Reads a whole file, unless it is too large for an object.
pub(crate) fn read_whole(file: &mut File, container: &'static str) -> Result<Vec<u8>, ObjectsError> {
    ObjectsError::check_size(container, "itself", file.metadata()?.len(), MAX_OBJECT)?;
    let mut bytes = Vec::new();
    file.take(MAX_OBJECT).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Whether the entry's target belongs to the gfx10 family.
pub(crate) fn is_gfx10(name: &str) -> bool {
    name.rsplit_once("gfx10").is_some_and(|(_, rest)| rest.starts_with(|c: char| c.is_ascii_digit()))
}

/// The start, end and name of an entry.
type Row = (u64, u64, String);

/// Reads the table of contents. Returns it with its size in bytes.
fn read_table(input: &mut dyn Read) -> Result<(Vec<Row>, u64), ObjectsError> {
    let mut magic = [0; 24];
    input.read_exact(&mut magic).map_err(ends_early)?;
    if magic != MAGIC {
        return Err(ObjectsError::damaged("bundle", "it does not start like one"));
    }
    let count = read_u64(input).map_err(ends_early)?;
    if count > MAX_ENTRIES {
        return Err(ObjectsError::damaged("bundle", format!("it claims {count} entries")));
    }
    let mut position = 32;
    let mut entries = Vec::new();
    for _ in 0..count {
        let offset = read_u64(input).map_err(ends_early)?;
        let size = read_u64(input).map_err(ends_early)?;
        let length = read_u64(input).map_err(ends_early)?;
        if length > MAX_NAME {
            return Err(ObjectsError::damaged("bundle", format!("the name of an entry has {length} bytes")));
        }
        let mut name = vec![0; length as usize];
        input.read_exact(&mut name).map_err(ends_early)?;
        position += 24 + length;
        let end = offset
            .checked_add(size)
            .ok_or_else(|| ObjectsError::damaged("bundle", "an entry ends past every address"))?;
        entries.push((offset, end, String::from_utf8_lossy(&name).into_owned()));
    }
    Ok((entries, position))
}

/// Reads a plain bundle from its start and returns its size in bytes. `base` is its offset in the file.
pub(crate) fn read_plain(
    mut input: &mut dyn Read,
    base: Option<u64>,
    on_entry: &mut OnEntry<'_>,
) -> Result<u64, ObjectsError> {
    let (mut entries, mut position) = read_table(input)?;
    // The entries' bytes may be in another order than the table.
    entries.sort_by_key(|entry| (entry.0, entry.1));
    for (offset, end, name) in entries {
        let size = end - offset;
        if size == 0 || !is_gfx10(&name) {
            on_entry(Entry { name: &name, bytes: None, place: None });
            continue;
        }
        if offset < position {
            return Err(ObjectsError::damaged("bundle", format!("the entry `{name}` overlaps another")));
        }
        ObjectsError::check_size("bundle", "an entry", size, MAX_OBJECT)?;
        let gap = offset - position;
        if io::copy(&mut Read::take(&mut input, gap), &mut io::sink())? < gap {
            return Err(ObjectsError::damaged("bundle", format!("it ends before the entry `{name}`")));
        }
        let mut bytes = Vec::new();
        Read::take(&mut input, size).read_to_end(&mut bytes)?;
        if (bytes.len() as u64) < size {
            return Err(ObjectsError::damaged("bundle", format!("it ends inside the entry `{name}`")));
        }
        position = end;
        let place = base.and_then(|base| base.checked_add(offset));
        on_entry(Entry { name: &name, bytes: Some(&bytes), place });
    }
    Ok(position)
}

/// The header of a compressed bundle: the length of the whole if given, the length of the contents, and the method.
fn read_compressed_header(input: &mut dyn Read) -> Result<(Option<u64>, u64, u16), ObjectsError> {
    let mut magic = [0; 4];
    input.read_exact(&mut magic).map_err(ends_early)?;
    if magic != COMPRESSED_MAGIC {
        return Err(ObjectsError::damaged("compressed bundle", "it does not start like one"));
    }
    let version = read_u16(input).map_err(ends_early)?;
    let method = read_u16(input).map_err(ends_early)?;
    let (total, unpacked) = match version {
        1 => (None, read_u32(input).map_err(ends_early)? as u64),
        2 => {
            let total = read_u32(input).map_err(ends_early)? as u64;
            (Some(total), read_u32(input).map_err(ends_early)? as u64)
        }
        3 => {
            let total = read_u64(input).map_err(ends_early)?;
            (Some(total), read_u64(input).map_err(ends_early)?)
        }
        _ => {
            let what = format!("version {version} of the format");
            return Err(ObjectsError::Unsupported { container: "compressed bundle", what });
        }
    };
    let _hash = read_u64(input).map_err(ends_early)?;
    ObjectsError::check_size("compressed bundle", "its contents", unpacked, MAX_UNPACKED)?;
    Ok((total, unpacked, method))
}

/// The contents of a compressed bundle, after its header.
fn decompressor<'r>(input: &'r mut dyn Read, unpacked: u64, method: u16) -> Result<Box<dyn Read + 'r>, ObjectsError> {
    match method {
        0 => Ok(Box::new(flate2::read::ZlibDecoder::new(input).take(unpacked))),
        1 => {
            let decoder = ruzstd::decoding::StreamingDecoder::new(input)
                .map_err(|error| ObjectsError::damaged("compressed bundle", error.to_string()))?;
            Ok(Box::new(decoder.take(unpacked)))
        }
        _ => {
            let what = format!("compression method {method}");
            Err(ObjectsError::Unsupported { container: "compressed bundle", what })
        }
    }
}

/// Reads a compressed bundle from its start. Returns its size in bytes, if its header says it.
pub(crate) fn read_compressed(
    input: &mut dyn Read,
    budget: &Budget,
    on_entry: &mut OnEntry<'_>,
) -> Result<Option<u64>, ObjectsError> {
    let (total, unpacked, method) = read_compressed_header(input)?;
    budget.spend(unpacked).map_err(ObjectsError::over_budget("compressed bundle"))?;
    read_plain(&mut *decompressor(input, unpacked, method)?, None, on_entry)?;
    Ok(total)
}

/// Turns a bundle in memory into a plain one.
pub(crate) fn unpack<'b>(bytes: &'b [u8], budget: &Budget) -> Result<Cow<'b, [u8]>, ObjectsError> {
    if !bytes.starts_with(COMPRESSED_MAGIC) {
        return Ok(Cow::Borrowed(bytes));
    }
    let mut input = bytes;
    let (_, unpacked, method) = read_compressed_header(&mut input)?;
    ObjectsError::check_size("compressed bundle", "its contents", unpacked, MAX_OBJECT)?;
    budget.spend(unpacked).map_err(ObjectsError::over_budget("compressed bundle"))?;
    let mut plain = Vec::new();
    decompressor(&mut input, unpacked, method)?.read_to_end(&mut plain)?;
    Ok(Cow::Owned(plain))
}

/// Takes an entry's name and bytes, and returns their replacement, or `None` to keep them.
pub(crate) type ChangeEntry<'c> = dyn FnMut(&str, &[u8]) -> Option<Vec<u8>> + 'c;

/// A plain bundle with some of its gfx10 entries replaced. It must fill all of `bytes` except for padding.
pub(crate) fn rewrite_plain(bytes: &[u8], change: &mut ChangeEntry<'_>) -> Result<Vec<u8>, ObjectsError> {
    /// The alignment that clang uses for entries, so that they can be mapped.
    const ALIGNMENT: usize = 4096;
    let (rows, table_size) = read_table(&mut &bytes[..])?;
    let mut contents = Vec::new();
    for (offset, end, name) in &rows {
        let outside = || ObjectsError::damaged("bundle", format!("the entry `{name}` is outside of it"));
        let range = usize::try_from(*offset).ok().zip(usize::try_from(*end).ok()).ok_or_else(outside)?;
        let old = bytes.get(range.0..range.1).ok_or_else(outside)?;
        let new = if old.is_empty() || !is_gfx10(name) { None } else { change(name, old) };
        contents.push(new.map_or(Cow::Borrowed(old), Cow::Owned));
    }
    let used = rows.iter().map(|row| row.1).max().unwrap_or(0).max(table_size) as usize;
    if bytes[used.min(bytes.len())..].iter().any(|&byte| byte != 0) {
        let what = "more than one bundle in a file".into();
        return Err(ObjectsError::Unsupported { container: "bundle", what });
    }
    let mut out = bytes[..32].to_vec();
    let mut offset = (table_size as usize).next_multiple_of(ALIGNMENT);
    for ((_, _, name), contents) in rows.iter().zip(&contents) {
        for value in [offset, contents.len(), name.len()] {
            out.extend((value as u64).to_le_bytes());
        }
        out.extend(name.bytes());
        offset = (offset + contents.len()).next_multiple_of(ALIGNMENT);
    }
    for contents in contents {
        out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
        out.extend(contents.iter());
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) fn bundle(entries: &[(&str, &[u8])]) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend((entries.len() as u64).to_le_bytes());
        let mut offset = 32 + entries.iter().map(|(name, _)| 24 + name.len()).sum::<usize>();
        for (name, bytes) in entries {
            out.extend((offset as u64).to_le_bytes());
            out.extend((bytes.len() as u64).to_le_bytes());
            out.extend((name.len() as u64).to_le_bytes());
            out.extend(name.bytes());
            offset += bytes.len();
        }
        for (_, bytes) in entries {
            out.extend(*bytes);
        }
        out
    }

    type Found = Vec<(String, Option<Vec<u8>>)>;

    fn read(bytes: &[u8]) -> Result<Found, ObjectsError> {
        let mut found = Vec::new();
        read_plain(&mut &bytes[..], None, &mut |entry| {
            found.push((entry.name.to_owned(), entry.bytes.map(<[u8]>::to_vec)))
        })?;
        Ok(found)
    }

    #[test]
    fn hands_over_gfx10_and_names_the_rest() {
        let bytes =
            bundle(&[("host-x86_64", b""), ("hipv4-amdgcn-amd-amdhsa--gfx906", b"old"), ("hip-gfx1030", b"new")]);
        let found = read(&bytes).unwrap();
        assert_eq!(found[1], ("hipv4-amdgcn-amd-amdhsa--gfx906".to_owned(), None));
        assert_eq!(found[2], ("hip-gfx1030".to_owned(), Some(b"new".to_vec())));
    }

    #[test]
    fn truncated_and_hostile_bundles_are_errors() {
        let bytes = bundle(&[("hip-gfx1030", b"contents")]);
        for length in 0..bytes.len() {
            assert!(read(&bytes[..length]).is_err(), "cut to {length} bytes");
        }
        let mut huge = bytes.clone();
        huge[24..32].copy_from_slice(&u64::MAX.to_le_bytes());
        assert!(read(&huge).unwrap_err().to_string().contains("entries"));
        let mut wide = bytes;
        wide[40..48].copy_from_slice(&(1u64 << 40).to_le_bytes());
        assert!(matches!(read(&wide), Err(ObjectsError::TooLarge { .. })));
    }

    #[test]
    fn both_compressions_are_read() {
        use std::io::Write;
        let plain = bundle(&[("hip-gfx1010", &[7; 1000])]);
        let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
        encoder.write_all(&plain).unwrap();
        let zlib = encoder.finish().unwrap();
        let zstd = ruzstd::encoding::compress_to_vec(&plain[..], ruzstd::encoding::CompressionLevel::Fastest);
        for (method, body) in [(0u16, zlib), (1, zstd)] {
            for version in 1..=3u16 {
                let mut file = COMPRESSED_MAGIC.to_vec();
                file.extend(version.to_le_bytes());
                file.extend(method.to_le_bytes());
                let total = (body.len() + [20, 24, 32][version as usize - 1]) as u64;
                match version {
                    1 => file.extend((plain.len() as u32).to_le_bytes()),
                    2 => {
                        file.extend((total as u32).to_le_bytes());
                        file.extend((plain.len() as u32).to_le_bytes());
                    }
                    _ => {
                        file.extend(total.to_le_bytes());
                        file.extend((plain.len() as u64).to_le_bytes());
                    }
                }
                file.extend([0; 8]);
                file.extend(&body);
                let mut found = 0;
                let budget = Budget::for_file(file.len() as u64);
                let size =
                    read_compressed(&mut &file[..], &budget, &mut |entry| found += entry.bytes.unwrap().len()).unwrap();
                assert_eq!(found, 1000, "method {method} version {version}");
                assert_eq!(size, (version > 1).then_some(total));
            }
        }
    }
}
