//! Our commands on AMD's own HIP runtime (Debian 12's 5.2.3) and the emulated RX 5600 XT, as the owner of a card runs
//! them. No torch that is available here reaches an AMD card, so these are the parts that need none.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};

const RUNTIME: &str = "/usr/lib/x86_64-linux-gnu/libamdhip64.so.5";
/// One layer that the emulator computes in moments.
const LAYER: &str = "small 1 8 6 6 8 3 3 1 1 1 1 1 1 1\n";

/// A separate home, and the one layer in it.
struct Home(tempfile::TempDir);

impl Home {
    /// `None` if the runtime is not installed.
    fn new() -> Option<Home> {
        if !Path::new(RUNTIME).exists() {
            println!("skipped: {RUNTIME} is not installed");
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("layers.tsv"), LAYER).unwrap();
        Some(Home(folder))
    }

    fn layers(&self) -> String {
        self.0.path().join("layers.tsv").display().to_string()
    }

    /// Runs this program on the card.
    fn on_the_card(&self, variables: &[(&str, &str)], words: &[&str]) -> Output {
        let program = env!("CARGO_BIN_EXE_unhang");
        let mut command = Command::new("timeout");
        command.args(["-k", "5", "900", program, "card", "run", "--card", "rx5600xt", "--"]);
        command.arg(program).args(words).env("UNHANG_CARD_LIBRARY", library("libunhang_card.so"));
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("XDG_") || name.starts_with("HSA_")) {
            command.env_remove(name);
        }
        command.env("HOME", self.0.path()).env("UNHANG_HOME", self.0.path().join("home"));
        command.envs(variables.iter().copied()).output().unwrap()
    }

    fn json(&self, words: &[&str]) -> Value {
        let ran = self.on_the_card(&[], words);
        let said = String::from_utf8_lossy(&ran.stderr);
        assert!(said.contains(" 0 hazards, 0 faults"), "{said}");
        serde_json::from_slice(&ran.stdout).unwrap_or_else(|error| panic!("{error}\n{said}"))
    }
}

fn library(name: &str) -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let folder = program.parent().unwrap();
    let places = [folder, folder.parent().unwrap()].map(|folder| folder.join(name));
    places.into_iter().find(|path| path.exists()).unwrap_or_else(|| panic!("{name} is built with the tests"))
}

#[test]
fn the_self_test_tries_our_kernels_without_torch() {
    let Some(home) = Home::new() else { return };
    let report = home.json(&["doctor", "--self-test", "--json", "--python", "/bin/false"]);
    let tried = |engine: &str| {
        let all = report["self_test"].as_array().unwrap();
        all.iter().find(|it| it["engine"] == engine).unwrap_or_else(|| panic!("{engine}: {report}")).clone()
    };
    assert_eq!(tried("cpu")["verdict"], "works");
    let ours = tried("jit");
    assert_eq!(ours["verdict"], "works", "{ours}");
    let detail = ours["detail"].as_str().unwrap();
    assert!(detail.starts_with("without torch: largest relative error"), "{detail}");
    assert!(detail.contains("RX 5600 XT (emulated)"), "{detail}");
    assert_eq!(tried("miopen")["verdict"], "unsupported");
}

#[test]
fn the_probe_tries_kernels_that_were_warmed_without_torch_and_times_them() {
    let Some(home) = Home::new() else { return };
    let layers = home.layers();
    let warm = home.on_the_card(&[], &["kernels", "warm", "--layers", &layers, "--json"]);
    let warm: Value = serde_json::from_slice(&warm.stdout).unwrap();
    let objects = || std::fs::read_dir(warm["folder"].as_str().unwrap()).unwrap().count();
    let warmed = objects();
    assert!(warmed > 0 && warm["kernels"].as_u64().unwrap() >= warmed as u64, "{warm}");
    let words = ["probe", "--layers", &layers, "--engines", "jit", "--python", "/bin/false", "--json"];
    let report = home.json(&words);
    let records = report["records"].as_array().unwrap();
    assert_eq!(records.len(), 3, "{report}");
    for record in records {
        assert_eq!((&record["verdict"], &record["rehearsal"]), (&json!("works"), &json!(true)), "{record}");
        // An emulated card has no meaningful times, so this only checks that its clock runs.
        let seconds = record["seconds"].as_f64().unwrap();
        assert!((1e-5..100.0).contains(&seconds), "{record}");
    }
    assert_eq!(objects(), warmed, "nothing had to be compiled");
}

