//! The GPU to measure.

use unhang_gpu::driver::{Driver, VendorDriver};
use unhang_machine::{Environment, Machine, System};
use unhang_session::open_hip;

/// The first usable GPU: NVIDIA's, or an AMD GPU whose chip the kernel driver knows.
pub(crate) fn open_driver() -> anyhow::Result<Box<dyn Driver>> {
    let cuda = match VendorDriver::cuda(0) {
        Ok(driver) => return Ok(Box::new(driver)),
        Err(error) => error,
    };
    let machine = Machine::inspect(&System::new("/".as_ref(), Environment::of_this_process()));
    let hip = match open_hip(0, &machine, None) {
        Ok(driver) => return Ok(Box::new(driver)),
        Err(reason) => reason,
    };
    Err(anyhow::anyhow!("hint: --tune needs the GPU itself; `unhang kernels list` needs only the compiler")
        .context(format!("AMD: {hip}"))
        .context(format!("NVIDIA: {cuda}"))
        .context("there is no GPU here that can be used"))
}
