//! Winograd's algorithm.

use crate::{check_choice, engine, problem};
use unhang_conv::{DataType, Direction, Layout, Specification};
use unhang_gpu::choice::{Choice, TILES};
use unhang_gpu::plan::LaunchPlan;

#[test]
fn winograd_is_right_at_every_edge() {
    let Some(engine) = engine() else { return };
    let mut turn = 0;
    for (size, kernel, padding, channels) in [
        ([8, 8], 3, 1, [16, 32]),
        ([7, 9], 3, 0, [9, 20]),
        ([5, 4], 3, 2, [33, 16]),
        ([9, 8], 5, 2, [16, 18]),
        ([9, 11], 7, 3, [16, 18]),
        ([8, 12], 7, 0, [17, 16]),
    ] {
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

/// Groups of the convolution are groups of every product.
#[test]
fn winograd_is_right_in_groups() {
    let Some(engine) = engine() else { return };
    for (turn, (groups, kernel, dilation, channels)) in
        [(2, 3, 1, [32, 48]), (3, 3, 2, [51, 33]), (5, 5, 1, [15, 20]), (2, 7, 1, [8, 34])].into_iter().enumerate()
    {
        for direction in Direction::ALL {
            for layout in Layout::ALL {
                let grouped = problem(Specification {
                    batch: 2,
                    in_channels: channels[0],
                    out_channels: channels[1],
                    in_size: [7, 10],
                    kernel: [kernel, kernel],
                    padding: [kernel / 2; 2],
                    dilation: [dilation; 2],
                    groups,
                    direction,
                    layout,
                    data_type: if groups == 2 { DataType::F32 } else { DataType::Bf16 },
                    ..Specification::default()
                });
                check_choice(&engine, &grouped, Choice::Winograd { tile: TILES[6], splits: 2 }, turn as u64);
                assert!(LaunchPlan::new(&grouped, &Choice::WinogradFused).is_err());
            }
        }
    }
}

/// Each phase of a dilation is a separate image, some of them smaller than others.
#[test]
fn winograd_is_right_in_every_phase_of_a_dilation() {
    let Some(engine) = engine() else { return };
    for (turn, (size, kernel, dilation, padding)) in [
        ([9, 12], 3, [2, 2], [2, 2]),
        ([13, 7], 3, [3, 1], [0, 1]),
        ([8, 15], 5, [1, 2], [2, 8]),
        ([5, 5], 3, [4, 6], [4, 6]),
        ([14, 9], 7, [2, 1], [6, 3]),
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
