//! Workgroups and their waves: the registers at the start, and the execution of one instruction after another.

use unhang_isa::elf::KernelDescriptor;

use crate::code::Paths;
use crate::fast::run::{Turn, run_function};
use crate::float::FloatMode;
use crate::function::NOWHERE;
use crate::launch::Launch;
use crate::memory::Window;
use crate::pending::{Track, Tracker};
use crate::races::Races;
use crate::registers::Registers;
use crate::semantics::{Hole, Semantics};
use crate::settings::Mode;
use crate::surroundings::{LocalBounds, Surroundings};
use crate::wave::{EXEC, LANES, Standing, Wave};
use crate::{Counts, Fault, FaultKind};

/// Instructions of a wave per turn. Waves of a workgroup may wait for each other without a barrier, and stopping a
/// launch must not take long.
const TURN: u64 = 1 << 16;

/// A running workgroup.
pub(crate) struct Group {
    waves: Vec<Wave>,
    /// What is pending in each wave.
    tracks: Vec<Track>,
    local: Vec<u8>,
    /// What its waves did to memory, if races are checked.
    races: Option<Races>,
}

/// Registers and LDS of finished workgroups, for new ones of the same launch: all have the same sizes.
#[derive(Default)]
pub(crate) struct Leftovers {
    registers: Vec<Registers>,
    locals: Vec<Vec<u8>>,
}

impl Leftovers {
    /// Keeps what a finished workgroup no longer needs.
    pub(crate) fn keep(&mut self, group: Group) {
        self.registers.extend(group.waves.into_iter().map(|wave| wave.vectors));
        self.locals.push(group.local);
    }

    /// That many registers, all zero.
    fn registers(&mut self, count: usize) -> Registers {
        match self.registers.pop() {
            Some(mut registers) => {
                registers.clear();
                registers
            }
            None => Registers::new(count, 0),
        }
    }

    /// That many bytes of LDS, all zero.
    fn local(&mut self, size: usize) -> Vec<u8> {
        match self.locals.pop() {
            Some(mut local) => {
                local.fill(0);
                local
            }
            None => vec![0; size],
        }
    }
}

impl Group {
    /// A workgroup at its start, with the share of private memory of that number.
    pub(crate) fn new(launch: &Launch<'_>, group: [u32; 3], private: u64, leftovers: &mut Leftovers) -> Group {
        let size: [u32; 3] = std::array::from_fn(|axis| {
            let full = launch.packet.workgroup_size[axis] as u32;
            full.min(launch.packet.grid_size[axis].saturating_sub(group[axis].saturating_mul(full)))
        });
        let workgroup = Workgroup { place: group, size };
        let waves = workgroup.items().div_ceil(launch.lanes());
        Group {
            waves: (0..waves)
                .map(|wave| {
                    let private = private * launch.waves() + wave as u64;
                    new_wave(launch, workgroup, wave, private, leftovers)
                })
                .collect(),
            tracks: (0..waves).map(|_| Track::default()).collect(),
            local: leftovers.local(launch.packet.group_segment_size as usize),
            races: launch.races.then(|| Races::new(waves as usize, matches!(launch.mode, Mode::Hazards(_)))),
        }
    }

    /// Gives every wave a turn. Returns whether all have ended.
    pub(crate) fn run(
        &mut self,
        launch: &Launch<'_>,
        paths: &mut Paths<'_>,
        counts: &mut Counts,
    ) -> Result<bool, Fault> {
        let waves = self.waves.iter_mut().zip(&mut self.tracks);
        for (wave, track) in waves.filter(|(wave, _)| wave.standing == Standing::Running) {
            let races = self.races.as_mut();
            let mut around = Surroundings {
                global: Window::new(launch.memory),
                local: &mut self.local,
                races,
                bounds: LocalBounds::new(launch.local_bounds),
            };
            let ended = run_wave(launch, wave, track, &mut around, paths, counts);
            counts.beyond_local += around.bounds.beyond;
            if let Err(kind) = ended {
                return Err(fault(launch, paths, wave, kind));
            }
        }
        // An ended wave does not hold up the others.
        if self.waves.iter().all(|wave| wave.standing != Standing::Running) {
            if let Some(races) = &mut self.races {
                races.barrier();
            }
            for wave in self.waves.iter_mut().filter(|wave| wave.standing == Standing::AtBarrier) {
                wave.standing = Standing::Running;
            }
        }
        Ok(self.waves.iter().all(|wave| wave.standing == Standing::Ended))
    }

