//! `unhang doctor` on machines that are folders; the text and JSON of each are kept as snapshots.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::{Duration, Instant};

use assert_cmd::Command;
use serde_json::Value;

#[path = "doctor/advice.rs"]
mod advice;
#[path = "doctor/bundle.rs"]
mod bundle;
#[path = "doctor/explain.rs"]
mod explain;
mod machines;
#[path = "doctor/self_test.rs"]
mod self_test;

use machines::fixtures;

/// The program in the folder of fixtures, with only the given variables: output does not depend on who runs it.
fn unhang(arguments: &[&str]) -> Command {
    let mut command = Command::cargo_bin("unhang").expect("the program is built");
    command.current_dir(fixtures()).env_clear().args(arguments);
    command
}

fn run(arguments: &[&str]) -> (String, i32) {
    let output = unhang(arguments).output().expect("it runs");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "", "nothing on standard error");
    (String::from_utf8(output.stdout).expect("text"), output.status.code().expect("no signal"))
}

fn json(arguments: &[&str]) -> (Value, i32) {
    let (text, code) = run(arguments);
    (serde_json::from_str(&text).expect("JSON"), code)
}

fn ids(report: &Value) -> Vec<&str> {
    report["findings"].as_array().unwrap().iter().map(|finding| finding["id"].as_str().unwrap()).collect()
}

/// Text and JSON of one machine.
fn snapshot(machine: &str, expected: i32) {
    let (text, code) = run(&["doctor", "--root", machine]);
    assert_eq!(code, expected, "{text}");
    insta::assert_snapshot!(format!("{machine}.text"), text);
    let (report, code) = json(&["doctor", "--root", machine, "--json"]);
    assert_eq!(code, expected);
    insta::assert_snapshot!(format!("{machine}.json"), serde_json::to_string_pretty(&report).unwrap());
}

macro_rules! machines {
    ($($test:ident: $folder:literal => $code:literal,)*) => {
        $(#[test] fn $test() { snapshot($folder, $code); })*

        /// No machine can be added as a folder and forgotten here.
        #[test]
        fn every_fixture_has_a_snapshot() {
            let mut here = vec![$($folder.to_owned()),*];
            let mut there: Vec<String> = fs::read_dir(fixtures()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
            here.sort();
            there.sort();
            assert_eq!(here, there);
        }
    };
}

machines! {
    rx_5600_xt_with_rocm_5_7_and_the_seeds_file: "rx5600xt-rocm5.7" => 1,
    rx_5600_xt_with_rocm_5_2_and_the_seeds_file: "rx5600xt-rocm5.2" => 0,
    rx_5700_xt_native: "rx5700xt-native" => 0,
    rx_5700_xt_with_jax_and_no_torch: "rx5700xt-jax" => 0,
    rx_5700_xt_with_mixed_versions: "rx5700xt-mixed" => 1,
    rx_5700_without_access: "rx5700-denied" => 1,
    rx_5500_xt: "rx5500xt" => 1,
    rx_6800_is_not_affected: "rx6800" => 0,
    bc_250: "bc250" => 0,
    nvidia_only: "nvidia" => 0,
    no_gpu: "no-gpu" => 0,
    two_gpus: "two-gpus" => 1,
    container_without_kfd: "container" => 1,
    navi_10_usb_controller_only: "navi10-usb-only" => 0,
    half_unreadable_sysfs: "half-unreadable" => 3,
}

#[test]
fn the_json_has_the_promised_shape() {
    let (report, _) = json(&["doctor", "--root", "rx5600xt-rocm5.7", "--json"]);
    for field in ["schema", "machine", "environment", "findings", "steps", "verdict"] {
        assert!(report.get(field).is_some(), "{field}");
    }
    let gpu = &report["machine"]["gpus"][0];
    let fields = [
        "pci",
        "vendor_id",
        "device_id",
        "revision",
        "name",
        "chip",
        "gfx",
        "reported_gfx",
        "compute_units",
        "affected",
    ];
    assert!(fields.iter().all(|field| !gpu[field].is_null()), "{gpu}");
    assert_eq!(
        (&gpu["gfx"], &gpu["reported_gfx"], &gpu["compute_units"]),
        (&"gfx1010".into(), &"gfx1030".into(), &36.into())
    );
    assert_eq!(report["machine"]["rocm"][0]["path"], "/opt/rocm-5.7.0");
    let torch = &report["machine"]["torch"][0];
    assert_eq!((&torch["version"], &torch["python"]), (&"2.2.2+rocm5.7".into(), &"3.10".into()));
    assert_eq!(torch["bundled"].as_array().unwrap().len(), 4);
    for finding in report["findings"].as_array().unwrap() {
        for field in ["id", "severity", "summary", "why", "confidence"] {
            assert!(finding[field].is_string(), "{field} in {finding}");
        }
        assert!(finding.get("fix").is_some());
    }
    for id in [
        "spoofed-architecture",
        "torch-known-to-hang",
        "env-imaginary",
        "env-no-effect",
        "env-build-time",
        "leftover-profile",
        "torch-bundles-rocm",
        "miopen-missing-kdb",
    ] {
        assert!(ids(&report).contains(&id), "{id}");
    }
    let leftover = report["findings"].as_array().unwrap().iter().find(|it| it["id"] == "leftover-profile").unwrap();
    assert_eq!(leftover["places"][0]["line"], 4, "the line of HSA_OVERRIDE_GFX_VERSION in the seeds' file");
}

#[test]
fn variables_come_from_the_file_or_the_process() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("variables");
    fs::write(&file, "HSA_OVERRIDE_GFX_VERSION=10.3.0\nMIOPEN_FIND_ENFORCE=3\n").unwrap();
    let (report, _) = json(&["doctor", "--root", "rx5500xt", "--json", "--env-file", file.to_str().unwrap()]);
    assert!(ids(&report).contains(&"find-enforce-search") && ids(&report).contains(&"spoofed-architecture"));
    assert_eq!(report["machine"]["gpus"][0]["reported_gfx"], "gfx1030");

    // In a folder without an `environment`, the process's counts.
    let machine = folder.path().join("machine");
    fs::create_dir_all(machine.join("sys/class/kfd/kfd/topology/nodes/1")).unwrap();
    let from = fixtures().join("rx5500xt/sys/class/kfd/kfd/topology/nodes/1/properties");
    fs::copy(from, machine.join("sys/class/kfd/kfd/topology/nodes/1/properties")).unwrap();
    let arguments = ["doctor", "--root", machine.to_str().unwrap(), "--json"];
    let output = unhang(&arguments).env("HSA_OVERRIDE_GFX_VERSION", "10.3.0").output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["machine"]["gpus"][0]["reported_gfx"], "gfx1030");

    let output = unhang(&["doctor", "--json"]).env("UNHANG_ROOT", "rx6800").output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["machine"]["described_by"], "rx6800");
}

