//! The machine: a code object, memory, and kernels that run.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use rayon::prelude::*;
use unhang_isa::audit::{PathWatch, Rule};
use unhang_isa::elf::ElfError;
use unhang_isa::{Chip, Format};
use unhang_objects::metadata::KernelMetadata;

use crate::float::FloatMode;
use crate::load::{self, LoadedKernel, LoadedObject};
use crate::memory::Window;
use crate::memory_access::Surroundings;
use crate::scalar::Next;
use crate::semantics::Semantics;
use crate::wave::{EXEC, LANES, Standing, Wave};
use crate::{Counts, Fault, FaultKind, Memory};

/// What the machine minds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Only computes: what an ideal chip would do.
    Compute,
    /// Stops where this chip might hang or compute nonsense, and at instructions that it does not have.
    Hazards(Chip),
}

/// A kernel to be run.
#[derive(Clone, Copy, Debug)]
pub struct Dispatch<'a> {
    /// The kernel's name.
    pub kernel: &'a str,
    /// How many workgroups.
    pub workgroups: [u32; 3],
    /// Lanes of a workgroup.
    pub workgroup_size: [u32; 3],
    /// The arguments as they lie in memory. What the runtime would add behind them is added.
    pub arguments: &'a [u8],
    /// Bytes of local memory beside what the kernel declares.
    pub dynamic_local: u32,
}

/// How approximate instructions (reciprocal, square root, exponential, logarithm, sine, cosine) come out. The card
/// promises one unit in the last place (2^29 of them in double precision); a result that is right under each of these
/// does not rest on more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Perturbation {
    /// As near as can be.
    #[default]
    None,
    /// As far from zero as the promise allows.
    Up,
    /// As near to zero as the promise allows.
    Down,
}

/// A code object in a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Object(usize);

/// An emulated card: memory, and the code objects that are loaded.
pub struct Machine {
    /// Global memory.
    pub memory: Memory,
    /// What the machine minds.
    pub mode: Mode,
    /// How many instructions a wave may execute.
    pub budget: u64,
    /// How approximate instructions come out.
    pub perturbation: Perturbation,
    objects: Vec<LoadedObject>,
}

/// Local memory of a workgroup: 64 KiB, as on the card.
const MAX_LOCAL: u32 = 64 << 10;
/// Private memory of all waves of a launch.
const MAX_SCRATCH: u64 = 1 << 30;

impl Machine {
    /// A machine without code.
    pub fn new(mode: Mode) -> Machine {
        Machine {
            memory: Memory::default(),
            mode,
            budget: 100_000_000,
            perturbation: Perturbation::None,
            objects: Vec::new(),
        }
    }

    /// A machine with one code object, which [`Machine::run`] means.
    pub fn load(code_object: &[u8], mode: Mode) -> Result<Machine, ElfError> {
        let mut machine = Machine::new(mode);
        machine.add(code_object)?;
        Ok(machine)
    }

    /// Loads one more code object into the machine's memory.
    pub fn add(&mut self, code_object: &[u8]) -> Result<Object, ElfError> {
        let chip = match self.mode {
            Mode::Compute => None,
            Mode::Hazards(chip) => Some(chip),
        };
        self.objects.push(load::load(code_object, chip, &mut self.memory)?);
        Ok(Object(self.objects.len() - 1))
    }

    /// The names of all kernels.
    pub fn kernels(&self) -> impl Iterator<Item = &str> {
        self.objects.iter().flat_map(|object| &object.kernels).map(|kernel| kernel.name.as_str())
    }

    /// What an object's metadata says of a kernel: its arguments, its registers.
    pub fn metadata(&self, object: Object, kernel: &str) -> Option<&KernelMetadata> {
        self.objects.get(object.0)?.kernels.iter().find(|found| found.name == kernel)?.metadata.as_ref()
    }

