//! The file in which people share their findings: JSON lines, first a header, then one record per line.
//!
//! ```text
//! {"unhang_evidence":1,"records":1}
//! {"problem":"forward:f32:nchw:1x16x64x64:32x3x3:s1x1:p1x1:d1x1:g1","engine":"miopen","variant":"","machine":"4f1c…","verdict":"hangs","detail":"…","source":"probe","unix_seconds":1770768000}
//! ```
//!
//! The header may announce tunings too (`"tunings":1`). That many lines follow, each with the fastest of our GPU
//! kernels for a convolution on a device. They are hints: they choose a kernel where nothing was measured, and that
//! kernel passes the same checks as any other.
//!
//! An exported file contains no user name, path or host name. An imported file is not trusted: all of it is checked
//! before anything is kept, one bad line rejects the whole file, and its records are suspicion, never proof.

use std::collections::HashSet;
use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};

use serde::{Deserialize, Serialize};
use thiserror::Error;
use unhang_conv::Problem;
use unhang_engine::Tuned;
use unhang_guard::text::{is_plain, printable_line};

use crate::record::{Record, RecordSource, Tuning};
use crate::time;

mod private;

pub use private::{Private, sanitise};

/// The format that this version writes and reads.
const SCHEMA: u64 = 1;
/// The largest file that is accepted, in bytes.
pub const MAX_BYTES: u64 = 64 << 20;
/// The most records that are accepted.
pub const MAX_RECORDS: u64 = 200_000;
const MAX_LINE: usize = 8192;
const MAX_DETAIL: usize = 2000;
const MAX_WORD: usize = 64;
/// Names of devices and compilers are longer.
const MAX_NAME: usize = 200;
/// A million seconds is eleven days: no convolution takes that long.
const MAX_SECONDS: f64 = 1e6;
/// 1 January 2020: before that, there was no unhang and hardly a card.
const EARLIEST: i64 = 1_577_836_800;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    unhang_evidence: u64,
    records: u64,
    #[serde(default, skip_serializing_if = "is_none")]
    tunings: u64,
}

fn is_none(count: &u64) -> bool {
    *count == 0
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TuningLine {
    problem: String,
    device: String,
    kernels: String,
    compiler: String,
    driver: String,
    choice: String,
    seconds: f64,
    spread: f64,
    model_choice: String,
    model_seconds: f64,
    candidates: u32,
    source: String,
    unix_seconds: i64,
}

/// The contents of a file.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Imported {
    /// What others observed.
    pub records: Vec<Record>,
    /// What was fastest for them.
    pub tunings: Vec<Tuning>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    problem: String,
    engine: String,
    variant: String,
    machine: String,
    verdict: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    seconds: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    first_seconds: Option<f64>,
    detail: String,
    source: String,
    unix_seconds: i64,
}

/// What an export wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Exported {
    /// Records written.
    pub written: usize,
    /// Records and tunings that were left out: rehearsals, rules, other people's findings, and what the format cannot
    /// hold.
    pub left_out: usize,
    /// Tunings written.
    pub tunings: usize,
}

/// Writes records and tunings for others to read. Exports only what was observed here: no rehearsals, rules or other
/// people's findings.
pub fn write(
    records: &[Record],
    tunings: &[Tuning],
    private: &Private,
    output: &mut (impl Write + ?Sized),
) -> io::Result<Exported> {
    let (mut lines, mut fastest) = (Vec::new(), Vec::new());
    let mut exported = Exported::default();
    for record in records {
        match line(record, private) {
            Some(line) => lines.push(line),
            None => exported.left_out += 1,
        }
    }
    for tuning in tunings {
        match tuning_line(tuning, private) {
            Some(line) => fastest.push(line),
            None => exported.left_out += 1,
        }
    }
    (exported.written, exported.tunings) = (lines.len(), fastest.len());
    let header = Header { unhang_evidence: SCHEMA, records: lines.len() as u64, tunings: fastest.len() as u64 };
    serde_json::to_writer(&mut *output, &header)?;
    output.write_all(b"\n")?;
    for line in &lines {
        serde_json::to_writer(&mut *output, line)?;
        output.write_all(b"\n")?;
    }
    for line in &fastest {
        serde_json::to_writer(&mut *output, line)?;
        output.write_all(b"\n")?;
    }
    output.flush()?;
    Ok(exported)
}

