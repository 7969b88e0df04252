//! Findings about variables: the process's, and those that files of earlier attempts will set at the next login.

use std::path::Path;

use super::seen::{Seen, Setting};
use super::software::{is_native, reported_to_work_spoofed};
use crate::chips;
use crate::finding::{Confidence, FilePlace, Finding, Severity};
use crate::leftovers::{clean_command, restore_command};
use crate::variables::{self, Known, Owner, Read, SOLVER_FAMILIES, VariableKind};

/// A variable that is set, and where.
#[derive(Clone, Debug)]
struct Set {
    name: String,
    value: String,
    /// Whether the process lacks it now, and a login file will set it.
    is_later: bool,
    /// The line of a login file that sets it.
    place: Option<FilePlace>,
}

impl Set {
    fn written(&self) -> String {
        format!("{}={}", self.name, self.value)
    }
}

/// The variables that are set now, and those that a login file will set. unhang's own profile is one of those files.
fn all_set(seen: &Seen) -> Vec<Set> {
    let mut later: Vec<Set> = Vec::new();
    for file in seen.leftovers.iter().filter(|leftover| leftover.login).chain(seen.own_profiles) {
        for assignment in &file.assignments {
            // The last file that touches a variable wins, as in a shell.
            later.retain(|set| set.name != assignment.name);
            if let Some(value) = &assignment.value {
                let place = Some(FilePlace { path: file.path.display().to_string(), line: Some(assignment.line) });
                later.push(Set { name: assignment.name.clone(), value: value.clone(), is_later: true, place });
            }
        }
    }
    let now = seen.system.environment().iter().filter(|(name, _)| variables::concerns_us(name));
    let mut all: Vec<Set> = now
        .map(|(name, value)| {
            let place =
                later.iter().find(|set| set.name == name && set.value == value).and_then(|set| set.place.clone());
            Set { name: name.to_owned(), value: value.to_owned(), is_later: false, place }
        })
        .collect();
    later.retain(|set| !all.iter().any(|now| now.name == set.name));
    all.extend(later);
    all
}

/// MIOpen's own values for "off".
fn off(value: &str) -> bool {
    ["0", "no", "off", "false", "disable", "disabled"].contains(&value.to_lowercase().as_str())
}

/// MIOpen's own values for "on".
fn on(value: &str) -> bool {
    ["1", "yes", "on", "true", "enable", "enabled"].contains(&value.to_lowercase().as_str())
}

const FIND_MODES: &[(&str, &str)] = &[("1", "NORMAL"), ("2", "FAST"), ("3", "HYBRID"), ("5", "DYNAMIC_HYBRID")];
const FIND_ENFORCE: &[(&str, &str)] =
    &[("1", "NONE"), ("2", "DB_UPDATE"), ("3", "SEARCH"), ("4", "SEARCH_DB_UPDATE"), ("5", "DB_CLEAN")];

/// The name for a number or a name; case does not matter.
fn choice(value: &str, table: &[(&'static str, &'static str)]) -> Option<&'static str> {
    let upper = value.trim().to_uppercase();
    table.iter().find(|(number, name)| upper == *number || upper == *name).map(|(_, name)| *name)
}

pub(super) fn findings(seen: &Seen) -> Vec<Finding> {
    let set = all_set(seen);
    let mut found = Vec::new();
    found.extend(spoofed(seen, &set));
    found.extend(find_enforce(seen, &set));
    found.extend(no_solver_left(seen, &set));
    found.extend(bad_values(seen, &set));
    found.extend(contradictions(seen, &set));
    found.extend(imaginary(seen, &set));
    found.extend(no_effect(seen, &set));
    found.extend(build_time(seen, &set));
    found.extend(too_late(seen, &set));
    found.extend(leftover_files(seen));
    found
}

fn value<'a>(set: &'a [Set], name: &str) -> Option<&'a str> {
    set.iter().find(|it| it.name == name).map(|it| it.value.as_str())
}

fn places(chosen: &[&Set]) -> Vec<FilePlace> {
    chosen.iter().filter_map(|set| set.place.clone()).collect()
}

