//! The micro-kernel.

use super::{PackingTile, Tile};
use crate::vector::Vector;

/// # Safety
/// Inlined where the features of `V` are on; all pointers of the tile are good for what its fields describe.
#[inline(always)]
pub(super) unsafe fn tile<V: Vector, const R: usize, const P: usize, const VECTORS: usize>(
    tile: &Tile<'_>,
    pitch: usize,
) {
    // SAFETY: the same conditions.
    unsafe { body::<V, R, P, VECTORS>(tile, pitch, |_, _, _| {}) }
}

/// One row of scalars beside each other; the vectors that lie `row_step` ahead of those of each step are asked for meanwhile.
///
/// # Safety
/// As [`tile`].
#[inline(always)]
pub(super) unsafe fn streaming<V: Vector, const P: usize, const VECTORS: usize>(tile: &Tile<'_>) {
    // SAFETY: the same conditions; asking touches nothing.
    unsafe { body::<V, 1, P, VECTORS>(tile, 1, |from, _, _| V::prefetch_now(last_ahead::<V>(from, tile))) }
}

/// One row of scalars that lie apart. What begins `row_step` ahead of the first of them is asked for meanwhile: as many
/// numbers as the tile itself reads.
///
/// # Safety
/// As [`tile`].
#[inline(always)]
pub(super) unsafe fn fetching<V: Vector, const P: usize, const VECTORS: usize>(tile: &Tile<'_>) {
    let mut next = tile.x.wrapping_add(tile.row_step);
    // SAFETY: the same conditions; asking touches nothing.
    unsafe {
        body::<V, 1, P, VECTORS>(tile, tile.pitch, |_, v, _| {
            if v == 0 {
                V::prefetch_now(next);
                next = next.wrapping_add(P);
            }
        });
    }
}

/// The last number of the vector `row_step` ahead. A vector may lie on two cache lines: the first of them was asked for
/// with the vector before.
#[inline(always)]
fn last_ahead<V: Vector>(from: *const f32, tile: &Tile<'_>) -> *const f32 {
    from.wrapping_add(tile.row_step + V::LANES - 1)
}

/// The same; the vectors of each step are packed meanwhile.
///
/// # Safety
/// As [`tile`], and there is room for the vectors of all steps of the one run.
#[inline(always)]
pub(super) unsafe fn packing<V: Vector, const P: usize, const VECTORS: usize>(packing: &PackingTile<'_>) {
    let mut to = packing.to;
    let tile = &packing.tile;
    // SAFETY: the same conditions.
    unsafe {
        body::<V, 1, P, VECTORS>(tile, 1, |from, v, vector| {
            V::prefetch_now(last_ahead::<V>(from, tile));
            vector.store(to.add(v * V::LANES));
            if v + 1 == VECTORS {
                // The last step moves past the end: see `body`.
                to = to.wrapping_add(packing.to_step);
            }
        });
    }
}

/// Calls `meanwhile` with where each vector of a step is, its number in the step, and the vector.
///
/// # Safety
/// As [`tile`].
#[inline(always)]
unsafe fn body<V: Vector, const R: usize, const P: usize, const VECTORS: usize>(
    tile: &Tile<'_>,
    pitch: usize,
    mut meanwhile: impl FnMut(*const f32, usize, V),
) {
    // SAFETY: the function's own conditions.
    unsafe {
        let mut sums = [[[V::zero(); VECTORS]; P]; R];
        for (n, of_scalar) in sums.as_flattened_mut().iter_mut().enumerate() {
            for (v, sum) in of_scalar.iter_mut().enumerate() {
                *sum = V::load(tile.init.add(n * tile.init_step + v * V::LANES));
            }
        }
        if tile.fetch {
            for n in 0..R * P {
                for v in 0..VECTORS {
                    V::prefetch_for_writing(tile.sums.wrapping_add(n * tile.sums_step + v * V::LANES));
                }
            }
        }
        for run in tile.runs {
            // The first scalar of a tile may lie before the source where the runs leave its taps out.
            let mut x = tile.x.wrapping_add(run.x);
            let mut w = tile.w.add(run.w);
            for _ in 0..tile.count {
                let mut vectors = [V::zero(); VECTORS];
                for (v, vector) in vectors.iter_mut().enumerate() {
                    let from = w.add(v * V::LANES);
                    *vector = V::load(from);
                    meanwhile(from, v, *vector);
                }
                for (r, of_row) in sums.iter_mut().enumerate() {
                    for (p, of_scalar) in of_row.iter_mut().enumerate() {
                        let scalar = V::splat(*x.add(r * tile.row_step + p * pitch));
                        for (sum, vector) in of_scalar.iter_mut().zip(vectors) {
                            *sum = scalar.multiply_add(vector, *sum);
                        }
                    }
                }
                // The last step moves past the end of what is read: not an `add`, which may only stay inside.
                x = x.wrapping_add(tile.x_step);
                w = w.wrapping_add(tile.w_step);
            }
        }
        for (n, of_scalar) in sums.as_flattened().iter().enumerate() {
            for (v, sum) in of_scalar.iter().enumerate() {
                sum.store(tile.sums.add(n * tile.sums_step + v * V::LANES));
            }
        }
    }
}
