//! The prober: attempts go to workers, each with its own child; verdicts go to the store.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use unhang_evidence::{Evidence, Intent, IntentId, Realm, Record, RecordSource, Store, time};

use crate::protocol::{CameBack, Request};
use crate::recorder::{Recorder, recorder};
use crate::session::{Deadlines, Failure, Fallen, Launch, Session};
use crate::verdict::{Attempt, Tried};

/// Starts that may fail in a row before the prober gives up on a kind of child.
const FAILED_STARTS: u32 = 2;
/// Canaries that may fail in a row before the prober gives up on the GPU: a reset can take longer than it should.
const CANARIES: usize = 2;
/// How far ahead a worker looks for an attempt that its child can take.
const LOOK_AHEAD: usize = 64;

/// Progress, for whoever displays it.
#[derive(Debug)]
pub enum ProbeEvent<'a> {
    /// An attempt begins.
    Began(&'a Attempt),
    /// An attempt has ended.
    Ended(&'a Tried),
    /// A child was killed, and the GPU gets time to recover.
    Recovering(Duration),
}

/// Everything that a probe needs, except the list of attempts.
pub struct Prober<'a> {
    /// The fingerprint under which verdicts are filed.
    pub machine: &'a str,
    /// [`RecordSource::Probe`] or [`RecordSource::Rehearsal`].
    pub source: RecordSource,
    /// Appended to every verdict, such as which torch it is about; may be empty.
    pub note: &'a str,
    /// Where verdicts are kept.
    pub store: &'a Store,
    /// The time limits.
    pub deadlines: Deadlines,
    /// The number of children at once. One on a GPU, because a hang takes everything on the card with it.
    pub workers: usize,
    /// How long a GPU gets to recover after a child was killed at its deadline.
    pub reset: Duration,
    /// The child that shows that the GPU still computes after one was lost; `None` without a GPU.
    pub canary: Option<Launch>,
    /// No attempt begins after this time.
    pub budget: Option<Duration>,
    /// How to start the child for an attempt.
    pub launch: &'a (dyn Fn(&Attempt) -> Launch + Sync),
    /// Receives progress, from the workers' threads.
    pub observe: &'a (dyn Fn(ProbeEvent<'_>) + Sync),
    /// Becomes true when the probe should stop: it ends the children and keeps the verdicts.
    pub stop: &'a AtomicBool,
}

/// Why a probe ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// Everything was tried.
    Complete,
    /// The time was up.
    Budget,
    /// It was asked to stop.
    Interrupted,
    /// The GPU no longer computes, and the reason to think so.
    Lost(String),
}

/// The results of a probe.
#[derive(Debug)]
pub struct Probed {
    /// How each attempt ended, in the order of their ends.
    pub tried: Vec<Tried>,
    /// What was not tried, and why.
    pub left: Vec<(Attempt, String)>,
    /// Why it ended.
    pub end: End,
    /// The number of children that were started.
    pub children: u64,
    /// Verdicts that could not be written to the store. `tried` contains them.
    pub unwritten: usize,
}

/// What earlier probes of this kind began on the machine and never finished, as verdicts.
///
/// The machine or the prober went down while these ran, which is enough suspicion not to run them again unasked. An
/// attempt that finished later is no longer suspect.
pub fn culprits(store: &Store, machine: &str, source: RecordSource) -> Vec<Record> {
    let mut found = Vec::new();
    // Read the intents before the evidence, so that an intent left behind meanwhile by another prober is not
    // considered.
    let intents = store.unresolved_intents(machine);
    // Read this before verdicts are added: what arrived after the intent decides.
    let evidence = Evidence::load_realm(store, machine, Realm::of_machine(source == RecordSource::Rehearsal));
    for (id, intent) in intents {
        if intent.source != source {
            continue;
        }
        if evidence.about(&intent.problem, intent.engine, &intent.variant).is_some_and(|known| known.is_proof()) {
            store.withdraw(id);
            continue;
        }
        let detail = "suspected: the machine or the prober went down while this ran";
        let record = Record {
            variant: intent.variant,
            detail: detail.to_owned(),
            unix_seconds: intent.unix_seconds,
            ..Record::new(intent.problem, intent.engine, machine, unhang_engine::Verdict::Hangs, source)
        };
        store.resolve(id, record.clone());
        found.push(record);
    }
    found
}

struct Job {
    attempt: Attempt,
    launch: usize,
}

