//! Which kernels a package carries: those that general plans for problems of every kind ask for, and those of the other
//! operations.

use std::collections::{BTreeMap, BTreeSet};

use unhang_conv::{DataType, Direction, Layout, Problem, Specification};

use super::key_of;
use crate::choice::{Choice, GENERAL_TILES};
use crate::plan::LaunchPlan;
use crate::sources::{Kernel, SourceFile};

/// The kernels that a package carries, each object once.
pub fn kernels() -> Vec<Kernel> {
    let mut found: BTreeMap<String, Kernel> = operations().map(|kernel| (key_of(&kernel), kernel)).collect();
    for problem in kinds() {
        for choice in general_choices(&problem) {
            let Ok(plan) = LaunchPlan::general(&problem, &choice) else { continue };
            for stage in plan.stages {
                found.entry(key_of(&stage.kernel)).or_insert(stage.kernel);
            }
        }
    }
    let mut kernels: Vec<Kernel> = found.into_values().collect();
    kernels.sort();
    kernels
}

/// A kernel of each object for batch normalisation, pooling and reductions. Sizes are arguments of theirs, so one object of
/// a type has all that an operation needs.
fn operations() -> impl Iterator<Item = Kernel> {
    let files = [
        (SourceFile::Normalization, "normalization_apply"),
        (SourceFile::Pooling, "pooling_mean"),
        (SourceFile::Reduction, "reduction_sum"),
    ];
    DataType::ALL
        .into_iter()
        .flat_map(move |data_type| files.map(|(file, entry)| Kernel::of_type(file, entry, data_type)))
}

/// A problem of each kind that general kernels tell apart: type, layout, direction; few channels and many, in quads and not;
/// planes in quads and not. Also 1×1, dense and strided, and larger windows, and the windows of depthwise layers, which
/// are unrolled.
pub fn kinds() -> Vec<Problem> {
    let base = Specification { batch: 1, in_size: [8, 8], padding: [1, 1], kernel: [3, 3], ..Specification::default() };
    let mut shapes = Vec::new();
    for (in_channels, out_channels) in [(64, 64), (65, 65), (3, 64), (3, 65), (64, 3)] {
        for in_size in [[8, 8], [7, 7]] {
            let dense = Specification { in_channels, out_channels, in_size, ..base };
            let [pointwise, square] = [dense.clone(), dense.clone()];
            let pointwise = Specification { kernel: [1, 1], padding: [0, 0], ..pointwise };
            shapes.push(Specification { stride: [2, 2], in_size: in_size.map(|n| 2 * n), ..pointwise.clone() });
            shapes.push(pointwise);
            shapes.push(Specification { kernel: [5, 5], padding: [2, 2], ..square });
            shapes.push(dense);
        }
    }
    // Enough filters that one thread has a whole one where planes are added up.
    let [square, pointwise] = [base.clone(), base.clone()];
    shapes.push(Specification { in_channels: 128, out_channels: 128, in_size: [4, 4], ..square });
    shapes.push(Specification {
        in_channels: 128,
        out_channels: 132,
        in_size: [4, 3],
        kernel: [1, 1],
        padding: [0, 0],
        ..pointwise
    });
    // Windows that do not overlap: their pixels are put in their places.
    shapes.push(Specification {
        in_channels: 64,
        out_channels: 64,
        in_size: [16, 16],
        kernel: [2, 2],
        stride: [2, 2],
        padding: [0, 0],
        ..base.clone()
    });
    // The windows of first layers, which `direct` unrolls; both strides of a row are whole quads or pairs.
    for (kernel, stride) in [(1, 1), (3, 1), (3, 2), (7, 2)] {
        let window =
            Specification { kernel: [kernel; 2], padding: [kernel / 2; 2], stride: [stride; 2], ..base.clone() };
        // In NHWC the gradient of an image has its channels given.
        for in_channels in [16, 3] {
            shapes.push(Specification { in_channels, out_channels: 16, in_size: [16, 16], ..window.clone() });
        }
    }
    for kernel in [3, 5, 7] {
        for stride in [1, 2] {
            // Rows of whole quads, of pairs, and of neither.
            for width in [16, 18, 15] {
                let window =
                    Specification { kernel: [kernel; 2], padding: [kernel / 2; 2], stride: [stride; 2], ..base };
                let size =
                    Specification { in_size: [16, width], in_channels: 32, out_channels: 32, groups: 32, ..window };
                shapes.push(size);
            }
        }
    }
    // Windows that are not unrolled, on results of each tile.
    for size in [12, 24, 40] {
        let window = Specification { kernel: [9, 9], padding: [4, 4], ..base.clone() };
        shapes.push(Specification { in_size: [size; 2], in_channels: 8, out_channels: 8, groups: 8, ..window });
    }
    let mut problems = Vec::new();
    for specification in shapes {
        for data_type in DataType::ALL {
            for layout in Layout::ALL {
                for direction in Direction::ALL {
                    problems.extend(Problem::new(Specification { data_type, layout, direction, ..specification }));
                }
            }
        }
    }
    problems
}

/// The general ways to compute a problem that a package has kernels for.
pub fn general_choices(problem: &Problem) -> BTreeSet<Choice> {
    let mut choices = BTreeSet::from([Choice::Plain]);
    if problem.is_depthwise() {
        choices.insert(Choice::DepthwiseLarge { splits: 1 });
        let stride = problem.stride()[0] as u32;
        for strip in [1, 2, 4].map(|strip: u32| strip.next_multiple_of(stride)) {
            choices.extend([Choice::Depthwise { strip, splits: 2 }, Choice::DepthwiseQuads { strip, splits: 2 }]);
        }
    } else {
        choices.insert(Choice::WinogradFused);
        for (rows, width, strip) in DIRECT {
            choices.insert(Choice::Direct { rows, width, strip, splits: 1 });
        }
        for tile in GENERAL_TILES {
            choices.extend([false, true].map(|flat| Choice::Gemm { tile, packed: true, flat, splits: 1 }));
            choices.extend([Choice::Gemm { tile, packed: true, flat: false, splits: 2 }]);
            choices.insert(Choice::Patches { tile, splits: 2 });
            choices.extend([Choice::Weights { tile, splits: 2 }, Choice::Winograd { tile, splits: 2 }]);
        }
    }
    choices.into_iter().filter_map(Choice::as_general).collect()
}

/// Channels, columns and rows of a thread of the general `direct` kernels.
const DIRECT: [(u32, u32, u32); 4] = [(4, 4, 2), (8, 4, 1), (16, 2, 2), (16, 4, 1)];
