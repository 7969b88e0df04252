//! A contest that advances by one step at each call of a program and never waits: candidates compile in the background,
//! rounds are queued behind the program's own work, and the next call reads the times.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use unhang_conv::Problem;
use unhang_gpu::choice::Choice;
use unhang_gpu::plan::LaunchPlan;
use unhang_gpu::{GpuEngine, GpuError, Prepared, Timing};

use crate::contest::Contest;

/// Loads and times candidates.
pub trait Measuring {
    /// A candidate that is loaded.
    type Kernel;
    /// A measurement in a stream.
    type Timing;

    /// Loads a candidate; `None` while it compiles.
    fn load(&self, choice: Choice) -> Result<Option<Self::Kernel>, GpuError>;

    /// The seconds of one run; `None` until the device has reached it.
    fn seconds(&self, timing: &Self::Timing) -> Result<Option<f64>, GpuError>;

    /// Frees a measurement that was read.
    fn forget(&self, timing: Self::Timing) -> Result<(), GpuError>;
}

/// One convolution on our GPU engine.
pub struct OnGpu<'a>(pub &'a GpuEngine, pub &'a Problem);

impl Measuring for OnGpu<'_> {
    type Kernel = Arc<Prepared>;
    type Timing = Timing;

    fn load(&self, choice: Choice) -> Result<Option<Arc<Prepared>>, GpuError> {
        let is_at_hand = self.0.is_at_hand(&LaunchPlan::new(self.1, &choice)?)?;
        is_at_hand.then(|| self.0.prepare_as(self.1, Some(choice))).transpose()
    }

    fn seconds(&self, timing: &Timing) -> Result<Option<f64>, GpuError> {
        self.0.seconds(timing)
    }

    fn forget(&self, timing: Timing) -> Result<(), GpuError> {
        self.0.forget(timing)
    }
}

/// What to do next for a contest.
#[derive(Debug, Clone, PartialEq)]
pub enum Next<K> {
    /// Nothing yet: candidates compile, or the device has not reached the last round.
    Wait,
    /// Run one round: the turns in order, and how many runs each turn times.
    Measure(Vec<(Choice, K)>, u32),
    /// Everything is measured: of these, fastest first, the first whose result is right wins.
    Decide(Vec<(Choice, K)>),
    /// There is nothing to compare.
    Over,
}

/// A contest and its pending work.
pub struct PolledContest<K, T> {
    contest: Contest,
    loaded: Vec<(Choice, K)>,
    waiting: VecDeque<(Choice, T)>,
    /// The start of the contest, then of the last round.
    since: Instant,
}

impl<K: Clone, T> PolledContest<K, T> {
    /// A contest whose candidates start compiling now.
    pub fn new(contest: Contest) -> PolledContest<K, T> {
        PolledContest { contest, loaded: Vec::new(), waiting: VecDeque::new(), since: Instant::now() }
    }

    /// The contestants and their times so far.
    pub fn contest(&self) -> &Contest {
        &self.contest
    }

    /// Leaves one out that failed.
    pub fn leave_out(&mut self, choice: Choice, why: &str) {
        self.contest.leave_out(choice, why);
    }

    /// What to do now. An error ends the contest.
    pub fn next(&mut self, by: &impl Measuring<Kernel = K, Timing = T>) -> Result<Next<K>, String> {
        if self.contest.rounds() == 0 && self.contest.contenders().len() < 2 {
            return Ok(Next::Over);
        }
        if !self.load(by) || !self.read(by)? {
            return Ok(Next::Wait);
        }
        if let Some(round) = self.contest.next_round() {
            self.since = Instant::now();
            return Ok(Next::Measure(self.with_kernels(round.turns), round.repeats));
        }
        let is_measured = self.contest.rounds() > 0;
        Ok(if is_measured { Next::Decide(self.with_kernels(self.contest.ranked())) } else { Next::Over })
    }

    /// Drops the candidates: the contest is over.
    pub fn end(&mut self) {
        self.loaded.clear();
    }

    /// Notes that a turn of the round is queued.
    pub fn queued(&mut self, choice: Choice, timing: T) {
        self.waiting.push_back((choice, timing));
    }

    fn with_kernels(&self, choices: Vec<Choice>) -> Vec<(Choice, K)> {
        let loaded = |choice: &Choice| self.loaded.iter().find(|(known, _)| known == choice).cloned();
        choices.iter().filter_map(loaded).collect()
    }

