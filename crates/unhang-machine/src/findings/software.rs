//! Findings about torch, ROCm and MIOpen's databases.

use std::path::Path;

use super::seen::Seen;
use crate::chips::{AMD, holds, is_affected_gfx};
use crate::finding::{Confidence, FilePlace, Finding, Severity, counted};
use crate::miopen::{Damage, QuickLook};
use crate::routes::{self, NEWEST_GLIBC};
use crate::software::{Torch, two_numbers};
use crate::unrepaired::{Unrepaired, UnrepairedKernel};

/// From this HIP version on, spoofed programs are reported to hang.
const HANGS_SINCE: (u32, u32) = (5, 3);

/// A finding names at most this many places; its commands name all.
const MOST_PLACES: usize = 20;

pub(super) fn findings(seen: &Seen, caches: &QuickLook) -> Vec<Finding> {
    let mut found = Vec::new();
    let amd = seen.machine.gpus.iter().any(|gpu| gpu.vendor_id == AMD);
    let hip: Vec<&Torch> = seen.software.torch.iter().filter(|torch| torch.hip.is_some()).collect();
    if amd {
        found.extend(hip.iter().filter_map(|torch| known_to_hang(seen, torch)));
        found.extend(hip.iter().filter_map(|torch| lacks_architecture(seen, torch)));
        // Somebody who computes with JAX or TensorFlow needs no torch.
        if hip.is_empty() && seen.machine.affected() && seen.software.frameworks.is_empty() {
            found.push(seen.software.torch.first().map_or_else(|| missing(seen), |torch| without_hip(seen, torch)));
        }
    }
    found.extend(hip.iter().filter_map(|torch| glibc(seen, torch)));
    found.extend(hip.iter().filter_map(|torch| mismatch(seen, torch)));
    found.extend(hip.iter().filter_map(|torch| bundles(seen, torch)));
    if seen.machine.affected() {
        found.extend(hip.first().and_then(|torch| missing_kdb(seen, torch)));
    }
    if seen.machine.affected() {
        found.extend(without_unhang(seen, &hip));
        found.extend(hip.iter().find_map(|torch| triton(seen, torch)));
    }
    found.extend(corrupt(caches));
    found.extend(narrowed(caches));
    if seen.machine.affected() {
        found.extend(seen.unrepaired.and_then(stay_unsafe));
    }
    found
}

/// The kernels that the shield could not repair in the last run, and the switches that avoid them.
fn stay_unsafe(record: &Unrepaired) -> Option<Finding> {
    let first = record.kernels.first()?;
    let distinct = |words: fn(&UnrepairedKernel) -> &str| -> String {
        let mut all: Vec<&str> = record.kernels.iter().map(words).collect();
        all.sort_unstable();
        all.dedup();
        all.join("; ")
    };
    let others = match record.kernels.len() - 1 {
        0 => String::new(),
        count => format!(" and {}", counted(count, "other")),
    };
    let (verb, pronoun) = if record.kernels.len() == 1 { ("stays", "it is") } else { ("stay", "they are") };
    Some(Finding {
        id: "kernels-stay-unsafe",
        severity: Severity::Warning,
        summary: format!(
            "{} that `{}` loaded {verb} unsafe: {}{others}",
            counted(record.kernels.len(), "kernel"),
            record.program,
            first.name
        ),
        why: format!(
            "The shield could not repair all code as it was loaded: {}. It matters only where {pronoun} launched. (Source: what \
             unhang {} recorded in the last `unhang run` with the shield.)",
            distinct(|kernel| &kernel.reason),
            record.version
        ),
        fix: Some(distinct(|kernel| &kernel.remedy)),
        confidence: Confidence::Inferred,
        places: Vec::new(),
    })
}

/// The ways to a torch for the card here, best first. Their commands are long, and this text is wrapped.
fn ways(seen: &Seen) -> &'static str {
    let gfx = seen.machine.gpus.iter().find(|gpu| gpu.affected).and_then(|gpu| gpu.gfx.as_deref()).unwrap_or_default();
    match routes::native_wheels(&[gfx]) {
        Some(_) => {
            "take AMD's wheels with native code for it (owners report; not tried by us), or torch 1.13.1 for ROCm 5.2, which \
             owners report working under a spoof: `unhang explain routes` has the commands"
        }
        None => {
            "take torch 1.13.1 for ROCm 5.2, which owners report working under a spoof: `unhang explain routes` has the \
             commands"
        }
    }
}