/// "is set", or "will be set at the next login", for a list of variables.
fn listed(chosen: &[&Set]) -> String {
    let names: Vec<_> = chosen.iter().map(|set| set.written()).collect();
    let when = if chosen.iter().all(|set| set.is_later) { " (from the next login on)" } else { "" };
    format!("{}{when}", names.join(", "))
}

/// The remedy for them. A command holds only names that a shell accepts as names: one from outside may hold anything.
fn unset_command(seen: &Seen, chosen: &[&Set]) -> String {
    let plain = |name: &&str| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    let names: Vec<_> = chosen.iter().map(|set| set.name.as_str()).filter(plain).collect();
    if chosen.iter().all(|set| set.is_later) {
        return match clean_up(seen, chosen) {
            Some(command) => format!("remove the lines named below, or move them aside with `{command}`"),
            None => "remove the lines named below".to_owned(),
        };
    }
    if names.is_empty() { "unset it".to_owned() } else { format!("`unset {}`", names.join(" ")) }
}

/// The command that moves aside all files that set them; `None` if unhang leaves one of these files alone.
fn clean_up(seen: &Seen, chosen: &[&Set]) -> Option<String> {
    let files: Vec<&Path> = chosen.iter().filter_map(|set| Some(Path::new(&set.place.as_ref()?.path))).collect();
    let all = || seen.leftovers.iter().chain(seen.own_profiles);
    let is_movable = |path: &&Path| all().any(|file| file.movable && file.path == **path);
    (!files.is_empty() && files.iter().all(is_movable)).then(|| clean_command(seen.program, files))
}

fn spoofed(seen: &Seen, set: &[Set]) -> Option<Finding> {
    let variable = set.iter().find(|it| it.name.starts_with("HSA_OVERRIDE_GFX_VERSION"))?;
    let told = chips::gfx_of_override(&variable.value)?;
    let card = seen.machine.gpus.iter().find(|gpu| gpu.affected && gpu.gfx.as_deref() != Some(&told))?;
    let gfx = card.gfx.as_deref().unwrap_or("RDNA1");
    let native = is_native(seen, gfx);
    let protect = "`unhang run -- python train.py`: convolutions avoid such code until a child process has tested it, \
                   and the shield repairs the rest as it loads (emulated, not yet seen on a card)";
    let is_reported_to_work = reported_to_work_spoofed(seen);
    let fix = if native {
        let remove = match (clean_up(seen, &[variable]), &variable.place) {
            (Some(command), _) => format!("`{command}`, then "),
            (None, Some(_)) => "remove the line named below, then ".to_owned(),
            (None, None) => String::new(),
        };
        format!("{remove}`unset HSA_OVERRIDE_GFX_VERSION`: the installed torch has code for the true chip")
    } else if is_reported_to_work || (!seen.has_torch_for_amd() && !seen.software.frameworks.is_empty()) {
        format!("start programs with {protect}")
    } else {
        format!(
            "start programs with {protect}; better, take a torch with native code for {gfx} (`unhang explain routes`)"
        )
    };
    let (severity, why, confidence) = if chips::is_affected_gfx(&told) {
        (
            Severity::Warning,
            format!(
                "{told} is RDNA1 as well, so its code keeps the work-arounds; but it was not compiled for {gfx}, and the \
                 chips differ (gfx1010 has no v_dot instructions)."
            ),
            Confidence::Inferred,
        )
    } else {
        (
            // A way that owners report to work is not an error once it is taken.
            if is_reported_to_work && !native { Severity::Warning } else { Severity::Error },
            format!(
                "The runtime will load code for {told} on {gfx} silicon. For hardware bugs of gfx101x the compiler inserts \
                 work-arounds only when it compiles for gfx101x; {told} code has none of them: a program may hang, fault or \
                 compute nonsense. Real libraries were measured to lack them; which one hangs a given convolution is inferred. \
                 (Source: LLVM's AMDGPU.td and GCNHazardRecognizer.cpp; ROCm issue 2527.)"
            ),
            Confidence::SeenOnACard,
        )
    };
    Some(Finding {
        id: "spoofed-architecture",
        severity,
        summary: format!("{} makes this {} ({gfx}) pass for {told}", listed(&[variable]), card.name),
        why,
        fix: Some(fix),
        confidence,
        places: places(&[variable]),
    })
}