/// A record as a line that [`read`] accepts, if possible.
fn line(record: &Record, private: &Private) -> Option<Line> {
    if !matches!(record.source, RecordSource::Probe | RecordSource::Run) {
        return None;
    }
    let detail: String = sanitise(&record.detail, private).chars().take(MAX_DETAIL).collect();
    let known = |seconds: Option<f64>| seconds.filter(|it| it.is_finite() && (0.0..=MAX_SECONDS).contains(it));
    let line = Line {
        problem: record.problem.to_string(),
        engine: record.engine.to_string(),
        variant: record.variant.clone(),
        machine: record.machine.clone(),
        verdict: record.verdict.to_string(),
        seconds: known(record.seconds),
        first_seconds: known(record.first_seconds),
        detail,
        source: record.source.to_string(),
        unix_seconds: record.unix_seconds,
    };
    check(&line).is_ok().then_some(line)
}

/// A tuning as a line that [`read`] accepts, if possible. Devices and compilers are recognised by their names, so a
/// tuning whose names would need changes is not exported. Those of other operations than convolutions stay at home.
fn tuning_line(tuning: &Tuning, private: &Private) -> Option<TuningLine> {
    let tuned = &tuning.tuned;
    let line = TuningLine {
        problem: tuned.problem.to_string(),
        device: tuned.device.clone(),
        kernels: tuned.kernels.clone(),
        compiler: tuned.compiler.clone(),
        driver: tuned.driver.clone(),
        choice: tuned.choice.clone(),
        seconds: tuned.seconds,
        spread: tuned.spread,
        model_choice: tuned.model_choice.clone(),
        model_seconds: tuned.model_seconds,
        candidates: tuned.candidates,
        source: tuning.source.to_string(),
        unix_seconds: tuning.unix_seconds,
    };
    let is_public = [&line.device, &line.compiler, &line.driver].iter().all(|text| sanitise(text, private) == **text);
    (is_public && check_tuning(&line).is_ok()).then_some(line)
}

/// The tuning on a line, or what is wrong with it.
fn check_tuning(line: &TuningLine) -> Result<Tuning, String> {
    let problem = check_problem(&line.problem)?;
    let source = check_source(&line.source)?;
    word("kernels", &line.kernels)?;
    way("choice", &line.choice)?;
    way("model_choice", &line.model_choice)?;
    for (name, value) in [("device", &line.device), ("compiler", &line.compiler), ("driver", &line.driver)] {
        if value.is_empty() || value.chars().count() > MAX_NAME || !value.chars().all(is_plain) {
            return Err(format!("the {name} is empty, longer than {MAX_NAME} characters, or holds control characters"));
        }
    }
    let times = [("seconds", line.seconds), ("spread", line.spread), ("model_seconds", line.model_seconds)];
    if let Some((name, value)) = times.into_iter().find(|(_, it)| !it.is_finite() || !(0.0..=MAX_SECONDS).contains(it))
    {
        return Err(format!("{name} is {value}: it must be between 0 and {MAX_SECONDS}"));
    }
    check_time(line.unix_seconds)?;
    let tuned = Tuned {
        problem: problem.into(),
        device: line.device.clone(),
        kernels: line.kernels.clone(),
        compiler: line.compiler.clone(),
        driver: line.driver.clone(),
        choice: line.choice.clone(),
        seconds: line.seconds,
        spread: line.spread,
        model_choice: line.model_choice.clone(),
        model_seconds: line.model_seconds,
        candidates: line.candidates,
        detail: String::new(),
    };
    Ok(Tuning { tuned, source, unix_seconds: line.unix_seconds })
}

