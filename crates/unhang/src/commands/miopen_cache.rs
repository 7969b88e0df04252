//! `unhang miopen-cache`: inspect, verify and repair MIOpen's user databases.

use std::fmt::Write as _;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, Subcommand};
use serde_json::json;
use unhang_machine::System;
use unhang_machine::miopen::{self, Checked, DatabaseKind};

use super::consent::Consent;
use super::machine_arguments::MachineArguments;
use super::text::{counted, print_safe_json, print_text, wrapped};
use crate::output::{Colour, FOUND_ERRORS, Style, printable};

/// List, verify and repair MIOpen's user databases: its choices, tunings and compiled kernels.
#[derive(Args)]
#[command(after_help = "\
Examples:
  unhang miopen-cache list --records
  unhang miopen-cache verify
  unhang miopen-cache repair --narrowed --dry-run
  unhang audit ~/.cache/miopen/2.20.0/gfx1030_18.ukdb    # are its kernels safe?

Exit codes:
  0  all is well
  1  damage was found (verify)
  2  wrong usage, or not done")]
pub(crate) struct MiopenCache {
    #[command(subcommand)]
    command: CacheCommand,
}

#[derive(Subcommand)]
enum CacheCommand {
    List(List),
    Verify(Verify),
    Repair(Repair),
}

/// List the databases; with --records each problem and each kernel.
#[derive(Args)]
#[command(after_help = "Example:\n  unhang miopen-cache list --records")]
struct List {
    /// Each problem with its solvers, each kernel with its size.
    #[arg(long)]
    records: bool,
    #[command(flatten)]
    common: Common,
}

/// Read everything: each line, each page, each kernel with its md5.
#[derive(Args)]
#[command(after_help = "Example:\n  unhang miopen-cache verify")]
struct Verify {
    #[command(flatten)]
    common: Common,
}

/// Remove damaged records, and keep a backup next to the file.
#[derive(Args)]
#[command(after_help = "Example:\n  unhang miopen-cache repair --narrowed --dry-run")]
struct Repair {
    /// Also remove choices that MIOpen made while algorithms were disabled.
    #[arg(long)]
    narrowed: bool,
    /// Show what would be done, and do nothing.
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    consent: Consent,
    #[command(flatten)]
    common: Common,
}

#[derive(Args)]
struct Common {
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    machine: MachineArguments,
}

impl MiopenCache {
    /// Runs the command.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        match self.command {
            CacheCommand::List(command) => command.run(),
            CacheCommand::Verify(command) => command.run(),
            CacheCommand::Repair(command) => command.run(),
        }
    }
}

/// The searched place, for the head of every output.
fn place(system: &System) -> String {
    if system.is_folder() {
        format!("the machine described by the folder {}", printable(&system.root().display().to_string()))
    } else {
        "this machine".to_owned()
    }
}

fn nothing(system: &System) -> String {
    let folders: Vec<_> =
        miopen::folders(system).iter().map(|folder| printable(&folder.display().to_string())).collect();
    let line = format!("no database of MIOpen on {}; looked in {}", place(system), folders.join(", "));
    wrapped(&line, 0, 2) + "\n"
}

fn kind(kind: DatabaseKind) -> &'static str {
    match kind {
        DatabaseKind::FindDb => "choices (find-db)",
        DatabaseKind::PerfDb => "tuning (perf-db)",
        DatabaseKind::KernelDb => "compiled kernels",
    }
}

fn as_json(checked: &[Checked], records: bool) -> serde_json::Value {
    let files: Vec<_> = checked
        .iter()
        .map(|file| {
            let mut value = serde_json::to_value(file).unwrap_or_default();
            value["narrowed"] =
                json!(file.records.iter().filter(|record| record.narrowed()).map(|it| &it.key).collect::<Vec<_>>());
            if let (false, Some(fields)) = (records, value.as_object_mut()) {
                fields.remove("records");
                fields.remove("kernels");
            }
            value
        })
        .collect();
    json!({ "schema": 1, "databases": files })
}

/// The column at which the names of solvers begin, after their times.
const SOLVER_COLUMN: usize = 19;

