//! Watching a kernel instruction by instruction: for traces, breakpoints and counts.

use unhang_isa::Instruction;

use crate::wave::{M0, VCC, Wave};

/// Sees each instruction before it is executed. Waves of a launch that is watched run one after the other, slowly.
pub trait Observer: Send + Sync {
    /// What is about to be executed; says whether it goes on.
    fn before(&self, moment: &Moment<'_>) -> Follow;
}

/// Whether a kernel goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Follow {
    /// With this instruction.
    On,
    /// No: the launch ends with [`FaultKind::Stopped`](crate::FaultKind::Stopped).
    Stop,
}

/// A wave before an instruction.
pub struct Moment<'a> {
    pub(crate) wave: &'a Wave,
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

    /// The place of the workgroup in the grid.
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

    /// Lanes that are on.
    pub fn exec(&self) -> u64 {
        self.wave.exec64()
    }

    /// The mask of the last comparison, as far as it went to VCC.
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

    /// How many vector registers the kernel has.
    pub fn vector_registers(&self) -> usize {
        self.wave.registers
    }

    /// A vector register, one value a lane; nothing past the kernel's registers.
    pub fn vector(&self, register: usize) -> Vec<u32> {
        let halves = if self.wave.wave64 { 2 } else { 1 };
        let rows = (0..halves).filter(|_| register < self.wave.registers);
        rows.flat_map(|half| self.wave.vectors[half * self.wave.registers + register]).collect()
    }
}
