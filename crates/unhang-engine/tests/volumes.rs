//! 3-d convolutions, folded, against their definition.

use proptest::prelude::*;
use unhang_conv::DataType;
use unhang_engine::Reference;
use unhang_suite::{any_volume, check_volume};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn a_folded_convolution_is_what_its_definition_says(volume in any_volume(DataType::F64), seed in any::<u64>()) {
        check_volume(&Reference, &volume, seed).map_err(|failure| TestCaseError::fail(failure.to_string()))?;
    }
}
