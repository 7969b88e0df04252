//! Reductions against their definition, on thousands of random problems.

use std::collections::BTreeMap;

use unhang_conv::DataType;
use unhang_gpu::reduction::ReductionKind;

use crate::engine;
use crate::normalization::Host;
use crate::reductions::Case;

#[test]
fn random_reductions_are_right() {
    let Some(engine) = engine() else { return };
    let mut counts = BTreeMap::new();
    for data_type in DataType::ALL {
        for kind in ReductionKind::ALL {
            for seed in 0..120 {
                let case = Case::random(seed, data_type, kind);
                if let Err(wrong) = case.check(&engine.gpu, &mut Host::default()) {
                    panic!("{wrong} in {case:?}");
                }
                let [_, others @ ..] = case.task.way(36).near();
                let way = others[case.seed as usize / 4 % others.len()];
                if let Err(wrong) = case.check_by(way, &engine.gpu, &mut Host::default()) {
                    panic!("{wrong} in {way} of {case:?}");
                }
                let task = &case.task;
                for (what, is) in [
                    ("all", true),
                    ("in chunks", case.is_divided()),
                    ("in fours", case.is_in_quads()),
                    ("along three axes and more", task.reduced.iter().filter(|axis| axis.size > 1).count() > 2),
                    ("to more than two axes", task.kept.iter().filter(|axis| axis.size > 1).count() > 2),
                    ("with indices", case.keeps_indices),
                    ("with what was there", task.factors[1] != 0.0),
                    ("to another type", task.result_type != data_type),
                ] {
                    *counts.entry(what).or_insert(0) += usize::from(is);
                }
            }
        }
    }
    println!("{counts:?}");
    assert!(counts["all"] == 3840 && counts.values().all(|&count| count > 100), "{counts:?}");
}
