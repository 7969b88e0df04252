//! A plan.

use std::fmt;

use unhang_engine::{EngineName, Verdict};
use unhang_evidence::{Finding, RecordSource, rules::Rule};

/// A piece of evidence behind a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reference {
    /// The engine that it concerns.
    pub engine: EngineName,
    /// The observed or claimed result.
    pub verdict: Verdict,
    /// Its source.
    pub source: RecordSource,
    /// The whole of it in words.
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
    /// The chosen engine first, then the fallbacks. Never empty, and no engine appears twice.
    pub engines: Vec<EngineName>,
    /// The tiling, if `tiled` is among the engines.
    pub tile: Option<TilePlan>,
    /// Why, in words that a person can check.
    pub reason: String,
    /// The evidence behind the reason.
    pub evidence: Vec<Reference>,
    /// Warnings that a person should see once.
    pub warnings: Vec<String>,
}

impl Plan {
    /// The engine that computes.
    pub fn choice(&self) -> EngineName {
        self.engines.first().copied().unwrap_or(EngineName::Cpu)
    }
}
