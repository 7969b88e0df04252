//! The cards of a machine folder, for the driver's interface.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use unhang_guard::input::read_plain;
use unhang_isa::Chip;

/// One card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Card {
    /// Its number among the nodes of the topology.
    pub node: u32,
    /// What KFD calls it.
    pub gpu_id: u32,
    /// The minor number of its render node.
    pub render_minor: u32,
    /// PCI ids: device and revision.
    pub device: u16,
    /// The PCI revision.
    pub revision: u8,
    /// `gfx_target_version`.
    pub target_version: u32,
    /// Bytes of video memory.
    pub memory: u64,
    /// How many SDMA queues a process may have.
    pub sdma_queues: u32,
    /// Compute units.
    pub compute_units: u32,
    /// Shader arrays.
    pub arrays: u32,
    /// The clock in MHz.
    pub clock_mhz: u32,
    /// The memory's clock in MHz and its width in bits.
    pub memory_bus: (u32, u32),
}

impl Card {
    /// The emulated chip; hazards are those of this chip, and RDNA2 has none of them.
    pub(crate) fn chip(&self) -> Option<Chip> {
        match self.target_version {
            100_100 => Some(Chip::Gfx1010),
            100_101 => Some(Chip::Gfx1011),
            100_102 => Some(Chip::Gfx1012),
            100_103 => Some(Chip::Gfx1013),
            100_300 => Some(Chip::Gfx1030),
            _ => None,
        }
    }

    /// The family as libdrm numbers it: Navi, or Cyan Skillfish's own.
    pub(crate) fn family(&self) -> u32 {
        143
    }

    /// The card's name; every name says that it is emulated.
    pub(crate) fn name(&self) -> &'static std::ffi::CStr {
        match (self.device, self.revision) {
            (0x731f, 0xc1 | 0xc5) => c"AMD Radeon RX 5700 XT (emulated)",
            (0x731f, 0xca) => c"AMD Radeon RX 5600 XT (emulated)",
            (0x7340, 0xc5) => c"AMD Radeon RX 5500 XT (emulated)",
            (0x13fe, _) => c"AMD BC-250 (emulated)",
            (0x73bf, _) => c"AMD Radeon RX 6800 (emulated)",
            _ => c"AMD Radeon Graphics (emulated)",
        }
    }
}

/// Larger than any file that describes a card.
pub(crate) const LARGEST_FILE: u64 = 1 << 20;

fn text_of(path: &Path) -> Option<String> {
    String::from_utf8(read_plain(path, LARGEST_FILE).ok()?).ok()
}

/// Reads `name value` lines.
fn values(path: &Path) -> HashMap<String, u64> {
    let text = text_of(path).unwrap_or_default();
    let pair = |line: &str| {
        let (name, value) = line.split_once(' ')?;
        Some((name.to_owned(), value.trim().parse().ok()?))
    };
    text.lines().filter_map(pair).collect()
}

fn hexadecimal(path: &Path) -> Option<u64> {
    u64::from_str_radix(text_of(path)?.trim().trim_start_matches("0x"), 16).ok()
}

/// The cards of a machine, by node.
pub(crate) fn read(root: &Path) -> Vec<Card> {
    let nodes = root.join("sys/class/kfd/kfd/topology/nodes");
    let mut cards: Vec<Card> = fs::read_dir(&nodes)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| read_node(root, &entry.path(), entry.file_name().to_str()?.parse().ok()?))
        .collect();
    cards.sort_by_key(|card| card.node);
    cards
}

fn read_node(root: &Path, folder: &Path, node: u32) -> Option<Card> {
    let properties = values(&folder.join("properties"));
    let value = |name: &str| properties.get(name).copied().unwrap_or(0);
    if value("simd_count") == 0 {
        return None;
    }
    let gpu_id: u32 = text_of(&folder.join("gpu_id"))?.trim().parse().ok()?;
    let banks =
        (0..value("mem_banks_count").min(16)).map(|bank| values(&folder.join(format!("mem_banks/{bank}/properties"))));
    let local: Vec<_> = banks.filter(|bank| matches!(bank.get("heap_type"), Some(1 | 2))).collect();
    let location = value("location_id");
    let pci = format!(
        "sys/bus/pci/devices/{:04x}:{:02x}:{:02x}.{}",
        value("domain"),
        location >> 8 & 0xff,
        location >> 3 & 0x1f,
        location & 7
    );
    let of_bank = |name: &str| local.iter().filter_map(|bank| bank.get(name).copied()).max().unwrap_or(0) as u32;
    Some(Card {
        node,
        gpu_id,
        render_minor: value("drm_render_minor") as u32,
        device: value("device_id") as u16,
        revision: hexadecimal(&root.join(pci).join("revision")).unwrap_or(0) as u8,
        target_version: value("gfx_target_version") as u32,
        memory: local.iter().filter_map(|bank| bank.get("size_in_bytes")).fold(0, |sum, it| sum.saturating_add(*it)),
        sdma_queues: value("num_sdma_engines").saturating_mul(value("num_sdma_queues_per_engine").max(1)) as u32,
        compute_units: (value("simd_count") / value("simd_per_cu").max(1)) as u32,
        arrays: value("array_count") as u32,
        clock_mhz: value("max_engine_clk_fcompute") as u32,
        memory_bus: (of_bank("mem_clk_max"), of_bank("width")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shipped_machines_have_their_cards() {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../unhang-machine/fixtures");
        let two = read(&fixtures.join("two-gpus"));
        assert_eq!(two.len(), 2);
        assert_ne!(two[0].gpu_id, two[1].gpu_id);
        assert_eq!((two[0].chip(), two[1].chip()), (Some(Chip::Gfx1010), Some(Chip::Gfx1030)));
        assert_eq!(two[0].name(), c"AMD Radeon RX 5600 XT (emulated)");
        assert_eq!((two[0].memory, two[0].compute_units), (6_425_673_728, 36));
        assert_eq!(read(&fixtures.join("bc250"))[0].chip(), Some(Chip::Gfx1013));
        assert!(read(&fixtures.join("no-gpu")).is_empty());
        assert!(read(Path::new("/not/there")).is_empty());
    }
}
