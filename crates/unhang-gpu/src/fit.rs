//! The share of a chip's peak that each kind of kernel reaches: the fitted part of [`crate::model`], one table for each
//! kind of chip.

/// Factors on the best tile's rate: 1 where a kind of kernel loses nothing.
#[derive(Debug, Clone, PartialEq)]
pub struct Shares {
    /// Where the numbers come from.
    pub source: &'static str,
    /// Threads of 8 × 4 sums.
    pub eight_by_four: f64,
    /// Threads of 4 × 8 sums.
    pub four_by_eight: f64,
    /// Threads of 4 × 4 sums.
    pub four_by_four: f64,
    /// Taps and channels as one axis.
    pub flat: f64,
    /// The largest tile of specialised kernels, where it is no Winograd product's.
    pub large: f64,
    /// A filter that is not packed, with a window.
    pub unpacked: f64,
    /// A filter that is not packed, with a window and products of f16 in pairs.
    pub unpacked_half: f64,
    /// Products of f16 in pairs; `pairs_deep` adds slices of more than eight channels.
    pub pairs: f64,
    /// See `pairs`.
    pub pairs_deep: f64,
    /// A filter that is not packed, of a 1 × 1 layer, forward.
    pub unpacked_pointwise: f64,
    /// A large filter that is not packed, backward-data.
    pub unpacked_data: f64,
    /// A large filter that is not packed, backward-data, in slices of more than eight channels.
    pub unpacked_data_deep: f64,
    /// Backward-weights, and in tiles that are wider than high, and in the largest tile.
    pub weights: f64,
    /// See `weights`.
    pub weights_wide: f64,
    /// See `weights`.
    pub weights_large: f64,
    /// See `weights`; in addition in NHWC, where channels of both operands are contiguous.
    pub weights_channels_last: f64,
    /// Backward-weights in NCHW where both operands come in quads, in slices of eight pixels.
    pub weights_in_quads: f64,
    /// Backward-weights in NCHW where each element is gathered, in tiles of at most 2048 sums.
    pub weights_gathered_in_small_tiles: f64,
    /// Backward-weights (Winograd's too) in slices of eight pixels, where a unit has more than two workgroups.
    pub weights_crowded: f64,
    /// Backward-data with a stride, by many workgroups.
    pub strided: f64,
    /// Backward-data with a stride, by few workgroups.
    pub strided_in_few_tiles: f64,
    /// Backward-data with a stride, by few small workgroups.
    pub strided_in_small_tiles: f64,
    /// 1 × 1 layers by workgroups of fewer than 256 threads.
    pub pointwise_few_threads: f64,
    /// Winograd's products, forward and backward-data.
    pub winograd: f64,
    /// Winograd's products by workgroups of 64 threads.
    pub winograd_few_threads: f64,
    /// Winograd's products with stride 2, in large tiles.
    pub winograd_nested_large: f64,
    /// Winograd's products of the filter's gradient in tiles of 64 rows.
    pub winograd_weights_tall: f64,
    /// Winograd's products of the filter's gradient in the largest tile.
    pub winograd_weights_large: f64,
    /// Winograd's products of the filter's gradient in tiles of 128 × 64.
    pub winograd_weights_high: f64,
    /// Winograd in one kernel: transforms and two barriers a step leave less for the products than a matrix tile has.
    pub fused: f64,
    /// Sources in NHWC in tiles of many columns and few threads, which turn them over.
    pub turned_in_few_threads: f64,
    /// The multiply-adds that a unit could do in the time of one cache line that a lane of a scattered read touches:
    /// those of a clock, at best.
    pub line: f64,
    /// Instructions of the direct kernel.
    pub direct: f64,
    /// Instructions of the direct kernel where a thread has 16 channels.
    pub direct_many_rows: f64,
    /// Whether filters' gradients gain by [`crate::choice::DEEP_TILE`].
    pub takes_deep_tile: bool,
    /// What threads wait for where there are few of them.
    pub waits: Waits,
    /// Depthwise kernels in NHWC.
    pub depthwise: DepthwiseFit,
}

/// Seconds that a thread, or a workgroup of a unit, waits for what it reads.
#[derive(Debug, Clone, PartialEq)]
pub struct Waits {
    /// Where the numbers come from.
    pub source: &'static str,
    /// Plain kernels: for each product of a sum.
    pub plain_product: f64,
    /// Plain kernels: for each result of a unit, whose place costs divisions of 64 bits.
    pub plain_place: f64,
    /// Plain kernels: to begin, forward and backward-weights.
    pub plain_begin: f64,
    /// Plain kernels: to begin in backward-data, where a pixel looks for the windows that meet it.
    pub plain_begin_data: f64,
    /// Plain backward-weights: for each workgroup of a unit.
    pub plain_workgroup: f64,
    /// Plain backward-weights: for each turn of a workgroup where units have many, and where they have one.
    pub plain_turn: [f64; 2],
    /// Depthwise kernels in NCHW, one column a thread: to begin, and for each read of a row.
    pub depthwise: [f64; 2],
    /// The narrow kernel: for each row of a channel.
    pub narrow_row: f64,
    /// The direct kernel: for each channel.
    pub direct_channel: f64,
    /// The direct kernel: for each channel with a large window, and in addition for each of its products.
    pub direct_large: [f64; 2],
}

