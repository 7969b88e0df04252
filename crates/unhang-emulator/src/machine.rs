//! The machine: code objects, memory, and launched kernels.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use unhang_isa::elf::{ElfError, KernelDescriptor};
use unhang_isa::{Chip, Program};
use unhang_objects::metadata::KernelMetadata;

use crate::code::{Code, CodeCache};
use crate::execute::mode_bits;
use crate::float::FloatMode;
use crate::function::Reading;
use crate::image::Image;
use crate::launch::{Launch, Packet, Scratch};
use crate::load::{self, LoadedKernel, LoadedObject};
use crate::semantics::Semantics;
use crate::settings::{Mode, Perturbation};
use crate::{Counts, Fault, FaultKind, Memory, Observer};

/// A kernel to run.
#[derive(Clone, Copy, Debug)]
pub struct Dispatch<'a> {
    /// The kernel's name.
    pub kernel: &'a str,
    /// The number of workgroups.
    pub workgroups: [u32; 3],
    /// Lanes of a workgroup.
    pub workgroup_size: [u32; 3],
    /// The arguments as they are in memory. The arguments that the runtime would append are added.
    pub arguments: &'a [u8],
    /// Bytes of local memory in addition to what the kernel declares.
    pub dynamic_local: u32,
}

impl<'a> Dispatch<'a> {
    /// With the local memory that the kernel declares.
    pub fn new(kernel: &'a str, workgroups: [u32; 3], workgroup_size: [u32; 3], arguments: &'a [u8]) -> Dispatch<'a> {
        Dispatch { kernel, workgroups, workgroup_size, arguments, dynamic_local: 0 }
    }
}

/// A code object in a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Object(usize);

/// An emulated card: memory, and loaded code objects.
pub struct Machine {
    /// Global memory.
    pub memory: Memory,
    /// Which checks are enabled.
    pub mode: Mode,
    /// The most instructions that a wave may execute.
    pub budget: u64,
    /// The outcome of approximate instructions.
    pub perturbation: Perturbation,
    /// The number of threads that run workgroups; 0 for one per core.
    pub threads: usize,
    /// Whether instructions may take the fast path. The plain one computes the same, for comparison.
    pub fast: bool,
    /// Whether a kernel stops when two waves of a workgroup touch the same bytes with neither a barrier nor atomics
    /// between them. The bytes are those of LDS and of global memory. Slow.
    pub races: bool,
    /// Whether a DS instruction beyond the LDS of its workgroup stops the kernel. On the card it does not: reads give
    /// zero, and writes are dropped. Such words are counted.
    pub local_bounds: bool,
    /// The numbers of the workgroups to run, in the order of the grid, x first; all if none are named. The others write
    /// no results: this is for counting.
    pub only: Option<Vec<u64>>,
    /// Sees each instruction before it executes. Slow, on one thread.
    pub observer: Option<Arc<dyn Observer>>,
    objects: Vec<LoadedObject>,
    cache: CodeCache,
}

/// The most private memory of a launch.
const MAX_SCRATCH: u64 = 1 << 30;
/// The workgroups of a launch that have private memory at the same time.
const PRIVATE_GROUPS: u64 = 64;

impl Machine {
    /// A machine without code.
    pub fn new(mode: Mode) -> Machine {
        Machine {
            memory: Memory::default(),
            mode,
            budget: 100_000_000,
            perturbation: Perturbation::None,
            threads: 0,
            fast: true,
            races: false,
            local_bounds: true,
            only: None,
            observer: None,
            objects: Vec::new(),
            cache: CodeCache::default(),
        }
    }

    /// A machine with one code object, which [`Machine::run`] uses.
    pub fn load(code_object: &[u8], mode: Mode) -> Result<Machine, ElfError> {
        let mut machine = Machine::new(mode);
        machine.add(code_object)?;
        Ok(machine)
    }

    /// Loads one more code object into the machine's memory.
    pub fn add(&mut self, code_object: &[u8]) -> Result<Object, ElfError> {
        self.objects.push(load::load(code_object, &mut self.memory)?);
        Ok(Object(self.objects.len() - 1))
    }

    /// The names of all kernels.
    pub fn kernels(&self) -> impl Iterator<Item = &str> {
        self.objects.iter().flat_map(|object| &object.kernels).map(|kernel| kernel.name.as_str())
    }

    /// An object's metadata of a kernel: its arguments, its registers.
    pub fn metadata(&self, object: Object, kernel: &str) -> Option<&KernelMetadata> {
        self.objects.get(object.0)?.kernels.iter().find(|found| found.name == kernel)?.metadata.as_ref()
    }

