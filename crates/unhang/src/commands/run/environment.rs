//! Which variables a run gets. The user's own settings win, and are reported.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::{Path, PathBuf};

use serde::Serialize;
use unhang_machine::profile::Profile;

/// What happens to a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Action {
    /// It gets this value.
    Set,
    /// The user's value stays, although another was intended.
    Kept,
}

/// One variable, what happens to it, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Decision {
    /// The variable.
    pub name: &'static str,
    /// What happens.
    pub action: Action,
    /// The value that it has in the run.
    pub value: Option<String>,
    /// The intended value, if the user's stays; `None` if it should not be set.
    pub wanted: Option<String>,
    /// The reason.
    pub reason: String,
}

impl Decision {
    /// A variable that is set.
    pub(super) fn set(name: &'static str, value: String, reason: &str) -> Decision {
        Decision { name, action: Action::Set, value: Some(value), wanted: None, reason: reason.to_owned() }
    }

    /// Whether the variable has a value in the run that is not empty.
    pub(crate) fn holds_a_value(&self) -> bool {
        self.value.as_deref().is_some_and(|value| !value.is_empty())
    }
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.value.as_deref().unwrap_or_default();
        match (self.action, &self.wanted) {
            (Action::Set, _) => write!(f, "{}={value}  ({})", self.name, self.reason),
            (Action::Kept, Some(wanted)) => {
                write!(f, "{}={value} is yours and stays; unhang would set {wanted} ({})", self.name, self.reason)
            }
            (Action::Kept, None) => {
                write!(f, "{}={value} is yours and stays; unhang would unset it ({})", self.name, self.reason)
            }
        }
    }
}

/// The effect of a profile, given what is set. If it wants nothing set and finds nothing set, that is not a decision.
pub(crate) fn of_profile(profile: &Profile, why: &str, get: impl Fn(&str) -> Option<String>) -> Vec<Decision> {
    let mut decisions = Vec::new();
    for line in &profile.lines {
        let wanted = line.value.map(str::to_owned);
        // The reason for this profile is given once.
        let why = if decisions.is_empty() { format!("; {why}") } else { String::new() };
        let reason = format!("{} [{}{why}]", line.reason, profile.name);
        let (action, value) = match (get(line.name), &wanted) {
            (Some(present), Some(value)) if present == *value => continue,
            (Some(present), _) => (Action::Kept, Some(present)),
            (None, Some(value)) => (Action::Set, Some(value.clone())),
            (None, None) => continue,
        };
        let wanted = if action == Action::Kept { wanted } else { None };
        decisions.push(Decision { name: line.name, action, value, wanted, reason });
    }
    decisions
}

/// The chip that the runtime takes the card for in this run, if it is another one. A user's override that names the
/// card's own chip changes nothing, and is not mentioned.
pub(crate) fn settle_override(decisions: &mut Vec<Decision>, true_chip: Option<&str>) -> Option<String> {
    let at = decisions.iter().position(|it| it.name == "HSA_OVERRIDE_GFX_VERSION")?;
    let named = decisions[at].value.as_deref().and_then(unhang_machine::gfx_of_override)?;
    if true_chip != Some(&named) {
        return Some(named);
    }
    if decisions[at].action == Action::Kept && decisions[at].wanted.is_none() {
        decisions.remove(at);
    }
    None
}

/// Triton and inductor cache what they compiled, without the variable in the key: kernels compiled with buffer
/// operations would be used again. So if those are off, both get separate folders, unless they already have some.
pub(crate) fn caches(decisions: &[Decision], get: impl Fn(&str) -> Option<String>) -> Vec<Decision> {
    const KNOB: &str = "AMDGCN_USE_BUFFER_OPS";
    let decided = decisions.iter().find(|it| it.name == KNOB).and_then(|it| it.value.clone());
    if decided.or_else(|| get(KNOB)).as_deref() != Some("0") {
        return Vec::new();
    }
    let is_absolute = |path: &PathBuf| path.is_absolute();
    let named = |name: &str| get(name).map(PathBuf::from).filter(is_absolute);
    let Some(base) = named("XDG_CACHE_HOME").or_else(|| named("HOME").map(|home| home.join(".cache"))) else {
        return Vec::new();
    };
    let folder = |name: &'static str, below: &str| {
        let path = base.join("unhang").join(below).display().to_string();
        let reason = "keeps out kernels compiled with buffer operations, which write nothing here";
        get(name).is_none_or(|value| value.is_empty()).then(|| Decision::set(name, path, reason))
    };
    folder("TRITON_CACHE_DIR", "triton").into_iter().chain(folder("TORCHINDUCTOR_CACHE_DIR", "inductor")).collect()
}

/// The interpreter that a command is, if it is one, so that its packages are searched for torch. For a script, the one
/// in its first line.
pub(crate) fn python_of(program: &OsString) -> Vec<PathBuf> {
    let Some(path) = find_on_path(Path::new(program)).and_then(|path| std::path::absolute(path).ok()) else {
        return Vec::new();
    };
    let is_python =
        |path: &Path| path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with("python"));
    if is_python(&path) {
        return vec![path];
    }
    let mut start = [0u8; 256];
    let length =
        std::fs::File::open(&path).and_then(|mut file| std::io::Read::read(&mut file, &mut start)).unwrap_or_default();
    let text = String::from_utf8_lossy(&start[..length]);
    let interpreter = text.strip_prefix("#!").and_then(|rest| rest.split_whitespace().next()).map(PathBuf::from);
    interpreter.filter(|path| is_python(path)).into_iter().collect()
}