/// What `unhang run` leaves behind if the shield could not repair everything (`tests/run.rs` tests that it does).
#[test]
fn kernels_that_the_shield_could_not_repair_are_named_with_the_switch_that_avoids_them() {
    let machine = tempfile::tempdir().unwrap();
    let node = "sys/class/kfd/kfd/topology/nodes/1";
    fs::create_dir_all(machine.path().join(node)).unwrap();
    fs::copy(fixtures().join("rx5500xt").join(node).join("properties"), machine.path().join(node).join("properties"))
        .unwrap();
    fs::write(machine.path().join("environment"), "HOME=/home/user\n").unwrap();
    let data = machine.path().join("home/user/.local/share/unhang");
    fs::create_dir_all(&data).unwrap();
    let root = machine.path().to_str().unwrap();
    let look = || json(&["doctor", "--root", root, "--json"]).0;
    assert!(!ids(&look()).contains(&"kernels-stay-unsafe"));

    let kernel =
        |name: &str, remedy: &str| serde_json::json!({"name": name, "reason": "no register is free", "remedy": remedy});
    let kernels = [
        kernel("Cijk_Ailk_Bljk_I8II", "MIOPEN_DEBUG_CONV_GEMM=0 keeps MIOpen from it"),
        kernel("Cijk_Ailk_Bjlk_I8II", "MIOPEN_DEBUG_CONV_GEMM=0 keeps MIOpen from it"),
        kernel("MIOpenConvUni\u{1b}[2J", "MIOPEN_DEBUG_CONV_DIRECT=0 avoids it"),
    ];
    let record = serde_json::json!({"program": "train", "version": "0.9", "kernels": kernels});
    fs::write(data.join("unrepaired.json"), record.to_string()).unwrap();
    let report = look();
    let finding = report["findings"].as_array().unwrap().iter().find(|it| it["id"] == "kernels-stay-unsafe").unwrap();
    assert_eq!(finding["severity"], "warning");
    assert_eq!(finding["summary"], "3 kernels that `train` loaded stay unsafe: Cijk_Ailk_Bljk_I8II and 2 others");
    let fix = "MIOPEN_DEBUG_CONV_DIRECT=0 avoids it; MIOPEN_DEBUG_CONV_GEMM=0 keeps MIOpen from it";
    assert_eq!(finding["fix"], fix, "each switch once");
    let (text, _) = run(&["doctor", "--root", root, "--explain"]);
    assert!(text.contains("warning[kernels-stay-unsafe]") && text.contains("MIOPEN_DEBUG_CONV_DIRECT=0"), "{text}");
    assert!(!text.contains('\u{1b}'), "{text}");

    // A truncated record says nothing, and breaks nothing.
    fs::write(data.join("unrepaired.json"), &record.to_string()[..40]).unwrap();
    assert!(!ids(&look()).contains(&"kernels-stay-unsafe"));
}

