//! The edges: one pixel, huge strides, padding beyond the image, numbers that are not finite, settings that are wrong.

use unhang_conv::{DataType, Direction, Layout, Problem, Specification, reference};
use unhang_cpu::{Algorithm, CpuEngine, CpuSettings, Isa};
use unhang_engine::{Elements, ElementsMut, EngineError, Operands};
use unhang_suite::check;

fn available() -> impl Iterator<Item = Isa> {
    Isa::ALL.into_iter().filter(|isa| isa.is_available())
}

fn passes(specification: &Specification) {
    for direction in Direction::ALL {
        for layout in Layout::ALL {
            for isa in available() {
                let problem = Problem::new(Specification { direction, layout, ..specification.clone() }).unwrap();
                let engine =
                    CpuEngine::with_settings(CpuSettings { threads: 2, isa: Some(isa), ..CpuSettings::default() });
                check(&engine, &problem, 3).unwrap_or_else(|failure| panic!("{isa}: {failure}"));
            }
        }
    }
}

#[test]
fn one_pixel_images() {
    passes(&Specification { batch: 3, in_channels: 33, out_channels: 17, ..Specification::default() });
    let same = Specification {
        in_channels: 20,
        out_channels: 20,
        kernel: [3, 3],
        padding: [1, 1],
        ..Specification::default()
    };
    passes(&same);
    passes(&Specification { groups: 20, ..same });
}

/// Each pixel becomes as many results as the filter has taps, and each channel's have its bias.
#[test]
fn one_pixel_images_transposed() {
    let spread = Specification {
        batch: 2,
        in_channels: 2,
        out_channels: 3,
        kernel: [3, 2],
        transposed: true,
        ..Specification::default()
    };
    passes(&spread);
    passes(&Specification { in_channels: 33, out_channels: 20, ..spread });
}

/// Enough of them for Winograd's algorithm: channels of one pixel lie together in both layouts, those of the other image do not.
#[test]
fn many_images_of_one_pixel() {
    let images = Specification { batch: 1000, in_channels: 16, out_channels: 16, ..Specification::default() };
    passes(&Specification { kernel: [3, 3], padding: [2, 2], ..images.clone() });
    passes(&Specification { kernel: [3, 3], in_size: [3, 3], ..images.clone() });
    passes(&Specification { kernel: [6, 6], in_size: [6, 6], stride: [2, 2], ..images });
}

/// Several filters a channel, on more images than are computed at a time; transposed they have a bias to add to what is summed up.
#[test]
fn a_few_filters_a_channel() {
    let two = Specification {
        batch: 12,
        in_channels: 24,
        out_channels: 48,
        groups: 24,
        in_size: [21, 20],
        kernel: [3, 3],
        padding: [1, 1],
        ..Specification::default()
    };
    for filters in 2..=5 {
        passes(&Specification { out_channels: filters * 24, ..two.clone() });
        let stride = [2, 1];
        let turned =
            Specification { in_channels: filters * 24, out_channels: 24, transposed: true, stride, ..two.clone() };
        passes(&turned);
    }
}

/// More depthwise channels than are kept together, with a bias, in rows that are computed as a whole.
#[test]
fn depthwise_rows_of_many_channels() {
    let rows = |size: i64| Specification {
        batch: 2,
        in_channels: 70,
        out_channels: 70,
        groups: 70,
        in_size: [size, size + 2],
        kernel: [3, 3],
        padding: [1, 1],
        ..Specification::default()
    };
    for size in [4, 7, 12] {
        passes(&rows(size));
    }
}

/// Products of matrices in NHWC: in place, in several blocks of channels, and copied; filters that do not fill vectors.
#[test]
fn lines_of_pixels() {
    for (in_channels, out_channels) in [(24, 17), (40, 150), (1030, 70), (1024, 40), (70, 1024)] {
        let line = Specification { batch: 2, in_channels, out_channels, in_size: [3, 5], ..Specification::default() };
        passes(&line);
        let stride = [2, 2];
        passes(&Specification { in_channels: 512, out_channels: 100, stride, ..line.clone() });
        passes(&Specification { in_channels: 2 * in_channels, out_channels: 2 * out_channels, groups: 2, ..line });
    }
}

