//! A machine in one file: what the doctor read, and nothing else, for a bug report.
//!
//! While the doctor looks, [`System`] keeps a copy of each file that it reads. That set *is* the description, so a
//! bundle can never lack what the doctor needs or hold what it does not. Libraries are replaced by a few lines of text,
//! and logs by the lines that matter. Of people's own files nothing is copied: what sets a variable of the table is
//! written anew from its name and value. So no command, comment or other assignment on the same line comes along. Names
//! of users and of the host, serial numbers and addresses are taken out everywhere ([`names`]). Of names of folders and
//! of values only what is on a list stays ([`words`]). Unpacked, it is a folder for `--root`.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Component, Path, PathBuf};

use crate::assignments::parse_line;
use crate::findings::{Examination, Options, examine};
use crate::kernel;
use crate::leftovers::OUR_MARK;
use crate::library;
use crate::software;
use crate::system::System;
use crate::variables;

mod names;
mod words;

use names::Names;

/// Variables kept in addition to the table's, because they say where things are.
const KEPT: &[&str] = &["HOME", "PATH", "PYTHONPATH", "VIRTUAL_ENV", "CONDA_PREFIX"];

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
            if let Some(clean) = cleaned(&path, &content, &names) {
                files.insert(names.cleaned_path(&path), names.cleaned(&clean));
            }
        }
        let mut environment = String::new();
        for (name, value) in system.environment().iter() {
            if KEPT.contains(&name) {
                environment.push_str(&format!("{name}={}\n", names.cleaned_folders(value)));
            } else if variables::concerns_us(name) {
                environment.push_str(&format!("{name}={}\n", names.cleaned_value(name, value)));
            }
        }
        files.insert(PathBuf::from("/environment"), names.cleaned(environment.as_bytes()));
        let report = serde_json::to_vec_pretty(&examination.to_json()).unwrap_or_default();
        files.insert(PathBuf::from("/doctor.json"), names.cleaned_report(&report));
        Bundle { files, examination, names }
    }

    /// Adds facts that were not read from files, such as a self-test's result, without names like all the rest.
    pub fn add_json(&mut self, name: &str, content: &serde_json::Value) {
        let content = serde_json::to_vec_pretty(content).unwrap_or_default();
        self.files.insert(Path::new("/").join(name), self.names.cleaned_report(&content));
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

/// Removes what does not matter. Nothing at all is kept of some files.
fn cleaned(path: &Path, content: &[u8], names: &Names) -> Option<Vec<u8>> {
    let text = String::from_utf8_lossy(content);
    // The head of a SQLite file alone would look damaged.
    if ["udb", "ukdb", "kdb"].iter().any(|ending| path.extension().is_some_and(|it| it == *ending)) {
        return None;
    }
    if path == Path::new("/environment") {
        return None; // Rewritten below.
    }
    if path.starts_with("/var/log") || path.starts_with("/run/log") {
        let lines = kernel::relevant_log_lines(&text);
        let lines = lines.into_iter().map(|(line, _)| format!("{}\n", names::without_addresses(&line)));
        return Some(lines.collect::<String>().into_bytes());
    }
    if path.starts_with("/sys") && path.file_name().is_some_and(|name| name == "properties") {
        return Some(without_serial_numbers(&text).into_bytes());
    }
    if path == Path::new("/proc/version") {
        return kernel::parse_proc_version(&text).map(|version| format!("Linux version {version}\n").into_bytes());
    }
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    // Of Python's path files only the folders that they lead to.
    if path.starts_with("/etc/ld.so.conf.d") || name.ends_with(".pth") {
        let folders = text.lines().map(str::trim).filter(|line| line.starts_with('/'));
        return Some(
            folders.map(|folder| format!("{}\n", names.cleaned_folders(folder))).collect::<String>().into_bytes(),
        );
    }
    if name == "version.py" {
        return Some(software::rebuilt_torch_version(&text).into_bytes());
    }
    if path.starts_with("/proc/driver/nvidia") {
        // Beside the model, NVIDIA's driver names the one card that this is (`GPU UUID`).
        let model = text.lines().filter(|line| line.starts_with("Model:"));
        return Some(model.map(|line| format!("{line}\n")).collect::<String>().into_bytes());
    }
    let kernels = ["/sys", "/proc", "/dev"].iter().any(|start| path.starts_with(start));
    // Our own descriptions of libraries, and MIOpen's tables of numbers: nobody writes into them by hand. The contents
    // decide, because `/etc/profile.d/acme.source.sh` has the name of a library, too.
    let is_made = library::is_description(&text) || name.ends_with("db.txt") || content.is_empty();
    if kernels || is_made {
        return Some(content.to_vec());
    }
    if path.parent().is_some_and(|folder| folder.ends_with(".info")) {
        return Some(format!("{}\n", text.lines().next().unwrap_or_default()).into_bytes());
    }
    if name == crate::unrepaired::FILE {
        return Some(names.cleaned_report(content));
    }
    // Everything else is somebody's own file: only what sets our variables, rewritten, and the line numbers.
    let lines: Vec<String> = text.lines().map(|line| rebuilt(line, names)).collect();
    Some(format!("{}\n", lines.join("\n")).into_bytes())
}

/// A line of somebody's own file, regenerated from its effect on the table's variables.
fn rebuilt(line: &str, names: &Names) -> String {
    if line.starts_with(OUR_MARK) {
        return OUR_MARK.to_owned();
    }
    let (mut set, mut unset) = (String::new(), String::new());
    for (name, value) in parse_line(line).into_iter().filter(|(name, _)| variables::concerns_us(name)) {
        match value {
            Some(value) => set.push_str(&format!(" {name}='{}'", names.cleaned_value(&name, &value).replace('\'', ""))),
            None => unset.push_str(&format!(" {name}")),
        }
    }
    match (set.is_empty(), unset.is_empty()) {
        (false, _) => format!("export{set}"),
        (true, false) => format!("unset{unset}"),
        (true, true) => String::new(),
    }
}

/// KFD's properties without those that identify a single card.
fn without_serial_numbers(properties: &str) -> String {
    let line = |line: &str| match line.split_whitespace().next() {
        Some("unique_id") => "unique_id 0\n".to_owned(),
        _ => format!("{line}\n"),
    };
    properties.lines().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::system::Environment;

    fn nobody() -> Names {
        Names::of(&System::new(Path::new("/not/there"), Environment::parse("")))
    }

    #[test]
    fn own_files_keep_only_our_lines() {
        let text = b"export TOKEN=secret\nexport HSA_ENABLE_SDMA=0\nalias x=y\n";
        let kept = cleaned(Path::new("/home/kevin/.bashrc"), text, &nobody()).unwrap();
        assert_eq!(String::from_utf8(kept).unwrap(), "\nexport HSA_ENABLE_SDMA='0'\n\n");
        assert_eq!(cleaned(Path::new("/home/kevin/.cache/miopen/2.20/gfx1030_18.ukdb"), b"SQLite", &nobody()), None);
    }

    #[test]
    fn nothing_else_on_a_line_comes_along() {
        for (line, expected) in [
            ("export HSA_XNACK=0 # anna's token: hunter2", "export HSA_XNACK='0'"),
            ("export HSA_XNACK=0; curl -u anna:hunter2 http://10.0.0.7/", "export HSA_XNACK='0'"),
            ("export HSA_XNACK=0 TOKEN=hunter2", "export HSA_XNACK='0'"),
            ("export TOKEN=hunter2 HSA_XNACK=0", "export HSA_XNACK='0'"),
            ("HSA_XNACK=0 python train.py --key hunter2", "export HSA_XNACK='0'"),
            ("unset HSA_XNACK SECRET_PLACE", "unset HSA_XNACK"),
            ("set -gx MIOPEN_FIND_MODE NORMAL; echo hunter2", "export MIOPEN_FIND_MODE='NORMAL'"),
            ("export HSA_ANNAS_TOKEN=hunter2", "export HSA_ANNAS_TOKEN='taken-out'"),
            ("export HIP_FORCE_COARSE_GRAIN=1", "export HIP_FORCE_COARSE_GRAIN='1'"),
            ("export MIOPEN_USER_DB_PATH=anna@example.com", "export MIOPEN_USER_DB_PATH='taken-out@taken-out'"),
            ("# Written by unhang for anna", OUR_MARK),
            ("# HSA_XNACK=0", ""),
        ] {
            assert_eq!(rebuilt(line, &nobody()), expected, "{line}");
        }
    }

    #[test]
    fn a_script_with_the_name_of_a_library_is_no_library() {
        let text = "export TOKEN=hunter2\nexport HSA_ENABLE_SDMA=0\n";
        for path in ["/etc/profile.d/acme.source.sh", "/etc/environment.d/10.sonar.conf"] {
            let kept = cleaned(Path::new(path), text.as_bytes(), &nobody()).unwrap();
            assert_eq!(String::from_utf8(kept).unwrap(), "\nexport HSA_ENABLE_SDMA='0'\n", "{path}");
        }
        for made in
            ["unhang: stand-in for a library\narchitectures=gfx1030\nrunpath=no\n", "GNU C Library (a stand-in) 2.39"]
        {
            let kept = cleaned(Path::new("/usr/lib/libtorch_hip.so"), made.as_bytes(), &nobody()).unwrap();
            assert_eq!(String::from_utf8(kept).unwrap(), made);
        }
    }

    #[test]
    fn cards_have_no_serial_number() {
        let text = "simd_count 72\nunique_id 7683451862354\ngfx_target_version 100100\n";
        let path = Path::new("/sys/class/kfd/kfd/topology/nodes/1/properties");
        let clean = String::from_utf8(cleaned(path, text.as_bytes(), &nobody()).unwrap()).unwrap();
        assert_eq!(clean, "simd_count 72\nunique_id 0\ngfx_target_version 100100\n");
        let text = "Model: \t\t NVIDIA GeForce RTX 4090\nIRQ: 142\nGPU UUID: \t GPU-7c1e5a6b-2f7d\nVideo BIOS: 95.02\n";
        let path = Path::new("/proc/driver/nvidia/gpus/0000:01:00.0/information");
        let clean = String::from_utf8(cleaned(path, text.as_bytes(), &nobody()).unwrap()).unwrap();
        assert_eq!(clean, "Model: \t\t NVIDIA GeForce RTX 4090\n");
    }
}
