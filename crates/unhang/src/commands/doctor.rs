//! `unhang doctor`: what this machine has, what is wrong, what to do.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::bail;
use clap::Args;
use serde_json::json;
use unhang_machine::chips::AMD;
use unhang_machine::{Bundle, Examination, Finding, Gpu, Options, Severity, Verdict, examine, routes, steps};

use super::consent::Consent;
use super::fix::fix;
use super::machine_arguments::MachineArguments;
use super::python::{find_python, interpreter, named, options};
use super::self_test::{self, Trial, Tried};
use super::text::{print_safe_json, print_text, wrapped};
use super::whole_file::write_whole;
use crate::output::{CANNOT_TELL, Colour, FOUND_ERRORS, Style, printable, tell};

/// Show what is wrong on this machine and what to do. Reads files only; needs neither root nor a GPU.
#[derive(Args)]
#[command(after_help = "\
Examples:
  unhang doctor
  unhang doctor --explain                        # with reasons and sources
  unhang doctor --python ~/venv/bin/python
  unhang doctor --fix                            # asks before each change
  unhang doctor --bundle machine.tar.gz          # for a bug report; no names
  unhang doctor --self-test --bundle card.tar.gz # what an owner sends in
  tar xf machine.tar.gz && unhang doctor --root machine

Exit codes:
  0  no errors
  1  errors were found, or an engine failed its self-test
  2  wrong usage
  3  could not tell")]
// Without --fix there is nothing to ask.
#[command(mut_arg("yes", |yes| yes.requires("fix")))]
pub(crate) struct Doctor {
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Print the reason, the remedy and the source of each finding.
    #[arg(long)]
    explain: bool,
    #[command(flatten)]
    machine: MachineArguments,
    /// Also look for torch in this interpreter or environment; may be repeated.
    #[arg(long, value_name = "PATH")]
    python: Vec<PathBuf>,
    /// Also write what was read to a tar file for a bug report, without user or host names.
    #[arg(long, value_name = "FILE.tar.gz")]
    bundle: Option<PathBuf>,
    /// Also run a few small convolutions on every available engine, each in a child process with a time limit. This
    /// uses the GPU: save your work first, because a card that hangs may need a reboot. It uses the torch of --python, or of the active
    /// environment.
    #[arg(long)]
    self_test: bool,
    /// Then carry out unhang's own steps (`unhang env clean`, `unhang miopen-cache repair`), and ask before each. Both
    /// keep a backup. With --root it changes that folder.
    #[arg(long, conflicts_with_all = ["json", "self_test"])]
    fix: bool,
    #[command(flatten)]
    consent: Consent,
    /// The child of the self-test.
    #[arg(long, hide = true, value_name = "ENGINE", value_parser = ["cpu", "jit"])]
    self_test_child: Option<String>,
}

