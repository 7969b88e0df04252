//! The contents of a report.

use std::collections::BTreeMap;

use unhang_conv::Problem;
use unhang_engine::EngineName;
use unhang_evidence::{Evidence, Realm, Record, time};
use unhang_plan::Plan;

/// A layer of a tracked model, or a convolution that programs asked for, with the number of calls per engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layer {
    /// Its name in the model, or empty.
    pub name: String,
    /// The convolution.
    pub problem: Problem,
    /// How often it was asked for.
    pub calls: u64,
    /// How often each engine computed it, if that was counted.
    pub engines: Vec<(EngineName, u64)>,
}

/// Everything that a report shows.
#[derive(Debug, Clone)]
pub struct Report {
    /// The machine in one line, such as "Radeon RX 5600 XT, affected, spoofed, torch 2.2.2+rocm5.7".
    pub machine: String,
    /// Its fingerprint.
    pub fingerprint: String,
    /// Whether the card was rehearsed, not real. Every view says so.
    pub rehearsal: bool,
    /// When the report was made, in seconds since 1970.
    pub unix_seconds: i64,
    /// Layers with their counts, in the order of the caller.
    pub layers: Vec<Layer>,
    /// The evidence, sorted by convolution.
    pub records: Vec<Record>,
    /// The plan for each convolution of layers and records.
    pub plans: BTreeMap<Problem, Plan>,
}

impl Report {
    /// A report on evidence and layers; `plan` makes the plan for a convolution.
    pub fn new(machine: &str, evidence: &Evidence, layers: Vec<Layer>, plan: impl Fn(&Problem) -> Plan) -> Report {
        let mut records: Vec<Record> = evidence.records().cloned().collect();
        records.sort_by(|a, b| {
            let key = |it: &Record| (it.engine, it.source, it.verdict, it.unix_seconds);
            a.problem.cmp(&b.problem).then_with(|| key(a).cmp(&key(b))).then_with(|| a.variant.cmp(&b.variant))
        });
        let mut plans = BTreeMap::new();
        for problem in records.iter().map(|it| &it.problem).chain(layers.iter().map(|it| &it.problem)) {
            if !plans.contains_key(problem) {
                plans.insert(problem.clone(), plan(problem));
            }
        }
        Report {
            machine: machine.to_owned(),
            fingerprint: evidence.machine().to_owned(),
            rehearsal: evidence.realm() == Realm::Rehearsal,
            unix_seconds: time::now(),
            layers,
            records,
            plans,
        }
    }
}
