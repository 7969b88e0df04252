//! `unhang repair`: a copy of a file whose GPU code is safe on an RDNA1 card.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Args;
use serde::Serialize;
use unhang_isa::Chip;
use unhang_isa::audit::{Hazards, Rule};
use unhang_isa::elf::CodeObject;
use unhang_isa::repair::{FunctionRepair, Options, Treatment};
use unhang_objects::repair::repair;
use unhang_objects::{Found, Size, WalkEvent, rewrite, walk};

use super::audit::by_name;
use super::text::counted;
use super::whole_file::{belongs_to_the_system, check_folder, make_folder, write_whole};
use crate::output::{self, Colour, Style, printable, printed};

/// Write a copy of a file whose gfx1030 code is safe on an RDNA1 card.
///
/// Code objects (.co, .hsaco), bundles and MIOpen's kernel databases (.ukdb, .kdb) are repaired completely: functions that
/// need room for work-arounds get a new layout. In shared libraries no size may change, so only a part can be repaired, and nothing that
/// is compressed. --extract takes code objects out of any container, wheels and folders among them, and repairs them completely. The file
/// itself is never changed.
#[derive(Args)]
#[command(after_help = "\
Examples:
  unhang repair kernels.co -o kernels.safe.co
  unhang repair ~/.cache/miopen/2.20.0/gfx1030_18.ukdb -o /tmp/gfx1030_18.ukdb
  unhang repair libkernels.so -o libkernels.safe.so --functions
  unhang repair some.whl --extract objects/ --json > report.json

Exit codes:
  0  nothing unsafe is left
  1  something unsafe is left
  2  wrong usage, or a file could not be read or written
  3  there is no code for another chip to repair")]
pub(crate) struct Repair {
    /// The file to repair; with --extract also a folder or an archive.
    file: PathBuf,
    /// Where to write the repaired copy.
    #[arg(short, long, value_name = "OUT", required_unless_present = "extract", conflicts_with = "extract")]
    output: Option<PathBuf>,
    /// Write each repaired code object into this folder instead.
    #[arg(long, value_name = "FOLDER")]
    extract: Option<PathBuf>,
    /// The chip on which the code will run.
    #[arg(long, visible_alias = "arch", default_value = "gfx1010", value_name = "CHIP")]
    chip: Chip,
    /// Change nothing in size, even where the container would allow it.
    #[arg(long)]
    keep_size: bool,
    /// List every function that was changed or in which something is left.
    #[arg(long)]
    functions: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Default, Serialize)]
struct Report {
    input: String,
    output: String,
    chip: String,
    objects: Vec<ObjectReport>,
    totals: Totals,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    errors: Vec<String>,
}

#[derive(Serialize)]
struct ObjectReport {
    target: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    output: Option<String>,
    functions: Vec<FunctionReport>,
    /// Why the object as a whole was left unchanged.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

fn treatment_by_name<S: serde::Serializer>(treatment: &Treatment, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(treatment.name())
}

#[derive(Serialize)]
struct FunctionReport {
    name: String,
    kernel: bool,
    #[serde(serialize_with = "treatment_by_name")]
    treatment: Treatment,
    inserted: u32,
    compute_unit_mode: bool,
    #[serde(serialize_with = "by_name")]
    before: Hazards,
    #[serde(serialize_with = "by_name")]
    after: Hazards,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

#[derive(Default, Serialize)]
struct Totals {
    functions: usize,
    laid_out_anew: usize,
    repaired_in_place: usize,
    left_unsafe: usize,
    inserted: u64,
    #[serde(serialize_with = "by_name")]
    before: Hazards,
    #[serde(serialize_with = "by_name")]
    after: Hazards,
}

impl Repair {
    /// Runs the command.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let mut report =
            Report { input: self.file.display().to_string(), chip: self.chip.to_string(), ..Report::default() };
        match (&self.output, &self.extract) {
            (Some(output), _) => self.write_copy(output, &mut report)?,
            (None, Some(folder)) => self.write_objects(folder, &mut report)?,
            (None, None) => bail!("neither --output nor --extract was given"),
        }
        let code = report.exit_code();
        if self.json {
            output::print_json(&report)?;
        } else {
            printed(self.print(&report))?;
        }
        Ok(ExitCode::from(code))
    }

