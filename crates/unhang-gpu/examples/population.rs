//! What the model that chooses kernels says of many layers on RDNA1 cards: estimates, nothing is compiled, run or measured.
//!
//! `cargo run --release -p unhang-gpu --features emulated --example population -- tools/gpu-bench/population.tsv [COUNT]` prints the predicted share of
//! the peak, what bounds the layers, and the COUNT worst (50). It also prints how long torch's own kernels would take
//! at the least. With `networks` at the end the file is one of networks (`tools/gpu-bench/networks.tsv`), whose
//! convolutions are summed up in f32 and f16.

use std::collections::BTreeMap;
use std::fmt::Write;

use unhang_conv::{DataType, Direction, Problem};
use unhang_gpu::candidates::candidates;
use unhang_gpu::model::{DeviceModel, estimate};
use unhang_model::{CARDS, Card};

/// The workspace that a card of 6 GB gives.
const WORKSPACE_LIMIT: u64 = 384 << 20;
/// A resource bounds a layer if it takes this share of its time at least.
const BOUND: f64 = 0.3;

/// A line of the file: where the layer is from, how many have it, and its key.
struct Row {
    network: String,
    count: f64,
    problem: Problem,
}

/// A layer in one direction, as it would be computed.
struct Estimate {
    problem: Problem,
    choice: String,
    seconds: f64,
    share_of_peak: f64,
    bound: &'static str,
    /// What torch's own kernels would take at the least.
    aten: f64,
}

fn main() {
    let mut words = std::env::args().skip(1);
    let file = words.next().expect("a file of layers: network, count, key");
    let rows = rows(&std::fs::read_to_string(&file).expect("the file reads"));
    let last = words.next();
    for card in &CARDS[..2] {
        if last.as_deref() == Some("networks") {
            print!("{}", of_networks(card, &rows));
        } else {
            let worst = last.as_ref().map_or(50, |count| count.parse().expect("how many of the worst layers to list"));
            print!("{}", of_population(card, &rows, worst));
        }
    }
}

fn rows(text: &str) -> Vec<Row> {
    let row = |line: &str| {
        let mut words = line.split('\t');
        let mut word = || words.next().expect("three columns").to_owned();
        let (network, count, key) = (word(), word(), word());
        Row { network, count: count.parse().expect("a count"), problem: key.parse().expect("a problem's key") }
    };
    text.lines().map(row).collect()
}

fn device(card: &Card) -> DeviceModel {
    DeviceModel {
        compute_units: card.compute_units as usize,
        flops: card.flops(),
        bandwidth: card.bandwidth,
        cache: card.l2_bytes as f64,
        ..DeviceModel::rx_5600_xt()
    }
}

fn estimated(problem: &Problem, device: &DeviceModel) -> Estimate {
    let found = candidates(problem, device, WORKSPACE_LIMIT).into_iter().next();
    let found = found.expect("the plain kernels compute everything");
    let on = |device: &DeviceModel| estimate(problem, &found.choice, &found.plan, device);
    let seconds = on(device);
    let without = [
        ("arithmetic", DeviceModel { flops: device.flops * 1e3, ..device.clone() }),
        ("memory", DeviceModel { bandwidth: device.bandwidth * 1e3, ..device.clone() }),
        ("launches", DeviceModel { launch: device.launch / 1e3, ..device.clone() }),
    ];
    // What takes most of the time, if anything does: the rest waits.
    let spared = without.map(|(name, faster)| (name, 1.0 - on(&faster) / seconds));
    let most = spared.into_iter().max_by(|one, other| one.1.total_cmp(&other.1)).filter(|most| most.1 >= BOUND);
    Estimate {
        problem: problem.clone(),
        choice: found.choice.to_string(),
        seconds,
        share_of_peak: problem.flops() / seconds / device.flops,
        bound: most.map_or("waits", |most| most.0),
        aten: least_of_aten(problem, device),
    }
}

/// Seconds that torch's own kernels would take at the least: image by image the windows are copied into columns, unless the filter
/// is 1×1. A product of matrices at the rate of our best tile follows (or, toward the image, precedes). Depthwise
/// kernels are taken to be bound by memory alone.
fn least_of_aten(problem: &Problem, device: &DeviceModel) -> f64 {
    let lowered = problem.lower().problem;
    let size = lowered.data_type().size() as f64;
    let elements: f64 = lowered.operand_shapes().iter().map(|it| it.iter().map(|&n| n as f64).product::<f64>()).sum();
    let moved = elements * size / device.bandwidth;
    if lowered.is_depthwise() {
        return device.launch + moved;
    }
    let images = (lowered.batch() * lowered.groups()) as f64;
    let pixels = lowered.out_size().into_iter().product::<usize>() as f64;
    let taps = lowered.kernel().into_iter().product::<usize>();
    let reduced = lowered.in_channels() as f64 / lowered.groups() as f64 * taps as f64;
    let has_columns = taps > 1 || lowered.stride() != [1, 1] || lowered.padding() != [0, 0];
    let columns = if has_columns { device.launch + reduced * pixels * size / device.bandwidth } else { 0.0 };
    let product = lowered.flops() / images / (device.flops * device.efficiency);
    (images * (columns + device.launch + product)).max(moved)
}

