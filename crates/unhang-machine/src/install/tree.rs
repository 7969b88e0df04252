//! A folder whose files are changed without ever following a symbolic link.
//!
//! Each path is walked component by component with `openat(O_NOFOLLOW)`. So a link that somebody puts in the way, at
//! whatever moment, leads to an error and not out of the folder. New content is written next to its place, made
//! durable, and renamed: a reader sees the old file or the new one, never half of one.

use std::cell::Cell;
use std::ffi::{OsStr, OsString};
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{
    AtFlags, FileType, FlockOperation, Gid, Mode, OFlags, RenameFlags, Stat, Uid, fchmod, fchown, flock, fstat, linkat,
    mkdirat, open, openat, renameat, renameat_with, statat, unlinkat,
};
use rustix::io::Errno;

/// A file larger than this is not a start-up file.
const MOST_BYTES: u64 = 4 * 1024 * 1024;
/// The name of a file while it is being written, next to its final place, one at a time. The second is used if a folder
/// has the first.
pub(super) const SCRATCH: [&str; 2] = [".unhang-writing", ".unhang-writing-2"];

/// Unit tests only simulate power cuts, and waiting for the disk would be most of their time.
const DURABLE: bool = !cfg!(test);

/// Why a file could not be reached or changed.
#[derive(Debug, thiserror::Error)]
pub enum TreeError {
    /// A symbolic link is in the way; it is never followed.
    #[error("{} is, or is reached over, a symbolic link; links are not followed here: replace it with a folder or a file", path.display())]
    Link {
        /// The path.
        path: PathBuf,
    },
    /// Another process works in the same folder.
    #[error("another `unhang env` is working on this folder; wait until it is done")]
    Busy,
    /// The path leads out of the folder, or is not a path.
    #[error("{} is not a path below the folder", path.display())]
    Outside {
        /// The path.
        path: PathBuf,
    },
    /// Not a plain file of a sensible size.
    #[error("{} is not a plain file of at most 4 MiB", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// The system refused.
    #[error("cannot {action} {}: {source}", path.display())]
    Refused {
        /// What was tried.
        action: &'static str,
        /// With what.
        path: PathBuf,
        /// The system's words.
        source: std::io::Error,
    },
    /// A test stopped the work here, as a power cut would.
    #[error("stopped by a test")]
    Stopped,
}

/// An open folder.
#[derive(Debug)]
pub struct Tree {
    base: OwnedFd,
    /// In tests: how many more changes are allowed before everything stops.
    fuel: Cell<Option<u32>>,
}

/// Holds the folder's lock until it is dropped.
#[derive(Debug)]
pub struct Lock(#[allow(dead_code, reason = "open is locked")] OwnedFd);

fn refused(action: &'static str, path: &Path, errno: Errno) -> TreeError {
    match errno {
        Errno::LOOP | Errno::MLINK => TreeError::Link { path: path.to_owned() },
        other => TreeError::Refused { action, path: path.to_owned(), source: other.into() },
    }
}

/// The owner of what root creates in a folder: in a user's home the user, who could not change it otherwise.
fn owner_to_give(folder: &OwnedFd) -> Option<(Uid, Gid)> {
    let stat = rustix::process::geteuid().is_root().then(|| fstat(folder).ok()).flatten()?;
    (stat.st_uid != 0).then(|| (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid)))
}

