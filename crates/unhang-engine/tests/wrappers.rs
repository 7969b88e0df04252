//! Tiles of another engine are exact to the last pixel.

use proptest::prelude::*;
use unhang_conv::DataType;
use unhang_engine::{EngineError, Reference, Tiled};
use unhang_suite::{CheckFailure, any_problem, check};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn tiles_are_exact(problem in any_problem(DataType::F64), limit in 1usize..8, seed in any::<u64>()) {
        check(&Tiled::new(Reference, limit), &problem, seed).map_err(|failure| TestCaseError::fail(failure.to_string()))?;
    }

    #[test]
    fn tiles_in_single_precision_are_exact(problem in any_problem(DataType::F32), limit in 2usize..8, seed in any::<u64>()) {
        check(&Tiled::new(Reference, limit), &problem, seed).map_err(|failure| TestCaseError::fail(failure.to_string()))?;
    }

    #[test]
    fn sixteen_bit_tiles_are_declined(problem in any_problem(DataType::F16)) {
        let failure = check(&Tiled::new(Reference, 4), &problem, 0).unwrap_err();
        prop_assert!(matches!(failure, CheckFailure::Engine(EngineError::Unsupported(_))));
    }
}
