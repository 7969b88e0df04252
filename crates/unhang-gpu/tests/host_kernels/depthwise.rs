//! Depthwise convolutions.

use crate::{check_choice, engine, problem};
use unhang_conv::{DataType, Direction, Layout, Specification};
use unhang_gpu::choice::Choice;
use unhang_gpu::plan::LaunchPlan;

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
fn large_windows_with_a_stride_are_unrolled_in_short_strips() {
    let Some(engine) = engine() else { return };
    for (turn, (layout, size, stride, dilation)) in
        [(Layout::Nchw, 9, 2, 1), (Layout::Nhwc, 11, 2, 1), (Layout::Nchw, 8, 3, 1), (Layout::Nhwc, 9, 2, 2)]
            .into_iter()
            .enumerate()
    {
        for direction in [Direction::Forward, Direction::BackwardData] {
            let problem = problem(Specification {
                batch: 2,
                in_channels: 5,
                out_channels: 10,
                groups: 5,
                in_size: [21, 20],
                kernel: [size, size],
                stride: [stride, stride],
                dilation: [dilation, dilation],
                padding: [size / 2, 1],
                layout,
                direction,
                ..Specification::default()
            });
            let least = if direction == Direction::Forward { 1 } else { stride };
            for strip in [least, stride] {
                check_choice(&engine, &problem, Choice::Depthwise { strip: strip as u32, splits: 1 }, turn as u64 + 1);
            }
            let long = Choice::Depthwise { strip: 2 * stride as u32, splits: 1 };
            assert!(LaunchPlan::new(&problem, &long).is_err(), "a strip that shares taps");
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

/// Windows of more taps than are unrolled: larger than a chunk and than the image, on results of one tile and of several.
#[test]
fn large_depthwise_windows_are_right() {
    let Some(engine) = engine() else { return };
    for (turn, (size, kernel, padding, data_type)) in [
        ([14, 13], [27, 27], [13, 13], DataType::F32),
        ([37, 70], [31, 35], [15, 17], DataType::F32),
        ([20, 40], [9, 9], [0, 4], DataType::F16),
        ([9, 21], [51, 5], [25, 2], DataType::Bf16),
        ([40, 1], [60, 1], [30, 0], DataType::F32),
    ]
    .into_iter()
    .enumerate()
    {
        for layout in Layout::ALL {
            for direction in Direction::ALL {
                let channels = 5 + turn as i64;
                let problem = problem(Specification {
                    batch: 3,
                    in_channels: channels,
                    out_channels: channels,
                    groups: channels,
                    in_size: size,
                    kernel,
                    padding,
                    layout,
                    direction,
                    data_type,
                    ..Specification::default()
                });
                check_choice(&engine, &problem, Choice::DepthwiseLarge { splits: 1 + turn as u32 % 2 }, turn as u64);
            }
        }
    }
}
