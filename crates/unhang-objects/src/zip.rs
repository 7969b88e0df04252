//! Zip archives, including wheels: as much of the format as it takes to read members one by one.

use std::io::{Read, Seek, SeekFrom};

use crate::ObjectsError;

const MAX_DIRECTORY: u64 = 256 << 20;

/// A member of an archive.
#[derive(Debug)]
pub(crate) struct Member {
    pub name: String,
    method: u16,
    encrypted: bool,
    packed_size: u64,
    pub size: u64,
    header_offset: u64,
}

fn damaged(what: &str) -> ObjectsError {
    ObjectsError::damaged("zip archive", what)
}

fn number(bytes: &[u8], at: usize, size: usize) -> Option<u64> {
    let mut value = 0;
    for (place, byte) in bytes.get(at..at.checked_add(size)?)?.iter().enumerate() {
        value |= (*byte as u64) << (8 * place);
    }
    Some(value)
}

/// The members of an archive, from the directory at its end.
pub(crate) fn members<F: Read + Seek>(file: &mut F) -> Result<Vec<Member>, ObjectsError> {
    let length = file.seek(SeekFrom::End(0))?;
    // The end record has 22 bytes and a comment of up to 65535.
    let tail_size = length.min(22 + 65535);
    file.seek(SeekFrom::Start(length - tail_size))?;
    let mut tail = vec![0; tail_size as usize];
    file.read_exact(&mut tail)?;
    let end =
        tail.windows(4).rposition(|window| window == b"PK\x05\x06").ok_or_else(|| damaged("it has no directory"))?;
    let record = &tail[end..];
    let mut size = number(record, 12, 4).ok_or_else(|| damaged("its end record is cut off"))?;
    let mut start = number(record, 16, 4).ok_or_else(|| damaged("its end record is cut off"))?;
    if size == 0xffff_ffff || start == 0xffff_ffff || number(record, 10, 2) == Some(0xffff) {
        // The 64-bit record, found through its locator, which comes right before.
        let locator = end.checked_sub(20).and_then(|at| tail.get(at..end)).filter(|it| it.starts_with(b"PK\x06\x07"));
        let at = locator.and_then(|it| number(it, 8, 8)).ok_or_else(|| damaged("it has no 64-bit locator"))?;
        let mut large = [0; 56];
        file.seek(SeekFrom::Start(at))?;
        file.read_exact(&mut large).map_err(|_| damaged("its 64-bit end record is outside of it"))?;
        size = number(&large, 40, 8).unwrap_or(u64::MAX);
        start = number(&large, 48, 8).unwrap_or(u64::MAX);
    }
    if start.checked_add(size).is_none_or(|end| end > length) {
        return Err(damaged("its directory is outside of it"));
    }
    ObjectsError::check_size("zip archive", "its directory", size, MAX_DIRECTORY)?;
    file.seek(SeekFrom::Start(start))?;
    let mut directory = vec![0; size as usize];
    file.read_exact(&mut directory)?;
    let members = parse_directory(&directory).ok_or_else(|| damaged("an entry of its directory is cut off"))?;
    // Bytes with many names would be unpacked that many times.
    let packed = members.iter().try_fold(0u64, |sum, member| sum.checked_add(member.packed_size));
    if packed.is_none_or(|packed| packed > length) {
        return Err(damaged("its members overlap: together they claim more than the archive has"));
    }
    Ok(members)
}

fn parse_directory(directory: &[u8]) -> Option<Vec<Member>> {
    let mut members = Vec::new();
    let mut at = 0;
    while directory.get(at..)?.starts_with(b"PK\x01\x02") {
        let field = |offset, size| number(directory, at + offset, size);
        let name_length = field(28, 2)? as usize;
        let extra_length = field(30, 2)? as usize;
        let comment_length = field(32, 2)? as usize;
        let name = directory.get(at + 46..at + 46 + name_length)?;
        let mut member = Member {
            name: String::from_utf8_lossy(name).into_owned(),
            method: field(10, 2)? as u16,
            encrypted: field(8, 2)? & 1 != 0,
            packed_size: field(20, 4)?,
            size: field(24, 4)?,
            header_offset: field(42, 4)?,
        };
        let mut extra = directory.get(at + 46 + name_length..at + 46 + name_length + extra_length)?;
        while extra.len() >= 4 {
            let length = number(extra, 2, 2)? as usize;
            let Some(body) = extra.get(4..4 + length) else { break };
            if number(extra, 0, 2)? == 1 {
                // 64-bit sizes. Each is present only if the short field is full.
                let mut next = 0;
                for value in [&mut member.size, &mut member.packed_size, &mut member.header_offset] {
                    if *value == 0xffff_ffff {
                        *value = number(body, next, 8)?;
                        next += 8;
                    }
                }
            }
            extra = &extra[4 + length..];
        }
        members.push(member);
        at += 46 + name_length + extra_length + comment_length;
    }
    Some(members)
}

/// A member's contents, unpacked while reading, and never more than its directory entry says.
pub(crate) fn open<'a, F: Read + Seek>(file: &'a mut F, member: &Member) -> Result<Box<dyn Read + 'a>, ObjectsError> {
    if member.encrypted {
        return Err(ObjectsError::Unsupported { container: "zip archive", what: "encryption".into() });
    }
    let mut header = [0; 30];
    file.seek(SeekFrom::Start(member.header_offset))?;
    file.read_exact(&mut header).map_err(|_| damaged("a member is outside of it"))?;
    if !header.starts_with(b"PK\x03\x04") {
        return Err(damaged("a member has no header"));
    }
    let skip = number(&header, 26, 2).unwrap_or(0) + number(&header, 28, 2).unwrap_or(0);
    file.seek(SeekFrom::Current(skip as i64))?;
    let packed = file.take(member.packed_size);
    match member.method {
        0 => Ok(Box::new(packed.take(member.size))),
        8 => Ok(Box::new(flate2::read::DeflateDecoder::new(packed).take(member.size))),
        method => {
            Err(ObjectsError::Unsupported { container: "zip archive", what: format!("compression method {method}") })
        }
    }
}
