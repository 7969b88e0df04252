//! `unhang evidence`, through the program.

use std::fs;
use std::path::Path;
use std::process::Output;

use assert_cmd::Command;
use serde_json::Value;
use unhang_engine::{EngineName, Verdict};
use unhang_evidence::{Filter, Record, Source, Store};

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
    Record::new(problem, EngineName::Miopen, "4f1c", verdict, Source::Probe).with_detail(detail)
}

fn filled(home: &Path) {
    let store = Store::open(home);
    assert_eq!(
        store.record_all(vec![record(32, Verdict::Works).with_seconds(2e-4), record(64, Verdict::Hangs)]),
        Some(2)
    );
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
    // What came from others does not go out again under our name.
    let again =
        json(&unhang(other.path(), &["evidence", "export", file.with_extension("2").to_str().unwrap(), "--json"]));
    assert_eq!((&again["written"], &again["left_out"]), (&0.into(), &2.into()));
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
    assert!(stderr.contains("nothing of") && stderr.contains("line 3: input height is 0"), "{stderr}");
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
