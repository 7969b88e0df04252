//! The one filter for outside text: file names, symbols of code objects, output of other programs.

/// Whether a character may be shown. Control characters drive a terminal (C1 codes too: U+009B alone starts an escape
/// sequence). Characters that reverse the writing direction or have no width disguise text.
pub fn is_plain(c: char) -> bool {
    let is_hidden = matches!(
        c,
        '\u{ad}'
            | '\u{61c}'
            | '\u{180e}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e0fff}'
    );
    !c.is_control() && !is_hidden
}

/// Replaces everything that could drive a terminal or disguise text. Line ends and tabs stay.
///
/// ```
/// assert_eq!(unhang_guard::printable("a\x1b[31mb\u{9b}c\u{202e}d\n"), "a\u{fffd}[31mb\u{fffd}c\u{fffd}d\n");
/// ```
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if is_plain(c) || c == '\n' || c == '\t' { c } else { '\u{fffd}' }).collect()
}

/// Makes text printable on one line: line ends and tabs become blanks.
pub fn printable_line(text: &str) -> String {
    printable(text).replace(['\n', '\t'], " ")
}

/// Text as part of a file's name. Letters, digits, `.`, `_` and `-` stay; anything else becomes `_`. It is short
/// enough for file systems with something appended. It contains no separator, and a leading dot gets a `_` in front.
///
/// ```
/// assert_eq!(unhang_guard::text::file_name("gfx1030/../../x"), "gfx1030_.._.._x");
/// assert_eq!(unhang_guard::text::file_name(".."), "_..");
/// ```
pub fn file_name(text: &str) -> String {
    const LONGEST: usize = 120;
    let is_kept = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let name: String = text.chars().take(LONGEST).map(|c| if is_kept(c) { c } else { '_' }).collect();
    if name.is_empty() || name.starts_with('.') { format!("_{name}") } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_drives_or_disguises_passes() {
        for c in ["\0", "\x07", "\x1b", "\x7f", "\u{85}", "\u{9b}", "\u{200b}", "\u{202e}", "\u{2066}", "\u{e0041}"] {
            assert_eq!(printable(c), "\u{fffd}", "{c:?}");
        }
        assert_eq!(printable("two\nlines\tand é, 3×3, 中"), "two\nlines\tand é, 3×3, 中");
        assert_eq!(printable_line("a\nb\tc\rd"), "a b c\u{fffd}d");
    }

    #[test]
    fn file_names_lead_nowhere() {
        assert_eq!(file_name(""), "_");
        assert_eq!(file_name("a/b\0c\n"), "a_b_c_");
        assert!(file_name(&"x".repeat(5000)).len() < 200);
    }
}
