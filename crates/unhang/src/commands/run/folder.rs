//! The folder of a run: the sitecustomize that Pythons import, and what their watchdogs report.
//!
//! Python runs what is in it, so it is where nobody else can write, and under a name that nobody else can take when it
//! is gone: in the user's own runtime or cache folder, never directly in a shared `/tmp`. It stays while anything that was
//! started with it lives. A run that was killed leaves its folder; a later one takes it away. A lock says which folders
//! are in use: it ends with the process that holds it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, TryLockError};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::Deserialize;
use unhang_guard::{Handle, NotPrivate, PrivateFolder, process};
use unhang_machine::unrepaired::UnrepairedKernel;
use unhang_watchdog::HangReport;

use super::super::text::counted;

/// What every Python of the run imports at its start.
const SITECUSTOMIZE: &str = include_str!("../../../../../python/unhang/_autoload/sitecustomize.py");
const PREFIX: &str = "run-";
const LOCK: &str = "lock";
/// By which programs know the folder, and we know programs that were started with it.
pub const VARIABLE: &str = "UNHANG_RUN_FOLDER";
/// No report is longer, and no run has more of them than are worth reading.
const LONGEST_REPORT: u64 = 64 * 1024;
const MOST_REPORTS: usize = 1024;
/// A folder of another machine or container, whose processes cannot be seen here, counts as abandoned after this.
const PATIENCE_WITH_STRANGERS: Duration = Duration::from_secs(7 * 24 * 3600);

/// A folder that is there while the run is.
pub struct RunFolder {
    folder: Option<PrivateFolder>,
    _lock: File,
}

/// Holds on to the process that reported a hang, if it is still there and surely that one: of this boot and namespace, with
/// the start time that it reported, and started by this run.
pub fn handle_of(report: &HangReport, folder: &Path) -> Option<Handle> {
    let identity = report.identity();
    if !identity.is_of_here() || identity.pid == std::process::id() {
        return None;
    }
    let handle = Handle::of(identity.pid)?;
    let is_ours = || {
        process::descends_from(identity.pid, std::process::id())
            || process::was_started_with(identity.pid, VARIABLE, folder.as_os_str().as_bytes()) == Some(true)
    };
    (handle.started_at(&identity.started) && is_ours()).then_some(handle)
}

impl RunFolder {
    /// Makes it in the first place that is this user's alone, after taking away what earlier runs could not; or says why
    /// there is none.
    pub fn create() -> Result<RunFolder, String> {
        let mut reasons = Vec::new();
        let named = places(|name| std::env::var_os(name).map(PathBuf::from));
        for place in named.into_iter().chain(place_of_root()) {
            match RunFolder::create_in(&place) {
                Ok(folder) => return Ok(folder),
                Err(error) => reasons.push(error.to_string()),
            }
        }
        if reasons.is_empty() {
            reasons.push("none of XDG_RUNTIME_DIR, XDG_CACHE_HOME, HOME and TMPDIR is set".to_owned());
        }
        Err(reasons.join("; "))
    }

    pub(super) fn create_in(place: &Path) -> Result<RunFolder, NotPrivate> {
        let runs = PrivateFolder::open_lasting(place)?;
        remove_abandoned(&runs);
        let folder = runs.new_folder(PREFIX)?;
        let make = || {
            let refused = |source| NotPrivate::Refused { path: folder.path().to_owned(), source };
            let mut lock = folder.open_or_make_file(LOCK)?;
            take(&lock).map_err(refused)?;
            let this = format!("{} {}", process::boot(), process::namespace());
            lock.write_all(this.as_bytes()).map_err(refused)?;
            folder.write("sitecustomize.py", SITECUSTOMIZE.as_bytes())?;
            // A file where Python would make a folder for its compiled copy: nothing is left but what we know of.
            folder.write("__pycache__", b"")?;
            Ok(lock)
        };
        match make() {
            Ok(lock) => Ok(RunFolder { folder: Some(folder), _lock: lock }),
            Err(error) => {
                // A disk that is full takes no file, and would keep the folder.
                let _ = folder.remove_all();
                Err(error)
            }
        }
    }

