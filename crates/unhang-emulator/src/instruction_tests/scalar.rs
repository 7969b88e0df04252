//! Scalar instructions and program flow.

use super::{DESTINATION, Extra, LANE, MODE, UNTOUCHED, encode, forms, put_sources, wave};
use crate::scalar::{Next, ScalarOperation};
use crate::semantics::Semantics;
use crate::wave::{EXEC, M0, VCC, Wave};

const ONES: u64 = u32::MAX as u64;
const ALL: u64 = u64::MAX;
const MINUS_1: u64 = ONES;
const LEAST: u64 = 0x8000_0000;
const MOST: u64 = 0x7fff_ffff;

/// Name, sources, SCC before; result, and SCC after (`None` if it stays).
type Row = (&'static str, [u64; 2], bool, u64, Option<bool>);

const fn sets(name: &'static str, sources: [u64; 2], result: u64, scc: bool) -> Row {
    (name, sources, false, result, Some(scc))
}

const fn keeps(name: &'static str, sources: [u64; 2], result: u64) -> Row {
    (name, sources, true, result, None)
}

#[rustfmt::skip]
const ARITHMETIC: &[Row] = &[
    keeps("s_mov_b32", [7, 0], 7), keeps("s_mov_b64", [0x1234_5678_9abc_def0, 0], 0x1234_5678_9abc_def0),
    sets("s_not_b32", [0xffff_0000, 0], 0xffff, true), sets("s_not_b32", [ONES, 0], 0, false),
    sets("s_not_b64", [ALL, 0], 0, false), sets("s_not_b64", [ALL << 32, 0], ONES, true),
    keeps("s_brev_b32", [0x1, 0], LEAST), keeps("s_brev_b64", [0x3, 0], 0xc000_0000_0000_0000),
    sets("s_bcnt0_i32_b32", [0xffff_fff0, 0], 4, true), sets("s_bcnt0_i32_b32", [ONES, 0], 0, false),
    sets("s_bcnt0_i32_b64", [0xffff_fff0, 0], 36, true), sets("s_bcnt1_i32_b32", [0xf0f, 0], 8, true),
    sets("s_bcnt1_i32_b64", [0xff << 40 | 1, 0], 9, true), sets("s_bcnt1_i32_b64", [0, 0], 0, false),
    keeps("s_ff0_i32_b32", [0b10111, 0], 3), keeps("s_ff0_i32_b32", [ONES, 0], MINUS_1),
    keeps("s_ff0_i32_b64", [ONES, 0], 32), keeps("s_ff0_i32_b64", [ALL, 0], MINUS_1),
    keeps("s_ff1_i32_b32", [0x50, 0], 4), keeps("s_ff1_i32_b32", [0, 0], MINUS_1),
    keeps("s_ff1_i32_b64", [1 << 40, 0], 40), keeps("s_ff1_i32_b64", [0, 0], MINUS_1),
    keeps("s_flbit_i32_b32", [0xffff, 0], 16), keeps("s_flbit_i32_b32", [0, 0], MINUS_1),
    keeps("s_flbit_i32_b64", [1, 0], 63), keeps("s_flbit_i32", [0xffff_8000, 0], 17),
    keeps("s_flbit_i32", [MINUS_1, 0], MINUS_1), keeps("s_flbit_i32_i64", [ALL << 8, 0], 56), keeps("s_flbit_i32_i64", [0, 0], MINUS_1),
    keeps("s_sext_i32_i8", [0x180, 0], 0xffff_ff80), keeps("s_sext_i32_i16", [0x1_8000, 0], 0xffff_8000),
    keeps("s_bitreplicate_b64_b32", [0x8000_0005, 0], 0xc000_0000_0000_0033),
    sets("s_abs_i32", [MINUS_1, 0], 1, true), sets("s_abs_i32", [0, 0], 0, false), sets("s_abs_i32", [LEAST, 0], LEAST, true),
    sets("s_absdiff_i32", [3, 10], 7, true), sets("s_absdiff_i32", [5, 5], 0, false),
    sets("s_quadmask_b32", [0x8000_0102, 0], 0x85, true), sets("s_quadmask_b32", [ONES << 32, 0], 0, false),
    sets("s_quadmask_b64", [0x8000_0000_0000_0102, 0], 0x8005, true), sets("s_quadmask_b64", [0, 0], 0, false),
    sets("s_wqm_b64", [0x0200_0000_0000_0102, 0], 0x0f00_0000_0000_0f0f, true), sets("s_wqm_b64", [0, 0], 0, false),
    sets("s_wqm_b32", [0x0000_0102, 0], 0x0000_0f0f, true), sets("s_wqm_b32", [0, 0], 0, false),
    sets("s_add_u32", [ONES, 1], 0, true), sets("s_add_u32", [2, 3], 5, false),
    sets("s_sub_u32", [2, 3], ONES, true), sets("s_sub_u32", [3, 2], 1, false),
    ("s_addc_u32", [ONES, 0], true, 0, Some(true)), ("s_addc_u32", [1, 2], true, 4, Some(false)), ("s_addc_u32", [1, 2], false, 3, Some(false)),
    ("s_subb_u32", [5, 5], true, ONES, Some(true)), ("s_subb_u32", [5, 3], true, 1, Some(false)),
    sets("s_add_i32", [MOST, 1], LEAST, true), sets("s_add_i32", [MINUS_1, 1], 0, false),
    sets("s_sub_i32", [LEAST, 1], MOST, true), sets("s_sub_i32", [1, 2], MINUS_1, false),
    sets("s_min_i32", [MINUS_1, 1], MINUS_1, true), sets("s_min_i32", [1, MINUS_1], MINUS_1, false),
    sets("s_min_u32", [MINUS_1, 1], 1, false), sets("s_min_u32", [1, 2], 1, true),
    sets("s_max_i32", [1, MINUS_1], 1, true), sets("s_max_i32", [MINUS_1, 1], 1, false),
    sets("s_max_u32", [MINUS_1, 1], MINUS_1, true), sets("s_max_u32", [1, 1], 1, false),
    keeps("s_cselect_b32", [1, 2], 1), ("s_cselect_b32", [1, 2], false, 2, None), keeps("s_cselect_b64", [ALL, 2], ALL),
    sets("s_and_b32", [12, 10], 8, true), sets("s_and_b32", [12, 3], 0, false), sets("s_and_b64", [ALL, 1 << 40], 1 << 40, true),
    sets("s_or_b32", [12, 10], 14, true), sets("s_or_b64", [0, 0], 0, false),
    sets("s_xor_b32", [12, 12], 0, false), sets("s_xor_b64", [ALL, 1], ALL - 1, true),
    sets("s_andn2_b32", [12, 10], 4, true), sets("s_andn2_b64", [5, 5], 0, false),
    sets("s_orn2_b32", [0, ONES], 0, false), sets("s_orn2_b64", [1, ALL << 1], 1, true),
    sets("s_nand_b32", [ONES, ONES], 0, false), sets("s_nand_b64", [ALL, ALL - 1], 1, true),
    sets("s_nor_b32", [ONES, 0], 0, false), sets("s_nor_b64", [ALL - 1, 0], 1, true),
    sets("s_xnor_b32", [5, 5], ONES, true), sets("s_xnor_b64", [ALL, 0], 0, false),
    sets("s_lshl_b32", [1, 33], 2, true), sets("s_lshl_b64", [1, 36], 1 << 36, true), sets("s_lshl_b64", [1 << 63, 1], 0, false),
    sets("s_lshr_b32", [LEAST, 31], 1, true), sets("s_lshr_b64", [1 << 40, 41], 0, false),
    sets("s_ashr_i32", [LEAST, 31], ONES, true), sets("s_ashr_i64", [1 << 63, 63], ALL, true),
    keeps("s_bfm_b32", [4, 8], 0xf00), keeps("s_bfm_b64", [40, 8], ((1 << 40) - 1) << 8),
    keeps("s_mul_i32", [MINUS_1, 5], 0xffff_fffb), keeps("s_mul_hi_u32", [ONES, ONES], 0xffff_fffe), keeps("s_mul_hi_i32", [MINUS_1, 5], MINUS_1),
    sets("s_bfe_u32", [0xabcd_1234, 8 | 8 << 16], 0x12, true), sets("s_bfe_u32", [0xff, 8 | 4 << 16], 0, false),
    sets("s_bfe_i32", [0x8000, 8 | 8 << 16], 0xffff_ff80, true), sets("s_bfe_i32", [0x8000, 8], 0, false),
    sets("s_bfe_u64", [0x12 << 40, 40 | 8 << 16], 0x12, true), sets("s_bfe_i64", [0x80 << 40, 40 | 8 << 16], ALL << 7, true),
    sets("s_lshl1_add_u32", [3, 5], 11, false), sets("s_lshl2_add_u32", [3, 5], 17, false),
    sets("s_lshl3_add_u32", [3, 5], 29, false), sets("s_lshl4_add_u32", [LEAST >> 3, ONES], ONES, true),
    keeps("s_pack_ll_b32_b16", [0x1111_2222, 0x3333_4444], 0x4444_2222), keeps("s_pack_lh_b32_b16", [0x1111_2222, 0x3333_4444], 0x3333_2222),
    keeps("s_pack_hh_b32_b16", [0x1111_2222, 0x3333_4444], 0x3333_1111),
    keeps("s_cmov_b32", [9, 0], 9), keeps("s_cmov_b64", [ALL, 0], ALL),
];

/// The old destination is `UNTOUCHED` in both halves.
#[rustfmt::skip]
const OLD_DESTINATION: &[Row] = &[
    ("s_cmov_b32", [9, 0], false, UNTOUCHED as u64, None),
    ("s_cmov_b64", [9, 0], false, (UNTOUCHED as u64) << 32 | UNTOUCHED as u64, None),
    keeps("s_bitset0_b32", [33, 0], 0xdead_beed), keeps("s_bitset1_b32", [4, 0], 0xdead_beff),
    keeps("s_bitset0_b64", [32, 0], 0xdead_beee_dead_beef), keeps("s_bitset1_b64", [36, 0], 0xdead_beff_dead_beef),
];

/// Comparisons: name, sources, whether they are true.
#[rustfmt::skip]
const COMPARISONS: &[(&str, u64, u64, bool)] = &[
    ("s_cmp_eq_i32", 5, 5, true), ("s_cmp_eq_u32", 5, 6, false), ("s_cmp_lg_i32", 5, 6, true), ("s_cmp_lg_u32", 5, 5, false),
    ("s_cmp_gt_i32", 1, MINUS_1, true), ("s_cmp_ge_i32", MINUS_1, 1, false), ("s_cmp_lt_i32", MINUS_1, 1, true), ("s_cmp_le_i32", 1, 1, true),
    ("s_cmp_gt_u32", 1, MINUS_1, false), ("s_cmp_ge_u32", MINUS_1, 1, true), ("s_cmp_lt_u32", MINUS_1, 1, false), ("s_cmp_le_u32", 1, 1, true),
    ("s_cmp_gt_i32", 1, 1, false), ("s_cmp_ge_i32", 1, 1, true), ("s_cmp_lt_i32", 1, 1, false), ("s_cmp_le_i32", 2, 1, false),
    ("s_cmp_gt_u32", 1, 1, false), ("s_cmp_lt_u32", 1, 1, false), ("s_cmp_le_u32", 2, 1, false), ("s_cmp_ge_u32", 1, 2, false),
    ("s_cmp_eq_u64", 1 << 40, 1 << 40, true), ("s_cmp_eq_u64", 1 << 40, 0, false), ("s_cmp_lg_u64", 1 << 40, 0, true),
    ("s_bitcmp0_b32", 4, 33, true), ("s_bitcmp1_b32", 4, 34, true), ("s_bitcmp0_b64", 1 << 40, 40, false), ("s_bitcmp1_b64", 1 << 40, 40, true),
];

/// Comparisons with a 16-bit constant, signed or unsigned.
#[rustfmt::skip]
const CONSTANT_COMPARISONS: &[(&str, u64, u16, bool)] = &[
    ("s_cmpk_eq_i32", MINUS_1, 0xffff, true), ("s_cmpk_eq_u32", MINUS_1, 0xffff, false), ("s_cmpk_eq_u32", 0xffff, 0xffff, true),
    ("s_cmpk_lg_i32", 1, 1, false), ("s_cmpk_lg_u32", 1, 2, true), ("s_cmpk_gt_i32", 0, 0xffff, true), ("s_cmpk_gt_u32", 0, 0xffff, false),
    ("s_cmpk_ge_i32", 3, 3, true), ("s_cmpk_ge_u32", 2, 3, false), ("s_cmpk_lt_i32", 0, 0xffff, false), ("s_cmpk_lt_u32", 0, 0xffff, true),
    ("s_cmpk_le_i32", 3, 3, true), ("s_cmpk_le_u32", 4, 3, false),
];

/// Instructions with a 16-bit constant: name, SCC before, old register, constant, new register, SCC after.
const CONSTANTS: &[(&str, bool, u32, u16, u32, bool)] = &[
    ("s_movk_i32", true, 0, 0x8000, 0xffff_8000, true),
    ("s_cmovk_i32", true, 7, 3, 3, true),
    ("s_cmovk_i32", false, 7, 3, 7, false),
    ("s_addk_i32", true, 7, 0xffff, 6, false),
    ("s_addk_i32", false, 0x7fff_ffff, 1, 0x8000_0000, true),
    ("s_mulk_i32", true, 7, 0xfffe, 0xffff_fff2, true),
];

/// Masks: name, EXEC and source before; EXEC after. The destination keeps the old EXEC, or has the new one too.
const MASKS: &[(&str, u32, u32, u32)] = &[
    ("s_and_saveexec_b32", 12, 10, 8),
    ("s_or_saveexec_b32", 12, 10, 14),
    ("s_xor_saveexec_b32", 12, 10, 6),
    ("s_andn2_saveexec_b32", 12, 10, 2),
    ("s_orn2_saveexec_b32", 12, 10, !4),
    ("s_nand_saveexec_b32", 12, 10, !8),
    ("s_nor_saveexec_b32", 12, 10, !14),
    ("s_xnor_saveexec_b32", 12, 10, !6),
    ("s_andn1_saveexec_b32", 12, 10, 4),
    ("s_orn1_saveexec_b32", 12, 10, !2),
    ("s_andn1_wrexec_b32", 12, 10, 4),
    ("s_andn2_wrexec_b32", 12, 10, 2),
    ("s_and_saveexec_b64", 12, 10, 8),
    ("s_or_saveexec_b64", 12, 10, 14),
    ("s_xor_saveexec_b64", 12, 10, 6),
    ("s_andn2_saveexec_b64", 12, 10, 2),
    ("s_orn2_saveexec_b64", 12, 10, !4),
    ("s_nand_saveexec_b64", 12, 10, !8),
    ("s_nor_saveexec_b64", 12, 10, !14),
    ("s_xnor_saveexec_b64", 12, 10, !6),
    ("s_andn1_saveexec_b64", 12, 10, 4),
    ("s_orn1_saveexec_b64", 12, 10, !2),
    ("s_andn1_wrexec_b64", 12, 10, 4),
    ("s_andn2_wrexec_b64", 12, 10, 2),
];

/// Branches: SCC, VCC, EXEC, and whether they are taken.
const BRANCHES: &[(&str, bool, u32, u32, bool)] = &[
    ("s_branch", false, 0, 0, true),
    ("s_cbranch_scc0", false, 0, 0, true),
    ("s_cbranch_scc0", true, 0, 0, false),
    ("s_cbranch_scc1", true, 0, 0, true),
    ("s_cbranch_scc1", false, 1, 1, false),
    ("s_cbranch_vccz", false, 0, 1, true),
    ("s_cbranch_vccz", true, 1, 0, false),
    ("s_cbranch_vccnz", false, 1, 0, true),
    ("s_cbranch_vccnz", false, 0, 1, false),
    ("s_cbranch_execz", true, 1, 0, true),
    ("s_cbranch_execz", false, 0, 1, false),
    ("s_cbranch_execnz", false, 0, 1, true),
    ("s_cbranch_execnz", true, 1, 0, false),
];

/// Waits and hints, which change nothing.
const NOTHING: &[&str] = &[
    "s_nop",
    "s_waitcnt",
    "s_clause",
    "s_inst_prefetch",
    "s_sleep",
    "s_setprio",
    "s_waitcnt_depctr",
    "s_icache_inv",
    "s_wait_idle",
    "s_ttracedata",
    "s_ttracedata_imm",
    "s_waitcnt_vscnt",
    "s_waitcnt_vmcnt",
    "s_waitcnt_expcnt",
    "s_waitcnt_lgkmcnt",
    "s_version",
    "s_wakeup",
    "s_incperflevel",
    "s_decperflevel",
];

/// Instructions with a separate test function.
const OTHERS: &[&str] = &[
    "s_barrier",
    "s_endpgm",
    "s_sendmsg",
    "s_trap",
    "s_getpc_b64",
    "s_setpc_b64",
    "s_swappc_b64",
    "s_call_b64",
    "s_round_mode",
    "s_denorm_mode",
    "s_getreg_b32",
    "s_setreg_b32",
    "s_setreg_imm32_b32",
    "s_movrels_b32",
    "s_movrels_b64",
    "s_movreld_b32",
    "s_movreld_b64",
];

pub(super) fn names() -> Vec<&'static str> {
    let mut names: Vec<_> = ARITHMETIC.iter().chain(OLD_DESTINATION).map(|row| row.0).collect();
    names.extend(COMPARISONS.iter().map(|row| row.0));
    names.extend(CONSTANT_COMPARISONS.iter().map(|row| row.0));
    names.extend(CONSTANTS.iter().map(|row| row.0));
    names.extend(MASKS.iter().map(|row| row.0));
    names.extend(BRANCHES.iter().map(|row| row.0));
    names.extend(NOTHING);
    names.extend(OTHERS);
    names
}

