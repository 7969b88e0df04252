//! The store with everything that can be wrong with a file, and with many processes.
//!
//! Children are this test program again. They run the one test `child`, which plays the role named in its environment.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rusqlite::Connection;
use unhang_conv::Problem;
use unhang_engine::{EngineName, Tuned, Verdict};
use unhang_evidence::{Canary, Evidence, Filter, Intent, IntentId, Record, RecordSource, Store, Tuning, time};

const PATIENCE: Duration = Duration::from_secs(30);

fn problem(size: usize) -> Problem {
    format!("forward:f32:nchw:1x16x{size}x{size}:32x3x3:s1x1:p1x1:d1x1:g1").parse().unwrap()
}

fn record(size: usize, verdict: Verdict) -> Record {
    Record::new(problem(size), EngineName::Miopen, "here", verdict, RecordSource::Probe)
}

fn intent(size: usize) -> Intent {
    Intent {
        problem: problem(size),
        engine: EngineName::Miopen,
        variant: String::new(),
        machine: "here".to_owned(),
        source: RecordSource::Probe,
        unix_seconds: time::now(),
    }
}

/// Writes down what is about to be tried.
fn intend(store: &Store, size: usize) -> Option<IntentId> {
    store.advance(Vec::new(), vec![intent(size)])?.pop()
}

fn count(store: &Store) -> usize {
    store.records(&Filter::default()).len()
}

/// Opens, uses and drops a store in a folder with something wrong in it. This is quick and gives one notice.
#[track_caller]
fn check_trouble(home: &Path, keeps: bool, notice: &str) -> Store {
    let begun = Instant::now();
    let store = Store::open(home);
    store.record(record(64, Verdict::Hangs));
    let _ = count(&store);
    assert!(begun.elapsed() < Duration::from_secs(8), "took {:?}", begun.elapsed());
    let notices = store.notices();
    assert_eq!(notices.len(), 1, "{notices:?}");
    assert!(notices[0].contains(notice), "{notices:?}");
    assert_eq!(count(&store) > 0, keeps, "{notices:?}");
    store
}

fn set_aside(home: &Path) -> Vec<String> {
    let names = fs::read_dir(home).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.contains("set-aside") && !name.ends_with("-wal") && !name.ends_with("-shm")).collect()
}

/// A closed store with `records` records in a file.
fn filled(home: &Path, records: usize) {
    let store = Store::open(home);
    store.import((0..records).map(|size| record(16 + size, Verdict::Works)).collect(), Vec::new()).unwrap();
    drop(store);
    assert!(!home.join("evidence.db-wal").exists(), "closing leaves one file behind");
}

#[test]
fn what_is_recorded_is_there_next_time() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path().join("deep/home");
    let store = Store::open(&home);
    let seen = Record { first_seconds: Some(2.5), ..record(64, Verdict::Works) }.with_seconds(1e-3).with_detail("é\"'");
    store.record(seen.clone());
    store.record(Record { unix_seconds: seen.unix_seconds + 5, ..record(64, Verdict::Works) });
    store.count_seen("here", &problem(8), 2);
    store.count_seen("here", &problem(8), 40);
    store.count_seen("here", &problem(9), 1);
    let canary = Canary {
        machine: "here".to_owned(),
        name: "aten".to_owned(),
        verdict: Verdict::Works,
        detail: "0.2 s".to_owned(),
        unix_seconds: 7,
    };
    assert!(store.set_canary(canary.clone()));
    drop(store);
    assert_eq!(fs::metadata(&home).unwrap().permissions().mode() & 0o777, 0o700);

    let store = Store::open(&home);
    assert_eq!(store.notices(), Vec::<String>::new());
    let records = store.records(&Filter::default());
    // The second report has no times, so those of the first stay.
    assert_eq!(records, [Record { unix_seconds: seen.unix_seconds + 5, detail: String::new(), ..seen }]);
    let counts: Vec<(Problem, u64)> = store.seen("here").into_iter().map(|it| (it.problem, it.count)).collect();
    assert_eq!(counts, [(problem(8), 42), (problem(9), 1)]);
    assert!(store.seen("elsewhere").is_empty());
    assert_eq!(store.canary("here", "aten"), Some(canary.clone()));
    assert_eq!(store.canaries(), [canary]);
    assert_eq!(store.canary("elsewhere", "aten"), None);
    assert_eq!(store.dropped(), 0);
}

