//! What was observed about a convolution on an engine.

use std::fmt;
use std::str::FromStr;

use unhang_conv::UnknownName;

/// How an attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Verdict {
    /// It returned a correct result.
    Works,
    /// It did not finish within its deadline.
    Hangs,
    /// The process died.
    Crashes,
    /// It returned a wrong result.
    Wrong,
    /// The engine declined.
    Unsupported,
    /// It returned an error.
    Error,
}

impl Verdict {
    /// Every verdict.
    pub const ALL: [Verdict; 6] =
        [Verdict::Works, Verdict::Hangs, Verdict::Crashes, Verdict::Wrong, Verdict::Unsupported, Verdict::Error];

    /// The name in text.
    pub const fn name(self) -> &'static str {
        match self {
            Verdict::Works => "works",
            Verdict::Hangs => "hangs",
            Verdict::Crashes => "crashes",
            Verdict::Wrong => "wrong",
            Verdict::Unsupported => "unsupported",
            Verdict::Error => "error",
        }
    }

    /// Whether the planner may choose an engine with this verdict for the problem again.
    pub const fn is_good(self) -> bool {
        matches!(self, Verdict::Works)
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Verdict {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, UnknownName> {
        Verdict::ALL.into_iter().find(|verdict| verdict.name() == text).ok_or_else(|| UnknownName {
            what: "verdict",
            found: text.chars().take(80).collect(),
            expected: "works, hangs, crashes, wrong, unsupported, error",
        })
    }
}
