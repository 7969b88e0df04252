//! Text for a terminal, wrapped at blanks.

/// Wraps text at blanks: `first` blanks before the first line, `rest` before the others. A word that is wider stays whole.
///
/// ```
/// assert_eq!(unhang_report::wrapped(12, "some words that are wrapped", 0, 2), "some words\n  that are\n  wrapped");
/// ```
pub fn wrapped(width: usize, text: &str, first: usize, rest: usize) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_stay_whole() {
        for width in [40, 100] {
            let text = wrapped(width, &"word ".repeat(40), 2, 4);
            assert!(text.lines().all(|line| line.len() <= width && !line.ends_with(' ')));
            assert!(text.starts_with("  word") && text.lines().nth(1).is_some_and(|line| line.starts_with("    word")));
            assert_eq!(wrapped(width, &"x".repeat(300), 0, 2).len(), 300);
        }
    }
}
