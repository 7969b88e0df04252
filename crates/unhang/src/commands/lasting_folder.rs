//! Folders that exist as long as a command runs, under names that nobody else can take afterwards.
//!
//! Programs are started with variables that name such a folder: Python runs what is in it, and the loader loads from
//! it. A program may outlive the command that started it. So the folder is where nobody else can write: in the user's
//! own runtime or cache folder, never directly in a shared `/tmp`. It stays as long as anything lives that was started
//! with it. A killed command leaves its folder behind, and a later one removes it. A lock marks folders in use; it ends
//! with the process that holds it.

use std::fs::{File, TryLockError};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use unhang_guard::{NotPrivate, PrivateFolder, process};

const LOCK: &str = "lock";
/// Names the folder of `unhang run` to the programs that it starts.
pub(super) const RUN_VARIABLE: &str = "UNHANG_RUN_FOLDER";
/// Names the folder of `unhang card run`.
pub(super) const CARD_VARIABLE: &str = "UNHANG_CARD_RUN";
/// A folder of another machine or container, whose processes are invisible here, counts as abandoned after this time.
const PATIENCE_WITH_STRANGERS: Duration = Duration::from_secs(7 * 24 * 3600);

/// What a folder is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// `unhang run`.
    Run,
    /// `unhang card run`.
    Card,
    /// The work of a command and of children that end with it.
    Work,
}

impl Purpose {
    const ALL: [Purpose; 3] = [Purpose::Run, Purpose::Card, Purpose::Work];

    fn prefix(self) -> &'static str {
        match self {
            Purpose::Run => "run-",
            Purpose::Card => "card-",
            Purpose::Work => "work-",
        }
    }

    /// The variable that names the folder to programs, and by which we recognise programs that were started with it.
    fn variable(self) -> Option<&'static str> {
        match self {
            Purpose::Run => Some(RUN_VARIABLE),
            Purpose::Card => Some(CARD_VARIABLE),
            Purpose::Work => None,
        }
    }

    fn of(name: &str) -> Option<Purpose> {
        Purpose::ALL.into_iter().find(|purpose| name.starts_with(purpose.prefix()))
    }

    /// No variable keeps the name of a work folder, so it may be in `/tmp` if there is no other place.
    fn last_resort(self) -> Option<PathBuf> {
        let user = rustix::process::geteuid().as_raw();
        self.variable().is_none().then(|| std::env::temp_dir().join(format!("unhang-{user}")))
    }

    /// Whether a process that was started with the folder is alive.
    fn is_in_use(self, folder: &Path) -> bool {
        let Some(variable) = self.variable() else { return false };
        let value = folder.as_os_str().as_bytes();
        process::all_of_ours().into_iter().any(|pid| process::was_started_with(pid, variable, value) == Some(true))
    }
}

/// A folder that exists as long as the command.
pub(super) struct LastingFolder {
    folder: Option<PrivateFolder>,
    purpose: Purpose,
    _lock: File,
}

impl LastingFolder {
    /// Creates it in the first place that belongs to this user alone, after removing what earlier commands left behind;
    /// or says why it cannot.
    pub(super) fn create(purpose: Purpose) -> Result<LastingFolder, String> {
        LastingFolder::create_filled(purpose, |_| Ok(()))
    }

    /// Creates it in the first place where it can also be filled: a place may be full.
    pub(super) fn create_filled(
        purpose: Purpose,
        fill: impl Fn(&PrivateFolder) -> Result<(), NotPrivate>,
    ) -> Result<LastingFolder, String> {
        let mut reasons = Vec::new();
        let named = places(|name| std::env::var_os(name).map(PathBuf::from));
        for place in named.into_iter().chain(place_of_root()).chain(purpose.last_resort()) {
            let made = LastingFolder::create_in(&place, purpose);
            match made.and_then(|made| fill(made.folder()).map(|()| made)) {
                Ok(folder) => return Ok(folder),
                Err(error) => reasons.push(error.to_string()),
            }
        }
        if reasons.is_empty() {
            reasons.push("none of XDG_RUNTIME_DIR, XDG_CACHE_HOME, HOME and TMPDIR is set".to_owned());
        }
        Err(reasons.join("; "))
    }