/// The state that the workers share.
struct Shared<'a> {
    prober: &'a Prober<'a>,
    launches: Vec<Launch>,
    queue: Mutex<VecDeque<Job>>,
    tried: Mutex<Vec<Tried>>,
    left: Mutex<Vec<(Attempt, String)>>,
    /// Failed starts in a row, and the last message, for each launch.
    starts: Mutex<Vec<(u32, String)>>,
    lost: Mutex<Option<String>>,
    /// Set with `lost`, so that nobody keeps waiting.
    halt: AtomicBool,
    until: Option<Instant>,
    children: AtomicU64,
    ids: AtomicU64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Prober<'_> {
    /// Tries everything, in order. Returns in bounded time, whatever the children do.
    pub fn run(&self, attempts: Vec<Attempt>) -> Probed {
        let mut launches: Vec<Launch> = Vec::new();
        let mut queue = VecDeque::new();
        for attempt in attempts {
            let launch = (self.launch)(&attempt);
            let known = launches.iter().position(|it| *it == launch).unwrap_or_else(|| {
                launches.push(launch);
                launches.len() - 1
            });
            queue.push_back(Job { attempt, launch: known });
        }
        let workers = self.workers.clamp(1, queue.len().max(1));
        let shared = Shared {
            prober: self,
            starts: Mutex::new(vec![(0, String::new()); launches.len()]),
            launches,
            queue: Mutex::new(queue),
            tried: Mutex::default(),
            left: Mutex::default(),
            lost: Mutex::default(),
            halt: AtomicBool::new(false),
            until: self.budget.map(|budget| Instant::now() + budget),
            children: AtomicU64::new(0),
            ids: AtomicU64::new(1),
        };
        let (recorder, serve) = recorder(self.store);
        let unwritten = std::thread::scope(|scope| {
            let serving = scope.spawn(serve);
            for _ in 0..workers {
                let (shared, recorder) = (&shared, recorder.clone());
                scope.spawn(move || Worker { shared, recorder, child: None, owed: None }.work());
            }
            drop(recorder);
            serving.join().map_or(0, |unwritten| unwritten.len())
        });
        let lost = lock(&shared.lost).take();
        let mut left = std::mem::take(&mut *lock(&shared.left));
        let rest = std::mem::take(&mut *lock(&shared.queue));
        let end = match lost {
            Some(why) => End::Lost(why),
            None if self.stop.load(Ordering::Relaxed) => End::Interrupted,
            None if !rest.is_empty() => End::Budget,
            None => End::Complete,
        };
        let why = match &end {
            End::Lost(_) => "the GPU was lost before its turn",
            End::Interrupted => "stopped before its turn",
            End::Budget | End::Complete => "the time was up before its turn",
        };
        left.extend(rest.into_iter().map(|job| (job.attempt, why.to_owned())));
        let tried = std::mem::take(&mut *lock(&shared.tried));
        Probed { tried, left, end, children: shared.children.load(Ordering::Relaxed), unwritten }
    }
}

impl Shared<'_> {
    fn stopped(&self) -> bool {
        self.halt.load(Ordering::Relaxed) || self.prober.stop.load(Ordering::Relaxed)
    }

    /// The next attempt, preferably one that the current child can take.
    fn take(&self, launch: Option<usize>) -> Option<Job> {
        if self.stopped() || self.until.is_some_and(|until| Instant::now() >= until) {
            return None;
        }
        let mut queue = lock(&self.queue);
        let fits = |job: &Job| Some(job.launch) == launch;
        let index = queue.iter().take(LOOK_AHEAD).position(fits).unwrap_or(0);
        queue.remove(index)
    }

    fn lose(&self, why: String) {
        lock(&self.lost).get_or_insert(why);
        self.halt.store(true, Ordering::Relaxed);
    }

    fn start(&self, launch: &Launch) -> Result<Session, Fallen> {
        self.children.fetch_add(1, Ordering::Relaxed);
        Session::start(launch, &self.prober.deadlines, self.prober.stop)
    }

    fn request(&self, attempt: &Attempt, canary: bool) -> Request {
        Request {
            id: self.ids.fetch_add(1, Ordering::Relaxed),
            problem: attempt.problem.to_string(),
            engine: attempt.engine.name().to_owned(),
            variant: attempt.variant.clone(),
            canary,
        }
    }
}

struct Worker<'a> {
    shared: &'a Shared<'a>,
    recorder: Recorder,
    child: Option<(usize, Session)>,
    /// A verdict that is written to the store with the next intent.
    owed: Option<(Option<IntentId>, Record)>,
}