const ADDRESS: u64 = 0x1000;

fn execute(wave: &mut Wave, name: &str, extra: Extra) -> Next {
    let definition = forms(name).next().unwrap();
    let instruction = encode(definition, extra);
    let Semantics::Scalar(operation) = Semantics::of(&instruction) else { panic!("{name} is not known") };
    wave.run_scalar(&instruction, operation, ADDRESS)
}

fn constant(value: u16) -> Extra {
    Extra { words: [value as u32, 0] }
}

#[test]
fn arithmetic() {
    for &(name, sources, scc, result, scc_after) in ARITHMETIC.iter().chain(OLD_DESTINATION) {
        let mut wave = wave();
        put_sources(&mut wave, &sources);
        wave.scc = scc;
        assert!(matches!(execute(&mut wave, name, Extra::default()), Next::Continue));
        let definition = forms(name).next().unwrap();
        let wide = definition.operand(unhang_isa::Field::Destination).unwrap().width.registers(false) == 2;
        let found = if wide { wave.scalar64(DESTINATION as u8) } else { wave.scalar(DESTINATION as u8) as u64 };
        assert_eq!(found, result, "{name} of {sources:x?}: {found:#x} and not {result:#x}");
        assert_eq!(wave.scc, scc_after.unwrap_or(scc), "SCC after {name} of {sources:x?}");
        if !wide {
            assert_eq!(wave.scalars[DESTINATION as usize + 1], UNTOUCHED, "{name}");
        }
    }
}

