//! The end of a process that hangs: record the evidence, report it, end the process. Every step may fail, none may
//! hang.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use unhang_engine::Verdict;
use unhang_evidence::{Canary, Record, RecordSource, Store, time};
use unhang_watchdog::report::{HANG_IN_CALL, LONGEST_FAREWELL};
use unhang_watchdog::{Hang, HangPlace, HangReport};

use crate::subject::Subject;

/// What the report of a hang needs, gathered while all is well.
pub struct Farewell {
    /// Where it is kept.
    pub store: Arc<Store>,
    /// What it is filed under.
    pub machine: String,
    /// Where `unhang run` looks for the report.
    pub folder: Option<PathBuf>,
    /// What the face adds to the report, such as the stack of each thread.
    pub last: Box<dyn Fn() + Send + Sync>,
}

impl Farewell {
    pub(crate) fn end_process(&self, hang: &Hang<Subject>) {
        let report = report_of(hang);
        let code = i32::from(report.code);
        let _ = std::thread::Builder::new().name("unhang-farewell".to_owned()).spawn(move || {
            std::thread::sleep(LONGEST_FAREWELL);
            signal_hook::low_level::exit(code);
        });
        if let Some(subject) = &hang.subject {
            self.record(hang, subject);
        }
        if let Some(folder) = &self.folder {
            report.write(folder);
        }
        say(&told(hang, code));
        (self.last)();
        signal_hook::low_level::exit(code);
    }

    fn record(&self, hang: &Hang<Subject>, subject: &Subject) {
        let detail = || format!("did not finish within {:.1} s, {}", hang.waited.as_secs_f64(), place(hang));
        if let Some(family) = &subject.family {
            let (machine, name) = (self.machine.clone(), family.canary.clone());
            let (verdict, detail) = (Verdict::Hangs, format!("a {} {}", family.what, detail()));
            self.store.keep_canary(Canary { machine, name, verdict, detail, unix_seconds: time::now() });
        }
        let source = if subject.rehearsed { RecordSource::Rehearsal } else { RecordSource::Run };
        for problem in &subject.problems {
            let record = Record::new(problem.clone(), subject.engine, &self.machine, Verdict::Hangs, source);
            let mut record = record.with_variant(&subject.candidate);
            record.detail = detail();
            if subject.problems.len() > 1 {
                record.detail += "; both gradients were computed in one call";
            }
            self.store.record(record);
        }
        self.store.flush(Duration::from_secs(5));
    }
}

fn report_of(hang: &Hang<Subject>) -> HangReport {
    let report = HangReport::of_this_process(place(hang), hang.waited);
    let Some(subject) = &hang.subject else { return report };
    HangReport {
        code: HANG_IN_CALL,
        problems: subject.problems.iter().map(ToString::to_string).collect(),
        engine: Some(subject.engine.name().to_owned()),
        candidate: subject.candidate.clone(),
        rehearsal: subject.rehearsed,
        ..report
    }
}

/// Writes to standard error without any lock of an interpreter's or of ours; a closed one does not stop us.
pub fn say(message: &str) {
    let _ = std::io::stderr().write_all(format!("unhang: {message}\n").as_bytes());
}

fn place(hang: &Hang<Subject>) -> &'static str {
    match hang.place {
        HangPlace::Running => "on the accelerator",
        HangPlace::Searching => "on the accelerator, in something that the call itself waits for",
        HangPlace::Host => "on the host, with an idle accelerator (compiling or searching)",
        HangPlace::Call => "in the call",
        HangPlace::Outside => "on the accelerator",
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
            if let Some(family) = &subject.family {
                let (what, who) =
                    (&family.what, if candidate.is_empty() { "these kernels are" } else { "this candidate is" });
                let _ = write!(
                    text,
                    "{rehearsal}HANG in a {what}: our kernels for it{candidate} did not finish within {seconds:.1} s, {}{device}. \
                     This is kept as evidence, and {who} not used again on this machine",
                    place(hang)
                );
                return ending(text, code);
            }
            let _ = write!(
                text,
                "{rehearsal}HANG in a convolution: {} on {}{candidate} did not finish within {seconds:.1} s, {}{device}. This \
                 is kept as evidence, and this {who} is not used for it again",
                problems.join(" and "),
                subject.engine,
                place(hang)
            );
        }
        None => {
            let _ = write!(
                text,
                "HANG outside convolutions: nothing has moved {}{device} for {seconds:.1} s, and no convolution was \
                 outstanding. Nothing is quarantined",
                place(hang)
            );
            if hang.is_uncertain {
                text += "; more was queued than could be watched, so it may still have been a convolution";
            }
        }
    }
    ending(text, code)
}

fn ending(mut text: String, code: i32) -> String {
    let _ = write!(text, ". Ending process {} with code {code}", std::process::id());
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_way_of_an_operation_that_hangs_is_named_and_not_the_whole_family() {
        let told_of = |candidate: &str| {
            let subject = Subject::of_family("pooling", "a name".to_owned(), false);
            let subject = Some(Arc::new(Subject { candidate: candidate.to_owned(), ..subject }));
            let (place, waited) = (HangPlace::Running, Duration::from_secs(60));
            told(&Hang { subject, place, waited, device: Some(0), is_uncertain: false }, 86)
        };
        assert!(told_of("").contains("our kernels for it did not finish"), "{}", told_of(""));
        assert!(told_of("").contains("these kernels are not used again"), "{}", told_of(""));
        let of_way = told_of("parts:6");
        assert!(of_way.contains("candidate parts:6, did not finish within 60.0 s"), "{of_way}");
        assert!(of_way.contains("this candidate is not used again"), "{of_way}");
    }
}
