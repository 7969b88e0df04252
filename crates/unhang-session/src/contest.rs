//! Finds the fastest of several kernels for a convolution, or of several ways to divide another operation: the
//! contestants, their turns, and the winner.
//!
//! Nothing is launched here. Torch's face asks for a round at each call and reads its times at the next one. MIOpen's
//! boundary and `unhang bench --tune` run one round after the other. Whatever goes wrong, the model's choice stays.

use std::fmt::Display;
use std::time::Duration;

use unhang_conv::Problem;
use unhang_engine::{Tuned, TunedProblem};
use unhang_evidence::{Realm, RecordSource, Store, Tuning, time};
use unhang_gpu::GpuEngine;
use unhang_gpu::choice::Choice;
use unhang_gpu::driver::Driver;
use unhang_gpu::tuning::{Times, shortlist, tuned};

use crate::session::Session;

/// How much measuring is worth.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Effort {
    /// The model's first candidates that are measured, with the first of each other kernel family.
    pub candidates: usize,
    /// Rounds in which every candidate has its turn; the first one warms up.
    pub rounds: u32,
    /// Seconds of the GPU's time. One round is always finished.
    pub budget: f64,
    /// The most runs of a candidate in one turn.
    pub most_repeats: u32,
    /// Candidates this many times slower than the best one are dropped.
    pub hopeless: f64,
    /// With fewer contenders nothing is measured.
    pub fewest: usize,
    /// After this, candidates that are still not compiled are left out.
    pub compiling: Duration,
    /// After this, a measurement that the GPU has not reached is given up.
    pub waiting: Duration,
}

impl Effort {
    /// When a program needs a convolution for the first time.
    pub const ON_FIRST_USE: Effort = Effort {
        candidates: 4,
        rounds: 6,
        budget: 0.2,
        most_repeats: 10,
        hopeless: 2.0,
        fewest: 2,
        compiling: Duration::from_secs(300),
        waiting: Duration::from_secs(60),
    };
    /// For a rehearsal on an emulated card, which is slow and whose times mean nothing.
    pub const IN_REHEARSAL: Effort = Effort {
        candidates: 2,
        rounds: 2,
        budget: f64::INFINITY,
        most_repeats: 1,
        hopeless: f64::INFINITY,
        ..Effort::ON_FIRST_USE
    };
    /// When somebody waits for the best answer.
    pub const BENCH: Effort = Effort { budget: f64::INFINITY, most_repeats: 4, fewest: 1, ..Effort::ON_FIRST_USE };
}

/// Whether a candidate still takes part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// It may win.
    Contender,
    /// Too slow to win, and not timed again.
    Slow,
    /// It failed.
    Out,
}

#[derive(Debug)]
struct Entrant<C> {
    choice: C,
    seconds: Vec<f64>,
    standing: Standing,
}

impl<C: Display> Entrant<C> {
    fn times(&self) -> Times {
        Times { choice: self.choice.to_string(), seconds: self.seconds.clone() }
    }

    fn median(&self) -> f64 {
        self.times().median_and_spread().0
    }
}

/// One round: the turns in order, and how many runs each turn times.
#[derive(Debug, Clone, PartialEq)]
pub struct Round<C = Choice> {
    /// Who takes part.
    pub turns: Vec<C>,
    /// Runs in a turn, after one that warms up.
    pub repeats: u32,
}

/// The candidates for one problem on one device, the model's choice first, and what they took so far.
#[derive(Debug)]
pub struct Contest<C = Choice> {
    effort: Effort,
    entrants: Vec<Entrant<C>>,
    failures: Vec<String>,
    rounds: u32,
    repeats: u32,
    spent: f64,
}

impl Contest {
    /// A contest of the candidates worth measuring within that many bytes of workspace. Those that hung or were wrong
    /// in an earlier measurement are left out.
    pub fn of_candidates(
        effort: Effort,
        engine: &GpuEngine,
        problem: &Problem,
        workspace_limit: u64,
        is_refused: impl Fn(&str) -> bool,
    ) -> Contest {
        let all = shortlist(engine.candidates_within(problem, workspace_limit), effort.candidates);
        let mut contest = Contest::new(effort, all.into_iter().map(|candidate| candidate.choice));
        for choice in contest.contenders() {
            if is_refused(&choice.to_string()) {
                contest.leave_out(choice, "it did not return when it was last measured");
            }
        }
        contest
    }
}

impl<C: Copy + PartialEq + Display> Contest<C> {
    /// A contest of these choices.
    pub fn new(effort: Effort, choices: impl IntoIterator<Item = C>) -> Contest<C> {
        let entrant = |choice| Entrant { choice, seconds: Vec::new(), standing: Standing::Contender };
        let entrants = choices.into_iter().map(entrant).collect();
        Contest { effort, entrants, failures: Vec::new(), rounds: 0, repeats: 1, spent: 0.0 }
    }

    /// Those that may still win.
    pub fn contenders(&self) -> Vec<C> {
        let contenders = self.entrants.iter().filter(|it| it.standing == Standing::Contender);
        contenders.map(|it| it.choice).collect()
    }

