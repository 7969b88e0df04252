//! The one value through which everything is read: a root folder and a set of variables.
//!
//! Nothing in this crate calls `std::fs` or `std::env` to *inspect* anything: it asks a [`System`]. So any machine can
//! be a folder. A machine that is a folder cannot make us read outside of it, read without end, or block.
//!
//! Every read is bounded: a size limit per file, a limit on entries per folder, a limit on symbolic links per path.
//! Links are resolved inside the root, as `chroot` would, so `/opt/rocm -> /opt/rocm-5.7.0` means the folder's own.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};
use std::sync::Mutex;

use rustix::fs::{Access, OFlags, access};

use crate::journald;

/// Small text files: sysfs attributes, version files, profile scripts.
pub const SMALL: usize = 64 * 1024;
/// Larger text files, for example a shell's start-up file or the kernel's log.
pub const LARGE: usize = 1024 * 1024;
/// As many links as Linux itself follows before it says ELOOP.
const MOST_LINKS: usize = 40;
/// Larger folders are unexpected; the rest of the entries is ignored.
const MOST_ENTRIES: usize = 65_536;
/// A path longer than this cannot be opened on Linux anyway.
const MOST_COMPONENTS: usize = 512;

/// The variables that a process on the machine would see.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment {
    variables: BTreeMap<String, String>,
}

impl Environment {
    /// This process's variables. Bytes that are not UTF-8 become replacement characters.
    pub fn of_this_process() -> Environment {
        let text = |text: OsString| text.to_string_lossy().into_owned();
        Environment { variables: std::env::vars_os().map(|(name, value)| (text(name), text(value))).collect() }
    }

    /// Reads `NAME=VALUE` lines, as `env` prints them or as a Docker `--env-file` has them.
    ///
    /// Empty lines and lines that start with `#` are skipped. An `export ` in front is allowed, and one pair of
    /// matching quotes around the value is removed. A line without `=` is skipped, because `env` prints such lines for
    /// values that hold a newline.
    pub fn parse(text: &str) -> Environment {
        let mut variables = BTreeMap::new();
        for line in text.lines() {
            let line = line.trim_start();
            if line.starts_with('#') {
                continue;
            }
            let line = line.strip_prefix("export ").unwrap_or(line);
            let Some((name, value)) = line.split_once('=') else { continue };
            let name = name.trim();
            if name.is_empty() || name.contains(char::is_whitespace) {
                continue;
            }
            variables.insert(name.to_owned(), unquoted(value.trim_end_matches('\r')).to_owned());
        }
        Environment { variables }
    }

    /// The value of a variable, if it is set; an empty value counts as set.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(String::as_str)
    }

    /// These variables with another value for one of them.
    #[must_use]
    pub fn with(mut self, name: &str, value: &str) -> Environment {
        self.variables.insert(name.to_owned(), value.to_owned());
        self
    }

    /// All variables, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.variables.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }
}

impl<N: Into<String>, V: Into<String>> FromIterator<(N, V)> for Environment {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(pairs: I) -> Environment {
        Environment { variables: pairs.into_iter().map(|(name, value)| (name.into(), value.into())).collect() }
    }
}

fn unquoted(value: &str) -> &str {
    for quote in ['"', '\''] {
        if let Some(inner) = value.strip_prefix(quote).and_then(|rest| rest.strip_suffix(quote)) {
            return inner;
        }
    }
    value
}

/// Why something could not be read. `Missing` is normal; the others are worth a note.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// There is no such file.
    #[error("there is no such file")]
    Missing,
    /// The file exists but may not be read.
    #[error("permission denied")]
    Denied,
    /// More symbolic links than Linux would follow.
    #[error("more than {MOST_LINKS} symbolic links in the path")]
    TooManyLinks,
    /// A folder, a pipe, a device: not something to read to its end.
    #[error("not a plain file")]
    NotAFile,
    /// Anything else, in the system's words.
    #[error("{0}")]
    Other(String),
}

