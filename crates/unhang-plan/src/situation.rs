//! What is here, as a plain value that the caller makes.

use unhang_conv::Problem;
use unhang_engine::EngineName;

/// Where a convolution's tensors live.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Device {
    /// In a GPU's memory.
    Accelerator,
    /// In the host's memory.
    Cpu,
}

/// Whether an engine can be used.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Availability {
    /// It is here, and on an affected card its canary passed.
    Available,
    /// It is not here; the reason in words, such as "this torch is built for CUDA".
    Absent(String),
    /// It is here, and nobody has seen it work on this affected card yet; the reason in words, such as "its canary
    /// has not run".
    Unproven(String),
}

/// Which of MIOpen's solver families are on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MiopenFamilies {
    /// rocBLAS GEMM after im2col.
    pub gemm: bool,
    /// Implicit GEMM.
    pub implicit_gemm: bool,
    /// Winograd.
    pub winograd: bool,
    /// Direct, the naive solvers included.
    pub direct: bool,
    /// FFT.
    pub fft: bool,
}

impl MiopenFamilies {
    /// All of them, MIOpen's default.
    pub const ALL: MiopenFamilies =
        MiopenFamilies { gemm: true, implicit_gemm: true, winograd: true, direct: true, fft: true };
    /// What the seeds' `implicit_gemm` leaves on.
    pub const IMPLICIT_GEMM_ONLY: MiopenFamilies =
        MiopenFamilies { gemm: false, implicit_gemm: true, winograd: false, direct: false, fft: false };
    /// What each family is called, and the variable that switches it off when it is "0". Nothing else switches one, "1"
    /// included.
    pub const VARIABLES: [(&'static str, &'static str); 5] = [
        ("gemm", "MIOPEN_DEBUG_CONV_GEMM"),
        ("implicit-gemm", "MIOPEN_DEBUG_CONV_IMPLICIT_GEMM"),
        ("winograd", "MIOPEN_DEBUG_CONV_WINOGRAD"),
        ("direct", "MIOPEN_DEBUG_CONV_DIRECT"),
        ("fft", "MIOPEN_DEBUG_CONV_FFT"),
    ];

    /// The families that an environment leaves on; none where it switches none off. `is_zero` says whether a variable is
    /// "0".
    pub fn left_on(is_zero: impl Fn(&str) -> bool) -> Option<MiopenFamilies> {
        let [gemm, implicit_gemm, winograd, direct, fft] =
            MiopenFamilies::VARIABLES.map(|(_, variable)| !is_zero(variable));
        let left = MiopenFamilies { gemm, implicit_gemm, winograd, direct, fft };
        (left != MiopenFamilies::ALL).then_some(left)
    }

    /// What the seeds' older profile leaves on.
    pub const GEMM_ONLY: MiopenFamilies =
        MiopenFamilies { gemm: true, implicit_gemm: false, winograd: false, direct: false, fft: false };
}

/// Whether each engine can be used.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Engines {
    /// Our own GPU kernels.
    pub jit: Availability,
    /// Torch with MIOpen.
    pub miopen: Availability,
    /// Torch's own kernels.
    pub aten: Availability,
    /// Another engine in tiles.
    pub tiled: Availability,
    /// Ours on the CPU.
    pub cpu: Availability,
}

/// What is here and matters for a plan.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Situation {
    /// Whether an RDNA1 card is the accelerator.
    pub affected: bool,
    /// Whether the runtime believes in another chip, so that code loaded from libraries was not compiled for this one.
    pub spoofed: bool,
    /// Whether that code is repaired as it is loaded.
    pub shielded: bool,
    /// Where the tensors live.
    pub device: Device,
    /// MIOpen's solver families that remain, where that is known; none means that none were turned off.
    pub miopen_families: Option<MiopenFamilies>,
    /// The profile or solver family under which MIOpen runs, as evidence names it; mostly empty.
    pub miopen_variant: String,
    /// Whether each engine can be used.
    pub engines: Engines,
}

