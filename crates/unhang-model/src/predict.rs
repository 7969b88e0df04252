//! A sample of a kernel, and its prediction for a card.

use std::fmt;

use serde::Serialize;
use unhang_emulator::{Dispatch, Fault, FaultKind, Machine, Object};

use crate::cache::{Caches, Lines};
use crate::card::{
    BARRIERS, Card, DRAM_NANOSECONDS, DRAM_SHARE, L2_BYTES_PER_CYCLE, LANES, LAUNCH_SECONDS, LOCAL_BYTES, SIMDS,
    VECTOR_REGISTERS, WAVES,
};
use crate::record::{Cost, NO_COST, Record};
use crate::step::Arithmetic;
use crate::unit::{Behind, ComputeUnit, Work};

/// Instructions, over all waves, to record from beginning to end, and for the caches.
const WHOLE: u64 = 2_000_000;
const WINDOW: u64 = 2_000_000;
/// The most instructions to play to learn how long a round of workgroups takes.
const PLAYED: u64 = 6_000_000;
/// The most workgroups to record from beginning to end.
const MOST_GROUPS: u64 = 8;
/// Compute units of the largest card on which a sample is played.
const MOST_UNITS: u64 = 40;

/// What bounds a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Bound {
    /// Vector arithmetic issues most of the time.
    Vector,
    /// LDS is busy most of the time.
    Local,
    /// The path to the first cache is busy most of the time.
    VectorMemory,
    /// The second cache is busy most of the time.
    L2,
    /// Memory is busy most of the time.
    Memory,
    /// No unit is busy: waves wait for loads.
    WaitingForLoads,
    /// No unit is busy: waves wait for LDS or scalar loads.
    WaitingForLocal,
    /// No unit is busy: waves wait for each other.
    WaitingAtBarriers,
    /// No unit is busy: results are used too soon, or too few waves share a SIMD.
    Dependencies,
    /// The launch takes longer than the work.
    Launch,
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Bound::Vector => "vector arithmetic",
            Bound::Local => "LDS",
            Bound::VectorMemory => "vector memory",
            Bound::L2 => "L2",
            Bound::Memory => "memory",
            Bound::WaitingForLoads => "waits for loads",
            Bound::WaitingForLocal => "waits for LDS",
            Bound::WaitingAtBarriers => "barriers",
            Bound::Dependencies => "dependencies",
            Bound::Launch => "launch",
        })
    }
}

/// The shares of the time for which parts of a card were busy, and for which waves waited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Busy {
    /// Vector arithmetic.
    pub vector: f64,
    /// Scalar arithmetic.
    pub scalar: f64,
    /// LDS.
    pub local: f64,
    /// The path to the first cache.
    pub vector_memory: f64,
    /// The second cache.
    pub l2: f64,
    /// Memory.
    pub memory: f64,
    /// The shares of a wave's time spent waiting for loads from memory, for LDS and scalar loads, and at barriers.
    pub waiting: [f64; 3],
}

/// The predicted time of a kernel on a card. Not measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Prediction {
    /// The card.
    pub card: &'static str,
    /// Seconds, including the launch.
    pub seconds: f64,
    /// What bounds it.
    pub bound: Bound,
    /// How busy the parts of the card are.
    pub busy: Busy,
    /// Workgroups that a compute unit holds at a time.
    pub workgroups_per_unit: u32,
    /// The most waves of a SIMD.
    pub waves_per_simd: u32,
    /// Floating-point operations of all lanes.
    pub operations: f64,
    /// Bytes that the compute units request from the second cache.
    pub l2_bytes: f64,
    /// Bytes from and to memory.
    pub memory_bytes: f64,
    /// The share of LDS's time spent on bank conflicts.
    pub bank_conflicts: f64,
    /// The shares of vector instructions by class: full rate, packed, 64-bit integers, quarter rate, transcendental,
    /// f64.
    pub arithmetic: [f64; 6],
}

/// What some workgroups of a kernel did.
pub struct Sample {
    workgroups: u64,
    waves: u64,
    vgprs: u32,
    local_bytes: u32,
    /// Instructions of all workgroups for each that was recorded.
    whole: Record,
    scale: f64,
    window: Record,
}