impl Doctor {
    /// Runs the command.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        if let Some(engine) = &self.self_test_child {
            return self_test::child(engine);
        }
        if let (true, Some(description)) = (self.self_test, self.machine.description()) {
            bail!(
                "--self-test computes on this machine as it is, but {} describes another one, and a description cannot \
                 compute; leave out --root, --env-file and UNHANG_ROOT, or --self-test",
                description.display()
            );
        }
        let system = self.machine.system()?;
        let pythons = named(&system, &self.python)?;
        let data = match self.machine.description() {
            None => unhang_evidence::home(),
            Some(_) => system.home().map(|home| home.join(".local/share/unhang")),
        };
        let options = Options { data, ..options(&system, pythons) };
        let (examination, bundle) = match &self.bundle {
            Some(path) => {
                let bundle = Bundle::collect(system, &options);
                write_bundle(&bundle, path)?;
                (bundle.examination.clone(), Some((bundle, path)))
            }
            None => (examine(&system, &options), None),
        };
        let tried = if self.self_test { Some(self.try_engines(&examination, bundle)?) } else { None };
        if self.json {
            let mut report = examination.to_json();
            if let Some(tried) = &tried {
                report["self_test"] = self_test::to_json(tried);
            }
            print_safe_json(&report)?;
        } else {
            let style = Style::for_stream(&std::io::stdout());
            let tried = tried.as_deref().map(|tried| self_test::report(tried, style)).unwrap_or_default();
            print_text(&format!("{}{tried}", report(&examination, style, self.explain)))?;
        }
        if examination.verdict == Verdict::Unknown
            && let Some(root) = self.machine.described_root().filter(|root| !root.join("sys").exists())
        {
            tell(&format!(
                "hint: {} has no folder sys, so it describes no machine; name the folder that `tar xf machine.tar.gz` makes",
                root.display()
            ));
        }
        if self.fix {
            fix(&examination, self.machine.described_root().as_deref(), self.consent)?;
        }
        if let Some(path) = &self.bundle {
            tell(&format!("wrote {}; look through it before you send it", path.display()));
        }
        if tried.is_some_and(|tried| tried.iter().any(Tried::is_bad)) {
            return Ok(ExitCode::from(FOUND_ERRORS));
        }
        Ok(exit_code(&examination))
    }

    /// Tries each engine. The bundle is written after each, because the next one may crash the whole machine.
    fn try_engines(
        &self,
        examination: &Examination,
        mut bundle: Option<(Bundle, &PathBuf)>,
    ) -> anyhow::Result<Vec<Tried>> {
        let python = self_test::Python::new(self.python.first().map_or_else(find_python, |given| interpreter(given)));
        let mut tried = Vec::new();
        for trial in Trial::ALL {
            tell(&format!("trying {} in a child process", trial.name()));
            tried.push(self_test::run_trial(trial, &python, &examination.machine, &tried)?);
            if let Some((bundle, path)) = &mut bundle {
                let file = json!({ "schema": 1, "self_test": self_test::to_json(&tried) });
                bundle.add_json("self-test.json", &file);
                write_bundle(bundle, path)?;
            }
        }
        Ok(tried)
    }
}

/// 0 no errors, 1 errors, 3 could not tell.
fn exit_code(examination: &Examination) -> ExitCode {
    if examination.has_errors() {
        ExitCode::from(FOUND_ERRORS)
    } else if examination.verdict == Verdict::Unknown {
        ExitCode::from(CANNOT_TELL)
    } else {
        ExitCode::SUCCESS
    }
}

fn write_bundle(bundle: &Bundle, path: &Path) -> anyhow::Result<()> {
    write_whole(path, |file| bundle.write(file))
}

/// The report for people: the verdict, what to do, what this machine has, and the findings. Outside text in it is made
/// printable.
pub(crate) fn report(examination: &Examination, style: Style, explain: bool) -> String {
    let line = wrapped(&format!("Verdict: {}", verdict(examination)), 0, 2);
    let mut text = format!("{}\n", line.replacen("Verdict", &style.paint("Verdict", Colour::Bold), 1));
    text.push_str(&what_to_do(examination, style));
    text.push('\n');
    text.push_str(&what_is_here(examination, style, explain));
    let count = |severity, noun: &str| {
        let count = examination.findings.iter().filter(|finding| finding.severity == severity).count();
        if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
    };
    let (errors, warnings) = (count(Severity::Error, "error"), count(Severity::Warning, "warning"));
    let heading = style.paint("Findings", Colour::Bold);
    let _ = writeln!(text, "\n{heading}: {errors}, {warnings}, {}", count(Severity::Info, "note"));
    for finding in &examination.findings {
        if explain {
            text.push('\n');
        }
        text.push_str(&describe_finding(finding, style, explain));
    }
    if !explain && !examination.findings.is_empty() {
        let more = "For reasons and sources: `unhang doctor --explain`. For one finding: `unhang explain ID`.";
        let _ = writeln!(text, "\n{}", wrapped(more, 0, 0));
    }
    text
}

