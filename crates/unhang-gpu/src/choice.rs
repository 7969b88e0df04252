//! The ways to compute a problem, and the names under which measurements are stored.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// The tile of a matrix kernel: the work of a workgroup and of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tile {
    /// Rows of the result (channels).
    pub rows: usize,
    /// Columns of the result (pixels, or taps × channels).
    pub columns: usize,
    /// Depth of a slice of the reduction.
    pub depth: usize,
    /// Rows of a thread.
    pub thread_rows: usize,
    /// Columns of a thread.
    pub thread_columns: usize,
}

const fn tile(rows: usize, columns: usize, depth: usize, thread_rows: usize, thread_columns: usize) -> Tile {
    Tile { rows, columns, depth, thread_rows, thread_columns }
}

/// The tiles that kernels are built for. Each stays within 128 vector registers on gfx1010 and does not spill: the tests
/// compile them all.
pub const TILES: [Tile; 15] = [
    tile(128, 128, 8, 8, 8),
    tile(128, 64, 8, 8, 8),
    tile(64, 128, 8, 8, 8),
    tile(64, 64, 8, 8, 8),
    tile(32, 256, 8, 8, 8),
    tile(64, 128, 8, 8, 4),
    tile(64, 64, 16, 4, 4),
    tile(32, 128, 8, 4, 8),
    tile(32, 64, 16, 4, 4),
    tile(32, 32, 16, 4, 4),
    tile(16, 256, 8, 4, 8),
    tile(16, 128, 16, 4, 4),
    tile(4, 256, 8, 4, 4),
    DEEP_TILE,
    HALF_TILE,
];

/// For filters' gradients on chips where slices of eight pixels stall workgroups
/// ([`crate::fit::Shares::takes_deep_tile`]).
pub const DEEP_TILE: Tile = tile(64, 64, 16, 8, 4);

/// For products of f16 in pairs, whose slices of sixteen take no more LDS than others' of eight.
pub const HALF_TILE: Tile = tile(128, 64, 16, 8, 4);

/// The tiles of general kernels: few, since the package has each for every type and layout, and none that spills with
/// windows and channels given at launch.
pub const GENERAL_TILES: [Tile; 6] = [
    tile(128, 128, 8, 8, 8),
    tile(128, 64, 8, 8, 8),
    tile(64, 128, 8, 8, 4),
    tile(64, 64, 16, 4, 4),
    tile(32, 128, 8, 4, 8),
    tile(32, 32, 16, 4, 4),
];

impl Tile {
    /// Threads of a workgroup.
    pub const fn threads(self) -> usize {
        (self.rows / self.thread_rows) * (self.columns / self.thread_columns)
    }
}

impl Tile {
    /// Whether products of f16 in pairs are built with this tile: short and long sums fit in the registers together.
    pub fn is_for_half(self) -> bool {
        self.thread_rows * self.thread_columns < 64
    }

    /// The general kernels' tile that is most like this one.
    pub fn as_general(self) -> Tile {
        match (self.rows, self.columns) {
            _ if GENERAL_TILES.contains(&self) => self,
            (128, 64) => GENERAL_TILES[1],
            (64, 128) => GENERAL_TILES[2],
            (64, 64) => GENERAL_TILES[3],
            (32, 64) => GENERAL_TILES[5],
            _ => GENERAL_TILES[4],
        }
    }

    /// Whether backward-weights is built with this tile. It gathers both of its sides one element at a time, each with
    /// its own test: with many of them in a thread, gfx1010 spills or has fewer than 8 waves. Winograd's products are
    /// read in quads and need less.
    pub fn is_for_weights(self, in_quads: bool) -> bool {
        self != HALF_TILE
            && self.columns <= 128
            && (in_quads || self.threads() > 64 || self.thread_rows * self.thread_columns < 64)
    }
}

impl fmt::Display for Tile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tile { rows, columns, depth, thread_rows, thread_columns } = self;
        write!(f, "{rows}x{columns}x{depth}/{thread_rows}x{thread_columns}")
    }
}

