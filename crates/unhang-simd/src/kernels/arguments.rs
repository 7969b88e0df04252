//! What the kernels of every instruction set are called with.

use std::ops::Range;

use super::winograd::{GradientProducts, Products};

/// Where a run of multiplications begins: offsets of its first scalar and of its first vector.
#[derive(Debug, Clone, Copy)]
pub struct Run {
    /// From [`Tile::x`].
    pub x: usize,
    /// From [`Tile::w`].
    pub w: usize,
}

/// One call of the micro-kernel: `R` rows of `P` scalars × `V` vectors of sums, for every step of every run
/// `sum[r][p][v] += x[r × row_step + p × pitch] × w[v]`, after which `x` and `w` move on by their steps. Sums are
/// numbered row by row.
#[derive(Debug, Clone, Copy)]
pub struct Tile<'a> {
    /// The scalars, which are broadcast: a place that runs count from, not always a valid one itself.
    pub x: *const f32,
    /// The vectors.
    pub w: *const f32,
    /// The runs.
    pub runs: &'a [Run],
    /// Steps of each run.
    pub count: usize,
    /// From one scalar of a step to the next: what the kernel was looked up with.
    pub pitch: usize,
    /// From one row of scalars to the next. In [`Kernels::streaming_tile`]s and packing ones, which have one, from a
    /// step's vectors to those that are asked for. In [`Kernels::fetching_tile`]s, from the first scalar to the first that
    /// is asked for.
    pub row_step: usize,
    /// From one step's first scalar to the next's.
    pub x_step: usize,
    /// From one step's first vector to the next's.
    pub w_step: usize,
    /// What the sums begin with: those of the n-th scalar at `n × init_step`.
    pub init: *const f32,
    /// See `init`; zero gives all scalars the same (a bias).
    pub init_step: usize,
    /// Where the sums go: those of the n-th scalar to `n × sums_step`.
    pub sums: *mut f32,
    /// See `sums`.
    pub sums_step: usize,
    /// Whether to fetch the place of the sums into the cache while they are computed: it pays where the result does not
    /// stay in the cache.
    pub fetch: bool,
}

/// A tile of one run that packs its vectors.
#[derive(Debug, Clone, Copy)]
pub struct PackingTile<'a> {
    /// What is computed, with one row of neighbouring scalars.
    pub tile: Tile<'a>,
    /// Where the vectors of the first step go.
    pub to: *mut f32,
    /// From one step's to the next's.
    pub to_step: usize,
}

