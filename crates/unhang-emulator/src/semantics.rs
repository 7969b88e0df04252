//! What each instruction does, found by its name once when the code is loaded.

use unhang_isa::{Format, Instruction};

use crate::lanes::{self, LaneFunction, LaneOperation};
use crate::memory_access::Access;
use crate::scalar::ScalarOperation;
use crate::wave::Type;

/// What an instruction does, found once when the code is loaded.
#[derive(Clone, Copy)]
pub(crate) enum Semantics {
    Unsupported,
    Scalar(ScalarOperation),
    Memory(Access),
    /// A function of one lane.
    Lane(LaneOperation),
    /// A function of each half of a lane.
    Packed(LaneFunction),
    /// `fma_mix` and its kin: halves and singles mixed. Which part of the destination is written.
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
        half: bool,
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
    /// Through M0 to another register: as the source, or as the destination.
    MoveRelative {
        destination: bool,
    },
    CountBelow {
        high: bool,
    },
    DivideScale,
    DivideMultiplyAdd,
    Nothing,
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
    /// Finds what an instruction does.
    pub fn of(instruction: &Instruction) -> Semantics {
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
                _ => lanes::packed_half(name).map_or(Semantics::Unsupported, Semantics::Packed),
            },
            _ => Semantics::of_vector(name),
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
            "v_div_scale_f32" => Semantics::DivideScale,
            "v_div_fmas_f32" => Semantics::DivideMultiplyAdd,
            "v_cmp_class_f32" => Semantics::Class { to_exec: false, half: false },
            "v_cmpx_class_f32" => Semantics::Class { to_exec: true, half: false },
            "v_cmp_class_f16" => Semantics::Class { to_exec: false, half: true },
            "v_cmpx_class_f16" => Semantics::Class { to_exec: true, half: true },
            "v_movrels_b32" => Semantics::MoveRelative { destination: false },
            "v_movreld_b32" => Semantics::MoveRelative { destination: true },
            _ => {
                compare(name).or_else(|| lanes::operation(name).map(Semantics::Lane)).unwrap_or(Semantics::Unsupported)
            }
        }
    }
}

/// `v_cmp_<condition>_<type>`: a condition is the set of outcomes for which it holds.
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
