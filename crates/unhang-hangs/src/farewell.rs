//! The end of a process that hangs: written down, told, ended. Every step may fail, none may hang.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use unhang_engine::Verdict;
use unhang_evidence::{Record, RecordSource, Store};
use unhang_guard::{Identity, PrivateFolder};
use unhang_watchdog::{Hang, Place};

use crate::Subject;

/// The exit code of a process that hangs in a convolution.
const HANG_IN_CONVOLUTION: i32 = 86;
/// The exit code of a process that hangs in something else.
const HANG_OUTSIDE: i32 = 87;
/// The most that saying goodbye may take, whatever gets stuck.
const LONGEST: Duration = Duration::from_secs(20);

/// What a hang needs to be told, gathered while all is well.
pub struct Farewell {
    /// Where it is kept.
    pub store: Arc<Store>,
    /// What it is filed under.
    pub machine: String,
    /// Where `unhang run` looks for what happened.
    pub folder: Option<PathBuf>,
    /// What the face has to say last, such as where each thread stands.
    pub last: Box<dyn Fn() + Send + Sync>,
}

impl Farewell {
    pub(crate) fn end_process(&self, hang: &Hang<Subject>) {
        let code = if hang.subject.is_some() { HANG_IN_CONVOLUTION } else { HANG_OUTSIDE };
        let _ = std::thread::Builder::new().name("unhang-farewell".to_owned()).spawn(move || {
            std::thread::sleep(LONGEST);
            signal_hook::low_level::exit(code);
        });
        if let Some(subject) = &hang.subject {
            self.record(hang, subject);
        }
        self.write_report(hang, code);
        say(&told(hang, code));
        (self.last)();
        signal_hook::low_level::exit(code);
    }

    fn record(&self, hang: &Hang<Subject>, subject: &Subject) {
        let source = if subject.rehearsed { RecordSource::Rehearsal } else { RecordSource::Run };
        for problem in &subject.problems {
            let record = Record::new(problem.clone(), subject.engine, &self.machine, Verdict::Hangs, source);
            let mut record = record.with_variant(&subject.candidate);
            record.detail = format!("did not come back within {:.1} s, {}", hang.waited.as_secs_f64(), place(hang));
            if subject.problems.len() > 1 {
                record.detail += "; both gradients were computed in one call";
            }
            self.store.record(record);
        }
        self.store.flush(Duration::from_secs(5));
    }

    /// For `unhang run`: whole or not at all.
    fn write_report(&self, hang: &Hang<Subject>, code: i32) {
        let Some(folder) = &self.folder else { return };
        let subject = hang.subject.as_deref();
        let this = Identity::of_this_process();
        let names = |it: &Subject| it.problems.iter().map(ToString::to_string).collect::<Vec<_>>();
        let report = json!({
            "process": this.pid,
            "boot": this.boot,
            "namespace": this.namespace,
            "started": this.started,
            "code": code,
            "problems": subject.map(names).unwrap_or_default(),
            "engine": subject.map(|it| it.engine.name()),
            "candidate": subject.map(|it| it.candidate.as_str()).unwrap_or_default(),
            "rehearsal": subject.is_some_and(|it| it.rehearsed),
            "place": place(hang),
            "seconds": hang.waited.as_secs_f64(),
        });
        if let Ok(folder) = PrivateFolder::open_existing(folder) {
            let _ = folder.write(&format!("hang-{}.json", this.pid), report.to_string().as_bytes());
        }
    }
}

/// Standard error without any lock of an interpreter's or of ours; a closed one is no reason not to go on.
pub fn say(message: &str) {
    let _ = std::io::stderr().write_all(format!("unhang: {message}\n").as_bytes());
}

fn place(hang: &Hang<Subject>) -> &'static str {
    match hang.place {
        Place::Running => "on the accelerator",
        Place::Searching => "on the accelerator, in something that the call itself waits for",
        Place::Host => "on the host, with an idle accelerator (compiling or searching)",
        Place::Call => "in the call",
        Place::Outside => "on the accelerator",
    }
}

fn told(hang: &Hang<Subject>, code: i32) -> String {
    let seconds = hang.waited.as_secs_f64();
    let device = hang.device.map(|device| format!(" (device {device})")).unwrap_or_default();
    let mut text = String::new();
    match &hang.subject {
        Some(subject) => {
            let rehearsal = if subject.rehearsed { "rehearsal: " } else { "" };
            let problems: Vec<String> = subject.problems.iter().map(ToString::to_string).collect();
            let (candidate, who) = match subject.candidate.as_str() {
                "" => (String::new(), "engine"),
                candidate => (format!(", candidate {candidate},"), "candidate"),
            };
            let _ = write!(
                text,
                "{rehearsal}HANG in a convolution: {} on {}{candidate} has not come back for {seconds:.1} s, {}{device}. It is \
                 kept as evidence, and this {who} is not used for it again",
                problems.join(" and "),
                subject.engine,
                place(hang)
            );
        }
        None => {
            let _ = write!(
                text,
                "HANG outside convolution: nothing has moved {}{device} for {seconds:.1} s, and no convolution was \
                 outstanding. Nothing is quarantined",
                place(hang)
            );
            if hang.is_uncertain {
                text += "; more was queued than could be watched, so it may have been a convolution all the same";
            }
        }
    }
    let _ = write!(text, ". Ending process {} with code {code}", std::process::id());
    text
}
