//! What a user may ask for.

use std::fmt;
use std::str::FromStr;

use unhang_conv::UnknownName;
use unhang_engine::EngineName;

/// How a plan is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub enum Strategy {
    /// The fastest engine known to be safe here.
    #[default]
    Auto,
    /// MIOpen, with its other solver families turned off. As in the seeds.
    ImplicitGemm,
    /// The CPU for everything. As in the seeds.
    CpuFallback,
    /// MIOpen up to a size, the CPU above it. As in the seeds.
    Selective,
    /// Torch's own kernels, MIOpen off.
    Aten,
    /// Our own GPU kernels.
    Jit,
    /// Another engine in tiles with halo.
    Tiled,
}

impl Strategy {
    /// Every strategy.
    pub const ALL: [Strategy; 7] = [
        Strategy::Auto,
        Strategy::ImplicitGemm,
        Strategy::CpuFallback,
        Strategy::Selective,
        Strategy::Aten,
        Strategy::Jit,
        Strategy::Tiled,
    ];

    /// The name in text.
    pub const fn name(self) -> &'static str {
        match self {
            Strategy::Auto => "auto",
            Strategy::ImplicitGemm => "implicit_gemm",
            Strategy::CpuFallback => "cpu_fallback",
            Strategy::Selective => "selective",
            Strategy::Aten => "aten",
            Strategy::Jit => "jit",
            Strategy::Tiled => "tiled",
        }
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Strategy {
    type Err = UnknownName;

    /// Upper case is accepted too, because the seeds print the names that way.
    fn from_str(text: &str) -> Result<Self, UnknownName> {
        Strategy::ALL.into_iter().find(|strategy| strategy.name().eq_ignore_ascii_case(text)).ok_or_else(|| {
            UnknownName {
                what: "strategy",
                found: text.chars().take(80).collect(),
                expected: "auto, implicit_gemm, cpu_fallback, selective, aten, jit, tiled",
            }
        })
    }
}

/// The user's settings.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Settings {
    /// How plans are made.
    pub strategy: Strategy,
    /// `selective`: the largest height or width at which MIOpen is used.
    pub size_threshold: usize,
    /// Whether the CPU may compute convolutions of tensors on an accelerator.
    pub cpu_fallback_enabled: bool,
    /// `implicit_gemm`: whether to turn off MIOpen's other solver families. Otherwise MIOpen chooses the solver.
    pub implicit_gemm: bool,
    /// `tiled`: the largest side of a tile's window, halo included.
    pub tile_limit: usize,
    /// `tiled`: the engine that computes the tiles; `None` leaves the choice to `auto`.
    pub tile_engine: Option<EngineName>,
}

impl Default for Settings {
    /// The seeds' defaults, and the largest tile size that none of the seeds saw hang.
    fn default() -> Self {
        Settings {
            strategy: Strategy::Auto,
            size_threshold: 42,
            cpu_fallback_enabled: true,
            implicit_gemm: true,
            tile_limit: 32,
            tile_engine: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_both_cases() {
        for strategy in Strategy::ALL {
            assert_eq!(strategy.name().parse(), Ok(strategy));
            assert_eq!(strategy.name().to_uppercase().parse(), Ok(strategy));
        }
        assert!("implicit-gemm".parse::<Strategy>().unwrap_err().to_string().contains("implicit_gemm"));
    }
}
