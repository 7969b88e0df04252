//! The cost of making a plan.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use unhang_conv::Problem;
use unhang_engine::{EngineName, Verdict};
use unhang_evidence::{Evidence, Record, RecordSource};
use unhang_plan::{Settings, Situation, plan};

fn layers() -> Vec<Problem> {
    unhang_suite::layers().into_iter().map(|layer| layer.problem).collect()
}

fn decide(criterion: &mut Criterion) {
    let problems = layers();
    let (settings, situation) = (Settings::default(), Situation::affected_accelerator());
    let mut evidence = Evidence::empty("here");
    for problem in &problems {
        let works = Record::new(problem.clone(), EngineName::Aten, "here", Verdict::Works, RecordSource::Probe);
        evidence.learn(works.with_seconds(1e-3));
    }
    let mut next = problems.iter().cycle();
    criterion.bench_function("new problem", |bencher| {
        bencher.iter(|| {
            let problem = next.next().expect("there are layers");
            plan(black_box(problem), &settings, &situation, &evidence)
        });
    });
}

criterion_group!(benches, decide);
criterion_main!(benches);
