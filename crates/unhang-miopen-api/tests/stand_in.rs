//! The child with a stand-in for MIOpen (`stand_in.c`), which computes every convolution on the CPU and enforces the
//! rules of the real interface. The tests talk to the child as a prober does.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use serde_json::{Value, json};
use unhang_conv::{DataType, Direction, Layout, Problem};
use unhang_cpu::CpuEngine;
use unhang_engine::tolerance;
use unhang_miopen_api::child::{Miopen, MiopenError};
use unhang_probe::trial::serve;

/// The stand-in. `None` without a C compiler that knows `_Float16`.
fn stand_in(folder: &Path) -> Option<String> {
    let (source, library) = (concat!(env!("CARGO_MANIFEST_DIR"), "/tests/stand_in.c"), folder.join("libMIOpen.so.1"));
    let known = ["cc", "clang-15", "clang-19"].into_iter().any(|compiler| {
        let options = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-msse2", "-o"];
        Command::new(compiler).args(options).arg(&library).arg(source).status().is_ok_and(|it| it.success())
    });
    if !known {
        println!("skipped: no C compiler that knows _Float16 is installed");
    }
    known.then(|| library.display().to_string())
}

/// A child in a thread, and our end of its socket.
struct Child {
    socket: UnixStream,
    lines: std::io::Lines<BufReader<UnixStream>>,
}

impl Child {
    fn start(library: &str) -> Child {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let library = library.to_owned();
        std::thread::spawn(move || {
            let miopen = Miopen::load(Some(&library)).unwrap();
            let _ = serve(theirs, miopen, &CpuEngine::with_threads(1));
        });
        let mut child = Child { lines: BufReader::new(ours.try_clone().unwrap()).lines(), socket: ours };
        let ready = child.hear();
        assert_eq!(ready["about"], "MIOpen 3.4.0 on HIP 60443484", "{ready}");
        child
    }

    /// Its next message, except for heartbeats.
    fn hear(&mut self) -> Value {
        loop {
            let line = self.lines.next().expect("the child lives").unwrap();
            let message: Value = serde_json::from_str(&line).unwrap();
            if message["say"] != "heartbeat" {
                return message;
            }
        }
    }

    /// The stages that it reports, and its answer.
    fn ask(&mut self, request: Value) -> (Vec<String>, Value) {
        writeln!(self.socket, "{request}").unwrap();
        let mut stages = Vec::new();
        loop {
            let message = self.hear();
            if message["say"] == "answer" {
                return (stages, message);
            }
            stages.push(message["stage"].as_str().unwrap().to_owned());
        }
    }

    fn try_problem(&mut self, problem: &Problem) -> (Vec<String>, Value) {
        self.ask(json!({"id": 7, "problem": problem.to_string(), "engine": "miopen", "variant": ""}))
    }
}

#[test]
fn every_kind_of_convolution_is_computed_as_the_interface_wants_it() {
    let folder = tempfile::tempdir().unwrap();
    let Some(library) = stand_in(folder.path()) else { return };
    let mut child = Child::start(&library);
    let mut runner = TestRunner::deterministic();
    let mut seen = std::collections::BTreeSet::new();
    for data_type in [DataType::F32, DataType::F16, DataType::Bf16] {
        for _ in 0..14 {
            let generated = unhang_suite::any_problem(data_type).new_tree(&mut runner).unwrap().current();
            seen.insert((generated.transposed(), generated.groups() > 1));
            for direction in Direction::ALL {
                for layout in [Layout::Nchw, Layout::Nhwc] {
                    let problem = generated.with_direction(direction).with_layout(layout);
                    let (stages, answer) = child.try_problem(&problem);
                    assert_eq!(answer["ended"], "computed", "{problem}: {answer}");
                    assert_eq!(answer["not_numbers"], 0, "{problem}: {answer}");
                    let error = answer["relative_error"].as_f64().unwrap();
                    assert!(error <= tolerance::nonsense(data_type) / 10.0, "{problem}: {answer}");
                    assert_eq!(stages, ["find", "run", "check"], "{problem}");
                    assert!(answer["detail"].as_str().unwrap().starts_with("GEMM, the best of 1"), "{answer}");
                }
            }
        }
    }
    assert_eq!(seen.len(), 4, "transposed or not, with groups or not: {seen:?}");
}

