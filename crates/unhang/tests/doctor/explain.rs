//! `unhang explain`: findings, topics and pasted errors.

use super::{json, run, unhang};

/// For each message named in a report: the section, facts about the machine, and a command at the end.
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
    // The doctor's findings here decide the command.
    let (text, _) = run(&["explain", "ROCk module is NOT loaded", "--root", "rx5700-denied"]);
    assert!(text.contains("error: this user may not open /dev/kfd"), "{text}");
    assert!(text.trim_end().ends_with("sudo usermod -aG render,video \"$USER\""), "{text}");
    // Nothing about torch for programs without it.
    let (text, _) = run(&["explain", "amdgpu is not supported gpu_type=gfx1012", "--root", "rx5500xt"]);
    assert!(text.starts_with("llama-cpp\n") && !text.contains("torch 2.5.1"), "{text}");
    assert!(text.contains("-DAMDGPU_TARGETS=gfx1012"), "{text}");
    assert!(text.trim_end().ends_with("sudo systemctl restart ollama"), "that is ollama's message: {text}");
    let (text, _) = run(&["explain", "llama-cli: no kernel image is available", "--root", "rx5500xt"]);
    assert!(text.trim_end().ends_with("cmake -B build -DGGML_VULKAN=ON && cmake --build build"), "{text}");
    for (text, section, command) in [
        ("ROCk module is NOT loaded", "kfd-no-access", "sudo modprobe amdgpu"),
        ("LLVM ERROR: Cannot select: t730: f32 = AMDGPUISD::FDOT2", "triton-dot", "pip install 'triton<3.8'"),
        ("vk::Queue::submit: ErrorDeviceLost", "vulkan-device-lost", "llama-server -m model.gguf -ngl 99 -ub 256"),
    ] {
        let (text, code) = run(&["explain", text, "--root", "rx5600xt-rocm5.7"]);
        assert!(code == 0 && text.starts_with(&format!("{section}\n")), "{text}");
        assert!(text.contains("Radeon RX 5600 XT") && text.trim_end().ends_with(command), "{text}");
    }
    let (text, _) = run(&["explain", "llama-server hangs", "--root", "rx5600xt-rocm5.7"]);
    assert!(!text.contains("train.py"), "that is torch's: {text}");
    let (report, _) = json(&["explain", "--json", "row_bcast", "--root", "rx5700xt-native"]);
    let next: Vec<&str> = report["next"].as_array().unwrap().iter().filter_map(|command| command.as_str()).collect();
    let [install, run] = next[..] else { panic!("{next:?}") };
    assert!(install.ends_with("pip install unhang-*.whl") && run == "unhang run -- python train.py", "{next:?}");
}

#[test]
fn a_mistyped_id_leads_to_the_nearest_one() {
    let (text, code) = run(&["explain", "torch-knwn-to-hang"]);
    assert_eq!((text.lines().last(), code), (Some("       unhang explain torch-known-to-hang"), 3), "{text}");
    let (report, code) = json(&["explain", "--json", "routs"]);
    assert_eq!((report["similar"][0].as_str(), code), (Some("routes"), 3), "{report}");
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
