//! The machines whose cards `unhang card run` can emulate: the kernel's files about them, from the fixtures.

use std::path::Path;

use include_dir::{Dir, include_dir};

use crate::system::System;

/// A machine that comes with the program.
#[derive(Debug)]
pub struct ShippedCard {
    /// Its name on the command line.
    pub name: &'static str,
    /// What it is.
    pub description: &'static str,
    fixture: &'static str,
}

/// The default card: the one of most reports.
pub const DEFAULT: &str = "rx5600xt";

/// The fixtures, which are machines as folders.
static FIXTURES: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/fixtures");

const fn card(name: &'static str, fixture: &'static str, description: &'static str) -> ShippedCard {
    ShippedCard { name, description, fixture }
}

/// The shipped machines.
pub static CARDS: [ShippedCard; 6] = [
    card("rx5500xt", "rx5500xt", "RX 5500 XT: Navi 14, gfx1012, 22 compute units, 8 GB"),
    card("rx5600xt", "rx5600xt-rocm5.7", "RX 5600 XT: Navi 10, gfx1010, 36 compute units, 6 GB"),
    card(
        "rx5700xt",
        "rx5700xt-native",
        "RX 5700 XT: Navi 10, gfx1010, 40 compute units, 8 GB, all of it visible to the host",
    ),
    card("bc250", "bc250", "BC-250: Cyan Skillfish, gfx1013, 24 compute units, 8 GB of shared memory"),
    card("two-cards", "two-gpus", "RX 5600 XT and RX 6800 in one machine"),
    card("rx6800", "rx6800", "RX 6800: Navi 21, gfx1030, 60 compute units, 16 GB; RDNA2, has none of the hazards"),
];

/// The shipped machine with a name.
pub fn named(name: &str) -> Option<&'static ShippedCard> {
    CARDS.iter().find(|card| card.name == name)
}

impl ShippedCard {
    /// Writes the kernel's files about the machine into a folder.
    pub fn write(&self, folder: &Path) -> std::io::Result<()> {
        ["sys", "dev", "proc"].iter().try_for_each(|part| write_fixture(self.fixture, part, folder))?;
        crate::card_management::write(folder)
    }
}

/// Writes a part of a fixture into a folder; all of it if the part is empty.
pub(crate) fn write_fixture(fixture: &str, part: &str, folder: &Path) -> std::io::Result<()> {
    let mut pending: Vec<&Dir<'_>> = FIXTURES.get_dir(Path::new(fixture).join(part)).into_iter().collect();
    if pending.is_empty() {
        return Err(std::io::ErrorKind::NotFound.into());
    }
    while let Some(next) = pending.pop() {
        pending.extend(next.dirs());
        let inside = next.path().strip_prefix(fixture).unwrap_or(next.path());
        std::fs::create_dir_all(folder.join(inside))?;
        for file in next.files() {
            let name = file.path().file_name().unwrap_or_default();
            std::fs::write(folder.join(inside).join(name), file.contents())?;
        }
    }
    Ok(())
}

/// What a machine folder lacks for its cards to be emulated: the runtime reads all of these.
pub fn missing(folder: &Path) -> Vec<String> {
    let topology = folder.join("sys/class/kfd/kfd/topology");
    let mut missing = Vec::new();
    let mut need = |path: std::path::PathBuf| {
        let is_missing = !path.is_file();
        if is_missing {
            missing.push(path.strip_prefix(folder).unwrap_or(&path).display().to_string());
        }
        !is_missing
    };
    need(folder.join("dev/kfd"));
    need(topology.join("system_properties"));
    need(topology.join("generation_id"));
    for node in (0..).map(|number| topology.join("nodes").join(number.to_string())).take_while(|path| path.is_dir()) {
        need(node.join("gpu_id"));
        if !need(node.join("properties")) {
            continue;
        }
        let properties =
            unhang_guard::input::read_plain(&node.join("properties"), crate::SMALL as u64).unwrap_or_default();
        let properties = String::from_utf8_lossy(&properties);
        let count = |name: &str| {
            let line = properties.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            line.and_then(|value| value.trim().parse::<u32>().ok()).unwrap_or(0).min(256)
        };
        let is_card = count("simd_count") > 0;
        for (name, folder, is_needed) in [
            ("mem_banks_count", "mem_banks", true),
            ("io_links_count", "io_links", is_card),
            ("caches_count", "caches", is_card),
        ] {
            let number = count(name);
            for place in 0..number.max(u32::from(is_needed)) {
                need(node.join(folder).join(place.to_string()).join("properties"));
            }
        }
    }
    missing
}

