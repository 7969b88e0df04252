//! One compute unit, cycle by cycle: which waves issue what, and what they wait for.

use std::collections::VecDeque;

use crate::cache::Cache;
use crate::card::{
    BRANCH_CYCLES, L0_LATENCY, L1_LATENCY, L2_LATENCY, LANES, LINE, LOCAL_LATENCY, SCALAR_LOAD_LATENCY, SIMDS,
    vector_memory_cycles,
};
use crate::record::{Cost, ExecutedInstruction, NO_COST, Record, Track};
use crate::step::{Arithmetic, IssueKind, KINDS, REGISTERS, TimedInstruction, Wait};

/// What is behind the unit's first cache: its share of the card.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Behind {
    /// The shares that L1, L2 and memory serve of the lines that miss in L0.
    pub shares: [f64; 3],
    /// Lines written to memory per line stored.
    pub written: f64,
    pub l2_bytes_per_cycle: f64,
    pub memory_bytes_per_cycle: f64,
    pub memory_latency: u64,
}

/// Cycles for which parts of the unit, or its share of the card, were busy.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Work {
    pub cycles: f64,
    /// The sum over both SIMDs.
    pub vector: f64,
    pub scalar: f64,
    pub local: f64,
    pub vector_memory: f64,
    pub l2: f64,
    pub memory: f64,
    /// Cycles of all waves, and those spent waiting: for loads from memory, for LDS and scalar loads, for other waves.
    pub waves: f64,
    pub waited: [f64; 3],
}

/// A path that takes one thing after the other, in fractions of cycles.
#[derive(Clone, Copy, Default)]
struct Path {
    free: f64,
    busy: f64,
}

impl Path {
    /// Occupies the path as soon as it is free, at `from` or later. Returns the time at which it is done.
    fn take(&mut self, from: f64, cycles: f64) -> f64 {
        self.free = self.free.max(from) + cycles;
        self.busy += cycles;
        self.free
    }

    /// Whether so much is waiting that the path accepts nothing more.
    fn is_full(&self, now: u64) -> bool {
        self.free > now as f64 + QUEUE
    }
}

/// Cycles of work that may wait in front of LDS or the path to L0. Inferred: the hardware's queues are not documented.
const QUEUE: f64 = 64.0;

struct Wave<'a> {
    track: &'a Track,
    at: usize,
    ready: u64,
    slot: usize,
    simd: usize,
    /// Tells the lines of this workgroup from those of others that replay the same record.
    salt: u64,
    registers: Box<[u64; REGISTERS]>,
    loads: VecDeque<u64>,
    local: VecDeque<u64>,
    stores: VecDeque<u64>,
    at_barrier: bool,
    started: u64,
}

impl Wave<'_> {
    fn event(&self) -> Option<ExecutedInstruction> {
        self.track.events.get(self.at).copied()
    }
}

/// Removes the oldest entries until at most `most` are outstanding. Returns the time at which the last of them is done.
fn settled(queue: &mut VecDeque<u64>, most: u8) -> u64 {
    let mut at = 0;
    while queue.len() > usize::from(most) {
        at = at.max(queue.pop_front().unwrap_or(0));
    }
    at
}

/// Results arrive in the order of the requests.
fn push_in_order(queue: &mut VecDeque<u64>, at: u64) {
    queue.push_back(at.max(queue.back().copied().unwrap_or(0)));
}

pub(crate) struct ComputeUnit<'a> {
    record: &'a Record,
    behind: Behind,
    first_cache: Cache,
    credit: [f64; 3],
    vector: [u64; SIMDS],
    transcendental: [u64; SIMDS],
    local: Path,
    vector_memory: Path,
    l2: Path,
    memory: Path,
    waves: Vec<Wave<'a>>,
    now: u64,
    work: Work,
}

impl<'a> ComputeUnit<'a> {
    /// Runs workgroups, by their positions in the record, that many at a time.
    pub(crate) fn run(record: &'a Record, groups: &[usize], resident: usize, behind: Behind) -> Work {
        let mut unit = ComputeUnit {
            record,
            behind,
            first_cache: Cache::first(),
            credit: [0.0; 3],
            vector: [0; SIMDS],
            transcendental: [0; SIMDS],
            local: Path::default(),
            vector_memory: Path::default(),
            l2: Path::default(),
            memory: Path::default(),
            waves: Vec::new(),
            now: 0,
            work: Work::default(),
        };
        let mut waiting = groups.iter().enumerate();
        let mut left = vec![0usize; resident.max(1)];
        for slot in 0..left.len() {
            unit.admit(slot, &mut left, &mut waiting);
        }
        while !unit.waves.is_empty() {
            unit.cycle(&mut left, &mut waiting);
        }
        let end = [unit.local.free, unit.vector_memory.free, unit.l2.free, unit.memory.free];
        unit.work.cycles = end.into_iter().fold(unit.now as f64, f64::max);
        unit.work.local = unit.local.busy;
        unit.work.vector_memory = unit.vector_memory.busy;
        unit.work.l2 = unit.l2.busy;
        unit.work.memory = unit.memory.busy;
        unit.work
    }