    /// The instructions of a kernel, or of all functions, that the emulator does not know; with how often each stands
    /// in the code.
    pub fn unsupported(&self, kernel: Option<&str>) -> BTreeMap<&'static str, usize> {
        let mut names = BTreeMap::new();
        let functions = self.objects.iter().flat_map(|object| &object.functions);
        for function in functions.filter(|function| kernel.is_none_or(|name| name == function.name)) {
            // Behind the end of a function comes padding that is never reached.
            for (instruction, semantics) in function.program.instructions.iter().zip(&function.semantics) {
                if matches!(semantics, Semantics::Unsupported) && instruction.definition.mnemonic != "s_code_end" {
                    *names.entry(instruction.definition.mnemonic).or_default() += 1;
                }
            }
        }
        names
    }

    /// The chip for which the first object says that it was compiled.
    pub fn target(&self) -> Option<Chip> {
        self.objects.first().map(|object| object.chip)
    }

    /// Runs a kernel of the first object to its end.
    pub fn run(&mut self, dispatch: &Dispatch<'_>) -> Result<Counts, Fault> {
        self.run_in(Object(0), dispatch)
    }

    /// Runs a kernel of an object to its end.
    pub fn run_in(&mut self, object: Object, dispatch: &Dispatch<'_>) -> Result<Counts, Fault> {
        let start_fault =
            |kind| Fault { kind, kernel: dispatch.kernel.to_owned(), offset: 0, instruction: String::new() };
        let kernels = self.objects.get(object.0).map(|object| object.kernels.as_slice()).unwrap_or_default();
        let number = kernels
            .iter()
            .position(|kernel| kernel.name == dispatch.kernel)
            .ok_or_else(|| start_fault(FaultKind::NoKernel))?;
        let mark = self.memory.mark();
        let started = self.start(object, number, dispatch).map_err(start_fault);
        let result = started.and_then(|launch| self.run_groups(&launch));
        self.memory.release(mark);
        result
    }

    fn start<'d>(
        &mut self,
        object: Object,
        number: usize,
        dispatch: &'d Dispatch<'d>,
    ) -> Result<Launch<'d>, FaultKind> {
        let kernel = &self.objects[object.0].kernels[number];
        let descriptor = kernel.descriptor;
        if descriptor.wave64() {
            return Err(FaultKind::Start("its waves have 64 lanes"));
        }
        let local = descriptor.group_segment_size.saturating_add(dispatch.dynamic_local);
        if local > MAX_LOCAL {
            return Err(FaultKind::Start("it wants more than 64 KiB of local memory"));
        }
        let lanes = dispatch.workgroup_size.iter().try_fold(1u32, |product, &size| product.checked_mul(size));
        let lanes = lanes
            .filter(|lanes| (1..=1024).contains(lanes))
            .ok_or(FaultKind::Start("a workgroup has 1 to 1024 lanes"))?;
        let groups: u64 = dispatch.workgroups.iter().map(|&count| count as u64).product();
        let waves = groups.saturating_mul(lanes.div_ceil(LANES as u32) as u64);
        let wave_scratch = descriptor.private_segment_size.next_multiple_of(4) as u64 * LANES as u64;
        let all_scratch = waves.checked_mul(wave_scratch).filter(|&bytes| bytes <= MAX_SCRATCH);
        let all_scratch = all_scratch.ok_or(FaultKind::Start("it wants more than 1 GiB of private memory"))?;
        let arguments = kernel_arguments(kernel, dispatch);
        let kernarg = self.memory.allocate_bytes(&arguments);
        let packet = self.memory.allocate_bytes(&dispatch_packet(dispatch, local, kernarg));
        let scratch = self.memory.allocate(all_scratch as usize);
        Ok(Launch { object: object.0, number, dispatch, kernarg, packet, local, lanes, scratch, wave_scratch })
    }

    fn run_groups(&self, launch: &Launch<'_>) -> Result<Counts, Fault> {
        let [x, y, z] = launch.dispatch.workgroups.map(u64::from);
        let total = Mutex::new(Counts::default());
        let fault = (0..x * y * z).into_par_iter().find_map_first(|group| {
            let place = [group % x, group / x % y, group / (x * y)].map(|place| place as u32);
            match self.run_group(launch, place) {
                Ok(counts) => {
                    *total.lock().unwrap_or_else(PoisonError::into_inner) += counts;
                    None
                }
                Err(fault) => Some(fault),
            }
        });
        match fault {
            Some(fault) => Err(fault),
            None => Ok(total.into_inner().unwrap_or_else(PoisonError::into_inner)),
        }
    }

    fn run_group(&self, launch: &Launch<'_>, group: [u32; 3]) -> Result<Counts, Fault> {
        let object = &self.objects[launch.object];
        let mut local = vec![0; launch.local as usize];
        let mut waves: Vec<Wave> =
            (0..launch.lanes.div_ceil(LANES as u32)).map(|wave| self.new_wave(launch, group, wave)).collect();
        let mut counts = Counts::default();
        loop {
            for wave in &mut waves {
                if wave.standing == Standing::Running {
                    let mut around = Surroundings { global: Window::new(&self.memory), local: &mut local };
                    if let Err(kind) = self.run_wave(object, wave, &mut around, &mut counts) {
                        return Err(fault(object, wave, kind));
                    }
                }
            }
            // A wave that has ended does not hold up the others.
            if waves.iter().all(|wave| wave.standing == Standing::Ended) {
                return Ok(counts);
            }
            for wave in waves.iter_mut().filter(|wave| wave.standing == Standing::AtBarrier) {
                wave.standing = Standing::Running;
            }
        }
    }

    /// The registers as the command processor sets them up.
    fn new_wave(&self, launch: &Launch<'_>, group: [u32; 3], number: u32) -> Wave {
        let kernel = &self.objects[launch.object].kernels[launch.number];
        let descriptor = kernel.descriptor;
        let vectors = ((descriptor.resource1 & 63) as usize + 1) * 8;
        let [x, y, _] = launch.dispatch.workgroups.map(u64::from);
        let linear = group[0] as u64 + x * (group[1] as u64 + y * group[2] as u64);
        let waves = launch.lanes.div_ceil(LANES as u32) as u64;
        let scratch_offset = (linear * waves + number as u64) * launch.wave_scratch;
        // Rounding, denormals, clamping and IEEE mode, where the mode register has them.
        let mode_bits = descriptor.resource1 >> 12 & 0xff
            | (descriptor.resource1 >> 21 & 1) << 8
            | (descriptor.resource1 >> 23 & 1) << 9;
        let mut wave = Wave {
            scalars: [0; 128],
            vectors: vec![[0; LANES]; vectors],
            scc: false,
            function: kernel.entry.0,
            index: kernel.entry.1,
            standing: Standing::Running,
            executed: 0,
            spans_units: descriptor.workgroup_processor_mode(),
            mode_bits,
            mode: FloatMode::from_bits(mode_bits, self.perturbation),
            flat_scratch: [0; 2],
            scratch: (launch.scratch + scratch_offset, descriptor.private_segment_size),
            watch: PathWatch::default(),
        };
        let mut next = 0u8;
        // Scratch buffer, dispatch packet, queue, arguments, dispatch number, flat scratch, scratch size.
        for (bit, registers, value) in [
            (0, 4, launch.scratch | 1 << 63),
            (1, 2, launch.packet),
            (2, 2, 0),
            (3, 2, launch.kernarg),
            (4, 2, 0),
            (5, 2, 0),
            (6, 1, descriptor.private_segment_size as u64),
        ] {
            if descriptor.properties >> bit & 1 == 1 {
                match registers {
                    1 => wave.set_scalar(next, value as u32),
                    _ => wave.set_scalar64(next, value),
                }
                if registers == 4 {
                    // The buffer of private memory: words of 32 lanes alternate, each lane by its number.
                    wave.set_scalar64(next + 2, u32::MAX as u64 | ((2 << 21 | 1 << 23) << 32));
                }
                next += registers;
            }
        }
        let mut next = (descriptor.resource2 >> 1 & 31) as u8;
        for (axis, &place) in group.iter().enumerate() {
            if descriptor.resource2 >> (7 + axis) & 1 == 1 {
                wave.set_scalar(next, place);
                next += 1;
            }
        }
        // Behind them the workgroup's information, if asked for, and the wave's offset in private memory.
        next += (descriptor.resource2 >> 10 & 1) as u8;
        if descriptor.resource2 & 1 == 1 {
            wave.set_scalar(next, scratch_offset as u32);
        }
        let [width, height, _] = launch.dispatch.workgroup_size;
        let mut exec = 0;
        let axes = (descriptor.resource2 >> 11 & 3) as usize + 1;
        for lane in 0..LANES as u32 {
            let item = number * LANES as u32 + lane;
            if item >= launch.lanes {
                continue;
            }
            exec |= 1 << lane;
            let place = [item % width, item / width % height, item / (width * height)];
            for axis in 0..axes.min(3) {
                wave.set_vector_lane(axis, lane as usize, place[axis]);
            }
        }
        wave.scalars[EXEC] = exec;
        wave
    }

    /// Runs a wave to its end or to a barrier.
    fn run_wave(
        &self,
        object: &LoadedObject,
        wave: &mut Wave,
        around: &mut Surroundings<'_>,
        counts: &mut Counts,
    ) -> Result<(), FaultKind> {
        loop {
            let function = &object.functions[wave.function];
            let index = wave.index as usize;
            let Some(instruction) = function.program.instructions.get(index) else {
                return Err(FaultKind::Jump {
                    address: function.base + function.program.offsets.last().map_or(0, |&it| it as u64),
                });
            };
            wave.executed += 1;
            if wave.executed > self.budget {
                return Err(FaultKind::Budget { limit: self.budget });
            }
            counts.note(function.units[index], wave.exec().count_ones());
            if let Mode::Hazards(chip) = self.mode {
                if !instruction.definition.exists_on(chip) {
                    return Err(FaultKind::Illegal);
                }
                if chip.is_rdna1() {
                    if let Some((rule, _)) = wave.watch.next(instruction, false) {
                        return Err(FaultKind::Hazard { rule });
                    }
                    if instruction.format() == Format::Flat && instruction.flat_offset() != 0 {
                        return Err(FaultKind::Hazard { rule: Rule::FlatOffset });
                    }
                    if wave.spans_units && wave.is_misaligned(instruction) {
                        return Err(FaultKind::Hazard { rule: Rule::LocalMisaligned });
                    }
                }
            }
            match function.semantics[index] {
                Semantics::Scalar(operation) => {
                    let address = function.base + function.program.offsets[index] as u64;
                    let after = address + instruction.size() as u64;
                    match wave.run_scalar(instruction, operation, address) {
                        Next::Continue => {}
                        Next::End => {
                            wave.standing = Standing::Ended;
                            return Ok(());
                        }
                        Next::Barrier => {
                            wave.standing = Standing::AtBarrier;
                            wave.index += 1;
                            return Ok(());
                        }
                        Next::Relative(bytes) => {
                            (wave.function, wave.index) = object.find(after.wrapping_add(bytes as u64))?;
                            continue;
                        }
                        Next::Absolute(target) => {
                            (wave.function, wave.index) = object.find(target)?;
                            continue;
                        }
                    }
                }
                Semantics::Memory(access) => wave.run_memory(instruction, access, around)?,
                semantics => wave.run_vector(instruction, semantics)?,
            }
            wave.index += 1;
        }
    }
}

