//! What is available here, as a plain value that the caller builds.

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
    /// It is available, and on an affected card its canary passed.
    Available,
    /// It is not available; why, in words such as "this torch is built for CUDA".
    Absent(String),
    /// It is available, but nobody has seen it work on this affected card; why, in words such as "its canary has not
    /// run".
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
    /// The name of each family, and the variable that turns it off when set to "0". No other value has an effect, not
    /// even "1".
    pub const VARIABLES: [(&'static str, &'static str); 5] = [
        ("gemm", "MIOPEN_DEBUG_CONV_GEMM"),
        ("implicit-gemm", "MIOPEN_DEBUG_CONV_IMPLICIT_GEMM"),
        ("winograd", "MIOPEN_DEBUG_CONV_WINOGRAD"),
        ("direct", "MIOPEN_DEBUG_CONV_DIRECT"),
        ("fft", "MIOPEN_DEBUG_CONV_FFT"),
    ];

    /// The families that an environment leaves on; `None` if it turns none off. `is_zero` says whether a variable is
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
    /// Our CPU engine.
    pub cpu: Availability,
}

/// Everything about this machine that matters to a plan.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Situation {
    /// Whether an RDNA1 card is the accelerator.
    pub affected: bool,
    /// Whether the runtime takes the card for another chip, so that code from libraries was compiled for that one.
    pub spoofed: bool,
    /// Whether that code is repaired as it loads.
    pub shielded: bool,
    /// Where the tensors live.
    pub device: Device,
    /// The MIOpen solver families that are on, if known; `None` means that none was turned off.
    pub miopen_families: Option<MiopenFamilies>,
    /// The profile or solver family that MIOpen runs with, by its name in evidence; usually empty.
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

    /// Tensors in host memory, where torch's own kernels and ours are available.
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

    /// This situation, with the availability of one engine changed.
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

    /// Whether the rules about RDNA1 cards apply: there is such a card, and it would compute.
    pub fn is_endangered(&self) -> bool {
        self.affected && self.device == Device::Accelerator
    }

    /// The engine that torch itself would use.
    pub fn torch_engine(&self) -> EngineName {
        let has_miopen = !matches!(self.availability(EngineName::Miopen), Availability::Absent(_));
        if self.device == Device::Accelerator && has_miopen { EngineName::Miopen } else { EngineName::Aten }
    }

    /// Why MIOpen has no solver left for the convolution, if that is so.
    ///
    /// Read in the sources of MIOpen 5.2.3, 5.7.1 and 6.2.2, not seen on a card. The sources say it for 3→64 3×3 at
    /// batch 1. That it also applies to fewer channels and other batches is inferred; if that is wrong, a plan uses
    /// another engine and nothing else changes.
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