fn of_population(card: &Card, rows: &[Row], worst: usize) -> String {
    let device = device(card);
    let mut text = format!("# {}: estimates of the model that chooses kernels, not measured\n\n", card.name);
    text += "| direction | layers | of peak, of all time | median | below a tenth | bounds | aten's least, times ours | \
             aten ahead |\n|---|---:|---:|---:|---:|---|---:|---:|\n";
    let mut all = Vec::new();
    for direction in Direction::ALL {
        let of_direction: Vec<Estimate> =
            rows.iter().map(|row| estimated(&row.problem.with_direction(direction), &device)).collect();
        line(&mut text, direction, &of_direction, &device);
        all.extend(of_direction);
    }
    let ahead: Vec<&Estimate> = all.iter().filter(|it| it.aten < it.seconds).collect();
    text += &list("aten's least is ahead in", &ahead, worst, |it| it.aten / it.seconds);
    text += &list("Least share of the peak, of", &all.iter().collect::<Vec<_>>(), worst, |it| it.share_of_peak);
    text
}

fn line(text: &mut String, direction: Direction, layers: &[Estimate], device: &DeviceModel) {
    let sum = |of: &dyn Fn(&Estimate) -> f64| layers.iter().map(of).sum::<f64>();
    let count = layers.len() as f64;
    let mut shares: Vec<f64> = layers.iter().map(|it| it.share_of_peak).collect();
    shares.sort_by(f64::total_cmp);
    let mut bounds: BTreeMap<&str, usize> = BTreeMap::new();
    layers.iter().for_each(|it| *bounds.entry(it.bound).or_default() += 1);
    let bounds: Vec<String> =
        bounds.iter().map(|(bound, &layers)| format!("{bound} {:.0} %", 100.0 * layers as f64 / count)).collect();
    let _ = writeln!(
        text,
        "| {direction} | {count} | {:.0} % | {:.0} % | {:.0} % | {} | {:.2} | {:.1} % |",
        100.0 * sum(&|it| it.problem.flops()) / device.flops / sum(&|it| it.seconds),
        100.0 * shares[shares.len() / 2],
        100.0 * shares.partition_point(|&share| share < 0.1) as f64 / count,
        bounds.join(", "),
        (sum(&|it| (it.aten / it.seconds).ln()) / count).exp(),
        100.0 * sum(&|it| f64::from(it.aten < it.seconds)) / count,
    );
}

/// The layers that rank lowest.
fn list(title: &str, layers: &[&Estimate], most: usize, rank: impl Fn(&Estimate) -> f64) -> String {
    let mut sorted = layers.to_vec();
    sorted.sort_by(|one, other| rank(one).total_cmp(&rank(other)));
    let mut text =
        format!("\n{title} {} layers\n\n| layer | ms | of peak | choice | bound | aten's least, ms |\n", layers.len());
    text += "|---|---:|---:|---|---|---:|\n";
    for it in sorted.into_iter().take(most) {
        let _ = writeln!(
            text,
            "| `{}` | {:.3} | {:.1} % | {} | {} | {:.3} |",
            it.problem,
            it.seconds * 1e3,
            it.share_of_peak * 100.0,
            it.choice,
            it.bound,
            it.aten * 1e3
        );
    }
    text
}

/// Milliseconds of the convolutions of each network, in both types.
fn of_networks(card: &Card, rows: &[Row]) -> String {
    let device = device(card);
    let mut text = format!("# {}: estimates of the model that chooses kernels, not measured, ms\n\n", card.name);
    text += "| network, type | forward | backward-data | backward-weights | all |\n|---|---:|---:|---:|---:|\n";
    let mut names: Vec<&str> = rows.iter().map(|row| row.network.as_str()).collect();
    names.dedup();
    for name in names {
        for data_type in [DataType::F32, DataType::F16] {
            let seconds = Direction::ALL.map(|direction| {
                let of_network = rows.iter().filter(|row| row.network == name);
                let problem = |row: &Row| row.problem.with_data_type(data_type).with_direction(direction);
                of_network.map(|row| row.count * estimated(&problem(row), &device).seconds).sum::<f64>()
            });
            let [forward, data, weights] = seconds.map(|seconds| seconds * 1e3);
            let all = forward + data + weights;
            let _ = writeln!(text, "| {name}, {data_type} | {forward:.1} | {data:.1} | {weights:.1} | {all:.1} |");
        }
    }
    text
}
