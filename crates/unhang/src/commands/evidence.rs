//! `unhang evidence`: list, tunings, export, import, forget.

pub(super) mod tunings;

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, anyhow};
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use unhang_conv::Problem;
use unhang_engine::{EngineName, Verdict};
use unhang_evidence::exchange::{self, Exported, Imported, Private};
use unhang_evidence::{Filter, Record, RecordSource, Store, Tuning, time};
use unhang_guard::input::open_plain;

use super::knowledge::{open_existing_store, open_store, say_notices};
use super::text::{counted, entry, print_safe_json, print_text, wrapped};
use super::whole_file::write_whole;
use crate::output::tell;

/// List, export, import or forget what is known about convolutions on this machine.
#[derive(Args)]
#[command(after_help = "\
Examples:
  unhang evidence list --verdict hangs
  unhang evidence export findings.jsonl        # without names and paths
  unhang evidence import findings.jsonl
  unhang evidence forget --engine miopen

Imported records are suspicion, never proof: they make `auto` careful, and a probe here decides.

Exit codes:
  0  done
  2  wrong usage, or not done")]
pub(crate) struct EvidenceCommand {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Print the records, oldest first.
    #[command(after_help = "Example:\n  unhang evidence list --engine miopen --verdict hangs --json")]
    List {
        #[command(flatten)]
        which: Which,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Write what was seen here to a file (JSON lines) for others, without user names, paths or host names.
    #[command(after_help = "Example:\n  unhang evidence export findings.jsonl")]
    Export {
        /// The file, or `-` for standard output.
        #[arg(value_name = "FILE")]
        file: PathBuf,
        #[command(flatten)]
        which: Which,
        /// Print JSON about what was written.
        #[arg(long)]
        json: bool,
    },
    /// Import what others found, as suspicion. If anything in the file is wrong, nothing is imported.
    #[command(after_help = "Example:\n  unhang evidence import findings.jsonl")]
    Import {
        /// The file, or `-` for standard input.
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Print JSON about what was taken.
        #[arg(long)]
        json: bool,
    },
    /// Print which of unhang's GPU kernels were measured as fastest, and how far the model was off.
    #[command(after_help = "\
Example:
  unhang evidence tunings --json | jq '.geometric_mean'

Sources: probe is `unhang bench --tune`, run is tuning on first use, rehearsal is an emulated card, whose times mean \
nothing. Results for kernels of another version are out of date and not used.")]
    Tunings {
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Forget records, with the canaries, tunings and unfinished attempts that belong to them.
    #[command(after_help = "Example:\n  unhang evidence forget --source import")]
    Forget {
        #[command(flatten)]
        which: Which,
        /// Forget everything.
        #[arg(long)]
        all: bool,
        /// Print JSON about what was forgotten.
        #[arg(long)]
        json: bool,
    },
}

/// Which records are meant.
#[derive(Args)]
struct Which {
    /// Only records about this convolution.
    #[arg(long, value_name = "KEY")]
    problem: Option<Problem>,
    /// Only records about this engine: jit, miopen, aten, tiled or cpu.
    #[arg(long, value_name = "NAME")]
    engine: Option<EngineName>,
    /// Only records with this verdict: works, hangs, crashes, wrong, unsupported or error.
    #[arg(long, value_name = "VERDICT")]
    verdict: Option<Verdict>,
    /// Only records from this source: probe, run, import or rehearsal.
    #[arg(long, value_name = "SOURCE")]
    source: Option<RecordSource>,
    /// Only records of the machine with this fingerprint.
    #[arg(long, value_name = "FINGERPRINT")]
    machine: Option<String>,
}

impl Which {
    fn filter(self) -> Filter {
        let Which { problem, engine, verdict, source, machine } = self;
        Filter { machine, problem, engine, verdict, source }
    }
}

impl EvidenceCommand {
    /// Runs the command.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        match self.action {
            Action::List { which, json } => list(&open_existing_store(), &which.filter(), json)?,
            Action::Tunings { json } => tunings::print(&open_existing_store(), json)?,
            Action::Export { file, which, json } => export(&open_existing_store(), &which.filter(), &file, json)?,
            Action::Import { file, json } => import(&file, json)?,
            Action::Forget { which, all, json } => {
                let filter = which.filter();
                if filter == Filter::default() && !all {
                    let hint = anyhow!("hint: name what to forget, such as --engine miopen, or use --all");
                    return Err(hint.context("no evidence to forget was named"));
                }
                let store = open_existing_store();
                let nothing_is_kept = unhang_evidence::home().is_some_and(|home| {
                    std::fs::symlink_metadata(home).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
                });
                let forgotten = if nothing_is_kept { Some(0) } else { store.forget(&filter) };
                let count = forgotten.ok_or_else(|| not_done(&store, "nothing was forgotten"))?;
                answer(json, &json!({ "forgotten": count }), &format!("forgot {}", counted(count, "record")))?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn answer(as_json: bool, value: &Value, text: &str) -> anyhow::Result<()> {
    if as_json { print_safe_json(value) } else { print_text(&format!("{}\n", wrapped(text, 0, 4))) }
}

fn not_done(store: &Store, what: &str) -> anyhow::Error {
    say_notices(store);
    anyhow!("{what}: the store cannot be used")
}

fn list(store: &Store, filter: &Filter, as_json: bool) -> anyhow::Result<()> {
    let records = store.records(filter);
    let canaries = store.canaries();
    let tunings = if *filter == Filter::default() { store.tunings() } else { Vec::new() };
    if as_json {
        let canaries: Vec<Value> = canaries
            .iter()
            .map(|it| {
                json!({
                    "machine": it.machine,
                    "name": it.name,
                    "verdict": it.verdict.name(),
                    "detail": it.detail,
                    "unix_seconds": it.unix_seconds,
                })
            })
            .collect();
        let records: Vec<Value> = records.iter().map(record_to_json).collect();
        return print_safe_json(&json!({
            "records": records,
            "canaries": canaries,
            "tunings": tunings.iter().map(tunings::to_json).collect::<Vec<_>>(),
        }));
    }
    if records.is_empty() && tunings.is_empty() && (canaries.is_empty() || *filter != Filter::default()) {
        return print_text("no records; programs that use unhang add what they see\n");
    }
    let mut out = String::new();
    for it in &records {
        let engine =
            if it.variant.is_empty() { it.engine.to_string() } else { format!("{} {}", it.engine, it.variant) };
        out += &entry(
            &format!("{}, {engine}: {}", it.verdict, it.problem),
            &[
                &it.seconds.map(time::duration).unwrap_or_default(),
                &it.source.to_string(),
                &time::date(it.unix_seconds),
                &format!("machine {}", it.machine),
            ],
            &it.detail,
        );
    }
    let mut right_kernels = 0;
    if *filter == Filter::default() {
        for it in &canaries {
            // Our GPU kernels' first results: there are hundreds, and only a wrong one deserves a line.
            if it.name.starts_with(KERNEL) && it.verdict == Verdict::Works {
                right_kernels += 1;
                continue;
            }
            out += &entry(
                &format!("{}, {}", it.verdict, it.name),
                &["canary", &time::date(it.unix_seconds), &format!("machine {}", it.machine)],
                &it.detail,
            );
        }
    }
    let kernels = match right_kernels {
        0 => String::new(),
        count => format!("and {count} of our GPU kernels whose first result was right (all of them with --json)\n"),
    };
    print_text(&format!("{out}{kernels}{}", tunings::summary(&tunings)))
}

/// The prefix of the canaries of single GPU kernels, as `unhang-session` writes it.
const KERNEL: &str = "jit:kernel:";

/// A record for other programs.
pub(super) fn record_to_json(record: &Record) -> Value {
    json!({
        "problem": record.problem.to_string(),
        "engine": record.engine.name(),
        "variant": record.variant,
        "machine": record.machine,
        "verdict": record.verdict.name(),
        "seconds": record.seconds,
        "first_seconds": record.first_seconds,
        "detail": record.detail,
        "source": record.source.name(),
        "unix_seconds": record.unix_seconds,
    })
}

fn export(store: &Store, filter: &Filter, file: &Path, as_json: bool) -> anyhow::Result<()> {
    let records = store.records(filter);
    // Tunings belong to our kernels on a device, not to a machine, and all of them worked.
    let with_tunings = filter.engine.is_none_or(|engine| engine == EngineName::Jit)
        && filter.verdict.is_none_or(|verdict| verdict == Verdict::Works);
    let mut tunings = if with_tunings { store.tunings() } else { Vec::new() };
    let is_wanted = |it: &Tuning| filter.problem.is_none() || it.tuned.problem.convolution() == filter.problem.as_ref();
    tunings.retain(is_wanted);
    let private = Private::of_this_machine();
    let exported = if file == Path::new("-") {
        exchange::write(&records, &tunings, &private, &mut io::stdout().lock())?
    } else {
        write_whole(file, |output| exchange::write(&records, &tunings, &private, output))?
    };
    let Exported { written, tunings, left_out } = exported;
    let why = if left_out == 0 { "" } else { " (rehearsed, imported, or nothing that the file can hold)" };
    let (records, fastest) = (counted(written, "record"), counted(tunings, "tuning"));
    let text = format!("wrote {records} and {fastest}, left out {left_out}{why}");
    if file == Path::new("-") {
        // Standard output is reserved for the data.
        tell(&text);
        return Ok(());
    }
    answer(as_json, &json!({ "written": written, "tunings": tunings, "left_out": left_out }), &text)
}

fn import(file: &Path, as_json: bool) -> anyhow::Result<()> {
    let refused = || format!("nothing was imported from {}", file.display());
    let Imported { records, tunings } = if file == Path::new("-") {
        exchange::read(io::stdin().lock()).with_context(refused)?
    } else {
        let opened = open_plain(file).with_context(|| format!("cannot read {}", file.display()))?;
        exchange::read(opened).with_context(refused)?
    };
    let (count, fastest) = (records.len(), tunings.len());
    let store = open_store();
    store.import(records, tunings).ok_or_else(|| not_done(&store, &refused()))?;
    let text = format!(
        "imported {} as suspicion (what others saw proves no engine here), and {} for convolutions that were not measured here",
        counted(count, "record"),
        counted(fastest, "tuning")
    );
    answer(as_json, &json!({ "taken": count, "tunings": fastest }), &text)
}
