//! Tests of Winograd on shapes that it would not be chosen for too.

use proptest::prelude::*;
use unhang_conv::{Direction, Layout, Problem, Specification, reference};
use unhang_suite::compare;

use super::super::work::Work;
use super::plan::Kept;
use super::*;
use crate::algorithm::Algorithm;
use unhang_simd::Isa;

/// Any convolution that Winograd can compute: three by three without stride, images of one pixel and dilated filters among
/// them. Or filters of three by three to eight by eight with a stride of two, few channels among them.
pub(crate) fn any_shape() -> impl Strategy<Value = Problem> {
    let channels = || prop_oneof![1i64..40, Just(16), Just(32), Just(48), 60i64..80];
    let sizes = (1i64..3, channels(), channels(), [1i64..19, 1i64..75], [0i64..4, 0i64..4]);
    let dilated = prop_oneof![Just([1i64, 1]), [1i64..4, 1i64..8]].prop_map(|dilation| (3, 1, dilation));
    let strided = prop_oneof![Just(3), 3i64..9].prop_map(|taps| (taps, 2, [1, 1]));
    let kind = (prop::sample::select(Layout::ALL.to_vec()), any::<bool>(), prop_oneof![dilated, strided]);
    (sizes, kind).prop_filter_map("makes no convolution", |(sizes, (layout, forward, filter))| {
        let (taps, stride, dilation) = filter;
        let (batch, in_channels, out_channels, in_size, padding) = sizes;
        Problem::new(Specification {
            batch,
            in_channels,
            out_channels,
            in_size,
            padding: [padding[0] * dilation[0], padding[1] * dilation[1]],
            dilation,
            stride: [stride, stride],
            kernel: [taps, taps],
            layout,
            direction: if forward { Direction::Forward } else { Direction::BackwardData },
            ..Specification::default()
        })
        .ok()
        .filter(|problem| shape(problem, &Gather::new(problem), 16).is_some())
    })
}

/// Gradients of images of one row, or of one column, whose filters step by two: wide enough for Winograd otherwise.
#[test]
fn images_without_a_second_parity_are_left_to_others() {
    for in_size in [[1, 150], [150, 1]] {
        let problem = Problem::new(Specification {
            batch: 2,
            in_channels: 64,
            out_channels: 64,
            in_size,
            kernel: [3, 3],
            padding: [1, 1],
            stride: [2, 2],
            direction: Direction::BackwardData,
            ..Specification::default()
        })
        .expect("a convolution");
        assert!(shape(&problem, &Gather::new(&problem), 16).is_none(), "{problem}");
    }
}

/// Any convolution that can be computed along one axis: odd sizes, several images in a unit, taps of the other axis that
/// lie apart, and padding that is wider than the filter.
pub(crate) fn any_shape_along_one_axis() -> impl Strategy<Value = Problem> {
    let channels = || prop_oneof![1i64..40, Just(16), Just(32), 60i64..80];
    let taps = || prop::sample::select(vec![3i64, 5, 7]);
    let kernel = prop_oneof![(taps(), 1i64..6), taps().prop_map(|taps| (1, taps))];
    let sizes = (1i64..5, channels(), channels(), [1i64..30, 1i64..40], [0i64..6, 0i64..6]);
    let kind = (kernel, 1i64..4, any::<bool>());
    (sizes, kind).prop_filter_map("makes no convolution", |(sizes, (kernel, apart, forward))| {
        let (batch, in_channels, out_channels, in_size, padding) = sizes;
        Problem::new(Specification {
            batch,
            in_channels,
            out_channels,
            in_size,
            padding,
            dilation: if kernel.0 == 1 { [apart, 1] } else { [1, apart] },
            kernel: [kernel.0, kernel.1],
            layout: Layout::Nchw,
            direction: if forward { Direction::Forward } else { Direction::BackwardData },
            ..Specification::default()
        })
        .ok()
    })
}

