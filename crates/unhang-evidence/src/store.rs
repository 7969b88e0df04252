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

/// The longest that opening may take before work goes on without the store.
const OPENING_DEADLINE: Duration = Duration::from_secs(5);
/// The longest that a question may take.
const ANSWER_DEADLINE: Duration = Duration::from_secs(10);
/// The longest that writing an intent may take.
const INTENT_DEADLINE: Duration = Duration::from_secs(5);
/// The most requested convolutions of one machine that are kept, and the number of writes between two checks.
const MOST_SEEN: u64 = 10_000;
const SEEN_BETWEEN_CLEANINGS: u64 = 500;
static SEEN_SINCE_START: AtomicU64 = AtomicU64::new(0);
/// The most imported records that a store keeps. Each start reads them.
pub(crate) const MOST_IMPORTED: u64 = 20_000;
/// The longest that dropping the store may take.
const CLOSING_DEADLINE: Duration = Duration::from_secs(2);

/// The process that opened the first store. A forked process has a copy of SQLite's tables of open files, and opening
/// the file again could corrupt it. So a forked child has no store.
static FIRST_PROCESS: AtomicU32 = AtomicU32::new(0);

/// Keeps evidence beyond the process.
///
/// Opening never fails, recording never waits, and every question has a deadline; [`Store::notices`] says what is
/// wrong. A separate thread holds the only handle to the file. After a fork the child's copy does nothing: no write,
/// no lock, not even when dropped.
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
    // A forked child must not touch the handle, the thread or the locks, so nothing is dropped automatically.
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
            None => Store::without("there is neither UNHANG_HOME nor HOME: continuing without stored evidence"),
        }
    }

    /// Opens the store in unhang's own folder for somebody who only reads: no folder is created.
    pub fn open_existing() -> Store {
        crate::home().map_or_else(Store::open_default, |home| Store::open_by(&home, Database::open_existing))
    }

    /// Opens the store in a folder, and creates the folder if needed.
    pub fn open(home: &Path) -> Store {
        Store::open_by(home, Database::open)
    }

    fn open_by(home: &Path, open: fn(&Path, Arc<Notices>) -> Database) -> Store {
        let process = std::process::id();
        let first = FIRST_PROCESS.compare_exchange(0, process, Ordering::Relaxed, Ordering::Relaxed);
        if first.is_err_and(|first| first != process) {
            return Store::without("this process was forked from one that uses the store: continuing without it");
        }
        let notices = Arc::new(Notices::default());
        let queue = Arc::new(Queue::default());
        let (opened, when_opened) = mpsc::channel();
        let spawned = std::thread::Builder::new().name("unhang-evidence".to_owned()).spawn({
            let (home, notices, queue) = (home.to_owned(), notices.clone(), queue.clone());
            move || {
                let database = open(&home, notices.clone());
                let _ = opened.send((database.is_open(), database.is_foreign()));
                serve(database, &queue, &notices);
            }
        });
        let thread = match spawned {
            Ok(thread) => thread,
            Err(error) => return Store::without(&format!("no thread for the store ({error}): continuing without it")),
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
                    "{} did not answer within {} s: continuing without stored evidence",
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

    /// Messages for a person, each once. Empty when all is well.
    pub fn notices(&self) -> Vec<String> {
        // The child's copy may date from a moment when another thread held the lock.
        if self.is_inherited() { Vec::new() } else { self.notices.all() }
    }

    /// The number of records that were not kept, because they came faster than the disk takes them, or for a reason
    /// in [`Store::notices`].
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

    /// Asks the thread, with a deadline. `None` if there is no store, or no answer in time.
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

    /// Keeps a record, soon and in the background. Never waits: if the disk is too slow, the record is dropped and
    /// counted.
    pub fn record(&self, record: Record) {
        self.offer(Box::new(move |connection| rows::put_record(connection, &record)));
    }

    /// Counts a convolution that a user's program asked for; in the background, like [`Store::record`].
    pub fn count_seen(&self, machine: &str, problem: &Problem, count: u64) {
        let (machine, problem, now) = (machine.to_owned(), problem.to_string(), time::now());
        self.offer(Box::new(move |connection| {
            connection
                .prepare_cached(
                    "INSERT INTO seen VALUES (?1, ?2, ?3, ?4) ON CONFLICT DO UPDATE SET
                     count = min(count + excluded.count, 9000000000000000000), unix_seconds = excluded.unix_seconds",
                )?
                .execute(params![machine, problem, count.min(1 << 40) as i64, now])?;
            // A program with ever new sizes must not fill the disk, so the oldest are deleted now and then.
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

    /// The attempt finished, or its supervisor saw how it ended: the record replaces the intent, in one step.
    pub fn resolve(&self, intent: IntentId, record: Record) {
        self.insist(Box::new(move |connection| {
            let transaction = connection.unchecked_transaction()?;
            rows::remove_intent(&transaction, intent)?;
            rows::put_record(&transaction, &record)?;
            transaction.commit()
        }));
    }

    /// Writes how attempts ended and what is tried next, in one step that is safely on disk when this returns. If an
    /// attempt crashes the machine, its name is there afterwards. An attempt whose intent could not be written has none
    /// to remove. Returns the names of the new intents in order, or `None` if nothing was written; the caller may then
    /// offer the same again.
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

    /// The attempt never began.
    pub fn withdraw(&self, intent: IntentId) {
        self.insist(Box::new(move |connection| rows::remove_intent(connection, intent)));
    }

    fn insist(&self, work: Work) {
        if let Some(live) = self.live() {
            live.queue.insist(work);
        }
    }

    /// What a process that is gone began on this machine and never resolved: the culprits of crashes. Attempts under
    /// way in a living process are not included.
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

    /// How a canary ended on that machine, if it ever ran.
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

    /// Keeps how a canary ended; the last one counts. Returns when it is written, because the next process relies on
    /// it, with whether it was.
    pub fn set_canary(&self, canary: Canary) -> bool {
        self.ask(ANSWER_DEADLINE, move |connection| rows::put_canary(connection, &canary)).is_some()
    }

    /// Keeps how a canary ended, soon and in the background, like [`Store::record`]. For what is found in the middle
    /// of a user's program, which must not wait for a disk.
    pub fn keep_canary(&self, canary: Canary) {
        self.offer(Box::new(move |connection| rows::put_canary(connection, &canary)));
    }

    /// The selected records, in order of arrival. Records from a file that others could have written count as claims.
    pub fn records(&self, filter: &Filter) -> Vec<Record> {
        self.records_in_order(filter).into_iter().map(|(_, record)| record).collect()
    }

    /// Records, each with its place in the order of arrival.
    pub(crate) fn records_in_order(&self, filter: &Filter) -> Vec<(i64, Record)> {
        self.answered(filter, rows::records)
    }

    /// The last of these records to arrive.
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
            // Its statements about sources are trusted no more than the rest.
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

    /// Takes what others found, and their fastest kernels where nothing was measured here: all of it or nothing.
    /// `None` if it could not be written. Of all imported records, the newest [`MOST_IMPORTED`] are kept;
    /// [`Store::notices`] says what was deleted.
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

    /// Keeps a measurement of the fastest kernel, soon and in the background, like [`Store::record`]; the last one
    /// counts.
    pub fn keep_tuning(&self, tuning: Tuning) {
        self.offer(Box::new(move |connection| rows::put_tuning(connection, &tuning)));
    }

    /// The measured fastest kernels on every device, including measurements of older kernels.
    pub fn tunings(&self) -> Vec<Tuning> {
        if self.foreign {
            return Vec::new();
        }
        self.ask(ANSWER_DEADLINE, rows::tunings).unwrap_or_default()
    }

    /// Deletes the selected records, with the related canaries, tunings and left-behind intents. Returns the number
    /// of records and tunings, or `None` if nothing could be done.
    pub fn forget(&self, filter: &Filter) -> Option<usize> {
        let filter = filter.clone();
        self.ask(ANSWER_DEADLINE, move |connection| rows::forget(connection, &filter))
    }

    /// Waits until everything recorded so far is written. Returns whether that was in time.
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
