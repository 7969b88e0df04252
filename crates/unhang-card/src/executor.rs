//! The emulator behind the packet processor: runs one dispatch and reports how it ended.

use std::sync::atomic::AtomicBool;

use unhang_emulator::{Fault, FaultKind, Machine, Mode, Packet, kernel_name};

use crate::card::Card;
use crate::kfd::memory::{AccessFault, PageTable};
use crate::settings::Hazards;

/// What became of a dispatch.
#[derive(Debug)]
pub(crate) enum DispatchEnd {
    /// It came to its end.
    Ended {
        /// The kernel's name.
        kernel: String,
        /// How many instructions its waves executed.
        instructions: u64,
        /// Accesses beyond its LDS, in words.
        beyond_local: u64,
    },
    /// The queue was destroyed meanwhile.
    Cancelled,
    /// It did not come to its end.
    Stopped {
        /// The kernel's name.
        kernel: String,
        /// What the program gets.
        stop: Stop,
        /// What is said to the user.
        message: String,
    },
}

/// What a program gets for a kernel that did not finish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// A memory fault.
    Memory(AccessFault),
    /// A hang.
    Hazard,
    /// An exception for an instruction that the card lacks.
    IllegalInstruction,
    /// An exception for an access outside of LDS or private memory.
    Aperture,
}

/// The emulator of one card.
pub(crate) struct Executor {
    machine: Machine,
    /// What the chip is called in messages.
    chip: String,
}

impl Executor {
    /// The emulator of a card.
    pub(crate) fn new(card: &Card, hazards: Hazards) -> Executor {
        let mode = match (card.chip(), hazards) {
            (Some(chip), Hazards::Fault | Hazards::Hang) => Mode::Hazards(chip),
            _ => Mode::Compute,
        };
        let mut machine = Machine::new(mode);
        // An endless kernel runs until its queue is destroyed, as on a card.
        machine.budget = u64::MAX;
        machine.local_bounds = false;
        machine.races = crate::settings::settings().is_some_and(|settings| settings.races);
        let version = card.target_version;
        let chip = format!("gfx{}{}{:x}", version / 10_000, version / 100 % 100, version % 100);
        Executor { machine, chip }
    }

    /// Runs a dispatch to its end, until a fault, or until `stop`.
    pub(crate) fn run(&self, table: &PageTable, dispatch: &Packet, stop: &AtomicBool) -> DispatchEnd {
        let name = || {
            let known = kernel_name(table.emulated(), dispatch.kernel_object);
            // The runtime's own copy and fill kernels come without a code object around them.
            known.unwrap_or_else(|| "a kernel of the runtime itself".to_owned())
        };
        let fault = match self.machine.dispatch(table.emulated(), dispatch, stop) {
            Ok(counts) => {
                let (instructions, beyond_local) = (counts.instructions(), counts.beyond_local);
                return DispatchEnd::Ended { kernel: name(), instructions, beyond_local };
            }
            Err(Fault { kind: FaultKind::Stopped, .. }) => return DispatchEnd::Cancelled,
            Err(fault) => fault,
        };
        let stop = match &fault.kind {
            FaultKind::Memory { address, .. } | FaultKind::Jump { address } => {
                Stop::Memory(AccessFault { address: *address, is_read_only: false })
            }
            FaultKind::ReadOnly { address, .. } => Stop::Memory(AccessFault { address: *address, is_read_only: true }),
            FaultKind::Hazard { .. } | FaultKind::Wait { .. } | FaultKind::Race(_) => Stop::Hazard,
            FaultKind::Local { .. } | FaultKind::Private { .. } => Stop::Aperture,
            _ => Stop::IllegalInstruction,
        };
        DispatchEnd::Stopped { kernel: name(), stop, message: self.message(&fault, name()) }
    }

    /// The message for a fault: what, where, and that this is an emulated card.
    fn message(&self, fault: &Fault, kernel: String) -> String {
        let Fault { kind, offset, instruction, .. } = fault;
        let what = match kind {
            FaultKind::Unsupported => {
                format!("the emulator does not know `{instruction}`; this says nothing about a real card")
            }
            FaultKind::Hazard { rule, .. } => format!("hazard {rule} at `{instruction}`"),
            other if instruction.is_empty() => other.to_string(),
            other => format!("{other} at `{instruction}`"),
        };
        format!("kernel {kernel}, offset {offset:#x}, on the emulated {}: {what}", self.chip)
    }
}
