//! Findings about the card, the driver and the way to them.

use super::seen::Seen;
use crate::chips::AMD;
use crate::finding::{Confidence, Finding, Severity, counted};
use crate::kernel::{LogKind, LogLine};
use crate::machine::Machine;
use crate::routes;
use crate::system::DeviceAccess;

pub(super) fn findings(seen: &Seen, log: &[LogLine]) -> Vec<Finding> {
    let mut found = Vec::new();
    found.extend(no_access(seen));
    found.extend(queue_preemption(log));
    found.extend(ring_timeout(log));
    found.extend(no_atomics(log));
    found.extend(hidden(seen));
    found.extend(parameters(seen));
    found.extend(unreadable(seen));
    found
}

fn no_access(seen: &Seen) -> Option<Finding> {
    let cards: Vec<_> = seen.machine.gpus.iter().filter(|gpu| gpu.vendor_id == AMD).collect();
    if cards.is_empty() {
        return None;
    }
    let nodes: Vec<&str> = cards
        .iter()
        .filter(|gpu| gpu.render_access == DeviceAccess::Denied)
        .filter_map(|gpu| gpu.render_node.as_deref())
        .collect();
    let container = ["/.dockerenv", "/run/.containerenv"].iter().any(|path| seen.system.exists(path));
    let enter = routes::same_container();
    let (summary, why, fix) = match seen.machine.kfd_access {
        DeviceAccess::Granted if nodes.is_empty() => return None,
        DeviceAccess::Missing if container => (
            "this container has no /dev/kfd: no GPU computing in it".to_owned(),
            "The card is there (PCI sysfs shows it), but the device was not passed into the container.",
            format!(
                "start it again, with its devices and your files: `{enter}`, then do the other steps in the new container{}",
                if seen.machine.spoofed() { "; start it without -e HSA_OVERRIDE_GFX_VERSION" } else { "" }
            ),
        ),
        DeviceAccess::Missing if !seen.machine.kernel.amdgpu_loaded => (
            "there is no /dev/kfd: the amdgpu driver is not loaded".to_owned(),
            "ROCm reaches the card through /dev/kfd, which the kernel's amdgpu driver makes.",
            "load it with `sudo modprobe amdgpu` and see why it was not loaded with `sudo dmesg | grep amdgpu`"
                .to_owned(),
        ),
        DeviceAccess::Missing => (
            "there is no /dev/kfd: no GPU computing on this machine".to_owned(),
            "ROCm reaches the card through /dev/kfd; the amdgpu driver is loaded and does not offer it. Kernels without \
             CONFIG_HSA_AMD and containers without the device look like this.",
            format!(
                "in a container, start it with its devices: `{enter}`; otherwise use your distribution's standard kernel"
            ),
        ),
        DeviceAccess::Denied => (
            "this user may not open /dev/kfd".to_owned(),
            "ROCm reaches the card through /dev/kfd, which belongs to the group `render` (on some systems `video`).",
            "`sudo usermod -aG render,video \"$USER\"`, then log in again".to_owned(),
        ),
        DeviceAccess::Granted => (
            format!("this user may not open {}", nodes.join(", ")),
            "ROCm needs the card's render node as well as /dev/kfd; it belongs to the group `render` or `video`.",
            "`sudo usermod -aG render,video \"$USER\"`, then log in again".to_owned(),
        ),
    };
    Some(Finding {
        id: "kfd-no-access",
        severity: Severity::Error,
        summary,
        why: format!("{why} (Source: AMD's installation guide, \"Configuring permissions for GPU access\".)"),
        fix: Some(fix),
        confidence: Confidence::Documented,
        places: Vec::new(),
    })
}

/// Whether a line is still about the machine as it runs now.
fn when(line: &LogLine) -> &'static str {
    if line.earlier { ", before the last boot" } else { "" }
}

