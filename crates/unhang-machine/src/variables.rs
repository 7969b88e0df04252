//! Every environment variable that bears on convolutions on AMD cards, declared once.
//!
//! The doctor, the profiles and `docs/environment.md` all read this table. Meanings, values and defaults were read in
//! the sources of MIOpen and ROCr 5.2.3, 5.7.1 and 6.2.2 (and HIP's and PyTorch's documentation). `NAMES_*` are the
//! names that exist in any of those sources. They tell a name which exists nowhere from one that we merely do not
//! describe.

mod table;
mod variable;

pub use table::{IMAGINARY, VARIABLES};
pub use variable::{Owner, Read, Variable, VariableKind};

/// Every `MIOPEN_` name that is declared in the sources of 5.2.3, 5.7.1, 6.2.2 or the October 2024 state.
const NAMES_MIOPEN: &str = include_str!("variables/names_miopen.txt");
/// Every `HSA_` name that ROCr or libhsakmt asks for, in the same versions.
const NAMES_HSA: &str = include_str!("variables/names_hsa.txt");

/// The five switches for whole families of solvers.
pub const SOLVER_FAMILIES: &[&str] = &[
    "MIOPEN_DEBUG_CONV_GEMM",
    "MIOPEN_DEBUG_CONV_IMPLICIT_GEMM",
    "MIOPEN_DEBUG_CONV_WINOGRAD",
    "MIOPEN_DEBUG_CONV_DIRECT",
    "MIOPEN_DEBUG_CONV_FFT",
];

/// Looks a variable up. `HSA_OVERRIDE_GFX_VERSION_1` is the plain one, for one node.
pub fn find(name: &str) -> Option<&'static Variable> {
    let name = match name.strip_prefix("HSA_OVERRIDE_GFX_VERSION_") {
        Some(node) if !node.is_empty() && node.bytes().all(|byte| byte.is_ascii_digit()) => "HSA_OVERRIDE_GFX_VERSION",
        _ => name,
    };
    VARIABLES.iter().find(|variable| variable.name == name)
}

/// What a name is, as far as the sources tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Known {
    /// In the table.
    Described(&'static Variable),
    /// Some version reads it, but the table leaves it out.
    Exists,
    /// Nothing reads it; the truth about it, and the name that was perhaps meant.
    Imaginary {
        /// What is true instead.
        truth: Option<&'static str>,
        /// The nearest name that exists.
        meant: Option<&'static str>,
    },
    /// None of our business.
    Foreign,
}

/// Says what a name is.
pub fn classify(name: &str) -> Known {
    if let Some(variable) = find(name) {
        return Known::Described(variable);
    }
    if let Some((_, truth)) = IMAGINARY.iter().find(|(imaginary, _)| *imaginary == name) {
        return Known::Imaginary { truth: Some(truth), meant: nearest(name) };
    }
    let listed = |names: &'static str| names.lines().any(|known| known == name);
    // MIOpen's and HSA's names are all listed: one that is not there does not exist. Of the other prefixes we know
    // too little for that, and only a near miss of a known name is suspicious.
    if name.starts_with("MIOPEN_") {
        return if listed(NAMES_MIOPEN) {
            Known::Exists
        } else {
            Known::Imaginary { truth: None, meant: nearest(name) }
        };
    }
    if name.starts_with("HSA_") {
        return if listed(NAMES_HSA) { Known::Exists } else { Known::Imaginary { truth: None, meant: nearest(name) } };
    }
    let ours = ["HIP_", "ROCR_", "ROCBLAS_", "PYTORCH_", "UNHANG_", "MIOPEN", "HSA", "AMD_"];
    // Most variables of a process do not concern us; the search for a near miss is only worthwhile for those that may.
    let misspelt =
        ours.iter().any(|prefix| name.starts_with(prefix)) || name.bytes().any(|byte| byte.is_ascii_lowercase());
    match misspelt.then(|| nearest(name)).flatten() {
        Some(meant) if VARIABLES.iter().any(|variable| variable.name == meant) => {
            Known::Imaginary { truth: None, meant: Some(meant) }
        }
        _ => Known::Foreign,
    }
}

/// Whether a name concerns us: the doctor lists it and a bundle keeps it.
pub fn concerns_us(name: &str) -> bool {
    classify(name) != Known::Foreign
}

/// The nearest existing name within two edits of a letter (or a difference of case only).
fn nearest(name: &str) -> Option<&'static str> {
    if name.len() > 80 || !name.contains('_') {
        return None;
    }
    let all = VARIABLES.iter().map(|variable| variable.name).chain(NAMES_MIOPEN.lines()).chain(NAMES_HSA.lines());
    let upper = name.to_uppercase();
    all.filter_map(|known| Some((distance(&upper, known, 2)?, known)))
        .min_by_key(|(distance, _)| *distance)
        .map(|it| it.1)
}

/// Edits (insert, delete, replace, swap neighbours) from one text to the other, if at most `most`.
pub fn distance(one: &str, other: &str, most: usize) -> Option<usize> {
    let (one, other) = (one.as_bytes(), other.as_bytes());
    if one.len().abs_diff(other.len()) > most {
        return None;
    }
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=other.len()).collect();
    for row in 1..=one.len() {
        let mut line = vec![row; other.len() + 1];
        for column in 1..=other.len() {
            let same = one[row - 1] == other[column - 1];
            line[column] = (last[column] + 1).min(line[column - 1] + 1).min(last[column - 1] + usize::from(!same));
            if row > 1 && column > 1 && one[row - 1] == other[column - 2] && one[row - 2] == other[column - 1] {
                line[column] = line[column].min(before[column - 2] + 1);
            }
        }
        before = std::mem::replace(&mut last, line);
    }
    let edits = last[other.len()];
    (edits <= most).then_some(edits)
}

