//! The GPUs of a machine. Order of trust:
//!
//! 1. **KFD topology** (`/sys/class/kfd/kfd/topology/nodes/*/properties`): the kernel's own word on the chip, read
//!    before `HSA_OVERRIDE_GFX_VERSION` applies. `rocminfo` and torch report the overridden one.
//! 2. **PCI sysfs** (`/sys/bus/pci/devices/*`): for what KFD does not know (other vendors, a kernel without KFD) and
//!    for the revision, which KFD does not tell. The class decides what is a GPU, never a range of device ids: a
//!    Navi 10 card also has a USB controller (7314).
//! 3. The override, to say what the runtime *will report*.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::chips::{self, AMD, INTEL, NVIDIA};
use crate::system::{DeviceAccess, SMALL, System};

const KFD_NODES: &str = "/sys/class/kfd/kfd/topology/nodes";
const PCI_DEVICES: &str = "/sys/bus/pci/devices";
/// More nodes than any machine has: a limit for hostile folders.
const MOST_NODES: usize = 256;

/// One GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Gpu {
    /// The PCI address, for example `0000:03:00.0`.
    pub pci: Option<String>,
    /// The vendor, as sysfs writes it: `0x1002` is AMD.
    #[serde(serialize_with = "hexadecimal_4")]
    pub vendor_id: u16,
    /// The device, as sysfs writes it.
    #[serde(serialize_with = "hexadecimal_4")]
    pub device_id: u16,
    /// The revision, as sysfs writes it; KFD alone does not tell it.
    #[serde(serialize_with = "hexadecimal_2")]
    pub revision: Option<u8>,
    /// What the card is called.
    pub name: String,
    /// The chip's code name, for example `Navi 10`.
    pub chip: Option<String>,
    /// The instruction set that the chip truly has.
    pub gfx: Option<String>,
    /// The instruction set that the runtime will report, after an override.
    pub reported_gfx: Option<String>,
    /// Compute units.
    pub compute_units: Option<u32>,
    /// The highest clock of the shaders in MHz, by KFD.
    #[serde(skip)]
    pub clock_mhz: Option<u32>,
    /// Bytes a second to video memory, by KFD's width and clock of it.
    #[serde(skip)]
    pub bandwidth: Option<u64>,
    /// Whether this is RDNA1.
    pub affected: bool,
    /// Bytes of video memory.
    pub memory_bytes: Option<u64>,
    /// The kernel driver bound to the card.
    pub driver: Option<String>,
    /// The render node, for example `/dev/dri/renderD128`.
    pub render_node: Option<String>,
    /// Whether this process may open the render node.
    #[serde(skip)]
    pub render_access: DeviceAccess,
    /// The KFD node, if KFD knows the card. Also the number in `HSA_OVERRIDE_GFX_VERSION_<n>`.
    pub kfd_node: Option<u32>,
}

fn hexadecimal_4<S: serde::Serializer>(value: &u16, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&format!("{value:#06x}"))
}

fn hexadecimal_2<S: serde::Serializer>(value: &Option<u8>, serializer: S) -> Result<S::Ok, S::Error> {
    match value {
        Some(value) => serializer.serialize_str(&format!("{value:#04x}")),
        None => serializer.serialize_none(),
    }
}

impl Gpu {
    /// Whether the runtime treats this chip as another one.
    pub fn spoofed(&self) -> bool {
        matches!((&self.gfx, &self.reported_gfx), (Some(gfx), Some(reported)) if gfx != reported)
    }
}

/// What one KFD node says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct KfdNode {
    simd_count: u32,
    simd_per_cu: u32,
    vendor_id: u16,
    device_id: u16,
    target_version: u32,
    location_id: u32,
    domain: u32,
    render_minor: u32,
    clock_mhz: u32,
}

