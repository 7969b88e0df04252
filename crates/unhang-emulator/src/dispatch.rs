//! A launch: the checks before its start, and the distribution of its workgroups over the cores.

use std::collections::VecDeque;
use std::num::NonZero;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::code::Paths;
use crate::execute::{Group, Leftovers};
use crate::launch::Launch;
use crate::{Counts, Fault, FaultKind};

/// The most LDS of a workgroup: 64 KiB, as on the card.
const MAX_LOCAL: u32 = 64 << 10;
/// The most workgroups that one thread runs at a time. More than one only if they take long, so that workgroups that
/// wait for each other can finish.
const RESIDENT: u64 = 32;
/// A workgroup takes long once a wave has executed this many instructions.
const LONG: u64 = 1 << 20;
/// How many more turns the workgroups before a faulting one get, to show whether they fault too: the first in order is
/// reported.
const GRACE: u32 = 4;

/// The outcome so far, shared by all threads.
#[derive(Default)]
struct LaunchOutcome {
    counts: Counts,
    /// The fault of the first workgroup in order that has one.
    fault: Option<(u64, Fault)>,
}

impl Launch<'_> {
    /// Workgroups along each axis.
    fn workgroups(&self) -> [u64; 3] {
        std::array::from_fn(|axis| {
            (self.packet.grid_size[axis] as u64).div_ceil(self.packet.workgroup_size[axis].max(1) as u64)
        })
    }

    fn check(&self) -> Result<(), FaultKind> {
        let packet = self.packet;
        let items: u64 = packet.workgroup_size.iter().map(|&size| size as u64).product();
        if !(1..=1024).contains(&items) {
            return Err(FaultKind::Start("a workgroup has 1 to 1024 work-items"));
        }
        if packet.group_segment_size > MAX_LOCAL {
            return Err(FaultKind::Start("it wants more than 64 KiB of LDS"));
        }
        let needed = packet.private_segment_size as u64 * self.lanes() as u64;
        let given = packet.scratch.bytes_per_wave;
        if needed > 0 && (needed > given || given * self.waves() > packet.scratch.size) {
            return Err(FaultKind::Scratch { needed, given });
        }
        Ok(())
    }

    /// The number of workgroups that can have private memory at the same time.
    fn places(&self) -> u64 {
        match self.packet.scratch.bytes_per_wave * self.waves() {
            0 => u64::MAX,
            _ if self.packet.private_segment_size == 0 => u64::MAX,
            bytes => self.packet.scratch.size / bytes,
        }
    }

    /// Runs the kernel to its end.
    pub(crate) fn run(&self) -> Result<Counts, Fault> {
        let start = self.packet.kernel_object.wrapping_add(self.descriptor.entry_offset as u64);
        self.check().map_err(|kind| self.fault(kind, start, String::new()))?;
        let all: u64 = self.workgroups().iter().product();
        let count = self.only.map_or(all, |only| only.iter().filter(|&&number| number < all).count() as u64);
        let cores = || std::thread::available_parallelism().map_or(1, NonZero::get);
        let threads = match self.threads {
            _ if self.observer.is_some() => 1,
            0 => cores(),
            threads => threads,
        };
        let workers = (threads as u64).min(count).min(self.places());
        let next = AtomicU64::new(0);
        let outcome = Mutex::new(LaunchOutcome::default());
        if workers <= 1 {
            self.work(0, 1, count, &next, &outcome);
        } else {
            // These threads belong to this launch only: a launch that never ends must not block others.
            std::thread::scope(|scope| {
                for worker in 1..workers {
                    let (next, outcome) = (&next, &outcome);
                    scope.spawn(move || self.work(worker, workers, count, next, outcome));
                }
                self.work(0, workers, count, &next, &outcome);
            });
        }
        let outcome = outcome.into_inner().unwrap_or_else(PoisonError::into_inner);
        match outcome.fault {
            Some((_, fault)) => Err(fault),
            None => Ok(outcome.counts),
        }
    }

    /// The work of one thread: it takes workgroups in order.
    fn work(&self, worker: u64, workers: u64, count: u64, next: &AtomicU64, outcome: &Mutex<LaunchOutcome>) {
        let lock = || -> MutexGuard<'_, LaunchOutcome> { outcome.lock().unwrap_or_else(PoisonError::into_inner) };
        let room = (self.places() / workers).clamp(1, RESIDENT);
        let mut free: Vec<u64> = (0..room).rev().map(|place| worker + place * workers).collect();
        let mut resident: VecDeque<(u64, u64, Group)> = VecDeque::new();
        let mut paths = Paths::new(self.code, self.fast, self.checks_hazards());
        let (mut counts, mut leftovers) = (Counts::default(), Leftovers::default());
        let long = LONG * self.waves();
        let (mut admitted_at, mut after_fault) = (0, 0);
        loop {
            let first_fault = lock().fault.as_ref().map(|(number, _)| *number);
            if first_fault.is_some() {
                // Only workgroups before it in order still matter, and not for long.
                after_fault += 1;
                resident.retain(|(number, ..)| after_fault <= GRACE && Some(*number) < first_fault);
                if resident.is_empty() {
                    break;
                }
            } else if resident.is_empty() || counts.instructions() - admitted_at > long * resident.len() as u64 {
                admitted_at = counts.instructions();
                if let Some(place) = free.pop() {
                    match next.fetch_add(1, Ordering::Relaxed) {
                        number if number < count => {
                            let group = Group::new(self, self.place_of(number), place, &mut leftovers);
                            resident.push_front((number, place, group));
                        }
                        _ if resident.is_empty() => break,
                        _ => free.push(place),
                    }
                }
            }
            let Some((number, place, mut group)) = resident.pop_front() else { break };
            let stopped = self.stop.load(Ordering::Relaxed);
            let ran =
                if stopped { Err(group.stopped(self, &mut paths)) } else { group.run(self, &mut paths, &mut counts) };
            match ran {
                Ok(true) => {
                    leftovers.keep(group);
                    free.push(place);
                }
                Ok(false) => resident.push_back((number, place, group)),
                Err(fault) => {
                    let mut outcome = lock();
                    if outcome.fault.as_ref().is_none_or(|(other, _)| number < *other) {
                        outcome.fault = Some((number, fault));
                    }
                }
            }
        }
        paths.keep();
        lock().counts += counts;
    }

    /// The position of a workgroup in the grid, by its number among those that run.
    fn place_of(&self, number: u64) -> [u32; 3] {
        let number = self.only.map_or(number, |only| only[number as usize]);
        let [x, y, _] = self.workgroups();
        [number % x, number / x % y, number / (x * y)].map(|place| place as u32)
    }
}
