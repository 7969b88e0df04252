//! The exchange file: an import reads exactly what an export wrote.

use proptest::prelude::*;
use unhang_engine::{EngineName, Tuned, Verdict};
use unhang_evidence::exchange::{self, Private};
use unhang_evidence::{Evidence, Filter, Record, RecordSource, Standing, Store, Tuning};

const HEADER: &str = r#"{"unhang_evidence":1,"records":1}"#;
const LINE: &str = r#"{"problem":"forward:f32:nchw:1x16x64x64:32x3x3:s1x1:p1x1:d1x1:g1","engine":"miopen","variant":"","machine":"4f1c","verdict":"hangs","seconds":0.5,"detail":"","source":"probe","unix_seconds":1770768000}"#;

fn sample() -> Record {
    let problem = "forward:f32:nchw:1x16x64x64:32x3x3:s1x1:p1x1:d1x1:g1".parse().unwrap();
    Record {
        unix_seconds: 1_770_768_000,
        ..Record::new(problem, EngineName::Miopen, "4f1c", Verdict::Hangs, RecordSource::Probe)
    }
}

#[track_caller]
fn check_refused(file: &str, expected: &str) {
    let error = exchange::read(file.as_bytes()).expect_err("it must be refused");
    assert!(error.to_string().contains(expected), "{error}");
}

#[test]
fn what_goes_out_comes_in_as_an_import() {
    let records = [
        sample().with_variant("implicit-gemm").with_detail("in /home/kevin/run.py: \"queue preemption\""),
        Record { verdict: Verdict::Works, ..sample() }.with_seconds(1.25e-3),
        Record { source: RecordSource::Rehearsal, ..sample() },
        Record { source: RecordSource::Import, ..sample() },
        Record { machine: "a host name with spaces".to_owned(), ..sample() },
    ];
    let mut file = Vec::new();
    let exported = exchange::write(&records, &[], &Private::default(), &mut file).unwrap();
    assert_eq!((exported.written, exported.left_out), (2, 3));
    let text = String::from_utf8(file).unwrap();
    assert!(!text.contains("kevin") && !text.contains("rehearsal") && !text.contains("host name"), "{text}");
    let read = exchange::read(text.as_bytes()).unwrap().records;
    assert_eq!(read[0].detail, "in <path> \"queue preemption\"");
    assert_eq!(read[1], Record { source: RecordSource::Import, ..records[1].clone() });
}

