//! The kernel and its amdgpu driver: version, parameters that matter, and what its log says about the GPU.

use std::path::Path;

use serde::Serialize;

use crate::system::{LARGE, System};

/// The kernel and the amdgpu driver.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct OsKernel {
    /// As `uname -r` gives it.
    pub release: Option<String>,
    /// The version of an amdgpu installed in addition to the kernel's (DKMS); the kernel's own has none.
    pub amdgpu_version: Option<String>,
    /// Whether the amdgpu driver is loaded.
    pub amdgpu_loaded: bool,
    /// Parameters of amdgpu that bear on hangs, with their values.
    pub parameters: Vec<Parameter>,
}

/// One parameter of the amdgpu driver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Parameter {
    /// Its name.
    pub name: String,
    /// Its value now.
    pub value: String,
    /// Its default value.
    pub default: String,
    /// What it does.
    pub meaning: String,
}

/// The parameters worth knowing, with defaults and meanings as the driver's source documents them (`amdgpu_drv.c`).
const PARAMETERS: &[(&str, &str, &str)] = &[
    ("cwsr_enable", "1", "mid-wave preemption of compute queues; 0 makes a queue wait for its waves to end"),
    ("sched_policy", "0", "how compute queues are scheduled: 0 hardware with oversubscription, 1 without, 2 none"),
    ("hws_max_conc_proc", "-1", "how many processes the hardware scheduler runs at once"),
    ("queue_preemption_timeout_ms", "9000", "how long the driver waits for a queue to be preempted before a reset"),
    ("gpu_recovery", "-1", "whether the driver resets a GPU that hangs"),
    ("lockup_timeout", "", "deadlines of kernel jobs; user queues of ROCm are not covered by it"),
    ("noretry", "-1", "whether page faults are retried"),
    ("runpm", "-1", "power management at run time; waking up has been a source of lost GPUs"),
    ("mes", "0", "the newer scheduler; not for RDNA1"),
];

/// Reads the version from `/proc/version`.
///
/// ```text
/// Linux version 6.8.0-45-generic (builder@host) (gcc …) #45-Ubuntu SMP …
/// ```
pub(crate) fn parse_proc_version(text: &str) -> Option<String> {
    let mut words = text.split_whitespace();
    (words.next()? == "Linux" && words.next()? == "version").then(|| words.next().map(str::to_owned))?
}

pub(crate) fn inspect(system: &System) -> OsKernel {
    let release = system
        .line("/proc/sys/kernel/osrelease")
        .or_else(|| parse_proc_version(&system.line("/proc/version")?))
        .map(|release| release.lines().next().unwrap_or_default().chars().take(128).collect());
    let folder = Path::new("/sys/module/amdgpu/parameters");
    let parameters = PARAMETERS
        .iter()
        .filter_map(|(name, default, meaning)| {
            let value: String = system.line(folder.join(name))?.lines().next()?.chars().take(64).collect();
            Some(Parameter {
                name: (*name).to_owned(),
                value,
                default: (*default).to_owned(),
                meaning: (*meaning).to_owned(),
            })
        })
        .collect();
    OsKernel {
        release,
        amdgpu_version: system.line("/sys/module/amdgpu/version").map(|version| version.chars().take(64).collect()),
        // Read, not just looked for, so that a bundle holds it.
        amdgpu_loaded: system.line("/sys/module/amdgpu/initstate").is_some()
            || system.is_directory("/sys/module/amdgpu"),
        parameters,
    }
}

impl OsKernel {
    /// Major and minor version, as far as behaviour goes: `6.8`.
    pub(crate) fn major_minor(&self) -> Option<String> {
        let mut parts = self.release.as_deref()?.split(['.', '-']);
        let (major, minor) = (parts.next()?.parse::<u32>().ok()?, parts.next()?.parse::<u32>().ok()?);
        Some(format!("{major}.{minor}"))
    }
}

/// A line of the kernel's log about a GPU that hung.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLine {
    /// The file it stands in.
    pub path: String,
    /// The line, without the time stamp and host name in front.
    pub text: String,
    /// What it reports.
    pub kind: LogKind,
    /// Whether the machine was started again since.
    pub earlier: bool,
}

/// What a line of the kernel's log reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogKind {
    /// A compute queue could not be preempted.
    Preemption,
    /// A ring of the card timed out: the driver's own watchdog saw a hang.
    RingTimeout,
    /// The driver reset the card.
    Reset,
    /// The slot or the board has no PCIe atomics, so the driver ignores the card.
    NoAtomics,
}

/// Where the kernel's log may be. The ring buffer itself is not among them: it cannot be read without being root on
/// most distributions, and on the rest these files hold the same.
const LOGS: &[&str] = &["/var/log/dmesg", "/var/log/kern.log", "/var/log/messages", "/var/log/syslog"];

/// Looks through the last megabyte of each log.
pub(crate) fn log_lines(system: &System) -> Vec<LogLine> {
    let mut found = Vec::new();
    for path in LOGS {
        let Ok(tail) = system.tail(path, LARGE) else { continue };
        found.extend(lines_of(path, &String::from_utf8_lossy(&tail)));
        if !found.is_empty() {
            return found;
        }
    }
    // Most distributions keep the log in journald's files alone.
    for (path, text) in system.journals(LARGE) {
        found.extend(lines_of(&path, &text));
        if !found.is_empty() {
            break;
        }
    }
    found
}