/// One way to compute a problem. Its text form is stable: measured choices are stored under it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Choice {
    /// The plain kernels: everything, slowly.
    Plain,
    /// Implicit GEMM, forward and backward-data.
    Gemm {
        /// The tile.
        tile: Tile,
        /// Whether the filter is brought into the kernel's order first.
        packed: bool,
        /// Whether taps and channels are one axis.
        flat: bool,
        /// Into how many parts the reduction is split.
        splits: u32,
    },
    /// Implicit GEMM of f16 with products in pairs and short sums in f16: faster and less exact. Used only on request.
    HalfGemm {
        /// The tile.
        tile: Tile,
        /// Whether the filter is brought into the kernel's order first.
        packed: bool,
        /// Into how many parts the reduction is split.
        splits: u32,
    },
    /// Gradients of windows that do not overlap: one matrix product for all taps, whose result (backward-data) or
    /// source (backward-weights) is rearranged.
    Patches {
        /// The tile of the product.
        tile: Tile,
        /// Into how many parts the reduction is split.
        splits: u32,
    },
    /// Few channels in the result: forward and backward-data.
    Narrow {
        /// Rows that a thread computes.
        strip: u32,
    },
    /// Reads memory straight into registers, in vectors: forward and backward-data of memory-bound layers, NCHW.
    Direct {
        /// Channels of the result that a thread computes.
        rows: u32,
        /// Neighbouring columns that a thread computes.
        width: u32,
        /// Rows of the image that a thread computes.
        strip: u32,
        /// Into how many parts the channels that are summed over are split.
        splits: u32,
    },
    /// Backward-weights as a split GEMM.
    Weights {
        /// The tile.
        tile: Tile,
        /// Into how many parts the reduction is split.
        splits: u32,
    },
    /// A split GEMM in NCHW on transposed operands, so that channels are read in quads.
    WeightsTurned {
        /// The tile.
        tile: Tile,
        /// Into how many parts the reduction is split.
        splits: u32,
    },
    /// One filter for each channel.
    Depthwise {
        /// Rows that a thread computes.
        strip: u32,
        /// Into how many parts the pixels are split (backward-weights).
        splits: u32,
    },
    /// A depthwise layer with several neighbours a thread, if the sizes divide.
    DepthwiseQuads {
        /// Rows that a thread computes.
        strip: u32,
        /// Into how many parts the pixels are split (backward-weights).
        splits: u32,
    },
    /// One filter for each channel, with a large window and a stride of 1.
    DepthwiseLarge {
        /// Into how many parts the images are split (backward-weights).
        splits: u32,
    },
    /// Winograd F(2×2, 3×3) in one kernel, forward and backward-data.
    WinogradFused,
    /// Winograd F(4×4, 3×3), not fused.
    Winograd {
        /// The tile of its matrix products.
        tile: Tile,
        /// Into how many parts the reduction is split (backward-weights).
        splits: u32,
    },
}

impl Choice {
    /// The kernel family, the key of canaries and verdicts.
    pub const fn family(&self) -> &'static str {
        match self {
            Choice::Plain => "plain",
            Choice::Gemm { .. } | Choice::HalfGemm { .. } | Choice::Patches { .. } => "gemm",
            Choice::Narrow { .. } => "narrow",
            Choice::Direct { .. } => "direct",
            Choice::Weights { .. } | Choice::WeightsTurned { .. } => "weights",
            Choice::Depthwise { .. } | Choice::DepthwiseLarge { .. } => "depthwise",
            Choice::DepthwiseQuads { .. } => "quads",
            Choice::WinogradFused => "fused",
            Choice::Winograd { .. } => "winograd",
        }
    }

    /// The nearest choice that has general kernels: a few tiles and strips, and filters always packed.
    pub fn as_general(self) -> Option<Choice> {
        match self {
            Choice::Gemm { tile, flat, splits, .. } => {
                Some(Choice::Gemm { tile: tile.as_general(), packed: true, flat, splits })
            }
            Choice::Patches { tile, splits } => Some(Choice::Patches { tile: tile.as_general(), splits }),
            Choice::Weights { tile, splits } => Some(Choice::Weights { tile: tile.as_general(), splits }),
            Choice::WeightsTurned { tile, splits } => Some(Choice::WeightsTurned { tile: tile.as_general(), splits }),
            Choice::Winograd { tile, splits } => Some(Choice::Winograd { tile: tile.as_general(), splits }),
            Choice::Depthwise { strip, .. } => (strip <= 4).then_some(self),
            Choice::DepthwiseQuads { strip, .. } => (strip <= 2).then_some(self),
            Choice::Plain | Choice::WinogradFused | Choice::DepthwiseLarge { .. } => Some(self),
            Choice::Direct { rows, width, strip, .. } => {
                [4, 8, 16].contains(&rows).then_some(Choice::Direct { rows, width, strip, splits: 1 })
            }
            Choice::HalfGemm { .. } | Choice::Narrow { .. } => None,
        }
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Choice::Plain => write!(f, "plain"),
            Choice::Gemm { tile, packed, flat, splits } => {
                let packed = if *packed { "packed" } else { "direct" };
                let flat = if *flat { "flat" } else { "taps" };
                write!(f, "gemm:{tile}:{packed}:{flat}:s{splits}")
            }
            Choice::HalfGemm { tile, packed, splits } => {
                let packed = if *packed { "packed" } else { "direct" };
                write!(f, "half:{tile}:{packed}:s{splits}")
            }
            Choice::Patches { tile, splits } => write!(f, "patches:{tile}:s{splits}"),
            Choice::Narrow { strip } => write!(f, "narrow:{strip}"),
            Choice::Direct { rows, width, strip, splits: 1 } => write!(f, "direct:{rows}:{width}:{strip}"),
            Choice::Direct { rows, width, strip, splits } => write!(f, "direct:{rows}:{width}:{strip}:s{splits}"),
            Choice::Weights { tile, splits } => write!(f, "weights:{tile}:s{splits}"),
            Choice::WeightsTurned { tile, splits } => write!(f, "weights:{tile}:turned:s{splits}"),
            Choice::Depthwise { strip, splits } => write!(f, "depthwise:{strip}:s{splits}"),
            Choice::DepthwiseQuads { strip, splits } => write!(f, "quads:{strip}:s{splits}"),
            Choice::DepthwiseLarge { splits } => write!(f, "large:s{splits}"),
            Choice::WinogradFused => write!(f, "fused"),
            Choice::Winograd { tile, splits } => write!(f, "winograd:{tile}:s{splits}"),
        }
    }
}