impl From<std::io::Error> for ReadError {
    fn from(error: std::io::Error) -> ReadError {
        use std::io::ErrorKind;
        if error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error()) {
            return ReadError::TooManyLinks;
        }
        match error.kind() {
            ErrorKind::NotFound | ErrorKind::NotADirectory => ReadError::Missing,
            ErrorKind::PermissionDenied => ReadError::Denied,
            ErrorKind::IsADirectory => ReadError::NotAFile,
            _ => ReadError::Other(error.to_string()),
        }
    }
}

/// Whether this process may use a device file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceAccess {
    /// It may be opened for reading and writing.
    Granted,
    /// It exists but may not be opened.
    Denied,
    /// It is not there.
    Missing,
}

/// A file that exists but could not be read: a gap in the doctor's report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Obstacle {
    /// The path, as seen from the machine's root.
    pub path: PathBuf,
    /// Why.
    pub error: ReadError,
}

/// A machine to examine: a root folder and the variables of a process on it.
#[derive(Debug)]
pub struct System {
    root: PathBuf,
    environment: Environment,
    obstacles: Mutex<Vec<Obstacle>>,
    /// Every file that was read, while a bundle is collected: a bundle holds what the doctor reads.
    record: Option<Mutex<BTreeMap<PathBuf, Vec<u8>>>>,
}

impl System {
    /// The machine that is described by a folder, with these variables.
    pub fn new(root: &Path, environment: Environment) -> System {
        System { root: root.to_owned(), environment, obstacles: Mutex::default(), record: None }
    }

    /// This machine; or the one in `UNHANG_ROOT`, if that is set.
    pub fn host() -> System {
        let environment = Environment::of_this_process();
        match environment.get("UNHANG_ROOT").filter(|root| !root.is_empty()) {
            Some(root) => System::folder(&PathBuf::from(root), environment),
            None => System::new(Path::new("/"), environment),
        }
    }

    /// The machine in a folder. Its file `environment`, if it has one (as bundles do), gives the variables; otherwise
    /// those given here.
    pub fn folder(root: &Path, otherwise: Environment) -> System {
        let system = System::new(root, otherwise);
        match system.text("/environment", LARGE) {
            Ok(text) => System::new(root, Environment::parse(&text)),
            Err(_) => system,
        }
    }

    /// Starts keeping a copy of everything that is read.
    pub(crate) fn recording(mut self) -> System {
        self.record = Some(Mutex::default());
        self
    }

    /// What was read since [`System::recording`].
    pub(crate) fn recorded(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        self.record.as_ref().map(|record| record.lock().expect("no panic while held").clone()).unwrap_or_default()
    }

    /// Adds to what was read: the stand-in for a file too large to keep.
    pub(crate) fn record(&self, path: &Path, content: Vec<u8>) {
        if let Some(record) = &self.record {
            record.lock().expect("no panic while held").insert(path.to_owned(), content);
        }
    }

    /// Where the machine's `/` is.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Whether this is a description of a machine, not this machine. Every output then says so.
    pub fn is_folder(&self) -> bool {
        self.root != Path::new("/")
    }

    /// The variables.
    pub fn environment(&self) -> &Environment {
        &self.environment
    }

    /// The value of a variable, if it is set and not empty.
    pub fn variable(&self, name: &str) -> Option<&str> {
        self.environment.get(name).filter(|value| !value.is_empty())
    }

    /// Whether its cards are emulated: this process runs under `unhang card run`.
    pub fn has_emulated_card(&self) -> bool {
        !self.is_folder() && self.variable("UNHANG_CARD_ROOT").is_some_and(|root| Path::new(root).is_dir())
    }

    /// The user who called `sudo`, if that is not root.
    pub fn caller_of_sudo(&self) -> Option<&str> {
        self.variable("SUDO_USER").filter(|user| *user != "root")
    }

    /// The machine as the user who called `sudo` sees it: depending on its configuration, sudo gives a process root's
    /// home or the user's. `None` without sudo, or if the user's home is unknown.
    pub fn of_caller_of_sudo(&self) -> Option<System> {
        let user = self.caller_of_sudo()?;
        let passwd = self.text("/etc/passwd", LARGE).ok()?;
        // root:x:0:0:root:/root:/bin/bash
        let home = passwd.lines().find_map(|line| {
            let fields: Vec<&str> = line.split(':').collect();
            (fields.first() == Some(&user)).then(|| fields.get(5).copied())?
        })?;
        Some(System::new(&self.root, self.environment.clone().with("HOME", home)))
    }

