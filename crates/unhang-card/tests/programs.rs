//! AMD's own ROCm software, unmodified, on the emulated card: rocminfo, and HIP programs on the real libamdhip64.

mod common;

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;

use common::{hip_program, installed, library, run};

const ROCMINFO: &str = "/usr/bin/rocminfo";
const SPOOF: (&str, &str) = ("HSA_OVERRIDE_GFX_VERSION", "10.3.0");
/// What ordinary programs do.
const PARTS: [&str; 12] = [
    "launch", "branches", "copies", "memset", "streams", "events", "graph", "lds", "scratch", "private", "atomics",
    "printf",
];

fn rocminfo(machine: &str, expected: &[&str]) {
    if !installed(ROCMINFO) {
        return;
    }
    let ran = run(machine, ROCMINFO.as_ref(), &[], &[]);
    assert!(ran.status.success(), "{}\n{}", ran.output, ran.errors);
    for text in expected {
        assert!(ran.output.contains(text), "{text}\n{}", ran.output);
    }
}

#[test]
fn rocminfo_shows_every_shipped_card() {
    rocminfo("rx5500xt", &["gfx1012", "RX 5500 XT (emulated)", "Compute Unit:            22 "]);
    rocminfo(
        "rx5600xt-rocm5.7",
        &["gfx1010", "RX 5600 XT (emulated)", "Compute Unit:            36 ", "6275072(0x5fc000) KB"],
    );
    rocminfo("rx5700xt-native", &["gfx1010", "RX 5700 XT (emulated)", "Compute Unit:            40 "]);
    rocminfo("bc250", &["gfx1013", "BC-250 (emulated)", "Compute Unit:            24 "]);
    rocminfo("two-gpus", &["gfx1010", "gfx1030", "RX 6800 (emulated)", "RX 5600 XT (emulated)"]);
    rocminfo("rx6800", &["gfx1030", "RX 6800 (emulated)", "L3: "]);
}

#[test]
fn a_device_without_access_is_refused_as_the_kernel_refuses_it() {
    if !installed(ROCMINFO) {
        return;
    }
    let ran = run("rx5700-denied", ROCMINFO.as_ref(), &[], &[]);
    assert!(!ran.output.contains("gfx1010"), "{}", ran.output);
}

#[test]
fn hip_programs_are_right_on_every_card_with_hazards_minded() {
    let Some(program) = hip_program() else { return };
    for machine in ["rx5500xt", "rx5600xt-rocm5.7", "rx5700xt-native", "rx6800"] {
        let ran = run(machine, &program, &PARTS, &[]);
        ran.assert_right(&PARTS);
        assert!(ran.output.contains("lane 2 of 3 says hello\n"), "{}", ran.output);
        assert!(ran.journal.contains("\"engine\":\"sdma\"") || machine == "rx5700xt-native", "copies go by SDMA");
    }
}

#[test]
fn copies_by_the_runtimes_own_kernels_run_as_real_code() {
    let Some(program) = hip_program() else { return };
    let ran = run("rx5600xt-rocm5.7", &program, &["launch", "copies", "memset"], &[("HSA_ENABLE_SDMA", "0")]);
    ran.assert_right(&["launch", "copies", "memset"]);
    assert!(!ran.journal.contains("\"engine\":\"sdma\""), "{}", ran.journal);
    assert!(ran.journal.contains("a kernel of the runtime itself"), "{}", ran.journal);
}

#[test]
fn kernels_compiled_at_run_time_are_right() {
    let Some(program) = hip_program() else { return };
    run("rx5600xt-rocm5.7", &program, &["rtc"], &[]).assert_right(&["rtc"]);
}

#[test]
fn memory_ends_at_the_cards_size_and_processes_have_cards_of_their_own() {
    let Some(program) = hip_program() else { return };
    run("rx5600xt-rocm5.7", &program, &["memory"], &[]).assert_right(&["memory"]);
    run("rx5600xt-rocm5.7", &program, &["fork"], &[]).assert_right(&["fork"]);
}

#[test]
fn two_cards_compute_beside_each_other_and_cannot_see_each_others_memory() {
    let Some(program) = hip_program() else { return };
    run("two-gpus", &program, &["peer"], &[]).assert_right(&["peer"]);
}

#[test]
fn a_memory_fault_is_reported_by_the_runtime_in_its_own_words() {
    let Some(program) = hip_program() else { return };
    let ran = run("rx5600xt-rocm5.7", &program, &["fault"], &[]);
    assert!(!ran.status.success());
    assert!(ran.errors.contains("Memory access fault by GPU node-1"), "{}", ran.errors);
    assert!(ran.errors.contains("Page not present or supervisor privilege"), "{}", ran.errors);
    assert!(ran.errors.contains("kernel _Z5storePii, offset "), "{}", ran.errors);
}

#[test]
fn a_queue_that_fails_ends_whoever_waits_for_it() {
    let Some(program) = hip_program() else { return };
    for part in ["illegal_waited", "illegal_asked", "illegal_called"] {
        let ran = run("rx5600xt-rocm5.7", &program, &[part], &[]);
        // By itself: a program that is still there at the deadline is killed.
        assert!(!ran.status.success() && ran.status.signal() != Some(9), "{part}: {}\n{}", ran.status, ran.errors);
        let said = "kernel _Z7illegalPi, offset ";
        assert!(ran.errors.contains(said) && ran.errors.contains("illegal instruction"), "{part}: {}", ran.errors);
        assert!(ran.errors.contains("HSA_STATUS_ERROR_ILLEGAL_INSTRUCTION"), "{part}: {}", ran.errors);
    }
}

