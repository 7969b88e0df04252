//! Kernels of Winograd's algorithm F(4×4, 3×3), and of F(3×3, 4×4) for weight gradients: the transforms, and the
//! products between them.
//!
//! The points are 0, ±5/8, ±3/2 and infinity: of the sets that were tried their error is the least, they come in pairs,
//! which halves the work, and all numbers of the transforms of tiles are exact in f32 (`tools/bench-cpu/winograd.py`).

use crate::simd::vector::Vector;

/// Results of a tile on one axis.
pub const TILE: usize = 4;
/// What a tile reads on one axis.
pub const PATCH: usize = TILE + 2;
/// Products of a tile for each pair of channels.
pub const ELEMENTS: usize = PATCH * PATCH;

const A: f32 = 0.625;
const B: f32 = 1.5;
const A2: f32 = A * A;
const B2: f32 = B * B;
/// What the filter is divided by at ±a, ±b and 0: the differences to all other points, multiplied.
const OVER_A: f32 = (1.0 / (2.0 * (A as f64 * A as f64) * (A as f64 * A as f64 - B as f64 * B as f64))) as f32;
const OVER_B: f32 = (1.0 / (2.0 * (B as f64 * B as f64) * (B as f64 * B as f64 - A as f64 * A as f64))) as f32;
const OVER_0: f32 = (1.0 / (A as f64 * A as f64 * B as f64 * B as f64)) as f32;

/// Sums over channels for one of the elements: `P` tiles × `VECTORS` vectors of result channels.
#[derive(Debug, Clone, Copy)]
pub struct Products {
    /// Transformed tiles: vectors of source channels, tile by tile.
    pub x: *const f32,
    /// From one vector of source channels to the next.
    pub x_step: usize,
    /// How many vectors of source channels.
    pub blocks: usize,
    /// Transformed filters: a vector of result channels for each source channel.
    pub w: *const f32,
    /// From one vector of result channels to the next.
    pub w_step: usize,
    /// The filters that are used next: they are asked for, but not touched.
    pub next: *const f32,
    /// Where the sums go: a vector of result channels, tile by tile.
    pub sums: *mut f32,
    /// From one vector of result channels to the next.
    pub sums_step: usize,
}

/// Neighbouring tiles of the source to be transformed.
#[derive(Debug, Clone, Copy)]
pub struct SourceTiles {
    /// The rows of the first tile, of which gradients have four.
    pub rows: [*const f32; PATCH],
    /// From one pixel to the next.
    pub column_step: usize,
    /// How many tiles.
    pub tiles: usize,
    /// How many vectors of channels.
    pub blocks: usize,
    /// Where the first element of the first tile goes; those of the next tile follow it.
    pub to: *mut f32,
    /// From one vector of channels to the next.
    pub block_step: usize,
    /// From one element to the next.
    pub element_step: usize,
}

/// Filters to be transformed, result channels in a vector.
#[derive(Debug, Clone, Copy)]
pub struct Filters {
    /// Nine taps, row by row, each with all source channels.
    pub from: *const f32,
    /// From one tap to the next.
    pub tap_step: usize,
    /// How many source channels.
    pub channels: usize,
    /// Where the first element goes, with all source channels.
    pub to: *mut f32,
    /// From one element to the next.
    pub element_step: usize,
}

/// Neighbouring tiles of sums to be transformed to results, one vector of result channels.
#[derive(Debug, Clone, Copy)]
pub struct ResultTiles {
    /// The first element of the first tile; the next tile's follows it.
    pub from: *const f32,
    /// From one element to the next.
    pub element_step: usize,
    /// A vector.
    pub bias: *const f32,
    /// The first pixel.
    pub to: *mut f32,
    /// From one row of pixels to the next.
    pub row_step: usize,
    /// From one pixel to the next.
    pub column_step: usize,
    /// Rows that are wanted, four at most.
    pub rows: usize,
    /// Columns that are wanted, of all tiles.
    pub columns: usize,
    /// Channels that are wanted, a vector at most.
    pub channels: usize,
}