#[test]
fn comparisons() {
    for &(name, a, b, holds) in COMPARISONS {
        let mut wave = wave();
        put_sources(&mut wave, &[a, b]);
        wave.scc = !holds;
        execute(&mut wave, name, Extra::default());
        assert_eq!(wave.scc, holds, "{name} {a:#x} {b:#x}");
    }
    for &(name, a, b, holds) in CONSTANT_COMPARISONS {
        let mut wave = wave();
        put_sources(&mut wave, &[a]);
        wave.scc = !holds;
        execute(&mut wave, name, constant(b));
        assert_eq!(wave.scc, holds, "{name} {a:#x} {b:#x}");
    }
}

#[test]
fn constants() {
    for &(name, scc, old, value, new, scc_after) in CONSTANTS {
        let mut wave = wave();
        wave.scc = scc;
        wave.set_scalar(DESTINATION as u8, old);
        execute(&mut wave, name, constant(value));
        assert_eq!((wave.scalar(DESTINATION as u8), wave.scc), (new, scc_after), "{name} {old:#x} {value:#x}");
    }
}

#[test]
fn masks_of_lanes() {
    for &(name, exec, source, after) in MASKS {
        let mut wave = wave();
        // The upper half of the wide ones has the same bits; the narrow ones leave it unchanged.
        let wide = name.ends_with("_b64");
        let both = |bits: u32| bits as u64 | if wide { (bits as u64) << 32 } else { (UNTOUCHED as u64) << 32 };
        put_sources(&mut wave, &[both(source)]);
        (wave.scalars[EXEC], wave.scalars[EXEC + 1]) = (exec, both(exec).wrapping_shr(32) as u32);
        execute(&mut wave, name, Extra::default());
        let kept = if name.contains("wrexec") { after } else { exec };
        let found = (wave.scalar64(EXEC as u8), wave.scalar64(DESTINATION as u8), wave.scc);
        assert_eq!(found, (both(after), both(kept), after != 0), "{name}");
    }
}