    /// Leaves one out that failed.
    pub fn leave_out(&mut self, choice: C, why: &str) {
        if let Some(entrant) = self.entrants.iter_mut().find(|it| it.choice == choice) {
            entrant.standing = Standing::Out;
        }
        let first_line = why.lines().next().unwrap_or_default();
        self.failures.push(format!("{choice}: {first_line}").chars().take(200).collect());
    }

    /// The next round; `None` when everything is measured, or nothing can be compared. All turns of the previous round
    /// must be over: each [`took`](Self::took) its time, or was [left out](Self::leave_out).
    pub fn next_round(&mut self) -> Option<Round<C>> {
        self.drop_hopeless();
        let mut turns = self.contenders();
        if turns.len() < self.effort.fewest.max(1)
            || self.rounds >= self.effort.rounds
            || self.spent >= self.effort.budget
        {
            return None;
        }
        if self.rounds > 0 {
            let contenders = self.entrants.iter().filter(|it| it.standing == Standing::Contender);
            let each = contenders.map(|it| it.median()).sum::<f64>() * f64::from(self.effort.rounds - self.rounds);
            let fits = if each > 0.0 { (self.effort.budget - self.spent) / each - 1.0 } else { f64::INFINITY };
            self.repeats = (fits as u32).clamp(1, self.effort.most_repeats);
        }
        // Each round starts with another candidate.
        let first = self.rounds as usize % turns.len();
        turns.rotate_left(first);
        self.rounds += 1;
        Some(Round { turns, repeats: self.repeats })
    }

    /// Runs one round after the other, for a caller that waits for each turn's seconds.
    pub(crate) fn run(&mut self, mut seconds: impl FnMut(C, u32) -> Result<f64, String>) {
        while let Some(Round { turns, repeats }) = self.next_round() {
            for choice in turns {
                match seconds(choice, repeats) {
                    Ok(seconds) => self.took(choice, seconds),
                    Err(error) => self.leave_out(choice, &error),
                }
            }
        }
    }

    /// One run took that many seconds.
    pub fn took(&mut self, choice: C, seconds: f64) {
        if let Some(entrant) = self.entrants.iter_mut().find(|it| it.choice == choice) {
            entrant.seconds.push(seconds);
            self.spent += seconds * f64::from(self.repeats + 1);
        }
    }

    /// The candidates that may win, fastest first.
    pub fn ranked(&self) -> Vec<C> {
        let timed = |it: &&Entrant<C>| it.standing == Standing::Contender && !it.seconds.is_empty();
        let mut ranked: Vec<&Entrant<C>> = self.entrants.iter().filter(timed).collect();
        ranked.sort_by(|a, b| a.median().total_cmp(&b.median()));
        ranked.into_iter().map(|it| it.choice).collect()
    }

    /// The times of all candidates that were timed.
    pub fn times(&self) -> Vec<Times> {
        self.entrants.iter().filter(|it| !it.seconds.is_empty()).map(|it| it.times()).collect()
    }

    /// The times of all candidates that were timed and did not fail.
    pub fn times_of_sound(&self) -> Vec<Times> {
        let sound = |it: &&Entrant<C>| !it.seconds.is_empty() && it.standing != Standing::Out;
        self.entrants.iter().filter(sound).map(|it| it.times()).collect()
    }

    /// Who failed, and why.
    pub fn failures(&self) -> &[String] {
        &self.failures
    }

    /// Rounds that were begun.
    pub fn rounds(&self) -> u32 {
        self.rounds
    }

    /// Seconds of the GPU's time so far.
    pub fn spent(&self) -> f64 {
        self.spent
    }

    /// How much measuring it is worth.
    pub fn effort(&self) -> Effort {
        self.effort
    }

    /// What came out, as evidence.
    pub fn tuned(&self, problem: TunedProblem, driver: &dyn Driver, winner: C) -> Option<Tuned> {
        tuned(problem, driver, &self.times(), &winner.to_string(), &self.failures.join("; "))
    }

    fn drop_hopeless(&mut self) {
        let contenders = || self.entrants.iter().filter(|it| it.standing == Standing::Contender);
        let best = contenders().map(|it| it.median()).fold(f64::INFINITY, f64::min);
        let limit = self.effort.hopeless * best;
        for entrant in &mut self.entrants {
            let is_timed = !entrant.seconds.is_empty();
            if entrant.standing == Standing::Contender && is_timed && entrant.median() > limit {
                entrant.standing = Standing::Slow;
            }
        }
    }
}

impl Session {
    /// Uses the winner of a contest from now on, stores it for the next process, and returns its time. Times on an
    /// emulated card are stored as a rehearsal's.
    pub fn take_winner(&self, engine: &GpuEngine, problem: &Problem, contest: &Contest, winner: Choice) -> Option<f64> {
        engine.prefer(problem, winner);
        self.keep_winner(engine, problem.clone().into(), contest, winner)
    }