    fn write_copy(&self, output: &Path, report: &mut Report) -> anyhow::Result<()> {
        let input = fs::metadata(&self.file).with_context(|| format!("cannot read {}", self.file.display()))?;
        if let Ok(existing) = fs::metadata(output)
            && (existing.dev(), existing.ino()) == (input.dev(), input.ino())
        {
            bail!(
                anyhow::anyhow!("hint: name another file with -o, and put it in place yourself once you trust it")
                    .context(format!("{} is the input itself, which is never overwritten", output.display()))
            );
        }
        if input.is_dir() {
            bail!(
                anyhow::anyhow!("hint: --extract FOLDER takes the code objects out of a folder and repairs them there")
                    .context(format!("{} is a folder; only a file can be copied", self.file.display()))
            );
        }
        if fs::metadata(output).is_ok_and(|existing| !existing.is_file()) || belongs_to_the_system(output) {
            bail!("{} is not a plain file, and the copy would take its place; name a file with -o", output.display());
        }
        check_folder(output).with_context(|| format!("cannot write {}", output.display()))?;
        report.output = output.display().to_string();
        let unreadable = rewrite(&self.file, output, &mut |found| self.repair(found, report))
            .with_context(|| format!("cannot repair {} into {}", self.file.display(), output.display()))
            .map_err(|error| {
                error.context("hint: --extract FOLDER repairs the code objects of any container one by one")
            })?;
        let copied = unreadable.into_iter().map(|what| format!("could not be read, and is copied as it is: {what}"));
        report.errors.extend(copied);
        Ok(())
    }

    fn write_objects(&self, folder: &Path, report: &mut Report) -> anyhow::Result<()> {
        report.output = folder.display().to_string();
        let mut container = String::new();
        let mut failure = None;
        walk(&self.file, &mut |event| match event {
            WalkEvent::File { path } => container = file_name(path),
            WalkEvent::Object { target, bytes } => {
                let before = report.objects.len();
                let repaired = self.repair(Found { target, bytes, size: Size::Any }, report);
                let Some(object) = report.objects.get_mut(before) else { return };
                let target = unhang_guard::text::file_name(&object.target);
                let path = folder.join(format!("{container}.{before}.{target}.co"));
                let written = make_folder(folder)
                    .and_then(|()| write_whole(&path, |file| file.write_all(repaired.as_deref().unwrap_or(bytes))));
                match written {
                    Ok(()) => object.output = Some(path.display().to_string()),
                    Err(error) => failure = failure.take().or(Some(error)),
                }
            }
            WalkEvent::OtherTarget { .. } => {}
            WalkEvent::Unreadable { path, error } => report.errors.push(format!("{path}: {error}")),
        })
        .with_context(|| format!("cannot read {}", self.file.display()))?;
        failure.map_or(Ok(()), Err)
    }

    /// Repairs a code object and records what was done. Skips code for other families, and code for RDNA1 itself in
    /// which nothing was found, in functions or across calls.
    fn repair(&self, found: Found<'_>, report: &mut Report) -> Option<Vec<u8>> {
        let is_native = CodeObject::chip_of(found.bytes).is_some_and(Chip::is_rdna1);
        let options = Options { chip: self.chip, keep_size: self.keep_size || found.size != Size::Any };
        let mut object =
            ObjectReport { target: found.target.to_owned(), output: None, functions: Vec::new(), reason: None };
        let mut bytes = None;
        match repair(found.bytes, options) {
            Ok(repaired) => {
                let concerns = |function: &FunctionRepair| {
                    !is_native || function.before.total() > 0 || function.treatment != Treatment::Untouched
                };
                if !repaired.functions.iter().any(concerns) {
                    return None;
                }
                object.target = repaired.target?.to_string();
                object.functions = repaired.functions.into_iter().map(function_report).collect();
                bytes = repaired.bytes;
            }
            Err(error) => object.reason = Some(error.to_string()),
        }
        if found.size == Size::Fixed {
            object.reason = Some("it is compressed inside a shared library and cannot be changed there".to_owned());
            for function in &mut object.functions {
                (function.after, function.treatment, function.inserted) = (function.before, Treatment::Untouched, 0);
                (function.compute_unit_mode, function.reason) = (false, None);
            }
            bytes = None;
        }
        for function in &object.functions {
            report.totals.add(function);
        }
        report.objects.push(object);
        bytes
    }

