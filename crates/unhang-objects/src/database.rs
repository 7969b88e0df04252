//! MIOpen's kernel databases (`.ukdb`, `.kdb`): SQLite with one compressed code object a row.

use std::io::Read;
use std::path::Path;

use rusqlite::{Connection, OpenFlags};

use crate::ObjectsError;
use crate::bundle::MAX_OBJECT;

/// The start of an SQLite database.
pub(crate) const MAGIC: &[u8] = b"SQLite format 3\0";

/// Takes a kernel's name and its unpacked blob, or why it could not be unpacked.
pub(crate) type OnKernel<'a> = dyn FnMut(&str, Result<Vec<u8>, ObjectsError>) + 'a;

/// Hands over each kernel's name and its unpacked blob, or why it could not be unpacked.
pub(crate) fn read(path: &Path, on_kernel: &mut OnKernel<'_>) -> Result<(), ObjectsError> {
    let connection =
        Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    let tables: i64 = connection.query_row(
        "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = 'kern_db'",
        [],
        |row| row.get(0),
    )?;
    if tables == 0 {
        return Err(ObjectsError::damaged("kernel database", "it has no table kern_db; it is some other database"));
    }
    let mut statement =
        connection.prepare("SELECT kernel_name, kernel_blob, uncompressed_size FROM kern_db ORDER BY id")?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let name = row.get_ref(0)?.as_str().unwrap_or("?").to_owned();
        let size = row.get::<_, i64>(2).unwrap_or(0);
        match row.get_ref(1)?.as_blob() {
            Ok(blob) => on_kernel(&name, unpack(blob, size)),
            Err(_) => on_kernel(&name, Err(ObjectsError::damaged("kernel database", "a kernel has no blob"))),
        }
    }
    Ok(())
}

/// A blob is packed with bzip2 unless its unpacked size is given as 0.
fn unpack(blob: &[u8], size: i64) -> Result<Vec<u8>, ObjectsError> {
    if size == 0 {
        return Ok(blob.to_vec());
    }
    let size = u64::try_from(size).ok().filter(|&size| size <= MAX_OBJECT).ok_or(ObjectsError::TooLarge {
        container: "kernel database",
        what: "a kernel",
        claimed: size as u64,
        limit: MAX_OBJECT,
    })?;
    let mut bytes = Vec::new();
    bzip2::read::BzDecoder::new(blob).take(size).read_to_end(&mut bytes)?;
    Ok(bytes)
}
