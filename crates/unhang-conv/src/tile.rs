//! Tiles with halo: a convolution cut into smaller ones whose combined results are exact to the last pixel.
//!
//! The output is cut. Each tile names the window of the *padded* input that its pixels read, halo included. All three
//! directions use the same tiles: forward writes each tile's output, backward-data adds each tile's share to its
//! window of the gradient, and backward-weights sums the shares of all tiles.

use crate::problem::{Problem, ProblemError, Specification};

/// A tile's range of rows or columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// The first output position.
    pub out_start: usize,
    /// The number of output positions.
    pub out_length: usize,
    /// The first existing input position that it reads.
    pub in_start: usize,
    /// The number of existing input positions that it reads.
    pub in_length: usize,
    /// Zeros before them.
    pub pad_before: usize,
    /// Zeros after them.
    pub pad_after: usize,
}

/// One tile: rows and columns.
pub type Tile = [Span; 2];

/// Cuts one axis of an ordinary convolution into spans of at most `limit` output positions.
fn spans(problem: &Problem, axis: usize, limit: usize) -> Vec<Span> {
    let (input, output) = (problem.in_size()[axis], problem.out_size()[axis]);
    let (stride, padding) = (problem.stride()[axis], problem.padding()[axis]);
    let reach = problem.dilation()[axis] * (problem.kernel()[axis] - 1) + 1;
    let mut result = Vec::new();
    let mut out_start = 0;
    while out_start < output {
        let out_length = limit.min(output - out_start);
        // In coordinates of the padded input, which are never negative.
        let (start, end) = (out_start * stride, (out_start + out_length - 1) * stride + reach);
        let in_start = start.max(padding).min(padding + input);
        let in_end = end.min(padding + input).max(in_start);
        result.push(Span {
            out_start,
            out_length,
            in_start: in_start - padding,
            in_length: in_end - in_start,
            pad_before: if in_end == in_start { end - start } else { in_start - start },
            pad_after: if in_end == in_start { 0 } else { end - in_end },
        });
        out_start += out_length;
    }
    result
}

/// Cuts an ordinary convolution so that no tile has more than `limit` output rows or columns.
///
/// Lower a transposed problem first: see [`Problem::lower`].
///
/// # Panics
/// If the problem is transposed, or the limit is zero.
pub fn tiles(problem: &Problem, limit: usize) -> Vec<Tile> {
    assert!(!problem.transposed(), "tiles are cut from the lowered problem");
    assert!(limit > 0, "a tile has at least one pixel");
    let columns = spans(problem, 1, limit);
    spans(problem, 0, limit).into_iter().flat_map(|row| columns.iter().map(move |&column| [row, column])).collect()
}

/// The convolution that computes one tile from its window. The window includes the zeros, so this convolution has no
/// padding.
pub fn tile_problem(problem: &Problem, tile: &Tile) -> Result<Problem, ProblemError> {
    let extent = |span: &Span| (span.pad_before + span.in_length + span.pad_after) as i64;
    Problem::new(Specification {
        in_size: [extent(&tile[0]), extent(&tile[1])],
        padding: [0, 0],
        ..problem.specification()
    })
}
