//! Watching a kernel instruction by instruction: for traces, breakpoints and counts.

use unhang_isa::{Format, Instruction};

use crate::access::{Access, Space};
use crate::semantics::Semantics;
use crate::waits::Touch;
use crate::wave::{LANES, M0, VCC, Wave};

/// Sees each instruction before it executes. Waves of a watched launch run one after the other, slowly.
pub trait Observer: Send + Sync {
    /// The wave before its next instruction. Returns whether to continue.
    fn before(&self, moment: &Moment<'_>) -> Follow;
}

/// Whether a kernel continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Follow {
    /// With this instruction.
    On,
    /// No: the launch ends with [`FaultKind::Stopped`](crate::FaultKind::Stopped).
    Stop,
    /// The wave ends before this instruction; the others go on.
    EndWave,
}

/// The memory accesses that an instruction is about to make, lane by lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Touched {
    /// Which memory.
    pub space: Space,
    /// Whether it writes: stores and atomics.
    pub writes: bool,
    /// Whether it is atomic.
    pub atomic: bool,
    /// Bytes at each address.
    pub bytes: u32,
    /// The addresses, in the order of the active lanes; two per lane if an instruction names two places.
    pub addresses: Vec<u64>,
}

/// The vector registers that an instruction names, one bit for each of the 256.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VectorOperands {
    /// Those that it reads.
    pub reads: [u64; 4],
    /// Those that it writes, now or when its load arrives.
    pub writes: [u64; 4],
}

/// A wave before an instruction.
pub struct Moment<'a> {
    pub(crate) wave: &'a Wave,
    pub(crate) semantics: &'a Semantics,
    /// The instruction.
    pub instruction: &'a Instruction,
    /// Its address.
    pub address: u64,
    /// The address of the kernel's first instruction.
    pub entry: u64,
}

impl Moment<'_> {
    /// The instruction's offset from the kernel's first.
    pub fn offset(&self) -> i64 {
        self.address.wrapping_sub(self.entry) as i64
    }

    /// The position of the workgroup in the grid.
    pub fn workgroup(&self) -> [u32; 3] {
        self.wave.workgroup
    }

    /// The number of the wave in its workgroup.
    pub fn wave(&self) -> u32 {
        self.wave.number
    }

    /// The instruction as an assembler takes it.
    pub fn text(&self) -> String {
        self.instruction.text(self.wave.wave64).to_string()
    }

    /// The active lanes.
    pub fn exec(&self) -> u64 {
        self.wave.exec64()
    }

    /// The mask of the last comparison, if it went to VCC.
    pub fn vcc(&self) -> u64 {
        self.wave.vcc64()
    }

    /// The scalar condition.
    pub fn scc(&self) -> bool {
        self.wave.scc
    }

    /// The registers M0, and s0 to s105.
    pub fn scalars(&self) -> (u32, &[u32]) {
        (self.wave.scalars[M0], &self.wave.scalars[..VCC])
    }

    /// The number of vector registers of the kernel.
    pub fn vector_registers(&self) -> usize {
        self.wave.registers
    }

    /// A vector register, one value per lane; empty past the kernel's registers.
    pub fn vector(&self, register: usize) -> Vec<u32> {
        let halves = if self.wave.wave64 { 2 } else { 1 };
        let rows = (0..halves).filter(|_| register < self.wave.registers);
        rows.flat_map(|half| self.wave.vectors[half * self.wave.registers + register]).collect()
    }

    /// The vector registers that the instruction names.
    pub fn vector_operands(&self) -> VectorOperands {
        let (reads, writes) = Touch::registers(self.instruction, self.semantics);
        VectorOperands { reads: reads.words(), writes: writes.words() }
    }

    /// The memory accesses that the instruction is about to make; `None` if there are none. For a wave of 64 lanes,
    /// those of the lower half.
    pub fn touched(&self) -> Option<Touched> {
        let Semantics::Memory(access) = *self.semantics else { return None };
        let (bytes, writes, atomic) = match access {
            Access::ScalarLoad { count } => {
                let addresses = vec![self.wave.scalar_address(self.instruction).0];
                let bytes = count as u32 * 4;
                return Some(Touched { space: Space::Scalar, writes: false, atomic: false, bytes, addresses });
            }
            Access::Load { count, part } => (count as u32 * part.size(), false, false),
            Access::Store { count, part } => (count as u32 * part.size(), true, false),
            Access::LoadToLocal { part } => (part.size(), false, false),
            Access::TypedLoad(typed) | Access::TypedLoadToLocal(typed) => {
                (self.wave.data_format(self.instruction, typed)?.bytes(), false, false)
            }
            Access::TypedStore(typed) => (self.wave.data_format(self.instruction, typed)?.bytes(), true, false),
            Access::LoadTwo { count, .. } => (count as u32 * 4, false, false),
            Access::StoreTwo { count, .. } => (count as u32 * 4, true, false),
            Access::Atomic { wide, .. } => (4 + 4 * wide as u32, true, true),
            Access::Nothing | Access::Clock | Access::Swizzle | Access::Permute { .. } => return None,
        };
        let exec = self.wave.exec();
        let lanes = (0..LANES).filter(|lane| exec >> lane & 1 == 1);
        let (mut space, mut addresses) = (Space::Global, Vec::with_capacity(LANES));
        for lane in lanes {
            match access {
                Access::LoadTwo { stride, .. } | Access::StoreTwo { stride, .. } => {
                    let base = self.wave.vector_lane(self.instruction.high_bits(0, 8) as usize, lane);
                    let offsets = [0, 8].map(|low| self.instruction.bits(low, 8) * stride);
                    addresses.extend(offsets.map(|offset| base.wrapping_add(offset) as u64));
                }
                // A faulting lane is found when the instruction executes.
                _ => addresses.extend(self.wave.place(self.instruction, lane, bytes).map(|(found, address)| {
                    space = found;
                    address
                })),
            }
        }
        if self.instruction.format() == Format::Ds {
            space = Space::Local;
        }
        Some(Touched { space, writes, atomic, bytes, addresses })
    }
}
