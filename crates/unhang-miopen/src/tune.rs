//! Tuning in a search. Where it is asked for (`tune`, `UNHANG_TUNE=1`), a program that has MIOpen search gets what it asked for: the
//! candidates of our kernels are timed, and the fastest is kept for this process and the next. The face in torch does the same between calls.
//! A search may wait for the device, as MIOpen's own does, so that everything is measured at once.

use std::sync::Arc;

use unhang_conv::Problem;
use unhang_engine::EngineName;
use unhang_evidence::{Tuning, time};
use unhang_gpu::choice::Choice;
use unhang_gpu::tuning::{Bench, Times, shortlist, tuned};
use unhang_gpu::{GpuEngine, GpuError};
use unhang_session::Subject;

use crate::canary::{is_emulated, source};
use crate::compute;
use crate::process::Process;
use crate::route::Route;
use crate::talk::say;

/// The model's first candidates that are measured, beside the first of each other kernel family.
const CANDIDATES: usize = 4;
/// Rounds in which every candidate has its turn; the first one warms up.
const ROUNDS: usize = 6;
/// Seconds of the GPU's time. One round is always finished.
const BUDGET: f64 = 0.2;
/// Candidates that take this many times as long as the best one are dropped.
const HOPELESS: f64 = 2.0;

/// The candidates of one convolution, the model's choice first, and what they took.
struct Contest {
    times: Vec<Times>,
    choices: Vec<Choice>,
    /// Those that may still win.
    left: Vec<usize>,
    failures: Vec<String>,
}

/// Finds the fastest kernels for a planned convolution, within that many bytes of workspace. Whatever goes wrong, the model's choice
/// stays.
pub(crate) fn tune(process: &Process, route: &Route, stream: u64, workspace: u64) {
    let (engine, problem) = (&route.device.engine, &route.convolution.problem);
    let is_ours = route.engines.first() == Some(&EngineName::Jit);
    if !process.settings.tune || !is_ours || engine.is_preferred(problem) {
        return;
    }
    let is_recording = |stream| engine.driver().is_capturing(stream).unwrap_or(true);
    if is_recording(stream) || is_recording(0) {
        return;
    }
    match measure(process, route, workspace) {
        Ok(Some((contest, winner))) => keep(process, route, &contest, winner),
        Ok(None) => {}
        Err(error) => say(&format!("{problem}: its kernels were not tuned ({error}); the model's choice stays")),
    }
}

fn measure(process: &Process, route: &Route, workspace: u64) -> Result<Option<(Contest, usize)>, GpuError> {
    let (engine, problem) = (&route.device.engine, &route.convolution.problem);
    let mut contest = begin(process, engine, problem, workspace);
    if contest.left.len() < 2 {
        return Ok(None);
    }
    if is_emulated() {
        say("tuning on the emulated card: the times are the emulator's and say nothing about a real one");
    }
    let bench = Bench::new(engine, problem)?;
    let mut spent = 0.0;
    for round in 0..ROUNDS {
        let turns = contest.left.clone();
        for at in 0..turns.len() {
            // In turns, and each round begins with another one.
            let index = turns[(at + round) % turns.len()];
            match timed(process, route, &bench, contest.choices[index]) {
                Ok(seconds) => {
                    contest.times[index].seconds.push(seconds);
                    // One run warms up, and one is timed.
                    spent += 2.0 * seconds;
                }
                Err(error) => contest.leave_out(index, &error.to_string()),
            }
        }
        contest.drop_hopeless();
        if spent >= BUDGET || contest.left.len() < 2 {
            break;
        }
    }
    Ok(decide(process, route, contest))
}

/// Who takes part: not what hung or was wrong when it was measured before.
fn begin(process: &Process, engine: &GpuEngine, problem: &Problem, workspace: u64) -> Contest {
    let all = shortlist(engine.candidates_within(problem, workspace), CANDIDATES);
    let choices: Vec<Choice> = all.into_iter().map(|candidate| candidate.choice).collect();
    let times = choices.iter().map(|choice| Times { choice: choice.to_string(), seconds: Vec::new() }).collect();
    let mut contest = Contest { times, left: (0..choices.len()).collect(), choices, failures: Vec::new() };
    for index in 0..contest.choices.len() {
        if process.refuses(problem, &contest.times[index].choice) {
            contest.leave_out(index, "it did not come back when it was measured before");
        } else if let Err(error) = engine.prepare_as(problem, Some(contest.choices[index])) {
            // Compiled and loaded before anything is timed, and outside of what is watched.
            contest.leave_out(index, &error.to_string());
        }
    }
    contest
}