/// The program for a name, as the system finds it.
pub(crate) fn find_on_path(program: &Path) -> Option<PathBuf> {
    find_in(std::env::var_os("PATH").as_deref(), program)
}

fn find_in(folders: Option<&OsStr>, program: &Path) -> Option<PathBuf> {
    if program.components().count() > 1 {
        return program.is_file().then(|| program.to_owned());
    }
    std::env::split_paths(folders?).map(|folder| folder.join(program)).find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caches_of_kernels_that_write_nothing_stay_apart() {
        let names = |pairs: &[(&str, &str)], decisions: &[Decision]| {
            let get = |name: &str| pairs.iter().find(|(it, _)| *it == name).map(|(_, value)| (*value).to_owned());
            caches(decisions, get).into_iter().map(|it| (it.name, it.value.unwrap())).collect::<Vec<_>>()
        };
        let off = [Decision::set("AMDGCN_USE_BUFFER_OPS", "0".to_owned(), "")];
        let home = ("HOME", "/home/k");
        let both = [
            ("TRITON_CACHE_DIR", "/home/k/.cache/unhang/triton".to_owned()),
            ("TORCHINDUCTOR_CACHE_DIR", "/home/k/.cache/unhang/inductor".to_owned()),
        ];
        assert_eq!(names(&[home], &off), both);
        assert_eq!(names(&[home, ("AMDGCN_USE_BUFFER_OPS", "0")], &[]), both, "the user set it");
        assert_eq!(names(&[home, ("TRITON_CACHE_DIR", "/mine")], &off), both[1..], "the user's own stays");
        assert_eq!(names(&[home, ("AMDGCN_USE_BUFFER_OPS", "1")], &[]), []);
        assert_eq!(names(&[], &off), [], "no place that nobody named");
    }

    #[test]
    fn programs_are_found_in_the_order_of_folders_and_by_their_path() {
        let find = |folders: Option<&str>, program: &str| find_in(folders.map(OsStr::new), Path::new(program));
        assert_eq!(find(Some("/nowhere:/bin"), "sh"), Some(PathBuf::from("/bin/sh")));
        assert_eq!(find(Some("/nowhere"), "/bin/sh"), Some(PathBuf::from("/bin/sh")));
        assert_eq!(find(None, "/not/there"), None);
        assert_eq!(find(None, "sh"), None);
    }

    #[test]
    fn what_the_user_set_stays() {
        let profile = Profile::named("rocm5.2").unwrap();
        let set = |name: &str| match name {
            "HSA_OVERRIDE_GFX_VERSION" => Some("10.3.0".to_owned()),
            "MIOPEN_FIND_MODE" => Some("NORMAL".to_owned()),
            "MIOPEN_FIND_ENFORCE" => Some("3".to_owned()),
            _ => None,
        };
        let decisions = of_profile(&profile, "because", set);
        let gist: Vec<_> = decisions.iter().map(|it| (it.name, it.action, it.value.as_deref())).collect();
        let expected = [
            ("MIOPEN_DEBUG_CONV_GEMM", Action::Set, Some("0")),
            ("MIOPEN_FIND_MODE", Action::Kept, Some("NORMAL")),
            ("MIOPEN_FIND_ENFORCE", Action::Kept, Some("3")),
            ("AMDGCN_USE_BUFFER_OPS", Action::Set, Some("0")),
        ];
        assert_eq!(gist, expected);
        assert!(decisions[1].to_string().contains("is yours and stays; unhang would set FAST"));
        assert!(decisions[2].to_string().contains("is yours and stays; unhang would unset it"));
    }

    #[test]
    fn an_override_that_names_the_cards_own_chip_is_not_a_spoof() {
        let spoof = |profile: &str, value: &str| {
            let set = |name: &str| (name == "HSA_OVERRIDE_GFX_VERSION").then(|| value.to_owned());
            let mut decisions = of_profile(&Profile::named(profile).unwrap(), "because", set);
            let spoof = settle_override(&mut decisions, Some("gfx1010"));
            (spoof, decisions.iter().any(|it| it.name == "HSA_OVERRIDE_GFX_VERSION"))
        };
        assert_eq!(spoof("no-spoof", "10.1.0"), (None, false), "nothing to say");
        assert_eq!(spoof("no-spoof", "10.1.2"), (Some("gfx1012".to_owned()), true));
        assert_eq!(spoof("no-spoof", "10.3.0"), (Some("gfx1030".to_owned()), true));
        assert_eq!(spoof("rocm5.2", "10.1.0"), (None, true), "torch has no code for it: 10.3.0 is wanted");
    }

    #[test]
    fn a_python_is_known_by_name_or_first_line() {
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("tool");
        std::fs::write(&script, "#!/opt/venv/bin/python3.11 -u\nimport torch\n").unwrap();
        assert_eq!(python_of(&script.into_os_string()), [PathBuf::from("/opt/venv/bin/python3.11")]);
        let shell = folder.path().join("other");
        std::fs::write(&shell, "#!/bin/sh\n").unwrap();
        assert!(python_of(&shell.into_os_string()).is_empty());
        assert!(python_of(&"not-there-at-all".into()).is_empty());
    }
}
