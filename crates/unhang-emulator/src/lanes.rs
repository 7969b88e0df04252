//! What vector instructions compute, lane by lane: pure functions of up to three values, found by name.
//!
//! Add, subtract, multiply, fma, conversions and comparisons are exact to the bit in every rounding mode. Reciprocal,
//! square root, exponential, logarithm, sine and cosine are correctly rounded or nearly so. The hardware promises about
//! one unit in the last place, and [`crate::Perturbation`] moves the results by that much.

mod floats;
pub(crate) mod operation;
pub(crate) mod whole;

use crate::bytes;
use crate::saturate;
use operation::{LaneOperation, PackedOperation};

/// What an instruction computes, by its name without `_e32` or `_e64`; `None` if it is not a function of one lane.
pub(crate) fn operation(name: &str) -> Option<LaneOperation> {
    let tables: [fn(&str) -> Option<LaneOperation>; 8] = [
        floats::single_precision,
        whole::whole_numbers,
        whole::bits,
        floats::conversion,
        floats::double_precision,
        floats::half_precision,
        whole::sixteen_bits,
        bytes::operation,
    ];
    tables.into_iter().find_map(|table| table(name))
}

/// The function of one half of a packed instruction, by name; integers saturate with `clamp`.
pub(crate) fn packed_half(name: &str, clamp: bool) -> Option<PackedOperation> {
    let single_name = match name {
        "v_pk_fma_f16" => "v_fma_f16",
        "v_pk_fmac_f16" => "v_fmac_f16",
        "v_pk_add_f16" => "v_add_f16",
        "v_pk_mul_f16" => "v_mul_f16",
        "v_pk_min_f16" => "v_min_f16",
        "v_pk_max_f16" => "v_max_f16",
        "v_pk_add_u16" => "v_add_nc_u16",
        "v_pk_add_i16" => "v_add_nc_i16",
        "v_pk_sub_u16" => "v_sub_nc_u16",
        "v_pk_sub_i16" => "v_sub_nc_i16",
        "v_pk_mul_lo_u16" => "v_mul_lo_u16",
        "v_pk_mad_u16" => "v_mad_u16",
        "v_pk_mad_i16" => "v_mad_i16",
        "v_pk_lshlrev_b16" => "v_lshlrev_b16",
        "v_pk_lshrrev_b16" => "v_lshrrev_b16",
        "v_pk_ashrrev_i16" => "v_ashrrev_i16",
        "v_pk_max_u16" => "v_max_u16",
        "v_pk_min_u16" => "v_min_u16",
        "v_pk_max_i16" => "v_max_i16",
        "v_pk_min_i16" => "v_min_i16",
        _ => return None,
    };
    let operation = match single_name.ends_with("_f16") {
        false if clamp => saturate::operation(single_name)?,
        _ => operation(single_name)?,
    };
    Some(PackedOperation { run: operation.run, half: operation.sources[0], accumulates: operation.accumulates })
}

#[cfg(test)]
mod tests {
    use half::f16;

    use super::*;
    use crate::float::FloatMode;

    fn mode(bits: u32) -> FloatMode {
        FloatMode::from_bits(bits, crate::Perturbation::None)
    }

    const KEEP: u32 = 0xf0;

    fn run(name: &str, a: u64, b: u64, c: u64) -> u64 {
        (operation(name).unwrap_or_else(|| panic!("{name} is not known")).run)(a, b, c, mode(KEEP))
    }

    /// Every pair of a selection of halves, against exact arithmetic in 128-bit integers.
    #[test]
    fn half_precision_fma_rounds_once() {
        let exact = |bits: u16| -> i128 {
            // In units of 2^-24 every half is an integer.
            (f16::from_bits(bits).to_f64() * 16_777_216.0) as i128
        };
        let halves: Vec<u16> = (0..0x7c00u16).step_by(997).flat_map(|bits| [bits, bits | 0x8000]).collect();
        for &a in &halves {
            for &b in &halves {
                for &c in halves.iter().step_by(7) {
                    let sum = exact(a) * exact(b) + (exact(c) << 24);
                    let found = f16::from_bits(run("v_fma_f16", a as u64, b as u64, c as u64) as u16);
                    if found.is_infinite() {
                        assert!(sum.unsigned_abs() >= 65520u128 << 48);
                        continue;
                    }
                    // No neighbour is nearer.
                    let distance = |bits: u16| ((exact(bits) << 24) - sum).unsigned_abs();
                    for neighbour in [found.to_bits().wrapping_add(1), found.to_bits().wrapping_sub(1)] {
                        if f16::from_bits(neighbour).is_finite() {
                            assert!(distance(found.to_bits()) <= distance(neighbour), "{a:#x} {b:#x} {c:#x}");
                        }
                    }
                }
            }
        }
    }
}
