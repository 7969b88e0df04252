//! The plain path: one instruction after another, with every enabled check.

use unhang_isa::audit::Rule;
use unhang_isa::{Format, Instruction};

use crate::function::Function;
use crate::observe::{Follow, Moment, Observer};
use crate::pending::Tracker;
use crate::scalar::Next;
use crate::semantics::{Hole, Semantics};
use crate::surroundings::Surroundings;
use crate::wave::Wave;
use crate::{Counts, FaultKind};

/// Which checks are enabled; checking hazards includes checking waits.
#[derive(Clone, Copy)]
pub(crate) struct Checks<'a> {
    pub hazards: bool,
    pub waits: bool,
    /// The most instructions of a wave.
    pub budget: u64,
    /// Sees each instruction.
    pub observer: Option<&'a dyn Observer>,
}

/// Executes one instruction by the plain path, with every enabled check.
#[inline(never)]
pub(crate) fn step(
    wave: &mut Wave,
    around: &mut Surroundings<'_>,
    function: &Function,
    tracker: &mut Tracker<'_>,
    checks: Checks<'_>,
    counts: &mut Counts,
) -> Result<Next, FaultKind> {
    let index = wave.index as usize;
    if let Some(observer) = checks.observer {
        let (instruction, address) = (&function.instructions[index], function.addresses[index]);
        let moment = Moment { wave, semantics: &function.semantics[index], instruction, address, entry: wave.entry };
        match observer.before(&moment) {
            Follow::On => {}
            Follow::Stop => return Err(FaultKind::Stopped),
            Follow::EndWave => return Ok(Next::End),
        }
    }
    if let Some(races) = around.races.as_deref_mut() {
        races.begin(wave.number as u8, function.addresses[index], function.touches[index].flight);
    }
    wave.executed += 1;
    if wave.executed > checks.budget {
        return Err(FaultKind::Budget { limit: checks.budget });
    }
    counts.note(function.units[index], wave.lanes_on());
    if checks.waits {
        let (place, lanes) = (function.places + index as u64, wave.exec64());
        if !tracker.pass(place * 2 + 1, lanes, |it| it.take(function, index, checks.hazards, lanes).is_ok()) {
            tracker.restore().take(function, index, checks.hazards, lanes)?;
        }
    }
    if checks.hazards {
        wave.check_addresses(&function.instructions[index])?;
    }
    run_plain(wave, around, function, index)
}

/// Executes one instruction by the plain path.
#[inline(never)]
pub(crate) fn run_plain(
    wave: &mut Wave,
    around: &mut Surroundings<'_>,
    function: &Function,
    index: usize,
) -> Result<Next, FaultKind> {
    let (instruction, address) = (&function.instructions[index], function.addresses[index]);
    match function.semantics[index] {
        Semantics::Hole(Hole::Unmapped) => return Err(FaultKind::Memory { address, size: 4 }),
        Semantics::Hole(Hole::Word(_) | Hole::Illegal) => return Err(FaultKind::Illegal),
        Semantics::Hole(Hole::Overlaps) => return Err(FaultKind::Jump { address }),
        Semantics::Scalar(operation) => return Ok(wave.run_scalar(instruction, operation, address)),
        Semantics::Memory(access) => wave.run_memory_halves(instruction, access, around)?,
        semantics => wave.run_vector_halves(instruction, semantics)?,
    }
    Ok(Next::Continue)
}

impl Wave {
    /// The hazard rules that depend on addresses.
    fn check_addresses(&mut self, instruction: &Instruction) -> Result<(), FaultKind> {
        if instruction.format() == Format::Flat && instruction.flat_offset() != 0 {
            return Err(FaultKind::Hazard { rule: Rule::FlatOffset, across_calls: false });
        }
        if self.spans_units {
            for half in 0..=self.wave64 as usize {
                self.half = half;
                let misaligned = self.is_misaligned(instruction);
                self.half = 0;
                if misaligned {
                    return Err(FaultKind::Hazard { rule: Rule::LocalMisaligned, across_calls: false });
                }
            }
        }
        Ok(())
    }
}
