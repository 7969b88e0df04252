//! What management tools (rocm-smi, amd-smi) read about a card, for a machine with an emulated card.
//!
//! The kernel shows it under `/sys/class/drm`, in the device's folder and in its `hwmon`. An emulated card has no sensors: the
//! files hold what an idle card of the kind shows, and never change. Sizes and clocks are those of the fixture.

use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;

/// The first render node's number.
const FIRST_RENDER_NODE: u32 = 128;

/// The files that do not depend on the card, with their contents.
const DEVICE: [(&str, &str); 17] = [
    ("numa_node", "-1"),
    ("current_link_width", "16"),
    ("max_link_width", "16"),
    ("current_link_speed", "16.0 GT/s PCIe"),
    ("max_link_speed", "16.0 GT/s PCIe"),
    ("gpu_busy_percent", "0"),
    ("mem_busy_percent", "0"),
    ("mem_info_vram_used", "0"),
    ("mem_info_vis_vram_used", "0"),
    ("mem_info_gtt_total", "8589934592"),
    ("mem_info_gtt_used", "0"),
    ("pp_dpm_pcie", "0: 2.5GT/s, x16 \n1: 16.0GT/s, x16 *"),
    ("power_dpm_force_performance_level", "auto"),
    ("power_state", "D0"),
    ("subsystem_vendor", "0x1002"),
    ("subsystem_device", "0x0000"),
    ("vbios_version", "emulated"),
];
const SENSORS: [(&str, &str); 18] = [
    ("name", "amdgpu"),
    ("temp1_label", "edge"),
    ("temp1_input", "40000"),
    ("temp1_crit", "100000"),
    ("temp2_label", "junction"),
    ("temp2_input", "40000"),
    ("temp3_label", "mem"),
    ("temp3_input", "40000"),
    ("power1_average", "10000000"),
    ("power1_cap", "180000000"),
    ("power1_cap_default", "180000000"),
    ("power1_cap_max", "180000000"),
    ("power1_cap_min", "0"),
    ("fan1_input", "0"),
    ("fan1_max", "3200"),
    ("pwm1", "0"),
    ("pwm1_max", "255"),
    ("in0_input", "775"),
];

/// Adds the files to a machine folder, for every card that has a render node in it.
pub(crate) fn write(folder: &Path) -> io::Result<()> {
    for entry in std::fs::read_dir(folder.join("sys/bus/pci/devices"))? {
        let device = entry?.path();
        let Ok(nodes) = std::fs::read_dir(device.join("drm")) else { continue };
        let names: Vec<_> = nodes.filter_map(|node| node.ok()?.file_name().into_string().ok()).collect();
        for number in names.iter().filter_map(|name| name.strip_prefix("renderD")?.parse::<u32>().ok()) {
            write_card(folder, &device, number)?;
        }
    }
    Ok(())
}

fn write_card(folder: &Path, device: &Path, render_node: u32) -> io::Result<()> {
    let index = render_node.saturating_sub(FIRST_RENDER_NODE);
    let address = device.file_name().unwrap_or_default();
    let card = format!("card{index}");
    std::fs::create_dir_all(device.join("drm").join(&card))?;
    for name in [card, format!("renderD{render_node}")] {
        let class = folder.join("sys/class/drm").join(name);
        std::fs::create_dir_all(&class)?;
        symlink(Path::new("../../../bus/pci/devices").join(address), class.join("device"))?;
    }
    let put = |name: &str, text: &str| {
        let path = device.join(name);
        // A fixture's own files are from a real machine.
        if path.exists() { Ok(()) } else { std::fs::write(path, format!("{text}\n")) }
    };
    DEVICE.iter().try_for_each(|(name, text)| put(name, text))?;
    let memory = std::fs::read_to_string(device.join("mem_info_vram_total")).unwrap_or_default();
    put("mem_info_vis_vram_total", memory.trim())?;
    let (engine, memory) = clocks(folder, render_node);
    for (name, most) in
        [("pp_dpm_sclk", engine), ("pp_dpm_mclk", memory), ("pp_dpm_socclk", 1267), ("pp_dpm_fclk", 1267)]
    {
        put(name, &format!("0: 100Mhz *\n1: {most}Mhz "))?;
    }
    let sensors = device.join("hwmon").join(format!("hwmon{index}"));
    std::fs::create_dir_all(&sensors)?;
    SENSORS.iter().try_for_each(|(name, text)| std::fs::write(sensors.join(name), format!("{text}\n")))
}

/// The highest clocks of engine and memory, in MHz, as the topology has them.
fn clocks(folder: &Path, render_node: u32) -> (u64, u64) {
    let nodes = folder.join("sys/class/kfd/kfd/topology/nodes");
    let value = |text: &str, name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.and_then(|value| value.trim().parse::<u64>().ok())
    };
    let read = |path: &Path| std::fs::read_to_string(path).unwrap_or_default();
    for node in (0..).map(|number: u32| nodes.join(number.to_string())).take_while(|path| path.is_dir()) {
        let properties = read(&node.join("properties"));
        if value(&properties, "drm_render_minor") == Some(u64::from(render_node)) {
            let bank = read(&node.join("mem_banks/0/properties"));
            let engine = value(&properties, "max_engine_clk_fcompute").unwrap_or(0);
            return (engine, value(&bank, "mem_clk_max").unwrap_or(0));
        }
    }
    (0, 0)
}

#[cfg(test)]
mod tests {
    #[test]
    fn tools_find_each_card_by_its_class_and_its_device() {
        let folder = tempfile::tempdir().unwrap();
        crate::cards::named("two-cards").unwrap().write(folder.path()).unwrap();
        let class = folder.path().join("sys/class/drm");
        for (card, render) in [("card0", "renderD128"), ("card1", "renderD129")] {
            // By either name they come to the same device, whose address is the link's last part.
            let [first, second] =
                [card, render].map(|name| std::fs::read_link(class.join(name).join("device")).unwrap());
            assert_eq!(first, second);
            assert!(first.file_name().unwrap().to_str().unwrap().starts_with("0000:"));
            let device = class.join(render).join("device");
            assert!(device.join("drm").join(card).is_dir() && device.join("drm").join(render).is_dir());
            let read = |name: &str| std::fs::read_to_string(device.join(name)).unwrap();
            assert_eq!(read("mem_info_vis_vram_total"), read("mem_info_vram_total"));
            assert!(!read("pp_dpm_sclk").contains(" 0Mhz"), "{}", read("pp_dpm_sclk"));
            let sensors: Vec<_> = std::fs::read_dir(device.join("hwmon")).unwrap().collect();
            assert_eq!(sensors.len(), 1);
        }
    }
}
