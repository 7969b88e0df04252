//! Problems for property tests: small, odd, and with every combination of properties.

use proptest::prelude::*;
use unhang_conv::{DataType, Direction, Layout, Problem, Specification, Volume, VolumeSpecification};

/// Any small problem: all directions and layouts, transposed or not, in that data type.
pub fn any_problem(data_type: DataType) -> impl Strategy<Value = Problem> {
    problems(data_type, any::<bool>().boxed())
}

/// Any small problem that is not a transposed convolution.
pub fn any_ordinary_problem(data_type: DataType) -> impl Strategy<Value = Problem> {
    problems(data_type, Just(false).boxed())
}

fn problems(data_type: DataType, transposed: BoxedStrategy<bool>) -> impl Strategy<Value = Problem> {
    // Prefers channel counts near the block widths of kernels.
    let channels =
        prop_oneof![3 => 1i64..6, 1 => 6i64..18, 1 => prop_oneof![Just(16i64), Just(17), Just(32), Just(33)]];
    let groups = prop_oneof![3 => Just(1i64), 1 => 2i64..5];
    let sizes = (1i64..4, groups, channels.clone(), channels, [1i64..15, 1i64..15], [1i64..6, 1i64..6]);
    let geometry = ([1i64..4, 1i64..4], [0i64..4, 0i64..4], [1i64..4, 1i64..4], [0i64..3, 0i64..3]);
    let kind = (transposed, 0usize..3, 0usize..2);
    (sizes, geometry, kind).prop_filter_map("makes no convolution", move |(sizes, geometry, kind)| {
        let (batch, groups, in_group, out_group, in_size, kernel) = sizes;
        let (stride, padding, dilation, output_padding) = geometry;
        let (transposed, direction, layout) = kind;
        Problem::new(Specification {
            batch,
            in_channels: groups * in_group,
            in_size,
            out_channels: groups * out_group,
            kernel,
            stride,
            padding,
            dilation,
            groups,
            transposed,
            output_padding: if transposed { output_padding } else { [0, 0] },
            data_type,
            layout: Layout::ALL[layout],
            direction: Direction::ALL[direction],
        })
        .ok()
    })
}

/// Any small 3-d convolution: all directions and layouts, transposed or not, in that data type.
pub fn any_volume(data_type: DataType) -> impl Strategy<Value = Volume> {
    let groups = prop_oneof![3 => Just(1i64), 1 => 2i64..4];
    let size = [1i64..7, 1i64..7, 1i64..7];
    // At least two in five filters are a single tap in the plane: these are folded in another way.
    let plane = prop_oneof![2 => Just([1i64, 1]), 3 => [1i64..4, 1i64..4]];
    let sizes = (1i64..4, groups, 1i64..5, 1i64..5, size, 1i64..5, plane);
    let geometry = ([1i64..4, 1i64..3, 1i64..3], [0i64..3, 0i64..3, 0i64..3], [1i64..4, 1i64..3, 1i64..3]);
    let kind = (any::<bool>(), any::<bool>(), [0i64..3, 0i64..2, 0i64..2], 0usize..3, 0usize..2);
    (sizes, geometry, kind).prop_filter_map("makes no convolution", move |(sizes, geometry, kind)| {
        let (batch, groups, in_group, out_group, in_size, depth, [height, width]) = sizes;
        let (mut stride, mut padding, dilation) = geometry;
        let (transposed, plain, output_padding, direction, layout) = kind;
        if plain {
            (stride, padding) = ([stride[0], 1, 1], [padding[0], 0, 0]);
        }
        Volume::new(VolumeSpecification {
            batch,
            in_channels: groups * in_group,
            in_size,
            out_channels: groups * out_group,
            kernel: [depth, height, width],
            stride,
            padding,
            dilation,
            groups,
            transposed,
            output_padding: if transposed { output_padding } else { [0; 3] },
            data_type,
            layout: Layout::ALL[layout],
            direction: Direction::ALL[direction],
        })
        .ok()
    })
}
