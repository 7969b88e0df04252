//! The file by which people give their findings to others: JSON lines, the first a header, then one record each.
//!
//! ```text
//! {"unhang_evidence":1,"records":1}
//! {"problem":"forward:f32:nchw:1x16x64x64:32x3x3:s1x1:p1x1:d1x1:g1","engine":"miopen","variant":"","machine":"4f1c…","verdict":"hangs","detail":"…","source":"probe","unix_seconds":1770768000}
//! ```
//!
//! What goes out holds no user name, path or host name. What comes in is believed in nothing: the whole file is checked
//! before any of it is kept, one bad line refuses it all, and what is kept is suspicion, never proof.

use std::collections::HashSet;
use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::record::{Record, Source};
use crate::time;

mod private;

pub use private::{Private, sanitise};

/// The format that this version writes and reads.
const SCHEMA: u64 = 1;
/// The largest file that is taken, in bytes.
pub const MAX_BYTES: u64 = 64 << 20;
/// The most records that are taken.
pub const MAX_RECORDS: u64 = 200_000;
const MAX_LINE: usize = 8192;
const MAX_DETAIL: usize = 2000;
const MAX_WORD: usize = 64;
/// A million seconds are eleven days: no convolution takes so long.
const MAX_SECONDS: f64 = 1e6;
/// 1 January 2020: before that there was no unhang, and hardly a card.
const EARLIEST: i64 = 1_577_836_800;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    unhang_evidence: u64,
    records: u64,
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
    /// Records left out: rehearsals, rules, others' findings, and what the format cannot hold.
    pub left_out: usize,
}

/// Writes records for others to read. What was seen here goes out; rehearsals, rules and what came from others do not.
pub fn write(records: &[Record], private: &Private, output: &mut impl Write) -> io::Result<Exported> {
    let mut lines = Vec::new();
    let mut exported = Exported::default();
    for record in records {
        match line(record, private) {
            Some(line) => lines.push(line),
            None => exported.left_out += 1,
        }
    }
    exported.written = lines.len();
    serde_json::to_writer(&mut *output, &Header { unhang_evidence: SCHEMA, records: lines.len() as u64 })?;
    output.write_all(b"\n")?;
    for line in &lines {
        serde_json::to_writer(&mut *output, line)?;
        output.write_all(b"\n")?;
    }
    output.flush()?;
    Ok(exported)
}

