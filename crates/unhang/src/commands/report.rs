//! `unhang report`: the hang map, in the terminal, as JSON or as a page.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use unhang_evidence::RecordSource;
use unhang_plan::{Settings, Strategy, plan};
use unhang_report::{Layer, Report};

use super::knowledge::{Knowledge, KnowledgeArguments, ON_EMULATED_CARD, open_existing_store};
use super::text::{print_safe_json, print_text, width};
use super::whole_file::write_whole;
use crate::output::tell;

/// Show what is known here: a hang map of each engine, and what programs asked for, with plans and reasons.
#[derive(Args)]
#[command(after_help = "\
Examples:
  unhang report
  unhang report --html hang-map.html       # one page for a browser, no network
  unhang report --json | jq .summary

Exit codes:
  0  done
  2  wrong usage, or not done")]
pub(crate) struct ReportCommand {
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Write the page to this file.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Report what rehearsals found instead of what was seen.
    #[arg(long = "rehearsed")]
    rehearsal: bool,
    /// Report what is kept under this fingerprint, as `unhang probe` and `unhang evidence list` name them.
    #[arg(long, value_name = "FINGERPRINT")]
    machine: Option<String>,
    /// Plan with this strategy: auto, implicit_gemm, cpu_fallback, selective, aten, jit or tiled.
    #[arg(long, value_name = "NAME", default_value = "auto")]
    strategy: Strategy,
    #[command(flatten)]
    knowledge: KnowledgeArguments,
}

impl ReportCommand {
    /// Runs the command.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let mut knowledge = Knowledge::gather(&self.knowledge, self.rehearsal, open_existing_store)?;
        if let Some(fingerprint) = &self.machine {
            knowledge.turn_to(fingerprint)?;
        }
        let settings = Settings { strategy: self.strategy, ..Settings::default() };
        let situation = knowledge.situation(!knowledge.has_accelerator());
        let seen = if self.rehearsal { Vec::new() } else { knowledge.store.seen(&knowledge.fingerprint) };
        let layers = seen
            .into_iter()
            .map(|it| Layer { name: String::new(), problem: it.problem, calls: it.count, engines: Vec::new() })
            .collect();
        let report = Report::new(&knowledge.description(), &knowledge.evidence, layers, |problem| {
            plan(problem, &settings, &situation, &knowledge.evidence)
        });
        if knowledge.is_about_an_emulated_card() {
            tell(ON_EMULATED_CARD);
        }
        if let Some(path) = &self.html {
            let page = report.to_html();
            write_whole(path, |output| output.write_all(page.as_bytes()))?;
            tell(&format!("wrote {}", path.display()));
        }
        if !self.rehearsal && report.records.iter().all(|it| it.source == RecordSource::Import) {
            for kept in knowledge.kept_elsewhere() {
                tell(&format!("hint: {}", kept.in_words()));
            }
        }
        if self.json {
            print_safe_json(&report.to_json())?;
        } else if self.html.is_none() {
            print_text(&report.to_text(width()))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}