/// The micro-kernel that packs, for one shape of tile.
pub type PackingTileKernel = unsafe fn(&PackingTile<'_>);

/// The micro-kernel for one shape of tile.
pub type TileKernel = unsafe fn(&Tile<'_>);

/// Transposes any number of rows and columns; see [`Vector::transpose`].
pub type TransposeKernel = unsafe fn(*const f32, usize, usize, usize, *mut f32, *const usize);

/// Copies `count` numbers that lie `step` apart into a dense row.
pub type RowKernel = unsafe fn(*const f32, usize, usize, *mut f32);

/// Copies rows of `count` numbers: from, its step, to, its step, count, rows.
pub type RowsKernel = unsafe fn(*const f32, usize, *mut f32, usize, usize, usize);

/// Copies rows of `count` numbers, and asks for what is so far ahead of each: from, its step, to, its step, count, rows, ahead.
pub type RowsAheadKernel = unsafe fn(*const f32, usize, *mut f32, usize, usize, usize, isize);

/// Rows to be copied with zeros before and behind them.
#[derive(Debug, Clone, Copy)]
pub struct PaddedRows {
    /// The first number.
    pub from: *const f32,
    /// From one row to the next.
    pub from_step: usize,
    /// From one number to the next.
    pub apart: usize,
    /// Where the first row goes, its zeros first.
    pub to: *mut f32,
    /// From one row to the next.
    pub to_step: usize,
    /// How many rows.
    pub rows: usize,
    /// Zeros before a row's numbers.
    pub before: usize,
    /// Numbers of a row.
    pub numbers: usize,
    /// Zeros behind them.
    pub behind: usize,
}

/// Rows of a depthwise result.
#[derive(Debug, Clone, Copy)]
pub struct Rows {
    /// The source's numbers that the taps count from.
    pub x: *const f32,
    /// From one row's to the next's.
    pub x_step: usize,
    /// The results.
    pub to: *mut f32,
    /// From one row of results to the next.
    pub to_step: usize,
    /// Results of a row.
    pub count: usize,
    /// How many rows.
    pub rows: usize,
}

/// The most taps of a [`TapColumn`].
pub const MOST_TAPS: usize = 7;
/// The numbers of taps that a [`TapColumn`] may have, the largest first.
pub const TAP_COUNTS: [usize; 6] = [MOST_TAPS, 5, 4, 3, 2, 1];

/// Taps of a depthwise filter below each other: each falls where the one before falls from the next row of results.
#[derive(Debug, Clone, Copy)]
pub struct TapColumn {
    /// Where the first falls, from [`Rows::x`].
    pub offset: usize,
    /// How many: one of [`TAP_COUNTS`].
    pub count: usize,
    /// Their weights.
    pub weights: [f32; MOST_TAPS],
}

/// Depthwise rows: `to[i] = bias + Σ weight × x[offset + i]` over the taps. Reads whole vectors.
pub type CorrelateKernel = unsafe fn(&Rows, &[TapColumn], f32);

/// Neighbouring pixels of a depthwise result, channels together.
#[derive(Debug, Clone, Copy)]
pub struct Pixels<'a> {
    /// The source's pixel that the taps of the first count from: not always a valid place itself.
    pub x: *const f32,
    /// From one pixel's to the next's.
    pub x_step: usize,
    /// Offsets of the taps in the source, and their numbers.
    pub taps: &'a [(isize, usize)],
    /// How many taps at a time are neighbours, as far apart as the pixels; zero if they are not.
    pub dense: usize,
    /// The filters, channels together, tap by tap.
    pub w: *const f32,
    /// One for each channel.
    pub bias: *const f32,
    /// How many channels.
    pub channels: usize,
    /// The results.
    pub to: *mut f32,
    /// From one pixel of results to the next.
    pub to_step: usize,
    /// Channels of the results that are stored: all of them, or fewer where vectors are whole.
    pub stored: usize,
    /// How many pixels.
    pub pixels: usize,
}

/// Depthwise pixels: `to[c] = bias[c] + Σ w[tap × channels + c] × x[offset + c]` over the taps.
pub type CorrelateChannelsKernel = unsafe fn(&Pixels<'_>);

/// A row of depthwise results, channels together, whose taps are neighbouring pixels.
#[derive(Debug, Clone)]
pub struct PixelRow<'a> {
    /// The pixels. Taps come by whole rows, in the order of the source; the first of a row says where it falls.
    pub pixels: Pixels<'a>,
    /// Of the pixels that the first row of taps falls on, from its first for the first result on, those that are in the source.
    pub inside: Range<usize>,
}

/// Depthwise rows of results, those at the edges among them: as [`CorrelateChannelsKernel`], without the taps that are not inside.
pub type CorrelateRowKernel = unsafe fn(&PixelRow<'_>);

/// The gradient's and the source's rows that a depthwise weight gradient sums up.
#[derive(Debug, Clone, Copy)]
pub struct GradientRows {
    /// The output's gradient.
    pub dy: *const f32,
    /// From one row to the next.
    pub dy_step: usize,
    /// The source's numbers that the taps count from.
    pub x: *const f32,
    /// From one row's to the next's.
    pub x_step: usize,
    /// Numbers of a row.
    pub count: usize,
    /// How many rows.
    pub rows: usize,
}

/// Planes of a depthwise weight gradient with channels together in whole vectors.
#[derive(Debug, Clone, Copy)]
pub struct GradientPlanes {
    /// The output's gradient, pixel by pixel.
    pub dy: *const f32,
    /// From one row to the next.
    pub dy_row: usize,
    /// The source's pixels that the taps count from.
    pub x: *const f32,
    /// From one row's to the next's.
    pub x_row: usize,
    /// From one pixel's to the next's.
    pub x_step: usize,
    /// Channels of a pixel.
    pub channels: usize,
    /// Pixels of a row.
    pub count: usize,
    /// How many rows.
    pub rows: usize,
}

/// The planes' share of a depthwise weight gradient: `sums[tap][c] += Σ dy[i][c] × x[offset(tap) + i][c]` over all pixels.
pub type ProductsTogetherKernel = unsafe fn(&GradientPlanes, &[usize], *mut f32);

/// The rows' share of a depthwise weight gradient: lane by lane `sums[tap] = Σ dy[i] × x[offset(tap) + i]` over all rows.
pub type ProductsKernel = unsafe fn(&GradientRows, &[usize], *mut f32);

/// A depthwise weight gradient's share with channels together: `sums[c] += Σ dy[i × dy_step + c] × x[i × x_step + c]`.
pub type ProductsChannelsKernel = unsafe fn(*const f32, usize, *const f32, usize, usize, usize, *mut f32);

/// A row of a depthwise weight gradient with channels together, whose taps are as far apart as pixels.
#[derive(Debug, Clone, Copy)]
pub struct GradientLine<'a> {
    /// The output's gradient, pixel by pixel.
    pub dy: *const f32,
    /// How many pixels.
    pub pixels: usize,
    /// Channels of a pixel.
    pub channels: usize,
    /// The source.
    pub x: *const f32,
    /// Where the first tap of each row of taps falls from the first pixel: not always on the source.
    pub rows: &'a [isize],
    /// From one pixel's to the next's, and from one column of taps to the next.
    pub x_step: usize,
    /// The pixels whose taps fall on the source, for each column of taps.
    pub valid: &'a [Range<usize>],
    /// From a place in the source to that of the next line.
    pub x_ahead: usize,
    /// The sums of those taps, row by row.
    pub sums: *mut f32,
}

/// The row's share of a depthwise weight gradient: `sums[tap][c] += Σ dy[i][c] × x[tap, i][c]` over the pixels that are valid for the
/// tap.
pub type GradientLineKernel = unsafe fn(&GradientLine<'_>);

/// What a weight gradient with pixels in vectors sums up: for every filter and place
/// `sum += Σ dy[filter × filter_step + i] × x[place + i]` over the numbers of all rows of all images.
#[derive(Debug, Clone, Copy)]
pub struct PlaneProducts {
    /// The packed input.
    pub x: *const f32,
    /// Where channels and taps meet the first result, from `x`.
    pub places: *const usize,
    /// From one image of `x` to the next, and from one row.
    pub x_steps: [usize; 2],
    /// The output's gradient.
    pub dy: *const f32,
    /// From one image of `dy` to the next, and from one row.
    pub dy_steps: [usize; 2],
    /// From one filter of `dy` to the next.
    pub filter_step: usize,
    /// How many images.
    pub images: usize,
    /// Rows of each.
    pub rows: usize,
    /// Numbers of a row.
    pub count: usize,
    /// The sums, a line of places for each filter.
    pub sums: *mut f32,
    /// From one line to the next.
    pub sums_step: usize,
    /// Whether the sums begin with zero.
    pub begins: bool,
}

/// The kernel for one shape of tile.
pub type PlaneProductsKernel = unsafe fn(&PlaneProducts);

/// Winograd's sums for one element, for one shape of tile.
pub type ProductsKernelOfElement = unsafe fn(&Products);

/// Winograd's sums of a weight gradient for one element, for one shape of tile.
pub type GradientProductsKernel = unsafe fn(&GradientProducts);
