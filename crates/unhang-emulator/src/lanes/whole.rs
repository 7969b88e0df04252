//! What instructions on integers and bits compute.

use super::operation::{LaneOperation, hot, median, op, sign24, wide};
use crate::wave::Type;

fn permute_bytes(a: u32, b: u32, selector: u32) -> u32 {
    let bytes = (a as u64) << 32 | b as u64;
    let mut out = 0;
    for place in 0..4 {
        let select = selector >> (place * 8) & 0xff;
        let byte = match select {
            0..=7 => (bytes >> (select * 8)) as u32 & 0xff,
            8..=11 => {
                if bytes >> ((select - 8) * 16 + 15) & 1 == 1 {
                    0xff
                } else {
                    0
                }
            }
            12 => 0,
            _ => 0xff,
        };
        out |= byte << (place * 8);
    }
    out
}

/// Bits, which may represent a float.
#[rustfmt::skip]
pub(super) fn bits(name: &str) -> Option<LaneOperation> {
    use Type::{Bits32 as B, Float32 as F};
    match name {
        // The documentation allows it to change a float's sign.
        "v_mov_b32" => hot!([F, B, B], B, |a, _, _, _| a),
        "v_not_b32" => hot!([B; 3], B, |a, _, _, _| !a),
        "v_bfrev_b32" => hot!([B; 3], B, |a, _, _, _| (a as u32).reverse_bits() as u64),
        "v_ffbh_u32" => hot!([B; 3], B, |a, _, _, _| if a == 0 { u32::MAX as u64 } else { (a as u32).leading_zeros() as u64 }),
        "v_ffbl_b32" => hot!([B; 3], B, |a, _, _, _| if a == 0 { u32::MAX as u64 } else { (a as u32).trailing_zeros() as u64 }),
        "v_ffbh_i32" => op!([B; 3], B, |a, _, _, _| {
            let a = a as u32;
            if a == 0 || a == u32::MAX { u32::MAX as u64 } else { (a ^ (a as i32 >> 31) as u32).leading_zeros() as u64 }
        }),
        _ => None,
    }
}