pub(crate) fn problem(key: &str) -> Problem {
    key.parse().expect("a key")
}

/// Numbers from -1 to 1 that look random, the same every time.
pub(crate) fn numbers(length: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        f64::from(state) / f64::from(u32::MAX) * 2.0 - 1.0
    };
    (0..length).map(|_| next() as f32).collect()
}

pub(crate) fn operands(problem: &Problem) -> [Vec<f32>; 2] {
    let lengths = problem.operand_shapes().map(|shape| shape.iter().product::<usize>());
    [numbers(lengths[0], 1), numbers(lengths[1], 2)]
}

pub(crate) fn available() -> impl Iterator<Item = Isa> {
    Isa::ALL.into_iter().filter(|isa| isa.is_available())
}

fn run(problem: &Problem, isa: Isa, operands: &[Vec<f32>; 2], bias: Option<&[f32]>, threads: usize) -> Vec<f32> {
    let mut result = vec![f32::NAN; problem.operand_shapes()[2].iter().product()];
    let both_axes = problem.kernel() == [3, 3] || problem.stride() == [2, 2];
    let algorithm = match problem.direction() {
        Direction::BackwardWeights if both_axes => Algorithm::WinogradWeights,
        Direction::BackwardWeights => Algorithm::WinogradAxisWeights,
        _ if both_axes => Algorithm::Winograd,
        _ => Algorithm::WinogradAxis,
    };
    let kernels = Kernels::of(isa);
    let [first, second] = operands;
    let work = Work { kernels, first, second, bias, result: &mut result, threads };
    super::super::compute_with(problem, algorithm, work);
    result
}

fn both_directions(shape: &str) -> impl Iterator<Item = Problem> {
    ["forward:f32:nchw", "forward:f32:nhwc", "backward-data:f32:nchw", "backward-data:f32:nhwc"]
        .map(|kind| problem(&format!("{kind}:{shape}:s1x1:p1x1:d1x1:g1")))
        .into_iter()
}

/// Strided filters with two, three and four places, some of which have no tap at the first or at the last. They go from
/// `images` (their number, channels and size) to this many filters.
fn strided<'a>(kinds: &'a [&'a str], images: &'a str, filters: usize) -> impl Iterator<Item = Problem> + 'a {
    let taps = ["3x3:s2x2:p1x1", "3x3:s2x2:p0x0", "4x4:s2x2:p1x1", "5x5:s2x2:p2x2", "7x7:s2x2:p3x3"];
    let layouts = ["nchw", "nhwc"];
    let key =
        move |kind: &str, layout: &str, taps: &str| format!("{kind}:f32:{layout}:{images}:{filters}x{taps}:d1x1:g1");
    kinds.iter().flat_map(move |kind| {
        layouts.into_iter().flat_map(move |layout| taps.map(|taps| problem(&key(kind, layout, taps))))
    })
}

/// The directions whose results are tiles.
const TILED: &[&str] = &["forward", "backward-data"];

/// Three, five and seven taps along rows or columns, of this many images and channels of that size, to this many filters.
fn along_one_axis(images: &str, filters: usize) -> impl Iterator<Item = Problem> {
    TILED
        .iter()
        .flat_map(move |direction| along_one_axis_in(direction, images, filters))
        .collect::<Vec<_>>()
        .into_iter()
}

/// Filters along one axis, in one direction.
fn along_one_axis_in(direction: &str, images: &str, filters: usize) -> [Problem; 5] {
    let taps = ["3x1:s1x1:p1x0", "1x5:s1x1:p0x2", "5x5:s1x1:p2x2", "7x1:s1x1:p3x0", "1x7:s1x1:p0x3"];
    taps.map(|taps| problem(&format!("{direction}:f32:nchw:{images}:{filters}x{taps}:d1x1:g1")))
}

