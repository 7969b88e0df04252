//! `unhang env`: profiles, install and uninstall through the program.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command as Process;

use assert_cmd::Command;
use serde_json::Value;

mod machines;

use machines::{copy, fixtures};

fn unhang(arguments: &[&str]) -> Command {
    let mut command = Command::cargo_bin("unhang").expect("the program is built");
    command.current_dir(fixtures()).env_clear().args(arguments);
    command
}

fn run(arguments: &[&str]) -> String {
    let output = unhang(arguments).output().expect("it runs");
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn profiles_for_every_shell() {
    for profile in ["rocm5.2", "rocm5.7", "no-spoof"] {
        insta::assert_snapshot!(
            format!("{profile}.explain"),
            run(&["env", "print", "--profile", profile, "--explain"])
        );
    }
    for shell in ["sh", "fish", "systemd", "docker"] {
        insta::assert_snapshot!(
            format!("rocm5.7.{shell}"),
            run(&["env", "print", "--profile", "rocm5.7", "--shell", shell])
        );
    }
    let same = run(&["env", "print", "--profile", "rocm5.7", "--shell", "sh"]);
    assert_eq!(run(&["env", "print", "--profile", "rocm5.7", "--shell", "zsh"]), same);
}

#[test]
fn auto_follows_the_doctor() {
    for (machine, profile) in [
        ("rx5600xt-rocm5.7", "rocm5.7"),
        ("rx5600xt-rocm5.2", "rocm5.2"),
        ("rx5700xt-native", "no-spoof"),
        ("rx6800", "no-spoof"),
        ("rx5500xt", "rocm5.7"),
    ] {
        let report: Value = serde_json::from_str(&run(&["env", "print", "--root", machine, "--json"])).unwrap();
        assert_eq!(report["profile"]["name"], profile, "{machine}: {}", report["chosen_because"]);
        assert!(report["chosen_because"].is_string());
    }
}

/// `eval "$(unhang env print)"` on another machine must not touch what somebody set there.
#[test]
fn without_an_affected_card_only_a_profile_that_is_named_is_printed() {
    for machine in ["rx6800", "no-gpu"] {
        for shell in ["sh", "fish", "systemd", "docker"] {
            let text = run(&["env", "print", "--root", machine, "--shell", shell]);
            assert!(
                text.contains("no RDNA1 card was found") && text.lines().all(|line| line.starts_with('#')),
                "{text}"
            );
        }
        let report: Value = serde_json::from_str(&run(&["env", "print", "--root", machine, "--json"])).unwrap();
        assert_eq!(report["profile"]["lines"], Value::Array(Vec::new()), "{machine}");
        let named = run(&["env", "print", "--root", machine, "--profile", "no-spoof"]);
        assert!(named.contains("unset HSA_OVERRIDE_GFX_VERSION"), "{named}");
    }
}

#[test]
fn a_machine_that_cannot_be_read_is_not_called_one_without_a_card() {
    let text = run(&["env", "print", "--root", "half-unreadable"]);
    assert!(text.contains("no RDNA1 card was found") && text.contains("could not be read"), "{text}");
}

/// Runs the printed script in a real shell and returns the resulting variables.
fn sourced(script: &str, root: Option<&Path>) -> String {
    let mut shell = Process::new("sh");
    shell.env_clear().env("MIOPEN_FIND_ENFORCE", "3").args(["-eu", "-c", &format!("{script}\nenv")]);
    if let Some(root) = root {
        shell.env("UNHANG_ROOT", root);
    }
    let output = shell.output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn what_is_printed_works_in_a_shell() {
    let variables = sourced(&run(&["env", "print", "--profile", "rocm5.7", "--explain"]), None);
    assert!(variables.contains("HSA_OVERRIDE_GFX_VERSION=10.3.0\n"), "{variables}");
    assert!(variables.contains(
        "MIOPEN_DEBUG_FIND_ONLY_SOLVER=ConvDirectNaiveConvFwd;ConvDirectNaiveConvBwd;ConvDirectNaiveConvWrw\n"
    ));
    assert!(!variables.contains("MIOPEN_FIND_ENFORCE"), "{variables}");
}

/// Which of these shells are installed; `sh` and `bash` are on every machine where this is tested.
fn shells() -> Vec<&'static str> {
    let there = |name: &&str| Process::new(name).args(["-c", "true"]).status().is_ok_and(|status| status.success());
    let all: Vec<_> = ["sh", "bash", "zsh"].into_iter().filter(there).collect();
    assert!(all.len() >= 2, "{all:?}");
    all
}

#[test]
fn the_guard_is_silent_in_every_shell() {
    let folder = machine("rx5600xt-rocm5.7");
    run(&["env", "install", "--system", "--root", folder.path().to_str().unwrap(), "--yes"]);
    let script = folder.path().join("etc/profile.d/unhang.sh");
    let nowhere = PathBuf::from("/nonexistent");
    for shell in shells() {
        for (root, set) in [(folder.path(), true), (&fixtures().join("nvidia"), false), (&nowhere, false)] {
            let output = Process::new(shell)
                .env_clear()
                .env("UNHANG_ROOT", root)
                .args(["-c", "set -eu; . \"$0\"; env; set", script.to_str().unwrap()])
                .output()
                .unwrap();
            assert!(
                output.status.success() && output.stderr.is_empty(),
                "{shell}: {}",
                String::from_utf8_lossy(&output.stderr)
            );
            let text = format!("\n{}", String::from_utf8_lossy(&output.stdout));
            assert_eq!(text.contains("\nHSA_OVERRIDE_GFX_VERSION=10.3.0\n"), set, "{shell} on {}", root.display());
            assert!(!text.contains("\n_unhang_"), "{shell} is left with our variables");
        }
    }
}

/// Copies a fixture to a place where it may be changed.
fn machine(name: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    copy(&fixtures().join(name), folder.path());
    folder
}

fn files(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut all = Vec::new();
    let mut pending = vec![folder.to_owned()];
    while let Some(next) = pending.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                all.push((path.clone(), Vec::new()));
                pending.push(path);
            } else {
                all.push((path.clone(), fs::read(&path).unwrap()));
            }
        }
    }
    all.sort();
    all
}

