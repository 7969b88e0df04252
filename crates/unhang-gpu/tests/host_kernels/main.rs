//! Every kernel against the plain reference, on the CPU: the kernels' own source, compiled by a host compiler. It shows
//! that indices, edges, phases, splits and transforms are right; what a GPU does with them is measured on one.

mod depthwise;
mod direct;
#[path = "../host/mod.rs"]
mod host;
mod normalization;
#[path = "../normalizations/mod.rs"]
mod normalizations;
#[path = "../numbers/mod.rs"]
mod numbers;
mod pooling;
#[path = "../poolings/mod.rs"]
mod poolings;
mod products;
mod reduction;
#[path = "../reductions/mod.rs"]
mod reductions;
mod serving;
mod winograd;

use host::HostEngine;
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use unhang_conv::{DataType, Direction, Layout, Problem, Specification};
use unhang_engine::tolerance::Tolerance;
use unhang_gpu::choice::{Choice, TILES};
use unhang_gpu::plan::{Form, LaunchPlan};
use unhang_suite::{CheckFailure, any_problem, check};

fn engine() -> Option<HostEngine> {
    let engine = HostEngine::find();
    if engine.is_none() {
        println!("skipped: no clang++ to compile the kernels for the host with");
    }
    engine
}

fn check_choice(engine: &HostEngine, problem: &Problem, choice: Choice, seed: u64) {
    *engine.choice.lock().unwrap() = Some(choice);
    match check(engine, problem, seed) {
        Ok(_) => {}
        // Short sums in f16 are rounded more often than the result: as inexact as bf16 is allowed.
        Err(CheckFailure::Wrong { errors, .. })
            if matches!(choice, Choice::HalfGemm { .. }) && errors.within(Tolerance::of(DataType::Bf16)) => {}
        Err(failure) => panic!("{choice} on {problem}: {failure}"),
    }
}

fn random_problems(data_type: DataType, count: usize) -> Vec<Problem> {
    let seed = [data_type as u8 + 1; 32];
    let mut runner = TestRunner::new_with_rng(Config::default(), TestRng::from_seed(RngAlgorithm::ChaCha, &seed));
    (0..count).map(|_| any_problem(data_type).new_tree(&mut runner).unwrap().current()).collect()
}

#[test]
fn plain_kernels_are_right() {
    let Some(engine) = engine() else { return };
    for data_type in DataType::ALL {
        for (seed, problem) in random_problems(data_type, 24).iter().enumerate() {
            check_choice(&engine, problem, Choice::Plain, seed as u64);
        }
    }
}

#[test]
fn planes_of_3d_tensors_are_gathered_and_put_back() {
    let Some(engine) = engine() else { return };
    host::planes::check(&engine.gpu, &host::HostMemory);
}

/// The choices of every family that a problem allows, one tile each, the tile going round from problem to problem.
fn varied_choices(problem: &Problem, turn: usize) -> Vec<Choice> {
    let tile = TILES[turn % TILES.len()];
    let splits = [1, 3][turn / 2 % 2];
    let mut choices = vec![Choice::Weights { tile, splits }, Choice::Winograd { tile, splits }, Choice::WinogradFused];
    choices.push(Choice::Patches { tile, splits });
    choices.push(Choice::Narrow { strip: 1 + turn as u32 % 4 });
    for width in [2, 4] {
        let strip = problem.lower().problem.stride()[0] as u32;
        choices.extend([1, strip].map(|strip| Choice::Direct { rows: 4 + turn as u32 % 3 * 4, width, strip, splits }));
    }
    choices.dedup();
    for packed in [false, true] {
        for flat in [false, true] {
            choices.push(Choice::Gemm { tile, packed, flat, splits });
        }
        choices.push(Choice::HalfGemm { tile, packed, splits });
    }
    let strip = problem.lower().problem.stride()[0] as u32 * (1 + turn as u32 % 3);
    choices.extend([Choice::Depthwise { strip, splits }, Choice::DepthwiseQuads { strip, splits }]);
    choices.retain(|choice| LaunchPlan::new(problem, choice).is_ok());
    choices
}

#[test]
fn fast_kernels_are_right_on_random_problems() {
    let Some(engine) = engine() else { return };
    let mut families = std::collections::BTreeMap::new();
    for (data_type, count) in [(DataType::F32, 26), (DataType::F16, 5), (DataType::Bf16, 5)] {
        let mut problems = random_problems(data_type, count);
        // Chance gives few gradients of filters that their kernels take: some are made of the others.
        let gradients: Vec<Problem> =
            problems.iter().take(5).map(|it| it.with_direction(Direction::BackwardWeights)).collect();
        problems.extend(gradients);
        for (turn, problem) in problems.iter().enumerate() {
            for choice in varied_choices(problem, turn) {
                check_choice(&engine, problem, choice, turn as u64);
                *families.entry(choice.family()).or_insert(0) += 1;
            }
        }
    }
    println!("{families:?}");
    assert!(families["gemm"] > 20 && families["weights"] > 5 && families["narrow"] > 3, "{families:?}");
}

/// General kernels are compiled once for many problems, so that many problems can be tried.
#[test]
fn general_kernels_are_right_on_random_problems() {
    let Some(engine) = engine() else { return };
    *engine.form.lock().unwrap() = Form::General;
    let mut families = std::collections::BTreeMap::new();
    for (data_type, count) in [(DataType::F32, 90), (DataType::F16, 20), (DataType::Bf16, 20)] {
        let mut problems = random_problems(data_type, count);
        for (layout, kernel) in [(Layout::Nchw, 3), (Layout::Nhwc, 3), (Layout::Nchw, 5), (Layout::Nhwc, 5)] {
            // Chance finds few squares of stride 1 without groups: Winograd's.
            let (padding, kernel) = ([kernel / 2, 1], [kernel, kernel]);
            let channels =
                Specification { in_channels: 17, out_channels: 35, in_size: [9, 10], ..Specification::default() };
            problems.push(problem(Specification { kernel, padding, layout, data_type, ..channels }));
        }
        for (turn, any) in problems.iter().enumerate() {
            for direction in Direction::ALL {
                let problem = any.with_direction(direction);
                // A few tiles, so that few kernels are compiled; `shipped_kernels` sees all of them.
                let choices: std::collections::BTreeSet<Choice> = varied_choices(&problem, [0, 3, 6, 9][turn % 4])
                    .into_iter()
                    .filter_map(Choice::as_general)
                    .filter(|choice| !matches!(choice, Choice::Depthwise { .. } | Choice::DepthwiseQuads { .. }))
                    .collect();
                for choice in choices {
                    if LaunchPlan::general(&problem, &choice).is_ok() {
                        check_choice(&engine, &problem, choice, turn as u64);
                        *families.entry(choice.family()).or_insert(0) += 1;
                    }
                }
            }
        }
    }
    println!("{families:?}, {} kernels compiled", engine.gpu.compiled());
    assert!(families["gemm"] > 100 && families["weights"] > 50 && families["winograd"] > 20, "{families:?}");
}

fn problem(specification: Specification) -> Problem {
    Problem::new(specification).unwrap()
}
