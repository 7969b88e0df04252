//! The names of the engines.

use unhang_conv::named;

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

named!(EngineName, "engine", [Jit = "jit", Miopen = "miopen", Aten = "aten", Tiled = "tiled", Cpu = "cpu"]);