    /// A folder for the work of a command, with the error that a user reads.
    pub(super) fn for_work() -> anyhow::Result<LastingFolder> {
        LastingFolder::create(Purpose::Work).map_err(|reason| no_place(&reason))
    }

    /// Creates it in this place.
    pub(super) fn create_in(place: &Path, purpose: Purpose) -> Result<LastingFolder, NotPrivate> {
        let place = match purpose.variable() {
            Some(_) => PrivateFolder::open_lasting(place)?,
            None => PrivateFolder::open(place)?,
        };
        remove_abandoned(&place);
        let folder = place.new_folder(purpose.prefix())?;
        let make = || {
            let refused = |source| NotPrivate::Refused { path: folder.path().to_owned(), source };
            let mut lock = folder.open_or_make_file(LOCK)?;
            take(&lock).map_err(refused)?;
            lock.write_all(this_machine().as_bytes()).map_err(refused)?;
            Ok(lock)
        };
        match make() {
            Ok(lock) => Ok(LastingFolder { folder: Some(folder), purpose, _lock: lock }),
            Err(error) => {
                // A full disk accepts no file, and the folder would stay.
                let _ = folder.remove_all();
                Err(error)
            }
        }
    }

    /// The folder itself.
    pub(super) fn folder(&self) -> &PrivateFolder {
        self.folder.as_ref().expect("there until it is dropped")
    }

    /// Its path.
    pub(super) fn path(&self) -> &Path {
        self.folder().path()
    }
}

/// The error that there is no place for a folder, and what to do about it.
pub(super) fn no_place(reason: &str) -> anyhow::Error {
    anyhow::anyhow!("hint: set XDG_CACHE_HOME to a folder of yours that nobody else can write")
        .context(format!("no place for a folder that is yours alone: {reason}"))
}

impl Drop for LastingFolder {
    fn drop(&mut self) {
        if let Some(folder) = self.folder.take()
            && !self.purpose.is_in_use(folder.path())
        {
            remove(&folder);
        }
    }
}

/// Nobody else can have put a link into it, so this removes only its own contents.
fn remove(folder: &PrivateFolder) {
    let _ = std::fs::remove_dir_all(folder.path());
}

/// The possible places for the folder, best first.
fn places(get: impl Fn(&str) -> Option<PathBuf>) -> Vec<PathBuf> {
    let absolute = |name| get(name).filter(|path| path.is_absolute());
    let cache = absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".cache")));
    let places = [
        absolute("XDG_RUNTIME_DIR").map(|folder| folder.join("unhang")),
        cache.map(|folder| folder.join("unhang/runs")),
        absolute("TMPDIR").map(|folder| folder.join("unhang-runs")),
    ];
    places.into_iter().flatten().collect()
}

/// An additional place for root: under `sudo` the variables are often another user's.
fn place_of_root() -> Option<PathBuf> {
    rustix::process::geteuid().is_root().then(|| PathBuf::from("/run/unhang"))
}

/// This boot and this process namespace. Processes that are visible here say something only about folders from here.
fn this_machine() -> String {
    format!("{} {}", process::boot(), process::namespace())
}

/// Removes the folders of commands that are over.
fn remove_abandoned(place: &PrivateFolder) {
    for name in place.names().unwrap_or_default() {
        let Some(purpose) = Purpose::of(&name.to_string_lossy()) else { continue };
        let Ok(folder) = PrivateFolder::open_existing(&place.path().join(name)) else { continue };
        if is_abandoned(&folder, purpose) {
            remove(&folder);
        }
    }
}

