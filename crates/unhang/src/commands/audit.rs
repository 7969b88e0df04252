//! `unhang audit`: which kernels in these files are unsafe on which chip, and why.

use std::collections::BTreeSet;
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde::Serialize;
use serde_json::{Map, Value};
use unhang_isa::audit::{Finding, Hazards, Rule};
use unhang_isa::elf::CodeObject;
use unhang_isa::{Chip, Program};
use unhang_objects::survey::{FunctionSurvey, ObjectSurvey, Options, survey};
use unhang_objects::{WalkEvent, walk};

use super::text::{counted, wrapped};
use crate::output::{self, Colour, Style, printable, printed};

/// Find machine code that is unsafe on an RDNA1 card.
///
/// Reads code objects (.co, .hsaco), shared libraries with fat binaries, offload bundles, MIOpen's kernel databases
/// (.ukdb, .kdb), wheels and whole folders. In every gfx10 function it looks for the places where a compiler for the
/// chip would have inserted a work-around.
#[derive(Args)]
#[command(after_help = "\
Examples:
  unhang audit ~/.cache/miopen/2.16.0/gfx1030_18.ukdb
  unhang audit --target gfx1030 --explain /opt/rocm/lib
  unhang audit --json libkernels.so > findings.json

Exit codes:
  0  nothing unsafe was found
  1  something unsafe was found
  2  wrong usage, or a file could not be read
  3  there is no gfx10 code to look at")]
pub(crate) struct Audit {
    /// Files or folders to look into.
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// The chip on which the code would run.
    #[arg(long, visible_alias = "arch", default_value = "gfx1010", value_name = "CHIP")]
    chip: Chip,
    /// Look only at code that was compiled for this chip.
    #[arg(long, value_name = "CHIP")]
    target: Option<Chip>,
    /// List the kernels that have findings, and not only the files.
    #[arg(long)]
    kernels: bool,
    /// Explain each kind of finding in plain words.
    #[arg(long)]
    explain: bool,
    /// Show the instructions around up to N findings of each kernel.
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "3")]
    sites: Option<usize>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// The findings in one file.
#[derive(Default, Serialize)]
struct FileReport {
    path: String,
    objects: Vec<ObjectReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(skip)]
    other_targets: BTreeSet<String>,
}

#[derive(Serialize)]
struct ObjectReport {
    target: String,
    kernels: Vec<KernelReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

#[derive(Serialize)]
struct KernelReport {
    name: String,
    #[serde(serialize_with = "by_name")]
    hazards: Hazards,
    /// Places that are unsafe only if a caller or a callee left something pending; not counted among the hazards.
    #[serde(skip_serializing_if = "is_zero")]
    across_calls: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    sites: Vec<SiteReport>,
}

#[derive(Serialize)]
struct SiteReport {
    rule: &'static str,
    severity: &'static str,
    offset: u32,
    explanation: String,
    code: Vec<String>,
}

#[derive(Serialize)]
struct Report {
    files: Vec<FileReport>,
    #[serde(serialize_with = "by_name")]
    totals: Hazards,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

pub(super) fn by_name<S: serde::Serializer>(hazards: &Hazards, serializer: S) -> Result<S::Ok, S::Error> {
    let map: Map<String, Value> =
        Rule::ALL.into_iter().map(|rule| (rule.name().to_owned(), hazards.get(rule).into())).collect();
    map.serialize(serializer)
}

impl Audit {
    /// Runs the command.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let mut files: Vec<FileReport> = Vec::new();
        for path in &self.files {
            let first = files.len();
            let result = walk(path, &mut |event| self.take(event, &mut files));
            if let Err(error) = result {
                let message = error.to_string();
                match files[first..].last_mut() {
                    Some(file) => file.error = Some(message),
                    None => files.push(FileReport {
                        path: path.display().to_string(),
                        error: Some(message),
                        ..FileReport::default()
                    }),
                }
            }
        }
        let mut totals = Hazards::default();
        for kernel in files.iter().flat_map(|file| &file.objects).flat_map(|object| &object.kernels) {
            totals.add(&kernel.hazards);
        }
        let report = Report { files, totals };
        let code = report.exit_code();
        if self.json {
            output::print_json(&report)?;
        } else {
            printed(self.print(&report))?;
        }
        Ok(ExitCode::from(code))
    }

    fn take(&self, event: WalkEvent<'_>, files: &mut Vec<FileReport>) {
        match event {
            WalkEvent::File { path } => {
                if io::stderr().is_terminal() {
                    let _ = write!(io::stderr(), "\r\x1b[Klooking at {}", printable(path));
                    let _ = io::stderr().flush();
                }
                files.push(FileReport { path: path.to_owned(), ..FileReport::default() });
            }
            WalkEvent::Object { target, bytes } => {
                let Some(file) = files.last_mut() else { return };
                file.take_object(target, bytes, self);
            }
            WalkEvent::OtherTarget { target } => {
                if let Some(file) = files.last_mut() {
                    file.other_targets.insert(target.to_owned());
                }
            }
            WalkEvent::Unreadable { path, error } => {
                let message = error.to_string();
                match files.last_mut().filter(|file| file.path == path) {
                    Some(file) => file.error = Some(message),
                    None => {
                        files.push(FileReport { path: path.to_owned(), error: Some(message), ..FileReport::default() })
                    }
                }
            }
        }
    }