    /// The instructions of a kernel, or of all functions, that the emulator does not know, each with the number of its
    /// occurrences in the code.
    pub fn unsupported(&self, kernel: Option<&str>) -> BTreeMap<&'static str, usize> {
        let mut names = BTreeMap::new();
        let functions = self.objects.iter().flat_map(|object| object.functions.iter().map(move |it| (object, it)));
        for (object, function) in functions.filter(|(_, function)| kernel.is_none_or(|name| name == function.name)) {
            let mut code = vec![0; function.size];
            if self.memory.read(function.base, &mut code).is_err() {
                continue;
            }
            let reading = self.reading(object.chip, function.wave64, 0);
            let decoded = [reading.silicon, reading.compiled_for].into_iter();
            let Some(program) = decoded.flat_map(|chip| Program::decode(&code, chip, function.wave64)).next() else {
                continue;
            };
            // Padding after the end of a function is never reached.
            for instruction in &program.instructions {
                let name = instruction.definition.mnemonic;
                if matches!(Semantics::of(instruction), Semantics::Unsupported) && name != "s_code_end" {
                    *names.entry(name).or_default() += 1;
                }
            }
        }
        names
    }

    /// The chip for which the first object was compiled, according to its header.
    pub fn target(&self) -> Option<Chip> {
        self.objects.first().map(|object| object.chip)
    }

    fn reading(&self, compiled_for: Chip, wave64: bool, mode_bits: u32) -> Reading {
        let silicon = match self.mode {
            Mode::Compute => compiled_for,
            Mode::Hazards(chip) => chip,
        };
        let flushes = FloatMode::from_bits(mode_bits, Perturbation::None).is_usual(true);
        Reading { silicon, compiled_for, wave64, flushes }
    }

    fn reading_of(&self, compiled_for: Chip, descriptor: &KernelDescriptor) -> Reading {
        self.reading(compiled_for, descriptor.wave64(), mode_bits(descriptor))
    }

    /// Runs a kernel of the first object to its end.
    pub fn run(&mut self, dispatch: &Dispatch<'_>) -> Result<Counts, Fault> {
        self.run_in(Object(0), dispatch)
    }

    /// Runs a kernel of an object to its end.
    pub fn run_in(&mut self, object: Object, dispatch: &Dispatch<'_>) -> Result<Counts, Fault> {
        let start_fault =
            |kind| Fault { kind, kernel: dispatch.kernel.to_owned(), offset: 0, instruction: String::new() };
        let object = self.objects.get(object.0);
        let kernel = object.and_then(|object| object.kernels.iter().find(|kernel| kernel.name == dispatch.kernel));
        let (Some(object), Some(kernel)) = (object, kernel) else { return Err(start_fault(FaultKind::NoKernel)) };
        // Arguments, packet and private memory belong to this launch only.
        let mut memory = self.memory.clone();
        let packet = packet_for(&mut memory, kernel, dispatch).map_err(start_fault)?;
        let name = |address: u64| match object.function(address) {
            Some(function) => (function.name.clone(), function.base),
            None => (kernel.name.clone(), kernel.address.wrapping_add(kernel.descriptor.entry_offset as u64)),
        };
        let code = Code::new(&memory, &self.cache, self.reading_of(object.chip, &kernel.descriptor));
        let never = AtomicBool::new(false);
        self.launch(&memory, &code, &packet, kernel.descriptor, &never, &name).run()
    }

    /// Runs a kernel whose descriptor and code are in `memory`, as a packet processor does, to its end or until `stop`
    /// is set. Several dispatches may run at the same time, from several threads.
    ///
    /// This uses nothing of the machine's own memory. LDS and private memory are as the packet says, whatever the
    /// descriptor says. A stopped launch ends with [`FaultKind::Stopped`].
    pub fn dispatch(&self, memory: &Memory, packet: &Packet, stop: &AtomicBool) -> Result<Counts, Fault> {
        let mut bytes = [0; KernelDescriptor::SIZE];
        let image = Image::around(memory, packet.kernel_object);
        let kernel = || kernel_name(memory, packet.kernel_object);
        let read = memory.read(packet.kernel_object, &mut bytes);
        let descriptor = read.and_then(|()| {
            KernelDescriptor::parse(&bytes, 0, packet.kernel_object).ok_or(FaultKind::Start("it has no descriptor"))
        });
        let descriptor = descriptor.map_err(|kind| Fault {
            kind,
            kernel: format!("at {:#x}", packet.kernel_object),
            offset: 0,
            instruction: String::new(),
        })?;
        let compiled_for = image.and_then(|image| image.chip()).unwrap_or(match self.mode {
            Mode::Compute => Chip::Gfx1030,
            Mode::Hazards(chip) => chip,
        });
        let code = Code::new(memory, &self.cache, self.reading_of(compiled_for, &descriptor));
        let entry = packet.kernel_object.wrapping_add(descriptor.entry_offset as u64);
        let name = |_| (kernel().unwrap_or_else(|| format!("at {:#x}", packet.kernel_object)), entry);
        self.launch(memory, &code, packet, descriptor, stop, &name).run()
    }

    fn launch<'a>(
        &'a self,
        memory: &'a Memory,
        code: &'a Code<'a>,
        packet: &'a Packet,
        descriptor: KernelDescriptor,
        stop: &'a AtomicBool,
        name: &'a (dyn Fn(u64) -> (String, u64) + Sync),
    ) -> Launch<'a> {
        let &Machine { mode, budget, perturbation, threads, races, local_bounds, .. } = self;
        let (only, observer) = (self.only.as_deref(), self.observer.as_deref());
        // Per-instruction records are made on the plain path.
        let fast = self.fast && !races && observer.is_none();
        Launch {
            memory,
            code,
            packet,
            descriptor,
            mode,
            budget,
            perturbation,
            stop,
            threads,
            fast,
            races,
            local_bounds,
            only,
            observer,
            name,
        }
    }
}

