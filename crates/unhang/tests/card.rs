//! `unhang card`: the list, a program on a card, and what cannot be run.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn library() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let folder = program.parent().unwrap();
    let places = [folder, folder.parent().unwrap()].map(|folder| folder.join("libunhang_card.so"));
    places.into_iter().find(|path| path.exists()).expect("libunhang_card.so is built with the tests")
}

fn unhang(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_unhang"));
    command.args(arguments).env("UNHANG_CARD_LIBRARY", library()).env_remove("HSA_OVERRIDE_GFX_VERSION");
    command.output().unwrap()
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn the_list_names_six_machines() {
    let output = unhang(&["card", "list"]);
    let text = String::from_utf8(output.stdout).unwrap();
    for name in ["rx5500xt", "rx5600xt", "rx5700xt", "bc250", "two-cards", "rx6800"] {
        assert!(text.contains(&format!("  {name} ")), "{text}");
    }
    let json: serde_json::Value = serde_json::from_slice(&unhang(&["card", "list", "--json"]).stdout).unwrap();
    assert_eq!(json["cards"].as_array().unwrap().len(), 6);
    assert_eq!(json["emulated"], true);
}

#[test]
fn a_program_sees_the_card_and_its_end_is_ours() {
    if !Path::new("/usr/bin/rocminfo").exists() {
        println!("skipped: rocminfo is not installed");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("card.jsonl");
    let log_name = log.to_str().unwrap();
    let output = unhang(&["card", "run", "--card", "rx5700xt", "--log", log_name, "--", "rocminfo"]);
    assert!(output.status.success(), "{}", errors(&output));
    assert!(String::from_utf8_lossy(&output.stdout).contains("AMD Radeon RX 5700 XT (emulated)"));
    assert!(errors(&output).contains("on the emulated card: 0 dispatches of 0 kernels"), "{}", errors(&output));
    let text = std::fs::read_to_string(log).unwrap();
    let last: serde_json::Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    assert_eq!((&last["event"], &last["emulated"]), (&"summary".into(), &true.into()));
    let output = unhang(&["card", "run", "--", "sh", "-c", "exit 7"]);
    assert_eq!(output.status.code(), Some(7));
    assert!(errors(&output).contains("never opened the emulated card"), "{}", errors(&output));
}

#[test]
fn a_log_goes_through_a_pipe_whole() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0).unwrap();
    let mut reader = Command::new("timeout");
    let reader = reader.args(["-k", "5", "60", "cat"]).arg(&pipe).stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut command = Command::new("timeout");
    command
        .args(["-k", "5", "60", env!("CARGO_BIN_EXE_unhang"), "card", "run", "--log"])
        .arg(&pipe)
        .args(["--", "true"]);
    let output = command.env("UNHANG_CARD_LIBRARY", library()).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", errors(&output));
    let read = String::from_utf8(reader.wait_with_output().unwrap().stdout).unwrap();
    assert!(read.lines().last().is_some_and(|line| line.contains("summary")), "{read}");
}

#[test]
fn a_script_that_cannot_be_run_is_answered_with_this_command() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("train.py");
    std::fs::write(&script, "print()").unwrap();
    let output = unhang(&["card", "run", "--", script.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(126), "{}", errors(&output));
    assert!(errors(&output).contains("`unhang card run -- python "), "{}", errors(&output));
}

#[test]
fn what_cannot_be_run_is_refused_with_a_reason() {
    let refused = |arguments: &[&str], expected: &[&str]| {
        let output = unhang(arguments);
        assert_eq!(output.status.code(), Some(2), "{}", errors(&output));
        for text in expected {
            assert!(errors(&output).contains(text), "{text}\n{}", errors(&output));
        }
    };
    refused(&["card", "run", "--card", "rx580", "--", "true"], &["no card and no folder is named rx580", "rx5600xt"]);
    let machines = Path::new(env!("CARGO_MANIFEST_DIR")).join("../unhang-machine/fixtures");
    let no_card = machines.join("no-gpu");
    refused(
        &["card", "run", "--card", no_card.to_str().unwrap(), "--", "true"],
        &["does not describe a machine with a card", "hint"],
    );
    refused(&["card", "run", "--hazards", "maybe", "--", "true"], &["fault, hang, ignore"]);
    refused(&["card", "run", "--log", "/not/there/log", "--", "true"], &["cannot write the log /not/there/log"]);

    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("static");
    let mut program = std::fs::read("/bin/true").unwrap();
    program[56..58].copy_from_slice(&[0, 0]);
    std::fs::write(&copy, program).unwrap();
    refused(&["card", "run", "--", copy.to_str().unwrap()], &["is a static program"]);

    let output = unhang(&["card", "run", "--", "/not/there"]);
    assert_eq!(output.status.code(), Some(127), "{}", errors(&output));
}

