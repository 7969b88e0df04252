//! The GPU that is measured.

use unhang_gpu::driver::{Cuda, Driver, Hip, HipChip};
use unhang_machine::{Environment, Machine, System};

/// The first GPU that can be used: NVIDIA's, or AMD's whose chip the kernel driver knows.
pub(crate) fn open_driver() -> anyhow::Result<Box<dyn Driver>> {
    let cuda = match Cuda::open(0) {
        Ok(driver) => return Ok(Box::new(driver)),
        Err(error) => error,
    };
    let hip = match open_hip() {
        Ok(driver) => return Ok(Box::new(driver)),
        Err(reason) => reason,
    };
    Err(anyhow::anyhow!("hint: --tune needs the GPU itself; `unhang kernels list` needs only the compiler")
        .context(format!("AMD: {hip}"))
        .context(format!("NVIDIA: {cuda}"))
        .context("there is no GPU here that can be used"))
}

/// The runtime's first device, compiled for as the chip that the kernel driver says is there: the runtime may be spoofed.
fn open_hip() -> Result<Hip, String> {
    let address = Hip::pci_address(0).map_err(|error| error.to_string())?;
    let machine = Machine::inspect(&System::new("/".as_ref(), Environment::of_this_process()));
    Hip::open(0, &hip_chip(&machine, &address)?).map_err(|error| error.to_string())
}

fn hip_chip(machine: &Machine, address: &str) -> Result<HipChip, String> {
    let (gpu, gfx) = machine.gpu_at(address)?;
    Ok(HipChip {
        reported_architecture: gpu.reported_gfx.clone().unwrap_or_else(|| gfx.to_owned()),
        true_architecture: gfx.to_owned(),
        compute_units: gpu.compute_units.unwrap_or(0) as usize,
        clock_mhz: gpu.clock_mhz.unwrap_or(0),
        bandwidth: gpu.bandwidth.unwrap_or(0),
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn a_described_card_has_the_kernel_drivers_figures() {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../unhang-machine/fixtures");
        let chip = |name: &str, address: &str| {
            let system = System::new(&fixtures.join(name), Environment::default());
            // As if it were this machine: that of a folder is not opened.
            let mut machine = Machine::inspect(&system);
            machine.described_by = None;
            hip_chip(&machine, address).unwrap()
        };
        let found = chip("rx5600xt-rocm5.7", "0000:03:00.0");
        assert_eq!((found.compute_units, found.clock_mhz, found.bandwidth), (36, 1780, 288_000_000_000));
        let found = chip("rx5700xt-native", "0000:09:00.0");
        assert_eq!((found.compute_units, found.bandwidth), (40, 448_000_000_000));
        // A kernel that tells less: the model fills it in.
        assert_eq!(chip("rx5600xt-rocm5.2", "0000:03:00.0").bandwidth, 0);
    }
}