/// The driver's files in a machine folder; only these are copied.
const DESCRIBED: [&str; 8] = [
    "/proc/modules",
    "/sys/class/kfd",
    "/sys/module/amdgpu",
    "/sys/bus/pci/devices",
    "/sys/class/drm",
    "/sys/dev/char",
    "/dev/dri",
    "/dev/kfd",
];
const MOST_FILES: usize = 20_000;
const MOST_DEPTH: usize = 16;
/// The largest sensible count in a description; AMD's libraries loop over what is counted.
const LARGEST_COUNT: u64 = 4096;

/// Copies a folder's files of the driver: plain files of a sensible size, and links as their targets inside the folder.
/// Programs on the emulated card read the copy, so no pipe, device or link out of the folder reaches them.
pub fn copy_description(from: &Path, to: &Path) -> std::io::Result<()> {
    let system = System::new(from, crate::Environment::default());
    let mut left = MOST_FILES;
    DESCRIBED.iter().try_for_each(|path| copy_part(&system, Path::new(path), to, 0, &mut left))
}

fn copy_part(system: &System, path: &Path, to: &Path, depth: usize, left: &mut usize) -> std::io::Result<()> {
    let target = to.join(path.strip_prefix("/").unwrap_or(path));
    if system.is_directory(path) && depth < MOST_DEPTH {
        std::fs::create_dir_all(&target)?;
        let names = system.entries(path);
        return names.iter().try_for_each(|name| copy_part(system, &path.join(name), to, depth + 1, left));
    }
    // An unreadable file is missing on the emulated machine too.
    let Ok(contents) = system.bytes(path, crate::LARGE) else { return Ok(()) };
    *left = left.checked_sub(1).ok_or_else(|| {
        std::io::Error::new(std::io::ErrorKind::FileTooLarge, format!("it has more than {MOST_FILES} files"))
    })?;
    if let Some(folder) = target.parent() {
        std::fs::create_dir_all(folder)?;
    }
    std::fs::write(target, contents)
}

/// The first count in a description that no machine has, in words.
pub fn absurd_count(folder: &Path) -> Option<String> {
    let nodes = std::fs::read_dir(folder.join("sys/class/kfd/kfd/topology/nodes")).ok()?;
    nodes.flatten().find_map(|node| {
        let text = unhang_guard::input::read_plain(&node.path().join("properties"), crate::LARGE as u64).ok()?;
        let text = String::from_utf8_lossy(&text).into_owned();
        let absurd = |line: &&str| {
            let Some((name, value)) = line.split_once(' ') else { return false };
            name.ends_with("_count") && value.trim().parse::<u64>().map_or(true, |count| count > LARGEST_COUNT)
        };
        let line = text.lines().find(absurd)?;
        Some(format!("node {} has {:?}", node.file_name().display(), unhang_guard::text::printable_line(line)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shipped_machines_have_everything_that_the_runtime_reads() {
        for card in &CARDS {
            let folder = tempfile::tempdir().unwrap();
            card.write(folder.path()).unwrap();
            assert_eq!(missing(folder.path()), Vec::<String>::new(), "{}", card.name);
        }
        assert!(named(DEFAULT).is_some() && named("rx580").is_none());
    }

    #[test]
    fn what_a_folder_lacks_is_named() {
        let folder = tempfile::tempdir().unwrap();
        CARDS[0].write(folder.path()).unwrap();
        std::fs::remove_dir_all(folder.path().join("sys/class/kfd/kfd/topology/nodes/1/caches/1")).unwrap();
        assert_eq!(missing(folder.path()), ["sys/class/kfd/kfd/topology/nodes/1/caches/1/properties"]);
    }
}
