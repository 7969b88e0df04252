//! Starts children: the Python one with torch, and the one that plays a card.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, anyhow};
use clap::ValueEnum;
use serde_json::Value;
use unhang_engine::{Engine, EngineName};
use unhang_machine::profile::Profile;
use unhang_probe::rehearsal::{Table, serve};
use unhang_probe::{ChildOutcome, Ended, Launch, PythonStart, supervise};

use crate::output::printable;

/// The variants for trying MIOpen: the environment as it is, the profiles, each family of solvers alone.
pub(crate) const VARIANTS: [&str; 10] =
    ["as-is", "rocm5.2", "rocm5.7", "no-spoof", "naive", "gemm", "implicit-gemm", "winograd", "direct", "fft"];

/// The variable of each family of MIOpen's solvers. Only the value 0 has an effect: it turns the family off.
const FAMILIES: [(&str, &str); 5] = [
    ("gemm", "MIOPEN_DEBUG_CONV_GEMM"),
    ("implicit-gemm", "MIOPEN_DEBUG_CONV_IMPLICIT_GEMM"),
    ("winograd", "MIOPEN_DEBUG_CONV_WINOGRAD"),
    ("direct", "MIOPEN_DEBUG_CONV_DIRECT"),
    ("fft", "MIOPEN_DEBUG_CONV_FFT"),
];
const ONLY_SOLVER: &str = "MIOPEN_DEBUG_FIND_ONLY_SOLVER";
/// The Python child's module.
const CHILD: &str = "unhang._trials";
/// The prefix of the Python child's one-line answers.
const ANSWER: &str = "unhang-probe ";
/// How long Python may take to import torch and describe it.
const DESCRIBING: Duration = Duration::from_secs(120);
/// How long a model may take to be created and to run forward and backward once, on the CPU.
const RECORDING: Duration = Duration::from_secs(600);

/// What a child without torch is to do; for this program's own use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ChildTask {
    /// Say what is here.
    Describe,
    /// Serve a prober.
    Serve,
}

impl ChildTask {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            ChildTask::Describe => "describe",
            ChildTask::Serve => "serve",
        }
    }
}

/// The interpreter with torch.
pub(crate) struct Python {
    program: String,
    /// Version and build of torch, as in the fingerprint.
    pub torch: String,
    /// Whether torch sees a GPU.
    pub accelerator: bool,
    /// Whether torch is built for ROCm.
    pub rocm: bool,
}

impl Python {
    /// Asks the interpreter what it has, in a child with a deadline, because torch asks the GPU.
    pub(crate) fn describe(program: &Path) -> anyhow::Result<Python> {
        let answer = ask(program, &["--describe"], DESCRIBING)?;
        let text = |name: &str| answer[name].as_str().map(printable);
        Ok(Python {
            program: program.display().to_string(),
            torch: text("torch").context("torch did not say its version")?,
            accelerator: answer["accelerator"].as_bool().unwrap_or(false),
            rocm: answer["rocm"].as_bool().unwrap_or(false),
        })
    }

    /// The child for an engine under a variant.
    pub(crate) fn launch(&self, engine: EngineName, variant: &str) -> Launch {
        let device = if self.accelerator { "cuda" } else { "cpu" };
        let PythonStart { command, mut environment } =
            PythonStart::module(&self.program, CHILD, &["probe", "--device", device]);
        if engine == EngineName::Miopen {
            environment.extend(self::environment(variant));
        }
        Launch { command, environment }
    }
}

/// The convolutions of a model, forward and backward, each with its number of uses.
pub(crate) fn record_model(program: &Path, model: &str, input: &str) -> anyhow::Result<Vec<(String, u64)>> {
    let answer = ask(program, &["--record", model, "--input", input], RECORDING)?;
    if let Some(error) = answer["error"].as_str() {
        return Err(anyhow!("hint: MODULE:FACTORY is called without arguments and must return a torch module")
            .context(printable(error))
            .context(format!("cannot record the convolutions of {model}")));
    }
    let problems = answer["problems"].as_array().context("the child did not name any convolutions")?;
    let each = |it: &Value| Some((it["problem"].as_str()?.to_owned(), it["count"].as_u64()?));
    problems.iter().map(|it| each(it).context("the child named something that is not a convolution")).collect()
}

fn ask(program: &Path, arguments: &[&str], deadline: Duration) -> anyhow::Result<Value> {
    let name = program.display().to_string();
    let hint = "hint: name a Python that has torch and unhang with --python";
    let arguments = [&["probe"][..], arguments].concat();
    let outcome = supervise(&PythonStart::module(&name, CHILD, &arguments).supervised(deadline)).context(hint)?;
    let line = outcome.answers().rev().find_map(|line| line.strip_prefix(ANSWER));
    let failed = |how: &str| {
        let last_words = printable(outcome.last_words());
        anyhow!(hint).context(last_words).context(format!("{name} {how} before it answered"))
    };
    match (outcome.ended, line) {
        (Ended::Exited(0), Some(line)) => serde_json::from_str(line).context("the child's answer cannot be read"),
        (Ended::TimedOut | Ended::Unkillable, _) => {
            Err(anyhow!("hint: see `unhang doctor`; if the card already hangs, restart the machine before probing")
                .context(format!("torch in {name} did not answer within {} s", deadline.as_secs())))
        }
        (Ended::Signalled(signal), _) => Err(failed(&format!("died of signal {signal}"))),
        (Ended::Exited(code), _) => Err(failed(&format!("ended with code {code}"))),
    }
}