    fn folder(&self) -> &PrivateFolder {
        self.folder.as_ref().expect("there until it is dropped")
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.folder().path()
    }

    fn report_names(&self) -> Vec<String> {
        let names = self.folder().names().unwrap_or_default();
        let names = names.into_iter().filter_map(|name| name.into_string().ok());
        let mut names: Vec<String> = names.filter(|name| HangReport::is_name(name)).take(MOST_REPORTS).collect();
        names.sort();
        names
    }

    /// What hung so far, each with the name by which it is known.
    pub fn reports(&self) -> Vec<(String, HangReport)> {
        let read = |name: String| {
            let bytes = self.folder().read(&name, LONGEST_REPORT).ok()??;
            Some((name, HangReport::from_json(&bytes)?))
        };
        self.report_names().into_iter().filter_map(read).collect()
    }

    /// What was reported, which is then forgotten.
    pub fn take_reports(&self) -> Vec<HangReport> {
        let reports = self.reports();
        for name in self.report_names() {
            self.folder().remove(&name);
        }
        reports.into_iter().map(|(_, report)| report).collect()
    }
}

/// What a process of the run computed, as it said at its end.
#[derive(Debug, Default, Deserialize)]
struct Summary {
    /// Layers by the engine that computed most of their calls.
    layers: BTreeMap<String, u64>,
}

impl RunFolder {
    /// What was computed by what, in one line, over all processes that said so; and forgets it.
    pub fn take_summaries(&self) -> Option<String> {
        let names = self.folder().names().unwrap_or_default().into_iter().filter_map(|name| name.into_string().ok());
        let names: Vec<String> = names.filter(|name| name.starts_with("done-") && name.ends_with(".json")).collect();
        let mut layers: BTreeMap<String, u64> = BTreeMap::new();
        for name in names.iter().take(MOST_REPORTS) {
            let bytes = self.folder().read(name, LONGEST_REPORT).ok().flatten();
            let summary: Summary = bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default();
            for (engine, count) in summary.layers {
                let sum = layers.entry(engine).or_default();
                *sum = sum.saturating_add(count);
            }
            self.folder().remove(name);
        }
        let on_cpu = layers.remove("cpu").unwrap_or_default();
        let mut parts: Vec<String> =
            layers.iter().map(|(engine, count)| format!("{} on {engine}", counted(*count, "layer"))).collect();
        if !parts.is_empty() {
            parts.push(format!("{on_cpu} on the CPU"));
        } else if on_cpu > 0 {
            parts.push(format!("{} on the CPU", counted(on_cpu, "layer")));
        }
        (!parts.is_empty()).then(|| parts.join(", "))
    }

    /// What the shield did as code was loaded, over all processes of the run; and forgets it. None where it repaired nothing
    /// and named nothing.
    pub fn take_repairs(&self) -> Option<Repairs> {
        let mut repairs = Repairs::default();
        for line in self.take_lines("repaired-") {
            let Ok(functions) = line.parse::<u64>() else { continue };
            repairs.objects = repairs.objects.saturating_add(1);
            repairs.functions = repairs.functions.saturating_add(functions);
        }
        let left: BTreeSet<_> = self.take_lines("unsafe-").iter().filter_map(|line| kernel_of(line)).collect();
        repairs.left = left.into_iter().collect();
        (repairs.objects > 0 || !repairs.left.is_empty()).then_some(repairs)
    }

    /// The lines of all files whose names start so; the files are removed.
    fn take_lines(&self, prefix: &str) -> Vec<String> {
        let names = self.folder().names().unwrap_or_default().into_iter().filter_map(|name| name.into_string().ok());
        let mut lines = Vec::new();
        for name in names.filter(|name| name.starts_with(prefix)).take(MOST_REPORTS) {
            let bytes = self.folder().read(&name, LONGEST_REPORT).ok().flatten().unwrap_or_default();
            lines.extend(String::from_utf8_lossy(&bytes).lines().map(str::to_owned));
            self.folder().remove(&name);
        }
        lines
    }
}

