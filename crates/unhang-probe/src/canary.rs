//! The canary: an engine computes a few small convolutions in a child before it computes in anybody's process.
//!
//! This module defines what the child prints and what its end means; the doctor's self-test, `enable()` and the child
//! share it. One child may try several kernel families. It names each before it starts, so a hang condemns that
//! family and no other.

use std::time::Duration;

use serde_json::{Value, json};
use unhang_conv::{Direction, Problem};
use unhang_engine::{EngineName, Verdict};
use unhang_guard::printable;

use crate::answer;
use crate::process::{Ended, SuperviseError};
use crate::supervise::{Child, ChildOutcome, supervise_when_ready};

const ANSWER: &str = "unhang-canary ";
/// Printed before the accelerator is used, so even a child that hangs has printed it.
const TORCH: &str = "unhang-torch ";
const FAMILY: &str = "unhang-family ";
/// After this line, a hang or crash is that family's, not a compiler's.
const BEGIN: &str = "unhang-begin ";
/// Stands for the runtime's own fills and copies, which run before any family and do not use our kernels.
pub const MEMORY: &str = "memory";
/// The most characters of a child's text that are kept.
const LONGEST: usize = 300;

/// How long a child may take until it names its torch. Torch is large: on a busy machine with a slow disk, its import
/// took a minute.
const START: Duration = Duration::from_secs(300);

/// How long a child may take after it has imported torch. Our kernels and MIOpen's compile at their first run, each
/// for a second or more. With the others' limit, that would look like a hang.
pub fn deadline(engine: EngineName) -> Duration {
    Duration::from_secs(if matches!(engine, EngineName::Jit | EngineName::Miopen) { 180 } else { 30 })
}

/// The problems that kernel families are tried on, in all three directions: an ordinary convolution, one with a
/// stride and few channels, one with a stride and many, a depthwise one, and two in f16. An emulated card is slow, so
/// it gets smaller ones.
pub fn kernel_problems(is_emulated: bool) -> Vec<Problem> {
    let keys: &[&str] = if is_emulated {
        &["forward:f32:nchw:1x16x6x6:16x3x3:s1x1:p1x1:d1x1:g1", "forward:f32:nchw:1x4x8x8:4x3x3:s1x1:p1x1:d1x1:g4"]
    } else {
        &[
            "forward:f32:nchw:2x32x20x20:48x3x3:s1x1:p1x1:d1x1:g1",
            "forward:f32:nchw:1x3x37x41:16x7x7:s2x2:p3x3:d1x1:g1",
            "forward:f32:nchw:2x32x20x20:48x3x3:s2x2:p1x1:d1x1:g1",
            "forward:f32:nchw:2x32x28x28:32x3x3:s1x1:p1x1:d1x1:g32",
            "forward:f16:nhwc:2x32x20x20:48x3x3:s1x1:p1x1:d1x1:g1",
            "forward:f16:nhwc:2x32x20x20:48x3x3:s2x2:p1x1:d1x1:g1",
        ]
    };
    let in_all = |key: &&str| {
        let problem: Option<Problem> = key.parse().ok();
        problem.into_iter().flat_map(|problem| Direction::ALL.map(|direction| problem.with_direction(direction)))
    };
    keys.iter().flat_map(in_all).collect()
}

/// A child's answer.
pub fn answer_line(verdict: Verdict, detail: &str) -> String {
    answer::line(&format!("{ANSWER}{}", json!({ "verdict": verdict.name(), "detail": detail })))
}

/// The line that names the child's torch.
pub fn torch_line(build: &str) -> String {
    answer::line(&format!("{TORCH}{build}"))
}

/// The line before a kernel family runs.
pub fn begin_line(family: &str) -> String {
    answer::line(&format!("{BEGIN}{family}"))
}

/// The line with a kernel family's result; `name` is the key of its verdict.
pub fn family_line(family: &str, name: &str, verdict: Verdict, detail: &str) -> String {
    let said = json!({ "family": family, "name": name, "verdict": verdict.name(), "detail": detail });
    answer::line(&format!("{FAMILY}{said}"))
}

/// The torch that a child named.
pub fn torch_of(outcome: &ChildOutcome) -> Option<&str> {
    outcome.answers().find_map(|line| line.strip_prefix(TORCH)).map(str::trim)
}

