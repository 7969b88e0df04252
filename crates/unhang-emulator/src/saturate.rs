//! Saturating integers: what integer instructions compute with `clamp`.

use crate::lanes::operation::{LaneOperation, op, sign24};
use crate::lanes::whole;
use crate::wave::Type;

fn unsigned16(value: u64) -> u64 {
    value.min(u16::MAX as u64)
}

fn unsigned32(value: u64) -> u64 {
    value.min(u32::MAX as u64)
}

fn signed16(value: i64) -> u64 {
    value.clamp(i16::MIN as i64, i16::MAX as i64) as u16 as u64
}

fn signed32(value: i64) -> u64 {
    value.clamp(i32::MIN as i64, i32::MAX as i64) as u32 as u64
}

/// The sum of absolute differences of parts of this many bits.
pub(crate) fn absolute_differences(a: u64, b: u64, bits: u32) -> u64 {
    let mask = (1u64 << bits) - 1;
    (0..32 / bits).map(|part| (a >> (part * bits) & mask).abs_diff(b >> (part * bits) & mask)).sum()
}

/// The sum of absolute differences of bytes, except those that are zero in `b`.
pub(crate) fn masked_differences(a: u64, b: u64) -> u64 {
    let byte = |value: u64, part: u32| value >> (part * 8) & 0xff;
    (0..4).filter(|&part| byte(b, part) != 0).map(|part| byte(a, part).abs_diff(byte(b, part))).sum()
}

/// What an instruction computes with `clamp`, by name; `None` if nothing saturates.
#[rustfmt::skip]
pub(crate) fn operation(name: &str) -> Option<LaneOperation> {
    use Type::{Bits16 as I, Bits32 as B};
    match name {
        "v_add_nc_u32" => op!([B; 3], B, |a, b, _, _| unsigned32(a + b)),
        "v_sub_nc_u32" => op!([B; 3], B, |a, b, _, _| a.saturating_sub(b)),
        "v_subrev_nc_u32" => op!([B; 3], B, |a, b, _, _| b.saturating_sub(a)),
        "v_add_nc_i32" => op!([B; 3], B, |a, b, _, _| signed32(a as i32 as i64 + b as i32 as i64)),
        "v_sub_nc_i32" => op!([B; 3], B, |a, b, _, _| signed32(a as i32 as i64 - b as i32 as i64)),
        "v_mul_u32_u24" => op!([B; 3], B, |a, b, _, _| unsigned32((a & 0xff_ffff) * (b & 0xff_ffff))),
        "v_mul_i32_i24" => op!([B; 3], B, |a, b, _, _| signed32(sign24(a) * sign24(b))),
        "v_mad_u32_u24" => op!([B; 3], B, |a, b, c, _| unsigned32((a & 0xff_ffff) * (b & 0xff_ffff) + c)),
        "v_mad_i32_i24" => op!([B; 3], B, |a, b, c, _| signed32(sign24(a) * sign24(b) + c as i32 as i64)),
        "v_mad_u32_u16" => op!([I, I, B], B, |a, b, c, _| unsigned32(a as u16 as u64 * b as u16 as u64 + c)),
        "v_mad_i32_i16" => op!([I, I, B], B, |a, b, c, _| signed32(a as i16 as i64 * b as i16 as i64 + c as i32 as i64)),
        "v_sad_u8" => op!([B; 3], B, |a, b, c, _| unsigned32(absolute_differences(a, b, 8) + c)),
        "v_sad_hi_u8" => op!([B; 3], B, |a, b, c, _| unsigned32((absolute_differences(a, b, 8) << 16) + c)),
        "v_sad_u16" => op!([B; 3], B, |a, b, c, _| unsigned32(absolute_differences(a, b, 16) + c)),
        "v_sad_u32" => op!([B; 3], B, |a, b, c, _| unsigned32(a.abs_diff(b) + c)),
        "v_msad_u8" => op!([B; 3], B, |a, b, c, _| unsigned32(masked_differences(a, b) + c)),
        "v_add_nc_u16" => op!([I, I, B], I, |a, b, _, _| unsigned16(a as u16 as u64 + b as u16 as u64)),
        "v_sub_nc_u16" => op!([I, I, B], I, |a, b, _, _| (a as u16).saturating_sub(b as u16) as u64),
        "v_add_nc_i16" => op!([I, I, B], I, |a, b, _, _| signed16(a as i16 as i64 + b as i16 as i64)),
        "v_sub_nc_i16" => op!([I, I, B], I, |a, b, _, _| signed16(a as i16 as i64 - b as i16 as i64)),
        "v_mul_lo_u16" => op!([I, I, B], I, |a, b, _, _| unsigned16(a as u16 as u64 * b as u16 as u64)),
        "v_mad_u16" => op!([I; 3], I, |a, b, c, _| unsigned16(a as u16 as u64 * b as u16 as u64 + c as u16 as u64)),
        "v_mad_i16" => op!([I; 3], I, |a, b, c, _| signed16(a as i16 as i64 * b as i16 as i64 + c as i16 as i64)),
        // These cannot leave the range of their sources.
        "v_min3_i16" | "v_min3_u16" | "v_max3_i16" | "v_max3_u16" | "v_med3_i16" | "v_med3_u16"
        | "v_max_u16" | "v_min_u16" | "v_max_i16" | "v_min_i16" => whole::sixteen_bits(name),
        _ => None,
    }
}
