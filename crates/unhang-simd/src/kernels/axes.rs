//! Kernels of Winograd's algorithm along one axis: F(4, 3), F(4, 5) and F(4, 7), and with a stride of two F(5, 2) and F(7, 2).
//! Every number of a row is transformed by itself, so that pixels lie in vectors.
//!
//! With a stride of two three taps are two that meet every second row, which are transformed, and one between them that
//! meets the others: its products are sums by themselves, called plain, one row for each row of results.
//!
//! The points are 0, pairs ± and infinity. A pair's sums over even and odd places are the same but for a sign, which halves
//! the work. Of the simple fractions that were tried these pairs have about the least errors (`tools/bench-cpu/winograd.py`).

use super::winograd::is_zero;
use crate::vector::Vector;

/// Results of a tile without a stride.
pub const AXIS_TILE: usize = 4;
/// The most results of a tile.
pub(super) const MOST_RESULTS: usize = 7;
/// The most points.
pub(super) const MOST_POINTS: usize = 10;

/// Results of a tile with this many pairs of points: with a stride of two as many as two taps leave.
pub const fn axis_tile(pairs: usize, stride: usize) -> usize {
    if stride == 1 { AXIS_TILE } else { 2 * pairs + 1 }
}

/// Pairs of points for this many taps, if there are kernels for them.
pub const fn pairs_for(taps: usize) -> Option<usize> {
    match taps {
        3 | 5 | 7 => Some(taps.div_ceil(2)),
        _ => None,
    }
}

/// Rows of the source to be transformed.
#[derive(Debug, Clone, Copy)]
pub struct AxisSource {
    /// Pairs of points.
    pub pairs: usize,
    /// The rows of a tile, as many as there are points.
    pub rows: [*const f32; MOST_POINTS],
    /// Numbers of a row.
    pub count: usize,
    /// Where the first element's go.
    pub to: *mut f32,
    /// From one element to the next.
    pub element_step: usize,
}

/// Filters to be transformed.
#[derive(Debug, Clone, Copy)]
pub struct AxisFilters {
    /// Pairs of points.
    pub pairs: usize,
    /// The stride.
    pub stride: usize,
    /// The first tap's numbers.
    pub from: *const f32,
    /// From one tap to the next.
    pub tap_step: usize,
    /// Numbers of a tap.
    pub count: usize,
    /// Where the first element's go.
    pub to: *mut f32,
    /// From one element to the next.
    pub element_step: usize,
}

/// Sums to be transformed to rows of results.
#[derive(Debug, Clone, Copy)]
pub struct AxisResults {
    /// Pairs of points.
    pub pairs: usize,
    /// The stride.
    pub stride: usize,
    /// The first element's sums.
    pub from: *const f32,
    /// From one element to the next.
    pub element_step: usize,
    /// With a stride, the first row's plain sums.
    pub plain: *const f32,
    /// From one row's to the next's.
    pub plain_step: usize,
    /// Added to every result.
    pub bias: f32,
    /// The first row of results.
    pub to: *mut f32,
    /// From one row to the next.
    pub row_step: usize,
    /// Rows that are wanted, a tile at most.
    pub rows: usize,
    /// Numbers of a row.
    pub count: usize,
}

/// Rows of the result's gradient to be transformed.
#[derive(Debug, Clone, Copy)]
pub struct AxisGradient {
    /// Pairs of points.
    pub pairs: usize,
    /// The stride.
    pub stride: usize,
    /// The rows of a tile.
    pub rows: [*const f32; MOST_RESULTS],
    /// Numbers of a row.
    pub count: usize,
    /// Where the first element's go.
    pub to: *mut f32,
    /// From one element to the next.
    pub element_step: usize,
}

