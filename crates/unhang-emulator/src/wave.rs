//! The state of a wave, and how operands are read and written.

use unhang_isa::{Field, Instruction, OperandValue, Slot};

use crate::float::FloatMode;
use crate::registers::Registers;
pub(crate) use crate::registers::{LANES, Lanes};

pub(crate) const VCC: usize = 106;
pub(crate) const M0: usize = 124;
pub(crate) const NULL: usize = 125;
pub(crate) const EXEC: usize = 126;

/// Whether a wave runs, waits or has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    Running,
    AtBarrier,
    Ended,
}

/// A wave of 32 lanes, or of 64 in two halves.
#[derive(Clone)]
pub(crate) struct Wave {
    pub scalars: [u32; 128],
    /// Vector registers; those of the upper half follow those of the lower.
    pub vectors: Registers,
    /// Vector registers of a half.
    pub registers: usize,
    /// The half for which a vector instruction is being executed; otherwise 0.
    pub half: usize,
    pub wave64: bool,
    pub scc: bool,
    /// The address of the kernel's first instruction.
    pub entry: u64,
    /// The number of the wave in its workgroup, and the workgroup's position in the grid.
    pub number: u32,
    pub workgroup: [u32; 3],
    pub function: u32,
    pub index: u32,
    pub standing: Standing,
    pub executed: u64,
    /// Whether the workgroup spans both compute units of a workgroup processor.
    pub spans_units: bool,
    /// The mode register.
    pub mode_bits: u32,
    /// The mode register's meaning for floats.
    pub mode: FloatMode,
    /// The address of scratch memory, as the program sees it.
    pub flat_scratch: [u32; 2],
    /// Its real address: that of this wave's part, and the bytes per lane.
    pub scratch: (u64, u32),
    /// The bases of LDS and of private memory in flat addresses.
    pub apertures: [u64; 2],
    /// Whether code was resolved for the float mode that flushes single-precision denormals, not for the usual one.
    pub flushes: bool,
    /// Whether the float mode is the one for which code was resolved.
    pub usual_mode: bool,
}

/// The width and meaning of an operand, for constants and sign changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Type {
    /// 32 bits, or fewer that are extracted from them.
    Bits32,
    /// 64 bits to which a literal is extended with zeros.
    Bits64,
    /// 64 bits to which a literal is extended with its sign.
    Signed64,
    /// Half a register.
    Bits16,
    Float16,
    Float32,
    Float64,
    /// Two 16-bit values in a register.
    Packed16,
}

impl Type {
    /// Whether it is half a register, of which the upper half can be selected.
    pub(crate) const fn is_half(self) -> bool {
        matches!(self, Type::Bits16 | Type::Float16)
    }

    pub(crate) const fn is_float(self) -> bool {
        matches!(self, Type::Float16 | Type::Float32 | Type::Float64)
    }

    /// The bit that sign changes invert; integers have no such modifiers.
    pub(crate) const fn sign_bit(self) -> u64 {
        match self {
            Type::Float16 => 1 << 15,
            Type::Float32 => 1 << 31,
            Type::Float64 => 1 << 63,
            Type::Bits16 | Type::Bits32 | Type::Bits64 | Type::Signed64 | Type::Packed16 => 0,
        }
    }
}

impl Wave {
    /// The active lanes of the half that is being executed.
    #[inline]
    pub(crate) fn exec(&self) -> u32 {
        self.scalars[EXEC + self.half]
    }

    /// Both halves of EXEC; waves of 32 lanes have one.
    #[inline]
    pub(crate) fn exec64(&self) -> u64 {
        self.scalars[EXEC] as u64 | if self.wave64 { (self.scalars[EXEC + 1] as u64) << 32 } else { 0 }
    }

    /// Both halves of VCC; waves of 32 lanes have one.
    #[inline]
    pub(crate) fn vcc64(&self) -> u64 {
        self.scalars[VCC] as u64 | if self.wave64 { (self.scalars[VCC + 1] as u64) << 32 } else { 0 }
    }

    /// The number of active lanes.
    #[inline]
    pub(crate) fn lanes_on(&self) -> u32 {
        self.exec64().count_ones()
    }

    /// Call this when the float mode has changed.
    pub(crate) fn note_mode(&mut self) {
        self.usual_mode = self.mode.is_usual(self.flushes);
    }

    /// The index of a vector register among all rows, if the kernel has it.
    #[inline]
    fn row(&self, register: usize) -> Option<usize> {
        (register < self.registers).then_some(self.half * self.registers + register)
    }

    /// The row of a vector register, for changing; `None` past the kernel's allocation.
    #[inline]
    pub(crate) fn vector_mut(&mut self, register: usize) -> Option<&mut Lanes> {
        let row = self.row(register)?;
        self.vectors.get_mut(row)
    }

    /// A scalar register; `null` reads as zero.
    #[inline]
    pub(crate) fn scalar(&self, register: u8) -> u32 {
        if register as usize == NULL { 0 } else { self.scalars[(register & 127) as usize] }
    }

    #[inline]
    pub(crate) fn scalar64(&self, register: u8) -> u64 {
        if register as usize == NULL {
            return 0;
        }
        let low = (register & 127) as usize;
        self.scalars[low] as u64 | (self.scalars[(low + 1) & 127] as u64) << 32
    }

    #[inline]
    pub(crate) fn set_scalar(&mut self, register: u8, value: u32) {
        if register as usize != NULL {
            self.scalars[(register & 127) as usize] = value;
        }
    }