/// The name of the kernel whose descriptor is at an address, if the code object around it in memory has it.
pub fn kernel_name(memory: &Memory, kernel_object: u64) -> Option<String> {
    Image::around(memory, kernel_object)?.kernel(kernel_object)
}

/// What a runtime would put into memory and into the packet for a kernel of a code object.
fn packet_for(memory: &mut Memory, kernel: &LoadedKernel, dispatch: &Dispatch<'_>) -> Result<Packet, FaultKind> {
    let descriptor = kernel.descriptor;
    let mut sizes = [(0u16, 0u32); 3];
    for (axis, size) in sizes.iter_mut().enumerate() {
        let workgroup = u16::try_from(dispatch.workgroup_size[axis]);
        let workgroup = workgroup.map_err(|_| FaultKind::Start("a workgroup has 1 to 1024 work-items"))?;
        let grid = dispatch.workgroups[axis].checked_mul(workgroup as u32);
        *size = (workgroup, grid.ok_or(FaultKind::Start("a grid has fewer than 2^32 work-items along an axis"))?);
    }
    let (workgroup_size, grid_size) = (sizes.map(|size| size.0), sizes.map(|size| size.1));
    let lanes = if descriptor.wave64() { 64 } else { 32 };
    let items: u64 = workgroup_size.iter().map(|&size| size as u64).product();
    let groups: u64 = dispatch.workgroups.iter().map(|&count| count as u64).product();
    let bytes_per_wave = (descriptor.private_segment_size as u64).next_multiple_of(4) * lanes;
    let size = items.div_ceil(lanes).saturating_mul(bytes_per_wave).saturating_mul(groups.min(PRIVATE_GROUPS));
    if size > MAX_SCRATCH {
        return Err(FaultKind::Start("it wants more than 1 GiB of private memory"));
    }
    let kernarg_address = memory.allocate_bytes(&kernel_arguments(kernel, dispatch));
    let group_segment_size = descriptor.group_segment_size.saturating_add(dispatch.dynamic_local);
    let mut packet = Packet {
        packet_address: 0,
        queue_address: 0,
        kernel_object: kernel.address,
        kernarg_address,
        workgroup_size,
        grid_size,
        private_segment_size: descriptor.private_segment_size,
        group_segment_size,
        scratch: Scratch { address: memory.allocate(size as usize), size, bytes_per_wave },
        local_aperture: Packet::LOCAL_APERTURE,
        private_aperture: Packet::PRIVATE_APERTURE,
    };
    packet.packet_address = memory.allocate_bytes(&packet.bytes());
    Ok(packet)
}

/// The arguments, and what the runtime adds for the compiler's own use.
fn kernel_arguments(kernel: &LoadedKernel, dispatch: &Dispatch<'_>) -> Vec<u8> {
    let mut bytes = dispatch.arguments.to_vec();
    let size = (kernel.descriptor.kernarg_size as usize).max(bytes.len());
    // Compilers load slightly more than they need if that merges two loads; the runtime leaves room for it.
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