impl Situation {
    fn new(affected: bool, device: Device, miopen: Availability, aten: Availability, jit: Availability) -> Situation {
        let engines = Engines { jit, miopen, aten, tiled: Availability::Available, cpu: Availability::Available };
        let miopen_variant = String::new();
        Situation { affected, spoofed: false, shielded: false, device, miopen_families: None, miopen_variant, engines }
    }

    /// Tensors in the host's memory, where torch's own kernels and ours are.
    pub fn cpu_tensors() -> Situation {
        let gpu_only = Availability::Absent("it computes on a GPU and the tensors are in the host's memory".to_owned());
        Situation::new(false, Device::Cpu, gpu_only.clone(), Availability::Available, gpu_only)
    }

    /// Tensors on a GPU that is not an RDNA1 card, in a torch with MIOpen.
    pub fn accelerator() -> Situation {
        Situation::new(false, Device::Accelerator, Availability::Available, Availability::Available, no_jit())
    }

    /// Tensors on a GPU in a torch that is built for CUDA.
    pub fn cuda_accelerator() -> Situation {
        let miopen = Availability::Absent("this torch is built for CUDA".to_owned());
        Situation::accelerator().with(EngineName::Miopen, miopen)
    }

    /// Tensors on an RDNA1 card on which no canary has run yet.
    pub fn affected_accelerator() -> Situation {
        let unproven = Availability::Unproven("its canary has not run on this machine".to_owned());
        Situation::new(true, Device::Accelerator, unproven.clone(), unproven, no_jit())
    }

    /// This situation with an engine's availability changed.
    pub fn with(mut self, engine: EngineName, availability: Availability) -> Situation {
        *match engine {
            EngineName::Jit => &mut self.engines.jit,
            EngineName::Miopen => &mut self.engines.miopen,
            EngineName::Aten => &mut self.engines.aten,
            EngineName::Tiled => &mut self.engines.tiled,
            EngineName::Cpu => &mut self.engines.cpu,
        } = availability;
        self
    }

    /// Whether an engine can be used.
    pub fn availability(&self, engine: EngineName) -> &Availability {
        match engine {
            EngineName::Jit => &self.engines.jit,
            EngineName::Miopen => &self.engines.miopen,
            EngineName::Aten => &self.engines.aten,
            EngineName::Tiled => &self.engines.tiled,
            EngineName::Cpu => &self.engines.cpu,
        }
    }

    /// Whether the rules about RDNA1 cards apply: such a card is here and would compute.
    pub fn is_endangered(&self) -> bool {
        self.affected && self.device == Device::Accelerator
    }

    /// The engine that torch itself would use.
    pub fn torch_engine(&self) -> EngineName {
        let has_miopen = !matches!(self.availability(EngineName::Miopen), Availability::Absent(_));
        if self.device == Device::Accelerator && has_miopen { EngineName::Miopen } else { EngineName::Aten }
    }

    /// Why MIOpen has no solver left for the convolution, if it has none.
    ///
    /// Read in the sources of MIOpen 5.2.3, 5.7.1 and 6.2.2, not seen on a card. They say so of 3→64 3×3 at batch 1;
    /// that fewer channels and other batches fare no better is an inference, and costs a plan on another engine only.
    pub fn no_solver_left(&self, problem: &Problem) -> Option<String> {
        let families = self.miopen_families?;
        let others = families.gemm || families.winograd || families.direct || families.fft;
        if others {
            return None;
        }
        if !families.implicit_gemm {
            return Some("all of MIOpen's solver families are turned off".to_owned());
        }
        if self.affected && !self.spoofed {
            return Some(
                "only implicit GEMM is left on, and MIOpen has such solvers for gfx103x only, not for RDNA1".to_owned(),
            );
        }
        let plain = problem.lower().problem;
        let few = plain.in_channels() / plain.groups();
        (plain.kernel() == [3, 3] && few < 4).then(|| {
            format!(
                "only implicit GEMM is left on, and for 3×3 filters on {few} channels a group MIOpen has no such solver"
            )
        })
    }
}

fn no_jit() -> Availability {
    Availability::Absent("no GPU engine of ours is loaded".to_owned())
}
