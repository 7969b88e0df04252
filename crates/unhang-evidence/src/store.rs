//! The store as callers see it.

use std::mem::ManuallyDrop;
use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use rusqlite::{Connection, params};
use unhang_conv::Problem;

use crate::database::Database;
use crate::process::Owner;
use crate::queue::{Notices, Queue, Work};
use crate::record::{Canary, Filter, Intent, IntentId, Record, RecordSource, Seen, Tuning};
use crate::{rows, time};

/// The most that opening may take before work goes on without the store.
const OPENING_DEADLINE: Duration = Duration::from_secs(5);
/// The most that a question may take.
const ANSWER_DEADLINE: Duration = Duration::from_secs(10);
/// The most that writing an intent may take.
const INTENT_DEADLINE: Duration = Duration::from_secs(5);
/// The most convolutions of one machine that are remembered as asked for, and how many are written between two looks.
const MOST_SEEN: u64 = 10_000;
const SEEN_BETWEEN_CLEANINGS: u64 = 500;
static SEEN_SINCE_START: AtomicU64 = AtomicU64::new(0);
/// The most records of others that a store keeps. Each start reads them.
pub(crate) const MOST_IMPORTED: u64 = 20_000;
/// The most that dropping the store may take.
const CLOSING_DEADLINE: Duration = Duration::from_secs(2);

/// The process that opened the first store. In a process forked from it SQLite's own tables of open files are a copy of
/// the parent's and opening the file again could corrupt it, so a forked child has no store.
static FIRST_PROCESS: AtomicU32 = AtomicU32::new(0);

/// Where evidence outlives the process.
///
/// Opening never fails, recording never waits, and every question has a deadline; what is wrong is in
/// [`Store::notices`]. One thread of its own holds the only handle to the file. After a fork the child's copy does
/// nothing: no write, no lock, not even when dropped.
///
/// ```
/// # let folder = tempfile::tempdir()?;
/// use unhang_engine::{EngineName, Verdict};
/// use unhang_evidence::{Evidence, Record, RecordSource, Store};
///
/// let problem: unhang_conv::Problem = "forward:f32:nchw:1x16x64x64:32x3x3:s1x1:p1x1:d1x1:g1".parse()?;
/// let store = Store::open(folder.path());
/// store.record(Record::new(problem.clone(), EngineName::Miopen, "4f1c", Verdict::Hangs, RecordSource::Probe));
/// let evidence = Evidence::load(&store, "4f1c");
/// assert_eq!(evidence.about(&problem, EngineName::Miopen, "").unwrap().verdict, Verdict::Hangs);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Store {
    // In a forked child neither the handle nor the thread nor the locks may be touched, so nothing drops by itself.
    live: Option<ManuallyDrop<Live>>,
    process: u32,
    notices: Arc<Notices>,
    /// Others could have written the file: it proves nothing.
    foreign: bool,
}

struct Live {
    queue: Arc<Queue>,
    thread: JoinHandle<()>,
}

impl Store {
    /// Opens the store in unhang's own folder ([`crate::home`]).
    pub fn open_default() -> Store {
        match crate::home() {
            Some(home) => Store::open(&home),
            None => Store::without("there is neither UNHANG_HOME nor HOME: going on without kept evidence"),
        }
    }

    /// Opens the store in a folder, which is made if need be.
    pub fn open(home: &Path) -> Store {
        let process = std::process::id();
        let first = FIRST_PROCESS.compare_exchange(0, process, Ordering::Relaxed, Ordering::Relaxed);
        if first.is_err_and(|first| first != process) {
            return Store::without("this process was forked from one that uses the store: going on without it");
        }
        let notices = Arc::new(Notices::default());
        let queue = Arc::new(Queue::default());
        let (opened, when_opened) = mpsc::channel();
        let spawned = std::thread::Builder::new().name("unhang-evidence".to_owned()).spawn({
            let (home, notices, queue) = (home.to_owned(), notices.clone(), queue.clone());
            move || {
                let database = Database::open(&home, notices.clone());
                let _ = opened.send((database.is_open(), database.is_foreign()));
                serve(database, &queue, &notices);
            }
        });
        let thread = match spawned {
            Ok(thread) => thread,
            Err(error) => return Store::without(&format!("no thread for the store ({error}): going on without it")),
        };
        match when_opened.recv_timeout(OPENING_DEADLINE) {
            Ok((true, foreign)) => {
                Store { live: Some(ManuallyDrop::new(Live { queue, thread })), process, notices, foreign }
            }
            Ok((false, foreign)) => {
                queue.close();
                Store { live: None, process, notices, foreign }
            }
            Err(_) => {
                // The thread hangs in the file system. It ends by itself if that ever answers.
                queue.close();
                Store::without(&format!(
                    "{} did not answer within {} s: going on without kept evidence",
                    home.display(),
                    OPENING_DEADLINE.as_secs()
                ))
            }
        }
    }