/// Sums over tiles for one of the elements, to be added to: `P` source channels × `VECTORS` vectors of result channels.
#[derive(Debug, Clone, Copy)]
pub struct GradientProducts {
    /// Transformed tiles of the source: the first channel, in vectors tile by tile.
    pub x: *const f32,
    /// Transformed tiles of the gradient: a vector of result channels, tile by tile.
    pub w: *const f32,
    /// From one vector of result channels to the next.
    pub w_step: usize,
    /// How many tiles.
    pub tiles: usize,
    /// The sums of the first source channel, vectors of result channels beside each other.
    pub sums: *mut f32,
    /// From one source channel to the next.
    pub sums_step: usize,
}

/// Sums to be transformed to the gradient of filters, one vector of result channels.
#[derive(Debug, Clone, Copy)]
pub struct WeightTiles {
    /// The first element of the first source channel.
    pub from: *const f32,
    /// From one source channel to the next.
    pub channel_step: usize,
    /// From one element to the next.
    pub element_step: usize,
    /// How many source channels.
    pub channels: usize,
    /// Where the vectors go: nine for each source channel.
    pub to: *mut f32,
    /// Whether all channels of a tap lie together, not all taps of a channel.
    pub channels_together: bool,
}

/// # Safety
/// Inlined where the features of `V` are on; all pointers are good for what the fields describe.
#[inline(always)]
pub unsafe fn products<V: Vector, const P: usize, const VECTORS: usize>(products: &Products) {
    // SAFETY: the function's own conditions.
    unsafe {
        let mut sums = [[V::zero(); VECTORS]; P];
        let (mut w, mut next) = (products.w, products.next);
        for block in 0..products.blocks {
            let mut x = products.x.add(block * products.x_step);
            for _ in 0..V::LANES {
                let mut vectors = [V::zero(); VECTORS];
                for (v, vector) in vectors.iter_mut().enumerate() {
                    *vector = V::load(w.add(v * products.w_step));
                    V::prefetch(next.wrapping_add(v * products.w_step));
                }
                for (p, of_tile) in sums.iter_mut().enumerate() {
                    let scalar = V::splat(*x.add(p * V::LANES));
                    for (sum, vector) in of_tile.iter_mut().zip(vectors) {
                        *sum = scalar.multiply_add(vector, *sum);
                    }
                }
                // The last step moves past the end of what is read: not an `add`, which may only stay inside.
                x = x.wrapping_add(1);
                w = w.wrapping_add(V::LANES);
                next = next.wrapping_add(V::LANES);
            }
        }
        for (p, of_tile) in sums.iter().enumerate() {
            for (v, sum) in of_tile.iter().enumerate() {
                sum.store(products.sums.add(v * products.sums_step + p * V::LANES));
            }
        }
    }
}

/// # Safety
/// The features of `V` are on.
#[inline(always)]
unsafe fn source_axis<V: Vector>(d: [V; PATCH]) -> [V; PATCH] {
    // SAFETY: the function's own condition.
    unsafe {
        let [minus_sum, product] = [V::splat(-(A2 + B2)), V::splat(A2 * B2)];
        let pair = |square: f32, root: f32| {
            let even = d[2].multiply_add(V::splat(-square), d[4]);
            let odd = d[1].multiply_add(V::splat(-square), d[3]);
            [odd.multiply_add(V::splat(root), even), odd.multiply_add(V::splat(-root), even)]
        };
        let end = |i: usize| d[i].multiply_add(product, d[i + 2].multiply_add(minus_sum, d[i + 4]));
        // The polynomial of a point has the others as roots.
        let ([a, minus_a], [b, minus_b]) = (pair(B2, A), pair(A2, B));
        [end(0), a, minus_a, b, minus_b, end(1)]
    }
}

/// The transform of one axis of tiles with `N` numbers on it.
trait Axis<const N: usize> {
    /// # Safety
    /// The features of `V` are on.
    unsafe fn apply<V: Vector>(numbers: [V; N]) -> [V; PATCH];
}

