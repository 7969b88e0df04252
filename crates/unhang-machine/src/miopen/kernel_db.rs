//! The SQLite databases: compiled kernels (with their md5) and tuned parameters.
//!
//! `kern_db(id, kernel_name, kernel_args, kernel_blob, kernel_hash, uncompressed_size)`: the blob is bz2 unless
//! `uncompressed_size` is 0, and the hash is the md5 of what is uncompressed. The file comes from outside: its schema
//! is not trusted, sizes are bounded, and it is opened read-only.

use std::io::Read;
use std::path::Path;

use md5::{Digest, Md5};
use rusqlite::Connection;
use serde::Serialize;
use unhang_guard::{Budget, sqlite};

/// No kernel is this large.
const MOST_BYTES: i64 = 256 * 1024 * 1024;
/// More kernels than any cache holds.
const MOST_ROWS: usize = 1_000_000;

/// One compiled kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CachedKernel {
    /// The row.
    pub row: i64,
    /// The source file or kernel that it was compiled from.
    pub name: String,
    /// Bytes, uncompressed.
    pub size: u64,
}

/// A damaged row, or damage of the file as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Bad {
    pub row: Option<i64>,
    pub record: Option<String>,
    pub problem: String,
}

/// A SQLite database, read in full.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct KernelDb {
    pub sound: usize,
    pub kernels: Vec<CachedKernel>,
    pub bad: Vec<Bad>,
}

/// What the first 100 bytes show: whether it is SQLite at all, and whether the file has the length that it states.
pub(crate) fn header_problem(header: &[u8], size: u64) -> Option<String> {
    if size == 0 {
        return None; // SQLite makes an empty file before the first write.
    }
    if header.len() < 100 || !header.starts_with(b"SQLite format 3\0") {
        return Some("not a SQLite database".to_owned());
    }
    let number = |at: usize| u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    let page = match u64::from(u16::from_be_bytes([header[16], header[17]])) {
        1 => 65536,
        page => page,
    };
    if page < 512 || !page.is_power_of_two() {
        return Some(format!("a page size of {page} bytes"));
    }
    // The count of pages holds only if the change counter agrees with the version-valid-for number.
    let pages = u64::from(number(28));
    if pages > 0 && number(24) == number(92) && pages * page > size {
        return Some(format!("cut off: {} bytes are there of {}", size, pages * page));
    }
    None
}

impl KernelDb {
    /// Reads a database: runs SQLite's own check, then checks each kernel if it holds kernels.
    pub(crate) fn read(path: &Path, kernels: bool) -> rusqlite::Result<KernelDb> {
        let mut found = KernelDb::default();
        if std::fs::metadata(path).is_ok_and(|metadata| metadata.len() == 0) {
            return Ok(found);
        }
        let connection = sqlite::open_untrusted(path)?;
        // Before anything else: even a check runs computed columns.
        if let Some(what) = sqlite::programs_in(&connection)? {
            let problem = format!("it holds {what}, which MIOpen never makes");
            found.bad.push(Bad { row: None, record: None, problem });
            return Ok(found);
        }
        let mut check = connection.prepare("PRAGMA integrity_check(10)")?;
        let lines: rusqlite::Result<Vec<String>> = check.query_map([], |row| row.get(0))?.collect();
        for line in lines?.into_iter().filter(|line| line != "ok") {
            found.bad.push(Bad { row: None, record: None, problem: format!("SQLite's integrity check: {line}") });
        }
        let table = |name: &str| {
            let sql = "SELECT count(*) FROM sqlite_master WHERE type='table' AND name=?1";
            connection.query_row(sql, [name], |row| row.get::<_, i64>(0)).map(|count| count == 1)
        };
        if kernels && table("kern_db")? {
            let length = std::fs::metadata(path).map_or(0, |metadata| metadata.len());
            found.read_kernels(&connection, &Budget::for_file(length))?;
        } else if !kernels && table("perf_db")? {
            found.sound =
                connection.query_row("SELECT count(*) FROM perf_db", [], |row| row.get::<_, i64>(0))? as usize;
        }
        Ok(found)
    }