fn assert_threads_change_nothing(problem: &Problem, isa: Isa) {
    let operands = operands(problem);
    let bits = |threads: usize| {
        let result = run(problem, isa, &operands, None, threads);
        result.into_iter().map(f32::to_bits).collect::<Vec<_>>()
    };
    let alone = bits(1);
    assert!(alone == bits(2) && alone == bits(7), "{isa} {problem}");
}

#[test]
fn threads_do_not_change_what_is_computed_along_one_axis() {
    for problem in along_one_axis("3x24x50x37", 40).chain(along_one_axis("2x130x6x9", 90)) {
        available().for_each(|isa| assert_threads_change_nothing(&problem, isa));
    }
}

#[test]
fn threads_and_plans_change_nothing() {
    let mut seen = Vec::new();
    let dense = ["2x24x50x37:40x3x3", "1x130x6x9:90x3x3"].into_iter().flat_map(both_directions);
    let strided = strided(TILED, "2x24x50x37", 40).chain(strided(TILED, "1x130x11x18", 90));
    for problem in dense.chain(strided).chain(strided_of_few_channels()) {
        for isa in available() {
            assert_threads_change_nothing(&problem, isa);
            let shape = shape(&problem, &Gather::new(&problem), isa.lanes()).expect("Winograd can compute it");
            seen.extend([1, 2, 7].map(|threads| shape.plan(threads).kept));
        }
    }
    assert!(seen.contains(&Kept::Filters) && seen.contains(&Kept::Tiles));
}

/// Images of a few channels, all parities of which lie in the same vectors.
fn strided_of_few_channels() -> impl Iterator<Item = Problem> {
    let images = ["2x3x37x50", "1x4x20x31", "2x1x40x23"];
    images.into_iter().flat_map(|images| strided(&["forward"], images, 40).collect::<Vec<_>>())
}

/// Phases of different sizes, some of which have no pixel of the source, and more of them than there are rows.
#[test]
fn dilated_images_are_computed_phase_by_phase() {
    let shapes = ["2x20x17x23:33x3x3:s1x1:p2x3:d2x3:g1", "1x24x7x33:16x3x3:s1x1:p12x6:d12x6:g1"];
    for kind in ["forward", "backward-data", "backward-weights"] {
        for (layout, shape) in ["nchw", "nhwc"].into_iter().flat_map(|layout| shapes.map(|shape| (layout, shape))) {
            let problem = problem(&format!("{kind}:f32:{layout}:{shape}"));
            assert_small_errors(&problem, 2);
        }
    }
}

/// The bias goes along the channels of the result.
#[test]
fn a_bias_is_added() {
    let strided = strided(TILED, "1x19x9x10", 35).chain(strided_of_few_channels());
    for problem in both_directions("1x19x9x10:35x3x3").chain(along_one_axis("1x19x9x10", 35)).chain(strided) {
        let operands = operands(&problem);
        let channels = problem.operand_shapes()[2][1];
        let bias = numbers(channels, 3);
        for isa in available() {
            let without = run(&problem, isa, &operands, None, 1);
            let with = run(&problem, isa, &operands, Some(&bias), 1);
            let pixels = without.len() / channels / problem.batch();
            for (index, (with, without)) in with.iter().zip(&without).enumerate() {
                let channel = match problem.layout() {
                    Layout::Nchw => index / pixels % channels,
                    Layout::Nhwc => index % channels,
                };
                assert!((with - without - bias[channel]).abs() < 1e-4, "{isa} {problem}: {index}");
            }
        }
    }
}

/// Errors far below the suite's tolerance (1e-5 and 3e-5), with many channels and with images that are nowhere negative.
#[test]
fn errors_are_small() {
    for channels in [64, 512, 1024] {
        for problem in both_directions(&format!("1x{channels}x8x8:{channels}x3x3")) {
            assert_small_errors(&with_sixteen_results(&problem), 1);
        }
    }
}

