//! The database file: how it is opened, migrated and set aside, and what is written and read.
//!
//! Only the store's thread uses this. Whatever is wrong with a file ends in a notice and a missing database, never in
//! an error that a caller must handle.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rusqlite::{Connection, ErrorCode, OpenFlags};
use unhang_guard::{NotPrivate, PrivateFolder};

use crate::queue::Notices;
use crate::time;

/// The names of the file and of its lock.
const FILE: &str = "evidence.db";
const LOCK: &str = "evidence.db.lock";
/// Marks the file as ours ("unhg").
const APPLICATION_ID: i32 = 0x756e_6867;
/// How long opening waits for other programs.
const OPENING_PATIENCE: Duration = Duration::from_millis(1000);
/// How long one attempt to write waits for other programs.
const WRITING_PATIENCE: Duration = Duration::from_millis(2000);

/// The migrations that lead to the present format. A released migration is never edited; the next one is appended. What
/// a record is about, its source and its verdict identify it. So the table grows with what there is to know, not with
/// how often it was seen.
pub(crate) const MIGRATIONS: [&str; 4] = [
    "CREATE TABLE records (
        machine TEXT NOT NULL,
        problem TEXT NOT NULL,
        engine TEXT NOT NULL,
        variant TEXT NOT NULL,
        source TEXT NOT NULL,
        verdict TEXT NOT NULL,
        seconds REAL,
        first_seconds REAL,
        detail TEXT NOT NULL,
        unix_seconds INTEGER NOT NULL,
        PRIMARY KEY (machine, problem, engine, variant, source, verdict)
    ) WITHOUT ROWID;
    CREATE TABLE intents (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        machine TEXT NOT NULL,
        problem TEXT NOT NULL,
        engine TEXT NOT NULL,
        variant TEXT NOT NULL,
        source TEXT NOT NULL,
        owner TEXT NOT NULL,
        unix_seconds INTEGER NOT NULL
    );
    CREATE TABLE canaries (
        machine TEXT NOT NULL,
        name TEXT NOT NULL,
        verdict TEXT NOT NULL,
        detail TEXT NOT NULL,
        unix_seconds INTEGER NOT NULL,
        PRIMARY KEY (machine, name)
    ) WITHOUT ROWID;",
    // Which convolutions users' programs ask for, so that probing and compiling ahead can start with those.
    "CREATE TABLE seen (
        machine TEXT NOT NULL,
        problem TEXT NOT NULL,
        count INTEGER NOT NULL,
        unix_seconds INTEGER NOT NULL,
        PRIMARY KEY (machine, problem)
    ) WITHOUT ROWID;",
    // Which of our GPU kernels was measured as the fastest. Filed by device, not by machine: another torch does not
    // change the result, but other kernels do.
    "CREATE TABLE tunings (
        device TEXT NOT NULL,
        problem TEXT NOT NULL,
        kernels TEXT NOT NULL,
        compiler TEXT NOT NULL,
        driver TEXT NOT NULL,
        choice TEXT NOT NULL,
        seconds REAL NOT NULL,
        spread REAL NOT NULL,
        model_choice TEXT NOT NULL,
        model_seconds REAL NOT NULL,
        candidates INTEGER NOT NULL,
        detail TEXT NOT NULL,
        source TEXT NOT NULL,
        unix_seconds INTEGER NOT NULL,
        PRIMARY KEY (device, problem)
    ) WITHOUT ROWID;",
    // The order of arrival says what came later, because clocks can be set back. In older files, within the same
    // second, bad news counts as later, and an intent counts as later than records.
    "ALTER TABLE records ADD COLUMN arrival INTEGER NOT NULL DEFAULT 0;
    UPDATE records SET arrival = ranked.place FROM (
        SELECT machine, problem, engine, variant, source, verdict,
            row_number() OVER (ORDER BY unix_seconds, verdict <> 'works') AS place FROM records
    ) AS ranked WHERE records.machine = ranked.machine AND records.problem = ranked.problem
        AND records.engine = ranked.engine AND records.variant = ranked.variant AND records.source = ranked.source
        AND records.verdict = ranked.verdict;
    CREATE INDEX records_by_arrival ON records (arrival);
    ALTER TABLE intents ADD COLUMN arrival INTEGER NOT NULL DEFAULT 0;
    UPDATE intents SET arrival =
        (SELECT coalesce(max(arrival), 0) FROM records WHERE records.unix_seconds <= intents.unix_seconds);",
];

