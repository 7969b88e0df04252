//! The doctor's self-test: each engine computes a few small convolutions in a child with a deadline.
//!
//! Every child answers with one line, `unhang-canary {"verdict": …, "detail": …}`; what it does not say is read off its
//! end. The order is from harmless to dangerous, so that a card that hangs spoils as little as possible.

use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use serde_json::{Value, json};
use unhang_conv::{Direction, Layout, Problem, Specification};
use unhang_cpu::CpuEngine;
use unhang_engine::{Elements, ElementsMut, Engine, EngineError, EngineName, Operands, Reference, Verdict};
use unhang_evidence::{Canary, time};
use unhang_machine::Machine;
use unhang_probe::{Child, Ended, Outcome, supervise};

use super::knowledge::open_store;
use super::python::HAS_TORCH_AND_UNHANG;
use super::text::{print_text, wrapped};
use crate::output::{Colour, Style, printable};

/// What a child's answer starts with; the Python package's `_canary` writes the same.
const ANSWER: &str = "unhang-canary ";
/// What the line starts with in which a Python child says which torch it has, before it touches the GPU.
const TORCH: &str = "unhang-torch ";
/// Makes the CPU engine's child behave as a bad engine does: "hang", "crash", "wrong" or "garbage". For tests.
const REHEARSAL: &str = "UNHANG_REHEARSE_CANARY";
/// How far one number may be from the reference, relative to the largest.
const TOLERANCE: f64 = 3e-5;

/// The engines that are tried, the most harmless first: our own kernels are compiled for the true chip and audited,
/// torch's may be for another one.
pub const ENGINES: [EngineName; 4] = [EngineName::Cpu, EngineName::Jit, EngineName::Aten, EngineName::Miopen];

/// How one engine did.
pub struct Tried {
    /// The engine.
    pub engine: EngineName,
    /// How it ended.
    pub verdict: Verdict,
    /// How long its child took; none where no child was started for it.
    pub elapsed: Option<Duration>,
    /// The largest error, or what went wrong, in words.
    pub detail: String,
}

impl Tried {
    fn not_here(engine: EngineName, why: &str) -> Tried {
        Tried { engine, verdict: Verdict::Unsupported, elapsed: None, detail: format!("not here: {why}") }
    }

    /// Whether the engine is here and must not be used.
    pub fn is_bad(&self) -> bool {
        matches!(self.verdict, Verdict::Hangs | Verdict::Crashes | Verdict::Wrong)
    }
}

/// Tries one engine. `before` is how those before it did: after a hang the card may not have come back, and what the
/// next engine does then says nothing about that engine.
pub fn try_engine(engine: EngineName, python: &Path, machine: &Machine, before: &[Tried]) -> anyhow::Result<Tried> {
    if engine == EngineName::Cpu {
        return try_cpu();
    }
    if let Some(hung) = before.iter().find(|tried| tried.verdict == Verdict::Hangs && tried.engine != EngineName::Cpu) {
        let detail = format!("not tried: {} hung, and the card may need a reboot first", hung.engine);
        return Ok(Tried { engine, verdict: Verdict::Unsupported, elapsed: None, detail });
    }
    let python = python.display().to_string();
    let look = run(vec![python.clone(), "-c".to_owned(), HAS_TORCH_AND_UNHANG.to_owned()], deadline(EngineName::Cpu));
    match look {
        Err(error) => return Ok(Tried::not_here(engine, &format!("{error:#}; name a Python with --python"))),
        Ok(outcome) if outcome.ended != Ended::Exited(0) => {
            let why = format!("{python} has no torch, or unhang is not installed in it; name another with --python");
            return Ok(Tried::not_here(engine, &why));
        }
        Ok(_) => {}
    }
    let command = [&python, "-m", "unhang._canary", engine.name()].map(str::to_owned).to_vec();
    let deadline = deadline(engine);
    let outcome = run(command, deadline)?;
    let (verdict, detail) = judge(&outcome, deadline);
    if engine == EngineName::Aten {
        keep(machine, &outcome, verdict, &detail);
    }
    Ok(Tried { engine, verdict, elapsed: Some(outcome.elapsed), detail })
}