#[test]
fn torch_of_another_python_is_found_when_named() {
    let (report, _) = json(&["doctor", "--root", "container", "--json"]);
    assert_eq!(report["machine"]["torch"], Value::Array(vec![]));
    let machine = tempfile::tempdir().unwrap();
    let packages = machine.path().join("srv/env/lib/python3.11/site-packages/torch");
    fs::create_dir_all(&packages).unwrap();
    fs::create_dir_all(machine.path().join("sys")).unwrap();
    fs::write(packages.join("version.py"), "__version__ = '2.4.0+cpu'\nhip = None\n").unwrap();
    let root = machine.path().to_str().unwrap();
    for python in ["/srv/env", "/srv/env/bin/python"] {
        let (report, _) = json(&["doctor", "--root", root, "--json", "--python", python]);
        assert_eq!(report["machine"]["torch"][0]["version"], "2.4.0+cpu", "{python}");
        assert_eq!(report["machine"]["torch"][0]["python"], "3.11");
    }
}

/// An environment's `lib64` is a link to its `lib` on Debian.
#[test]
fn an_environment_that_is_named_by_a_relative_path_has_one_torch() {
    use std::os::unix::fs::PermissionsExt;
    let place = tempfile::tempdir().unwrap();
    let environment = place.path().join("venv");
    fs::create_dir_all(environment.join("lib/python3.11/site-packages/torch")).unwrap();
    fs::create_dir(environment.join("bin")).unwrap();
    symlink("lib", environment.join("lib64")).unwrap();
    let version = environment.join("lib/python3.11/site-packages/torch/version.py");
    fs::write(version, "__version__ = '2.4.0+made-up'\nhip = None\n").unwrap();
    fs::write(environment.join("pyvenv.cfg"), "").unwrap();
    fs::write(environment.join("bin/python"), "#!/bin/sh\n").unwrap();
    fs::set_permissions(environment.join("bin/python"), fs::Permissions::from_mode(0o755)).unwrap();
    for python in ["venv", "venv/bin/python", "./venv/bin/python"] {
        let output = unhang(&["doctor", "--json", "--python", python]).current_dir(place.path()).output().unwrap();
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let all = report["machine"]["torch"].as_array().unwrap();
        assert_eq!(all.iter().filter(|torch| torch["version"] == "2.4.0+made-up").count(), 1, "{python}: {all:?}");
    }
}

#[test]
fn wrong_usage_is_told_apart() {
    for arguments in [
        &["doctor", "--no-such-flag"][..],
        &["doctor", "--root", "no-such-folder"],
        &["doctor", "--env-file", "no-such-file"],
    ] {
        let output = unhang(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(!output.stderr.is_empty());
    }
}

#[test]
fn what_describes_no_machine_is_told_apart() {
    let place = tempfile::tempdir().unwrap();
    let path = |name: &str| place.path().join(name).to_str().unwrap().to_owned();
    fs::create_dir(path("empty")).unwrap();
    for (name, content) in [("none", "garbage\n=3\n"), ("some", "# mine\nHOME=/root\n\nFOO\n")] {
        fs::write(path(name), content).unwrap();
    }
    for (arguments, code, expected) in [
        (["--root", &path("nowhere")], 2, "does not exist"),
        (["--root", &path("none")], 2, "is a file, not a folder"),
        (["--root", &path("empty")], 3, "describes no machine"),
        (["--env-file", &path("none")], 2, "line 1 is not NAME=VALUE"),
    ] {
        let output = unhang(&[&["doctor"][..], &arguments].concat()).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
        assert!(said.contains(expected), "{arguments:?}: {said}");
        let is_about_a_folder = arguments[0] == "--root";
        assert_eq!(said.contains("tar xf machine.tar.gz"), is_about_a_folder, "{arguments:?}: {said}");
    }
    // `env` prints values that hold a newline over several lines.
    let output = unhang(&["doctor", "--env-file", &path("some")]).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_ne!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("left out 1 line of") && said.contains("first line 4"), "{said}");
}

