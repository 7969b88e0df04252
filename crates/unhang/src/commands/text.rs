//! Laying out text for people: wrapping, and output that a closed pipe does not turn into an error.

use std::io::{self, Write};
use std::time::Duration;

pub use crate::output::print_json as print_safe_json;

/// How wide text is laid out; the same everywhere, so that reports can be compared.
const WIDTH: usize = 100;

/// Wraps text at blanks: `first` blanks before the first line, `rest` before the others.
pub fn wrapped(text: &str, first: usize, rest: usize) -> String {
    let mut lines = Vec::new();
    let mut line = " ".repeat(first);
    let mut empty = true;
    for word in text.split_whitespace() {
        let wide = line.chars().count() + 1 + word.chars().count() > WIDTH;
        if wide && !empty {
            lines.push(std::mem::replace(&mut line, " ".repeat(rest)));
            empty = true;
        }
        if !empty {
            line.push(' ');
        }
        line.push_str(word);
        empty = false;
    }
    lines.push(line);
    lines.join("\n")
}

/// Prints text on standard output. A reader that went away (`| head`) is not an error.
pub fn print_text(text: &str) -> anyhow::Result<()> {
    match io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => Ok(other?),
    }
}

/// So many of something whose plural takes an s.
pub fn counted(count: u64, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}

/// A length of time: a number with ms, s, m or h.
pub fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = match unit {
        "ms" => 1e-3,
        "s" | "" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return Err(format!("{unit:?} is no unit of time: expected ms, s, m or h")),
    };
    let number: f64 = number.parse().map_err(|_| format!("{text:?} is no time: expected such as 90s, 10m or 2h"))?;
    Duration::try_from_secs_f64(number * unit).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::wrapped;

    #[test]
    fn words_stay_whole() {
        let text = wrapped(&"word ".repeat(40), 2, 4);
        assert!(text.lines().all(|line| line.len() <= 100 && !line.ends_with(' ')));
        assert!(text.starts_with("  word") && text.lines().nth(1).is_some_and(|line| line.starts_with("    word")));
        assert_eq!(wrapped(&"x".repeat(300), 0, 2).len(), 300);
    }
}