fn find_enforce(seen: &Seen, set: &[Set]) -> Option<Finding> {
    let variable = set.iter().find(|it| it.name == "MIOPEN_FIND_ENFORCE")?;
    let mode = choice(&variable.value, FIND_ENFORCE).filter(|mode| *mode != "NONE")?;
    let (summary, why, source, confidence) = match mode {
        "SEARCH" | "SEARCH_DB_UPDATE" => (
            "an exhaustive search at every new convolution looks like a hang",
            "MIOpen then tunes every kernel exhaustively: minutes to hours for each new convolution, each candidate run on \
             the card with no watchdog. A convolution of 16→32 channels at 64×64 took 33 minutes that way on an RX 5600 XT",
            "MIOpen's find_controls.cpp; a user's notes of November 2025",
            Confidence::SeenOnACard,
        ),
        "DB_UPDATE" => (
            "MIOpen ignores what it has tuned",
            "Where a program asks for tuning, MIOpen then tunes again what it has tuned before",
            "MIOpen's find_controls.cpp",
            Confidence::Documented,
        ),
        _ => (
            "MIOpen erases what it has tuned",
            "MIOpen then erases its tuned records of the problems that it meets, and tunes none",
            "MIOpen's find_controls.cpp",
            Confidence::Documented,
        ),
    };
    Some(Finding {
        id: "find-enforce-search",
        severity: if mode.starts_with("SEARCH") { seen.error_if_affected() } else { Severity::Warning },
        summary: format!("{} is {mode}: {summary}", listed(&[variable])),
        why: format!("{why}. Anything but NONE turns FAST and HYBRID find off. (Source: {source}.)"),
        fix: Some(unset_command(seen, &[variable])),
        confidence,
        places: places(&[variable]),
    })
}

fn no_solver_left(seen: &Seen, set: &[Set]) -> Option<Finding> {
    let is_off = |name: &str| value(set, name).is_some_and(off);
    let chosen: Vec<&Set> =
        set.iter().filter(|it| SOLVER_FAMILIES.contains(&it.name.as_str()) && off(&it.value)).collect();
    let mut left: Vec<&str> = SOLVER_FAMILIES.iter().copied().filter(|name| !is_off(name)).collect();
    // Implicit-GEMM solvers are compiled for gfx103x only: on the true chip the family is empty.
    let told = value(set, "HSA_OVERRIDE_GFX_VERSION").and_then(chips::gfx_of_override);
    let native = seen.machine.affected() && told.as_deref().is_none_or(chips::is_affected_gfx);
    if native {
        left.retain(|name| *name != "MIOPEN_DEBUG_CONV_IMPLICIT_GEMM");
    }
    let only = value(set, "MIOPEN_DEBUG_FIND_ONLY_SOLVER").unwrap_or_default();
    let naive_only = !only.is_empty() && only.split(';').all(|name| name.trim().starts_with("ConvDirectNaive"));
    let (severity, summary, confidence) = if left.is_empty() {
        (Severity::Error, "no family of MIOpen's solvers is left: no convolution can run", Confidence::Documented)
    } else if naive_only && is_off("MIOPEN_DEBUG_CONV_DIRECT") {
        (
            Severity::Error,
            "only the naive solvers are allowed, and MIOPEN_DEBUG_CONV_DIRECT=0 turns them off",
            Confidence::Documented,
        )
    } else if left == ["MIOPEN_DEBUG_CONV_IMPLICIT_GEMM"] {
        (
            Severity::Warning,
            "only the implicit-GEMM solvers are left, and they do not take every convolution",
            Confidence::Documented,
        )
    } else if left == ["MIOPEN_DEBUG_CONV_FFT"] {
        (Severity::Warning, "only the FFT solver is left, and it takes few convolutions", Confidence::Documented)
    } else {
        return None;
    };
    let names: Vec<&str> = chosen.iter().map(|set| set.name.as_str()).collect();
    Some(Finding {
        id: "no-solver-left",
        severity,
        summary: summary.to_owned(),
        why: format!(
            "Off: {}. A convolution that no solver takes ends with \"no suitable algorithm\"; 3→64 channels, 3×3, batch 1 is \
             one that implicit GEMM alone cannot compute.{} (Source: MIOpen's solver_finders.cpp and the solvers' \
             IsApplicable.)",
            names.join(", "),
            if native { " On RDNA1's own code the implicit-GEMM family is empty." } else { "" }
        ),
        fix: Some(unset_command(seen, &chosen)),
        confidence,
        places: places(&chosen),
    })
}