/// Whether a torch here holds code for the chip itself.
pub(super) fn is_native(seen: &Seen, gfx: &str) -> bool {
    seen.software.torch.iter().any(|torch| torch.hip.is_some() && holds(&torch.architectures, gfx))
}

/// Whether every torch here that could use the card is one that owners report working under the spoof.
pub(super) fn reported_to_work_spoofed(seen: &Seen) -> bool {
    let mut versions = seen.software.torch.iter().filter_map(Torch::hip_version).peekable();
    versions.peek().is_some() && versions.all(|version| version < HANGS_SINCE)
}

fn missing(seen: &Seen) -> Finding {
    Finding {
        id: "torch-missing",
        severity: Severity::Warning,
        summary: "no torch was found: nothing here computes on this card yet".to_owned(),
        why: "The doctor looked in the active environment, the usual places and those that --python names. (Source: their package folders.)"
            .to_owned(),
        fix: Some(format!("{}; if you have one elsewhere, `unhang doctor --python /path/to/python`", ways(seen))),
        confidence: Confidence::Documented,
        places: Vec::new(),
    }
}

fn known_to_hang(seen: &Seen, torch: &Torch) -> Option<Finding> {
    let hip = torch.hip_version().filter(|hip| *hip >= HANGS_SINCE)?;
    // Code for another RDNA1 chip has the work-arounds.
    let lacks_work_arounds = |gpu: &&crate::Gpu| !gpu.reported_gfx.as_deref().is_some_and(is_affected_gfx);
    let chip = seen.machine.gpus.iter().filter(|gpu| gpu.affected && gpu.spoofed()).find(lacks_work_arounds)?;
    Some(Finding {
        id: "torch-known-to-hang",
        severity: Severity::Error,
        summary: format!("torch {} is reported to hang on spoofed RDNA1 cards", torch.version),
        why: format!(
            "Owners report that wheels of ROCm 5.2 work under the spoof and that those of 5.3 and later hang ({} here, built \
             with HIP {}.{}). What arrives with 5.3 is clang 15, which writes v_cmpx into nearly every kernel: on gfx101x that \
             needs a work-around which {} code does not have (the last step is inferred). (Source: ROCm issue 2527; users' \
             notes on 2.0.1+rocm5.4.2 and 2.2.2+rocm5.7.)",
            torch.version,
            hip.0,
            hip.1,
            chip.reported_gfx.as_deref().unwrap_or("gfx1030"),
        ),
        fix: Some(if is_native(seen, chip.gfx.as_deref().unwrap_or_default()) {
            "`unset HSA_OVERRIDE_GFX_VERSION`: the installed torch has code for the true chip".to_owned()
        } else {
            format!(
                "start programs with `unhang run -- python train.py`, which protects convolutions and ends a program that \
                 hangs; better, {}",
                ways(seen)
            )
        }),
        confidence: Confidence::SeenOnACard,
        places: vec![FilePlace { path: torch.path.clone(), line: None }],
    })
}

fn lacks_architecture(seen: &Seen, torch: &Torch) -> Option<Finding> {
    let cards = seen.machine.gpus.iter().filter(|gpu| gpu.vendor_id == AMD);
    let wanted = |gpu: &crate::Gpu| gpu.reported_gfx.clone();
    let missing: Vec<_> = cards
        .filter_map(|gpu| Some((gpu, wanted(gpu)?)))
        .filter(|(_, gfx)| !torch.architectures.is_empty() && !holds(&torch.architectures, gfx))
        .collect();
    let (card, gfx) = missing.first()?;
    // Under `unhang run` each program gets the spoof and the shield; without it nothing runs at all.
    let is_run = card.affected && !card.spoofed() && torch.unhang;
    let fix = match card.affected {
        true if is_run => format!("start programs with `{}`; or {}", routes::RUN, ways(seen)),
        true => ways(seen).to_owned(),
        false => format!("install a torch built for {gfx}; its release notes list the chips"),
    };
    let words = if is_run { ": start programs with `unhang run`" } else { "" };
    Some(Finding {
        id: "torch-lacks-architecture",
        severity: if is_run { Severity::Info } else { Severity::Error },
        summary: format!("torch {} has no code for {gfx} ({}){words}", torch.version, card.name),
        why: format!(
            "Its libraries have code for {}. A kernel for another chip ends with \"invalid device function\" or \"no kernel \
             image is available\". (Source: the bundle headers in torch/lib, or the file names of rocBLAS's kernels.)",
            torch.architectures.join(", ")
        ),
        fix: Some(fix),
        confidence: Confidence::Documented,
        places: vec![FilePlace { path: torch.path.clone(), line: None }],
    })
}