fn try_cpu() -> anyhow::Result<Tried> {
    let program = std::env::current_exe().context("cannot find this program to start it as a child")?;
    let command = vec![program.display().to_string(), "doctor".into(), "--self-test-child".into(), "cpu".into()];
    // A rehearsed hang need not be waited for as long as a real one.
    let rehearsed = std::env::var_os(REHEARSAL);
    let deadline =
        if rehearsed.as_deref() == Some("hang".as_ref()) { Duration::from_secs(2) } else { deadline(EngineName::Cpu) };
    let outcome = run(command, deadline)?;
    let (verdict, detail) = judge(&outcome, deadline);
    let detail = if rehearsed.is_some() { format!("rehearsed: {detail}") } else { detail };
    Ok(Tried { engine: EngineName::Cpu, verdict, elapsed: Some(outcome.elapsed), detail })
}

/// How long a child may take in all. Ours and MIOpen compile kernels on their first run, each for a second or more;
/// within the others' time that would look like a hang.
fn deadline(engine: EngineName) -> Duration {
    Duration::from_secs(if matches!(engine, EngineName::Jit | EngineName::Miopen) { 180 } else { 30 })
}

fn run(command: Vec<String>, deadline: Duration) -> anyhow::Result<Outcome> {
    Ok(supervise(&Child { command, environment: Vec::new(), deadline })?)
}

/// What a child's end and its answer mean. A child that ended without an answer that can be read has crashed, whatever
/// its exit code says: it had a last line to print and did not get there.
fn judge(outcome: &Outcome, deadline: Duration) -> (Verdict, String) {
    let no_answer = format!("no answer within {} s", deadline.as_secs());
    match outcome.ended {
        Ended::TimedOut => (Verdict::Hangs, no_answer),
        Ended::Unkillable => (Verdict::Hangs, format!("{no_answer}, and it cannot be killed")),
        Ended::Signalled(signal) => (Verdict::Crashes, format!("ended by signal {signal}")),
        Ended::Exited(code) => answer(&outcome.output).unwrap_or_else(|| {
            let last = outcome.output.lines().rev().find(|line| !line.trim().is_empty() && !line.starts_with(TORCH));
            let said = last.map(|line| format!("; it said: {}", shortened(line))).unwrap_or_default();
            (Verdict::Crashes, format!("ended with code {code} and no answer{said}"))
        }),
    }
}

fn answer(output: &str) -> Option<(Verdict, String)> {
    let line = output.lines().find_map(|line| line.strip_prefix(ANSWER))?;
    let answer: Value = serde_json::from_str(line).ok()?;
    let verdict = answer.get("verdict")?.as_str()?.parse().ok()?;
    Some((verdict, shortened(answer.get("detail")?.as_str()?)))
}

/// Text of a child: on one line, and not endless.
fn shortened(text: &str) -> String {
    printable(text).replace(['\n', '\t'], " ").chars().take(300).collect()
}

/// Keeps the verdict where `enable()` looks for it, so that it need not try again. It is filed under the torch that the
/// child said it has: the one that is found by looking need not be the one that was run.
fn keep(machine: &Machine, outcome: &Outcome, verdict: Verdict, detail: &str) {
    let Some(torch) = outcome.output.lines().find_map(|line| line.strip_prefix(TORCH)) else { return };
    if verdict == Verdict::Unsupported {
        return;
    }
    open_store().set_canary(Canary {
        machine: machine.fingerprint(Some(torch.trim())),
        name: EngineName::Aten.name().to_owned(),
        verdict,
        detail: detail.to_owned(),
        unix_seconds: time::now(),
    });
}

