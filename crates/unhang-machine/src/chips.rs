//! Which chip is which: PCI device ids and KFD target versions.
//!
//! The ids are those of the kernel's amdgpu driver and the names those of libdrm's `amdgpu.ids` and of `pci.ids`. A name depends on
//! the revision too: device 731F alone is six different cards. RDNA1 is gfx1010 to gfx1013; gfx1030 is RDNA2.

use serde::Serialize;

/// AMD's PCI vendor id.
pub const AMD: u16 = 0x1002;
/// NVIDIA's PCI vendor id.
pub const NVIDIA: u16 = 0x10de;
/// Intel's PCI vendor id.
pub const INTEL: u16 = 0x8086;

/// A family of GPU chips that shares one instruction set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Chip {
    /// The code name, for example `Navi 10`.
    pub name: &'static str,
    /// The instruction set's name, for example `gfx1010`.
    pub gfx: &'static str,
    /// KFD's `gfx_target_version`.
    pub target_version: u32,
    /// Whether this is RDNA1: the cards that unhang is for.
    pub affected: bool,
}

const fn chip(name: &'static str, gfx: &'static str, target_version: u32) -> Chip {
    Chip { name, gfx, target_version, affected: target_version >= 100_100 && target_version <= 100_103 }
}

/// The RDNA1 chips, and the neighbours that they are most often mistaken for.
pub const CHIPS: &[Chip] = &[
    chip("Navi 10", "gfx1010", 100_100),
    chip("Navi 12", "gfx1011", 100_101),
    chip("Navi 14", "gfx1012", 100_102),
    chip("Cyan Skillfish", "gfx1013", 100_103),
    chip("Navi 21", "gfx1030", 100_300),
    chip("Navi 22", "gfx1031", 100_301),
    chip("Navi 23", "gfx1032", 100_302),
    chip("Van Gogh", "gfx1033", 100_303),
    chip("Navi 24", "gfx1034", 100_304),
    chip("Rembrandt", "gfx1035", 100_305),
    chip("Raphael", "gfx1036", 100_306),
    chip("Navi 31", "gfx1100", 110_000),
    chip("Navi 32", "gfx1101", 110_001),
    chip("Navi 33", "gfx1102", 110_002),
    chip("Phoenix", "gfx1103", 110_003),
    chip("Strix Point", "gfx1150", 110_500),
    chip("Strix Halo", "gfx1151", 110_501),
    chip("Krackan Point", "gfx1152", 110_502),
    chip("Navi 44", "gfx1200", 120_000),
    chip("Navi 48", "gfx1201", 120_001),
    chip("Vega 10", "gfx900", 90_000),
    chip("Vega 20", "gfx906", 90_006),
];

/// One line of the table of cards: device id, revision (none: any other), chip, name.
type Card = (u16, Option<u8>, &'static str, &'static str);