/// What the shield did in a run.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Repairs {
    objects: u64,
    functions: u64,
    /// What it could not repair.
    pub left: Vec<UnrepairedKernel>,
}

impl Repairs {
    /// In one line.
    pub fn in_words(&self) -> String {
        let of_functions = match self.functions {
            0 => String::new(),
            functions => format!(", {}", counted(functions, "function")),
        };
        let left = match self.left.len() as u64 {
            0 => String::new(),
            1 => "; 1 kernel could not be repaired: `unhang doctor` has it".to_owned(),
            count => format!("; {count} kernels could not be repaired: `unhang doctor` has them"),
        };
        format!("the shield repaired {}{of_functions}{left}", counted(self.objects, "code object"))
    }
}

/// A line as the shield writes it: the kernel, the reason, the remedy, with tabs between them.
fn kernel_of(line: &str) -> Option<UnrepairedKernel> {
    let mut parts = line.split('\t').map(str::to_owned);
    Some(UnrepairedKernel { name: parts.next()?, reason: parts.next()?, remedy: parts.next()? })
}

impl Drop for RunFolder {
    fn drop(&mut self) {
        if let Some(folder) = self.folder.take()
            && !is_in_use(folder.path())
        {
            let _ = folder.remove_all();
        }
    }
}

/// Where a run's folder may lie, best first.
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

/// Where else root's may be: under `sudo` the variables are often another user's.
fn place_of_root() -> Option<PathBuf> {
    rustix::process::geteuid().is_root().then(|| PathBuf::from("/run/unhang"))
}

/// Whether a process lives that was started with the folder.
fn is_in_use(folder: &Path) -> bool {
    let value = folder.as_os_str().as_bytes();
    process::all_of_ours().into_iter().any(|pid| process::was_started_with(pid, VARIABLE, value) == Some(true))
}

/// Takes away folders of runs that are over.
fn remove_abandoned(runs: &PrivateFolder) {
    for name in runs.names().unwrap_or_default() {
        if !name.to_string_lossy().starts_with(PREFIX) {
            continue;
        }
        let Ok(folder) = PrivateFolder::open_existing(&runs.path().join(name)) else { continue };
        if is_abandoned(&folder) {
            let _ = folder.remove_all();
        }
    }
}

/// Takes the lock of a folder that was just made. Another run that looks for abandoned folders may hold it for a moment.
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

fn is_abandoned(folder: &PrivateFolder) -> bool {
    let Ok(lock) = folder.open_file(LOCK) else {
        // Killed between two steps of making it, unless that was just now.
        return age(folder.path()).is_some_and(|age| age > Duration::from_secs(60));
    };
    if lock.try_lock().is_err() {
        return false;
    }
    let whose = folder.read(LOCK, 1024).ok().flatten().unwrap_or_default();
    let is_of_here = whose == format!("{} {}", process::boot(), process::namespace()).as_bytes();
    if is_of_here { !is_in_use(folder.path()) } else { age(folder.path()) > Some(PATIENCE_WITH_STRANGERS) }
}