/// With a stride, sums run over four times as many channels.
#[test]
fn errors_of_strided_filters_are_small() {
    for channels in [64, 512] {
        for problem in strided(TILED, &format!("1x{channels}x13x12"), channels) {
            assert_errors_below([6e-6, 2e-5], &with_sixteen_results(&problem), 1);
        }
    }
}

/// Sixteen channels of the result are enough to look at, and the reference is slow.
fn with_sixteen_results(problem: &Problem) -> Problem {
    let mut specification = problem.specification();
    match problem.direction() {
        Direction::Forward => specification.out_channels = 16,
        _ => specification.in_channels = 16,
    }
    Problem::new(specification).expect("a narrower result")
}

#[test]
fn errors_of_few_channels_are_small() {
    for problem in strided_of_few_channels() {
        assert_small_errors(&problem, 2);
    }
}

/// Seven taps have the largest errors.
#[test]
fn errors_along_one_axis_are_small() {
    for channels in [64, 512] {
        for problem in along_one_axis(&format!("1x{channels}x9x8"), channels) {
            assert_errors_below([6e-6, 1.5e-5], &with_sixteen_results(&problem), 1);
        }
    }
}

/// Weight gradients sum over many pixels in several blocks, over several chains of them, and over one block.
#[test]
fn errors_of_weight_gradients_along_one_axis_are_small() {
    for images in ["7x16x60x56", "16x18x17x17", "1x40x9x14", "2x3x4x500"] {
        for problem in along_one_axis_in("backward-weights", images, 18) {
            assert_errors_below([6e-6, 1.5e-5], &problem, 2);
        }
    }
}

/// Asserts it of a way to compute a problem with numbers that are not finite in its first operand.
pub(crate) fn assert_not_finite_numbers_belong(problem: &Problem, run: impl Fn(Isa, &[Vec<f32>; 2]) -> Vec<f32>) {
    let [mut first, second] = operands(problem);
    for (at, number) in [(37, f32::NAN), (211, f32::INFINITY), (503, f32::NEG_INFINITY)] {
        first[at] = number;
    }
    let operands = [first, second.into_iter().map(|number| number + 2.0).collect()];
    let expected = reference::compute(problem, &operands[0], &operands[1], None);
    for isa in available() {
        for (index, (got, &want)) in run(isa, &operands).into_iter().zip(&expected).enumerate() {
            let same = if want.is_nan() { got.is_nan() } else { want.is_finite() || f64::from(got) == want };
            assert!(same && got.is_finite() == want.is_finite(), "{isa} {problem}: {got} for {want} at {index}");
        }
    }
}

/// What is not finite goes where the definition puts it and nowhere else; infinities keep their sign. The second image
/// has no such number, and is not computed twice.
#[test]
fn not_finite_numbers_go_where_they_belong() {
    let strided = strided(TILED, "2x20x11x13", 33);
    for problem in both_directions("2x20x11x13:33x3x3").chain(along_one_axis("2x20x11x13", 33)).chain(strided) {
        assert_not_finite_numbers_belong(&problem, |isa, operands| run(&problem, isa, operands, None, 2));
    }
}

/// Numbers so large that their transforms overflow, and results that do not.
#[test]
fn an_overflow_inside_is_repaired() {
    let strided = strided(TILED, "1x17x9x9", 18);
    for problem in both_directions("1x17x9x9:18x3x3").chain(along_one_axis("1x17x9x9", 18)).chain(strided) {
        let [first, second] = operands(&problem);
        let first: Vec<f32> = first.into_iter().map(|number| number * 2e38).collect();
        let second: Vec<f32> = second.into_iter().map(|number| number * 1e-3).collect();
        let expected = reference::compute(&problem, &first, &second, None);
        for isa in available() {
            let got = run(&problem, isa, &[first.clone(), second.clone()], None, 1);
            let got: Vec<f64> = got.into_iter().map(f64::from).collect();
            let errors = compare(&got, &expected);
            assert!(errors.not_finite == 0 && errors.max < 3e-5, "{isa} {problem}: {errors:?}");
        }
    }
}