/// What is wrong with a file, as far as it decides the next step.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Trouble {
    /// It is damaged, or not ours: it is set aside, and a new one is created.
    Unusable(String),
    /// A newer unhang wrote it and will need it again: it is left alone.
    Newer(i64),
    /// Another process holds it: it is left alone.
    Busy,
    /// It cannot be written, but perhaps read.
    Unwritable(String),
}

impl Trouble {
    fn of(error: &rusqlite::Error) -> Trouble {
        let text = error.to_string();
        match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Trouble::Busy,
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => Trouble::Unusable(text),
            // "no such table": the file has our mark but not our tables.
            Some(ErrorCode::Unknown) => Trouble::Unusable(text),
            _ => Trouble::Unwritable(text),
        }
    }
}

/// The file, if there is one.
pub(crate) struct Database {
    path: PathBuf,
    connection: Option<Connection>,
    notices: Arc<Notices>,
    /// It was set aside once. Doing that again could fill a failing disk with damaged copies.
    repaired: bool,
    /// It can only be read; the notice was given when it was opened.
    only_read: bool,
    /// Others could have written it; the notice was given too.
    foreign: bool,
}

impl Database {
    fn closed(home: &Path, notices: Arc<Notices>) -> Database {
        let path = home.join(FILE);
        Database { path, connection: None, notices, repaired: false, only_read: false, foreign: false }
    }