fn age(path: &Path) -> Option<Duration> {
    std::fs::metadata(path).ok()?.modified().ok()?.elapsed().ok()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn make(place: &Path) -> RunFolder {
        RunFolder::create_in(&place.join("runs")).unwrap()
    }

    #[test]
    fn abandoned_folders_are_taken_away_and_others_stay() {
        let place = tempfile::tempdir().unwrap();
        let used = make(place.path());
        let runs = used.path().parent().unwrap().to_owned();
        let here = format!("{} {}", process::boot(), process::namespace());
        for (name, lock) in [("run-old", here.as_str()), ("run-strange", "boot pid:[1]"), ("other", "")] {
            std::fs::create_dir(runs.join(name)).unwrap();
            std::fs::write(runs.join(name).join(LOCK), lock).unwrap();
            std::fs::write(runs.join(name).join("sitecustomize.py"), "").unwrap();
        }
        let next = make(place.path());
        assert!(!runs.join("run-old").exists(), "a run that was killed");
        for left in [used.path(), next.path(), &runs.join("run-strange"), &runs.join("other")] {
            assert!(left.exists(), "{}", left.display());
        }
    }

    #[test]
    fn the_folder_stays_while_something_that_was_started_lives() {
        let place = tempfile::tempdir().unwrap();
        let folder = make(place.path());
        let path = folder.path().to_owned();
        let mut child = Command::new("sleep").arg("100").env(VARIABLE, &path).spawn().unwrap();
        while !is_in_use(&path) {
            std::thread::sleep(Duration::from_millis(5));
        }
        drop(folder);
        assert!(path.join("sitecustomize.py").exists(), "its Pythons still import it");
        make(place.path());
        assert!(path.exists(), "also for the runs after it");
        child.kill().unwrap();
        child.wait().unwrap();
        make(place.path());
        assert!(!path.exists());
    }

    #[test]
    fn reports_are_read_whole_and_others_are_passed_over() {
        let place = tempfile::tempdir().unwrap();
        let folder = make(place.path());
        let key = "forward:f32:nchw:1x16x64x64:32x3x3:s1x1:p1x1:d1x1:g1";
        let report = format!("{{\"process\": 5, \"problems\": [\"{key}\"], \"engine\": \"aten\", \"more\": 1}}");
        folder.folder().write("hang-5.json", report.as_bytes()).unwrap();
        folder.folder().write("hang-6.json", b"{ half").unwrap();
        folder.folder().write("hang-7.json", &vec![b' '; 1 << 20]).unwrap();
        let taken = folder.take_reports();
        assert_eq!(taken.len(), 1);
        assert!(taken[0].is_in_call());
        assert!(handle_of(&taken[0], folder.path()).is_none(), "a report that does not say which process 5 is");
        assert_eq!(taken[0].pairs(), [format!("aten@{key}")]);
        assert!(folder.reports().is_empty());
        let path = folder.path().to_owned();
        drop(folder);
        assert!(!path.exists());
    }

    #[test]
    fn what_was_computed_is_summed_over_processes() {
        let place = tempfile::tempdir().unwrap();
        let folder = make(place.path());
        assert_eq!(folder.take_summaries(), None);
        folder.folder().write("done-1.json", br#"{"layers": {"jit": 50, "cpu": 1}}"#).unwrap();
        folder.folder().write("done-2.json", br#"{"layers": {"jit": 7}}"#).unwrap();
        folder.folder().write("done-3.json", b"half of a").unwrap();
        assert_eq!(folder.take_summaries().as_deref(), Some("57 layers on jit, 1 on the CPU"));
        assert_eq!(folder.take_summaries(), None, "said once");
        folder.folder().write("repaired-7", b"57\n0\nnonsense\n").unwrap();
        folder.folder().write("repaired-8", b"3\n").unwrap();
        assert_eq!(folder.take_summaries(), None, "the shield's lines are taken by themselves");
        let repairs = folder.take_repairs().unwrap();
        assert_eq!(repairs.in_words(), "the shield repaired 3 code objects, 60 functions");
        assert_eq!(folder.take_repairs(), None);
    }

    #[test]
    fn what_the_shield_could_not_repair_is_taken_once_a_kernel() {
        let place = tempfile::tempdir().unwrap();
        let folder = make(place.path());
        folder.folder().write("repaired-7", b"57\n").unwrap();
        let line = "Cijk_a\tit needs a register\tMIOPEN_DEBUG_CONV_GEMM=0 avoids it\n";
        folder.folder().write("unsafe-7", format!("{line}b\tillegal\tnone\nhalf of a li").as_bytes()).unwrap();
        folder.folder().write("unsafe-8", line.as_bytes()).unwrap();
        let repairs = folder.take_repairs().unwrap();
        let names: Vec<_> = repairs.left.iter().map(|kernel| kernel.name.as_str()).collect();
        assert_eq!(names, ["Cijk_a", "b"]);
        assert_eq!(repairs.left[0].remedy, "MIOPEN_DEBUG_CONV_GEMM=0 avoids it");
        assert!(
            repairs.in_words().contains("2 kernels could not be repaired: `unhang doctor`"),
            "{}",
            repairs.in_words()
        );
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