fn bad_values(seen: &Seen, set: &[Set]) -> Vec<Finding> {
    let mut found = Vec::new();
    for it in set {
        let (wrong, why, severity) = match it.name.as_str() {
            "MIOPEN_FIND_MODE" if choice(&it.value, FIND_MODES).is_none() => {
                ("is not a find mode", "MIOpen warns and uses its default.", Severity::Warning)
            }
            "MIOPEN_FIND_ENFORCE" if choice(&it.value, FIND_ENFORCE).is_none() => {
                ("is not an enforcement mode", "MIOpen warns and uses NONE.", Severity::Warning)
            }
            name if name.starts_with("HSA_OVERRIDE_GFX_VERSION") && chips::gfx_of_override(&it.value).is_none() => (
                "is not major.minor.stepping",
                "The runtime refuses to start with a value that it cannot read, and no GPU is found.",
                Severity::Error,
            ),
            name if SOLVER_FAMILIES.contains(&name) && !off(&it.value) && !on(&it.value) => {
                ("is neither on nor off", "MIOpen ignores a value that it cannot read.", Severity::Warning)
            }
            _ => continue,
        };
        let expected = variables::find(&it.name).map_or("", |variable| variable.values);
        found.push(Finding {
            id: "env-bad-value",
            severity,
            summary: format!("{} {wrong}", listed(&[it])),
            why: format!(
                "Expected: {expected}. {why} (Source: MIOpen's find_controls.cpp and env.hpp; libhsakmt's topology.c.)"
            ),
            fix: Some(unset_command(seen, &[it])),
            confidence: Confidence::Documented,
            places: places(&[it]),
        });
    }
    found
}

fn contradictions(seen: &Seen, set: &[Set]) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut contradiction = |names: [&str; 2], summary: String, why: &str, fix: String| {
        let chosen: Vec<&Set> = set.iter().filter(|it| names.contains(&it.name.as_str())).collect();
        found.push(Finding {
            id: "env-contradiction",
            severity: Severity::Warning,
            summary,
            why: why.to_owned(),
            fix: Some(if chosen.iter().all(|it| it.is_later) { unset_command(seen, &chosen) } else { fix }),
            confidence: Confidence::Documented,
            places: places(&chosen),
        });
    };
    let enforce = value(set, "MIOPEN_FIND_ENFORCE").and_then(|it| choice(it, FIND_ENFORCE)).unwrap_or("NONE");
    if let Some(mode) = value(set, "MIOPEN_FIND_MODE").and_then(|it| choice(it, FIND_MODES))
        && mode != "NORMAL"
        && enforce != "NONE"
    {
        contradiction(
            ["MIOPEN_FIND_MODE", "MIOPEN_FIND_ENFORCE"],
            format!("MIOPEN_FIND_MODE={mode} has no effect while MIOPEN_FIND_ENFORCE={enforce} is set"),
            "Enforcement other than NONE forces the NORMAL find. (Source: MIOpen's find_controls.hpp.)",
            "`unset MIOPEN_FIND_ENFORCE`".to_owned(),
        );
    }
    if value(set, "HSA_FORCE_FINE_GRAIN_PCIE").is_some_and(on) && value(set, "HIP_FORCE_COARSE_GRAIN").is_some_and(on) {
        contradiction(
            ["HSA_FORCE_FINE_GRAIN_PCIE", "HIP_FORCE_COARSE_GRAIN"],
            "HSA_FORCE_FINE_GRAIN_PCIE=1 offers fine-grained memory, HIP_FORCE_COARSE_GRAIN=1 means to forbid it"
                .to_owned(),
            "Only the first exists. (Source: ROCr's flag.h.)",
            "`unset HSA_FORCE_FINE_GRAIN_PCIE HIP_FORCE_COARSE_GRAIN`".to_owned(),
        );
    }
    if let (Some(hip), Some(cuda)) = (value(set, "HIP_VISIBLE_DEVICES"), value(set, "CUDA_VISIBLE_DEVICES"))
        && hip != cuda
    {
        contradiction(
            ["HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"],
            format!("HIP_VISIBLE_DEVICES={hip} and CUDA_VISIBLE_DEVICES={cuda} name different GPUs"),
            "HIP reads both names, and which one wins has changed between versions. (Source: HIP's documentation on GPU \
             isolation.)",
            "`unset CUDA_VISIBLE_DEVICES`".to_owned(),
        );
    }
    found
}

