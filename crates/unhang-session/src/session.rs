//! What one process knows of convolutions on its machine, and what it learns.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard};

use unhang_conv::Problem;
use unhang_engine::{EngineName, Verdict};
use unhang_evidence::{Canary, Evidence, Quarantined, Realm, Record, RecordSource, Store, quarantined, time};
use unhang_gpu::Prepared;
use unhang_machine::Machine;
use unhang_plan::{Availability, Plan, Settings, Situation, plan};

use crate::card::Card;

/// A program with ever new sizes has ever new kernels, each with a verdict.
const MOST_CANARIES: usize = 50_000;
/// The same holds for convolutions that an engine fails on.
const MOST_FAILURES: usize = 10_000;

/// The framework's kernels are used if they need at most this share of our time, because their calls go through Python.
const WORTH_LEAVING: f64 = 0.9;

/// A convolution and its device.
type ProblemOnDevice = (Problem, String);

/// One process's machine, store, evidence, canaries and failures.
pub struct Session {
    machine: Machine,
    store: Arc<Store>,
    fingerprint: String,
    /// Whether this process's evidence counts as real; on an emulated card it is a rehearsal's.
    realm: Realm,
    evidence: RwLock<Evidence>,
    /// The evidence of rehearsals; only a rehearsal reads it.
    rehearsed: OnceLock<RwLock<Evidence>>,
    /// The hangs that `unhang run` saw before it restarted this process.
    quarantine: Vec<Quarantined>,
    canaries: Mutex<HashMap<String, (Verdict, String)>>,
    /// Engines that failed in this process, by convolution and device: never tried again here, with or without a store.
    failures: Mutex<HashMap<ProblemOnDevice, Vec<(EngineName, String)>>>,
}

impl Session {
    /// A session on a machine. `fingerprint` is the key of its evidence. The store is read here and never again: a plan
    /// waits for nobody.
    pub fn new(machine: Machine, fingerprint: String, store: Arc<Store>) -> Session {
        let realm = Realm::of_machine(machine.emulated);
        let evidence = Evidence::load_realm(&store, &fingerprint, realm);
        let here =
            |canary: Canary| (canary.machine == fingerprint).then_some((canary.name, (canary.verdict, canary.detail)));
        let canaries = store.canaries().into_iter().filter_map(here).collect();
        let session = Session {
            machine,
            store,
            fingerprint,
            realm,
            evidence: RwLock::new(evidence),
            rehearsed: OnceLock::new(),
            quarantine: quarantined(&std::env::var("UNHANG_QUARANTINE").unwrap_or_default()),
            canaries: Mutex::new(canaries),
            failures: Mutex::default(),
        };
        session.quarantine_in(&session.evidence, realm);
        session
    }

    /// The machine.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// Where evidence is kept.
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// The key of its evidence.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// The source that new records have: an emulated card only rehearses, and that never counts for a real one.
    pub fn source(&self) -> RecordSource {
        self.realm.source(RecordSource::Run)
    }

    /// The evidence; in a rehearsal, that of rehearsals.
    pub fn evidence(&self, rehearsed: bool) -> RwLockReadGuard<'_, Evidence> {
        let evidence = if !rehearsed || self.realm == Realm::Rehearsal {
            &self.evidence
        } else {
            self.rehearsed.get_or_init(|| {
                let evidence = RwLock::new(Evidence::load_rehearsal(&self.store, &self.fingerprint));
                self.quarantine_in(&evidence, Realm::Rehearsal);
                evidence
            })
        };
        evidence.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// A convolution that hung before this process was restarted is excluded even if no store could keep it.
    fn quarantine_in(&self, evidence: &RwLock<Evidence>, realm: Realm) {
        let mut evidence = evidence.write().unwrap_or_else(PoisonError::into_inner);
        evidence.quarantine(&self.quarantine, &self.fingerprint, realm.source(RecordSource::Run));
    }

    /// Plans a convolution on a device, without the engines that failed on it there.
    pub fn plan(
        &self,
        problem: &Problem,
        device: &str,
        settings: &Settings,
        here: &Situation,
        rehearsed: bool,
    ) -> Plan {
        let mut here = here.clone();
        for (engine, detail) in self.failures_of(problem, device) {
            here = here.with(engine, Availability::Absent(format!("failed in this process: {detail}")));
        }
        plan(problem, settings, &here, &self.evidence(rehearsed))
    }

    /// Whether a candidate of an engine failed for a convolution: it hung, crashed or was wrong.
    pub fn refuses(&self, problem: &Problem, engine: EngineName, candidate: &str, rehearsed: bool) -> bool {
        let evidence = self.evidence(rehearsed);
        evidence.about(problem, engine, candidate).is_some_and(|known| known.is_refutation())
    }

    /// Records how a convolution ended on an engine in this run; true if plans may change.
    pub fn learn(
        &self,
        problem: &Problem,
        engine: EngineName,
        verdict: Verdict,
        seconds: Option<f64>,
        detail: &str,
    ) -> bool {
        let mut record = Record::new(problem.clone(), engine, &self.fingerprint, verdict, self.source());
        record.seconds = seconds;
        record.detail = detail.to_owned();
        self.store.record(record.clone());
        self.evidence.write().unwrap_or_else(PoisonError::into_inner).learn(record)
    }

    /// Learns the times of our kernels and of the framework's, which were timed in turns, if the framework's are faster.
    /// Returns whether they are.
    pub fn learn_race(&self, problem: &Problem, ours: f64, theirs: f64) -> bool {
        if theirs > ours * WORTH_LEAVING {
            return false;
        }
        let works = |engine, seconds, detail| self.learn(problem, engine, Verdict::Works, Some(seconds), detail);
        works(EngineName::Jit, ours, "timed against aten when it was tuned");
        works(EngineName::Aten, theirs, "timed against jit when that was tuned");
        true
    }

