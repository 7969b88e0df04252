//! A finding: what is wrong, why, what to do, and how sure we are.

use std::fmt::Display;

use serde::Serialize;

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Convolutions will hang, crash, be wrong or not run.
    Error,
    /// Something misleads or may hurt.
    Warning,
    /// Good to know.
    Info,
}

impl Severity {
    /// How it is written.
    pub fn name(self) -> &'static str {
        match self {
            Severity::Error => "error",
            Severity::Warning => "warning",
            Severity::Info => "info",
        }
    }
}

/// How sure we are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Confidence {
    /// Owners of such a card report it.
    #[serde(rename = "owners report")]
    SeenOnACard,
    /// Sources or documentation say so, or it was read from this machine.
    #[serde(rename = "documented")]
    Documented,
    /// It is inferred from known facts; nobody has shown it.
    #[serde(rename = "inferred")]
    Inferred,
}

impl Confidence {
    /// How it is written.
    pub fn name(self) -> &'static str {
        match self {
            Confidence::SeenOnACard => "owners report",
            Confidence::Documented => "documented",
            Confidence::Inferred => "inferred",
        }
    }
}

/// A line of a file that a finding refers to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FilePlace {
    /// The file.
    pub path: String,
    /// The line, counted from 1; `None` for the whole file.
    pub line: Option<usize>,
}

/// One of the doctor's findings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Never changes; `docs/explain.md` has a section for each.
    pub id: &'static str,
    /// How much it matters.
    pub severity: Severity,
    /// One line.
    pub summary: String,
    /// The reason, with its source.
    pub why: String,
    /// What to do: a command where there is one. Nothing to do for mere information.
    pub fix: Option<String>,
    /// How sure we are.
    pub confidence: Confidence,
    /// The files and lines that it refers to.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub places: Vec<FilePlace>,
}

/// A count with its noun, whose plural takes an s.
pub fn counted<N: Display + PartialEq + From<u8>>(count: N, noun: &str) -> String {
    let plural = if count == N::from(1) { "" } else { "s" };
    format!("{count} {noun}{plural}")
}
