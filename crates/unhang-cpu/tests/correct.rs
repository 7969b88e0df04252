//! Every problem, in every type of numbers, against the reference.

use proptest::prelude::*;
use unhang_conv::{DataType, Direction, Layout, Problem, Specification};
use unhang_cpu::{CpuEngine, CpuSettings, Isa};
use unhang_engine::Operands;
use unhang_suite::{Tensor, any_problem, any_volume, check, check_volume};

/// Cases for each test: few by default, thousands with `UNHANG_TEST_CASES=5000` in release mode.
fn cases() -> ProptestConfig {
    let cases = std::env::var("UNHANG_TEST_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(64);
    ProptestConfig { cases, ..ProptestConfig::default() }
}

fn passes(problem: &Problem, seed: u64) -> Result<(), TestCaseError> {
    // Every instruction set that this machine has, whatever the environment says.
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
        let engine = CpuEngine::with_settings(CpuSettings { threads: 2, isa: Some(isa), ..CpuSettings::default() });
        check(&engine, problem, seed).map_err(|failure| TestCaseError::fail(format!("{isa}: {failure}")))?;
    }
    Ok(())
}

/// The bits of a result computed with that many threads.
fn bits(problem: &Problem, seed: u64, threads: usize) -> Vec<u64> {
    let [first, second, result] = problem.operand_shapes().map(|shape| shape.iter().product::<usize>());
    let first = Tensor::random(problem.data_type(), first, seed);
    let second = Tensor::random(problem.data_type(), second, seed + 1);
    let mut result = Tensor::unwritten(problem.data_type(), result);
    let operands =
        Operands { first: first.elements(), second: second.elements(), bias: None, result: result.elements_mut() };
    CpuEngine::new().run_with(problem, operands, &CpuSettings { threads, ..CpuSettings::default() }).unwrap();
    result.to_f64().into_iter().map(f64::to_bits).collect()
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn single_precision(problem in any_problem(DataType::F32), seed in 0u64..1000) {
        passes(&problem, seed)?;
    }

    #[test]
    fn half_precision(problem in any_problem(DataType::F16), seed in 0u64..1000) {
        passes(&problem, seed)?;
    }

    #[test]
    fn bfloat16(problem in any_problem(DataType::Bf16), seed in 0u64..1000) {
        passes(&problem, seed)?;
    }

    #[test]
    fn double_precision(problem in any_problem(DataType::F64), seed in 0u64..1000) {
        passes(&problem, seed)?;
    }

    #[test]
    fn threads_change_nothing(problem in any_problem(DataType::F32), seed in 0u64..1000) {
        let alone = bits(&problem, seed, 1);
        prop_assert_eq!(&alone, &bits(&problem, seed, 2));
        prop_assert_eq!(&alone, &bits(&problem, seed, 5));
    }
}

/// Where units and panels depend on the threads: products in place, images beside each other, small depthwise planes.
#[test]
fn threads_change_nothing_in_what_they_share_out() {
    let shapes = [
        "5x300x7x7:270x1x1:s1x1:p0x0:d1x1:g1",
        "2x33x23x17:50x1x1:s1x1:p0x0:d1x1:g1",
        "7x600x1x1:300x1x1:s1x1:p0x0:d1x1:g1",
        "7x20x1x1:300x1x1:s1x1:p0x0:d1x1:g1",
        "3x200x14x14:5x1x1:s1x1:p0x0:d1x1:g1",
        // More channels than are summed at a time, and a plane that ends within a vector.
        "2x800x9x13:7x1x1:s1x1:p0x0:d1x1:g1",
        "2x7x9x13:800x1x1:s1x1:p0x0:d1x1:g1",
        "2x200x7x7:200x5x5:s1x1:p2x2:d1x1:g200",
        // More depthwise channels than are kept together.
        "2x70x7x9:70x3x3:s1x1:p1x1:d1x1:g70",
        // Several filters a channel, on more images than are computed at a time.
        "12x24x21x20:72x3x3:s1x1:p1x1:d1x1:g24",
    ];
    for (direction, layout) in Direction::ALL.into_iter().flat_map(|it| Layout::ALL.map(|layout| (it, layout))) {
        for shape in shapes {
            let problem: Problem = format!("{direction}:f32:{layout}:{shape}").parse().expect("a key");
            let alone = bits(&problem, 5, 1);
            for threads in [2, 5, 16] {
                assert_eq!(alone, bits(&problem, 5, threads), "{problem} with {threads} threads");
            }
        }
    }
}