    #[inline]
    pub(crate) fn set_scalar64(&mut self, register: u8, value: u64) {
        if register as usize != NULL {
            self.scalars[(register & 127) as usize] = value as u32;
            self.scalars[((register & 127) + 1) as usize & 127] = (value >> 32) as u32;
        }
    }

    /// One of the pair of registers of a mask, by the half that is being executed; `None` for `null`.
    #[inline]
    pub(crate) fn set_scalar_of_half(&mut self, register: u8, value: u32) {
        if register as usize != NULL {
            self.set_scalar((register + self.half as u8) & 127, value);
        }
    }

    /// A vector register; one past the kernel's allocation reads as zeros.
    #[inline]
    pub(crate) fn vector(&self, register: u8) -> Lanes {
        self.row(register as usize).and_then(|row| self.vectors.get(row)).copied().unwrap_or([0; LANES])
    }

    #[inline]
    pub(crate) fn vector_lane(&self, register: usize, lane: usize) -> u32 {
        self.row(register).and_then(|row| self.vectors.get(row)).map_or(0, |lanes| lanes[lane])
    }

    #[inline]
    pub(crate) fn set_vector_lane(&mut self, register: usize, lane: usize, value: u32) {
        if let Some(lanes) = self.vector_mut(register) {
            lanes[lane] = value;
        }
    }

    /// A source that is the same for every lane: anything except a vector register.
    pub(crate) fn uniform(&self, source: OperandValue, kind: Type, wide: bool) -> u64 {
        match source {
            OperandValue::Scalar(register) if wide => self.scalar64(register),
            OperandValue::Scalar(register) => self.scalar(register) as u64,
            OperandValue::Integer(_) | OperandValue::Literal(_) | OperandValue::Float(_) => {
                constant(source, kind, wide)
            }
            OperandValue::Special(code) => match code {
                235 => self.apertures[0],
                237 => self.apertures[1],
                236 | 238 => 0xffff_ffff,
                251 => (self.vcc64() == 0) as u64,
                252 => (self.exec64() == 0) as u64,
                253 => self.scc as u64,
                _ => 0,
            },
            OperandValue::Vector(_) => 0,
        }
    }

    /// A scalar source operand.
    pub(crate) fn scalar_source(&self, instruction: &Instruction, slot: Slot) -> u64 {
        let (kind, wide) = scalar_type(instruction, slot);
        self.uniform(instruction.operand(slot), kind, wide)
    }

    /// A scalar source operand that is a constant.
    pub(crate) fn scalar_constant(instruction: &Instruction, slot: Slot, source: OperandValue) -> u64 {
        let (kind, wide) = scalar_type(instruction, slot);
        constant(source, kind, wide)
    }

    /// The number of the destination register.
    pub(crate) fn destination(instruction: &Instruction, field: Field) -> Option<u8> {
        match instruction.definition.operand(field).map(|slot| instruction.operand(slot))? {
            OperandValue::Scalar(register) | OperandValue::Vector(register) => Some(register),
            _ => None,
        }
    }
}

/// The type of a scalar source operand, and whether it has two registers.
fn scalar_type(instruction: &Instruction, slot: Slot) -> (Type, bool) {
    let wide = slot.width.registers(false) == 2;
    let kind = match wide {
        true if instruction.definition.mnemonic.ends_with("_i64") => Type::Signed64,
        true => Type::Bits64,
        false => Type::Bits32,
    };
    (kind, wide)
}

/// A constant source.
pub(crate) fn constant(source: OperandValue, kind: Type, wide: bool) -> u64 {
    match source {
        OperandValue::Integer(value) if wide => value as i64 as u64,
        OperandValue::Integer(value) => value as i32 as u32 as u64,
        OperandValue::Literal(value) if kind == Type::Float64 => (value as u64) << 32,
        OperandValue::Literal(value) if kind == Type::Signed64 => value as i32 as i64 as u64,
        OperandValue::Literal(value) => value as u64,
        OperandValue::Float(code) => float_constant(code, kind),
        OperandValue::Scalar(_) | OperandValue::Vector(_) | OperandValue::Special(_) => 0,
    }
}

/// The bits of a constant of 32 bits or fewer.
pub(crate) fn constant_bits(source: OperandValue, kind: Type) -> u32 {
    match source {
        OperandValue::Integer(value) => value as i32 as u32,
        OperandValue::Literal(value) => value,
        OperandValue::Float(code) => float_constant(code, kind) as u32,
        OperandValue::Scalar(_) | OperandValue::Vector(_) | OperandValue::Special(_) => 0,
    }
}

/// One of the nine float constants, in the type of the operand.
fn float_constant(code: u8, kind: Type) -> u64 {
    const VALUES: [f64; 8] = [0.5, -0.5, 1.0, -1.0, 2.0, -2.0, 4.0, -4.0];
    let place = code.clamp(240, 248) as usize - 240;
    if place == 8 {
        // One over two pi.
        return match kind {
            Type::Float16 | Type::Packed16 => 0x3118,
            Type::Float64 | Type::Bits64 | Type::Signed64 => 0x3fc4_5f30_6dc9_c882,
            _ => 0x3e22_f983,
        };
    }
    match kind {
        Type::Float16 | Type::Packed16 => half::f16::from_f64(VALUES[place]).to_bits() as u64,
        Type::Float64 | Type::Bits64 | Type::Signed64 => VALUES[place].to_bits(),
        // Integers of 16 bits see the low half of the single.
        Type::Bits16 | Type::Bits32 | Type::Float32 => (VALUES[place] as f32).to_bits() as u64,
    }
}
