//! The names of the engines.

use std::fmt;
use std::str::FromStr;

use unhang_conv::UnknownName;

/// The engines, by the names that plans, evidence and reports use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum EngineName {
    /// Our own GPU kernels, compiled at run time for the actual chip.
    Jit,
    /// Torch with AMD's convolution library.
    Miopen,
    /// Torch's own kernels, with MIOpen off.
    Aten,
    /// Another engine, in tiles with halo.
    Tiled,
    /// Our CPU engine.
    Cpu,
}

impl EngineName {
    /// Every engine.
    pub const ALL: [EngineName; 5] =
        [EngineName::Jit, EngineName::Miopen, EngineName::Aten, EngineName::Tiled, EngineName::Cpu];

    /// The name in text.
    pub const fn name(self) -> &'static str {
        match self {
            EngineName::Jit => "jit",
            EngineName::Miopen => "miopen",
            EngineName::Aten => "aten",
            EngineName::Tiled => "tiled",
            EngineName::Cpu => "cpu",
        }
    }
}

impl fmt::Display for EngineName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for EngineName {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, UnknownName> {
        EngineName::ALL.into_iter().find(|engine| engine.name() == text).ok_or_else(|| UnknownName {
            what: "engine",
            found: text.chars().take(80).collect(),
            expected: "jit, miopen, aten, tiled, cpu",
        })
    }
}
