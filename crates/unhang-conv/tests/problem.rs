//! What a problem accepts, what it refuses, and its own figures.

use proptest::prelude::*;
use unhang_conv::{DataType, Direction, Layout, Problem, ProblemError, Specification, reference, tile};

fn base() -> Specification {
    Specification {
        batch: 2,
        in_channels: 4,
        in_size: [8, 9],
        out_channels: 6,
        kernel: [3, 2],
        padding: [1, 0],
        ..Default::default()
    }
}

fn refused(change: impl FnOnce(&mut Specification)) -> ProblemError {
    let mut spec = base();
    change(&mut spec);
    Problem::new(spec).expect_err("this makes no convolution")
}

#[test]
fn bad_numbers_are_named() {
    use ProblemError::*;
    assert_eq!(refused(|s| s.batch = 0), NotPositive { name: "batch", value: 0 });
    assert_eq!(refused(|s| s.stride[1] = -3), NotPositive { name: "stride width", value: -3 });
    assert_eq!(refused(|s| s.padding[0] = -1), Negative { name: "padding height", value: -1 });
    assert_eq!(refused(|s| s.groups = 4), GroupsDoNotDivide { name: "output channels", channels: 6, groups: 4 });
    assert!(matches!(refused(|s| s.kernel[1] = 10), FilterLargerThanInput { axis: "width", span: 10, padded: 9, .. }));
    assert!(matches!(
        refused(|s| s.dilation[0] = 5),
        FilterLargerThanInput { axis: "height", span: 11, padded: 10, .. }
    ));
    assert_eq!(refused(|s| s.output_padding = [1, 0]), OutputPaddingNotTransposed { output_padding: vec![1, 0] });
    assert_eq!(
        refused(|s| {
            s.transposed = true;
            s.output_padding = [0, 1];
        }),
        OutputPaddingTooLarge { axis: "width", output_padding: 1, stride: 1 }
    );
    assert!(matches!(
        refused(|s| {
            s.transposed = true;
            s.in_size = [1, 1];
            s.padding = [3, 0];
        }),
        TransposedOutputEmpty { axis: "height", size: -3, .. }
    ));
    assert!(matches!(refused(|s| s.in_channels = i64::MAX), TooLarge { what: "input channels", .. }));
    let error = refused(|s| {
        s.batch = i64::from(i32::MAX);
        s.in_size = [i64::from(i32::MAX), 100_000];
    });
    assert!(matches!(error, TooLarge { what: "the input tensor", .. }), "{error}");
    assert!("float".parse::<DataType>().unwrap_err().to_string().contains("f32, f16, bf16, f64"));
}

#[test]
fn keys_of_strangers_are_refused() {
    for key in [
        "",
        "forward",
        "forward:f32:nchw:1x16x64x64:32x3x3:s1x1:p1x1:d1x1:g1:t",
        "forward:f32:nchw:1x16x64x64:32x3x3:s1x1:p1x1:d1x1:g1:x:o0x0",
        "forward:f32:nchw:1x16x64:32x3x3:s1x1:p1x1:d1x1:g1",
        "forward:f32:nchw:1x16x64x64x1:32x3x3:s1x1:p1x1:d1x1:g1",
        "forward:f32:nchw:+1x16x64x64:32x3x3:s1x1:p1x1:d1x1:g1",
        "forward:f32:nchw:1x16x64x64:32x3x3:s1x1:p1x1:d1x1:g99999999999999999999",
        "forward:f8:nchw:1x16x64x64:32x3x3:s1x1:p1x1:d1x1:g1",
        "forward:f32:nchw:1x16x64x64:32x3x3:s1x1:p1x1:d1x1:g3",
    ] {
        assert!(key.parse::<Problem>().is_err(), "{key:?} was taken");
    }
}

#[test]
fn the_key_is_the_same_everywhere() {
    let problem = Problem::new(base()).unwrap();
    // It must never change, since stores on disk rely on it.
    assert_eq!(problem.to_string(), "forward:f32:nchw:2x4x8x9:6x3x2:s1x1:p1x0:d1x1:g1");
}

