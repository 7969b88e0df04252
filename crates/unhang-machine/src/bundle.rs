//! A machine in one file: what the doctor read, and nothing else, for a bug report.
//!
//! While the doctor looks, [`System`] keeps a copy of each file that it reads; that set *is* the description, so a
//! bundle can never lack what the doctor needs or hold what it does not. Libraries are replaced by a few lines of text,
//! start-up files and logs by the lines that matter, and the names of the user and the host are taken out everywhere.
//! Unpacked, it is a folder for `--root`.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Component, Path, PathBuf};

use crate::findings::{Examination, Options, examine};
use crate::kernel;
use crate::leftovers::{self, OUR_MARK};
use crate::system::System;
use crate::variables;

/// What replaces the user's name.
const SOMEBODY: &str = "user";
/// What replaces the host's name.
const SOMEWHERE: &str = "host";
/// Variables that are kept besides those of the table, because they say where things lie.
const KEPT: &[&str] = &["HOME", "PATH", "VIRTUAL_ENV", "CONDA_PREFIX"];

/// A machine, collected.
#[derive(Clone, Debug)]
pub struct Bundle {
    /// The files, by their path on the machine, already cleaned.
    pub files: BTreeMap<PathBuf, Vec<u8>>,
    /// What the doctor says about it.
    pub examination: Examination,
    names: Names,
}

impl Bundle {
    /// Examines a machine and keeps what was read.
    pub fn collect(system: System, options: &Options) -> Bundle {
        let system = system.recording();
        let examination = examine(&system, options);
        let names = Names::of(&system);
        let mut files = BTreeMap::new();
        for (path, content) in system.recorded() {
            if let Some(clean) = cleaned(&path, &content) {
                files.insert(names.cleaned_path(&path), names.cleaned(&clean));
            }
        }
        let mut environment = String::new();
        for (name, value) in system.environment().iter() {
            if variables::concerns_us(name) || KEPT.contains(&name) {
                environment.push_str(&format!("{name}={}\n", value.replace(['\n', '\r'], " ")));
            }
        }
        files.insert(PathBuf::from("/environment"), names.cleaned(environment.as_bytes()));
        let report = serde_json::to_vec_pretty(&examination.to_json()).unwrap_or_default();
        files.insert(PathBuf::from("/doctor.json"), names.cleaned(&report));
        Bundle { files, examination, names }
    }

    /// Adds what was found out besides reading, such as a self-test's result, without names like all the rest.
    pub fn add_json(&mut self, name: &str, content: &serde_json::Value) {
        let content = serde_json::to_vec_pretty(content).unwrap_or_default();
        self.files.insert(Path::new("/").join(name), self.names.cleaned(&content));
    }

    /// Writes a gzipped tar file. No owner, no times: only names and contents.
    pub fn write(&self, to: impl Write) -> std::io::Result<()> {
        let mut archive = tar::Builder::new(flate2::write::GzEncoder::new(to, flate2::Compression::best()));
        for (path, content) in &self.files {
            let mut header = tar::Header::new_gnu();
            header.set_size(content.len() as u64);
            header.set_mode(0o644);
            header.set_mtime(0);
            // Only plain names: a path from outside must not lead out of the folder where this is unpacked.
            let inside: PathBuf = path
                .components()
                .filter_map(|part| match part {
                    Component::Normal(name) => Some(name),
                    _ => None,
                })
                .collect();
            archive.append_data(&mut header, Path::new("machine").join(inside), content.as_slice())?;
        }
        archive.into_inner()?.finish()?.flush()
    }
}

