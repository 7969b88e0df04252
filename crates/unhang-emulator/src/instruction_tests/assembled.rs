//! Literals, constants, saturation and dot products: everything that depends on how operands are encoded. Each row is
//! an instruction as LLVM's assembler encodes it, with its sources in registers 10, 12 and 14.

use unhang_isa::{Chip, decode};

use super::vector_table::*;
use super::{DESTINATION, LANE, UNTOUCHED, put_sources, wave};
use crate::semantics::Semantics;

const MOST: u64 = 0x7fff_ffff;

/// Assembly, its words, sources, result. Halves are written to a register that holds [`UNTOUCHED`].
#[rustfmt::skip]
const ROWS: &[(&str, &[u32], [u64; 3], u64)] = &[
    ("s_mov_b64 s[20:21], 0xffffffff", &[0xbe94_04ff, 0xffff_ffff], [0, 0, 0], ONES),
    ("s_not_b64 s[20:21], 0x80000000", &[0xbe94_08ff, 0x8000_0000], [0, 0, 0], 0xffff_ffff_7fff_ffff),
    ("s_or_b64 s[20:21], s[10:11], 0x80000000", &[0x8894_ff0a, 0x8000_0000], [1 << 40, 0, 0], 0x100_8000_0000),
    ("s_lshl_b64 s[20:21], 0x80000001, s12", &[0x8f94_0cff, 0x8000_0001], [0, 4, 0], 0x8_0000_0010),
    ("s_ashr_i64 s[20:21], 0x80000000, s12", &[0x9194_0cff, 0x8000_0000], [0, 4, 0], 0xffff_ffff_f800_0000),
    ("s_bfe_u64 s[20:21], 0x87654321, s12", &[0x9494_0cff, 0x8765_4321], [0, 16 << 16 | 28, 0], 8),
    ("s_bfe_i64 s[20:21], 0x87654321, s12", &[0x9514_0cff, 0x8765_4321], [0, 16 << 16 | 28, 0], 0xffff_ffff_ffff_fff8),
    ("s_flbit_i32_b64 s20, 0x80000000", &[0xbe94_16ff, 0x8000_0000], [0, 0, 0], 32),
    ("s_flbit_i32_i64 s20, 0x80000000", &[0xbe94_18ff, 0x8000_0000], [0, 0, 0], 33),
    ("v_lshlrev_b64 v[20:21], v10, 0x80000001", &[0xd6ff_0014, 0x0001_ff0a, 0x8000_0001], [4, 0, 0], 0x8_0000_0010),
    ("v_ashrrev_i64 v[20:21], v10, 0x80000001", &[0xd701_0014, 0x0001_ff0a, 0x8000_0001], [4, 0, 0], 0xffff_ffff_f800_0000),
    ("v_mad_u64_u32 v[20:21], s32, v10, v12, 0x80000000", &[0xd576_2014, 0x03fe_190a, 0x8000_0000], [2, 3, 0], 0x8000_0006),
    ("v_mad_i64_i32 v[20:21], s32, v10, v12, 0x80000000", &[0xd577_2014, 0x03fe_190a, 0x8000_0000], [2, 3, 0], 0xffff_ffff_8000_0006),
    ("v_add_f64 v[20:21], v[10:11], 0x3ff80000", &[0xd564_0014, 0x0001_ff0a, 0x3ff8_0000], [d(1.0), 0, 0], d(2.5)),
    ("v_fract_f64_e32 v[20:21], 0x400c0000", &[0x7e28_7cff, 0x400c_0000], [0, 0, 0], d(0.5)),
    ("v_mov_b32_e32 v20, 0x80000000", &[0x7e28_02ff, 0x8000_0000], [0, 0, 0], LEAST),
    ("v_add_nc_u16 v20, v10, 1.0", &[0xd703_0014, 0x0001_e50a], [5, 0, 0], 0xdead_0005),
    ("v_pk_add_u16 v20, v10, 1.0", &[0xcc0a_4014, 0x1801_e50a], [0x0002_0003, 0, 0], 0x3f82_0003),
    ("v_pk_add_u16 v20, v10, -1", &[0xcc0a_4014, 0x1801_830a], [0x0002_0003, 0, 0], 0x0001_0002),
    ("v_add_f16_e32 v20, 1.0, v10", &[0x6428_14f2], [H_2, 0, 0], 0xdead_0000 | H_3),
    ("v_pk_add_f16 v20, v10, 1.0", &[0xcc0f_4014, 0x1801_e50a], [H_2 | H_2 << 16, 0, 0], H_3 | H_2 << 16),
    ("v_lshlrev_b64 v[20:21], 1, 1.0", &[0xd6ff_0014, 0x0001_e481], [0, 0, 0], d(1.0) << 1),
    ("v_add_nc_u32_e64 v20, v10, v12 clamp", &[0xd525_8014, 0x0002_190a], [ONES, 1, 0], ONES),
    ("v_sub_nc_u32_e64 v20, v10, v12 clamp", &[0xd526_8014, 0x0002_190a], [1, 2, 0], 0),
    ("v_subrev_nc_u32_e64 v20, v10, v12 clamp", &[0xd527_8014, 0x0002_190a], [2, 1, 0], 0),
    ("v_add_nc_i32 v20, v10, v12 clamp", &[0xd77f_8014, 0x0002_190a], [MOST, 1, 0], MOST),
    ("v_sub_nc_i32 v20, v10, v12 clamp", &[0xd776_8014, 0x0002_190a], [LEAST, 1, 0], LEAST),
    ("v_mul_u32_u24_e64 v20, v10, v12 clamp", &[0xd50b_8014, 0x0002_190a], [0xff_ffff, 0xff_ffff, 0], ONES),
    ("v_mul_i32_i24_e64 v20, v10, v12 clamp", &[0xd509_8014, 0x0002_190a], [0x7f_ffff, 0x80_0000, 0], LEAST),
    ("v_mad_u32_u24 v20, v10, v12, v14 clamp", &[0xd543_8014, 0x043a_190a], [0xffff, 0xffff, ONES], ONES),
    ("v_mad_i32_i24 v20, v10, v12, v14 clamp", &[0xd542_8014, 0x043a_190a], [0x7f_ffff, 0x100, MOST], MOST),
    ("v_mad_u32_u16 v20, v10, v12, v14 clamp", &[0xd773_8014, 0x043a_190a], [0xffff, 0xffff, 0x2_0000], ONES),
    ("v_mad_i32_i16 v20, v10, v12, v14 clamp", &[0xd775_8014, 0x043a_190a], [0x8000, 0x8000, MOST], MOST),
    ("v_sad_u8 v20, v10, v12, v14 clamp", &[0xd55a_8014, 0x043a_190a], [ONES, 0, ONES], ONES),
    ("v_sad_u32 v20, v10, v12, v14 clamp", &[0xd55d_8014, 0x043a_190a], [ONES, 0, 5], ONES),
    ("v_add_nc_u16 v20, v10, v12 clamp", &[0xd703_8014, 0x0002_190a], [0xffff, 1, 0], 0xdead_ffff),
    ("v_sub_nc_u16 v20, v10, v12 clamp", &[0xd704_8014, 0x0002_190a], [1, 2, 0], 0xdead_0000),
    ("v_add_nc_i16 v20, v10, v12 clamp", &[0xd70d_8014, 0x0002_190a], [0x7fff, 1, 0], 0xdead_7fff),
    ("v_sub_nc_i16 v20, v10, v12 clamp", &[0xd70e_8014, 0x0002_190a], [0x8000, 1, 0], 0xdead_8000),
    ("v_mad_u16 v20, v10, v12, v14 clamp", &[0xd740_8014, 0x043a_190a], [0x100, 0x100, 1], 0xdead_ffff),
    ("v_mad_i16 v20, v10, v12, v14 clamp", &[0xd75e_8014, 0x043a_190a], [0x100, 0xff00, 0], 0xdead_8000),
    ("v_max3_i16 v20, v10, v12, v14 clamp", &[0xd755_8014, 0x043a_190a], [1, 2, 3], 0xdead_0003),
    ("v_pk_add_u16 v20, v10, v12 clamp", &[0xcc0a_c014, 0x1802_190a], [0xffff_0001, 0x0002_0003, 0], 0xffff_0004),
    ("v_pk_add_i16 v20, v10, v12 clamp", &[0xcc02_c014, 0x1802_190a], [0x7fff_0001, 0x0001_ffff, 0], 0x7fff_0000),
    ("v_pk_sub_u16 v20, v10, v12 clamp", &[0xcc0b_c014, 0x1802_190a], [0x0001_0005, 0x0002_0003, 0], 0x0000_0002),
    ("v_pk_sub_i16 v20, v10, v12 clamp", &[0xcc03_c014, 0x1802_190a], [0x8000_0005, 0x0001_0006, 0], 0x8000_ffff),
    ("v_pk_mul_lo_u16 v20, v10, v12 clamp", &[0xcc01_c014, 0x1802_190a], [0x0100_0002, 0x0100_0003, 0], 0xffff_0006),
    ("v_pk_mad_i16 v20, v10, v12, v14 clamp", &[0xcc00_c014, 0x1c3a_190a], [0x0100_0002, 0x0100_0003, 1], 0x7fff_0007),
    ("v_add_nc_u32_sdwa v20, v10, v12 clamp dst_sel:DWORD dst_unused:UNUSED_PRESERVE src0_sel:DWORD src1_sel:DWORD", &[0x4a28_18f9, 0x0606_360a], [ONES, 1, 0], ONES),
    ("v_cvt_f32_u32_e64 v20, v10 clamp", &[0xd586_8014, 0x0000_010a], [7, 0, 0], f(1.0)),
    ("v_cvt_f32_i32_e64 v20, v10 clamp", &[0xd585_8014, 0x0000_010a], [0xffff_fffd, 0, 0], f(0.0)),
    ("v_cvt_f64_i32_e64 v[20:21], v10 clamp", &[0xd584_8014, 0x0000_010a], [7, 0, 0], d(1.0)),
    ("v_cvt_u32_f32_e64 v20, v10 clamp", &[0xd587_8014, 0x0000_010a], [f(7.9), 0, 0], 7),
    ("v_dot2_f32_f16 v20, v10, v12, v14", &[0xcc13_4014, 0x1c3a_190a], [H_2 | H_3 << 16, H_4 | H_HALF << 16, f(1.0)], f(10.5)),
    ("v_dot2_f32_f16 v20, v10, v12, v14 neg_lo:[1,0,0] neg_hi:[0,1,0]", &[0xcc13_4214, 0x3c3a_190a], [H_2 | H_3 << 16, H_4 | H_HALF << 16, f(1.0)], f(-8.5)),
    ("v_dot2_i32_i16 v20, v10, v12, v14", &[0xcc14_4014, 0x1c3a_190a], [0xffff_0003, 0x0005_fffe, 100], 89),
    ("v_dot2_i32_i16 v20, v10, v12, v14 clamp", &[0xcc14_c014, 0x1c3a_190a], [0x7fff_7fff, 0x7fff_7fff, MOST], MOST),
    ("v_dot2_u32_u16 v20, v10, v12, v14", &[0xcc15_4014, 0x1c3a_190a], [0xffff_ffff, 0x0002_0003, 1], 327_676),
    ("v_dot2_u32_u16 v20, v10, v12, v14 clamp", &[0xcc15_c014, 0x1c3a_190a], [ONES, ONES, 0], ONES),
    ("v_dot4_i32_i8 v20, v10, v12, v14", &[0xcc16_4014, 0x1c3a_190a], [0xff02_8003, 0x0102_0304, 369], 0),
    ("v_dot4_i32_i8 v20, v10, v12, v14 clamp", &[0xcc16_c014, 0x1c3a_190a], [0x7f7f_7f7f, 0x7f7f_7f7f, MOST], MOST),
    ("v_dot4_u32_u8 v20, v10, v12, v14", &[0xcc17_4014, 0x1c3a_190a], [0xff02_8003, 0x0102_0304, 1], 656),
    ("v_dot4_u32_u8 v20, v10, v12, v14 clamp", &[0xcc17_c014, 0x1c3a_190a], [0xff02_8003, 0x0102_0304, ONES], ONES),
    ("v_dot8_i32_i4 v20, v10, v12, v14", &[0xcc18_4014, 0x1c3a_190a], [0x8000_000f, 0x7000_0003, 60], 1),
    ("v_dot8_u32_u4 v20, v10, v12, v14", &[0xcc19_4014, 0x1c3a_190a], [ONES, 0x1111_1111, 1], 121),
    ("v_dot8_u32_u4 v20, v10, v12, v14 clamp", &[0xcc19_c014, 0x1c3a_190a], [ONES, 0x1111_1111, ONES], ONES),
    ("v_div_fmas_f32 v20, v10, v12, v14 mul:2", &[0xd56f_0014, 0x0c3a_190a], [f(2.0), f(3.0), f(4.0)], f(20.0)),
];