    /// Opens the file in the folder, or goes on without one if there is no such folder.
    pub(crate) fn open_existing(home: &Path, notices: Arc<Notices>) -> Database {
        if std::fs::symlink_metadata(home).is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound) {
            if std::env::var_os("UNHANG_HOME").is_some_and(|named| !named.is_empty()) {
                notices
                    .say(format!("UNHANG_HOME names {}, which does not exist: no evidence is known", home.display()));
            }
            return Database::closed(home, notices);
        }
        Database::open(home, notices)
    }

    /// Opens the file in the folder, or goes on without one.
    pub(crate) fn open(home: &Path, notices: Arc<Notices>) -> Database {
        let mut database = Database::closed(home, notices);
        match PrivateFolder::open(home) {
            Err(error) if error.is_suspicious() => database.connect_to_foreign(&error),
            Err(error) => {
                // The folder cannot be created, or the path cannot be searched.
                database.notices.say(format!(
                    "the folder {} cannot be created ({error}): continuing without stored evidence; set UNHANG_HOME to a folder that can be written",
                    home.display()
                ));
            }
            Ok(_) => match unhang_guard::folder::check_file(&database.path) {
                Err(error) if error.is_suspicious() => database.connect_to_foreign(&error),
                _ => database.connect(),
            },
        }
        database
    }

    /// Somebody else could have written the file. Its contents count as other people's claims, and nothing is added
    /// to it.
    fn connect_to_foreign(&mut self, why: &NotPrivate) {
        (self.foreign, self.only_read) = (true, true);
        self.connection = open_for_reading(&self.path);
        let rest = if self.connection.is_some() {
            "it is read as what others claim, and nothing is added to it"
        } else {
            "continuing without stored evidence"
        };
        self.notices.say(format!("{why}: {rest}; set UNHANG_HOME to a folder that is yours alone"));
    }

    /// Whether its contents may come from somebody else.
    pub(crate) fn is_foreign(&self) -> bool {
        self.foreign
    }

    /// Whether there is a file to work with.
    pub(crate) fn is_open(&self) -> bool {
        self.connection.is_some()
    }

    /// Runs an operation on the file and returns whether it was done. If the file is damaged, it is set aside and the
    /// operation runs once more on a new one. If the file is busy, the operation is tried again. Anything else
    /// becomes a notice.
    pub(crate) fn perform(&mut self, work: &mut dyn FnMut(&Connection) -> rusqlite::Result<()>) -> bool {
        let mut attempts = 0;
        loop {
            let Some(connection) = &self.connection else { return false };
            let Err(error) = work(connection) else { return true };
            attempts += 1;
            match Trouble::of(&error) {
                Trouble::Busy if attempts < 3 => continue,
                Trouble::Busy => self.notices.say(format!(
                    "{} is locked by another program: some evidence of this run is lost",
                    self.path.display()
                )),
                Trouble::Unusable(why) if !self.repaired => {
                    self.repaired = true;
                    self.connection = None;
                    let lock = OpeningLock::take(&self.path);
                    match self.try_open() {
                        // Another process has replaced it in the meantime, or it only seemed damaged.
                        Ok(connection) if quick_check(&connection) => self.connection = Some(connection),
                        _ => {
                            if self.set_aside(&why) {
                                self.connection = self.try_open().ok();
                            }
                        }
                    }
                    drop(lock);
                    continue;
                }
                Trouble::Unwritable(_) if self.only_read => {}
                Trouble::Unusable(why) | Trouble::Unwritable(why) => self
                    .notices
                    .say(format!("{} cannot be used ({why}): some evidence of this run is lost", self.path.display())),
                Trouble::Newer(_) => {}
            }
            return false;
        }
    }

    fn connect(&mut self) {
        let _lock = OpeningLock::take(&self.path);
        let mut trouble = match self.try_open() {
            Ok(connection) => return self.connection = Some(connection),
            Err(trouble) => trouble,
        };
        if let Trouble::Unusable(why) = &trouble {
            self.repaired = true;
            if !self.set_aside(&why.clone()) {
                return;
            }
            trouble = match self.try_open() {
                Ok(connection) => return self.connection = Some(connection),
                Err(trouble) => trouble,
            };
        }
        let path = self.path.display();
        match trouble {
            Trouble::Unusable(why) => self.notices.say(format!("{path} cannot be used ({why}): continuing without it")),
            Trouble::Newer(version) => self.notices.say(format!(
                "{path} was written by a newer unhang (format {version}, this one knows {}): continuing without it",
                MIGRATIONS.len()
            )),
            Trouble::Busy => {
                self.notices.say(format!("{path} is locked by another program: continuing without stored evidence"));
            }
            Trouble::Unwritable(why) => {
                self.connection = open_for_reading(&self.path);
                self.only_read = true;
                let rest = if self.connection.is_some() {
                    "it is read, and nothing is added to it"
                } else {
                    "continuing without it"
                };
                self.notices.say(format!("{path} cannot be written ({why}): {rest}"));
            }
        }
    }

    fn try_open(&self) -> Result<Connection, Trouble> {
        let open = || -> rusqlite::Result<Result<Connection, Trouble>> {
            let flags =
                OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
            let connection = Connection::open_with_flags(&self.path, flags)?;
            connection.busy_timeout(OPENING_PATIENCE)?;
            unhang_guard::sqlite::harden(&connection, u64::MAX)?;
            let application: i32 = connection.pragma_query_value(None, "application_id", |row| row.get(0))?;
            let version: i64 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
            let tables: i64 = connection.query_row("SELECT count(*) FROM sqlite_master", [], |row| row.get(0))?;
            let fresh = application == 0 && version == 0 && tables == 0;
            if !fresh && application != APPLICATION_ID {
                return Ok(Err(Trouble::Unusable("it is a database of something else".to_owned())));
            }
            if version > MIGRATIONS.len() as i64 {
                return Ok(Err(Trouble::Newer(version)));
            }
            if connection.is_readonly("main")? {
                return Ok(Err(Trouble::Unwritable("it is read-only".to_owned())));
            }
            // WAL: readers and one writer do not block each other. NORMAL: a killed process loses nothing that was
            // committed; a power cut may lose the last records, but never the file.
            connection.pragma_update(None, "journal_mode", "WAL")?;
            connection.pragma_update(None, "synchronous", "NORMAL")?;
            migrate(&connection)?;
            for table in ["records", "intents", "canaries", "seen", "tunings"] {
                connection
                    .query_row(&format!("SELECT count(*) FROM (SELECT 1 FROM {table} LIMIT 1)"), [], |_| Ok(()))?;
            }
            connection.busy_timeout(WRITING_PATIENCE)?;
            Ok(Ok(connection))
        };
        open().unwrap_or_else(|error| Err(Trouble::of(&error)))
    }

    /// Renames the file and its companions. Returns whether the place is free now.
    fn set_aside(&self, why: &str) -> bool {
        let named = |number: u32| {
            let mut name = self.path.clone().into_os_string();
            name.push(format!(".set-aside-{}-{number}", time::now()));
            name
        };
        let mut aside = named(0);
        // Two within one second must not overwrite each other. The opening lock keeps other processes out meanwhile.
        for number in 1..100 {
            if !Path::new(&aside).exists() {
                break;
            }
            aside = named(number);
        }
        let path = self.path.display();
        match fs::rename(&self.path, &aside) {
            Ok(()) => {
                for tail in ["-wal", "-shm"] {
                    let (mut from, mut to) = (self.path.clone().into_os_string(), aside.clone());
                    from.push(tail);
                    to.push(tail);
                    // Neither needs to exist, but a leftover would be taken for the new file's.
                    if fs::rename(&from, to).is_err() {
                        let _ = fs::remove_file(from);
                    }
                }
                let aside = PathBuf::from(aside);
                self.notices.say(format!("{path} cannot be used ({why}): set aside as {}", aside.display()));
                true
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => true,
            Err(error) => {
                self.notices.say(format!(
                    "{path} cannot be used ({why}) and cannot be set aside ({error}): continuing without it"
                ));
                false
            }
        }
    }
}