fn imaginary(seen: &Seen, set: &[Set]) -> Option<Finding> {
    let chosen: Vec<&Set> =
        set.iter().filter(|it| matches!(variables::classify(&it.name), Known::Imaginary { .. })).collect();
    if chosen.is_empty() {
        return None;
    }
    let words: Vec<String> = chosen
        .iter()
        .map(|it| match variables::classify(&it.name) {
            Known::Imaginary { truth: Some(truth), .. } => format!("{}: {truth}", it.name),
            Known::Imaginary { meant: Some(meant), .. } => format!("{}: no such variable; {meant} is one", it.name),
            _ => format!("{}: no source of ROCm or MIOpen has this name", it.name),
        })
        .collect();
    Some(Finding {
        id: "env-imaginary",
        severity: Severity::Warning,
        summary: format!("nothing reads {}", listed(&chosen)),
        why: format!(
            "{}. (Source: all names in the sources of MIOpen and ROCr 5.2.3, 5.7.1 and 6.2.2.)",
            words.join(". ")
        ),
        fix: Some(unset_command(seen, &chosen)),
        confidence: Confidence::Documented,
        places: places(&chosen),
    })
}

/// Whether the value equals not setting the variable at all.
fn same_as_unset(name: &str, value: &str, affected: bool) -> bool {
    let Some(variable) = variables::find(name).filter(|it| matches!(it.owner, Owner::MIOpen | Owner::Hsa)) else {
        return false;
    };
    match variable.kind {
        VariableKind::OnUnlessZero => on(value),
        VariableKind::OffUnlessOne => off(value),
        VariableKind::Plain => match name {
            "HSA_XNACK" => affected,
            "MIOPEN_FIND_ENFORCE" => choice(value, FIND_ENFORCE) == Some("NONE"),
            _ => false,
        },
    }
}

/// Whether an override names the chip that every AMD GPU here has: then it is not a spoof.
fn names_the_true_chip(seen: &Seen, it: &Set) -> bool {
    let named = chips::gfx_of_override(&it.value).filter(|_| it.name == "HSA_OVERRIDE_GFX_VERSION");
    let mut cards = seen.machine.gpus.iter().filter(|gpu| gpu.vendor_id == chips::AMD).peekable();
    named.is_some() && cards.peek().is_some() && cards.all(|gpu| gpu.gfx == named)
}

fn no_effect(seen: &Seen, set: &[Set]) -> Option<Finding> {
    let affected = seen.machine.affected();
    let is_idle = |it: &&Set| same_as_unset(&it.name, &it.value, affected) || names_the_true_chip(seen, it);
    let chosen: Vec<&Set> = set.iter().filter(is_idle).collect();
    if chosen.is_empty() {
        return None;
    }
    let switch = chosen.iter().any(|it| SOLVER_FAMILIES.contains(&it.name.as_str()));
    let why = if chosen.iter().all(|it| names_the_true_chip(seen, it)) {
        "It names the chip that is there, which the runtime finds by itself. (Source: libhsakmt's topology.c.)"
    } else if switch {
        "A family of solvers is on unless its switch is 0: setting 1 forces nothing. If \"IMPLICIT_GEMM=1\" seemed to help, the \
         real cause was another family's 0, set at the same time. (Source: IsDisabled in MIOpen's solver_finders.cpp.)"
    } else {
        "These values are the defaults. (Source: MIOpen's env.hpp, ROCr's flag.h.)"
    };
    Some(Finding {
        id: "env-no-effect",
        severity: Severity::Warning,
        summary: format!("no effect: {}", listed(&chosen)),
        why: why.to_owned(),
        fix: Some(unset_command(seen, &chosen)),
        confidence: Confidence::Documented,
        places: places(&chosen),
    })
}