#[test]
fn a_good_file_is_taken() {
    for file in [format!("{HEADER}\n{LINE}\n"), format!("{HEADER}\n{LINE}")] {
        let records = exchange::read(file.as_bytes()).unwrap().records;
        assert_eq!((records.len(), records[0].source), (1, RecordSource::Import));
    }
    assert!(exchange::read(r#"{"unhang_evidence":1,"records":0}"#.as_bytes()).unwrap().records.is_empty());
}

#[test]
fn hostile_files_are_refused_whole() {
    check_refused("", "empty");
    check_refused("[]", "header");
    check_refused("{\"records\":1}", "header");
    check_refused("{\"unhang_evidence\":2,\"records\":1,\"new\":true}", "schema 2");
    check_refused("{\"unhang_evidence\":1,\"records\":1,\"new\":true}", "unknown field");
    check_refused("{\"unhang_evidence\":1,\"records\":99999999999}", "99999999999 records");
    check_refused(&format!("{HEADER}\n"), "announces 1 records and the file has 0");
    check_refused(&format!("{HEADER}\n{LINE}\n{LINE}\n"), "has 2");
    check_refused(&format!("{}\n{LINE}\n{LINE}\n", HEADER.replace("1}", "2}")), "line 3: it repeats");
    check_refused(&format!("{HEADER}\n{LINE}\n\n"), "has 2");
    check_refused(&format!("{HEADER}\n{}\n", "x".repeat(10_000)), "longer than 8192");
    check_refused(&format!("{HEADER}\n{}\n", "[".repeat(5000)), "line 2");
    check_refused(&format!("{HEADER}\n{}\n", &LINE[..LINE.len() - 9]), "line 2");
    let with = |from: &str, to: &str| {
        let line = LINE.replace(from, to);
        assert_ne!(line, LINE, "{from} is not there");
        format!("{HEADER}\n{line}\n")
    };
    check_refused(&with("1x16x64x64", "1x0x64x64"), "input channels is 0");
    check_refused(&with("1x16x64x64", "01x16x64x64"), "must be written as");
    check_refused(&with("1x16x64x64", "99999999999999999999x1x1x1"), "does not read");
    check_refused(&with("1x16x64x64", "2147483647x2147483647x2147483647x2147483647"), "overflows");
    check_refused(&with("miopen", "rm -rf"), "unknown engine");
    check_refused(&with("hangs", "probably"), "unknown verdict");
    check_refused(&with("\"probe\"", "\"import\""), "its source is import");
    check_refused(&with("\"probe\"", "\"rehearsal\""), "its source is rehearsal");
    check_refused(&with("\"probe\"", "\"rule\""), "its source is rule");
    check_refused(&with("0.5", "-0.5"), "seconds is");
    check_refused(&with("0.5", "1e300"), "seconds is");
    check_refused(&with("0.5", "1e999"), "number out of range");
    check_refused(&with("0.5", "NaN"), "line 2");
    check_refused(&with("0.5", "\"0.5\""), "invalid type");
    check_refused(&with("1770768000", "4102444800"), "not a time");
    check_refused(&with("1770768000", "-1"), "not a time");
    check_refused(&with("1770768000", "9223372036854775808"), "line 2");
    check_refused(&with("\"4f1c\"", "\"\""), "machine is empty");
    check_refused(&with("\"4f1c\"", "\"../../etc\""), "machine holds '/'");
    check_refused(&with("\"4f1c\"", &format!("\"{}\"", "f".repeat(65))), "machine is longer");
    check_refused(&with("\"variant\":\"\"", "\"variant\":\"<script>\""), "variant holds '<'");
    check_refused(&with("\"variant\":\"\"", "\"variant\":\"../etc\""), "variant holds '/'");
    check_refused(&with("\"detail\":\"\"", "\"detail\":\"\\u001b[2J\""), "control characters");
    check_refused(&with("\"detail\":\"\"", "\"detail\":\"\\u202egnp.exe\""), "control characters");
    check_refused(&with("\"detail\":\"\"", &format!("\"detail\":\"{}\"", "y".repeat(2001))), "detail is longer");
    check_refused(&with("\"detail\":\"\"", "\"detail\":\"\",\"detail\":\"\""), "duplicate field");
    check_refused(&with("\"detail\":\"\"", "\"extra\":1,\"detail\":\"\""), "unknown field");
    check_refused(&with("\"engine\":\"miopen\",", ""), "missing field");
    let mut bytes = format!("{HEADER}\n{LINE}\n").into_bytes();
    bytes[60] = 0xff;
    assert!(exchange::read(&bytes[..]).unwrap_err().to_string().contains("UTF-8"));
}

#[test]
fn an_endless_file_is_refused() {
    let endless = std::io::repeat(b'\n');
    assert!(exchange::read(endless).is_err());
    let lines = format!("{}\n", HEADER.replace("1}", "200000}"));
    let forever = std::io::Read::chain(lines.as_bytes(), std::io::repeat(b'{'));
    assert!(exchange::read(forever).unwrap_err().to_string().contains("longer than"));
}

proptest! {
    /// Any file is either rejected, or accepted with nothing in it that is not printable.
    #[test]
    fn no_file_panics(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = exchange::read(&bytes[..]);
        let mut file = format!("{HEADER}\n").into_bytes();
        file.extend(&bytes);
        let _ = exchange::read(&file[..]);
    }

    /// A good file with one changed byte is rejected, or still holds a good record.
    #[test]
    fn a_changed_byte_never_makes_a_bad_record(at in 0..LINE.len(), byte in any::<u8>()) {
        let mut file = format!("{HEADER}\n{LINE}\n").into_bytes();
        file[HEADER.len() + 1 + at] = byte;
        if let Ok(exchange::Imported { records, .. }) = exchange::read(&file[..]) {
            prop_assert_eq!(records.len(), 1);
            prop_assert_eq!(records[0].source, RecordSource::Import);
            prop_assert!(!records[0].detail.chars().any(char::is_control));
        }
    }

    /// No word with a slash survives, whatever surrounds it.
    #[test]
    fn no_path_is_left(text in "[ -~é\\n\\t]{0,40}", folder in "[a-z]{1,8}", name in "[a-zA-Z0-9]{3,9}") {
        let private = Private::new([name.clone()]);
        let cleaned = exchange::sanitise(&format!("{text} /{folder}/{name}.py {text} {name}"), &private);
        prop_assert!(!cleaned.contains('/') && !cleaned.contains('\\'), "{}", cleaned);
        prop_assert!(!cleaned.split_whitespace().any(|word| word.eq_ignore_ascii_case(&name)), "{}", cleaned);
    }
}

fn tuning() -> Tuning {
    let tuned = Tuned {
        problem: sample().problem.into(),
        device: "AMD Radeon RX 5600 XT (gfx1010, 36 units)".to_owned(),
        kernels: "0123456789abcdef".to_owned(),
        compiler: "hiprtc 9.0 (libamdhip64.so.5.2.21153, build a46ece8ed3f1)".to_owned(),
        driver: "HIP 50221153".to_owned(),
        choice: "gemm:128x128x8/8x8:packed:taps:s1".to_owned(),
        seconds: 1.5e-3,
        spread: 0.02,
        model_choice: "winograd:128x64x8/8x8:s1".to_owned(),
        model_seconds: 1.75e-3,
        candidates: 6,
        detail: "one failed in /home/kevin".to_owned(),
    };
    Tuning { tuned, source: RecordSource::Run, unix_seconds: 1_770_768_000 }
}

fn of_an_operation() -> Tuning {
    let mut it = tuning();
    it.tuned.problem = "pooling (Key { backward: false }, [None])".parse().unwrap();
    it
}

#[test]
fn an_operation_that_is_no_convolution_is_kept_beside_them() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path());
    store.keep_tuning(tuning());
    store.keep_tuning(of_an_operation());
    assert!(store.flush(std::time::Duration::from_secs(10)));
    assert_eq!(store.tunings(), [tuning(), of_an_operation()]);
    assert_eq!(of_an_operation().tuned.problem.convolution(), None);
}