/// Sums to be transformed to a filter's gradient.
#[derive(Debug, Clone, Copy)]
pub struct AxisTaps {
    /// Pairs of points.
    pub pairs: usize,
    /// The stride.
    pub stride: usize,
    /// The first element's sums.
    pub from: *const f32,
    /// From one element to the next.
    pub element_step: usize,
    /// Numbers of an element.
    pub count: usize,
    /// Where the first tap's go.
    pub to: *mut f32,
    /// From one tap to the next.
    pub tap_step: usize,
}

/// The numbers of the transforms.
struct Points<const PAIRS: usize> {
    /// The positive point of each pair.
    roots: [f32; PAIRS],
    /// For each pair the polynomial in x² whose roots are the others' squares: all but the leading one, which is 1.
    others: [[f32; PAIRS]; PAIRS],
    /// The polynomial whose roots are all squares, likewise.
    all: [f32; PAIRS],
    /// What filters are multiplied with at each pair, and at 0.
    over: [f32; PAIRS],
    over_zero: f32,
}

impl<const PAIRS: usize> Points<PAIRS> {
    const fn new(roots: [f64; PAIRS]) -> Points<PAIRS> {
        let mut points = Points {
            roots: [0.0; PAIRS],
            others: [[0.0; PAIRS]; PAIRS],
            all: [0.0; PAIRS],
            over: [0.0; PAIRS],
            over_zero: 0.0,
        };
        let mut product = 1.0;
        let mut pair = 0;
        while pair < PAIRS {
            let square = roots[pair] * roots[pair];
            let mut over = 2.0 * square;
            let mut other = 0;
            while other < PAIRS {
                if other != pair {
                    over *= square - roots[other] * roots[other];
                }
                other += 1;
            }
            product *= -square;
            points.roots[pair] = roots[pair] as f32;
            points.over[pair] = (1.0 / over) as f32;
            points.others[pair] = polynomial(&roots, pair);
            pair += 1;
        }
        points.over_zero = (1.0 / product) as f32;
        points.all = polynomial(&roots, PAIRS);
        points
    }
}

/// The polynomial in x² whose roots are the squares, but for that of `without`: its coefficients below the leading one.
const fn polynomial<const PAIRS: usize>(roots: &[f64; PAIRS], without: usize) -> [f32; PAIRS] {
    // The leading one has a separate place while the product grows.
    let mut product = [0.0f64; MOST_POINTS];
    product[0] = 1.0;
    let mut degree = 0;
    let mut root = 0;
    while root < PAIRS {
        if root != without {
            degree += 1;
            let mut power = degree;
            while power > 0 {
                product[power] = product[power - 1] - roots[root] * roots[root] * product[power];
                power -= 1;
            }
            product[0] *= -(roots[root] * roots[root]);
        }
        root += 1;
    }
    let mut coefficients = [0.0; PAIRS];
    let mut power = 0;
    while power < PAIRS {
        coefficients[power] = product[power] as f32;
        power += 1;
    }
    coefficients
}

const THREE_TAPS: Points<2> = Points::new([0.625, 1.5]);
const FIVE_TAPS: Points<3> = Points::new([0.5, 1.0, 2.0]);
const SEVEN_TAPS: Points<4> = Points::new([0.5, 0.75, 1.25, 2.5]);

/// # Safety
/// Inlined where the features of `V` are on; all pointers are good for what the fields describe.
#[inline(always)]
pub(super) unsafe fn source<V: Vector>(rows: &AxisSource) {
    // SAFETY: the function's own conditions.
    unsafe {
        match rows.pairs {
            2 => source_with::<V, 2>(rows, &THREE_TAPS),
            3 => source_with::<V, 3>(rows, &FIVE_TAPS),
            _ => source_with::<V, 4>(rows, &SEVEN_TAPS),
        }
    }
}

