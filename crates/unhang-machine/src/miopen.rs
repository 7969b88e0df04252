//! MIOpen's user databases: what it chose for each convolution, what it tuned, what it compiled.
//!
//! Three kinds, all per chip and per MIOpen version:
//!
//! * find-db, text: `~/.config/miopen/gfx1030_18.HIP.2_20_0_….ufdb.txt`: one line a problem ([`find_db`]);
//! * perf-db, SQLite: `~/.config/miopen/gfx1030_18_1.1.0.udb` (text from ROCm 6.2 on);
//! * kernels, SQLite: `~/.cache/miopen/2.20.0.…/gfx1030_18.ukdb`: compiled code with its md5 ([`kernel_db`]).
//!
//! [`quick_look`] is what the doctor can afford; [`verify`] reads everything; [`repair`] removes what is bad and keeps
//! a backup next to it.

pub mod find_db;
pub mod kernel_db;
pub mod repair;

use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::system::System;
use find_db::FindDb;
use kernel_db::KernelDb;

/// Larger than any find-db.
pub(crate) const MOST_TEXT: usize = 64 * 1024 * 1024;
/// What the doctor reads of a find-db.
const QUICK_TEXT: usize = 2 * 1024 * 1024;

/// The kinds of databases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum DatabaseKind {
    /// Which solver was fastest, per problem.
    FindDb,
    /// Tuned parameters of solvers.
    PerfDb,
    /// Compiled kernels.
    KernelDb,
}

/// One database file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Database {
    /// The file, as the machine sees it.
    pub path: PathBuf,
    /// What it holds.
    pub kind: DatabaseKind,
    /// Bytes.
    pub size: u64,
}

/// Something that is damaged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Damage {
    /// The file.
    pub path: String,
    /// The line of a text file, counted from 1.
    pub line: Option<usize>,
    /// The record, for people: a problem or a kernel.
    pub record: Option<String>,
    /// The row of a SQLite file.
    pub row: Option<i64>,
    /// What is wrong.
    pub problem: String,
}

/// The folders where MIOpen keeps what it learns.
pub fn folders(system: &System) -> Vec<PathBuf> {
    let mut folders = Vec::new();
    let homes = system.homes();
    let expand = |text: &str| {
        let home = homes.first().map(|home| home.display().to_string()).unwrap_or_default();
        PathBuf::from(text.replace('~', &home))
    };
    match system.variable("MIOPEN_USER_DB_PATH") {
        Some(path) => folders.push(expand(path)),
        None => folders.extend(homes.iter().map(|home| home.join(".config/miopen"))),
    }
    match system.variable("MIOPEN_CUSTOM_CACHE_DIR") {
        Some(path) => folders.push(expand(path)),
        None => {
            for cache in homes.iter().map(|home| home.join(".cache/miopen")) {
                let versions = system.entries(&cache).into_iter().take(64).map(|name| cache.join(name));
                folders.extend(versions.filter(|folder| system.is_directory(folder)));
                folders.push(cache);
            }
        }
    }
    folders
}

/// The kind of a file by its name.
fn kind(name: &str) -> Option<DatabaseKind> {
    if name.ends_with(".ufdb.txt") || name.ends_with(".fdb.txt") {
        Some(DatabaseKind::FindDb)
    } else if name.ends_with(".ukdb") || name.ends_with(".kdb") {
        Some(DatabaseKind::KernelDb)
    } else if name.ends_with(".udb") || name.ends_with(".updb.txt") {
        Some(DatabaseKind::PerfDb)
    } else {
        None
    }
}

/// Finds the databases.
pub fn databases(system: &System) -> Vec<Database> {
    let mut found: Vec<Database> = Vec::new();
    for folder in folders(system) {
        for name in system.entries(&folder) {
            let (Some(kind), path) = (kind(&name), folder.join(&name)) else { continue };
            let Ok(real) = system.resolve(&path) else { continue };
            let Ok(metadata) = std::fs::metadata(real) else { continue };
            if metadata.is_file() && !found.iter().any(|known| known.path == path) && found.len() < 256 {
                found.push(Database { path, kind, size: metadata.len() });
            }
        }
    }
    found
}

/// What the doctor finds in a few milliseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct QuickLook {
    /// Damaged files and lines.
    pub corrupt: Vec<Damage>,
    /// Files with the lines of records that were written under a narrowed set of solvers.
    pub narrowed: Vec<(String, Vec<usize>)>,
}

