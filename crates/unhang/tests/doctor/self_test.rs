//! `unhang doctor --self-test`: each engine tried in a child, on this machine.

use std::fs;
use std::path::{Path, PathBuf};

use assert_cmd::Command;
use serde_json::Value;
use unhang_machine::{Environment, Machine, System};

use super::unhang;

/// The verdicts of a self-test by engine, and the exit code.
fn self_test(mut command: Command) -> (Value, i32) {
    let output = command.output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    assert!(report["verdict"].is_string(), "the rest of the report is there too");
    (report["self_test"].clone(), output.status.code().unwrap())
}

fn tried<'a>(result: &'a Value, engine: &str) -> &'a Value {
    let all = result.as_array().unwrap();
    all.iter().find(|it| it["engine"] == engine).unwrap_or_else(|| panic!("{engine} is in {result}"))
}

/// A program that stands in for a Python: it has torch and unhang, and acts as the canary's child.
fn python(folder: &Path, child: &str) -> String {
    use std::os::unix::fs::PermissionsExt;
    let path = folder.join("python");
    // With -c and code alone, it is asked what it has; with more words, it runs the module that the first one names.
    let start = "[ $# = 2 ] && exit 0\n[ \"$3 $4\" = 'unhang._trials canary' ] || exit 9\nshift 2\n\
                 say() { echo \"$UNHANG_CHILD_NONCE $*\"; }";
    fs::write(&path, format!("#!/bin/sh\n{start}\n{child}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn the_cpu_engine_passes_its_self_test_in_a_child() {
    let (result, code) = self_test(unhang(&["doctor", "--self-test", "--json", "--python", "/bin/false"]));
    let cpu = tried(&result, "cpu");
    assert_eq!(cpu["verdict"], "works", "{result}");
    assert!(cpu["seconds"].as_f64().unwrap() > 0.0);
    assert!(cpu["detail"].as_str().unwrap().contains("largest relative error"), "{cpu}");
    for engine in ["jit", "aten", "matmul", "half", "miopen"] {
        let it = tried(&result, engine);
        assert_eq!((&it["verdict"], &it["seconds"]), (&"unsupported".into(), &Value::Null), "{it}");
        assert!(it["detail"].as_str().unwrap().starts_with("not here: "), "{it}");
    }
    // The rest of the report about this machine decides then.
    let without = unhang(&["doctor", "--json"]).output().unwrap();
    assert_eq!(Some(code), without.status.code());
    assert!(serde_json::from_slice::<Value>(&without.stdout).unwrap().get("self_test").is_none());

    let output = unhang(&["doctor", "--self-test", "--python", "/bin/false"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("\nSelf-test\n  cpu     works "), "{text}");
    assert_eq!(text.matches("--python PATH").count(), 1, "once for all of them: {text}");
}

/// What is missing is named, torch or unhang.
#[test]
fn a_python_says_what_it_lacks() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let python = folder.path().join("python");
    for (code, expected) in [(3, "has no torch"), (5, "unhang is not installed in")] {
        fs::write(&python, format!("#!/bin/sh\nexit {code}\n")).unwrap();
        fs::set_permissions(&python, fs::Permissions::from_mode(0o755)).unwrap();
        let (result, _) = self_test(unhang(&["doctor", "--self-test", "--json", "--python", python.to_str().unwrap()]));
        let detail = tried(&result, "aten")["detail"].as_str().unwrap();
        assert!(detail.contains(expected) && !detail.contains(", or "), "{detail}");
    }
}

#[test]
fn a_child_that_fails_is_an_error() {
    for (rehearsed, verdict) in [("hang", "hangs"), ("crash", "crashes"), ("garbage", "crashes"), ("wrong", "wrong")] {
        let mut command = unhang(&["doctor", "--self-test", "--json", "--python", "/bin/false"]);
        command.env("UNHANG_REHEARSE_CANARY", rehearsed);
        let (result, code) = self_test(command);
        let cpu = tried(&result, "cpu");
        assert_eq!(cpu["verdict"], verdict, "{cpu}");
        assert!(cpu["detail"].as_str().unwrap().starts_with("rehearsed: "), "{cpu}");
        assert_eq!(code, 1);
    }
}

#[test]
fn what_was_tried_is_kept_for_enable() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path().join("home");
    let crashed = "say unhang-torch 2.2.2+rocm5.7 hip5.7.1\n[ $3 = aten ] && kill -SEGV $$\n\
                   [ $3 = jit ] && say 'unhang-family {\"family\": \"plain\", \"name\": \"jit:plain:x\", \
                   \"verdict\": \"works\", \"detail\": \"\"}'\n\
                   say 'unhang-canary {\"verdict\": \"works\", \"detail\": \"played\"}'";
    let python = python(folder.path(), crashed);
    let mut command = unhang(&["doctor", "--self-test", "--json", "--python", &python]);
    command.env("UNHANG_HOME", &home).env("PATH", "/usr/bin:/bin");
    let (result, code) = self_test(command);
    assert_eq!(tried(&result, "aten")["verdict"], "crashes", "{result}");
    assert_eq!(tried(&result, "miopen")["verdict"], "works", "{result}");
    assert_eq!(code, 1);
    let database = rusqlite::Connection::open(fs::read_dir(&home).unwrap().find_map(database).unwrap()).unwrap();
    let mut kept = database.prepare("SELECT machine, name, verdict FROM canaries ORDER BY name").unwrap();
    let kept: Vec<(String, String, String)> =
        kept.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).unwrap().map(Result::unwrap).collect();
    let short: Vec<(&str, &str)> = kept.iter().map(|(_, name, verdict)| (name.as_str(), verdict.as_str())).collect();
    assert_eq!(short, [("aten", "crashes"), ("jit:plain:x", "works"), ("miopen", "works")]);
    let machine = &kept[0].0;
    // With the exact text that the Python package generates for its torch.
    let here = Machine::inspect(&System::new("/".as_ref(), Environment::parse("")));
    assert_eq!(*machine, here.fingerprint(Some("2.2.2+rocm5.7 hip5.7.1")), "filed under the torch that ran");
}

