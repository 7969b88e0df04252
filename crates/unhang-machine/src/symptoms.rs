//! Error messages of torch, ROCm, MIOpen and the kernel that people paste, and the sections of `docs/explain.md` that
//! explain them.

/// Words that a message must all contain, and the sections for it.
type Symptom = (&'static [&'static str], &'static [&'static str]);

/// The most telling first. Everything in lower case.
const SYMPTOMS: &[Symptom] = &[
    (&["supported amdgpu versions are"], &["framework-refuses-chip"]),
    (&["unable to initialize backend 'rocm'"], &["framework-refuses-chip", "kfd-no-access"]),
    (&["row_bcast"], &["batch-norm-compile"]),
    (&["not a valid operand"], &["batch-norm-compile"]),
    (&["hiprtc_error_compilation"], &["batch-norm-compile"]),
    (&["miopenbatchnorm"], &["batch-norm-compile"]),
    (&["unsupported target", "gfx10"], &["triton-unsupported-target"]),
    (&["cannot select", "fdot2"], &["triton-dot"]),
    (&["cannot select", "llvm.amdgcn.sdot"], &["triton-dot"]),
    (&["cannot select", "llvm.amdgcn.udot"], &["triton-dot"]),
    (&["cannot select", "llvm.amdgcn.fdot"], &["triton-dot"]),
    (&["triton", "zeros"], &["triton-writes-zeros"]),
    (&["triton", "all zero"], &["triton-writes-zeros"]),
    (&["triton", "writes nothing"], &["triton-writes-zeros"]),
    (&["amdgcn_use_buffer_ops"], &["triton-writes-zeros"]),
    (&["triton", "gray image"], &["triton-writes-zeros", "grey-images"]),
    (&["triton", "grey image"], &["triton-writes-zeros", "grey-images"]),
    (&["triton", "black image"], &["triton-writes-zeros", "grey-images"]),
    (&["sageattention", "image"], &["triton-writes-zeros", "triton-dot", "grey-images"]),
    (&["hipblas_status_alloc_failed"], &["out-of-memory", "hipblas-status"]),
    (&["hipblas_status_"], &["hipblas-status"]),
    (&["rock module is not loaded"], &["kfd-no-access"]),
    (&["torch is not able to use gpu"], &["webui-gpu-check"]),
    (&["amdgpu is not supported"], &["llama-cpp"]),
    (&["no rocblas support for gfx target"], &["llama-cpp"]),
    (&["invalid device function"], &["torch-lacks-architecture"]),
    (&["no kernel image"], &["torch-lacks-architecture"]),
    (&["hiperrornobinaryforgpu"], &["torch-lacks-architecture"]),
    (&["no device code available"], &["torch-lacks-architecture"]),
    (&["no compatible code objects"], &["torch-lacks-architecture"]),
    (&["could not find the co for this gpu"], &["torch-lacks-architecture"]),
    (&["tensilelibrary"], &["tensile-library"]),
    (&["rocblaslt error"], &["tensile-library"]),
    (&["cannot enable executable stack"], &["glibc-too-new"]),
    (&["possible database corruption"], &["miopen-cache-corrupt"]),
    (&["missing system database file"], &["miopen-missing-kdb"]),
    (&["no suitable algorithm"], &["no-solver-left"]),
    (&["no module named 'unhang"], &["unhang-not-in-this-python"]),
    (&["externally-managed-environment"], &["unhang-not-in-this-python"]),
    (&["no module named 'torch'"], &["torch-missing"]),
    (&["no module named torch"], &["torch-missing"]),
    (&["cannot open shared object file", "libamdhip64"], &["runtime-version-mismatch", "torch-missing"]),
    (&["cannot open shared object file", "libmiopen"], &["runtime-version-mismatch", "torch-missing"]),
    (&["undefined symbol", "hip"], &["runtime-version-mismatch"]),
    (&["undefined symbol", "libamdhip64"], &["runtime-version-mismatch"]),
    (&["could not initialize tensile host"], &["tensile-library", "kfd-no-access"]),
    (&["hsa_status_error_invalid_isa"], &["torch-lacks-architecture"]),
    (&["hsa_status_error_out_of_resources"], &["out-of-memory", "kfd-no-access"]),
    (&["hiperroroutofmemory"], &["out-of-memory"]),
    (&["hiperrorlaunchfailure"], &["spoofed-architecture", "torch-known-to-hang"]),
    (&["unspecified launch failure"], &["spoofed-architecture", "torch-known-to-hang"]),
    (&["hiperrorillegaladdress"], &["illegal-memory-access"]),
    (&["illegal memory access"], &["illegal-memory-access"]),
    (&["invalid elapsed time"], &["other-amd-cards"]),
    (&["miopenstatusunknownerror"], &["miopen-status"]),
    (&["miopenstatusinternalerror"], &["miopen-status"]),
    (&["memory_aperture_violation"], &["runtime-version-mismatch", "spoofed-architecture"]),
    (&["hsa_status_error_illegal_instruction"], &["spoofed-architecture"]),
    (&["hw exception by gpu"], &["spoofed-architecture", "ring-timeout"]),
    (&["memory access fault by gpu"], &["spoofed-architecture"]),
    (&["page fault", "amdgpu"], &["spoofed-architecture"]),
    (&["outofmemoryerror"], &["out-of-memory"]),
    (&["hip out of memory"], &["out-of-memory"]),
    (&["cuda out of memory"], &["out-of-memory"]),
    (&["queue preemption"], &["queue-preemption"]),
    (&["queues preemption"], &["queue-preemption"]),
    (&["kiq fence"], &["queue-preemption"]),
    // ROCm's own queues never time out on a ring: the driver loses them in other words.
    (&["ring", "timeout", "llama"], &["vulkan-device-lost"]),
    (&["ring", "timeout", "ollama"], &["vulkan-device-lost"]),
    (&["ring", "timeout", "ggml"], &["vulkan-device-lost"]),
    (&["ring", "timeout", "vulkan"], &["vulkan-device-lost"]),
    (&["ring", "timeout", "radv"], &["vulkan-device-lost"]),
    (&["ring", "timeout"], &["ring-timeout"]),
    (&["vk_error_device_lost"], &["vulkan-device-lost"]),
    (&["errordevicelost"], &["vulkan-device-lost"]),
    (&["vk::devicelosterror"], &["vulkan-device-lost"]),
    (&["ggml_vulkan", "device lost"], &["vulkan-device-lost"]),
    (&["guilty of a hard recovery"], &["vulkan-device-lost", "ring-timeout"]),
    (&["device_lost"], &["ring-timeout"]),
    (&["devicelost"], &["ring-timeout"]),
    (&["gpu reset"], &["ring-timeout", "queue-preemption"]),
    (&["atomics not supported"], &["pci-atomics"]),
    (&["pci rejects atomics"], &["pci-atomics"]),
    (&["pcie atomic"], &["pci-atomics"]),
    (&["pci atomic"], &["pci-atomics"]),
    (&["unable to open /dev/kfd"], &["kfd-no-access"]),
    (&["no hip gpus are available"], &["kfd-no-access", "torch-without-hip", "env-bad-value"]),
    (&["found no nvidia driver"], &["torch-without-hip"]),
    (&["not compiled with cuda enabled"], &["torch-without-hip"]),
    (&["virtualbox"], &["virtual-machine"]),
    (&["vmware"], &["virtual-machine"]),
    (&["black image"], &["grey-images"]),
    (&["grey image"], &["grey-images"]),
    (&["gray image"], &["grey-images"]),
    (&["nans was produced"], &["grey-images"]),
    (&["unhang: hang"], &["spoofed-architecture", "torch-known-to-hang"]),
    (
        &["is_available", "false"],
        &["kfd-no-access", "pci-atomics", "torch-missing", "torch-without-hip", "env-bad-value"],
    ),
];