const CARDS: &[Card] = &[
    (0x7310, None, "gfx1010", "Radeon Pro W5700X"),
    (0x7312, None, "gfx1010", "Radeon Pro W5700"),
    (0x7318, None, "gfx1010", "Navi 10"),
    (0x7319, None, "gfx1010", "Radeon Pro 5700 XT"),
    (0x731a, None, "gfx1010", "Navi 10"),
    (0x731b, None, "gfx1010", "Radeon Pro 5700"),
    (0x731e, None, "gfx1010", "Radeon RX 5700XTB / 5700B"),
    (0x731f, Some(0xc0), "gfx1010", "Radeon RX 5700 XT 50th Anniversary"),
    (0x731f, Some(0xc1), "gfx1010", "Radeon RX 5700 XT"),
    (0x731f, Some(0xc2), "gfx1010", "Radeon RX 5600M"),
    (0x731f, Some(0xc3), "gfx1010", "Radeon RX 5700M"),
    (0x731f, Some(0xc4), "gfx1010", "Radeon RX 5700"),
    (0x731f, Some(0xc5), "gfx1010", "Radeon RX 5700 XT"),
    (0x731f, Some(0xca), "gfx1010", "Radeon RX 5600 XT"),
    (0x731f, Some(0xcb), "gfx1010", "Radeon RX 5600 OEM"),
    (0x731f, None, "gfx1010", "Radeon RX 5600/5700 series"),
    (0x7360, Some(0x41), "gfx1011", "Radeon Pro 5600M"),
    (0x7360, Some(0xc3), "gfx1011", "Radeon Pro V520"),
    (0x7360, None, "gfx1011", "Navi 12"),
    (0x7362, Some(0xc1), "gfx1011", "Radeon Pro V540"),
    (0x7362, Some(0xc3), "gfx1011", "Radeon Pro V520"),
    (0x7362, None, "gfx1011", "Navi 12"),
    (0x7340, Some(0xc1), "gfx1012", "Radeon RX 5500M"),
    (0x7340, Some(0xc3), "gfx1012", "Radeon RX 5300M"),
    (0x7340, Some(0xc5), "gfx1012", "Radeon RX 5500 XT"),
    (0x7340, Some(0xc7), "gfx1012", "Radeon RX 5500"),
    (0x7340, Some(0xc9), "gfx1012", "Radeon RX 5500XTB"),
    (0x7340, Some(0xcf), "gfx1012", "Radeon RX 5300"),
    (0x7340, None, "gfx1012", "Radeon RX/Pro 5300/5500 series"),
    (0x7341, None, "gfx1012", "Radeon Pro W5500"),
    (0x7347, None, "gfx1012", "Radeon Pro W5500M"),
    (0x734f, None, "gfx1012", "Radeon Pro W5300M"),
    (0x13db, None, "gfx1013", "Cyan Skillfish"),
    (0x13f9, None, "gfx1013", "Cyan Skillfish"),
    (0x13fa, None, "gfx1013", "Cyan Skillfish"),
    (0x13fb, None, "gfx1013", "Cyan Skillfish"),
    (0x13fc, None, "gfx1013", "Cyan Skillfish"),
    (0x13fe, None, "gfx1013", "BC-250"),
    (0x143f, None, "gfx1013", "Cyan Skillfish"),
    // Not affected; listed because people compare with them.
    (0x73bf, Some(0xc0), "gfx1030", "Radeon RX 6900 XT"),
    (0x73bf, Some(0xc1), "gfx1030", "Radeon RX 6800 XT"),
    (0x73bf, Some(0xc3), "gfx1030", "Radeon RX 6800"),
    (0x73bf, None, "gfx1030", "Radeon RX 6800/6900 series"),
    (0x73a5, None, "gfx1030", "Radeon RX 6950 XT"),
    (0x73af, None, "gfx1030", "Radeon RX 6900 XT"),
    (0x73df, None, "gfx1031", "Radeon RX 6700 series"),
    (0x73ff, None, "gfx1032", "Radeon RX 6600 series"),
    (0x73ef, None, "gfx1032", "Radeon RX 6650 XT / 6700S / 6800S"),
    (0x73e3, None, "gfx1032", "Radeon Pro W6600"),
    (0x7422, None, "gfx1034", "Radeon Pro W6400"),
    (0x743f, None, "gfx1034", "Radeon RX 6400/6500 series"),
    (0x744c, None, "gfx1100", "Radeon RX 7900 series"),
    (0x7448, None, "gfx1100", "Radeon Pro W7900"),
    (0x744a, None, "gfx1100", "Radeon Pro W7900 Dual Slot"),
    (0x745e, None, "gfx1100", "Radeon Pro W7800"),
    (0x747e, None, "gfx1101", "Radeon RX 7700/7800 series"),
    (0x7470, None, "gfx1101", "Radeon Pro W7700"),
    (0x7480, None, "gfx1102", "Radeon RX 7600 series"),
    (0x7483, None, "gfx1102", "Radeon RX 7600M series"),
    (0x7489, None, "gfx1102", "Radeon Pro W7500"),
    (0x15bf, None, "gfx1103", "Radeon 740M/760M/780M"),
    (0x15c8, None, "gfx1103", "Radeon 740M"),
    (0x150e, None, "gfx1150", "Radeon 880M/890M"),
    (0x1114, None, "gfx1152", "Radeon 840M/860M"),
    (0x1586, None, "gfx1151", "Radeon 8050S/8060S"),
    (0x7550, None, "gfx1201", "Radeon RX 9070 series"),
    (0x7551, None, "gfx1201", "Radeon AI Pro R9700"),
    (0x7590, None, "gfx1200", "Radeon RX 9060 series"),
];

/// The card's name and chip from the PCI ids of an AMD display controller.
///
/// ```
/// let (name, chip) = unhang_machine::chips::by_pci_id(0x731f, Some(0xca)).unwrap();
/// assert_eq!((name, chip.gfx, chip.affected), ("Radeon RX 5600 XT", "gfx1010", true));
/// ```
pub fn by_pci_id(device: u16, revision: Option<u8>) -> Option<(&'static str, Chip)> {
    let exact = CARDS.iter().find(|card| card.0 == device && card.1.is_some() && card.1 == revision);
    // A revision that is not listed (or could not be read) still names the chip: that is what matters.
    let card = exact.or_else(|| CARDS.iter().find(|card| card.0 == device && card.1.is_none()))?;
    Some((card.3, *CHIPS.iter().find(|chip| chip.gfx == card.2)?))
}

