//! What was measured to be the fastest, kept from one start to the next.
//!
//! A device's winners lie in the cache of compiled objects under a key of the kernels' sources, the compiler, the chip and
//! the device's name: other kernels have other winners. A line for each problem: its key, the choice, seconds.

use std::collections::BTreeMap;
use std::io;

use unhang_conv::Problem;

use crate::cache::{Cache, Key};
use crate::choice::{Candidate, Choice};
use crate::driver::Driver;
use crate::sources::Source;
use crate::{DevicePointers, GpuEngine, GpuError};

/// The fastest choice of a problem, and the seconds that it took.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Winner {
    /// The choice.
    pub choice: Choice,
    /// Seconds of one run.
    pub seconds: f64,
}

/// The winners of one device.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Tuning {
    /// By problem.
    pub winners: BTreeMap<Problem, Winner>,
}

/// The key under which a device's winners lie.
fn key(driver: &dyn Driver) -> Key {
    let description = driver.description();
    let sources = Source::ALL.map(Source::text);
    let compiler = driver.compiler().version();
    let device =
        [&description.name, &description.true_architecture, &description.reported_architecture].map(String::as_str);
    Key::of(["tuning", compiler.as_str()].into_iter().chain(device).chain(sources.iter().map(String::as_str)))
}

impl Tuning {
    /// The winners of a device; none where nothing was measured.
    pub fn load(cache: &Cache, driver: &dyn Driver) -> Tuning {
        let text = cache.get(key(driver)).unwrap_or_default();
        Tuning::parse(&String::from_utf8_lossy(&text))
    }

    /// Keeps the winners, beside those of other problems that were measured before.
    pub fn keep(&self, cache: &Cache, driver: &dyn Driver) -> io::Result<()> {
        let mut all = Tuning::load(cache, driver);
        all.winners.extend(self.winners.clone());
        cache.put(key(driver), all.text().as_bytes())
    }

    fn text(&self) -> String {
        self.winners
            .iter()
            .map(|(problem, winner)| format!("{problem}\t{}\t{:e}\n", winner.choice, winner.seconds))
            .collect()
    }

    /// Lines that name no problem or no choice that we have are left out.
    fn parse(text: &str) -> Tuning {
        let winner = |line: &str| {
            let mut parts = line.split('\t');
            let problem = parts.next()?.parse().ok()?;
            let choice = parts.next()?.parse().ok()?;
            let seconds = parts.next()?.parse().ok()?;
            Some((problem, Winner { choice, seconds }))
        };
        Tuning { winners: text.lines().filter_map(winner).collect() }
    }
}

/// The candidates that are worth measuring: the model's first ones, and the first of each other family, so that a wrong
/// model is noticed. The plain kernels only where there is nothing else.
pub fn shortlist(candidates: Vec<Candidate>, first: usize) -> Vec<Candidate> {
    let fast = candidates.iter().filter(|candidate| candidate.choice != Choice::Plain).count();
    let mut taken: Vec<Candidate> = Vec::new();
    for candidate in candidates {
        let family = candidate.choice.family();
        let new_family = !taken.iter().any(|other| other.choice.family() == family);
        if (fast == 0 || candidate.choice != Choice::Plain) && (taken.len() < first || new_family) {
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
        let milliseconds = unsafe { self.engine.measure(&prepared, pointers, 0, repeats) };
        if workspace != 0 && milliseconds.is_ok() {
            // SAFETY: the work on it is done: `measure` waited.
            unsafe { self.engine.driver().free(workspace)? };
        }
        Ok(f64::from(milliseconds?) * 1e-3)
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
    use crate::choice::candidates;
    use crate::model::Device;

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
        let all = candidates(&problem, &Device::rx_5600_xt(), 1 << 30);
        let taken = shortlist(all.clone(), 3);
        assert_eq!(taken[0].choice, all[0].choice);
        let families: std::collections::BTreeSet<&str> = taken.iter().map(|it| it.choice.family()).collect();
        assert_eq!(families.into_iter().collect::<Vec<_>>(), ["fused", "gemm", "winograd"]);
        assert!(taken.len() <= 5);
    }

    #[test]
    fn winners_read_back_and_strange_lines_do_not() {
        let problem = Problem::new(Specification { in_size: [9, 9], ..Specification::default() }).unwrap();
        let choice = Choice::Narrow { strip: 4 };
        let tuning = Tuning { winners: [(problem, Winner { choice, seconds: 1.25e-5 })].into() };
        assert_eq!(Tuning::parse(&tuning.text()), tuning);
        let damaged = format!("{}nonsense\tplain\t1\n\t\t\n", tuning.text());
        assert_eq!(Tuning::parse(&damaged), tuning);
    }
}