/// The direct path's results, to the last bit: in both plans, and from filters that are kept from call to call.
#[test]
fn filters_that_are_not_finite_are_left_to_the_direct_path() {
    let along_one_axis = [along_one_axis("2x24x50x37", 40), along_one_axis("1x130x6x9", 90)].into_iter().flatten();
    let both_axes = ["2x24x50x37:40x3x3", "1x130x6x9:90x3x3"].into_iter().flat_map(both_directions);
    let strided = strided(TILED, "2x24x50x37", 40);
    for problem in both_axes.chain(along_one_axis).chain(strided) {
        let [first, mut second] = operands(&problem);
        second[100] = f32::NAN;
        second[777] = f32::NEG_INFINITY;
        for isa in available() {
            let operands = [first.clone(), second.clone()];
            let mut direct = vec![0.0; problem.operand_shapes()[2].iter().product()];
            let gather = Gather::new(&problem);
            let [first, second] = &operands;
            let work = Work { kernels: Kernels::of(isa), first, second, bias: None, result: &mut direct, threads: 1 };
            gather::compute(&gather, work);
            for threads in [1, 2] {
                let got = run(&problem, isa, &operands, None, threads);
                let same = got.iter().zip(&direct).all(|(a, b)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan());
                assert!(same, "{isa} {problem}");
            }
        }
    }
}

/// A filter that changes between calls, and one that is used in the other direction.
#[test]
fn kept_filters_are_never_stale() {
    let strided = strided(TILED, "1x64x9x12", 64);
    for problem in both_directions("1x64x9x12:64x3x3").chain(along_one_axis("1x64x9x12", 64)).chain(strided) {
        let mut operands = operands(&problem);
        for round in 0..2 {
            operands[1][round * 1000] += 1.0;
            let expected = reference::compute(&problem, &operands[0], &operands[1], None);
            let got = run(&problem, Isa::detect(), &operands, None, 1);
            let got: Vec<f64> = got.into_iter().map(f64::from).collect();
            assert!(compare(&got, &expected).max < 1e-5, "{problem}, round {round}");
        }
    }
}

/// Its workspace is no reason not to use it for any dense layer of the table, as it is and with one image.
#[test]
fn every_dense_layer_of_the_table_has_room() {
    let mut dense = 0;
    for layer in unhang_suite::layers() {
        for layout in Layout::ALL {
            for direction in [Direction::Forward, Direction::BackwardData] {
                for batch in [layer.problem.batch(), 1] {
                    let specification = layer.problem.specification();
                    let specification = Specification { batch: batch as i64, layout, direction, ..specification };
                    let problem = Problem::new(specification).expect("the layer with another batch");
                    let channels = problem.in_channels().min(problem.out_channels());
                    let wanted = problem.kernel() == [3, 3] && channels >= 16 && problem.groups() == 1;
                    if wanted && [problem.stride(), problem.dilation()] == [[1, 1]; 2] {
                        dense += 1;
                        assert!([8, 16].iter().all(|&lanes| outlook(&problem, lanes).is_some()), "{problem}");
                    }
                }
            }
        }
    }
    assert!(dense > 100);
}

fn gradients(shape: &str) -> impl Iterator<Item = Problem> {
    ["nchw", "nhwc"]
        .map(|layout| problem(&format!("backward-weights:f32:{layout}:{shape}:s1x1:p1x1:d1x1:g1")))
        .into_iter()
}

#[test]
fn threads_do_not_change_weight_gradients() {
    let strided = strided(&["backward-weights"], "2x24x50x37", 40).collect::<Vec<_>>();
    let along_one_axis = ["2x24x50x37", "3x70x9x11"].map(|images| along_one_axis_in("backward-weights", images, 40));
    let both_axes = gradients("2x24x50x37:40x3x3").chain(gradients("1x130x6x9:90x3x3")).chain(strided);
    for problem in both_axes.chain(along_one_axis.into_iter().flatten()) {
        available().for_each(|isa| assert_threads_change_nothing(&problem, isa));
    }
}

