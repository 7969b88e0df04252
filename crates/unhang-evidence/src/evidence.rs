//! Everything known about one machine, in memory and judged.

use std::collections::HashMap;
use std::fmt;

use unhang_conv::Problem;
use unhang_engine::{EngineName, Verdict};

use crate::record::{Filter, Record, RecordSource};
use crate::store::{MOST_IMPORTED, Store};
use crate::time;

/// Whether evidence is about the real world or a rehearsed card. The two never mix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Realm {
    /// Observations on real hardware.
    #[default]
    Real,
    /// The behaviour of a rehearsed card.
    Rehearsal,
}

impl Realm {
    /// The realm of observations on a machine: emulated cards only rehearse.
    pub fn of_machine(emulated: bool) -> Realm {
        if emulated { Realm::Rehearsal } else { Realm::Real }
    }

    /// The source under which an observation in this realm is filed: a rehearsal, or its source on a real card.
    pub fn source(self, seen: RecordSource) -> RecordSource {
        match self {
            Realm::Real => seen,
            Realm::Rehearsal => RecordSource::Rehearsal,
        }
    }
}

/// How much a finding counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Standing {
    /// It was observed here, by a probe or a run on this machine.
    Fact,
    /// Somebody else claims it: a reason for caution, never proof.
    Suspicion,
}

/// What is known about a convolution on an engine.
#[derive(Debug, Clone, PartialEq)]
pub struct Finding {
    /// Its verdict.
    pub verdict: Verdict,
    /// How much the finding counts.
    pub standing: Standing,
    /// Seconds when warm, if it works and was measured.
    pub seconds: Option<f64>,
    /// The record that decided.
    pub record: Record,
}

impl Finding {
    /// Whether it was seen to work here.
    pub fn is_proof(&self) -> bool {
        self.standing == Standing::Fact && self.verdict.is_good()
    }

    /// Whether it was seen to fail here.
    pub fn is_refutation(&self) -> bool {
        self.standing == Standing::Fact && !self.verdict.is_good()
    }
}

impl fmt::Display for Finding {
    /// Reads like `miopen hangs (probe, 2026-02-11: no answer within 10 s)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let record = &self.record;
        write!(f, "{}", record.engine)?;
        if !record.variant.is_empty() {
            write!(f, " under {}", record.variant)?;
        }
        write!(f, " {}", self.verdict)?;
        if let Some(seconds) = self.seconds {
            write!(f, " in {}", time::duration(seconds))?;
        }
        write!(f, " ({}, {}", record.source, time::date(record.unix_seconds))?;
        if !record.detail.is_empty() {
            write!(f, ": {}", record.detail)?;
        }
        f.write_str(")")
    }
}

/// The most records of one machine that are loaded; the newest are kept.
const MOST_LOADED: u64 = 100_000;
/// The most claims about one convolution that are considered; the newest are kept.
const MOST_CLAIMS: usize = 64;

/// The records, without older claims about a convolution that has too many. Each claim is compared with the others.
fn without_old_claims(mut records: Vec<(i64, Record)>) -> Vec<(i64, Record)> {
    records.sort_by_key(|(place, _)| std::cmp::Reverse(*place));
    let mut claims: HashMap<Problem, usize> = HashMap::new();
    records.retain(|(_, record)| {
        record.source != RecordSource::Import || {
            let count = claims.entry(record.problem.clone()).or_default();
            *count += 1;
            *count <= MOST_CLAIMS
        }
    });
    records
}

/// What is known about one machine: a snapshot of the store, to which a running program adds its observations.
#[derive(Debug, Clone)]
pub struct Evidence {
    machine: String,
    realm: Realm,
    records: HashMap<Problem, Vec<Record>>,
}

impl Evidence {
    /// No evidence at all.
    pub fn empty(machine: &str) -> Evidence {
        Evidence { machine: machine.to_owned(), realm: Realm::Real, records: HashMap::new() }
    }

    /// What the store knows about the machine, what was started there and never finished, and what others found.
    pub fn load(store: &Store, machine: &str) -> Evidence {
        Evidence::load_realm(store, machine, Realm::Real)
    }

    /// What rehearsals found, and nothing else.
    pub fn load_rehearsal(store: &Store, machine: &str) -> Evidence {
        Evidence::load_realm(store, machine, Realm::Rehearsal)
    }

