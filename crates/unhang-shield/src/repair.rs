//! Decides which objects concern this card, and what the runtime gets instead.

use std::sync::OnceLock;
use std::time::Instant;

use unhang_isa::audit::{Context, audit};
use unhang_isa::elf::CodeObject;
use unhang_isa::repair::{FunctionRepair, ObjectRepair, Options, Treatment, may_misalign, repair_object};
use unhang_isa::{Chip, Program};

use crate::cache::{self, MAX_OBJECT};
use crate::left::Left;
use crate::{chips, log};

/// The RDNA1 chip that is here, if one is; looked for once.
fn chip() -> Option<Chip> {
    static CHIP: OnceLock<Option<Chip>> = OnceLock::new();
    *CHIP.get_or_init(|| {
        let chip = chips::find();
        match chip {
            Some(chip) => log::line(format_args!("the card is a {chip}: code for other chips is repaired")),
            None => log::line(format_args!("there is no RDNA1 card here: nothing is repaired")),
        }
        chip
    })
}

/// Whether an object is marked as code for an RDNA1 chip under another chip's name, and the audit agrees. unhang's own
/// kernels are marked so under a spoof. The mark alone is not trusted.
fn is_ours_and_safe(object: &[u8], chip: Chip) -> bool {
    let Some(target) = CodeObject::marked_chip(object).filter(|marked| marked.is_rdna1()) else { return false };
    let Ok(code) = CodeObject::parse(object) else { return false };
    code.functions.iter().all(|function| {
        let mode = code.mode_of(function);
        let context = Context { workgroup_processor_mode: mode.workgroup_processor };
        Program::decode(function.code, target, mode.wave64)
            .is_ok_and(|program| audit(&program, chip, context).is_empty())
    })
}

/// Whether a function of an object breaks a rule of the chip that it was compiled for: compilers do not look into inline assembly, which
/// rocPRIM has. Triton's descriptors of buffers put every access out of range on gfx1010. PyTorch's sums promise an
/// alignment that their local memory does not have.
fn is_unsafe(object: &[u8], chip: Chip) -> bool {
    let Ok(code) = CodeObject::parse(object) else { return false };
    let Some(target) = code.chip() else { return false };
    code.functions.iter().any(|function| {
        let mode = code.mode_of(function);
        let context = Context { workgroup_processor_mode: mode.workgroup_processor };
        Program::decode(function.code, target, mode.wave64).is_ok_and(|program| {
            function.descriptor.is_some_and(|it| may_misalign(&program, &it))
                || !audit(&program, chip, context).is_empty()
        })
    })
}

/// What the runtime gets instead of an object; `None` if it stays as it is.
pub(crate) fn repair(object: &[u8]) -> Option<&'static [u8]> {
    let chip = chip()?;
    if object.len() > MAX_OBJECT || is_ours_and_safe(object, chip) {
        return None;
    }
    // Most code for RDNA1 itself has nothing to repair.
    if CodeObject::chip_of(object)?.is_rdna1() && !is_unsafe(object, chip) {
        return None;
    }
    let mut functions = 0;
    let repaired = cache::find_or_insert(object, chip, || {
        let start = Instant::now();
        match repair_object(object, Options { chip, keep_size: false }) {
            Ok(repair) => {
                log::line(format_args!("{}, {:.1} ms", summary(object, &repair), start.elapsed().as_secs_f64() * 1e3));
                functions = repair.functions.iter().filter(|it| it.treatment != Treatment::Untouched).count();
                let left = Left::all_of(&repair);
                (repair.bytes, left)
            }
            Err(error) => {
                log::line(format_args!("an object of {} bytes goes through: {error}", object.len()));
                (None, Vec::new())
            }
        }
    });
    if repaired.is_some() {
        log::count(functions);
    }
    repaired
}

fn summary(object: &[u8], repair: &ObjectRepair) -> String {
    let sum = |count: fn(&FunctionRepair) -> u64| -> u64 { repair.functions.iter().map(count).sum() };
    format!(
        "{} object of {} bytes: {} functions, {} findings, {} left, {} instructions inserted",
        repair.target.map_or("unknown", Chip::name),
        object.len(),
        repair.functions.len(),
        sum(|function| function.before.total()),
        sum(|function| function.after.total()),
        sum(|function| function.inserted as u64),
    )
}
