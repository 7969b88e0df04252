//! Mistyped paths: every command reports them with code 2, and none creates folders from them. Also what every JSON
//! has.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use assert_cmd::Command;
use serde_json::Value;

/// The program in an empty folder, with a separate home there.
fn unhang(place: &Path, arguments: &[&str]) -> std::process::Output {
    let mut command = Command::cargo_bin("unhang").expect("the program is built");
    command.current_dir(place).env_clear().env("HOME", place.join("home")).env("PATH", "/usr/bin:/bin").args(arguments);
    command.output().expect("it runs")
}

fn place() -> tempfile::TempDir {
    let place = tempfile::tempdir().unwrap();
    fs::create_dir(place.path().join("home")).unwrap();
    place
}

/// Code for gfx1030.
const KERNELS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../unhang-emulator/tests/fixtures/kernels.gfx1030.co");
const KEY: &str = "forward:f32:nchw:1x16x64x64:32x3x3:s1x1:p1x1:d1x1:g1";

#[test]
fn a_path_that_is_not_there_is_wrong_usage_everywhere() {
    for arguments in [
        &["doctor", "--root", "nowhere"][..],
        &["doctor", "--python", "nowhere/python"],
        &["doctor", "--self-test", "--python", "nowhere/python"],
        &["doctor", "--python", "/dev/zero"],
        &["doctor", "--env-file", "nowhere"],
        &["explain", "routes", "--root", "nowhere"],
        &["env", "print", "--root", "nowhere"],
        &["env", "install", "--yes", "--root", "nowhere"],
        &["env", "clean", "--yes", "--root", "nowhere"],
        &["env", "uninstall", "--yes", "--root", "nowhere"],
        &["miopen-cache", "list", "--root", "nowhere"],
        &["miopen-cache", "repair", "--yes", "--root", "nowhere"],
        &["plan", KEY, "--root", "nowhere"],
        &["plan", KEY, "--python", "nowhere/python"],
        &["report", "--root", "nowhere"],
        &["report", "--python", "nowhere/python"],
        &["run", "--root", "nowhere", "--", "true"],
        &["probe", "--grid", "--rehearse", "rx5600xt-rocm5.7", "--root", "nowhere"],
        &["probe", "--grid", "--python", "nowhere/python"],
        &["probe", "--rehearse", "rx5600xt-rocm5.7", "--layers", "nowhere.tsv"],
        &["probe", "--layers", "nowhere.tsv"],
        &["kernels", "list", "--layers", "nowhere.tsv"],
        &["kernels", "warm", "--layers", "nowhere.tsv"],
        &["kernels", "warm", "--seen", "--python", "nowhere/python"],
        &["bench", "--tune", "--layers", "nowhere.tsv"],
        &["bench", "--compare", "--root", "nowhere"],
        &["emulate", "nowhere.co"],
        &["evidence", "import", "nowhere.jsonl"],
        &["card", "run", "--card", "nowhere", "--", "true"],
        &["demo", "--part", "torch", "--python", "nowhere/python"],
        &["repair", "--extract", "nowhere", "/etc/passwd"],
        &["repair", "--extract", "nowhere/objects", KERNELS],
        &["report", "--html", "nowhere/page.html"],
        &["doctor", "--bundle", "nowhere/card.tar.gz"],
        &["evidence", "export", "nowhere/findings.jsonl"],
        &["repair", KERNELS, "--output", "nowhere/kernels.co"],
        &["completions", "--man", "nowhere/man1"],
    ] {
        let place = place();
        let output = unhang(place.path(), arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        let wrong = ["/etc/passwd", "/dev/zero"].into_iter().find(|it| arguments.contains(it)).unwrap_or("nowhere");
        assert!(said.contains(wrong), "{arguments:?} does not say what is wrong: {said}");
        assert!(!said.contains(".unhang-"), "{arguments:?} names a file of our own: {said}");
        assert!(!place.path().join("nowhere").exists() && !place.path().join("nowhere.tsv").exists(), "{arguments:?}");
    }
}

/// `UNHANG_ROOT` names a machine as `--root` does.
#[test]
fn a_machine_that_the_variable_names_has_to_be_there() {
    for arguments in [
        &["doctor"][..],
        &["explain", "routes"],
        &["env", "print"],
        &["miopen-cache", "list"],
        &["plan", KEY],
        &["report"],
        &["bench", "--compare"],
        &["run", "--", "true"],
        &["demo", "--part", "machine"],
    ] {
        let place = place();
        let mut command = Command::cargo_bin("unhang").unwrap();
        command
            .current_dir(place.path())
            .env_clear()
            .env("HOME", place.path().join("home"))
            .env("UNHANG_ROOT", "nowhere");
        let output = command.args(arguments).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.contains("nowhere, which does not exist"), "{arguments:?}: {said}");
        assert!(!place.path().join("nowhere").exists(), "{arguments:?}");
    }
}

