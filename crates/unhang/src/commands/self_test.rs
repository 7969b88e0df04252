//! The doctor's self-test: each engine computes a few small convolutions in a child with a deadline. So do torch's
//! matrix products and its half precision, which other parts of a model need.
//!
//! `unhang_probe::canary` defines what a child prints and what its end means. The order is from harmless to dangerous,
//! so that a card that hangs spoils as little as possible.

use std::cell::OnceCell;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use serde_json::{Value, json};
use unhang_conv::{DataType, Direction, Layout, Problem, Specification};
use unhang_cpu::CpuEngine;
use unhang_engine::{EngineName, Verdict};
use unhang_evidence::{Canary, time};
use unhang_gpu::{FromHost, GpuEngine, GpuSettings};
use unhang_machine::Machine;
use unhang_probe::{Child, ChildOutcome, Ended, PythonStart, answer, canary, supervise};
use unhang_session::proof::judged;

use super::bench::open_driver;
use super::knowledge::open_store;
use super::text::{print_text, wrapped};
use crate::output::{Colour, Style, printable};

/// Makes the CPU engine's child behave like a bad engine: "hang", "crash", "wrong" or "garbage". For tests.
const REHEARSAL: &str = "UNHANG_REHEARSE_CANARY";

/// Something that is tried in a separate child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trial {
    /// An engine computes convolutions.
    Engine(EngineName),
    /// Torch multiplies matrices.
    Matmul,
    /// Torch convolves and multiplies in half precision.
    Half,
}

impl Trial {
    /// All of them, the most harmless first. Our own kernels are compiled for the true chip and audited; torch's may be
    /// for another one.
    pub(super) const ALL: [Trial; 6] = [
        Trial::Engine(EngineName::Cpu),
        Trial::Engine(EngineName::Jit),
        Trial::Engine(EngineName::Aten),
        Trial::Matmul,
        Trial::Half,
        Trial::Engine(EngineName::Miopen),
    ];

    /// Its name, on the screen and to the child.
    pub(super) fn name(self) -> &'static str {
        match self {
            Trial::Engine(engine) => engine.name(),
            Trial::Matmul => "matmul",
            Trial::Half => "half",
        }
    }

    fn deadline(self) -> Duration {
        canary::deadline(if let Trial::Engine(engine) = self { engine } else { EngineName::Aten })
    }

    /// What to do if it fails and none of our engines can replace it.
    fn advice(self) -> Option<&'static str> {
        match self {
            Trial::Engine(_) => None,
            Trial::Matmul => Some(
                "linear layers and attention do not pass through unhang: start the program with `unhang run`, whose \
                 shield repairs rocBLAS as it is loaded, and see `unhang explain TensileLibrary.dat`",
            ),
            Trial::Half => Some(
                "use single precision: `--no-half --precision full` in A1111, `--force-fp32` in ComfyUI, no autocast \
                 in training; see docs/recipes.md",
            ),
        }
    }
}

/// The result of one trial.
pub(super) struct Tried {
    /// What was tried.
    pub trial: Trial,
    /// How it ended.
    pub verdict: Verdict,
    /// How long its child took; `None` if no child was started for it.
    pub elapsed: Option<Duration>,
    /// The largest error, or what went wrong, in words.
    pub detail: String,
}

/// The start of the detail of a trial for which the Python lacks something.
const NOT_HERE: &str = "not here: ";

impl Tried {
    fn not_here(trial: Trial, why: &str) -> Tried {
        Tried { trial, verdict: Verdict::Unsupported, elapsed: None, detail: format!("{NOT_HERE}{why}") }
    }

    /// Whether it is available but must not be used.
    pub(super) fn is_bad(&self) -> bool {
        matches!(self.verdict, Verdict::Hangs | Verdict::Crashes | Verdict::Wrong)
    }
}

/// Exits with 0 if torch and unhang are installed and torch reaches a GPU. It exits with 3 if torch is missing, with 5 if
/// unhang is, and with 4 if torch has no GPU.
const REACHES_A_GPU: &str = "import importlib.util as u
if not u.find_spec('torch'): raise SystemExit(3)
if not u.find_spec('unhang'): raise SystemExit(5)
import torch
raise SystemExit(0 if torch.cuda.is_available() else 4)";

/// The Python whose torch is tried. It is asked only once whether there is anything to try, because importing torch
/// takes seconds.
pub(super) struct Python {
    path: PathBuf,
    answer: OnceCell<Result<(), String>>,
}

impl Python {
    /// Asks nothing yet.
    pub(super) fn new(path: PathBuf) -> Python {
        Python { path, answer: OnceCell::new() }
    }