/// # Safety
/// As [`source`].
#[inline(always)]
unsafe fn source_with<V: Vector, const PAIRS: usize>(rows: &AxisSource, points: &Points<PAIRS>) {
    // SAFETY: all accesses stay below `count`.
    unsafe {
        let mut i = 0;
        while i < rows.count {
            let part = (rows.count - i).min(V::LANES);
            let mut numbers = [V::zero(); MOST_POINTS];
            for (number, row) in numbers.iter_mut().zip(rows.rows).take(2 * PAIRS + 2) {
                *number = V::load_part(row.add(i), part);
            }
            let store =
                |element: usize, number: V| number.store_part(rows.to.add(element * rows.element_step + i), part);
            // Σ coefficient × number over every second place from `first` on; the last coefficient is 1.
            let sum = |coefficients: &[f32], first: usize| {
                let mut sum = numbers[first + 2 * coefficients.len()];
                for (power, &coefficient) in coefficients.iter().enumerate() {
                    sum = numbers[first + 2 * power].multiply_add(V::splat(coefficient), sum);
                }
                sum
            };
            store(0, sum(&points.all, 0));
            for pair in 0..PAIRS {
                let others = &points.others[pair][..PAIRS - 1];
                let (even, odd) = (sum(others, 2), sum(others, 1));
                store(1 + 2 * pair, odd.multiply_add(V::splat(points.roots[pair]), even));
                store(2 + 2 * pair, odd.multiply_add(V::splat(-points.roots[pair]), even));
            }
            store(2 * PAIRS + 1, sum(&points.all, 1));
            i += V::LANES;
        }
    }
}

/// Taps that are transformed: all of them, or the two around the one between them.
const fn taps_of_points(pairs: usize, stride: usize) -> usize {
    2 * pairs + 3 - axis_tile(pairs, stride)
}

/// Whether all transformed filters are finite. With a stride the tap between the others follows the last point.
///
/// # Safety
/// As [`source`].
#[inline(always)]
pub(super) unsafe fn filters<V: Vector>(filters: &AxisFilters) -> bool {
    // SAFETY: the function's own conditions.
    unsafe {
        match (filters.pairs, filters.stride) {
            (2, 1) => filters_with::<V, 2, 1>(filters, &THREE_TAPS),
            (3, 1) => filters_with::<V, 3, 1>(filters, &FIVE_TAPS),
            (2, _) => filters_with::<V, 2, 2>(filters, &THREE_TAPS),
            (3, _) => filters_with::<V, 3, 2>(filters, &FIVE_TAPS),
            _ => filters_with::<V, 4, 1>(filters, &SEVEN_TAPS),
        }
    }
}

/// # Safety
/// As [`source`].
#[inline(always)]
unsafe fn filters_with<V: Vector, const PAIRS: usize, const STRIDE: usize>(
    filters: &AxisFilters,
    points: &Points<PAIRS>,
) -> bool {
    // SAFETY: all accesses stay below `count`.
    unsafe {
        let mut spoiled = V::zero();
        let mut i = 0;
        while i < filters.count {
            let part = (filters.count - i).min(V::LANES);
            let tap = |tap: usize| V::load_part(filters.from.add(tap * STRIDE * filters.tap_step + i), part);
            let mut store = |element: usize, number: V| {
                spoiled = number.multiply_add(V::zero(), spoiled);
                number.store_part(filters.to.add(element * filters.element_step + i), part);
            };
            store(0, tap(0).multiply_add(V::splat(points.over_zero), V::zero()));
            for pair in 0..PAIRS {
                let (mut sums, mut power) = ([V::zero(); 2], points.over[pair]);
                for number in 0..taps_of_points(PAIRS, STRIDE) {
                    let sum = &mut sums[number % 2];
                    *sum = tap(number).multiply_add(V::splat(power), *sum);
                    power *= points.roots[pair];
                }
                store(1 + 2 * pair, sums[0].add(sums[1]));
                store(2 + 2 * pair, sums[1].multiply_add(V::splat(-1.0), sums[0]));
            }
            store(2 * PAIRS + 1, tap(taps_of_points(PAIRS, STRIDE) - 1));
            if STRIDE == 2 {
                store(2 * PAIRS + 2, V::load_part(filters.from.add(filters.tap_step + i), part));
            }
            i += V::LANES;
        }
        is_zero(spoiled)
    }
}

