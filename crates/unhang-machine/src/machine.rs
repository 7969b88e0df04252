//! A machine, as far as it matters for convolutions.

use crate::gpu::{self, Gpu};
use crate::kernel::{self, OsKernel};
use crate::system::{DeviceAccess, System};

/// The GPUs, kernel and access. Fast to read: a few dozen small files, and no Python.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// The GPUs: those that KFD knows first, in KFD's order, then the others by PCI address.
    pub gpus: Vec<Gpu>,
    /// The kernel and the amdgpu driver.
    pub kernel: OsKernel,
    /// Whether this process may use `/dev/kfd`, the door to compute on AMD GPUs.
    pub kfd_access: DeviceAccess,
    /// The folder that describes the machine, if it is not this one. Every output then says so.
    pub described_by: Option<String>,
    /// Whether its cards are emulated: what they do is a rehearsal and never counts for a real card.
    pub emulated: bool,
    /// What exists but could not be read, in words.
    pub unreadable: Vec<String>,
}

impl Machine {
    /// Looks at the machine.
    pub fn inspect(system: &System) -> Machine {
        let gpus = gpu::find(system);
        let kernel = kernel::inspect(system);
        let kfd_access = system.device("/dev/kfd");
        let unreadable = system.obstacles().iter().map(|it| format!("{}: {}", it.path.display(), it.error)).collect();
        let described_by = system.is_folder().then(|| system.root().display().to_string());
        let emulated = system.has_emulated_card();
        Machine { gpus, kernel, kfd_access, described_by, emulated, unreadable }
    }

    /// Whether an RDNA1 chip is here.
    pub fn affected(&self) -> bool {
        self.gpus.iter().any(|gpu| gpu.affected)
    }

    /// Whether the runtime treats an RDNA1 chip as another one, and so loads code that was not compiled for it.
    pub fn spoofed(&self) -> bool {
        self.gpus.iter().any(|gpu| gpu.affected && gpu.spoofed())
    }

    /// The GPU at a PCI address (`0000:03:00.0`) and its true chip, from the kernel driver; or why it is unknown.
    pub fn gpu_at(&self, address: &str) -> Result<(&Gpu, &str), String> {
        if let Some(folder) = &self.described_by {
            return Err(format!("the chip at {address} is unknown: {folder} describes another machine"));
        }
        let here = |gpu: &&Gpu| gpu.pci.as_deref().is_some_and(|pci| pci.eq_ignore_ascii_case(address));
        let Some(gpu) = self.gpus.iter().find(here) else {
            return Err(format!(
                "the chip at {address} is unknown: the kernel's topology (/sys/class/kfd) does not list it"
            ));
        };
        match gpu.gfx.as_deref() {
            Some(gfx) => Ok((gpu, gfx)),
            None => Err(format!("unknown chip at {address}: {}", gpu.name)),
        }
    }

    /// A short text that is equal on two machines exactly if evidence may be carried over.
    ///
    /// It is made of the true chips with their compute units, the chips that the runtime reports, and the kernel's
    /// major and minor version. The version of amdgpu is part of it if there is one. So is `runtime`, which is the
    /// caller's word for torch and HIP (for example `2.2.2+rocm5.7`), if the evidence depends on it. GPUs that cannot
    /// compute with HIP or CUDA do not enter, nor does any name of a user or host. An emulated card vouches for no real
    /// one, so its machine has its own fingerprint.
    pub fn fingerprint(&self, runtime: Option<&str>) -> String {
        let mut hash = Fnv1a::new();
        hash.field("unhang-machine-1");
        for gpu in self.gpus.iter().filter(|gpu| gpu.vendor_id != crate::chips::INTEL) {
            let chip = gpu.gfx.clone().unwrap_or_else(|| format!("{:04x}:{:04x}", gpu.vendor_id, gpu.device_id));
            hash.field(&chip);
            hash.field(&gpu.compute_units.map_or_else(String::new, |units| units.to_string()));
            hash.field(gpu.reported_gfx.as_deref().unwrap_or_default());
        }
        hash.field("kernel");
        hash.field(&self.kernel.major_minor().unwrap_or_default());
        hash.field(self.kernel.amdgpu_version.as_deref().unwrap_or_default());
        hash.field(runtime.unwrap_or_default());
        if self.emulated {
            hash.field("emulated");
        }
        format!("{:016x}", hash.0)
    }
}