#[test]
fn what_the_emulated_card_did_is_a_rehearsal_and_plans_and_reports_on_it_say_so() {
    let Some(home) = Home::new() else { return };
    let layers = home.layers();
    let probe = ["probe", "--layers", &layers, "--directions", "forward", "--engines", "jit", "--python", "/bin/false"];
    let probed = home.on_the_card(&[], &probe);
    let (text, said) = (String::from_utf8_lossy(&probed.stdout), String::from_utf8_lossy(&probed.stderr));
    assert!(said.contains("are kept as a rehearsal and never count for a real card"), "{said}");
    assert!(text.contains("inside the same `unhang card run`") && text.contains("--html hang-map.html"), "{text}");
    let kept = home.on_the_card(&[], &["evidence", "list", "--json"]);
    let kept = String::from_utf8(kept.stdout).unwrap();
    assert!(kept.matches("source\"").count() == 1 && kept.contains(r#""source": "rehearsal""#), "{kept}");
    let key = text.split("unhang report --machine ").nth(1).and_then(|it| it.split_whitespace().next()).unwrap();
    let report = home.on_the_card(&[], &["report", "--machine", key]);
    let report = String::from_utf8(report.stdout).unwrap();
    assert!(report.starts_with("REHEARSAL: ") && report.contains("jit") && report.contains(key), "{report}");
    let nobody = home.on_the_card(&[], &["report", "--machine", "0123456789abcdef"]);
    let said = String::from_utf8_lossy(&nobody.stderr);
    assert!(nobody.status.code() == Some(2) && said.contains("nothing is kept under 0123456789abcdef"), "{said}");
    for words in [&["plan", "1x8x6x6", "8x3x3"][..], &["report"]] {
        let ran = home.on_the_card(&[], words);
        let output = [ran.stdout, ran.stderr].concat();
        // One line, however the terminal breaks it.
        let words: Vec<&str> = std::str::from_utf8(&output).unwrap().split_whitespace().collect();
        let output = words.join(" ");
        assert!(
            output.contains("what follows was seen on an emulated card; it counts only inside `unhang card run`"),
            "{output}"
        );
        assert!(output.contains("1 verdict kept under"), "without torch it has another key: {output}");
    }
}

#[test]
fn a_probe_whose_every_attempt_is_an_error_does_not_say_that_all_is_well() {
    let Some(home) = Home::new() else { return };
    let layers = home.layers();
    let words = ["probe", "--layers", &layers, "--engines", "jit", "--python", "/bin/false", "--json"];
    // Without a compiler, and without kernels from a package.
    let ran = home.on_the_card(&[("UNHANG_COMPILE", "0")], &words);
    let report: Value = serde_json::from_slice(&ran.stdout).unwrap();
    assert_eq!(report["summary"]["error"], 3, "{report}");
    assert_eq!(ran.status.code(), Some(3), "{}", String::from_utf8_lossy(&ran.stderr));
    // Nor does a run that finds only these errors in the store, and tries nothing.
    let ran = home.on_the_card(&[("UNHANG_COMPILE", "0")], &words);
    let report: Value = serde_json::from_slice(&ran.stdout).unwrap();
    assert!(report["records"].as_array().unwrap().iter().all(|record| record["earlier"] == true), "{report}");
    assert_eq!(ran.status.code(), Some(3), "{}", String::from_utf8_lossy(&ran.stderr));
}

#[test]
fn a_layer_is_tuned_and_the_fastest_kernels_are_kept() {
    let Some(home) = Home::new() else { return };
    let layers = home.layers();
    let tune = ["bench", "--tune", "--layers", &layers, "--candidates", "2", "--at-least", "0", "--json"];
    let report = home.json(&tune);
    assert_eq!(report["outcomes"].as_array().unwrap().len(), 3, "{report}");
    assert!(report["device"].as_str().unwrap().contains("(emulated)"), "{report}");
    assert_eq!(report["failures"], Value::Array(Vec::new()), "{report}");
    for outcome in report["outcomes"].as_array().unwrap() {
        let best = outcome["best_seconds"].as_f64().unwrap();
        assert!((1e-5..100.0).contains(&best), "{outcome}");
    }
    let kept = home.on_the_card(&[], &["evidence", "tunings", "--json"]);
    let kept = String::from_utf8(kept.stdout).unwrap();
    assert!(kept.contains("backward-weights:f32:nchw:1x8x6x6:8x3x3"), "{kept}");
    assert!(kept.contains(r#""source": "rehearsal""#) && !kept.contains(r#""source": "probe""#), "{kept}");
}
