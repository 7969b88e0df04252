//! What measurements are filed under, and whether one still holds.

use unhang_engine::Tuned;

use crate::cache::Key;
use crate::driver::{Description, Driver};
use crate::sources::SourceFile;

/// What our kernels are, by the texts of their sources: what was measured of others is out of date.
pub fn kernels() -> String {
    let sources = SourceFile::ALL.map(SourceFile::text);
    let key = Key::of(sources.iter().map(String::as_str)).to_string();
    key.chars().take(16).collect()
}

/// What a device's measurements are filed under.
pub fn device(description: &Description) -> String {
    let Description { name, true_architecture: chip, reported_architecture: reported, .. } = description;
    let units = description.model.compute_units;
    let reported = if chip == reported { String::new() } else { format!(" reported as {reported}") };
    format!("{name} ({chip}{reported}, {units} units)")
}

/// Whether a measurement still holds: of this device, these kernels and this compiler.
pub fn is_current(tuned: &Tuned, driver: &dyn Driver) -> bool {
    tuned.device == device(driver.description())
        && tuned.kernels == kernels()
        && tuned.compiler == driver.compiler().version()
}