#[test]
fn huge_strides_and_dilations() {
    let image = Specification { in_channels: 3, out_channels: 4, in_size: [19, 23], ..Specification::default() };
    passes(&Specification { stride: [1 << 30, 1 << 30], kernel: [2, 2], ..image.clone() });
    passes(&Specification { stride: [15, 17], kernel: [3, 1], ..image.clone() });
    passes(&Specification { stride: [16, 16], kernel: [2, 3], padding: [1, 1], ..image.clone() });
    passes(&Specification { dilation: [9, 11], kernel: [3, 3], padding: [2, 0], ..image.clone() });
    passes(&Specification { kernel: [1, 1], stride: [7, 5], padding: [3, 4], ..image });
}

#[test]
fn padding_beyond_the_image() {
    let image = Specification { in_channels: 2, out_channels: 5, in_size: [2, 3], ..Specification::default() };
    passes(&Specification { kernel: [3, 3], padding: [5, 4], ..image.clone() });
    passes(&Specification { kernel: [1, 1], padding: [100, 50], stride: [3, 3], ..image.clone() });
    passes(&Specification { kernel: [5, 5], padding: [100, 100], dilation: [20, 20], ..image });
}

#[test]
fn long_rows() {
    let row = Specification { in_channels: 2, out_channels: 3, kernel: [1, 3], ..Specification::default() };
    passes(&Specification { in_size: [1, 9001], ..row.clone() });
    passes(&Specification { in_size: [9001, 1], kernel: [3, 1], padding: [1, 0], ..row });
}

/// Problems for every algorithm.
fn variety() -> Vec<Problem> {
    let shapes = [
        Specification { in_channels: 5, out_channels: 18, kernel: [3, 3], padding: [1, 1], ..Specification::default() },
        Specification { in_channels: 20, out_channels: 33, kernel: [1, 1], ..Specification::default() },
        Specification {
            in_channels: 9,
            out_channels: 9,
            groups: 9,
            kernel: [3, 3],
            padding: [1, 1],
            ..Specification::default()
        },
        Specification {
            in_channels: 70,
            out_channels: 6,
            kernel: [3, 2],
            stride: [2, 2],
            padding: [1, 0],
            ..Specification::default()
        },
        Specification {
            in_channels: 3,
            out_channels: 16,
            kernel: [3, 3],
            stride: [2, 2],
            padding: [1, 1],
            ..Specification::default()
        },
        Specification { in_channels: 4, out_channels: 4, kernel: [3, 3], padding: [1, 1], ..Specification::default() },
    ];
    let mut problems = Vec::new();
    for shape in shapes {
        for layout in Layout::ALL {
            for direction in Direction::ALL {
                let in_size = [11, 13];
                problems.push(
                    Problem::new(Specification { in_size, batch: 2, layout, direction, ..shape.clone() }).unwrap(),
                );
            }
        }
    }
    problems
}

fn operand(length: usize, odd_ones: &[(usize, f32)]) -> Vec<f32> {
    let mut numbers: Vec<f32> = (0..length).map(|i| ((i * 7919) % 23) as f32 / 23.0 + 0.1).collect();
    odd_ones.iter().for_each(|&(at, number)| numbers[at % length] = number);
    numbers
}

fn run(problem: &Problem, isa: Isa, first: &[f32], second: &[f32]) -> Vec<f32> {
    result_of(problem, first, second, &CpuSettings { threads: 1, isa: Some(isa), ..CpuSettings::default() })
}

/// The result of a problem in single precision.
fn result_of(problem: &Problem, first: &[f32], second: &[f32], settings: &CpuSettings) -> Vec<f32> {
    let mut result = vec![0.0f32; problem.operand_shapes()[2].iter().product()];
    let operands = Operands {
        first: Elements::F32(first),
        second: Elements::F32(second),
        bias: None,
        result: ElementsMut::F32(&mut result),
    };
    CpuEngine::new().run_with(problem, operands, settings).unwrap();
    result
}

