//! Wraps text for a terminal.

/// Wraps text at spaces, with `first` spaces before the first line and `rest` before the others. A word that is wider
/// stays whole. So does a command between backticks that fits on a line, because people copy it.
///
/// ```
/// assert_eq!(unhang_report::wrapped(12, "some words that are wrapped", 0, 2), "some words\n  that are\n  wrapped");
/// assert_eq!(unhang_report::wrapped(12, "then type `ls -l`.", 0, 2), "then type\n  `ls -l`.");
/// ```
pub fn wrapped(width: usize, text: &str, first: usize, rest: usize) -> String {
    let mut lines = Vec::new();
    let mut line = " ".repeat(first);
    let mut empty = true;
    for word in units(text, width.saturating_sub(rest)) {
        let wide = line.chars().count() + 1 + word.chars().count() > width;
        if wide && !empty {
            lines.push(std::mem::replace(&mut line, " ".repeat(rest)));
            empty = true;
        }
        if !empty {
            line.push(' ');
        }
        line.push_str(&word);
        empty = false;
    }
    lines.push(line);
    lines.join("\n")
}

/// The units that a line break must not split: words, and commands between backticks of at most that many characters.
fn units(text: &str, most: usize) -> Vec<String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let mut units: Vec<String> = Vec::new();
    let mut at = 0;
    while at < words.len() {
        // The words up to the one with the closing backtick; this word alone if none has it.
        let mut is_open = false;
        let end = words[at..].iter().position(|word| {
            is_open ^= word.matches('`').count() % 2 == 1;
            !is_open
        });
        let end = at + 1 + end.unwrap_or(0);
        let unit = words[at..end].join(" ");
        if unit.chars().count() > most {
            units.extend(words[at..end].iter().map(|word| (*word).to_owned()));
        } else {
            units.push(unit);
        }
        at = end;
    }
    units
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_stay_whole_where_they_fit() {
        let text = "Start it with `unhang run -- python train.py`, then wait.";
        assert_eq!(wrapped(40, text, 0, 2), "Start it with\n  `unhang run -- python train.py`, then\n  wait.");
        assert_eq!(wrapped(20, text, 0, 2).lines().nth(1), Some("  `unhang run --"), "too wide for a line");
        let two = "Type `unhang run -- python train.py` or `ls -l`.";
        assert_eq!(
            wrapped(20, two, 0, 0),
            "Type `unhang run --\npython train.py` or\n`ls -l`.",
            "the command after one that is too wide"
        );
        assert_eq!(wrapped(20, "a ` without a partner in the text", 0, 0), "a ` without a\npartner in the text");
    }

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
