//! Measures the audit's speed: `audit_speed FILE…` reads code objects and audits them for five seconds.

use std::time::{Duration, Instant};

use unhang_isa::Chip;
use unhang_isa::audit::{Hazards, Rule};
use unhang_objects::survey::{Options, survey};

fn main() {
    let options = Options { chip: Chip::Gfx1010, keep_findings: false };
    let objects: Vec<Vec<u8>> = std::env::args().skip(1).map(|path| std::fs::read(path).expect("a file")).collect();
    let start = Instant::now();
    let (mut bytes, mut rounds) = (0, 0);
    let mut hazards = Hazards::default();
    while start.elapsed() < Duration::from_secs(5) {
        hazards = Hazards::default();
        rounds += 1;
        for object in &objects {
            let survey = survey(object, options).expect("a code object");
            bytes += survey.code_bytes;
            for function in &survey.functions {
                hazards.add(&function.hazards);
                if let Some(error) = &function.error {
                    println!("{}: {error}", function.name);
                }
            }
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    println!("{rounds} rounds, {:.1} MB/s of machine code", bytes as f64 / seconds / 1e6);
    for rule in Rule::ALL {
        println!("{:24} {}", rule.name(), hazards.get(rule));
    }
}
