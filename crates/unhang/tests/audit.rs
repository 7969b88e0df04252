//! `unhang audit` from outside.

use std::path::{Path, PathBuf};

use assert_cmd::Command;
use serde_json::Value;

fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../unhang-isa/tests/fixtures/hazards.co")
}

fn audit(arguments: &[&str], files: &[&Path]) -> (i32, String, String) {
    let output = Command::cargo_bin("unhang").unwrap().arg("audit").args(arguments).args(files).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

#[test]
fn json_has_every_rule_for_every_kernel_and_totals() {
    let (code, stdout, _) = audit(&["--json"], &[&fixture()]);
    assert_eq!(code, 1);
    let report: Value = serde_json::from_str(&stdout).unwrap();
    let kernels = report["files"][0]["objects"][0]["kernels"].as_array().unwrap();
    assert_eq!(report["files"][0]["objects"][0]["target"], "gfx1030");
    let keys = [
        "inst-fwd-prefetch",
        "vcmpx-exec-war",
        "lds-branch-vmem-war",
        "vmem-to-scalar-write",
        "smem-to-vector-write",
        "offset-3f",
        "flat-segment-offset",
        "lds-misaligned",
        "vcmpx-permlane",
        "nsa-to-vmem",
        "nsa-clause",
        "nsa-max-size",
        "negative-unaligned-scratch-offset",
        "buffer-out-of-range",
        "illegal-instruction",
    ];
    for key in keys {
        let sum: u64 = kernels.iter().map(|kernel| kernel["hazards"][key].as_u64().unwrap()).sum();
        assert_eq!(report["totals"][key], sum, "{key}");
        // The object is relocatable: no descriptor says that it runs in workgroup-processor mode.
        assert_eq!(sum == 0, key == "lds-misaligned", "{key}");
    }
    for kernel in kernels {
        // The key for findings across calls is present only if there are any.
        let keys_of_kernel = kernel.as_object().unwrap().keys().collect::<Vec<_>>();
        assert_eq!(keys_of_kernel[..2], ["name", "hazards"]);
        assert!(keys_of_kernel[2..].iter().all(|&key| key == "across_calls"), "{keys_of_kernel:?}");
        assert_eq!(kernel["hazards"].as_object().unwrap().keys().collect::<Vec<_>>(), keys);
    }
}

#[test]
fn the_chip_that_it_was_compiled_for_finds_nothing() {
    let (code, stdout, _) = audit(&["--chip", "gfx1030"], &[&fixture()]);
    assert_eq!(code, 0, "{stdout}");
    assert!(stdout.contains("none of"), "{stdout}");
}

#[test]
fn sites_show_the_code_and_explain_says_why() {
    let (code, stdout, _) = audit(&["--sites", "--explain"], &[&fixture()]);
    assert_eq!(code, 1);
    assert!(stdout.contains("> "), "{stdout}");
    assert!(stdout.contains("s_inst_prefetch 0x1"), "{stdout}");
    assert!(stdout.contains("hangs the shader"), "{stdout}");
}

#[test]
fn a_target_that_is_not_there_is_said() {
    let (code, stdout, _) = audit(&["--target", "gfx1012"], &[&fixture()]);
    assert_eq!(code, 3);
    assert!(stdout.contains("no gfx1012 code"), "{stdout}");
}

#[test]
fn wrong_input_is_an_error_with_its_reason() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    let object = std::fs::read(fixture()).unwrap();
    for (bytes, reason) in [
        (&b"words"[..], "not a code object"),
        (&object[..100], "section table is outside"),
        (&b"__CLANG_OFFLOAD_BUNDLE__\x01"[..], "table of contents"),
        (&b"SQLite format 3\0 and no more"[..], "database"),
        (&b"PK\x03\x04 and no more"[..], "no directory"),
    ] {
        std::fs::write(&path, bytes).unwrap();
        let (code, stdout, stderr) = audit(&[], &[&path]);
        assert_eq!(code, 2, "{stdout}");
        assert!(stdout.contains(reason), "expected `{reason}` in {stdout}");
        assert!(!stdout.contains("There is no"), "nothing is known of what is in it: {stdout}");
        assert!(!stderr.contains("panicked"), "{stderr}");
        let (code, stdout, _) = audit(&["--json"], &[&path]);
        assert_eq!(code, 2);
        serde_json::from_str::<Value>(&stdout).unwrap();
    }
    assert_eq!(audit(&[], &[&folder.path().join("missing")]).0, 2);
    assert_eq!(audit(&["--chip", "gfx9000"], &[&fixture()]).0, 2);
}

/// `unhang audit … | head` ends the reading before the writing.
#[test]
fn a_reader_that_is_gone_is_no_error() {
    for arguments in [&["audit", "--kernels"][..], &["audit", "--json"], &["audit"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_unhang"));
        let output = command.args(arguments).arg(fixture()).stdout(writer).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), said.as_ref()), (Some(1), ""), "{arguments:?}");
    }
}
