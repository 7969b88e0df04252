//! A plan.

use std::fmt;

use unhang_engine::{EngineName, Verdict};
use unhang_evidence::{Finding, RecordSource, rules::Rule};

/// A piece of evidence that a plan rests on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reference {
    /// The engine that it is about.
    pub engine: EngineName,
    /// How it ended, or is claimed to end.
    pub verdict: Verdict,
    /// Where it comes from.
    pub source: RecordSource,
    /// All of it in words.
    pub text: String,
}

impl Reference {
    pub(crate) fn to_finding(finding: &Finding) -> Reference {
        let record = &finding.record;
        Reference { engine: record.engine, verdict: finding.verdict, source: record.source, text: finding.to_string() }
    }

    pub(crate) fn to_rule(rule: &Rule) -> Reference {
        Reference { engine: rule.engine, verdict: Verdict::Hangs, source: RecordSource::Rule, text: rule.to_string() }
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// How the `tiled` engine cuts and computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TilePlan {
    /// The engine that computes each tile.
    pub inner: EngineName,
    /// The most output rows and columns of a tile (of the lowered problem, if it is transposed).
    pub output_limit: usize,
}

/// Which engine computes a convolution, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The choice first, then those to fall through to when one fails. Never empty, and none twice.
    pub engines: Vec<EngineName>,
    /// How to tile, when `tiled` is among the engines.
    pub tile: Option<TilePlan>,
    /// Why, in words that a person can check.
    pub reason: String,
    /// What the reason rests on.
    pub evidence: Vec<Reference>,
    /// What a person should be told once.
    pub warnings: Vec<String>,
}

impl Plan {
    /// The engine that is to compute.
    pub fn choice(&self) -> EngineName {
        self.engines.first().copied().unwrap_or(EngineName::Cpu)
    }
}
