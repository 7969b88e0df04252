//! NVIDIA's driver, `libcuda.so.1`: the machine on which the kernels can be run and measured.

use std::sync::Arc;

use super::device::Device;
use super::{Description, DriverError, VendorDriver};
use crate::compiler::Nvrtc;
use crate::dynamic::function_table;
use crate::model::DeviceModel;

function_table! {
    /// What libcuda says of a device.
    Functions {
        attribute: "cuDeviceGetAttribute" as fn(*mut i32, i32, i32);
    }
}

impl VendorDriver {
    /// NVIDIA's device of that number, with the driver that this process has loaded, else the system's.
    pub fn cuda(ordinal: i32) -> Result<VendorDriver, DriverError> {
        VendorDriver::of(
            Device::cuda(ordinal)?,
            |device, told| {
                let (architecture, model) = model(device, told.memory)?;
                Ok(Description {
                    name: told.name,
                    reported_architecture: architecture.clone(),
                    true_architecture: architecture,
                    driver: format!("CUDA {}.{}", told.version / 1000, told.version % 1000 / 10),
                    model,
                })
            },
            || Ok(Arc::new(Nvrtc::find()?)),
        )
    }
}

/// The architecture, and what the model knows of the device.
fn model(device: &Device, memory: u64) -> Result<(String, DeviceModel), DriverError> {
    let functions = Functions::load(&device.library).map_err(DriverError::Unusable)?;
    let attribute = |which: i32| {
        let mut value = 0;
        // SAFETY: a valid place for the number.
        let code = unsafe { (functions.attribute)(&mut value, which, device.number) };
        device.check(code, "cuDeviceGetAttribute").map(|()| value)
    };
    // Numbers of CUdevice_attribute: 75, 76 capability; 16 multiprocessors; 13 clock in kHz; 36 memory clock in
    // kHz; 37 bus width in bits; 38 bytes of L2.
    let (major, minor) = (attribute(75)?, attribute(76)?);
    let units = attribute(16)?;
    let clock = f64::from(attribute(13)?) * 1e3;
    let bandwidth = f64::from(attribute(36)?) * 1e3 * 2.0 * f64::from(attribute(37)?) / 8.0;
    let cache = f64::from(attribute(38)?);
    let model = DeviceModel {
        compute_units: units as usize,
        // Clocks under load lie below the highest that is reported.
        flops: f64::from(units) * 256.0 * clock * 0.88,
        bandwidth: bandwidth * 0.88,
        launch: 1.4e-6,
        efficiency: 0.66,
        cache: cache * 0.8,
        memory,
        shares: &crate::fit::H200,
    };
    Ok((format!("sm_{major}{minor}"), model))
}