/// `unhang run` acts inside Python only where that Python can import unhang.
fn without_unhang(seen: &Seen, hip: &[&Torch]) -> Option<Finding> {
    let without: Vec<&&Torch> = hip.iter().filter(|torch| !torch.unhang).collect();
    let first = without.first()?;
    let is_native = hip.iter().all(|torch| {
        let cards = seen.machine.gpus.iter().filter(|gpu| gpu.affected);
        cards.filter_map(|gpu| gpu.gfx.as_deref()).all(|gfx| holds(&torch.architectures, gfx))
    });
    let paths: Vec<&str> = without.iter().map(|torch| torch.path.as_str()).collect();
    Some(Finding {
        id: "unhang-not-in-this-python",
        severity: if is_native { Severity::Info } else { Severity::Warning },
        summary: format!("the Python that imports torch {} does not have unhang", first.version),
        why: format!(
            "`unhang run` sets variables and loads the shield for any program. It plans convolutions only in a Python that can \
             import unhang; this one cannot. (Source: the package folder that holds {}.)",
            paths.join(", ")
        ),
        fix: Some(format!("`{}`", routes::install_unhang(first.packages(), seen.wheel))),
        confidence: Confidence::Documented,
        places: vec![FilePlace { path: first.path.clone(), line: None }],
    })
}

/// Versions of Triton whose kernels for gfx1010 use buffer operations, as far as they were compiled and looked at.
const USES_BUFFER_OPERATIONS: (u32, u32) = (3, 6);
/// The first version that refuses to compile for gfx1010.
const REFUSES_RDNA1: (u32, u32) = (3, 9);

/// Triton on a machine with an RDNA1 card: its kernels write nothing, or are refused.
fn triton(seen: &Seen, torch: &Torch) -> Option<Finding> {
    let version = torch.triton.as_deref()?;
    let numbers = two_numbers(version);
    let gfx = seen.machine.gpus.iter().find(|gpu| gpu.affected)?.reported_gfx.clone()?;
    if !crate::chips::is_affected_gfx(&gfx) || numbers.is_some_and(|version| version < USES_BUFFER_OPERATIONS) {
        return None;
    }
    let is_off = seen.system.variable("AMDGCN_USE_BUFFER_OPS").is_some_and(|value| value == "0");
    if numbers.is_some_and(|version| version >= REFUSES_RDNA1) {
        return Some(Finding {
            id: "triton-writes-zeros",
            severity: Severity::Info,
            summary: format!("Triton {version} does not compile for {gfx}: \"unsupported target\""),
            why: "Triton 3.9.0 refuses gfx1010; 3.6.0 to 3.8.0 compile for it. (Source: compiled here with PyPI's wheels.)"
                .to_owned(),
            fix: Some("`pip install 'triton<3.9'` if your torch allows it, and start programs with `unhang run`".to_owned()),
            confidence: Confidence::Documented,
            places: Vec::new(),
        });
    }
    (!is_off).then(|| Finding {
        id: "triton-writes-zeros",
        severity: if torch.unhang { Severity::Info } else { Severity::Warning },
        summary: format!("kernels of Triton {version} write nothing on {gfx} unless AMDGCN_USE_BUFFER_OPS=0 is set"),
        why: "Triton's buffer descriptors for gfx1010 put every access out of range: loads give zeros, stores are dropped, and \
              no error is reported. Kernels that were compiled without the variable stay in Triton's and inductor's caches. \
              (Source: unslothai/unsloth issue 11614, seen on an RX 5700 XT; ROCm/TheRock issue 6467, on an RX 5600M; the \
              descriptors of 3.6.0 to 3.8.0 were compiled here.)"
            .to_owned(),
        fix: Some(format!(
            "`{}` sets it and keeps these caches apart; by hand, `export AMDGCN_USE_BUFFER_OPS=0` and `rm -r ~/.triton/cache`",
            routes::RUN
        )),
        confidence: Confidence::SeenOnACard,
        places: Vec::new(),
    })
}

