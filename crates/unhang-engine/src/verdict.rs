//! What was observed about a convolution on an engine.

use unhang_conv::named;

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

named!(
    Verdict,
    "verdict",
    [
        Works = "works",
        Hangs = "hangs",
        Crashes = "crashes",
        Wrong = "wrong",
        Unsupported = "unsupported",
        Error = "error"
    ]
);

impl Verdict {
    /// Whether the planner may choose an engine with this verdict for the problem again.
    pub const fn is_good(self) -> bool {
        matches!(self, Verdict::Works)
    }
}