/// A record as a line that [`read`] would take, or none.
fn line(record: &Record, private: &Private) -> Option<Line> {
    if !matches!(record.source, Source::Probe | Source::Run) {
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

/// Why a file is refused, whole.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ImportError {
    /// It cannot be read.
    #[error("the file cannot be read: {0}")]
    Io(#[from] io::Error),
    /// It is larger than any honest export.
    #[error("the file is larger than {MAX_BYTES} bytes")]
    TooLarge,
    /// It has more records than are taken.
    #[error("the file announces {0} records: no more than {MAX_RECORDS} are taken")]
    TooMany(u64),
    /// The first line is not a header.
    #[error("line 1 is not the header of an evidence file such as {{\"unhang_evidence\":1,\"records\":12}}: {0}")]
    Header(String),
    /// It is of another version.
    #[error("the file has schema {0}: this unhang reads schema {SCHEMA}")]
    Schema(u64),
    /// A line is not a good record.
    #[error("line {line}: {reason}")]
    Line {
        /// The line, counted from 1.
        line: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// The number of records is not what the header says: the file was cut or joined.
    #[error("the header announces {announced} records and the file has {found}: it was cut, or something was added")]
    Count {
        /// What the header says.
        announced: u64,
        /// What there is.
        found: u64,
    },
}

/// Reads a file of somebody else's findings: all of it, or why nothing of it is taken. What comes out has the source
/// [`Source::Import`] and printable text only.
pub fn read(input: impl Read) -> Result<Vec<Record>, ImportError> {
    // One byte more than is taken tells "exactly the limit" from "cut at the limit".
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
    // The schema first and alone: another version may have another header.
    #[derive(Deserialize)]
    struct Schema {
        unhang_evidence: u64,
    }
    let schema: Schema = serde_json::from_str(&first).map_err(|error| ImportError::Header(error.to_string()))?;
    if schema.unhang_evidence != SCHEMA {
        return Err(ImportError::Schema(schema.unhang_evidence));
    }
    let header: Header = serde_json::from_str(&first).map_err(|error| ImportError::Header(error.to_string()))?;
    if header.records > MAX_RECORDS {
        return Err(ImportError::TooMany(header.records));
    }
    let mut records = Vec::new();
    let mut seen = HashSet::new();
    let mut number = 1;
    loop {
        number += 1;
        let Some(text) = next(number)? else { break };
        if records.len() as u64 == header.records {
            return Err(ImportError::Count { announced: header.records, found: header.records + 1 });
        }
        let line: Line = serde_json::from_str(&text).map_err(|error| refusal(number, error.to_string()))?;
        let record = check(&line).map_err(|reason| refusal(number, reason))?;
        // All of what a record is about, without what it says of it.
        let about =
            (record.machine.clone(), record.problem.clone(), record.engine, record.variant.clone(), record.verdict);
        if !seen.insert(about) {
            return Err(refusal(number, "it says again what an earlier line says".to_owned()));
        }
        records.push(Record { source: Source::Import, ..record });
    }
    if records.len() as u64 != header.records {
        return Err(ImportError::Count { announced: header.records, found: records.len() as u64 });
    }
    Ok(records)
}

fn refusal(line: usize, reason: String) -> ImportError {
    // What serde quotes from the file is not fit for a terminal.
    let reason = reason.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).take(300).collect();
    ImportError::Line { line, reason }
}

/// The record that a line holds, or what is wrong with it.
fn check(line: &Line) -> Result<Record, String> {
    let text = |error: &dyn fmt::Display| error.to_string();
    let problem: unhang_conv::Problem = line.problem.parse().map_err(|error| text(&error))?;
    // One problem, one key: a second spelling of the same would pass for another record.
    if problem.to_string() != line.problem {
        return Err(format!("the key is not in its one form, which is {problem}"));
    }
    let source: Source = line.source.parse().map_err(|error| text(&error))?;
    if !matches!(source, Source::Probe | Source::Run) {
        return Err(format!("its source is {source}: only what was seen by a probe or in a run is taken"));
    }
    word("variant", &line.variant)?;
    word("machine", &line.machine)?;
    if line.machine.is_empty() {
        return Err("the machine is empty".to_owned());
    }
    for (name, value) in [("seconds", line.seconds), ("first_seconds", line.first_seconds)] {
        if value.is_some_and(|it| !it.is_finite() || !(0.0..=MAX_SECONDS).contains(&it)) {
            return Err(format!("{name} is {:?}: it must lie between 0 and {MAX_SECONDS}", value.unwrap_or_default()));
        }
    }
    if line.detail.chars().count() > MAX_DETAIL {
        return Err(format!("the detail is longer than {MAX_DETAIL} characters"));
    }
    if line.detail.chars().any(unprintable) {
        return Err("the detail holds control characters".to_owned());
    }
    let latest = time::now() + 2 * 86_400;
    if !(EARLIEST..=latest).contains(&line.unix_seconds) {
        return Err(format!("unix_seconds is {}: that is not a time since 2020", line.unix_seconds));
    }
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

/// Control characters, and those that turn text around or hide in it: a terminal or page that shows them can be made to
/// lie.
fn unprintable(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// A short word of harmless characters.
fn word(name: &str, text: &str) -> Result<(), String> {
    if text.len() > MAX_WORD {
        return Err(format!("the {name} is longer than {MAX_WORD} characters"));
    }
    match text.chars().find(|c| !(c.is_ascii_alphanumeric() || "._+-:=;,".contains(*c))) {
        Some(c) => Err(format!("the {name} holds {c:?}: only letters, digits and ._+-:=;, may stand there")),
        None => Ok(()),
    }
}
