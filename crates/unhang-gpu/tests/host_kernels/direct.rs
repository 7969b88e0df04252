//! The kernels that read their source straight into registers.

use crate::{check_choice, engine, problem};
use unhang_conv::{DataType, Direction, Layout, Specification};
use unhang_gpu::choice::Choice;
use unhang_gpu::plan::{Form, LaunchPlan};

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
            for (splits, form) in [(1, Form::Specialised), (3, Form::Specialised), (1, Form::General)] {
                *engine.form.lock().unwrap() = form;
                check_choice(&engine, &problem, Choice::Direct { rows, width, strip, splits }, turn as u64);
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