/// Takes the lock of a folder that was just created. Another command that looks for abandoned folders may hold it for a
/// moment.
fn take(lock: &File) -> io::Result<()> {
    const PATIENCE: Duration = Duration::from_secs(2);
    let until = Instant::now() + PATIENCE;
    loop {
        match lock.try_lock() {
            Err(TryLockError::WouldBlock) if Instant::now() < until => std::thread::sleep(Duration::from_millis(1)),
            other => return other.map_err(io::Error::from),
        }
    }
}

fn is_abandoned(folder: &PrivateFolder, purpose: Purpose) -> bool {
    let Ok(lock) = folder.open_file(LOCK) else {
        // Its command was killed between two steps of creating it, unless that was just now.
        return age(folder.path()).is_some_and(|age| age > Duration::from_secs(60));
    };
    if lock.try_lock().is_err() {
        return false;
    }
    let whose = folder.read(LOCK, 1024).ok().flatten().unwrap_or_default();
    let is_of_here = whose == this_machine().as_bytes();
    if is_of_here { !purpose.is_in_use(folder.path()) } else { age(folder.path()) > Some(PATIENCE_WITH_STRANGERS) }
}

fn age(path: &Path) -> Option<Duration> {
    std::fs::metadata(path).ok()?.modified().ok()?.elapsed().ok()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn make(place: &Path, purpose: Purpose) -> LastingFolder {
        LastingFolder::create_in(&place.join("runs"), purpose).unwrap()
    }

    #[test]
    fn abandoned_folders_are_taken_away_with_all_that_is_in_them_and_others_stay() {
        let place = tempfile::tempdir().unwrap();
        let used = make(place.path(), Purpose::Card);
        let runs = used.path().parent().unwrap().to_owned();
        let here = this_machine();
        let killed = ["run-old", "card-old", "work-old"];
        let left = [("run-strange", "boot pid:[1]"), ("other", "")];
        for (name, lock) in killed.map(|name| (name, here.as_str())).into_iter().chain(left) {
            std::fs::create_dir_all(runs.join(name).join("machine/sys")).unwrap();
            std::fs::write(runs.join(name).join(LOCK), lock).unwrap();
            std::fs::write(runs.join(name).join("machine/sys/file"), "").unwrap();
        }
        let next = make(place.path(), Purpose::Run);
        for name in killed {
            assert!(!runs.join(name).exists(), "{name}: a command that was killed");
        }
        for left in [used.path(), next.path(), &runs.join("run-strange"), &runs.join("other")] {
            assert!(left.exists(), "{}", left.display());
        }
    }

    #[test]
    fn the_folder_stays_while_something_that_was_started_lives() {
        for purpose in [Purpose::Run, Purpose::Card] {
            let place = tempfile::tempdir().unwrap();
            let folder = make(place.path(), purpose);
            let path = folder.path().to_owned();
            let variable = purpose.variable().unwrap();
            let mut child = Command::new("sleep").arg("100").env(variable, &path).spawn().unwrap();
            while !purpose.is_in_use(&path) {
                std::thread::sleep(Duration::from_millis(5));
            }
            drop(folder);
            assert!(path.join(LOCK).exists(), "its programs still use it");
            make(place.path(), Purpose::Work);
            assert!(path.exists(), "also for the commands after it");
            child.kill().unwrap();
            child.wait().unwrap();
            make(place.path(), Purpose::Work);
            assert!(!path.exists());
        }
    }

    #[test]
    fn places_are_the_users_own() {
        let get = |name: &str| match name {
            "HOME" => Some(PathBuf::from("/home/k")),
            "TMPDIR" => Some(PathBuf::from("/scratch/k")),
            "XDG_RUNTIME_DIR" => Some(PathBuf::from("relative")),
            _ => None,
        };
        assert_eq!(places(get), [Path::new("/home/k/.cache/unhang/runs"), Path::new("/scratch/k/unhang-runs")]);
        assert!(places(|_| None).is_empty(), "never a shared place that nobody named");
    }
}
