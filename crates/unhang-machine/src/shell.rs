//! Words of commands and scripts as a shell takes them.

/// Quotes a word for sh: single quotes, unless nothing needs them. Paths in commands that people copy may hold spaces,
/// and in a machine that somebody sent, anything.
///
/// ```
/// assert_eq!(unhang_machine::quoted("/home/anna/my venv/bin/pip"), "'/home/anna/my venv/bin/pip'");
/// assert_eq!(unhang_machine::quoted("/opt/venv/bin/pip"), "/opt/venv/bin/pip");
/// ```
pub fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "._-/:=+,@".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_quoted() {
        assert_eq!(quoted("10.3.0"), "10.3.0");
        assert_eq!(quoted("a;b"), "'a;b'");
        assert_eq!(quoted("$(id)`id`"), "'$(id)`id`'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
        assert_eq!(quoted(""), "''");
    }
}
