//! `unhang probe` as a user runs it: rehearsals, since nobody here has the card, and its messages if nothing can be
//! tried.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use unhang_conv::Problem;
use unhang_engine::EngineName;
use unhang_probe::rehearsal::{Behaviour, Table};

fn unhang(home: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_unhang"));
    command.args(arguments).env("UNHANG_HOME", home).env_remove("UNHANG_ROOT").stdin(Stdio::null());
    command
}

fn run(home: &Path, arguments: &[&str]) -> Output {
    unhang(home, arguments).output().unwrap()
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
        panic!("{error}: {} {}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
    })
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A described machine has its own evidence; without its name the report would have nothing to show.
#[test]
fn what_a_probe_advises_to_type_shows_what_it_found() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    let layers = home.join("one.tsv");
    std::fs::write(&layers, "one 1 16 48 48 32 3 3 1 1 1 1 1 1 1\n").unwrap();
    let machine = concat!(env!("CARGO_MANIFEST_DIR"), "/../unhang-machine/fixtures/rx5600xt-rocm5.7");
    let probe = ["probe", "--rehearse", "rx5600xt-rocm5.7", "--layers", layers.to_str().unwrap(), "--root", machine];
    let said = text(&run(home, &probe).stdout);
    let is_advised = |line: &str| line.strip_prefix("       unhang ").map(str::to_owned);
    let advised = said.lines().find_map(is_advised).unwrap_or_else(|| panic!("{said}"));
    let report = text(&run(home, &advised.split_whitespace().collect::<Vec<_>>()).stdout);
    assert!(report.contains("16→32") && report.contains("hangs"), "{advised}: {report}");
    let nothing = text(&run(home, &["report", "--rehearsed"]).stdout);
    assert!(nothing.contains("unhang probe --grid --rehearse rx5600xt-rocm5.7"), "{nothing}");
}

#[test]
fn the_grid_of_the_reports_is_reproduced() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    let began = Instant::now();
    let output = run(home, &["probe", "--grid", "--rehearse", "rx5600xt-rocm5.7", "--json"]);
    // Seventeen hangs of a second over eight workers and twenty seconds; the rest is for a busy machine.
    assert!(began.elapsed() < Duration::from_secs(150), "took {:?}", began.elapsed());
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("REHEARSAL"));
    let found = json(&output);
    assert_eq!(found["rehearsal"], "rx5600xt-rocm5.7");
    // Only the test reads the table; the prober never does.
    let table = Table::parse(Table::named("rx5600xt-rocm5.7").unwrap()).unwrap();
    let records = found["records"].as_array().unwrap();
    assert_eq!(records.len(), 98);
    for record in records {
        let problem: Problem = record["problem"].as_str().unwrap().parse().unwrap();
        let engine: EngineName = record["engine"].as_str().unwrap().parse().unwrap();
        let expected = match table.line(&problem, engine, "").unwrap().behaviour {
            Behaviour::Works => ("works", None),
            Behaviour::HangFind => ("hangs", Some("find")),
            other => panic!("{other}"),
        };
        assert_eq!((record["verdict"].as_str().unwrap(), record["stage"].as_str()), expected, "{record}");
        assert_eq!(record["rehearsal"], true);
    }
    assert_eq!((&found["summary"]["hangs"], &found["summary"]["works"]), (&17.into(), &81.into()));

    // Started again, it has nothing left to do, and prints the same.
    let again = json(&run(home, &["probe", "--grid", "--rehearse", "rx5600xt-rocm5.7", "--json"]));
    assert_eq!((&again["summary"]["tried"], &again["summary"]["known_before"]), (&0.into(), &98.into()));
    assert_eq!(again["summary"]["hangs"], 17);
    // Another card has separate evidence.
    let (_folder, _, layers) = rehearsal("", 4);
    let profile = ["--rehearse", "rx5600xt-rocm5.2", "--engines", "miopen", "--profiles", "implicit-gemm", "--json"];
    let other = json(&run(home, &[&["probe", "--layers", &layers], &profile[..]].concat()));
    assert_eq!((&other["summary"]["known_before"], &other["summary"]["works"]), (&0.into(), &12.into()));

    // Rehearsals are reported as such, and never together with observations.
    let report = text(&run(home, &["report", "--rehearsed"]).stdout);
    // The last card played; within one second, either may count as the last.
    assert!(report.contains("REHEARSAL") && report.contains("rehearsal rx5600xt-rocm5."), "{report}");
    let report = text(&run(home, &["report"]).stdout);
    assert!(report.contains("nothing is known yet"), "{report}");
    let human = text(&run(home, &["probe", "--grid", "--rehearse", "rx5600xt-rocm5.7"]).stdout);
    assert!(human.contains("REHEARSAL") && human.contains("98 known from before"), "{human}");
}

