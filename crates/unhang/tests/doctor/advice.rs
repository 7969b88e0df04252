//! What `unhang doctor` tells a machine to do, and does.

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::machines::{copy, fixtures};
use super::{ids, json, run, unhang};

/// A copy of a machine with something changed.
fn changed(machine: &str, change: impl Fn(&Path)) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    copy(&fixtures().join(machine), folder.path());
    change(folder.path());
    folder
}

/// All commands of a plan, with those of every way in order.
fn commands(report: &Value) -> Vec<&str> {
    let steps = report["steps"].as_array().unwrap().iter();
    steps
        .flat_map(|step| {
            let ways = step["ways"].as_array().into_iter().flatten();
            let of_ways = ways.flat_map(|way| way["commands"].as_array().unwrap()).filter_map(Value::as_str);
            step["command"].as_str().into_iter().chain(of_ways)
        })
        .collect()
}

fn examined(folder: &tempfile::TempDir) -> Value {
    json(&["doctor", "--json", "--root", folder.path().to_str().unwrap()]).0
}

#[test]
fn with_a_native_torch_the_spoof_goes_first_and_no_other_torch_is_wanted() {
    let machine = changed("rx5700xt-native", |root| {
        let path = root.join("environment");
        let before = fs::read_to_string(&path).unwrap_or_default();
        fs::write(path, format!("{before}HSA_OVERRIDE_GFX_VERSION=10.3.0\n")).unwrap();
    });
    let report = examined(&machine);
    let commands = commands(&report);
    assert_eq!(commands[0], "unset HSA_OVERRIDE_GFX_VERSION");
    assert!(commands[1].ends_with("pip install unhang-*.whl"), "{commands:?}");
    assert_eq!(commands[2..], ["unhang run -- python train.py"]);
    assert!(!report.to_string().contains("torch==1.13.1"), "no other torch is wanted");
}

#[test]
fn an_override_is_judged_by_the_chip_that_it_names() {
    let with = |value: &str| {
        examined(&changed("rx5700xt-native", |root| {
            let path = root.join("environment");
            let before = fs::read_to_string(&path).unwrap_or_default();
            fs::write(path, format!("{before}HSA_OVERRIDE_GFX_VERSION={value}\n")).unwrap();
        }))
    };
    let own = with("10.1.0");
    assert!(ids(&own).contains(&"env-no-effect"), "it names the chip that is there: {own}");
    assert_eq!(own["verdict"], "healthy");
    let sibling = with("10.1.2");
    assert!(ids(&sibling).contains(&"spoofed-architecture"), "{sibling}");
    assert!(!ids(&sibling).contains(&"torch-known-to-hang"), "code for RDNA1 has the work-arounds: {sibling}");
    assert!(ids(&with("10.3.0")).contains(&"torch-known-to-hang"));
}

#[test]
fn a_card_without_torch_is_told_of_one() {
    let machine = changed("rx5700xt-native", |root| fs::remove_dir_all(root.join("usr/lib/python3.13")).unwrap());
    let report = examined(&machine);
    assert!(ids(&report).contains(&"torch-missing"), "{report}");
    assert!(commands(&report)[0].contains("torch[device-gfx1010]"), "{report}");
}

#[test]
fn libraries_that_are_shadowed_are_not_said_to_be_found_first() {
    let (report, _) = json(&["doctor", "--root", "rx5700xt-mixed", "--json"]);
    assert!(ids(&report).contains(&"runtime-version-mismatch"));
    assert!(!ids(&report).contains(&"torch-bundles-rocm"), "one of the two must be wrong");
}

#[test]
fn a_route_that_was_taken_is_content() {
    let (report, code) = json(&["doctor", "--root", "rx5600xt-rocm5.2", "--json"]);
    assert_eq!(code, 0, "the stack that owners report working is no error");
    assert_eq!(commands(&report).last(), Some(&"unhang run -- python train.py"));
    assert!(!report["steps"].to_string().contains("torch[device"), "no other torch has to be installed");
    let (report, code) = json(&["doctor", "--root", "rx5700xt-native", "--json"]);
    let install = "python3 -m venv --system-site-packages ~/rdna1-unhang && . ~/rdna1-unhang/bin/activate && pip install unhang-*.whl";
    assert_eq!((code, commands(&report)), (0, vec![install, "unhang run -- python train.py"]), "{report}");
}