/// 32 and 64 bits.
#[rustfmt::skip]
pub(super) fn whole_numbers(name: &str) -> Option<LaneOperation> {
    use Type::{Bits16 as I, Bits32 as B, Bits64 as W, Signed64 as S};
    match name {
        "v_add_nc_u32" => hot!([B; 3], B, |a, b, _, _| (a as u32).wrapping_add(b as u32) as u64),
        "v_sub_nc_u32" => hot!([B; 3], B, |a, b, _, _| (a as u32).wrapping_sub(b as u32) as u64),
        "v_subrev_nc_u32" => hot!([B; 3], B, |a, b, _, _| (b as u32).wrapping_sub(a as u32) as u64),
        "v_add_nc_i32" => hot!([B; 3], B, |a, b, _, _| (a as u32).wrapping_add(b as u32) as u64),
        "v_sub_nc_i32" => hot!([B; 3], B, |a, b, _, _| (a as u32).wrapping_sub(b as u32) as u64),
        "v_add3_u32" => hot!([B; 3], B, |a, b, c, _| (a as u32).wrapping_add(b as u32).wrapping_add(c as u32) as u64),
        "v_mul_lo_u32" | "v_mul_lo_i32" => hot!([B; 3], B, |a, b, _, _| (a as u32).wrapping_mul(b as u32) as u64),
        "v_mul_hi_u32" => hot!([B; 3], B, |a, b, _, _| (a as u32 as u64 * b as u32 as u64) >> 32),
        "v_mul_hi_i32" => hot!([B; 3], B, |a, b, _, _| ((a as i32 as i64 * b as i32 as i64) >> 32) as u32 as u64),
        "v_mul_u32_u24" => hot!([B; 3], B, |a, b, _, _| ((a & 0xff_ffff) * (b & 0xff_ffff)) as u32 as u64),
        "v_mul_i32_i24" => hot!([B; 3], B, |a, b, _, _| (sign24(a) * sign24(b)) as u32 as u64),
        "v_mul_hi_u32_u24" => op!([B; 3], B, |a, b, _, _| ((a & 0xff_ffff) * (b & 0xff_ffff)) >> 32),
        "v_mul_hi_i32_i24" => op!([B; 3], B, |a, b, _, _| ((sign24(a) * sign24(b)) >> 32) as u32 as u64),
        "v_mad_u32_u16" => op!([I, I, B], B, |a, b, c, _| (a as u16 as u32 * b as u16 as u32).wrapping_add(c as u32) as u64),
        "v_mad_i32_i16" => op!([I, I, B], B, |a, b, c, _| (a as i16 as i32 * b as i16 as i32).wrapping_add(c as i32) as u32 as u64),
        "v_cvt_pk_u16_u32" => hot!([B; 3], B, |a, b, _, _| a.min(0xffff) | b.min(0xffff) << 16),
        "v_cvt_pk_i16_i32" => op!([B; 3], B, |a, b, _, _| {
            let narrow = |value: u64| (value as i32).clamp(i16::MIN as i32, i16::MAX as i32) as u16 as u64;
            narrow(a) | narrow(b) << 16
        }),
        "v_mad_u32_u24" => hot!([B; 3], B, |a, b, c, _| (((a & 0xff_ffff) * (b & 0xff_ffff)) as u32).wrapping_add(c as u32) as u64),
        "v_mad_i32_i24" => hot!([B; 3], B, |a, b, c, _| ((sign24(a) * sign24(b)) as u32).wrapping_add(c as u32) as u64),
        "v_min_u32" => hot!([B; 3], B, |a, b, _, _| a.min(b)),
        "v_max_u32" => hot!([B; 3], B, |a, b, _, _| a.max(b)),
        "v_min_i32" => hot!([B; 3], B, |a, b, _, _| (a as i32).min(b as i32) as u32 as u64),
        "v_max_i32" => hot!([B; 3], B, |a, b, _, _| (a as i32).max(b as i32) as u32 as u64),
        "v_min3_u32" => hot!([B; 3], B, |a, b, c, _| a.min(b).min(c)),
        "v_max3_u32" => hot!([B; 3], B, |a, b, c, _| a.max(b).max(c)),
        "v_min3_i32" => hot!([B; 3], B, |a, b, c, _| (a as i32).min(b as i32).min(c as i32) as u32 as u64),
        "v_max3_i32" => hot!([B; 3], B, |a, b, c, _| (a as i32).max(b as i32).max(c as i32) as u32 as u64),
        "v_med3_i32" => hot!([B; 3], B, |a, b, c, _| median(a as i32, b as i32, c as i32) as u32 as u64),
        "v_med3_u32" => hot!([B; 3], B, |a, b, c, _| median(a as u32, b as u32, c as u32) as u64),
        "v_and_b32" => hot!([B; 3], B, |a, b, _, _| a & b),
        "v_or_b32" => hot!([B; 3], B, |a, b, _, _| a | b),
        "v_xor_b32" => hot!([B; 3], B, |a, b, _, _| a ^ b),
        "v_xnor_b32" => hot!([B; 3], B, |a, b, _, _| !(a ^ b)),
        "v_or3_b32" => hot!([B; 3], B, |a, b, c, _| a | b | c),
        "v_xor3_b32" => hot!([B; 3], B, |a, b, c, _| a ^ b ^ c),
        "v_and_or_b32" => hot!([B; 3], B, |a, b, c, _| a & b | c),
        "v_xad_u32" => hot!([B; 3], B, |a, b, c, _| ((a ^ b) as u32).wrapping_add(c as u32) as u64),
        "v_lshlrev_b32" => hot!([B; 3], B, |a, b, _, _| ((b as u32) << (a & 31)) as u64),
        "v_lshrrev_b32" => hot!([B; 3], B, |a, b, _, _| ((b as u32) >> (a & 31)) as u64),
        "v_ashrrev_i32" => hot!([B; 3], B, |a, b, _, _| ((b as i32) >> (a & 31)) as u32 as u64),
        "v_lshlrev_b64" => wide!([B, W, B], W, |a, b, _, _| b << (a & 63)),
        "v_lshrrev_b64" => wide!([B, W, B], W, |a, b, _, _| b >> (a & 63)),
        "v_ashrrev_i64" => wide!([B, S, B], W, |a, b, _, _| (b as i64 >> (a & 63)) as u64),
        "v_lshl_add_u32" => hot!([B; 3], B, |a, b, c, _| ((a as u32) << (b & 31)).wrapping_add(c as u32) as u64),
        "v_add_lshl_u32" => hot!([B; 3], B, |a, b, c, _| ((a as u32).wrapping_add(b as u32) << (c & 31)) as u64),
        "v_lshl_or_b32" => hot!([B; 3], B, |a, b, c, _| ((a as u32) << (b & 31)) as u64 | c),
        "v_bfe_u32" => hot!([B; 3], B, |a, b, c, _| (a as u32 >> (b & 31)) as u64 & ((1u64 << (c & 31)) - 1)),
        "v_bfe_i32" => hot!([B; 3], B, |a, b, c, _| {
            let width = (c & 31) as u32;
            if width == 0 { return 0 }
            ((((a as i32 >> (b & 31)) as u32) << (32 - width)) as i32 >> (32 - width)) as u32 as u64
        }),
        "v_bfi_b32" => hot!([B; 3], B, |a, b, c, _| a & b | !a & c),
        "v_bfm_b32" => hot!([B; 3], B, |a, b, _, _| (((1u64 << (a & 31)) - 1) as u32).wrapping_shl(b as u32 & 31) as u64),
        "v_bcnt_u32_b32" => hot!([B; 3], B, |a, b, _, _| (b as u32).wrapping_add((a as u32).count_ones()) as u64),
        "v_alignbit_b32" => hot!([B; 3], B, |a, b, c, _| ((a << 32 | b & 0xffff_ffff) >> (c & 31)) as u32 as u64),
        "v_alignbyte_b32" => hot!([B; 3], B, |a, b, c, _| ((a << 32 | b & 0xffff_ffff) >> ((c & 3) * 8)) as u32 as u64),
        "v_perm_b32" => hot!([B; 3], B, |a, b, c, _| permute_bytes(a as u32, b as u32, c as u32) as u64),
        _ => None,
    }
}