    /// The fault of a stopped launch, at the position of its first wave.
    pub(crate) fn stopped(&self, launch: &Launch<'_>, paths: &mut Paths<'_>) -> Fault {
        match self.waves.iter().find(|wave| wave.standing != Standing::Ended) {
            Some(wave) => fault(launch, paths, wave, FaultKind::Stopped),
            None => launch.fault(FaultKind::Stopped, 0, String::new()),
        }
    }
}

fn fault(launch: &Launch<'_>, paths: &Paths<'_>, wave: &Wave, kind: FaultKind) -> Fault {
    let Some(function) = paths.functions.get(wave.function as usize).map(|function| &function.plain) else {
        return launch.fault(kind, wave.entry, String::new());
    };
    let index = wave.index as usize;
    let text = match (function.semantics.get(index), function.instructions.get(index)) {
        (Some(Semantics::Hole(Hole::Word(word))), _) => format!(".long {word:#010x}"),
        (Some(Semantics::Hole(Hole::Unmapped)), _) | (_, None) => String::new(),
        (_, Some(instruction)) => instruction.text(wave.wave64).to_string(),
    };
    launch.fault(kind, function.addresses.get(index).copied().unwrap_or(function.entry), text)
}

/// The initial mode register: rounding, denormals, clamping and IEEE mode, in its own bit positions.
pub(crate) fn mode_bits(descriptor: &KernelDescriptor) -> u32 {
    descriptor.resource1 >> 12 & 0xff | (descriptor.resource1 >> 21 & 1) << 8 | (descriptor.resource1 >> 23 & 1) << 9
}

/// A workgroup: its position in the grid, and its work-items along each axis, which are fewer at the grid's end.
#[derive(Clone, Copy)]
struct Workgroup {
    place: [u32; 3],
    size: [u32; 3],
}

impl Workgroup {
    fn items(&self) -> u32 {
        self.size.iter().product()
    }
}

/// The registers as the command processor sets them up.
fn new_wave(launch: &Launch<'_>, workgroup: Workgroup, number: u32, private: u64, leftovers: &mut Leftovers) -> Wave {
    let (descriptor, packet) = (launch.descriptor, launch.packet);
    let wave64 = descriptor.wave64();
    let granule = if wave64 { 4 } else { 8 };
    let registers = ((descriptor.resource1 & 63) as usize + 1) * granule;
    let scratch_offset = private * packet.scratch.bytes_per_wave;
    let mode_bits = mode_bits(&descriptor);
    let mut wave = Wave {
        scalars: [0; 128],
        vectors: leftovers.registers(registers * (1 + wave64 as usize)),
        registers,
        half: 0,
        wave64,
        scc: false,
        entry: packet.kernel_object.wrapping_add(descriptor.entry_offset as u64),
        number,
        workgroup: workgroup.place,
        function: NOWHERE,
        index: 0,
        standing: Standing::Running,
        executed: 0,
        spans_units: descriptor.workgroup_processor_mode(),
        mode_bits,
        mode: FloatMode::from_bits(mode_bits, launch.perturbation),
        flat_scratch: [0; 2],
        scratch: (packet.scratch.address.wrapping_add(scratch_offset), packet.private_segment_size),
        apertures: [packet.local_aperture, packet.private_aperture],
        flushes: launch.code.flushes(),
        usual_mode: false,
    };
    wave.note_mode();
    set_user_scalars(&mut wave, launch);
    set_system_scalars(&mut wave, launch, workgroup, scratch_offset as u32);
    set_items(&mut wave, launch, workgroup);
    wave
}

