//! Environment profiles: few variables, each with its reason, its evidence, and what earlier guides had instead.
//!
//! A profile is a floor, not the cure: it makes what MIOpen does by itself less harmful. The cure is to keep unproven
//! code off the card (`unhang.enable()`), or a torch with native code.

use serde::Serialize;

use crate::chips::CHIPS;
use crate::findings::Examination;
use crate::leftovers::OUR_MARK;
use crate::shell::quoted;

/// How well a line is founded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Ground {
    /// Owners of such a card report it.
    Reported,
    /// Read in the sources or the documentation.
    Documented,
    /// Follows from what is known; nobody has shown it.
    Inferred,
}

impl Ground {
    /// How it is written.
    pub fn name(self) -> &'static str {
        match self {
            Ground::Reported => "reported",
            Ground::Documented => "documented",
            Ground::Inferred => "inferred",
        }
    }
}

/// One line of a profile.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Line {
    /// The variable.
    pub name: &'static str,
    /// Its value; `None` to unset it.
    pub value: Option<&'static str>,
    /// Why the line is here.
    pub reason: &'static str,
    /// What that rests on.
    pub ground: Ground,
    /// What earlier guides for these cards set instead.
    pub before: &'static str,
}

/// A line of earlier guides that is not in the profile.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LeftOut {
    /// The line.
    pub line: &'static str,
    /// Why it is not here.
    pub why: &'static str,
}

/// An environment profile.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Profile {
    /// Its name.
    pub name: &'static str,
    /// What it is for, in one line.
    pub summary: &'static str,
    /// The lines.
    pub lines: Vec<Line>,
    /// Lines of earlier guides that the profile leaves out.
    pub left_out: Vec<LeftOut>,
}

/// The names that [`Profile::named`] takes.
pub const NAMES: &[&str] = &["rocm5.2", "rocm5.7", "no-spoof", "jax-tensorflow"];

const NAIVE: &str = "ConvDirectNaiveConvFwd;ConvDirectNaiveConvBwd;ConvDirectNaiveConvWrw";

fn set(name: &'static str, value: &'static str, ground: Ground, before: &'static str, reason: &'static str) -> Line {
    Line { name, value: Some(value), reason, ground, before }
}

fn unset(name: &'static str, ground: Ground, before: &'static str, reason: &'static str) -> Line {
    Line { name, value: None, reason, ground, before }
}

fn spoof() -> Line {
    set(
        "HSA_OVERRIDE_GFX_VERSION",
        "10.3.0",
        Ground::Reported,
        "the same",
        "wheels of this version have no code for gfx101x, so nothing runs without it. The price: gfx1030 code lacks the \
         work-arounds for RDNA1's hardware bugs",
    )
}

fn no_enforcement() -> Line {
    unset(
        "MIOPEN_FIND_ENFORCE",
        Ground::Reported,
        "3, later NONE",
        "3 searched for 33 minutes on one small convolution; NONE is the default",
    )
}

fn triton() -> Line {
    set(
        "AMDGCN_USE_BUFFER_OPS",
        "0",
        Ground::Reported,
        "nothing: Triton came later",
        "Triton's kernels for RDNA1 write nothing with buffer operations, and report no error",
    )
}

fn always_left_out() -> Vec<LeftOut> {
    vec![
        LeftOut { line: "HIP_FORCE_COARSE_GRAIN=1", why: "does not exist: no source of ROCm reads it" },
        LeftOut { line: "PYTORCH_ROCM_ARCH=gfx1030", why: "is read when torch is built, not when it runs" },
        LeftOut {
            line: "HSA_ENABLE_SDMA=0",
            why: "makes copies run as kernels on the compute units: more code for the wrong chip, not less; nobody has shown \
                  that it helps here",
        },
        LeftOut { line: "HSA_USE_SVM=0", why: "real, and nothing here depends on it" },
        LeftOut { line: "HSA_XNACK=0", why: "RDNA1 has no XNACK: does nothing" },
        LeftOut { line: "HIP_VISIBLE_DEVICES=0", why: "hides a second card, and 0 may not be the one you meant" },
        LeftOut { line: "MIOPEN_LOG_LEVEL=3", why: "hides the warnings that would say what happens" },
        LeftOut { line: "MIOPEN_DISABLE_CACHE=0", why: "is the default" },
    ]
}