impl Sample {
    /// Records workgroups of a kernel on the emulator: a few from beginning to end, spread over the grid, and the
    /// beginning of twice as many as a card runs at a time. Only these write to the machine's memory.
    pub fn take(machine: &mut Machine, object: Object, dispatch: &Dispatch<'_>) -> Result<Sample, Fault> {
        let refused = |reason| Fault {
            kind: FaultKind::Start(reason),
            kernel: dispatch.kernel.to_owned(),
            offset: 0,
            instruction: String::new(),
        };
        let metadata = machine.metadata(object, dispatch.kernel).ok_or_else(|| refused("it has no metadata"))?;
        if metadata.wavefront_size != u64::from(LANES) {
            return Err(refused("only kernels of 32 lanes a wave are predicted"));
        }
        let vgprs = metadata.vgprs as u32;
        let local_bytes = metadata.group_segment_size as u32 + dispatch.dynamic_local;
        let items: u64 = dispatch.workgroup_size.iter().map(|&size| u64::from(size)).product();
        let workgroups: u64 = dispatch.workgroups.iter().map(|&count| u64::from(count)).product();
        let mut sample = Sample {
            workgroups,
            waves: items.div_ceil(u64::from(LANES)).max(1),
            vgprs,
            local_bytes,
            whole: Record::default(),
            scale: 1.0,
            window: Record::default(),
        };
        // The length of a workgroup, at the emulator's full speed.
        machine.only = Some(vec![workgroups / 2]);
        let counted = machine.run_in(object, dispatch);
        machine.only = None;
        let length = counted?.instructions().max(1);
        let count = (WHOLE / length).clamp(1, MOST_GROUPS).min(workgroups);
        let spread = (0..count).map(|place| (2 * place + 1) * workgroups / (2 * count)).collect();
        let limit = (4 * WHOLE / sample.waves).max(1) as usize;
        sample.whole = Record::take(machine, object, dispatch, spread, limit)?;
        sample.scale = (length as f64 / sample.whole.instructions() as f64 * count as f64).max(1.0);
        let at_a_time = MOST_UNITS * u64::from(sample.resident());
        let start = (workgroups / 2).saturating_sub(at_a_time);
        let window: Vec<u64> = (start..workgroups.min(start + 2 * at_a_time)).collect();
        let limit = (WINDOW / (window.len() as u64 * sample.waves)).clamp(200, 20_000) as usize;
        sample.window = Record::take(machine, object, dispatch, window, limit)?;
        Ok(sample)
    }

    /// Workgroups that a compute unit holds at a time.
    fn resident(&self) -> u32 {
        let of_simd = (VECTOR_REGISTERS / self.vgprs.max(1).next_multiple_of(8)).min(WAVES);
        let waves = self.waves as u32;
        let by_waves = if waves == 1 { of_simd * SIMDS as u32 } else { of_simd / waves.div_ceil(SIMDS as u32) };
        let by_local = LOCAL_BYTES.checked_div(self.local_bytes.next_multiple_of(512)).unwrap_or(u32::MAX);
        let by_barriers = if waves > 1 { BARRIERS } else { u32::MAX };
        by_waves.min(by_local).min(by_barriers).max(1)
    }

    /// Which level serves each line when all workgroups of a card run side by side, with caches warm from earlier
    /// workgroups.
    fn behind(&self, card: &Card) -> (Behind, f64) {
        let mut caches = Caches::of(card);
        let at_a_time = (card.compute_units * self.resident()) as usize;
        let groups = &self.window.groups;
        // The last round counts. With one round only, everything comes from memory first.
        let rounds: Vec<_> = groups.chunks(at_a_time).collect();
        let last = if rounds.len() > 1 && rounds[rounds.len() - 1].len() < at_a_time {
            rounds.len() - 2
        } else {
            rounds.len() - 1
        };
        let mut pending = 0;
        for (number, round) in rounds.iter().enumerate().take(last + 1) {
            if number == last {
                caches.restart();
                pending = caches.pending_writes();
            }
            self.touch_round(&mut caches, round);
        }
        let traffic = caches.traffic;
        let written = traffic.memory_writes + caches.pending_writes().saturating_sub(pending);
        let missed = (traffic.l1_hits + traffic.l2_hits + traffic.memory_reads).max(1) as f64;
        let shares = [traffic.l1_hits, traffic.l2_hits, traffic.memory_reads].map(|count| count as f64 / missed);
        let active = (self.workgroups as f64).min(f64::from(card.compute_units));
        let behind = Behind {
            shares,
            written: (written as f64 / traffic.stores.max(1) as f64).min(1.0),
            l2_bytes_per_cycle: (L2_BYTES_PER_CYCLE / active).min(64.0),
            memory_bytes_per_cycle: (card.bandwidth * DRAM_SHARE / card.clock / active).min(64.0),
            memory_latency: (DRAM_NANOSECONDS * 1e-9 * card.clock) as u64,
        };
        (behind, active)
    }

    fn touch_round(&self, caches: &mut Caches, round: &[Vec<crate::record::Track>]) {
        let longest = round.iter().flatten().map(|track| track.events.len()).max().unwrap_or(0);
        for place in 0..longest {
            for (group, waves) in round.iter().enumerate() {
                for event in waves.iter().filter_map(|track| track.events.get(place)).filter(|it| it.cost != NO_COST) {
                    if let Cost::Vector { lines, writes, .. } = &self.window.costs[event.cost as usize] {
                        let lines = &self.window.lines[lines.start as usize..lines.end as usize];
                        caches.touch(group, &Lines { lines, writes: *writes });
                    }
                }
            }
        }
    }