/// Of the source.
struct OfSource;

impl Axis<PATCH> for OfSource {
    #[inline(always)]
    unsafe fn apply<V: Vector>(numbers: [V; PATCH]) -> [V; PATCH] {
        // SAFETY: the function's own condition.
        unsafe { source_axis(numbers) }
    }
}

/// Of the result's gradient, which stands in the place of a filter.
struct OfGradient;

impl Axis<TILE> for OfGradient {
    #[inline(always)]
    unsafe fn apply<V: Vector>(numbers: [V; TILE]) -> [V; PATCH] {
        // SAFETY: the function's own condition.
        unsafe { gradient_axis(numbers) }
    }
}

/// Transforms tiles along both axes.
///
/// # Safety
/// Inlined where the features of `V` are on; all pointers are good for what the fields describe, in whole vectors.
#[inline(always)]
unsafe fn transform<V: Vector, A: Axis<N>, const N: usize>(tiles: &SourceTiles) {
    // SAFETY: the function's own conditions.
    unsafe {
        for tile in 0..tiles.tiles {
            for block in 0..tiles.blocks {
                let at = tile * TILE * tiles.column_step + block * V::LANES;
                let mut half = [[V::zero(); PATCH]; N];
                for (row, of_row) in tiles.rows.iter().zip(&mut half) {
                    let mut numbers = [V::zero(); N];
                    for (j, number) in numbers.iter_mut().enumerate() {
                        *number = V::load(row.add(at + j * tiles.column_step));
                    }
                    *of_row = A::apply(numbers);
                }
                let to = tiles.to.add(block * tiles.block_step + tile * V::LANES);
                let columns: [[V; N]; PATCH] = std::array::from_fn(|j| std::array::from_fn(|i| half[i][j]));
                for (j, column) in columns.into_iter().enumerate() {
                    for (i, element) in A::apply(column).into_iter().enumerate() {
                        element.store(to.add((i * PATCH + j) * tiles.element_step));
                    }
                }
            }
        }
    }
}

/// Transforms tiles of the source.
///
/// # Safety
/// As for [`transform`].
#[inline(always)]
pub unsafe fn source<V: Vector>(tiles: &SourceTiles) {
    // SAFETY: the function's own conditions.
    unsafe { transform::<V, OfSource, PATCH>(tiles) }
}

/// # Safety
/// The features of `V` are on.
#[inline(always)]
unsafe fn filter_axis<V: Vector>(g: [V; 3]) -> [V; PATCH] {
    // SAFETY: the function's own condition.
    unsafe {
        let pair = |over: f32, root: f32| {
            let even = g[2].multiply_add(V::splat(over * root * root), g[0].multiply_add(V::splat(over), V::zero()));
            [g[1].multiply_add(V::splat(over * root), even), g[1].multiply_add(V::splat(-(over * root)), even)]
        };
        let ([a, minus_a], [b, minus_b]) = (pair(OVER_A, A), pair(OVER_B, B));
        [g[0].multiply_add(V::splat(OVER_0), V::zero()), a, minus_a, b, minus_b, g[2]]
    }
}

/// Whether all transformed filters are finite.
///
/// # Safety
/// Inlined where the features of `V` are on; all pointers are good for what the fields describe, in whole vectors.
#[inline(always)]
pub unsafe fn filters<V: Vector>(filters: &Filters) -> bool {
    // SAFETY: the function's own conditions.
    unsafe {
        let mut spoiled = V::zero();
        for channel in 0..filters.channels {
            let mut half = [[V::zero(); 3]; PATCH];
            for column in 0..3 {
                let tap =
                    |row: usize| V::load(filters.from.add((row * 3 + column) * filters.tap_step + channel * V::LANES));
                for (half, element) in half.iter_mut().zip(filter_axis([tap(0), tap(1), tap(2)])) {
                    half[column] = element;
                }
            }
            for (i, half) in half.into_iter().enumerate() {
                for (j, element) in filter_axis(half).into_iter().enumerate() {
                    spoiled = element.multiply_add(V::zero(), spoiled);
                    element.store(filters.to.add((i * PATCH + j) * filters.element_step + channel * V::LANES));
                }
            }
        }
        is_zero(spoiled)
    }
}