fn database(entry: std::io::Result<fs::DirEntry>) -> Option<PathBuf> {
    Some(entry.unwrap().path()).filter(|path| fs::read(path).is_ok_and(|content| content.starts_with(b"SQLite")))
}

#[test]
fn a_self_test_is_in_the_bundle_without_names() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("kevin");
    fs::create_dir(&place).unwrap();
    let python = python(&place, "echo 'ImportError: /home/kevin/venv/lib/libamdhip64.so' >&2; exit 1");
    let bundle = folder.path().join("bundle.tar.gz");
    let mut command =
        unhang(&["doctor", "--self-test", "--json", "--python", &python, "--bundle", bundle.to_str().unwrap()]);
    command.env("USER", "kevin").env("PATH", "/usr/bin:/bin").env("UNHANG_HOME", folder.path().join("home"));
    let (result, code) = self_test(command);
    assert_eq!((tried(&result, "aten")["verdict"].as_str(), code), (Some("error"), 0));
    assert!(tried(&result, "aten")["detail"].as_str().unwrap().contains("kevin"), "{result}");
    let status =
        std::process::Command::new("tar").arg("xzf").arg(&bundle).arg("-C").arg(folder.path()).status().unwrap();
    assert!(status.success());
    let text = fs::read_to_string(folder.path().join("machine/self-test.json")).unwrap();
    assert!(!text.contains("kevin"), "{text}");
    let sent: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&sent["schema"], sent["self_test"].as_array().unwrap().len()), (&1.into(), 6), "every trial is in it");
    assert_eq!(tried(&sent["self_test"], "cpu"), tried(&result, "cpu"));
}

#[test]
fn a_folder_cannot_compute() {
    for arguments in [&["--root", "rx6800"][..], &["--env-file", "rx6800/environment"]] {
        let output = unhang(&[&["doctor", "--self-test"], arguments].concat()).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        assert!(output.stdout.is_empty());
        assert!(String::from_utf8_lossy(&output.stderr).contains("cannot compute"), "{output:?}");
    }
    let output = unhang(&["doctor", "--self-test"]).env("UNHANG_ROOT", "rx6800").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
}