/// Takes out what does not matter. Nothing at all is kept of some files.
fn cleaned(path: &Path, content: &[u8]) -> Option<Vec<u8>> {
    let text = String::from_utf8_lossy(content);
    let kept = |keep: &dyn Fn(&str) -> bool| {
        let lines: Vec<&str> = text.lines().map(|line| if keep(line) { line } else { "" }).collect();
        Some(format!("{}\n", lines.join("\n")).into_bytes())
    };
    // The head of a SQLite file, without the rest, would look damaged.
    if ["udb", "ukdb", "kdb"].iter().any(|ending| path.extension().is_some_and(|it| it == *ending)) {
        return None;
    }
    if path == Path::new("/environment") {
        return None; // Written anew below.
    }
    if path.starts_with("/var/log") {
        let lines = kernel::relevant_log_lines(&text);
        return Some(lines.into_iter().flat_map(|(line, _)| format!("{line}\n").into_bytes()).collect());
    }
    if path == Path::new("/proc/version") {
        return kernel::parse_proc_version(&text).map(|version| format!("Linux version {version}\n").into_bytes());
    }
    let system_file = ["/sys", "/proc", "/dev", "/opt", "/usr", "/lib", "/lib64", "/etc/ld.so.conf.d"]
        .iter()
        .any(|start| path.starts_with(start));
    let library =
        path.components().any(|part| part.as_os_str() == "site-packages" || part.as_os_str() == "dist-packages");
    let database = path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.ends_with("db.txt"));
    if system_file || library || database || content.is_empty() {
        return Some(content.to_vec());
    }
    // Everything else is somebody's own file: only the lines that set our variables, and the line numbers.
    kept(&|line| {
        let ours = leftovers::parse_line(line);
        line.starts_with(OUR_MARK) || (!ours.is_empty() && ours.iter().all(|(name, _)| variables::concerns_us(name)))
    })
}

/// The names to take out.
#[derive(Clone, Debug)]
struct Names {
    pairs: Vec<(String, &'static str)>,
}

impl Names {
    fn of(system: &System) -> Names {
        let mut pairs: Vec<(String, &'static str)> = Vec::new();
        let mut add = |name: Option<String>, instead: &'static str| {
            if let Some(name) = name.filter(|name| name.len() > 1 && name != "root" && name != instead)
                && !pairs.iter().any(|(known, _)| *known == name)
            {
                pairs.push((name, instead));
            }
        };
        for variable in ["USER", "LOGNAME", "SUDO_USER"] {
            add(system.variable(variable).map(str::to_owned), SOMEBODY);
        }
        for home in system.homes() {
            add(home.file_name().and_then(|name| name.to_str()).map(str::to_owned), SOMEBODY);
        }
        for path in ["/proc/sys/kernel/hostname", "/etc/hostname"] {
            let name = system.line(path);
            add(name.as_ref().and_then(|name| name.split('.').next()).map(str::to_owned), SOMEWHERE);
            add(name, SOMEWHERE);
        }
        add(system.variable("HOSTNAME").map(str::to_owned), SOMEWHERE);
        // The longest first, so that a name inside another does not break it.
        pairs.sort_by_key(|(name, _)| std::cmp::Reverse(name.len()));
        Names { pairs }
    }

    fn cleaned_path(&self, path: &Path) -> PathBuf {
        PathBuf::from(self.cleaned_text(&path.to_string_lossy()))
    }

    fn cleaned(&self, content: &[u8]) -> Vec<u8> {
        self.cleaned_text(&String::from_utf8_lossy(content)).into_bytes()
    }

    fn cleaned_text(&self, text: &str) -> String {
        self.pairs.iter().fold(text.to_owned(), |text, (name, instead)| replaced(&text, name, instead))
    }
}

/// Replaces a word: not when letters or digits go on before or after it.
fn replaced(text: &str, word: &str, instead: &str) -> String {
    let mut result = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(word) {
        let (before, after) = (&rest[..at], &rest[at + word.len()..]);
        let joined = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric());
        let inside = joined(before.chars().next_back().or(result.chars().next_back())) || joined(after.chars().next());
        result.push_str(before);
        result.push_str(if inside { word } else { instead });
        rest = after;
    }
    result.push_str(rest);
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_words_are_replaced() {
        assert_eq!(replaced("/home/kevin/x kevin,kevinson kevin", "kevin", "user"), "/home/user/x user,kevinson user");
        assert_eq!(replaced("aa", "a", "b"), "aa");
    }

    #[test]
    fn own_files_keep_only_our_lines() {
        let text = b"export TOKEN=secret\nexport HSA_ENABLE_SDMA=0\nalias x=y\n";
        let kept = cleaned(Path::new("/home/kevin/.bashrc"), text).unwrap();
        assert_eq!(String::from_utf8(kept).unwrap(), "\nexport HSA_ENABLE_SDMA=0\n\n");
        assert_eq!(cleaned(Path::new("/home/kevin/.cache/miopen/2.20/gfx1030_18.ukdb"), b"SQLite"), None);
    }
}
