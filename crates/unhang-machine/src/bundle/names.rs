//! What could identify somebody: names of users and hosts, and addresses of networks and memory.

use std::path::{Path, PathBuf};

use super::words::Words;
use crate::system::System;

/// What replaces a user's name; further users are numbered.
const SOMEBODY: &str = "user";
/// What replaces the host's name.
const SOMEWHERE: &str = "host";
/// What replaces an address.
const ADDRESS: &str = "ADDRESS";

/// The names to take out.
#[derive(Clone, Debug)]
pub(super) struct Names {
    pairs: Vec<(String, String)>,
    /// What is still personal after known names are removed.
    words: Words,
}

impl Names {
    /// The names of the user, of everybody else who has a home, and of the host.
    pub(super) fn of(system: &System) -> Names {
        let mut names = Names { pairs: Vec::new(), words: Words::default() };
        for variable in ["USER", "LOGNAME"] {
            names.add(system.variable(variable).map(str::to_owned), SOMEBODY);
        }
        names.add(system.home().and_then(|home| Some(home.file_name()?.to_str()?.to_owned())), SOMEBODY);
        for path in ["/proc/sys/kernel/hostname", "/etc/hostname"] {
            let name = system.line(path);
            names.add(name.as_ref().and_then(|name| name.split('.').next()).map(str::to_owned), SOMEWHERE);
            names.add(name, SOMEWHERE);
        }
        names.add(system.variable("HOSTNAME").map(str::to_owned), SOMEWHERE);
        let others = system.entries("/home").into_iter();
        for (index, other) in others.chain(system.variable("SUDO_USER").map(str::to_owned)).enumerate() {
            names.add(Some(other), &format!("{SOMEBODY}{}", index + 2));
        }
        // The longest first, so that a name inside another does not break it.
        names.pairs.sort_by_key(|(name, _)| std::cmp::Reverse(name.len()));
        names
    }

    fn add(&mut self, name: Option<String>, instead: &str) {
        if let Some(name) = name.filter(|name| name.len() > 1 && name != "root" && name != SOMEBODY && name != instead)
            && !self.pairs.iter().any(|(known, _)| known.eq_ignore_ascii_case(&name))
        {
            self.pairs.push((name, instead.to_owned()));
        }
    }

    pub(super) fn cleaned_path(&self, path: &Path) -> PathBuf {
        PathBuf::from(self.words.path(&self.cleaned_text(&path.to_string_lossy())))
    }

    /// Text that the kernel or a package wrote, without known names.
    pub(super) fn cleaned(&self, content: &[u8]) -> Vec<u8> {
        self.cleaned_text(&String::from_utf8_lossy(content)).into_bytes()
    }

    /// Our own text about the machine: paths and values as others may see them, and no mail addresses.
    pub(super) fn cleaned_report(&self, report: &[u8]) -> Vec<u8> {
        let text = self.words.text(&self.cleaned_text(&String::from_utf8_lossy(report)));
        replaced_words(&text, is_person).into_bytes()
    }

    /// A variable's value.
    pub(super) fn cleaned_value(&self, name: &str, value: &str) -> String {
        self.words.value(name, &self.cleaned_text(value))
    }

    /// A list of folders.
    pub(super) fn cleaned_folders(&self, value: &str) -> String {
        self.words.folders(&self.cleaned_text(value))
    }

    fn cleaned_text(&self, text: &str) -> String {
        let text = self.pairs.iter().fold(text.to_owned(), |text, (name, instead)| replaced(&text, name, instead));
        // Other users' homes anywhere in a path.
        let mut result = String::with_capacity(text.len());
        let mut rest = text.as_str();
        while let Some(at) = rest.find("/home/") {
            let (before, after) = rest.split_at(at + "/home/".len());
            let length = after.find(|c: char| !(c.is_alphanumeric() || "._-".contains(c))).unwrap_or(after.len());
            let name = &after[..length];
            result.push_str(before);
            let known = name.strip_prefix(SOMEBODY).is_some_and(|rest| rest.chars().all(|c| c.is_ascii_digit()));
            result.push_str(if known || name.is_empty() { name } else { "somebody" });
            rest = &after[length..];
        }
        result.push_str(rest);
        result
    }
}

/// Replaces a word in any capitalisation, unless a letter or digit precedes or follows it.
fn replaced(text: &str, word: &str, instead: &str) -> String {
    let mut result = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((at, length)) = find_ignoring_case(rest, word) {
        let (before, found, after) = (&rest[..at], &rest[at..at + length], &rest[at + length..]);
        let joined = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric());
        let inside = joined(before.chars().next_back().or(result.chars().next_back())) || joined(after.chars().next());
        result.push_str(before);
        result.push_str(if inside { found } else { instead });
        rest = after;
    }
    result.push_str(rest);
    result
}