#[test]
fn a_kernel_that_reaches_beyond_its_lds_reads_zeros_and_is_named_once() {
    let Some(program) = hip_program() else { return };
    let ran = run("rx5600xt-rocm5.7", &program, &["beyond_lds"], &[]);
    ran.assert_right(&["beyond_lds"]);
    let line = "kernel _Z10beyond_ldsPfi reaches beyond the LDS of its workgroup: it reads zeros there";
    assert_eq!(ran.errors.matches(line).count(), 1, "said once\n{}", ran.errors);
    // Two launches reach beyond it, by a word that is written and one that is read of each lane; the third has enough.
    let kernel = "\"kernel\":\"_Z10beyond_ldsPfi\"";
    let launches = ran.journal.lines().filter(|line| line.contains(kernel) && line.contains("\"event\":\"dispatch\""));
    let beyond: Vec<bool> = launches.map(|line| line.contains("\"beyond_lds\":256")).collect();
    assert_eq!(beyond, [true, true, false], "{}", ran.journal);
}

#[test]
fn a_kernel_that_never_ends_does_not_keep_its_program_from_ending() {
    let Some(program) = hip_program() else { return };
    let ran = run("rx5600xt-rocm5.7", &program, &["endless"], &[]);
    assert!(ran.status.success() && ran.output.contains("still running"), "{}\n{}", ran.output, ran.errors);
}

#[test]
fn spoofed_code_is_stopped_by_a_rule_and_the_program_gets_a_reset() {
    let Some(program) = hip_program() else { return };
    let ran = run("rx5600xt-rocm5.7", &program, &["launch"], &[SPOOF]);
    assert!(!ran.status.success());
    assert!(ran.errors.contains("on the emulated gfx1010: hazard vcmpx-exec-war at `v_cmpx"), "{}", ran.errors);
    assert!(ran.errors.contains("Generic hang recovery"), "{}", ran.errors);
    assert_eq!(ran.errors.matches("hazard vcmpx-exec-war").count(), 1, "said once");
    // An ideal chip, and a real gfx1030, compute the same code.
    run("rx5600xt-rocm5.7", &program, &["launch"], &[SPOOF, ("UNHANG_CARD_HAZARDS", "ignore")])
        .assert_right(&["launch"]);
    run("rx6800", &program, &["launch"], &[SPOOF]).assert_right(&["launch"]);
}

#[test]
fn a_queue_that_hangs_answers_questions_and_lets_the_program_end() {
    let Some(program) = hip_program() else { return };
    run("rx5600xt-rocm5.7", &program, &["watched"], &[]).assert_right(&["watched"]);
    let ran = run("rx5600xt-rocm5.7", &program, &["watched"], &[SPOOF, ("UNHANG_CARD_HAZARDS", "hang")]);
    assert_eq!(ran.status.code(), Some(86), "{}\n{}", ran.output, ran.errors);
    assert!(ran.errors.contains("its queue hangs from here on, as asked"), "{}", ran.errors);
}

#[test]
fn careless_requests_are_refused_as_the_kernel_refuses_them() {
    if !installed("/usr/bin/cc") || !installed("/usr/include/linux/kfd_ioctl.h") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("driver");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/driver.c");
    // Debian's header asks for another package's, of which it needs the types only.
    std::fs::create_dir(folder.path().join("drm")).unwrap();
    std::fs::write(folder.path().join("drm/drm.h"), "#include <linux/types.h>\n").unwrap();
    let compiled = Command::new("/usr/bin/cc")
        .arg("-O1")
        .arg("-I")
        .arg(folder.path())
        .arg(source)
        .arg("-o")
        .arg(&program)
        .status()
        .unwrap();
    assert!(compiled.success());
    let ran = run("rx5600xt-rocm5.7", &program, &[], &[]);
    ran.assert_right(&["driver"]);
    assert_eq!(
        ran.errors.matches("request 0x7b of the driver is not known and was refused").count(),
        1,
        "{}",
        ran.errors
    );
}

#[test]
fn spoofed_code_is_right_once_the_shield_has_repaired_it() {
    let Some(program) = hip_program() else { return };
    let shield = library("libunhang_shield.so");
    let variables = [SPOOF, ("HSA_TOOLS_LIB", shield.to_str().unwrap()), ("UNHANG_SHIELD_LOG", "stderr")];
    let ran = run("rx5600xt-rocm5.7", &program, &PARTS, &variables);
    ran.assert_right(&PARTS);
    assert!(ran.errors.contains("repaired"), "the shield says so: {}", ran.errors);
}

/// `unhang run` sets both variables; `crates/unhang/tests/run.rs` has that.
#[test]
fn a_program_without_convolutions_whose_queue_hangs_is_named_and_ended() {
    let Some(program) = hip_program() else { return };
    let shield = library("libunhang_shield.so");
    // Long enough for what is launched before, on a busy machine.
    let variables = [("HSA_TOOLS_LIB", shield.to_str().unwrap()), ("UNHANG_QUEUE_DEADLINE", "15")];
    let ran = run("rx5600xt-rocm5.7", &program, &["launch", "stuck"], &variables);
    assert_eq!(ran.status.code(), Some(87), "{}\n{}", ran.output, ran.errors);
    assert!(ran.output.contains("right: launch\n"), "{}", ran.output);
    let said = ran.errors.lines().find(|line| line.contains("HANG on the accelerator")).expect(&ran.errors);
    let seconds =
        said.split_once("a queue has held packets and not moved for ").and_then(|(_, it)| it.split_once(" s,"));
    assert!(seconds.expect(said).0.parse::<f64>().unwrap() >= 15.0, "{said}");
    assert!(said.contains(" at kernel _Z4spin"), "{said}");
}
