//! What each instruction does, determined by name once, when the code is loaded.

use unhang_isa::{Field, Format, Instruction, Modifier, OperandValue};

use crate::access::Access;
use crate::bytes::{self, DotProduct};
use crate::host::Fast;
use crate::lanes;
use crate::lanes::operation::{LaneOperation, PackedOperation, RowFunction};
use crate::saturate;
use crate::scalar::ScalarOperation;
use crate::wave::{Type, constant_bits};

/// What an instruction does, determined once when the code is loaded.
#[derive(Clone, Copy)]
pub(crate) enum Semantics {
    Unsupported,
    /// No instruction.
    Hole(Hole),
    Scalar(ScalarOperation),
    Memory(Access),
    /// A function of one lane.
    Lane(LaneOperation),
    /// A function of a whole register with plain 32-bit operands only.
    Row(RowOperation),
    /// A function of each half of a lane.
    Packed(PackedOperation),
    /// A sum of products of a lane's parts.
    Dot(DotProduct),
    /// `fma_mix` and related instructions, which mix halves and singles, with the part of the destination that is
    /// written.
    Mixed(MixedResult),
    /// A comparison: which outcomes count, of what type, and whether EXEC is the destination.
    Compare {
        outcomes: u8,
        kind: CompareKind,
        to_exec: bool,
    },
    /// `v_cmp_class`.
    Class {
        to_exec: bool,
        kind: Type,
    },
    /// Addition and subtraction with carry.
    Carry {
        subtract: bool,
        reversed: bool,
        carry_in: bool,
    },
    MultiplyAddWide {
        signed: bool,
    },
    Select,
    ReadLane,
    ReadFirstLane,
    WriteLane,
    PermuteRows {
        cross: bool,
    },
    /// Accesses another register through M0, as the source or as the destination.
    MoveRelative {
        destination: bool,
    },
    CountBelow {
        high: bool,
    },
    DivideScale {
        wide: bool,
    },
    DivideMultiplyAdd {
        wide: bool,
    },
    Swap,
    Nothing,
}

/// Why there is no instruction at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hole {
    /// There is no memory, or not enough of it.
    Unmapped,
    /// The word is not an instruction of any chip.
    Word(u32),
    /// The chip does not have the instruction.
    Illegal,
    /// The instruction extends into one that starts within it.
    Overlaps,
}

/// A function of whole registers with its operands, read once.
#[derive(Clone, Copy)]
pub(crate) struct RowOperation {
    pub run: RowFunction,
    /// `run` compiled for the host's vectors, if there is such a form.
    pub fast: Option<Fast>,
    pub sources: [RowSource; 3],
    pub destination: u8,
}

/// A 32-bit source, with the bits of it that are kept and those that are inverted: absolute value and sign.
#[derive(Clone, Copy)]
pub(crate) struct RowSource {
    pub from: RowOperand,
    pub keep: u32,
    pub flip: u32,
}

impl RowSource {
    /// Whether it is an unmodified vector register.
    #[inline(always)]
    pub(crate) fn is_register(&self) -> bool {
        matches!(self.from, RowOperand::Vector(_)) && self.keep == u32::MAX && self.flip == 0
    }
}

#[derive(Clone, Copy)]
pub(crate) enum RowOperand {
    Vector(u8),
    Scalar(u8),
    Constant(u32),
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum MixedResult {
    Single,
    Low,
    High,
}

#[derive(Clone, Copy)]
pub(crate) enum CompareKind {
    Float(Type),
    Signed(u8),
    Unsigned(u8),
}

pub(crate) const LESS: u8 = 1;
pub(crate) const EQUAL: u8 = 2;
pub(crate) const GREATER: u8 = 4;
pub(crate) const UNORDERED: u8 = 8;

impl Semantics {
    /// What an instruction does.
    pub(crate) fn of(instruction: &Instruction) -> Semantics {
        let name = instruction.definition.base_name();
        match instruction.format() {
            Format::Sop1 | Format::Sop2 | Format::Sopc | Format::Sopk | Format::Sopp => {
                ScalarOperation::of(instruction).map_or(Semantics::Unsupported, Semantics::Scalar)
            }
            Format::Smem
            | Format::Ds
            | Format::Flat
            | Format::Global
            | Format::Scratch
            | Format::Mubuf
            | Format::Mtbuf
            | Format::Mimg
            | Format::Vintrp
            | Format::Exp => Access::of(instruction).map_or(Semantics::Unsupported, Semantics::Memory),
            Format::Vop3p => match name {
                "v_fma_mix_f32" => Semantics::Mixed(MixedResult::Single),
                "v_fma_mixlo_f16" => Semantics::Mixed(MixedResult::Low),
                "v_fma_mixhi_f16" => Semantics::Mixed(MixedResult::High),
                _ => {
                    let dot = bytes::dot_product(name, clamps(instruction)).map(Semantics::Dot);
                    let packed = || lanes::packed_half(name, clamps(instruction)).map(Semantics::Packed);
                    dot.or_else(packed).unwrap_or(Semantics::Unsupported)
                }
            },
            _ => match Semantics::of_vector(name) {
                Semantics::Lane(operation) if clamps(instruction) && !operation.result.is_float() => {
                    clamped(name, operation).map_or(Semantics::Unsupported, Semantics::Lane)
                }
                Semantics::Lane(operation) => {
                    row(instruction, operation).map_or(Semantics::Lane(operation), Semantics::Row)
                }
                semantics @ Semantics::DivideMultiplyAdd { .. } => semantics,
                _ if clamps(instruction) => Semantics::Unsupported,
                semantics => semantics,
            },
        }
    }