/// The table as a page for `docs/environment.md`; a test keeps the two equal.
pub fn as_markdown() -> String {
    let mut page = String::from(
        "# Environment variables\n\n\
         ```\n\
         unhang env print --explain      # the few variables that make sense here, with reasons\n\
         unhang doctor                   # which of your variables do harm, or nothing\n\
         ```\n\n\
         `unhang run` sets what your program needs; you rarely set any of these yourself. The last column\n\
         says when a variable is read: if you set it later, it does nothing. Meanings and defaults come from\n\
         the sources of MIOpen and ROCr 5.2.3, 5.7.1 and 6.2.2, and from HIP's and PyTorch's documentation. A\n\
         test keeps this page equal to `crates/unhang-machine/src/variables/table.rs`.\n",
    );
    let is_internal = |variable: &&Variable| variable.owner == Owner::Unhang && variable.meaning.starts_with("set by ");
    let mut owners: Vec<Owner> = Vec::new();
    for variable in VARIABLES {
        if !owners.contains(&variable.owner) {
            owners.push(variable.owner);
        }
    }
    for owner in owners {
        let own = VARIABLES.iter().filter(|variable| variable.owner == owner && !is_internal(variable));
        page.push_str(&section(owner.name(), own));
    }
    page.push_str(&section("Set by unhang itself: leave them alone", VARIABLES.iter().filter(is_internal)));
    page.push_str("\n## Variables that do not exist\n\nGuides set these, but no source reads them.\n\n");
    page.push_str("| name | the truth |\n|---|---|\n");
    for (name, truth) in IMAGINARY {
        page.push_str(&format!("| `{name}` | {truth} |\n"));
    }
    page
}

/// One heading of the page, and its variables.
fn section<'v>(heading: &str, variables: impl Iterator<Item = &'v Variable>) -> String {
    let mut text = format!("\n## {heading}\n\n| variable | what it does | values | when not set | read |\n");
    text.push_str("|---|---|---|---|---|\n");
    for variable in variables {
        let Variable { name, meaning, values, default, read, .. } = variable;
        text.push_str(&format!("| `{name}` | {meaning} | {values} | {default} | {} |\n", read.words()));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_grouped() {
        for (index, variable) in VARIABLES.iter().enumerate() {
            assert!(VARIABLES[..index].iter().all(|other| other.name != variable.name), "{} twice", variable.name);
            assert!(!variable.meaning.is_empty() && !variable.values.is_empty() && !variable.default.is_empty());
        }
        for (name, _) in IMAGINARY {
            assert!(find(name).is_none() && !NAMES_MIOPEN.lines().chain(NAMES_HSA.lines()).any(|known| known == *name));
        }
    }

    #[test]
    fn every_described_miopen_and_hsa_name_is_in_the_sources() {
        for variable in VARIABLES {
            match variable.owner {
                Owner::MIOpen => assert!(NAMES_MIOPEN.lines().any(|name| name == variable.name), "{}", variable.name),
                Owner::Hsa if variable.name.starts_with("HSA_") => {
                    assert!(NAMES_HSA.lines().any(|name| name == variable.name), "{}", variable.name);
                }
                _ => {}
            }
        }
    }

    #[test]
    fn names_are_classified() {
        assert!(matches!(classify("MIOPEN_FIND_MODE"), Known::Described(_)));
        assert!(matches!(classify("HSA_OVERRIDE_GFX_VERSION_1"), Known::Described(_)));
        assert_eq!(classify("MIOPEN_DEBUG_CONV_MLIR_IGEMM_FWD"), Known::Exists);
        assert!(matches!(classify("HIP_FORCE_COARSE_GRAIN"), Known::Imaginary { truth: Some(_), .. }));
        let meant = |name| match classify(name) {
            Known::Imaginary { meant, .. } => meant,
            _ => None,
        };
        assert_eq!(meant("MIOPEN_FIND_MOD"), Some("MIOPEN_FIND_MODE"));
        assert_eq!(meant("MIOPEN_DEBUG_CONV_WINGORAD"), Some("MIOPEN_DEBUG_CONV_WINOGRAD"));
        assert_eq!(meant("HSA_OVERIDE_GFX_VERSION"), Some("HSA_OVERRIDE_GFX_VERSION"));
        assert_eq!(meant("HIP_VISIBLE_DEVICE"), Some("HIP_VISIBLE_DEVICES"));
        assert_eq!(meant("hip_visible_devices"), Some("HIP_VISIBLE_DEVICES"));
        for name in ["PATH", "HOME", "HIP_CLANG_PATH", "AMD_SOMETHING_ELSE", "LANG", "TERM", "no_proxy"] {
            assert_eq!(classify(name), Known::Foreign, "{name}");
        }
    }

    #[test]
    fn distances() {
        assert_eq!(distance("abc", "abc", 2), Some(0));
        assert_eq!(distance("acb", "abc", 2), Some(1));
        assert_eq!(distance("abc", "xyz", 2), None);
    }
}