fn fault(object: &LoadedObject, wave: &Wave, kind: FaultKind) -> Fault {
    let function = &object.functions[wave.function];
    let index = wave.index as usize;
    let instruction = function.program.instructions.get(index).map(|it| it.text(false).to_string());
    Fault {
        kind,
        kernel: function.name.clone(),
        offset: function.program.offsets.get(index).copied().unwrap_or(0),
        instruction: instruction.unwrap_or_default(),
    }
}

/// A kernel that is being run.
struct Launch<'d> {
    object: usize,
    number: usize,
    dispatch: &'d Dispatch<'d>,
    kernarg: u64,
    packet: u64,
    local: u32,
    lanes: u32,
    /// Private memory of all waves, and bytes of each.
    scratch: u64,
    wave_scratch: u64,
}

/// The arguments with what the runtime adds for the compiler's own use.
fn kernel_arguments(kernel: &LoadedKernel, dispatch: &Dispatch<'_>) -> Vec<u8> {
    let mut bytes = dispatch.arguments.to_vec();
    let size = (kernel.descriptor.kernarg_size as usize).max(bytes.len());
    // Compilers load a little more than they need where that makes one load of two; the runtime leaves room for it.
    bytes.resize(size.min(64 << 10).max(bytes.len()).next_multiple_of(64), 0);
    let Some(metadata) = &kernel.metadata else { return bytes };
    for argument in &metadata.arguments {
        let axis = match argument.kind.as_bytes().last() {
            Some(b'x') => 0,
            Some(b'y') => 1,
            _ => 2,
        };
        let value = match argument.kind.trim_end_matches(['x', 'y', 'z']) {
            "hidden_block_count_" => dispatch.workgroups[axis],
            "hidden_group_size_" => dispatch.workgroup_size[axis],
            "hidden_grid_dims" => 3,
            _ => continue,
        };
        let (offset, length) = (argument.offset as usize, (argument.size as usize).min(4));
        if let Some(place) = offset.checked_add(length).and_then(|end| bytes.get_mut(offset..end)) {
            place.copy_from_slice(&value.to_le_bytes()[..length]);
        }
    }
    bytes
}

/// The packet that kernels of older compilers read their dimensions from.
fn dispatch_packet(dispatch: &Dispatch<'_>, local: u32, kernarg: u64) -> [u8; 64] {
    let mut packet = [0; 64];
    for axis in 0..3 {
        let size = dispatch.workgroup_size[axis];
        packet[4 + axis * 2..6 + axis * 2].copy_from_slice(&(size as u16).to_le_bytes());
        let grid = size.wrapping_mul(dispatch.workgroups[axis]);
        packet[12 + axis * 4..16 + axis * 4].copy_from_slice(&grid.to_le_bytes());
    }
    packet[28..32].copy_from_slice(&local.to_le_bytes());
    packet[40..48].copy_from_slice(&kernarg.to_le_bytes());
    packet
}
