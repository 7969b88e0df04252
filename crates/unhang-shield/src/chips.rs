//! Which chip is here, as the kernel driver says: what the environment claims does not reach it.

use std::path::{Path, PathBuf};

use unhang_isa::Chip;

/// The RDNA1 chip of this machine. With several, the one with the fewest instructions, since a code object may be run on
/// any of them: what is safe there is safe on all.
pub(crate) fn find() -> Option<Chip> {
    let root = std::env::var_os("UNHANG_ROOT").filter(|root| !root.is_empty()).unwrap_or_else(|| "/".into());
    find_in(&PathBuf::from(root))
}

fn find_in(root: &Path) -> Option<Chip> {
    let nodes = std::fs::read_dir(root.join("sys/class/kfd/kfd/topology/nodes")).ok()?;
    nodes
        .filter_map(|node| std::fs::read_to_string(node.ok()?.path().join("properties")).ok())
        .filter_map(|properties| rdna1(&properties))
        .min()
}

/// The chip of a node's properties, lines like `gfx_target_version 100100`: ten, one, nought in pairs of digits.
fn rdna1(properties: &str) -> Option<Chip> {
    let version = properties.lines().find_map(|line| line.strip_prefix("gfx_target_version "))?.trim();
    match version {
        "100100" => Some(Chip::Gfx1010),
        "100101" => Some(Chip::Gfx1011),
        "100102" => Some(Chip::Gfx1012),
        "100103" => Some(Chip::Gfx1013),
        _ => None,
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
}