    /// Why there is nothing to try with it, if so.
    fn ask(&self) -> &Result<(), String> {
        self.answer.get_or_init(|| {
            let path = self.path.display().to_string();
            let deadline = canary::deadline(EngineName::Aten);
            match run(PythonStart::statements(&path, REACHES_A_GPU).supervised(deadline)) {
                Err(error) => Err(format!("{error:#}")),
                Ok(outcome) => match outcome.ended {
                    Ended::Exited(0) => Ok(()),
                    Ended::Exited(3) => Err(format!("{path} has no torch")),
                    Ended::Exited(5) => Err(format!("unhang is not installed in {path}")),
                    Ended::Exited(4) => Err(format!("the torch of {path} sees no GPU")),
                    Ended::TimedOut | Ended::Unkillable => {
                        Err(format!("{path} did not say within {} s whether torch sees a GPU", deadline.as_secs()))
                    }
                    _ => Err(format!("the torch of {path} cannot be imported: {}", last_line(&outcome.output))),
                },
            }
        })
    }
}

/// The last line that says something: of a Python's traceback, the exception.
fn last_line(output: &str) -> &str {
    output.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or("it ended without a word")
}

/// Runs one trial. `before` has the results of earlier ones: after a hang the card may not respond, and the next result
/// would then say nothing about its trial.
pub(super) fn run_trial(trial: Trial, python: &Python, machine: &Machine, before: &[Tried]) -> anyhow::Result<Tried> {
    if trial == Trial::Engine(EngineName::Cpu) {
        return try_cpu(trial);
    }
    let on_gpu = |tried: &&Tried| tried.trial != Trial::Engine(EngineName::Cpu);
    if let Some(hung) = before.iter().filter(on_gpu).find(|tried| tried.verdict == Verdict::Hangs) {
        let detail = format!("not tried: {} hung, and the card may need a reboot first", hung.trial.name());
        return Ok(Tried { trial, verdict: Verdict::Unsupported, elapsed: None, detail });
    }
    let tried = run_by_python(trial, python, machine)?;
    without_torch(trial, tried, machine)
}

fn run_by_python(trial: Trial, python: &Python, machine: &Machine) -> anyhow::Result<Tried> {
    if let Err(why) = python.ask() {
        return Ok(Tried::not_here(trial, why));
    }
    let python = python.path.display().to_string();
    let deadline = trial.deadline();
    let child = apart(PythonStart::module(&python, "unhang._trials", &["canary", trial.name()]).supervised(deadline));
    let (outcome, began) = canary::try_in(&child)?;
    let (verdict, detail) = if began { canary::judge(&outcome, deadline) } else { canary::never_began(&outcome) };
    if began {
        keep(trial, machine, &outcome, verdict, &detail);
    }
    Ok(Tried { trial, verdict, elapsed: Some(outcome.elapsed), detail })
}

/// Our kernels need no torch. If torch cannot reach the card, they are tried on the installed runtime.
fn without_torch(trial: Trial, tried: Tried, machine: &Machine) -> anyhow::Result<Tried> {
    let is_ours = trial == Trial::Engine(EngineName::Jit) && tried.verdict == Verdict::Unsupported;
    if !is_ours || machine.gpus.is_empty() {
        return Ok(tried);
    }
    let outcome = run(own_child(trial, trial.deadline())?)?;
    let (verdict, detail) = canary::judge(&outcome, trial.deadline());
    if verdict == Verdict::Unsupported {
        return Ok(tried);
    }
    Ok(Tried { trial, verdict, elapsed: Some(outcome.elapsed), detail: format!("without torch: {detail}") })
}

/// This program as the child that tries one of our engines.
fn own_child(trial: Trial, deadline: Duration) -> anyhow::Result<Child> {
    let program = std::env::current_exe().context("cannot find this program to start it as a child")?;
    let command = vec![program.display().to_string(), "doctor".into(), "--self-test-child".into(), trial.name().into()];
    Ok(Child { command, environment: Vec::new(), deadline })
}

fn try_cpu(trial: Trial) -> anyhow::Result<Tried> {
    // A rehearsed hang need not take as long as a real one.
    let rehearsed = std::env::var_os(REHEARSAL);
    let deadline =
        if rehearsed.as_deref() == Some("hang".as_ref()) { Duration::from_secs(2) } else { trial.deadline() };
    let outcome = run(own_child(trial, deadline)?)?;
    let (verdict, detail) = canary::judge(&outcome, deadline);
    let detail = if rehearsed.is_some() { format!("rehearsed: {detail}") } else { detail };
    Ok(Tried { trial, verdict, elapsed: Some(outcome.elapsed), detail })
}

fn run(child: Child) -> anyhow::Result<ChildOutcome> {
    Ok(supervise(&apart(child))?)
}

/// Keeps our library out from between a child and MIOpen, even if a preloaded one is inherited.
fn apart(mut child: Child) -> Child {
    child.environment.push(("UNHANG_MIOPEN".to_owned(), Some("0".to_owned())));
    child
}

