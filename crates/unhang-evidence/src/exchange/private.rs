//! Removes from a text whatever names a person or a machine.

use std::fs;
use std::path::Path;

use unhang_guard::text::is_plain;

/// Words that must not leave this machine: the user's name, the host's.
#[derive(Debug, Clone, Default)]
pub struct Private {
    words: Vec<String>,
}

impl Private {
    /// The names of this machine and user, as far as they can be found.
    pub fn of_this_machine() -> Private {
        let mut words: Vec<String> =
            ["USER", "LOGNAME", "SUDO_USER", "HOSTNAME"].iter().filter_map(|name| std::env::var(name).ok()).collect();
        if let Some(home) = std::env::var_os("HOME") {
            words.extend(Path::new(&home).file_name().map(|name| name.to_string_lossy().into_owned()));
        }
        for file in ["/proc/sys/kernel/hostname", "/etc/hostname"] {
            words.extend(fs::read_to_string(file).ok());
        }
        Private::new(words)
    }

    /// These words. For a host name with a domain, also its first part alone.
    pub fn new(words: impl IntoIterator<Item = String>) -> Private {
        let mut result: Vec<String> = Vec::new();
        for word in words {
            let word = word.trim().to_lowercase();
            let first = word.split('.').next().unwrap_or_default().to_owned();
            for candidate in [word, first] {
                // A name of one or two letters occurs in every sentence.
                if candidate.chars().count() > 2 && !result.contains(&candidate) {
                    result.push(candidate);
                }
            }
        }
        // Longer ones first, so that a part does not prevent removing the whole.
        result.sort_by_key(|word| std::cmp::Reverse(word.len()));
        Private { words: result }
    }
}

/// The text without paths, addresses, user and host names, on one line and without control characters.
///
/// When in doubt, it removes: every quoted text and every word with a slash goes, even units and fractions.
pub fn sanitise(text: &str, private: &Private) -> String {
    let text: String = text.chars().map(|c| if is_plain(c) { c } else { ' ' }).collect();
    let mut result: Vec<String> = Vec::new();
    for piece in pieces(&text) {
        let replaced = if piece.contains(['/', '\\']) || piece.starts_with('~') {
            "<path>".to_owned()
        } else if piece.contains('@') {
            "<name>".to_owned()
        } else if is_address(piece) {
            "<address>".to_owned()
        } else {
            without_words(piece, &private.words)
        };
        let again = replaced.starts_with('<') && result.last() == Some(&replaced);
        if !again {
            result.push(replaced);
        }
    }
    result.join(" ")
}

/// Splits into words. A quoted text with a slash counts as one word, because a path may contain spaces.
fn pieces(text: &str) -> Vec<&str> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while let Some((at, quote)) = rest.char_indices().find(|(_, c)| matches!(c, '"' | '\'' | '`')) {
        let inside = &rest[at + 1..];
        match inside.find(quote) {
            Some(end) if inside[..end].contains('/') => {
                pieces.extend(rest[..at].split_whitespace());
                pieces.push(&rest[at..at + end + 2]);
                rest = &inside[end + 1..];
            }
            _ => {
                // Not the start of a quoted path: takes everything up to and including this quote, word by word.
                let upto = at + 1;
                let boundary = rest[upto..].find(char::is_whitespace).map_or(rest.len(), |next| upto + next);
                pieces.extend(rest[..boundary].split_whitespace());
                rest = &rest[boundary..];
            }
        }
    }
    pieces.extend(rest.split_whitespace());
    pieces
}

/// Whether it is an IP address with anything around it.
fn is_address(word: &str) -> bool {
    let core = word.trim_matches(|c: char| !c.is_ascii_hexdigit() && c != ':');
    core.parse::<std::net::IpAddr>().is_ok_and(|_| core.contains("::") || core.matches(['.', ':']).count() >= 3)
        || core.parse::<std::net::SocketAddr>().is_ok()
}

/// Removes the words wherever they stand as whole words, in any case.
fn without_words(text: &str, words: &[String]) -> String {
    let mut text = text.to_owned();
    for word in words {
        let mut from = 0;
        // Lower case may have another length in bytes. Positions would then not match, and the text is left as it is.
        while let Some(at) = lower(&text).and_then(|lower| lower.get(from..)?.find(word.as_str())).map(|at| at + from) {
            let end = at + word.len();
            let is_part = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
            if is_part(text[..at].chars().next_back()) || is_part(text[end..].chars().next()) {
                from = end;
            } else {
                text.replace_range(at..end, "<name>");
                from = at + "<name>".len();
            }
        }
    }
    text
}

fn lower(text: &str) -> Option<String> {
    let lower: String = text.chars().map(|c| c.to_lowercase().next().unwrap_or(c)).collect();
    (lower.len() == text.len()).then_some(lower)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: &str) {
        let private = Private::new(["kevin".to_owned(), "Big-Box.example.org\n".to_owned(), "ci".to_owned()]);
        assert_eq!(sanitise(text, &private), expected, "{text:?}");
    }

    #[test]
    fn nothing_private_is_left() {
        check("killed by SIGSEGV after 2.5 s", "killed by SIGSEGV after 2.5 s");
        check("HSA_STATUS_ERROR_MEMORY_APERTURE_VIOLATION: 0x29", "HSA_STATUS_ERROR_MEMORY_APERTURE_VIOLATION: 0x29");
        check("in /home/kevin/x.py:12, line 3", "in <path> line 3");
        check("open(\"/home/kevin/My Photos of Paris/a\") failed", "open( <path> ) failed");
        check("don't open '/srv/a b/c'", "don't open <path>");
        check("~/models/x ~kevin C:\\Users\\kevin", "<path>");
        check("user Kevin, on BIG-BOX!", "user <name>, on <name>!");
        check("kevin@big-box.example.org", "<name>");
        check("kevinism is no name", "kevinism is no name");
        check("from 192.168.1.17:22 and (fe80::1)", "from <address> and <address>");
        check("torch 2.2.2+rocm5.7", "torch 2.2.2+rocm5.7");
        check("\x1b[31mred\nline\u{202e}", "[31mred line");
        check("ci is too short to be told from a word", "ci is too short to be told from a word");
        check("İkevin kevin", "İkevin <name>");
    }
}