/// Depthwise problems, which the general strategy makes seldom, of one filter a channel and of a few.
fn depthwise() -> impl Strategy<Value = Problem> {
    let filters = prop_oneof![3 => Just(1i64), 2 => 2i64..6];
    (any_problem(DataType::F32), 2i64..40, filters).prop_filter_map("makes no convolution", |sizes| {
        let (problem, channels, filters) = sizes;
        // A transposed one gathers what an ordinary one scatters.
        let (in_channels, out_channels) =
            if problem.transposed() { (channels * filters, channels) } else { (channels, channels * filters) };
        Problem::new(Specification { in_channels, out_channels, groups: channels, ..problem.specification() }).ok()
    })
}

/// Depthwise problems with large filters on images of several blocks of rows and vectors: taps in runs of every length.
fn large_depthwise() -> impl Strategy<Value = Problem> {
    let sizes = (1i64..5, [1i64..24, 1i64..80], [1i64..16, 1i64..12], [0i64..8, 0i64..8]);
    (any_problem(DataType::F32), sizes).prop_filter_map("makes no convolution", |(problem, sizes)| {
        let (channels, in_size, kernel, padding) = sizes;
        let specification = problem.specification();
        Problem::new(Specification {
            in_channels: channels,
            out_channels: channels,
            groups: channels,
            in_size,
            kernel,
            padding,
            ..specification
        })
        .ok()
    })
}

/// 1×1 convolutions, with sizes at which panels of pixels have their edges.
fn pointwise() -> impl Strategy<Value = Problem> {
    let sizes = (1i64..70, 1i64..70, 1i64..40, 1i64..4);
    (any_problem(DataType::F32), sizes).prop_filter_map("makes no convolution", |(problem, sizes)| {
        let (in_channels, out_channels, width, groups) = sizes;
        let specification = problem.specification();
        Problem::new(Specification {
            in_channels: in_channels * groups,
            out_channels: out_channels * groups,
            in_size: [specification.in_size[0], width],
            kernel: [1, 1],
            stride: [1, 1],
            padding: [0, 0],
            output_padding: [0, 0],
            groups,
            ..specification
        })
        .ok()
    })
}

/// Small groups, whose results are computed with pixels in vectors: lines of several rows, strips and strides.
fn grouped() -> impl Strategy<Value = Problem> {
    let sizes = (3i64..18, 1i64..18, 1i64..5, [1i64..24, 1i64..60]);
    (any_problem(DataType::F32), sizes).prop_filter_map("makes no convolution", |(problem, sizes)| {
        let (in_group, out_group, groups, in_size) = sizes;
        let (in_channels, out_channels) = (groups * in_group, groups * out_group);
        Problem::new(Specification { in_channels, out_channels, groups, in_size, ..problem.specification() }).ok()
    })
}

/// Few channels of the image, as stems have them: data gradients with pixels in vectors, in as many phases as there are
/// strides.
fn stems() -> impl Strategy<Value = Problem> {
    let sizes = (1i64..6, 1i64..40, 1i64..3, [1i64..40, 1i64..90], [1i64..6, 1i64..6], [1i64..8, 1i64..8]);
    (any_problem(DataType::F32), sizes).prop_filter_map("makes no convolution", |(problem, sizes)| {
        let (in_group, out_group, groups, in_size, stride, kernel) = sizes;
        let (in_channels, out_channels) = (groups * in_group, groups * out_group);
        let specification = problem.specification();
        let changed = Specification { in_channels, out_channels, groups, in_size, stride, kernel, ..specification };
        Problem::new(changed).ok()
    })
}

