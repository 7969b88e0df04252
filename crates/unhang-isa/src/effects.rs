//! What an instruction reads and writes, as far as hazards need it: scalar registers, EXEC, and the unit that runs it.

use crate::registers::number;
use crate::table::{Class, Field, Flow, Format, OperandKind, Width};
use crate::{Instruction, Modifier, ScalarSet};

/// The scalar side of an instruction.
#[derive(Clone, Copy, Debug)]
pub struct Effects {
    /// The unit that executes it.
    pub class: Class,
    /// Scalar registers that it reads, including EXEC if the lanes matter to it.
    pub reads: ScalarSet,
    /// Scalar registers that it names as destinations.
    pub writes: ScalarSet,
    /// For vector arithmetic: the scalar registers that it writes as a lane mask, VCC and EXEC without a field among
    /// them. Not the destination of `v_readlane` and `v_readfirstlane`, which is in `writes` alone.
    pub mask_writes: ScalarSet,
}

impl Effects {
    /// All scalar registers that it reads or writes.
    #[inline]
    pub fn touched(&self) -> ScalarSet {
        self.reads | self.writes | self.mask_writes
    }
}

impl Instruction {
    /// The unit that executes it.
    #[inline]
    pub fn class(&self) -> Class {
        self.definition.class
    }

    /// Whether it is an atomic operation on flat, global or buffer memory.
    #[inline]
    pub fn is_atomic(&self) -> bool {
        matches!(self.format(), Format::Flat | Format::Global | Format::Mubuf)
            && matches!(self.definition.opcode, 0x30..=0x60)
    }

    /// The offset of a flat, global or scratch instruction, in bytes.
    #[inline]
    pub fn flat_offset(&self) -> i32 {
        if self.format() == Format::Flat { self.bits(0, 11) as i32 } else { ((self.first_word() << 20) as i32) >> 20 }
    }

    /// Whether it is a load from a buffer into the local data share.
    #[inline]
    pub fn loads_to_local(&self) -> bool {
        self.format() == Format::Mubuf && self.bits(16, 1) == 1
    }

    /// Whether it is a vector comparison that writes EXEC and nothing else.
    #[inline]
    pub fn is_compare_to_exec(&self) -> bool {
        match self.format() {
            Format::Vopc => is_cmpx(self.definition.opcode),
            Format::Vop3 => self.definition.opcode < 0x100 && is_cmpx(self.definition.opcode),
            _ => false,
        }
    }

    /// Whether it is a branch in LLVM's sense: relative, or through a register.
    #[inline]
    pub fn is_branch(&self) -> bool {
        matches!(self.definition.flow, Flow::Branch | Flow::Jump | Flow::JumpRegister)
    }

    /// Whether it is a call: it stores the address of the next instruction and jumps.
    #[inline]
    pub fn is_call(&self) -> bool {
        self.definition.flow == Flow::Call
    }

    /// Whether control never reaches the next instruction: the program or the function ends here, or jumps without
    /// condition.
    #[inline]
    pub fn ends_block_for_good(&self) -> bool {
        matches!(self.definition.flow, Flow::Jump | Flow::JumpRegister | Flow::End)
    }

    /// What it does to scalar registers.
    #[inline]
    pub fn effects(&self, wave64: bool) -> Effects {
        let class = self.class();
        let mut effects =
            Effects { class, reads: ScalarSet::EMPTY, writes: ScalarSet::EMPTY, mask_writes: ScalarSet::EMPTY };
        for (position, &slot) in self.definition.operands().iter().enumerate() {
            if slot.kind == OperandKind::Vector && self.modifier != Modifier::Sdwa {
                continue;
            }
            let set = match slot.field {
                Field::Vcc => self.vcc(wave64),
                _ => self.scalars(slot, wave64),
            };
            match slot.field {
                Field::Destination | Field::ScalarDestination => {
                    effects.writes |= set;
                    if slot.width == Width::LaneMask {
                        effects.mask_writes |= set;
                    }
                }
                // The first VCC of a carry instruction or a comparison is its destination, a last one its source.
                Field::Vcc if position < self.definition.operands().len() - 1 => {
                    effects.writes |= set;
                    effects.mask_writes |= set;
                }
                Field::Constant => {}
                _ => effects.reads |= set,
            }
        }
        match class {
            Class::Vector => {
                effects.reads |= ScalarSet::EXEC;
                if self.is_compare_to_exec() {
                    effects.mask_writes |= ScalarSet::EXEC;
                }
            }
            Class::Scalar if self.definition.reads_exec => effects.reads |= ScalarSet::EXEC,
            Class::Scalar => {}
            Class::ScalarMemory => {
                if self.definition.operand(Field::Source0).is_some() {
                    effects.reads |= ScalarSet::range(self.high_bits(25, 7) as u8, 1);
                }
            }
            Class::VectorMemory => {
                effects.reads |= ScalarSet::EXEC;
                let resource = (self.high_bits(16, 5) * 4) as u8;
                if self.format() == Format::Mimg {
                    effects.reads |= ScalarSet::range(resource, if self.bits(15, 1) == 1 { 4 } else { 8 });
                    if matches!(self.definition.opcode, 0x20..=0x6f | 0xa2..=0xbb | 0xe8..=0xef) {
                        effects.reads |= ScalarSet::range((self.high_bits(21, 5) * 4) as u8, 4);
                    }
                } else if !self.definition.operands().is_empty() {
                    effects.reads |= ScalarSet::range(resource, 4);
                    effects.reads |= ScalarSet::range(self.high_bits(24, 8) as u8, 1);
                    if self.loads_to_local() {
                        effects.reads |= ScalarSet::M0;
                    }
                }
            }
            Class::Flat => effects.reads |= ScalarSet::EXEC,
            Class::Segment => {
                effects.reads |= ScalarSet::EXEC;
                let scalar = self.high_bits(16, 7) as u8;
                if scalar != number::NULL && scalar != 0x7f {
                    effects.reads |= ScalarSet::range(scalar, if self.format() == Format::Global { 2 } else { 1 });
                }
            }
            Class::Local | Class::Export => effects.reads |= ScalarSet::EXEC,
        }
        if self.definition.reads_vcc {
            effects.reads |= self.vcc(wave64);
        }
        if self.definition.reads_m0 {
            effects.reads |= ScalarSet::M0;
        }
        effects
    }

    fn vcc(&self, wave64: bool) -> ScalarSet {
        if self.modifier == Modifier::Sdwa && self.format() == Format::Vopc && self.high_bits(15, 1) == 1 {
            return ScalarSet::range(self.high_bits(8, 7) as u8, 1 + wave64 as u8);
        }
        ScalarSet::range(number::VCC, 1 + wave64 as u8)
    }
}

/// Comparisons come in blocks of sixteen; every second block writes EXEC.
#[inline]
fn is_cmpx(opcode: u16) -> bool {
    opcode & 0x10 != 0
}
