//! How far a result may be from the correct one: every such limit, by its purpose.
//!
//! | for | figure |
//! |---|---|
//! | tests of engines, the doctor's CPU trial | [`Tolerance::of`] |
//! | the first result of a kernel in the user's process | [`explained_by_rounding`] |
//! | a canary, which compares with the CPU | [`canary`] |
//! | a probe's verdict *wrong* | [`nonsense`] |

use unhang_conv::DataType;

/// How far a result may be from the f64 reference.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tolerance {
    /// Relative error in the L2 norm.
    pub l2: f64,
    /// Largest error of one element, relative to the largest element of the reference.
    pub max: f64,
}

impl Tolerance {
    /// The tolerance for results of that type. For 16-bit types it allows one rounding of the result plus one bit,
    /// because sums are kept in f32 or better.
    pub const fn of(data_type: DataType) -> Tolerance {
        match data_type {
            DataType::F32 => Tolerance { l2: 1e-5, max: 3e-5 },
            DataType::F16 => Tolerance { l2: 5e-4, max: 1e-3 },
            DataType::Bf16 => Tolerance { l2: 4e-3, max: 8e-3 },
            DataType::F64 => Tolerance { l2: 1e-13, max: 1e-12 },
        }
    }
}

/// The error that rounding explains. `scale` is the largest sum of the products' magnitudes; sums are made in single
/// precision (in double for doubles). `largest` is the largest result, which is rounded to its type.
pub fn explained_by_rounding(data_type: DataType, scale: f64, largest: f64) -> f64 {
    let summing = Tolerance::of(if data_type == DataType::F64 { DataType::F64 } else { DataType::F32 }).max;
    let (rounding, least) = match data_type {
        DataType::F32 => (Tolerance::of(DataType::F32).l2, f64::from(f32::from_bits(1))),
        DataType::F16 => (Tolerance::of(DataType::F16).max, half::f16::from_bits(1).to_f64()),
        DataType::Bf16 => (Tolerance::of(DataType::Bf16).max, half::bf16::from_bits(1).to_f64()),
        DataType::F64 => (Tolerance::of(DataType::F64).max, f64::from_bits(1)),
    };
    // A step between the type's smallest values is rounding too. Gradients in f16 are that small.
    summing * scale + rounding * largest + least
}

/// How far an element of a canary's result may be from the CPU's, relative to the largest. Twice an engine's
/// tolerance, because both sides round; more in f32, where the order of summation causes most of the error.
pub const fn canary(data_type: DataType) -> f64 {
    match data_type {
        DataType::F32 => 1e-4,
        other => 2.0 * Tolerance::of(other).max,
    }
}

/// How far an element may be from the CPU engine's, relative to the largest, before a probe calls the engine wrong.
/// *Wrong* means nonsense, not rounding: engines may sum in another order or use Winograd's algorithm. The record
/// keeps their error in any case.
pub const fn nonsense(data_type: DataType) -> f64 {
    match data_type {
        DataType::F64 => 1e-9,
        DataType::F32 => 1e-3,
        DataType::F16 => 2e-2,
        DataType::Bf16 => 5e-2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TYPES: [DataType; 4] = [DataType::F64, DataType::F32, DataType::F16, DataType::Bf16];

    #[test]
    fn each_type_is_rounded_as_it_is() {
        let explained = |data_type| explained_by_rounding(data_type, 10.0, 1.0);
        assert!(explained(DataType::F64) < 1e-10 && explained(DataType::F32) < 1e-3);
        assert!(explained(DataType::Bf16) > 5.0 * explained(DataType::F16));
        assert!(explained_by_rounding(DataType::F16, 0.0, 0.0) > 5e-8, "the smallest number of the type");
    }

    #[test]
    fn what_an_engine_may_do_passes_a_canary_and_what_a_canary_passes_is_not_nonsense() {
        for data_type in TYPES {
            assert!(Tolerance::of(data_type).max < canary(data_type), "{data_type}");
            assert!(canary(data_type) < nonsense(data_type), "{data_type}");
        }
    }
}