/// What depthwise kernels in NHWC cost: in vectors of channels, and one channel a thread.
#[derive(Debug, Clone, PartialEq)]
pub struct DepthwiseFit {
    /// Where the numbers come from.
    pub source: &'static str,
    /// Instructions of a read: for each number of a vector, and of a single number.
    pub read: [f64; 2],
    /// Instructions for a tap: for each number of a vector, and for a single number.
    pub tap: [f64; 2],
    /// The share of the bandwidth that is reached: of memory, and where everything is in the last cache.
    pub bandwidth: [f64; 2],
    /// The registers beyond which a thread's reads are hidden less well, in vectors and for single numbers.
    pub registers: [f64; 2],
    /// The power by which they are.
    pub crowded: [f64; 2],
    /// The part of the shorter side of a launch that does not overlap.
    pub rest: f64,
    /// Seconds that a thread waits to begin, in vectors and for single numbers.
    pub begin: [f64; 2],
    /// Seconds that a thread waits for a row, in vectors and for single numbers.
    pub row: [f64; 2],
    /// The share that memory loses by each further row of a strip in vectors.
    pub apart: f64,
    /// The power of the share of a device that vectors fill.
    pub filled: f64,
    /// Seconds of a thread's turn in a filter's gradient.
    pub turn: f64,
}

/// An NVIDIA H200.
pub const H200: Shares = Shares {
    source: "measured: 78 layers in all directions, about six choices each",
    eight_by_four: 0.90,
    four_by_eight: 0.89,
    four_by_four: 0.88,
    flat: 0.71,
    large: 0.95,
    unpacked: 0.945,
    unpacked_half: 1.0,
    pairs: 1.4,
    pairs_deep: 1.0,
    unpacked_pointwise: 1.0,
    unpacked_data: 0.87,
    unpacked_data_deep: 0.66,
    weights: 0.96,
    weights_wide: 0.93,
    weights_large: 0.96,
    weights_channels_last: 1.22,
    weights_in_quads: 1.25,
    weights_gathered_in_small_tiles: 0.87,
    weights_crowded: 1.0,
    strided: 0.755,
    strided_in_few_tiles: 0.64,
    strided_in_small_tiles: 0.85,
    pointwise_few_threads: 0.96,
    winograd: 1.0,
    winograd_few_threads: 0.98,
    winograd_nested_large: 0.89,
    winograd_weights_tall: 0.96,
    winograd_weights_large: 1.09,
    winograd_weights_high: 1.09,
    direct: 1.0,
    fused: 0.67,
    turned_in_few_threads: 0.65,
    line: 190.0,
    direct_many_rows: 0.96,
    takes_deep_tile: false,
    waits: Waits {
        source: "measured",
        plain_product: 0.1e-6,
        plain_place: 3.5e-9,
        plain_begin: 1.6e-6,
        plain_begin_data: 2.6e-6,
        plain_workgroup: 0.34e-6,
        plain_turn: [0.2e-6, 0.45e-6],
        depthwise: [0.3e-6, 0.04e-6],
        narrow_row: 0.08e-6,
        direct_channel: 0.82e-6,
        direct_large: [0.35e-6, 1e-9],
    },
    depthwise: DepthwiseFit {
        source: "measured: 43 layers forward and backward-data with about ten choices each; turn: 20 filters' gradients",
        read: [4.6, 9.4],
        tap: [1.0, 6.0],
        bandwidth: [0.71, 2.0],
        registers: [88.0, 97.0],
        crowded: [0.45, 0.36],
        rest: 0.05,
        begin: [0.46e-6, 0.11e-6],
        row: [0.097e-6, 0.035e-6],
        apart: 0.0,
        filled: 0.0,
        turn: 0.72e-6,
    },
};

/// RDNA1. Not measured: nobody here has a card.
pub const RDNA1: Shares = Shares {
    source: "predicted by unhang-model from the kernels' instructions: 16 layers in all directions, about six choices each",
    eight_by_four: 0.80,
    four_by_eight: 0.85,
    four_by_four: 0.70,
    flat: 0.71,
    large: 1.0,
    unpacked: 0.45,
    unpacked_half: 0.35,
    pairs: 2.0,
    pairs_deep: 1.05,
    unpacked_pointwise: 0.80,
    unpacked_data: 0.60,
    unpacked_data_deep: 0.45,
    weights: 0.85,
    weights_wide: 0.85,
    weights_large: 0.86,
    weights_channels_last: 1.0,
    weights_in_quads: 1.0,
    weights_gathered_in_small_tiles: 1.0,
    weights_crowded: 0.62,
    strided: 1.20,
    strided_in_few_tiles: 1.0,
    strided_in_small_tiles: 1.0,
    pointwise_few_threads: 0.96,
    winograd: 1.35,
    winograd_few_threads: 1.0,
    winograd_nested_large: 1.0,
    winograd_weights_tall: 0.85,
    winograd_weights_large: 1.15,
    winograd_weights_high: 1.0,
    direct: 1.3,
    fused: 0.72,
    turned_in_few_threads: 0.9,
    line: 64.0,
    direct_many_rows: 0.6,
    takes_deep_tile: true,
    waits: Waits { source: "taken over from the H200: neither measured nor predicted for this chip", ..H200.waits },
    depthwise: DepthwiseFit {
        source: "counted in instructions; neither measured nor predicted for this chip",
        read: [2.2, 6.5],
        tap: [1.2, 1.8],
        bandwidth: [0.8, 0.8],
        registers: [64.0, 64.0],
        crowded: [0.04, 0.04],
        rest: 0.18,
        begin: [0.0, 0.0],
        row: [0.0, 0.0],
        apart: 0.04,
        filled: 1.0,
        turn: 0.55e-6,
    },
};