    /// What is known in one realm.
    pub fn load_realm(store: &Store, machine: &str, realm: Realm) -> Evidence {
        let mut evidence = Evidence { realm, ..Evidence::empty(machine) };
        let here = Filter { machine: Some(machine.to_owned()), ..Filter::default() };
        let mut records = store.newest_in_order(&here, MOST_LOADED);
        if realm == Realm::Real {
            // Other people's observations are suspicion, whatever their machine. They cost a probe at most, and
            // fingerprints differ as soon as a kernel version does.
            let others = Filter { source: Some(RecordSource::Import), ..Filter::default() };
            let imported = store.newest_in_order(&others, MOST_IMPORTED);
            records.extend(imported.into_iter().filter(|(_, record)| record.machine != machine));
        }
        let mut records = without_old_claims(records);
        for (place, _, intent) in store.unresolved_in_order(machine) {
            let record = Record {
                problem: intent.problem,
                engine: intent.engine,
                variant: intent.variant,
                machine: intent.machine,
                verdict: Verdict::Hangs,
                seconds: None,
                first_seconds: None,
                detail: "did not finish: it was begun and the process is gone".to_owned(),
                source: intent.source,
                unix_seconds: intent.unix_seconds,
            };
            records.push((place, record));
        }
        // What arrived later counts as later, whatever the clocks said. The sort is stable.
        records.sort_by_key(|(place, _)| *place);
        for (_, record) in records {
            evidence.learn(record);
        }
        evidence
    }

    /// The fingerprint of the machine.
    pub fn machine(&self) -> &str {
        &self.machine
    }

    /// The realm of this evidence.
    pub fn realm(&self) -> Realm {
        self.realm
    }

    /// Adds an observation, and returns whether it changed a judgement. Ignores records of another realm and facts
    /// about another machine.
    pub fn learn(&mut self, record: Record) -> bool {
        let realm = if record.source == RecordSource::Rehearsal { Realm::Rehearsal } else { Realm::Real };
        if realm != self.realm || (record.source != RecordSource::Import && record.machine != self.machine) {
            return false;
        }
        let before = self.about(&record.problem, record.engine, &record.variant);
        let (problem, engine, variant) = (record.problem.clone(), record.engine, record.variant.clone());
        let records = self.records.entry(record.problem.clone()).or_default();
        let same = |other: &Record, record: &Record| {
            (other.engine, other.source, other.verdict) == (record.engine, record.source, record.verdict)
                && other.variant == record.variant
                && other.machine == record.machine
        };
        let mut record = record;
        if let Some(at) = records.iter().position(|other| same(other, &record)) {
            // A repeated observation counts as the latest.
            let known = records.remove(at);
            record.seconds = record.seconds.or(known.seconds);
            record.first_seconds = record.first_seconds.or(known.first_seconds);
        }
        records.push(record);
        let after = self.about(&problem, engine, &variant);
        let gist = |finding: &Option<Finding>| finding.as_ref().map(|it| (it.verdict, it.standing, it.seconds));
        gist(&before) != gist(&after)
    }

    /// What is known about a convolution on an engine under a variant; `None` if nothing is.
    ///
    /// Observations from here outrank claims from elsewhere. Among observations, the latest counts, with one
    /// exception: a run that worked does not clear a hang, a crash or wrong results. Such faults come and go, so only
    /// a probe, which tries on purpose, or `unhang evidence forget` clears them. Among claims, only the bad ones
    /// count.
    pub fn about(&self, problem: &Problem, engine: EngineName, variant: &str) -> Option<Finding> {
        let records = self.records.get(problem)?;
        let mut facts = Vec::new();
        let mut claims = Vec::new();
        for record in records.iter().filter(|record| record.engine == engine && record.variant == variant) {
            match record.source {
                RecordSource::Probe | RecordSource::Run | RecordSource::Rehearsal => facts.push(record),
                RecordSource::Rule | RecordSource::Import => claims.push(record),
            }
        }
        let mut decided: Option<&Record> = None;
        // A run on a GPU measures no time. A probe's time remains until something bad is seen.
        let mut measured = None;
        for record in facts {
            let stands = decided.is_some_and(|known| {
                matches!(known.verdict, Verdict::Hangs | Verdict::Crashes | Verdict::Wrong)
                    && record.source == RecordSource::Run
                    && record.verdict.is_good()
            });
            if !stands {
                measured = record.seconds.or(measured).filter(|_| record.verdict.is_good());
                decided = Some(record);
            }
        }
        let (record, standing) = match decided {
            Some(record) => (record, Standing::Fact),
            None => {
                let mut worst = claims.into_iter().filter(|record| !record.verdict.is_good());
                (worst.next_back()?, Standing::Suspicion)
            }
        };
        Some(Finding { verdict: record.verdict, standing, seconds: measured, record: record.clone() })
    }

    /// Every record, in no order.
    pub fn records(&self) -> impl Iterator<Item = &Record> {
        self.records.values().flatten()
    }

