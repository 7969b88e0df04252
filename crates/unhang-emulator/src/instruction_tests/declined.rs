//! The instructions that the emulator declines, each with its reason: `docs/internals/emulator-declined.md` is
//! generated here.
//!
//! `UPDATE_DOCS=1 cargo test -p unhang-emulator declined` writes it.

use std::collections::{BTreeMap, BTreeSet};

use unhang_isa::{Chip, Definition, Format, definitions};

use super::{encode, known_form};
use crate::semantics::Semantics;

/// Why an instruction is declined.
fn reason(definition: &Definition) -> &'static str {
    let name = definition.base_name();
    let starts = |starts: &[&str]| starts.iter().any(|start| name.starts_with(start));
    match definition.format {
        Format::Vintrp | Format::Exp => "Graphics only: interpolation and export.",
        Format::Mimg if name.contains("bvh") => "Ray tracing: no compute code without it is compiled to it.",
        Format::Mimg => "Images: none of 92,591 gfx10 functions of Debian's ROCm 6.4.3 and our PyTorch has one.",
        _ if starts(&["v_interp"]) => "Graphics only: interpolation and export.",
        _ if starts(&["ds_gws", "ds_ordered", "ds_append", "ds_consume"]) => {
            "Global data share and global wave sync, which compilers do not emit."
        }
        _ if starts(&["s_rfe", "s_sethalt", "s_cbranch_cdbg", "s_setkill", "s_ttrace", "s_sendmsghalt"]) => {
            "Trap handlers and debuggers: a kernel that reaches it stops with a fault."
        }
        _ if starts(&["s_set_gpr_idx", "s_subvector", "s_endpgm_", "s_dcache", "s_atc", "s_code_end"]) => {
            "Control of the hardware that compilers do not emit on the way of a compute kernel."
        }
        _ if name.contains("_src2_") => "Local atomics whose operand is in local memory: no compiler emits them.",
        Format::Smem => "Scalar stores and atomics, and probes of caches: no compiler for these chips emits them.",
        _ => "Not implemented: no code that was run here had it.",
    }
}

/// Hardware registers that are declined, by LLVM's names for gfx10, and why.
const REGISTERS: &[(u16, &str, &str)] = &[
    (2, "HW_REG_STATUS", STATE_OF_THE_HARDWARE),
    (3, "HW_REG_TRAPSTS", EXCEPTIONS),
    (5, "HW_REG_GPR_ALLOC", STATE_OF_THE_HARDWARE),
    (6, "HW_REG_LDS_ALLOC", STATE_OF_THE_HARDWARE),
    (7, "HW_REG_IB_STS", STATE_OF_THE_HARDWARE),
    (16, "HW_REG_TBA_LO", EXCEPTIONS),
    (17, "HW_REG_TBA_HI", EXCEPTIONS),
    (18, "HW_REG_TMA_LO", EXCEPTIONS),
    (19, "HW_REG_TMA_HI", EXCEPTIONS),
    (22, "HW_REG_XNACK_MASK", EXCEPTIONS),
    (23, "HW_REG_HW_ID1", WHERE_A_WAVE_RUNS),
    (24, "HW_REG_HW_ID2", WHERE_A_WAVE_RUNS),
    (25, "HW_REG_POPS_PACKER", GRAPHICS),
];
const STATE_OF_THE_HARDWARE: &str = "the state of a wave in the hardware, which the emulator does not have";
const EXCEPTIONS: &str = "for trap handlers, which it does not run";
const WHERE_A_WAVE_RUNS: &str = "the unit on which a wave runs; there are none";
const GRAPHICS: &str = "graphics only";

/// Messages that are declined, and why.
const MESSAGES: &[(u16, &str, &str)] = &[
    (2, "MSG_GS", GRAPHICS),
    (3, "MSG_GS_DONE", GRAPHICS),
    (4, "MSG_SAVEWAVE", EXCEPTIONS),
    (5, "MSG_STALL_WAVE_GEN", EXCEPTIONS),
    (6, "MSG_HALT_WAVES", EXCEPTIONS),
    (7, "MSG_ORDERED_PS_DONE", GRAPHICS),
    (8, "MSG_EARLY_PRIM_DEALLOC", GRAPHICS),
    (9, "MSG_GS_ALLOC_REQ", GRAPHICS),
    (10, "MSG_GET_DOORBELL", EXCEPTIONS),
    (11, "MSG_GET_DDID", GRAPHICS),
    (15, "MSG_SYSMSG", EXCEPTIONS),
];

/// The parts of the hardware that a known instruction may name and that are declined.
fn operands_page() -> String {
    let mut page = String::from("\n## Operands of instructions that are known otherwise\n\n");
    for (instruction, declined) in [("s_getreg_b32", REGISTERS), ("s_sendmsg", MESSAGES)] {
        for (_, name, reason) in declined {
            page += &format!("* `{instruction}` of `{name}`: {reason}\n");
        }
    }
    page
}

#[test]
fn what_is_listed_as_declined_is_declined_and_the_rest_is_known() {
    for (name, declined, last) in [("s_getreg_b32", REGISTERS, 29), ("s_sendmsg", MESSAGES, 15)] {
        let definition = super::forms(name).next().unwrap();
        for number in 0..=last {
            let instruction = encode(definition, super::Extra { words: [number as u32, 0] });
            let known = !matches!(Semantics::of(&instruction), Semantics::Unsupported);
            let expected = match name {
                "s_getreg_b32" => matches!(number, 1 | 15 | 20 | 21 | 29),
                _ => number == 1,
            };
            assert_eq!(known, expected, "{name} {number}");
            assert!(!known || !declined.iter().any(|row| row.0 == number), "{name} {number} is listed");
        }
    }
}

/// The names that are declined in every form in the tables, by reason.
fn declined() -> BTreeMap<&'static str, BTreeSet<&'static str>> {
    let mut known = BTreeSet::new();
    let mut unknown: BTreeMap<&str, &'static Definition> = BTreeMap::new();
    for definition in definitions() {
        let foreign = matches!(definition.format, Format::Mimg | Format::Vintrp | Format::Exp);
        let declined =
            foreign || matches!(Semantics::of(&encode(definition, known_form(definition))), Semantics::Unsupported);
        match declined {
            true => {
                unknown.insert(definition.base_name(), definition);
            }
            false => {
                known.insert(definition.base_name());
            }
        }
    }
    let mut reasons: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (name, definition) in unknown.into_iter().filter(|(name, _)| !known.contains(name)) {
        reasons.entry(reason(definition)).or_default().insert(name);
    }
    reasons
}

fn page() -> String {
    let chips = Chip::ALL.iter().map(|chip| chip.name()).collect::<Vec<_>>().join(", ");
    let reasons = declined();
    let count: usize = reasons.values().map(BTreeSet::len).sum();
    let mut page = format!(
        "# What the emulator declines\n\n{count} instructions stop a kernel on the emulator with \"the emulator does not \
         know this instruction\". They are listed by reason, for {chips}. A test of `unhang-emulator` generates this \
         page from the instruction table.\n"
    );
    for (reason, names) in reasons {
        page += &format!("\n## {reason}\n\n");
        for name in names {
            page += &format!("* `{name}`\n");
        }
    }
    super::in_lines(&(page + &operands_page()))
}

#[test]
fn the_list_of_declined_instructions_is_the_one_in_the_documentation() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/internals/emulator-declined.md");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(path, page()).unwrap();
    }
    let written = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        written == page(),
        "docs/internals/emulator-declined.md is out of date: UPDATE_DOCS=1 cargo test -p unhang-emulator declined"
    );
}