fn mnemonic(assembly: &str) -> &str {
    let name = assembly.split(' ').next().unwrap_or("");
    ["_e32", "_e64", "_sdwa", "_dpp"].iter().find_map(|suffix| name.strip_suffix(suffix)).unwrap_or(name)
}

/// The instructions tested here and nowhere else.
pub(super) fn names() -> Vec<&'static str> {
    ROWS.iter().map(|row| mnemonic(row.0)).filter(|name| name.starts_with("v_dot")).collect()
}

#[test]
fn operands_mean_what_their_encoding_says() {
    for &(assembly, words, sources, expected) in ROWS {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let instruction = decode(&bytes, Chip::Gfx1030).unwrap_or_else(|error| panic!("{assembly}: {error}"));
        assert_eq!(instruction.definition.base_name(), mnemonic(assembly));
        let mut wave = wave();
        wave.scalars[crate::wave::VCC] = 0;
        put_sources(&mut wave, &sources);
        let found = match Semantics::of(&instruction) {
            Semantics::Scalar(operation) => {
                wave.run_scalar(&instruction, operation, 0);
                wave.scalar64(DESTINATION as u8)
            }
            semantics => {
                wave.run_vector(&instruction, semantics).unwrap_or_else(|fault| panic!("{assembly}: {fault}"));
                let [low, high] = [0, 1].map(|part| wave.vector_lane(DESTINATION as usize + part, LANE) as u64);
                low | high << 32
            }
        };
        let expected = if assembly.contains("[20:21]") { expected } else { expected | (UNTOUCHED as u64) << 32 };
        assert_eq!(found, expected, "{assembly} of {sources:x?}: {found:#x} and not {expected:#x}");
    }
}