fn assert_small_errors(problem: &Problem, threads: usize) {
    assert_errors_below([4e-6, 1e-5], problem, threads);
}

/// In L2 and of the largest number, with numbers that are nowhere negative too.
fn assert_errors_below(most: [f64; 2], problem: &Problem, threads: usize) {
    for positive in [false, true] {
        let mut operands = operands(problem);
        if positive {
            operands[0].iter_mut().for_each(|number| *number = number.max(0.0));
        }
        let expected = reference::compute(problem, &operands[0], &operands[1], None);
        for isa in available() {
            let got: Vec<f64> = run(problem, isa, &operands, None, threads).into_iter().map(f64::from).collect();
            let errors = compare(&got, &expected);
            assert!(errors.l2 < most[0] && errors.max < most[1], "{isa} {problem}: {errors:?}");
        }
    }
}

/// Sums over many tiles, with numbers that are nowhere negative too.
#[test]
fn errors_of_weight_gradients_are_small() {
    // Many tiles, few tiles that are one block, and few channels, with all of a filter's taps or some of them at each parity.
    let dense = ["6x16x60x56:8x3x3", "1x40x9x14:70x3x3"].into_iter().flat_map(gradients);
    let images = ["3x16x60x56", "1x40x9x14", "2x3x40x37"];
    let strided = images.into_iter().flat_map(|images| strided(&["backward-weights"], images, 34).collect::<Vec<_>>());
    for problem in dense.chain(strided) {
        assert_small_errors(&problem, 2);
    }
}

#[test]
fn not_finite_numbers_go_to_the_weight_gradients_that_they_belong_to() {
    let along_one_axis = along_one_axis_in("backward-weights", "2x20x11x13", 33);
    let strided = strided(&["backward-weights"], "2x20x11x13", 33);
    for problem in gradients("2x20x11x13:33x3x3").chain(strided).chain(along_one_axis) {
        let [mut first, second] = operands(&problem);
        first[37] = f32::NAN;
        first[211] = f32::INFINITY;
        let expected = reference::compute(&problem, &first, &second, None);
        for isa in available() {
            let got = run(&problem, isa, &[first.clone(), second.clone()], None, 2);
            for (&got, &want) in got.iter().zip(&expected) {
                assert!(
                    got.is_finite() == want.is_finite() && got.is_nan() == want.is_nan(),
                    "{isa}: {got} for {want}"
                );
            }
        }
    }
}

/// The last part of the result's channels may be narrower than the others: what an earlier computation left behind it in the
/// workspace decides nothing.
#[test]
fn leftovers_of_other_computations_do_not_spoil_a_gradient_along_one_axis() {
    for channels in [17, 33, 40, 80, 112, 144] {
        let problem = problem(&format!("backward-weights:f32:nchw:2x24x20x20:{channels}x7x1:s1x1:p3x0:d1x1:g1"));
        let operands = operands(&problem);
        for isa in available() {
            let fresh = std::thread::scope(|scope| {
                scope.spawn(|| run(&problem, isa, &operands, None, 1)).join().expect("computed")
            });
            let after = std::thread::scope(|scope| {
                let computed = scope.spawn(|| {
                    let mut rooms: Vec<Workspace> = (0..24).map(|_| Workspace::take(1 << 20)).collect();
                    rooms.iter_mut().for_each(|room| room.fill(f32::NAN));
                    drop(rooms);
                    run(&problem, isa, &operands, None, 1)
                });
                computed.join().expect("computed")
            });
            assert!(fresh.iter().zip(&after).all(|(a, b)| a.to_bits() == b.to_bits()), "{isa} {problem}");
        }
    }
}