/// People's own words, if the text holds no known message.
const IN_OWN_WORDS: &[Symptom] = &[
    (&["hang"], HANGS),
    (&["hung"], HANGS),
    (&["stuck"], HANGS),
    (&["freez"], HANGS),
    (&["frozen"], HANGS),
    (&["never comes back"], HANGS),
    (&["never returns"], HANGS),
    (&["wsl"], &["virtual-machine"]),
    (&["segmentation fault"], &["spoofed-architecture", "runtime-version-mismatch"]),
    (&["slow"], &["miopen-missing-kdb", "find-enforce-search"]),
    (&["nan"], &["grey-images", "spoofed-architecture"]),
    (&["not detected"], &["kfd-no-access", "torch-without-hip", "gpu-hidden"]),
    (&["not found", "gpu"], &["kfd-no-access", "torch-without-hip", "gpu-hidden"]),
];

const HANGS: &[&str] =
    &["spoofed-architecture", "torch-known-to-hang", "find-enforce-search", "queue-preemption", "ring-timeout"];

/// Sections without a finding: the doctor cannot see these things, but people ask about them.
pub const TOPICS: &[&str] = &[
    "routes",
    "other-amd-cards",
    "tensile-library",
    "batch-norm-compile",
    "miopen-status",
    "hipblas-status",
    "illegal-memory-access",
    "triton-unsupported-target",
    "triton-dot",
    "vulkan-device-lost",
    "webui-gpu-check",
    "llama-cpp",
    "out-of-memory",
    "grey-images",
    "virtual-machine",
];

