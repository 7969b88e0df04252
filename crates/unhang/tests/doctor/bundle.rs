//! `unhang doctor --bundle`: the same machine, without names.

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::machines::{copy, fixtures};
use super::{ids, json, unhang};

#[test]
fn a_bundle_describes_the_same_machine_without_names() {
    let folder = tempfile::tempdir().unwrap();
    let machine = folder.path().join("original");
    copy(&fixtures().join("rx5600xt-rocm5.7"), &machine);
    // Names to remove, and a secret next to a leftover line.
    fs::rename(machine.join("home/user"), machine.join("home/kevin")).unwrap();
    let environment = fs::read_to_string(machine.join("environment")).unwrap().replace("/home/user", "/home/kevin");
    fs::write(machine.join("environment"), format!("{environment}USER=kevin\nAWS_SECRET=hunter2\n")).unwrap();
    fs::create_dir_all(machine.join("etc")).unwrap();
    fs::write(machine.join("etc/hostname"), "kevins-tower\n").unwrap();
    fs::write(machine.join("home/kevin/.bashrc"), "export TOKEN=hunter2\nexport HSA_ENABLE_SDMA=0\n# kevin\n").unwrap();
    let root = machine.to_str().unwrap();
    let before = json(&["doctor", "--root", root, "--json"]).0;
    let bundle = folder.path().join("bundle.tar.gz");
    let output = unhang(&["doctor", "--root", root, "--bundle", bundle.to_str().unwrap()]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));

    let unpacked = folder.path().join("unpacked");
    fs::create_dir(&unpacked).unwrap();
    let status = std::process::Command::new("tar").arg("xzf").arg(&bundle).arg("-C").arg(&unpacked).status().unwrap();
    assert!(status.success());
    let mut all = String::new();
    each_file(&unpacked, &mut |path| {
        all.push_str(&path.strip_prefix(&unpacked).unwrap().display().to_string());
        all.push_str(&String::from_utf8_lossy(&fs::read(path).unwrap()));
    });
    for name in ["kevin", "hunter2", "tower"] {
        assert!(!all.contains(name), "{name} is in the bundle");
    }
    let after = json(&["doctor", "--root", unpacked.join("machine").to_str().unwrap(), "--json"]).0;
    assert_eq!(ids(&after), ids(&before));
    assert_eq!(after["verdict"], before["verdict"]);
    assert_eq!(after["machine"]["gpus"], before["machine"]["gpus"]);
    assert_eq!(after["machine"]["fingerprint"], before["machine"]["fingerprint"]);
    let places = |report: &Value| {
        report["findings"]
            .as_array()
            .unwrap()
            .iter()
            .map(|it| it["places"].to_string().replace("kevin", "user"))
            .collect::<Vec<_>>()
    };
    assert_eq!(places(&after), places(&before), "line numbers stay");
}

#[test]
fn a_bundle_says_only_what_is_on_a_list() {
    let folder = tempfile::tempdir().unwrap();
    let machine = folder.path().join("original");
    copy(&fixtures().join("rx5600xt-rocm5.7"), &machine);
    // A home outside /home, a file server, a secret among a compiler's options, a mail address.
    fs::create_dir_all(machine.join("data/people")).unwrap();
    fs::rename(machine.join("home/user"), machine.join("data/people/anna")).unwrap();
    let path = machine.join("environment");
    let environment = fs::read_to_string(&path).unwrap().replace("/home/user", "/data/people/anna");
    let more = "MIOPEN_USER_DB_PATH=/net/fileserver01/anna/db\nHIPRTC_COMPILE_OPTIONS_APPEND=-O3 -DAPI_KEY=hunter2\n\
                MIOPEN_CUSTOM_CACHE_DIR=nas02:/export\nLD_LIBRARY_PATH=/groups/acme/lib\n";
    fs::write(&path, format!("{environment}{more}")).unwrap();
    fs::create_dir_all(machine.join("etc/ld.so.conf.d")).unwrap();
    fs::write(machine.join("etc/ld.so.conf.d/acme.conf"), "# ask anna@acme.example\n/groups/acme/lib\n").unwrap();
    fs::create_dir_all(machine.join("etc/profile.d")).unwrap();
    fs::write(machine.join("etc/profile.d/acme.sh"), "export HSA_ENABLE_SDMA=0 # bob@acme.example\n").unwrap();
    // A script with the name of a library, and unhang where a path file leads to.
    let script = "export ACME_TOKEN=hunter2\nexport HSA_NO_SCRATCH_RECLAIM=1\n";
    fs::write(machine.join("etc/profile.d/acme.source.sh"), script).unwrap();
    let packages = machine.join("data/people/anna/venv/lib/python3.10/site-packages");
    fs::write(packages.join("acme.pth"), "import acme\n/groups/acme/source\n").unwrap();
    fs::create_dir_all(machine.join("groups/acme/source/unhang")).unwrap();
    fs::write(machine.join("groups/acme/source/unhang/__init__.py"), "# anna\n").unwrap();
    let root = machine.to_str().unwrap();
    let before = json(&["doctor", "--root", root, "--json"]).0;
    assert_eq!(before["machine"]["torch"][0]["unhang"], true, "{before:#}");
    let bundle = folder.path().join("bundle.tar.gz");
    unhang(&["doctor", "--root", root, "--bundle", bundle.to_str().unwrap()]).output().unwrap();
    let status =
        std::process::Command::new("tar").arg("xzf").arg(&bundle).arg("-C").arg(folder.path()).status().unwrap();
    assert!(status.success());
    let unpacked = folder.path().join("machine");
    let mut all = String::new();
    each_file(&unpacked, &mut |path| {
        all.push_str(&format!("{}\n", path.strip_prefix(&unpacked).unwrap().display()));
        all.push_str(&String::from_utf8_lossy(&fs::read(path).unwrap()));
    });
    for name in ["anna", "bob", "acme", "fileserver", "nas02", "hunter2", "API_KEY", "/people"] {
        let line = all.lines().find(|line| line.contains(name)).unwrap_or_default();
        assert!(line.is_empty(), "{name} is in the bundle: {line}");
    }
    let after = json(&["doctor", "--root", unpacked.to_str().unwrap(), "--json"]).0;
    assert_eq!(ids(&after), ids(&before));
    assert_eq!(after["machine"]["fingerprint"], before["machine"]["fingerprint"]);
}

fn each_file(folder: &Path, visit: &mut dyn FnMut(&Path)) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { each_file(&path, visit) } else { visit(&path) }
    }
}
