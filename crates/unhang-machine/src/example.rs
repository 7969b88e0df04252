//! One machine that comes with the program: the RX 5600 XT with ROCm 5.7, spoofed, with the profile file that guides
//! for these cards tell people to write. For demonstrations and rehearsals on any machine; it is one of the fixtures.

use std::path::Path;

/// The name of the machine.
pub const NAME: &str = "rx5600xt-rocm5.7";

macro_rules! files {
    ($($path:literal,)*) => {
        /// Its files: path below the root, content.
        pub const FILES: &[(&str, &str)] = &[$(($path, include_str!(concat!("../fixtures/rx5600xt-rocm5.7/", $path))),)*];
    };
}

files! {
    "dev/dri/renderD128",
    "dev/kfd",
    "environment",
    "etc/ld.so.conf.d/rocm.conf",
    "etc/profile.d/rocm-rdna1-57.sh",
    "home/user/.config/miopen/gfx1030_18.HIP.2_20_0_aae2f0b6b.ufdb.txt",
    "home/user/venv/lib/python3.10/site-packages/torch/lib/libMIOpen.so",
    "home/user/venv/lib/python3.10/site-packages/torch/lib/libamdhip64.so",
    "home/user/venv/lib/python3.10/site-packages/torch/lib/libhsa-runtime64.so",
    "home/user/venv/lib/python3.10/site-packages/torch/lib/librocblas.so",
    "home/user/venv/lib/python3.10/site-packages/torch/lib/libtorch_hip.so",
    "home/user/venv/lib/python3.10/site-packages/torch/lib/rocblas/library/TensileLibrary_gfx1030.co",
    "home/user/venv/lib/python3.10/site-packages/torch/lib/rocblas/library/TensileLibrary_gfx1100.co",
    "home/user/venv/lib/python3.10/site-packages/torch/lib/rocblas/library/TensileLibrary_gfx900.co",
    "home/user/venv/lib/python3.10/site-packages/torch/lib/rocblas/library/TensileLibrary_gfx906.co",
    "home/user/venv/lib/python3.10/site-packages/torch/lib/rocblas/library/TensileLibrary_gfx908.co",
    "home/user/venv/lib/python3.10/site-packages/torch/lib/rocblas/library/TensileLibrary_gfx90a.co",
    "home/user/venv/lib/python3.10/site-packages/torch/version.py",
    "lib/x86_64-linux-gnu/libc.so.6",
    "opt/rocm-5.7.0/.info/version",
    "opt/rocm-5.7.0/lib/libamdhip64.so.5",
    "proc/sys/kernel/osrelease",
    "sys/bus/pci/devices/0000:00:00.0/class",
    "sys/bus/pci/devices/0000:00:00.0/device",
    "sys/bus/pci/devices/0000:00:00.0/revision",
    "sys/bus/pci/devices/0000:00:00.0/vendor",
    "sys/bus/pci/devices/0000:00:1f.3/class",
    "sys/bus/pci/devices/0000:00:1f.3/device",
    "sys/bus/pci/devices/0000:00:1f.3/revision",
    "sys/bus/pci/devices/0000:00:1f.3/uevent",
    "sys/bus/pci/devices/0000:00:1f.3/vendor",
    "sys/bus/pci/devices/0000:03:00.0/class",
    "sys/bus/pci/devices/0000:03:00.0/device",
    "sys/bus/pci/devices/0000:03:00.0/drm/renderD128/dev",
    "sys/bus/pci/devices/0000:03:00.0/mem_info_vram_total",
    "sys/bus/pci/devices/0000:03:00.0/revision",
    "sys/bus/pci/devices/0000:03:00.0/uevent",
    "sys/bus/pci/devices/0000:03:00.0/vendor",
    "sys/class/kfd/kfd/topology/nodes/0/properties",
    "sys/class/kfd/kfd/topology/nodes/1/mem_banks/0/properties",
    "sys/class/kfd/kfd/topology/nodes/1/properties",
    "sys/module/amdgpu/initstate",
    "sys/module/amdgpu/parameters/cwsr_enable",
    "sys/module/amdgpu/parameters/gpu_recovery",
    "sys/module/amdgpu/parameters/hws_max_conc_proc",
    "sys/module/amdgpu/parameters/noretry",
    "sys/module/amdgpu/parameters/runpm",
    "sys/module/amdgpu/parameters/sched_policy",
}

/// Writes the machine into a folder, for `--root` or [`crate::System::folder`].
pub fn write(folder: &Path) -> std::io::Result<()> {
    for (path, content) in FILES {
        let path = folder.join(path);
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent)?;
        }
        std::fs::write(path, content)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Environment, Options, System, Verdict, examine};

    #[test]
    fn the_list_is_the_folder() {
        let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(NAME);
        let mut found = Vec::new();
        let mut pending = vec![fixture.clone()];
        while let Some(folder) = pending.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    pending.push(path);
                } else {
                    found.push(path.strip_prefix(&fixture).unwrap().display().to_string());
                }
            }
        }
        found.sort();
        let mut listed: Vec<_> = FILES.iter().map(|(path, _)| (*path).to_owned()).collect();
        listed.sort();
        assert_eq!(listed, found);
    }

    #[test]
    fn it_is_affected() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path()).unwrap();
        let system = System::folder(folder.path(), Environment::default());
        let examination = examine(&system, &Options::default());
        assert_eq!(examination.verdict, Verdict::Affected);
        assert!(examination.machine.spoofed() && examination.has_errors());
    }
}
