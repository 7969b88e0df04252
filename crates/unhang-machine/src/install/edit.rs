//! Changes text files line by line, so that a change can be removed even after others edited the file.
//!
//! A leftover line is not deleted: it becomes `: # unhang set aside: …`, a command that does nothing, because a bare
//! comment in `if …; then` … `fi` would be a syntax error. Files that are not scripts get a plain comment.

use std::path::Path;

use crate::assignments::parse_file;

/// The prefix of a line that was set aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Comment {
    /// In a script of a shell.
    Script,
    /// In a file that only has assignments.
    Plain,
}

impl Comment {
    fn mark(self) -> &'static [u8] {
        match self {
            Comment::Script => b": # unhang set aside: ",
            Comment::Plain => b"# unhang set aside: ",
        }
    }
}

/// The prefix for lines set aside in that file.
pub(crate) fn comment_for(path: &Path) -> Comment {
    let plain = path.extension().is_some_and(|ending| ending == "conf")
        || path.file_name().is_some_and(|name| name == "environment" || name == ".pam_environment");
    if plain { Comment::Plain } else { Comment::Script }
}

/// The line in a user's start-up file that reads the profile.
const OUR_LINE: &[u8] =
    b"if [ -r \"$HOME/.config/unhang/profile.sh\" ]; then . \"$HOME/.config/unhang/profile.sh\"; fi # Written by unhang\n";

/// Whether a line only sets or unsets telling variables, so that it can be set aside whole.
fn removable(line: &str) -> bool {
    let code = line.split(" #").next().unwrap_or_default().trim_end();
    if code.is_empty() || code.ends_with('\\') || code.contains([';', '&', '|', '`', '(', '<', '>', '{', '}']) {
        return false;
    }
    let balanced = |quote: char| code.matches(quote).count().is_multiple_of(2);
    let words =
        code.split_whitespace().filter(|word| !["export", "unset", "set", "-gx", "-x", "-Ux", "setenv"].contains(word));
    let found = parse_file(line).len();
    // One assignment a word; fish and csh have the value as a separate word.
    let separate = code.trim_start().starts_with("set ") || code.trim_start().starts_with("setenv ");
    balanced('\'') && balanced('"') && found > 0 && (separate || words.count() == found)
}

/// Sets the leftover lines aside; returns the new text and the numbers of lines that had to be left alone.
pub(crate) fn set_aside(content: &[u8], comment: Comment) -> (Vec<u8>, Vec<usize>) {
    let (mut result, mut left) = (Vec::with_capacity(content.len()), Vec::new());
    let mut continued = false;
    for (index, line) in content.split_inclusive(|byte| *byte == b'\n').enumerate() {
        let text = String::from_utf8_lossy(line);
        let telling = !parse_file(&text).is_empty();
        if telling && !continued && removable(text.trim_end_matches(['\n', '\r'])) {
            result.extend_from_slice(comment.mark());
        } else if telling {
            left.push(index + 1);
        }
        result.extend_from_slice(line);
        continued = line.trim_ascii_end().ends_with(b"\\");
    }
    (result, left)
}

/// Adds the line that reads the profile, at the end.
pub(super) fn with_our_line(content: &[u8]) -> Vec<u8> {
    let mut result = content.to_vec();
    if !result.is_empty() && !result.ends_with(b"\n") {
        result.push(b'\n');
    }
    result.extend_from_slice(OUR_LINE);
    result
}

/// Removes our marks and our line from a text that others have edited since.
pub(super) fn taken_out(content: &[u8], comment: Comment) -> Vec<u8> {
    let mut result = Vec::with_capacity(content.len());
    for line in content.split_inclusive(|byte| *byte == b'\n') {
        if line.trim_ascii_end() == OUR_LINE.trim_ascii_end() {
            continue;
        }
        result.extend_from_slice(line.strip_prefix(comment.mark()).unwrap_or(line));
    }
    result
}

/// The lines that differ, `-` and `+`; good enough for edits that add and change single lines.
pub(super) fn diff(before: &[u8], after: &[u8]) -> Vec<String> {
    let lines =
        |content: &[u8]| -> Vec<String> { String::from_utf8_lossy(content).lines().map(str::to_owned).collect() };
    let (before, after) = (lines(before), lines(after));
    let mut result = Vec::new();
    for index in 0..before.len().max(after.len()) {
        match (before.get(index), after.get(index)) {
            (Some(old), Some(new)) if old == new => {}
            (old, new) => {
                result.extend(old.map(|old| format!("-{old}")));
                result.extend(new.map(|new| format!("+{new}")));
            }
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn whole_lines_only() {
        assert!(removable("    export HSA_OVERRIDE_GFX_VERSION=10.3.0  # spoof"));
        assert!(removable("unset MIOPEN_FIND_ENFORCE"));
        assert!(removable("set -gx MIOPEN_FIND_MODE NORMAL"));
        for line in [
            "export HSA_XNACK=0; echo hello",
            "HSA_XNACK=0 python train.py",
            "export HSA_XNACK=0 PATH=/x",
            "export HSA_XNACK=0 \\",
            "export HSA_XNACK=\"0",
            "export HSA_XNACK=$(id)",
        ] {
            assert!(!removable(line), "{line}");
        }
    }

    #[test]
    fn a_lone_line_in_a_branch_leaves_a_command() {
        let (text, left) = set_aside(b"if true; then\n    export HSA_XNACK=0\nfi\n", Comment::Script);
        assert_eq!(
            String::from_utf8(text).unwrap(),
            "if true; then\n: # unhang set aside:     export HSA_XNACK=0\nfi\n"
        );
        assert_eq!(left, Vec::<usize>::new());
    }

    proptest! {
        #[test]
        fn edits_can_be_taken_out(lines in proptest::collection::vec("(export (HSA_XNACK|PATH|MIOPEN_FIND_MODE)=[a-z0-9;\\\\]{0,3}|[ -~]{0,20})", 0..12)) {
            let mut text = lines.join("\n").into_bytes();
            text.push(b'\n');
            for comment in [Comment::Script, Comment::Plain] {
                let (edited, _) = set_aside(&text, comment);
                prop_assert_eq!(&set_aside(&edited, comment).0, &edited, "twice is once");
                prop_assert_eq!(&taken_out(&edited, comment), &text);
                prop_assert_eq!(&taken_out(&with_our_line(&edited), comment), &text);
            }
        }
    }
}
