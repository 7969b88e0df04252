//! Vector registers that a kernel does not use, for values that a work-around must store.

use crate::elf::KernelDescriptor;
use crate::opcode::{V_MOVRELD_B32, V_MOVRELS_B32, V_MOVRELSD_2_B32, V_MOVRELSD_B32, V_SWAPREL_B32, long};
use crate::registers::OperandValue;
use crate::table::Format;
use crate::{Instruction, Program};

/// Vector registers in a row that a function does not use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SpareRegisters {
    pub first: u8,
    pub count: u32,
}

impl SpareRegisters {
    /// Their numbers.
    pub(super) fn list(self) -> Vec<u8> {
        (self.first..=u8::MAX).take(self.count as usize).collect()
    }
}

/// Free vector registers, and the `COMPUTE_PGM_RSRC1` that they need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spare {
    /// Which they are.
    pub registers: SpareRegisters,
    /// `COMPUTE_PGM_RSRC1`, with more registers if the kernel uses all that it has.
    pub resource1: u32,
}

/// The field of `COMPUTE_PGM_RSRC1` for the granules of vector registers, less one.
pub(super) const GRANULES: u32 = 0x3f;
/// What the hardware can give one wave.
const MOST_REGISTERS: u32 = 256;

fn granule(wave64: bool) -> u32 {
    if wave64 { 4 } else { 8 }
}

/// `count` registers that a kernel does not use, if its workgroups of up to `lanes` still fit the hardware with them.
pub(super) fn find(program: &Program, descriptor: &KernelDescriptor, count: u32, lanes: u32) -> Option<Spare> {
    if program.calls > 0 || program.unresolved_jumps > 0 {
        return None;
    }
    let used = program.instructions.iter().try_fold(0, |most, instruction| Some(most.max(end(instruction)?)))?;
    let wanted = used + count;
    let granule = granule(program.wave64);
    let mut resource1 = descriptor.resource1;
    if wanted > ((resource1 & GRANULES) + 1) * granule {
        resource1 = resource1 & !GRANULES | (wanted.div_ceil(granule) - 1) & GRANULES;
        let units = if descriptor.workgroup_processor_mode() { 2 } else { 1 };
        if wanted > MOST_REGISTERS || !fits(resource1, program.wave64, units, lanes) {
            return None;
        }
    }
    Some(Spare { registers: SpareRegisters { first: u8::try_from(used).ok()?, count }, resource1 })
}

/// Whether a workgroup fits on that many compute units. Each has two vector units with 1024 registers for 32 lanes and
/// room for 20 waves; LDS is 64 KiB at most in either mode.
pub(super) fn fits(resource1: u32, wave64: bool, compute_units: u32, lanes: u32) -> bool {
    let registers = ((resource1 & GRANULES) + 1) * granule(wave64);
    // A wave of 64 lanes takes two registers for each.
    let (file, wave) = if wave64 { (512, 64) } else { (1024, 32) };
    compute_units * 2 * (file / registers).min(20) >= lanes.div_ceil(wave)
}

/// Whether an instruction indexes vector registers by M0, so that the code does not show which.
pub(super) fn is_relative(instruction: &Instruction) -> bool {
    let relative = [V_MOVRELD_B32, V_MOVRELS_B32, V_MOVRELSD_B32, V_MOVRELSD_2_B32, V_SWAPREL_B32];
    let long_relative = [long::V_MOVRELD_B32, long::V_MOVRELS_B32, long::V_MOVRELSD_B32, long::V_MOVRELSD_2_B32];
    instruction.is_any(&relative) || instruction.is_any(&long_relative)
}

/// One past the highest vector register that an instruction names; `None` if the code does not show it.
fn end(instruction: &Instruction) -> Option<u32> {
    if is_relative(instruction) {
        return None;
    }
    let named = instruction.definition.operands().iter().map(|&slot| match instruction.operand(slot) {
        OperandValue::Vector(first) => first as u32 + slot.width.registers(false) as u32,
        _ => 0,
    });
    let most = named.max().unwrap_or(0);
    match instruction.format() {
        Format::Mimg | Format::Mtbuf | Format::Exp | Format::Vintrp => None,
        // The address of one or two registers, and one more behind the data for a status.
        Format::Mubuf => Some((most + 1).max(instruction.high_bits(0, 8) + 2)),
        Format::Flat | Format::Global | Format::Scratch => Some(most.max(instruction.high_bits(0, 8) + 2)),
        _ => Some(most),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_workgroups_want_small_kernels() {
        let granules = |registers: u32, wave64| registers / granule(wave64) - 1;
        assert!(fits(granules(64, false), false, 1, 1024));
        assert!(!fits(granules(72, false), false, 1, 1024));
        assert!(fits(granules(128, false), false, 2, 1024));
        assert!(fits(granules(256, false), false, 1, 256));
        assert!(!fits(granules(256, false), false, 1, 257));
        assert!(fits(granules(64, true), true, 1, 1024));
        assert!(!fits(granules(68, true), true, 1, 1024));
    }
}