/// Taps that lie far apart, most of which meet padding somewhere, and some everywhere.
fn dilated() -> impl Strategy<Value = Problem> {
    let sizes = ([1i64..30, 1i64..30], [1i64..13, 1i64..13], [0i64..13, 0i64..13]);
    (any_problem(DataType::F32), sizes).prop_filter_map("makes no convolution", |(problem, sizes)| {
        let (in_size, dilation, padding) = sizes;
        Problem::new(Specification { in_size, dilation, padding, ..problem.specification() }).ok()
    })
}

/// Many channels on few pixels: several blocks of sources and of results, and filters too large for the cache.
fn wide() -> impl Strategy<Value = Problem> {
    let channels = || prop_oneof![60i64..140, 190i64..270];
    let sizes = (channels(), channels(), [1i64..8, 1i64..8], [1i64..4, 1i64..4], 1i64..3);
    (any_problem(DataType::F32), sizes).prop_filter_map("makes no convolution", |(problem, sizes)| {
        let (in_channels, out_channels, in_size, kernel, batch) = sizes;
        let groups = 1;
        let (padding, dilation) = ([1, 1], [1, 1]);
        let specification = problem.specification();
        let changed = Specification {
            batch,
            in_channels,
            out_channels,
            in_size,
            kernel,
            padding,
            dilation,
            groups,
            ..specification
        };
        Problem::new(changed).ok()
    })
}

proptest! {
    // Each of these takes as long as many of the others.
    #![proptest_config(ProptestConfig { cases: cases().cases.div_ceil(8), ..cases() })]

    #[test]
    fn many_channels(problem in wide(), seed in 0u64..1000) {
        passes(&problem, seed)?;
        prop_assert_eq!(bits(&problem, seed, 1), bits(&problem, seed, 3));
    }
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn pointwise_convolutions(problem in pointwise(), seed in 0u64..1000) {
        passes(&problem, seed)?;
        prop_assert_eq!(bits(&problem, seed, 1), bits(&problem, seed, 3));
    }

    #[test]
    fn grouped_convolutions(problem in grouped(), seed in 0u64..1000) {
        passes(&problem, seed)?;
        prop_assert_eq!(bits(&problem, seed, 1), bits(&problem, seed, 3));
    }

    #[test]
    fn convolutions_of_stems(problem in stems(), seed in 0u64..1000) {
        passes(&problem, seed)?;
        prop_assert_eq!(bits(&problem, seed, 1), bits(&problem, seed, 3));
    }

    #[test]
    fn dilated_convolutions(problem in dilated(), seed in 0u64..1000) {
        passes(&problem, seed)?;
        prop_assert_eq!(bits(&problem, seed, 1), bits(&problem, seed, 3));
    }

    #[test]
    fn large_depthwise_convolutions(problem in large_depthwise(), seed in 0u64..1000) {
        passes(&problem, seed)?;
        prop_assert_eq!(bits(&problem, seed, 1), bits(&problem, seed, 3));
    }

    #[test]
    fn depthwise_convolutions(problem in depthwise(), seed in 0u64..1000) {
        passes(&problem, seed)?;
        prop_assert_eq!(bits(&problem, seed, 1), bits(&problem, seed, 3));
    }
}