/// Lines of a name and a number.
fn named_values(text: &str) -> BTreeMap<&str, u64> {
    text.lines()
        .filter_map(|line| {
            let (name, value) = line.trim().split_once(' ')?;
            Some((name, value.trim().parse().ok()?))
        })
        .collect()
}

/// A bank of video memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct MemoryBank {
    bytes: u64,
    /// The bus width in bits, and the transfers a second in millions; 0 if KFD does not report them.
    width: u64,
    clock_mhz: u64,
}

/// Reads a KFD `mem_banks/*/properties` file; nothing if it is not local memory (heap types 1 and 2).
///
/// ```text
/// heap_type 1
/// size_in_bytes 6425673728
/// flags 0
/// width 192
/// mem_clk_max 750
/// ```
fn parse_memory_bank(text: &str) -> Option<MemoryBank> {
    let values = named_values(text);
    let value = |name: &str| values.get(name).copied().unwrap_or(0);
    matches!(value("heap_type"), 1 | 2).then(|| MemoryBank {
        bytes: value("size_in_bytes"),
        width: value("width"),
        clock_mhz: value("mem_clk_max"),
    })
}

impl MemoryBank {
    /// Bytes a second. KFD gives the memory's own clock. GDDR6, on every RDNA card with a narrow bus, moves 16 bits a
    /// pin a cycle (14 Gbit/s at 875 MHz), HBM 2. Unknown for older chips, which had other memory.
    fn bandwidth(self, target_version: u32) -> Option<u64> {
        let for_each_cycle = match self.width {
            1024.. => 2,
            1.. if target_version >= 100_000 => 16,
            _ => return None,
        };
        let bits = self.width.checked_mul(self.clock_mhz)?.checked_mul(for_each_cycle)?.checked_mul(1_000_000)?;
        (bits > 0).then_some(bits / 8)
    }
}

/// Reads a KFD `properties` file; nothing if the node is a processor without a GPU, or the file is not one.
///
/// ```text
/// simd_count 72
/// simd_per_cu 2
/// gfx_target_version 100100
/// vendor_id 4098
/// device_id 29471
/// location_id 768
/// domain 0
/// drm_render_minor 128
/// max_engine_clk_fcompute 1780
/// ```
pub(crate) fn parse_kfd_properties(text: &str) -> Option<KfdNode> {
    let values = named_values(text);
    let value = |name: &str| values.get(name).copied().and_then(|value| u32::try_from(value).ok()).unwrap_or(0);
    let short = |name: &str| u16::try_from(value(name)).unwrap_or(0);
    let node = KfdNode {
        simd_count: value("simd_count"),
        simd_per_cu: value("simd_per_cu"),
        vendor_id: short("vendor_id"),
        device_id: short("device_id"),
        target_version: value("gfx_target_version"),
        location_id: value("location_id"),
        domain: value("domain"),
        render_minor: value("drm_render_minor"),
        clock_mhz: value("max_engine_clk_fcompute"),
    };
    (node.simd_count > 0).then_some(node)
}

impl KfdNode {
    /// KFD packs bus, device and function into `location_id`.
    fn pci(&self) -> String {
        let (bus, device, function) =
            (self.location_id >> 8 & 0xff, self.location_id >> 3 & 0x1f, self.location_id & 7);
        format!("{:04x}:{bus:02x}:{device:02x}.{function}", self.domain & 0xffff)
    }

    /// Two SIMDs a compute unit on RDNA; KFD says so itself where it is new enough.
    fn compute_units(&self) -> u32 {
        let each = match self.simd_per_cu {
            0 if self.target_version >= 100_000 => 2,
            0 => 4,
            each => each,
        };
        self.simd_count / each
    }
}

/// What PCI sysfs says about one display controller.
#[derive(Clone, Debug, PartialEq, Eq)]
struct PciDevice {
    address: String,
    vendor: u16,
    device: u16,
    revision: Option<u8>,
}

