//! Which chip is here, from the kernel driver, which no environment variable misleads.

use std::path::{Path, PathBuf};

use unhang_isa::Chip;

/// This machine's RDNA1 chip. With several, the one with the fewest instructions, since a code object may run on any of
/// them: code that is safe there is safe on all.
pub(crate) fn find() -> Option<Chip> {
    let root = std::env::var_os("UNHANG_ROOT").filter(|root| !root.is_empty()).unwrap_or_else(|| "/".into());
    find_in(&PathBuf::from(root))
}

fn find_in(root: &Path) -> Option<Chip> {
    let nodes = std::fs::read_dir(root.join("sys/class/kfd/kfd/topology/nodes")).ok()?;
    nodes
        .filter_map(|node| std::fs::read_to_string(node.ok()?.path().join("properties")).ok())
        .filter_map(|properties| rdna1(&properties))
        .min_by_key(|chip| order(*chip))
}

/// Fewer instructions first: gfx1011 and gfx1012 have dot products, which gfx1010 and gfx1013 lack.
fn order(chip: Chip) -> (bool, Chip) {
    (matches!(chip, Chip::Gfx1011 | Chip::Gfx1012), chip)
}

/// The chip of a node's properties: lines like `gfx_target_version 100100` (ten, one, nought in pairs of digits), or
/// before Linux 5.17 the PCI ids alone, `vendor_id 4098` and `device_id 29471`.
fn rdna1(properties: &str) -> Option<Chip> {
    const AMD: u32 = 0x1002;
    let value = |name: &str| {
        let words = properties.lines().filter_map(|line| line.split_once(' '));
        words.filter(|(it, _)| *it == name).find_map(|(_, value)| value.trim().parse::<u32>().ok())
    };
    match value("gfx_target_version") {
        Some(100_100) => Some(Chip::Gfx1010),
        Some(100_101) => Some(Chip::Gfx1011),
        Some(100_102) => Some(Chip::Gfx1012),
        Some(100_103) => Some(Chip::Gfx1013),
        Some(_) => None,
        // A node without vector units is a CPU.
        None if value("simd_count")? == 0 || value("vendor_id")? != AMD => None,
        None => Chip::rdna1_by_pci_device(u16::try_from(value("device_id")?).ok()?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cards_are_told_apart_and_the_plainest_counts() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(find_in(folder.path()), None);
        let add = |node: &str, version: &str| {
            let path = folder.path().join("sys/class/kfd/kfd/topology/nodes").join(node);
            std::fs::create_dir_all(&path).unwrap();
            std::fs::write(path.join("properties"), format!("simd_count 80\ngfx_target_version {version}\n")).unwrap();
            find_in(folder.path())
        };
        assert_eq!(add("0", "0"), None, "the CPU");
        assert_eq!(add("1", "100300"), None, "RDNA2");
        assert_eq!(add("2", "100102"), Some(Chip::Gfx1012));
        assert_eq!(add("3", "100100"), Some(Chip::Gfx1010));
    }

    #[test]
    fn before_linux_5_17_the_pci_ids_tell_the_chip() {
        let node = |simds: u32, vendor: u32, device: u32| {
            rdna1(&format!("simd_count {simds}\nvendor_id {vendor}\ndevice_id {device}\n"))
        };
        assert_eq!(node(72, 0x1002, 0x731f), Some(Chip::Gfx1010));
        assert_eq!(node(44, 0x1002, 0x7340), Some(Chip::Gfx1012));
        assert_eq!(node(80, 0x1002, 0x13fe), Some(Chip::Gfx1013));
        assert_eq!(node(144, 0x1002, 0x73bf), None, "RDNA2");
        assert_eq!(node(72, 0x10de, 0x731f), None, "another vendor");
        assert_eq!(node(0, 0x1002, 0x731f), None, "a CPU");
    }
}
