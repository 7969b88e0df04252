//! `unhang kernels list --shipped`: the general kernels that come with the package.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::anyhow;
use serde::Serialize;
use unhang_gpu::shipped::{Shipped, ShippedObject};

use crate::commands::{run, text};
use crate::output::{self, FOUND_ERRORS};

#[derive(Serialize)]
struct Line<'a> {
    #[serde(flatten)]
    entry: &'a ShippedObject,
    intact: bool,
}

/// Prints every object, and checks its bytes against the list.
pub(super) fn list(folder: Option<PathBuf>, json: bool) -> anyhow::Result<ExitCode> {
    const HINT: &str = "hint: name their folder with --folder (python/unhang/kernels in a source tree), or install a wheel that \
                        was built with clang 15";
    let is_named = folder.is_some();
    let folder = folder.or_else(find).ok_or_else(|| {
        let missing =
            "no kernels were found next to this program or in its package; every kernel is compiled at run time";
        anyhow!(HINT).context(missing)
    })?;
    let hint = if is_named { HINT } else { "hint: reinstall the package" };
    let shipped = Shipped::open(&folder).map_err(|error| anyhow!(error).context(hint))?;
    let lines: Vec<Line<'_>> =
        shipped.entries().iter().map(|entry| Line { entry, intact: shipped.read(entry).is_ok() }).collect();
    let changed = lines.iter().filter(|line| !line.intact).count();
    if json {
        let compiler = shipped.compiler();
        output::print_json(&serde_json::json!({ "folder": folder, "compiler": compiler, "objects": lines }))?;
    } else {
        print(&shipped, &lines, changed)?;
    }
    Ok(if changed > 0 { ExitCode::from(FOUND_ERRORS) } else { ExitCode::SUCCESS })
}

/// In the package that contains this program, or in the checkout where it was built.
fn find() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?;
    let folder = program.parent()?;
    let checkout = folder.join("../../python/unhang");
    let packages = run::shield::packages(folder).into_iter().chain([checkout]);
    packages.map(|package| package.join("kernels")).find(|kernels| kernels.join("kernels.json").is_file())
}

fn print(shipped: &Shipped, lines: &[Line<'_>], changed: usize) -> anyhow::Result<()> {
    let shown = |Line { entry, intact }: &Line<'_>| {
        let facts = [
            entry.chips.join(" "),
            format!("{} bytes", entry.bytes),
            format!("{} VGPRs", entry.vgprs),
            format!("{} bytes of LDS", entry.lds_bytes),
            format!("{} waves a SIMD", entry.waves_per_simd),
            format!("emulated on {}", text::counted(entry.emulated, "problem")),
            if *intact { String::new() } else { "DIFFERS from the list and is not loaded".to_owned() },
        ];
        text::entry(&entry.name, &facts.each_ref().map(String::as_str), &entry.sha256)
    };
    let list: String = lines.iter().map(shown).collect();
    let packed: u64 = lines.iter().map(|line| line.entry.packed_bytes).sum();
    let sum = format!(
        "{}, {packed} bytes packed, {changed} not what was listed; compiled by {}",
        text::counted(lines.len(), "object"),
        shipped.compiler()
    );
    text::print_text(&format!("{list}\n{}\n", text::wrapped(&sum, 0, 2)))
}
