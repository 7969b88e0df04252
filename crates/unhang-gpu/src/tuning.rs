//! Measuring: which candidates, on what memory, and what a row of times comes to.
//!
//! Callers keep what was measured as evidence ([`Tuned`]). They hand it back at the next start by
//! [`GpuEngine::prefer`], as far as [`is_current`] says.

pub(crate) mod filing;

pub use filing::{device, is_current, kernels};

use unhang_conv::Problem;
use unhang_engine::{Tuned, TunedProblem};

use crate::candidates::Candidate;
use crate::choice::Choice;
use crate::driver::Driver;
use crate::engine::{DevicePointers, GpuEngine};
use crate::error::GpuError;

/// The times of one choice.
#[derive(Debug, Clone, PartialEq)]
pub struct Times {
    /// The choice.
    pub choice: String,
    /// Seconds, a turn each.
    pub seconds: Vec<f64>,
}

impl Times {
    /// The median, and how far the times lie apart as a share of it. The first turn warms up, where there are more.
    pub fn median_and_spread(&self) -> (f64, f64) {
        let mut warm = self.seconds.get(1..).filter(|rest| !rest.is_empty()).unwrap_or(&self.seconds).to_vec();
        warm.sort_by(f64::total_cmp);
        let (Some(least), Some(most)) = (warm.first(), warm.last()) else { return (f64::INFINITY, 0.0) };
        let middle = warm.len() / 2;
        let median = if warm.len().is_multiple_of(2) { (warm[middle - 1] + warm[middle]) / 2.0 } else { warm[middle] };
        (median, if median > 0.0 { (most - least) / median } else { 0.0 })
    }
}

/// What was measured of a problem, for the evidence. The first of the times is the model's choice; none without times, or
/// where the winner is not among them.
pub fn tuned(problem: TunedProblem, driver: &dyn Driver, times: &[Times], winner: &str, detail: &str) -> Option<Tuned> {
    let description = driver.description();
    let (first, best) = (times.first()?, times.iter().find(|it| it.choice == winner)?);
    let (seconds, spread) = best.median_and_spread();
    Some(Tuned {
        problem,
        device: device(description),
        kernels: kernels(),
        compiler: driver.compiler().version(),
        driver: description.driver.clone(),
        choice: best.choice.clone(),
        seconds,
        spread,
        model_choice: first.choice.clone(),
        model_seconds: first.median_and_spread().0,
        candidates: u32::try_from(times.len()).unwrap_or(u32::MAX),
        detail: detail.to_owned(),
    })
}

/// The candidates that are worth measuring: the model's first ones, and the first of each other family, so that a wrong
/// model is noticed. The plain kernels only where there is nothing else, or where the model takes them.
pub fn shortlist(candidates: Vec<Candidate>, first: usize) -> Vec<Candidate> {
    let fast = candidates.iter().filter(|candidate| candidate.choice != Choice::Plain).count();
    let mut taken: Vec<Candidate> = Vec::new();
    for candidate in candidates {
        let family = candidate.choice.family();
        let new_family = !taken.iter().any(|other| other.choice.family() == family);
        let worth_it = fast == 0 || candidate.choice != Choice::Plain || taken.is_empty();
        if worth_it && (taken.len() < first || new_family) {
            taken.push(candidate);
        }
    }
    taken
}

/// Device memory for one problem, given back in the end.
pub struct Bench<'a> {
    engine: &'a GpuEngine,
    problem: Problem,
    operands: [u64; 3],
}

impl<'a> Bench<'a> {
    /// Room for the operands and the result of a problem.
    pub fn new(engine: &'a GpuEngine, problem: &Problem) -> Result<Bench<'a>, GpuError> {
        let mut bench = Bench { engine, problem: problem.clone(), operands: [0; 3] };
        for (address, shape) in bench.operands.iter_mut().zip(problem.operand_shapes()) {
            let elements: usize = shape.iter().product();
            *address = engine.driver().allocate(elements * problem.data_type().size())?;
        }
        Ok(bench)
    }

    /// Seconds of one run of a choice. Waits for the device: for a process that somebody watches.
    pub fn seconds(&self, choice: Choice, repeats: u32) -> Result<f64, GpuError> {
        let prepared = self.engine.prepare_as(&self.problem, Some(choice))?;
        let workspace = match prepared.workspace_bytes() {
            0 => 0,
            bytes => self.engine.driver().allocate(bytes as usize)?,
        };
        let [first, second, result] = self.operands;
        let pointers = DevicePointers { first, second, bias: 0, result, workspace };
        // SAFETY: memory of the sizes that the problem and the plan say, which is given back after the work is done.
        let seconds = unsafe { self.engine.measure(&prepared, pointers, 0, repeats) };
        if workspace != 0 && seconds.is_ok() {
            // SAFETY: the work on it is done: `measure` waited.
            unsafe { self.engine.driver().free(workspace)? };
        }
        seconds
    }
}

impl Drop for Bench<'_> {
    fn drop(&mut self) {
        for address in self.operands.into_iter().filter(|&address| address != 0) {
            // SAFETY: every run was waited for. What cannot be given back is the process's until it ends.
            let _ = unsafe { self.engine.driver().free(address) };
        }
    }
}

#[cfg(test)]
mod tests {
    use unhang_conv::Specification;

    use super::*;
    use crate::candidates::candidates;
    use crate::model::DeviceModel;

    #[test]
    fn the_first_and_one_of_each_family_are_measured() {
        let problem = Problem::new(Specification {
            in_channels: 64,
            out_channels: 64,
            in_size: [56, 56],
            kernel: [3, 3],
            padding: [1, 1],
            ..Specification::default()
        })
        .unwrap();
        let all = candidates(&problem, &DeviceModel::rx_5600_xt(), 1 << 30);
        let taken = shortlist(all.clone(), 3);
        assert_eq!(taken[0].choice, all[0].choice);
        let families: std::collections::BTreeSet<&str> = taken.iter().map(|it| it.choice.family()).collect();
        assert_eq!(families.into_iter().collect::<Vec<_>>(), ["fused", "gemm", "winograd"]);
        assert!(taken.len() <= 5);
    }

    #[test]
    fn the_middle_of_the_warm_turns_counts() {
        let times = |seconds: &[f64]| Times { choice: String::new(), seconds: seconds.to_vec() }.median_and_spread();
        assert_eq!(times(&[9.0, 2.0, 4.0, 3.0]), (3.0, 2.0 / 3.0));
        assert_eq!(times(&[9.0, 2.0, 4.0]), (3.0, 2.0 / 3.0));
        assert_eq!(times(&[9.0]), (9.0, 0.0));
        assert_eq!(times(&[]), (f64::INFINITY, 0.0));
    }
}