fn without_hip(seen: &Seen, torch: &Torch) -> Finding {
    let kind = if torch.cuda.is_some() { "NVIDIA GPUs" } else { "the CPU" };
    Finding {
        id: "torch-without-hip",
        severity: Severity::Warning,
        summary: format!("torch {} was built for {kind}: it cannot use this card", torch.version),
        why: "`torch.version.hip` is None. Plain `pip install torch` gives such a build; ROCm builds come from another index. \
              (Source: torch/version.py.)"
            .to_owned(),
        fix: Some(ways(seen).to_owned()),
        confidence: Confidence::Documented,
        places: vec![FilePlace { path: torch.path.clone(), line: None }],
    }
}

fn glibc(seen: &Seen, torch: &Torch) -> Option<Finding> {
    let (major, minor) = seen.software.glibc?;
    if (major, minor) <= NEWEST_GLIBC || torch.hip_version()? > (5, 2) {
        return None;
    }
    Some(Finding {
        id: "glibc-too-new",
        severity: Severity::Error,
        summary: format!("torch {} does not load with glibc {major}.{minor}", torch.version),
        why: "Libraries of that age ask for an executable stack, and from 2.41 on glibc refuses to load such a library into a \
              running program: \"cannot enable executable stack\". (Source: glibc 2.41's release notes; users' reports.)"
            .to_owned(),
        fix: Some(
            "use it with glibc 2.40 or older, on such a system or in a container (Debian 12, Ubuntu 22.04 or 24.04); or take \
             a torch with native code for this chip"
                .to_owned(),
        ),
        confidence: Confidence::SeenOnACard,
        places: vec![FilePlace { path: torch.path.clone(), line: None }],
    })
}

fn mismatch(seen: &Seen, torch: &Torch) -> Option<Finding> {
    let built = torch.hip_version()?;
    let foreign: Vec<String> = torch
        .libraries
        .iter()
        .filter(|library| !library.bundled)
        .filter_map(|library| {
            let path = library.path.as_ref()?;
            let owner = seen.software.rocm.iter().find(|rocm| Path::new(path).starts_with(&rocm.path))?;
            let version = two_numbers(owner.version.as_deref()?)?;
            (version != built).then(|| format!("{} from {} ({}.{})", library.name, owner.path, version.0, version.1))
        })
        .collect();
    if foreign.is_empty() {
        return None;
    }
    let shadowed = shadowed(torch);
    Some(Finding {
        id: "runtime-version-mismatch",
        severity: seen.error_if_affected(),
        summary: format!(
            "torch {} was built with HIP {}.{} and will load {}",
            torch.version,
            built.0,
            built.1,
            foreign.join(", ")
        ),
        why:
            "Mixed versions end in HSA_STATUS_ERROR_MEMORY_APERTURE_VIOLATION, missing symbols or silent misbehaviour. \
              (Source: users' reports; ROCm's versions are not compatible with each other at this level.)"
                .to_owned(),
        fix: Some(if shadowed {
            "`unset LD_LIBRARY_PATH`: torch bundles its own libraries, and that path puts others before them".to_owned()
        } else {
            format!("install ROCm {}.{}, or a torch built with the ROCm that is here", built.0, built.1)
        }),
        confidence: Confidence::SeenOnACard,
        places: vec![FilePlace { path: torch.path.clone(), line: None }],
    })
}

/// Whether other libraries are loaded instead of torch's own.
fn shadowed(torch: &Torch) -> bool {
    torch.libraries.iter().any(|library| !library.bundled && torch.bundled.contains(&library.name))
}