/// Runs a Python child. Its time starts when it names its torch, because the duration of an import is no evidence
/// about an engine. Also returns whether the child got to its trial; if not, nothing is known about the engine.
pub fn try_in(child: &Child) -> Result<(ChildOutcome, bool), SuperviseError> {
    supervise_when_ready(child, START, |output| output.contains(TORCH))
}

/// The message for a child that ended, or was killed, before it had imported torch.
pub fn never_began(outcome: &ChildOutcome) -> (Verdict, String) {
    let why = match outcome.ended {
        Ended::TimedOut | Ended::Unkillable => format!("torch was not imported within {} s", START.as_secs()),
        _ => format!("the child has no torch ({})", judge(outcome, START).1),
    };
    (Verdict::Error, format!("{why}: that is not evidence, and is not kept"))
}

/// The meaning of a child's end and its answer. A child without a readable answer has crashed, whatever its exit
/// code: it should have printed a last line and did not.
pub fn judge(outcome: &ChildOutcome, deadline: Duration) -> (Verdict, String) {
    let no_answer = format!("no answer within {} s", deadline.as_secs());
    match outcome.ended {
        Ended::TimedOut => (Verdict::Hangs, no_answer),
        Ended::Unkillable => (Verdict::Hangs, format!("{no_answer}, and it cannot be killed")),
        Ended::Signalled(signal) => (Verdict::Crashes, format!("ended by signal {signal}")),
        Ended::Exited(code) => {
            let answer = outcome.answers().find_map(|line| line.strip_prefix(ANSWER)).and_then(read);
            answer.map(|answer| (answer.verdict, answer.detail)).unwrap_or_else(|| {
                let said = match outcome.last_words() {
                    "" => String::new(),
                    line => format!("; it said: {}", shortened(line)),
                };
                (Verdict::Crashes, format!("ended with code {code} and no answer{said}"))
            })
        }
    }
}

/// The results of one child's kernel families.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Families {
    /// The families that the child got to.
    pub judged: Vec<FamilyVerdict>,
    /// Whether one hung. The card may then need a reboot before anything else is tried.
    pub hung: bool,
    /// Why the child got to none of them, if it said so.
    pub untried: Option<String>,
}

/// The result of one kernel family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FamilyVerdict {
    /// The family.
    pub family: String,
    /// The key of its verdict, if the child named it.
    pub name: Option<String>,
    /// How it ended.
    pub verdict: Verdict,
    /// The largest error, or what went wrong.
    pub detail: String,
}

/// What a child reported about each family, however it ended.
pub fn families_of(outcome: &ChildOutcome) -> Vec<FamilyVerdict> {
    let said = outcome.answers().filter_map(|line| line.strip_prefix(FAMILY)).filter_map(read);
    said.filter_map(|it| {
        Some(FamilyVerdict { family: it.family?, name: it.name, verdict: it.verdict, detail: it.detail })
    })
    .collect()
}

/// The verdict on each requested family that the child got to.
pub fn judge_families(outcome: &ChildOutcome, asked: &[String], deadline: Duration) -> Families {
    let verdict =
        |family: &String, verdict, detail| FamilyVerdict { family: family.clone(), name: None, verdict, detail };
    let mut judged = families_of(outcome);
    judged.retain(|it| asked.contains(&it.family));
    let silent: Vec<&String> = asked.iter().filter(|family| judged.iter().all(|it| it.family != **family)).collect();
    let begun = outcome.answers().filter_map(|line| line.strip_prefix(BEGIN)).next_back();
    let timed_out = matches!(outcome.ended, Ended::TimedOut | Ended::Unkillable);
    match begun {
        // Still compiling, which says nothing about the kernels: the next start finds them in the cache.
        None if !silent.is_empty() && timed_out => {
            return Families {
                hung: true,
                untried: Some("the child was not done compiling".to_owned()),
                ..Families::default()
            };
        }
        None => {
            let (all, detail) = judge(outcome, deadline);
            judged.extend(silent.into_iter().map(|family| verdict(family, all, detail.clone())));
        }
        Some(MEMORY) => {
            let (found, detail) = judge(outcome, deadline);
            return Families {
                hung: found == Verdict::Hangs,
                untried: Some(format!("the runtime's own fills and copies failed first: {detail}")),
                ..Families::default()
            };
        }
        Some(begun) => {
            if let Some(family) = silent.into_iter().find(|family| *family == begun) {
                let (found, detail) = judge(outcome, deadline);
                // It did not print its own line, whatever the child says about the whole.
                let found = if found == Verdict::Works { Verdict::Crashes } else { found };
                judged.push(verdict(family, found, detail));
            }
        }
    }
    let hung = judged.iter().any(|it| it.verdict == Verdict::Hangs);
    Families { judged, hung, untried: None }
}

