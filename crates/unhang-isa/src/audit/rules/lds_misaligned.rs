//! `lds-misaligned-bug`: a wide access to LDS at an address that is not a multiple of its width, in a workgroup that
//! spans two compute units.

use crate::audit::handler::{Detection, Handler, Repair};
use crate::audit::rule::{Context, Severity};
use crate::opcode::{
    DS_READ_B64, DS_READ_B96, DS_READ_B128, DS_READ2_B64, DS_READ2ST64_B64, DS_WRITE_B64, DS_WRITE_B96, DS_WRITE_B128,
    DS_WRITE2_B64, DS_WRITE2ST64_B64, FLAT_LOAD_DWORDX2, FLAT_LOAD_DWORDX3, FLAT_LOAD_DWORDX4, FLAT_STORE_DWORDX2,
    FLAT_STORE_DWORDX3, FLAT_STORE_DWORDX4, V_MOV_B32, V_MOVRELD_B32, V_MOVRELSD_2_B32, V_MOVRELSD_B32, V_SWAP_B32,
    V_SWAPREL_B32, long,
};
use crate::registers::OperandValue;
use crate::table::Field;
use crate::{Chip, Format, Instruction, Program};

pub(super) static HANDLER: Handler = Handler {
    name: "lds-misaligned",
    severity: Severity::Certain,
    explanation: "This access to the local data share is wider than its alignment, which this chip gets wrong when a \
                  workgroup spans two compute units.",
    detection: Detection::Program(check),
    // Repair turns workgroup-processor mode off if the workgroup fits one compute unit.
    repair: Repair::Elsewhere,
};

/// Whether a program has wide accesses to LDS, or flat ones that may go there. These must be aligned in
/// workgroup-processor mode.
pub(crate) fn has_wide_accesses(program: &Program) -> bool {
    program.instructions.iter().any(|instruction| wide_local_access(instruction).is_some())
}

/// Whether the local memory that a launch adds may begin where a wide access is misaligned. It begins after the
/// kernel's own, and a source that declares it as bytes gives it no alignment. PyTorch's sums do; the compiler trusts
/// their casts.
pub(crate) fn may_begin_misaligned(program: &Program, own: u32) -> bool {
    program.instructions.iter().filter_map(wide_local_access).any(|(width, _)| !own.is_multiple_of(width))
}

fn check(program: &Program, _: Chip, context: Context, find: &mut dyn FnMut(u32)) {
    if !context.workgroup_processor_mode || !has_wide_accesses(program) {
        return;
    }
    for block in &program.blocks {
        let mut alignments = Alignments::default();
        for index in block.first..block.end {
            if alignments.misaligned(&program.instructions[index as usize]) {
                find(index);
            }
        }
    }
}

/// The alignment that a multi-word access needs if it is in LDS, and what is added to its address first; `None` for
/// every other instruction. Whether a flat access goes to LDS is known only at run time.
#[inline]
pub fn wide_local_access(instruction: &Instruction) -> Option<(u32, u32)> {
    let offset = instruction.bits(0, 16);
    match instruction.format() {
        Format::Ds if instruction.is_any(&[DS_READ_B64, DS_WRITE_B64]) => Some((8, offset)),
        // The offsets of pairs are multiples of their size.
        Format::Ds if instruction.is_any(&[DS_READ2_B64, DS_WRITE2_B64, DS_READ2ST64_B64, DS_WRITE2ST64_B64]) => {
            Some((8, 0))
        }
        Format::Ds if instruction.is_any(&[DS_READ_B96, DS_WRITE_B96, DS_READ_B128, DS_WRITE_B128]) => {
            Some((16, offset))
        }
        Format::Flat if instruction.is_any(&[FLAT_LOAD_DWORDX2, FLAT_STORE_DWORDX2]) => Some((8, 0)),
        Format::Flat => {
            let wide = [FLAT_LOAD_DWORDX3, FLAT_STORE_DWORDX3, FLAT_LOAD_DWORDX4, FLAT_STORE_DWORDX4];
            instruction.is_any(&wide).then_some((16, 0))
        }
        _ => None,
    }
}

/// What is known about local addresses within one block: a vector register modulo 16, from a constant moved into it or
/// from an earlier wide access.
///
/// Two wide accesses through one address register, with offsets that differ by less than their width, cannot both be
/// aligned. Code alone can prove no more than that.
#[derive(Default)]
struct Alignments {
    known: Vec<(u8, u32, u32)>,
}

impl Alignments {
    /// Notes the instruction's effect, and returns whether it is certainly a misaligned wide local access.
    fn misaligned(&mut self, instruction: &Instruction) -> bool {
        let mut misaligned = false;
        if instruction.format() == Format::Ds
            && let Some((width, offset)) = wide_local_access(instruction)
        {
            let register = instruction.high_bits(0, 8) as u8;
            match self.known.iter_mut().find(|entry| entry.0 == register) {
                Some((_, remainder, modulus)) => {
                    let shared = width.min(*modulus);
                    misaligned = !(*remainder + offset).is_multiple_of(shared);
                    if !misaligned && width > *modulus {
                        (*remainder, *modulus) = ((width - offset % width) % width, width);
                    }
                }
                None => self.known.push((register, (width - offset % width) % width, width)),
            }
        }
        self.forget_destination(instruction);
        if instruction.is(V_MOV_B32)
            && let (Some(OperandValue::Vector(register)), Some(value)) =
                (destination(instruction), constant(instruction))
        {
            self.known.push((register, value % 16, 16));
        }
        misaligned
    }

    fn forget_destination(&mut self, instruction: &Instruction) {
        if self.known.is_empty() {
            return;
        }
        if let Some(slot) = instruction.definition.operand(Field::Destination) {
            if let OperandValue::Vector(first) = instruction.operand(slot) {
                let count = slot.width.registers(false) as u16;
                self.known.retain(|entry| !(first as u16..first as u16 + count).contains(&(entry.0 as u16)));
            }
        } else if matches!(instruction.format(), Format::Mubuf | Format::Mtbuf | Format::Mimg) {
            self.known.clear();
        }
        // v_swap writes its source, and relative moves may write any register.
        let anything = [
            V_SWAP_B32,
            V_SWAPREL_B32,
            V_MOVRELD_B32,
            V_MOVRELSD_B32,
            V_MOVRELSD_2_B32,
            long::V_MOVRELD_B32,
            long::V_MOVRELSD_B32,
            long::V_MOVRELSD_2_B32,
        ];
        if instruction.is_any(&anything) {
            self.known.clear();
        }
    }
}

fn destination(instruction: &Instruction) -> Option<OperandValue> {
    instruction.definition.operand(Field::Destination).map(|slot| instruction.operand(slot))
}

fn constant(instruction: &Instruction) -> Option<u32> {
    match instruction.definition.operand(Field::Source0).map(|slot| instruction.operand(slot))? {
        OperandValue::Integer(value) => Some(value as i32 as u32),
        OperandValue::Literal(value) => Some(value),
        _ => None,
    }
}