    /// Every convolution with any evidence, in no order.
    pub fn problems(&self) -> impl Iterator<Item = &Problem> {
        self.records.keys()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem() -> Problem {
        "forward:f32:nchw:1x16x64x64:32x3x3:s1x1:p1x1:d1x1:g1".parse().unwrap()
    }

    fn record(source: RecordSource, verdict: Verdict, unix_seconds: i64) -> Record {
        Record { unix_seconds, ..Record::new(problem(), EngineName::Miopen, "here", verdict, source) }
    }

    /// The judgement after learning the records in this order, whatever the clock says.
    fn check(records: &[Record], expected: Option<(Verdict, Standing)>) {
        for clock in [|at: i64| at, |at: i64| -at, |_| 7] {
            let mut evidence = Evidence::empty("here");
            for record in records {
                evidence.learn(Record { unix_seconds: clock(record.unix_seconds), ..record.clone() });
            }
            let found = evidence.about(&problem(), EngineName::Miopen, "");
            assert_eq!(found.map(|it| (it.verdict, it.standing)), expected, "{records:?}");
        }
    }

    #[test]
    fn judgement() {
        use RecordSource::{Import, Probe, Rule, Run};
        use Standing::{Fact, Suspicion};
        use Verdict::{Error, Hangs, Works};
        check(&[], None);
        check(&[record(Probe, Hangs, 1), record(Probe, Works, 2)], Some((Works, Fact)));
        check(&[record(Probe, Works, 1), record(Run, Hangs, 2)], Some((Hangs, Fact)));
        check(&[record(Run, Hangs, 1), record(Run, Works, 2)], Some((Hangs, Fact)));
        check(&[record(Run, Hangs, 1), record(Run, Works, 2), record(Probe, Works, 3)], Some((Works, Fact)));
        check(&[record(Run, Error, 1), record(Run, Works, 2)], Some((Works, Fact)));
        check(&[record(Probe, Works, 1), record(Probe, Hangs, 1)], Some((Hangs, Fact)));
        let again = [record(Probe, Works, 1), record(Probe, Hangs, 2), record(Probe, Works, 3)];
        check(&again, Some((Works, Fact)));
        check(&[record(Import, Works, 9)], None);
        check(&[record(Import, Hangs, 1)], Some((Hangs, Suspicion)));
        check(&[record(Rule, Hangs, 9), record(Run, Works, 1)], Some((Works, Fact)));
    }

    #[test]
    fn a_rehearsal_never_mixes_with_the_real() {
        let mut evidence = Evidence::empty("here");
        assert!(!evidence.learn(record(RecordSource::Rehearsal, Verdict::Hangs, 1)));
        assert!(evidence.about(&problem(), EngineName::Miopen, "").is_none());
        evidence.realm = Realm::Rehearsal;
        assert!(!evidence.learn(record(RecordSource::Probe, Verdict::Works, 1)));
        assert!(evidence.learn(record(RecordSource::Rehearsal, Verdict::Hangs, 1)));
    }

    #[test]
    fn facts_of_other_machines_are_not_facts_here() {
        let mut evidence = Evidence::empty("here");
        assert!(!evidence.learn(Record { machine: "there".into(), ..record(RecordSource::Probe, Verdict::Hangs, 1) }));
        assert!(evidence.learn(Record { machine: "there".into(), ..record(RecordSource::Import, Verdict::Hangs, 1) }));
    }

    #[test]
    fn a_variant_says_nothing_of_another() {
        let mut evidence = Evidence::empty("here");
        evidence.learn(record(RecordSource::Probe, Verdict::Works, 1).with_variant("implicit-gemm"));
        assert!(evidence.about(&problem(), EngineName::Miopen, "").is_none());
        assert!(evidence.about(&problem(), EngineName::Miopen, "implicit-gemm").unwrap().is_proof());
    }

    #[test]
    fn a_run_without_a_time_keeps_what_a_probe_measured() {
        let mut evidence = Evidence::empty("here");
        let seconds = |evidence: &Evidence| evidence.about(&problem(), EngineName::Miopen, "").unwrap().seconds;
        evidence.learn(record(RecordSource::Probe, Verdict::Works, 1).with_seconds(0.5));
        evidence.learn(record(RecordSource::Run, Verdict::Works, 2));
        assert_eq!(seconds(&evidence), Some(0.5));
        evidence.learn(record(RecordSource::Run, Verdict::Error, 3));
        assert_eq!(seconds(&evidence), None, "what fails has no time");
        evidence.learn(record(RecordSource::Run, Verdict::Works, 4));
        assert_eq!(seconds(&evidence), None, "and what works again was not measured since");
        evidence.learn(record(RecordSource::Import, Verdict::Works, 5).with_seconds(0.1));
        assert_eq!(seconds(&evidence), None, "others' times are not ours");
    }

    #[test]
    fn learning_tells_whether_a_judgement_changed() {
        let mut evidence = Evidence::empty("here");
        assert!(evidence.learn(record(RecordSource::Run, Verdict::Works, 1).with_seconds(0.5)));
        assert!(!evidence.learn(record(RecordSource::Run, Verdict::Works, 2)), "nothing new, and the time is kept");
        assert_eq!(evidence.about(&problem(), EngineName::Miopen, "").unwrap().seconds, Some(0.5));
    }
}
