//! What to do, in order, one command each: the findings as somebody works through them.

use serde::Serialize;

use crate::chips::AMD;
use crate::findings::{Confidence, Examination, Finding, Severity, holds};
use crate::routes;

/// One thing to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Step {
    /// What, and what for, in one line.
    pub what: String,
    /// The command that does it, where one does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// The findings that it settles; `unhang explain ID` gives the reasons.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub settles: Vec<&'static str>,
    /// How sure we are.
    pub confidence: Confidence,
}

/// How programs are started with protection.
const RUN: &str = "unhang run -- python train.py";

impl Step {
    fn new(what: impl Into<String>, command: impl Into<String>, settles: &[&'static str], sure: Confidence) -> Step {
        Step { what: what.into(), command: Some(command.into()), settles: settles.to_vec(), confidence: sure }
    }
}

/// What to do, the most important first. Empty where all is well.
pub fn steps(examination: &Examination) -> Vec<Step> {
    let mut steps = Vec::new();
    let findings: Vec<&Finding> =
        examination.findings.iter().filter(|finding| finding.severity != Severity::Info).collect();
    let has = |id: &str| findings.iter().any(|finding| finding.id == id);
    // Nothing else matters while the card cannot be reached.
    for id in ["kfd-no-access", "queue-preemption", "ring-timeout", "pci-atomics"] {
        steps.extend(findings.iter().filter(|finding| finding.id == id).map(|finding| of_finding(finding)));
    }
    if examination.machine.affected() {
        steps.extend(about_torch(examination, &has));
    } else {
        steps.extend(other_cards(examination));
    }
    let unset = variables_to_unset(&findings, &steps);
    if let Some((command, ids)) = unset {
        let what = "Take out variables that do harm or nothing";
        steps.push(Step { settles: ids, ..Step::new(what, command, &[], Confidence::Documented) });
    }
    for finding in findings {
        if !steps.iter().any(|step| step.settles.contains(&finding.id)) {
            steps.push(of_finding(finding));
        }
    }
    steps
}

/// The torch for an RDNA1 card: which to take, or how to use the one that is here.
fn about_torch(examination: &Examination, has: &dyn Fn(&str) -> bool) -> Vec<Step> {
    let Some(card) = examination.machine.gpus.iter().find(|gpu| gpu.affected) else { return Vec::new() };
    let gfx = card.gfx.as_deref().unwrap_or("gfx1010");
    let hip = || examination.software.torch.iter().filter(|torch| torch.hip.is_some());
    let is_native = hip().any(|torch| holds(&torch.architectures, gfx));
    let spoofing = ["spoofed-architecture", "torch-known-to-hang", "torch-lacks-architecture"];
    if is_native {
        if has("spoofed-architecture") {
            let what = format!("Let the runtime see the true chip: this torch has code for {gfx}");
            return vec![Step::new(what, "unset HSA_OVERRIDE_GFX_VERSION", &spoofing, Confidence::Documented)];
        }
        let what =
            "Start programs with unhang's own kernels and a watchdog: MIOpen's speed and failures are what is left";
        return vec![Step::new(what, RUN, &[], Confidence::Inferred)];
    }
    let other_ways = "`unhang explain routes` has the other ways";
    let install = |what: String, settles: &[&'static str]| match routes::native_wheels(gfx) {
        Some(command) => Step::new(what, command, settles, Confidence::SeenOnACard),
        None => {
            let what = format!("Install the torch that owners report working under a spoof; {other_ways}");
            Step::new(what, routes::spoofed_stack(), settles, Confidence::SeenOnACard)
        }
    };
    let too_new = examination.software.glibc.filter(|version| *version > routes::NEWEST_GLIBC);
    if let (Some((major, minor)), None) = (too_new, routes::native_wheels(gfx)) {
        let settled = ["glibc-too-new", "torch-missing", "torch-without-hip", "torch-lacks-architecture"];
        let enter = format!(
            "glibc {major}.{minor} does not load the torch that owners report working under a spoof: work in a container of Debian 12"
        );
        let install = "In it, install that torch and unhang, and start programs with `unhang run`";
        return vec![
            Step::new(enter, routes::container(), &settled, Confidence::SeenOnACard),
            Step::new(
                install,
                routes::SPOOFED_PIP,
                &["spoofed-architecture", "torch-known-to-hang"],
                Confidence::SeenOnACard,
            ),
        ];
    }
    if has("glibc-too-new") {
        let what = format!("Take a torch with native code for {gfx}, which loads with this glibc; {other_ways}");
        return vec![install(what, &["glibc-too-new", "spoofed-architecture", "torch-lacks-architecture"])];
    }
    if examination.machine.spoofed() && hip().next().is_some() {
        let protect = Step::new("Start programs with protection", RUN, &["spoofed-architecture"], Confidence::Inferred);
        if !has("torch-known-to-hang") {
            return vec![protect];
        }
        let what = format!("Better than a spoof: a torch with native code for {gfx}; {other_ways}");
        let better = install(what, &["torch-known-to-hang", "torch-lacks-architecture"]);
        return vec![protect, better];
    }
    let missing = ["torch-missing", "torch-without-hip", "torch-lacks-architecture", "spoofed-architecture"];
    if missing.iter().any(|id| has(id)) {
        return vec![install(format!("Install a torch with native code for {gfx}; {other_ways}"), &missing)];
    }
    Vec::new()
}

/// Cards that are not RDNA1: MIOpen may fail there too, and that can be found out.
fn other_cards(examination: &Examination) -> Vec<Step> {
    let has_amd = examination.machine.gpus.iter().any(|gpu| gpu.vendor_id == AMD);
    let computes = examination.software.torch.iter().any(|torch| torch.hip.is_some());
    if !has_amd || !computes {
        return Vec::new();
    }
    let what = "If convolutions hang, fail or crawl here: find out which, each in a child with a deadline";
    let instead = "Then, on request, unhang's own kernels in MIOpen's place";
    vec![
        Step::new(what, "unhang probe", &["not-affected"], Confidence::Documented),
        Step::new(instead, "unhang run --strategy jit -- python train.py", &["not-affected"], Confidence::Inferred),
    ]
}

/// One `unset` for all findings whose remedy that is.
fn variables_to_unset(findings: &[&Finding], steps: &[Step]) -> Option<(String, Vec<&'static str>)> {
    let (mut names, mut ids): (Vec<String>, Vec<&'static str>) = (Vec::new(), Vec::new());
    for finding in findings {
        if steps.iter().any(|step| step.settles.contains(&finding.id)) {
            continue;
        }
        let Some(listed) = command_in(finding).and_then(|command| Some(command.strip_prefix("unset ")?.to_owned()))
        else {
            continue;
        };
        ids.push(finding.id);
        for name in listed.split_whitespace() {
            if !names.iter().any(|known| known == name) {
                names.push(name.to_owned());
            }
        }
    }
    (!names.is_empty()).then(|| (format!("unset {}", names.join(" ")), ids))
}

/// The first command in a finding's remedy.
fn command_in(finding: &Finding) -> Option<&str> {
    finding.fix.as_deref()?.split('`').nth(1)
}

fn of_finding(finding: &Finding) -> Step {
    let command = command_in(finding).map(str::to_owned);
    let what = match (&command, &finding.fix) {
        (None, Some(fix)) => format!("{}: {fix}", finding.summary),
        _ => finding.summary.clone(),
    };
    let mut letters = what.chars();
    let what = letters.next().map(|first| first.to_uppercase().collect::<String>() + letters.as_str());
    Step { what: what.unwrap_or_default(), command, settles: vec![finding.id], confidence: finding.confidence }
}
