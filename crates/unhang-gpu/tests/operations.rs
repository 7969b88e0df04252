//! Batch normalisation, pooling and reductions on the emulated card: compiled by hiprtc for gfx1010, executed instruction by
//! instruction with the hazards of that chip and races between waves checked, and compared with the definition.

mod normalizations;
mod numbers;
mod on_card;
mod poolings;
mod reductions;

use std::path::Path;
use std::sync::Arc;

use normalizations::{Case, OPERATIONS};
use on_card::OnCard;
use poolings::KINDS;
use unhang_conv::DataType;
use unhang_gpu::GpuSettings;
use unhang_gpu::compiler::Hiprtc;
use unhang_gpu::driver::{Emulated, EmulatedEngine};
use unhang_gpu::normalization::{ActivationKind, Operation};
use unhang_gpu::reduction::ReductionKind;
use unhang_isa::Chip;

/// The card as it is, with races checked, and retagged for the runtime of a spoof. None without a compiler.
fn engines(folder: &Path) -> Option<[EmulatedEngine; 2]> {
    let compiler = match Hiprtc::find() {
        Ok(compiler) => Arc::new(compiler),
        Err(error) => {
            println!("skipped: {error}");
            return None;
        }
    };
    let settings = GpuSettings {
        workspace_limit: None,
        cache_folder: Some(folder.to_owned()),
        cache_limit: 1 << 26,
        shipped_folder: None,
    };
    Some([Chip::Gfx1010, Chip::Gfx1030].map(|reported| {
        let card = Emulated::new(Chip::Gfx1010, reported, Chip::Gfx1010, compiler.clone());
        card.mind_races(reported == Chip::Gfx1010);
        EmulatedEngine::new(card, settings.clone())
    }))
}

#[test]
fn every_kernel_for_pooling_is_right_on_the_emulated_card() {
    let folder = tempfile::tempdir().unwrap();
    let Some(engines) = engines(folder.path()) else { return };
    let mut count = 0;
    for data_type in DataType::ALL {
        for kind in KINDS {
            for backward in [false, true] {
                let cases = || (0..200).map(|seed| poolings::Case::random(seed, data_type, kind, backward));
                // Every way through the kernels: windows of 2 and 3 columns, more, three axes, channels last.
                let ways: [&dyn Fn(&poolings::Case) -> bool; 5] = [
                    &|it| it.task.sizes.window[2] == 2 && it.keeps_indices,
                    &|it| it.task.sizes.window[2] == 3 && it.task.factors[1] != 0.0,
                    &|it| it.task.sizes.window[2] > 3 && it.task.sizes.stride[2] == 1,
                    &|it| it.task.sizes.input[0] > 2,
                    &|it| it.task.x[1] == 1 && it.task.y[1] == 1 && it.task.sizes.channels > 2,
                ];
                for (turn, way) in ways.iter().enumerate() {
                    let case = cases().find(|case| way(case)).expect("a case of each kind");
                    let engine = &engines[(turn + usize::from(backward)) % 2];
                    if let Err(wrong) = case.check(&engine.gpu, &mut OnCard(&engine.card)) {
                        panic!("{wrong} in {case:?}");
                    }
                    count += 1;
                }
            }
        }
    }
    println!("{count} poolings: {}", engines[0].card.counts());
}

#[test]
fn every_kernel_for_reductions_is_right_on_the_emulated_card() {
    let folder = tempfile::tempdir().unwrap();
    let Some(engines) = engines(folder.path()) else { return };
    let mut count = 0;
    for data_type in DataType::ALL {
        for kind in ReductionKind::ALL {
            let cases = || (0..400).map(|seed| reductions::Case::random(seed, data_type, kind));
            let axes = |it: &reductions::Case| it.task.reduced.iter().filter(|axis| axis.size > 1).count();
            // Every way through the kernels: divided, in fours, neighbours together, many axes, and to another type.
            let ways: [&dyn Fn(&reductions::Case) -> bool; 5] = [
                &|it| it.is_divided(),
                &|it| data_type == DataType::F64 || it.is_in_quads() && it.task.count() > 30,
                &|it| it.task.kept[5].x == 1 && it.task.units() > 4 && it.task.count() > 4,
                &|it| axes(it) > 2 && (it.keeps_indices || !kind.is_extreme()),
                &|it| it.task.factors[1] != 0.0 && (data_type == DataType::F32 || it.task.result_type != data_type),
            ];
            for (turn, way) in ways.iter().enumerate() {
                let case = cases().find(|case| way(case)).expect("a case of each kind");
                let engine = &engines[(turn + kind as usize) % 2];
                if let Err(wrong) = case.check(&engine.gpu, &mut OnCard(&engine.card)) {
                    panic!("{wrong} in {case:?}");
                }
                count += 1;
            }
        }
    }
    println!("{count} reductions: {}", engines[0].card.counts());
}

#[test]
fn every_kernel_for_normalisation_is_right_on_the_emulated_card() {
    let folder = tempfile::tempdir().unwrap();
    let Some(engines) = engines(folder.path()) else { return };
    let mut count = 0;
    for data_type in DataType::ALL {
        for operation in OPERATIONS {
            let cases = || (0..3000).map(|seed| Case::random(seed, data_type, operation, 700));
            let is_wide = |case: &Case| case.task.x.channel == 1 && case.task.x.pixel != 1;
            let divided = |wide: bool| cases().find(|case| case.is_divided() && is_wide(case) == wide);
            let activated =
                cases().filter(|case| !case.is_divided() && case.task.activation.kind != ActivationKind::Identity);
            // Several groups of four for a thread, in several chunks where there are any.
            let in_quads = cases().find(|case| {
                let count = case.task.sizes.batch * case.task.sizes.pixels;
                let has_chunks = case.is_divided() || operation == Operation::Apply;
                case.is_in_quads(true) && has_chunks && count > 3000
            });
            let chosen: Vec<Case> =
                activated.take(3).chain(divided(false)).chain(divided(true)).chain(in_quads).collect();
            let expected = if operation == Operation::Apply { 3 } else { 5 };
            assert_eq!(chosen.len(), expected + usize::from(data_type != DataType::F64), "{data_type} {operation:?}");
            for (turn, case) in chosen.iter().enumerate() {
                let engine = &engines[turn % 2];
                if let Err(wrong) = case.check(&engine.gpu, &mut OnCard(&engine.card)) {
                    panic!("{wrong} in {case:?}");
                }
                count += 1;
            }
        }
    }
    println!("{count} normalisations: {}", engines[0].card.counts());
}