    /// The home folder, as a path on the machine.
    pub fn home(&self) -> Option<PathBuf> {
        self.variable("HOME").map(PathBuf::from).filter(|home| home.is_absolute())
    }

    /// The home folders to look into: the user's. On a machine that is a folder it is all of them: someone else than
    /// the user who looks at it may have made the folder.
    pub fn homes(&self) -> Vec<PathBuf> {
        let mut homes: Vec<PathBuf> = self.home().into_iter().collect();
        if self.is_folder() {
            let mut more = vec![PathBuf::from("/root")];
            more.extend(self.entries("/home").into_iter().map(|name| Path::new("/home").join(name)));
            homes.extend(more.into_iter().filter(|home| self.is_directory(home)));
        }
        homes.dedup();
        let mut seen = Vec::new();
        homes.retain(|home| {
            if seen.contains(home) {
                false
            } else {
                seen.push(home.clone());
                true
            }
        });
        homes
    }

    /// What exists but could not be read.
    pub fn obstacles(&self) -> Vec<Obstacle> {
        self.obstacles.lock().expect("no panic while held").clone()
    }

    /// Turns a path on the machine into one to open here, with links resolved inside the root.
    ///
    /// On the machine itself the kernel does that, and better.
    pub fn resolve(&self, path: impl AsRef<Path>) -> Result<PathBuf, ReadError> {
        let path = path.as_ref();
        if !self.is_folder() {
            return Ok(path.to_owned());
        }
        self.resolve_on_machine(path).map(|inside| self.real(&inside))
    }

    /// Resolves links and gives the path as the machine sees it.
    pub fn resolve_on_machine(&self, path: &Path) -> Result<PathBuf, ReadError> {
        let mut pending: Vec<OsString> = components(path).into_iter().rev().collect();
        let mut done: Vec<OsString> = Vec::new();
        let mut links = 0;
        while let Some(part) = pending.pop() {
            if part == ".." {
                done.pop();
                continue;
            }
            done.push(part);
            if done.len() > MOST_COMPONENTS {
                return Err(ReadError::Other("the path is too deep".to_owned()));
            }
            let here = self.real(&joined(&done));
            let Ok(target) = fs::read_link(&here) else { continue };
            links += 1;
            if links > MOST_LINKS {
                return Err(ReadError::TooManyLinks);
            }
            done.pop();
            if target.is_absolute() {
                done.clear();
            }
            pending.extend(components(&target).into_iter().rev());
        }
        Ok(joined(&done))
    }

    /// A path on the machine as a path here, links left as they are.
    fn real(&self, inside: &Path) -> PathBuf {
        self.root.join(inside.strip_prefix("/").unwrap_or(inside))
    }

