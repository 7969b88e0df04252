//! Pooling against its definition, on thousands of random problems.

use std::collections::BTreeMap;

use unhang_conv::DataType;

use crate::engine;
use crate::normalization::Host;
use crate::poolings::{Case, KINDS};

#[test]
fn random_poolings_are_right() {
    let Some(engine) = engine() else { return };
    let mut counts = BTreeMap::new();
    for data_type in DataType::ALL {
        for kind in KINDS {
            for backward in [false, true] {
                for seed in 0..120 {
                    let case = Case::random(seed, data_type, kind, backward);
                    if let Err(wrong) = case.check(&engine.gpu, &mut Host::default()) {
                        panic!("{wrong} in {case:?}");
                    }
                    let [_, others @ ..] = case.task.way().near();
                    let way = others[case.seed as usize / 4 % others.len()];
                    if let Err(wrong) = case.check_by(way, &engine.gpu, &mut Host::default()) {
                        panic!("{wrong} in {way} of {case:?}");
                    }
                    let sizes = &case.task.sizes;
                    let outside = (0..3).any(|axis| sizes.padding[axis] >= sizes.window[axis]);
                    for (what, is) in [
                        ("all", true),
                        ("in three axes", sizes.input[0] > 1),
                        ("with windows outside", outside),
                        ("channels last", case.task.x[1] == 1),
                        ("with what was there", case.task.factors[1] != 0.0),
                        ("wide", sizes.window[2] > 3),
                    ] {
                        *counts.entry(what).or_insert(0) += usize::from(is);
                    }
                }
            }
        }
    }
    println!("{counts:?}");
    assert!(counts["all"] == 2880 && counts.values().all(|&count| count > 100), "{counts:?}");
}