/// One run, named by the watchdog if it does not come back.
fn timed(process: &Process, route: &Route, bench: &Bench<'_>, choice: Choice) -> Result<f64, GpuError> {
    let subject = || {
        let problems = vec![route.convolution.problem.clone()];
        let candidate = choice.to_string();
        Some(Arc::new(Subject { problems, engine: EngineName::Jit, candidate, rehearsed: is_emulated() }))
    };
    // The bench measures in the stream that every device has.
    process.watched_in(|| Some(0), subject, || bench.seconds(choice, 1))
}

/// The fastest whose first result is right.
fn decide(process: &Process, route: &Route, mut contest: Contest) -> Option<(Contest, usize)> {
    let median = |contest: &Contest, index: usize| contest.times[index].median_and_spread().0;
    let mut ranked: Vec<usize> = contest.left.clone();
    ranked.retain(|&index| !contest.times[index].seconds.is_empty());
    ranked.sort_by(|&a, &b| median(&contest, a).total_cmp(&median(&contest, b)));
    for index in ranked {
        let (problem, choice) = (&route.convolution.problem, contest.choices[index]);
        let prepared = route.device.engine.prepare_as(problem, Some(choice)).ok()?;
        match compute::prove(process, route, &prepared, false) {
            Ok(true) => return Some((contest, index)),
            // These numbers say nothing.
            Ok(false) => return None,
            Err(_) => contest.leave_out(index, "its first result was wrong"),
        }
    }
    None
}

fn keep(process: &Process, route: &Route, contest: &Contest, winner: usize) {
    let (engine, problem) = (&route.device.engine, &route.convolution.problem);
    engine.prefer(problem, contest.choices[winner]);
    let (seconds, name) = (contest.times[winner].median_and_spread().0, &contest.times[winner].choice);
    route.take_tuned(seconds);
    let times: Vec<Times> = contest.times.iter().filter(|it| !it.seconds.is_empty()).cloned().collect();
    if let Some(tuned) = tuned(problem, engine.driver(), &times, name, &contest.failures.join("; ")) {
        process.keep_tuning(Tuning { tuned, source: source(), unix_seconds: time::now() });
    }
    if process.settings.verbose {
        say(&format!("{problem}: tuned, {name} is the fastest of {}", times.len()));
    }
}

impl Contest {
    fn leave_out(&mut self, index: usize, why: &str) {
        self.left.retain(|&it| it != index);
        let first_line: String = why.lines().next().unwrap_or_default().chars().take(200).collect();
        self.failures.push(format!("{}: {first_line}", self.times[index].choice));
    }

    fn drop_hopeless(&mut self) {
        let median = |index: usize| self.times[index].median_and_spread().0;
        let best = self.left.iter().map(|&index| median(index)).fold(f64::INFINITY, f64::min);
        let left = self.left.iter().copied().filter(|&index| median(index) <= HOPELESS * best).collect();
        self.left = left;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contest(seconds: &[&[f64]]) -> Contest {
        let times = seconds.iter().map(|it| Times { choice: "plain".to_owned(), seconds: it.to_vec() }).collect();
        let count = seconds.len();
        Contest { times, choices: vec![Choice::Plain; count], left: (0..count).collect(), failures: Vec::new() }
    }

    #[test]
    fn candidates_that_cannot_win_are_timed_no_more() {
        let mut one = contest(&[&[9.0, 1.0, 1.1], &[1.0, 1.9, 1.9], &[1.0, 3.0, 3.0]]);
        one.drop_hopeless();
        assert_eq!(one.left, [0, 1], "the first round only warms up");
    }

    #[test]
    fn what_failed_is_left_out_and_named() {
        let mut one = contest(&[&[], &[]]);
        one.leave_out(0, "no memory\nand more");
        assert_eq!((one.left, one.failures), (vec![1], vec!["plain: no memory".to_owned()]));
    }
}