    /// Counts a convolution that the program asked for.
    pub fn saw(&self, problem: &Problem) {
        self.store.count_seen(&self.fingerprint, problem, 1);
    }

    /// The engines that failed on a convolution on a device, and how.
    pub fn failures_of(&self, problem: &Problem, device: &str) -> Vec<(EngineName, String)> {
        let failures = locked(&self.failures);
        failures.get(&(problem.clone(), device.to_owned())).cloned().unwrap_or_default()
    }

    /// Everything that failed: convolution, engine and detail.
    pub fn failures(&self) -> Vec<(Problem, EngineName, String)> {
        let failures = locked(&self.failures);
        let each = failures.iter().flat_map(|((problem, _), all)| all.iter().map(move |it| (problem, it)));
        each.map(|(problem, (engine, detail))| (problem.clone(), *engine, detail.clone())).collect()
    }

    /// Notes that an engine failed on a convolution on a device.
    pub fn note_failure(&self, problem: &Problem, device: &str, engine: EngineName, detail: &str) {
        let mut failures = locked(&self.failures);
        make_room(&mut failures, MOST_FAILURES);
        let of_problem = failures.entry((problem.clone(), device.to_owned())).or_default();
        of_problem.retain(|(known, _)| *known != engine);
        of_problem.push((engine, detail.to_owned()));
    }

    /// Forgets what failed, and how many convolutions that concerned.
    pub fn forget_failures(&self) -> usize {
        std::mem::take(&mut *locked(&self.failures)).len()
    }

    /// How a canary ended on this machine.
    pub fn canary(&self, name: &str) -> Option<(Verdict, String)> {
        locked(&self.canaries).get(name).cloned()
    }

    /// Notes how a canary ended, only for this process.
    pub fn note_canary(&self, name: &str, verdict: Verdict, detail: &str) {
        let mut canaries = locked(&self.canaries);
        make_room(&mut canaries, MOST_CANARIES);
        canaries.insert(name.to_owned(), (verdict, detail.to_owned()));
    }

    /// Stores how a canary ended, here and for the next process: in the background, unless that process relies on it
    /// (`wait`).
    pub fn keep_canary(&self, name: &str, verdict: Verdict, detail: &str, wait: bool) {
        self.note_canary(name, verdict, detail);
        let canary = Canary {
            machine: self.fingerprint.clone(),
            name: name.to_owned(),
            verdict,
            detail: detail.to_owned(),
            unix_seconds: time::now(),
        };
        if wait {
            self.store.set_canary(canary);
        } else {
            self.store.keep_canary(canary);
        }
    }

    /// How many verdicts of canaries are held in memory.
    pub fn canaries_held(&self) -> usize {
        locked(&self.canaries).len()
    }

    /// The verdict on the kernels' first result on that card, if any.
    pub fn first_result(&self, card: &Card, prepared: &Prepared) -> Option<(Verdict, String)> {
        self.canary(&name_of_first_result(card, prepared))
    }

    /// Stores how the first result of kernels compared, and returns that in words. A rehearsal's is stored separately.
    pub fn keep_first_result(&self, card: &Card, prepared: &Prepared, is_right: bool, detail: &str) -> String {
        let verdict = if is_right { Verdict::Works } else { Verdict::Wrong };
        let detail = format!("{}, first result: {detail}", prepared.choice());
        self.keep_canary(&name_of_first_result(card, prepared), verdict, &detail, false);
        if is_right && !card.is_rehearsed() {
            self.learn(prepared.problem(), EngineName::Jit, verdict, None, &detail);
        }
        detail
    }
}

fn name_of_first_result(card: &Card, prepared: &Prepared) -> String {
    card.name(&format!("jit:kernel:{}", prepared.kernels()))
}

/// The guarded value, even if a thread panicked with the lock.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Drops one entry, so that the map does not grow without bound.
fn make_room<K: Clone + Eq + Hash, V>(map: &mut HashMap<K, V>, most: usize) {
    if map.len() >= most
        && let Some(one) = map.keys().next().cloned()
    {
        map.remove(&one);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::played::session;

    fn problem(size: usize) -> Problem {
        format!("forward:f32:nchw:1x4x{size}x{size}:4x3x3:s1x1:p1x1:d1x1:g1").parse().unwrap()
    }

    #[test]
    fn what_failed_is_absent_on_that_device_and_no_other() {
        let session = session();
        let (settings, here) = (Settings::default(), Situation::cpu_tensors());
        let first = |device: &str| session.plan(&problem(8), device, &settings, &here, false).engines[0];
        let before = first("0");
        session.note_failure(&problem(8), "0", before, "no memory");
        session.note_failure(&problem(8), "0", before, "still none");
        assert_ne!(first("0"), before);
        assert_eq!(first("1"), before);
        assert_eq!(session.failures_of(&problem(8), "0"), [(before, "still none".to_owned())]);
        assert_eq!(session.forget_failures(), 1);
        assert_eq!(first("0"), before);
    }

    #[test]
    fn ever_new_kernels_and_failures_do_not_fill_the_memory() {
        let session = session();
        for size in 0..MOST_FAILURES + 10 {
            session.note_failure(&problem(8), &size.to_string(), EngineName::Cpu, "");
        }
        assert_eq!(session.forget_failures(), MOST_FAILURES);
        for name in 0..MOST_CANARIES + 10 {
            session.keep_canary(&name.to_string(), Verdict::Works, "", false);
        }
        assert_eq!(session.canaries_held(), MOST_CANARIES);
        assert_eq!(session.canary(&(MOST_CANARIES + 9).to_string()), Some((Verdict::Works, String::new())));
    }
}