/// The text names no choice.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "{0:?} names no choice of kernels: expected for example plain, gemm:128x128x8/8x8:packed:taps:s1, weights:64x64x8/8x8:s16, patches:64x64x8/8x8:s1, narrow:4, direct:16:4:1, depthwise:8:s1, quads:4:s1, large:s1, fused, half:64x128x8/8x4:packed:s1 or winograd:128x128x8/8x8:s1"
)]
pub struct UnknownChoice(pub String);

impl FromStr for Choice {
    type Err = UnknownChoice;

    fn from_str(text: &str) -> Result<Choice, UnknownChoice> {
        let unknown = || UnknownChoice(text.chars().take(120).collect());
        let parts: Vec<&str> = text.split(':').collect();
        let tile = |text: &str| TILES.into_iter().find(|tile| tile.to_string() == text).ok_or_else(unknown);
        let number = |text: &str| text.parse::<u32>().ok().filter(|&n| (1..=65535).contains(&n)).ok_or_else(unknown);
        let splits = |text: &str| number(text.strip_prefix('s').ok_or_else(unknown)?);
        let flag = |text: &str, yes: &str, no: &str| match text {
            _ if text == yes => Ok(true),
            _ if text == no => Ok(false),
            _ => Err(unknown()),
        };
        Ok(match parts[..] {
            ["plain"] => Choice::Plain,
            ["gemm", t, packed, flat, s] => Choice::Gemm {
                tile: tile(t)?,
                packed: flag(packed, "packed", "direct")?,
                flat: flag(flat, "flat", "taps")?,
                splits: splits(s)?,
            },
            ["half", t, packed, s] => {
                Choice::HalfGemm { tile: tile(t)?, packed: flag(packed, "packed", "direct")?, splits: splits(s)? }
            }
            ["patches", t, s] => Choice::Patches { tile: tile(t)?, splits: splits(s)? },
            ["narrow", strip] => Choice::Narrow { strip: number(strip)? },
            ["direct", rows, width, strip, ref rest @ ..] if rest.len() <= 1 => Choice::Direct {
                rows: number(rows)?,
                width: number(width)?,
                strip: number(strip)?,
                splits: rest.first().map_or(Ok(1), |text| splits(text))?,
            },
            ["weights", t, s] => Choice::Weights { tile: tile(t)?, splits: splits(s)? },
            ["weights", t, "turned", s] => Choice::WeightsTurned { tile: tile(t)?, splits: splits(s)? },
            ["depthwise", strip, s] => Choice::Depthwise { strip: number(strip)?, splits: splits(s)? },
            ["quads", strip, s] => Choice::DepthwiseQuads { strip: number(strip)?, splits: splits(s)? },
            ["large", s] => Choice::DepthwiseLarge { splits: splits(s)? },
            ["fused"] => Choice::WinogradFused,
            ["winograd", t, s] => Choice::Winograd { tile: tile(t)?, splits: splits(s)? },
            _ => return Err(unknown()),
        })
    }
}
