//! Folders that belong to this user alone.
//!
//! Code is loaded from these folders, and verdicts in them are believed, so every opening checks them. The folder
//! must be a folder and not a link, must be ours, and nobody else may write to it or replace it. The same applies to
//! each file. Files are opened relative to the open folder, not by path, without following links and without waiting:
//! a pipe that somebody puts there blocks nobody.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat, fstat, mkdirat, openat, renameat, statat, unlinkat};
use rustix::io::Errno;
use thiserror::Error;

/// Flags for opening a file that somebody else may have put there: follow no links, wait for no pipe.
pub const NOFOLLOW_NONBLOCK: u32 = OFlags::NOFOLLOW.union(OFlags::NONBLOCK).union(OFlags::NOCTTY).bits();

/// Why a folder or a file cannot be trusted.
#[derive(Debug, Error)]
pub enum NotPrivate {
    /// It belongs to somebody else.
    #[error("{} belongs to user {owner}, not to user {us}", path.display())]
    Foreign {
        /// Its path.
        path: PathBuf,
        /// The user it belongs to.
        owner: u32,
        /// Our user.
        us: u32,
    },
    /// Others may change it.
    #[error("{} can be written by others (mode {mode:03o}); `chmod go-w` makes it yours alone", path.display())]
    Writable {
        /// Its path.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// It is a link, a pipe or a device.
    #[error("{} is not a plain {wanted}", path.display())]
    WrongKind {
        /// Its path.
        path: PathBuf,
        /// What it should be.
        wanted: &'static str,
    },
    /// The file is larger than anything that is kept there.
    #[error("{} has more than {limit} bytes", path.display())]
    TooLarge {
        /// Its path.
        path: PathBuf,
        /// The most that is read.
        limit: u64,
    },
    /// The system refused.
    #[error("cannot use {}: {source}", path.display())]
    Refused {
        /// Its path.
        path: PathBuf,
        /// The system's words.
        source: io::Error,
    },
}

impl NotPrivate {
    fn refused(path: &Path, source: impl Into<io::Error>) -> NotPrivate {
        NotPrivate::Refused { path: path.to_owned(), source: source.into() }
    }