#[test]
fn agreeing_in_advance_is_for_the_steps_of_the_fix_only() {
    let output = unhang(&["doctor", "--root", "no-gpu", "-y"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("--fix"), "{output:?}");
}

#[test]
fn this_machine_can_be_looked_at_and_it_is_quick() {
    let look = |_| {
        let start = Instant::now();
        (unhang(&["doctor", "--json"]).env("HOME", "/nonexistent").output().unwrap(), start.elapsed())
    };
    let (output, took) = (0..3).map(look).min_by_key(|(_, took)| *took).unwrap();
    assert!(matches!(output.status.code(), Some(0 | 1 | 3)), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["machine"]["described_by"], Value::Null);
    // This takes milliseconds if nothing else runs; the quickest of three and the limit are for a machine that is busy.
    assert!(took < Duration::from_secs(2), "{took:?}");
}

/// A hostile machine: huge files, noise, endless links, pipes, names and contents with escape codes.
fn hostile(root: &Path) {
    let escape = "\x1b[2J\x1b]0;owned\x07\u{9b}31m";
    let write = |path: &str, content: &[u8]| {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    };
    let noise: Vec<u8> = (0..200_000u32).map(|index| (index.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    write(
        "sys/class/kfd/kfd/topology/nodes/1/properties",
        b"simd_count 72\nvendor_id 4098\ndevice_id 29471\ngfx_target_version 100100\nlocation_id 99999999999999\n",
    );
    write("sys/class/kfd/kfd/topology/nodes/2/properties", &noise);
    write(&format!("sys/bus/pci/devices/{escape}/class"), b"0x030000");
    write(&format!("sys/bus/pci/devices/{escape}/vendor"), b"0x1002");
    write(&format!("sys/bus/pci/devices/{escape}/device"), b"0x731f");
    write(&format!("sys/bus/pci/devices/{escape}/uevent"), format!("DRIVER={escape}\n").as_bytes());
    write("proc/sys/kernel/osrelease", format!("6.8{escape}\n").as_bytes());
    write("opt/rocm-5.7.0/.info/version", format!("5.7{escape}").as_bytes());
    write(
        "etc/profile.d/rocm-rdna1.sh",
        format!("export HSA_OVERRIDE_GFX_VERSION=10.3.0\nexport MIOPEN_X{escape}=1\n").as_bytes(),
    );
    write("etc/profile.d/noise.sh", &noise);
    write("var/log/kern.log", &noise);
    write("home/user/.config/miopen/gfx1030_18.HIP.2_20.ufdb.txt", &noise);
    write("home/user/.cache/miopen/2.20/gfx1030_18.ukdb", &noise);
    write(
        "home/user/venv/lib/python3.10/site-packages/torch/version.py",
        format!("__version__ = '2.2.2+rocm5.7{escape}'\nhip = '5.7'\n").as_bytes(),
    );
    write(
        "home/user/venv/lib/python3.10/site-packages/torch/lib/libtorch_hip.so",
        &[b"\x7fELF\x02\x01".as_slice(), &noise].concat(),
    );
    write(
        "environment",
        format!(
            "HOME=/home/user\nVIRTUAL_ENV=/home/user/venv\nMIOPEN_{escape}=1\nMIOPEN_FIND_MODE={escape}\nHSA_XNACK=0\n"
        )
        .as_bytes(),
    );
    // A start-up file of four gigabytes that takes no space on the disk.
    let bashrc = fs::File::create(root.join("home/user/.bashrc")).unwrap();
    bashrc.set_len(4 << 30).unwrap();
    symlink("loop-b", root.join("opt/rocm-loop-a")).unwrap();
    symlink("rocm-loop-b", root.join("opt/rocm-loop-b")).unwrap();
    symlink(".", root.join("opt/rocm-self")).unwrap();
    symlink("/etc/shadow", root.join("home/user/.profile")).unwrap();
    symlink("../../../../../../../../etc/passwd", root.join("home/user/.zshrc")).unwrap();
    let pipe = std::process::Command::new("mkfifo").arg(root.join("home/user/.zshenv")).status();
    assert!(pipe.is_ok_and(|status| status.success()), "mkfifo is part of coreutils");
    for index in 0..5000 {
        fs::write(root.join(format!("etc/profile.d/{index}.sh")), "").unwrap();
    }
}

#[test]
fn hostile_contents_are_printed_safely() {
    let machine = tempfile::tempdir().unwrap();
    hostile(machine.path());
    let root = machine.path().to_str().unwrap();
    let start = Instant::now();
    let (text, code) = run(&["doctor", "--root", root]);
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    assert_eq!(code, 1, "an RDNA1 card under a spoof is in it");
    let (json_text, _) = run(&["doctor", "--root", root, "--json"]);
    for output in [&text, &json_text] {
        assert!(!output.chars().any(|c| c.is_control() && c != '\n'), "a control character came through");
        assert!(!output.contains("root:x:"), "a link led out of the folder");
    }
    insta::assert_snapshot!("hostile.text", text.replace(root, "MACHINE"));
}

#[test]
fn a_python_that_is_not_there_is_an_error() {
    let output = unhang(&["doctor", "--python", "/no/such/python"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("there is no Python at /no/such/python"));
    let described = unhang(&["doctor", "--root", "rx5600xt-rocm5.7", "--python", "/nope"]).output().unwrap();
    assert_eq!(described.status.code(), Some(2), "a described machine has none there either");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("notes.txt");
    fs::write(&file, "").unwrap();
    for path in [folder.path(), &file] {
        let output = unhang(&["doctor", "--python", path.to_str().unwrap()]).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{} is no Python", path.display());
        let plan = unhang(&["plan", "1x3x8x8", "4x3x3", "--python", path.to_str().unwrap()]).output().unwrap();
        assert_eq!(plan.status.code(), Some(2), "{} is refused by other commands too", path.display());
    }
}

#[test]
fn a_python_may_be_named_without_its_folder() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let python = folder.path().join("bin/python3.10");
    let torch = folder.path().join("lib/python3.10/site-packages/torch");
    fs::create_dir_all(python.parent().unwrap()).unwrap();
    fs::create_dir_all(&torch).unwrap();
    fs::write(torch.join("version.py"), "__version__ = '2.4.0+named'\n").unwrap();
    fs::write(&python, "#!/bin/sh\n").unwrap();
    fs::set_permissions(&python, fs::Permissions::from_mode(0o755)).unwrap();
    let with_path = |arguments: &[&str]| {
        let mut command = unhang(arguments);
        command.env("PATH", python.parent().unwrap()).env("HOME", folder.path()).output().unwrap()
    };
    let report = with_path(&["doctor", "--json", "--python", "python3.10"]);
    let report: Value = serde_json::from_slice(&report.stdout).expect("JSON");
    let torches = report["machine"]["torch"].as_array().unwrap();
    assert!(torches.iter().any(|torch| torch["version"] == "2.4.0+named"), "{report}");
    let plan = ["plan", "1x3x8x8", "4x3x3", "--python"];
    assert_eq!(with_path(&[&plan[..], &["python3.10"]].concat()).status.code(), Some(0));
    assert_eq!(
        with_path(&[&plan[..], &["python3.9"]].concat()).status.code(),
        Some(2),
        "there is no Python of that name"
    );
    let described = with_path(&["doctor", "--root", "no-gpu", "--python", "python3.10"]);
    assert_eq!(described.status.code(), Some(2), "this machine's PATH is not that of another");
}

/// Commands stay on their line, because people copy them; everything else fits the terminal.
#[test]
fn text_keeps_to_the_width_of_the_terminal() {
    for arguments in [
        &["doctor", "--root", "rx5600xt-rocm5.7"][..],
        &["doctor", "--root", "rx5600xt-rocm5.7", "--explain"],
        &["explain", "my training hangs", "--root", "rx5600xt-rocm5.7"],
    ] {
        let output = unhang(arguments).env("COLUMNS", "60").output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let is_one_word = |line: &str| line.split_whitespace().count() <= 2;
        let is_copied = |line: &str| line.starts_with("       ");
        for line in text.lines().filter(|line| !is_copied(line) && !is_one_word(line)) {
            assert!(line.chars().count() <= 60, "{arguments:?}: {line}");
        }
    }
}

#[test]
fn findings_are_counted_in_english() {
    let (text, _) = run(&["doctor", "--root", "no-gpu"]);
    assert!(text.contains("Findings: 0 errors, 0 warnings, 1 note\n"), "{text}");
}

#[test]
fn completions_and_manual_pages_are_generated() {
    for shell in ["bash", "zsh", "fish"] {
        let (text, code) = run(&["completions", shell]);
        assert!(code == 0 && text.contains("doctor"), "{shell}");
    }
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(run(&["completions", "--man", folder.path().to_str().unwrap()]), (String::new(), 0));
    let page = fs::read_to_string(folder.path().join("unhang-run.1")).unwrap();
    assert!(page.contains("hang\\-deadline") || page.contains("hang-deadline"), "{page}");
}