/// Matrix products with many channels, and weight gradients whose pixels are cut into segments.
#[test]
fn large_problems_pass_with_any_number_of_threads() {
    let keys = [
        "forward:f32:nhwc:2x260x6x7:100x1x1:s1x1:p0x0:d1x1:g1",
        // Depthwise: several strips of rows, tiles of columns and blocks of channels, the last of which is not whole.
        "forward:f32:nhwc:1x70x60x90:70x5x5:s1x1:p2x2:d1x1:g70",
        "backward-data:f32:nhwc:2x150x50x40:150x7x5:s1x1:p3x0:d1x2:g150",
        // One filter and a few, on more pixels than are one unit.
        "forward:f32:nhwc:2x40x30x30:3x1x1:s1x1:p0x0:d1x1:g1",
        "backward-data:f32:nhwc:2x1x30x30:40x1x1:s1x1:p0x0:d1x1:g1",
        "forward:f32:nhwc:1x256x9x8:130x1x1:s2x2:p0x0:d1x1:g1",
        "backward-data:f32:nhwc:2x100x9x7:320x1x1:s2x3:p0x0:d1x1:g1",
        "backward-weights:f32:nhwc:3x5x40x40:6x3x3:s1x1:p1x1:d1x1:g1",
        "backward-weights:f32:nchw:3x5x40x40:6x3x3:s1x1:p1x1:d1x1:g1",
        "backward-weights:f32:nhwc:2x12x30x40:16x1x1:s1x1:p0x0:d1x1:g2",
        "backward-weights:f32:nhwc:2x20x30x40:20x3x3:s2x1:p1x1:d1x1:g20",
        "backward-weights:f32:nhwc:3x40x61x70:40x3x3:s1x1:p1x1:d1x1:g40",
        "backward-weights:f32:nhwc:1x80x40x40:70x1x1:s1x1:p0x0:d1x1:g1",
        "backward-weights:f32:nhwc:2x150x21x19:80x1x1:s1x1:p0x0:d1x1:g1",
        // Planes that fall into the same sets of a cache are packed, others are read in place.
        "backward-weights:f32:nchw:2x20x32x32:18x3x3:s1x1:p2x2:d2x2:g1",
        "backward-weights:f32:nchw:2x20x33x32:18x3x3:s1x1:p2x2:d2x2:g1",
        "backward-weights:f32:nchw:2x33x64x64:5x3x3:s2x2:p1x1:d1x1:g1",
        "backward-weights:f32:nchw:2x33x33x35:5x3x3:s2x2:p1x1:d1x1:g1",
        "backward-weights:f32:nchw:2x36x19x19:40x1x1:s1x1:p0x0:d1x1:g2",
        // With pixels in vectors: chunks of rows, several chains, groups and segments.
        "backward-weights:f32:nchw:5x1x90x90:40x3x3:s1x1:p1x1:d1x1:g1",
        "backward-weights:f32:nchw:1x2x100x100:2x15x15:s1x1:p7x7:d1x1:g1",
        "backward-weights:f32:nchw:3x8x70x70:8x3x3:s1x1:p1x1:d1x1:g2",
        "forward:f32:nchw:1x3x90x131:40x3x3:s1x1:p1x1:d1x1:g1",
        "forward:f32:nchw:1x96x26x34:50x2x2:s2x2:p0x0:d1x1:g1",
        // Patches, and many channels for few results.
        "forward:f32:nchw:2x3x96x128:40x32x32:s32x32:p0x0:d1x1:g1",
        "forward:f32:nhwc:2x3x99x130:40x32x16:s32x16:p0x0:d1x1:g1",
        "backward-data:f32:nchw:2x3x96x128:40x32x32:s32x32:p0x0:d1x1:g1",
        "backward-weights:f32:nchw:2x3x96x128:40x32x32:s32x32:p0x0:d1x1:g1",
        "forward:f32:nhwc:2x5x100x90:19x3x5:s40x33:p1x2:d1x1:g1",
        "backward-data:f32:nchw:1x4x40x64:320x3x3:s1x1:p1x1:d1x1:g1",
        "backward-weights:f32:nchw:2x40x60x60:2x1x1:s1x1:p0x0:d1x1:g1",
        // Filters that reach far over rows.
        "forward:f32:nchw:1x8x90x90:8x3x3:s1x1:p60x60:d60x60:g1",
        "backward-weights:f32:nchw:1x8x90x90:8x3x3:s1x1:p60x60:d60x60:g1",
    ];
    for key in keys {
        let problem: Problem = key.parse().expect("a key");
        passes(&problem, 5).expect("as the reference");
        let alone = bits(&problem, 5, 1);
        for threads in [2, 3, 7] {
            assert!(bits(&problem, 5, threads) == alone, "{problem} with {threads} threads");
        }
    }
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn three_axes_of_space(
        volume in prop::sample::select(DataType::ALL.to_vec()).prop_flat_map(any_volume),
        seed in 0u64..1000,
    ) {
        check_volume(&CpuEngine::with_threads(2), &volume, seed)
            .map_err(|failure| TestCaseError::fail(failure.to_string()))?;
    }
}