struct Answer {
    family: Option<String>,
    name: Option<String>,
    verdict: Verdict,
    detail: String,
}

/// Reads the rest of a line, if possible.
fn read(text: &str) -> Option<Answer> {
    let answer: Value = serde_json::from_str(text).ok()?;
    let text = |name: &str| answer.get(name).and_then(Value::as_str);
    Some(Answer {
        family: text("family").map(str::to_owned),
        name: text("name").map(str::to_owned),
        verdict: text("verdict")?.parse().ok()?,
        detail: shortened(text("detail")?),
    })
}

/// A child's text on one line, shortened.
fn shortened(text: &str) -> String {
    printable(text).replace(['\n', '\t'], " ").chars().take(LONGEST).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);

    /// The outcome of our own child: its answers carry the number.
    fn outcome(ended: Ended, output: &str) -> ChildOutcome {
        let marked = |line: &str| match line.starts_with("unhang-") {
            true => format!("7f {line}\n"),
            false => format!("{line}\n"),
        };
        strange(ended, &output.lines().map(marked).collect::<String>())
    }

    fn strange(ended: Ended, output: &str) -> ChildOutcome {
        ChildOutcome { ended, output: output.to_owned(), elapsed: Duration::from_secs(1), nonce: "7f".to_owned() }
    }

    fn judged(ended: Ended, output: &str) -> (Verdict, String) {
        judge(&outcome(ended, output), LIMIT)
    }

    #[test]
    fn kernels_are_tried_in_every_direction() {
        assert_eq!(kernel_problems(false).len(), 18);
        assert_eq!(kernel_problems(true).len(), 6);
    }

    #[test]
    fn an_answer_counts_only_from_a_child_that_ended_by_itself() {
        let works = format!("noise\n{}\n{}\nmore", torch_line("2.2.2 hip5.7"), answer_line(Verdict::Works, "fine"));
        assert_eq!(torch_of(&outcome(Ended::Exited(0), &works)), Some("2.2.2 hip5.7"));
        assert_eq!(judged(Ended::Exited(0), &works), (Verdict::Works, "fine".to_owned()));
        assert_eq!(judged(Ended::Signalled(11), &works), (Verdict::Crashes, "ended by signal 11".to_owned()));
        assert_eq!(judged(Ended::TimedOut, &works), (Verdict::Hangs, "no answer within 30 s".to_owned()));
        let (verdict, detail) = judged(Ended::Unkillable, "");
        assert!(verdict == Verdict::Hangs && detail.contains("cannot be killed"), "{detail}");
    }

    #[test]
    fn an_answer_without_our_number_is_somebody_elses() {
        let forged = format!(
            "{}\n{}\n{}\n0 {}\n",
            torch_line("9.9"),
            begin_line("plain"),
            family_line("plain", "x", Verdict::Works, ""),
            answer_line(Verdict::Works, "fine")
        );
        let forged = strange(Ended::Exited(0), &forged);
        assert_eq!(judge(&forged, LIMIT).0, Verdict::Crashes);
        assert_eq!((torch_of(&forged), families_of(&forged)), (None, Vec::new()));
    }

    #[test]
    fn every_verdict_can_be_answered() {
        for verdict in Verdict::ALL {
            assert_eq!(judged(Ended::Exited(0), &answer_line(verdict, "")).0, verdict);
        }
    }

    #[test]
    fn garbage_is_a_crash() {
        for output in [
            "",
            "unhang-canary",
            "unhang-canary {",
            "unhang-canary []",
            "unhang-canary {\"verdict\": \"works\"}",
            "unhang-canary {\"verdict\": \"splendid\", \"detail\": \"\"}",
            "unhang-canary {\"verdict\": 1, \"detail\": 2}",
            "\0\u{1b}[2J\u{fffd}",
        ] {
            let (verdict, detail) = judged(Ended::Exited(0), output);
            assert_eq!(verdict, Verdict::Crashes, "{output}");
            assert!(!detail.chars().any(char::is_control), "{detail}");
        }
        let traceback = "Traceback:\nImportError: libamdhip64.so.5\n\n";
        assert_eq!(
            judged(Ended::Exited(1), traceback).1,
            "ended with code 1 and no answer; it said: ImportError: libamdhip64.so.5"
        );
    }

    fn families(ended: Ended, output: &str) -> Families {
        let asked = ["plain", "gemm", "winograd"].map(str::to_owned);
        judge_families(&outcome(ended, output), &asked, LIMIT)
    }

    fn short(families: &Families) -> Vec<(&str, Verdict)> {
        families.judged.iter().map(|it| (it.family.as_str(), it.verdict)).collect()
    }

    #[test]
    fn a_family_that_hangs_is_named_and_the_rest_is_not_judged() {
        let output = format!(
            "{}\n{}\n{}\n",
            begin_line("plain"),
            family_line("plain", "jit:plain:gfx1010", Verdict::Works, "fine"),
            begin_line("gemm")
        );
        let found = families(Ended::TimedOut, &output);
        assert_eq!(short(&found), [("plain", Verdict::Works), ("gemm", Verdict::Hangs)]);
        assert_eq!(found.judged[0].name.as_deref(), Some("jit:plain:gfx1010"));
        assert!(found.hung);
        // It stopped at its own limit and said which.
        let own_limit = format!("{output}{}", family_line("gemm", "x", Verdict::Hangs, "no answer within 10 s"));
        let found = families(Ended::Exited(1), &own_limit);
        assert_eq!((short(&found).len(), found.hung), (2, true));
        let found = families(Ended::Signalled(6), &output);
        assert_eq!(short(&found), [("plain", Verdict::Works), ("gemm", Verdict::Crashes)]);
        assert!(!found.hung);
    }

    #[test]
    fn a_child_that_was_still_compiling_says_nothing_of_the_kernels() {
        let compiling = families(Ended::TimedOut, "");
        assert!(compiling.judged.is_empty() && compiling.hung && compiling.untried.is_some(), "{compiling:?}");
        let refused = families(Ended::Exited(0), &answer_line(Verdict::Error, "no compiler"));
        assert_eq!(short(&refused), ["plain", "gemm", "winograd"].map(|family| (family, Verdict::Error)));
        let crashed = families(Ended::Signalled(11), "");
        assert_eq!(short(&crashed), ["plain", "gemm", "winograd"].map(|family| (family, Verdict::Crashes)));
    }

    #[test]
    fn a_fill_or_a_copy_of_the_runtimes_that_hangs_is_not_held_against_our_kernels() {
        let hung = family_line(MEMORY, "x", Verdict::Hangs, "no answer within 10 s");
        let own_limit =
            format!("{}\n{hung}\n{}", begin_line(MEMORY), answer_line(Verdict::Hangs, "no answer within 10 s"));
        for (ended, output, is_hung) in [
            (Ended::TimedOut, begin_line(MEMORY), true),
            (Ended::Exited(1), own_limit, true),
            (Ended::Signalled(6), begin_line(MEMORY), false),
            (Ended::Exited(0), format!("{}\n{}", begin_line(MEMORY), answer_line(Verdict::Error, "refused")), false),
        ] {
            let found = families(ended, &output);
            assert_eq!((short(&found), found.hung), (Vec::new(), is_hung), "{output}");
            assert!(found.untried.is_some_and(|why| why.contains("copies")), "{output}");
        }
        let past = format!("{}\n{}\n", begin_line(MEMORY), begin_line("plain"));
        assert_eq!(short(&families(Ended::TimedOut, &past)), [("plain", Verdict::Hangs)]);
    }

    #[test]
    fn families_that_nobody_asked_for_and_unreadable_lines_do_not_count() {
        let output = format!(
            "{}\nunhang-family {{\"family\": \"plain\", \"verdict\": \"splendid\", \"detail\": \"\"}}\n{}\n{}",
            begin_line("plain"),
            family_line("other", "x", Verdict::Works, ""),
            answer_line(Verdict::Works, "")
        );
        assert_eq!(short(&families(Ended::Exited(0), &output)), [("plain", Verdict::Crashes)]);
    }
}
