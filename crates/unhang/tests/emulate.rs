//! `unhang emulate` from outside: a kernel runs and is inspected, and wrong input is rejected with the valid choices.

use std::process::{Command, Output};

fn fixture(name: &str) -> String {
    format!("{}/../unhang-emulator/tests/fixtures/{name}", env!("CARGO_MANIFEST_DIR"))
}

fn emulate(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_unhang")).arg("emulate").args(arguments).output().unwrap()
}

fn texts(output: &Output) -> (i32, String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

const AXPY: [&str; 9] = ["--kernel", "axpy", "--lanes", "64", "--args", "floats=64", "floats=64", "f32=0.5", "i32=64"];

#[test]
fn a_kernel_runs_and_its_buffers_and_counts_are_shown() {
    let file = fixture("kernels.gfx1010.co");
    let (code, stdout, stderr) = texts(&emulate(&[&[file.as_str(), "--counts"], &AXPY[..]].concat()));
    assert_eq!(code, 0, "{stderr}");
    assert!(stdout.contains("on the emulated gfx1010"), "{stdout}");
    assert!(stdout.contains("[0.0,1.5,3.0,4.5,6.0,7.5,9.0,10.5]"), "x/2 + x: {stdout}");
    assert!(stdout.contains(" s_endpgm"), "{stdout}");
    let json = emulate(&[&[file.as_str(), "--json", "--counts"], &AXPY[..]].concat());
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(json["executed"]["s_endpgm"], 2, "two waves");
    assert_eq!(json["fault"], serde_json::Value::Null);
}

#[test]
fn a_trace_shows_each_instruction_of_the_wave_and_a_breakpoint_its_registers() {
    let file = fixture("kernels.gfx1010.co");
    let (code, trace, _) = texts(&emulate(&[&[file.as_str(), "--trace"], &AXPY[..]].concat()));
    assert_eq!(code, 0);
    let lines: Vec<&str> = trace.lines().filter(|line| line.contains(" exec 0x")).collect();
    assert!(lines.len() > 5 && lines[0].trim_start().starts_with("0x0 "), "{trace}");
    let last = lines.last().unwrap();
    assert!(last.contains("s_endpgm"), "{trace}");
    let offset = last.split_whitespace().next().unwrap();
    let (code, stopped, _) = texts(&emulate(&[&[file.as_str(), "--break", offset], &AXPY[..]].concat()));
    assert_eq!(code, 0);
    assert!(stopped.contains(&format!("before {offset}: s_endpgm")), "{stopped}");
    assert!(stopped.contains("  exec ") && stopped.contains("  s0 ") && stopped.contains("  v0 "), "{stopped}");
    let (_, dumped, _) = texts(&emulate(&[&[file.as_str(), "--dump", "0x0"], &AXPY[..]].concat()));
    assert!(dumped.contains("before 0x0:") && dumped.contains("on the emulated"), "it goes on: {dumped}");
}

#[test]
fn an_offset_that_is_never_reached_is_named() {
    let file = fixture("kernels.gfx1010.co");
    for option in ["--break", "--dump"] {
        let (code, stdout, stderr) = texts(&emulate(&[&[file.as_str(), option, "0x2"], &AXPY[..]].concat()));
        assert_eq!(code, 3, "{stderr}");
        assert!(stdout.contains("on the emulated gfx1010"), "the kernel has run: {stdout}");
        assert!(stderr.contains("never reached 0x2") && stderr.contains("--trace"), "{stderr}");
    }
    let (code, _, stderr) = texts(&emulate(&[&[file.as_str(), "--dump", "0x0", "--wave", "7"], &AXPY[..]].concat()));
    assert_eq!(code, 3);
    assert!(stderr.contains("wave 7") && stderr.contains("--wave takes 0 to 1"), "{stderr}");
    let json = emulate(&[&[file.as_str(), "--json", "--dump", "0x0", "--dump", "0x2"], &AXPY[..]].concat());
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(json["not_reached"], serde_json::json!(["0x2"]));
    // Nothing is looked for after a breakpoint.
    let (code, _, stderr) = texts(&emulate(&[&[file.as_str(), "--break", "0x0", "--dump", "0x2"], &AXPY[..]].concat()));
    assert_eq!(code, 0, "{stderr}");
}

#[test]
fn a_hazard_is_a_fault_unless_it_is_to_be_ignored() {
    let file = fixture("kernels.gfx1030.co");
    let sum = ["--kernel", "block_sum", "--lanes", "256", "--args", "floats=256", "floats=1", "i32=256"];
    let (code, _, stderr) = texts(&emulate(&[&[file.as_str(), "--chip", "gfx1010"], &sum[..]].concat()));
    assert_eq!(code, 1);
    assert!(stderr.contains("would hang or may corrupt"), "{stderr}");
    let (code, stdout, _) = texts(&emulate(&[&[file.as_str(), "--ignore-hazards"], &sum[..]].concat()));
    assert_eq!(code, 0);
    assert!(stdout.contains("[32640.0]"), "{stdout}");
}

#[test]
fn wrong_input_is_refused_with_what_is_there() {
    let refused = |arguments: &[&str], expected: &[&str]| {
        let (code, stdout, stderr) = texts(&emulate(arguments));
        assert_eq!(code, 2, "{arguments:?}: {stdout}{stderr}");
        for text in expected {
            assert!(stderr.contains(text), "{text}\n{stderr}");
        }
    };
    let file = fixture("kernels.gfx1010.co");
    refused(&["/not/there.co"], &["cannot read /not/there.co"]);
    refused(&[file!()], &["cannot read"]);
    let folder = tempfile::tempdir().unwrap();
    let words = folder.path().join("words.co");
    std::fs::write(&words, "words").unwrap();
    refused(&[words.to_str().unwrap()], &["is not a code object"]);
    refused(&[&file, "--kernel", "axpi"], &["no kernel named axpi", "axpy"]);
    refused(&[&file, "--kernel", "axpy", "--args", "floats=8"], &["takes 4 arguments, and 1 were given", "a buffer"]);
    let wrong = ["--kernel", "axpy", "--args", "floats=8", "floats=8", "f64=1", "i32=8"];
    refused(&[&[file.as_str()], &wrong[..]].concat(), &["argument 2 of axpy has 4 bytes"]);
    let wrong = ["--kernel", "axpy", "--args", "floats=8", "floats=8", "f32=one", "i32=8"];
    refused(&[&[file.as_str()], &wrong[..]].concat(), &["argument 2", "not such a number"]);
    refused(&[&file, "--kernel", "axpy", "--break", "here"], &["is not an offset"]);
    let (code, stdout, _) = texts(&emulate(&[&file]));
    assert_eq!(code, 0);
    assert!(stdout.contains("axpy: a buffer, a buffer, 4 bytes by value, 4 bytes by value"), "{stdout}");
}