#[test]
fn forgetting_is_exact() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path());
    for size in [8, 9, 10] {
        store.record(record(size, Verdict::Hangs));
        store.record(Record { engine: EngineName::Aten, ..record(size, Verdict::Works) });
    }
    let aten = Filter { engine: Some(EngineName::Aten), ..Filter::default() };
    assert_eq!(store.forget(&Filter { problem: Some(problem(9)), ..aten.clone() }), Some(1));
    assert_eq!(store.forget(&Filter { verdict: Some(Verdict::Wrong), ..Filter::default() }), Some(0));
    assert_eq!((count(&store), store.records(&aten).len()), (5, 2));
    let canary = |name: &str| Canary {
        machine: "here".to_owned(),
        name: name.to_owned(),
        verdict: Verdict::Works,
        detail: String::new(),
        unix_seconds: 7,
    };
    for name in ["aten", "jit", "jit:f16", "jit@1", "jit (rehearsed)"] {
        assert!(store.set_canary(canary(name)));
    }
    assert_eq!(store.forget(&Filter { engine: Some(EngineName::Jit), ..Filter::default() }), Some(0));
    assert_eq!(store.canaries(), [canary("aten")]);
    assert_eq!(store.forget(&Filter::default()), Some(5));
    assert!(store.canary("here", "aten").is_none());
}

#[test]
fn a_damaged_file_is_set_aside() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path();
    fs::write(home.join("evidence.db"), b"this is no database, and longer than a header would be".repeat(100)).unwrap();
    drop(check_trouble(home, true, "set aside as"));
    assert_eq!(set_aside(home).len(), 1);
    let again = Store::open(home);
    assert_eq!((again.notices().len(), count(&again)), (0, 1), "the new file is good");
}

#[test]
fn a_truncated_file_is_set_aside() {
    let folder = tempfile::tempdir().unwrap();
    filled(folder.path(), 500);
    let path = folder.path().join("evidence.db");
    let length = fs::metadata(&path).unwrap().len();
    for part in [length / 2, 4096, 100] {
        fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(part).unwrap();
        drop(check_trouble(folder.path(), true, "set aside as"));
        filled(folder.path(), 500);
    }
    assert_eq!(set_aside(folder.path()).len(), 3, "in one second too, each has its own name");
}

#[test]
fn damage_in_the_middle_is_found_when_it_is_read() {
    let folder = tempfile::tempdir().unwrap();
    filled(folder.path(), 2000);
    let path = folder.path().join("evidence.db");
    let mut bytes = fs::read(&path).unwrap();
    // All pages after the first few: the header and the schema can still be read.
    for byte in &mut bytes[8 * 4096..] {
        *byte = 0x5a;
    }
    fs::write(&path, bytes).unwrap();
    let store = Store::open(folder.path());
    let read = count(&store);
    assert!(read < 2000, "{read}");
    assert!(store.notices().iter().any(|it| it.contains("set aside")), "{:?}", store.notices());
    store.record(record(64, Verdict::Hangs));
    assert_eq!(count(&store), 1, "and work goes on with a new one");
}

#[test]
fn another_programs_database_is_set_aside() {
    let folder = tempfile::tempdir().unwrap();
    let other = Connection::open(folder.path().join("evidence.db")).unwrap();
    other.execute_batch("CREATE TABLE cats (name); INSERT INTO cats VALUES ('Tom')").unwrap();
    drop(other);
    drop(check_trouble(folder.path(), true, "database of something else"));
    let aside = Connection::open(folder.path().join(&set_aside(folder.path())[0])).unwrap();
    assert_eq!(aside.query_row("SELECT name FROM cats", [], |row| row.get::<_, String>(0)).unwrap(), "Tom");
}

#[test]
fn a_newer_version_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    filled(folder.path(), 3);
    let path = folder.path().join("evidence.db");
    Connection::open(&path).unwrap().pragma_update(None, "user_version", 99).unwrap();
    let before = fs::read(&path).unwrap();
    let store = check_trouble(folder.path(), false, "newer unhang (format 99");
    assert!(!store.is_live());
    drop(store);
    assert_eq!(fs::read(&path).unwrap(), before);
    assert!(set_aside(folder.path()).is_empty());
}