#[test]
fn install_is_guarded_by_the_chip_and_can_be_taken_out() {
    for (scope, script) in [("--system", "etc/profile.d/unhang.sh"), ("--user", "home/user/.config/unhang/profile.sh")]
    {
        let folder = machine("rx5600xt-rocm5.2");
        fs::create_dir_all(folder.path().join("etc/systemd")).unwrap();
        let root = folder.path().to_str().unwrap();
        let before = files(folder.path());
        let dry = run(&["env", "install", scope, "--root", root, "--yes", "--dry-run"]);
        assert!(dry.contains("this would be done") && dry.contains("unhang"), "{dry}");
        assert_eq!(files(folder.path()), before);

        run(&["env", "install", scope, "--root", root, "--yes"]);
        let text = fs::read_to_string(folder.path().join(script)).unwrap();
        assert!(sourced(&text, Some(folder.path())).contains("HSA_OVERRIDE_GFX_VERSION=10.3.0\n"));
        for other in ["rx6800", "nvidia", "no-gpu", "navi10-usb-only"] {
            let variables = sourced(&text, Some(&fixtures().join(other)));
            assert!(
                !variables.contains("HSA_OVERRIDE") && variables.contains("MIOPEN_FIND_ENFORCE=3"),
                "{other}: {variables}"
            );
        }
        // A kernel that does not report the chip: the PCI ids identify it.
        assert!(sourced(&text, Some(&fixtures().join("container"))).contains("HSA_OVERRIDE_GFX_VERSION"));

        if scope == "--system" {
            assert!(!folder.path().join("etc/profile.d/rocm-rdna1-52.sh").exists(), "the leftover was moved aside");
            let generator = folder.path().join("etc/systemd/user-environment-generators/60-unhang");
            let output = Process::new(&generator).env_clear().env("UNHANG_ROOT", folder.path()).output().unwrap();
            assert!(String::from_utf8(output.stdout).unwrap().starts_with("HSA_OVERRIDE_GFX_VERSION=10.3.0\n"));
            let output =
                Process::new(&generator).env_clear().env("UNHANG_ROOT", fixtures().join("rx6800")).output().unwrap();
            assert!(output.stdout.is_empty() && output.status.success());
        } else {
            let bashrc = folder.path().join("home/user/.bashrc");
            let home = folder.path().join("home/user");
            let output = Process::new("sh")
                .env_clear()
                .env("HOME", &home)
                .env("UNHANG_ROOT", folder.path())
                .args(["-eu", "-c", ". \"$0\"; env", bashrc.to_str().unwrap()])
                .output()
                .unwrap();
            let variables = String::from_utf8(output.stdout).unwrap();
            assert!(variables.contains("HSA_OVERRIDE_GFX_VERSION=10.3.0\n"), "{variables}");
            assert!(
                !variables.contains("MIOPEN_DEBUG_CONV_IMPLICIT_GEMM"),
                "the leftover line was set aside: {variables}"
            );
        }
        let again = run(&["env", "install", scope, "--root", root, "--yes"]);
        assert!(again.contains("nothing to do"), "{again}");
        let report: Value =
            serde_json::from_slice(&unhang(&["doctor", "--root", root, "--json"]).output().unwrap().stdout).unwrap();
        let leftover = report["findings"].as_array().unwrap().iter().find(|it| it["id"] == "leftover-profile");
        let still = if scope == "--system" { ".bashrc" } else { "rocm-rdna1-52.sh" };
        let places = leftover.expect("one is left in the other scope")["places"].to_string();
        assert!(places.contains(still) && !places.contains("unhang"), "{places}");

        run(&["env", "uninstall", scope, "--root", root, "--yes"]);
        assert_eq!(files(folder.path()), before);
        assert!(run(&["env", "uninstall", scope, "--root", root, "--yes"]).contains("nothing to do"));
    }
}

