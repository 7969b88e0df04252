//! Repairs a whole code object, on all cores.

use rayon::prelude::*;
use unhang_isa::elf::{CodeObject, ElfError};
use unhang_isa::repair::{ObjectRepair, Options, assemble, plan_function};

/// Repairs a code object as [`unhang_isa::repair::repair_object`] does, its functions in parallel.
pub fn repair(bytes: &[u8], options: Options) -> Result<ObjectRepair, ElfError> {
    let object = CodeObject::parse(bytes)?;
    let plans = match object.chip() {
        Some(_) => object.functions.par_iter().map(|function| plan_function(&object, function, options)).collect(),
        None => Vec::new(),
    };
    Ok(assemble(&object, plans))
}