/// The names by which programs without torch appear in their output.
const WITHOUT_TORCH: &[&str] = &["llama", "ggml", "gguf", "ollama"];
/// Sections about the card, the driver and the slot: they hold for any program.
const ABOUT_THE_CARD: &[&str] =
    &["kfd-no-access", "queue-preemption", "ring-timeout", "vulkan-device-lost", "pci-atomics", "virtual-machine"];

/// Shows how much of the card's memory is in use.
const FREE_MEMORY: &str = "rocm-smi --showmeminfo vram";

/// The next command after a section and the text that led to it, if the doctor's plan has none.
pub fn next_command(section: &str, text: &str) -> &'static str {
    match section {
        "batch-norm-compile" | "triton-writes-zeros" | "ring-timeout" => crate::routes::RUN,
        "framework-refuses-chip" => crate::routes::RUN_SPOOFED,
        "kfd-no-access" if text.to_lowercase().contains("rock module is not loaded") => "sudo modprobe amdgpu",
        "miopen-status" => "unhang miopen-cache verify",
        "hipblas-status" => "TORCH_BLAS_PREFER_HIPBLASLT=0 unhang run -- python train.py",
        "illegal-memory-access" | "grey-images" => "unhang doctor --self-test",
        "queue-preemption" => "sudo reboot",
        "triton-unsupported-target" => "pip install 'triton<3.9'",
        "triton-dot" => "pip install 'triton<3.8'",
        "vulkan-device-lost" if ["llama", "ggml", "vk::"].iter().any(|word| text.to_lowercase().contains(word)) => {
            "llama-server -m model.gguf -ngl 99 -ub 256"
        }
        "webui-gpu-check" => "unhang doctor --python venv/bin/python",
        // Both have a Vulkan backend, which needs no ROCm. ollama's log has these words without its name.
        "llama-cpp" if ["ollama", "amdgpu is not supported"].iter().any(|word| text.to_lowercase().contains(word)) => {
            "sudo usermod -aG render ollama && sudo systemctl restart ollama"
        }
        "llama-cpp" if sections_of_words(&text.to_lowercase()).contains(&"out-of-memory") => FREE_MEMORY,
        "llama-cpp" => "cmake -B build -DGGML_VULKAN=ON && cmake --build build",
        "out-of-memory" => FREE_MEMORY,
        "tensile-library" | "torch-lacks-architecture" | "torch-missing" | "torch-without-hip" => {
            "unhang explain routes"
        }
        "other-amd-cards" | "not-affected" => "unhang probe",
        _ => "unhang doctor",
    }
}

/// Whether a section is about torch. The doctor's facts about torch do not answer a question about another program.
pub fn is_about_torch(section: &str) -> bool {
    !["llama-cpp", "framework-refuses-chip"].contains(&section) && !ABOUT_THE_CARD.contains(&section)
}

/// The sections for a pasted text, most telling first; empty if nothing in it is known.
pub fn sections_for(text: &str) -> Vec<&'static str> {
    let text = text.to_lowercase();
    let found = sections_of_words(&text);
    if !WITHOUT_TORCH.iter().any(|name| has_beginning(&text, name)) {
        return found;
    }
    // Such a program brings its own libraries: only sections for any program apply.
    let mut others = Vec::new();
    for section in found {
        let section = match section {
            "ring-timeout" => "vulkan-device-lost",
            section if is_about_torch(section) => "llama-cpp",
            section => section,
        };
        if !others.contains(&section) {
            others.push(section);
        }
    }
    others
}