fn build_time(seen: &Seen, set: &[Set]) -> Option<Finding> {
    let chosen: Vec<&Set> =
        set.iter().filter(|it| ["PYTORCH_ROCM_ARCH", "HCC_AMDGPU_TARGET"].contains(&it.name.as_str())).collect();
    if chosen.is_empty() {
        return None;
    }
    Some(Finding {
        id: "env-build-time",
        severity: Severity::Info,
        summary: format!("read only when torch is built: {}", listed(&chosen)),
        why: "This variable does not change an installed torch; it chooses what a build contains. \
              (Source: PyTorch's setup.py and cmake/public/LoadHIP.cmake.)"
            .to_owned(),
        fix: Some(unset_command(seen, &chosen)),
        confidence: Confidence::Documented,
        places: places(&chosen),
    })
}

fn too_late(seen: &Seen, set: &[Set]) -> Option<Finding> {
    let chosen: Vec<&Set> = set.iter().filter(|it| it.is_later).collect();
    let first = chosen.first()?;
    // The machine in a folder has no running process: its files are all there is.
    let read = variables::find(&first.name).map_or(Read::RuntimeStart, |variable| variable.read);
    let names: Vec<&str> = chosen.iter().map(|it| it.name.as_str()).collect();
    Some(Finding {
        id: "env-set-too-late",
        severity: Severity::Info,
        summary: format!("set in a login file and not in this process: {}", names.join(", ")),
        why: format!(
            "A login file acts on shells that start after it was written. {} is read {}; programs that already run, or that \
             this shell starts, do not see it.",
            first.name,
            read.words()
        ),
        fix: Some(if seen.machine.affected() {
            let is_earlier = |it: &&&Set| {
                it.place
                    .as_ref()
                    .is_some_and(|place| seen.leftovers.iter().any(|file| file.path.as_os_str() == place.path.as_str()))
            };
            match clean_up(seen, &chosen.iter().filter(is_earlier).copied().collect::<Vec<_>>()) {
                Some(command) => format!(
                    "`{command}` moves the lines of earlier attempts aside; what unhang wrote itself acts at the next login"
                ),
                None => "log in again, or remove the lines".to_owned(),
            }
        } else {
            "log in again, or remove the lines".to_owned()
        }),
        confidence: Confidence::Documented,
        places: places(&chosen),
    })
}

fn leftover_files(seen: &Seen) -> Option<Finding> {
    if seen.leftovers.is_empty() {
        return None;
    }
    let mut places = Vec::new();
    for leftover in seen.leftovers {
        let path = leftover.path.display().to_string();
        if leftover.assignments.is_empty() {
            places.push(FilePlace { path: path.clone(), line: None });
        }
        let lines = leftover.assignments.iter().map(|it| FilePlace { path: path.clone(), line: Some(it.line) });
        for place in lines {
            if !places.contains(&place) {
                places.push(place);
            }
        }
    }
    let names: Vec<_> = seen.leftovers.iter().map(|leftover| leftover.path.display().to_string()).collect();
    let paths =
        |movable: bool| seen.leftovers.iter().filter(move |it| it.movable == movable).map(|it| it.path.as_path());
    let mut fix = Vec::new();
    if paths(true).next().is_some() {
        let command = clean_command(seen.program, paths(true));
        let restore = restore_command(seen.program, paths(true));
        fix.push(format!("`{command}` moves them aside; `{restore}` restores every byte"));
    }
    if paths(false).next().is_some() {
        let by_hand: Vec<_> = paths(false).map(|path| path.display().to_string()).collect();
        fix.push(format!(
            "edit {} by hand: unhang changes login files only, and no line that does more",
            by_hand.join(", ")
        ));
    }
    Some(Finding {
        id: "leftover-profile",
        severity: Severity::Warning,
        summary: format!("earlier attempts left settings in {}", names.join(", ")),
        why: "They act on every new shell and contradict each other, and the last one wins. Guides for these cards told people \
              to write several (rocm-rdna1.sh, -52.sh, -57.sh and lines in ~/.bashrc)."
            .to_owned(),
        fix: Some(fix.join("; ")),
        confidence: Confidence::Documented,
        places,
    })
}