#[test]
fn installing_another_profile_replaces_the_first() {
    let folder = machine("rx5600xt-rocm5.7");
    let root = folder.path().to_str().unwrap();
    let before = files(folder.path());
    run(&["env", "install", "--system", "--root", root, "--yes", "--profile", "rocm5.2"]);
    run(&["env", "install", "--system", "--root", root, "--yes", "--profile", "no-spoof"]);
    let text = fs::read_to_string(folder.path().join("etc/profile.d/unhang.sh")).unwrap();
    assert!(text.contains("unset HSA_OVERRIDE_GFX_VERSION"), "{text}");
    run(&["env", "uninstall", "--system", "--root", root, "--yes"]);
    assert_eq!(files(folder.path()), before);
}

#[test]
fn a_unit_of_systemd_takes_what_is_printed() {
    let text = run(&["env", "print", "--profile", "rocm5.7", "--shell", "systemd"]);
    assert!(
        text.contains("\n[Service]\n") && text.contains("\nEnvironment=\"HSA_OVERRIDE_GFX_VERSION=10.3.0\"\n"),
        "{text}"
    );
    assert!(text.contains("\nUnsetEnvironment=MIOPEN_FIND_ENFORCE\n"), "{text}");
    for line in text.lines().filter(|line| !line.starts_with(['#', '['])) {
        assert!(line.starts_with("Environment=\"") || line.starts_with("UnsetEnvironment="), "{line}");
    }
}

