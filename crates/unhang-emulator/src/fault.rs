//! Why execution stopped.

use thiserror::Error;
use unhang_isa::audit::Rule;

/// A fault and its place.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{kind} (kernel {kernel}, offset {}{:#x}: `{instruction}`)", if *offset < 0 { "-" } else { "" }, offset.unsigned_abs())]
pub struct Fault {
    /// What happened.
    pub kind: FaultKind,
    /// The kernel.
    pub kernel: String,
    /// Bytes to the instruction from the start of the function, or of the kernel if that is all that is known.
    pub offset: i64,
    /// The instruction as text.
    pub instruction: String,
}

/// Two waves of a workgroup that touch the same bytes without anything that orders them.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "race: wave {wave} {deed} {place}, which wave {other_wave} {other_deed}, {distance:#x} bytes of code before, {}",
    if *in_flight { "and has not waited for before the barrier" } else { "with neither a barrier nor atomics between" }
)]
pub struct Race {
    /// LDS or global memory, with the word's address.
    pub place: String,
    /// The later wave, by its number in the workgroup.
    pub wave: u32,
    /// What it does: reads, writes or updates.
    pub deed: &'static str,
    /// The earlier wave.
    pub other_wave: u32,
    /// What it does.
    pub other_deed: &'static str,
    /// Bytes from its instruction to the other's.
    pub distance: i64,
    /// A barrier or an atomic is between them, but the earlier wave had not waited for its access when it got there.
    pub in_flight: bool,
}

/// Why a wave stopped.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FaultKind {
    /// Memory that nobody allocated, or past the end of an allocation.
    #[error("memory fault: {size} bytes at {address:#x} are in no allocation")]
    Memory {
        /// The address.
        address: u64,
        /// The number of bytes.
        size: u32,
    },
    /// Memory that kernels may only read.
    #[error("memory fault: {size} bytes at {address:#x} may not be written")]
    ReadOnly {
        /// The address.
        address: u64,
        /// The number of bytes.
        size: u32,
    },
    /// Outside the workgroup's local memory.
    #[error("local memory fault: {size} bytes at {address:#x}; the workgroup has {limit:#x}")]
    Local {
        /// The address.
        address: u32,
        /// The number of bytes.
        size: u32,
        /// The size of local memory.
        limit: u32,
    },
    /// Outside the lane's private memory.
    #[error("private memory fault: offset {offset:#x}; a lane has {limit:#x} bytes")]
    Private {
        /// The offset.
        offset: u32,
        /// Bytes of a lane.
        limit: u32,
    },
    /// An instruction that the emulator does not know.
    #[error("the emulator does not know this instruction, or this form of it")]
    Unsupported,
    /// The chip does not have the instruction.
    #[error("illegal instruction on the emulated chip")]
    Illegal,
    /// A hazard on the executed path.
    #[error("would hang or may corrupt: {rule}{}", if *across_calls { ", across a call" } else { "" })]
    Hazard {
        /// The rule that the path breaks.
        rule: Rule,
        /// Whether the hazard was left pending before the last call, return or jump through a register. Compilers
        /// examine each function by itself, so native code has such places.
        across_calls: bool,
    },
    /// A register is used before its load was waited for.
    #[error("{register} is used before its load was waited for: `{earlier}`, {distance:#x} bytes before")]
    Wait {
        /// The register.
        register: String,
        /// The load.
        earlier: String,
        /// Bytes from the load to this instruction.
        distance: i64,
    },
    /// Two waves touch the same bytes without anything that orders them.
    #[error(transparent)]
    Race(Box<Race>),
    /// The kernel gave up: `abort()`, or a failed assertion.
    #[error("trap {number}: the kernel has aborted")]
    Trap {
        /// The number of the trap. Compilers emit 2 for `abort()` and 3 for a debugger.
        number: u8,
    },
    /// A jump to an address without code.
    #[error("jump to {address:#x}, where there is no function")]
    Jump {
        /// The address.
        address: u64,
    },
    /// More instructions than were allowed.
    #[error("the wave executed {limit} instructions without coming to its end")]
    Budget {
        /// The limit.
        limit: u64,
    },
    /// The launch was stopped from outside.
    #[error("stopped")]
    Stopped,
    /// The queue has too little private memory for the kernel.
    #[error("the kernel needs {needed} bytes of private memory a wave; the queue has {given}, or too few waves of it")]
    Scratch {
        /// Bytes per wave that the kernel needs.
        needed: u64,
        /// Bytes per wave that the queue has.
        given: u64,
    },
    /// No such kernel in the code object.
    #[error("the code object has no kernel of this name")]
    NoKernel,
    /// The kernel wants something that the emulator does not offer.
    #[error("the kernel cannot be started: {0}")]
    Start(&'static str),
}
