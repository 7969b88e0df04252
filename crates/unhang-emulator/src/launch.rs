//! A launched kernel: the packet, and everything that all of its waves share.

use std::sync::atomic::AtomicBool;

use unhang_isa::elf::KernelDescriptor;

use crate::code::Code;
use crate::settings::{Mode, Perturbation};
use crate::{Fault, FaultKind, Memory, Observer};

/// Private memory for the waves of a queue, as the runtime lays it out in `amd_queue_t`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scratch {
    /// `scratch_backing_memory_location`.
    pub address: u64,
    /// Its total size in bytes.
    pub size: u64,
    /// Bytes per wave: `WAVESIZE` of `compute_tmpring_size`, which counts units of 1 KiB.
    pub bytes_per_wave: u64,
}

/// The contents of a kernel dispatch packet, and what its queue adds. Addresses are the device's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// The address of the packet itself; kernels of older compilers read their dimensions there.
    pub packet_address: u64,
    /// The address of the queue (`amd_queue_t`).
    pub queue_address: u64,
    /// The address of the kernel's descriptor.
    pub kernel_object: u64,
    /// The address of the arguments.
    pub kernarg_address: u64,
    /// Work-items of a workgroup.
    pub workgroup_size: [u16; 3],
    /// Work-items of the whole grid; the last workgroups may be partial.
    pub grid_size: [u32; 3],
    /// Bytes of private memory per work-item.
    pub private_segment_size: u32,
    /// Bytes of LDS per workgroup.
    pub group_segment_size: u32,
    /// Private memory of the queue.
    pub scratch: Scratch,
    /// The base of LDS in flat addresses: `lds_base` of the process's apertures.
    pub local_aperture: u64,
    /// The base of private memory in flat addresses: `scratch_base` of the process's apertures.
    pub private_aperture: u64,
}

impl Packet {
    /// The base of LDS in flat addresses, unless the driver uses another one.
    pub const LOCAL_APERTURE: u64 = 0x1_0000 << 32;
    /// The base of private memory in flat addresses, unless the driver uses another one.
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

/// A running kernel.
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
    /// Whether accesses of two waves to the same bytes are checked.
    pub races: bool,
    /// Whether DS instructions beyond LDS stop the kernel.
    pub local_bounds: bool,
    /// The numbers of the workgroups to run, if not all.
    pub only: Option<&'a [u64]>,
    /// Sees each instruction.
    pub observer: Option<&'a dyn Observer>,
    /// The name and start of the function that contains an address, for faults.
    pub name: &'a (dyn Fn(u64) -> (String, u64) + Sync),
}

impl Launch<'_> {
    /// Lanes of a wave.
    pub(crate) fn lanes(&self) -> u32 {
        if self.descriptor.wave64() { 64 } else { 32 }
    }

    /// Waves of a full workgroup.
    pub(crate) fn waves(&self) -> u64 {
        let items: u64 = self.packet.workgroup_size.iter().map(|&size| size as u64).product();
        items.div_ceil(self.lanes() as u64)
    }

    /// Whether hazards are checked.
    pub(crate) fn checks_hazards(&self) -> bool {
        matches!(self.mode, Mode::Hazards(chip) if chip.is_rdna1())
    }

    /// A fault at an address.
    pub(crate) fn fault(&self, kind: FaultKind, address: u64, instruction: String) -> Fault {
        let (kernel, start) = (self.name)(address);
        Fault { kind, kernel, offset: address.wrapping_sub(start) as i64, instruction }
    }
}
