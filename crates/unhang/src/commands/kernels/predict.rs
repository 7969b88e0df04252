//! `unhang kernels list --predict`: predicts our kernels' times on RDNA1 cards from their own instructions.

use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use serde::Serialize;
use unhang_gpu::catalogue::Selection;
use unhang_gpu::compiler::Compiler;
use unhang_gpu::predict::{self, Launch, Objects};
use unhang_model::{CARDS, Card, Figure, Prediction};

use crate::commands::text::{counted, entry, print_text, wrapped};
use crate::output::{self, Progress};

/// The cards to predict: the most common ones.
const PREDICTED: [Card; 2] = [CARDS[0], CARDS[1]];

#[derive(Serialize)]
struct Report {
    ground: &'static str,
    compiler: String,
    cards: Vec<CardReport>,
    figures: Vec<FigureReport>,
    predictions: Vec<Row>,
}

#[derive(Serialize)]
struct CardReport {
    name: &'static str,
    compute_units: u32,
    clock_hertz: f64,
    bytes_per_second: f64,
    l2_bytes: u64,
    source: &'static str,
}

#[derive(Serialize)]
struct FigureReport {
    name: &'static str,
    value: f64,
    ground: &'static str,
    source: &'static str,
}

#[derive(Serialize)]
struct Row {
    family: &'static str,
    direction: String,
    layer: String,
    problem: String,
    choice: String,
    /// The estimate for an RX 5600 XT of the model that chooses kernels.
    estimated_milliseconds: f64,
    cards: Vec<Total>,
    launches: Vec<LaunchReport>,
}

/// A plan on a card, with all of its launches.
#[derive(Serialize)]
struct Total {
    card: &'static str,
    milliseconds: f64,
    /// Operations per second by the convolution's definition, as a share of the card's peak. Winograd's do fewer.
    share_of_peak: f64,
    /// The bound of the longest launch.
    bound: String,
    waves_per_simd: u32,
}

#[derive(Serialize)]
struct LaunchReport {
    kernel: String,
    predictions: Vec<Prediction>,
}

/// Predicts each selection, on all cores, and prints the results.
pub(super) fn list(selections: &[Selection], compiler: &dyn Compiler, json: bool) -> anyhow::Result<ExitCode> {
    let rows = rows(selections, compiler)?;
    if json {
        output::print_json(&report(rows, compiler.version()))?;
    } else {
        print(&rows, &compiler.version())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn rows(selections: &[Selection], compiler: &dyn Compiler) -> anyhow::Result<Vec<Row>> {
    let progress = Progress::new("predicting:");
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let found: Mutex<Vec<(usize, anyhow::Result<Row>)>> = Mutex::default();
    let work = || {
        while let Some((at, selection)) = {
            let at = next.fetch_add(1, Ordering::Relaxed);
            selections.get(at).map(|selection| (at, selection))
        } {
            let row = row(selection, compiler);
            found.lock().unwrap_or_else(PoisonError::into_inner).push((at, row));
            progress.at(done.fetch_add(1, Ordering::Relaxed) + 1, selections.len());
        }
    };
    let workers = std::thread::available_parallelism().map_or(1, usize::from).min(selections.len().max(1));
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(work);
        }
    });
    let mut found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    found.sort_by_key(|(at, _)| *at);
    found.into_iter().map(|(_, row)| row).collect()
}

fn row(selection: &Selection, compiler: &dyn Compiler) -> anyhow::Result<Row> {
    let Selection { layer, problem, candidate } = selection;
    let objects = Objects { compiler, cache: None };
    let launches = predict::predict(problem, &candidate.plan, &objects, &PREDICTED)?;
    let cards = PREDICTED.iter().enumerate().map(|(place, card)| total(&launches, place, card, problem.flops()));
    Ok(Row {
        family: candidate.choice.family(),
        direction: problem.direction().to_string(),
        layer: layer.clone(),
        problem: problem.to_string(),
        choice: candidate.choice.to_string(),
        estimated_milliseconds: (candidate.seconds * 1e6).round() / 1e3,
        cards: cards.collect(),
        launches: launches
            .into_iter()
            .map(|Launch { kernel, predictions }| LaunchReport { kernel, predictions })
            .collect(),
    })
}

fn total(launches: &[Launch], place: usize, card: &Card, operations: f64) -> Total {
    let seconds = predict::seconds(launches, place);
    let longest = launches
        .iter()
        .map(|launch| &launch.predictions[place])
        .max_by(|one, other| one.seconds.total_cmp(&other.seconds));
    Total {
        card: card.name,
        milliseconds: (seconds * 1e6).round() / 1e3,
        share_of_peak: (operations / seconds / card.flops() * 1e3).round() / 1e3,
        bound: longest.map_or_else(String::new, |longest| longest.bound.to_string()),
        waves_per_simd: longest.map_or(0, |longest| longest.waves_per_simd),
    }
}

const GROUND: &str =
    "predicted from the instructions that the kernels execute; not measured: nobody here has the cards";

fn report(predictions: Vec<Row>, compiler: String) -> Report {
    let cards = PREDICTED.iter().map(|card| CardReport {
        name: card.name,
        compute_units: card.compute_units,
        clock_hertz: card.clock,
        bytes_per_second: card.bandwidth,
        l2_bytes: card.l2_bytes,
        source: card.source,
    });
    let figures = Figure::all().iter().map(|figure| FigureReport {
        name: figure.name,
        value: figure.value,
        ground: figure.ground.name(),
        source: figure.source,
    });
    Report { ground: GROUND, compiler, cards: cards.collect(), figures: figures.collect(), predictions }
}

fn print(rows: &[Row], compiler: &str) -> anyhow::Result<()> {
    let line = |row: &Row| {
        let of_card = |card: &Total| {
            format!(
                "{} {:.3} ms ({:.0} % of peak, bound by {}, {} waves a SIMD)",
                card.card,
                card.milliseconds,
                card.share_of_peak * 100.0,
                card.bound,
                card.waves_per_simd
            )
        };
        let mut facts: Vec<String> = row.cards.iter().map(of_card).collect();
        facts.push(format!("chosen by {:.3} ms", row.estimated_milliseconds));
        let facts: Vec<&str> = facts.iter().map(String::as_str).collect();
        entry(&format!("{} {}: {} ({})", row.layer, row.direction, row.choice, row.family), &facts, "")
    };
    let heading = format!(
        "{GROUND}. Chosen by: what the model by which kernels are chosen says of an RX 5600 XT. Of peak: operations of the \
         convolution's definition; Winograd's kernels do fewer."
    );
    let lines: String = rows.iter().map(line).collect();
    let sum = wrapped(&format!("{}; {compiler}", counted(rows.len(), "prediction")), 0, 2);
    print_text(&format!("{}\n\n{lines}\n{sum}\n", wrapped(&heading, 0, 0)))
}
