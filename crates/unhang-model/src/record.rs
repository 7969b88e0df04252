//! What the waves of some workgroups executed, recorded on the emulator.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use unhang_emulator::{Dispatch, Fault, Follow, Machine, Moment, Object, Observer, Space, Touched};

use crate::card::{BANKS, LINE, LOCAL_BYTES_PER_CYCLE};
use crate::step::{IssueKind, TimedInstruction};

/// The cost of one executed memory instruction.
#[derive(Clone, Debug)]
pub(crate) enum Cost {
    /// Cycles of LDS.
    Local(u32),
    /// Words per lane, and the lines of memory that it touched.
    Vector { words: u32, lines: Range<u32>, writes: bool },
}

/// An executed instruction: its position among the steps, and among the costs if it touched memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExecutedInstruction {
    pub step: u32,
    pub cost: u32,
}

pub(crate) const NO_COST: u32 = u32::MAX;

/// What one wave executed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Track {
    pub events: Vec<ExecutedInstruction>,
}

/// What some workgroups executed, in the order of the grid.
#[derive(Default)]
pub(crate) struct Record {
    pub steps: Vec<TimedInstruction>,
    pub costs: Vec<Cost>,
    pub lines: Vec<u64>,
    pub groups: Vec<Vec<Track>>,
    /// Passes over LDS's banks beyond those that any access of this size needs.
    pub conflicts: u64,
}

#[derive(Default)]
struct Recording {
    record: Record,
    known: HashMap<u64, u32>,
    /// By the workgroup's position, z first, so that iteration follows the order of the grid.
    groups: BTreeMap<[u32; 3], Vec<Track>>,
}

/// Records each wave up to that many instructions.
pub(crate) struct Recorder {
    state: Mutex<Recording>,
    limit: usize,
}

impl Recorder {
    fn state(&self) -> MutexGuard<'_, Recording> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Observer for Recorder {
    fn before(&self, moment: &Moment<'_>) -> Follow {
        let mut guard = self.state();
        let Recording { record, known, groups } = &mut *guard;
        let [x, y, z] = moment.workgroup();
        let waves = groups.entry([z, y, x]).or_default();
        let number = moment.wave() as usize;
        if waves.len() <= number {
            waves.resize_with(number + 1, Track::default);
        }
        if waves[number].events.len() >= self.limit {
            return Follow::EndWave;
        }
        let step = *known.entry(moment.address).or_insert_with(|| {
            record.steps.push(TimedInstruction::of(moment));
            record.steps.len() as u32 - 1
        });
        let touches = matches!(record.steps[step as usize].kind, IssueKind::Local | IssueKind::VectorMemory);
        let cost = match touches.then(|| moment.touched()).flatten() {
            Some(touched) => record.note(&touched),
            None => NO_COST,
        };
        waves[number].events.push(ExecutedInstruction { step, cost });
        Follow::On
    }
}

impl Record {
    fn note(&mut self, touched: &Touched) -> u32 {
        let cost = if touched.space == Space::Local {
            let (cycles, conflicts) = local_cycles(touched);
            self.conflicts += u64::from(conflicts);
            Cost::Local(cycles)
        } else {
            let start = self.lines.len() as u32;
            let bytes = u64::from(touched.bytes.max(1));
            let mut lines: Vec<u64> =
                touched.addresses.iter().flat_map(|address| address / LINE..=(address + bytes - 1) / LINE).collect();
            lines.sort_unstable();
            lines.dedup();
            self.lines.extend(lines);
            let lines = start..self.lines.len() as u32;
            Cost::Vector { words: touched.bytes.div_ceil(4), lines, writes: touched.writes }
        };
        self.costs.push(cost);
        self.costs.len() as u32 - 1
    }

    /// Runs workgroups of a kernel, named in ascending order, and records at most that many instructions of each wave.
    pub(crate) fn take(
        machine: &mut Machine,
        object: Object,
        dispatch: &Dispatch<'_>,
        workgroups: Vec<u64>,
        limit: usize,
    ) -> Result<Record, Fault> {
        let recorder = Arc::new(Recorder { state: Mutex::default(), limit });
        machine.only = Some(workgroups);
        machine.observer = Some(recorder.clone());
        let ran = machine.run_in(object, dispatch);
        (machine.only, machine.observer) = (None, None);
        ran?;
        let Recording { mut record, groups, .. } = std::mem::take(&mut *recorder.state());
        record.groups = groups.into_values().collect();
        Ok(record)
    }
}

/// Cycles for which an access holds LDS, and how many of them are conflicts. In each pass every bank delivers one word,
/// and lanes that read the same word share it. Data to and from registers has a separate path.
fn local_cycles(touched: &Touched) -> (u32, u32) {
    let words = touched.bytes.div_ceil(4).max(1);
    let bytes = touched.addresses.len() as f64 * f64::from(touched.bytes);
    let path = (bytes / LOCAL_BYTES_PER_CYCLE[usize::from(words > 2)]).ceil().max(1.0) as u32;
    let mut wanted: Vec<(usize, u64)> = touched
        .addresses
        .iter()
        .flat_map(|address| (0..u64::from(words)).map(move |word| address / 4 + word))
        .map(|word| (word as usize % BANKS, word))
        .collect();
    if !touched.atomic {
        wanted.sort_unstable();
        wanted.dedup();
    }
    let mut passes = [0u32; BANKS];
    wanted.iter().for_each(|&(bank, _)| passes[bank] += 1);
    let most = passes.into_iter().max().unwrap_or(0);
    let cycles = most.max(path);
    (cycles, cycles - path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn local(bytes: u32, address: impl Fn(u64) -> u64) -> (u32, u32) {
        let addresses = (0..32).map(address).collect();
        local_cycles(&Touched { space: Space::Local, writes: false, atomic: false, bytes, addresses })
    }

    #[test]
    fn lanes_that_meet_in_a_bank_take_turns() {
        assert_eq!(local(4, |lane| lane * 4), (1, 0), "neighbours");
        assert_eq!(local(4, |lane| lane * 128), (32, 31), "all in one bank");
        assert_eq!(local(4, |lane| lane * 132), (1, 0), "padded by a word");
        assert_eq!(local(4, |_| 64), (1, 0), "one word for all");
        assert_eq!(local(8, |lane| lane * 8), (2, 0), "pairs");
        assert_eq!(local(16, |lane| lane * 16), (8, 0), "quads");
        assert_eq!(local(16, |lane| lane % 2 * 16), (8, 0), "two quads for all: the path to the registers holds it up");
    }
}
