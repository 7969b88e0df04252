//! Laying out text for people: wrapping, and output that a closed pipe does not turn into an error.

use std::io::{self, IsTerminal, Write};
use std::sync::OnceLock;

pub(super) use crate::output::print_json as print_safe_json;
pub(super) use unhang_guard::time::{deadline, duration};
pub(super) use unhang_machine::counted;

/// The widest that text is laid out, and how it is where nobody knows the width: reports can be compared then.
const WIDEST: usize = 100;
/// Narrower than this nothing reads well.
const NARROWEST: usize = 40;

/// How wide text is laid out: as `COLUMNS` says, else as the terminal is.
pub(super) fn width() -> usize {
    static WIDTH: OnceLock<usize> = OnceLock::new();
    *WIDTH.get_or_init(|| {
        let named = std::env::var("COLUMNS").ok().and_then(|columns| columns.trim().parse::<usize>().ok());
        let stdout = io::stdout();
        let of_terminal = || {
            let size = stdout.is_terminal().then(|| rustix::termios::tcgetwinsize(&stdout).ok()).flatten();
            size.map(|size| usize::from(size.ws_col)).filter(|columns| *columns > 0)
        };
        named.or_else(of_terminal).unwrap_or(WIDEST).clamp(NARROWEST, WIDEST)
    })
}

/// Wraps text at blanks: `first` blanks before the first line, `rest` before the others.
pub(super) fn wrapped(text: &str, first: usize, rest: usize) -> String {
    wrapped_to(width(), text, first, rest)
}

fn wrapped_to(width: usize, text: &str, first: usize, rest: usize) -> String {
    let mut lines = Vec::new();
    let mut line = " ".repeat(first);
    let mut empty = true;
    for word in text.split_whitespace() {
        let wide = line.chars().count() + 1 + word.chars().count() > width;
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

/// Something that is known, within the terminal's width: what it is, and below it where from and what was seen.
pub(super) fn entry(what: &str, facts: &[&str], detail: &str) -> String {
    let facts: Vec<&str> = facts.iter().copied().filter(|fact| !fact.is_empty()).collect();
    let below = if detail.is_empty() { facts.join(", ") } else { format!("{}: {detail}", facts.join(", ")) };
    format!("{}\n{}\n", wrapped(&unhang_guard::printable(what), 0, 4), wrapped(&unhang_guard::printable(&below), 4, 4))
}

/// Prints text on standard output. A reader that went away (`| head`) is not an error.
pub(super) fn print_text(text: &str) -> anyhow::Result<()> {
    match io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => Ok(other?),
    }
}

#[cfg(test)]
mod tests {
    use super::wrapped_to;

    #[test]
    fn words_stay_whole() {
        for width in [40, 100] {
            let text = wrapped_to(width, &"word ".repeat(40), 2, 4);
            assert!(text.lines().all(|line| line.len() <= width && !line.ends_with(' ')));
            assert!(text.starts_with("  word") && text.lines().nth(1).is_some_and(|line| line.starts_with("    word")));
            assert_eq!(wrapped_to(width, &"x".repeat(300), 0, 2).len(), 300);
        }
    }
}