/// A number of the first operand that is not finite goes where the definition says and nowhere else; infinities keep
/// their sign. So it is in torch, whose own kernels were compared.
#[test]
fn not_finite_inputs_go_where_they_belong() {
    for problem in variety() {
        let lengths = problem.operand_shapes().map(|shape| shape.iter().product::<usize>());
        let odd = [(37, f32::NAN), (211, f32::INFINITY), (503, f32::NEG_INFINITY)];
        let (first, second) = (operand(lengths[0], &odd), operand(lengths[1], &[]));
        let expected = reference::compute(&problem, &first, &second, None);
        for isa in available() {
            let got = run(&problem, isa, &first, &second);
            for (index, (&got, &want)) in got.iter().zip(&expected).enumerate() {
                let same = if want.is_nan() { got.is_nan() } else { want.is_finite() || f64::from(got) == want };
                assert!(same && got.is_finite() == want.is_finite(), "{isa} {problem}: {got} for {want} at {index}");
            }
        }
    }
}

/// A filter that is not finite meets padding too. Whether that is a product with zero or no product at all differs
/// between torch's own kernels, so both are right. What the definition makes not finite must be so in any case.
#[test]
fn not_finite_filters_are_not_lost() {
    for problem in variety() {
        let lengths = problem.operand_shapes().map(|shape| shape.iter().product::<usize>());
        let (first, second) = (operand(lengths[0], &[]), operand(lengths[1], &[(5, f32::NAN), (40, f32::INFINITY)]));
        let expected = reference::compute(&problem, &first, &second, None);
        for isa in available() {
            let got = run(&problem, isa, &first, &second);
            for (&got, &want) in got.iter().zip(&expected) {
                assert!(want.is_finite() || !got.is_finite(), "{isa} {problem}: {got} for {want}");
            }
        }
    }
}

#[test]
fn operands_of_the_wrong_length_are_refused() {
    let problem = Problem::new(Specification { in_size: [4, 4], kernel: [3, 3], ..Specification::default() }).unwrap();
    let mut result = [0.0; 4];
    let operands = Operands {
        first: Elements::F32(&[0.0; 15]),
        second: Elements::F32(&[0.0; 9]),
        bias: None,
        result: ElementsMut::F32(&mut result),
    };
    let refused = CpuEngine::new().run_with(&problem, operands, &CpuSettings::default());
    assert!(matches!(refused, Err(EngineError::Operand { operand: "first", .. })));
}

/// Small whole numbers: every sum is exact, unless something is multiplied with the fractions of Winograd's transforms.
#[test]
fn by_definition_sums_are_those_of_the_definition() {
    for direction in [Direction::Forward, Direction::BackwardData, Direction::BackwardWeights] {
        let problem = Problem::new(Specification {
            in_channels: 32,
            out_channels: 32,
            in_size: [40, 40],
            kernel: [3, 3],
            direction,
            ..Specification::default()
        });
        let problem = problem.unwrap();
        let whole = |length: usize| (0..length).map(|i| ((i * 7919) % 7) as f32 - 3.0).collect::<Vec<f32>>();
        let [first, second, _] = problem.operand_shapes().map(|shape| shape.iter().product::<usize>());
        let (first, second) = (whole(first), whole(second));
        let expected = reference::compute(&problem, &first, &second, None);
        let is_exact = |by_definition: bool| {
            let settings = CpuSettings { by_definition, ..CpuSettings::default() };
            result_of(&problem, &first, &second, &settings)
                .iter()
                .zip(&expected)
                .all(|(&got, &expected)| f64::from(got) == expected)
        };
        assert!(is_exact(true), "{problem}");
        assert!(!is_exact(false), "{problem}: by Winograd it would not be");
    }
}