fn queue_preemption(log: &[LogLine]) -> Option<Finding> {
    let lines: Vec<_> = log.iter().filter(|line| line.kind == LogKind::Preemption).collect();
    let last = lines.last()?;
    Some(Finding {
        id: "queue-preemption",
        severity: if last.earlier { Severity::Info } else { Severity::Error },
        summary: format!("the kernel's log reports compute queues that could not be preempted{}", when(last)),
        why: format!(
            "{} in {}, the last: \"{}\". On Navi 1x this also happens with native code: it is a different problem from the \
             spoof. The card needs a reset, and everything that used it is lost. (Source: lamikr/rocm_sdk_builder \
             issue 98.)",
            counted(lines.len(), "such line"),
            last.path,
            last.text
        ),
        fix: Some(
            "`sudo reboot` recovers the card; save checkpoints often, so that long jobs can resume; try a newer kernel, and \
             close other programs that compute on this card"
                .to_owned(),
        ),
        confidence: Confidence::SeenOnACard,
        places: Vec::new(),
    })
}

fn ring_timeout(log: &[LogLine]) -> Option<Finding> {
    let lines: Vec<_> = log.iter().filter(|line| line.kind == LogKind::RingTimeout).collect();
    let last = lines.last()?;
    Some(Finding {
        id: "ring-timeout",
        severity: if last.earlier { Severity::Info } else { Severity::Warning },
        summary: format!("the kernel's log reports a card that stopped responding and was reset{}", when(last)),
        why: format!(
            "{} in {}, the last: \"{}\". The driver's own watchdog saw the card hang and reset it; the desktop and all running \
             work were lost. If code for another chip runs here, it is the first suspect; otherwise power, heat and memory \
             clocks are. (Source: amdgpu_job_timedout in the kernel's amdgpu driver.)",
            counted(lines.len(), "such line"),
            last.path,
            last.text
        ),
        fix: Some(
            "`unhang run -- python train.py` keeps code for another chip away; if it also happens in games, undo \
             overclocking and look at the power supply"
                .to_owned(),
        ),
        confidence: Confidence::Documented,
        places: Vec::new(),
    })
}

fn no_atomics(log: &[LogLine]) -> Option<Finding> {
    let last = log.iter().rev().find(|line| line.kind == LogKind::NoAtomics)?;
    Some(Finding {
        id: "pci-atomics",
        severity: Severity::Error,
        summary: "the driver leaves a card out of GPU computing: its slot has no PCIe atomics".to_owned(),
        why: format!(
            "{}: \"{}\". ROCm's driver needs PCIe atomic operations between processor and card for these chips. A slot \
             behind an old chipset, a riser or a Thunderbolt box may not pass them on. (Source: kfd_device.c of the kernel's \
             amdgpu driver.)",
            last.path, last.text
        ),
        fix: Some(
            "put the card into the slot that is wired to the processor (usually the nearest one), without a riser; boards with \
             PCIe 2.0 cannot do it at all"
                .to_owned(),
        ),
        confidence: Confidence::Documented,
        places: Vec::new(),
    })
}

fn hidden(seen: &Seen) -> Option<Finding> {
    let cards = seen.machine.gpus.iter().filter(|gpu| gpu.vendor_id == AMD).count();
    let (name, value) = ["HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"]
        .iter()
        .find_map(|name| Some((*name, seen.system.variable(name)?)))?;
    let shown = value.split(',').filter(|part| !part.trim().is_empty() && part.trim() != "-1").count();
    (shown < cards && cards > 1).then(|| Finding {
        id: "gpu-hidden",
        severity: Severity::Info,
        summary: format!("{name}={value} shows {shown} of {cards} AMD GPUs"),
        why: "Guides set it to 0 as a precaution. With two cards it hides one of them, and numbers follow the runtime's order, \
              not the PCI address. (Source: HIP's documentation on GPU isolation.)"
            .to_owned(),
        fix: Some(format!("`unset {name}` if both cards are wanted")),
        confidence: Confidence::Documented,
        places: Vec::new(),
    })
}