/// The PCI device ids of all RDNA1 cards.
pub fn affected_devices() -> Vec<u16> {
    let mut devices: Vec<u16> = CARDS.iter().filter(|card| is_affected_gfx(card.2)).map(|card| card.0).collect();
    devices.sort_unstable();
    devices.dedup();
    devices
}

/// The chip behind a KFD `gfx_target_version`.
pub fn by_target_version(version: u32) -> Option<Chip> {
    CHIPS.iter().copied().find(|chip| chip.target_version == version)
}

/// Whether a name of an instruction set is one of RDNA1's.
pub fn is_affected_gfx(gfx: &str) -> bool {
    CHIPS.iter().any(|chip| chip.affected && chip.gfx == gfx)
}

/// The name of the instruction set for a KFD `gfx_target_version`: major, minor and stepping, two decimal digits each,
/// the last two written in hexadecimal. 90010 is `gfx90a`. Zero is a processor without a GPU.
pub fn gfx_name(target_version: u32) -> Option<String> {
    let (major, minor, step) = (target_version / 10_000, target_version / 100 % 100, target_version % 100);
    if major == 0 || major > 99 || minor > 15 || step > 15 {
        return None;
    }
    Some(format!("gfx{major}{minor:x}{step:x}"))
}

/// The instruction set that `HSA_OVERRIDE_GFX_VERSION=10.3.0` names: the runtime wants exactly three numbers.
pub fn gfx_of_override(value: &str) -> Option<String> {
    let mut parts = value.trim().split('.').map(|part| part.parse::<u32>().ok());
    let (major, minor, step) = (parts.next()??, parts.next()??, parts.next()??);
    if parts.next().is_some() || major > 63 || minor > 15 || step > 15 {
        return None;
    }
    Some(format!("gfx{major}{minor:x}{step:x}"))
}

/// Whether a list of chips covers one, by name or by a generic target.
pub(crate) fn holds(architectures: &[String], gfx: &str) -> bool {
    let generic = match gfx {
        "gfx1010" | "gfx1011" | "gfx1012" | "gfx1013" => "gfx10-1-generic",
        _ if gfx.starts_with("gfx103") => "gfx10-3-generic",
        _ => return architectures.iter().any(|it| it == gfx),
    };
    architectures.iter().any(|it| it == gfx || it == generic)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_card_names_a_chip_of_the_table() {
        for (device, revision, gfx, _) in CARDS {
            let (_, chip) = by_pci_id(*device, *revision).expect("in the table");
            assert_eq!(chip.gfx, *gfx);
        }
        for chip in CHIPS {
            assert_eq!(gfx_name(chip.target_version).as_deref(), Some(chip.gfx));
        }
    }

    #[test]
    fn later_cards_are_recognised_without_the_driver() {
        for (device, gfx) in
            [(0x73a5, "gfx1030"), (0x73ef, "gfx1032"), (0x7448, "gfx1100"), (0x150e, "gfx1150"), (0x7551, "gfx1201")]
        {
            let (_, chip) = by_pci_id(device, Some(0xc1)).unwrap();
            assert_eq!((chip.gfx, chip.affected), (gfx, false), "{device:04x}");
        }
    }

    #[test]
    fn rdna1_is_gfx1010_to_1013_and_no_other() {
        let affected: Vec<_> = CHIPS.iter().filter(|chip| chip.affected).map(|chip| chip.gfx).collect();
        assert_eq!(affected, ["gfx1010", "gfx1011", "gfx1012", "gfx1013"]);
        assert!(by_pci_id(0x7314, None).is_none(), "Navi 10's USB controller is not a GPU");
    }

    #[test]
    fn versions_become_names() {
        assert_eq!(gfx_name(90_010).as_deref(), Some("gfx90a"));
        assert_eq!(gfx_name(0), None);
        assert_eq!(gfx_name(u32::MAX), None);
        assert_eq!(gfx_of_override("10.3.0").as_deref(), Some("gfx1030"));
        assert_eq!(gfx_of_override("10.3"), None);
        assert_eq!(gfx_of_override("gfx1030"), None);
        assert_eq!(gfx_of_override("9.0.10").as_deref(), Some("gfx90a"));
    }
}
