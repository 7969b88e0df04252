//! Laying out text for people: wrapping, and output that a closed pipe does not turn into an error.

use std::io::{self, Write};

pub use crate::output::print_json as print_safe_json;
pub use unhang_guard::time::{deadline, duration};
pub use unhang_machine::counted;

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