    fn read_kernels(&mut self, connection: &Connection, budget: &Budget) -> rusqlite::Result<()> {
        let sql =
            "SELECT id, substr(kernel_name, 1, 200), length(kernel_blob), uncompressed_size, kernel_hash FROM kern_db";
        let mut rows = connection.prepare(sql)?;
        let mut rows = rows.query([])?;
        while let Some(row) = rows.next()? {
            if self.kernels.len() + self.bad.len() >= MOST_ROWS {
                break;
            }
            let id: i64 = row.get(0)?;
            let name: String = row.get::<_, Option<String>>(1).ok().flatten().unwrap_or_default();
            let (length, size) =
                (row.get::<_, Option<i64>>(2)?.unwrap_or(0), row.get::<_, Option<i64>>(3)?.unwrap_or(-1));
            let hash: String = row.get::<_, Option<String>>(4).ok().flatten().unwrap_or_default();
            let outcome = if !(0..=MOST_BYTES).contains(&size) || length > MOST_BYTES {
                Err(format!("sizes that no kernel has ({length} bytes, {size} uncompressed)"))
            } else {
                let blob: rusqlite::Result<Vec<u8>> =
                    connection.query_row("SELECT kernel_blob FROM kern_db WHERE id=?1", [id], |row| row.get(0));
                blob.map_err(|error| error.to_string()).and_then(|blob| {
                    budget.spend(size as u64).map_err(|error| error.to_string())?;
                    sound(&blob, size as u64, &hash)
                })
            };
            match outcome {
                Ok(size) => {
                    self.sound += 1;
                    self.kernels.push(CachedKernel { row: id, name, size });
                }
                Err(problem) => self.bad.push(Bad { row: Some(id), record: Some(name), problem }),
            }
        }
        Ok(())
    }
}

/// Checks a blob against its hash; returns its uncompressed size.
fn sound(blob: &[u8], uncompressed: u64, hash: &str) -> Result<u64, String> {
    let mut digest = Md5::new();
    let mut length = blob.len() as u64;
    if uncompressed == 0 {
        digest.update(blob);
    } else {
        // One byte more than stated proves the statement wrong; only a part is in memory at a time.
        let mut decoder = bzip2::read::BzDecoder::new(blob).take(uncompressed + 1);
        let mut part = [0; 1 << 14];
        length = 0;
        loop {
            match decoder.read(&mut part).map_err(|error| format!("does not decompress: {error}"))? {
                0 => break,
                read => {
                    digest.update(&part[..read]);
                    length += read as u64;
                }
            }
        }
        if length != uncompressed {
            return Err(format!("decompresses to {length} bytes instead of {uncompressed}"));
        }
    }
    let found: String = digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    if found == hash.to_lowercase() { Ok(length) } else { Err(format!("md5 is {found}, {hash} was recorded")) }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn hashes_and_sizes_are_checked() {
        let plain = b"code object".repeat(100);
        let hash: String = Md5::digest(&plain).iter().map(|byte| format!("{byte:02x}")).collect();
        let mut encoder = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::best());
        encoder.write_all(&plain).unwrap();
        let packed = encoder.finish().unwrap();
        assert_eq!(sound(&packed, plain.len() as u64, &hash), Ok(plain.len() as u64));
        assert_eq!(sound(&plain, 0, &hash), Ok(plain.len() as u64));
        assert!(sound(&packed, 5, &hash).unwrap_err().contains("instead of"));
        assert!(sound(&packed[..20], plain.len() as u64, &hash).unwrap_err().contains("decompress"));
        assert!(sound(b"other", 0, &hash).unwrap_err().contains("md5"));
    }

    #[test]
    fn headers() {
        assert_eq!(header_problem(b"", 0), None);
        assert!(header_problem(b"hello", 5).is_some());
        let mut header = [0u8; 100];
        header[..16].copy_from_slice(b"SQLite format 3\0");
        header[16..18].copy_from_slice(&4096u16.to_be_bytes());
        header[28..32].copy_from_slice(&3u32.to_be_bytes());
        assert_eq!(header_problem(&header, 3 * 4096), None);
        assert!(header_problem(&header, 4096).unwrap().contains("cut off"));
    }
}