fn bundles(seen: &Seen, torch: &Torch) -> Option<Finding> {
    // If LD_LIBRARY_PATH puts others first, say that.
    if torch.bundled.is_empty() || seen.software.rocm.is_empty() || shadowed(torch) {
        return None;
    }
    let system: Vec<_> = seen
        .software
        .rocm
        .iter()
        .map(|rocm| format!("{} ({})", rocm.path, rocm.version.as_deref().unwrap_or("?")))
        .collect();
    Some(Finding {
        id: "torch-bundles-rocm",
        severity: Severity::Info,
        summary: format!(
            "torch {} bundles ROCm {} and does not use {}",
            torch.version,
            torch.hip.as_deref().unwrap_or("?"),
            system.join(", ")
        ),
        why: format!(
            "{} are in torch/lib and are found first. Installing another ROCm on the system does not change which MIOpen \
             computes. (Source: the files in torch/lib.)",
            torch.bundled.join(", ")
        ),
        fix: None,
        confidence: Confidence::Documented,
        places: vec![FilePlace { path: torch.path.clone(), line: None }],
    })
}

/// MIOpen names its databases for the chip and the number of work-group processors, which is half the compute units.
fn database_name(seen: &Seen) -> Option<String> {
    let card = seen.machine.gpus.iter().find(|gpu| gpu.affected)?;
    Some(format!("{}_{}", card.reported_gfx.as_deref()?, card.compute_units? / 2))
}

fn missing_kdb(seen: &Seen, torch: &Torch) -> Option<Finding> {
    let name = database_name(seen)?;
    let mut folders =
        vec![Path::new(&torch.path).join("share/miopen/db"), Path::new(&torch.path).join("lib/share/miopen/db")];
    folders.extend(seen.software.rocm.iter().map(|rocm| Path::new(&rocm.path).join("share/miopen/db")));
    if folders.iter().any(|folder| seen.system.is_file(folder.join(format!("{name}.kdb")))) {
        return None;
    }
    Some(Finding {
        id: "miopen-missing-kdb",
        severity: Severity::Info,
        summary: format!("MIOpen has no precompiled kernels for this card ({name}.kdb): harmless"),
        why: "\"Missing system database file …kdb\" only means that the first run of each convolution compiles it. \
              (Source: MIOpen's binary_cache.cpp.)"
            .to_owned(),
        fix: None,
        confidence: Confidence::Documented,
        places: Vec::new(),
    })
}

fn corrupt(caches: &QuickLook) -> Option<Finding> {
    let first = caches.corrupt.first()?;
    let mut files: Vec<&str> = caches.corrupt.iter().map(|damage| damage.path.as_str()).collect();
    files.dedup();
    let place = |damage: &Damage| FilePlace { path: damage.path.clone(), line: damage.line };
    Some(Finding {
        id: "miopen-cache-corrupt",
        severity: Severity::Error,
        summary: format!(
            "MIOpen's user databases are damaged in {} in {}",
            counted(caches.corrupt.len(), "place"),
            counted(files.len(), "file")
        ),
        why: format!(
            "{}: {}. MIOpen stops with an internal error (\"Possible database corruption\") or compiles again at every start. \
             (Source: MIOpen's kern_db.hpp and sqlite_db.cpp.)",
            first.path, first.problem
        ),
        fix: Some(
            "`unhang miopen-cache repair` removes what is damaged and keeps a backup; `unhang miopen-cache verify` names each \
             record first"
                .to_owned(),
        ),
        confidence: Confidence::Documented,
        places: caches.corrupt.iter().take(MOST_PLACES).map(place).collect(),
    })
}

fn narrowed(caches: &QuickLook) -> Option<Finding> {
    if caches.narrowed.is_empty() {
        return None;
    }
    let count: usize = caches.narrowed.iter().map(|(_, lines)| lines.len()).sum();
    Some(Finding {
        id: "miopen-cache-narrowed",
        severity: Severity::Warning,
        summary: format!("MIOpen's cache holds {} made while algorithms were disabled", counted(count, "choice")),
        why: "An unrestricted search also times the naive solver, which takes every convolution; these records lack it. MIOpen \
              keeps using them after the variables are gone, so an old experiment still decides. (Source: EvaluateInvokers \
              in MIOpen's solver_finders.cpp.)"
            .to_owned(),
        fix: Some("`unhang miopen-cache repair --narrowed` removes them and keeps a backup".to_owned()),
        confidence: Confidence::Inferred,
        places: caches
            .narrowed
            .iter()
            .flat_map(|(path, lines)| lines.iter().map(|line| FilePlace { path: path.clone(), line: Some(*line) }))
            .take(MOST_PLACES)
            .collect(),
    })
}
