//! `docs/silicon.md` and `docs/with-a-card.md`: every row is complete, and every test and command that they name
//! exists.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const VERDICTS: [&str; 3] = ["agrees", "disagrees", "cannot tell"];
/// The columns of the table; the second last is the verdict.
const COLUMNS: usize = 8;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The cells of the table whose first heading is `row`.
fn rows(page: &str) -> Vec<Vec<String>> {
    let table = page.lines().skip_while(|line| !line.starts_with("| row |")).skip(2);
    let lines = table.take_while(|line| line.starts_with('|'));
    lines.map(|line| line.trim_matches('|').split(" | ").map(|cell| cell.trim().to_owned()).collect()).collect()
}

/// The texts between backticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

fn has_date(text: &str) -> bool {
    let digits = |part: &str, count| part.len() == count && part.bytes().all(|byte| byte.is_ascii_digit());
    text.contains("undated")
        || text.split([' ', ',', ';']).any(|word| {
            let parts: Vec<&str> = word.split('-').collect();
            digits(parts[0], 4) && parts[1..].iter().all(|part| digits(part, 2)) && parts[0].starts_with("20")
        })
}

/// A test as `file::function`.
fn assert_test_exists(name: &str) {
    let (file, function) = name.split_once("::").expect("file::function");
    let text = read(file);
    let is_there = [format!("fn {function}("), format!("def {function}(")].iter().any(|it| text.contains(it));
    assert!(is_there, "{file} has no test {function}");
}

/// A step of `tools/test-rocm`, named by `--only`.
fn assert_step_exists(command: &str) {
    let step = command.split('"').nth(1).unwrap_or_else(|| panic!("{command}: --only \"STEP\" is missing"));
    assert!(read("tools/test-rocm").contains(step), "tools/test-rocm has no step {step:?}");
}

/// The output of a subcommand's `--help`; `None` if there is no such subcommand.
fn help(subcommand: &[&str]) -> Option<String> {
    let mut command = assert_cmd::Command::cargo_bin("unhang").unwrap();
    let output = command.args(subcommand).arg("--help").output().unwrap();
    output.status.success().then(|| String::from_utf8(output.stdout).unwrap())
}

/// A command line of `unhang`: its subcommand exists and knows each option.
fn assert_command_exists(line: &str, known: &mut BTreeMap<String, String>) {
    let words: Vec<&str> = line.split_whitespace().skip_while(|word| *word != "unhang").skip(1).collect();
    // `unhang run --` starts another command.
    let end = words.iter().position(|word| *word == "--").unwrap_or(words.len());
    let nested = words[..end].first().is_some_and(|word| ["kernels", "evidence", "card"].contains(word));
    let subcommand = &words[..if nested { 2 } else { 1 }];
    let text = known.entry(subcommand.join(" ")).or_insert_with(|| {
        help(subcommand).unwrap_or_else(|| panic!("`{line}`: there is no `unhang {}`", subcommand.join(" ")))
    });
    for option in words[..end].iter().filter(|word| word.starts_with("--")) {
        assert!(text.contains(option), "`{line}`: `unhang {}` has no {option}", subcommand.join(" "));
    }
    for file in words[..end].iter().filter(|word| word.starts_with("crates/")) {
        assert!(root().join(file).exists(), "`{line}`: there is no {file}");
    }
    if end < words.len() && words.get(end + 1) == Some(&"unhang") {
        assert_command_exists(&words[end + 1..].join(" "), known);
    }
}

#[test]
fn every_row_is_whole_and_what_it_names_exists() {
    let page = read("docs/silicon.md");
    let rows = rows(&page);
    assert!(rows.len() >= 20, "{} rows", rows.len());
    let mut known = BTreeMap::new();
    let mut names = BTreeSet::new();
    for row in &rows {
        let name = &row[0];
        assert_eq!(row.len(), COLUMNS, "{name}: {row:?}");
        assert!(row.iter().all(|cell| !cell.is_empty()), "{name} has an empty cell");
        assert!(names.insert(name), "{name} is there twice");
        assert!(has_date(&row[1]), "{name} has no date: {}", row[1]);
        let (says, verdict, shown_by) = (&row[5], row[6].as_str(), &row[7]);
        assert!(VERDICTS.contains(&verdict), "{name}: {verdict:?} is no verdict");
        assert!(verdict != "disagrees" || says.contains("Reason: "), "{name} disagrees without a reason");
        assert!(verdict != "agrees" || quoted(shown_by).next().is_some(), "{name} agrees, and nothing shows it");
        assert!(shown_by == "—" || shown_by.starts_with('`'), "{name}: {shown_by}");
        for item in quoted(shown_by) {
            if item.starts_with("unhang ") {
                assert_command_exists(item, &mut known);
            } else if item.starts_with("tools/test-rocm ") {
                assert_step_exists(item);
            } else {
                assert_test_exists(item);
            }
        }
    }
    for verdict in VERDICTS {
        assert!(rows.iter().any(|row| row[6] == verdict), "no row {verdict}");
    }
}

