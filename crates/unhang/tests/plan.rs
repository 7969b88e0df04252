//! `unhang plan`, through the program.

use std::fs;
use std::path::Path;
use std::process::Output;

use assert_cmd::Command;
use serde_json::Value;
use unhang_engine::{EngineName, Verdict};
use unhang_evidence::{Canary, Record, RecordSource, Store};

const KEY: &str = "forward:f32:nchw:1x16x64x64:32x3x3:s1x1:p1x1:d1x1:g1";

/// An RX 5600 XT as a folder, spoofed as gfx1030, with a home for the store next to it.
struct Bench {
    folder: tempfile::TempDir,
}

impl Bench {
    fn new() -> Bench {
        let folder = tempfile::tempdir().unwrap();
        let node = folder.path().join("root/sys/class/kfd/kfd/topology/nodes/1");
        fs::create_dir_all(&node).unwrap();
        let properties = "cpu_cores_count 0\nsimd_count 72\nsimd_per_cu 2\nvendor_id 4098\ndevice_id 29471\n\
                          gfx_target_version 100100\nlocation_id 768\ndomain 0\n";
        fs::write(node.join("properties"), properties).unwrap();
        fs::write(folder.path().join("root/environment"), "HSA_OVERRIDE_GFX_VERSION=10.3.0\n").unwrap();
        Bench { folder }
    }

    fn home(&self) -> std::path::PathBuf {
        self.folder.path().join("home")
    }

    fn plan(&self, arguments: &[&str]) -> Value {
        let root = self.folder.path().join("root");
        let mut all = vec!["plan", "--json", "--root", root.to_str().unwrap()];
        all.extend(arguments);
        let output = run(&self.home(), &all);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

fn run(home: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::cargo_bin("unhang").unwrap();
    command.args(arguments).env("UNHANG_HOME", home).env_remove("UNHANG_ROOT").output().unwrap()
}

#[test]
fn an_affected_card_is_planned_around_until_something_is_proven() {
    let bench = Bench::new();
    let plan = bench.plan(&[KEY]);
    assert_eq!((&plan["engine"], &plan["engines"]), (&"cpu".into(), &serde_json::json!(["cpu"])));
    assert_eq!(plan["machine"]["affected"], true);
    assert_eq!(plan["machine"]["spoofed"], true);
    assert_eq!(plan["machine"]["torch_was_asked"], false);
    assert!(plan["reason"].as_str().unwrap().contains("canary"), "{plan}");
    assert!(plan["evidence"].to_string().contains("seed 003"), "{plan}");

    // A passed canary allows aten; evidence then decides.
    let machine = plan["machine"]["fingerprint"].as_str().unwrap();
    let store = Store::open(&bench.home());
    let canary = Canary {
        machine: machine.to_owned(),
        name: "aten".to_owned(),
        verdict: Verdict::Works,
        detail: String::new(),
        unix_seconds: 1_770_768_000,
    };
    assert!(store.set_canary(canary.clone()));
    drop(store);
    assert_eq!(bench.plan(&[KEY])["engines"], serde_json::json!(["aten", "cpu"]));
    let store = Store::open(&bench.home());
    let wrong = Record::new(KEY.parse().unwrap(), EngineName::Aten, machine, Verdict::Wrong, RecordSource::Probe);
    store.record(wrong.with_detail("relative error 0.3"));
    drop(store);
    let plan = bench.plan(&[KEY]);
    assert_eq!(plan["engine"], "cpu");
    assert!(plan["reason"].as_str().unwrap().contains("relative error 0.3"), "{plan}");
    // A rehearsal knows nothing about that.
    assert_eq!(bench.plan(&[KEY, "--rehearsed"])["engine"], "aten");
    // A failed canary excludes it.
    let store = Store::open(&bench.home());
    assert!(store.set_canary(Canary { verdict: Verdict::Hangs, ..canary }));
    drop(store);
    let plan = bench.plan(&["forward:f32:nchw:1x16x32x32:32x3x3:s1x1:p1x1:d1x1:g1"]);
    assert!(plan["reason"].as_str().unwrap().contains("its canary in a child process hung"), "{plan}");
}

/// A torch in an environment's packages, as much of it as the program reads.
fn install_torch(root: &Path, environment: &str, version: &str) {
    let folder = root.join(environment.trim_start_matches('/')).join("lib/python3.10/site-packages/torch");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("version.py"), format!("__version__ = '{version}'\nhip = '5.2.0'\n")).unwrap();
}

#[test]
fn what_is_kept_under_another_torch_is_said_and_does_not_count() {
    let bench = Bench::new();
    let root = bench.folder.path().join("root");
    install_torch(&root, "/usr", "1.13.1+rocm5.2");
    install_torch(&root, "/home/user/.local", "2.2.2+rocm5.7");
    fs::write(root.join("environment"), "HSA_OVERRIDE_GFX_VERSION=10.3.0\nHOME=/home/user\n").unwrap();
    assert_eq!(bench.plan(&[KEY])["kept_elsewhere"], serde_json::json!([]));

    // A probe found something with the torch in /usr; by default, the other one is used.
    let probed = bench.plan(&[KEY, "--python", "/usr"])["machine"].clone();
    assert_eq!(probed["torch"], "1.13.1+rocm5.2");
    let store = Store::open(&bench.home());
    let hangs =
        |machine: &str, source| Record::new(KEY.parse().unwrap(), EngineName::Miopen, machine, Verdict::Hangs, source);
    store.record(hangs(probed["fingerprint"].as_str().unwrap(), RecordSource::Probe));
    store.record(hangs("0123456789abcdef", RecordSource::Run));
    store.record(hangs("of somebody else", RecordSource::Import));
    drop(store);

    let plan = bench.plan(&[KEY]);
    assert_eq!(plan["machine"]["torch"], "2.2.2+rocm5.7");
    let found: Vec<(&Value, &Value)> =
        plan["kept_elsewhere"].as_array().unwrap().iter().map(|it| (&it["torch"], &it["verdicts"])).collect();
    assert!(found.contains(&(&"1.13.1+rocm5.2".into(), &1.into())), "{found:?}");
    assert!(found.contains(&(&Value::Null, &1.into())), "{found:?}");
    assert_eq!(found.len(), 2, "{found:?}");

    let text = run(&bench.home(), &["plan", KEY, "--root", root.to_str().unwrap()]);
    let text = String::from_utf8(text.stdout).unwrap().split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains("1 verdict kept under torch 1.13.1+rocm5.2"), "{text}");
    assert!(text.contains("--python /usr asks about that one"), "{text}");
    assert!(text.contains("unhang report --machine 0123456789abcdef"), "{text}");
    let report = run(&bench.home(), &["report", "--root", root.to_str().unwrap()]);
    let report = String::from_utf8(report.stderr).unwrap();
    assert!(report.contains("1 verdict kept under torch 1.13.1+rocm5.2"), "{report}");
}

