//! The chips whose machine code is understood.

use std::fmt;
use std::str::FromStr;

/// A gfx10 chip, as the ELF flags of a code object name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Chip {
    /// Navi 10: RX 5600, RX 5700.
    Gfx1010,
    /// Navi 12: Pro 5600M, V520.
    Gfx1011,
    /// Navi 14: RX 5300, RX 5500.
    Gfx1012,
    /// Cyan Skillfish: BC-250.
    Gfx1013,
    /// Navi 21, and the target of `HSA_OVERRIDE_GFX_VERSION=10.3.0`.
    Gfx1030,
    /// Navi 22.
    Gfx1031,
    /// Navi 23.
    Gfx1032,
    /// Van Gogh.
    Gfx1033,
    /// Navi 24.
    Gfx1034,
    /// Rembrandt.
    Gfx1035,
    /// Raphael.
    Gfx1036,
}

/// LLVM's names for the bugs of gfx101x that it works around when it compiles for these chips, and not for gfx1030.
///
/// Each is an option of clang: `-Xclang -target-feature -Xclang +NAME`.
pub const WORK_AROUND_FEATURES: [&str; 12] = [
    "vcmpx-permlane-hazard",
    "vmem-to-scalar-write-hazard",
    "smem-to-vector-write-hazard",
    "inst-fwd-prefetch-bug",
    "vcmpx-exec-war-hazard",
    "lds-branch-vmem-war-hazard",
    "nsa-to-vmem-bug",
    "nsa-clause-bug",
    "offset-3f-bug",
    "flat-segment-offset-bug",
    "negative-unaligned-scratch-offset-bug",
    "lds-misaligned-bug",
];

impl Chip {
    /// All of them.
    pub const ALL: [Chip; 11] = [
        Chip::Gfx1010,
        Chip::Gfx1011,
        Chip::Gfx1012,
        Chip::Gfx1013,
        Chip::Gfx1030,
        Chip::Gfx1031,
        Chip::Gfx1032,
        Chip::Gfx1033,
        Chip::Gfx1034,
        Chip::Gfx1035,
        Chip::Gfx1036,
    ];

    /// The chip of an `EF_AMDGPU_MACH` number (the low byte of the ELF flags), if it is a gfx10 chip.
    pub fn from_machine(machine: u8) -> Option<Chip> {
        Chip::ALL.into_iter().find(|chip| chip.machine() == machine)
    }

    /// The `EF_AMDGPU_MACH` number, from LLVM's AMDGPU usage guide.
    pub fn machine(self) -> u8 {
        match self {
            Chip::Gfx1010 => 0x33,
            Chip::Gfx1011 => 0x34,
            Chip::Gfx1012 => 0x35,
            Chip::Gfx1013 => 0x42,
            Chip::Gfx1030 => 0x36,
            Chip::Gfx1031 => 0x37,
            Chip::Gfx1032 => 0x38,
            Chip::Gfx1033 => 0x39,
            Chip::Gfx1034 => 0x3e,
            Chip::Gfx1035 => 0x3d,
            Chip::Gfx1036 => 0x45,
        }
    }

    /// The name that compilers use.
    pub fn name(self) -> &'static str {
        match self {
            Chip::Gfx1010 => "gfx1010",
            Chip::Gfx1011 => "gfx1011",
            Chip::Gfx1012 => "gfx1012",
            Chip::Gfx1013 => "gfx1013",
            Chip::Gfx1030 => "gfx1030",
            Chip::Gfx1031 => "gfx1031",
            Chip::Gfx1032 => "gfx1032",
            Chip::Gfx1033 => "gfx1033",
            Chip::Gfx1034 => "gfx1034",
            Chip::Gfx1035 => "gfx1035",
            Chip::Gfx1036 => "gfx1036",
        }
    }

    /// Whether this is an RDNA1 chip: one with the hardware bugs that the audit looks for.
    pub fn is_rdna1(self) -> bool {
        matches!(self, Chip::Gfx1010 | Chip::Gfx1011 | Chip::Gfx1012 | Chip::Gfx1013)
    }

    /// The RDNA1 chip of an AMD display controller by its PCI device id, from the kernel's amdgpu driver: for kernels
    /// before Linux 5.17, whose KFD does not name the chip.
    pub fn rdna1_by_pci_device(device: u16) -> Option<Chip> {
        match device {
            0x7310 | 0x7312 | 0x7318..=0x731b | 0x731e | 0x731f => Some(Chip::Gfx1010),
            0x7360 | 0x7362 => Some(Chip::Gfx1011),
            0x7340 | 0x7341 | 0x7347 | 0x734f => Some(Chip::Gfx1012),
            0x13db | 0x13f9..=0x13fc | 0x13fe | 0x143f => Some(Chip::Gfx1013),
            _ => None,
        }
    }

    /// Chips with the same instruction set share a number; the instruction table is indexed by it.
    pub(crate) fn instruction_set(self) -> usize {
        match self {
            Chip::Gfx1010 => 0,
            Chip::Gfx1011 | Chip::Gfx1012 => 1,
            Chip::Gfx1013 => 2,
            _ => 3,
        }
    }
}

impl fmt::Display for Chip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Chip {
    type Err = String;

    fn from_str(text: &str) -> Result<Chip, String> {
        Chip::ALL.into_iter().find(|chip| chip.name() == text).ok_or_else(|| {
            let names: Vec<_> = Chip::ALL.iter().map(|chip| chip.name()).collect();
            format!("unknown chip `{text}`; known are {}", names.join(", "))
        })
    }
}
