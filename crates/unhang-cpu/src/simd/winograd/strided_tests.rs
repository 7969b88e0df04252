//! Tests of Winograd along the rows with a stride of two, on shapes that it would not be chosen for too.

use proptest::prelude::*;
use unhang_conv::{Layout, Problem, Specification, reference};
use unhang_suite::compare;

use super::super::work::Work;
use super::super::{compute_with, gather};
use super::strided_lines::{Shape, is_possible};
use super::tests::{assert_not_finite_numbers_belong, available, numbers, operands, problem};
use super::{Gather, Kernels};
use crate::algorithm::Algorithm;
use unhang_simd::Isa;

/// Any convolution that can be computed so: odd sizes, several images in a unit, and taps of a row that lie apart. Also
/// rows without a stride, and padding that is wider than the filter.
pub(crate) fn any_shape() -> impl Strategy<Value = Problem> {
    let channels = || prop_oneof![1i64..40, Just(16), Just(32), 60i64..80];
    let sizes = (1i64..5, channels(), channels(), [1i64..40, 1i64..50], [0i64..6, 0i64..6]);
    (sizes, (1i64..6, 1i64..3, 1i64..4)).prop_filter_map("makes no convolution", |(sizes, (taps, stride, apart))| {
        let (batch, in_channels, out_channels, in_size, padding) = sizes;
        Problem::new(Specification {
            batch,
            in_channels,
            out_channels,
            in_size,
            padding,
            stride: [2, stride],
            dilation: [1, apart],
            kernel: [3, taps],
            layout: Layout::Nchw,
            ..Specification::default()
        })
        .ok()
        .filter(is_possible)
    })
}

/// Filters with and without padding, and with other rows, of these images to this many filters.
fn strided(images: &str, filters: usize) -> impl Iterator<Item = Problem> {
    let taps = ["3x3:s2x2:p1x1", "3x3:s2x2:p0x0", "3x1:s2x2:p1x0", "3x4:s2x1:p3x2"];
    taps.map(|taps| problem(&format!("forward:f32:nchw:{images}:{filters}x{taps}:d1x1:g1"))).into_iter()
}

/// Images with few rows and with many, for which there are tiles of five and of seven rows.
fn several(filters: usize) -> impl Iterator<Item = Problem> {
    ["2x20x11x13", "3x24x50x37", "2x33x28x27"].into_iter().flat_map(move |images| strided(images, filters))
}

fn run(problem: &Problem, isa: Isa, operands: &[Vec<f32>; 2], bias: Option<&[f32]>, threads: usize) -> Vec<f32> {
    let mut result = vec![f32::NAN; problem.operand_shapes()[2].iter().product()];
    let [first, second] = operands;
    let work = Work { kernels: Kernels::of(isa), first, second, bias, result: &mut result, threads };
    compute_with(problem, Algorithm::WinogradStridedAxis, work);
    result
}

fn errors(problem: &Problem, isa: Isa, operands: &[Vec<f32>; 2], threads: usize) -> unhang_suite::Errors {
    let expected = reference::compute(problem, &operands[0], &operands[1], None);
    let got: Vec<f64> = run(problem, isa, operands, None, threads).into_iter().map(f64::from).collect();
    compare(&got, &expected)
}

#[test]
fn there_are_tiles_of_five_and_of_seven_rows() {
    let tiles: Vec<usize> =
        several(8).map(|problem| Shape::new(&Gather::new(&problem), Kernels::of(Isa::detect())).tile).collect();
    assert!(tiles.contains(&5) && tiles.contains(&7), "{tiles:?}");
}

#[test]
fn threads_do_not_change_what_is_computed_along_strided_rows() {
    for problem in several(40) {
        let operands = operands(&problem);
        for isa in available() {
            let bits = |threads: usize| {
                run(&problem, isa, &operands, None, threads).into_iter().map(f32::to_bits).collect::<Vec<_>>()
            };
            let alone = bits(1);
            assert!(alone == bits(2) && alone == bits(7), "{isa} {problem}");
        }
    }
}