fn quick_check(connection: &Connection) -> bool {
    connection.query_row("PRAGMA quick_check(1)", [], |row| row.get::<_, String>(0)).is_ok_and(|answer| answer == "ok")
}

fn migrate(connection: &Connection) -> rusqlite::Result<()> {
    let version = |connection: &Connection| -> rusqlite::Result<usize> {
        connection.pragma_query_value(None, "user_version", |row| row.get::<_, i64>(0)).map(|version| version as usize)
    };
    if version(connection)? == MIGRATIONS.len() {
        return Ok(());
    }
    // Take the write lock, then look again: another process may have been faster.
    let transaction = rusqlite::Transaction::new_unchecked(connection, rusqlite::TransactionBehavior::Immediate)?;
    for (index, migration) in MIGRATIONS.iter().enumerate().skip(version(&transaction)?) {
        transaction.execute_batch(migration)?;
        transaction.pragma_update(None, "user_version", index as i64 + 1)?;
    }
    transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
    transaction.commit()
}

/// For a folder without write access, where SQLite cannot create the index of its log. The file is read as it is,
/// without what other programs add meanwhile.
fn open_for_reading(path: &Path) -> Option<Connection> {
    // Opening a pipe in the file's place would block.
    if !fs::metadata(path).ok()?.is_file() {
        return None;
    }
    let connection = unhang_guard::sqlite::open_untrusted(path).ok()?;
    if unhang_guard::sqlite::programs_in(&connection).ok()?.is_some() {
        return None;
    }
    let application: i32 = connection.pragma_query_value(None, "application_id", |row| row.get(0)).ok()?;
    let version: i64 = connection.pragma_query_value(None, "user_version", |row| row.get(0)).ok()?;
    (application == APPLICATION_ID && version == MIGRATIONS.len() as i64).then_some(connection)
}

/// Held while a file is created, migrated or set aside. Otherwise two processes could both find a damaged file, and
/// the second would set aside the first one's new file. If the lock is not free in time, the work goes on without it;
/// SQLite's own locks keep the file intact.
struct OpeningLock(#[expect(dead_code, reason = "closing the file gives the lock back")] Option<File>);

impl OpeningLock {
    fn take(database: &Path) -> OpeningLock {
        let folder = database.parent().and_then(|folder| PrivateFolder::open_existing(folder).ok());
        let Some(Ok(file)) = folder.map(|folder| folder.open_or_make_file(LOCK)) else { return OpeningLock(None) };
        let deadline = Instant::now() + OPENING_PATIENCE;
        while file.try_lock().is_err() {
            if Instant::now() >= deadline {
                return OpeningLock(None);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        OpeningLock(Some(file))
    }
}