/// The sections whose words a lower-case text contains.
fn sections_of_words(text: &str) -> Vec<&'static str> {
    let (log, rest): (Vec<&str>, Vec<&str>) = text.lines().partition(|line| is_of_kernel_log(line));
    let rest = rest.join("\n");
    // A log of a whole day has every word somewhere: one event is in lines that follow each other.
    let events: Vec<String> =
        (0..log.len()).map(|at| log[at..log.len().min(at + LINES_OF_AN_EVENT)].join("\n")).collect();
    let is_said = |word: &&str| has_beginning(&rest, word);
    // What the user says about it belongs to each event.
    let is_of_event = |words: &[&str], event: &str| {
        words.iter().any(|word| has_beginning(event, word))
            && words.iter().all(|word| has_beginning(event, word) || is_said(word))
    };
    let is_one_event =
        |words: &[&str]| words.iter().all(is_said) || events.iter().any(|event| is_of_event(words, event));
    let found = of_table(SYMPTOMS, |words| words.iter().all(|word| text.contains(word)) && is_one_event(words));
    if !found.is_empty() {
        return found;
    }
    // Whole words, or their beginnings: "change" is not a hang, and "financial" is not NaN. The kernel's own words are no person's.
    let words: Vec<&str> = rest.split(|c: char| !c.is_alphanumeric()).collect();
    let is_there = |wanted: &str| match wanted {
        "nan" => words.contains(&wanted),
        phrase if phrase.contains(' ') => rest.contains(phrase),
        beginning => words.iter().any(|word| word.starts_with(beginning)),
    };
    of_table(IN_OWN_WORDS, |wanted| wanted.iter().all(|word| is_there(word)))
}

/// How many lines of the kernel's log one event has at most, as far as its words are looked for.
const LINES_OF_AN_EVENT: usize = 6;

/// Whether a line in lower case is of `dmesg` or of `journalctl -k` (`… host kernel: …`). `dmesg` writes
/// `[   12.345678] …`, with `-T` a weekday and a date, with `-r` `<6>` before it, with `-x` `kern  :info  : `. Other
/// programs write times in brackets, too.
fn is_of_kernel_log(line: &str) -> bool {
    let is_level = |before: &str| before.chars().all(|c| c.is_alphanumeric() || "<> :".contains(c));
    let in_brackets = line.split_once('[').filter(|(before, _)| is_level(before)).and_then(|it| it.1.split_once(']'));
    let is_time = |stamp: &str| {
        let parts = stamp.trim().split_once('.');
        let is_number = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_digit());
        let seconds = parts.is_some_and(|(whole, part)| is_number(whole) && is_number(part) && part.len() == 6);
        let weekdays = ["mon ", "tue ", "wed ", "thu ", "fri ", "sat ", "sun "];
        seconds || weekdays.iter().any(|day| stamp.starts_with(day))
    };
    in_brackets.is_some_and(|(stamp, _)| is_time(stamp)) || line.contains(" kernel: ")
}

/// Whether a text has the words, with no letter before them: "chip" is not HIP, and "during" is not a ring. Digits may be there:
/// C++ writes the length of a name before it.
fn has_beginning(text: &str, words: &str) -> bool {
    text.match_indices(words).any(|(at, _)| !text[..at].ends_with(char::is_alphabetic))
}