/// What to do, in order, each with its commands.
fn what_to_do(examination: &Examination, style: Style) -> String {
    let mut text = String::new();
    let with_ground = |what: &str, ground: &str, first: usize, rest: usize| {
        let ground = format!("[{ground}]");
        let line = wrapped(&format!("{} {ground}", one_line(what)), first, rest);
        line.replacen(&ground, &style.paint(&ground, Colour::Dim), 1)
    };
    // Commands are not wrapped, because people copy them.
    let copied = |command: &str, indent: usize| {
        format!("{}{}\n", " ".repeat(indent), style.paint(&one_line(command), Colour::Cyan))
    };
    for (index, step) in steps(examination).iter().enumerate() {
        if index == 0 {
            let _ = writeln!(text, "\n{}", style.paint("What to do", Colour::Bold));
        }
        let what = format!("{}. {}", index + 1, step.what);
        if step.ways.len() > 1 {
            let _ = writeln!(text, "{}", wrapped(&one_line(&what), 2, 5));
        } else {
            let _ = writeln!(text, "{}", with_ground(&what, step.confidence.name(), 2, 5));
        }
        text.extend(step.command.iter().map(|command| copied(command, 7)));
        for (way, letter) in step.ways.iter().zip('a'..) {
            if step.ways.len() > 1 {
                let recommended = if way.recommended { "recommended: " } else { "or: " };
                let what = format!("{letter}. {recommended}{}", way.what);
                let _ = writeln!(text, "{}", with_ground(&what, way.confidence.name(), 5, 8));
            }
            let indent = if step.ways.len() > 1 { 10 } else { 7 };
            text.extend(way.commands.iter().map(|command| copied(command, indent)));
        }
    }
    if text.contains(routes::WHEEL) {
        let _ = writeln!(text, "{}", wrapped(routes::ABOUT_WHEEL, 2, 2));
    }
    text
}

fn what_is_here(examination: &Examination, style: Style, explain: bool) -> String {
    let mut text = String::new();
    let machine = &examination.machine;
    let _ = match &machine.described_by {
        Some(folder) => {
            let line = wrapped(&format!("Machine: described by the folder {}", printable(folder)), 0, 2);
            writeln!(text, "{}", line.replacen("Machine", &style.paint("Machine", Colour::Bold), 1))
        }
        None => writeln!(text, "{}", style.paint("Machine", Colour::Bold)),
    };
    for gpu in &machine.gpus {
        let _ = writeln!(text, "{}", describe_gpu(gpu, style));
    }
    if machine.gpus.is_empty() {
        let _ = writeln!(text, "  GPU     none found");
    }
    let kernel = machine.kernel.release.as_deref().unwrap_or("unknown");
    let driver = match (&machine.kernel.amdgpu_version, machine.kernel.amdgpu_loaded) {
        (Some(version), _) => format!(", amdgpu {version}"),
        (None, true) => ", the kernel's amdgpu".to_owned(),
        (None, false) => String::new(),
    };
    let _ = writeln!(text, "{}", row("kernel", &format!("{kernel}{driver}")));
    if let Some((major, minor)) = examination.software.glibc {
        let _ = writeln!(text, "  glibc   {major}.{minor}");
    }
    for rocm in &examination.software.rocm {
        let version = rocm.version.as_deref().unwrap_or("?");
        let _ = writeln!(text, "{}", row("ROCm", &format!("{version} in {}", rocm.path)));
    }
    for torch in &examination.software.torch {
        let python = torch.python.as_deref().map(|python| format!(" for Python {python}")).unwrap_or_default();
        let _ = writeln!(text, "{}", row("torch", &format!("{}{python} in {}", torch.version, torch.path)));
        if !torch.architectures.is_empty() {
            let _ = writeln!(text, "{}", row("", &format!("GPU code for {}", torch.architectures.join(", "))));
        }
        if !torch.bundled.is_empty() {
            let _ = writeln!(text, "{}", row("", &format!("bundles {}", torch.bundled.join(", "))));
        }
    }
    for framework in &examination.software.frameworks {
        let label = if framework.name == "JAX" { "JAX" } else { "TF" };
        let python = framework.python.as_deref().map(|python| format!(" for Python {python}")).unwrap_or_default();
        let words = format!("{} {}{python} in {}", framework.package, framework.version, framework.path);
        let _ = writeln!(text, "{}", row(label, &words));
    }
    if !examination.environment.is_empty() {
        let _ = writeln!(text, "\n{}", style.paint("Environment", Colour::Bold));
        for setting in &examination.environment {
            let value: String = setting.value.chars().take(200).collect();
            let _ = writeln!(text, "  {}={}", printable(&setting.name), one_line(&value));
            if explain {
                let _ = writeln!(text, "{}", style.paint(&wrapped(&one_line(&setting.effect), 6, 6), Colour::Dim));
            }
        }
    }
    text
}

/// A line about this machine, wrapped to the right of its label.
fn row(label: &str, words: &str) -> String {
    format!("  {label:<8}{}", wrapped(&one_line(words), 10, 10).trim_start())
}

/// Text from outside on one line.
fn one_line(text: &str) -> String {
    unhang_guard::text::printable_line(text)
}

