//! The first result of each of our kernels, compared with the definition on a few elements: at the corners of the first and the
//! last image, in the first and last channels, and at a few places between, where tiles are ragged and mistakes live.

use unhang_conv::Problem;
use unhang_conv::reference::Indexer;
use unhang_engine::{Comparison, Place};

use crate::host::Numbers;

/// Whether numbers are right, and how far they are apart. None where they prove nothing: zeros, or what is not finite.
pub(crate) fn compare(problem: &Problem, operands: [&Numbers; 2], result: &Numbers) -> Option<(bool, String)> {
    let shape = problem.operand_shapes()[2];
    let at = Indexer::new(shape, problem.layout());
    let places = places(shape);
    let found: Vec<f64> = places.iter().map(|&place| result.get(at.index(place))).collect();
    let mut comparison = Comparison::new(problem.data_type());
    comparison.add(problem, operands.map(Numbers::elements), None, &places, &found);
    let (right, detail) = comparison.finding();
    right.map(|right| (right, detail))
}

fn places([n, c, h, w]: [usize; 4]) -> Vec<Place> {
    let ends = |size: usize| if size == 1 { vec![0] } else { vec![0, size - 1] };
    let mut places = Vec::new();
    for i in ends(n) {
        for j in ends(c) {
            for k in ends(h) {
                for l in ends(w) {
                    places.push([i, j, k, l]);
                }
            }
        }
    }
    // A few between, the same each time.
    let mut seed = 0x9e37_79b9_u64;
    for _ in 0..16 {
        places.push([n, c, h, w].map(|size| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) as usize % size
        }));
    }
    places
}

#[cfg(test)]
mod tests {
    use unhang_conv::{DataType, Direction, reference};

    use super::*;

    fn numbers(count: usize, seed: usize) -> Numbers {
        Numbers::F32((0..count).map(|at| ((at * 37 + seed * 11) % 23) as f32 - 11.0).collect())
    }

    #[test]
    fn every_direction_agrees_with_the_reference_and_a_wrong_element_is_found() {
        for key in
            ["2x6x9x8:4x3x2:s2x1:p1x0:d1x2:g2", "1x3x5x5:3x3x3:s1x1:p1x1:d1x1:g3", "1x2x7x7:5x1x1:s2x2:p0x0:d1x1:g1"]
        {
            for direction in Direction::ALL {
                for layout in ["nchw", "nhwc"] {
                    let problem: Problem = format!("{direction}:f32:{layout}:{key}").parse().unwrap();
                    let [first, second, result] = problem.operand_shapes().map(|it| it.iter().product::<usize>());
                    let operands = [numbers(first, 1), numbers(second, 2)];
                    let (Numbers::F32(a), Numbers::F32(b)) = (&operands[0], &operands[1]) else { unreachable!() };
                    let right = reference::compute(&problem, a, b, None);
                    let mut right = Numbers::F32(right.iter().map(|&it| it as f32).collect());
                    let operands = [&operands[0], &operands[1]];
                    let (is_right, detail) = compare(&problem, operands, &right).unwrap();
                    assert!(is_right, "{problem}: {detail}");
                    right.set(result - 1, right.get(result - 1) + 1.0);
                    assert!(!compare(&problem, operands, &right).unwrap().0, "{problem}");
                    let zeros = [Numbers::zeros(DataType::F32, first), Numbers::zeros(DataType::F32, second)];
                    let none = compare(&problem, [&zeros[0], &zeros[1]], &Numbers::zeros(DataType::F32, result));
                    assert_eq!(none, None, "zeros prove nothing");
                }
            }
        }
    }
}
