//! 2/π in segments, for the reduction of trigonometric arguments (`v_trig_preop_f64`).

use crate::float::{FloatMode, scaled_double};

/// The number of bits of it that the hardware has.
const BITS: usize = 1201;
/// The bits after the binary point, the first one highest; computed by Machin's formula, cut off after [`BITS`].
#[rustfmt::skip]
const TWO_OVER_PI: [u64; BITS.div_ceil(64)] = [
    0xa2f9_836e_4e44_1529, 0xfc27_57d1_f534_ddc0, 0xdb62_9599_3c43_9041, 0xfe51_63ab_debb_c561,
    0xb724_6e3a_424d_d2e0, 0x0649_2eea_09d1_921c, 0xfe1d_eb1c_b129_a73e, 0xe882_35f5_2ebb_4484,
    0xe99c_7026_b45f_7e41, 0x3991_d639_8353_39f4, 0x9c84_5f8b_bdf9_283b, 0x1ff8_97ff_de05_980f,
    0xef2f_118b_5a0a_6d1f, 0x6d36_7ecf_27cb_09b7, 0x4f46_3f66_9e5f_ea2d, 0x7527_bac7_ebe5_f17b,
    0x3d07_39f7_8a52_92ea, 0x6bfb_5fb1_1f8d_5d08, 0x5603_3046_fc7b_0000,
];

/// 53 bits of 2/π in their position: those of the selected segment, counted from where they begin to matter for an
/// argument of this size. For large arguments they are scaled by 2^128, so that they are not denormal. (Source: AMD's
/// RDNA instruction set, V_TRIG_PREOP_F64.)
pub(crate) fn segment(value: f64, select: u32, mode: FloatMode) -> u64 {
    let exponent = (value.to_bits() >> 52 & 0x7ff) as usize;
    let first = (select & 31) as usize * 53 + exponent.saturating_sub(1077);
    let bits = (first..first + 53).fold(0u64, |bits, index| bits << 1 | bit(index));
    let scale = if exponent >= 1968 { 128 } else { 0 };
    scaled_double(bits as f64, scale - 53 - first as i32, mode)
}

fn bit(index: usize) -> u64 {
    TWO_OVER_PI.get(index / 64).map_or(0, |word| word >> (63 - index % 64) & 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_bits_are_those_of_two_over_pi() {
        let mut sum = 0.0;
        for index in (0..120).rev() {
            sum += bit(index) as f64 * 0.5f64.powi(index as i32 + 1);
        }
        assert_eq!(sum, std::f64::consts::FRAC_2_PI);
        assert!((BITS..BITS + 200).all(|index| bit(index) == 0));
    }
}