#[test]
fn a_row_that_is_not_whole_is_noticed() {
    let row = |text: &str| rows(&format!("| row |\n|---|\n{text}\n"));
    assert_eq!(row("| a | b, 2024-01-02 | c |")[0].len(), 3);
    assert!(has_date("x/y issue 1, 2024-01-02") && has_date("reports, 2025-11") && has_date("a file, undated"));
    assert!(!has_date("x/y issue 2024012") && !has_date("x/y issue 12"));
    let unknown =
        std::panic::catch_unwind(|| assert_command_exists("unhang audit --no-such-option", &mut BTreeMap::new()));
    assert!(unknown.is_err());
    assert!(std::panic::catch_unwind(|| assert_command_exists("unhang nothing", &mut BTreeMap::new())).is_err());
    assert!(std::panic::catch_unwind(|| assert_test_exists("crates/unhang/tests/silicon.rs::no_such_test")).is_err());
    assert!(std::panic::catch_unwind(|| assert_step_exists("tools/test-rocm --only \"no such step\"")).is_err());
}

#[test]
fn the_ten_commands_for_owners_exist() {
    let page = read("docs/with-a-card.md");
    let lines = page.lines().filter(|line| line.starts_with("| ") && line.as_bytes()[2].is_ascii_digit());
    let mut known = BTreeMap::new();
    let mut count = 0;
    for line in lines {
        count += 1;
        assert!(line.starts_with(&format!("| {count} | `")), "{line}");
        let command = quoted(line).next().unwrap().replace("\\|", "|");
        assert!(command.contains("unhang "), "{command}");
        assert_command_exists(&command, &mut known);
    }
    assert_eq!(count, 10);
}

/// `debian/tests/card` on a described machine.
fn card_test(machine: &str) -> (Option<i32>, String) {
    let output = Command::new(root().join("debian/tests/card"))
        .arg("--list")
        .env("UNHANG", assert_cmd::cargo::cargo_bin("unhang"))
        .env("UNHANG_ROOT", root().join("crates/unhang-machine/fixtures").join(machine))
        .env("AUTOPKGTEST_TMP", std::env::temp_dir())
        .output()
        .unwrap();
    (output.status.code(), String::from_utf8(output.stdout).unwrap())
}

#[test]
fn the_test_for_cards_is_skipped_without_one() {
    for machine in ["no-gpu", "nvidia", "rx6800", "navi10-usb-only"] {
        let (code, output) = card_test(machine);
        assert_eq!((code, output.trim()), (Some(77), "SKIP: no RDNA1 card is here"), "{machine}");
    }
    for (machine, chip) in [("rx5700xt-native", "gfx1010"), ("rx5500xt", "gfx1012"), ("bc250", "gfx1013")] {
        let (code, output) = card_test(machine);
        assert_eq!(code, Some(0), "{machine}: {output}");
        assert_eq!(output.lines().next(), Some(chip), "{machine}");
        let mut known = BTreeMap::new();
        for line in output.lines().skip(1) {
            let command = line.splitn(3, ' ').nth(2).unwrap();
            let program = assert_cmd::cargo::cargo_bin("unhang");
            let rest = command.strip_prefix(program.to_str().unwrap()).expect(command);
            assert_command_exists(&format!("unhang{rest}"), &mut known);
        }
        // Command 6 needs a MIOpen: a torch for HIP has one, and the machine that runs this test may have one too.
        let least = if machine == "bc250" { 5 } else { 6 };
        assert!((least..=6).contains(&output.lines().count()), "{output}");
    }
}

/// autopkgtest rejects a file with an unknown field or restriction, and a test's name in addition to `Tests`.
#[test]
fn the_control_file_of_the_test_for_cards_is_one_that_autopkgtest_takes() {
    let control = read("debian/tests/control");
    let fields: BTreeMap<&str, &str> = control.lines().map(|line| line.split_once(": ").expect(line)).collect();
    let known = ["Tests", "Depends", "Restrictions"];
    assert!(fields.keys().all(|field| known.contains(field)), "{fields:?}");
    assert!(fields["Depends"].split(", ").any(|package| package == "@"), "the package itself is installed first");
    assert_eq!(fields["Restrictions"], "allow-stderr, skippable", "an exit code of 77 is a failure without the second");
    for test in fields["Tests"].split(", ") {
        let script = root().join("debian/tests").join(test);
        let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&script).unwrap().permissions());
        assert!(mode & 0o111 != 0, "{} cannot be executed", script.display());
    }
}