/// Sixteen bits; the result goes to half a register, as halves do.
#[rustfmt::skip]
pub(crate) fn sixteen_bits(name: &str) -> Option<LaneOperation> {
    use Type::{Bits16 as I, Bits32 as B};
    match name {
        "v_add_nc_u16" | "v_add_nc_i16" => op!([I, I, B], I, |a, b, _, _| (a as u16).wrapping_add(b as u16) as u64),
        "v_sub_nc_u16" | "v_sub_nc_i16" => op!([I, I, B], I, |a, b, _, _| (a as u16).wrapping_sub(b as u16) as u64),
        "v_mul_lo_u16" => op!([I, I, B], I, |a, b, _, _| (a as u16).wrapping_mul(b as u16) as u64),
        "v_mad_u16" | "v_mad_i16" => op!([I; 3], I, |a, b, c, _| (a as u16).wrapping_mul(b as u16).wrapping_add(c as u16) as u64),
        "v_lshlrev_b16" => op!([I, I, B], I, |a, b, _, _| ((b as u16) << (a & 15)) as u64),
        "v_lshrrev_b16" => op!([I, I, B], I, |a, b, _, _| ((b as u16) >> (a & 15)) as u64),
        "v_ashrrev_i16" => op!([I, I, B], I, |a, b, _, _| ((b as i16) >> (a & 15)) as u16 as u64),
        "v_max_u16" => op!([I, I, B], I, |a, b, _, _| (a as u16).max(b as u16) as u64),
        "v_min_u16" => op!([I, I, B], I, |a, b, _, _| (a as u16).min(b as u16) as u64),
        "v_max_i16" => op!([I, I, B], I, |a, b, _, _| (a as i16).max(b as i16) as u16 as u64),
        "v_min_i16" => op!([I, I, B], I, |a, b, _, _| (a as i16).min(b as i16) as u16 as u64),
        "v_min3_u16" => op!([I; 3], I, |a, b, c, _| (a as u16).min(b as u16).min(c as u16) as u64),
        "v_max3_u16" => op!([I; 3], I, |a, b, c, _| (a as u16).max(b as u16).max(c as u16) as u64),
        "v_med3_u16" => op!([I; 3], I, |a, b, c, _| median(a as u16, b as u16, c as u16) as u64),
        "v_min3_i16" => op!([I; 3], I, |a, b, c, _| (a as i16).min(b as i16).min(c as i16) as u16 as u64),
        "v_max3_i16" => op!([I; 3], I, |a, b, c, _| (a as i16).max(b as i16).max(c as i16) as u16 as u64),
        "v_med3_i16" => op!([I; 3], I, |a, b, c, _| median(a as i16, b as i16, c as i16) as u16 as u64),
        _ => None,
    }
}