    /// Predicts the kernel's time on a card.
    pub fn predict(&self, card: &Card) -> Prediction {
        let (behind, active) = self.behind(card);
        let each = self.workgroups.div_ceil(u64::from(card.compute_units)) as usize;
        let resident = (self.resident() as usize).min(each);
        let length = (self.whole.instructions() / self.whole.groups.len().max(1) as u64).max(1);
        let rounds = (PLAYED / (length * resident as u64)).clamp(1, 3) as usize;
        let played = (rounds * resident).min(each);
        let groups = |count: usize| (0..count).map(|place| place % self.whole.groups.len()).collect::<Vec<_>>();
        let work = ComputeUnit::run(&self.whole, &groups(played), resident, behind);
        let rest = match each % played {
            0 => 0.0,
            rest => ComputeUnit::run(&self.whole, &groups(rest), resident, behind).cycles,
        };
        let cycles = ((each / played) as f64 * work.cycles + rest) * self.scale;
        let seconds = cycles / card.clock;
        let busy = busy(&work);
        let parts = cycles / work.cycles * active;
        Prediction {
            card: card.name,
            seconds: seconds + LAUNCH_SECONDS,
            bound: if seconds < LAUNCH_SECONDS { Bound::Launch } else { bound(&busy) },
            busy,
            workgroups_per_unit: resident as u32,
            waves_per_simd: (resident as u32 * self.waves as u32).div_ceil(SIMDS as u32),
            operations: self.whole.operations() * self.scale * self.workgroups as f64 / self.whole.groups.len() as f64,
            l2_bytes: work.l2 * behind.l2_bytes_per_cycle * parts,
            memory_bytes: work.memory * behind.memory_bytes_per_cycle * parts,
            bank_conflicts: self.whole.conflicts as f64 / self.whole.local_cycles().max(1) as f64,
            arithmetic: self.whole.arithmetic(),
        }
    }
}

fn busy(work: &Work) -> Busy {
    let share = |cycles: f64| cycles / work.cycles.max(1.0);
    Busy {
        vector: share(work.vector) / SIMDS as f64,
        scalar: share(work.scalar) / SIMDS as f64,
        local: share(work.local),
        vector_memory: share(work.vector_memory),
        l2: share(work.l2),
        memory: share(work.memory),
        waiting: work.waited.map(|cycles| cycles / work.waves.max(1.0)),
    }
}

/// A part that is busy for three quarters of the time bounds a kernel. Otherwise the bound is what its waves wait for
/// most.
fn bound(busy: &Busy) -> Bound {
    let parts = [
        (busy.vector, Bound::Vector),
        (busy.local, Bound::Local),
        (busy.vector_memory, Bound::VectorMemory),
        (busy.l2, Bound::L2),
        (busy.memory, Bound::Memory),
    ];
    let most =
        |of: &[(f64, Bound)]| of.iter().copied().max_by(|a, b| a.0.total_cmp(&b.0)).unwrap_or((0.0, Bound::Vector));
    let busiest = most(&parts);
    if busiest.0 >= 0.75 {
        return busiest.1;
    }
    let [loads, local, barriers] = busy.waiting;
    let waits =
        [(loads, Bound::WaitingForLoads), (local, Bound::WaitingForLocal), (barriers, Bound::WaitingAtBarriers)];
    let longest = most(&waits);
    if longest.0 >= 0.2 { longest.1 } else { Bound::Dependencies }
}

impl Record {
    /// Instructions of all waves.
    fn instructions(&self) -> u64 {
        self.groups.iter().flatten().map(|track| track.events.len() as u64).sum::<u64>().max(1)
    }

    fn operations(&self) -> f64 {
        let events = self.groups.iter().flatten().flat_map(|track| &track.events);
        events.map(|event| f64::from(self.steps[event.step as usize].operations)).sum::<f64>() * f64::from(LANES)
    }

    fn local_cycles(&self) -> u64 {
        let events = self.groups.iter().flatten().flat_map(|track| &track.events);
        let costs = events.filter(|event| event.cost != NO_COST).map(|event| &self.costs[event.cost as usize]);
        costs.map(|cost| if let Cost::Local(cycles) = cost { u64::from(*cycles) } else { 0 }).sum()
    }

    fn arithmetic(&self) -> [f64; 6] {
        let mut counts = [0.0; 6];
        for event in self.groups.iter().flatten().flat_map(|track| &track.events) {
            let place = match self.steps[event.step as usize].arithmetic {
                Some(Arithmetic::Full) => 0,
                Some(Arithmetic::Packed) => 1,
                Some(Arithmetic::Wide) => 2,
                Some(Arithmetic::Quarter) => 3,
                Some(Arithmetic::Transcendental) => 4,
                Some(Arithmetic::Double) => 5,
                None => continue,
            };
            counts[place] += 1.0;
        }
        let all: f64 = counts.iter().sum::<f64>().max(1.0);
        counts.map(|count| count / all)
    }
}
