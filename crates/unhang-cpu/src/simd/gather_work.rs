//! What the blocked direct convolution has in common for all strips.

use super::geometry::Gather;
use super::source::SourceView;
use unhang_simd::Kernels;

/// A block of result channels: the first, how many, and in how many vectors.
#[derive(Debug, Clone, Copy)]
pub(super) struct ResultBlock {
    /// The first channel.
    pub first: usize,
    /// How many.
    pub channels: usize,
    /// Vectors of its filters.
    pub vectors: usize,
    /// Rows of scalars of its tiles.
    pub(super) rows: usize,
    /// Where its packed filters begin.
    pub packed: usize,
}

/// What the steps of a run are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Steps {
    /// A block's channels, for one tap.
    Channels,
    /// The taps of a row with all channels, which lie next to each other.
    RowTaps,
    /// A run is one channel of one tap: there are too few channels to step along.
    One,
}

/// Everything that is the same for all strips.
pub(super) struct GatherWork<'a> {
    /// What is computed.
    pub gather: &'a Gather,
    /// By which kernels.
    pub kernels: &'static Kernels,
    /// Blocks of result channels.
    pub blocks: Vec<ResultBlock>,
    /// Source channels of a block.
    pub source_block: usize,
    /// What the steps of a run are.
    pub steps: Steps,
    /// How the source is read.
    pub source: SourceView<'a>,
    /// Whether each tile takes all blocks of results before the next tile: then a pixel's channels are written
    /// together, and the packed filters stay in the cache.
    pub(super) tiles_outside: bool,
    /// Whether results are fetched while they are computed.
    pub(super) fetch: bool,
    /// Rows and images of a strip.
    pub(super) strip_rows: usize,
    pub(super) strip_images: usize,
    /// Taps of the filter.
    pub taps: usize,
    /// Rows and columns of the taps in packed order: by phase of rows, phase of columns, row, column.
    pub tap_order: Vec<[usize; 2]>,
}

impl GatherWork<'_> {
    /// Numbers of one group's packed filters.
    pub(super) fn packed_length(&self) -> usize {
        let vectors: usize = self.blocks.iter().map(|block| block.vectors).sum();
        vectors * self.kernels.lanes * self.gather.source_channels * self.taps
    }
}