/// A folder with a table and its layers.
fn rehearsal(table: &str, layers: usize) -> (tempfile::TempDir, String, String) {
    let folder = tempfile::tempdir().unwrap();
    let (table_path, layers_path) = (folder.path().join("card.tsv"), folder.path().join("layers.tsv"));
    std::fs::write(&table_path, table).unwrap();
    let layer = |index: usize| {
        let (channels, height) = (1 + index / 50, 4 + index % 50);
        format!("layer{index}\t1\t{channels}\t{height}\t4\t2\t1\t1\t1\t1\t0\t0\t1\t1\t1\n")
    };
    std::fs::write(&layers_path, (0..layers).map(layer).collect::<String>()).unwrap();
    let name = |path: std::path::PathBuf| path.display().to_string();
    (folder, name(table_path), name(layers_path))
}

/// A rehearsed probe of MIOpen's forwards.
fn probe_of_forwards<'a, const N: usize>(layers: &'a str, table: &'a str, more: [&'a str; N]) -> Vec<&'a str> {
    let probe = ["probe", "--layers", layers, "--rehearse", table, "--engines", "miopen", "--directions", "forward"];
    [&probe, &more[..]].concat()
}

#[test]
fn many_attempts_take_little_time() {
    // In memory where there is such a folder, and with long deadlines: this is about our work, not about the disk.
    let home = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let (_folder, table, layers) = rehearsal("*\t*\t*->*\t*\tworks\tmade up\n", 1000);
    let what = ["probe", "--layers", &layers, "--rehearse", &table, "--engines", "miopen", "--json"];
    let arguments = [&what[..], &["--deadline-compile", "60s", "--deadline-run", "60s"]].concat();
    let output = run(home.path(), &arguments);
    assert_eq!(output.status.code(), Some(0));
    let summary = &json(&output)["summary"];
    assert_eq!((&summary["works"], &summary["not_written"]), (&3000.into(), &0.into()));
    let rate = 3000.0 / summary["seconds"].as_f64().unwrap();
    println!("{rate:.0} verdicts a second");
    // The goal is 500; a busy machine must not fail the suite.
    assert!(rate > 10.0, "{rate:.0} verdicts a second");
}

#[test]
fn an_interrupted_probe_keeps_what_it_found() {
    let home = tempfile::tempdir().unwrap();
    let (_folder, table, layers) = rehearsal("*\t*\t*->*\t>30\thang-run\tmade up\n*\t*\t*->*\t*\tworks\tmade up\n", 50);
    let arguments = probe_of_forwards(&layers, &table, ["--json", "--deadline-run", "10m"]);
    let child = unhang(home.path(), &arguments).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let database = home.path().join("evidence.db");
    let works = || -> Option<i64> {
        let file = rusqlite::Connection::open(&database).ok()?;
        file.query_row("SELECT count(*) FROM records WHERE verdict = 'works'", [], |row| row.get(0)).ok()
    };
    let began = Instant::now();
    while works().unwrap_or(0) < 27 {
        assert!(began.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(30));
    }
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    assert!(began.elapsed() < Duration::from_secs(90));
    assert_eq!(output.status.code(), Some(130));
    let found = json(&output);
    let summary = &found["summary"];
    assert_eq!(
        (&summary["ended"], &summary["works"], &summary["not_tried"]),
        (&"interrupted".into(), &27.into(), &23.into())
    );
    // The same command continues, here with a budget of no time at all.
    let mut more = arguments;
    more.extend(["--budget", "0s"]);
    let output = run(home.path(), &more);
    assert_eq!(output.status.code(), Some(3));
    let summary = &json(&output)["summary"];
    assert_eq!(
        (&summary["ended"], &summary["known_before"], &summary["suspects"]),
        (&"budget".into(), &27.into(), &0.into())
    );
}

