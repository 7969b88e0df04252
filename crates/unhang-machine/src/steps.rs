//! What to do, in order: the findings as one plan that can be followed to its end.
//!
//! First what keeps the card from being reached, then the clean-up, then one of several ways to a torch. A reboot follows
//! the clean-up, because it is a new login. No step undoes another, and a step that would change nothing is left out:
//! `tests/follow.rs` of the program follows every plan.

use serde::Serialize;

use crate::chips::{AMD, holds};
use crate::finding::{Confidence, FilePlace, Finding, Severity};
use crate::findings::Examination;
use crate::frameworks::Framework;
use crate::leftovers::{Leftover, clean_command};
use crate::routes::{self, RUN};
use crate::software::Torch;

/// One thing to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AdviceStep {
    /// What, and what for, in one line.
    pub what: String,
    /// The command that does it, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// Ways to do it, the recommended one first; follow one of them, with all of its commands.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ways: Vec<Way>,
    /// The findings that it settles; `unhang explain ID` gives the reasons.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub settles: Vec<&'static str>,
    /// How sure we are.
    pub confidence: Confidence,
}

/// One of several ways to do the same thing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Way {
    /// What it is, in one line.
    pub what: String,
    /// Whether we recommend it.
    pub recommended: bool,
    /// The commands, in order.
    pub commands: Vec<String>,
    /// How sure we are.
    pub confidence: Confidence,
}

