//! The report for other programs.

use serde_json::{Value, json};
use unhang_engine::{EngineName, Verdict};
use unhang_evidence::{Record, time};

use crate::data::Report;
use crate::map::is_drawn;

impl Report {
    /// The number of records per engine and verdict. Others' claims are not counted: see [`Report::claims`].
    pub fn summary(&self) -> Vec<(EngineName, [usize; Verdict::ALL.len()])> {
        let count = |engine: EngineName| {
            Verdict::ALL.map(|verdict| {
                let seen = self.records.iter().filter(|it| is_drawn(it));
                seen.filter(|it| it.engine == engine && it.verdict == verdict).count()
            })
        };
        let all = EngineName::ALL.into_iter().map(|engine| (engine, count(engine)));
        all.filter(|(_, counts)| counts.iter().any(|it| *it > 0)).collect()
    }

    /// The number of records that are others' claims: suspicion, not observations from here.
    pub fn claims(&self) -> usize {
        self.records.iter().filter(|it| !is_drawn(it)).count()
    }

    /// The report as JSON, schema 1.
    pub fn to_json(&self) -> Value {
        let summary: Value = self
            .summary()
            .into_iter()
            .map(|(engine, counts)| {
                let counts: Value =
                    Verdict::ALL.iter().zip(counts).map(|(verdict, count)| (verdict.name(), json!(count))).collect();
                (engine.name(), counts)
            })
            .collect();
        let layers: Vec<Value> = self
            .layers
            .iter()
            .map(|layer| {
                let engines: Value =
                    layer.engines.iter().map(|(engine, count)| (engine.name(), json!(count))).collect();
                json!({
                    "name": layer.name,
                    "problem": layer.problem.to_string(),
                    "calls": layer.calls,
                    "engines": engines,
                })
            })
            .collect();
        let maps: Vec<Value> = self
            .maps()
            .iter()
            .map(|map| {
                json!({
                    "engine": map.engine.name(),
                    "variant": map.variant,
                    "direction": map.direction.name(),
                    "data_type": map.data_type.name(),
                    "rows": map.rows,
                    "columns": map.columns,
                    "cells": map.cells.iter().map(|cell| json!({
                        "row": cell.row,
                        "column": cell.column,
                        "verdict": cell.verdict.name(),
                        "count": cell.count,
                        "worst": cell.worst,
                        "seconds": cell.seconds,
                    })).collect::<Vec<_>>(),
                })
            })
            .collect();
        let plans: Value = self
            .plans
            .iter()
            .map(|(problem, plan)| {
                let value = json!({
                    "engines": plan.engines.iter().map(|it| it.name()).collect::<Vec<_>>(),
                    "reason": plan.reason,
                    "evidence": plan.evidence.iter().map(|it| it.text.as_str()).collect::<Vec<_>>(),
                    "warnings": plan.warnings,
                });
                (problem.to_string(), value)
            })
            .collect();
        json!({
            "schema": 1,
            "machine": self.machine,
            "fingerprint": self.fingerprint,
            "rehearsal": self.rehearsal,
            "date": time::date(self.unix_seconds),
            "unix_seconds": self.unix_seconds,
            "summary": summary,
            "claims": self.claims(),
            "layers": layers,
            "maps": maps,
            "records": self.records.iter().map(record).collect::<Vec<_>>(),
            "plans": plans,
        })
    }
}

fn record(record: &Record) -> Value {
    json!({
        "problem": record.problem.to_string(),
        "engine": record.engine.name(),
        "variant": record.variant,
        "verdict": record.verdict.name(),
        "seconds": record.seconds,
        "first_seconds": record.first_seconds,
        "detail": record.detail,
        "source": record.source.name(),
        "machine": record.machine,
        "unix_seconds": record.unix_seconds,
    })
}
