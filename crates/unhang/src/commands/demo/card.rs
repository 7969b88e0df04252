//! AMD's own HIP runtime on the emulated card: one program run natively, with another chip reported, and with the
//! shield.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use unhang_gpu::driver::{Driver, HipChip, VendorDriver};
use unhang_probe::{Child, Ended, supervise};

use super::super::run::shield;
use super::super::text::wrapped;
use crate::output::{Colour, Style, printable};

/// On a busy machine, each takes seconds.
const DEADLINE: Duration = Duration::from_secs(60);
const SPOOF: (&str, &str) = ("HSA_OVERRIDE_GFX_VERSION", "10.3.0");
/// The program's output on success.
const FILLED: &str = "64 KiB were allocated and filled";

/// The program: it has HIP allocate memory and fill it, which HIP does with its own kernel.
pub(super) fn program() -> anyhow::Result<()> {
    let is_spoofed = std::env::var_os(SPOOF.0).is_some();
    let chip = HipChip {
        reported_architecture: if is_spoofed { "gfx1030" } else { "gfx1010" }.to_owned(),
        true_architecture: "gfx1010".to_owned(),
        compute_units: 0,
        clock_mhz: 0,
        bandwidth: 0,
    };
    let device = VendorDriver::hip(0, &chip)?;
    let name = device.description().name.clone();
    // It is freed with the process.
    device.allocate(64 << 10)?;
    device.synchronize(0)?;
    writeln!(std::io::stdout(), "{FILLED} on {name} by {}", device.description().driver)?;
    Ok(())
}

/// Runs it three times and shows the outcomes.
pub(super) fn show(style: Style) -> anyhow::Result<String> {
    let program = std::env::current_exe().context("cannot find this program to start it as a child")?;
    let find = |library| shield::find(library, None, Some(&program));
    let (Some(_), Some(shield)) = (find("libunhang_card.so"), find("libunhang_shield.so")) else {
        return Ok(
            "Left out: the libraries of the emulated card and of the shield are not next to the program.\n".to_owned()
        );
    };
    let tools = shield.display().to_string();
    let mut text = String::from("A program that has HIP allocate memory and fill it (unhang card run -- …):\n\n");
    for (title, variables) in [
        ("native", &[][..]),
        ("spoofed as gfx1030", &[SPOOF][..]),
        ("spoofed, with the shield", &[SPOOF, ("HSA_TOOLS_LIB", tools.as_str())][..]),
    ] {
        let Some(lines) = run(&program, variables)? else {
            return Ok("Left out: the HIP runtime does not start here.\n".to_owned());
        };
        writeln!(text, "  {}", style.paint(title, Colour::Cyan))?;
        for line in lines {
            writeln!(text, "{}", wrapped(&printable(&line), 4, 6))?;
        }
    }
    let end =
        "HIP's fill kernel is AMD's own code, loaded and launched by AMD's own runtime; only the card is emulated.";
    text += &format!("\n{}\n", wrapped(end, 0, 0));
    Ok(text)
}

/// The output of the program and the card; `None` without HIP.
fn run(program: &Path, variables: &[(&str, &str)]) -> anyhow::Result<Option<Vec<String>>> {
    let program = program.display().to_string();
    let command = [&program, "card", "run", "--", &program, "demo", "--card-program"].map(str::to_owned).to_vec();
    let environment = variables.iter().map(|(name, value)| ((*name).to_owned(), Some((*value).to_owned()))).collect();
    let outcome = supervise(&Child { command, environment, deadline: DEADLINE })?;
    if outcome.output.contains("was not found") || outcome.output.contains("cannot open shared object") {
        return Ok(None);
    }
    // The first line of ROCr's own report says what it is about; addresses follow.
    let is_told = |line: &&str| {
        ["unhang card: ", FILLED, "Memory access fault", "error"].iter().any(|start| line.starts_with(start))
    };
    let mut lines: Vec<String> = outcome.output.lines().filter(is_told).map(str::to_owned).collect();
    lines.push(match outcome.ended {
        Ended::Exited(0) => "it succeeded".to_owned(),
        Ended::Exited(code) => format!("it ended with code {code}"),
        Ended::Signalled(signal) => format!("it was ended by signal {signal}"),
        Ended::TimedOut | Ended::Unkillable => "it did not end in time".to_owned(),
    });
    Ok(Some(lines))
}