/// Reads a number as sysfs writes it: `0x731f`.
pub(crate) fn parse_hexadecimal(text: &str) -> Option<u32> {
    let digits = text.trim().strip_prefix("0x")?;
    if digits.is_empty() || digits.len() > 8 { None } else { u32::from_str_radix(digits, 16).ok() }
}

fn display_controllers(system: &System) -> Vec<PciDevice> {
    let mut found = Vec::new();
    for address in system.entries(PCI_DEVICES) {
        let folder = Path::new(PCI_DEVICES).join(&address);
        let number = |name: &str| system.line(folder.join(name)).as_deref().and_then(parse_hexadecimal);
        // Class 03xxxx: display controllers. 0380 is what a card without a monitor output says.
        match number("class") {
            Some(class) if class >> 16 == 0x03 => {}
            Some(_) => continue,
            None => {
                system.note_odd(&folder.join("class"), "does not say what kind of device this is");
                continue;
            }
        }
        let id = |name: &str| number(name).and_then(|id| u16::try_from(id).ok());
        let (Some(vendor), Some(device)) = (id("vendor"), id("device")) else {
            system.note_odd(&folder, "a display controller without readable ids");
            continue;
        };
        // A virtual machine's display (Bochs, virtio, VMware) computes nothing.
        if ![AMD, NVIDIA, INTEL].contains(&vendor) {
            continue;
        }
        let revision = number("revision").and_then(|revision| u8::try_from(revision).ok());
        found.push(PciDevice { address, vendor, device, revision });
        if found.len() == MOST_NODES {
            break;
        }
    }
    found
}

/// The chip that the runtime will report for a chip, and the variable that causes it.
///
/// `HSA_OVERRIDE_GFX_VERSION_<node>` is for one KFD node (newer runtimes), the plain name for all.
pub(crate) fn override_for(system: &System, node: Option<u32>) -> Option<(String, String)> {
    let own = node.map(|node| format!("HSA_OVERRIDE_GFX_VERSION_{node}"));
    own.into_iter().chain(["HSA_OVERRIDE_GFX_VERSION".to_owned()]).find_map(|name| {
        let value = system.variable(&name)?;
        Some((name.clone(), chips::gfx_of_override(value)?))
    })
}

/// Finds the GPUs.
pub(crate) fn find(system: &System) -> Vec<Gpu> {
    let controllers = display_controllers(system);
    let mut nodes: Vec<(u32, KfdNode)> = system
        .entries(KFD_NODES)
        .into_iter()
        .filter_map(|name| {
            let number = name.parse::<u32>().ok()?;
            let path = Path::new(KFD_NODES).join(&name).join("properties");
            let properties = system.text(&path, SMALL).unwrap_or_default();
            if !properties.lines().any(|line| line.starts_with("simd_count ")) {
                system.note_odd(&path, "a KFD node without readable properties");
            }
            Some((number, parse_kfd_properties(&properties)?))
        })
        .take(MOST_NODES)
        .collect();
    nodes.sort_by_key(|(number, _)| *number);

    let mut gpus: Vec<Gpu> = nodes
        .iter()
        .map(|(number, node)| {
            let address = node.pci();
            let controller = controllers.iter().find(|controller| controller.address == address);
            from_kfd(system, *number, node, controller)
        })
        .collect();
    for controller in &controllers {
        if !gpus.iter().any(|gpu| gpu.pci.as_deref() == Some(&controller.address)) {
            gpus.push(from_pci(system, controller));
        }
    }
    gpus
}