#[test]
fn shapes_are_the_same_as_keys() {
    let bench = Bench::new();
    assert_eq!(bench.plan(&["1x16x64x64", "32x3x3", "--padding", "1"])["problem"], KEY);
    let plan = bench.plan(&[
        "2x8x9x7",
        "4x3x1",
        "--stride",
        "2x1",
        "--dilation",
        "2",
        "--groups",
        "4",
        "--dtype",
        "f16",
        "--layout",
        "nhwc",
        "--direction",
        "backward-data",
        "--transposed",
        "--output-padding",
        "1x0",
        "--device",
        "cpu",
    ]);
    assert_eq!(plan["problem"], "backward-data:f16:nhwc:2x8x9x7:4x3x1:s2x1:p0x0:d2x2:g4:t:o1x0");
    assert_eq!((&plan["engine"], &plan["device"]), (&"aten".into(), &"cpu".into()));
}

#[test]
fn a_3d_convolution_is_planned_by_the_first_that_it_is_folded_into() {
    let bench = Bench::new();
    let key = "forward:f32:ncdhw:2x16x8x64x64:32x3x3x3:s1x1x1:p1x1x1:d1x1x1:g1";
    let first = "forward:f32:nchw:16x48x64x64:32x3x3:s1x1:p1x1:d1x1:g1";
    let plan = bench.plan(&[key]);
    assert_eq!((&plan["problem"], &plan["folded"]["first"]), (&key.into(), &first.into()), "{plan}");
    assert_eq!((&plan["folded"]["parts"], &plan["engine"]), (&1.into(), &bench.plan(&[first])["engine"]));
    let root = bench.folder.path().join("root");
    let said = run(&bench.home(), &["plan", key, "--root", root.to_str().unwrap()]);
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    assert!(said.contains(key) && said.contains("folded into 1, the first of which"), "{said}");
    for wrong in ["forward:f32:ncdhw:2x16x8x64:32x3x3x3:s1x1x1:p1x1x1:d1x1x1:g1", "forward:f32:ncdhw"] {
        let answer = run(&bench.home(), &["plan", wrong]);
        assert_eq!(answer.status.code(), Some(2), "{wrong}");
        assert!(String::from_utf8_lossy(&answer.stderr).contains("is not a 3-d convolution"), "{wrong}");
    }
}

