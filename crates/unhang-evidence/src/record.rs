//! Observations as values. The file on disk and the exchange file have separate types.

use unhang_conv::{Problem, named};
use unhang_engine::{EngineName, Tuned, Verdict};

/// Where a record comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RecordSource {
    /// A supervised child tried it.
    Probe,
    /// A user's run observed it.
    Run,
    /// A built-in rule claims it.
    Rule,
    /// Somebody else observed it.
    Import,
    /// A rehearsed card behaved like this; no real card did.
    Rehearsal,
}

named!(
    RecordSource,
    "source",
    [Probe = "probe", Run = "run", Rule = "rule", Import = "import", Rehearsal = "rehearsal"]
);

/// One observation: how a convolution ended on an engine, on a machine.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    /// The convolution.
    pub problem: Problem,
    /// The engine.
    pub engine: EngineName,
    /// The profile or solver family, or empty: evidence about one says nothing about another.
    pub variant: String,
    /// The fingerprint of the machine.
    pub machine: String,
    /// How it ended.
    pub verdict: Verdict,
    /// Seconds when warm, if measured.
    pub seconds: Option<f64>,
    /// Seconds of the first call, with compilation and search, if measured.
    pub first_seconds: Option<f64>,
    /// Other observations in words: the signal, the error text, where it hung.
    pub detail: String,
    /// Where it comes from.
    pub source: RecordSource,
    /// When, in seconds since 1970.
    pub unix_seconds: i64,
}

impl Record {
    /// A record from now, with no times and no detail.
    pub fn new(problem: Problem, engine: EngineName, machine: &str, verdict: Verdict, source: RecordSource) -> Record {
        Record {
            problem,
            engine,
            variant: String::new(),
            machine: machine.to_owned(),
            verdict,
            seconds: None,
            first_seconds: None,
            detail: String::new(),
            source,
            unix_seconds: crate::time::now(),
        }
    }

    /// Files the record under a profile or solver family.
    pub fn with_variant(mut self, variant: &str) -> Record {
        self.variant = variant.to_owned();
        self
    }

    /// Adds the warm time.
    pub fn with_seconds(mut self, seconds: f64) -> Record {
        self.seconds = Some(seconds);
        self
    }

    /// Adds the detail.
    pub fn with_detail(mut self, detail: &str) -> Record {
        self.detail = detail.to_owned();
        self
    }
}

/// What is about to be tried, written before it starts. If nobody resolves it, it is the culprit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Intent {
    /// The convolution.
    pub problem: Problem,
    /// The engine.
    pub engine: EngineName,
    /// The profile or solver family, or empty.
    pub variant: String,
    /// The fingerprint of the machine.
    pub machine: String,
    /// What tries it: a probe, a run or a rehearsal.
    pub source: RecordSource,
    /// When, in seconds since 1970.
    pub unix_seconds: i64,
}

/// The name of an intent in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct IntentId(pub(crate) i64);

/// How an engine's or kernel family's canary ended on a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Canary {
    /// The fingerprint of the machine.
    pub machine: String,
    /// The engine or kernel family, such as `aten` or `jit`.
    pub name: String,
    /// How it ended.
    pub verdict: Verdict,
    /// Other observations in words.
    pub detail: String,
    /// When, in seconds since 1970.
    pub unix_seconds: i64,
}

/// A convolution that a user's program asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// The convolution.
    pub problem: Problem,
    /// The number of times.
    pub count: u64,
    /// The last time, in seconds since 1970.
    pub unix_seconds: i64,
}

/// The fastest of our GPU kernels for a convolution on a device, the source, and since when.
#[derive(Debug, Clone, PartialEq)]
pub struct Tuning {
    /// What was measured.
    pub tuned: Tuned,
    /// A probe (`unhang bench --tune`), a run (on first use) or a rehearsal, whose times are those of an emulator.
    pub source: RecordSource,
    /// When, in seconds since 1970.
    pub unix_seconds: i64,
}

/// Selects records. An empty field selects any.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// Records of this machine.
    pub machine: Option<String>,
    /// Records about this convolution.
    pub problem: Option<Problem>,
    /// Records about this engine.
    pub engine: Option<EngineName>,
    /// Records with this verdict.
    pub verdict: Option<Verdict>,
    /// Records from this source.
    pub source: Option<RecordSource>,
}