/// Whether all results that are wanted are finite.
///
/// # Safety
/// As [`source`].
#[inline(always)]
pub(super) unsafe fn results<V: Vector>(sums: &AxisResults) -> bool {
    // SAFETY: the function's own conditions.
    unsafe {
        match (sums.pairs, sums.stride) {
            (2, 1) => results_with::<V, 2, 1>(sums, &THREE_TAPS),
            (3, 1) => results_with::<V, 3, 1>(sums, &FIVE_TAPS),
            (2, _) => results_with::<V, 2, 2>(sums, &THREE_TAPS),
            (3, _) => results_with::<V, 3, 2>(sums, &FIVE_TAPS),
            _ => results_with::<V, 4, 1>(sums, &SEVEN_TAPS),
        }
    }
}

/// # Safety
/// As [`source`].
#[inline(always)]
unsafe fn results_with<V: Vector, const PAIRS: usize, const STRIDE: usize>(
    sums: &AxisResults,
    points: &Points<PAIRS>,
) -> bool {
    // SAFETY: all accesses stay below `count` and `rows`.
    unsafe {
        let mut spoiled = V::zero();
        let mut i = 0;
        while i < sums.count {
            let part = (sums.count - i).min(V::LANES);
            let element = |element: usize| V::load_part(sums.from.add(element * sums.element_step + i), part);
            let bias = V::splat(sums.bias);
            let tile = axis_tile(PAIRS, STRIDE);
            let mut results = [bias; MOST_RESULTS];
            for (row, result) in results.iter_mut().enumerate().take(sums.rows).filter(|_| STRIDE == 2) {
                *result = result.add(V::load_part(sums.plain.add(row * sums.plain_step + i), part));
            }
            results[0] = results[0].add(element(0));
            results[tile - 1] = results[tile - 1].add(element(2 * PAIRS + 1));
            for pair in 0..PAIRS {
                let (plus, minus) = (element(1 + 2 * pair), element(2 + 2 * pair));
                let both = [plus.add(minus), minus.multiply_add(V::splat(-1.0), plus)];
                let mut power = 1.0;
                for (row, result) in results.iter_mut().enumerate().take(tile) {
                    *result = both[row % 2].multiply_add(V::splat(power), *result);
                    power *= points.roots[pair];
                }
            }
            for (row, result) in results.into_iter().enumerate().take(sums.rows) {
                spoiled = result.multiply_add(V::zero(), spoiled);
                result.store_part(sums.to.add(row * sums.row_step + i), part);
            }
            i += V::LANES;
        }
        is_zero(spoiled)
    }
}

/// The transform of [`results`] the other way: from rows to elements.
///
/// # Safety
/// As [`source`].
#[inline(always)]
pub(super) unsafe fn gradient<V: Vector>(rows: &AxisGradient) {
    // SAFETY: the function's own conditions.
    unsafe {
        match (rows.pairs, rows.stride) {
            (2, 1) => gradient_with::<V, 2, 1>(rows, &THREE_TAPS),
            (3, 1) => gradient_with::<V, 3, 1>(rows, &FIVE_TAPS),
            (2, _) => gradient_with::<V, 2, 2>(rows, &THREE_TAPS),
            (3, _) => gradient_with::<V, 3, 2>(rows, &FIVE_TAPS),
            _ => gradient_with::<V, 4, 1>(rows, &SEVEN_TAPS),
        }
    }
}

