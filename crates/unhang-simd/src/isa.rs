//! Which instructions the kernels are made of.

use std::fmt;
use std::sync::OnceLock;

/// The instruction sets that there are kernels for. A value other than the portable one is only made where the
/// machine has the instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Isa {
    /// Whatever the compiler makes of plain arrays.
    Portable,
    /// AVX2 with FMA: nearly every x86 processor since 2013.
    Avx2,
    /// AVX-512 F.
    Avx512,
}

impl Isa {
    /// Every instruction set, the best last.
    pub const ALL: [Isa; 3] = [Isa::Portable, Isa::Avx2, Isa::Avx512];

    /// The name in text.
    pub const fn name(self) -> &'static str {
        match self {
            Isa::Portable => "portable",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
        }
    }

    /// Numbers of f32 in a vector.
    pub const fn lanes(self) -> usize {
        match self {
            Isa::Portable | Isa::Avx2 => 8,
            Isa::Avx512 => 16,
        }
    }

    /// Whether this machine has it.
    pub fn is_available(self) -> bool {
        match self {
            Isa::Portable => true,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => is_x86_feature_detected!("avx512f"),
            #[cfg(not(target_arch = "x86_64"))]
            _ => false,
        }
    }

    /// The best that this machine has; `UNHANG_CPU_ISA=avx2` or `=portable` holds it down, for measuring.
    pub fn detect() -> Isa {
        static DETECTED: OnceLock<Isa> = OnceLock::new();
        *DETECTED.get_or_init(|| {
            let limit = std::env::var("UNHANG_CPU_ISA").ok();
            let limit = limit.and_then(|text| Isa::ALL.iter().position(|isa| isa.name() == text));
            let allowed = &Isa::ALL[..=limit.unwrap_or(Isa::ALL.len() - 1)];
            allowed.iter().rev().copied().find(|isa| isa.is_available()).unwrap_or(Isa::Portable)
        })
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