/// The section for people.
pub fn report(tried: &[Tried], style: Style) -> String {
    let mut text = format!("\n{}\n", style.paint("Self-test", Colour::Bold));
    for it in tried {
        let colour = match it.verdict {
            Verdict::Works => Colour::Green,
            Verdict::Unsupported => Colour::Dim,
            Verdict::Error => Colour::Yellow,
            _ => Colour::Red,
        };
        let seconds = it.elapsed.map(|elapsed| format!("{:.1} s", elapsed.as_secs_f64())).unwrap_or_default();
        let verdict = style.paint(&format!("{:11}", it.verdict.name()), colour);
        let detail = wrapped(&shortened(&it.detail), 30, 30);
        let _ = writeln!(text, "  {:6}  {verdict} {seconds:>7} {}", it.engine.name(), detail.trim_start());
    }
    text
}

/// The result for other programs.
pub fn to_json(tried: &[Tried]) -> Value {
    let each = |it: &Tried| {
        json!({
            "engine": it.engine.name(),
            "verdict": it.verdict.name(),
            "seconds": it.elapsed.map(|elapsed| elapsed.as_secs_f64()),
            "detail": it.detail,
        })
    };
    tried.iter().map(each).collect()
}

/// The child: the CPU engine against the reference.
pub fn cpu_child() -> anyhow::Result<ExitCode> {
    let rehearsal = std::env::var(REHEARSAL).unwrap_or_default();
    match rehearsal.as_str() {
        "hang" => loop {
            std::thread::sleep(Duration::from_secs(60));
        },
        "crash" => std::process::abort(),
        "garbage" => {
            print_text(&format!("{ANSWER}{{\"verdict\": \"splendid\"\n"))?;
            return Ok(ExitCode::SUCCESS);
        }
        _ => {}
    }
    let (verdict, detail) = match largest_error(&CpuEngine::new(), rehearsal == "wrong") {
        Ok((worst, problem)) if worst <= TOLERANCE => {
            (Verdict::Works, format!("largest relative error {worst:.1e} in {problem}"))
        }
        Ok((worst, problem)) => (Verdict::Wrong, format!("relative error {worst:.1e} in {problem}")),
        Err(error) => (Verdict::Error, error.to_string()),
    };
    print_text(&format!("{ANSWER}{}\n", json!({ "verdict": verdict.name(), "detail": detail })))?;
    Ok(ExitCode::SUCCESS)
}

/// The largest error over all problems of the self-test, relative to the largest number of each, and where it is.
fn largest_error(engine: &dyn Engine, spoil: bool) -> Result<(f64, Problem), EngineError> {
    let mut worst: Option<(f64, Problem)> = None;
    for problem in problems() {
        let error = error_of(engine, &problem, spoil)?;
        if worst.as_ref().is_none_or(|(known, _)| error > *known) {
            worst = Some((error, problem));
        }
    }
    Ok(worst.expect("there are problems"))
}

/// A few small convolutions of each kind, in both layouts and all three directions.
fn problems() -> Vec<Problem> {
    let plain = Specification {
        batch: 2,
        in_channels: 16,
        in_size: [13, 11],
        out_channels: 24,
        kernel: [3, 3],
        padding: [1, 1],
        ..Specification::default()
    };
    let kinds = [
        Specification { stride: [2, 2], ..plain },
        Specification { groups: 4, ..plain },
        Specification { groups: 16, out_channels: 16, ..plain },
        Specification { kernel: [1, 1], padding: [0, 0], ..plain },
        Specification { dilation: [2, 2], padding: [2, 2], ..plain },
        Specification { transposed: true, stride: [2, 2], output_padding: [1, 1], ..plain },
        plain,
    ];
    let mut problems = Vec::new();
    for kind in kinds {
        for layout in [Layout::Nchw, Layout::Nhwc] {
            for direction in [Direction::Forward, Direction::BackwardData, Direction::BackwardWeights] {
                let problem = Problem::new(Specification { layout, direction, ..kind });
                problems.push(problem.expect("the self-test's own problems are valid"));
            }
        }
    }
    problems
}

