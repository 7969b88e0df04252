//! Products of filters with lines of pixels, which lie in vectors.

use super::super::planes::tiles;
use unhang_simd::{Kernels, Run, Tile};

/// Lines of some channels, and filters that they are multiplied with.
pub(super) struct LineProducts<'a> {
    /// By which kernels.
    pub kernels: &'static Kernels,
    /// Vectors of a tile of the micro-kernel at most.
    pub vectors: usize,
    /// The filters' numbers as `[tap][source channel][filter]`.
    pub filters: &'a [f32],
    /// Filters.
    pub count: usize,
    /// Source channels.
    pub sources: usize,
    /// For each tap where its filters begin, and where its pixels do in a line.
    pub runs: &'a [Run],
    /// The first channel's line.
    pub source: *const f32,
    /// From one channel to the next.
    pub source_step: usize,
    /// Numbers of a line.
    pub line: usize,
    /// The first filter's sums.
    pub sums: *mut f32,
    /// From one filter's sums to the next's.
    pub sums_step: usize,
}

impl LineProducts<'_> {
    /// Sums them up over all taps and channels, in that order.
    ///
    /// # Safety
    /// There are filters for each run. Lines are good for reading, at each run's place, and sums for writing: as many numbers
    /// as a line has, rounded up to whole vectors.
    pub(super) unsafe fn sum(&self) {
        let lanes = self.kernels.lanes;
        for (begin, vectors) in tiles(self.line, self.vectors, lanes) {
            // SAFETY: a tile's vectors end with the line, rounded up to whole vectors. The zeros that sums begin with are as
            // long as a tile.
            unsafe {
                self.kernels.tile(vectors, 1, self.count, 1)(&Tile {
                    x: self.filters.as_ptr(),
                    w: self.source.add(begin),
                    runs: self.runs,
                    count: self.sources,
                    pitch: 1,
                    row_step: 0,
                    x_step: self.count,
                    w_step: self.source_step,
                    init: ZEROS.as_ptr(),
                    init_step: 0,
                    sums: self.sums.add(begin),
                    sums_step: self.sums_step,
                    fetch: false,
                });
            }
        }
    }
}

/// What sums begin with: as many as a tile has vectors.
static ZEROS: [f32; 64] = [0.0; 64];
