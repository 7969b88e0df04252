//! Tuning in a search. If it is enabled (`tune`, `UNHANG_TUNE=1`) and a program has the vendor's library search, our
//! candidates are timed. The fastest is used in this process and the next. A search may wait for the device, as the
//! vendor's own does, so everything is measured at once. Operations other than convolutions have no search: the first
//! call of each size, stride and type is one.

use std::fmt::Display;
use std::sync::Arc;

use unhang_engine::{EngineName, TunedProblem};
use unhang_gpu::choice::Choice;
use unhang_gpu::tuning::Bench;
use unhang_gpu::{GpuEngine, GpuError, LoadedLaunches, Way};

use crate::compute::prove;
use crate::contest::{Contest, Effort};
use crate::device::Device;
use crate::failure::Failure;
use crate::operation::{self, Given, Operation};
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
    if is_recording(engine, stream) {
        return;
    }
    match measure(process, route) {
        Ok(Some((contest, winner))) => keep(process, route, &contest, winner),
        Ok(None) => {}
        Err(error) => say_untuned(problem, &error.to_string()),
    }
}

/// Whether a graph is recorded in a stream or in the one that every device has.
fn is_recording(engine: &GpuEngine, stream: u64) -> bool {
    [stream, 0].into_iter().any(|stream| engine.driver().is_capturing(stream).unwrap_or(true))
}

fn say_untuned(what: &dyn Display, error: &str) {
    say(&format!("{what}: its kernels were not tuned ({error}); the model's choice stays"));
}

/// Times on the emulated card mean nothing.
fn say_emulated<F: Face>(process: &Process<F>) {
    if process.session().machine().emulated {
        say("tuning on the emulated card: the times are the emulator's and say nothing about a real one");
    }
}

fn say_winner<F: Face>(process: &Process<F>, what: &dyn Display, winner: &dyn Display, timed: usize) {
    if process.settings().verbose {
        say(&format!("{what}: tuned, {winner} is the fastest of {timed}"));
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
    say_emulated(process);
    let bench = Bench::new(engine, problem)?;
    contest.run(|choice, repeats| timed(process, route, &bench, choice, repeats).map_err(|error| error.to_string()));
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
    say_winner(process, problem, &winner, contest.times().len());
}

/// Finds the fastest way to divide an operation before it is computed for the first time, on memory of our own. Whatever
/// goes wrong, the planned way stays.
pub fn tune_operation<F: Face, O: Operation>(
    process: &Process<F>,
    device: &Device,
    what: &O,
    at: &O::Buffers,
    stream: u64,
) {
    let engine = &device.engine;
    if !process.settings().tune || engine.has_kernels().is_err() || !device.may_run(O::FAMILY) {
        return;
    }
    if what.check(at).is_err() || is_recording(engine, stream) {
        return;
    }
    let given = Given::new(what, at);
    let Ok(chosen) = given.chosen(device) else { return };
    if chosen.is_settled {
        return;
    }
    let measured = Measured { process, device, given: &given, stream }.contest(chosen.way);
    let winner = match measured {
        Ok(contest) => {
            for failure in contest.failures() {
                say(&format!("a {} is not divided in this way: {failure}", O::NAME));
            }
            let winner = contest.ranked().first().copied();
            if let Some(winner) = winner {
                let name = given.name();
                engine.prefer_way(name.clone(), winner.to_string());
                let problem = TunedProblem::Operation(name);
                process.session().keep_winner(engine, problem, &contest, winner);
                say_winner(process, &format!("a {}", O::NAME), &winner, contest.times().len());
            }
            winner
        }
        Err(failure) => {
            say_untuned(&format!("a {}", O::NAME), failure.reason());
            None
        }
    };
    given.settle(device, winner.unwrap_or(chosen.way));
}

/// An operation whose ways are measured.
struct Measured<'a, F: Face, O: Operation> {
    process: &'a Process<F>,
    device: &'a Device,
    given: &'a Given<'a, O>,
    stream: u64,
}

