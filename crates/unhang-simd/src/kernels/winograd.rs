//! Kernels of Winograd's algorithm on six points: F(4×4, 3×3), of strided filters F(5×5, 2×2) and F(3×3, 4×4) too, and for
//! weight gradients the same with results and taps exchanged: the transforms, and the products between them.
//!
//! The points are 0, ±5/8, ±3/2 and infinity: of the sets that were tried their error is the least, and they come in
//! pairs, which halves the work. All numbers of the transforms of tiles are exact in f32
//! (`tools/bench-cpu/winograd.py`).

use crate::vector::Vector;

/// What a tile reads on one axis: as many as there are points, one less than results and taps of the axis together.
pub const PATCH: usize = 6;
/// Products of a tile for each pair of channels.
pub const ELEMENTS: usize = PATCH * PATCH;
/// The most places of taps on an axis.
pub const MOST_PLACES: usize = 4;

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
    /// How many source channels.
    pub channels: usize,
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
    /// The rows of the first tile, of which gradients have fewer.
    pub rows: [*const f32; PATCH],
    /// Rows and columns of a tile.
    pub span: usize,
    /// From one pixel to the next.
    pub column_step: usize,
    /// From one tile to the next.
    pub tile_step: usize,
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
    /// The taps, row by row, each with all source channels.
    pub from: *const f32,
    /// Taps of an axis.
    pub taps: usize,
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
    /// Rows and columns of a tile.
    pub tile: usize,
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
    /// Rows that are wanted, a tile's at most.
    pub rows: usize,
    /// Columns that are wanted, of all tiles.
    pub columns: usize,
    /// Channels that are wanted, a vector at most.
    pub channels: usize,
}

/// Sums over tiles for one of the elements: `P` source channels × `VECTORS` vectors of result channels.
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
    /// Whether they are added to sums that are there already.
    pub add: bool,
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
    /// Taps of an axis.
    pub taps: usize,
    /// Where the first source channel's vectors go.
    pub to: *mut f32,
    /// From one source channel to the next.
    pub to_step: usize,
    /// Where each tap's vector goes from there, row by row; `None` for those that are not wanted.
    pub places: [Option<usize>; MOST_PLACES * MOST_PLACES],
}