#[test]
fn branches() {
    for &(name, scc, vcc, exec, taken) in BRANCHES {
        let mut wave = wave();
        (wave.scc, wave.scalars[VCC], wave.scalars[EXEC]) = (scc, vcc, exec);
        match execute(&mut wave, name, constant(0xfffe)) {
            Next::Relative(-8) if taken => {}
            Next::Continue if !taken => {}
            _ => panic!("{name} with {scc} {vcc} {exec}"),
        }
    }
}

#[test]
fn what_changes_nothing() {
    for name in NOTHING {
        let mut wave = wave();
        let before = wave.scalars;
        assert!(matches!(execute(&mut wave, name, Extra::default()), Next::Continue), "{name}");
        assert!(
            wave.scalars == before && wave.vectors[..wave.registers].iter().flatten().all(|&lane| lane == UNTOUCHED),
            "{name}"
        );
    }
}

#[test]
fn of_all_messages_the_interrupt_is_known() {
    let mut wave = wave();
    let before = wave.scalars;
    assert!(matches!(execute(&mut wave, "s_sendmsg", constant(1)), Next::Continue));
    assert!(wave.scalars == before);
    let definition = forms("s_sendmsg").next().unwrap();
    assert!(matches!(Semantics::of(&encode(definition, constant(2))), Semantics::Unsupported));
}

