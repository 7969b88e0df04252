//! Compares the choice that the model makes with the best that is known: how much is lost by not measuring.
//!
//! `cargo run -p unhang-gpu --example compare_choices -- FILE`, with the file of `gpu_bench.py bench --json` (measured on an H200) or
//! of `unhang kernels list --predict --json --candidates 8 --layers TABLE` (predicted for an RX 5600 XT).

use std::collections::BTreeMap;

use serde_json::Value;
use unhang_conv::{Direction, Problem};
use unhang_gpu::choice::Choice;
use unhang_gpu::model::{DeviceModel, estimate};
use unhang_gpu::plan::LaunchPlan;

/// What is known of one problem: a layer's name, the milliseconds of some choices, and those of cuDNN.
#[derive(Default)]
struct Known {
    layer: String,
    choices: Vec<(Choice, f64)>,
    cudnn: Option<f64>,
}

fn measured(data: &Value, known: &mut BTreeMap<String, Known>) {
    for row in data["rows"].as_array().into_iter().flatten() {
        let entry = known.entry(text(&row["key"])).or_default();
        entry.layer = text(&row["layer"]);
        entry.cudnn = row["cudnn_us"].as_f64().map(|us| us / 1e3);
        for (name, value) in row["ours"].as_object().into_iter().flatten() {
            let (Ok(choice), Some(us)) = (name.parse(), value["us"].as_f64()) else { continue };
            entry.choices.push((choice, us / 1e3));
        }
    }
}

fn predicted(data: &Value, known: &mut BTreeMap<String, Known>) {
    for row in data["predictions"].as_array().into_iter().flatten() {
        let entry = known.entry(text(&row["problem"])).or_default();
        entry.layer = text(&row["layer"]);
        let (Ok(choice), Some(ms)) = (text(&row["choice"]).parse(), row["cards"][0]["milliseconds"].as_f64()) else {
            continue;
        };
        entry.choices.push((choice, ms));
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn main() {
    let file =
        std::env::args().nth(1).expect("a file of gpu_bench.py bench --json, or of kernels list --predict --json");
    let content = std::fs::read_to_string(&file).expect("the file reads");
    let data: Value = serde_json::from_str(&content).expect("the file is JSON");
    let mut known = BTreeMap::new();
    measured(&data, &mut known);
    predicted(&data, &mut known);
    let device = if data["predictions"].is_array() { DeviceModel::rx_5600_xt() } else { DeviceModel::h200() };
    for direction in Direction::ALL {
        compare(direction, &known, &device);
    }
}

fn compare(direction: Direction, known: &BTreeMap<String, Known>, device: &DeviceModel) {
    let (mut lost, mut against, mut count) = (0.0, 0.0, 0);
    for (key, known) in known {
        let problem: Problem = key.parse().expect("a problem's key");
        if problem.direction() != direction {
            continue;
        }
        let mut rows: Vec<(f64, f64, Choice)> = Vec::new();
        for &(choice, milliseconds) in &known.choices {
            let Ok(plan) = LaunchPlan::new(&problem, &choice) else { continue };
            rows.push((estimate(&problem, &choice, &plan, device) * 1e3, milliseconds, choice));
        }
        let Some(picked) = rows.iter().min_by(|a, b| a.0.total_cmp(&b.0)) else { continue };
        let Some(best) = rows.iter().min_by(|a, b| a.1.total_cmp(&b.1)) else { continue };
        lost += (picked.1 / best.1).ln();
        against += known.cudnn.map_or(f64::NAN, |cudnn| (cudnn / picked.1).ln());
        count += 1;
        if std::env::args().nth(2).is_some() {
            for (model, truth, choice) in &rows {
                println!(
                    "{direction} {} {choice} model {model:.4} known {truth:.4} ratio {:.2}",
                    known.layer,
                    model / truth
                );
            }
        }
        if picked.1 > best.1 * 1.1 {
            println!(
                "{:10} {:20} picked {} {:.3} ms (model {:.3}), best {} {:.3} (model {:.3})",
                direction.name(),
                known.layer,
                picked.2,
                picked.1,
                picked.0,
                best.2,
                best.1,
                best.0
            );
        }
    }
    let mean = |sum: f64| (sum / f64::from(count.max(1))).exp();
    let cudnn = if against.is_nan() { String::new() } else { format!("; {:.3} times cuDNN", mean(against)) };
    println!("{direction}: picks cost {:.3} of the best known{cudnn}", mean(lost));
}