impl Profile {
    /// The profile of that name.
    pub fn named(name: &str) -> Option<Profile> {
        match name {
            "rocm5.2" => Some(rocm_5_2()),
            "rocm5.7" => Some(rocm_5_7()),
            "no-spoof" => Some(no_spoof()),
            "jax-tensorflow" => Some(jax_tensorflow()),
            _ => None,
        }
    }

    /// The profile that fits the doctor's findings, and why.
    pub fn automatic(examination: &Examination) -> (Profile, String) {
        let torch = examination.software.torch.iter().find(|torch| torch.hip.is_some());
        let card = examination.machine.gpus.iter().find(|gpu| gpu.affected);
        let Some(card) = card else {
            return (no_spoof(), "no RDNA1 card was found: nothing needs to be spoofed".to_owned());
        };
        let gfx = card.gfx.as_deref().unwrap_or("gfx1010");
        match torch {
            Some(torch) if crate::chips::holds(&torch.architectures, gfx) => {
                (no_spoof(), format!("torch {} has code for {gfx}", torch.version))
            }
            Some(torch) if torch.hip_version().is_some_and(|version| version <= (5, 2)) => {
                (rocm_5_2(), format!("owners report that a torch as old as {} works under the spoof", torch.version))
            }
            Some(torch) => (
                rocm_5_7(),
                format!(
                    "torch {} has no code for {gfx}, and owners report that one as new as this hangs",
                    torch.version
                ),
            ),
            None if !examination.software.frameworks.is_empty() => {
                let framework = &examination.software.frameworks[0];
                (jax_tensorflow(), format!("{} {} refuses {gfx}", framework.package, framework.version))
            }
            // Programs that bring their own libraries may need the existing variables.
            None if card.spoofed() => {
                (as_set(), "no torch with HIP was found, and other frameworks may need what you set".to_owned())
            }
            None => (
                no_spoof(),
                "no torch with HIP was found; `unhang explain routes` lists the ways to get one".to_owned(),
            ),
        }
    }
}

fn rocm_5_2() -> Profile {
    let mut left_out = vec![LeftOut {
        line: "MIOPEN_DEBUG_CONV_IMPLICIT_GEMM=1",
        why: "1 is the default; what helped was MIOPEN_DEBUG_CONV_GEMM=0, set at the same time",
    }];
    left_out.extend(always_left_out());
    Profile {
        name: "rocm5.2",
        summary: "for torch 1.13.1+rocm5.2 under the spoof",
        lines: vec![
            spoof(),
            set(
                "MIOPEN_DEBUG_CONV_GEMM",
                "0",
                Ground::Reported,
                "0, together with IMPLICIT_GEMM=1, which does nothing",
                "the only line of that guide with an effect: with it all sizes up to 512×512 are reported to work; the other \
                 families stay on, so every convolution has a solver",
            ),
            set(
                "MIOPEN_FIND_MODE",
                "FAST",
                Ground::Inferred,
                "NORMAL, which runs every candidate",
                "does not run a candidate that may hang merely to time it",
            ),
            no_enforcement(),
            triton(),
        ],
        left_out,
    }
}

fn rocm_5_7() -> Profile {
    let family = |name| {
        unset(
            name,
            Ground::Documented,
            "0 for all families but GEMM",
            "turning the direct family off turns the naive solvers off too",
        )
    };
    let mut left_out = vec![LeftOut {
        line: "MIOPEN_DEBUG_CONV_GEMM=1",
        why: "1 is the default; with the other families at 0 it left only the solvers that are reported to hang above 32×32",
    }];
    left_out.extend(always_left_out());
    Profile {
        name: "rocm5.7",
        summary: "for torch wheels of ROCm 5.3 and later under the spoof: reported to hang; call `unhang.enable()` as well",
        lines: vec![
            spoof(),
            set(
                "MIOPEN_DEBUG_FIND_ONLY_SOLVER",
                NAIVE,
                Ground::Inferred,
                "GEMM only (MIOPEN_DEBUG_CONV_…=0 for the rest)",
                "the naive solvers take every convolution and are the simplest code that MIOpen has; slow",
            ),
            family("MIOPEN_DEBUG_CONV_DIRECT"),
            set("MIOPEN_FIND_MODE", "FAST", Ground::Inferred, "NORMAL", "runs nothing merely to time it"),
            no_enforcement(),
            triton(),
        ],
        left_out,
    }
}

