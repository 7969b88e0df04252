//! The flags of every subcommand: how much it prints, and in which colours.

use assert_cmd::Command;

fn unhang(arguments: &[&str]) -> (String, String, i32) {
    let mut command = Command::cargo_bin("unhang").expect("the program is built");
    let output = command.env_clear().env("PATH", "/usr/bin:/bin").args(arguments).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (text(output.stdout), text(output.stderr), output.status.code().unwrap())
}

#[test]
fn colour_is_as_it_was_asked_for() {
    for (arguments, coloured) in [
        (&["doctor"][..], false),
        (&["doctor", "--color", "always"], true),
        (&["--color=always", "doctor"], true),
        (&["--color", "never", "doctor"], false),
    ] {
        assert_eq!(unhang(arguments).0.contains('\u{1b}'), coloured, "{arguments:?}");
    }
    assert_eq!(unhang(&["doctor", "--color", "sometimes"]).2, 2);
}

#[test]
fn quiet_leaves_results_and_errors() {
    let trying = ["doctor", "--self-test", "--python", "/bin/false"];
    assert!(unhang(&trying).1.contains("trying cpu in a child process"));
    let (result, said, _) = unhang(&[&trying[..], &["--quiet"]].concat());
    assert!(result.contains("Self-test") && said.is_empty(), "{said}");
    let (_, said, code) = unhang(&["-q", "plan", "nonsense"]);
    assert!(code == 2 && said.contains("error"), "{said}");
    assert_eq!(unhang(&["--quiet", "--verbose", "doctor"]).2, 2, "one or the other");
}

#[test]
fn verbose_says_which_records_are_read() {
    let problem = "forward:f32:nchw:1x16x64x64:32x3x3:s1x1:p1x1:d1x1:g1";
    let folder = tempfile::tempdir().unwrap();
    let run = |flags: &[&str]| {
        let mut command = Command::cargo_bin("unhang").unwrap();
        command.env_clear().env("PATH", "/usr/bin:/bin").env("UNHANG_HOME", folder.path());
        let output = command.args(["plan", problem]).args(flags).output().unwrap();
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(run(&["-v"]).contains("evidence is read for the machine"));
    assert!(!run(&[]).contains("evidence is read"));
}