/// # Safety
/// As [`source`].
#[inline(always)]
unsafe fn gradient_with<V: Vector, const PAIRS: usize, const STRIDE: usize>(
    rows: &AxisGradient,
    points: &Points<PAIRS>,
) {
    // SAFETY: all accesses stay below `count`.
    unsafe {
        let mut i = 0;
        while i < rows.count {
            let part = (rows.count - i).min(V::LANES);
            let tile = axis_tile(PAIRS, STRIDE);
            let mut numbers = [V::zero(); MOST_RESULTS];
            for (number, row) in numbers.iter_mut().zip(rows.rows).take(tile) {
                *number = V::load_part(row.add(i), part);
            }
            let store =
                |element: usize, number: V| number.store_part(rows.to.add(element * rows.element_step + i), part);
            store(0, numbers[0]);
            for (pair, &root) in points.roots.iter().enumerate() {
                let square = V::splat(root * root);
                // By Horner's rule over every second row.
                let [mut even, mut odd] = [V::zero(); 2];
                for row in (0..tile).rev() {
                    let sum = if row % 2 == 0 { &mut even } else { &mut odd };
                    *sum = if row + 2 < tile { sum.multiply_add(square, numbers[row]) } else { numbers[row] };
                }
                store(1 + 2 * pair, odd.multiply_add(V::splat(root), even));
                store(2 + 2 * pair, odd.multiply_add(V::splat(-root), even));
            }
            store(2 * PAIRS + 1, numbers[tile - 1]);
            i += V::LANES;
        }
    }
}

/// The transform of [`filters`] the other way: from elements to taps. Whether all of them are finite.
///
/// # Safety
/// As [`source`].
#[inline(always)]
pub(super) unsafe fn taps<V: Vector>(sums: &AxisTaps) -> bool {
    // SAFETY: the function's own conditions.
    unsafe {
        match (sums.pairs, sums.stride) {
            (2, 1) => taps_with::<V, 2, 1>(sums, &THREE_TAPS),
            (3, 1) => taps_with::<V, 3, 1>(sums, &FIVE_TAPS),
            (2, _) => taps_with::<V, 2, 2>(sums, &THREE_TAPS),
            (3, _) => taps_with::<V, 3, 2>(sums, &FIVE_TAPS),
            _ => taps_with::<V, 4, 1>(sums, &SEVEN_TAPS),
        }
    }
}

/// # Safety
/// As [`source`].
#[inline(always)]
unsafe fn taps_with<V: Vector, const PAIRS: usize, const STRIDE: usize>(
    sums: &AxisTaps,
    points: &Points<PAIRS>,
) -> bool {
    // SAFETY: all accesses stay below `count`.
    unsafe {
        let mut spoiled = V::zero();
        let mut i = 0;
        while i < sums.count {
            let part = (sums.count - i).min(V::LANES);
            let element = |element: usize| V::load_part(sums.from.add(element * sums.element_step + i), part);
            let mut taps = [V::zero(); MOST_POINTS];
            taps[0] = element(0).multiply_add(V::splat(points.over_zero), V::zero());
            let count = taps_of_points(PAIRS, STRIDE);
            taps[count - 1] = element(2 * PAIRS + 1);
            for pair in 0..PAIRS {
                let (plus, minus) = (element(1 + 2 * pair), element(2 + 2 * pair));
                let both = [plus.add(minus), minus.multiply_add(V::splat(-1.0), plus)];
                let mut power = points.over[pair];
                for (number, tap) in taps.iter_mut().enumerate().take(count) {
                    *tap = both[number % 2].multiply_add(V::splat(power), *tap);
                    power *= points.roots[pair];
                }
            }
            let mut store = |number: usize, tap: V| {
                spoiled = tap.multiply_add(V::zero(), spoiled);
                tap.store_part(sums.to.add(number * sums.tap_step + i), part);
            };
            for (number, tap) in taps.into_iter().enumerate().take(count) {
                store(number * STRIDE, tap);
            }
            if STRIDE == 2 {
                store(1, element(2 * PAIRS + 2));
            }
            i += V::LANES;
        }
        is_zero(spoiled)
    }
}