/// A folder in which nothing can be made is named, and so is one that does not exist.
#[test]
fn what_cannot_be_written_is_named_with_what_to_do() {
    let place = place();
    for arguments in [
        &["completions", "--man", "nowhere/man1"][..],
        &["repair", "--extract", "nowhere/objects", KERNELS],
        &["doctor", "--bundle", "nowhere/card.tar.gz"],
    ] {
        let said = String::from_utf8(unhang(place.path(), arguments).stderr).unwrap();
        assert!(said.contains("the folder nowhere does not exist") && said.contains("hint: "), "{arguments:?}: {said}");
    }
    let output = unhang(place.path(), &["doctor", "--bundle", "/proc/card.tar.gz"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("no file can be made in the folder /proc") && !said.contains(".unhang-"), "{said}");
}

/// The system's words alone do not say what was tried.
#[test]
fn a_full_disk_under_the_output_is_told() {
    let place = place();
    for arguments in [&["card", "list"][..], &["doctor", "--json"], &["audit", KERNELS]] {
        let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_unhang"));
        command.current_dir(place.path()).env_clear().args(arguments).stdout(full);
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.contains("error: cannot print"), "{arguments:?}: {said}");
    }
}

/// Everything is read with a limit, and nothing waits for a writer that may never come.
#[test]
fn inputs_without_an_end_are_refused() {
    let place = place();
    fs::create_dir(place.path().join("kernels")).unwrap();
    for name in ["pipe", "kernels/kernels.json"] {
        let pipe = place.path().join(name);
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0).unwrap();
    }
    for arguments in [
        &["audit", "pipe"][..],
        &["audit", "/dev/zero"],
        &["repair", "pipe", "--output", "copy"],
        &["repair", "/dev/zero", "--extract", "objects"],
        &["emulate", "/dev/zero"],
        &["doctor", "--env-file", "/dev/zero", "--json"],
        &["kernels", "list", "--shipped", "--folder", "kernels"],
        &["evidence", "import", "pipe"],
        &["evidence", "import", "/dev/zero"],
        &["probe", "--rehearse", "rx5600xt-rocm5.7", "--layers", "/dev/zero"],
        &["probe", "--grid", "--rehearse", "/dev/zero"],
        &["kernels", "list", "--layers", "/dev/zero"],
        &["doctor", "--env-file", "/dev/zero"],
    ] {
        let started = Instant::now();
        let output = unhang(place.path(), arguments);
        let said = [output.stdout, output.stderr].map(|it| String::from_utf8_lossy(&it).into_owned()).concat();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.contains("not a plain file") || said.contains("the most that is read"), "{arguments:?}: {said}");
        assert_eq!(said.matches("not a plain file").count().max(1), 1, "{arguments:?} says it twice: {said}");
        assert!(started.elapsed() < Duration::from_secs(30), "{arguments:?}");
    }
}

/// An option that the other half of a command would ignore is rejected, so that nobody reads the wrong table.
#[test]
fn comparing_and_tuning_take_their_own_options_only() {
    let place = place();
    fs::write(place.path().join("one.tsv"), "one 1 1 8 8 1 1 1 1 1 0 0 1 1 1\n").unwrap();
    for (arguments, wrong) in [
        (&["bench", "--compare", "--layers", "one.tsv"][..], "--layers"),
        (&["bench", "--compare", "--dtype", "f16"], "--dtype"),
        (&["bench", "--tune", "--rehearsed"], "--rehearsed"),
        (&["bench", "--tune", "--root", "."], "--root"),
    ] {
        let output = unhang(place.path(), arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.contains("cannot be used with") && said.contains(wrong), "{arguments:?}: {said}");
    }
}