fn no_spoof() -> Profile {
    Profile {
        name: "no-spoof",
        summary: "for a torch with code for the true chip",
        lines: vec![
            unset(
                "HSA_OVERRIDE_GFX_VERSION",
                Ground::Documented,
                "10.3.0",
                "native code has the compiler's work-arounds; the spoof would load other code instead",
            ),
            no_enforcement(),
            triton(),
        ],
        left_out: always_left_out(),
    }
}

/// For wheels that only run on listed chips.
fn jax_tensorflow() -> Profile {
    let spoof = set(
        "HSA_OVERRIDE_GFX_VERSION",
        "10.3.0",
        Ground::Documented,
        "10.3.0",
        "JAX's and TensorFlow's wheels refuse gfx101x by a list of chips; gfx1030 is on it. `unhang run` repairs that chip's code \
         as it loads",
    );
    Profile {
        name: "jax-tensorflow",
        summary: "for JAX's and TensorFlow's wheels, which refuse RDNA1 chips: start programs with `unhang run`",
        lines: vec![spoof, no_enforcement(), triton()],
        left_out: always_left_out(),
    }
}

/// For unknown programs: asks for neither the spoof nor its absence.
fn as_set() -> Profile {
    Profile {
        name: "as-set",
        summary: "for programs without torch: HSA_OVERRIDE_GFX_VERSION stays as it is",
        lines: vec![no_enforcement(), triton()],
        left_out: always_left_out(),
    }
}

/// The dialects that a profile can be printed in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shell {
    /// sh, bash and zsh.
    Posix,
    /// fish.
    Fish,
    /// Lines for the `[Service]` section of a unit, as `systemctl edit` takes them.
    Systemd,
    /// A file for `docker run --env-file`.
    Docker,
}

impl Profile {
    /// The profile in a dialect; with `explain`, each line's reason as a comment.
    pub fn print(&self, shell: Shell, explain: bool) -> String {
        let mut text = self.print_lines(shell, explain);
        if explain {
            text.push_str("\n# Left out, although earlier guides had it:\n");
            for left in &self.left_out {
                text.push_str(&format!("#   {}: {}\n", left.line, left.why));
            }
        }
        text
    }

    fn print_lines(&self, shell: Shell, explain: bool) -> String {
        let mut text = format!("# unhang profile {}: {}\n", self.name, self.summary);
        if shell == Shell::Systemd {
            text.push_str("[Service]\n");
        }
        if shell == Shell::Docker {
            text.push_str(&format!("# docker run --env-file THIS {} …\n", crate::routes::CONTAINER_DEVICES));
        }
        for line in &self.lines {
            if explain {
                text.push_str(&format!("\n# {} [{}]\n# before: {}\n", line.reason, line.ground.name(), line.before));
            }
            let name = line.name;
            text.push_str(&match (shell, line.value) {
                (Shell::Posix, Some(value)) => format!("export {name}={}\n", quoted(value)),
                (Shell::Posix, None) => format!("unset {name}\n"),
                (Shell::Fish, Some(value)) => format!("set -gx {name} {}\n", quoted(value)),
                (Shell::Fish, None) => format!("set -e {name}\n"),
                (Shell::Systemd, Some(value)) => format!("Environment=\"{name}={value}\"\n"),
                (Shell::Systemd, None) => format!("UnsetEnvironment={name}\n"),
                (Shell::Docker, Some(value)) => format!("{name}={value}\n"),
                (Shell::Docker, None) => format!("# {name} must not be set\n"),
            });
        }
        text
    }

    /// A script for sh that sets the profile only on a machine with an RDNA1 card.
    ///
    /// It asks KFD first and PCI for kernels before 5.17, starts no process, and reads `UNHANG_ROOT`.
    pub fn guarded_script(&self) -> String {
        let mut text = self.guard(&format!("{OUR_MARK}: profile {}, {}.", self.name, self.summary));
        text.push_str("if _unhang_card; then\n");
        for line in self.print_lines(Shell::Posix, true).lines().skip(1) {
            text.push_str(&if line.is_empty() { "\n".to_owned() } else { format!("    {line}\n") });
        }
        // A body with only comments would be a syntax error.
        text.push_str("    :\nfi\nunset -f _unhang_card\nunset _unhang_path _unhang_name _unhang_value\n");
        text
    }

    /// A generator for systemd: environment.d itself has no conditions.
    pub fn generator_script(&self) -> String {
        let mut text = format!(
            "#!/bin/sh\n{}",
            self.guard(&format!("{OUR_MARK}: profile {} for systemd's user services.", self.name))
        );
        text.push_str("if _unhang_card; then\n");
        for line in &self.lines {
            if let Some(value) = line.value {
                text.push_str(&format!("    printf '%s\\n' {}\n", quoted(&format!("{}={value}", line.name))));
            }
        }
        text.push_str("    :\nfi\n");
        text
    }

