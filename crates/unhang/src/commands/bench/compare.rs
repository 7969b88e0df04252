//! `unhang bench --compare`: what is known about engines, families and ROCm versions, side by side.

use std::collections::BTreeMap;
use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};
use unhang_conv::Problem;
use unhang_engine::{EngineName, Verdict};
use unhang_evidence::{Evidence, Realm, Record, RecordSource, time};
use unhang_report::{Cells, table_in_parts};

use super::super::knowledge::{Knowledge, KnowledgeArguments, open_existing_store};
use super::super::text::{print_safe_json, print_text, width, wrapped};
use crate::output::{CANNOT_TELL, printable, tell};

const REHEARSAL: &str = "REHEARSAL: about a rehearsed card, not a real one; times are those of the CPU that plays it";
const LEGEND: &str =
    "* the fastest that works here; a column with a version or a fingerprint below is what others found, never proof";

/// What to compare.
#[derive(Args)]
#[command(next_help_heading = "With --compare")]
pub(super) struct Compare {
    /// Compare what rehearsals found instead of what was seen.
    #[arg(long = "rehearsed")]
    rehearsal: bool,
    #[command(flatten)]
    knowledge: KnowledgeArguments,
}

/// One column: an engine under a variant, and where it was observed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Column {
    /// Empty for this machine.
    elsewhere: String,
    engine: EngineName,
    variant: String,
}

impl Column {
    fn title(&self) -> String {
        let mut title = self.engine.to_string();
        if !self.variant.is_empty() {
            title += &format!("/{}", self.variant);
        }
        if !self.elsewhere.is_empty() {
            title += &format!("\n{}", self.elsewhere);
        }
        printable(&title)
    }
}

/// What is known about one convolution in one column.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Cell {
    verdict: Verdict,
    seconds: Option<f64>,
    unix_seconds: i64,
}

type Rows = BTreeMap<Problem, BTreeMap<Column, Cell>>;

impl Compare {
    /// Runs the command.
    pub(super) fn run(self, as_json: bool) -> anyhow::Result<ExitCode> {
        let knowledge = Knowledge::gather(&self.knowledge, self.rehearsal, open_existing_store)?;
        let rehearsal = knowledge.evidence.realm() == Realm::Rehearsal;
        let rows = rows(&knowledge.evidence);
        if rows.is_empty() {
            tell(
                "there is nothing to compare yet: run `unhang probe`, or `unhang evidence import` for others' findings",
            );
        }
        if as_json {
            print_safe_json(&to_json(&rows, &knowledge, rehearsal))?;
        } else if !rows.is_empty() {
            let heading = if rehearsal { wrapped(REHEARSAL, 0, 2) + "\n" } else { String::new() };
            print_text(&format!("{heading}{}", to_text(&rows, &knowledge)))?;
        }
        Ok(if rows.is_empty() { ExitCode::from(CANNOT_TELL) } else { ExitCode::SUCCESS })
    }
}

/// The torch of a record, if its detail names it; otherwise the beginning of the machine's fingerprint.
fn elsewhere(record: &Record) -> String {
    let named = record.detail.split("torch ").skip(1).find_map(|rest| {
        let version: String = rest.chars().take_while(|c| c.is_ascii_alphanumeric() || ".+".contains(*c)).collect();
        version.starts_with(|c: char| c.is_ascii_digit()).then(|| version.trim_end_matches('.').to_owned())
    });
    named.unwrap_or_else(|| record.machine.chars().take(8).collect())
}

/// By convolution and column: the latest record elsewhere, and the judgement of all observations here.
fn rows(evidence: &Evidence) -> Rows {
    let mut rows = Rows::new();
    for record in evidence.records() {
        let here = record.source != RecordSource::Import;
        let column = Column {
            elsewhere: if here { String::new() } else { elsewhere(record) },
            engine: record.engine,
            variant: record.variant.clone(),
        };
        let mut cell = Cell { verdict: record.verdict, seconds: record.seconds, unix_seconds: record.unix_seconds };
        if here && let Some(finding) = evidence.about(&record.problem, record.engine, &record.variant) {
            let latest = finding.record.unix_seconds;
            cell = Cell { verdict: finding.verdict, seconds: finding.seconds, unix_seconds: latest };
        }
        let place = rows.entry(record.problem.clone()).or_default().entry(column).or_insert(cell);
        if cell.unix_seconds > place.unix_seconds {
            *place = cell;
        }
    }
    rows
}

