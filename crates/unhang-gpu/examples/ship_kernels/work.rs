//! What packed objects are proven on: convolutions of the suite, and random cases of the other operations.

use std::fmt;

use unhang_conv::{DataType, Problem};
use unhang_gpu::Launches;
use unhang_gpu::choice::Choice;
use unhang_gpu::driver::EmulatedEngine;
use unhang_gpu::plan::{Form, LaunchPlan, Stage};
use unhang_gpu::reduction::ReductionKind;
use unhang_gpu::shapes::Shape;
use unhang_gpu::shipped;
use unhang_gpu::sources::Kernel;
use unhang_suite::check;

use crate::normalizations::{self, OPERATIONS};
use crate::on_card::OnCard;
use crate::poolings::{self, KINDS};
use crate::reductions;

/// Random cases of each operation, kind and type.
const CASES: u64 = 60;
/// A problem of fewer operations hardly fills a wave.
const LEAST_OPERATIONS: f64 = 20_000.0;
/// Compute units for which operations are divided: an RX 5600 XT's.
const COMPUTE_UNITS: usize = 36;

/// One computation.
#[derive(Debug, Clone)]
pub(crate) enum Work {
    Convolution(Problem, Choice),
    Normalization(normalizations::Case),
    Pooling(poolings::Case),
    Reduction(reductions::Case),
}

/// The kernels of a computation, each with the way that it takes through its code.
pub(crate) type Ways = Vec<(Kernel, Vec<i32>)>;

impl Work {
    /// All ways to compute a convolution.
    pub(crate) fn of_convolution(problem: &Problem) -> impl Iterator<Item = Work> {
        shipped::general_choices(problem).into_iter().map(|choice| Work::Convolution(problem.clone(), choice))
    }

    /// Cases of every other operation.
    pub(crate) fn of_operations() -> Vec<Work> {
        let mut all = Vec::new();
        for data_type in DataType::ALL {
            for seed in 0..CASES {
                for operation in OPERATIONS {
                    all.push(Work::Normalization(normalizations::Case::random(seed, data_type, operation, 700)));
                }
                for (kind, backward) in KINDS.into_iter().flat_map(|kind| [(kind, false), (kind, true)]) {
                    all.push(Work::Pooling(poolings::Case::random(seed, data_type, kind, backward)));
                }
                for kind in ReductionKind::ALL {
                    all.push(Work::Reduction(reductions::Case::random(seed, data_type, kind)));
                }
            }
        }
        all
    }

    /// Which kernels it runs, and about how long that takes to emulate; `None` if it has no plan.
    pub(crate) fn ways(&self) -> Option<(Ways, f64)> {
        let of_launches = |launches: Launches, elements: usize| {
            let ways = launches.path().into_iter();
            // Of a number that decides a way it matters here whether it is 0.
            let ways = ways.map(|(kernel, path)| (kernel, path.into_iter().map(|it| it.min(1)).collect())).collect();
            (ways, elements as f64 * 400.0)
        };
        match self {
            Work::Convolution(problem, choice) => {
                let plan = LaunchPlan::general(problem, choice).ok()?;
                let cost = plan.stages.iter().map(cost).sum();
                Some((plan.stages.into_iter().map(|stage| (stage.kernel, Vec::new())).collect(), cost))
            }
            Work::Normalization(case) => {
                let launches = case.task.launches(case.in_chunks, COMPUTE_UNITS)?;
                Some(of_launches(launches, case.task.sizes.elements()))
            }
            Work::Pooling(case) => {
                let sizes = &case.task.sizes;
                Some(of_launches(case.task.launches()?, sizes.outputs() * sizes.taps() + sizes.inputs()))
            }
            Work::Reduction(case) => {
                let launches = case.task.launches(case.in_chunks, COMPUTE_UNITS)?;
                Some(of_launches(launches, case.task.units() * case.task.count()))
            }
        }
    }

    /// Whether it hardly fills a wave.
    pub(crate) fn is_small(&self) -> bool {
        match self {
            Work::Convolution(problem, _) => problem.flops() < LEAST_OPERATIONS,
            Work::Normalization(case) => case.task.sizes.elements() < 128,
            Work::Pooling(case) => case.task.sizes.outputs() < 64,
            Work::Reduction(case) => case.task.units() * case.task.count() < 128,
        }
    }

    /// Computes it on an emulated card and compares; what is wrong, in words.
    pub(crate) fn check(&self, engine: &EmulatedEngine, seed: u64) -> Result<(), String> {
        let card = &mut OnCard(&engine.card);
        match self {
            Work::Convolution(problem, choice) => {
                engine.use_form(Some((*choice, Form::General)));
                check(engine, problem, seed).map(|_| ()).map_err(|failure| failure.to_string())
            }
            Work::Normalization(case) => case.check(&engine.gpu, card),
            Work::Pooling(case) => case.check(&engine.gpu, card),
            Work::Reduction(case) => case.check(&engine.gpu, card),
        }
    }
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Work::Convolution(problem, choice) => write!(f, "{choice} on {problem}"),
            Work::Normalization(case) => write!(f, "{case:?} (normalisation)"),
            Work::Pooling(case) => write!(f, "{case:?} (pooling)"),
            Work::Reduction(case) => write!(f, "{case:?} (reduction)"),
        }
    }
}

fn cost(stage: &Stage) -> f64 {
    let blocks: f64 = stage.grid.iter().map(|&n| f64::from(n)).product();
    let constant = |name: &str| stage.kernel.constant(name).unwrap_or(1) as f64;
    let tile = |steps: i32| constant("BM") * constant("BN") * (constant("BK") * f64::from(steps) + 16.0);
    let each = match stage.shape {
        Shape::Gemm(shape) => tile(shape.steps_per_split),
        Shape::Weights(shape) => tile(shape.steps_per_split),
        Shape::Fused(shape) => 256.0 * 64.0 * 2.0 * f64::from(shape.reduced + 8),
        _ => f64::from(stage.block) * 400.0,
    };
    blocks * each
}