/// Whether the HSA runtime loads the shield as a tool, by the value of `HSA_TOOLS_LIB`.
pub fn is_shielded(tools: Option<&str>) -> bool {
    tools.is_some_and(|tools| tools.contains("libunhang_shield"))
}

/// FNV-1a, 64 bits: it never changes, which `std`'s hashers do not promise.
struct Fnv1a(u64);

impl Fnv1a {
    fn new() -> Fnv1a {
        Fnv1a(0xcbf2_9ce4_8422_2325)
    }

    /// A field with its end marked, so that `ab`, `c` and `a`, `bc` differ.
    fn field(&mut self, text: &str) {
        for byte in text.bytes().chain([0xff]) {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(gfx: &str, reported: &str, kernel: &str) -> Machine {
        let gpu = Gpu {
            pci: Some("0000:03:00.0".to_owned()),
            vendor_id: 0x1002,
            device_id: 0x731f,
            revision: Some(0xca),
            name: "Radeon RX 5600 XT".to_owned(),
            chip: Some("Navi 10".to_owned()),
            gfx: Some(gfx.to_owned()),
            reported_gfx: Some(reported.to_owned()),
            compute_units: Some(36),
            clock_mhz: None,
            bandwidth: None,
            affected: true,
            memory_bytes: None,
            driver: None,
            render_node: None,
            render_access: DeviceAccess::Granted,
            kfd_node: Some(1),
        };
        let kernel = OsKernel { release: Some(kernel.to_owned()), ..OsKernel::default() };
        Machine {
            gpus: vec![gpu],
            kernel,
            kfd_access: DeviceAccess::Granted,
            described_by: None,
            emulated: false,
            unreadable: vec![],
        }
    }

    #[test]
    fn fingerprints_tell_apart_what_must_be_told_apart() {
        let native = machine("gfx1010", "gfx1010", "6.8.0-45-generic");
        let same = machine("gfx1010", "gfx1010", "6.8.12");
        let spoofed = machine("gfx1010", "gfx1030", "6.8.0-45-generic");
        let newer = machine("gfx1010", "gfx1010", "6.9.0");
        let emulated = Machine { emulated: true, ..native.clone() };
        assert_eq!(native.fingerprint(None), same.fingerprint(None), "a patch release changes nothing");
        let all = [
            native.fingerprint(None),
            spoofed.fingerprint(None),
            newer.fingerprint(None),
            emulated.fingerprint(None),
            native.fingerprint(Some("2.2.2+rocm5.7")),
        ];
        for (index, one) in all.iter().enumerate() {
            assert_eq!(one.len(), 16);
            assert!(!all[index + 1..].contains(one), "{all:?}");
        }
        assert!(spoofed.spoofed() && !native.spoofed() && native.affected());
    }

    #[test]
    fn a_gpu_is_found_by_its_address_on_the_machine_that_is_here() {
        let mut machine = machine("gfx1010", "gfx1030", "6.8.0");
        let (gpu, gfx) = machine.gpu_at("0000:03:00.0").unwrap();
        assert_eq!((gpu.name.as_str(), gfx), ("Radeon RX 5600 XT", "gfx1010"));
        assert!(machine.gpu_at("0000:04:00.0").unwrap_err().contains("does not list it"));
        machine.gpus[0].gfx = None;
        assert!(machine.gpu_at("0000:03:00.0").unwrap_err().contains("unknown chip at 0000:03:00.0"));
        machine.described_by = Some("a folder".to_owned());
        assert!(machine.gpu_at("0000:03:00.0").unwrap_err().contains("another machine"));
    }

    #[test]
    fn a_fingerprint_is_for_ever() {
        // The key of evidence on users' disks: a change here discards it.
        assert_eq!(machine("gfx1010", "gfx1030", "6.8.0").fingerprint(None), "4e973d1bd88d2eb4");
    }
}