    /// Opens a plain file. Never blocks: a pipe or a device is refused.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<File, ReadError> {
        let path = path.as_ref();
        let opened = self.resolve(path).and_then(|real| {
            let flags = (OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC).bits() as i32;
            let file = OpenOptions::new().read(true).custom_flags(flags).open(real)?;
            if file.metadata()?.is_file() { Ok(file) } else { Err(ReadError::NotAFile) }
        });
        if let Err(error) = &opened {
            self.note(path, error);
        }
        opened
    }

    /// Reads a file up to a limit and ignores the rest.
    pub fn bytes(&self, path: impl AsRef<Path>, limit: usize) -> Result<Vec<u8>, ReadError> {
        let path = path.as_ref();
        let mut file = self.open(path)?;
        let mut content = Vec::new();
        // One byte more than a page is a common size to start with; `take` bounds what a lying file can cost.
        if let Err(error) = Read::by_ref(&mut file).take(limit as u64).read_to_end(&mut content) {
            let error = ReadError::from(error);
            self.note(path, &error);
            return Err(error);
        }
        self.record(path, content.clone());
        Ok(content)
    }

    /// Reads the end of a file, at most `limit` bytes of it.
    pub fn tail(&self, path: impl AsRef<Path>, limit: usize) -> Result<Vec<u8>, ReadError> {
        let path = path.as_ref();
        let file = self.open(path)?;
        let length = file.metadata()?.len();
        let start = length.saturating_sub(limit as u64);
        let mut content = vec![0; (length - start) as usize];
        let read = file.read_at(&mut content, start)?;
        content.truncate(read);
        self.record(path, content.clone());
        Ok(content)
    }

    /// The messages at the end of each of journald's files, with the file's path. Files that this user may not read are
    /// skipped: they are root's on most systems. A description holds the text itself.
    pub fn journals(&self, limit: usize) -> Vec<(String, String)> {
        let mut found = Vec::new();
        for base in ["/var/log/journal", "/run/log/journal"] {
            for machine in self.entries(base).into_iter().take(8) {
                let path = Path::new(base).join(machine).join("system.journal");
                let Some(text) = self.journal(&path, limit) else { continue };
                // The folder's name is the machine's own number.
                let place = Path::new(base).join("machine/system.journal");
                self.record(&place, text.clone().into_bytes());
                found.push((place.display().to_string(), text));
            }
        }
        found
    }

    fn journal(&self, path: &Path, limit: usize) -> Option<String> {
        let flags = OFlags::NONBLOCK.bits() as i32;
        let file = OpenOptions::new().read(true).custom_flags(flags).open(self.resolve(path).ok()?).ok()?;
        let length = file.metadata().ok().filter(|metadata| metadata.is_file())?.len();
        let read = |start: u64, most: usize| -> Option<Vec<u8>> {
            let mut content = vec![0; (length.saturating_sub(start)).min(most as u64) as usize];
            let read = file.read_at(&mut content, start).ok()?;
            content.truncate(read);
            Some(content)
        };
        let header = read(0, 256)?;
        let Some(end) = journald::journal_end(&header) else {
            return Some(String::from_utf8_lossy(&read(length.saturating_sub(limit as u64), limit)?).into_owned());
        };
        let start = end.min(length).saturating_sub(limit as u64);
        Some(journald::journal_messages(&read(start, limit + SMALL)?))
    }

    /// Reads a file as text; what is not UTF-8 becomes replacement characters.
    pub fn text(&self, path: impl AsRef<Path>, limit: usize) -> Result<String, ReadError> {
        Ok(String::from_utf8_lossy(&self.bytes(path, limit)?).into_owned())
    }

    /// A small text file, trimmed; `None` if it is missing or empty.
    pub fn line(&self, path: impl AsRef<Path>) -> Option<String> {
        let text = self.text(path, SMALL).ok()?;
        let text = text.trim();
        (!text.is_empty()).then(|| text.to_owned())
    }

    /// The names in a folder, sorted; empty if there is no such folder. At most [`MOST_ENTRIES`] are looked at.
    pub fn entries(&self, path: impl AsRef<Path>) -> Vec<String> {
        let path = path.as_ref();
        let listed = self.resolve(path).and_then(|real| Ok(fs::read_dir(real)?));
        match listed {
            Ok(listed) => {
                let mut names: Vec<String> =
                    listed.take(MOST_ENTRIES).filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
                names.sort();
                names
            }
            Err(error) => {
                self.note(path, &error);
                Vec::new()
            }
        }
    }

    /// Whether there is a folder.
    pub fn is_directory(&self, path: impl AsRef<Path>) -> bool {
        self.resolve(path).is_ok_and(|real| real.is_dir())
    }

    /// Whether there is a plain file.
    pub fn is_file(&self, path: impl AsRef<Path>) -> bool {
        self.resolve(path).is_ok_and(|real| real.is_file())
    }

    /// Whether anything exists there.
    pub fn exists(&self, path: impl AsRef<Path>) -> bool {
        self.resolve(path).is_ok_and(|real| real.exists())
    }

    /// Whether a device file may be used.
    ///
    /// A folder cannot hold a device: there a plain file stands for it, and `access=denied` in it for a device that
    /// this user may not open. That is what a bundle writes.
    pub fn device(&self, path: impl AsRef<Path>) -> DeviceAccess {
        let path = path.as_ref();
        let Ok(real) = self.resolve(path) else { return DeviceAccess::Missing };
        let Ok(metadata) = fs::metadata(&real) else { return DeviceAccess::Missing };
        let found = if self.is_folder() {
            let text = self.text(path, SMALL).unwrap_or_default();
            if text.lines().any(|line| line.trim() == "access=denied") {
                DeviceAccess::Denied
            } else {
                DeviceAccess::Granted
            }
        } else if self.has_emulated_card() {
            // Under `unhang card run` a device exists only when it is opened; the kernel does not know it.
            if File::open(&real).is_ok() { DeviceAccess::Granted } else { DeviceAccess::Denied }
        } else if !metadata.file_type().is_char_device() {
            DeviceAccess::Missing
        } else if access(&real, Access::READ_OK | Access::WRITE_OK).is_ok() {
            DeviceAccess::Granted
        } else {
            DeviceAccess::Denied
        };
        let text: &[u8] = if found == DeviceAccess::Denied { b"access=denied\n" } else { b"access=granted\n" };
        self.record(path, text.to_vec());
        found
    }

    /// Notes something that was read and made no sense.
    pub(crate) fn note_odd(&self, path: &Path, what: &str) {
        self.note(path, &ReadError::Other(what.to_owned()));
    }

    fn note(&self, path: &Path, error: &ReadError) {
        if *error != ReadError::Missing {
            let mut obstacles = self.obstacles.lock().expect("no panic while held");
            if obstacles.len() < 64 && !obstacles.iter().any(|known| known.path == path) {
                obstacles.push(Obstacle { path: path.to_owned(), error: error.clone() });
            }
        }
    }
}