    fn print(&self, report: &Report) -> io::Result<()> {
        if io::stderr().is_terminal() {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
        let style = Style::for_stream(&io::stdout());
        let mut out = io::stdout().lock();
        for file in &report.files {
            if file.objects.is_empty() && file.error.is_none() && self.files.len() + report.files.len() > 2 {
                continue;
            }
            file.print(&mut out, style, self)?;
        }
        report.print_totals(&mut out, style, self)
    }
}

impl FileReport {
    fn take_object(&mut self, declared: &str, bytes: &[u8], command: &Audit) {
        // Reading all code of a large library for another chip takes longer than the audit itself.
        if command.target.is_some_and(|wanted| CodeObject::chip_of(bytes).is_some_and(|found| found != wanted)) {
            return;
        }
        let options = Options { chip: command.chip, keep_findings: command.sites.is_some() };
        match survey(bytes, options) {
            Ok(ObjectSurvey { target: None, .. }) => {
                self.other_targets.insert(if declared.is_empty() { "another family" } else { declared }.to_owned());
            }
            Ok(ObjectSurvey { target: Some(target), functions, .. }) => {
                if command.target.is_some_and(|wanted| wanted != target) {
                    return;
                }
                let kernels = functions.into_iter().map(|function| kernel_report(function, bytes, command)).collect();
                self.objects.push(ObjectReport { target: target.to_string(), kernels, error: None });
            }
            Err(error) => {
                let target = if declared.is_empty() { "unknown" } else { declared }.to_owned();
                self.objects.push(ObjectReport { target, kernels: Vec::new(), error: Some(error.to_string()) });
            }
        }
    }

    fn print(&self, out: &mut impl Write, style: Style, command: &Audit) -> io::Result<()> {
        writeln!(out, "{}", style.paint(&printable(&self.path), Colour::Bold))?;
        if let Some(error) = &self.error {
            let line = wrapped(&format!("error: {}", printable(error)), 2, 6);
            writeln!(out, "{}", line.replacen("error:", &style.paint("error:", Colour::Red), 1))?;
        }
        for object in &self.objects {
            let mut sum = Hazards::default();
            for kernel in &object.kernels {
                sum.add(&kernel.hazards);
            }
            let (all, bad) = (object.kernels.len(), object.kernels.iter().filter(|it| it.hazards.total() > 0).count());
            let found = if bad == 0 { String::new() } else { format!(": {}", in_words(&sum)) };
            let line = format!("{}: {bad} of {} unsafe{found}", object.target, counted(all, "function"));
            writeln!(out, "{}", wrapped(&printable(&line), 2, 6))?;
        }
        for object in &self.objects {
            if let Some(error) = &object.error {
                writeln!(out, "{}", wrapped(&printable(&format!("{}: {error}", object.target)), 2, 6))?;
            }
            for kernel in &object.kernels {
                if let Some(error) = &kernel.error {
                    let line = format!("{}: {} was not looked at: {error}", object.target, kernel.name);
                    writeln!(out, "{}", wrapped(&printable(&line), 2, 6))?;
                } else if kernel.hazards.total() > 0 && (command.kernels || command.sites.is_some()) {
                    kernel.print(out, style, &object.target)?;
                }
            }
        }
        if !self.other_targets.is_empty() {
            let names: Vec<_> = self.other_targets.iter().map(|name| printable(name)).collect();
            let line = wrapped(&format!("not looked at: {}", names.join(", ")), 2, 6);
            writeln!(out, "{}", style.paint(&line, Colour::Dim))?;
        }
        writeln!(out)
    }
}

/// The broken rules, and how often each was broken.
fn in_words(hazards: &Hazards) -> String {
    let found = Rule::ALL.into_iter().filter(|&rule| hazards.get(rule) > 0);
    found.map(|rule| format!("{} {}", rule.name(), hazards.get(rule))).collect::<Vec<_>>().join(", ")
}

impl KernelReport {
    fn print(&self, out: &mut impl Write, style: Style, target: &str) -> io::Result<()> {
        let name = printable(&self.name);
        let line = wrapped(&format!("{target} {name}: {}", in_words(&self.hazards)), 2, 6);
        writeln!(out, "{}", line.replacen(&name, &style.paint(&name, Colour::Cyan), 1))?;
        for site in &self.sites {
            writeln!(out, "    {} ({}) at {:#x}", style.paint(site.rule, Colour::Yellow), site.severity, site.offset)?;
            for line in &site.code {
                writeln!(out, "      {line}")?;
            }
            writeln!(out, "{}", style.paint(&wrapped(&site.explanation, 6, 6), Colour::Dim))?;
        }
        Ok(())
    }
}

fn kernel_report(function: FunctionSurvey, object: &[u8], command: &Audit) -> KernelReport {
    let sites = match command.sites {
        Some(limit) if !function.findings.is_empty() => describe_sites(&function, object, limit),
        _ => Vec::new(),
    };
    KernelReport {
        name: function.name,
        hazards: function.hazards,
        across_calls: function.across_calls,
        error: function.error,
        sites,
    }
}

/// The first findings of a function with the code around them.
fn describe_sites(function: &FunctionSurvey, object: &[u8], limit: usize) -> Vec<SiteReport> {
    let Ok(object) = CodeObject::parse(object) else { return Vec::new() };
    let Some(chip) = object.chip() else { return Vec::new() };
    let Some(found) = object.functions.iter().find(|candidate| candidate.name == function.name) else {
        return Vec::new();
    };
    let Ok(program) = Program::decode(found.code, chip, object.mode_of(found).wave64) else { return Vec::new() };
    function.findings.iter().take(limit).map(|finding| describe_site(finding, &program)).collect()
}

fn describe_site(finding: &Finding, program: &Program) -> SiteReport {
    SiteReport {
        rule: finding.rule.name(),
        severity: finding.severity.name(),
        offset: finding.offset,
        explanation: finding.explanation(),
        code: code_around(program, finding.index as usize, 6, 2),
    }
}

/// An instruction, marked, with some of those before and after it.
pub(super) fn code_around(program: &Program, at: usize, before: usize, behind: usize) -> Vec<String> {
    let last = (at + behind).min(program.instructions.len().saturating_sub(1));
    (at.saturating_sub(before)..=last)
        .map(|index| {
            let mark = if index == at { ">" } else { " " };
            format!("{mark} {:6x}  {}", program.offsets[index], program.instructions[index].text(program.wave64))
        })
        .collect()
}

impl Report {
    fn exit_code(&self) -> u8 {
        let objects = || self.files.iter().flat_map(|file| &file.objects);
        let unreadable = self.files.iter().any(|file| file.error.is_some())
            || objects().any(|object| object.error.is_some())
            || objects().flat_map(|object| &object.kernels).any(|kernel| kernel.error.is_some());
        if unreadable {
            output::FAILED
        } else if self.totals.total() > 0 {
            output::FOUND_ERRORS
        } else if objects().next().is_none() {
            output::CANNOT_TELL
        } else {
            0
        }
    }