/// Paths, code and commands stay whole, because people copy them.
#[test]
fn lists_and_explanations_keep_to_the_width_of_the_terminal() {
    let hazards = concat!(env!("CARGO_MANIFEST_DIR"), "/../unhang-isa/tests/fixtures/hazards.co");
    let place = place();
    let root = place.path().join("machine");
    fs::create_dir_all(root.join("home/user/.config/miopen")).unwrap();
    fs::write(root.join("environment"), "HOME=/home/user\n").unwrap();
    let records = "16-64-64-3x3-32-64-64-1-1x1-1x1-1x1-0-NCHW-FP32-F=GemmFwdRest:0.12,2359296,miopenConvolutionFwdAlgoGEMM;\
                   ConvDirectNaiveConvFwd:1.9,0,miopenConvolutionFwdAlgoDirect\n\
                   3-32-32-3x3-16-32-32-1-1x1-1x1-1x1-0-NCHW-FP32-F=GemmFwdRest:nan,0,miopenConvolutionFwdAlgoGEMM\n";
    fs::write(root.join("home/user/.config/miopen/gfx1030_18.HIP.2_20_0.ufdb.txt"), records).unwrap();
    for arguments in [
        &["card", "list"][..],
        &["env", "print", "--profile", "rocm5.7", "--explain"],
        &["env", "print", "--profile", "no-spoof", "--shell", "systemd", "--explain"],
        &["audit", hazards, "--kernels", "--explain", "--sites", "1"],
        &["miopen-cache", "list", "--records", "--root", "machine"],
        &["miopen-cache", "verify", "--root", "machine"],
        &["miopen-cache", "repair", "--dry-run", "--root", "machine"],
        &["miopen-cache", "list"],
        &["emulate", KERNELS],
        &["env", "clean", "--dry-run", "--root", "machine"],
        &["run", "--dry-run", "--", "true"],
    ] {
        let mut command = Command::cargo_bin("unhang").unwrap();
        command.current_dir(place.path()).env_clear().env("HOME", place.path().join("home")).env("COLUMNS", "60");
        let text = String::from_utf8(command.args(arguments).output().unwrap().stdout).unwrap();
        assert!(text.lines().count() > 0, "{arguments:?} prints nothing");
        let is_copied = |line: &str| line.starts_with("export ") || line.contains('/') || line.contains("s_clause");
        let is_code = |line: &str| line.starts_with("       ") || line.starts_with("      >");
        for line in text.lines().filter(|line| line.chars().count() > 60) {
            let is_one_word = line.split_whitespace().filter(|word| *word != "#").count() <= 2;
            assert!(is_copied(line) || is_code(line) || is_one_word, "{arguments:?}: {line}");
        }
    }
}

/// A terminal of 60 columns, provided by `script`, shows whole words. A program that reads the message gets one line.
#[test]
fn errors_are_wrapped_on_a_terminal_and_nowhere_else() {
    let place = place();
    let wrong = "miopen-cache repair --yes --root a-folder-of-a-machine-that-nobody-made-here";
    let piped = String::from_utf8(unhang(place.path(), &wrong.split(' ').collect::<Vec<_>>()).stderr).unwrap();
    assert!(piped.lines().next().is_some_and(|line| line.len() > 60), "{piped}");
    let mut command = Command::new("script");
    command.current_dir(place.path()).env_clear().env("PATH", "/usr/bin:/bin").env("COLUMNS", "60");
    command.args(["-qec", &format!("{} {wrong}", env!("CARGO_BIN_EXE_unhang")), "/dev/null"]);
    let Ok(drawn) = command.output() else { return println!("skipped: no script(1) here") };
    let shown = String::from_utf8(drawn.stdout).unwrap().replace('\r', "");
    let plain = shown.replace("\u{1b}[31m", "").replace("\u{1b}[36m", "").replace("\u{1b}[0m", "");
    assert!(plain.lines().all(|line| line.chars().count() <= 60), "{plain}");
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(words(&plain), words(&piped));
}