#[test]
fn a_version_1_file_is_brought_up_to_date() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("evidence.db");
    // As version 1 wrote it. Not taken from the crate, so that an edited migration is noticed.
    let old = Connection::open(&path).unwrap();
    old.execute_batch(
        "PRAGMA journal_mode = WAL;
         CREATE TABLE records (machine TEXT NOT NULL, problem TEXT NOT NULL, engine TEXT NOT NULL, variant TEXT NOT NULL,
            source TEXT NOT NULL, verdict TEXT NOT NULL, seconds REAL, first_seconds REAL, detail TEXT NOT NULL,
            unix_seconds INTEGER NOT NULL, PRIMARY KEY (machine, problem, engine, variant, source, verdict)) WITHOUT ROWID;
         CREATE TABLE intents (id INTEGER PRIMARY KEY AUTOINCREMENT, machine TEXT NOT NULL, problem TEXT NOT NULL,
            engine TEXT NOT NULL, variant TEXT NOT NULL, source TEXT NOT NULL, owner TEXT NOT NULL,
            unix_seconds INTEGER NOT NULL);
         CREATE TABLE canaries (machine TEXT NOT NULL, name TEXT NOT NULL, verdict TEXT NOT NULL, detail TEXT NOT NULL,
            unix_seconds INTEGER NOT NULL, PRIMARY KEY (machine, name)) WITHOUT ROWID;
         INSERT INTO records VALUES ('here', 'forward:f32:nchw:1x16x64x64:32x3x3:s1x1:p1x1:d1x1:g1', 'miopen', '',
            'probe', 'hangs', NULL, NULL, 'from the past', 1770768000);
         INSERT INTO records VALUES ('here', 'a problem of the future', 'miopen', '', 'probe', 'hangs', NULL, NULL, '', 1);
         PRAGMA application_id = 1970169959;
         PRAGMA user_version = 1;",
    )
    .unwrap();
    drop(old);
    let store = Store::open(folder.path());
    assert_eq!(store.notices(), Vec::<String>::new());
    let records = store.records(&Filter::default());
    assert_eq!(records.len(), 1, "what does not read is passed over: {records:?}");
    assert_eq!((records[0].detail.as_str(), records[0].unix_seconds), ("from the past", 1_770_768_000));
    store.count_seen("here", &problem(64), 1);
    assert_eq!(store.seen("here").len(), 1, "the table that version 2 brought");
    drop(store);
    let version: i64 =
        Connection::open(&path).unwrap().pragma_query_value(None, "user_version", |row| row.get(0)).unwrap();
    assert_eq!(version, 4);
}

fn tuning(size: usize, source: RecordSource, choice: &str) -> Tuning {
    let tuned = Tuned {
        problem: problem(size).into(),
        device: "a card (gfx1010, 36 units)".into(),
        kernels: "4f1c".into(),
        compiler: "hiprtc 5.2".into(),
        driver: "HIP 5".into(),
        choice: choice.into(),
        seconds: 2e-5,
        spread: 0.1,
        model_choice: "plain".into(),
        model_seconds: 4e-5,
        candidates: 5,
        detail: String::new(),
    };
    Tuning { tuned, source, unix_seconds: 1_770_768_000 }
}

#[test]
fn the_last_tuning_of_a_convolution_on_a_device_counts() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path());
    store.keep_tuning(tuning(64, RecordSource::Run, "narrow:2"));
    store.keep_tuning(tuning(64, RecordSource::Probe, "narrow:4"));
    store.keep_tuning(tuning(32, RecordSource::Rehearsal, "fused"));
    drop(store);
    let store = Store::open(folder.path());
    assert_eq!(
        store.tunings(),
        [tuning(32, RecordSource::Rehearsal, "fused"), tuning(64, RecordSource::Probe, "narrow:4")]
    );
    // Tunings belong to our kernels: forgetting another engine, a verdict or another machine leaves them.
    for filter in [
        Filter { engine: Some(EngineName::Miopen), ..Filter::default() },
        Filter { verdict: Some(Verdict::Works), ..Filter::default() },
        Filter { machine: Some("there".into()), ..Filter::default() },
        Filter { source: Some(RecordSource::Run), ..Filter::default() },
    ] {
        assert_eq!(store.forget(&filter), Some(0), "{filter:?}");
    }
    assert_eq!(store.forget(&Filter { source: Some(RecordSource::Rehearsal), ..Filter::default() }), Some(1));
    assert_eq!(store.forget(&Filter { engine: Some(EngineName::Jit), ..Filter::default() }), Some(1));
    assert_eq!(store.tunings(), []);
}