fn any_problem() -> impl Strategy<Value = Problem> {
    let sizes = (1i64..4, 1i64..4, 1i64..4, 1i64..4, [1i64..12, 1i64..12], [1i64..4, 1i64..4]);
    let geometry = ([1i64..4, 1i64..4], [0i64..4, 0i64..4], [1i64..4, 1i64..4], [0i64..3, 0i64..3]);
    let kind = (any::<bool>(), 0usize..3, 0usize..2, 0usize..4);
    (sizes, geometry, kind).prop_filter_map("makes no convolution", |(sizes, geometry, kind)| {
        let (batch, groups, cg, kg, in_size, kernel) = sizes;
        let (stride, padding, dilation, output_padding) = geometry;
        let (transposed, direction, layout, data_type) = kind;
        Problem::new(Specification {
            batch,
            in_channels: groups * cg,
            in_size,
            out_channels: groups * kg,
            kernel,
            stride,
            padding,
            dilation,
            groups,
            transposed,
            output_padding: if transposed { output_padding } else { [0, 0] },
            data_type: DataType::ALL[data_type],
            layout: Layout::ALL[layout],
            direction: Direction::ALL[direction],
        })
        .ok()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn a_key_reads_back_as_its_problem(problem in any_problem()) {
        let read: Problem = problem.to_string().parse().unwrap();
        prop_assert_eq!(&read, &problem);
        prop_assert_eq!(Problem::new(problem.specification()).unwrap(), problem);
    }

    #[test]
    fn lowering_keeps_the_tensors_and_the_work(problem in any_problem()) {
        let lowered = problem.lower();
        let [mut first, mut second, result] = problem.operand_shapes();
        if lowered.operands_exchanged {
            std::mem::swap(&mut first, &mut second);
        }
        prop_assert_eq!(lowered.problem.operand_shapes(), [first, second, result]);
        prop_assert_eq!(lowered.problem.flops(), problem.flops());
        prop_assert!(!lowered.problem.transposed());
        // The ordinary convolution really has the output that the lowering claims.
        prop_assert_eq!(Problem::new(lowered.problem.specification()).unwrap(), lowered.problem);
    }

    /// <y, conv(x)> = <x, data gradient of y> = <w, weight gradient>: the three directions are one bilinear form.
    #[test]
    fn the_three_directions_agree(problem in any_problem(), seed in any::<u64>()) {
        let numbers = |shape: [usize; 4], salt: u64| -> Vec<f64> {
            (0..shape.iter().product::<usize>() as u64)
                .map(|i| ((i + 1).wrapping_mul(seed ^ salt | 1) >> 40) as f64 / (1u64 << 24) as f64 - 0.5)
                .collect()
        };
        let x = numbers(problem.input_shape(), 0x1234_5677);
        let w = numbers(problem.weight_shape(), 0x9234_5a71);
        let y = numbers(problem.output_shape(), 0x7777_1111);
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        let forward = reference::compute(&problem.with_direction(Direction::Forward), &x, &w, None);
        let data = reference::compute(&problem.with_direction(Direction::BackwardData), &y, &w, None);
        let weights = reference::compute(&problem.with_direction(Direction::BackwardWeights), &x, &y, None);
        let scale = 1e-9 * (1.0 + dot(&y, &y));
        prop_assert!((dot(&y, &forward) - dot(&x, &data)).abs() <= scale);
        prop_assert!((dot(&y, &forward) - dot(&w, &weights)).abs() <= scale);
    }

    #[test]
    fn tiles_cover_the_output_once_and_read_all_that_they_need(problem in any_problem(), limit in 1usize..6) {
        let problem = problem.lower().problem;
        let [height, width] = problem.out_size();
        let mut covered = vec![0; height * width];
        for tile in tile::tiles(&problem, limit) {
            for (axis, span) in tile.iter().enumerate() {
                prop_assert!(span.out_length <= limit);
                prop_assert!(span.in_start + span.in_length <= problem.in_size()[axis]);
            }
            let part = tile::tile_problem(&problem, &tile).unwrap();
            prop_assert_eq!(part.out_size(), [tile[0].out_length, tile[1].out_length]);
            for row in tile[0].out_start..tile[0].out_start + tile[0].out_length {
                for column in tile[1].out_start..tile[1].out_start + tile[1].out_length {
                    covered[row * width + column] += 1;
                }
            }
        }
        prop_assert!(covered.iter().all(|&times| times == 1));
    }

    #[test]
    fn no_text_makes_the_parser_panic(text in ".{0,80}") {
        let _ = text.parse::<Problem>();
        let _ = unhang_conv::table::parse(&text);
    }
}