#[test]
fn every_json_has_a_schema() {
    let place = place();
    for arguments in [
        &["doctor", "--json"][..],
        &["explain", "--json"],
        &["explain", "--json", "routes"],
        &["env", "print", "--json"],
        &["env", "clean", "--dry-run", "--json"],
        &["miopen-cache", "list", "--json"],
        &["plan", KEY, "--json"],
        &["report", "--json"],
        &["evidence", "list", "--json"],
        &["run", "--dry-run", "--json", "--", "true"],
        &["card", "list", "--json"],
        &["audit", "--json", KERNELS],
        &["repair", "--json", KERNELS, "--output", "safe.co"],
        &["emulate", "--json", KERNELS],
        &["evidence", "tunings", "--json"],
        &["evidence", "export", "--json", "findings.jsonl"],
        &["evidence", "import", "--json", "findings.jsonl"],
        &["evidence", "forget", "--all", "--json"],
        &["miopen-cache", "verify", "--json"],
        &["miopen-cache", "repair", "--yes", "--json"],
        &["bench", "--compare", "--json"],
        &["probe", "--layers", "one.tsv", "--rehearse", "rx5600xt-rocm5.7", "--json"],
        &["env", "install", "--dry-run", "--json"],
        &["env", "uninstall", "--dry-run", "--json"],
    ] {
        fs::write(place.path().join("one.tsv"), "one 1 1 8 8 1 1 1 1 1 0 0 1 1 1\n").unwrap();
        let output = unhang(place.path(), arguments);
        let value: Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|_| panic!("{arguments:?}: {}", String::from_utf8_lossy(&output.stderr)));
        assert!(value["schema"].is_number(), "{arguments:?}: {value}");
    }
}

/// `--rehearse` lets something play a card. Another option requests what rehearsals found.
#[test]
fn to_rehearse_has_one_meaning() {
    let place = place();
    for (command, is_shown) in
        [("probe", true), ("run", true), ("plan", false), ("report", false), ("bench", false), ("doctor", false)]
    {
        let output = unhang(place.path(), &[command, "--help"]);
        let help = String::from_utf8(output.stdout).unwrap();
        assert_eq!(help.contains("--rehearse ") || help.contains("--rehearse\n"), is_shown, "{help}");
        assert_eq!(help.contains("--rehearsed"), ["plan", "report", "bench"].contains(&command), "{help}");
        // No other name has either meaning, not even one that help does not show.
        let others = if is_shown { &["--rehearsal", "--rehearsed"][..] } else { &["--rehearsal", "--rehearse"] };
        // `unhang run` takes an option that it does not know for the program.
        for name in others.iter().filter(|_| command != "run") {
            let output = unhang(place.path(), &[command, name]);
            let said = String::from_utf8(output.stderr).unwrap();
            assert!(said.contains(&format!("unexpected argument '{name}'")), "{command} {name}: {said}");
        }
    }
}

/// A Python whose torch sees no GPU is asked once, and nothing more is tried with it.
#[test]
fn a_self_test_without_a_gpu_takes_seconds() {
    use std::os::unix::fs::PermissionsExt;
    let place = place();
    let python = place.path().join("python");
    let script =
        "#!/bin/sh\necho asked >> \"$HOME/asked\"\nsleep 1\ncase \"$*\" in *torch*) exit 4 ;; esac\nsleep 60\n";
    fs::write(&python, script).unwrap();
    fs::set_permissions(&python, fs::Permissions::from_mode(0o755)).unwrap();
    let started = Instant::now();
    let output = unhang(place.path(), &["doctor", "--self-test", "--json", "--python", python.to_str().unwrap()]);
    assert!(started.elapsed() < Duration::from_secs(60), "{:?}", started.elapsed());
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    for tried in report["self_test"].as_array().unwrap().iter().filter(|it| it["engine"] != "cpu") {
        assert_eq!(tried["verdict"], "unsupported", "{tried}");
        assert!(tried["detail"].as_str().unwrap().contains("sees no GPU"), "{tried}");
    }
    assert_eq!(fs::read_to_string(place.path().join("home/asked")).unwrap().lines().count(), 1);
}