    /// Starts the next workgroup in a slot.
    fn admit(&mut self, slot: usize, left: &mut [usize], waiting: &mut impl Iterator<Item = (usize, &'a usize)>)
    where
        Self: 'a,
    {
        let Some((number, &group)) = waiting.next() else { return };
        let record = self.record;
        let tracks = &record.groups[group];
        left[slot] = tracks.len();
        for (place, track) in tracks.iter().enumerate() {
            let wave = Wave {
                track,
                at: 0,
                ready: self.now + 1,
                slot,
                simd: (place + slot) % SIMDS,
                salt: (number as u64 + 1) << 44,
                registers: Box::new([0; REGISTERS]),
                loads: VecDeque::new(),
                local: VecDeque::new(),
                stores: VecDeque::new(),
                at_barrier: false,
                started: self.now,
            };
            self.waves.push(wave);
        }
    }

    /// Issues what can be issued now, and advances to the next cycle in which something can.
    fn cycle(&mut self, left: &mut [usize], waiting: &mut impl Iterator<Item = (usize, &'a usize)>)
    where
        Self: 'a,
    {
        let mut used = [[false; KINDS]; SIMDS];
        let (mut ended, mut barrier) = (false, false);
        for index in 0..self.waves.len() {
            let wave = &self.waves[index];
            if wave.at_barrier || wave.ready > self.now {
                continue;
            }
            let Some(event) = wave.event() else {
                ended = true;
                continue;
            };
            let step = &self.record.steps[event.step as usize];
            let slot = &mut used[wave.simd][step.kind as usize];
            if *slot || !self.is_free(step, wave.simd) {
                continue;
            }
            *slot = true;
            barrier |= step.is_barrier;
            self.issue(index, event, step);
        }
        if ended {
            self.retire(left, waiting);
        }
        if barrier || ended {
            self.release(left);
        }
        let next = self.waves.iter().filter(|wave| !wave.at_barrier).map(|wave| wave.ready).min();
        self.now = (self.now + 1).max(next.unwrap_or(0));
    }

    fn is_free(&self, step: &TimedInstruction, simd: usize) -> bool {
        match step.kind {
            IssueKind::Vector if step.arithmetic == Some(Arithmetic::Transcendental) => {
                self.vector[simd] <= self.now && self.transcendental[simd] <= self.now
            }
            IssueKind::Vector => self.vector[simd] <= self.now,
            IssueKind::Local => !self.local.is_full(self.now),
            IssueKind::VectorMemory => !self.vector_memory.is_full(self.now),
            IssueKind::Scalar | IssueKind::ScalarMemory | IssueKind::Flow => true,
        }
    }

    fn issue(&mut self, index: usize, event: ExecutedInstruction, step: &TimedInstruction) {
        let (now, simd, salt) = (self.now, self.waves[index].simd, self.waves[index].salt);
        let cost = (event.cost != NO_COST).then(|| &self.record.costs[event.cost as usize]);
        let arrival = match (step.kind, cost) {
            (IssueKind::Vector, _) => {
                self.vector[simd] = now + step.issue;
                self.work.vector += step.issue as f64;
                if step.arithmetic == Some(Arithmetic::Transcendental) {
                    self.transcendental[simd] = now + 4;
                }
                None
            }
            (IssueKind::Scalar, _) => {
                self.work.scalar += 1.0;
                None
            }
            (IssueKind::ScalarMemory, _) => Some(now + SCALAR_LOAD_LATENCY),
            (IssueKind::Local | IssueKind::VectorMemory, Some(Cost::Local(cycles))) => {
                Some(self.local.take(now as f64, f64::from(*cycles)) as u64 + LOCAL_LATENCY)
            }
            // Exchanges between lanes use LDS's path.
            (IssueKind::Local, _) => Some(self.local.take(now as f64, 2.0) as u64 + LOCAL_LATENCY),
            (IssueKind::VectorMemory, Some(Cost::Vector { words, lines, writes })) => {
                let lines = &self.record.lines[lines.start as usize..lines.end as usize];
                Some(if *writes { self.store(*words, lines) } else { self.load(*words, lines, salt) })
            }
            _ => None,
        };
        let writes = matches!(cost, Some(Cost::Vector { writes: true, .. }));
        let wave = &mut self.waves[index];
        for &register in &step.writes {
            wave.registers[register as usize] = now + step.latency.max(step.issue);
        }
        if let Some(at) = arrival {
            let queue = match step.kind {
                IssueKind::VectorMemory if writes => &mut wave.stores,
                IssueKind::VectorMemory => &mut wave.loads,
                _ => &mut wave.local,
            };
            push_in_order(queue, at);
        }
        wave.at += 1;
        wave.at_barrier = step.is_barrier;
        wave.ready = now + 1;
        if step.is_barrier {
            return;
        }
        if let Some(event) = wave.event() {
            let next = &self.record.steps[event.step as usize];
            if next.address != step.after {
                wave.ready += BRANCH_CYCLES;
            }
            self.prepare(index);
        }
    }

    /// Computes when the wave's next instruction can issue, as far as the wave itself decides.
    fn prepare(&mut self, index: usize) {
        let wave = &mut self.waves[index];
        let Some(event) = wave.event() else { return };
        let step = &self.record.steps[event.step as usize];
        let known = step.reads.iter().map(|&register| wave.registers[register as usize]).max().unwrap_or(0);
        wave.ready = wave.ready.max(known);
        if let Some(Wait { loads, local, stores }) = step.wait {
            let at = [
                settled(&mut wave.loads, loads).max(settled(&mut wave.stores, stores)),
                settled(&mut wave.local, local),
            ];
            let late = at[0].max(at[1]);
            if late > wave.ready {
                self.work.waited[usize::from(at[1] > at[0])] += (late - wave.ready) as f64;
                wave.ready = late;
            }
        }
    }

    fn load(&mut self, words: u32, lines: &[u64], salt: u64) -> u64 {
        let now = self.now as f64;
        // One look-up of a line per cycle.
        let through = self.vector_memory.take(now, vector_memory_cycles(words).max(lines.len() as f64));
        let mut arrival = through + L0_LATENCY as f64;
        for &line in lines {
            if self.first_cache.touch(line ^ salt, false).0 {
                continue;
            }
            let level = self.serve();
            let latency = [L1_LATENCY, L2_LATENCY, self.behind.memory_latency][level] as f64;
            let mut at = self.l2.take(now, LINE as f64 / self.behind.l2_bytes_per_cycle);
            if level == 2 {
                at = at.max(self.memory.take(now, LINE as f64 / self.behind.memory_bytes_per_cycle));
            }
            arrival = arrival.max(at.max(through) + latency);
        }
        arrival as u64
    }

    fn store(&mut self, words: u32, lines: &[u64]) -> u64 {
        let now = self.now as f64;
        let through = self.vector_memory.take(now, vector_memory_cycles(words).max(lines.len() as f64));
        let bytes = (lines.len() as u64 * LINE).min(u64::from(LANES * words * 4)) as f64;
        let at = self.l2.take(now, bytes / self.behind.l2_bytes_per_cycle);
        let written = lines.len() as f64 * self.behind.written * LINE as f64;
        let written = self.memory.take(now, written / self.behind.memory_bytes_per_cycle);
        (at.max(through).max(written) + L2_LATENCY as f64) as u64
    }

    /// Which level serves a line that misses in L0: each in turn, by its share.
    fn serve(&mut self) -> usize {
        for (credit, share) in self.credit.iter_mut().zip(self.behind.shares) {
            *credit += share;
        }
        let level = (0..3).max_by(|&a, &b| self.credit[a].total_cmp(&self.credit[b])).unwrap_or(2);
        self.credit[level] -= 1.0;
        level
    }

    /// Removes waves that have ended. A workgroup without waves makes room for the next.
    fn retire(&mut self, left: &mut [usize], waiting: &mut impl Iterator<Item = (usize, &'a usize)>)
    where
        Self: 'a,
    {
        let (now, work) = (self.now, &mut self.work);
        let mut freed = Vec::new();
        self.waves.retain(|wave| {
            let ended = wave.ready <= now && wave.event().is_none();
            if ended {
                work.waves += (now - wave.started) as f64;
                left[wave.slot] -= 1;
                if left[wave.slot] == 0 {
                    freed.push(wave.slot);
                }
            }
            !ended
        });
        for slot in freed {
            self.admit(slot, left, waiting);
        }
    }

    /// Releases the waves of workgroups that have all arrived at a barrier. Ended waves hold nobody up.
    fn release(&mut self, left: &[usize]) {
        for (slot, &left) in left.iter().enumerate() {
            let arrived = self.waves.iter().filter(|wave| wave.slot == slot && wave.at_barrier).count();
            if arrived == 0 || arrived < left {
                continue;
            }
            for index in 0..self.waves.len() {
                let wave = &mut self.waves[index];
                if wave.slot == slot {
                    // `ready` has been its next cycle since it arrived.
                    self.work.waited[2] += (self.now + 1 - wave.ready) as f64;
                    (wave.at_barrier, wave.ready) = (false, self.now + 1);
                    self.prepare(index);
                }
            }
        }
    }
}