fn from_kfd(system: &System, number: u32, node: &KfdNode, controller: Option<&PciDevice>) -> Gpu {
    let revision = controller.and_then(|controller| controller.revision);
    let listed = (node.vendor_id == AMD).then(|| chips::by_pci_id(node.device_id, revision)).flatten();
    // KFD before Linux 5.17 has no gfx_target_version; the PCI id then tells the chip.
    let chip = chips::by_target_version(node.target_version).or(listed.map(|(_, chip)| chip));
    let gfx = chips::gfx_name(node.target_version).or(chip.map(|chip| chip.gfx.to_owned()));
    let pci = node.pci();
    let render = (node.render_minor > 0).then(|| format!("/dev/dri/renderD{}", node.render_minor));
    let bank = largest_bank(system, number);
    Gpu {
        vendor_id: node.vendor_id,
        device_id: node.device_id,
        revision,
        name: listed.map_or_else(|| generic_name(node.vendor_id, node.device_id), |(name, _)| name.to_owned()),
        chip: chip.map(|chip| chip.name.to_owned()),
        reported_gfx: override_for(system, Some(number)).map(|(_, gfx)| gfx).or(gfx.clone()),
        affected: gfx.as_deref().is_some_and(chips::is_affected_gfx),
        gfx,
        compute_units: Some(node.compute_units()).filter(|units| *units > 0),
        clock_mhz: Some(node.clock_mhz).filter(|clock| *clock > 0),
        bandwidth: bank.and_then(|bank| bank.bandwidth(node.target_version)),
        memory_bytes: memory(system, &pci).or(bank.map(|bank| bank.bytes)),
        driver: driver(system, &pci),
        render_access: render.as_ref().map_or(DeviceAccess::Missing, |node| system.device(node)),
        render_node: render,
        kfd_node: Some(number),
        pci: Some(pci),
    }
}

fn from_pci(system: &System, controller: &PciDevice) -> Gpu {
    let listed = (controller.vendor == AMD).then(|| chips::by_pci_id(controller.device, controller.revision)).flatten();
    let chip = listed.map(|(_, chip)| chip);
    let gfx = chip.map(|chip| chip.gfx.to_owned());
    let render = render_node(system, &controller.address);
    Gpu {
        vendor_id: controller.vendor,
        device_id: controller.device,
        revision: controller.revision,
        name: listed
            .map(|(name, _)| name.to_owned())
            .or_else(|| nvidia_name(system, &controller.address))
            .unwrap_or_else(|| generic_name(controller.vendor, controller.device)),
        chip: chip.map(|chip| chip.name.to_owned()),
        reported_gfx: gfx
            .as_ref()
            .map(|gfx| override_for(system, None).map_or_else(|| gfx.clone(), |(_, reported)| reported)),
        gfx,
        compute_units: None,
        clock_mhz: None,
        bandwidth: None,
        affected: chip.is_some_and(|chip| chip.affected),
        memory_bytes: memory(system, &controller.address),
        driver: driver(system, &controller.address),
        render_access: render.as_ref().map_or(DeviceAccess::Missing, |node| system.device(node)),
        render_node: render,
        kfd_node: None,
        pci: Some(controller.address.clone()),
    }
}

fn generic_name(vendor: u16, device: u16) -> String {
    let maker = match vendor {
        AMD => "AMD",
        NVIDIA => "NVIDIA",
        INTEL => "Intel",
        _ => "unknown",
    };
    format!("{maker} GPU {device:04x}")
}

/// NVIDIA's name for its card: `Model: NVIDIA GeForce RTX 4090`.
fn nvidia_name(system: &System, address: &str) -> Option<String> {
    let text = system.text(Path::new("/proc/driver/nvidia/gpus").join(address).join("information"), SMALL).ok()?;
    let model = text.lines().find_map(|line| line.strip_prefix("Model:"))?.trim();
    (!model.is_empty()).then(|| model.chars().take(80).collect())
}

fn memory(system: &System, address: &str) -> Option<u64> {
    system.line(Path::new(PCI_DEVICES).join(address).join("mem_info_vram_total"))?.parse().ok()
}

/// The largest bank of local memory that KFD lists for a node.
fn largest_bank(system: &System, node: u32) -> Option<MemoryBank> {
    let banks = Path::new(KFD_NODES).join(node.to_string()).join("mem_banks");
    system
        .entries(&banks)
        .into_iter()
        .take(16)
        .filter_map(|bank| parse_memory_bank(&system.text(banks.join(bank).join("properties"), SMALL).ok()?))
        .max_by_key(|bank| bank.bytes)
}

