//! What to try: a table of layers, a model, the reports' grid, or what programs asked for.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use clap::Args;
use unhang_conv::{Direction, Problem, table};
use unhang_evidence::Store;

use super::super::shapes::shape;
use super::super::whole_file::read_table;
use super::children::record_model;

/// What to try. Without any of these: what programs that use unhang asked for so far.
#[derive(Args)]
#[group(skip)]
pub(super) struct What {
    /// Try the layers of this table (name n c h w k r s stride_h stride_w pad_h pad_w dil_h dil_w groups).
    #[arg(long, value_name = "FILE", group = "what")]
    layers: Option<PathBuf>,
    /// Try every convolution of the torch model that this function returns, forward and backward.
    #[arg(long, value_name = "MODULE:FACTORY", group = "what", requires = "input")]
    model: Option<String>,
    /// Try the channels and sizes of the reports: 49 convolutions.
    #[arg(long, group = "what")]
    grid: bool,
    /// The shape of the model's input.
    #[arg(long, value_name = "NxCxHxW", requires = "model", value_parser = shape)]
    input: Option<String>,
    /// In these directions (forward, backward-data, backward-weights) [default: all for layers, forward for the grid].
    #[arg(long, alias = "direction", value_name = "NAME,…", value_delimiter = ',')]
    directions: Vec<Direction>,
}

impl What {
    /// The layers of the table, if one is named.
    pub(super) fn layers(&self) -> anyhow::Result<Option<Vec<Problem>>> {
        let Some(path) = &self.layers else { return Ok(None) };
        let text = read_table(path)?;
        let layers = table::parse(&text).with_context(|| format!("cannot read the layers {}", path.display()))?;
        Ok(Some(layers.into_iter().map(|layer| layer.problem).collect()))
    }

    /// The convolutions, the most used first, each once.
    pub(super) fn problems(
        &self,
        layers: Option<Vec<Problem>>,
        store: &Store,
        machine: &str,
        python: &Path,
    ) -> anyhow::Result<Vec<Problem>> {
        let seen: HashMap<Problem, u64> = store.seen(machine).into_iter().map(|it| (it.problem, it.count)).collect();
        let mut counted: Vec<(Problem, u64)> = Vec::new();
        if let Some(layers) = layers {
            counted.extend(self.in_directions(&layers, &Direction::ALL));
        } else if let (Some(model), Some(input)) = (&self.model, &self.input) {
            for (key, count) in record_model(python, model, input)? {
                let problem: Problem = key.parse().with_context(|| format!("the child named {key:?}"))?;
                if self.directions.is_empty() || self.directions.contains(&problem.direction()) {
                    counted.push((problem, count));
                }
            }
        } else if self.grid {
            counted.extend(self.in_directions(&unhang_probe::grid::problems(), &[Direction::Forward]));
        } else {
            counted.extend(seen.iter().map(|(problem, count)| (problem.clone(), *count)));
            counted.retain(|(problem, _)| self.directions.is_empty() || self.directions.contains(&problem.direction()));
            counted.sort();
        }
        let mut uses: HashMap<&Problem, u64> = HashMap::new();
        for (problem, count) in &counted {
            *uses.entry(problem).or_insert_with(|| seen.get(problem).copied().unwrap_or(0)) += count;
        }
        let mut known = HashSet::new();
        let mut problems: Vec<Problem> =
            counted.iter().filter(|(problem, _)| known.insert(problem)).map(|(problem, _)| problem.clone()).collect();
        // The sort is stable: equally frequent convolutions keep their order.
        problems.sort_by_key(|problem| std::cmp::Reverse(uses[problem]));
        if problems.is_empty() {
            return Err(anyhow!("hint: name some with --layers FILE, --model MODULE:FACTORY --input SHAPE or --grid")
                .context("there is nothing to try: no program that uses unhang has asked for a convolution here yet"));
        }
        Ok(problems)
    }

    fn in_directions(&self, problems: &[Problem], otherwise: &[Direction]) -> Vec<(Problem, u64)> {
        let directions = if self.directions.is_empty() { otherwise } else { &self.directions };
        problems
            .iter()
            .flat_map(|problem| directions.iter().map(|&direction| (problem.with_direction(direction), 1)))
            .collect()
    }
}