    fn print_totals(&self, out: &mut impl Write, style: Style, command: &Audit) -> io::Result<()> {
        let kernels = || self.files.iter().flat_map(|file| &file.objects).flat_map(|object| &object.kernels);
        let objects: usize = self.files.iter().map(|file| file.objects.len()).sum();
        let functions = kernels().count();
        let bad = kernels().filter(|kernel| kernel.hazards.total() > 0).count();
        if objects == 0 {
            let what = command.target.map_or("gfx10 code".to_owned(), |target| format!("{target} code"));
            // Nothing is known about files that could not be read.
            return match self.files.iter().all(|file| file.error.is_none()) {
                true => writeln!(out, "There is no {what} in these files."),
                false => Ok(()),
            };
        }
        let all = counted(functions, "function");
        let (verdict, colour) = match bad {
            0 => (format!("none of {all} is unsafe on {}", command.chip), Colour::Green),
            1 => (format!("1 of {all} is unsafe on {}", command.chip), Colour::Red),
            _ => (format!("{bad} of {all} are unsafe on {}", command.chip), Colour::Red),
        };
        let (objects, findings) = (counted(objects, "code object"), counted(self.totals.total(), "finding"));
        let line = wrapped(&format!("Total: {verdict} ({objects}, {findings})."), 0, 2);
        writeln!(out, "{}", line.replacen(&verdict, &style.paint(&verdict, colour), 1))?;
        let across: u64 = kernels().map(|kernel| kernel.across_calls).sum();
        if across > 0 {
            let line = format!(
                "Not counted: {} unsafe only if a function on the other side of a call left something \
                 pending. Compilers do not look across calls, so native code has such places too.",
                if across == 1 { "1 place that is".to_owned() } else { format!("{across} places that are") }
            );
            writeln!(out, "{}", wrapped(&line, 0, 2))?;
        }
        for rule in Rule::ALL {
            let count = self.totals.get(rule);
            if count == 0 {
                continue;
            }
            writeln!(out, "  {:22} {count:>8}", rule.name())?;
            if command.explain {
                writeln!(out, "{}", wrapped(rule.explanation(), 6, 6))?;
            }
        }
        if bad > 0 && !command.explain {
            writeln!(out, "{} --explain says what each of them means.", style.paint("hint:", Colour::Cyan))?;
        }
        Ok(())
    }
}
