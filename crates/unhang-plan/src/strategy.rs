//! What a user may ask for.

use unhang_conv::named;
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

// Upper case is accepted too, because the seeds print the names that way.
named!(Strategy, "strategy", by str::eq_ignore_ascii_case, [
    Auto = "auto",
    ImplicitGemm = "implicit_gemm",
    CpuFallback = "cpu_fallback",
    Selective = "selective",
    Aten = "aten",
    Jit = "jit",
    Tiled = "tiled",
]);

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