/// `sudo` leaves no environment active and may set root's home: the torch of the calling user counts.
#[test]
fn under_sudo_the_choice_is_that_of_the_user_who_called_it() {
    let folder = machine("rx5600xt-rocm5.7");
    let root = folder.path();
    fs::rename(root.join("home/user/venv"), root.join("home/user/.local")).unwrap();
    // All homes of a described machine are searched; only the file of users reveals this one.
    fs::create_dir_all(root.join("srv/people")).unwrap();
    fs::rename(root.join("home/user"), root.join("srv/people/user")).unwrap();
    fs::write(root.join("etc/passwd"), "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000::/srv/people/user:/bin/sh\n")
        .unwrap();
    let chosen = |variables: &str| {
        fs::write(root.join("environment"), variables).unwrap();
        let report = run(&["env", "print", "--root", root.to_str().unwrap(), "--json"]);
        serde_json::from_str::<Value>(&report).unwrap()["profile"]["name"].as_str().unwrap().to_owned()
    };
    let own = chosen("HOME=/srv/people/user\nPATH=/usr/bin\n");
    assert_eq!(own, "rocm5.7");
    assert_eq!(chosen("HOME=/root\nPATH=/usr/bin\nSUDO_USER=user\n"), own);
}

#[test]
fn under_sudo_nothing_is_made_in_a_home() {
    let home = tempfile::tempdir().unwrap();
    let output =
        unhang(&["env", "clean", "--user"]).env("SUDO_USER", "user").env("HOME", home.path()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("home of user") && said.contains("leave out sudo"), "{said}");
    assert_eq!(fs::read_dir(home.path()).unwrap().count(), 0);
}

#[test]
fn without_an_affected_card_nothing_is_written_unasked() {
    // The machine that runs the tests has none.
    let home = tempfile::tempdir().unwrap();
    let output = unhang(&["env", "install"]).env("HOME", home.path()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("No RDNA1 card was found here") && said.contains("--yes"), "{said}");
    assert_eq!(fs::read_dir(home.path()).unwrap().count(), 0);
}

#[test]
fn settings_of_earlier_attempts_are_moved_aside_and_come_back() {
    let folder = machine("rx5600xt-rocm5.2");
    let root = folder.path().to_str().unwrap();
    let before = files(folder.path());
    for scope in ["--system", "--user"] {
        let said = run(&["env", "clean", scope, "--root", root, "--yes"]);
        assert!(said.contains("move aside") || said.contains("edit"), "{said}");
        assert!(said.contains(&format!("`unhang env uninstall {scope} --root {root}` restores")), "{said}");
        assert!(run(&["env", "clean", scope, "--root", root, "--yes"]).contains("nothing to do"));
    }
    assert!(!folder.path().join("etc/profile.d/rocm-rdna1-52.sh").exists());
    assert!(!folder.path().join("etc/profile.d/unhang.sh").exists(), "no profile is written");
    run(&["env", "uninstall", "--user", "--root", root, "--yes"]);
    let said = run(&["env", "uninstall", "--user", "--root", root, "--yes"]);
    assert!(said.contains("in /etc") && said.contains("env uninstall --system"), "the rest is elsewhere: {said}");
    run(&["env", "uninstall", "--system", "--root", root, "--yes"]);
    assert_eq!(files(folder.path()), before);
}

#[test]
fn wrong_usage_is_told_apart() {
    for arguments in [&["env"][..], &["env", "print", "--profile", "rocm9"], &["env", "install", "--user", "--system"]]
    {
        assert_eq!(unhang(arguments).output().unwrap().status.code(), Some(2), "{arguments:?}");
    }
    // Without a home there is no place to install into.
    let output = unhang(&["env", "install", "--user"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("HOME"));
}

#[test]
fn a_described_machine_is_not_changed_without_asking() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().to_str().unwrap();
    for verb in ["install", "uninstall"] {
        let output = unhang(&["env", verb, "--user", "--root", root]).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("cannot prompt") && said.contains("--yes"), "{said}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing was written");
}