/// One line per database, with the requested details below it.
fn table(system: &System, checked: &[Checked], records: bool) -> String {
    let style = Style::for_stream(&std::io::stdout());
    if checked.is_empty() {
        return nothing(system);
    }
    let mut text = wrapped(&format!("MIOpen's databases on {}", place(system)), 0, 2) + "\n";
    for file in checked {
        let path = printable(&file.database.path.display().to_string());
        let _ = writeln!(text, "\n{}", style.paint(&path, Colour::Bold));
        let damaged = if file.damage.is_empty() { String::new() } else { format!(", {} damaged", file.damage.len()) };
        let narrowed = file.records.iter().filter(|record| record.narrowed()).count();
        let narrowed =
            if narrowed == 0 { String::new() } else { format!(", {narrowed} written under a narrowed set of solvers") };
        let (kind, size) = (kind(file.database.kind), file.database.size);
        let line = format!("{kind}, {size} bytes, {}{damaged}{narrowed}", counted(file.sound, "sound record"));
        let _ = writeln!(text, "{}", wrapped(&line, 2, 4));
        for damage in &file.damage {
            let at = match (damage.line, damage.row) {
                (Some(line), _) => format!("line {line}: "),
                (None, Some(row)) => format!("row {row}: "),
                (None, None) => String::new(),
            };
            let record = damage.record.as_deref().map(|record| format!(" ({})", printable(record))).unwrap_or_default();
            let line = wrapped(&format!("damaged {at}{}{record}", printable(&damage.problem)), 2, 4);
            let _ = writeln!(text, "{}", line.replacen("damaged", &style.paint("damaged", Colour::Red), 1));
        }
        if records {
            for record in &file.records {
                let problem = record.problem.as_deref().unwrap_or(&record.key);
                let mark = if record.narrowed() { " [narrowed]" } else { "" };
                let line = format!("line {}: {}{mark}", record.line, printable(problem));
                let _ = writeln!(text, "{}", wrapped(&line, 2, 4));
                for entry in &record.entries {
                    let solver = format!("{}, {} bytes of workspace", printable(&entry.solver), entry.workspace);
                    let solver = wrapped(&solver, SOLVER_COLUMN, SOLVER_COLUMN);
                    let _ = writeln!(text, "    {:>10.4} ms  {}", entry.milliseconds, solver.trim_start());
                }
            }
            for kernel in &file.kernels {
                let line = format!("row {}: {}, {} bytes", kernel.row, printable(&kernel.name), kernel.size);
                let _ = writeln!(text, "{}", wrapped(&line, 2, 4));
            }
        }
    }
    text
}

impl List {
    fn run(self) -> anyhow::Result<ExitCode> {
        let system = self.common.machine.system()?;
        let checked = miopen::verify(&system);
        if self.common.json {
            print_safe_json(&as_json(&checked, self.records))?;
        } else {
            print_text(&table(&system, &checked, self.records))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Verify {
    fn run(self) -> anyhow::Result<ExitCode> {
        let system = self.common.machine.system()?;
        let checked = miopen::verify(&system);
        let damaged = checked.iter().any(|file| !file.damage.is_empty());
        if self.common.json {
            print_safe_json(&as_json(&checked, false))?;
        } else {
            print_text(&table(&system, &checked, false))?;
            if damaged {
                let advice = "`unhang miopen-cache repair` removes what is damaged and keeps a backup";
                print_text(&format!("\n{}\n", wrapped(advice, 0, 2)))?;
            }
        }
        Ok(if damaged { ExitCode::from(FOUND_ERRORS) } else { ExitCode::SUCCESS })
    }
}

impl Repair {
    fn run(self) -> anyhow::Result<ExitCode> {
        let system = self.common.machine.system()?;
        if !self.dry_run && !self.consent.ask_for_folder(&system, "Repair MIOpen's databases")? {
            return Ok(ExitCode::SUCCESS);
        }
        let checked = miopen::verify(&system);
        let done = miopen::repair::repair(&system, &checked, self.narrowed, self.dry_run)
            .context("could not repair all of MIOpen's databases; close programs that use the GPU and try again")?;
        if self.common.json {
            print_safe_json(&json!({ "schema": 1, "dry_run": self.dry_run, "repaired": done }))?;
            return Ok(ExitCode::SUCCESS);
        }
        let mut text = String::new();
        if done.is_empty() {
            let _ = writeln!(text, "{}", wrapped(&format!("nothing to repair on {}", place(&system)), 0, 2));
        }
        if system.is_folder() && !done.is_empty() {
            let _ = writeln!(text, "{}", wrapped(&format!("in {}", place(&system)), 0, 2));
        }
        for file in &done {
            let path = printable(&file.path.display().to_string());
            let (would, what) = (if self.dry_run { "would be " } else { "" }, counted(file.removed, "record"));
            let line = if file.moved_aside {
                format!("{path}: {would}moved aside; MIOpen makes a new one")
            } else {
                format!("{path}: {what} {would}removed")
            };
            let _ = writeln!(text, "{}", wrapped(&line, 0, 4));
            if let Some(backup) = &file.backup {
                // People copy this path, so it must be one of this machine even if another is described.
                let backup = system.resolve(backup).unwrap_or_else(|_| backup.clone());
                let backup = printable(&backup.display().to_string());
                let line = format!("as it was: {backup} (`mv` it back to undo this)");
                let _ = writeln!(text, "{}", wrapped(&line, 2, 4));
            }
        }
        print_text(&text)?;
        Ok(ExitCode::SUCCESS)
    }
}
