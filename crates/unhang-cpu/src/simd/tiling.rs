//! The choice of a tile's shape.

use unhang_simd::even_parts;
use unhang_simd::{Kernels, MAX_VECTORS, TILE_ROWS};

/// The shape of tiles: vectors, rows of scalars, and what a step of all tiles of a row then costs.
#[derive(Debug, Clone, Copy)]
pub(super) struct TileShape {
    /// Vectors of a tile.
    pub vectors: usize,
    /// Rows of scalars of a tile.
    pub rows: usize,
    /// Estimated cycles of a step for one row.
    pub cycles: f64,
}

/// Chooses the shape with the least estimated cycles for this many channels in vectors and scalars beside each other, in
/// up to `rows` rows.
///
/// A step costs a cycle for two multiply-adds or two loads, and four at least, because dependent sums are four cycles
/// apart. It costs half a cycle more for each vector, which comes from the second-level cache, and a tenth for each
/// scalar's broadcast. What does not fill its last vector is computed in vain. The weights were fitted to tiles of all
/// shapes on 3×3 layers: two vectors are best nearly everywhere, one is a tenth slower, and on narrow images two rows
/// are better than one.
pub(super) fn choose_tile(kernels: &Kernels, channels: usize, scalars: usize, rows: usize) -> TileShape {
    let needed = channels.div_ceil(kernels.lanes);
    let step = |scalars: usize, vectors: usize| {
        let (scalars, vectors) = (scalars as f64, vectors as f64);
        (scalars * vectors).max(scalars + vectors).max(8.0) / 2.0 + vectors / 2.0 + scalars / 10.0
    };
    let row = |vectors: usize, rows: usize| -> f64 {
        match kernels.most_scalars(vectors, rows) {
            0 => f64::INFINITY,
            most => {
                let parts = even_parts(scalars, most);
                parts.map(|(_, length)| step(rows * length, vectors)).sum::<f64>() / rows as f64
            }
        }
    };
    let mut best = TileShape { vectors: 1, rows: 1, cycles: f64::INFINITY };
    for vectors in 1..=MAX_VECTORS.min(needed) {
        for rows in TILE_ROWS.into_iter().filter(|&r| r <= rows) {
            let rest = needed % vectors;
            let of_rest = if rest > 0 { row(rest, rows) } else { 0.0 };
            let cycles = (needed / vectors) as f64 * row(vectors, rows) + of_rest;
            // What is no better by a hundredth is not worth more rows, whose results are written in shorter pieces.
            if cycles < 0.99 * best.cycles {
                best = TileShape { vectors, rows, cycles };
            }
        }
    }
    best
}
