//! Stores that others could have written, and clocks that are set back.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;

use unhang_conv::Problem;
use unhang_engine::{EngineName, Verdict};
use unhang_evidence::{Canary, Evidence, Filter, Record, RecordSource, Standing, Store};

const SOMEBODY: u32 = 65534;

fn problem() -> Problem {
    "forward:f32:nchw:1x16x64x64:32x3x3:s1x1:p1x1:d1x1:g1".parse().unwrap()
}

fn record(verdict: Verdict, unix_seconds: i64) -> Record {
    Record { unix_seconds, ..Record::new(problem(), EngineName::Miopen, "here", verdict, RecordSource::Probe) }
}

fn filled(home: &Path, verdict: Verdict) {
    let store = Store::open(home);
    store.record(record(verdict, 7));
    assert!(store.set_canary(Canary {
        machine: "here".to_owned(),
        name: "aten".to_owned(),
        verdict: Verdict::Works,
        detail: String::new(),
        unix_seconds: 7,
    }));
}

/// A store that others could have written gives claims, but no proof and no canary. Nothing is added to it.
#[track_caller]
fn check_foreign(home: &Path, notice: &str) {
    let store = Store::open(home);
    let notices = store.notices();
    assert!(notices.len() == 1 && notices[0].contains(notice), "{notices:?}");
    let sources: Vec<RecordSource> = store.records(&Filter::default()).iter().map(|it| it.source).collect();
    assert!(sources.iter().all(|source| *source == RecordSource::Import), "{sources:?}");
    assert_eq!(store.canary("here", "aten"), None, "no engine is let in by what others wrote");
    let finding = Evidence::load(&store, "here").about(&problem(), EngineName::Miopen, "");
    assert!(finding.is_none_or(|finding| finding.standing == Standing::Suspicion));
    let before = fs::read(home.join("evidence.db")).ok();
    store.record(record(Verdict::Works, 8));
    drop(store);
    assert_eq!(fs::read(home.join("evidence.db")).ok(), before, "and nothing is added");
}

#[test]
fn a_folder_that_others_can_write_proves_nothing() {
    for verdict in [Verdict::Works, Verdict::Hangs] {
        let place = tempfile::tempdir().unwrap();
        let home = place.path().join("home");
        filled(&home, verdict);
        fs::set_permissions(&home, Permissions::from_mode(0o777)).unwrap();
        check_foreign(&home, "can be written by others");
    }
}

#[test]
fn a_file_that_others_can_write_or_a_link_proves_nothing() {
    let place = tempfile::tempdir().unwrap();
    let home = place.path().join("home");
    filled(&home, Verdict::Hangs);
    fs::set_permissions(home.join("evidence.db"), Permissions::from_mode(0o666)).unwrap();
    check_foreign(&home, "can be written by others");
    fs::rename(home.join("evidence.db"), place.path().join("elsewhere")).unwrap();
    symlink(place.path().join("elsewhere"), home.join("evidence.db")).unwrap();
    check_foreign(&home, "is not a plain file");
}

#[test]
fn a_store_of_somebody_else_proves_nothing() {
    if fs::metadata("/proc/self").map(|it| std::os::unix::fs::MetadataExt::uid(&it)).unwrap() != 0 {
        println!("skipped: files of another user need root");
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let home = place.path().join("home");
    filled(&home, Verdict::Works);
    chown(home.join("evidence.db"), Some(SOMEBODY), None).unwrap();
    check_foreign(&home, "belongs to user 65534");
    chown(&home, Some(SOMEBODY), None).unwrap();
    check_foreign(&home, "belongs to user 65534");
}

#[test]
fn a_pipe_in_the_way_stops_nobody() {
    let place = tempfile::tempdir().unwrap();
    for name in ["evidence.db", "evidence.db.lock"] {
        let home = place.path().join(name);
        fs::create_dir(&home).unwrap();
        let made = std::process::Command::new("mkfifo").arg(home.join(name)).status().unwrap();
        assert!(made.success());
        let begun = std::time::Instant::now();
        let store = Store::open(&home);
        store.record(record(Verdict::Hangs, 7));
        let _ = store.records(&Filter::default());
        drop(store);
        assert!(begun.elapsed() < std::time::Duration::from_secs(30), "{name}");
    }
}

#[test]
fn what_arrives_later_counts_when_the_clock_was_set_back() {
    let home = tempfile::tempdir().unwrap();
    let store = Store::open(home.path());
    store.record(record(Verdict::Works, 2_000_000_000));
    store.record(record(Verdict::Hangs, 1_000_000_000));
    let about = |store: &Store| Evidence::load(store, "here").about(&problem(), EngineName::Miopen, "").unwrap();
    assert_eq!(about(&store).verdict, Verdict::Hangs, "the clock was set back by a battery that ran empty");
    store.record(record(Verdict::Works, 5));
    assert_eq!(about(&store).verdict, Verdict::Works);
    drop(store);
    assert_eq!(about(&Store::open(home.path())).verdict, Verdict::Works, "also in the next process");
}

#[test]
fn a_store_of_before_keeps_its_order() {
    let home = tempfile::tempdir().unwrap();
    drop(Store::open(home.path()));
    // As an earlier version left it: no order of arrival, format 3.
    let connection = rusqlite::Connection::open(home.path().join("evidence.db")).unwrap();
    connection
        .execute_batch(
            "DROP INDEX records_by_arrival; ALTER TABLE records DROP COLUMN arrival;
             ALTER TABLE intents DROP COLUMN arrival; PRAGMA user_version = 3;",
        )
        .unwrap();
    for (verdict, unix_seconds) in [("works", 20), ("hangs", 10)] {
        connection
            .execute(
                "INSERT INTO records VALUES ('here', ?1, 'miopen', '', 'probe', ?2, NULL, NULL, '', ?3)",
                (problem().to_string(), verdict, unix_seconds),
            )
            .unwrap();
    }
    drop(connection);
    let store = Store::open(home.path());
    assert_eq!(store.notices(), Vec::<String>::new());
    let finding = Evidence::load(&store, "here").about(&problem(), EngineName::Miopen, "").unwrap();
    assert_eq!(finding.verdict, Verdict::Works);
    let verdicts: Vec<Verdict> = store.records(&Filter::default()).iter().map(|it| it.verdict).collect();
    assert_eq!(verdicts, [Verdict::Hangs, Verdict::Works]);
}
