//! MIOpen's kernel databases (`.ukdb`, `.kdb`): SQLite with one compressed code object per row.

use std::io::Read;
use std::path::Path;

use md5::{Digest, Md5};
use rusqlite::Connection;
use unhang_guard::{Budget, sqlite};

use crate::ObjectsError;
use crate::bundle::MAX_OBJECT;

/// The start of an SQLite database.
pub(crate) const MAGIC: &[u8] = b"SQLite format 3\0";

/// Receives a kernel's name and its unpacked blob, or why unpacking failed.
pub(crate) type OnKernel<'a> = dyn FnMut(&str, Result<Vec<u8>, ObjectsError>) + 'a;

/// Passes on each kernel's name and its unpacked blob, or why unpacking failed.
pub(crate) fn read(path: &Path, budget: &Budget, on_kernel: &mut OnKernel<'_>) -> Result<(), ObjectsError> {
    let connection = sqlite::open_untrusted(path)?;
    refuse_programs(&connection)?;
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
            Ok(blob) => on_kernel(&name, unpack(blob, size, budget)),
            Err(_) => on_kernel(&name, Err(ObjectsError::damaged("kernel database", "a kernel has no blob"))),
        }
    }
    Ok(())
}

/// Takes an unpacked blob and returns its replacement, or `None` to keep it.
pub(crate) type ChangeBlob<'c> = dyn FnMut(&[u8]) -> Result<Option<Vec<u8>>, ObjectsError> + 'c;

/// No kernel cache has a schema that computes.
fn refuse_programs(connection: &Connection) -> Result<(), ObjectsError> {
    match sqlite::programs_in(connection)? {
        None => Ok(()),
        Some(what) => Err(ObjectsError::Unsupported { container: "kernel database", what }),
    }
}

/// Writes a copy of a database with some of its blobs replaced, compressed as before. A blob that cannot be unpacked is
/// kept unchanged. Returns which ones, and why.
pub(crate) fn rewrite(
    path: &Path,
    output: &Path,
    budget: &Budget,
    change: &mut ChangeBlob<'_>,
) -> Result<Vec<String>, ObjectsError> {
    let original = sqlite::open_untrusted(path)?;
    refuse_programs(&original)?;
    // SQLite's own way to copy: consistent even while another process writes.
    original.execute("VACUUM INTO ?1", [output.to_string_lossy()])?;
    drop(original);
    let mut copy = Connection::open(output)?;
    // A replacement may be longer than the whole file was.
    sqlite::harden(&copy, MAX_OBJECT)?;
    let mut unreadable = Vec::new();
    copy.execute_batch("PRAGMA journal_mode = MEMORY")?;
    let transaction = copy.transaction()?;
    let ids: Vec<i64> = transaction
        .prepare("SELECT id FROM kern_db ORDER BY id")?
        .query_map([], |row| row.get(0))?
        .collect::<Result<_, _>>()?;
    for id in ids {
        let sql = "SELECT kernel_name, kernel_blob, uncompressed_size FROM kern_db WHERE id = ?1";
        let row = transaction.query_row(sql, [id], |row| {
            let name = row.get_ref(0)?.as_str().unwrap_or("?").to_owned();
            Ok((name, row.get::<_, Vec<u8>>(1), row.get::<_, Option<i64>>(2)?.unwrap_or(0)))
        });
        let (name, blob, size) = row?;
        let unpacked = match blob {
            Ok(blob) => unpack(&blob, size, budget).map_err(|error| error.to_string()),
            Err(_) => Err("it has no blob".to_owned()),
        };
        let plain = match unpacked {
            Ok(plain) => plain,
            Err(why) => {
                unreadable.push(format!("{name}: {why}"));
                continue;
            }
        };
        let Some(changed) = change(&plain)? else { continue };
        let hash: String = Md5::digest(&changed).iter().map(|byte| format!("{byte:02x}")).collect();
        let (packed, size) = if size == 0 {
            (changed, 0)
        } else {
            let mut packed = Vec::new();
            bzip2::read::BzEncoder::new(&changed[..], bzip2::Compression::best()).read_to_end(&mut packed)?;
            (packed, changed.len() as i64)
        };
        transaction.execute(
            "UPDATE kern_db SET kernel_blob = ?1, kernel_hash = ?2, uncompressed_size = ?3 WHERE id = ?4",
            (packed, hash, size, id),
        )?;
    }
    transaction.commit()?;
    Ok(unreadable)
}

/// A blob is compressed with bzip2 unless its unpacked size is given as 0.
fn unpack(blob: &[u8], size: i64, budget: &Budget) -> Result<Vec<u8>, ObjectsError> {
    if size == 0 {
        return Ok(blob.to_vec());
    }
    // A negative size is a huge one.
    let size = size as u64;
    ObjectsError::check_size("kernel database", "a kernel", size, MAX_OBJECT)?;
    budget.spend(size).map_err(ObjectsError::over_budget("kernel database"))?;
    let mut bytes = Vec::new();
    bzip2::read::BzDecoder::new(blob).take(size).read_to_end(&mut bytes)?;
    if (bytes.len() as u64) < size {
        return Err(ObjectsError::damaged("kernel database", "a kernel ends early"));
    }
    Ok(bytes)
}