#[test]
fn calls_barriers_and_the_end() {
    let mut wave = wave();
    assert!(matches!(execute(&mut wave, "s_barrier", Extra::default()), Next::Barrier));
    assert!(matches!(execute(&mut wave, "s_endpgm", Extra::default()), Next::End));
    assert!(matches!(execute(&mut wave, "s_trap", constant(2)), Next::Trap(2)));
    execute(&mut wave, "s_getpc_b64", Extra::default());
    assert_eq!(wave.scalar64(DESTINATION as u8), ADDRESS + 4);
    put_sources(&mut wave, &[0x1234_5678_9abc]);
    assert!(matches!(execute(&mut wave, "s_setpc_b64", Extra::default()), Next::Absolute(0x1234_5678_9abc)));
    wave.set_scalar64(DESTINATION as u8, 0);
    assert!(matches!(execute(&mut wave, "s_swappc_b64", Extra::default()), Next::Absolute(0x1234_5678_9abc)));
    assert_eq!(wave.scalar64(DESTINATION as u8), ADDRESS + 4);
    wave.set_scalar64(DESTINATION as u8, 0);
    assert!(matches!(execute(&mut wave, "s_call_b64", constant(5)), Next::Relative(20)));
    assert_eq!(wave.scalar64(DESTINATION as u8), ADDRESS + 4);
}

