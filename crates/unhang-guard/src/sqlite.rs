//! SQLite databases that somebody else wrote. A schema is a program: triggers, views and generated columns run when
//! the file is read or changed, and can produce gigabytes out of nothing.

use std::path::Path;

use rusqlite::config::DbConfig;
use rusqlite::limits::Limit;
use rusqlite::{Connection, OpenFlags};

/// Values in a database are no longer than its file; this much more is allowed.
const SPARE: u64 = 1 << 20;
/// More than any value that we read from such a database.
const LONGEST: u64 = 1 << 30;

/// Turns off everything that a foreign schema could run, and limits every value to the size of the file.
pub fn harden(connection: &Connection, file_length: u64) -> rusqlite::Result<()> {
    for (setting, value) in [
        (DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true),
        (DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, false),
        (DbConfig::SQLITE_DBCONFIG_ENABLE_VIEW, false),
        (DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false),
    ] {
        connection.set_db_config(setting, value)?;
    }
    connection.pragma_update(None, "cell_size_check", true)?;
    let longest = file_length.saturating_add(SPARE).min(LONGEST);
    connection.set_limit(Limit::SQLITE_LIMIT_LENGTH, longest as i32)?;
    Ok(())
}

/// Opens somebody else's database for reading. It changes nothing, not even by recovering a journal next to it.
pub fn open_untrusted(path: &Path) -> rusqlite::Result<Connection> {
    let waiting =
        path.with_file_name(format!("{}-wal", path.file_name().and_then(|name| name.to_str()).unwrap_or_default()));
    let in_use = std::fs::metadata(waiting).is_ok_and(|metadata| metadata.len() > 0);
    let mut address = String::from("file:");
    for byte in path.as_os_str().as_encoded_bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'.' | b'-' | b'_' => address.push(*byte as char),
            other => address.push_str(&format!("%{other:02X}")),
        }
    }
    // If there is a write-ahead log, someone may be writing. Otherwise this takes no lock and creates no file.
    address.push_str(if in_use { "?mode=ro" } else { "?mode=ro&immutable=1" });
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(address, flags)?;
    harden(&connection, std::fs::metadata(path).map_or(0, |metadata| metadata.len()))?;
    Ok(connection)
}

/// What a database contains apart from plain tables and indexes, in words, or nothing: triggers, views, virtual
/// tables and computed columns. Neither MIOpen nor we create any.
pub fn programs_in(connection: &Connection) -> rusqlite::Result<Option<String>> {
    let mut objects = connection.prepare("SELECT type, name, coalesce(sql, '') FROM sqlite_master")?;
    let mut rows = objects.query([])?;
    let mut tables = Vec::new();
    while let Some(row) = rows.next()? {
        let (kind, name, sql): (String, String, String) = (row.get(0)?, row.get(1)?, row.get(2)?);
        match kind.as_str() {
            "table" if sql.to_ascii_uppercase().contains("VIRTUAL TABLE") => {
                return Ok(Some(format!("the virtual table {name}")));
            }
            "table" => tables.push(name),
            "index" => {}
            _ => return Ok(Some(format!("the {kind} {name}"))),
        }
    }
    for table in tables {
        let computed: i64 =
            connection.query_row("SELECT count(*) FROM pragma_table_xinfo(?1) WHERE hidden <> 0", [&table], |row| {
                row.get(0)
            })?;
        if computed > 0 {
            return Ok(Some(format!("computed columns in {table}")));
        }
    }
    Ok(None)
}
