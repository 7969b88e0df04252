//! Every kernel against the plain reference, on the CPU: the kernels' own source, compiled by a host compiler. It shows
//! that indices, edges, phases, splits and transforms are right; what a GPU does with them is measured on one.

mod host;

use std::time::Duration;

use host::{CAPTURING_STREAM, HostEngine};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use unhang_conv::{DataType, Direction, Layout, Problem, Specification};
use unhang_engine::Tuned;
use unhang_engine::tolerance::Tolerance;
use unhang_gpu::choice::{Choice, TILES};
use unhang_gpu::plan::{Form, LaunchPlan};
use unhang_gpu::tuning::{Times, is_current, tuned};
use unhang_gpu::{GpuError, Request};
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

/// The choices of every family that a problem allows, one tile each, the tile going round from problem to problem.
fn varied_choices(problem: &Problem, turn: usize) -> Vec<Choice> {
    let tile = TILES[turn % TILES.len()];
    let splits = [1, 3][turn / 2 % 2];
    let mut choices = vec![Choice::Weights { tile, splits }, Choice::Winograd { tile, splits }, Choice::WinogradFused];
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

#[test]
fn depthwise_kernels_are_right() {
    let Some(engine) = engine() else { return };
    let mut turn = 0;
    for (layout, multiplier, kernel, stride, dilation) in [
        (Layout::Nchw, 1, 3, 1, 1),
        (Layout::Nchw, 2, 3, 2, 1),
        (Layout::Nhwc, 1, 5, 2, 1),
        (Layout::Nhwc, 3, 3, 1, 2),
        (Layout::Nchw, 1, 5, 3, 1),
    ] {
        for direction in Direction::ALL {
            let problem = problem(Specification {
                batch: 2,
                in_channels: 35,
                out_channels: 35 * multiplier,
                groups: 35,
                in_size: [13, 11],
                kernel: [kernel, kernel],
                stride: [stride, stride],
                dilation: [dilation, dilation],
                padding: [kernel / 2, 1],
                layout,
                direction,
                ..Specification::default()
            });
            for strip in [1, 4] {
                turn += 1;
                let strip = (strip * stride) as u32;
                check_choice(&engine, &problem, Choice::Depthwise { strip, splits: 3 }, turn);
            }
        }
    }
}

#[test]
fn depthwise_kernels_in_vectors_are_right() {
    let Some(engine) = engine() else { return };
    for (turn, (layout, size, kernel, stride, dilation, data_type)) in [
        (Layout::Nchw, [9, 12], 3, 1, 1, DataType::F32),
        (Layout::Nchw, [9, 16], 3, 2, 1, DataType::F16),
        (Layout::Nchw, [8, 8], 5, 1, 1, DataType::Bf16),
        (Layout::Nchw, [8, 12], 5, 1, 1, DataType::F16),
        (Layout::Nchw, [7, 10], 3, 1, 2, DataType::F32),
        (Layout::Nhwc, [7, 9], 3, 1, 1, DataType::F16),
        (Layout::Nhwc, [8, 7], 3, 2, 1, DataType::F32),
        (Layout::Nhwc, [6, 7], 5, 1, 1, DataType::F32),
    ]
    .into_iter()
    .enumerate()
    {
        for direction in Direction::ALL {
            let problem = problem(Specification {
                batch: 2,
                in_channels: 36,
                out_channels: 36,
                groups: 36,
                in_size: size,
                kernel: [kernel, kernel],
                stride: [stride, stride],
                dilation: [dilation, dilation],
                padding: [kernel / 2 * dilation, kernel / 2 * dilation],
                layout,
                direction,
                data_type,
                ..Specification::default()
            });
            let strip = match (turn, layout, kernel) {
                (0, ..) => 4,
                (_, Layout::Nhwc, 5) => 1,
                _ => 2,
            };
            let choice = Choice::DepthwiseQuads { strip, splits: 3 };
            if layout == Layout::Nchw || direction != Direction::BackwardData {
                check_choice(&engine, &problem, choice, turn as u64);
            } else {
                assert!(LaunchPlan::new(&problem, &choice).is_err());
            }
        }
    }
}

#[test]
fn direct_kernels_are_right() {
    let Some(engine) = engine() else { return };
    for (turn, (channels, kernel, stride, dilation, size, [rows, width, strip], data_type)) in [
        ([7, 18], 1, 1, 1, [6, 10], [8, 4, 1], DataType::F32),
        ([400, 5], 1, 1, 1, [2, 6], [16, 2, 1], DataType::F16),
        ([3, 10], 3, 2, 1, [16, 16], [4, 4, 2], DataType::F32),
        ([3, 10], 3, 2, 1, [9, 12], [12, 2, 2], DataType::Bf16),
        ([6, 4], 3, 1, 1, [7, 8], [4, 4, 4], DataType::F16),
        ([4, 6], 3, 1, 2, [7, 8], [4, 4, 2], DataType::F32),
    ]
    .into_iter()
    .enumerate()
    {
        for direction in [Direction::Forward, Direction::BackwardData] {
            let problem = problem(Specification {
                batch: 2,
                in_channels: channels[0] * 2,
                out_channels: channels[1] * 2,
                groups: 2,
                in_size: size,
                kernel: [kernel, kernel],
                stride: [stride, stride],
                dilation: [dilation, dilation],
                padding: [kernel / 2 * dilation, kernel / 2 * dilation],
                direction,
                data_type,
                ..Specification::default()
            });
            for splits in [1, 3] {
                let choice = Choice::Direct { rows, width, strip, splits };
                check_choice(&engine, &problem, choice, turn as u64);
                assert!(LaunchPlan::new(&problem.with_layout(Layout::Nhwc), &choice).is_err());
            }
        }
    }
}

/// In NHWC from a source that was turned over: gradients of first layers, and transposed layers into few channels with a bias.
#[test]
fn direct_kernels_of_few_channels_in_nhwc_are_right() {
    let Some(engine) = engine() else { return };
    for (turn, (channels, kernel, stride, size, [rows, width, strip], data_type)) in [
        ([3, 40], 7, 2, [12, 16], [4, 2, 2], DataType::F32),
        ([3, 10], 3, 2, [18, 20], [4, 4, 2], DataType::F16),
        ([4, 33], 3, 1, [7, 8], [4, 4, 4], DataType::Bf16),
        ([1, 6], 1, 1, [6, 6], [8, 4, 1], DataType::F32),
        ([2, 70], 3, 1, [9, 12], [8, 4, 2], DataType::F32),
    ]
    .into_iter()
    .enumerate()
    {
        let ordinary = Specification {
            batch: 3,
            in_channels: channels[0],
            out_channels: channels[1],
            in_size: size,
            kernel: [kernel, kernel],
            stride: [stride, stride],
            padding: [kernel / 2, kernel / 2],
            layout: Layout::Nhwc,
            direction: Direction::BackwardData,
            data_type,
            ..Specification::default()
        };
        let small = size.map(|pixels| (pixels - 1) / stride + 1);
        let transposed = Specification {
            in_channels: channels[1],
            out_channels: channels[0],
            in_size: small,
            output_padding: [stride - 1, stride - 1],
            transposed: true,
            direction: Direction::Forward,
            ..ordinary
        };
        for specification in [ordinary.clone(), transposed] {
            let problem = problem(specification);
            for (splits, seed) in [(1, turn as u64), (3, turn as u64 + 1)] {
                let choice = Choice::Direct { rows, width, strip, splits };
                check_choice(&engine, &problem, choice, seed);
            }
        }
        let grouped =
            Specification { in_channels: channels[0] * 2, out_channels: channels[1] * 2, groups: 2, ..ordinary };
        let wide = Specification { in_channels: 6, ..ordinary.clone() };
        for refused in [grouped, wide, Specification { direction: Direction::Forward, ..ordinary }] {
            let choice = Choice::Direct { rows, width, strip, splits: 1 };
            assert!(LaunchPlan::new(&problem(refused), &choice).is_err());
        }
    }
}

#[test]
fn what_was_measured_is_taken_for_the_same_kernels_on_the_same_device_only() {
    let Some(HostEngine { gpu, .. }) = engine() else { return };
    let channels = Specification { in_channels: 32, out_channels: 32, in_size: [8, 8], ..Specification::default() };
    let single = problem(channels);
    let winners = [
        (single.clone(), Choice::Gemm { tile: TILES[9], packed: true, flat: false, splits: 1 }),
        // Never taken but so.
        (single.with_data_type(DataType::F16), Choice::HalfGemm { tile: TILES[9], packed: true, splits: 1 }),
    ];
    for (problem, choice) in winners {
        let model = gpu.choose(&problem);
        assert_ne!(model, choice, "the model would take it anyway");
        let times = [(model, [9.0, 2e-5, 2e-5]), (choice, [9.0, 1e-5, 1e-5])]
            .map(|(choice, seconds)| Times { choice: choice.to_string(), seconds: seconds.to_vec() });
        let tuned = tuned(&problem, gpu.driver(), &times, &choice.to_string(), "").unwrap();
        assert_eq!((tuned.seconds, tuned.model_seconds, tuned.candidates), (1e-5, 2e-5, 2));
        assert_eq!(tuned.share(), 0.5);
        assert!(is_current(&tuned, gpu.driver()));
        for other in [
            Tuned { kernels: "others".into(), ..tuned.clone() },
            Tuned { device: "another".into(), ..tuned.clone() },
            Tuned { compiler: "newer".into(), ..tuned.clone() },
        ] {
            assert!(!is_current(&other, gpu.driver()), "{other:?}");
            assert!(!gpu.take_tuning(&other, false));
        }
        // Somebody else's is a hint: what is less exact is not taken from it, and it is no measurement of ours.
        let is_exact = !matches!(choice, Choice::HalfGemm { .. });
        assert_eq!(gpu.take_tuning(&tuned, true), is_exact);
        assert_eq!(gpu.choose(&problem), if is_exact { choice } else { model });
        assert!(!gpu.is_preferred(&problem));
        assert!(gpu.take_tuning(&tuned, false));
        assert!(gpu.is_preferred(&problem));
        assert_eq!(gpu.choose(&problem), choice);
    }
}

#[test]
fn nothing_is_timed_while_a_graph_is_recorded() {
    let Some(HostEngine { gpu, .. }) = engine() else { return };
    let run = |count: &std::cell::Cell<u32>| -> Result<(), GpuError> {
        count.set(count.get() + 1);
        Ok(())
    };
    let count = std::cell::Cell::new(0);
    assert_eq!(gpu.time_calls(CAPTURING_STREAM, 4, || run(&count)).unwrap_err(), GpuError::Capturing);
    assert_eq!(count.get(), 0);
    let timing = gpu.time_calls(0, 4, || run(&count)).unwrap();
    assert_eq!(count.get(), 5, "one to warm up");
    assert!(gpu.seconds(&timing).unwrap().is_some());
    gpu.forget(timing).unwrap();
}

#[test]
fn products_in_pairs_of_f16_are_right() {
    let Some(engine) = engine() else { return };
    for (turn, (layout, direction, packed, tile)) in [
        (Layout::Nchw, Direction::Forward, true, TILES[5]),
        (Layout::Nchw, Direction::BackwardData, false, TILES[8]),
        (Layout::Nhwc, Direction::Forward, false, TILES[6]),
        (Layout::Nhwc, Direction::BackwardData, true, TILES[11]),
    ]
    .into_iter()
    .enumerate()
    {
        for kernel in [1, 3] {
            let problem = problem(Specification {
                batch: 2,
                in_channels: 44,
                out_channels: 36,
                in_size: [8, 8],
                kernel: [kernel, kernel],
                padding: [kernel / 2, kernel / 2],
                layout,
                direction,
                data_type: DataType::F16,
                ..Specification::default()
            });
            let splits = 1 + turn as u32 / 2;
            check_choice(&engine, &problem, Choice::HalfGemm { tile, packed, splits }, turn as u64);
        }
    }
}

#[test]
fn winograd_is_right_at_every_edge() {
    let Some(engine) = engine() else { return };
    let mut turn = 0;
    for (size, kernel, padding, channels) in
        [([8, 8], 3, 1, [16, 32]), ([7, 9], 3, 0, [9, 20]), ([5, 4], 3, 2, [33, 16]), ([9, 8], 5, 2, [16, 18])]
    {
        for direction in Direction::ALL {
            turn += 1;
            let problem = problem(Specification {
                batch: 2,
                in_channels: channels[0],
                out_channels: channels[1],
                in_size: size,
                kernel: [kernel, kernel],
                padding: [padding, padding],
                direction,
                data_type: if kernel == 3 && padding == 0 { DataType::F16 } else { DataType::F32 },
                ..Specification::default()
            });
            for layout in Layout::ALL {
                let problem = problem.with_layout(layout);
                check_choice(&engine, &problem, Choice::Winograd { tile: TILES[6], splits: 2 }, turn);
                if LaunchPlan::new(&problem, &Choice::WinogradFused).is_ok() {
                    check_choice(&engine, &problem, Choice::WinogradFused, turn);
                }
            }
        }
    }
}

/// Each phase of a dilation is an image of its own, some of them smaller than others.
#[test]
fn winograd_is_right_in_every_phase_of_a_dilation() {
    let Some(engine) = engine() else { return };
    for (turn, (size, kernel, dilation, padding)) in [
        ([9, 12], 3, [2, 2], [2, 2]),
        ([13, 7], 3, [3, 1], [0, 1]),
        ([8, 15], 5, [1, 2], [2, 8]),
        ([5, 5], 3, [4, 6], [4, 6]),
    ]
    .into_iter()
    .enumerate()
    {
        for direction in Direction::ALL {
            for layout in Layout::ALL {
                let dilated = problem(Specification {
                    batch: 2,
                    in_channels: 17,
                    out_channels: 20,
                    in_size: size,
                    kernel: [kernel, kernel],
                    padding,
                    dilation,
                    layout,
                    direction,
                    data_type: if turn == 1 { DataType::Bf16 } else { DataType::F32 },
                    ..Specification::default()
                });
                check_choice(&engine, &dilated, Choice::Winograd { tile: TILES[6], splits: 2 }, turn as u64);
            }
        }
    }
}

#[test]
fn winograd_of_stride_two_is_right_at_every_edge() {
    let Some(engine) = engine() else { return };
    for (turn, (size, padding, channels)) in [
        ([16, 16], [1, 1], [16, 32]),
        ([9, 14], [0, 1], [32, 16]),
        ([7, 5], [2, 0], [48, 80]),
        ([1, 6], [1, 2], [16, 16]),
        ([33, 3], [1, 0], [16, 16]),
    ]
    .into_iter()
    .enumerate()
    {
        for direction in Direction::ALL {
            for layout in Layout::ALL {
                let strided = problem(Specification {
                    batch: 2,
                    in_channels: channels[0],
                    out_channels: channels[1],
                    in_size: size,
                    kernel: [3, 3],
                    stride: [2, 2],
                    padding,
                    layout,
                    direction,
                    data_type: if turn == 1 { DataType::F16 } else { DataType::F32 },
                    ..Specification::default()
                });
                // The phases of places with ∞ end within a tile, and with it.
                let tile = if turn == 0 { TILES[1] } else { TILES[9] };
                check_choice(&engine, &strided, Choice::Winograd { tile, splits: 2 }, turn as u64);
            }
        }
    }
}

#[test]
fn whole_quads_and_many_tiles_are_right() {
    let Some(engine) = engine() else { return };
    // Sizes that divide, so that every vector path is taken, and more than one tile each way.
    for (turn, (channels, kernel, size)) in
        [([24, 40], 1, 12), ([16, 36], 3, 12), ([3, 20], 7, 16), ([18, 2], 3, 9)].into_iter().enumerate()
    {
        for direction in Direction::ALL {
            for layout in Layout::ALL {
                let problem = problem(Specification {
                    batch: 3,
                    in_channels: channels[0],
                    out_channels: channels[1],
                    in_size: [size, size],
                    kernel: [kernel, kernel],
                    padding: [kernel / 2, kernel / 2],
                    layout,
                    direction,
                    ..Specification::default()
                });
                for choice in varied_choices(&problem, turn + 8) {
                    check_choice(&engine, &problem, choice, turn as u64);
                }
            }
        }
    }
}

/// Phases of a stride that meet few taps have fewer parts of their sums: the planes of the others are not read.
#[test]
fn phases_of_a_stride_have_as_many_parts_as_their_taps_fill() {
    let Some(engine) = engine() else { return };
    for (turn, (kernel, stride, padding, dilation)) in
        [([3, 3], [2, 2], [1, 1], [1, 1]), ([5, 3], [3, 2], [0, 1], [1, 1]), ([1, 4], [2, 4], [0, 1], [1, 3])]
            .into_iter()
            .enumerate()
    {
        for layout in Layout::ALL {
            let strided = problem(Specification {
                batch: 2,
                in_channels: 10,
                out_channels: 40,
                in_size: [9, 14],
                kernel,
                stride,
                padding,
                dilation,
                layout,
                direction: Direction::BackwardData,
                ..Specification::default()
            });
            for splits in [2, 5] {
                let choice = Choice::Gemm { tile: TILES[9], packed: turn % 2 == 0, flat: false, splits };
                check_choice(&engine, &strided, choice, turn as u64);
            }
        }
    }
}

/// A strided 1×1 layer's gradient is a matrix product with zeros between its pixels, written together.
#[test]
fn gradients_of_strided_products_are_right_at_every_edge() {
    let Some(engine) = engine() else { return };
    for (turn, (in_size, stride)) in [
        ([16, 16], [2, 2]),
        ([15, 16], [2, 2]),
        ([9, 13], [2, 2]),
        ([7, 10], [3, 4]),
        ([6, 8], [1, 2]),
        ([5, 4], [2, 1]),
    ]
    .into_iter()
    .enumerate()
    {
        for layout in Layout::ALL {
            for (groups, data_type) in [(1, DataType::F32), (2, DataType::F16)] {
                let strided = problem(Specification {
                    batch: 2,
                    in_channels: 36,
                    out_channels: 20,
                    groups,
                    in_size,
                    kernel: [1, 1],
                    stride,
                    layout,
                    data_type,
                    direction: Direction::BackwardData,
                    ..Specification::default()
                });
                let tile = TILES[turn % 2 * 9];
                for (form, packed) in [(Form::Specialised, turn == 0), (Form::General, true)] {
                    let choice = Choice::Gemm { tile, packed, flat: false, splits: 1 };
                    let plan = LaunchPlan::with_form(&strided, &choice, form).unwrap();
                    let last = plan.stages.last().unwrap();
                    let is_spread = form == Form::Specialised || stride == [2, 2];
                    assert_eq!(last.kernel.constant("SPREAD").is_some(), is_spread, "{strided}");
                    let phases = if is_spread { 1 } else { stride[0] * stride[1] };
                    assert_eq!(i64::from(last.grid[1]), groups * phases, "{strided}");
                    *engine.form.lock().unwrap() = form;
                    check_choice(&engine, &strided, choice, turn as u64);
                    // The same kernel is a transposed layer's forward, which has a bias, between the pixels too.
                    let turned =
                        Specification { transposed: true, direction: Direction::Forward, ..strided.specification() };
                    let [in_channels, out_channels] = [turned.out_channels, turned.in_channels];
                    let in_size = strided.out_size().map(|n| n as i64);
                    let output_padding = stride.map(|n| n - 1);
                    let turned =
                        problem(Specification { in_channels, out_channels, in_size, output_padding, ..turned });
                    let plan = LaunchPlan::with_form(&turned, &choice, form).unwrap();
                    assert_eq!(plan.stages.last().unwrap().kernel.constant("SPREAD").is_some(), is_spread, "{turned}");
                    check_choice(&engine, &turned, choice, 2 * turn as u64 + 1);
                }
            }
        }
    }
}

#[test]
fn many_filters_are_added_up_by_a_thread_each() {
    let Some(engine) = engine() else { return };
    for layout in Layout::ALL {
        let wide = problem(Specification {
            in_channels: 128,
            out_channels: 129,
            in_size: [4, 5],
            kernel: [3, 3],
            padding: [1, 1],
            layout,
            direction: Direction::BackwardWeights,
            ..Specification::default()
        });
        for choice in [Choice::Weights { tile: TILES[9], splits: 2 }, Choice::Winograd { tile: TILES[9], splits: 1 }] {
            let plan = LaunchPlan::new(&wide, &choice).unwrap();
            assert!(plan.stages.last().unwrap().kernel.entry.ends_with("_filters"), "{choice}");
            check_choice(&engine, &wide, choice, 1);
        }
    }
}

#[test]
fn nothing_is_prepared_while_a_graph_is_recorded() {
    let Some(engine) = engine() else { return };
    let problem = problem(Specification { in_size: [4, 4], ..Specification::default() });
    let capturing = Request { stream: CAPTURING_STREAM, ..Request::default() };
    let refused = engine.gpu.prepare_on(&problem, capturing).unwrap_err();
    assert_eq!(refused, GpuError::Capturing);
    // Once it was prepared outside, the recording stream may use it.
    engine.gpu.prefer(&problem, Choice::Plain);
    engine.gpu.prepare_on(&problem, Request::default()).unwrap();
    assert_eq!(*engine.gpu.prepare_on(&problem, capturing).unwrap().choice(), Choice::Plain);
}

#[test]
fn the_generic_kernels_serve_while_a_problems_own_are_compiled() {
    let Some(engine) = engine() else { return };
    let gpu = &engine.gpu;
    let problem: Problem = "forward:f32:nchw:1x16x12x12:32x3x3:s1x1:p1x1:d1x1:g1".parse().unwrap();
    let first = gpu.prepare_on(&problem, Request::default()).unwrap();
    assert!(first.is_provisional());
    assert_eq!(*first.choice(), Choice::Plain);
    assert!(gpu.settle(Duration::from_secs(60)));
    // A graph is recorded with what was loaded, although better kernels lie ready.
    let capturing = Request { stream: CAPTURING_STREAM, ..Request::default() };
    assert_eq!(gpu.prepare_on(&problem, capturing).unwrap().kernels(), first.kernels());
    let own = gpu.prepare_on(&problem, Request::default()).unwrap();
    assert!(!own.is_provisional());
    assert_ne!(*own.choice(), Choice::Plain);
    assert_ne!(own.kernels(), first.kernels());
    // Another size is the same kernels with other numbers: nothing is compiled.
    let compiled = gpu.compiled();
    let larger: Problem = "forward:f32:nchw:2x16x15x17:32x3x3:s1x1:p1x1:d1x1:g1".parse().unwrap();
    let choice = gpu.choose(&larger);
    if choice == *own.choice() {
        assert_eq!(gpu.prepare_on(&larger, Request::default()).unwrap().kernels(), own.kernels());
        assert_eq!(gpu.compiled(), compiled);
    }
    // Who must have the same roundings every time waits.
    let other: Problem = "forward:f32:nchw:1x16x12x12:16x5x5:s1x1:p1x1:d1x1:g1".parse().unwrap();
    assert!(!gpu.prepare_on(&other, Request { wait: true, ..Request::default() }).unwrap().is_provisional());
    assert!(gpu.close(Duration::from_secs(60)));
    let late: Problem = "forward:f32:nchw:1x16x12x12:32x3x3:s1x1:p2x2:d2x2:g1".parse().unwrap();
    assert!(gpu.prepare_on(&late, Request::default()).unwrap().is_provisional(), "nothing is compiled after closing");
}

#[test]
fn only_families_that_are_allowed_are_taken() {
    let Some(engine) = engine() else { return };
    let gpu = &engine.gpu;
    let problem: Problem = "forward:f32:nchw:1x16x12x12:32x3x3:s1x1:p1x1:d1x1:g1".parse().unwrap();
    let families = |names: &[&str]| Some(names.iter().map(|&name| name.to_owned()).collect());
    gpu.allow(families(&["gemm"]));
    assert_eq!(gpu.choose(&problem).family(), "gemm");
    let waits = gpu.prepare_on(&problem, Request::default()).unwrap();
    assert_eq!(waits.choice().family(), "gemm", "the generic kernels are not allowed either");
    gpu.allow(families(&["depthwise"]));
    let refused = gpu.prepare_on(&problem, Request::default()).unwrap_err();
    assert!(matches!(refused, GpuError::NoneAllowed { .. }), "{refused}");
    assert!(refused.to_string().contains("plain"), "{refused}");
    gpu.allow(None);
    // Less workspace than the best choice needs is another choice.
    let all = gpu.candidates(&problem);
    assert!(all.iter().any(|candidate| candidate.plan.workspace_bytes > 0));
    let none = Request { workspace_limit: Some(0), wait: true, ..Request::default() };
    assert_eq!(gpu.prepare_on(&problem, none).unwrap().workspace_bytes(), 0);
}
