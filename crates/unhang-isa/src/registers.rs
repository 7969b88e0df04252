//! Scalar registers and what a source field can name.

use std::fmt::{self, Write};
use std::ops::{BitAnd, BitOr, BitOrAssign};

/// Numbers of scalar registers that have names.
pub(crate) mod number {
    pub(crate) const VCC: u8 = 106;
    pub(crate) const TRAP_0: u8 = 108;
    pub(crate) const M0: u8 = 124;
    pub(crate) const NULL: u8 = 125;
    pub(crate) const EXEC: u8 = 126;
}

/// Codes of the read-only values that hazards and liveness use.
pub(crate) mod special {
    pub(crate) const VCCZ: u8 = 251;
    pub(crate) const SCC: u8 = 253;
}

/// A set of the 128 scalar registers: s0 to s105, VCC, the trap registers, M0 and EXEC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ScalarSet(pub u128);

impl ScalarSet {
    /// No register.
    pub const EMPTY: ScalarSet = ScalarSet(0);
    /// Both halves of EXEC.
    pub const EXEC: ScalarSet = ScalarSet(3 << number::EXEC);
    /// M0.
    pub const M0: ScalarSet = ScalarSet(1 << number::M0);
    /// Both halves of VCC.
    pub const VCC: ScalarSet = ScalarSet(3 << number::VCC);

    /// `count` registers from `first` on. `null` is not a register: reading and writing it has no effect.
    #[inline]
    pub fn range(first: u8, count: u8) -> ScalarSet {
        if first >= 128 || first == number::NULL {
            return ScalarSet::EMPTY;
        }
        let ones = if count >= 128 { u128::MAX } else { (1u128 << count) - 1 };
        ScalarSet((ones << first) & !(1 << number::NULL))
    }

    /// Whether it holds nothing.
    #[inline]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether the two sets share a register.
    #[inline]
    pub fn meets(self, other: ScalarSet) -> bool {
        self.0 & other.0 != 0
    }

    /// The lowest register in it.
    pub fn first(self) -> Option<u8> {
        (self.0 != 0).then(|| self.0.trailing_zeros() as u8)
    }
}

impl BitOr for ScalarSet {
    type Output = ScalarSet;
    fn bitor(self, other: ScalarSet) -> ScalarSet {
        ScalarSet(self.0 | other.0)
    }
}

impl BitOrAssign for ScalarSet {
    fn bitor_assign(&mut self, other: ScalarSet) {
        self.0 |= other.0;
    }
}

impl BitAnd for ScalarSet {
    type Output = ScalarSet;
    fn bitand(self, other: ScalarSet) -> ScalarSet {
        ScalarSet(self.0 & other.0)
    }
}

/// What a field of an instruction names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperandValue {
    /// A scalar register by its number, `null` (125) among them.
    Scalar(u8),
    /// A vector register.
    Vector(u8),
    /// A small whole number in the field itself.
    Integer(i8),
    /// One of nine common floating-point numbers, by its code (240 to 248).
    Float(u8),
    /// The 32-bit constant after the instruction.
    Literal(u32),
    /// One of the read-only values (235 to 239 and 251 to 254): apertures, VCCZ, EXECZ, SCC, LDS direct.
    Special(u8),
}

impl OperandValue {
    /// What the nine bits of a source field mean; `None` for invalid numbers.
    #[inline]
    pub fn from_field(field: u16, literal: u32) -> Option<OperandValue> {
        Some(match field {
            0..=127 => OperandValue::Scalar(field as u8),
            128..=192 => OperandValue::Integer((field - 128) as i8),
            193..=208 => OperandValue::Integer(-((field - 192) as i8)),
            235..=239 | 251..=254 => OperandValue::Special(field as u8),
            240..=248 => OperandValue::Float(field as u8),
            255 => OperandValue::Literal(literal),
            256..=511 => OperandValue::Vector((field - 256) as u8),
            _ => return None,
        })
    }

    /// Prints it as LLVM does, `count` registers wide.
    pub(crate) fn print(self, f: &mut fmt::Formatter<'_>, count: u8) -> fmt::Result {
        match self {
            OperandValue::Vector(first) => print_range(f, 'v', first as u32, count),
            OperandValue::Scalar(first) => print_scalar(f, first, count),
            OperandValue::Integer(value) => write!(f, "{value}"),
            OperandValue::Float(248) if count == 2 => f.write_str("0.15915494309189532"),
            OperandValue::Float(code) => f.write_str(
                ["0.5", "-0.5", "1.0", "-1.0", "2.0", "-2.0", "4.0", "-4.0", "0.15915494"]
                    [(code.clamp(240, 248) - 240) as usize],
            ),
            OperandValue::Literal(value) if count == 1 => match small_number(value) {
                Some(number) => number.print(f, 1),
                None => write!(f, "{value:#x}"),
            },
            OperandValue::Literal(value) => write!(f, "{value:#x}"),
            OperandValue::Special(code) => f.write_str(match code {
                235 => "src_shared_base",
                236 => "src_shared_limit",
                237 => "src_private_base",
                238 => "src_private_limit",
                239 => "src_pops_exiting_wave_id",
                251 => "src_vccz",
                252 => "src_execz",
                253 => "src_scc",
                _ => "src_lds_direct",
            }),
        }
    }
}

/// A 32-bit constant that would also fit in the field; assembly marks it.
fn small_number(value: u32) -> Option<OperandValue> {
    const FLOATS: [f32; 8] = [0.5, -0.5, 1.0, -1.0, 2.0, -2.0, 4.0, -4.0];
    let signed = value as i32;
    if (-16..=64).contains(&signed) {
        return Some(OperandValue::Integer(signed as i8));
    }
    if value == 0x3e22_f983 {
        return Some(OperandValue::Float(248));
    }
    let code = FLOATS.iter().position(|float| float.to_bits() == value)?;
    Some(OperandValue::Float(240 + code as u8))
}

fn print_range(f: &mut fmt::Formatter<'_>, letter: char, first: u32, count: u8) -> fmt::Result {
    if count == 1 { write!(f, "{letter}{first}") } else { write!(f, "{letter}[{first}:{}]", first + count as u32 - 1) }
}

pub(crate) fn print_scalar(f: &mut fmt::Formatter<'_>, first: u8, count: u8) -> fmt::Result {
    match (first, count) {
        (0..=105, _) => print_range(f, 's', first as u32, count),
        (106, 1) => f.write_str("vcc_lo"),
        (106, _) => f.write_str("vcc"),
        (107, _) => f.write_str("vcc_hi"),
        (108..=123, 1) => write!(f, "ttmp{}", first - number::TRAP_0),
        (108..=123, _) => {
            let first = (first - number::TRAP_0) as u32;
            write!(f, "ttmp[{first}:{}]", first + count as u32 - 1)
        }
        (124, _) => f.write_str("m0"),
        (125, _) => f.write_str("null"),
        (126, 1) => f.write_str("exec_lo"),
        (126, _) => f.write_str("exec"),
        _ => f.write_str("exec_hi"),
    }
}

/// The name of one scalar register, as assembly writes it.
pub fn scalar_name(register: u8) -> String {
    struct Name(u8);
    impl fmt::Display for Name {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            print_scalar(f, self.0, 1)
        }
    }
    let mut text = String::new();
    let _ = write!(text, "{}", Name(register & 127));
    text
}
