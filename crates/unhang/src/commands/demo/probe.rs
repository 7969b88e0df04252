//! A rehearsed probe in the demo: children hang and are ended while the reader watches, and the resulting map.

use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::Context;
use unhang_conv::Problem;
use unhang_engine::{EngineName, Verdict};
use unhang_evidence::{Evidence, RecordSource, Store, time};
use unhang_plan::{Settings, Situation, plan};
use unhang_probe::rehearsal::Table;
use unhang_probe::{Attempt, Deadlines, ProbeEvent, Prober};
use unhang_report::Report;

use super::super::lasting_folder::LastingFolder;
use super::super::probe::children;
use super::super::text::{print_text, width, wrapped};
use crate::output::{Colour, Style, printable};

const CARD: &str = "rx5600xt-rocm5.7";
const MACHINE: &str = "demonstration";
const CHANNELS: [(usize, usize); 3] = [(3, 16), (16, 32), (32, 64)];
const SIZES: [usize; 3] = [32, 48, 64];

/// Probes nine convolutions of the reports on a played card, prints each verdict as it arrives, and draws the map.
pub(super) fn show(style: Style) -> anyhow::Result<String> {
    let folder = LastingFolder::for_work()?;
    let table = Table::named(CARD).context("the table of the card is missing")?;
    let launch = children::rehearsal(table, folder.path())?;
    let store = Store::open(&folder.path().join("home"));
    let mut attempts = Vec::new();
    for (channels, out) in CHANNELS {
        for size in SIZES {
            let problem: Problem =
                format!("forward:f32:nchw:1x{channels}x{size}x{size}:{out}x3x3:s1x1:p1x1:d1x1:g1").parse()?;
            attempts.push(Attempt { problem, engine: EngineName::Miopen, variant: String::new() });
        }
    }
    let began = Instant::now();
    let tell = |event: ProbeEvent<'_>| {
        let ProbeEvent::Ended(tried) = event else { return };
        let colour = if tried.verdict == Verdict::Works { Colour::Green } else { Colour::Red };
        let verdict = style.paint(&format!("{:6}", tried.verdict.name()), colour);
        let seconds = began.elapsed().as_secs_f64();
        let line = format!("  {seconds:4.1} s  {verdict} {}  {}\n", tried.attempt.problem, printable(&tried.detail));
        let _ = print_text(&line);
    };
    let prober = Prober {
        machine: MACHINE,
        source: RecordSource::Rehearsal,
        note: "",
        store: &store,
        deadlines: Deadlines {
            start: Duration::from_secs(30),
            compile: Duration::from_secs(1),
            run: Duration::from_secs(1),
            grace: Duration::from_secs(5),
        },
        workers: 2,
        reset: Duration::ZERO,
        canary: Some(launch.clone()),
        budget: None,
        launch: &|_| launch.clone(),
        observe: &tell,
        stop: &AtomicBool::new(false),
    };
    let probed = prober.run(attempts);
    let evidence = Evidence::load_rehearsal(&store, MACHINE);
    let mut situation = Situation::affected_accelerator();
    situation.spoofed = true;
    let report = Report::new("an RX 5600 XT with ROCm 5.7, played", &evidence, Vec::new(), |problem| {
        plan(problem, &Settings::default(), &situation, &evidence)
    });
    let hung = probed.tried.iter().filter(|tried| tried.verdict == Verdict::Hangs).count();
    let end = format!(
        "{hung} children hung, were killed after a second and replaced; all of it took {}. What the card does is a table \
         made of the reports, each line with its source (`unhang probe --grid --rehearse {CARD}` plays all of it).",
        time::duration(began.elapsed().as_secs_f64()),
    );
    Ok(format!("\n{}\n\n{}", wrapped(&end, 0, 0), report.to_text(width())))
}
