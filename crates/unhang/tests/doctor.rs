//! `unhang doctor` on machines that are folders: text and JSON of each are kept as snapshots.

use std::fs;
use std::io::Read;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::{Duration, Instant};

use assert_cmd::Command;
use serde_json::Value;

mod machines;
#[path = "doctor/self_test.rs"]
mod self_test;

use machines::{copy, fixtures};

/// The program in the folder of fixtures, with no variables but those given: output does not depend on who runs it.
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

    // A folder without an `environment`: then the process's.
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

/// What `unhang run` leaves behind where the shield could not repair all (`tests/run.rs` has that it does).
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

    // A record that is cut off says nothing, and breaks nothing.
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
fn this_machine_can_be_looked_at_and_it_is_quick() {
    let start = Instant::now();
    let output = unhang(&["doctor", "--json"]).env("HOME", "/nonexistent").output().unwrap();
    let took = start.elapsed();
    assert!(matches!(output.status.code(), Some(0 | 1 | 3)), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["machine"]["described_by"], Value::Null);
    // Milliseconds when nothing else runs; the bound is for a machine that is busy compiling.
    assert!(took < Duration::from_secs(2), "{took:?}");
}

/// A machine that means harm: huge files, noise, endless links, pipes, names and contents with escape codes.
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
    // A start-up file of four gigabytes that takes no room on the disk.
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
fn a_bundle_describes_the_same_machine_without_names() {
    let folder = tempfile::tempdir().unwrap();
    let machine = folder.path().join("original");
    copy(&fixtures().join("rx5600xt-rocm5.7"), &machine);
    // Names to be taken out, and a secret beside a leftover line.
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
        let mut content = Vec::new();
        fs::File::open(path).unwrap().read_to_end(&mut content).unwrap();
        all.push_str(&String::from_utf8_lossy(&content));
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
    // A home outside of /home, a file server, a secret among a compiler's options, a mail address.
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
    let root = machine.to_str().unwrap();
    let before = json(&["doctor", "--root", root, "--json"]).0;
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

/// A copy of a machine with something changed.
fn changed(machine: &str, change: impl Fn(&Path)) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    copy(&fixtures().join(machine), folder.path());
    change(folder.path());
    folder
}

/// All commands of a plan, those of every way in order.
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
    assert!(commands[1].ends_with("pip install dist/unhang-*.whl"), "{commands:?}");
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
    let install =
        "python3 -m venv --system-site-packages ~/rdna1 && . ~/rdna1/bin/activate && pip install dist/unhang-*.whl";
    assert_eq!((code, commands(&report)), (0, vec![install, "unhang run -- python train.py"]), "{report}");
}

#[test]
fn no_torch_is_recommended_that_does_not_load_here() {
    let (report, _) = json(&["doctor", "--root", "bc250", "--json"]);
    let commands = commands(&report);
    assert!(commands[0].starts_with("docker run -it --device /dev/kfd"), "glibc 2.42, and no native wheels: {report}");
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
            // journald makes its files larger than what is in them.
            bytes.resize(3 << 20, 0);
            fs::write(folder.join("system.journal"), bytes).unwrap();
        });
        let report = examined(&machine);
        assert!(ids(&report).contains(&id), "{id}: {:?}", ids(&report));
        assert!(!report.to_string().contains("0123456789abcdef"), "the machine's own number stays here");
    }
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

/// Of each message named in a report: the section, facts of the machine, and a command at the end.
#[test]
fn answers_have_the_machines_facts_and_end_with_a_command() {
    for (message, section, last) in [
        ("error: not a valid operand. v_add_f32 row_bcast:15", "batch-norm-compile", "unhang run -- python train.py"),
        (
            "HIPBLAS_STATUS_INTERNAL_ERROR",
            "hipblas-status",
            "TORCH_BLAS_PREFER_HIPBLASLT=0 unhang run -- python train.py",
        ),
        ("HIP error: an illegal memory access was encountered", "illegal-memory-access", "unhang doctor --self-test"),
        ("Torch is not able to use GPU", "webui-gpu-check", "unhang doctor --python venv/bin/python"),
        ("miopenStatusUnknownError", "miopen-status", "unhang miopen-cache verify"),
        ("unsupported target: 'gfx1010'", "triton-unsupported-target", "pip install 'triton<3.9'"),
    ] {
        let (text, code) = run(&["explain", message, "--root", "rx5700xt-native"]);
        assert!(code == 0 && text.starts_with(&format!("{section}\n")), "{text}");
        assert!(text.contains("Radeon RX 5700 XT (gfx1010)") && text.contains("torch 2.8.0"), "{text}");
        assert_eq!(text.lines().last().map(str::trim), Some(last), "{text}");
    }
    // What the doctor found here decides the command.
    let (text, _) = run(&["explain", "ROCk module is NOT loaded", "--root", "rx5700-denied"]);
    assert!(text.contains("error: this user may not open /dev/kfd"), "{text}");
    assert!(text.trim_end().ends_with("sudo usermod -aG render,video \"$USER\""), "{text}");
    // Nothing about torch for programs without it.
    let (text, _) = run(&["explain", "amdgpu is not supported gpu_type=gfx1012", "--root", "rx5500xt"]);
    assert!(text.starts_with("llama-cpp\n") && !text.contains("torch 2.5.1"), "{text}");
    assert!(text.contains("-DAMDGPU_TARGETS=gfx1012"), "{text}");
    let (report, _) = json(&["explain", "--json", "row_bcast", "--root", "rx5700xt-native"]);
    assert_eq!(report["next"], "unhang run -- python train.py");
}