fn describe_gpu(gpu: &Gpu, style: Style) -> String {
    let mut facts = vec![one_line(&gpu.name)];
    facts.extend(gpu.chip.clone());
    facts.extend(gpu.gfx.clone());
    facts.extend(gpu.compute_units.map(|units| format!("{units} compute units")));
    facts.extend(gpu.memory_bytes.map(|bytes| format!("{:.1} GiB", bytes as f64 / f64::from(1u32 << 30))));
    let mut text = format!("  GPU     {}", wrapped(&facts.join(", "), 10, 10).trim_start());
    let mut place = one_line(gpu.pci.as_deref().unwrap_or_default());
    let revision = gpu.revision.map(|revision| format!(" revision {revision:02x}")).unwrap_or_default();
    place.push_str(&format!(" [{:04x}:{:04x}{revision}]", gpu.vendor_id, gpu.device_id));
    if let Some(driver) = &gpu.driver {
        place.push_str(&format!(", driver {}", printable(driver)));
    }
    let _ = write!(text, "\n{}", style.paint(&wrapped(&place, 10, 10), Colour::Dim));
    if let (true, Some(reported)) = (gpu.spoofed(), &gpu.reported_gfx) {
        let _ = write!(
            text,
            "\n          {}",
            style.paint(&format!("the runtime will take it for {reported}"), Colour::Yellow)
        );
    }
    text
}

fn describe_finding(finding: &Finding, style: Style, explain: bool) -> String {
    let colour = match finding.severity {
        Severity::Error => Colour::Red,
        Severity::Warning => Colour::Yellow,
        Severity::Info => Colour::Cyan,
    };
    let head = format!("{}[{}]", finding.severity.name(), finding.id);
    let summary = wrapped(&format!("{head}: {}", one_line(&finding.summary)), 0, 2);
    let mut text = format!("{}\n", summary.replacen(&head, &style.paint(&head, colour), 1));
    if !explain {
        return text;
    }
    let _ = writeln!(
        text,
        "{}",
        wrapped(&format!("why: {} [{}]", one_line(&finding.why), finding.confidence.name()), 2, 7)
    );
    if let Some(fix) = &finding.fix {
        let _ = writeln!(text, "{}", wrapped(&format!("fix: {}", one_line(fix)), 2, 7));
    }
    for (path, lines) in places(finding) {
        let lines = if lines.is_empty() { String::new() } else { format!(":{}", ranges(&lines)) };
        let _ = writeln!(text, "  at:  {}{lines}", one_line(path));
    }
    text
}

/// The files that a finding names, each with its lines.
fn places(finding: &Finding) -> Vec<(&str, Vec<usize>)> {
    let mut grouped: Vec<(&str, Vec<usize>)> = Vec::new();
    for place in &finding.places {
        match grouped.iter_mut().find(|(path, _)| *path == place.path) {
            Some((_, lines)) => lines.extend(place.line),
            None => grouped.push((&place.path, place.line.into_iter().collect())),
        }
    }
    grouped
}

/// Lines as people write them: `4-5,8-12,26`.
fn ranges(lines: &[usize]) -> String {
    let mut spans: Vec<(usize, usize)> = Vec::new();
    for line in lines {
        match spans.last_mut() {
            Some((_, end)) if *end + 1 == *line => *end = *line,
            _ => spans.push((*line, *line)),
        }
    }
    let words =
        spans.iter().map(|(start, end)| if start == end { start.to_string() } else { format!("{start}-{end}") });
    words.collect::<Vec<_>>().join(",")
}

fn verdict(examination: &Examination) -> String {
    let words = match examination.verdict {
        Verdict::Affected if examination.machine.spoofed() => {
            "an RDNA1 card under a spoof: convolutions need protection"
        }
        Verdict::Affected => "an RDNA1 card is here: start programs with `unhang run`",
        Verdict::Healthy if examination.machine.affected() => {
            "an RDNA1 card with native code: `unhang run` works around MIOpen's failures"
        }
        Verdict::Healthy if examination.machine.gpus.iter().any(|gpu| gpu.vendor_id == AMD) => {
            "no RDNA1 card: the hardware hazards do not concern it"
        }
        Verdict::Healthy => "unhang is not needed here",
        Verdict::NoGpu => "there is no GPU",
        Verdict::Unknown => "too little could be read to tell",
    };
    format!("{} ({words})", examination.verdict.name())
}