    /// Loads what has compiled; true if every contestant is loaded.
    fn load(&mut self, by: &impl Measuring<Kernel = K, Timing = T>) -> bool {
        let limit = self.contest.effort().compiling;
        for choice in self.contest.contenders() {
            if self.loaded.iter().any(|(known, _)| *known == choice) {
                continue;
            }
            match by.load(choice) {
                Ok(Some(kernel)) => self.loaded.push((choice, kernel)),
                Ok(None) if self.since.elapsed() > limit => {
                    self.contest.leave_out(choice, &format!("not compiled within {} s", limit.as_secs()));
                }
                Ok(None) => return false,
                Err(error) => self.contest.leave_out(choice, &error.to_string()),
            }
        }
        true
    }

    /// Takes the times of the last round; true if none is missing.
    fn read(&mut self, by: &impl Measuring<Kernel = K, Timing = T>) -> Result<bool, String> {
        let limit = self.contest.effort().waiting;
        while let Some((choice, timing)) = self.waiting.pop_front() {
            match by.seconds(&timing).map_err(|error| error.to_string())? {
                Some(seconds) => {
                    by.forget(timing).map_err(|error| error.to_string())?;
                    self.contest.took(choice, seconds);
                }
                None if self.since.elapsed() > limit => {
                    return Err(format!("the GPU did not reach the measurement within {} s", limit.as_secs()));
                }
                None => {
                    self.waiting.push_front((choice, timing));
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::time::Duration;

    use super::*;
    use crate::contest::Effort;

    /// A compiler and a device that finish when the test says so.
    #[derive(Default)]
    struct Played {
        is_compiled: Cell<bool>,
        is_reached: Cell<bool>,
    }

    impl Measuring for Played {
        type Kernel = ();
        type Timing = f64;

        fn load(&self, _: Choice) -> Result<Option<()>, GpuError> {
            Ok(self.is_compiled.get().then_some(()))
        }

        fn seconds(&self, timing: &f64) -> Result<Option<f64>, GpuError> {
            Ok(self.is_reached.get().then_some(*timing))
        }

        fn forget(&self, _: f64) -> Result<(), GpuError> {
            Ok(())
        }
    }

    fn contest(effort: Effort, names: &[&str]) -> PolledContest<(), f64> {
        PolledContest::new(Contest::new(effort, names.iter().map(|name| name.parse().unwrap())))
    }

    #[test]
    fn it_goes_on_by_a_step_at_each_call_and_the_fastest_comes_first() {
        let by = Played::default();
        let mut contest = contest(Effort { rounds: 2, ..Effort::ON_FIRST_USE }, &["plain", "narrow:4"]);
        assert_eq!(contest.next(&by), Ok(Next::Wait), "still compiling");
        by.is_compiled.set(true);
        for round in 0..2 {
            let Ok(Next::Measure(turns, _)) = contest.next(&by) else { panic!("round {round}") };
            assert_eq!(turns.len(), 2);
            by.is_reached.set(false);
            for (choice, ()) in turns {
                contest.queued(choice, if choice == Choice::Plain { 2e-6 } else { 1.5e-6 });
            }
            assert_eq!(contest.next(&by), Ok(Next::Wait), "the device has not reached it");
            by.is_reached.set(true);
        }
        let Ok(Next::Decide(ranked)) = contest.next(&by) else { panic!("it is measured") };
        assert_eq!(ranked.iter().map(|(choice, ())| choice.to_string()).collect::<Vec<_>>(), ["narrow:4", "plain"]);
        contest.leave_out(ranked[0].0, "its first result was wrong");
        assert_eq!(contest.next(&by), Ok(Next::Decide(vec![(Choice::Plain, ())])), "until one is taken");
    }

    #[test]
    fn what_does_not_come_is_given_up_and_nothing_is_compared_alone() {
        let by = Played::default();
        by.is_compiled.set(true);
        let impatient = Effort { waiting: Duration::ZERO, compiling: Duration::ZERO, ..Effort::ON_FIRST_USE };
        let mut hanging = contest(impatient, &["plain", "narrow:4"]);
        let Ok(Next::Measure(turns, _)) = hanging.next(&by) else { panic!("nothing is in its way") };
        hanging.queued(turns[0].0, 1.0);
        assert!(hanging.next(&by).unwrap_err().contains("did not reach the measurement"));
        by.is_compiled.set(false);
        let mut slow = contest(impatient, &["plain", "narrow:4"]);
        assert_eq!(slow.next(&by), Ok(Next::Over));
        assert!(slow.contest().failures()[0].contains("not compiled within"), "{:?}", slow.contest().failures());
        assert_eq!(contest(Effort::ON_FIRST_USE, &["plain"]).next(&by), Ok(Next::Over));
    }
}
