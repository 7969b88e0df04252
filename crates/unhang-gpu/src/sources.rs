//! The kernels' source text, and how a kernel is named: a source, an entry, and constants.

use std::collections::HashMap;
use std::fmt;
use std::sync::LazyLock;

use unhang_conv::{DataType, named};

use crate::cache::Key;

/// A file of kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SourceFile {
    /// The definition of a convolution, one result a thread.
    Plain,
    /// Implicit GEMM: forward and backward-data.
    Gemm,
    /// Forward and backward-data with few channels in the result.
    Narrow,
    /// Forward and backward-data straight from memory into registers.
    Direct,
    /// Backward-weights as a split GEMM.
    Weights,
    /// Depthwise convolutions.
    Depthwise,
    /// Depthwise convolutions, several neighbours a thread.
    DepthwiseQuads,
    /// Depthwise convolutions with large windows.
    DepthwiseLarge,
    /// Winograd's transforms.
    Winograd,
    /// Winograd's transforms for stride 2.
    WinogradStride2,
    /// Winograd in one kernel.
    WinogradFused,
    /// Adding up planes, packing filters.
    Support,
    /// Tensors of any strides: copies, bias.
    Strided,
    /// Batch normalisation, and what follows a convolution.
    Normalization,
    /// Pooling.
    Pooling,
    /// Reductions.
    Reduction,
}

const COMMON: &str = include_str!("../kernels/common.cuh");
const TILE: &str = include_str!("../kernels/tile.cuh");
const IMAGES: &str = include_str!("../kernels/images.cuh");
const LINES: &str = include_str!("../kernels/lines.cuh");
const NUMBERS: &str = include_str!("../kernels/numbers.cuh");
const REALS: &str = include_str!("../kernels/reals.cuh");
const PHASES: &str = include_str!("../kernels/phases.cuh");
const GEMM: [&str; 4] = [
    include_str!("../kernels/gemm.cuh"),
    include_str!("../kernels/gemm_filter.cuh"),
    include_str!("../kernels/gemm_source.cuh"),
    include_str!("../kernels/gemm_result.cuh"),
];

named!(
    SourceFile,
    "source",
    [
        Plain = "plain",
        Gemm = "gemm",
        Narrow = "narrow",
        Direct = "direct",
        Weights = "weights",
        Depthwise = "depthwise",
        DepthwiseQuads = "depthwise_quads",
        DepthwiseLarge = "depthwise_large",
        Winograd = "winograd",
        WinogradStride2 = "winograd_stride2",
        WinogradFused = "winograd_fused",
        Support = "support",
        Strided = "strided",
        Normalization = "normalization",
        Pooling = "pooling",
        Reduction = "reduction"
    ]
);

impl SourceFile {
    /// The whole text that a compiler is given: run-time compilers are handed one text, so headers come first in it.
    pub fn text(self) -> String {
        let (headers, own): (&[&str], &str) = match self {
            SourceFile::Plain => (&[], include_str!("../kernels/plain.cu")),
            SourceFile::Gemm => {
                (&[TILE, NUMBERS, PHASES, GEMM[0], GEMM[1], GEMM[2], GEMM[3]], include_str!("../kernels/gemm.cu"))
            }
            SourceFile::Narrow => (&[NUMBERS, PHASES], include_str!("../kernels/narrow.cu")),
            SourceFile::Direct => (&[NUMBERS, LINES], include_str!("../kernels/direct.cu")),
            SourceFile::Weights => (&[TILE, NUMBERS], include_str!("../kernels/weights.cu")),
            SourceFile::Depthwise => (&[], include_str!("../kernels/depthwise.cu")),
            SourceFile::DepthwiseQuads => (&[LINES], include_str!("../kernels/depthwise_quads.cu")),
            SourceFile::DepthwiseLarge => (&[], include_str!("../kernels/depthwise_large.cu")),
            SourceFile::Winograd => (&[IMAGES], include_str!("../kernels/winograd.cu")),
            SourceFile::WinogradStride2 => (&[IMAGES], include_str!("../kernels/winograd_stride2.cu")),
            SourceFile::WinogradFused => (&[NUMBERS], include_str!("../kernels/winograd_fused.cu")),
            SourceFile::Support => (&[], include_str!("../kernels/support.cu")),
            SourceFile::Strided => (&[], include_str!("../kernels/strided.cu")),
            SourceFile::Normalization => (&[REALS], include_str!("../kernels/normalization.cu")),
            SourceFile::Pooling => (&[REALS], include_str!("../kernels/pooling.cu")),
            SourceFile::Reduction => (&[REALS], include_str!("../kernels/reduction.cu")),
        };
        format!("{COMMON}\n{}\n{own}", headers.join("\n"))
    }