    fn of_vector(name: &str) -> Semantics {
        let carry = |subtract, reversed, carry_in| Semantics::Carry { subtract, reversed, carry_in };
        match name {
            "v_nop" => Semantics::Nothing,
            "v_add_co_u32" => carry(false, false, false),
            "v_sub_co_u32" => carry(true, false, false),
            "v_subrev_co_u32" => carry(true, true, false),
            "v_add_co_ci_u32" => carry(false, false, true),
            "v_sub_co_ci_u32" => carry(true, false, true),
            "v_subrev_co_ci_u32" => carry(true, true, true),
            "v_mad_u64_u32" => Semantics::MultiplyAddWide { signed: false },
            "v_mad_i64_i32" => Semantics::MultiplyAddWide { signed: true },
            "v_cndmask_b32" => Semantics::Select,
            "v_readlane_b32" => Semantics::ReadLane,
            "v_readfirstlane_b32" => Semantics::ReadFirstLane,
            "v_writelane_b32" => Semantics::WriteLane,
            "v_permlane16_b32" => Semantics::PermuteRows { cross: false },
            "v_permlanex16_b32" => Semantics::PermuteRows { cross: true },
            "v_mbcnt_lo_u32_b32" => Semantics::CountBelow { high: false },
            "v_mbcnt_hi_u32_b32" => Semantics::CountBelow { high: true },
            "v_div_scale_f32" => Semantics::DivideScale { wide: false },
            "v_div_scale_f64" => Semantics::DivideScale { wide: true },
            "v_div_fmas_f32" => Semantics::DivideMultiplyAdd { wide: false },
            "v_div_fmas_f64" => Semantics::DivideMultiplyAdd { wide: true },
            "v_cmp_class_f32" => Semantics::Class { to_exec: false, kind: Type::Float32 },
            "v_cmpx_class_f32" => Semantics::Class { to_exec: true, kind: Type::Float32 },
            "v_cmp_class_f16" => Semantics::Class { to_exec: false, kind: Type::Float16 },
            "v_cmpx_class_f16" => Semantics::Class { to_exec: true, kind: Type::Float16 },
            "v_cmp_class_f64" => Semantics::Class { to_exec: false, kind: Type::Float64 },
            "v_cmpx_class_f64" => Semantics::Class { to_exec: true, kind: Type::Float64 },
            "v_swap_b32" => Semantics::Swap,
            "v_pk_fmac_f16" => lanes::packed_half(name, false).map_or(Semantics::Unsupported, Semantics::Packed),
            "v_movrels_b32" => Semantics::MoveRelative { destination: false },
            "v_movreld_b32" => Semantics::MoveRelative { destination: true },
            _ => {
                compare(name).or_else(|| lanes::operation(name).map(Semantics::Lane)).unwrap_or(Semantics::Unsupported)
            }
        }
    }
}

/// Whether a vector instruction has its clamp bit set.
fn clamps(instruction: &Instruction) -> bool {
    match (instruction.format(), instruction.modifier) {
        (Format::Vop3 | Format::Vop3p, _) => instruction.bits(15, 1) == 1,
        (Format::Vop1 | Format::Vop2, Modifier::Sdwa) => instruction.high_bits(13, 1) == 1,
        _ => false,
    }
}

/// A function of integers that saturates.
fn clamped(name: &str, operation: LaneOperation) -> Option<LaneOperation> {
    // Conversions to integers always saturate.
    let converts = name.starts_with("v_cvt_").then_some(operation);
    saturate::operation(name).or(converts)
}

/// A function with its operands as whole registers; `None` if widths or modifiers require more.
fn row(instruction: &Instruction, operation: LaneOperation) -> Option<RowOperation> {
    let is_plain = |kind: Type| matches!(kind, Type::Bits32 | Type::Float32);
    let long = instruction.format() == Format::Vop3;
    // The long form: clamp, output scale, and the selection of halves.
    let changes = long && (instruction.bits(11, 5) != 0 || instruction.high_bits(27, 2) != 0);
    if instruction.modifier != Modifier::None || changes || !is_plain(operation.result) {
        return None;
    }
    let slot = |field| instruction.definition.operand(field);
    if slot(Field::ScalarDestination).is_some() {
        return None;
    }
    let OperandValue::Vector(destination) = instruction.operand(slot(Field::Destination)?) else { return None };
    let zero = RowSource { from: RowOperand::Constant(0), keep: u32::MAX, flip: 0 };
    let mut sources = [zero; 3];
    for (place, field) in [Field::Source0, Field::Source1, Field::Source2].into_iter().enumerate() {
        let Some(slot) = slot(field) else { continue };
        let kind = operation.sources[place];
        if !is_plain(kind) || slot.width.registers(false) != 1 {
            return None;
        }
        let from = match instruction.operand(slot) {
            OperandValue::Vector(register) => RowOperand::Vector(register),
            OperandValue::Scalar(register) => RowOperand::Scalar(register),
            OperandValue::Special(_) => return None,
            constant => RowOperand::Constant(constant_bits(constant, kind)),
        };
        let (absolute, negative) = match long && kind == Type::Float32 {
            true => (instruction.bits(8 + place as u32, 1), instruction.high_bits(29 + place as u32, 1)),
            false => (0, 0),
        };
        sources[place] = RowSource { from, keep: u32::MAX >> absolute, flip: negative << 31 };
    }
    let literal = RowSource { from: RowOperand::Constant(instruction.literal()), ..zero };
    match instruction.definition.operands().iter().position(|slot| slot.field == Field::Constant) {
        // fmamk: a · constant + b.
        Some(2) => sources = [sources[0], literal, sources[1]],
        // fmaak: a · b + constant.
        Some(_) => sources[2] = literal,
        None if operation.accumulates => sources[2] = RowSource { from: RowOperand::Vector(destination), ..zero },
        None => {}
    }
    Some(RowOperation { run: operation.rows, fast: operation.fast, sources, destination })
}

/// `v_cmp_<condition>_<type>`: a condition is the set of outcomes for which it is true.
fn compare(name: &str) -> Option<Semantics> {
    let (to_exec, rest) = match name.strip_prefix("v_cmpx_") {
        Some(rest) => (true, rest),
        None => (false, name.strip_prefix("v_cmp_")?),
    };
    let (condition, kind) = rest.split_once('_')?;
    let kind = match kind {
        "f32" => CompareKind::Float(Type::Float32),
        "f16" => CompareKind::Float(Type::Float16),
        "f64" => CompareKind::Float(Type::Float64),
        "i16" => CompareKind::Signed(16),
        "i32" => CompareKind::Signed(32),
        "i64" => CompareKind::Signed(64),
        "u16" => CompareKind::Unsigned(16),
        "u32" => CompareKind::Unsigned(32),
        "u64" => CompareKind::Unsigned(64),
        _ => return None,
    };
    let all = LESS | EQUAL | GREATER | UNORDERED;
    let outcomes = match condition {
        "f" => 0,
        "lt" => LESS,
        "eq" => EQUAL,
        "le" => LESS | EQUAL,
        "gt" => GREATER,
        "lg" => LESS | GREATER,
        "ne" => LESS | GREATER,
        "ge" => GREATER | EQUAL,
        "o" => LESS | EQUAL | GREATER,
        "u" => UNORDERED,
        "nge" => all & !(GREATER | EQUAL),
        "nlg" => all & !(LESS | GREATER),
        "ngt" => all & !GREATER,
        "nle" => all & !(LESS | EQUAL),
        "neq" => all & !EQUAL,
        "nlt" => all & !LESS,
        "tru" | "t" => all,
        _ => return None,
    };
    Some(Semantics::Compare { outcomes, kind, to_exec })
}
