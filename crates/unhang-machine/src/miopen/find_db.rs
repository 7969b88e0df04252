//! The find-db: which solvers were timed for a problem, and how fast they were.
//!
//! ```text
//! 16-64-64-3x3-32-64-64-1-1x1-1x1-1x1-0-NCHW-FP32-F=GemmFwdRest:0.12,2359296,miopenConvolutionFwdAlgoGEMM;ConvDirectNaiveConvFwd:1.9,0,miopenConvolutionFwdAlgoDirect
//! ```

use std::collections::HashSet;

use serde::Serialize;

/// One solver's entry in a record.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Entry {
    /// The solver.
    pub solver: String,
    /// Milliseconds.
    pub milliseconds: f64,
    /// Bytes of workspace.
    pub workspace: u64,
    /// The algorithm that the solver belongs to.
    pub algorithm: String,
}

// Times come from text and are never NaN: parsing rejects it.
impl Eq for Entry {}

/// One problem with its entries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Record {
    /// The line, counted from 1.
    pub line: usize,
    /// The problem, as MIOpen writes it.
    pub key: String,
    /// The problem in words, where the key could be read.
    pub problem: Option<String>,
    /// The entries.
    pub entries: Vec<Entry>,
}

impl Record {
    /// Whether the record was written while algorithms were disabled.
    ///
    /// An unrestricted find times the naive solver of its direction, and writes all that it timed. That solver takes
    /// every convolution in NCHW or NHWC and in fp32, fp16 or bf16. A record of such a problem without it was written
    /// under a narrowed set. Not so if only Winograd was timed: MIOpen has its own short cut for that.
    pub fn narrowed(&self) -> bool {
        let mut parts = self.key.split('_').next().unwrap_or_default().rsplit('-');
        let (direction, kind, layout) = (parts.next(), parts.next(), parts.next());
        let judged = matches!(direction, Some("F" | "B" | "W"))
            && matches!(kind, Some("FP32" | "FP16" | "BF16"))
            && matches!(layout, Some("NCHW" | "NHWC" | "NCDHW" | "NDHWC"));
        let naive = self.entries.iter().any(|entry| entry.solver.starts_with("ConvDirectNaiveConv"));
        let winograd = self.entries.iter().all(|entry| entry.algorithm.ends_with("Winograd"));
        judged && !naive && !winograd
    }

    /// The fastest entry.
    pub fn best(&self) -> Option<&Entry> {
        self.entries.iter().min_by(|one, other| one.milliseconds.total_cmp(&other.milliseconds))
    }
}

/// What is wrong with a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LineError {
    /// Not text at all.
    #[error("not text")]
    NotText,
    /// No `=` between problem and entries.
    #[error("no `=` between problem and entries")]
    NoEquals,
    /// Nothing before the `=`.
    #[error("no problem before the `=`")]
    NoKey,
    /// An entry that is not `solver:time,workspace,algorithm`.
    #[error("an entry that is not `solver:time,workspace,algorithm`")]
    BadEntry,
    /// A time that is not a number, or is negative.
    #[error("a time that is not a number of milliseconds")]
    BadTime,
    /// The same problem twice.
    #[error("the same problem a second time")]
    Duplicate,
}

/// A line that is damaged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadLine {
    /// The line, counted from 1.
    pub line: usize,
    /// The problem, if it can be read.
    pub key: Option<String>,
    /// What is wrong.
    pub problem: LineError,
}

/// A find-db, read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FindDb {
    /// The sound records.
    pub records: Vec<Record>,
    /// The damaged lines.
    pub bad: Vec<BadLine>,
}

/// Reads a find-db. Never fails: unreadable lines are listed as bad.
pub fn parse(content: &[u8]) -> FindDb {
    let mut database = FindDb::default();
    let mut seen = HashSet::new();
    for (index, line) in content.split(|byte| *byte == b'\n').enumerate() {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.is_empty() {
            continue;
        }
        let number = index + 1;
        match parse_line(line) {
            Ok((key, _)) if seen.contains(&key) => {
                database.bad.push(BadLine { line: number, key: Some(key), problem: LineError::Duplicate });
            }
            Ok((key, entries)) => {
                seen.insert(key.clone());
                database.records.push(Record { line: number, problem: describe(&key), key, entries });
            }
            Err((key, problem)) => database.bad.push(BadLine { line: number, key, problem }),
        }
    }
    database
}

type Parsed = Result<(String, Vec<Entry>), (Option<String>, LineError)>;

