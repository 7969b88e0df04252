//! The first result of each of our kernels, compared with the definition on a few elements: at the corners of the first and the
//! last image, in the first and last channels, and at a few places between, where tiles are ragged and mistakes live.

use unhang_conv::reference::Indexer;
use unhang_conv::{DataType, Direction, Problem};
use unhang_engine::tolerance::explained_by_rounding;

use crate::host::Numbers;

/// Whether numbers are right, and how far they are apart. None where they prove nothing: zeros, or what is not finite.
pub(crate) fn compare(problem: &Problem, operands: [&Numbers; 2], result: &Numbers) -> Option<(bool, String)> {
    let shape = problem.operand_shapes()[2];
    let at = Indexer::new(shape, problem.layout());
    let (mut worst, mut scale, mut largest, mut count) = (0.0f64, 0.0f64, 0.0f64, 0);
    for place in places(shape) {
        let (want, magnitude) = element(problem, operands, place);
        let got = result.get(at.index(place));
        if !want.is_finite() || !magnitude.is_finite() || overflows(problem.data_type(), want) {
            return None;
        }
        if !got.is_finite() {
            return Some((false, "an element is not finite".to_owned()));
        }
        worst = worst.max((got - want).abs());
        (scale, largest, count) = (scale.max(magnitude), largest.max(want.abs()), count + 1);
    }
    if scale == 0.0 {
        return if worst == 0.0 { None } else { Some((false, format!("zeros, off by {worst:.1e}"))) };
    }
    let allowed = explained_by_rounding(problem.data_type(), scale, largest);
    Some((
        worst <= allowed,
        format!("{count} elements, off by {:.2} of what rounding explains at most", worst / allowed),
    ))
}

/// Whether a number is beyond half of what its type holds.
fn overflows(data_type: DataType, number: f64) -> bool {
    data_type == DataType::F16 && number.abs() > 32_000.0
}

fn places([n, c, h, w]: [usize; 4]) -> Vec<[usize; 4]> {
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

/// One element of the result by definition, and the sum of its products' magnitudes.
fn element(problem: &Problem, [first, second]: [&Numbers; 2], place: [usize; 4]) -> (f64, f64) {
    let layout = problem.layout();
    let [first_at, second_at, _] = problem.operand_shapes().map(|shape| Indexer::new(shape, layout));
    let (mut sum, mut magnitude) = (0.0, 0.0);
    let mut add = |a: usize, b: usize| {
        let product = first.get(a) * second.get(b);
        sum += product;
        magnitude += product.abs();
    };
    let ([kh, kw], [oh, ow], [ih, iw]) = (problem.kernel(), problem.out_size(), problem.in_size());
    let channels = problem.in_channels() / problem.groups();
    let rows = problem.out_channels() / problem.groups();
    let into = |out: usize, tap: usize, axis: usize| {
        (out * problem.stride()[axis] + tap * problem.dilation()[axis]).checked_sub(problem.padding()[axis])
    };
    let [i, j, k, l] = place;
    match problem.direction() {
        Direction::Forward => {
            for r in 0..kh {
                let Some(y) = into(k, r, 0).filter(|&y| y < ih) else { continue };
                for t in 0..kw {
                    let Some(x) = into(l, t, 1).filter(|&x| x < iw) else { continue };
                    for c in 0..channels {
                        add(first_at.index([i, j / rows * channels + c, y, x]), second_at.index([j, c, r, t]));
                    }
                }
            }
        }
        Direction::BackwardData => {
            let group = j / channels;
            for r in 0..kh {
                for t in 0..kw {
                    // Which output pixel put this input under this tap.
                    let of = |at: usize, tap: usize, axis: usize, limit: usize| {
                        let from = (at + problem.padding()[axis]).checked_sub(tap * problem.dilation()[axis])?;
                        let out = from / problem.stride()[axis];
                        (from % problem.stride()[axis] == 0 && out < limit).then_some(out)
                    };
                    let (Some(y), Some(x)) = (of(k, r, 0, oh), of(l, t, 1, ow)) else { continue };
                    for row in group * rows..(group + 1) * rows {
                        add(first_at.index([i, row, y, x]), second_at.index([row, j % channels, r, t]));
                    }
                }
            }
        }
        Direction::BackwardWeights => {
            let channel = i / rows * channels + j;
            for n in 0..problem.batch() {
                for y in 0..oh {
                    let Some(from_y) = into(y, k, 0).filter(|&at| at < ih) else { continue };
                    for x in 0..ow {
                        let Some(from_x) = into(x, l, 1).filter(|&at| at < iw) else { continue };
                        add(first_at.index([n, channel, from_y, from_x]), second_at.index([n, i, y, x]));
                    }
                }
            }
        }
    }
    (sum, magnitude)
}

#[cfg(test)]
mod tests {
    use unhang_conv::reference;

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