/// # Safety
/// Inlined where the features of `V` are on; all pointers are good for what the fields describe.
#[inline(always)]
pub(super) unsafe fn products<V: Vector, const P: usize, const VECTORS: usize>(products: &Products) {
    // SAFETY: the function's own conditions.
    unsafe {
        let mut sums = [[V::zero(); VECTORS]; P];
        let (mut w, mut next) = (products.w, products.next);
        for (block, first) in (0..products.channels).step_by(V::LANES).enumerate() {
            let mut x = products.x.add(block * products.x_step);
            for _ in first..products.channels.min(first + V::LANES) {
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

/// The transform of taps, or of what stands in their place.
///
/// # Safety
/// The features of `V` are on.
#[inline(always)]
unsafe fn taps_axis<V: Vector, const N: usize>(g: [V; N]) -> [V; PATCH] {
    // SAFETY: the function's own condition.
    unsafe {
        let pair = |over: f32, root: f32| {
            // Over even and odd places.
            let (mut sums, mut power) = ([V::zero(); 2], over);
            for (n, tap) in g.into_iter().enumerate() {
                sums[n % 2] = tap.multiply_add(V::splat(power), sums[n % 2]);
                power *= root;
            }
            [sums[0].add(sums[1]), sums[1].multiply_add(V::splat(-1.0), sums[0])]
        };
        let ([a, minus_a], [b, minus_b]) = (pair(OVER_A, A), pair(OVER_B, B));
        [g[0].multiply_add(V::splat(OVER_0), V::zero()), a, minus_a, b, minus_b, g[N - 1]]
    }
}

/// The transform of sums to results, or to taps of a gradient.
///
/// # Safety
/// The features of `V` are on.
#[inline(always)]
unsafe fn sums_axis<V: Vector, const N: usize>(m: [V; PATCH]) -> [V; N] {
    // SAFETY: the function's own condition.
    unsafe {
        let minus_one = V::splat(-1.0);
        let both_a = [m[1].add(m[2]), m[2].multiply_add(minus_one, m[1])];
        let both_b = [m[3].add(m[4]), m[4].multiply_add(minus_one, m[3])];
        let mut results = [V::zero(); N];
        results[0] = m[0];
        results[N - 1] = m[5];
        let mut powers = [1.0; 2];
        for (n, result) in results.iter_mut().enumerate() {
            let of_b = both_b[n % 2].multiply_add(V::splat(powers[1]), *result);
            *result = both_a[n % 2].multiply_add(V::splat(powers[0]), of_b);
            powers = [powers[0] * A, powers[1] * B];
        }
        results
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

impl<const N: usize> Axis<N> for OfGradient {
    #[inline(always)]
    unsafe fn apply<V: Vector>(numbers: [V; N]) -> [V; PATCH] {
        // SAFETY: the function's own condition.
        unsafe { taps_axis(numbers) }
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
                let at = tile * tiles.tile_step + block * V::LANES;
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
pub(super) unsafe fn source<V: Vector>(tiles: &SourceTiles) {
    // SAFETY: the function's own conditions.
    unsafe { transform::<V, OfSource, PATCH>(tiles) }
}

/// Whether all transformed filters are finite.
///
/// # Safety
/// Inlined where the features of `V` are on; all pointers are good for what the fields describe, in whole vectors.
#[inline(always)]
pub(super) unsafe fn filters<V: Vector>(filters: &Filters) -> bool {
    // SAFETY: the function's own conditions.
    unsafe {
        match filters.taps {
            2 => filters_of::<V, 2>(filters),
            3 => filters_of::<V, 3>(filters),
            _ => filters_of::<V, MOST_PLACES>(filters),
        }
    }
}

/// # Safety
/// As [`filters`].
#[inline(always)]
unsafe fn filters_of<V: Vector, const TAPS: usize>(filters: &Filters) -> bool {
    // SAFETY: the function's own conditions.
    unsafe {
        let mut spoiled = V::zero();
        for channel in 0..filters.channels {
            let mut half = [[V::zero(); TAPS]; PATCH];
            for column in 0..TAPS {
                let tap = |row: usize| {
                    V::load(filters.from.add((row * TAPS + column) * filters.tap_step + channel * V::LANES))
                };
                let mut taps = [V::zero(); TAPS];
                taps.iter_mut().enumerate().for_each(|(row, number)| *number = tap(row));
                for (half, element) in half.iter_mut().zip(taps_axis(taps)) {
                    half[column] = element;
                }
            }
            for (i, half) in half.into_iter().enumerate() {
                for (j, element) in taps_axis(half).into_iter().enumerate() {
                    spoiled = element.multiply_add(V::zero(), spoiled);
                    element.store(filters.to.add((i * PATCH + j) * filters.element_step + channel * V::LANES));
                }
            }
        }
        is_zero(spoiled)
    }
}

/// Whether all results are finite, those that are not wanted among them.
///
/// # Safety
/// Inlined where the features of `V` are on; all pointers are good for what the fields describe.
#[inline(always)]
pub(super) unsafe fn results<V: Vector>(tiles: &ResultTiles) -> bool {
    // SAFETY: the function's own conditions.
    unsafe {
        match tiles.tile {
            3 => results_of::<V, 3>(tiles),
            4 => results_of::<V, 4>(tiles),
            _ => results_of::<V, 5>(tiles),
        }
    }
}

/// # Safety
/// As [`results`].
#[inline(always)]
unsafe fn results_of<V: Vector, const TILE: usize>(tiles: &ResultTiles) -> bool {
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
                for (half, sum) in half.iter_mut().zip(sums_axis::<V, TILE>(m)) {
                    half[j] = sum;
                }
            }
            let columns = TILE.min(tiles.columns - tile * TILE);
            let whole = columns == TILE && tiles.rows == TILE && tiles.channels == V::LANES;
            for (i, half) in half.into_iter().enumerate() {
                for (j, sum) in sums_axis::<V, TILE>(half).into_iter().enumerate() {
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

/// Transforms tiles of the result's gradient.
///
/// # Safety
/// As for [`transform`].
#[inline(always)]
pub(super) unsafe fn gradient<V: Vector>(tiles: &SourceTiles) {
    // SAFETY: the function's own conditions.
    unsafe {
        match tiles.span {
            3 => transform::<V, OfGradient, 3>(tiles),
            4 => transform::<V, OfGradient, 4>(tiles),
            _ => transform::<V, OfGradient, 5>(tiles),
        }
    }
}

/// # Safety
/// Inlined where the features of `V` are on; all pointers are good for what the fields describe.
#[inline(always)]
pub(super) unsafe fn gradient_products<V: Vector, const P: usize, const VECTORS: usize>(products: &GradientProducts) {
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
                if products.add { sum.add(V::load(to)) } else { *sum }.store(to);
            }
        }
    }
}

/// Whether the gradient is finite, with what is not wanted of it.
///
/// # Safety
/// Inlined where the features of `V` are on; all pointers are good for what the fields describe, in whole vectors.
#[inline(always)]
pub(super) unsafe fn weights<V: Vector>(tiles: &WeightTiles) -> bool {
    // SAFETY: the function's own conditions.
    unsafe {
        match tiles.taps {
            2 => weights_of::<V, 2>(tiles),
            3 => weights_of::<V, 3>(tiles),
            _ => weights_of::<V, MOST_PLACES>(tiles),
        }
    }
}

/// # Safety
/// As [`weights`].
#[inline(always)]
unsafe fn weights_of<V: Vector, const TAPS: usize>(tiles: &WeightTiles) -> bool {
    // SAFETY: the function's own conditions.
    unsafe {
        let mut spoiled = V::zero();
        for channel in 0..tiles.channels {
            let from = tiles.from.add(channel * tiles.channel_step);
            let mut half = [[V::zero(); PATCH]; TAPS];
            for j in 0..PATCH {
                let element = |i: usize| V::load(from.add((i * PATCH + j) * tiles.element_step));
                let m = [element(0), element(1), element(2), element(3), element(4), element(5)];
                for (half, sum) in half.iter_mut().zip(sums_axis::<V, TAPS>(m)) {
                    half[j] = sum;
                }
            }
            for (i, half) in half.into_iter().enumerate() {
                for (j, sum) in sums_axis::<V, TAPS>(half).into_iter().enumerate() {
                    spoiled = sum.multiply_add(V::zero(), spoiled);
                    if let Some(place) = tiles.places[i * TAPS + j] {
                        sum.store(tiles.to.add(channel * tiles.to_step + place));
                    }
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
pub(super) unsafe fn is_zero<V: Vector>(vector: V) -> bool {
    let mut numbers = [0.0f32; 16];
    // SAFETY: no vector is longer than that.
    unsafe { vector.store(numbers.as_mut_ptr()) };
    numbers.into_iter().all(|number| number == 0.0)
}