#[test]
fn a_lost_card_ends_the_probe_and_says_what_to_do() {
    let home = tempfile::tempdir().unwrap();
    let (_folder, table, layers) = rehearsal("*\t*\t*->*\t9\tlost\tmade up\n*\t*\t*->*\t*\tworks\tmade up\n", 20);
    let arguments = probe_of_forwards(&layers, &table, ["--workers", "1"]);
    let output = run(home.path(), &arguments);
    assert_eq!(output.status.code(), Some(4), "{}", text(&output.stderr));
    let said = text(&output.stdout);
    for expected in ["The GPU is lost", "Restart the machine", "hangs miopen", "not tried: 14"] {
        assert!(said.contains(expected), "{said}");
    }
}

/// Commands and keys stay whole, because people copy them.
#[test]
fn text_keeps_to_the_width_of_the_terminal() {
    let behaviours = "*\t*\t*->*\t9\tlost\tmade up\n*\t*\t*->*\t5\thang-find\tmade up\n*\t*\t*->*\t*\tworks\tmade up\n";
    let (_folder, table, layers) = rehearsal(behaviours, 20);
    for (columns, more) in [(60, &[][..]), (80, &[]), (60, &["--budget", "0s"]), (60, &["--engines", "miopen,cpu"])] {
        let home = tempfile::tempdir().unwrap();
        let mut command = assert_cmd::Command::cargo_bin("unhang").unwrap();
        command.args(["probe", "--layers", &layers, "--rehearse", &table, "--directions", "forward"]).args(more);
        command.args(["--workers", "1"]).env("UNHANG_HOME", home.path()).env("COLUMNS", columns.to_string());
        let said = text(&command.output().unwrap().stdout);
        assert!(said.contains("unsupported") && said.contains("median") && said.contains("not tried: "), "{said}");
        for line in said.lines().filter(|line| !line.starts_with("       unhang ")) {
            let is_one_word = line.split_whitespace().count() == 1;
            assert!(line.chars().count() <= columns || is_one_word, "{columns} columns: {line}\n{said}");
        }
    }
}

