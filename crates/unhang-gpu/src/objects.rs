//! The objects of kernels: kept, compiled, audited for the chip that is there and tagged for the one that is reported.

use unhang_isa::Chip;

use crate::cache::{Cache, Key};
use crate::compiler::Compiler;
use crate::error::GpuError;
use crate::object::{self, ObjectError};
use crate::sources::Kernel;

/// The key of a kernel's object: everything that made it.
pub(crate) fn key_of(
    compiler: &dyn Compiler,
    kernel: &Kernel,
    true_architecture: &str,
    reported_architecture: &str,
) -> Key {
    let options = compiler.options(kernel, target(true_architecture, reported_architecture));
    Key::of(
        [kernel.source.identity(), &compiler.version(), true_architecture, reported_architecture]
            .into_iter()
            .chain(options.iter().map(String::as_str)),
    )
}

/// The chip to compile for: the true one. If we cannot retag its objects (a gfx1103 that passes as gfx1100), the chip
/// that the runtime reports, as for everything else that runs there.
fn target<'a>(true_architecture: &'a str, reported_architecture: &'a str) -> &'a str {
    match true_architecture.parse::<Chip>() {
        Ok(_) => true_architecture,
        Err(_) => reported_architecture,
    }
}

/// The object of a kernel, from the cache or compiled: for `true_architecture`, tagged for `reported_architecture`.
/// On an RDNA1 chip an object that is unsafe there is refused.
pub(crate) fn object_for(
    compiler: &dyn Compiler,
    cache: Option<&Cache>,
    kernel: &Kernel,
    true_architecture: &str,
    reported_architecture: &str,
) -> Result<Vec<u8>, GpuError> {
    let options = compiler.options(kernel, target(true_architecture, reported_architecture));
    let key = key_of(compiler, kernel, true_architecture, reported_architecture);
    let (chip, reported) = (true_architecture.parse::<Chip>().ok(), reported_architecture.parse::<Chip>().ok());
    let kept = cache.and_then(|cache| match chip {
        Some(chip) => cache.get_safe(key, chip),
        None => cache.get(key),
    });
    if let Some(object) = kept {
        return Ok(object);
    }
    let object = compiler.compile(kernel, &options)?;
    let object = match chip {
        Some(chip) => audited_and_tagged(object, chip, chip, reported.unwrap_or(chip))?,
        None => object,
    };
    if let Some(cache) = cache {
        // A full disk costs the next start a compilation, and nothing now.
        let _ = cache.put(key, &object);
    }
    Ok(object)
}

/// An object compiled for `target`, to run on `chip` under a runtime that reports `reported`. On an RDNA1 chip an
/// unsafe one is refused.
pub(crate) fn audited_and_tagged(
    object: Vec<u8>,
    target: Chip,
    chip: Chip,
    reported: Chip,
) -> Result<Vec<u8>, ObjectError> {
    if chip.is_rdna1() {
        object::refuse_unsafe(&object, chip)?;
    }
    if target == reported { Ok(object) } else { object::retag(&object, target, reported) }
}

#[cfg(test)]
mod tests {
    use super::target;

    #[test]
    fn chips_that_cannot_be_relabelled_get_code_for_the_reported_one() {
        assert_eq!(target("gfx1010", "gfx1030"), "gfx1010", "relabelled after the audit");
        assert_eq!(target("gfx1103", "gfx1100"), "gfx1100");
        assert_eq!(target("gfx1100", "gfx1100"), "gfx1100");
        assert_eq!(target("sm_90", "sm_90"), "sm_90");
    }
}
