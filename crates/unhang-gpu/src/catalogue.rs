//! Our kernels for a chip, without the chip: compiled, measured by the compiler's own figures, and audited.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use unhang_conv::table::Layer;
use unhang_conv::{Direction, Problem};
use unhang_isa::Chip;

use crate::GpuError;
use crate::cache::Cache;
use crate::candidates::{Candidate, candidates};
use crate::compiler::Compiler;
use crate::model::DeviceModel;
use crate::object::{self, Figures};
use crate::objects::object_for;
use crate::sources::Kernel;

/// The choice for a layer on a device.
#[derive(Debug, Clone)]
pub struct Selection {
    /// The layer's name in its table.
    pub layer: String,
    /// The problem.
    pub problem: Problem,
    /// The first candidate of the model.
    pub candidate: Candidate,
}

/// The model's choice for every layer in every direction.
pub fn select(layers: &[Layer], device: &DeviceModel, workspace_limit: u64) -> Vec<Selection> {
    select_some(layers, 1, |problem| candidates(problem, device, workspace_limit))
}

/// That many of the ways that `ways` finds for every layer in every direction, in its order.
pub fn select_some(layers: &[Layer], count: usize, ways: impl Fn(&Problem) -> Vec<Candidate>) -> Vec<Selection> {
    let problems = layers
        .iter()
        .flat_map(|layer| Direction::ALL.map(|direction| (layer, layer.problem.with_direction(direction))));
    problems
        .flat_map(|(layer, problem)| {
            let found = ways(&problem).into_iter().take(count);
            let named = |candidate| Selection { layer: layer.name.clone(), problem: problem.clone(), candidate };
            found.map(named).collect::<Vec<_>>()
        })
        .collect()
}

/// For each kernel family and direction, the selection that takes longest by the model.
pub fn longest_of_each_family(selections: Vec<Selection>) -> Vec<Selection> {
    let mut longest: BTreeMap<(&'static str, &'static str), Selection> = BTreeMap::new();
    for selection in selections {
        let key = (selection.candidate.choice.family(), selection.problem.direction().name());
        let known = longest.get(&key).map_or(f64::NEG_INFINITY, |known| known.candidate.seconds);
        if selection.candidate.seconds > known {
            longest.insert(key, selection);
        }
    }
    longest.into_values().collect()
}

/// A compiled kernel with its figures.
#[derive(Debug, Clone)]
pub struct CompiledKernel {
    /// The kernel.
    pub kernel: Kernel,
    /// The first problem that needs it.
    pub problem: Problem,
    /// Its costs, and the audit's findings.
    pub figures: Figures,
}

/// Compiles every kernel of the selections once, for `chip`, tagged for `reported`, on all cores; calls `progress` with
/// the number done and the total. A kernel that the audit refuses is an error: none of ours may be.
pub fn compile(
    selections: &[Selection],
    compiler: &dyn Compiler,
    chip: Chip,
    reported: Chip,
    cache: Option<&Cache>,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<Vec<CompiledKernel>, GpuError> {
    let mut kernels: BTreeMap<&Kernel, &Problem> = BTreeMap::new();
    for selection in selections {
        for stage in &selection.candidate.plan.stages {
            kernels.entry(&stage.kernel).or_insert(&selection.problem);
        }
    }
    let jobs: Vec<(&Kernel, &Problem)> = kernels.into_iter().collect();
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let results: Mutex<Vec<(usize, Result<CompiledKernel, GpuError>)>> = Mutex::default();
    let work = || {
        while let Some((index, (kernel, problem))) = {
            let index = next.fetch_add(1, Ordering::Relaxed);
            jobs.get(index).map(|job| (index, *job))
        } {
            let entry = compile_one(compiler, cache, kernel, chip, reported).map(|figures| CompiledKernel {
                kernel: kernel.clone(),
                problem: problem.clone(),
                figures,
            });
            results.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push((index, entry));
            progress(done.fetch_add(1, Ordering::Relaxed) + 1, jobs.len());
        }
    };
    let workers = std::thread::available_parallelism().map_or(1, usize::from).min(jobs.len().max(1));
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(work);
        }
    });
    let mut results = results.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, entry)| entry).collect()
}

fn compile_one(
    compiler: &dyn Compiler,
    cache: Option<&Cache>,
    kernel: &Kernel,
    chip: Chip,
    reported: Chip,
) -> Result<Figures, GpuError> {
    let object = object_for(compiler, cache, kernel, chip.name(), reported.name())?;
    let all = object::figures(&object, chip)?;
    all.into_iter().find(|figures| figures.name == kernel.entry).ok_or_else(|| {
        GpuError::Object(object::ObjectError::Metadata(format!("no kernel {:?} in its object", kernel.entry)))
    })
}