/// A filter that is kept packed, with pixels in vectors, and that changes between calls.
#[test]
fn kept_filters_follow_their_numbers() {
    let problem: Problem = "forward:f32:nchw:2x96x18x20:50x2x2:s2x2:p0x0:d1x1:g1".parse().unwrap();
    assert_eq!(Algorithm::choose(&problem, Isa::detect()), Algorithm::Planes);
    let [first, second, _] = problem.operand_shapes().map(|shape| shape.iter().product::<usize>());
    let whole = |length: usize| (0..length).map(|i| ((i * 7919) % 7) as f32 - 3.0).collect::<Vec<f32>>();
    let (first, mut second) = (whole(first), whole(second));
    for round in 0..3 {
        second[round * 5000] += 2.0;
        let expected = reference::compute(&problem, &first, &second, None);
        let result = result_of(&problem, &first, &second, &CpuSettings::default());
        assert!(result.iter().zip(&expected).all(|(&got, &expected)| f64::from(got) == expected), "round {round}");
    }
}

#[test]
fn the_table_of_algorithms() {
    let image = Specification { in_channels: 32, out_channels: 32, in_size: [20, 20], ..Specification::default() };
    let chosen_on = |isa, specification: Specification| Algorithm::choose(&Problem::new(specification).unwrap(), isa);
    // Whatever processor this runs on: narrower vectors have other limits.
    let chosen = |specification: Specification| chosen_on(Isa::Avx512, specification);
    let three = Specification { kernel: [3, 3], padding: [1, 1], in_size: [40, 40], ..image.clone() };
    assert_eq!(chosen(three.clone()), Algorithm::Winograd);
    assert_eq!(chosen(Specification { direction: Direction::BackwardData, ..three.clone() }), Algorithm::Winograd);
    assert_eq!(chosen(Specification { stride: [2, 2], ..three.clone() }), Algorithm::Direct);
    assert_eq!(chosen_on(Isa::Avx2, Specification { stride: [2, 2], ..three.clone() }), Algorithm::WinogradStridedAxis);
    assert_eq!(chosen(Specification { in_size: [1, 40], batch: 9, ..three.clone() }), Algorithm::Direct);
    assert_eq!(chosen(Specification { in_size: [8, 8], ..three.clone() }), Algorithm::Direct);
    assert_eq!(
        chosen(Specification { groups: 2, in_channels: 64, out_channels: 64, ..three.clone() }),
        Algorithm::Direct
    );
    // Few filters in NHWC, where channels lie together, and one channel of a gradient.
    let few = Specification { out_channels: 4, layout: Layout::Nhwc, ..image.clone() };
    assert_eq!(chosen(few.clone()), Algorithm::FewFilters);
    assert_eq!(chosen(Specification { in_channels: 8, ..few.clone() }), Algorithm::Direct);
    assert_eq!(chosen(Specification { layout: Layout::Nchw, ..few.clone() }), Algorithm::Pointwise);
    let gradient_of = |channels: i64| Specification {
        in_channels: channels,
        out_channels: 32,
        direction: Direction::BackwardData,
        ..few.clone()
    };
    assert_eq!(chosen(gradient_of(1)), Algorithm::FewFilters);
    assert_eq!(chosen(gradient_of(2)), Algorithm::Direct);
    // With a stride of two where parities of rows and columns spare enough: filters that are larger, and data gradients.
    let strided = |taps: i64, padding: i64| Specification {
        kernel: [taps, taps],
        padding: [padding, padding],
        stride: [2, 2],
        in_size: [60, 60],
        batch: 4,
        ..image.clone()
    };
    assert_eq!(chosen(strided(5, 2)), Algorithm::Winograd);
    assert_eq!(chosen(Specification { layout: Layout::Nhwc, ..strided(4, 1) }), Algorithm::Winograd);
    assert_eq!(chosen(Specification { in_channels: 3, ..strided(7, 3) }), Algorithm::Winograd);
    assert_eq!(chosen(Specification { stride: [2, 1], ..strided(5, 2) }), Algorithm::Direct);
    // Three taps along the rows alone, where channels are enough and pixels lie together.
    assert_eq!(chosen(strided(3, 1)), Algorithm::WinogradStridedAxis);
    assert_eq!(chosen(Specification { in_channels: 24, ..strided(3, 1) }), Algorithm::Direct);
    assert_eq!(chosen(Specification { layout: Layout::Nhwc, ..strided(3, 1) }), Algorithm::Direct);
    assert_eq!(chosen(strided(9, 4)), Algorithm::Direct);
    let weights = |taps: i64| {
        let direction = Direction::BackwardWeights;
        Specification { direction, in_size: [64, 64], ..strided(taps, (taps - 1) / 2) }
    };
    assert_eq!([4, 5].map(|taps| chosen(weights(taps))), [Algorithm::Weights, Algorithm::WinogradWeights]);
    // Tiles of two places of taps have the largest errors, and are not summed over many channels.
    let channels = |channels: i64| Specification { in_channels: channels, batch: 8, ..strided(4, 1) };
    assert_eq!([512, 528].map(|number| chosen(channels(number))), [Algorithm::Winograd, Algorithm::Direct]);
    let gradient = Specification { direction: Direction::BackwardData, ..strided(3, 1) };
    assert_eq!(chosen(gradient.clone()), Algorithm::Direct);
    let many = Specification { in_channels: 128, out_channels: 128, ..gradient };
    assert_eq!(chosen(many), Algorithm::Winograd);
    // Short sums on rows that fill vectors: images, and filters that meet each pixel once; not where pixels lie apart, nor long sums.
    let stem = Specification { in_channels: 3, ..strided(3, 1) };
    assert_eq!(chosen(stem.clone()), Algorithm::Planes);
    assert_eq!(chosen(Specification { in_channels: 3, ..three.clone() }), Algorithm::Planes);
    assert_eq!(chosen(Specification { layout: Layout::Nhwc, ..stem.clone() }), Algorithm::Direct);
    assert_eq!(chosen(Specification { in_size: [60, 8], ..stem.clone() }), Algorithm::Direct);
    assert_eq!(chosen(Specification { in_channels: 3, ..strided(11, 5) }), Algorithm::Direct);
    let patches = |channels: i64| Specification { in_channels: channels, ..strided(2, 0) };
    assert_eq!([128, 144].map(|channels| chosen(patches(channels))), [Algorithm::Planes, Algorithm::Direct]);
    assert_eq!(chosen(strided(1, 0)), Algorithm::Planes);
    let many = Specification { in_channels: 256, ..strided(1, 0) };
    assert_eq!(chosen(many), Algorithm::Pointwise, "its pixels are brought together");
    // Weight gradients with pixels in vectors: narrow groups, images of one channel, and small patches.
    let gradient = |specification| Specification { direction: Direction::BackwardWeights, ..specification };
    let narrow = |groups: i64| Specification { groups, ..gradient(three.clone()) };
    assert_eq!([2, 16].map(|groups| chosen(narrow(groups))), [Algorithm::Weights, Algorithm::PlaneWeights]);
    assert_eq!(chosen(gradient(Specification { in_channels: 1, ..three.clone() })), Algorithm::PlaneWeights);
    assert_eq!(chosen(gradient(stem.clone())), Algorithm::Weights);
    let heads = |filters: i64| gradient(Specification { out_channels: filters, ..image.clone() });
    assert_eq!([7, 8].map(|filters| chosen(heads(filters))), [Algorithm::FewFiltersWeights, Algorithm::Weights]);
    // One result an image, in both layouts: filters of one tap, and those with a tap for each pixel.
    for layout in Layout::ALL {
        let pixel = Specification { in_size: [1, 1], layout, ..image.clone() };
        let whole = Specification { in_size: [3, 5], kernel: [3, 5], ..pixel.clone() };
        assert_eq!([chosen(pixel), chosen(whole.clone())], [Algorithm::SinglePixels; 2]);
        assert_eq!(chosen(gradient(whole.clone())), Algorithm::SinglePixelsWeights);
        assert_ne!(chosen(gradient(Specification { batch: 65, ..whole.clone() })), Algorithm::SinglePixelsWeights);
        assert_ne!(chosen(Specification { padding: [1, 1], ..whole }), Algorithm::SinglePixels);
    }
    // A large patch of a transformer's first layer, whose stride deals out as many phases.
    let patch =
        Specification { in_channels: 3, kernel: [32, 32], stride: [32, 32], in_size: [224, 224], ..image.clone() };
    assert_eq!(chosen(patch.clone()), Algorithm::Patches);
    assert_eq!(chosen(Specification { stride: [33, 32], ..patch.clone() }), Algorithm::Direct);
    assert_eq!(chosen(gradient(patch)), Algorithm::Weights);
    // Filters that reach far over rows would be packed again for every strip.
    let far = |by: i64| Specification { dilation: [by, 1], padding: [by, 1], in_size: [99, 99], ..stem.clone() };
    assert_eq!([16, 17].map(|by| chosen(far(by))), [Algorithm::Planes, Algorithm::Direct]);
    let far = |by: i64| Specification { dilation: [by, 1], ..narrow(16) };
    assert_eq!([16, 17].map(|by| chosen(far(by))), [Algorithm::PlaneWeights, Algorithm::Weights]);
    assert_eq!(
        [15, 16].map(|channels| chosen(gradient(patches(channels)))),
        [Algorithm::PlaneWeights, Algorithm::Weights]
    );
    let of_pixels = |columns: i64| Specification { layout: Layout::Nhwc, in_size: [9, columns], ..narrow(16) };
    assert_eq!([27, 28].map(|columns| chosen(of_pixels(columns))), [Algorithm::Weights, Algorithm::ByPlanes]);
    // Small groups, unless results have gaps or channels lie together.
    let small = Specification { groups: 2, ..three.clone() };
    assert_eq!(chosen(small.clone()), Algorithm::Planes);
    // Rows of less than half of a vector, and filters that fill one.
    let lanes = Isa::Avx512.lanes() as i64;
    let columns = |count: i64| Specification {
        in_size: [9, count],
        in_channels: 2 * lanes,
        out_channels: 2 * lanes,
        ..small.clone()
    };
    assert_eq!([lanes / 2 - 1, lanes / 2].map(|count| chosen(columns(count))), [Algorithm::Direct, Algorithm::Planes]);
    assert_eq!(chosen(Specification { stride: [2, 2], ..small.clone() }), Algorithm::Planes);
    let strided = Specification { stride: [2, 2], direction: Direction::BackwardData, ..small.clone() };
    assert_eq!(chosen(strided), Algorithm::Direct);
    assert_eq!(chosen(Specification { layout: Layout::Nhwc, ..small }), Algorithm::Direct);
    // The data gradient of a stem, whatever its stride, and the last layer of what makes images.
    let stem = Specification { in_channels: 3, stride: [2, 2], ..three.clone() };
    assert_eq!(chosen(Specification { direction: Direction::BackwardData, ..stem }), Algorithm::Planes);
    assert_eq!(chosen(Specification { out_channels: 3, ..three.clone() }), Algorithm::Planes);
    // Dilated, where the phases fill their tiles, alone or behind each other.
    let dilated = |by: i64| Specification { dilation: [by, by], padding: [by, by], ..three.clone() };
    assert_eq!(chosen(dilated(2)), Algorithm::Winograd);
    let deeplab =
        |by: i64| Specification { in_size: [33, 33], in_channels: 64, out_channels: 64, batch: 4, ..dilated(by) };
    assert_eq!(chosen(deeplab(6)), Algorithm::Winograd);
    assert_eq!(chosen(deeplab(12)), Algorithm::Direct);
    let gradient = |by: i64| Specification { direction: Direction::BackwardWeights, ..deeplab(by) };
    assert_eq!(chosen(gradient(2)), Algorithm::WinogradWeights);
    assert_eq!(chosen(gradient(6)), Algorithm::Weights);
    assert_eq!(chosen(dilated(19)), Algorithm::Direct);
    // Along one axis, with pixels lying together; not with too few pixels for the filter's transform.
    let with = |kernel, padding| Specification { in_size: [40, 40], kernel, padding, ..image.clone() };
    let flat = with([1, 7], [0, 3]);
    assert_eq!(chosen(flat.clone()), Algorithm::WinogradAxis);
    assert_eq!(chosen(with([7, 1], [3, 0])), Algorithm::WinogradAxis);
    assert_eq!(chosen(with([5, 5], [2, 2])), Algorithm::WinogradAxis);
    assert_eq!(chosen(with([6, 6], [2, 2])), Algorithm::Direct);
    // So are weight gradients, over any number of channels.
    let gradient = |specification| Specification { direction: Direction::BackwardWeights, batch: 4, ..specification };
    assert_eq!(chosen(gradient(flat.clone())), Algorithm::WinogradAxisWeights);
    assert_eq!(chosen(gradient(with([5, 5], [2, 2]))), Algorithm::WinogradAxisWeights);
    assert_eq!(chosen(gradient(with([6, 6], [2, 2]))), Algorithm::Weights);
    assert_eq!(chosen(Specification { layout: Layout::Nhwc, ..gradient(flat.clone()) }), Algorithm::Weights);
    // Seven taps have the largest errors, and are not summed over many channels and taps of the other axis.
    let seven = with([7, 7], [3, 3]);
    assert_eq!(chosen(Specification { in_channels: 140, batch: 4, ..seven.clone() }), Algorithm::WinogradAxis);
    assert_eq!(chosen(Specification { in_channels: 160, batch: 4, ..seven }), Algorithm::Direct);
    assert_eq!(chosen(Specification { layout: Layout::Nhwc, ..flat.clone() }), Algorithm::Direct);
    assert_eq!(chosen(Specification { stride: [1, 2], ..flat.clone() }), Algorithm::Direct);
    assert_eq!(chosen(Specification { in_size: [10, 10], ..flat }), Algorithm::Direct);
    assert_eq!(chosen(image.clone()), Algorithm::Pointwise);
    // In NHWC with a tile's worth of channels on both sides; with a stride or groups from many channels on.
    let line = Specification { layout: Layout::Nhwc, ..image.clone() };
    assert_eq!(chosen(line.clone()), Algorithm::PointwiseChannels);
    let channels = |channels: [i64; 2], stride: i64| {
        let [in_channels, out_channels] = channels;
        chosen(Specification { in_channels, out_channels, stride: [stride, stride], ..line.clone() })
    };
    assert_eq!([23, 24].map(|sources| channels([sources, 17], 1)), [Algorithm::Direct, Algorithm::PointwiseChannels]);
    assert_eq!([16, 17].map(|results| channels([24, results], 1)), [Algorithm::Direct, Algorithm::PointwiseChannels]);
    assert_eq!([255, 256].map(|sources| channels([sources, 96], 2)), [Algorithm::Direct, Algorithm::PointwiseChannels]);
    let depthwise = Specification { groups: 32, kernel: [3, 3], ..image.clone() };
    assert_eq!(chosen(depthwise.clone()), Algorithm::Depthwise);
    assert_eq!(chosen(Specification { out_channels: 128, ..depthwise.clone() }), Algorithm::RepeatedChannels);
    assert_ne!(chosen(Specification { out_channels: 160, ..depthwise }), Algorithm::RepeatedChannels);
    assert_eq!(chosen(Specification { direction: Direction::BackwardWeights, ..image.clone() }), Algorithm::Weights);
    assert_eq!(chosen(Specification { stride: [65, 1], ..image.clone() }), Algorithm::Plain);
    assert_eq!(chosen(Specification { data_type: DataType::F64, ..image }), Algorithm::Plain);
}