impl Tree {
    /// Opens a folder.
    pub fn open(path: &Path) -> std::io::Result<Tree> {
        let base = open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Tree { base, fuel: Cell::new(None) })
    }

    /// In tests: allows that many changes and then stops, as a power cut would.
    #[cfg(test)]
    pub(super) fn stop_after(&self, changes: u32) {
        self.fuel.set(Some(changes));
    }

    /// Called before each change.
    fn burn(&self) -> Result<(), TreeError> {
        match self.fuel.get() {
            Some(0) => Err(TreeError::Stopped),
            Some(left) => {
                self.fuel.set(Some(left - 1));
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Takes the folder's lock, or reports that somebody else has it.
    pub fn lock(&self) -> Result<Lock, TreeError> {
        let again = openat(&self.base, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .map_err(|errno| refused("open", Path::new("."), errno))?;
        match flock(&again, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Lock(again)),
            Err(Errno::WOULDBLOCK) => Err(TreeError::Busy),
            Err(errno) => Err(refused("lock", Path::new("."), errno)),
        }
    }

    /// Opens the folder that holds a path; `None` if it does not exist.
    fn parent(&self, path: &Path) -> Result<Option<(OwnedFd, OsString)>, TreeError> {
        let outside = || TreeError::Outside { path: path.to_owned() };
        let mut names = Vec::new();
        for part in path.components() {
            match part {
                Component::Normal(name) => names.push(name.to_owned()),
                _ => return Err(outside()),
            }
        }
        let last = names.pop().ok_or_else(outside)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut folder = openat(&self.base, ".", flags, Mode::empty()).map_err(|errno| refused("open", path, errno))?;
        for name in names {
            folder = match openat(&folder, &name, flags, Mode::empty()) {
                Ok(next) => next,
                Err(Errno::NOENT) => return Ok(None),
                // Linux says ENOTDIR for a link to a folder when both flags are given.
                Err(Errno::NOTDIR) => {
                    let link = statat(&folder, &name, AtFlags::SYMLINK_NOFOLLOW)
                        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Symlink);
                    return if link { Err(TreeError::Link { path: path.to_owned() }) } else { Ok(None) };
                }
                Err(errno) => return Err(refused("open", path, errno)),
            };
        }
        Ok(Some((folder, last)))
    }

    fn existing_parent(&self, path: &Path) -> Result<(OwnedFd, OsString), TreeError> {
        self.parent(path)?.ok_or_else(|| refused("open the folder of", path, Errno::NOENT))
    }

    fn stat(&self, path: &Path) -> Result<Option<Stat>, TreeError> {
        let Some((folder, name)) = self.parent(path)? else { return Ok(None) };
        match statat(&folder, &name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(refused("look at", path, errno)),
        }
    }

    fn is(&self, path: &Path, kind: FileType) -> Result<bool, TreeError> {
        Ok(self.stat(path)?.is_some_and(|stat| FileType::from_raw_mode(stat.st_mode) == kind))
    }

    /// Whether anything exists there, links included.
    pub fn exists(&self, path: &Path) -> Result<bool, TreeError> {
        Ok(self.stat(path)?.is_some())
    }

    /// Whether there is a plain file.
    pub fn is_file(&self, path: &Path) -> Result<bool, TreeError> {
        self.is(path, FileType::RegularFile)
    }

    /// Whether there is a plain file of this user's: an interrupted write leaves one.
    pub fn is_own_file(&self, path: &Path) -> Result<bool, TreeError> {
        let us = rustix::process::geteuid().as_raw();
        let is_own = |stat: Stat| stat.st_uid == us && FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        Ok(self.stat(path)?.is_some_and(is_own))
    }

    /// Whether there is a folder.
    pub fn is_folder(&self, path: &Path) -> Result<bool, TreeError> {
        self.is(path, FileType::Directory)
    }

    /// Reads a plain file.
    pub fn read(&self, path: &Path) -> Result<Vec<u8>, TreeError> {
        let (folder, name) = self.existing_parent(path)?;
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = openat(&folder, &name, flags, Mode::empty()).map_err(|errno| refused("read", path, errno))?;
        let mut file = std::fs::File::from(file);
        let failed = |source| TreeError::Refused { action: "read", path: path.to_owned(), source };
        let metadata = file.metadata().map_err(failed)?;
        if !metadata.is_file() || metadata.len() > MOST_BYTES {
            return Err(TreeError::NotAFile { path: path.to_owned() });
        }
        let mut content = Vec::new();
        Read::by_ref(&mut file).take(MOST_BYTES).read_to_end(&mut content).map_err(failed)?;
        Ok(content)
    }

    /// Makes a folder that must not exist.
    pub fn make_folder(&self, path: &Path) -> Result<(), TreeError> {
        let (folder, name) = self.existing_parent(path)?;
        self.burn()?;
        let failed = |errno| refused("make the folder", path, errno);
        mkdirat(&folder, &name, Mode::from_raw_mode(0o755)).map_err(failed)?;
        if let Some((user, group)) = owner_to_give(&folder) {
            // Opens the folder that was just made: its future owner may have replaced it.
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let made = openat(&folder, &name, flags, Mode::empty()).map_err(failed)?;
            if fstat(&made).map_err(failed)?.st_uid == rustix::process::geteuid().as_raw() {
                fchown(&made, Some(user), Some(group)).map_err(failed)?;
            }
        }
        sync(&folder);
        Ok(())
    }

    /// Writes a file that must not exist, all at once. `like` gives owner and mode of another file.
    pub fn create(&self, path: &Path, content: &[u8], mode: u32, like: Option<&Stat>) -> Result<(), TreeError> {
        self.write(path, content, mode, like, true)
    }

    /// Replaces a file all at once; owner and mode stay.
    pub fn replace(&self, path: &Path, content: &[u8]) -> Result<(), TreeError> {
        let like = self.stat(path)?;
        let mode = like.as_ref().map_or(0o644, |stat| stat.st_mode & 0o7777);
        self.write(path, content, mode, like.as_ref(), false)
    }

    fn write(&self, path: &Path, content: &[u8], mode: u32, like: Option<&Stat>, new: bool) -> Result<(), TreeError> {
        self.remove_scratch(path)?;
        let (folder, name) = self.existing_parent(path)?;
        let failed = |errno| refused("write", path, errno);
        self.burn()?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        // Other people's files of such a name were left alone.
        let is_taken = |name: &&str| statat(&folder, *name, AtFlags::SYMLINK_NOFOLLOW).is_ok();
        let scratch = SCRATCH.into_iter().find(|name| !is_taken(name)).unwrap_or(SCRATCH[0]);
        let file = openat(&folder, scratch, flags, Mode::from_raw_mode(0o600)).map_err(failed)?;
        let mut file = std::fs::File::from(file);
        // A power cut here leaves half a file under another name, which the next call removes.
        self.burn()?;
        file.write_all(content).map_err(|source| TreeError::Refused {
            action: "write",
            path: path.to_owned(),
            source,
        })?;
        if let Some(like) = like {
            // The owner first: changing it takes the set-user-id bits away.
            fchown(file.as_fd(), Some(Uid::from_raw(like.st_uid)), Some(Gid::from_raw(like.st_gid))).map_err(failed)?;
        } else if let Some((user, group)) = owner_to_give(&folder) {
            fchown(file.as_fd(), Some(user), Some(group)).map_err(failed)?;
        }
        fchmod(file.as_fd(), Mode::from_raw_mode(mode)).map_err(failed)?;
        if DURABLE {
            file.sync_all().map_err(|source| TreeError::Refused { action: "write", path: path.to_owned(), source })?;
        }
        self.burn()?;
        if new {
            rename_noreplace(&folder, scratch.as_ref(), &folder, &name).map_err(failed)?;
        } else {
            renameat(&folder, scratch, &folder, &name).map_err(failed)?;
        }
        sync(&folder);
        Ok(())
    }

    /// Removes what an interrupted write left next to a path.
    pub fn remove_scratch(&self, path: &Path) -> Result<(), TreeError> {
        for name in SCRATCH {
            let scratch = path.with_file_name(name);
            if self.is_own_file(&scratch)? {
                self.remove_file(&scratch)?;
            }
        }
        Ok(())
    }

    /// Keeps a file under a second name: a hard link, or a copy if links are not possible.
    pub fn keep(&self, path: &Path, backup: &Path) -> Result<(), TreeError> {
        let ((folder, name), (into, kept)) = (self.existing_parent(path)?, self.existing_parent(backup)?);
        self.burn()?;
        match linkat(&folder, &name, &into, &kept, AtFlags::empty()) {
            Ok(()) => {
                sync(&into);
                Ok(())
            }
            Err(Errno::XDEV | Errno::PERM | Errno::OPNOTSUPP | Errno::NOSYS | Errno::MLINK) => {
                let stat = self.stat(path)?;
                let mode = stat.as_ref().map_or(0o600, |stat| stat.st_mode & 0o7777);
                self.create(backup, &self.read(path)?, mode, stat.as_ref())
            }
            Err(errno) => Err(refused("keep", path, errno)),
        }
    }

    /// Restores a kept file over the current one.
    pub fn put_back(&self, backup: &Path, path: &Path) -> Result<(), TreeError> {
        let same = match (self.stat(backup)?, self.stat(path)?) {
            (Some(one), Some(other)) => (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino),
            _ => false,
        };
        if same {
            // Renaming one name of a file over another name of it does nothing.
            return self.remove_file(backup);
        }
        let ((folder, name), (into, target)) = (self.existing_parent(backup)?, self.existing_parent(path)?);
        self.burn()?;
        match renameat(&folder, &name, &into, &target) {
            Ok(()) => {
                sync(&into);
                Ok(())
            }
            Err(Errno::XDEV) => {
                let content = self.read(backup)?;
                self.replace(path, &content)?;
                self.remove_file(backup)
            }
            Err(errno) => Err(refused("put back", path, errno)),
        }
    }

    /// Renames to a name that must not exist.
    pub fn rename_new(&self, from: &Path, to: &Path) -> Result<(), TreeError> {
        let ((folder, name), (into, target)) = (self.existing_parent(from)?, self.existing_parent(to)?);
        self.burn()?;
        match rename_noreplace(&folder, &name, &into, &target) {
            Ok(()) => {
                sync(&folder);
                sync(&into);
                Ok(())
            }
            Err(Errno::XDEV) if self.is_file(from)? => {
                let stat = self.stat(from)?;
                let mode = stat.as_ref().map_or(0o600, |stat| stat.st_mode & 0o7777);
                self.create(to, &self.read(from)?, mode, stat.as_ref())?;
                self.remove_file(from)
            }
            Err(errno) => Err(refused("move", from, errno)),
        }
    }

    /// Removes a file (or a link itself).
    pub fn remove_file(&self, path: &Path) -> Result<(), TreeError> {
        let (folder, name) = self.existing_parent(path)?;
        self.burn()?;
        unlinkat(&folder, &name, AtFlags::empty()).map_err(|errno| refused("remove", path, errno))?;
        sync(&folder);
        Ok(())
    }

    /// Removes a folder if it is empty.
    pub fn remove_folder_if_empty(&self, path: &Path) -> Result<(), TreeError> {
        let Some((folder, name)) = self.parent(path)? else { return Ok(()) };
        if !self.is_folder(path)? {
            return Ok(());
        }
        self.burn()?;
        match unlinkat(&folder, &name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT | Errno::NOTEMPTY | Errno::EXIST) => Ok(()),
            Err(errno) => Err(refused("remove the folder", path, errno)),
        }
    }

    /// The names in a folder.
    pub fn entries(&self, path: &Path) -> Result<Vec<OsString>, TreeError> {
        use std::os::unix::ffi::OsStringExt;
        let Some((folder, name)) = self.parent(path)? else { return Ok(Vec::new()) };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = match openat(&folder, &name, flags, Mode::empty()) {
            Ok(opened) => opened,
            Err(Errno::NOENT) => return Ok(Vec::new()),
            Err(errno) => return Err(refused("list", path, errno)),
        };
        let listed = rustix::fs::Dir::read_from(&opened).map_err(|errno| refused("list", path, errno))?;
        let names = listed
            .filter_map(Result::ok)
            .map(|entry| OsString::from_vec(entry.file_name().to_bytes().to_vec()))
            .filter(|name| name != "." && name != "..");
        Ok(names.collect())
    }
}

/// Renames without replacing; on file systems that cannot guarantee it, after a check.
fn rename_noreplace(from: &OwnedFd, name: &OsStr, into: &OwnedFd, target: &OsStr) -> rustix::io::Result<()> {
    match renameat_with(from, name, into, target, RenameFlags::NOREPLACE) {
        Err(Errno::INVAL | Errno::NOSYS) => match statat(into, target, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(_) => Err(Errno::EXIST),
            Err(_) => renameat(from, name, into, target),
        },
        other => other,
    }
}

/// Syncs a folder's entries to disk; if that is not possible, only that guarantee is lost.
fn sync(folder: &OwnedFd) {
    if DURABLE {
        let _ = rustix::fs::fsync(folder);
    }
}