/// Keeps the verdicts where `enable()` looks for them, so that it need not try again. They are filed under the torch
/// that the child reported, because a torch found by searching may not be the one that ran.
fn keep(trial: Trial, machine: &Machine, outcome: &ChildOutcome, verdict: Verdict, detail: &str) {
    let Some(torch) = canary::torch_of(outcome) else { return };
    let mut found = Vec::new();
    match trial {
        Trial::Engine(EngineName::Jit) => {
            let families = canary::families_of(outcome);
            found.extend(families.into_iter().filter_map(|it| it.name.map(|name| (name, it.verdict, it.detail))));
        }
        Trial::Engine(engine) => found.push((engine.name().to_owned(), verdict, detail.to_owned())),
        Trial::Matmul | Trial::Half => {}
    }
    found.retain(|(_, verdict, _)| *verdict != Verdict::Unsupported);
    if found.is_empty() {
        return;
    }
    let store = open_store();
    for (name, verdict, detail) in found {
        let machine = machine.fingerprint(Some(torch));
        store.set_canary(Canary { machine, name, verdict, detail, unix_seconds: time::now() });
    }
}

/// The section for people.
pub(super) fn report(tried: &[Tried], style: Style) -> String {
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
        let detail = wrapped(&printable(&it.detail), 30, 30);
        let _ = writeln!(text, "  {:6}  {verdict} {seconds:>7} {}", it.trial.name(), detail.trim_start());
        if let (true, Some(advice)) = (it.is_bad(), it.trial.advice()) {
            let _ = writeln!(text, "{}", wrapped(&format!("what to do: {advice}"), 30, 30));
        }
    }
    // Once, because all of them are tried with the same Python.
    if tried.iter().any(|it| it.detail.starts_with(NOT_HERE)) {
        let _ = writeln!(text, "{}", wrapped("`unhang doctor --self-test --python PATH` tries another Python", 2, 2));
    }
    text
}

/// The result for other programs.
pub(super) fn to_json(tried: &[Tried]) -> Value {
    let each = |it: &Tried| {
        json!({
            "engine": it.trial.name(),
            "verdict": it.verdict.name(),
            "seconds": it.elapsed.map(|elapsed| elapsed.as_secs_f64()),
            "detail": it.detail,
        })
    };
    tried.iter().map(each).collect()
}

/// The child: compares one of our engines with the reference.
pub(super) fn child(engine: &str) -> anyhow::Result<ExitCode> {
    let (verdict, detail) = if engine == EngineName::Jit.name() {
        let engine = match open_driver() {
            Ok(driver) => GpuEngine::new(driver, GpuSettings::default()),
            Err(error) => {
                let answer = canary::answer_line(Verdict::Unsupported, &format!("not here: {error:#}"));
                print_text(&format!("{answer}\n"))?;
                return Ok(ExitCode::SUCCESS);
            }
        };
        let description = engine.driver().description();
        let mut problems = canary::kernel_problems(description.is_emulated());
        problems.retain(|problem| problem.data_type() == DataType::F32);
        let (verdict, detail) = judged(&FromHost::new(&engine), &problems, false);
        (verdict, format!("{detail}, on {} by {}", description.name, description.driver))
    } else {
        return cpu_child();
    };
    print_text(&format!("{}\n", canary::answer_line(verdict, &detail)))?;
    Ok(ExitCode::SUCCESS)
}

fn cpu_child() -> anyhow::Result<ExitCode> {
    let rehearsal = std::env::var(REHEARSAL).unwrap_or_default();
    match rehearsal.as_str() {
        "hang" => loop {
            std::thread::sleep(Duration::from_secs(60));
        },
        "crash" => std::process::abort(),
        "garbage" => {
            print_text(&answer::line("unhang-canary {\"verdict\": \"splendid\"\n"))?;
            return Ok(ExitCode::SUCCESS);
        }
        _ => {}
    }
    let (verdict, detail) = judged(&CpuEngine::new(), &problems(), rehearsal == "wrong");
    print_text(&format!("{}\n", canary::answer_line(verdict, &detail)))?;
    Ok(ExitCode::SUCCESS)
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

#[cfg(test)]
mod tests {
    use unhang_engine::Reference;

    use super::*;

    #[test]
    fn after_a_hang_on_the_card_nothing_more_is_tried_on_it() {
        let machine = Machine::inspect(&unhang_machine::System::host());
        let after = |engine| {
            let before =
                [Tried { trial: Trial::Engine(engine), verdict: Verdict::Hangs, elapsed: None, detail: String::new() }];
            let python = Python::new(PathBuf::from("/nonexistent/python"));
            run_trial(Trial::Engine(EngineName::Miopen), &python, &machine, &before).unwrap()
        };
        let tried = after(EngineName::Aten);
        assert!(tried.verdict == Verdict::Unsupported && tried.detail.starts_with("not tried: aten hung"));
        // Our own engine on the CPU does not touch the card.
        assert!(after(EngineName::Cpu).detail.starts_with("not here: cannot start"));
    }

    #[test]
    fn the_right_result_passes_and_a_spoiled_one_does_not() {
        assert_eq!(judged(&Reference, &problems(), false).0, Verdict::Works);
        assert_eq!(judged(&Reference, &problems(), true).0, Verdict::Wrong);
    }
}
