//! One instruction of the code, with everything that timing depends on.

use unhang_emulator::{Moment, Unit};
use unhang_isa::{Class, Format, Instruction};

use crate::card;

/// The unit that takes an instruction. In each cycle one of each kind can issue, from different waves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IssueKind {
    Vector,
    Scalar,
    VectorMemory,
    Local,
    ScalarMemory,
    /// Branches, waits, barriers, the end.
    Flow,
}

/// The number of kinds.
pub(crate) const KINDS: usize = 6;

/// What a wave waits for before it continues: how many of each may still be outstanding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wait {
    pub loads: u8,
    pub local: u8,
    pub stores: u8,
}

/// Classes of vector arithmetic, counted separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arithmetic {
    Full,
    Packed,
    Wide,
    Quarter,
    Transcendental,
    Double,
}

/// An instruction.
#[derive(Clone, Debug)]
pub(crate) struct TimedInstruction {
    pub kind: IssueKind,
    pub arithmetic: Option<Arithmetic>,
    /// Cycles for which a vector instruction blocks its SIMD for others.
    pub issue: u64,
    /// Cycles until its result can be read.
    pub latency: u64,
    /// Registers: vector ones first, then scalar ones.
    pub reads: Vec<u16>,
    pub writes: Vec<u16>,
    pub wait: Option<Wait>,
    pub is_barrier: bool,
    /// Its address, and that of the next instruction.
    pub address: u64,
    pub after: u64,
    /// Floating-point operations per lane, of multiply-adds (two where halves are packed), additions and products.
    pub operations: u32,
}

/// Registers that a step can name.
pub(crate) const REGISTERS: usize = 256 + 128;

impl TimedInstruction {
    pub(crate) fn of(moment: &Moment<'_>) -> TimedInstruction {
        let instruction = moment.instruction;
        let name = instruction.definition.base_name();
        let (kind, arithmetic) = kind_of(instruction, name);
        let (issue, latency) = match (kind, arithmetic) {
            (_, Some(Arithmetic::Full | Arithmetic::Packed)) => (1, card::VECTOR_LATENCY),
            (_, Some(Arithmetic::Wide)) => (2, card::WIDE_LATENCY),
            (_, Some(Arithmetic::Quarter)) => (4, card::QUARTER_LATENCY),
            (_, Some(Arithmetic::Transcendental)) => (1, card::TRANSCENDENTAL_LATENCY),
            (_, Some(Arithmetic::Double)) => (16, card::DOUBLE_LATENCY),
            (IssueKind::Scalar, _) => (1, card::SCALAR_LATENCY),
            _ => (1, 1),
        };
        let operands = moment.vector_operands();
        let effects = instruction.effects(false);
        let scalars = |set: u128| (0..128u16).filter(move |bit| set >> bit & 1 == 1).map(|bit| 256 + bit);
        let vectors = |words: [u64; 4]| (0..256u16).filter(move |bit| words[*bit as usize / 64] >> (bit % 64) & 1 == 1);
        // Waits for a load's result use counters.
        let arrives = matches!(kind, IssueKind::Vector | IssueKind::Scalar);
        let written = vectors(operands.writes).chain(scalars(effects.writes.0 | effects.mask_writes.0));
        TimedInstruction {
            kind,
            arithmetic,
            issue,
            latency,
            reads: vectors(operands.reads).chain(scalars(effects.reads.0)).collect(),
            writes: written.filter(|_| arrives).collect(),
            wait: wait_of(instruction),
            is_barrier: name == "s_barrier",
            address: moment.address,
            after: moment.address + instruction.size() as u64,
            operations: operations_of(name),
        }
    }
}

fn kind_of(instruction: &Instruction, name: &str) -> (IssueKind, Option<Arithmetic>) {
    match instruction.class() {
        Class::Vector => (IssueKind::Vector, Some(arithmetic_of(instruction, name))),
        Class::Local => (IssueKind::Local, None),
        Class::VectorMemory | Class::Flat | Class::Segment | Class::Export => (IssueKind::VectorMemory, None),
        Class::ScalarMemory => (IssueKind::ScalarMemory, None),
        Class::Scalar => match Unit::of(instruction) {
            Unit::Scalar => (IssueKind::Scalar, None),
            _ => (IssueKind::Flow, None),
        },
    }
}

fn arithmetic_of(instruction: &Instruction, name: &str) -> Arithmetic {
    match Unit::of(instruction) {
        Unit::Transcendental => Arithmetic::Transcendental,
        Unit::DoublePrecision => Arithmetic::Double,
        Unit::WideInteger => Arithmetic::Quarter,
        _ if name.starts_with("v_pk_") => Arithmetic::Packed,
        _ if ["v_lshlrev_b64", "v_lshrrev_b64", "v_ashrrev_i64"].contains(&name) => Arithmetic::Wide,
        _ => Arithmetic::Full,
    }
}

fn operations_of(name: &str) -> u32 {
    let is = |starts: &[&str]| starts.iter().any(|start| name.starts_with(start));
    let float = name.contains("_f32") || name.contains("_f16") || name.contains("_f64");
    match () {
        () if is(&["v_pk_fma_"]) => 4,
        () if is(&["v_pk_add_f16", "v_pk_mul_f16"]) => 2,
        () if float && is(&["v_fma", "v_mac_", "v_mad_"]) => 2,
        () if float && is(&["v_add_", "v_sub_", "v_subrev_", "v_mul_"]) => 1,
        () => 0,
    }
}

/// Reads the counters of gfx10: `vmcnt` in bits 0 to 3 and 14 to 15, `lgkmcnt` in bits 8 to 13. 255 means that nothing
/// waits for a count.
fn wait_of(instruction: &Instruction) -> Option<Wait> {
    let none = Wait { loads: u8::MAX, local: u8::MAX, stores: u8::MAX };
    let bits = instruction.immediate();
    let limit = bits.min(255) as u8;
    match instruction.definition.mnemonic {
        "s_waitcnt" if instruction.format() == Format::Sopp => {
            let (loads, local) = ((bits & 15 | bits >> 14 << 4) as u8, (bits >> 8 & 63) as u8);
            Some(Wait { loads, local, ..none })
        }
        "s_waitcnt_vmcnt" => Some(Wait { loads: limit, ..none }),
        "s_waitcnt_lgkmcnt" => Some(Wait { local: limit, ..none }),
        "s_waitcnt_vscnt" => Some(Wait { stores: limit, ..none }),
        _ => None,
    }
}