#[test]
fn what_is_not_mine_or_no_convolution_is_declined() {
    let folder = tempfile::tempdir().unwrap();
    let Some(library) = stand_in(folder.path()) else { return };
    let mut child = Child::start(&library);
    let key = "forward:f64:nchw:1x1x8x8:1x3x3:s1x1:p1x1:d1x1:g1";
    let answer = |child: &mut Child, problem: &str, engine: &str| {
        child.ask(json!({"id": 1, "problem": problem, "engine": engine, "variant": ""})).1
    };
    assert_eq!(answer(&mut child, key, "miopen")["ended"], "unsupported", "double precision");
    assert_eq!(answer(&mut child, &key.replace("f64", "f32"), "aten")["ended"], "unsupported");
    assert_eq!(answer(&mut child, "nonsense", "miopen")["ended"], "error");
    assert_eq!(
        child.ask(json!({"id": 2, "problem": "", "engine": "", "variant": "", "canary": true})).1["ended"],
        "computed"
    );
}

/// One child per mood: the library in this process reads the variable.
#[test]
fn what_the_library_does_wrong_is_told_apart() {
    const MOOD: &str = "STAND_IN";
    const THIS: &str = "what_the_library_does_wrong_is_told_apart";
    let folder = tempfile::tempdir().unwrap();
    let Some(library) = stand_in(folder.path()) else { return };
    let Ok(mood) = std::env::var(MOOD) else {
        for mood in ["wrong", "none", "error", "garble", "hang", "nodevice"] {
            let again = Command::new(std::env::current_exe().unwrap()).args(["--exact", THIS]).env(MOOD, mood).status();
            assert!(again.unwrap().success(), "{mood}");
        }
        return;
    };
    if mood == "nodevice" {
        assert_eq!(Miopen::load(Some(&library)).unwrap().describe().unwrap().devices, [] as [&str; 0]);
        return;
    }
    let mut child = Child::start(&library);
    let problem: Problem = "forward:f32:nchw:1x2x8x8:3x3x3:s1x1:p1x1:d1x1:g1".parse().unwrap();
    match mood.as_str() {
        "wrong" => {
            let (_, answer) = child.try_problem(&problem.with_direction(Direction::BackwardWeights));
            assert!(answer["relative_error"].as_f64().unwrap() > 1.0, "{answer}");
        }
        "none" => assert_eq!(child.try_problem(&problem).1["ended"], "unsupported"),
        "error" => {
            let (stages, answer) = child.try_problem(&problem);
            assert_eq!((stages.last().unwrap().as_str(), &answer["ended"]), ("find", &json!("error")), "{answer}");
            assert!(answer["detail"].as_str().unwrap().contains("internal error"), "{answer}");
        }
        "garble" => {
            let request = json!({"id": 2, "problem": "", "engine": "", "variant": "", "canary": true});
            assert_eq!(child.ask(request).1["ended"], "error");
        }
        "hang" => {
            // The convolution never ends. The child says where it is, and keeps sending heartbeats.
            let request = json!({"id": 3, "problem": problem.to_string(), "engine": "miopen", "variant": ""});
            writeln!(child.socket, "{request}").unwrap();
            let stages = [(); 2].map(|()| child.hear()["stage"].clone());
            assert_eq!(stages, ["find", "run"].map(|it| json!(it)));
            let next: Value = serde_json::from_str(&child.lines.next().unwrap().unwrap()).unwrap();
            assert_eq!(next["say"], "heartbeat");
        }
        other => panic!("{other}"),
    }
}

#[test]
fn a_library_that_is_not_there_or_is_another_one_is_named() {
    let missing = Miopen::load(Some("/nowhere/libMIOpen.so")).unwrap_err();
    assert!(
        matches!(&missing, MiopenError::Missing { tried } if tried[0].contains("/nowhere/libMIOpen.so")),
        "{missing}"
    );
    let other = Miopen::load(Some("libm.so.6")).unwrap_err().to_string();
    assert!(other.contains("miopen"), "{other}");
}
