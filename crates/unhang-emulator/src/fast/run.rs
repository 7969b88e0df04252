//! The loop over instructions, compiled for the host's vectors.

use unhang_isa::audit::{PathWatch, Rule};
use unhang_isa::{Class, Format, Instruction};

use super::Kind;
use super::rows::Host;
use super::stretch::{Minds, Stretch};
use crate::code::{Function, Hole, NOWHERE};
use crate::dispatch::Launch;
use crate::memory_access::Surroundings;
use crate::pending::{KnownStates, Pending};
use crate::scalar::Next;
use crate::semantics::Semantics;
use crate::wave::{Standing, Wave};
use crate::{Counts, FaultKind, Follow, Mode, Moment};

/// Runs a wave within one function; returns where it jumps when it leaves it.
pub(crate) fn run_function(
    launch: &Launch<'_>,
    wave: &mut Wave,
    around: &mut Surroundings<'_>,
    (function, known): (&Function, &mut KnownStates),
    counts: &mut Counts,
    end: u64,
) -> Result<Option<u64>, FaultKind> {
    match Host::get() {
        // SAFETY: the host has these instructions.
        #[cfg(target_arch = "x86_64")]
        Host::Avx512 => unsafe { with_avx512(launch, wave, around, (function, known), counts, end) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Host::Avx2 => unsafe { with_avx2(launch, wave, around, (function, known), counts, end) },
        _ => run::<false>(launch, wave, around, (function, known), counts, end),
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
fn with_avx512(
    launch: &Launch<'_>,
    wave: &mut Wave,
    around: &mut Surroundings<'_>,
    (function, known): (&Function, &mut KnownStates),
    counts: &mut Counts,
    end: u64,
) -> Result<Option<u64>, FaultKind> {
    run::<true>(launch, wave, around, (function, known), counts, end)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
fn with_avx2(
    launch: &Launch<'_>,
    wave: &mut Wave,
    around: &mut Surroundings<'_>,
    (function, known): (&Function, &mut KnownStates),
    counts: &mut Counts,
    end: u64,
) -> Result<Option<u64>, FaultKind> {
    run::<false>(launch, wave, around, (function, known), counts, end)
}

/// `WIDE` says that the host has AVX-512.
#[inline(always)]
fn run<const WIDE: bool>(
    launch: &Launch<'_>,
    wave: &mut Wave,
    around: &mut Surroundings<'_>,
    (function, known): (&Function, &mut KnownStates),
    counts: &mut Counts,
    end: u64,
) -> Result<Option<u64>, FaultKind> {
    let minds = Minds {
        hazards: matches!(launch.mode, Mode::Hazards(chip) if chip.is_rdna1()),
        waits: matches!(launch.mode, Mode::Hazards(_)),
        budget: launch.budget,
    };
    while wave.executed < end {
        let Some(&start) = function.starts.get(wave.index as usize) else {
            return Err(FaultKind::Jump { address: function.entry });
        };
        if launch.fast
            && let Some(stretch) = function.stretches.get(start as usize)
            && wave.enter((function, stretch), minds, known, counts)
        {
            run_stretch::<WIDE>(wave, around, function, stretch, minds.hazards)?;
            continue;
        }
        match step(launch, wave, around, (function, known), minds, counts)? {
            Next::Continue => wave.index += 1,
            Next::End => {
                wave.standing = Standing::Ended;
                return Ok(None);
            }
            Next::Barrier => {
                wave.standing = Standing::AtBarrier;
                wave.index += 1;
                return Ok(None);
            }
            Next::Relative(_) => {
                if function.instructions[wave.index as usize].is_call() {
                    known.restore(wave).watch_since_call = Some(PathWatch::default());
                }
                wave.index = function.target(wave.index as usize)?;
            }
            Next::Absolute(target) => {
                known.restore(wave).watch_since_call = Some(PathWatch::default());
                return Ok(Some(target));
            }
            Next::Trap(number) => return Err(FaultKind::Trap { number }),
        }
    }
    Ok(None)
}

/// Executes one instruction the plain way, and minds what is to be minded.
#[inline(never)]
fn step(
    launch: &Launch<'_>,
    wave: &mut Wave,
    around: &mut Surroundings<'_>,
    (function, known): (&Function, &mut KnownStates),
    minds: Minds,
    counts: &mut Counts,
) -> Result<Next, FaultKind> {
    let index = wave.index as usize;
    if let Some(observer) = launch.observer {
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
    if wave.executed > minds.budget {
        return Err(FaultKind::Budget { limit: minds.budget });
    }
    counts.note(function.units[index], wave.lanes_on());
    if minds.waits {
        let lanes = wave.exec64();
        if !known.pass(wave, index as u32 * 2 + 1, lanes, |it| it.take(function, index, minds.hazards, lanes).is_ok()) {
            known.restore(wave).take(function, index, minds.hazards, lanes)?;
        }
    }
    if minds.hazards {
        wave.mind_addresses(&function.instructions[index])?;
    }
    run_plain(wave, around, function, index)
}

/// Executes a stretch that was [entered](Wave::enter).
#[inline(always)]
fn run_stretch<const WIDE: bool>(
    wave: &mut Wave,
    around: &mut Surroundings<'_>,
    function: &Function,
    stretch: &Stretch,
    hazards: bool,
) -> Result<(), FaultKind> {
    let (first, end) = (stretch.first as usize, stretch.end as usize);
    for (place, op) in function.ops[first..end].iter().enumerate() {
        match op.kind {
            Kind::Rows { run, rows } => wave.fast_rows(run, rows),
            Kind::FilledRows { run, rows, ref sources } => wave.fast_filled_rows(run, rows, sources),
            Kind::Halves(ref operation) => wave.fast_halves(operation),
            Kind::Nothing => {}
            Kind::Local(ref access) => {
                // Which address it has is known only now.
                if hazards
                    && wave.spans_units
                    && access.is_wide()
                    && wave.is_misaligned(&function.instructions[first + place])
                {
                    wave.index = (first + place) as u32;
                    return Err(FaultKind::Hazard { rule: Rule::LocalMisaligned, across_calls: false });
                }
                if !wave.fast_local::<WIDE>(access, around) {
                    plain_in_stretch(wave, around, function, first + place)?;
                }
            }
            Kind::Global(ref access) => {
                if !wave.fast_global::<WIDE>(access, around) {
                    plain_in_stretch(wave, around, function, first + place)?;
                }
            }
            Kind::Scalar { run, sources, destination, wide } => {
                let value = wave.fast_scalar(run, sources);
                match wide {
                    true => wave.set_scalar64(destination, value),
                    false => wave.set_scalar(destination, value as u32),
                }
            }
            Kind::SaveExec { run, source, destination, wide } => wave.fast_save_exec(run, source, destination, wide),
            Kind::ShiftWide { shift, source, amount, destination } => {
                wave.fast_shift(shift, source, &amount, destination);
            }
            Kind::MultiplyAddWide { ref sources, summand, mask, destination } => {
                wave.fast_multiply_add(sources, summand, mask, destination);
            }
            Kind::ScalarCompare { holds, sources } => wave.fast_compare(holds, sources),
            Kind::ScalarConstant { run, constant, destination } => wave.fast_constant(run, constant, destination),
            Kind::ConstantCompare { holds, source, constant } => wave.fast_constant_compare(holds, source, constant),
            Kind::FirstLane { source, destination } => wave.fast_first_lane(source, destination),
            Kind::Branch { taken } => {
                if taken(wave) {
                    wave.index = (first + place) as u32;
                    wave.index = function.target(first + place)?;
                    return Ok(());
                }
            }
            Kind::Compare { run, outcomes, ref sources, destination } => {
                wave.fast_mask(run, outcomes, sources, destination);
            }
            Kind::Select { ref sources, mask, destination } => wave.fast_select(sources, mask, destination),
            Kind::Carry { ref sources, subtract, carry_in, carry_out, destination } => {
                wave.fast_carry(sources, subtract, (carry_in, carry_out), destination);
            }
            Kind::Plain => plain_in_stretch(wave, around, function, first + place)?,
        }
    }
    wave.index = stretch.end;
    Ok(())
}

/// Executes an instruction of a stretch the plain way; it goes on with the next.
#[inline(never)]
fn plain_in_stretch(
    wave: &mut Wave,
    around: &mut Surroundings<'_>,
    function: &Function,
    index: usize,
) -> Result<(), FaultKind> {
    wave.index = index as u32;
    run_plain(wave, around, function, index).map(|_| ())
}

/// Executes one instruction the plain way.
#[inline(never)]
fn run_plain(
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

impl Function {
    /// Where a relative branch goes.
    #[inline]
    fn target(&self, index: usize) -> Result<u32, FaultKind> {
        let instruction = &self.instructions[index];
        let after = self.addresses[index] + instruction.size() as u64;
        let distance = instruction.branch_distance().unwrap_or(0) as u64;
        match self.targets[index] {
            NOWHERE => Err(FaultKind::Jump { address: after.wrapping_add(distance) }),
            target => Ok(target),
        }
    }
}

impl Pending {
    /// Minds an instruction; where it says what is wrong, nothing has changed.
    pub fn take(&mut self, function: &Function, index: usize, hazards: bool, lanes: u64) -> Result<(), FaultKind> {
        let (touch, effects) = (&function.touches[index], &function.effects[index]);
        let (mut watch, mut since_call) = (self.watch, self.watch_since_call);
        if hazards {
            let broken = watch.pass(&function.transfers[index]);
            let broken_since_call = since_call.as_mut().map(|watch| watch.pass(&function.transfers[index]));
            if let Some((rule, _)) = broken {
                let across_calls = broken_since_call.is_some_and(|broken| broken.is_none());
                return Err(FaultKind::Hazard { rule, across_calls });
            }
        }
        if self.flights.may_meet(&touch.registers, effects.touched()) {
            let text = |address| match function.index_at(address) {
                Some(index) => function.instructions[index as usize].text(function.wave64()).to_string(),
                None => format!("a load at {address:#x}"),
            };
            let what = (&function.instructions[index], &function.semantics[index]);
            self.flights.check(what, effects, lanes, function.addresses[index], text)?;
        }
        (self.watch, self.watch_since_call) = (watch, since_call);
        self.flights.note(touch.flight, function.addresses[index], lanes);
        Ok(())
    }
}

impl Wave {
    /// The hazard rules that look at addresses.
    fn mind_addresses(&mut self, instruction: &Instruction) -> Result<(), FaultKind> {
        if instruction.format() == Format::Flat && instruction.flat_offset() != 0 {
            return Err(FaultKind::Hazard { rule: Rule::FlatOffset, across_calls: false });
        }
        if self.spans_units && instruction.class() == Class::Local {
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