/// Far below the suite's tolerance (1e-5 and 3e-5), with many channels and with images that are nowhere negative.
#[test]
fn errors_along_strided_rows_are_small() {
    for channels in [64, 512, 1024] {
        for problem in strided(&format!("1x{channels}x13x12"), 16).chain(strided(&format!("1x{channels}x27x6"), 16)) {
            for positive in [false, true] {
                let mut operands = operands(&problem);
                if positive {
                    operands[0].iter_mut().for_each(|number| *number = number.max(0.0));
                }
                for isa in available() {
                    let errors = errors(&problem, isa, &operands, 1);
                    assert!(errors.l2 < 6e-6 && errors.max < 1.5e-5, "{isa} {problem}: {errors:?}");
                }
            }
        }
    }
}

/// The bias goes along the channels of the result.
#[test]
fn a_bias_is_added_along_strided_rows() {
    for problem in several(35) {
        let (operands, bias) = (operands(&problem), numbers(35, 3));
        for isa in available() {
            let without = run(&problem, isa, &operands, None, 1);
            let with = run(&problem, isa, &operands, Some(&bias), 1);
            let pixels = without.len() / 35 / problem.batch();
            for (index, (with, without)) in with.iter().zip(&without).enumerate() {
                assert!((with - without - bias[index / pixels % 35]).abs() < 1e-4, "{isa} {problem}: {index}");
            }
        }
    }
}

/// What is not finite goes where the definition puts it and nowhere else; infinities keep their sign.
#[test]
fn not_finite_numbers_go_where_they_belong_along_strided_rows() {
    for problem in several(33) {
        assert_not_finite_numbers_belong(&problem, |isa, operands| run(&problem, isa, operands, None, 2));
    }
}

/// Numbers so large that their transforms overflow, and results that do not.
#[test]
fn an_overflow_inside_is_repaired_along_strided_rows() {
    for problem in several(18) {
        let [first, second] = operands(&problem);
        let first: Vec<f32> = first.into_iter().map(|number| number * 2e38).collect();
        let second: Vec<f32> = second.into_iter().map(|number| number * 1e-3).collect();
        for isa in available() {
            let errors = errors(&problem, isa, &[first.clone(), second.clone()], 1);
            assert!(errors.not_finite == 0 && errors.max < 3e-5, "{isa} {problem}: {errors:?}");
        }
    }
}

/// The direct path's results, to the last bit: a tap that is transformed, and one that is not.
#[test]
fn filters_that_are_not_finite_are_left_to_the_direct_path_along_strided_rows() {
    for (problem, at) in several(40).flat_map(|problem| [(problem.clone(), 0), (problem, 4)]) {
        let [first, mut second] = operands(&problem);
        second[at] = f32::NEG_INFINITY;
        let operands = [first, second];
        for isa in available() {
            let mut direct = vec![0.0; problem.operand_shapes()[2].iter().product()];
            let [first, second] = &operands;
            let work = Work { kernels: Kernels::of(isa), first, second, bias: None, result: &mut direct, threads: 1 };
            gather::compute(&Gather::new(&problem), work);
            let got = run(&problem, isa, &operands, None, 2);
            let same = got.iter().zip(&direct).all(|(a, b)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan());
            assert!(same, "{isa} {problem}");
        }
    }
}

/// A filter that changes between calls.
#[test]
fn kept_filters_are_never_stale_along_strided_rows() {
    for problem in strided("1x64x19x12", 64) {
        let mut operands = operands(&problem);
        for round in 0..2 {
            operands[1][round * 1000] += 1.0;
            let errors = errors(&problem, Isa::detect(), &operands, 1);
            assert!(errors.max < 1e-5, "{problem}, round {round}: {errors:?}");
        }
    }
}
