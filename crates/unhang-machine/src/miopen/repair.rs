//! Removes bad records, with a backup next to the file.
//!
//! A text file is rewritten next to itself and renamed. Rows of a SQLite file are deleted in one transaction. A SQLite
//! file that is broken as a whole is moved aside (MIOpen makes a new one). The original bytes are always kept.

use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::{Checked, DatabaseKind, backup_path};
use crate::system::System;

/// What was, or would be, done to one file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Repaired {
    /// The file.
    pub path: PathBuf,
    /// The path of the backup; `None` in a dry run.
    pub backup: Option<PathBuf>,
    /// How many records were removed.
    pub removed: usize,
    /// Whether the whole file was moved aside.
    pub moved_aside: bool,
}

/// Why a file could not be repaired.
#[derive(Debug, thiserror::Error)]
pub enum RepairError {
    /// A file could not be read or written.
    #[error("{}: {source}", path.display())]
    Files {
        /// The file.
        path: PathBuf,
        /// The system's words.
        source: std::io::Error,
    },
    /// SQLite refused.
    #[error("{}: {source}", path.display())]
    Database {
        /// The file.
        path: PathBuf,
        /// SQLite's words.
        source: rusqlite::Error,
    },
    /// The file is a link; its target is not ours to rewrite.
    #[error("{}: is a symbolic link and was left alone", path.display())]
    Link {
        /// The file.
        path: PathBuf,
    },
}

/// Repairs what [`super::verify`] found damaged. With `narrowed`, records that were written under a narrowed set of
/// solvers go too. A dry run only says what would be done.
pub fn repair(
    system: &System,
    checked: &[Checked],
    narrowed: bool,
    dry_run: bool,
) -> Result<Vec<Repaired>, RepairError> {
    let mut done = Vec::new();
    for file in checked {
        let lines: Vec<usize> = file
            .damage
            .iter()
            .filter_map(|damage| damage.line)
            .chain(file.records.iter().filter(|record| narrowed && record.narrowed()).map(|record| record.line))
            .collect();
        let rows: Vec<i64> = file.damage.iter().filter_map(|damage| damage.row).collect();
        let whole = file.damage.iter().any(|damage| damage.line.is_none() && damage.row.is_none());
        if lines.is_empty() && rows.is_empty() && !whole {
            continue;
        }
        let path = file.database.path.clone();
        let mut repaired =
            Repaired { path: path.clone(), backup: None, removed: lines.len() + rows.len(), moved_aside: whole };
        if !dry_run {
            let real = real_file(system, &path)?;
            let backup = backup_path(&real);
            let failed = |source| RepairError::Files { path: path.clone(), source };
            if whole {
                std::fs::rename(&real, &backup).map_err(failed)?;
            } else {
                copy(&real, &backup).map_err(failed)?;
                match file.database.kind {
                    DatabaseKind::FindDb => remove_lines(&real, &lines).map_err(failed)?,
                    DatabaseKind::PerfDb | DatabaseKind::KernelDb => {
                        delete_rows(&real, &rows)
                            .map_err(|source| RepairError::Database { path: path.clone(), source })?;
                    }
                }
            }
            let name = backup.file_name().unwrap_or_default();
            repaired.backup = Some(path.with_file_name(name));
        }
        done.push(repaired);
    }
    Ok(done)
}

/// The file to change: never through a link at its end.
fn real_file(system: &System, path: &Path) -> Result<PathBuf, RepairError> {
    let link = RepairError::Link { path: path.to_owned() };
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else { return Err(link) };
    let Ok(folder) = system.resolve(folder) else { return Err(link) };
    let real = folder.join(name);
    let metadata =
        std::fs::symlink_metadata(&real).map_err(|source| RepairError::Files { path: path.to_owned(), source })?;
    if metadata.is_file() { Ok(real) } else { Err(link) }
}

/// Copies into a new file, and syncs it to disk.
fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    let mut source = std::fs::File::open(from)?;
    let mut target = std::fs::OpenOptions::new().write(true).create_new(true).open(to)?;
    std::io::copy(&mut source, &mut target)?;
    make_like(&target, &source.metadata()?)?;
    target.sync_all()
}

/// Gives a new file the owner and the permissions of another one. Under `sudo` the file is a user's, whose MIOpen could
/// not write root's.
fn make_like(file: &std::fs::File, other: &std::fs::Metadata) -> std::io::Result<()> {
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::fchown(file, Some(other.uid()), Some(other.gid()))?;
    }
    file.set_permissions(other.permissions())
}

fn remove_lines(path: &Path, lines: &[usize]) -> std::io::Result<()> {
    let content = std::fs::read(path)?;
    let mut kept = Vec::with_capacity(content.len());
    for (index, line) in content.split_inclusive(|byte| *byte == b'\n').enumerate() {
        if !lines.contains(&(index + 1)) {
            kept.extend_from_slice(line);
        }
    }
    let fresh = path.with_file_name(format!(".unhang-{}.tmp", std::process::id()));
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).open(&fresh)?;
    let written = file
        .write_all(&kept)
        .and_then(|()| make_like(&file, &std::fs::metadata(path)?))
        .and_then(|()| file.sync_all())
        .and_then(|()| std::fs::rename(&fresh, path));
    if written.is_err() {
        let _ = std::fs::remove_file(&fresh);
    }
    written
}

fn delete_rows(path: &Path, rows: &[i64]) -> rusqlite::Result<()> {
    let mut connection = rusqlite::Connection::open_with_flags(
        path,
        rusqlite::OpenFlags::SQLITE_OPEN_READ_WRITE | rusqlite::OpenFlags::SQLITE_OPEN_NOFOLLOW,
    )?;
    connection.busy_timeout(std::time::Duration::from_secs(5))?;
    // Deleting a row would run triggers that others put into the file.
    unhang_guard::sqlite::harden(&connection, u64::MAX)?;
    let transaction = connection.transaction()?;
    for row in rows {
        transaction.execute("DELETE FROM kern_db WHERE id=?1", [row])?;
    }
    transaction.commit()
}