#[test]
fn a_library_whose_path_has_a_space_or_a_colon_is_loaded_all_the_same() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("a space: and a colon");
    std::fs::create_dir(&folder).unwrap();
    let copy = folder.join("libunhang_card.so");
    std::fs::copy(library(), &copy).unwrap();
    let run = |cache: &Path| {
        let words = ["card", "run", "--", "cat", "/sys/class/kfd/kfd/topology/nodes/1/name"];
        let mut command = Command::new(env!("CARGO_BIN_EXE_unhang"));
        command.args(words).env("UNHANG_CARD_LIBRARY", &copy).env_remove("XDG_RUNTIME_DIR");
        command.env("XDG_CACHE_HOME", cache).output().unwrap()
    };
    let output = run(place.path());
    assert!(output.status.success(), "{}", errors(&output));
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "navi10");
    let output = run(&folder);
    assert_eq!(output.status.code(), Some(2), "{}", errors(&output));
    assert!(
        errors(&output).contains("can be preloaded") && errors(&output).contains("XDG_CACHE_HOME"),
        "{}",
        errors(&output)
    );
}

/// A program that outlives the run starts others with the variables of the run, when the run's folder may be gone.
#[test]
fn what_outlives_the_run_names_no_folder_that_others_can_make_again() {
    let place = tempfile::tempdir().unwrap();
    let (shared, own) = (place.path().join("shared"), place.path().join("own"));
    for folder in [&shared, &own] {
        std::fs::create_dir(folder).unwrap();
    }
    std::fs::set_permissions(&shared, std::fs::Permissions::from_mode(0o1777)).unwrap();
    let with_space = own.join("a space");
    std::fs::create_dir(&with_space).unwrap();
    let copy = with_space.join("libunhang_card.so");
    std::fs::copy(library(), &copy).unwrap();
    let words = ["card", "run", "--", "sh", "-c", "echo $LD_PRELOAD; echo $UNHANG_CARD_RUN; echo $UNHANG_CARD_ROOT"];
    let mut command = Command::new(env!("CARGO_BIN_EXE_unhang"));
    command.args(words).env("UNHANG_CARD_LIBRARY", &copy).env("TMPDIR", &shared).env_remove("XDG_RUNTIME_DIR");
    let output = command.env("XDG_CACHE_HOME", &own).output().unwrap();
    let named = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(named.lines().count(), 3, "{named}{}", errors(&output));
    for line in named.lines() {
        assert!(Path::new(line).starts_with(&own), "{line} is where anybody can take its name");
    }
    let left: Vec<_> = std::fs::read_dir(own.join("unhang/runs")).unwrap().flatten().collect();
    assert!(left.is_empty(), "{left:?}");
}

/// A machine folder from somebody else: pipes, devices and links in place of files, numbers that no machine has.
#[test]
fn hostile_machine_folders_end() {
    let place = tempfile::tempdir().unwrap();
    let machines = Path::new(env!("CARGO_MANIFEST_DIR")).join("../unhang-machine/fixtures");
    let node = "sys/class/kfd/kfd/topology/nodes/1";
    type Trap<'a> = (&'a str, &'a dyn Fn(&Path));
    let traps: [Trap<'_>; 4] = [
        ("pipe", &|path| assert!(Command::new("mkfifo").arg(path).status().unwrap().success())),
        ("device", &|path| std::os::unix::fs::symlink("/dev/zero", path).unwrap()),
        ("loop", &|path| std::os::unix::fs::symlink(path, path).unwrap()),
        ("count", &|path| std::fs::write(path, "simd_count 72\ncaches_count 4294967295\n").unwrap()),
    ];
    for (kind, trap) in traps {
        for file in ["dev/kfd", &format!("{node}/properties"), &format!("{node}/name"), &format!("{node}/gpu_id")] {
            let folder = place.path().join(format!("{kind}-{}", file.replace('/', "-")));
            let copied = Command::new("cp").arg("-r").arg(machines.join("rx5600xt-rocm5.7")).arg(&folder).status();
            assert!(copied.unwrap().success());
            let path = folder.join(file);
            std::fs::remove_file(&path).unwrap();
            trap(&path);
            let reads = "cat /sys/class/kfd/kfd/topology/nodes/*/*; : < /dev/kfd; ls -lR /sys/class/kfd";
            let mut command = Command::new("timeout");
            command.args(["-k", "1", "20", env!("CARGO_BIN_EXE_unhang"), "card", "run", "--card"]).arg(&folder);
            let output =
                command.args(["--", "sh", "-c", reads]).env("UNHANG_CARD_LIBRARY", library()).output().unwrap();
            assert!(!matches!(output.status.code(), None | Some(124 | 137)), "{kind} as {file}: {output:?}");
            assert!(output.stdout.len() < 10 << 20, "{kind} as {file} brought {} bytes", output.stdout.len());
        }
    }
}
