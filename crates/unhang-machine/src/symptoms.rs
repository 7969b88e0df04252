//! What people paste: error messages of torch, ROCm, MIOpen and the kernel, and which section of
//! `docs/troubleshooting.md` speaks of them.

/// Words of a message, all of them in it, and the sections that it leads to.
type Symptom = (&'static [&'static str], &'static [&'static str]);

/// The most telling first. Everything in lower case.
const SYMPTOMS: &[Symptom] = &[
    (&["invalid device function"], &["torch-lacks-architecture"]),
    (&["no kernel image is available"], &["torch-lacks-architecture"]),
    (&["hiperrornobinaryforgpu"], &["torch-lacks-architecture"]),
    (&["tensilelibrary"], &["tensile-library"]),
    (&["rocblaslt error"], &["tensile-library"]),
    (&["cannot enable executable stack"], &["glibc-too-new"]),
    (&["possible database corruption"], &["miopen-cache-corrupt"]),
    (&["missing system database file"], &["miopen-missing-kdb"]),
    (&["no suitable algorithm"], &["no-solver-left"]),
    (&["invalid elapsed time"], &["other-amd-cards"]),
    (&["miopenstatusunknownerror"], &["miopen-cache-corrupt", "other-amd-cards"]),
    (&["miopenstatusinternalerror"], &["miopen-cache-corrupt", "other-amd-cards"]),
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
    (&["ring", "timeout"], &["ring-timeout"]),
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
];

/// Sections that are no finding's: the doctor cannot see them, people ask for them.
pub const TOPICS: &[&str] =
    &["routes", "other-amd-cards", "tensile-library", "out-of-memory", "grey-images", "virtual-machine"];

/// The sections that a pasted text leads to, the most telling first; none if nothing in it is known.
pub fn sections_for(text: &str) -> Vec<&'static str> {
    let text = text.to_lowercase();
    let mut found: Vec<&'static str> = Vec::new();
    for (words, sections) in SYMPTOMS {
        if words.iter().all(|word| text.contains(word)) {
            let new = sections.iter().filter(|section| !found.contains(section));
            found.extend(new.copied().collect::<Vec<_>>());
        }
    }
    found
}

/// Every section that some symptom leads to.
pub fn all_sections() -> impl Iterator<Item = &'static str> {
    SYMPTOMS.iter().flat_map(|(_, sections)| sections.iter().copied())
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
            ("kfd kfd: amdgpu: skipped device 1002:731f, PCI rejects atomics 730<0", "pci-atomics"),
            ("torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 GiB", "out-of-memory"),
            ("MIOpen(HIP): Warning [SQLiteBase] Missing system database file: gfx1030_18.kdb", "miopen-missing-kdb"),
        ] {
            assert_eq!(sections_for(text).first(), Some(&first), "{text}");
        }
        assert!(sections_for("ModuleNotFoundError: No module named 'numpy'").is_empty());
    }
}