    /// What stands for the text in keys: read once, for the text is long and keys are made at every new problem.
    pub(crate) fn identity(self) -> &'static str {
        static IDENTITIES: LazyLock<HashMap<SourceFile, String>> =
            LazyLock::new(|| SourceFile::ALL.map(|file| (file, Key::of([file.text().as_str()]).to_string())).into());
        &IDENTITIES[&self]
    }
}

/// A kernel before it is compiled: its source with the constants baked in, and which of its functions is meant.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Kernel {
    /// The file.
    pub source: SourceFile,
    /// The function.
    pub entry: &'static str,
    /// Constants, by name, in the order in which they are given to the compiler.
    pub constants: Vec<(&'static str, i64)>,
}

impl Kernel {
    /// A kernel for a type of tensors, without other constants.
    pub(crate) fn of_type(source: SourceFile, entry: &'static str, data_type: DataType) -> Kernel {
        Kernel { source, entry, constants: vec![("TYPE", type_number(data_type))] }
    }

    /// The constants as compiler options.
    pub fn definitions(&self) -> Vec<String> {
        self.constants.iter().map(|(name, value)| format!("-D{name}={value}")).collect()
    }

    /// The type that tensors are stored in.
    pub fn data_type(&self) -> DataType {
        let is_meant = |data_type: &DataType| self.constant("TYPE") == Some(type_number(*data_type));
        DataType::ALL.into_iter().find(is_meant).unwrap_or(DataType::F32)
    }

    /// The value of a constant that plans are judged by.
    pub fn value(&self, which: Constant) -> Option<i64> {
        self.constant(which.name())
    }

    /// The value of a constant.
    pub fn constant(&self, name: &str) -> Option<i64> {
        self.constants.iter().find(|(constant, _)| *constant == name).map(|(_, value)| *value)
    }
}

/// The number by which kernels know a data type.
pub(crate) fn type_number(data_type: DataType) -> i64 {
    match data_type {
        DataType::F32 => 0,
        DataType::F16 => 1,
        DataType::Bf16 => 2,
        DataType::F64 => 3,
    }
}

/// Constants of kernels that the model of a device reads. Their sources say what they mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the kernels' sources say what they mean")]
pub enum Constant {
    BlockRows,
    ChannelsLast,
    Direction,
    Filter,
    FilterH,
    FilterW,
    Nested,
    Pointwise,
    Reduced,
    Rows,
    SourceQuads,
    Spread,
    StrideH,
    StrideW,
    Strip,
    Width,
}

named!(
    Constant,
    "constant",
    [
        BlockRows = "BLOCK_ROWS",
        ChannelsLast = "CHANNELS_LAST",
        Direction = "DIRECTION",
        Filter = "FILTER",
        FilterH = "FILTER_H",
        FilterW = "FILTER_W",
        Nested = "NESTED",
        Pointwise = "POINTWISE",
        Reduced = "REDUCED",
        Rows = "ROWS",
        SourceQuads = "SOURCE_QUADS",
        Spread = "SPREAD",
        StrideH = "STRIDE_H",
        StrideW = "STRIDE_W",
        Strip = "STRIP",
        Width = "WIDTH"
    ]
);

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.entry)?;
        if let (Some(rows), Some(columns), Some(depth)) =
            (self.constant("BM"), self.constant("BN"), self.constant("BK"))
        {
            write!(f, ".{rows}x{columns}x{depth}")?;
        }
        for (name, word) in
            [("PACKED", "packed"), ("FLAT", "flat"), ("POINTWISE", "pointwise"), ("PLANES", "planes"), ("HALF", "half")]
        {
            if self.constant(name) == Some(1) {
                write!(f, ".{word}")?;
            }
        }
        write!(f, ".{}", self.data_type())
    }
}
