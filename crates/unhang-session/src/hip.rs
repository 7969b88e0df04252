//! AMD's devices, opened as the chips that the kernel driver reports: the runtime may be spoofed.

use unhang_gpu::driver::{HipChip, VendorDriver, hip_pci_address};
use unhang_machine::Machine;

/// The runtime's device with that number; `reported` is the runtime's name for it, if known. An error says why it
/// cannot be used.
pub fn open_hip(ordinal: i32, machine: &Machine, reported: Option<&str>) -> Result<VendorDriver, String> {
    let address = hip_pci_address(ordinal).map_err(|error| error.to_string())?;
    let chip = chip(machine, &address, reported)?;
    VendorDriver::hip(ordinal, &chip).map_err(|error| error.to_string())
}

/// What the kernel driver knows of the device at a PCI address.
fn chip(machine: &Machine, address: &str, reported: Option<&str>) -> Result<HipChip, String> {
    let (gpu, gfx) = machine.gpu_at(address)?;
    // The runtime appends its features: "gfx1030:sramecc+:xnack-".
    let reported = reported.map(|name| name.split(':').next().unwrap_or_default().to_owned());
    let reported = reported.filter(|name| name.starts_with("gfx")).or_else(|| gpu.reported_gfx.clone());
    Ok(HipChip {
        reported_architecture: reported.unwrap_or_else(|| gfx.to_owned()),
        true_architecture: gfx.to_owned(),
        compute_units: gpu.compute_units.unwrap_or(0) as usize,
        clock_mhz: gpu.clock_mhz.unwrap_or(0),
        bandwidth: gpu.bandwidth.unwrap_or(0),
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use unhang_machine::{Environment, System};

    use super::*;

    #[test]
    fn a_described_card_has_the_kernel_drivers_figures() {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../unhang-machine/fixtures");
        let chip = |name: &str, address: &str| {
            let system = System::new(&fixtures.join(name), Environment::default());
            // Treated as this machine: a folder's devices cannot be opened.
            let mut machine = Machine::inspect(&system);
            machine.described_by = None;
            super::chip(&machine, address, None).unwrap()
        };
        let found = chip("rx5600xt-rocm5.7", "0000:03:00.0");
        assert_eq!((found.compute_units, found.clock_mhz, found.bandwidth), (36, 1780, 288_000_000_000));
        let found = chip("rx5700xt-native", "0000:09:00.0");
        assert_eq!((found.compute_units, found.bandwidth), (40, 448_000_000_000));
        // An older kernel reports less: the model fills it in.
        assert_eq!(chip("rx5600xt-rocm5.2", "0000:03:00.0").bandwidth, 0);
    }
}