    fn print(&self, report: &Report) -> io::Result<()> {
        let style = Style::for_stream(&io::stdout());
        let mut out = io::stdout().lock();
        let totals = &report.totals;
        for object in &report.objects {
            for function in object.functions.iter().filter(|function| self.functions && function.is_worth_telling()) {
                function.print(&mut out, style, &object.target)?;
            }
        }
        for (reason, count) in grouped(report.objects.iter().filter_map(|object| object.reason.as_deref())) {
            writeln!(out, "{count} code objects: {}", style.paint(&printable(reason), Colour::Yellow))?;
        }
        for error in &report.errors {
            writeln!(out, "{}", style.paint(&printable(error), Colour::Red))?;
        }
        if report.objects.is_empty() {
            writeln!(out, "{} has no gfx10 code for chips other than RDNA1.", printable(&report.input))?;
            return Ok(());
        }
        writeln!(
            out,
            "{}, {}: {} given a new layout with {}, {} repaired in place.",
            counted(report.objects.len(), "code object"),
            counted(totals.functions, "function"),
            totals.laid_out_anew,
            counted(totals.inserted, "insertion"),
            totals.repaired_in_place
        )?;
        for rule in Rule::ALL.into_iter().filter(|&rule| totals.before.get(rule) > 0) {
            writeln!(out, "  {:22} {:>8} → {}", rule.name(), totals.before.get(rule), totals.after.get(rule))?;
        }
        let functions = report.objects.iter().flat_map(|object| &object.functions);
        for function in functions.clone().filter(|function| function.after.get(Rule::BufferRange) > 0) {
            writeln!(out, "  {} still reads zeros and writes nothing", printable(&function.name))?;
        }
        for (reason, count) in grouped(functions.filter_map(|function| function.reason.as_deref())) {
            writeln!(out, "  left in {}: {}", counted(count, "function"), printable(reason))?;
        }
        if totals.after.total() == 0 {
            let safe = format!("nothing unsafe on {} is left", report.chip);
            writeln!(
                out,
                "{} Written to {}.",
                style.paint(&format!("{safe}."), Colour::Green),
                printable(&report.output)
            )?;
        } else {
            let findings = match totals.after.total() {
                1 => "1 finding is".to_owned(),
                count => format!("{count} findings are"),
            };
            let left = format!("{findings} left in {}.", counted(totals.left_unsafe, "function"));
            writeln!(out, "{} Written to {}.", style.paint(&left, Colour::Yellow), printable(&report.output))?;
            let hint = if self.extract.is_none() && !self.keep_size && totals.laid_out_anew == 0 {
                "--extract FOLDER repairs the code objects completely; the shield does it as they are loaded."
            } else {
                "--functions says which and why."
            };
            writeln!(out, "{} {hint}", style.paint("hint:", Colour::Cyan))?;
        }
        Ok(())
    }
}

/// How often each text occurs.
fn grouped<'t>(texts: impl Iterator<Item = &'t str>) -> BTreeMap<&'t str, usize> {
    let mut counts = BTreeMap::new();
    for text in texts {
        *counts.entry(text).or_default() += 1;
    }
    counts
}

fn function_report(function: FunctionRepair) -> FunctionReport {
    FunctionReport {
        name: function.name,
        kernel: function.is_kernel,
        treatment: function.treatment,
        inserted: function.inserted,
        compute_unit_mode: function.mode_changed,
        before: function.before,
        after: function.after,
        reason: function.reason.map(|reason| reason.to_string()),
    }
}

impl FunctionReport {
    fn is_worth_telling(&self) -> bool {
        self.treatment != Treatment::Untouched || self.compute_unit_mode || self.reason.is_some()
    }

    fn print(&self, out: &mut impl Write, style: Style, target: &str) -> io::Result<()> {
        let name = style.paint(&printable(&self.name), Colour::Cyan);
        write!(out, "  {target} {name}: {}", self.treatment.name())?;
        write!(out, ", {} before, {} after", counted(self.before.total(), "finding"), self.after.total())?;
        if self.compute_unit_mode {
            write!(out, ", workgroup-processor mode turned off")?;
        }
        match &self.reason {
            Some(reason) => writeln!(out, "; {}", style.paint(&printable(reason), Colour::Yellow)),
            None => writeln!(out),
        }
    }
}

impl Totals {
    fn add(&mut self, function: &FunctionReport) {
        self.functions += 1;
        self.laid_out_anew += (function.treatment == Treatment::Moved) as usize;
        self.repaired_in_place += (function.treatment == Treatment::InPlace) as usize;
        self.left_unsafe += (function.after.total() > 0) as usize;
        self.inserted += function.inserted as u64;
        self.before.add(&function.before);
        self.after.add(&function.after);
    }
}

impl Report {
    fn exit_code(&self) -> u8 {
        let unreadable = || self.objects.iter().any(|object| object.reason.is_some() && object.functions.is_empty());
        let undecoded = || {
            let functions = || self.objects.iter().flat_map(|object| &object.functions);
            functions().any(|function| function.reason.is_some())
        };
        if !self.errors.is_empty() || unreadable() {
            output::FAILED
        } else if self.totals.after.total() > 0 || undecoded() {
            output::FOUND_ERRORS
        } else if self.objects.is_empty() {
            output::CANNOT_TELL
        } else {
            0
        }
    }
}

/// The last part of a path, including archives' members, as part of another file's name.
fn file_name(path: &str) -> String {
    unhang_guard::text::file_name(path.rsplit(['/', '!']).next().unwrap_or(path))
}