fn columns(rows: &Rows) -> Vec<Column> {
    let mut columns: Vec<Column> = rows.values().flat_map(|cells| cells.keys().cloned()).collect();
    columns.sort();
    columns.dedup();
    columns
}

/// The fastest column of a row that works here.
fn best(cells: &BTreeMap<Column, Cell>) -> Option<&Column> {
    let here = cells.iter().filter(|(column, cell)| column.elsewhere.is_empty() && cell.verdict.is_good());
    let timed = here.filter_map(|(column, cell)| Some((column, cell.seconds?)));
    timed.min_by(|a, b| a.1.total_cmp(&b.1)).map(|(column, _)| column)
}

fn to_text(rows: &Rows, knowledge: &Knowledge) -> String {
    let columns = columns(rows);
    let mut header = vec!["convolution".to_owned()];
    header.extend(columns.iter().map(Column::title));
    let mut lines = vec![header];
    let mut ordered: Vec<(&Problem, &BTreeMap<Column, Cell>)> = rows.iter().collect();
    ordered.sort_by_key(|(problem, _)| {
        let [height, width] = problem.in_size();
        (problem.direction(), problem.data_type(), height.max(width), problem.in_channels(), problem.out_channels())
    });
    for (problem, cells) in ordered {
        let best = best(cells);
        let mut row = vec![label(problem)];
        row.extend(columns.iter().map(|column| match cells.get(column) {
            None => "·".to_owned(),
            Some(cell) if !cell.verdict.is_good() => cell.verdict.to_string(),
            Some(cell) => {
                let mark = if best == Some(column) { "*" } else { "" };
                cell.seconds.map_or("works".to_owned(), |seconds| format!("{mark}{}", time::duration(seconds)))
            }
        }));
        lines.push(row);
    }
    let machine = wrapped(&knowledge.description(), 0, 2);
    format!("{machine}\n\n{}\n\n{}\n", table_in_parts(width(), &lines, Cells::Numbers), wrapped(LEGEND, 0, 2))
}

/// A convolution for people, such as `16→32 3×3 64×64`; usual values are left out.
fn label(problem: &Problem) -> String {
    let ([height, width], [r, s]) = (problem.in_size(), problem.kernel());
    let mut words = vec![
        format!("{height}×{width}"),
        format!("{}→{}", problem.in_channels(), problem.out_channels()),
        format!("{r}×{s}"),
    ];
    let [stride, other] = problem.stride();
    if (stride, other) != (1, 1) {
        words.push(format!("/{stride}"));
    }
    if problem.groups() > 1 {
        words.push(format!("g{}", problem.groups()));
    }
    if problem.batch() > 1 {
        words.push(format!("n{}", problem.batch()));
    }
    if problem.transposed() {
        words.push("transposed".to_owned());
    }
    words.push(problem.direction().to_string());
    words.push(problem.data_type().to_string());
    words.join(" ")
}

fn to_json(rows: &Rows, knowledge: &Knowledge, rehearsal: bool) -> Value {
    let row = |(problem, cells): (&Problem, &BTreeMap<Column, Cell>)| {
        let best = best(cells);
        let cell = |(column, cell): (&Column, &Cell)| {
            json!({
                "engine": column.engine.name(),
                "variant": column.variant,
                "elsewhere": (!column.elsewhere.is_empty()).then_some(&column.elsewhere),
                "verdict": cell.verdict.name(),
                "seconds": cell.seconds,
                "fastest_here": best == Some(column),
            })
        };
        json!({
            "problem": problem.to_string(),
            "size": problem.in_size(),
            "cells": cells.iter().map(cell).collect::<Vec<_>>(),
        })
    };
    json!({
        "rehearsal": rehearsal,
        "machine": knowledge.to_json(),
        "rows": rows.iter().map(row).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_found_in_a_detail() {
        let problem: Problem = "forward:f32:nchw:1x16x64x64:32x3x3:s1x1:p1x1:d1x1:g1".parse().unwrap();
        let record = |detail: &str| {
            Record::new(problem.clone(), EngineName::Miopen, "4f1c0123456789ab", Verdict::Hangs, RecordSource::Import)
                .with_detail(detail)
        };
        assert_eq!(
            elsewhere(&record("no answer within 10 s in find; torch 2.2.2+rocm5.7 hip5.7.31921")),
            "2.2.2+rocm5.7"
        );
        assert_eq!(elsewhere(&record("torch raised; torch 1.13.1+rocm5.2.")), "1.13.1+rocm5.2");
        assert_eq!(elsewhere(&record("nothing is said")), "4f1c0123");
    }
}
