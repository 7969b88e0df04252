//! The folder of a run: the sitecustomize that Pythons import, and what their watchdogs report.
//!
//! Python runs what is in it. [`LastingFolder`] says where it is and how long it stays.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use serde::Deserialize;
use unhang_guard::{Handle, NotPrivate, PrivateFolder, process};
use unhang_machine::routes::WHEEL;
use unhang_machine::unrepaired::UnrepairedKernel;
use unhang_watchdog::HangReport;

pub(super) use super::super::lasting_folder::RUN_VARIABLE as VARIABLE;
use super::super::lasting_folder::{LastingFolder, Purpose};
use super::super::text::counted;
use super::super::wheel::own_wheel;

/// What every Python of the run imports at its start.
const SITECUSTOMIZE: &str = include_str!("../../../../../python/unhang/_autoload/sitecustomize.py");
/// The longest report, and the most reports of a run that are read.
const LONGEST_REPORT: u64 = 64 * 1024;
const MOST_REPORTS: usize = 1024;

/// A folder that exists as long as the run.
pub(crate) struct RunFolder(LastingFolder);

/// Gets a handle to the process that reported a hang, if it still exists and is certainly the right one: of this boot
/// and namespace, with the start time that it reported, and started by this run.
pub(super) fn handle_of(report: &HangReport, folder: &Path) -> Option<Handle> {
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

/// The initial contents of a run's folder.
fn fill(folder: &PrivateFolder) -> Result<(), NotPrivate> {
    folder.write("sitecustomize.py", SITECUSTOMIZE.as_bytes())?;
    // The wheel that a Python without unhang should install.
    folder.write("wheel", own_wheel().unwrap_or_else(|| WHEEL.to_owned()).as_bytes())?;
    // A file where Python would create a folder for its compiled copy, so that nothing unknown is left behind.
    folder.write("__pycache__", b"")
}

impl RunFolder {
    /// Creates it where a lasting folder can be, or says why there is no place.
    pub(crate) fn create() -> Result<RunFolder, String> {
        LastingFolder::create_filled(Purpose::Run, fill).map(RunFolder)
    }

    #[cfg(test)]
    pub(super) fn create_in(place: &Path) -> Result<RunFolder, NotPrivate> {
        let lasting = LastingFolder::create_in(place, Purpose::Run)?;
        fill(lasting.folder())?;
        Ok(RunFolder(lasting))
    }

    fn folder(&self) -> &PrivateFolder {
        self.0.folder()
    }

    /// Its path.
    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    fn report_names(&self) -> Vec<String> {
        let names = self.folder().names().unwrap_or_default();
        let names = names.into_iter().filter_map(|name| name.into_string().ok());
        let mut names: Vec<String> = names.filter(|name| HangReport::is_name(name)).take(MOST_REPORTS).collect();
        names.sort();
        names
    }

    /// The hangs so far, each with the name of its report.
    pub(crate) fn reports(&self) -> Vec<(String, HangReport)> {
        let read = |name: String| {
            let bytes = self.folder().read(&name, LONGEST_REPORT).ok()??;
            Some((name, HangReport::from_json(&bytes)?))
        };
        self.report_names().into_iter().filter_map(read).collect()
    }

    /// The reports, which are then deleted.
    pub(crate) fn take_reports(&self) -> Vec<HangReport> {
        let reports = self.reports();
        for name in self.report_names() {
            self.folder().remove(&name);
        }
        reports.into_iter().map(|(_, report)| report).collect()
    }
}

/// What a process of the run computed, as reported at its end.
#[derive(Debug, Default, Deserialize)]
struct Summary {
    /// The number of layers by the engine that computed most of their calls.
    layers: BTreeMap<String, u64>,
}

impl RunFolder {
    /// One line about which engines computed, over all processes that reported; then deletes the reports.
    pub(crate) fn take_summaries(&self) -> Option<String> {
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

    /// What the shield did as code was loaded, over all processes of the run; then deletes the reports. `None` if it
    /// repaired nothing and named nothing.
    pub(crate) fn take_repairs(&self) -> Option<Repairs> {
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

    /// The lines of all files with that prefix; the files are removed.
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
pub(crate) struct Repairs {
    objects: u64,
    functions: u64,
    /// The kernels that it could not repair.
    pub left: Vec<UnrepairedKernel>,
}

impl Repairs {
    /// In one line.
    pub(crate) fn in_words(&self) -> String {
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

/// A line as the shield writes it: the kernel, the reason and the remedy, separated by tabs.
fn kernel_of(line: &str) -> Option<UnrepairedKernel> {
    let mut parts = line.split('\t').map(str::to_owned);
    Some(UnrepairedKernel { name: parts.next()?, reason: parts.next()?, remedy: parts.next()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn make(place: &Path) -> RunFolder {
        RunFolder::create_in(&place.join("runs")).unwrap()
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
}
