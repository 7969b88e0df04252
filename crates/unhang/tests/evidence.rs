//! `unhang evidence`, through the program.

use std::fs;
use std::path::Path;
use std::process::Output;

use assert_cmd::Command;
use serde_json::Value;
use unhang_engine::{EngineName, Tuned, Verdict};
use unhang_evidence::{Filter, Record, RecordSource, Store, Tuning};

fn unhang(home: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::cargo_bin("unhang").unwrap();
    command.args(arguments).env("UNHANG_HOME", home).env("USER", "kevin").output().unwrap()
}

fn text(output: &Output) -> (String, String) {
    (String::from_utf8(output.stdout.clone()).unwrap(), String::from_utf8(output.stderr.clone()).unwrap())
}

#[track_caller]
fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{:?}", text(output));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn record(size: usize, verdict: Verdict) -> Record {
    let problem = format!("forward:f32:nchw:1x16x{size}x{size}:32x3x3:s1x1:p1x1:d1x1:g1").parse().unwrap();
    let detail = "asked by kevin in /home/kevin/train.py \x1b[31m";
    Record::new(problem, EngineName::Miopen, "4f1c", verdict, RecordSource::Probe).with_detail(detail)
}

fn filled(home: &Path) {
    let store = Store::open(home);
    let records = vec![record(32, Verdict::Works).with_seconds(2e-4), record(64, Verdict::Hangs)];
    store.import(records, Vec::new()).unwrap();
}

#[test]
fn list_shows_what_is_known_and_nothing_that_drives_a_terminal() {
    let home = tempfile::tempdir().unwrap();
    filled(home.path());
    let output = unhang(home.path(), &["evidence", "list"]);
    let (stdout, stderr) = text(&output);
    assert!(output.status.success() && stderr.is_empty(), "{stderr}");
    assert!(stdout.contains("200.0 µs") && stdout.contains("hangs"), "{stdout}");
    assert!(!stdout.contains('\x1b'), "{stdout:?}");
    let hangs = json(&unhang(home.path(), &["evidence", "list", "--json", "--verdict", "hangs"]));
    assert_eq!(hangs["records"].as_array().unwrap().len(), 1);
    assert_eq!(hangs["records"][0]["problem"], "forward:f32:nchw:1x16x64x64:32x3x3:s1x1:p1x1:d1x1:g1");
    assert!(!hangs.to_string().contains("\\u001b"));
    assert_eq!(unhang(home.path(), &["evidence", "list", "--verdict", "maybe"]).status.code(), Some(2));
}

#[test]
fn what_is_exported_holds_no_names_and_comes_in_as_suspicion() {
    let (home, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    filled(home.path());
    let file = home.path().join("findings.jsonl");
    let path = file.to_str().unwrap();
    let written = json(&unhang(home.path(), &["evidence", "export", path, "--json"]));
    assert_eq!((&written["written"], &written["left_out"]), (&2.into(), &0.into()));
    let content = fs::read_to_string(&file).unwrap();
    assert!(!content.contains("kevin") && !content.contains("/home"), "{content}");
    let (stdout, _) = text(&unhang(home.path(), &["evidence", "export", "-"]));
    assert_eq!(stdout, content);

    assert_eq!(json(&unhang(other.path(), &["evidence", "import", path, "--json"]))["taken"], 2);
    let sources = json(&unhang(other.path(), &["evidence", "list", "--json"]));
    assert!(sources["records"].as_array().unwrap().iter().all(|it| it["source"] == "import"), "{sources}");
    // Other people's findings are not exported under our name.
    let again =
        json(&unhang(other.path(), &["evidence", "export", file.with_extension("2").to_str().unwrap(), "--json"]));
    assert_eq!((&again["written"], &again["left_out"]), (&0.into(), &2.into()));
    let (_, said) = text(&unhang(other.path(), &["evidence", "export", "-"]));
    assert!(said.contains("left out 2 (rehearsed, imported"), "{said}");
}

#[test]
fn a_file_with_one_bad_line_is_refused_whole() {
    let home = tempfile::tempdir().unwrap();
    filled(home.path());
    let file = home.path().join("findings.jsonl");
    assert!(unhang(home.path(), &["evidence", "export", file.to_str().unwrap()]).status.success());
    let content = fs::read_to_string(&file).unwrap();
    fs::write(&file, content.replace("1x16x64x64", "1x16x0x64")).unwrap();
    let fresh = tempfile::tempdir().unwrap();
    let output = unhang(fresh.path(), &["evidence", "import", file.to_str().unwrap()]);
    let (_, stderr) = text(&output);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr.contains("nothing was imported from") && stderr.contains("line 3: input height is 0"), "{stderr}");
    assert!(Store::open(fresh.path()).records(&Filter::default()).is_empty());
    for bad in ["/dev/null", "/", "/dev/zero"] {
        assert_eq!(unhang(fresh.path(), &["evidence", "import", bad]).status.code(), Some(2), "{bad}");
    }
}

