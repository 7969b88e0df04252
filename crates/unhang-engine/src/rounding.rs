//! How far the first result of a kernel may be from the definition before it counts as wrong.

use unhang_conv::DataType;

/// The error that rounding explains. `scale` is the largest sum of the products' magnitudes: sums are made in single precision (in
/// double for doubles). `largest` is the largest result, which is rounded to its type.
pub fn explained_by_rounding(data_type: DataType, scale: f64, largest: f64) -> f64 {
    let (summing, rounding, least) = match data_type {
        DataType::F32 => (3e-5, 1e-5, f64::from(f32::from_bits(1))),
        DataType::F16 => (3e-5, 1e-3, half::f16::from_bits(1).to_f64()),
        DataType::Bf16 => (3e-5, 8e-3, half::bf16::from_bits(1).to_f64()),
        DataType::F64 => (1e-12, 1e-12, f64::from_bits(1)),
    };
    // A step among the smallest numbers of the type is rounding too: gradients in f16 live there.
    summing * scale + rounding * largest + least
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_type_is_rounded_as_it_is() {
        let explained = |data_type| explained_by_rounding(data_type, 10.0, 1.0);
        assert!(explained(DataType::F64) < 1e-10 && explained(DataType::F32) < 1e-3);
        assert!(explained(DataType::Bf16) > 5.0 * explained(DataType::F16));
        assert!(explained_by_rounding(DataType::F16, 0.0, 0.0) > 5e-8, "the smallest number of the type");
    }
}