/// # Safety
/// The features of `V` are on.
#[inline(always)]
unsafe fn result_axis<V: Vector>(m: [V; PATCH]) -> [V; TILE] {
    // SAFETY: the function's own condition.
    unsafe {
        let minus_one = V::splat(-1.0);
        let [sum_a, difference_a] = [m[1].add(m[2]), m[2].multiply_add(minus_one, m[1])];
        let [sum_b, difference_b] = [m[3].add(m[4]), m[4].multiply_add(minus_one, m[3])];
        let scaled =
            |x: V, by: f32, y: V, with: f32, to: V| x.multiply_add(V::splat(by), y.multiply_add(V::splat(with), to));
        [
            m[0].add(sum_a).add(sum_b),
            scaled(difference_a, A, difference_b, B, V::zero()),
            scaled(sum_a, A2, sum_b, B2, V::zero()),
            scaled(difference_a, A2 * A, difference_b, B2 * B, m[5]),
        ]
    }
}

/// Whether all results are finite, those that are not wanted among them.
///
/// # Safety
/// Inlined where the features of `V` are on; all pointers are good for what the fields describe.
#[inline(always)]
pub unsafe fn results<V: Vector>(tiles: &ResultTiles) -> bool {
    // SAFETY: the function's own conditions.
    unsafe {
        let bias = V::load(tiles.bias);
        let mut spoiled = V::zero();
        for tile in 0..tiles.columns.div_ceil(TILE) {
            let mut half = [[V::zero(); PATCH]; TILE];
            for j in 0..PATCH {
                let element =
                    |i: usize| V::load(tiles.from.add((i * PATCH + j) * tiles.element_step + tile * V::LANES));
                let m = [element(0), element(1), element(2), element(3), element(4), element(5)];
                for (half, sum) in half.iter_mut().zip(result_axis(m)) {
                    half[j] = sum;
                }
            }
            let columns = TILE.min(tiles.columns - tile * TILE);
            let whole = columns == TILE && tiles.rows == TILE && tiles.channels == V::LANES;
            for (i, half) in half.into_iter().enumerate() {
                for (j, sum) in result_axis(half).into_iter().enumerate() {
                    let sum = sum.add(bias);
                    spoiled = sum.multiply_add(V::zero(), spoiled);
                    let to = tiles.to.wrapping_add(i * tiles.row_step + (tile * TILE + j) * tiles.column_step);
                    if whole {
                        sum.store(to);
                    } else if i < tiles.rows && j < columns {
                        sum.store_part(to, tiles.channels);
                    }
                }
            }
        }
        is_zero(spoiled)
    }
}

/// # Safety
/// The features of `V` are on.
#[inline(always)]
unsafe fn gradient_axis<V: Vector>(g: [V; TILE]) -> [V; PATCH] {
    // SAFETY: the function's own condition.
    unsafe {
        let scaled =
            |x: V, by: f32, y: V, with: f32| x.multiply_add(V::splat(by), y.multiply_add(V::splat(with), V::zero()));
        let pair = |over: f32, root: f32| {
            let even = scaled(g[0], over, g[2], over * root * root);
            let odd = scaled(g[1], over * root, g[3], over * root * root * root);
            [even.add(odd), odd.multiply_add(V::splat(-1.0), even)]
        };
        let ([a, minus_a], [b, minus_b]) = (pair(OVER_A, A), pair(OVER_B, B));
        [g[0].multiply_add(V::splat(OVER_0), V::zero()), a, minus_a, b, minus_b, g[3]]
    }
}

/// Transforms tiles of the result's gradient.
///
/// # Safety
/// As for [`transform`].
#[inline(always)]
pub unsafe fn gradient<V: Vector>(tiles: &SourceTiles) {
    // SAFETY: the function's own conditions.
    unsafe { transform::<V, OfGradient, TILE>(tiles) }
}