#[test]
fn no_torch_is_recommended_that_does_not_load_here() {
    let (report, _) = json(&["doctor", "--root", "bc250", "--json"]);
    let commands = commands(&report);
    assert!(
        commands[0].starts_with("docker run -it --name rdna1 --device /dev/kfd"),
        "glibc 2.42, and no native wheels: {report}"
    );
    assert!(commands[1].starts_with("pip install 'numpy<2' torch==1.13.1+rocm5.2"), "{report}");
    let libc = "lib/x86_64-linux-gnu/libc.so.6";
    let old = changed("bc250", |root| fs::write(root.join(libc), "stable release version 2.36.\n").unwrap());
    let report = examined(&old);
    assert!(self::commands(&report)[0].starts_with("python3.10 -m venv"), "{report}");
}

#[test]
fn containers_get_the_cards_group_by_its_number() {
    let (report, _) = json(&["doctor", "--root", "container", "--json"]);
    let command = commands(&report)[0];
    assert!(command.contains("--group-add \"$(stat -c %g /dev/kfd)\""), "images have no group render: {command}");
    assert!(!command.contains("--group-add render"), "{command}");
}

#[test]
fn ring_timeouts_and_missing_atomics_are_found_in_the_journal() {
    for (message, id) in [
        ("[drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring gfx_0.0.0 timeout, signaled seq=1", "ring-timeout"),
        ("kfd kfd: amdgpu: skipped device 1002:731f, PCI rejects atomics 730<0", "pci-atomics"),
    ] {
        let machine = changed("rx5700xt-native", |root| {
            let folder = root.join("var/log/journal/0123456789abcdef0123456789abcdef");
            fs::create_dir_all(&folder).unwrap();
            let mut bytes = b"LPKSHHRH".to_vec();
            bytes.resize(272, 0);
            bytes.extend(format!("\x01\0MESSAGE={message}\0\x02").bytes());
            let end = bytes.len() as u64;
            bytes[136..144].copy_from_slice(&end.to_le_bytes());
            // journald makes its files larger than their contents.
            bytes.resize(3 << 20, 0);
            fs::write(folder.join("system.journal"), bytes).unwrap();
        });
        let report = examined(&machine);
        assert!(ids(&report).contains(&id), "{id}: {:?}", ids(&report));
        assert!(!report.to_string().contains("0123456789abcdef"), "the machine's own number stays here");
    }
}