fn error_of(engine: &dyn Engine, problem: &Problem, spoil: bool) -> Result<f64, EngineError> {
    let [first, second, result] = problem.operand_shapes().map(|shape| shape.iter().product::<usize>());
    let (first, second) = (numbers(first, 1), numbers(second, 2));
    let bias = (problem.direction() == Direction::Forward).then(|| numbers(problem.out_channels(), 3));
    let compute = |engine: &dyn Engine| {
        // Not a number until it is written: what an engine leaves out is seen.
        let mut result = vec![f32::NAN; result];
        let operands = Operands {
            first: Elements::F32(&first),
            second: Elements::F32(&second),
            bias: bias.as_deref().map(Elements::F32),
            result: ElementsMut::F32(&mut result),
        };
        engine.run(problem, operands).map(|()| result)
    };
    let expected = compute(&Reference)?;
    let mut found = compute(engine)?;
    if spoil {
        found[0] += 1.0;
    }
    let scale = expected.iter().fold(0.0f64, |largest, number| largest.max(f64::from(number.abs())));
    let error = |(found, expected): (&f32, &f32)| f64::from(found - expected).abs() / scale;
    let errors = found.iter().zip(&expected).map(error);
    Ok(errors.fold(0.0, |worst, error| if error.is_finite() { worst.max(error) } else { f64::INFINITY }))
}

/// Numbers between -1 and 1 that are the same each time.
fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    let next = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u32 << 23) as f32 - 1.0
    };
    (0..count).map(next).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(ended: Ended, output: &str) -> (Verdict, String) {
        let outcome = Outcome { ended, output: output.to_owned(), elapsed: Duration::from_secs(1) };
        judge(&outcome, Duration::from_secs(30))
    }

    #[test]
    fn an_answer_counts_only_from_a_child_that_ended_by_itself() {
        let works =
            "noise\nunhang-torch 2.2.2 hip5.7\nunhang-canary {\"verdict\": \"works\", \"detail\": \"fine\"}\nmore";
        assert_eq!(judged(Ended::Exited(0), works), (Verdict::Works, "fine".to_owned()));
        assert_eq!(judged(Ended::Signalled(11), works), (Verdict::Crashes, "ended by signal 11".to_owned()));
        assert_eq!(judged(Ended::TimedOut, works), (Verdict::Hangs, "no answer within 30 s".to_owned()));
        let (verdict, detail) = judged(Ended::Unkillable, "");
        assert!(verdict == Verdict::Hangs && detail.contains("cannot be killed"), "{detail}");
    }

    #[test]
    fn every_verdict_can_be_answered() {
        for verdict in Verdict::ALL {
            let line = format!("unhang-canary {{\"verdict\": \"{verdict}\", \"detail\": \"\"}}");
            assert_eq!(judged(Ended::Exited(0), &line).0, verdict);
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

    #[test]
    fn after_a_hang_on_the_card_nothing_more_is_tried_on_it() {
        let machine = Machine::inspect(&unhang_machine::System::host());
        let after = |engine| {
            let before = [Tried { engine, verdict: Verdict::Hangs, elapsed: None, detail: String::new() }];
            try_engine(EngineName::Miopen, Path::new("/nonexistent/python"), &machine, &before).unwrap()
        };
        let tried = after(EngineName::Aten);
        assert!(tried.verdict == Verdict::Unsupported && tried.detail.starts_with("not tried: aten hung"));
        // Our own engine on the CPU does not touch the card.
        assert!(after(EngineName::Cpu).detail.starts_with("not here: cannot start"));
    }

    /// An engine that writes nothing.
    struct Idle;

    impl Engine for Idle {
        fn name(&self) -> EngineName {
            EngineName::Cpu
        }

        fn supports(&self, _: &Problem) -> Result<(), unhang_engine::Unsupported> {
            Ok(())
        }

        fn run(&self, _: &Problem, _: Operands<'_>) -> Result<(), EngineError> {
            Ok(())
        }
    }

    #[test]
    fn what_is_left_out_is_seen() {
        assert_eq!(largest_error(&Idle, false).unwrap().0, f64::INFINITY);
        assert_eq!(largest_error(&Reference, false).unwrap().0, 0.0);
        assert!(largest_error(&Reference, true).unwrap().0 > TOLERANCE);
    }
}