    /// A store that keeps nothing.
    pub fn none() -> Store {
        Store { live: None, process: std::process::id(), notices: Arc::default(), foreign: false }
    }

    fn without(message: &str) -> Store {
        let store = Store::none();
        store.notices.say(message.to_owned());
        store
    }

    /// What a person should be told, each thing once. Empty when all is well.
    pub fn notices(&self) -> Vec<String> {
        // The child's copy may be of a moment at which another thread held the lock.
        if self.is_inherited() { Vec::new() } else { self.notices.all() }
    }

    /// How many records were not kept: because they came faster than the disk takes them, or because of what
    /// [`Store::notices`] says.
    pub fn dropped(&self) -> u64 {
        self.notices.dropped.load(Ordering::Relaxed)
    }

    /// Whether anything is kept or read at all.
    pub fn is_live(&self) -> bool {
        self.live().is_some()
    }

    fn is_inherited(&self) -> bool {
        std::process::id() != self.process
    }

    fn live(&self) -> Option<&Live> {
        if self.is_inherited() { None } else { self.live.as_deref() }
    }

    fn offer(&self, work: Work) {
        if let Some(live) = self.live()
            && !live.queue.offer(work)
        {
            self.notices.count_dropped(1);
        }
    }

    /// Asks the thread, with a deadline. None when there is no store, no answer in time, or no answer at all.
    fn ask<T: Send + 'static>(
        &self,
        patience: Duration,
        mut question: impl FnMut(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Option<T> {
        let live = self.live()?;
        let (reply, answer) = mpsc::channel();
        let work: Work = Box::new(move |connection| {
            let _ = reply.send(question(connection)?);
            Ok(())
        });
        if !live.queue.insist(work) {
            return None;
        }
        match answer.recv_timeout(patience) {
            Ok(value) => Some(value),
            Err(mpsc::RecvTimeoutError::Timeout) => {
                self.notices.say(format!("the store did not answer within {} s", patience.as_secs()));
                None
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => None,
        }
    }

    /// Keeps a record, soon and in the background. Never waits: when the disk does not keep up it is dropped and counted.
    pub fn record(&self, record: Record) {
        self.offer(Box::new(move |connection| rows::put_record(connection, &record)));
    }

    /// Adds to the count of a convolution that a user's program asked for; in the background, like [`Store::record`].
    pub fn count_seen(&self, machine: &str, problem: &Problem, count: u64) {
        let (machine, problem, now) = (machine.to_owned(), problem.to_string(), time::now());
        self.offer(Box::new(move |connection| {
            connection
                .prepare_cached(
                    "INSERT INTO seen VALUES (?1, ?2, ?3, ?4) ON CONFLICT DO UPDATE SET
                     count = min(count + excluded.count, 9000000000000000000), unix_seconds = excluded.unix_seconds",
                )?
                .execute(params![machine, problem, count.min(1 << 40) as i64, now])?;
            // A program that sees ever new sizes must not fill the disk: the oldest go, now and then.
            if SEEN_SINCE_START.fetch_add(1, Ordering::Relaxed).is_multiple_of(SEEN_BETWEEN_CLEANINGS) {
                rows::forget_oldest_seen(connection, &machine, MOST_SEEN)?;
            }
            Ok(())
        }));
    }

    /// The convolutions that users' programs asked for, most frequent first.
    pub fn seen(&self, machine: &str) -> Vec<Seen> {
        let machine = machine.to_owned();
        self.ask(ANSWER_DEADLINE, move |connection| rows::seen(connection, &machine)).unwrap_or_default()
    }

    /// Writes down what is about to be tried, and returns when it is on the disk for good: should the attempt take
    /// the machine with it, its name is there afterwards. None when it could not be written; the caller decides whether
    /// to try all the same.
    pub fn intend(&self, intent: Intent) -> Option<IntentId> {
        let owner = Owner::this().to_text();
        self.ask(INTENT_DEADLINE, move |connection| {
            connection.pragma_update(None, "synchronous", "FULL")?;
            let written = rows::put_intent(connection, &intent, &owner);
            connection.pragma_update(None, "synchronous", "NORMAL")?;
            written
        })
    }

    /// The attempt finished, or its supervisor saw how it ended: the record takes the intent's place, in one step.
    pub fn resolve(&self, intent: IntentId, record: Record) {
        self.insist(Box::new(move |connection| {
            let transaction = connection.unchecked_transaction()?;
            rows::remove_intent(&transaction, intent)?;
            rows::put_record(&transaction, &record)?;
            transaction.commit()
        }));
    }

    /// Writes down how attempts ended and what is tried next, in one step that is on the disk for good when this
    /// returns: the way of a prober, for which [`Store::intend`] and [`Store::resolve`] one by one would be too slow. An
    /// attempt whose intent could not be written has none to take away. The names of the new intents, in order; none when
    /// nothing was written, and then the caller may offer the same again.
    pub fn advance(&self, ended: Vec<(Option<IntentId>, Record)>, next: Vec<Intent>) -> Option<Vec<IntentId>> {
        let owner = Owner::this().to_text();
        self.ask(INTENT_DEADLINE, move |connection| {
            connection.pragma_update(None, "synchronous", "FULL")?;
            let write = || {
                let transaction = connection.unchecked_transaction()?;
                for (intent, record) in &ended {
                    if let Some(intent) = intent {
                        rows::remove_intent(&transaction, *intent)?;
                    }
                    rows::put_record(&transaction, record)?;
                }
                let written = next.iter().map(|intent| rows::put_intent(&transaction, intent, &owner));
                let written = written.collect::<rusqlite::Result<Vec<IntentId>>>()?;
                transaction.commit()?;
                Ok(written)
            };
            let written = write();
            connection.pragma_update(None, "synchronous", "NORMAL")?;
            written
        })
    }

    /// The attempt was never begun.
    pub fn withdraw(&self, intent: IntentId) {
        self.insist(Box::new(move |connection| rows::remove_intent(connection, intent)));
    }

    fn insist(&self, work: Work) {
        if let Some(live) = self.live() {
            live.queue.insist(work);
        }
    }

    /// What was begun on this machine by a process that is gone, and never resolved: the culprits of crashes. What is
    /// under way in a process that lives is not among them.
    pub fn unresolved_intents(&self, machine: &str) -> Vec<(IntentId, Intent)> {
        self.unresolved_in_order(machine).into_iter().map(|(_, id, intent)| (id, intent)).collect()
    }

    /// Unresolved intents, each with its place in the order of arrival.
    pub(crate) fn unresolved_in_order(&self, machine: &str) -> Vec<(i64, IntentId, Intent)> {
        if self.foreign {
            return Vec::new();
        }
        let machine = machine.to_owned();
        self.ask(ANSWER_DEADLINE, move |connection| rows::unresolved(connection, &machine)).unwrap_or_default()
    }

    /// How a canary ended on that machine, if it was ever run.
    pub fn canary(&self, machine: &str, name: &str) -> Option<Canary> {
        if self.foreign {
            return None;
        }
        let (machine, name) = (machine.to_owned(), name.to_owned());
        self.ask(ANSWER_DEADLINE, move |connection| rows::canary(connection, &machine, &name)).flatten()
    }

    /// How every canary ended, on every machine.
    pub fn canaries(&self) -> Vec<Canary> {
        if self.foreign {
            return Vec::new();
        }
        self.ask(ANSWER_DEADLINE, rows::canaries).unwrap_or_default()
    }

    /// Keeps how a canary ended; the last one counts. Returns when it is written, since the next process relies on it;
    /// tells whether it was.
    pub fn set_canary(&self, canary: Canary) -> bool {
        self.ask(ANSWER_DEADLINE, move |connection| rows::put_canary(connection, &canary)).is_some()
    }

    /// Keeps how a canary ended, soon and in the background, like [`Store::record`]: for what is found out in the middle
    /// of a user's program, which must not wait for a disk.
    pub fn keep_canary(&self, canary: Canary) {
        self.offer(Box::new(move |connection| rows::put_canary(connection, &canary)));
    }

    /// The records that are meant, in the order in which they arrived. Those of a file that others could have written are
    /// what others claim.
    pub fn records(&self, filter: &Filter) -> Vec<Record> {
        self.records_in_order(filter).into_iter().map(|(_, record)| record).collect()
    }

    /// Records, each with its place in the order of arrival.
    pub(crate) fn records_in_order(&self, filter: &Filter) -> Vec<(i64, Record)> {
        self.answered(filter, rows::records)
    }

    /// The last of them that arrived.
    pub(crate) fn newest_in_order(&self, filter: &Filter, most: u64) -> Vec<(i64, Record)> {
        self.answered(filter, move |connection, filter| rows::newest_records(connection, filter, most))
    }

    fn answered(
        &self,
        filter: &Filter,
        mut question: impl FnMut(&Connection, &Filter) -> rusqlite::Result<Vec<(i64, Record)>> + Send + 'static,
    ) -> Vec<(i64, Record)> {
        let mut asked = filter.clone();
        if self.foreign {
            // What it says of its sources is believed no more than the rest.
            asked.source = None;
        }
        let found = self.ask(ANSWER_DEADLINE, move |connection| question(connection, &asked)).unwrap_or_default();
        if !self.foreign {
            return found;
        }
        let claims = found.into_iter().filter(|(_, record)| record.source != RecordSource::Rehearsal);
        let claims = claims.map(|(place, record)| (place, Record { source: RecordSource::Import, ..record }));
        claims.filter(|_| filter.source.is_none_or(|source| source == RecordSource::Import)).collect()
    }

    /// Writes all of them or none; how many, or none if they could not be written.
    pub fn record_all(&self, records: Vec<Record>) -> Option<usize> {
        let count = records.len();
        self.import(records, Vec::new()).map(|()| count)
    }

    /// Takes what others found, and what was the fastest for them where nothing was measured here: all of it or nothing.
    /// None if it could not be written. Of all that was ever imported the newest [`MOST_IMPORTED`] records are kept; what had to go is
    /// in [`Store::notices`].
    pub fn import(&self, records: Vec<Record>, tunings: Vec<Tuning>) -> Option<()> {
        let forgotten = self.ask(ANSWER_DEADLINE * 6, move |connection| {
            let transaction = connection.unchecked_transaction()?;
            for record in &records {
                rows::put_record(&transaction, record)?;
            }
            for tuning in &tunings {
                rows::import_tuning(&transaction, tuning)?;
            }
            let forgotten = rows::forget_oldest_imports(&transaction, MOST_IMPORTED)?;
            transaction.commit().map(|()| forgotten)
        })?;
        if forgotten > 0 {
            self.notices.say(format!(
                "{forgotten} imported records were not kept: a store holds the newest {MOST_IMPORTED} of what others found"
            ));
        }
        Some(())
    }

    /// Keeps what was measured to be the fastest, soon and in the background, like [`Store::record`]; the last one counts.
    pub fn keep_tuning(&self, tuning: Tuning) {
        self.offer(Box::new(move |connection| rows::put_tuning(connection, &tuning)));
    }

    /// What was measured to be the fastest, on every device; those of other kernels than today's among it.
    pub fn tunings(&self) -> Vec<Tuning> {
        if self.foreign {
            return Vec::new();
        }
        self.ask(ANSWER_DEADLINE, rows::tunings).unwrap_or_default()
    }

    /// Forgets the records that are meant, with the canaries, tunings and left-behind intents of what they are about; how
    /// many records and tunings there were, or none if nothing could be done.
    pub fn forget(&self, filter: &Filter) -> Option<usize> {
        let filter = filter.clone();
        self.ask(ANSWER_DEADLINE, move |connection| rows::forget(connection, &filter))
    }

    /// Waits until what was recorded so far is written; tells whether it was in time.
    pub fn flush(&self, patience: Duration) -> bool {
        self.live().is_none_or(|live| live.queue.wait_until_empty(patience))
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        if self.is_inherited() {
            return;
        }
        let Some(live) = self.live.take() else { return };
        let live = ManuallyDrop::into_inner(live);
        live.queue.close();
        if live.queue.wait_until_empty(CLOSING_DEADLINE) {
            let _ = live.thread.join();
        } else {
            // The disk does not answer. Leaving the thread behind is better than waiting for it.
            live.queue.clear();
        }
    }
}

fn serve(mut database: Database, queue: &Queue, notices: &Notices) {
    while let Some(mut work) = queue.next() {
        if !database.perform(&mut *work) {
            notices.count_dropped(1);
        }
    }
}
