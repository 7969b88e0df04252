//! What vector instructions compute, according to the documentation of the instruction set: name, sources, result.

pub(super) const ONES: u64 = u32::MAX as u64;
pub(super) const LEAST: u64 = 0x8000_0000;

pub(super) const fn f(value: f32) -> u64 {
    value.to_bits() as u64
}

pub(super) const fn d(value: f64) -> u64 {
    value.to_bits()
}

/// Half precision: the values that the tables need.
pub(super) const H_1: u64 = 0x3c00;
pub(super) const H_2: u64 = 0x4000;
pub(super) const H_3: u64 = 0x4200;
pub(super) const H_4: u64 = 0x4400;
pub(super) const H_HALF: u64 = 0x3800;
pub(super) const H_MINUS_1: u64 = 0xbc00;
pub(super) const H_MINUS_2: u64 = 0xc000;
pub(super) const H_2_5: u64 = 0x4100;
pub(super) const H_MINUS_2_5: u64 = 0xc100;
pub(super) const H_NAN: u64 = 0x7e00;
pub(super) const H_INFINITY: u64 = 0x7c00;

pub(super) const fn i(value: i32) -> u64 {
    value as u32 as u64
}

/// Name, sources, result. `fmac` and its kin add to the third source; `fmamk` multiplies by the second and `fmaak` adds
/// the third as a constant.
pub(super) type Row = (&'static str, [u64; 3], u64);

#[rustfmt::skip]
pub(super) const FUNCTIONS: &[Row] = &[
    ("v_mov_b32", [7, 0, 0], 7), ("v_not_b32", [0xffff_0000, 0, 0], 0xffff), ("v_bfrev_b32", [1, 0, 0], LEAST),
    ("v_ffbh_u32", [0, 0, 0], ONES), ("v_ffbh_u32", [0xffff, 0, 0], 16), ("v_ffbl_b32", [8, 0, 0], 3), ("v_ffbl_b32", [0, 0, 0], ONES),
    ("v_ffbh_i32", [0xffff_0000, 0, 0], 16), ("v_ffbh_i32", [ONES, 0, 0], ONES), ("v_ffbh_i32", [1, 0, 0], 31),
    // Bytes and parts of registers.
    ("v_sad_hi_u8", [0x0102_0304, 0x0403_0201, 5], 0x8_0005), ("v_msad_u8", [0x0102_0304, 0x0003_0201, 5], 10), ("v_lerp_u8", [0xff01_0203, 0x0102_0304, 0x0001_0001], 0x8002_0204),
    ("v_qsad_pk_u16_u8", [0x0807_0605_0403_0201, 0x0403_0201, 0x0004_0003_0002_0001], 0x0010_000b_0006_0001), ("v_mqsad_pk_u16_u8", [0x0807_0605_0403_0201, 0x0403_0001, 0x0004_0003_0002_0001], 0x000d_0009_0005_0001),
    ("v_cvt_pk_u8_f32", [f(2.5), 1, 0x1122_3344], 0x1122_0244), ("v_cvt_pk_u8_f32", [f(300.0), 3, 0x1122_3344], 0xff22_3344), ("v_cvt_pk_u8_f32", [f(-1.0), 0, 0x1122_3344], 0x1122_3300), ("v_cvt_pk_u8_f32", [f(f32::NAN), 2, 0x1122_3344], 0x1100_3344),
    ("v_cvt_pknorm_i16_f32", [f(1.0), f(-1.0), 0], 0x8001_7fff), ("v_cvt_pknorm_i16_f32", [f(0.5), f(2.0), 0], 0x7fff_4000), ("v_cvt_pknorm_u16_f32", [f(1.0), f(-1.0), 0], 0xffff), ("v_cvt_pknorm_u16_f32", [f(0.5), f(f32::NAN), 0], 0x8000),
    ("v_cvt_pknorm_i16_f16", [H_1, H_MINUS_1, 0], 0x8001_7fff), ("v_cvt_pknorm_u16_f16", [H_HALF, H_MINUS_1, 0], 0x8000), ("v_cvt_norm_i16_f16", [H_1, 0, 0], 0x7fff), ("v_cvt_norm_u16_f16", [H_HALF, 0, 0], 0x8000),
    ("v_cvt_off_f32_i4", [8, 0, 0], f(-0.5)), ("v_cvt_off_f32_i4", [7, 0, 0], f(0.4375)),
    ("v_dot2c_f32_f16", [H_2 | H_3 << 16, H_4 | H_HALF << 16, f(1.0)], f(10.5)), ("v_dot4c_i32_i8", [0xff02_8003, 0x0102_0304, 369], 0),
    // Infinity has no fraction; a quotient that overflowed arrives as NaN.
    ("v_fract_f32", [f(f32::INFINITY), 0, 0], f(f32::NAN)), ("v_fract_f32", [f(f32::NAN), 0, 0], f(f32::NAN)), ("v_fract_f32", [f(-1e-20), 0, 0], f(1.0 - f32::EPSILON / 2.0)),
    ("v_fract_f16", [H_INFINITY, 0, 0], H_NAN), ("v_fract_f16", [H_NAN, 0, 0], H_NAN), ("v_fract_f64", [d(f64::NEG_INFINITY), 0, 0], d(f64::NAN)), ("v_fract_f64", [d(f64::NAN), 0, 0], d(f64::NAN)),
    ("v_div_fixup_f32", [f(f32::NAN), f(1.1754944e-38), f(7.378698e19)], f(f32::INFINITY)), ("v_div_fixup_f32", [f(f32::NAN), f(-1.1754944e-38), f(7.378698e19)], f(f32::NEG_INFINITY)),
    ("v_div_fixup_f64", [d(f64::NAN), d(f64::MIN_POSITIVE), d(1e300)], d(f64::INFINITY)), ("v_div_fixup_f16", [H_NAN, 0x0400, 0x7bff], H_INFINITY),
    // One rounding of a denormal result, whatever steps the power is applied in.
    ("v_ldexp_f64", [d(1.0) | 1, (-1074i32) as u32 as u64, 0], 1), ("v_ldexp_f64", [d(1.5), (-1075i32) as u32 as u64, 0], 1), ("v_ldexp_f64", [d(1.0), (-1075i32) as u32 as u64, 0], 0),
    ("v_ldexp_f64", [0x3552_0000_0000_0001, (-902i32) as u32 as u64, 0], 5), ("v_ldexp_f64", [1, 2097, 0], d(8.98846567431158e307)), ("v_ldexp_f64", [d(1.0), 1024, 0], d(f64::INFINITY)),
    // Conversions: saturating, NaN to zero, towards zero or as the mode rounds.
    ("v_cvt_f32_i32", [ONES, 0, 0], f(-1.0)), ("v_cvt_f32_u32", [ONES, 0, 0], f(4294967296.0)), ("v_cvt_f32_u32", [16777217, 0, 0], f(16777216.0)),
    ("v_cvt_u32_f32", [f(-3.0), 0, 0], 0), ("v_cvt_u32_f32", [f(1e20), 0, 0], ONES), ("v_cvt_u32_f32", [f(f32::NAN), 0, 0], 0), ("v_cvt_u32_f32", [f(3.9), 0, 0], 3),
    ("v_cvt_i32_f32", [f(-3.9), 0, 0], i(-3)), ("v_cvt_i32_f32", [f(-1e20), 0, 0], LEAST), ("v_cvt_i32_f32", [f(1e20), 0, 0], 0x7fff_ffff),
    ("v_cvt_rpi_i32_f32", [f(2.5), 0, 0], 3), ("v_cvt_rpi_i32_f32", [f(-2.5), 0, 0], i(-2)), ("v_cvt_flr_i32_f32", [f(-3.1), 0, 0], i(-4)),
    ("v_cvt_f16_f32", [f(1.0), 0, 0], H_1), ("v_cvt_f16_f32", [f(65520.0), 0, 0], H_INFINITY), ("v_cvt_f16_f32", [f(65519.0), 0, 0], 0x7bff),
    ("v_cvt_f16_f32", [f(2049.0), 0, 0], 0x6800), ("v_cvt_f16_f32", [f(5.960_464_5e-8), 0, 0], 1),
    ("v_cvt_f32_f16", [1, 0, 0], f(5.960_464_5e-8)), ("v_cvt_f32_f16", [H_MINUS_2, 0, 0], f(-2.0)),
    ("v_cvt_f64_f32", [f(1.5), 0, 0], d(1.5)), ("v_cvt_f32_f64", [d(1.0 + 1e-12), 0, 0], f(1.0)), ("v_cvt_f32_f64", [d(1e300), 0, 0], f(f32::INFINITY)),
    ("v_cvt_f64_i32", [ONES, 0, 0], d(-1.0)), ("v_cvt_f64_u32", [ONES, 0, 0], d(4294967295.0)),
    ("v_cvt_i32_f64", [d(-2.9), 0, 0], i(-2)), ("v_cvt_u32_f64", [d(5e9), 0, 0], ONES),
    ("v_cvt_f16_u16", [0xffff, 0, 0], H_INFINITY), ("v_cvt_f16_i16", [0xffff, 0, 0], H_MINUS_1), ("v_cvt_f16_u16", [3, 0, 0], H_3),
    ("v_cvt_u16_f16", [H_MINUS_1, 0, 0], 0), ("v_cvt_u16_f16", [H_INFINITY, 0, 0], 0xffff), ("v_cvt_i16_f16", [H_MINUS_2, 0, 0], 0xfffe), ("v_cvt_i16_f16", [H_INFINITY, 0, 0], 0x7fff),
    ("v_cvt_f32_ubyte0", [0x4433_22ff, 0, 0], f(255.0)), ("v_cvt_f32_ubyte1", [0x4433_22ff, 0, 0], f(34.0)), ("v_cvt_f32_ubyte2", [0x4433_22ff, 0, 0], f(51.0)), ("v_cvt_f32_ubyte3", [0x4433_22ff, 0, 0], f(68.0)),
    ("v_cvt_pkrtz_f16_f32", [f(65535.0), f(-1.0), 0], 0xbc00_7bff), ("v_cvt_pk_u16_u32", [70000, 5, 0], 0x0005_ffff), ("v_cvt_pk_i16_i32", [i(-70000), 5, 0], 0x0005_8000),
    // Single precision.
    ("v_add_f32", [f(1.0), f(f32::EPSILON / 2.0), 0], f(1.0)), ("v_add_f32", [3, 4, 0], 7), ("v_sub_f32", [f(5.0), f(3.0), 0], f(2.0)), ("v_subrev_f32", [f(5.0), f(3.0), 0], f(-2.0)),
    ("v_mul_f32", [f(3.0), f(-0.5), 0], f(-1.5)), ("v_mul_legacy_f32", [f(0.0), f(f32::INFINITY), 0], 0), ("v_mul_legacy_f32", [f(2.0), f(3.0), 0], f(6.0)),
    ("v_min_f32", [f(f32::NAN), f(3.0), 0], f(3.0)), ("v_min_f32", [f(0.0), f(-0.0), 0], f(-0.0)), ("v_max_f32", [f(-0.0), f(0.0), 0], f(0.0)), ("v_max_f32", [f(3.0), f(f32::NAN), 0], f(3.0)),
    ("v_min3_f32", [f(9.0), f(1.0), f(4.0)], f(1.0)), ("v_max3_f32", [f(1.0), f(9.0), f(4.0)], f(9.0)), ("v_med3_f32", [f(9.0), f(1.0), f(4.0)], f(4.0)), ("v_med3_f32", [f(f32::NAN), f(7.0), f(4.0)], f(4.0)),
    ("v_fma_f32", [f(1.0 + f32::EPSILON), f(1.0 - f32::EPSILON), f(-1.0)], f(-f32::EPSILON * f32::EPSILON)),
    ("v_fmac_f32", [f(1.0 + f32::EPSILON), f(1.0 - f32::EPSILON), f(-1.0)], f(-f32::EPSILON * f32::EPSILON)),
    ("v_fmamk_f32", [f(2.0), f(3.0), f(4.0)], f(10.0)), ("v_fmaak_f32", [f(2.0), f(3.0), f(5.0)], f(11.0)),
    ("v_mad_f32", [f(1.0 + f32::EPSILON), f(1.0 - f32::EPSILON), f(-1.0)], 0), ("v_mac_f32", [f(2.0), f(3.0), f(5.0)], f(11.0)),
    ("v_madmk_f32", [f(2.0), f(3.0), f(4.0)], f(10.0)), ("v_madak_f32", [f(2.0), f(3.0), f(5.0)], f(11.0)),
    ("v_mad_legacy_f32", [f(0.0), f(f32::INFINITY), f(5.0)], f(5.0)), ("v_mac_legacy_f32", [f(2.0), f(3.0), f(5.0)], f(11.0)),
    ("v_fma_legacy_f32", [f(f32::NAN), f(-0.0), f(5.0)], f(5.0)), ("v_fmac_legacy_f32", [f(2.0), f(3.0), f(5.0)], f(11.0)),
    ("v_fract_f32", [f(-0.25), 0, 0], f(0.75)), ("v_fract_f32", [f(-1e-10), 0, 0], 0x3f7f_ffff), ("v_trunc_f32", [f(-2.7), 0, 0], f(-2.0)), ("v_ceil_f32", [f(2.1), 0, 0], f(3.0)), ("v_floor_f32", [f(-2.1), 0, 0], f(-3.0)),
    ("v_rndne_f32", [f(2.5), 0, 0], f(2.0)), ("v_rndne_f32", [f(3.5), 0, 0], f(4.0)),
    ("v_ldexp_f32", [f(1.5), i(-3), 0], f(0.1875)), ("v_ldexp_f32", [f(1.0), 5000, 0], f(f32::INFINITY)), ("v_ldexp_f32", [f(1.0), i(-149), 0], 1),
    ("v_frexp_exp_i32_f32", [f(8.0), 0, 0], 4), ("v_frexp_exp_i32_f32", [1, 0, 0], i(-148)), ("v_frexp_mant_f32", [f(-12.0), 0, 0], f(-0.75)), ("v_frexp_mant_f32", [f(f32::INFINITY), 0, 0], f(f32::INFINITY)),
    ("v_div_fixup_f32", [f(1.0), f(0.0), f(-2.0)], f(f32::NEG_INFINITY)), ("v_div_fixup_f32", [f(1.0), f(0.0), f(0.0)], 0xffc0_0000), ("v_div_fixup_f32", [f(-0.5), f(4.0), f(2.0)], f(0.5)), ("v_div_fixup_f32", [f(1.0), f(f32::INFINITY), f(-2.0)], f(-0.0)),
    // Double precision.
    ("v_add_f64", [d(1.0), d(f64::EPSILON), 0], d(1.0 + f64::EPSILON)), ("v_mul_f64", [d(3.0), d(0.1), 0], d(3.0 * 0.1)), ("v_fma_f64", [d(1.0 + f64::EPSILON), d(1.0 - f64::EPSILON), d(-1.0)], d(-f64::EPSILON * f64::EPSILON)),
    ("v_min_f64", [d(f64::NAN), d(-3.0), 0], d(-3.0)), ("v_max_f64", [d(5.0), d(-3.0), 0], d(5.0)),
    ("v_floor_f64", [d(-2.1), 0, 0], d(-3.0)), ("v_ceil_f64", [d(2.1), 0, 0], d(3.0)), ("v_trunc_f64", [d(-2.7), 0, 0], d(-2.0)), ("v_rndne_f64", [d(2.5), 0, 0], d(2.0)), ("v_fract_f64", [d(-0.25), 0, 0], d(0.75)),
    ("v_frexp_exp_i32_f64", [d(8.0), 0, 0], 4), ("v_frexp_mant_f64", [d(-12.0), 0, 0], d(-0.75)), ("v_ldexp_f64", [d(1.5), i(-3), 0], d(0.1875)), ("v_ldexp_f64", [1823 << 52 | 1 << 51, i(-1100), 0], 723 << 52 | 1 << 51), ("v_ldexp_f64", [d(1.0), i(-1074), 0], 1),
    // 53 bits of 2/π each; the numbers were computed by Machin's formula in integers. There are none after bit 1201.
    ("v_trig_preop_f64", [d(1.0), 0, 0], 0x3fe4_5f30_6dc9_c882), ("v_trig_preop_f64", [d(1.0), 1, 0], 0x3c94_a7f0_9d5f_47d4), ("v_trig_preop_f64", [d(1.0), 34, 0], 0x394a_6ee0_6db1_4acc),
    ("v_trig_preop_f64", [d(1e22), 0, 0], 0x3e8b_7272_20a9_4fe0), ("v_trig_preop_f64", [d(-1e22), 1, 0], 0x3b43_abe8_fa9a_6ee0), ("v_trig_preop_f64", [d(1e300), 0, 0], 0x0d0f_516b_a93d_d63f),
    ("v_trig_preop_f64", [d(1.0), 19, 0], 0x00ff_17b3_d073_9f78), ("v_trig_preop_f64", [d(1.0), 23, 0], 0),
    ("v_div_fixup_f64", [d(1.0), d(0.0), d(-2.0)], d(f64::NEG_INFINITY)), ("v_div_fixup_f64", [d(-0.5), d(4.0), d(2.0)], d(0.5)),
    // Half precision.
    ("v_add_f16", [H_1, 0x1000, 0], H_1), ("v_add_f16", [1, 1, 0], 2), ("v_sub_f16", [H_3, H_1, 0], H_2), ("v_subrev_f16", [H_3, H_1, 0], H_MINUS_2), ("v_mul_f16", [H_2, H_HALF, 0], H_1),
    ("v_min_f16", [H_NAN, H_3, 0], H_3), ("v_max_f16", [H_1, H_3, 0], H_3), ("v_min3_f16", [H_4, H_1, H_3], H_1), ("v_max3_f16", [H_4, H_1, H_3], H_4), ("v_med3_f16", [H_4, H_1, H_3], H_3),
    // 3 · (1/3 rounded down) - 1 is exact only in an fma.
    ("v_fma_f16", [H_3, 0x3555, H_MINUS_1], 0x8c00), ("v_fmac_f16", [H_3, 0x3555, H_MINUS_1], 0x8c00), ("v_fmamk_f16", [H_2, H_2, H_MINUS_1], H_3), ("v_fmaak_f16", [H_2, H_2, H_MINUS_1], H_3),
    ("v_floor_f16", [H_MINUS_2_5, 0, 0], 0xc200), ("v_ceil_f16", [H_2_5, 0, 0], H_3), ("v_trunc_f16", [H_MINUS_2_5, 0, 0], H_MINUS_2), ("v_rndne_f16", [H_2_5, 0, 0], H_2), ("v_fract_f16", [H_2_5, 0, 0], H_HALF),
    ("v_ldexp_f16", [H_1, 2, 0], H_4), ("v_ldexp_f16", [H_1, 0xfffe, 0], 0x3400), ("v_frexp_exp_i16_f16", [H_4, 0, 0], 3), ("v_frexp_mant_f16", [H_3, 0, 0], 0x3a00), ("v_div_fixup_f16", [H_2, 0, H_MINUS_1], 0xfc00), ("v_div_fixup_f16", [H_2, H_1, H_MINUS_1], H_MINUS_2),
    ("v_pack_b32_f16", [0x1111, 0x2222, 0], 0x2222_1111),
    // Integers.
    ("v_add_nc_u32", [ONES, 2, 0], 1), ("v_sub_nc_u32", [3, 5, 0], i(-2)), ("v_subrev_nc_u32", [3, 5, 0], 2), ("v_add_nc_i32", [ONES, 2, 0], 1), ("v_sub_nc_i32", [3, 5, 0], i(-2)), ("v_add3_u32", [1, 2, ONES], 2),
    ("v_mul_lo_u32", [ONES, 5, 0], i(-5)), ("v_mul_lo_i32", [ONES, 5, 0], i(-5)), ("v_mul_hi_u32", [ONES, ONES, 0], 0xffff_fffe), ("v_mul_hi_i32", [ONES, ONES, 0], 0), ("v_mul_hi_i32", [ONES, 5, 0], ONES),
    ("v_mul_u32_u24", [0xff00_0003, 0x0100_0002, 0], 6), ("v_mul_i32_i24", [0x00ff_ffff, 5, 0], i(-5)), ("v_mul_hi_u32_u24", [0xff_ffff, 0xff_ffff, 0], 0xffff), ("v_mul_hi_i32_i24", [0xff_ffff, 5, 0], ONES),
    ("v_mad_u32_u24", [3, 4, ONES], 11), ("v_mad_i32_i24", [0xff_ffff, 5, 7], 2), ("v_mad_u32_u16", [0xffff, 2, 5], 0x2_0003), ("v_mad_i32_i16", [0xffff, 2, 5], 3),
    ("v_sad_u32", [3, 10, 5], 12), ("v_sad_u16", [0x0001_0005, 0x0003_0002, 10], 15), ("v_sad_u8", [0x0102_0304, 0x0401_0300, 1], 9),
    ("v_min_u32", [ONES, 1, 0], 1), ("v_max_u32", [ONES, 1, 0], ONES), ("v_min_i32", [ONES, 1, 0], ONES), ("v_max_i32", [ONES, 1, 0], 1),
    ("v_min3_u32", [5, ONES, 7], 5), ("v_max3_u32", [5, ONES, 7], ONES), ("v_min3_i32", [5, ONES, 7], ONES), ("v_max3_i32", [5, ONES, 7], 7), ("v_med3_i32", [ONES, 5, 2], 2), ("v_med3_u32", [ONES, 5, 2], 5),
    ("v_and_b32", [12, 10, 0], 8), ("v_or_b32", [12, 10, 0], 14), ("v_xor_b32", [12, 10, 0], 6), ("v_xnor_b32", [12, 10, 0], 0xffff_fff9), ("v_or3_b32", [1, 2, 4], 7), ("v_xor3_b32", [1, 3, 4], 6), ("v_and_or_b32", [12, 10, 1], 9), ("v_xad_u32", [12, 10, 1], 7),
    ("v_lshlrev_b32", [33, 1, 0], 2), ("v_lshrrev_b32", [31, LEAST, 0], 1), ("v_ashrrev_i32", [4, LEAST, 0], 0xf800_0000), ("v_lshlrev_b64", [36, 1, 0], 1 << 36), ("v_lshrrev_b64", [36, 1 << 40, 0], 16), ("v_ashrrev_i64", [60, 1 << 63, 0], u64::MAX << 3),
    ("v_lshl_add_u32", [3, 4, 5], 53), ("v_add_lshl_u32", [3, 4, 5], 224), ("v_lshl_or_b32", [3, 4, 1], 49), ("v_bfe_u32", [0xabcd_1234, 8, 8], 0x12), ("v_bfe_i32", [0x8000, 8, 8], 0xffff_ff80), ("v_bfe_i32", [0x8000, 8, 0], 0), ("v_bfi_b32", [0xff00, 0x1234, 0x5678], 0x1278),
    ("v_bfm_b32", [4, 8, 0], 0xf00), ("v_bcnt_u32_b32", [0xff, 3, 0], 11), ("v_alignbit_b32", [1, LEAST, 4], 0x1800_0000), ("v_alignbyte_b32", [0xaa, 0x1122_3344, 1], 0xaa11_2233), ("v_perm_b32", [0x4433_2211, 0x8877_6655, 0x0c07_0400], 0x0044_1155), ("v_perm_b32", [0, 0x8000, 0x0d0c_0900], 0xff00_0000),
    ("v_add_nc_u16", [0xffff, 2, 0], 1), ("v_add_nc_i16", [0xffff, 2, 0], 1), ("v_sub_nc_u16", [1, 2, 0], 0xffff), ("v_sub_nc_i16", [1, 2, 0], 0xffff), ("v_mul_lo_u16", [0x1_0003, 5, 0], 15), ("v_mad_u16", [3, 5, 0xffff], 14), ("v_mad_i16", [0xffff, 5, 7], 2),
    ("v_lshlrev_b16", [17, 1, 0], 2), ("v_lshrrev_b16", [15, 0x8000, 0], 1), ("v_ashrrev_i16", [4, 0x8000, 0], 0xf800), ("v_max_u16", [0xffff, 1, 0], 0xffff), ("v_min_u16", [0xffff, 1, 0], 1), ("v_max_i16", [0xffff, 1, 0], 1), ("v_min_i16", [0xffff, 1, 0], 0xffff),
    ("v_min3_u16", [5, 0xffff, 7], 5), ("v_max3_u16", [5, 0xffff, 7], 0xffff), ("v_med3_u16", [5, 0xffff, 7], 7), ("v_min3_i16", [5, 0xffff, 7], 0xffff), ("v_max3_i16", [5, 0xffff, 7], 7), ("v_med3_i16", [5, 0xffff, 7], 5),
];

/// Approximate functions at arguments with a known result; checked to one unit in the last place when perturbed.
#[rustfmt::skip]
pub(super) const APPROXIMATE: &[Row] = &[
    ("v_exp_f32", [f(10.0), 0, 0], f(1024.0)), ("v_exp_f32", [f(-200.0), 0, 0], 0), ("v_log_f32", [f(0.125), 0, 0], f(-3.0)), ("v_log_f32", [f(0.0), 0, 0], f(f32::NEG_INFINITY)),
    ("v_rcp_f32", [f(0.0), 0, 0], f(f32::INFINITY)), ("v_rcp_f32", [f(4.0), 0, 0], f(0.25)), ("v_rcp_f32", [f(1e-40), 0, 0], f(f32::INFINITY)), ("v_rcp_iflag_f32", [f(-8.0), 0, 0], f(-0.125)),
    ("v_rsq_f32", [f(16.0), 0, 0], f(0.25)), ("v_sqrt_f32", [f(2.25), 0, 0], f(1.5)), ("v_sin_f32", [f(0.25), 0, 0], f(1.0)), ("v_sin_f32", [f(300.25), 0, 0], 0), ("v_cos_f32", [f(0.5), 0, 0], f(-1.0)), ("v_cos_f32", [f(300.5), 0, 0], f(1.0)),
    ("v_rcp_f64", [d(4.0), 0, 0], d(0.25)), ("v_rsq_f64", [d(16.0), 0, 0], d(0.25)), ("v_sqrt_f64", [d(2.25), 0, 0], d(1.5)),
    ("v_rcp_f16", [H_2, 0, 0], H_HALF), ("v_rsq_f16", [H_4, 0, 0], H_HALF), ("v_sqrt_f16", [H_4, 0, 0], H_2), ("v_exp_f16", [H_2, 0, 0], H_4), ("v_log_f16", [H_4, 0, 0], H_2), ("v_sin_f16", [0x3400, 0, 0], H_1), ("v_cos_f16", [H_HALF, 0, 0], H_MINUS_1),
];

/// Carries: name, sources, carry in; result, carry out.
pub(super) const CARRIES: &[(&str, u64, u64, bool, u64, bool)] = &[
    ("v_add_co_u32", ONES, 1, false, 0, true),
    ("v_add_co_u32", 1, 1, true, 2, false),
    ("v_sub_co_u32", 1, 2, false, ONES, true),
    ("v_subrev_co_u32", 1, 2, false, 1, false),
    ("v_add_co_ci_u32", ONES, 0, true, 0, true),
    ("v_add_co_ci_u32", 1, 2, false, 3, false),
    ("v_sub_co_ci_u32", 5, 5, true, ONES, true),
    ("v_subrev_co_ci_u32", 5, 6, true, 0, false),
];

/// Packed halves: name, sources, result.
#[rustfmt::skip]
pub(super) const PACKED: &[Row] = &[
    ("v_pk_fma_f16", [H_3 | H_2 << 16, 0x3555 | H_2 << 16, H_MINUS_1 | H_1 << 16], 0x8c00 | 0x4500 << 16),
    ("v_pk_fmac_f16", [H_3 | H_2 << 16, 0x3555 | H_2 << 16, H_MINUS_1 | H_1 << 16], 0x8c00 | 0x4500 << 16),
    ("v_pk_add_f16", [H_1 | H_3 << 16, H_2 | H_MINUS_1 << 16, 0], H_3 | H_2 << 16), ("v_pk_mul_f16", [H_2 | H_4 << 16, H_HALF | H_MINUS_1 << 16, 0], H_1 | 0xc400 << 16),
    ("v_pk_min_f16", [H_1 | H_3 << 16, H_2 | H_MINUS_1 << 16, 0], H_1 | H_MINUS_1 << 16), ("v_pk_max_f16", [H_1 | H_3 << 16, H_2 | H_MINUS_1 << 16, 0], H_2 | H_3 << 16),
    ("v_pk_add_u16", [0xffff_0001, 0x0002_0003, 0], 0x0001_0004), ("v_pk_add_i16", [0xffff_0001, 0x0002_0003, 0], 0x0001_0004), ("v_pk_sub_u16", [0x0001_0003, 0x0002_0001, 0], 0xffff_0002), ("v_pk_sub_i16", [0x0001_0003, 0x0002_0001, 0], 0xffff_0002),
    ("v_pk_mul_lo_u16", [0x8000_0003, 0x0002_0005, 0], 0x0000_000f), ("v_pk_mad_u16", [0x0002_0003, 0x0004_0005, 0x0001_0002], 0x0009_0011), ("v_pk_mad_i16", [0xffff_0003, 0x0004_0005, 0x0001_0002], 0xfffd_0011),
    ("v_pk_lshlrev_b16", [0x0001_0004, 0x0003_0003, 0], 0x0006_0030), ("v_pk_lshrrev_b16", [0x0001_0004, 0x8000_0030, 0], 0x4000_0003), ("v_pk_ashrrev_i16", [0x0001_0004, 0x8000_8030, 0], 0xc000_f803),
    ("v_pk_max_u16", [0xffff_0001, 0x0001_0002, 0], 0xffff_0002), ("v_pk_min_u16", [0xffff_0001, 0x0001_0002, 0], 0x0001_0001), ("v_pk_max_i16", [0xffff_0001, 0x0001_0002, 0], 0x0001_0002), ("v_pk_min_i16", [0xffff_0001, 0x0001_0002, 0], 0xffff_0001),
];

/// Instructions with a separate test function.
pub(super) const OTHERS: &[&str] = &[
    "v_nop",
    "v_cndmask_b32",
    "v_readlane_b32",
    "v_readfirstlane_b32",
    "v_writelane_b32",
    "v_permlane16_b32",
    "v_permlanex16_b32",
    "v_mbcnt_lo_u32_b32",
    "v_mbcnt_hi_u32_b32",
    "v_div_scale_f32",
    "v_div_fmas_f32",
    "v_div_scale_f64",
    "v_div_fmas_f64",
    "v_cmp_class_f32",
    "v_cmpx_class_f32",
    "v_cmp_class_f16",
    "v_cmpx_class_f16",
    "v_cmp_class_f64",
    "v_cmpx_class_f64",
    "v_movrels_b32",
    "v_movreld_b32",
    "v_mad_u64_u32",
    "v_mad_i64_i32",
    "v_swap_b32",
    "v_fma_mix_f32",
    "v_fma_mixlo_f16",
    "v_fma_mixhi_f16",
];

/// The conditions, by the outcomes for which they are true: less, equal, greater, unordered.
pub(super) const CONDITIONS: &[(&str, [bool; 4])] = &[
    ("f", [false; 4]),
    ("lt", [true, false, false, false]),
    ("eq", [false, true, false, false]),
    ("le", [true, true, false, false]),
    ("gt", [false, false, true, false]),
    ("lg", [true, false, true, false]),
    ("ne", [true, false, true, false]),
    ("ge", [false, true, true, false]),
    ("o", [true, true, true, false]),
    ("u", [false, false, false, true]),
    ("nge", [true, false, false, true]),
    ("nlg", [false, true, false, true]),
    ("ngt", [true, true, false, true]),
    ("nle", [false, false, true, true]),
    ("neq", [true, false, true, true]),
    ("nlt", [false, true, true, true]),
    ("tru", [true; 4]),
    ("t", [true; 4]),
];

/// Types of comparisons, with a pair of numbers for each outcome; integers are never unordered.
pub(super) const PAIRS: &[(&str, [(u64, u64); 4])] = &[
    ("f32", [(f(-1.0), f(1.0)), (f(0.0), f(-0.0)), (f(2.0), f(1.0)), (f(f32::NAN), f(1.0))]),
    ("f16", [(H_MINUS_1, H_1), (0, 0x8000), (H_2, H_1), (H_NAN, H_1)]),
    ("f64", [(d(-1.0), d(1.0)), (d(0.0), d(-0.0)), (d(2.0), d(1.0)), (d(f64::NAN), d(1.0))]),
    ("i16", [(0xffff, 1), (5, 5), (1, 0xffff), (5, 5)]),
    ("u16", [(1, 0xffff), (5, 5), (0xffff, 1), (5, 5)]),
    ("i32", [(ONES, 1), (5, 5), (1, ONES), (5, 5)]),
    ("u32", [(1, ONES), (5, 5), (ONES, 1), (5, 5)]),
    ("i64", [(u64::MAX, 1), (5, 5), (1, u64::MAX), (5, 5)]),
    ("u64", [(1, u64::MAX), (1 << 40, 1 << 40), (u64::MAX, 1), (5, 5)]),
];
