//! `unhang doctor`: what is here, what is wrong, what to do.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use unhang_machine::{Bundle, Examination, Finding, Gpu, Options, Severity, System, Verdict, examine};

use super::machine_arguments::MachineArguments;
use super::text::{print_safe_json, print_text, wrapped};
use crate::output::{CANNOT_TELL, Colour, FOUND_ERRORS, Style, printable};

/// What is here, what is wrong, what to do. Reads only; needs neither root nor a GPU.
#[derive(Args)]
#[command(after_help = "\
Exit codes: 0 no errors, 1 errors were found, 2 wrong usage, 3 could not tell.

Examples:
  unhang doctor
  unhang doctor --python ~/venv/bin/python
  unhang doctor --bundle machine.tar.gz          # for a bug report; holds no user or host names
  tar xf machine.tar.gz && unhang doctor --root machine")]
pub struct Doctor {
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    machine: MachineArguments,
    /// Look for torch in this interpreter's or environment's packages too; may be repeated.
    #[arg(long, value_name = "PATH")]
    python: Vec<PathBuf>,
    /// Also write what was read to a tar file, for a bug report; without user names or host names.
    #[arg(long, value_name = "FILE.tar.gz")]
    bundle: Option<PathBuf>,
}

impl Doctor {
    /// Runs the command.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let system = self.machine.system()?;
        let options = Options { pythons: self.python.clone() };
        let examination = match &self.bundle {
            Some(path) => write_bundle(system, &options, path)?,
            None => examine(&system, &options),
        };
        if self.json {
            print_safe_json(&examination.to_json())?;
        } else {
            print_text(&report(&examination, Style::for_stream(&std::io::stdout())))?;
        }
        Ok(exit_code(&examination))
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

fn write_bundle(system: System, options: &Options, path: &PathBuf) -> anyhow::Result<Examination> {
    let bundle = Bundle::collect(system, options);
    let file = std::fs::File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
    bundle.write(file).with_context(|| format!("cannot write {}", path.display()))?;
    eprintln!("wrote {} ({} files); look through it before you send it", path.display(), bundle.files.len());
    Ok(bundle.examination)
}

/// The report for people. Everything in it that came from outside is made printable.
pub(crate) fn report(examination: &Examination, style: Style) -> String {
    let mut text = String::new();
    let machine = &examination.machine;
    let _ = match &machine.described_by {
        Some(folder) => {
            writeln!(text, "{}: described by the folder {}", style.paint("Machine", Colour::Bold), printable(folder))
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
        (None, true) => ", amdgpu of the kernel".to_owned(),
        (None, false) => String::new(),
    };
    let _ = writeln!(text, "  kernel  {}{}", printable(kernel), printable(&driver));
    if let Some((major, minor)) = examination.software.glibc {
        let _ = writeln!(text, "  glibc   {major}.{minor}");
    }
    for rocm in &examination.software.rocm {
        let version = rocm.version.as_deref().unwrap_or("?");
        let _ = writeln!(text, "  ROCm    {} in {}", printable(version), printable(&rocm.path));
    }
    for torch in &examination.software.torch {
        let python = torch.python.as_deref().map(|python| format!(" for Python {python}")).unwrap_or_default();
        let _ = writeln!(
            text,
            "  torch   {}{} in {}",
            printable(&torch.version),
            printable(&python),
            printable(&torch.path)
        );
        if !torch.architectures.is_empty() {
            let _ = writeln!(text, "          GPU code for {}", printable(&torch.architectures.join(", ")));
        }
        if !torch.bundled.is_empty() {
            let _ = writeln!(text, "          brought {}", printable(&torch.bundled.join(", ")));
        }
    }
    if !examination.environment.is_empty() {
        let _ = writeln!(text, "\n{}", style.paint("Environment", Colour::Bold));
        for setting in &examination.environment {
            let value: String = setting.value.chars().take(200).collect();
            let _ = writeln!(text, "  {}={}", printable(&setting.name), one_line(&value));
            let _ = writeln!(text, "{}", style.paint(&wrapped(&one_line(&setting.effect), 6, 6), Colour::Dim));
        }
    }
    let count = |severity| examination.findings.iter().filter(|finding| finding.severity == severity).count();
    let _ = writeln!(
        text,
        "\n{}: {} errors, {} warnings, {} notes",
        style.paint("Findings", Colour::Bold),
        count(Severity::Error),
        count(Severity::Warning),
        count(Severity::Info)
    );
    for finding in &examination.findings {
        let _ = write!(text, "\n{}", describe_finding(finding, style));
    }
    let _ = writeln!(text, "\n{}: {}", style.paint("Verdict", Colour::Bold), verdict(examination));
    text
}

/// Text from outside on one line.
fn one_line(text: &str) -> String {
    printable(text).replace(['\n', '\t'], " ")
}

fn describe_gpu(gpu: &Gpu, style: Style) -> String {
    let mut facts = vec![one_line(&gpu.name)];
    facts.extend(gpu.chip.clone());
    facts.extend(gpu.gfx.clone());
    facts.extend(gpu.compute_units.map(|units| format!("{units} compute units")));
    facts.extend(gpu.memory_bytes.map(|bytes| format!("{:.1} GiB", bytes as f64 / f64::from(1u32 << 30))));
    let mut text = format!("  GPU     {}", facts.join(", "));
    let mut place = one_line(gpu.pci.as_deref().unwrap_or_default());
    let revision = gpu.revision.map(|revision| format!(" revision {revision:02x}")).unwrap_or_default();
    place.push_str(&format!(" [{:04x}:{:04x}{revision}]", gpu.vendor_id, gpu.device_id));
    if let Some(driver) = &gpu.driver {
        place.push_str(&format!(", driver {}", printable(driver)));
    }
    let _ = write!(text, "\n          {}", style.paint(&place, Colour::Dim));
    if let (true, Some(reported)) = (gpu.spoofed(), &gpu.reported_gfx) {
        let _ = write!(
            text,
            "\n          {}",
            style.paint(&format!("the runtime will take it for {reported}"), Colour::Yellow)
        );
    }
    text
}

fn describe_finding(finding: &Finding, style: Style) -> String {
    let colour = match finding.severity {
        Severity::Error => Colour::Red,
        Severity::Warning => Colour::Yellow,
        Severity::Info => Colour::Cyan,
    };
    let head = format!("{}[{}]", finding.severity.name(), finding.id);
    let summary = wrapped(&format!("{head}: {}", one_line(&finding.summary)), 0, 2);
    let mut text = format!("{}\n", summary.replacen(&head, &style.paint(&head, colour), 1));
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

/// The files that a finding speaks of, each with its lines.
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
        Verdict::Affected => "an RDNA1 card is here: unhang is for it",
        Verdict::Healthy if examination.machine.affected() => "an RDNA1 card, and all code for it is native",
        Verdict::Healthy => "unhang is not needed here",
        Verdict::NoGpu => "there is no GPU",
        Verdict::Unknown => "too little could be read to tell",
    };
    format!("{} ({words})", examination.verdict.name())
}