/// Reads find-dbs and the headers of SQLite files.
pub(crate) fn quick_look(system: &System) -> QuickLook {
    let mut look = QuickLook::default();
    for database in databases(system) {
        let path = database.path.display().to_string();
        if database.path.extension().is_some_and(|ending| ending == "txt") {
            // The read limit cuts the last line in two: that is not damage.
            let Ok(bytes) = system.bytes(&database.path, QUICK_TEXT) else { continue };
            if database.kind != DatabaseKind::FindDb {
                continue;
            }
            let mut parsed = find_db::parse(&bytes);
            if bytes.len() == QUICK_TEXT {
                let last = bytes.iter().filter(|byte| **byte == b'\n').count() + 1;
                parsed.bad.retain(|bad| bad.line != last);
            }
            look.corrupt.extend(damages(&path, &parsed));
            let lines: Vec<usize> = parsed.records.iter().filter(|it| it.narrowed()).map(|it| it.line).collect();
            if !lines.is_empty() {
                look.narrowed.push((path, lines));
            }
        } else if let Ok(header) = system.bytes(&database.path, 100)
            && let Some(problem) = kernel_db::header_problem(&header, database.size)
        {
            look.corrupt.push(Damage { path, line: None, record: None, row: None, problem });
        }
    }
    look
}

fn damages(path: &str, parsed: &FindDb) -> Vec<Damage> {
    let bad = parsed.bad.iter();
    bad.map(|bad| Damage {
        path: path.to_owned(),
        line: Some(bad.line),
        record: bad.key.clone(),
        row: None,
        problem: bad.problem.to_string(),
    })
    .collect()
}

/// One database, read in full.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Checked {
    /// The file.
    #[serde(flatten)]
    pub database: Database,
    /// How many records are sound.
    pub sound: usize,
    /// What is damaged.
    pub damage: Vec<Damage>,
    /// The problems of a find-db.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub records: Vec<find_db::Record>,
    /// The kernels of a kernel database.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub kernels: Vec<kernel_db::CachedKernel>,
}

/// Reads everything: each line, each page, each kernel with its md5.
pub fn verify(system: &System) -> Vec<Checked> {
    databases(system).into_iter().map(|database| check(system, database)).collect()
}

fn check(system: &System, database: Database) -> Checked {
    let path = database.path.display().to_string();
    let failed = |problem: String| vec![Damage { path: path.clone(), line: None, record: None, row: None, problem }];
    let mut checked = Checked { database, sound: 0, damage: Vec::new(), records: Vec::new(), kernels: Vec::new() };
    let text = checked.database.path.extension().is_some_and(|ending| ending == "txt");
    if text {
        match system.bytes(&checked.database.path, MOST_TEXT) {
            Ok(bytes) if checked.database.kind == DatabaseKind::FindDb => {
                let parsed = find_db::parse(&bytes);
                checked.damage = damages(&path, &parsed);
                checked.sound = parsed.records.len();
                checked.records = parsed.records;
            }
            Ok(bytes) => checked.sound = String::from_utf8_lossy(&bytes).lines().count(),
            Err(error) => checked.damage = failed(error.to_string()),
        }
        return checked;
    }
    let real = match system.resolve(&checked.database.path) {
        Ok(real) => real,
        Err(error) => {
            checked.damage = failed(error.to_string());
            return checked;
        }
    };
    match KernelDb::read(&real, checked.database.kind == DatabaseKind::KernelDb) {
        Ok(read) => {
            checked.sound = read.sound;
            checked.kernels = read.kernels;
            checked.damage = read
                .bad
                .into_iter()
                .map(|bad| Damage {
                    path: path.clone(),
                    line: None,
                    record: bad.record,
                    row: bad.row,
                    problem: bad.problem,
                })
                .collect();
        }
        Err(error) => checked.damage = failed(error.to_string()),
    }
    checked
}

/// A path next to a file that does not exist yet: `NAME.unhang-backup`, `NAME.unhang-backup-2`, …
pub(crate) fn backup_path(path: &Path) -> PathBuf {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or("database");
    let candidate = |number: u32| match number {
        1 => path.with_file_name(format!("{name}.unhang-backup")),
        more => path.with_file_name(format!("{name}.unhang-backup-{more}")),
    };
    (1..).map(candidate).find(|candidate| std::fs::symlink_metadata(candidate).is_err()).expect("numbers do not end")
}
