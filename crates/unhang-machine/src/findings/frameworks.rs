//! Findings about JAX and TensorFlow.

use super::seen::Seen;
use crate::finding::{Confidence, FilePlace, Finding, Severity};
use crate::frameworks::Framework;
use crate::routes;

/// The frameworks that refuse the RDNA1 card here.
pub(super) fn findings(seen: &Seen) -> Vec<Finding> {
    let chip = seen.machine.gpus.iter().find(|gpu| gpu.affected).and_then(|gpu| gpu.gfx.as_deref());
    let Some(gfx) = chip else { return Vec::new() };
    seen.software.frameworks.iter().map(|framework| refusal(seen, framework, gfx)).collect()
}

fn refusal(seen: &Seen, framework: &Framework, gfx: &str) -> Finding {
    let Framework { package, version, .. } = framework;
    // `unhang run` makes the card pass as gfx1030 unless a torch needs something else.
    let start = if seen.has_torch_for_amd() { routes::RUN_SPOOFED } else { routes::RUN };
    let (severity, summary, fix) = if framework.runs_spoofed() {
        (
            Severity::Info,
            format!("{package} {version} refuses {gfx}: start programs with `unhang run`"),
            format!("`{start}`: the card passes for gfx1030, and the shield repairs that chip's code as it loads"),
        )
    } else {
        (
            Severity::Warning,
            format!("{package} {version} refuses {gfx}, and gfx1030 too"),
            format!("`{}`, then `{}`", routes::TENSORFLOW_PIP, start),
        )
    };
    Finding {
        id: "framework-refuses-chip",
        severity,
        summary,
        why: format!(
            "Its wheels have a list of chips (\"The supported AMDGPU versions are …\") without {gfx}. Spoofed as gfx1030 under \
             `unhang run`, JAX 0.10.2 and tensorflow-rocm 2.13.1.600 trained correctly on the emulated card; nobody here has a \
             real one. (Source: XLA's and TensorFlow's device_description.h; run here.)"
        ),
        fix: Some(fix),
        confidence: Confidence::Documented,
        places: vec![FilePlace { path: framework.path.clone(), line: None }],
    }
}