#[test]
fn tunings_travel_as_hints_and_rehearsals_stay_at_home() {
    let rehearsed = Tuning { source: RecordSource::Rehearsal, ..tuning() };
    let mut private = tuning();
    private.tuned.device = "card of /home/kevin/machine".to_owned();
    let mut file = Vec::new();
    let all = [tuning(), rehearsed, private, of_an_operation()];
    let written = exchange::write(&[], &all, &Private::default(), &mut file).unwrap();
    assert_eq!((written.written, written.tunings, written.left_out), (0, 1, 3));
    let text = String::from_utf8(file).unwrap();
    assert!(!text.contains("kevin"), "{text}");
    let read = exchange::read(text.as_bytes()).unwrap();
    let mut expected = Tuning { source: RecordSource::Import, ..tuning() };
    expected.tuned.detail = String::new();
    assert_eq!(read.tunings, [expected]);
    let line = text.lines().nth(1).unwrap();
    let file = |count: u32, line: &str| format!("{{\"unhang_evidence\":1,\"records\":0,\"tunings\":{count}}}\n{line}");
    check_refused(&file(2, line), "announces 2");
    check_refused(&file(2, &format!("{line}\n{line}")), "repeats an earlier line");
    check_refused(&file(1, &line.replace("0.0015", "-1")), "seconds is -1");
    check_refused(&file(1, &line.replace("gemm:128", "gemm 128")), "choice");
    check_refused(&file(1, &line.replace("run", "rule")), "source");
}

#[test]
fn what_was_measured_here_is_not_replaced_by_what_others_measured() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path());
    let own = tuning();
    store.keep_tuning(own.clone());
    assert!(store.flush(std::time::Duration::from_secs(10)));
    let mut other = Tuning { source: RecordSource::Import, ..tuning() };
    other.tuned.choice = "plain".to_owned();
    let mut elsewhere = other.clone();
    elsewhere.tuned.device = "another card".to_owned();
    assert_eq!(store.import(Vec::new(), vec![other, elsewhere.clone()]), Some(()));
    assert_eq!(store.tunings(), [own, elsewhere]);
}

#[test]
fn a_file_is_taken_whole_or_not_at_all() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path());
    assert!(store.tunings().is_empty());
    let database = rusqlite::Connection::open(folder.path().join("evidence.db")).unwrap();
    database.execute_batch("ALTER TABLE tunings RENAME TO elsewhere").unwrap();
    // The store is set aside at the tunings, and a new one is created. The records before them must not stay in the old
    // one.
    assert_eq!(store.import(vec![sample()], vec![tuning()]), Some(()));
    assert_eq!((store.records(&Filter::default()).len(), store.tunings().len()), (1, 1));
}

#[test]
fn what_others_claim_never_makes_a_start_long() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path());
    // One convolution and ever more machines: each claim is compared with all the others about it.
    let claims = |first: u32, count: u32| -> Vec<Record> {
        let claim = |machine: u32| Record {
            machine: format!("{machine:08x}"),
            source: RecordSource::Import,
            unix_seconds: i64::from(machine),
            ..sample()
        };
        (first..first + count).map(claim).collect()
    };
    assert_eq!(store.import(claims(0, 60_000), Vec::new()), Some(()));
    assert_eq!(store.import(claims(60_000, 1), Vec::new()), Some(()));
    let kept = store.records(&Filter::default());
    assert_eq!(kept.len(), 20_000, "a bound on the sum of all imports");
    assert!(kept.iter().any(|record| record.machine == format!("{:08x}", 60_000)), "the newest stay");
    assert!(store.notices().iter().any(|notice| notice.contains("were not kept")), "{:?}", store.notices());
    // The quickest of three: a busy machine may delay one.
    let load = |_| {
        let began = std::time::Instant::now();
        Evidence::load(&store, "here");
        began.elapsed()
    };
    let took = (0..3).map(load).min().unwrap();
    assert!(took < std::time::Duration::from_secs(2), "{took:?}");
    let evidence = Evidence::load(&store, "here");
    let finding = evidence.about(&sample().problem, EngineName::Miopen, "").unwrap();
    assert_eq!((finding.verdict, finding.standing), (Verdict::Hangs, Standing::Suspicion));
}
