//! Tests with operands between pages that cannot be touched: one number read or written too far ends the test.

use proptest::prelude::*;
use unhang_conv::{DataType, Direction, Layout, Problem, Specification, reference};
use unhang_engine::tolerance::Tolerance;
use unhang_suite::{Tensor, any_ordinary_problem, compare};

use crate::algorithm::Algorithm;
use unhang_simd::Isa;
use unhang_simd::Kernels;

/// Which end of the numbers touches a forbidden page.
#[derive(Debug, Clone, Copy)]
enum Flush {
    Start,
    End,
}

/// Numbers in separate pages, with a forbidden page on either side.
struct Guarded {
    mapping: *mut libc::c_void,
    bytes: usize,
    start: *mut f32,
    length: usize,
}

impl Guarded {
    fn new(numbers: &[f32], flush: Flush) -> Guarded {
        // SAFETY: a system call without preconditions.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        let inner = (std::mem::size_of_val(numbers)).next_multiple_of(page).max(page);
        let bytes = inner + 2 * page;
        // SAFETY: a new private mapping, whose inner pages alone are made accessible. The numbers lie in them, and f32
        // needs no more alignment than their end has.
        unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let mapping = libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_NONE, flags, -1, 0);
            assert_ne!(mapping, libc::MAP_FAILED, "memory for a guarded operand");
            let first = mapping.cast::<u8>().add(page);
            assert_eq!(libc::mprotect(first.cast(), inner, libc::PROT_READ | libc::PROT_WRITE), 0);
            let start = match flush {
                Flush::Start => first,
                Flush::End => first.add(inner - std::mem::size_of_val(numbers)),
            };
            let start = start.cast::<f32>();
            std::ptr::copy_nonoverlapping(numbers.as_ptr(), start, numbers.len());
            Guarded { mapping, bytes, start, length: numbers.len() }
        }
    }

    fn numbers(&mut self) -> &mut [f32] {
        // SAFETY: they were written in `new`, and the mapping lives as long as `self`.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.length) }
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`, to which nothing points any more.
        unsafe { libc::munmap(self.mapping, self.bytes) };
    }
}

fn random(length: usize, seed: u64) -> Vec<f32> {
    Tensor::random(DataType::F32, length, seed).to_f64().into_iter().map(|number| number as f32).collect()
}

fn passes_between_guards(problem: &Problem, seed: u64) -> Result<(), TestCaseError> {
    passes_by(problem, seed, |isa| Algorithm::choose(problem, isa))
}

fn passes_by(problem: &Problem, seed: u64, algorithm: impl Fn(Isa) -> Algorithm) -> Result<(), TestCaseError> {
    let lengths = problem.operand_shapes().map(|shape| shape.iter().product::<usize>());
    let numbers = [random(lengths[0], seed), random(lengths[1], seed + 1)];
    let expected = reference::compute(problem, &numbers[0], &numbers[1], None);
    for flush in [Flush::Start, Flush::End] {
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            let mut operands = [
                Guarded::new(&numbers[0], flush),
                Guarded::new(&numbers[1], flush),
                Guarded::new(&vec![f32::NAN; lengths[2]], flush),
            ];
            let [first, second, result] = &mut operands;
            let (first, second, numbers) = (first.numbers(), second.numbers(), result.numbers());
            let kernels = Kernels::of(super::isa_for(problem, algorithm(isa), isa));
            let work = super::Work { kernels, first, second, bias: None, result: numbers, threads: 2 };
            super::compute_with(problem, algorithm(isa), work);
            let got: Vec<f64> = result.numbers().iter().map(|&number| f64::from(number)).collect();
            let errors = compare(&got, &expected);
            prop_assert!(errors.within(Tolerance::of(DataType::F32)), "{isa} {flush:?} {problem}: {errors:?}");
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn nothing_beyond_the_operands_is_touched(problem in any_ordinary_problem(DataType::F32), seed in 0u64..1000) {
        passes_between_guards(&problem, seed)?;
    }

    #[test]
    fn nothing_beyond_depthwise_operands_is_touched(
        problem in any_ordinary_problem(DataType::F32), channels in 2i64..40, filters in 1i64..4, seed in 0u64..1000
    ) {
        let (in_channels, out_channels, groups) = (channels, channels * filters, channels);
        let depthwise = Specification { in_channels, out_channels, groups, ..problem.specification() };
        let Ok(problem) = Problem::new(depthwise) else { return Err(TestCaseError::reject("makes no convolution")) };
        passes_between_guards(&problem, seed)?;
    }

    #[test]
    fn nothing_beyond_operands_of_small_groups_is_touched(
        problem in any_ordinary_problem(DataType::F32), groups in 1i64..5, of_group in [4i64..17, 1i64..17],
        seed in 0u64..1000
    ) {
        let (in_channels, out_channels) = (groups * of_group[0], groups * of_group[1]);
        let grouped = Specification { in_channels, out_channels, groups, ..problem.specification() };
        let Ok(problem) = Problem::new(grouped) else { return Err(TestCaseError::reject("makes no convolution")) };
        passes_between_guards(&problem, seed)?;
    }

    #[test]
    fn nothing_beyond_operands_of_stems_is_touched(
        problem in any_ordinary_problem(DataType::F32), channels in [1i64..5, 4i64..20], stride in [1i64..6, 1i64..6],
        seed in 0u64..1000
    ) {
        let [in_channels, out_channels] = channels;
        let stem = Specification { in_channels, out_channels, groups: 1, stride, ..problem.specification() };
        let Ok(problem) = Problem::new(stem) else { return Err(TestCaseError::reject("makes no convolution")) };
        passes_between_guards(&problem, seed)?;
    }

    #[test]
    fn nothing_beyond_pointwise_operands_is_touched(
        problem in any_ordinary_problem(DataType::F32), channels in [1i64..70, 1i64..70], seed in 0u64..1000
    ) {
        let pointwise = Specification {
            in_channels: channels[0],
            out_channels: channels[1],
            groups: 1,
            kernel: [1, 1],
            stride: [1, 1],
            padding: [0, 0],
            ..problem.specification()
        };
        let Ok(problem) = Problem::new(pointwise) else { return Err(TestCaseError::reject("makes no convolution")) };
        passes_between_guards(&problem, seed)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn nothing_beyond_operands_of_winograd_is_touched(problem in super::winograd::tests::any_shape(), seed in 0u64..1000) {
        passes_by(&problem, seed, |_| Algorithm::Winograd)?;
        let direction = Direction::BackwardWeights;
        let gradient = Problem::new(Specification { direction, ..problem.specification() }).expect("the same sizes");
        passes_by(&gradient, seed, |_| Algorithm::WinogradWeights)?;
    }

    #[test]
    fn nothing_beyond_operands_of_winograd_along_strided_rows_is_touched(
        problem in super::winograd::strided_tests::any_shape(), seed in 0u64..1000
    ) {
        passes_by(&problem, seed, |_| Algorithm::WinogradStridedAxis)?;
    }

    #[test]
    fn nothing_beyond_operands_of_winograd_along_one_axis_is_touched(
        problem in super::winograd::tests::any_shape_along_one_axis(), seed in 0u64..1000
    ) {
        passes_by(&problem, seed, |_| Algorithm::WinogradAxis)?;
        let direction = Direction::BackwardWeights;
        let gradient = Problem::new(Specification { direction, ..problem.specification() }).expect("the same sizes");
        passes_by(&gradient, seed, |_| Algorithm::WinogradAxisWeights)?;
    }
}

#[test]
fn nothing_beyond_wide_operands_is_touched() {
    for direction in Direction::ALL {
        for key in ["f32:nchw:1x200x5x5:210x3x3:s1x1:p1x1:d1x1:g1", "f32:nhwc:2x130x4x6:200x3x3:s2x2:p1x1:d1x1:g1"] {
            let problem: Problem = format!("{direction}:{key}").parse().expect("a key");
            passes_between_guards(&problem, 7).expect("within its operands");
        }
    }
}

/// 1×1 with many channels that lie together: with parts of runs, of vectors and of tiles, strides and groups.
#[test]
fn nothing_beyond_pointwise_operands_with_many_channels_is_touched() {
    let shapes = [
        "2x256x3x5:97x1x1:s1x1:p0x0:d1x1:g1",
        "1x300x5x4:256x1x1:s2x2:p0x0:d1x1:g1",
        "1x515x4x6:300x1x1:s1x3:p0x0:d1x1:g1",
        "1x512x3x3:256x1x1:s2x1:p0x0:d1x1:g2",
        "1x1024x5x5:1030x1x1:s1x1:p0x0:d1x1:g1",
    ];
    for direction in [Direction::Forward, Direction::BackwardData] {
        for shape in shapes {
            let problem: Problem = format!("{direction}:f32:nhwc:{shape}").parse().expect("a key");
            passes_between_guards(&problem, 13).expect("within its operands");
        }
    }
}

/// Wide rows with their channels together are read in place, and what meets padding is left out.
#[test]
fn nothing_beyond_operands_that_are_read_in_place_is_touched() {
    let shapes = [
        "1x8x3x200:17x3x3:s1x1:p1x1:d1x1:g1",
        "2x3x4x511:5x3x3:s1x1:p1x1:d1x1:g1",
        "1x20x5x320:9x3x5:s1x2:p1x2:d1x1:g1",
        "1x16x4x330:20x3x3:s2x2:p1x1:d1x1:g1",
        "1x12x6x160:16x2x3:s1x1:p0x7:d2x5:g1",
        "1x24x3x170:18x3x3:s1x1:p2x3:d1x2:g2",
        "1x5x1x700:33x5x7:s3x3:p4x3:d1x1:g1",
        "1x64x2x150:64x1x1:s1x1:p1x1:d1x1:g1",
        "1x10x2x160:3x1x161:s1x1:p0x80:d1x1:g1",
    ];
    for direction in [Direction::Forward, Direction::BackwardData] {
        for shape in shapes {
            let problem: Problem = format!("{direction}:f32:nhwc:{shape}").parse().expect("a key");
            passes_between_guards(&problem, 11).expect("within its operands");
        }
    }
}

/// With pixels in vectors: rows of results that end within a vector, strips with and without gaps between rows. Also
/// several groups and parts of filters, and chunks of rows and of images.
#[test]
fn nothing_beyond_operands_with_pixels_in_vectors_is_touched() {
    let shapes = [
        "1x3x5x37:20x3x3:s1x1:p1x1:d1x1:g1",
        "2x3x9x70:17x4x4:s4x4:p0x0:d1x1:g1",
        "2x40x27x35:70x1x1:s2x2:p0x0:d1x1:g1",
        "3x12x24x26:34x2x2:s2x2:p0x0:d1x1:g2",
        "1x15x40x52:33x3x3:s2x2:p1x1:d1x1:g1",
        "2x1x30x33:18x5x5:s1x1:p2x2:d1x1:g1",
        "2x8x19x23:8x3x3:s1x1:p1x1:d2x2:g2",
        "5x16x7x9:12x3x2:s1x1:p1x0:d1x1:g4",
    ];
    for direction in Direction::ALL {
        for shape in shapes {
            let problem: Problem = format!("{direction}:f32:nchw:{shape}").parse().expect("a key");
            passes_between_guards(&problem, 17).expect("within its operands");
        }
    }
}

/// 1×1 where operands lie: last panels that begin among the columns before them, planes of few pixels beside each
/// other. Also groups, few filters, and filters that do not stay in a cache.
#[test]
fn nothing_beyond_operands_of_products_in_place_is_touched() {
    let shapes = [
        "2x33x5x7:50x1x1:s1x1:p0x0:d1x1:g1",
        "2x10x9x11:7x1x1:s1x1:p0x0:d1x1:g1",
        "3x80x4x5:1x1x1:s1x1:p0x0:d1x1:g1",
        "1x40x70x61:3x1x1:s1x1:p0x0:d1x1:g1",
        "1x40x13x29:61x1x1:s1x1:p0x0:d1x1:g1",
        "5x20x3x3:300x1x1:s1x1:p0x0:d1x1:g1",
        "4x300x7x7:257x1x1:s1x1:p0x0:d1x1:g1",
        "2x12x2x3:10x1x1:s1x1:p0x0:d1x1:g2",
        "2x24x6x6:20x1x1:s1x1:p0x0:d1x1:g4",
        "1x600x9x9:500x1x1:s1x1:p0x0:d1x1:g1",
    ];
    for direction in Direction::ALL {
        for shape in shapes {
            let problem: Problem = format!("{direction}:f32:nchw:{shape}").parse().expect("a key");
            passes_between_guards(&problem, 19).expect("within its operands");
        }
    }
}

/// Images of one pixel: sums along rows and along columns, parts of vectors, more images than a tile has scalars.
#[test]
fn nothing_beyond_operands_of_single_pixels_is_touched() {
    let shapes = [
        "1x700x1x1:3x1x1",
        "3x70x1x1:5x1x1",
        "8x33x1x1:100x1x1",
        "2x515x1x1:37x1x1",
        "40x17x1x1:41x1x1",
        "70x17x1x1:18x1x1",
        "8x300x1x1:17x1x1",
        "9x5x1x1:4x1x1",
        "1x20x3x3:33x3x3",
        "5x7x2x4:19x2x4",
    ];
    for direction in Direction::ALL {
        for shape in shapes {
            for layout in Layout::ALL {
                let key = format!("{direction}:f32:{layout}:{shape}:s1x1:p0x0:d1x1:g1");
                passes_between_guards(&key.parse().expect("a key"), 23).expect("within its operands");
            }
        }
    }
}

/// Depthwise on small planes: parts of blocks of channels, strides, dilation, padding on one axis alone, long chains.
#[test]
fn nothing_beyond_operands_of_small_depthwise_planes_is_touched() {
    let shapes = [
        "2x70x7x7:70x3x3:s1x1:p1x1:d1x1:g70",
        "1x33x14x14:33x5x5:s1x1:p2x2:d1x1:g33",
        "2x16x14x14:16x7x7:s2x2:p3x3:d1x1:g16",
        "1x100x7x9:100x5x5:s2x2:p2x2:d1x1:g100",
        "1x20x5x3:20x3x2:s1x1:p0x1:d2x1:g20",
        "2x9x13x11:9x4x3:s3x2:p2x0:d1x1:g9",
        "23x9x14x14:9x3x3:s1x1:p1x1:d1x1:g9",
    ];
    for direction in Direction::ALL {
        for shape in shapes {
            let problem: Problem = format!("{direction}:f32:nchw:{shape}").parse().expect("a key");
            passes_between_guards(&problem, 29).expect("within its operands");
        }
    }
}

/// Depthwise weight gradients with channels together: one vector and a tail, pixels inside and at the edges, strides, dilation, fewer
/// pixels than taps, more columns of taps than are summed together.
#[test]
fn nothing_beyond_operands_of_depthwise_lines_is_touched() {
    let shapes = [
        "2x17x9x13:17x3x3:s1x1:p1x1:d1x1:g17",
        "1x5x8x11:5x5x5:s1x1:p2x2:d1x1:g5",
        "1x40x7x7:40x7x7:s1x1:p3x3:d1x1:g40",
        "2x33x9x10:33x3x3:s2x2:p1x1:d1x1:g33",
        "1x24x12x15:24x5x3:s1x1:p4x2:d2x2:g24",
        "1x19x3x2:19x5x5:s1x1:p2x2:d1x1:g19",
        "1x18x6x16:18x2x13:s1x1:p1x6:d1x1:g18",
        "1x16x9x9:16x3x4:s3x2:p2x3:d1x2:g16",
    ];
    for shape in shapes {
        let problem: Problem = format!("backward-weights:f32:nhwc:{shape}").parse().expect("a key");
        passes_between_guards(&problem, 31).expect("within its operands");
    }
}

/// Depthwise rows of results with channels together, more than are kept together: pixels that are summed twice, rows that lie at the
/// edges whole, padding beyond the taps. Also taps that all fall beside the source, steps, and a last vector among the
/// one before.
#[test]
fn nothing_beyond_operands_of_depthwise_rows_is_touched() {
    let shapes = [
        "2x70x7x7:70x3x3:s1x1:p1x1:d1x1:g70",
        "1x99x5x6:99x3x3:s1x1:p1x1:d1x1:g99",
        "1x66x9x8:66x5x3:s1x1:p4x4:d2x1:g66",
        "1x80x14x15:80x3x3:s2x2:p1x1:d1x1:g80",
        "1x68x12x11:68x3x5:s1x2:p1x2:d1x1:g68",
        "1x65x4x13:65x2x7:s1x1:p1x3:d1x1:g65",
        "1x70x3x2:70x3x5:s1x1:p1x4:d1x1:g70",
        "1x72x6x3:72x3x3:s1x1:p1x9:d1x1:g72",
        "1x17x10x20:17x3x3:s3x2:p1x1:d1x1:g17",
    ];
    for direction in [Direction::Forward, Direction::BackwardData] {
        for shape in shapes {
            let problem: Problem = format!("{direction}:f32:nhwc:{shape}").parse().expect("a key");
            passes_between_guards(&problem, 37).expect("within its operands");
        }
    }
}

/// 1×1 taps with a stride and patches, whose pixels are brought together, and small groups in NHWC, of which planes are made.
#[test]
fn nothing_beyond_rearranged_operands_is_touched() {
    let base = Specification { batch: 3, in_size: [13, 17], ..Specification::default() };
    let strided = |channels: [i64; 2], stride: [i64; 2], groups: i64| Specification {
        in_channels: channels[0],
        out_channels: channels[1],
        stride,
        groups,
        ..base
    };
    let grouped = |of_group: i64, stride: [i64; 2]| Specification {
        in_channels: 5 * of_group,
        out_channels: 5 * of_group,
        groups: 5,
        kernel: [3, 3],
        stride,
        padding: [1, 1],
        layout: Layout::Nhwc,
        ..base
    };
    let wide = Specification {
        in_channels: 37,
        out_channels: 37,
        groups: 37,
        in_size: [7, 9],
        kernel: [7, 7],
        padding: [3, 3],
        layout: Layout::Nhwc,
        ..base
    };
    let all = [
        strided([40, 70], [2, 2], 1),
        strided([9, 3], [3, 2], 1),
        strided([34, 20], [20, 20], 1),
        strided([64, 32], [2, 1], 2),
        grouped(8, [1, 1]),
        grouped(5, [2, 2]),
        Specification { in_size: [13, 29], ..grouped(8, [2, 2]) },
        Specification { in_size: [40, 150], batch: 9, ..grouped(8, [1, 2]) },
        Specification { in_size: [9, 28], in_channels: 5, ..grouped(2, [2, 1]) },
        Specification { kernel: [8, 9], stride: [8, 9], in_size: [25, 30], ..strided([3, 20], [8, 9], 1) },
        Specification { in_size: [20, 40], ..wide.clone() },
        wide,
    ];
    for specification in all {
        for direction in Direction::ALL {
            let problem = Problem::new(Specification { direction, ..specification }).expect("a convolution");
            passes_between_guards(&problem, 5).expect("right, and within the operands");
        }
    }
}

/// The workspace of every layer stays within its bound, with every set of kernels. The kernels do nothing
/// here: what is lent out is the same.
#[test]
fn workspace_stays_within_its_bound() {
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
        let kernels: &'static Kernels = Box::leak(Box::new(Kernels::of(isa).idle()));
        for layer in [unhang_suite::layers(), unhang_suite::more_layers(), unhang_suite::other_layers()].concat() {
            for layout in Layout::ALL {
                for direction in Direction::ALL {
                    // Larger batches are cut into the same strips: they take longer, not more.
                    for batch in [layer.problem.batch().min(4), 1] {
                        let specification =
                            Specification { batch: batch as i64, layout, direction, ..layer.problem.specification() };
                        let problem = Problem::new(specification).expect("the layer with another batch");
                        let share = workspace_share(&problem, isa, kernels);
                        // The filters of a large patch's data gradient have a vector for three channels of an image.
                        let padded = (direction, layout) == (Direction::BackwardData, Layout::Nhwc)
                            && problem.stride()[0] >= 16
                            && problem.in_channels() <= 3;
                        assert!(
                            share <= if padded { 4.0 } else { 1.0 },
                            "{} {isa} {problem}: {share:.2} of the bound",
                            layer.name
                        );
                    }
                }
            }
        }
    }
}

/// Depthwise filters that reach far, in NHWC, where the rows that they meet are kept.
#[test]
fn workspace_of_far_depthwise_taps_stays_within_its_bound() {
    let keys = [
        "forward:f32:nhwc:1x2x256x256:2x3x3:s1x1:p127x127:d127x127:g2",
        "forward:f32:nhwc:1x8x90x90:8x65x65:s1x1:p32x32:d1x1:g8",
    ];
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
        let kernels: &'static Kernels = Box::leak(Box::new(Kernels::of(isa).idle()));
        for key in keys {
            let share = workspace_share(&key.parse().expect("a key"), isa, kernels);
            assert!(share <= 1.0, "{isa} {key}: {share:.2} of the bound");
        }
    }
}

/// Depthwise convolutions of several filters a channel, whose images are repeated where that takes no more memory than there is.
#[test]
fn workspace_of_repeated_channels_stays_within_its_bound() {
    let keys = [
        "1x64x112x112:256x3x3:s2x2:p1x1:d1x1:g64",
        "1x32x224x224:64x3x3:s2x2:p1x1:d1x1:g32",
        "1x32x512x512:128x5x5:s4x4:p2x2:d1x1:g32",
        "8x32x56x56:128x3x3:s1x1:p1x1:d1x1:g32",
        "1x8x64x64:16x3x3:s1x1:p1x1:d1x1:g8",
    ];
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
        let kernels: &'static Kernels = Box::leak(Box::new(Kernels::of(isa).idle()));
        let mut repeated = 0;
        for key in keys {
            for (direction, layout) in Direction::ALL.into_iter().flat_map(|it| Layout::ALL.map(|layout| (it, layout)))
            {
                let problem: Problem = format!("{direction}:f32:{layout}:{key}").parse().expect("a key");
                if Algorithm::choose(&problem, isa) == Algorithm::RepeatedChannels {
                    let share = workspace_share(&problem, isa, kernels);
                    assert!(share <= 1.0, "{isa} {problem}: {share:.2} of the bound");
                    repeated += 1;
                }
            }
        }
        assert!(repeated >= 10, "{isa}: {repeated}");
    }
}

/// The most workspace at once by what it may have.
fn workspace_share(problem: &Problem, isa: Isa, kernels: &'static Kernels) -> f64 {
    let lengths = problem.operand_shapes().map(|shape| shape.iter().product::<usize>());
    // Never touched, so that they take no memory.
    let operands = lengths.map(|length| vec![0.0f32; length]);
    let [first, second, mut result] = operands;
    let algorithm = Algorithm::choose(problem, isa);
    let kernels = match super::isa_for(problem, algorithm, isa) {
        own if own == isa => kernels,
        other => Box::leak(Box::new(Kernels::of(other).idle())),
    };
    super::workspace::peak::reset();
    let (first, second) = (&first, &second);
    let work = super::Work { kernels, first, second, bias: None, result: &mut result, threads: 1 };
    super::compute_with(problem, algorithm, work);
    super::workspace::peak::numbers() as f64 / super::workspace::memory_for(lengths.iter().sum()) as f64
}