fn driver(system: &System, address: &str) -> Option<String> {
    let link = PathBuf::from(PCI_DEVICES).join(address).join("driver");
    let uevent = system.text(Path::new(PCI_DEVICES).join(address).join("uevent"), SMALL).ok();
    let named = uevent.as_deref().and_then(|text| text.lines().find_map(|line| line.strip_prefix("DRIVER=")));
    named.map(str::to_owned).or_else(|| {
        // Resolved below the PCI folder itself, so that the name at the end of the link is what remains.
        let target = system.resolve_on_machine(&link).ok()?;
        let name = target.file_name()?.to_str()?;
        (name != "driver").then(|| name.to_owned())
    })
}

fn render_node(system: &System, address: &str) -> Option<String> {
    let names = system.entries(Path::new(PCI_DEVICES).join(address).join("drm"));
    let name = names.into_iter().find(|name| name.starts_with("renderD"))?;
    system.record(&Path::new(PCI_DEVICES).join(address).join("drm").join(&name), Vec::new());
    Some(format!("/dev/dri/{name}"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn kfd_properties_of_a_5600_xt() {
        let text = "cpu_cores_count 0\nsimd_count 72\nsimd_per_cu 2\ngfx_target_version 100100\nvendor_id 4098\n\
                    device_id 29471\nlocation_id 768\ndomain 0\ndrm_render_minor 128\n";
        let node = parse_kfd_properties(text).unwrap();
        assert_eq!((node.vendor_id, node.device_id, node.compute_units()), (0x1002, 0x731f, 36));
        assert_eq!(node.pci(), "0000:03:00.0");
    }

    #[test]
    fn memory_banks_of_cards() {
        let bank = |width: u64, clock: u64| {
            parse_memory_bank(&format!("heap_type 1\nsize_in_bytes 64\nflags 0\nwidth {width}\nmem_clk_max {clock}\n"))
        };
        let bandwidth = |width, clock, version| bank(width, clock).unwrap().bandwidth(version);
        // RX 5600 XT with 12 Gbit/s memory, RX 5700 XT, Radeon Pro 5600M (HBM2): the vendor's figures.
        assert_eq!(bandwidth(192, 750, 100_100), Some(288_000_000_000));
        assert_eq!(bandwidth(256, 875, 100_100), Some(448_000_000_000));
        assert_eq!(bandwidth(2048, 770, 100_101), Some(394_240_000_000));
        assert_eq!(bandwidth(256, 2000, 80_003), None, "GDDR5");
        assert_eq!(bandwidth(192, 0, 100_100), None);
        assert_eq!(bandwidth(u64::MAX, u64::MAX, 100_100), None);
        assert_eq!(parse_memory_bank("heap_type 0\nsize_in_bytes 64\n"), None, "the host's memory");
    }

    #[test]
    fn a_processor_is_not_a_gpu() {
        assert_eq!(parse_kfd_properties("cpu_cores_count 16\nsimd_count 0\nvendor_id 4098\n"), None);
    }

    proptest! {
        #[test]
        fn parsers_take_anything(text in ".{0,300}", numbers in proptest::collection::vec(any::<u64>(), 8)) {
            let _ = (parse_kfd_properties(&text), parse_memory_bank(&text));
            let _ = parse_hexadecimal(&text);
            let _ = chips::gfx_of_override(&text);
            let names = ["simd_count", "simd_per_cu", "vendor_id", "device_id", "gfx_target_version", "location_id",
                "domain", "drm_render_minor"];
            let text: String = names.iter().zip(&numbers).map(|(name, number)| format!("{name} {number}\n")).collect();
            if let Some(node) = parse_kfd_properties(&text) {
                let _ = (node.pci(), node.compute_units(), chips::gfx_name(node.target_version));
            }
        }
    }
}
