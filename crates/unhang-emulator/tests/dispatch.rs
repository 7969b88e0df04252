//! Kernels launched as by a packet processor: descriptor, code and arguments are in memory of the host.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use common::{Arguments, numbers};
use unhang_emulator::{FaultKind, HostRegion, Machine, Memory, Mode, Packet, Scratch, kernel_name};
use unhang_isa::Chip;
use unhang_isa::elf::CodeObject;

const KERNELS: &[u8] = include_bytes!("fixtures/kernels.gfx1010.co");
const WAVE64: &[u8] = include_bytes!("fixtures/kernels.wave64.gfx1010.co");
const MORE: &[u8] = include_bytes!("fixtures/more.gfx1010.co");
const MORE_WAVE64: &[u8] = include_bytes!("fixtures/more.wave64.gfx1010.co");

/// Memory of the host, as a driver provides it.
struct Host {
    memory: Memory,
    next: u64,
}

/// Words that the host and kernels share.
type Words = Arc<Vec<AtomicU64>>;

impl Host {
    fn new() -> Host {
        Host { memory: Memory::default(), next: 0x7f00_0000_0000 }
    }

    /// Maps this many bytes, and returns their address and their words.
    fn map(&mut self, size: usize) -> (u64, Words) {
        let words: Words = Arc::new((0..size.div_ceil(8)).map(|_| AtomicU64::new(0)).collect());
        let address = self.next;
        self.next += (size as u64).next_multiple_of(1 << 16) + (1 << 20);
        let host = words.as_ptr().cast_mut().cast();
        let region = HostRegion { address, size: size as u64, host, writable: true, keep: words.clone() };
        // SAFETY: the words live in `keep` and are atomics.
        unsafe { self.memory.map_host(region) };
        (address, words)
    }

    fn bytes(&mut self, bytes: &[u8]) -> u64 {
        let (address, _) = self.map(bytes.len());
        self.memory.write(address, bytes).unwrap();
        address
    }

    fn floats(&mut self, values: &[f32]) -> u64 {
        self.bytes(&values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>())
    }

    /// Puts a code object into memory as the runtime's loader does, and returns its address.
    fn load(&mut self, object: &[u8]) -> u64 {
        let object = CodeObject::parse(object).unwrap();
        let end = object.segments().map(|segment| segment.address + segment.memory_size).max().unwrap();
        let (base, _) = self.map(end as usize);
        for segment in object.segments() {
            self.memory.write(base + segment.address, segment.contents).unwrap();
        }
        base
    }

    /// A packet for a kernel of an object at `base`.
    fn packet(&mut self, object: &[u8], base: u64, kernel: &str, arguments: Arguments) -> Packet {
        let object = CodeObject::parse(object).unwrap();
        let function = object.functions.iter().find(|function| function.name == kernel).unwrap();
        let descriptor = function.descriptor.unwrap();
        let mut bytes = arguments.0;
        bytes.resize(256, 0);
        let kernarg_address = self.bytes(&bytes);
        let lanes = if descriptor.wave64() { 64 } else { 32 };
        let bytes_per_wave = (descriptor.private_segment_size as u64 * lanes).next_multiple_of(1024);
        let size = bytes_per_wave * 64;
        let scratch = Scratch { address: self.map(size as usize).0, size, bytes_per_wave };
        let mut packet = Packet {
            packet_address: 0,
            queue_address: 0,
            kernel_object: base + descriptor.address,
            kernarg_address,
            workgroup_size: [256, 1, 1],
            grid_size: [1024, 1, 1],
            private_segment_size: descriptor.private_segment_size,
            group_segment_size: descriptor.group_segment_size,
            scratch,
            local_aperture: Packet::LOCAL_APERTURE,
            private_aperture: Packet::PRIVATE_APERTURE,
        };
        // Older compilers read the size of the grid and of a workgroup here.
        let mut aql = [0; 64];
        aql[4..6].copy_from_slice(&packet.workgroup_size[0].to_le_bytes());
        aql[12..16].copy_from_slice(&packet.grid_size[0].to_le_bytes());
        packet.packet_address = self.bytes(&aql);
        packet
    }
}

fn machine() -> Machine {
    Machine::new(Mode::Hazards(Chip::Gfx1010))
}

fn never() -> AtomicBool {
    AtomicBool::new(false)
}

#[test]
fn a_kernel_runs_from_memory_of_the_host_with_partial_workgroups() {
    for object in [KERNELS, WAVE64] {
        let mut host = Host::new();
        let base = host.load(object);
        let (x, y) = (numbers(1000, 1), numbers(1000, 2));
        let (at_x, at_y) = (host.floats(&x), host.floats(&y));
        // The kernel itself would stop at 2000; the grid ends at 900 work-items, in the middle of a workgroup.
        let arguments = Arguments::default().pointer(at_x).pointer(at_y).float(1.7).int(2000);
        let mut packet = host.packet(object, base, "axpy", arguments);
        packet.grid_size = [900, 1, 1];
        let counts = machine().dispatch(&host.memory, &packet, &never()).unwrap();
        assert!(counts.instructions() > 0);
        let result = host.memory.read_floats(at_y, 1000).unwrap();
        for i in 0..1000 {
            assert_eq!(result[i], if i < 900 { 1.7f32.mul_add(x[i], y[i]) } else { y[i] }, "at {i}");
        }
    }
}