#[test]
fn a_folder_that_cannot_be_made_is_done_without() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("file"), "").unwrap();
    check_trouble(&folder.path().join("file/home"), false, "cannot be created");
    check_trouble(Path::new("/proc/unhang-home"), false, "cannot be created");
    let in_the_way = tempfile::tempdir().unwrap();
    fs::create_dir(in_the_way.path().join("evidence.db")).unwrap();
    check_trouble(in_the_way.path(), false, "evidence.db is not a plain file");
}

#[test]
fn a_read_only_folder_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path().join("home");
    filled(&home, 3);
    fs::set_permissions(home.join("evidence.db"), fs::Permissions::from_mode(0o444)).unwrap();
    fs::set_permissions(&home, fs::Permissions::from_mode(0o555)).unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = role("read-only", &home);
    if fs::metadata("/proc/self").unwrap().uid() == 0 {
        // Nothing is read-only to root, so another user must try, with a copy of this program that they may read.
        let program = folder.path().join("program");
        fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let mut other = Command::new(program);
        other.args(["child", "--exact", "--nocapture"]).uid(65534).gid(65534).current_dir("/");
        command = as_role(other, "read-only", &home);
    }
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("read-only child: records=3 notices=1"), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("it is read, and nothing is added to it"), "{text}");
    fs::set_permissions(&home, fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn a_locked_file_is_done_without_in_bounded_time() {
    let folder = tempfile::tempdir().unwrap();
    filled(folder.path(), 3);
    let mut holder = role("hold-exclusively", folder.path()).stdout(Stdio::piped()).spawn().unwrap();
    wait_for(&mut holder, "held");
    check_trouble(folder.path(), false, "locked by another program");
    holder.kill().unwrap();
    holder.wait().unwrap();
    let store = Store::open(folder.path());
    assert_eq!((count(&store), store.notices().len()), (3, 0), "nothing was lost, and it was not set aside");
}

#[test]
fn a_writer_that_never_ends_delays_nobody() {
    let folder = tempfile::tempdir().unwrap();
    filled(folder.path(), 3);
    let mut holder = role("hold-write-lock", folder.path()).stdout(Stdio::piped()).spawn().unwrap();
    wait_for(&mut holder, "held");
    let store = Store::open(folder.path());
    assert_eq!(count(&store), 3, "readers are not in a writer's way");
    let all_recorded = |store: &Store| {
        let begun = Instant::now();
        for size in 0..10_000 {
            store.record(record(16 + size, Verdict::Works));
        }
        begun.elapsed()
    };
    // The quickest of three: a busy machine may delay one. Each is the first of its store.
    let others = [(); 2].map(|()| all_recorded(&Store::open(folder.path())));
    let took = others.into_iter().chain([all_recorded(&store)]).min().unwrap();
    assert!(took < Duration::from_secs(1), "recording waited: {took:?}");
    assert!(!store.flush(Duration::from_millis(300)), "there is a lock in the way");
    assert!(store.dropped() > 5000, "the queue is bounded: {}", store.dropped());
    let begun = Instant::now();
    drop(store);
    assert!(begun.elapsed() < Duration::from_secs(10), "dropping waited: {:?}", begun.elapsed());
    holder.kill().unwrap();
    holder.wait().unwrap();
}

/// A folder in memory where there is one: with eight writers a busy disk would make each wait until it gives up.
fn in_memory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

#[test]
fn eight_processes_at_once_lose_nothing() {
    let folder = in_memory();
    let home = folder.path().join("new");
    let mut children: Vec<Child> = (0..8)
        .map(|index| role("write-many", &home).env("UNHANG_TEST_INDEX", index.to_string()).spawn().unwrap())
        .collect();
    for child in &mut children {
        assert!(child.wait().unwrap().success());
    }
    let store = Store::open(&home);
    assert_eq!(store.notices(), Vec::<String>::new());
    assert_eq!(count(&store), 8 * 200);
    assert_eq!(store.seen("here")[0].count, 8 * 200, "every process counted the same convolution");
    assert!(set_aside(&home).is_empty());
}

#[test]
fn eight_processes_at_once_on_a_damaged_file_set_it_aside_once() {
    let folder = in_memory();
    fs::write(folder.path().join("evidence.db"), b"damaged ".repeat(4000)).unwrap();
    let mut children: Vec<Child> = (0..8)
        .map(|index| role("write-many", folder.path()).env("UNHANG_TEST_INDEX", index.to_string()).spawn().unwrap())
        .collect();
    for child in &mut children {
        assert!(child.wait().unwrap().success());
    }
    assert_eq!(set_aside(folder.path()).len(), 1);
    assert_eq!(count(&Store::open(folder.path())), 8 * 200);
}

#[test]
fn kill_9_loses_at_most_what_was_being_written() {
    let folder = tempfile::tempdir().unwrap();
    for round in 0..5u64 {
        let home = folder.path().join(round.to_string());
        let mut child = role("write-for-ever", &home).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut confirmed = 0;
        // Each line names the last record whose write the child has seen confirmed. Kill it at odd moments.
        let until = 20 + round * 37;
        while confirmed < until {
            let line = lines.next().expect("the child writes for ever").unwrap();
            confirmed = line.strip_prefix("confirmed ").map_or(confirmed, |number| number.parse().unwrap());
        }
        child.kill().unwrap();
        child.wait().unwrap();
        for line in lines.map_while(Result::ok) {
            confirmed = line.strip_prefix("confirmed ").map_or(confirmed, |number| number.parse().unwrap_or(confirmed));
        }
        let store = Store::open(&home);
        assert_eq!(store.notices(), Vec::<String>::new());
        let found = count(&store) as u64;
        assert!(found >= confirmed, "{found} of {confirmed} confirmed ones");
        let sizes: Vec<usize> = store.records(&Filter::default()).iter().map(|it| it.problem.in_size()[0]).collect();
        let mut sorted = sizes.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (16..16 + sizes.len()).collect::<Vec<_>>(), "no gaps");
    }
}