/// Why a file is rejected as a whole.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ImportError {
    /// It cannot be read.
    #[error("the file cannot be read: {0}")]
    Io(#[from] io::Error),
    /// It is larger than any honest export.
    #[error("the file is larger than {MAX_BYTES} bytes")]
    TooLarge,
    /// It has more records than are accepted.
    #[error("the file announces {0} records: at most {MAX_RECORDS} are accepted")]
    TooMany(u64),
    /// The first line is not a header.
    #[error("line 1 is not the header of an evidence file such as {{\"unhang_evidence\":1,\"records\":12}}: {0}")]
    Header(String),
    /// It has another format version.
    #[error("the file has schema {0}: this unhang reads schema {SCHEMA}")]
    Schema(u64),
    /// A line is not a valid record.
    #[error("line {line}: {reason}")]
    Line {
        /// The line, counted from 1.
        line: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// The number of records differs from the header: the file was truncated or concatenated.
    #[error("the header announces {announced} records and the file has {found}: lines are missing or were added")]
    Count {
        /// The number in the header.
        announced: u64,
        /// The actual number.
        found: u64,
    },
}

/// Reads a file of somebody else's findings completely, or says why it is rejected. The records have the source
/// [`RecordSource::Import`] and contain printable text only.
pub fn read(input: impl Read) -> Result<Imported, ImportError> {
    // One byte more than the limit tells "exactly the limit" from "cut off at the limit".
    let mut reader = BufReader::new(input.take(MAX_BYTES + 1));
    let mut bytes_read = 0;
    let mut next = |number: usize| -> Result<Option<String>, ImportError> {
        let mut bytes = Vec::new();
        let count = reader.by_ref().take(MAX_LINE as u64 + 1).read_until(b'\n', &mut bytes)?;
        bytes_read += count as u64;
        if bytes_read > MAX_BYTES {
            return Err(ImportError::TooLarge);
        }
        if count == 0 {
            return Ok(None);
        }
        if bytes.last() == Some(&b'\n') {
            bytes.pop();
        } else if bytes.len() > MAX_LINE {
            return Err(refusal(number, format!("it is longer than {MAX_LINE} bytes")));
        }
        String::from_utf8(bytes).map(Some).map_err(|_| refusal(number, "it is not UTF-8".to_owned()))
    };
    let first = next(1)?.ok_or_else(|| ImportError::Header("the file is empty".to_owned()))?;
    // Read the schema first, by itself: another version may have another header.
    #[derive(Deserialize)]
    struct Schema {
        unhang_evidence: u64,
    }
    let schema: Schema = serde_json::from_str(&first).map_err(|error| ImportError::Header(error.to_string()))?;
    if schema.unhang_evidence != SCHEMA {
        return Err(ImportError::Schema(schema.unhang_evidence));
    }
    let header: Header = serde_json::from_str(&first).map_err(|error| ImportError::Header(error.to_string()))?;
    let announced = header.records.saturating_add(header.tunings);
    if announced > MAX_RECORDS {
        return Err(ImportError::TooMany(announced));
    }
    let (mut records, mut tunings, mut tuned) = (Vec::new(), Vec::new(), HashSet::new());
    let mut seen = HashSet::new();
    let mut number = 1;
    loop {
        number += 1;
        let Some(text) = next(number)? else { break };
        if records.len() as u64 == header.records {
            if tunings.len() as u64 == header.tunings {
                return Err(ImportError::Count { announced, found: announced + 1 });
            }
            let line: TuningLine = serde_json::from_str(&text).map_err(|error| refusal(number, error.to_string()))?;
            let tuning = check_tuning(&line).map_err(|reason| refusal(number, reason))?;
            if !tuned.insert((line.device, line.problem)) {
                return Err(refusal(number, "it repeats an earlier line".to_owned()));
            }
            tunings.push(Tuning { source: RecordSource::Import, ..tuning });
            continue;
        }
        let line: Line = serde_json::from_str(&text).map_err(|error| refusal(number, error.to_string()))?;
        let record = check(&line).map_err(|reason| refusal(number, reason))?;
        // Everything that a record is about, without what it says about it.
        let about =
            (record.machine.clone(), record.problem.clone(), record.engine, record.variant.clone(), record.verdict);
        if !seen.insert(about) {
            return Err(refusal(number, "it repeats an earlier line".to_owned()));
        }
        records.push(Record { source: RecordSource::Import, ..record });
    }
    let found = (records.len() + tunings.len()) as u64;
    if found != announced {
        return Err(ImportError::Count { announced, found });
    }
    Ok(Imported { records, tunings })
}

fn refusal(line: usize, reason: String) -> ImportError {
    // serde quotes from the file, which is not safe for a terminal.
    let reason = printable_line(&reason).chars().take(300).collect();
    ImportError::Line { line, reason }
}

/// The record on a line, or what is wrong with it.
fn check(line: &Line) -> Result<Record, String> {
    let text = |error: &dyn fmt::Display| error.to_string();
    let problem = check_problem(&line.problem)?;
    let source = check_source(&line.source)?;
    way("variant", &line.variant)?;
    word("machine", &line.machine)?;
    if line.machine.is_empty() {
        return Err("the machine is empty".to_owned());
    }
    for (name, value) in [("seconds", line.seconds), ("first_seconds", line.first_seconds)] {
        if value.is_some_and(|it| !it.is_finite() || !(0.0..=MAX_SECONDS).contains(&it)) {
            return Err(format!("{name} is {:?}: it must be between 0 and {MAX_SECONDS}", value.unwrap_or_default()));
        }
    }
    if line.detail.chars().count() > MAX_DETAIL {
        return Err(format!("the detail is longer than {MAX_DETAIL} characters"));
    }
    if !line.detail.chars().all(is_plain) {
        return Err("the detail holds control characters".to_owned());
    }
    check_time(line.unix_seconds)?;
    Ok(Record {
        problem,
        engine: line.engine.parse().map_err(|error| text(&error))?,
        variant: line.variant.clone(),
        machine: line.machine.clone(),
        verdict: line.verdict.parse().map_err(|error| text(&error))?,
        seconds: line.seconds,
        first_seconds: line.first_seconds,
        detail: line.detail.clone(),
        source,
        unix_seconds: line.unix_seconds,
    })
}

fn check_problem(key: &str) -> Result<Problem, String> {
    let problem: Problem = key.parse().map_err(|error| format!("{error}"))?;
    // A problem has one key. A second spelling would count as another record.
    if problem.to_string() == key { Ok(problem) } else { Err(format!("the key must be written as {problem}")) }
}

fn check_source(name: &str) -> Result<RecordSource, String> {
    let source: RecordSource = name.parse().map_err(|error| format!("{error}"))?;
    if matches!(source, RecordSource::Probe | RecordSource::Run) {
        return Ok(source);
    }
    Err(format!("its source is {source}: only records from a probe or a run are accepted"))
}

fn check_time(unix_seconds: i64) -> Result<(), String> {
    let latest = time::now() + 2 * 86_400;
    if (EARLIEST..=latest).contains(&unix_seconds) {
        return Ok(());
    }
    Err(format!("unix_seconds is {unix_seconds}: that is not a time since 2020"))
}

/// Whether a word may name one of our kernels, whose tiles have a slash between digits: `128x64x8/8x8`.
fn way(name: &str, text: &str) -> Result<(), String> {
    let digits = |c: Option<u8>| c.is_some_and(|c| c.is_ascii_digit());
    let bytes = text.as_bytes();
    let is_tile = |at: usize| at > 0 && digits(bytes.get(at - 1).copied()) && digits(bytes.get(at + 1).copied());
    let parts = text.char_indices().map(|(at, c)| if c == '/' && is_tile(at) { 'x' } else { c });
    word(name, &parts.collect::<String>())
}

/// Whether it is a short word of harmless characters.
fn word(name: &str, text: &str) -> Result<(), String> {
    if text.len() > MAX_WORD {
        return Err(format!("the {name} is longer than {MAX_WORD} characters"));
    }
    match text.chars().find(|c| !(c.is_ascii_alphanumeric() || "._+-:=;,".contains(*c))) {
        Some(c) => Err(format!("the {name} holds {c:?}: only letters, digits and ._+-:=;, are allowed")),
        None => Ok(()),
    }
}
