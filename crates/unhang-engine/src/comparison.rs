//! Compares a few elements of a result with the definition of a convolution, to judge a kernel's first result.
//!
//! It is serial and allocates nothing, because it runs in the user's process next to threads that compile.

use half::{bf16, f16};
use unhang_conv::reference::Indexer;
use unhang_conv::{DataType, Direction, Layout, Problem};

use crate::Elements;
use crate::tolerance::explained_by_rounding;

/// An element's position in a result. [`Problem::operand_shapes`] names the axes.
pub type ElementPosition = [usize; 4];

/// What is known about a result so far.
#[derive(Debug, Clone)]
pub struct Comparison {
    data_type: DataType,
    worst: f64,
    scale: f64,
    largest: f64,
    count: usize,
    /// The correct value is not finite, or too large for its type.
    beyond_type: bool,
    /// A value that should be finite is not.
    broken: bool,
}

impl Comparison {
    /// For results of that type, with nothing compared yet.
    pub fn new(data_type: DataType) -> Comparison {
        Comparison { data_type, worst: 0.0, scale: 0.0, largest: 0.0, count: 0, beyond_type: false, broken: false }
    }

    /// Compares elements of an ordinary problem's result. `found` has one value per place; a bias has one per channel
    /// of the result.
    ///
    /// # Panics
    /// If the operands do not match the problem, or a place is outside the result: the caller checks both.
    pub fn add(
        &mut self,
        problem: &Problem,
        operands: [Elements<'_>; 2],
        bias: Option<Elements<'_>>,
        places: &[ElementPosition],
        found: &[f64],
    ) {
        assert_eq!(places.len(), found.len(), "a number for each place");
        for (&place, &found) in places.iter().zip(found) {
            let (mut want, mut magnitude) = element(problem, operands, place);
            if let Some(bias) = bias {
                let bias = bias.get(place[1]);
                (want, magnitude) = (want + bias, magnitude + bias.abs());
            }
            self.count += 1;
            self.beyond_type |=
                !magnitude.is_finite() || !want.is_finite() || want.abs() > largest_of(self.data_type) / 2.0;
            self.broken |= !found.is_finite();
            self.worst = self.worst.max((found - want).abs());
            self.scale = self.scale.max(magnitude);
            self.largest = self.largest.max(want.abs());
        }
    }

    /// Whether the values are right, and how far apart they are, in words. `None` if they prove nothing: all values are
    /// zero, or a correct value is not finite.
    pub fn finding(&self) -> (Option<bool>, String) {
        // This comes first. A correct kernel may spread values that are not finite to others (Winograd's do).
        if self.beyond_type {
            return (None, "the numbers are not finite".to_owned());
        }
        if self.broken {
            return (Some(false), "a number is not finite".to_owned());
        }
        if self.scale == 0.0 {
            let right = if self.worst == 0.0 { None } else { Some(false) };
            return (right, format!("zeros, off by {:.1e}", self.worst));
        }
        let allowed = explained_by_rounding(self.data_type, self.scale, self.largest);
        let share = self.worst / allowed;
        (
            Some(self.worst <= allowed),
            format!("{} elements, off by {share:.2} of what rounding explains at most", self.count),
        )
    }
}

/// The largest finite value of a type.
fn largest_of(data_type: DataType) -> f64 {
    match data_type {
        DataType::F32 => f64::from(f32::MAX),
        DataType::F16 => f16::MAX.to_f64(),
        DataType::Bf16 => bf16::MAX.to_f64(),
        DataType::F64 => f64::MAX,
    }
}

/// One element of the result, by definition, and the sum of its products' magnitudes.
fn element(problem: &Problem, operands: [Elements<'_>; 2], place: ElementPosition) -> (f64, f64) {
    match operands {
        [Elements::F32(first), Elements::F32(second)] => element_of(problem, first, second, place, f64::from),
        [Elements::F16(first), Elements::F16(second)] => element_of(problem, first, second, place, f16::to_f64),
        [Elements::Bf16(first), Elements::Bf16(second)] => element_of(problem, first, second, place, bf16::to_f64),
        [Elements::F64(first), Elements::F64(second)] => element_of(problem, first, second, place, |it| it),
        [first, second] => panic!("operands of {} and {}", first.data_type(), second.data_type()),
    }
}

/// Sums of products, and of their magnitudes.
///
/// There are several of each, because additions to a single sum wait for each other, and a weight gradient has hundreds
/// of thousands of products.
#[derive(Default)]
struct Sums {
    values: [f64; LANES],
    magnitudes: [f64; LANES],
}

const LANES: usize = 8;

impl Sums {
    /// Adds the products of two rows from the given places on. Only every `steps`-th value counts.
    fn add<T: Copy>(
        &mut self,
        [first, second]: [&[T]; 2],
        starts: [usize; 2],
        steps: [usize; 2],
        count: usize,
        wide: impl Fn(T) -> f64,
    ) {
        if count == 0 {
            return;
        }
        let first = &first[starts[0]..=starts[0] + (count - 1) * steps[0]];
        let second = &second[starts[1]..=starts[1] + (count - 1) * steps[1]];
        match steps {
            [1, 1] => self.add_rows::<T, 1>(first, second, wide),
            [2, 1] => self.add_rows::<T, 2>(first, second, wide),
            _ => self.add_one_by_one(first.iter().step_by(steps[0]).zip(second.iter().step_by(steps[1])), wide),
        }
    }

    /// Adds the products of every `STEP`-th value of the first row with all values of the second, in vectors.
    fn add_rows<T: Copy, const STEP: usize>(&mut self, first: &[T], second: &[T], wide: impl Fn(T) -> f64) {
        let whole = (first.len() / (STEP * LANES)).min(second.len() / LANES);
        let (first, first_rest) = first.split_at(whole * STEP * LANES);
        let (second, second_rest) = second.split_at(whole * LANES);
        for (a, b) in first.chunks_exact(STEP * LANES).zip(second.chunks_exact(LANES)) {
            for lane in 0..LANES {
                let product = wide(a[lane * STEP]) * wide(b[lane]);
                self.values[lane] += product;
                self.magnitudes[lane] += product.abs();
            }
        }
        self.add_one_by_one(first_rest.iter().step_by(STEP).zip(second_rest), wide);
    }

    fn add_one_by_one<'a, T: Copy + 'a>(
        &mut self,
        pairs: impl Iterator<Item = (&'a T, &'a T)>,
        wide: impl Fn(T) -> f64,
    ) {
        for (at, (&a, &b)) in pairs.enumerate() {
            let product = wide(a) * wide(b);
            self.values[at % LANES] += product;
            self.magnitudes[at % LANES] += product.abs();
        }
    }

    fn whole(&self) -> (f64, f64) {
        (self.values.iter().sum(), self.magnitudes.iter().sum())
    }
}

/// Whether each image is exactly one filter window, with its values in the filter's order. This is true of windows cut
/// out of a larger image.
fn is_one_window(problem: &Problem) -> bool {
    let in_order = problem.groups() == 1 || problem.layout() == Layout::Nchw;
    in_order && problem.kernel() == problem.in_size() && problem.padding() == [0, 0] && problem.dilation() == [1, 1]
}

fn element_of<T: Copy>(
    problem: &Problem,
    first: &[T],
    second: &[T],
    [i, j, k, l]: ElementPosition,
    wide: impl Fn(T) -> f64 + Copy,
) -> (f64, f64) {
    let layout = problem.layout();
    let [first_at, second_at, _] = problem.operand_shapes().map(|shape| Indexer::new(shape, layout));
    let both = [first, second];
    let ([rows, columns], [out_height, out_width], [height, width]) =
        (problem.kernel(), problem.out_size(), problem.in_size());
    let channels = problem.in_channels() / problem.groups();
    let filters = problem.out_channels() / problem.groups();
    // The distance between two channels of an operand, and between two columns.
    let channel_step = [first_at, second_at].map(|it| it.index([0, 1, 0, 0]));
    let column_step = [first_at, second_at].map(|it| it.index([0, 0, 0, 1]));
    let input_of = |out: usize, tap: usize, axis: usize| {
        (out * problem.stride()[axis] + tap * problem.dilation()[axis]).checked_sub(problem.padding()[axis])
    };
    let mut sums = Sums::default();
    match problem.direction() {
        Direction::Forward => {
            let group = j / filters;
            if is_one_window(problem) {
                let starts = [first_at.index([i, group * channels, 0, 0]), second_at.index([j, 0, 0, 0])];
                sums.add(both, starts, [1, 1], channels * rows * columns, wide);
                return sums.whole();
            }
            for r in 0..rows {
                let Some(y) = input_of(k, r, 0).filter(|&y| y < height) else { continue };
                for s in 0..columns {
                    let Some(x) = input_of(l, s, 1).filter(|&x| x < width) else { continue };
                    let starts = [first_at.index([i, group * channels, y, x]), second_at.index([j, 0, r, s])];
                    sums.add(both, starts, channel_step, channels, wide);
                }
            }
        }
        Direction::BackwardData => {
            let group = j / channels;
            // The output position whose tap falls on this input.
            let output_of = |at: usize, tap: usize, axis: usize, size: usize| {
                let from = (at + problem.padding()[axis]).checked_sub(tap * problem.dilation()[axis])?;
                let out = from / problem.stride()[axis];
                (from % problem.stride()[axis] == 0 && out < size).then_some(out)
            };
            let filter_step = [channel_step[0], second_at.index([1, 0, 0, 0])];
            for r in 0..rows {
                let Some(y) = output_of(k, r, 0, out_height) else { continue };
                for s in 0..columns {
                    let Some(x) = output_of(l, s, 1, out_width) else { continue };
                    let starts = [
                        first_at.index([i, group * filters, y, x]),
                        second_at.index([group * filters, j % channels, r, s]),
                    ];
                    sums.add(both, starts, filter_step, filters, wide);
                }
            }
        }
        Direction::BackwardWeights => {
            let channel = i / filters * channels + j;
            // Outputs whose tap falls on the input are next to each other.
            let mut inside = (0..out_width).filter(|&x| input_of(x, l, 1).is_some_and(|at| at < width));
            let Some(from) = inside.next() else { return sums.whole() };
            let to = inside.next_back().unwrap_or(from);
            let Some(x) = input_of(from, l, 1) else { return sums.whole() };
            let steps = [column_step[0] * problem.stride()[1], column_step[1]];
            for image in 0..problem.batch() {
                for out in 0..out_height {
                    let Some(y) = input_of(out, k, 0).filter(|&y| y < height) else { continue };
                    let starts = [first_at.index([image, channel, y, x]), second_at.index([image, i, out, from])];
                    sums.add(both, starts, steps, to - from + 1, wide);
                }
            }
        }
    }
    sums.whole()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use unhang_conv::reference;

    use super::*;

    const KEYS: [&str; 6] = [
        "2x6x3x4:4x3x4:s2x1:p0x0:d1x1:g2",
        "2x6x9x8:4x3x2:s2x1:p1x0:d1x2:g2",
        "1x3x5x5:3x3x3:s1x1:p1x1:d1x1:g3",
        "1x2x7x7:5x1x1:s2x2:p0x0:d1x1:g1",
        "2x2x3x3:3x3x3:s1x1:p7x5:d1x1:g1",
        "3x4x20x13:6x2x5:s3x2:p1x4:d2x1:g2",
    ];

    fn numbers(count: usize, seed: usize) -> Vec<f32> {
        (0..count).map(|at| ((at * 37 + seed * 11) % 23) as f32 - 11.0).collect()
    }

    fn every_place([n, c, h, w]: [usize; 4]) -> Vec<ElementPosition> {
        let mut places = Vec::new();
        for i in 0..n {
            for j in 0..c {
                for k in 0..h {
                    places.extend((0..w).map(|l| [i, j, k, l]));
                }
            }
        }
        places
    }

    fn of_each(then: impl Fn(&Problem, [&[f32]; 2], &[ElementPosition], Vec<f64>)) {
        for key in KEYS {
            for direction in Direction::ALL {
                for layout in ["nchw", "nhwc"] {
                    let problem: Problem = format!("{direction}:f32:{layout}:{key}").parse().unwrap();
                    let [first, second, result] = problem.operand_shapes();
                    let [first, second] =
                        [(first, 1), (second, 2)].map(|(shape, seed)| numbers(shape.iter().product(), seed));
                    let right = reference::compute(&problem, &first, &second, None);
                    let at = Indexer::new(result, problem.layout());
                    let places = every_place(result);
                    let found = places.iter().map(|&place| right[at.index(place)]).collect();
                    then(&problem, [&first, &second], &places, found);
                }
            }
        }
    }

    fn compared(
        problem: &Problem,
        [a, b]: [&[f32]; 2],
        places: &[ElementPosition],
        found: &[f64],
    ) -> (Option<bool>, String) {
        let mut comparison = Comparison::new(problem.data_type());
        comparison.add(problem, [Elements::F32(a), Elements::F32(b)], None, places, found);
        comparison.finding()
    }

    #[test]
    fn every_element_is_that_of_the_reference() {
        of_each(|problem, operands, places, found| {
            let (right, detail) = compared(problem, operands, places, &found);
            // A gradient of nothing but padding is zero, which proves nothing.
            assert_ne!(right, Some(false), "{problem}: {detail}");
            for (&place, found) in places.iter().zip(&found) {
                let [a, b] = operands.map(Elements::F32);
                assert_eq!(element(problem, [a, b], place).0, *found, "{problem} at {place:?}");
            }
        });
    }

    #[test]
    fn one_wrong_element_is_detected_wherever_it_is() {
        of_each(|problem, operands, places, found| {
            for at in [0, found.len() / 2, found.len() - 1] {
                let mut wrong = found.clone();
                wrong[at] += 1.0;
                assert_eq!(compared(problem, operands, places, &wrong).0, Some(false), "{problem} at {:?}", places[at]);
                wrong[at] = f64::NAN;
                assert_eq!(compared(problem, operands, places, &wrong).0, Some(false), "{problem} at {:?}", places[at]);
            }
        });
    }

    #[test]
    fn zeros_and_what_is_not_finite_prove_nothing() {
        of_each(|problem, [a, b], places, found| {
            let zeros = compared(problem, [&vec![0.0; a.len()], b], places, &vec![0.0; found.len()]);
            assert_eq!(zeros.0, None, "{problem}");
            let infinite = compared(problem, [&vec![f32::INFINITY; a.len()], b], places, &found);
            assert_ne!(infinite.0, Some(true), "{problem}");
        });
        let problem: Problem = "forward:f16:nchw:1x1x1x1:1x1x1:s1x1:p0x0:d1x1:g1".parse().unwrap();
        let mut comparison = Comparison::new(DataType::F16);
        let large = [f16::from_f32(300.0)];
        comparison.add(&problem, [Elements::F16(&large); 2], None, &[[0; 4]], &[f64::INFINITY]);
        assert_eq!(comparison.finding().0, None, "90000 is more than f16 holds");
    }

    #[test]
    fn a_bias_belongs_to_its_channel() {
        let problem: Problem = "forward:f32:nchw:1x1x1x1:2x1x1:s1x1:p0x0:d1x1:g1".parse().unwrap();
        let operands = [Elements::F32(&[2.0]), Elements::F32(&[3.0, 5.0])];
        let places = [[0, 0, 0, 0], [0, 1, 0, 0]];
        for (found, right) in [([7.0, 12.0], true), ([8.0, 11.0], false)] {
            let mut comparison = Comparison::new(DataType::F32);
            comparison.add(&problem, operands, Some(Elements::F32(&[1.0, 2.0])), &places, &found);
            assert_eq!(comparison.finding().0, Some(right));
        }
    }

    proptest! {
        #[test]
        fn sums_do_not_depend_on_how_rows_are_cut(values in prop::collection::vec(-100i32..100, 1..60), step in 1usize..4) {
            let numbers: Vec<f64> = values.iter().map(|&it| f64::from(it)).collect();
            let count = (numbers.len() - 1) / step + 1;
            let mut sums = Sums::default();
            sums.add([&numbers, &numbers], [0, 0], [step, step], count, |it| it);
            let want: f64 = numbers.iter().step_by(step).map(|it| it * it).sum();
            prop_assert_eq!(sums.whole(), (want, want));
        }
    }
}