/// Commands stay on their line, since they are copied; everything else keeps to the terminal.
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
        let is_copied =
            |line: &str| line.starts_with("       ") || line.starts_with("  torch  ") || line.starts_with("  ROCm  ");
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
fn explaining_a_finding_a_topic_and_a_pasted_error() {
    let (text, code) = run(&["explain", "spoofed-architecture"]);
    assert!(code == 0 && text.contains("have hardware bugs"), "{text}");
    let (text, code) = run(&["explain", "RuntimeError: HIP error: invalid device function"]);
    assert!(code == 0 && text.starts_with("torch-lacks-architecture\n"), "{text}");
    let (text, code) = run(&["explain", "routes", "--root", "rx5500xt"]);
    assert!(code == 0 && text.contains("torch[device-gfx1012]") && text.contains("[owners report]"), "{text}");
    let (report, _) = json(&["explain", "--json", "ring gfx timeout"]);
    assert_eq!(report["sections"][0]["id"], "ring-timeout");
    let (text, code) = run(&["explain", "info[gpu-hidden]: HIP_VISIBLE_DEVICES=0 shows 1 of 2 AMD GPUs"]);
    assert!(code == 0 && text.starts_with("gpu-hidden\n"), "a line of the doctor's own: {text}");
    let (text, code) = run(&["explain", "my training hangs"]);
    assert!(code == 0 && text.starts_with("spoofed-architecture\n"), "{text}");
    let empty = unhang(&["explain", " "]).output().unwrap();
    assert_eq!(empty.status.code(), Some(2), "nothing to explain is no text of which nothing is known");
    let (text, _) = run(&["explain", "routes", "--root", "bc250"]);
    assert!(!text.contains("pacman"), "Arch builds nothing for gfx1013: {text}");
    assert!(text.lines().all(|line| line.chars().count() <= 100 || line.starts_with("       ")), "{text}");
    let (text, code) = run(&["explain", "nothing of the kind"]);
    assert!(code == 3 && text.contains("unhang doctor"), "{text}");
    let output = unhang(&["explain", "-"]).write_stdin("x\nHIP out of memory. Tried\n").output().unwrap();
    assert!(String::from_utf8_lossy(&output.stdout).starts_with("out-of-memory"));
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

fn each_file(folder: &Path, visit: &mut dyn FnMut(&Path)) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { each_file(&path, visit) } else { visit(&path) }
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
    assert!(said.contains("env uninstall` restores every byte"), "what was done is said: {said}");
    let undone = unhang(&["env", "uninstall", "--system", "--root", root, "--yes"]).output().unwrap();
    let undone_for_user = unhang(&["env", "uninstall", "--user", "--root", root, "--yes"]).output().unwrap();
    assert!(undone.status.success() && undone_for_user.status.success(), "{undone:?} {undone_for_user:?}");
    let nothing = unhang(&["doctor", "--root", "rx6800", "--fix"]).output().unwrap();
    assert!(String::from_utf8_lossy(&nothing.stderr).contains("nothing here that unhang could fix"), "{nothing:?}");
}

/// JAX's wheels leave RDNA1 cards out; under `unhang run` the card passes for a chip that is on their list.
#[test]
fn a_machine_with_jax_alone_is_not_sent_to_torch() {
    let (report, _) = json(&["doctor", "--root", "rx5700xt-jax", "--json"]);
    assert!(ids(&report).contains(&"framework-refuses-chip"), "{report:#}");
    assert!(!ids(&report).contains(&"torch-missing"), "{report:#}");
    let commands: Vec<_> = report["steps"].as_array().unwrap().iter().map(|step| &step["command"]).collect();
    assert_eq!(commands, ["unhang run -- python train.py"], "{report:#}");
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
    assert_eq!(commands[0], "pip install 'tensorflow-rocm==2.13.1.600'", "{report:#}");
    assert_eq!(commands[1], "unhang run -- python train.py");
}
