//! Matrix products: in pairs of f16, in quads, in phases of a stride, in parts.

use crate::{check_choice, engine, problem, varied_choices};
use unhang_conv::{DataType, Direction, Layout, Specification};
use unhang_gpu::choice::{Choice, DEEP_TILE, HALF_TILE, TILES};
use unhang_gpu::plan::{Form, LaunchPlan};

#[test]
fn products_in_pairs_of_f16_are_right() {
    let Some(engine) = engine() else { return };
    for (turn, (layout, direction, packed, tile)) in [
        (Layout::Nchw, Direction::Forward, true, TILES[5]),
        (Layout::Nchw, Direction::BackwardData, false, TILES[8]),
        (Layout::Nhwc, Direction::Forward, false, TILES[6]),
        (Layout::Nhwc, Direction::BackwardData, true, TILES[11]),
        (Layout::Nchw, Direction::Forward, true, HALF_TILE),
        (Layout::Nchw, Direction::BackwardData, false, DEEP_TILE),
    ]
    .into_iter()
    .enumerate()
    {
        // The second pair of channels is whole slices both ways.
        for (kernel, [in_channels, out_channels]) in [(1, [44, 36]), (3, [44, 36]), (1, [48, 64]), (3, [48, 64])] {
            let problem = problem(Specification {
                batch: 2,
                in_channels,
                out_channels,
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
        // More taps than wait in LDS at once, and a last workgroup that is not full.
        let taps = problem(Specification { kernel: [5, 3], padding: [2, 1], ..wide.specification() });
        check_choice(&engine, &taps, Choice::Weights { tile: TILES[9], splits: 2 }, 2);
    }
}

/// Backward-weights of operands that were turned over first: in one part, which is the gradient where there is one tap, and in
/// several.
#[test]
fn operands_of_a_filters_gradient_are_turned_over() {
    let Some(engine) = engine() else { return };
    for (turn, (kernel, stride, groups)) in
        [([1, 1], [1, 1], 1), ([3, 3], [2, 1], 1), ([1, 1], [2, 2], 2), ([3, 2], [1, 1], 3)].into_iter().enumerate()
    {
        for data_type in [DataType::F32, DataType::F16, DataType::Bf16] {
            let gradient = problem(Specification {
                batch: 3,
                in_channels: 36,
                out_channels: 42,
                in_size: [7, 9],
                kernel,
                stride,
                padding: [kernel[0] / 2, 0],
                groups,
                data_type,
                direction: Direction::BackwardWeights,
                ..Specification::default()
            });
            for (form, splits) in [(Form::Specialised, 1), (Form::Specialised, 3), (Form::General, 2)] {
                *engine.form.lock().unwrap() = form;
                let choice = Choice::WeightsTurned { tile: TILES[9], splits };
                let plan = LaunchPlan::with_form(&gradient, &choice, form).unwrap();
                let entries: Vec<&str> = plan.stages.iter().map(|stage| stage.kernel.entry).collect();
                assert_eq!(entries[..3], ["turn", "turn", "weights"]);
                let is_in_place = splits == 1 && kernel == [1, 1] && data_type == DataType::F32;
                assert_eq!(entries.len() == 3, is_in_place, "{gradient}");
                check_choice(&engine, &gradient, choice, turn as u64);
            }
        }
        *engine.form.lock().unwrap() = Form::Specialised;
    }
    let channels_last = problem(Specification {
        in_channels: 8,
        out_channels: 8,
        in_size: [4, 4],
        layout: Layout::Nhwc,
        direction: Direction::BackwardWeights,
        ..Specification::default()
    });
    assert!(LaunchPlan::new(&channels_last, &Choice::WeightsTurned { tile: TILES[9], splits: 1 }).is_err());
}

/// Gradients of windows that do not overlap: with and without gaps between them, with padding, and as a transposed layer with a
/// bias.
#[test]
fn patches_are_put_in_their_places() {
    let Some(engine) = engine() else { return };
    for (turn, (kernel, stride, padding, in_size)) in [
        ([8, 8], [8, 8], [0, 0], [32, 16]),
        ([7, 5], [7, 5], [0, 0], [23, 14]),
        ([2, 2], [2, 2], [1, 0], [9, 8]),
        ([2, 3], [4, 3], [1, 2], [13, 11]),
        ([1, 4], [1, 4], [0, 1], [1, 30]),
    ]
    .into_iter()
    .enumerate()
    {
        for layout in Layout::ALL {
            for (groups, data_type) in [(1, DataType::F32), (1, DataType::F16), (3, DataType::F32)] {
                let apart = problem(Specification {
                    batch: 2,
                    in_channels: 3,
                    out_channels: 33,
                    groups,
                    in_size,
                    kernel,
                    stride,
                    padding,
                    layout,
                    data_type,
                    direction: Direction::BackwardData,
                    ..Specification::default()
                });
                let choice = Choice::Patches { tile: TILES[9], splits: 1 + turn as u32 % 3 };
                if groups > 1 && layout == Layout::Nhwc {
                    assert!(
                        LaunchPlan::new(&apart, &choice).is_err(),
                        "a group's taps do not lie side by side: {apart}"
                    );
                    continue;
                }
                let filter = apart.with_direction(Direction::BackwardWeights);
                for form in [Form::Specialised, Form::General] {
                    *engine.form.lock().unwrap() = form;
                    check_choice(&engine, &apart, choice, turn as u64);
                    if groups == 1 {
                        check_choice(&engine, &filter, choice, turn as u64);
                    } else {
                        assert!(LaunchPlan::new(&filter, &choice).is_err(), "groups lie apart in a patch: {filter}");
                    }
                    let turned =
                        Specification { transposed: true, direction: Direction::Forward, ..apart.specification() };
                    let [in_channels, out_channels] = [turned.out_channels, turned.in_channels];
                    let in_size = apart.out_size().map(|n| n as i64);
                    let turned = problem(Specification { in_channels, out_channels, in_size, ..turned });
                    check_choice(&engine, &turned, choice, 2 * turn as u64 + 1);
                }
            }
        }
    }
    let overlapping = problem(Specification {
        in_channels: 3,
        out_channels: 8,
        in_size: [9, 9],
        kernel: [3, 3],
        stride: [2, 2],
        direction: Direction::BackwardData,
        ..Specification::default()
    });
    assert!(LaunchPlan::new(&overlapping, &Choice::Patches { tile: TILES[9], splits: 1 }).is_err());
}

/// A window as large as its image is a product of matrices, and so is a layer on images of one pixel: kernels read them in quads
/// whatever the layout, and the gradient of the filter is written at once.
#[test]
fn windows_that_cover_their_image_are_products() {
    let Some(engine) = engine() else { return };
    for (turn, (channels, size)) in [([24, 40], [3, 3]), ([40, 12], [1, 1]), ([5, 33], [2, 7])].into_iter().enumerate()
    {
        for layout in Layout::ALL {
            for direction in Direction::ALL {
                let whole = problem(Specification {
                    batch: 5,
                    in_channels: channels[0],
                    out_channels: channels[1],
                    in_size: size,
                    kernel: size,
                    stride: [1 + turn as i64, 2],
                    layout,
                    direction,
                    ..Specification::default()
                });
                let choice = match direction {
                    Direction::BackwardWeights => Choice::Weights { tile: TILES[9], splits: 1 },
                    _ => Choice::Gemm { tile: TILES[9], packed: turn == 0, flat: false, splits: 1 },
                };
                let plan = LaunchPlan::new(&whole, &choice).unwrap();
                let kernel = &plan.stages.last().unwrap().kernel;
                assert_eq!(kernel.constant("CHANNELS_LAST"), Some(1), "{whole}");
                assert_eq!(kernel.constant("FILTER_H"), Some(1), "{whole}");
                if direction == Direction::BackwardWeights {
                    assert_eq!((plan.stages.len(), plan.workspace_bytes), (1, 0), "{whole}");
                }
                check_choice(&engine, &whole, choice, turn as u64);
            }
        }
    }
}

/// A transposed layer whose window covers its output, as a generator's first layer has it, is a data gradient with a bias for each
/// channel: taps do not become channels there.
#[test]
fn a_bias_stays_with_its_channels_where_a_window_covers_the_output() {
    let Some(engine) = engine() else { return };
    for layout in Layout::ALL {
        let turned = problem(Specification {
            batch: 3,
            in_channels: 20,
            out_channels: 12,
            in_size: [1, 1],
            kernel: [4, 4],
            transposed: true,
            layout,
            ..Specification::default()
        });
        for seed in 0..4 {
            let choice = Choice::Gemm { tile: TILES[9], packed: seed % 2 == 0, flat: false, splits: 1 };
            check_choice(&engine, &turned, choice, seed);
            check_choice(&engine, &turned, Choice::Plain, seed);
        }
    }
}