/// # Safety
/// Inlined where the features of `V` are on; all pointers are good for what the fields describe.
#[inline(always)]
pub unsafe fn gradient_products<V: Vector, const P: usize, const VECTORS: usize>(products: &GradientProducts) {
    // SAFETY: the function's own conditions.
    unsafe {
        let mut sums = [[V::zero(); VECTORS]; P];
        let (mut x, mut w) = (products.x, products.w);
        for _ in 0..products.tiles {
            let mut vectors = [V::zero(); VECTORS];
            for (v, vector) in vectors.iter_mut().enumerate() {
                *vector = V::load(w.add(v * products.w_step));
            }
            for (p, of_channel) in sums.iter_mut().enumerate() {
                let scalar = V::splat(*x.add(p));
                for (sum, vector) in of_channel.iter_mut().zip(vectors) {
                    *sum = scalar.multiply_add(vector, *sum);
                }
            }
            // The last step moves past the end of what is read: not an `add`, which may only stay inside.
            x = x.wrapping_add(V::LANES);
            w = w.wrapping_add(V::LANES);
        }
        for (p, of_channel) in sums.iter().enumerate() {
            for (v, sum) in of_channel.iter().enumerate() {
                let to = products.sums.add(p * products.sums_step + v * V::LANES);
                sum.add(V::load(to)).store(to);
            }
        }
    }
}

/// # Safety
/// The features of `V` are on.
#[inline(always)]
unsafe fn weight_axis<V: Vector>(m: [V; PATCH]) -> [V; 3] {
    // SAFETY: the function's own condition.
    unsafe {
        let minus_one = V::splat(-1.0);
        let [sum_a, difference_a] = [m[1].add(m[2]), m[2].multiply_add(minus_one, m[1])];
        let [sum_b, difference_b] = [m[3].add(m[4]), m[4].multiply_add(minus_one, m[3])];
        let scaled =
            |x: V, by: f32, y: V, with: f32, to: V| x.multiply_add(V::splat(by), y.multiply_add(V::splat(with), to));
        [
            m[0].add(sum_a).add(sum_b),
            scaled(difference_a, A, difference_b, B, V::zero()),
            scaled(sum_a, A2, sum_b, B2, m[5]),
        ]
    }
}

/// Whether the gradient is finite.
///
/// # Safety
/// Inlined where the features of `V` are on; all pointers are good for what the fields describe, in whole vectors.
#[inline(always)]
pub unsafe fn weights<V: Vector>(tiles: &WeightTiles) -> bool {
    // SAFETY: the function's own conditions.
    unsafe {
        let mut spoiled = V::zero();
        for channel in 0..tiles.channels {
            let from = tiles.from.add(channel * tiles.channel_step);
            let mut half = [[V::zero(); PATCH]; 3];
            for j in 0..PATCH {
                let element = |i: usize| V::load(from.add((i * PATCH + j) * tiles.element_step));
                let m = [element(0), element(1), element(2), element(3), element(4), element(5)];
                for (half, sum) in half.iter_mut().zip(weight_axis(m)) {
                    half[j] = sum;
                }
            }
            for (i, half) in half.into_iter().enumerate() {
                for (j, sum) in weight_axis(half).into_iter().enumerate() {
                    spoiled = sum.multiply_add(V::zero(), spoiled);
                    let tap = i * 3 + j;
                    let place =
                        if tiles.channels_together { tap * tiles.channels + channel } else { channel * 9 + tap };
                    sum.store(tiles.to.add(place * V::LANES));
                }
            }
        }
        is_zero(spoiled)
    }
}

/// Whether all numbers are zero: zero times what is not finite is not.
///
/// # Safety
/// The features of `V` are on.
#[inline(always)]
pub unsafe fn is_zero<V: Vector>(vector: V) -> bool {
    let mut numbers = [0.0f32; 16];
    // SAFETY: no vector is longer than that.
    unsafe { vector.store(numbers.as_mut_ptr()) };
    numbers.into_iter().all(|number| number == 0.0)
}
