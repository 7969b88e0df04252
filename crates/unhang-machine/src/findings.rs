//! The doctor: findings, and the verdict over all.
//!
//! A finding has an id that never changes. It says what is wrong in one line, why (with its source), what to do, and
//! how sure we are. Each family of findings is one file and a function from what was seen to findings.

mod environment;
mod frameworks;
mod hardware;
mod seen;
mod software;

use std::path::PathBuf;

use serde::Serialize;

use crate::chips::holds;
use crate::finding::{Finding, Severity};
use crate::kernel;
use crate::leftovers::{self, Leftover};
use crate::machine::Machine;
use crate::miopen;
use crate::routes;
use crate::shell::quoted;
use crate::software::Software;
use crate::system::System;
use crate::unrepaired;
use seen::Seen;
pub use seen::Setting;

/// Every id, the most important first. Within a severity, findings are shown in this order.
pub const IDS: &[&str] = &[
    "kfd-no-access",
    "queue-preemption",
    "ring-timeout",
    "pci-atomics",
    "torch-known-to-hang",
    "torch-lacks-architecture",
    "glibc-too-new",
    "spoofed-architecture",
    "find-enforce-search",
    "no-solver-left",
    "env-bad-value",
    "miopen-cache-corrupt",
    "miopen-cache-narrowed",
    "kernels-stay-unsafe",
    "runtime-version-mismatch",
    "torch-missing",
    "torch-without-hip",
    "framework-refuses-chip",
    "unhang-not-in-this-python",
    "triton-writes-zeros",
    "env-contradiction",
    "env-imaginary",
    "env-no-effect",
    "env-build-time",
    "env-set-too-late",
    "leftover-profile",
    "unreadable",
    "gpu-hidden",
    "driver-parameter",
    "torch-bundles-rocm",
    "miopen-missing-kdb",
    "not-affected",
];

/// The verdict over all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// An RDNA1 card is here, and not all code on it is known to be native.
    Affected,
    /// GPUs are here, and unhang is not needed for them.
    Healthy,
    /// There is no GPU.
    NoGpu,
    /// Too little could be read.
    Unknown,
}

impl Verdict {
    /// How it is written.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Affected => "affected",
            Verdict::Healthy => "healthy",
            Verdict::NoGpu => "no-gpu",
            Verdict::Unknown => "unknown",
        }
    }
}

/// What to look at in addition to the machine.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Interpreters or environments to look for torch in, before the active one.
    pub pythons: Vec<PathBuf>,
    /// Where unhang keeps its data on the machine.
    pub data: Option<PathBuf>,
    /// The program's path for `sudo`, which searches no environment's folder. Empty for the bare name.
    pub program: Option<PathBuf>,
    /// The wheel that unhang was installed from, quoted for a shell. Empty for its name alone.
    pub wheel: Option<String>,
}

/// Everything that the doctor saw and found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Examination {
    /// GPUs, kernel, access.
    pub machine: Machine,
    /// ROCm, torch, other frameworks, glibc.
    pub software: Software,
    /// The variables that matter.
    pub environment: Vec<Setting>,
    /// What is wrong, the most important first.
    pub findings: Vec<Finding>,
    /// The verdict over all.
    pub verdict: Verdict,
    /// What earlier attempts left on the disk.
    pub leftovers: Vec<Leftover>,
    /// The profiles that `unhang env install` wrote.
    pub own_profiles: Vec<Leftover>,
    /// How to call the program under `sudo`.
    pub program: String,
    /// The wheel that installs unhang elsewhere.
    pub wheel: String,
}

impl Examination {
    /// Whether there is a finding of severity error.
    pub fn has_errors(&self) -> bool {
        self.findings.iter().any(|finding| finding.severity == Severity::Error)
    }
}

/// Examines everything and returns what is wrong.
pub fn examine(system: &System, options: &Options) -> Examination {
    let mut machine = Machine::inspect(system);
    let software = Software::inspect(system, &options.pythons);
    let leftovers = leftovers::find(system);
    let own_profiles = leftovers::own_profiles(system);
    let program =
        options.program.as_ref().map_or_else(|| "unhang".to_owned(), |path| quoted(&path.display().to_string()));
    let wheel = options.wheel.clone().unwrap_or_else(|| routes::WHEEL.to_owned());
    let caches = miopen::quick_look(system);
    let log = kernel::log_lines(system);
    machine.unreadable = system.obstacles().iter().map(|it| format!("{}: {}", it.path.display(), it.error)).collect();

    let unrepaired = options.data.as_deref().and_then(|folder| unrepaired::read(system, folder));
    let seen = Seen {
        system,
        machine: &machine,
        software: &software,
        leftovers: &leftovers,
        own_profiles: &own_profiles,
        unrepaired: unrepaired.as_ref(),
        program: &program,
        wheel: &wheel,
    };
    let mut findings = hardware::findings(&seen, &log);
    findings.extend(environment::findings(&seen));
    findings.extend(software::findings(&seen, &caches));
    findings.extend(frameworks::findings(&seen));
    let verdict = verdict(&seen, &findings);
    if matches!(verdict, Verdict::Healthy | Verdict::NoGpu) && !machine.affected() {
        findings.push(hardware::not_affected(&machine));
    }
    let place = |finding: &Finding| IDS.iter().position(|id| *id == finding.id).unwrap_or(IDS.len());
    findings.sort_by_key(|finding| (finding.severity, place(finding)));
    let environment = environment::settings(&seen);
    Examination { environment, findings, verdict, software, machine, leftovers, own_profiles, program, wheel }
}

fn verdict(seen: &Seen, findings: &[Finding]) -> Verdict {
    let machine = seen.machine;
    if machine.affected() {
        let hip: Vec<_> = seen.software.torch.iter().filter(|torch| torch.hip.is_some()).collect();
        let native = !machine.spoofed()
            && !hip.is_empty()
            && machine.gpus.iter().filter(|gpu| gpu.affected).all(|gpu| {
                let gfx = gpu.gfx.as_deref().unwrap_or_default();
                hip.iter().all(|torch| holds(&torch.architectures, gfx))
            });
        let errors = findings.iter().any(|finding| finding.severity == Severity::Error);
        return if native && !errors { Verdict::Healthy } else { Verdict::Affected };
    }
    // A GPU whose ids could not be read may be any GPU.
    let doubtful = machine.unreadable.iter().any(|path| path.starts_with("/sys/"));
    if doubtful || !seen.system.is_directory("/sys") {
        return Verdict::Unknown;
    }
    if machine.gpus.is_empty() { Verdict::NoGpu } else { Verdict::Healthy }
}