#[test]
fn forgetting_wants_to_be_told_what() {
    let home = tempfile::tempdir().unwrap();
    filled(home.path());
    let output = unhang(home.path(), &["evidence", "forget"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output).1.contains("hint: name what to forget"), "{:?}", text(&output));
    assert_eq!(json(&unhang(home.path(), &["evidence", "forget", "--verdict", "hangs", "--json"]))["forgotten"], 1);
    assert_eq!(json(&unhang(home.path(), &["evidence", "forget", "--all", "--json"]))["forgotten"], 1);
}

#[test]
fn a_store_that_cannot_be_used_is_said_and_no_more() {
    let home = tempfile::tempdir().unwrap();
    fs::write(home.path().join("file"), "").unwrap();
    let bad = home.path().join("file/home");
    let output = unhang(&bad, &["evidence", "list"]);
    assert!(output.status.success(), "there is nothing to list");
    assert!(text(&output).1.contains("note: "), "{:?}", text(&output));
    let output = unhang(&bad, &["evidence", "forget", "--all"]);
    assert_eq!(output.status.code(), Some(2), "forgetting was asked for and not done");
}

fn tuning(size: usize, source: RecordSource, kernels: &str, seconds: f64) -> Tuning {
    let tuned = Tuned {
        problem: record(size, Verdict::Works).problem.into(),
        device: "a card (gfx1010, 36 units)".into(),
        kernels: kernels.into(),
        compiler: "hiprtc".into(),
        driver: "HIP 5".into(),
        choice: "narrow:4".into(),
        seconds,
        spread: 0.02,
        model_choice: "plain".into(),
        model_seconds: 4e-5,
        candidates: 3,
        detail: "fused: it failed\x1b[31m".into(),
    };
    Tuning { tuned, source, unix_seconds: 1_770_768_000 }
}

