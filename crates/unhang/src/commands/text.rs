//! Formats text for people: wrapping, and output that a closed pipe does not turn into an error.

use std::io::{self, Write};
use std::sync::OnceLock;

use crate::output::{NARROWEST, columns, printed};

pub(super) use crate::output::print_json as print_safe_json;
pub(super) use unhang_guard::time::{deadline, duration};
pub(super) use unhang_machine::counted;

/// The largest width of text, and the width if the terminal's is unknown, so that reports can be compared.
const WIDEST: usize = 100;

/// The width of text: from `COLUMNS`, or else the terminal's.
pub(super) fn width() -> usize {
    static WIDTH: OnceLock<usize> = OnceLock::new();
    *WIDTH.get_or_init(|| columns(&io::stdout()).unwrap_or(WIDEST).clamp(NARROWEST, WIDEST))
}

/// Wraps text at spaces, with `first` spaces before the first line and `rest` before the others.
pub(super) fn wrapped(text: &str, first: usize, rest: usize) -> String {
    unhang_report::wrapped(width(), text, first, rest)
}

/// A known fact within the terminal's width: what it is, and below it its source and what was seen.
pub(super) fn entry(what: &str, facts: &[&str], detail: &str) -> String {
    let facts: Vec<&str> = facts.iter().copied().filter(|fact| !fact.is_empty()).collect();
    let below = if detail.is_empty() { facts.join(", ") } else { format!("{}: {detail}", facts.join(", ")) };
    format!("{}\n{}\n", wrapped(&unhang_guard::printable(what), 0, 4), wrapped(&unhang_guard::printable(&below), 4, 4))
}

/// Prints text on standard output. A reader that went away (`| head`) is not an error.
pub(super) fn print_text(text: &str) -> anyhow::Result<()> {
    printed(io::stdout().lock().write_all(text.as_bytes()))
}