#[test]
fn a_crash_leaves_the_culprits_name() {
    let folder = tempfile::tempdir().unwrap();
    let status = role("begin-and-die", folder.path()).status().unwrap();
    assert!(!status.success());
    let store = Store::open(folder.path());
    let left: Vec<Problem> = store.unresolved_intents("here").into_iter().map(|(_, intent)| intent.problem).collect();
    assert_eq!(left, [problem(66)], "65 was resolved, 67 withdrawn");
    let evidence = Evidence::load(&store, "here");
    let finding = evidence.about(&problem(66), EngineName::Miopen, "").unwrap();
    assert!(finding.is_refutation() && finding.verdict == Verdict::Hangs, "{finding}");
    assert!(finding.to_string().contains("did not finish"), "{finding}");
    assert!(evidence.about(&problem(65), EngineName::Miopen, "").unwrap().is_proof());
    assert!(evidence.about(&problem(67), EngineName::Miopen, "").is_none());

    // An attempt under way in a living process is not a culprit, even if another process asks.
    let own = intend(&store, 70).unwrap();
    assert_eq!(store.unresolved_intents("here").len(), 1);
    store.resolve(own, record(70, Verdict::Works));
    // Resolving or forgetting clears the culprit.
    assert_eq!(store.forget(&Filter { problem: Some(problem(66)), ..Filter::default() }), Some(0));
    assert!(store.unresolved_intents("here").is_empty());
}