#[test]
fn tunings_say_how_far_the_model_was_off_and_which_are_out_of_date() {
    let home = tempfile::tempdir().unwrap();
    let (stdout, _) = text(&unhang(home.path(), &["evidence", "tunings"]));
    assert!(stdout.starts_with("nothing was tuned"), "{stdout}");
    let store = Store::open(home.path());
    let ours = unhang_gpu::tuning::kernels();
    store.keep_tuning(tuning(32, RecordSource::Run, &ours, 4e-5));
    store.keep_tuning(tuning(64, RecordSource::Probe, &ours, 1e-5));
    // Neither counts: other kernels, and an emulator.
    store.keep_tuning(tuning(16, RecordSource::Probe, "those of last year", 1e-6));
    store.keep_tuning(tuning(8, RecordSource::Rehearsal, &ours, 1e-6));
    // Nor does another operation.
    let mut pooling = tuning(8, RecordSource::Run, &ours, 1e-6);
    pooling.tuned.problem = "pooling (Key, [])".parse().unwrap();
    store.keep_tuning(pooling);
    drop(store);
    let (stdout, stderr) = text(&unhang(home.path(), &["evidence", "tunings"]));
    assert!(stderr.is_empty() && !stdout.contains('\x1b'), "{stdout:?} {stderr}");
    let said = stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(said.matches("out of date: for another version").count(), 1, "{stdout}");
    assert!(said.contains("run at 0.500 of the fastest ones' speed (geometric mean; worst 0.250"), "{stdout}");
    assert!(said.contains("1 of them on an emulated card"), "{stdout}");
    assert!(said.contains("4 convolutions and 1 other operation whose fastest"), "{stdout}");
    let found = json(&unhang(home.path(), &["evidence", "tunings", "--json"]));
    assert_eq!((found["geometric_mean"].as_f64(), found["worst"]["share"].as_f64()), (Some(0.5), Some(0.25)));
    assert_eq!(found["tunings"].as_array().unwrap().iter().filter(|it| it["current"] == true).count(), 4);
    let (listed, _) = text(&unhang(home.path(), &["evidence", "list"]));
    assert!(listed.contains("4 convolutions and 1 other operation whose fastest kernels were measured"), "{listed}");

    let key = record(64, Verdict::Works).problem.to_string();
    let (plan, _) = text(&unhang(home.path(), &["plan", &key]));
    let plan = plan.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(plan.contains("narrow:4 took 10.0 µs on a card") && plan.contains("plain took 40.0 µs"), "{plan}");
    let plan = json(&unhang(home.path(), &["plan", &key.replace("64x64", "16x16"), "--json"]));
    assert_eq!(plan["tunings"][0]["current"], false);

    assert_eq!(json(&unhang(home.path(), &["evidence", "forget", "--engine", "jit", "--json"]))["forgotten"], 5);
}

/// Lists and plans fit the terminal, except for words that cannot be broken.
#[test]
fn lines_fit_the_terminal() {
    let home = tempfile::tempdir().unwrap();
    filled(home.path());
    let store = Store::open(home.path());
    let detail = "the queue did not finish within ten seconds, and the driver reset the card ".repeat(3);
    store.import(vec![record(48, Verdict::Crashes).with_detail(&detail)], Vec::new()).unwrap();
    store.keep_tuning(tuning(32, RecordSource::Run, &unhang_gpu::tuning::kernels(), 4e-5));
    drop(store);
    let key = record(64, Verdict::Works).problem.to_string();
    let commands: [&[&str]; 3] = [&["evidence", "list"], &["evidence", "tunings"], &["plan", &key]];
    for columns in [60, 100] {
        for arguments in commands {
            let mut command = Command::cargo_bin("unhang").unwrap();
            let output =
                command.args(arguments).env("UNHANG_HOME", home.path()).env("COLUMNS", columns.to_string()).output();
            let (stdout, _) = text(&output.unwrap());
            assert!(stdout.lines().count() > 3, "{arguments:?}: {stdout}");
            for line in stdout.lines().filter(|line| line.chars().count() > columns) {
                assert!(line.split_whitespace().count() <= 2, "{arguments:?} in {columns} columns: {line:?}\n{stdout}");
            }
        }
    }
}

#[test]
fn what_adds_nothing_creates_no_folder_of_a_mistyped_name() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path().join("unhagn");
    let key = record(64, Verdict::Works).problem.to_string();
    let imported = unhang(&home, &["evidence", "import", "nowhere.jsonl"]);
    assert!(imported.status.code() == Some(2) && !home.exists(), "{:?}", text(&imported));
    let commands: [&[&str]; 7] = [
        &["evidence", "list"],
        &["evidence", "forget", "--all"],
        &["evidence", "tunings"],
        &["evidence", "export", "-"],
        &["plan", &key],
        &["report"],
        &["bench", "--compare"],
    ];
    for arguments in commands {
        let (_, stderr) = text(&unhang(&home, arguments));
        assert!(!home.exists(), "{arguments:?} created it");
        let folder = home.display();
        assert!(
            stderr.contains(&format!("UNHANG_HOME names {folder}, which does not exist")),
            "{arguments:?}: {stderr}"
        );
    }
}
