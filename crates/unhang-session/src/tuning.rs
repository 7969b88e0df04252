//! Tuning in a search. If it is enabled (`tune`, `UNHANG_TUNE=1`) and a program has the vendor's library search, our
//! candidates are timed. The fastest is used in this process and the next. A search may wait for the device, as the
//! vendor's own does, so everything is measured at once.

use std::sync::Arc;

use unhang_engine::EngineName;
use unhang_gpu::GpuError;
use unhang_gpu::choice::Choice;
use unhang_gpu::tuning::Bench;

use crate::compute::prove;
use crate::contest::{Contest, Effort};
use crate::process::{Face, Process};
use crate::route::Route;
use crate::subject::Subject;
use crate::talk::say_once as say;

/// Finds the fastest kernels for a planned convolution, for a caller that provides the workspace it was asked for.
/// Whatever goes wrong, the model's choice stays.
pub(crate) fn tune<F: Face>(process: &Process<F>, route: &Route, stream: u64) {
    let (engine, problem) = (&route.device.engine, &route.convolution.problem);
    let is_ours = route.engines.first() == Some(&EngineName::Jit);
    if !process.settings().tune || !is_ours || engine.is_preferred(problem) {
        return;
    }
    let is_recording = |stream| engine.driver().is_capturing(stream).unwrap_or(true);
    if is_recording(stream) || is_recording(0) {
        return;
    }
    match measure(process, route) {
        Ok(Some((contest, winner))) => keep(process, route, &contest, winner),
        Ok(None) => {}
        Err(error) => say(&format!("{problem}: its kernels were not tuned ({error}); the model's choice stays")),
    }
}

fn measure<F: Face>(process: &Process<F>, route: &Route) -> Result<Option<(Contest, Choice)>, GpuError> {
    let (engine, problem, session) = (&route.device.engine, &route.convolution.problem, process.session());
    let is_refused = |choice: &str| session.refuses(problem, EngineName::Jit, choice, false);
    let mut contest =
        Contest::of_candidates(Effort::ON_FIRST_USE, engine, problem, route.room_for_kernels(), is_refused);
    for choice in contest.contenders() {
        // Compiled and loaded before anything is timed, and outside of what is watched.
        if let Err(error) = engine.prepare_as(problem, Some(choice)) {
            contest.leave_out(choice, &error.to_string());
        }
    }
    if contest.contenders().len() < 2 {
        return Ok(None);
    }
    if session.machine().emulated {
        say("tuning on the emulated card: the times are the emulator's and say nothing about a real one");
    }
    let bench = Bench::new(engine, problem)?;
    while let Some(round) = contest.next_round() {
        for choice in round.turns {
            match timed(process, route, &bench, choice, round.repeats) {
                Ok(seconds) => contest.took(choice, seconds),
                Err(error) => contest.leave_out(choice, &error.to_string()),
            }
        }
    }
    Ok(winner_of(process, route, contest))
}

/// One turn; the watchdog names it if it does not return.
fn timed<F: Face>(
    process: &Process<F>,
    route: &Route,
    bench: &Bench<'_>,
    choice: Choice,
    repeats: u32,
) -> Result<f64, GpuError> {
    let subject = || {
        let subject = Subject::new(&route.convolution.problem, EngineName::Jit, process.session().machine().emulated);
        Some(Arc::new(Subject { candidate: choice.to_string(), ..subject }))
    };
    // The bench measures in the stream that every device has.
    process.watched(|| Some(0), subject, || bench.seconds(choice, repeats))
}

/// The fastest with a right first result; `None` if the numbers cannot tell.
fn winner_of<F: Face>(process: &Process<F>, route: &Route, mut contest: Contest) -> Option<(Contest, Choice)> {
    for choice in contest.ranked() {
        let prepared = route.device.engine.prepare_as(&route.convolution.problem, Some(choice)).ok()?;
        match prove(process.session(), &route.device, &prepared, false) {
            Ok(true) => return Some((contest, choice)),
            Ok(false) => return None,
            Err(_) => contest.leave_out(choice, "its first result was wrong"),
        }
    }
    None
}

fn keep<F: Face>(process: &Process<F>, route: &Route, contest: &Contest, winner: Choice) {
    let (engine, problem, session) = (&route.device.engine, &route.convolution.problem, process.session());
    if let Some(seconds) = session.take_winner(engine, problem, contest, winner) {
        route.take_tuned(seconds);
    }
    if process.settings().verbose {
        say(&format!("{problem}: tuned, {winner} is the fastest of {}", contest.times().len()));
    }
}