#[test]
fn private_memory_lies_where_the_queue_has_it() {
    for object in [MORE, MORE_WAVE64] {
        let mut host = Host::new();
        let base = host.load(object);
        let kernel = CodeObject::parse(object).unwrap();
        let kernel =
            kernel.functions.iter().find(|function| function.descriptor.is_some_and(|it| it.private_segment_size > 0));
        let name = kernel.unwrap().name;
        let mut packet = host.packet(object, base, name, Arguments::default());
        packet.scratch.bytes_per_wave = 4;
        let fault = machine().dispatch(&host.memory, &packet, &never()).unwrap_err();
        assert!(matches!(fault.kind, FaultKind::Scratch { given: 4, .. }), "{fault}");
        assert_eq!(fault.kernel, name);
    }
}

#[test]
fn a_memory_fault_tells_kernel_offset_instruction_and_address() {
    let mut host = Host::new();
    let base = host.load(KERNELS);
    let at_y = host.floats(&[0.0; 1024]);
    let nowhere = 0x6666_0000_0000;
    let arguments = Arguments::default().pointer(nowhere).pointer(at_y).float(1.0).int(1024);
    let packet = host.packet(KERNELS, base, "axpy", arguments);
    assert_eq!(kernel_name(&host.memory, packet.kernel_object).as_deref(), Some("axpy"));
    let fault = machine().dispatch(&host.memory, &packet, &never()).unwrap_err();
    assert_eq!(fault.kind, FaultKind::Memory { address: nowhere, size: 4 });
    assert_eq!(fault.kernel, "axpy");
    assert!(fault.offset > 0 && fault.instruction.starts_with("global_load_dword"), "{fault}");
}

#[test]
fn memory_that_is_freed_while_a_kernel_runs_stays_until_its_end() {
    let mut host = Host::new();
    let base = host.load(KERNELS);
    let (at_x, x) = host.map(4096);
    let at_y = host.floats(&[1.0; 1024]);
    let arguments = Arguments::default().pointer(at_x).pointer(at_y).float(1.0).int(1024);
    let packet = host.packet(KERNELS, base, "axpy", arguments);
    let snapshot = host.memory.clone();
    assert!(host.memory.unmap_host(at_x));
    machine().dispatch(&snapshot, &packet, &never()).unwrap();
    let fault = machine().dispatch(&host.memory, &packet, &never()).unwrap_err();
    assert_eq!(fault.kind, FaultKind::Memory { address: at_x, size: 4 });
    drop(snapshot);
    assert_eq!(Arc::strong_count(&x), 1);
}

#[test]
fn code_that_takes_the_place_of_other_code_is_what_runs() {
    let mut host = Host::new();
    let base = host.load(KERNELS);
    let at_y = host.floats(&[1.0; 1024]);
    let arguments = Arguments::default().pointer(at_y).pointer(at_y).float(1.0).int(1024);
    let packet = host.packet(KERNELS, base, "axpy", arguments);
    let machine = machine();
    machine.dispatch(&host.memory, &packet, &never()).unwrap();
    // s_endpgm at the kernel's start.
    let object = CodeObject::parse(KERNELS).unwrap();
    let function = object.functions.iter().find(|function| function.name == "axpy").unwrap();
    host.memory.write(base + function.address, &0xbf81_0000u32.to_le_bytes()).unwrap();
    let counts = machine.dispatch(&host.memory, &packet, &never()).unwrap();
    assert_eq!(counts.instructions(), 4 * 8, "one instruction in each of 4 workgroups of 8 waves");
    assert_eq!(host.memory.read_floats(at_y, 1).unwrap(), [2.0]);
}

#[test]
fn a_kernel_that_never_ends_is_stopped_while_another_one_runs() {
    let mut host = Host::new();
    let base = host.load(KERNELS);
    let next = host.bytes(&[0; 4096]);
    let out = host.bytes(&[0; 4096]);
    let arguments = Arguments::default().pointer(next).pointer(out).int(i32::MAX);
    let mut endless = host.packet(KERNELS, base, "chase", arguments);
    (endless.workgroup_size, endless.grid_size) = ([64, 1, 1], [640, 1, 1]);
    let (x, y) = (host.floats(&[1.0; 1024]), host.floats(&[1.0; 1024]));
    let arguments = Arguments::default().pointer(x).pointer(y).float(1.0).int(1024);
    let short = host.packet(KERNELS, base, "axpy", arguments);
    let mut machine = machine();
    machine.budget = u64::MAX;
    let stop = never();
    std::thread::scope(|scope| {
        let running = scope.spawn(|| machine.dispatch(&host.memory, &endless, &stop));
        machine.dispatch(&host.memory, &short, &never()).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        assert!(!running.is_finished());
        stop.store(true, Ordering::Relaxed);
        let fault = running.join().unwrap().unwrap_err();
        assert_eq!((fault.kind, fault.kernel.as_str()), (FaultKind::Stopped, "chase"));
    });
    assert_eq!(host.memory.read_floats(y, 1024).unwrap(), [2.0; 1024]);
}