impl<F: Face, O: Operation> Measured<'_, F, O> {
    /// Each way must first give a right result. An error if the planned one does not.
    fn contest(&self, planned: Way) -> Result<Contest<Way>, Failure> {
        let effort = Effort::ON_FIRST_USE;
        let ways = self.given.ways(self.device).into_iter().take(effort.candidates);
        let mut contest = Contest::new(effort, ways);
        let mut loaded = Vec::new();
        for way in contest.contenders() {
            match self.proven(way, planned) {
                Ok(launches) => loaded.push((way, launches)),
                Err(failure) if way == planned => return Err(failure),
                Err(failure) => contest.leave_out(way, failure.reason()),
            }
        }
        if contest.contenders().len() < effort.fewest {
            return Ok(contest);
        }
        say_emulated(self.process);
        let bench = operation::Bench::new(self.device, self.given)?;
        contest.run(|way, repeats| {
            let (_, launches) = loaded.iter().find(|(it, _)| *it == way).ok_or("it was not loaded")?;
            let run = || bench.seconds(launches, self.stream, repeats);
            self.watched(way, planned, run).map_err(|failure| failure.reason().to_owned())
        });
        Ok(contest)
    }

    /// Compiled and loaded before anything is timed, and outside of what is watched.
    fn proven(&self, way: Way, planned: Way) -> Result<LoadedLaunches, Failure> {
        let launches = operation::load(self.device, self.given.what, way, self.stream)?;
        let session = self.process.session();
        self.watched(way, planned, || self.given.prove(session, self.device, way, self.stream))?;
        Ok(launches)
    }

    /// A way that does not return is named by the watchdog, as if its first result had been wrong.
    fn watched<T>(&self, way: Way, planned: Way, run: impl FnOnce() -> T) -> T {
        let subject = || {
            let (device, rehearsed) = (self.device, self.process.session().machine().emulated);
            let (canary, candidate) = match way == planned {
                true => (device.card.name_of_family(&device.engine, O::FAMILY), String::new()),
                false => (self.given.name_of_verdict(device, way), way.to_string()),
            };
            Some(Arc::new(Subject { candidate, ..Subject::of_family(O::NAME, canary, rehearsed) }))
        };
        self.process.watched(|| Some(self.stream), subject, run)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::ffi::c_void;
    use std::path::Path;
    use std::sync::atomic::Ordering;
    use std::time::Duration;

    use unhang_conv::DataType;
    use unhang_engine::Verdict;
    use unhang_evidence::Store;
    use unhang_gpu::pooling;
    use unhang_gpu::reduction::{AXES, Axis, Buffers, ReductionKind, Task};

    use super::*;
    use crate::contest::take_tunings;
    use crate::normalization::Normalizing;
    use crate::played::{self, Play, PlayedFace};

    /// One sum of many numbers.
    const COUNT: usize = 5000;
    /// Its parts as planned.
    const PLANNED: i32 = 3;
    const TWICE: i32 = 6;

    thread_local! {
        /// The parts and lanes of each launch that does not merge parts.
        static LAUNCHED: RefCell<Vec<(i32, i32)>> = const { RefCell::new(Vec::new()) };
    }

    /// The ways that were launched since this was last given.
    fn launched() -> Vec<(i32, i32)> {
        let mut all = LAUNCHED.take();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Sums everything in each launch, a part more or less; twice as many parts are the fastest.
    fn play(arguments: &[*mut c_void]) {
        let [lanes, rows_first, chunks] = [2, 3, 4].map(|at| played::number_of_shape(arguments, at));
        if rows_first == 1 {
            LAUNCHED.with_borrow_mut(|all| all.push((chunks, lanes)));
        }
        let [from, to] = [0, 1].map(|at| played::address(arguments, at));
        played::write(to, played::numbers(from, COUNT).into_iter().sum());
        played::take(match (chunks, lanes) {
            (TWICE, _) => 1e-6,
            (_, 2) => 2e-6,
            _ => 3e-6,
        });
    }

    /// Sums everything, and is wrong in what would be the fastest way.
    fn play_wrong(arguments: &[*mut c_void]) {
        play(arguments);
        if played::number_of_shape(arguments, 4) == TWICE {
            played::write(played::address(arguments, 1), -1.0);
        }
    }

    fn sum() -> (Task, Buffers) {
        let none = [Axis { size: 1, x: 0, y: 0 }; AXES];
        let task = Task {
            kind: ReductionKind::Sum,
            propagates: false,
            data_type: DataType::F32,
            result_type: DataType::F32,
            in_double: false,
            kept: none,
            reduced: none,
            factors: [1.0, 0.0],
        };
        let at = Buffers { x: played::place(&[1.0; COUNT]), y: played::place(&[0.0]), indices: 0 };
        (task.with_axes(&[], &[Axis { size: COUNT, x: 1, y: 0 }]), at)
    }

    /// A process with what is kept in a folder, and its device.
    fn start(home: &Path, play: Play, tune: bool) -> (Process<PlayedFace>, Device) {
        let (device, ..) = played::device(Some(play));
        let store = Store::open(home);
        take_tunings(&device.engine, &store);
        (played::process(played::session_with(store), tune), device)
    }

    /// Tunes and computes it as a face does: the way that the result was computed in.
    fn compute(process: &Process<PlayedFace>, device: &Device) -> (i32, i32) {
        let (task, at) = sum();
        tune_operation(process, device, &task, &at, 0);
        played::compute(process.session(), device, &task, &at);
        assert_eq!(played::numbers(at.y, 1), [COUNT as f64]);
        LAUNCHED.with_borrow(|all| *all.last().unwrap())
    }

    #[test]
    fn the_planned_way_comes_first_and_others_differ() {
        fn most<O: Operation>() -> usize {
            let (device, ..) = played::device(None);
            let ways = O::trials(false).into_iter().map(|(what, at)| {
                let ways = Given::new(&what, &at).ways(&device);
                assert_eq!(Some(ways[0]), operation::planned(&device, &what).ok());
                let launches: Vec<_> = ways.iter().map(|way| what.launches(true, *way)).collect();
                let is_new = |at: usize| launches[at].is_some() && !launches[..at].contains(&launches[at]);
                assert!((0..ways.len()).all(is_new), "{ways:?} of {what:?}");
                ways.len()
            });
            ways.max().unwrap()
        }
        assert_eq!([most::<Normalizing>(), most::<pooling::Task>(), most::<Task>()], [5, 2, 6]);
    }

    #[test]
    fn the_fastest_way_is_kept_for_this_process_and_the_next() {
        let home = tempfile::tempdir().unwrap();
        let (process, device) = start(home.path(), play, true);
        assert_eq!(compute(&process, &device), (TWICE, 0));
        // A recorded graph would run them undivided.
        let tried: Vec<(i32, i32)> = launched().into_iter().filter(|&(chunks, _)| chunks > 1).collect();
        assert_eq!(tried.len(), Effort::ON_FIRST_USE.candidates, "{tried:?}");
        assert_eq!((compute(&process, &device), launched()), ((TWICE, 0), vec![(TWICE, 0)]), "measured once");
        let store = process.session().store();
        assert!(store.flush(Duration::from_secs(60)));
        let [kept] = &store.tunings()[..] else { panic!("{:?}", store.tunings()) };
        assert!(kept.tuned.problem.to_string().starts_with("reduction ("), "{}", kept.tuned.problem);
        assert!(kept.tuned.choice.contains("parts:6") && kept.tuned.model_choice.contains("parts:3"), "{kept:?}");
        // Two launches each.
        assert!((kept.tuned.seconds - 2e-6).abs() < 1e-9 && (kept.tuned.model_seconds - 6e-6).abs() < 1e-9, "{kept:?}");
        drop((process, device));
        for tune in [false, true] {
            let (process, device) = start(home.path(), play, tune);
            launched();
            assert_eq!((compute(&process, &device), launched()), ((TWICE, 0), vec![(TWICE, 0)]), "nothing is measured");
        }
    }

    #[test]
    fn nothing_is_measured_without_the_setting_or_while_a_graph_is_recorded() {
        let home = tempfile::tempdir().unwrap();
        let (process, device) = start(home.path(), play, false);
        assert_eq!((compute(&process, &device), launched()), ((PLANNED, 0), vec![(1, 0), (PLANNED, 0)]));
        let (process, device) = start(home.path(), play, true);
        let (task, at) = sum();
        tune_operation(&process, &device, &task, &at, played::RECORDING);
        assert!(launched().is_empty());
        assert_eq!(compute(&process, &device), (TWICE, 0), "and measured later");
    }

    #[test]
    fn a_way_that_is_wrong_or_hung_never_wins_and_is_never_measured_again() {
        let home = tempfile::tempdir().unwrap();
        let (process, device) = start(home.path(), play_wrong, true);
        assert_eq!(compute(&process, &device), (PLANNED, 2), "the fastest of those that are right");
        let session = process.session();
        assert!(session.store().flush(Duration::from_secs(60)));
        assert!(session.store().tunings()[0].tuned.detail.contains("parts:6"), "{:?}", session.store().tunings());
        let (task, at) = sum();
        let given = Given::new(&task, &at);
        let name = |it: &str| {
            let way = given.ways(&device).into_iter().find(|way| way.to_string().contains(it)).unwrap();
            given.name_of_verdict(&device, way)
        };
        assert_eq!(session.canary(&name("parts:6")).unwrap().0, Verdict::Wrong);
        // What the watchdog keeps in the end of a process.
        session.keep_canary(&name("lanes:4"), Verdict::Hangs, "did not finish", true);
        let (fresh, ..) = played::device(Some(play_wrong));
        launched();
        let way = compute(&process, &fresh);
        let tried = launched();
        assert!(tried.iter().all(|&(chunks, lanes)| chunks != TWICE && lanes != 2), "{tried:?}");
        assert_eq!(way, (PLANNED, 0), "as fast as the others, and planned");
    }

    #[test]
    fn without_memory_or_another_way_the_planned_one_stays() {
        let (task, at) = sum();
        let (device, launches, session) = played::device_with(Some(play), 4 * COUNT - 1);
        let process = played::process(session, true);
        tune_operation(&process, &device, &task, &at, 0);
        let given = Given::new(&task, &at);
        let chosen = given.chosen(&device).ok().unwrap();
        assert!(chosen.is_settled, "not tried at each call");
        assert_eq!((chosen.way.chunks, launches.load(Ordering::Relaxed)), (PLANNED as usize, 0));
    }
}
