//! The folder of a run: the sitecustomize that Pythons import, and what their watchdogs report. It is gone with the run.
//!
//! A run that was killed leaves its folder; the next one takes it away. Which folders are in use is told by a lock that
//! ends with the process that holds it.

use std::fs::File;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use tempfile::TempDir;

/// What every Python of the run imports at its start.
const SITECUSTOMIZE: &str = include_str!("../../../../../python/unhang/_autoload/sitecustomize.py");
const PREFIX: &str = "unhang-run-";
const LOCK: &str = "lock";

/// A folder that is there while the run is.
pub struct RunFolder {
    folder: TempDir,
    _lock: File,
}

/// What a watchdog wrote down before it ended its process.
#[derive(Debug, Clone, Deserialize)]
pub struct HangReport {
    /// The process.
    pub process: i32,
    problems: Vec<String>,
    engine: Option<String>,
}

impl HangReport {
    /// Whether a convolution hung, and nothing else.
    pub fn is_convolution(&self) -> bool {
        self.engine.is_some()
    }

    /// What not to try again, as `engine@convolution`.
    pub fn pairs(&self) -> Vec<String> {
        let Some(engine) = &self.engine else { return Vec::new() };
        self.problems.iter().map(|problem| format!("{engine}@{problem}")).collect()
    }
}

impl RunFolder {
    /// Makes it, after taking away what earlier runs could not.
    pub fn create() -> std::io::Result<RunFolder> {
        let place = std::env::temp_dir();
        remove_abandoned(&place);
        let folder = tempfile::Builder::new().prefix(PREFIX).tempdir_in(place)?;
        let lock = File::create(folder.path().join(LOCK))?;
        lock.try_lock()?;
        std::fs::write(folder.path().join("sitecustomize.py"), SITECUSTOMIZE)?;
        Ok(RunFolder { folder, _lock: lock })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    fn report_files(&self) -> Vec<PathBuf> {
        let Ok(entries) = std::fs::read_dir(self.path()) else { return Vec::new() };
        let is_report = |path: &PathBuf| {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            name.starts_with("hang-") && name.ends_with(".json")
        };
        let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).filter(is_report).collect();
        paths.sort();
        paths
    }

    /// What hung so far.
    pub fn reports(&self) -> Vec<HangReport> {
        let read = |path: &PathBuf| serde_json::from_str(&std::fs::read_to_string(path).ok()?).ok();
        self.report_files().iter().filter_map(read).collect()
    }

    /// The same, and forgets it.
    pub fn take_reports(&self) -> Vec<HangReport> {
        let reports = self.reports();
        for path in self.report_files() {
            let _ = std::fs::remove_file(path);
        }
        reports
    }
}

/// Takes away folders of runs that are over. Those of others, and anything that looks different, stay.
fn remove_abandoned(place: &Path) {
    let Ok(entries) = std::fs::read_dir(place) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        let is_ours = entry.file_name().to_string_lossy().starts_with(PREFIX)
            && entry.file_type().is_ok_and(|kind| kind.is_dir())
            && path.join("sitecustomize.py").is_file();
        let Some(lock) = is_ours.then(|| File::open(path.join(LOCK)).ok()).flatten() else { continue };
        if lock.try_lock().is_ok() {
            let _ = std::fs::remove_dir_all(&path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn abandoned_folders_are_taken_away_and_others_stay() {
        let place = tempfile::tempdir().unwrap();
        for (name, file) in [("unhang-run-old", "sitecustomize.py"), ("unhang-run-other", "notes"), ("else", LOCK)] {
            std::fs::create_dir(place.path().join(name)).unwrap();
            std::fs::write(place.path().join(name).join(file), "").unwrap();
            std::fs::write(place.path().join(name).join(LOCK), "").unwrap();
        }
        let used = place.path().join("unhang-run-used");
        std::fs::create_dir(&used).unwrap();
        std::fs::write(used.join("sitecustomize.py"), "").unwrap();
        let lock = File::create(used.join(LOCK)).unwrap();
        lock.try_lock().unwrap();
        remove_abandoned(place.path());
        let mut left: Vec<_> =
            std::fs::read_dir(place.path()).unwrap().map(|it| it.unwrap().file_name().into_string().unwrap()).collect();
        left.sort();
        assert_eq!(left, ["else", "unhang-run-other", "unhang-run-used"]);
    }

    #[test]
    fn reports_are_read_whole_and_others_are_passed_over() {
        let folder = RunFolder::create().unwrap();
        let key = "forward:f32:nchw:1x16x64x64:32x3x3:s1x1:p1x1:d1x1:g1";
        let report = format!("{{\"process\": 5, \"problems\": [\"{key}\"], \"engine\": \"aten\", \"more\": 1}}");
        std::fs::write(folder.path().join("hang-5.json"), report).unwrap();
        std::fs::write(folder.path().join("hang-6.json"), "{ half").unwrap();
        let taken = folder.take_reports();
        assert_eq!(taken.len(), 1);
        assert!(taken[0].is_convolution());
        assert_eq!(taken[0].pairs(), [format!("aten@{key}")]);
        assert!(folder.reports().is_empty());
        let path = folder.path().to_owned();
        drop(folder);
        assert!(!path.exists());
    }
}