#[test]
fn what_cannot_be_tried_is_said_with_what_to_do() {
    let home = tempfile::tempdir().unwrap();
    let (_folder, table, layers) = rehearsal("miopen\t*\t*->*\t*\texplodes\tmade up\n", 1);
    for (arguments, expected) in [
        (vec!["probe", "--grid", "--rehearse", &table], "\"explodes\" is not a behaviour"),
        (vec!["probe", "--grid", "--rehearse", "rx580"], "rx5600xt-rocm5.2, rx5600xt-rocm5.7"),
        (vec!["probe", "--rehearse", "rx5600xt-rocm5.7"], "--layers FILE, --model MODULE:FACTORY"),
        (
            vec!["probe", "--grid", "--rehearse", "rx5600xt-rocm5.7", "--profiles", "fast"],
            "there is no profile \"fast\"",
        ),
        (vec!["probe", "--grid", "--root", "/"], "describes a machine"),
        (vec!["probe", "--layers", &table, "--rehearse", "rx5600xt-rocm5.7"], "cannot read the layers"),
        (vec!["probe", "--layers", &layers, "--python", "/no/such/python"], "there is no Python at"),
        (vec!["probe", "--grid", "--layers", &layers], "cannot be used with"),
        (vec!["probe", "--grid", "--budget", "soon"], "expected"),
        (vec!["probe", "--grid", "--engines", "tiled"], "cannot be tried by itself"),
    ] {
        let output = run(home.path(), &arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", text(&output.stderr));
        assert!(text(&output.stderr).contains(expected), "{arguments:?}: {}", text(&output.stderr));
    }
}

/// Who asks for one engine that needs no torch reads why that one cannot be tried, and nothing about torch.
#[test]
fn an_engine_that_needs_no_torch_gives_its_own_reason() {
    let home = tempfile::tempdir().unwrap();
    for (engine, expected) in [("miopen", "MIOpen cannot be tried here"), ("jit", "our kernels cannot be tried here")] {
        let mut command = unhang(home.path(), &["probe", "--grid", "--engines", engine, "--python", "/bin/false"]);
        command.env("CUDA_VISIBLE_DEVICES", "-1").env("HIP_VISIBLE_DEVICES", "-1");
        let output = command.output().unwrap();
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.starts_with(&format!("error: {expected}\n")) && !said.contains("--tune"), "{said}");
        let because = said.lines().find_map(|line| line.strip_prefix("  because: ")).unwrap_or_default();
        assert!(!because.trim().is_empty() && !because.contains("hint: "), "{said}");
    }
}

#[test]
fn what_was_found_is_compared_by_size_engine_and_version() {
    use unhang_engine::Verdict;
    use unhang_evidence::{Record, RecordSource, Store};
    let home = tempfile::tempdir().unwrap();
    let root = tempfile::tempdir().unwrap();
    let root = root.path().to_str().unwrap();
    let compare = |more: &[&str]| run(home.path(), &[&["bench", "--compare", "--root", root], more].concat());
    let nothing = compare(&[]);
    assert_eq!(nothing.status.code(), Some(3));
    assert!(text(&nothing.stderr).contains("unhang probe"), "it says how to find out");
    let machine = json(&compare(&["--json"]))["machine"]["fingerprint"].as_str().unwrap().to_owned();
    let problem: Problem = "forward:f32:nchw:1x16x64x64:32x3x3:s1x1:p1x1:d1x1:g1".parse().unwrap();
    let record = |engine, variant: &str, verdict, source| {
        Record::new(problem.clone(), engine, &machine, verdict, source).with_variant(variant)
    };
    let elsewhere = record(EngineName::Miopen, "", Verdict::Hangs, RecordSource::Import);
    let store = Store::open(home.path());
    let records = vec![
        record(EngineName::Miopen, "winograd", Verdict::Works, RecordSource::Probe).with_seconds(0.002),
        record(EngineName::Miopen, "gemm", Verdict::Hangs, RecordSource::Probe),
        record(EngineName::Aten, "", Verdict::Works, RecordSource::Probe).with_seconds(0.004),
        Record {
            machine: "feedbeef00000000".to_owned(),
            ..elsewhere.with_detail("no answer; torch 2.2.2+rocm5.7 hip5.7")
        },
    ];
    store.import(records, Vec::new()).unwrap();
    drop(store);
    let said = text(&compare(&[]).stdout);
    for expected in ["64×64 16→32 3×3", "*2.00 ms", "4.00 ms", "miopen/gemm", "hangs", "2.2.2+rocm5.7"] {
        assert!(said.contains(expected), "{expected} is not in {said}");
    }
    let found = json(&compare(&["--json"]));
    let cells = found["rows"][0]["cells"].as_array().unwrap();
    assert_eq!(cells.len(), 4);
    let fastest: Vec<_> =
        cells.iter().filter(|cell| cell["fastest_here"] == true).map(|cell| &cell["variant"]).collect();
    assert_eq!(fastest, ["winograd"]);
    assert!(cells.iter().any(|cell| cell["elsewhere"] == "2.2.2+rocm5.7" && cell["verdict"] == "hangs"));
}