    /// Stores it without using it.
    pub(crate) fn keep_winner<C: Copy + PartialEq + Display>(
        &self,
        engine: &GpuEngine,
        problem: TunedProblem,
        contest: &Contest<C>,
        winner: C,
    ) -> Option<f64> {
        let tuned = contest.tuned(problem, engine.driver(), winner)?;
        let seconds = tuned.seconds;
        let source = Realm::of_machine(is_emulated(engine)).source(RecordSource::Run);
        self.store().keep_tuning(Tuning { tuned, source, unix_seconds: time::now() });
        Some(seconds)
    }
}

/// Prefers the kernels that earlier measurements found fastest on a device, and returns for how many convolutions. An
/// emulated card uses only rehearsals' measurements, and a real card never does.
pub fn take_tunings(engine: &GpuEngine, store: &Store) -> usize {
    let tunings = store.tunings();
    let ours = |it: &&Tuning| (it.source == RecordSource::Rehearsal) == is_emulated(engine);
    let take = |it: &&Tuning| engine.take_tuning(&it.tuned, it.source == RecordSource::Import);
    tunings.iter().filter(ours).filter(take).count()
}

fn is_emulated(engine: &GpuEngine) -> bool {
    engine.driver().description().is_emulated()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choices(names: &[&str]) -> Vec<Choice> {
        names.iter().map(|name| name.parse().unwrap()).collect()
    }

    /// Runs a contest to its end, and returns who ran how often in each round.
    fn play(contest: &mut Contest, seconds: impl Fn(Choice) -> f64) -> Vec<(Vec<Choice>, u32)> {
        let mut rounds = Vec::new();
        while let Some(Round { turns, repeats }) = contest.next_round() {
            for &choice in &turns {
                contest.took(choice, seconds(choice));
            }
            rounds.push((turns, repeats));
        }
        rounds
    }

    #[test]
    fn every_round_begins_with_another_one_and_the_fastest_wins() {
        let all = choices(&["plain", "narrow:4", "narrow:8"]);
        let mut contest = Contest::new(Effort::BENCH, all.clone());
        let rounds = play(&mut contest, |choice| if choice == all[2] { 1e-6 } else { 1.5e-6 });
        assert_eq!(rounds.len(), 6);
        assert_eq!([rounds[0].0[0], rounds[1].0[0], rounds[2].0[0], rounds[3].0[0]], [all[0], all[1], all[2], all[0]]);
        assert_eq!((rounds[0].1, rounds[1].1), (1, 4), "the first round warms up");
        assert_eq!(contest.ranked(), [all[2], all[0], all[1]], "equal ones in the model's order");
    }

    #[test]
    fn candidates_that_cannot_win_are_timed_no_more() {
        let all = choices(&["plain", "narrow:4", "narrow:8"]);
        let mut contest = Contest::new(Effort::BENCH, all.clone());
        let rounds = play(&mut contest, |choice| [1.0, 1.9, 3.0][all.iter().position(|it| *it == choice).unwrap()]);
        assert!(rounds[0].0.contains(&all[2]) && !rounds[1].0.contains(&all[2]), "{rounds:?}");
        assert_eq!(contest.times_of_sound().len(), 3, "what it took is kept");
        assert_eq!(contest.ranked(), all[..2]);
    }

    #[test]
    fn the_budget_holds_and_one_round_is_always_finished() {
        let all = choices(&["plain", "narrow:4"]);
        let mut slow = Contest::new(Effort::ON_FIRST_USE, all.clone());
        assert_eq!(play(&mut slow, |_| 9.0).len(), 1);
        let mut quick = Contest::new(Effort::ON_FIRST_USE, all.clone());
        let rounds = play(&mut quick, |_| 1e-5);
        assert_eq!((rounds.len(), rounds[1].1), (6, 10), "short runs are repeated");
        let mut between = Contest::new(Effort::ON_FIRST_USE, all);
        play(&mut between, |_| 4e-3);
        assert!(between.spent() <= Effort::ON_FIRST_USE.budget, "{}", between.spent());
    }

    #[test]
    fn what_failed_is_left_out_and_named() {
        let all = choices(&["plain", "narrow:4", "narrow:8"]);
        let mut contest = Contest::new(Effort::BENCH, all.clone());
        contest.next_round().unwrap();
        contest.took(all[0], 2.0);
        contest.took(all[1], 1.0);
        contest.leave_out(all[1], "no memory\nand more");
        contest.leave_out(all[2], "");
        assert_eq!(contest.failures(), ["narrow:4: no memory", "narrow:8: "]);
        assert_eq!(contest.ranked(), [all[0]]);
        assert_eq!((contest.times().len(), contest.times_of_sound().len()), (2, 1));
        assert_eq!(contest.next_round().map(|round| round.turns), Some(vec![all[0]]), "somebody waits for its time");
        let mut alone = Contest::new(Effort::ON_FIRST_USE, [all[0]]);
        assert_eq!(alone.next_round(), None, "there is nobody to compare it with");
    }
}