    /// The guarded profile for fish.
    pub fn guarded_fish(&self) -> String {
        let devices: Vec<String> =
            crate::chips::affected_devices().into_iter().map(|device| format!("0x{device:04x}")).collect();
        let mut text = format!(
            "{OUR_MARK}: profile {}, {}.\n# `unhang env uninstall` removes it. Does nothing without an RDNA1 card.\n\
             set -l unhang_card\n\
             for unhang_path in \"$UNHANG_ROOT\"/sys/class/kfd/kfd/topology/nodes/*/properties\n    \
                 string match -qr '^gfx_target_version 10010[0-3]$' <$unhang_path; and set unhang_card yes\n\
             end\n\
             # Kernels before 5.17 do not name the chip there: look at the ids of display controllers.\n\
             for unhang_path in \"$UNHANG_ROOT\"/sys/bus/pci/devices/*\n    \
                 test -r $unhang_path/class -a -r $unhang_path/vendor -a -r $unhang_path/device; or continue\n    \
                 string match -q '0x03*' <$unhang_path/class; and string match -q 0x1002 <$unhang_path/vendor\n    \
                 and string match -qr '^({})$' <$unhang_path/device; and set unhang_card yes\n\
             end\n\
             if test -n \"$unhang_card\"\n",
            self.name,
            self.summary,
            devices.join("|"),
        );
        for line in self.print_lines(Shell::Fish, false).lines().skip(1) {
            text.push_str(&format!("    {line}\n"));
        }
        text.push_str("end\n");
        text
    }

    fn guard(&self, head: &str) -> String {
        let versions: Vec<String> = CHIPS
            .iter()
            .filter(|chip| chip.affected)
            .map(|chip| format!("\"gfx_target_version {}\"", chip.target_version))
            .collect();
        let devices: Vec<String> =
            crate::chips::affected_devices().into_iter().map(|device| format!("0x{device:04x}")).collect();
        format!(
            "{head}\n\
             # `unhang env uninstall` removes it. Does nothing unless an RDNA1 card (gfx1010 to gfx1013) is in this machine.\n\
             _unhang_card() {{\n    \
                 if [ -n \"${{ZSH_VERSION:-}}\" ]; then setopt local_options no_nomatch; fi\n    \
                 for _unhang_path in \"${{UNHANG_ROOT:-}}\"/sys/class/kfd/kfd/topology/nodes/*/properties; do\n        \
                     [ -r \"$_unhang_path\" ] || continue\n        \
                     while read -r _unhang_name _unhang_value; do\n            \
                         case \"$_unhang_name $_unhang_value\" in\n                \
                             {}) return 0 ;;\n            \
                         esac\n        \
                     done <\"$_unhang_path\"\n    \
                 done\n    \
                 # Kernels before 5.17 do not name the chip there: look at the ids of display controllers.\n    \
                 for _unhang_path in \"${{UNHANG_ROOT:-}}\"/sys/bus/pci/devices/*; do\n        \
                     [ -r \"$_unhang_path/class\" ] && read -r _unhang_value <\"$_unhang_path/class\" || continue\n        \
                     case \"$_unhang_value\" in 0x03*) ;; *) continue ;; esac\n        \
                     read -r _unhang_value <\"$_unhang_path/vendor\" || continue\n        \
                     [ \"$_unhang_value\" = 0x1002 ] || continue\n        \
                     read -r _unhang_value <\"$_unhang_path/device\" || continue\n        \
                     case \"$_unhang_value\" in\n            \
                         {}) return 0 ;;\n        \
                     esac\n    \
                 done\n    \
                 return 1\n\
             }}\n",
            versions.join(" | "),
            devices.join(" | "),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::variables;

    #[test]
    fn every_line_names_a_variable_of_the_table_and_acts() {
        for name in NAMES {
            let profile = Profile::named(name).unwrap();
            assert_eq!(profile.name, *name);
            for line in &profile.lines {
                let variable = variables::find(line.name).expect("in the table");
                assert!(variable.read != variables::Read::BuildTime);
                assert!(!line.reason.is_empty() && !line.before.is_empty());
            }
        }
        assert!(Profile::named("rocm9").is_none());
    }
}