fn parse_line(line: &[u8]) -> Parsed {
    let text = std::str::from_utf8(line).ok().filter(|text| !text.chars().any(char::is_control));
    let text = text.ok_or((None, LineError::NotText))?;
    let (key, rest) = text.split_once('=').ok_or((None, LineError::NoEquals))?;
    if key.is_empty() {
        return Err((None, LineError::NoKey));
    }
    let failed = |problem| (Some(key.to_owned()), problem);
    let mut entries = Vec::new();
    for item in rest.split(';').filter(|item| !item.is_empty()) {
        let (id, values) = item.split_once(':').ok_or_else(|| failed(LineError::BadEntry))?;
        let values: Vec<&str> = values.split(',').collect();
        // Before MIOpen 2.19 the algorithm came first: `algorithm:solver,time,workspace,…`.
        let legacy = id.starts_with("miopenConvolution") || id.starts_with("miopenTranspose");
        let (solver, time, workspace, algorithm) = match values.as_slice() {
            [solver, time, workspace, ..] if legacy => (*solver, *time, *workspace, id),
            [time, workspace, algorithm] if !legacy => (id, *time, *workspace, *algorithm),
            _ => return Err(failed(LineError::BadEntry)),
        };
        let milliseconds: f64 = time.parse().map_err(|_| failed(LineError::BadTime))?;
        if !milliseconds.is_finite() || milliseconds < 0.0 {
            return Err(failed(LineError::BadTime));
        }
        let workspace = workspace.parse().map_err(|_| failed(LineError::BadEntry))?;
        if solver.is_empty() || algorithm.is_empty() {
            return Err(failed(LineError::BadEntry));
        }
        entries.push(Entry { solver: solver.to_owned(), milliseconds, workspace, algorithm: algorithm.to_owned() });
    }
    if entries.is_empty() { Err(failed(LineError::BadEntry)) } else { Ok((key.to_owned(), entries)) }
}

/// The key in words: `16→32 channels, 3×3, 64×64 to 64×64, batch 1, padding 1×1, fp32 NCHW, forward`.
fn describe(key: &str) -> Option<String> {
    let (plain, optional) = key.split_once('_').map_or((key, None), |(plain, optional)| (plain, Some(optional)));
    let parts: Vec<&str> = plain.split('-').collect();
    // Two spatial dimensions and one layout for all: by far the most common form.
    let [c, h, w, filter, k, out_h, out_w, n, pad, stride, dilation, _bias, layout, kind, direction] = parts.as_slice()
    else {
        return None;
    };
    let direction = match *direction {
        "F" => "forward",
        "B" => "backward data",
        "W" => "backward weights",
        _ => return None,
    };
    let times = |text: &str| text.replace('x', "×");
    let mut words = format!(
        "{c}→{k} channels, {}, {h}×{w} to {out_h}×{out_w}, batch {n}, padding {}, stride {}",
        times(filter),
        times(pad),
        times(stride)
    );
    if *dilation != "1x1" {
        words.push_str(&format!(", dilation {}", times(dilation)));
    }
    if let Some(groups) = optional.and_then(|text| text.strip_prefix('g')) {
        words.push_str(&format!(", {groups} groups"));
    }
    Some(format!("{words}, {} {layout}, {direction}", kind.to_lowercase()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const KEY: &str = "16-64-64-3x3-32-64-64-1-1x1-1x1-1x1-0-NCHW-FP32-F";

    #[test]
    fn records_old_and_new() {
        let text = format!(
            "{KEY}=GemmFwdRest:0.12,2359296,miopenConvolutionFwdAlgoGEMM;ConvDirectNaiveConvFwd:1.9,0,miopenConvolutionFwdAlgoDirect\n\
             3-32-32-3x3-16-32-32-1-1x1-1x1-1x1-0-NCHW-FP32-F=miopenConvolutionFwdAlgoGEMM:gemm,0.01712,110592,rocBlas,<unused>\n"
        );
        let database = parse(text.as_bytes());
        assert_eq!(database.bad, []);
        let [first, second] = database.records.as_slice() else { panic!("{database:?}") };
        assert_eq!(first.best().unwrap().solver, "GemmFwdRest");
        assert!(!first.narrowed() && second.narrowed());
        assert_eq!(
            first.problem.as_deref(),
            Some("16→32 channels, 3×3, 64×64 to 64×64, batch 1, padding 1×1, stride 1×1, fp32 NCHW, forward")
        );
    }

    #[test]
    fn winograd_alone_is_miopens_own_short_cut() {
        let text = format!("{KEY}=ConvBinWinograd3x3U:0.1,0,miopenConvolutionFwdAlgoWinograd");
        assert!(!parse(text.as_bytes()).records[0].narrowed());
        let text = format!("{KEY}=ConvHipImplicitGemmV4R1Fwd:0.1,0,miopenConvolutionFwdAlgoImplicitGEMM");
        assert!(parse(text.as_bytes()).records[0].narrowed());
    }

    #[test]
    fn damage_is_named_by_line() {
        let text =
            format!("{KEY}=a:1,2,b\nno equals\n=x:1,2,b\nk=a:one,2,b\nk=a:-1,2,b\nk=a\n{KEY}=a:1,2,b\n\x01\nk=\n");
        let problems: Vec<_> = parse(text.as_bytes()).bad.into_iter().map(|bad| (bad.line, bad.problem)).collect();
        use LineError::{BadEntry, BadTime, Duplicate, NoEquals, NoKey, NotText};
        let expected = [
            (2, NoEquals),
            (3, NoKey),
            (4, BadTime),
            (5, BadTime),
            (6, BadEntry),
            (7, Duplicate),
            (8, NotText),
            (9, BadEntry),
        ];
        assert_eq!(problems, expected);
    }

    proptest! {
        #[test]
        fn anything_can_be_read(content in proptest::collection::vec(any::<u8>(), 0..400), text in "[-0-9xA-Z_=:,;.a-z\n]{0,300}") {
            for database in [parse(&content), parse(text.as_bytes())] {
                for record in &database.records {
                    let _ = (record.narrowed(), record.best());
                }
            }
        }
    }
}