#[test]
fn a_forked_child_has_no_store_and_does_no_harm() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path());
    store.record(record(64, Verdict::Hangs));
    assert!(store.flush(PATIENCE));
    // SAFETY: the child calls only what is under test, writes a file and leaves by `_exit`. It takes no lock that
    // another thread of this process could have held; that is what this test shows.
    let child = unsafe { libc::fork() };
    if child == 0 {
        store.record(record(65, Verdict::Hangs));
        let inert = !store.is_live()
            && store.records(&Filter::default()).is_empty()
            && intend(&store, 66).is_none()
            && store.notices().is_empty()
            && store.flush(Duration::from_secs(1));
        drop(store);
        let second = Store::open(folder.path());
        let refused = !second.is_live() && second.notices().len() == 1;
        drop(second);
        // SAFETY: ends the child at once, without running code that belongs to the parent.
        unsafe { libc::_exit(if inert && refused { 0 } else { 1 }) };
    }
    assert!(child > 0);
    let mut status = 0;
    let deadline = Instant::now() + PATIENCE;
    // SAFETY: waits for the child created above; `status` outlives the call.
    while unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) } == 0 {
        assert!(Instant::now() < deadline, "the child hangs");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(status, 0, "the child's exit status");
    store.record(record(67, Verdict::Works));
    assert_eq!(count(&store), 2, "the parent goes on, and the child added nothing");
}

#[test]
fn no_store_is_a_store_too() {
    let store = Store::none();
    store.record(record(64, Verdict::Hangs));
    assert!(!store.is_live() && store.notices().is_empty() && count(&store) == 0);
    assert!(store.flush(Duration::ZERO) && intend(&store, 64).is_none());
    assert_eq!(Evidence::load(&store, "here").records().count(), 0);
}

// ---- children ----

fn role(name: &str, home: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["child", "--exact", "--nocapture"]);
    as_role(command, name, home)
}

fn as_role(mut command: Command, name: &str, home: &Path) -> Command {
    command.env("UNHANG_TEST_ROLE", name).env("UNHANG_TEST_HOME", home).stderr(Stdio::inherit());
    command
}

fn wait_for(child: &mut Child, word: &str) {
    let mut lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains(word)), "the child ended without saying {word:?}");
}

/// Plays a child's role. Without a role it tests nothing.
#[test]
fn child() {
    let Ok(role) = std::env::var("UNHANG_TEST_ROLE") else { return };
    let home = std::path::PathBuf::from(std::env::var_os("UNHANG_TEST_HOME").unwrap());
    match role.as_str() {
        "read-only" => {
            let store = Store::open(&home);
            store.record(record(999, Verdict::Works));
            println!("\nread-only child: records={} notices={}", count(&store), store.notices().len());
            println!("{:?}", store.notices());
        }
        "hold-exclusively" | "hold-write-lock" => {
            let connection = Connection::open(home.join("evidence.db")).unwrap();
            if role == "hold-exclusively" {
                connection.execute_batch("PRAGMA locking_mode = EXCLUSIVE; BEGIN EXCLUSIVE").unwrap();
            } else {
                connection.execute_batch("BEGIN IMMEDIATE").unwrap();
            }
            println!("\nheld");
            std::thread::sleep(PATIENCE * 2);
        }
        "write-many" => {
            let index: usize = std::env::var("UNHANG_TEST_INDEX").unwrap().parse().unwrap();
            let store = Store::open(&home);
            for number in 0..200 {
                store.record(record(16 + index * 200 + number, Verdict::Works));
                store.count_seen("here", &problem(1), 1);
            }
            assert!(store.flush(PATIENCE), "{:?}", store.notices());
            let notices = store.notices();
            assert!(store.dropped() == 0 && notices.iter().all(|it| it.contains("set aside as")), "{notices:?}");
        }
        "write-for-ever" => {
            let store = Store::open(&home);
            for number in 0.. {
                store.record(record(16 + number, Verdict::Works));
                if number % 7 == 0 && store.flush(PATIENCE) {
                    println!("\nconfirmed {}", number + 1);
                }
            }
        }
        "begin-and-die" => {
            let store = Store::open(&home);
            let good = intend(&store, 65).unwrap();
            let withdrawn = intend(&store, 67).unwrap();
            store.resolve(good, record(65, Verdict::Works));
            store.withdraw(withdrawn);
            intend(&store, 66).unwrap();
            std::process::abort();
        }
        other => panic!("no such role: {other}"),
    }
}