/// The variables that are set in the process, each with what its value does.
pub(super) fn settings(seen: &Seen) -> Vec<Setting> {
    let environment = seen.system.environment();
    let mut all: Vec<Setting> = environment
        .iter()
        .filter(|(name, _)| variables::concerns_us(name) && !["NO_COLOR", "COLUMNS"].contains(name))
        .map(|(name, value)| Setting {
            name: name.to_owned(),
            value: value.to_owned(),
            effect: effect(seen, name, value),
        })
        .collect();
    all.sort_by_key(|setting| {
        let place =
            |variable: &variables::Variable| variables::VARIABLES.iter().position(|it| it.name == variable.name);
        (variables::find(&setting.name).and_then(place).unwrap_or(usize::MAX), setting.name.clone())
    });
    all
}

fn effect(seen: &Seen, name: &str, value: &str) -> String {
    let variable = match variables::classify(name) {
        Known::Described(variable) => variable,
        Known::Exists => return "known to MIOpen or ROCr in some version; for debugging".to_owned(),
        Known::Imaginary { meant: Some(meant), truth: None } => {
            return format!("no effect: nothing reads it; did you mean {meant}?");
        }
        Known::Imaginary { .. } | Known::Foreign => return "no effect: nothing reads it".to_owned(),
    };
    if same_as_unset(name, value, seen.machine.affected()) {
        return "no effect: this is the default".to_owned();
    }
    if variable.read == Read::BuildTime {
        return format!("no effect on an installed torch: {}", variable.meaning);
    }
    match name {
        "MIOPEN_FIND_ENFORCE" => match choice(value, FIND_ENFORCE) {
            Some("NONE") => "no effect: this is the default".to_owned(),
            Some("DB_UPDATE") => {
                "DB_UPDATE: tunes again what was tuned before, where a program asks for tuning".to_owned()
            }
            Some("DB_CLEAN") => "DB_CLEAN: erases what was tuned".to_owned(),
            Some(mode) => format!("{mode}: tunes kernels exhaustively at each new problem"),
            None => "no effect: not a value that MIOpen knows".to_owned(),
        },
        "MIOPEN_FIND_MODE" => match choice(value, FIND_MODES) {
            Some("NORMAL") => "NORMAL: runs and times every candidate at each new problem".to_owned(),
            Some("FAST") => "FAST: looks up or guesses, runs no candidate".to_owned(),
            Some(mode) => format!("{mode}: looks up, otherwise runs candidates"),
            None => "no effect: not a value that MIOpen knows".to_owned(),
        },
        name if name.starts_with("HSA_OVERRIDE_GFX_VERSION") => match chips::gfx_of_override(value) {
            Some(told) => format!("the runtime takes the card for {told} and loads its code"),
            None => "the runtime cannot read it and will not start".to_owned(),
        },
        _ => acting(variable, value),
    }
}

/// The part of a switch's meaning that its value causes.
fn acting(variable: &variables::Variable, value: &str) -> String {
    let sign = match variable.kind {
        VariableKind::OnUnlessZero if off(value) => "0 ",
        VariableKind::OffUnlessOne if on(value) => "1 ",
        _ => return variable.meaning.to_owned(),
    };
    let meaning = variable.meaning.strip_prefix(sign).unwrap_or(variable.meaning);
    meaning.replace("; 1 is the same as not set", "")
}
