//! AMD's driver, `libamdhip64.so`: the one that torch has loaded, never a second one.
//!
//! Nothing is read from `hipGetDeviceProperties`, whose structure changes between versions: what the model needs comes
//! from the caller, who knows the chip by the kernel driver's own topology.

use super::device::Device;
use super::{Description, DriverError, VendorDriver};
use crate::compiler;
use crate::model::DeviceModel;

/// What the runtime does not know of the device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HipChip {
    /// The chip that the runtime reports: torch's `gcnArchName` without its features.
    pub reported_architecture: String,
    /// The true chip, from the kernel driver's topology.
    pub true_architecture: String,
    /// Compute units, by the same; the runtime counts pairs of them on RDNA.
    pub compute_units: usize,
    /// The highest clock of the shaders in MHz, by the same; 0 if unknown.
    pub clock_mhz: u32,
    /// Bytes a second to memory, by the same; 0 if unknown.
    pub bandwidth: u64,
}

impl HipChip {
    /// What the model knows of the device; values that KFD lacks are those of an RX 5600 XT.
    fn model(&self, memory: u64) -> DeviceModel {
        let like = DeviceModel::rx_5600_xt();
        let units = if self.compute_units == 0 { like.compute_units } else { self.compute_units };
        let for_each_unit = match self.clock_mhz {
            0 => like.flops / like.compute_units as f64,
            // 64 lanes of a multiply-add. Clocks under load are below the highest reported one.
            clock => 128.0 * f64::from(clock) * 1e6 * 0.88,
        };
        DeviceModel {
            compute_units: units,
            flops: units as f64 * for_each_unit,
            bandwidth: if self.bandwidth == 0 { like.bandwidth } else { self.bandwidth as f64 },
            memory,
            ..like
        }
    }
}

/// The PCI address of AMD's device with that number, such as `0000:03:00.0`, by which the kernel driver's topology
/// lists it.
pub fn hip_pci_address(ordinal: i32) -> Result<String, DriverError> {
    Device::hip(ordinal, true)?.pci_address()
}

impl VendorDriver {
    /// AMD's device with that number. The caller provides the chip: the runtime reports the spoofed one.
    pub fn hip(ordinal: i32, chip: &HipChip) -> Result<VendorDriver, DriverError> {
        VendorDriver::of(
            Device::hip(ordinal, true)?,
            |_, told| {
                Ok(Description {
                    name: told.name,
                    reported_architecture: chip.reported_architecture.clone(),
                    true_architecture: chip.true_architecture.clone(),
                    driver: format!("HIP {}", told.version),
                    model: chip.model(told.memory),
                })
            },
            // Kernels that came with the package run without a compiler.
            || Ok(compiler::for_amd()),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_of_a_card_is_what_the_kernel_driver_says() {
        let chip = |compute_units, clock_mhz, bandwidth| HipChip {
            reported_architecture: "gfx1030".into(),
            true_architecture: "gfx1010".into(),
            compute_units,
            clock_mhz,
            bandwidth,
        };
        // The figures that KFD gives for an RX 5600 XT come to what the vendor says of it.
        let (found, vendor) = (chip(36, 1780, 288_000_000_000).model(6 << 30), DeviceModel::rx_5600_xt());
        assert!((found.flops / vendor.flops - 1.0).abs() < 0.01, "{found:?}");
        assert_eq!(DeviceModel { flops: vendor.flops, ..found }, vendor);
        let larger = chip(40, 2100, 448_000_000_000).model(8 << 30);
        assert_eq!((larger.compute_units, larger.bandwidth, larger.memory), (40, 448e9, 8 << 30));
        assert_eq!(chip(0, 0, 0).model(6 << 30), vendor, "nothing is known");
    }
}