/// Why a child that is this program failed, as `print_error` printed it. Its hints are about other commands.
pub(super) fn reason(outcome: &ChildOutcome) -> String {
    let cause = |line| {
        let line = str::trim_start(line);
        line.strip_prefix("error: ").or_else(|| line.strip_prefix("because: "))
    };
    let causes: Vec<&str> = outcome.other_words().filter_map(cause).collect();
    printable(&if causes.is_empty() { outcome.last_words().to_owned() } else { causes.join("; ") })
}

/// The environment of a child that tries MIOpen: the variables of a variant, and nothing of ours between the child and
/// the library. A program of `unhang run` passes its preloaded library on, and what that computes must not count as
/// MIOpen's.
pub(crate) fn environment(variant: &str) -> Vec<(String, Option<String>)> {
    let mut all = of_variant(variant);
    all.push(("UNHANG_MIOPEN".to_owned(), Some("0".to_owned())));
    all
}

/// The variables of a variant. Results of earlier searches in MIOpen's find-db would favour other solvers, so a variant
/// for one family does not read it.
fn of_variant(variant: &str) -> Vec<(String, Option<String>)> {
    if let Some(profile) = Profile::named(variant) {
        return profile.lines.iter().map(|line| (line.name.to_owned(), line.value.map(str::to_owned))).collect();
    }
    if variant.is_empty() {
        return Vec::new();
    }
    let off = |family: &str| (family != variant && variant != "naive").then(|| "0".to_owned());
    let mut all: Vec<_> = FAMILIES.iter().map(|(family, name)| ((*name).to_owned(), off(family))).collect();
    let naive = Profile::named("rocm5.7").and_then(|profile| {
        profile.lines.iter().find(|line| line.name == ONLY_SOLVER).and_then(|line| line.value.map(str::to_owned))
    });
    all.push((ONLY_SOLVER.to_owned(), if variant == "naive" { naive } else { None }));
    all.push(("MIOPEN_DEBUG_DISABLE_FIND_DB".to_owned(), Some("1".to_owned())));
    all
}

/// The child that plays the card of a table. The folder represents the card.
pub(crate) fn rehearsal(table: &str, folder: &Path) -> anyhow::Result<Launch> {
    std::fs::write(folder.join("table.tsv"), table).context("cannot write the table for the children")?;
    let program = std::env::current_exe().context("cannot find this program to start it as a child")?;
    let command = vec![
        program.display().to_string(),
        "probe".to_owned(),
        "--rehearsal-child".to_owned(),
        folder.display().to_string(),
    ];
    Ok(Launch { command, environment: Vec::new() })
}

/// The child that plays a card.
pub(crate) fn play(folder: &Path, engine: &dyn Engine) -> anyhow::Result<ExitCode> {
    let table = Table::parse(&std::fs::read_to_string(folder.join("table.tsv"))?)?;
    // This ends when the prober goes away.
    let _ = serve(socket()?, &table, engine, folder);
    Ok(ExitCode::SUCCESS)
}

/// The child's connection to its prober.
pub(crate) fn socket() -> anyhow::Result<UnixStream> {
    let socket = std::io::stdin().as_fd().try_clone_to_owned().context("no socket on standard input")?;
    Ok(UnixStream::from(socket))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(variant: &str, name: &str) -> Option<Option<String>> {
        environment(variant).into_iter().find(|(it, _)| it == name).map(|(_, value)| value)
    }

    #[test]
    fn a_family_alone_is_the_others_switched_off() {
        assert_eq!(value("gemm", "MIOPEN_DEBUG_CONV_GEMM"), Some(None), "1 would do nothing");
        for (family, name) in FAMILIES.iter().skip(1) {
            assert_eq!(value("gemm", name), Some(Some("0".to_owned())), "{family}");
        }
        // The naive solvers belong to the direct family, so no family is off there.
        assert_eq!(value("naive", "MIOPEN_DEBUG_CONV_DIRECT"), Some(None));
        assert!(value("naive", ONLY_SOLVER).flatten().is_some_and(|it| it.contains("Naive")));
        assert_eq!(value("winograd", ONLY_SOLVER), Some(None));
        assert_eq!(value("no-spoof", "HSA_OVERRIDE_GFX_VERSION"), Some(None));
        assert!(of_variant("").is_empty());
        for variant in VARIANTS {
            assert_eq!(value(variant, "UNHANG_MIOPEN"), Some(Some("0".to_owned())), "ours keeps out of it");
        }
        for variant in VARIANTS.iter().skip(1) {
            assert!(!of_variant(variant).is_empty(), "{variant}");
        }
    }
}