#[test]
fn torchs_own_shapes_types_and_words_are_taken() {
    let bench = Bench::new();
    let key = "forward:f16:nhwc:1x16x64x64:32x3x3:s1x1:p1x1:d1x1:g1";
    let torchs = ["--dtype", "torch.float16", "--layout", "channels_last", "--padding", "same"];
    for (input, filter) in [
        ("1x16x64x64", "32x3x3"),
        ("(1, 16, 64, 64)", "(32, 16, 3, 3)"),
        ("torch.Size([1, 16, 64, 64])", "torch.Size([32, 16, 3, 3])"),
    ] {
        assert_eq!(bench.plan(&[&[input, filter], torchs.as_slice()].concat())["problem"], key, "{input} {filter}");
    }
    // The weight of a transposed layer has the input's channels first.
    let plan = bench.plan(&["1x8x9x9", "(8, 2, 3, 3)", "--transposed", "--groups", "4", "--stride", "(2, 2)"]);
    assert_eq!(plan["problem"], "forward:f32:nchw:1x8x9x9:8x3x3:s2x2:p0x0:d1x1:g4:t:o0x0");
}

#[test]
fn strategies_and_settings_reach_the_planner() {
    let bench = Bench::new();
    let plan = bench.plan(&[KEY, "--strategy", "SELECTIVE", "--size-threshold", "64"]);
    assert_eq!(plan["engine"], "miopen");
    assert!(plan["warnings"][0].as_str().unwrap().contains("may hang"), "{plan}");
    assert_eq!(bench.plan(&[KEY, "--strategy", "selective"])["engine"], "cpu");
    assert_eq!(bench.plan(&[KEY, "--strategy", "selective", "--no-cpu-fallback"])["engine"], "aten");
    let plan = bench.plan(&[KEY, "--strategy", "tiled", "--tile-limit", "16", "--tile-engine", "cpu"]);
    assert_eq!(plan["tile"], serde_json::json!({"engine": "cpu", "output_limit": 14}));
    // The machine's environment counts: with all families except implicit GEMM off, few channels have no solver.
    let environment = "HSA_OVERRIDE_GFX_VERSION=10.3.0\nMIOPEN_DEBUG_CONV_GEMM=0\nMIOPEN_DEBUG_CONV_WINOGRAD=0\n\
                       MIOPEN_DEBUG_CONV_DIRECT=0\nMIOPEN_DEBUG_CONV_FFT=0\n";
    fs::write(bench.folder.path().join("root/environment"), environment).unwrap();
    let plan = bench.plan(&["1x3x40x40", "64x3x3", "--padding", "1", "--strategy", "implicit_gemm"]);
    assert_eq!(plan["engine"], "cpu");
    assert!(plan["reason"].as_str().unwrap().contains("no solver"), "{plan}");
}

#[test]
fn a_machine_without_a_card_is_left_alone() {
    let (home, root) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let output = run(home.path(), &["plan", KEY, "--root", root.path().to_str().unwrap()]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success());
    assert!(text.contains("engine       aten") && text.contains("Torch was not asked"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
}

#[test]
fn mistakes_are_answered_with_what_would_be_right() {
    let home = tempfile::tempdir().unwrap();
    let cases: [(&[&str], &str); 13] = [
        (&["plan"], "KEY | INPUT FILTER"),
        (&["plan", "1x16x64x64"], "hint: write it as"),
        (&["plan", "1x16x64", "32x3x3"], "expected 4 numbers such as 1x16x64x64"),
        (&["plan", "1x16x64x64", "32x3"], "expected 3 numbers"),
        (&["plan", "1x16x2x2", "32x3x3"], "the filter spans 3"),
        (&["plan", "1x16x64x64", "32x3x3", "--strategy", "magic"], "implicit_gemm"),
        (&["plan", "1x16x64x64", "32x3x3", "--stride", "0"], "stride height is 0"),
        (&["plan", KEY, "--stride", "2"], "a key says everything already"),
        (&["plan", "1x16x64x64", "32x3x3", "--stride", "1x2x3"], "expected a number such as 2, or height and width"),
        (&["plan", "1x16x64x64", "(32, 8, 3, 3)"], "takes 8 channels, and the input has 16"),
        (&["plan", "1x16x64x64", "32x3x3", "--padding", "same", "--stride", "2"], "needs a stride of 1"),
        (&["plan", "1x16x64x64", "32x2x2", "--padding", "same"], "even filter"),
        (&["plan", "1x16x64x64", "32x3x3", "--dtype", "int8"], "f32, f16, bf16, f64"),
    ];
    for (arguments, expected) in cases {
        let output = run(home.path(), arguments);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(stderr.contains(expected), "{arguments:?}: {stderr}");
    }
}