impl AdviceStep {
    fn new(
        what: impl Into<String>,
        command: impl Into<String>,
        settles: &[&'static str],
        sure: Confidence,
    ) -> AdviceStep {
        let (what, command) = (what.into(), Some(command.into()));
        AdviceStep { what, command, ways: Vec::new(), settles: settles.to_vec(), confidence: sure }
    }
}

/// The findings that a torch for the card settles.
const BY_TORCH: [&str; 9] = [
    "torch-known-to-hang",
    "torch-lacks-architecture",
    "torch-missing",
    "torch-without-hip",
    "framework-refuses-chip",
    "glibc-too-new",
    "spoofed-architecture",
    "unhang-not-in-this-python",
    "triton-writes-zeros",
];

/// The report, here because the steps are a part of it.
impl Examination {
    /// The report in its wire format: `{schema, machine, environment, verdict, steps, findings}`.
    pub fn to_json(&self) -> serde_json::Value {
        let glibc = self.software.glibc.map(|(major, minor)| format!("{major}.{minor}"));
        serde_json::json!({
            "schema": 1,
            "machine": {
                "described_by": self.machine.described_by,
                "gpus": self.machine.gpus,
                "rocm": self.software.rocm,
                "torch": self.software.torch,
                "frameworks": self.software.frameworks,
                "kernel": self.machine.kernel.release,
                "amdgpu": {
                    "loaded": self.machine.kernel.amdgpu_loaded,
                    "version": self.machine.kernel.amdgpu_version,
                    "parameters": self.machine.kernel.parameters,
                },
                "glibc": glibc,
                "fingerprint": self.machine.fingerprint(None),
            },
            "environment": self.environment,
            "verdict": self.verdict,
            "steps": steps(self),
            "findings": self.findings,
        })
    }
}

/// What to do, in order. Empty if all is well.
pub fn steps(examination: &Examination) -> Vec<AdviceStep> {
    let findings: Vec<&Finding> =
        examination.findings.iter().filter(|finding| finding.severity != Severity::Info).collect();
    let mut steps: Vec<AdviceStep> = Vec::new();
    let of_id = |id: &'static str| findings.iter().filter(move |it| it.id == id).map(|finding| of_finding(finding));
    // Nothing else matters while the card cannot be reached.
    steps.extend(of_id("kfd-no-access").chain(of_id("pci-atomics")));
    let reboots: Vec<AdviceStep> = of_id("queue-preemption").collect();
    if !reboots.is_empty() {
        for step in &mut steps {
            step.what = step.what.replace("; afterwards log in again", "");
        }
    }
    steps.extend(clean_up(examination, &findings));
    steps.extend(reboots);
    if examination.machine.affected() {
        steps.extend(about_torch(examination));
    } else {
        steps.extend(other_cards(examination));
    }
    for finding in findings {
        if steps.iter().any(|step| step.settles.contains(&finding.id)) {
            continue;
        }
        let step = of_finding(finding);
        let does = |other: &AdviceStep, command: &str| {
            other.command.as_deref() == Some(command)
                || other.ways.iter().any(|way| way.commands.iter().any(|it| it == command))
        };
        let same = step.command.as_deref().and_then(|command| steps.iter_mut().find(|other| does(other, command)));
        match same {
            Some(other) => other.settles.push(finding.id),
            None => steps.push(step),
        }
    }
    steps
}

/// Whether a file sets the spoof.
fn spoofs(file: &Leftover) -> bool {
    file.assignments.iter().any(|it| it.name.starts_with("HSA_OVERRIDE_GFX_VERSION") && it.value.is_some())
}

/// Files, variables and caches that earlier attempts left.
fn clean_up(examination: &Examination, findings: &[&Finding]) -> Vec<AdviceStep> {
    let mut steps = Vec::new();
    let mut files: Vec<&Leftover> = examination.leftovers.iter().filter(|file| file.movable).collect();
    // A spoof that unhang installed is needed until a torch works without it.
    if native_torch(examination).is_some() {
        files.extend(examination.own_profiles.iter().filter(|file| spoofs(file)));
    }
    if !files.is_empty() {
        let names: Vec<String> = files.iter().map(|file| file.path.display().to_string()).collect();
        let what = format!("Move the settings of earlier attempts aside: {}", names.join(", "));
        let command = clean_command(&examination.program, files.iter().map(|file| file.path.as_path()));
        let mut settles = vec!["leftover-profile"];
        if files.iter().any(|file| spoofs(file)) {
            settles.push("spoofed-architecture");
        }
        for finding in findings.iter().filter(|finding| is_moved(finding, &files)) {
            if !settles.contains(&finding.id) {
                settles.push(finding.id);
            }
        }
        steps.push(AdviceStep::new(what, command, &settles, Confidence::Documented));
    }
    let by_hand: Vec<String> =
        examination.leftovers.iter().filter(|file| !file.movable).map(|file| file.path.display().to_string()).collect();
    if !by_hand.is_empty() && findings.iter().any(|finding| finding.id == "leftover-profile") {
        let what = format!("Edit by hand what unhang leaves alone: {}", by_hand.join(", "));
        let settles = vec!["leftover-profile"];
        steps.push(AdviceStep { what, command: None, ways: Vec::new(), settles, confidence: Confidence::Documented });
    }
    steps.extend(variables_to_unset(examination, findings, &files));
    let damaged = findings.iter().any(|finding| finding.id == "miopen-cache-corrupt");
    if let (true, Some(narrowed)) = (damaged, findings.iter().find(|finding| finding.id == "miopen-cache-narrowed")) {
        let what = "Remove what is damaged or outdated from MIOpen's databases";
        let ids = ["miopen-cache-corrupt", "miopen-cache-narrowed"];
        steps.push(AdviceStep::new(what, command_in(narrowed).unwrap_or_default(), &ids, narrowed.confidence));
    } else {
        let caches = findings.iter().filter(|finding| finding.id.starts_with("miopen-cache-"));
        steps.extend(caches.map(|finding| of_finding(finding)));
    }
    steps
}

/// Whether a finding is about lines of these files alone, which are moved aside: nothing has set its variables yet.
fn is_moved(finding: &Finding, files: &[&Leftover]) -> bool {
    let is_of_files = |place: &FilePlace| files.iter().any(|file| file.path.as_os_str() == place.path.as_str());
    let is_clean_up = command_in(finding).is_some_and(|command| command.contains(" env clean "));
    is_clean_up && !finding.places.is_empty() && finding.places.iter().all(is_of_files)
}

/// One `unset` for the files' variables in this shell, for the spoof, and for every finding with that remedy.
fn variables_to_unset(examination: &Examination, findings: &[&Finding], files: &[&Leftover]) -> Option<AdviceStep> {
    let (mut names, mut ids): (Vec<String>, Vec<&'static str>) = (Vec::new(), Vec::new());
    let mut add = |name: &str| {
        if !names.iter().any(|known| known == name) {
            names.push(name.to_owned());
        }
    };
    let is_kept = native_torch(examination).is_none() && examination.own_profiles.iter().any(spoofs);
    if examination.machine.spoofed() && !is_kept {
        let overrides = examination.environment.iter().filter(|it| it.name.starts_with("HSA_OVERRIDE_GFX_VERSION"));
        overrides.for_each(|it| add(&it.name));
    }
    for finding in findings {
        let Some(listed) = command_in(finding).and_then(|command| command.strip_prefix("unset ")) else { continue };
        if finding.id != "spoofed-architecture" && finding.id != "torch-known-to-hang" {
            ids.push(finding.id);
            listed.split_whitespace().for_each(&mut add);
        }
    }
    let is_set_by =
        |name: &str, file: &Leftover| file.assignments.iter().any(|it| it.name == name && it.value.is_some());
    let from_files = examination.environment.iter().filter(|it| files.iter().any(|file| is_set_by(&it.name, file)));
    let has_files = from_files.clone().next().is_some();
    from_files.for_each(|it| add(&it.name));
    if names.is_empty() {
        return None;
    }
    if examination.machine.spoofed() && names.iter().any(|name| name.starts_with("HSA_OVERRIDE_GFX_VERSION")) {
        ids.push("spoofed-architecture");
    }
    let what = match has_files {
        true => "Unset their variables in this shell, or log in again",
        false => "Unset variables that do harm or have no effect",
    };
    let command = format!("unset {}", names.join(" "));
    Some(AdviceStep { settles: ids, ..AdviceStep::new(what, command, &[], Confidence::Documented) })
}

/// The chip of the RDNA1 card that is here.
fn affected_chip(examination: &Examination) -> Option<&str> {
    let card = examination.machine.gpus.iter().find(|gpu| gpu.affected)?;
    Some(card.gfx.as_deref().unwrap_or("gfx1010"))
}

/// The torch that holds code for the RDNA1 card itself.
fn native_torch(examination: &Examination) -> Option<&Torch> {
    let gfx = affected_chip(examination)?;
    examination.software.torch.iter().find(|torch| torch.hip.is_some() && holds(&torch.architectures, gfx))
}

/// The torch for an RDNA1 card: how to use the installed one, or the ways to get one.
fn about_torch(examination: &Examination) -> Option<AdviceStep> {
    let gfx = affected_chip(examination)?;
    let settles = BY_TORCH.to_vec();
    if let Some(torch) = native_torch(examination) {
        let what = "Start programs with unhang's own kernels and a watchdog: MIOpen's slow searches and failures remain \
                    with native code";
        let commands = start_commands(examination, torch);
        let way = Way { what: what.to_owned(), recommended: true, commands, confidence: Confidence::Inferred };
        return Some(of_ways(what.to_owned(), vec![way], settles));
    }
    // A stack that owners report working is left alone.
    if let Some(torch) = loading_torch(examination).filter(|torch| torch.hip_version().is_some_and(|it| it <= (5, 2))) {
        let commands = start_commands(examination, torch);
        let what = format!("Start programs with `unhang run`: it spoofs torch {} for each of them", torch.version);
        let confidence = routes::of_spoofed_stack(gfx);
        let way = Way { what: what.clone(), recommended: true, commands, confidence };
        return Some(of_ways(what, vec![way], settles));
    }
    if let (None, Some(framework)) = (loading_torch(examination), examination.software.frameworks.first()) {
        let Framework { package, version, .. } = framework;
        let what = format!(
            "Start programs with `unhang run`: it spoofs the card as gfx1030, because {package} {version} refuses {gfx}"
        );
        let update = (!framework.runs_spoofed()).then(|| routes::TENSORFLOW_PIP.to_owned());
        let prepare = routes::prepare_framework(framework, &examination.wheel);
        let commands = prepare.into_iter().chain(update).chain([RUN.to_owned()]).collect();
        let way = Way { what: what.clone(), recommended: true, commands, confidence: Confidence::Inferred };
        return Some(of_ways(what, vec![way], settles));
    }
    let mut ways = Vec::new();
    let others = examination.machine.gpus.iter().filter(|gpu| gpu.vendor_id == AMD);
    let mut chips: Vec<&str> = others.filter_map(|gpu| gpu.gfx.as_deref()).collect();
    chips.dedup();
    if let Some(wheels) = routes::native_wheels(&chips) {
        let own = examination.own_profiles.iter().filter(|file| spoofs(file)).map(|file| file.path.as_path());
        let remove = clean_command(&examination.program, own);
        let install = [remove, wheels, routes::install_wheel(&examination.wheel), RUN.to_owned()];
        ways.push(Way {
            what: format!("A torch with native code for {gfx}: no spoof, and the compiler's work-arounds"),
            recommended: true,
            commands: install.into_iter().filter(|command| !command.is_empty()).collect(),
            confidence: routes::of_native_wheels(gfx),
        });
    }
    ways.push(spoofed_way(examination, gfx, ways.is_empty()));
    let what = "Choose a torch; `unhang explain routes` lists all ways to get one";
    Some(of_ways(what.to_owned(), ways, settles))
}

/// Whether this system's glibc cannot load the torch that owners report working under the spoof.
fn is_too_new(examination: &Examination) -> bool {
    examination.software.glibc.is_some_and(|version| version > routes::NEWEST_GLIBC)
}

/// A torch that is built for HIP and loads here.
fn loading_torch(examination: &Examination) -> Option<&Torch> {
    let too_new = is_too_new(examination);
    let loads = |torch: &&Torch| !too_new || torch.hip_version().is_some_and(|version| version > (5, 2));
    examination.software.torch.iter().filter(|torch| torch.hip.is_some()).find(loads)
}

/// The way with a torch without code for the card: the installed one, or the one that owners report working.
fn spoofed_way(examination: &Examination, gfx: &str, recommended: bool) -> Way {
    if let Some(torch) = loading_torch(examination) {
        return Way {
            what: format!(
                "Keep torch {}: `unhang run` spoofs it for each program and repairs its code as it loads (emulated, never \
                 seen on a card)",
                torch.version
            ),
            recommended,
            commands: start_commands(examination, torch),
            confidence: Confidence::Inferred,
        };
    }
    let (what, install) = match is_too_new(examination) {
        false => {
            let what = "torch 1.13.1 for ROCm 5.2, which owners report working under the spoof; it needs Python 3.10 (Ubuntu \
                        22.04 has it; elsewhere take pyenv or uv)";
            (what.to_owned(), vec![routes::spoofed_stack()])
        }
        true => (
            format!(
                "torch 1.13.1 for ROCm 5.2, which owners report working under the spoof, in a container: this system's glibc \
                 does not load it. {}Type the other commands inside the container; `{}` enters it again",
                if routes::is_bare(&examination.wheel) { "Copy unhang's wheel into this folder first. " } else { "" },
                routes::AGAIN_IN_CONTAINER
            ),
            vec![routes::container(&examination.wheel), routes::SPOOFED_PIP.to_owned()],
        ),
    };
    let unhang = routes::install_wheel(&examination.wheel);
    let commands = install.into_iter().chain([unhang, RUN.to_owned()]).collect();
    Way { what, recommended, commands, confidence: routes::of_spoofed_stack(gfx) }
}

/// How to start programs with an installed torch.
fn start_commands(examination: &Examination, torch: &Torch) -> Vec<String> {
    routes::prepare(torch, &examination.wheel).into_iter().chain([RUN.to_owned()]).collect()
}

/// A step with several ways; a single way is the step itself.
fn of_ways(what: String, ways: Vec<Way>, settles: Vec<&'static str>) -> AdviceStep {
    let confidence = ways.first().map_or(Confidence::Inferred, |way| way.confidence);
    match <[Way; 1]>::try_from(ways) {
        Ok([only]) if only.commands.len() == 1 => {
            AdviceStep { settles, ..AdviceStep::new(only.what, only.commands.concat(), &[], confidence) }
        }
        Ok([only]) => {
            let what = only.what.clone();
            AdviceStep { what, command: None, ways: vec![only], settles, confidence }
        }
        Err(ways) => AdviceStep { what, command: None, ways, settles, confidence },
    }
}

/// Cards other than RDNA1: MIOpen may fail there too, which a probe shows.
fn other_cards(examination: &Examination) -> Vec<AdviceStep> {
    let has_amd = examination.machine.gpus.iter().any(|gpu| gpu.vendor_id == AMD);
    let torch = examination.software.torch.iter().find(|torch| torch.hip.is_some());
    let Some(torch) = torch.filter(|_| has_amd) else { return Vec::new() };
    let what = "If convolutions hang, fail or crawl here: find out which, each in a separate process with a time limit. \
                Save your work first: the card may hang";
    let instead =
        "Then, on request, unhang's own kernels in MIOpen's place (compiled for this chip, never run on it by us)";
    let commands = routes::prepare(torch, &examination.wheel).into_iter().chain(["unhang probe".to_owned()]).collect();
    let probe = Way { what: what.to_owned(), recommended: true, commands, confidence: Confidence::Documented };
    vec![
        of_ways(what.to_owned(), vec![probe], vec!["not-affected"]),
        AdviceStep::new(instead, "unhang run --everywhere -- python train.py", &["not-affected"], Confidence::Inferred),
    ]
}

/// The first command in a finding's remedy.
fn command_in(finding: &Finding) -> Option<&str> {
    finding.fix.as_deref()?.split('`').nth(1)
}

/// What a finding's remedy does, as something to do: a summary alone only says what is wrong.
fn to_do(finding: &Finding) -> Option<String> {
    let command = command_in(finding)?;
    let what = match finding.id {
        "kfd-no-access" if command.starts_with("sudo usermod") => {
            "Let this user reach the card; afterwards log in again".to_owned()
        }
        "queue-preemption" => "Reboot: the card's compute queues are stuck".to_owned(),
        "ring-timeout" => "Start programs with `unhang run`: the card was reset after it stopped responding".to_owned(),
        "miopen-cache-corrupt" => {
            finding.summary.replacen("MIOpen's user databases are", "Repair MIOpen's user databases, which are", 1)
        }
        "miopen-cache-narrowed" => finding.summary.replacen("MIOpen's cache holds", "Remove from MIOpen's cache", 1),
        "runtime-version-mismatch" => format!("Keep torch to its own libraries: {}", finding.summary),
        _ => return None,
    };
    Some(what)
}

fn of_finding(finding: &Finding) -> AdviceStep {
    let command = command_in(finding).map(str::to_owned);
    let afterwards = finding.fix.as_deref().and_then(|fix| fix.split('`').nth(2)?.strip_prefix(", then "));
    let what = match (to_do(finding), &command, &finding.fix, afterwards) {
        (Some(what), ..) => what,
        (None, None, Some(fix), _) => format!("{}: {fix}", finding.summary),
        (None, _, _, Some(afterwards)) => format!("{}; afterwards {afterwards}", finding.summary),
        _ => finding.summary.clone(),
    };
    let mut letters = what.chars();
    let what = letters.next().map(|first| first.to_uppercase().collect::<String>() + letters.as_str());
    let what = what.unwrap_or_default();
    AdviceStep { what, command, ways: Vec::new(), settles: vec![finding.id], confidence: finding.confidence }
}