#[test]
fn the_mode_register() {
    let mut wave = wave();
    execute(&mut wave, "s_round_mode", constant(0b0111));
    assert_eq!(wave.mode_bits, MODE & !15 | 7);
    execute(&mut wave, "s_denorm_mode", constant(0b1001));
    assert_eq!(wave.mode_bits, MODE & !255 | 0x97);
    assert_eq!(wave.mode.single.round, crate::float::Round::TowardZero);
    // Four bits from bit 4 on: register 1, offset 4, size 4.
    let field = 1 | 4 << 6 | 3 << 11;
    execute(&mut wave, "s_getreg_b32", constant(field));
    assert_eq!(wave.scalar(DESTINATION as u8), 9);
    put_sources(&mut wave, &[0xff_fff6]);
    execute(&mut wave, "s_setreg_b32", constant(field));
    assert_eq!(wave.mode_bits, MODE & !255 | 0x67);
    execute(&mut wave, "s_setreg_imm32_b32", Extra { words: [field as u32, 0x1f] });
    assert_eq!(wave.mode_bits, MODE & !255 | 0xf7);
    // The apertures, register 15: private memory in the lower half, local memory in the upper one.
    for (offset, aperture) in [(0, 0x2_0000), (16, 0x1_0000)] {
        execute(&mut wave, "s_getreg_b32", constant(15 | offset << 6 | 15 << 11));
        assert_eq!(wave.scalar(DESTINATION as u8) << 16, aperture);
    }
    // The cycles, register 29, which has 20 bits.
    wave.executed = 0x12_3456;
    execute(&mut wave, "s_getreg_b32", constant(29 | 31 << 11));
    assert_eq!(wave.scalar(DESTINATION as u8), 0x2_3456);
    // A register that does not exist is not guessed.
    let instruction = encode(forms("s_getreg_b32").next().unwrap(), constant(4));
    assert!(ScalarOperation::of(&instruction).is_none());
}

#[test]
fn moves_through_m0() {
    let mut wave = wave();
    wave.scalars[M0] = 2;
    put_sources(&mut wave, &[0x1_0000_0002, 0x3_0000_0004]);
    execute(&mut wave, "s_movrels_b32", Extra::default());
    assert_eq!(wave.scalar(DESTINATION as u8), 4);
    execute(&mut wave, "s_movrels_b64", Extra::default());
    assert_eq!(wave.scalar64(DESTINATION as u8), 0x3_0000_0004);
    execute(&mut wave, "s_movreld_b32", Extra::default());
    assert_eq!(wave.scalar(DESTINATION as u8 + 2), 2);
    execute(&mut wave, "s_movreld_b64", Extra::default());
    assert_eq!(wave.scalar64(DESTINATION as u8 + 2), 0x1_0000_0002);
    assert_eq!(wave.vector_lane(DESTINATION as usize, LANE), UNTOUCHED);
}
