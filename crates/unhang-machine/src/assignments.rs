//! Lines that set or unset variables in start-up files, as shells, units and rules write them.

use serde::Serialize;

use crate::variables::{self, Known, Owner};

/// A file with more relevant lines than this was not written by a person.
const MOST_LINES: usize = 200;

/// A line that sets or unsets a variable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Assignment {
    /// The line, counted from 1.
    pub line: usize,
    /// The variable.
    pub name: String,
    /// The value as written, without quotes; `None` if the line unsets the variable.
    pub value: Option<String>,
}

/// Whether a variable in a start-up file is a sign of an earlier attempt. Which cards to show, where libraries are and
/// how much is logged is up to the user.
fn telling(name: &str) -> bool {
    match variables::classify(name) {
        Known::Described(variable) => match variable.owner {
            Owner::MIOpen => true,
            Owner::Hsa => !["HSA_TOOLS_LIB", "HSA_TOOLS_ROCPROFILER_V1_TOOLS", "ROCR_VISIBLE_DEVICES", "HSA_CU_MASK"]
                .contains(&variable.name),
            Owner::PyTorch => variable.name == "PYTORCH_ROCM_ARCH",
            _ => false,
        },
        Known::Exists | Known::Imaginary { .. } => {
            ["MIOPEN_", "HSA_", "HIP_"].iter().any(|prefix| name.starts_with(prefix))
        }
        Known::Foreign => false,
    }
}

/// Reads the assignments of one line: shell, fish, csh, environment.d, systemd units, udev rules.
///
/// ```text
///     export HSA_OVERRIDE_GFX_VERSION=10.3.0
/// unset MIOPEN_FIND_ENFORCE
/// set -gx MIOPEN_FIND_MODE NORMAL
/// Environment="HSA_ENABLE_SDMA=0" MIOPEN_LOG_LEVEL=3
/// ENV{HSA_OVERRIDE_GFX_VERSION}="10.3.0"
/// ```
pub(crate) fn parse_line(line: &str) -> Vec<(String, Option<String>)> {
    let line = line.trim();
    if line.is_empty() || line.starts_with('#') || line.len() > 4096 {
        return Vec::new();
    }
    if let Some(rest) = line.strip_prefix("unset ") {
        let names = rest.split_whitespace().take_while(|word| !word.starts_with('#'));
        return names.filter(|name| is_name(name)).map(|name| (name.to_owned(), None)).collect();
    }
    for command in ["set -gx ", "set -Ux ", "set -x ", "set -xg ", "set --global --export ", "setenv "] {
        if let Some(rest) = line.strip_prefix(command) {
            let mut words = rest.splitn(2, char::is_whitespace);
            let (name, value) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
            return if is_name(name) { vec![(name.to_owned(), Some(bare(value)))] } else { Vec::new() };
        }
    }
    if let Some(rest) = line.strip_prefix("ENV{") {
        let Some((name, value)) = rest.split_once('}') else { return Vec::new() };
        let value = value.trim_start_matches(['=', '+', ' ']);
        return if is_name(name) { vec![(name.to_owned(), Some(bare(value)))] } else { Vec::new() };
    }
    let rest = ["export ", "declare -x ", "typeset -x ", "Environment=", "DefaultEnvironment="]
        .iter()
        .find_map(|start| line.strip_prefix(start))
        .unwrap_or(line);
    let mut found = Vec::new();
    for word in words(rest) {
        // `A=1 B=2` sets both; the first word that is not an assignment ends it, as in `A=1 command`.
        match word.split_once('=') {
            Some((name, value)) if is_name(name) => found.push((name.to_owned(), Some(bare(value)))),
            _ => break,
        }
    }
    found
}

fn is_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= 128
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        && !name.as_bytes()[0].is_ascii_digit()
}

/// Splits at white space and `;`, outside of quotes; `#` starts a comment; a whole quoted word loses its quotes.
fn words(text: &str) -> Vec<String> {
    let (mut all, mut word, mut quote) = (Vec::new(), String::new(), None);
    for c in text.chars() {
        match quote {
            Some(open) if c == open => quote = None,
            Some(_) => word.push(c),
            None if c == '\'' || c == '"' => quote = Some(c),
            None if c == '#' && word.is_empty() => break,
            None if c.is_whitespace() || c == ';' => {
                if !word.is_empty() {
                    all.push(std::mem::take(&mut word));
                }
            }
            None => word.push(c),
        }
    }
    if !word.is_empty() {
        all.push(word);
    }
    all
}

fn bare(value: &str) -> String {
    words(value).into_iter().next().unwrap_or_default().chars().take(256).collect()
}

/// Finds the telling lines of a file.
pub(crate) fn parse_file(text: &str) -> Vec<Assignment> {
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        for (name, value) in parse_line(line) {
            if telling(&name) && found.len() < MOST_LINES {
                found.push(Assignment { line: index + 1, name, value });
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lines_of_all_dialects() {
        let one = |name: &str, value: &str| vec![(name.to_owned(), Some(value.to_owned()))];
        assert_eq!(
            parse_line("    export HSA_OVERRIDE_GFX_VERSION=10.3.0  # spoof"),
            one("HSA_OVERRIDE_GFX_VERSION", "10.3.0")
        );
        assert_eq!(parse_line("MIOPEN_FIND_MODE=\"NORMAL\""), one("MIOPEN_FIND_MODE", "NORMAL"));
        assert_eq!(parse_line("set -gx MIOPEN_FIND_MODE NORMAL"), one("MIOPEN_FIND_MODE", "NORMAL"));
        assert_eq!(parse_line("ENV{HSA_XNACK}=\"0\""), one("HSA_XNACK", "0"));
        assert_eq!(parse_line("unset A B # c"), [("A".to_owned(), None), ("B".to_owned(), None)]);
        assert_eq!(parse_line("Environment=\"HSA_ENABLE_SDMA=0\" MIOPEN_LOG_LEVEL=3").len(), 2);
        assert_eq!(parse_line("# export HSA_XNACK=0"), []);
        assert_eq!(parse_line("if [ x = y ]; then"), []);
    }

    #[test]
    fn only_telling_lines_count() {
        let text =
            "export PATH=/x\nexport HIP_VISIBLE_DEVICES=0\nexport HSA_ENABLE_SDMA=0\nexport HIP_FORCE_COARSE_GRAIN=1\n";
        let lines: Vec<_> = parse_file(text).into_iter().map(|it| (it.line, it.name)).collect();
        assert_eq!(lines, [(3, "HSA_ENABLE_SDMA".to_owned()), (4, "HIP_FORCE_COARSE_GRAIN".to_owned())]);
    }

    proptest! {
        #[test]
        fn parsers_take_anything(text in "(?s).{0,300}") {
            let _ = parse_file(&text);
            for start in ["export ", "unset ", "set -gx ", "ENV{", "Environment=", "setenv "] {
                let _ = parse_line(&format!("{start}{text}"));
            }
        }
    }
}