    /// Whether it simply does not exist.
    pub fn is_missing(&self) -> bool {
        matches!(self, NotPrivate::Refused { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }

    /// Whether somebody else could have tampered with it, as opposed to a full or broken disk.
    pub fn is_suspicious(&self) -> bool {
        !matches!(self, NotPrivate::Refused { .. })
    }
}

/// An open folder that belongs to this user alone.
#[derive(Debug)]
pub struct PrivateFolder {
    path: PathBuf,
    folder: OwnedFd,
}

/// The user who owns what we create.
fn us() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn is_kind(stat: &Stat, kind: FileType) -> bool {
    FileType::from_raw_mode(stat.st_mode) == kind
}

/// It must be ours, or root's, who can do anything anyway. Nobody else may write it.
fn check_owner(path: &Path, stat: &Stat) -> Result<(), NotPrivate> {
    if stat.st_uid != us() && stat.st_uid != 0 {
        return Err(NotPrivate::Foreign { path: path.to_owned(), owner: stat.st_uid, us: us() });
    }
    if stat.st_mode & 0o022 != 0 {
        return Err(NotPrivate::Writable { path: path.to_owned(), mode: stat.st_mode & 0o777 });
    }
    Ok(())
}

/// Nobody but us and root may rename what is below. Each folder above is ours or root's, and not writable by others
/// unless it is sticky. A folder that our primary group may write is common (umask 002) and accepted.
fn check_above(path: &Path) -> Result<(), NotPrivate> {
    for folder in path.ancestors().skip(1).filter(|folder| !folder.as_os_str().is_empty()) {
        let stat = statat(CWD, folder, AtFlags::empty()).map_err(|errno| NotPrivate::refused(folder, errno))?;
        match check_closed(folder, &stat) {
            Err(NotPrivate::Writable { .. }) if stat.st_mode & 0o1000 != 0 => {}
            other => other?,
        }
    }
    Ok(())
}

/// A folder of ours or root's to which nobody else may add anything.
fn check_closed(folder: &Path, stat: &Stat) -> Result<(), NotPrivate> {
    if stat.st_uid != us() && stat.st_uid != 0 {
        return Err(NotPrivate::Foreign { path: folder.to_owned(), owner: stat.st_uid, us: us() });
    }
    let is_our_group = stat.st_gid == rustix::process::getegid().as_raw() || stat.st_gid == 0;
    if stat.st_mode & if is_our_group { 0o002 } else { 0o022 } != 0 {
        return Err(NotPrivate::Writable { path: folder.to_owned(), mode: stat.st_mode & 0o777 });
    }
    Ok(())
}

impl PrivateFolder {
    /// Opens a folder, and creates it and its parents if needed: mode 0700, whatever the umask. If others may enter
    /// or read an existing folder of ours, their access is removed. If they could write it, it is rejected.
    pub fn open(path: &Path) -> Result<PrivateFolder, NotPrivate> {
        let path = std::path::absolute(path).map_err(|error| NotPrivate::refused(path, error))?;
        // Before anything is created: under `sudo` the home may be another user's, and folders owned by root would
        // lock that user out.
        if statat(CWD, &path, AtFlags::SYMLINK_NOFOLLOW).is_err() {
            let below = nearest(&path).join("new");
            check_above(&below)?;
            let true_path = std::fs::canonicalize(nearest(&path)).map_err(|error| NotPrivate::refused(&path, error))?;
            check_above(&true_path.join("new"))?;
        }
        make(&path)?;
        PrivateFolder::open_existing(&path)
    }

    /// Opens a folder whose name outlives it in other processes' variables: nobody else can reuse the name after the
    /// folder is gone. Its parent must not be open to others, not even sticky like `/tmp`.
    pub fn open_lasting(path: &Path) -> Result<PrivateFolder, NotPrivate> {
        let path = std::path::absolute(path).map_err(|error| NotPrivate::refused(path, error))?;
        let base = nearest(&path);
        let stat = statat(CWD, base, AtFlags::empty()).map_err(|errno| NotPrivate::refused(base, errno))?;
        check_closed(base, &stat)?;
        PrivateFolder::open(&path)
    }

    /// Opens a folder that must exist.
    pub fn open_existing(path: &Path) -> Result<PrivateFolder, NotPrivate> {
        let path = std::path::absolute(path).map_err(|error| NotPrivate::refused(path, error))?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let folder = openat(CWD, &path, flags, Mode::empty()).map_err(|errno| match errno {
            Errno::LOOP | Errno::NOTDIR => NotPrivate::WrongKind { path: path.clone(), wanted: "folder" },
            other => NotPrivate::refused(&path, other),
        })?;
        let stat = fstat(&folder).map_err(|errno| NotPrivate::refused(&path, errno))?;
        check_closed(&path, &stat)?;
        // By its true name: a link above it may lead through somebody else's folder.
        let true_path = std::fs::canonicalize(&path).map_err(|error| NotPrivate::refused(&path, error))?;
        check_above(&true_path)?;
        check_above(&path)?;
        if stat.st_uid == us() && stat.st_mode & 0o077 != 0 {
            // Restrictions on the owner stay: a folder may be read-only on purpose.
            let _ = rustix::fs::fchmod(&folder, Mode::from_raw_mode(stat.st_mode & 0o700));
        }
        Ok(PrivateFolder { path, folder })
    }

    /// Creates a folder inside, with a new name.
    pub fn new_folder(&self, prefix: &str) -> Result<PrivateFolder, NotPrivate> {
        for _ in 0..100 {
            let path = self.path.join(format!("{prefix}{}", unused_name()));
            match mkdirat(&self.folder, name_of(&path)?, Mode::from_raw_mode(0o700)) {
                Ok(()) => {
                    // The umask may have removed our own rights.
                    let _ = rustix::fs::chmodat(
                        &self.folder,
                        name_of(&path)?,
                        Mode::from_raw_mode(0o700),
                        AtFlags::empty(),
                    );
                    return PrivateFolder::open_existing(&path);
                }
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(NotPrivate::refused(&path, errno)),
            }
        }
        Err(NotPrivate::refused(&self.path, Errno::EXIST))
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The names in it.
    pub fn names(&self) -> io::Result<Vec<OsString>> {
        let listed = rustix::fs::Dir::read_from(&self.folder)?;
        let names =
            listed.filter_map(Result::ok).map(|entry| OsString::from_vec(entry.file_name().to_bytes().to_vec()));
        Ok(names.filter(|name| name != "." && name != "..").collect())
    }

    /// Opens a plain file of ours; follows no link and waits for nothing.
    pub fn open_file(&self, name: &str) -> Result<File, NotPrivate> {
        self.open_with(name, OFlags::RDONLY)
    }

    /// Opens an existing plain file of ours for reading and appending.
    pub fn open_existing_file(&self, name: &str) -> Result<File, NotPrivate> {
        self.open_with(name, OFlags::RDWR | OFlags::APPEND)
    }

    /// Opens a plain file of ours for writing, and creates it for us alone if needed. For locks and logs.
    pub fn open_or_make_file(&self, name: &str) -> Result<File, NotPrivate> {
        self.open_with(name, OFlags::RDWR | OFlags::CREATE | OFlags::APPEND)
    }

    fn open_with(&self, name: &str, flags: OFlags) -> Result<File, NotPrivate> {
        let path = self.path.join(name);
        let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(0o600);
        let file = openat(&self.folder, name_of(&path)?, flags, mode).map_err(|errno| match errno {
            Errno::LOOP | Errno::NXIO | Errno::ISDIR => NotPrivate::WrongKind { path: path.clone(), wanted: "file" },
            other => NotPrivate::refused(&path, other),
        })?;
        let stat = fstat(&file).map_err(|errno| NotPrivate::refused(&path, errno))?;
        if !is_kind(&stat, FileType::RegularFile) {
            return Err(NotPrivate::WrongKind { path, wanted: "file" });
        }
        check_owner(&path, &stat)?;
        Ok(File::from(file))
    }

    /// The contents of a plain file of ours; `None` if it does not exist.
    pub fn read(&self, name: &str, limit: u64) -> Result<Option<Vec<u8>>, NotPrivate> {
        let mut file = match self.open_file(name) {
            Ok(file) => file,
            Err(error) if error.is_missing() => return Ok(None),
            Err(error) => return Err(error),
        };
        let path = self.path.join(name);
        let mut contents = Vec::new();
        let read = Read::by_ref(&mut file).take(limit + 1).read_to_end(&mut contents);
        read.map_err(|error| NotPrivate::refused(&path, error))?;
        if contents.len() as u64 > limit {
            return Err(NotPrivate::TooLarge { path, limit });
        }
        Ok(Some(contents))
    }

    /// Writes a file for us alone: whole or not at all, replacing what was there.
    pub fn write(&self, name: &str, contents: &[u8]) -> Result<(), NotPrivate> {
        let path = self.path.join(name);
        let (temporary, mut file) = self.new_file(".new-")?;
        let written = file.write_all(contents).and_then(|()| file.sync_all());
        let placed = written.map_err(|error| NotPrivate::refused(&path, error)).and_then(|()| {
            renameat(&self.folder, &temporary, &self.folder, name_of(&path)?)
                .map_err(|errno| NotPrivate::refused(&path, errno))
        });
        if placed.is_err() {
            let _ = unlinkat(&self.folder, &temporary, AtFlags::empty());
        }
        placed
    }

    /// Creates a file with a new name.
    fn new_file(&self, prefix: &str) -> Result<(String, File), NotPrivate> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        for _ in 0..100 {
            let name = format!("{prefix}{}", unused_name());
            match openat(&self.folder, &name, flags, Mode::from_raw_mode(0o600)) {
                Ok(file) => return Ok((name, File::from(file))),
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(NotPrivate::refused(&self.path.join(name), errno)),
            }
        }
        Err(NotPrivate::refused(&self.path, Errno::EXIST))
    }

    /// Removes a file, or the link itself. Returns whether it existed.
    pub fn remove(&self, name: &str) -> bool {
        unlinkat(&self.folder, name, AtFlags::empty()).is_ok()
    }

    /// Removes the folder with its files. It stays if it contains folders, which we never create.
    pub fn remove_all(self) -> io::Result<()> {
        for name in self.names()? {
            let _ = unlinkat(&self.folder, &name, AtFlags::empty());
        }
        std::fs::remove_dir(&self.path)
    }

    /// The open folder.
    pub fn as_fd(&self) -> impl AsFd + '_ {
        self.folder.as_fd()
    }
}

/// The nearest existing parent of a path.
fn nearest(path: &Path) -> &Path {
    let there = |folder: &&Path| statat(CWD, *folder, AtFlags::empty()).is_ok();
    path.ancestors().find(there).unwrap_or(Path::new("/"))
}

/// Whether it is a single name that leads nowhere else.
fn name_of(path: &Path) -> Result<&std::ffi::OsStr, NotPrivate> {
    path.file_name().ok_or_else(|| NotPrivate::WrongKind { path: path.to_owned(), wanted: "name" })
}

/// Creates a folder and its parents, each for us alone.
fn make(path: &Path) -> Result<(), NotPrivate> {
    match statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(_) => return Ok(()),
        Err(Errno::NOENT) => {}
        Err(errno) => return Err(NotPrivate::refused(path, errno)),
    }
    if let Some(above) = path.parent() {
        // A parent may be a link to a folder: checking the folder resolves it.
        if !above.is_dir() {
            make(above)?;
        }
    }
    match mkdirat(CWD, path, Mode::from_raw_mode(0o700)) {
        Ok(()) => {
            // The umask may have removed our own rights.
            let _ = rustix::fs::chmodat(CWD, path, Mode::from_raw_mode(0o700), AtFlags::empty());
            Ok(())
        }
        Err(Errno::EXIST) => Ok(()),
        Err(errno) => Err(NotPrivate::refused(path, errno)),
    }
}

/// A name that differs in each process, thread and moment. `O_EXCL` makes sure that it is unused.
fn unused_name() -> String {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let nanoseconds = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |it| it.subsec_nanos());
    format!("{:x}-{:x}-{nanoseconds:x}", std::process::id(), COUNTER.fetch_add(1, Ordering::Relaxed))
}

/// Whether only we can have written what has this name: a plain file of ours, not a link, that nobody else may write.
/// A missing file is a separate error, see [`NotPrivate::is_missing`].
pub fn check_file(path: &Path) -> Result<(), NotPrivate> {
    let stat = statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW).map_err(|errno| NotPrivate::refused(path, errno))?;
    if !is_kind(&stat, FileType::RegularFile) {
        return Err(NotPrivate::WrongKind { path: path.to_owned(), wanted: "file" });
    }
    check_owner(path, &stat)
}
