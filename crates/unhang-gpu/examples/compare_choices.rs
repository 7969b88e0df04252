//! Compares the choice that the model makes with the best that was measured: how much is lost by not measuring.
//!
//! `cargo run -p unhang-gpu --example compare_choices -- bench.json`, with the file of `gpu_bench.py bench --json`.

use unhang_conv::{Direction, Problem};
use unhang_gpu::choice::Choice;
use unhang_gpu::model::{DeviceModel, estimate};
use unhang_gpu::plan::LaunchPlan;

fn main() {
    let file = std::env::args().nth(1).expect("a file of gpu_bench.py bench --json");
    let text = std::fs::read_to_string(&file).expect("the file reads");
    let data: serde_json::Value = serde_json::from_str(&text).expect("the file is JSON");
    let device = DeviceModel::h200();
    for direction in Direction::ALL {
        let (mut lost, mut against, mut count) = (0.0, 0.0, 0);
        for row in data["rows"].as_array().into_iter().flatten() {
            let problem: Problem = row["key"].as_str().unwrap_or_default().parse().expect("a problem's key");
            if problem.direction() != direction {
                continue;
            }
            let mut measured: Vec<(f64, f64, Choice)> = Vec::new();
            for (name, value) in row["ours"].as_object().into_iter().flatten() {
                let Ok(choice) = name.parse::<Choice>() else { continue };
                let Ok(plan) = LaunchPlan::new(&problem, &choice) else { continue };
                let microseconds = value["us"].as_f64().unwrap_or(f64::NAN);
                measured.push((estimate(&problem, &choice, &plan, &device) * 1e6, microseconds, choice));
            }
            let Some(picked) = measured.iter().min_by(|a, b| a.0.total_cmp(&b.0)) else { continue };
            let Some(best) = measured.iter().min_by(|a, b| a.1.total_cmp(&b.1)) else { continue };
            lost += (picked.1 / best.1).ln();
            against += (row["cudnn_us"].as_f64().unwrap_or(f64::NAN) / picked.1).ln();
            count += 1;
            if picked.1 > best.1 * 1.1 {
                println!(
                    "{:10} {:20} picked {} {:.0} (model {:.0}), best {} {:.0} (model {:.0})",
                    direction.name(),
                    row["layer"].as_str().unwrap_or_default(),
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
        println!("{direction}: picks cost {:.3} of the best measured; {:.3} times cuDNN", mean(lost), mean(against));
    }
}
