//! What a watchdog leaves behind when it ends its process: the exit code, and a report for `unhang run`.
//!
//! The shield writes it from other people's processes, so writing needs no dependencies. Reading does (the feature
//! `read`).

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use unhang_guard::{Identity, PrivateFolder};

/// The exit code of a process whose watched call did not return.
pub const HANG_IN_CALL: u8 = 86;
/// The exit code of a process that hangs in something else.
pub const HANG_OUTSIDE: u8 = 87;
/// The longest that a watchdog may take to report and end its process, whatever gets stuck.
pub const LONGEST_FAREWELL: Duration = Duration::from_secs(20);

/// What hung in a process, before its watchdog ends it.
#[derive(Debug, Clone, Default, PartialEq)]
#[cfg_attr(feature = "read", derive(serde::Deserialize))]
pub struct HangReport {
    /// The process id; the next three fields identify the process.
    pub process: u32,
    /// The machine's boot.
    #[cfg_attr(feature = "read", serde(default))]
    pub boot: String,
    /// The process id namespace.
    #[cfg_attr(feature = "read", serde(default))]
    pub namespace: String,
    /// When the process started.
    #[cfg_attr(feature = "read", serde(default))]
    pub started: String,
    /// The code that it exits with.
    #[cfg_attr(feature = "read", serde(default))]
    pub code: u8,
    /// The keys of what the call computes.
    pub problems: Vec<String>,
    /// The engine; `None` if no watched call hangs.
    pub engine: Option<String>,
    /// The engine's candidate that was being measured; empty for its normal choice.
    #[cfg_attr(feature = "read", serde(default))]
    pub candidate: String,
    /// Whether the CPU plays the card.
    #[cfg_attr(feature = "read", serde(default))]
    pub rehearsal: bool,
    /// Where it hangs, in words.
    #[cfg_attr(feature = "read", serde(default))]
    pub place: String,
    /// For how long nothing had changed.
    #[cfg_attr(feature = "read", serde(default))]
    pub seconds: f64,
}

impl HangReport {
    /// A report about this process, without a call so far.
    pub fn of_this_process(place: &str, waited: Duration) -> HangReport {
        let Identity { pid, boot, namespace, started } = Identity::of_this_process();
        let (place, seconds) = (place.to_owned(), waited.as_secs_f64());
        HangReport {
            process: pid,
            boot,
            namespace,
            started,
            code: HANG_OUTSIDE,
            place,
            seconds,
            ..HangReport::default()
        }
    }

    /// Whether a watched call hangs.
    pub fn is_in_call(&self) -> bool {
        self.engine.is_some()
    }

    /// What not to try again, as `engine@problem`, or `engine/candidate@problem`.
    pub fn pairs(&self) -> Vec<String> {
        let Some(engine) = &self.engine else { return Vec::new() };
        let who = match self.candidate.as_str() {
            "" => engine.clone(),
            candidate => format!("{engine}/{candidate}"),
        };
        self.problems.iter().map(|problem| format!("{who}@{problem}")).collect()
    }

    /// The process that it is about.
    pub fn identity(&self) -> Identity {
        let (boot, namespace, started) = (self.boot.clone(), self.namespace.clone(), self.started.clone());
        Identity { boot, namespace, pid: self.process, started }
    }

    /// Whether a file in the run's folder is a report.
    pub fn is_name(name: &str) -> bool {
        name.starts_with("hang-") && name.ends_with(".json")
    }

    /// Writes it to the run's folder, whole or not at all.
    pub fn write(&self, folder: &Path) {
        if let Ok(folder) = PrivateFolder::open_existing(folder) {
            let _ = folder.write(&format!("hang-{}.json", self.process), self.to_json().as_bytes());
        }
    }

    /// The report in the file's format.
    pub fn to_json(&self) -> String {
        let problems: Vec<String> = self.problems.iter().map(|problem| quoted(problem)).collect();
        let mut text = String::from("{");
        let mut field = |name: &str, value: String| {
            let comma = if text.len() > 1 { ", " } else { "" };
            let _ = write!(text, "{comma}\"{name}\": {value}");
        };
        field("process", self.process.to_string());
        field("boot", quoted(&self.boot));
        field("namespace", quoted(&self.namespace));
        field("started", quoted(&self.started));
        field("code", self.code.to_string());
        field("problems", format!("[{}]", problems.join(", ")));
        field("engine", self.engine.as_deref().map_or("null".to_owned(), quoted));
        field("candidate", quoted(&self.candidate));
        field("rehearsal", self.rehearsal.to_string());
        field("place", quoted(&self.place));
        field("seconds", format!("{:?}", if self.seconds.is_finite() { self.seconds } else { 0.0 }));
        text + "}"
    }

    /// Reads a report; `None` if the text is not one.
    #[cfg(feature = "read")]
    pub fn from_json(bytes: &[u8]) -> Option<HangReport> {
        serde_json::from_slice(bytes).ok()
    }
}

/// A JSON string.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            character if character < ' ' => {
                let _ = write!(quoted, "\\u{:04x}", u32::from(character));
            }
            character => quoted.push(character),
        }
    }
    quoted + "\""
}

#[cfg(all(test, feature = "read"))]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let written = HangReport {
            code: HANG_IN_CALL,
            problems: vec!["forward:f32".to_owned(), "a \"quoted\"\n\\ one".to_owned()],
            engine: Some("jit".to_owned()),
            candidate: "gemm:64x64".to_owned(),
            rehearsal: true,
            ..HangReport::of_this_process("on the accelerator", Duration::from_millis(1500))
        };
        assert_eq!(HangReport::from_json(written.to_json().as_bytes()).as_ref(), Some(&written));
        assert_eq!(written.identity(), Identity::of_this_process());
        assert_eq!(written.pairs()[0], "jit/gemm:64x64@forward:f32");
        let outside = HangReport::of_this_process("", Duration::from_secs(7));
        assert_eq!(HangReport::from_json(outside.to_json().as_bytes()), Some(outside.clone()));
        assert!(!outside.is_in_call() && outside.pairs().is_empty() && outside.code == HANG_OUTSIDE);
        assert_eq!(HangReport::from_json(b"{ half"), None);
        assert_eq!(HangReport::from_json(b"{\"process\": 5}"), None, "it does not say what hung");
    }

    #[test]
    fn a_report_is_found_by_its_name() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("run");
        PrivateFolder::open(&folder).unwrap();
        let report = HangReport::of_this_process("", Duration::ZERO);
        report.write(&folder);
        let names: Vec<String> =
            std::fs::read_dir(&folder).unwrap().map(|it| it.unwrap().file_name().into_string().unwrap()).collect();
        assert_eq!(names, [format!("hang-{}.json", std::process::id())]);
        assert!(HangReport::is_name(&names[0]) && !HangReport::is_name("done-5.json"));
        let text = std::fs::read(folder.join(&names[0])).unwrap();
        assert_eq!(HangReport::from_json(&text), Some(report));
    }
}
