//! A kernel that is launched from memory: the packet, the checks before its start, and its workgroups over the cores.

use std::collections::VecDeque;
use std::num::NonZero;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use unhang_isa::elf::KernelDescriptor;

use crate::code::{Code, Paths};
use crate::execute::{Group, Leftovers};
use crate::{Counts, Fault, FaultKind, Memory, Mode, Observer, Perturbation};

/// Private memory for the waves of a queue, as the runtime lays it out in `amd_queue_t`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scratch {
    /// `scratch_backing_memory_location`.
    pub address: u64,
    /// Bytes of all of it.
    pub size: u64,
    /// Bytes of each wave: `WAVESIZE` of `compute_tmpring_size`, which counts units of 1 KiB.
    pub bytes_per_wave: u64,
}

/// What a kernel dispatch packet says, and what its queue adds. Addresses are the device's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Where the packet itself is; kernels of older compilers read their dimensions there.
    pub packet_address: u64,
    /// Where the queue (`amd_queue_t`) is.
    pub queue_address: u64,
    /// Where the kernel's descriptor is.
    pub kernel_object: u64,
    /// Where the arguments lie.
    pub kernarg_address: u64,
    /// Work-items of a workgroup.
    pub workgroup_size: [u16; 3],
    /// Work-items of the whole grid; the last workgroups may be partial.
    pub grid_size: [u32; 3],
    /// Bytes of private memory a work-item.
    pub private_segment_size: u32,
    /// Bytes of LDS a workgroup.
    pub group_segment_size: u32,
    /// Private memory of the queue.
    pub scratch: Scratch,
    /// The base of LDS in flat addresses: `lds_base` of the process's apertures.
    pub local_aperture: u64,
    /// The base of private memory in flat addresses: `scratch_base` of the process's apertures.
    pub private_aperture: u64,
}

impl Packet {
    /// The base of LDS in flat addresses, unless the driver says something else.
    pub const LOCAL_APERTURE: u64 = 0x1_0000 << 32;
    /// The base of private memory in flat addresses, unless the driver says something else.
    pub const PRIVATE_APERTURE: u64 = 0x2_0000 << 32;

    /// The packet as it is in a queue, without header and signal.
    pub(crate) fn bytes(&self) -> [u8; 64] {
        let mut bytes = [0; 64];
        for axis in 0..3 {
            bytes[4 + axis * 2..6 + axis * 2].copy_from_slice(&self.workgroup_size[axis].to_le_bytes());
            bytes[12 + axis * 4..16 + axis * 4].copy_from_slice(&self.grid_size[axis].to_le_bytes());
        }
        bytes[24..28].copy_from_slice(&self.private_segment_size.to_le_bytes());
        bytes[28..32].copy_from_slice(&self.group_segment_size.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.kernel_object.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.kernarg_address.to_le_bytes());
        bytes
    }
}

/// LDS of a workgroup: 64 KiB, as on the card.
const MAX_LOCAL: u32 = 64 << 10;
/// Workgroups that one thread has under way at most. More than one only where they take long, so that workgroups which
/// wait for each other come to an end.
const RESIDENT: u64 = 32;
/// Instructions of a wave after which its workgroup takes long.
const LONG: u64 = 1 << 20;
/// Turns that workgroups before a faulting one are given to show whether they fault too: the first in order is reported.
const GRACE: u32 = 4;

/// A kernel that is being run.
pub(crate) struct Launch<'a> {
    pub memory: &'a Memory,
    pub code: &'a Code<'a>,
    pub packet: &'a Packet,
    pub descriptor: KernelDescriptor,
    pub mode: Mode,
    pub budget: u64,
    pub perturbation: Perturbation,
    pub stop: &'a AtomicBool,
    /// Threads to run on; 0 for all cores.
    pub threads: usize,
    /// Whether instructions may take the fast path.
    pub fast: bool,
    /// Whether accesses of two waves to the same bytes are looked at.
    pub races: bool,
    /// Whether DS instructions beyond LDS stop the kernel.
    pub local_bounds: bool,
    /// The numbers of the workgroups that are run, if not all are.
    pub only: Option<&'a [u64]>,
    /// Who sees each instruction.
    pub observer: Option<&'a dyn Observer>,
    /// The function in which an address is, by name, with its start: for faults.
    pub name: &'a (dyn Fn(u64) -> (String, u64) + Sync),
}

/// The outcome so far, shared by all threads.
#[derive(Default)]
struct Outcome {
    counts: Counts,
    /// The fault of the first workgroup in order that has one.
    fault: Option<(u64, Fault)>,
}

impl Launch<'_> {
    /// Lanes of a wave.
    pub fn lanes(&self) -> u32 {
        if self.descriptor.wave64() { 64 } else { 32 }
    }

    /// Waves of a full workgroup.
    pub fn waves(&self) -> u64 {
        let items: u64 = self.packet.workgroup_size.iter().map(|&size| size as u64).product();
        items.div_ceil(self.lanes() as u64)
    }

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

    /// Workgroups that can have private memory at the same time.
    fn places(&self) -> u64 {
        match self.packet.scratch.bytes_per_wave * self.waves() {
            0 => u64::MAX,
            _ if self.packet.private_segment_size == 0 => u64::MAX,
            bytes => self.packet.scratch.size / bytes,
        }
    }

    /// Runs the kernel to its end.
    pub fn run(&self) -> Result<Counts, Fault> {
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
        let outcome = Mutex::new(Outcome::default());
        if workers <= 1 {
            self.work(0, 1, count, &next, &outcome);
        } else {
            // Threads of this launch alone: one that never ends must not keep others from running.
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

    /// What one thread does: it takes workgroups in order.
    fn work(&self, worker: u64, workers: u64, count: u64, next: &AtomicU64, outcome: &Mutex<Outcome>) {
        let lock = || -> MutexGuard<'_, Outcome> { outcome.lock().unwrap_or_else(PoisonError::into_inner) };
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
                // Only what comes before it in order is still of interest, and not for long.
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

    /// Whether hazards are checked.
    pub fn checks_hazards(&self) -> bool {
        matches!(self.mode, Mode::Hazards(chip) if chip.is_rdna1())
    }

    /// The place of a workgroup in the grid, by its number among those that are run.
    fn place_of(&self, number: u64) -> [u32; 3] {
        let number = self.only.map_or(number, |only| only[number as usize]);
        let [x, y, _] = self.workgroups();
        [number % x, number / x % y, number / (x * y)].map(|place| place as u32)
    }

    /// A fault at an address.
    pub fn fault(&self, kind: FaultKind, address: u64, instruction: String) -> Fault {
        let (kernel, start) = (self.name)(address);
        Fault { kind, kernel, offset: address.wrapping_sub(start) as i64, instruction }
    }
}