fn parameters(seen: &Seen) -> Option<Finding> {
    let changed: Vec<_> = seen
        .machine
        .kernel
        .parameters
        .iter()
        .filter(|parameter| !parameter.default.is_empty() && parameter.value != parameter.default)
        .collect();
    let first = changed.first()?;
    let list: Vec<_> = changed.iter().map(|it| format!("{}={} (default {})", it.name, it.value, it.default)).collect();
    Some(Finding {
        id: "driver-parameter",
        severity: Severity::Info,
        summary: format!("amdgpu runs with parameters that are not its defaults: {}", list.join(", ")),
        why: format!(
            "{}: {}. Reports from machines with other parameters cannot be compared with this one. (Source: amdgpu's \
             module parameters in the kernel's documentation.)",
            first.name, first.meaning
        ),
        fix: Some(
            "look for them in /etc/modprobe.d and on the kernel's command line; remove those that nobody can explain"
                .to_owned(),
        ),
        confidence: Confidence::Documented,
        places: Vec::new(),
    })
}

fn unreadable(seen: &Seen) -> Option<Finding> {
    let all = &seen.machine.unreadable;
    if all.is_empty() {
        return None;
    }
    let shown: Vec<_> = all.iter().take(6).cloned().collect();
    let more = if all.len() > shown.len() { format!("; and {} more", all.len() - shown.len()) } else { String::new() };
    Some(Finding {
        id: "unreadable",
        severity: Severity::Warning,
        summary: format!("{} could not be read, so this report may miss something", counted(all.len(), "file")),
        why: format!("{}{more}", shown.join("; ")),
        fix: Some("run it as the user who trains; in a container, mount /sys read-only".to_owned()),
        confidence: Confidence::Documented,
        places: Vec::new(),
    })
}

pub(super) fn not_affected(machine: &Machine) -> Finding {
    let names: Vec<_> = machine.gpus.iter().map(|gpu| gpu.name.clone()).collect();
    let summary = if names.is_empty() {
        "there is no GPU here: nothing for unhang to protect".to_owned()
    } else {
        format!("there is no RDNA1 card here ({}): unhang leaves torch alone", names.join(", "))
    };
    let amd: Vec<&str> =
        machine.gpus.iter().filter(|gpu| gpu.vendor_id == AMD).filter_map(|gpu| gpu.gfx.as_deref()).collect();
    let known = amd.iter().find_map(|gfx| known_failures(gfx)).unwrap_or_default();
    let fix = (!amd.is_empty()).then(|| {
        "`unhang probe` tries convolutions in a child with a deadline (save your work first: the card may hang); `unhang run \
         --everywhere -- python train.py` computes them with unhang's own kernels, which avoids MIOpen's searches and \
         failures. They compile for RDNA2 to RDNA4; we never ran them there"
            .to_owned()
    });
    Finding {
        id: "not-affected",
        severity: Severity::Info,
        summary,
        why: format!(
            "RDNA1 is gfx1010 to gfx1013 (RX 5300 to 5700, Pro W5500/W5700, Pro 5300 to 5700, BC-250). RX 6000 is RDNA2, \
             whose chips do not have these hardware bugs; nor do later ones. (Source: LLVM's AMDGPU.td.){known}"
        ),
        fix,
        confidence: Confidence::Documented,
        places: Vec::new(),
    }
}

/// What others report of MIOpen on newer cards.
fn known_failures(gfx: &str) -> Option<&'static str> {
    match gfx {
        "gfx1151" => Some(
            " Reported of MIOpen on this chip: every solver ends in \"Invalid elapsed time\" with ROCm 10.0 (MIOpen issue 3964; \
             `torch.backends.cudnn.enabled = False` avoids it), and convolutions are slower than the processor's (TheRock \
             issue 5105).",
        ),
        "gfx1200" | "gfx1201" => Some(
            " Reported of MIOpen on RX 9000: very slow convolutions (rocm-libraries issue 2567), and NaN in second derivatives \
             (legacy-rocm-build issue 6625).",
        ),
        _ => None,
    }
}