/// The lines of one log that matter. The kernel begins each boot with its own version.
fn lines_of(path: &str, text: &str) -> Vec<LogLine> {
    let boot = text.rfind("Linux version ").unwrap_or(0);
    let line = |earlier| move |(text, kind)| LogLine { path: path.to_owned(), text, kind, earlier };
    let before = relevant_log_lines(&text[..boot]).into_iter().map(line(true));
    before.chain(relevant_log_lines(&text[boot..]).into_iter().map(line(false))).collect()
}

/// Picks the lines that matter, newest last, at most twenty.
///
/// ```text
/// [ 1234.5] amdgpu 0000:03:00.0: amdgpu: qcm fence wait loop timeout expired
/// [ 1234.6] amdgpu: The cp might be in an unrecoverable state due to an unsuccessful queues preemption
/// [ 1234.7] [drm:amdgpu_device_ip_suspend] kiq fence wait failed
/// [ 1234.8] [drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring gfx_0.0.0 timeout, signaled seq=1, emitted seq=3
/// [    2.1] kfd kfd: amdgpu: skipped device 1002:731f, PCI rejects atomics 730<0
/// ```
pub(crate) fn relevant_log_lines(text: &str) -> Vec<(String, LogKind)> {
    let mut found: Vec<(String, LogKind)> = text
        .lines()
        .filter_map(|line| {
            let lower = line.to_lowercase();
            if !(lower.contains("amdgpu") || lower.contains("kfd") || lower.contains("kiq")) {
                return None;
            }
            let has = |signs: &[&str]| signs.iter().any(|sign| lower.contains(sign));
            let kind = if has(&["queue preemption", "queues preemption", "kiq fence", "qcm fence wait"]) {
                LogKind::Preemption
            } else if lower.contains("ring ") && lower.contains(" timeout") {
                LogKind::RingTimeout
            } else if has(&["rejects atomics", "atomics not supported", "atomic ops are not supported"]) {
                LogKind::NoAtomics
            } else if has(&["gpu reset begin", "gpu recovery"]) {
                LogKind::Reset
            } else {
                return None;
            };
            // From the driver's own words on: before them are a time and a host name.
            let start = ["amdgpu", "kfd", "[drm", "kiq"].iter().filter_map(|sign| lower.find(sign)).min().unwrap_or(0);
            let text = line.get(start..).unwrap_or(line);
            Some((text.chars().take(200).collect(), kind))
        })
        .collect();
    let surplus = found.len().saturating_sub(20);
    found.drain(..surplus);
    found
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn versions() {
        let text = "Linux version 6.8.0-45-generic (builder@host) (gcc 13.2) #45-Ubuntu SMP\n";
        assert_eq!(parse_proc_version(text).as_deref(), Some("6.8.0-45-generic"));
        assert_eq!(parse_proc_version("FreeBSD 14"), None);
        let kernel = OsKernel { release: Some("6.8.0-45-generic".to_owned()), ..OsKernel::default() };
        assert_eq!(kernel.major_minor().as_deref(), Some("6.8"));
    }

    #[test]
    fn log_lines_lose_time_and_host() {
        let text = "Nov  8 10:00:00 somehost kernel: [ 1.5] amdgpu: The cp might be in an unrecoverable state due to an \
                    unsuccessful queues preemption\nNov  8 10:00:01 somehost kernel: usb 1-1: new device\n";
        let lines = relevant_log_lines(text);
        assert_eq!(lines.len(), 1);
        assert!(lines[0].0.starts_with("amdgpu: The cp") && lines[0].1 == LogKind::Preemption, "{lines:?}");
    }

    #[test]
    fn ring_timeouts_and_missing_atomics_are_told_apart() {
        let text = "[drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring gfx_0.0.0 timeout, signaled seq=1, emitted seq=3\n\
                    kfd kfd: amdgpu: skipped device 1002:731f, PCI rejects atomics 730<0\n\
                    amdgpu 0000:03:00.0: amdgpu: GPU reset begin!\n\
                    amdgpu 0000:03:00.0: amdgpu: ring gfx_0.0.0 uses VM inv eng 0 on hub 0\n";
        let kinds: Vec<LogKind> = relevant_log_lines(text).into_iter().map(|(_, kind)| kind).collect();
        assert_eq!(kinds, [LogKind::RingTimeout, LogKind::NoAtomics, LogKind::Reset]);
    }

    #[test]
    fn what_was_before_the_last_boot_is_told_apart() {
        let hang = "kernel: amdgpu: ring gfx_0.0.0 timeout, signaled seq=1\n";
        let boot = "kernel: [    0.000000] Linux version 6.8.0-45-generic (builder@host)\n";
        let earlier = |text: &str| lines_of("log", text).iter().map(|line| line.earlier).collect::<Vec<_>>();
        assert_eq!(earlier(hang), [false]);
        assert_eq!(earlier(&format!("{hang}{boot}")), [true]);
        assert_eq!(earlier(&format!("{boot}{hang}{boot}{hang}")), [true, false]);
    }

    proptest! {
        #[test]
        fn parsers_take_anything(text in "(?s).{0,400}") {
            let _ = parse_proc_version(&text);
            let _ = relevant_log_lines(&text);
            let _ = relevant_log_lines(&format!("{text}amdgpu kiq fence{text}"));
        }
    }
}