impl Worker<'_> {
    fn work(mut self) {
        while let Some(job) = self.shared.take(self.child.as_ref().map(|(launch, _)| *launch)) {
            let (failed, why) = lock(&self.shared.starts)[job.launch].clone();
            if failed >= FAILED_STARTS {
                lock(&self.shared.left).push((job.attempt, format!("its child does not start: {why}")));
                continue;
            }
            self.serve(job);
        }
        self.pay();
        if let Some((_, session)) = self.child.take() {
            session.finish();
        }
    }

    /// Writes the pending verdict to the store now.
    fn pay(&mut self) {
        if let Some(owed) = self.owed.take() {
            self.recorder.advance(Some(owed), None);
        }
    }

    fn serve(&mut self, job: Job) {
        let prober = self.shared.prober;
        let attempt = &job.attempt;
        let intent = Intent {
            problem: attempt.problem.clone(),
            engine: attempt.engine,
            variant: attempt.variant.clone(),
            machine: prober.machine.to_owned(),
            source: prober.source,
            unix_seconds: time::now(),
        };
        // The attempt's name is on disk before the attempt begins.
        let intent = self.recorder.advance(self.owed.take(), Some(intent));
        (prober.observe)(ProbeEvent::Began(attempt));
        let began = Instant::now();
        let result = self
            .child_for(job.launch)
            .and_then(|session| session.attempt(&self.shared.request(attempt, false), &prober.deadlines, prober.stop));
        let elapsed = began.elapsed().as_secs_f64();
        let (tried, fallen) = match result {
            Ok((session, answer)) => {
                self.child = Some((job.launch, session));
                (Some(Tried::answered(attempt.clone(), answer, elapsed)), None)
            }
            Err(fallen) => (Tried::fallen(attempt.clone(), &fallen, elapsed), Some(fallen)),
        };
        let Some(mut tried) = tried else {
            // We gave it up, so it says nothing about the attempt.
            if let Some(intent) = intent {
                prober.store.withdraw(intent);
            }
            lock(&self.shared.left).push((job.attempt, "stopped while it ran".to_owned()));
            return;
        };
        if !prober.note.is_empty() {
            tried.detail =
                format!("{}{}{}", tried.detail, if tried.detail.is_empty() { "" } else { "; " }, prober.note);
        }
        if tried.is_evidence() {
            self.owed = Some((intent, tried.record(prober.machine, prober.source)));
        } else if let Some(intent) = intent {
            prober.store.withdraw(intent);
        }
        (prober.observe)(ProbeEvent::Ended(&tried));
        lock(&self.shared.tried).push(tried);
        if let Some(fallen) = fallen {
            self.pay();
            self.recover(&fallen, job);
        }
    }

    /// A child of that kind: the current one, or a new one.
    fn child_for(&mut self, launch: usize) -> Result<Session, Fallen> {
        if let Some((known, session)) = self.child.take() {
            if known == launch {
                return Ok(session);
            }
            session.finish();
        }
        let started = self.shared.start(&self.shared.launches[launch]);
        let mut starts = lock(&self.shared.starts);
        match &started {
            Ok(_) => starts[launch].0 = 0,
            Err(Fallen { failure: Failure::Stopped, .. }) => {}
            Err(fallen) => {
                let said = match &fallen.failure {
                    Failure::CannotStart(error) => error.to_string(),
                    _ => crate::explain::explain(&fallen.output).unwrap_or_else(|| "it says nothing".to_owned()),
                };
                starts[launch] = (starts[launch].0 + 1, said);
            }
        }
        started
    }

    /// After losing a child: gives the GPU time, and checks whether it still computes.
    fn recover(&mut self, fallen: &Fallen, job: Job) {
        let shared = self.shared;
        let prober = shared.prober;
        let Some(canary) = &prober.canary else { return };
        if fallen.unkillable.is_some() {
            shared.lose(format!("the child that tried {} cannot be killed: the driver holds it", job.attempt.problem));
            return;
        }
        let mut said = String::new();
        // A canary has nothing to prepare: all its time is the GPU's.
        let deadlines = Deadlines { start: prober.deadlines.compile, ..prober.deadlines };
        for _ in 0..CANARIES {
            if matches!(fallen.failure, Failure::Hung { .. }) || !said.is_empty() {
                (prober.observe)(ProbeEvent::Recovering(prober.reset));
                if !pause(prober.reset, prober.stop) {
                    return;
                }
            }
            let tried = shared
                .start(canary)
                .and_then(|session| session.attempt(&shared.request(&job.attempt, true), &deadlines, prober.stop));
            match tried {
                Ok((session, answer)) if answer.ended == CameBack::Computed => {
                    if shared.launches[job.launch] == *canary {
                        self.child = Some((job.launch, session));
                    } else {
                        session.finish();
                    }
                    return;
                }
                Ok((session, answer)) => {
                    session.finish();
                    said = answer.detail;
                }
                Err(Fallen { failure: Failure::Stopped, .. }) => return,
                Err(fallen) => {
                    let tried = Tried::fallen(job.attempt.clone(), &fallen, 0.0);
                    said = tried.map(|tried| tried.detail).unwrap_or_default();
                    if fallen.unkillable.is_some() {
                        break;
                    }
                }
            }
        }
        let how = if matches!(fallen.failure, Failure::Hung { .. }) { "hung" } else { "was lost" };
        shared
            .lose(format!("after {} {how} on {}, the canary failed: {said}", job.attempt.problem, job.attempt.engine));
    }
}

/// Waits. Returns false if told to stop meanwhile.
fn pause(duration: Duration, stop: &AtomicBool) -> bool {
    let until = Instant::now() + duration;
    while Instant::now() < until {
        if stop.load(Ordering::Relaxed) {
            return false;
        }
        std::thread::sleep(until.saturating_duration_since(Instant::now()).min(Duration::from_millis(100)));
    }
    true
}