#[test]
fn what_is_ours_to_fix_is_fixed_once_it_was_agreed_to() {
    let folder = tempfile::tempdir().unwrap();
    copy(&fixtures().join("rx5600xt-rocm5.7"), folder.path());
    let root = folder.path().to_str().unwrap();
    let refused = unhang(&["doctor", "--root", root, "--fix"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(2), "there is no terminal: {refused:?}");
    assert!(ids(&json(&["doctor", "--root", root, "--json"]).0).contains(&"leftover-profile"));
    let fixed = unhang(&["doctor", "--root", root, "--fix", "--yes"]).output().unwrap();
    let said = String::from_utf8_lossy(&fixed.stdout);
    assert!(
        said.contains("env uninstall --system --root ") && said.contains("` restores every byte"),
        "what was done is said: {said}"
    );
    let undone = unhang(&["env", "uninstall", "--system", "--root", root, "--yes"]).output().unwrap();
    let undone_for_user = unhang(&["env", "uninstall", "--user", "--root", root, "--yes"]).output().unwrap();
    assert!(undone.status.success() && undone_for_user.status.success(), "{undone:?} {undone_for_user:?}");
    let nothing = unhang(&["doctor", "--root", "rx6800", "--fix"]).output().unwrap();
    assert!(String::from_utf8_lossy(&nothing.stderr).contains("nothing here that unhang could fix"), "{nothing:?}");
}

/// JAX's wheels exclude RDNA1 cards; under `unhang run` the card passes for a chip on their list.
#[test]
fn a_machine_with_jax_alone_is_not_sent_to_torch() {
    let (report, _) = json(&["doctor", "--root", "rx5700xt-jax", "--json"]);
    assert!(ids(&report).contains(&"framework-refuses-chip"), "{report:#}");
    assert!(!ids(&report).contains(&"torch-missing"), "{report:#}");
    let install = "/home/user/jax/bin/pip install unhang-*.whl";
    assert_eq!(commands(&report), [install, "unhang run -- python train.py"], "{report:#}");
    let (profile, _) = run(&["env", "print", "--root", "rx5700xt-jax"]);
    assert!(profile.contains("export HSA_OVERRIDE_GFX_VERSION=10.3.0"), "{profile}");
    let (text, _) = run(&["explain", "--root", "rx5700xt-jax", "The supported AMDGPU versions are gfx1030"]);
    assert!(text.contains("jax-rocm7-plugin 0.10.2") && !text.contains("no torch was found"), "{text}");
}

#[test]
fn a_framework_next_to_a_native_torch_gets_the_spoof_for_its_own_programs() {
    let machine = changed("rx5700xt-native", |root| {
        let packages = root.join("usr/lib/python3.13/site-packages");
        fs::create_dir_all(packages.join("jax_rocm7_plugin-0.10.2.dist-info")).unwrap();
    });
    let (report, _) = json(&["doctor", "--root", machine.path().to_str().unwrap(), "--json"]);
    let found = report["findings"].as_array().unwrap().iter().find(|it| it["id"] == "framework-refuses-chip").unwrap();
    let fix = found["fix"].as_str().unwrap();
    assert!(fix.starts_with("`HSA_OVERRIDE_GFX_VERSION=10.3.0 unhang run -- python train.py`"), "{fix}");
    assert!(!report["steps"].to_string().contains("HSA_OVERRIDE"), "torch's programs do without: {report:#}");
}

#[test]
fn a_tensorflow_that_refuses_the_spoof_too_is_replaced() {
    let machine = changed("rx5700xt-jax", |root| {
        let packages = root.join("home/user/jax/lib/python3.12/site-packages");
        fs::remove_dir_all(packages.join("jax_rocm7_plugin-0.10.2.dist-info")).unwrap();
        fs::create_dir_all(packages.join("tensorflow_rocm-2.14.0.600.dist-info")).unwrap();
    });
    let (report, _) = json(&["doctor", "--root", machine.path().to_str().unwrap(), "--json"]);
    let commands = &report["steps"][0]["ways"][0]["commands"];
    assert_eq!(commands[1], "pip install 'tensorflow-rocm==2.13.1.600'", "{report:#}");
    assert_eq!(commands[2], "unhang run -- python train.py");
}

/// Triton on a machine with an RDNA1 card: a warning where nothing handles it, a note where `unhang run` can.
#[test]
fn triton_is_recognised_beside_an_rdna1_card() {
    let with = |version: &str, variable: &str, unhang: bool| {
        let machine = changed("rx5700xt-native", |root| {
            let packages = root.join("usr/lib/python3.13/site-packages");
            fs::create_dir_all(packages.join("triton")).unwrap();
            fs::create_dir_all(packages.join(format!("triton-{version}.dist-info"))).unwrap();
            if unhang {
                fs::create_dir_all(packages.join("unhang")).unwrap();
                fs::write(packages.join("unhang/__init__.py"), "").unwrap();
            }
            let path = root.join("environment");
            fs::write(&path, format!("{}{variable}", fs::read_to_string(&path).unwrap())).unwrap();
        });
        let report = examined(&machine);
        let found = report["findings"].as_array().unwrap().iter().find(|it| it["id"] == "triton-writes-zeros");
        found.map(|it| (it["severity"].as_str().unwrap().to_owned(), it["summary"].as_str().unwrap().to_owned()))
    };
    let (severity, summary) = with("3.6.0", "", false).unwrap();
    assert!(severity == "warning" && summary.contains("AMDGCN_USE_BUFFER_OPS=0"), "{summary}");
    assert_eq!(with("3.8.0", "", true).unwrap().0, "info");
    assert_eq!(with("3.6.0", "AMDGCN_USE_BUFFER_OPS=0\n", false), None);
    assert_eq!(with("3.5.1", "", false), None, "its kernels use no buffer operations");
    assert!(with("3.9.0", "", false).unwrap().1.contains("unsupported target"));
}