fn of_table(table: &'static [Symptom], is_there: impl Fn(&'static [&'static str]) -> bool) -> Vec<&'static str> {
    let mut found: Vec<&'static str> = Vec::new();
    for (words, sections) in table {
        if is_there(words) {
            let new = sections.iter().filter(|section| !found.contains(section));
            found.extend(new.copied().collect::<Vec<_>>());
        }
    }
    found
}

/// Every section that a symptom leads to.
pub fn all_sections() -> impl Iterator<Item = &'static str> {
    SYMPTOMS.iter().chain(IN_OWN_WORDS).flat_map(|(_, sections)| sections.iter().copied())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_people_paste_is_recognised() {
        for (text, first) in [
            (
                "RuntimeError: HIP error: invalid device function\nHIP kernel errors might be",
                "torch-lacks-architecture",
            ),
            ("rocBLAS error: Cannot read /opt/rocm/lib/library/TensileLibrary.dat: No such file", "tensile-library"),
            ("[drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring gfx_0.0.0 timeout, signaled seq=1", "ring-timeout"),
            ("what():  vk::Queue::submit: ErrorDeviceLost", "vulkan-device-lost"),
            ("ModuleNotFoundError: No module named 'unhang'", "unhang-not-in-this-python"),
            ("error: externally-managed-environment", "unhang-not-in-this-python"),
            (
                "radv/amdgpu: The CS has been cancelled. This context is guilty of a hard recovery.",
                "vulkan-device-lost",
            ),
            (
                "amdgpu 0000:03:00.0: ring comp_1.1.0 timeout, signaled seq=282498\namdgpu:  Process llama-server pid 25263",
                "vulkan-device-lost",
            ),
            ("ggml_vulkan: device lost on Vulkan0", "vulkan-device-lost"),
            ("amdgpu 0000:03:00.0: amdgpu: ring gfx_0.0.0 timeout, signaled seq=1, emitted seq=3", "ring-timeout"),
            (
                "LLVM ERROR: Cannot select: t730: f32 = AMDGPUISD::FDOT2 # D:1 t1191, t902, t738, TargetConstant:i1<0>",
                "triton-dot",
            ),
            ("LLVM ERROR: Cannot select: intrinsic %llvm.amdgcn.sdot4", "triton-dot"),
            ("LLVM ERROR: Cannot select: intrinsic %llvm.amdgcn.fdot2.bf16.bf16", "triton-dot"),
            ("No device code available for function: _Z6kernelv", "torch-lacks-architecture"),
            ("hip_fatbin.cpp: No compatible code objects found for: gfx1010", "torch-lacks-architecture"),
            ("hip_fatbin.cpp: COMGR API could not find the CO for this GPU device/ISA", "torch-lacks-architecture"),
            ("kfd kfd: amdgpu: skipped device 1002:731f, PCI rejects atomics 730<0", "pci-atomics"),
            ("torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 GiB", "out-of-memory"),
            ("libtorch.so: undefined symbol: _ZN3c103hip9getStreamEv", "runtime-version-mismatch"),
            ("/opt/rocm/lib/libamdhip64.so.5: undefined symbol: hsa_amd_x", "runtime-version-mismatch"),
            ("MIOpen(HIP): Warning [SQLiteBase] Missing system database file: gfx1030_18.kdb", "miopen-missing-kdb"),
            ("<inline asm>:14:20: error: not a valid operand.\nv_add_f32 v4 v4 v4 row_bcast:15", "batch-norm-compile"),
            ("MIOpen(HIP): Error [BuildHip] HIPRTC status = HIPRTC_ERROR_COMPILATION (6)", "batch-norm-compile"),
            ("CUDA error: HIPBLAS_STATUS_NOT_SUPPORTED when calling hipblasLtMatmul", "hipblas-status"),
            ("RuntimeError: HIP error: an illegal memory access was encountered", "illegal-memory-access"),
            ("ROCk module is NOT loaded, possibly no GPU devices", "kfd-no-access"),
            ("RuntimeError: Torch is not able to use GPU; add --skip-torch-cuda-test", "webui-gpu-check"),
            (
                "Ignoring visible gpu device (device: 0, name: AMD Radeon RX 5700 XT) with AMDGPU version : gfx1010. The supported \
                 AMDGPU versions are gfx1030, gfx900",
                "framework-refuses-chip",
            ),
            (
                "StreamExecutor ROCM device (0) is of unsupported AMDGPU version 'gfx1010' . The supported AMDGPU versions are 'gfx900'",
                "framework-refuses-chip",
            ),
            (
                "RuntimeError: Unable to initialize backend 'rocm': INTERNAL: no supported devices",
                "framework-refuses-chip",
            ),
            ("RuntimeError: miopenStatusUnknownError", "miopen-status"),
            ("my triton kernel returns all zeros on gfx1010", "triton-writes-zeros"),
            ("gray images with SageAttention", "triton-writes-zeros"),
            ("comfy-kitchen triton backend: gray images with tiles", "triton-writes-zeros"),
            ("gray images in A1111", "grey-images"),
            ("rocblaslt error: Cannot read \"TensileLibrary_lazy_gfx1010.dat\" (or .zlib variant)", "tensile-library"),
            ("LLVM ERROR: unsupported target: 'gfx1010'", "triton-unsupported-target"),
            ("level=WARN msg=\"amdgpu is not supported (supported types:[gfx1030])\" gpu_type=gfx1010", "llama-cpp"),
        ] {
            assert_eq!(sections_for(text).first(), Some(&first), "{text}");
        }
        for text in [
            "ModuleNotFoundError: No module named 'numpy'",
            "nothing changed, a financial model",
            "the loss of a financial model",
            "libchip.so: undefined symbol: chip_open",
            "TimeoutError: timeout during a download",
            "LLVM ERROR: Cannot select: intrinsic %llvm.amdgcn.if",
            "",
        ] {
            assert!(sections_for(text).is_empty(), "{text}");
        }
    }

    #[test]
    fn programs_without_torch_get_no_answer_about_torch() {
        for text in [
            "ggml_cuda_compute_forward: RMS_NORM failed\nROCm error: invalid device function",
            "llama-cli hangs after loading the model",
            "ollama[812]: rocBLAS error: Cannot read TensileLibrary.dat",
            "llama.cpp/ggml/src/ggml-cuda.cu: ROCm error: an illegal memory access was encountered",
            "ollama: HIPBLAS_STATUS_ALLOC_FAILED",
            "llama-server: ggml_cuda: cudaMalloc failed: HIP out of memory",
        ] {
            let sections = sections_for(text);
            assert_eq!(sections.first(), Some(&"llama-cpp"), "{text}");
            assert!(!sections.iter().any(|section| is_about_torch(section)), "{text}: {sections:?}");
        }
        let full = "llama-cli: HIP out of memory";
        assert_eq!(next_command("llama-cpp", full), FREE_MEMORY);
        let vulkan = sections_for("llama-cli: [amdgpu] ring gfx_0.0.0 timeout");
        assert_eq!(vulkan, ["vulkan-device-lost"]);
        assert!(!vulkan.iter().any(|section| is_about_torch(section)));
        assert!(sections_for("llama: the weather is fine").is_empty(), "it says so where nothing is known");
    }

    #[test]
    fn what_people_say_in_their_own_words_is_understood() {
        for (text, first) in [
            ("my training hangs", "spoofed-architecture"),
            ("python is stuck at the first convolution", "spoofed-architecture"),
            ("torch.cuda.is_available() returns False", "kfd-no-access"),
            ("loss=nan after 3 steps", "grey-images"),
            ("Segmentation fault (core dumped)", "spoofed-architecture"),
            ("the first epoch is very slow", "miopen-missing-kdb"),
            ("ModuleNotFoundError: No module named 'torch'", "torch-missing"),
            // A known message says more than a single word.
            ("it hangs and then: HIP out of memory", "out-of-memory"),
        ] {
            assert_eq!(sections_for(text).first(), Some(&first), "{text}");
        }
    }

    /// The words of a log in which nothing went wrong, and of one in which a card was lost.
    #[test]
    fn a_log_of_the_kernel_is_read_event_by_event() {
        let quiet = [
            "pvm-pv: not detected, 0/49 sites patched",
            "ACPI: EC: interrupt blocked",
            "amdgpu 0000:03:00.0: amdgpu: ring gfx_0.0.0 uses VM inv eng 0 on hub 0",
            "amdgpu 0000:03:00.0: amdgpu: ring comp_1.0.0 uses VM inv eng 1 on hub 0",
            "[drm] Initialized amdgpu 3.49.0 20150101 for 0000:03:00.0 on minor 0",
            "usb 1-4: new high-speed USB device number 3",
            "EXT4-fs (sda1): mounted filesystem",
            "audit: type=1400 apparmor=\"STATUS\"",
            "BUG: workqueue lockup - pool cpus=0 stuck for 34s!",
            "workqueue events_freezable: flags=0x104",
            "iwlwifi 0000:02:00.0: timeout waiting for firmware, slow",
        ];
        let lost = "amdgpu 0000:03:00.0: amdgpu: ring gfx_0.0.0 timeout, signaled seq=1, emitted seq=3";
        let stamps: [fn(&str) -> String; 5] = [
            |line| format!("[   29.735431] {line}\n"),
            |line| format!("<6>[   29.735431] {line}\n"),
            |line| format!("kern  :info  : [   29.735431] {line}\n"),
            |line| format!("[Wed Nov 18 12:00:01 2026] {line}\n"),
            |line| format!("Nov 18 12:00:01 machine kernel: {line}\n"),
        ];
        for stamp in stamps {
            let log: String = quiet.iter().map(|line| stamp(line)).collect();
            assert!(sections_for(&log).is_empty(), "{log}: {:?}", sections_for(&log));
            let log = format!("{log}{}{log}", stamp(lost));
            assert_eq!(sections_for(&log), ["ring-timeout"], "{log}");
            // What a person writes beside a log counts.
            assert_eq!(sections_for(&format!("my training hangs\n{}", stamp(quiet[0])))[0], "spoofed-architecture");
            assert_eq!(sections_for(&format!("my game with vulkan\n{}", stamp(lost)))[0], "vulkan-device-lost");
        }
        // Other programs' logs have their times in brackets.
        for stamp in ["2026-11-18 12:00:01", "12:00:01.123"] {
            assert_eq!(sections_for(&format!("[{stamp}] training hangs"))[0], "spoofed-architecture");
        }
    }
}
