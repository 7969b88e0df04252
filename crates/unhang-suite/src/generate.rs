//! Problems for property tests: small, odd, and with every property mixed.

use proptest::prelude::*;
use unhang_conv::{DataType, Direction, Layout, Problem, Specification};

/// Any small problem: all directions and layouts, transposed or not, in that data type.
pub fn any_problem(data_type: DataType) -> impl Strategy<Value = Problem> {
    problems(data_type, any::<bool>().boxed())
}

/// Any small problem that is not a transposed convolution.
pub fn any_ordinary_problem(data_type: DataType) -> impl Strategy<Value = Problem> {
    problems(data_type, Just(false).boxed())
}

fn problems(data_type: DataType, transposed: BoxedStrategy<bool>) -> impl Strategy<Value = Problem> {
    // Channels lean towards the widths at which blocked kernels have their edges.
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