fn components(path: &Path) -> Vec<OsString> {
    path.components()
        .filter_map(|component| match component {
            Component::Normal(name) => Some(name.to_owned()),
            Component::ParentDir => Some(OsString::from("..")),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
        })
        .collect()
}

fn joined(parts: &[OsString]) -> PathBuf {
    let mut path = PathBuf::from("/");
    path.extend(parts);
    path
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn environment_files_are_read_as_people_write_them() {
        let environment =
            Environment::parse("# a comment\nexport A=1\nB=\"two words\"\nC='x=y'\n\nno equals sign\n=x\nD=\r\n");
        let pairs: Vec<_> = environment.iter().collect();
        assert_eq!(pairs, [("A", "1"), ("B", "two words"), ("C", "x=y"), ("D", "")]);
    }

    #[test]
    fn links_stay_inside_the_root() {
        let folder = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("secret"), "outside").unwrap();
        fs::create_dir_all(folder.path().join("opt/rocm-5.7.0/.info")).unwrap();
        fs::write(folder.path().join("opt/rocm-5.7.0/.info/version"), "5.7.0\n").unwrap();
        symlink("/opt/rocm-5.7.0", folder.path().join("opt/rocm")).unwrap();
        symlink("../../../../../../opt/rocm/.info", folder.path().join("opt/up")).unwrap();
        symlink(outside.path().join("secret"), folder.path().join("escape")).unwrap();
        symlink("loop-b", folder.path().join("loop-a")).unwrap();
        symlink("loop-a", folder.path().join("loop-b")).unwrap();
        let system = System::new(folder.path(), Environment::default());
        assert_eq!(system.line("/opt/rocm/.info/version").as_deref(), Some("5.7.0"));
        assert_eq!(system.line("/opt/up/version").as_deref(), Some("5.7.0"));
        assert_eq!(system.text("/escape", SMALL), Err(ReadError::Missing));
        assert_eq!(system.text("/loop-a", SMALL), Err(ReadError::TooManyLinks));
        assert_eq!(system.obstacles().len(), 1, "a loop is worth a note, a missing file is not");
    }

    #[test]
    fn reads_are_bounded_and_never_block() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("big"), vec![b'x'; 3 * SMALL]).unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            folder.path().join("pipe"),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
            0,
        )
        .unwrap();
        let system = System::new(folder.path(), Environment::default());
        assert_eq!(system.bytes("/big", SMALL).unwrap().len(), SMALL);
        assert_eq!(system.tail("/big", 10).unwrap(), b"xxxxxxxxxx");
        assert_eq!(system.bytes("/pipe", SMALL), Err(ReadError::NotAFile));
        assert_eq!(system.bytes("/", SMALL), Err(ReadError::NotAFile));
    }
}