/// Where a word stands first, and how many bytes it takes there.
fn find_ignoring_case(text: &str, word: &str) -> Option<(usize, usize)> {
    let wanted: Vec<char> = word.chars().flat_map(char::to_lowercase).collect();
    text.char_indices().find_map(|(at, _)| {
        let mut length = 0;
        let mut left = wanted.as_slice();
        for c in text[at..].chars() {
            if left.is_empty() {
                break;
            }
            for lower in c.to_lowercase() {
                left = left.split_first().filter(|(first, _)| **first == lower)?.1;
            }
            length += c.len_utf8();
        }
        left.is_empty().then_some((at, length))
    })
}

/// The text without addresses of networks, people and memory: `10.0.0.7`, `aa:bb:cc:dd:ee:ff`, `fe80::1`,
/// `anna@example.com`, `0x7f0012345678`. Addresses of PCI devices stay: every machine has the same.
pub(super) fn without_addresses(text: &str) -> String {
    replaced_words(text, is_address)
}

/// The text with the words of a kind replaced.
fn replaced_words(text: &str, is_meant: fn(&str) -> bool) -> String {
    let is_part = |c: char| c.is_ascii_alphanumeric() || ".:@_-+%".contains(c);
    let mut result = String::with_capacity(text.len());
    let mut rest = text;
    while !rest.is_empty() {
        let length = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
        let (word, after) = rest.split_at(length);
        let bare = word.trim_matches(['.', ':', '-', '_', '+']);
        if is_meant(bare) {
            result.push_str(&word.replacen(bare, ADDRESS, 1));
        } else {
            result.push_str(word);
        }
        let other = after.chars().next().map_or(0, char::len_utf8);
        result.push_str(&after[..other]);
        rest = &after[other..];
    }
    result
}

fn is_person(word: &str) -> bool {
    word.split_once('@').is_some_and(|(name, host)| !name.is_empty() && host.contains('.'))
}

fn is_address(word: &str) -> bool {
    let hexadecimal = |part: &str| part.bytes().all(|byte| byte.is_ascii_hexdigit());
    let is_ip = word.parse::<std::net::IpAddr>().is_ok() || word.parse::<std::net::SocketAddr>().is_ok();
    let is_card = word.split(':').count() == 6 && word.split(':').all(|part| part.len() == 2 && hexadecimal(part));
    let is_memory = word.strip_prefix("0x").is_some_and(|digits| digits.len() >= 9 && hexadecimal(digits))
        || word.len() == 16 && hexadecimal(word) && word.bytes().any(|byte| byte.is_ascii_digit());
    is_person(word) || is_ip || is_card || is_memory
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_words_are_replaced_however_they_are_written() {
        assert_eq!(replaced("/home/kevin/x kevin,kevinson kevin", "kevin", "user"), "/home/user/x user,kevinson user");
        assert_eq!(replaced("KEVIN's Kevin-Tower", "kevin", "user"), "user's user-Tower");
        assert_eq!(replaced("ÄNNE änne", "Änne", "user"), "user user");
        assert_eq!(replaced("aa", "a", "b"), "aa");
    }

    #[test]
    fn other_peoples_homes_are_nobodys() {
        let names = Names { pairs: vec![("kevin".to_owned(), SOMEBODY.to_owned())], words: Words::default() };
        let text = "PATH=/home/kevin/bin:/home/anna/bin:/usr/bin:/home/\nx=/home/user2/y";
        let clean = "PATH=/home/user/bin:/home/somebody/bin:/usr/bin:/home/\nx=/home/user2/y";
        assert_eq!(names.cleaned_text(text), clean);
    }

    #[test]
    fn addresses_are_taken_out_and_versions_stay() {
        for (text, clean) in [
            ("from 10.0.0.7:22 and fe80::1, ok", "from ADDRESS and ADDRESS, ok"),
            ("mac aa:bb:cc:dd:ee:ff.", "mac ADDRESS."),
            ("mail anna@example.com, please", "mail ADDRESS, please"),
            ("at 0x00007f0012345678 for 0x14", "at ADDRESS for 0x14"),
            ("[gfxhub] page fault at ffff8881a2b3c4d5", "[gfxhub] page fault at ADDRESS"),
            (
                "amdgpu 0000:03:00.0: amdgpu: ring gfx_0.0.0 timeout",
                "amdgpu 0000:03:00.0: amdgpu: ring gfx_0.0.0 timeout",
            ),
            ("HSA_OVERRIDE_GFX_VERSION=10.3.0", "HSA_OVERRIDE_GFX_VERSION=10.3.0"),
        ] {
            assert_eq!(without_addresses(text), clean);
        }
    }
}