/// The values that the descriptor requests, from the first scalar register on.
fn set_user_scalars(wave: &mut Wave, launch: &Launch<'_>) {
    let packet = launch.packet;
    let mut next = 0u8;
    // Scratch buffer, dispatch packet, queue, arguments, dispatch number, flat scratch, scratch size.
    for (bit, registers, value) in [
        (0, 4, packet.scratch.address & 0xffff_ffff_ffff | 1 << 63),
        (1, 2, packet.packet_address),
        (2, 2, packet.queue_address),
        (3, 2, packet.kernarg_address),
        (4, 2, 0),
        (5, 2, packet.scratch.address),
        (6, 1, packet.private_segment_size as u64),
    ] {
        if launch.descriptor.properties >> bit & 1 == 1 {
            match registers {
                1 => wave.set_scalar(next, value as u32),
                _ => wave.set_scalar64(next, value),
            }
            if registers == 4 {
                // The buffer of private memory: the words of all lanes alternate, each lane by its number. As ROCr
                // writes it for gfx10: nothing is out of range (OOB_SELECT 2), words are integers, components are in
                // order.
                let stride = if wave.wave64 { 3 } else { 2 };
                let last = 2 << 28 | 1 << 24 | 1 << 23 | stride << 21 | 20 << 12 | 0xfac;
                wave.set_scalar64(next + 2, u32::MAX as u64 | last << 32);
            }
            next += registers;
        }
    }
}

/// After the user's registers: the workgroup's position and information, if requested, and the wave's offset in private
/// memory.
fn set_system_scalars(wave: &mut Wave, launch: &Launch<'_>, workgroup: Workgroup, scratch_offset: u32) {
    let descriptor = launch.descriptor;
    let mut next = (descriptor.resource2 >> 1 & 31) as u8;
    for (axis, &place) in workgroup.place.iter().enumerate() {
        if descriptor.resource2 >> (7 + axis) & 1 == 1 {
            wave.set_scalar(next, place);
            next += 1;
        }
    }
    next += (descriptor.resource2 >> 10 & 1) as u8;
    if descriptor.resource2 & 1 == 1 {
        wave.set_scalar(next, scratch_offset);
    }
}

/// The active lanes, and the position of each lane's work-item in the workgroup.
fn set_items(wave: &mut Wave, launch: &Launch<'_>, workgroup: Workgroup) {
    let axes = (launch.descriptor.resource2 >> 11 & 3) as usize + 1;
    let [width, height, _] = workgroup.size;
    for lane in 0..launch.lanes() {
        let item = wave.number * launch.lanes() + lane;
        if item >= workgroup.items() {
            break;
        }
        let (half, lane) = (lane as usize / LANES, lane as usize % LANES);
        wave.scalars[EXEC + half] |= 1 << lane;
        let place = [item % width, item / width % height, item / (width * height)];
        for (axis, &place) in place.iter().enumerate().take(axes) {
            wave.vectors[half * wave.registers + axis][lane] = place;
        }
    }
}

/// Runs a wave to its end, to a barrier, or for one turn.
fn run_wave(
    launch: &Launch<'_>,
    wave: &mut Wave,
    track: &mut Track,
    around: &mut Surroundings<'_>,
    paths: &mut Paths<'_>,
    counts: &mut Counts,
) -> Result<(), FaultKind> {
    let end = wave.executed.saturating_add(TURN);
    if wave.function == NOWHERE {
        (wave.function, wave.index) = paths.find(wave.entry)?;
    }
    while wave.executed < end && wave.standing == Standing::Running {
        let number = wave.function;
        let function = &paths.functions[number as usize];
        let tracker = Tracker { known: &mut paths.known, track };
        let jump = run_function(wave, Turn { launch, around, function, tracker, counts, end })?;
        if let Some(target) = jump {
            (wave.function, wave.index) = paths.find(target)?;
        }
        debug_assert!(jump.is_some() || number == wave.function);
    }
    Ok(())
}
